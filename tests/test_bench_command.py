"""The benchmark's command: what it refuses, what it writes, and that every floor is judged. At toy size; no test looks at a time."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import needs_linux, needs_posix, needs_tool

import bench.__main__ as command
import fastckpt
from bench import check, count, diff, floors, readme, run, scale
from bench.floors import Floor
from bench.options import UnavailableError
from bench.report import Outcome, Picture
from bench.workloads import MOST_LEVELS, WorkloadError, make_workload

ROOT = Path(__file__).resolve().parents[1]
HARD = diff.hard

needs_orjson = pytest.mark.skipif(importlib.util.find_spec("orjson") is None, reason="orjson, of the extra `bench`, is not installed")


@pytest.fixture(autouse=True)
def _children_find_it_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A case starts processes of its own; and what one writes lies in an empty directory."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(fastckpt.__file__).parents[1]), str(ROOT)]))
    monkeypatch.chdir(tmp_path)


class Case:
    """Stands for a case: it counts how often it was measured, and finds what it is told to."""

    HELP = "a case"

    def __init__(self, name: str = "fake", *, short: list[str] | None = None, error: BaseException | None = None) -> None:
        self.name, self.short, self.error, self.measured = name, short or [], error, 0

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--shapes", type=lambda text: text.split(","), default=["usual"])
        parser.add_argument("--file", type=Path)

    @staticmethod
    def floors(*place: str) -> dict[str, float]:
        return {"save": 1.0} if place[1:] == ("usual",) else {}

    def run(self, arguments: argparse.Namespace, folder: Path) -> Outcome:
        self.measured += 1
        if self.error is not None:
            raise self.error
        outcome = Outcome(short=self.short, picture=Picture("a picture", "x", "y", {"line": [(0.0, 1.0)]}))
        outcome.add("figure", self.name, unit="ms", samples=[1.0, 2.0])
        return outcome


Cases = Callable[..., None]


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> Cases:
    """Puts stand-ins in the place of all cases; the first of them is the one that a quick check looks at."""

    def put(**made: Case) -> None:
        for name, case in made.items():
            case.name = name
        monkeypatch.setattr(command, "CASES", made)
        monkeypatch.setattr(command, "WITH_FLOORS", tuple(made))

    return put


# --- every floor is judged -----------------------------------------------------------------------------------------------

TOY = {
    "check": ["--shapes", "small", "--rounds", "1"],
    "save": ["--shapes", "small", "--rounds", "1"],
    "run": ["--shapes", "small", "--steps", "3", "--rounds", "1"],
    "scale": ["--sizes", "1,1.1", "--rounds", "1"],
    "diff": ["--mb", "0.3", "--rounds", "1"],
    "retain": ["--shapes", "small", "--steps", "4", "--keep", "2"],
    "history": ["--shapes", "small", "--diff", "small", "--steps", "3", "--rounds", "1"],
    "memory": ["--shapes", "small", "--rounds", "2"],
}  # fmt: skip
NAMED = {
    "check": ["save, times less CPU", "load, times less CPU", "step, times less CPU", "leap, times less CPU", "blocking, times less CPU",
              "over 1.3 x a bare encode", "file, times smaller than JSON", "run, times smaller than JSON", "difference, worst case",
              "calls of write: ", "calls of sync_data: ", "calls of sync: ", "bytes of the first: ", "bytes of the others: "],
    "save": ["small: fastckpt, one file: save: ", "small: fastckpt, one file: file: ", "small: fastckpt, one file: load: "],
    "run": ["to save than the replaced module", "to save than orjson", "fewer bytes than JSON", "a pack replaced", "less blocking", "over 1.3 x a bare encode"],
    "scale": ["1 MB, blocking ms", "1.1 MB, blocking ms", "bytes written in a step"],
    "diff": ["diff, one: ", "diff, appended rows: "],
    "retain": ["small: the file of the second half"],
    "history": ["small: a series takes"],
    "memory": [f"small, {durability}, checks {checks}: " for durability in ("sync", "async") for checks in ("auto", "never")],
}  # fmt: skip
# Floors of these say what is at least reached, but for two; all others, what is at most.
AT_LEAST, AT_MOST = ("check", "save", "run"), ("blocking_over_encode", "diff_ms_per_mb")


def everywhere(least: Any, most: Any, case: str) -> Callable[..., dict[str, Any]]:
    """In the place of `floors`: the same tables, those of `usual` for `small` too, with `least` and `most` for every number."""

    def changed(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            table = {name: changed(each, name) for name, each in value.items()}
            return table | {"small": table["usual"]} if "usual" in table else table
        if isinstance(value, list):
            return [changed(each, key) for each in value]
        return least if case in AT_LEAST and key not in AT_MOST else most

    def found(*place: str) -> dict[str, Any]:
        table = changed(floors.floors(), "")
        for name in place:
            table = table.get(name, {})
        return dict(table)

    return found


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases that look at as little as they can; they judge the floors of all of it."""
    monkeypatch.setattr(run, "COMPARED", ["replaced module", "orjson + fsync", "fastckpt run, sync", "fastckpt run, async"])
    monkeypatch.setattr(scale, "COMPARED", run.COMPARED)
    rows = diff._runs()["appended rows"][1]
    monkeypatch.setattr(diff, "_runs", lambda: {"appended rows": (2, rows)})
    monkeypatch.setattr(diff, "_ordinary", lambda quick: [])
    for case in (diff, check):
        monkeypatch.setattr(case, "hard", lambda size: [("one", bytes(300_000), bytes(300_001))])
    monkeypatch.setattr(check, "DIFF_AGAIN", 1, raising=False)


@needs_linux
@needs_orjson
@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("case", TOY)
def test_every_floor_is_judged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str) -> None:
    """With every floor out of reach, `--check` ends with 1 and names each on standard error."""
    monkeypatch.setattr(check, "SHAPES", ["small"])
    monkeypatch.setattr(command.CASES[case], "floors", everywhere(1e9, 0, case))
    assert command.main([case, *TOY[case], "--check"]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bench: floor not reached: ")]
    for name in NAMED[case]:
        assert any(name in line for line in said), name


@needs_linux
@needs_orjson
@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("case", TOY)
def test_floors_that_are_reached_are_not_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str) -> None:
    """With every floor in easy reach, `--check` ends with 0 and says nothing on standard error. Calls and bytes have no easy reach."""
    monkeypatch.setattr(command.CASES[case], "floors", everywhere(0, 1e9, case))
    assert (command.main([case, *TOY[case], "--check"]), capsys.readouterr().err) == (0, "")


def test_every_case_with_floors_is_among_them() -> None:
    """The tests above look at all cases with floors, and those are the ones that read floors at all."""
    assert set(command.WITH_FLOORS) == set(TOY) == {name for name, case in command.CASES.items() if hasattr(case, "floors")}


@pytest.mark.parametrize(
    ("floor", "reached"),
    [
        (Floor("x", 2.0, 2.0), True),
        (Floor("x", 2.0, 1.9), False),
        (Floor("x", 2.0, 2.0, at_most=True), True),
        (Floor("x", 2.0, 2.1, at_most=True), False),
        (Floor("x", 100, 102, within=0.02), True),
        (Floor("x", 100, 98, within=0.02), True),
        (Floor("x", 100, 103, within=0.02), False),
        (Floor("x", 100, 97, within=0.02), False),
        (Floor("x", 3, 3, within=0.0), True),
        (Floor("x", 3, 2, within=0.0), False),
    ],
)
def test_a_floor_is_reached_on_its_side(floor: Floor, *, reached: bool) -> None:
    """At least, at most, or within a share on both sides; the floor itself is reached."""
    assert floor.reached is reached
    assert floors.judged([floor])[1] == ([] if reached else [str(floor)])


# --- what cannot be judged is said ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        *(([case], case) for case in ("codec", "loop", "restore", "migrate", "count")),
        (["save", "--shapes", "small,long-strings"], "small, long-strings in save"),
        (["run", "--shapes", "shuffled"], "shuffled in run"),
        (["run", "--file", "mine.json"], "mine.json"),
    ],
)
def test_without_a_floor_nothing_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    """`--check` where no floor is known says so, with exit code 2, before anything is measured."""
    monkeypatch.setattr(command, "_measured", lambda *_: pytest.fail("measured"))
    assert command.main([*arguments, "--check"]) == 2
    assert capsys.readouterr().err.startswith(f"bench: no floor is known for {named}: ")


def test_what_is_not_judged_beside_what_is_gets_named(cases: Cases, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two states one of which has floors, the other one is named beside the table."""
    cases(save=Case())
    assert command.main(["save", "--shapes", "usual,small", "--check"]) == 0
    assert capsys.readouterr().out.endswith("no floor is known for small\n")


# --- what is refused, before anything is measured ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("retain --steps 1", "--steps: expected a whole number above 1, got '1'"),
        ("retain --rounds 3", "unrecognized arguments: --rounds 3"),
        ("count --rounds 3", "unrecognized arguments: --rounds 3"),
        ("count --calls encode,sing", "--calls: no call 'sing'; there are encode, diff-unchanged, diff-step, compress"),
        ("diff --mb -1", "--mb: expected a number from 0.001 to 1000, got '-1'"),
        ("diff --mb nan", "--mb: expected a number from 0.001 to 1000, got 'nan'"),
        ("diff --mb much", "--mb: expected a number from 0.001 to 1000, got 'much'"),
        ("diff --chunk 0", "--chunk: expected a whole number above 63, got '0'"),
        ("diff --steps -2", "--steps: expected a whole number above 0, got '-2'"),
        ("diff --steps 0", "--steps: expected a whole number above 0, got '0'"),
        ("diff --level 99", "--level: expected a whole number from 1 to 22, got '99'"),
        ("codec --shapes small,small", "--shapes: state 'small' is given twice"),
        ("codec --shapes small --file mine.json", "--file: not allowed with argument --shapes"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str], arguments: str, said: str) -> None:
    """A usage error, told in one line below the usage."""
    with pytest.raises(SystemExit, match=r"^2$"):
        command.main(arguments.split())
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)


@pytest.mark.parametrize("arguments", ["--mb 0.001 --chunk 64 --level 22", "--mb 0.001 --chunk 1000000000 --level 1"])
@pytest.mark.usefixtures("toy")
def test_the_extremes_that_are_allowed_can_be_measured(monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    """The least of the options of `diff`, and much of them, do for every hard message."""
    monkeypatch.setattr(diff, "hard", HARD)
    assert command.main(["diff", "--rounds", "1", *arguments.split()]) == 0


@pytest.mark.parametrize(
    "document",
    [
        '{"case": "retain", "time": "", "commit": "", "figures": {"a": 1}}',
        '{"case": "retain", "time": "", "commit": "", "figures": [1]}',
        '{"case": "retain", "time": "", "commit": "", "figures": {"a": {"unit": "ms", "samples": []}}}',
        '{"case": "retain", "figures": {}}',
        "[" * 100_000,
        "{",
    ],
)
def test_a_malformed_result_to_compare_with_is_named(capsys: pytest.CaptureFixture[str], document: str) -> None:
    """What `--compare` cannot read is an error with the name of the file, before anything is measured."""
    Path("old.json").write_text(document)
    assert command.main(["retain", "--compare", "old.json"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("bench: old.json is not what `--json` writes: ")


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("path", ["none/result", "."])
def test_an_output_that_cannot_be_written_is_found_first(cases: Cases, capsys: pytest.CaptureFixture[str], option: str, path: str) -> None:
    """A file in a directory that is not there, or that is one, is named before the measurement."""
    pytest.importorskip("pygal")
    cases(one=(case := Case()))
    assert command.main(["one", option, path]) == 2
    assert capsys.readouterr().err.startswith(f"bench: {path} cannot be written: ")
    assert case.measured == 0


def test_looking_whether_an_output_can_be_written_leaves_nothing(cases: Cases) -> None:
    """When the measurement fails, there is no new file, and an old one is what it was."""
    cases(one=Case(error=OSError("the disk is gone")))
    Path("old.json").write_text("old")
    for name in ("new.json", "old.json"):
        assert command.main(["one", "--json", name]) == 2
    assert [(path.name, path.read_text()) for path in Path().iterdir()] == [("old.json", "old")]


@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, 3000, 100_000])
@pytest.mark.parametrize(("before", "after"), [("[1,", "]"), ('{"a":', "}")])
def test_a_file_that_is_too_deep_is_named(tmp_path: Path, levels: int, before: str, after: str) -> None:
    """A state of more levels than its contenders can follow is an error that names the file, not one of their tracebacks."""
    path = tmp_path / "deep.json"
    path.write_text(before * (levels - 1) + "[1,2]" + after * (levels - 1))
    with pytest.raises(WorkloadError, match=r"deep\.json cannot be replayed: expected at most 500 lists and objects in each other"):
        make_workload(f"file:3:{path}")
    path.write_text('{"log": [1,' + before * (MOST_LEVELS - 3) + "[]" + after * (MOST_LEVELS - 3) + "]}")
    make_workload(f"file:3:{path}").step(1)


# --- several cases at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["--check --quick", "--quick --check"])
def test_a_quick_check_looks_at_one_case(cases: Cases, arguments: str) -> None:
    """In either order of the two options, `check` alone is measured."""
    cases(check=Case(), memory=Case())
    assert command.main(arguments.split()) == 0
    assert [case.measured for case in command.CASES.values()] == [1, 0]  # type: ignore[attr-defined]


def test_a_check_of_all_cases_tells_all_their_floors_and_one_list(cases: Cases, capsys: pytest.CaptureFixture[str]) -> None:
    """A floor that one case does not reach decides, whichever it is; for a dashboard there is one JSON array."""
    cases(check=Case(short=["fast: 1, not 2"]), memory=Case(), retain=Case(short=["small: 2, not 1"]))
    assert command.main(["--check", "--format", "github-action-benchmark"]) == 1
    said = capsys.readouterr()
    assert [entry["name"] for entry in json.loads(said.out)] == ["check: figure: check", "memory: figure: memory", "retain: figure: retain"]
    lines = [line for line in said.err.splitlines() if line.startswith("bench: ")]
    assert lines == ["bench: floor not reached: fast: 1, not 2", "bench: floor not reached: small: 2, not 1"]


def test_a_floor_that_is_not_reached_is_told_though_a_later_case_fails(cases: Cases, capsys: pytest.CaptureFixture[str]) -> None:
    """What one case found does not get lost when the next one cannot be measured."""
    cases(check=Case(short=["fast: 1, not 2"]), memory=Case(error=UnavailableError("this is no Linux")))
    assert command.main(["--check"]) == 2
    assert capsys.readouterr().err == "bench: floor not reached: fast: 1, not 2\nbench: this is no Linux\n"


@pytest.mark.parametrize("option", ["--json", "--plot", "--compare"])
def test_one_file_is_not_of_several_cases(cases: Cases, capsys: pytest.CaptureFixture[str], option: str) -> None:
    """A file that each case would overwrite, or that is of one of them, is refused with what to do instead."""
    cases(check=(case := Case()), memory=Case())
    assert command.main(["--check", option, "result"]) == 2
    assert capsys.readouterr().err == f"bench: {option} is of one case, here are 2: name one, as in `python -m bench check --check`\n"
    assert case.measured == 0


# --- what a document says of itself --------------------------------------------------------------------------------------


def test_a_document_holds_the_options_that_were_measured_with() -> None:
    """Steps and states are among them; where to write to, and whether to judge, are not."""
    assert command.main(["retain", "--shapes", "small", "--steps", "4", "--keep", "2", "--json", "result.json", "--dir", "."]) == 0
    assert json.loads(Path("result.json").read_bytes())["options"] == {"shapes": ["small"], "steps": 4, "keep": 2, "quick": False}
    Path("mine.json").write_text("[1, 2, 3]")
    assert command.main(["migrate", "--file", "mine.json", "--rounds", "1", "--quick", "--json", "result.json"]) == 0
    options = json.loads(Path("result.json").read_bytes())["options"]
    assert (options["file"], options["rounds"], options["quick"]) == ("mine.json", 1, True)


# --- recording -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Stands for the checkout: a commit with a source, a README and a result. Gives back a function that calls git in it."""
    pytest.importorskip("pygal")
    folder = tmp_path / "checkout"
    for name in ("bench/a.py", "bench/results/old.json", "README.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("as committed")

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    monkeypatch.setattr(readme, "ROOT", folder)
    monkeypatch.chdir(folder)
    return git


def record(*arguments: str) -> int:
    return command.main(["record", *arguments, "--results", "bench/results"])


@needs_tool("git")
def test_a_recording_is_of_one_commit(cases: Cases, checkout: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    """All documents carry the commit, though results and README differ from it; how long each took is printed, other files stay."""
    cases(one=Case(), two=Case())
    Path("README.md").write_text("written anew")
    Path("untracked.py").write_text("")
    assert record() == 0
    made = {path.name: path.read_text() for path in Path("bench/results").iterdir()}
    assert set(made) == {"old.json", "one.json", "one.svg", "two.json", "two.svg"}
    assert made["old.json"] == "as committed"
    assert {json.loads(made[name])["commit"] for name in ("one.json", "two.json")} == {checkout("rev-parse", "--short", "HEAD")}
    said = capsys.readouterr().out
    assert "one took 0 s\n" in said
    assert "two took 0 s\n" in said
    # And once more, with results that differ.
    assert record("one") == 0


@needs_tool("git")
def test_a_recording_of_uncommitted_files_is_refused(cases: Cases, checkout: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    """A file that differs from the commit is named with the remedy, before anything is measured; so is a folder without git."""
    cases(one=(case := Case()))
    Path("bench/a.py").write_text("changed")
    assert record() == 2
    assert capsys.readouterr().err == "bench: a recording is of a commit, and files differ from it (bench/a.py): commit first\n"
    shutil.rmtree(".git")
    assert record() == 2
    assert capsys.readouterr().err.startswith("bench: no commit is known of ")
    assert case.measured == 0


@needs_tool("git")
def test_a_recording_ends_when_the_commit_changes(cases: Cases, checkout: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    """A case during which another commit came is not written: half of it may be of the other code."""

    class Meanwhile(Case):
        def run(self, arguments: argparse.Namespace, folder: Path) -> Outcome:
            checkout("commit", "-q", "--allow-empty", "-m", "second")
            return super().run(arguments, folder)

    cases(one=Case(), two=Meanwhile(), three=Case())
    assert record() == 2
    assert capsys.readouterr().err.startswith("bench: two was measured while the checkout went from ")
    assert sorted(path.name for path in Path("bench/results").glob("*.json")) == ["old.json", "one.json"]


@needs_tool("git")
def test_a_recording_skips_what_cannot_be_measured_here(
    cases: Cases, checkout: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without valgrind `count` is left out aloud, unless it was asked for; then it is an error."""
    cases(count=Case(), one=Case())
    monkeypatch.setitem(command.CASES, "count", count)
    monkeypatch.setattr(count, "shutil", SimpleNamespace(which=lambda name: None))
    assert record() == 0
    assert "count is skipped: valgrind is not installed" in capsys.readouterr().out
    assert not Path("bench/results/count.json").exists()
    assert Path("bench/results/one.json").exists()
    assert record("count") == 2
    assert capsys.readouterr().err == "bench: valgrind is not installed: there is nothing here that counts instructions\n"


# --- Ctrl-C --------------------------------------------------------------------------------------------------------------


@needs_posix
@pytest.mark.parametrize("case", ["retain", pytest.param("memory --rounds 300", marks=needs_linux), pytest.param("run", marks=needs_orjson)])
def test_an_interruption_is_one_line(tmp_path: Path, case: str) -> None:
    """Ctrl-C reaches all processes of the terminal: one line, exit code 130, and nothing is left on the disk."""
    (tmp_path / "disk").mkdir()
    running = subprocess.Popen(
        [sys.executable, "-m", "bench", *case.split(), "--shapes", "small", "--dir", "disk"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    while not any(path.is_dir() for path in (tmp_path / "disk").glob("*/*")) and running.poll() is None:
        time.sleep(0.02)  # until a run is being written
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (130, "bench: interrupted\n")
    assert list((tmp_path / "disk").iterdir()) == []
