"""A run that is told to end: what is being saved is finished, the state that the program hands out is saved, and the signal does its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support import assert_same, in_child, needs_posix

from fastckpt import CheckpointManager, CheckpointWarning, OnSignal, verify
from fastckpt.storage import Storage

pytestmark = needs_posix

FILE = "checkpoint.fastckpt"

TRAINING = """
import sys, time, threading, signal
from fastckpt import CheckpointManager, OnSignal
folder, how = sys.argv[1:]
state = {"step": -1, "rows": []}
whole = None
def newest():
    return whole
wanted = {"plain": True, "state": newest, "usr1": OnSignal(newest, [signal.SIGUSR1])}[how]
interval = 1 if how == "plain" else 10
with CheckpointManager(folder, durability="async" if how == "plain" else "sync", save_interval_steps=interval, save_on_signal=wanted) as manager:
    for step in range(1_000_000):
        state["step"] = step
        state["rows"].append({"step": step, "text": "x" * 50})
        del state["rows"][:-100]
        whole = step, {"step": step, "rows": list(state["rows"])}
        manager.save(step, whole[1])
        print(step, flush=True)
"""


@pytest.mark.parametrize(("how", "number"), [("plain", signal.SIGTERM), ("state", signal.SIGTERM), ("usr1", signal.SIGUSR1)])
def test_a_training_process_ends_by_the_signal_and_keeps_its_last_step(tmp_path: Path, how: str, number: signal.Signals) -> None:
    """A signal at any moment of a tight loop: the process dies of that signal, the file is sound and unlocked, and the last whole step is there.

    With a function also one that was not due (`save_interval_steps`), and in the background the save that was in flight.
    """
    for turn in range(4):
        folder = tmp_path / str(turn)
        process = subprocess.Popen([sys.executable, "-c", TRAINING, str(folder), how], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 23 + turn:
                break
        time.sleep(0.001 * turn)
        process.send_signal(number)
        told = [int(line) for line in process.communicate(timeout=60)[0].splitlines() if line]
        last = max([23 + turn, *told])
        assert process.returncode == -number
        assert verify(folder / FILE) == []
        with CheckpointManager(folder) as manager:
            newest = manager.latest_step()
            assert newest is not None
            # In the middle of a step the state of the one before is the last whole one.
            assert newest in (last, last + 1)
            restored = manager.restore()
            assert restored["step"] == newest
            assert len(restored["rows"]) == min(newest + 1, 100)


def test_a_signal_during_a_save_waits_for_its_end(tmp_path: Path) -> None:
    """The signal comes in the middle of a write: the save ends, is durable, and only then the handler runs; not inside of it."""

    class Slow(Storage):
        def sync_data(self, fd: int) -> None:
            signal.raise_signal(signal.SIGUSR1)
            super().sync_data(fd)

    def child() -> None:
        seen: list[str] = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append("before"))

        def state() -> tuple[int, dict[str, int]]:
            seen.append("state")
            return 5, {"n": 5}

        manager = CheckpointManager(tmp_path, save_on_signal=OnSignal(state, [signal.SIGUSR1]), storage=Slow())
        manager.save(0, {"n": 0})
        manager.save(1, {"n": 1})  # its sync raises the signal
        assert seen == ["state", "before"], seen
        assert signal.getsignal(signal.SIGUSR1).__name__ == "<lambda>"  # type: ignore[union-attr]
        with CheckpointManager(tmp_path, read_only=True) as reader:
            assert reader.all_steps() == [0, 1, 5]

    in_child(child)


def test_a_state_that_is_saved_already_is_not_saved_again(tmp_path: Path) -> None:
    """A function that hands out the newest step, or nothing, adds nothing."""

    def child() -> None:
        for number, given in enumerate([(3, {"n": 3}), None]):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            manager = CheckpointManager(tmp_path / str(number), save_on_signal=lambda given=given: given)
            manager.save(3, {"n": 3})
            os.kill(os.getpid(), signal.SIGTERM)
            with CheckpointManager(tmp_path / str(number)) as again:  # it was closed: the lock is free
                assert again.all_steps() == [3]

    in_child(child)


def test_a_function_that_fails_is_told_of_and_the_process_ends_all_the_same(tmp_path: Path) -> None:
    """What the function raises is a warning; the run is closed, and the signal takes its course."""

    def child() -> None:
        done: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: done.append(number))

        def state() -> tuple[int, object]:
            raise RuntimeError("no state now")

        manager = CheckpointManager(tmp_path, save_on_signal=state)
        manager.save(0, 0)
        with pytest.warns(CheckpointWarning, match="on SIGTERM: no state now"):
            os.kill(os.getpid(), signal.SIGTERM)
        assert done == [signal.SIGTERM]
        CheckpointManager(tmp_path).close()

    in_child(child)


def test_close_gives_the_signal_back(tmp_path: Path) -> None:
    """After `close` the handler is the one from before; two managers close in any order."""

    def child() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with CheckpointManager(tmp_path / "a", save_on_signal=True):
            assert signal.getsignal(signal.SIGTERM) != before
        assert signal.getsignal(signal.SIGTERM) == before
        first = CheckpointManager(tmp_path / "a", save_on_signal=True)
        second = CheckpointManager(tmp_path / "b", save_on_signal=True)
        first.close()
        second.save(0, 0)
        ended: list[int] = []
        signal.signal(signal.SIGUSR2, lambda number, _: ended.append(number))
        second.close()
        # The first one's handler is left at the bottom, and only passes on what comes.
        third = CheckpointManager(tmp_path / "c", save_on_signal=OnSignal(None, [signal.SIGUSR2]))
        third.save(0, 0)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert ended == [signal.SIGUSR2]

    in_child(child)


def test_both_of_two_managers_are_finished(tmp_path: Path) -> None:
    """With two runs open, a signal saves and closes both before it takes its course."""

    def child() -> None:
        ended: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
        managers = [CheckpointManager(tmp_path / name, save_on_signal=lambda name=name: (1, name)) for name in "ab"]
        for manager in managers:
            manager.save(0, "first")
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended == [signal.SIGTERM]
        for name in "ab":
            with CheckpointManager(tmp_path / name) as manager:
                assert_same(manager.restore(1), name)

    in_child(child)


def test_only_in_the_main_thread(tmp_path: Path) -> None:
    """Signal handlers belong to the main thread: a manager that wants one elsewhere is refused, and leaves no lock."""
    errors: list[BaseException] = []

    def other() -> None:
        try:
            CheckpointManager(tmp_path, save_on_signal=True)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])
    CheckpointManager(tmp_path).close()
