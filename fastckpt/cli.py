"""The command line: what the library does, said to people (or with `--json` to machines).

Results go to standard output, one line a file; errors and warnings to standard error, one line each, with the place and the
remedy. Nothing is coloured, cut or wrapped when it is not a terminal that reads it.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
import typer

from .cli_bench import bench
from .cli_history import diff, series
from .cli_inspect import inspect
from .cli_runs import compact, log, repair
from .codec import Codec
from .console import Json, complain, emit, plural, run_file, say, size_text, with_bar, write_out
from .container import VERSION
from .demo import show as show_demo
from .errors import CheckpointError, CheckpointWarning, ConflictError
from .file import Problem, load
from .file import verify as find_problems
from .migrate import Migration, Outcome, attempt, export_all, find, import_type, target_of
from .migrate import export as export_file
from .storage import DISK, exists, open_file, publish, read_at, temporary_folder
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


app.command("inspect")(inspect)
app.command("log")(log)
app.command("diff")(diff)
app.command("series")(series)
app.command("compact")(compact)
app.command("bench")(bench)
app.command("repair")(repair)

_Force = Annotated[bool, typer.Option("--force", help="Replace a target that holds something else.")]


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
    as_json: Json = False,
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


# --- export, verify -----------------------------------------------------------------------------------------


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
        paths = [run_file(paths[0])]
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


@app.command("verify")
def _verify(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Checkpoints, or directories to search for them.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="What the files in a directory are called.")] = "*.fastckpt",
    as_json: Json = False,
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


# --- demo ------------------------------------------------------------------------------------------------------------


@app.command("demo")
def _demo(
    folder: Annotated[str | None, typer.Argument(metavar="[DIR]", help="Where the files are kept; without it they are thrown away.")] = None,
    steps: Annotated[int, typer.Option(min=10, metavar="N", help="How many steps to train.")] = 200,
) -> None:
    """A small training run that checkpoints every step, is killed in the middle, and goes on; compared with one that was not, and with JSON."""
    with temporary_folder() if folder is None else nullcontext(folder) as place:
        show_demo(place, steps)
