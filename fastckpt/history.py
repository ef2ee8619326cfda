"""Looking into a run: the steps that there are, their states, what changed between them, and one value across them."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, overload

from .changes import Change, Extractor, changes, nearest, parse_path
from .codec import Codec
from .errors import CheckpointWarning, EncodeError, NotFoundError
from .journal import Entry, Journal
from .storage import DISK, Storage, exists, is_folder
from .timeline import LAST_STEP, Timeline
from .tree import ABSENT, path_text
from .upgrades import Loader, Unknown, Upgrade

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    D = TypeVar("D")
else:
    from typing import TypeVar

    T, D = TypeVar("T"), TypeVar("D")

__all__ = ["NAME", "History", "Point", "file_of", "step_number"]

#: What the file of a run is called in its directory.
NAME: Final = "checkpoint.fastckpt"
_MISSING: Final[Any] = object()
_PLAIN = Codec()


class Point(NamedTuple):
    """The value at one step; a list of them goes straight into a DataFrame."""

    step: int
    value: Any


def file_of(path: str | os.PathLike[str], name: str = NAME, *, storage: Storage = DISK) -> str:
    """The file of the run `path`: itself where it is named so or is a file, else the file `name` in that directory."""
    path = os.fspath(path)
    named = path.endswith(os.path.splitext(NAME)[1])
    return path if named or (exists(path, storage=storage) and not is_folder(path, storage=storage)) else os.path.join(path, name)


def step_number(step: object) -> int:
    """A step as an int. Raises `EncodeError` for what is none (a bool, a float, a negative one)."""
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= LAST_STEP:
        raise EncodeError(f"a step is an int from 0 to 2**63 - 1, got {step!r}", where="step")
    return number


class History(Generic[T]):
    """A run, for reading alone: in a notebook, beside the process that writes it, or long afterwards.

    It takes no lock, changes nothing, and shows the run as it was when it was opened, or at the last `refresh`. `path` is the directory
    of the run or its file; the other options are as in `CheckpointManager`. Safe for several threads.

        with History("runs/a") as history:
            history.series("state.eval_prev_acc")       # [(step, value), …]
            history.diff(16, 17)                        # what changed, by path

    Raises `NotFoundError`, `NotACheckpointError`, `VersionError`, `SchemaError`, `StorageError`. Damage is no error here: it is a
    `CheckpointWarning`, and reading what is damaged raises.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        type: type[T] = Any,  # type: ignore[assignment]
        *,
        first_step: int | None = None,
        schema_version: int = 1,
        upgrades: Mapping[int, Upgrade] | None = None,
        unknown: Unknown = "refuse",
        storage: Storage = DISK,
    ) -> None:
        loader = Loader(Codec(type), version=schema_version, upgrades=upgrades, unknown=unknown)
        journal = Journal(file_of(path, storage=storage), read_only=True, storage=storage)
        try:
            self._set_up(journal, loader, None if first_step is None else step_number(first_step))
            self._timeline.warn_of_damage()
        except BaseException:
            journal.close()
            raise

    def _set_up(self, journal: Journal, loader: Loader, first_step: int | None) -> None:
        self.path = journal.path
        self._journal, self._loader, self._first_step = journal, loader, first_step
        self._timeline = Timeline(journal, first_step)

    def refresh(self) -> bool:
        """Look at the file again: what was saved since, or another file in its place. Whether anything changed."""
        return self._journal.refresh()

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def __enter__(self) -> History[T]:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Around every look at the file."""
        yield

    # --- states ------------------------------------------------------------------------------------------------------

    @overload
    def restore(self, step: int | None = None, *, fallback: bool = False) -> T: ...
    @overload
    def restore(self, step: int | None = None, *, default: D, fallback: bool = False) -> T | D: ...
    def restore(self, step: int | None = None, *, default: Any = _MISSING, fallback: bool = False) -> Any:
        """The state of `step`, or the newest; `default` (itself, no copy) when the run has no step at all. Never moves the head.

        Damage is never taken for "no checkpoint": where the end of the file, or the step that is asked for, cannot be read, that is a
        `CorruptError`, which names the offset and the newest step that can (`newest_good`). With `fallback` that one is taken
        instead, with a `CheckpointWarning`; a manager then goes on from there: `next_step` follows it, and the next save retires what
        could not be read.

        Raises `NotFoundError` (an empty run without a default; a step that is not there, with its neighbours), `CorruptError`,
        `SchemaError` and `MissingFieldError` (the data does not fit the type, has fields that it does not have, or is of a version that
        no upgrade leads on from), `LimitError`, `StorageError`; a manager with a `fingerprint` also `ConfigMismatchError`.
        """
        with self._looking():
            found = self._timeline.read(None if step is None else step_number(step), fallback=fallback)
            if found is None:
                if default is _MISSING:
                    raise self._timeline.absent(None)
                return default
            self._accept(found.entry)
            if found.reason is not None:
                fact = f"{found.instead_of} cannot be read, going back to step {found.step}: {found.reason}"
                warnings.warn(fact, CheckpointWarning, stacklevel=2)
                if step is None:
                    self._gone_back(found.step)
            return self._loader.load(found.message, found.entry.header, path=self.path)

    def _accept(self, entry: Entry) -> None:
        """Whether a state may be gone on from."""

    def _gone_back(self, step: int) -> None:
        """An older step was taken for the newest."""

    def latest_step(self) -> int | None:
        """The newest step, one that is still being saved included; None when there is none. After damage, the newest that is whole."""
        with self._looking():
            return next((step for step, _ in self._timeline.live()), None)

    def all_steps(self) -> list[int]:
        """Every step that can be restored, in order; waits for those that are being saved."""
        with self._looking():
            return [step for step, _ in self._timeline.live()][::-1]

    def metrics(self, step: int | None = None) -> dict[str, Any]:
        """The metrics that `step` (the newest if not given) was saved with. Raises `NotFoundError`, `CorruptError`."""
        with self._looking():
            return self._timeline.unpacked(self._timeline.find(None if step is None else step_number(step)).header.metrics)

    def meta(self, step: int | None = None) -> dict[str, Any]:
        """The metadata that `step` (the newest if not given) was saved with. Raises `NotFoundError`, `CorruptError`."""
        with self._looking():
            return self._timeline.unpacked(self._timeline.find(None if step is None else step_number(step)).header.meta)

    def log(self) -> list[dict[str, Any]]:
        """One row a step, in order, from the headers alone: step, time (seconds since 1970), sizes in bytes, and each metric by its name.

        A list of rows as a DataFrame takes them. Raises `CorruptError`.
        """
        rows = []
        with self._looking():
            for step, entry in self._timeline.live():
                header = entry.header
                metrics = {f"metrics.{name}": value for name, value in self._timeline.unpacked(header.metrics).items()}
                sizes = {"message_bytes": header.message, "file_bytes": entry.length}
                rows.append({"step": step, "time": header.time / 1e9, "base": header.base, **sizes, **metrics})
        return rows[::-1]

    # --- across steps ------------------------------------------------------------------------------------------------

    def diff(self, a: int, b: int) -> list[Change]:
        """What is different in step `b` from step `a`: path, old value, new value (`ABSENT` where there is none), as plain data.

        Values and types count: 1, 1.0 and True are different ones. What an append or an insertion adds to a list is reported as such.

        Raises `NotFoundError`, `CorruptError`.
        """
        with self._looking():
            old, new = (self._plain(step_number(step)) for step in (a, b))
        return list(changes(old, new))

    def _plain(self, step: int) -> Any:
        entry = self._timeline.find(step)
        return _PLAIN.decode(self._journal.read(entry), entry.header.ext, path=self.path)

    def series(self, path: str, steps: Iterable[int] | None = None, stride: int = 1) -> list[Point]:
        """The value at `path` across the run, as plain data: every step, or those of `steps`, or every `stride`-th of them.

        `path` is one as errors name them, with or without `$.`: `state.eval_prev_acc`, `log_history.-1.loss`, `packs[3]['odd key']`.
        Only what is on the path is decoded. Steps that do not have the value are left out.

        Raises `NotFoundError` where none has it, or where a step of `steps` is not there; `SchemaError` for what is no path,
        `ValueError` for a stride below 1, `CorruptError`.
        """
        if stride < 1:
            raise ValueError(f"stride is at least 1, got {stride}")
        parts = parse_path(path)
        extract, points, last = Extractor(parts), [], None
        with self._looking():
            for step, entry in self._chosen(steps, stride):
                value = extract(self._journal.read(entry), entry.header.ext)
                if value is not ABSENT:
                    points.append(Point(step, value))
                last = entry
            if not points:
                if last is None:
                    raise self._timeline.absent(None)
                plain = _PLAIN.decode(self._journal.read(last), last.header.ext, path=self.path)
                raise NotFoundError(self.path, fact=f"no step has a value at `{path_text(parts)}`", remedy=nearest(plain, parts))
        return points

    def _chosen(self, steps: Iterable[int] | None, stride: int) -> Iterator[tuple[int, Entry]]:
        """The entries of steps, oldest first."""
        entries = dict(reversed(list(self._timeline.live())))
        wanted = list(entries)[::stride] if steps is None else [step_number(step) for step in steps][::stride]
        ranged = isinstance(steps, range)
        for step in wanted:
            if step in entries:
                yield step, entries[step]
            elif not ranged:  # a range is from here to there, whatever there is of it
                self._timeline.find(step)  # raises
