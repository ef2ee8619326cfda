"""Told to end (SIGTERM: a spot machine, a job's time limit): finish what is being saved, then end as the signal would have it."""

from __future__ import annotations

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
    """What a manager does on a signal (`save_on_signal`): the save in flight is finished, the run closed, then the signal takes its course.

    With `state`, a function without arguments, what it returns (a step and its state, or None) is saved before; it is called in the main
    thread between any two instructions of the program, so it must hand out a state that is whole, such as the one of the last step that
    ended. `signals` are those that are listened to; SLURM sends another one ahead of its time limit with `--signal=USR1@60`.
    """

    state: Callable[[], tuple[int, Any] | None] | None = None
    signals: Sequence[signal.Signals] = (signal.SIGTERM,)


class SignalGuard:
    """Calls `finish` when one of `signals` comes, restores what was there before, and sends the signal again.

    Not while the main thread is inside `busy`, whose locks it would wait for: then at the end of that. `finish` is held weakly (a
    bound method). Raises `ValueError` outside of the main thread, where no signal handler can be set.
    """

    def __init__(self, signals: Sequence[signal.Signals], finish: Callable[[], None]) -> None:
        self._finish: weakref.WeakMethod[Callable[[], None]] | None = weakref.WeakMethod(finish)
        self._main = threading.main_thread().ident
        self._inside = 0
        self._acting = False
        self._pending: int | None = None
        self._before: dict[int, Any] = {}
        if threading.get_ident() != self._main:
            raise ValueError("save_on_signal needs the main thread: open the manager there, or without it")
        for number in signals:
            self._before[number] = signal.signal(number, self._handle)

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
                self._act(number)

    def release(self) -> None:
        """Listen no longer."""
        self._finish = None
        if threading.get_ident() != self._main:
            return  # no handler can be set here: ours passes on what comes
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._acting:
            return  # it is being done, and ends with the signal
        if self._inside:
            self._pending = number
        else:
            self._act(number)

    def _act(self, number: int) -> None:
        finish = self._finish() if self._finish is not None else None
        self._finish, self._acting = None, True
        try:
            if finish is not None:
                finish()
        except Exception as error:  # noqa: BLE001  (the process is told to end, and ends; this is its last word)
            warnings.warn(f"on {signal.Signals(number).name}: {error}", CheckpointWarning, stacklevel=2)
        finally:
            self._acting = False
            before = self._before.get(number)
            signal.signal(number, signal.SIG_DFL if before is None else before)
            signal.raise_signal(number)
