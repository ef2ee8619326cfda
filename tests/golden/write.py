"""Writes the golden files: one for each feature of the format. `python tests/golden/write.py` adds those that are missing.

A file that is there is never written again: it stands for every file of its kind that somebody has, and is loaded for ever. A new
feature gets a new case, and a new version of the format new cases under another name. `expected.json` says what is in each record.
"""

# ruff: noqa: E402 (as a script it must find the tests and the package first)

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import forge
import msgspec

import fastckpt
from fastckpt import CheckpointManager, Fingerprint
from fastckpt.journal import Journal
from fastckpt.migrate import migrate
from fastckpt.reader import Reader

EXPECTED = HERE / "expected.json"
TIME = 1_767_225_600_000_000_000


@dataclass
class Trained:
    """What the typed case is saved and loaded as."""

    step: int
    seen: set[int] = field(default_factory=set)
    pair: tuple[int, float] = (0, 0.0)
    by_id: dict[int, list[bool]] = field(default_factory=dict)
    at: dt.datetime = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    note: str | None = None


PLAIN = {
    "step": 3, "loss": 0.5, "done": False, "none": None, "text": "中文 \U0001f600 \0", "bytes": b"\0\xff", "list": [1, -1, 1.0, True, 2**63, 2**64 - 1, -(2**63)],
    "floats": [float("nan"), float("inf"), -0.0, 5e-324, 1e308], "nested": {"a": [{"b": []}] * 3}, "": {}, "1": {1: "int", 2.5: "float", b"\0": "bytes", (1, "a"): "tuple"},
}  # fmt: skip
TYPED = Trained(7, {1, 2, 300}, (1, 0.5), {1: [True], 2: []}, dt.datetime(2025, 12, 31, 23, 59, 59, 123456, tzinfo=dt.UTC))
EXT = {
    "large": [2**64, -(2**63) - 1, 10**40, -(10**40)], "\ud800": "\udfff lone", "keys": {2**70: 1, (1, "\ud801"): [2], "plain": {"\ud802": {"\ud803": None}}},
}  # fmt: skip
DOCUMENT = {"progress": {"global_step": 41}, "中": [1.5, None, True, "x\ny"], "big": 10**30}
SOURCE = json.dumps(DOCUMENT, ensure_ascii=False, indent=2).encode()


def state(step: int, again: int = 0) -> dict[str, Any]:
    """A state of a run: of rows of which a few change with each step, and of which there are twice as many from step 7 on."""
    count = 60 if step < 7 else 130
    return {"step": step, "again": again, "rows": [f"row {i}: {i * i * 7919 % 10_007 * (1 + (i // 8 == step))}" for i in range(count)]}


def save_run(path: Path, steps: Any, **options: Any) -> CheckpointManager[Any]:
    manager = CheckpointManager(path, chunk=128, **options)
    for step in steps:
        manager.save(step, state(step))
    return manager


# The cases: what each writes, and what is found in it by step; None: a file of one checkpoint; "refused": a VersionError.


def single(path: Path) -> Any:
    fastckpt.save(path, PLAIN)
    return {None: PLAIN}


def single_typed(path: Path) -> Any:
    fastckpt.save(path, TYPED, type=Trained)
    return {None: TYPED}


def single_ext_and_meta(path: Path) -> Any:
    fastckpt.save(path, EXT, meta={"run": "a", "tags": [1, None, 0.5, {"k": b"\0"}]}, level=19)
    return {None: EXT}


def single_nothing(path: Path) -> Any:
    fastckpt.save(path, None)
    return {None: None}


def single_migrated(path: Path) -> Any:
    source = path.with_suffix(".json")
    source.write_bytes(SOURCE)
    migrate(source, target=path)
    source.unlink()
    return {None: DOCUMENT}


def run_of_one(path: Path) -> Any:
    save_run(path, [0]).close()
    return {0: state(0)}


def run_with_bases(path: Path) -> Any:
    """Differences, and two bases: the first record, and step 7, which has doubled."""
    save_run(path, range(10)).close()
    return {step: state(step) for step in range(10)}


def run_reopened(path: Path) -> Any:
    """What is appended first after opening is a base."""
    save_run(path, range(3)).close()
    save_run(path, range(3, 6)).close()
    return {step: state(step) for step in range(6)}


def run_retired(path: Path) -> Any:
    """A step deleted, a rewind, a step again, a forced save, and a policy that retires with a save."""
    with save_run(path, range(10)) as manager:
        manager.delete(1)
        manager.rewind(6)
        manager.save(7, state(7, again=1))
        manager.save(5, state(5, again=2), force=True)
    with CheckpointManager(path, chunk=128, max_to_keep=3) as manager:
        manager.save(6, state(6, again=3))
    return {4: state(4), 5: state(5, again=2), 6: state(6, again=3)}


def run_of_streams(path: Path) -> Any:
    """Three histories in one file, with keys; one of them retires steps of its own."""
    with contextlib.closing(Journal(path, chunk=128)) as journal:
        for step in range(4):
            for stream in ("", "worker/1", "工"):
                message = msgspec.msgpack.encode(state(step, again=len(stream)))
                journal.append(message, step=step, stream=stream, key=f"k{step}", sync=step != 2)
        journal.tombstone([(0, 1), (3, None)], stream="工")
    return {step: state(step) for step in range(4)}


def run_unsynced(path: Path) -> Any:
    """Appends that were not synced before the next one."""
    save_run(path, range(5), fsync=False).close()
    return {step: state(step) for step in range(5)}


def run_with_zeros(path: Path) -> Any:
    """A record that holds a run of zeros itself, and says so: its frame is not compressed."""
    zeros = {"step": 1, "zeros": bytes(600)}
    with forge.raw_frames(), CheckpointManager(path) as manager:
        manager.save(0, state(0))
        manager.save(1, zeros)
    return {0: state(0), 1: zeros}


def run_with_ext(path: Path) -> Any:
    with CheckpointManager(path) as manager:
        manager.save(0, EXT)
        manager.save(1, {**EXT, "more": 2**200})
    return {0: EXT, 1: {**EXT, "more": 2**200}}


def run_with_all_keys(path: Path) -> Any:
    """Configuration, schema version, metrics, metadata, type, and how long the save before took."""
    fingerprint = Fingerprint({"lr": 0.1, "layers": [1, 2], "name": "中"}, ["layers"], ["lr", "name"])
    with CheckpointManager(path, Trained, fingerprint=fingerprint, schema_version=3) as manager:
        for step in range(3):
            manager.save(step, Trained(step, {step}), metrics={"loss": 1 / (step + 1), "nan": float("nan")}, meta={"note": f"step {step}"})
    return {step: Trained(step, {step}) for step in range(3)}


def run_adopted(path: Path) -> Any:
    """A migrated file that became a run, whose records say where they descend from."""
    single_migrated(path)
    with CheckpointManager(path) as manager:
        manager.save(42, {"progress": {"global_step": 42}})
    return {41: DOCUMENT, 42: {"progress": {"global_step": 42}}}


def run_compacted(path: Path) -> Any:
    """Records written anew under their old numbers, and a generation copied as it was."""
    with save_run(path, range(12), max_to_keep=3, keep_period=4) as manager:
        manager.compact()
    return {step: state(step) for step in (0, 4, 8, 9, 10, 11)}


def run_torn(path: Path) -> Any:
    """The last append was cut short by a crash."""
    save_run(path, range(4)).close()
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    return {step: state(step) for step in range(3)}


def unknown_key(path: Path) -> Any:
    """A later version's optional key in a record header, which a reader skips."""
    message = msgspec.msgpack.encode(PLAIN)
    path.write_bytes(forge.single(message, header={"colour": {"of": ["the", b"\xff", None]}, "step": 3}))
    return {None: PLAIN}


def newer_version(path: Path) -> Any:
    """A later format version that this reader may read."""
    path.write_bytes(forge.file_header(version=2, min_reader=1) + forge.record(msgspec.msgpack.encode(PLAIN)))
    return {None: PLAIN}


def newer_reader(path: Path) -> Any:
    path.write_bytes(forge.file_header(version=2, min_reader=2) + b"whatever there is")
    return "refused"


def unknown_flag(path: Path) -> Any:
    path.write_bytes(forge.file_header(flags=0x11) + forge.record())
    return "refused"


def unknown_requirement(path: Path) -> Any:
    path.write_bytes(forge.run(forge.record(header={"step": 0, "requires": ["dictionary"]})))
    return "refused"


def unknown_codec(path: Path) -> Any:
    path.write_bytes(forge.single(header={"codec": "lzma"}))
    return "refused"


CASES: dict[str, Callable[[Path], Any]] = {
    f"{case.__name__.replace('_', '-')}.fastckpt": case
    for case in (
        single, single_typed, single_ext_and_meta, single_nothing, single_migrated, run_of_one, run_with_bases, run_reopened, run_retired, run_of_streams,
        run_unsynced, run_with_zeros, run_with_ext, run_with_all_keys, run_adopted, run_compacted, run_torn, unknown_key, newer_version, newer_reader,
        unknown_flag, unknown_requirement, unknown_codec,
    )
}  # fmt: skip


@contextlib.contextmanager
def the_same_each_time() -> Iterator[None]:
    """Inside, ids and times are counted."""
    number = itertools.count()
    with (
        mock.patch("fastckpt.reader.urandom", lambda size: bytes([next(number)]) * size),
        mock.patch("fastckpt.file.urandom", lambda size: bytes([next(number)]) * size),
        mock.patch("time.time_ns", lambda: TIME + next(number) * 10**9),
    ):
        yield


def records_of(path: Path) -> list[dict[str, Any]]:
    """What each record of a file says, oldest first, and a digest of its message (BLAKE2b-128); nothing of how it is stored."""
    found = []
    with contextlib.closing(Reader(path)) as reader:
        for entry in reader.entries():
            header = entry.header
            message = reader.read(entry) if header.kind == "state" else b""
            found.append({
                "sequence": header.sequence, "kind": header.kind, "stream": header.stream, "key": header.key, "step": header.step,
                "retires": [list(each) for each in header.retires], "ext": header.ext, "time": header.time, "schema_version": header.schema_version,
                "type": header.type, "schema": header.schema, "source": msgspec.to_builtins(header.source), "writer": header.writer,
                **{name: repr(msgspec.msgpack.decode(getattr(header, name))) for name in ("meta", "metrics", "config")},
                "message": hashlib.blake2b(message, digest_size=16).hexdigest(),
            })  # fmt: skip
    return found[::-1]


def traits_of(path: Path) -> dict[str, Any]:
    """How a file is stored, as far as it makes the case: so that a case is what its name says."""
    with contextlib.closing(Reader(path)) as reader:
        headers = [entry.header for entry in reader.entries()][::-1]
        return {
            "single": reader.single,
            "torn": reader.damage is not None and reader.damage.torn,
            "bases": [header.base for header in headers],
            "unsynced": [header.unsynced > 0 for header in headers],
            "zeros": any(header.zeros for header in headers),
        }


def main() -> None:
    """Add the files that are missing, and what is in them to `expected.json`."""
    expected = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    for name, case in CASES.items():
        path = HERE / name
        if path.exists():
            continue
        with the_same_each_time():
            found = case(path)
        path.with_name(f"{name}.lock").unlink(missing_ok=True)
        known = {} if found == "refused" else {"traits": traits_of(path), "records": records_of(path)}
        expected[name] = {"file": hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest(), **known}
    EXPECTED.write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
