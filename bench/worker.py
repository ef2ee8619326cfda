"""One contender in a process of its own, driven over pipes: `Worker` is the parent's end, `Child` the other.

Separate processes keep one contender's garbage, caches and imports out of another's times; processes that live as long as the
measurement let the parent interleave them, one call at a time, so that a noisy machine hits all alike.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .contenders import ALL, sync, whole_payload
from .shapes import change, make, replace_pack


class BenchError(Exception):
    """The measurement cannot be made, or would not be a fair one."""


def require(contenders: Iterable[str]) -> None:
    """Raise `BenchError` for contenders whose library is missing: a table without them would look like the whole picture."""
    needed = sorted({ALL[name].requires for name in contenders} - {""})
    missing = [module for module in needed if importlib.util.find_spec(module) is None]
    if missing:
        raise BenchError(f"{', '.join(missing)} is not installed; it comes with the extra `bench`: run `pip install '.[bench]'` in the checkout")


class Worker:
    """The parent's end. The process starts at once and gets ready on its own; the first `ask` waits for it."""

    def __init__(self, contender: str, shape: str, workspace: Path) -> None:
        self.contender = contender
        workspace.mkdir()
        command = [sys.executable, "-m", "bench.worker", contender, shape, str(workspace)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str, step: int) -> dict[str, Any]:
        """Have the child do one thing and give back what it answers; `BenchError` when it has died."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        try:
            to.write(json.dumps([what, step]) + "\n")
            to.flush()
            answer = back.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise BenchError(f"{self.contender}: its process died with exit code {self._process.wait()} when asked for `{what}`; the reason is above")
        reply: dict[str, Any] = json.loads(answer)
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()
        # Closes the child's input, which is how it knows that it is done.
        self._process.communicate()


def in_turn(workers: list[Worker], number: int) -> list[Worker]:
    """The order of a round. Rotated, and every other time reversed: each goes first, last, before and after each other equally often."""
    turn = number // 2 % len(workers)
    return (workers[turn:] + workers[:turn])[:: -1 if number % 2 else 1]


def timed(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The result of `call`, and its times.

    The garbage collector runs before, so that no call pays for an earlier one's garbage, and stays on during the call: what the
    call itself sets off, an application pays for too.
    """
    gc.collect()
    cpu, start = time.process_time(), time.perf_counter()
    result = call()
    end, cpu_end = time.perf_counter(), time.process_time()
    return result, {"seconds": end - start, "cpu_seconds": cpu_end - cpu}


def digest(value: Any) -> str:
    """The same for equal JSON values only: 1, 1.0 and true differ, the order of keys does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class Child:
    """The child's end: one contender, a directory, and a state that goes through the same steps as everybody's."""

    def __init__(self, contender: str, shape: str, workspace: str) -> None:
        self._contender = ALL[contender]()
        self._workspace = Path(workspace)
        self._state = make(shape)

    def save(self, step: int) -> dict[str, float]:
        """Take one step of the run, then save; only the save is timed."""
        change(self._state, step)
        return self._timed_save(step)

    def save_pack(self, step: int) -> dict[str, float]:
        """As `save`, after a step that replaces a whole case pack."""
        replace_pack(self._state, step)
        return self._timed_save(step)

    def block(self, step: int) -> dict[str, float]:
        """Take one step, then save in the background: the thread time that the caller gives, beside that of a bare encode.

        What is left to do in the background is waited for outside of the times, as a loop does whose steps take longer.
        """
        change(self._state, step)
        bare, blocking = self._contender.block(self._workspace, self._state, step)
        return {"bare_seconds": bare, "blocking_seconds": blocking}

    def _timed_save(self, step: int) -> dict[str, float]:
        path = self._contender.path(self._workspace)
        before = path.stat().st_size if self._contender.appends and path.exists() else 0
        _, times = timed(lambda: self._contender.save(self._workspace, self._state, step))
        # What a save leaves unsynced would be flushed in the middle of the next contender's time.
        sync(path)
        sync(path.parent)
        return {**times, "bytes": path.stat().st_size - before}

    def load(self, _step: int) -> dict[str, float]:
        """Load, timed."""
        return timed(lambda: self._contender.load(self._workspace))[1]

    def saved(self, step: int) -> dict[str, str]:
        """The digest of the payload as the replaced module would have made it."""
        return {"digest": digest(whole_payload(self._state, step))}

    def loaded(self, _step: int) -> dict[str, str]:
        """The digest of what the contender loads."""
        return {"digest": digest(self._contender.load(self._workspace))}


def main() -> None:
    """Answer one question a line until there are no more."""
    # The answers have standard output to themselves; what a library prints joins the errors.
    answers, sys.stdout = sys.stdout, sys.stderr
    child = Child(*sys.argv[1:])
    for line in sys.stdin:
        what, step = json.loads(line)
        print(json.dumps(getattr(child, what)(step)), file=answers, flush=True)


if __name__ == "__main__":
    main()
