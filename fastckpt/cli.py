"""The command line: what the library does, said to people (or with `--json` to machines).

Results go to standard output, one line a file; errors and warnings to standard error, one line each, with the place and the
remedy. Nothing is coloured, cut or wrapped when it is not a terminal that reads it.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TextIO

import msgspec
import typer
from rich.table import Table

from .codec import Codec
from .console import clean, complain, console_of, emit, new_table, plural, print_columns, ranges, say, size_text, with_bar, write_out
from .container import FILE_HEADER_SIZE, VERSION
from .demo import show as show_demo
from .errors import CheckpointError, CheckpointWarning, ConflictError, CorruptError
from .file import Info, Problem, load, read
from .file import inspect as read_info
from .file import verify as find_problems
from .migrate import Migration, Outcome, attempt, export_all, find, import_type, target_of
from .migrate import export as export_file
from .reader import Entry, Reader
from .repair import marked, repair
from .storage import DISK, exists, open_file, publish, read_at, temporary_folder
from .tree import path_text
from .twin import to_json

__all__ = ["app", "main"]

_EXIT_CODES = """Exit codes: 0 done. 1 one or more of the files failed. 2 wrong usage. 3 no such file. 4 damaged, or not a
checkpoint, or malformed JSON. 5 written by a newer fastckpt. 6 refused by the operating system. 7 does not fit, or is too
large. 8 a conflict that would lose one of two things. 9 another process is writing it. 130 interrupted. migrate ends with 0
or 1; so do export and verify where they take several files."""

app = typer.Typer(name="fastckpt", add_completion=False, pretty_exceptions_enable=False, epilog=_EXIT_CODES, rich_markup_mode=None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Whatever goes wrong on purpose is one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a Chinese path on an ASCII terminal is no reason to fail
    with warnings.catch_warnings():
        warnings.simplefilter("always", CheckpointWarning)
        warnings.showwarning = _show_warning
        try:
            code = int(app(args=None if argv is None else list(argv), prog_name="fastckpt", standalone_mode=False) or 0)
        except CheckpointError as error:
            complain(str(error))
            return error.exit_code
        except OSError as error:
            # Only standard output raises a bare one: a full disk behind `>`. Closed here, or the interpreter writes it again at its end.
            complain(f"cannot write the output: {error.strerror}; free some space, or send it elsewhere")
            try:
                sys.stdout.close()
            except OSError:
                pass  # what it held is lost, as was said
            return 6
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except Exception as error:
            # A usage error: typer's own class, or click's in older versions of typer.
            if not hasattr(error, "format_message"):
                raise
            command = getattr(getattr(error, "ctx", None), "command_path", "fastckpt")
            complain(f"{error.format_message().rstrip('.')}; see `{command} --help`")
            return 2
    if code == 130:
        complain("interrupted; what was written is whole")
    return code


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    if issubclass(category, CheckpointWarning):
        complain(f"warning: {message}")
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))


def _version(wanted: bool) -> None:
    if wanted:
        say(f"fastckpt {VERSION}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False
) -> None:
    """Durable, checked, compact checkpoints of plain-data training state."""
    if context.invoked_subcommand is None:
        write_out(context.get_help().encode() + b"\n")


_Force = Annotated[bool, typer.Option("--force", help="Replace a target that holds something else.")]
_Json = Annotated[bool, typer.Option("--json", help="Print results as JSON, and nothing else, on standard output.")]


_File = Annotated[str, typer.Argument(metavar="FILE", help="A checkpoint, or the directory of a run.")]


# --- migrate ---------------------------------------------------------------------------------------------------------


@app.command("migrate")
def _migrate(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="JSON files, or directories to search for them.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="What the files in a directory are called ('*.json', too).")] = "checkpoint.json",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Prove everything, write nothing.")] = False,
    force: _Force = False,
    spec: Annotated[str, typer.Option("--type", metavar="MODULE:CLASS", help="Check that the data fits this type; it is stored untyped.")] = "",
    convert: Annotated[bool, typer.Option("--convert", help="With --type: store it as that type (text keys become numbers, lists sets).")] = False,
    encoding: Annotated[str | None, typer.Option(metavar="NAME", help="What the JSON was written in, if not UTF-8 (gbk, for one).")] = None,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="How many processes share the work.")] = 1,
    report: Annotated[str | None, typer.Option(metavar="FILE", help="Write all results to this file, as JSON.")] = None,
    as_json: _Json = False,
) -> None:
    """Write a checked binary checkpoint beside each checkpoint.json, proven to export back; the JSON stays as it is.

    A second run does nothing. What cannot be migrated is named and does not stop the rest; then the exit code is 1.
    """
    _check_type(spec, convert)
    failed: list[CheckpointError] = []
    files = [str(file) for file in find(paths, name=name, on_error=failed.append)]
    _check_report(report, files)
    outcomes = [Outcome(str(getattr(error, "path", "")), None, error) for error in failed]
    options = {"type": spec, "convert": convert, "force": force, "dry_run": dry_run, "encoding": encoding}
    for outcome in _with_outcomes(outcomes, files, jobs, options):
        for text in outcome.warnings:
            complain(f"warning: {text}")
        if outcome.error is not None:
            complain(str(outcome.error))
        elif outcome.migration is not None and not as_json:
            say(_described(outcome.migration), "yellow" if outcome.migration.status == "newer, left alone" else "green")
    results = [_as_result(outcome) for outcome in outcomes]
    counts = Counter(result["status"] for result in results)
    summary = dict(sorted(counts.items(), key=lambda item: (item[0] == "failed", item[0])))
    document = {"fastckpt": VERSION, "summary": summary, "files": results}
    if as_json:
        emit(document)
    else:
        say(f"{plural(len(results), 'file')}: " + ", ".join(f"{count:,} {status}" for status, count in summary.items()))
    if report is not None:
        publish(report, to_json(document) + b"\n")
    raise typer.Exit(1 if counts["failed"] else 0)


def _check_type(spec: str, convert: bool) -> None:
    if convert and not spec:
        raise typer.BadParameter("needs --type", param_hint="--convert")
    if spec:
        if "" not in sys.path:
            sys.path.insert(0, "")  # an installed command does not import from the current directory by itself
        try:
            Codec(import_type(spec))
        except CheckpointError as error:
            raise typer.BadParameter(str(error), param_hint="--type") from error


def _check_report(report: str | None, files: Sequence[str]) -> None:
    """The report is a new file, or takes the place of an earlier report: never of a checkpoint, by whatever name."""
    if report is None:
        return
    taken = {os.path.normcase(DISK.resolve(path)) for file in files for path in (file, target_of(file))}
    resolved = os.path.normcase(DISK.resolve(report))
    head = b""
    if exists(report):
        with open_file(report) as (fd, _):
            head = read_at(fd, 64, 0)
    if resolved in taken or (head and b'"fastckpt"' not in head):
        raise ConflictError("the report would replace something else", paths=(report,), remedy="choose another name for the report")


def _with_outcomes(outcomes: list[Outcome], files: Sequence[str], jobs: int, options: dict[str, Any]) -> Iterable[Outcome]:
    """Those that are there already, then those of `files` as they come (after all of them where a bar is drawn), all kept in `outcomes`."""
    ready = list(outcomes)

    def kept() -> Iterator[Outcome]:
        for outcome in _run(files, jobs, options):
            outcomes.append(outcome)
            yield outcome

    if not sys.stderr.isatty():
        return (outcome for part in (ready, kept()) for outcome in part)
    return [*ready, *with_bar(kept(), "migrating", len(files))]


def _run(files: Sequence[str], jobs: int, options: dict[str, Any]) -> Iterator[Outcome]:
    """The outcome of each file, in order; in worker processes where there are more jobs than one."""
    work = functools.partial(attempt, **options)
    if jobs == 1 or len(files) < 2:
        yield from map(work, files)
        return
    # Two sources of one target (a.json, a.JSON) must see each other's work: the later ones wait for the end.
    first = {target_of(file): file for file in reversed(files)}
    later = [file for file in files if first[target_of(file)] != file]
    # Spawned, not forked: a fork inherits locks and threads in any state.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(files)), spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        # Ctrl-C reaches every process of the terminal, and is the parent's to handle: ignored in the workers, from birth.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            futures = [(file, pool.submit(work, file)) for file in sorted(first.values())]
        finally:
            signal.signal(signal.SIGINT, handler)
        for file, future in futures:
            try:
                yield future.result()
            except BrokenProcessPool:
                killed = CheckpointError(f"a worker process was killed before {file} was done", remedy="migrate again with fewer `--jobs`")
                yield Outcome(file, None, killed)
    finally:
        pool.shutdown(cancel_futures=True)
    yield from map(work, later)


def _described(done: Migration) -> str:
    sizes = size_text(done.source_bytes)
    if done.target_bytes:
        sizes += f" -> {size_text(done.target_bytes)} ({done.source_bytes / done.target_bytes:.1f}x)"
    return f"{done.status:<13}  {done.source} -> {done.target}  {sizes}" + (f"  {done.proof}" if done.proof else "")


def _as_result(outcome: Outcome) -> dict[str, Any]:
    if outcome.migration is not None:
        result: dict[str, Any] = msgspec.structs.asdict(outcome.migration)
    else:
        result = {"source": outcome.source, "status": "failed", "error": type(outcome.error).__name__, "message": str(outcome.error)}
    return result | ({"warnings": list(outcome.warnings)} if outcome.warnings else {})


# --- export, inspect, verify -----------------------------------------------------------------------------------------


@app.command("export")
def _export(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Checkpoints, or directories to search for them.")],
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Where it goes instead of standard output.")] = None,
    step: Annotated[int | None, typer.Option(min=0, metavar="N", help="Of a run this step, not the newest.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Of a run every step, each to step-N.json in the directory --output.")] = False,
    beside: Annotated[bool, typer.Option("--beside", help="Write X.json beside X.fastckpt; for several files and directories always so.")] = False,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the files in a directory are called.")] = "*.fastckpt",
    force: _Force = False,
) -> None:
    """The way back: the JSON of a checkpoint, to standard output (exactly its bytes), to a file, or beside each checkpoint.

    Of a run, its newest step, the one given, or all. Where several are exported, what fails is named and does not stop the rest; then
    the exit code is 1.
    """
    if every or step is not None:
        option = "--all" if every else "--step"
        if len(paths) != 1 or beside or (every and step is not None):
            raise typer.BadParameter("takes one run, no --beside, and not both of --step and --all", param_hint=option)
        paths = [_run_file(paths[0])]
    if every:
        if output is None:
            raise typer.BadParameter("needs --output, a directory", param_hint="--all")
        _export_all(paths[0], output, force)
        return
    failed: list[CheckpointError] = []
    files = [str(file) for file in find(paths, name=name, on_error=failed.append)]
    if len(paths) == 1 and not files:
        raise failed[0]
    single = len(paths) == 1 and files == [str(Path(paths[0]))]
    if output is not None and (beside or not single):
        raise typer.BadParameter("takes one checkpoint, and no --beside", param_hint="--output")
    if single and not beside:
        data = export_file(files[0], output, step=step, force=force)
        if output is None:
            write_out(data)
        else:
            say(f"exported  {files[0]} -> {output}  {size_text(len(data))}", "green")
        return
    for error in failed:
        complain(str(error))
    for file in files:
        target = target_of(file, ".json", ".fastckpt")
        try:
            data = export_file(file, target, force=force)
        except CheckpointError as error:
            failed.append(error)
            complain(str(error))
        else:
            say(f"exported  {file} -> {target}  {size_text(len(data))}", "green")
    raise typer.Exit(1 if failed else 0)


def _export_all(path: str, folder: str, force: bool) -> None:
    done = failed = size = 0
    for exported in with_bar(export_all(path, folder, force=force), "exporting", None):
        if exported.error is not None:
            failed += 1
            complain(f"step {exported.step}: {exported.error}")
        else:
            done += 1
            size += exported.size
    say(f"exported  {plural(done, 'step')} of {path} -> {folder}  {size_text(size)}" + (f", {failed:,} failed" if failed else ""), "green")
    raise typer.Exit(1 if failed else 0)


def _run_file(path: str) -> str:
    """The file of the run in a directory; a file is its own."""
    inside = os.path.join(path, "checkpoint.fastckpt")
    return inside if exists(inside) else path


class _Field(NamedTuple):
    """A value at most two levels down: its path, the bytes that it takes encoded, what kind of value it is, and what is in it."""

    path: str
    bytes: int
    holds: str
    fields: list[_Field]


# Rows of a table for people; `--json` has them all.
_ROWS = 20


@app.command("inspect")
def _inspect(path: _File, as_json: _Json = False) -> None:
    """What is in a checkpoint: its header, and the fields by the bytes that they take before compression; of a run, its newest step."""
    path = _run_file(path)
    info = read_info(path)
    document = read(path)
    fields = _fields(Codec().decode(document.message, info.has_ext, path=path), ())
    run = _counted(path) if info.kind == "run" else None
    if as_json:
        listed = [{"path": each.path, "bytes": each.bytes, "holds": each.holds} for field in fields for each in (field, *field.fields)]
        emit({"header": info, **({"run": run} if run else {}), "fields": listed})
        return
    for key, value in _header(info):
        say(f"{key:<9} {value}")
    if run:
        say(f"run       {plural(run['steps'], 'step')}, {run['first']} to {run['newest']}, in {plural(run['records'], 'record')}")
    table = new_table("field", "bytes", "share", "holds")
    _add_rows(table, fields, info.message_bytes, "")
    if fields:
        console_of(sys.stdout).print(table)


def _counted(path: str) -> dict[str, Any]:
    """How many records a run has, how many of them are live steps, and which are the first and the newest."""
    with closing(Reader(path)) as reader:
        records = list(marked(reader))
    steps = [entry.header.step for entry, live in records if live]
    return {"records": len(records), "steps": len(steps), "first": steps[-1], "newest": steps[0]}


def _add_rows(table: Table, fields: list[_Field], total: int, indent: str) -> None:
    for field in fields[:_ROWS]:
        table.add_row(indent + clean(field.path), f"{field.bytes:,}", f"{100 * field.bytes / total:.1f}%", field.holds)
        _add_rows(table, field.fields, total, indent + "  ")
    if rest := fields[_ROWS:]:
        count = sum(field.bytes for field in rest)
        table.add_row(f"{indent}{len(rest):,} more", f"{count:,}", f"{100 * count / total:.1f}%", "")


def _fields(value: Any, steps: tuple[object, ...]) -> list[_Field]:
    """The fields of a value, largest first."""
    items: Iterable[tuple[object, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and not steps:  # below that, hundreds of alike things are not to be looked at one by one
        items = enumerate(value)
    fields = []
    for key, item in items:
        below = (*steps, key)
        kind = "None" if item is None else type(item).__name__
        holds = f"{kind} of {len(item):,}" if isinstance(item, (dict, list, str, bytes)) else kind
        inner = _fields(item, below) if not steps and isinstance(value, dict) else []
        fields.append(_Field(path_text(below), len(Codec().encode(item).message), holds, inner))
    return sorted(fields, key=lambda field: -field.bytes)


def _header(info: Info) -> Iterator[tuple[str, str]]:
    yield "file", f"{info.path}, {size_text(info.file_bytes)} ({info.kind}, format {info.format_version}, id {info.file_id})"
    yield "message", f"{size_text(info.message_bytes)} before {info.codec}" + (", with Ext values" if info.has_ext else "")
    written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(info.time // 10**9))
    yield "written", f"{written} by fastckpt {info.writer}" + (f", step {info.step}" if info.step is not None else "")
    if info.type:
        yield "type", f"{info.type} (schema {info.schema})"
    if info.source is not None:
        yield "source", f"{'migrated from' if info.source.migrated else 'descends from'} JSON of digest {info.source.digest}"
    if info.meta:
        yield "meta", to_json(info.meta).decode().replace("\n", " ")


@app.command("verify")
def _verify(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Checkpoints, or directories to search for them.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="What the files in a directory are called.")] = "*.fastckpt",
    as_json: _Json = False,
) -> None:
    """Read checkpoints whole and check every checksum; JSON files are parsed.

    Each problem is named. The exit code says what is wrong with a single file; it is 1 where several were given.
    """
    failed: list[CheckpointError] = []
    files = [str(file) for file in find(paths, name=name, on_error=failed.append)]
    results = [_unsound(str(getattr(error, "path", "")), error) for error in failed]
    code = failed[0].exit_code if failed else 0
    for file in files:
        try:
            problems = [{"offset": problem.offset, "fact": _placed(file, problem)} for problem in find_problems(file)]
            results.append({"path": file, "sound": not problems, "problems": problems})
            code = _code_of(file) if problems else code
        except CheckpointError as error:
            results.append(_unsound(file, error))
            code = error.exit_code
    for result in results:
        for problem in result["problems"]:
            complain(problem["fact"])
        if result["sound"] and not as_json:
            say(f"sound  {result['path']}", "green")
    bad = sum(not result["sound"] for result in results)
    if as_json:
        emit({"fastckpt": VERSION, "summary": {"sound": len(results) - bad, "bad": bad}, "files": results})
    else:
        say(f"{plural(len(results), 'file')}: {len(results) - bad:,} sound, {bad:,} bad")
    raise typer.Exit(code if len(results) == 1 else min(code, 1))


def _unsound(path: str, error: CheckpointError) -> dict[str, Any]:
    return {"path": path, "sound": False, "problems": [{"offset": getattr(error, "offset", None), "fact": str(error)}]}


def _placed(path: str, problem: Problem) -> str:
    """The fact with its place and remedy, which those that a run's records are judged by do not have."""
    return problem.fact if path in problem.fact else f"{problem.fact} in {path} at byte {problem.offset}; `fastckpt repair` keeps what is readable"


def _code_of(path: str) -> int:
    """The exit code for what is wrong with a file."""
    try:
        load(path)
    except CheckpointError as error:
        return error.exit_code
    return 4  # of a run the newest step can be read


# --- log, repair -----------------------------------------------------------------------------------------------------


@app.command("log")
def _log(
    path: _File,
    last: Annotated[int | None, typer.Option(min=1, metavar="N", help="The last N only; the rest is not even read.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also steps that were deleted or left behind, and what retired them.")] = False,
    as_json: _Json = False,
) -> None:
    """The steps of a run, the newest last: sizes, times, metrics. Read from the headers alone, beside a writer too."""
    path = _run_file(path)
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
    print_columns([_row(record) for record in records])


_MEND = "`fastckpt repair` keeps what is readable"


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
        "stream": header.stream,
        "key": header.key,
        "retires": [list(each) for each in header.retires],
        "metrics": msgspec.msgpack.decode(header.metrics),
        "meta": msgspec.msgpack.decode(header.meta),
    }


def _row(record: dict[str, Any]) -> dict[str, str]:
    """What people see of a record; a column that is empty in all of them is not shown."""
    retires = ", ".join(f"{first} on" if last is None else str(first) if last == first else f"{first} to {last}" for first, last in record["retires"])
    return {
        "step": "-" if record["step"] is None else str(record["step"]),
        "record": str(record["sequence"]),
        "written (UTC)": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record["time"] // 10**9)),
        "message": f"{record['message_bytes']:,}",
        "in file": f"{record['file_bytes']:,}",
        "base": "base" if record["base"] else "",
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


@app.command("repair")
def _repair(path: _File, as_json: _Json = False) -> None:
    """Move every step of a damaged run that can be read into a new file. The old one is kept beside it; a sound run is left alone."""
    path = _run_file(path)
    done = repair(path)
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


# --- demo ------------------------------------------------------------------------------------------------------------


@app.command("demo")
def _demo(
    folder: Annotated[str | None, typer.Argument(metavar="[DIR]", help="Where the files are kept; without it they are thrown away.")] = None,
    steps: Annotated[int, typer.Option(min=10, metavar="N", help="How many steps to train.")] = 200,
) -> None:
    """A small training run that checkpoints every step, is killed in the middle, and goes on; compared with one that was not, and with JSON."""
    with temporary_folder() if folder is None else nullcontext(folder) as place:
        show_demo(place, steps)
