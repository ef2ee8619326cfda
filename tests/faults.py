"""The fault harness: stand-ins for `fastckpt.storage.Storage` that model a disk, crash, fail, and get things wrong.

* `ModelStorage` is a filesystem in memory that knows what a loss of power may leave of it (`states`).
* `CrashingStorage` stops the world after the first k calls; `FaultyStorage` makes the n-th one fail; `BeforeCall` lets
  something happen just before one.
* The mutants at the end change the product's stream of calls as a wrong edit of the product would.
* `check_crashes`, `check_faults` and `check_interleavings` put them together with the one oracle: **the old state or the new
  one, and at least the last one acknowledged**; anything else raises `Lost`.

A method added to `Storage` is passed on, counted, crashed and failed without a change here; only `ModelStorage` must learn
it (a test says so).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import random
import stat as stat_module
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import count, difference

import fastckpt
from fastckpt import storage as storage_module
from fastckpt.errors import CheckpointError, DurabilityError, NotFoundError, StorageError
from fastckpt.journal import Journal
from fastckpt.reader import Reader
from fastckpt.storage import DISK, Storage, is_temporary, open_file, publish, read_at

METHODS = tuple(name for name, value in vars(Storage).items() if callable(value) and not name.startswith("_"))
# What cannot fail and changes nothing.
HARMLESS = ("sleep",)
SYNCS = ("sync", "sync_data")
FOR_EVER = math.inf

SECTOR = 512
# States after a crash are enumerated up to this many, and sampled beyond.
EXHAUSTIVE = 4096
SAMPLES = 500
# Where states are made real: thousands of directories, five times faster where no disk is behind them.
IN_MEMORY = next((folder for folder in ["/dev/shm"] if os.access(folder, os.W_OK)), None)


class Lost(AssertionError):  # noqa: N818  (what it says reads better so)
    """A state was found that no fault may leave: an acknowledged save is gone, or something that was never saved is there."""


# 1. The model of a disk


@dataclass(eq=False)
class File:
    number: int
    mode: int
    content: bytearray = field(default_factory=bytearray)
    # What is on the medium for certain, and what the content was after each change that has not been synced since.
    synced: bytes = b""
    unsynced: list[bytes] = field(default_factory=list)
    # A sync failed: the kernel has marked the pages clean, so a later sync answers with success and writes nothing.
    poisoned: bool = False
    # Sectors that were lost so, with what the medium may hold of them: they read back well, and nobody knows any more.
    dropped: dict[int, list[bytes]] = field(default_factory=dict)

    def changed(self) -> None:
        self.unsynced.append(bytes(self.content))

    def sync(self) -> None:
        if not self.poisoned:
            self.synced, self.unsynced = bytes(self.content), []

    def sectors(self) -> list[list[bytes]]:
        """For each sector what it may hold after a crash. What was never written reads as zeros."""
        versions = [self.synced, *self.unsynced]
        count = math.ceil(max(map(len, versions)) / SECTOR)
        found = [[v[i * SECTOR : (i + 1) * SECTOR].ljust(SECTOR, b"\0") for v in versions] for i in range(count)]
        return [[*dict.fromkeys([*values, *self.dropped.get(i, ())])] for i, values in enumerate(found)]

    def sizes(self) -> list[int]:
        """What size it may have: those it had, and between them the boundaries of sectors and their neighbours."""
        had = [len(self.synced), *map(len, self.unsynced)]
        low, high = min(had), max(had)
        near = [n + d for n in [*range(0, high + 1, SECTOR), low, high] for d in (-1, 0, 1)]
        return [*dict.fromkeys([*had, *(n for n in near if low <= n <= high)])]


@dataclass(eq=False)
class Directory:
    number: int
    mode: int = 0o755
    entries: dict[str, File | Directory] = field(default_factory=dict)
    synced: dict[str, File | Directory] = field(default_factory=dict)
    unsynced: list[tuple[str, File | Directory | None]] = field(default_factory=list)

    def put(self, name: str, inode: File | Directory | None) -> None:
        if inode is None:
            del self.entries[name]
        else:
            self.entries[name] = inode
        self.unsynced.append((name, inode))

    def sync(self) -> None:
        self.synced, self.unsynced = dict(self.entries), []

    def alternatives(self) -> dict[str, list[File | Directory | None]]:
        """For each entry that changed since the last sync what it may be: a rename is atomic for each of its two names, no more."""
        found: dict[str, list[File | Directory | None]] = {}
        for name, inode in self.unsynced:
            found.setdefault(name, [self.synced.get(name)]).append(inode)
        return {name: [*dict.fromkeys(values)] for name, values in found.items()}


class State(NamedTuple):
    """One state of a disk after a crash: directories, and files as (number, mode, content); equal numbers are one file."""

    folders: tuple[tuple[str, ...], ...]
    files: dict[tuple[str, ...], tuple[int, int, bytes]]

    def signature(self) -> object:
        return self.folders, tuple((path, content) for path, (_, _, content) in sorted(self.files.items()))

    def write_to(self, folder: str | os.PathLike[str]) -> None:
        """Make it real, below `folder`: what was `/disk/x` in the model is `folder/disk/x`."""
        for parts in self.folders:
            os.mkdir(os.path.join(folder, *parts))
        first: dict[int, str] = {}
        for parts, (number, mode, content) in self.files.items():
            path = os.path.join(folder, *parts)
            if number in first:
                os.link(first[number], path)
                continue
            first[number] = path
            with open(path, "wb") as stream:
                stream.write(content)
            os.chmod(path, mode)

    def boot(self) -> ModelStorage:
        """The machine after the crash, started again: everything that is there is on the medium."""
        model = ModelStorage()
        for parts in self.folders:
            model.mkdir(os.path.join(os.sep, *parts))
        known: dict[int, File] = {}
        for parts, (number, mode, content) in self.files.items():
            file = known.setdefault(number, File(model.next_number(), mode, bytearray(content), content))
            model.directory(parts[:-1]).put(parts[-1], file)
        model.sync_everything()
        return model

    def __str__(self) -> str:
        lines = ["/" + "/".join(parts) + "/" for parts in self.folders]
        lines += [f"/{'/'.join(parts)}: {len(content)} bytes, {content[:24]!r}..." for parts, (_, _, content) in self.files.items()]
        return "\n".join(lines) or "(an empty disk)"


class ModelStorage(Storage):
    """A filesystem in memory that promises no more than a real one does (FAULTS, Harness advice 2).

    Certain after a crash are the data of a file up to its last sync, and the entries of a directory up to its last sync. Of
    later writes any subset of sectors may be there, with any size in between; of later changes of entries any subset; and
    nothing is ordered between two files. Paths are absolute; there are no symbolic links and no permissions.
    """

    def __init__(self, files: Mapping[str, bytes] | None = None, folders: Iterable[str] = ()) -> None:
        self._numbers = itertools.count(2)
        self.root = Directory(1)
        self.descriptors: dict[int, tuple[File | Directory, int]] = {}
        self._fds = itertools.count(1000)  # never mistaken for one of the process
        self._locks: dict[File | Directory, int] = {}
        self.slept: list[float] = []
        for path in folders:
            self.mkdir(path)
        for path, content in (files or {}).items():
            fd = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            self.write(fd, memoryview(content), 0)
            self.close(fd)
        self.sync_everything()

    # What a crash may leave

    def states(self, seed: int = 0, most: int | None = None) -> Iterator[State]:
        """Every state that a loss of power now may leave, each once; a seeded sample, and the extremes, where they are too many.

        Too many are more than `most`, which is also how many are sampled then; if it is not given, EXHAUSTIVE and SAMPLES.
        """
        seen: set[object] = set()
        for state in self._states(seed, most or EXHAUSTIVE, most or SAMPLES):
            if (signature := state.signature()) not in seen:
                seen.add(signature)
                yield state

    def _states(self, seed: int, exhaustive: int, samples: int) -> Iterator[State]:
        entries = [(d, name, values) for d in self._directories() for name, values in d.alternatives().items()]
        layouts = math.prod(len(values) for *_, values in entries)

        def layout(choice: Iterable[File | Directory | None]) -> tuple[dict[tuple[str, ...], File], list[tuple[str, ...]]]:
            chosen = {(d.number, name): inode for (d, name, _), inode in zip(entries, choice, strict=True)}
            files: dict[tuple[str, ...], File] = {}
            folders: list[tuple[str, ...]] = []

            def walk(directory: Directory, above: tuple[str, ...]) -> None:
                names = dict.fromkeys([*directory.synced, *(name for name, _ in directory.unsynced)])
                for name in names:
                    inode = chosen.get((directory.number, name), directory.synced.get(name))
                    if isinstance(inode, File):
                        files[*above, name] = inode
                    elif inode is not None:
                        folders.append((*above, name))
                        walk(inode, (*above, name))

            walk(self.root, ())
            return files, folders

        def alternatives(files: Iterable[File]) -> list[tuple[File, list[int], list[list[bytes]]]]:
            return [(file, file.sizes(), file.sectors()) for file in dict.fromkeys(files) if file.unsynced or file.dropped]

        def state(files: dict[tuple[str, ...], File], folders: list[tuple[str, ...]], data: Mapping[File, bytes]) -> State:
            return State(tuple(folders), {path: (f.number, f.mode, data.get(f, f.synced)) for path, f in files.items()})

        if layouts <= exhaustive:
            every = [layout(choice) for choice in itertools.product(*(values for *_, values in entries))]
            possible = [alternatives(files.values()) for files, _ in every]
            if sum(math.prod(len(v) for _, s, t in p for v in (s, *t)) for p in possible) <= exhaustive:
                for (files, folders), uncertain in zip(every, possible, strict=True):
                    for contents in itertools.product(*(_contents(sizes, sectors) for _, sizes, sectors in uncertain)):
                        yield state(files, folders, {file: data for (file, *_), data in zip(uncertain, contents, strict=True)})
                return

        # Nothing of what was not synced, all of it, and a sample of what lies between.
        yield state(*layout(d.synced.get(name) for d, name, _ in entries), {})
        files, folders = layout(d.entries.get(name) for d, name, _ in entries)
        yield state(files, folders, {file: bytes(file.content) for file in files.values()})
        pick = random.Random(seed).choice
        for _ in range(samples):
            files, folders = layout(pick(values) for *_, values in entries)
            yield state(files, folders, {file: b"".join(map(pick, sectors))[: pick(sizes)] for file, sizes, sectors in alternatives(files.values())})

    def _directories(self) -> list[Directory]:
        found: dict[Directory, None] = {self.root: None}
        for directory in (queue := [self.root]):
            below = [*directory.entries.values(), *directory.synced.values(), *(inode for _, inode in directory.unsynced)]
            for inode in below:
                if isinstance(inode, Directory) and inode not in found:
                    found[inode] = None
                    queue.append(inode)
        return [*found]

    def sync_everything(self) -> None:
        """What is there now is on the medium, as after a long time."""
        for directory in self._directories():
            directory.sync()
            for inode in directory.entries.values():
                inode.sync()

    def sync_failed(self, fd: int) -> None:
        """A sync of `fd` reports an error: of a file, its unsynced pages are dropped from the list of what is to be written."""
        inode, _ = self._descriptor(fd)
        if isinstance(inode, File):
            inode.poisoned = True

    def next_process(self) -> None:
        """Whoever had something open is gone, and with it the knowledge of failed syncs: what these dropped reads back well and may never
        be on the medium, unless it is written again; what is written from now on, and synced, is.
        """
        self.descriptors.clear()
        for directory in self._directories():
            for inode in [*directory.entries.values(), *directory.synced.values()]:
                if isinstance(inode, File) and inode.poisoned:
                    inode.dropped.update({i: values for i, values in enumerate(inode.sectors()) if len(values) > 1})
                    inode.poisoned = False

    # The methods of Storage

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        if flags & os.O_APPEND:
            raise NotImplementedError("pwrite on a file opened with O_APPEND ignores its offset on Linux: not for this product")
        inode = self._find(path)
        if inode is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            directory, name = self._parent(path)
            inode = File(self.next_number(), mode & ~0o022)
            directory.put(name, inode)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        elif isinstance(inode, Directory) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise _error(errno.EISDIR, path)
        elif isinstance(inode, File) and flags & getattr(os, "O_DIRECTORY", 0):
            raise _error(errno.ENOTDIR, path)
        elif isinstance(inode, File) and flags & os.O_TRUNC and inode.content:
            inode.content.clear()
            inode.changed()
        fd = next(self._fds)
        self.descriptors[fd] = inode, flags
        return fd

    def read(self, fd: int, size: int, offset: int) -> bytes:
        file = self._file(fd, not_with=os.O_WRONLY)
        return bytes(file.content[offset : offset + size])

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        file = self._file(fd, not_with=os.O_RDONLY)
        if len(data):
            file.content.extend(bytes(max(0, offset - len(file.content))))
            file.content[offset : offset + len(data)] = data
            file.changed()
            for sector in range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1):
                file.dropped.pop(sector, None)
        return len(data)

    def sync(self, fd: int) -> None:
        self._descriptor(fd)[0].sync()

    def sync_data(self, fd: int) -> None:
        self._descriptor(fd)[0].sync()

    def truncate(self, fd: int, size: int) -> None:
        inode, flags = self._descriptor(fd)
        if isinstance(inode, Directory) or not flags & (os.O_WRONLY | os.O_RDWR):
            raise _error(errno.EINVAL, fd)
        if size != len(inode.content):
            del inode.content[size:]
            inode.content.extend(bytes(size - len(inode.content)))
            inode.changed()

    def link(self, source: str, target: str) -> None:
        inode = self._find(source)
        there, name = self._parent(target)
        if inode is None:
            raise _error(errno.ENOENT, source)
        if name in there.entries:
            raise _error(errno.EEXIST, target)
        if isinstance(inode, Directory):
            raise _error(errno.EPERM, source)
        there.put(name, inode)

    def lock(self, fd: int) -> bool:
        inode, _ = self._descriptor(fd)
        # It goes with the descriptor, and that goes with the process.
        if (holder := self._locks.get(inode)) in self.descriptors and holder != fd:
            return False
        self._locks[inode] = fd
        return True

    def close(self, fd: int) -> None:
        self._descriptor(fd)
        del self.descriptors[fd]

    def replace(self, source: str, target: str) -> None:
        here, name = self._parent(source)
        there, new_name = self._parent(target)
        inode, old = here.entries.get(name), there.entries.get(new_name)
        if inode is None:
            raise _error(errno.ENOENT, source)
        if inode is old:
            return
        if isinstance(old, Directory):
            if isinstance(inode, File):
                raise _error(errno.EISDIR, target)
            if old.entries:
                raise _error(errno.ENOTEMPTY, target)
        elif old is not None and isinstance(inode, Directory):
            raise _error(errno.ENOTDIR, target)
        there.put(new_name, inode)
        here.put(name, None)

    def unlink(self, path: str) -> None:
        inode = self._find(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        if isinstance(inode, Directory):
            raise _error(errno.EISDIR, path)
        directory, name = self._parent(path)
        directory.put(name, None)

    def mkdir(self, path: str) -> None:
        if self._find(path) is not None:
            raise _error(errno.EEXIST, path)
        directory, name = self._parent(path)
        directory.put(name, Directory(self.next_number()))

    def chmod(self, fd: int, mode: int) -> None:
        self._descriptor(fd)[0].mode = mode

    def stat(self, path: str | int) -> os.stat_result:
        inode = self._descriptor(path)[0] if isinstance(path, int) else self._find(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        kind, size = (stat_module.S_IFREG, len(inode.content)) if isinstance(inode, File) else (stat_module.S_IFDIR, 0)
        times = {"st_mtime_ns": inode.number, "st_ctime_ns": inode.number}
        return os.stat_result((kind | inode.mode, inode.number, 1, 1, 0, 0, size, 0, 0, 0), times)

    def list(self, path: str) -> list[str]:
        inode = self._find(path)
        if not isinstance(inode, Directory):
            raise _error(errno.ENOENT if inode is None else errno.ENOTDIR, path)
        return [*inode.entries]

    def resolve(self, path: str) -> str:
        return os.path.abspath(path)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    # Below the methods

    def content(self, path: str) -> bytes | None:
        """What is visible at `path` now; None: no file."""
        try:
            inode = self._find(path)
        except OSError:
            return None
        return bytes(inode.content) if isinstance(inode, File) else None

    def next_number(self) -> int:
        return next(self._numbers)

    def directory(self, parts: Sequence[str]) -> Directory:
        found: File | Directory | None = self.root
        for name in parts:
            if not isinstance(found, Directory):
                raise _error(errno.ENOTDIR, "/".join(parts))
            if len(os.fsencode(name)) > 255:
                raise _error(errno.ENAMETOOLONG, name)
            if (found := found.entries.get(name)) is None:
                raise _error(errno.ENOENT, "/".join(parts))
        if not isinstance(found, Directory):
            raise _error(errno.ENOTDIR, "/".join(parts))
        return found

    def _parent(self, path: str) -> tuple[Directory, str]:
        *above, name = Path(path).parts[1:]
        if len(os.fsencode(name)) > 255:
            raise _error(errno.ENAMETOOLONG, path)
        return self.directory(above), name

    def _find(self, path: str) -> File | Directory | None:
        if len(Path(path).parts) == 1:
            return self.root
        directory, name = self._parent(path)
        return directory.entries.get(name)

    def _descriptor(self, fd: int) -> tuple[File | Directory, int]:
        if fd not in self.descriptors:
            raise _error(errno.EBADF, fd)
        return self.descriptors[fd]

    def _file(self, fd: int, *, not_with: int) -> File:
        inode, flags = self._descriptor(fd)
        if flags & (os.O_WRONLY | os.O_RDWR) == not_with:
            raise _error(errno.EBADF, fd)
        if isinstance(inode, Directory):
            raise _error(errno.EISDIR, fd)
        return inode


def _contents(sizes: list[int], sectors: list[list[bytes]]) -> list[bytes]:
    wholes = [b"".join(parts) for parts in itertools.product(*sectors)]
    return [*dict.fromkeys(whole[:size] for size in sizes for whole in wholes)]


def _error(code: int, path: object) -> OSError:
    return OSError(code, os.strerror(code), str(path))


# 2. What goes wrong


class Passing(Storage):
    """Passes every call on to `inner` and keeps them: the base of everything that interferes with some of them."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self.inner, name)(*arguments)

    def disk(self) -> Storage:
        """What all calls come to in the end."""
        return self.inner.disk() if isinstance(self.inner, Passing) else self.inner

    def is_file(self, fd: int) -> bool:
        return stat_module.S_ISREG(self.inner.stat(fd).st_mode)

    def trace(self) -> str:
        """The calls so far, a line each, with long data cut short; the last one may not have happened."""
        return "\n".join(f"{n:3} {name}({', '.join(map(_argument, arguments))})" for n, (name, arguments) in enumerate(self.calls, 1))


def _argument(value: Any) -> str:
    return f"<{len(value)} bytes>" if isinstance(value, (bytes, memoryview)) else repr(value)


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: Passing, *arguments: Any) -> Any:
        self.calls.append((name, arguments))
        return self.call(name, *arguments)

    return method


for _name in METHODS:
    setattr(Passing, _name, _passed_on(_name))


class RecordingStorage(Passing):
    """Does everything, and keeps the calls."""


class Crash(BaseException):
    """The machine stops here. Not an `Exception`, so that no handler of the product can go on after it."""


class CrashingStorage(Passing):
    """Does the first `after` calls; then nothing happens any more, so that whatever the product does to tidy up changes nothing."""

    def __init__(self, inner: Storage, after: int) -> None:
        super().__init__(inner)
        self.left = after

    def call(self, name: str, *arguments: Any) -> Any:
        if self.left <= 0:
            raise Crash
        self.left -= 1
        return super().call(name, *arguments)


class FaultyStorage(Passing):
    """The `nth` call (of the kinds in `kind`, with arguments for which `on` is true) fails with `code`, and `times - 1` after it.

    With `count`, a write or a read does only so many bytes instead. With `happened`, the call is done and fails nevertheless.
    `error` makes another error than the plain `OSError` with that code. Which calls failed is in `hit`; descriptors that are still
    open in `open_fds`; files that were synced again after a sync of theirs had failed in `synced_again`.
    """

    def __init__(
        self,
        inner: Storage,
        nth: int = 1,
        *,
        kind: str | tuple[str, ...] = METHODS,
        on: Callable[..., object] = lambda *arguments: True,
        code: int = errno.EIO,
        error: Callable[[], OSError] | None = None,
        times: float = 1,
        count: int | None = None,
        happened: bool = False,
    ) -> None:
        super().__init__(inner)
        self.nth, self.times, self.count, self.happened = nth, times, count, happened
        self.kinds = (kind,) if isinstance(kind, str) else kind
        self.on = on
        self.error = error or (lambda: OSError(code, os.strerror(code)))
        self.hit: list[str] = []
        self.open_fds: set[int] = set()
        self.synced_again: list[tuple[int, int]] = []
        self._failed_syncs: set[tuple[int, int]] = set()
        self._matching = 0

    def call(self, name: str, *arguments: Any) -> Any:
        if len(self.calls) > 5_000:
            raise AssertionError(f"goes round in circles:\n{self.trace()[-2000:]}")
        if name in SYNCS:
            status = self.inner.stat(arguments[0])
            if (status.st_dev, status.st_ino) in self._failed_syncs and stat_module.S_ISREG(status.st_mode):
                self.synced_again.append((status.st_dev, status.st_ino))
        fails = self._due(name, arguments)
        if fails:
            self.hit.append(name)
            if self.count is not None:
                return self._short(name, *arguments)
            if name in SYNCS:
                self._failed_syncs.add((status.st_dev, status.st_ino))
                if isinstance(disk := self.disk(), ModelStorage):
                    disk.sync_failed(arguments[0])
        # A descriptor is gone after a close, whatever it reports (close(2) on Linux).
        result = super().call(name, *arguments) if not fails or self.happened or name == "close" else None
        if name == "open" and result is not None:
            self.open_fds.add(result)
        elif name == "close":
            self.open_fds.discard(arguments[0])
        if fails:
            raise self.error()
        return result

    def _due(self, name: str, arguments: tuple[Any, ...]) -> bool:
        if name in HARMLESS or name not in self.kinds or not self.on(*arguments):
            return False
        self._matching += 1
        return self.nth <= self._matching < self.nth + self.times

    def _short(self, name: str, fd: int, data: Any, offset: int) -> Any:
        assert self.count is not None
        if name == "write":
            return self.inner.write(fd, data[: self.count], offset)
        return self.inner.read(fd, min(data, self.count), offset)


class BeforeCall(Passing):
    """Just before the `nth` call (of `kind`, with arguments for which `on` is true), `action` happens once: another process,
    a reader, somebody who plants a link.
    """

    def __init__(
        self,
        inner: Storage,
        action: Callable[[], object],
        nth: int = 1,
        *,
        kind: str | tuple[str, ...] = METHODS,
        on: Callable[..., object] = lambda *arguments: True,
    ) -> None:
        super().__init__(inner)
        self.action, self.left, self.on, self.kinds = action, nth, on, (kind,) if isinstance(kind, str) else kind
        self.happened = False

    def call(self, name: str, *arguments: Any) -> Any:
        if name in self.kinds and self.on(*arguments):
            self.left -= 1
            if self.left == 0:
                self.happened = True
                self.action()
        return super().call(name, *arguments)


def creates(path: str, flags: int, mode: int = 0) -> bool:
    """For `on`: an open that makes the temporary file."""
    return bool(flags & os.O_CREAT)


# 3. What is put to the test


class Subject(NamedTuple):
    """A pair of functions that save and load, and some values, distinct in every sector of what they write."""

    name: str
    save: Callable[..., object]  # (path, value, storage)
    load: Callable[..., Any]  # (path, storage)
    values: tuple[Any, ...]


def _save_bytes(path: str | os.PathLike[str], value: bytes, storage: Storage = DISK) -> object:
    return publish(path, value, storage=storage)


def _load_bytes(path: str | os.PathLike[str], storage: Storage = DISK) -> bytes:
    with open_file(path, storage) as (fd, status):
        return read_at(fd, status.st_size, 0, storage)


def _save_state(path: str | os.PathLike[str], value: Any, storage: Storage = DISK) -> object:
    return fastckpt.save(path, value, storage=storage)


def _load_state(path: str | os.PathLike[str], storage: Storage = DISK) -> Any:
    return fastckpt.load(path, storage=storage)


def _noise(size: int, seed: int) -> bytes:
    """Bytes without a zero, so that a lost sector shows."""
    return bytes(random.Random(seed).choices(range(1, 256), k=size))


PUBLISH = Subject("publish", _save_bytes, _load_bytes, tuple(_noise(size, size) for size in (700, 1300, 300, 1024)))
# Incompressible text of different lengths; with its headers such a file takes 2 to 4 sectors.
SAVE = Subject(
    "save",
    _save_state,
    _load_state,
    tuple({"step": step, "answers": {"q": True}, "trace": _noise(size, step).hex()} for step, size in enumerate((300, 900, 10, 600), 1)),
)

each_subject = pytest.mark.parametrize("subject", [PUBLISH, SAVE], ids=lambda subject: subject.name)


def unchanged(storage: Storage) -> Storage:
    """The product as it is; a mutant stands in its place."""
    return storage


DISTANT = "/disk/runs/a/checkpoint.fastckpt"  # its two directories are missing at first
NEAR = "/disk/checkpoint.fastckpt"


def new_disk(subject: Subject, path: str, old: Any = None) -> ModelStorage:
    """A model with the directory /disk, and with `old` saved at `path` long ago, unless it is None."""
    model = ModelStorage(folders=["/disk"])
    if old is not None:
        subject.save(path, old, model)
        model.sync_everything()
    return model


def load_or_none(subject: Subject, path: str | os.PathLike[str], storage: Storage = DISK) -> Any:
    """What is saved there; None for "there is no checkpoint"; the error that a load ended in, which is never right."""
    try:
        return subject.load(path, storage)
    except NotFoundError:
        return None
    except CheckpointError as error:
        return error


def is_one_of(found: Any, allowed: Iterable[Any]) -> bool:
    return any(difference(found, value) is None for value in allowed)


def load_after_crash(subject: Subject, path: str, state: State) -> Any:
    """Load from `state`, made real in a directory of its own."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        state.write_to(folder)
        return load_or_none(subject, os.path.join(folder, *Path(path).parts[1:]))


def require_after_crash(subject: Subject, path: str, model: ModelStorage, allowed: Sequence[Any], *, seed: int, told: str, seen: set[object]) -> None:
    """In every state that a loss of power now may leave, `path` holds one of `allowed`, and the next save works."""
    for state in model.states(seed):
        key = state.signature(), tuple(map(id, allowed))
        if key in seen:
            continue
        seen.add(key)
        found = load_after_crash(subject, path, state)
        if not is_one_of(found, allowed):
            raise Lost(f"{told}\nseed {seed}, the disk after the crash:\n{state}\nloaded: {_short(found)}")
        machine = state.boot()
        subject.save(path, subject.values[-1], machine)
        if not is_one_of(load_or_none(subject, path, machine), [subject.values[-1]]):
            raise Lost(f"{told}\nseed {seed}, a save after the crash is not there:\n{state}")


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) < 200 else text[:200] + "..."


# 4. The checks. `product` puts a mutant between the product and the disk.

Product = Callable[[Storage], Storage]


def check_crashes(subject: Subject, path: str, history: Sequence[Any], *, product: Product = unchanged, write_at_most: int | None = None) -> int:
    """Save `history[1:]` in turn over `history[0]` (None: nothing), crash after every call, and look at every state it may leave.

    Allowed is the last acknowledged value or the one in flight. With `write_at_most`, no write takes more bytes at a time.
    How many states were loaded.
    """
    seen: set[object] = set()
    for after in itertools.count():
        model = new_disk(subject, path, history[0])
        crashing = CrashingStorage(model, after)
        disk: Storage = crashing
        if write_at_most is not None:
            disk = FaultyStorage(crashing, kind="write", count=write_at_most, times=FOR_EVER)
        acknowledged, finished = 0, False
        try:
            for value in history[1:]:
                subject.save(path, value, product(disk))
                acknowledged += 1
            finished = True
        except Crash:
            pass
        told = f"crash after {after} calls, {acknowledged} saves acknowledged:\n{crashing.trace()}"
        allowed = history[acknowledged : acknowledged + 2]
        require_after_crash(subject, path, model, allowed, seed=after, told=told, seen=seen)
        if finished:
            count("crash states, model", len(seen))
            return len(seen)
    raise AssertionError


class Attempt(NamedTuple):
    """What came of one save with one fault."""

    hit: tuple[str, ...]  # the calls that failed
    outcome: str  # "saved", "visible" (a DurabilityError), "refused"
    error: StorageError | None
    warned: list[str]


def check_faults(subject: Subject, path: str, old: Any, new: Any, *, product: Product = unchanged, **fault: Any) -> list[Attempt]:
    """Let the first, second, third ... call of a save fail, until it has no more calls, and hold each outcome against the promise.

    Saved: the new value, durable. A DurabilityError: the new value is visible. Any other StorageError: the old one, and no
    temporary file. Nothing is left open, no file synced again after a failed sync; and the next save, without a fault, is durable.
    """
    attempts = []
    for nth in itertools.count(1):
        model = new_disk(subject, path, old)
        faulty = FaultyStorage(model, nth, **fault)
        attempt = _attempt(subject, path, new, faulty, product)
        if not faulty.hit:
            assert attempt.outcome == "saved"
            count("faults injected", len(attempts))
            return attempts
        attempts.append(attempt)
        told = f"call {nth} ({attempt.hit[0]}) fails, {fault}: {attempt.outcome}, {attempt.error!r}\n{faulty.trace()}"
        found = load_or_none(subject, path, model)
        if not is_one_of(found, [old if attempt.outcome == "refused" else new]):
            raise Lost(f"{told}\nvisible: {_short(found)}")
        seen: set[object] = set()
        if attempt.outcome == "saved" and not attempt.warned:
            require_after_crash(subject, path, model, [new], seed=nth, told=told, seen=seen)
        else:
            require_after_crash(subject, path, model, [old, new], seed=nth, told=told, seen=seen)
        assert not faulty.open_fds, f"left open\n{told}"
        assert not model.descriptors, f"left open\n{told}"
        assert not faulty.synced_again, f"synced again after a failed sync\n{told}"
        if temporaries(model):
            assert "unlink" in attempt.hit, f"a temporary file is left\n{told}"
            assert attempt.warned, f"a temporary file is left without a word\n{told}"
        if attempt.error is not None and fault.get("code"):
            assert attempt.error.errno == fault["code"], told
        again = subject.values[-1]
        subject.save(path, again, product(model))
        require_after_crash(subject, path, model, [again], seed=nth, told=f"{told}\nand the next save, acknowledged, is lost", seen=seen)
    raise AssertionError


def _attempt(subject: Subject, path: str, value: Any, storage: FaultyStorage, product: Product = unchanged) -> Attempt:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error: StorageError | None = None
        try:
            subject.save(path, value, product(storage))
            outcome = "saved"
        except DurabilityError as caught_error:
            error, outcome = caught_error, "visible"
        except StorageError as caught_error:
            error, outcome = caught_error, "refused"
    return Attempt(tuple(storage.hit), outcome, error, [str(warning.message) for warning in caught])


def check_interleavings(subject: Subject, path: str, old: Any, mine: Any, theirs: Any, *, product: Product = unchanged) -> int:
    """Before each call of a save, let another process save the same path from beginning to end, and a reader look twice.

    How many places there were.
    """
    for nth in itertools.count(1):
        model = new_disk(subject, path, old)

        def meanwhile(model: ModelStorage = model, nth: int = nth) -> None:
            require_visible(subject, path, model, [old, mine], f"a reader before call {nth}")
            subject.save(path, theirs, product(model))
            require_visible(subject, path, model, [theirs], f"the save inside, at call {nth}")

        storage = BeforeCall(model, meanwhile, nth)
        subject.save(path, mine, product(storage))
        if not storage.happened:
            return nth - 1
        # The last to replace wins: the save outside, unless the one inside came after its replace.
        require_visible(subject, path, model, [mine, theirs], f"after both, the one inside at call {nth}")
        seen: set[object] = set()
        require_after_crash(subject, path, model, [mine, theirs], seed=nth, told=f"after both, the one inside at call {nth}", seen=seen)
        assert not temporaries(model), storage.trace()
    raise AssertionError


def require_visible(subject: Subject, path: str, storage: Storage, allowed: Sequence[Any], told: str) -> None:
    found = load_or_none(subject, path, storage)
    if not is_one_of(found, allowed):
        raise Lost(f"{told}: loaded {_short(found)}")


def temporaries(model: ModelStorage) -> list[str]:
    """The names of the temporary files that are anywhere on the model's disk."""
    return [name for directory in model._directories() for name in directory.entries if is_temporary(name)]


# 5. Mutants: what a wrong edit of the product would make of its stream of calls


class NoFileSync(Passing):
    """The sync of the file is taken out."""

    def call(self, name: str, *arguments: Any) -> Any:
        return None if name in SYNCS and self.is_file(arguments[0]) else super().call(name, *arguments)


class NoTemporarySync(Passing):
    """The syncs of new files are taken out, those of files that are appended to are not."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.temporary: set[int] = set()

    def call(self, name: str, *arguments: Any) -> Any:
        if name in SYNCS and arguments[0] in self.temporary:
            return None
        result = super().call(name, *arguments)
        if name == "open" and is_temporary(os.path.basename(arguments[0])):
            self.temporary.add(result)
        elif name == "close":
            self.temporary.discard(arguments[0])
        return result


class NoDirectorySync(Passing):
    """The sync of the directory is taken out."""

    def call(self, name: str, *arguments: Any) -> Any:
        return None if name == "sync" and not self.is_file(arguments[0]) else super().call(name, *arguments)


class NoParentSync(Passing):
    """The directory of the file is synced, but not those above the directories that were made for it."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.paths: dict[int, str] = {}

    def call(self, name: str, *arguments: Any) -> Any:
        if name == "sync" and not self.is_file(arguments[0]) and self.paths[arguments[0]] != os.path.dirname(os.path.abspath(DISTANT)):
            return None
        result = super().call(name, *arguments)
        if name == "open":
            self.paths[result] = arguments[0]
        return result


class ReplaceFirst(Passing):
    """The order is swapped: the new name first, then what is delayed of `write`, `sync` and `close`."""

    delayed: tuple[str, ...] = ("write", "sync", "close")

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.later: list[tuple[Any, ...]] = []
        self.replaced = False

    def call(self, name: str, *arguments: Any) -> Any:
        if name in self.delayed and not self.replaced and self.is_file(arguments[0]):
            self.later.append((name, *(bytes(a) if isinstance(a, memoryview) else a for a in arguments)))
            return len(arguments[1]) if name == "write" else None
        result = super().call(name, *arguments)
        if name == "replace":
            self.replaced = True
            for late, *rest in self.later:
                super().call(late, *rest)
        return result


class SyncAfterReplace(ReplaceFirst):
    """The order is swapped: written, renamed, and synced only then."""

    delayed = ("sync", "close")


class SyncAgain(Passing):
    """A failed sync is tried again on the same file, and believed when it then succeeds."""

    def call(self, name: str, *arguments: Any) -> Any:
        try:
            return super().call(name, *arguments)
        except OSError:
            if name not in SYNCS:
                raise
            return super().call(name, *arguments)


class NoSyncError(Passing):
    """The error of a file's sync is swallowed."""

    def call(self, name: str, *arguments: Any) -> Any:
        try:
            return super().call(name, *arguments)
        except OSError:
            if name not in SYNCS or not self.is_file(arguments[0]):
                raise
            return None


class ShortWriteIgnored(Passing):
    """The count that a write returns is ignored."""

    def call(self, name: str, *arguments: Any) -> Any:
        result = super().call(name, *arguments)
        return len(arguments[1]) if name == "write" else result


class InPlace(Passing):
    """No temporary file: the old one is emptied and written over."""

    def call(self, name: str, *arguments: Any) -> Any:
        if name == "open" and is_temporary(os.path.basename(arguments[0])):
            path = os.path.join(os.path.dirname(arguments[0]), os.path.basename(NEAR))
            return super().call("open", path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        return None if name == "replace" else super().call(name, *arguments)


class FixedTemporaryName(Passing):
    """The temporary file always has the same name, and takes whatever is there already."""

    def call(self, name: str, *arguments: Any) -> Any:
        arguments = tuple(self._fixed(a) if isinstance(a, str) else a for a in arguments)
        if name == "open":
            arguments = (arguments[0], arguments[1] & ~os.O_EXCL, *arguments[2:])
        return super().call(name, *arguments)

    def _fixed(self, path: str) -> str:
        folder, name = os.path.split(path)
        return os.path.join(folder, "tmp" + storage_module._SUFFIX) if is_temporary(name) else path


# 6. A run's file: the same oracle, for appends

RUN = "/disk/runs/checkpoint.fastckpt"
# Calls that leave a disk as it is: a crash after one of them is a crash before it.
LOOKING = ("read", "stat", "list", "resolve", "lock", "sleep")


class Put(NamedTuple):
    """One append of a history. A history may also hold `SYNC`, a call of `sync`, and `REOPEN`, close and open."""

    message: bytes
    sync: bool = True


SYNC, REOPEN = "sync", "reopen"
History = Sequence[Put | str]
Contents = list[tuple[int, bytes]]


def puts(*sizes: int, seed: int = 0, changed: bool = False) -> list[Put]:
    """Appends of incompressible messages without a zero, so that a lost sector shows; `changed`: each is the first with a part changed."""
    first = bytearray(_noise(max(sizes), seed))
    messages = []
    for n, size in enumerate(sizes):
        if changed:
            first[50 * n : 50 * n + size] = _noise(size, seed + n + 1)[: len(first) - 50 * n]
            messages.append(Put(bytes(first)))
        else:
            messages.append(Put(_noise(size, seed + n + 1)))
    return messages


def contents(path: str, storage: Storage = DISK) -> Contents | None:
    """Step and message of every record of a run, oldest first, as a reader finds them; None: there is no file. Raises `CheckpointError`."""
    try:
        reader = Reader(path, storage=storage)
    except NotFoundError:
        return None
    try:
        return contents_of(reader)
    finally:
        reader.close()


def contents_of(reader: Reader) -> Contents:
    entries = [*reader.entries()][::-1]
    assert [entry.sequence for entry in entries] == sorted({entry.sequence for entry in entries})
    return [(entry.header.step or 0, reader.read(entry)) for entry in entries]


@dataclass
class Promised:
    """What a run's file holds (`current`, without what failed), and all that it may hold after a crash now (`possible`)."""

    current: Contents = field(default_factory=list)
    possible: list[Contents] = field(default_factory=lambda: [[]])

    def attempted(self, step: int, message: bytes) -> None:
        """An append is under way; should it fail, it may be there nevertheless, until a later one is acknowledged."""
        self.possible.append([*self.current, (step, message)])

    def in_place(self, step: int, message: bytes) -> None:
        """The append is in place, not synced: a crash leaves it or does not."""
        self.current = [*self.current, (step, message)]
        self.possible.append(self.current)

    def synced(self, failed: Contents = ()) -> None:
        """What is in place is durable, and so may be one of the appends that failed."""
        self.possible = [self.current, *([*self.current, one] for one in failed)]


def perform(
    history: History, storage: Storage, promised: Promised, path: str = RUN, *, first: int = 0, disk: Storage | None = None
) -> list[StorageError]:
    """Do what a history says, from the place `first` on, keeping account in `promised`; the errors that it ended in.

    Steps are places in the history. An append that failed may be in place nevertheless: `disk` (without faults) is asked.
    """
    errors: list[StorageError] = []
    failed: Contents = []
    journal: Journal | None = None
    try:
        for step, action in enumerate(history[first:], first):
            try:
                if journal is None:
                    journal = Journal(path, storage=storage)
                if isinstance(action, Put):
                    promised.attempted(step, action.message)
                    journal.append(action.message, step=step, sync=action.sync)
                    if failed and disk is not None:
                        there = contents(path, disk) or []
                        for one in [one for one in failed if one in there]:
                            promised.in_place(*one)
                    failed = []
                    promised.in_place(step, action.message)
                    if action.sync:
                        promised.synced()
                elif action == SYNC:
                    journal.sync()
                    promised.synced(failed)
                else:
                    closed, journal = journal, None
                    closed.close()
                    promised.synced(failed)
            except DurabilityError as error:
                errors.append(error)
                if isinstance(action, Put):
                    promised.in_place(step, action.message)
            except StorageError as error:
                errors.append(error)
                if isinstance(action, Put):
                    failed.append((step, action.message))
    finally:
        if journal is not None:
            with contextlib.suppress(Crash, StorageError):
                journal.close()
                promised.synced(failed)
    return errors


class Halting(CrashingStorage):
    """As `CrashingStorage`, but counts only the calls that change something."""

    def call(self, name: str, *arguments: Any) -> Any:
        if self.left <= 0:
            raise Crash
        if name in LOOKING or (name == "open" and not arguments[1] & (os.O_CREAT | os.O_TRUNC)) or name == "close":
            return getattr(self.inner, name)(*arguments)
        return super().call(name, *arguments)


class BySector(Passing):
    """A write takes no more than what lies in one sector of the disk: a crash may come after each."""

    def call(self, name: str, *arguments: Any) -> Any:
        if name == "write":
            fd, data, offset = arguments
            return self.inner.write(fd, data[: SECTOR - offset % SECTOR], offset)
        return super().call(name, *arguments)


class Found(NamedTuple):
    """What a check has looked at."""

    states: int
    torn: list[State]  # those of them that had something to be cut


def check_run_crashes(
    history: History, *, old: int = 0, product: Product = unchanged, only_torn: bool = True, path: str = RUN, **fault: Any
) -> Found:
    """Do what `history` says (the first `old` of it long ago), crash after every call that changes something, look at every state.

    With `fault`, the calls fail that `FaultyStorage` is told of. After each crash a run holds what `Promised` allows, each step
    reading back right; what opening says of it is torn at most; the next writer's append is durable and what it cut is kept aside.
    """
    seen: set[object] = set()
    torn: list[State] = []
    for after in itertools.count():
        model = ModelStorage(folders=["/disk"])
        promised = Promised()
        perform(history[:old], model, promised, path)
        model.sync_everything()
        promised.synced()
        halting = Halting(model, after)
        disk = product(FaultyStorage(halting, **fault) if fault else halting)
        finished = False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                perform(history, disk, promised, path, first=old, disk=model)
            finished = halting.left > 0
        except Crash:
            pass
        told = f"crash after {after} changes of the disk\n{halting.trace()}"
        require_run_after_crash(model, promised, seed=after, told=told, seen=seen, torn=torn, only_torn=only_torn, path=path)
        if finished:
            count("crash states, model", len(seen))
            return Found(len(seen), torn)
    raise AssertionError


def require_run_after_crash(
    model: ModelStorage,
    promised: Promised,
    *,
    seed: int,
    told: str,
    seen: set[object],
    torn: list[State] | None = None,
    only_torn: bool = True,
    path: str = RUN,
    most: int = SAMPLES,
) -> None:
    """In every state that a loss of power now may leave, the run holds what was promised, and the next append works.

    With `only_torn`, what is cut must be known for a crash's doing; the states with something to cut are put into `torn`.
    """
    allowed = promised.possible
    for state in model.states(seed, most):
        key = state.signature(), tuple(tuple(step for step, _ in one) for one in allowed)
        if key in seen:
            continue
        seen.add(key)
        what = f"{told}\nseed {seed}, the disk after the crash:\n{state}"
        machine = state.boot()
        found = require_run(machine, allowed, what, path)
        before = machine.content(path) or b""
        with closing(Journal(path, storage=machine)) as journal:
            if journal.damage is not None:
                if only_torn and not journal.damage.torn:
                    raise Lost(f"{what}\na crash is taken for damage: {journal.damage}")
                if torn is not None:
                    torn.append(state)
            if contents_of(journal) != (found or []):
                raise Lost(f"{what}\na writer finds something else than a reader")
            cut = before[journal._end :] if journal.newest is not None else b""
            journal.append(_NEXT, step=1000)
        if cut and [machine.content(f"{path}.aside.{n}") for n in journal._asides(path, machine)][-1:] != [cut]:
            raise Lost(f"{what}\n{len(cut)} bytes were cut and not kept")
        again = [(found or []) + [(1000, _NEXT)]]
        for second in machine.states(seed):
            require_run(second.boot(), again, f"{what}\nand the next append, acknowledged, is lost:\n{second}", path)


_NEXT = b"the next message " * 20


def require_run(storage: Storage, allowed: Sequence[Contents], told: str, path: str = RUN) -> Contents | None:
    """A reader finds one of `allowed`, of which the empty one is no file."""
    try:
        found = contents(path, storage)
    except CheckpointError as error:
        raise Lost(f"{told}\nreading ended in {error!r}") from error
    if (found or []) not in allowed or found == []:
        steps = None if found is None else [step for step, _ in found]
        raise Lost(f"{told}\nfound steps {steps}, allowed {[[step for step, _ in one] for one in allowed]}")
    return found


def check_recovery_crashes(state: State, *, path: str = RUN) -> int:
    """FAULTS A8: in a machine that finds `state`, crash after every change that opening and the next append make, and look at every state.

    How many states were looked at.
    """
    seen: set[object] = set()
    for after in itertools.count():
        machine = state.boot()
        promised = Promised(contents(path, machine) or [])
        promised.synced()
        halting = Halting(machine, after)
        try:
            with closing(Journal(path, storage=halting)) as journal:
                promised.attempted(900, b"after the crash")
                journal.append(b"after the crash", step=900)
                promised.in_place(900, b"after the crash")
                promised.synced()
        except Crash:
            pass
        told = f"crash after {after} changes while recovering from\n{state}\n{halting.trace()}"
        require_run_after_crash(machine, promised, seed=after, told=told, seen=seen, path=path, most=100)
        if halting.left > 0:
            count("crash states, model", len(seen))
            return len(seen)
    raise AssertionError


def check_run_faults(
    history: History, *, old: int = 0, product: Product = unchanged, path: str = RUN, inner: Product = unchanged, **fault: Any
) -> list[str]:
    """Let the first, second, third ... call fail, until there is none more, and hold each outcome against the promise.

    What was acknowledged is there, after a crash too; what fails once fails one append at most; nothing stays open, no temporary file is
    left. `inner` puts another fault below. What failed first, in the order of the calls.
    """
    hits: list[str] = []
    for nth in itertools.count(1):
        model = ModelStorage(folders=["/disk"])
        promised = Promised()
        perform(history[:old], model, promised, path)
        model.sync_everything()
        promised.synced()
        faulty = FaultyStorage(inner(model), nth, **fault)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            errors = perform(history, product(faulty), promised, path, first=old, disk=model)
        told = f"call {nth} fails, {fault}, hit {faulty.hit[:3]}, errors {errors}\n{faulty.trace()}"
        if fault.get("times", 1) == 1 and inner is unchanged and len(errors) > 1:
            raise Lost(f"{told}\none fault fails {len(errors)} appends")
        require_run(model, promised.possible, told, path)
        require_run_after_crash(model, promised, seed=nth, told=told, seen=set(), path=path, most=30)
        assert not faulty.open_fds, f"left open\n{told}"
        assert not model.descriptors, f"left open\n{told}"
        assert "unlink" in faulty.hit or not temporaries(model), f"a temporary file is left\n{told}"
        if not faulty.hit:
            count("faults injected", len(hits))
            return hits
        hits.append(faulty.hit[0])
    raise AssertionError
