"""The case `migrate`: files a second. Each `checkpoint.json` parsed, encoded, proven, made durable beside it and read back.

Beside it what parsing the file takes alone, for scale; one process, as a person's first look does (the command line takes one per
core).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from fastckpt.migrate import migrate

from .options import add_states, states
from .report import Outcome, Picture, amount, table
from .worker import BenchError
from .workloads import make_workload

HELP = "migration of checkpoint.json files: files a second"
FILES, QUICK_FILES = {"small": 200, "large": 5}, {"large": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone. A round is a file."""
    add_states(parser, ["small", "usual", "large"])


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print."""
    outcome, labels = Outcome(), []
    rows = [["", "files", "JSON", "migrated", "a file", "10-90%", "files a second", "parsing alone"]]
    for label, workload in states(arguments, 50):
        files = arguments.rounds or (QUICK_FILES.get(label, 5) if arguments.quick else FILES.get(label, 50))
        work = make_workload(workload)
        taken, parsed, sizes = list[float](), list[float](), [0, 0]
        for number in range(files):
            work.step(number)
            source = folder / label / str(number) / "checkpoint.json"
            source.parent.mkdir(parents=True)
            source.write_text(json.dumps(work.plain(number), ensure_ascii=False, indent=2), encoding="utf-8")
            start = time.perf_counter()
            json.loads(source.read_bytes())
            middle = time.perf_counter()
            done = migrate(source)
            taken.append(1e3 * (time.perf_counter() - middle))
            parsed.append(1e3 * (middle - start))
            if (done.status, done.proof) != ("migrated", "byte-identical"):
                raise BenchError(f"{label}: {done.status}, {done.proof}, so its times would mean nothing")
            sizes = [done.source_bytes, done.target_bytes]
        figure = outcome.add(label, "migrate", unit="ms", samples=taken)
        alone = outcome.add(label, "parsing alone", unit="ms", samples=parsed)
        labels.append(label)
        row = [label, str(files), *(amount(size, "B") for size in sizes), amount(figure.median, "ms")]
        row += [f"{amount(figure.at(10), 'ms')} to {amount(figure.at(90), 'ms')}", f"{1e3 / figure.median:.1f}", amount(alone.median, "ms")]
        rows.append(row)
    print(f"\n{table(rows)}")
    bars = {
        name: [(float(at), outcome.figures[f"{label}: {name}"].median) for at, label in enumerate(labels)] for name in ("migrate", "parsing alone")
    }
    outcome.picture = Picture("Migrating one file", "state", "milliseconds", bars, logarithmic=True, labels=labels)
    return outcome
