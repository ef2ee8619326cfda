"""One value across the steps of a run, and the difference of two, in Python (DESIGN §7, History); and the benchmark of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import SHARED, assert_same, needs_shared

from fastckpt import CheckpointManager, NotFoundError, SchemaError
from fastckpt.changes import value_at
from fastckpt.history import History
from fastckpt.tree import ABSENT


def state(step: int) -> dict[str, Any]:
    """A state whose shape changes on the way: a field that comes, one that turns from None into a dict, a big integer, a lone surrogate."""
    return {
        "loss": 1 / (step + 1) if step != 3 else float("nan"),
        "best": None if step < 4 else {"acc": step / 10, "at": step},
        "rng": {"state": 2**100 + step} if step % 2 else {"state": step},
        "votes": {n: n * step for n in range(3)} if step < 6 else [0, step, 2 * step],
        "text": "\ud800" if step == 5 else "x",
        **({"late": [step]} if step > 6 else {}),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path, dict, fsync=False) as manager:
        for step in range(10):
            manager.save(2 * step, state(step))
    return tmp_path


PATHS = ["loss", "best.acc", "$.best", "rng.state", "votes.2", "votes[1]", "text", "late[-1]", "late", "rng", "$"]


@pytest.mark.parametrize("path", PATHS)
def test_a_series_is_what_each_step_restores(path: str, folder: Path) -> None:
    """At every step the value is the one in the restored state, in value and exact type; steps that have none are left out."""
    steps = {"best.acc": ("best", "acc"), "$.best": ("best",), "rng.state": ("rng", "state"), "votes.2": ("votes", 2), "votes[1]": ("votes", 1)}
    where = steps.get(path, {"late[-1]": ("late", -1), "$": ()}.get(path, (path,)))
    with History(folder) as history:
        expected = [(step, value_at(history.restore(step), where)) for step in history.all_steps()]
        found = [(step, value) for step, value in history.series(path)]
    assert_same(found, [(step, value) for step, value in expected if value is not ABSENT])


def test_a_series_of_some_steps(folder: Path) -> None:
    """Those that are asked for, in that order; a stride takes every so many of them."""
    with History(folder) as history:
        assert [step for step, _ in history.series("loss", [2, 8, 4])] == [2, 8, 4]
        assert [step for step, _ in history.series("loss", stride=4)] == [0, 8, 16]
        assert [step for step, _ in history.series("loss", range(3, 9))] == [4, 6, 8]
        with pytest.raises(NotFoundError, match="no step 3"):
            history.series("loss", [2, 3])
        with pytest.raises(ValueError, match="stride"):
            history.series("loss", stride=0)


@pytest.mark.parametrize(
    ("path", "fact"),
    [("los", "`$` holds loss"), ("best.accuracy", "`$.best` holds acc"), ("late[7]", "`$.late` is a list of 1"), ("loss.x", "`$.loss` is 0.1")],
)
def test_a_series_of_nothing(path: str, fact: str, folder: Path) -> None:
    """A path that no step has is an error of the kind not found, which says how far it leads and what is there."""
    with History(folder) as history, pytest.raises(NotFoundError, match="no step has a value at") as caught:
        history.series(path)
    assert fact in str(caught.value)


def test_what_is_no_path(folder: Path) -> None:
    """Text that is no path is refused before anything is read."""
    with History(folder) as history, pytest.raises(SchemaError, match="not a path"):
        history.series("a[")


def test_a_diff_is_of_what_is_stored(tmp_path: Path) -> None:
    """Differences are of plain data, whatever the type of the run: a set is a list there; exact types count."""

    class State(msgspec.Struct):
        seen: set[str]
        n: float
        rows: list[int]

    with CheckpointManager(tmp_path, State) as manager:
        manager.save(0, State({"a"}, 1.0, [1, 2, 3]))
        manager.save(1, State({"a", "b"}, 2.0, [2, 3, 4]))
    with History(tmp_path, State) as history:
        found = {change.path: (change.old, change.new) for change in history.diff(0, 1)}
        assert history.diff(1, 1) == []
    assert found.pop("$.n") == (1.0, 2.0)
    assert found.pop("$.rows[0]") == (1, ABSENT)
    assert found.pop("$.rows[2]") == (ABSENT, 4)
    assert [new for _, new in found.values()] == ["b"]


@needs_shared
def test_the_rows_of_a_real_run(tmp_path: Path) -> None:
    """A real trainer state replayed as 500 steps gives the loss of each, and what each step appended, from a run as it lies on disk."""
    trainer = json.loads((SHARED / "data" / "trainer_state_star_40000steps.json").read_bytes())
    rows = trainer["log_history"]
    with CheckpointManager(tmp_path, dict, fsync=False, round_trip="never") as manager:
        for step in range(500):
            manager.save(step, {**trainer, "log_history": rows[: 4 * (step + 1)]})
    with History(tmp_path) as history:
        assert_same([(s, v) for s, v in history.series("log_history.-1.loss")], [(s, rows[4 * s + 3]["loss"]) for s in range(500)])
        found = history.diff(300, 301)
    assert_same([tuple(change) for change in found], [(f"$.log_history[{n}]", ABSENT, rows[n]) for n in range(1204, 1208)])
