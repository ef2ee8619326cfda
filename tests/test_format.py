"""FORMAT.md is executed: its example is parsed and reproduced, and other people's tools read our files."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forge import FILE_ID, single
from hypothesis import given
from hypothesis import strategies as st
from support import assert_same, needs_tool

import fastckpt
from fastckpt import container

STATE = {"step": 3, "loss": 0.5, "done": False}


def example() -> bytes:
    text = resources.files("fastckpt").joinpath("FORMAT.md").read_text(encoding="utf-8")
    dump = re.search(r"```hex\n(.*?)```", text, re.DOTALL)
    assert dump is not None
    data = b""
    for line in dump.group(1).splitlines():
        assert int(line[:4], 16) == len(data), "the offsets of the example count its bytes"
        data += bytes.fromhex(line[6:53])
    return data


def test_the_example_of_the_specification_loads(tmp_path: Any) -> None:
    """The hex dump in FORMAT.md is a file that loads as the state it names."""
    (tmp_path / "x").write_bytes(example())
    assert_same(fastckpt.load(tmp_path / "x"), STATE)
    info = fastckpt.inspect(tmp_path / "x")
    assert (info.file_id, info.step, info.time, info.writer) == (bytes(range(16)).hex(), 3, 1_767_225_600_000_000_000, "0.1.0")


def test_the_example_of_the_specification_is_reproduced() -> None:
    """Packing the same state with the same ids and times gives the bytes of FORMAT.md."""
    message = msgspec.msgpack.encode(STATE)
    table = container.whole(message)
    header = container.RecordHeader(
        file=bytes(range(16)), sequence=1, kind="state", step=3, base=True, message=len(message), digest=container.digest(table.crcs),
        zeros=False, time=1_767_225_600_000_000_000, writer="0.1.0",
    )  # fmt: skip
    assert container.pack_file_header(bytes(range(16))) + container.pack_record(header, table, message).data == example()


@given(st.binary(min_size=1, max_size=3000))
def test_the_second_writer_agrees(message: bytes) -> None:
    """A record written from FORMAT.md alone is read by the product, and is the product's own but for the order of its header."""
    data = single(message)
    header, read = container.unpack_record(data[48:], container.unpack_file_header(data))
    assert read == message
    assert header.file == FILE_ID


states = pytest.mark.parametrize(
    "state",
    [STATE, None, [], {"text": "中文 and ascii " * 2000}, {"zeros": bytes(100_000)}, [[i / 7, -i, str(i)] for i in range(5000)]],
    ids=["example", "none", "empty", "text", "zeros", "numbers"],
)


@needs_tool("zstd")
@states
@pytest.mark.parametrize("level", [1, 3, 19])
def test_zstd_accepts_every_file(tmp_path: Any, state: Any, level: int) -> None:
    """`zstd -t` accepts the file, and `zstd -dc` prints the plain msgpack document."""
    path = tmp_path / "x.fastckpt"
    fastckpt.save(path, state, level=level)
    subprocess.run(["zstd", "-q", "-t", str(path)], check=True)
    document = subprocess.run(["zstd", "-q", "-dc", str(path)], check=True, capture_output=True).stdout
    assert_same(msgspec.msgpack.decode(document), state)


@needs_tool("zstd")
@needs_tool("node")
@needs_tool("npm")
def test_another_language_reads_the_document(tmp_path: Any, node_msgpack: Any) -> None:
    """Node's @msgpack/msgpack decodes what `zstd -dc` prints into the same data."""
    state = {"n": [0, -1, 2**31, -(2**31), 0.1, 1e300, True, None], "中": "文 \U0001f600", "nested": {"a": [{"b": []}] * 20}, "long": "x" * 70_000}
    path = tmp_path / "x.fastckpt"
    fastckpt.save(path, state)
    document = subprocess.run(["zstd", "-q", "-dc", str(path)], check=True, capture_output=True).stdout
    script = "const {decode}=require('@msgpack/msgpack');const c=[];process.stdin.on('data',d=>c.push(d));process.stdin.on('end',()=>process.stdout.write(JSON.stringify(decode(Buffer.concat(c)))))"
    done = subprocess.run(["node", "-e", script], input=document, capture_output=True, check=True, cwd=node_msgpack)
    assert_same(json.loads(done.stdout), state)


@pytest.fixture
def node_msgpack(tmp_path: Any) -> Any:
    """A folder in which Node finds @msgpack/msgpack, from NODE_PATH or freshly installed."""
    probe = ["node", "-e", "require('@msgpack/msgpack')"]
    if subprocess.run(probe, capture_output=True, cwd=tmp_path).returncode == 0:
        return tmp_path
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(tmp_path), "@msgpack/msgpack"]
    if subprocess.run(install, capture_output=True, cwd=tmp_path, timeout=120).returncode:
        pytest.skip("@msgpack/msgpack is not installed and cannot be")
    return tmp_path


def test_a_run_on_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk through the life of a run, section 11, does what it says: first save, base, rewind, delete, compaction, a reader across it."""
    monkeypatch.chdir(tmp_path)
    path = Path(fastckpt.__file__).parent / "FORMAT.md"
    result = doctest.testfile(str(path), module_relative=False, encoding="utf-8", report=True)
    assert result.attempted > 20
    assert result.failed == 0
