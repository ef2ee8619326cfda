"""A storage that keeps everything in memory and counts: what a save costs and asks of the disk, without a disk.

Times with it depend on no disk, and its counts on nothing at all, so floors can be held on a loaded machine too.
"""

# ruff: noqa: D102, ARG002 (each method is that of `Storage`)

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from dataclasses import dataclass, field

from fastckpt.storage import Storage


@dataclass
class _File:
    number: int
    mode: int = stat.S_IFREG | 0o644
    data: bytearray = field(default_factory=bytearray)


class RecordingStorage(Storage):
    """One folder tree in memory. `calls` counts the system calls by name, `written` the bytes; `flushes` are syncs of either kind."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.written = 0
        self._files: dict[str, _File] = {"/": _File(1, stat.S_IFDIR | 0o755)}
        self._open: dict[int, _File] = {}
        self._numbers = 1

    @property
    def flushes(self) -> int:
        """How often the disk was asked to keep something."""
        return self.calls["sync"] + self.calls["sync_data"]

    def content(self, path: str) -> bytes:
        """What the file `path` holds."""
        return bytes(self._found(path).data)

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        self.calls["open"] += 1
        if path not in self._files and flags & os.O_CREAT:
            self._new(path, stat.S_IFREG | mode)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._numbers += 1
        self._open[self._numbers] = self._found(path)
        return self._numbers

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self.calls["read"] += 1
        return bytes(memoryview(self._open[fd].data)[offset : offset + size])

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        self.calls["write"] += 1
        self.written += len(data)
        held = self._open[fd].data
        if offset > len(held):
            held.extend(bytes(offset - len(held)))
        held[offset : offset + len(data)] = data
        return len(data)

    def sync(self, fd: int) -> None:
        self.calls["sync"] += 1

    def sync_data(self, fd: int) -> None:
        self.calls["sync_data"] += 1

    def truncate(self, fd: int, size: int) -> None:
        self.calls["truncate"] += 1
        del self._open[fd].data[size:]

    def link(self, source: str, target: str) -> None:
        self.calls["link"] += 1
        if target in self._files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self._files[target] = self._found(source)

    def lock(self, fd: int) -> bool:
        self.calls["lock"] += 1
        return True

    def close(self, fd: int) -> None:
        self.calls["close"] += 1
        del self._open[fd]

    def replace(self, source: str, target: str) -> None:
        self.calls["replace"] += 1
        self._files[target] = self._found(source)
        del self._files[source]

    def unlink(self, path: str) -> None:
        self.calls["unlink"] += 1
        self._found(path)
        del self._files[path]

    def mkdir(self, path: str) -> None:
        self.calls["mkdir"] += 1
        self._new(path, stat.S_IFDIR | 0o755)

    def chmod(self, fd: int, mode: int) -> None:
        self.calls["chmod"] += 1

    def stat(self, path: str | int) -> os.stat_result:
        self.calls["stat"] += 1
        file = self._open[path] if isinstance(path, int) else self._found(path)
        return os.stat_result((file.mode, file.number, 1, 1, 0, 0, len(file.data), 0, 0, 0))

    def list(self, path: str) -> list[str]:
        self.calls["list"] += 1
        return [os.path.basename(other) for other in self._files if os.path.dirname(other) == path and other != path]

    def resolve(self, path: str) -> str:
        self.calls["resolve"] += 1
        return os.path.abspath(path)

    def _found(self, path: str) -> _File:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def _new(self, path: str, mode: int) -> None:
        self._numbers += 1
        self._files[path] = _File(self._numbers, mode)
