"""The case `run`: every step of a run, durable. What a step makes the loop wait, how long until it is durable, what it writes.

A run of steps as in a real optimisation (20 answers flip, an edit comes and one goes, a case is replaced), bases and compactions
included; slow contenders save some of the steps only. Then steps that replace a whole pack, and what the caller gives in the
background. Contenders take turns, in an order that changes; before anything is timed, each must load exactly what it was given.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from pathlib import Path

from .contenders import (
    ASYNC,
    BASELINE,
    CONTENDERS,
    ONE_FILE,
    SYNC,
    CompactJson,
    Gepa,
    KeptRun,
    LangGraph,
    Msgpack,
    Orjson,
    OrjsonUnsafe,
    Pickle,
    ReplacedDurably,
    Run,
    Sqlite,
)
from .floors import Floor, floors, judged
from .options import add_states, add_steps, states
from .report import Outcome, Picture, Ratio, amount, named, percentile, table
from .worker import ContenderError, able, compare, holding, in_turn, workers

HELP = "every step of a run: blocking and total time, bytes written, file, memory"
OTHERS = (ReplacedDurably, CompactJson, Orjson, OrjsonUnsafe, Pickle, Msgpack, Sqlite, LangGraph, Gepa)
COMPARED = [BASELINE, *(each.name for each in OTHERS), ONE_FILE, SYNC, KeptRun.name, ASYNC]
STEPS, QUICK_STEPS = {"shuffled": 100}, {"large": 10, "shuffled": 10}
DEFAULT_STEPS, DEFAULT_QUICK_STEPS = 1000, 30
# Steps of a run that a slow contender saves, or one that writes the whole state with each step and keeps it; of a large state, all that
# write the whole of it: they would make a run of 1,000 steps take half an hour.
SLOW_STEPS = 50
BULKY = {Sqlite.name}
LARGE = {"large"}
# In a shorter run hardly anything is compacted, and to keep the newest steps alone would look like keeping all.
LEAST_KEPT_STEPS = 5 * KeptRun.options["max_to_keep"]
LEAPS, QUICK_LEAPS = 20, 3
BYTES = ("bytes", "file", "memory")

Samples = dict[str, dict[str, list[float]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    add_states(parser, ["usual", "large", "shuffled"])
    add_steps(parser, f"{DEFAULT_STEPS}; fewer of `shuffled`")


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print."""
    outcome, lines = Outcome(), dict[str, list[tuple[float, float]]]()
    contenders, asked = able(COMPARED), states(arguments, arguments.steps or DEFAULT_STEPS)
    drawn = asked[0].label
    for label, workload in asked:
        steps = arguments.steps or (QUICK_STEPS.get(label, DEFAULT_QUICK_STEPS) if arguments.quick else STEPS.get(label, DEFAULT_STEPS))
        leaps = arguments.rounds or (QUICK_LEAPS if arguments.quick else LEAPS)
        compared = holding([name for name in contenders if name != KeptRun.name or steps >= LEAST_KEPT_STEPS], workload, folder)
        if KeptRun.name in contenders and steps < LEAST_KEPT_STEPS:
            print(f"left out: {KeptRun.name}, for hardly anything is compacted in {steps} steps of {label}")
        samples = measure(compared, workload, steps, leaps, folder / label)
        for name, own in samples.items():
            every = _every(name, label, steps)
            for key, values in own.items():
                outcome.add(label, name, key, unit="B" if key.endswith(BYTES) else "ms", samples=values)
            for key in ("total", "bytes", "leap, total") if BASELINE in samples else ():
                theirs = samples[BASELINE][key]
                ours = own[key] if key.startswith("leap") else _at_the_same(own[key], every, _every(BASELINE, label, steps))
                outcome.ratios[named(label, name, key)] = Ratio.of(theirs, ours)
            if label == drawn:
                wait = own["blocking"]
                thinned = max(1, len(wait) // 50)
                lines[name] = [(float(at * every), statistics.median(wait[at : at + thinned])) for at in range(0, len(wait), thinned)]
        found = _floors(label, steps, samples, outcome)
        said, short = judged(found)
        outcome.short += short
        print(f"\n{label}, {steps} steps\n{_report(label, compared, outcome, samples)}\n{said}".rstrip(), flush=True)
    print("\nRatios are of the replaced module's save, which does not sync, step by step: their median, and 10th to 90th percentile.")
    outcome.details["slow_contenders_save_at_most"] = SLOW_STEPS
    outcome.picture = Picture(f"What a step makes the loop wait ({drawn})", "step", "milliseconds", lines, logarithmic=True)
    return outcome


def _every(name: str, state: str, steps: int) -> int:
    """Of how many steps this contender saves one."""
    slow = CONTENDERS[name].slow or name in BULKY or (state in LARGE and not issubclass(CONTENDERS[name], Run))
    return math.ceil(steps / SLOW_STEPS) if slow else 1


def _at_the_same(values: list[float], every: int, other: int) -> list[float]:
    """Of the samples of each `every`th step those of each `other`th one."""
    return values[:: other // every] if other > every else values


def measure(compared: list[str], workload: str, steps: int, leaps: int, folder: Path) -> Samples:
    """Every sample by contender and measure, in the order of the steps."""
    samples: Samples = {name: {} for name in compared}
    warm_up, turns = 2, Counter[int]()
    with workers(compared, workload, folder) as all_workers:
        for step in range(warm_up):
            for worker in all_workers:
                worker.ask("save", step)
        compare(all_workers, warm_up - 1)
        for worker in all_workers:
            worker.ask("peak", True)
        for number in range(steps):
            saving = [worker for worker in all_workers if number % _every(worker.contender, workload, steps) == 0]
            for worker in all_workers:
                if worker not in saving:
                    worker.ask("skip", warm_up + number)
            # Rounds in which all save have a count of their own: by the number of the step they would come in few of the orders.
            for worker in in_turn(saving, turns[len(saving)]):
                for key, value in worker.ask("save", warm_up + number).items():
                    samples[worker.contender].setdefault(key, []).append(value)
            turns[len(saving)] += 1
        for worker in all_workers:
            own = samples[worker.contender]
            own["file"], own["memory"] = [worker.ask("file")["file"]], [worker.ask("peak", False)["memory"]]
        step = warm_up + steps
        for number in range(leaps):
            for worker in in_turn(all_workers, number):
                for key, value in worker.ask("leap", step).items():
                    samples[worker.contender].setdefault(f"leap, {key}", []).append(value)
            step += 1
        background = next(worker for worker in all_workers if worker.contender == ASYNC)
        try:
            for number in range(2 * leaps):
                for key, value in background.ask("block", step + number).items():
                    samples[ASYNC].setdefault(f"caller, {key}", []).append(value)
        except ContenderError as error:
            if not workload.startswith("file:"):
                raise
            print(f"left out: what the caller gives in the background, for a bare encode cannot hold this state: {error.reason}")
    return samples


def _floors(label: str, steps: int, samples: Samples, outcome: Outcome) -> list[Floor]:
    held = floors("run", label)
    if not held:
        return []
    background = samples[ASYNC]
    blocking, bare = statistics.median(background["caller, blocking"]), statistics.median(background["caller, bare"])
    same = _at_the_same(samples[SYNC]["total"], 1, _every(Orjson.name, label, steps))
    measured = {
        "step": ("times less to save than the replaced module", outcome.ratios[named(label, SYNC, "total")].median),
        "orjson": ("times less to save than orjson with fsync", Ratio.of(samples[Orjson.name]["total"], same).median),
        "bytes": ("times fewer bytes than JSON", outcome.ratios[named(label, SYNC, "bytes")].median),
        "leap": ("times less to save, a pack replaced", outcome.ratios[named(label, SYNC, "leap, total")].median),
        "blocking": ("times less blocking than the replaced module", statistics.median(samples[BASELINE]["cpu"]) / blocking),
    }
    found = [Floor(named(label, measured[key][0]), floor, measured[key][1]) for key, floor in held.items()]
    over = floors("check")["blocking_over_encode"]
    return [*found, Floor(named(label, "blocking ms over 1.3 x a bare encode + 0.1 ms"), over, blocking / (1.3 * bare + 0.1), at_most=True)]


def _report(label: str, compared: list[str], outcome: Outcome, samples: Samples) -> str:
    rows = [["", "saves", "blocking 50%", "99%", "total 50%", "99%", "less", "CPU", "written", "fewer", "leap", "less", "file", "memory"]]
    for name in compared:
        own, ratio = samples[name], {key: str(outcome.ratios.get(named(label, name, key), "")) for key in ("total", "bytes", "leap, total")}
        row = [name, str(len(own["total"]))]
        row += [amount(percentile(own[key], at), "ms") for key in ("blocking", "total") for at in (50, 99)]
        row += [ratio["total"], amount(statistics.median(own["cpu"]), "ms")]
        row += [amount(statistics.mean(own["bytes"]), "B"), ratio["bytes"].partition(" ")[0]]
        row += [amount(statistics.median(own["leap, total"]), "ms"), ratio["leap, total"].partition(" ")[0]]
        rows.append([*row, amount(own["file"][0], "B"), amount(own["memory"][0], "B")])
    if not (blocking := samples[ASYNC].get("caller, blocking")):
        return table(rows)
    said = f"in the background the caller gives {statistics.median(blocking):.2f} ms of thread time, "
    return f"{table(rows)}\n{said}a bare encode takes {statistics.median(samples[ASYNC]['caller, bare']):.2f} ms"
