"""FAULTS E and F for files of one record: damage is an error or no change, and a lie costs nothing."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from forge import OMIT, checksum, compress, file_header, record, single
from support import assert_same, count, needs_linux

import fastckpt
from fastckpt import CheckpointError, CorruptError, LimitError, NotACheckpointError, VersionError

STATE = {"step": 7, "answers": {"q1": True, "q2": False}, "text": "words, words " * 20, "loss": [0.5, 0.25], "none": None}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "x.fastckpt"
    fastckpt.save(path, STATE, meta={"run": "a"})
    return path.read_bytes()


def outcome(path: Path, data: bytes) -> Any:
    """What loading `data` gives: the state, or the error, which must be one of ours."""
    path.write_bytes(data)
    try:
        return fastckpt.load(path)
    except CheckpointError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error)
        return error


def test_e1_every_bit_flipped(tmp_path: Path, sound: bytes) -> None:
    """FAULTS E1: with any single bit flipped the file is a CorruptError or the identical state."""
    for position in range(len(sound)):
        for bit in range(8):
            damaged = bytearray(sound)
            damaged[position] ^= 1 << bit
            found = outcome(tmp_path / "x", bytes(damaged))
            if not isinstance(found, CorruptError):
                assert_same(found, STATE)
    count("bits flipped", 8 * len(sound))


def test_e2_every_cut(tmp_path: Path, sound: bytes) -> None:
    """FAULTS E2: cut at any length the file is a CorruptError that says so, never "no checkpoint" and never a state."""
    for length in range(len(sound)):
        found = outcome(tmp_path / "x", sound[:length])
        assert type(found) is CorruptError, length
        assert ("truncated" if length else "empty") in str(found)
    count("cuts", len(sound))


def test_e3_every_zeroed_tail(tmp_path: Path, sound: bytes) -> None:
    """FAULTS E3: zeroed from any byte on, or wholly, the file is a CorruptError."""
    for start in range(len(sound) - 1):
        assert type(outcome(tmp_path / "x", sound[:start] + bytes(len(sound) - start))) is CorruptError, start
    count("cuts", len(sound) - 1)
    assert "only zeros" in str(outcome(tmp_path / "x", bytes(len(sound))))
    assert "only zeros" in str(outcome(tmp_path / "x", sound[:48] + bytes(len(sound) - 48)))


def test_bytes_after_the_record(tmp_path: Path, sound: bytes) -> None:
    """A single file ends with its record: anything after it is a CorruptError."""
    for more in (b"\0", b"x", sound[48:], bytes(4096)):
        assert type(outcome(tmp_path / "x", sound + more)) is CorruptError


def test_e7_two_bits_flipped(tmp_path: Path, sound: bytes) -> None:
    """FAULTS E7: with a bit of the zstd frame's header and one of its content flipped, our own checksum still finds it."""
    frame = sound.index(b"\x28\xb5\x2f\xfd")
    for first in range(8):
        for second in range(frame + 6, len(sound) - 44, 3):
            damaged = bytearray(sound)
            damaged[frame + 4] ^= 1 << first
            damaged[second] ^= 1 << (second % 8)
            assert type(outcome(tmp_path / "x", bytes(damaged))) is CorruptError


def test_verify_names_the_damage(tmp_path: Path, sound: bytes) -> None:
    """`verify` is empty for a sound file, and names file, offset and fact for a damaged one, which it leaves as it is."""
    path = tmp_path / "x"
    path.write_bytes(sound)
    assert fastckpt.verify(path) == []
    damaged = sound[:-60] + b"!" + sound[-59:]
    path.write_bytes(damaged)
    (problem,) = fastckpt.verify(path)
    assert problem.path == str(path)
    assert problem.offset is not None
    assert 48 <= problem.offset < len(sound)
    assert "checksum mismatch" in problem.fact
    assert path.read_bytes() == damaged


def test_g2_newer_versions(tmp_path: Path) -> None:
    """FAULTS G2: a newer minimum reader, flag, codec or feature is a VersionError naming both sides; a newer version that old
    readers may read, and header keys that they do not know, are read."""
    newer = outcome(tmp_path / "x", file_header(version=9, min_reader=7) + record())
    assert type(newer) is VersionError
    assert "version 7" in str(newer)
    assert "up to 1" in str(newer)
    assert newer.exit_code == 5
    for lie in (file_header(flags=2) + record(), single(header={"codec": "brotli"}), single(header={"requires": ["quantum"]})):
        assert type(outcome(tmp_path / "x", lie)) is VersionError
    assert outcome(tmp_path / "x", file_header(version=9) + record(header={"colour": {"of": ["the", "header"]}})) is None


def peak_while_loading(path: Path, **options: Any) -> tuple[str, int]:
    """In a child: the error that loading `path` ends in, and by how many bytes the peak memory rose."""
    code = f"""
import resource, sys, fastckpt, fastckpt.codec
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    fastckpt.load({str(path)!r}, **{options!r})
    print("loaded", end=" ")
except fastckpt.CheckpointError as error:
    print(type(error).__name__, end=" ")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, grown = done.stdout.split()
    return name, int(grown)


BOMB = bytes(1 << 30)


@needs_linux
@pytest.mark.parametrize("declare", [True, False], ids=["declared", "undeclared"])
def test_f1_bomb(tmp_path: Path, declare: bool) -> None:
    """FAULTS F1: 32 kB that decompress to 1 GiB are refused within the limit's memory, whatever the frame declares."""
    frame = compress(BOMB, declare=declare)
    lies = {
        "honest": single(
            b"", header={"message": 1 << 30}, content=b"x", frame=frame, table=[[], b"", [0, 0, 1], struct.pack("<I", 1 << 30), bytes(4)]
        ),
        "small": single(b"x" * 100, frame=frame),
        "zero": single(b"", frame=frame, table=[[], b"", [], b"", b""]),
    }
    for name, data in lies.items():
        (tmp_path / name).write_bytes(data)
        error, grown = peak_while_loading(tmp_path / name, max_size=1 << 20)
        assert error in ("LimitError", "CorruptError"), name
        assert grown < 64 << 20, name


def test_f1_declared_zero_and_wrong(tmp_path: Path) -> None:
    """FAULTS F1: a frame that declares 0, or another length than it holds, is an error."""
    content = b"\x93\x01\x02\x03"
    honest = compress(content)
    assert honest[4:6] == bytes([0x24, len(content)])  # descriptor: single segment, checksum; then the declared length
    for declared in (0, 1, 3, 5, 255):
        frame = honest[:5] + bytes([declared]) + honest[6:]
        table = [[], b"", [0, 0, 1], struct.pack("<I", declared), struct.pack("<I", zlib.crc32(content))]
        for message in (len(content), declared):
            assert isinstance(outcome(tmp_path / "x", single(content, header={"message": message}, frame=frame)), CorruptError)
            assert isinstance(outcome(tmp_path / "x", single(content, header={"message": message}, frame=frame, table=table)), CorruptError)


def test_f2_window(tmp_path: Path) -> None:
    """FAULTS F2: a frame that asks for a window of 2 GiB is a LimitError."""
    content = b"\x93\x01\x02\x03"
    block = struct.pack("<I", len(content) << 3 | 1)[:3] + content
    # Descriptor: content size in 4 bytes, checksum, no single segment; window descriptor: exponent 21 (2^31).
    frame = b"\x28\xb5\x2f\xfd" + bytes([0x84, 21 << 3]) + struct.pack("<I", len(content)) + block + xxh64_low(content)
    found = outcome(tmp_path / "x", single(content, frame=frame))
    assert type(found) is LimitError
    assert found.got == 1 << 31


def xxh64_low(content: bytes) -> bytes:
    return compress(content)[-4:]


@pytest.mark.parametrize(
    "code",
    [0x81, 0x91, 0xDC, 0xDD, 0xDE, 0xDF],
    ids=["fixmap", "fixarray", "array16", "array32", "map16", "map32"],
)
@pytest.mark.parametrize("where", ["main", "thread of 256 KiB", "recursion limit 10,000,000"])
def test_f3_depth_bomb(tmp_path: Path, code: int, where: str) -> None:
    """FAULTS F3: a million containers in one another end in an error, in any thread and under any recursion limit."""
    unit = {0x81: b"\x81\xa1a", 0x91: b"\x91", 0xDC: b"\xdc\0\1", 0xDD: b"\xdd\0\0\0\1", 0xDE: b"\xde\0\1\xa1a", 0xDF: b"\xdf\0\0\0\1\xa1a"}[code]
    path = tmp_path / "bomb"
    path.write_bytes(single(unit * 1_000_000 + b"\xc0"))
    assert_bounded(path, where)


@pytest.mark.parametrize("where", ["main", "thread of 256 KiB", "recursion limit 10,000,000"])
def test_f3_depth_bomb_of_ext_maps(tmp_path: Path, where: str) -> None:
    """FAULTS F3: Ext maps inside Ext maps are bounded alike."""
    payload = b"\xc0"
    for _ in range(2000):
        body = b"\x92\xa1a" + payload
        payload = b"\xc9" + struct.pack(">I", len(body)) + b"\x03" + body
    path = tmp_path / "bomb"
    path.write_bytes(single(payload, header={"ext": True}))
    assert_bounded(path, where)


@pytest.mark.parametrize("where", ["main", "thread of 256 KiB", "recursion limit 10,000,000"])
def test_f3_depth_bomb_of_json(tmp_path: Path, where: str) -> None:
    """FAULTS F3: JSON nested a million deep is bounded alike."""
    path = tmp_path / "bomb.json"
    path.write_bytes(b'[{"a":' * 500_000 + b"0" + b"}]" * 500_000)
    assert_bounded(path, where)


def assert_bounded(path: Path, where: str) -> None:
    code = f"""
import sys, threading, fastckpt
def run():
    for type in (object, list, dict[str, dict]):
        try:
            fastckpt.load({str(path)!r}, type)
        except (fastckpt.CorruptError, fastckpt.LimitError, fastckpt.SchemaError) as error:
            print(type.__name__, str(error)[:80])
if {where!r}.startswith("recursion"):
    sys.setrecursionlimit(10_000_000)
if {where!r}.startswith("thread"):
    threading.stack_size(256 * 1024)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
else:
    run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3, done.stdout + done.stderr


def test_f4_huge_counts(tmp_path: Path) -> None:
    """FAULTS F4: a count of 2^32 - 1 of any type, with nothing behind it, is a CorruptError and no allocation."""
    many = b"\xff\xff\xff\xff"
    for data in (b"\xdb", b"\xc6", b"\xdd", b"\xdf"):
        assert type(outcome(tmp_path / "x", single(data + many))) is CorruptError
        assert type(outcome(tmp_path / "x", single(b"\x81\xa1a" + data + many))) is CorruptError
    for code in (1, 2, 3, 200):
        assert type(outcome(tmp_path / "x", single(b"\xc9" + many + bytes([code]), header={"ext": True}))) is CorruptError


@pytest.mark.parametrize("size", [0, 1, 12, 13, 2**20, 2**31, 2**32 - 1])
def test_f6_lying_record_length(tmp_path: Path, size: int) -> None:
    """FAULTS F6: a record header of any other length is a CorruptError."""
    data = bytearray(single())
    data[52:56] = struct.pack("<I", size)
    assert type(outcome(tmp_path / "x", bytes(data))) is CorruptError


@pytest.mark.parametrize("key", ["message", "table", "frame"])
@pytest.mark.parametrize("value", [-1, 0, 1, 2**31, 2**63, 2**64 - 1, -(2**63), 1.5, "12", None, True])
def test_f6_lying_lengths(tmp_path: Path, key: str, value: Any) -> None:
    """FAULTS F6: a length in the header that is negative, huge, of another type or beyond the file is an error under ours."""
    assert isinstance(outcome(tmp_path / "x", single(b"\x92\x01\x02", header={key: value})), (CorruptError, LimitError))


def test_f6_lying_trailer(tmp_path: Path) -> None:
    """FAULTS F6: a trailer with another length is a CorruptError."""
    for length in (0, 1, 2**63, 2**64 - 1):
        assert type(outcome(tmp_path / "x", single(trailer_length=length))) is CorruptError


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


CRC = zlib.crc32(b"\x92\x01\x02")
TABLES = {
    "rows out of range": [[], b"", [0, 1, 1], u32(3), u32(CRC)],
    "count out of range": [[], b"", [0, 0, 2], u32(3), u32(CRC)],
    "huge count": [[], b"", [0, 0, 2**63], u32(3), u32(CRC)],
    "negative": [[], b"", [0, -1, 1], u32(3), u32(CRC)],
    "another record in a base": [[48], bytes(8), [0, 0, 1], u32(3), u32(CRC)],
    "a row of a record that is not listed": [[], b"", [1, 0, 1], u32(3), u32(CRC)],
    "distance 0": [[0], bytes(8), [0, 0, 1], u32(3), u32(CRC)],
    "distance negative": [[-5], bytes(8), [0, 0, 1], u32(3), u32(CRC)],
    "distance huge": [[2**64 - 1], bytes(8), [0, 0, 1], u32(3), u32(CRC)],
    "sum too large": [[], b"", [0, 0, 1, 0, 0, 1], u32(3), u32(CRC)],
    "sum too small": [[], b"", [], u32(3), u32(CRC)],
    "an empty chunk": [[], b"", [0, 0, 2], u32(3, 0), u32(CRC, 0)],
    "columns of unequal length": [[], b"", [0, 0, 1], u32(3), u32(CRC, 1)],
    "half a number": [[], b"", [0, 0, 1], b"\x03\0\0", b"\0\0\0"],
    "half a run": [[], b"", [0, 0], u32(3), u32(CRC)],
    "another chunk checksum": [[], b"", [0, 0, 1], u32(3), u32(CRC ^ 1)],
    "another size": [[], b"", [0, 0, 1], u32(2), u32(CRC)],
    "no columns": [],
    "text": ["a", "b", "c", "d", "e"],
}


@pytest.mark.parametrize("name", TABLES)
def test_lying_tables(tmp_path: Path, name: str) -> None:
    """A table whose checksums are right and whose rows lie is an error under ours."""
    table = [*TABLES[name], b"", b"", b"", b"", b""][:5] if name != "no columns" else []
    lie = record(b"\x92\x01\x02", table=table) if table else record(b"\x92\x01\x02", table_bytes=b"\x90")
    assert isinstance(outcome(tmp_path / "x", file_header() + lie), (CorruptError, LimitError))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x95\x90", bytes(10), b"\xff" * 20])
def test_malformed_tables(tmp_path: Path, data: bytes) -> None:
    """A table that is no msgpack array of five is a CorruptError."""
    assert type(outcome(tmp_path / "x", file_header() + record(b"\x92\x01\x02", table_bytes=data))) is CorruptError


def test_f12_table_bomb(tmp_path: Path) -> None:
    """FAULTS F12: a small file whose table repeats its chunks to gigabytes is refused before the frame is read."""
    chunk = bytes(1 << 20)
    table: list[Any] = [[], b"", [0, 0, 1] * 5000, u32(len(chunk)), u32(zlib.crc32(chunk))]
    for message, expected in ((5000 << 20, LimitError), (1 << 20, CorruptError), (4999 << 20, (CorruptError, LimitError))):
        lie = file_header() + record(b"", header={"message": message}, table=table, content=chunk)
        started = time.process_time()
        assert isinstance(outcome(tmp_path / "x", lie), expected)
        assert time.process_time() - started < 5  # not a measurement: gigabytes would take far longer, or end the process


def test_f12_frame_out_of_proportion(tmp_path: Path) -> None:
    """FAULTS F12: a frame that declares far more than the message needs is a LimitError before it is read."""
    frame = compress(BOMB)
    table: list[Any] = [[], b"", [0, 0, 1], u32(3, (1 << 30) - 3), u32(CRC, 0)]
    found = outcome(tmp_path / "x", file_header() + record(b"\x92\x01\x02", frame=frame, table=table, content=b"\x92\x01\x02"))
    assert type(found) is LimitError


def test_many_chunks_and_rows(tmp_path: Path) -> None:
    """A message in many chunks, in any order and used again, is assembled as its table says."""
    chunks = [b"\x93", b"\xa1a", b"\xa1b"]
    table: list[Any] = [[], b"", [0, 0, 1, 0, 2, 1, 0, 1, 2], u32(*map(len, chunks)), u32(*map(zlib.crc32, chunks))]
    digest = checksum(u32(*(zlib.crc32(chunks[i]) for i in (0, 2, 1, 2))))
    found = outcome(tmp_path / "x", file_header() + record(b"\x93\xa1b\xa1a\xa1b", header={"digest": digest}, table=table, content=b"".join(chunks)))
    assert_same(found, ["b", "a", "b"])
    wrong = outcome(tmp_path / "x", file_header() + record(b"\x93\xa1b\xa1a\xa1b", table=table, content=b"".join(chunks)))
    assert type(wrong) is CorruptError


@pytest.mark.parametrize("key", ["file", "sequence", "kind", "base", "message", "digest", "zeros", "time"])
def test_missing_header_keys(tmp_path: Path, key: str) -> None:
    """A record header without a key that it needs is an error under ours."""
    assert isinstance(outcome(tmp_path / "x", single(header={key: OMIT})), CorruptError)


def test_e5_record_of_another_file(tmp_path: Path) -> None:
    """FAULTS E5: a record with another file id is a CorruptError."""
    assert type(outcome(tmp_path / "x", single(header={"file": bytes(16)}))) is CorruptError


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x28\xb5\x2f\xfd\x00\x01\x00\x00", "zstd"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"PK\x03\x04rest", "zip"),
        (b"\x80\x05\x95", "pickle"),
        (b"hello", "neither"),
    ],
)
def test_foreign_files(tmp_path: Path, data: bytes, says: str) -> None:
    """Something else is "not a checkpoint", never "checksum mismatch", and the message says what it looks like."""
    found = outcome(tmp_path / "x", data)
    assert type(found) is NotACheckpointError
    assert says in str(found)


def test_f3_legitimate_depth_loads_in_a_small_thread(tmp_path: Path) -> None:
    """FAULTS F3: what may be saved, 256 levels, loads in a thread of 256 KiB too, Ext maps included."""
    state: Any = {"\ud800": 1}
    for _ in range(250):
        state = {"\ud800": state}
    fastckpt.save(tmp_path / "x", state)
    loaded: list[Any] = []
    previous = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: loaded.append(fastckpt.load(tmp_path / "x")))
        thread.start()
    finally:
        threading.stack_size(previous)
    thread.join()
    (found,) = loaded
    for _ in range(251):  # not by recursion, which this depth leaves no room for
        assert type(found) is dict
        ((key, found),) = found.items()
        assert key == "\ud800"
    assert_same(found, 1)


@needs_linux
def test_f5_amplification(tmp_path: Path) -> None:
    """FAULTS F5: where memory ends while decoding, the error is a LimitError."""
    path = tmp_path / "x"
    path.write_bytes(single(b"\xdd\x00\x80\x00\x00" + b"\x80" * (8 << 20)))

    code = f"""
import resource, fastckpt
resource.setrlimit(resource.RLIMIT_AS, (300 << 20, resource.RLIM_INFINITY))
try:
    fastckpt.load({str(path)!r})
except fastckpt.LimitError as error:
    print("limit")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "limit\n", done.stderr
