"""The table of faults (`fault_rows`) tells the truth: each test that it names exists and names the fault, each fault has a test or a reason."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from fault_rows import ROWS
from prove import MODULES, figures_in, table
from support import count, in_child

TESTS = Path(__file__).parent
# "FAULTS A1, A2", "FAULTS B4 to B6", "FAULTS A7 and B6"
_NAMED = re.compile(r"FAULTS ((?:[A-I]\d+(?: to |, and |, | and )?)+)")
_RANGE = re.compile(r"([A-I])(\d+)(?: to [A-I](\d+))?")


def rows_in(text: str) -> set[str]:
    """The rows that a docstring names."""
    found = set()
    for named in _NAMED.findall(text):
        for letter, first, last in _RANGE.findall(named):
            found |= {f"{letter}{number}" for number in range(int(first), int(last or first) + 1)}
    return found


@cache
def named_by_tests() -> dict[str, set[str]]:
    """Every test of the suite, as `module::function`, and the rows that its docstring names."""
    found = {}
    for path in sorted(TESTS.glob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                found[f"{path.stem}::{node.name}"] = rows_in(ast.get_docstring(node) or "")
    return found


@pytest.mark.parametrize("row", ROWS)
def test_each_fault_has_its_tests(row: str) -> None:
    """The tests of a row are there, under these names, and say that they are its tests; one without a test says why, and no ★ row is without."""
    _, tests, star, why = ROWS[row]
    assert bool(tests) != bool(why)
    assert tests or not star
    known = named_by_tests()
    assert [test for test in tests if row not in known.get(test, ())] == []


def test_each_fault_that_a_test_names_is_in_the_table() -> None:
    """No docstring names a row that the table does not have; the table has all letters, and their numbers without a gap."""
    assert {row for rows in named_by_tests().values() for row in rows} <= ROWS.keys()
    for letter, last in zip("ABCDEFGHI", (10, 15, 5, 12, 12, 12, 8, 11, 7), strict=True):
        assert [row for row in ROWS if row[0] == letter] == [f"{letter}{number}" for number in range(1, last + 1)]
    assert sum(row.star for row in ROWS.values()) == 56


def test_the_rows_of_a_docstring() -> None:
    """Lists and ranges are understood, and what is no row is none."""
    assert rows_in("FAULTS A1, A9: x. FAULTS B4 to B6 and D1, and more, as E2") == {"A1", "A9", "B4", "B5", "B6", "D1"}
    assert rows_in("FAULTS B: any call") == set()


def test_counts_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests count, also in their children, comes out in the table as a sum, with the failures; without the variable nothing is written."""
    figures = tmp_path / "figures"
    monkeypatch.delenv("FASTCKPT_FIGURES", raising=False)
    count("kills")
    monkeypatch.setenv("FASTCKPT_FIGURES", str(figures))
    count("kills", 300)
    in_child(lambda: count("kills"), lambda: count("things of another kind", 2))
    sums = figures_in(figures.read_text())
    assert sums == {"kills": 301, "things of another kind": 2}
    lines = dict(line.rsplit(maxsplit=1) for line in table(sums, tests=1234, skipped=0, failures=1, seconds=2.5).splitlines())
    assert (lines["kills"], lines["things of another kind"], lines["tests"], lines["failures"], lines["cuts"]) == ("301", "2", "1,234", "1", "0")


def test_the_proof_takes_in_every_module_of_faults() -> None:
    """The modules that `prove` runs are there, and hold all tests of the crash, I/O, death and hostile rows but a few of the drop-in and the CLI."""
    assert [module for module in MODULES if not (TESTS / f"{module}.py").exists()] == []
    for row, (_, tests, star, _) in ROWS.items():
        if star and row[0] in "ABCDEF" and row not in ("D7", "D8", "F9"):
            assert {test.partition("::")[0] for test in tests} & {*MODULES}, row
