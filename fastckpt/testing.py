"""For a test of your own training: that a run which is killed and resumed, at every step, ends as one that was not."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from .errors import ConflictError
from .manager import CheckpointManager
from .resume import capture_rng
from .storage import exists, temporary_folder
from .tree import Difference, abridged, difference

__all__ = ["ResumeError", "check_resume"]

T = TypeVar("T")

# Where the global generators stand when a process begins. The same in an uninterrupted run and up to the kill, as if they were one
# process, and another after it, as every fresh process has its own; and each time the same, so that what is found is found again.
_SEED, _OTHER_SEEDS = 2024, 1_000_000


class ResumeError(AssertionError):
    """A resumed run is not what it would have been: `killed_after` that step (None: no kill was needed), the first `step` that differs.

    `where` is the path of the first difference in its state (`$.answers['q_3']`), empty where the state is the same.
    """

    def __init__(self, message: str, *, killed_after: int | None = None, step: int | None = None, where: str = "") -> None:
        super().__init__(message)
        self.killed_after = killed_after
        self.step = step
        self.where = where


def check_resume(
    train: Callable[[T, int], T | None],
    initial: Callable[[], T],
    steps: int,
    *,
    type: Any = Any,
    before_save: Callable[[T], T | None] | None = None,
    restored: Callable[[T], T | None] | None = None,
    kill_at: Iterable[int] | None = None,
    compare_rng: bool = True,
    directory: str | os.PathLike[str] | None = None,
    start_method: Literal["fork", "spawn"] | None = None,
) -> None:
    """Kill and resume a training at every step, and compare it with an uninterrupted run: every state, and the random numbers.

    `train(state, step)` trains one step, `initial()` makes the state before the first, `type` is what a manager restores them as. Each
    run is a process of its own that saves every step. For each step (those of `kill_at`) one is killed when that step is durable and
    the next one is trained but not saved; another process, whose random numbers are others, calls `initial()`, resumes and trains
    to the end. `before_save(state)` is called before every save and `restored(state)` after every restore, where the program does
    something there (`state.rng = capture_rng()` and `restore_rng(state.rng)`). Each of the three changes the state or returns the new one.

    Equal must be, exactly, every step's state, and after every step that draws from it the global generator of `random`, and of NumPy
    where it is imported: what is drawn but not kept in the state would be drawn otherwise after a resume. `compare_rng=False` lets
    that pass where it does not matter, as long as the states agree.

    Processes are forked where they can be, so anything can be trained, whatever the tested program has imported; start it before
    there are threads. With "spawn" (the only way on Windows) each begins anew, which also finds what depends on the order of a set;
    `train` and the others must then be functions of a module. Files are in a folder that is removed, or stay in `directory`.

    Raises `ResumeError`, an `AssertionError`, for the first difference, and where training or saving fails; `ValueError` for a step of
    `kill_at` that is none, `ConflictError` where runs are in `directory` already.
    """
    kills = list(range(steps) if kill_at is None else kill_at)
    if steps < 1 or not all(0 <= step < steps for step in kills):
        raise ValueError(f"expected steps from 1 on, and of kill_at steps from 0 to steps - 1, got {steps} and {kills}")
    method = start_method or ("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    program = _Program(train, initial, type, before_save, restored, steps)
    with temporary_folder() if directory is None else nullcontext(os.fspath(directory)) as place:
        folders = {step: os.path.join(place, f"killed-{step}") for step in kills}
        uninterrupted = os.path.join(place, "uninterrupted")
        for folder in (uninterrupted, *folders.values()):
            if exists(file := os.path.join(folder, "checkpoint.fastckpt")):
                raise ConflictError("the check would go on with a run that is there", paths=(file,), remedy="choose an empty directory")
        check = _Check(program, multiprocessing.get_context(method), compare_rng=compare_rng)
        check.run_uninterrupted(uninterrupted)
        for step, folder in folders.items():
            check.kill_and_resume(folder, step)


class _Program(NamedTuple):
    """What every process runs."""

    train: Callable[[Any, int], Any]
    initial: Callable[[], Any]
    type: Any
    before_save: Callable[[Any], Any] | None
    restored: Callable[[Any], Any] | None
    steps: int


class _Told(msgspec.Struct, array_like=True):
    """What a process says: of a step that is saved, where the generators stood before and after it; of a failure, its traceback."""

    step: int
    before: dict[str, bytes] = {}
    after: dict[str, bytes] = {}
    failure: str = ""
    ended: bool = False


class _Check:
    """An uninterrupted run, and how others compare with it."""

    def __init__(self, program: _Program, context: Any, *, compare_rng: bool) -> None:
        self.program = program
        self.context = context
        self.compare_rng = compare_rng
        self.states: list[Any] = []
        self.told: dict[int, _Told] = {}

    def run_uninterrupted(self, folder: str) -> None:
        self.told = self._run(folder, _SEED, None, "the uninterrupted run")
        with CheckpointManager(folder, self.program.type, read_only=True) as manager:
            self.states = [manager.restore(step) for step in range(self.program.steps)]

    def kill_and_resume(self, folder: str, killed_after: int) -> None:
        told = self._run(folder, _SEED, killed_after, f"the run to be killed after step {killed_after}")
        told |= self._run(folder, _OTHER_SEEDS + killed_after, None, f"the run resumed after step {killed_after}", killed_after)
        with CheckpointManager(folder, self.program.type, read_only=True) as manager:
            for step, expected in enumerate(self.states):
                found = difference(expected, manager.restore(step))
                elsewhere = [name for name in ("random", "numpy.random") if self._is_elsewhere(name, self.told[step], told[step])]
                if found is not None or (elsewhere and self.compare_rng):
                    raise _unequal(step, killed_after, found, elsewhere)

    def _is_elsewhere(self, name: str, expected: _Told, got: _Told) -> bool:
        """Whether a generator that was drawn from stands elsewhere. One that nobody uses does so in every process, and that is no harm."""
        used = any(name in told.before and told.before[name] != told.after.get(name) for told in (expected, got))
        return used and expected.after.get(name) != got.after.get(name)

    def _run(self, folder: str, seed: int, kill_after: int | None, which: str, killed_after: int | None = None) -> dict[int, _Told]:
        """Train in a process of its own, until it ends or is killed; what it told of each step that it saved."""
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_child, args=(self.program, folder, seed, kill_after, ours, theirs))
        process.start()
        theirs.close()
        told: dict[int, _Told] = {}
        try:
            while True:
                try:
                    one = msgspec.msgpack.decode(ours.recv_bytes(), type=_Told)
                except EOFError:
                    process.join()
                    one = _Told(max(told, default=-1) + 1, failure=f"its process ended with {process.exitcode}; see what it printed")
                if one.failure:
                    raise ResumeError(f"{which} failed at step {one.step}: {one.failure}", killed_after=killed_after, step=one.step)
                if one.ended:
                    return told
                told[one.step] = one
        finally:
            process.kill()
            process.join()
            process.close()
            ours.close()


def _unequal(step: int, killed_after: int, found: Difference | None, elsewhere: list[str]) -> ResumeError:
    text = f"resumed after step {killed_after}, step {step} is not that of an uninterrupted run"
    remedy = "keep in the state what it depends on"
    if step <= killed_after:
        text = f"step {step} comes out different each time, with no kill before it"
        remedy = "let it depend on the state and the step alone, and seed in `initial` what draws random numbers"
    elif elsewhere:
        remedy = "draw from generators that are in the state, or keep these there (before_save= with capture_rng, restored= with restore_rng)"
    text += f" at `{found.where}`: {_shown(found)}" if found is not None else ": its state is"
    if elsewhere:
        text += f", {'and' if found is not None else 'but'} drew from a global generator that stood elsewhere ({', '.join(elsewhere)})"
    return ResumeError(f"{text}; {remedy}", killed_after=killed_after, step=step, where="" if found is None else found.where)


def _shown(found: Difference) -> str:
    expected, got = (
        f"{len(each)} items" if isinstance(each, (dict, list, tuple, set, frozenset)) else abridged(each) for each in (found.saved, found.loaded)
    )
    return f"expected {expected}, got {got}" if expected != got else found.reason.replace("would come back", "came out")


# --- in the process that trains ----------------------------------------------------------------------------------------


def _child(program: _Program, folder: str, seed: int, kill_after: int | None, ours: Any, theirs: Any) -> None:
    """Train, from where the run in `folder` ends; with `kill_after`, wait to be killed when the step after that one is trained."""
    ours.close()  # a forked copy, which would hide the end of the process that waits for what is told here

    def tell(told: _Told) -> None:
        theirs.send_bytes(msgspec.msgpack.encode(told))

    def end() -> None:
        tell(_Told(step, ended=True))
        theirs.recv_bytes()  # never comes; the kill does

    random.seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed)
    step = -1
    try:
        state = program.initial()
        with CheckpointManager(folder, program.type, fsync=False, round_trip="always") as manager:
            step = manager.next_step()
            if step > 0:
                state = _changed(manager.restore(), program.restored)
            for step in range(step, program.steps):  # noqa: B020  (where it begins is what a failure before it is said of)
                before = _generators()
                trained = program.train(state, step)
                state = state if trained is None else trained
                if kill_after is not None and step > kill_after:
                    break
                state = _changed(state, program.before_save)
                after = _generators()
                manager.save(step, state)
                tell(_Told(step, before, after))
            if kill_after is not None:
                end()
        end()
    except Exception:  # noqa: BLE001  (whatever the program that is tested raises is what its test must show)
        tell(_Told(step, failure=traceback.format_exc()))


def _changed(state: Any, change: Callable[[Any], Any] | None) -> Any:
    changed = None if change is None else change(state)
    return state if changed is None else changed


def _generators() -> dict[str, bytes]:
    """A digest of where each global generator stands."""
    state = capture_rng()
    stands = {"random": state.python} if state.numpy is None else {"random": state.python, "numpy.random": state.numpy}
    return {name: hashlib.blake2b(msgspec.msgpack.encode(each), digest_size=16).digest() for name, each in stands.items()}
