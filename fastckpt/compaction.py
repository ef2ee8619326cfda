"""A run's file without what was retired: every live state under its number, step, time and metadata, while appends go on.

from fastckpt.compaction import compact

with Journal("runs/a/checkpoint.fastckpt") as journal:
    done = compact(journal)  # from any thread; None where there is nothing to drop

The file is seen as *stretches* in which no record refers to one outside: a generation (a base and what follows it up to the next), or
several where those of several streams overlap. The newest stretch, and those before it in which little is to be gained, are copied as
they are. Before them a stretch without live states is dropped, one of nothing but live states copied as it is, and of any other the live
states are packed anew, as differences from each other. So a dead state is only ever copied together with what retired it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from . import container
from .container import FILE_HEADER_SIZE
from .errors import CorruptError
from .journal import Entry, Journal
from .reader import OpenFile, Reader, Retired
from .stream import RECORDS_PER_BASE, Stream

__all__ = ["Compaction", "compact", "estimate", "prove"]

# How often a compaction looks again when streams that it wants to cut off go on while it looks.
_LOOKS = 4
# As it is, the file may take so many times what it could: packing states anew costs more than copying them.
_WORTH = 1.25
# What is written at once, and how much of the last messages of streams is held while many are packed anew.
_PIECE, _HELD = 1 << 18, 64 << 20


class Compaction(NamedTuple):
    """What a compaction did: bytes before and after, states dropped and kept, how long it took, and how long an append could have waited."""

    before: int
    after: int
    dropped: int
    kept: int
    seconds: float
    blocked_seconds: float


def estimate(reader: Reader, *, cancelled: Callable[[], bool] = lambda: False) -> int:
    """About how many bytes `compact` would leave, from the headers alone; what there is when it would drop nothing, or is `cancelled`.

    Raises `CorruptError` for a file that `compact` refuses, `StorageError`.
    """
    newest = reader.newest
    if newest is None or reader.single:
        return reader.size
    try:
        return _plan(reader, newest, cancelled).size
    except _Cancelled:
        return reader.size


def prove(journal: Journal) -> None:
    """Read every record of a file, and compare its checksums. Raises `CorruptError`, also for bytes that are no record; `StorageError`."""
    newest = journal.settled()
    if newest is not None and newest.file is not None:
        for _ in journal.records(newest.file, FILE_HEADER_SIZE, newest.offset + newest.length):
            pass


def compact(journal: Journal, *, cancelled: Callable[[], bool] = lambda: False, fsync: bool = True) -> Compaction | None:
    """Replace a run's file by one without what was retired. None: nothing to drop, or `cancelled` (asked often) said so.

    Appends go on meanwhile; one waits at most `blocked_seconds`, for the last records, the sync, the replace and the directory's sync.
    Readers, and entries and iterations that are held, go on in the file that they have. At every moment the path is the old file or
    the new one, whole. With `fsync=False` the new file is not synced.

    Raises `CorruptError` when what would be kept is damaged, or bytes of the file are no record (`fastckpt repair` is for that), and
    `LimitError`, `ReplacedError`, `StorageError` (also when the journal is closed meanwhile): the file is as it was. Raises
    `DurabilityError` when the new file is in place, its durability unknown.
    """
    begun = time.monotonic()
    try:
        for _ in range(_LOOKS):
            newest = journal.settled()
            if newest is None or newest.file is None:
                return None
            plan = _plan(journal, newest, cancelled)
            if not plan.dropped:
                return None
            detached = journal.detach(plan.cut, newest)
            if detached is not None:
                break
        else:
            return None  # the streams are too busy: the next time they have begun anew
        before = journal.size
        copying = _Copying(journal, newest.file, plan, detached, cancelled)
        blocked = journal.replace(copying.pieces(), newest, plan.cut, copying.moved, copying.going_on, fsync=fsync)
    except _Cancelled:
        return None
    return Compaction(before, journal.size, plan.dropped, plan.kept, time.monotonic() - begun, blocked)


class _Cancelled(Exception):  # noqa: N818  (a message between functions, never seen outside)
    """Give up."""


# --- what to keep ----------------------------------------------------------------------------------------------------


class _Record(NamedTuple):
    """What a header says that counts here, and whether a stretch may begin with the record."""

    offset: int
    end: int
    stream: str
    state: bool
    base: bool
    live: bool
    closed: bool
    message: int


class _Part(NamedTuple):
    """Records that follow each other, and whether they are copied as they are; else the live states among them are packed anew."""

    records: list[_Record]
    verbatim: bool


class _Plan(NamedTuple):
    """The parts of the new file, oldest first; from byte `cut` on the file stays as it is. What that comes to in bytes, and in states."""

    parts: list[_Part]
    cut: int
    size: int
    kept: int
    dropped: int


def _plan(reader: Reader, newest: Entry, cancelled: Callable[[], bool]) -> _Plan:
    records = _survey(reader, newest, cancelled)
    bounds = [*dict.fromkeys([0, *(i for i, record in enumerate(records) if record.closed), len(records)])]
    stretches = [records[start:stop] for start, stop in pairwise(bounds)]
    # What each takes as it is, and what it takes if it is one of those before the ones that are copied as they are.
    lengths = [stretch[-1].end - stretch[0].offset for stretch in stretches]
    costs = _costs(stretches)
    # The newest goes on, and is packed anew only where streams that hold each other up have made it long.
    last = len(stretches) - (sum(record.state and record.base for record in stretches[-1]) < 2)
    sizes = [FILE_HEADER_SIZE + sum(costs[:i]) + sum(lengths[i:]) for i in range(last + 1)]
    first = next(i for i, size in enumerate(sizes) if size <= _WORTH * min(sizes))
    while first < last and not any(record.live for record in stretches[first]):
        first += 1  # to drop it costs nothing

    parts = [_Part(stretch, _all_live(stretch)) for stretch in stretches[:first] if any(record.live for record in stretch)]
    parts.extend(_Part(stretch, verbatim=True) for stretch in stretches[first:])
    cut = stretches[first][0].offset if first < len(stretches) else records[-1].end
    if first == len(stretches) and not records[-1].live:
        parts.append(_Part(records[-1:], verbatim=True))  # the newest keeps its place, or sequence numbers would begin anew
    states = sum(record.state for record in records)
    kept = sum(record.state and (part.verbatim or record.live) for part in parts for record in part.records)
    if not first or sizes[first] >= records[-1].end:
        return _Plan([], 0, records[-1].end, states, 0)
    return _Plan(parts, cut, sizes[first], kept, states - kept)


def _all_live(stretch: list[_Record]) -> bool:
    return all(record.live for record in stretch)


def _survey(reader: Reader, newest: Entry, cancelled: Callable[[], bool]) -> list[_Record]:
    """Every record up to `newest`, oldest first. Raises `CorruptError` when there is anything else."""
    records: list[_Record] = []
    retired: dict[str, Retired] = {}
    begun: set[str] = set()  # streams of which a record was seen whose base was not, yet
    entry: Entry | None = newest
    while entry is not None:
        _check(cancelled)
        header = entry.header
        gone = retired.setdefault(header.stream, Retired())
        state = header.kind == "state"
        live = state and (header.step is None or header.step not in gone)
        gone.add(header.retires)
        if state and header.base:
            begun.discard(header.stream)
        elif state:
            begun.add(header.stream)
        closed = state and header.base and not begun
        records.append(_Record(entry.offset, entry.offset + entry.length, header.stream, state, header.base, live, closed, header.message))
        before = reader.previous(entry)
        end, sequence = (before.offset + before.length, before.sequence) if before else (FILE_HEADER_SIZE, 0)
        if end != entry.offset or sequence >= entry.sequence:
            fact = "bytes that are no record" if end < entry.offset else "a record out of its place"
            remedy = "nothing was changed: `fastckpt repair` keeps every step that can be read"
            raise CorruptError(fact, path=reader.path, offset=end, remedy=remedy)
        entry = before
    return records[::-1]


class _Cost:
    """What the states of one stream take when the live ones are packed anew, one after the other, by what they take now."""

    def __init__(self) -> None:
        self._whole = 0.0  # bytes that a base takes for a byte of message
        self._base = self._since = 0.0  # of what is packed anew: the last base, and the records since
        self._changed: float | None = None  # what was written since the last live state for what had changed; None: there is none
        self._deltas, self._count, self._message = 0, 0, 0  # since the last base

    def of(self, record: _Record) -> int:
        size = record.end - record.offset
        change: float = size
        if record.base:
            # It says nothing of what changed: about as much as before, and what the message grew by.
            self._whole = size / max(record.message, 1)
            if self._count:
                change = min(size, self._deltas / self._count + max(0, record.message - self._message) * self._whole)
            self._deltas = self._count = 0
        else:
            self._deltas, self._count = self._deltas + size, self._count + 1
        self._message = record.message
        if self._changed is not None:
            self._changed += change
        if not record.live:
            return 0
        whole = size if record.base else max(self._whole * record.message, size)
        if self._changed is None or self._changed >= whole or self._since >= RECORDS_PER_BASE * self._base:
            cost = self._base = whole
            self._since = 0
        else:
            cost = self._changed
            self._since += cost
        self._changed = 0
        return int(cost)

    def interrupted(self) -> None:
        """What follows refers to nothing before."""
        self._changed = None


def _costs(stretches: list[list[_Record]]) -> list[int]:
    """About how many bytes each stretch takes if it is dropped, copied because all of it is live, or its live states packed anew."""
    streams: dict[str, _Cost] = {}
    costs = []
    for stretch in stretches:
        cost = 0
        for record in stretch:
            if record.state:
                cost += streams.setdefault(record.stream, _Cost()).of(record)
        if _all_live(stretch):
            cost = stretch[-1].end - stretch[0].offset
            for record in stretch:
                streams[record.stream].interrupted()
        costs.append(cost)
    return costs


def _check(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise _Cancelled


# --- what is written -------------------------------------------------------------------------------------------------


class _Copying:
    """The new file up to `newest`, and where its records lie in it."""

    def __init__(self, journal: Journal, file: OpenFile, plan: _Plan, detached: dict[str, Stream], cancelled: Callable[[], bool]) -> None:
        self._journal, self._file, self._plan, self._detached, self._cancelled = journal, file, plan, detached, cancelled
        # Of each stretch that was copied as it is: where it began and ended, and where it begins now.
        self._moves: list[tuple[int, int, int]] = []
        # The streams of which states were packed anew, the one that was gone on with last at the end.
        self._packed: dict[str, Stream] = {}

    def pieces(self) -> Iterator[bytes]:
        """The file header and the records, verified, some at a time."""
        pending: list[bytes] = []
        size = 0
        for piece in self._records():
            _check(self._cancelled)
            pending.append(piece)
            size += len(piece)
            if size >= _PIECE:
                yield b"".join(pending) if len(pending) > 1 else piece
                pending, size = [], 0
        yield b"".join(pending)

    def _records(self) -> Iterator[bytes]:
        yield container.pack_file_header(self._file.file_id, run=True)
        at = FILE_HEADER_SIZE
        for records, verbatim in self._plan.parts:
            if verbatim:
                start, end = records[0].offset, records[-1].end
                self._moves.append((start, end, at))
                for record in (record for record in records if record.state):
                    self._packed.pop(record.stream, None)  # what follows refers to nothing before its stream's newest base
                yield from self._journal.records(self._file, start, end, since=start)
                at += end - start
                continue
            for record in records:
                if record.live:
                    stream = self._packed.pop(record.stream, None) or Stream()
                    packed = self._journal.repack(self._file, record.offset, record.end - record.offset, stream, at)
                    at += packed.size
                    self._packed[record.stream] = stream
                    self._let_go()
                    yield from packed.writes()

    def _let_go(self) -> None:
        """Of many streams only so much is held: one that is let go begins with a base if it goes on."""
        held = sum(len(stream.chunks.message) for stream in self._packed.values())
        while held > _HELD and len(self._packed) > 1:
            held -= len(self._packed.pop(next(iter(self._packed))).chunks.message)

    def moved(self, offset: int) -> int | None:
        """Where a record lies in the new file, unless it is gone or was packed anew."""
        i = bisect_right(self._moves, offset, key=lambda move: move[0])
        if i and offset < self._moves[i - 1][1]:
            start, _, now = self._moves[i - 1]
            return offset - start + now
        return None

    def going_on(self) -> dict[str, Stream]:
        """The streams, of those that were cut off, that need no base to go on, for their last records are in the new file."""
        there = {name: stream.moved(self.moved) for name, stream in self._detached.items()}
        return {**self._packed, **{name: stream for name, stream in there.items() if stream is not None}}
