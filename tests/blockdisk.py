"""A disk that remembers every block written to it and every flush, and all that a loss of power may have left of it.

For tests of durability on a real filesystem (Linux, root, `/dev/fuse`, loop devices; no other tool but the filesystem's mkfs):

1. `BlockDisk` is one file served by a process of its own through `/dev/fuse`; a loop device makes a disk of it, on which a filesystem is
   made and mounted. What the kernel writes and flushes there is recorded, in the order in which it arrives. Writes can be made to fail.
2. `images` builds from a record what may be there after a crash: everything up to the last flush is certain; of what was written since,
   all, nothing, any half, and one write torn at any 512 bytes (but not the superblock, without which no filesystem recovers).
3. `Bench` puts such an image on a loop device and mounts it: the filesystem's own recovery runs, and a check looks at what it left.

Call it in a forked child (`support.in_child`) after `own_mounts`, so that no mount outlives the test.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import pytest

BLOCK, SECTOR = 4096, 512
MiB = 1 << 20


class Filesystem(NamedTuple):
    """How to make one on a small disk, and how to mount it; `alone`: two of the same origin cannot be mounted at the same time.

    `superblock` is the byte at which the block lies that it writes in place and counts on the disk to write whole.
    """

    size: int
    mkfs: tuple[str, ...]
    # The options of the recorded mount are those under which the filesystem does least that nobody asked for.
    options: str
    replay_options: str
    superblock: int = 0
    alone: bool = False


FILESYSTEMS = {
    "ext4": Filesystem(16 * MiB, ("mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-m", "0"), "noauto_da_alloc", ""),
    "xfs": Filesystem(320 * MiB, ("mkfs.xfs", "-q", "-f"), "nouuid", "nouuid"),
    "btrfs": Filesystem(128 * MiB, ("mkfs.btrfs", "-q", "-f", "--mixed"), "noflushoncommit", "", superblock=1 << 16, alone=True),
}


def needs_block_disk(filesystem: str = "ext4") -> pytest.MarkDecorator:
    """Skips, with its reason, where such a disk cannot be."""
    return pytest.mark.skipif(_missing(filesystem) != "", reason=_missing(filesystem))


def _missing(filesystem: str) -> str:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "only root may make a disk"
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(device):
            return f"this machine has no {device}"
    tool = FILESYSTEMS[filesystem].mkfs[0]
    return "" if shutil.which(tool) else f"the program {tool} is not installed"


# --- system calls that Python does not have --------------------------------------------------------------------------


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def own_mounts() -> None:
    """In a forked child: mounts from here on are seen by nobody else and vanish with the process and its children."""
    clone_newns, ms_rec, ms_private = 0x00020000, 1 << 14, 1 << 18
    try:
        _checked(_libc().unshare(clone_newns), "unshare")
        _checked(_libc().mount(b"none", b"/", None, ms_rec | ms_private, None), "make / private")
    except OSError as error:
        pytest.skip(f"this machine allows no mounts: {error}")


def mount(source: str, target: str | Path, kind: str, options: str = "") -> None:
    _checked(_libc().mount(source.encode(), os.fsencode(target), kind.encode(), 0, options.encode()), f"mount {kind}")


def unmount(target: str | Path) -> None:
    detach = 2
    for attempt in range(200):
        if _libc().umount2(os.fsencode(target), 0) == 0:
            return
        if ctypes.get_errno() != errno.EBUSY or attempt == 199:
            break
        time.sleep(0.01)  # the kernel's own users (a write-back, a probe of the device) are soon done
    code = ctypes.get_errno()
    _libc().umount2(os.fsencode(target), detach)
    raise OSError(code, f"umount {target}: {os.strerror(code)}")  # EBUSY: something of it is still open


class Loop:
    """A loop device over a file, detached when this is closed or the process ends."""

    def __init__(self, backing: str | Path) -> None:
        loop_ctl_get_free, loop_configure, autoclear = 0x4C82, 0x4C0A, 4
        file = os.open(backing, os.O_RDWR | os.O_CLOEXEC)
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            while True:
                self.path = f"/dev/loop{fcntl.ioctl(control, loop_ctl_get_free)}"
                self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
                config = bytearray(304)
                struct.pack_into("<II", config, 0, file, SECTOR)
                struct.pack_into("<I", config, 60, autoclear)
                try:
                    fcntl.ioctl(self._fd, loop_configure, config)
                    return
                except OSError as error:
                    os.close(self._fd)
                    if error.errno != errno.EBUSY:  # somebody else was faster
                        raise
        finally:
            os.close(control)
            os.close(file)

    def forget(self) -> None:
        """The kernel keeps no block of it in memory: the file below was changed."""
        blkflsbuf = 0x1261
        fcntl.ioctl(self._fd, blkflsbuf)

    def close(self) -> None:
        os.close(self._fd)


# --- the disk --------------------------------------------------------------------------------------------------------


class Write(msgspec.Struct, frozen=True, tag=True):
    """Blocks that reached the disk's cache."""

    offset: int
    data: bytes


class Flush(msgspec.Struct, frozen=True, tag=True):
    """The cache was emptied: what was written before is on the medium."""


class Mark(msgspec.Struct, frozen=True, tag=True):
    """What the writer said, to us and not to the disk: `trying` n, or n `done`."""

    what: str
    number: int


Event = Write | Flush | Mark
_EVENT = msgspec.msgpack.Decoder(Event)


class BlockDisk:
    """A recorded disk with a filesystem, mounted at `path` while the context lasts; then `events` is what happened to it."""

    def __init__(self, folder: Path, filesystem: str = "ext4", *, seconds: int = 120) -> None:
        self._filesystem = FILESYSTEMS[filesystem]
        self._kind, self._seconds = filesystem, seconds
        self._served, self.path = folder / "disk", folder / "mounted"
        self.base: Blocks = {}
        self.events: list[Event] = []

    def __enter__(self) -> Self:
        self._served.mkdir()
        self.path.mkdir()
        with ExitStack() as stack:
            backing = os.memfd_create("disk", 0)
            stack.callback(os.close, backing)
            _make(backing, self._filesystem)
            self.base = _blocks_of(backing)
            self._log = os.memfd_create("log", os.MFD_CLOEXEC)
            stack.callback(os.close, self._log)
            self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(self._control.close)
            fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
            options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0"
            try:
                mount("fastckpt-test", self._served, "fuse", options)
            except OSError as error:
                pytest.skip(f"this machine allows no FUSE mount: {error}")
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                _serve(fuse, server_end, backing, self._log, self._filesystem.size, parent, self._seconds)
            os.close(fuse)
            server_end.close()
            stack.callback(_ended, pid)
            stack.callback(unmount, self._served)
            try:
                loop = Loop(self._served / _NAME)
            except OSError as error:
                pytest.skip(f"this machine allows no loop device: {error}")
            stack.callback(loop.close)
            mount(loop.path, self.path, self._kind, self._filesystem.options)
            stack.callback(unmount, self.path)
            stack.callback(self._read_log)  # of the unmount only the filesystem could lose something
            self._open = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def trying(self, number: int) -> None:
        """What is promised: from now on the result of operation `number` may be there, or that of the one before."""
        self._tell("trying", number)

    def done(self, number: int) -> None:
        """Operation `number` was acknowledged: a crash from now on leaves it there."""
        self._tell("done", number)

    def fail_writes_of(self, holding: bytes) -> None:
        """From now on a write fails (EIO) if `holding` occurs in it; none does if that is empty."""
        self._tell("fail", holding)

    def failures(self) -> int:
        """How many writes have failed."""
        return int(self._tell("failures", None))

    def sync(self) -> None:
        """What was written to files reaches the disk now; an error is for who syncs a file."""
        fd = os.open(self.path, os.O_RDONLY)
        _libc().syncfs(fd)
        os.close(fd)

    def _tell(self, what: str, value: object) -> Any:
        self._control.send(msgspec.msgpack.encode((what, value)))
        return msgspec.msgpack.decode(self._control.recv(100))

    def _read_log(self) -> None:
        log = os.pread(self._log, os.fstat(self._log).st_size, 0)
        self.events, at = [], 0
        while at < len(log):
            (length,) = struct.unpack_from("<I", log, at)
            self.events.append(_EVENT.decode(log[at + 4 : at + 4 + length]))
            at += 4 + length


def _make(backing: int, filesystem: Filesystem) -> None:
    os.ftruncate(backing, filesystem.size)
    done = subprocess.run([*filesystem.mkfs, f"/proc/{os.getpid()}/fd/{backing}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{filesystem.mkfs[0]}: {done.stderr}")


def _ended(pid: int) -> None:
    """Wait for the process behind a disk; if something of the disk is still in use, it does not end by itself."""
    for _ in range(100):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


# The few requests of the kernel that a folder with one file needs; include/uapi/linux/fuse.h has them all.
_LOOKUP, _FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS, _RELEASE = 1, 2, 3, 4, 14, 15, 16, 17, 18
_FSYNC, _FLUSH, _INIT, _INTERRUPT, _DESTROY, _BATCH_FORGET, _FALLOCATE = 20, 25, 26, 36, 38, 42, 43
_NAME, _ROOT, _FILE = "img", 1, 2
_PAGES = 32  # of one request


def _serve(fuse: int, control: socket.socket, backing: int, log: int, size: int, parent: int, seconds: int) -> None:
    """The process behind the disk; never returns. It dies with its parent, and in any case after so many seconds."""
    pr_set_pdeathsig = 1
    _libc().prctl(pr_set_pdeathsig, signal.SIGKILL)
    # Without the mounts that follow: if it were the last to leave them, its exit would unmount what only it could still serve, and hang.
    _libc().unshare(0x00020000)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    code = 1
    try:
        if os.getppid() == parent:
            _Server(fuse, control, backing, log, size).run()
        code = 0
    finally:
        os._exit(code)  # its end aborts the mount: whoever waits for it gets an error


class _Server:
    def __init__(self, fuse: int, control: socket.socket, backing: int, log: int, size: int) -> None:
        self._fuse, self._control, self._backing, self._log, self._size = fuse, control, backing, log, size
        self._holding, self._failures = b"", 0

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._fuse, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._fuse:
                    try:
                        request = os.read(self._fuse, _PAGES * BLOCK + 8192)
                    except OSError as error:
                        if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):  # it was taken back
                            continue
                        return  # unmounted
                    self._answer(request)
                elif not self._obey():
                    poll.unregister(self._control)

    def _obey(self) -> bool:
        message = self._control.recv(1 << 16)
        if not message:
            return False
        what, value = msgspec.msgpack.decode(message)
        if what == "fail":
            self._holding = value
        elif what != "failures":
            self._record(Mark(what, value))
        self._control.send(msgspec.msgpack.encode(self._failures))
        return True

    def _record(self, event: Event) -> None:
        entry = msgspec.msgpack.encode(event)
        os.write(self._log, struct.pack("<I", len(entry)) + entry)

    def _answer(self, request: bytes) -> None:
        _, operation, unique, node = struct.unpack_from("<IIQQ", request)
        if operation in (_FORGET, _INTERRUPT, _BATCH_FORGET):
            return  # these want no answer
        code, answer = self._do(operation, node, request[40:])
        try:
            os.write(self._fuse, struct.pack("<IiQ", 16 + len(answer), -code, unique) + answer)
        except OSError as error:
            if error.errno != errno.ENOENT:  # who asked is gone
                raise

    def _do(self, operation: int, node: int, body: bytes) -> tuple[int, bytes]:
        """The error, or 0, and what to answer."""
        if operation == _INIT:
            (flags,) = struct.unpack_from("<12xI", body)
            big_writes, max_pages = 1 << 5, 1 << 22
            head = struct.pack("<IIIIHHII", 7, 31, 1 << 17, flags & (big_writes | max_pages), 16, 12, _PAGES * BLOCK, 1)
            return 0, (head + struct.pack("<H", _PAGES)).ljust(64, b"\0")
        if operation == _LOOKUP:
            if body.rstrip(b"\0") != _NAME.encode():
                return errno.ENOENT, b""
            return 0, struct.pack("<QQQQII", _FILE, 0, 60, 60, 0, 0) + self._attributes(_FILE)
        if operation in (_GETATTR, _SETATTR):
            return 0, struct.pack("<QII", 60, 0, 0) + self._attributes(node)
        if operation == _OPEN:
            direct_io = 1  # the loop device has a cache of its own
            return 0, struct.pack("<QII", 1, direct_io, 0)
        if operation == _READ:
            offset, size = struct.unpack_from("<8xQI", body)
            return 0, os.pread(self._backing, size, offset)
        if operation == _WRITE:
            offset, size = struct.unpack_from("<8xQI", body)
            return self._write(offset, body[40 : 40 + size])
        if operation == _FALLOCATE:  # a discarded or zeroed range
            offset, size = struct.unpack_from("<8xQQ", body)
            return self._write(offset, bytes(size))[0], b""
        if operation == _FSYNC:
            self._record(Flush())
            return 0, b""
        if operation in (_FLUSH, _RELEASE, _DESTROY):
            return 0, b""
        if operation == _STATFS:
            return 0, struct.pack("<QQQQQIII", 1 << 20, 1 << 19, 1 << 19, 100, 100, BLOCK, 255, BLOCK).ljust(80, b"\0")
        return errno.ENOSYS, b""

    def _write(self, offset: int, data: bytes) -> tuple[int, bytes]:
        if self._holding and self._holding in data:
            self._failures += 1
            return errno.EIO, b""
        os.pwrite(self._backing, data, offset)
        self._record(Write(offset, data))
        return 0, struct.pack("<II", len(data), 0)

    def _attributes(self, node: int) -> bytes:
        size, mode = (0, 0o40755) if node == _ROOT else (self._size, 0o100644)
        return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, BLOCK, 0)


# --- what a loss of power may leave ----------------------------------------------------------------------------------

#: A disk's content: by the number of a block, what it holds; a block that is not there holds zeros.
Blocks = dict[int, bytes]


def _blocks_of(fd: int) -> Blocks:
    blocks: Blocks = {}
    size, at = os.fstat(fd).st_size, 0
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA) // BLOCK * BLOCK
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                break
            raise
        end = os.lseek(fd, at, os.SEEK_HOLE)
        for offset in range(at, end, BLOCK):
            _put(blocks, offset, os.pread(fd, BLOCK, offset))
        at = end
    return blocks


def _put(blocks: Blocks, offset: int, data: bytes) -> None:
    at = 0
    while at < len(data):
        number, start = divmod(offset + at, BLOCK)
        piece = data[at : at + BLOCK - start]
        if len(piece) < BLOCK:
            old = blocks.get(number, bytes(BLOCK))
            piece = old[:start] + piece + old[start + len(piece) :]
        blocks[number] = piece
        at += BLOCK - start


#: How a crash image comes about: of the writes since the last flush all are there, none, any half, or all with one torn.
KINDS = ("all", "none", "half", "torn")


class Crash(NamedTuple):
    """A place in the record, behind event `point`, and what became of the writes that were not flushed."""

    point: int
    kind: str


class Image(NamedTuple):
    """What a crash left, and what had been promised by then: operation `done` is there, or one up to `tried`. -1: none."""

    crash: Crash
    done: int
    tried: int
    blocks: Blocks


def crashes(events: Sequence[Event], most: int, seed: int) -> list[Crash]:
    """The crashes of a record, from its first mark on; of more than `most` a sample."""
    found: list[Crash] = []
    begun = unflushed = False
    for point, event in enumerate(events):
        begun = begun or isinstance(event, Mark)
        unflushed = isinstance(event, Write) or (unflushed and not isinstance(event, Flush))
        # Nothing is different after a flush, and nothing more is promised by a try.
        if begun and (isinstance(event, Write) or (isinstance(event, Mark) and event.what == "done")):
            found += [Crash(point, kind) for kind in (KINDS if unflushed else KINDS[:1])]
    return found if len(found) <= most else sorted(random.Random(seed).sample(found, most))


def images(base: Blocks, events: Sequence[Event], wanted: Sequence[Crash], seed: int = 0, superblock: int = 0) -> Iterator[Image]:
    """The images of `wanted`, which is sorted by point; what is chance depends on the record and the seed alone."""
    stable, pending = dict(base), list[Write]()
    done = tried = -1
    at = 0
    for point, event in enumerate(events):
        if isinstance(event, Write):
            pending.append(event)
        elif isinstance(event, Flush):
            for write in pending:
                _put(stable, write.offset, write.data)
            pending = []
        elif event.what == "trying":
            tried = event.number
        else:
            done = event.number
        while at < len(wanted) and wanted[at].point == point:
            crash = wanted[at]
            blocks = dict(stable)
            for write in _survivors(pending, crash, random.Random(f"{seed} {crash}"), superblock):
                _put(blocks, write.offset, write.data)
            yield Image(crash, done, max(tried, done), blocks)
            at += 1


def _survivors(pending: list[Write], crash: Crash, chance: random.Random, superblock: int) -> list[Write]:
    if crash.kind == "none":
        return []
    if crash.kind == "half":
        return [write for write in pending if chance.random() < 0.5]
    if crash.kind == "torn":
        torn = chance.randrange(len(pending))
        if pending[torn].offset <= superblock < pending[torn].offset + len(pending[torn].data):
            return pending
        cut = chance.randrange(len(pending[torn].data) // SECTOR + 1) * SECTOR
        return [Write(write.offset, write.data[:cut]) if n == torn else write for n, write in enumerate(pending)]
    return pending


class Bench:
    """A loop device on which one image after the other is put and mounted."""

    def __init__(self, folder: Path, filesystem: str) -> None:
        self._kind, self._filesystem = filesystem, FILESYSTEMS[filesystem]
        self._mounted = folder
        self._backing = os.memfd_create("image", os.MFD_CLOEXEC)
        os.ftruncate(self._backing, self._filesystem.size)
        self._loop = Loop(f"/proc/{os.getpid()}/fd/{self._backing}")

    @contextmanager
    def boot(self, blocks: Blocks) -> Iterator[Path]:
        """Where the filesystem is mounted, as after a crash that left this."""
        os.ftruncate(self._backing, 0)
        os.ftruncate(self._backing, self._filesystem.size)
        for number, block in blocks.items():
            os.pwrite(self._backing, block, number * BLOCK)
        self._loop.forget()
        mount(self._loop.path, self._mounted, self._kind, self._filesystem.replay_options)
        try:
            yield self._mounted
        finally:
            unmount(self._mounted)

    def close(self) -> None:
        self._loop.close()
        os.close(self._backing)


class Tally(NamedTuple):
    """How many images of each kind were looked at, and what was wrong with those in which something was."""

    kinds: Counter[str]
    wrong: list[str]

    @property
    def images(self) -> int:
        return self.kinds.total()


def replay(disk: BlockDisk, check: Callable[[Path, int, int], None], folder: Path, *, most: int, seed: int, stop_at: int = 0) -> Tally:
    """Boot crash images of what `disk` recorded, on two processors, and let `check(mounted, done, tried)` look at each.

    What it raises is what was wrong; such an image is kept in `folder`. With `stop_at`, so many wrong ones are enough.
    """
    wanted = crashes(disk.events, most, seed)
    workers = 1 if disk._filesystem.alone else 2
    running = []
    for worker in range(workers):
        reader, writer = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _libc().prctl(1, signal.SIGKILL)
            try:
                if os.getppid() == parent:
                    told = _replay(disk, check, folder / f"replay-{worker}", wanted[worker::workers], seed, stop_at)
                    with open(writer, "wb") as stream:
                        stream.write(json.dumps(told).encode())
            finally:
                os._exit(0)
        os.close(writer)
        running.append((pid, reader))
    tally = Tally(Counter(), [])
    for pid, reader in running:
        with open(reader, "rb") as stream:
            kinds, wrong = json.loads(stream.read() or b'[{}, ["a replay died"]]')
        tally.kinds.update(kinds)
        tally.wrong.extend(wrong)
        os.waitpid(pid, 0)
    return tally


def _replay(
    disk: BlockDisk, check: Callable[[Path, int, int], None], folder: Path, wanted: list[Crash], seed: int, stop_at: int
) -> tuple[dict[str, int], list[str]]:
    folder.mkdir()
    bench = Bench(folder, disk._kind)
    kinds: Counter[str] = Counter()
    wrong: list[str] = []
    for image in images(disk.base, disk.events, wanted, seed, disk._filesystem.superblock):
        try:
            with bench.boot(image.blocks) as mounted:
                check(mounted, image.done, image.tried)
        except Exception as error:
            kept = folder.with_name(f"wrong-{image.crash.point}-{image.crash.kind}.img")
            if len(wrong) < 3:
                _keep(kept, image.blocks, disk._filesystem.size)
            told = (
                f"behind event {image.crash.point}, {image.crash.kind} of the unflushed writes, seed {seed}, done {image.done}, tried {image.tried}"
            )
            wrong.append(f"{type(error).__name__}: {error}\n  {told}, {kept}")
        kinds[image.crash.kind] += 1
        if stop_at and len(wrong) >= stop_at:
            break
    bench.close()
    return kinds, wrong


def _keep(path: Path, blocks: Blocks, size: int) -> None:
    with path.open("wb") as stream:
        for number, block in blocks.items():
            stream.seek(number * BLOCK)
            stream.write(block)
        stream.truncate(size)
