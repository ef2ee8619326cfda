"""What comes in between: an interrupt at any line, signals at any call, no memory, a fork, the end of the interpreter, a clock that jumps.

FAULTS B13, B15, C3 to C5, D5, H9, H10, I7. Interrupts inside a compaction are in test_compaction_crash.
"""

from __future__ import annotations

import ctypes
import itertools
import linecache
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from faults import IN_MEMORY, Lost, is_one_of
from support import assert_same, count, everything_in, in_child, needs_linux, needs_posix, open_descriptors

import fastckpt
from fastckpt import CheckpointManager, History, StorageError
from fastckpt import journal as journal_module
from fastckpt.errors import CheckpointError, EncodeError, NotFoundError, SchemaError

pytestmark = needs_posix

PACKAGE = str(Path(fastckpt.__file__).parent)
OLD, NEW = ({"step": step, "page": ["x" * 40 + str(step)] * 20, "odd": 2**70 + step} for step in (1, 2))


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A folder without a disk behind it: hundreds of saves."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Path(folder)


class Told(SystemExit):
    """What a handler of SIGTERM raises, so that the program tidies up."""


def interrupt_at(nth: int, error: type[BaseException], do: Callable[[], object], *, once_a_line: set[tuple[str, int]] | None = None) -> bool:
    """Do something and raise `error` at the `nth` line of the package that is reached; False when there were fewer.

    With `once_a_line` at the first line that is not in it, which is put there.
    """
    left, fired = nth, False

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left, fired
        place = (frame.f_code.co_filename, frame.f_lineno)
        # An error in a destructor is printed, not raised.
        if not place[0].startswith(PACKAGE) or frame.f_code.co_name in ("__del__", "callback"):
            return None
        # Leaving a `with` traces its line once more before __exit__ is called, and what is first in a `finally` is called without a look
        # at signals, so no real interrupt can come there.
        if event == "line" and not linecache.getline(*place).lstrip().startswith(("with ", "gc.enable()")):
            left -= 1
            if left == 0 if once_a_line is None else place not in once_a_line:
                if once_a_line is not None:
                    once_a_line.add(place)
                fired = True
                raise error
        return trace

    sys.settrace(trace)
    try:
        do()
    except error:
        pass
    except CheckpointError:
        if error is not MemoryError:  # which may be explained
            raise
    finally:
        sys.settrace(None)
    return fired


# Interrupts


@pytest.mark.parametrize("error", [KeyboardInterrupt, Told, MemoryError], ids=lambda error: error.__name__)
@pytest.mark.parametrize("first", [True, False], ids=["first", "over"])
def test_c3_an_interrupt_anywhere_in_a_single_save(quick_path: Path, error: type[BaseException], first: bool) -> None:
    """FAULTS C3, B15: Ctrl-C, SIGTERM, no memory at every line of `save`: the old one or the new one loads, no temporary, the next save works."""
    path = quick_path / "f.fastckpt"
    for nth in itertools.count(1):
        path.unlink(missing_ok=True)
        if not first:
            fastckpt.save(path, OLD)
        before = open_descriptors()
        interrupted = interrupt_at(nth, error, lambda: fastckpt.save(path, NEW))
        left = {fd for fd in open_descriptors() - before if os.path.exists(f"/proc/self/fd/{fd}")}
        assert len(left) <= int(interrupted), f"at line {nth}"  # one that was just about to be closed
        for fd in left:
            os.close(int(fd))
        found = fastckpt.load(path) if path.exists() else None
        if not is_one_of(found, [None if first else OLD, NEW] if interrupted else [NEW]):
            raise Lost(f"interrupted at line {nth}: {found!r}")
        assert everything_in(quick_path) == ([] if found is None else ["f.fastckpt"]), f"at line {nth}"
        fastckpt.save(path, OLD)
        assert_same(fastckpt.load(path), OLD)
        if not interrupted:
            break
    assert nth > 150
    count("interrupts", nth - 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError], ids=lambda error: error.__name__)
def test_c3_an_interrupt_anywhere_in_a_load(quick_path: Path, error: type[BaseException]) -> None:
    """FAULTS C3, B15: the same in `load`: it ends so, or in an error of ours, and the next load is right."""
    path = quick_path / "f.fastckpt"
    fastckpt.save(path, OLD)
    for nth in itertools.count(1):
        if not interrupt_at(nth, error, lambda: fastckpt.load(path)):
            break
        assert_same(fastckpt.load(path), OLD)
    assert nth > 50
    count("interrupts", nth - 1)


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, Told, MemoryError], ids=lambda error: error.__name__)
def test_c3_an_interrupt_anywhere_in_a_managers_save(quick_path: Path, error: type[BaseException], durability: Any) -> None:
    """FAULTS C3, B15: the same at every line that a manager's save reaches in its caller's thread, waiting for it included: all goes on."""
    seen: set[tuple[str, int]] = set()

    def save() -> None:
        manager.save(step, {"step": step}, metrics={"loss": step})
        manager.wait_until_finished()

    with warnings.catch_warnings(), CheckpointManager(quick_path, durability=durability, max_to_keep=3) as manager:
        warnings.simplefilter("ignore")  # of what no memory kept from being tidied up
        manager.save(0, {"step": 0})
        for step in itertools.count(1):
            interrupted = interrupt_at(0, error, save, once_a_line=seen)
            manager.wait_until_finished()
            kept = manager.latest_step()
            # In the background it may be in the file and not be taken for saved; then it is saved again.
            if not is_one_of(manager.restore(), [{"step": kept}, {"step": step}][: 1 + (durability == "async")]) or kept not in (step - 1, step):
                raise Lost(f"step {step} interrupted: {kept}, {manager.restore()}")
            if kept == step - 1:
                manager.save(step, {"step": step})
                manager.wait_until_finished()
            if not is_one_of(manager.restore(), [{"step": step}]):
                raise Lost(f"step {step} saved again: {manager.restore()}")
            if not interrupted:
                break
    with CheckpointManager(quick_path) as manager:
        assert manager.all_steps() == [step - 2, step - 1, step]
        assert [manager.restore(each)["step"] for each in manager.all_steps()] == manager.all_steps()
    assert [name for name in everything_in(quick_path) if "tmp" in name] == []
    assert len(seen) > 80
    count("interrupts", len(seen))


# Signals


@needs_linux
def test_b13_a_storm_of_signals(tmp_path: Path) -> None:
    """FAULTS B13: a signal every half millisecond, with a handler: no call is cut short by it; everything is saved and read as ever."""

    def under_fire() -> None:
        storm = 0

        def handler(*_: object) -> None:
            nonlocal storm
            storm += 1

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        expected = {"noise": random.Random(1).randbytes(300_000), "step": 0}
        for step in range(60):
            expected = {**expected, "step": step}
            with CheckpointManager(tmp_path / "run", durability="async" if step % 2 else "sync") as manager:
                manager.save(step, expected)
                assert_same(manager.restore(step), expected)
            fastckpt.save(tmp_path / "f.fastckpt", expected)
            assert_same(fastckpt.load(tmp_path / "f.fastckpt"), expected)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert storm > 200
        assert fastckpt.verify(tmp_path / "run" / "checkpoint.fastckpt") == []

    in_child(under_fire)


# No memory


def address_space() -> int:
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[0]) * resource.getpagesize()


class Limited:
    """Inside, the process may take only so many bytes more."""

    def __init__(self, more: int) -> None:
        self.more = more

    def __enter__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (address_space() + self.more, self.before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self.before)


def memory_sweep(folder: Path) -> None:
    """Save, load, save and restore a step, with ever more memory left, until all of it works."""
    # What is freed goes back to the system at once, so that the limit is felt each time.
    ctypes.CDLL(None).mallopt(ctypes.c_int(-3), ctypes.c_int(1 << 16))
    noise = random.Random(1)
    states = [{"step": step, "pages": [noise.randbytes(1000).hex() for _ in range(1000)]} for step in range(2)]
    path = folder / "f.fastckpt"
    manager = CheckpointManager(folder / "run", round_trip="always")
    manager.save(0, {"step": 0})
    ended = set()

    def attempt(name: str, do: Callable[[], Any]) -> tuple[str, Any]:
        error, result = "", None
        with Limited(more):
            try:
                result = do()
            except (MemoryError, CheckpointError) as caught:
                error = type(caught).__name__
        ended.add((name, not error))
        return error, result

    for more in range(0, 16 << 20, 1 << 19):
        fastckpt.save(path, states[0])
        error, _ = attempt("save", lambda: fastckpt.save(path, states[1]))
        if not is_one_of(fastckpt.load(path), [states[0], states[1]] if error else [states[1]]):
            raise Lost(f"{more} bytes left, {error}: another state")
        error, found = attempt("load", lambda: fastckpt.load(path))
        if not error and not is_one_of(found, states):
            raise Lost(f"{more} bytes left: {found!r:.100}")
        step = manager.next_step()
        error, _ = attempt("manager", lambda step=step: manager.save(step, states[step % 2]))
        manager.save(manager.next_step(), states[manager.next_step() % 2])
        newest = manager.latest_step() or 0
        assert newest == (step if error else step + 1)
        error, found = attempt("restore", lambda newest=newest: manager.restore(newest))
        for state in [manager.restore(), *([] if error else [found])]:
            if not is_one_of(state, [states[newest % 2]]):
                raise Lost(f"{more} bytes left: step {newest} is {state!r:.100}")
    manager.close()
    missed = {(name, well) for name in ("save", "load", "manager", "restore") for well in (True, False)} - ended
    assert not missed, missed
    assert everything_in(folder) == ["f.fastckpt", "run", "run/checkpoint.fastckpt", "run/checkpoint.fastckpt.lock"]
    assert fastckpt.verify(folder / "run" / "checkpoint.fastckpt") == []


@needs_linux
def test_b15_no_memory(tmp_path: Path) -> None:
    """FAULTS B15: memory ends, at any size of what is left, in save, load and a manager's save and restore: the old state is there, all goes on."""
    # A process of its own, whose heap holds nothing free.
    body = "import sys; from pathlib import Path; from test_interrupts import memory_sweep; memory_sweep(Path(sys.argv[1]))"
    done, _ = run_python(body, tmp_path)
    assert done.returncode == 0, done.stderr


@needs_linux
def test_h10_shared_references_without_end(tmp_path: Path) -> None:
    """FAULTS H10: forty lists, each twice in the next one, are 2^40 when written out: refused when memory ends, the old file intact, all goes on."""
    path = tmp_path / "f.fastckpt"
    fastckpt.save(path, OLD)

    def attempt() -> None:
        dag: list[Any] = ["x" * 100]
        for _ in range(40):
            dag = [dag, dag]
        with Limited(400 << 20), pytest.raises((MemoryError, CheckpointError)):
            fastckpt.save(path, dag)
        assert_same(fastckpt.load(path), OLD)
        shared: list[Any] = ["shared"]
        fastckpt.save(path, [shared, shared])
        first, second = fastckpt.load(path)  # the documented loss: two copies
        assert first == second
        assert first is not second

    in_child(attempt)


# The end of the interpreter


def run_python(body: str, *arguments: object, timeout: float = 60) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body), *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout, env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    return done, time.monotonic() - began


COMPACTING = """
import sys, threading, time
from fastckpt import upkeep, writer, CheckpointManager
from fastckpt.storage import Storage
upkeep._LEAST = 2_000
writer.EXIT_SECONDS = float(sys.argv[2])
started = threading.Event()
class Slow(Storage):
    def write(self, fd, data, offset):
        if threading.current_thread().name.startswith("compacting"):
            started.set()
            time.sleep(float(sys.argv[3]))
        return super().write(fd, data, offset)
manager = CheckpointManager(sys.argv[1], durability=sys.argv[4], max_to_keep=2, storage=Slow())
step = 0
while not started.is_set():
    manager.save(step, {"step": step, "noise": [str(hash((step, i))) for i in range(200)]})
    step += 1
manager.save(step, {"step": step})
print(step, flush=True)
"""


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("hangs", [False, True], ids=["slow", "hangs"])
def test_c4_the_interpreters_exit_while_a_compaction_runs(tmp_path: Path, durability: str, hangs: bool) -> None:
    """FAULTS C4: a process ends while its run is compacted in the background, on a slow disk or one that hangs: in bounded time, nothing lost."""
    done, seconds = run_python(COMPACTING, tmp_path, 1 if hangs else 60, 60 if hangs else 0.05, durability)
    assert done.returncode == 0, done.stderr
    assert seconds < 30
    assert ("still busy" in done.stderr) == hangs, done.stderr
    step = int(done.stdout)
    assert fastckpt.verify(tmp_path / "checkpoint.fastckpt") == []
    with CheckpointManager(tmp_path) as manager:
        assert manager.all_steps() == [step - 1, step]
        assert manager.restore() == {"step": step}
        manager.save(step + 1, {"step": step + 1})
    assert [name for name in everything_in(tmp_path) if "tmp" in name] == []


# Forks


def test_d5_forks_beside_busy_threads(tmp_path: Path) -> None:
    """FAULTS D5: forked at any moment while threads save, compress and compact: the child makes a run of its own and ends, without a hang."""
    state = {"noise": random.Random(1).randbytes(200_000).hex(), "step": 0}
    stop = threading.Event()
    with (
        mock.patch("fastckpt.upkeep._LEAST", 100_000),
        CheckpointManager(tmp_path / "a", durability="async", max_to_keep=2) as first,
        CheckpointManager(tmp_path / "b", max_to_keep=2) as second,
    ):
        errors: list[BaseException] = []

        def saving(manager: CheckpointManager[Any]) -> None:
            try:
                while not stop.is_set():
                    step = manager.next_step()
                    manager.save(step, {**state, "step": step})
            except BaseException as error:
                errors.append(error)

        def child() -> None:
            for durability in ("sync", "async"):
                with CheckpointManager(tmp_path / f"child {os.getpid()}", durability=durability) as own:  # type: ignore[arg-type]
                    for _ in range(3):
                        own.save(own.next_step(), state)
                    assert own.restore()["step"] == 0
            with pytest.raises(StorageError, match="forked child"):
                first.save(10**6, state)
            first.close()
            second.close()

        threads = [threading.Thread(target=saving, args=(manager,)) for manager in (first, second)]
        for thread in threads:
            thread.start()
        try:
            pick = random.Random(2)
            for _ in range(25):
                time.sleep(pick.uniform(0, 0.02))
                in_child(child, timeout=5)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert errors == []
        for manager in (first, second):
            manager.wait_until_finished()
            assert manager.restore()["step"] == manager.latest_step()
            assert (manager.latest_step() or 0) > 5
    for name in ("a", "b"):
        assert fastckpt.verify(tmp_path / name / "checkpoint.fastckpt") == []
    count("forks", 25)


# Misuse


def test_h9_a_load_before_the_first_save(tmp_path: Path) -> None:
    """FAULTS H9: before the first save every way of reading says that there is nothing, by its own error, and makes nothing."""
    for call in (
        lambda: fastckpt.load(tmp_path / "f.fastckpt"),
        lambda: fastckpt.inspect(tmp_path / "f.fastckpt"),
        lambda: fastckpt.verify(tmp_path / "f.fastckpt"),
        lambda: History(tmp_path),
        lambda: CheckpointManager(tmp_path, read_only=True),
    ):
        with pytest.raises(NotFoundError):
            call()
    assert everything_in(tmp_path) == []
    with CheckpointManager(tmp_path) as manager:
        for call in (manager.restore, lambda: manager.restore(3), lambda: manager.delete(3), lambda: manager.rewind(3), lambda: manager.metrics(3)):
            with pytest.raises(NotFoundError):
                call()
        assert (manager.latest_step(), manager.next_step(), manager.all_steps(), manager.compact()) == (None, 0, [], None)


def test_h9_a_wrong_argument(tmp_path: Path) -> None:
    """FAULTS H9: a type that is none, a step that is no number, a state of another type, a file as directory: each says what is wrong."""
    with pytest.raises((SchemaError, TypeError)):
        CheckpointManager(tmp_path / "a", 5)  # type: ignore[arg-type]
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StorageError):
        CheckpointManager(tmp_path / "file" / "run")
    with CheckpointManager(tmp_path / "b", dict) as manager:
        for step in ("1", 1.5, -1, 2**63, None, True):
            with pytest.raises((TypeError, ValueError)):
                manager.save(step, {})  # type: ignore[arg-type]
        with pytest.raises(EncodeError):
            manager.save(0, {"f": open})
        manager.save(0, {})
        assert manager.all_steps() == [0]


# The clock


def jumping() -> Iterator[int]:
    """Nanoseconds since 1970 as a broken clock gives them: forward, the same for a while, back before everything, and at the very beginning."""
    now = 1_700_000_000_000_000_000
    yield from (now, now, now + 10**18, now + 10**18, 0, 0, now - 10**15)
    yield from itertools.repeat(now - 10**15)


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_i7_a_clock_that_jumps(tmp_path: Path, durability: Any) -> None:
    """FAULTS I7: order is by sequence number, never by time: the newest step is the last one saved, wherever the clock stands."""
    clock = jumping()
    with (
        mock.patch.object(journal_module.time, "time_ns", lambda: next(clock)),
        CheckpointManager(tmp_path, durability=durability, max_to_keep=4) as manager,
    ):
        for step in range(10):
            manager.save(step, {"step": step})
        manager.rewind(8)
        manager.save(9, {"again": True})
        manager.wait_until_finished()
        assert manager.compact() is not None
        assert manager.restore() == {"again": True}
    os.utime(tmp_path / "checkpoint.fastckpt", (0, 0))
    with CheckpointManager(tmp_path) as manager:
        assert manager.all_steps()[-2:] == [8, 9]
        assert manager.restore() == {"again": True}
        assert manager.restore(8) == {"step": 8}


def test_i7_two_saves_in_the_same_instant(tmp_path: Path) -> None:
    """FAULTS I7: files of the same time and size, one over the other: a reader that follows sees the second one."""
    path = tmp_path / "checkpoint.fastckpt"
    with mock.patch.object(journal_module.time, "time_ns", lambda: 1):
        with CheckpointManager(tmp_path) as manager:
            manager.save(0, {"step": "a"})
        os.utime(path, ns=(1, 1))
        with History(tmp_path) as history:
            assert history.restore() == {"step": "a"}
            path.unlink()
            with CheckpointManager(tmp_path) as manager:
                manager.save(0, {"step": "b"})
            os.utime(path, ns=(1, 1))
            history.refresh()
            assert history.restore() == {"step": "b"}
