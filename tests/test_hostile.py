"""FAULTS F: a file made to mislead, every checksum right: each public way of reading it ends in a state that was saved or in an error of ours.

Each file is used in a forked child that may take little more memory than it has, and little time. `forge` writes them.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import resource
import shutil
import struct
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forge
import msgspec
import pytest
from faults import IN_MEMORY
from forge import OMIT, header_checksum, record
from support import count, difference, in_child, needs_linux
from test_journal_damage import GOOD, LIES
from test_journal_damage import A as FIRST
from test_journal_damage import B as SECOND
from test_journal_damage import C as THIRD

import fastckpt
from fastckpt import CheckpointError, CheckpointManager, CheckpointWarning, CorruptError, History
from fastckpt.cli import main
from fastckpt.compaction import compact
from fastckpt.dropin import load_checkpoint
from fastckpt.history import NAME
from fastckpt.journal import Journal
from fastckpt.migrate import export, export_all, migrate
from fastckpt.reader import Retired
from fastckpt.repair import repair

pytestmark = needs_linux

# What a child may take beyond what it has, for files of at most a few MB; and how long all of it may take, on a machine that is busy.
MEMORY = 256 << 20
SLOW, SECONDS = 3, 60


def state(step: int) -> dict[str, Any]:
    return {"step": step, "text": f"what is said at step {step}", "loss": [1 / (step + 1)] * 3}


def saved(step: int, sequence: int | None = None, **header: Any) -> bytes:
    """An honest base record of a step, but for what `header` says."""
    fields = {"sequence": step + 1 if sequence is None else sequence, "step": step, **header}
    return record(msgspec.msgpack.encode(state(step)), header=fields)


def tombstone(sequence: int, retires: Any, **header: Any) -> bytes:
    fields = {"sequence": sequence, "kind": "tombstone", "retires": retires, **header}
    return record(b"", header=fields, table=[[], b"", [], b"", b""], content=b"")


A, B, C = saved(0), saved(1), saved(2)


class States(list[Any]):
    """What a reader takes for states of the run."""


# Every way of using a file


def readers(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every public way of looking at a file, and of working with it as a run; those that change it come last, each on a copy."""
    yield "load", lambda: States([fastckpt.load(path)])
    yield "load as a type", lambda: States([fastckpt.load(path, dict[str, Any])])
    yield "inspect", lambda: fastckpt.inspect(path)
    yield "verify", lambda: fastckpt.verify(path)
    yield "export", lambda: export(path)
    yield "export_all", lambda: [*export_all(path, path.parent / "out")]

    yield "migrate to it", lambda: migrate(json_beside(path), target=path, dry_run=True)
    yield "load_checkpoint", lambda: load_checkpoint(path.parent)

    def in_history(use: Callable[[History[Any]], object]) -> Callable[[], object]:
        def used() -> object:
            with History(path, first_step=0) as history:
                return use(history)

        return used

    def every_step(history: History[Any]) -> States:
        found = States()
        for step in history.all_steps():
            with contextlib.suppress(CheckpointError):
                found.append(history.restore(step))
        return found

    def pairs(history: History[Any]) -> None:
        steps = history.all_steps()
        for a, b in itertools.pairwise(steps):
            history.diff(a, b)

    yield "restore", in_history(lambda history: States([history.restore()]))
    yield "restore with fallback", in_history(lambda history: States([history.restore(fallback=True)]))
    yield "every step", in_history(every_step)
    yield "log", in_history(lambda history: history.log())
    yield "metrics", in_history(lambda history: history.metrics())
    yield "meta", in_history(lambda history: history.meta())
    yield "diff", in_history(pairs)
    yield "series", in_history(lambda history: history.series("loss.0"))
    for name in (
        "inspect",
        "inspect --schema",
        "verify",
        "log --all",
        "log --all --json",
        "diff",
        "series text",
        "export",
        "compact --dry-run --max-to-keep 1",
    ):
        yield f"fastckpt {name}", command(name, path)

    def reading() -> object:
        with CheckpointManager(path, read_only=True, first_step=0) as manager:
            manager.next_step(), manager.plan(), manager.best_step()
            return States([manager.restore(fallback=True)])

    yield "a read-only manager", reading
    for name in ("repair", "compact", "compact --max-to-keep 1"):
        yield f"fastckpt {name}", command(name, path, copied=True)

    def going_on() -> object:
        with copy_of(path) as copy, CheckpointManager(copy, first_step=0) as manager:
            with contextlib.suppress(CheckpointError):
                manager.restore(fallback=True)
            step = manager.next_step()
            manager.save(step, state(step))
            manager.save(step + 1, state(step + 1))
            if manager.restore() != state(step + 1):
                raise AssertionError("what was saved after it is not what comes back")
            manager.delete(step)
            return States([manager.restore()])

    def mended() -> object:
        with copy_of(path) as copy:
            repair(copy)
            with History(copy, first_step=0) as history:
                return every_step(history)

    def compacted() -> object:
        with copy_of(path) as copy, contextlib.closing(Journal(copy)) as journal:
            compact(journal)
            with History(copy, first_step=0) as history:
                return every_step(history)

    yield "save after it", going_on
    yield "repair", mended
    yield "compact", compacted


def json_beside(path: Path) -> Path:
    source = path.with_name("source.json")
    source.write_text('{"progress": {"global_step": 1}}')
    return source


@contextlib.contextmanager
def copy_of(path: Path) -> Iterator[Path]:
    folder = path.parent / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield Path(shutil.copy(path, folder / NAME))


def command(line: str, path: Path, *, copied: bool = False) -> Callable[[], object]:
    name, *rest = line.split()

    def run() -> object:
        with copy_of(path) if copied else contextlib.nullcontext(path) as target:
            streams = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in "oe"]
            with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
                code = main([name, str(target), *rest])
            if code not in (0, 1, 3, 4, 5, 7, 8):
                raise AssertionError(f"the exit code is {code}")
        return code

    return run


def survive(path: Path, truth: Callable[[Any], bool], commands: bool) -> None:
    """In a child with little memory: use the file in every way. Fail for any error but ours, for a state that nobody saved, and for slowness."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    warnings.simplefilter("ignore", CheckpointWarning)
    failures = []
    for name, use in readers(path):
        if name.startswith("fastckpt ") and not commands:
            continue
        began = time.process_time()
        try:
            result = use()
            if isinstance(result, States):
                failures += [f"{name}: a state that nobody saved: {one!r:.300}" for one in result if not truth(one)]
        except CheckpointError as error:
            if "\n" in str(error):
                failures.append(f"{name}: an error of several lines: {error}")
        except Exception as error:
            failures.append(f"{name}: {error!r:.300}{traceback_of(error)}")
        took = time.process_time() - began
        if took > SLOW:
            failures.append(f"{name}: took {took:.1f} s")
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


def traceback_of(error: BaseException) -> str:
    return "".join(
        f"\n    {frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)[-4:]
    )


def is_saved(one: Any) -> bool:
    return isinstance(one, dict) and "step" in one and difference(one, state(one["step"])) is None


def use_everything(data: bytes, truth: Callable[[Any], bool] = is_saved, *, commands: bool = True) -> None:
    """Fail unless every way of using `data` as a file gives states that were saved, or an error of ours, soon."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        path = Path(folder) / NAME
        path.write_bytes(data)
        in_child(lambda: survive(path, truth, commands), timeout=SECONDS)
        assert path.read_bytes() == data, "a reader changed it"
    count("hostile files")


@pytest.fixture(autouse=True, scope="module")
def _honest() -> None:
    """An honest run, used in every way in this process, is no trouble; and what that imports, no child must import again."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        path = Path(folder) / NAME
        path.write_bytes(forge.run(A, B, C))
        for name, use in readers(path):
            # It has no other run's JSON beside it, and is none of the replaced module's.
            with pytest.raises(CheckpointError) if name in ("migrate to it", "load_checkpoint") else contextlib.nullcontext():
                found = use()
                assert not name.startswith("fastckpt ") or found == 0, name
                assert not isinstance(found, States) or (found and all(map(is_saved, found))), name


# Headers


TOP = 2**64 - 1
HEADERS: dict[str, dict[str, Any]] = {
    "a step below 0": {"step": -5},
    "the least step": {"step": -(2**63)},
    "the last step": {"step": 2**63 - 1},
    "a step beyond the last": {"step": 2**63},
    "the largest number for a step": {"step": TOP},
    "no step": {"step": None},
    "a step that is there already": {"step": 1},
    "an older step": {"step": 0},
    "the largest sequence number": {"sequence": TOP},
    "a sequence number that is there": {"sequence": 2},
    "an older sequence number": {"sequence": 1},
    "sequence number 0": {"sequence": 0},
    "a sequence number below 0": {"sequence": -1},
    "a tombstone with a message": {"kind": "tombstone"},
    "no kind that there is": {"kind": "ghost"},
    "retires reversed": {"retires": [[5, 1]]},
    "retires itself": {"retires": [[2, 2]]},
    "retires everything": {"retires": [[-(2**63), TOP]]},
    "retires everything from below": {"retires": [[-(2**63), None]]},
    "retires at the end of numbers": {"retires": [[TOP, TOP], [TOP, None], [2**63, 2**63 - 1]]},
    "retires text": {"retires": [["a", "b"]]},
    "retires three": {"retires": [[1, 2, 3]]},
    "retires one": {"retires": [[1]]},
    "retires a number": {"retires": 7},
    "another stream": {"stream": "another"},
    "a stream of controls": {"stream": "\x1b[2J\n\0\u202e", "key": "\r\n"},
    "a stream of half a MB": {"stream": "s" * 500_000},
    "unsynced: all": {"unsynced": TOP},
    "no zeros, it says": {"zeros": False},
    "a chunk size of all": {"chunk": TOP},
    "schema version 0": {"schema_version": 0},
    "schema version below 0": {"schema_version": -1},
    "the largest schema version": {"schema_version": TOP},
    "schema version 2": {"schema_version": 2},
    "schema version as text": {"schema_version": "1"},
    "blocked for ever": {"blocked": TOP},
    "a time before all": {"time": -(2**63)},
    "a time after all": {"time": TOP},
    "metadata of 900 kB": {"meta": {"k": "m" * 900_000}},
    "metadata that is a list": {"meta": [1, 2]},
    "metadata that is nil": {"meta": None},
    "metrics that are a number": {"metrics": 3},
    "metrics with numbers as keys": {"metrics": {1: 2, 3.5: {4: 5}}},
    "metrics with bytes as keys": {"metrics": {b"\xff": b"\xfe"}},
    "metrics that are no numbers": {"metrics": {"loss": {"of": ["what", None, b"\xff", 1e400, -(2**63)]}}},
    "a configuration that is a list": {"config": ["lr", 1]},
    "a configuration of other keys": {"config": {1: 2}},
    "metadata with an Ext": {"meta": {"x": msgspec.msgpack.Ext(3, b"\xff\xff"), "y": msgspec.msgpack.Ext(77, b"")}},
    "a source without a digest": {"source": {"migrated": True}},
    "a source that is text": {"source": "x"},
    "a source of controls": {"source": {"digest": "\x1b]0;x\x07" * 1000, "migrated": False}},
    "a type that could be imported": {"type": "os:system", "schema": "rm -rf /"},
    "a type of half a MB": {"type": "t" * 500_000},
    "a writer of controls": {"writer": "\x1b[31m\n" * 100},
    "Ext values, it says": {"ext": True},
    "many requirements": {"requires": ["x"] * 100_000},
    "an unknown codec": {"codec": "\x1b[2J"},
    "an unknown key": {"colour": {"of": [b"\xff"]}},
    "a file id of another": {"file": bytes(16)},
    "a short file id": {"file": b""},
    "no digest": {"digest": OMIT},
    "a long digest": {"digest": bytes(100_000)},
}


@pytest.mark.parametrize("name", HEADERS, ids=lambda name: name.replace(" ", "-"))
def test_headers_that_lie(name: str) -> None:
    """FAULTS F6, F7, F8: a record header that says anything, in a run as the last one and in the middle, and of a file of one checkpoint."""
    lie = record(msgspec.msgpack.encode(state(2)), header={"sequence": 3, "step": 2, **HEADERS[name]})
    only = record(msgspec.msgpack.encode(state(2)), header={"step": 2, **HEADERS[name]})
    use_everything(forge.run(A, B, lie))
    use_everything(forge.run(A, B, lie, saved(3)), commands=False)
    use_everything(forge.file_header() + only, commands=False)


# Content of headers and messages


def nested(unit: bytes, depth: int) -> msgspec.Raw:
    return msgspec.Raw(unit * depth + b"\xc0")


RAW: dict[str, bytes] = {
    "text that is no UTF-8": b"\x81\xa1k\xa2\xff\xfe",
    "a key that is no UTF-8": b"\x81\xa2\xff\xfe\x01",
    "a key twice": b"\x82\xa1k\x01\xa1k\x02",
    "a key that is a list": b"\x81\x91\x01\x02",
    "a timestamp": b"\x81\xa1k\xd6\xff\xff\xff\xff\xff",
    "no timestamp": b"\x81\xa1k\xc7\x05\xffabcde",
    "lists in lists": b"\x81\xa1k" + b"\x91" * 800 + b"\xc0",
    "maps in maps": b"\x81\xa1k" * 700 + b"\xc0",
    "as many lists as may be": b"\x81\xa1k" + b"\x91" * 200_000 + b"\xc0",
    "many empty maps": b"\x81\xa1k\xdd\0\x03\x0d\x40" + b"\x80" * 200_000,
}


@pytest.mark.parametrize("key", ["meta", "metrics", "config"])
@pytest.mark.parametrize("name", RAW, ids=lambda name: name.replace(" ", "-"))
def test_metadata_that_lies(name: str, key: str) -> None:
    """FAULTS F3, F4, F7: metadata, metrics or a configuration that is no plain data, or nests without end."""
    lie = saved(2, **{key: msgspec.Raw(RAW[name])})
    use_everything(forge.run(A, B, lie))


def ext(code: int, data: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, data))


def ext_maps(depth: int) -> bytes:
    data = b"\xc0"
    for _ in range(depth):
        data = ext(3, b"\x92\xa1a" + data)
    return data


MESSAGES: dict[str, bytes] = {
    "an integer of a MB": ext(1, b"\x7f" * 1_000_000),
    "an integer of no bytes": ext(1, b""),
    "text that is none": ext(2, b"\xff\xff"),
    "a map of an odd number": ext(3, b"\x93\x01\x02\x03"),
    "a map of a map": ext(3, b"\x81\x01\x02"),
    "a map with a map as key": ext(3, b"\x92\x81\x01\x02\x03"),
    "a map with a list of maps as key": ext(3, b"\x92\x91\x80\x03"),
    "a key twice, in a map of pairs": ext(3, b"\x94\xa1a\x01\xa1a\x02"),
    "maps of pairs in each other": ext_maps(300),
    "an unknown code": ext(77, b"x"),
    "a timestamp": ext(-1, b"\xff" * 8),
    "no timestamp": ext(-1, b"x"),
    "bytes for text": b"\x81\xc4\x01a\x01",
    "lists in lists": b"\x91" * 600 + b"\xc0",
    "keys in keys": b"\x81\x91" * 200 + b"\x01" * 201,
    "a tag twice": b"\x83\xa4type\xa1a\xa4type\xa1b\xa1x\x01",
    "a step that is none": b"\x81\xa8progress\x81\xabglobal_step\xc4\x01x",
    "names": msgspec.msgpack.encode({"../x": 1, "/etc/passwd": 2, "\0": 3, "n" * 300: 4, "CON": 5, "a.b[0]['c']": 6}),
    "numbers as keys": b"\x83\x01\x02\xcb\x7f\xf8\0\0\0\0\0\0\x03\xc0\x04",
    "floats as no numbers": b"\x93\xcb\x7f\xf8\0\0\0\0\0\1\xcb\x7f\xf0\0\0\0\0\0\0\xca\x7f\x80\0\0",
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES, ids=lambda name: name.replace(" ", "-"))
def test_messages_that_lie(name: str) -> None:
    """FAULTS F3, F7, F8: messages that no encoder writes, with every checksum right: whatever comes of them, it is no other error."""
    message = MESSAGES[name]
    lies = [record(message, header={"sequence": n, "step": n - 1, "ext": n != 3}) for n in (2, 3)]
    use_everything(forge.run(A, *lies), lambda one: True)


# Tables, frames, records


def chunks(count: int) -> tuple[list[Any], bytes]:
    """The table of a record of so many chunks of one byte, and its content."""
    return [[], b"", [0, 0, count], struct.pack("<I", 1) * count, forge.crc(b"\0") * count], bytes(count)


def touching(*others: tuple[int, bytes], **header: Any) -> bytes:
    """A record that touches the records of these distances and names, and uses nothing of them."""
    message = msgspec.msgpack.encode(state(2))
    table = [[distance for distance, _ in others], b"".join(name for _, name in others), [0, 0, 1], forge.size(message), forge.crc(message)]
    return record(message, header={"base": False, "step": 2, **header}, table=table)


def one_of_many_chunks_touched_often() -> bytes:
    table, content = chunks(100_000)
    crcs = forge.checksum(table[4])
    large = record(content, header={"sequence": 2, "step": 1, "digest": crcs}, table=table)
    return forge.run(A, large, touching(*[(len(large), header_checksum(large))] * 256, sequence=3))


def rows_of_nothing() -> bytes:
    message = msgspec.msgpack.encode(state(2))
    table = [[], b"", [0, 0, 0] * 100_000 + [0, 0, 1], forge.size(message), forge.crc(message)]
    return forge.run(A, record(message, header={"sequence": 2, "step": 2}, table=table))


def a_table_of_chunks_alone() -> bytes:
    message = msgspec.msgpack.encode(state(2))
    table = [[], b"", [0, 0, 1], struct.pack("<I", 1) * 200_000, bytes(800_000)]
    return forge.run(A, record(message, header={"sequence": 2, "step": 2}, table=table))


def distances_alone() -> bytes:
    return forge.run(A, touching(*[(1, bytes(8))] * 200_000, sequence=2))


def a_record_inside_another() -> bytes:
    inner = saved(1)
    outer = record(inner * 2, header={"sequence": 2, "step": 4}, frame=forge.raw_frame(inner * 2))
    at = outer.index(inner)
    return forge.run(A, outer, touching((len(outer) - at, header_checksum(inner)), sequence=3))


def records_that_overlap() -> bytes:
    inner = record(b"\xc0", header={"sequence": 3, "step": 3})
    outer = record(inner, header={"sequence": 2, "step": 2}, frame=forge.raw_frame(inner))
    return forge.run(A, outer)[: -len(outer)] + outer[: outer.index(inner) + len(inner)]


def marks_alone() -> bytes:
    return forge.run(A) + b"PKCF" * 250_000


def trailers_of_one_header() -> bytes:
    """Trailers with their checksums right, each of which claims a record that begins with the same large header."""
    large = saved(1, meta={"k": "m" * 900_000})
    data, trailers = forge.run(A) + large, b""
    for n in range(3_000):
        tail = forge.SKIPPABLE + struct.pack("<I4sQ8s", 32, b"FCKE", len(large) + 40 * (n + 1), bytes(8))
        trailers += tail + forge.checksum(tail) + b"PKCF"
    return data + trailers


def beginnings_alone() -> bytes:
    return forge.run(A) + (forge.SKIPPABLE + struct.pack("<I", 500_000) + b"FCKR") * 100_000 + B


def tombstones_of_many_ranges() -> bytes:
    """Ranges that do not meet, the last one first."""
    ranges = [[3 * n, 3 * n] for n in range(40_000, 0, -1)]
    return forge.run(A, tombstone(2, ranges), tombstone(3, [[a + 1, b + 1] for a, b in ranges]), saved(1, 4))


def many_small_records() -> bytes:
    return forge.run(A, *[tombstone(n, [[n, n]]) for n in range(2, 1500)], saved(1, 1500))


def a_bomb_in_a_run() -> bytes:
    bomb = bytes(900 << 20)
    table = [[], b"", [0, 0, 1], forge.size(bomb), bytes(4)]
    return forge.run(
        A, record(b"", header={"sequence": 2, "step": 1, "message": len(bomb)}, table=table, content=b"", frame=forge.compress(bomb)), saved(2, 3)
    )


def a_message_of_two_generations() -> bytes:
    """The last record refers to what lies before its stream's newest base."""
    return forge.run(A, B, C, touching((len(A + B + C), header_checksum(A)), sequence=4, step=3), saved(4))


def a_message_of_another_stream() -> bytes:
    other = saved(1, stream="another")
    return forge.run(A, other, forge.difference([A, other], 1, b"", header={"step": 2}))


def streams_that_hold_each_other_up() -> bytes:
    parts = [saved(0), saved(0, 2, stream="b")]
    for n in range(3, 40):
        stream = "b" * (n % 2)
        parts.append(touching((sum(map(len, parts[n % 2 :])), header_checksum(parts[n % 2])), sequence=n, step=n, stream=stream))
    return forge.run(*parts, tombstone(40, [[3, 30]]), tombstone(41, [[3, 30]], stream="b"))


def a_single_that_says_run() -> bytes:
    return forge.run(record(b"\xc0"))


def a_run_that_says_single() -> bytes:
    return forge.file_header() + A + B + C


def a_base_in_the_middle_of_a_lie() -> bytes:
    return forge.run(A, saved(1, base=False), saved(2, base=False), tombstone(4, [[0, 1]]))


def a_tombstone_alone() -> bytes:
    return forge.run(tombstone(1, [[0, None]]))


def nothing_but_a_header() -> bytes:
    return forge.run()


FILES: list[Callable[[], bytes]] = [
    one_of_many_chunks_touched_often, rows_of_nothing, a_table_of_chunks_alone, distances_alone, a_record_inside_another, records_that_overlap, marks_alone,
    trailers_of_one_header, beginnings_alone, tombstones_of_many_ranges, many_small_records, a_bomb_in_a_run, a_message_of_two_generations,
    a_message_of_another_stream, streams_that_hold_each_other_up, a_single_that_says_run, a_run_that_says_single, a_base_in_the_middle_of_a_lie,
    a_tombstone_alone, nothing_but_a_header,
]  # fmt: skip


@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__.replace("_", "-"))
def test_files_that_lie(make: Callable[[], bytes]) -> None:
    """FAULTS F1, F6, F12, E6: files that are made to cost memory or time, or whose records lie about each other."""
    use_everything(make(), lambda one: True)


@pytest.mark.parametrize("name", LIES, ids=lambda name: name.replace(" ", "-"))
def test_tables_that_lie(name: str) -> None:
    """FAULTS E6, F6: rows out of range, counts without end, distances to itself, forward or before the file, through every public reader."""
    use_everything(forge.run(FIRST, SECOND, THIRD, LIES[name], GOOD), lambda one: True, commands=False)


def test_rows_of_nothing_are_refused(tmp_path: Path) -> None:
    """FAULTS F12: a row of no chunks is damage, so that there are no more rows than chunks, of which there are at most 2^20."""
    (tmp_path / NAME).write_bytes(rows_of_nothing())
    with pytest.raises(CorruptError, match="row of the table"):
        fastckpt.load(tmp_path / NAME)


def test_many_ranges_in_many_records() -> None:
    """FAULTS F6: what records retire is told in a time that grows with how much they say, not with its square."""
    retired, began = Retired(), time.process_time()
    for offset in range(4):
        retired.add([(8 * n + 2 * offset, 8 * n + 2 * offset) for n in range(60_000, 0, -1)])
    assert time.process_time() - began < SLOW
    assert 8 in retired
    assert 9 not in retired
    retired.add([(2**70, None), (-5, -9), (9, 9)])
    assert 9 in retired
    assert -6 not in retired


def test_ranges_by_either_way() -> None:
    """Ranges that are added one by one and all at once retire the same steps, reversed and endless ones among them."""
    pick = random.Random(3)
    for _ in range(200):
        ends = [(pick.randrange(-50, 400), pick.choice([None, *[pick.randrange(-50, 400)] * 60])) for _ in range(pick.randrange(17, 60))]
        at_once, one_by_one = Retired(), Retired()
        at_once.add(ends)
        for each in ends:
            one_by_one.add([each])
        expected = [step for step in range(-60, 420) if any(first <= step and (last is None or step <= last) for first, last in ends)]
        assert [step for step in range(-60, 420) if step in at_once] == expected
        assert [step for step in range(-60, 420) if step in one_by_one] == expected


@pytest.mark.parametrize("key", ["meta", "metrics", "config", "retires", "colour"])
def test_f3_depth_of_a_header_in_a_small_thread(key: str) -> None:
    """FAULTS F3: a header that nests as deep as it will, looked at in a thread of 256 KiB: an error of ours or none, and no crash."""
    units = (b"\x91", b"\x81\xa1k", b"\xdc\0\1", b"\xdf\0\0\0\1\x01")
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        path = Path(folder) / NAME

        def look() -> None:
            for unit in units:
                for depth in (200, 600, 900, 980, 5000, 200_000):
                    deep = msgspec.Raw(b"\x81\xa1k" + unit * depth + b"\xc0")
                    path.write_bytes(forge.run(A, saved(1, **{key: deep})))
                    for _, use in [*readers(path)][:12]:
                        with contextlib.suppress(CheckpointError):
                            use()

        def in_thread() -> None:
            warnings.simplefilter("ignore", CheckpointWarning)
            failed: list[BaseException] = []
            threading.excepthook = lambda args: failed.append(args.exc_value or AssertionError(args.exc_type))
            threading.stack_size(256 * 1024)
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            if failed:
                raise failed[0]

        in_child(in_thread, timeout=SECONDS)
