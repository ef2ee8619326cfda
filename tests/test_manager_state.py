"""A stateful machine: a run against a plain dict, through saves, forced ones, going back, deleting, crashes, damage and reopening."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import assert_same

from fastckpt import CheckpointWarning, CorruptError, EncodeError, NotFoundError, StepAlreadyExistsError, StorageError
from fastckpt.journal import Journal
from fastckpt.manager import CheckpointManager
from fastckpt.storage import Storage

FOLDERS = next((folder for folder in ["/dev/shm"] if os.access(folder, os.W_OK)), None)


class Disk(Storage):
    """No sync, for speed; the next writes, syncs or truncations fail when told to."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}

    def _maybe(self, name: str) -> None:
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, fd: int) -> None:
        self._maybe("sync")

    def sync_data(self, fd: int) -> None:
        self._maybe("sync_data")

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        if self.failing.get("write", 0) > 0 and len(data) > 1:
            super().write(fd, data[: len(data) // 2], offset)  # a disk that fills up takes a part
        self._maybe("write")
        return super().write(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._maybe("truncate")
        super().truncate(fd, size)


class Run(RuleBasedStateMachine):
    """The model is a dict of step → state; after damage, whatever the manager goes back to must be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=FOLDERS))
        self.path = self.folder / "checkpoint.fastckpt"
        self.model: dict[int, Any] = {}
        self.disk = Disk()
        self.live: dict[str, Any] = {"rows": [], "pages": [f"page {i} " * 20 for i in range(40)], "odd": 2**70}
        self.manager: CheckpointManager[Any] | None = None

    @initialize(durability=st.sampled_from(["sync", "async"]), fsync=st.booleans())
    def begin(self, durability: Any, fsync: bool) -> None:
        self.options: dict[str, Any] = {"durability": durability, "fsync": fsync}
        self._open()

    def _open(self) -> None:
        self.manager = CheckpointManager(self.folder, storage=self.disk, **self.options)

    def _open_again(self) -> None:
        """What a crash left at the end is warned of until the next append cuts it."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*as after a crash", CheckpointWarning)
            self._open()

    def _copy(self) -> Any:
        return {"rows": list(self.live["rows"]), "pages": list(self.live["pages"]), "odd": self.live["odd"]}

    def _train(self, number: int) -> None:
        self.live["rows"].append([number, number / 2])
        self.live["pages"][number % 40] = f"{number} " * (number % 60)
        self.live["odd"] += number

    @rule(number=st.integers(0, 1000), gap=st.integers(0, 2))
    def save(self, number: int, gap: int) -> None:
        self._train(number)
        step = self.manager.next_step() + gap
        assert self.manager.save(step, self.live, metrics={"n": number}) is True
        self.model[step] = self._copy()

    @rule(number=st.integers(0, 1000), back=st.integers(0, 6))
    def force(self, number: int, back: int) -> None:
        self._train(number)
        step = max(0, self.manager.next_step() - back)
        assert self.manager.save(step, self.live, force=True) is True
        self.model = {old: state for old, state in self.model.items() if old < step}
        self.model[step] = self._copy()

    @precondition(lambda self: self.model)
    @rule(back=st.integers(0, 6))
    def rewind(self, back: int) -> None:
        steps = sorted(self.model)
        step = steps[-1 - min(back, len(steps) - 1)]
        self.manager.rewind(step)
        self.model = {old: state for old, state in self.model.items() if old <= step}

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(sorted(self.model)))
        self.manager.delete(step)
        del self.model[step]

    @precondition(lambda self: self.model)
    @rule(below=st.integers(0, 3))
    def refused(self, below: int) -> None:
        newest = max(self.model)
        with pytest.raises((StepAlreadyExistsError, EncodeError)):  # EncodeError: there are no steps below 0
            self.manager.save(newest - below, self.live)
        missing = newest + 1 + below
        with pytest.raises(NotFoundError):
            self.manager.rewind(missing)
        with pytest.raises(NotFoundError):
            self.manager.delete(missing)

    @rule(call=st.sampled_from(["write", "sync_data", "sync"]), also=st.sampled_from(["", "truncate", "sync"]))
    def fail(self, call: str, also: str) -> None:
        """One save that fails, if the call comes; then the same step again. Where there was damage, a new file may have to begin."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*set aside", CheckpointWarning)
            self._fail(call, also)
            self.manager.wait_until_finished()

    def _fail(self, call: str, also: str) -> None:
        self.manager.wait_until_finished()
        step = self.manager.next_step()
        self.disk.failing = {call: 1, also: 1}
        try:
            self.manager.save(step, {"never": "acknowledged"})
            self.manager.wait_until_finished()
        except StorageError:
            assert self.manager.next_step() == step
            self.same_as_the_model()
            self.disk.failing = {}
            self.manager.save(step, self.live)
            self.model[step] = self._copy()
        else:
            self.model[step] = {"never": "acknowledged"}
        self.disk.failing = {}

    @rule()
    def reopen(self) -> None:
        self.manager.close()
        self._open_again()

    @rule()
    def crash(self) -> None:
        """The process is killed: nothing is closed, only what the system lets go of."""
        self.manager.wait_until_finished()
        self.manager._finalizer.detach()
        self.manager._journal._close_files()
        self.manager._journal._lock.release()
        if self.manager._writer is not None:
            self.manager._writer.stop()
        self._open_again()

    @precondition(lambda self: self.path.exists() and Run._is_state(self.path))
    @rule(keep=st.floats(0.01, 0.99))
    def torn(self, keep: float) -> None:
        """A crash in the middle of the last append: that step is gone, with a warning; as is what it retired."""
        self.manager.close()
        journal = Journal(self.path, read_only=True)
        entry = journal.newest
        journal.close()
        if entry.offset <= 48 or entry.header.retires:
            self._open_again()
            return
        os.truncate(self.path, entry.offset + max(1, int(entry.length * keep)))
        del self.model[entry.header.step]
        with pytest.warns(CheckpointWarning, match="damaged"):
            self._open()

    @precondition(lambda self: self.path.exists() and Run._is_state(self.path))
    @rule(at=st.floats(0, 0.999), bit=st.integers(0, 7), goes_back=st.booleans())
    def flipped(self, at: float, bit: int, goes_back: bool) -> None:
        """A bit of the last record flips: never another state, never "no checkpoint"; going back lands on a step that is known."""
        self.manager.close()
        journal = Journal(self.path, read_only=True)
        entry = journal.newest
        journal.close()
        before = self.path.read_bytes()
        data = bytearray(before)
        data[entry.offset + int(entry.length * at)] ^= 1 << bit
        self.path.write_bytes(data)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._open()
            with pytest.raises(CorruptError) as error:
                self.manager.restore(default="nothing")
            good = error.value.newest_good
        assert caught
        older = sorted(step for step in self.model if step != entry.header.step)
        if goes_back and good is not None and not entry.header.retires:
            assert good == older[-1]
            with pytest.warns(CheckpointWarning, match="going back"):
                assert_same(self.manager.restore(fallback=True), self.model[good])
            assert self.manager.next_step() == good + 1
            del self.model[entry.header.step]
            # What cannot be read is retired by the next save.
            self.manager.save(good + 1, self.live)
            self.model[good + 1] = self._copy()
        else:
            self.manager.close()
            self.path.write_bytes(before)
            self._open_again()

    @staticmethod
    def _is_state(path: Path) -> bool:
        journal = Journal(path, read_only=True)
        kind = journal.newest.header.kind
        journal.close()
        return kind == "state"

    @invariant()
    def same_as_the_model(self) -> None:
        if self.manager is None:
            return
        steps = sorted(self.model)
        assert self.manager.latest_step() == (steps[-1] if steps else None)
        if not steps:
            assert self.manager.restore(default=None) is None
            return
        assert_same(self.manager.restore(), self.model[steps[-1]])
        assert self.manager.all_steps() == steps
        middle = steps[len(steps) // 2]
        assert_same(self.manager.restore(middle), self.model[middle])

    def teardown(self) -> None:
        try:
            if self.manager is not None:
                self.manager.close()
                if self.path.exists():
                    with CheckpointManager(self.folder, read_only=True) as manager:
                        assert manager.all_steps() == sorted(self.model)
                        for step, state in self.model.items():
                            assert_same(manager.restore(step), state)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


# Without shrinking, which takes minutes here: the steps that are printed are at most 25.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
Run.TestCase.settings = settings(
    max_examples=60 if not os.environ.get("HYPOTHESIS_PROFILE") else 600, stateful_step_count=25, deadline=None, phases=PHASES
)
TestRun = Run.TestCase
