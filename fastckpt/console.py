"""What the commands say, and how: plain lines, tables and bars.

Results go to standard output, one line a file; errors and warnings to standard error, one line each. Nothing is coloured, cut
or wrapped when it is not a terminal that reads it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Annotated, Any, TextIO

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from .history import NAME
from .storage import exists, is_folder
from .twin import to_json

__all__ = [
    "File", "Json", "clean", "columns_of", "complain", "console_of", "emit", "new_table", "plural", "print_columns", "ranges", "run_file", "say",
    "size_text", "with_bar", "write_out",
]  # fmt: skip

Json = Annotated[bool, typer.Option("--json", help="Print results as JSON, and nothing else, on standard output.")]
File = Annotated[str, typer.Argument(metavar="FILE", help="A checkpoint, or the directory of a run.")]

# Columns that are aligned at their right.
_FIGURES = ("step", "record", "message", "in file", "blocked ms", "blocked ms before")
# What would end a line, move the cursor, turn the reading order or cannot be encoded; names of files may hold it.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` on one line, with nothing in it that a terminal would obey."""
    return _UNPRINTABLE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def console_of(stream: TextIO) -> Console:
    """A console that prints as it is told: no markup, no emoji, no width but a terminal's."""
    # Without a terminal Rich assumes 80 columns and would cut tables to fit.
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=None if stream.isatty() else 10_000)


def run_file(path: str) -> str:
    """The file of the run in a directory; a file is its own."""
    inside = os.path.join(path, NAME)
    return inside if exists(inside) or is_folder(path) else path


def say(text: str, style: str = "") -> None:
    """One line on standard output; what stands before two spaces in `style` on a terminal."""
    line = Text(clean(text))
    line.stylize(style, 0, max(line.plain.find("  "), 0))
    console_of(sys.stdout).print(line, soft_wrap=True)


def complain(text: str) -> None:
    """One line on standard error."""
    console_of(sys.stderr).print(Text(clean(f"fastckpt: {text}")), soft_wrap=True)


def emit(document: Any) -> None:
    """A result for machines."""
    write_out(to_json(document) + b"\n")


def write_out(data: bytes) -> None:
    """Bytes to standard output, as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def new_table(*columns: str) -> Table:
    """A table of which the first column is text, the others figures."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True, overflow="ignore")
    return table


def size_text(count: float) -> str:
    """A number of bytes for people."""
    if count < 1000:
        return f"{count:.0f} bytes"
    unit = next((unit for unit, limit in (("kB", 1e6), ("MB", 1e9)) if count < 0.99995 * limit), "GB")
    return f"{count / {'kB': 1e3, 'MB': 1e6, 'GB': 1e9}[unit]:.1f} {unit}"


def with_bar(work: Iterable[Any], what: str, total: int | None) -> Iterable[Any]:
    """`work`, with a progress bar on standard error where that is a terminal."""
    return track(work, what, total=total, console=Console(stderr=True), transient=True) if sys.stderr.isatty() else work


def plural(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ranges(steps: list[int | None]) -> str:
    """Steps as text, those in a row as one: "0 to 4, 7"."""
    groups: list[list[int]] = []
    for step in sorted(step for step in steps if step is not None):
        if groups and groups[-1][-1] + 1 == step:
            groups[-1][1:] = [step]
        else:
            groups.append([step])
    return ", ".join(" to ".join(map(str, group)) for group in groups)


def columns_of(rows: list[dict[str, str]], *, every: bool = False) -> list[str]:
    """Rows under their names, aligned, as lines; a column that is empty in all of them is left out, unless `every` is wanted."""
    # Not with Rich, which takes seconds for thousands of rows.
    if not rows:
        return []
    names = [name for name in rows[0] if every or any(row[name] for row in rows)]
    lines = [names, *([clean(row[name]) for name in names] for row in rows)]
    columns = []
    for cells in zip(*lines, strict=True):
        width = max(map(len, cells))
        columns.append([cell.rjust(width) if cells[0] in _FIGURES else cell.ljust(width) for cell in cells])
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def print_columns(rows: list[dict[str, str]], *, every: bool = False, header: bool = True) -> None:
    """Rows under their names (without `header`, alone), as `columns_of` has them, on standard output."""
    text = "".join(f"{line}\n" for line in columns_of(rows, every=every)[not header :])
    write_out(text.encode("utf-8", "backslashreplace"))
