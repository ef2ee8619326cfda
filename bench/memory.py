"""The case `memory`: how many times the message a run's writer takes, at its peak, above what the state itself takes.

Resident size, as the kernel counts it, checks included; so an allocator that keeps what was freed counts too (see the README,
"Limits"). Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
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
# At most this many times the message.
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
    rows, short, results = [["", "", "checks", "times the message", "at most"]], [], []
    for shape in arguments.shapes:
        for durability, most in FLOORS.items():
            for round_trip in ("auto", "never"):
                command = [sys.executable, "-m", "bench.memory", durability, round_trip, steps, shape, str(folder)]
                peak = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
                rows.append([shape, durability, round_trip, f"{peak:.2f}", f"{most}"])
                results.append({"shape": shape, "durability": durability, "round_trip": round_trip, "peak": peak})
                if peak > most:
                    short.append(f"{shape}, {durability}, checks {round_trip}: {peak:.2f} times the message, at most {most}")
    print(f"\n{steps} steps\n{table(rows)}")
    return {"steps": int(steps), "peaks": results}, short


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def main(durability: str, round_trip: str, steps: str, shape: str, folder: str) -> None:
    """In a process of its own: save that many steps, and print the peak."""
    from fastckpt import CheckpointManager  # noqa: PLC0415  (its import is no memory of a save, but that of msgspec is there anyway)

    state = make(shape)
    message = len(msgspec.msgpack.encode(Run.payload(state, 0)))
    gc.collect()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins here
    modes = cast("Literal['sync', 'async']", durability), cast("Literal['auto', 'never']", round_trip)
    with tempfile.TemporaryDirectory(dir=folder) as run_folder:
        with CheckpointManager(run_folder, Payload, durability=modes[0], round_trip=modes[1]) as manager:
            for step in range(int(steps)):
                change(state, step)
                manager.save(step, Run.payload(state, step))
        print((_status("VmHWM") - before) / message)


if __name__ == "__main__":
    main(*sys.argv[1:])
