"""What every case reports beside its table: figures with every sample, ratios with their spread, the machine, the disk."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .contenders import write_durably

LIBRARIES = ("fastckpt", "msgspec", "zstandard", "orjson", "ormsgpack", "langgraph-checkpoint-sqlite", "langgraph-checkpoint", "pygal")
# A recorded figure keeps at most so many samples, as so many percentiles.
PERCENTILES = 21
# What is the same in every run of the same code; all else varies, and fewer samples than this say nothing about it.
COUNTED, FEWEST = ("B", "calls", "flushes", "instructions"), 5


@dataclass(frozen=True)
class Ratio:
    """How many times better one contender is than another: the median of the ratios of each round, and where 80% of them lie."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, baseline: Sequence[float], contender: Sequence[float]) -> Ratio:
        """Round by round, so that whatever slows the machine down for a while cancels out."""
        ratios = [before / after if after else math.inf if before else 1.0 for before, after in zip(baseline, contender, strict=True)]
        return cls(statistics.median(ratios), percentile(ratios, 10), percentile(ratios, 90))

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.p10:.2f}-{self.p90:.2f})"


def percentile(samples: Sequence[float], at: float) -> float:
    """The sample below which so many percent lie."""
    ordered = sorted(samples)
    return ordered[min(int(len(ordered) * at / 100), len(ordered) - 1)]


@dataclass
class Figure:
    """One thing that was measured, smaller is better: every sample, in the order of the rounds.

    Read back from a recording, it may be percentiles of so many samples; these tell no mean and no 99th percentile, so both are beside
    them. A recording of before has neither, and is not `whole`: its mean is far off, and its 99th percentile the longest.
    """

    unit: str
    samples: list[float]
    percentiles_of: int | None = None
    recorded_p99: float | None = None
    recorded_mean: float | None = None

    @property
    def count(self) -> int:
        """How many samples there were."""
        return self.percentiles_of or len(self.samples)

    @property
    def whole(self) -> bool:
        """Whether mean and 99th percentile are known."""
        return self.percentiles_of is None or (self.recorded_p99 is not None and self.recorded_mean is not None)

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    @property
    def mean(self) -> float:
        """The mean of the samples."""
        return statistics.mean(self.samples) if self.recorded_mean is None else self.recorded_mean

    def at(self, percent: float) -> float:
        """A percentile of the samples."""
        return self.recorded_p99 if percent == 99 and self.recorded_p99 is not None else percentile(self.samples, percent)


class Picture(NamedTuple):
    """What a case's plot shows: a line of points for each name."""

    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]
    logarithmic: bool = False
    labels: list[str] | None = None
    """What the x of a point, counted from 0, stands for; then the points are bars."""


@dataclass
class Outcome:
    """What a case found: figures by name (its parts joined by ": "), ratios by the same names, and each floor that was not reached."""

    figures: dict[str, Figure] = field(default_factory=dict)
    ratios: dict[str, Ratio] = field(default_factory=dict)
    short: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    picture: Picture | None = None

    def add(self, *parts: str, unit: str, samples: Iterable[float]) -> Figure:
        """Put down a figure."""
        figure = self.figures[named(*parts)] = Figure(unit, list(samples))
        return figure

    def document(self, case: str, where: dict[str, Any]) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "case": case,
            **where,
            **self.details,
            "figures": {name: {"unit": figure.unit, "samples": figure.samples} for name, figure in self.figures.items()},
            "ratios": {name: asdict(ratio) for name, ratio in self.ratios.items()},
            "floors_not_reached": self.short,
        }


def named(*parts: str) -> str:
    """The name of a figure."""
    return ": ".join(parts)


def recorded(document: dict[str, Any]) -> dict[str, Any]:
    """A case's document for the repository: four digits a sample, and of a figure with many samples the percentiles, the 99th, the mean."""
    figures = {}
    for name, figure in document["figures"].items():
        samples, kept = figure["samples"], dict[str, float]()
        if len(set(samples)) == 1:
            samples = samples[:1]
        elif len(samples) > PERCENTILES:
            kept = {"percentiles_of": len(samples), "p99": _rounded(percentile(samples, 99)), "mean": _rounded(statistics.mean(samples))}
            percentiles = [percentile(samples, at * 100 / (PERCENTILES - 1)) for at in range(PERCENTILES)]
            percentiles[PERCENTILES // 2] = statistics.median(samples)  # of an even number of samples it lies between two
            samples = percentiles
        figures[name] = {"unit": figure["unit"], "samples": [_rounded(sample) for sample in samples], **kept}
    ratios = {name: {key: _rounded(value) for key, value in ratio.items()} for name, ratio in document["ratios"].items()}
    return {**document, "figures": figures, "ratios": ratios}


def _rounded(number: float) -> float:
    short = float(f"{number:.4g}")
    return int(short) if short.is_integer() else short


def written(document: dict[str, Any]) -> str:
    """A document as text, one figure a line so that a later recording shows as what it changed."""
    head = json.dumps({key: value for key, value in document.items() if key not in ("figures", "ratios")}, indent=1)
    parts = [head[:-2]]
    for key in ("figures", "ratios"):
        lines = [f"  {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in document[key].items()]
        parts.append(f' "{key}": {{\n' + ",\n".join(lines) + "\n }")
    return ",\n".join(parts) + "\n}\n"


def figures_of(document: dict[str, Any]) -> dict[str, Figure]:
    """The figures of a document that was written. Raises `ValueError` that names the place where it is none."""
    figures = document.get("figures")
    if not isinstance(figures, dict):
        raise _unexpected('"figures"', "an object with a figure for each name", figures)
    return {name: _figure(f'figure "{name}"', each) for name, each in figures.items()}


def _figure(place: str, each: Any) -> Figure:
    if not isinstance(each, dict):
        raise _unexpected(place, "an object with unit and samples", each)
    unit, samples = each.get("unit"), each.get("samples")
    if not isinstance(unit, str):
        raise _unexpected(f"{place}, unit", "a text", unit)
    if not isinstance(samples, list) or not samples or not all(map(_is_number, samples)):
        raise _unexpected(f"{place}, samples", "a list of numbers, at least one", samples)
    beside = [each.get(key) for key in ("percentiles_of", "p99", "mean")]
    if wrong := [value for value in beside if value is not None and not _is_number(value)]:
        raise _unexpected(f"{place}, beside its samples", "numbers", wrong[0])
    return Figure(unit, samples, *beside)


def _is_number(value: Any) -> bool:
    """Whether it can be reckoned with: no NaN, and none so large that a sum of two has no value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _unexpected(place: str, expected: str, got: Any) -> ValueError:
    said = repr(got)
    return ValueError(f"{place}: expected {expected}, got {said if len(said) <= 60 else said[:60] + '...'}")


def table(rows: Iterable[Sequence[str]]) -> str:
    """Columns of equal width, the first one to the left and the others to the right."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("   ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def amount(value: float, unit: str) -> str:
    """A number with its unit, three digits of it, in the unit that suits it."""
    for small, large, factor in (("B", "kB", 1e3), ("kB", "MB", 1e3), ("ms", "s", 1e3)):
        if unit == small and abs(value) >= factor:
            value, unit = value / factor, large
    if value == 0:
        return f"0 {unit}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 4)}f} {unit}"


def compared(old: dict[str, Any], new: dict[str, Any]) -> str:
    """What changed between two documents of one case, and first of all what else was not alike.

    Of what is counted the means; of all else the medians, and whether the spreads (10th to 90th percentile) are apart. Raises
    `ValueError` for a document that is none, as `figures_of` does.
    """
    before, after = figures_of(old), figures_of(new)
    rows = [["median; of a count the mean", "before", "10-90%", "after", "10-90%", "change", ""]]
    for name, now in after.items():
        if (was := before.get(name)) is None:
            continue
        # The memory of a process has the unit of what is counted, and is not the same each time.
        counted = was.unit in COUNTED and not name.endswith("memory") and was.whole and now.whole
        typical = [figure.mean if counted else figure.median for figure in (was, now)]
        row = [name]
        for figure, value in zip((was, now), typical, strict=True):
            row += [amount(value, figure.unit), f"{amount(figure.at(10), figure.unit)} to {amount(figure.at(90), figure.unit)}"]
        change = f"{100 * (typical[1] / typical[0] - 1):+.1f}%" if typical[0] and was.unit == now.unit else ""
        rows.append([*row, change, _verdict(was, now, typical, counted=counted)])
    lines = [*_differences(old, new), table(rows)]
    lines += [f"only before: {name}" for name in before if name not in after]
    lines += [f"only after: {name}" for name in after if name not in before]
    return "\n".join(lines)


def _verdict(was: Figure, now: Figure, typical: list[float], *, counted: bool) -> str:
    if was.unit != now.unit:
        return "another unit"
    if was.samples == now.samples:
        return "same"
    short = [_rounded(value) for value in typical]
    # Of one that was recorded there are four digits.
    if counted and (typical[0] == typical[1] or (short[0] == short[1] and short[0] in typical)):
        return "same to four digits"
    if not counted and min(was.count, now.count) < FEWEST:
        return "too few samples to tell"
    if not counted and was.at(10) <= now.at(90) and now.at(10) <= was.at(90):
        return "within the spread"
    return "slower or larger" if typical[1] > typical[0] else "faster or smaller"


def surroundings(document: dict[str, Any]) -> dict[str, str]:
    """What figures depend on beside the code, as far as the document tells: machine, filesystem, versions."""
    machine, disk, versions = (_object(document, key) for key in ("machine", "filesystem", "versions"))
    named = {"processor": machine.get("processor"), "CPUs": machine.get("cpus"), "system": machine.get("system"), "filesystem": disk.get("type")}
    named |= {name: version for name, version in versions.items() if name != "fastckpt"}
    return {name: _told(value) for name, value in named.items() if value is not None}


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What was not alike beside the code, a line each: without it a change says nothing about the code."""
    sides = []
    for document in (old, new):
        options = {f"--{name}": _told(value) for name, value in _object(document, "options").items() if value is not None}
        sides.append({**surroundings(document), **options, "--quick": _told(bool(document.get("quick")))})
    before, after = sides
    untold = [when for when, document in (("before", old), ("after", new)) if "options" not in document]
    lines = [f"not measured alike, maybe: the options are not told {untold[0]}"] if len(untold) == 1 else []
    for name in before | after:
        was, now = before.get(name, "not given"), after.get(name, "not given")
        if was != now and not (lines and name.startswith("--") and name != "--quick"):
            lines.append(f"not measured alike: {name}: {was} before, {now} after")
    return lines


def _object(document: dict[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def _told(value: Any) -> str:
    """As it would stand in JSON, so that a document that was read tells the same as one that was made just now."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def dashboard(case: str, outcome: Outcome) -> str:
    """The figures as `github-action-benchmark` reads them (customSmallerIsBetter): name, unit, value, and the range of 80% of the samples."""
    entries = []
    for name, figure in outcome.figures.items():
        extra = f"{amount(figure.at(10), figure.unit)} to {amount(figure.at(90), figure.unit)}, {len(figure.samples)} samples"
        entries.append({"name": f"{case}: {name}", "unit": figure.unit, "value": _rounded(figure.median), "extra": extra})
    return json.dumps(entries, indent=1)


def environment(folder: Path) -> dict[str, Any]:
    """Where the figures come from: nothing below compares across machines, the ratios do a little."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cpus": os.cpu_count(),
            "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        },
        "filesystem": {"type": _filesystem(folder), "durable_4k_write_seconds": _durable_write(folder)},
        "versions": {"python": sys.version.split()[0], **{name: _version(name) for name in LIBRARIES}, "SQLite": sqlite3.sqlite_version},
    }


def heading(where: dict[str, Any]) -> str:
    """`environment` for people."""
    machine, disk = where["machine"], where["filesystem"]
    load = "" if machine["load_average"] is None else f", load average {machine['load_average'][0]:.1f}"
    lines = [
        f"{machine['processor']}, {machine['cpus']} CPUs{load}",
        f"{disk['type']}, a durable write of 4 KiB takes {disk['durable_4k_write_seconds'] * 1e3:.2f} ms",
        ", ".join(f"{name} {version}" for name, version in where["versions"].items()),
    ]
    if disk["type"] in ("tmpfs", "ramfs"):
        lines.append("caution: on this filesystem fsync costs nothing; give `--dir` a directory on a disk")
    return "\n".join(lines)


def _commit() -> str:
    """The commit of the checkout, "+" where files differ from it; empty where it is none."""
    here = Path(__file__).parent
    try:
        said = [
            subprocess.run(["git", "-C", str(here), *command], capture_output=True, text=True, timeout=10, check=True).stdout.strip()
            for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.SubprocessError):
        return ""
    return said[0] + ("+" if said[1] else "")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _filesystem(folder: Path) -> str:
    """The type of the filesystem that holds `folder`, where the kernel tells (Linux)."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return "filesystem unknown"
    folder = folder.resolve()
    holding = [(len(point), kind) for _, point, kind, *_ in mounts if folder.is_relative_to(point)]
    return max(holding, default=(0, "filesystem unknown"))[1]


def _durable_write(folder: Path) -> float:
    """Median seconds of a durable save of nothing much: what the disk alone costs each contender that syncs."""
    path, seconds = folder / "durable-write", []
    for _ in range(9):
        start = time.perf_counter()
        write_durably(path, os.urandom(4096))
        seconds.append(time.perf_counter() - start)
    path.unlink()
    return statistics.median(seconds)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed" if name != "fastckpt" else "from the working tree"
