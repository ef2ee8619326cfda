"""Commands for a run: its log, also while it grows, compaction, repair."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any, Literal

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from .codec import unpack_meta
from .compaction import Compaction
from .console import File, Json, columns_of, complain, console_of, emit, plural, print_columns, ranges, run_file, say, size_text, write_out
from .container import FILE_HEADER_SIZE
from .errors import CorruptError, NotFoundError
from .manager import CheckpointManager
from .reader import Entry, Reader
from .repair import marked
from .repair import repair as mend
from .retention import Plan, Retention
from .storage import exists
from .twin import to_json

__all__ = ["compact", "log", "repair"]


def log(
    path: File,
    last: Annotated[int | None, typer.Option(min=1, metavar="N", help="The last N only; the rest is not even read.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also steps that were deleted or left behind, and what retired them.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on showing steps as they are saved, until Ctrl-C; with --json a line each.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The steps of a run, the newest last: sizes, times, metrics. Read from the headers alone, beside a writer too."""
    path = run_file(path)
    if follow:
        _follow(path, last or _SHOWN, every, as_json)
        return
    with closing(Reader(path)) as reader:
        damage = reader.damage
        if reader.newest is None:
            fact = damage.fact if damage else "no record"
            raise CorruptError(fact, path=path, offset=damage.offset if damage else None, remedy=_MEND)
        gaps: list[str] = []
        wanted = ((entry, live) for entry, live in _walked(reader, gaps) if live or every)
        records = [_as_record(entry, live) for entry, live in itertools.islice(wanted, last)][::-1]
        kind = "single" if reader.single else "run"
    if damage is not None:
        gaps.insert(0, f"{damage.fact} at byte {damage.offset}")
    if gaps:
        more = f", and in {plural(len(gaps) - 1, 'place')} more" if gaps[1:] else ""
        torn = damage is not None and damage.torn and not more
        remedy = "it is being written, or a crash left it so, and the next save mends it" if torn else _MEND
        complain(f"warning: {path} is damaged: {gaps[0]}{more}; {remedy}")
    if as_json:
        found = None if damage is None else {"offset": damage.offset, "bytes": damage.size, "torn": damage.torn, "fact": damage.fact}
        emit({"path": path, "kind": kind, "damage": found, "gaps": gaps, "records": records})
        return
    print_columns(_rows(records))


_MEND = "`fastckpt repair` keeps what is readable"
# Steps that `--follow` begins with, and how often it looks, in seconds: a look costs one `stat` when nothing was saved.
_SHOWN, _PERIOD = 10, 0.2
# A line that is printed at once can only tell of the save before.
_BEFORE = "blocked ms before"


def _follow(path: str, shown: int, every: bool, as_json: bool) -> None:
    """Show the last steps of a run and those that are saved from now on; ends with Ctrl-C."""
    try:
        with closing(Reader(path)) as reader:
            if sys.stdout.isatty() and not as_json:
                _watch(reader, shown, every)
                return
            header = not as_json
            for records in _arriving(reader, shown, every):
                if as_json:
                    for record in records:
                        write_out(to_json(record, indent=None) + b"\n")
                elif records:
                    rows = [_row(record, record["previous_blocked_seconds"]) for record in records]
                    print_columns(
                        [{_BEFORE if name == "blocked ms" else name: text for name, text in row.items()} for row in rows], every=True, header=header
                    )
                    header = False
    except KeyboardInterrupt:
        return  # how it is meant to end


def _arriving(reader: Reader, shown: int, every: bool) -> Iterator[list[dict[str, Any]]]:
    """The last records, oldest first, then, as they come, those that are new; an empty list for each look that found nothing."""
    newest, file = 0, b""
    while True:
        found: list[dict[str, Any]] = []
        if reader.newest is not None and reader.newest.header.file != file:
            newest, file = 0, reader.newest.header.file  # another run in its place
        for entry, live in marked(reader):
            if entry.sequence <= newest or (not newest and len(found) == shown):
                break
            if live or every:
                found.append(_as_record(entry, live))
        newest = max(newest, reader.newest.sequence if reader.newest else 0)
        yield found[::-1]
        time.sleep(_PERIOD)
        reader.refresh()


def _watch(reader: Reader, shown: int, every: bool) -> None:
    """On a terminal: the last steps in a table that moves, and below it what the run does."""
    console, first, count = console_of(sys.stdout), time.time(), 0
    records: list[dict[str, Any]] = []
    with Live(console=console, auto_refresh=False, screen=False) as live:
        for arrived in _arriving(reader, shown, every):
            count += len(arrived) if records else 0
            # A step that was gone back to is shown again, and what came after it is not.
            back = min((record["step"] for record in arrived if record["step"] is not None), default=None)
            kept = [record for record in records if back is None or every or record["step"] is None or record["step"] < back]
            records = [*kept, *arrived][-min(shown, max(console.size.height - 4, 1)) :]
            lines = [Text(line, no_wrap=True) for line in columns_of(_rows(records))]
            ago = time.time() - records[-1]["time"] / 1e9 if records else 0.0
            rate = f", {count / (time.time() - first):.1f} a second" if count else ""
            said = f"{plural(count, 'step')} since this began{rate}; the last one {max(ago, 0):.0f} s ago; file {size_text(reader.size)}"
            live.update(Group(*lines, Text(said, style="dim")), refresh=True)


def _walked(reader: Reader, gaps: list[str]) -> Iterator[tuple[Entry, bool]]:
    """Every record and whether it is live, newest first; what lies between two and is none is added to `gaps`."""
    end: int | None = None
    for entry, live in marked(reader):
        after = entry.offset + entry.length
        if end is not None and after < end:
            gaps.append(f"{end - after:,} bytes at byte {after} are no record")
        end = entry.offset
        yield entry, live
    if end is not None and end > FILE_HEADER_SIZE:
        gaps.append(f"{end - FILE_HEADER_SIZE:,} bytes at byte {FILE_HEADER_SIZE} are no record")


def _as_record(entry: Entry, live: bool) -> dict[str, Any]:
    header = entry.header
    return {
        "step": header.step,
        "sequence": entry.sequence,
        "kind": header.kind,
        "live": live,
        "base": header.kind == "state" and header.base,
        "time": header.time,
        "message_bytes": header.message,
        "file_bytes": entry.length,
        "previous_blocked_seconds": header.blocked / 1e6 if header.blocked else None,
        "stream": header.stream,
        "key": header.key,
        "retires": [list(each) for each in header.retires],
        "metrics": unpack_meta(header.metrics, path=entry.file.path if entry.file else "", offset=entry.offset),
        "meta": unpack_meta(header.meta, path=entry.file.path if entry.file else "", offset=entry.offset),
    }


def _rows(records: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What people see of records. How long a save kept its caller stands in the record after it."""
    blocked = {record["sequence"] - 1: record["previous_blocked_seconds"] for record in records}
    return [_row(record, blocked.get(record["sequence"])) for record in records]


def _row(record: dict[str, Any], blocked: float | None) -> dict[str, str]:
    """What people see of a record; a column that is empty in all of them is not shown."""
    retires = ", ".join(f"{first} on" if last is None else str(first) if last == first else f"{first} to {last}" for first, last in record["retires"])
    return {
        "step": "-" if record["step"] is None else str(record["step"]),
        "record": str(record["sequence"]),
        "written (UTC)": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record["time"] // 10**9)),
        "message": f"{record['message_bytes']:,}",
        "in file": f"{record['file_bytes']:,}",
        "base": "base" if record["base"] else "",
        "blocked ms": "" if blocked is None else f"{1e3 * blocked:.1f}",
        "state": "" if record["live"] else "retired" if record["kind"] == "state" else "tombstone",
        "retires": retires if record["kind"] == "tombstone" or not record["live"] else "",
        "stream": record["stream"],
        "key": record["key"],
        "metrics": _pairs(record["metrics"]),
        "meta": _pairs(record["meta"]),
    }


def _pairs(values: dict[str, Any]) -> str:
    texts = (f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items())
    text = " ".join(texts)
    return text if len(text) <= 80 else text[:79] + "…"


def repair(path: File, as_json: Json = False) -> None:
    """Move every step of a damaged run that can be read into a new file. The old one is kept beside it; a sound run is left alone."""
    path = run_file(path)
    done = mend(path)
    steps = [header.step for header in done.kept]
    if as_json:
        lost = [{"step": each.step, "sequence": each.sequence, "fact": each.fact} for each in done.lost]
        emit({"path": path, "sound": done.aside is None, "kept": steps, "lost": lost, "aside": done.aside})
    elif done.aside is None:
        say(f"sound  {path}: nothing to repair", "green")
    else:
        # One bad record can take many steps along, all for the same reason.
        for fact, alike in itertools.groupby(done.lost, key=lambda each: each.fact):
            gone = ranges([each.step for each in alike])
            say("lost      " + (f"step {gone}: " if gone else "") + fact, "yellow")
        say(f"repaired  {path}: {plural(len(steps), 'step')} kept ({ranges(steps)}), {len(done.lost):,} lost", "green")
        say(f"aside     the old file is {done.aside}")


def compact(
    path: File,
    max_to_keep: Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep the newest N steps (with --best, the best N).")] = None,
    keep_period: Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep besides every step that N divides.")] = None,
    keep_time_interval: Annotated[float | None, typer.Option(metavar="SECONDS", help="Keep besides one step in so many seconds.")] = None,
    best: Annotated[str | None, typer.Option(metavar="METRIC", help="The metric by which the best are told.")] = None,
    best_mode: Annotated[str, typer.Option(metavar="max|min", help="Whether the largest or the smallest is best.")] = "max",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say of each step whether it would be kept, and why; change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Take out of a run's file what is retired: steps that were deleted, left behind, or that the options do not keep.

    The newest step is always kept. Without options only what is retired already goes. Its writer must not be running.
    """
    if best_mode not in ("max", "min"):
        raise typer.BadParameter("is max or min", param_hint="--best-mode")
    mode: Literal["max", "min"] = "max" if best_mode == "max" else "min"
    if max_to_keep is None and (keep_period or keep_time_interval or best):
        raise typer.BadParameter("is what the other options keep steps besides", param_hint="--max-to-keep")
    try:
        Retention(keep_time_interval=keep_time_interval)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--keep-time-interval") from error
    path = run_file(path)
    if not exists(path):  # a manager would begin a run
        raise NotFoundError(path, operation="open")
    with CheckpointManager(
        path, read_only=dry_run, max_to_keep=max_to_keep, keep_period=keep_period, keep_time_interval=keep_time_interval, best_fn=best,
        best_mode=mode, max_file_bytes=None, first_step=0,
    ) as manager:  # fmt: skip
        plan = manager.plan()
        done = None if dry_run else manager.compact()
    if as_json:
        keep = set(plan.keep)
        reasons = [{"step": step, "keep": step in keep, "reasons": why} for step, why in sorted(plan.reasons.items())]
        emit({"path": path, "dry_run": dry_run, "steps": reasons, "compaction": None if done is None else done._asdict()})
        return
    if dry_run:
        kept = set(plan.keep)
        rows = [(str(step), "keep" if step in kept else "drop", ", ".join(why)) for step, why in sorted(plan.reasons.items())]
        print_columns([{"step": step, "plan": verdict, "why": why} for step, verdict, why in rows])
    say(_said(path, plan, done, dry_run), "green")


def _said(path: str, plan: Plan, done: Compaction | None, dry_run: bool) -> str:
    if dry_run:
        return f"dry run   {path}: {plural(len(plan.keep), 'step')} would be kept, {len(plan.drop):,} dropped"
    if done is None:
        return f"compact   {path}: nothing to drop"
    sizes = f"{size_text(done.before)} -> {size_text(done.after)}"
    return f"compacted {path}: {sizes}, {plural(len(plan.keep), 'step')} kept, {plural(done.dropped, 'record')} dropped"
