"""A run and several processes: killed writers, second writers, forked children, readers beside a writer, a file that is replaced.

FAULTS C1, C2, D2 to D5, D11, D12, E12, I4, on the real disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from faults import Lost, contents
from support import count, everything_in, in_child, needs_posix, open_descriptors

import fastckpt
from fastckpt.errors import CheckpointError, LockedError, ReplacedError, StorageError
from fastckpt.journal import Journal
from fastckpt.reader import Reader
from fastckpt.storage import DISK, Storage, temporary_name

pytestmark = needs_posix

KILLS = 300
BASE = random.Random(1).randbytes(20_000)


def message_of(step: int) -> bytes:
    """The state of a step: about the one before it."""
    place = step * 97 % 19_000
    return b"%08d" % step + BASE[:place] + random.Random(step).randbytes(60) + BASE[place:]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "checkpoint.fastckpt"


def write_on(path: Path, pipe: int, storage: Storage = DISK, *, sync: bool = True) -> None:
    """Append for ever, from the newest step on, and report each acknowledged step."""
    journal = Journal(path, storage=storage)
    step = 0 if journal.newest is None else (journal.newest.header.step or 0) + 1
    while True:
        try:
            journal.append(message_of(step), step=step, sync=sync)
        except StorageError:
            continue  # a failed one is tried again
        os.write(pipe, struct.pack("<q", step))
        step += 1


@contextmanager
def writer(path: Path, storage: Storage = DISK) -> Iterator[tuple[int, int]]:
    """A process that writes on, and the end of the pipe from which its reports are read; killed in the end."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(out)
            write_on(path, into, storage)
        finally:
            os._exit(1)
    os.close(into)
    try:
        yield child, out
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(out)


def reported(pipe: int) -> int:
    """The last step that was reported; -1: none."""
    data = b""
    while piece := os.read(pipe, 1 << 16):
        data += piece
    return max(struct.unpack(f"<{len(data) // 8}q", data[: len(data) // 8 * 8]), default=-1)


def require_newest(path: Path, acknowledged: int, told: str) -> int:
    """The newest step is the acknowledged one or the next, and reads right; which it is."""
    try:
        reader = Reader(path)
    except FileNotFoundError:
        if acknowledged >= 0:
            raise Lost(f"{told}: no file, acknowledged {acknowledged}") from None
        return -1
    with closing(reader):
        if reader.damage is not None and not reader.damage.torn:
            raise Lost(f"{told}: {reader.damage}")
        step = reader.newest.header.step if reader.newest else None
        if step is None or not acknowledged <= step:
            raise Lost(f"{told}: the newest is {step}, acknowledged {acknowledged}")
        if reader.newest is None or reader.read(reader.newest) != message_of(step):
            raise Lost(f"{told}: step {step} reads wrong")
        return step


def test_c1_killed_at_random(path: Path) -> None:
    """FAULTS C1: SIGKILL at a random moment, 300 times, the same run gone on with each time: never less than the last acknowledged step."""
    pick = random.Random(3)
    acknowledged = newest = -1
    for n in range(KILLS):
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write_on(path, into)
            finally:
                os._exit(1)
        os.close(into)
        time.sleep(pick.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        acknowledged = max(acknowledged, reported(out))
        os.close(out)
        step = require_newest(path, acknowledged, f"kill {n}")
        if step > max(acknowledged, newest) + 1 or step < newest:
            raise Lost(f"kill {n}: the newest is {step}, acknowledged {acknowledged}, before {newest}")
        newest = step
    found = contents(str(path))
    assert found is not None
    assert [step for step, _ in found] == [*range(newest + 1)]
    assert all(message == message_of(step) for step, message in found)
    assert newest > KILLS, "the writers hardly got to write"
    count("kills", KILLS)
    assert [name for name in everything_in(path.parent) if "tmp" in name] == []


def test_c2_lock_of_a_killed_writer_with_a_forked_worker(path: Path) -> None:
    """FAULTS C2: the writer is killed, a worker that it had forked lives on: the next writer gets the lock."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            journal = Journal(path)
            journal.append(b"first", step=0)
            worker = os.fork()
            if worker == 0:
                time.sleep(60)
                os._exit(0)
            os.write(into, struct.pack("<q", worker))
            time.sleep(60)
        finally:
            os._exit(1)
    (worker,) = struct.unpack("<q", os.read(out, 8))
    try:
        with pytest.raises(LockedError):
            Journal(path)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.kill(worker, 0)  # it lives
        with closing(Journal(path)) as journal:
            journal.append(b"second", step=1)
            os.kill(worker, 0)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(out)
        os.close(into)
    assert contents(str(path)) == [(0, b"first"), (1, b"second")]


def test_c2_leftovers_are_swept(path: Path) -> None:
    """FAULTS C2: temporaries of a killed writer of this run, and of its copies kept aside, are swept; nobody else's are, nor under another's lock."""
    with closing(Journal(path)) as journal:
        journal.append(b"first", step=0)
    shutil.copy(path, f"{path}.aside.1")
    ours = [temporary_name(str(path)), temporary_name(f"{path}.aside.1"), temporary_name(f"{path}.aside.2")]
    others = [temporary_name(str(path.with_name("other.fastckpt"))), str(path.with_name(".checkpoint.fastckpt.fastckpt-tmp"))]
    for name in (*ours, *others):
        Path(name).write_bytes(b"x")
    Reader(path).close()
    Journal(path, read_only=True).close()
    Journal(path, lock=False).close()  # without the lock they may be a living writer's
    assert all(map(os.path.exists, ours))
    journal = Journal(path)
    assert not any(map(os.path.exists, ours))
    assert all(map(os.path.exists, others))
    mine = temporary_name(str(path))
    Path(mine).write_bytes(b"in use")
    with pytest.raises(LockedError):
        Journal(path)
    assert Path(mine).read_bytes() == b"in use"
    journal.close()


def test_d2_second_writer(path: Path) -> None:
    """FAULTS D2: a second writer is refused by an error that names the holder's process and machine; readers are not; then it gets in."""
    with writer(path) as (child, out):
        os.read(out, 8)
        with pytest.raises(LockedError) as caught:
            Journal(path)
        assert (caught.value.pid, caught.value.host) == (child, socket.gethostname())
        assert str(child) in str(caught.value)
        before = open_descriptors()
        for _ in range(3):
            with pytest.raises(LockedError):
                Journal(path)
        assert open_descriptors() == before
        Reader(path).close()
        Journal(path, read_only=True).close()
    with closing(Journal(path)) as journal:
        assert journal.newest is not None
        with pytest.raises(LockedError) as caught:  # in the same process too
            Journal(path)
        assert caught.value.pid == os.getpid()


def test_d2_two_names_of_one_run(path: Path, tmp_path: Path) -> None:
    """FAULTS D2: a run that is reached through a symbolic link, to the file or its directory, has the same lock."""
    with closing(Journal(path)) as journal:
        journal.append(b"first", step=0)
        (tmp_path / "link").symlink_to(path.parent)
        (tmp_path / "file.fastckpt").symlink_to(path)
        for other in (tmp_path / "link" / "checkpoint.fastckpt", tmp_path / "file.fastckpt"):
            with pytest.raises(LockedError):
                Journal(other)
    with closing(Journal(tmp_path / "file.fastckpt")) as journal:
        journal.append(b"second", step=1)
    assert (tmp_path / "file.fastckpt").is_symlink()
    assert contents(str(path)) == [(0, b"first"), (1, b"second")]


def test_a_damaged_run_behind_a_link_is_kept(path: Path, tmp_path: Path) -> None:
    """A run that is reached through a symbolic link and cannot be read is kept aside beside the real file, and the link stays."""
    path.parent.mkdir()
    path.write_bytes(bytes(1000))
    (tmp_path / "file.fastckpt").symlink_to(path)
    with closing(Journal(tmp_path / "file.fastckpt")) as journal:
        journal.append(b"first", step=0)
    assert Path(f"{path}.aside.1").read_bytes() == bytes(1000)
    assert (tmp_path / "file.fastckpt").is_symlink()
    assert contents(str(path)) == [(0, b"first")]


def test_d4_forked_child(path: Path) -> None:
    """FAULTS D4: a forked child's use raises; its close, its exit and its garbage do not flush or unlock; the parent goes on."""
    journal = Journal(path)
    journal.append(b"first", step=0)
    journal.append(b"second", step=1, sync=False)

    def use() -> None:
        for call in (lambda: journal.append(b"x", step=9), lambda: journal.tombstone([(0, 0)]), journal.sync):
            with pytest.raises(StorageError, match="fork"):
                call()
        assert journal.newest is not None
        assert journal.read(journal.newest) == b"second"
        journal.close()

    for action in (use, lambda: None):
        in_child(action)
        with pytest.raises(LockedError):
            Journal(path)
    assert journal._synced < journal._end
    journal.append(b"third", step=2)
    journal.close()
    assert contents(str(path)) == [(0, b"first"), (1, b"second"), (2, b"third")]


def test_d5_fork_while_a_thread_appends(path: Path) -> None:
    """FAULTS D5: a child forked while another thread is in the middle of an append does not hang: its use raises, its own run works."""

    class Slow(Storage):
        def sync_data(self, fd: int) -> None:
            inside.set()
            time.sleep(0.3)

    inside = threading.Event()
    journal = Journal(path)
    journal.append(b"first", step=0)
    journal._storage = Slow()
    thread = threading.Thread(target=lambda: journal.append(b"second", step=1))
    thread.start()
    inside.wait()

    def use() -> None:
        with pytest.raises(StorageError, match="fork"):
            journal.append(b"x", step=9)
        journal.close()
        with closing(Journal(path.with_name("other.fastckpt"))) as own:
            own.append(b"mine", step=0)

    in_child(use, timeout=5)
    thread.join()
    journal._storage = DISK
    journal.append(b"third", step=2)
    journal.close()
    assert contents(str(path)) == [(0, b"first"), (1, b"second"), (2, b"third")]


def test_d11_lock_file_removed(path: Path) -> None:
    """FAULTS D11: the lock's file is removed, so that another writer may get in: the first one's next append is refused, nothing is written."""
    journal = Journal(path)
    journal.append(b"first", step=0)
    os.unlink(f"{path}.lock")
    for _ in range(2):
        with pytest.raises(ReplacedError, match="lock"):
            journal.append(b"lost", step=1)
    with closing(Journal(path)) as other:
        other.append(b"second", step=1)
        with pytest.raises(ReplacedError):
            journal.append(b"lost", step=2)
    journal.close()
    assert contents(str(path)) == [(0, b"first"), (1, b"second")]


class RewritesAtTimes(Storage):
    """Every 60th sync fails, so that the next append publishes a new file; every 45th write stops half way."""

    def __init__(self) -> None:
        self.syncs = self.writes = 0

    def sync_data(self, fd: int) -> None:
        self.syncs += 1
        if self.syncs % 60 == 0:
            raise OSError(errno.EIO, "injected")
        super().sync_data(fd)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        appends = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR  # a new file is opened for writing only
        self.writes += bool(appends and offset)
        if appends and offset and self.writes % 45 == 0:
            super().write(fd, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, "injected")
        return super().write(fd, data, offset)


@pytest.mark.parametrize("storage", [DISK, RewritesAtTimes()], ids=["appends", "rewrites"])
def test_d12_readers_beside_a_writer(path: Path, storage: Storage) -> None:
    """FAULTS D3, D12: 2,000 openings, and a reader that follows, beside a tight writer: a whole, newest step each time, never an older one."""
    with writer(path, storage) as (_, out):
        os.read(out, 8)
        threading.Thread(target=reported, args=(os.dup(out),), daemon=True).start()  # or it waits for the pipe
        follower = Reader(path)
        newest = followed = -1
        damaged = changed = 0
        before = len(open_descriptors())
        for n in range(2000):
            with closing(Reader(path)) as reader:
                assert reader.newest is not None, n
                step = reader.newest.header.step or 0
                damaged += reader.damage is not None
                if reader.damage is not None and not reader.damage.torn:
                    raise Lost(f"opening {n}: {reader.damage}")
                if step < newest or reader.read(reader.newest) != message_of(step):
                    raise Lost(f"opening {n}: step {step} after {newest}, or it reads wrong")
                newest = step
            if n % 4 == 0:
                changed += follower.refresh()
                assert follower.newest is not None
                step = follower.newest.header.step or 0
                if step < followed or follower.read(follower.newest) != message_of(step):
                    raise Lost(f"refresh {n}: step {step} after {followed}, or it reads wrong")
                followed = step
        assert changed > 50
        assert damaged < 20
        assert len(open_descriptors()) <= before + 1
        follower.close()


def replaced(path: Path) -> None:
    shutil.copy(path, f"{path}.other")
    os.replace(f"{path}.other", path)


def moved(path: Path) -> None:
    os.rename(path, f"{path}.moved")


def directory_moved(path: Path) -> None:
    os.rename(path.parent, f"{path.parent}.moved")
    path.parent.mkdir()
    shutil.copy(f"{path.parent}.moved/{path.name}.lock", f"{path}.lock")


def restored_from_a_backup(path: Path) -> None:
    """As `cp backup run` does: the same inode, an older content."""
    data = path.read_bytes()
    with closing(Reader(path)) as reader:
        assert reader.newest is not None
        end = reader.newest.offset
    path.write_bytes(data[:end])


def written_by_another(path: Path) -> None:
    with closing(Journal(path, lock=False)) as other:
        other.append(b"theirs", step=50)


def became_a_single(path: Path) -> None:
    path.unlink()
    fastckpt.save(path, {"step": 1})


HAPPENINGS = [replaced, moved, os.unlink, directory_moved, restored_from_a_backup, written_by_another, became_a_single]


@pytest.mark.parametrize("use", ["append", "append without sync", "tombstone", "sync", "append after a failed sync"])
@pytest.mark.parametrize("happens", HAPPENINGS, ids=lambda happens: happens.__name__)
def test_e12_file_replaced_under_a_writer(path: Path, happens: Callable[[Path], None], use: str) -> None:
    """FAULTS E12: the file is replaced, moved, removed, restored or written under a live writer: ReplacedError, nothing acknowledged or written."""
    journal = Journal(path)
    for step in range(3):
        journal.append(message_of(step), step=step)
    journal.append(message_of(3), step=3, sync=False)
    happens(path)
    before = {name: (path.parent / name).read_bytes() for name in everything_in(path.parent)} if path.parent.exists() else {}
    if use == "append after a failed sync":
        journal._poisoned = True
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: journal.append(message_of(4), step=4),
        "append without sync": lambda: journal.append(message_of(4), step=4, sync=False),
        "tombstone": lambda: journal.tombstone([(0, 0)]),
        "sync": journal.sync,
        "append after a failed sync": lambda: journal.append(message_of(4), step=4),
    }
    for _ in range(2):
        with pytest.raises(ReplacedError):
            calls[use]()
    if path.parent.exists():
        assert {name: (path.parent / name).read_bytes() for name in everything_in(path.parent)} == before
    with pytest.raises(ReplacedError):  # of what was not synced nobody can say that it is there
        journal.close()
    with pytest.raises(StorageError, match="closed"):
        journal.append(b"x", step=5)


def test_e12_a_file_that_appears(path: Path) -> None:
    """FAULTS E12: a run opens where no file is, and then somebody else puts one there: it is not replaced by the first append."""
    with closing(Journal(path)) as journal:
        fastckpt.save(path, {"theirs": True})
        with pytest.raises(ReplacedError):
            journal.append(b"mine", step=0)
    assert fastckpt.load(path) == {"theirs": True}


def test_e12_adopting_what_was_saved_meanwhile(path: Path) -> None:
    """FAULTS E12: a single file that is saved anew after it was opened is not adopted over."""
    fastckpt.save(path, {"step": 1})
    with closing(Journal(path)) as journal:
        fastckpt.save(path, {"step": 2})
        with pytest.raises(ReplacedError):
            journal.adopt(1)
    assert fastckpt.load(path) == {"step": 2}


class NoLocks(Storage):
    def lock(self, fd: int) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_i4_no_locks_on_this_filesystem(path: Path) -> None:
    """FAULTS I4: where the filesystem has no locks a writer is refused, with the remedy `lock=False`, and that works."""
    before = open_descriptors()
    with pytest.raises(StorageError, match="lock=False") as caught:
        Journal(path, storage=NoLocks())
    assert caught.value.errno == errno.ENOLCK
    assert open_descriptors() == before
    with closing(Journal(path, lock=False, storage=NoLocks())) as journal:
        journal.append(b"first", step=0)
        journal.append(b"second", step=1)
    assert contents(str(path)) == [(0, b"first"), (1, b"second")]


def test_two_writers_without_locks(path: Path) -> None:
    """Two writers with `lock=False`: the one that comes second notices, before anything is acknowledged that the other writes over."""
    with closing(Journal(path, lock=False)) as first:
        first.append(b"first", step=0)
        with closing(Journal(path, lock=False)) as second:
            second.append(b"second", step=1)
            with pytest.raises(ReplacedError):
                first.append(b"lost", step=1)
            second.append(b"third", step=2)
    assert contents(str(path)) == [(0, b"first"), (1, b"second"), (2, b"third")]


def test_nothing_stays_open(path: Path) -> None:
    """Every descriptor is closed by `close`, after rewrites and refreshes too, and after a constructor that failed."""
    before = open_descriptors()
    with closing(Journal(path, storage=RewritesAtTimes())) as journal, closing(Journal(path.with_name("b.fastckpt"))):
        done = 0
        while done < 200:
            try:
                journal.append(message_of(done), step=done)
                done += 1
            except StorageError:
                continue
        with closing(Reader(path)) as reader:
            reader.refresh()
    path.write_bytes(b"something else")
    for open_it in (Journal, Reader):
        with pytest.raises(CheckpointError):
            open_it(path)
    assert open_descriptors() == before
