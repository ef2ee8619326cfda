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
from contextlib import ExitStack, contextmanager, suppress
from os import PathLike
from typing import Any, Final, NamedTuple

import msgspec

from . import container, delta
from .codec import pack_meta
from .container import FILE_HEADER_SIZE, MAX_MESSAGE, TRAILER_SIZE, RecordHeader, Source, Table
from .errors import CheckpointError, CheckpointWarning, CorruptError, DurabilityError, LimitError, NotFoundError, ReplacedError, StorageError
from .lock import Lock
from .reader import Damage, Entry, OpenFile, Reader
from .storage import DISK, Storage, explained, make_folder, publish, sweep, sync_folder, write_at
from .stream import Stream

__all__ = ["Appended", "Damage", "Entry", "Journal"]

_PIECE = 1 << 20
# While a file is compacted: what is left to the last sync, and to the last look at what was appended meanwhile.
_SYNC_EVERY, _CATCH_UP = 4 << 20, 1 << 16
_ASIDES = 3
# What the format has room for; no honest run comes near it.
_LAST_SEQUENCE: Final = 2**64 - 1


class Appended(NamedTuple):
    """What an append did: the record's sequence number, bytes of new chunks and of the whole write, and flushes of the disk."""

    sequence: int
    base: bool
    new_bytes: int
    written_bytes: int
    flushes: int


class _Unreadable(Exception):  # noqa: N818  (a message between two methods, never seen outside)
    """The old file does not verify: nothing new may refer to it."""


class Journal(Reader):
    """The records of one run's file. Opening reads its end, never all of it, and never fails for damage: `damage` says what it found.

    With `read_only` nothing is changed and no lock taken, beside a writer too; `refresh` follows what it writes. Otherwise the
    journal is the file's one writer, from construction to `close`, and a file that is not there is made by the first append.
    `chunk` is the size in bytes that new chunks aim at, `level` zstd's: 3 and not 1, for what is compressed is little (what changed)
    and kept for long. All methods may be called from several threads; reads do not wait for an append.

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
        # Nothing more is written into the file that is open: the next append publishes a new one. `_unsure`: a publish of ours was
        # cut short, and may have got as far as its replace. `_damaged`: the new file is to be a copy as it is. `_kept`: the tail is.
        self._poisoned = self._unsure = self._damaged = self._kept = self._closed = False
        self._replacing = False  # whether a compaction is in its last moments
        self._vouched = False  # whether it is this journal that made everything durable that is there
        self._pid = os.getpid()
        self._streams: dict[str, Stream] = {}
        self._lock: Lock | None = None
        path = os.path.abspath(os.fspath(path))
        if not read_only:
            with explained(path, "stat"):
                path = storage.resolve(path)  # one file has one lock, whatever links lead to it
            make_folder(os.path.dirname(path), storage)
            if lock:
                self._lock = Lock(f"{path}.lock", storage)
        try:
            if self._lock is not None:
                # A temporary of this name is a killed writer's. Without the lock it may be a living one's.
                sweep(path, storage)
                asides = self._asides(path, storage)
                for number in (*asides, _next(asides)):  # the next one: its copying may have been cut short
                    sweep(_aside(path, number), storage)
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
        self._synced, self._kept = self._end, False

    def refresh(self) -> bool:
        """What another process did, if this one only reads: a writer is the only one. See `Reader.refresh`."""
        return self.read_only and super().refresh()

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(
        self,
        message: bytes | bytearray,
        *,
        step: int | None = None,
        stream: str = "",
        key: str = "",
        has_ext: bool = False,
        retires: Sequence[tuple[int, int | None]] = (),
        meta: dict[str, Any] | None = None,
        metrics: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        source: Source | None = None,
        type_name: str = "",
        schema: str = "",
        schema_version: int = 1,
        blocked: int = 0,
        written: int | None = None,
        vet: Callable[[bool], object] = bool,
        base: bool = False,
        sync: bool = True,
    ) -> Appended:
        """Append a state; with `sync` it is durable when this returns. `retires` are steps of the stream that are live no longer.
        `written` is the time that the record says (nanoseconds since 1970), now if not given; `blocked`, in microseconds, what the
        save before it took of its caller. `vet` is called with whether the record will be a base; what it raises comes through, and
        nothing is written then.

        A failed append leaves the file as it was, and the next one works once its cause is gone: what a failed sync left unknown is
        never synced again, but copied, record by record and verified, into a new file. Damage at the end is copied aside first.

        Raises `LimitError`, `ReplacedError` (the file is another one now), `StorageError`; `DurabilityError` when the state is in
        place but its durability unknown.
        """
        if len(message) > self._max_size:
            raise LimitError("the state is too large", limit=self._max_size, got=len(message), path=self.path, remedy="split it")
        with self._exclusive():
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
                config=pack_meta(config, "config"),
                source=source,
                type=type_name,
                schema=schema,
                schema_version=schema_version,
                blocked=blocked,
                time=time.time_ns() if written is None else written,
                writer=container.VERSION,
            )
            try:
                return self._append(message, header, base, sync, vet)
            except _Unreadable:
                return self._append(message, msgspec.structs.replace(header, sequence=self._next_sequence()), True, sync, vet)

    def _append(self, message: bytes | bytearray, header: RecordHeader, base: bool, sync: bool, vet: Callable[[bool], object] = bool) -> Appended:
        state = self._streams.setdefault(header.stream, Stream())
        offset = self._end if self.newest is not None else FILE_HEADER_SIZE
        # A new file begins with a base; so does what is appended first after opening, for the old chunks may be damaged.
        base = base or self.newest is None
        change, record = state.pack(message, header, offset, base=base, unsynced=self._unsynced(), chunk=self._chunk, level=self._level)
        vet(record.header.base)
        flushes = self._write(record, sync)
        # Only now is the record what the next one may refer to.
        state.appended(change, offset, record)
        return Appended(header.sequence, record.header.base, len(change.content), record.size, flushes)

    def copy(self, header: RecordHeader, message: bytes) -> Appended:
        """Append a state under the header that it has in another file: its sequence number, step, time and metadata stay its own.

        For a draft that `publish` copies whole: nothing is synced, and the records say nothing of that. An empty journal takes over that
        file's id. Raises `ValueError` for a sequence number not above the newest, else as `append`.
        """
        with self._exclusive():
            if header.sequence < self._next_sequence() or header.kind != "state":
                raise ValueError(f"record {header.sequence} ({header.kind}) cannot follow record {self._next_sequence() - 1}")
            if self.newest is None:
                self._file_id = header.file
            appended = self._append(message, msgspec.structs.replace(header, file=self._file_id), base=False, sync=False)
            self._synced = self._end
            return appended

    def tombstone(self, retires: Sequence[tuple[int, int | None]], *, stream: str = "", sync: bool = True) -> Appended:
        """Append a record that only retires steps of a stream. Raises as `append` does."""
        with self._exclusive():
            header = RecordHeader(
                file=self._file_id,
                sequence=self._next_sequence(),
                kind="tombstone",
                stream=stream,
                base=True,
                retires=list(retires),
                message=0,
                digest=container.digest(b""),
                unsynced=self._unsynced(),
                zeros=False,
                time=time.time_ns(),
                writer=container.VERSION,
            )
            record = container.pack_record(header, Table([], b"", [], b"", b""), b"", level=self._level)
            try:
                flushes = self._write(record, sync)
            except _Unreadable as error:
                if self.newest is None:
                    raise StorageError("nothing is left to retire steps of: the file was set aside", path=self.path) from error.__cause__
                flushes = self._write(record, sync)
            return Appended(header.sequence, False, 0, record.size, flushes)

    def adopt(self, step: int) -> None:
        """Make a run of a single-record file: its state becomes `step`, the file is published anew, atomically."""
        with self._exclusive():
            single = self.newest
            if not self.single or single is None:
                return
            self._check_identity()
            if self.damage is not None:
                self._set_aside()  # what lies behind the record would be gone
            message = self.read(single)
            change = delta.diff(delta.EMPTY, message, FILE_HEADER_SIZE, chunk=self._chunk)
            digest = container.digest(change.chunks.checksums())
            header = msgspec.structs.replace(single.header, step=step, chunk=change.chunk, digest=digest)
            table = Table([], b"", change.runs, change.sizes, change.crcs)
            record = container.pack_record(header, table, message, level=self._level)
            self._publish([container.pack_file_header(self._file_id, run=True), *record.writes()])

    def sync(self) -> None:
        """Make durable what was appended without a sync, if need be in a new file. Raises as `append` does."""
        with self._exclusive():
            if self.newest is None or self._synced == self._end:
                return
            self._check_identity()
            if not self._poisoned:
                if not self._vouch():
                    self._sync_data()
                self._synced = self._end
                return
            try:
                self._rewrite(())
            except _Unreadable as error:
                raise StorageError("what was appended cannot be read any more", path=self.path, operation="sync") from error.__cause__

    # --- compaction --------------------------------------------------------------------------------------------------

    def settled(self) -> Entry | None:
        """The newest record of a file that can be compacted; what opening found torn behind it is cut first, as by an append.

        None for an empty journal and for a file of one checkpoint. Raises as `append` does.
        """
        with self._exclusive():
            if self.newest is None or self.single:
                return None
            self._check_identity()
            if not self._poisoned:
                self._cut_tail()
            return self.newest

    def detach(self, cut: int, newest: Entry) -> dict[str, Stream] | None:
        """From now on nothing that is appended refers to a record before byte `cut`: the streams that begin with a base for it.

        None when something appended behind `newest` does so, or the file is another one: too late, this time.
        """
        with self._exclusive():
            kept = {name: stream for name, stream in self._streams.items() if min(stream.owners, default=cut) >= cut}
            detached = {name: stream for name, stream in self._streams.items() if name not in kept}
            self._streams = kept
            entry = self.newest
            while entry is not None and entry.file is newest.file and entry.offset > newest.offset:
                if max(self._table(entry).distances, default=0) > entry.offset - cut:
                    return None
                entry = self.previous(entry)
            return detached if entry is not None and entry.file is newest.file else None

    def repack(self, file: OpenFile, offset: int, length: int, stream: Stream, at: int) -> container.Record:
        """A state of a file as the next record of `stream`, for byte `at` of another file; its number, step, time and metadata stay.

        Raises `CorruptError`, `LimitError`, `StorageError`.
        """
        entry = self._entry_at(offset, length, file)
        change, record = stream.pack(self.read(entry), entry.header, at, chunk=self._chunk, level=self._level)
        stream.appended(change, at, record)
        return record

    def replace(
        self,
        pieces: Iterable[bytes],
        newest: Entry,
        cut: int,
        moved: Callable[[int], int | None],
        streams: Callable[[], dict[str, Stream]] = dict,
        *,
        fsync: bool = True,
    ) -> float:
        """Go on in a new file: `pieces` for the records up to `newest` (from `settled`), behind them what is appended meanwhile, verbatim.

        From byte `cut` on (see `detach`) the pieces are the old file's bytes. They are drawn without the lock. An append waits only while
        the last records are copied, the new file is synced and takes the place of the old one, and its directory is synced: for as many
        seconds as are returned. Readers and entries go on in the file that they have. `moved` says where a record of the old file, up
        to `newest`, lies in the new one; a stream of which a record is gone begins with a base, or goes on as one of `streams`, which
        are asked for when the new file is in place.

        Raises `StorageError`, also when the journal was closed or its file written anew meanwhile, `ReplacedError`, `CorruptError`
        (nothing is copied that does not verify), and what drawing a piece raises: the file is as it was then. Raises
        `DurabilityError` when the new file is in place, its durability unknown: the next append publishes it anew.
        """
        end = newest.offset + newest.length
        with ExitStack() as held:
            begun, written = 0.0, 0
            before: list[tuple[bool, dict[str, Stream]]] = []

            def drawn() -> Iterator[bytes]:
                nonlocal begun, written
                for piece in pieces:
                    yield piece
                    written += len(piece)
                at = end
                while self._end - at > _CATCH_UP and self._file is newest.file:
                    at, start = self._end, at
                    yield from self._appended(newest, cut, start, at)
                held.enter_context(self._exclusive())
                begun = time.monotonic()
                held.callback(setattr, self, "_replacing", False)
                self._replacing = True
                if self._file is not newest.file or self._end < at:
                    raise StorageError("the file was written anew meanwhile", path=self.path, operation="compact", remedy="compact it again")
                self._check_identity()
                yield from self._appended(newest, cut, at, self._end)
                # From here on an interrupt leaves it unknown which file is the one by this name: nothing may refer to the wrong one.
                before.append((self._poisoned, self._streams))
                self._streams = {}
                self._poisoned = self._unsure = True

            def place(offset: int) -> int | None:
                return offset - end + written if offset >= end else moved(offset)

            try:
                self._go_on_in(drawn(), fsync=fsync, sync_every=_SYNC_EVERY)
            except StorageError:
                if before and self._unsure:
                    with suppress(StorageError):  # then the next append settles it
                        self._settle()
                        if self._file is newest.file:
                            self._poisoned, self._streams = before[0]
                raise
            there = {name: stream.moved(place) for name, stream in before[0][1].items()}
            self._streams = {**streams(), **{name: stream for name, stream in there.items() if stream is not None}}
            return time.monotonic() - begun

    def _appended(self, newest: Entry, cut: int, start: int, end: int) -> Iterator[bytes]:
        """What was appended behind `newest`, to its file."""
        return self.records(newest.file or self._file, start, end, since=cut)

    def close(self) -> None:
        """Sync what is left to sync and let the next writer in; nothing can be appended afterwards."""
        if os.getpid() != self._pid:
            self._closed, self._sharing = True, threading.Lock()  # a thread that is not here may hold the parent's
            self._close_files()
            return
        with self._appending:
            if self._closed:
                return
            try:
                if not self.read_only and (self._unsure or (self.newest is not None and self._synced != self._end)):
                    self.sync()
            finally:
                self._closed = True
                super().close()
                if self._lock is not None:
                    self._lock.release()

    def _next_sequence(self) -> int:
        last = self.newest.sequence if self.newest else self._last_sequence
        if last >= _LAST_SEQUENCE:
            raise LimitError("no sequence number is left", limit=_LAST_SEQUENCE, got=last + 1, path=self.path, remedy="go on in another run")
        return last + 1

    def _unsynced(self) -> int:
        # A file that is published is synced whole.
        return 0 if self.newest is None or self._poisoned else self._end - self._synced

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One thread at a time, of the process that opened it, with the lock."""
        if os.getpid() != self._pid:
            raise StorageError("a forked child cannot write its parent's run", path=self.path, remedy="open a run of its own in the child")
        with self._appending:
            if self._closed:
                raise StorageError("the journal is closed", path=self.path, remedy="open it again")
            if self._replacing:  # by this very thread: a signal handler
                raise StorageError("its file is just being replaced", path=self.path, remedy="set a flag in the signal handler, and save later")
            if self.read_only:
                raise StorageError("opened read-only", path=self.path, remedy="open it without read_only")
            if self._lock is not None:
                self._lock.check()
            if self._unsure:
                self._settle()
            yield

    def _write(self, record: container.Record, sync: bool) -> int:
        """Put a packed record at the end of the file, or into a new file where there is none to trust; the flushes that it took."""
        if self.newest is None:
            self._check_identity()
            if self._file.fd >= 0:
                self._set_aside()
            self._publish([container.pack_file_header(self._file_id, run=True), *record.writes()])
            return 2
        if self.single:
            raise StorageError("a file of one checkpoint must be adopted first", path=self.path)
        self._check_identity()
        if self._poisoned:
            self._rewrite(record.writes())
            return 2
        self._cut_tail()
        flushes = self._vouch() + int(sync)
        end = self._end
        self._poisoned, self._size = True, -1  # until all of this is done, whatever may interrupt it
        try:
            with explained(self.path, "append"):
                for piece in record.writes():
                    write_at(self._file.fd, piece, end, self._storage)
                    end += len(piece)
        except BaseException:
            self._cut()
            raise
        self._size = end
        if sync:
            try:
                self._sync_data()
            except StorageError:
                # Readable from memory, and not on the disk: the next process would take it for a step, and its own sync would answer
                # with success. Nothing is synced: the file stays poisoned.
                with suppress(OSError):
                    self._storage.truncate(self._file.fd, self._end)
                    self._size = self._end
                raise
        self.newest = Entry(record.header.sequence, self._end, record.size, record.header, record.header_checksum, self._file)
        self._end = end
        self._synced = self._end if sync else self._synced
        self._poisoned = False
        return flushes

    def _vouch(self) -> int:
        """Before the first append: make durable what a killed writer may have left without its syncs; the flushes that it took."""
        if self._vouched:
            return 0
        self._sync_data()
        self._sync_folder()
        self._vouched, self._synced = True, self._end
        return 2

    def _sync_folder(self) -> None:
        try:
            sync_folder(os.path.dirname(self.path), self.path, self._storage)
        except DurabilityError as error:  # which would say that the state is in place
            raise StorageError(error.fact, path=self.path, operation=error.operation, code=error.code, remedy="save again") from error

    def _check_identity(self) -> None:
        """The file by this name is still the one that is open, as it was left: a record appended to another would be lost with it."""
        try:
            status = self._storage.stat(self.path)
        except FileNotFoundError as error:
            if self._file.fd < 0:
                return
            raise ReplacedError(self.path) from error
        except OSError as error:
            raise StorageError.of(error, self.path, "stat") from error
        # A backup may have been copied over it. After an interrupted write its size (-1) is not known.
        if (status.st_dev, status.st_ino) != self._identity or status.st_size != self._size >= 0:
            raise ReplacedError(self.path)

    def _settle(self) -> None:
        """After a publish that was cut short: the file by this name may be the new one, known by its id; then it is gone on with.

        Its records may lie elsewhere than in the old one.
        """
        status: os.stat_result | None = None
        with explained(self.path, "stat"), suppress(FileNotFoundError):  # as before the first file
            status = self._storage.stat(self.path)
        if status is not None and (status.st_dev, status.st_ino) != self._identity:
            before = self._file_id
            self._streams = {}
            self._open()
            self._synced = 0
            if self._file_id != before:
                self._identity = (0, 0)
        self._unsure = False

    def _sync_data(self) -> None:
        # The kernel may drop what it cannot write, and a second sync of this file would answer with success.
        poisoned, self._poisoned = self._poisoned, True
        with explained(self.path, "sync"):
            self._storage.sync_data(self._file.fd)
        self._poisoned = poisoned

    def _cut(self) -> None:
        """After a failed write: the file as it was, durably, or old bytes would come back under the next record."""
        try:
            self._storage.truncate(self._file.fd, self._end)
            self._storage.sync_data(self._file.fd)
        except OSError:
            return  # poisoned it stays
        self._size = self._end
        self._poisoned = False

    def _cut_tail(self) -> None:
        """Copy aside and cut what opening found behind the last whole record."""
        if self.damage is None or self._size <= self._end:
            return
        if not self._kept:
            self._keep_aside(lambda aside: publish(aside, self._pieces(self._end), storage=self._storage))
            self._kept = True
        with explained(self.path, "truncate"):
            self._storage.truncate(self._file.fd, self._end)
        self._size = self._end
        self._sync_data()
        self.damage = None

    def _pieces(self, start: int, end: int = 1 << 62) -> Iterator[bytes]:
        while start < end and (piece := self._read(min(_PIECE, end - start), start)):
            yield piece
            start += len(piece)

    def records(self, file: OpenFile, start: int, end: int, *, since: int = 0) -> Iterator[bytes]:
        """The bytes of each record in a stretch of a file, verified; none of them may refer to a record before byte `since`.

        Raises `CorruptError`, `StorageError`.
        """
        offset = start
        while offset < end:
            entry = self._entry_at(offset, end - offset, file)
            data = file.read(entry.length, offset)
            table = self._verified(data, entry)
            if max(table.distances, default=0) > offset - since:
                raise CorruptError("a table that points before its generation", path=self.path, offset=offset)
            yield data
            offset += entry.length

    def _verified(self, data: bytes, entry: Entry) -> Table:
        """The table of a record that is `data`, all of its checksums compared."""
        header = entry.header
        trailer_at = len(data) - TRAILER_SIZE
        frame_at = trailer_at - header.frame
        table_at = frame_at - header.table
        trailer = container.unpack_trailer(data[trailer_at:], path=self.path, offset=entry.offset + trailer_at)
        if data[table_at - 8 : table_at] != entry.checksum or trailer != (entry.length, entry.checksum):
            raise CorruptError("a trailer of another record", path=self.path, offset=entry.offset + trailer_at)
        table = container.unpack_table(data[table_at:frame_at], header, path=self.path, offset=entry.offset + table_at)
        container.check_frame(data[frame_at:trailer_at], header, path=self.path, offset=entry.offset + frame_at)
        return table

    def _set_aside(self) -> None:
        """Keep the file under another name too, before another one takes its place."""
        for number in self._asides(self.path, self._storage):
            with suppress(OSError):
                status = self._storage.stat(_aside(self.path, number))
                if (status.st_dev, status.st_ino) == self._identity:
                    return

        def link(aside: str) -> None:
            try:
                self._storage.link(self.path, aside)
            except OSError:  # a filesystem without links, perhaps: then a copy
                publish(aside, self._pieces(0), storage=self._storage)
            else:
                self._sync_folder()

        self._keep_aside(link)

    def _keep_aside(self, make: Callable[[str], object]) -> None:
        kept = self._asides(self.path, self._storage)
        try:
            make(_aside(self.path, _next(kept)))
        except DurabilityError as error:  # of the copy; the state is not in place
            raise StorageError(error.fact, path=self.path, operation=error.operation, code=error.code) from error
        for number in kept[: max(0, len(kept) - _ASIDES + 1)]:
            with suppress(OSError):  # one copy more than promised
                self._storage.unlink(_aside(self.path, number))

    @staticmethod
    def _asides(path: str, storage: Storage) -> list[int]:
        """The numbers of the copies that are kept aside, oldest first."""
        folder, name = os.path.split(path)
        with explained(folder, "list"):
            names = storage.list(folder)
        found = [other.removeprefix(f"{name}.aside.") for other in names if other.startswith(f"{name}.aside.")]
        return sorted(int(number) for number in found if number.isascii() and number.isdecimal())

    def _rewrite(self, record: Sequence[bytes]) -> None:
        """A new file on a new inode: every record, verified while it is copied, and the new one behind them.

        What does not verify is set aside, and then copied as it is: the steps that can be read stay, the next record is a base.
        """

        def verified() -> Iterator[bytes]:
            try:
                yield self._read(FILE_HEADER_SIZE, 0)
                yield from self.records(self._file, FILE_HEADER_SIZE, self._end)
            except (CorruptError, StorageError) as error:
                raise _Unreadable from error
            yield from record

        def as_it_is() -> Iterator[bytes]:
            try:
                yield from self._pieces(0, self._end)
            except StorageError as error:
                raise _Unreadable from error
            yield from record

        try:
            self._publish(as_it_is() if self._damaged else verified())
        except _Unreadable as unreadable:
            error = unreadable.__cause__
            self._set_aside()
            self._streams.clear()
            if isinstance(error, CorruptError):
                self._damaged = True
                fact = f"{self.path} is damaged ({error}); it was set aside, and what can be read of it goes on in a new file"
            else:
                self._last_sequence = self.newest.sequence if self.newest else self._last_sequence
                self.newest = None
                fact = f"{self.path} cannot be read any more ({error}); it was set aside, and a new file begins with the next state"
            warnings.warn(fact, CheckpointWarning, stacklevel=6)
            raise

    def _publish(self, pieces: Iterable[bytes]) -> None:
        self._poisoned = self._unsure = True  # until the new file is open
        self._go_on_in(pieces)

    def _go_on_in(self, pieces: Iterable[bytes], *, fsync: bool = True, sync_every: int = 0) -> None:
        try:
            publish(self.path, pieces, fsync=fsync, sync_every=sync_every, storage=self._storage)
        except DurabilityError:
            with suppress(CheckpointError):  # the next append tries again
                self._open()
                # In place, but not known to be durable: the next append publishes anew.
                self._synced, self._unsure = 0, False
            raise
        self._open()
        if not fsync:
            self._synced = 0
        self._poisoned = self._unsure = self._damaged = False
        self._vouched = fsync


def _next(asides: Sequence[int]) -> int:
    return asides[-1] + 1 if asides else 1


def _aside(path: str, number: int) -> str:
    return f"{path}.aside.{number}"
