"""A file that grows: opaque messages appended durably as records, each readable for ever, as `FORMAT.md` specifies.

A message is stored as a difference from the one before it in its stream; a restore reads the records that its table names
and replays nothing.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, NamedTuple

import msgspec

from . import container, delta
from .codec import pack_meta
from .container import FILE_HEADER_SIZE, MAX_MESSAGE, RecordHeader, Source, Table
from .errors import CheckpointWarning, CorruptError, DurabilityError, LimitError, NotFoundError, ReplacedError, StorageError
from .lock import Lock
from .reader import MAX_TOUCHED, Damage, Entry, Reader
from .storage import DISK, Storage, explained, make_folder, publish, sweep, sync_folder, write_at

__all__ = ["Appended", "Damage", "Entry", "Journal"]

# DESIGN, "bases": since the last base the records may reach so many times its bytes, and their tables so many.
_RECORDS_PER_BASE, _TABLES_PER_BASE = 4, 1
_PIECE = 1 << 20
_ASIDES = 3


class Appended(NamedTuple):
    """What an append did: the record's sequence number, bytes of new chunks and of the whole write, and flushes of the disk."""

    sequence: int
    base: bool
    new_bytes: int
    written_bytes: int
    flushes: int


class _Stream:
    """A stream's last message, and what its records since the last base come to."""

    def __init__(self) -> None:
        self.chunks = delta.EMPTY
        self.checksums: dict[int, bytes] = {}  # offset of a record that the chunks lie in → its header checksum
        self.base_bytes = self.base_message = self.records = self.tables = 0

    def outgrown(self, change: delta.Difference, message: int) -> bool:
        """Whether the next record is to be a base: what bounds a restore and the size of the file."""
        return (
            self.records >= _RECORDS_PER_BASE * self.base_bytes
            or self.tables >= _TABLES_PER_BASE * self.base_bytes
            or len(change.touched) > MAX_TOUCHED
            or message >= 2 * self.base_message
        )

    def appended(self, change: delta.Difference, offset: int, record: container.Record) -> None:
        """The record is in the file: the next one may refer to it."""
        self.chunks = change.chunks
        self.checksums = {**{owner: self.checksums[owner] for owner in change.touched}, offset: record.header_checksum}
        if record.header.base:
            self.base_bytes, self.base_message, self.records, self.tables = len(record.data), record.header.message, 0, 0
        else:
            self.records += len(record.data)
            self.tables += record.header.table


class _Unreadable(Exception):  # noqa: N818  (a message between two methods, never seen outside)
    """The old file cannot be copied: it was set aside."""


class Journal(Reader):
    """The records of one run's file. Opening reads its end, never all of it, and never fails for damage: `damage` says what it found.

    With `read_only` nothing is changed and no lock taken, beside a writer too; `refresh` follows what it writes. Otherwise the
    journal is the file's one writer, from construction to `close`, and a file that is not there is made by the first append.
    `chunk` is the size in bytes that new chunks aim at, `level` zstd's: 3 and not 1, for what is compressed is little (what changed)
    and kept for long. All methods may be called from several threads; reads
    do not wait for an append.

    Raises `LockedError` (another writer), `NotFoundError` (only with `read_only`), `NotACheckpointError`, `VersionError`,
    `StorageError`.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        read_only: bool = False,
        lock: bool = True,
        chunk: int = delta.CHUNK,
        level: int = 3,
        max_size: int = MAX_MESSAGE,
        storage: Storage = DISK,
    ) -> None:
        self.read_only, self._writes = read_only, not read_only
        self._chunk, self._level = chunk, level
        self._appending = threading.RLock()
        self._synced = self._last_sequence = 0
        self._poisoned = self._closed = False
        self._pid = os.getpid()
        self._streams: dict[str, _Stream] = {}
        self._lock: Lock | None = None
        path = os.path.abspath(path)
        if not read_only:
            make_folder(os.path.dirname(path), storage)
            if lock:
                self._lock = Lock(f"{path}.lock", storage)
            # Under the lock: a temporary of this name is a killed writer's.
            sweep(path, storage)
        try:
            super().__init__(path, max_size=max_size, storage=storage)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise

    def _open(self) -> None:
        try:
            super()._open()
        except NotFoundError:
            if self.read_only:
                raise
        self._synced = self._end

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(
        self,
        message: bytes,
        *,
        step: int | None = None,
        stream: str = "",
        key: str = "",
        has_ext: bool = False,
        retires: Sequence[tuple[int, int | None]] = (),
        meta: dict[str, Any] | None = None,
        metrics: dict[str, Any] | None = None,
        source: Source | None = None,
        type_name: str = "",
        schema: str = "",
        base: bool = False,
        sync: bool = True,
    ) -> Appended:
        """Append a state; with `sync` it is durable when this returns. `retires` are steps of the stream that are live no longer.

        A failed append leaves the file as it was, and the next one works once its cause is gone: what a failed sync left unknown is
        never synced again, but copied, record by record and verified, into a new file. Damage at the end is copied aside first.

        Raises `LimitError`, `ReplacedError` (the file is another one now), `StorageError`; `DurabilityError` when the state is in
        place but its durability unknown.
        """
        if len(message) > self._max_size:
            raise LimitError("the state is too large", limit=self._max_size, got=len(message), path=self.path, remedy="split it")
        with self._appending:
            self._check_writable()
            header = RecordHeader(
                file=self._file_id,
                sequence=self._next_sequence(),
                kind="state",
                stream=stream,
                key=key,
                step=step,
                base=True,
                retires=list(retires),
                message=len(message),
                zeros=False,
                chunk=self._chunk,
                ext=has_ext,
                meta=pack_meta(meta),
                metrics=pack_meta(metrics, "metrics"),
                source=source,
                type=type_name,
                schema=schema,
                time=time.time_ns(),
                writer=container.VERSION,
            )
            try:
                return self._append(message, header, base, sync)
            except _Unreadable:
                return self._append(message, header, True, sync)

    def _append(self, message: bytes, header: RecordHeader, base: bool, sync: bool) -> Appended:
        state = self._streams.setdefault(header.stream, _Stream())
        offset = self._end if self.newest is not None else FILE_HEADER_SIZE
        # A new file begins with a base; so does what is appended first after opening, for the old chunks may be damaged.
        old = delta.EMPTY if base or self.newest is None else state.chunks
        change = delta.diff(old, message, offset, chunk=self._chunk)
        if change.touched and state.outgrown(change, len(message)):
            change = delta.diff(delta.EMPTY, message, offset, chunk=self._chunk)
        table = Table(
            [offset - owner for owner in change.touched],
            b"".join(state.checksums[owner] for owner in change.touched),
            change.runs,
            change.sizes,
            change.crcs,
        )
        header = msgspec.structs.replace(
            header, base=not change.touched, digest=container.digest(change.chunks.checksums()), unsynced=self._end - self._synced, chunk=change.chunk
        )
        record = container.pack_record(header, table, change.content, level=self._level)
        flushes = self._write(record, sync)
        # Only now is the record what the next one may refer to.
        state.appended(change, offset, record)
        return Appended(header.sequence, header.base, len(change.content), len(record.data), flushes)

    def tombstone(self, retires: Sequence[tuple[int, int | None]], *, stream: str = "", sync: bool = True) -> Appended:
        """Append a record that only retires steps of a stream. Raises as `append` does."""
        with self._appending:
            self._check_writable()
            header = RecordHeader(
                file=self._file_id,
                sequence=self._next_sequence(),
                kind="tombstone",
                stream=stream,
                base=True,
                retires=list(retires),
                message=0,
                digest=container.digest(b""),
                unsynced=self._end - self._synced,
                zeros=False,
                time=time.time_ns(),
                writer=container.VERSION,
            )
            record = container.pack_record(header, Table([], b"", [], b"", b""), b"", level=self._level)
            try:
                flushes = self._write(record, sync)
            except _Unreadable as error:
                raise StorageError("nothing is left to retire steps of: the file was set aside", path=self.path) from error.__cause__
            return Appended(header.sequence, False, 0, len(record.data), flushes)

    def adopt(self, step: int) -> None:
        """Make a run of a single-record file: its state becomes `step`, the file is published anew, atomically."""
        with self._appending:
            self._check_writable()
            single = self.newest
            if not self.single or single is None:
                return
            message = self.read(single)
            change = delta.diff(delta.EMPTY, message, FILE_HEADER_SIZE, chunk=self._chunk)
            digest = container.digest(change.chunks.checksums())
            header = msgspec.structs.replace(single.header, step=step, chunk=change.chunk, digest=digest)
            table = Table([], b"", change.runs, change.sizes, change.crcs)
            record = container.pack_record(header, table, message, level=self._level)
            self._publish([container.pack_file_header(self._file_id, run=True), record.data])

    def sync(self) -> None:
        """Make durable what was appended without a sync. Raises `StorageError`; the file is then rewritten by the next append."""
        with self._appending:
            if self._fd >= 0 and self._synced < self._end and not self._poisoned:
                self._sync_data()
                self._synced = self._end

    def close(self) -> None:
        """Sync what is left to sync and let the next writer in; nothing can be appended afterwards."""
        with self._appending:
            if self._closed:
                return
            self._closed = True
            try:
                if not self.read_only and os.getpid() == self._pid:
                    self.sync()
            finally:
                super().close()
                if self._lock is not None:
                    self._lock.release()

    def _next_sequence(self) -> int:
        return (self.newest.sequence if self.newest else self._last_sequence) + 1

    def _check_writable(self) -> None:
        if self._closed:
            raise StorageError("the journal is closed", path=self.path, remedy="open it again")
        if self.read_only:
            raise StorageError("opened read-only", path=self.path, remedy="open it without read_only")
        if os.getpid() != self._pid:
            raise StorageError("a forked child cannot write its parent's run", path=self.path, remedy="open a run of its own in the child")
        if self._lock is not None:
            self._lock.check()

    def _write(self, record: container.Record, sync: bool) -> int:
        """Put a packed record at the end of the file, or into a new file where there is none to trust; the flushes that it took."""
        if self.newest is None:
            if self._fd >= 0:
                self._check_identity()
                self._set_aside()
            self._publish([container.pack_file_header(self._file_id, run=True), record.data])
            return 2
        if self.single:
            raise StorageError("a file of one checkpoint must be adopted first", path=self.path)
        self._check_identity()
        if self._poisoned:
            self._rewrite(record)
            return 2
        self._cut_tail()
        end = self._end
        try:
            with explained(self.path, "append"):
                write_at(self._fd, record.data, end, self._storage)
        except BaseException:
            self._cut()
            raise
        if sync:
            self._sync_data()
        self._end = end + len(record.data)
        self._synced = self._end if sync else self._synced
        self.newest = Entry(record.header.sequence, end, len(record.data), record.header, record.header_checksum)
        return int(sync)

    def _check_identity(self) -> None:
        """The file by this name is still the one that is open: a record appended to another would be lost with it."""
        try:
            status = self._storage.stat(self.path)
        except FileNotFoundError as error:
            raise ReplacedError(self.path) from error
        except OSError as error:
            raise StorageError.of(error, self.path, "stat") from error
        if (status.st_dev, status.st_ino) != self._identity:
            raise ReplacedError(self.path)

    def _sync_data(self) -> None:
        try:
            with explained(self.path, "sync"):
                self._storage.sync_data(self._fd)
        except BaseException:
            # The kernel may have dropped what it could not write, and a second sync of this file would answer with success.
            self._poisoned = True
            raise

    def _cut(self) -> None:
        """After a failed write: the file as it was, durably, or old bytes would come back under the next record."""
        try:
            self._storage.truncate(self._fd, self._end)
            self._storage.sync_data(self._fd)
        except OSError:
            self._poisoned = True

    def _cut_tail(self) -> None:
        """Copy aside and cut what opening found behind the last whole record."""
        if self.damage is None or self.damage.offset + self.damage.size <= self._end:
            return
        self._keep_aside(lambda aside: publish(aside, self._pieces(self._end, self._end + (1 << 62)), storage=self._storage))
        with explained(self.path, "truncate"):
            self._storage.truncate(self._fd, self._end)
        self._sync_data()
        self.damage = None

    def _pieces(self, start: int, end: int) -> Iterator[bytes]:
        while start < end and (piece := self._read(min(_PIECE, end - start), start)):
            yield piece
            start += len(piece)

    def _set_aside(self) -> None:
        """Keep the file under another name too, before another one takes its place."""

        def link(aside: str) -> None:
            with explained(aside, "link"):
                self._storage.link(self.path, aside)
            sync_folder(os.path.dirname(aside), self.path, self._storage)

        self._keep_aside(link)

    def _keep_aside(self, make: Callable[[str], object]) -> None:
        folder, name = os.path.split(self.path)
        with explained(folder, "list"):
            kept = sorted(int(other.rpartition(".")[2]) for other in self._storage.list(folder) if _is_aside(other, name))
        make(f"{self.path}.aside.{kept[-1] + 1 if kept else 1}")
        for number in kept[: max(0, len(kept) - _ASIDES + 1)]:
            try:
                self._storage.unlink(f"{self.path}.aside.{number}")
            except OSError:
                pass  # one copy more than promised

    def _rewrite(self, record: container.Record) -> None:
        """A new file on a new inode: every record, verified while it is copied, and the new one behind them."""

        def verified() -> Iterator[bytes]:
            yield self._read(FILE_HEADER_SIZE, 0)
            offset = FILE_HEADER_SIZE
            while offset < self._end:
                entry = self._entry_at(offset, self._end - offset)
                self._parts(entry)
                yield self._read(entry.length, offset)
                offset += entry.length
            yield record.data

        try:
            self._publish(verified())
        except CorruptError as error:
            self._set_aside()
            fact = f"{self.path} cannot be read any more ({error}); it was set aside, and a new file begins with the next state"
            warnings.warn(fact, CheckpointWarning, stacklevel=5)
            self._streams.clear()
            self.newest, self._last_sequence = None, record.header.sequence - 1
            raise _Unreadable from error

    def _publish(self, pieces: Iterable[bytes]) -> None:
        try:
            publish(self.path, pieces, storage=self._storage)
        except DurabilityError:
            self._open()
            self._poisoned = True  # in place, but the next append publishes anew
            raise
        self._poisoned = False
        self._open()


def _is_aside(name: str, target: str) -> bool:
    return name.startswith(f"{target}.aside.") and name.rpartition(".")[2].isdecimal()
