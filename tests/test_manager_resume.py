"""Going on with another configuration: refused, warned of, recorded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support import assert_same

from fastckpt import CheckpointManager, CheckpointWarning, ConfigMismatchError, Fingerprint

FILE = "checkpoint.fastckpt"


@dataclasses.dataclass
class Config:
    batch_size: int = 8
    epochs: int = 3
    patience: int | None = None
    lr: float = 0.1


def fingerprint(**changes: Any) -> Fingerprint:
    return Fingerprint(Config(**changes), ["batch_size", "epochs"], ["patience", "lr"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path, fingerprint=fingerprint()) as manager:
        for step in range(3):
            manager.save(step, {"step": step}, meta={"host": "a"})
    return tmp_path


def test_the_same_configuration_goes_on_in_silence(run: Path) -> None:
    """Equal configurations are no news, whatever kind of object they are in; warnings are errors in this suite."""
    with CheckpointManager(run, fingerprint=fingerprint()) as manager:
        assert manager.restore() == {"step": 2}
    mapping = {"lr": 0.1, "epochs": 3, "patience": None, "batch_size": 8, "other": 1}
    with CheckpointManager(run, fingerprint=Fingerprint(mapping, ["epochs", "batch_size"], ["lr", "patience"])) as manager:
        assert manager.restore(1) == {"step": 1}
        manager.save(3, {"step": 3})
        assert manager.meta() == {}


def test_a_structural_difference_is_refused(run: Path) -> None:
    """`restore` raises, naming the field, the value of the run and the one now; nothing is changed, and with the old configuration it goes on."""
    with CheckpointManager(run, fingerprint=fingerprint(batch_size=16, lr=0.2)) as manager:
        with pytest.raises(ConfigMismatchError, match=r"batch_size.*8.*16") as caught:
            manager.restore()
        assert [(each.field, each.saved, each.current, each.tier) for each in caught.value.differences] == [
            ("batch_size", 8, 16, "structural"), ("lr", 0.1, 0.2, "decision"),
        ]  # fmt: skip
        assert caught.value.step == 2
        assert caught.value.exit_code == 8
        assert isinstance(caught.value, ValueError)
        with pytest.raises(ConfigMismatchError):
            manager.restore(default=None)
    with CheckpointManager(run, fingerprint=fingerprint()) as manager:
        assert manager.restore() == {"step": 2}


def test_a_decision_difference_is_warned_of_and_recorded(run: Path, tmp_path: Path) -> None:
    """What only steers what comes next is a warning; the next save, and no other, says in its metadata what was gone on over."""
    with CheckpointManager(run, fingerprint=fingerprint(patience=0)) as manager:
        with pytest.warns(CheckpointWarning, match=r"patience: saved None, current 0"):
            manager.restore()
        manager.save(3, {"step": 3}, meta={"host": "b"})
        manager.save(4, {"step": 4})
        assert_same(manager.meta(3), {"host": "b", "resume_overrides": [{"field": "patience", "saved": None, "current": 0, "tier": "decision"}]})
        assert manager.meta(4) == {}
        manager.restore()  # saved under this one: nothing to say


def test_resume_warn_goes_on_over_a_structural_difference(run: Path) -> None:
    """With `resume="warn"` it is a warning too, and recorded."""
    with CheckpointManager(run, fingerprint=fingerprint(epochs=5), resume="warn", durability="async") as manager:
        with pytest.warns(CheckpointWarning, match=r"epochs: saved 3, current 5"):
            assert manager.restore() == {"step": 2}
        manager.save(3, {"step": 3})
        assert [each["field"] for each in manager.meta(3)["resume_overrides"]] == ["epochs"]


def test_none_is_not_absent(run: Path) -> None:
    """A field that the saved configuration did not have differs from one that is None, and the record of it can be read."""
    with CheckpointManager(run, fingerprint=Fingerprint({"batch_size": 8, "new": None}, ["batch_size"], ["new"])) as manager:
        with pytest.warns(CheckpointWarning, match="new: saved absent, current None"):
            manager.restore()
        manager.save(3, 0)
        assert manager.meta(3)["resume_overrides"] == [{"field": "new", "saved": "absent", "current": None, "tier": "decision"}]


def test_a_run_without_a_configuration_is_said_to_be_one(tmp_path: Path) -> None:
    """Where none was saved nothing can be compared, and that is said, not passed over."""
    with CheckpointManager(tmp_path) as manager:
        manager.save(0, 0)
    with CheckpointManager(tmp_path, fingerprint=fingerprint()) as manager, pytest.warns(CheckpointWarning, match="saved without a configuration"):
        assert manager.restore() == 0


def test_the_check_is_of_the_step_that_is_restored(run: Path) -> None:
    """Each step has the configuration that it was saved under, also after a compaction wrote it anew."""
    with CheckpointManager(run, fingerprint=fingerprint(epochs=4), resume="warn", keep_period=2, max_to_keep=1) as manager:
        for step in range(3, 40):
            manager.save(step, {"step": step})
        manager.compact()
        with pytest.warns(CheckpointWarning, match=r"step 2: .*epochs: saved 3, current 4"):
            manager.restore(2)
        assert manager.restore(4) == {"step": 4}


def test_a_failed_save_keeps_what_is_to_be_recorded(run: Path) -> None:
    """The override is in the first save that succeeds."""
    with CheckpointManager(run, fingerprint=fingerprint(lr=0.5)) as manager:
        with pytest.warns(CheckpointWarning, match="lr"):
            manager.restore()
        with pytest.raises(ValueError, match="metadata"):
            manager.save(3, 0, metrics={"loss": object()})
        manager.save(3, 0)
        assert manager.meta(3)["resume_overrides"][0]["field"] == "lr"


def test_a_field_that_the_configuration_has_not_is_told_of_in_a_new_run(tmp_path: Path) -> None:
    """A misspelt key would compare nothing for ever: at the beginning of a run it is a warning."""
    with pytest.warns(CheckpointWarning, match="no batchsize: misspelt"):
        CheckpointManager(tmp_path, fingerprint=Fingerprint(Config(), ["batchsize"])).close()


def test_the_keys_of_the_replaced_module(tmp_path: Path) -> None:
    """`dropin.fingerprint` compares the keys of `check_fingerprint` in its two tiers, and says it in the same words."""
    from fastckpt import dropin

    before, after = {"batch_size": 8, "gate_block": True}, {"batch_size": 9, "gate_block": False}
    with pytest.warns(CheckpointWarning, match="misspelt"), CheckpointManager(tmp_path, fingerprint=dropin.fingerprint(before)) as manager:
        manager.save(0, 0)
    with CheckpointManager(tmp_path, fingerprint=dropin.fingerprint(after)) as manager, pytest.raises(ConfigMismatchError) as caught:
        manager.restore()
    lines = dropin.check_fingerprint(before, type("Config", (), after)())
    assert ([str(caught.value.differences[0])], [str(caught.value.differences[1])]) == lines
