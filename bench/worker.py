"""One contender in a process of its own, driven over pipes: `Worker` is the parent's end, `Child` the other.

Separate processes keep one contender's garbage, caches and imports out of another's times; processes that live as long as the
measurement let the parent interleave them, one call at a time, so that a noisy machine hits all alike.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import hashlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from .contenders import BASELINE, CONTENDERS, BackgroundRun, OneFile, installed, sync
from .workloads import make_workload

# For `codec`, one allocator for all. At glibc's own settings a process that has not yet freed a large block asks the kernel for each one
# anew, and pays for every page of it again, which is four fifths of encoding 1.6 MB of texts; one that has, does not: it was the history
# of a process that was measured. These are the values at which glibc's own adjustment ends, and the largest that all its versions take.
# Not for the other cases: theirs are the times and the memory of an application's process, which has glibc's own settings, and whose load,
# the first thing that it does, is in pages that are new. In warm ones `json` takes three fifths of it.
STEADY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}


class BenchError(Exception):
    """The measurement cannot be made, or would not be a fair one."""


class ContenderError(BenchError):
    """A contender raised an error, told in `reason`, when it was asked for something; its process goes on."""

    def __init__(self, contender: str, what: str, reason: str, place: str) -> None:
        super().__init__(f"{contender}: {reason} ({place}), when asked for `{what}`")
        self.reason = reason


def able(contenders: Iterable[str]) -> list[str]:
    """Those of the contenders that can be measured here; an optional one whose library is missing is left out, aloud.

    Raises `BenchError` for another one: a table without it would look like the whole picture.
    """
    found = []
    missing = set()
    for name in contenders:
        contender = CONTENDERS[name]
        if installed(contender):
            found.append(name)
        elif contender.optional:
            print(f"left out: {name}, for {contender.requires} is not installed (extra `bench`)")
        else:
            missing.add(contender.requires)
    if missing:
        modules = ", ".join(sorted(missing))
        raise BenchError(f"{modules} is not installed; it comes with the extra `bench`: run `pip install '.[bench]'` in the checkout")
    return found


class Worker:
    """The parent's end. The process starts at once and gets ready on its own; the first `ask` waits for it."""

    def __init__(self, contender: str, workload: str, workspace: Path, *, steady: bool = False) -> None:
        self.contender = contender
        workspace.mkdir(parents=True)
        command = [sys.executable, "-m", "bench.worker", contender, workload, str(workspace)]
        environment = {**os.environ, **(STEADY if steady else {})}
        # In a group of its own: a Ctrl-C at the terminal is for the parent alone, which then ends its children.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, process_group=0)

    def ask(self, what: str, *arguments: Any) -> dict[str, Any]:
        """Have the child do one thing and give back what it answers; `ContenderError` when that raises, `BenchError` when the child has died."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        try:
            to.write(json.dumps([what, *arguments]) + "\n")
            to.flush()
            answer = back.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise BenchError(f"{self.contender}: its process died with exit code {self._process.wait()} when asked for `{what}`; the reason is above")
        reply: dict[str, Any] = json.loads(answer)
        if "failed" in reply:
            raise ContenderError(self.contender, what, *reply["failed"])
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()
        # Closes the child's input, which is how it knows that it is done.
        self._process.communicate()


@contextmanager
def workers(contenders: Iterable[str], workload: str, folder: Path, *, steady: bool = False) -> Iterator[list[Worker]]:
    """A process for each contender, in folders of their own, gone afterwards. With `steady` their allocators are alike (see `STEADY`)."""
    with ExitStack() as stack:
        yield [stack.enter_context(Worker(name, workload, folder / str(number), steady=steady)) for number, name in enumerate(contenders)]


def holding(contenders: list[str], workload: str, folder: Path) -> list[str]:
    """Those of the contenders that give back all of a file of one's own; the others are left out, aloud.

    NaN, whole numbers of more than 64 bits and lone surrogates are what many cannot hold. A state that is not a file holds none of them:
    nothing is left out there, and `compare` refuses who fails. Raises `BenchError` when ours fails, or nothing but ours is left.
    """
    kind, _, steps = workload.partition(":")
    if kind != "file":
        return contenders
    whole, found = int(steps.partition(":")[0]), []
    with workers(contenders, workload, folder / "whole") as all_workers:
        for worker in all_workers:
            try:
                worker.ask("save", whole)
                reason = "" if worker.ask("loaded") == worker.ask("saved", whole) else "it loads something else"
            except ContenderError as error:
                reason = error.reason
            if not reason:
                found.append(worker.contender)
            elif CONTENDERS[worker.contender].ours:
                raise BenchError(f"{worker.contender} cannot hold this state: {reason}")
            else:
                print(f"left out: {worker.contender} cannot hold this state: {reason}")
    if found and all(CONTENDERS[name].ours for name in found):
        raise BenchError("no other contender holds this state, so there is nothing to compare with")
    if BASELINE in contenders and BASELINE not in found:
        print(f"without the {BASELINE} there are no ratios")
    return found


def in_turn(workers: list[Worker], number: int) -> list[Worker]:
    """The order of a round. In twice as many rounds as there are workers, each comes at every place, and right after each other, equally often.

    From the first one outwards to both sides (0, -1, 1, -2 ...): no two neighbours are equally far apart, so that rotations put every two
    beside each other (a Williams square); every other round is reversed.
    """
    count, turn = len(workers), number // 2
    places = ((at + 1) // 2 * (-1 if at % 2 else 1) + turn for at in range(count))
    return [workers[place % count] for place in places][:: -1 if number % 2 else 1]


def compare(workers: list[Worker], step: int) -> None:
    """Refuse to time a contender that does not load what the replaced module's payload would have been."""
    expected = workers[0].ask("saved", step)
    for worker in workers:
        if worker.ask("loaded") != expected:
            raise BenchError(f"{worker.contender} does not load the payload that was saved, so its times would mean nothing")


def timed(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The result of `call`, and its times in milliseconds.

    The garbage collector runs before, so that no call pays for an earlier one's garbage, and stays on during the call: what the
    call itself sets off, an application pays for too.
    """
    gc.collect()
    cpu, start = time.process_time(), time.perf_counter()
    result = call()
    end, cpu_end = time.perf_counter(), time.process_time()
    return result, {"total": 1e3 * (end - start), "cpu": 1e3 * (cpu_end - cpu)}


def digest(value: Any) -> str:
    """The same for equal JSON values only: 1, 1.0 and true differ, the order of keys does not count; objects are their fields."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_fields).encode()).hexdigest()


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def resident(key: str) -> int:
    """What the kernel says of this process's memory, in bytes; 0 where there is no /proc."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), 0)


def give_back() -> None:
    """Have the allocator give what is free back to the kernel (glibc), so that what is used next shows."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def peak_begins_here() -> None:
    """Have the kernel forget the peak of this process's memory so far; where it cannot, the peak is that of the whole process."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        pass


def _handed_over() -> int | None:
    """The bytes that this process has handed to write calls so far; None where the kernel does not tell."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


class Child:
    """The child's end: one contender, a directory, and a state that goes through the same steps as everybody's."""

    def __init__(self, contender: str, workload: str, workspace: str) -> None:
        self._workspace = Path(workspace)
        self._work = make_workload(workload)
        self.contender = CONTENDERS[contender](self._workspace, self._work)
        give_back()
        self._alone = resident("VmRSS")

    def save(self, step: int) -> dict[str, float]:
        """Take one step of the run, then save; only the save is timed."""
        self._work.step(step)
        return self._timed_save(step)

    def leap(self, step: int) -> dict[str, float]:
        """As `save`, after a bigger step."""
        self._work.leap(step)
        return self._timed_save(step)

    def skip(self, step: int) -> dict[str, float]:
        """Take a step without a save."""
        self._work.step(step)
        return {}

    def block(self, step: int) -> dict[str, float]:
        """Take one step, then save in the background: the thread time that the caller gives, beside that of a bare encode.

        What is left to do in the background is waited for outside of the times, as a loop does whose steps take longer.
        """
        self._work.step(step)
        if not isinstance(self.contender, BackgroundRun):
            raise BenchError(f"{self.contender.name} saves in the caller's thread")
        gc.collect()
        bare, blocking = self.contender.block(step)
        return {"bare": 1e3 * bare, "blocking": 1e3 * blocking}

    def _timed_save(self, step: int) -> dict[str, float]:
        size, handed = self.contender.file_bytes(), _handed_over()
        blocked = 0.0

        def call() -> None:
            nonlocal blocked
            start = time.perf_counter()
            self.contender.submit(step)
            blocked = time.perf_counter() - start
            self.contender.finish()

        _, times = timed(call)
        now = _handed_over()
        written = self.contender.file_bytes() - size if handed is None or now is None else now - handed
        self._settle()
        return {**times, "blocking": 1e3 * blocked, "bytes": written}

    def _settle(self) -> None:
        """Flush what a save left unsynced: the disk would do so in the middle of the next contender's time."""
        for path in self._workspace.iterdir():
            sync(path)
        sync(self._workspace)

    def file(self) -> dict[str, float]:
        """What lies on the disk."""
        return {"file": self.contender.file_bytes()}

    def load(self) -> dict[str, float]:
        """Load, timed."""
        return timed(self.contender.load)[1]

    def load_step(self, step: int) -> dict[str, float]:
        """Load an earlier step, timed."""
        return timed(lambda: self.contender.load_step(step))[1]

    def codec(self, step: int) -> dict[str, float]:
        """Encode and decode, without a disk."""
        contender = self.contender
        if not isinstance(contender, OneFile):
            raise BenchError(f"{contender.name} is no codec")
        data, encode = timed(lambda: contender.encode(step))
        _, decode = timed(lambda: contender.decode(data))
        return {"encode": encode["cpu"], "decode": decode["cpu"], "bytes": len(data)}

    def loop(self, first: int, steps: int, kind: str, pause: float) -> dict[str, float]:
        """A loop of so many steps, each with `pause` seconds of sleep, or of work in Python that takes about as long; milliseconds a step."""
        gc.collect()
        start = time.perf_counter()
        for step in range(first, first + steps):
            self._work.step(step)
            if kind == "sleeping":
                time.sleep(pause)
            else:
                _busy(round(pause * 2e7))
            self.contender.submit(step)
        self.contender.finish()
        wall = 1e3 * (time.perf_counter() - start) / steps
        self._settle()
        return {"wall": wall}

    def peak(self, *, begin: bool) -> dict[str, float]:
        """Begin to watch the peak of memory, or say by how much it was above what the state alone takes."""
        if begin:
            give_back()
            peak_begins_here()
            return {}
        return {"memory": max(0, resident("VmHWM") - self._alone)}

    def saved(self, step: int) -> dict[str, str]:
        """The digest of the payload as the replaced module would have made it."""
        return {"digest": digest(self._work.plain(step))}

    def loaded(self) -> dict[str, str]:
        """The digest of what the contender loads."""
        return {"digest": digest(self.contender.load())}


def _busy(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number & 3
    return total


def main() -> None:
    """Answer one question a line until there are no more."""
    # The answers have standard output to themselves; what a library prints joins the errors.
    answers, sys.stdout = sys.stdout, sys.stderr
    child = Child(*sys.argv[1:])
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        try:
            answer = child.peak(begin=arguments[0]) if what == "peak" else getattr(child, what)(*arguments)
        except Exception as error:  # noqa: BLE001 (whatever a contender raises: the parent decides whether it is left out)
            place = traceback.extract_tb(error.__traceback__)[-1]
            answer = {"failed": [f"{type(error).__name__}: {error}", f"{Path(place.filename).name}, line {place.lineno}"]}
        print(json.dumps(answer), file=answers, flush=True)
    child.contender.close()


if __name__ == "__main__":
    main()
