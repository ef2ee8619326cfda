"""Commands that look across the steps of a run: what changed between two of them, and one value in all of them."""

from __future__ import annotations

import os
import reprlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from .changes import Change, changes
from .console import File, Json, clean, emit, plural, run_file, say, write_out
from .errors import ConflictError, NotFoundError
from .file import load
from .history import History
from .plot import Curve, in_terminal, numbers, svg, table
from .storage import exists, open_file, publish, read_at
from .tree import ABSENT, abridged

__all__ = ["diff", "series"]


def diff(
    path: File,
    second: Annotated[str, typer.Argument(metavar="[A | FILE]", help="The older step (default: the one before), or another file.")] = "",
    third: Annotated[str, typer.Argument(metavar="[B]", help="The newer step (default: the newest).")] = "",
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="How many changes are shown.")] = 40,
    as_json: Json = False,
) -> None:
    """What changed between two steps of a run, or between two files (checkpoints or JSON): each changed value by its path.

    Values are abridged; with --json they are whole, and all of them.
    """
    if (second and not second.isdecimal()) or (third and not third.isdecimal()):
        if third:
            raise typer.BadParameter("takes two steps of one run, or two files", param_hint="A B")
        found = list(changes(load(run_file(path)), load(run_file(second))))
        old: str | int = path
        new: str | int = second
    else:
        with History(run_file(path), first_step=0) as history:
            old, new = _two_steps(history, second, third)
            found = history.diff(old, new)
    counts = Counter(_kind(change) for change in found)
    summary = {kind: counts[kind] for kind in ("changed", "added", "removed")}
    if as_json:
        emit({"old": old, "new": new, "summary": summary, "changes": [_as_result(change) for change in found]})
        return
    for change in found[:limit]:
        say(*_described(change))
    if len(found) > limit:
        say(f"… {len(found) - limit:,} more: --limit {len(found)} shows them, --json has them whole")
    names = f"step {old} -> step {new}" if isinstance(old, int) else f"{old} -> {new}"
    say(f"{names}: " + (", ".join(f"{count:,} {kind}" for kind, count in summary.items() if count) or "no difference"))


def _two_steps(history: History[Any], first: str, second: str) -> tuple[int, int]:
    steps = history.all_steps()
    if not steps:
        raise NotFoundError(history.path, fact="the run has no step yet", remedy="save one first")
    new = _number(second) if second else steps[-1]
    if first:
        return _number(first), new
    if len(steps) < 2:
        raise NotFoundError(history.path, fact=f"step {new} is the only one, so there is none to compare it with", remedy="give a second file")
    return steps[-2], new


def _kind(change: Change) -> str:
    return "added" if change.old is ABSENT else "removed" if change.new is ABSENT else "changed"


def _as_result(change: Change) -> dict[str, Any]:
    """A value that is not there has no key."""
    return {"path": change.path} | {name: value for name, value in (("old", change.old), ("new", change.new)) if value is not ABSENT}


def _described(change: Change) -> tuple[str, str]:
    """The line for a change, and its colour."""
    if change.old is ABSENT:
        return f"+ {change.path}  {_shown(change.new)}", "green"
    if change.new is ABSENT:
        return f"- {change.path}  {_shown(change.old)}", "red"
    old, new = change.old, change.new
    if type(old) is str and type(new) is str and min(len(old), len(new)) > 40:
        # Of two long texts the beginning may be all that is shown, and the same: from a little before where they part.
        start = max(0, next((i for i, (x, y) in enumerate(zip(old, new, strict=False)) if x != y), min(len(old), len(new))) - 12)
        if start:
            return f"~ {change.path}  {_shown('…' + old[start:])} -> {_shown('…' + new[start:])}", "yellow"
    return f"~ {change.path}  {_shown(old)} -> {_shown(new)}", "yellow"


class _Short(reprlib.Repr):
    """A few items of a container, and of each a few."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxstring, self.maxother = 2, 4, 4, 24, 24

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002 (the base class's)
        return abridged(x)


def _shown(value: Any) -> str:
    if not isinstance(value, (dict, list)):
        return abridged(value)
    text = _Short().repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..{'}' if isinstance(value, dict) else ']'}"


def series(
    path: File,
    names: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Where the values are: state.eval_prev_acc, log_history.-1.loss, packs[3]['odd key'].")
    ],
    steps: Annotated[str, typer.Option("--steps", metavar="A:B", help="Only from step A to step B, both included; either may be left out.")] = "",
    stride: Annotated[int, typer.Option(min=1, metavar="N", help="Of these every N-th.")] = 1,
    csv: Annotated[
        str, typer.Option("--csv", metavar="FILE", help="Write a table instead of plotting, values as in JSON; - for standard output.")
    ] = "",
    picture: Annotated[str, typer.Option("--svg", metavar="FILE", help="Write a picture instead of plotting; - for standard output.")] = "",
    as_json: Json = False,
) -> None:
    """One value, or several, across the steps of a run: as a plot in the terminal, a table, or a picture.

    Steps that do not have the value are left out. Only numbers are drawn (true is 1, false is 0).
    """
    if as_json + (csv == "-") + (picture == "-") > 1:
        raise typer.BadParameter("only one of --json, --csv - and --svg - goes to standard output", param_hint="-")
    first, last = _bounds(steps)
    for target, start in ((csv, b"step,"), (picture, b"<?xml")):
        _check_target(target, start)
    with History(run_file(path), first_step=0) as history:
        chosen = [step for step in history.all_steps() if first <= step and (last is None or step <= last)][::stride]
        if steps and not chosen:
            raise NotFoundError(history.path, fact=f"the run has no step in {steps}", remedy="`fastckpt log` lists its steps")
        curves = [Curve(name, history.series(name, chosen or None)) for name in dict.fromkeys(names)]
    if as_json:
        emit({"path": path, "series": {curve.name: [list(point) for point in curve.points] for curve in curves}})
    if csv:
        _put(csv, table(curves))
    if picture:
        _put(picture, svg(curves, path))
    if as_json or csv or picture:
        if picture and not as_json and "-" not in (csv, picture):
            _say_left_out(curves)
        return
    if any(numbers(curve) for curve in curves):
        size = Console(file=sys.stdout).size
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        width, height = max(40, min(size.width, 160)), max(12, min(size.height - len(curves) - 2, 32))
        text = in_terminal([curve._replace(name=clean(curve.name)) for curve in curves], width, height, colour=colour, unicode=_prints("⠒│"))
        write_out(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
    for curve in curves:
        if points := numbers(curve):
            low, high = min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])
            (start_step, start_value), (end_step, end_value) = points[0], points[-1]
            ends = f"{start_value:.6g} at step {start_step}, {end_value:.6g} at step {end_step}"
            say(f"{curve.name}  {ends}; least {low[1]:.6g} ({low[0]}), most {high[1]:.6g} ({high[0]})")
    _say_left_out(curves)


def _number(text: str) -> int:
    """A step, which is known to be digits."""
    if len(text) > 19:  # more than a step has, and perhaps than Python converts
        raise typer.BadParameter(f"a step is a number below 2**63, got {abridged(text)}")
    return int(text)


def _bounds(text: str) -> tuple[int, int | None]:
    """The first and the last step of `A:B`."""
    first, colon, last = text.partition(":")
    if text and (not colon or not (first or "0").isdecimal() or not (last or "0").isdecimal()):
        raise typer.BadParameter(f"expected A:B, two steps of which either may be left out, got {text!r}", param_hint="--steps")
    return _number(first or "0"), _number(last) if last else None


def _prints(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_target(path: str, start: bytes) -> None:
    """A result is a new file, or takes the place of an earlier one of its kind: never of a checkpoint."""
    if path in ("", "-") or not exists(path):
        return
    with open_file(path) as (fd, _):
        head = read_at(fd, len(start), 0)
    if head not in (start, b""):
        raise ConflictError("the output would replace something else", paths=(path,), remedy="choose another name for it")


def _put(path: str, data: bytes) -> None:
    if path == "-":
        write_out(data)
    else:
        publish(path, data)
        say(f"written  {path}", "green")


def _say_left_out(curves: Sequence[Curve]) -> None:
    for curve in curves:
        if rest := len(curve.points) - len(numbers(curve)):
            say(f"{plural(rest, 'value')} of {curve.name} cannot be drawn: no number, or not a finite one; --csv and --json have all")
