"""What every case reports beside its table: figures with every sample, ratios with their spread, the machine, the disk."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .contenders import write_durably

LIBRARIES = ("fastckpt", "msgspec", "zstandard", "orjson", "ormsgpack", "langgraph-checkpoint-sqlite", "pygal")
# A recorded figure keeps at most so many samples, as so many percentiles.
PERCENTILES = 21


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
    """One thing that was measured, smaller is better: every sample, in the order of the rounds."""

    unit: str
    samples: list[float]

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    def at(self, percent: float) -> float:
        """A percentile of the samples."""
        return percentile(self.samples, percent)


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
    """A case's document for the repository: four digits a sample, and of a figure with many samples the percentiles."""
    figures = {}
    for name, figure in document["figures"].items():
        samples = figure["samples"]
        if len(samples) > PERCENTILES:
            samples = [percentile(samples, at * 100 / (PERCENTILES - 1)) for at in range(PERCENTILES)]
        figures[name] = {"unit": figure["unit"], "samples": [_rounded(sample) for sample in samples]}
        if len(set(samples)) == 1:
            figures[name]["samples"] = figures[name]["samples"][:1]
        elif len(samples) != len(figure["samples"]):
            figures[name]["percentiles_of"] = len(figure["samples"])
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
    """The figures of a document that was written."""
    return {name: Figure(each["unit"], each["samples"]) for name, each in document["figures"].items()}


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
    """What changed between two documents of one case: medians, and whether the spreads (10th to 90th percentile) are apart."""
    before, after = figures_of(old), figures_of(new)
    rows = [["", "before", "10-90%", "after", "10-90%", "change", ""]]
    for name in before.keys() & after.keys():
        was, now = before[name], after[name]
        row = [name]
        for figure in (was, now):
            row += [amount(figure.median, figure.unit), f"{amount(figure.at(10), figure.unit)} to {amount(figure.at(90), figure.unit)}"]
        apart = now.at(10) > was.at(90) or now.at(90) < was.at(10)
        change = f"{100 * (now.median / was.median - 1):+.1f}%" if was.median else ""
        word = ("slower or larger" if now.median > was.median else "faster or smaller") if apart else "within the spread"
        rows.append([*row, change, "same" if was.samples == now.samples else word])
    order = list(after)
    rows[1:] = sorted(rows[1:], key=lambda row: order.index(row[0]))
    lines = [table(rows)]
    lines += [f"only before: {name}" for name in before if name not in after]
    lines += [f"only after: {name}" for name in after if name not in before]
    return "\n".join(lines)


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
        "versions": {"python": sys.version.split()[0], **{name: _version(name) for name in LIBRARIES}},
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
