"""Options that several cases share: which states, how many rounds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from .worker import BenchError
from .workloads import NAMES, WorkloadError, make_workload


class State(NamedTuple):
    """A workload as a table names it, and as `make_workload` does."""

    label: str
    workload: str


def positive(text: str) -> int:
    """A whole number above 0 in an option, or why it is none."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def state_names(text: str) -> list[str]:
    """The names of states in an option, or why it is none."""
    names = text.split(",")
    for name in names:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"no state {name!r}; there are {', '.join(NAMES)}")
    return names


def add_states(parser: argparse.ArgumentParser, default: list[str], *, file: bool = True) -> None:
    """`--shapes`, and `--file` where a case can replay one."""
    parser.add_argument(
        "--shapes", type=state_names, default=default, metavar="NAME,...", help=f"of {', '.join(NAMES)} (default: {','.join(default)})"
    )
    if file:
        parser.add_argument("--file", type=Path, metavar="FILE", help="a JSON file instead, replayed as a run that grows")


def add_steps(parser: argparse.ArgumentParser, default: object) -> None:
    """`--steps`."""
    parser.add_argument("--steps", type=positive, metavar="N", help=f"how many steps the run has (default: {default})")


def states(arguments: argparse.Namespace, steps: int) -> list[State]:
    """What was asked for; a file as a run of at most so many steps. Raises `BenchError` for one that cannot be replayed."""
    if getattr(arguments, "file", None) is None:
        return [State(name, name) for name in arguments.shapes]
    path = arguments.file.resolve()
    name = f"file:{steps}:{path}"
    try:
        make_workload(name)
    except WorkloadError as error:
        raise BenchError(str(error)) from error
    return [State(path.name, name)]
