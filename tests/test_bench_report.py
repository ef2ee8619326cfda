"""What is made of measurements: recordings that keep what is shown, comparisons that say no more than they can, the README's section."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from bench.report import Outcome, compared, environment, figures_of, heading, recorded, written


def figure(samples: list[float], unit: str = "ms", **more: float) -> dict[str, Any]:
    return {"unit": unit, "samples": samples, **more}


def document(figures: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What `--json` writes, of one machine."""
    where: dict[str, Any] = {
        "time": "2026-05-04T10:00:00Z",
        "commit": "abc1234",
        "machine": {"system": "Linux-6.1-x86_64", "processor": "One CPU", "cpus": 2, "load_average": [0.25, 0, 0]},
        "filesystem": {"type": "ext4", "durable_4k_write_seconds": 0.0005},
        "versions": {"python": "3.11.7", "fastckpt": "1.0", "msgspec": "0.23.0"},
        "quick": False,
        "floors_not_reached": [],
    }
    return {"case": "x", **where, "figures": figures, "ratios": {}, **more}


def read_back(samples: list[float], unit: str = "ms") -> Any:
    """A figure after it was recorded and read again."""
    return figures_of(json.loads(written(recorded(document({"a": figure(samples, unit)})))))["a"]


@pytest.mark.parametrize(
    ("samples", "p99"),
    [([1.0] * 999 + [360.0], 1.0), ([float(number) for number in range(1000)], 990.0), ([1.0] * 49 + [9.0], 9.0), ([2.0, 1.0, 4.0], 4.0)],
)
def test_a_recorded_figure_keeps_its_99th_percentile_its_mean_and_its_count(samples: list[float], p99: float) -> None:
    """One sample of a thousand that takes long is not what 99% lie within; median, mean and how many there were stay too."""
    kept = read_back(samples)
    assert kept.at(99) == p99
    assert kept.mean == pytest.approx(sum(samples) / len(samples), rel=1e-3)
    assert kept.median == pytest.approx(sorted(samples)[len(samples) // 2], abs=0.5)
    assert kept.count == len(samples)
    assert (kept.at(0), kept.at(100)) == (min(samples), max(samples))


def test_the_median_of_an_even_number_of_samples_is_kept() -> None:
    """It lies between two samples, where no percentile is."""
    assert read_back([1.0] * 25 + [2.0] * 25).median == 1.5


def test_the_mean_of_bytes_has_the_rare_base_in_it() -> None:
    """A base each hundredth step is in the mean of what is written, and in no median."""
    kept = read_back([float(100 + step % 2) if step % 100 else 500_000.0 for step in range(1000)], "B")
    assert kept.median == pytest.approx(100, abs=1)
    assert kept.mean == pytest.approx(5099, abs=1)


def test_a_recording_of_before_can_still_be_read() -> None:
    """Percentiles without a mean and a 99th: the longest stands for it, and the mean is that of the percentiles."""
    kept = figures_of(document({"a": figure([1.0, 2.0, 6.0], percentiles_of=900)}))["a"]
    assert (kept.count, kept.at(99), kept.mean) == (900, 6.0, 3.0)


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (None, '"figures": expected an object with a figure for each name, got None'),
        ([1], '"figures": expected an object with a figure for each name, got [1]'),
        ({"a": 1}, 'figure "a": expected an object with unit and samples, got 1'),
        ({"a": {"samples": [1]}}, 'figure "a", unit: expected a text, got None'),
        ({"a": figure([])}, 'figure "a", samples: expected a list of numbers, at least one, got []'),
        ({"a": {"unit": "ms", "samples": "12"}}, "figure \"a\", samples: expected a list of numbers, at least one, got '12'"),
        ({"a": {"unit": "ms", "samples": [1, None]}}, 'figure "a", samples: expected a list of numbers, at least one, got [1, None]'),
        ({"a": figure([True])}, 'figure "a", samples: expected a list of numbers, at least one, got [True]'),
        ({"a": figure([float("nan")])}, 'figure "a", samples: expected a list of numbers, at least one, got [nan]'),
        ({"a": figure([10**400])}, f'figure "a", samples: expected a list of numbers, at least one, got [1{"0" * 58}...'),
        ({"a": {**figure([1]), "p99": "x"}}, "figure \"a\", beside its samples: expected numbers, got 'x'"),
    ],
)
def test_a_document_that_is_none_is_told_by_place(figures: Any, said: str) -> None:
    """A `ValueError` that says where, what was expected and what is there; no other error."""
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        compared(document(figures), document({"a": figure([1])}))


def verdict(old: dict[str, Any], new: dict[str, Any], name: str = "a") -> str:
    """The line of one figure, from its change on."""
    [line] = [line for line in compared(document({name: old}), document({name: new})).splitlines() if line.startswith(name)]
    return "   ".join(line.split("   ")[-2:]).strip()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (figure([1.0]), figure([1.01]), "+1.0%   too few samples to tell"),
        (figure([1.0] * 4), figure([9.0] * 9), "+800.0%   too few samples to tell"),
        (figure([1.0] * 5), figure([9.0] * 5), "+800.0%   slower or larger"),
        (figure([1.0, 1.0, 1.1], percentiles_of=60), figure([9.0] * 5), "+800.0%   slower or larger"),
        (figure([1.0, 2, 3, 4, 5]), figure([1.5, 2, 3.5, 4, 5]), "+16.7%   within the spread"),
        (figure([7.0]), figure([7.0]), "+0.0%   same"),
        (figure([1000], "B"), figure([1001], "B"), "+0.1%   slower or larger"),
        (figure([100_001], "B"), figure([100_002], "B"), "+0.0%   slower or larger"),
        (figure([100_000], "B"), figure([100_002], "B"), "+0.0%   same to four digits"),
        (figure([3], "calls"), figure([2], "calls"), "-33.3%   faster or smaller"),
        (figure([5, 7], "B"), figure([6, 6], "B"), "+0.0%   same to four digits"),
        (figure([10] * 9 + [900], "B"), figure([10] * 10, "B"), "-89.9%   faster or smaller"),
        (figure([1.5], "messages"), figure([1.6], "messages"), "+6.7%   too few samples to tell"),
        (figure([1.0] * 5), figure([9.0] * 5, "B"), "another unit"),
    ],
)
def test_a_verdict_is_given_where_there_is_one(old: dict[str, Any], new: dict[str, Any], said: str) -> None:
    """Times of fewer than five samples say nothing; what is counted is exact, in the mean, and one sample of it is enough."""
    assert verdict(old, new) == said


def test_the_memory_of_a_process_is_not_exact() -> None:
    """It is bytes, and another each time."""
    assert verdict(figure([10_000], "B"), figure([10_100], "B"), "run: memory") == "+1.0%   too few samples to tell"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"machine": {"system": "Linux-6.1-x86_64", "processor": "Another", "cpus": 2}}, ["processor: One CPU before, Another after"]),
        ({"machine": {"system": "Linux-6.9", "processor": "One CPU", "cpus": 8}}, ["CPUs: 2 before, 8 after", "system: Linux-6.1-x86_64 before, Linux-6.9 after"]),
        ({"filesystem": {"type": "xfs"}}, ["filesystem: ext4 before, xfs after"]),
        ({"versions": {"python": "3.12.1", "msgspec": "0.23.0"}}, ["python: 3.11.7 before, 3.12.1 after"]),
        ({"versions": {"python": "3.11.7", "fastckpt": "1.1"}}, ["msgspec: 0.23.0 before, not given after"]),
        ({"quick": True}, ["--quick: false before, true after"]),
        ({"options": {"steps": 40, "shapes": ("usual",)}}, ["--steps: 4 before, 40 after"]),
        ({"options": {"steps": 4, "shapes": ["small"]}}, ['--shapes: ["usual"] before, ["small"] after']),
        ({"options": {"steps": 4, "shapes": ["usual"], "rounds": 3}}, ["--rounds: not given before, 3 after"]),
        ({"options": {"steps": 4, "shapes": ["usual"], "rounds": None}}, []),
        ({"time": "2027-01-01T00:00:00Z", "commit": "fff"}, []),
        ({"machine": 3, "filesystem": [], "versions": None}, ["processor: One CPU before, not given after"]),
    ],
)  # fmt: skip
def test_what_was_not_alike_is_named_before_what_changed(change: dict[str, Any], said: list[str]) -> None:
    """Another machine, filesystem, version or option makes another figure of the same code, so it comes first."""
    old = document({"a": figure([1.0])}, options={"steps": 4, "shapes": ["usual"]})
    lines = compared(old, {**old, **change}).splitlines()
    named = [line.removeprefix("not measured alike: ") for line in lines if line.startswith("not measured alike")]
    assert named[: len(said)] == said
    assert lines[: len(named)] == [f"not measured alike: {line}" for line in named]
    assert len(named) == len(said) or change.get("machine") == 3


def test_options_that_an_older_result_does_not_tell_are_said_to_be_unknown() -> None:
    """One line, not one for each option."""
    old, new = document({"a": figure([1.0])}), document({"a": figure([1.0])}, options={"steps": 4, "shapes": ["usual"]})
    assert compared(old, new).splitlines()[0] == "not measured alike, maybe: the options are not told before"
    assert "not measured alike: " not in compared(old, new)


def test_every_library_that_is_measured_has_its_version_recorded(tmp_path: Path) -> None:
    """Also what a contender brings with it: LangGraph's serialiser, and the database."""
    where = environment(tmp_path)
    assert where["versions"]["SQLite"] == sqlite3.sqlite_version
    assert {"langgraph-checkpoint", "langgraph-checkpoint-sqlite", "msgspec", "zstandard"} <= where["versions"].keys()
    assert f"SQLite {sqlite3.sqlite_version}" in heading(Outcome().document("x", where))
