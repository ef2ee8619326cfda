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

from .contenders import Payload, Run
from .report import table
from .save import shape_names
from .shapes import SHAPES, change, make
from .worker import BenchError

HELP = "peak memory of a run's writer, as a multiple of the message"
STEPS, QUICK_STEPS = 40, 8
# Held at most this many times the message.
FLOORS = {"sync": 4.0, "async": 5.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    parser.add_argument("--shapes", type=shape_names, default=["large"], metavar="NAME,...", help=f"of {', '.join(SHAPES)} (default: large)")
    parser.add_argument("--check", action="store_true", help="exit with 1, naming it, when more is taken than the floor allows")


def run(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Measure and print; the results for `--json`, and what fell short for `--check`. A round is a step."""
    if not Path("/proc/self/clear_refs").exists():
        raise BenchError("peak memory is told by Linux alone")
    steps = str(arguments.rounds or (QUICK_STEPS if arguments.quick else STEPS))
    rows, short, results = [["", "", "checks", "held", "at most", "held by step 20", "resident"]], [], []
    for shape in arguments.shapes:
        # What the steps themselves allocate, without a save.
        own = {kind: _measured(kind, "none", "never", steps, shape, str(folder)) for kind in ("held", "resident")}
        for durability, most in FLOORS.items():
            for round_trip in ("auto", "never"):
                taken = {kind: _measured(kind, durability, round_trip, steps, shape, str(folder)) for kind in own}
                held, resident = ([each - without for each, without in zip(taken[kind], own[kind], strict=True)] for kind in own)
                rows.append([shape, durability, round_trip, f"{held[1]:.2f}", f"{most}", f"{held[0]:.2f}", f"{resident[1]:.2f}"])
                results.append({"shape": shape, "durability": durability, "round_trip": round_trip, "held": held, "resident": resident})
                if held[1] > most:
                    short.append(f"{shape}, {durability}, checks {round_trip}: holds {held[1]:.2f} times the message, at most {most}")
    print(f"\n{steps} steps; times the message\n{table(rows)}")
    return {"steps": int(steps), "peaks": results}, short


def _measured(*arguments: str) -> list[float]:
    command = [sys.executable, "-m", "bench.memory", *arguments]
    peaks: list[float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    return peaks


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def main(kind: str, durability: str, round_trip: str, steps: str, shape: str, folder: str) -> None:
    """In a process of its own: save that many steps, and print the peak of the first 20 and of all, as times the message."""
    from fastckpt import CheckpointManager  # noqa: PLC0415  (its import is no memory of a save, but that of msgspec is there anyway)

    state = make(shape)
    message = len(msgspec.msgpack.encode(Run.payload(state, 0)))  # and a change keeps its size
    gc.collect()
    if kind == "held":
        tracemalloc.start()
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins here
    peaks = []

    def measure() -> None:
        taken = tracemalloc.get_traced_memory()[1] if kind == "held" else _resident("VmHWM") - before
        peaks.append(taken / message)

    def loop(save: Callable[[int, Any], object]) -> None:
        for step in range(int(steps)):
            change(state, step)
            save(step, Run.payload(state, step))
            if step == min(19, int(steps) - 1):
                measure()

    if durability == "none":
        loop(lambda *_: None)
    else:
        modes = cast("Literal['sync', 'async']", durability), cast("Literal['auto', 'never']", round_trip)
        with (
            tempfile.TemporaryDirectory(dir=folder) as run_folder,
            CheckpointManager(run_folder, Payload, durability=modes[0], round_trip=modes[1]) as manager,
        ):
            loop(manager.save)
    measure()
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(*sys.argv[1:])
