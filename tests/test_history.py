"""`History`: a run looked into, in the process that writes it, beside it, and long afterwards."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from support import assert_same, everything_in, open_descriptors

from fastckpt import ABSENT, CheckpointManager, CheckpointWarning, CorruptError, History, NotFoundError, SchemaError, StorageError

FILE = "checkpoint.fastckpt"


@dataclasses.dataclass
class State:
    step: int
    loss: float | None
    rows: list[dict[str, float]]
    votes: dict[int, str]
    seen: set[str]


def state(step: int) -> State:
    rows = [{"loss": 1 / (i + 1), "step": float(i)} for i in range(step + 1)]
    return State(step, None if step == 4 else 0.5**step, rows, {step % 3: "a", 7: "b"}, {"x", str(step)})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path, State) as manager:
        for step in range(10):
            manager.save(step, state(step), metrics={"loss": 0.5**step, "lr": step}, meta={"n": step})
    return tmp_path


def test_it_reads_and_changes_nothing(run: Path) -> None:
    """States, steps, metrics and metadata, typed and untyped, by the directory and by the file; no lock, no file, no descriptor left."""
    (run / f"{FILE}.lock").unlink()
    before, files, data = open_descriptors(), everything_in(run), (run / FILE).read_bytes()
    for path in (run, run / FILE, str(run)):
        with History(path, State) as history:
            assert history.all_steps() == list(range(10))
            assert history.latest_step() == 9
            assert_same(history.restore(), state(9))
            assert_same(history.restore(3), state(3))
            assert history.metrics(2) == {"loss": 0.25, "lr": 2}
            assert history.meta() == {"n": 9}
        with pytest.raises(StorageError, match="closed"):
            history.restore()
    assert everything_in(run) == files
    assert (run / FILE).read_bytes() == data
    assert open_descriptors() == before


def test_the_manager_has_the_same(run: Path) -> None:
    """`diff`, `series` and `log` of the manager that writes the run, what is in flight included."""
    with CheckpointManager(run, State, durability="async") as manager:
        manager.save(10, state(10))
        assert [step for step, _ in manager.series("step")] == list(range(11))
        assert manager.diff(9, 10)[0] == ("$.step", 9, 10)
        assert manager.log()[-1]["step"] == 10


def test_series(run: Path) -> None:
    """One value across the run: a field, one inside the last item of a list, one of a map; ranges, lists of steps, strides."""
    with History(run) as history:
        assert history.series("loss") == [(step, None if step == 4 else 0.5**step) for step in range(10)]
        assert history.series("$.rows[-1].loss") == [(step, 1 / (step + 1)) for step in range(10)]
        assert history.series("rows.-1.loss", range(2, 100), stride=3) == [(2, 1 / 3), (5, 1 / 6), (8, 1 / 9)]
        assert history.series("votes.1") == [(1, "a"), (4, "a"), (7, "a")]  # left out where it is not
        assert history.series("step", [7, 2]) == [(7, 7), (2, 2)]
        point = history.series("step")[3]
        assert (point.step, point.value) == (3, 3)


def test_series_of_what_is_not_there(run: Path) -> None:
    """A path that no step has names what there is; one that is no path, a step that is not there and a stride of none are refused."""
    with History(run) as history:
        with pytest.raises(NotFoundError, match=r"no step has a value at `\$\.rows\[-1\]\.los`.*loss"):
            history.series("rows.-1.los")
        with pytest.raises(NotFoundError, match="no step 77"):
            history.series("step", [1, 77])
        with pytest.raises(SchemaError):
            history.series("rows[")
        with pytest.raises(ValueError, match="stride"):
            history.series("step", stride=0)
        with pytest.raises(NotFoundError, match="no step 50"):
            history.diff(1, 50)


def test_diff(run: Path) -> None:
    """What changed by path, with what was there and what is there; what was added has no old value."""
    with History(run, State) as history:
        found = {change.path: (change.old, change.new) for change in history.diff(8, 9)}
        assert found["$.step"] == (8, 9)
        assert found["$.loss"] == (0.5**8, 0.5**9)
        assert found["$.rows[9]"] == (ABSENT, {"loss": 0.1, "step": 9.0})
        assert found["$.votes[2]"] == ("a", ABSENT)
        assert found["$.votes[0]"] == (ABSENT, "a")
        assert all(path.startswith(("$.step", "$.loss", "$.rows[9]", "$.votes", "$.seen")) for path in found)
        assert history.diff(5, 5) == []


def test_rows_for_a_table(run: Path) -> None:
    """`log` has a row a step with the same columns, and points have names: what a DataFrame takes as it is."""
    with History(run) as history:
        rows = history.log()
        assert [row["step"] for row in rows] == list(range(10))
        assert rows[2]["metrics.loss"] == 0.25
        assert {tuple(row) for row in rows} == {("step", "time", "base", "message_bytes", "file_bytes", "metrics.loss", "metrics.lr")}
        assert history.series("step")[0]._fields == ("step", "value")


WRITER = """
import sys
from fastckpt import CheckpointManager
with CheckpointManager(sys.argv[1], max_to_keep=20) as manager:
    for line in sys.stdin:
        for step in range(manager.next_step(), int(line)):
            manager.save(step, {"step": step, "text": "same " * 400})
        print("saved", flush=True)
"""


def test_following_a_run_that_another_process_writes(tmp_path: Path) -> None:
    """It shows the run as it was when it was opened until `refresh`, which says whether there is more; across compactions of the other process too."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def save_up_to(step: int) -> None:
            process.stdin.write(f"{step}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "saved\n"

        save_up_to(5)
        with History(tmp_path) as history:
            assert history.all_steps() == [0, 1, 2, 3, 4]
            assert not history.refresh()
            save_up_to(300)
            assert history.all_steps() == [0, 1, 2, 3, 4]
            assert_same(history.restore(0)["step"], 0)
            assert history.refresh()
            assert history.all_steps() == list(range(280, 300))
            assert history.series("step") == [(step, step) for step in range(280, 300)]
        process.stdin.close()
        assert process.wait() == 0


def test_a_damaged_run_is_looked_at_as_far_as_it_goes(run: Path) -> None:
    """Damage is a warning at the beginning, and an error only for what it touches."""
    data = bytearray((run / FILE).read_bytes())
    data[-100] ^= 1
    (run / FILE).write_bytes(data)
    with pytest.warns(CheckpointWarning, match="damaged"):
        history = History(run)
    with history:
        assert_same(history.restore(5)["step"], 5)
        with pytest.raises(CorruptError, match=r"restore\(fallback=True\)"):
            history.restore()
        with pytest.warns(CheckpointWarning, match="going back to step 8"):
            assert history.restore(fallback=True)["step"] == 8


def test_what_is_not_there_or_no_run(tmp_path: Path) -> None:
    """A path without a run is an error that names it."""
    with pytest.raises(NotFoundError, match=r"checkpoint\.fastckpt"):
        History(tmp_path)
    with CheckpointManager(tmp_path) as manager:
        with pytest.raises(NotFoundError, match="no step"):
            manager.series("step")
        assert manager.log() == []


def test_a_file_of_one_checkpoint(tmp_path: Path) -> None:
    """A single file is a history of one step, if it says or is told which."""
    from fastckpt import save

    save(tmp_path / FILE, {"progress": {"global_step": 12}, "x": 1})
    with History(tmp_path) as history:
        assert history.all_steps() == [12]
        assert history.series("x") == [(12, 1)]
    save(tmp_path / FILE, {"x": 1})
    with History(tmp_path, first_step=3) as history:
        assert history.restore(3) == {"x": 1}
