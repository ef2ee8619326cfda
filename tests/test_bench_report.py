"""What is made of measurements: recordings that keep what is shown, comparisons that say no more than they can, the README's section."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from bench.contenders import ASYNC, BASELINE, SYNC
from bench.readme import section
from bench.report import Outcome, compared, environment, figures_of, heading, recorded, written
from bench.worker import BenchError


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


def test_a_recording_of_before_is_not_compared_by_a_mean_that_it_does_not_tell() -> None:
    """The mean of its percentiles is far off that of its samples; the medians are alike."""
    old, new = figure([10] * 20 + [900], "B", percentiles_of=997), figure([10] * 996 + [900], "B")
    assert verdict(old, new).endswith("within the spread")


def results(folder: Path, **documents: dict[str, Any]) -> str:
    """The README's section of these cases, as it would be recorded."""
    for case, made in documents.items():
        (folder / f"{case}.json").write_text(written(recorded({**made, "case": case})), encoding="utf-8")
    return section(folder)


def flat(text: str) -> str:
    return " ".join(text.split())


def row(text: str, name: str) -> list[str]:
    """The cells of the first row of a table that begins so."""
    [line, *_] = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_readme_shows_99_percent_the_saves_it_is_of_and_the_mean_of_what_is_written(tmp_path: Path) -> None:
    """One save of a thousand that takes long, and one that writes a base: the first is not in the 99%, the second is in what is written."""
    made = {
        f"usual: {SYNC}: blocking": figure([2.0] * 999 + [360.0]),
        f"usual: {SYNC}: total": figure([2.5] * 999 + [360.0]),
        f"usual: {SYNC}: bytes": figure([10_000 + number % 2 for number in range(999)] + [2_000_000], "B"),
        f"usual: {BASELINE}: blocking": figure([30.0] * 49 + [64.0]),
        f"usual: {BASELINE}: bytes": figure([1_800_000], "B"),
    }
    text = results(tmp_path, run=document(made), retain=document({"usual, newest 100 kept: save": made[f"usual: {SYNC}: blocking"]}))
    assert row(text, SYNC)[1:4] == ["1,000", "2.00 ms", "2.00 ms"]
    assert row(text, SYNC)[7] == "12.0 kB"
    assert row(text, BASELINE)[1:4] == ["50", "30.0 ms", "64.0 ms"]
    assert "of 100 saves or fewer the 99% is the longest" in flat(text)
    assert "a save takes 2.00 ms, 99% of 1,000 within 2.00 ms" in text


def test_the_readme_leaves_out_what_an_older_recording_does_not_tell(tmp_path: Path) -> None:
    """A 99% that is the longest of all, or a mean of percentiles, would be a false figure; the median is there."""
    old = figure([1.0] * 20 + [360.0], percentiles_of=1000)
    made = {f"usual: {SYNC}: blocking": old, f"usual: {SYNC}: bytes": {**old, "unit": "B"}}
    for case, figures in (("run", made), ("retain", {"usual, newest 100 kept: save": old})):
        (tmp_path / f"{case}.json").write_text(json.dumps(document(figures)))
    text = section(tmp_path)
    assert row(text, SYNC)[1:4] == ["1,000", "1.00 ms", ""]
    assert row(text, SYNC)[7] == ""
    assert "360" not in text
    assert "a save takes 1.00 ms; the largest" in text


def test_the_readme_shows_what_the_caller_gives_beside_a_bare_encode(tmp_path: Path) -> None:
    """So that the limit of 1.3 times that and 0.1 ms can be looked at; and the mean of what is written."""
    made = {
        f"10 MB: {SYNC}: blocking": figure([4.0]),
        f"10 MB: {SYNC}: bytes": figure([1000] * 9 + [11_000], "B"),
        f"10 MB: {ASYNC}: blocking": figure([3.0]),
        f"10 MB: {ASYNC}: caller": figure([0.25]),
        f"10 MB: {ASYNC}: bare encode": figure([0.2]),
    }
    text = results(tmp_path, scale=document(made))
    assert row(text, "10 MB")[-3:] == ["0.250 ms", "0.200 ms", "2.00 kB"]
    assert row(text, "a state of")[-3:] == ["its caller", "bare encode", "fastckpt: written a step"]
    assert "1.3 times that of a bare encode by msgspec, plus 0.1 ms" in flat(text)


def test_the_readme_says_what_restoring_is_and_where_it_is_not_first(tmp_path: Path) -> None:
    """The newest step and one in the middle beside a single file of JSON, each with its own reason."""
    made = {f"usual: 10000 steps: {which}": figure([taken]) for which, taken in (("newest", 7.0), ("middle", 80.0))}
    made["usual: orjson + fsync, one file: newest"] = figure([1.5])
    text = flat(results(tmp_path, restore=document(made)))
    assert "of 10,000 steps, the newest in 7.00 ms, one in the middle in 80.0 ms" in text
    assert "nothing checked: orjson + fsync in 1.50 ms." in text
    assert "| the newest of 10,000 steps | 7.00 ms | orjson + fsync: 1.50 ms | the state lies in several frames" in text
    assert "| one in the middle of 10,000 steps | 80.0 ms | orjson + fsync: 1.50 ms | it keeps one step alone; here the headers" in text


def test_the_readme_says_once_what_all_cases_share(tmp_path: Path) -> None:
    """One commit, day, load and machine; the flushes and the load lie between two cases."""
    made = document({"a": figure([1.0])})
    busier = {**made["machine"], "load_average": [1.5, 0, 0]}
    slower = {"type": "ext4", "durable_4k_write_seconds": 0.0021}
    text = flat(results(tmp_path, check=made, diff={**made, "machine": busier, "filesystem": slower}))
    assert (
        "Recorded 2026-05-04 at commit abc1234. When a case began, the load average was 0.2 (check) to 1.5 (diff). All on One CPU, 2 CPUs, "
        "Linux 6.1, ext4 (a durable write of 4 KiB takes 0.50 to 2.10 ms), CPython 3.11.7, msgspec 0.23.0. Every case," in text
    )


def test_the_readme_names_what_was_not_the_same_for_all_cases(tmp_path: Path) -> None:
    """Commits, a dirty tree, days, and machine and versions by case; what differs is not said of all."""
    made = document({"a": figure([1.0])})
    other = {
        **made,
        "commit": "def5678+",
        "time": "2026-05-06T01:00:00Z",
        "machine": {**made["machine"], "processor": "Another", "load_average": None},
        "versions": {**made["versions"], "msgspec": "0.24.0", "SQLite": "3.40.1"},
        "quick": True,
    }
    text = flat(results(tmp_path, check=made, codec=made, diff=other))
    assert (
        "Recorded 2026-05-04 to 2026-05-06 at commit abc1234 (check, codec); def5678+ (diff). A + stands for changes that were not committed." in text
    )
    assert "the load average was 0.2 (check) to 0.2 (codec). All on 2 CPUs, Linux 6.1, ext4" in text
    assert "CPython 3.11.7. Not the same for all cases: processor One CPU (check, codec); Another (diff). " in text
    assert "Not the same for all cases: msgspec 0.23.0 (check, codec); 0.24.0 (diff). " in text
    assert "Not the same for all cases: SQLite not told (check, codec); 3.40.1 (diff). " in text
    assert "Of few rounds (`--quick`): diff." in text


def test_a_result_that_is_none_is_named(tmp_path: Path) -> None:
    """The file, and the place in it."""
    (tmp_path / "run.json").write_text(json.dumps(document({"a": 1})))
    with pytest.raises(BenchError, match=r"run\.json is not what `python -m bench record` writes: figure \"a\": expected an object"):
        section(tmp_path)


def test_the_example_for_a_dashboard_measures_no_disk(tmp_path: Path) -> None:
    """On a shared runner only what depends on no disk draws a line that means something."""
    text = results(tmp_path, check=document({"a": figure([1.0])}))
    assert "- run: python -m bench check --format github-action-benchmark > figures.json" in text
