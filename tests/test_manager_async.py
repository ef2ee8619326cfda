"""`CheckpointManager(durability="async")`: what the background promises, and what the caller waits for."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
from support import assert_same
from test_manager import Failing, State, file_of, state

from fastckpt import CheckpointError, CheckpointWarning, EncodeError, StepAlreadyExistsError, StorageError
from fastckpt.manager import CheckpointManager, SaveStats
from fastckpt.storage import Storage
from fastckpt.writer import Writer


class Gate(Failing):
    """A disk whose appends wait until `passage` is free, and say when one waits."""

    def __init__(self) -> None:
        super().__init__()
        self.passage = threading.Event()
        self.passage.set()
        self.waiting = threading.Event()

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        if threading.current_thread().name.startswith("fastckpt"):
            self.waiting.set()
            assert self.passage.wait(20)
        return super().write(fd, data, offset)


class Busy:
    """A manager whose writer holds step 1 in flight, with step 2 waiting."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.gate = Gate()
        self.manager = CheckpointManager(folder, State, durability="async", storage=self.gate, **options)
        self.manager.save(0, state(0))
        self.manager.wait_until_finished()
        self.gate.waiting.clear()
        self.gate.passage.clear()
        self.manager.save(1, state(1))
        assert self.gate.waiting.wait(20)
        self.manager.save(2, state(2))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.passage.set()
        self.manager.close()


def test_d9_what_is_changed_after_save_is_not_saved(tmp_path: Path) -> None:
    """FAULTS D9: the state may be changed as soon as `save` returns."""
    live = state(5)
    with CheckpointManager(tmp_path, State, durability="async") as manager:
        for step in range(50):
            live.step = step
            live.log.append(f"before {step}")
            expected = len(live.log)
            manager.save(step, live)
            live.log.append("after")
            live.seen.clear()
            live.step = -1
            saved = manager.restore(step)
            assert (saved.step, len(saved.log), saved.log[-1]) == (step, expected, f"before {step}")


def test_d10_a_thousand_saves_back_to_back(tmp_path: Path) -> None:
    """FAULTS D10: nothing that is being compressed is reused: a thousand saves in a row all come back as they were."""
    live: dict[str, Any] = {"rows": [], "step": 0, "page": ["x" * 50] * 50}
    with CheckpointManager(tmp_path, durability="async", fsync=False) as manager:
        for step in range(1000):
            live["step"] = step
            live["rows"].append([step, step * 0.5])
            live["page"][step % 50] = f"page {step}" * 5
            manager.save(step, live)
        assert manager.stats.saves >= 998
    with CheckpointManager(tmp_path, read_only=True) as manager:
        assert manager.all_steps() == list(range(1000))
        for step in [*range(0, 1000, 7), 999]:
            saved = manager.restore(step)
            assert saved["step"] == step
            assert saved["rows"] == [[i, i * 0.5] for i in range(step + 1)]
            assert saved["page"][step % 50] == f"page {step}" * 5


def test_save_returns_before_the_disk_does(tmp_path: Path) -> None:
    """With one save in flight and one waiting nobody has waited for the disk; progress is visible, and the newest step counts both."""
    with Busy(tmp_path) as busy:
        manager = busy.manager
        assert manager.is_saving_in_progress()
        assert (manager.latest_step(), manager.next_step()) == (2, 3)
        with pytest.raises(StepAlreadyExistsError):
            manager.save(2, State())
        busy.gate.passage.set()
        manager.wait_until_finished()
        assert not manager.is_saving_in_progress()
        assert manager.all_steps() == [0, 1, 2]


def test_on_busy_wait(tmp_path: Path) -> None:
    """By default a third save waits for a place, without polling and without encoding before."""
    with Busy(tmp_path) as busy:
        threading.Timer(0.2, busy.gate.passage.set).start()
        began, used = time.perf_counter(), time.thread_time()
        assert busy.manager.save(3, state(3)) is True
        assert time.perf_counter() - began > 0.1
        assert time.thread_time() - used < 0.1
        busy.manager.wait_until_finished()
        assert busy.manager.all_steps() == [0, 1, 2, 3]


def test_on_busy_skip(tmp_path: Path) -> None:
    """With "skip" a third save is False and counted, and the step may be saved later."""
    with Busy(tmp_path, on_busy="skip") as busy:
        assert busy.manager.save(3, state(3)) is False
        assert busy.manager.next_step() == 3
        busy.gate.passage.set()
        busy.manager.wait_until_finished()
        assert busy.manager.save(3, state(3)) is True
        assert busy.manager.all_steps() == [0, 1, 2, 3]
        assert (busy.manager.stats.skipped, busy.manager.stats.saves) == (1, 4)


def test_on_busy_replace(tmp_path: Path) -> None:
    """With "replace" the one that waits gives way: its step is not saved, the newest is."""
    with Busy(tmp_path, on_busy="replace") as busy:
        assert busy.manager.save(3, state(3)) is True
        assert busy.manager.save(4, state(4)) is True
        busy.gate.passage.set()
        busy.manager.wait_until_finished()
        assert busy.manager.all_steps() == [0, 1, 4]
        assert_same(busy.manager.restore(), state(4))
        assert busy.manager.stats.replaced == 2


@pytest.mark.parametrize("on_busy", ["wait", "skip", "replace"])
def test_a_forced_save_beside_others(tmp_path: Path, on_busy: Any) -> None:
    """A forced save waits whatever `on_busy` says, retires what is in flight too, and no newer one takes its place."""
    with Busy(tmp_path, on_busy=on_busy) as busy:
        threading.Timer(0.1, busy.gate.passage.set).start()
        assert busy.manager.save(1, State(100), force=True) is True
        busy.manager.save(2, State(200))
        assert busy.manager.all_steps() == [0, 1, 2]
        assert_same(busy.manager.restore(1), State(100))
        assert_same(busy.manager.restore(2), State(200))


@pytest.mark.parametrize("surface", ["save", "wait_until_finished", "check_for_errors", "close"])
def test_c5_an_error_of_the_background_surfaces_once(tmp_path: Path, surface: str) -> None:
    """FAULTS C5: whatever is called next raises it, with the errno; then it is over, and the same step can be saved."""
    storage = Failing()
    manager = CheckpointManager(tmp_path, State, durability="async", storage=storage)
    manager.save(0, state(0))
    manager.wait_until_finished()
    storage.fail["write"] = [errno.ENOSPC]
    manager.save(1, state(1))
    manager._writer.drain()  # type: ignore[union-attr]
    call = (lambda: manager.save(2, state(2))) if surface == "save" else getattr(manager, surface)
    with pytest.raises(StorageError) as caught:
        call()
    assert caught.value.errno == errno.ENOSPC
    if surface != "close":
        assert manager.next_step() == 1
        manager.save(1, state(1))
        manager.wait_until_finished()
        manager.check_for_errors()
        manager.close()
    with CheckpointManager(tmp_path, State) as manager:
        assert manager.all_steps() == ([0] if surface == "close" else [0, 1])


def test_errors_of_the_background_as_warnings(tmp_path: Path) -> None:
    """With on_error="warn" a full disk is a warning at the next call and training goes on; a state that cannot be read is still an error."""
    storage = Failing()
    with CheckpointManager(tmp_path, State, durability="async", on_error="warn", storage=storage) as manager:
        manager.save(0, state(0))
        manager.wait_until_finished()
        storage.fail["write"] = [errno.ENOSPC]
        manager.save(1, state(1))
        manager._writer.drain()  # type: ignore[union-attr]
        with pytest.warns(CheckpointWarning, match=r"not saved: no space"):
            assert manager.save(2, state(2)) is True
        with pytest.raises(EncodeError):
            manager.save(3, State(log=[open]))  # type: ignore[list-item]
        assert manager.all_steps() == [0, 2]


def test_an_error_while_the_next_one_waits(tmp_path: Path) -> None:
    """A save that fails does not take the next one with it."""
    with Busy(tmp_path) as busy:
        busy.gate.fail["write"] = [errno.EIO]
        busy.gate.passage.set()
        with pytest.raises(StorageError):
            busy.manager.wait_until_finished()
        assert busy.manager.all_steps() == [0, 2]
        assert busy.manager.next_step() == 3


def test_an_error_in_a_block_that_ends_with_another(tmp_path: Path) -> None:
    """The exception of the block is raised; the writer's is noted on it and warned of."""
    storage = Failing()

    def run() -> None:
        with CheckpointManager(tmp_path, State, durability="async", storage=storage) as manager:
            manager.save(0, state(0))
            manager.wait_until_finished()
            storage.fail["write"] = [errno.ENOSPC]
            manager.save(1, state(1))
            raise KeyError("training")

    with pytest.warns(CheckpointWarning, match="closing failed"), pytest.raises(KeyError) as caught:
        run()
    assert "no space" in "".join(caught.value.__notes__).lower()
    CheckpointManager(tmp_path, State).close()


def test_a_check_of_the_background_beside_a_changing_state(tmp_path: Path) -> None:
    """A state that changes at once after each save is never called lossy, and the next check is the caller's."""
    live = {"rows": list(range(3000)), "step": 0}
    with warnings.catch_warnings(), CheckpointManager(tmp_path, durability="async") as manager:
        for step in range(64):
            manager.save(step, live)
            live["step"] = step + 1
            live["rows"][step] = -step
        manager.wait_until_finished()
        assert manager._checker.verified is not None


def test_a_lossy_value_that_appears_later(tmp_path: Path) -> None:
    """A tuple that appears at step 5 is found by the background's next check and raised by a later call."""
    live: dict[str, Any] = {"a": 1, "pages": ["x" * 100 + str(i) for i in range(300)]}

    def run() -> None:
        with CheckpointManager(tmp_path, durability="async") as manager:
            for step in range(100):
                if step == 5:
                    live["b"] = (1, 2)
                manager.save(step, live)
                manager.wait_until_finished()

    with pytest.raises(EncodeError, match=r"a tuple would come back as a list at `\$\.b`") as caught:
        run()
    assert caught.value.last_verified in (3, 4)


def test_on_save_may_look_and_may_not_save(tmp_path: Path) -> None:
    """`on_save` runs in the writer's thread: it may ask for the newest step, and saving or waiting there is refused, not a deadlock."""
    seen: list[Any] = []

    def on_save(stats: SaveStats) -> None:
        seen.append((threading.current_thread().name.startswith("fastckpt"), manager.latest_step(), manager.restore(stats.step).step))
        for call in (lambda: manager.save(99, State()), manager.wait_until_finished, manager.close):
            with pytest.raises(CheckpointError, match="on_save runs in the writer's thread"):
                call()

    with CheckpointManager(tmp_path, State, durability="async", on_save=on_save) as manager:
        manager.save(0, state(0))
        manager.wait_until_finished()
        manager.save(1, state(1))
    assert seen == [(True, 0, 0), (True, 1, 1)]


def test_a_manager_that_is_dropped(tmp_path: Path) -> None:
    """Without `close` nothing is lost and nothing is held: what is in flight is saved, then the lock is let go and the thread ends."""
    manager = CheckpointManager(tmp_path, State, durability="async")
    for step in range(5):
        manager.save(step, state(step))
    reference, thread = weakref.ref(manager), manager._writer._thread  # type: ignore[union-attr]
    del manager
    gc.collect()
    assert thread is not None
    thread.join(10)
    gc.collect()
    assert not thread.is_alive()
    assert reference() is None
    with CheckpointManager(tmp_path, State) as manager:
        assert manager.all_steps() == [0, 1, 2, 3, 4]


def test_no_thread_before_the_first_save(tmp_path: Path) -> None:
    """A manager that only reads starts no thread."""
    with CheckpointManager(tmp_path, State, durability="async") as manager:
        manager.restore(default=None)
        assert [thread for thread in threading.enumerate() if thread.name.startswith("fastckpt")] == []
        manager.save(0, State())
        assert [thread.daemon for thread in threading.enumerate() if thread.name.startswith("fastckpt")] == [True]


def test_without_a_thread_the_save_is_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, as at the interpreter's end, the save is made in the caller's."""

    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with CheckpointManager(tmp_path, State, durability="async") as manager:
        manager.save(0, state(0))
        assert_same(manager.restore(), state(0))


def test_c4_a_disk_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    """FAULTS C4: the interpreter's exit waits a limited time for the background, says so, and the file is whole."""
    body = f"""
import threading, time
from fastckpt import writer
from fastckpt.manager import CheckpointManager
from fastckpt.storage import Storage
writer.EXIT_SECONDS = 0.5
class Slow(Storage):
    def write(self, fd, data, offset):
        if slow: time.sleep(60)
        return super().write(fd, data, offset)
slow = False
manager = CheckpointManager({str(tmp_path)!r}, durability="async", storage=Slow())
manager.save(0, {{"a": 1}})
manager.wait_until_finished()
slow = True
manager.save(1, {{"a": 2}})
"""
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=30, env=environment)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 15
    assert "still busy" in done.stderr
    with CheckpointManager(tmp_path) as manager:
        assert manager.restore() == {"a": 1}


def test_c4_an_error_that_nobody_asked_for_is_told_at_exit(tmp_path: Path) -> None:
    """FAULTS C4, C5: the last save of a process that ends without `close` is not lost in silence."""
    body = f"""
from fastckpt.manager import CheckpointManager
from fastckpt.storage import Storage
class Full(Storage):
    def write(self, fd, data, offset):
        raise OSError(28, "No space left on device")
manager = CheckpointManager({str(tmp_path)!r}, durability="async", storage=Storage())
manager.save(0, {{"a": 1}})
manager.wait_until_finished()
manager._journal._storage.__class__ = Full
manager.save(1, {{"a": 2}})
"""
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=30, env=environment)
    assert done.returncode == 0
    assert "no space left on device" in done.stderr.lower()


def test_the_callers_thread_only_encodes(tmp_path: Path) -> None:
    """Blocking time (the caller's CPU time) is that of a bare encode, nearly; nothing of the message is copied there."""
    live = {"pages": [f"page {i} " * 10 for i in range(20_000)], "step": 0}
    encode = msgspec.msgpack.Encoder().encode
    bare, ours = [], []
    with CheckpointManager(tmp_path, durability="async", fsync=False) as manager:
        manager.save(0, live)
        for step in range(1, 40):
            live["step"] = step
            manager.wait_until_finished()
            for measure in ("bare", "ours") if step % 2 else ("ours", "bare"):
                began = time.thread_time()
                if measure == "bare":
                    encode(live)
                    bare.append(time.thread_time() - began)
                else:
                    manager.save(step, live)
                    ours.append(time.thread_time() - began)
                    manager.wait_until_finished()
    # The bound itself (1.3x + 0.1 ms) is the benchmark's; this one holds on a machine that does other things besides.
    assert sorted(ours)[len(ours) // 4] < 2 * sorted(bare)[len(bare) // 4] + 0.3e-3


def test_a_writer_runs_jobs_in_order_and_keeps_their_errors() -> None:
    """The thread's own contract: in order, at most one waiting, errors kept, `stop` finishes what is there."""
    writer = Writer("fastckpt test")
    done: list[int] = []
    gate = threading.Event()

    def fail() -> None:
        raise KeyboardInterrupt

    assert writer.put(lambda: (gate.wait(10), done.append(1))) is False  # type: ignore[func-returns-value]
    while writer.full:
        time.sleep(0.001)
    assert writer.put(fail) is False
    assert writer.full
    assert writer.drain(0.01) is False
    gate.set()
    writer.drain()
    assert writer.failed
    assert [type(error) for error in writer.take_errors()] == [KeyboardInterrupt]
    assert not writer.failed
    writer.put(lambda: done.append(2))
    writer.stop()
    assert done == [1, 2]


def test_memory_of_the_background_is_bounded(tmp_path: Path) -> None:
    """However slow the disk, at most the message in flight and the one that waits are held."""

    class Slow(Storage):
        def write(self, fd: int, data: memoryview, offset: int) -> int:
            time.sleep(0.01)
            return super().write(fd, data, offset)

    with CheckpointManager(tmp_path, durability="async", storage=Slow(), fsync=False, round_trip="never") as manager:
        for step in range(20):
            manager.save(step, {"x": os.urandom(200_000)})
            jobs = sum(1 for obj in gc.get_objects() if type(obj).__name__ == "_Save")
            assert jobs <= 3
    assert file_of(tmp_path).exists()


def test_the_writer_has_a_stack_of_its_own(tmp_path: Any) -> None:
    """FAULTS F3: where the application gives its threads 256 KiB, the background thread still checks a state of 256 levels."""
    previous = threading.stack_size(256 * 1024)
    try:
        deep: Any = 1
        for _ in range(255):
            deep = [deep]
        with CheckpointManager(tmp_path, dict, durability="async") as manager:
            for step in range(4):
                manager.save(step, {"deep": deep, "step": step})
        assert threading.stack_size() == 256 * 1024
    finally:
        threading.stack_size(previous)
