"""A run that is told to end: what is being saved is finished, the state that the program hands out is saved, and the signal does its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support import assert_same, in_child, needs_posix

from fastckpt import CheckpointManager, OnSignal, verify
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
        told = [int(line) for line in process.stdout.read().splitlines() if line]
        process.wait(60)
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
    """The signal comes in the middle of a write: the save ends, is durable, and only then the program's own handler is called, the run still open."""

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
        manager.save(1, {"n": 1})  # its sync raises the signal, and so does the one of step 5: once is enough
        assert seen == ["state", "before"], seen
        manager.save(6, {"n": 6})  # the run goes on; step 5 is there already
        assert seen == ["state", "before"] * 2, seen
        manager.close()
        assert signal.getsignal(signal.SIGUSR1).__name__ == "<lambda>"  # type: ignore[union-attr]
        with CheckpointManager(tmp_path, read_only=True) as reader:
            assert reader.all_steps() == [0, 1, 5, 6]

    in_child(child)


@pytest.mark.parametrize("on_busy", ["skip", "replace", "wait"])
def test_the_last_state_is_saved_though_the_background_is_busy(tmp_path: Path, on_busy: Any) -> None:
    """A signal while one save is in flight and one waits: neither they nor the last state is dropped, whatever `on_busy` says."""

    class Slow(Storage):
        def sync_data(self, fd: int) -> None:
            time.sleep(0.05)
            super().sync_data(fd)

    process = os.fork()
    if process == 0:
        try:
            manager = CheckpointManager(tmp_path, durability="async", on_busy=on_busy, save_on_signal=lambda: (9, "last"), storage=Slow())
            for step in range(3):
                manager.save(step, "x" * 1000)
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGTERM
    with CheckpointManager(tmp_path) as manager:
        assert manager.restore(9) == "last"


def test_a_state_that_is_saved_already_is_not_saved_again(tmp_path: Path) -> None:
    """A function that hands out the newest step, or nothing, adds nothing; where the signal is ignored the run goes on."""

    def child() -> None:
        for number, given in enumerate([(3, {"n": 3}), None]):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with CheckpointManager(tmp_path / str(number), save_on_signal=lambda given=given: given) as manager:
                manager.save(3, {"n": 3})
                os.kill(os.getpid(), signal.SIGTERM)
                assert manager.all_steps() == [3]
                manager.save(4, {"n": 4})

    in_child(child)


def test_a_function_that_fails_is_told_of_and_the_process_ends_all_the_same(tmp_path: Path) -> None:
    """What the function raises is a warning; the run is closed, and the signal takes its course."""
    code = """
import sys, os, signal
from fastckpt import CheckpointManager
def state():
    raise RuntimeError("no state now")
manager = CheckpointManager(sys.argv[1], save_on_signal=state, durability="async")
manager.save(0, 0)
manager.save(1, 1)
os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGTERM
    assert "on SIGTERM: no state now" in done.stderr
    with CheckpointManager(tmp_path) as manager:
        assert manager.all_steps() == [0, 1]


def test_a_forked_child_ends_by_the_signal_alone(tmp_path: Path) -> None:
    """A child that was forked, even in the middle of a save, dies of SIGTERM at once, and its parent's run is none of its business."""

    class Forking(Storage):
        children: ClassVar[list[int]] = []

        def sync_data(self, fd: int) -> None:
            process = os.fork()
            if process == 0:
                while True:
                    time.sleep(1)
            self.children.append(process)
            super().sync_data(fd)

    def child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with CheckpointManager(tmp_path, save_on_signal=lambda: (99, "not the child's"), storage=Forking()) as manager:
            for step in range(3):
                manager.save(step, step)
            for process in Forking.children:
                os.kill(process, signal.SIGTERM)
                assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGTERM
            assert manager.all_steps() == [0, 1, 2]

    in_child(child)


def test_close_gives_the_signal_back(tmp_path: Path) -> None:
    """After `close` the handler is the one from before; a manager that was refused leaves none; two managers close in any order."""

    def child() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with CheckpointManager(tmp_path / "a", save_on_signal=True):
            assert signal.getsignal(signal.SIGTERM) != before
        assert signal.getsignal(signal.SIGTERM) == before
        with pytest.raises(OSError, match="Invalid"):
            CheckpointManager(tmp_path / "a", save_on_signal=OnSignal(None, [signal.SIGTERM, signal.SIGKILL]))
        assert signal.getsignal(signal.SIGTERM) == before
        ended: list[int] = []
        signal.signal(signal.SIGUSR2, lambda number, _: ended.append(number))
        first = CheckpointManager(tmp_path / "a", save_on_signal=OnSignal(None, [signal.SIGUSR2]))
        second = CheckpointManager(tmp_path / "b", save_on_signal=OnSignal(None, [signal.SIGUSR2]))
        first.close()
        second.save(0, 0)
        os.kill(os.getpid(), signal.SIGUSR2)  # through the handler of the closed one, which only passes it on
        assert ended == [signal.SIGUSR2]
        second.close()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert ended == [signal.SIGUSR2] * 2

    in_child(child)


def test_both_of_two_managers_are_finished(tmp_path: Path) -> None:
    """With two runs open, a signal saves both before it takes its course."""

    def child() -> None:
        ended: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
        managers = [CheckpointManager(tmp_path / name, save_on_signal=lambda name=name: (1, name)) for name in "ab"]
        for manager in managers:
            manager.save(0, "first")
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended == [signal.SIGTERM]
        for name, manager in zip("ab", managers, strict=True):
            assert_same(manager.restore(1), name)
            manager.close()

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
