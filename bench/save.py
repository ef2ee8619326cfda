"""The case `save`: one checkpoint in one file. Save total time (until the file is as safe as the contender makes it), bytes, load time.

The replaced module and the others take turns, in an order that alternates; before anything is timed, each must load exactly what
it was given.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .contenders import CONTENDERS, Fastckpt, Replaced
from .report import Ratio, table
from .shapes import SHAPES
from .worker import BenchError, Worker, in_turn, require

HELP = "one checkpoint in one file: save total time, bytes and load time"
BASELINE, OURS = Replaced.name, Fastckpt.name
# Enough for a steady median within three minutes on two slow cores: a round of `large` takes about two seconds.
ROUNDS = {"small": 60, "usual": 40, "usual-cjk": 40, "large": 15}
QUICK_ROUNDS = {"small": 8, "usual": 5, "usual-cjk": 5, "large": 3}
# What ours must reach against the replaced module, which does not even sync.
FLOORS = {
    "usual": {"save_seconds": 3.3, "bytes": 3.0, "load_seconds": 1.3},
    "usual-cjk": {"save_seconds": 2.2, "bytes": 3.0, "load_seconds": 1.8},
    "large": {"save_seconds": 5.0, "bytes": 3.0, "load_seconds": 1.5},
}
MEASURES = {"save_seconds": "save", "bytes": "file", "load_seconds": "load"}


@dataclass(frozen=True)
class Floor:
    """One floor, and what was measured: both as the ratio of the replaced module to ours."""

    shape: str
    measure: str
    floor: float
    measured: float

    @property
    def reached(self) -> bool:
        """Whether the median is at or above the floor."""
        return self.measured >= self.floor

    def __str__(self) -> str:
        return f"{OURS}, {self.shape}, {MEASURES[self.measure]}: {self.measured:.2f}x of the replaced module, the floor is {self.floor}x"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    parser.add_argument(
        "--shapes",
        type=shape_names,
        default=list(SHAPES),
        metavar="NAME,...",
        help=f"which states to save, of {', '.join(SHAPES)} (default: all)",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1, naming what fell short, when a floor is not reached")


def shape_names(text: str) -> list[str]:
    """The names of shapes in an option, or why it is none."""
    names = text.split(",")
    for name in names:
        if name not in SHAPES:
            raise argparse.ArgumentTypeError(f"no shape {name!r}; there are {', '.join(SHAPES)}")
    return names


def run(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Measure and print; the results for `--json`, and what fell short for `--check`."""
    require(CONTENDERS)
    results: dict[str, Any] = {}
    short: list[str] = []
    for shape in arguments.shapes:
        rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)[shape]
        samples = measure(shape, rounds, warm_up=1 if arguments.quick else 3, folder=folder / shape)
        ratios = {name: {key: Ratio.of(samples[BASELINE][key], own[key]) for key in own} for name, own in samples.items()}
        floors = [Floor(shape, key, floor, ratios[OURS][key].median) for key, floor in FLOORS.get(shape, {}).items()]
        print(f"\n{shape}, {rounds} rounds\n{_report(samples, ratios, floors)}", flush=True)
        short += [str(floor) for floor in floors if not floor.reached]
        results[shape] = {
            "rounds": rounds,
            "samples": samples,
            "ratios": {name: {key: asdict(ratio) for key, ratio in own.items()} for name, own in ratios.items()},
            "floors": [{**asdict(floor), "reached": floor.reached} for floor in floors],
        }
    print("\nTimes and sizes are medians; ratios are to the replaced module, round by round: their median, and 10th to 90th percentile.")
    return {"baseline": BASELINE, "shapes": results}, short


def measure(shape: str, rounds: int, warm_up: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Every sample by contender and measure, in the order of the rounds."""
    folder.mkdir()
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in CONTENDERS}
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(name, shape, folder / str(number))) for number, name in enumerate(CONTENDERS)]
        for step in range(warm_up):
            for worker in workers:
                worker.ask("save", step)
                worker.ask("load", step)
        compare(workers, warm_up - 1)
        for number in range(rounds):
            step = warm_up + number
            order = in_turn(workers, number)
            for what in ("save", "load"):
                for worker in order:
                    for key, value in worker.ask(what, step).items():
                        samples[worker.contender].setdefault(key if key == "bytes" else f"{what}_{key}", []).append(value)
    return samples


def compare(workers: list[Worker], step: int) -> None:
    """Refuse to time a contender that does not load what the replaced module's payload would have been."""
    expected = workers[0].ask("saved", step)
    for worker in workers:
        if worker.ask("loaded", step) != expected:
            raise BenchError(f"{worker.contender} does not load the payload that was saved, so its times would mean nothing")


def _report(samples: dict[str, dict[str, list[float]]], ratios: dict[str, dict[str, Ratio]], floors: list[Floor]) -> str:
    rows = [["", "save ms", "faster", "CPU ms", "less", "MB", "smaller", "load ms", "faster"]]
    for name, own in samples.items():
        median = {key: statistics.median(values) for key, values in own.items()}
        times = {key: "" if name == BASELINE else str(ratio) for key, ratio in ratios[name].items()}
        rows.append(
            [
                name,
                *(f"{median['save_seconds'] * 1e3:.1f}", times["save_seconds"]),
                *(f"{median['save_cpu_seconds'] * 1e3:.1f}", times["save_cpu_seconds"].partition(" ")[0]),
                *(f"{median['bytes'] / 1e6:.3f}", times["bytes"].partition(" ")[0]),
                *(f"{median['load_seconds'] * 1e3:.1f}", times["load_seconds"]),
            ]
        )
    if floors:
        said = {floor.measure: f"{floor.floor}x {'reached' if floor.reached else 'NOT REACHED'}" for floor in floors}
        rows.append([f"floor for {OURS}", "", said["save_seconds"], "", "", "", said["bytes"], "", said["load_seconds"]])
    return table(rows)
