"""What must be reached: `floors.toml` read, and one floor beside what was measured."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("floors.toml")


def floors(*place: str) -> dict[str, Any]:
    """The table of `floors.toml` at that place; empty where there is none."""
    found: Any = tomllib.loads(FILE.read_text(encoding="utf-8"))
    for name in place:
        found = found.get(name, {})
    return dict(found)


@dataclass(frozen=True)
class Floor:
    """One floor: what is compared, at least (at most, or within a share of) how much, and what was measured."""

    what: str
    floor: float
    measured: float
    at_most: bool = False
    within: float | None = None

    @property
    def reached(self) -> bool:
        """Whether it is on the right side."""
        if self.within is not None:
            return abs(self.measured - self.floor) <= self.within * self.floor
        return self.measured <= self.floor if self.at_most else self.measured >= self.floor

    def __str__(self) -> str:
        if self.within is not None:
            return f"{self.what}: {self.measured:g}, expected {self.floor:g}{f', within {self.within:.0%}' if self.within else ''}"
        return f"{self.what}: {self.measured:.2f}, the floor is {'at most' if self.at_most else 'at least'} {self.floor:g}"


def judged(found: list[Floor]) -> tuple[str, list[str]]:
    """Floors as lines for people, and those that are not reached."""
    lines = [f"{'reached    ' if floor.reached else 'NOT REACHED'} {floor}" for floor in found]
    return "\n".join(lines), [str(floor) for floor in found if not floor.reached]
