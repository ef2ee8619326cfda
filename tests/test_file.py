"""The Python API of one checkpoint in one file: save, load, inspect, verify."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forge import file_header, record
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Box, plain, typed
from support import assert_same, everything_in, in_child, needs_posix, without_privileges

import fastckpt
from fastckpt import (
    ABSENT,
    CheckpointError,
    ConfigDifference,
    ConflictError,
    EncodeError,
    LimitError,
    NotACheckpointError,
    NotFoundError,
    StorageError,
)
from fastckpt import errors as errors_module


@dataclasses.dataclass
class State:
    step: int
    seen: set[str]
    best: float | None = None


STATE = State(7, {"a", "b"}, 0.5)


def test_save_and_load(tmp_path: Path) -> None:
    """An object comes back as its class, or as plain data where no type is asked for; the info says what was written."""
    path = tmp_path / "runs" / "a" / "checkpoint.fastckpt"
    info = fastckpt.save(path, STATE)
    assert_same(fastckpt.load(path, State), STATE)
    assert fastckpt.load(path)["step"] == 7
    assert info.path == str(path)
    assert info.file_bytes == path.stat().st_size
    assert info.message_bytes > 0
    assert info.seconds > 0
    assert info.checked is True
    assert fastckpt.save(path, STATE, round_trip=False).checked is False


@settings(max_examples=100)
@given(pair=st.one_of(typed(), plain.map(lambda value: (Any, value))), level=st.integers(1, 22), fsync=st.booleans())
def test_whatever_save_accepts_load_returns(tmp_path_factory: Any, pair: tuple[Any, Any], level: int, fsync: bool) -> None:
    """Through a real file, at any level: equal in value and exact type."""
    kind, value = pair
    path = tmp_path_factory.getbasetemp() / "property"
    fastckpt.save(path, value, type=kind, level=level, fsync=fsync)
    assert_same(fastckpt.load(path, kind), value)
    assert fastckpt.verify(path) == []


def test_the_type_of_the_object_is_the_default(tmp_path: Path) -> None:
    """Without `type` an object of a class is checked as that class, plain data as plain data."""
    for value, kind in [(Box(1), Box), (STATE, State), ({1, 2}, set), ((1, "a"), tuple), ({"a": [1]}, Any), (None, Any), (3, Any)]:
        fastckpt.save(tmp_path / "x", value)
        assert_same(fastckpt.load(tmp_path / "x", kind), value)
    with pytest.raises(EncodeError, match="set"):
        fastckpt.save(tmp_path / "x", {"a": {1}})


def test_inspect_reads_the_headers(tmp_path: Path) -> None:
    """`inspect` shows sizes, time, type and metadata, and reads no state: it works with the frame destroyed."""
    path = tmp_path / "x"
    before = time.time_ns()
    saved = fastckpt.save(path, STATE, meta={"run": "a", "tags": ["x", 1, None]})
    info = fastckpt.inspect(path)
    assert (info.kind, info.format_version, info.min_reader, info.has_ext, info.codec, info.step) == ("single", 1, 1, False, "zstd", None)
    assert (info.file_bytes, info.message_bytes, info.writer) == (saved.file_bytes, saved.message_bytes, fastckpt.__version__)
    assert before <= info.time <= time.time_ns()
    assert info.type == "test_file:State"
    assert len(info.schema) == 16
    assert_same(info.meta, {"run": "a", "tags": ["x", 1, None]})
    assert info.source is None
    data = path.read_bytes()
    path.write_bytes(data[:-100] + bytes(60) + data[-40:])
    assert_same(fastckpt.inspect(path), msgspec.structs.replace(info))
    assert fastckpt.verify(path) != []


def test_every_file_has_its_own_id(tmp_path: Path) -> None:
    """Two saves of one state differ in their file id."""
    ids = {fastckpt.inspect(fastckpt.save(tmp_path / "x", 1).path).file_id for _ in range(5)}
    assert len(ids) == 5


@pytest.mark.parametrize("meta", [{"a": {1}}, {"a": (1,)}, {1: "a"}, {"a": object()}, {"a": 2**70}, {"a": "\ud800"}])
def test_metadata_is_plain(tmp_path: Path, meta: Any) -> None:
    """Metadata that would not come back is an EncodeError, and nothing is written."""
    with pytest.raises(EncodeError, match="meta"):
        fastckpt.save(tmp_path / "x", 1, meta=meta)
    assert everything_in(tmp_path) == []


def test_metadata_is_small(tmp_path: Path) -> None:
    """Metadata beyond a header's 1 MiB is a LimitError before any file is touched."""
    fastckpt.save(tmp_path / "x", 1, meta={"a": "x" * 1_000_000})
    assert len(fastckpt.inspect(tmp_path / "x").meta["a"]) == 1_000_000
    with pytest.raises(LimitError):
        fastckpt.save(tmp_path / "y", 1, meta={"a": "x" * 1_100_000})
    assert everything_in(tmp_path) == ["x"]


def test_level(tmp_path: Path) -> None:
    """A higher level makes a smaller file; one that zstd does not have is a ValueError before any file is touched."""
    state = [{"question": f"q{i % 97}", "words": "the same few words " * (i % 7)} for i in range(3000)]
    sizes = [fastckpt.save(tmp_path / "x", state, level=level).file_bytes for level in (1, 19)]
    assert sizes[1] < sizes[0]
    for level in (0, 23, -1, 1000):
        with pytest.raises(ValueError, match="level"):
            fastckpt.save(tmp_path / "y", state, level=level)
    assert everything_in(tmp_path) == ["x"]


def test_max_size(tmp_path: Path) -> None:
    """A state larger than `max_size` is a LimitError that gives both numbers; the same for JSON."""
    fastckpt.save(tmp_path / "x", "a" * 1000)
    (tmp_path / "j.json").write_text(json.dumps("a" * 1000))
    for name in ("x", "j.json"):
        with pytest.raises(LimitError, match=r"1,00\d > 1,000") as caught:
            fastckpt.load(tmp_path / name, max_size=1000)
        assert caught.value.limit == 1000
        assert fastckpt.load(tmp_path / name, max_size=1003) == "a" * 1000


LARGE = {"text": [f"{number:x}" * 40 for number in range(60_000)]}  # some 14 MB: compressed by two threads


@needs_posix
def test_large_without_threads(public_path: Path) -> None:
    """A state that two threads would compress is saved where no thread can be started."""

    def save() -> None:
        without_privileges()
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        with pytest.raises(RuntimeError):
            threading.Thread(target=int).start()
        fastckpt.save(public_path / "checkpoint.fastckpt", LARGE)

    public_path.chmod(0o777)
    in_child(save)
    assert_same(fastckpt.load(public_path / "checkpoint.fastckpt"), LARGE)


@needs_posix
def test_forked_while_it_compresses(tmp_path: Path) -> None:
    """A child forked while another thread saves a large state saves one too, and ends; so does the parent's save."""
    ended = threading.Event()

    def saving() -> None:
        while not ended.is_set():
            fastckpt.save(tmp_path / "parent.fastckpt", LARGE, round_trip=False)

    thread = threading.Thread(target=saving)
    thread.start()
    try:
        for _ in range(10):
            in_child(lambda: fastckpt.save(tmp_path / "child.fastckpt", LARGE, round_trip=False))
            assert_same(fastckpt.load(tmp_path / "child.fastckpt"), LARGE)
            (tmp_path / "child.fastckpt").unlink()
    finally:
        ended.set()
        thread.join()
    assert_same(fastckpt.load(tmp_path / "parent.fastckpt"), LARGE)


def test_save_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state beyond the limit is refused on save too, before any file is touched."""
    from fastckpt import file

    monkeypatch.setattr(file, "MAX_MESSAGE", 1000)
    with pytest.raises(LimitError):
        fastckpt.save(tmp_path / "x", "a" * 1000)
    assert everything_in(tmp_path) == []


def test_load_reads_json(tmp_path: Path) -> None:
    """`load` tells JSON by its content, whatever the name: with white space, a byte order mark, any top-level value, and as a type."""
    for text, value in [
        ('{"a": 1}', {"a": 1}), ("  \r\n\t[1]", [1]), ("-5", -5), ("NaN", float("nan")), ("Infinity", float("inf")), ("null", None), ("true", True), ('"x"', "x"),
        ("\ufeff{}", {}),
    ]:  # fmt: skip
        (tmp_path / "x.fastckpt").write_bytes(text.encode())
        assert_same(fastckpt.load(tmp_path / "x.fastckpt"), value)
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        (tmp_path / "x").write_bytes('{"键": "值"}'.encode(encoding))
        assert_same(fastckpt.load(tmp_path / "x"), {"键": "值"})
    (tmp_path / "x").write_text('{"step": 7, "seen": ["a", "b"], "best": 0.5}')
    assert_same(fastckpt.load(tmp_path / "x", State), STATE)


def test_missing_file(tmp_path: Path) -> None:
    """No file is a NotFoundError, which is also a FileNotFoundError with the path and the errno."""
    for call in (fastckpt.load, fastckpt.inspect, fastckpt.verify):
        with pytest.raises(NotFoundError) as caught:
            call(tmp_path / "none")
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.filename == str(tmp_path / "none")
        assert caught.value.errno == 2


def test_h9_a_directory(tmp_path: Path) -> None:
    """FAULTS H9: a directory as path says so, for every function."""
    for call in (fastckpt.load, fastckpt.inspect, fastckpt.verify, lambda path: fastckpt.save(path, 1)):
        with pytest.raises(StorageError, match="is a directory"):
            call(tmp_path)


def test_inspect_of_json(tmp_path: Path) -> None:
    """`inspect` of JSON says what it is and what to do."""
    (tmp_path / "x").write_text("{}")
    with pytest.raises(NotACheckpointError, match="migrate"):
        fastckpt.inspect(tmp_path / "x")
    assert fastckpt.verify(tmp_path / "x") == []


def test_a_run_is_not_replaced(tmp_path: Path) -> None:
    """The file of a run, told by its flag, is not replaced by one checkpoint: its other steps would be lost."""
    run = file_header(flags=1) + record()
    (tmp_path / "x").write_bytes(run)
    with pytest.raises(ConflictError, match="run"):
        fastckpt.save(tmp_path / "x", 1)
    assert (tmp_path / "x").read_bytes() == run


def test_a_damaged_run_is_not_replaced(tmp_path: Path) -> None:
    """Also where the file header does not verify: the steps behind it may."""
    run = file_header(flags=1)[:40] + b"damaged!" + record()
    (tmp_path / "x").write_bytes(run)
    with pytest.raises(ConflictError):
        fastckpt.save(tmp_path / "x", 1)
    assert (tmp_path / "x").read_bytes() == run


@pytest.mark.parametrize("old", [b"", b"\0" * 100, b"not ours", b'{"a": 1}', file_header()[:20], file_header()[:40] + b"damaged!"])
def test_anything_else_is_replaced(tmp_path: Path, old: bytes) -> None:
    """Whatever else the path holds, damaged or foreign, is replaced whole."""
    (tmp_path / "x").write_bytes(old)
    fastckpt.save(tmp_path / "x", 5)
    assert fastckpt.load(tmp_path / "x") == 5


def test_load_changes_nothing(tmp_path: Path) -> None:
    """FAULTS E10: loading, inspecting and verifying a sound or damaged file leave its bytes and its folder as they were."""
    path = tmp_path / "x"
    fastckpt.save(path, STATE)
    for data in (path.read_bytes(), path.read_bytes()[:-9], b""):
        path.write_bytes(data)
        stamp = path.stat()
        for call in (fastckpt.load, fastckpt.inspect, fastckpt.verify):
            try:
                call(path)
            except CheckpointError:
                pass
        assert path.read_bytes() == data
        assert path.stat().st_mtime_ns == stamp.st_mtime_ns
        assert everything_in(tmp_path) == ["x"]


def test_short_reads(tmp_path: Path) -> None:
    """A storage that returns one byte a read loads the same state."""
    from fastckpt.storage import Storage

    class Slow(Storage):
        def read(self, fd: int, size: int, offset: int) -> bytes:
            return super().read(fd, min(size, 1), offset)

    fastckpt.save(tmp_path / "x", STATE)
    assert_same(fastckpt.load(tmp_path / "x", State, storage=Slow()), STATE)


def test_a_file_cut_while_it_is_read(tmp_path: Path) -> None:
    """A file that shrinks between its header and its content is an error of ours."""
    from fastckpt.storage import Storage

    class Shrinking(Storage):
        def read(self, fd: int, size: int, offset: int) -> bytes:
            data = super().read(fd, size, offset)
            os.truncate(tmp_path / "x", 60)
            return data

    fastckpt.save(tmp_path / "x", os.urandom(200_000))
    with pytest.raises(CheckpointError):
        fastckpt.load(tmp_path / "x", storage=Shrinking())


def test_positional_and_keyword_arguments(tmp_path: Path) -> None:
    """After the subject everything is keyword-only."""
    with pytest.raises(TypeError):
        fastckpt.save(tmp_path / "x", 1, int)  # type: ignore[misc]
    with pytest.raises(TypeError):
        fastckpt.load(tmp_path / "x", int, 5)  # type: ignore[misc]


def test_import_is_light() -> None:
    """`import fastckpt` brings in neither typer, rich nor numpy, nor anything else of the extras."""
    code = (
        "import sys, fastckpt; print([m for m in ('typer', 'rich', 'numpy', 'click', 'pytest', 'orjson', 'tempfile', 'asyncio') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


ERRORS = [
    errors_module.CheckpointError("a", remedy="b"),
    errors_module.EncodeError("a", where="$.x", remedy="b"),
    errors_module.SchemaError("a", where="$.x", path="p", remedy="b"),
    errors_module.MissingFieldError("f", where="$.x", path="p"),
    errors_module.CorruptError("a", path="p", offset=5, expected="x", got="y"),
    errors_module.NotACheckpointError("p", got="g"),
    errors_module.VersionError("p", needs=2, supports=1),
    errors_module.LimitError("a", limit=5, got=6, path="p"),
    errors_module.StorageError("a", path="p", operation="write", code=28, remedy="b"),
    errors_module.NotFoundError("p", operation="open"),
    errors_module.DurabilityError("a", path="p", operation="sync", code=5),
    errors_module.JsonError("a", path="p", line=3, column=4),
    errors_module.ConflictError("a", paths=("p", "q"), remedy="b"),
    errors_module.LockedError("p", pid=5, host="h"),
    errors_module.ReplacedError("p"),
    errors_module.StepAlreadyExistsError(3, newest=5),
    errors_module.ConfigMismatchError([ConfigDifference("size", 3, ABSENT, "structural")], step=3, path="p"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: CheckpointError) -> None:
    """Every error keeps its class, its fields and its text through pickling, as a worker process needs."""
    import pickle

    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__
    assert getattr(again, "errno", None) == getattr(error, "errno", None)
    assert getattr(again, "filename", None) == getattr(error, "filename", None)


def test_every_error_is_listed() -> None:
    """Each class of `errors` stands in that list and in the package's names, has one root and one line of text."""
    classes = {cls for cls in vars(errors_module).values() if isinstance(cls, type) and issubclass(cls, CheckpointError)}
    assert {type(error) for error in ERRORS} == classes
    for cls in classes:
        assert getattr(fastckpt, cls.__name__) is cls
    for error in ERRORS:
        assert "\n" not in str(error)
        assert str(error).strip()
        assert 1 <= error.exit_code < 64


def test_messages_stay_on_one_line() -> None:
    """A path with a line break or a lone surrogate still gives one printable line."""
    text = str(errors_module.StorageError("a", path="x\ny\udcff"))
    assert text.encode("utf-8").count(b"\n") == 0
