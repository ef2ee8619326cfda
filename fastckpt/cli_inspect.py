"""The command `inspect`: what is in a checkpoint, by its header, its sizes, and its structure."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from .codec import Codec
from .console import File, Json, clean, console_of, emit, new_table, plural, print_columns, run_file, say, size_text
from .file import Info, read
from .file import inspect as read_info
from .reader import Reader
from .repair import marked
from .tree import path_text
from .twin import to_json

__all__ = ["inspect"]

# A dict of more keys than this, or of keys that are no names, is a map: what is in it is one place, not one for each key.
_MOST_FIELDS = 32


class _Field(NamedTuple):
    """A value at most two levels down: its path, the bytes that it takes encoded, what kind of value it is, and what is in it."""

    path: str
    bytes: int
    holds: str
    fields: list[_Field]


# Rows of a table for people; `--json` has them all.
_ROWS = 20


def inspect(
    path: File,
    schema: Annotated[bool, typer.Option("--schema", help="The structure instead: every place, what is there, and how often.")] = False,
    as_json: Json = False,
) -> None:
    """What is in a checkpoint: its header, and the fields by the bytes that they take before compression; of a run, its newest step."""
    path = run_file(path)
    info = read_info(path)
    document = read(path)
    if schema:
        _show_schema(info, Codec().decode(document.message, info.has_ext, path=path), as_json)
        return
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


def _show_schema(info: Info, plain: Any, as_json: bool) -> None:
    places: dict[str, Counter[str]] = {}
    _outline(plain, "$", places)
    if as_json:
        listed = [{"path": place, "holds": dict(kinds)} for place, kinds in places.items()]
        emit({"type": info.type, "schema": info.schema, "schema_version": info.schema_version, "places": listed})
        return
    say(f"type      {info.type or 'stored untyped'}" + (f" (schema {info.schema})" if info.schema else ""))
    say(f"version   {info.schema_version}")
    rows = [
        {"place": place, "holds": " | ".join(kind if count == 1 else f"{count:,} {kind}" for kind, count in kinds.most_common())}
        for place, kinds in places.items()
    ]
    print_columns(rows)


def _outline(value: Any, place: str, places: dict[str, Counter[str]]) -> None:
    """Count the kinds of values by place; what is alike (items of a list, values of a map) has one place, `[*]`."""
    kind = "None" if value is None else type(value).__name__
    places.setdefault(place, Counter())[kind] += 1
    if isinstance(value, list):
        for item in value:
            _outline(item, f"{place}[*]", places)
    elif isinstance(value, dict):
        fields = len(value) <= _MOST_FIELDS and all(isinstance(key, str) and key.isidentifier() for key in value)
        for key, item in value.items():
            _outline(item, f"{place}.{key}" if fields else f"{place}[*]", places)


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
