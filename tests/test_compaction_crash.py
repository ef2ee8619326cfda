"""A compaction under loss of power, I/O errors, kills, interrupts and forks: the file is the old one or the new one, whole; nothing live is lost.

FAULTS A7, B1 to B12, C1 to C3, D4, D5, D12 for compactions. The test_mutants module calls some of these tests again with a mutant, and
there they must end in `Lost`.
"""

from __future__ import annotations

import errno
import itertools
import linecache
import math
import os
import random
import signal
import stat
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from faults import (
    FOR_EVER,
    RUN,
    SYNCS,
    BeforeCall,
    Contents,
    Crash,
    FaultyStorage,
    Halting,
    Lost,
    ModelStorage,
    State,
    temporaries,
    unchanged,
)
from support import count, everything_in, in_child, needs_posix, open_descriptors

from fastckpt.compaction import compact
from fastckpt.errors import CheckpointError, DurabilityError, StorageError
from fastckpt.journal import Journal
from fastckpt.reader import Reader
from fastckpt.storage import DISK, Storage

NEXT = bytes(range(1, 250))
Product = Callable[[Storage], Storage]


def message_of(step: int, size: int = 900) -> bytes:
    """The state of a step, without a zero: the one before it with a little changed."""
    message = bytearray(random.Random(0).choices(range(1, 256), k=size))
    for n in range(max(0, step - 20), step + 1):
        at = n * 61 % (size - 30)
        message[at : at + 20] = random.Random(n).choices(range(1, 256), k=20)
    return bytes(message)


def live_of(reader: Reader) -> Contents:
    """Step and message of every live state, oldest first."""
    return [(entry.header.step or 0, reader.read(entry)) for entry in reader.live()][::-1]


def live(storage: Storage, path: str = RUN) -> Contents:
    with closing(Reader(path, storage=storage)) as reader:
        return live_of(reader)


def long_ago(*, sparse: bool) -> State:
    """A durable run of three generations of five steps: the first two are retired, all of them or (`sparse`) all but two of the first."""
    model = ModelStorage(folders=["/disk"])
    with closing(Journal(RUN, storage=model, chunk=64)) as journal:
        for step in range(14):
            journal.append(message_of(step), step=step, base=step % 5 == 0)
            if step == 9:
                journal.tombstone([(gone, gone) for gone in range(10) if not sparse or gone not in (0, 4)])
    model.sync_everything()
    return next(model.states())


class Running:
    """A process that has appended to a run of long ago and is about to compact it; `armed` is when its storage may go wrong."""

    def __init__(self, before: State, product: Product, *, appends: int = 1, poisoned: bool = False) -> None:
        self.model = before.boot()
        self.armed = False
        self.storage = product(self.model)
        self.journal = Journal(RUN, storage=self.storage, chunk=64)
        self.current = live(self.model)
        self.possible = [self.current]
        self.appends = iter(range(20, 20 + appends))
        self.journal.append(message_of(14), step=14)
        self.acknowledge(14)
        self.append(15)
        # As after a failed sync: what is in the file was not, or not for certain, written to the medium.
        self.journal._poisoned = poisoned
        self.calls, self.appending = 0, False

    def acknowledge(self, step: int) -> None:
        self.current = [*self.current, (step, message_of(step))]
        self.possible = [self.current]

    def append(self, step: int) -> None:
        self.possible = [self.current, [*self.current, (step, message_of(step))]]
        self.appending = True
        self.journal.append(message_of(step), step=step)
        self.appending = False
        self.acknowledge(step)

    def meanwhile(self) -> bool:
        """Called again and again while the bulk is copied: appends, the last one as late as can be."""
        self.calls += 1
        if self.calls in (5, 20, 22):
            for step in self.appends:
                self.append(step)
                break
        return False

    def compact(self) -> Any:
        return compact(self.journal, cancelled=self.meanwhile)


def require(storage: Storage, allowed: list[Contents], told: str) -> Contents:
    """A reader finds one of `allowed`, and all that it finds verifies."""
    try:
        with closing(Reader(RUN, storage=storage)) as reader:
            found = live_of(reader)
            problems = [] if reader.damage else [*reader.verify()]
            damage = reader.damage
    except CheckpointError as error:
        raise Lost(f"{told}\nreading ended in {error!r}") from error
    if found not in allowed or problems or (damage is not None and not damage.torn):
        steps = [step for step, _ in found]
        raise Lost(f"{told}\nfound steps {steps}, allowed {[[s for s, _ in one] for one in allowed]}, {problems}, {damage}")
    return found


def require_after_crash(model: ModelStorage, allowed: list[Contents], told: str, seen: set[object], *, most: int = 150) -> None:
    """In every state that a loss of power now may leave, what is live is there; the next append is durable, and so is a compaction."""
    for state in model.states(len(seen), most):
        if (key := (state.signature(), len(allowed), len(allowed[0]))) in seen:
            continue
        seen.add(key)
        what = f"{told}\nthe disk after the crash:\n{state}"
        machine = state.boot()
        found = require(machine, allowed, what)
        with closing(Journal(RUN, storage=machine, chunk=64)) as journal:
            journal.append(NEXT, step=1000)
            require(machine, [[*found, (1000, NEXT)]], f"{what}\nand an append")
            if len(seen) % 5 == 0:
                compact(journal)
                journal.append(NEXT, step=1001)
        assert not temporaries(machine), what
        again = [[*found, (1000, NEXT), *([(1001, NEXT)] if len(seen) % 5 == 0 else [])]]
        for second in itertools.islice(machine.states(len(seen), 20), 5):
            require(second.boot(), again, f"{what}\nand what was acknowledged after it is lost:\n{second}")


def check_crashes(*, sparse: bool, product: Product = unchanged, **options: Any) -> int:
    """Crash after every call of a compaction that changes something, and look at every state; how many there were."""
    before = long_ago(sparse=sparse)
    seen: set[object] = set()
    for after in itertools.count():
        halting: list[Halting] = []

        def halted(model: Storage, halting: list[Halting] = halting) -> Storage:
            halting.append(Halting(model, math.inf))  # type: ignore[arg-type]
            return product(halting[0])

        running = Running(before, halted, **options)
        halting[0].left = after
        finished = False
        try:
            assert running.compact() is not None
            running.append(30)
            finished = halting[0].left > 0
        except Crash:
            pass
        require_after_crash(running.model, running.possible, f"crash after {after} changes\n{halting[0].trace()}", seen)
        if finished:
            return len(seen)
    raise AssertionError


@pytest.mark.parametrize("product", [unchanged])
@pytest.mark.parametrize("sparse", [False, True], ids=["verbatim", "anew"])
def test_a7_crash_while_compacting(sparse: bool, product: Product) -> None:
    """FAULTS A7: a crash at any call of a compaction, appends in the midst of it: the old file or the new one, whole, and every live step."""
    assert check_crashes(sparse=sparse, appends=3, product=product) > 100


def test_a7_crash_while_a_poisoned_file_is_compacted() -> None:
    """FAULTS A7, B6: the same with a file of which a sync has failed: the compaction takes the place of its rewrite."""
    assert check_crashes(sparse=True, appends=0, poisoned=True) > 60


@pytest.mark.parametrize("sparse", [False, True], ids=["verbatim", "anew"])
def test_a7_whose_directory_is_not_synced(sparse: bool) -> None:
    """FAULTS A7, B7: the sync of the directory fails: a DurabilityError, the new file in place; the next append publishes it anew."""
    running, faulty = faulted(long_ago(sparse=sparse), kind="sync", on=lambda fd: stat.S_ISDIR(running.model.stat(fd).st_mode))
    before = running.model.content(RUN) or b""
    with pytest.raises(DurabilityError):
        running.compact()
    inode = running.model.stat(RUN).st_ino
    assert len(running.model.content(RUN) or b"") < len(before)
    require_after_crash(running.model, running.possible, faulty.trace(), set())
    running.append(30)
    assert running.model.stat(RUN).st_ino != inode
    require_after_crash(running.model, [running.current], faulty.trace(), set())
    running.journal.close()


def test_what_is_compacted_goes_on() -> None:
    """FAULTS A7: what is appended during and after a compaction is there, a difference from what was compacted, and reads back right."""
    for sparse in (False, True):
        running = Running(long_ago(sparse=sparse), unchanged, appends=3)
        assert running.compact() is not None
        require(running.model, [running.current], "after the compaction")
        done = running.journal.append(message_of(30), step=30)
        running.acknowledge(30)
        require(running.model, [running.current], "after the next append")
        assert not done.base
        running.journal.close()


# I/O errors


def faulted(
    before: State, nth: int = 1, *, on: Callable[..., object] = lambda *arguments: True, appends: int = 0, **fault: Any
) -> tuple[Running, FaultyStorage]:
    """A process of which the n-th call goes wrong, counted from the beginning of its compaction."""
    made: list[FaultyStorage] = []
    armed: list[bool] = []

    def faulty(model: Storage) -> Storage:
        made.append(FaultyStorage(model, nth, on=lambda *arguments: armed and on(*arguments), **fault))
        return made[0]

    running = Running(before, faulty, appends=appends)
    armed.append(True)
    made[0].calls.clear()
    return running, made[0]


@pytest.mark.parametrize("sparse", [False, True], ids=["verbatim", "anew"])
@pytest.mark.parametrize(
    ("times", "code", "count"), [(1, errno.EIO, None), (FOR_EVER, errno.ENOSPC, None), (1, 0, 1)], ids=["once", "for ever", "short"]
)
def test_b_every_call_fails(sparse: bool, times: float, code: int, count: int | None) -> None:
    """FAULTS B1 to B12: any call of a compaction fails: a typed error, the file as it was or the new one, no temporary left, nothing leaked.

    When the cause is gone the next append works, and so does the next compaction; an append in the midst of it is lost to no error.
    """
    before = long_ago(sparse=sparse)
    hits: list[str] = []
    kinds = {} if count is None else {"kind": ("read", "write")}
    for nth in itertools.count(1):
        running, faulty = faulted(before, nth, appends=1, times=times, code=code, count=count, **kinds)
        model, journal = running.model, running.journal
        told = f"call {nth} fails"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                done = running.compact()
                assert done is not None
                outcome = "done"
            except (StorageError, CheckpointError) as error:
                outcome = type(error).__name__
                assert isinstance(error, StorageError), error
        told = f"call {nth} fails, {faulty.hit[:2]}, {outcome}\n{faulty.trace()}"
        require(model, running.possible, told)
        assert outcome == "done" or faulty.hit, told
        require_after_crash(model, running.possible, told, set(), most=8)
        assert "unlink" in faulty.hit or not temporaries(model), told
        assert not faulty.synced_again, told
        faulty.times = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            running.current = live_of(journal)  # without an append that failed, or with it if it is in place
            running.append(30)
            require(model, [running.current], f"{told}\nand the next append")
            journal.tombstone([(10, 12)])
            running.current = [one for one in running.current if not 10 <= one[0] <= 12]
            compact(journal)
            require(model, [running.current], f"{told}\nand the next compaction")
            require_after_crash(model, [running.current], told, set(), most=3)
            journal.close()
        assert not model.descriptors, f"left open: {model.descriptors}\n{told}"
        if not faulty.hit:
            break
        hits.append(faulty.hit[0])
    assert {"read", "write"} <= set(hits)
    assert count or {"open", "sync", "replace", "close", "stat", "chmod"} <= set(hits)


def test_b_a_failed_compaction_costs_the_next_append_nothing() -> None:
    """FAULTS B1: a compaction for which there is no space leaves the file as it is: the next append is a difference, one write and one sync."""
    for kind in ("write", "sync", "replace"):
        running, faulty = faulted(long_ago(sparse=False), kind=kind, code=errno.ENOSPC)
        with pytest.raises(StorageError) as caught:
            running.compact()
        assert caught.value.errno == errno.ENOSPC
        faulty.calls.clear()
        done = running.journal.append(message_of(16), step=16)
        assert (done.base, done.flushes) == (False, 1)
        assert [name for name, _ in faulty.calls if name in ("write", *SYNCS, "replace")] == ["write", "sync_data"]


def test_the_new_file_is_synced_as_it_is_written() -> None:
    """Of a large file little is left to the last sync, for which an append may wait; a sync on the way that fails is final for that file."""
    model = ModelStorage(folders=["/disk"])
    storage = FaultyStorage(model, FOR_EVER)  # type: ignore[arg-type]
    with closing(Journal(RUN, storage=storage, level=1)) as journal:
        pick = random.Random(1)
        for step in range(40):
            journal.append(pick.randbytes(1 << 20), step=step, sync=False)
            model._find(RUN).unsynced.clear()  # or the model keeps every version
        journal.tombstone([(0, 19)])
        storage.calls.clear()
        assert compact(journal) is not None
        left, most = 0, 0
        for name, arguments in storage.calls:
            left = left + len(arguments[1]) if name == "write" else 0 if name in SYNCS else left
            most = max(most, left)
        assert most < 8 << 20
        journal.tombstone([(20, 29)])
        storage.kinds, storage.nth, storage.times, storage._matching = ("sync_data",), 2, 1, 0
        before = model.content(RUN)
        with pytest.raises(StorageError, match="sync"):
            compact(journal)
        assert model.content(RUN) == before
        assert not temporaries(model)


# Interrupts


def test_c3_interrupted_at_any_line() -> None:
    """FAULTS C3: KeyboardInterrupt at any line of a compaction: old or new, no temporary; the next append and the next compaction work."""
    before, seen = long_ago(sparse=True), set[tuple[str, int]]()
    while True:
        running = Running(before, unchanged, appends=3)
        if not interrupted(running, seen):
            break
        told = f"interrupted at line {len(seen)}"
        assert not temporaries(running.model), told
        require(running.model, running.possible, told)
        running.append(30)
        require(running.model, [running.current], f"{told}, and an append")
        assert [*running.journal.verify()] == []
        compact(running.journal)
        running.append(31)
        require(running.model, [running.current], f"{told}, and a compaction")
        running.journal.close()
        assert len(running.model.descriptors) <= 1, told  # one that was just about to be closed
    assert len(seen) > 150
    count("interrupts", len(seen))


def interrupted(running: Running, seen: set[tuple[str, int]]) -> bool:
    """Compact, interrupted at the first line that was not interrupted yet; False when there is none."""

    def trace(frame: Any, event: str, _: Any) -> Any:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if os.path.basename(place[0]) not in ("journal.py", "compaction.py", "storage.py") or frame.f_code.co_name == "__del__" or running.appending:
            return None
        # Leaving a `with` traces its line once more before __exit__ is called, where no real interrupt can come.
        if event == "line" and place not in seen and not linecache.getline(*place).lstrip().startswith("with "):
            seen.add(place)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        running.compact()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


class Handler:
    """A signal handler that appends, called just before the n-th call of a compaction."""

    def __init__(self, nth: int) -> None:
        self.errors: list[StorageError] = []
        self.running = Running(long_ago(sparse=True), self.between, appends=0)
        self.storage.left = nth

    def between(self, model: Storage) -> Storage:
        self.storage = BeforeCall(model, self.append, 10**9)
        return self.storage

    def append(self) -> None:
        try:
            self.running.append(30)
        except StorageError as error:
            self.errors.append(error)


def test_an_append_of_a_signal_handler_is_refused() -> None:
    """A handler that appends while this very thread replaces the file is refused, and nothing acknowledged is lost; before that it appends."""
    refused = 0
    for nth in itertools.count(1):
        handler = Handler(nth)
        running = handler.running
        assert running.compact() is not None
        handler.storage.left = 10**9
        require(running.model, [running.current], f"call {nth}, {handler.errors}")
        running.append(31)
        require(running.model, [running.current], f"call {nth}, {handler.errors}, and an append")
        refused += len(handler.errors)
        assert all("handler" in str(error) for error in handler.errors)
        running.journal.close()
        if not handler.storage.happened:
            break
    assert refused >= 5


# Processes


def path_in(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "checkpoint.fastckpt"


def kept(newest: int) -> list[int]:
    """What the writer below keeps: every 25th step, and the last twelve."""
    return [step for step in range(newest + 1) if step % 25 == 0 or step > newest - 12]


def write_on(path: Path, pipe: int) -> None:
    """Append for ever, from the newest step on, compact in a thread for ever, report each acknowledged step."""
    journal = Journal(path)
    step = 0 if journal.newest is None else (journal.newest.header.step or 0) + 1

    def compacting() -> None:
        while True:
            with suppress(StorageError):
                compact(journal)
            time.sleep(0.001)

    threading.Thread(target=compacting, daemon=True).start()
    while True:
        gone = step - 12
        journal.append(message_of(step, 3000), step=step, retires=[(gone, gone)] if gone > 0 and gone % 25 else [])
        os.write(pipe, struct.pack("<q", step))
        step += 1


@contextmanager
def writer(path: Path) -> Iterator[int]:
    """A process that writes and compacts on; the end of the pipe from which its reports are read."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(out)
            write_on(path, into)
        finally:
            os._exit(1)
    os.close(into)
    try:
        yield out
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def require_kept(path: Path, acknowledged: int, told: str) -> int:
    """The newest step is not before the acknowledged one, and each step that is kept reads right; the newest step."""
    with closing(Reader(path)) as reader:
        if reader.damage is not None and not reader.damage.torn:
            raise Lost(f"{told}: {reader.damage}")
        found = live_of(reader)
    newest = found[-1][0]
    if newest < acknowledged or [step for step, _ in found] != kept(newest):
        raise Lost(f"{told}: acknowledged {acknowledged}, found {[step for step, _ in found]}")
    for step, message in found:
        if message != message_of(step, 3000):
            raise Lost(f"{told}: step {step} reads wrong")
    return newest


@needs_posix
def test_c1_killed_while_it_compacts(tmp_path: Path) -> None:
    """FAULTS C1, C2: SIGKILL at random moments of a process that appends and compacts: every step that it keeps is there; no temporaries."""
    path, pick = path_in(tmp_path), random.Random(5)
    newest, inodes = -1, set()
    for n in range(40):
        with writer(path) as out:
            data = os.read(out, 8)
            time.sleep(pick.uniform(0, 0.08))
        count("kills")
        while piece := os.read(out, 1 << 16):
            data += piece
        os.close(out)
        acknowledged = struct.unpack("<q", data[-8 - len(data) % 8 : len(data) - len(data) % 8])[0]
        newest = require_kept(path, max(acknowledged, newest), f"kill {n}")
        inodes.add(path.stat().st_ino)
    assert newest > 200
    assert len(inodes) > 2, "hardly a compaction came to its end"
    Journal(path).close()
    left = set(everything_in(path.parent)) - {"checkpoint.fastckpt", "checkpoint.fastckpt.lock"}
    # A kill in the middle of a write leaves a part of a record: it was copied aside, for nothing is destroyed, and cut.
    assert left <= {f"checkpoint.fastckpt.aside.{n}" for n in range(1, 41)}
    assert len(left) <= 3


@needs_posix
def test_d12_readers_beside_compactions(tmp_path: Path) -> None:
    """FAULTS D12: 2,000 openings, and a reader that follows, beside a writer that compacts all the time: whole, and never an older newest step."""
    path = path_in(tmp_path)
    with writer(path) as out:
        os.read(out, 8)
        threading.Thread(target=drained, args=(os.dup(out),), daemon=True).start()
        follower = Reader(path)
        newest = followed = -1
        inodes = set()
        before = len(open_descriptors())
        for n in range(2000):
            with closing(Reader(path)) as reader:
                assert reader.newest is not None, n
                if reader.damage is not None and not reader.damage.torn:
                    raise Lost(f"opening {n}: {reader.damage}")
                step = reader.newest.header.step or 0
                if step < newest or reader.read(reader.newest) != message_of(step, 3000):
                    raise Lost(f"opening {n}: step {step} after {newest}, or it reads wrong")
                newest = step
                inodes.add(reader._identity)
            if n % 4 == 0:
                follower.refresh()
                assert follower.newest is not None
                step = follower.newest.header.step or 0
                if step < followed or follower.read(follower.newest) != message_of(step, 3000):
                    raise Lost(f"refresh {n}: step {step} after {followed}, or it reads wrong")
                followed = step
            if n % 100 == 0:
                require_kept(path, newest, f"opening {n}")
        assert len(inodes) > 5, "hardly a compaction came to its end"
        assert len(open_descriptors()) <= before + 1
        follower.close()
    os.close(out)


def drained(pipe: int) -> None:
    """Read what the writer reports, or it waits for the pipe."""
    while os.read(pipe, 1 << 16):
        pass
    os.close(pipe)


@needs_posix
def test_d4_forked_while_it_compacts(tmp_path: Path) -> None:
    """FAULTS D4, D5: a child forked in the middle of a compaction does not hang: its use raises, its own run works; the parent's goes on."""
    path = path_in(tmp_path)
    journal = Journal(path, chunk=64)
    for step in range(60):
        journal.append(message_of(step, 3000), step=step, base=step % 10 == 0)
    journal.tombstone([(0, 40)])
    inside, go_on = threading.Event(), threading.Event()
    done: list[Any] = []

    class Waits(Storage):
        def replace(self, source: str, target: str) -> None:
            inside.set()
            go_on.wait(20)
            super().replace(source, target)

    journal._storage = Waits()
    thread = threading.Thread(target=lambda: done.append(compact(journal)))
    thread.start()
    assert inside.wait(20)

    def use() -> None:
        for call in (lambda: journal.append(b"x", step=99), lambda: compact(journal)):
            with pytest.raises(StorageError, match="fork"):
                call()
        assert journal.newest is not None
        assert [journal.read(entry) for entry in journal.live()] == [message_of(step, 3000) for step in range(59, 40, -1)]
        journal.close()
        with closing(Journal(path.with_name("other.fastckpt"), storage=DISK)) as own:
            own.append(b"mine", step=0)

    in_child(use, timeout=5)
    go_on.set()
    thread.join()
    journal._storage = DISK
    assert done[0] is not None
    assert not journal.append(message_of(60, 3000), step=60).base
    journal.close()
    assert [step for step, _ in live(DISK, str(path))] == [*range(41, 61)]
