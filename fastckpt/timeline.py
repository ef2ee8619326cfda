"""Which steps of a run there are, the newest first, and what to do where the file is damaged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from .codec import Codec, unpack_meta
from .container import FILE_HEADER_SIZE
from .errors import CheckpointError, CheckpointWarning, CorruptError, NotFoundError, SchemaError
from .journal import Entry, Journal

__all__ = ["LAST_STEP", "Found", "Timeline"]

LAST_STEP: Final = 2**63 - 1


class Found(NamedTuple):
    """A step that was read, and of what it takes the place (None: of nothing) and why."""

    step: int
    entry: Entry
    message: bytes
    instead_of: str | None
    reason: CorruptError | None


class Timeline:
    """The live steps of a journal.

    `newest` is the newest step that a save was promised, in flight included; `acknowledged` the newest that is known to be durable.
    After a save that failed, and after going back over damage (`unsure`), the file may hold states that are newer than that: they are
    not shown, and the next save retires them.
    """

    def __init__(self, journal: Journal, first_step: int | None) -> None:
        self.journal = journal
        self.path = journal.path
        self.newest: int | None = None
        self.acknowledged: int | None = None
        self.unsure = False
        self._first_step = first_step
        self._adopted: int | None = None
        if not journal.single:
            self.recount()

    # --- the newest --------------------------------------------------------------------------------------------------

    def recount(self) -> None:
        """Take from the file what is the newest."""
        self.newest = self.acknowledged = next((step for step, _ in self.live()), None)

    def head(self) -> int | None:
        """The newest step, in flight included. Raises `SchemaError` for a file of one checkpoint that says no step."""
        if self.journal.single and self.newest is None and self.journal.newest is not None:
            self.newest = self.acknowledged = self.step_of(self.journal.newest)
        return self.newest

    def retired_by(self, step: int) -> tuple[tuple[int, int | None], ...]:
        """What a save of `step` is to retire: states newer than the last acknowledged one, and its own where that is there already."""
        if self.acknowledged is not None and step <= self.acknowledged:
            return ((step, None),)
        if not self.unsure:
            return ()
        first = 0 if self.acknowledged is None else self.acknowledged + 1
        entry = next(self.journal.live(), None)
        return ((first, None),) if entry is not None and (entry.header.step or 0) >= first else ()

    def saved(self, step: int, *, waited_for: bool) -> None:
        """A step is durable; the newest besides, unless others may have been promised meanwhile. One statement: an interrupt finds all or nothing."""
        self.newest, self.acknowledged, self.unsure = step if waited_for else self.newest, step, False

    def failed(self, forced: bool) -> None:
        """A save failed: the file may hold it, and after a forced one the steps that it retires are gone then."""
        self.unsure = True
        if forced:
            with suppress(CheckpointError):  # the save's own error is the news
                entry = next(self.journal.live(), None)
                step = None if entry is None else entry.header.step
                if step is None or self.acknowledged is None or step < self.acknowledged:
                    self.newest = self.acknowledged = step

    # --- the steps ---------------------------------------------------------------------------------------------------

    def live(self) -> Iterator[tuple[int, Entry]]:
        """Steps and entries that can be restored, newest first."""
        lowest: int | None = None
        for entry in self.journal.live():
            step = self.step_of(entry)
            if step is None or (self.unsure and (self.acknowledged is None or step > self.acknowledged)):
                continue
            if lowest is not None and step >= lowest:
                # A run's live steps rise. This one does not, so the record that retired it is lost, and with it what else that
                # retired: what lies before may be off the timeline, and is not taken for a step of it.
                return
            lowest = step
            yield step, entry

    def step_of(self, entry: Entry) -> Any:
        """The step of a record; of a file of one checkpoint what it says, or what it was said to be."""
        step = entry.header.step
        if not self.journal.single:
            return step
        if self._adopted is None:
            if step is None or step < 0:
                plain = Codec().decode(self.journal.read(entry), entry.header.ext, path=self.path)
                progress = plain.get("progress") if isinstance(plain, dict) else None
                step = progress.get("global_step") if isinstance(progress, dict) else None
            self._adopted = step if step.__class__ is int and 0 <= step <= LAST_STEP else self._first_step
        if self._adopted is None:
            fact = "the file holds one checkpoint and does not say of which step"
            raise SchemaError(fact, path=self.path, where="$.progress.global_step", remedy="say which step it is: first_step=")
        return self._adopted

    def find(self, step: int | None) -> Entry:
        """The entry of a live step (the newest for None). Raises `NotFoundError` naming its neighbours, `CorruptError`."""
        above: int | None = None
        for found, entry in self.live():
            if step is None or found == step:
                return entry
            if found < step:
                raise self.absent(step, found, above)
            above = found
        raise self.absent(step, None, above)

    def read(self, step: int | None, *, fallback: bool) -> Found | None:
        """The message of a step, of the newest for None; with `fallback` of the newest before it that can be read; None in an empty run.

        Raises `CorruptError` with the newest step that can be read, `NotFoundError`.
        """
        reason = self._damage_at_end() if step is None else None
        asked, above = step, None
        for found, entry in self.live():
            if asked is not None and found > asked:
                above = found
                continue
            if asked is not None and found < asked and reason is None:
                try:
                    missing = self.absent(asked, found, above)
                except CorruptError as error:
                    if not fallback:
                        raise _corrupt(error, found) from None
                    reason = error  # it may have been in what is damaged: this is the newest before it
                else:
                    raise missing
            try:
                message = self.journal.read(entry)
            except CorruptError as error:
                reason, asked = reason or error, found if asked is None else asked
                continue
            if reason is None:
                return Found(found, entry, message, None, None)
            if not fallback:
                raise _corrupt(reason, found)
            return Found(found, entry, message, "the newest step" if asked is None else f"step {asked}", reason)
        if reason is not None:
            raise _corrupt(reason, None)
        if step is not None:
            raise self.absent(step, None, above)
        self._require_no_gap()
        return None

    def absent(self, step: int | None, below: int | None = None, above: int | None = None) -> NotFoundError:
        """The error for a step that is not there. Raises `CorruptError` where damage may be why."""
        self._require_no_gap()
        if step is None or (below is None and above is None):
            return NotFoundError(self.path, fact="the run has no step yet", remedy="save one first, or give `restore` a default")
        nearest = " and ".join(str(other) for other in (below, above) if other is not None)
        return NotFoundError(self.path, fact=f"the run has no step {step}", remedy=f"the nearest: {nearest}")

    def unpacked(self, raw: msgspec.Raw) -> dict[str, Any]:
        """Metadata or metrics of a header."""
        return unpack_meta(raw, path=self.path)

    # --- damage ------------------------------------------------------------------------------------------------------

    def warn_of_damage(self) -> None:
        """Warn of what opening found; a reader beside a writer sees half a record as a matter of course."""
        damage, entry = self.journal.damage, self.journal.newest
        if damage is None or (damage.torn and self.journal.read_only):
            return
        if entry is not None and entry.offset == damage.offset:
            where = f"step {entry.header.step} cannot be read"
        else:
            where = "what follows is lost" if entry is None else f"what follows step {self.newest} is lost"
            if damage.torn:
                where += ", as after a crash in the middle of a save"
        warnings.warn(f"{self.path} is damaged at byte {damage.offset} ({damage.fact}): {where}", CheckpointWarning, stacklevel=4)

    def _damage_at_end(self) -> CorruptError | None:
        """What is wrong with the end of the file, unless that is a crash's doing or was written past since."""
        damage, newest = self.journal.damage, self.journal.newest
        if damage is None or damage.torn or (newest is not None and newest.offset >= damage.offset):
            return None  # of a whole record that does not verify, reading it tells
        return CorruptError(damage.fact, path=self.path, offset=damage.offset)

    def _require_no_gap(self) -> None:
        """Before it is said that something is not there: raise `CorruptError` if it may have been in what is no record."""
        reason = self._damage_at_end()
        end: int | None = None
        for entry in self.journal.entries():
            if end is not None and entry.offset + entry.length != end:
                break
            end = entry.offset
        if reason is None and end not in (None, FILE_HEADER_SIZE):
            reason = CorruptError("there may have been more steps, in what is no record before this", path=self.path, offset=end)
        if reason is not None:
            raise _corrupt(reason, next((step for step, _ in self.live()), None))


def _corrupt(error: CorruptError, newest_good: int | None) -> CorruptError:
    """The error, with the newest step that can be read and how to get at it."""
    error.__dict__["newest_good"] = newest_good
    repair = "`fastckpt repair` keeps every step that can be read"
    error.remedy = repair if newest_good is None else f"restore(fallback=True) goes back to step {newest_good}; {repair}"
    return error
