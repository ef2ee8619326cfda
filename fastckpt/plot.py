"""Values across steps as a picture: in the terminal, as SVG, and as a table for other programs."""

from __future__ import annotations

import csv
import importlib
import math
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

from .errors import CheckpointError, EncodeError
from .twin import to_json

__all__ = ["Curve", "in_terminal", "numbers", "svg", "table"]


class Curve(NamedTuple):
    """What is plotted under one name: steps that rise, and the value at each."""

    name: str
    points: Sequence[tuple[int, Any]]


class _Line(NamedTuple):
    """What can be drawn of a curve; `right` where its values are of another size than the first one's, and get an axis of their own."""

    name: str
    steps: list[int]
    values: list[float]
    right: bool


# The order in which colours are given out, and the marks that tell curves apart where there is no colour.
_COLOURS: Final = ("blue", "red", "green", "magenta", "cyan", "orange")
_MARKS: Final = ("braille", "x", "+", "o", "*", "#")
_HEX: Final = ("#1f6feb", "#d1442f", "#2da44e", "#8250df", "#1b7c83", "#bf8700")
# Magnitudes of two curves that differ by more than this would make a flat line of one of them.
_OTHER_SIZE = 10
_ASCII = str.maketrans({"─": "-", "│": "|", "┌": "+", "┐": "+", "└": "+", "┘": "+", "┤": "+", "├": "+", "┬": "+", "┴": "+"})
_STYLED = re.compile("\x1b\\[[0-9;]*m")


def numbers(curve: Curve) -> list[tuple[int, float]]:
    """The points of a curve that can be drawn: finite numbers (below 1e100: beyond, scales overflow), True as 1 and False as 0."""
    found = []
    for step, value in curve.points:
        if isinstance(value, (bool, int, float)):
            try:
                number = float(value)
            except OverflowError:
                continue
            if abs(number) < 1e100:
                found.append((step, number))
    return found


def _lines(curves: Sequence[Curve]) -> list[_Line]:
    lines: list[_Line] = []
    first = 0.0
    for curve in curves:
        points = numbers(curve)
        size = max((abs(value) for _, value in points), default=0.0)
        first = first or size
        right = bool(size and first) and not 1 / _OTHER_SIZE <= size / first <= _OTHER_SIZE
        lines.append(_Line(curve.name, [step for step, _ in points], [value for _, value in points], right))
    return lines


def _ticks(values: Sequence[float], most: int, *, whole: bool = False, covering: bool = False) -> list[float]:
    """Round numbers across the range of the values, about so many; `covering`, the first and the last are not inside it."""
    low, high = min(values), max(values)
    if low == high and covering:
        low, high = (low - abs(low), high + abs(high)) if low else (-1.0, 1.0)
    rough = (high - low) / most
    if rough < 1e-300 or not math.isfinite(rough):
        return [low] if low == high else [low, high]
    power = 10.0 ** math.floor(math.log10(rough))
    unit = next(unit for unit in (power, 2 * power, 5 * power, 10 * power) if unit >= rough * 0.999)
    if whole:
        unit = max(1.0, unit)
    down, up = (math.floor, math.ceil) if covering else (math.ceil, math.floor)
    # A little slack: what is a tick but for the rounding of a division counts as one.
    first, last = down(low / unit + (1e-9 if covering else -1e-9)), up(high / unit - (1e-9 if covering else -1e-9))
    return [number * unit for number in range(first, last + 1)] or [low, high]


def _range_of(values: Sequence[float], intervals: int) -> tuple[float, float]:
    """A range around the values that so many intervals part at round numbers, for a second axis with the ticks of the first."""
    at = _ticks(values, intervals, covering=True)
    if len(at) < 2:
        return at[0], at[0] + 1
    unit = at[1] - at[0]
    while len(at) - 1 > intervals:  # the range begins or ends between two of them
        power = 10.0 ** math.floor(math.log10(unit) + 1e-9)
        unit = next(power * times for times in (2, 2.5, 5, 10, 20) if power * times > unit * 1.001)
        first = math.floor(at[0] / unit + 1e-9)
        at = [number * unit for number in range(first, max(first + 1, math.ceil(max(values) / unit - 1e-9)) + 1)]
    return at[0], at[0] + intervals * unit


def _label(value: float) -> str:
    return f"{value:.6g}"


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CheckpointError(
            f"this needs the package {name} ({error})", remedy="install it from the checkout: pip install '.[cli]', or take --csv or --json"
        ) from error


def in_terminal(curves: Sequence[Curve], width: int, height: int, *, colour: bool, unicode: bool = True) -> str:
    """The curves over their steps, as lines of text of at most `width` characters. Raises `CheckpointError` without plotext."""
    plotext = _library("plotext")
    lines = [line for line in _lines(curves) if line.steps]
    # plotext is one figure for the whole process.
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limitsize(False, False)
    names = []
    for number, line in enumerate(lines):
        ink = _COLOURS[number % len(_COLOURS)]
        mark = _MARKS[number % len(_MARKS)] if not colour else "braille"
        if mark == "braille" and not unicode:
            mark = "."
        side = "right" if line.right else "left"
        plotext.plot(line.steps, line.values, marker=mark, color=ink if colour else None, yside=side)
        shown = ("⠒⠒" if mark == "braille" else mark * 2) if len(lines) > 1 else ""
        text = f"{shown} {line.name}".strip() + (" (right)" if line.right else "")
        names.append(plotext.colorize(text, ink) if colour else text)
    steps = [step for line in lines for step in line.steps]
    plotext.plotsize(width, height - len(names))
    at = _ticks(steps, max(2, width // 16), whole=True)
    plotext.xticks(at, [_label(tick) for tick in at])
    for side, right in (("left", False), ("right", True)):
        values = [value for line in lines if line.right is right for value in line.values]
        if values:
            at = _ticks(values, max(2, height // 4))
            plotext.yticks(at, [_label(tick) for tick in at], yside=side)
    plotext.xlabel("step")
    text = "\n".join([*names, plotext.build().rstrip("\n")])
    plotext.clear_figure()
    if not colour:
        text = _STYLED.sub("", text)
    if not unicode:
        text = text.translate(_ASCII)
    return "\n".join(line.rstrip() for line in text.split("\n")) + "\n"


def svg(curves: Sequence[Curve], title: str = "") -> bytes:
    """The curves over their steps as an SVG picture: no script in it, nothing that is fetched, and the same bytes for the same curves.

    Raises `CheckpointError` without pygal.
    """
    pygal = _library("pygal")
    style = _library("pygal.style").Style(
        background="white", plot_background="white", foreground="#57606a", foreground_strong="#24292f", foreground_subtle="#d0d7de",
        colors=_HEX, font_family="system-ui, 'DejaVu Sans', Arial, sans-serif", title_font_size=15, label_font_size=12, major_label_font_size=12,
        legend_font_size=13, guide_stroke_dasharray="2,3", major_guide_stroke_dasharray="2,3", guide_stroke_color="#d8dee4",
        major_guide_stroke_color="#d8dee4",
    )  # fmt: skip
    lines = _lines(curves)
    steps = [step for line in lines for step in line.steps]
    few = len(steps) <= 40 * len(lines)
    chart = pygal.XY(
        style=style, width=900, height=460 + 20 * len(lines), margin=18, explicit_size=True, show_dots=few, dots_size=2.5,
        stroke_style={"width": 1.6}, legend_at_bottom=True,
        legend_at_bottom_columns=1, x_title="step", title=title or None, truncate_legend=-1, show_x_guides=True,
        value_formatter=_label, x_value_formatter=_label, no_data_text="no numbers",
    )  # fmt: skip
    chart.uuid = "series"
    left = [value for line in lines if not line.right for value in line.values]
    right = [value for line in lines if line.right for value in line.values]
    if steps and left:
        chart.x_labels, chart.y_labels = _ticks(steps, 10, whole=True, covering=len(set(steps)) > 1), _ticks(left, 8, covering=True)
        chart.xrange, chart.range = (chart.x_labels[0], chart.x_labels[-1]), (chart.y_labels[0], chart.y_labels[-1])
        if right:
            chart.secondary_range = _range_of(right, len(chart.y_labels) - 1)
    for line in lines:
        name = line.name + (" (right)" if line.right else "")
        chart.add(name, list(zip(line.steps, line.values, strict=True)), secondary=line.right)
    root = chart.render_tree()
    for parent in root.iter():
        for child in [child for child in parent if child.tag == ET.Comment or str(child.tag).endswith("script")]:
            parent.remove(child)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


class _Pieces:
    """What `csv.writer` writes to."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def write(self, text: str) -> None:
        self.pieces.append(text)


def table(curves: Sequence[Curve]) -> bytes:
    """The curves as CSV in UTF-8: the step, and a column for each, in which a value is as JSON writes it; empty where there is none.

    Raises `EncodeError` for what JSON cannot say.
    """
    pieces = _Pieces()
    writer = csv.writer(pieces, lineterminator="\n")
    writer.writerow(["step", *(curve.name for curve in curves)])
    columns = [dict(curve.points) for curve in curves]
    for step in sorted(set().union(*columns)):
        writer.writerow([step, *(_cell(column[step], step) if step in column else "" for column in columns)])
    return "".join(pieces.pieces).encode("utf-8", "backslashreplace")


def _cell(value: Any, step: int) -> str:
    try:
        text = to_json(value).decode("utf-8")
    except EncodeError as error:
        error.fact = f"the value of step {step} is no JSON: {error.fact}"
        raise
    # JSON has no line break but between tokens, where the indent that follows it is of no meaning either.
    return re.sub(r"\n *", " ", text) if "\n" in text else text
