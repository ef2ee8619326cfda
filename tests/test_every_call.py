"""Every public operation, with each of its calls of the operating system failing in turn, once and for ever.

FAULTS B, over the model of a disk. After each fault: an error under `CheckpointError`, or success; the old state or the new one is
there, and after success, in every state that a loss of power may leave, the new one; nothing stays open, no temporary file is left; the
same object goes on working once the cause is gone, and so does the next process.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, NamedTuple

import pytest
from faults import (
    DISTANT,
    FOR_EVER,
    METHODS,
    NEAR,
    SAVE,
    FaultyStorage,
    File,
    Lost,
    ModelStorage,
    Product,
    State,
    check_faults,
    check_run_faults,
    puts,
    temporaries,
    unchanged,
)
from support import count, difference
from test_dropin import arguments

import fastckpt
from fastckpt import CheckpointManager, History, dropin
from fastckpt.errors import CheckpointError, NotFoundError
from fastckpt.journal import Journal
from fastckpt.migrate import export, export_all, migrate
from fastckpt.repair import repair
from fastckpt.storage import Storage, open_file, remove

FOLDER = "/disk/run"
RUN = f"{FOLDER}/checkpoint.fastckpt"
JSON = f"{FOLDER}/checkpoint.json"

Do = Callable[[], object]


class Operation(NamedTuple):
    """What is there before, the operation (made ready without faults, done with them, done again), and all that a reader finds."""

    prepare: Callable[[ModelStorage], object]
    ready: Callable[[Storage], AbstractContextManager[Do]]
    look: Callable[[Storage], Any]
    again: bool = False  # whether it is an object that can do it once more; a function is called anew by another process
    reads: bool = False  # then its result is what counts
    between: Sequence[Any] = ()  # what may be there besides when it was refused
    loses_nothing: bool = False  # done again, it may see that all is well and leave the durability of that to others


# The states, and how to look at them


def state_of(step: int) -> dict[str, Any]:
    """A state of a few sectors, with a little changed from step to step."""
    return {"step": step, "page": {str(i): f"{i * 7919 % 1000:04}" * 9 for i in range(40)} | {str(step % 40): "changed"}, "log": list(range(step))}


def steps_in(storage: Storage) -> Any:
    """Each step of the run and what a reader gets for it; None where there is no run."""
    try:
        with CheckpointManager(FOLDER, storage=storage, read_only=True) as run:
            return {step: state_or_error(run, step) for step in run.all_steps()}
    except NotFoundError:
        return None


def state_or_error(run: History[Any], step: int) -> Any:
    try:
        return run.restore(step)
    except CheckpointError as error:
        return type(error).__name__


def single_in(storage: Storage) -> Any:
    try:
        return fastckpt.load(RUN, storage=storage)
    except NotFoundError:
        return None
    except CheckpointError as error:
        return type(error).__name__


def dropin_in(storage: Storage) -> Any:
    try:
        return dropin.load_checkpoint(FOLDER, storage=storage)
    except CheckpointError as error:
        return type(error).__name__


def json_in(storage: Storage, path: str = JSON) -> Any:
    try:
        with open_file(path, storage) as (fd, status):
            return json.loads(storage.read(fd, status.st_size, 0))
    except NotFoundError:
        return None
    except ValueError:
        return "not whole"


def exports_in(storage: Storage) -> list[Any]:
    """The steps that are exported, in order."""
    found = [json_in(storage, f"/disk/out/step-{step}.json") for step in range(6)]
    return [state for state in found if state is not None]


# What is there before


def nothing(model: ModelStorage) -> None:
    """An empty disk, but for the directory of the run."""


def a_run(model: ModelStorage, steps: int = 6) -> None:
    with CheckpointManager(FOLDER, storage=model) as run:
        for step in range(steps):
            run.save(step, state_of(step), metrics={"loss": 1 / (step + 1)})


def a_run_with_retired_steps(model: ModelStorage) -> None:
    with CheckpointManager(FOLDER, storage=model) as run:
        for step in range(9):
            run.save(step, {**state_of(step), "new": step // 3 * 3_000 * "x" + str(step)})
        for step in range(5):
            run.delete(step)


def damaged(at: Callable[[list[tuple[int, int]]], int], cut: bool = False, steps: int = 6) -> Callable[[ModelStorage], None]:
    """A run with a bit flipped, or cut, at a place that is chosen among its records' offsets and lengths, oldest first."""

    def prepare(model: ModelStorage) -> None:
        a_run(model, steps)
        with closing(Journal(RUN, read_only=True, storage=model)) as journal:
            places = [(entry.offset, entry.length) for entry in journal.entries()][::-1]
        file: Any = model._find(RUN)
        if cut:
            del file.content[at(places) :]
        else:
            file.content[at(places)] ^= 4
        file.changed()

    return prepare


torn = damaged(lambda places: sum(places[-1]) - 60, cut=True)
damaged_end = damaged(lambda places: sum(places[-1]) - 60)
damaged_short = damaged(lambda places: sum(places[1]) - 60, steps=3)
damaged_middle = damaged(lambda places: sum(places[2]) - 60)


def a_single(model: ModelStorage) -> None:
    fastckpt.save(RUN, state_of(3) | {"progress": {"global_step": 3}}, storage=model)


def a_json(model: ModelStorage) -> None:
    dropin.write_checkpoint(FOLDER, **arguments(step=3), storage=model)
    export(RUN, JSON, storage=model)
    remove(RUN, storage=model)


def a_json_and_its_target(model: ModelStorage) -> None:
    a_json(model)
    fastckpt.save(RUN, {"other": 1}, storage=model)


# What is done


@contextmanager
def plain(do: Do) -> Iterator[Do]:
    yield do


def calling(function: Callable[[Storage], object]) -> Callable[[Storage], AbstractContextManager[Do]]:
    """A function of the storage: nothing to make ready."""
    return lambda storage: plain(lambda: function(storage))


def managed(do: Callable[[CheckpointManager[Any]], object], **options: Any) -> Callable[[Storage], AbstractContextManager[Do]]:
    """Something done with a manager that was opened before."""

    @contextmanager
    def ready(storage: Storage) -> Iterator[Do]:
        with CheckpointManager(FOLDER, storage=storage, **options) as run:
            yield lambda: do(run)

    return ready


def of_manager(prepare: Callable[[ModelStorage], object], do: Callable[[CheckpointManager[Any]], object], **options: Any) -> Operation:
    return Operation(prepare, managed(do, **options), steps_in, again=do is not save_and_close)


def save_next(run: CheckpointManager[Any]) -> None:
    step = run.next_step()
    run.save(step, state_of(step))
    run.wait_until_finished()


def save_back(run: CheckpointManager[Any]) -> None:
    run.save(2, {"step": 2, "again": True}, force=True)
    run.wait_until_finished()


def delete(run: CheckpointManager[Any]) -> None:
    if 2 in run.all_steps():
        run.delete(2)


def save_and_close(run: CheckpointManager[Any]) -> None:
    step = run.next_step()
    run.save(step, state_of(step))
    run.close()


def open_and_save(storage: Storage) -> None:
    with CheckpointManager(FOLDER, storage=storage, first_step=3) as run:
        save_next(run)


def read_everything(run: History[Any]) -> Any:
    steps = run.all_steps()
    last = steps[-1]
    return (
        [run.restore(step) for step in steps], run.latest_step(), run.metrics(last), run.series("step", steps=range(99)),
        [str(change) for change in run.diff(steps[0], last)],
    )  # fmt: skip


def export_every_step(storage: Storage) -> None:
    for exported in export_all(RUN, "/disk/out", force=True, storage=storage):
        if exported.error is not None:
            raise exported.error


@contextmanager
def following(storage: Storage) -> Iterator[Do]:
    """A reader that was there before the last step, and is told to look again."""
    with CheckpointManager(FOLDER, storage=storage, read_only=True) as run:
        yield lambda: (run.refresh(), read_everything(run))[1]


def in_history(storage: Storage) -> Any:
    with History(FOLDER, storage=storage) as run:
        return read_everything(run)


def step_written(storage: Storage) -> None:
    with dropin.StepCheckpointer(FOLDER, storage=storage) as checkpointer:
        checkpointer.write(**arguments(step=7))


OPERATIONS = {
    "save, first": Operation(nothing, calling(lambda storage: fastckpt.save(RUN, state_of(1), storage=storage)), single_in),
    "save, over": Operation(a_single, calling(lambda storage: fastckpt.save(RUN, state_of(1), storage=storage)), single_in),
    "load": Operation(a_single, calling(lambda storage: fastckpt.load(RUN, storage=storage)), single_in, reads=True),
    "load, of a run": Operation(a_run, calling(lambda storage: fastckpt.load(RUN, storage=storage)), steps_in, reads=True),
    "inspect": Operation(a_run, calling(lambda storage: fastckpt.inspect(RUN, storage=storage)), steps_in, reads=True),
    "verify": Operation(damaged_middle, calling(lambda storage: fastckpt.verify(RUN, storage=storage)), steps_in, reads=True),
    "manager, first save": of_manager(nothing, save_next),
    "manager, save": of_manager(a_run, save_next),
    "manager, save in the background": of_manager(a_run, save_next, durability="async"),
    "manager, save that retires": of_manager(a_run, save_next, max_to_keep=3),
    "manager, save that goes back": of_manager(a_run, save_back),
    "manager, delete": of_manager(a_run, delete),
    "manager, rewind": of_manager(a_run, lambda run: run.rewind(3)),
    "manager, restore": Operation(a_run, managed(read_everything), steps_in, again=True, reads=True),
    "manager, follow": Operation(a_run, following, steps_in, again=True, reads=True),
    "manager, close": of_manager(a_run, save_and_close),
    "manager, close in the background": of_manager(a_run, save_and_close, durability="async"),
    "compact": of_manager(a_run_with_retired_steps, lambda run: run.compact()),
    "compact to a policy": of_manager(a_run, lambda run: run.compact(), max_to_keep=2),
    "open": Operation(a_run, calling(open_and_save), steps_in),
    "open, torn": Operation(torn, calling(open_and_save), steps_in),
    "open, damaged in the middle": Operation(damaged_middle, calling(open_and_save), steps_in),
    "open, damaged at the end": Operation(damaged_end, calling(open_and_save), steps_in),
    "open, adopting": Operation(a_single, calling(open_and_save), steps_in),
    "history": Operation(a_run, calling(in_history), steps_in, reads=True),
    "repair": Operation(damaged_short, calling(lambda storage: repair(RUN, storage=storage)), steps_in, loses_nothing=True),
    "migrate": Operation(a_json, calling(lambda storage: migrate(JSON, storage=storage)), single_in),
    "migrate, over": Operation(a_json_and_its_target, calling(lambda storage: migrate(JSON, force=True, storage=storage)), single_in),
    "export": Operation(a_single, calling(lambda storage: export(RUN, JSON, force=True, storage=storage)), json_in),
    "export, every step": Operation(
        a_run, calling(export_every_step), exports_in, between=[[state_of(step) for step in range(steps)] for steps in range(6)]
    ),
    "drop-in, write": Operation(a_json, calling(lambda storage: dropin.write_checkpoint(FOLDER, **arguments(step=7), storage=storage)), dropin_in),
    "drop-in, write a step": Operation(nothing, calling(step_written), dropin_in),
    "drop-in, load": Operation(a_json, calling(lambda storage: dropin.load_checkpoint(FOLDER, storage=storage)), dropin_in, reads=True),
    "drop-in, remove": Operation(
        lambda model: dropin.write_checkpoint(FOLDER, **arguments(step=7), storage=model),
        calling(lambda storage: dropin.remove_checkpoint(FOLDER, storage=storage)),
        dropin_in,
    ),
}


# The check


class Clean(NamedTuple):
    """What an operation does when nothing fails: the disk and what was there before it, what is there after it, its result, and after a second one."""

    disk: State
    before: Any
    after: Any
    result: Any
    second: Any


def clean(operation: Operation) -> Clean:
    model = ModelStorage(folders=["/disk", FOLDER])
    operation.prepare(model)
    model.sync_everything()
    (disk,) = model.states()
    before = operation.look(model)
    with operation.ready(model) as do:
        result = do()
    after = operation.look(model)
    with operation.ready(model) as do:
        do()
    return Clean(disk, before, after, result, operation.look(model))


def require(found: Any, allowed: Sequence[Any], told: str) -> None:
    if all(difference(found, each) is not None for each in allowed):
        raise Lost(f"{told}\nfound {found!r:.200}, which differs from what is allowed: {[difference(found, each) for each in allowed]}")


def check_operation(
    operation: Operation, expected: Clean, *, code: int, times: float = 1, kind: tuple[str, ...] = METHODS, product: Product = unchanged
) -> list[str]:
    """Let the first, second, third … call of an operation fail, until there is none more; which calls those were."""
    seen: set[object] = set()
    hits: list[str] = []
    for nth in itertools.count(1):
        model = expected.disk.boot()
        faulty = FaultyStorage(model, nth, kind=kind, times=times, code=code, on=lambda *arguments: False)
        error: CheckpointError | None = None
        with warnings.catch_warnings(record=True) as warned, operation.ready(product(faulty)) as do:
            warnings.simplefilter("always")
            faulty.on = lambda *arguments: True
            try:
                result = do()
            except CheckpointError as caught:
                error = caught
            faulty.on = lambda *arguments: False
            told = f"call {nth} fails with {errno.errorcode[code]}, {times} times, hit {faulty.hit[:3]}, {error!r}\n{faulty.trace()}"
            allowed = [expected.after] if error is None else [expected.before, expected.after, *operation.between]
            require(operation.look(model), allowed, told)
            require_after_crash(operation, model, [*allowed, expected.before] if warned else allowed, told, seen)
            if operation.reads and error is None:
                require(result, [expected.result], told)
            if error is not None and operation.again:
                do()
                require(operation.look(model), [expected.after], f"{told}\nand the same again without a fault")
                require_after_crash(operation, model, [expected.after], f"{told}\nand the same again without a fault", seen)
        assert not model.descriptors, f"left open: {told}"
        assert not faulty.open_fds, f"left open: {told}"
        assert not faulty.synced_again, f"synced again after a failed sync: {told}"
        assert "unlink" in faulty.hit or not temporaries(model), f"a temporary file is left: {told}"
        if not faulty.hit:
            assert error is None
            count("faults injected", len(hits))
            return hits
        hits.append(faulty.hit[0])
        model.next_process()
        with operation.ready(product(model)) as do:
            do()
        told += "\nand another process without a fault"
        now = operation.look(model)
        require(now, [expected.after, expected.second], told)
        allowed = [now, expected.before] if operation.loses_nothing else [now]
        run = model._find(RUN)
        if operation.look is steps_in and isinstance(run, File) and run.dropped:
            # A step whose sync failed, and which could not be cut off either, and whose writer is gone: it was never acknowledged, and reads
            # back until the power goes.
            assert "truncate" in faulty.hit, told
            lost = {step for step in now if step not in (expected.before or ()) and step != max(now)}
            allowed += [{**now, **dict.fromkeys(lost, "CorruptError")}, {step: state for step, state in now.items() if step not in lost}]
        require_after_crash(operation, model, allowed, told, seen)
    raise AssertionError


def require_after_crash(operation: Operation, model: ModelStorage, allowed: Sequence[Any], told: str, seen: set[object]) -> None:
    if operation.reads:
        return  # it changed nothing, as was seen
    for state in model.states(most=6):
        key = state.signature(), tuple(map(repr, allowed))
        if key not in seen:
            require(operation.look(state.boot()), allowed, f"{told}\nand a loss of power:\n{state}")
            seen.add(key)
            count("crash states, model")


# The tests


@pytest.fixture(scope="module")
def cleanly() -> dict[str, Clean]:
    return {}


@pytest.fixture
def product() -> Product:
    return unchanged


@pytest.mark.parametrize("times", [1, FOR_EVER], ids=["once", "for ever"])
@pytest.mark.parametrize("name", OPERATIONS, ids=lambda name: name.replace(", ", "-").replace(" ", "-"))
def test_every_call_of_every_operation_fails(name: str, times: float, cleanly: dict[str, Clean], product: Product) -> None:
    """FAULTS B1, B4 to B9, B11, B14: an error at any call of any public operation: typed, the old state or the new one, and all goes on afterwards."""
    operation = OPERATIONS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = cleanly.get(name) or cleanly.setdefault(name, clean(operation))
        assert len(check_operation(operation, expected, times=times, code=errno.EIO, product=product)) >= 5
        if times == 1:
            check_operation(
                operation, expected, code=errno.ENOSPC, kind=("write", "sync", "sync_data", "open", "mkdir", "link", "replace", "truncate")
            )
            check_operation(
                operation, expected, code=errno.EACCES, kind=("open", "stat", "list", "mkdir", "link", "replace", "unlink", "chmod", "lock")
            )


#: Every errno that FAULTS B names, and those that a disk, a quota, a limit or a network filesystem answers with besides.
ERRNOS = [
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EXDEV, errno.EISDIR, errno.ENOENT, errno.EMFILE,
    errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.ESTALE, errno.EBUSY, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ETIMEDOUT, errno.EBADF,
]  # fmt: skip
each_errno = pytest.mark.parametrize("code", ERRNOS, ids=errno.errorcode.__getitem__)


@each_errno
def test_every_errno_at_every_call_of_a_save(code: int) -> None:
    """FAULTS B1, B4, B9, B11: whatever errno, at whatever call of a save, once and for ever: durable, or refused with the old file intact."""
    kinds = [kind for kind in METHODS if kind != "unlink" or code != errno.ENOENT]  # a file that is not there is as good as removed
    for (path, old), times in itertools.product([(DISTANT, None), (NEAR, SAVE.values[0])], (1, FOR_EVER)):
        check_faults(SAVE, path, old, SAVE.values[1], code=code, times=times, kind=tuple(kinds))


@each_errno
def test_every_errno_at_every_call_of_an_append(code: int) -> None:
    """FAULTS B6, B11, B12: whatever errno, at whatever call of appends, once and for ever: what was acknowledged is there."""
    # What says that it is not there is believed: test_b11_a_file_that_seems_gone.
    kinds = [kind for kind in METHODS if kind not in ("open", "stat", "read", "unlink") or code != errno.ENOENT]
    for times in (1, FOR_EVER):
        check_run_faults([*puts(200), *puts(300, 100, seed=1)], old=1, code=code, times=times, kind=tuple(kinds))


def test_model_of_a_failed_sync_that_nobody_remembers() -> None:
    """Another process syncs with success: what it wrote is on the medium, what the failed sync dropped may never be, unless written again."""
    for again in (False, True):
        model = ModelStorage({"/f": b"a" * 1024})
        fd = model.open("/f", os.O_RDWR)
        model.write(fd, memoryview(b"b" * 512), 0)
        model.sync_failed(fd)
        model.next_process()
        fd = model.open("/f", os.O_RDWR)
        assert model.read(fd, 512, 0) == b"b" * 512
        model.write(fd, memoryview(b"c" * 512), 512)
        if again:
            model.write(fd, memoryview(b"d"), 0)
        model.sync(fd)
        found = {state.files["f",][2][:1024:511] for state in model.states()}
        assert found == ({b"dbc"} if again else {b"bbc", b"aac"})
