"""The case `retain`: a long run that keeps its newest steps. How large its file becomes, and what compaction makes a save wait.

The same steps without a policy stand beside it (fewer of them: the file grows by as much each step), so that a pause can be told from
what the disk does at times anyway.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from fastckpt import CheckpointManager, SaveStats

from .contenders import Payload, Run
from .report import table
from .save import shape_names
from .shapes import SHAPES, change, make
from .worker import BenchError

HELP = "a run that keeps its newest steps: size of the file, and pauses"
STEPS, QUICK_STEPS, KEPT = 10_000, 600, 100
# The file of the second half of the run is at most so many times as large as that of the first half: it does not grow with the run.
FLOOR = 1.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    parser.add_argument("--shapes", type=shape_names, default=["usual"], metavar="NAME,...", help=f"of {', '.join(SHAPES)} (default: usual)")
    parser.add_argument("--steps", type=int, metavar="N", help=f"how many steps the run has (default: {STEPS})")
    parser.add_argument("--keep", type=int, default=KEPT, metavar="N", help=f"how many of them are kept (default: {KEPT})")
    parser.add_argument("--check", action="store_true", help="exit with 1, naming it, when the file goes on growing")


def run(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Measure and print; the results for `--json`, and what fell short for `--check`."""
    steps = arguments.steps or (QUICK_STEPS if arguments.quick else STEPS)
    rows, short, results = [["", "steps", "largest file", "at the end", "written", "save ms: median", "99%", "longest"]], [], {}
    for shape in arguments.shapes:
        for kept, count in ((arguments.keep, steps), (None, min(steps, 5 * arguments.keep))):
            sizes, seconds, stats, live = _measure(folder / f"{shape}-{kept}", shape, count, kept)
            results[f"{shape}, {kept or 'all'} kept"] = {"sizes": sizes, "seconds": seconds, "written_bytes": stats.written_bytes}
            slow = sorted(seconds)
            times = [f"{1e3 * slow[min(int(len(slow) * part), len(slow) - 1)]:.2f}" for part in (0.5, 0.99, 1)]
            bytes_ = [f"{size / 1e6:.2f} MB" for size in (max(sizes), sizes[-1], stats.written_bytes)]
            rows.append([f"{shape}, {f'newest {kept}' if kept else 'all'} kept", str(count), *bytes_, *times])
            if kept is None:
                continue
            if live != list(range(count))[-kept:]:
                raise BenchError(f"{shape}: {len(live)} steps are there, not the newest {kept}")
            growth = max(sizes[count // 2 :]) / max(sizes[: count // 2])
            if growth > FLOOR:
                short.append(f"{shape}: the file of the second half is {growth:.2f} times that of the first, at most {FLOOR}")
    print(f"\n{table(rows)}")
    return {"steps": steps, "runs": results}, short


def _measure(folder: Path, shape: str, steps: int, kept: int | None) -> tuple[list[int], list[float], SaveStats, list[int]]:
    """The size of the file after each save, the seconds that each took, their sums, and the steps that are there in the end."""
    state = make(shape)
    sizes, seconds = [], []
    with CheckpointManager(folder, Payload, max_to_keep=kept) as manager:
        path = Path(manager.path)
        for step in range(steps):
            change(state, step)
            payload = Run.payload(state, step)
            began = time.perf_counter()
            manager.save(step, payload)
            seconds.append(time.perf_counter() - began)
            sizes.append(path.stat().st_size)
        return sizes, seconds, manager.stats, manager.all_steps()
