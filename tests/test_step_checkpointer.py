"""`dropin.StepCheckpointer`: the replaced module's call on a run that keeps every step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import assert_same

from bench.shapes import batches, change, make
from fastckpt import EncodeError, LockedError, NotFoundError, load, to_json
from fastckpt.dropin import StepCheckpointer, load_checkpoint, remove_checkpoint, write_checkpoint
from fastckpt.migrate import migrate

CONFIG = SimpleNamespace(batch_size=20, epochs=4)


def step_of(state: Any, step: int) -> dict[str, Any]:
    return {
        "state": state, "epoch": step // 10, "step_completed": step % 10, "phase": "in_epoch", "global_step": step, "total_steps": 50,
        "version_snapshot": {"skills": "v1", "prompts": "v2"}, "epoch_batches": batches(state), "config": CONFIG,
    }  # fmt: skip


def test_every_step_is_kept(tmp_path: Path) -> None:
    """Each step loads as `write_checkpoint` would have left it; `load_checkpoint` reads the newest; the file is small."""
    state, expected = make("small"), []
    with StepCheckpointer(tmp_path / "run") as checkpointer:
        for step in range(12):
            change(state, step)
            write_checkpoint(tmp_path / "single", **step_of(state, step))
            expected.append(load_checkpoint(tmp_path / "single"))
            stats = checkpointer.write(**step_of(state, step))
            assert stats.step == step
        assert checkpointer.steps() == list(range(12))
        for step in range(12):
            assert_same(checkpointer.load(step), expected[step])
        assert_same(checkpointer.load(), expected[-1])
    assert_same(load_checkpoint(tmp_path / "run"), expected[-1])
    assert to_json(load(tmp_path / "run" / "checkpoint.fastckpt")) == to_json(expected[-1])
    sizes = [(tmp_path / name / "checkpoint.fastckpt").stat().st_size for name in ("single", "run")]
    assert sizes[1] < 8 * sizes[0]


def test_going_back(tmp_path: Path) -> None:
    """A step that is not above the newest takes its place and that of every later one."""
    state = make("small")
    with StepCheckpointer(tmp_path) as checkpointer:
        for step in (0, 1, 2, 3, 1):
            change(state, step)
            checkpointer.write(**step_of(state, step))
        assert checkpointer.steps() == [0, 1]
        loaded = checkpointer.load()
        assert loaded is not None
        assert loaded["state"]["eval_prev_acc"] == state.eval_prev_acc


def test_a_migrated_checkpoint_becomes_the_first_step(tmp_path: Path) -> None:
    """The file that `migrate` or `write_checkpoint` left is the first step of the run, also beside the JSON it came from."""
    state = make("small")
    write_checkpoint(tmp_path / "other", **step_of(state, 7))
    payload = load_checkpoint(tmp_path / "other")
    (tmp_path / "checkpoint.json").write_bytes(to_json(payload))
    migrate(tmp_path / "checkpoint.json")
    with StepCheckpointer(tmp_path) as checkpointer:
        assert_same(checkpointer.load(), payload)
        change(state, 8)
        checkpointer.write(**step_of(state, 8))
        assert checkpointer.steps() == [7, 8]
        assert_same(checkpointer.load(7), payload)
    newest = load_checkpoint(tmp_path)
    assert newest is not None
    assert newest["progress"]["global_step"] == 8


def test_what_is_refused(tmp_path: Path) -> None:
    """What the replaced module could not write is refused by path and leaves the run as it was; so is a second writer."""
    state = make("small")
    with StepCheckpointer(tmp_path) as checkpointer:
        checkpointer.write(**step_of(state, 0))
        state.gate_cooldown["x"] = {1}
        with pytest.raises(EncodeError, match=r"gate_cooldown\.x"):
            checkpointer.write(**step_of(state, 1))
        assert checkpointer.steps() == [0]
        with pytest.raises(LockedError):
            StepCheckpointer(tmp_path)
        with pytest.raises(NotFoundError):
            checkpointer.load(5)


def test_nothing_there(tmp_path: Path) -> None:
    """An empty workspace loads None; after `remove_checkpoint` it is empty again."""
    with StepCheckpointer(tmp_path) as checkpointer:
        assert checkpointer.load() is None
        checkpointer.write(**step_of(make("small"), 0))
    remove_checkpoint(tmp_path)
    assert load_checkpoint(tmp_path) is None
