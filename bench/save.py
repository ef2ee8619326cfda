"""The case `save`: one checkpoint in one file. Save time (until the file is as safe as the contender makes it), bytes, load time.

The replaced module and the others take turns, in an order that alternates; before anything is timed, each must load exactly what
it was given. What is saved in the caller's thread blocks for as long as it takes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .contenders import BASELINE, ONE_FILE, CompactJson, Gepa, Msgpack, Orjson, OrjsonUnsafe, Pickle, ReplacedDurably
from .floors import Floor, floors, judged
from .options import add_states, states
from .report import Figure, Outcome, Picture, Ratio, amount, named, table
from .worker import able, compare, holding, in_turn, workers

HELP = "one checkpoint in one file: save time, bytes and load time"
COMPARED = [BASELINE, *(each.name for each in (ReplacedDurably, CompactJson, Orjson, OrjsonUnsafe, Pickle, Msgpack, Gepa)), ONE_FILE]
# Enough for a steady median within some minutes on two slow cores: a round of `large` takes about four seconds.
ROUNDS, QUICK_ROUNDS = {"small": 60, "large": 15}, {"large": 3}
UNITS = {"save": "ms", "save CPU": "ms", "file": "B", "load": "ms", "load CPU": "ms"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    add_states(parser, ["small", "usual", "usual-cjk", "large", "structure-heavy", "long-strings"])


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print."""
    outcome, means = Outcome(), dict[str, dict[str, float]]()
    contenders = able(COMPARED)
    for label, workload in states(arguments, 40):
        rounds = arguments.rounds or (QUICK_ROUNDS.get(label, 5) if arguments.quick else ROUNDS.get(label, 40))
        compared = holding(contenders, workload, folder)
        samples = measure(compared, workload, rounds, warm_up=1 if arguments.quick else 3, folder=folder / label)
        for name, own in samples.items():
            for key, values in own.items():
                outcome.add(label, name, key, unit=UNITS[key], samples=values)
                if BASELINE in samples:
                    outcome.ratios[named(label, name, key)] = Ratio.of(samples[BASELINE][key], values)
        means[label] = {name: outcome.figures[named(label, name, "save")].median for name in samples}
        found = [
            Floor(named(label, ONE_FILE, key, "times less than the replaced module"), floor, outcome.ratios[named(label, ONE_FILE, key)].median)
            for key, floor in floors("save", label).items()
        ]
        lines, short = judged(found)
        outcome.short += short
        print(f"\n{label}, {rounds} rounds\n{_report(label, compared, outcome)}\n{lines}".rstrip(), flush=True)
    print("\nTimes and sizes are medians; ratios are to the replaced module, round by round: their median, and 10th to 90th percentile.")
    bars = {name: [(float(at), own[name]) for at, own in enumerate(means.values()) if name in own] for name in contenders}
    outcome.picture = Picture("One save of one file", "state", "milliseconds", bars, logarithmic=True, labels=list(means))
    return outcome


def measure(compared: list[str], workload: str, rounds: int, warm_up: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Every sample by contender and measure, in the order of the rounds."""
    samples: dict[str, dict[str, list[float]]] = {name: {key: [] for key in UNITS} for name in compared}
    with workers(compared, workload, folder) as all_workers:
        for step in range(warm_up):
            for worker in all_workers:
                worker.ask("save", step)
                worker.ask("load")
        compare(all_workers, warm_up - 1)
        for number in range(rounds):
            order = in_turn(all_workers, number)
            for worker in order:
                own, saved = samples[worker.contender], worker.ask("save", warm_up + number)
                own["save"].append(saved["total"])
                own["save CPU"].append(saved["cpu"])
            for worker in order:
                own, loaded = samples[worker.contender], worker.ask("load")
                own["load"].append(loaded["total"])
                own["load CPU"].append(loaded["cpu"])
                own["file"].append(worker.ask("file")["file"])
    return samples


def _report(label: str, compared: list[str], outcome: Outcome) -> str:
    rows = [["", "save", "less", "CPU", "less", "file", "smaller", "load", "less"]]
    for name in compared:
        row = [name]
        for key in ("save", "save CPU", "file", "load"):
            figure: Figure = outcome.figures[named(label, name, key)]
            ratio = "" if name == BASELINE else str(outcome.ratios.get(named(label, name, key), ""))
            row += [amount(figure.median, figure.unit), ratio if key in ("save", "load") else ratio.partition(" ")[0]]
        rows.append(row)
    return table(rows)
