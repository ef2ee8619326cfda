"""What a run keeps: the policy with every save, the bound of the file, compaction, and what is saved at all."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support import assert_same

from fastckpt import (
    CheckpointManager,
    CheckpointWarning,
    CorruptError,
    EncodeError,
    History,
    SchemaError,
    StepAlreadyExistsError,
    StorageError,
    save,
    verify,
)
from fastckpt import upkeep as upkeep_module
from fastckpt.reader import Reader
from fastckpt.storage import Storage

FILE = "checkpoint.fastckpt"


@pytest.fixture(params=["sync", "async"])
def durability(request: pytest.FixtureRequest) -> Any:
    return request.param


def state(step: int) -> dict[str, Any]:
    return {"step": step, "rows": [f"row {i} of {len(str(i)) * step}" for i in range(30)], "same": "so " * 3000}


class Full(Storage):
    """A disk that can be full."""

    full = False

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(fd, data, offset)


def fill(folder: Path, steps: range, metric: Any = None, **options: Any) -> CheckpointManager[Any]:
    manager: CheckpointManager[Any] = CheckpointManager(folder, **options)
    for step in steps:
        manager.save(step, state(step), metrics=None if metric is None else {"accuracy": metric(step)})
    return manager


# --- the policy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"max_to_keep": 3}, [17, 18, 19]),
        ({"max_to_keep": 1}, [19]),
        ({"max_to_keep": 2, "keep_period": 5}, [0, 5, 10, 15, 18, 19]),
        ({"max_to_keep": 2, "keep_time_interval": dt.timedelta(hours=1)}, [0, 18, 19]),
        ({"max_to_keep": 3, "best_fn": "accuracy"}, [9, 18, 19]),
        ({"max_to_keep": 2, "best_fn": lambda metrics: metrics["accuracy"], "best_mode": "min"}, [0, 10, 19]),
        ({}, list(range(20))),
    ],
)
def test_what_is_kept_after_every_save(tmp_path: Path, durability: Any, options: dict[str, Any], kept: list[int]) -> None:
    """Each save retires what is one too many, so that `all_steps` is what the policy says, then, after reopening, and for a reader."""
    with fill(tmp_path, range(20), lambda step: step % 10, durability=durability, **options) as manager:
        assert manager.all_steps() == kept
        for step in kept:
            assert_same(manager.restore(step), state(step))
        assert manager.plan().drop == []
    with CheckpointManager(tmp_path, **options) as manager:
        assert manager.all_steps() == kept
        manager.save(20, state(20), metrics={"accuracy": -1})
        assert 20 in manager.all_steps()
    with History(tmp_path) as history:
        assert 20 in history.all_steps()
    assert verify(tmp_path / FILE) == []


def test_a_policy_that_came_later_takes_hold_with_the_next_save(tmp_path: Path) -> None:
    """A run that kept everything, opened with `max_to_keep`: nothing is lost by opening it, `plan` says what would be, the next save does it."""
    fill(tmp_path, range(10)).close()
    with CheckpointManager(tmp_path, max_to_keep=2) as manager:
        assert manager.all_steps() == list(range(10))
        assert manager.plan().drop == list(range(8))
        assert manager.plan().reasons[0] == ["not one of the 2 newest"]
        manager.save(10, state(10))
        assert manager.all_steps() == [9, 10]


def test_best_step(tmp_path: Path) -> None:
    """`best_step` goes by `best_fn` and `best_mode`; a step without the metric is kept and is not the best; without `best_fn` it is the newest."""
    with fill(tmp_path, range(5), lambda step: [3, 1, 4, 1, 5][step], best_fn="accuracy", best_mode="min") as manager:
        assert manager.best_step() == 3
        manager.save(5, state(5))
        manager.save(6, state(6), metrics={"accuracy": math.nan})
        assert manager.best_step() == 3
    with CheckpointManager(tmp_path, best_fn="accuracy", best_mode="max") as manager:
        assert manager.best_step() == 4
    with CheckpointManager(tmp_path) as manager:
        assert manager.best_step() == 6
    with CheckpointManager(tmp_path / "empty", best_fn="accuracy") as manager:
        assert manager.best_step() is None


def test_a_best_fn_that_fails_loses_no_step(tmp_path: Path) -> None:
    """What `best_fn` raises is one warning, at the next save: the step is saved and kept as one without the metric, and the policy goes on."""

    def fails_once(metrics: dict[str, Any]) -> float:
        if metrics["accuracy"] == 3:
            raise ZeroDivisionError("no")
        return float(metrics["accuracy"])

    with CheckpointManager(tmp_path, max_to_keep=2, best_fn=fails_once) as manager:
        for step in range(3):
            manager.save(step, state(step), metrics={"accuracy": step})
        manager.save(3, state(3), metrics={"accuracy": 3})
        with pytest.warns(CheckpointWarning, match="best_fn failed for step 3.*ZeroDivisionError"):
            manager.save(4, state(4), metrics={"accuracy": 0})
        for step in range(5, 9):
            manager.save(step, state(step), metrics={"accuracy": 0})
        assert manager.all_steps() == [1, 2, 3, 8]  # the two best, the one of which nothing is known, and the newest
        assert manager.best_step() == 2


def test_going_back_under_a_policy(tmp_path: Path, durability: Any) -> None:
    """`rewind`, `force` and `delete` under `max_to_keep`: what is live is kept by the policy, and nothing that was retired comes back."""
    with fill(tmp_path, range(10), durability=durability, max_to_keep=5) as manager:
        manager.rewind(7)
        assert manager.all_steps() == [5, 6, 7]
        manager.save(8, state(80))
        manager.save(9, state(90))
        assert manager.all_steps() == [5, 6, 7, 8, 9]
        manager.delete(6)
        manager.save(10, state(100))
        assert manager.all_steps() == [5, 7, 8, 9, 10]
        manager.save(7, state(70), force=True)
        assert manager.all_steps() == [5, 7]
        for step in range(8, 12):
            manager.save(step, state(step))
        assert manager.all_steps() == [7, 8, 9, 10, 11]
        assert_same(manager.restore(7), state(70))


def test_a_save_that_fails_retires_nothing(tmp_path: Path) -> None:
    """When the disk refuses a save, the step that it would have put out is still there, and goes with the next one."""

    storage = Full()
    with fill(tmp_path, range(4), max_to_keep=2, storage=storage, on_error="warn") as manager:
        storage.full = True
        with pytest.warns(CheckpointWarning, match="step 4 was not saved"):
            assert not manager.save(4, state(4))
        storage.full = False
        assert manager.all_steps() == [2, 3]
        manager.save(4, state(4))
        assert manager.all_steps() == [3, 4]


# --- what is saved at all --------------------------------------------------------------------------------------------


def test_save_interval_steps(tmp_path: Path, durability: Any) -> None:
    """Only steps that the interval divides are saved, besides the first and forced ones; `should_save` says so before."""
    with CheckpointManager(tmp_path, durability=durability, save_interval_steps=5) as manager:
        expected = [manager.should_save(step) == manager.save(step, state(step)) for step in range(3, 17)]
        assert all(expected)
        assert manager.all_steps() == [3, 5, 10, 15]
        assert not manager.should_save(15)
        assert not manager.should_save(10)
        with pytest.raises(StepAlreadyExistsError):
            manager.save(15, state(15))
        assert manager.save(17, state(17), force=True)
        assert manager.all_steps() == [3, 5, 10, 15, 17]


def test_save_interval_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save is skipped while the last one is less than so many seconds ago; the clock is not the calendar's."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with CheckpointManager(tmp_path, save_interval_seconds=10) as manager:
        saved = []
        for step in range(30):
            saved += [step] if manager.save(step, state(step)) else []
            now += 3
        assert saved == [0, 4, 8, 12, 16, 20, 24, 28] == manager.all_steps()


@pytest.mark.parametrize(
    "options",
    [{"save_interval_steps": 0}, {"save_interval_seconds": -1}, {"max_to_keep": 0}, {"keep_period": -1}, {"best_mode": "best"}, {"max_file_bytes": 0},
     {"resume": "maybe"}],
)  # fmt: skip
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any]) -> None:
    """They are refused when the manager is made, and nothing appears."""
    with pytest.raises(ValueError, match=r".+"):
        CheckpointManager(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


# --- compaction ------------------------------------------------------------------------------------------------------


def big(step: int) -> dict[str, Any]:
    return {"step": step, "noise": [f"{step * 7919 * i:x}" for i in range(step % 50, 2000)]}


def test_the_file_of_a_long_run_stays_small(tmp_path: Path, durability: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `max_to_keep` the file is bounded, however long the run is, and every step that is kept restores equal, then and after reopening."""
    monkeypatch.setattr(upkeep_module, "_LEAST", 1 << 16)
    sizes = []
    with CheckpointManager(tmp_path, durability=durability, max_to_keep=10, fsync=False, round_trip="never") as manager:
        for step in range(600):
            manager.save(step, big(step))
            if step % 20 == 19:
                manager.wait_until_finished()
                manager._upkeep._worker.drain()
                sizes.append((tmp_path / FILE).stat().st_size)
                for kept in manager.all_steps()[:: 1 if step % 100 == 99 else 9]:
                    assert_same(manager.restore(kept), big(kept))
        assert manager.all_steps() == list(range(590, 600))
        written = manager.stats.written_bytes
    assert max(sizes) < written / 5
    assert max(sizes[len(sizes) // 2 :]) <= 2 * max(sizes[: len(sizes) // 2])
    assert verify(tmp_path / FILE) == []
    with CheckpointManager(tmp_path) as manager:
        assert manager.all_steps() == list(range(590, 600))
        for step in manager.all_steps():
            assert_same(manager.restore(step), big(step))


def test_a_restart_does_not_put_compaction_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is restarted every few steps compacts all the same: the file does not grow from one session to the next."""
    monkeypatch.setattr(upkeep_module, "_LEAST", 1 << 16)
    sizes = []
    for session in range(30):
        with CheckpointManager(tmp_path, max_to_keep=5, fsync=False, round_trip="never") as manager:
            for step in range(10 * session, 10 * session + 10):
                manager.save(step, big(step))
            manager._upkeep._worker.drain()
        sizes.append((tmp_path / FILE).stat().st_size)
    assert max(sizes[15:]) <= 2 * max(sizes[:15])


def test_compact_at_once(tmp_path: Path, durability: Any) -> None:
    """`compact` retires what the policy drops and takes out what is retired; a reader opened before goes on reading the old file."""
    fill(tmp_path, range(300)).close()
    before = (tmp_path / FILE).stat().st_size
    with History(tmp_path) as history, CheckpointManager(tmp_path, durability=durability, max_to_keep=3, keep_period=100) as manager:
        manager.save(300, state(300))
        done = manager.compact()
        assert done is not None
        assert done.before >= before > done.after == (tmp_path / FILE).stat().st_size
        assert manager.all_steps() == [0, 100, 200, 298, 299, 300]
        for step in manager.all_steps():
            assert_same(manager.restore(step), state(step))
        assert_same(history.restore(150), state(150))
        assert len(history.all_steps()) == 300
        assert history.refresh()
        assert history.all_steps() == [0, 100, 200, 298, 299, 300]
        manager.save(301, state(301))
        assert_same(manager.restore(301), state(301))
        assert manager.stats.bases == 1  # the first after opening: the one behind the compaction is a difference
    assert verify(tmp_path / FILE) == []


def test_compacting_where_there_is_nothing_to_drop(tmp_path: Path) -> None:
    """A run of live steps alone, and one without a step, are left as they are."""
    with CheckpointManager(tmp_path / "empty") as manager:
        assert manager.compact() is None
    with fill(tmp_path, range(5)) as manager:
        before = (tmp_path / FILE).read_bytes()
        assert manager.compact() is None
        assert (tmp_path / FILE).read_bytes() == before


def test_the_default_bound(tmp_path: Path, durability: Any) -> None:
    """Without a policy every step is kept up to `max_file_bytes`; a warning comes at 80%, then the oldest go, down to half, and the newest stay."""
    bound = 400_000
    with CheckpointManager(tmp_path, durability=durability, max_file_bytes=bound, round_trip="never") as manager:
        with pytest.warns(CheckpointWarning, match=r"of max_file_bytes=400,000.*max_to_keep="):  # noqa: PT031  (each of the saves may warn)
            for step in range(400):
                manager.save(step, big(step))
                manager.wait_until_finished()
                manager._upkeep._worker.drain()
                assert (tmp_path / FILE).stat().st_size <= bound + 200_000  # a few records, which are large here
        steps = manager.all_steps()
        assert steps == list(range(steps[0], 400))
        assert steps[0] > 0
        assert len(steps) >= 10
        for step in steps[::10]:
            assert_same(manager.restore(step), big(step))
    with CheckpointManager(tmp_path, max_file_bytes=None) as manager:
        assert manager.all_steps() == steps


def test_no_bound_where_a_policy_or_none_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default bound is for runs that say nothing: `max_to_keep` or `max_file_bytes=None` put it out."""
    import fastckpt.manager as manager_module

    monkeypatch.setattr(manager_module, "MAX_FILE_BYTES", 1000)
    with fill(tmp_path / "a", range(50), max_file_bytes=None) as manager:
        assert manager.all_steps() == list(range(50))
    with fill(tmp_path / "b", range(50), max_to_keep=40) as manager:
        assert manager.all_steps() == list(range(10, 50))
    with pytest.warns(CheckpointWarning, match="max_file_bytes=1,000"):
        manager = fill(tmp_path / "c", range(50))
    with manager:
        manager._upkeep._worker.drain()
        assert len(manager.all_steps()) < 50


def test_saves_go_on_beside_a_compaction(tmp_path: Path) -> None:
    """While `compact` runs in one thread, saves of another one go on, and every step of both times is there."""
    with fill(tmp_path, range(500), round_trip="never", fsync=False) as manager:
        for step in range(450):
            if step % 3:
                manager.delete(step)
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(manager.compact()))
        thread.start()
        step = 500
        while thread.is_alive() or step < 520:
            manager.save(step, state(step))
            step += 1
        thread.join()
        assert results[0] is not None
        assert manager.all_steps() == [*range(0, 450, 3), *range(450, step)]
        for each in manager.all_steps():
            assert_same(manager.restore(each), state(each))
    assert verify(tmp_path / FILE) == []


def test_a_compaction_that_fails_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk under a compaction in the background costs no step and no save; it is told of, and tried again later."""
    monkeypatch.setattr(upkeep_module, "_LEAST", 1 << 16)

    class NoRoom(Storage):
        none = True

        def open(self, path: str, flags: int, mode: int = 0o666) -> int:
            if self.none and ".fastckpt-tmp" in path and manager_is_open:
                raise OSError(28, "No space left on device")
            return super().open(path, flags, mode)

    storage, manager_is_open = NoRoom(), False
    with CheckpointManager(tmp_path, max_to_keep=5, storage=storage, round_trip="never", fsync=False) as manager:
        manager.save(0, big(0))
        manager_is_open = True
        with pytest.warns(CheckpointWarning, match=r"was not compacted: no space left"):  # noqa: PT031  (each of the saves may warn)
            for step in range(1, 200):
                manager.save(step, big(step))
                manager._upkeep._worker.drain()
        storage.none = False
        large = (tmp_path / FILE).stat().st_size
        for step in range(200, 400):
            manager.save(step, big(step))
            manager._upkeep._worker.drain()
        assert (tmp_path / FILE).stat().st_size < large
        assert manager.all_steps() == list(range(395, 400))


def test_close_does_not_wait_for_a_long_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` in the middle of a compaction gives it up: the file is as it was, nothing is left beside it, the lock is free."""
    monkeypatch.setattr(upkeep_module, "_LEAST", 1 << 16)
    began, go_on = threading.Event(), threading.Event()

    class Waiting(Storage):
        def replace(self, source: str, target: str) -> None:
            super().replace(source, target)

        def write(self, fd: int, data: memoryview, offset: int) -> int:
            if threading.current_thread().name.startswith("compacting"):
                began.set()
                go_on.wait(10)
            return super().write(fd, data, offset)

    manager = CheckpointManager(tmp_path, max_to_keep=5, storage=Waiting(), round_trip="never", fsync=False)
    step = 0
    while not began.is_set():
        manager.save(step, big(step))
        step += 1
    threading.Timer(0.05, go_on.set).start()
    manager.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, f"{FILE}.lock"]
    with CheckpointManager(tmp_path) as again:
        assert again.all_steps() == list(range(step - 5, step))
        assert_same(again.restore(), big(step - 1))
    reader = Reader(tmp_path / FILE)
    assert next(entry.sequence for entry in reader.entries()) == step
    reader.close()


# --- what a policy must not cost -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Typed:
    numbers: list[int]
    flags: dict[str, int] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize("keep", [1, 3])
def test_a_save_that_is_refused_retires_nothing(tmp_path: Path, durability: Any, keep: int) -> None:
    """A base that no load could read is refused before anything of it is written: the steps that it would have put out stay."""
    with CheckpointManager(tmp_path, Typed, durability=durability, max_to_keep=keep) as manager:
        for step in range(1, 6):
            manager.save(step, Typed(list(range(2000))))
        manager.wait_until_finished()
        kept = manager.all_steps()
        assert kept == list(range(6 - keep, 6))
        for step in (6, 7, 8):
            with pytest.raises(EncodeError, match=r"\$\.flags"):  # noqa: PT012  (the one or the other, by durability)
                manager.save(step, Typed(list(range(9000)), {"x": True}))
                manager.wait_until_finished()
            assert manager.all_steps() == kept
            assert manager.latest_step() == 5
        manager.save(6, Typed([1], {"x": 1}))
        assert manager.all_steps() == [*kept, 6][-keep:]
    with CheckpointManager(tmp_path, Typed) as manager:
        assert_same(manager.restore(), Typed([1], {"x": 1}))


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_h11_the_last_step_that_is_known_to_be_readable_is_not_retired(tmp_path: Path, durability: Any, keep: int) -> None:
    """FAULTS H11: a value that no load can read appears at step 18. However few steps are kept, one that loads is always among them."""
    manager = CheckpointManager(tmp_path, Typed, durability=durability, max_to_keep=keep)
    with pytest.raises(EncodeError) as caught:  # noqa: PT012  (which of the saves it is, is not said)
        for step in range(60):
            manager.save(step, Typed(list(range(3000)), {"x": True} if step >= 18 else {"x": step}))
            manager.wait_until_finished()
    assert caught.value.last_verified is not None  # type: ignore[attr-defined]
    with contextlib.suppress(EncodeError):  # the last save, if that is one of the bad ones
        manager.close()
    with CheckpointManager(tmp_path, Typed, max_to_keep=keep) as manager:
        loaded = []
        for step in manager.all_steps():
            try:
                loaded.append(manager.restore(step).flags["x"])
            except SchemaError:
                assert step >= 18
        assert loaded
        assert max(loaded) <= 17


def test_h11_after_going_back_what_is_known_is_found_out_again(tmp_path: Path) -> None:
    """FAULTS H11: the last step that was checked is rewound away, and from there on values are bad: still one that loads is kept."""
    manager = CheckpointManager(tmp_path, Typed, max_to_keep=2)
    for step in range(16):
        manager.save(step, Typed(list(range(3000)), {"x": step}))
    manager.rewind(14)
    with pytest.raises(EncodeError):  # noqa: PT012  (which of the saves it is, is not said)
        for step in range(15, 40):
            manager.save(step, Typed(list(range(3000)), {"x": True}))
    with contextlib.suppress(EncodeError):
        manager.close()
    with CheckpointManager(tmp_path, Typed, max_to_keep=2) as again:
        assert again.restore(14).flags == {"x": 14}


def test_the_bound_does_not_retire_what_came_after_going_back(tmp_path: Path) -> None:
    """The background finds steps to retire, and meanwhile the run goes back and on under the same numbers: none of the new ones is touched."""
    with CheckpointManager(tmp_path, max_file_bytes=300_000, round_trip="never", fsync=False) as manager:
        manager._upkeep._look_at = 1e18  # so that the moment of the look is known
        with pytest.warns(CheckpointWarning, match="max_file_bytes"):  # noqa: PT031  (each of the saves may warn)
            for step in range(100):
                manager.save(step, big(step))
        manager._upkeep._look()
        assert manager._upkeep._proposal is not None
        manager.rewind(3)
        for step in range(4, 8):
            manager.save(step, big(step))
        assert manager.all_steps() == list(range(8))
        manager._upkeep._look()
        manager.save(5, big(5), force=True)
        assert manager.all_steps()[-2:] == [4, 5]
        manager.save(6, big(6))
        assert manager.all_steps()[-3:] == [4, 5, 6]


def test_the_bound_leaves_what_the_policy_keeps_for_other_reasons(tmp_path: Path) -> None:
    """Periodic and best steps outlive the bound; the newest that are counted begin anew with what is there."""
    options: dict[str, Any] = {"keep_period": 50, "best_fn": "accuracy", "max_file_bytes": 300_000}
    with CheckpointManager(tmp_path, **options, round_trip="never", fsync=False) as manager:
        with pytest.warns(CheckpointWarning, match="max_file_bytes"):  # noqa: PT031  (each of the saves may warn)
            for step in range(1, 200):
                manager.save(step, big(step), metrics={"accuracy": 100 if step == 7 else step % 5})
                manager._upkeep._worker.drain()
        assert {7, 50, 100, 150, 199} <= set(manager.all_steps())
        assert 1 not in manager.all_steps()
        assert manager.best_step() == 7
        for step in (7, 50, 150, 199):
            assert_same(manager.restore(step), big(step))


def test_a_run_that_cannot_be_compacted_loses_nothing_by_trying(tmp_path: Path) -> None:
    """`compact` of a damaged run is refused before anything is retired."""
    fill(tmp_path, range(20), round_trip="never").close()
    reader = Reader(tmp_path / FILE)
    entry = next(entry for entry in reader.entries() if entry.header.step == 12)
    reader.close()
    data = bytearray((tmp_path / FILE).read_bytes())
    data[entry.offset + entry.length - 45] ^= 1
    (tmp_path / FILE).write_bytes(data)
    with CheckpointManager(tmp_path, max_to_keep=3) as manager:
        with pytest.raises(CorruptError):
            manager.compact()
        assert manager.all_steps() == list(range(20))
    assert (tmp_path / FILE).read_bytes() == data


def test_a_single_checkpoint_is_not_made_a_run_by_compacting(tmp_path: Path) -> None:
    """There is nothing to take out of a file of one checkpoint: it stays what it is."""
    save(tmp_path / FILE, {"progress": {"global_step": 3}})
    before = (tmp_path / FILE).read_bytes()
    with CheckpointManager(tmp_path, max_to_keep=1) as manager:
        assert manager.compact() is None
    assert (tmp_path / FILE).read_bytes() == before


def test_compact_beside_the_background_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compacting by hand while saves set off compactions of their own: none gets in the other's way."""
    monkeypatch.setattr(upkeep_module, "_LEAST", 1 << 14)
    with CheckpointManager(tmp_path, max_to_keep=5, round_trip="never", fsync=False) as manager:
        stop, errors = threading.Event(), list[BaseException]()

        def compacting() -> None:
            while not stop.is_set():
                try:
                    manager.compact()
                except BaseException as error:
                    errors.append(error)
                    return

        thread = threading.Thread(target=compacting)
        thread.start()
        for step in range(300):
            manager.save(step, big(step))
        stop.set()
        thread.join()
        assert errors == []
        assert manager.all_steps() == list(range(295, 300))
    assert verify(tmp_path / FILE) == []


def test_a_failed_save_in_the_background_is_not_counted_for_the_interval(tmp_path: Path) -> None:
    """After a failure the same step can be saved again at once."""

    storage = Full()
    with CheckpointManager(tmp_path, durability="async", save_interval_seconds=1000, storage=storage) as manager:
        manager.save(0, 0)
        manager._saved_at = None
        storage.full = True
        assert manager.save(1, 1)
        with pytest.raises(StorageError):
            manager.wait_until_finished()
        storage.full = False
        assert manager.save(1, 1)
        assert manager.all_steps() == [0, 1]
