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

from .report import Ratio, table
from .save import shape_names
from .shapes import SHAPES, change, make, old_serialize
from .worker import BenchError

HELP = "one value across the steps of a run, and the difference of two steps"
STEPS, QUICK_STEPS = 1000, 100
ROUNDS, QUICK_ROUNDS = 5, 2
# A series takes at most this much of the time of decoding every step.
FLOOR = 0.40
VALUE = "eval_prev_acc"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    parser.add_argument("--shapes", type=shape_names, default=["usual"], metavar="NAME,...", help=f"of {', '.join(SHAPES)} (default: usual)")
    parser.add_argument("--steps", type=int, metavar="N", help=f"how many steps the run has (default: {STEPS})")
    parser.add_argument("--diff", type=shape_names, default=["large"], metavar="NAME,...", help="of what two steps are compared (default: large)")
    parser.add_argument("--check", action="store_true", help="exit with 1, naming it, when a series takes longer than the floor allows")


def run(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Measure and print; the results for `--json`, and what fell short for `--check`."""
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    steps = arguments.steps or (QUICK_STEPS if arguments.quick else STEPS)
    series = {shape: _series(folder / f"series-{shape}", shape, steps, rounds) for shape in arguments.shapes}
    diffs = {shape: _diffs(folder / f"diff-{shape}", shape, rounds) for shape in arguments.diff}
    rows, short = [["", "every step decoded", "series", "of that time", "at most"]], []
    for shape, samples in series.items():
        ratio = Ratio.of(samples["series_seconds"], samples["decoded_seconds"])
        times = [f"{1e3 * sorted(each)[len(each) // 2] / steps:.2f} ms a step" for each in (samples["decoded_seconds"], samples["series_seconds"])]
        rows.append([shape, *times, str(ratio), f"{FLOOR:.2f}x"])
        if ratio.median > FLOOR:
            short.append(f"{shape}: a series takes {ratio.median:.2f} of the time of decoding every step, at most {FLOOR}")
    print(f"\n`{VALUE}` across {steps} steps, {rounds} rounds\n{table(rows)}")
    rows = [["", "difference of two steps", "changes"]]
    rows += [[shape, f"{sorted(each['seconds'])[len(each['seconds']) // 2]:.3f} s", f"{each['changes']}"] for shape, each in diffs.items()]
    print(f"\nread, decoded and compared\n{table(rows)}")
    return {"steps": steps, "rounds": rounds, "series": series, "diffs": diffs}, short


def _write(folder: Path, shape: str, steps: int) -> list[float]:
    """A run of so many steps; what `VALUE` was in each."""
    state, values = make(shape), []
    with CheckpointManager(folder, fsync=False, round_trip="never") as manager:
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

    samples: dict[str, list[float]] = {"series_seconds": [], "decoded_seconds": []}
    for number in range(rounds):
        for name, call in (("series_seconds", series), ("decoded_seconds", decoded))[:: -1 if number % 2 else 1]:
            result, seconds = _timed(call)
            if result != expected:
                raise BenchError(f"{name.partition('_')[0]}: not the values that were saved, so its times would mean nothing")
            samples[name].append(seconds)
    return samples


def _diffs(folder: Path, shape: str, rounds: int) -> dict[str, Any]:
    _write(folder, shape, 2)
    samples = []
    for _ in range(rounds):
        with History(folder) as history:
            found, seconds = _timed(lambda: history.diff(0, 1))
        if not any(change.path == f"$.{VALUE}" for change in found):
            raise BenchError("diff: a change is missing, so its times would mean nothing")
        samples.append(seconds)
    return {"seconds": samples, "changes": len(found)}


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start
