"""The command that measures what saving a user's own state costs on their own disk: JSON against a run of ours."""

from __future__ import annotations

import math
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from .console import File, Json, console_of, emit, new_table, plural, run_file, say, size_text
from .replay import CONTENDERS, Contender, Costs, replay
from .storage import temporary_folder
from .upkeep import MAX_FILE_BYTES

__all__ = ["bench"]

_LABELS = dict(zip(CONTENDERS, ("JSON, no fsync", "JSON + fsync", "fastckpt, sync", "fastckpt, async"), strict=True))


def bench(
    path: File,
    folder: Annotated[str, typer.Option("--dir", metavar="DIR", help="Measure on the disk of this directory (default: the one of FILE).")] = "",
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="How many steps the run has whose file is forecast.")] = 1000,
    step_seconds: Annotated[
        float | None, typer.Option("--step-seconds", metavar="S", help="How long a step of your training takes; says what share saving is of it.")
    ] = None,
    change: Annotated[
        float, typer.Option("--change", metavar="SHARE", help="The share of a single state's values that a made-up step changes.")
    ] = 0.01,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=2, metavar="N", help="How many steps each is timed for (default: what 20 seconds allow).")
    ] = None,
    as_json: Json = False,
) -> None:
    """What saving costs a step with your own state, on your own disk: as JSON, and as a run of fastckpt.

    FILE is a checkpoint (JSON or ours) or the directory of a run, and is only read. A run is replayed by its last steps; of a single state the
    steps are made up: as many values as --change says become others, all over the state, always the same ones. That is more than most steps
    of a training change. All is written to a temporary directory in --dir, and removed.

    Measured are saves of the same steps, in turn, with nothing running beside them: what they make the caller wait, and how long until the
    step is durable; medians, and from the 10th to the 90th percentile. JSON without fsync may leave nothing after a loss of power; both ways
    of JSON keep the newest step only.

    What a loop waits is computed from that and from what a base takes, a step that is written whole. An async save costs no more than what
    it blocks where a step of training is long enough to write it in. Your training is not run: where it is bound by Python code, async gains
    less, for its writer's thread shares the interpreter.
    """
    if not 0 <= change <= 1:
        raise typer.BadParameter("is a share from 0 to 1", param_hint="--change")
    if step_seconds is not None and not 0 < step_seconds < math.inf:
        raise typer.BadParameter("is above 0, in seconds", param_hint="--step-seconds")
    path = run_file(path)
    place = folder or os.path.dirname(path) or os.curdir
    with temporary_folder(place) as inside, Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading", total=1.0)
        costs = replay(
            path, inside, change=change, rounds=rounds, steps=steps, on_step=lambda what, done: bar.update(task, completed=done, description=what)
        )
    if as_json:
        emit(_as_result(path, place, costs, change, steps, step_seconds))
    else:
        _show(path, place, costs, change, steps, step_seconds)


def _as_result(path: str, place: str, costs: Costs, change: float, steps: int, step_seconds: float | None) -> dict[str, Any]:
    """Times in seconds, sizes in bytes. `contenders` are measured, `forecast` and `loop` computed: see `Growth` and `Costs`.

    `waits_seconds` is for all the steps together, `step_needed_seconds` for one; without a time for a step, async is as if one took that long.
    """
    newest = costs.contenders["json"].spread("written").median
    own = {"real": costs.steps, "change": None if costs.steps else change, "values": costs.values, "changed_values": costs.changed or None}
    return {
        "path": path,
        "kind": costs.kind,
        "directory": place,
        "in_json_form": costs.as_json,
        "message_bytes": costs.message_bytes,
        "rounds": costs.rounds,
        "steps": own,
        "contenders": [_contender(each) for each in costs.contenders.values()],
        "forecast": {
            "steps": steps,
            "json_newest_bytes": round(newest),
            "json_every_bytes": round(newest * steps),
            "run_bytes": round(costs.growth.after(steps)),
            "measured_steps": costs.growth.steps,
            "measured_bytes": costs.growth.file_bytes,
            "base_every_steps": costs.growth.period,
            "base_more_seconds": costs.growth.base_seconds,
            "waits_seconds": {name: steps * costs.waits(name, step_seconds or math.inf) for name in costs.contenders},
            "step_needed_seconds": costs.step_needed,
        },
        "loop": None
        if step_seconds is None
        else {"step_seconds": step_seconds, "share": {name: _share(costs, name, step_seconds) for name in costs.contenders}},
    }


def _contender(each: Contender) -> dict[str, Any]:
    spreads = {"blocking_seconds": each.spread("blocking"), "total_seconds": each.spread("total"), "written_bytes": each.spread("written")}
    samples = each.blocking, each.total, each.written
    return {"name": each.name, "durable": each.durable, "first_seconds": each.first} | {
        key: {"median": spread.median, "p10": spread.low, "p90": spread.high, "samples": values}
        for (key, spread), values in zip(spreads.items(), samples, strict=True)
    }


def _share(costs: Costs, name: str, step_seconds: float) -> float:
    """How much of the loop's time saving is."""
    waits = costs.waits(name, step_seconds)
    return waits / (step_seconds + waits)


def _show(path: str, place: str, costs: Costs, change: float, steps: int, step_seconds: float | None) -> None:
    kind = {"json": "a JSON file", "single": "one checkpoint", "run": "a run"}[costs.kind]
    form = ", in its JSON form, for JSON does not give it back as it is" if costs.as_json else ""
    say(f"state     {path}: {kind}, {size_text(costs.message_bytes)} encoded, {plural(costs.values, 'value')}{form}")
    if costs.steps:
        say(f"steps     its last {costs.steps:,}, in turn")
    else:
        say(f"steps     made up: each changes {plural(costs.changed, 'value')}, all over the state (--change {change:g})")
    say(f"measured  in {os.path.abspath(place)}, {plural(costs.rounds, 'round')}: all save the same step, in turn, and nothing runs beside them")
    share = [] if step_seconds is None else [f"of a {step_seconds:g} s step"]
    table = new_table("median of a step", "blocks", "10-90%", "durable after", "writes", *share)
    for name, each in costs.contenders.items():
        blocking = each.spread("blocking")
        after = _time(each.spread("total").median) if each.durable else "not durable"
        row = [_time(blocking.median), f"{_time(blocking.low)} - {_time(blocking.high)}", after, size_text(each.spread("written").median)]
        table.add_row(_LABELS[name], *row, *([] if step_seconds is None else [f"{100 * _share(costs, name, step_seconds):.2f}%"]))
    console_of(sys.stdout).print(table)
    newest, size = costs.contenders["json"].spread("written").median, costs.growth.after(steps)
    how = "measured" if steps == costs.growth.steps else f"about, from {costs.growth.steps:,} of them"
    say(f"disk      {plural(steps, 'step')}: {size_text(newest)} of JSON for the newest alone, {size_text(newest * steps)} for every step;")
    say(f"          {size_text(size)} in one file of fastckpt for every step ({how})")
    if size > MAX_FILE_BYTES:
        say(f"          of which the oldest go when it reaches {size_text(MAX_FILE_BYTES)}, unless max_file_bytes or a policy says otherwise")
    _show_loop(costs, steps, step_seconds)


def _show_loop(costs: Costs, steps: int, step_seconds: float | None) -> None:
    """What a loop would wait, and on what that depends."""
    waits = {name: _time(steps * costs.waits(name, step_seconds or math.inf)) for name in costs.contenders}
    needed, more = _time(costs.step_needed), costs.growth.base_seconds
    base = f"{_time(more)} more than another step" if more else "hardly more than another step"
    say(f"loop      computed, for your training is not run: {plural(steps, 'step')} would wait")
    say(f"          {waits['json']} for JSON, {waits['json+fsync']} with fsync;")
    say(f"          {waits['sync']} for fastckpt, sync, bases included (the whole state anew, one step in about {costs.growth.period:,.0f}, {base});")
    if step_seconds is None:
        say(f"          {waits['async']} async, if a step of training takes {needed} or longer; in shorter ones saves wait for one another")
    elif step_seconds >= costs.step_needed:
        say(f"          {waits['async']} async, with steps of {step_seconds:g} s; of {needed} or longer it would be the same")
    else:
        say(f"          {waits['async']} async: in steps shorter than {needed} saves wait for one another")
    say("          a loop that Python code keeps busy gains less from async: its writer's thread shares the interpreter")
    if step_seconds is None:
        say("          --step-seconds S says what share of your loop that is")


def _time(seconds: float) -> str:
    """A time for people, of three digits or so."""
    value, unit = (seconds, "s") if seconds >= 0.9995 else (1e3 * seconds, "ms")
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.9995 else 3
    return f"{value:,.{digits}f} {unit}"
