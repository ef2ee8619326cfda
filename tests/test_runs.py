"""Whole runs on real files: every step of them in one small file, and each comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import SHARED, assert_same, needs_linux, needs_shared

from fastckpt import CheckpointManager, load, verify
from fastckpt.reader import MAX_TOUCHED, Reader


def real(name: str) -> Any:
    return json.loads((SHARED / "data" / name).read_bytes())


@needs_shared
def test_trajectories_one_a_step(tmp_path: Path) -> None:
    """200 agent trajectories appended one a step and saved 200 times: at most 1.8 MB, and each of the 200 steps restores equal."""
    trajectories = real("tau_bench_gpt4o_airline_trajectories.json")
    with CheckpointManager(tmp_path, list, fsync=False) as manager:
        for step in range(200):
            manager.save(step, trajectories[: step + 1])
    path = tmp_path / "checkpoint.fastckpt"
    assert path.stat().st_size <= 1_800_000
    assert verify(path) == []
    with CheckpointManager(tmp_path, list, read_only=True) as manager:
        assert manager.all_steps() == list(range(200))
        for step in range(200):
            assert manager.restore(step) == trajectories[: step + 1]
        assert_same(manager.restore(199), trajectories)
    assert_same(load(path), trajectories)


@needs_shared
def test_trainer_state_of_four_rows_a_step(tmp_path: Path) -> None:
    """A trainer state that grows by 4 rows a step, 500 times: at most 2.5 MB, and steps restore equal."""
    state = real("trainer_state_star_40000steps.json")
    rows = state["log_history"]
    with CheckpointManager(tmp_path, dict, fsync=False) as manager:
        for step in range(500):
            manager.save(step, {**state, "log_history": rows[: 4 * (step + 1)]})
        for step in (0, 1, 2, 17, 255, 256, 257, 498, 499):
            assert_same(manager.restore(step), {**state, "log_history": rows[: 4 * (step + 1)]})
    assert (tmp_path / "checkpoint.fastckpt").stat().st_size <= 2_500_000


def test_a_row_a_step(tmp_path: Path) -> None:
    """3,000 steps of one appended row stay below 12 MB (10,000 below 40, see `python -m bench diff`), and restore by few records."""
    rows: list[dict[str, float]] = []
    with CheckpointManager(tmp_path, dict, fsync=False, round_trip="never") as manager:
        for step in range(3000):
            rows.append({"step": step, "loss": 1 / (step + 1), "lr": 0.001 * step, "grad": 2 / (step + 3)})
            manager.save(step, {"rows": rows, "after": "x" * 50})
        assert_same(manager.restore(), {"rows": rows, "after": "x" * 50})
        assert_same(manager.restore(1234), {"rows": rows[:1235], "after": "x" * 50})
    assert (tmp_path / "checkpoint.fastckpt").stat().st_size <= 12_000_000
    reader = Reader(tmp_path / "checkpoint.fastckpt")
    touched = [len(reader._table(entry).distances) for entry in reader.entries()]
    reader.close()
    assert len(touched) == 3000
    assert max(touched) <= MAX_TOUCHED


def test_scattered_floats(tmp_path: Path) -> None:
    """600 steps of twenty changed floats in a state of 1 MB: never more than 256 records touched, and that bound is what makes bases."""
    import random

    r = random.Random(5)
    values = [r.random() for _ in range(110_000)]
    bases = []
    with CheckpointManager(tmp_path, list, fsync=False, round_trip="never", on_save=lambda stats: bases.append(stats.bases)) as manager:
        for step in range(600):
            for _ in range(20 if step % 3 else 2):
                values[r.randrange(len(values))] = r.random()
            manager.save(step, values)
        assert_same(manager.restore(), values)
    assert bases[0] == 1
    assert sum(bases) > 1
    reader = Reader(tmp_path / "checkpoint.fastckpt")
    assert max(len(reader._table(entry).distances) for entry in reader.entries()) <= MAX_TOUCHED
    reader.close()


MEMORY = """
import random, sys, tempfile, tracemalloc
from fastckpt import CheckpointManager
kind, mode, steps, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3]), 16
r = random.Random(1)
words = [r.randbytes(3).hex() for _ in range(3000)]
state = {"text": [" ".join(r.choices(words, k=150)) for _ in range(1000 * megabytes)], "step": 0}
size = sum(map(len, state["text"]))
def status(key):
    if kind == "held":
        return tracemalloc.get_traced_memory()[key == "VmHWM"]
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))
if kind == "held":
    tracemalloc.start()
with tempfile.TemporaryDirectory() as folder:
    base = status("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
    peaks = []
    with CheckpointManager(folder, dict, durability=mode, fsync=False) as manager:
        for step in range(steps):
            state["step"] = step
            state["text"][r.randrange(len(state["text"]))] = " ".join(r.choices(words, k=150))
            manager.save(step, state)
            if step == 19:
                peaks.append(status("VmHWM"))
    peaks.append(status("VmHWM"))
print(*((peak - base) / size for peak in peaks))
"""


@needs_linux
@pytest.mark.parametrize(("durability", "most"), [("sync", 4.0), ("async", 5.0)])
def test_memory_of_the_writer(durability: str, most: float) -> None:
    """Saving holds at most 4 times the message, 5 in the background, after 60 steps as after 20; and the resident size does not grow."""
    for kind in ("held", "resident"):
        done = subprocess.run([sys.executable, "-c", MEMORY, kind, durability, "60"], capture_output=True, text=True, check=True)
        early, late = map(float, done.stdout.split())
        assert late <= early + 0.3
        if kind == "held":
            assert 2 < late <= most
