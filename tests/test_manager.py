"""`CheckpointManager`: the API of a run, one save at a time; what every failure leaves of it."""

from __future__ import annotations

import dataclasses
import errno
import gc
import json
import linecache
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import assert_same, everything_in, in_child, needs_posix, open_descriptors
from test_dropin import arguments

import fastckpt
from fastckpt import (
    CheckpointError,
    CheckpointWarning,
    CorruptError,
    DurabilityError,
    EncodeError,
    LockedError,
    NotACheckpointError,
    NotFoundError,
    SchemaError,
    StepAlreadyExistsError,
    StorageError,
)
from fastckpt import check as check_module
from fastckpt import dropin as dropin_module
from fastckpt import writer as writer_module
from fastckpt.codec import Codec
from fastckpt.journal import Journal
from fastckpt.manager import CheckpointManager, SaveStats
from fastckpt.migrate import migrate
from fastckpt.reader import Reader
from fastckpt.storage import Storage


@dataclasses.dataclass
class State:
    step: int = 0
    seen: set[str] = dataclasses.field(default_factory=set)
    log: list[str] = dataclasses.field(default_factory=list)
    marks: dict[str, int] = dataclasses.field(default_factory=dict)


@pytest.fixture(params=["sync", "async"])
def durability(request: pytest.FixtureRequest) -> Any:
    return request.param


def state(step: int) -> State:
    return State(step, {f"q{i}" for i in range(step % 7)}, [f"line {i}" for i in range(step)], {"a": step})


def fill(folder: Path, steps: int, **options: Any) -> None:
    with CheckpointManager(folder, State, **options) as manager:
        for step in range(steps):
            manager.save(step, state(step))


def file_of(folder: Path) -> Path:
    return folder / "checkpoint.fastckpt"


def last_record(folder: Path) -> tuple[int, int]:
    """Where the newest record begins, and how long it is."""
    journal = Journal(file_of(folder), read_only=True)
    entry = journal.newest
    journal.close()
    assert entry is not None
    return entry.offset, entry.length


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


class Failing(Storage):
    """Fails the calls named in `fail`, with that errno, as often as it says."""

    def __init__(self) -> None:
        self.fail: dict[str, list[int]] = {}

    def _maybe(self, name: str) -> None:
        if self.fail.get(name):
            code = self.fail[name].pop()
            raise OSError(code, os.strerror(code))

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        self._maybe("write")
        return super().write(fd, data, offset)

    def sync_data(self, fd: int) -> None:
        self._maybe("sync_data")
        super().sync_data(fd)

    def sync(self, fd: int) -> None:
        self._maybe("sync")
        super().sync(fd)

    def replace(self, source: str, target: str) -> None:
        self._maybe("replace")
        super().replace(source, target)
        self.fail.setdefault("sync", []).extend(self.fail.pop("sync after replace", []))


# --- the whole of it -------------------------------------------------------------------------------------------------


def test_a_run_is_saved_and_every_step_of_it_restored(tmp_path: Path, durability: Any) -> None:
    """Every step of a run comes back as its class and equal, from the same manager and from a new one."""
    with CheckpointManager(tmp_path, State, durability=durability) as manager:
        default = State()
        assert manager.restore(default=default) is default
        for step in range(manager.next_step(), 30):
            assert manager.save(step, state(step), metrics={"loss": step / 2}, meta={"note": "x"}) is True
        assert (manager.latest_step(), manager.next_step()) == (29, 30)
        assert_same(manager.restore(), state(29))
        assert_same(manager.restore(7), state(7))
    with CheckpointManager(tmp_path, State) as manager:
        assert manager.all_steps() == list(range(30))
        assert manager.metrics(4) == {"loss": 2.0}
        assert manager.metrics() == {"loss": 14.5}
        assert manager.meta(4) == {"note": "x"}
        for step in range(30):
            assert_same(manager.restore(step), state(step))
    assert everything_in(tmp_path) == ["checkpoint.fastckpt", "checkpoint.fastckpt.lock"]


def test_an_empty_run_is_not_found(tmp_path: Path, durability: Any) -> None:
    """Without a default an empty run raises NotFoundError, also for its metrics; with None as the default it is None."""
    with CheckpointManager(tmp_path, State, durability=durability) as manager:
        with pytest.raises(NotFoundError, match="no step yet"):
            manager.restore()
        with pytest.raises(NotFoundError):
            manager.metrics()
        with pytest.raises(NotFoundError):
            manager.restore(3, default=State())
        assert manager.restore(default=None) is None
        assert (manager.latest_step(), manager.next_step(), manager.all_steps()) == (None, 0, [])


def test_first_step_is_where_an_empty_run_begins(tmp_path: Path) -> None:
    """`next_step` of an empty run is `first_step`; afterwards it is the newest + 1."""
    with CheckpointManager(tmp_path, State, first_step=10) as manager:
        assert manager.next_step() == 10
        manager.save(20, State())
        assert manager.next_step() == 21


def test_a_step_that_is_not_there_names_its_neighbours(tmp_path: Path) -> None:
    """NotFoundError names the nearest steps on both sides."""
    with CheckpointManager(tmp_path, State) as manager:
        for step in (2, 5, 9):
            manager.save(step, State(step))
        for step, nearest in ((3, "2 and 5"), (0, "2"), (11, "9")):
            with pytest.raises(NotFoundError, match=f"no step {step}.*the nearest: {nearest}$"):
                manager.restore(step)


def test_a_step_not_above_the_newest_is_refused(tmp_path: Path, durability: Any) -> None:
    """StepAlreadyExistsError names both steps, also while the newest is still being saved; nothing is written."""
    with CheckpointManager(tmp_path, State, durability=durability) as manager:
        manager.save(5, state(5))
        for step in (5, 4):
            with pytest.raises(StepAlreadyExistsError) as caught:
                manager.save(step, state(1))
            assert (caught.value.step, caught.value.newest) == (step, 5)
        assert_same(manager.restore(), state(5))
        assert manager.stats.saves == 1


@pytest.mark.parametrize("step", [True, -1, 1.0, "1", None, 2**63])
def test_a_step_is_a_natural_number(tmp_path: Path, step: Any) -> None:
    """A bool, a float, text or a negative number is no step."""
    with CheckpointManager(tmp_path, State) as manager, pytest.raises(EncodeError, match="a step is an int"):
        manager.save(step, State())


def test_force_retires_every_step_from_its_own_on(tmp_path: Path, durability: Any) -> None:
    """A forced save of an older step is the newest one afterwards, also after reopening."""
    with CheckpointManager(tmp_path, State, durability=durability) as manager:
        for step in range(10):
            manager.save(step, state(step))
        assert manager.save(4, State(400), force=True)
        assert manager.all_steps() == [0, 1, 2, 3, 4]
        assert manager.next_step() == 5
        manager.save(5, State(500))
    with CheckpointManager(tmp_path, State) as manager:
        assert manager.all_steps() == [0, 1, 2, 3, 4, 5]
        assert_same(manager.restore(4), State(400))
        assert_same(manager.restore(), State(500))


def test_rewind_makes_an_older_step_the_newest(tmp_path: Path, durability: Any) -> None:
    """What lies after it is off the timeline, durably; a step that is not there cannot be gone back to."""
    with CheckpointManager(tmp_path, State, durability=durability) as manager:
        for step in range(10):
            manager.save(step, state(step))
        manager.rewind(6)
        assert (manager.latest_step(), manager.next_step()) == (6, 7)
        with pytest.raises(NotFoundError):
            manager.rewind(8)
        assert_same(manager.restore(), state(6))
    with CheckpointManager(tmp_path, State) as manager:
        assert manager.all_steps() == [0, 1, 2, 3, 4, 5, 6]
        manager.save(7, State(70))
        assert_same(manager.restore(), State(70))


def test_rewind_to_the_newest_writes_nothing(tmp_path: Path) -> None:
    """Going back to where one is is nothing."""
    with CheckpointManager(tmp_path, State) as manager:
        manager.save(0, State())
        before = file_of(tmp_path).read_bytes()
        manager.rewind(0)
        assert file_of(tmp_path).read_bytes() == before


def test_delete_retires_one_step(tmp_path: Path, durability: Any) -> None:
    """A deleted step is gone and its neighbours are not; the newest may be deleted, and saved again."""
    with CheckpointManager(tmp_path, State, durability=durability) as manager:
        for step in range(5):
            manager.save(step, state(step))
        manager.delete(2)
        manager.delete(4)
        with pytest.raises(NotFoundError):
            manager.delete(2)
        assert manager.all_steps() == [0, 1, 3]
        assert manager.next_step() == 4
        manager.save(4, State(40))
    with CheckpointManager(tmp_path, State) as manager:
        assert manager.all_steps() == [0, 1, 3, 4]
        for step in (0, 1, 3, 4):
            manager.delete(step)
        assert manager.restore(default="none") == "none"


def test_restore_does_not_move_the_head(tmp_path: Path) -> None:
    """After restoring an old step, the newest is still the newest."""
    with CheckpointManager(tmp_path, State) as manager:
        for step in range(4):
            manager.save(step, state(step))
        manager.restore(1)
        assert manager.next_step() == 4


def test_what_cannot_come_back_is_refused_at_construction(tmp_path: Path) -> None:
    """A type that omits defaults raises SchemaError before anything is made on disk."""

    class Omitting(msgspec.Struct, omit_defaults=True):
        a: int = 0

    with pytest.raises(SchemaError, match="omits defaults"):
        CheckpointManager(tmp_path / "run", Omitting)
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("option", ["durability", "on_busy", "on_error", "round_trip"])
def test_unknown_words_are_refused(tmp_path: Path, option: str) -> None:
    """A misspelt option is an error at once, not a default."""
    with pytest.raises(ValueError, match="expected one of"):
        CheckpointManager(tmp_path, State, **{option: "asynch"})


def test_a_file_may_be_named(tmp_path: Path) -> None:
    """A path that ends in .fastckpt is the file itself, and `name` is another one in the directory."""
    with CheckpointManager(tmp_path / "run.fastckpt") as manager:
        manager.save(0, {"a": 1})
    with CheckpointManager(tmp_path, name="other.fastckpt") as manager:
        manager.save(0, {"a": 2})
    assert {"run.fastckpt", "other.fastckpt"} <= set(everything_in(tmp_path))


def test_the_path_is_fixed_at_construction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS I5: another working directory changes nothing."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with CheckpointManager("run") as manager:
        monkeypatch.chdir(tmp_path / "elsewhere")
        manager.save(0, {"a": 1})
    assert file_of(tmp_path / "run").exists()


def test_nothing_works_after_close(tmp_path: Path, durability: Any) -> None:
    """FAULTS H9: every call after `close` says so; closing again is nothing."""
    manager = CheckpointManager(tmp_path, State, durability=durability)
    manager.save(0, State())
    manager.close()
    manager.close()
    calls = [lambda: manager.save(1, State()), manager.restore, manager.latest_step, manager.all_steps, manager.wait_until_finished,
             manager.check_for_errors, lambda: manager.rewind(0), lambda: manager.delete(0), manager.metrics]  # fmt: skip
    for call in calls:
        with pytest.raises(StorageError, match="the manager is closed"):
            call()
    with CheckpointManager(tmp_path, State) as another:
        assert another.latest_step() == 0


def test_metadata_that_would_not_come_back_is_refused_at_once(tmp_path: Path, durability: Any) -> None:
    """Metrics and meta are plain data; what is not raises in `save`, and the run goes on."""
    with CheckpointManager(tmp_path, State, durability=durability) as manager:
        with pytest.raises(EncodeError, match="metrics"):
            manager.save(0, State(), metrics={"a": (1, 2)})
        manager.save(0, State(), metrics={"a": [1, 2]})
        assert manager.metrics(0) == {"a": [1, 2]}


def test_a_manager_knows_its_type(tmp_path: Path) -> None:
    """Without a type states are plain data; with another type than was saved, the error names the path in the file."""
    fill(tmp_path, 2)
    with CheckpointManager(tmp_path) as manager:
        assert_same(manager.restore(), {"step": 1, "seen": ["q0"], "log": ["line 0"], "marks": {"a": 1}})

    class Other(msgspec.Struct):
        step: str

    with CheckpointManager(tmp_path, Other) as manager, pytest.raises(SchemaError, match=r"at `\$.step` in .*checkpoint\.fastckpt"):
        manager.restore()


def test_two_managers_of_one_run(tmp_path: Path) -> None:
    """FAULTS D2: the second writer is told who has the run; once that one is closed, or dropped, it gets it."""
    manager = CheckpointManager(tmp_path, State)
    with pytest.raises(LockedError, match=str(os.getpid())):
        CheckpointManager(tmp_path, State)
    del manager
    gc.collect()
    CheckpointManager(tmp_path, State).close()


def test_descriptors_are_given_back(tmp_path: Path, durability: Any) -> None:
    """After `close`, and after a construction that failed, no descriptor is left open."""
    before = open_descriptors()
    fill(tmp_path / "a", 3, durability=durability)
    (tmp_path / "b").mkdir()
    file_of(tmp_path / "b").write_text('{"a": 1}')
    with pytest.raises(NotACheckpointError):
        CheckpointManager(tmp_path / "b")
    assert open_descriptors() == before


# --- figures ---------------------------------------------------------------------------------------------------------


def test_stats_say_what_saving_cost(tmp_path: Path, durability: Any) -> None:
    """Each save reports to `on_save`, and the manager sums them up; an append of one step is one flush."""
    reported: list[SaveStats] = []
    with CheckpointManager(tmp_path, State, durability=durability, on_save=reported.append) as manager:
        for step in range(20):
            manager.save(step, state(step))
            manager.wait_until_finished()
        assert [stats.step for stats in reported] == list(range(20))
        assert manager.last_stats == reported[-1]
        assert {stats.flushes for stats in reported[1:]} == {1}
        for name in ("message_bytes", "new_bytes", "written_bytes", "flushes", "bases", "checks", "saves"):
            assert getattr(manager.stats, name) == sum(getattr(stats, name) for stats in reported)
        assert reported[0].bases == 1
        assert all(0 < stats.blocking_seconds <= stats.total_seconds for stats in reported)
        size = file_of(tmp_path).stat().st_size
        assert 0 < size - manager.stats.written_bytes < 200


def test_on_save_that_fails_is_a_warning(tmp_path: Path) -> None:
    """A logger's exception is told, and the step is saved all the same."""

    def logger(_: SaveStats) -> None:
        raise RuntimeError("no logger")

    with CheckpointManager(tmp_path, State, on_save=logger) as manager:
        with pytest.warns(CheckpointWarning, match="on_save failed after step 0.*no logger"):
            manager.save(0, State())
        assert manager.latest_step() == 0


# --- checks ----------------------------------------------------------------------------------------------------------


def test_h11_a_value_that_no_load_can_read_is_found(tmp_path: Path, durability: Any) -> None:
    """FAULTS H11: a True in dict[str, int] that appears at step 50 is found by the next checked save and named, with the last verified step."""
    live = state(0)

    def run() -> None:
        with CheckpointManager(tmp_path, State, durability=durability) as manager:
            for step in range(200):
                live.step = step
                if step == 50:
                    live.marks["broken"] = True
                manager.save(step, live)
                manager.wait_until_finished()

    with pytest.raises(EncodeError) as caught:
        run()
    assert caught.value.where in ("$.marks.broken", "$.marks")
    last = caught.value.last_verified
    assert 31 <= last < 50
    assert f"the last step that was checked is {last}" in str(caught.value)
    with CheckpointManager(tmp_path, State) as manager:
        assert_same(manager.restore(last), dataclasses.replace(state(0), step=last))


@pytest.mark.parametrize("bad", [("would come back as a list", (1, 2)), ("would come back as a list", {1})])
def test_a_lossy_value_is_refused_by_the_first_save(tmp_path: Path, durability: Any, bad: tuple[str, Any]) -> None:
    """A tuple or a set in plain data is refused by name, and nothing is written."""
    reason, value = bad
    with CheckpointManager(tmp_path, durability=durability) as manager:
        with pytest.raises(EncodeError, match=rf"{reason} at `\$.x`.*no step was checked before"):
            manager.save(0, {"x": value})
        assert manager.restore(default=None) is None
        manager.save(0, {"x": 1})
        assert_same(manager.restore(), {"x": 1})


def test_round_trip_always_and_never(tmp_path: Path) -> None:
    """ "always" checks each save, "never" none, not even at the end."""
    for mode, checks in (("always", 40), ("never", 0)):
        with CheckpointManager(tmp_path / mode, State, round_trip=mode) as manager:
            for step in range(40):
                manager.save(step, state(step))
            assert manager.stats.checks == checks
    with CheckpointManager(tmp_path / "never", dict[str, int], round_trip="never") as manager:
        manager.rewind(0)
        manager.save(1, {"a": True})
    with CheckpointManager(tmp_path / "never", dict[str, int]) as manager, pytest.raises(SchemaError):
        manager.restore()


def test_checks_cost_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    """With "auto", besides saves 1, 2, 4, 8, … checking stays under a tenth of the time spent saving."""
    now = 0.0
    codec = Codec()
    monkeypatch.setattr(check_module.time, "perf_counter", lambda: now)
    decode = codec.decode

    def slowly(*args: Any, **options: Any) -> Any:
        nonlocal now
        now += 0.5
        return decode(*args, **options)

    monkeypatch.setattr(codec, "decode", slowly)
    checker = check_module.Checker(codec, "auto")
    checked = []
    for save in range(1, 1001):
        if checker.due("caller"):
            assert checker.compare({"a": save}, codec.encode({"a": save}), "caller")
            checked.append(save)
        checker.saved(1.0, "caller")
    assert {1, 2, 4, 8, 16, 32, 64, 128, 256, 512} <= set(checked)
    assert 190 <= len(checked) <= 210


def test_a_base_that_would_come_back_different_is_taken_back(tmp_path: Path) -> None:
    """Only the append tells that it made a base: one that fails its check is off the timeline again."""
    with CheckpointManager(tmp_path) as manager:
        for step in range(3):
            manager.save(step, {"x": "a" * 5000, "step": step})
        flawed = {"x": {f"{i}" for i in range(3000)}, "step": 3}  # larger than all before: a base
        manager._checker.due = lambda where: False  # or the check before the append would find it
        with pytest.raises(EncodeError, match="a set would come back as a list"):
            manager.save(3, flawed)
        assert manager.latest_step() == 2
        assert manager.restore()["step"] == 2
        manager.save(3, {"x": "b", "step": 3})
    with CheckpointManager(tmp_path) as manager:
        assert manager.all_steps() == [0, 1, 2, 3]
        assert manager.restore()["x"] == "b"


def test_the_last_save_is_read_back_at_close(tmp_path: Path) -> None:
    """A last save that no load can read is found at `close`, which closes all the same."""
    manager = CheckpointManager(tmp_path, State)
    live = state(5000)
    for step in range(6):  # of which 1, 2, 4 and perhaps others are checked
        live.step = step
        manager.save(step, live)
    manager._checker.mode = "never"  # so that the next is not, by chance
    live.marks["broken"] = True
    manager.save(6, live)
    manager._checker.mode = "auto"
    assert manager.last_stats.checks == 0
    with pytest.raises(EncodeError, match="no load could read this back"):
        manager.close()
    CheckpointManager(tmp_path, State).close()


def test_d7_a_state_that_another_thread_changes(tmp_path: Path, durability: Any) -> None:
    """FAULTS D7: what is saved is a consistent snapshot, and a check beside a changing state does not call it lossy."""
    live: dict[str, Any] = {"a": 0, "b": [0] * 500, "c": 0}
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            value = live["a"] + 1
            live.update(a=value, c=value)  # one C call: both or neither

    thread = threading.Thread(target=count)
    thread.start()
    try:
        with CheckpointManager(tmp_path, durability=durability) as manager:
            for step in range(60):
                manager.save(step, live)
            for step in range(60):
                saved = manager.restore(step)
                assert saved["a"] == saved["c"]
    finally:
        stop.set()
        thread.join()


def test_d8_odd_values_in_a_state_that_another_thread_changes(tmp_path: Path, durability: Any) -> None:
    """FAULTS D8: with values that need the slow path it is a whole state or a clean error, never a crash."""
    live: dict[str, Any] = {"rng": 2**100, "grow": {}, "list": list(range(200))}
    stop = threading.Event()

    def change() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            live["grow"][f"k{i % 300}"] = 2**100 + i
            if i % 3 == 0:
                live["grow"].pop(f"k{(i * 7) % 300}", None)
            live["list"].pop() if i % 2 else live["list"].append(i)

    thread = threading.Thread(target=change)
    thread.start()
    saved = 0
    try:
        with CheckpointManager(tmp_path, durability=durability) as manager:
            for step in range(60):
                with warnings.catch_warnings():
                    try:
                        manager.save(step, live)
                        saved += 1
                    except EncodeError as error:
                        assert "thread" in str(error) or "two keys" in str(error)
            assert saved
            for step in manager.all_steps():
                assert manager.restore(step)["rng"] == 2**100
    finally:
        stop.set()
        thread.join()


def test_always_says_that_the_state_changed(tmp_path: Path) -> None:
    """With "always", a state that changed while it was compared is an error that says so, and names no type."""

    live = {"a": 1, "b": [1, 2, 3]}
    with CheckpointManager(tmp_path, round_trip="always") as manager:
        compare = manager._codec.compare

        def meanwhile(obj: Any, encoded: Any) -> Any:
            live["a"] += 1
            return compare(obj, encoded)

        manager._codec.compare = meanwhile
        with pytest.raises(EncodeError, match="another thread changed the state while it was checked"):
            manager.save(0, live)


# --- failures --------------------------------------------------------------------------------------------------------


def test_b12_a_full_disk_and_room_again(tmp_path: Path) -> None:
    """FAULTS B12: the error names it, the last step is intact, and the same step is saved once there is room."""
    storage = Failing()
    with CheckpointManager(tmp_path, State, storage=storage) as manager:
        manager.save(0, state(0))
        storage.fail["write"] = [errno.ENOSPC] * 2
        for _ in range(2):
            with pytest.raises(StorageError, match=r"[Nn]o space") as caught:
                manager.save(1, state(1))
            assert caught.value.errno == errno.ENOSPC
            assert (manager.latest_step(), manager.next_step()) == (0, 1)
            assert_same(manager.restore(), state(0))
        manager.save(1, state(1))
        manager.save(2, state(2))
    with CheckpointManager(tmp_path, State) as manager:
        assert manager.all_steps() == [0, 1, 2]
        assert_same(manager.restore(), state(2))


def test_b6_a_failed_sync(tmp_path: Path) -> None:
    """FAULTS B6: a step whose sync failed is not shown, and saving it again works, once."""
    storage = Failing()
    with CheckpointManager(tmp_path, State, storage=storage) as manager:
        for step in range(3):
            manager.save(step, state(step))
        storage.fail["sync_data"] = [errno.EIO]
        with pytest.raises(StorageError):
            manager.save(3, State(999))
        assert manager.all_steps() == [0, 1, 2]
        manager.save(3, state(3))
    with CheckpointManager(tmp_path, State) as manager:
        assert manager.all_steps() == [0, 1, 2, 3]
        assert_same(manager.restore(), state(3))


def test_b7_a_step_in_place_whose_durability_is_unknown(tmp_path: Path) -> None:
    """FAULTS B7: after a DurabilityError the same step, or a later one, can be saved; what was not acknowledged does not come back."""
    for again in (0, 1):
        storage = Failing()
        with CheckpointManager(tmp_path / str(again), State, storage=storage) as manager:
            storage.fail["sync after replace"] = [errno.EIO]
            with pytest.raises(DurabilityError):
                manager.save(0, State(999))
            assert manager.next_step() == 0
            assert manager.restore(default=None) is None
            manager.save(again, state(5))
            assert manager.all_steps() == [again]
        with CheckpointManager(tmp_path / str(again), State) as manager:
            assert manager.all_steps() == [again]
            assert_same(manager.restore(), state(5))


def test_on_error_warn_goes_on(tmp_path: Path) -> None:
    """With on_error="warn" a full disk is a warning and False; what cannot be saved is still an error."""
    storage = Failing()
    with CheckpointManager(tmp_path, State, on_error="warn", storage=storage) as manager:
        manager.save(0, State())
        storage.fail["write"] = [errno.ENOSPC]
        with pytest.warns(CheckpointWarning, match="step 1 was not saved"):
            assert manager.save(1, State()) is False
        assert manager.save(2, State()) is True
        with pytest.raises(EncodeError):
            manager.save(3, State(log=[open]))  # type: ignore[list-item]
        with pytest.raises(StepAlreadyExistsError):
            manager.save(2, State())
        assert manager.all_steps() == [0, 2]


def test_c3_an_interrupt_anywhere_in_save(tmp_path: Path) -> None:
    """FAULTS C3: Ctrl-C at any line of `save` leaves the old step or the new one, and the manager usable for the same step."""
    package = str(Path(fastckpt.__file__).parent)

    seen: set[tuple[str, int]] = set()

    def interrupted(manager: CheckpointManager[Any], step: int) -> bool:
        """Save, interrupted at the first line that was not interrupted yet; False when there is none."""

        def trace(frame: Any, event: str, _: Any) -> Any:
            file, line = frame.f_code.co_filename, frame.f_lineno
            if not file.startswith(package):
                return None
            # Leaving a `with` traces its line once more before __exit__ is called, where no real interrupt can come.
            if event == "line" and (file, line) not in seen and not linecache.getline(file, line).lstrip().startswith("with self._"):
                seen.add((file, line))
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            manager.save(step, {"step": step})
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    with CheckpointManager(tmp_path) as manager:
        manager.save(0, {"step": 0})
        step = 1
        while interrupted(manager, step):
            kept = manager.restore()["step"]
            assert kept == manager.latest_step()
            assert kept in (step - 1, step)
            if kept == step - 1:
                manager.save(step, {"step": step})
            assert manager.restore() == {"step": step}
            step += 1
        assert step > 150
        assert manager.all_steps() == list(range(step + 1))
    with CheckpointManager(tmp_path) as manager:
        assert manager.all_steps() == list(range(step + 1))
        assert [manager.restore(each)["step"] for each in range(step + 1)] == list(range(step + 1))


def test_an_exception_in_the_block_leaves_the_last_save(tmp_path: Path, durability: Any) -> None:
    """What ends the `with` block is what is raised, and every accepted save is durable."""

    def run() -> None:
        with CheckpointManager(tmp_path, State, durability=durability) as manager:
            for step in range(5):
                manager.save(step, state(step))
            raise KeyError("training")

    with pytest.raises(KeyError, match="training"):
        run()
    with CheckpointManager(tmp_path, State) as manager:
        assert_same(manager.restore(), state(4))


EXITS = {
    "normal": "",
    "exception": "raise KeyError",
    "exit": "sys.exit(3)",
    "interrupt": "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
}


@needs_posix
@pytest.mark.parametrize("with_block", [True, False])
@pytest.mark.parametrize("ending", EXITS)
def test_c4_the_interpreters_exit(tmp_path: Path, durability: Any, ending: str, with_block: bool) -> None:
    """FAULTS C4: whatever ends the process normally, with a `with` block or without, the last save is durable, and nothing hangs."""
    body = f"""
import os, signal, sys, time
from fastckpt.manager import CheckpointManager
manager = CheckpointManager({str(tmp_path)!r}, durability={durability!r})
def main():
    for step in range(20):
        manager.save(step, {{"step": step, "pages": ["x" * 1000] * 300}})
    {EXITS[ending] or "pass"}
{"with manager: main()" if with_block else "main()"}
"""
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == {"normal": 0, "exception": 1, "exit": 3, "interrupt": -signal.SIGINT}[ending], done.stderr
    assert "Warning" not in done.stderr
    with CheckpointManager(tmp_path) as manager:
        assert manager.restore()["step"] == 19
        assert manager.all_steps() == list(range(20))


@needs_posix
def test_d4_a_forked_child(tmp_path: Path, durability: Any) -> None:
    """FAULTS D4, D5: every use in a forked child raises; its `close`, its garbage collection and its exit do nothing to the parent's run."""
    managers = [CheckpointManager(tmp_path, State, durability=durability)]
    manager = managers[0]
    for step in range(5):
        manager.save(step, state(step))

    def child() -> None:
        for call in (lambda: manager.save(9, State()), manager.restore, manager.latest_step, manager.wait_until_finished, lambda: manager.delete(1)):
            with pytest.raises(StorageError, match="forked child"):
                call()
        manager.close()
        with pytest.raises(LockedError):
            CheckpointManager(tmp_path, State)
        managers.clear()
        gc.collect()
        fill(tmp_path / "own", 3, durability=durability)
        for writer in list(writer_module._OPEN):
            writer.finish_at_exit()

    in_child(child, timeout=10)
    manager.save(5, state(5))
    assert manager.all_steps() == list(range(6))
    manager.close()
    with CheckpointManager(tmp_path, State) as manager:
        assert_same(manager.restore(), state(5))


def test_d6_eight_threads_share_a_manager(tmp_path: Path, durability: Any) -> None:
    """FAULTS D6: each save is whole, each step is one thread's, and reading goes on beside it."""
    manager = CheckpointManager(tmp_path, State, durability=durability)
    manager.save(0, state(0))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(12):
                while True:
                    step = manager.next_step()
                    try:
                        manager.save(step, state(step))
                        break
                    except StepAlreadyExistsError:
                        continue
                found = manager.restore()
                assert_same(found, state(found.step))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert manager.all_steps() == list(range(97))
    for step in range(0, 97, 13):
        assert_same(manager.restore(step), state(step))
    manager.close()


# --- damage ----------------------------------------------------------------------------------------------------------


def test_e9_a_damaged_newest_step(tmp_path: Path) -> None:
    """FAULTS E9: the newest step's damage is an error that names the newest good one; `fallback` goes back to it, loudly; the run goes on."""
    fill(tmp_path, 6)
    offset, length = last_record(tmp_path)
    flip(file_of(tmp_path), offset + length - 60)
    damaged = file_of(tmp_path).read_bytes()
    with pytest.warns(CheckpointWarning, match="damaged at byte"):
        manager = CheckpointManager(tmp_path, State)
    with pytest.raises(CorruptError, match=r"restore\(fallback=True\) goes back to step 4") as caught:
        manager.restore(default=State())
    assert caught.value.newest_good == 4
    assert offset <= caught.value.offset < offset + length
    assert file_of(tmp_path).read_bytes() == damaged
    with pytest.warns(CheckpointWarning, match=r"step 5 cannot be read, going back to step 4: .*checksum"):
        assert_same(manager.restore(fallback=True), state(4))
    assert manager.next_step() == 5
    assert_same(manager.restore(), state(4))
    manager.save(5, State(50))
    manager.save(6, state(6))
    assert manager.all_steps() == [0, 1, 2, 3, 4, 5, 6]
    manager.close()
    with CheckpointManager(tmp_path, State) as manager:
        assert_same(manager.restore(5), State(50))
        assert_same(manager.restore(), state(6))


@pytest.mark.parametrize("part", ["header", "trailer", "garbage behind"])
def test_a_damaged_end_of_the_file(tmp_path: Path, part: str) -> None:
    """Whatever of the last record is damaged, it is an error, `fallback` goes back over it, and the next save cuts nothing without a copy."""
    fill(tmp_path, 6)
    offset, length = last_record(tmp_path)
    path = file_of(tmp_path)
    if part == "garbage behind":
        path.write_bytes(path.read_bytes() + b"garbage" * 30)
    else:
        flip(path, offset + 30 if part == "header" else offset + length - 20)
    good = 5 if part == "garbage behind" else 4
    with pytest.warns(CheckpointWarning, match="damaged at byte"):
        manager = CheckpointManager(tmp_path, State)
    with pytest.raises(CorruptError) as caught:
        manager.restore()
    assert caught.value.newest_good == good
    with pytest.warns(CheckpointWarning, match=f"going back to step {good}"):
        assert_same(manager.restore(fallback=True), state(good))
    manager.save(manager.next_step(), State(77))
    assert_same(manager.restore(), State(77))
    manager.close()
    assert any("aside" in name for name in everything_in(tmp_path))


def test_a_torn_end(tmp_path: Path) -> None:
    """A crash in the middle of an append costs that step: a warning for the writer, nothing for a reader, no error."""
    fill(tmp_path, 6)
    offset, length = last_record(tmp_path)
    path = file_of(tmp_path)
    path.write_bytes(path.read_bytes()[: offset + length // 2])
    with CheckpointManager(tmp_path, State, read_only=True) as reader:
        assert_same(reader.restore(), state(4))
    with pytest.warns(CheckpointWarning, match="what follows step 4 is lost, as after a crash"):
        manager = CheckpointManager(tmp_path, State)
    assert_same(manager.restore(), state(4))
    manager.save(5, state(5))
    manager.close()
    with CheckpointManager(tmp_path, State) as manager:
        assert manager.all_steps() == [0, 1, 2, 3, 4, 5]


def test_e4_damage_in_the_middle(tmp_path: Path) -> None:
    """FAULTS E4: a step that cannot be read is an error of its own, with the newest good one before it; a step lost whole is not just absent."""
    fill(tmp_path, 8)
    journal = Journal(file_of(tmp_path), read_only=True)
    entries = {entry.header.step: entry for entry in journal.entries()}
    journal.close()
    flip(file_of(tmp_path), entries[3].offset + 30)  # its header
    flip(file_of(tmp_path), entries[5].offset + entries[5].length - 60)
    with CheckpointManager(tmp_path, State) as manager:
        with pytest.raises(CorruptError):
            manager.restore(3)
        with pytest.raises(CorruptError) as caught:
            manager.restore(5)
        assert caught.value.newest_good == 4
        with pytest.warns(CheckpointWarning, match="step 5 cannot be read, going back to step 4"):
            assert_same(manager.restore(5, fallback=True), state(4))
        assert manager.next_step() == 8
        assert_same(manager.restore(), state(7))


@pytest.mark.parametrize("content", [b"", b"\0" * 4096])
def test_e3_a_file_of_nothing(tmp_path: Path, content: bytes) -> None:
    """FAULTS E3: an empty file or one of zeros is corruption, never "no checkpoint"; saving keeps a copy of it."""
    file_of(tmp_path).write_bytes(content)
    with pytest.warns(CheckpointWarning, match="damaged at byte 0"):
        manager = CheckpointManager(tmp_path, State)
    for fallback in (False, True):
        with pytest.raises(CorruptError, match="fastckpt repair"):
            manager.restore(default=State(), fallback=fallback)
    manager.save(0, state(0))
    assert_same(manager.restore(), state(0))
    manager.close()


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    """JSON or something else in the run's place is an error at construction, and stays as it is."""
    for content in (b'{"a": 1}', b"PK\x03\x04 something"):
        file_of(tmp_path).write_bytes(content)
        with pytest.raises(NotACheckpointError):
            CheckpointManager(tmp_path)
        assert file_of(tmp_path).read_bytes() == content


# --- files of one checkpoint, readers --------------------------------------------------------------------------------


def test_a_file_of_one_checkpoint_needs_a_step(tmp_path: Path) -> None:
    """One that `save` wrote says no step: that is a clear error, and `first_step` the remedy; only a save changes the file."""
    fastckpt.save(file_of(tmp_path), state(7))
    before = file_of(tmp_path).read_bytes()
    with CheckpointManager(tmp_path, State) as manager:
        for call in (manager.restore, manager.latest_step, lambda: manager.save(8, state(8)), manager.next_step):
            with pytest.raises(SchemaError, match="first_step="):
                call()
    assert file_of(tmp_path).read_bytes() == before
    with CheckpointManager(tmp_path, State, first_step=7) as manager:
        assert (manager.latest_step(), manager.next_step(), manager.all_steps()) == (7, 8, [7])
        assert_same(manager.restore(), state(7))
        assert_same(manager.restore(7), state(7))
        assert file_of(tmp_path).read_bytes() == before
        manager.save(8, state(8))
    with CheckpointManager(tmp_path, State) as manager:
        assert manager.all_steps() == [7, 8]
        assert_same(manager.restore(7), state(7))


def test_a_migrated_file_is_adopted(tmp_path: Path, durability: Any) -> None:
    """A migrated checkpoint is its `progress.global_step`; the digest of its source is carried forward, so that a second migration knows it."""
    payload = {"progress": {"global_step": 33}, "state": {"a": [1, 2.5, None]}}
    (tmp_path / "checkpoint.json").write_text(json.dumps(payload, ensure_ascii=False, indent=2))
    migrate(tmp_path / "checkpoint.json")
    with CheckpointManager(tmp_path, durability=durability) as manager:
        assert manager.next_step() == 34
        assert_same(manager.restore(), payload)
        with pytest.raises(StepAlreadyExistsError):
            manager.save(33, payload)
        manager.save(34, payload)
    with CheckpointManager(tmp_path) as manager:
        assert manager.all_steps() == [33, 34]
        assert_same(manager.restore(33), payload)
        newest = manager._journal.newest
        assert newest is not None
        assert newest.header.source is not None
        assert newest.header.source.migrated is False


def test_a_read_only_manager_follows_a_writer(tmp_path: Path, durability: Any) -> None:
    """It needs no lock, sees each step once it is durable, and writes nothing; without a file there is nothing to read."""
    with pytest.raises(NotFoundError):
        CheckpointManager(tmp_path, State, read_only=True)
    with CheckpointManager(tmp_path, State, durability=durability) as writer:
        writer.save(0, state(0))
        writer.wait_until_finished()
        with CheckpointManager(tmp_path, State, read_only=True) as reader:
            for step in range(1, 20):
                writer.save(step, state(step))
                writer.wait_until_finished()
                assert reader.latest_step() == step
                assert_same(reader.restore(), state(step))
            writer.rewind(3)
            assert reader.all_steps() == [0, 1, 2, 3]
            for call in (lambda: reader.save(9, State()), lambda: reader.delete(0), lambda: reader.rewind(0)):
                with pytest.raises(StorageError, match="read-only"):
                    call()


def test_a_read_only_manager_leaves_a_file_of_one_checkpoint(tmp_path: Path) -> None:
    """It shows the one step, and follows when the file becomes a run."""
    fastckpt.save(file_of(tmp_path), state(7))
    with CheckpointManager(tmp_path, State, read_only=True, first_step=3) as reader:
        assert_same(reader.restore(), state(7))
        assert reader.all_steps() == [3]
        assert everything_in(tmp_path) == ["checkpoint.fastckpt"]
        with CheckpointManager(tmp_path, State, first_step=3) as writer:
            writer.save(4, state(4))
        assert reader.all_steps() == [3, 4]
        assert_same(reader.restore(), state(4))


def test_the_drop_ins_file_is_adopted(tmp_path: Path) -> None:
    """A drop-in's checkpoint says its step in the header, without its payload being read."""
    dropin_module.write_checkpoint(tmp_path, **arguments())
    with CheckpointManager(tmp_path) as manager:
        payload = dropin_module.load_checkpoint(tmp_path)
        assert payload is not None
        assert manager.latest_step() == payload["progress"]["global_step"]
        assert_same(manager.restore(), payload)


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    """Every test ends its writer threads."""
    yield
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("fastckpt"):
            thread.join(5)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("fastckpt")] == []


def test_errors_are_of_one_root() -> None:
    """What a manager raises on purpose is a CheckpointError."""
    assert issubclass(StepAlreadyExistsError, CheckpointError)


def damage_header_of(path: Path, step: int, which: int = 0) -> None:
    """Flip a bit in the header of the `which`-th newest record of a step (or of the newest tombstone, for -1)."""
    reader = Reader(path)
    entries = [e for e in reader.entries() if (e.header.kind == "tombstone" if step < 0 else e.header.step == step)]
    offset = entries[which].offset + 40
    reader.close()
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("way", ["force", "rewind"])
def test_e1_the_record_that_retired_steps_is_lost(tmp_path: Path, way: str) -> None:
    """FAULTS E1: where the record that took steps off the timeline is damaged, none of them is given for the step of that number."""
    with CheckpointManager(tmp_path, dict) as manager:
        for step in range(11):
            manager.save(step, {"old": step})
        if way == "force":
            manager.save(5, {"new": 5}, force=True)
        else:
            manager.rewind(5)
        for step in (6, 7):
            manager.save(step, {"new": step})
    damage_header_of(tmp_path / "checkpoint.fastckpt", 5 if way == "force" else -1)
    with CheckpointManager(tmp_path, dict, read_only=True) as manager:
        assert manager.all_steps() == [6, 7]
        assert_same(manager.restore(), {"new": 7})
        for step in (5, 8, 10):
            with pytest.raises((CorruptError, NotFoundError)):
                manager.restore(step)


def test_e9_fallback_of_a_step_whose_header_is_damaged(tmp_path: Path) -> None:
    """FAULTS E9: asked for a step that is damaged, `fallback=True` goes to the one before it, also where nothing of its record is left."""
    with CheckpointManager(tmp_path, dict) as manager:
        for step in range(30):
            manager.save(step, {"step": step})
    damage_header_of(tmp_path / "checkpoint.fastckpt", 15)
    with CheckpointManager(tmp_path, dict, read_only=True) as manager:
        with pytest.raises(CorruptError) as caught:
            manager.restore(15)
        assert caught.value.newest_good == 14  # type: ignore[attr-defined]
        with pytest.warns(CheckpointWarning, match="14"):
            assert_same(manager.restore(15, fallback=True), {"step": 14})


SIGNALS = """
import os, signal, sys
from fastckpt import CheckpointError, CheckpointManager
manager = CheckpointManager(sys.argv[1], dict, durability=sys.argv[2])
step, refused, nested = -1, 0, 0
state = {"text": ["word %d" % i for i in range(3000)]}
def save():
    global step
    step += 1
    mine = step
    manager.save(mine, {**state, "step": mine})
    os.write(1, b"%d\\n" % mine)
def handler(*_):
    global refused, nested
    try:
        save()
        nested += 1
    except CheckpointError as error:
        # Or another signal came between taking this step's number and saving it.
        assert "inside a save" in str(error) or "is not above the newest" in str(error)
        refused += "inside a save" in str(error)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0011)
while (refused < 60 or step < 100) and step < 3000:
    try:
        save()
    except CheckpointError as error:  # a step that the handler's save had taken in between
        assert "is not above the newest" in str(error)
signal.setitimer(signal.ITIMER_REAL, 0)
manager.close()
print("done", refused, flush=True)
"""


@needs_posix
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_c3_a_signal_handler_that_saves(tmp_path: Path, durability: str) -> None:
    """FAULTS C3: a save from a signal handler inside a save is refused at once, without a hang; what was acknowledged is all there."""
    done = subprocess.run([sys.executable, "-c", SIGNALS, str(tmp_path), durability], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert lines[-1].startswith("done")
    assert int(lines[-1].split()[1]) > 0
    with CheckpointManager(tmp_path, dict, read_only=True) as manager:
        steps = set(manager.all_steps())
        acknowledged = {int(line) for line in lines[:-1]}
        assert len(acknowledged) > 20
        assert acknowledged <= steps
        for step in sorted(acknowledged)[:: max(1, len(acknowledged) // 40)]:
            assert manager.restore(step)["step"] == step
