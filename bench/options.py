"""Options that several cases share: which states, how many rounds."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from .worker import BenchError
from .workloads import NAMES, WorkloadError, make_workload


class UnavailableError(BenchError):
    """What a case measures with is not here."""


class State(NamedTuple):
    """A workload as a table names it, and as `make_workload` does."""

    label: str
    workload: str


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number in an option, or why it is none; for argparse."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            above = f"above {least - 1}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"expected a whole number {above}, got {text!r}")
        return int(text)

    return read


positive = whole(1)


def between(least: float, most: float) -> Callable[[str], float]:
    """A number in an option, or why it is none; for argparse."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a number from {least:g} to {most:g}, got {text!r}")
        return value

    return read


def names_of(what: str, known: Collection[str]) -> Callable[[str], list[str]]:
    """Names in an option, each of them known and given once, or what is wrong with them; for argparse."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {what} {name!r}; there are {', '.join(known)}")
            if names.count(name) > 1:
                raise argparse.ArgumentTypeError(f"{what} {name!r} is given twice")
        return names

    return read


state_names = names_of("state", NAMES)


def add_states(parser: argparse.ArgumentParser, default: list[str], *, file: bool = True) -> None:
    """`--shapes`, or `--file` where a case can replay one."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--shapes", type=state_names, default=default, metavar="NAME,...", help=f"of {', '.join(NAMES)} (default: {','.join(default)})"
    )
    if file:
        either.add_argument("--file", type=Path, metavar="FILE", help="a JSON file instead, replayed as a run that grows")


def add_steps(parser: argparse.ArgumentParser, default: object, *, least: int = 1) -> None:
    """`--steps`."""
    parser.add_argument("--steps", type=whole(least), metavar="N", help=f"how many steps the run has (default: {default})")


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
