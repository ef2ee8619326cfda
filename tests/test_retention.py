"""Retention: which steps are kept and which dropped, and why; and that planning after every save says the same as planning once."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastckpt.retention import Keeper, Plan, Retention, StepFacts, best, plan

MINUTE = 60 * 10**9


def steps(*numbers: int, metrics: dict[int, dict[str, Any] | None] | None = None, minutes: int = 1) -> list[StepFacts]:
    """The facts of these steps, of which each was saved `minutes` times its number after the start."""
    return [StepFacts(number, number * minutes * MINUTE, (metrics or {}).get(number)) for number in numbers]


def with_metric(*values: float | None, name: str = "acc") -> list[StepFacts]:
    """Steps 0, 1, 2, … with these values of a metric; None: a step without metrics."""
    return [StepFacts(number, number * MINUTE, None if value is None else {name: value}) for number, value in enumerate(values)]


def table(made: Plan) -> list[str]:
    """A plan as lines to read: `+` what is kept, `-` what is dropped, and why."""
    assert sorted([*made.keep, *made.drop]) == list(made.reasons)
    return [f"{'+' if step in made.keep else '-'} {step} {', '.join(reasons)}" for step, reasons in made.reasons.items()]


# What is kept, and why -------------------------------------------------------------------------------------------------


def test_the_newest_are_kept() -> None:
    """`max_to_keep` keeps the newest steps, in whatever order they are given."""
    assert table(plan(steps(7, 3, 9, 5), Retention(max_to_keep=2))) == [
        "- 3 not one of the 2 newest",
        "- 5 not one of the 2 newest",
        "+ 7 one of the 2 newest",
        "+ 9 newest, one of the 2 newest",
    ]
    assert table(plan(steps(1, 2), Retention(max_to_keep=1))) == ["- 1 not newest", "+ 2 newest"]


def test_a_period_is_kept_besides() -> None:
    """Steps that `keep_period` divides are kept besides, and still have their place among the newest."""
    assert table(plan(steps(0, 9, 10, 11, 12), Retention(max_to_keep=2, keep_period=10))) == [
        "+ 0 a multiple of 10",
        "- 9 not one of the 2 newest",
        "+ 10 a multiple of 10",
        "+ 11 one of the 2 newest",
        "+ 12 newest, one of the 2 newest",
    ]
    assert plan(steps(9, 10), Retention(max_to_keep=2, keep_period=10)).keep == [9, 10]
    assert plan(steps(8, 9, 10), Retention(max_to_keep=2, keep_period=10)).keep == [9, 10]


@pytest.mark.parametrize("interval", [1800, 1800.0, dt.timedelta(minutes=30)], ids=repr)
def test_an_interval_is_kept_besides(interval: Any) -> None:
    """Of the steps that are older, the first is kept and each that was saved at least an interval after the last one kept so."""
    made = plan(steps(1, 2, 3, 4, 5, 6, 7, 8, minutes=10), Retention(max_to_keep=1, keep_time_interval=interval))
    assert table(made) == [
        "+ 1 the first step",
        "- 2 not newest",
        "- 3 not newest",
        "+ 4 the first after 1800 s",
        "- 5 not newest",
        "- 6 not newest",
        "+ 7 the first after 1800 s",
        "+ 8 newest",
    ]


def test_a_clock_that_is_set_back_does_not_end_the_intervals() -> None:
    """After a clock was set back by a day, a step an interval is kept as before, not only from the old time on."""
    times = [0, 10, 20, 30, -1440, -1430, -1420, -1410, -1400]
    facts = [StepFacts(number, minutes * MINUTE) for number, minutes in enumerate(times)]
    assert plan(facts, Retention(max_to_keep=1, keep_time_interval=1800)).keep == [0, 3, 4, 7, 8]


@pytest.mark.parametrize("best_fn", ["acc", lambda metrics: metrics["acc"]], ids=["a name", "a function"])
def test_the_best_are_kept_and_the_newest(best_fn: Any) -> None:
    """With `best_fn`, `max_to_keep` counts the best; the newest is kept besides, and a step without the metric is not lost in silence."""
    made = plan(with_metric(0.5, 0.9, None, 0.8, 0.7), Retention(max_to_keep=2, best_fn=best_fn))
    assert (made.keep, made.drop) == ([1, 2, 3, 4], [0])
    if best_fn == "acc":
        assert table(made) == [
            "- 0 not one of the 2 best (acc 0.5)",
            "+ 1 one of the 2 best (acc 0.9)",
            "+ 2 no metric 'acc'",
            "+ 3 one of the 2 best (acc 0.8)",
            "+ 4 newest",
        ]
    else:
        assert made.reasons[2] == ["no metric for best_fn"]
        assert made.reasons[3] == ["one of the 2 best (0.8)"]


def test_the_smallest_can_be_best() -> None:
    """`best_mode="min"` keeps the smallest, as a loss wants it."""
    made = plan(with_metric(0.5, 0.1, 0.3, 0.9), Retention(max_to_keep=1, best_fn="acc", best_mode="min"))
    assert table(made) == ["- 0 not the best (acc 0.5)", "+ 1 the best (acc 0.1)", "- 2 not the best (acc 0.3)", "+ 3 newest"]


@pytest.mark.parametrize(("mode", "worst"), [("max", -math.inf), ("min", math.inf)])
def test_nan_is_the_worst(mode: Any, worst: float) -> None:
    """NaN is worse than the infinitely bad, whichever is best; and a value all the same, when there is no other."""
    policy = Retention(max_to_keep=1, best_fn="acc", best_mode=mode)
    for values in ((math.nan, worst), (worst, math.nan)):
        assert best(with_metric(*values), policy) == values.index(worst)
        assert plan([*with_metric(*values), StepFacts(9, metrics={"acc": math.nan})], policy).keep == [values.index(worst), 9]
    assert best(with_metric(math.nan, math.nan, None), policy) == 1


@pytest.mark.parametrize("mode", ["max", "min"])
def test_of_equals_the_newer_is_better(mode: Any) -> None:
    """A tie goes to the newer step."""
    policy = Retention(max_to_keep=1, best_fn="acc", best_mode=mode)
    assert best(with_metric(0.5, 0.5, 0.5, None), policy) == 2
    assert plan(with_metric(0.5, 0.5, 0.5, None), policy).keep == [2, 3]


@pytest.mark.parametrize(
    ("metrics", "best_fn"),
    [(None, "acc"), ({}, "acc"), ({"loss": 1.0}, "acc"), ({"acc": None}, "acc"), ({"loss": 1.0}, lambda metrics: metrics["acc"]),
     ({}, lambda metrics: 1.0), (None, lambda metrics: 1.0), ({"loss": 1.0}, lambda metrics: metrics.get("acc"))],
)  # fmt: skip
def test_a_step_without_the_metric_is_kept(metrics: Any, best_fn: Any) -> None:
    """Whether there are no metrics, not this one, None in its place, or a function that says so with a KeyError or None."""
    policy = Retention(max_to_keep=1, best_fn=best_fn)
    facts = [StepFacts(0, 0, metrics), StepFacts(1, 0, {"acc": 1.0}), StepFacts(2, 0, metrics)]
    assert plan(facts, policy).keep == ([0, 1, 2] if policy.value(facts[1]) is not None else [0, 2])
    assert policy.value(facts[0]) is None
    assert best([facts[0]], policy) is None


@pytest.mark.parametrize("value", [1, True, 2**70, 10**400, -(10**400), np.float32(0.5), np.int64(3)], ids=lambda value: str(value)[:9])
def test_every_number_is_a_metric(value: Any) -> None:
    """Integers of any size, bools and NumPy scalars count like floats."""
    policy = Retention(max_to_keep=1, best_fn="acc")
    expected = 1 if value > 0.25 else 0
    assert best(with_metric(0.25, value), policy) == expected
    assert plan(with_metric(0.25, value, None), policy).keep == [expected, 2]


@pytest.mark.parametrize(("best_fn", "what"), [("acc", "the metric 'acc'"), (lambda metrics: metrics["acc"], "what best_fn returns")])
@pytest.mark.parametrize("value", ["0.5", [0.5], {"mean": 0.5}], ids=repr)
def test_a_metric_that_is_no_number_is_an_error(value: Any, best_fn: Any, what: str) -> None:
    """It says which, what it got and of which step, rather than to put text in an order."""
    with pytest.raises(TypeError, match="step 1") as caught:
        plan(with_metric(0.5, value), Retention(max_to_keep=1, best_fn=best_fn))
    assert what in str(caught.value)
    assert repr(value) in str(caught.value)


def test_what_best_fn_raises_is_not_hidden() -> None:
    """Only a KeyError says that a step has no such metric; a mistake in the function is seen."""
    with pytest.raises(ZeroDivisionError):
        plan(with_metric(0.5), Retention(max_to_keep=1, best_fn=lambda metrics: metrics["acc"] / 0))


def test_no_limit_keeps_everything() -> None:
    """Without `max_to_keep` nothing is dropped, whatever else is given, and the policy is false in a condition."""
    for policy in (Retention(), Retention(keep_period=10, keep_time_interval=60, best_fn="acc")):
        made = plan(with_metric(0.1, None, 0.3), policy)
        assert (made.keep, made.drop, bool(policy)) == ([0, 1, 2], [], False)
    assert table(plan(steps(3, 4), Retention())) == ["+ 3 every step is kept", "+ 4 newest, every step is kept"]
    assert Retention(max_to_keep=1)


def test_nothing_to_plan() -> None:
    """An empty run has an empty plan and no best step."""
    assert plan([], Retention(max_to_keep=3)) == Plan([], [], {})
    assert best([], Retention()) is None
    assert best([], Retention(best_fn="acc")) is None


def test_without_best_fn_the_newest_is_best() -> None:
    """As in Orbax: where nothing tells steps apart, the best one is the newest."""
    assert best(with_metric(0.9, 0.1), Retention(max_to_keep=1)) == 1


@pytest.mark.parametrize(
    "option",
    [{"max_to_keep": 0}, {"max_to_keep": -1}, {"max_to_keep": 2.0}, {"max_to_keep": True}, {"keep_period": 0}, {"keep_period": "10"},
     {"keep_time_interval": 0}, {"keep_time_interval": -1.0}, {"keep_time_interval": math.nan}, {"keep_time_interval": math.inf},
     {"keep_time_interval": dt.timedelta(0)}, {"keep_time_interval": "1h"}, {"keep_time_interval": True}, {"best_fn": 3}, {"best_mode": "largest"}],
    ids=repr,
)  # fmt: skip
def test_an_option_that_means_nothing_is_refused(option: dict[str, Any]) -> None:
    """At once, naming the option and what was given, and not at the first step that is lost."""
    with pytest.raises(ValueError, match=next(iter(option))) as caught:
        Retention(**option)
    assert repr(next(iter(option.values()))) in str(caught.value)


# After every save --------------------------------------------------------------------------------------------------------

policies = st.builds(
    Retention,
    max_to_keep=st.none() | st.integers(1, 4),
    keep_period=st.none() | st.integers(1, 5),
    keep_time_interval=st.none() | st.floats(1, 300),
    best_fn=st.sampled_from([None, "acc"]),
    best_mode=st.sampled_from(["max", "min"]),
)
runs = st.lists(
    st.tuples(st.integers(1, 4), st.integers(-100, 200), st.none() | st.sampled_from([math.nan, -math.inf, 0.0, 0.5, 1.0, 2.0])), max_size=25
).map(
    lambda parts: [
        StepFacts(sum(gap for gap, _, _ in parts[: index + 1]), sum(time for _, time, _ in parts[: index + 1]) * 10**9, value and {"acc": value})
        for index, (_, _, value) in enumerate(parts)
    ]
)


@given(run=runs, policy=policies, known=st.integers(0, 25))
def test_a_keeper_comes_to_the_same_as_a_plan(run: list[StepFacts], policy: Retention, known: int) -> None:
    """Step by step, or from any point of the run on, what is left is what planning from scratch keeps, after every step."""
    keeper = Keeper(run[:known], policy)
    left = {facts.step for facts in run[:known]} - set(keeper.dropped)
    assert sorted(left) == plan(run[:known], policy).keep
    for end, facts in enumerate(run[known:], known + 1):
        out = keeper.add(facts)
        assert set(out) <= left
        left = (left | {facts.step}) - set(out)
        assert sorted(left) == plan(run[:end], policy).keep


@given(run=runs, policy=policies)
def test_a_keeper_begun_with_what_is_left_goes_on_alike(run: list[StepFacts], policy: Retention) -> None:
    """After a restart only the kept steps are there to begin with: dropped ones stay dropped, and nothing kept is lost by that."""
    keeper, left = Keeper([], policy), set[int]()
    for facts in run:
        left = (left | {facts.step}) - set(keeper.add(facts))
    again = Keeper([facts for facts in run if facts.step in left], policy)
    assert again.dropped == []


@given(run=runs, policy=policies)
def test_what_is_dropped_stays_dropped(run: list[StepFacts], policy: Retention) -> None:
    """No later step brings a dropped one back."""
    dropped: set[int] = set()
    for end in range(len(run) + 1):
        made = plan(run[:end], policy)
        assert dropped <= set(made.drop)
        dropped |= set(made.drop)


@given(run=runs, policy=policies)
def test_every_plan_keeps_what_it_must(run: list[StepFacts], policy: Retention) -> None:
    """Each step is kept or dropped, with a reason; the newest and the best are kept; and no more is kept than the options say."""
    made = plan(run, policy)
    numbers = [facts.step for facts in run]
    assert sorted([*made.keep, *made.drop]) == numbers
    assert all(made.reasons[step] for step in numbers)
    assert not run or numbers[-1] in made.keep
    assert (top := best(run, policy)) is None or top in made.keep
    for facts in run:
        metric = (facts.metrics or {}).get("acc")
        if policy.keep_period is not None and facts.step % policy.keep_period == 0:
            assert facts.step in made.keep
        if policy.best_fn and metric is None:
            assert facts.step in made.keep
    if policy.max_to_keep is not None and policy.keep_period is None and policy.keep_time_interval is None and policy.best_fn is None:
        assert made.keep == numbers[-policy.max_to_keep :]


def test_a_step_that_does_not_come_after_the_others_is_refused() -> None:
    """A run that was rewound needs a new keeper; a step twice is a mistake."""
    policy = Retention(max_to_keep=2)
    keeper = Keeper(steps(1, 2, 3), policy)
    for number in (2, 3):
        with pytest.raises(ValueError, match=f"step {number} does not come after step 3"):
            keeper.add(steps(number)[0])
    with pytest.raises(ValueError, match="step 4"):
        plan(steps(4, 4), policy)


@pytest.mark.parametrize("metrics", [{"acc": "high"}, {"acc": [1]}, {"hits": 1, "n": 0}])
def test_an_error_that_is_listened_to_is_a_step_without_the_metric(metrics: dict[str, Any]) -> None:
    """With `on_error` a metric that is no number, or a `best_fn` that fails, costs no step: it is told of, and the step is kept."""
    told: list[tuple[str, int]] = []
    policy = Retention(
        max_to_keep=1, best_fn="acc" if "acc" in metrics else lambda each: each["hits"] / each["n"],
        on_error=lambda error, step: told.append((type(error).__name__, step)),
    )  # fmt: skip
    facts = [StepFacts(1, 0, metrics), *(StepFacts(number, 0, {"acc": 1.0, "hits": 1, "n": number}) for number in (2, 3))]
    assert plan(facts, policy).keep[0] == 1
    assert told == [("TypeError" if "acc" in metrics else "ZeroDivisionError", 1)]
