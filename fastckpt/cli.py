"""The command line: what the library does, said to people (or with `--json` to machines).

Results go to standard output, one line a file; errors and warnings to standard error, one line each, with the place and the
remedy. Nothing is coloured, cut or wrapped when it is not a terminal that reads it.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TextIO

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from .codec import Codec
from .container import VERSION
from .errors import CheckpointError, CheckpointWarning, ConflictError, EncodeError, NotACheckpointError
from .file import Info, load, read, save
from .file import inspect as read_info
from .file import verify as find_problems
from .migrate import Migration, Outcome, attempt, find, import_type, migrate, target_of
from .migrate import export as export_file
from .storage import exists, open_file, publish, read_at, temporary_folder
from .tree import difference, path_text
from .twin import to_json

__all__ = ["app", "main"]

_EXIT_CODES = """Exit codes: 0 done. 1 one or more of the files failed. 2 wrong usage. 3 no such file. 4 damaged, or not a
checkpoint, or malformed JSON. 5 written by a newer fastckpt. 6 refused by the operating system. 7 does not fit, or is too
large. 8 a conflict that would lose one of two files. 130 interrupted. Commands for many files end with 0 or 1."""

app = typer.Typer(name="fastckpt", add_completion=False, pretty_exceptions_enable=False, epilog=_EXIT_CODES, rich_markup_mode=None)


# --- saying it -------------------------------------------------------------------------------------------------------

# What would end a line, move the cursor, turn the reading order or cannot be encoded; names of files may hold it.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def _console(stream: TextIO) -> Console:
    # Without a terminal Rich assumes 80 columns and would cut tables to fit.
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=None if stream.isatty() else 10_000)


def _say(text: str, style: str = "") -> None:
    """One line on standard output; the first word in `style` on a terminal."""
    line = Text(_clean(text))
    line.stylize(style, 0, len(text) - len(text.lstrip()) + len(text.split("  ")[0]))
    _console(sys.stdout).print(line, soft_wrap=True)


def _complain(text: str) -> None:
    """One line on standard error."""
    _console(sys.stderr).print(Text(_clean(f"fastckpt: {text}")), soft_wrap=True)


def _emit(document: Any) -> None:
    """A result for machines."""
    _write(to_json(document) + b"\n")


def _write(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True, overflow="ignore")
    return table


def _size(count: float) -> str:
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.95:
            break
    return f"{count:.1f} {unit}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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
            _complain(str(error))
            return error.exit_code
        except BrokenPipeError:
            # The reader has seen enough. Closed here, or the interpreter complains of the same pipe when it ends.
            try:
                sys.stdout.close()
            except OSError:
                pass
            return 1
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except Exception as error:
            # A usage error: typer's own class, or click's in older versions of typer.
            if not hasattr(error, "format_message"):
                raise
            command = getattr(getattr(error, "ctx", None), "command_path", "fastckpt")
            _complain(f"{error.format_message()}; see `{command} --help`")
            return 2
    if code == 130:
        _complain("interrupted; what was written is whole")
    return code


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None) -> None:
    if issubclass(category, CheckpointWarning):
        _complain(f"warning: {message}")
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def _version(wanted: bool) -> None:
    if wanted:
        _say(f"fastckpt {VERSION}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False
) -> None:
    """Durable, checked, compact checkpoints of plain-data training state."""
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


_Force = Annotated[bool, typer.Option("--force", help="Replace a target that holds something else.")]
_Json = Annotated[bool, typer.Option("--json", help="Print results as JSON, and nothing else, on standard output.")]


# --- migrate ---------------------------------------------------------------------------------------------------------


@app.command("migrate")
def _migrate(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="JSON files, or directories to search for them.")],
    name: Annotated[str, typer.Option(help="What the files in a directory are called; a pattern such as '*.json', too.")] = "checkpoint.json",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Prove everything, write nothing.")] = False,
    force: _Force = False,
    spec: Annotated[str, typer.Option("--type", metavar="MODULE:CLASS", help="Check that the data fits this type; it is stored untyped all the same.")] = "",
    convert: Annotated[bool, typer.Option("--convert", help="With --type: store as that type (keys become numbers, lists sets), without the byte proof.")] = False,
    encoding: Annotated[str | None, typer.Option(help="What the JSON was written in, if not UTF-8 (a Chinese Windows writes gbk).")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many processes share the work.")] = 1,
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
            _complain(f"warning: {text}")
        if outcome.error is not None:
            _complain(str(outcome.error))
        elif outcome.migration is not None and not as_json:
            _say(_described(outcome.migration), "yellow" if outcome.migration.status == "newer, left alone" else "green")
    results = [_as_result(outcome) for outcome in outcomes]
    counts = Counter(result["status"] for result in results)
    document = {"fastckpt": VERSION, "summary": dict(sorted(counts.items())), "files": results}
    if as_json:
        _emit(document)
    else:
        _say(f"{_plural(len(results), 'file')}: " + ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items())))
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
    taken = {os.path.normpath(path) for file in files for path in (file, target_of(file))}
    if report is not None and os.path.normpath(report) in taken:
        raise ConflictError("the report would replace a checkpoint", paths=(report,), remedy="choose another name for the report")


def _with_outcomes(outcomes: list[Outcome], files: Sequence[str], jobs: int, options: dict[str, Any]) -> Iterable[Outcome]:
    """Those that are there already, then those of `files` as they come (after all of them where a bar is drawn), all kept in `outcomes`."""
    ready = list(outcomes)

    def kept() -> Iterator[Outcome]:
        for outcome in _run(files, jobs, options):
            outcomes.append(outcome)
            yield outcome

    if not sys.stderr.isatty():
        return (outcome for part in (ready, kept()) for outcome in part)
    console = Console(stderr=True)
    return [*ready, *track(kept(), "migrating", total=len(files), console=console, transient=True)]


def _run(files: Sequence[str], jobs: int, options: dict[str, Any]) -> Iterator[Outcome]:
    """The outcome of each file, in order; in worker processes where there are more jobs than one."""
    work = functools.partial(attempt, **options)
    if jobs == 1 or len(files) < 2:
        yield from map(work, files)
        return
    # Two sources of one target (a.json, a.JSON) must see each other's work: the later ones wait for the end.
    first = {target_of(file): file for file in reversed(files)}
    later = [file for file in files if first[target_of(file)] != file]
    # Spawned, not forked: a fork inherits locks and threads in any state. Interrupts are the parent's to handle.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(files)), spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        for file, future in [(file, pool.submit(work, file)) for file in sorted(first.values())]:
            try:
                yield future.result()
            except BrokenProcessPool:
                yield Outcome(file, None, CheckpointError(f"a worker process was killed before {file} was done", remedy="migrate again with fewer `--jobs`"))
    finally:
        pool.shutdown(cancel_futures=True)
    yield from map(work, later)


def _described(done: Migration) -> str:
    sizes = _size(done.source_bytes)
    if done.target_bytes:
        sizes += f" -> {_size(done.target_bytes)} ({done.source_bytes / done.target_bytes:.1f}x)"
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
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Checkpoints, or directories to search for them.")],
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Where one checkpoint goes, instead of standard output.")] = None,
    beside: Annotated[bool, typer.Option("--beside", help="Write X.json beside X.fastckpt; for several files and directories always so.")] = False,
    name: Annotated[str, typer.Option(help="What the files in a directory are called.")] = "*.fastckpt",
    force: _Force = False,
) -> None:
    """The way back: the JSON of a checkpoint, to standard output (exactly its bytes), to a file, or beside each checkpoint.

    With several files, what fails is named and does not stop the rest; then the exit code is 1.
    """
    failed: list[CheckpointError] = []
    files = [str(file) for file in find(paths, name=name, on_error=failed.append)]
    single = len(paths) == 1 and (failed or files == [str(Path(paths[0]))])
    if output is not None and (beside or not single):
        raise typer.BadParameter("takes one checkpoint, and no --beside", param_hint="--output")
    if single and failed:
        raise failed[0]
    if single and not beside:
        data = export_file(files[0], output, force=force)
        return _write(data) if output is None else _say(f"exported  {files[0]} -> {output}  {_size(len(data))}", "green")
    for error in failed:
        _complain(str(error))
    for file in files:
        target = target_of(file, ".json", ".fastckpt")
        try:
            data = export_file(file, target, force=force)
        except CheckpointError as error:
            failed.append(error)
            _complain(str(error))
        else:
            _say(f"exported  {file} -> {target}  {_size(len(data))}", "green")
    raise typer.Exit(1 if failed else 0)


class _Field(NamedTuple):
    """A value at most two levels down: its steps, the bytes that it takes encoded, and what kind of value it is."""

    steps: tuple[object, ...]
    bytes: int
    holds: str


@app.command("inspect")
def _inspect(path: Annotated[str, typer.Argument(metavar="FILE", help="A checkpoint.")], as_json: _Json = False) -> None:
    """What is in a checkpoint: its header, and the fields by the bytes that they take before compression."""
    info = read_info(path)
    document = read(path)
    fields = list(_fields(Codec().decode(document.message, info.has_ext, path=path)))
    if as_json:
        listed = [{"path": path_text(field.steps), "bytes": field.bytes, "holds": field.holds} for field in fields]
        return _emit({"header": info, "fields": listed})
    for key, value in _header(info):
        _say(f"{key:<9} {value}")
    table = _table("field", "bytes", "share", "holds")
    for field in fields:
        indent = "  " * (len(field.steps) - 1)
        table.add_row(indent + _clean(path_text(field.steps)), f"{field.bytes:,}", f"{100 * field.bytes / max(info.message_bytes, 1):.1f}%", field.holds)
    if fields:
        _console(sys.stdout).print(table)
    return None


def _header(info: Info) -> Iterator[tuple[str, str]]:
    yield "file", f"{info.path}, {_size(info.file_bytes)} ({info.kind}, format {info.format_version}, id {info.file_id})"
    yield "message", f"{_size(info.message_bytes)} before {info.codec}" + (", with Ext values" if info.has_ext else "")
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(info.time // 10**9))
    yield "written", f"{written} UTC by fastckpt {info.writer}" + (f", step {info.step}" if info.step is not None else "")
    if info.type:
        yield "type", f"{info.type} (schema {info.schema})"
    if info.source is not None:
        yield "source", f"{'migrated from' if info.source.migrated else 'descends from'} JSON of digest {info.source.digest}"
    if info.meta:
        yield "meta", to_json(info.meta).decode().replace("\n", " ")


def _fields(state: Any) -> Iterator[_Field]:
    """The fields of a state, largest first, each followed by its own."""
    for field, value in _below(state, ()):
        yield field
        yield from (child for child, _ in _below(value, field.steps))


def _below(value: Any, steps: tuple[object, ...]) -> list[tuple[_Field, Any]]:
    # A list of hundreds of alike things is no place to look at one by one.
    items: Iterable[tuple[object, Any]] = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) and not steps else ()
    measured = [(_Field((*steps, key), len(Codec().encode(item).message), _kind(item)), item) for key, item in items]
    return sorted(measured, key=lambda pair: -pair[0].bytes)


def _kind(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} of {len(value):,}" if isinstance(value, (dict, list, str, bytes)) else kind


@app.command("verify")
def _verify(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Checkpoints, or directories to search for them.")],
    name: Annotated[str, typer.Option(help="What the files in a directory are called.")] = "*.fastckpt",
    as_json: _Json = False,
) -> None:
    """Read checkpoints whole and check every checksum; JSON files are parsed.

    Each problem is named. The exit code says what is wrong with a single file; it is 1 where several were given.
    """
    failed: list[CheckpointError] = []
    files = [str(file) for file in find(paths, name=name, on_error=failed.append)]
    results: list[dict[str, Any]] = [{"path": str(getattr(error, "path", "")), "sound": False, "problems": [_problem(error)]} for error in failed]
    for file in files:
        try:
            problems = [{"offset": problem.offset, "fact": problem.fact} for problem in find_problems(file)]
        except CheckpointError as error:
            problems = [_problem(error)]
        results.append({"path": file, "sound": not problems, "problems": problems})
    for result in results:
        for problem in result["problems"]:
            _complain(problem["fact"])
        if result["sound"] and not as_json:
            _say(f"sound  {result['path']}", "green")
    bad = sum(not result["sound"] for result in results)
    if as_json:
        _emit({"fastckpt": VERSION, "summary": {"sound": len(results) - bad, "bad": bad}, "files": results})
    else:
        _say(f"{_plural(len(results), 'file')}: {len(results) - bad:,} sound, {bad:,} bad")
    raise typer.Exit((_code_of(results[0]["path"]) if len(results) == 1 else 1) if bad else 0)


def _problem(error: CheckpointError) -> dict[str, Any]:
    return {"offset": getattr(error, "offset", None), "fact": str(error)}


def _code_of(path: str) -> int:
    """The exit code for what is wrong with one file."""
    try:
        load(path)
    except CheckpointError as error:
        return error.exit_code
    return 1
