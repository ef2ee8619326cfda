"""The disk: the only module that touches it.

`Storage` is the operating system as fastckpt needs it, one short method a system call, so that a test can put a recording,
failing or crashing one in its place. The functions below are built on nothing else: `publish` makes a file appear whole and
durable, `read` opens one safely.

What a filesystem must keep for the guarantee: an `fsync` that returns 0 has put the file's data and size (for a directory:
its entries) on stable storage; `rename` is atomic; nothing else is assumed, no order between unsynced writes least of all.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

# Not when they are first used: that may be when no file can be opened any more.
if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

from .errors import CheckpointWarning, DurabilityError, NotFoundError, StorageError

__all__ = [
    "DISK",
    "Storage",
    "close_quietly",
    "exists",
    "explained",
    "is_folder",
    "is_temporary",
    "make_folder",
    "open_file",
    "open_regular",
    "publish",
    "read_at",
    "remove",
    "sweep",
    "sync_folder",
    "temporary_folder",
    "temporary_name",
    "vouch",
    "walk",
    "write_at",
]

# One write(2) takes at most 0x7ffff000 bytes on Linux; a round number below it.
_WRITE_AT_MOST = 1 << 30
# Windows: a virus scanner or a reader holds the target open for a moment (ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION).
_HELD_OPEN = (5, 32)
_SUFFIX = ".fastckpt-tmp"
_NAME_MAX = 255


class Storage:
    """System calls, one a method; every one may raise `OSError`. Stateless, so one instance serves all threads."""

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        """A file descriptor, never inherited by a child program; `mode` under the umask when it creates."""
        return os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), mode)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """At most `size` bytes from `offset`; fewer at the end of the file, or for no reason."""
        if hasattr(os, "pread"):
            return os.pread(fd, size, offset)
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        """How many bytes of `data` were written at `offset`: at least one, and not always all."""
        if hasattr(os, "pwrite"):
            return os.pwrite(fd, data, offset)
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        """Data and metadata of a file, or the entries of a directory, on stable storage."""
        if sys.platform == "darwin":
            # On macOS fsync leaves the data in the drive's cache (fsync(2) there); not every filesystem has the stronger call.
            try:
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                    raise
        os.fsync(fd)

    def sync_data(self, fd: int) -> None:
        """Data of a file, and of its metadata what reading it back needs (its size); cheaper than `sync` where there is such a call."""
        if sys.platform == "darwin" or not hasattr(os, "fdatasync"):
            self.sync(fd)
        else:
            os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(fd, size)

    def link(self, source: str, target: str) -> None:
        """A second name for a file; an error if `target` exists."""
        os.link(source, target)

    def lock(self, fd: int) -> bool:
        """Take the exclusive lock of an open file, without waiting; False when somebody else holds it.

        `flock`, not `lockf`: that loses the lock when any other descriptor of the file is closed.
        """
        if sys.platform == "win32":
            try:
                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            except PermissionError:
                return False
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self, fd: int) -> None:
        """The descriptor is gone afterwards, also when this raises."""
        os.close(fd)

    def replace(self, source: str, target: str) -> None:
        """`rename`: `target` is the old file or the new one at every moment, never absent."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """The name is gone; durable when its directory is synced."""
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        """One new directory; durable when the one above it is synced."""
        os.mkdir(path)

    def chmod(self, fd: int, mode: int) -> None:
        """The permission bits of an open file, where the system has them."""
        if hasattr(os, "fchmod"):
            os.fchmod(fd, mode)

    def stat(self, path: str | int) -> os.stat_result:
        """Of what a path leads to (through links), or of an open file."""
        return os.stat(path)

    def list(self, path: str) -> list[str]:
        """The names in a directory, in no order."""
        return os.listdir(path)

    def resolve(self, path: str) -> str:
        """`path` made absolute, with every symbolic link followed (a dangling one to where it points)."""
        return os.path.realpath(path)

    def sleep(self, seconds: float) -> None:
        """Wait; here so that a test need not."""
        time.sleep(seconds)


DISK = Storage()


def temporary_name(path: str) -> str:
    """A fresh name beside `path` that is ours to write and ours to sweep, at most 255 bytes long.

    The one place that makes such names; `is_temporary` is the one that knows them again.
    """
    folder, name = os.path.split(path)
    random = os.urandom(8).hex()
    room = _NAME_MAX - len(f"..{random}{_SUFFIX}")
    short = name
    while len(os.fsencode(short)) > room:
        short = short[:-1]  # whole characters: half of one is no name on some filesystems
    return os.path.join(folder, f".{short}.{random}{_SUFFIX}")


def is_temporary(name: str, target: str = "") -> bool:
    """Whether the file name `name` is one that `temporary_name` makes (for the file name `target`, if given)."""
    if not (name.startswith(".") and name.endswith(_SUFFIX)):
        return False
    stem, dot, random = name[1 : -len(_SUFFIX)].rpartition(".")
    if not dot or len(random) != 16 or not set(random) <= set("0123456789abcdef"):
        return False
    return not target or stem == target or (len(os.fsencode(name)) >= _NAME_MAX - 3 and os.fsencode(target).startswith(os.fsencode(stem)))


@contextmanager
def explained(path: str, operation: str, remedy: str = "") -> Iterator[None]:
    """An `OSError` inside becomes a `StorageError` that names the operation and the path."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError.of(error, path, operation, remedy=remedy or _remedy(error)) from error


def _path(path: str | os.PathLike[str]) -> str:
    path = os.fspath(path)
    if "\0" in path:  # no system call takes it, and Python's own error is a ValueError without the path
        raise StorageError("a path cannot hold a NUL character", path=path.replace("\0", "\\0"), code=errno.EINVAL, remedy="choose another path")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise StorageError("a file name cannot hold these characters", path=path, code=errno.EINVAL, remedy="choose another path") from error
    if not path:
        raise StorageError("the path is empty", path="''", code=errno.ENOENT, remedy="choose another path")
    return path


def _remedy(error: OSError) -> str:
    return {
        errno.ENOSPC: "free some space and save again",
        errno.EDQUOT: "free some space or raise the quota, and save again",
        errno.EFBIG: "raise the limit on file sizes (ulimit -f) and save again",
        errno.EACCES: "check the permissions of the file and its directory",
        errno.EPERM: "check the permissions and attributes of the file and its directory",
        errno.EROFS: "the filesystem is mounted read-only: choose another path or remount it",
        errno.EMFILE: "close some files or raise the limit (ulimit -n)",
        errno.ENFILE: "close some files on this machine",
        errno.ENAMETOOLONG: "choose a shorter path",
        errno.ENOTDIR: "a part of the path is a file: choose another path",
        errno.ELOOP: "the symbolic links of the path go round in a circle",
        errno.EIO: "check the disk",
    }.get(error.errno or 0, "")


def _require_regular(status: os.stat_result, path: str, operation: str) -> None:
    kinds = {
        stat_module.S_IFDIR: ("a directory", errno.EISDIR),
        stat_module.S_IFIFO: ("a fifo", errno.EINVAL),
        stat_module.S_IFSOCK: ("a socket", errno.EINVAL),
        stat_module.S_IFCHR: ("a device", errno.EINVAL),
        stat_module.S_IFBLK: ("a device", errno.EINVAL),
    }
    if not stat_module.S_ISREG(status.st_mode):
        kind, code = kinds.get(stat_module.S_IFMT(status.st_mode), ("not a regular file", errno.EINVAL))
        remedy = "name a file in it" if code == errno.EISDIR else "choose another path"
        raise StorageError(f"is {kind}, not a file", path=path, operation=operation, code=code, remedy=remedy)


def open_regular(path: str, storage: Storage = DISK, *, write: bool = False) -> tuple[int, os.stat_result]:
    """A descriptor of the regular file `path`, to be closed by the caller, and its status. As `open_file` otherwise."""
    with explained(path, "open"):
        # A terminal or a fifo with no writer would block a plain open, and O_NONBLOCK means nothing to a regular file.
        fd = storage.open(path, (os.O_RDWR if write else os.O_RDONLY) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    try:
        with explained(path, "stat"):
            status = storage.stat(fd)
        _require_regular(status, path, "open")
    except BaseException:
        close_quietly(fd, storage)
        raise
    return fd, status


@contextmanager
def open_file(path: str | os.PathLike[str], storage: Storage = DISK) -> Iterator[tuple[int, os.stat_result]]:
    """An open regular file and its status, closed afterwards.

    Never blocks on a fifo and never opens a device for good: what is not a regular file is refused after the open, by the
    descriptor, so that nothing planted in between is read.

    Raises `NotFoundError`, or `StorageError` (a directory, no permission, too many open files, an I/O error).
    """
    path = _path(path)
    fd, status = open_regular(path, storage)
    try:
        with explained(path, "read"):
            yield fd, status
    finally:
        close_quietly(fd, storage)


def read_at(fd: int, size: int, offset: int, storage: Storage = DISK) -> bytes:
    """`size` bytes from `offset`, or fewer where the file ends; looped, for one call may return less for no reason."""
    parts: list[bytes] = []
    while size > 0:
        part = storage.read(fd, min(size, _WRITE_AT_MOST), offset)
        if not part:
            break
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_at(fd: int, data: bytes, offset: int, storage: Storage = DISK) -> None:
    """All of `data` at `offset`; looped, for a filling disk or a signal gives a short count and no error. Raises `OSError`."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        count = storage.write(fd, view[done : done + _WRITE_AT_MOST], offset + done)
        if count <= 0:
            raise OSError(errno.EIO, "a write of no bytes")
        done += count


def publish(
    path: str | os.PathLike[str],
    data: bytes | Iterable[bytes],
    *,
    fsync: bool = True,
    exclusive: bool = False,
    sync_every: int = 0,
    storage: Storage = DISK,
) -> str:
    """Make `path` hold `data`, whole or not at all, and durable when it returns; the path it was written to.

    At every moment `path` is the old file or the new one. A symbolic link is written through (the file it points to is
    replaced; the link stays); other hard links of the old file keep the old content. A new file gets mode 0666 under the
    umask, a replaced one keeps its permission bits; it belongs to who saves. Directories that are missing are made. `data` may be
    given in pieces, which are taken one at a time. With `exclusive` an existing file is an error (errno EEXIST), also one that
    appears at the last moment. With `sync_every` what was written is synced after so many bytes each, so that little is left to the
    last sync, for which somebody may wait.

    With `fsync=False` nothing of the file is synced: it is still whole or old after a kill of the process, but a loss of power
    may leave anything.

    Raises `StorageError`: before the replace, and then the old file is untouched and the temporary file is gone.
    Raises `DurabilityError` when the new content is in place but a directory could not be synced.
    """
    path = _path(path)
    if path.endswith(("/", os.sep)):
        raise StorageError("the path names a directory", path=path, operation="save", code=errno.EISDIR, remedy="name a file in it")
    with explained(path, "stat"):
        target = os.path.abspath(storage.resolve(path))
        try:
            old: os.stat_result | None = storage.stat(target)
        except FileNotFoundError:
            old = None
    if old is not None:
        _require_regular(old, path, "save")

    # 1. The directory, and every missing one above it, durable before a first file appears in it: a file that exists vouches
    #    for its directories, whoever made them (a save that failed, a process that was killed, one that did not sync).
    folder = os.path.dirname(target)
    made = _make_directories(folder, storage)
    if old is None:
        _sync_ancestors(folder, made, storage)

    # 2. A new file beside the target, for only a rename inside one filesystem is atomic. A name that cannot be guessed,
    #    O_EXCL and O_NOFOLLOW: never through a link that somebody planted, never into another writer's temporary.
    temporary = temporary_name(target)
    fd, replaced = -1, False
    try:
        try:
            with explained(target, "create"):
                fd = storage.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0))
            identity = _write_temporary(fd, [data] if isinstance(data, bytes) else data, target, old, fsync, sync_every, storage)
        except BaseException:
            if fd >= 0:
                close_quietly(fd, storage)
            raise
        # 5. Closed before the replace: a network filesystem reports a failed write here at the latest.
        with explained(target, "close"):
            storage.close(fd)
        # 6. The moment at which the new content becomes the file.
        with explained(target, "replace"):
            replaced = _appear(temporary, target, storage) if exclusive else _replace(temporary, target, identity, storage)
    finally:
        if fd >= 0 and not replaced:  # a link stands under its own name by now
            _unlink_quietly(temporary, storage)

    # 7. The rename itself is durable only when its directory is.
    if fsync:
        sync_folder(folder, target, storage)
    return target


def is_folder(path: str | os.PathLike[str], *, storage: Storage = DISK) -> bool:
    """Whether there is a directory of this name (through links)."""
    try:
        return stat_module.S_ISDIR(storage.stat(_path(path)).st_mode)
    except OSError:
        return False


def remove(path: str | os.PathLike[str], *, fsync: bool = True, storage: Storage = DISK) -> bool:
    """Remove the file `path` durably; False when there is none. Raises `StorageError`, `DurabilityError`."""
    path = _path(path)
    with explained(path, "stat"):
        folder = storage.resolve(os.path.dirname(path) or ".")
    removed = True
    with explained(path, "remove"):
        try:
            storage.unlink(path)
        except FileNotFoundError:
            removed = False
    # Also where there is none: who removed it may have been killed before it was durable.
    if fsync and (removed or exists(folder, storage)):
        sync_folder(folder, path, storage)
    return removed


def sweep(path: str | os.PathLike[str], storage: Storage = DISK) -> None:
    """Remove the temporaries that killed savers of `path` left beside it. Only under its lock: another one's may be in use."""
    path = _path(path)
    folder, name = os.path.split(os.path.abspath(path))
    try:
        leftovers = [other for other in storage.list(folder) if is_temporary(other, name)]
    except OSError:
        return  # nothing to be found, and no reason to fail for it
    for leftover in leftovers:
        _unlink_quietly(os.path.join(folder, leftover), storage)


def exists(path: str | os.PathLike[str], storage: Storage = DISK) -> bool:
    """Whether something is at `path`, whatever it is. Raises `StorageError` when that cannot be told."""
    path = _path(path)
    with explained(path, "stat"):
        try:
            storage.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def walk(path: str | os.PathLike[str], storage: Storage = DISK, *, on_error: Callable[[StorageError], object] | None = None) -> Iterator[str]:
    """The regular files below a directory, in sorted order; linked directories are not entered. A file is its own walk.

    Raises `NotFoundError`, `StorageError`; with `on_error` that gets the error of a place below, and the walk goes on.
    """
    path = _path(path)
    with explained(path, "list"):
        if not stat_module.S_ISDIR(storage.stat(path).st_mode):
            yield path
            return
        names = sorted(storage.list(path))
    for name in names:
        below = os.path.join(path, name)
        try:
            with explained(below, "stat"):
                mode = storage.stat(below).st_mode
                linked = stat_module.S_ISDIR(mode) and storage.resolve(below) != os.path.join(storage.resolve(path), name)
            if stat_module.S_ISREG(mode):
                yield below
            elif stat_module.S_ISDIR(mode) and not linked:
                yield from walk(below, storage, on_error=on_error)
        except NotFoundError:  # removed meanwhile, or a link to nothing
            continue
        except StorageError as error:
            if error.errno == errno.ELOOP:  # a link to itself is no file
                continue
            if on_error is None:
                raise
            on_error(error)


@contextmanager
def temporary_folder(inside: str | None = None) -> Iterator[str]:
    """A folder of its own for something to be thrown away, removed afterwards; in the directory `inside`, if given. Raises `StorageError`."""
    import tempfile  # noqa: PLC0415  (5 ms of every import, for a demo)

    with explained(inside or tempfile.gettempdir(), "create directory"):
        made = tempfile.TemporaryDirectory(prefix="fastckpt-", dir=inside)
    with made as folder:
        yield folder


def _write_temporary(
    fd: int, data: Iterable[bytes], path: str, old: os.stat_result | None, fsync: bool, sync_every: int, storage: Storage
) -> tuple[int, int]:
    """Steps 3 and 4 of `publish`; the file's identity, by which a rename is recognised."""
    if old is not None:
        with explained(path, "chmod"):
            storage.chmod(fd, stat_module.S_IMODE(old.st_mode))
    # 3. Every byte.
    offset = synced = 0
    for piece in data:  # outside _explained: what making a piece raises is not an error of this file
        with explained(path, "write"):
            write_at(fd, piece, offset, storage)
        offset += len(piece)
        if fsync and 0 < sync_every <= offset - synced:
            with explained(path, "sync"):
                storage.sync_data(fd)
            synced = offset
    with explained(path, "stat"):
        status = storage.stat(fd)
    # 4. The data before the name. A failed sync is final for this file: the kernel may have dropped the dirty pages and
    #    would answer a second one with success (XFS and btrfs do), so it is never asked again.
    if fsync:
        with explained(path, "sync"):
            storage.sync(fd)
    return status.st_dev, status.st_ino


def _replace(temporary: str, target: str, identity: tuple[int, int], storage: Storage) -> bool:
    """The rename; True, for the temporary name is gone with it."""
    attempt = 0
    while True:
        try:
            storage.replace(temporary, target)
            return True
        except OSError as error:
            if getattr(error, "winerror", None) in _HELD_OPEN and attempt < 9:
                storage.sleep(0.01 * 2**attempt)  # 5 s in all
                attempt += 1
                continue
            # A network filesystem may do the rename, lose the answer, and report the retransmission's failure.
            try:
                status = storage.stat(target)
            except OSError:
                raise error from None
            if (status.st_dev, status.st_ino) != identity:
                raise
            return True


def _appear(temporary: str, target: str, storage: Storage) -> bool:
    """Give the file its name only if that is free; whether the temporary name is gone."""
    try:
        storage.link(temporary, target)
        return False
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV):
            raise
    # A filesystem without hard links: then a look before the rename is all there is.
    if exists(target, storage):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    storage.replace(temporary, target)
    return True


def _make_directories(folder: str, storage: Storage) -> list[str]:
    """Make `folder` and what is missing above it; those that were missing."""
    missing: list[str] = []
    probe = folder
    with explained(folder, "create directory"):
        while True:
            try:
                status = storage.stat(probe)
            except FileNotFoundError:
                missing.append(probe)
                if probe == os.path.dirname(probe):
                    raise  # not even the root is there
                probe = os.path.dirname(probe)
                continue
            if not stat_module.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), probe)
            break
        for directory in reversed(missing):
            try:
                storage.mkdir(directory)
            except FileExistsError:
                pass  # another process made it at the same moment
    return missing


def _sync_ancestors(folder: str, made: list[str], storage: Storage) -> None:
    """Sync the directories above `folder`, up to the root of its filesystem: those that hold the entries that lead to it.

    One that may not be opened is taken to be durable, unless it holds the entry of one that was made just now.
    """
    with explained(folder, "stat"):
        device = storage.stat(folder).st_dev
    while (parent := os.path.dirname(folder)) != folder:
        with explained(parent, "sync of directory"):
            try:
                if storage.stat(parent).st_dev != device:
                    return
                _sync_directory(parent, storage)
            except PermissionError:
                if folder in made:
                    raise
        folder = parent


def make_folder(folder: str, storage: Storage = DISK) -> None:
    """Make a directory and what is missing above it, durably. Raises `StorageError`."""
    made = _make_directories(folder, storage)
    if made:
        _sync_ancestors(folder, made, storage)


def vouch(path: str | os.PathLike[str], storage: Storage = DISK) -> None:
    """Make durable what is at `path` already: who put it there may have been killed, or refused, before it was.

    Raises `NotFoundError`, `StorageError`, `DurabilityError`.
    """
    with explained(_path(path), "resolve"):
        target = os.path.abspath(storage.resolve(_path(path)))
    with open_file(target, storage) as (fd, _), explained(target, "sync"):
        storage.sync(fd)
    sync_folder(os.path.dirname(target), target, storage)


def sync_folder(folder: str, target: str, storage: Storage = DISK) -> None:
    """Make a change of `folder` durable that can be seen already. Raises `DurabilityError`."""
    try:
        _sync_directory(folder, storage)
    except OSError as error:
        remedy = "the change is in place, its durability unknown: save again"
        raise DurabilityError.of(error, target, f"sync of directory {folder}", remedy=remedy) from error


def _sync_directory(folder: str, storage: Storage) -> None:
    if os.name == "nt":
        return  # Windows has no sync of a directory; NTFS journals the rename
    fd = storage.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        storage.sync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
        # Some network and FUSE filesystems have no such call; the file's data was synced.
        warnings.warn(f"the filesystem of {folder} cannot sync a directory: a save there may be lost with the power", CheckpointWarning, stacklevel=5)
    finally:
        close_quietly(fd, storage)


def close_quietly(fd: int, storage: Storage = DISK) -> None:
    """Close a descriptor through which nothing was written that still counts."""
    try:
        storage.close(fd)
    except OSError:
        pass  # on the way out of an error that is the one to report, or of a directory that was only read


def _unlink_quietly(path: str, storage: Storage) -> None:
    try:
        storage.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        warnings.warn(f"could not remove the temporary file {path} ({error.strerror}): remove it by hand", CheckpointWarning, stacklevel=3)
