"""What every case reports beside its times: ratios with their spread, the machine, the disk."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .contenders import write_durably


@dataclass(frozen=True)
class Ratio:
    """How many times better one contender is than another: the median of the ratios of each round, and where 80% of them lie."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, baseline: Sequence[float], contender: Sequence[float]) -> Ratio:
        """Round by round, so that whatever slows the machine down for a while cancels out."""
        ratios = [before / after for before, after in zip(baseline, contender, strict=True)]
        tenths = statistics.quantiles(ratios, n=10, method="inclusive") if len(ratios) > 1 else ratios
        return cls(statistics.median(ratios), tenths[0], tenths[-1])

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.p10:.2f}-{self.p90:.2f})"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Columns of equal width, the first one to the left and the others to the right."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("   ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def environment(folder: Path) -> dict[str, Any]:
    """Where the figures come from: nothing below compares across machines, the ratios do a little."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cpus": os.cpu_count(),
            "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        },
        "filesystem": {"type": _filesystem(folder), "durable_4k_write_seconds": _durable_write(folder)},
        "versions": {"python": sys.version.split()[0], **{name: _version(name) for name in ("fastckpt", "msgspec", "zstandard", "orjson")}},
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
