"""The commands `diff` and `series`: what changed between two steps, and one value across the steps of a run."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import test_cli
from support import SHARED, assert_same, everything_in, needs_shared
from test_cli import ENVIRONMENT, Run, one_line, run_program

import fastckpt
from fastckpt import CheckpointManager

NAME = "checkpoint.fastckpt"
run = test_cli.run  # the fixture


def state(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "loss": [2.0, 1.0, float("nan"), 0.5, 0.75, 0.25][step],
        "note": f"n{step}",
        "done": step > 3,
        "rows": [{"id": n, "text": "x" * 50 + str(n)} for n in range(step, step + 3)],
        **({"late": step} if step > 3 else {}),
        **({"early": [1, {"a": None}]} if step < 5 else {}),
        "long": "the same beginning, for sixty characters and then some more: " + "abcdef"[step],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of six steps, in a folder of its own."""
    with CheckpointManager(tmp_path / "run", dict, fsync=False) as manager:
        for step in range(6):
            manager.save(step, state(step))
    return tmp_path / "run"


# --- diff ------------------------------------------------------------------------------------------------------------


def test_diff_of_the_newest_steps(run: Run, folder: Path) -> None:
    """Without steps it is the newest against the one before: each change a line with its path, old and new; then how many of each kind."""
    ran = run("diff", folder)
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines == [
        "~ $.step  4 -> 5",
        "~ $.loss  0.75 -> 0.25",
        "~ $.note  'n4' -> 'n5'",
        "- $.rows[0]  {'id': 4, 'text': 'xxxxxxxxx...xxxxxxxxx4'}",
        "+ $.rows[2]  {'id': 7, 'text': 'xxxxxxxxx...xxxxxxxxx7'}",
        "~ $.late  4 -> 5",
        "- $.early  [1, {'a': None}]",
        "~ $.long  '… some more: e' -> '… some more: f'",
        "step 4 -> step 5: 5 changed, 1 added, 2 removed",
    ]
    assert run("diff", folder / NAME, 4, 5).out == ran.out
    assert run("diff", folder, 4).out == ran.out


def test_diff_of_any_two_steps(run: Run, folder: Path) -> None:
    """Steps may be given in either order; the same step twice differs in nothing; --limit shows that many and says how to see the rest."""
    ran = run("diff", folder, 5, 0, "--limit", 1)
    assert ran.lines[0] == "~ $.step  5 -> 0"
    assert re.fullmatch(r"… (\d+) more: --limit (\d+) shows them, --json has them whole", ran.lines[1])
    assert ran.lines[2].startswith("step 5 -> step 0: ")
    assert run("diff", folder, 2, 2).lines == ["step 2 -> step 2: no difference"]


def test_diff_for_machines(run: Run, folder: Path) -> None:
    """--json has every change whole; what is not there has no key, what is None has one."""
    document = json.loads(run("diff", folder, 4, 5, "--json", "--limit", 1).out)
    assert document["old"] == 4
    assert document["new"] == 5
    assert document["summary"] == {"changed": 5, "added": 1, "removed": 2}
    found = {change["path"]: change for change in document["changes"]}
    assert_same(found["$.rows[2]"], {"path": "$.rows[2]", "new": {"id": 7, "text": "x" * 50 + "7"}})
    assert_same(found["$.early"], {"path": "$.early", "old": [1, {"a": None}]})
    assert_same(found["$.long"]["old"], state(4)["long"])


def test_diff_of_two_files(run: Run, folder: Path, tmp_path: Path) -> None:
    """Two files may be checkpoints or JSON; the newest step of a run counts."""
    fastckpt.save(tmp_path / "a.fastckpt", {**state(5), "step": 9})
    (tmp_path / "b.json").write_text(json.dumps({**state(5), "step": 9.0, "rows": "none"}))
    assert run("diff", folder, tmp_path / "a.fastckpt").lines == [
        "~ $.step  5 -> 9", f"{folder} -> {tmp_path / 'a.fastckpt'}: 1 changed",
    ]  # fmt: skip
    ran = run("diff", tmp_path / "a.fastckpt", tmp_path / "b.json")
    assert ran.lines[0] == "~ $.step  9 -> 9.0"
    assert ran.lines[1].startswith("~ $.rows  [{'id': 5, ")
    assert ran.lines[1].endswith("-> 'none'")


def test_diff_shows_what_a_terminal_would_obey_as_text(run: Run, tmp_path: Path) -> None:
    """Keys and values that hold escape sequences, line breaks or lone surrogates stay on one line and do nothing."""
    with CheckpointManager(tmp_path, dict) as manager:
        manager.save(0, {"a\n\x1b[31m": 1, "big": 2**70, "lone": "\ud800", 3: b"\x00"})
        manager.save(1, {"a\n\x1b[31m": [["\x1b[0m\n"]], "big": 10**5000, "lone": "\ud801", 3: {"k": [2**70, 10**5000]}})
    ran = run("diff", tmp_path)
    assert ran.code == 0
    assert b"\x1b" not in ran.out
    assert len(ran.lines) == 5
    assert ran.lines[-1] == "step 0 -> step 1: 4 changed"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([17], 3, ["the run has no step 17", "the nearest: 5"]),
        ([3, 17], 3, ["the run has no step 17"]),
        (["other.json"], 3, ["no such file", "other.json"]),
        (["a.json", 3], 2, ["takes two steps of one run, or two files"]),
        ([3, "b.json"], 2, ["takes two steps of one run, or two files"]),
    ],
)
def test_diff_that_cannot_be_made(arguments: list[object], code: int, words: list[str], run: Run, folder: Path) -> None:
    """A step or a file that is not there, or a mixture of both, is one line and its exit code."""
    ran = run("diff", folder, *arguments)
    assert (ran.code, ran.out) == (code, b"")
    one_line(ran, *words)


def test_diff_of_one_step(run: Run, tmp_path: Path) -> None:
    """A run of a single step has nothing to be compared with, and says so."""
    with CheckpointManager(tmp_path, dict) as manager:
        manager.save(3, {})
    ran = run("diff", tmp_path)
    assert ran.code == 3
    one_line(ran, "step 3 is the only one")


# --- series ----------------------------------------------------------------------------------------------------------


def rows_of(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode("utf-8"), newline="")))


def test_series_as_a_table(run: Run, folder: Path, tmp_path: Path) -> None:
    """A column for each path, values as JSON, empty where a step has none; to standard output, or to a file that is named."""
    ran = run("series", folder, "loss", "late", "note", "rows.-1.id", "early", "--csv", "-")
    assert (ran.code, ran.err) == (0, "")
    assert rows_of(ran.out) == [
        ["step", "loss", "late", "note", "rows.-1.id", "early"],
        ["0", "2.0", "", '"n0"', "2", '[ 1, { "a": null } ]'],
        ["1", "1.0", "", '"n1"', "3", '[ 1, { "a": null } ]'],
        ["2", "NaN", "", '"n2"', "4", '[ 1, { "a": null } ]'],
        ["3", "0.5", "", '"n3"', "5", '[ 1, { "a": null } ]'],
        ["4", "0.75", "4", '"n4"', "6", '[ 1, { "a": null } ]'],
        ["5", "0.25", "5", '"n5"', "7", ""],
    ]
    written = run("series", folder, "loss", "late", "note", "rows.-1.id", "early", "--csv", tmp_path / "t.csv")
    assert written.lines == [f"written  {tmp_path / 't.csv'}"]
    assert rows_of(run("series", folder, "late", "note", "--csv", "-").out)[1] == ["0", "", '"n0"']
    assert (tmp_path / "t.csv").read_bytes() == ran.out


def test_series_for_machines(run: Run, folder: Path) -> None:
    """--json has step and value pairs for each path, exactly, NaN too."""
    document = json.loads(run("series", folder, "loss", "done", "--json").out)
    assert_same(
        document, {"path": str(folder), "series": {"loss": [[n, state(n)["loss"]] for n in range(6)], "done": [[n, n > 3] for n in range(6)]}}
    )


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (["--steps", "2:4"], [2, 3, 4]), (["--steps", "2:"], [2, 3, 4, 5]), (["--steps", ":1"], [0, 1]), (["--stride", 2], [0, 2, 4]),
        (["--steps", "1:99", "--stride", 3], [1, 4]), (["--steps", ":"], [0, 1, 2, 3, 4, 5]),
    ],
)  # fmt: skip
def test_series_of_some_steps(options: list[object], steps: list[int], run: Run, folder: Path) -> None:
    """--steps A:B includes both ends, either may be left out; --stride N takes every N-th of these."""
    document = json.loads(run("series", folder, "step", "--json", *options).out)
    assert document["series"]["step"] == [[step, step] for step in steps]


def test_series_plotted(run: Run, folder: Path) -> None:
    """Without a terminal the plot is of 80 columns and no colour, with labelled axes; a line says where the curve begins, ends, and turns."""
    ran = run("series", folder, "loss", "done")
    assert (ran.code, ran.err) == (0, "")
    assert b"\x1b" not in ran.out
    assert max(map(len, ran.lines[:-3])) <= 80
    assert ran.lines[0].endswith(" loss")
    assert ran.lines[1].endswith(" done")
    assert "step" in ran.lines[-4]
    assert "1.5┤" in ran.out.decode()
    assert ran.lines[-3] == "loss  2 at step 0, 0.25 at step 5; least 0.25 (5), most 2 (0)"
    assert ran.lines[-2] == "done  0 at step 0, 1 at step 5; least 0 (0), most 1 (4)"
    assert ran.lines[-1] == "1 value of loss cannot be drawn: no number, or not a finite one; --csv and --json have all"


def test_series_of_what_cannot_be_drawn(run: Run, folder: Path) -> None:
    """Where no value is a number there is no plot, and it is said why."""
    ran = run("series", folder, "note")
    assert (ran.code, ran.lines) == (0, ["6 values of note cannot be drawn: no number, or not a finite one; --csv and --json have all"])


def test_series_where_the_terminal_knows_ascii_alone(folder: Path) -> None:
    """A terminal that cannot print the plot's characters gets one of ASCII; the width is what COLUMNS says."""
    ran = run_program("series", folder, "loss", env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii", "COLUMNS": "60"})
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.isascii()
    assert b"\\" not in ran.out
    assert max(len(line) for line in ran.lines[:-2]) == 60


def test_series_as_a_picture(run: Run, folder: Path, tmp_path: Path) -> None:
    """An SVG with a curve for each path, that runs no script and fetches nothing, the same bytes each time."""
    target = tmp_path / "a.svg"
    ran = run("series", folder, "loss", "rows[0].id", "--svg", target)
    assert (ran.code, ran.err, ran.lines[0]) == (0, "", f"written  {target}")
    data = target.read_bytes()
    root = ET.fromstring(data)
    texts = [element.text for element in root.iter() if element.text]
    assert {"loss", "rows[0].id", "step"} <= set(texts)
    assert not [element for element in root.iter() if str(element.tag).endswith("script")]
    assert re.findall(rb"(?:https?:|//)[^\"' <]+", data.replace(b"http://www.w3.org/2000/svg", b"")) == []
    run("series", folder, "loss", "rows[0].id", "--svg", target)
    assert target.read_bytes() == data
    assert run("series", folder, "loss", "rows[0].id", "--svg", "-").out == data


def test_a_picture_of_hardly_anything(run: Run, tmp_path: Path) -> None:
    """One step, equal values, values of any size, or none that is a number: there is a picture and a plot all the same."""
    with CheckpointManager(tmp_path, dict) as manager:
        for step, value in enumerate([[0, 5, 1e308, 1e-320, "x", 10**400, -1e99], [0, 5, -1e308, 0.0, None, 1, 1e99]]):
            manager.save(step, {"v": value})
    for names in [["v[0]"], ["v[1]"], ["v[2]"], ["v[3]"], ["v[4]"], ["v[5]"], ["v[6]"], ["v[3]", "v[6]"], [f"v[{n}]" for n in range(7)]]:
        for options in ([], ["--steps", "1:1"]):
            ran = run("series", tmp_path, *names, *options)
            assert (ran.code, ran.err) == (0, "")
            ran = run("series", tmp_path, *names, *options, "--svg", "-")
            assert (ran.code, ran.err) == (0, "")
            assert ET.fromstring(ran.out).tag.endswith("svg")


def test_a_curve_of_another_size_has_its_own_axis(run: Run, tmp_path: Path) -> None:
    """A learning rate beside a loss is not flattened: what is of another size gets the right axis, and says so."""
    with CheckpointManager(tmp_path, dict) as manager:
        for step in range(20):
            manager.save(step, {"loss": 5.0 - step / 10, "rate": 1e-4 * (20 - step), "accuracy": 3 + step / 10})
    ran = run("series", tmp_path, "loss", "rate", "accuracy")
    assert [line.split(" ", 1)[1] for line in ran.lines[:3]] == ["loss", "rate (right)", "accuracy"]
    assert "├0.001" in ran.out.decode()
    assert b"rate (right)" in run("series", tmp_path, "loss", "rate", "--svg", "-").out


def test_a_path_where_nothing_is(run: Run, folder: Path) -> None:
    """A path that no step has is not found: how far it leads, and what is there; the others are not written either."""
    for options in ([], ["--csv", folder.parent / "t.csv"], ["--json"]):
        ran = run("series", folder, "loss", "rows.-1.idd", *options)
        assert (ran.code, ran.out) == (3, b"")
        one_line(ran, "`$.rows[-1].idd`", "`$.rows[-1]` holds id")
    assert everything_in(folder.parent) == ["run", f"run/{NAME}", f"run/{NAME}.lock"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["loss", "--steps", "5"], 2, ["expected A:B", "'5'"]),
        (["loss", "--steps", "a:b"], 2, ["expected A:B"]),
        (["loss", "--steps", "7:9"], 3, ["no step in 7:9"]),
        (["loss", "--csv", "-", "--json"], 2, ["only one of"]),
        (["a[", "--json"], 7, ["not a path"]),
        ([], 2, ["PATH"]),
    ],
)
def test_series_that_cannot_be_made(arguments: list[object], code: int, words: list[str], run: Run, folder: Path) -> None:
    """What is not understood, or not there, is one line and its exit code."""
    ran = run("series", folder, *arguments)
    assert (ran.code, ran.out) == (code, b"")
    one_line(ran, *words)


@pytest.mark.parametrize("option", ["--csv", "--svg"])
def test_a_result_replaces_nothing_else(option: str, run: Run, folder: Path) -> None:
    """A table or a picture takes the place of an earlier one of its kind, never of a checkpoint or anything else."""
    before = (folder / NAME).read_bytes()
    ran = run("series", folder, "loss", option, folder / NAME)
    assert (ran.code, ran.out) == (8, b"")
    one_line(ran, "would replace something else", NAME)
    assert (folder / NAME).read_bytes() == before


@pytest.mark.parametrize(("missing", "option"), [("plotext", []), ("pygal", ["--svg", "-"])])
def test_a_missing_library_is_named(missing: str, option: list[str], run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library that draws, it is one line with the remedy; what needs none of it works."""
    monkeypatch.setitem(sys.modules, missing, None)
    ran = run("series", folder, "loss", *option)
    assert (ran.code, ran.out) == (1, b"")
    one_line(ran, f"needs the package {missing}", "pip install '.[cli]'")
    assert run("series", folder, "loss", "--csv", "-").code == 0
    assert run("diff", folder).code == 0


@needs_shared
def test_the_loss_of_a_real_run(run: Run, tmp_path: Path) -> None:
    """A real trainer state replayed as 500 steps: its loss curve, read from the run, is that of its rows."""
    trainer = json.loads((SHARED / "data" / "trainer_state_star_40000steps.json").read_bytes())
    rows = trainer["log_history"]
    with CheckpointManager(tmp_path, dict, fsync=False, round_trip="never") as manager:
        for step in range(500):
            manager.save(step, {**trainer, "log_history": rows[: 4 * (step + 1)]})
    table = rows_of(run("series", tmp_path, "log_history.-1.loss", "--csv", "-").out)
    assert table == [["step", "log_history.-1.loss"], *([str(step), json.dumps(rows[4 * step + 3]["loss"])] for step in range(500))]
    assert run("diff", tmp_path, 498, 499).lines[-1] == "step 498 -> step 499: 4 added"
    assert "15┤" in run("series", tmp_path, "log_history.-1.loss").out.decode()
