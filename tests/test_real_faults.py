"""Real faults under every operation that writes: full disks, limits, permissions, disks that turn read-only or fail to write back.

FAULTS B1, B3, B4, B6, B9, B11, B12, B14, on real filesystems. (The test_io_errors module lets every call of a save fail, and has the real
faults of a save and a load in themselves.) After each failure the old content is there, whole, no temporary file and no descriptor is left,
and once the cause is gone the same operation succeeds.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from blockdisk import Bench, BlockDisk, Crash, Mark, images, needs_block_disk, own_mounts
from faults import BeforeCall
from support import assert_same, difference, in_child, mount_tmpfs, needs_linux, needs_root, needs_tool, open_descriptors, without_privileges

import fastckpt
from fastckpt import CheckpointError, CheckpointManager, CheckpointWarning, DurabilityError, NotFoundError, StorageError, load, save, verify
from fastckpt.migrate import export, migrate
from fastckpt.reader import Reader
from fastckpt.repair import repair
from fastckpt.storage import DISK, is_temporary

pytestmark = needs_linux

NAME = "checkpoint.fastckpt"
RECORD = b"FCKR"  # in every record's first bytes (FORMAT.md)


def state_of(number: int, size: int = 12_000) -> dict[str, Any]:
    """A state that hardly compresses and shares nothing with another."""
    return {"number": number, "noise": random.Random(number).randbytes(size // 2).hex()}


# --- every operation that writes -------------------------------------------------------------------------------------


class Work(NamedTuple):
    """An operation on a folder: what it finds there, what it does, and how to see the result (which raises nothing for damage)."""

    name: str
    prepare: Callable[[Path], object]
    do: Callable[[Path], object]
    seen: Callable[[Path], Any]

    def __repr__(self) -> str:
        return self.name


def run_of(*steps: int) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        with CheckpointManager(folder, dict) as manager:
            for step in steps:
                manager.save(step, state_of(step))

    return prepare


def appended(folder: Path) -> None:
    with CheckpointManager(folder, dict) as manager:
        manager.save(3, state_of(3, 60_000))


def mostly_retired(folder: Path) -> None:
    with CheckpointManager(folder, dict) as manager:
        for step in range(12):
            manager.save(step, state_of(step))
        for step in range(7):
            manager.delete(step)


def compacted(folder: Path) -> None:
    with CheckpointManager(folder, dict) as manager:
        manager.compact()


def damaged(folder: Path) -> None:
    run_of(0, 1, 2, 3)(folder)
    with closing(Reader(folder / NAME)) as reader:
        entry = next(entry for entry in reader.entries() if entry.header.step == 1)
    with (folder / NAME).open("r+b") as stream:
        stream.seek(entry.offset + entry.length // 2)
        stream.write(b"damage")


def steps(folder: Path) -> dict[int, Any]:
    found: dict[int, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with CheckpointManager(folder, dict, read_only=True) as manager:
                for step in manager.all_steps():
                    try:
                        found[step] = manager.restore(step)
                    except CheckpointError as error:
                        found[step] = type(error).__name__
        except NotFoundError:
            pass
    return found


def loaded(folder: Path) -> Any:
    return load(folder / NAME) if (folder / NAME).exists() else None


def contents(folder: Path) -> dict[str, bytes]:
    """What the checkpoint and the JSON file hold, of those that are there."""
    return {name: (folder / name).read_bytes() for name in (NAME, "checkpoint.json") if (folder / name).exists()}


def text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


WORKS = (
    Work("save", lambda folder: save(folder / NAME, state_of(0)), lambda folder: save(folder / NAME, state_of(1, 60_000)), loaded),
    Work("first save", lambda folder: None, lambda folder: save(folder / NAME, state_of(1, 60_000)), loaded),
    Work("append", run_of(0, 1, 2), appended, steps),
    Work("first append", lambda folder: None, appended, steps),
    Work("adopt", lambda folder: save(folder / NAME, {**state_of(0), "progress": {"global_step": 0}}), appended, steps),
    Work("compact", mostly_retired, compacted, lambda folder: (steps(folder), (folder / NAME).stat().st_size > 60_000)),
    Work("repair", damaged, lambda folder: repair(folder / NAME), steps),
    Work(
        "migrate",
        lambda folder: (folder / "checkpoint.json").write_text(json.dumps(state_of(0, 60_000))),
        lambda folder: migrate(folder / "checkpoint.json"),
        lambda folder: (loaded(folder), text(folder / "checkpoint.json")),
    ),
    Work(
        "export",
        run_of(0, 1),
        lambda folder: export(folder / NAME, folder / "checkpoint.json", force=True),
        lambda folder: (steps(folder), text(folder / "checkpoint.json")),
    ),
)
each_work = pytest.mark.parametrize("work", WORKS, ids=repr)

Fault = Callable[[Path], AbstractContextManager[object]]


class Tried(NamedTuple):
    """What an operation under a fault ended in (None: it succeeded), and what it had warned of."""

    error: StorageError | None
    warnings: list[str]


class Trial:
    """One operation, tried under one fault after another, each time in a fresh folder below `room`."""

    def __init__(self, work: Work, room: Path) -> None:
        self.work, self._room, self._count = work, room, 0
        # Kept elsewhere, where no fault reaches it; what comes of it is what comes of the same operation later.
        self._template = Path(tempfile.mkdtemp(prefix="fastckpt-test-")) / "folder"
        self._template.mkdir()
        work.prepare(self._template)
        self.old = work.seen(self._template)
        done = shutil.copytree(self._template, self._template.with_name("done"))
        work.do(done)
        self.new = work.seen(done)
        assert difference(self.old, self.new), "the operation changes nothing that can be seen"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self._template.parent)

    def under(self, fault: Fault, *codes: int, temporaries: bool = False) -> Tried:
        """Try it; what must hold then is asserted. `temporaries`: the fault is such that one may be left."""
        self._count += 1
        folder = shutil.copytree(self._template, self._room / f"{self._count}")
        before, files = open_descriptors(), contents(folder)
        error: StorageError | None = None
        with fault(folder), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CheckpointWarning)
            try:
                self.work.do(folder)
            except StorageError as failed:
                error = failed
        told = [str(warning.message) for warning in caught if issubclass(warning.category, CheckpointWarning)]
        assert open_descriptors() == before
        found = self.work.seen(folder)
        if error is None:
            assert_same(found, self.new)
        else:
            assert error.errno in codes, error
            # The path itself, something beside it, or a directory above it.
            place = Path(error.path)
            assert place.is_relative_to(folder) or folder.is_relative_to(place), error
            assert str(place) in str(error)
            assert_same(found, self.new if isinstance(error, DurabilityError) else self.old)
            # Of two steps the first one may have been done: the file is a run already, of the same state.
            changed = isinstance(error, DurabilityError) or self.work.name == "adopt"
            assert changed or contents(folder) == files, f"not cut back to what was there: {error}"
            left = [name for name in os.listdir(folder) if is_temporary(name)]
            assert temporaries or left == [], error
            if not isinstance(error, DurabilityError):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of what the failure left torn
                    self.work.do(folder)
                assert_same(self.work.seen(folder), self.new)
        shutil.rmtree(folder)
        return Tried(error, told)


def until_it_succeeds(trial: Trial, faults: Callable[[int], Fault], *codes: int, most: int = 2000) -> list[int]:
    """Try with 0, 1, 2 … of what is scarce, in growing strides, until it suffices; with how much it failed."""
    failed, amount = [], 0
    while trial.under(faults(amount), *codes).error is not None:
        failed.append(amount)
        amount += 1 + amount // 8
        assert amount < most
    return failed


# --- full disks and limits -------------------------------------------------------------------------------------------


@needs_root
@needs_tool("mount")
@each_work
def test_b12_real_full_disk(work: Work, tmp_path: Path) -> None:
    """FAULTS B1, B12: a disk with no page left, with one, with two …, until it is enough: refused, nothing lost, and it works once there is room."""

    def attempt() -> None:
        mount_tmpfs(tmp_path, "size=2m")
        filler = tmp_path / "filler"

        def pages(left: int) -> Fault:
            @contextmanager
            def full(folder: Path) -> Iterator[None]:
                with filler.open("wb", buffering=0) as stream:
                    try:
                        while True:
                            stream.write(bytes(4096))
                    except OSError as error:
                        assert error.errno == errno.ENOSPC
                    stream.truncate(max(0, stream.tell() - 4096 * left))
                try:
                    yield
                finally:
                    filler.unlink()

            return full

        with Trial(work, tmp_path) as trial:
            failed = until_it_succeeds(trial, pages, errno.ENOSPC)
        assert len(failed) >= 3

    in_child(attempt)


@needs_root
@needs_tool("mount")
@each_work
def test_b12_real_disk_without_inodes(work: Work, tmp_path: Path) -> None:
    """FAULTS B1, B12: a disk with room but no inode left, with one, with two …: refused, nothing lost. What needs no new file succeeds."""

    def attempt() -> None:
        mount_tmpfs(tmp_path, "size=2m,nr_inodes=60")
        fillers = tmp_path / "fillers"

        def inodes(left: int) -> Fault:
            @contextmanager
            def full(folder: Path) -> Iterator[None]:
                fillers.mkdir()
                try:
                    for number in range(60):
                        (fillers / f"{number}").touch()
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                for number in range(left):
                    (fillers / f"{number}").unlink()
                try:
                    yield
                finally:
                    shutil.rmtree(fillers)

            return full

        with Trial(work, tmp_path) as trial:
            failed = until_it_succeeds(trial, inodes, errno.ENOSPC)
        assert (failed == []) == (work.name == "append")  # it needs no new file

    in_child(attempt)


@each_work
def test_b12_real_limit_of_file_size(work: Work, tmp_path: Path) -> None:
    """FAULTS B1, B12: a limit on file sizes, from nothing up to enough (first a short write, then EFBIG): refused, cut back, works later."""

    def attempt() -> None:
        def bytes_of(amount: int) -> Fault:
            @contextmanager
            def limited(folder: Path) -> Iterator[None]:
                resource.setrlimit(resource.RLIMIT_FSIZE, (amount * 1000, resource.RLIM_INFINITY))
                try:
                    yield
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

            return limited

        with Trial(work, tmp_path) as trial:
            failed = until_it_succeeds(trial, bytes_of, errno.EFBIG)
        assert len(failed) >= 3

    in_child(attempt)


@each_work
def test_b11_real_limit_of_open_files(work: Work, tmp_path: Path) -> None:
    """FAULTS B11: no descriptor left, one, two …, until it is enough, so that each open is once the one too many: refused, nothing leaked."""

    def attempt() -> None:
        def descriptors(left: int) -> Fault:
            @contextmanager
            def limited(folder: Path) -> Iterator[None]:
                old = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, open_descriptors())) + 20, old[1]))
                held = []
                try:
                    while True:
                        held.append(os.open("/dev/null", os.O_RDONLY))
                except OSError as error:
                    assert error.errno == errno.EMFILE
                for fd in held[:left]:
                    os.close(fd)
                try:
                    yield
                finally:
                    for fd in held[left:]:
                        os.close(fd)
                    resource.setrlimit(resource.RLIMIT_NOFILE, old)

            return limited

        with Trial(work, tmp_path) as trial:
            failed = until_it_succeeds(trial, descriptors, errno.EMFILE)
        assert failed

    in_child(attempt)


def test_b11_no_descriptor_for_the_first_use(tmp_path: Path) -> None:
    """FAULTS B11: the same in a program that has done nothing with a run before: what is loaded only then cannot fail in its own way."""
    code = (
        "import os, resource, sys\n"
        "from fastckpt import CheckpointManager, StorageError\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError: pass\n"
        "for fd in held[:int(sys.argv[2])]: os.close(fd)\n"
        "try:\n"
        "    with CheckpointManager(sys.argv[1], dict) as manager: manager.save(manager.next_step(), {})\n"
        "except StorageError as error: os._exit(error.errno)\n"
        "except BaseException as error: os.write(2, repr(error).encode()); os._exit(1)\n"
        "os._exit(0)\n"
    )
    run_of(0)(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(Path(fastckpt.__file__).parents[1])}
    outcomes = []
    while outcomes[-1:] != [0]:
        command = [sys.executable, "-c", code, str(tmp_path), str(len(outcomes))]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode in (0, errno.EMFILE), done.stderr
        outcomes.append(done.returncode)
    assert len(outcomes) >= 3
    assert list(steps(tmp_path)) == [0, 1]


# --- more than 2 GiB -------------------------------------------------------------------------------------------------

# Linux writes and reads at most 0x7ffff000 bytes in one call.
MORE_THAN_ONE_CALL = (2 << 30) + (10 << 20)


@pytest.fixture
def memory_disk() -> Iterator[Path]:
    """A folder on a filesystem in memory."""
    with tempfile.TemporaryDirectory(prefix="fastckpt-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.skipif(not os.environ.get("FASTCKPT_LARGE"), reason="FASTCKPT_LARGE=1 is not set: this takes two minutes and 12 GB of memory")
def test_b3_more_than_two_gib(memory_disk: Path) -> None:
    """FAULTS B3: a state of more than 2 GiB that cannot be compressed is saved and loaded, alone and as a run's step; one above the limit is refused."""
    noise = os.urandom(64 << 20)
    state = {"noise": (noise * 33)[:MORE_THAN_ONE_CALL]}
    save(memory_disk / NAME, state, round_trip=False)
    assert load(memory_disk / NAME) == state
    (memory_disk / NAME).unlink()
    with CheckpointManager(memory_disk, dict, round_trip="never", max_file_bytes=None) as manager:
        manager.save(0, state)
    with CheckpointManager(memory_disk, dict, read_only=True) as manager:
        assert manager.restore(0) == state
    del state
    (memory_disk / NAME).unlink()
    with pytest.raises(CheckpointError):
        save(memory_disk / NAME, {"parts": [noise] * 65}, round_trip=False)
    assert not (memory_disk / NAME).exists()


# --- forbidden -------------------------------------------------------------------------------------------------------


@needs_root
@needs_tool("mount")
@each_work
def test_b11_real_read_only_disk(work: Work, tmp_path: Path) -> None:
    """FAULTS B11: a disk that is mounted read-only: refused with EROFS, all can still be read, and it works when it is remounted."""

    def attempt() -> None:
        mount_tmpfs(tmp_path, "size=4m")

        @contextmanager
        def read_only(folder: Path) -> Iterator[None]:
            subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
            try:
                yield
                assert_same(work.seen(folder), trial.old)
            finally:
                subprocess.run(["mount", "-o", "remount,rw", str(tmp_path)], check=True)

        with Trial(work, tmp_path) as trial:
            assert "read-only" in str(trial.under(read_only, errno.EROFS).error)

    in_child(attempt)


@needs_root
@each_work
def test_b11_real_permissions(work: Work) -> None:
    """FAULTS B11: a user who may read everything and write nothing: refused with EACCES, and reading goes on."""
    with tempfile.TemporaryDirectory(prefix="fastckpt-test-") as public, Trial(work, Path(public)) as trial:
        os.chmod(public, 0o755)

        @contextmanager
        def readable(folder: Path) -> Iterator[None]:
            for path in (folder, *folder.iterdir()):
                path.chmod(0o555 if path.is_dir() else 0o444)

            def other_user() -> None:
                without_privileges()
                before = open_descriptors()
                with pytest.raises(StorageError) as caught:
                    work.do(folder)
                assert caught.value.errno == errno.EACCES
                assert "permission" in str(caught.value)
                assert open_descriptors() == before
                assert_same(work.seen(folder), trial.old)

            in_child(other_user)
            yield

        assert trial.under(readable).error is None  # permissions mean nothing to root


@needs_root
@needs_tool("chattr")
@pytest.mark.parametrize("flag", ["+i", "+a"])
@each_work
def test_b9_real_immutable_directory(work: Work, flag: str, tmp_path: Path) -> None:
    """FAULTS B9, B14: a directory that lets nothing in (chattr +i), or nothing out (+a: no rename, and no removal of the temporary file)."""
    with Trial(work, tmp_path) as trial:
        tried = trial.under(attributes(flag, lambda folder: [folder]), errno.EPERM, errno.EACCES, temporaries=flag == "+a")
    if work.name == "append":
        assert tried.error is None  # the file grows, and its directory stays as it is
    elif flag == "+i":
        assert tried.error is not None
    # Where a temporary file could not be removed, that is said, and by which name.
    assert all(NAME in warning or "checkpoint.json" in warning for warning in tried.warnings)
    assert flag == "+a" or tried.warnings == []


@needs_root
@needs_tool("chattr")
@pytest.mark.parametrize("flag", ["+i", "+a"])
@each_work
def test_b9_real_immutable_file(work: Work, flag: str, tmp_path: Path) -> None:
    """FAULTS B9: the files themselves are immutable, or may only grow: refused with EPERM where they would be replaced, and whole."""
    with Trial(work, tmp_path) as trial:
        tried = trial.under(attributes(flag, lambda folder: [path for path in folder.iterdir() if path.is_file()]), errno.EPERM, errno.EACCES)
    if work.name in ("save", "append", "adopt", "compact", "repair"):
        assert tried.error is not None
    assert tried.warnings == []


def attributes(flag: str, of: Callable[[Path], list[Path]]) -> Fault:
    @contextmanager
    def changed(folder: Path) -> Iterator[None]:
        paths = [str(path) for path in of(folder)]
        done = subprocess.run(["chattr", flag, *paths], capture_output=True, text=True, check=False) if paths else None
        if done is not None and done.returncode:
            pytest.skip(f"chattr {flag} does not work here: {done.stderr.strip()}")
        try:
            yield
        finally:
            if paths:
                subprocess.run(["chattr", flag.replace("+", "-"), *paths], check=True)

    return changed


# --- disks that fail to write back -----------------------------------------------------------------------------------


@needs_block_disk()
@each_work
def test_b4_real_write_back_error(work: Work, tmp_path: Path) -> None:
    """FAULTS B4, B6: ext4 cannot write a checkpoint's blocks, so a sync fails with EIO: refused; later it works, and survives a loss of power."""

    def attempt() -> None:
        own_mounts()
        pattern = b'"noise": "' if work.name == "export" else RECORD
        with BlockDisk(tmp_path) as disk:

            @contextmanager
            def failing(folder: Path) -> Iterator[None]:
                disk.sync()  # what was there before is written
                disk.fail_writes_of(pattern)
                try:
                    yield
                finally:
                    disk.fail_writes_of(b"")

            with Trial(work, disk.path) as trial:
                assert trial.under(failing, errno.EIO).error is not None
                assert disk.failures() > 0
                # Once more, to be there when the power goes.
                folder = disk.path / "last"
                folder.mkdir()
                work.prepare(folder)
                with failing(folder), pytest.raises(StorageError):
                    work.do(folder)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    work.do(folder)
                disk.done(1)
                new = trial.new
        with after_power_loss(disk, tmp_path) as rebooted:
            assert_same(work.seen(rebooted / "last"), new)

    in_child(attempt)


@contextmanager
def after_power_loss(disk: BlockDisk, tmp_path: Path) -> Iterator[Path]:
    """The disk with what was flushed up to the last mark, and nothing else, booted."""
    point = max(number for number, event in enumerate(disk.events) if isinstance(event, Mark))
    (image,) = images(disk.base, disk.events, [Crash(point, "none")])
    (tmp_path / "rebooted").mkdir()
    bench = Bench(tmp_path / "rebooted", "ext4")
    with closing(bench), bench.boot(image.blocks) as mounted:
        yield mounted


@needs_block_disk()
def test_b6_poisoned_by_a_real_write_back_error(tmp_path: Path) -> None:
    """FAULTS B6: an append's sync fails, and so does each new file, as long as the disk is bad; then all is in a new one, through a loss of power."""

    def attempt() -> None:
        own_mounts()
        with BlockDisk(tmp_path) as disk:
            folder = disk.path / "run"
            run_of(0, 1, 2)(folder)
            with CheckpointManager(folder, dict) as manager:
                inode = (folder / NAME).stat().st_ino
                disk.fail_writes_of(RECORD)
                for _ in range(3):
                    with pytest.raises(StorageError) as caught:
                        manager.save(3, state_of(3))
                    assert caught.value.errno == errno.EIO
                    assert manager.all_steps() == [0, 1, 2]
                assert disk.failures() >= 3
                assert (folder / NAME).stat().st_ino == inode
                assert not any(is_temporary(name) for name in os.listdir(folder))
                disk.fail_writes_of(b"")
                manager.save(3, state_of(3))
                assert (folder / NAME).stat().st_ino != inode
                disk.done(3)
        with after_power_loss(disk, tmp_path) as rebooted:
            assert_same(steps(rebooted / "run"), {step: state_of(step) for step in range(4)})
            assert verify(rebooted / "run" / NAME) == []

    in_child(attempt)


@needs_block_disk()
def test_b6_write_back_error_before_the_sync(tmp_path: Path) -> None:
    """FAULTS B6: the kernel writes back by itself, fails, and marks the pages clean, all before our sync: that reports it nevertheless."""

    def attempt() -> None:
        own_mounts()
        with BlockDisk(tmp_path) as disk:
            folder = disk.path / "run"
            run_of(0, 1)(folder)
            written_back = BeforeCall(DISK, disk.sync, kind="sync_data", nth=2)  # the first one is what opening vouches by
            with CheckpointManager(folder, dict, storage=written_back) as manager:
                disk.fail_writes_of(RECORD)
                with pytest.raises(StorageError) as caught:
                    manager.save(2, state_of(2))
                assert caught.value.errno == errno.EIO
                disk.fail_writes_of(b"")
                manager.save(2, state_of(2))
                disk.done(2)
        with after_power_loss(disk, tmp_path) as rebooted:
            assert_same(steps(rebooted / "run"), {step: state_of(step) for step in range(3)})

    in_child(attempt)


@needs_block_disk()
def test_b6_the_next_process_after_a_write_back_error(tmp_path: Path) -> None:
    """FAULTS B6: a save failed, its process ended, and what it wrote is in memory only: the next process does not take it for a step.

    Whatever it finds and goes on from must be there after a loss of power.
    """

    def attempt() -> None:
        own_mounts()
        with BlockDisk(tmp_path) as disk:
            folder = disk.path / "run"
            run_of(0, 1, 2)(folder)
            disk.fail_writes_of(RECORD)
            with pytest.raises(StorageError, match="input/output error"):
                appended(folder)
            disk.fail_writes_of(b"")
            with CheckpointManager(folder, dict) as manager:
                step = manager.next_step()
                manager.save(step, state_of(step))
            found = steps(folder)
            disk.done(step)
        with after_power_loss(disk, tmp_path) as rebooted:
            assert_same(steps(rebooted / "run"), found)
            assert verify(rebooted / "run" / NAME) == []

    in_child(attempt)


@needs_block_disk()
def test_b11_disk_turns_read_only_under_a_writer(tmp_path: Path) -> None:
    """FAULTS B6, B11: ext4 cannot write its journal and turns itself read-only under an open run: refused, readable, and whole after a reboot."""
    journal_block = b"\xc0\x3b\x39\x98"  # what every block of ext4's own journal begins with

    def attempt() -> None:
        own_mounts()
        with BlockDisk(tmp_path) as disk:
            folder = disk.path / "run"
            run_of(0, 1)(folder)
            save(folder / "single.fastckpt", state_of(0))
            manager = CheckpointManager(folder, dict)
            manager.save(2, state_of(2))
            disk.done(2)
            disk.fail_writes_of(journal_block)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # temporary files cannot be removed there
                for _ in range(2):
                    with pytest.raises(StorageError) as caught:
                        manager.save(3, state_of(3))
                    assert caught.value.errno in (errno.EIO, errno.EROFS), caught.value
                with pytest.raises(StorageError) as caught:
                    save(folder / "single.fastckpt", state_of(1))
            assert caught.value.errno in (errno.EIO, errno.EROFS), caught.value
            assert_same(load(folder / "single.fastckpt"), state_of(0))
            assert manager.all_steps() == [0, 1, 2]
            assert_same(manager.restore(2), state_of(2))
            before = open_descriptors()
            manager.close()
            assert len(before - open_descriptors()) == 2  # the file and its lock
        with after_power_loss(disk, tmp_path) as rebooted:
            assert_same(steps(rebooted / "run"), {step: state_of(step) for step in range(3)})
            assert_same(load(rebooted / "run" / "single.fastckpt"), state_of(0))

    in_child(attempt)
