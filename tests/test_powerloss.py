"""Loss of power under a real filesystem: every block it wrote is recorded, and what a crash may have left of them is booted and looked at.

FAULTS A4, A5, A6, A7, A10. In CI on ext4; on others, and with more images, by

    .venv/bin/python tests/test_powerloss.py [ext4|xfs|btrfs] [IMAGES] [SEED]

as root, which needs `mkfs.xfs` or `mkfs.btrfs` (Debian's xfsprogs, btrfs-progs) and prints what it looked at.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from blockdisk import BlockDisk, Tally, needs_block_disk, own_mounts, replay
from faults import Lost, NoDirectorySync, NoFileSync, Passing
from support import count, difference, in_child

from fastckpt import CheckpointManager, NotFoundError, load, save, verify
from fastckpt.errors import CheckpointError, CheckpointWarning
from fastckpt.reader import Reader
from fastckpt.storage import DISK, Storage, is_temporary

SEED = 1
# At least so many, over both workloads, are looked at in CI.
IMAGES = 1000


def state_of(number: int) -> dict[str, Any]:
    """A state that is like no other, of a size of its own up to 60 kB, which hardly compresses, and shares much with its neighbours."""
    chance = random.Random(number // 10)
    rows = [chance.randbytes(600).hex() for _ in range(number * 37 % 50)]
    return {"number": number, "rows": rows, "own": random.Random(-1 - number).randbytes(700).hex()}


# --- one checkpoint in one file --------------------------------------------------------------------------------------

SAVES = 28


def saves(disk: BlockDisk, storage: Storage) -> None:
    """Saves over and over to one path, whose directories the first one makes."""
    path = checkpoint(disk.path)
    for number in range(SAVES):
        disk.trying(number)
        save(path, state_of(number), storage=storage)
        disk.done(number)


def check_saves(mounted: Path, done: int, tried: int) -> None:
    """The last acknowledged state loads, or the one that was being saved; and the next save is there when it returns."""
    path = checkpoint(mounted)
    try:
        found: Any = load(path)
    except NotFoundError:
        found = None
    except CheckpointError as error:
        raise Lost(f"loading ended in {error!r}") from error
    allowed = [None if number < 0 else state_of(number) for number in range(done, tried + 1)]
    if all(difference(found, one) for one in allowed):
        raise Lost(f"found state {found and found['number']}")
    save(path, state_of(1000))
    assert difference(load(path), state_of(1000)) is None
    assert verify(path) == []


def checkpoint(mounted: Path) -> Path:
    return mounted / "runs" / "a" / "checkpoint.fastckpt"


# --- a run -----------------------------------------------------------------------------------------------------------

#: What a run holds: the number of the operation that saved each live step.
Steps = dict[int, int]
KEEP = 6


class Operation(NamedTuple):
    """One thing that is done to a run, and what the run holds when it is acknowledged."""

    name: str
    step: int
    result: Steps


def operations() -> list[Operation]:
    """A run's life: saves of which the newest so many are kept, steps deleted, gone back and saved over, the file compacted, opened again."""
    script: list[tuple[str, int]] = []
    for turn in range(4):
        first = 10 * turn
        script += [("save", step) for step in range(first, first + 8)]
        script += [("delete", first + 5), ("compact", 0), ("save", first + 8), ("rewind", first + 4), ("save", first + 6)]
        script += [("reopen", 0), ("save over", first + 4), ("compact", 0), ("save", first + 7)]
    steps: Steps = {}
    found = []
    for number, (name, step) in enumerate(script):
        if name == "delete":
            steps = {other: by for other, by in steps.items() if other != step}
        elif name == "rewind":
            steps = {other: by for other, by in steps.items() if other <= step}
        elif name in ("save", "save over"):
            steps = {**{other: by for other, by in steps.items() if other < step}, step: number}
            steps = dict(sorted(steps.items())[-KEEP:])
        found.append(Operation(name, step, steps))
    return found


def run(disk: BlockDisk, storage: Storage) -> None:
    """Do the operations of a run, the compactions that its manager starts by itself included."""
    folder = checkpoint(disk.path).parent
    manager = CheckpointManager(folder, dict, max_to_keep=KEEP, storage=storage)
    for number, operation in enumerate(operations()):
        disk.trying(number)
        if operation.name == "delete":
            manager.delete(operation.step)
        elif operation.name == "rewind":
            manager.rewind(operation.step)
        elif operation.name == "compact":
            assert manager.compact() is not None, operation
        elif operation.name == "reopen":
            manager.close()
            manager = CheckpointManager(folder, dict, max_to_keep=KEEP, storage=storage)
        else:
            manager.save(operation.step, state_of(number), force=operation.name == "save over")
        disk.done(number)
        assert manager.all_steps() == list(operation.result), operation
    manager.close()


def check_run(mounted: Path, done: int, tried: int) -> None:
    """The live steps are those of the last acknowledged operation, or of the one under way, each restores equal; and the run goes on."""
    folder = checkpoint(mounted).parent
    script = operations()
    found = restored(folder)
    allowed = [script[number].result if number >= 0 else {} for number in range(done, tried + 1)]
    if not any(is_same(found, steps) for steps in allowed):
        held = {step: state["number"] for step, state in found.items()}
        raise Lost(f"found steps {held}, allowed {allowed}")
    try:
        with closing(Reader(checkpoint(mounted))) as reader:
            if reader.damage is not None and not reader.damage.torn:
                raise Lost(f"a crash is taken for damage: {reader.damage}")
    except NotFoundError:
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the crash left torn
        with CheckpointManager(folder, dict) as manager:
            step = manager.next_step()
            manager.save(step, state_of(1000))
            assert list((folder).glob(".*")) == [], "a temporary file of the dead process was not swept"
    assert is_same(restored(folder), {**{other: state["number"] for other, state in found.items()}, step: 1000})
    assert verify(checkpoint(mounted)) == []


def restored(folder: Path) -> dict[int, Any]:
    """Every live step and its state; none where there is no run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with CheckpointManager(folder, dict, read_only=True) as manager:
                return {step: manager.restore(step) for step in manager.all_steps()}
    except NotFoundError:
        return {}
    except (CheckpointError, CheckpointWarning) as error:
        raise Lost(f"restoring ended in {error!r}") from error


def is_same(found: Mapping[int, Any], steps: Steps) -> bool:
    return list(found) == list(steps) and all(difference(found[step], state_of(number)) is None for step, number in steps.items())


# --- both ------------------------------------------------------------------------------------------------------------


class Workload(NamedTuple):
    """What is done while the disk is recorded, and what is asked of each crash."""

    name: str
    do: Callable[[BlockDisk, Storage], None]
    check: Callable[[Path, int, int], None]


WORKLOADS = (Workload("save", saves, check_saves), Workload("run", run, check_run))
each_workload = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)


def lose_power(
    workload: Workload, folder: Path, *, storage: Storage = DISK, filesystem: str = "ext4", most: int, seed: int, stop_at: int = 0
) -> Tally:
    """Record a workload on a disk of its own and look at up to `most` crashes. In a child with `own_mounts`."""
    with BlockDisk(folder, filesystem) as disk:
        workload.do(disk, storage)
    return replay(disk, workload.check, folder, most=most, seed=seed, stop_at=stop_at)


@needs_block_disk()
@each_workload
def test_a4_power_loss_on_ext4(workload: Workload, tmp_path: Path) -> None:
    """FAULTS A4, A7, A10: ext4 boots after a crash at any block, torn ones among them: what was acknowledged is there, or what was under way."""
    figures = tmp_path / "figures"

    def power_loss() -> None:
        own_mounts()
        tally = lose_power(workload, tmp_path, most=IMAGES // 2 + 50, seed=SEED)
        figures.write_text(json.dumps(tally.kinds))
        assert not tally.wrong, f"{len(tally.wrong)} of {tally.images} images are wrong:\n" + "\n".join(tally.wrong[:3])
        assert tally.images >= IMAGES // 2, tally
        assert set(tally.kinds) == {"all", "none", "half", "torn"}

    in_child(power_loss, timeout=200)
    count("crash images, block level", sum(json.loads(figures.read_text()).values()))


class NoNewFileSync(Passing):
    """The sync of a new file is taken out; what is appended to one that is there is synced."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.new: set[int] = set()

    def call(self, name: str, *arguments: Any) -> Any:
        if name in ("sync", "sync_data") and arguments[0] in self.new:
            return None
        result = super().call(name, *arguments)
        if name == "open" and is_temporary(os.path.basename(arguments[0])):
            self.new.add(result)
        elif name == "close":
            self.new.discard(arguments[0])
        return result


@needs_block_disk()
@pytest.mark.parametrize("mutant", [NoFileSync, NoNewFileSync, NoDirectorySync], ids=lambda mutant: mutant.__name__)
@each_workload
def test_a6_without_a_sync_ext4_loses_data(workload: Workload, mutant: Callable[[Storage], Storage], tmp_path: Path) -> None:
    """FAULTS A6: without the sync of the file, of the new file alone, or of the directory, the same images hold less than was acknowledged."""

    def power_loss() -> None:
        own_mounts()
        tally = lose_power(workload, tmp_path, storage=mutant(DISK), most=10_000, seed=SEED, stop_at=1)
        assert tally.wrong, f"none of {tally.images} images is wrong"
        assert any(wrong.startswith("Lost") for wrong in tally.wrong), tally.wrong

    in_child(power_loss, timeout=200)
    count("mutants killed")


def main(filesystem: str = "ext4", most: str = "2000", seed: str = str(SEED)) -> int:
    """The same on another filesystem, or with more images; prints what was looked at and what was wrong."""

    def look() -> None:
        own_mounts()
        wrong = 0
        for workload in WORKLOADS:
            begun = time.monotonic()
            folder = Path(tempfile.mkdtemp(prefix="fastckpt-powerloss-"))
            tally = lose_power(workload, folder, filesystem=filesystem, most=int(most) // 2, seed=int(seed))
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.kinds.items()))
            seconds = time.monotonic() - begun
            say(
                f"{filesystem}, {workload.name}: {tally.images} crash images ({kinds}), {len(tally.wrong)} wrong, seed {seed}, {seconds:.0f} s",
                *tally.wrong[:5],
            )
            if not tally.wrong:
                shutil.rmtree(folder)
            wrong += len(tally.wrong)
        assert not wrong, f"{wrong} images are wrong"

    try:
        in_child(look, timeout=3600)
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        say(str(error))
        return 1
    return 0


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
