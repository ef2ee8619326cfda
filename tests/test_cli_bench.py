"""`fastckpt bench`: what is replayed of a user's own file, that the figures are those of what was written, and that nothing is left of it."""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import test_cli
from support import assert_same, everything_in, in_child, mount_tmpfs, needs_linux, needs_posix, needs_root, without_privileges
from test_cli import ENVIRONMENT, PROGRAM, Ran, Run, one_line, run_program

import fastckpt
from fastckpt import CheckpointManager, History, cli_bench
from fastckpt import replay as replaying
from fastckpt.__main__ import main
from fastckpt.reader import Reader
from fastckpt.replay import CONTENDERS, Contender, Costs, Growth, replay
from fastckpt.storage import Storage

run = test_cli.run  # the fixture

NAME = "checkpoint.fastckpt"


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that stalls, too, a run's file is of as many steps as a test asks for."""
    monkeypatch.setattr(replaying, "_FORECAST", 60.0)


def state(size: int = 300) -> dict[str, Any]:
    """Plain data with some of everything that a step may change, and with what it may not."""
    draw = random.Random(3)
    texts = [" ".join(draw.choices(["ask", "look", "answer", "检查点", "score"], k=30)) for _ in range(size)]
    cases = [{"id": f"q_{i:03}", "text": text, "ok": i % 3 == 0, "scores": [draw.random(), -0.0], "none": None} for i, text in enumerate(texts)]
    return {"step": 3, "best": math.inf, "cases": cases, "counts": {"a": 2**64 - 1, "b": 0}, "empty": [{}, [], ""], "长": "检查点" * 30}


def as_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2), "utf-8")
    return path


def a_run(folder: Path, steps: int = 12) -> Path:
    """A run that grows by a case a step, that once went back to an older step, and of which a step was deleted."""
    value = state()
    with CheckpointManager(folder) as manager:
        for step in range(steps):
            value["step"], value["cases"] = step, [*value["cases"], {"id": f"new {step}", "text": "x" * step}]
            manager.save(10 * step, value)
            if step == 6:
                manager.rewind(40)
                manager.save(50, {**value, "best": 0.5})
                manager.save(60, value)
        manager.delete(20)
    return folder / NAME


def costs_of(path: Path, folder: Path, **options: Any) -> Costs:
    return replay(str(path), str(folder), on_step=lambda what, done: None, **options)


def measured(run: Run, *arguments: object) -> Any:
    ran = run("bench", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


# --- what is replayed ------------------------------------------------------------------------------------------------


def test_values_of_a_single_state_change(tmp_path: Path) -> None:
    """Of a single state each step changes as many values as asked for, to others of the same type, all over the state; nothing else."""
    path = as_json(tmp_path / "checkpoint.json", state())
    costs = costs_of(path, tmp_path / "out", change=0.02, rounds=2, steps=6)
    assert (costs.kind, costs.as_json, costs.steps) == ("json", False, 0)
    # Of a case the id, the text, whether it is right, and two scores; the others are the step, the best, two counts, a text.
    assert costs.values == 300 * 5 + 5
    assert costs.changed == round(0.02 * costs.values)
    with History(tmp_path / "out" / "growth") as history:
        assert_same(history.restore(0), state())
        for step in range(5):
            changes = history.diff(step, step + 1)
            assert len(changes) == costs.changed
            assert all(type(change.old) is type(change.new) for change in changes)
            assert len({change.path.split(".")[-1].split("[")[0] for change in changes}) > 2


@pytest.mark.parametrize("share", [0.0, 1e-9, 1.0])
def test_at_least_one_value_and_at_most_all(share: float, tmp_path: Path) -> None:
    """However small the share, a step changes something; with all of them it changes all."""
    costs = costs_of(as_json(tmp_path / "x.json", state(20)), tmp_path / "out", change=share, rounds=2, steps=3)
    with History(tmp_path / "out" / "growth") as history:
        changes = history.diff(0, 1)
    assert len(changes) == costs.changed == (costs.values if share == 1 else 1)
    assert all(type(change.old) is type(change.new) for change in changes)


def test_replay_is_the_same_each_time(tmp_path: Path) -> None:
    """The made-up steps are the same ones in every replay, and so is what they write."""
    path = as_json(tmp_path / "x.json", state())
    one, two = (costs_of(path, tmp_path / name, rounds=4, steps=20) for name in "ab")
    assert [one.contenders[name].written for name in CONTENDERS[:2]] == [two.contenders[name].written for name in CONTENDERS[:2]]
    with History(tmp_path / "a" / "growth") as a, History(tmp_path / "b" / "growth") as b:
        assert_same([a.restore(step) for step in range(20)], [b.restore(step) for step in range(20)])


@pytest.mark.parametrize("value", [{}, [], 5, "", None, {"a": None, "b": [[], {}]}])
def test_state_without_a_value_to_change(value: Any, tmp_path: Path) -> None:
    """A state in which nothing can change is measured as it is."""
    costs = costs_of(as_json(tmp_path / "x.json", value), tmp_path / "out", rounds=2, steps=3)
    assert (costs.values, costs.changed) == (0, 0)
    with History(tmp_path / "out" / "growth") as history:
        assert_same(history.restore(2), value)


def test_run_is_replayed_by_its_own_steps(tmp_path: Path) -> None:
    """A run is replayed by its live steps, in turn; of a long one by the last of them, as many as are asked for."""
    path = a_run(tmp_path / "run")
    costs = costs_of(path, tmp_path / "out", rounds=2, steps=100)
    assert (costs.kind, costs.steps, costs.changed) == ("run", 11, 0)
    with History(path) as own, History(tmp_path / "out" / "growth") as history:
        assert_same([history.restore(step) for step in range(11)], [own.restore(step) for step in own.all_steps()])
        assert history.latest_step() == 10
    # More rounds than steps: it begins again, and the way back is no step.
    costs = costs_of(path, tmp_path / "again", rounds=25, steps=11)
    assert costs.rounds == 25
    sizes = sorted(costs.contenders["json"].written)
    with History(path) as own:
        every = [len(json.dumps(own.restore(step), ensure_ascii=False, indent=2).encode()) for step in own.all_steps()]
    assert set(sizes) <= set(every[1:])


def test_run_with_a_single_step(tmp_path: Path) -> None:
    """A run of one step is replayed like a single state."""
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, state(20))
    costs = costs_of(tmp_path / "run" / NAME, tmp_path / "out", rounds=2, steps=3)
    assert (costs.kind, costs.steps) == ("run", 0)
    assert costs.changed > 0


def test_what_json_cannot_say(run: Run, tmp_path: Path) -> None:
    """A state that JSON does not give back as it is is replayed in its JSON form, for both, and that is said; one that has none is refused."""
    fastckpt.save(tmp_path / "a.fastckpt", {"by number": {1: 2.0}, "raw": b"abc", "cases": ["x y z"] * 9})
    costs = costs_of(tmp_path / "a.fastckpt", tmp_path / "out", rounds=2, steps=3)
    assert (costs.kind, costs.as_json) == ("single", True)
    with History(tmp_path / "out" / "growth") as history:
        assert_same(history.restore(0), {"by number": {"1": 2.0}, "raw": "YWJj", "cases": ["x y z"] * 9})
    assert "in its JSON form" in run("bench", tmp_path / "a.fastckpt", "--rounds", 2).out.decode()
    fastckpt.save(tmp_path / "b.fastckpt", {"both": {1: "a", "1": "b"}})
    ran = run("bench", tmp_path / "b.fastckpt")
    one_line(ran, "$.both", "two keys")
    assert ran.code == 7


# --- the figures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["json", "run"])
def test_bytes_are_those_of_the_files(kind: str, tmp_path: Path) -> None:
    """What each round is said to have written is what is in the files, to the byte; so is the size of the run of which it was measured."""
    path = as_json(tmp_path / "x.json", state()) if kind == "json" else a_run(tmp_path / "run")
    costs = costs_of(path, tmp_path / "out", rounds=2, steps=9)
    for name in ("json", "json+fsync"):
        assert (tmp_path / "out" / name / "checkpoint.json").stat().st_size == costs.contenders[name].written[-1]
    for name in ("sync", "async"):
        with closing(Reader(tmp_path / "out" / name / NAME)) as reader:
            lengths = [entry.length for entry in reader.entries()]
        assert costs.contenders[name].written == lengths[:2][::-1]
    assert (costs.growth.steps, costs.growth.after(9)) == (9, (tmp_path / "out" / "growth" / NAME).stat().st_size)
    assert costs.growth.after(9) == costs.growth.file_bytes


def test_forecast_is_about_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a run that there was no time to write is told from the steps that there were, within a tenth."""
    path = as_json(tmp_path / "x.json", state(60))
    whole = costs_of(path, tmp_path / "whole", rounds=2, steps=400).growth
    assert whole.steps == 400
    clock = iter(range(10**9))
    for enough in (5, 150):  # before the second base, and after some
        short = costs_of(path, tmp_path / str(enough), rounds=2, steps=enough).growth
        assert short.after(400) == pytest.approx(whole.file_bytes, rel=0.1)
    # Where time runs out, it is told so, too.
    monkeypatch.setattr(replaying, "_FORECAST", 30.0)
    monkeypatch.setattr(replaying.time, "perf_counter", lambda: float(next(clock)))
    cut = costs_of(path, tmp_path / "cut", rounds=2, steps=400).growth
    assert 2 < cut.steps < 400


@pytest.mark.parametrize("kind", ["json", "single", "run"])
def test_results_for_machines(kind: str, run: Run, tmp_path: Path) -> None:
    """--json has every sample; medians lie between the percentiles, and these among the samples; the forecasts follow from them."""
    if kind == "single":
        path = tmp_path / "one.fastckpt"
        fastckpt.save(path, state())
    else:
        path = as_json(tmp_path / "checkpoint.json", state()) if kind == "json" else a_run(tmp_path / "run")
    found = measured(run, path, "--rounds", 3, "--steps", 30, "--step-seconds", 0.5)
    assert [found[name] for name in ("path", "kind", "directory", "in_json_form", "rounds")] == [str(path), kind, str(path.parent), False, 3]
    steps = {"real": 11, "change": None, "values": found["steps"]["values"], "changed_values": None}
    assert found["steps"] == (steps if kind == "run" else {"real": 0, "change": 0.01, "values": 1505, "changed_values": 15})
    assert list(found) == ["path", "kind", "directory", "in_json_form", "message_bytes", "rounds", "steps", "contenders", "forecast", "loop"]
    assert [(each["name"], each["durable"]) for each in found["contenders"]] == [
        ("json", False),
        ("json+fsync", True),
        ("sync", True),
        ("async", True),
    ]
    for each in found["contenders"]:
        for figure in ("blocking_seconds", "total_seconds", "written_bytes"):
            samples = each[figure]["samples"]
            assert len(samples) == 3
            assert 0 < min(samples) <= each[figure]["p10"] <= each[figure]["median"] <= each[figure]["p90"] <= max(samples)
        assert all(blocking <= total for blocking, total in zip(each["blocking_seconds"]["samples"], each["total_seconds"]["samples"], strict=True))
        assert 0 < each["first_seconds"] < 10
    old, _, sync, background = found["contenders"]
    assert sync["written_bytes"]["median"] < old["written_bytes"]["median"] / 2
    forecast = found["forecast"]
    assert forecast["steps"] == 30
    assert forecast["measured_steps"] == (11 if kind == "run" else 30)
    assert forecast["json_newest_bytes"] == round(old["written_bytes"]["median"])
    assert forecast["json_every_bytes"] == round(30 * old["written_bytes"]["median"])
    assert forecast["measured_bytes"] <= forecast["run_bytes"] < forecast["json_every_bytes"]
    assert forecast["waits_seconds"]["json"] == pytest.approx(30 * old["blocking_seconds"]["median"])
    waits = {name: seconds / 30 for name, seconds in forecast["waits_seconds"].items()}
    share = forecast["base_more_seconds"] / forecast["base_every_steps"]
    assert waits["sync"] == pytest.approx(sync["blocking_seconds"]["median"] + share)
    blocking, total = (background[f"{key}_seconds"]["median"] for key in ("blocking", "total"))
    assert forecast["step_needed_seconds"] == pytest.approx(max(total + share - blocking, (total + forecast["base_more_seconds"]) / 2))
    assert (waits["async"] == pytest.approx(blocking)) == (forecast["step_needed_seconds"] <= 0.5)
    assert found["loop"]["share"] == pytest.approx({name: seconds / (0.5 + seconds) for name, seconds in waits.items()})


def costs_like(*, base: float, period: float) -> Costs:
    """Of saves that take 0.2 s (sync), and of 0.01 s that go on for 0.3 s in the background."""
    contenders = {
        name: Contender(name, True, [blocking] * 2, [total] * 2, [1, 1], 9.0)
        for name, blocking, total in (("json", 0.5, 0.5), ("json+fsync", 0.6, 0.6), ("sync", 0.2, 0.2), ("async", 0.01, 0.3))
    }
    return Costs("json", False, 1, 1, 0, 1, 2, contenders, Growth(10, 1000, 10.0, period, base))


def test_what_a_loop_waits() -> None:
    """A sync save waits for its share of a base too; an async one for what does not fit into the steps of training beside it."""
    costs = costs_like(base=5.0, period=50.0)
    assert [costs.waits(name) for name in CONTENDERS] == pytest.approx([0.5, 0.6, 0.3, 0.01])
    assert [costs.waits(name, 0.1) for name in CONTENDERS] == pytest.approx([0.5, 0.6, 0.3, 0.3])
    assert costs.waits("async", 1.0) == pytest.approx(0.01 + (5.3 - 2) / 50)  # saves fit; of a base, two steps of it
    assert costs.growth.after(30) == 1200


@pytest.mark.parametrize(("base", "period"), [(5.0, 50.0), (0.0, 50.0), (0.1, 2.0)])
def test_step_that_async_needs(base: float, period: float) -> None:
    """From this step on, and not before, an async save costs the loop what it blocks and no more."""
    costs = costs_like(base=base, period=period)
    assert costs.waits("async", costs.step_needed) == pytest.approx(0.01)
    assert costs.waits("async", 0.99 * costs.step_needed) > 0.0101


def test_base_is_measured_as_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a base takes more is that of durable saves, and not of the first one, which makes the file."""
    real, flushes, bases = replaying._Run.save, list[int](), list[float]()

    def save(self: Any, value: Any) -> Any:
        sample = real(self, value)
        if self.name != "growth":
            return sample
        flushes.append(self.manager.last_stats.flushes)
        if self.manager.last_stats.bases:
            bases.append(5.0 + len(bases) if bases else 100.0)
        return sample._replace(total=bases[-1] if self.manager.last_stats.bases else 1.0)

    monkeypatch.setattr(replaying._Run, "save", save)
    growth = costs_of(as_json(tmp_path / "x.json", state(60)), tmp_path / "out", rounds=2, steps=150).growth
    assert growth.steps == 150
    assert growth.base_seconds == statistics.median(bases[1:]) - 1.0
    assert min(flushes) == 1


def test_different_state_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not give back what was saved is not compared: that is an error which names it."""
    path = as_json(tmp_path / "x.json", state(20))
    restore = CheckpointManager.restore
    monkeypatch.setattr(CheckpointManager, "restore", lambda self: {**restore(self), "step": 3.0})
    with pytest.raises(fastckpt.CheckpointError, match="sync gave back another state"):
        costs_of(path, tmp_path / "out", rounds=2, steps=3)


@needs_linux
def test_disk_is_settled_between_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the unsynced JSON leaves to be written is written before the next one saves, and not by its sync; it is not timed."""
    synced: list[str] = []
    sync = Storage.sync

    def spy(self: Storage, fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        if synced[-1].endswith("/json/checkpoint.json"):
            time.sleep(0.2)
        sync(self, fd)

    monkeypatch.setattr(Storage, "sync", spy)
    costs = costs_of(as_json(tmp_path / "x.json", state(20)), tmp_path / "out", rounds=2, steps=3)
    assert sum(path.endswith("/json/checkpoint.json") for path in synced) == 3  # with the one that is compared
    assert min(costs.contenders["json"].total) < 0.2


def test_progress_is_told(tmp_path: Path) -> None:
    """What is being done is told with how much of it is done, from 0 to 1, and to the end."""
    told: list[tuple[str, float]] = []
    replay(str(as_json(tmp_path / "x.json", state(20))), str(tmp_path / "out"), rounds=3, steps=5, on_step=lambda *each: told.append(each))
    assert [told[0], told[5], told[-1]] == [("reading", 0.0), ("a run's file", 1.0), ("round 3", 1.0)]
    assert all(0 <= done <= 1 for _, done in told)


# --- what is said ----------------------------------------------------------------------------------------------------


def test_said_to_people(run: Run, tmp_path: Path) -> None:
    """A table with a line for each way of saving, and lines on what was replayed, the disk and the loop; made-up steps are called so."""
    path = as_json(tmp_path / "checkpoint.json", state())
    before = path.read_bytes()
    ran = run("bench", path, "--rounds", 3, "--steps", 20, "--step-seconds", 2)
    assert (ran.code, ran.err) == (0, "")
    text = ran.out.decode()
    assert re.search(rf"state     {path}: a JSON file, [\d.]+ kB encoded, 1,505 values\n", text)
    assert "made up: each changes 15 values, all over the state (--change 0.01)" in text
    assert f"measured  in {tmp_path}, 3 rounds: all save the same step, in turn, and nothing runs beside them\n" in text
    figure = r"[\d.]+ (?:ms|s)"
    for label in ("JSON, no fsync", "JSON \\+ fsync", "fastckpt, sync", "fastckpt, async"):
        after = "not durable" if label.endswith("no fsync") else figure
        assert re.search(rf"{label} +{figure} +{figure} - {figure} +{after} +[\d.]+ (bytes|kB) +[\d.]+% *\n", text), text
    assert re.search(r"disk      20 steps: [\d.]+ kB of JSON for the newest alone, [\d.]+ MB for every step;\n", text)
    assert "in one file of fastckpt for every step (measured)" in text
    assert "loop      computed, for your training is not run: 20 steps would wait\n" in text
    assert re.search(rf"\n +{figure} for JSON, {figure} with fsync;\n +{figure} for fastckpt, sync, bases included \(.* than another step\);\n", text)
    assert re.search(rf"\n +{figure} async, with steps of 2 s; of {figure} or longer it would be the same\n", text)
    assert "a loop that Python code keeps busy gains less from async" in text
    assert path.read_bytes() == before
    assert everything_in(tmp_path) == ["checkpoint.json"]
    ran = run("bench", a_run(tmp_path / "run").parent, "--rounds", 2, "--steps", 50)
    assert "its last 11, in turn" in ran.out.decode()
    assert "about, from 11 of them" in ran.out.decode()
    # Without a time for a step, too, it is said what async takes, and from when on.
    assert re.search(rf"\n +{figure} async, if a step of training takes {figure} or longer; in shorter ones saves wait", ran.out.decode())
    assert "--step-seconds" in ran.out.decode()
    ran = run("bench", path, "--rounds", 2, "--steps", 2, "--step-seconds", 1e-9)
    assert re.search(rf"\n +{figure} async: in steps shorter than {figure} saves wait for one another\n", ran.out.decode())


def test_large_file_goes_its_way(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run whose file would pass the bound it is said that the oldest steps go."""
    monkeypatch.setattr(replaying, "_FORECAST", 0.1)
    ran = run("bench", as_json(tmp_path / "x.json", state(20)), "--rounds", 2, "--steps", 10**7)
    assert "about, from" in ran.out.decode()
    assert "the oldest go when it reaches 1.1 GB" in ran.out.decode()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0000377, "0.038 ms"),
        (0.0012345, "1.23 ms"),
        (0.0374, "37.4 ms"),
        (0.4, "400 ms"),
        (0.9996, "1.00 s"),
        (37.44, "37.4 s"),
        (1359.0, "1,359 s"),
    ],
)
def test_times_for_people(seconds: float, text: str) -> None:
    """A time has three digits, whatever its size."""
    assert cli_bench._time(seconds) == text


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_measured(run: Run, tmp_path: Path) -> None:
    """What is no checkpoint, is damaged, too large or not there is one line and an exit code, as everywhere; nothing is left."""
    (tmp_path / "x.bin").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "cut.json").write_text('{"a": [1, 2')
    fastckpt.save(tmp_path / "bad.fastckpt", state(20))
    data = bytearray((tmp_path / "bad.fastckpt").read_bytes())
    data[-60] ^= 1
    (tmp_path / "bad.fastckpt").write_bytes(data)
    with open(tmp_path / "huge.json", "wb") as file:
        file.write(b"{")
        file.truncate(5 << 30)  # sparse
    before = everything_in(tmp_path)
    for name, code, word in (
        ("x.bin", 4, "not a checkpoint"), ("cut.json", 4, "ends in the middle"), ("bad.fastckpt", 4, "checksum"), ("huge.json", 7, "larger"),
        ("none.json", 3, "no such file"), ("", 3, "no such file"),
    ):  # fmt: skip
        ran = run("bench", tmp_path / name)
        one_line(ran, word, tmp_path / name)
        assert (ran.code, ran.out) == (code, b"")
    assert everything_in(tmp_path) == before


def test_wrong_usage(run: Run, tmp_path: Path) -> None:
    """Numbers that make no sense are refused with the option's name."""
    path = as_json(tmp_path / "x.json", {"a": 1})
    for option, value in (
        ("--change", "1.5"),
        ("--change", "nan"),
        ("--step-seconds", "0"),
        ("--step-seconds", "inf"),
        ("--rounds", "1"),
        ("--steps", "0"),
    ):
        ran = run("bench", path, option, value)
        one_line(ran, option)
        assert ran.code == 2


def test_another_disk(run: Run, tmp_path: Path) -> None:
    """--dir says where it is measured, and is left as it was; one that is not there is an error."""
    path = as_json(tmp_path / "x.json", state(20))
    (tmp_path / "disk").mkdir()
    assert measured(run, path, "--rounds", 2, "--steps", 3, "--dir", tmp_path / "disk")["directory"] == str(tmp_path / "disk")
    assert everything_in(tmp_path) == ["disk", "x.json"]
    ran = run("bench", path, "--dir", tmp_path / "none")
    one_line(ran, "no such file", tmp_path / "none")
    assert ran.code == 3


def test_file_in_the_working_directory(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare name is measured where it is."""
    as_json(tmp_path / "x.json", state(20))
    monkeypatch.chdir(tmp_path)
    assert measured(run, "x.json", "--rounds", 2, "--steps", 3)["directory"] == "."
    assert everything_in(tmp_path) == ["x.json"]


@needs_root
def test_directory_that_cannot_be_written(public_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where nothing may be written, that is one line, and --dir is the way."""
    path = as_json(public_path / "x.json", state(20))

    def nobody() -> None:
        without_privileges()
        assert main(["bench", str(path)]) == 6

    in_child(nobody)
    one_line(Ran(6, b"", capfd.readouterr().err), "permission denied", public_path)


@needs_linux
def test_full_disk(tmp_path: Path) -> None:
    """A disk that has no room for it is one line, and is as empty afterwards as before."""

    def fill() -> None:
        mount_tmpfs(tmp_path, "size=1m")
        path = as_json(tmp_path / "x.json", [os.urandom(40_000).hex() for _ in range(9)])
        ran = run_program("bench", path, "--rounds", 3)
        one_line(ran, "no space", tmp_path)
        assert ran.code == 6
        assert everything_in(tmp_path) == ["x.json"]

    in_child(fill)


@needs_posix
def test_interrupt(tmp_path: Path) -> None:
    """Ctrl-C ends with 130 and one line, and nothing of it is left."""
    path = as_json(tmp_path / "x.json", state())
    with subprocess.Popen([*PROGRAM, "bench", str(path), "--rounds", "1000000"], stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("fastckpt-*/async/checkpoint.fastckpt")):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    one_line(Ran(process.returncode, b"", errors.decode()), "interrupted")
    assert process.returncode == 130
    assert everything_in(tmp_path) == ["x.json"]
