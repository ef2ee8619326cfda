"""I/O errors: each call of a save and of a load fails in turn, once and for ever; and real disks that are full, read-only, forbidden.

FAULTS B1, B2, B4, B5, B7 to B11, B14, I3, I4. What must hold after each failure is in `faults.check_faults`: a save that returns
is durable, a DurabilityError leaves the new content visible, any other error leaves the old one and no temporary file, nothing
stays open, no file is synced again after a failed sync, and the next save is durable.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import (
    DISTANT,
    FOR_EVER,
    NEAR,
    PUBLISH,
    SAVE,
    Attempt,
    BeforeCall,
    FaultyStorage,
    ModelStorage,
    Product,
    Subject,
    check_faults,
    creates,
    each_subject,
    load_or_none,
    new_disk,
    require_after_crash,
    temporaries,
    unchanged,
)
from support import assert_same, everything_in, in_child, mount_tmpfs, needs_linux, needs_root, needs_tool, open_descriptors, without_privileges

from fastckpt import container
from fastckpt.errors import CheckpointWarning, ConflictError, DurabilityError, StorageError
from fastckpt.storage import DISK, Storage, is_temporary, remove

pytestmark = needs_linux

once_and_for_ever = pytest.mark.parametrize("times", [1, FOR_EVER], ids=["once", "for ever"])
first_and_over = pytest.mark.parametrize("first", [True, False], ids=["first", "over"])


@pytest.fixture
def product() -> Product:
    return unchanged


def outcomes(attempts: list[Attempt], kind: str) -> list[str]:
    """What came of the saves in which a call of `kind` was the first to fail, in the order of the calls."""
    return [attempt.outcome for attempt in attempts if attempt.hit[0] == kind]


def old_and_new(subject: Subject, first: bool) -> tuple[Any, Any]:
    return (None if first else subject.values[0]), subject.values[1]


# Every call, in the model


@each_subject
@once_and_for_ever
@first_and_over
@pytest.mark.parametrize("path", [NEAR, DISTANT], ids=["near", "distant"])
def test_every_call_fails(subject: Subject, times: float, first: bool, path: str) -> None:
    """FAULTS B: an I/O error at any call of a save, once and for ever: the save is durable, or refused with the old file intact."""
    old, new = old_and_new(subject, first)
    attempts = check_faults(subject, path, old, new, code=errno.EIO, times=times)
    assert {attempt.outcome for attempt in attempts} >= {"refused", "visible"}
    assert {name for attempt in attempts for name in attempt.hit} >= {"stat", "open", "write", "sync", "close", "replace"}


@each_subject
@once_and_for_ever
@first_and_over
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_b1_no_space_at_a_write(subject: Subject, times: float, first: bool, code: int) -> None:
    """FAULTS B1: a write that finds no space is named with path and errno; the old file is intact; the next save works."""
    old, new = old_and_new(subject, first)
    attempts = check_faults(subject, NEAR, old, new, kind="write", code=code, times=times)
    assert [attempt.outcome for attempt in attempts] == ["refused"]
    (attempt,) = attempts
    assert "/disk/" in str(attempt.error)
    assert os.strerror(code).lower() in str(attempt.error).lower()


@each_subject
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_b1_no_space_for_a_name(subject: Subject, code: int) -> None:
    """FAULTS B1: no space for a directory entry, at open, mkdir or replace, is the same."""
    attempts = check_faults(subject, DISTANT, None, subject.values[1], kind=("open", "mkdir", "replace"), code=code)
    assert outcomes(attempts, "mkdir") == ["refused", "refused"]
    assert outcomes(attempts, "replace") == ["refused"]


@each_subject
@pytest.mark.parametrize("count", [1, 2, 7, 511, 512, 513])
def test_b2_short_writes(subject: Subject, product: Product, count: int) -> None:
    """FAULTS B2: writes and reads that take or give fewer bytes than asked, any number of them, are gone on with; the content is right."""
    model = new_disk(subject, NEAR, subject.values[0])
    short = FaultyStorage(model, kind="write", count=count, times=FOR_EVER)
    subject.save(NEAR, subject.values[1], product(short))
    assert len(short.hit) > 1
    assert_same(subject.load(NEAR, model), subject.values[1])
    assert_same(subject.load(NEAR, FaultyStorage(model, kind="read", count=count, times=FOR_EVER)), subject.values[1])


@each_subject
def test_b2_one_short_write(subject: Subject, product: Product) -> None:
    """FAULTS B2: one short write of a disk that is filling, with no error, is noticed: what returns is whole and durable."""
    for count in (1, 100, 299):
        check_faults(subject, NEAR, subject.values[0], subject.values[1], product=product, kind="write", count=count)


@each_subject
def test_b2_a_write_of_nothing_ends(subject: Subject) -> None:
    """A write that for ever takes no byte at all is an error, not an endless loop."""
    attempts = check_faults(subject, NEAR, subject.values[0], subject.values[1], kind="write", count=0, times=FOR_EVER)
    assert [attempt.outcome for attempt in attempts] == ["refused"]


@each_subject
@once_and_for_ever
@first_and_over
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_b4_sync_of_the_file_fails(subject: Subject, product: Product, times: float, first: bool, code: int) -> None:
    """FAULTS B4, B5: a sync of the file fails, once or for ever: the save is refused, although a second sync would have succeeded."""
    old, new = old_and_new(subject, first)
    attempts = check_faults(subject, NEAR, old, new, product=product, kind="sync", code=code, times=times)
    assert "refused" in outcomes(attempts, "sync")
    # The last sync of a save is that of the directory, the one before it that of the file.
    assert outcomes(attempts, "sync")[-2:] == ["refused", "visible"]


@each_subject
def test_b5_the_file_is_never_synced_again(subject: Subject) -> None:
    """FAULTS B5: after its sync has failed the file gets no second one; nothing else happens to it but close and unlink."""
    model = new_disk(subject, NEAR, subject.values[0])
    faulty = FaultyStorage(model, kind="sync")
    with pytest.raises(StorageError):
        subject.save(NEAR, subject.values[1], faulty)
    failed = max(i for i, (name, _) in enumerate(faulty.calls) if name == "sync")
    assert [name for name, _ in faulty.calls[failed + 1 :]] == ["close", "unlink"]
    assert faulty.synced_again == []


@each_subject
@first_and_over
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_b7_sync_of_the_directory_fails(subject: Subject, first: bool, code: int) -> None:
    """FAULTS B7: the directory cannot be synced: a DurabilityError that says so, the new content visible and not rolled back."""
    old, new = old_and_new(subject, first)
    attempt = check_faults(subject, NEAR, old, new, kind="sync", code=code)[-1]
    assert attempt.outcome == "visible"
    assert "in place" in str(attempt.error)
    assert NEAR in str(attempt.error)


@each_subject
@first_and_over
@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_i4_directories_that_cannot_be_synced(subject: Subject, first: bool, code: int) -> None:
    """FAULTS I4: a filesystem that has no sync of a directory costs a warning, not the save."""
    old, new = old_and_new(subject, first)
    attempt = check_faults(subject, NEAR, old, new, kind="sync", code=code)[-1]
    assert attempt.outcome == "saved"
    assert "/disk" in attempt.warned[-1]


@each_subject
@once_and_for_ever
@first_and_over
def test_b8_close_fails(subject: Subject, times: float, first: bool) -> None:
    """FAULTS B8: an error at the close of the written file is a failed save; at the close of what was only read it is nothing."""
    old, new = old_and_new(subject, first)
    attempts = check_faults(subject, NEAR, old, new, kind="close", code=errno.EIO, times=times)
    assert outcomes(attempts, "close")[-2:] == ["refused", "saved"]
    if times == 1:
        assert outcomes(attempts, "close").count("refused") == 1


@each_subject
@once_and_for_ever
@first_and_over
@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EACCES, errno.EISDIR, errno.ENOENT, errno.ENOSPC, errno.EROFS, errno.EBUSY])
def test_b9_replace_fails(subject: Subject, times: float, first: bool, code: int) -> None:
    """FAULTS B9: a rename that fails, whatever the reason: the old file intact, the temporary one gone, the reason and the path named."""
    old, new = old_and_new(subject, first)
    attempts = check_faults(subject, NEAR, old, new, kind="replace", code=code, times=times)
    assert [attempt.outcome for attempt in attempts] == ["refused"]
    assert NEAR in str(attempts[0].error)


@each_subject
@first_and_over
@pytest.mark.parametrize("code", [errno.ENOENT, errno.EIO, errno.ESTALE])
def test_b10_replace_reports_an_error_but_happened(subject: Subject, first: bool, code: int) -> None:
    """FAULTS B10: a network filesystem does the rename, loses the answer and reports an error: it is seen, and the save is whole."""
    old, new = old_and_new(subject, first)
    (attempt,) = check_faults(subject, NEAR, old, new, kind="replace", code=code, happened=True)
    assert attempt.outcome == "saved"
    assert attempt.warned == []


@each_subject
@once_and_for_ever
@first_and_over
@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOENT, errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("path", [NEAR, DISTANT], ids=["near", "distant"])
def test_b11_open_fails(subject: Subject, times: float, first: bool, code: int, path: str) -> None:
    """FAULTS B11: any open of a save fails, the directory's included: a clean error, nothing leaked, nothing left behind."""
    old, new = old_and_new(subject, first)
    attempts = check_faults(subject, path, old, new, kind="open", code=code, times=times)
    assert "refused" in outcomes(attempts, "open")
    assert outcomes(attempts, "open")[-1] == ("visible" if times == 1 or len(attempts) > 1 else "refused")


def error_of(attempt: Callable[[], object]) -> StorageError | None:
    """What `attempt` ended in, if in a StorageError."""
    try:
        attempt()
    except StorageError as error:
        return error
    return None


@each_subject
@once_and_for_ever
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE, errno.EINVAL])
def test_b11_every_call_of_a_load_fails(subject: Subject, times: float, code: int) -> None:
    """FAULTS B11, I4: an error at any call of a load is a StorageError that names the path and the reason; nothing stays open."""
    for nth in itertools.count(1):
        model = new_disk(subject, NEAR, subject.values[0])
        faulty = FaultyStorage(model, nth, code=code, times=times)
        if (error := error_of(lambda faulty=faulty: assert_same(subject.load(NEAR, faulty), subject.values[0]))) is None:
            assert faulty.hit in ([], ["close"])
        else:
            assert type(error) is StorageError
            assert error.errno == code
            assert NEAR in str(error)
        assert not faulty.open_fds
        assert not model.descriptors
        if not faulty.hit:
            break
    assert nth > 3


@each_subject
def test_b14_temporary_file_cannot_be_removed(subject: Subject) -> None:
    """FAULTS B14: the removal of the temporary file fails too: the first error is the one reported, a warning names the file."""
    model = new_disk(subject, NEAR, subject.values[0])
    storage = FaultyStorage(FaultyStorage(model, kind="unlink", code=errno.EPERM, times=FOR_EVER), kind="replace", code=errno.EXDEV)
    with pytest.warns(CheckpointWarning) as caught, pytest.raises(StorageError) as raised:
        subject.save(NEAR, subject.values[1], storage)
    assert raised.value.errno == errno.EXDEV
    (name,) = temporaries(model)
    assert name in str(caught[0].message)
    assert_same(subject.load(NEAR, model), subject.values[0])


@once_and_for_ever
def test_removal_fails(times: float) -> None:
    """FAULTS B: an error at any call of a removal: it is refused and the file there, or gone (and a DurabilityError says of what)."""
    for nth in itertools.count(1):
        model = new_disk(PUBLISH, NEAR, b"old")
        faulty = FaultyStorage(model, nth, times=times)
        error = error_of(lambda faulty=faulty: remove(NEAR, storage=faulty))
        assert load_or_none(PUBLISH, NEAR, model) == (None if error is None or isinstance(error, DurabilityError) else b"old")
        assert not model.descriptors
        assert error is None or NEAR in str(error)
        assert not isinstance(error, DurabilityError) or "new content" not in str(error)
        remove(NEAR, storage=model)
        require_after_crash(PUBLISH, NEAR, model, [None], seed=nth, told=f"call {nth} failed, then removed again", seen=set())
        if not faulty.hit:
            break


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
def test_run_is_not_replaced(code: int) -> None:
    """A run's file, which holds many steps, is not replaced by a one-off save, also not when it cannot be told that it is one."""
    run = container.pack_file_header(b"0123456789abcdef", run=True)
    for nth in itertools.count(1):
        model = ModelStorage({NEAR: run}, folders=["/disk"])
        faulty = FaultyStorage(model, nth, code=code)
        with pytest.raises((ConflictError, StorageError)):
            SAVE.save(NEAR, SAVE.values[0], faulty)
        (file,) = [file for name, file in model.directory(["disk"]).entries.items() if name == "checkpoint.fastckpt"]
        assert bytes(file.content) == run, faulty.trace()
        if not faulty.hit:
            break


class HeldOpen(FaultyStorage):
    """Windows: a reader or a virus scanner holds the target open, so that the first `times` replaces are denied."""

    def __init__(self, inner: Storage, times: float, winerror: int) -> None:
        def error() -> OSError:
            denied = PermissionError(errno.EACCES, "Access is denied")
            denied.winerror = winerror  # type: ignore[attr-defined]
            return denied

        super().__init__(inner, kind="replace", error=error, times=times)


@each_subject
@pytest.mark.parametrize("winerror", [5, 32])
@pytest.mark.parametrize("times", [1, 3, 9])
def test_i3_held_open_for_a_moment(subject: Subject, winerror: int, times: int) -> None:
    """FAULTS I3: a target that is held open is waited for, longer each time, some seconds in all; then the save succeeds."""
    model = new_disk(subject, NEAR, subject.values[0])
    subject.save(NEAR, subject.values[1], HeldOpen(model, times, winerror))
    assert_same(subject.load(NEAR, model), subject.values[1])
    assert len(model.slept) == times
    assert model.slept == sorted(model.slept)
    assert sum(model.slept) < 10


@each_subject
@pytest.mark.parametrize("winerror", [5, 32])
def test_i3_held_open_for_ever(subject: Subject, winerror: int) -> None:
    """FAULTS I3: a target that stays held open is refused in the end: a StorageError, the old file intact, the temporary one removed."""
    model = new_disk(subject, NEAR, subject.values[0])
    with pytest.raises(StorageError) as caught:
        subject.save(NEAR, subject.values[1], HeldOpen(model, FOR_EVER, winerror))
    assert NEAR in str(caught.value)
    assert 2 < sum(model.slept) < 10
    assert_same(subject.load(NEAR, model), subject.values[0])
    assert temporaries(model) == []
    assert not model.descriptors


def test_i3_other_denials_are_not_waited_for() -> None:
    """A rename that is denied for good, as on POSIX, is not tried again."""
    model = new_disk(SAVE, NEAR, SAVE.values[0])
    with pytest.raises(StorageError):
        SAVE.save(NEAR, SAVE.values[1], FaultyStorage(model, kind="replace", code=errno.EACCES, times=FOR_EVER))
    assert model.slept == []


# Real disks


def require_refused(subject: Subject, path: Path, value: Any, code: int | tuple[int, ...], *, old: Any) -> StorageError:
    """A save of `value` is refused with `code`, and leaves the old value, no temporary file and no open descriptor."""
    before = open_descriptors()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(StorageError) as caught:
            subject.save(path, value)
    assert caught.value.errno in ((code,) if isinstance(code, int) else code), caught.value
    # The path itself, something beside it, or a directory above it.
    assert path.is_relative_to(caught.value.path) or os.path.dirname(caught.value.path) == str(path.parent)
    assert caught.value.path in str(caught.value)
    assert open_descriptors() == before
    assert_same(load_or_none(subject, path), old)
    if os.access(path.parent, os.R_OK):
        assert [name for name in os.listdir(path.parent) if is_temporary(name)] == []
    return caught.value


def large(subject: Subject, size: int) -> Any:
    """A value whose file takes about `size` bytes."""
    return os.urandom(size) if subject is not SAVE else {"noise": os.urandom(size).hex()}


@needs_root
@needs_tool("mount")
@each_subject
def test_b1_real_full_disk(subject: Subject, tmp_path: Path) -> None:
    """FAULTS B1: a real disk of 1 MiB fills up: refused, the old file intact, and the next save works once there is room."""

    def fill() -> None:
        mount_tmpfs(tmp_path, "size=1m")
        path = tmp_path / "f"
        subject.save(path, subject.values[0])
        error = require_refused(subject, path, large(subject, 3 << 20), errno.ENOSPC, old=subject.values[0])
        assert "space" in str(error)
        # Filled to the last block by somebody else: not even a small one fits.
        (tmp_path / "filler").write_bytes(bytes((1 << 20) - 4096))
        require_refused(subject, path, large(subject, 100_000), errno.ENOSPC, old=subject.values[0])
        os.unlink(tmp_path / "filler")
        subject.save(path, subject.values[1])
        assert_same(subject.load(path), subject.values[1])

    in_child(fill)


@needs_root
@needs_tool("mount")
@each_subject
def test_b1_real_disk_without_inodes(subject: Subject, tmp_path: Path) -> None:
    """FAULTS B1: a real disk with room but without a free inode refuses a save in the same way."""

    def fill() -> None:
        mount_tmpfs(tmp_path, "size=1m,nr_inodes=8")
        path = tmp_path / "f"
        subject.save(path, subject.values[0])
        for n in range(8 - len(["the root", "f"])):
            (tmp_path / f"{n}").touch()
        require_refused(subject, path, subject.values[1], errno.ENOSPC, old=subject.values[0])
        (tmp_path / "0").unlink()
        subject.save(path, subject.values[1])

    in_child(fill)


@each_subject
def test_b1_real_limit_of_file_size(subject: Subject, tmp_path: Path) -> None:
    """FAULTS B1: a file that would exceed the limit on file sizes (first a short write, then EFBIG) is refused and removed."""
    path = tmp_path / "f"
    subject.save(path, subject.values[0])

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))
        require_refused(subject, path, large(subject, 200_000), errno.EFBIG, old=subject.values[0])
        subject.save(path, subject.values[1])

    in_child(limited)
    assert everything_in(tmp_path) == ["f"]
    assert_same(subject.load(path), subject.values[1])


@each_subject
def test_b11_real_permissions(subject: Subject, public_path: Path) -> None:
    """FAULTS B11: no permission for the directory or the file: a StorageError with the reason; what is there stays."""
    shut, locked = public_path / "shut", public_path / "locked"
    for folder, value in ((shut, subject.values[0]), (locked, subject.values[1])):
        folder.mkdir()
        subject.save(folder / "f", value)
    (shut / "private").write_bytes(b"secret")
    (shut / "private").chmod(0)
    shut.chmod(0o555)
    locked.chmod(0)

    def attempt() -> None:
        without_privileges()
        require_refused(subject, shut / "f", subject.values[2], errno.EACCES, old=subject.values[0])
        require_refused(subject, shut / "new", subject.values[2], errno.EACCES, old=None)
        require_refused(subject, shut / "a" / "b" / "f", subject.values[2], errno.EACCES, old=None)
        for path in (shut / "private", locked / "f"):
            with pytest.raises(StorageError, match="permission") as caught:
                subject.load(path)
            assert caught.value.errno == errno.EACCES
            assert str(path) in str(caught.value)

    in_child(attempt)
    for folder in (shut, locked):
        folder.chmod(0o755)
    assert everything_in(public_path) == ["locked", "locked/f", "shut", "shut/f", "shut/private"]


@needs_root
@each_subject
def test_b9_real_sticky_directory(subject: Subject, public_path: Path) -> None:
    """FAULTS B9: in a directory like /tmp another user's file cannot be replaced: EPERM at the rename, the old file intact."""
    public_path.chmod(0o1777)
    subject.save(public_path / "f", subject.values[0])

    def attempt() -> None:
        without_privileges()
        require_refused(subject, public_path / "f", subject.values[1], errno.EPERM, old=subject.values[0])

    in_child(attempt)
    assert everything_in(public_path) == ["f"]


@each_subject
def test_b11_directory_above_that_cannot_be_read(subject: Subject, public_path: Path) -> None:
    """A directory above that may be passed but not read, as many homes are, does not stop a save."""
    (public_path / "home" / "mine").mkdir(parents=True)
    (public_path / "home" / "mine").chmod(0o777)
    (public_path / "home").chmod(0o711)

    def attempt() -> None:
        without_privileges()
        subject.save(public_path / "home" / "mine" / "f", subject.values[0])
        subject.save(public_path / "home" / "mine" / "a" / "b" / "f", subject.values[0])

    if os.geteuid() == 0:
        in_child(attempt)


@needs_root
@needs_tool("chattr")
@each_subject
@pytest.mark.parametrize("what", ["file", "directory"])
def test_b9_real_immutable(subject: Subject, tmp_path: Path, what: str) -> None:
    """FAULTS B9: what is immutable (chattr +i) refuses with EPERM even root, at the rename or at the create; all stays as it was."""
    subject.save(tmp_path / "f", subject.values[0])
    immutable = tmp_path / "f" if what == "file" else tmp_path
    done = subprocess.run(["chattr", "+i", immutable], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"chattr +i does not work here: {done.stderr.strip()}")
    try:
        require_refused(subject, tmp_path / "f", subject.values[1], (errno.EPERM, errno.EACCES), old=subject.values[0])
        assert everything_in(tmp_path) == ["f"]
    finally:
        subprocess.run(["chattr", "-i", immutable], check=True)
    subject.save(tmp_path / "f", subject.values[1])


@each_subject
def test_b9_target_becomes_a_directory(subject: Subject, tmp_path: Path) -> None:
    """FAULTS B9: the path becomes a directory after it was looked at: EISDIR, and the temporary file is gone."""
    storage = BeforeCall(DISK, (tmp_path / "f").mkdir, kind="replace")
    with pytest.raises(StorageError) as caught:
        subject.save(tmp_path / "f", subject.values[0], storage)
    assert caught.value.errno == errno.EISDIR
    assert everything_in(tmp_path) == ["f"]


@each_subject
@pytest.mark.parametrize("kind", ["open", "write", "sync", "replace"])
def test_b9_directory_is_removed(subject: Subject, tmp_path: Path, kind: str) -> None:
    """FAULTS B9: the directory is removed under a save, at any moment: an error, nothing leaked, nothing made elsewhere."""
    folder = tmp_path / "a"
    folder.mkdir()
    before = open_descriptors()
    storage = BeforeCall(DISK, lambda: shutil.rmtree(folder), kind=kind, on=creates if kind == "open" else lambda *arguments: True)
    with pytest.raises(StorageError):
        subject.save(folder / "f", subject.values[0], storage)
    assert everything_in(tmp_path) == []
    assert open_descriptors() == before


@needs_root
@needs_tool("mount")
@each_subject
def test_b11_real_read_only_disk(subject: Subject, tmp_path: Path) -> None:
    """FAULTS B11: a disk that is read-only: saves are refused with EROFS, loads go on, and it all works again when it is remounted."""

    def attempt() -> None:
        mount_tmpfs(tmp_path, "size=1m")
        subject.save(tmp_path / "f", subject.values[0])
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        error = require_refused(subject, tmp_path / "f", subject.values[1], errno.EROFS, old=subject.values[0])
        assert "read-only" in str(error)
        require_refused(subject, tmp_path / "a" / "f", subject.values[1], errno.EROFS, old=None)
        subprocess.run(["mount", "-o", "remount,rw", str(tmp_path)], check=True)
        subject.save(tmp_path / "f", subject.values[1])
        assert_same(subject.load(tmp_path / "f"), subject.values[1])

    in_child(attempt)


@each_subject
def test_b11_real_limit_of_open_files(subject: Subject, tmp_path: Path) -> None:
    """FAULTS B11: no descriptor is left: EMFILE for save and load, nothing leaked; with one more or two it works or fails as cleanly."""
    path = tmp_path / "f"
    subject.save(path, subject.values[0])

    def attempt() -> None:
        used = max(map(int, open_descriptors())) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, used + 2))
        held: list[int] = []
        with pytest.raises(OSError, match="Too many open files"):  # noqa: PT012
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for call in (lambda: subject.save(path, subject.values[1]), lambda: subject.load(path)):
            with pytest.raises(StorageError, match="open files") as caught:
                call()
            assert caught.value.errno == errno.EMFILE
        os.close(held.pop())
        assert_same(subject.load(path), subject.values[0])
        subject.save(path, subject.values[1])
        assert_same(subject.load(path), subject.values[1])
        assert os.open("/dev/null", os.O_RDONLY) not in held  # the one that was given back is still free

    in_child(attempt)
    assert everything_in(tmp_path) == ["f"]
