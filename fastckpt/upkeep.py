"""What a run keeps of its steps, and its file within bounds: the policy after every save, compaction in the background."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Final

from .compaction import Compaction, compact, estimate
from .errors import CheckpointError, CheckpointWarning
from .journal import Journal
from .retention import Plan, Retention, StepFacts, best, plan
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


class Upkeep:
    """Retires what `policy` drops, with each save, and compacts when the file has doubled since the last look at it.

    `bound` is how large the file may become (bytes; None: as large as it likes); above it the oldest steps are retired until the newest
    half of it is left. Compaction runs in a thread of its own, which the first one starts, and a save waits only for its last moments.
    What fails there is a `CheckpointWarning`, for the steps are as safe as before.

    `retired_by` and `saved` are called by the thread that appends, one at a time.
    """

    def __init__(self, journal: Journal, timeline: Timeline, policy: Retention, *, bound: int | None, fsync: bool, worker: Writer) -> None:
        self.policy, self.bound = policy, bound
        self._journal, self._timeline, self._fsync = journal, timeline, fsync
        self._worker = worker
        self._cancelled = self._warned = False
        self._plan: Plan | None = None
        self._next: Plan | None = None
        self._look_at = _LEAST

    # --- what to keep ------------------------------------------------------------------------------------------------

    def retired_by(self, facts: StepFacts) -> list[tuple[int, int | None]]:
        """What a save of a step retires besides what comes after that."""
        self._next = None
        if not self.policy:
            return []
        if self._plan is None:
            self._plan = plan([each for each in self._facts() if each.step < facts.step], self.policy)
        self._next = plan([facts], self.policy, after=self._plan)
        return stretches([*self._plan.drop, *self._next.drop])

    def saved(self) -> None:
        """The save is in the file; its bounds are looked after."""
        if self._next is not None:
            self._plan = self._next
        self._tend()

    def forget(self) -> None:
        """Steps went by other ways than saving: what is there is looked up again."""
        self._plan = self._next = None

    def _facts(self) -> list[StepFacts]:
        unpacked = self._timeline.unpacked
        return [StepFacts(step, entry.header.time, unpacked(entry.header.metrics)) for step, entry in self._timeline.live()][::-1]

    def plan(self) -> Plan:
        """What the policy says of the steps that are there."""
        return plan(self._facts(), self.policy)

    def best(self) -> int | None:
        """The best step, as the policy has it."""
        return best(self._facts(), self.policy)

    # --- the file ----------------------------------------------------------------------------------------------------

    def _tend(self) -> None:
        size = self._journal.size
        if self.bound is not None and size > _WARN_AT * self.bound and not self._warned:
            self._warned = True
            fact = f"{self._journal.path} has reached {size / self.bound:.0%} of max_file_bytes={self.bound:,}"
            remedy = "above that the oldest steps are retired, down to half; say what to keep (max_to_keep=), or raise it"
            warnings.warn(f"{fact}; {remedy}", CheckpointWarning, stacklevel=6)
        beyond = self.bound is not None and size > self.bound
        if (beyond or (self.policy and size >= self._look_at)) and not self._worker.busy:
            self._look_at = 2 * size  # until it is known better
            self._worker.put(self._look)
        self.surface()

    def surface(self) -> None:
        """Warn of what the background could not do."""
        if self._worker.failed:
            for error in self._worker.take_errors():
                if not isinstance(error, CheckpointError):
                    raise error
                warnings.warn(f"{self._journal.path} was not compacted: {error}", CheckpointWarning, stacklevel=6)

    def _look(self) -> None:
        """In the background: what the bound asks for is retired, and the file compacted if that leaves much less of it."""
        if self.bound is not None and self._journal.size > self.bound:
            self._retire_oldest(self.bound // 2)
        left, size = estimate(self._journal), self._journal.size
        if left <= size // 2 or (self.bound is not None and size > self.bound):
            done = compact(self._journal, cancelled=lambda: self._cancelled, fsync=self._fsync)
            left = left if done is None else done.after
        self._look_at = max(_LEAST, 2 * left)

    def _retire_oldest(self, keep_bytes: int) -> None:
        oldest, end = None, None
        for step, entry in self._timeline.live():
            end = end or entry.offset + entry.length
            if oldest is not None and end - entry.offset > keep_bytes:
                self._journal.tombstone([(0, step)], sync=self._fsync)
                self._warned = False
                return
            oldest = step

    def compact(self) -> Compaction | None:
        """Compact now, waited for; None where there is nothing to drop."""
        self._worker.drain()
        self.surface()
        return compact(self._journal, fsync=self._fsync)

    def close(self) -> None:
        """Give up what is being compacted; the file stays as it is."""
        self._cancelled = True
        self._worker.stop()
        self.surface()
