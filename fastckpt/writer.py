"""The background thread of a run: one job at a time, one that waits, and errors that are handed back."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Final

from .errors import CheckpointWarning

__all__ = ["EXIT_SECONDS", "Writer"]

#: How long the interpreter's exit waits for what is still being saved by a manager that was not closed.
EXIT_SECONDS: Final = 60.0

Job = Callable[[], None]
_STACK = 16 << 20  # address space, not memory: as much as decoding may need, whatever the application gives its own threads


class _Thread(threading.Thread):
    """A thread whose stack is known to be large enough for decoding (see `codec.stack_is_ample`)."""

    ample_stack = False

    def start(self) -> None:
        try:
            previous = threading.stack_size(_STACK)
        except (RuntimeError, ValueError):
            super().start()  # not to be set here: then the codec looks at the depth first
            return
        self.ample_stack = True
        try:
            super().start()
        finally:
            threading.stack_size(previous)


class Writer:
    """Runs jobs in order in a thread of its own, which the first one starts; at most one runs and one waits.

    What a job raises is kept until `take_errors`. Nothing here polls: whoever waits is woken. The thread is a daemon, for a
    disk that hangs must not keep a process alive; the interpreter's exit waits up to `EXIT_SECONDS` for it instead. It holds
    no reference to who hands it jobs, except in the jobs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Re-entrant, as is Condition's own default: a garbage collection inside may call `abandon` in the same thread.
        self._changed = threading.Condition(threading.RLock())
        self._waiting: Job | None = None
        self._running = self._stopping = False
        self._errors: list[BaseException] = []
        self._thread: threading.Thread | None = None
        self._afterwards: Job | None = None
        self._pid = os.getpid()
        _OPEN.add(self)

    @property
    def failed(self) -> bool:
        """Whether there are errors to take."""
        return bool(self._errors)

    @property
    def full(self) -> bool:
        """Whether a job waits, so that another one has no place."""
        return self._waiting is not None

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits."""
        return self._running or self._waiting is not None

    def is_current_thread(self) -> bool:
        """Whether the caller is a job."""
        return threading.current_thread() is self._thread

    def put(self, job: Job) -> bool:
        """Let `job` be the next one; whether it took the place of one that was waiting."""
        with self._changed:
            replaced = self._waiting is not None
            # In this order, and looked at again: an interrupt in between must leave no job that nobody does, and no second thread.
            if self._thread is None or self._thread.ident is None:
                self._thread = _Thread(target=self._run, name=self._name, daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:
                    # No thread can be had, as in the interpreter's last moments: then here.
                    self._thread = None
                    self._perform(job)
                    return replaced
            self._waiting = job
            self._changed.notify_all()
        return replaced

    def wait_for_room(self) -> None:
        """Return when no job waits (one may run)."""
        with self._changed:
            self._changed.notify_all()  # a `put` that was interrupted may not have come to it
            self._changed.wait_for(lambda: self._waiting is None)

    def drain(self, timeout: float | None = None) -> bool:
        """Return when no job runs or waits; False after `timeout` seconds. In a job: at once, for it would wait for itself."""
        if self.is_current_thread():
            return True
        with self._changed:
            self._changed.notify_all()  # as above
            return self._changed.wait_for(lambda: not self.busy, timeout)

    def take_errors(self) -> list[BaseException]:
        """What jobs raised since the last time, oldest first."""
        with self._changed:
            errors, self._errors = self._errors, []
            return errors

    def stop(self) -> None:
        """Let the thread end after what is there; waits for that."""
        self._stop(None)
        if self._thread is not None and not self.is_current_thread():
            self._thread.join()

    def abandon(self, afterwards: Job) -> None:
        """As `stop`, without waiting: `afterwards` runs when all is done. For a garbage collector, in whatever thread."""
        if self._thread is None:
            _OPEN.discard(self)
            afterwards()
        else:
            self._stop(afterwards)

    def _stop(self, afterwards: Job | None) -> None:
        with self._changed:
            self._stopping, self._afterwards = True, afterwards
            self._changed.notify_all()
        if afterwards is None:
            _OPEN.discard(self)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._running = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting is not None or self._stopping)
                job, self._waiting = self._waiting, None
                if job is None:
                    break
                self._running = True
                self._changed.notify_all()
            self._perform(job)
            del job  # or its state would live until the next one comes
        if self._afterwards is not None:
            self._perform(self._afterwards)

    def _perform(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001  (handed over as it is: the caller's thread raises it)
            self._errors.append(error)

    def finish_at_exit(self) -> None:
        """Wait for what is left, and report what nobody asked for any more. Nothing in a forked child, which has no such thread."""
        if os.getpid() != self._pid:
            return
        if not self.drain(EXIT_SECONDS):
            warnings.warn(f"{self._name}: still busy after {EXIT_SECONDS:.0f} s; what it has not finished is lost", CheckpointWarning, stacklevel=2)
        for error in self.take_errors():
            warnings.warn(f"{self._name}: {error!r}", CheckpointWarning, stacklevel=2)


_OPEN: weakref.WeakSet[Writer] = weakref.WeakSet()


@atexit.register
def _finish_all_at_exit() -> None:
    for writer in list(_OPEN):
        writer.finish_at_exit()
