"""Loss of power: after a crash at any call, in every state that it may leave, the old checkpoint or the new one loads.

FAULTS A1 to A3 over the model of a disk. The test_mutants module calls these tests again with a mutant as `product`, and there
they must fail.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from faults import (
    DISTANT,
    METHODS,
    NEAR,
    PUBLISH,
    Crash,
    CrashingStorage,
    FaultyStorage,
    ModelStorage,
    Product,
    Subject,
    _attempt,
    check_crashes,
    check_interleavings,
    each_subject,
    is_one_of,
    load_or_none,
    new_disk,
    require_after_crash,
    unchanged,
)
from support import count, needs_linux, needs_tool

import fastckpt
import fastckpt.storage
from fastckpt.storage import exists, is_temporary, publish, remove


@pytest.fixture
def product() -> Product:
    return unchanged


@each_subject
def test_a1_first_save_ever(subject: Subject, product: Product) -> None:
    """FAULTS A1, A2: before the first save returns there is no checkpoint or the new one, in every state after every call; then the new one."""
    check_crashes(subject, NEAR, [None, subject.values[0]], product=product)


@each_subject
def test_a1_overwrite(subject: Subject, product: Product) -> None:
    """FAULTS A1, A2: a save over an older one, twice in a row: the last acknowledged one or the one in flight, in every state."""
    check_crashes(subject, NEAR, subject.values[:3], product=product)


@each_subject
def test_a1_directories_made(subject: Subject, product: Product) -> None:
    """FAULTS A1, A2: where directories are missing they are made, and are as durable as the file when the save returns."""
    check_crashes(subject, DISTANT, [None, *subject.values[:2]], product=product)


@each_subject
def test_a3_torn_at_every_sector(subject: Subject, product: Product) -> None:
    """FAULTS A3: a crash after every 512 bytes written, any of the sectors lost: the old one or the new one."""
    assert check_crashes(subject, NEAR, subject.values[:2], product=product, write_at_most=512) > 10


@each_subject
@pytest.mark.parametrize("kind", ["write", "sync", "open", "replace", "close"])
def test_a1_directories_made_by_a_save_that_failed(subject: Subject, product: Product, kind: str) -> None:
    """FAULTS A1: a save makes directories and fails, the next one succeeds: it is durable, although it made no directory itself."""
    nth = 0
    while True:
        nth += 1
        model = new_disk(subject, DISTANT)
        faulty = FaultyStorage(model, nth, kind=kind)
        if not _attempt(subject, DISTANT, subject.values[0], faulty, product).hit:
            break
        subject.save(DISTANT, subject.values[1], product(model))
        told = f"{kind} number {nth} failed in the save before:\n{faulty.trace()}"
        require_after_crash(subject, DISTANT, model, [subject.values[1]], seed=nth, told=told, seen=set())
    assert nth > 1


@each_subject
def test_a1_directories_made_by_a_process_that_was_killed(subject: Subject, product: Product) -> None:
    """FAULTS A1: a process is killed anywhere in its first save, the next one saves, and then the power goes: that save is there."""
    after, finished = 0, False
    while not finished:
        model = new_disk(subject, DISTANT)
        killed = CrashingStorage(model, after)
        try:
            subject.save(DISTANT, subject.values[0], product(killed))
            finished = True
        except Crash:
            pass
        model.descriptors.clear()  # they die with the process; what it changed stays, synced or not
        subject.save(DISTANT, subject.values[1], product(model))
        told = f"the process before was killed after {after} calls:\n{killed.trace()}"
        require_after_crash(subject, DISTANT, model, [subject.values[1]], seed=after, told=told, seen=set())
        after += 1


def test_a1_directories_made_by_a_save_without_sync(product: Product) -> None:
    """FAULTS A1: directories that a save with `fsync=False` made hold nothing up: the next save, with a sync, is durable."""
    model = new_disk(PUBLISH, DISTANT)
    publish(DISTANT, b"quick", fsync=False, storage=product(model))
    publish(DISTANT, b"durable", storage=product(model))
    require_after_crash(PUBLISH, DISTANT, model, [b"durable"], seed=0, told="a save without sync, then one with", seen=set())


def test_a1_removal() -> None:
    """A removal that is killed after any call, and then done again, is durable when it returns; before that the file is whole or gone."""
    for after in itertools.count():
        model = new_disk(PUBLISH, NEAR, b"old")
        killed = CrashingStorage(model, after)
        try:
            removed = remove(NEAR, storage=killed)
        except Crash:
            removed = None
        told = f"killed after {after} calls:\n{killed.trace()}"
        require_after_crash(PUBLISH, NEAR, model, [None] if removed else [b"old", None], seed=after, told=told, seen=set())
        was_there = exists(NEAR, model)
        assert remove(NEAR, storage=model) is was_there
        assert not exists(NEAR, model)
        require_after_crash(PUBLISH, NEAR, model, [None], seed=after, told=f"{told}\nand removed again", seen=set())
        if removed:
            break


@each_subject
def test_a1_killed_on_the_real_disk(subject: Subject, tmp_path: Path) -> None:
    """FAULTS A1: killed after any call, on the real disk: the old one or the new one loads, and the next save works over the leftovers."""
    path = str(tmp_path / "checkpoint.fastckpt")
    old, new, newer = subject.values[:3]
    after, finished = 0, False
    while not finished:
        subject.save(path, old)
        try:
            subject.save(path, new, CrashingStorage(fastckpt.storage.DISK, after))
            finished = True
        except Crash:
            pass
        assert is_one_of(load_or_none(subject, path), [new] if finished else [old, new])
        subject.save(path, newer)
        assert is_one_of(load_or_none(subject, path), [newer])
        after += 1
    assert all(is_temporary(name, "checkpoint.fastckpt") for name in os.listdir(tmp_path) if name != "checkpoint.fastckpt")


@needs_linux
@needs_tool("strace")
def test_a1_killed_at_every_system_call(tmp_path: Path) -> None:
    """FAULTS A1: the real process, killed by SIGKILL on entry to each of its real system calls: the old one or the new one loads."""
    path, temporary = tmp_path / "f", tmp_path / "temporary"
    code = (
        "import sys, fastckpt, fastckpt.storage\n"
        "fastckpt.storage.temporary_name = lambda path: sys.argv[2]\n"  # strace is to follow it by its name
        "fastckpt.save(sys.argv[1], ['new'] * 100)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(fastckpt.storage.__file__).parents[1])}
    watched = [argument for place in (path, temporary, tmp_path) for argument in ("-P", str(place))]
    killed: dict[str, int] = {}
    for call in ("openat", "pwrite64", "fsync", "close", "rename"):
        for n in itertools.count(1):
            fastckpt.save(path, "old")
            temporary.unlink(missing_ok=True)
            # Only calls on these three count, so that the interpreter's start-up does not.
            command = ["strace", "-qq", "-o", "/dev/null", *watched, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={n}"]
            command += [sys.executable, "-c", code, str(path), str(temporary)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if "ptrace" in done.stderr:
                pytest.skip(f"strace may not trace here: {done.stderr.strip()[:200]}")
            found = fastckpt.load(path)
            assert is_one_of(found, [["new"] * 100] if done.returncode == 0 else ["old", ["new"] * 100]), (call, n)
            if done.returncode == 0:
                break
            assert done.returncode in (-9, 137), done.stderr
            killed[call] = n
    assert killed.keys() == {"openat", "pwrite64", "fsync", "close", "rename"}
    assert killed["fsync"] == 2
    count("kills", sum(killed.values()))


# The model itself


def test_model_implements_every_method() -> None:
    """A method that is added to `Storage` must be added to the model, or it would quietly reach the real disk."""
    assert [name for name in METHODS if name not in vars(ModelStorage)] == []


def test_model_of_unsynced_data() -> None:
    """What was never synced may be there, be zeros or be missing, sector by sector, with any size; what was synced is certain."""
    model = ModelStorage(folders=["/disk"])
    fd = model.open("/disk/f", os.O_WRONLY | os.O_CREAT)
    model.write(fd, memoryview(b"a" * 1000), 0)
    found = {state.files.get(("disk", "f"), (0, 0, None))[2] for state in model.states()}
    assert {None, b"", b"a" * 1000, bytes(512) + b"a" * 488, b"a" * 512 + bytes(488), b"a" * 512, bytes(1000), b"a" * 511} <= found
    assert all(content is None or set(content) <= {0, 97} for content in found)
    model.sync(fd)
    assert {state.files.get(("disk", "f"), (0, 0, None))[2] for state in model.states()} == {None, b"a" * 1000}
    model.write(fd, memoryview(b"b" * 300), 1000)
    folder = model.open("/disk", os.O_RDONLY)
    model.sync(folder)
    found = {state.files["disk", "f"][2] for state in model.states()}
    assert {content[:1000] for content in found} == {b"a" * 1000}
    assert {1000, 1024, 1300} <= {len(content) for content in found}
    assert b"a" * 1000 + b"b" * 24 + bytes(276) in found
    assert b"a" * 1000 + bytes(24) + b"b" * 276 in found


def test_model_of_unsynced_names() -> None:
    """A rename may be there although the file's data is not, and is lost as a whole or kept as a whole, until the directory is synced."""
    model = ModelStorage({"/disk/f": b"old"}, folders=["/disk"])
    fd = model.open("/disk/t", os.O_WRONLY | os.O_CREAT)
    model.write(fd, memoryview(b"new"), 0)
    model.replace("/disk/t", "/disk/f")
    found = {state.files["disk", "f"][2] for state in model.states()}
    assert found == {b"old", b"", b"n", b"ne", b"new", b"\0", b"\0\0", b"\0\0\0"}
    model.sync(fd)
    assert {state.files["disk", "f"][2] for state in model.states()} == {b"old", b"new"}
    model.sync(model.open("/disk", os.O_RDONLY))
    assert [dict(state.files) for state in model.states()] == [{("disk", "f"): (fd_number(model, fd), 0o644, b"new")}]


def fd_number(model: ModelStorage, fd: int) -> int:
    return model.stat(fd).st_ino


def test_model_of_unsynced_directories() -> None:
    """A directory that was made is lost with all that is in it, synced or not, until the directory above it is synced."""
    model = ModelStorage(folders=["/disk"])
    model.mkdir("/disk/a")
    fd = model.open("/disk/a/f", os.O_WRONLY | os.O_CREAT)
    model.sync(fd)
    model.sync(model.open("/disk/a", os.O_RDONLY))
    assert sorted(map(len, (state.files for state in model.states()))) == [0, 1]
    model.sync(model.open("/disk", os.O_RDONLY))
    assert [len(state.files) for state in model.states()] == [1]


def test_model_of_a_failed_sync() -> None:
    """After a failed sync the data reads back well and a second sync answers well, and yet it is not on the medium (fsyncgate)."""
    model = ModelStorage({"/f": b"old"})
    fd = model.open("/f", os.O_RDWR)
    model.write(fd, memoryview(b"new"), 0)
    faulty = FaultyStorage(model, kind="sync")
    with pytest.raises(OSError, match="Input/output error"):
        faulty.sync(fd)
    faulty.sync(fd)
    assert model.read(fd, 10, 0) == b"new"
    assert {state.files[("f",)][2] for state in model.states()} == {b"old", b"new"}


def test_model_of_a_cut_that_is_not_synced() -> None:
    """A file is cut and something else appended: until a sync the old bytes may be there again, alone or in front of the new ones."""
    model = ModelStorage({"/f": b"good" + b"old" * 10})
    fd = model.open("/f", os.O_RDWR)
    model.truncate(fd, 4)
    model.write(fd, memoryview(b"new"), 4)
    found = {state.files[("f",)][2] for state in model.states()}
    assert {b"good" + b"old" * 10, b"good", b"goodnew", b"goodold", b"good\0\0\0"} <= found
    assert all(content.startswith(b"good") for content in found)
    model.sync_data(fd)
    assert {state.files[("f",)][2] for state in model.states()} == {b"goodnew"}


def test_model_of_a_second_name() -> None:
    """A link is a name like another: it may be lost until its directory is synced, and it is the same file."""
    model = ModelStorage({"/f": b"content"})
    model.link("/f", "/g")
    assert sorted(sorted(state.files) for state in model.states()) == [[("f",)], [("f",), ("g",)]]
    model.sync(model.open("/", os.O_RDONLY))
    (state,) = model.states()
    assert state.files[("f",)] == state.files[("g",)]


def test_model_samples_what_is_too_much() -> None:
    """Too many states to enumerate are sampled, the same ones for the same seed, with nothing lost and everything lost among them."""
    model = ModelStorage(folders=["/disk"])
    fd = model.open("/disk/f", os.O_WRONLY | os.O_CREAT)
    model.write(fd, memoryview(b"a" * 512 * 20), 0)
    first, again, other = ({s.files.get(("disk", "f"), (0, 0, b"-"))[2] for s in model.states(seed)} for seed in (1, 1, 2))
    assert first == again != other
    assert 100 < len(first) <= 502
    assert {b"-", b"a" * 512 * 20} <= first


def test_model_state_made_real_and_booted(tmp_path: Path) -> None:
    """A state is the same as files in a real directory and as a model that goes on from it, two names of one file included."""
    model = ModelStorage({"/disk/f": b"content"}, folders=["/disk", "/disk/empty"])
    state = next(model.states())
    directory = model.directory(["disk"])
    directory.put("g", directory.entries["f"])
    model.sync_everything()
    (state,) = model.states()
    state.write_to(tmp_path)
    assert sorted(os.listdir(tmp_path / "disk")) == ["empty", "f", "g"]
    assert (tmp_path / "disk" / "g").read_bytes() == b"content"
    assert os.path.samefile(tmp_path / "disk" / "f", tmp_path / "disk" / "g")
    booted = state.boot()
    assert [s.signature() for s in booted.states()] == [state.signature()]
    assert booted.stat("/disk/f").st_ino == booted.stat("/disk/g").st_ino
    shutil.rmtree(tmp_path / "disk")


# Two at a time


@each_subject
def test_d1_a_save_inside_a_save(subject: Subject, product: Product) -> None:
    """FAULTS D1: another save of the same path, and a reader, at every call of a save: each read is one whole version, no leftovers."""
    old, mine, theirs = subject.values[:3]
    assert check_interleavings(subject, NEAR, old, mine, theirs, product=product) > 5


@each_subject
def test_d1_a_first_save_inside_a_first_save(subject: Subject, product: Product) -> None:
    """FAULTS D1: the same where nothing is there yet, so that both make the same directories at the same time."""
    assert check_interleavings(subject, DISTANT, None, *subject.values[:2], product=product) > 5
