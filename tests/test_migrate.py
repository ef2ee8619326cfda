"""JSON files to checkpoints and back: the proof, the refusals, and what a target, a source or a disk may do meanwhile."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import json
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import msgspec
import pytest
from faults import BeforeCall, FaultyStorage, ModelStorage, Subject, check_crashes, creates, temporaries
from forge import file_header, record
from support import SHARED, assert_same, everything_in, in_child, needs_posix, needs_root, needs_shared, without_privileges

import fastckpt
from fastckpt import file
from fastckpt.codec import Codec, Encoded
from fastckpt.container import Source
from fastckpt.errors import (
    CheckpointError,
    ConflictError,
    CorruptError,
    DurabilityError,
    EncodeError,
    JsonError,
    LimitError,
    NotACheckpointError,
    NotFoundError,
    SchemaError,
    StorageError,
    VersionError,
)
from fastckpt.migrate import Migration, attempt, export, find, import_type, migrate, target_of
from fastckpt.storage import DISK, Storage, publish

BYTES = "byte-identical"
VALUES = "value-identical, source formatted differently"
STATE = {"progress": {"global_step": 7, "phase": "in_epoch"}, "b": [1, 2.5, None, True], "a": {"答案": "é", "2": "x", "1": ""}}


def old_style(state: Any) -> bytes:
    """The bytes that the replaced module wrote; lone surrogates, at which it stopped, as the escapes that any JSON writer makes of them."""
    return json.dumps(state, ensure_ascii=False, indent=2).encode("utf-8", "backslashreplace")


def lay(folder: Path, data: bytes | Any = STATE) -> Path:
    """`folder/checkpoint.json` with these bytes, or with that state in the old module's style."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "checkpoint.json"
    path.write_bytes(data if isinstance(data, bytes) else old_style(data))
    return path


def beside(source: Path) -> Path:
    return source.with_suffix(".fastckpt")


def mark(path: Path) -> tuple[int, int, bytes]:
    """By this a file that was not touched is known."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, path.read_bytes()


def refused(source: Path, error: type[CheckpointError], *words: str, **options: Any) -> CheckpointError:
    """`migrate` refuses with this error on one line that holds all words; nothing in the folder has changed."""
    before = {name: mark(source.parent / name) for name in everything_in(source.parent) if (source.parent / name).is_file()}
    with pytest.raises(error) as caught:
        migrate(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in (str(source.parent), *words):
        assert word in message, message
    assert {name: mark(source.parent / name) for name in everything_in(source.parent) if (source.parent / name).is_file()} == before
    return caught.value


# --- real files, and the shapes of real states -----------------------------------------------------------------------

TEN = (
    "tau_bench_gpt4o_airline_trajectories.json", "trainer_state_star_40000steps.json", "trainer_state_mistral_ckpt4500.json",
    "trainer_state_mistral_ckpt8500.json", "trainer_state_gec_crlf.json", "toolbench_cot_eval_intkeys.json", "gepa_aime_llm_cache.json",
    "dspy_saved_program.json", "textgrad_gpqa_predictions.json", "deerflow_langgraph_thread_cjk.json",
)  # fmt: skip


@needs_shared
@pytest.mark.parametrize("name", TEN)
def test_real_file_comes_back_value_for_value(name: str, tmp_path: Path) -> None:
    """A real JSON file migrates, loads and exports with every value and type as the standard library reads them; it is not touched itself."""
    data = (SHARED / "data" / name).read_bytes()
    state = json.loads(data)
    source = lay(tmp_path, data)
    before = mark(source)
    done = migrate(source)
    assert (done.status, done.proof) == ("migrated", BYTES if data == old_style(state) else VALUES)
    assert (done.source, done.target, done.source_bytes) == (str(source), str(beside(source)), len(data))
    assert done.target_bytes == beside(source).stat().st_size
    assert_same(fastckpt.load(beside(source)), state)
    exported = export(beside(source))
    assert exported == old_style(state)
    assert_same(json.loads(exported), state)
    assert mark(source) == before
    assert everything_in(tmp_path) == ["checkpoint.fastckpt", "checkpoint.json"]


@needs_shared
@pytest.mark.parametrize("name", TEN)
def test_real_file_in_the_old_style_comes_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    """The same content written as the replaced module writes exports byte-identical."""
    data = old_style(json.loads((SHARED / "data" / name).read_bytes()))
    source = lay(tmp_path, data)
    assert migrate(source).proof == BYTES
    assert export(beside(source)) == data


@needs_shared
def test_json_lines_are_refused(tmp_path: Path) -> None:
    """A JSON Lines file that is called .json is refused by name, with the line, and nothing is written."""
    source = lay(tmp_path, (SHARED / "data" / "ray_sac_result.jsonl").read_bytes())
    refused(source, JsonError, str(source), "JSON Lines", "line 2")


def shapes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shapes", SHARED / "tools" / "shapes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["shapes"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@needs_shared
@pytest.mark.parametrize("shape", ["small", "usual", "usual-cjk"])
def test_training_state_comes_back_byte_for_byte(shape: str, tmp_path: Path) -> None:
    """A file of the replaced module itself, also half Chinese, exports byte-identical, and its step is in the header."""
    module = shapes()
    questions, _, _, _, steps, characters, _, _, chinese = module.SHAPES[shape]
    module.SHAPES[shape] = (questions // 4, 2, 3, 2, steps, characters, 4, 2, chinese)
    state = module.make(shape)
    module.old_save(state, str(tmp_path), 33)
    source = tmp_path / "checkpoint.json"
    assert migrate(source).proof == BYTES
    assert export(beside(source)) == source.read_bytes()
    assert_same(fastckpt.load(beside(source)), module.payload(state, 33))
    assert fastckpt.inspect(beside(source)).step == 33
    if chinese:
        assert len(source.read_bytes()) > 1.2 * len(source.read_text("utf-8"))


# --- formatting ------------------------------------------------------------------------------------------------------

OTHERWISE = {
    "CRLF": old_style(STATE).replace(b"\n", b"\r\n"),
    "sorted, as Hugging Face writes": json.dumps(STATE, indent=2, sort_keys=True).encode() + b"\n",
    "indent 4": json.dumps(STATE, ensure_ascii=False, indent=4).encode(),
    "one line": json.dumps(STATE, ensure_ascii=False).encode(),
    "compact": json.dumps(STATE, ensure_ascii=False, separators=(",", ":")).encode(),
    "escapes": json.dumps(STATE, indent=2).encode(),
    "newline at the end": old_style(STATE) + b"\n",
    "byte order mark": b"\xef\xbb\xbf" + old_style(STATE),
    "UTF-16": old_style(STATE).decode().encode("utf-16"),
    "UTF-32": old_style(STATE).decode().encode("utf-32-le"),
}


@pytest.mark.parametrize("style", OTHERWISE)
def test_other_formatting_is_said(style: str, tmp_path: Path) -> None:
    """A source that is formatted otherwise migrates value for value, and the report says so in these words."""
    source = lay(tmp_path, OTHERWISE[style])
    assert migrate(source).proof == VALUES
    assert_same(fastckpt.load(beside(source)), json.loads(OTHERWISE[style]))
    assert source.read_bytes() == OTHERWISE[style]


def test_order_of_keys_is_no_formatting(tmp_path: Path) -> None:
    """Sorted keys alone are no other formatting: the order is kept, so the bytes are the same again."""
    data = json.dumps(STATE, ensure_ascii=False, indent=2, sort_keys=True).encode()
    assert data != old_style(STATE)
    assert migrate(lay(tmp_path, data)).proof == BYTES
    assert export(tmp_path / "checkpoint.fastckpt") == data


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e22, 1.0, 2**63, 2**64 - 1, 2**64, -(2**63) - 1,
        2**127 + 12345, "\ud83d", "a\udc00b", {"\ud800": 1, "k": "\udfff"}, {"": {}}, [], {}, "", None, True, 0,
        "\x00\x7f\x85\u2028\ufeff", [[[]]], "𐍈",
    ],
    ids=ascii,
)  # fmt: skip
def test_odd_value_comes_back_byte_for_byte(value: Any, tmp_path: Path) -> None:
    """Every value that Python's JSON knows, also beyond msgpack (128-bit integers, lone surrogates) and beyond JSON (NaN), is the same again."""
    source = lay(tmp_path, {"value": value, "list": [value, 1], "end": "é"})
    assert migrate(source).proof == BYTES
    assert export(beside(source)) == source.read_bytes()
    assert_same(fastckpt.load(beside(source)), {"value": value, "list": [value, 1], "end": "é"})


@pytest.mark.parametrize("text", ["-0", "1E5", "1e400", "-1e400", "0.10", r'"\ud83d\ude00"', r'"\u00e9\/"', " [ 1 , 2 ] "])
def test_other_spelling_of_a_value(text: str, tmp_path: Path) -> None:
    """A value that json.dumps spells otherwise is kept as Python reads it, and the report says that the bytes differ."""
    source = lay(tmp_path, text.encode())
    assert migrate(source).proof == VALUES
    assert_same(fastckpt.load(beside(source)), json.loads(text))


def test_two_surrogates_in_a_row_are_refused(tmp_path: Path) -> None:
    """A pair of surrogates that were encoded one by one (CESU-8) has no JSON that reads back the same: refused, with file and place."""
    source = lay(tmp_path, b'{"a": "\xed\xa0\xbd\xed\xb8\x80"}')
    refused(source, EncodeError, str(source), "$.a", "surrogates")


# --- sources that are refused, or need a word ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b'{"a": 1, "a": 2}', "`$`"), (b'{"s": [0, {"k": {"1": 1, "1": 1}}]}', "`$.s[1].k`"), (old_style({"x": 1})[:-2] + b', "x": 1}', "`$`"),
        (b'{"\\u0061": 1, "a": 2}', "`$`"),
    ],
)  # fmt: skip
def test_duplicate_keys_are_refused(data: bytes, place: str, tmp_path: Path) -> None:
    """A key that stands twice in an object (as json.dumps writes {1: …, "1": …}) is refused by name and place: one value would be lost."""
    source = lay(tmp_path, data)
    key = "'x'" if b'"x"' in data else "'1'" if b'"1"' in data else "'a'"
    refused(source, JsonError, str(source), key, "twice", place)


def test_keys_of_the_old_rule_that_collide_are_refused(tmp_path: Path) -> None:
    """What the replaced module made of a dict with the keys 1 and "1" is such a file."""
    refused(lay(tmp_path, old_style({"m": {1: "a", "1": "b"}})), JsonError, "'1'", "`$.m`")


def test_gbk(tmp_path: Path) -> None:
    """A file of a Chinese Windows is refused with the remedy, and migrates value for value when the encoding is given."""
    state = {"名": "检查点", "n": 1}
    source = lay(tmp_path, json.dumps(state, ensure_ascii=False, indent=2).encode("gbk"))
    refused(source, JsonError, str(source), "UTF-8", "--encoding gbk")
    refused(source, JsonError, "ASCII", "--encoding", encoding="ascii")
    refused(source, JsonError, "no such encoding", encoding="gkb")
    assert migrate(source, encoding="gbk").proof == VALUES
    assert_same(fastckpt.load(beside(source)), state)
    assert migrate(source, encoding="gbk").status == "already done"


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", CorruptError, "empty"), (b"   \n", JsonError, "empty"), (bytes(600), CorruptError, "zeros"),
        (old_style(STATE)[:-2], JsonError, "ends in the middle"),
        (b'{"a": 1,}', JsonError, "line 1"), (b"PK\x03\x04rest", NotACheckpointError, "zip"), (b"\x80\x04\x95", NotACheckpointError, "pickle"),
        (b"[" * 300 + b"]" * 300, LimitError, "nested"), (b"[" * 100_000, LimitError, "nested"),
        (b"{" + b'"a":' + b"9" * 5000 + b"}", JsonError, "digits"),
        (b'{"a": \xff}', JsonError, "offset 6"), (b"nul", JsonError, "line 1"),
    ],
)  # fmt: skip
def test_bad_source_is_refused(data: bytes, error: type[CheckpointError], words: str, tmp_path: Path) -> None:
    """An empty, cut, malformed, foreign or too deep source is refused by name; nothing is written."""
    source = lay(tmp_path, data)
    refused(source, error, str(source), words)


def test_checkpoint_is_no_source(tmp_path: Path) -> None:
    """A file of ours as the source is refused with the command for the way back."""
    source = lay(tmp_path)
    migrate(source)
    with pytest.raises(JsonError, match="already, not JSON") as caught:
        migrate(beside(source))
    assert "export" in str(caught.value)


@needs_posix
def test_source_that_is_no_file(tmp_path: Path) -> None:
    """No such path, a directory, a fifo: refused at once, by name."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    kinds = (("nowhere", NotFoundError, "no such file"), ("folder", StorageError, "is a directory"), ("fifo", StorageError, "is a fifo"))
    for name, error, words in kinds:
        with pytest.raises(error, match=words) as caught:
            migrate(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


# --- a target that stands already ------------------------------------------------------------------------------------


def test_second_run_does_nothing(tmp_path: Path) -> None:
    """A second run says "already done", and neither file is touched."""
    source = lay(tmp_path)
    first = migrate(source)
    before = mark(source), mark(beside(source))
    again = migrate(source)
    assert (again.status, again.proof, again.target_bytes) == ("already done", "", first.target_bytes)
    assert (mark(source), mark(beside(source))) == before


def test_target_that_has_moved_on_is_left_alone(tmp_path: Path) -> None:
    """A later save that carries the source's digest forward is "newer, left alone", unless forced."""
    source = lay(tmp_path)
    encoded = Codec().encode({"step": 8})
    file.write(beside(source), encoded, source=Source(file.source_digest(source.read_bytes()), migrated=False))
    before = mark(beside(source))
    assert migrate(source).status == "newer, left alone"
    assert mark(beside(source)) == before
    assert migrate(source, force=True).status == "migrated"
    assert_same(fastckpt.load(beside(source)), STATE)


def _another_save(path: Path) -> None:
    fastckpt.save(path, {"other": 1})


def _older_migration(path: Path) -> None:
    file.write(path, Codec().encode(1), source=Source(file.source_digest(b"other"), migrated=True))


def _damaged(path: Path) -> None:
    _another_save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


TARGETS: dict[str, tuple[Callable[[Path], object], type[CheckpointError], str]] = {
    "another save": (_another_save, ConflictError, "is no migration"),
    "other content": (_older_migration, ConflictError, "other content"),
    "JSON": (lambda path: path.write_text("{}"), ConflictError, "holds JSON"),
    "damaged": (_damaged, CorruptError, "mismatch"),
    "0 bytes": (lambda path: path.write_bytes(b""), CorruptError, "empty"),
    "zeros": (lambda path: path.write_bytes(bytes(1000)), CorruptError, "zeros"),
    "foreign": (lambda path: path.write_bytes(b"\x1f\x8b\x08"), NotACheckpointError, "gzip"),
}


@pytest.mark.parametrize("what", TARGETS)
def test_other_target_is_never_overwritten(what: str, tmp_path: Path) -> None:
    """A target that is anything else is named, with the remedy, and stays; only `force` replaces it."""
    make, error, words = TARGETS[what]
    source = lay(tmp_path)
    make(beside(source))
    refused(source, error, str(beside(source)), words, "--force")
    assert migrate(source, force=True).status == "migrated"
    assert_same(fastckpt.load(beside(source)), STATE)
    assert migrate(source).status == "already done"


@pytest.mark.parametrize("force", [False, True])
def test_run_and_newer_format_are_never_overwritten(force: bool, tmp_path: Path) -> None:
    """A run's file, which holds many steps, and one of a newer format are not replaced, forced or not."""
    source = lay(tmp_path)
    for header, error in ((file_header(flags=1), CheckpointError), (file_header(version=9, min_reader=9), VersionError)):
        beside(source).write_bytes(header + record())
        refused(source, error, str(beside(source)), force=force)


def test_target_that_is_the_source(tmp_path: Path) -> None:
    """The source is never its own target, not even through a link and forced."""
    source = lay(tmp_path)
    refused(source, ConflictError, "source itself", target=source, force=True)
    (tmp_path / "link").symlink_to("checkpoint.json")
    refused(source, ConflictError, "source itself", target=tmp_path / "link", force=True)


def test_target_elsewhere(tmp_path: Path) -> None:
    """A target in a directory that is not there yet is made, and found again."""
    source = lay(tmp_path / "a")
    target = tmp_path / "b" / "c" / "x"
    assert migrate(source, target=target).target == str(target)
    assert migrate(source, target=target).status == "already done"
    assert_same(fastckpt.load(target), STATE)


def test_directory_as_target(tmp_path: Path) -> None:
    """A directory in the target's place is refused, forced or not."""
    source = lay(tmp_path)
    beside(source).mkdir()
    refused(source, StorageError, "is a directory")
    refused(source, StorageError, "is a directory", force=True)


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    """A dry run proves, reports and writes nothing; what would be refused is refused."""
    source = lay(tmp_path)
    done = migrate(source, dry_run=True)
    assert (done.status, done.proof, done.target_bytes) == ("would migrate", BYTES, 0)
    assert everything_in(tmp_path) == ["checkpoint.json"]
    refused(lay(tmp_path, b"{"), JsonError, dry_run=True)
    _another_save(beside(source))
    refused(lay(tmp_path), ConflictError, "--force", dry_run=True)


@pytest.mark.parametrize(
    ("state", "step"),
    [
        (STATE, 7), ({"progress": {"global_step": 0}}, 0), ({"progress": {"global_step": True}}, None), ({"progress": {"global_step": 1.0}}, None),
        ({"progress": {"global_step": -1}}, None), ({"progress": {"global_step": 2**64}}, None), ({"progress": []}, None), ({}, None), ([1], None),
    ],
)  # fmt: skip
def test_step_of_the_source(state: Any, step: int | None, tmp_path: Path) -> None:
    """`progress.global_step` becomes the record's step where it is a whole number; the header also names the source by its digest."""
    source = lay(tmp_path, state)
    migrate(source)
    info = fastckpt.inspect(beside(source))
    assert info.step == step
    assert info.source == Source(file.source_digest(source.read_bytes()), migrated=True)
    assert (info.type, info.schema) == ("", "")


@pytest.mark.parametrize("broken", ["encode", "export"])
def test_the_proof_is_made(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the codec or the export changed a value, be it 1 to 1.0, the migration would be refused with its place, and nothing written."""
    source = lay(tmp_path, {"a": {"n": 1}})
    if broken == "encode":
        monkeypatch.setattr(Codec, "encode", lambda self, obj: Encoded(msgspec.msgpack.encode({"a": {"n": 1.0}}), False))
    else:
        monkeypatch.setattr("fastckpt.migrate.to_json", lambda obj: b'{"a": {"n": 1.0}}')
    refused(source, EncodeError, str(source), "`$.a.n`")


# --- things that happen meanwhile ------------------------------------------------------------------------------------


def opens(path: Path) -> Callable[..., bool]:
    return lambda opened, *_: opened == str(path)


def _same_size_and_times(source: Path) -> None:
    status = source.stat()
    source.write_bytes(source.read_bytes().replace(b"2.5", b"2.6"))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "rewritten": lambda source: lay(source.parent, {"step": 8}),
    "same size and times": _same_size_and_times,
    "cut": lambda source: source.write_bytes(b""),
    "grown": lambda source: source.write_bytes(source.read_bytes() + b"\n"),
    "removed": os.unlink,
}


@pytest.mark.parametrize("change", CHANGES)
def test_source_that_changes_before_the_write(change: str, tmp_path: Path) -> None:
    """A source that changes while it is migrated is an error that says so, and nothing is written."""
    source = lay(tmp_path)
    storage = BeforeCall(DISK, lambda: CHANGES[change](source), nth=2, kind="open", on=opens(source))
    with pytest.raises(ConflictError, match=r"changed while it was migrated \(nothing was written\)") as caught:
        migrate(source, storage=storage)
    assert storage.happened
    assert str(source) in str(caught.value)
    assert not beside(source).exists()
    assert set(everything_in(tmp_path)) <= {"checkpoint.json"}


@pytest.mark.parametrize("change", CHANGES)
def test_source_that_changes_during_the_write(change: str, tmp_path: Path) -> None:
    """A source that changes after its last look and before the target is in place is never reported as migrated."""
    source = lay(tmp_path)
    storage = BeforeCall(DISK, lambda: CHANGES[change](source), kind="open", on=creates)
    with pytest.raises(ConflictError, match="holds its old content") as caught:
        migrate(source, storage=storage)
    assert storage.happened
    assert str(beside(source)) in str(caught.value)
    assert "--force" in str(caught.value)
    assert_same(fastckpt.load(beside(source)), STATE)
    if change in ("rewritten", "same size and times"):
        refused(source, ConflictError, "other content")
        assert migrate(source, force=True).status == "migrated"
        assert_same(fastckpt.load(beside(source)), json.loads(source.read_bytes()))


def test_target_that_appears_meanwhile(tmp_path: Path) -> None:
    """A run that begins to save while its old file is migrated is not overwritten."""
    source = lay(tmp_path)
    storage = BeforeCall(DISK, lambda: _another_save(beside(source)), nth=2, kind="open", on=opens(source))
    with pytest.raises(ConflictError, match="appeared") as caught:
        migrate(source, storage=storage)
    assert storage.happened
    assert str(beside(source)) in str(caught.value)
    assert_same(fastckpt.load(beside(source)), {"other": 1})


def test_target_that_is_replaced_at_once(tmp_path: Path) -> None:
    """A target that another process replaces right after the write is not reported as migrated."""
    source = lay(tmp_path)
    in_place: Callable[..., bool] = lambda path, *_: path == str(beside(source)) and beside(source).exists()  # noqa: E731
    storage = BeforeCall(DISK, lambda: _another_save(beside(source)), kind="open", on=in_place)
    with pytest.raises(ConflictError, match="another process"):
        migrate(source, storage=storage)
    assert storage.happened


def test_every_call_may_fail(tmp_path: Path) -> None:
    """Whichever system call fails, the error is under CheckpointError, the source untouched, and the target absent or whole."""
    outcomes = set()
    for nth in range(1, 200):
        folder = tmp_path / str(nth)
        source = lay(folder)
        before = mark(source)
        storage = FaultyStorage(DISK, nth, code=errno.ENOSPC)
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            try:
                assert migrate(source, storage=storage).status == "migrated"
                outcomes.add("migrated")
            except CheckpointError as error:
                outcomes.add(type(error).__name__)
        assert mark(source) == before
        assert not storage.open_fds
        # FAULTS B14: where removing it is what failed, the temporary file stays, and a warning names it.
        left = set(everything_in(folder)) - {"checkpoint.json", "checkpoint.fastckpt"}
        assert len(left) == len(noted)
        assert all(name in str(warning.message) for name, warning in zip(left, noted, strict=True))
        if beside(source).exists():
            assert_same(fastckpt.load(beside(source)), STATE)
        if not storage.hit:
            break
    assert outcomes >= {"migrated", "StorageError", "DurabilityError"}
    assert nth > 15


def test_directory_that_cannot_be_synced(tmp_path: Path) -> None:
    """After a failed sync of the directory the error says that the target is in place, and how to have it written anew."""
    source = lay(tmp_path)
    _another_save(beside(source))
    with pytest.raises(DurabilityError, match="in place") as caught:
        migrate(source, force=True, storage=FaultyStorage(DISK, 2, kind="sync"))
    assert_same(fastckpt.load(beside(source)), STATE)
    assert "--force" in str(caught.value)
    assert migrate(source, force=True).status == "migrated"


def _migrate_from_beside(path: str, state: Any, storage: Storage = DISK) -> object:
    publish(path + ".json", old_style(state), storage=storage)
    return migrate(path + ".json", target=path, force=True, storage=storage)


def test_crash_leaves_the_old_target_or_the_new(tmp_path: Path) -> None:
    """FAULTS A1, A2: killed or without power at any call, the target is absent, the old one or the new one; once reported, the new one."""
    states = ({"a": 1, "b": "x" * 700}, {"a": 2})
    subject = Subject("migrate", _migrate_from_beside, lambda path, storage=DISK: fastckpt.load(path, storage=storage), states)
    assert check_crashes(subject, "/run/checkpoint.fastckpt", [None, *states]) > 10


def test_nothing_is_left_on_a_model_disk() -> None:
    """A migration runs on nothing but `Storage`: on a disk in memory it leaves the two files."""
    disk = ModelStorage()
    _migrate_from_beside("/checkpoint.fastckpt", STATE, disk)
    assert not temporaries(disk)
    assert not disk.descriptors
    assert export("/checkpoint.fastckpt", storage=disk) == old_style(STATE)
    assert find(["/"], name="*.fastckpt", storage=disk) == [Path("/checkpoint.fastckpt")]


# --- with a type -----------------------------------------------------------------------------------------------------


class Answer(msgspec.Struct):
    text: str
    votes: dict[int, float] = {}


@dataclasses.dataclass
class Run:
    answers: dict[int, Answer]
    seen: set[str]
    step: int = 0


class Known(TypedDict):
    a: int


RUN = {"answers": {"1": {"text": "x", "votes": {"3": 0.5}}}, "seen": ["b", "a"]}


def test_type_validates_and_stores_untyped(tmp_path: Path) -> None:
    """With a type the data must fit it, and is stored as it is: the export is byte-identical, and it loads as the type from then on."""
    source = lay(tmp_path, RUN)
    assert migrate(source, type=Run).proof == BYTES
    assert export(beside(source)) == old_style(RUN)
    assert_same(fastckpt.load(beside(source)), RUN)
    assert migrate(source, type=Run).status == "already done"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"answers": {"1": {"text": 3}}, "seen": []}, "text"), ({"answers": {"x": {"text": ""}}, "seen": []}, "$.answers"), ({"answers": {}}, "seen"),
        ({"answers": {}, "seen": 1}, "$.seen"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("convert", [False, True])
def test_data_that_does_not_fit_the_type(state: Any, words: str, convert: bool, tmp_path: Path) -> None:
    """Data that does not fit the type is refused with its path and the file; nothing is written."""
    source = lay(tmp_path, state)
    refused(source, SchemaError, str(source), words, type=Run, convert=convert)


def test_already_migrated_data_must_fit_too(tmp_path: Path) -> None:
    """A second run with a type looks whether the stored data fits it."""
    source = lay(tmp_path, RUN)
    migrate(source)
    refused(source, SchemaError, str(beside(source)), type=dict[str, int])


def test_convert_stores_the_type(tmp_path: Path) -> None:
    """With `convert` what JSON could not say comes back: int keys and sets; the report says that there is no byte proof."""
    source = lay(tmp_path, RUN)
    done = migrate(source, type=Run, convert=True)
    assert (done.status, done.proof) == ("migrated", "converted, no byte proof")
    assert_same(fastckpt.load(beside(source), Run), Run({1: Answer("x", {3: 0.5})}, {"a", "b"}))
    assert list(fastckpt.load(beside(source))["answers"]) == [1]
    assert fastckpt.inspect(beside(source)).type.endswith(":Run")
    assert migrate(source, type=Run, convert=True).status == "already done"
    assert migrate(source).status == "already done"
    refused(source, ConflictError, "Run", "dict", type=dict[str, Any], convert=True)


def test_convert_of_what_is_migrated_untyped(tmp_path: Path) -> None:
    """A target that was migrated untyped is not taken for a converted one."""
    source = lay(tmp_path, RUN)
    migrate(source)
    refused(source, ConflictError, "plain data", "--force", type=Run, convert=True)
    assert migrate(source, type=Run, convert=True, force=True).status == "migrated"


@pytest.mark.parametrize(
    ("state", "type", "words"),
    [
        ({"answers": {"1": {"text": "x", "author": "y"}}, "seen": []}, Run, "no field 'author', which would lose data at `$.answers['1']`"),
        ({"a": 1, "b": 2}, Known, "no field 'b'"), ([{"a": 1, "b": 2}], list[Known], "`$[0]`"),
        ({"s": [1, 2, 1]}, dict[str, set[int]], "3 items become 2"),
        ({"1": "a", "1.0": "b"}, dict[float, str], "two keys become one"), ({"answers": {}, "seen": [], "extra": 1}, Run, "'extra'"),
    ],
)  # fmt: skip
def test_convert_loses_nothing(state: Any, type: Any, words: str, tmp_path: Path) -> None:
    """A key or an element for which the type has no place is refused by its path, where a conversion would drop it silently."""
    source = lay(tmp_path, state)
    error = refused(source, SchemaError, str(source), type=type, convert=True)
    if words not in str(error):
        pytest.fail(str(error))


def test_convert_needs_a_type(tmp_path: Path) -> None:
    """`convert` without a type is a mistake of the caller."""
    with pytest.raises(ValueError, match="needs a type"):
        migrate(lay(tmp_path), convert=True)


def test_type_that_cannot_come_back(tmp_path: Path) -> None:
    """A type that no load could make is refused before anything is read."""
    with pytest.raises(SchemaError):
        migrate(tmp_path / "nowhere", type=complex)


# --- finding files ---------------------------------------------------------------------------------------------------


def tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    return root


def found(root: Path, *paths: str, **options: Any) -> list[str]:
    return [str(path.relative_to(root)) for path in find([root / path for path in paths], **options)]


def test_find_searches_directories(tmp_path: Path) -> None:
    """Directories are searched for the name at any depth, files are taken as they are; sorted."""
    names = ("b/checkpoint.json", "a/x/checkpoint.json", "a/other.json", "checkpoint.json", "a/checkpoint.json.bak", "a/xcheckpoint.json")
    root = tree(tmp_path, *names)
    assert found(root, ".") == ["a/x/checkpoint.json", "b/checkpoint.json", "checkpoint.json"]
    assert found(root, "a/other.json", "b") == ["a/other.json", "b/checkpoint.json"]
    assert found(root, "a", name="other.json") == ["a/other.json"]
    assert found(root, "a", name="*.json") == ["a/other.json", "a/x/checkpoint.json", "a/xcheckpoint.json"]


def test_find_takes_a_name_with_brackets_literally(tmp_path: Path) -> None:
    """A name that looks like a pattern still finds the file that is called so."""
    assert found(tree(tmp_path, "a/x[1].json"), ".", name="x[1].json") == ["a/x[1].json"]


def test_find_lists_a_file_once(tmp_path: Path) -> None:
    """A file that several overlapping paths lead to, also through links and dots, is listed once; files of one name in two folders are two."""
    root = tree(tmp_path, "a/b/checkpoint.json", "c/checkpoint.json")
    (root / "link").symlink_to("a")
    assert found(root, ".", "a", "a/b", "a/b/checkpoint.json", "c/../a/b") == ["a/b/checkpoint.json", "c/checkpoint.json"]
    assert len(found(root, "link", "a")) == 1


def test_find_does_not_follow_linked_directories(tmp_path: Path) -> None:
    """A linked directory is not entered (it may lead anywhere, or back), unless it is given; a linked file is a file."""
    root = tree(tmp_path, "real/checkpoint.json", "out/x.json")
    (root / "real" / "up").symlink_to("..")
    (root / "out" / "linked").symlink_to(root / "real")
    assert found(root, "real") == ["real/checkpoint.json"]
    assert found(root, "out/linked") == ["out/linked/checkpoint.json"]
    (root / "out" / "checkpoint.json").symlink_to(root / "real" / "checkpoint.json")
    assert found(root, "out") == ["out/checkpoint.json"]


def test_find_names_what_is_not_there(tmp_path: Path) -> None:
    """A path that does not exist, and a directory without such a file, are errors for that path, not for the others."""
    root = tree(tmp_path, "a/checkpoint.json", "empty/x")
    for missing in ("nowhere", "empty"):
        with pytest.raises(NotFoundError, match=missing):
            found(root, "a", missing)
    errors: list[CheckpointError] = []
    assert found(root, "nowhere", "a", "empty", on_error=errors.append) == ["a/checkpoint.json"]
    assert [type(error) for error in errors] == [NotFoundError, NotFoundError]
    assert "no checkpoint.json below" in str(errors[1])
    assert "--name" in str(errors[1])


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("a/checkpoint.json", "a/checkpoint.fastckpt"), ("x.JSON", "x.fastckpt"), ("a.b/state", "a.b/state.fastckpt"),
        ("x.json.bak", "x.json.bak.fastckpt"),
        (".json", ".json.fastckpt"), ("a.b.json", "a.b.fastckpt"),
    ],
)  # fmt: skip
def test_target_of(path: str, target: str) -> None:
    """The target stands beside its source, under the name without .json."""
    assert target_of(path) == target


# --- the way back ----------------------------------------------------------------------------------------------------


def test_export_writes_once(tmp_path: Path) -> None:
    """An export is written whole, left alone when it is there already, and replaces another file only when forced."""
    fastckpt.save(tmp_path / "a", STATE)
    assert export(tmp_path / "a", tmp_path / "new" / "a.json") == old_style(STATE)
    before = mark(tmp_path / "new" / "a.json")
    export(tmp_path / "a", tmp_path / "new" / "a.json")
    assert mark(tmp_path / "new" / "a.json") == before
    assert before[2] == old_style(STATE)
    (tmp_path / "b.json").write_text("mine")
    with pytest.raises(ConflictError, match="something else") as caught:
        export(tmp_path / "a", tmp_path / "b.json")
    assert str(tmp_path / "b.json") in str(caught.value)
    assert "--force" in str(caught.value)
    assert (tmp_path / "b.json").read_text() == "mine"
    export(tmp_path / "a", tmp_path / "b.json", force=True)
    assert (tmp_path / "b.json").read_bytes() == old_style(STATE)


def test_export_never_replaces_a_checkpoint(tmp_path: Path) -> None:
    """JSON is never written over a checkpoint, the exported one or another, forced or not."""
    for name in ("a", "b"):
        fastckpt.save(tmp_path / name, {"name": name})
    for target in ("a", "b"):
        before = mark(tmp_path / target)
        with pytest.raises(ConflictError, match="is a checkpoint"):
            export(tmp_path / "a", tmp_path / target, force=True)
        assert mark(tmp_path / target) == before


def test_export_of_a_typed_checkpoint(tmp_path: Path) -> None:
    """A typed state exports as the JSON that reads back as its type; what JSON cannot say is refused with file and place."""
    state = Run({1: Answer("x", {3: 0.5})}, {"a"}, 4)
    fastckpt.save(tmp_path / "a", state)
    assert_same(fastckpt.from_json(export(tmp_path / "a"), Run), state)
    fastckpt.save(tmp_path / "b", {"m": {(1, 2): 3}}, type=dict[str, dict[tuple[int, int], int]])
    with pytest.raises(EncodeError, match=r"\$\.m") as caught:
        export(tmp_path / "b")
    assert str(tmp_path / "b") in str(caught.value)


def test_export_of_json_or_of_nothing(tmp_path: Path) -> None:
    """JSON is no checkpoint to export, and a missing file is missing."""
    with pytest.raises(NotACheckpointError, match="JSON already"):
        export(lay(tmp_path))
    with pytest.raises(NotFoundError):
        export(tmp_path / "nowhere")


def test_export_edit_migrate(tmp_path: Path) -> None:
    """Export, edit, migrate with force: the edited state is the checkpoint then."""
    fastckpt.save(tmp_path / "checkpoint.fastckpt", STATE)
    export(tmp_path / "checkpoint.fastckpt", tmp_path / "checkpoint.json")
    edited = STATE | {"b": [4]}
    source = lay(tmp_path, edited)
    assert migrate(source, force=True).proof == BYTES
    assert_same(fastckpt.load(beside(source)), edited)


# --- many files ------------------------------------------------------------------------------------------------------


def test_attempt_returns_its_error(tmp_path: Path) -> None:
    """An attempt returns the migration or the error as a value, and survives the way to another process with all fields."""
    good, bad = attempt(lay(tmp_path / "a")), attempt(lay(tmp_path / "b", b'{"x": 1,\n"x": 2}x'))
    assert isinstance(good.migration, Migration)
    assert good.error is None
    assert bad.migration is None
    assert isinstance(bad.error, JsonError)
    for outcome in (good, bad):
        again = pickle.loads(pickle.dumps(outcome))
        assert again.migration == outcome.migration
        assert str(again.error) == str(outcome.error)
    assert (pickle.loads(pickle.dumps(bad)).error.line, pickle.loads(pickle.dumps(bad)).error.exit_code) == (2, 4)


def test_attempt_returns_its_warnings(tmp_path: Path) -> None:
    """Warnings are returned too, for a worker process has nobody to show them to."""
    storage = FaultyStorage(DISK, 2, kind="sync", code=errno.EINVAL)
    outcome = attempt(lay(tmp_path), storage=storage)
    assert outcome.migration is not None
    assert len(outcome.warnings) == 1
    assert "sync" in outcome.warnings[0]


def test_import_type() -> None:
    """`module:Class` is imported, and what is none is refused with the form that is wanted."""
    assert import_type("fastckpt.migrate:Migration") is Migration
    assert import_type("typing:Any") is Any
    for wrong in ("", "Migration", "fastckpt.migrate:", ":Migration", "no_such_module:A", "fastckpt.migrate:Nothing"):
        with pytest.raises(CheckpointError, match="module:Class"):
            import_type(wrong)


@needs_root
def test_no_permission(public_path: Path) -> None:
    """A file that may not be read, and a folder that may not be written, are refused by name, with the remedy."""
    source, secret = lay(public_path / "a"), lay(public_path / "b")
    secret.chmod(0)

    def attempt_both() -> None:
        without_privileges()
        refused(source, StorageError, "permission", "check the permissions")
        with pytest.raises(StorageError, match="permission") as caught:
            migrate(secret)
        assert caught.value.errno == errno.EACCES
        assert str(secret) in str(caught.value)

    in_child(attempt_both)


def test_a_target_that_appears_at_the_last_moment(tmp_path: Path) -> None:
    """A save by somebody else just before ours would appear is not replaced: the migration is refused, nothing is lost or left over."""

    class Meanwhile(Storage):
        def link(self, source: str, target: str) -> None:
            fastckpt.save(target, {"newer": 1})
            super().link(source, target)

    source = tmp_path / "checkpoint.json"
    source.write_text(json.dumps({"a": 1}, indent=2))
    with pytest.raises(ConflictError, match="appeared"):
        migrate(source, storage=Meanwhile())
    assert_same(fastckpt.load(tmp_path / "checkpoint.fastckpt"), {"newer": 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.fastckpt", "checkpoint.json"]


def test_a_filesystem_without_links(tmp_path: Path) -> None:
    """Where a file cannot have two names the target still appears, and an existing one is still left alone."""

    class NoLinks(Storage):
        def link(self, source: str, target: str) -> None:
            raise PermissionError(1, "Operation not permitted")

    source = tmp_path / "checkpoint.json"
    source.write_text(json.dumps({"a": 1}, indent=2))
    assert migrate(source, storage=NoLinks()).status == "migrated"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.fastckpt", "checkpoint.json"]
    assert migrate(source, storage=NoLinks()).status == "already done"
