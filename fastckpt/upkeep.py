"""What a run keeps of its steps, and its file within bounds: the policy after every save, compaction in the background."""

from __future__ import annotations

import dataclasses
import math
import threading
import warnings
from collections.abc import Iterable
from typing import Final, NamedTuple

from .compaction import Compaction, compact, estimate
from .errors import CheckpointError, CheckpointWarning
from .journal import Journal
from .retention import Keeper, Plan, Retention, StepFacts, best, plan
from .timeline import Timeline
from .writer import Writer

__all__ = ["MAX_FILE_BYTES", "Upkeep", "stretches"]

#: How large a run's file may become where nothing else says what to keep: then the oldest steps are retired, down to half.
MAX_FILE_BYTES: Final = 1 << 30
_WARN_AT = 0.8
# A smaller file is not looked at: what a compaction could free is not worth its flushes.
_LEAST: Final = 1 << 20


def stretches(steps: Iterable[int]) -> list[tuple[int, int | None]]:
    """Steps as ranges, both ends included, those in a row as one."""
    found: list[tuple[int, int | None]] = []
    for step in sorted(set(steps)):
        if found and found[-1][1] == step - 1:
            found[-1] = found[-1][0], step
        else:
            found.append((step, step))
    return found


class _Proposal(NamedTuple):
    """Steps that the bound asks to retire, as long as the timeline is the one that they were found on."""

    timeline: int
    steps: list[int]


class Upkeep:
    """Says what each save retires, and compacts when the file has doubled since the last look at it.

    `policy` says what is kept. `bound` is how large the file may become (bytes; None: as large as it likes); above it the oldest steps
    are retired until the newest half of it is left, but not those that the policy keeps for another reason than being new. Both are done
    by the saves themselves: the background only finds out, for between two saves the run may have gone back. Compaction runs in
    `worker`, and a save waits only for its last moments. What fails there is a `CheckpointWarning` at the next save, for the steps are as
    safe as before.

    `retired_by` and `saved` are called by the thread that appends, one at a time.
    """

    def __init__(self, journal: Journal, timeline: Timeline, policy: Retention, *, bound: int | None, fsync: bool, worker: Writer) -> None:
        self.policy, self.bound = dataclasses.replace(policy, on_error=self._no_metric), bound
        self._journal, self._timeline, self._fsync, self._worker = journal, timeline, fsync, worker
        self._compacting = threading.Lock()
        self._cancelled = self._near = self._told_of_metric = self._adding = False
        self._notes: list[str] = []
        self._keeper: Keeper | None = None
        self._generation = 0  # of the timeline, as far as it has only grown
        self._proposal: _Proposal | None = None
        self._look_at = min(_LEAST if self.policy else math.inf, math.inf if bound is None else bound)

    # --- what to keep ------------------------------------------------------------------------------------------------

    def retired_by(self, facts: StepFacts) -> list[int]:
        """The steps that a save of a step retires, besides what comes after that one."""
        if self._adding:
            self.forget()  # the last save was refused or interrupted: whether its step is there is looked up
        self._adding = True
        dropped: list[int] = []
        proposal, self._proposal = self._proposal, None
        if proposal is not None and proposal.timeline == self._generation:
            dropped = [step for step in proposal.steps if step < facts.step]
            self.forget()
        if self.policy:
            if self._keeper is None:
                gone = set(dropped)
                self._keeper = Keeper((each for each in self._facts() if each.step < facts.step and each.step not in gone), self.policy)
                dropped += self._keeper.dropped
            dropped += self._keeper.add(facts)
        return dropped

    def saved(self) -> None:
        """The save is in the file, and what it retired is: the file's bounds are looked after."""
        self._adding, size = False, self._journal.size
        if self.bound is not None and (size > _WARN_AT * self.bound) != self._near:
            self._near = not self._near
            if self._near:
                fact = f"{self._journal.path} has reached {size / self.bound:.0%} of max_file_bytes={self.bound:,}"
                self._notes.append(f"{fact}; above that the oldest steps are retired, down to half: say what to keep (max_to_keep=), or raise it")
        if size >= self._look_at and not self._worker.busy:
            self._look_at = 2 * size  # until it is known better
            self._worker.put(self._look)

    def forget(self) -> None:
        """Steps went by other ways than saving, or a save failed: what is there is looked up again."""
        self._generation += 1
        self._adding, self._keeper, self._proposal = False, None, None

    def _no_metric(self, error: Exception, step: int) -> None:
        if not self._told_of_metric:
            self._told_of_metric = True
            self._notes.append(f"best_fn failed for step {step}, which is kept as one without the metric: {error!r}")

    def _facts(self) -> list[StepFacts]:
        unpacked = self._timeline.unpacked
        return [StepFacts(step, entry.header.time, unpacked(entry.header.metrics)) for step, entry in self._timeline.live()][::-1]

    def plan(self) -> Plan:
        """What the policy says of the steps that are there."""
        return plan(self._facts(), self.policy)

    def best(self) -> int | None:
        """The best step, as the policy has it."""
        return best(self._facts(), self.policy)

    def surface(self) -> None:
        """Warn of what the background found, or could not do."""
        for error in self._worker.take_errors() if self._worker.failed else ():
            self._notes.append(f"{self._journal.path} was not compacted: {error if isinstance(error, CheckpointError) else repr(error)}")
        while self._notes:
            warnings.warn(self._notes.pop(0), CheckpointWarning, stacklevel=4)

    # --- the file ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """In the background: what the bound asks for is proposed to the next save, or the file compacted if that leaves much less of it."""
        if self.bound is not None and self._journal.size > self.bound and self._propose(self.bound // 2):
            self._look_at = 0  # as soon as the next save has retired them
            return
        with self._compacting:
            left, size = estimate(self._journal, cancelled=self._given_up), self._journal.size
            if left <= size // 2 or (self.bound is not None and size > self.bound):
                done = compact(self._journal, cancelled=self._given_up, fsync=self._fsync)
                left = left if done is None else done.after
        by_policy = max(_LEAST, 2 * left) if self.policy else math.inf
        self._look_at = min(by_policy, math.inf if self.bound is None else max(self.bound, 1.1 * left))

    def _given_up(self) -> bool:
        return self._cancelled

    def _propose(self, keep_bytes: int) -> bool:
        """Whether there are steps to retire until the newest `keep_bytes` of the file are left."""
        generation, facts, end = self._generation, list[StepFacts](), 0
        old: dict[int, int] = {}  # their bytes by step
        for step, entry in self._timeline.live():
            if self._cancelled:
                return False
            end = end or entry.offset + entry.length
            facts.append(StepFacts(step, entry.header.time, self._timeline.unpacked(entry.header.metrics)))
            if end - entry.offset > keep_bytes and len(facts) > 1:
                old[step] = entry.length
        wanted = self.policy.keep_period, self.policy.keep_time_interval, self.policy.best_fn
        if any(wanted):
            kept = set(plan(facts, dataclasses.replace(self.policy, max_to_keep=1)).keep)
            old = {step: length for step, length in old.items() if step not in kept}
        # Once it is done little is left to retire, though the file is as large as before: then it is compacted.
        worth = sum(old.values()) > keep_bytes // 4
        self._proposal = _Proposal(generation, list(old)) if worth else None
        return worth

    def compact(self) -> Compaction | None:
        """Compact now, waited for; None where there is nothing to drop."""
        with self._compacting:
            return compact(self._journal, fsync=self._fsync)

    def close(self) -> None:
        """Give up what is being compacted; the file stays as it is."""
        self._cancelled = True
        self._worker.stop()
        self.surface()
