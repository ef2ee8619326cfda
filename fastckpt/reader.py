"""The records of one file as they lie: found from the end, judged after a crash, read by what their tables name.

What a crash leaves at the end is told apart from damage, and neither is ever taken for "nothing there". Nothing here changes a
file.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from os import PathLike, fspath, urandom
from typing import Final, NamedTuple

from . import container
from .container import FILE_HEADER_SIZE, MAX_HEADER, MAX_MESSAGE, TRAILER_SIZE, RecordHeader, Table
from .errors import CorruptError, LimitError, NotACheckpointError, NotFoundError, StorageError
from .storage import DISK, Storage, close_quietly, explained, open_regular, read_at

__all__ = ["MAX_TOUCHED", "Damage", "Entry", "OpenFile", "Reader", "Retired"]

#: The most records that a message may touch, which bounds a restore (DESIGN, "bases").
MAX_TOUCHED: Final = 256
_SECTOR = 512
_SCAN = 1 << 20
_CACHE_BYTES = 8 << 20
_SKIPPABLE = container.MAGIC[:4]
# How often a reader looks again at an end that does not verify, and how long it waits: a writer may be in the middle of an append.
_LOOKS, _PAUSE = 8, 0.002


class _Descriptor:
    """A descriptor that is closed when the last one who uses it lets go."""

    def __init__(self, fd: int, storage: Storage) -> None:
        self.fd, self.storage = fd, storage

    def __del__(self) -> None:
        if self.fd >= 0:
            with suppress(BaseException):  # whatever it is, the interpreter would print it and go on
                close_quietly(self.fd, self.storage)


class OpenFile:
    """An open file. An entry holds on to the one that it lies in, and stays readable when another file has taken its place.

    The descriptor is closed after `close`, or when nothing refers to the file any more, as soon as no read is under way. No lock is
    needed for that, so there is none that a forked child could find held.
    """

    def __init__(self, path: str, fd: int, storage: Storage) -> None:
        self.path = path
        self.file_id = b""
        self._descriptor: _Descriptor | None = _Descriptor(fd, storage) if fd >= 0 else None

    @property
    def fd(self) -> int:
        """The descriptor; -1 when it is closed."""
        descriptor = self._descriptor
        return -1 if descriptor is None else descriptor.fd

    def read(self, size: int, offset: int) -> bytes:
        """`size` bytes from `offset`, or fewer at the end. Raises `StorageError`, also when the file is closed."""
        descriptor = self._descriptor
        try:
            if descriptor is None:
                raise StorageError("the file is closed", path=self.path, remedy="open it again")
            with explained(self.path, "read"):
                return read_at(descriptor.fd, size, offset, descriptor.storage)
        finally:
            del descriptor  # an error's traceback must not keep it open

    def close(self) -> None:
        """Read nothing more, whoever holds on to it."""
        self._descriptor = None


class Entry(NamedTuple):
    """One record: its name in the file, where it lies, and its header with the checksum by which tables name it.

    `file` is the file that it lies in; None: the one that its reader has open.
    """

    sequence: int
    offset: int
    length: int
    header: RecordHeader
    checksum: bytes
    file: OpenFile | None = None


class Retired:
    """The steps that some records retire: ranges, merged where they meet, so that there are as few as can be."""

    def __init__(self) -> None:
        # In order, and none of them meets the next.
        self._firsts: list[float] = []
        self._lasts: list[float] = []

    def add(self, ranges: Sequence[tuple[int, int | None]]) -> None:
        """These steps too, both ends included; None: every later one."""
        if len(ranges) > 16 + len(self._firsts) // 256:  # as many as to make moving what is there for each of them the dearer way
            spans = sorted([*zip(self._firsts, self._lasts, strict=True), *((first, math.inf if last is None else last) for first, last in ranges)])
            self._firsts, self._lasts = [], []
            for start, end in spans:
                if self._lasts and start <= end and start <= self._lasts[-1] + 1:
                    self._lasts[-1] = max(self._lasts[-1], end)
                elif start <= end:
                    self._firsts.append(start)
                    self._lasts.append(end)
            return
        for first, last in ranges:
            low: float = first
            high: float = math.inf if last is None else last
            if high < low:
                continue
            i, j = bisect_left(self._lasts, low - 1), bisect_right(self._firsts, high + 1)
            if i < j:
                low, high = min(low, self._firsts[i]), max(high, self._lasts[j - 1])
            self._firsts[i:j], self._lasts[i:j] = [low], [high]

    def __contains__(self, step: int) -> bool:
        i = bisect_right(self._firsts, step)
        return i > 0 and step <= self._lasts[i - 1]


class Damage(NamedTuple):
    """What opening found at the end of the file: from where, how much, whether a crash explains it (torn), and what it is."""

    offset: int
    size: int
    torn: bool
    fact: str


class Reader:
    """Reads the records of a file, beside a writer too; takes no lock, changes nothing, and does not fail for damage.

    Opening reads the file's end, never all of it; `damage` says what it found there, `newest` is the last record that is whole.
    `single` is True for a file of one checkpoint. `refresh` follows what another process does. Safe for several threads.

    Raises `NotFoundError`, `NotACheckpointError`, `VersionError`, `StorageError`.
    """

    _writes = False

    def __init__(self, path: str | PathLike[str], *, max_size: int = MAX_MESSAGE, storage: Storage = DISK) -> None:
        self.path = os.path.abspath(fspath(path))
        self.damage: Damage | None = None
        self.newest: Entry | None = None
        self.single = False
        self._max_size, self._storage = max_size, storage
        self._sharing, self._looking = threading.Lock(), threading.RLock()
        # The file that is open, and every one that somebody still holds an entry of.
        self._file, self._files = OpenFile(self.path, -1, storage), weakref.WeakSet[OpenFile]()
        self._identity = (0, 0)
        self._file_id = urandom(16)
        self._end = self._size = 0  # where the newest record ends; the size that the file had
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached = 0
        # Of records that messages touch, by header checksum: consecutive steps touch nearly the same ones.
        self._known: OrderedDict[bytes, tuple[Entry, Table, list[int]]] = OrderedDict()
        try:
            self._open()
            if not self._writes:
                self._look_again()
        except BaseException:
            self._close_files()
            raise

    @property
    def size(self) -> int:
        """How many bytes the file has up to the end of the newest record."""
        return self._end

    def close(self) -> None:
        """Close the file, and those before it in its place that are still open: no entry can be read afterwards."""
        self._close_files()

    def _close_files(self) -> None:
        with self._sharing:
            files = [self._file, *self._files]
        for file in files:
            file.close()

    # --- opening -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        with self._looking:
            fd, status = open_regular(self.path, self._storage, write=self._writes)
            file = OpenFile(self.path, fd, self._storage)
            with self._sharing:
                self._files.add(file)
                self._known.clear()
                self._file, self._identity = file, (0, 0)  # until what it holds is known, so that an error here is not the last word
            self._look(status.st_size)
            self._identity = (status.st_dev, status.st_ino)

    def _look(self, size: int) -> None:
        """Find out what the open file of `size` bytes holds. Meanwhile other threads see what was known before."""
        end, newest, damage = 0, None, None
        try:
            head = self._read(FILE_HEADER_SIZE, 0)
            if not container.is_ours(head, path=self.path):
                json = head.lstrip()[:1] in (b"{", b"[")
                raise NotACheckpointError(self.path, got="JSON" if json else "something else", remedy="run `fastckpt migrate` on it" if json else "")
            file = container.unpack_file_header(head, path=self.path)
        except CorruptError as error:
            damage = Damage(0, size, torn=False, fact=error.fact)
        else:
            self._file.file_id = self._file_id = file.file_id
            self.single = not file.run
            end, newest, damage = self._find_end(size)
        self._size, self._end, self.newest, self.damage = size, end, newest, damage

    def _look_again(self) -> None:
        """A reader cannot tell a crash from an append that is under way: while the file changes it looks anew."""
        for _ in range(_LOOKS):
            if self.damage is None:
                return
            self._storage.sleep(_PAUSE)
            if not self._changed():
                return
            self._follow()

    def _changed(self) -> bool:
        with explained(self.path, "stat"):
            status = self._storage.stat(self.path)
        return (status.st_dev, status.st_ino, status.st_size) != (*self._identity, self._size)

    def _follow(self) -> None:
        with explained(self.path, "stat"):
            status = self._storage.stat(self.path)
        if (status.st_dev, status.st_ino) == self._identity:
            self._look(status.st_size)
        else:
            self._open()

    def _find_end(self, size: int) -> tuple[int, Entry | None, Damage | None]:
        """Where the newest record ends that is whole, that record, and what is wrong with it or behind it."""
        damage: Damage | None = None

        def found(offset: int, torn: bool, fact: str) -> Damage:
            return Damage(offset, size - offset, torn and (damage is None or damage.torn), damage.fact if damage else fact)

        end, entry = size, self._ending_at(size)
        if entry is None:
            entry = self._scan_back(size)
            end = entry.offset + entry.length if entry else FILE_HEADER_SIZE
            torn, fact = self._judge(end, size)
            # The first record was published with the file, whole: it is never torn.
            damage = found(end, torn and entry is not None, fact)
        while entry is not None:
            before = self.previous(entry)
            if before is not None and before.sequence >= entry.sequence:
                damage = found(entry.offset, False, f"record {entry.sequence} stands behind record {before.sequence}")
                end, entry = before.offset + before.length, before
                continue
            flaw = self._oldest_flaw(entry)
            if flaw is None:
                break
            offset, torn, fact = flaw
            damage = found(offset, torn, fact)
            if not torn:
                break  # left where it is: reading it says what is wrong, and what follows can still be found
            entry = self._ending_at(offset) or self._scan_back(offset)
            end = entry.offset + entry.length if entry else FILE_HEADER_SIZE
            if end < offset:  # and before it there is damage that no crash explains
                damage = found(end, False, fact)
        return end, entry, damage

    def _oldest_flaw(self, newest: Entry) -> tuple[int, bool, str] | None:
        """Of the newest record, and what was not synced when it was written, the oldest that does not verify: where, torn or not, fact.

        What a valid later header calls not yet synced is torn; of the last record the lost sectors tell.
        """
        synced = newest.offset - newest.header.unsynced
        oldest: tuple[int, str] | None = None
        entry: Entry | None = newest
        end = newest.offset + newest.length
        while entry is not None and (entry is newest or end > synced):
            if entry.offset + entry.length < end:
                oldest = entry.offset + entry.length, "a part of what was appended last is no record"
            if entry.offset < synced:
                break
            if fact := self._flaw(entry):
                oldest = entry.offset, fact
            end = entry.offset
            entry = self.previous(entry) if end > synced else None
        if oldest is None:
            return None
        at, fact = oldest
        torn = at >= max(synced, FILE_HEADER_SIZE + 1) and (at < newest.offset or self._lost_sector(at, newest.length, newest.header))
        return at, torn, fact

    def _flaw(self, entry: Entry) -> str:
        """What is wrong with the table or the frame of a record; empty when nothing is."""
        try:
            self._parts(entry)
        except CorruptError as error:
            return str(error)
        return ""

    def _judge(self, start: int, size: int) -> tuple[bool, str]:
        """Whether a crash explains that no record ends where the file does, and the fact; `start` is where the last whole one ends.

        A length in a damaged header decides nothing: a record whose header does not verify is cut short only where nothing of what
        follows a header is there.
        """
        try:
            entry = self._entry_at(start, 1 << 62)
        except CorruptError as error:
            head = self._read(min(size - start, MAX_HEADER), start)
            table_at = head.find(_SKIPPABLE, 1)
            header = table_at if table_at > 0 else len(head)
            # Only the sectors of the header: what it says of the others, zeros that are its own, cannot be read any more.
            sectors = header + -(start + header) % _SECTOR
            if self._lost_sector(start, min(sectors, size - start), None):
                return True, "a part of the last append never reached the disk"
            if table_at < 0 and head[:4] == _SKIPPABLE[: len(head)]:
                return True, "the file ends inside a record header"
            return False, error.fact
        if start + entry.length > size:
            return True, "the file ends inside a record"
        if self._lost_sector(start, entry.length, entry.header):
            return True, "a part of the last append never reached the disk"
        return False, "the last record does not end as it should"

    def _lost_sector(self, start: int, length: int, header: RecordHeader | None) -> bool:
        """Whether the part of some 512-byte sector inside this stretch is all zeros, which the record's header does not announce."""
        position, end = start, start + length
        if header is not None:
            # A long record is written in pieces, of which a sector may hold the first and not the next; none begins with a zero.
            trailer = end - TRAILER_SIZE
            for piece in (trailer, trailer - header.frame, trailer - header.frame - header.table):
                if not any(self._read(min(_SECTOR - piece % _SECTOR, end - piece), piece)):
                    return True
            if header.zeros:
                return False
        while position < end:
            block = self._read(min(end, (position // _SECTOR + 2048) * _SECTOR) - position, position)
            if not block:
                return True
            first = _SECTOR - position % _SECTOR
            cuts = [0, *range(first, len(block), _SECTOR), len(block)]
            if any(not any(block[i:j]) for i, j in pairwise(cuts) if j > i):
                return True
            position += len(block)
        return False

    # --- finding records ---------------------------------------------------------------------------------------------

    def _read(self, size: int, offset: int, file: OpenFile | None = None) -> bytes:
        return (file or self._file).read(size, offset)

    def _entry_at(self, offset: int, available: int, file: OpenFile | None = None, named: bytes = b"") -> Entry:
        file = file or self._file
        head = file.read(min(4096, available), offset)
        size = container.record_header_size(head, available, path=self.path, offset=offset)
        if size > len(head):
            # A long header is read for the one who names it only: to be named often must not cost reading it each time.
            if named and file.read(len(named), offset + size - len(named)) != named:
                raise CorruptError("another record than the one that is named", path=self.path, offset=offset)
            head = file.read(size, offset)
        header, checksum, _ = container.unpack_record_header(head[:size], path=self.path, offset=offset)
        length = container.check_lengths(header, size, available, max_size=1 << 64, path=self.path, offset=offset)
        if header.file != file.file_id:
            raise CorruptError("a record of another file", path=self.path, offset=offset, expected=file.file_id.hex(), got=header.file.hex())
        return Entry(header.sequence, offset, length, header, checksum, file)

    def _ending_at(self, end: int, file: OpenFile | None = None) -> Entry | None:
        """The record whose trailer ends at `end`; None when there is none that agrees with its header."""
        if end < FILE_HEADER_SIZE + TRAILER_SIZE:
            return None
        try:
            trailer = container.unpack_trailer(self._read(TRAILER_SIZE, end - TRAILER_SIZE, file))
            if trailer.record > end - FILE_HEADER_SIZE:
                return None
            entry = self._entry_at(end - trailer.record, trailer.record, file, trailer.header_checksum)
        except CorruptError:
            return None
        return entry if (entry.length, entry.checksum) == trailer else None

    def _scan_back(self, end: int, file: OpenFile | None = None) -> Entry | None:
        """The last record that ends at or before `end`, found by the mark that ends every trailer."""
        block_end = end
        while block_end > FILE_HEADER_SIZE:
            start = max(FILE_HEADER_SIZE, block_end - _SCAN)
            block = self._read(block_end - start, start, file)
            at = len(block)
            while (at := block.rfind(container.END_MARK, 0, at + 3)) >= 0:
                trailer = at + 4 - TRAILER_SIZE
                if trailer >= 0 and block[trailer : trailer + 4] != _SKIPPABLE:
                    continue  # no trailer, by a look at what is read already
                if entry := self._ending_at(start + at + 4, file):
                    return entry
            # Three bytes less, so that a mark across two blocks is in one.
            block_end = start + 3 if start > FILE_HEADER_SIZE else start
        return None

    def previous(self, entry: Entry) -> Entry | None:
        """The record before one; over damage in between to the next that is whole."""
        before = self._ending_at(entry.offset, entry.file)
        if before is None and entry.offset > FILE_HEADER_SIZE:
            before = self._scan_back(entry.offset - 1, entry.file)
        return before

    def entries(self) -> Iterator[Entry]:
        """Every record, newest first, read as it is asked for; those that are appended meanwhile are not among them."""
        entry = self.newest
        while entry is not None:
            yield entry
            before = self.previous(entry)
            while before is not None and before.sequence >= entry.sequence:  # a copy of another record, out of its place
                before = self.previous(before)
            entry = before

    def live(self, stream: str = "") -> Iterator[Entry]:
        """The states of a stream that no newer record of it retires, newest first, read as they are asked for."""
        retired = Retired()
        for entry in self.entries():
            header = entry.header
            if header.stream != stream:
                continue
            if header.kind == "state" and (header.step is None or header.step not in retired):
                yield entry
            retired.add(header.retires)

    def state(self, step: int | None = None, stream: str = "") -> Entry:
        """The newest live state of a stream, or the one of `step`.

        Raises `NotFoundError` when there is none, `CorruptError` when the newest is asked for and the end of the file is damaged.
        """
        if step is None and self.damage is not None and not self.damage.torn:
            remedy = "the steps before it may be whole: see `fastckpt log`"
            raise CorruptError(self.damage.fact, path=self.path, offset=self.damage.offset, remedy=remedy)
        for entry in self.live(stream):
            if step is None or entry.header.step == step:
                return entry
        fact = "the run has no step" if step is None else f"the run has no step {step}"
        raise NotFoundError(self.path, fact=fact, remedy="`fastckpt log` lists its steps")

    # --- reading messages --------------------------------------------------------------------------------------------

    def _parts(self, entry: Entry) -> tuple[Table, bytes]:
        """Table and frame of a record, their checksums compared."""
        header = entry.header
        at = entry.offset + entry.length - TRAILER_SIZE - header.frame - header.table
        data = self._read(header.table + header.frame, at, entry.file)
        table = container.unpack_table(data[: header.table], header, path=self.path, offset=at)
        frame = data[header.table :]
        container.check_frame(frame, header, path=self.path, offset=at + header.table)
        return table, frame

    def _table(self, entry: Entry) -> Table:
        at = entry.offset + entry.length - TRAILER_SIZE - entry.header.frame - entry.header.table
        return container.unpack_table(self._read(entry.header.table, at, entry.file), entry.header, path=self.path, offset=at)

    def _content(self, entry: Entry, table: Table) -> bytes:
        at = entry.offset + entry.length - TRAILER_SIZE - entry.header.frame
        frame = self._read(entry.header.frame, at, entry.file)
        content = container.unpack_content(frame, entry.header, table, path=self.path, offset=at)
        # A writer holds the last message besides, and must not grow with what it once read.
        most = _CACHE_BYTES if self._writes else max(_CACHE_BYTES, 2 * entry.header.message)
        with self._sharing:
            if entry.checksum not in self._cache and len(content) <= most:
                self._cache[entry.checksum] = content
                self._cached += len(content)
            while self._cached > most:
                self._cached -= len(self._cache.popitem(last=False)[1])
        return content

    def read(self, entry: Entry) -> bytes:
        """The message of a record. Raises `CorruptError` with the offset of what does not verify, `LimitError`, `StorageError`."""
        if entry.header.message > self._max_size:
            raise LimitError("the message is larger than `max_size`", limit=self._max_size, got=entry.header.message, path=self.path)
        table = self._table(entry)
        touched = self._touched(entry, table)
        # The record itself is remembered too: the next step's message touches it.
        known = [self._remembered(entry, table), *map(self._recalled, touched[1:])]
        tables, starts = [each[1] for each in known], [each[2] for each in known]
        with self._sharing:
            cached = [self._cache.get(each.checksum) for each in touched]
            for each, found in zip(touched, cached, strict=True):
                if found is not None:
                    self._cache.move_to_end(each.checksum)

        def content(index: int) -> bytes:
            found = cached[index]
            return self._content(touched[index], tables[index]) if found is None else found

        try:
            return container.assemble(entry.header, table, tables, starts, content, path=self.path, offset=entry.offset)
        except MemoryError as error:
            raise LimitError("no memory to read the message", limit=entry.header.message, path=self.path) from error

    def _recalled(self, entry: Entry) -> tuple[Entry, Table, list[int]]:
        """A touched record with its table and where its chunks begin."""
        known = self._known.get(entry.checksum)
        return known if known is not None and known[0] is entry else self._remembered(entry, self._table(entry))

    def _remembered(self, entry: Entry, table: Table) -> tuple[Entry, Table, list[int]]:
        known = entry, table, container.chunk_starts(table)
        if not self._writes:  # which reads now and then alone, and keeps what it holds small
            with self._sharing:
                if entry.file is self._file:  # one that was replaced is to be closed when its entries are let go
                    self._known[entry.checksum] = known
                while len(self._known) > 2 * MAX_TOUCHED:
                    self._known.popitem(last=False)
        return known

    def _touched(self, entry: Entry, table: Table) -> list[Entry]:
        """The records that a message touches, its own first, each compared with the checksum by which the table names it."""
        if len(table.distances) > MAX_TOUCHED:
            raise LimitError("a record that touches too many others", limit=MAX_TOUCHED, got=len(table.distances), path=self.path)
        touched = [entry]
        room = entry.offset + entry.length - FILE_HEADER_SIZE
        for index, distance in enumerate(table.distances):
            offset = entry.offset - distance
            if offset < FILE_HEADER_SIZE:
                raise CorruptError("a table that points before the first record", path=self.path, offset=entry.offset)
            known = self._known.get(table.checksums[8 * index : 8 * index + 8])
            if known is not None and known[0].offset == offset and known[0].file is entry.file:
                other = known[0]
            else:
                other = self._entry_at(offset, distance, entry.file)
                if other.checksum != table.checksums[8 * index : 8 * index + 8]:
                    raise CorruptError("a table that names another record than is there", path=self.path, offset=offset)
            touched.append(other)
            # Records lie side by side. One that is named again and again, or lies inside another, would cost its table's memory each time.
            room -= other.length
            if room < entry.length:
                raise CorruptError("a table that touches more records than are there", path=self.path, offset=entry.offset)
        return touched

    def verify(self) -> Iterator[tuple[int, str]]:
        """Offset and fact of everything that does not verify: every message is read, and what no record covers is named."""
        broken: dict[int, tuple[str, list[int]]] = {}
        if self.damage is not None:
            yield self.damage.offset, self.damage.fact
        entry = self.newest
        end = entry.offset + entry.length if entry else 0
        while entry is not None:
            if entry.offset + entry.length < end:
                yield entry.offset + entry.length, f"{end - entry.offset - entry.length} bytes that are no record"
            try:
                self._parts(entry)
                self.read(entry)
            except (CorruptError, LimitError) as error:
                at = getattr(error, "offset", None) or entry.offset
                broken.setdefault(at, (str(error), []))[1].append(entry.sequence)
            end = entry.offset
            before = self.previous(entry)
            if before is not None and before.sequence >= entry.sequence:
                yield entry.offset, f"record {entry.sequence} stands behind record {before.sequence}"
            entry = before
        if end > FILE_HEADER_SIZE and self.newest is not None:
            yield FILE_HEADER_SIZE, f"{end - FILE_HEADER_SIZE} bytes that are no record"
        for at, (fact, records) in sorted(broken.items()):
            yield at, f"{fact}: record{'s' * (len(records) > 1)} {', '.join(map(str, sorted(records)))} cannot be read"

    def refresh(self) -> bool:
        """Look at the file again: what another process appended, or another file in its place. Whether anything changed."""
        with self._looking:
            if not self._changed():
                return False
            before = self.newest.checksum if self.newest else None
            self._follow()
            self._look_again()
            return (self.newest.checksum if self.newest else None) != before
