"""One writer of a run: a lock on a file beside it, which outlives every replacement of the run's own file."""

from __future__ import annotations

import os
import weakref

from .errors import LockedError, ReplacedError, StorageError
from .storage import DISK, Storage, close_quietly, explained, read_at, write_at

__all__ = ["Lock"]


class Lock:
    """The exclusive lock of one writer, held from construction until `release`, on a file of its own that is never removed.

    The kernel lets go of it when the process ends, however it ends. A forked child closes its copy at once, so that a worker that
    outlives a killed parent does not keep the next writer out.

    Raises `LockedError` naming the holder, `StorageError` (no lock on this filesystem: then only `lock=False` remains).
    """

    def __init__(self, path: str, storage: Storage = DISK) -> None:
        self.path = path
        self._storage = storage
        with explained(path, "open"):
            self._fd = storage.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0))
        try:
            try:
                held = storage.lock(self._fd)
            except OSError as error:
                remedy = "this filesystem may have no locks: open with lock=False, and see to it that there is one writer"
                raise StorageError.of(error, path, "lock", remedy=remedy) from error
            if not held:
                raise _locked(path.removesuffix(".lock"), read_at(self._fd, 300, 0, storage))
            with explained(path, "write"):
                # First written, then cut, so that whoever is refused meanwhile reads a name.
                holder = f"{os.getpid()} {_host()}\n".encode()
                write_at(self._fd, holder, 0, storage)
                storage.truncate(self._fd, len(holder))
                status = storage.stat(self._fd)
        except BaseException:
            close_quietly(self._fd, storage)
            raise
        self._identity = (status.st_dev, status.st_ino)
        _LOCKS.add(self)

    def check(self) -> None:
        """Raise `ReplacedError` when the lock's file was removed: somebody else may hold another one by that name."""
        try:
            status = self._storage.stat(self.path)
        except FileNotFoundError as error:
            raise ReplacedError(self.path, what="lock file") from error
        except OSError as error:
            raise StorageError.of(error, self.path, "stat") from error
        if (status.st_dev, status.st_ino) != self._identity:
            raise ReplacedError(self.path, what="lock file")

    def release(self) -> None:
        """Let the next writer in."""
        _LOCKS.discard(self)
        if self._fd >= 0:
            close_quietly(self._fd, self._storage)
            self._fd = -1


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _close_locks_in_child() -> None:
    for lock in list(_LOCKS):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks_in_child)


def _host() -> str:
    """This machine's name, for a message to people."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "this machine")


def _locked(path: str, content: bytes) -> LockedError:
    pid, _, host = content.decode("utf-8", "replace").strip().partition(" ")
    return LockedError(path, pid=int(pid), host=host) if pid.isdecimal() else LockedError(path)
