"""The case `count`: instructions of an encode, a difference and a compression, as valgrind's callgrind counts them.

The same program is run with one repetition and with three; what the difference comes to belongs to the call alone, whatever the
machine does meanwhile. Needs `valgrind` on the PATH.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .options import UnavailableError, add_states, names_of
from .report import Outcome, Picture, named, table
from .worker import BenchError
from .workloads import make_workload

HELP = "instructions of encode, diff and compression, counted by valgrind"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    add_states(parser, ["small", "usual"], file=False)
    parser.add_argument("--calls", type=names_of("call", CALLS), default=[*CALLS], metavar="NAME,...", help=f"of {','.join(CALLS)} (default: all)")


def _encode(shape: str) -> Callable[[], Any]:
    from fastckpt.codec import Codec  # noqa: PLC0415 (counted is what one call needs)

    work = make_workload(shape)
    codec, value = Codec(work.type, compact=True), work.typed(0)
    codec.encode(value)
    return lambda: codec.encode(value)


def _messages(shape: str, *, changed: bool) -> tuple[bytes, bytes]:
    import msgspec  # noqa: PLC0415

    work = make_workload(shape)
    before = msgspec.msgpack.encode(work.typed(0))
    if changed:
        work.step(1)
    return before, msgspec.msgpack.encode(work.typed(0))


def _diff(shape: str, *, changed: bool) -> Callable[[], Any]:
    from fastckpt.delta import EMPTY, diff  # noqa: PLC0415

    before, message = _messages(shape, changed=changed)
    old = diff(EMPTY, before, 1).chunks
    return lambda: diff(old, message, 2)


def _compress(shape: str) -> Callable[[], Any]:
    import zstandard  # noqa: PLC0415

    message, _ = _messages(shape, changed=False)
    return lambda: zstandard.ZstdCompressor(level=1).compress(message)


CALLS: dict[str, Callable[[str], Callable[[], Any]]] = {
    "encode": _encode,
    "diff-unchanged": lambda shape: _diff(shape, changed=False),
    "diff-step": lambda shape: _diff(shape, changed=True),
    "compress": _compress,
}


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print."""
    if shutil.which("valgrind") is None:
        raise UnavailableError("valgrind is not installed: there is nothing here that counts instructions")
    outcome, names = Outcome(), arguments.calls
    shapes = arguments.shapes[:1] if arguments.quick else arguments.shapes
    rows = [["", *(f"{name}, million instructions" for name in names)]]
    bars: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for at, shape in enumerate(shapes):
        row = [shape]
        for name in names:
            few, many = (_instructions(name, shape, repetitions, folder) for repetitions in (1, 3))
            figure = outcome.add(named(shape, name), unit="instructions", samples=[(many - few) / 2])
            row.append(f"{figure.median / 1e6:.3f}")
            bars[name].append((float(at), figure.median / 1e6))
        rows.append(row)
    print(f"\n{table(rows)}")
    outcome.picture = Picture("Instructions of one call", "state", "million instructions", bars, labels=shapes)
    return outcome


def _instructions(name: str, shape: str, repetitions: int, folder: Path) -> int:
    # Addresses and the order of sets are the same in each run.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc"}
    program = [sys.executable, "-m", "bench.count", name, shape, str(repetitions)]
    # Once without, so that no count has the compilation of a module in it. Ctrl-C is for this process, which ends the others.
    subprocess.run(program, env=environment, check=True, process_group=0)
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder / 'callgrind.out'}", *program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, process_group=0)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        raise BenchError(f"valgrind ended with exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return int(found[1])


def main(name: str, shape: str, repetitions: str) -> None:
    """Under valgrind: one call so many times."""
    call = CALLS[name](shape)
    for _ in range(int(repetitions)):
        call()


if __name__ == "__main__":
    main(*sys.argv[1:])
