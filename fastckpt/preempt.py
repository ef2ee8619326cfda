"""Told to end (SIGTERM: a spot machine, a job's time limit): finish what is being saved, then end as the signal would have it."""

from __future__ import annotations

import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from .errors import CheckpointWarning

__all__ = ["OnSignal", "SignalGuard"]


class OnSignal(NamedTuple):
    """What a manager does on a signal (`save_on_signal`): the save in flight is finished, then the signal takes its course.

    Where that is the end of the process, the run is closed before. Where the program had a handler of its own, that one is called
    afterwards, and the run stays open, as it does where the signal was ignored.

    With `state`, a function without arguments, what it returns (a step and its state, or None) is saved before; it is called in the main
    thread between any two instructions of the program, so it must hand out a state that is whole, such as the one of the last step that
    ended. `signals` are those that are listened to; SLURM sends another one ahead of its time limit with `--signal=USR1@60`.
    """

    state: Callable[[], tuple[int, Any] | None] | None = None
    signals: Sequence[signal.Signals] = (signal.SIGTERM,)


class SignalGuard:
    """Calls `finish` when one of `signals` comes, with whether the process ends by it; then lets it take its course.

    Not while the main thread is inside `busy`, whose locks it would wait for: then at the end of that. Nothing in a forked child,
    where the signal takes its course alone. `finish` is held weakly (a bound method).

    Raises `ValueError` outside of the main thread, where no signal handler can be set, and `OSError` for a signal that has none.
    """

    def __init__(self, signals: Sequence[signal.Signals], finish: Callable[[bool], None]) -> None:
        self._finish: weakref.WeakMethod[Callable[[bool], None]] | None = weakref.WeakMethod(finish)
        self._main, self._pid = threading.main_thread().ident, os.getpid()
        self._inside = 0
        self._acting = False
        self._pending: int | None = None
        self._before: dict[int, Any] = {}
        if threading.get_ident() != self._main:
            raise ValueError("save_on_signal needs the main thread: open the manager there, or without it")
        try:
            for number in signals:
                self._before[number] = signal.signal(number, self._handle)
        except BaseException:
            self.release()
            raise

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A stretch of the main thread that a signal does not interrupt; in other threads nothing."""
        if threading.get_ident() != self._main:
            yield
            return
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if self._pending is not None and not self._inside:
                number, self._pending = self._pending, None
                self._act(number, None)

    def release(self) -> None:
        """Listen no longer."""
        self._finish = None
        if threading.get_ident() != self._main:
            return  # no handler can be set here: ours passes on what comes
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL if before is None else before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            self._take_its_course(number, frame)
        elif self._acting:
            return  # it is being done
        elif self._inside:
            self._pending = number
        else:
            self._act(number, frame)

    def _act(self, number: int, frame: FrameType | None) -> None:
        finish = self._finish() if self._finish is not None else None
        self._acting = True
        try:
            if finish is not None:
                finish(self._before.get(number) in (None, signal.SIG_DFL))
        except Exception as error:  # noqa: BLE001  (the process is told to end, and ends; this is its last word)
            warnings.warn(f"on {signal.Signals(number).name}: {error}", CheckpointWarning, stacklevel=2)
        finally:
            self._acting = False
            self._take_its_course(number, frame)

    def _take_its_course(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
