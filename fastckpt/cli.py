"""The command line: what the library does, said to people (or with `--json` to machines).

Results go to standard output, one line a file; errors and warnings to standard error, one line each, with the place and the
remedy. Nothing is coloured, cut or wrapped when it is not a terminal that reads it.
"""

from __future__ import annotations

import functools
import itertools
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
from .errors import CheckpointError, CheckpointWarning, ConflictError, EncodeError
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
large. 8 a conflict that would lose one of two things. 9 another process is writing it. 130 interrupted. migrate ends with 0
or 1; so do export and verify where they take several files."""

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
    """One line on standard output; what stands before two spaces in `style` on a terminal."""
    line = Text(_clean(text))
    line.stylize(style, 0, max(line.plain.find("  "), 0))
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
    unit = next((unit for unit, limit in (("kB", 1e6), ("MB", 1e9)) if count < 0.99995 * limit), "GB")
    return f"{count / {'kB': 1e3, 'MB': 1e6, 'GB': 1e9}[unit]:.1f} {unit}"


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
        except OSError as error:
            # Only standard output raises a bare one: a full disk behind `>`. Closed here, or the interpreter writes it again at its end.
            _complain(f"cannot write the output: {error.strerror}; free some space, or send it elsewhere")
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
            _complain(f"{error.format_message().rstrip('.')}; see `{command} --help`")
            return 2
    if code == 130:
        _complain("interrupted; what was written is whole")
    return code


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    if issubclass(category, CheckpointWarning):
        _complain(f"warning: {message}")
    else:
        (file or sys.stderr).write(warnings.formatwarning(message, category, filename, lineno, line))


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
        _write(context.get_help().encode() + b"\n")


_Force = Annotated[bool, typer.Option("--force", help="Replace a target that holds something else.")]
_Json = Annotated[bool, typer.Option("--json", help="Print results as JSON, and nothing else, on standard output.")]


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
            _complain(f"warning: {text}")
        if outcome.error is not None:
            _complain(str(outcome.error))
        elif outcome.migration is not None and not as_json:
            _say(_described(outcome.migration), "yellow" if outcome.migration.status == "newer, left alone" else "green")
    results = [_as_result(outcome) for outcome in outcomes]
    counts = Counter(result["status"] for result in results)
    summary = dict(sorted(counts.items(), key=lambda item: (item[0] == "failed", item[0])))
    document = {"fastckpt": VERSION, "summary": summary, "files": results}
    if as_json:
        _emit(document)
    else:
        _say(f"{_plural(len(results), 'file')}: " + ", ".join(f"{count:,} {status}" for status, count in summary.items()))
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
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Checkpoints, or directories to search for them.")],
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Where one goes instead of standard output.")] = None,
    beside: Annotated[bool, typer.Option("--beside", help="Write X.json beside X.fastckpt; for several files and directories always so.")] = False,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the files in a directory are called.")] = "*.fastckpt",
    force: _Force = False,
) -> None:
    """The way back: the JSON of a checkpoint, to standard output (exactly its bytes), to a file, or beside each checkpoint.

    With several files, what fails is named and does not stop the rest; then the exit code is 1.
    """
    failed: list[CheckpointError] = []
    files = [str(file) for file in find(paths, name=name, on_error=failed.append)]
    if len(paths) == 1 and not files:
        raise failed[0]
    single = len(paths) == 1 and files == [str(Path(paths[0]))]
    if output is not None and (beside or not single):
        raise typer.BadParameter("takes one checkpoint, and no --beside", param_hint="--output")
    if single and not beside:
        data = export_file(files[0], output, force=force)
        if output is None:
            _write(data)
        else:
            _say(f"exported  {files[0]} -> {output}  {_size(len(data))}", "green")
        return
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
    """A value at most two levels down: its path, the bytes that it takes encoded, what kind of value it is, and what is in it."""

    path: str
    bytes: int
    holds: str
    fields: list[_Field]


# Rows of a table for people; `--json` has them all.
_ROWS = 20


@app.command("inspect")
def _inspect(path: Annotated[str, typer.Argument(metavar="FILE", help="A checkpoint.")], as_json: _Json = False) -> None:
    """What is in a checkpoint: its header, and the fields by the bytes that they take before compression."""
    info = read_info(path)
    document = read(path)
    fields = _fields(Codec().decode(document.message, info.has_ext, path=path), ())
    if as_json:
        listed = [{"path": each.path, "bytes": each.bytes, "holds": each.holds} for field in fields for each in (field, *field.fields)]
        _emit({"header": info, "fields": listed})
        return
    for key, value in _header(info):
        _say(f"{key:<9} {value}")
    table = _table("field", "bytes", "share", "holds")
    _add_rows(table, fields, info.message_bytes, "")
    if fields:
        _console(sys.stdout).print(table)


def _add_rows(table: Table, fields: list[_Field], total: int, indent: str) -> None:
    for field in fields[:_ROWS]:
        table.add_row(indent + _clean(field.path), f"{field.bytes:,}", f"{100 * field.bytes / total:.1f}%", field.holds)
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
    yield "file", f"{info.path}, {_size(info.file_bytes)} ({info.kind}, format {info.format_version}, id {info.file_id})"
    yield "message", f"{_size(info.message_bytes)} before {info.codec}" + (", with Ext values" if info.has_ext else "")
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
            problems = [{"offset": problem.offset, "fact": problem.fact} for problem in find_problems(file)]
            results.append({"path": file, "sound": not problems, "problems": problems})
            code = _code_of(file) if problems else code
        except CheckpointError as error:
            results.append(_unsound(file, error))
            code = error.exit_code
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
    raise typer.Exit(code if len(results) == 1 else min(code, 1))


def _unsound(path: str, error: CheckpointError) -> dict[str, Any]:
    return {"path": path, "sound": False, "problems": [{"offset": getattr(error, "offset", None), "fact": str(error)}]}


def _code_of(path: str) -> int:
    """The exit code for what is wrong with a file."""
    try:
        load(path)
    except CheckpointError as error:
        return error.exit_code
    return 1


# --- demo ------------------------------------------------------------------------------------------------------------

# Packs, cases in a pack, characters in a step of a case's trace, rejected edits of a task, and the share of Chinese text.
_SHAPES = {"small": (2, 6, 400, 4, 0.0), "usual": (6, 18, 1200, 24, 0.0), "usual-cjk": (6, 18, 1200, 24, 0.5), "large": (40, 30, 1200, 200, 0.0)}


def _training_state(shape: str) -> dict[str, Any]:
    """A payload as a run of skill and prompt optimisation writes it after every step; the same one each time."""
    packs, cases, length, edits, chinese = _SHAPES[shape]
    r = random.Random(11)
    latin = ["".join(r.choices("etaoinshrdlucmfwypvbgkjqxz", range(26, 0, -1), k=r.randint(2, 10))) for _ in range(6000)]
    han = ["".join(chr(0x4E00 + int(r.paretovariate(0.6)) % 3000) for _ in range(r.randint(1, 4))) for _ in range(6000)]
    weights = list(itertools.accumulate(1 / (i + 2) for i in range(6000)))  # as words of a natural language are distributed (Zipf)
    ids = [f"q_{i:05d}" for i in range(100 * packs)]

    def text(count: int) -> str:
        words, space, mean = (han, "", 2) if r.random() < chinese else (latin, " ", 6)
        return space.join(r.choices(words, cum_weights=weights, k=count // mean + 1))[:count]

    def step(number: int) -> dict[str, Any]:
        called = {"tool_name": "search", "tool_args": {"query": text(40), "level": "L2"}, "tool_output": text(length * 2 // 3)}
        return {"step": number, "thought": text(length // 3), **called}

    def case() -> dict[str, Any]:
        metrics = {"budget_usage": r.random(), "spans": [r.random() for _ in range(6)], "tool_usage": {"search": r.randint(0, 9), "view": 3}}
        asked = {"question_id": r.choice(ids), "question": text(120), "options": [text(30) for _ in range(4)], "answer": "B"}
        return {**asked, "prediction": r.choice(["A", "C", None]), "correct": False, "metrics": metrics, "trace": [step(i) for i in range(8)]}

    def edit(number: int) -> dict[str, Any]:
        scores, evidence = {"net": r.random(), "p": r.random()}, [{"question_id": r.choice(ids), "delta": r.random()}]
        return {"op": "replace", "content": text(400), "reason": text(200), "step": number, "scores": scores, "evidence": evidence}

    state = {
        "correctness": {name: r.random() < 0.6 for name in ids},
        "eval_prev_acc": 0.61,
        "steps_since_best_improved": 3,
        "rejected_buffer": {f"task {task}": [edit(i) for i in range(edits)] for task in range(6)},
        "system_packs": [{"stats": {"bias": r.random()}, "failure_cases": [case() for _ in range(cases)]} for _ in range(packs)],
        "gate_cooldown": {"task 0": 2},
    }
    progress = {"epoch": 1, "step_completed": 3, "phase": "in_epoch", "global_step": 33, "total_steps": 120}
    batches = [ids[start : start + 20] for start in range(0, len(ids), 20)]
    return {"schema_version": 1, "progress": progress, "epoch_batches": batches, "config_fingerprint": {"batch_size": 20}, "state": state}


@app.command("demo")
def _demo(
    folder: Annotated[str | None, typer.Argument(metavar="[DIR]", help="Where the files are kept; without it they are thrown away.")] = None,
    shape: Annotated[str, typer.Option(help=f"How large the state is: {', '.join(_SHAPES)}.")] = "usual",
) -> None:
    """Write a realistic checkpoint.json the old way, migrate it, and compare sizes and times; needs no input."""
    if shape not in _SHAPES:
        raise typer.BadParameter(f"{shape!r} is none of {', '.join(_SHAPES)}", param_hint="--shape")
    with temporary_folder() if folder is None else nullcontext(folder) as place:
        names = [os.path.join(place, name) for name in ("checkpoint.json", "checkpoint.fastckpt", "saved.fastckpt")]
        for name in names:
            if exists(name):
                raise ConflictError("the demo would replace a file", paths=(name,), remedy="choose another directory")
        _compare(_training_state(shape), *names)


def _compare(state: Any, old: str, new: str, saved: str) -> None:
    """`state` saved and loaded both ways, migrated, and compared; the figures in a table."""
    write, _ = _timed(lambda: publish(old, json.dumps(state, ensure_ascii=False, indent=2).encode(), fsync=False))
    parse, plain = _timed(lambda: json.loads(_bytes_of(old)))
    durable, written = _timed(lambda: save(saved, state, round_trip=False))
    checked, _ = _timed(lambda: save(saved, state))
    done = migrate(old)
    decode, loaded = _timed(lambda: load(new))
    if (found := difference(plain, loaded) or difference(state, loaded)) is not None:
        raise EncodeError(found.reason, where=found.where)
    table = _table("", "size", "save", "load")
    table.add_row("checkpoint.json, not durable", _size(done.source_bytes), f"{1e3 * write:.1f} ms", f"{1e3 * parse:.1f} ms")
    table.add_row("checkpoint.fastckpt, durable", _size(written.file_bytes), f"{1e3 * durable:.1f} ms", f"{1e3 * decode:.1f} ms")
    table.add_row("times better", f"{done.source_bytes / written.file_bytes:.1f}x", f"{write / durable:.1f}x", f"{parse / decode:.1f}x")
    table.add_row("durable, decoded and compared first", "", f"{1e3 * checked:.1f} ms", "")
    _console(sys.stdout).print(table)
    _say(f"{done.status} in {done.seconds:.2f} s: {done.source} -> {done.target}")
    _say(f"exported again: {done.proof}")


def _bytes_of(path: str) -> bytes:
    with open_file(path) as (fd, status):
        return read_at(fd, status.st_size, 0)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest of three runs, which the machine disturbed least, and the last result."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - started)
    return min(times), result
