"""Which steps of a run to keep: a pure function of what is known of each step, which says why. No disk, no clock."""

from __future__ import annotations

import dataclasses
import datetime as dt
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

__all__ = ["Keeper", "Plan", "Retention", "StepFacts", "best", "plan"]


class StepFacts(NamedTuple):
    """What retention looks at of one step: its number, when it was saved (nanoseconds), and its metrics (None or empty: none)."""

    step: int
    time: int = 0
    metrics: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention:
    """What to keep of a run. `max_to_keep` steps; the newest ones, or with `best_fn` the best ones; None keeps every step.

    The newest step is kept whatever the rest says, for the run must be able to go on. Kept besides are: every step that `keep_period`
    divides; with `keep_time_interval` (a timedelta, or seconds) the first step and from then on each that was saved at least so long
    after the last one kept for this; and with `best_fn` the steps that have not the metric.

    `best_fn` is the name of a metric, or a function of the metrics that returns a number; a `KeyError` or None: this step has no such
    metric. `best_mode` says whether the largest or the smallest is best; NaN is the worst, and of equal ones the newer is better.
    `on_error` is called with the error and the step where `best_fn` fails otherwise or gives no number, and the step counts as one
    without the metric; without it such an error comes through.

    Raises `ValueError` naming the option. False in a condition when it keeps everything.
    """

    max_to_keep: int | None = None
    keep_period: int | None = None
    keep_time_interval: dt.timedelta | float | None = None
    best_fn: Callable[[dict[str, Any]], float] | str | None = None
    best_mode: Literal["max", "min"] = "max"
    on_error: Callable[[Exception, int], object] | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("max_to_keep", "keep_period"):
            number = getattr(self, name)
            if number is not None and (type(number) is not int or number < 1):
                raise ValueError(f"{name} is None or an int from 1 on, got {number!r}")
        interval = self.keep_time_interval
        if interval is not None and (isinstance(interval, bool) or not isinstance(interval, (dt.timedelta, int, float))):
            raise ValueError(f"keep_time_interval is None, a timedelta or seconds, got {interval!r}")
        if interval is not None and not 0 < _seconds(interval) < math.inf:
            raise ValueError(f"keep_time_interval is longer than no time and finite, got {interval!r}")
        if not (self.best_fn is None or isinstance(self.best_fn, str) or callable(self.best_fn)):
            raise ValueError(f"best_fn is None, the name of a metric or a function of the metrics, got {self.best_fn!r}")
        if self.best_mode not in ("max", "min"):
            raise ValueError(f"best_mode is 'max' or 'min', got {self.best_mode!r}")

    def __bool__(self) -> bool:
        return self.max_to_keep is not None

    def value(self, facts: StepFacts) -> float | None:
        """What `best_fn` says of a step; None where it has not the metric.

        Without `on_error`, raises `TypeError` where that is no number, and what else than `KeyError` `best_fn` raises.
        """
        if self.best_fn is None or not facts.metrics:
            return None
        try:
            return self._value(facts)
        except Exception as error:
            if self.on_error is None:
                raise
            self.on_error(error, facts.step)
            return None

    def _value(self, facts: StepFacts) -> float | None:
        metrics = dict(facts.metrics or {})
        if isinstance(self.best_fn, str):
            found, what = metrics.get(self.best_fn), f"the metric {self.best_fn!r}"
        else:
            assert self.best_fn is not None
            try:
                found, what = self.best_fn(metrics), "what best_fn returns"
            except KeyError:
                return None
        # A number of NumPy's is no float to isinstance, but has its method; text and containers have not.
        if found is None:
            return None
        if not hasattr(found, "__float__"):
            raise TypeError(f"{what} is a number, got {found!r} for step {facts.step}")
        try:
            return float(found)
        except OverflowError:  # an int beyond every float
            return math.inf if found > 0 else -math.inf


class Plan(NamedTuple):
    """What to keep and what to drop, in order of the steps, and for each of them the reasons."""

    keep: list[int]
    drop: list[int]
    reasons: dict[int, list[str]]


class _Candidate(NamedTuple):
    """A step, and the reasons that will always keep it."""

    step: int
    time: int
    value: float | None
    lasting: tuple[str, ...]
    on_interval: bool


def plan(steps: Iterable[StepFacts], policy: Retention) -> Plan:
    """Which of `steps`, in any order, `policy` keeps, and why.

    Raises `ValueError` for a step twice; and where the policy has no `on_error`, `TypeError` for a metric that is no number, and what
    else than `KeyError` `best_fn` raises.
    """
    candidates: list[_Candidate] = []
    since: int | None = None
    for facts in sorted(steps, key=lambda facts: facts.step):
        if candidates and facts.step == candidates[-1].step:
            raise ValueError(f"step {facts.step} is there twice")
        candidates.append(_candidate(facts, policy, since))
        since = facts.time if candidates[-1].on_interval else since
    counted, label = _counted(candidates, policy)
    result = Plan([], [], {})
    for each in candidates:
        reasons = ["newest"] if each is candidates[-1] else []
        if each.step in counted and label != "newest":
            reasons.append(label + _value_text(each.value, policy))
        reasons.extend(each.lasting)
        (result.keep if reasons else result.drop).append(each.step)
        result.reasons[each.step] = reasons or [f"not {label}{_value_text(each.value, policy)}"]
    return result


class Keeper:
    """`plan` for a run that grows: what each new step puts out, at a cost that does not grow with the run.

    `steps` are those that are there, as they are kept; what the policy drops of them is `dropped`. All in all the result is that of `plan`
    over all of them, as long as steps are only added at the end: after `delete` or `rewind` there must be a new keeper.
    """

    def __init__(self, steps: Iterable[StepFacts], policy: Retention) -> None:
        self._policy = policy
        self._newest: _Candidate | None = None
        self._since: int | None = None  # the time of the last step that was kept for the interval
        # The steps that `max_to_keep` counts: the newest in order, or the best as a heap, the worst first.
        self._counted: deque[_Candidate] = deque()
        self._best: list[tuple[tuple[bool, float], int, _Candidate]] = []
        self.dropped: list[int] = []
        for facts in sorted(steps, key=lambda facts: facts.step):
            self.dropped += self.add(facts)

    def add(self, facts: StepFacts) -> list[int]:
        """The steps that are dropped now that this one is there. Raises `ValueError` for one that is not above the newest."""
        before = self._newest
        if before is not None and facts.step <= before.step:
            raise ValueError(f"step {facts.step} does not come after step {before.step}")
        new = _candidate(facts, self._policy, self._since)
        # All or nothing: up to here what `best_fn` raises has changed nothing.
        self._newest, self._since = new, facts.time if new.on_interval else self._since
        if self._policy.max_to_keep is None:
            return []
        if self._policy.best_fn is None:
            self._counted.append(new)
            out = [self._counted.popleft()] if len(self._counted) > self._policy.max_to_keep else []
            return [each.step for each in out if not each.lasting]
        # The newest was kept for that alone if it is not among the best.
        out = [] if before is None or self._is_among_best(before) else [before]
        if new.value is not None:
            heapq.heappush(self._best, (_rank(new.value, self._policy), new.step, new))
            if len(self._best) > self._policy.max_to_keep:
                out.append(heapq.heappop(self._best)[2])
        return sorted({each.step for each in out if each is not new and not each.lasting})

    def _is_among_best(self, candidate: _Candidate) -> bool:
        if candidate.value is None or not self._best:
            return False
        return len(self._best) < (self._policy.max_to_keep or 0) or (_rank(candidate.value, self._policy), candidate.step) >= self._best[0][:2]


def best(steps: Iterable[StepFacts], policy: Retention) -> int | None:
    """The best of `steps` by `best_fn`; None where none has the metric. Without `best_fn` the newest, as in Orbax."""
    if policy.best_fn is None:
        return max((facts.step for facts in steps), default=None)
    ranked = [(_rank(value, policy), facts.step) for facts in steps if (value := policy.value(facts)) is not None]
    return max(ranked)[1] if ranked else None


def _candidate(facts: StepFacts, policy: Retention, since: int | None) -> _Candidate:
    lasting: list[str] = []
    if policy.max_to_keep is None:
        lasting.append("every step is kept")
    if policy.keep_period is not None and facts.step % policy.keep_period == 0:
        lasting.append(f"a multiple of {policy.keep_period}")
    on_interval = False
    if policy.keep_time_interval is not None:
        seconds = _seconds(policy.keep_time_interval)
        # By how far apart they are: after a clock was set back, nothing would be kept until it is past the old time again.
        on_interval = since is None or abs(facts.time - since) >= seconds * 1e9
        if on_interval:
            lasting.append("the first step" if since is None else f"the first after {seconds:g} s")
    value = policy.value(facts)
    if policy.best_fn is not None and value is None:
        lasting.append(f"no metric {policy.best_fn!r}" if isinstance(policy.best_fn, str) else "no metric for best_fn")
    return _Candidate(facts.step, facts.time, value, tuple(lasting), on_interval)


def _counted(candidates: list[_Candidate], policy: Retention) -> tuple[set[int], str]:
    """The steps that `max_to_keep` counts, and what one of them is."""
    count = policy.max_to_keep
    if count is None:
        return set(), "newest"
    if policy.best_fn is None:
        return {each.step for each in candidates[-count:]}, "newest" if count == 1 else f"one of the {count} newest"
    ranked = sorted((_rank(each.value, policy), each.step) for each in candidates if each.value is not None)
    return {step for _, step in ranked[-count:]}, "the best" if count == 1 else f"one of the {count} best"


def _rank(value: float, policy: Retention) -> tuple[bool, float]:
    """Larger is better; NaN, which no order has a place for, is worse than the infinitely bad."""
    if math.isnan(value):
        return False, 0.0
    return True, value if policy.best_mode == "max" else -value


def _value_text(value: float | None, policy: Retention) -> str:
    if value is None:
        return ""
    return f" ({policy.best_fn} {value:g})" if isinstance(policy.best_fn, str) else f" ({value:g})"


def _seconds(interval: dt.timedelta | float) -> float:
    return interval.total_seconds() if isinstance(interval, dt.timedelta) else float(interval)
