"""The case `run`: every step of a run, durable. What a step waits for, what it writes, and what the caller gives in the background.

Contenders take turns, in an order that alternates; before anything is timed, each must load exactly what it was given. Steps are
those of a real optimisation (20 answers flip, an edit comes and one goes, a case is replaced), then ones that replace a whole
case pack.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .contenders import RUNS, BackgroundRun, Orjson, Replaced, Run
from .report import Ratio, table
from .save import compare, shape_names
from .shapes import SHAPES
from .worker import Worker, in_turn, require

HELP = "every step of a run: save time, bytes written, and blocking time in the background"
ROUNDS = {"small": 40, "usual": 40, "usual-cjk": 30, "large": 15}
QUICK_ROUNDS = {"small": 5, "usual": 4, "usual-cjk": 4, "large": 2}
OURS, BACKGROUND = Run.name, BackgroundRun.name


@dataclass(frozen=True)
class Floor:
    """One floor: what is compared, at least (or at most) how much, and what was measured."""

    shape: str
    what: str
    floor: float
    measured: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the median is on the right side."""
        return self.measured <= self.floor if self.at_most else self.measured >= self.floor

    def __str__(self) -> str:
        return f"{self.shape}, {self.what}: {self.measured:.2f}, the floor is {'at most' if self.at_most else 'at least'} {self.floor}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    parser.add_argument(
        "--shapes", type=shape_names, default=["usual", "large"], metavar="NAME,...", help=f"of {', '.join(SHAPES)} (default: usual,large)"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1, naming what fell short, when a floor is not reached")


def run(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Measure and print; the results for `--json`, and what fell short for `--check`."""
    require(RUNS)
    results: dict[str, Any] = {}
    short: list[str] = []
    for shape in arguments.shapes:
        rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)[shape]
        samples = measure(shape, rounds, warm_up=2, folder=folder / shape)
        floors = _floors(shape, samples)
        print(f"\n{shape}, {rounds} rounds\n{_report(samples, floors)}", flush=True)
        short += [str(floor) for floor in floors if not floor.reached]
        results[shape] = {"rounds": rounds, "samples": samples, "floors": [{"what": str(floor), "reached": floor.reached} for floor in floors]}
    print("\nTimes are medians; ratios are of the replaced module's save, which does not sync, round by round: median, 10th to 90th percentile.")
    return {"shapes": results}, short


def measure(shape: str, rounds: int, warm_up: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Every sample by contender and measure, in the order of the rounds."""
    folder.mkdir()
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in RUNS}
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(name, shape, folder / str(number))) for number, name in enumerate(RUNS)]
        for step in range(warm_up):
            for worker in workers:
                worker.ask("save", step)
        compare(workers, warm_up - 1)
        step = warm_up
        for number in range(rounds):
            order = in_turn(workers, number)
            # The bigger step every fifth round, as often as it takes for a median.
            for what in ("save", "save_pack") if number % 2 else ("save",):
                for worker in order:
                    for key, value in worker.ask(what, step).items():
                        samples[worker.contender].setdefault(f"{what}_{key}", []).append(value)
                step += 1
            background = next(worker for worker in workers if worker.contender == BACKGROUND)
            for key, value in background.ask("block", step).items():
                samples[BACKGROUND].setdefault(key, []).append(value)
            step += 1
    return samples


def _floors(shape: str, samples: dict[str, dict[str, list[float]]]) -> list[Floor]:
    old, orjson, ours, background = (samples[name] for name in (Replaced.name, Orjson.name, OURS, BACKGROUND))
    blocking, bare = statistics.median(background["blocking_seconds"]), statistics.median(background["bare_seconds"])
    least = {"usual": 15.0, "large": 20.0}.get(shape, 0.0)
    return [
        Floor(shape, "times less to save than the replaced module", least, Ratio.of(old["save_seconds"], ours["save_seconds"]).median),
        Floor(shape, "times less to save than orjson with fsync", 1.2, Ratio.of(orjson["save_seconds"], ours["save_seconds"]).median),
        Floor(shape, "times fewer bytes than JSON", 80.0, Ratio.of(old["save_bytes"], ours["save_bytes"]).median),
        Floor(shape, "times less to save, a pack replaced", 8.0, Ratio.of(old["save_pack_seconds"], ours["save_pack_seconds"]).median),
        Floor(shape, "blocking seconds over 1.3 x a bare encode + 0.1 ms", 1.0, blocking / (1.3 * bare + 1e-4), at_most=True),
        Floor(
            shape,
            "times less blocking than the replaced module",
            {"usual": 30.0, "large": 20.0}.get(shape, 0.0),
            statistics.median(old["save_cpu_seconds"]) / blocking,
        ),
    ]


def _report(samples: dict[str, dict[str, list[float]]], floors: list[Floor]) -> str:
    rows = [["", "save ms", "less", "CPU ms", "kB written", "fewer", "pack replaced ms", "less"]]
    for name, own in samples.items():
        ratio = {key: str(Ratio.of(samples[Replaced.name][key], values)) for key, values in own.items() if key in samples[Replaced.name]}
        median = {key: statistics.median(values) for key, values in own.items()}
        rows.append([name, f"{median['save_seconds'] * 1e3:.1f}", ratio["save_seconds"], f"{median['save_cpu_seconds'] * 1e3:.1f}",
                     f"{median['save_bytes'] / 1e3:.1f}", ratio["save_bytes"].partition(" ")[0],
                     f"{median['save_pack_seconds'] * 1e3:.1f}", ratio["save_pack_seconds"].partition(" ")[0]])  # fmt: skip
    background = {key: statistics.median(values) * 1e3 for key, values in samples[BACKGROUND].items()}
    said = [f"blocking in the background: {background['blocking_seconds']:.2f} ms of thread time, a bare encode {background['bare_seconds']:.2f} ms"]
    said += [f"{'reached    ' if floor.reached else 'NOT REACHED'} {floor}" for floor in floors]
    return "\n".join([table(rows), *said])
