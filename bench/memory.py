"""The case `memory`: how many times the message a run's writer takes, at its peak, beside the state itself, checks included.

*Held* is what was allocated at one time (tracemalloc), and what the floors are for. *Resident* is what the kernel counts, so what
an allocator keeps of freed blocks counts too (see the README, "Limits"). A loop without pause, so that in the background one save
is always in flight while another one waits. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from .floors import floors
from .options import UnavailableError, add_states
from .report import Outcome, Picture, table
from .worker import peak_begins_here, resident
from .workloads import make_workload

HELP = "peak memory of a run's writer, as a multiple of the message"
STEPS, QUICK_STEPS = 40, 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    add_states(parser, ["large"], file=False)


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print. A round is a step."""
    if not Path("/proc/self/clear_refs").exists():
        raise UnavailableError("peak memory is told by Linux alone")
    outcome, steps = Outcome(), str(arguments.rounds or (QUICK_STEPS if arguments.quick else STEPS))
    rows, bars = [["", "", "checks", "held", "at most", "held by step 20", "resident"]], dict[str, list[tuple[float, float]]]()
    for shape in arguments.shapes:
        # What the steps themselves allocate, without a save.
        own = {kind: _measured(kind, "none", "never", steps, shape, str(folder)) for kind in ("held", "resident")}
        for durability, most in floors("memory").items():
            for round_trip in ("auto", "never"):
                taken = {kind: _measured(kind, durability, round_trip, steps, shape, str(folder)) for kind in own}
                held, whole = ([each - without for each, without in zip(taken[kind], own[kind], strict=True)] for kind in own)
                rows.append([shape, durability, round_trip, f"{held[1]:.2f}", f"{most}", f"{held[0]:.2f}", f"{whole[1]:.2f}"])
                for kind, peaks in (("held", held), ("resident", whole)):
                    outcome.add(shape, durability, f"checks {round_trip}", kind, unit="messages", samples=peaks[1:])
                    bars.setdefault(kind, []).append((float(len(rows) - 2), peaks[1]))
                if held[1] > most:
                    outcome.short.append(f"{shape}, {durability}, checks {round_trip}: holds {held[1]:.2f} times the message, at most {most}")
    print(f"\n{steps} steps; times the message\n{table(rows)}")
    outcome.details["steps"] = int(steps)
    labels = [f"{row[1]}, checks {row[2]}" for row in rows[1:]]
    outcome.picture = Picture("Peak memory of a run's writer", "", "times the message", bars, labels=labels)
    return outcome


def _measured(*arguments: str) -> list[float]:
    command = [sys.executable, "-m", "bench.memory", *arguments]
    # Ctrl-C is for this process, which ends the other.
    peaks: list[float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, process_group=0).stdout)
    return peaks


def main(kind: str, durability: str, round_trip: str, steps: str, shape: str, folder: str) -> None:
    """In a process of its own: save that many steps, and print the peak of the first 20 and of all, as times the message."""
    from fastckpt import CheckpointManager  # noqa: PLC0415  (its import is no memory of a save, but that of msgspec is there anyway)

    work = make_workload(shape)
    message = len(msgspec.msgpack.encode(work.typed(0)))  # and a step keeps its size
    gc.collect()
    if kind == "held":
        tracemalloc.start()
    before = resident("VmRSS")
    peak_begins_here()
    peaks = []

    def measure() -> None:
        taken = tracemalloc.get_traced_memory()[1] if kind == "held" else resident("VmHWM") - before
        peaks.append(taken / message)

    def loop(save: Callable[[int, Any], object]) -> None:
        for step in range(int(steps)):
            work.step(step)
            save(step, work.typed(step))
            if step == min(19, int(steps) - 1):
                measure()

    if durability == "none":
        loop(lambda *_: None)
    else:
        modes = cast("Literal['sync', 'async']", durability), cast("Literal['auto', 'never']", round_trip)
        with (
            tempfile.TemporaryDirectory(dir=folder) as run_folder,
            CheckpointManager(run_folder, work.type, durability=modes[0], round_trip=modes[1]) as manager,
        ):
            loop(manager.save)
    measure()
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(*sys.argv[1:])
