"""The case `loop`: wall time of a training loop a step, without saving, with saves that block, and with saves in the background.

Once the loop sleeps, as one does that waits for a model's answers; once it is bound by Python, so that a background thread competes
with it for the interpreter. The last background save is waited for inside the time. Before anything is timed, each must load exactly
what it was given; after each loop the disk is settled.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .contenders import ASYNC, BASELINE, SYNC, Nothing, Orjson
from .options import add_states, add_steps, between, states
from .report import Outcome, Picture, amount, named, percentile, table
from .worker import able, compare, holding, in_turn, workers

HELP = "wall time of a sleeping and of a Python-bound loop: without saving, sync, async"
COMPARED = [Nothing.name, BASELINE, Orjson.name, SYNC, ASYNC]
KINDS = ("sleeping", "Python-bound")
STEPS, QUICK_STEPS = 20, 3
ROUNDS, QUICK_ROUNDS = 10, 2
PAUSE = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    add_states(parser, ["usual", "large"])
    add_steps(parser, f"{STEPS} a round")
    parser.add_argument("--pause", type=between(0, 3600), default=PAUSE, metavar="SECONDS", help="what a step does otherwise (default: %(default)s)")


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print."""
    outcome, bars = Outcome(), dict[str, list[tuple[float, float]]]()
    contenders = able(COMPARED)
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    steps = arguments.steps or (QUICK_STEPS if arguments.quick else STEPS)
    labels = []
    for label, workload in states(arguments, steps * rounds * 2):
        compared = holding(contenders, workload, folder)
        samples: dict[tuple[str, str], list[float]] = {(kind, name): [] for kind in KINDS for name in compared}
        with workers(compared, workload, folder / label) as all_workers:
            for worker in all_workers:
                worker.ask("save", 0)
            compare(all_workers, 0)
            step = 1
            for number in range(rounds):
                for kind in KINDS:
                    for worker in in_turn(all_workers, number):
                        wall = worker.ask("loop", step, steps, kind, arguments.pause)["wall"]
                        samples[kind, worker.contender].append(wall)
                    step += steps
        rows = [["", *(part for kind in KINDS for part in (f"{kind}: a step", "more than without", "10-90%"))]]
        for name in compared:
            row = [name]
            for kind in KINDS:
                own = samples[kind, name]
                more = [after - before for before, after in zip(samples[kind, Nothing.name], own, strict=True)]
                figure = outcome.add(label, name, kind, unit="ms", samples=own)
                row.append(amount(figure.median, "ms"))
                if name == Nothing.name:
                    row += ["", ""]
                    continue
                over = outcome.add(label, name, f"{kind}, more", unit="ms", samples=more)
                row += [amount(over.median, "ms"), f"{percentile(more, 10):.1f} to {percentile(more, 90):.1f}"]
            rows.append(row)
        for kind in KINDS:
            labels.append(named(label, kind))
            for name in compared[1:]:
                bars.setdefault(name, []).append((float(len(labels) - 1), outcome.figures[named(label, name, f"{kind}, more")].median))
        print(f"\n{label}, {rounds} rounds of {steps} steps\n{table(rows)}", flush=True)
    outcome.picture = Picture("What saving adds to a step of a loop", "state and loop", "milliseconds", bars, labels=labels)
    return outcome
