"""The case `scale`: how cost grows with the size of the state while the same 20 records change in each step.

0.1 MB for 10,000 steps, 1 MB for 1,000, 10 MB for 100 and 100 MB for 10; contenders that write everything with each step, for 20.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from .contenders import ASYNC, BASELINE, SYNC, Orjson, Sqlite
from .floors import Floor, floors, judged
from .report import Outcome, Picture, amount, table
from .worker import Worker, able, compare, in_turn, workers

HELP = "0.1 to 100 MB with the same changes: how cost grows"
COMPARED = [BASELINE, Orjson.name, Sqlite.name, SYNC, ASYNC]
SIZES = {"0.1": 10_000, "1": 1000, "10": 100, "100": 10}
QUICK_SIZES = {"0.1": 20, "1": 10, "10": 5}
SLOW_STEPS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    parser.add_argument("--sizes", type=_sizes, metavar="MB,...", help=f"sizes of the state in MB (default: {','.join(SIZES)})")


def _sizes(text: str) -> list[str]:
    found: dict[float, str] = {}
    for part in text.split(","):
        try:
            size = float(part)
        except ValueError:
            size = 0
        if not 0 < size <= 1000:
            raise argparse.ArgumentTypeError(f"expected sizes in MB, above 0 and at most 1000, got {part!r}")
        if size in found:
            raise argparse.ArgumentTypeError(f"the size {part} is given twice")
        found[size] = part
    return list(found.values())


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print. A round is a step."""
    outcome, lines = Outcome(), dict[str, list[tuple[float, float]]]()
    compared = able(COMPARED)
    held, found = floors("scale"), list[Floor]()
    rows = [["", "", "steps", "blocking 50%", "99%", "total 50%", "99%", "written", "file"]]
    sizes = arguments.sizes or list(QUICK_SIZES if arguments.quick else SIZES)
    for size in sizes:
        steps = arguments.rounds or (QUICK_SIZES if arguments.quick else SIZES).get(size) or max(5, round(1000 / float(size)))
        samples = _measure(compared, f"MB:{size}", steps, folder / size)
        label = f"{size} MB"
        for name, own in samples.items():
            figures = {key: outcome.add(label, name, key, unit="B" if key in ("bytes", "file") else "ms", samples=own[key]) for key in own}
            row = [label, name, str(len(own["total"]))]
            row += [amount(figures[key].at(at), "ms") for key in ("blocking", "total") for at in (50, 99)]
            # The mean: in a median there would be no base.
            rows.append([*row, amount(statistics.mean(own["bytes"]), "B"), amount(figures["file"].median, "B")])
            lines.setdefault(name, []).append((float(size), figures["blocking"].median))
        own = samples[ASYNC]
        limit = 1.3 * statistics.median(own["bare encode"]) + 0.1
        what = f"{label}, blocking ms in the background over 1.3 x a bare encode + 0.1 ms"
        found.append(Floor(what, held["blocking_over_encode"], statistics.median(own["caller"]) / limit, at_most=True))
    if len(grown := [size for size in sizes if float(size) >= 1]) > 1:
        # The same steps of each: where a record changed before, chunks are cut finer, and less is written when it changes again.
        written = {size: outcome.figures[f"{size} MB: {SYNC}: bytes"].samples for size in (grown[0], grown[-1])}
        steps = min(map(len, written.values()))
        first, last = (statistics.median(samples[:steps]) for samples in written.values())
        what = f"bytes written in a step of {grown[-1]} MB over one of {grown[0]} MB, the first {steps}"
        found.append(Floor(what, held["bytes"], last / first, at_most=True))
    said, outcome.short = judged(found)
    print(f"\n{table(rows)}\n{said}")
    outcome.picture = Picture("What a step makes the loop wait", "MB of state", "milliseconds", lines, logarithmic=True)
    return outcome


def _measure(compared: list[str], workload: str, steps: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in compared}

    def put(worker: Worker, what: str, step: int, **keys: str) -> None:
        for key, value in worker.ask(what, step).items():
            if key in keys:
                samples[worker.contender].setdefault(keys[key], []).append(value)

    with workers(compared, workload, folder) as all_workers:
        for worker in all_workers:
            worker.ask("save", 0)
        compare(all_workers, 0)
        ours = [worker for worker in all_workers if worker.contender in (SYNC, ASYNC)]
        # The many steps that the slow contenders are spared come after those that all take, in turns all the same.
        together = min(steps, SLOW_STEPS)
        for number in range(steps):
            for worker in in_turn(all_workers if number < together else ours, number):
                put(worker, "save", 1 + number, blocking="blocking", total="total", cpu="cpu", bytes="bytes")
        for worker in all_workers:
            samples[worker.contender]["file"] = [worker.ask("file")["file"]]
        background = next(worker for worker in all_workers if worker.contender == ASYNC)
        for number in range(max(5, min(40, steps))):
            put(background, "block", 1 + steps + number, blocking="caller", bare="bare encode")
    return samples
