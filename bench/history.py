"""The case `history`: one value across the steps of a run against decoding every step, and the difference of two large steps.

Both read the same messages, the one to skip all but the value and the other to decode them; they take turns, each with the file opened
anew, so that neither finds what the other has read.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from fastckpt import CheckpointManager
from fastckpt.codec import Codec
from fastckpt.history import History
from fastckpt.reader import Reader

from .floors import floors
from .options import add_states, add_steps, state_names
from .report import Outcome, Picture, Ratio, named, table
from .shapes import SHAPES, change, make, old_serialize
from .worker import BenchError

HELP = "one value across the steps of a run, and the difference of two steps"
STEPS, QUICK_STEPS = 1000, 100
ROUNDS, QUICK_ROUNDS = 5, 2
VALUE = "eval_prev_acc"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    add_states(parser, ["usual"], file=False)
    add_steps(parser, STEPS)
    parser.add_argument("--diff", type=state_names, default=["large"], metavar="NAME,...", help="of what two steps are compared (default: large)")


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print."""
    if unknown := {*arguments.shapes, *arguments.diff} - {*SHAPES}:
        raise BenchError(f"no value `{VALUE}` in the states of {', '.join(sorted(unknown))}")
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    steps = arguments.steps or (QUICK_STEPS if arguments.quick else STEPS)
    outcome, most = Outcome(), floors("history")["series"]
    rows = [["", "every step decoded", "series", "of that time", "at most"]]
    for shape in arguments.shapes:
        samples = _series(folder / f"series-{shape}", shape, steps, rounds)
        ratio = outcome.ratios[named(shape, "series")] = Ratio.of(samples["series"], samples["decoded"])
        times = [outcome.add(shape, f"{name}, a step", unit="ms", samples=[1e3 * each / steps for each in own]) for name, own in samples.items()]
        rows.append([shape, *(f"{figure.median:.2f} ms a step" for figure in reversed(times)), str(ratio), f"{most:.2f}x"])
        if ratio.median > most:
            outcome.short.append(f"{shape}: a series takes {ratio.median:.2f} of the time of decoding every step, at most {most}")
    print(f"\n`{VALUE}` across {steps} steps, {rounds} rounds\n{table(rows)}")
    rows = [["", "difference of two steps", "changes"]]
    for shape in arguments.diff:
        seconds, changes = _diffs(folder / f"diff-{shape}", shape, rounds)
        rows.append([shape, f"{outcome.add(shape, 'diff of two steps', unit='ms', samples=seconds).median / 1e3:.3f} s", f"{changes}"])
    print(f"\nread, decoded and compared\n{table(rows)}")
    labels = [*arguments.shapes]
    bars = {
        name: [(float(at), outcome.figures[named(label, f"{name}, a step")].median) for at, label in enumerate(labels)]
        for name in ("decoded", "series")
    }
    outcome.picture = Picture("One value across the steps of a run", "state", "milliseconds a step", bars, labels=labels)
    outcome.details["steps"] = steps
    return outcome


def _write(folder: Path, shape: str, steps: int) -> list[float]:
    """A run of so many steps; what `VALUE` was in each."""
    state, values = make(shape), []
    # Durable, as a run is: opening looks at every step that may not have reached the disk.
    with CheckpointManager(folder, round_trip="never") as manager:
        for step in range(steps):
            change(state, step)
            values.append(state.eval_prev_acc)
            manager.save(step, old_serialize(state))
    return values


def _series(folder: Path, shape: str, steps: int, rounds: int) -> dict[str, list[float]]:
    expected = list(enumerate(_write(folder, shape, steps)))

    def series() -> list[tuple[int, float]]:
        with History(folder) as history:
            return [(step, value) for step, value in history.series(VALUE)]

    def decoded() -> list[tuple[int, float]]:
        codec = Codec()
        with closing(Reader(folder / "checkpoint.fastckpt")) as reader:
            entries = reversed(list(reader.live()))
            return [(entry.header.step or 0, codec.decode(reader.read(entry), entry.header.ext)[VALUE]) for entry in entries]

    samples: dict[str, list[float]] = {"series": [], "decoded": []}
    for number in range(rounds):
        for name, call in (("series", series), ("decoded", decoded))[:: -1 if number % 2 else 1]:
            result, seconds = _timed(call)
            if result != expected:
                raise BenchError(f"{name}: not the values that were saved, so its times would mean nothing")
            samples[name].append(seconds)
    return samples


def _diffs(folder: Path, shape: str, rounds: int) -> tuple[list[float], int]:
    """Milliseconds of each round, and how many changes there are."""
    _write(folder, shape, 2)
    samples = []
    for _ in range(rounds):
        with History(folder) as history:
            found, seconds = _timed(lambda: history.diff(0, 1))
        if not any(change.path == f"$.{VALUE}" for change in found):
            raise BenchError("diff: a change is missing, so its times would mean nothing")
        samples.append(1e3 * seconds)
    return samples, len(found)


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start
