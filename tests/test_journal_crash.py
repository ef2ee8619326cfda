"""A run's file under loss of power and I/O errors: the acknowledged steps are there, whatever happens to the append under way.

FAULTS A1 to A3, A7 (its rewrite), A8, A9, B2, B4 to B7, B11, B12, over the model of a disk. The oracle is `faults.Promised`; the
test_mutants module calls these tests again with a mutant, and there they must end in `Lost`.
"""

from __future__ import annotations

import errno
import random
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faults import (
    FOR_EVER,
    REOPEN,
    RUN,
    SYNC,
    BySector,
    Crash,
    FaultyStorage,
    Halting,
    Lost,
    ModelStorage,
    Promised,
    Put,
    check_recovery_crashes,
    check_run_crashes,
    check_run_faults,
    contents,
    contents_of,
    perform,
    puts,
    require_run_after_crash,
)
from forge import raw_frames
from support import in_child, mount_tmpfs, needs_linux, needs_root, needs_tool

from fastckpt import container
from fastckpt.errors import CheckpointWarning, CorruptError, DurabilityError, ReplacedError, StorageError
from fastckpt.journal import Journal
from fastckpt.reader import Reader
from fastckpt.storage import Storage

FIRST = puts(200)
ZEROS = puts(300, seed=2)[0].message + bytes(1600) + puts(300, seed=3)[0].message
LARGER = puts(1100, seed=1)


def soft(*sizes: int, seed: int) -> list[Put]:
    return [Put(put.message, sync=False) for put in puts(*sizes, seed=seed)]


def certain(*steps: tuple[int, bytes]) -> Promised:
    return Promised([*steps], [[*steps]])


def in_run(fd: int, *rest: Any) -> bool:
    """For `on`: a write that is not the lock's, nor the beginning of a new file."""
    return len(rest) < 2 or rest[1] > 0


# Crashes


def test_a1_first_append_ever() -> None:
    """FAULTS A1, A2: a crash at any call of the first append, and of the second: no run, or the acknowledged steps."""
    assert check_run_crashes(puts(300, 200)).states > 100


def test_a1_appends() -> None:
    """FAULTS A1, A2: a crash at any call of synced appends: those acknowledged, or with them the one under way."""
    found = check_run_crashes([*FIRST, *puts(300, 900, 400)], old=1)
    assert found.states > 100
    assert len(found.torn) > 50


def test_a1_appends_of_differences() -> None:
    """FAULTS A1, A2: the same where a record refers to earlier ones: every step that is there reads back right."""
    check_run_crashes([*puts(1500, 100, 100, changed=True), REOPEN, *puts(700, 60, seed=8, changed=True)], old=2)


def test_a2_appends_without_sync() -> None:
    """FAULTS A2: after appends without a sync the synced ones are there, and of the others a first part; after `sync` all are."""
    check_run_crashes([*FIRST, *soft(500, 100, seed=1), SYNC, *puts(300, seed=2)], old=1)


def test_a2_a_synced_append_over_some_without() -> None:
    """FAULTS A2: a synced append makes those before it durable; a crash before that leaves a first part of them."""
    check_run_crashes([*FIRST, *soft(400, 300, seed=1), *puts(200, seed=2), *soft(150, seed=3), REOPEN, *puts(100, seed=4)], old=1)


def test_a3_torn_at_every_sector() -> None:
    """FAULTS A3: a crash after every sector of an append, any of them lost, and any size: at most the unacknowledged record is."""
    assert check_run_crashes([*FIRST, *LARGER, *puts(400, seed=5)], old=1, product=BySector).states > 100


def test_a3_unsynced_appends_torn_at_every_sector() -> None:
    """FAULTS A3: the same over several appends without a sync, where a hole may lie before a record that is whole."""
    check_run_crashes([*FIRST, *soft(300, 20, seed=1), *puts(20, seed=2)], old=1, product=BySector)


def test_a3_records_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS A3: a record that is written in pieces, of which a sector may hold one and not the next: torn, at most the unacknowledged."""
    monkeypatch.setattr(container, "_JOINED", 0)
    check_run_crashes([*FIRST, *puts(500, seed=5)], old=1)


def test_a3_large_appends_sampled() -> None:
    """FAULTS A3: of a long append, with too many states to look at, nothing of it, all of it, and 500 seeded ones."""
    found = check_run_crashes([*FIRST, *puts(9000, seed=6)], old=1)
    assert found.states > 400


def test_a3_a_record_that_holds_zeros() -> None:
    """FAULTS A3: a record with zeros of its own is torn: no lost sector can be told, but nothing wrong is read, and the step before is there."""
    model = ModelStorage(folders=["/disk"])
    with closing(Journal(RUN, storage=model)) as journal, raw_frames():
        journal.append(FIRST[0].message, step=0)
        model.sync_everything()
        journal._storage = Halting(model, 1)
        with pytest.raises(Crash):
            journal.append(ZEROS, step=1)
        journal._storage = model
    outcomes = set()
    for state in model.states():
        with closing(Reader(RUN, storage=state.boot())) as reader:
            for entry in reader.entries():
                try:
                    if reader.read(entry) != [FIRST[0].message, ZEROS][entry.header.step or 0]:
                        raise Lost(f"step {entry.header.step} reads wrong from {state}")
                    outcomes.add((entry.header.step, "read"))
                except CorruptError:
                    outcomes.add((entry.header.step, "corrupt"))
            if [entry.header.step for entry in reader.entries()][-1:] != [0]:
                raise Lost(f"step 0 is gone from {state}")
    assert outcomes == {(0, "read"), (1, "read"), (1, "corrupt")}


def torn_states(limit: int) -> list[Any]:
    """States with something to be cut, of all kinds, a seeded choice of them."""
    found = check_run_crashes([*FIRST, *soft(200, 60, seed=1), *puts(300, seed=2)], old=1)
    return random.Random(7).sample(found.torn, limit)


def test_a8_crash_during_recovery() -> None:
    """FAULTS A8: a crash at any change that recovery makes itself (copy aside, cut, append), and another recovery: the same steps."""
    assert sum(check_recovery_crashes(state) for state in torn_states(10)) > 300


def test_a8_recovery_twice_is_recovery_once() -> None:
    """FAULTS A8: opening alone changes nothing; a second writer's finds are the first one's; a second append cuts nothing more."""
    for state in torn_states(12):
        machine = state.boot()
        before = machine.content(RUN)
        finds = []
        for _ in range(2):
            journal = Journal(RUN, storage=machine)
            finds.append((journal.damage, contents_of(journal)))
            journal.close()
        assert finds[0] == finds[1]
        assert machine.content(RUN) == before
        for step in (900, 901):
            journal = Journal(RUN, storage=machine)
            journal.append(b"next", step=step)
            journal.close()
        assert contents(RUN, machine) == [*finds[0][1], (900, b"next"), (901, b"next")]
        assert len([name for name in machine.list("/disk/runs") if ".aside." in name]) == 1


@pytest.mark.parametrize("nth", [1, 2])
def test_a9_poisoned_file_is_rewritten(nth: int) -> None:
    """FAULTS A7, A9, B6: a sync of an append fails, the next one writes a new file; a crash at any call: old or new, all acknowledged steps."""
    check_run_crashes([*FIRST, *puts(150, 100, 100, seed=1)], old=1, kind="sync_data", nth=nth)


def test_a9_poisoned_file_is_rewritten_after_appends_without_sync() -> None:
    """FAULTS A9, B6: a call of `sync` fails, and the next one: it does not answer with success until a new file holds all of it."""
    check_run_crashes([*FIRST, *soft(60, 60, seed=1), SYNC, SYNC, *puts(60, seed=2)], old=1, kind="sync_data")


def test_a9_rewrite_whose_directory_is_not_synced() -> None:
    """FAULTS A7, A9, B7: the sync of the directory fails after the rewrite too: in place, and published anew by the next append."""

    def folder_too(inner: Storage) -> Storage:
        return FaultyStorage(inner, kind="sync", on=lambda fd: stat.S_ISDIR(inner.stat(fd).st_mode))

    check_run_crashes([*FIRST, *puts(60, 60, 60, seed=1)], old=1, kind="sync_data", product=folder_too)


@pytest.mark.parametrize("what", ["write", "truncate", "sync_data"])
def test_a9_tail_of_a_failed_write(what: str) -> None:
    """FAULTS A9, B12: a write stops half way, the cut works, fails, or its sync does: later appends are there, no old bytes come back."""

    def half(inner: Storage) -> Storage:
        storage: Storage = FaultyStorage(inner, nth=2, kind="write", on=in_run, code=errno.ENOSPC)
        storage = FaultyStorage(storage, kind="write", on=in_run, count=600)
        return storage if what == "write" else FaultyStorage(storage, kind=what)

    check_run_crashes([*FIRST, *LARGER, *puts(200, 100, seed=9)], old=1, product=half)


def test_a9_tail_of_a_failed_write_after_appends_without_sync() -> None:
    """FAULTS A9: the same where appends without a sync lie before it."""
    check_run_crashes([*FIRST, *soft(100, seed=1), *LARGER, *puts(100, seed=9)], old=1, kind="write", nth=3, code=errno.ENOSPC)


def test_a9_tail_of_a_failed_write_before_appends_without_sync() -> None:
    """FAULTS A9: a write stops half way, and appends without a sync follow: what a crash leaves of them is torn, with no old bytes in it."""

    def half(inner: Storage) -> Storage:
        return FaultyStorage(FaultyStorage(inner, nth=2, kind="write", on=in_run, code=errno.ENOSPC), kind="write", on=in_run, count=900)

    check_run_crashes([*FIRST, *LARGER, *soft(200, 100, seed=9)], old=1, product=half)


def test_a1_appends_by_short_writes() -> None:
    """FAULTS A1, B2: a short write that is gone on with, a crash at any call: the acknowledged steps."""
    check_run_crashes([*FIRST, *puts(700, 200, seed=3)], old=1, kind="write", on=in_run, count=100, only_torn=False)


def killed_and_gone_on_with(history: list[Any], fault: dict[str, Any], *, then: int) -> int:
    """Kill a process after each change that a history makes, let another append, crash after `then` changes of that, look at every state.

    How many places there were to kill it.
    """
    for after in range(200):
        model, promised = ModelStorage(folders=["/disk"]), Promised()
        halting = Halting(model, after)
        try:
            perform(history, FaultyStorage(halting, **fault) if fault else halting, promised, disk=model)
        except Crash:
            pass
        model.descriptors.clear()  # they die with the process; what it changed stays, synced or not
        for directory in model._directories():
            for inode in directory.entries.values():
                # What a failed sync dropped was never acknowledged; what the next process writes there is written.
                inode.__dict__.pop("poisoned", None)
        found = contents(RUN, model) or []
        if found not in promised.possible:
            raise Lost(f"killed after {after} changes: {found}")
        # Until the other one's append is acknowledged, a loss of power takes back whatever had not been synced.
        promised.current = found
        second = Halting(model, then)
        try:
            journal = Journal(RUN, storage=second)
            promised.attempted(900, b"next")
            journal.append(b"next", step=900)
            promised.in_place(900, b"next")
            promised.synced()
            journal.close()
            assert not [name for name in model.list("/disk/runs") if name.endswith("-tmp")]
        except Crash:
            pass
        told = f"killed after {after} changes, crash after {then} of\n{second.trace()}\nbefore:\n{halting.trace()}"
        require_run_after_crash(model, promised, seed=after, told=told, seen=set(), most=40)
        if halting.left > 0:
            return after
    raise AssertionError


@pytest.mark.parametrize("then", [0, 5, 6, 7, 8, 100])
def test_a1_killed_and_gone_on_with(then: int) -> None:
    """FAULTS A1: a process is killed anywhere, the next one appends, and then the power goes: what that acknowledged is there."""
    assert killed_and_gone_on_with([*FIRST, *puts(100, seed=1)], {}, then=then) > 10


@pytest.mark.parametrize("then", [0, 8, 100])
def test_a7_killed_while_rewriting(then: int) -> None:
    """FAULTS A7: the same where it is killed at any call of a rewrite; leftovers are swept."""
    assert killed_and_gone_on_with([*FIRST, *puts(100, 100, 100, seed=1)], {"kind": "sync_data"}, then=then) > 15


# I/O errors


MIXED = [*FIRST, *puts(300, 200, seed=1), *soft(100, seed=2), SYNC, *puts(100, seed=3)]
once_and_for_ever = pytest.mark.parametrize("times", [1, FOR_EVER], ids=["once", "for ever"])


@once_and_for_ever
@pytest.mark.parametrize("old", [0, 1], ids=["first", "over"])
def test_every_call_fails(times: float, old: int) -> None:
    """FAULTS B: an I/O error at any call, once and for ever: what was acknowledged is there, and one error costs one append."""
    hits = check_run_faults(MIXED, old=old, times=times)
    assert {"open", "read", "write", "sync_data", "stat"} <= set(hits)


@once_and_for_ever
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_b12_no_space_at_a_write(times: float, code: int) -> None:
    """FAULTS B1, B12: no space for an append: named with the path, the file cut back; a later append works."""
    assert "write" in check_run_faults(MIXED, old=1, kind="write", on=in_run, code=code, times=times)


@once_and_for_ever
def test_b6_sync_of_the_data_fails(times: float) -> None:
    """FAULTS B4 to B6: a sync fails, once or for ever: that file is never believed again, each later append publishes a new one."""
    assert len(check_run_faults(MIXED, old=1, kind="sync_data", times=times, code=errno.EIO)) >= 2


@pytest.mark.parametrize("kind", ["open", "write", "sync", "stat", "replace", "close", "list", "chmod"])
@once_and_for_ever
def test_b6_the_rewrite_fails_too(kind: str, times: float) -> None:
    """FAULTS B6: a sync fails, and then any call of the rewrite: acknowledged steps stay, each later append tries again."""
    check_run_faults(MIXED, old=1, inner=lambda model: FaultyStorage(model, kind="sync_data"), kind=kind, times=times)


def test_b6_never_synced_again() -> None:
    """FAULTS B5, B6: after its sync has failed a file gets no second one, from `append`, `sync` or `close`."""
    for history in ([*FIRST, *puts(100, 100, seed=1)], [*FIRST, *soft(100, seed=1), SYNC, SYNC], [*FIRST, *soft(100, seed=1), SYNC, REOPEN]):
        model = ModelStorage(folders=["/disk"])
        faulty = FaultyStorage(model, kind="sync_data")
        promised = Promised()
        errors = perform(history, faulty, promised, disk=model)
        assert len(errors) == 1
        assert faulty.synced_again == []
        require_run_after_crash(model, promised, seed=0, told=faulty.trace(), seen=set())
        assert len(promised.current) == len(history) - 1 if len(history) == 3 else 2


def test_b6_rewrite_of_what_does_not_verify() -> None:
    """FAULTS B6: a record is found damaged while the file is rewritten: the file is set aside, all that can be read stays, said aloud."""
    model = ModelStorage(folders=["/disk"])
    faulty = FaultyStorage(model, kind="sync_data", nth=4)
    messages = [put.message for put in puts(3000, 100, 100, 100, 100, 100, changed=True)]
    with closing(Journal(RUN, storage=faulty)) as journal:
        for step in range(4):
            journal.append(messages[step], step=step, base=step in (0, 3))
        damaged = [*journal.entries()][1]
        flip(model, damaged.offset + damaged.length - 45)
        with pytest.raises(StorageError):
            journal.append(messages[4], step=4)
        with pytest.warns(CheckpointWarning, match="set aside") as caught:
            done = journal.append(messages[5], step=5)
        assert RUN in str(caught[0].message)
        assert done.base
        assert [entry.header.step for entry in journal.entries()] == [5, 3, 2, 1, 0]
        for entry in journal.entries():
            if entry.header.step == 2:
                with pytest.raises(Exception, match="mismatch"):
                    journal.read(entry)
            else:
                assert journal.read(entry) == messages[entry.header.step or 0]
        assert [name for name in model.list("/disk/runs") if ".aside." in name] == ["checkpoint.fastckpt.aside.1"]
        journal.append(messages[4], step=6)
    assert next(model.states()).files["disk", "runs", "checkpoint.fastckpt"][2] == model.content(RUN)


def test_b6_rewrite_of_what_cannot_be_read() -> None:
    """FAULTS B6: the old file cannot even be read: it is set aside, a new one begins with a base of the state, said aloud."""
    model = ModelStorage(folders=["/disk"])
    failing = FaultyStorage(model, kind="read", on=lambda fd, size, offset: armed and fd == journal._file.fd, times=FOR_EVER)
    armed = False
    journal = Journal(RUN, storage=FaultyStorage(failing, kind="sync_data", nth=2))
    for step in range(2):
        journal.append(b"old %d" % step, step=step)
    before = model.content(RUN)
    with pytest.raises(StorageError):
        journal.append(b"lost", step=2)
    old = model.stat(RUN).st_ino
    failing.on = lambda fd, size, offset: failing.inner.stat(fd).st_ino == old
    with pytest.warns(CheckpointWarning, match="cannot be read any more"):
        journal.append(b"new", step=3)
    assert contents(RUN, model) == [(3, b"new")]
    assert (model.content(f"{RUN}.aside.1") or b"").startswith(before or b"-")
    assert journal.newest is not None
    assert journal.newest.sequence > 2
    journal.append(b"newer", step=4)
    journal.close()
    require_run_after_crash(model, certain((3, b"new"), (4, b"newer")), seed=0, told="", seen=set())


def flip(model: ModelStorage, offset: int, path: str = RUN) -> None:
    file = model._find(path)
    file.content[offset] ^= 1
    file.sync()


def test_b7_sync_of_the_directory_fails() -> None:
    """FAULTS B7: the directory of a first append cannot be synced: a DurabilityError, the step visible; the next append publishes anew."""
    model = ModelStorage(folders=["/disk", "/disk/runs"])
    # The one directory above comes first; without it the step is not in place.
    storage = FaultyStorage(model, kind="sync", on=lambda fd: stat.S_ISDIR(model.stat(fd).st_mode) and contents(RUN, model) is not None)
    journal = Journal(RUN, storage=storage)
    with pytest.raises(DurabilityError):
        journal.append(b"first", step=0)
    assert contents(RUN, model) == [(0, b"first")]
    inode = model.stat(RUN).st_ino
    journal.append(b"second", step=1)
    assert model.stat(RUN).st_ino != inode
    journal.close()
    require_run_after_crash(model, certain((0, b"first"), (1, b"second")), seed=0, told=storage.trace(), seen=set())


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EROFS])
@once_and_for_ever
def test_b11_open_fails(code: int, times: float) -> None:
    """FAULTS B11: any open fails, with whatever reason: clean errors, nothing leaked, acknowledged steps there."""
    assert "open" in check_run_faults([*FIRST, *puts(100, seed=1), REOPEN, *puts(100, seed=2)], kind="open", code=code, times=times)


def test_b11_a_file_that_seems_gone() -> None:
    """FAULTS B11, E12: opening finds no file, and then there is one: it is not overwritten by a first append."""
    model = ModelStorage(folders=["/disk"])
    perform(FIRST, model, Promised())
    journal = Journal(RUN, storage=FaultyStorage(model, kind="open", on=lambda path, *flags: path == RUN, code=errno.ENOENT))
    with pytest.raises(ReplacedError):
        journal.append(b"over it", step=1)
    assert contents(RUN, model) == [(0, FIRST[0].message)]


@pytest.mark.parametrize("count", [1, 7, 511, 512, 513])
def test_b2_short_writes_and_reads(count: int) -> None:
    """FAULTS B2: writes and reads that take or give fewer bytes than asked are gone on with."""
    model, promised = ModelStorage(folders=["/disk"]), Promised()
    short = FaultyStorage(FaultyStorage(model, kind="write", count=count, times=FOR_EVER), kind="read", count=count, times=FOR_EVER)
    history = puts(60, 30, changed=True) if count == 1 else puts(900, 100, 100, changed=True)
    assert perform(history, short, promised) == []
    assert contents(RUN, model) == promised.current == [(step, put.message) for step, put in enumerate(history)]


def test_b2_one_short_write() -> None:
    """FAULTS B2: one short write of a filling disk, without an error, at any write: what is acknowledged is whole."""
    check_run_faults(MIXED, old=1, kind="write", count=60)
    check_run_faults(MIXED, kind="write", count=1)


def test_a_write_of_nothing_ends() -> None:
    """A write that for ever takes no byte at all is an error, not an endless loop."""
    check_run_faults(MIXED, old=1, kind="write", on=in_run, count=0, times=FOR_EVER)


@needs_linux
@needs_root
@needs_tool("mount")
def test_b12_real_full_disk(tmp_path: Path) -> None:
    """FAULTS B12: a real disk of 1 MiB fills up while a run grows: refused, nothing lost; when there is room again, appends go on."""

    def fill() -> None:
        mount_tmpfs(tmp_path, "size=1m")
        path = tmp_path / "checkpoint.fastckpt"
        filler = tmp_path / "filler"
        filler.write_bytes(bytes(300_000))
        journal = Journal(path)
        noise = random.Random(1)
        written = []
        refused: list[StorageError] = []
        while len(refused) < 3:
            message = noise.randbytes(100_000)
            try:
                journal.append(message, step=len(written))
                written.append(message)
            except StorageError as error:
                refused.append(error)
        assert {error.errno for error in refused} == {errno.ENOSPC}
        assert contents(str(path)) == [*enumerate(written)]
        filler.unlink()
        journal.append(b"there is room again", step=len(written))
        assert journal.damage is None
        journal.close()
        assert contents(str(path)) == [*enumerate([*written, b"there is room again"])]

    in_child(fill)
