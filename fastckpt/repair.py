"""A damaged run mended: what is readable moves into a new file, and the old one is kept aside, for nothing here destroys anything.

from fastckpt.repair import repair

done = repair("runs/a/checkpoint.fastckpt")
print([header.step for header in done.kept], done.lost, done.aside)
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from itertools import chain, islice, zip_longest
from os import PathLike, fspath
from typing import NamedTuple

from . import container
from .container import FILE_HEADER_SIZE, MAGIC, RecordHeader
from .errors import CheckpointError, CorruptError, DurabilityError, LimitError, StorageError
from .journal import Journal
from .lock import Lock
from .reader import Damage, Entry, Reader, Retired
from .storage import DISK, Storage, explained, open_file, publish, read_at, sweep, sync_folder, temporary_name

__all__ = ["Lost", "Repair", "marked", "repair"]

_PIECE = 1 << 20
# How a record begins (FORMAT.md): a skippable frame, its length, the tag.
_RECORD = re.compile(re.escape(MAGIC[:4]) + b".{4}FCKR", re.DOTALL)
_ASIDE = re.compile(r"\.aside\.[0-9]+", re.ASCII)
_BACKUP = "nothing was changed: restore it from a backup"


class Lost(NamedTuple):
    """What could not be kept: a state of which the header is left (its number and step), or bytes that are no record (None); and why."""

    sequence: int | None
    step: int | None
    fact: str


class Repair(NamedTuple):
    """What a repair did: the headers of the states that it kept, oldest first, what is lost, and where the old file is.

    `aside` is None when there was nothing to do; then `kept` and `lost` are empty, and nothing was written.
    """

    kept: list[RecordHeader]
    lost: list[Lost]
    aside: str | None


def marked(reader: Reader) -> Iterator[tuple[Entry, bool]]:
    """Every record of a file, newest first, and whether it is a live state; read as they are asked for."""
    return _marked(reader.entries())


def _marked(entries: Iterator[Entry]) -> Iterator[tuple[Entry, bool]]:
    retired: dict[str, Retired] = {}
    lowest: int | None = None  # a run's live steps rise: one that does not was retired by a record that is lost
    for entry in entries:
        header = entry.header
        ranges = retired.setdefault(header.stream, Retired())
        step = header.step
        live = header.kind == "state" and (step is None or step not in ranges)
        if live and step is not None and not header.stream:
            live = lowest is None or step < lowest
            lowest = step if live else lowest
        yield entry, live
        ranges.add(header.retires)


def repair(path: str | PathLike[str], *, lock: bool = True, storage: Storage = DISK) -> Repair:
    """Replace a damaged run by a file of every live state that is wholly readable, under its old number, step, time and metadata.

    A sound file is left alone. The old file is first set aside, durably, as `path.aside.N`; at every moment `path` is the old file
    or the new one. Steps that only a lost record had retired are live again. `lock=False` is for filesystems without locks, when
    nothing else writes the run.

    Raises `CorruptError` when nothing can be read or the file's only checkpoint is damaged, `LockedError`, `NotACheckpointError`,
    `NotFoundError`, `VersionError`, `StorageError`: `path` is as it was then. Raises `DurabilityError` when the new file is in place,
    its durability unknown.
    """
    name = os.path.abspath(fspath(path))
    # Without the lock first: what is sound, or no run, gets no lock file beside it.
    if _is_sound(name, storage):
        return Repair([], [], None)
    with explained(name, "resolve"):
        target = storage.resolve(name)
    if not lock:
        return _rebuild(target, storage)
    held = Lock(f"{target}.lock", storage)
    try:
        sweep(target, storage)
        # Again: its writer may have mended it, or was in the middle of an append.
        return Repair([], [], None) if _is_sound(name, storage) else _rebuild(target, storage)
    finally:
        held.release()


def _is_sound(path: str, storage: Storage) -> bool:
    """Whether there is nothing to mend. Raises `CorruptError` for what cannot be mended: one checkpoint alone, or no record at all."""
    with closing(Reader(path, storage=storage)) as reader:
        problem = next(reader.verify(), None)
        if problem is None:
            return True
        single = reader.single
        if reader.damage is not None and reader.damage.offset == 0:
            with open_file(path, storage) as (fd, status):
                head = read_at(fd, FILE_HEADER_SIZE, 0, storage)
                records = list(islice(_records_in(fd, FILE_HEADER_SIZE, status.st_size, None, path, storage), 2))
            # Of two records the flag of a run may be what is damaged.
            single = not records or (len(records) == 1 and not container.claims_run(head))
    if single:
        offset, fact = problem
        raise CorruptError(f"nothing can be mended of a file without other steps ({fact})", path=path, offset=offset, remedy=_BACKUP)
    return False


def _rebuild(target: str, storage: Storage) -> Repair:
    with _readable(target, storage) as source, closing(Reader(source, storage=storage)) as old:
        states, lost = _survey(old, source, storage)
        draft = temporary_name(target)
        kept: list[Entry] = []
        try:
            with closing(Journal(draft, lock=False, storage=storage)) as new:
                for entry in states:
                    try:
                        message = old.read(entry)
                    except (CorruptError, LimitError) as error:
                        error.remedy = ""  # this is it
                        lost.append(Lost(entry.sequence, entry.header.step, str(error).replace(source, target)))
                        continue
                    new.copy(entry.header, message)
                    kept.append(entry)
            if not kept:
                raise CorruptError("no step of the run can be read", path=target, remedy=_BACKUP)
            _prove(old, kept, draft, storage)
            aside = _set_aside(target, storage)
            with closing(_pieces(draft, storage)) as pieces:
                publish(target, pieces, storage=storage)
        finally:
            _discard(draft, storage)
    return Repair([entry.header for entry in kept], lost, aside)


# --- what is there ---------------------------------------------------------------------------------------------------


@contextmanager
def _readable(target: str, storage: Storage) -> Iterator[str]:
    """A path at which a `Reader` finds the records: the file's own, or that of a copy with another file header.

    A damaged file header hides all records, and says nothing that each of them does not say again.
    """
    with open_file(target, storage) as (fd, status):
        try:
            container.unpack_file_header(read_at(fd, FILE_HEADER_SIZE, 0, storage), path=target)
            first = None
        except CorruptError:
            first = next(_records_in(fd, FILE_HEADER_SIZE, status.st_size, None, target, storage), None)
    if first is None:
        yield target
        return
    mended = container.pack_file_header(first.header.file, run=True)
    copy = temporary_name(target)
    try:
        with closing(_pieces(target, storage, FILE_HEADER_SIZE)) as pieces:
            publish(copy, chain([mended], pieces), fsync=False, storage=storage)
        yield copy
    finally:
        _discard(copy, storage)


def _survey(old: Reader, path: str, storage: Storage) -> tuple[list[Entry], list[Lost]]:
    """The live states, oldest first, also those that no trailer leads to; and the bytes that are no record."""
    records: list[Entry] = []  # newest first
    with open_file(path, storage) as (fd, status):
        end, above = status.st_size, 1 << 64  # where what is known begins, and the number of the record there
        for entry in [*old.entries(), None]:
            start, below = (entry.offset + entry.length, entry.sequence) if entry else (FILE_HEADER_SIZE, 0)
            hidden: list[Entry] = []
            if start < end:
                known = entry or next(iter(records), None)
                for found in _records_in(fd, start, end, known.header.file if known else None, path, storage):
                    if (hidden[-1].sequence if hidden else below) < found.sequence < above:
                        hidden.append(found)
            records.extend(reversed(hidden))
            if entry is not None:
                records.append(entry)
                end, above = entry.offset, entry.sequence
    states = [entry for entry, live in _marked(iter(records)) if live]
    return states[::-1], list(_gaps(records[::-1], status.st_size, old.damage))


def _gaps(records: list[Entry], size: int, damage: Damage | None) -> Iterator[Lost]:
    """What no record covers, and between which steps."""
    end, step = FILE_HEADER_SIZE, None
    for entry in [*records, None]:
        start = entry.offset if entry else size
        if end < start:
            why = f" ({damage.fact})" if damage is not None and damage.offset == end else ""
            after = "" if step is None else f" after step {step}"
            before = "" if entry is None or entry.header.step is None else f" before step {entry.header.step}"
            yield Lost(None, None, f"{start - end:,} bytes at byte {end:,} that are no record{why},{after}{before}".rstrip(","))
        if entry is not None:
            end, step = entry.offset + entry.length, entry.header.step


def _records_in(fd: int, start: int, end: int, file_id: bytes | None, path: str, storage: Storage) -> Iterator[Entry]:
    """The records inside a stretch, by their headers alone: those whose trailer is damaged, and those behind damage."""
    position = start
    while position < end:
        block = read_at(fd, min(_PIECE, end - position), position, storage)
        if not block:
            return
        begin = position
        # As many bytes less as the pattern may stand across two blocks.
        position += max(len(block) - 11, 1)
        for match in _RECORD.finditer(block):
            offset = begin + match.start()
            try:
                size = container.record_header_size(read_at(fd, 12, offset, storage), end - offset, path=path, offset=offset)
                if read_at(fd, 4, offset + size, storage) != MAGIC[:4]:
                    continue  # no table behind it, without which the header is worth nothing
                header, checksum, _ = container.unpack_record_header(read_at(fd, size, offset, storage), path=path, offset=offset)
                length = container.check_lengths(header, size, end - offset, max_size=1 << 62, path=path, offset=offset)
            except CorruptError:
                continue
            if file_id in (None, header.file):
                yield Entry(header.sequence, offset, length, header, checksum)
                position = offset + length
                break


# --- what is written -------------------------------------------------------------------------------------------------


def _prove(old: Reader, kept: list[Entry], draft: str, storage: Storage) -> None:
    """Read the new file back before it takes the place of the old one: these states, and no other ones, under the same headers."""
    fact = ""
    with closing(Reader(draft, storage=storage)) as new:
        for before, after in zip_longest(reversed(kept), new.entries()):
            if before is None or after is None or _meaning(before.header) != _meaning(after.header) or old.read(before) != new.read(after):
                fact = f"record {(before or after).sequence} is another one"
                break
        fact = new.damage.fact if new.damage is not None else fact
    if fact:
        raise CheckpointError(f"the new file does not hold what was read ({fact}); nothing was changed", remedy="report this as a fault of fastckpt")


def _meaning(header: RecordHeader) -> tuple[object, ...]:
    """What a record keeps wherever it is stored; the rest of its header is of how it is."""
    named = (header.file, header.sequence, header.kind, header.stream, header.key, header.step, header.time, header.retires)
    given = (bytes(header.meta), bytes(header.metrics), bytes(header.config), header.source, header.writer)
    return *named, header.message, header.ext, *given, header.type, header.schema, header.schema_version


def _set_aside(target: str, storage: Storage) -> str:
    """A second, durable name for the file: a hard link, or a copy where there are none."""
    folder, name = os.path.split(target)
    with explained(folder, "list"):
        asides = [other for other in storage.list(folder) if other.startswith(name) and _ASIDE.fullmatch(other, len(name))]
    with explained(target, "stat"):
        identity = _identity(target, storage)
        there = next((aside for other in asides if _identity(aside := os.path.join(folder, other), storage) == identity), None)
    if there is not None:
        # A repair got as far as this and was killed.
        _sync_aside(there, storage)
        return there
    aside = f"{target}.aside.{max((int(other.rpartition('.')[2]) for other in asides), default=0) + 1}"
    try:
        storage.link(target, aside)
    except OSError:
        try:
            with closing(_pieces(target, storage)) as pieces:
                publish(aside, pieces, storage=storage)
        except DurabilityError:
            pass  # said by the sync below, if it is so
    _sync_aside(aside, storage)
    return aside


def _sync_aside(aside: str, storage: Storage) -> None:
    try:
        sync_folder(os.path.dirname(aside), aside, storage)
    except DurabilityError as error:  # of the copy; the run is as it was
        raise StorageError(error.fact, path=aside, operation=error.operation, code=error.code, remedy="nothing was changed: repair again") from error


def _identity(path: str, storage: Storage) -> tuple[int, int]:
    status = storage.stat(path)
    return status.st_dev, status.st_ino


def _pieces(path: str, storage: Storage, start: int = 0) -> Generator[bytes]:
    with open_file(path, storage) as (fd, _):
        while piece := read_at(fd, _PIECE, start, storage):
            yield piece
            start += len(piece)


def _discard(temporary: str, storage: Storage) -> None:
    try:
        storage.unlink(temporary)
    except OSError:
        pass  # never made, or the next writer sweeps it
