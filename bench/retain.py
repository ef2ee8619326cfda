"""The case `retain`: a long run that keeps its newest steps. How large its file becomes, and what compaction makes a save wait.

The same steps without a policy stand beside it (fewer of them: the file grows by as much each step), so that a pause can be told from
what the disk does at times anyway.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from fastckpt import CheckpointManager, SaveStats

from .floors import floors
from .options import add_states, add_steps, positive
from .report import Outcome, Picture, percentile, table
from .worker import BenchError
from .workloads import make_workload

HELP = "a run that keeps its newest steps: size of the file, and pauses"
STEPS, QUICK_STEPS, KEPT = 10_000, 600, 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    add_states(parser, ["usual"], file=False)
    add_steps(parser, STEPS, least=2)  # for the halves of the run are compared
    parser.add_argument("--keep", type=positive, default=KEPT, metavar="N", help=f"how many of them are kept (default: {KEPT})")


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print."""
    steps = arguments.steps or (QUICK_STEPS if arguments.quick else STEPS)
    outcome, lines, most = Outcome(), dict[str, list[tuple[float, float]]](), floors("retain")["growth"]
    rows = [["", "steps", "largest file", "at the end", "written", "save ms: median", "99%", "longest"]]
    for shape in arguments.shapes:
        for kept, count in ((arguments.keep, steps), (None, min(steps, 5 * arguments.keep))):
            sizes, times, stats, live = _measure(folder / f"{shape}-{kept}", shape, count, kept)
            name = f"{shape}, {f'newest {kept}' if kept else 'all'} kept"
            figure = outcome.add(name, "save", unit="ms", samples=times)
            outcome.add(name, "largest file", unit="B", samples=[max(sizes)])
            outcome.add(name, "written", unit="B", samples=[stats.written_bytes])
            thinned = max(1, count // 200)
            lines[name] = [(float(step), sizes[step] / 1e6) for step in range(0, count, thinned)]
            bytes_ = [f"{size / 1e6:.2f} MB" for size in (max(sizes), sizes[-1], stats.written_bytes)]
            rows.append([name, str(count), *bytes_, *(f"{value:.2f}" for value in (figure.median, percentile(times, 99), max(times)))])
            if kept is None:
                continue
            if live != list(range(count))[-kept:]:
                raise BenchError(f"{shape}: {len(live)} steps are there, not the newest {kept}")
            growth = max(sizes[count // 2 :]) / max(sizes[: count // 2])
            if growth > most:
                outcome.short.append(f"{shape}: the file of the second half is {growth:.2f} times that of the first, at most {most}")
    print(f"\n{table(rows)}")
    outcome.picture = Picture("The file of a long run", "step", "MB", lines)
    return outcome


def _measure(folder: Path, shape: str, steps: int, kept: int | None) -> tuple[list[int], list[float], SaveStats, list[int]]:
    """The size of the file after each save, the milliseconds that each took, their sums, and the steps that are there in the end."""
    work = make_workload(shape)
    sizes, times = [], []
    with CheckpointManager(folder, work.type, max_to_keep=kept) as manager:
        path = Path(manager.path)
        for step in range(steps):
            work.step(step)
            value = work.typed(step)
            began = time.perf_counter()
            manager.save(step, value)
            times.append(1e3 * (time.perf_counter() - began))
            sizes.append(path.stat().st_size)
        return sizes, times, manager.stats, manager.all_steps()
