"""The case `codec`: a state as bytes and back, without a disk. CPU time of both ways, and how many bytes.

Ours encodes what a run's save encodes; differences, compression and checks are other cases (`diff`, `save`, `run`). Before anything is
timed, each must give back exactly what it was given.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .contenders import BASELINE, Bare, CompactJson, Msgpack, Orjson, Ours, Pickle
from .options import add_states, states
from .report import Outcome, Picture, Ratio, amount, named, table
from .worker import able, compare, holding, in_turn, workers

HELP = "a state as bytes and back: CPU time and size, without a disk"
ROUNDS, QUICK_ROUNDS = {"small": 60, "large": 10}, {"large": 2}
UNITS = {"encode": "ms", "decode": "ms", "bytes": "B"}


COMPARED = [BASELINE, *(each.name for each in (CompactJson, Orjson, Pickle, Msgpack, Bare, Ours))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    add_states(parser, ["small", "usual", "usual-cjk", "large", "structure-heavy", "long-strings"])


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print."""
    outcome, means = Outcome(), dict[str, dict[str, float]]()
    contenders = able(COMPARED)
    for label, workload in states(arguments, 40):
        rounds = arguments.rounds or (QUICK_ROUNDS.get(label, 5) if arguments.quick else ROUNDS.get(label, 30))
        compared = holding(contenders, workload, folder)
        samples: dict[str, dict[str, list[float]]] = {name: {key: [] for key in UNITS} for name in compared}
        with workers(compared, workload, folder / label, steady=True) as all_workers:
            for worker in all_workers:
                worker.ask("save", 0)
            compare(all_workers, 0)
            for number in range(-1, rounds):
                for worker in in_turn(all_workers, number):
                    worker.ask("skip", number + 1)
                    for key, value in worker.ask("codec", number + 1).items():
                        if number >= 0:
                            samples[worker.contender][key].append(value)
        rows = [["", "encode", "less", "decode", "less", "size", "smaller"]]
        for name, own in samples.items():
            row = [name]
            for key, values in own.items():
                figure = outcome.add(label, name, key, unit=UNITS[key], samples=values)
                row += [amount(figure.median, figure.unit), ""]
                if BASELINE in samples:
                    ratio = outcome.ratios[named(label, name, key)] = Ratio.of(samples[BASELINE][key], values)
                    row[-1] = "" if name == BASELINE else str(ratio)
            rows.append(row)
        means[label] = {name: outcome.figures[named(label, name, "encode")].median for name in samples}
        print(f"\n{label}, {rounds} rounds, CPU time\n{table(rows)}", flush=True)
    bars = {name: [(float(at), own[name]) for at, own in enumerate(means.values()) if name in own] for name in contenders}
    outcome.picture = Picture("Encoding a state", "state", "milliseconds of CPU", bars, logarithmic=True, labels=list(means))
    return outcome
