"""The proof in one table: runs the tests of crashes, faults, deaths, damage and hostile files, and prints how much of each they looked at.

    .venv/bin/python tests/prove.py            # what CI runs; some minutes
    .venv/bin/python tests/prove.py --long     # ten times as many fuzz cases
    .venv/bin/python tests/prove.py -k golden  # arguments for pytest: a part of it

The tests count what they do (`support.count`); the exit code is pytest's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent
# The modules whose tests take part; the rest of the suite asks what a function does when nothing goes wrong.
MODULES = (
    "test_crash", "test_journal_crash", "test_compaction_crash", "test_powerloss", "test_io_errors", "test_real_faults", "test_every_call", "test_interrupts",
    "test_journal_processes", "test_corruption", "test_journal_damage", "test_hostile", "test_fuzz", "test_golden", "test_mutants", "test_fault_rows",
    "test_repair", "test_preempt", "test_manager", "test_manager_async",
)  # fmt: skip
# What belongs into the table, in this order; whatever else was counted follows.
FIGURES = (
    "crash images, block level", "crash states, model", "kills", "interrupts", "forks", "faults injected", "bits flipped", "cuts", "hostile files", "fuzz cases",
    "mutants killed",
)  # fmt: skip


def figures_in(text: str) -> Counter[str]:
    """The sums of what was counted, one line a count (see `support.count`)."""
    sums: Counter[str] = Counter()
    for line in text.splitlines():
        number, _, what = line.partition(" ")
        sums[what] += int(number)
    return sums


def table(figures: Counter[str], tests: int, skipped: int, failures: int, seconds: float) -> str:
    """The figures as lines of text, the failures last."""
    rows = [(what, figures[what]) for what in (*FIGURES, *sorted(figures.keys() - set(FIGURES)))]
    rows += [("tests", tests), ("skipped", skipped), ("seconds", round(seconds)), ("failures", failures)]
    return "\n".join(f"{what:<28}{number:>12,}" for what, number in rows)


def main(*arguments: str) -> int:
    """Run the tests and print the table."""
    options = [argument for argument in arguments if argument != "--long"]
    with tempfile.TemporaryDirectory() as folder:
        figures, report = Path(folder) / "figures", Path(folder) / "report.xml"
        environment = {**os.environ, "FASTCKPT_FIGURES": str(figures)}
        if "--long" in arguments:
            environment["HYPOTHESIS_PROFILE"] = "long"
        modules = [str(TESTS / f"{module}.py") for module in MODULES]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            f"--rootdir={TESTS.parent}",
            f"--junitxml={report}",
            "-p",
            "no:cacheprovider",
            *modules,
            *options,
        ]
        began = time.monotonic()
        code = subprocess.run(command, cwd=TESTS.parent, env=environment, check=False).returncode
        seconds = time.monotonic() - began
        sums = figures_in(figures.read_text()) if figures.exists() else Counter()
        suite = ET.parse(report).getroot().find("testsuite") if report.exists() else None
    told = {name: int(suite.get(name, 0)) for name in ("tests", "skipped", "failures", "errors")} if suite is not None else Counter()
    sys.stdout.write(table(sums, told["tests"], told["skipped"], told["failures"] + told["errors"], seconds) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
