"""The README's examples run as they stand there."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastckpt import CheckpointManager, RngState

README = Path(__file__).resolve().parents[1] / "README.md"
needs_readme = pytest.mark.skipif(not README.exists(), reason="the README is not beside the tests")


def example(start: str) -> str:
    """The Python block of the README that has this line."""
    return next(block for block in re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL) if start in block)


@needs_readme
def test_the_first_example_and_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training loop runs, and goes on where it was; the history of its run is looked into as shown."""
    monkeypatch.chdir(tmp_path)

    def train(state: Any) -> None:
        state.answers[f"q{len(state.answers)}"] = True
        state.seen.add("x")

    names: dict[str, Any] = {"__name__": "example", "train": train, "total": 18}
    monkeypatch.setitem(__import__("sys").modules, "example", SimpleNamespace(**names))
    exec(compile(example("class TrainState:"), "README.md", "exec", dont_inherit=True), names)
    exec(compile(example("class TrainState:"), "README.md", "exec", dont_inherit=True), names | {"total": 20})
    with CheckpointManager("runs/a", read_only=True) as manager:
        assert manager.all_steps() == list(range(20))
        assert len(manager.restore(17)["answers"]) == 18
    tables: list[Any] = []
    shown = example("from fastckpt import History").replace("state.eval_prev_acc", "answers.q3")
    exec(shown, {"pandas": SimpleNamespace(DataFrame=tables.append)})
    assert [row["step"] for row in tables[0]] == list(range(20))


@dataclasses.dataclass
class TrainState:
    weights: list[float] = dataclasses.field(default_factory=lambda: [0.0, 0.0])
    rng: RngState | None = None


def train(state: TrainState, step: int) -> None:
    state.weights = [weight + random.gauss(0, 0.1) for weight in state.weights]


@needs_readme
def test_the_example_of_the_kit() -> None:
    """The ten lines check a training that keeps its random numbers; without them in the state, they find it, as the README says."""
    source = example("check_resume(")
    assert sum(bool(line) for line in source.splitlines()) <= 10
    names: dict[str, Any] = {"train": train, "TrainState": TrainState}
    exec(source, names)
    names["test_a_killed_training_goes_on_exactly"]()
    forgetful = source.replace("before_save=keep_random, restored=lambda state: restore_rng(state.rng)", "")
    assert forgetful != source
    exec(forgetful, names)
    with pytest.raises(AssertionError, match=r"resumed after step 0, step 1 is not that of an uninterrupted run at `\$\.weights\[0\]`"):
        names["test_a_killed_training_goes_on_exactly"]()
