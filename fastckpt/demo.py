"""The demo: a small optimisation that checkpoints every step, is killed in the middle, and goes on as if it had not been.

It is also the shortest complete example of a training loop: `child` below.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.progress import Progress

from .console import console_of, new_table, say, size_text
from .errors import CheckpointError, CheckpointWarning, ConflictError
from .manager import CheckpointManager
from .migrate import BYTES, Migration, migrate
from .storage import exists, open_file, publish
from .tree import difference

__all__ = ["Outcome", "child", "run", "show"]

# Cases that are kept with their traces, texts in a trace, words in a text; as in the optimisation of an agent's skills.
_CASES, _TEXTS, _WORDS = 60, 8, 80
_EDITS = 30
_FAULT = "report it as a fault of fastckpt"


@dataclasses.dataclass
class Case:
    """A case that was looked at: what was asked, how it scored, what the agent did."""

    question: str
    correct: bool
    scores: tuple[float, float]
    trace: list[str]


@dataclasses.dataclass
class Edit:
    """A change of a prompt that was tried and rejected."""

    step: int
    content: str
    delta: float


@dataclasses.dataclass
class State:
    """All that the optimisation must have to go on exactly: some hundreds of kilobytes, of which a step changes little."""

    step: int = 0
    accuracy: float = 0.5
    answers: dict[str, bool] = dataclasses.field(default_factory=dict)
    votes: dict[int, int] = dataclasses.field(default_factory=dict)
    seen: set[str] = dataclasses.field(default_factory=set)
    rejected: list[Edit] = dataclasses.field(default_factory=list)
    cases: list[Case] = dataclasses.field(default_factory=list)
    rng: tuple[int, tuple[int, ...], float | None] = (0, (), None)


class Outcome(NamedTuple):
    """What happened: the last step acknowledged before the kill (None: it was faster), where it went on and what it said of it; and figures.

    Sizes in bytes, times in seconds; those of JSON are means of a sample, a step each.
    """

    steps: int
    acknowledged: int | None
    resumed: int
    warnings: list[str]
    run_bytes: int
    save_seconds: float
    json_bytes: float
    json_seconds: float
    migration: Migration


def _words() -> tuple[list[str], list[float]]:
    r = random.Random(11)
    words = ["".join(r.choices("etaoinshrdlucmfwypvbgkjqxz", range(26, 0, -1), k=r.randint(2, 10))) for _ in range(4000)]
    return words, list(itertools.accumulate(1 / (i + 2) for i in range(4000)))  # as those of a natural language are distributed (Zipf)


def _begin() -> State:
    """The state before the first step; the same one in every process."""
    words = _words()
    r = random.Random(7)
    cases = [_case(r, words) for _ in range(_CASES)]
    return State(cases=cases, rng=r.getstate())


def _case(r: random.Random, words: tuple[list[str], list[float]]) -> Case:
    trace = [" ".join(r.choices(words[0], cum_weights=words[1], k=_WORDS)) for _ in range(_TEXTS)]
    return Case(f"q_{r.randrange(400):03}", r.random() < 0.5, (r.random(), r.gauss(0, 1)), trace)


def _advance(state: State, step: int, words: tuple[list[str], list[float]]) -> None:
    """One step of training: everything that it does follows from the state alone."""
    r = random.Random()
    r.setstate(state.rng)
    for _ in range(4):
        question = f"q_{r.randrange(400):03}"
        state.answers[question] = r.random() < state.accuracy
        state.votes[r.randrange(20)] = r.randrange(1000)
        state.seen.add(question)
    state.cases[r.randrange(_CASES)] = _case(r, words)
    state.rejected.append(Edit(step, " ".join(r.choices(words[0], cum_weights=words[1], k=30)), r.gauss(0, 0.1)))
    del state.rejected[:-_EDITS]
    state.accuracy += (sum(state.answers.values()) / len(state.answers) - state.accuracy) / 10
    state.step, state.rng = step, r.getstate()


def child(folder: str, steps: int) -> None:
    """The training process: goes on where the run in `folder` ends, and writes to standard output what is durable, line by line."""
    words = _words()
    warnings.simplefilter("always", CheckpointWarning)
    warnings.showwarning = lambda message, *_, **__: _tell(f"warning {message}")
    try:
        with CheckpointManager(folder, State) as manager:
            state = manager.restore(default=_begin())
            _tell(f"from {manager.next_step()}")
            for step in range(manager.next_step(), steps):
                _advance(state, step, words)
                started = time.perf_counter()
                manager.save(step, state, metrics={"accuracy": state.accuracy})
                _tell(f"saved {step} {time.perf_counter() - started}")
    except CheckpointError as error:
        _tell(f"error {error}")


def _tell(line: str) -> None:
    sys.stdout.buffer.write(f"{line}\n".encode("utf-8", "backslashreplace"))
    sys.stdout.flush()


class _Child:
    """A training process, by what it tells."""

    def __init__(self, folder: str, steps: int, on_step: Callable[[], object]) -> None:
        self._on_step = on_step
        self.first = 0
        self.newest = -1
        self.seconds: list[float] = []
        self.warnings: list[str] = []
        code = "import sys; sys.path.append(sys.argv[1]); from fastckpt.demo import child; child(sys.argv[2], int(sys.argv[3]))"
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        command = [sys.executable, "-c", code, package, folder, str(steps)]
        # A session of its own, for Ctrl-C is this process's to handle.
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, **pipes, encoding="utf-8", start_new_session=True)

    def listen(self, until: int | None = None) -> bool:
        """Read what it tells, to its end or until it has acknowledged a step; whether it has."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, _, rest = line.partition(" ")
            if not line.endswith("\n"):
                break  # cut by the kill
            if word == "error":
                raise CheckpointError(rest.strip())
            if word == "warning":
                self.warnings.append(rest.strip())
            if word == "from":
                self.first = int(rest)
            elif word == "saved":
                step, seconds = rest.split()
                self.newest = int(step)
                self.seconds.append(float(seconds))
                self._on_step()
                if self.newest == until:
                    return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def run(folder: str, steps: int, on_step: Callable[[str], object]) -> Outcome:
    """Train in a process that is killed, in another one to the end, and here without interruption; and compare.

    `on_step` is called with what is being done, `2 * steps` times or a few less. The run is left in `folder`, the JSON of its final
    state and what it was migrated to in `folder/json`.

    Raises `ConflictError` when there is something already, `CheckpointError` when anything is not equal or not durable.
    """
    source = os.path.join(folder, "json", "checkpoint.json")
    file = os.path.join(folder, "checkpoint.fastckpt")
    for name in (file, source):
        if exists(name):
            raise ConflictError("the demo would replace a file", paths=(name,), remedy="choose another directory")

    # Killed at a moment that nobody can foresee, and then it may have saved more than it could tell.
    with _Child(folder, steps, lambda: on_step("training, to be killed")) as killed:
        until = random.randrange(steps // 4, 3 * steps // 4)
        if not killed.listen(until):
            raise _ended(killed)
        time.sleep(random.uniform(0, 0.01))
        killed.process.kill()
        killed.listen()
    with _Child(folder, steps, lambda: on_step("training on")) as resumed:
        resumed.listen()
        if resumed.process.wait() != 0:
            raise _ended(resumed)
    if not killed.newest + 1 <= resumed.first <= killed.newest + 2:
        raise CheckpointError(f"step {killed.newest} was acknowledged, but training went on with step {resumed.first}", remedy=_FAULT)

    sample = _compare(folder, source, steps, lambda: on_step("comparing with an uninterrupted run"))
    migration = migrate(source)
    if migration.proof != BYTES:
        raise CheckpointError(f"the JSON of the final state came back {migration.proof}", remedy=_FAULT)
    with open_file(file) as (_, status):
        run_bytes = status.st_size
    seconds = killed.seconds + resumed.seconds
    return Outcome(
        steps=steps,
        acknowledged=None if killed.newest == steps - 1 else killed.newest,
        resumed=resumed.first,
        warnings=resumed.warnings,
        run_bytes=run_bytes,
        save_seconds=sum(seconds) / len(seconds),
        json_bytes=sum(size for size, _ in sample) / len(sample),
        json_seconds=sum(taken for _, taken in sample) / len(sample),
        migration=migration,
    )


def _ended(process: _Child) -> CheckpointError:
    code = process.process.wait()
    return CheckpointError(f"the training process ended with {code} after step {process.newest}", remedy="see what it printed")


def _compare(folder: str, source: str, steps: int, on_step: Callable[[], object]) -> list[tuple[int, float]]:
    """Train without interruption and compare every step with what the run kept; what JSON costs, of a few steps: bytes and seconds."""
    sample: list[tuple[int, float]] = []
    words, state = _words(), _begin()
    with CheckpointManager(folder, State, read_only=True) as manager:
        for step in range(steps):
            _advance(state, step, words)
            if (found := difference(state, manager.restore(step))) is not None:
                fact = f"step {step} of the run is not that of an uninterrupted one: {found.reason} at `{found.where}`"
                raise CheckpointError(fact, remedy=_FAULT)
            if step % (steps // 10) == 0 or step == steps - 1:
                sample.append(_as_json(state, source))
            on_step()
    return sample


def _as_json(state: State, path: str) -> tuple[int, float]:
    """Save the state as the module that fastckpt replaces would: its bytes and the time it took."""
    started = time.perf_counter()
    plain: dict[str, Any] = dataclasses.asdict(state)
    plain["seen"] = sorted(state.seen)
    data = json.dumps(plain, ensure_ascii=False, indent=2).encode()
    publish(path, data, fsync=False)
    return len(data), time.perf_counter() - started


def show(folder: str, steps: int) -> None:
    """Run the demo, with a bar on a terminal, and say what happened and what it cost."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("training", total=2 * steps)
        done = run(folder, steps, lambda what: bar.update(task, advance=1, description=what))
    if done.acknowledged is None:
        say("killed    too late: training had ended")
    else:
        say(f"killed    with SIGKILL, after step {done.acknowledged} was acknowledged")
        extra = "" if done.resumed == done.acknowledged + 1 else " (it was durable already, though nobody had been told)"
        say(f"resumed   from step {done.resumed - 1}{extra}, with step {done.resumed}")
    for text in done.warnings:
        say(f"mended    {text}")
    say(f"equal     all {steps:,} steps, restored from one file, and the final state: as in a run without interruption")
    table = new_table(f"{steps:,} steps", "bytes in all", "a step", "time a step")
    costs = (done.json_bytes * steps, done.json_bytes, done.json_seconds), (done.run_bytes, done.run_bytes / steps, done.save_seconds)
    for label, (total, size, seconds) in zip(("a checkpoint.json each, not durable", "one checkpoint.fastckpt, durable"), costs, strict=True):
        table.add_row(label, size_text(total), size_text(size), f"{1e3 * seconds:.1f} ms")
    table.add_row("times better", *(f"{old / new:.1f}x" for old, new in zip(*costs, strict=True)))
    console_of(sys.stdout).print(table)
    moved = done.migration
    say(f"{moved.status} in {moved.seconds:.2f} s: {moved.source} -> {moved.target}")
    say(f"exported again: {moved.proof}")
