"""The records of one file as they lie: found from the end, judged after a crash, read by what their tables name.

What a crash leaves at the end is told apart from damage, and neither is ever taken for "nothing there". Nothing here changes a
file.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from os import PathLike, fspath, urandom
from typing import Final, NamedTuple

from . import container
from .container import FILE_HEADER_SIZE, MAX_HEADER, MAX_MESSAGE, TRAILER_SIZE, RecordHeader, Table
from .errors import CheckpointError, CorruptError, LimitError, NotACheckpointError, NotFoundError
from .storage import DISK, Storage, close_quietly, explained, open_regular, read_at

__all__ = ["MAX_TOUCHED", "Damage", "Entry", "Reader"]

#: The most records that a message may touch, which bounds a restore (DESIGN, "bases").
MAX_TOUCHED: Final = 256
_SECTOR = 512
_SCAN = 1 << 20
_CACHE_BYTES = 8 << 20
_SKIPPABLE = container.MAGIC[:4]


class Entry(NamedTuple):
    """One record: its name in the file, where it lies, and its header with the checksum by which tables name it."""

    sequence: int
    offset: int
    length: int
    header: RecordHeader
    checksum: bytes


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
        self._swapping = threading.Lock()
        self._fd, self._old_fds, self._identity = -1, list[int](), (0, 0)
        self._file_id = urandom(16)
        self._end = 0
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached = 0
        try:
            self._open()
        except BaseException:
            self._close_files()
            raise

    def close(self) -> None:
        """Close the file."""
        self._close_files()

    def _close_files(self) -> None:
        with self._swapping:
            for fd in [*self._old_fds, self._fd]:
                if fd >= 0:
                    close_quietly(fd, self._storage)
            self._old_fds, self._fd = [], -1

    # --- opening -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        fd, status = open_regular(self.path, self._storage, write=self._writes)
        with self._swapping:
            if self._fd >= 0:
                self._old_fds.append(self._fd)  # a reading thread may be using it
            self._fd, self._identity = fd, (status.st_dev, status.st_ino)
        self.damage, self.newest, self._end = None, None, 0
        size = status.st_size
        try:
            if not container.is_ours(self._read(FILE_HEADER_SIZE, 0), path=self.path):
                raise NotACheckpointError(self.path, got="something else")
            file = container.unpack_file_header(self._read(FILE_HEADER_SIZE, 0), path=self.path)
        except CorruptError as error:
            self.damage = Damage(0, size, torn=False, fact=error.fact)
            return
        self._file_id, self.single = file.file_id, not file.run
        self._find_end(size)

    def _find_end(self, size: int) -> None:
        """Find the newest record that is whole, and judge what lies behind it."""
        end, entry = size, self._ending_at(size)
        if entry is None:
            entry = self._scan_back(size)
            end = entry.offset + entry.length if entry else FILE_HEADER_SIZE
            torn, fact = self._judge(end, size)
            # The first record was published with the file, whole: it is never torn.
            self._found(end, size, torn and entry is not None, fact)
        while entry is not None:
            previous = self._ending_at(entry.offset)
            if previous is not None and previous.sequence >= entry.sequence:
                self._found(entry.offset, size, False, f"record {entry.sequence} stands behind record {previous.sequence}")
                end, entry = entry.offset, previous
                continue
            suspect, fact = self._oldest_flaw(entry)
            if not fact:
                break
            # What a valid later header calls not yet synced is torn; of the last record the lost sectors tell.
            torn = suspect.offset > FILE_HEADER_SIZE and (
                suspect.offset < entry.offset or self._lost_sector(suspect.offset, suspect.length, suspect.header)
            )
            self._found(suspect.offset, size, torn, fact)
            if not torn:
                break  # left where it is: reading it says what is wrong, and what follows can still be found
            end, entry = suspect.offset, self._ending_at(suspect.offset)
        self._end, self.newest = end, entry

    def _found(self, offset: int, size: int, torn: bool, fact: str) -> None:
        if self.damage is not None:
            torn, fact = torn and self.damage.torn, self.damage.fact
        self.damage = Damage(offset, size - offset, torn, fact)

    def _oldest_flaw(self, newest: Entry) -> tuple[Entry, str]:
        """Of the newest record, and those before it that were not synced when it was written, the oldest that does not verify."""
        oldest, flaw = newest, ""
        suspect: Entry | None = newest
        while suspect is not None and suspect.offset >= newest.offset - newest.header.unsynced:
            if fact := self._flaw(suspect):
                oldest, flaw = suspect, fact
            suspect = self._ending_at(suspect.offset)
        return oldest, flaw

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
            if self._lost_sector(start, size - start, None):
                return True, "a part of the last append never reached the disk"
            header_alone = self._read(min(size - start, MAX_HEADER), start).find(_SKIPPABLE, 1) < 0
            return header_alone, "the file ends inside a record header" if header_alone else error.fact
        if start + entry.length > size:
            return True, "the file ends inside a record"
        if self._lost_sector(start, entry.length, entry.header):
            return True, "a part of the last append never reached the disk"
        return False, "the last record does not end as it should"

    def _lost_sector(self, start: int, length: int, header: RecordHeader | None) -> bool:
        """Whether the part of some 512-byte sector inside this stretch is all zeros, which the record's header does not announce."""
        if header is not None and header.zeros:
            return False
        position, end = start, start + length
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

    def _read(self, size: int, offset: int) -> bytes:
        with self._swapping:
            fd = self._fd
        with explained(self.path, "read"):
            return read_at(fd, size, offset, self._storage)

    def _entry_at(self, offset: int, available: int) -> Entry:
        head = self._read(min(4096, available), offset)
        size = container.record_header_size(head, available, path=self.path, offset=offset)
        if size > len(head):
            head = self._read(size, offset)
        header, checksum, _ = container.unpack_record_header(head[:size], path=self.path, offset=offset)
        length = container.check_lengths(header, size, available, max_size=1 << 62, path=self.path, offset=offset)
        if header.file != self._file_id:
            raise CorruptError("a record of another file", path=self.path, offset=offset, expected=self._file_id.hex(), got=header.file.hex())
        return Entry(header.sequence, offset, length, header, checksum)

    def _ending_at(self, end: int) -> Entry | None:
        """The record whose trailer ends at `end`; None when there is none that agrees with its header."""
        if end < FILE_HEADER_SIZE + TRAILER_SIZE:
            return None
        try:
            trailer = container.unpack_trailer(self._read(TRAILER_SIZE, end - TRAILER_SIZE))
            if trailer.record > end - FILE_HEADER_SIZE:
                return None
            entry = self._entry_at(end - trailer.record, trailer.record)
        except CorruptError:
            return None
        return entry if (entry.length, entry.checksum) == trailer else None

    def _scan_back(self, end: int) -> Entry | None:
        """The last record that ends at or before `end`, found by the mark that ends every trailer."""
        block_end = end
        while block_end > FILE_HEADER_SIZE:
            start = max(FILE_HEADER_SIZE, block_end - _SCAN)
            block = self._read(block_end - start, start)
            at = len(block)
            while (at := block.rfind(container.END_MARK, 0, at + 3)) >= 0:
                if entry := self._ending_at(start + at + 4):
                    return entry
            # Three bytes less, so that a mark across two blocks is in one.
            block_end = start + 3 if start > FILE_HEADER_SIZE else start
        return None

    def previous(self, entry: Entry) -> Entry | None:
        """The record before one; over damage in between to the next that is whole."""
        before = self._ending_at(entry.offset)
        if before is None and entry.offset > FILE_HEADER_SIZE:
            before = self._scan_back(entry.offset - 1)
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
        retired: list[tuple[int, int | None]] = []
        for entry in self.entries():
            header = entry.header
            if header.stream != stream:
                continue
            step = header.step
            dead = step is not None and any(first <= step and (last is None or step <= last) for first, last in retired)
            if header.kind == "state" and not dead:
                yield entry
            retired.extend(header.retires)

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
        data = self._read(header.table + header.frame, at)
        table = container.unpack_table(data[: header.table], header, path=self.path, offset=at)
        frame = data[header.table :]
        container.check_frame(frame, header, path=self.path, offset=at + header.table)
        return table, frame

    def _table(self, entry: Entry) -> Table:
        at = entry.offset + entry.length - TRAILER_SIZE - entry.header.frame - entry.header.table
        return container.unpack_table(self._read(entry.header.table, at), entry.header, path=self.path, offset=at)

    def _content(self, entry: Entry, table: Table) -> bytes:
        with self._swapping:
            if (content := self._cache.get(entry.checksum)) is not None:
                self._cache.move_to_end(entry.checksum)
                return content
        at = entry.offset + entry.length - TRAILER_SIZE - entry.header.frame
        frame = self._read(entry.header.frame, at)
        content = container.unpack_content(frame, entry.header, table, path=self.path, offset=at)
        with self._swapping:
            if entry.checksum not in self._cache:
                self._cache[entry.checksum] = content
                self._cached += len(content)
            while self._cached > max(_CACHE_BYTES, entry.header.message) and len(self._cache) > 1:
                self._cached -= len(self._cache.popitem(last=False)[1])
        return content

    def read(self, entry: Entry) -> bytes:
        """The message of a record. Raises `CorruptError` with the offset of what does not verify, `LimitError`, `StorageError`."""
        if entry.header.message > self._max_size:
            raise LimitError("the message is larger than `max_size`", limit=self._max_size, got=entry.header.message, path=self.path)
        table = self._table(entry)
        touched = self._touched(entry, table)
        tables = [table, *map(self._table, touched[1:])]
        return container.assemble(entry.header, table, tables, lambda i: self._content(touched[i], tables[i]), path=self.path, offset=entry.offset)

    def _touched(self, entry: Entry, table: Table) -> list[Entry]:
        """The records that a message touches, its own first, each compared with the checksum by which the table names it."""
        if len(table.distances) > MAX_TOUCHED:
            raise LimitError("a record that touches too many others", limit=MAX_TOUCHED, got=len(table.distances), path=self.path)
        touched = [entry]
        for index, distance in enumerate(table.distances):
            offset = entry.offset - distance
            if offset < FILE_HEADER_SIZE:
                raise CorruptError("a table that points before the first record", path=self.path, offset=entry.offset)
            other = self._entry_at(offset, distance)
            if other.checksum != table.checksums[8 * index : 8 * index + 8]:
                raise CorruptError("a table that names another record than is there", path=self.path, offset=offset)
            touched.append(other)
        return touched

    def verify(self) -> Iterator[tuple[int, str]]:
        """Offset and fact of everything that does not verify, newest first: every record in full, and what no record covers."""
        if self.damage is not None:
            yield self.damage.offset, self.damage.fact
        end = self._end
        for entry in self.entries():
            if entry.offset + entry.length < end:
                yield entry.offset + entry.length, f"{end - entry.offset - entry.length} bytes that are no record"
            try:
                table, _ = self._parts(entry)
                self._touched(entry, table)
            except CheckpointError as error:
                yield getattr(error, "offset", None) or entry.offset, f"record {entry.sequence}: {error}"
            end = entry.offset
        if end > FILE_HEADER_SIZE and self.newest is not None:
            yield FILE_HEADER_SIZE, f"{end - FILE_HEADER_SIZE} bytes that are no record"

    def refresh(self) -> bool:
        """Look at the file again: what another process appended, or another file in its place. Whether anything changed."""
        with explained(self.path, "stat"):
            status = self._storage.stat(self.path)
        if (status.st_dev, status.st_ino) == self._identity and status.st_size == self._end:
            return False
        before = self.newest.checksum if self.newest else None
        self._open()
        return (self.newest.checksum if self.newest else None) != before
