"""The tests can fail: each wrong edit of the product is found by a test, because a checkpoint is lost or a wrong one is loaded.

FAULTS A6. A mutant of the disk work changes the product's stream of calls (`faults`, section 5), a mutant of the format takes
checksums out. MUTANTS says for each which test kills it: the test is called as it stands, first with the product as it is,
then with the mutant, and there it must end in `Lost`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import struct
import tracemalloc
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import forge
import msgspec
import pytest
import test_compaction_crash
import test_crash
import test_every_call
import test_io_errors
import test_journal_crash
import test_journal_damage
import test_journal_processes
import zstandard
from faults import (
    PUBLISH,
    SAVE,
    FixedTemporaryName,
    InPlace,
    Lost,
    ModelStorage,
    NoDirectorySync,
    NoFileSync,
    NoParentSync,
    NoSyncError,
    NoTemporarySync,
    ReplaceFirst,
    ShortWriteIgnored,
    Subject,
    SyncAfterReplace,
    SyncAgain,
    contents,
    is_one_of,
    load_or_none,
    unchanged,
)
from support import assert_same, count

import fastckpt
from fastckpt import compaction, container
from fastckpt.errors import CheckpointError, LimitError, LockedError
from fastckpt.journal import Journal
from fastckpt.reader import Damage, Entry, Reader
from fastckpt.storage import Storage, explained
from fastckpt.stream import Stream

# Mutants of the disk work


class Kill(NamedTuple):
    """A mutant, and the test of the suite that finds it."""

    mutant: Callable[[Any], Any]
    test: Callable[..., None]


MUTANTS = [
    Kill(NoFileSync, test_crash.test_a1_first_save_ever),
    Kill(NoFileSync, test_crash.test_a1_overwrite),
    Kill(NoFileSync, test_crash.test_a3_torn_at_every_sector),
    Kill(NoDirectorySync, test_crash.test_a1_first_save_ever),
    Kill(NoDirectorySync, test_crash.test_a1_overwrite),
    Kill(NoParentSync, test_crash.test_a1_directories_made),
    Kill(NoParentSync, test_crash.test_a1_directories_made_by_a_process_that_was_killed),
    Kill(NoParentSync, partial(test_crash.test_a1_directories_made_by_a_save_that_failed, kind="write")),
    Kill(ReplaceFirst, test_crash.test_a1_first_save_ever),
    Kill(ReplaceFirst, test_crash.test_a1_overwrite),
    Kill(SyncAfterReplace, test_crash.test_a1_overwrite),
    Kill(InPlace, test_crash.test_a1_overwrite),
    Kill(SyncAgain, partial(test_io_errors.test_b4_sync_of_the_file_fails, times=1, first=False, code=5)),
    Kill(NoSyncError, partial(test_io_errors.test_b4_sync_of_the_file_fails, times=1, first=False, code=28)),
    Kill(ShortWriteIgnored, test_io_errors.test_b2_one_short_write),
    Kill(FixedTemporaryName, test_crash.test_d1_a_save_inside_a_save),
]


# Which tests have passed without a mutant, so that each does so once.
PASSED: set[tuple[str, str]] = set()


def name_of(kill: Kill) -> str:
    test = kill.test.func if isinstance(kill.test, partial) else kill.test
    return f"{kill.mutant.__name__}-{test.__name__}"


@pytest.mark.parametrize("subject", [PUBLISH, SAVE], ids=lambda subject: subject.name)
@pytest.mark.parametrize("kill", MUTANTS, ids=name_of)
def test_mutant_is_killed(kill: Kill, subject: Subject) -> None:
    """FAULTS A6: the test passes with the product as it is, and with the mutant it finds a checkpoint lost."""
    if (key := (name_of(kill).partition("-")[2], subject.name)) not in PASSED:
        kill.test(subject=subject, product=unchanged)
        PASSED.add(key)
    with pytest.raises(Lost):
        kill.test(subject=subject, product=kill.mutant)
    count("mutants killed")


def test_harmless_mutant_survives() -> None:
    """The harness is no mere spy: a mutant that only makes useless calls besides passes the tests."""

    class Fussy(NoFileSync):
        def call(self, name: str, *arguments: Any) -> Any:
            if name == "replace":
                self.inner.stat(arguments[0])
                self.inner.list("/disk")
            return self.inner.sync(*arguments) if name == "sync" else super().call(name, *arguments)

    test_crash.test_a1_overwrite(subject=PUBLISH, product=Fussy)


# Mutants of the format


@contextlib.contextmanager
def without_crc() -> Iterator[None]:
    """Our checksums of the frame and of its chunks are taken out: whatever is compared is the same."""
    with mock.patch.object(container, "zlib", SimpleNamespace(crc32=lambda data: 0)):
        yield


@contextlib.contextmanager
def without_any_checksum_of_the_frame() -> Iterator[None]:
    """Ours are taken out, and zstd's own with them."""

    def compressor(**options: Any) -> zstandard.ZstdCompressor:
        return zstandard.ZstdCompressor(**{**options, "write_checksum": False})

    def parameters(frame: bytes) -> Any:
        found = zstandard.get_frame_parameters(frame)
        return SimpleNamespace(content_size=found.content_size, has_checksum=True, dict_id=found.dict_id, window_size=found.window_size)

    fake = SimpleNamespace(
        ZstdCompressor=compressor, ZstdDecompressor=zstandard.ZstdDecompressor, ZstdError=zstandard.ZstdError, get_frame_parameters=parameters
    )
    with without_crc(), mock.patch.object(container, "zstandard", fake):
        yield


@contextlib.contextmanager
def without_checksum_of_the_header() -> Iterator[None]:
    """The checksums of headers, tables and trailers, and the digest, are not compared."""
    with mock.patch.object(container, "_require", return_value=None):
        yield


PATH = "/checkpoint.fastckpt"


def file_of(state: Any) -> bytes:
    """The bytes of a file that holds `state`."""
    model = ModelStorage()
    fastckpt.save(PATH, state, storage=model)
    return bytes(model.root.entries["checkpoint.fastckpt"].content)


def require_whole(data: bytes, state: Any, told: str) -> None:
    """`data` loads as `state` or ends in a `CheckpointError`."""
    found = load_or_none(SAVE, PATH, ModelStorage({PATH: data}))
    if not isinstance(found, CheckpointError) and not is_one_of(found, [state]):
        raise Lost(f"{told}: loaded {found!r}")


def test_e1_every_bit_of_the_frame() -> None:
    """FAULTS E1: any single bit of the frame flipped: an error, or the identical state."""
    state = {"step": 7, "answers": ["a", "b", "d"]}
    whole = file_of(state)
    for bit in range(8 * whole.index(zstandard.FRAME_HEADER), 8 * (len(whole) - container.TRAILER_SIZE)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        require_whole(bytes(flipped), state, f"bit {bit} flipped")


def test_e1_every_bit_of_the_file() -> None:
    """FAULTS E1: any single bit of the file flipped: an error, or the identical state."""
    state = {"step": 7, "answers": ["a", "b", "d"]}
    whole = file_of(state)
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        require_whole(bytes(flipped), state, f"bit {bit} flipped")


def test_e1_every_bit_of_what_inspect_says() -> None:
    """FAULTS E1: any single bit of the file flipped: `inspect`, which reads the headers alone, says the same or ends in an error."""
    whole = file_of({"step": 7})

    def inspected(data: bytes) -> Any:
        try:
            return fastckpt.inspect(PATH, storage=ModelStorage({PATH: data}))
        except CheckpointError:
            return None

    truth = inspected(whole)
    assert truth is not None
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        if not is_one_of(found := inspected(bytes(flipped)), [truth, None]):
            raise Lost(f"bit {bit} flipped: {found!r}")


def test_e5_frame_of_another_checkpoint() -> None:
    """FAULTS E5: the frame of another checkpoint, valid in itself and of the same length, in the place of ours: an error."""
    mine, theirs = ({"step": 1, "answer": text} for text in ("quick", "brown"))
    ours, others = file_of(mine), file_of(theirs)
    start, end = ours.index(zstandard.FRAME_HEADER), len(ours) - container.TRAILER_SIZE
    there = others.index(zstandard.FRAME_HEADER)
    frame = others[there : len(others) - container.TRAILER_SIZE]
    assert len(frame) == end - start
    require_whole(ours[:start] + frame + ours[end:], mine, "another frame")


FORMAT_MUTANTS = [
    (without_crc, test_e5_frame_of_another_checkpoint),
    (without_any_checksum_of_the_frame, test_e1_every_bit_of_the_frame),
    (without_any_checksum_of_the_frame, test_e5_frame_of_another_checkpoint),
    (without_checksum_of_the_header, test_e1_every_bit_of_what_inspect_says),
]


@pytest.mark.parametrize(("mutant", "test"), FORMAT_MUTANTS, ids=lambda value: value.__name__)
def test_mutant_of_the_format_is_killed(mutant: Callable[[], Any], test: Callable[[], None]) -> None:
    """FAULTS A6: with a checksum taken out the test finds a wrong state loaded."""
    with mutant(), pytest.raises(Lost):
        test()
    count("mutants killed")


def test_frame_checksum_is_not_alone() -> None:
    """Each of the frame's checksums (ours over the frame, ours over its chunks, zstd's own) finds every flipped bit by itself."""
    state = {"step": 7, "answers": ["a", "b", "d"]}
    whole = file_of(state)
    frame = whole[whole.index(zstandard.FRAME_HEADER) : -container.TRAILER_SIZE]
    content = zstandard.ZstdDecompressor().decompress(frame)
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        assert zlib.crc32(flipped) != zlib.crc32(frame)
        with contextlib.suppress(zstandard.ZstdError):
            decoded = zstandard.ZstdDecompressor().decompress(bytes(flipped), max_output_size=len(content))
            assert decoded == content or zlib.crc32(decoded) != zlib.crc32(content)


# Mutants of a run's file


def patched(target: Any, name: str, value: Any, **options: Any) -> Callable[[], Any]:
    return lambda: mock.patch.object(target, name, value, **options)


def no_sync_of_appends(journal: Journal) -> None:
    """The sync of the data is taken out of appends."""


def no_cut(journal: Journal) -> None:
    """After a failed write nothing is cut, and the next append goes on."""
    journal._poisoned, journal._size = False, journal._storage.stat(journal._file.fd).st_size


def cut_without_sync(journal: Journal) -> None:
    """After a failed write the cut is not synced."""
    journal._storage.truncate(journal._file.fd, journal._end)
    journal._poisoned, journal._size = False, journal._end


def sync_again(journal: Journal) -> None:
    """A failed sync does not poison: the next one of the same file is believed."""
    with explained(journal.path, "sync"):
        try:
            journal._storage.sync_data(journal._file.fd)
        except OSError:
            journal._poisoned = False
            journal._size = -1
            raise


def find_end_that_cuts(self: Reader, size: int) -> tuple[int, Entry | None, Damage | None]:
    """Whatever does not verify at the end is torn."""
    end, newest, damage = FIND_END(self, size)
    if damage is None or newest is None:
        return end, newest, damage
    while newest is not None and self._flaw(newest):
        newest = self.previous(newest)
    return (newest.offset + newest.length if newest else end), newest, damage._replace(torn=True)


FIND_END = Reader._find_end


def end_by_trailer_alone(self: Reader, size: int) -> tuple[int, Entry | None, Damage | None]:
    """The newest record is the last whose header and trailer are there; table and frame are not looked at."""
    with mock.patch.object(Reader, "_flaw", return_value=""):
        return FIND_END(self, size)


def only_the_newest(self: Reader, newest: Entry) -> Any:
    """What was not synced before the newest record is not looked at."""
    fact = self._flaw(newest)
    return (newest.offset, self._lost_sector(newest.offset, newest.length, newest.header), fact) if fact else None


def touched_unchecked(self: Reader, entry: Entry, table: container.Table) -> list[Entry]:
    """The header checksum by which a table names a record is not compared."""
    return [entry, *(self._entry_at(entry.offset - distance, distance) for distance in table.distances)]


def entries_in_any_order(self: Reader) -> Iterator[Entry]:
    """Sequence numbers are not looked at."""
    entry = self.newest
    while entry is not None:
        yield entry
        entry = self.previous(entry)


def wrong_generation() -> None:
    """FAULTS E5, E6: a difference behind another base than the one it was made for, of the same shape: an error, never a wrong message."""
    bases = [forge.record(letter * 300, header={"step": 0}) for letter in (b"A", b"B")]
    assert len({*map(len, bases)}) == 1
    digest = forge.checksum(forge.crc(b"A" * 300) + forge.crc(b"new"))
    data = forge.run(bases[1], forge.difference([bases[0]], 0, b"new", header={"step": 1, "digest": digest}))
    with closing(Reader(PATH, storage=ModelStorage({PATH: data}))) as reader:
        assert reader.newest is not None
        try:
            raise Lost(f"read {reader.read(reader.newest)!r}")
        except CheckpointError:
            pass


@contextlib.contextmanager
def no_checksums_in_tables() -> Iterator[None]:
    """Neither the header checksum in the table is compared nor what would find it out after it, the digest."""
    with without_checksum_of_the_header(), mock.patch.object(Reader, "_touched", touched_unchecked):
        yield


RUN_MUTANTS: list[tuple[str, Callable[[], Any], Callable[[], object]]] = [
    ("no sync on append", patched(Journal, "_sync_data", no_sync_of_appends), test_journal_crash.test_a1_appends),
    (
        "no sync of what a killed writer left",
        patched(Journal, "_vouch", lambda self: 0),
        partial(test_journal_crash.test_a1_killed_and_gone_on_with, then=100),
    ),
    ("no cut after a failed write", patched(Journal, "_cut", no_cut), partial(test_journal_crash.test_a9_tail_of_a_failed_write, what="write")),
    (
        "the cut is not synced",
        patched(Journal, "_cut", cut_without_sync),
        test_journal_crash.test_a9_tail_of_a_failed_write_before_appends_without_sync,
    ),
    ("synced again", patched(Journal, "_sync_data", sync_again), partial(test_journal_crash.test_a9_poisoned_file_is_rewritten, nth=1)),
    (
        "torn because it does not verify",
        patched(Reader, "_find_end", find_end_that_cuts),
        partial(test_journal_damage.test_e11_every_bit_of_the_last_record, zeros=False),
    ),
    ("end by the trailer alone", patched(Reader, "_find_end", end_by_trailer_alone), test_journal_crash.test_a1_appends),
    ("no look for lost sectors", patched(Reader, "_lost_sector", lambda *a: False), test_journal_crash.test_a3_torn_at_every_sector),
    (
        "a lost sector wherever zeros are",
        patched(Reader, "_lost_sector", lambda self, start, length, header: bytes(512) in self._read(length, start)),
        partial(test_journal_damage.test_e11_every_bit_of_the_last_record, zeros=True),
    ),
    (
        "unsynced records not looked at",
        patched(Reader, "_oldest_flaw", only_the_newest),
        test_journal_crash.test_a3_unsynced_appends_torn_at_every_sector,
    ),
    ("no copy of what is cut", patched(Journal, "_keep_aside", lambda self, make: None), test_journal_crash.test_a1_appends),
    ("no checksums in tables", no_checksums_in_tables, wrong_generation),
    (
        "no sequence check",
        patched(Reader, "entries", entries_in_any_order),
        partial(test_journal_damage.test_e5_records_out_of_place, place="tail twice"),
    ),
]


@pytest.mark.parametrize(("mutant", "test"), [pair[1:] for pair in RUN_MUTANTS], ids=[pair[0].replace(" ", "-") for pair in RUN_MUTANTS])
def test_mutant_of_the_journal_is_killed(mutant: Callable[[], Any], test: Callable[[], object]) -> None:
    """FAULTS A6: the test (it stands in its own module, and passes there) finds a step lost, a wrong one, or a crash and damage confused."""
    with mutant(), pytest.raises(Lost):
        test()
    count("mutants killed")


# Mutants of a compaction


def in_crashes(product: Callable[[Storage], Storage], *, sparse: bool = False) -> Callable[[], object]:
    return partial(test_compaction_crash.test_a7_crash_while_compacting, sparse=sparse, product=product)


COMPACTION_MUTANTS: list[tuple[str, Callable[[], Any], Callable[[], object]]] = [
    ("no sync of the new file", contextlib.nullcontext, in_crashes(NoTemporarySync)),
    ("no sync of the new file, packed anew", contextlib.nullcontext, in_crashes(NoTemporarySync, sparse=True)),
    ("no sync of the directory", contextlib.nullcontext, in_crashes(NoDirectorySync)),
    ("replaced, and synced only then", contextlib.nullcontext, in_crashes(SyncAfterReplace)),
    (
        "what is appended meanwhile is not copied",
        patched(Journal, "_appended", lambda *a: iter(())),
        test_compaction_crash.test_what_is_compacted_goes_on,
    ),
    ("streams go on at the old places", patched(Stream, "moved", lambda self, where: self), test_compaction_crash.test_what_is_compacted_goes_on),
    (
        "dead states copied without what retired them",
        patched(compaction, "_all_live", lambda stretch: any(record.live for record in stretch)),
        test_compaction_crash.test_what_is_compacted_goes_on,
    ),
]


@pytest.mark.parametrize(
    ("mutant", "test"), [pair[1:] for pair in COMPACTION_MUTANTS], ids=[pair[0].replace(" ", "-") for pair in COMPACTION_MUTANTS]
)
def test_mutant_of_a_compaction_is_killed(mutant: Callable[[], Any], test: Callable[[], object]) -> None:
    """FAULTS A6: the test (it stands in its own module, and passes there) finds a step lost, back from the dead, or unreadable."""
    with mutant(), pytest.raises(Lost):
        test()
    count("mutants killed")


@pytest.mark.parametrize("happens", test_journal_processes.HAPPENINGS, ids=lambda happens: happens.__name__)
def test_mutant_without_identity_check_is_killed(happens: Callable[[Path], None], tmp_path: Path) -> None:
    """FAULTS A6, E12: without the look at what is by the name of the file, a step is acknowledged that nobody will find there."""

    def acknowledged_and_lost() -> bool:
        path = tmp_path / "checkpoint.fastckpt"
        journal = Journal(path, lock=False)
        journal.append(b"first" * 100, step=0)
        journal.append(b"second" * 100, step=1, sync=False)
        happens(path)
        there = load_or_none(RUN_SUBJECT, str(path)) or []
        try:
            journal.append(b"third", step=2)
        except CheckpointError:
            return False
        return load_or_none(RUN_SUBJECT, str(path)) != [*there, b"third"]

    folder = tmp_path
    tmp_path = folder / "product"
    tmp_path.mkdir()
    (tmp_path / "checkpoint.fastckpt.lock").touch()
    assert not acknowledged_and_lost()
    tmp_path = folder / "mutant"
    tmp_path.mkdir()
    (tmp_path / "checkpoint.fastckpt.lock").touch()
    with mock.patch.object(Journal, "_check_identity"):
        assert acknowledged_and_lost()


RUN_SUBJECT = Subject("run", lambda *a: None, lambda path, storage: [message for _, message in contents(path, storage) or []], ())


def test_mutant_without_lock_is_killed(tmp_path: Path) -> None:
    """FAULTS A6, D2: without the lock (and the look at the file's size) two writers overwrite each other's acknowledged steps."""
    with mock.patch.object(Storage, "lock", return_value=True), mock.patch.object(Journal, "_check_identity"):
        path = tmp_path / "checkpoint.fastckpt"
        first = Journal(path)
        first.append(b"first", step=0)
        second = Journal(path)
        first.append(b"one", step=1)
        second.append(b"other", step=1)
        assert [message for _, message in contents(str(path)) or []] != [b"first", b"one", b"other"]
    with closing(Journal(tmp_path / "b.fastckpt")), pytest.raises(LockedError):
        Journal(tmp_path / "b.fastckpt")


# Mutants of the caps

LARGE = bytes(container.most_stored(3) + (1 << 20))


def caps() -> None:
    """FAULTS F1, F12: files of a few kB that hold more than a frame may, in a message or beside a small one, of one checkpoint and of a run: refused, in little memory."""
    apart = [[], b"", [0, 0, 1], struct.pack("<2I", 3, len(LARGE) - 3), struct.pack("<2I", zlib.crc32(LARGE[:3]), zlib.crc32(LARGE[3:]))]
    message, beside = forge.record(LARGE), forge.record(LARGE[:3], table=apart, content=LARGE)
    for name, data in (("a large message", message), ("more than its message", beside)):
        for whole in (forge.file_header() + data, forge.run(data)):
            tracemalloc.start()
            try:
                found: Any = fastckpt.load(PATH, max_size=1 << 20, storage=ModelStorage({PATH: whole}))
            except CheckpointError as error:
                found = error
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            if peak > 8 << 20 or not isinstance(found, LimitError):
                raise Lost(f"{name}: {found!r:.100}, {peak} bytes taken")


CHECK_LENGTHS = container.check_lengths


def lengths_without_cap(*arguments: Any, **options: Any) -> int:
    """The message's length is not compared with `max_size`."""
    return CHECK_LENGTHS(*arguments, **{**options, "max_size": 1 << 64})


CAP_MUTANTS: dict[str, Callable[[], Any]] = {
    "no cap on a checkpoint": patched(container, "check_lengths", lengths_without_cap),
    "no cap on a step of a run": patched(Reader, "_max_size", property(lambda self: 1 << 62, lambda self, value: None), create=True),
    "no cap on what a frame holds": patched(container, "most_stored", lambda message: 1 << 62),
}


@pytest.mark.parametrize("name", CAP_MUTANTS, ids=lambda name: name.replace(" ", "-"))
def test_mutant_without_a_cap_is_killed(name: str) -> None:
    """FAULTS A6, F1, F12: with a cap taken out a small file takes the memory that it likes; the product refuses it."""
    if "caps" not in {test for test, _ in PASSED}:
        caps()
        PASSED.add(("caps", ""))
    with CAP_MUTANTS[name](), pytest.raises(Lost):
        caps()
    count("mutants killed")


# Mutants, operation by operation

WRITERS = [name for name, operation in test_every_call.OPERATIONS.items() if not operation.reads]
# An append needs the directory's sync only where a killed writer may have left one undone; so does a compaction whose result a crash may undo.
NO_NEW_NAME = {"manager, close", "manager, close in the background", "compact", *(name for name in WRITERS if name.startswith("open"))} - {
    "open, adopting"
}
EVERYWHERE = [
    *((NoFileSync, name) for name in WRITERS if name != "drop-in, remove"),
    *((NoDirectorySync, name) for name in WRITERS if name not in NO_NEW_NAME),
    *((SyncAgain, name) for name in ("save, over", "manager, save", "manager, delete", "manager, close", "open", "migrate", "drop-in, write")),
]


@pytest.mark.parametrize(("mutant", "name"), EVERYWHERE, ids=[f"{mutant.__name__}-{name}".replace(" ", "-") for mutant, name in EVERYWHERE])
def test_mutant_is_killed_in_every_operation(mutant: Callable[[Storage], Storage], name: str) -> None:
    """FAULTS A6: with a sync taken out, or repeated, the test of that operation's every call (it passes without) finds a state lost."""
    with pytest.raises(Lost):
        test_every_call.test_every_call_of_every_operation_fails(name=name, times=1, cleanly={}, product=mutant)
    count("mutants killed")


#: What a wrong edit may take out → the mutants in which it is, as the tests above name them.
TAKEN_OUT = {
    "the file's sync": ["NoFileSync", "no sync on append", "the cut is not synced"],
    "the directory's sync": ["NoDirectorySync", "NoParentSync", "no sync of what a killed writer left"],
    "the order": ["ReplaceFirst", "SyncAfterReplace", "InPlace"],
    "the lock": ["test_mutant_without_lock_is_killed"],
    "the poisoning": ["SyncAgain", "NoSyncError", "synced again"],
    "the inode check": ["test_mutant_without_identity_check_is_killed"],
    "the frame's checksum": ["without_crc", "without_any_checksum_of_the_frame"],
    "the headers' checksums in tables": ["no checksums in tables"],
    "the caps": [*CAP_MUTANTS],
}


def test_everything_is_taken_out_once() -> None:
    """FAULTS A6: there is a mutant for each kind of protection, in the tables of this module."""
    known = {kill.mutant.__name__ for kill in MUTANTS} | {mutant.__name__ for mutant, _ in FORMAT_MUTANTS}
    known |= (
        {name for name, *_ in (*RUN_MUTANTS, *COMPACTION_MUTANTS)} | {*CAP_MUTANTS} | {name for name in globals() if name.startswith("test_mutant")}
    )
    assert {name for names in TAKEN_OUT.values() for name in names} <= known


# The comparison that every test of a round trip leans on


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = dataclasses.field(default=0, compare=False)


class Packed(msgspec.Struct):
    x: Any


class Colour(enum.Enum):
    RED = "red"


class Text(str):
    pass


DIFFERENT = [
    (1, True), (1, 1.0), (0.0, -0.0), (float("nan"), 0.0), ("a", b"a"), ("a", Text("a")), ([1], (1,)), ({1}, frozenset({1})),
    ({1}, {True}), ({1}, {1.0}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1: "a"}, {True: "a"}), ({"a": 0.0}, {"a": -0.0}),
    ([1, 2], [1]), ([[1]], [[1.0]]), ({(1,)}, {(True,)}),
    (Point(1), Point(1.0)), (Point(1, 0), Point(1, 1)), (Packed(1), Packed(True)), (Point(1), Packed(1)), (Colour.RED, "red"),
    (None, False), ("", None),
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")), (dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2020, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))),
    (dt.datetime(2020, 1, 1, fold=0), dt.datetime(2020, 1, 1, fold=1)), (Path("a"), "a"), (uuid.UUID(int=1), 1), (b"a", bytearray(b"a")),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), DIFFERENT, ids=repr)
def test_assert_same_sees_the_difference(a: Any, b: Any) -> None:
    """What `==` may take for equal is told apart, both ways round, also deep inside, and the report can be printed."""
    for left, right in ((a, b), (b, a), ([{"k": (a,)}], [{"k": (b,)}])):
        with pytest.raises(AssertionError) as caught:
            assert_same(left, right)
        str(caught.value).encode("utf-8")


def same_twice(make: Callable[[], Any]) -> tuple[Any, Any]:
    return make(), make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: float("nan"), lambda: [float("nan"), {"x": float("nan")}], lambda: {float("nan"), 1.0},
        lambda: -0.0, lambda: {"b": 1, "a": [None, "\ud800"]},
        lambda: Point(Packed({1, 2}), frozenset({"a"})), lambda: {i: str(i) for i in range(1000)}, lambda: set(range(5000)),
        lambda: Colour.RED, lambda: 2**128,
        lambda: decimal.Decimal("NaN"), lambda: dt.datetime(2020, 1, 1, tzinfo=dt.UTC), lambda: dt.date(2020, 1, 1),
        lambda: uuid.UUID(int=5),
        lambda: Path("a"), lambda: dt.timedelta(1), lambda: bytearray(b"x"), lambda: (), lambda: None,
    ],
)  # fmt: skip
def test_assert_same_accepts_what_is_the_same(make: Callable[[], Any]) -> None:
    """Two values made alike are the same, NaN and lone surrogates included."""
    assert_same(*same_twice(make))


def test_assert_same_sees_extra_attributes() -> None:
    """An attribute that is no field, or one that is missing, is a difference."""
    a, b = Point(1), Point(1)
    a.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        assert_same(a, b)
    with pytest.raises(AssertionError):
        assert_same(Point(1), object.__new__(Point))
