"""The case `restore`: going on from a run of 10, 1,000 and 10,000 steps. Its newest step, and one in the middle, from opening the run on.

Each time the run is opened anew; the file itself is in the page cache by then. Beside it stands what loads a single file of the
same state, in the same process. Before anything is timed, each must load exactly what was saved.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastckpt import CheckpointManager

from .contenders import CONTENDERS, CompactJson, Orjson
from .options import add_states, positive, states
from .report import Outcome, Picture, amount, named, table
from .worker import BenchError, able, digest, holding, timed
from .workloads import make_workload

HELP = "the newest step of 10, 1,000 and 10,000, and one in the middle"
SIZES, QUICK_SIZES = [10, 1000, 10_000], [10, 100]
ROUNDS, QUICK_ROUNDS = 15, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    add_states(parser, ["usual"])
    parser.add_argument("--steps", type=_sizes, metavar="N,...", help=f"how many steps the runs have (default: {','.join(map(str, SIZES))})")


def _sizes(text: str) -> list[int]:
    sizes = [positive(part) for part in text.split(",")]
    for size in sizes:
        if sizes.count(size) > 1:
            raise argparse.ArgumentTypeError(f"{size} steps are given twice")
    return sizes


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print."""
    outcome, lines = Outcome(), dict[str, list[tuple[float, float]]]()
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    sizes = sorted(arguments.steps or (QUICK_SIZES if arguments.quick else SIZES))
    for label, workload in states(arguments, sizes[-1]):
        rows = [["", "file", "newest", "10-90%", "in the middle", "10-90%"]]
        for size in sizes:
            calls, file_bytes = _written(folder / label / str(size), workload, size)
            samples = _timed(calls, rounds)
            outcome.add(label, f"{size} steps", "file", unit="B", samples=[file_bytes])
            row = [f"{size} steps", amount(file_bytes, "B")]
            for which in ("newest", "middle"):
                figure = outcome.add(label, f"{size} steps", which, unit="ms", samples=samples[which])
                row += [amount(figure.median, "ms"), f"{amount(figure.at(10), 'ms')} to {amount(figure.at(90), 'ms')}"]
                lines.setdefault(named(label, which), []).append((float(size), figure.median))
            rows.append(row)
        for name, values in _timed(_single(folder / label / "single", workload), rounds).items():
            figure = outcome.add(label, name, "newest", unit="ms", samples=values)
            rows.append([name, "", amount(figure.median, "ms"), f"{amount(figure.at(10), 'ms')} to {amount(figure.at(90), 'ms')}", "", ""])
        print(f"\n{label}, {rounds} rounds\n{table(rows)}", flush=True)
    outcome.picture = Picture("Restoring a step of a run", "steps in the run", "milliseconds", lines, logarithmic=True)
    return outcome


def _written(folder: Path, workload: str, steps: int) -> tuple[dict[str, Callable[[], Any]], int]:
    """A run of so many steps, the ways to restore from it, and the size of its file."""
    work = make_workload(workload)
    middle, expected = steps // 2, ["", ""]
    # Durable, as a run is: opening looks at every step that may not have reached the disk.
    with CheckpointManager(folder, work.type, round_trip="never") as manager:
        for step in range(steps):
            work.step(step)
            manager.save(step, work.typed(step))
            if step in (middle, steps - 1):
                expected[step == steps - 1] = digest(work.plain(step))
        path = Path(manager.path)
    if middle == steps - 1:
        expected[0] = expected[1]

    def newest() -> Any:
        with CheckpointManager(folder, work.type, read_only=True) as reader:
            return reader.restore()

    def in_the_middle() -> Any:
        with CheckpointManager(folder, work.type, read_only=True) as reader:
            return reader.restore(middle)

    for restore, right in ((in_the_middle, expected[0]), (newest, expected[1])):
        if digest(restore()) != right:
            raise BenchError(f"a run of {steps} steps does not restore what was saved, so its times would mean nothing")
    return {"newest": newest, "middle": in_the_middle}, path.stat().st_size


def _single(folder: Path, workload: str) -> dict[str, Callable[[], Any]]:
    """The ways to load one file of the newest state; of a file of one's own, those that can hold it."""
    work = make_workload(workload)
    calls: dict[str, Callable[[], Any]] = {}
    for name in holding(able([CompactJson.name, Orjson.name]), workload, folder):
        own = folder / str(len(calls))
        own.mkdir(parents=True)
        one = CONTENDERS[name](own, work)
        one.save(0)
        if digest(one.load()) != digest(work.plain(0)):
            raise BenchError(f"{name} does not load the payload that was saved, so its times would mean nothing")
        calls[f"{name}, one file"] = one.load
    return calls


def _timed(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name, call in list(calls.items())[:: -1 if number % 2 else 1]:
            samples[name].append(timed(call)[1]["total"])
    return samples
