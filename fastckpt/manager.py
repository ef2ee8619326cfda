"""A run: every step durable in one file, each of them restorable, with what was measured of saving them."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from .check import Checker
from .codec import Codec, Encoded, pack_meta
from .compaction import Compaction, prove
from .container import Source
from .delta import CHUNK
from .errors import (
    CheckpointError,
    CheckpointWarning,
    ConfigMismatchError,
    EncodeError,
    LimitError,
    StepAlreadyExistsError,
    StorageError,
)
from .history import NAME, History, file_of, step_number
from .journal import Entry, Journal
from .preempt import OnSignal, SignalGuard
from .resume import Fingerprint
from .retention import Plan, Retention, StepFacts
from .storage import DISK, Storage
from .tree import ABSENT, abridged
from .upgrades import Loader, Unknown, Upgrade
from .upkeep import MAX_FILE_BYTES, Upkeep, stretches
from .writer import Writer

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["CheckpointManager", "SaveStats"]

_MISSING: Final[Any] = object()


class SaveStats(msgspec.Struct, frozen=True, kw_only=True):
    """What saving cost: of one save, or the sum of all. `step` is the newest one; the rest adds up.

    `blocking_seconds` is what `save` took of its caller, checks and waiting included; `total_seconds` lasts until the step is
    durable. `new_bytes` are those of the message that no earlier record holds, `written_bytes` what went to the disk, `flushes`
    how often it was asked to keep them. `skipped` and `replaced` count the saves that `on_busy` dropped.
    """

    step: int = -1
    saves: int = 0
    skipped: int = 0
    replaced: int = 0
    bases: int = 0
    checks: int = 0
    flushes: int = 0
    message_bytes: int = 0
    new_bytes: int = 0
    written_bytes: int = 0
    blocking_seconds: float = 0.0
    total_seconds: float = 0.0
    checked_seconds: float = 0.0

    def __add__(self, other: SaveStats) -> SaveStats:
        sums = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        return SaveStats(**{**sums, "step": max(self.step, other.step)})


class _Save(NamedTuple):
    """One save on its way to the file."""

    step: int
    encoded: Encoded
    retires: tuple[tuple[int, int | None], ...]
    metrics: dict[str, Any] | None
    meta: dict[str, Any] | None
    started: float
    blocked: float | None = None  # seconds of the caller's; None where it waits for the append itself
    checked: bool = False
    checked_seconds: float = 0.0


class CheckpointManager(History[T]):
    """A run of checkpoints in the one file `checkpoint.fastckpt` of a directory (or in the `*.fastckpt` file that is named).

    *When `save` returns, the step survives a kill of the process and a loss of power; at every moment before that, the previous
    step does.* With `durability="async"` that holds when `wait_until_finished` returns: the caller's thread only encodes, so the
    bytes are a consistent snapshot, and one background thread does the rest. At most one save is in flight and one waits; if there
    are both, `on_busy` says whether `save` waits, skips this one (False), or puts it in the place of the one that waits, whose step
    is then not saved. `fsync=False` gives up the power-loss half of the promise.

    `type` is what states come back as; plain data if not given. What would come back different is refused by a check
    (`round_trip`): of saves 1, 2, 4, 8, …, of every base, of one that retires the last step that was checked, of the last at `close`, and
    of as many others as keep checking under a tenth of the time spent saving. "always" checks each save, "never" none. With
    `durability="async"` the writer does it: a live state that was changed since it was encoded tells nothing, so then, as for the first
    save and with "always", the caller's thread does. What has no live state any more (in the background, and at `close`) is only
    read back.

    Errors of the background surface once, at the next `save`, `wait_until_finished`, `check_for_errors` or `close`. With
    `on_error="warn"` what the disk refuses is a `CheckpointWarning`, the save returns False, and training goes on; what cannot be
    saved is always an error. After a failed save the same step may be saved again.

    One manager writes a run at a time (`lock=False` where the filesystem has no locks); it may be shared by threads, not by forked
    children. `read_only` managers change nothing, need no lock, and follow a running run. `on_save` is called with the `SaveStats`
    of each save that is in the file, in the thread that wrote it. A file of one checkpoint (a migrated one, `save`'s) is taken for
    one step: its own, or its `progress.global_step`, or `first_step`; the first save makes a run of it. `first_step` is otherwise
    where an empty run begins.

    **What is saved**: `save` saves nothing, and returns False, where neither `save_interval_steps` divides the step nor the run is empty, or
    where the last save is less than `save_interval_seconds` ago; `force` saves all the same.

    **What is kept**: everything, up to a file of 1 GiB (`max_file_bytes`; a warning comes at 80%), then the oldest steps are retired down to
    half of it. With `max_to_keep` the newest so many, or, with `best_fn` (the name of a metric, or a function of the metrics) and
    `best_mode`, the best; the newest is always kept, and besides every step that `keep_period` divides, one in every `keep_time_interval`
    (a timedelta or seconds), and those without the metric. A step is retired by the save that makes it one too many; what is retired
    leaves the file when that has doubled, in the background (`compact` does it at once), and `plan` says why each step is kept or not.

    **Going on with another configuration or program**: `fingerprint` is the configuration as far as it matters; it is saved with each
    step, and `restore` raises `ConfigMismatchError` where a structural field differs (with `resume="warn"` it warns), and warns where one
    of the other tier does. What is gone on over stands in the next save's metadata, as `resume_overrides`. `schema_version` and
    `upgrades` (from each version a function to the next, on plain data) bring older states up to today's type; fields that were saved and that
    the type does not have are refused, or with `unknown="warn"` dropped with a warning.

    **Told to end**: with `save_on_signal` SIGTERM finishes what is being saved before it takes its course; a function, or
    `OnSignal(function, signals)`, gives a step and its state to save first.

    Raises `ValueError` for options that make no sense, `SchemaError` (a type that cannot come back), `LockedError`, `NotACheckpointError`,
    `VersionError`, `StorageError`, and with `read_only` `NotFoundError` where there is no file. Damage is no error here: it is a
    `CheckpointWarning`, and `restore` raises.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        type: type[T] = Any,  # type: ignore[assignment]
        *,
        durability: Literal["sync", "async"] = "sync",
        fsync: bool = True,
        on_busy: Literal["wait", "skip", "replace"] = "wait",
        on_error: Literal["raise", "warn"] = "raise",
        round_trip: Literal["auto", "always", "never"] = "auto",
        read_only: bool = False,
        first_step: int | None = None,
        lock: bool = True,
        level: int = 3,
        chunk: int = CHUNK,
        on_save: Callable[[SaveStats], object] | None = None,
        save_interval_steps: int | None = None,
        save_interval_seconds: float | None = None,
        max_to_keep: int | None = None,
        keep_period: int | None = None,
        keep_time_interval: dt.timedelta | float | None = None,
        best_fn: Callable[[dict[str, Any]], float] | str | None = None,
        best_mode: Literal["max", "min"] = "max",
        max_file_bytes: int | EllipsisType | None = ...,
        fingerprint: Fingerprint | None = None,
        resume: Literal["strict", "warn"] = "strict",
        schema_version: int = 1,
        upgrades: Mapping[int, Upgrade] | None = None,
        unknown: Unknown = "refuse",
        save_on_signal: bool | OnSignal | Callable[[], tuple[int, T] | None] = False,
        name: str = NAME,
        storage: Storage = DISK,
    ) -> None:
        options = (durability, ("sync", "async")), (on_busy, ("wait", "skip", "replace")), (on_error, ("raise", "warn"))
        for value, allowed in (*options, (round_trip, ("auto", "always", "never")), (resume, ("strict", "warn"))):
            if value not in allowed:
                raise ValueError(f"expected one of {', '.join(map(repr, allowed))}, got {value!r}")
        for option, number in (("save_interval_steps", save_interval_steps), ("save_interval_seconds", save_interval_seconds)):
            if number is not None and (isinstance(number, bool) or not number > 0):
                raise ValueError(f"{option} is above 0, got {number!r}")
        if save_interval_steps is not None and int(save_interval_steps) != save_interval_steps:
            raise ValueError(f"save_interval_steps is a whole number, got {save_interval_steps!r}")
        if fingerprint is not None and not isinstance(fingerprint, Fingerprint):
            raise TypeError(f"fingerprint is a Fingerprint(config, structural, decision), got {abridged(fingerprint)}")
        policy = Retention(
            max_to_keep=max_to_keep, keep_period=keep_period, keep_time_interval=keep_time_interval, best_fn=best_fn, best_mode=best_mode
        )
        bound = (None if policy else MAX_FILE_BYTES) if isinstance(max_file_bytes, EllipsisType) else max_file_bytes
        if bound is not None and bound < 1:
            raise ValueError(f"max_file_bytes is None or at least 1, got {bound!r}")
        self._codec = Codec(type, compact=True)
        loader = Loader(self._codec, version=schema_version, upgrades=upgrades, unknown=unknown)
        self._fsync, self._on_busy, self._on_error, self._round_trip, self._on_save = fsync, on_busy, on_error, round_trip, on_save
        self._interval_steps, self._interval_seconds = save_interval_steps, save_interval_seconds
        self._saved_at: float | None = None
        self._fingerprint, self._resume = fingerprint, resume
        self._overrides: list[dict[str, Any]] = []  # what the last restore went on over
        self._pid, self._closed = os.getpid(), False
        self._saving, self._reading, self._counting = threading.Lock(), threading.RLock(), threading.RLock()
        self._saver: int | None = None  # the thread that is inside a save, while that is locked
        self._stats, self._last_stats = SaveStats(), SaveStats()
        self._checker = Checker(self._codec, round_trip)
        self._readable: int | None = None  # the newest step that was compared, or read back at least
        self._unchecked: Encoded | None = None  # the last save, if nothing looked at it yet; the journal holds its message as well
        journal = Journal(file_of(directory, name, storage=storage), read_only=read_only, lock=lock, chunk=chunk, level=level, storage=storage)
        self.read_only = read_only
        self._writer = Writer(f"fastckpt {journal.path}") if durability == "async" and not read_only else None
        self._guard: SignalGuard | None = None
        compactor = Writer(f"compacting {journal.path}")
        self._finalizer = weakref.finalize(self, _abandoned, journal, self._writer, compactor, self._pid)
        self._finalizer.atexit = False  # the writer has an exit of its own, and else everything is in the file
        try:
            self._set_up(journal, loader, None if first_step is None else step_number(first_step))
            self._upkeep = Upkeep(journal, self._timeline, policy, bound=bound, fsync=fsync, worker=compactor)
            newest = next(journal.live(), None)
            source = newest.header.source if newest is not None else None
            self._source = source and Source(source.digest, migrated=False)
            self._timeline.warn_of_damage()
            if fingerprint is not None and fingerprint.missing and newest is None:
                names = ", ".join(fingerprint.missing)
                warnings.warn(f"the configuration has no {names}: misspelt? its absence is what is saved", CheckpointWarning, stacklevel=2)
            if save_on_signal and not read_only:
                self._listen(save_on_signal)
        except BaseException:
            self._finalizer()
            raise

    def _listen(self, wanted: OnSignal | Callable[[], tuple[int, T] | None] | bool) -> None:
        how = wanted if isinstance(wanted, OnSignal) else OnSignal(wanted if callable(wanted) else None)
        self._last_state = how.state
        self._guard = SignalGuard(how.signals, self._told_to_end)

    # --- saving ------------------------------------------------------------------------------------------------------

    def save(self, step: int, state: T, *, metrics: dict[str, Any] | None = None, meta: dict[str, Any] | None = None, force: bool = False) -> bool:
        """Save `state` as `step`; True when it is durable (with `durability="async"`: when it is encoded and will be).

        False when it is not due, was skipped because the writer is busy, or was not saved because of a warned error. `metrics` and `meta` are small
        plain data, read back without the state. `force` saves a step that is not above the newest, and with that retires every step
        from its own on; in the background it waits until that is durable.

        Raises `StepAlreadyExistsError`, `EncodeError` (what cannot be saved or would come back different, by path; `last_verified`
        is the last step that was compared), `LimitError`, `StorageError`, `ReplacedError`, `DurabilityError`.
        """
        started = time.perf_counter()
        step = step_number(step)
        with self._writing():
            self._surface()
            self._upkeep.surface()
            newest = self._timeline.head()
            retires = ((step, None),) if force else ()
            if newest is not None and step <= newest and not force:
                raise StepAlreadyExistsError(step, newest=newest)
            if newest is not None and not force and not self._due(step):
                return False
            if self._writer is not None and force:
                # Rare, and what it retires must be said by this very record: not beside others, and never replaced by a newer one.
                self._writer.drain()
            elif self._writer is not None and self._writer.full:
                if self._on_busy == "skip":
                    self._count(SaveStats(skipped=1))
                    return False
                if self._on_busy == "wait":
                    # Before the encode, so that no third message is held meanwhile.
                    self._writer.wait_for_room()
            began = time.perf_counter()
            # The drop-in walks and encodes states its own way.
            encoded = state if isinstance(state, Encoded) else self._codec.encode(state)
            if self._writer is None:
                return self._save_now(_Save(step, encoded, retires, metrics, meta, started), state)
            # What a run's header holds is copied, and refused here rather than in the background.
            save = _Save(step, encoded, retires, _copied(metrics, "metrics"), _copied(meta, "meta"), started)
            self._checker.saved(time.perf_counter() - began, "caller")
            due = force or self._checker.due("writer")
            # What must be compared before the state can change is waited for; not decoded here, for memory that two threads have had is
            # not given back by either.
            waits = force or self._checker.due_at_once()
            if self._round_trip == "always":
                began = time.perf_counter()
                save = save._replace(checked=self._checker.compare(state, encoded, "caller"), checked_seconds=time.perf_counter() - began)
            job = partial(self._append, save._replace(blocked=time.perf_counter() - started), state if due else _MISSING)
            try:
                self._timeline.newest, self._saved_at = step, time.monotonic()
                if self._writer.put(job):
                    self._count(SaveStats(replaced=1))
            except BaseException:
                # An interrupt: whether it is in the queue is not known. If it is, saving this step again retires it.
                self._timeline.newest = newest
                raise
            if waits:
                self._writer.drain()
                self._surface()
            return True

    def _save_now(self, save: _Save, state: T) -> bool:
        due = self._checker.due("caller") or (bool(save.retires) and self._round_trip != "never")
        try:
            self._append(save, state, due=due)
        except CheckpointError as error:
            if self._on_error == "raise" or not _is_passing(error):
                raise
            warnings.warn(f"step {save.step} was not saved: {error}", CheckpointWarning, stacklevel=3)
            return False
        self._saved_at = time.monotonic()
        return True

    def _append(self, save: _Save, state: Any, *, due: bool = True) -> None:
        """Put a save into the file, compared with the live state before if it is `due` and there is one.

        So is every base, and a save that retires the last step that is known to be readable. In the background the live state may have
        changed since, which shows; then, and where there is none, the save is read back at least.
        """
        where = "caller" if self._writer is None else "writer"
        checked, readable, checking = save.checked, save.checked, save.checked_seconds

        def check() -> None:
            nonlocal checked, readable, checking
            began = time.perf_counter()
            if state is not _MISSING:
                checked = self._checker.compare(state, save.encoded, where)
            if not checked:
                self._checker.read_back(save.encoded, where)
            readable = True
            checking += time.perf_counter() - began

        def vet(base: bool) -> None:
            if base and not readable and self._round_trip != "never":
                check()

        if due and not checked and state is not _MISSING:
            check()
        written, overrides = time.time_ns(), self._overrides
        retires = save.retires or self._timeline.retired_by(save.step)
        if retires:
            self._upkeep.forget()
        # From here to the acknowledgement, whatever interrupts it: what the file holds beyond the last one is not shown.
        self._timeline.unsure = True
        try:
            dropped = self._upkeep.retired_by(StepFacts(save.step, written, save.metrics))
            known = self._readable is not None and not any(first <= self._readable for first, _ in save.retires)
            if dropped and not readable and (not known or self._readable in dropped) and self._round_trip != "never":
                check()
            meta = {**(save.meta or {}), "resume_overrides": overrides} if overrides else save.meta
            before, appending = checking, time.perf_counter()
            self._adopt()
            appended = self._journal.append(
                save.encoded.message, step=save.step, has_ext=save.encoded.has_ext, retires=[*retires, *stretches(dropped)],
                metrics=save.metrics, meta=meta, config=self._fingerprint.saved() if self._fingerprint is not None else None,
                source=self._source, type_name=self._codec.type_name, schema=self._codec.schema, schema_version=self._loader.version,
                blocked=round(1e6 * self._last_stats.blocking_seconds), written=written, vet=vet, sync=self._fsync,
            )  # fmt: skip
        except BaseException:
            self._timeline.failed(bool(save.retires))
            self._upkeep.forget()
            raise
        now = time.perf_counter()
        self._checker.saved(now - appending - (checking - before), where)
        self._unchecked = None if readable else save.encoded
        self._timeline.saved(save.step, waited_for=self._writer is None)
        if readable:
            self._readable = save.step
        if checked:
            self._checker.verified = save.step
        if self._overrides is overrides:
            self._overrides = []
        stats = SaveStats(
            step=save.step, saves=1, bases=int(appended.base), checks=int(checked), flushes=appended.flushes,
            message_bytes=len(save.encoded.message), new_bytes=appended.new_bytes, written_bytes=appended.written_bytes,
            blocking_seconds=now - save.started if save.blocked is None else save.blocked, total_seconds=now - save.started,
            checked_seconds=checking,
        )  # fmt: skip
        self._count(stats)
        self._upkeep.saved()
        if self._on_save is not None:
            try:
                self._on_save(stats)
            except Exception as error:  # noqa: BLE001  (the step is saved, whatever a logger thinks of it)
                warnings.warn(f"on_save failed after step {save.step}: {error!r}", CheckpointWarning, stacklevel=2)

    def _adopt(self) -> None:
        """Make a run of the file of one checkpoint, where it is one."""
        if self._journal.single and self._journal.newest is not None:
            self._journal.adopt(self._timeline.step_of(self._journal.newest))

    def _count(self, stats: SaveStats) -> None:
        with self._counting:
            self._stats += stats
            if stats.saves:
                self._last_stats = stats

    # --- restoring ---------------------------------------------------------------------------------------------------

    def _accept(self, entry: Entry) -> None:
        """Refuse a state that was saved under a configuration of another structure; say what else is different."""
        if self._fingerprint is None:
            return
        saved = self._timeline.unpacked(entry.header.config)
        if not saved:
            fact = f"step {entry.header.step} of {self.path} was saved without a configuration: nothing says whether this one may go on from it"
            warnings.warn(fact, CheckpointWarning, stacklevel=3)
            return
        found = self._fingerprint.differences(saved)
        structural = [each for each in found if each.tier == "structural"]
        if structural and self._resume == "strict":
            raise ConfigMismatchError(found, step=entry.header.step, path=self.path)
        for tier, meaning in (("structural", "what was saved may make no sense with it"), ("decision", "the run goes on with the new value")):
            different = [each for each in found if each.tier == tier]
            if different:
                fact = f"{self.path}, step {entry.header.step}: the configuration has changed: {'; '.join(map(str, different))} ({meaning})"
                warnings.warn(fact, CheckpointWarning, stacklevel=3)
        self._overrides = [{"field": each.field, "saved": _said(each.saved), "current": _said(each.current), "tier": each.tier} for each in found]

    def _gone_back(self, step: int) -> None:
        if not self.read_only:
            self._timeline.newest = self._timeline.acknowledged = step
            self._timeline.unsure = True
            self._upkeep.forget()

    def latest_step(self) -> int | None:
        """The newest step, one that is still being saved included; None when there is none. After damage, the newest that is whole."""
        if self.read_only:
            return super().latest_step()
        self._usable()
        with self._quiet():
            return self._timeline.head()

    def next_step(self) -> int:
        """The step to go on with: the newest + 1, or `first_step` (0) when there is none."""
        newest = self.latest_step()
        return (self._first_step or 0) if newest is None else newest + 1

    def best_step(self) -> int | None:
        """The step of which `best_fn` says that it is the best (`best_mode`); the newest without it. None when there is none."""
        with self._looking():
            return self._upkeep.best()

    def should_save(self, step: int) -> bool:
        """Whether `save` would save this step, as `save_interval_steps` and `save_interval_seconds` have it: so that nothing is prepared in vain."""
        newest = self.latest_step()
        return newest is None or (step_number(step) > newest and self._due(step))

    def _due(self, step: int) -> bool:
        return (self._interval_steps is None or step % self._interval_steps == 0) and (
            self._interval_seconds is None or self._saved_at is None or time.monotonic() - self._saved_at >= self._interval_seconds
        )

    # --- the timeline ------------------------------------------------------------------------------------------------

    def delete(self, step: int) -> None:
        """Retire one step, durably. Raises `NotFoundError`, `StorageError`."""
        self._retire(step, lambda: (step, step))

    def rewind(self, step: int) -> None:
        """Make an older step the newest: those after it are off the timeline. Raises `NotFoundError`, `StorageError`."""
        self._retire(step, lambda: None if step == self._timeline.newest and not self._timeline.unsure else (step + 1, None))

    def _retire(self, step: int, steps: Callable[[], tuple[int, int | None] | None]) -> None:
        with self._writing():
            if self._writer is not None:
                self._writer.drain()
            self._surface()
            self._timeline.find(step_number(step))
            if (retired := steps()) is None:
                return
            self._adopt()
            try:
                self._journal.tombstone([retired], sync=self._fsync)
                if retired[1] is None:
                    self._timeline.unsure = False
                self._readable = None  # if it is one of these, nothing is known of the others
            finally:
                self._timeline.recount()
                self._upkeep.forget()

    def plan(self) -> Plan:
        """Which steps the policy keeps and drops, of those that are there, and why; nothing is changed. Raises `CorruptError`."""
        with self._looking():
            return self._upkeep.plan()

    def compact(self) -> Compaction | None:
        """Retire what the policy drops, and take out of the file what is retired; None when nothing of it would go.

        At every moment the file is the old one or the new one, each whole. Saves go on meanwhile, and wait only for the last moments;
        readers that have the old file open can go on reading it. What is kept keeps its step, time and metadata.

        Raises `CorruptError` when a record is damaged (nothing is changed; `fastckpt repair`), `StorageError`, `ReplacedError`,
        `DurabilityError`.
        """
        self._usable(write=True)
        if self._journal.single or self._journal.newest is None:
            return None
        prove(self._journal)  # before anything is retired, for what cannot be compacted is to stay as it is
        with self._writing():
            if self._writer is not None:
                self._writer.drain()
            self._surface()
            if dropped := self._upkeep.plan().drop:
                try:
                    self._journal.tombstone(stretches(dropped), sync=self._fsync)
                finally:
                    self._timeline.recount()
                    self._upkeep.forget()
        return self._upkeep.compact()

    # --- the background, and the end ---------------------------------------------------------------------------------

    @property
    def stats(self) -> SaveStats:
        """The sum over all saves of this manager."""
        return self._stats

    @property
    def last_stats(self) -> SaveStats:
        """Those of the last save that is in the file."""
        return self._last_stats

    def is_saving_in_progress(self) -> bool:
        """Whether the background has something left to do."""
        self._usable()
        return self._writer is not None and self._writer.busy

    def wait_until_finished(self) -> None:
        """Return when every accepted save is durable. Raises what the background could not do."""
        self._usable(background=True)
        if self._writer is not None:
            self._writer.drain()
        self.check_for_errors()

    def check_for_errors(self) -> None:
        """Raise what the background could not do, once; returns at once when there is nothing."""
        self._usable(background=True)
        with self._alone():
            self._surface()

    def close(self) -> None:
        """Finish what is in flight, check the last save, let the next writer in. Nothing in a forked child, whose manager it is not.

        Raises what the background could not do, and `EncodeError` when the last save cannot be read back; it is closed all the same.
        """
        if os.getpid() != self._pid or self._closed:
            return
        self._usable(background=True)
        with self._alone():
            if self._closed:
                return
            if self._writer is not None:
                self._writer.drain()
            self._closed = True
            self._finalizer.detach()
            if self._guard is not None:
                self._guard.release()
            try:
                self._surface()
                if self._unchecked is not None and self._round_trip != "never":
                    self._checker.read_back(self._unchecked)
            finally:
                try:
                    self._upkeep.close()
                    if self._writer is not None:
                        self._writer.stop()
                finally:
                    self._journal.close()

    def _told_to_end(self, ends: bool) -> None:
        """A signal came: save once more what there is to save, and close if the process `ends`."""
        if self._closed:
            return
        try:
            if self._writer is not None:
                self._writer.drain()  # so that no save is skipped for a busy one
            given = self._last_state() if self._last_state is not None else None
            newest = self.latest_step()
            if given is not None and (newest is None or step_number(given[0]) > newest):
                intervals, self._interval_steps, self._interval_seconds = (self._interval_steps, self._interval_seconds), None, None
                try:
                    self.save(*given)
                finally:
                    self._interval_steps, self._interval_seconds = intervals
            self.wait_until_finished()
        finally:
            if ends:
                self.close()

    def __enter__(self) -> CheckpointManager[T]:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except CheckpointError as failure:
            # What ended the block is the news; this goes with it.
            error.add_note(f"and closing the checkpoint manager failed: {failure}")
            warnings.warn(f"closing failed: {failure}", CheckpointWarning, stacklevel=2)

    def _surface(self) -> None:
        """Raise or warn of what the background could not do; then what was acknowledged is all there is."""
        if self._writer is None or not self._writer.failed:
            return
        self._writer.drain()
        errors = self._writer.take_errors()
        self._timeline.newest = self._timeline.acknowledged
        self._saved_at = None
        passing = [error for error in errors if self._on_error == "warn" and _is_passing(error)]
        for error in passing:
            warnings.warn(f"a step was not saved: {error}", CheckpointWarning, stacklevel=3)
        grave = [error for error in errors if error not in passing]
        if grave:
            for other in grave[1:]:
                grave[0].add_note(f"and later: {other}")
            raise grave[0]

    def _usable(self, *, write: bool = False, background: bool = False) -> None:
        """Refuse a closed manager, a forked child, and (`write`, `background`) the writer's own thread, which would wait for itself."""
        if os.getpid() != self._pid:
            raise StorageError("a forked child cannot use its parent's manager", path=self.path, remedy="open another one in the child")
        if self._closed:
            raise StorageError("the manager is closed", path=self.path, remedy="open the run again")
        if write and self.read_only:
            raise StorageError("opened read-only", path=self.path, remedy="open it without read_only")
        if (write or background) and self._writer is not None and self._writer.is_current_thread():
            raise CheckpointError("on_save runs in the writer's thread, which cannot save or wait", remedy="do it in the thread that saves")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One thread at a time. What must not wait for that lock (a forked child, the writer's thread) is refused before it is taken."""
        self._usable(write=True)
        with self._alone():
            self._usable(write=True)
            yield

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time, and not again in the same one: half of a save is no place for another one."""
        if self._saving.locked() and self._saver == threading.get_ident():
            fact = "called inside a save of the same thread (from a signal handler, or from on_save)"
            raise CheckpointError(fact, remedy="set a flag there, and save or close in the loop")
        with self._quiet(), self._saving:
            self._saver = threading.get_ident()
            yield

    def _quiet(self) -> AbstractContextManager[None]:
        """A stretch that `save_on_signal` does not interrupt."""
        return nullcontext() if self._guard is None else self._guard.busy()

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """For reading: what is in flight is waited for; a read-only manager looks at the file again, one thread at a time."""
        self._usable()
        with self._quiet():
            if self._writer is not None:
                self._writer.drain()
            if not self.read_only:
                yield
                return
            with self._reading:
                self._journal.refresh()
                yield


def _said(value: Any) -> Any:
    """A value of a configuration, for metadata that is read by people."""
    return repr(value) if value is ABSENT else value


def _copied(meta: dict[str, Any] | None, what: str) -> dict[str, Any] | None:
    return msgspec.msgpack.decode(pack_meta(meta, what), type=dict[str, Any]) if meta else None


def _is_passing(error: BaseException) -> bool:
    """Whether an error is the disk's and not the caller's: what `on_error="warn"` lets training go on after."""
    return isinstance(error, CheckpointError) and not isinstance(error, (EncodeError, StepAlreadyExistsError, LimitError))


def _abandoned(journal: Journal, writer: Writer | None, compactor: Writer, pid: int) -> None:
    """A manager was dropped without `close`: what is in flight is finished and the lock let go, without waiting for it."""
    if os.getpid() != pid:
        return
    compactor.abandon(lambda: None)  # which gives up when the journal is closed
    if writer is None:
        journal.close()
    else:
        writer.abandon(journal.close)
