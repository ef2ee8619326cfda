"""The kit that tests a training: it passes what resumes exactly, and finds each of the ways in which a program forgets something."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from support import everything_in, needs_posix

from fastckpt import CheckpointManager, demo
from fastckpt.errors import ConflictError
from fastckpt.resume import RngState, capture_rng, restore_rng
from fastckpt.testing import ResumeError, check_resume

pytestmark = needs_posix  # the tests' own functions are inside of others, which only a forked process can run


@dataclasses.dataclass
class State:
    """A state with room for what the programs below remember."""

    values: list[float] = dataclasses.field(default_factory=list)
    count: int = 0
    rng: RngState | None = None


def new() -> State:
    return State()


def keep(state: State) -> None:
    state.rng = capture_rng()


def put_back(state: State) -> None:
    assert state.rng is not None
    restore_rng(state.rng)


def found(train: Callable[[Any, int], Any], initial: Callable[[], Any] = new, steps: int = 6, **options: Any) -> ResumeError:
    """What the kit says of a program that does not resume exactly."""
    with pytest.raises(ResumeError) as caught:
        check_resume(train, initial, steps, **{"type": State, **options})
    return caught.value


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test leaves a process behind."""
    yield
    assert multiprocessing.active_children() == []


# What resumes exactly ----------------------------------------------------------------------------------------------------


def test_a_program_that_keeps_everything_passes() -> None:
    """Every step of twenty, with a generator in the state."""

    @dataclasses.dataclass
    class TrainState:
        total: float = 0.0
        rng: RngState = dataclasses.field(default_factory=lambda: capture_rng(random.Random(7)))

    def train(state: TrainState, step: int) -> None:
        rng = random.Random()
        restore_rng(state.rng, rng)
        state.total += step * rng.gauss(0, 1)
        state.rng = capture_rng(rng)

    check_resume(train, TrainState, steps=20, type=TrainState)


def test_global_generators_that_are_kept_pass() -> None:
    """Those of `random` and NumPy, kept before every save and put back after every restore; they need no seed."""

    def train(state: State, step: int) -> None:
        state.values.append(random.random() + float(np.random.standard_normal()))

    check_resume(train, new, 6, type=State, before_save=keep, restored=put_back)


def test_a_generator_of_numpy_passes() -> None:
    """In the state, as plain data."""

    class Model(msgspec.Struct, frozen=True):
        rng: RngState
        weights: tuple[float, ...] = (0.0, 0.0)

    def train(state: Model, step: int) -> Model:
        rng = np.random.default_rng()
        restore_rng(state.rng, rng)
        weights = tuple((np.array(state.weights) + rng.standard_normal(2)).tolist())
        return Model(capture_rng(rng), weights)

    check_resume(train, lambda: Model(capture_rng(np.random.default_rng(5))), 6, type=Model)


def test_a_state_may_be_replaced_by_each_function() -> None:
    """`train`, `before_save` and `restored` change the state or return another one; plain data needs no type."""

    def restored(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "live": state["live"] + 1}

    check_resume(
        lambda state, step: {**state, "n": state["n"] + step},
        lambda: {"n": 0, "live": 0},
        5,
        before_save=lambda state: {"n": state["n"], "live": 0},
        restored=lambda state: {"n": state["n"], "live": 0},
    )
    error = found(lambda state, step: {**state, "n": state["n"] + step}, lambda: {"n": 0, "live": 0}, type=dict[str, Any], restored=restored)
    assert error.where == "$.live"


def test_generators_that_nobody_draws_from_are_no_difference() -> None:
    """They stand elsewhere in every process, and nothing depends on it."""

    def train(state: State, step: int) -> None:
        state.count += step

    check_resume(train, new, 5, type=State)


def test_seeding_every_step_is_another_way() -> None:
    """A program that seeds from the step number draws the same after a resume."""

    def train(state: State, step: int) -> None:
        random.seed(step)
        np.random.seed(step)
        state.values.append(random.random() + float(np.random.rand()))

    check_resume(train, new, 5, type=State)


def test_the_demo_resumes_exactly() -> None:
    """The program that this package shows itself with, tested with its own kit."""
    words = demo._words()
    check_resume(lambda state, step: demo._advance(state, step, words), demo._begin, 6, type=demo.State, kill_at=[0, 3, 5])


# What is found -----------------------------------------------------------------------------------------------------------


def test_it_finds_a_forgotten_field() -> None:
    """What a program remembers outside of the state is as it was at the start after a resume."""
    memory = {"best": 0}

    def train(state: State, step: int) -> None:
        memory["best"] = max(memory["best"], (step * 7) % 5)
        state.values.append(memory["best"])

    error = found(train)
    assert (error.killed_after, error.step, error.where) == (2, 3, "$.values[3]")
    assert "resumed after step 2, step 3 " in str(error)
    assert "expected 4.0, got 1.0" in str(error)


def test_it_finds_what_shows_only_steps_later() -> None:
    """The resumed run is compared to its end: here what was forgotten matters at step 5 alone."""
    memory: list[int] = []

    def train(state: State, step: int) -> None:
        memory.append(step)
        state.count = len(memory) if step == 5 else 0

    error = found(train, steps=8)
    assert (error.killed_after, error.step, error.where) == (0, 5, "$.count")


def test_it_finds_a_default_that_all_share() -> None:
    """A mutable default of the class, which is no field of the object: it is filled, but never saved."""

    class Shared(msgspec.Struct):
        sizes: list[int]
        seen: ClassVar[set[int]] = set()

    def train(state: Shared, step: int) -> None:
        state.seen.add(step)
        state.sizes.append(len(state.seen))

    error = found(train, lambda: Shared([]), type=Shared)
    assert (error.killed_after, error.step, error.where) == (0, 1, "$.sizes[1]")


def test_it_finds_a_step_number_of_its_own() -> None:
    """A program that counts its steps itself begins with the wrong one after a resume."""
    counter = iter(range(100))

    def train(state: State, step: int) -> None:
        state.values.append(next(counter) * 10)

    error = found(train)
    assert (error.killed_after, error.step, error.where) == (0, 1, "$.values[1]")
    assert "expected 10.0, got 0.0" in str(error)


def test_it_finds_a_part_that_two_places_shared() -> None:
    """After a resume they are two copies, and a change of one is no longer one of the other."""

    @dataclasses.dataclass
    class Linked:
        first: list[int]
        second: list[int]

    def initial() -> Linked:
        both: list[int] = []
        return Linked(both, both)

    error = found(lambda state, step: state.first.append(step), initial, type=Linked)
    assert (error.killed_after, error.step, error.where) == (0, 1, "$.second")
    assert "expected 2 items, got 1 items" in str(error)


def test_it_finds_a_type_that_is_not_what_comes_back() -> None:
    """As a state that is restored as plain data where the program goes on with a set."""

    def train(state: Any, step: int) -> None:
        state["seen"].append(step)
        state["seen"] = list(dict.fromkeys(state["seen"])) if isinstance(state["seen"], list) else {*state["seen"]}

    check_resume(train, lambda: {"seen": []}, 4)
    error = found(lambda state, step: state["seen"].add(step), lambda: {"seen": set()}, type=Any)
    assert "$.seen" in str(error)
    assert "failed at step 0" in str(error)


@pytest.mark.parametrize("seeded", [True, False], ids=["seeded at the start", "never seeded"])
@pytest.mark.parametrize(("name", "draw"), [("random", random.random), ("numpy.random", np.random.random_sample)])
def test_it_finds_a_global_generator_that_is_not_kept(name: str, draw: Callable[[], float], seeded: bool) -> None:
    """Whether the program seeds it when it starts, as one does, or not at all: after a resume it draws otherwise."""

    def initial() -> State:
        if seeded:
            random.seed(1)
            np.random.seed(1)
        return State()

    def train(state: State, step: int) -> None:
        state.values.append(float(draw()))

    error = found(train, initial)
    assert (error.killed_after, error.step, error.where) == (0, 1, "$.values[1]")
    assert f"({name})" in str(error)
    assert "capture_rng" in str(error)


def test_it_finds_a_generator_of_the_program_that_is_not_kept() -> None:
    """One that is made when the program starts, and not part of the state."""
    rng = np.random.default_rng(5)

    def train(state: State, step: int) -> None:
        state.values.append(float(rng.random()))

    assert found(train).where == "$.values[1]"


def test_it_finds_draws_that_the_state_does_not_show() -> None:
    """A global generator that was drawn from stands elsewhere after a resume, though the states are the same; unless that does not matter."""

    def train(state: State, step: int) -> None:
        state.count += step
        if step == 3:
            random.random()

    error = found(train)
    assert (error.killed_after, error.step, error.where) == (0, 3, "")
    assert "its state is, but drew from a global generator" in str(error)
    check_resume(train, new, 5, type=State, compare_rng=False)


def test_it_finds_a_program_that_differs_without_a_kill() -> None:
    """What depends on the clock, or a generator seeded by the system, is said not to be the resume's fault."""
    error = found(lambda state, step: state.values.append(time.perf_counter() + step))
    assert (error.killed_after, error.step, error.where) == (0, 0, "$.values[0]")
    assert "no kill before it" in str(error)


def test_what_training_raises_is_shown() -> None:
    """With its traceback, the step and the run, whichever of the runs it was."""

    def train(state: State, step: int) -> None:
        if step == 2:
            raise RuntimeError("a word to look for")

    error = found(train)
    assert error.step == 2
    assert error.killed_after is None
    for part in ("the uninterrupted run failed at step 2", "a word to look for", "Traceback", "in train"):
        assert part in str(error)

    def restored(state: State) -> None:
        raise RuntimeError("not ready")

    error = found(lambda state, step: None, restored=restored, kill_at=[3])
    assert (error.killed_after, error.step) == (3, 4)
    assert "the run resumed after step 3 failed at step 4" in str(error)


def test_what_cannot_be_saved_is_shown() -> None:
    """A value that would come back different is found at the step that has it, by its path."""

    def train(state: State, step: int) -> None:
        state.values = [1.0, 2.0] if step < 2 else (1.0, 2.0)  # type: ignore[assignment]

    error = found(train)
    assert error.step == 2
    assert "EncodeError" in str(error)
    assert "`$.values`" in str(error)


def test_a_process_that_ends_is_shown() -> None:
    """One that leaves without a word does not hang the check."""

    def train(state: State, step: int) -> None:
        if step == 1:
            os._exit(17)

    error = found(train)
    assert "the uninterrupted run failed at step 1: its process ended with 17" in str(error)


# How it goes about it ----------------------------------------------------------------------------------------------------


def test_processes_are_killed_in_the_middle(tmp_path: Path) -> None:
    """For each step a process of its own that trains one step more than it saves, does not get to its end, and another that resumes."""
    record = tmp_path / "record"

    def write(*words: object) -> None:
        with record.open("a") as file:
            file.write(json.dumps(words) + "\n")

    def train(state: State, step: int) -> None:
        signal.signal(signal.SIGTERM, lambda *_: write("asked to end", os.getpid()))
        write(os.getpid(), step)

    check_resume(train, new, 4, type=State, directory=tmp_path / "runs")
    trained: dict[int, list[int]] = {}
    for line in record.read_text().splitlines():
        pid, step = json.loads(line)
        trained.setdefault(pid, []).append(step)
    assert os.getpid() not in trained
    assert [*trained.values()] == [[0, 1, 2, 3], [0, 1], [1, 2, 3], [0, 1, 2], [2, 3], [0, 1, 2, 3], [3], [0, 1, 2, 3]]
    for pid in trained:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


ENDED = """
import os, signal, sys
sys.path[:0] = [sys.argv[1]]
from fastckpt.testing import check_resume

def train(state, step):
    if step == 1:
        os.kill(os.getppid(), signal.SIGKILL)

check_resume(train, dict, 3, directory=sys.argv[2])
"""


def test_a_check_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    """The process that trains ends with the one that would have killed it, and lets go of what it holds."""
    package = str(Path(sys.modules["fastckpt"].__file__ or "").parents[1])
    # The output ends when the last process that has it does.
    done = subprocess.run([sys.executable, "-c", ENDED, package, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    assert done.returncode == -signal.SIGKILL


def test_the_runs_stay_in_a_directory_that_is_given(tmp_path: Path) -> None:
    """To be looked at; a second check there is refused, rather than to go on with the first one's runs."""

    def check() -> None:
        check_resume(lambda state, step: None, new, 3, type=State, kill_at=[1], directory=tmp_path)

    check()
    assert {name for name in everything_in(tmp_path) if name.endswith(".fastckpt")} == {
        "killed-1/checkpoint.fastckpt",
        "uninterrupted/checkpoint.fastckpt",
    }
    with CheckpointManager(tmp_path / "killed-1", State, read_only=True) as manager:
        assert manager.all_steps() == [0, 1, 2]
    with pytest.raises(ConflictError, match="uninterrupted"):
        check()


def test_without_a_directory_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after a check that passes nor after one that does not."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    check_resume(lambda state, step: None, new, 2, type=State)
    found(lambda state, step: state.values.append(time.perf_counter()))
    assert everything_in(tmp_path) == []


def test_only_the_given_steps_are_killed(tmp_path: Path) -> None:
    """`kill_at` names them, for a training that takes its time."""
    check_resume(lambda state, step: None, new, 9, type=State, kill_at=(step for step in (2, 8)), directory=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed-2", "killed-8", "uninterrupted"]


@pytest.mark.parametrize(("steps", "kill_at"), [(0, None), (-1, None), (3, [3]), (3, [-1]), (3, [0, 7])])
def test_a_step_that_is_none_is_refused(steps: int, kill_at: Any) -> None:
    """A kill that never happens would be a check that passes for nothing."""
    with pytest.raises(ValueError, match="kill_at"):
        check_resume(lambda state, step: None, new, steps, type=State, kill_at=kill_at)


def spawned_train(state: State, step: int) -> None:
    state.values.append(random.random())


def spawned_new() -> State:
    return State([random.random()])


def spawned_order(state: set[str], step: int) -> None:
    state.discard(next(iter(state)))


def spawned_words() -> set[str]:
    return {f"word {number}" for number in range(50)}


def test_processes_can_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """With "spawn", as where there is no fork, the same is found and passed; and what depends on the order of a set is found too."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    check_resume(spawned_train, spawned_new, 3, type=State, before_save=keep, restored=put_back, kill_at=[1], start_method="spawn")
    error = found(spawned_train, steps=3, kill_at=[1], start_method="spawn")
    assert (error.killed_after, error.step, error.where) == (1, 2, "$.values[2]")
    assert found(spawned_order, spawned_words, type=set[str], kill_at=[2], start_method="spawn").where == "$"


def test_the_error_is_one_of_a_test() -> None:
    """An AssertionError, as every test runner expects, that can be pickled with its fields."""
    error = ResumeError("text", killed_after=1, step=2, where="$.a")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, AssertionError)
    assert (str(again), again.killed_after, again.step, again.where) == ("text", 1, 2, "$.a")
