"""That the benchmark is fair: who is compared does what it is said to do, in turns, checked, on a settled disk. No test looks at a time."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import needs_linux, needs_posix
from test_bench import ROOT, needs_orjson, python, with_bench

from bench import codec, contenders, history, loop, run, save, scale, worker
from bench.__main__ import _parse
from bench.contenders import CONTENDERS, EVERY, LangGraph, Sqlite, installed
from bench.shapes import SystemCasePack
from bench.workloads import Training

# Flushes of one save that this process makes by itself; the two databases flush in C, and are asked how.
FLUSHES = {
    "replaced module": 0,
    "replaced module + fsync": 2,
    "json compact + fsync": 2,
    "orjson + fsync": 2,
    "orjson, no fsync": 0,
    "pickle 5 + fsync": 2,
    "ormsgpack + zstd + fsync": 2,
    "SQLite, one blob a step": 0,
    "LangGraph SqliteSaver": 0,
    "GEPA's way, no fsync": 0,
    "fastckpt, one file": 2,
    "fastckpt run, sync": 1,
    "fastckpt run, newest 100": 1,
    "fastckpt run, async": 1,
    "msgspec, bare": 2,
    "fastckpt codec": 2,
    "without saving": 0,
}
HERE = [each.name for each in EVERY if installed(each)]


class Clock:
    """A time in which a flush takes a second, and nothing else takes any; and what was flushed, by inode."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.flushed = 0, list[int]()
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                monkeypatch.setattr(os, name, self._counting(getattr(os, name)))
        time = SimpleNamespace(perf_counter=lambda: self.now, process_time=lambda: self.now, sleep=lambda _: None)
        monkeypatch.setattr(worker, "time", time)

    def _counting(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def flush(fd: int) -> None:
            real(fd)
            self.now += 1
            self.flushed.append(os.fstat(fd).st_ino)

        return flush


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_flushes_of_each_contender_are_known() -> None:
    """A contender that comes anew is counted too."""
    assert set(FLUSHES) == set(CONTENDERS)


@needs_posix
@pytest.mark.parametrize("state", ["small", "MB:0.05"])
@pytest.mark.parametrize("name", HERE)
def test_a_save_flushes_as_its_name_says_and_leaves_a_settled_disk(tmp_path: Path, clock: Clock, name: str, state: str) -> None:
    """Within the time are the flushes that make a save durable, and no others; after it everything that it left has been flushed."""
    child = worker.Child(name, state, str(tmp_path))
    child.save(0)
    for number, what in enumerate(("save", "leap", "loop")):
        clock.flushed.clear()
        taken = child.loop(1 + number, 1, "sleeping", 0)["wall"] if what == "loop" else getattr(child, what)(1 + number)["total"]
        assert taken == 1e3 * FLUSHES[name], what
        assert {path.stat().st_ino for path in (tmp_path, *tmp_path.iterdir())} <= set(clock.flushed[FLUSHES[name] :]), what
    child.contender.close()


@pytest.mark.parametrize(("name", "database"), [(Sqlite.name, "_database"), (LangGraph.name, "_connection")][: 2 if installed(LangGraph) else 1])
def test_a_database_is_durable(tmp_path: Path, name: str, database: str) -> None:
    """A write-ahead log, and synchronous=FULL: a commit is on the disk when it returns."""
    contender = CONTENDERS[name](tmp_path, Training("small"))
    contender.save(0)
    pragmas = [getattr(contender, database).execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in ("journal_mode", "synchronous")]
    contender.close()
    assert pragmas == ["wal", 2]


@pytest.mark.parametrize("name", [*(name for name in HERE if name != LangGraph.name), LangGraph.name])
def test_only_who_writes_json_by_the_standard_library_is_charged_for_plain_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The others are handed the application's own objects: `asdict` would be a large part of their times."""
    made, put = [], []
    monkeypatch.setattr(Training, "plain", lambda self, number: made.append(number) or {})
    if name == LangGraph.name:  # and in place of its library what takes the checkpoint
        contender: Any = object.__new__(LangGraph)
        contender.work, contender._config, contender._empty = Training("small"), {}, dict
        contender._saver = SimpleNamespace(put=lambda config, checkpoint, *_: put.append(checkpoint["channel_values"]["state"]))
    else:
        contender = CONTENDERS[name](tmp_path, Training("small"))
    contender.save(0)
    if name == LangGraph.name:
        assert type(put[0]["state"]["system_packs"][0]) is SystemCasePack
    else:
        contender.close()
    assert bool(made) == (name in {"replaced module", "replaced module + fsync", "json compact + fsync", "GEPA's way, no fsync"})


@pytest.mark.parametrize("count", range(2, 15))
def test_in_turn_each_comes_at_every_place_and_after_each_other(count: int) -> None:
    """In twice as many rounds as there are contenders: twice at each place, and twice right after each other one; each order comes reversed."""
    orders: list[Any] = [worker.in_turn([*range(count)], number) for number in range(2 * count)]  # type: ignore[list-item]
    places = Counter((each, place) for order in orders for place, each in enumerate(order))
    pairs = Counter((order[at], order[at + 1]) for order in orders for at in range(count - 1))
    assert places == {(each, place): 2 for each in range(count) for place in range(count)}
    assert pairs == {(one, other): 2 for one in range(count) for other in range(count) if one != other}
    assert all(orders[at + 1] == orders[at][::-1] for at in range(0, 2 * count, 2))


class Stand:
    """In place of a worker: answers at once, and puts down what it is asked."""

    def __init__(self, contender: str, asked: list[tuple[str, str, tuple[Any, ...]]], answer: Callable[[str, str], dict[str, Any]]) -> None:
        self.contender, self._asked, self._answer = contender, asked, answer

    def ask(self, what: str, *arguments: Any) -> dict[str, Any]:
        self._asked.append((self.contender, what, arguments))
        return self._answer(self.contender, what)


@pytest.mark.parametrize("left_out", [set(), {LangGraph.name}, {LangGraph.name, "ormsgpack + zstd + fsync"}])
@pytest.mark.parametrize("state", ["usual", "large"])
def test_slow_contenders_come_at_every_place_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: set[str], state: str) -> None:
    """Rounds in which all save: each contender at every place, and after each other one, whoever is missing; the others in turns as well."""
    asked: list[tuple[str, str, tuple[Any, ...]]] = []

    @contextmanager
    def workers(names: list[str], workload: str, folder: Path) -> Iterator[list[Stand]]:
        yield [Stand(name, asked, lambda *_: dict.fromkeys(("total", "file", "memory"), 1.0)) for name in names]

    monkeypatch.setattr(run, "workers", workers)
    monkeypatch.setattr(run, "compare", lambda *_: asked.clear())
    compared = [name for name in run.COMPARED if name not in left_out]
    run.measure(compared, state, 1000, 2, tmp_path)
    rounds: dict[int, list[str]] = {}
    for name, what, arguments in asked:
        if what == "save":
            rounds.setdefault(arguments[0], []).append(name)
    whole = [order for order in rounds.values() if len(order) == len(compared)]
    fast = [order for order in rounds.values() if len(order) < len(compared)]
    assert (len(whole), len(fast)) == (50, 950)
    for orders in (whole, fast):
        names = set(orders[0])
        for name in names:
            assert {order.index(name) for order in orders} == set(range(len(names)))
            assert {order[order.index(name) - 1] for order in orders if order[0] != name} == names - {name}


class AskedError(Exception):
    """What a case would measure."""


@pytest.mark.parametrize(("shape", "options", "steps", "kept"), [("large", [], 1000, True), ("usual", [], 1000, True), ("shuffled", [], 100, False),
                                                                 ("usual", ["--quick"], 30, False)])  # fmt: skip
def test_who_keeps_the_newest_is_measured_where_it_compacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shape: str, options: list[str], steps: int, kept: bool
) -> None:
    """In a run of few steps nothing is compacted, and the row would be another one's: it is left out, aloud."""

    def measure(compared: list[str], workload: str, count: int, *_: Any) -> None:
        raise AskedError(count, run.KeptRun.name in compared)

    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(run, "able", list)
    with pytest.raises(AskedError) as seen:
        run.run(_parse(["run", "--shapes", shape, *options]), tmp_path)
    assert seen.value.args == (steps, kept)
    assert ("left out: fastckpt run, newest 100, for" in capsys.readouterr().out) == (not kept)


@pytest.mark.parametrize("step", [0, 1])
def test_the_bare_encode_and_ours_take_turns_equally_warm(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Before each of the two the state is encoded outside of the time; every other step ours comes first, and none runs beside the other."""
    events: list[str] = []
    clock = 0

    def call(name: str, seconds: int) -> Callable[..., None]:
        def record(*_: Any) -> None:
            nonlocal clock
            clock += seconds
            events.append(name)

        return record

    def now() -> int:
        events.append("|")
        return clock

    monkeypatch.setattr(contenders, "msgspec", SimpleNamespace(msgpack=SimpleNamespace(encode=call("encode", 1))))
    monkeypatch.setattr(contenders, "time", SimpleNamespace(thread_time=now))
    background: Any = object.__new__(contenders.BackgroundRun)
    background.work, background.manager = Training("small"), SimpleNamespace(save=call("save", 10), wait_until_finished=call("wait", 100))
    assert background.block(step) == (1, 10)
    order = ["encode", "save"][:: -1 if step else 1]
    assert events == [event for name in order for event in ("encode", "|", name, "|", "wait")]


@needs_linux
def test_the_allocators_of_contenders_are_alike(tmp_path: Path) -> None:
    """Each process has the same thresholds, whatever it does, if the case asks for it; else those of an application's process."""
    for steady in (True, False):
        with worker.workers(["without saving", "replaced module"], "small", tmp_path / str(steady), steady=steady) as all_workers:
            for each in all_workers:
                each.ask("save", 0)
                environment = Path(f"/proc/{each._process.pid}/environ").read_bytes().decode().split("\0")
                assert {f"{key}={value}" for key, value in worker.STEADY.items()} <= set(environment) or not steady
                assert steady or not any(line.startswith("MALLOC_") for line in environment)


@pytest.mark.parametrize(("case", "steady"), [(codec, True), (save, False), (run, False), (loop, False), (scale, False)])
def test_the_allocator_is_steady_where_bytes_alone_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Any, steady: bool) -> None:
    """The other cases measure the memory of an application's process, or a load, which is in new pages."""

    def workers(*_: Any, **options: Any) -> None:
        raise AskedError(options.get("steady", False))

    monkeypatch.setattr(case, "workers", workers)
    monkeypatch.setattr(case, "able", list)
    with pytest.raises(AskedError) as seen:
        case.run(_parse([case.__name__.rpartition(".")[2], "--quick"]), tmp_path)
    assert seen.value.args == (steady,)


CASES = {
    "codec": ("codec --shapes small", "fastckpt codec"),
    "save": ("save --shapes small", "fastckpt, one file"),
    "run": ("run --shapes small --steps 2", "fastckpt run, sync', 'fastckpt run, async"),
    "loop": ("loop --shapes small --steps 1 --pause 0", "without saving', 'fastckpt run, sync"),
    "restore": ("restore --shapes small --steps 2", ""),
    "scale": ("scale --sizes 0.02", "fastckpt run, sync', 'fastckpt run, async"),
}


def few(case: str, *others: str) -> str:
    """Lines for `with_bench`: the case with as few processes as it can do with."""
    first = "" if case == "loop" else "'replaced module', "
    return f"import bench.{case} as case\ncase.COMPARED = [{first}'{CASES[case][1]}', {', '.join(map(repr, others))}]"


@pytest.mark.parametrize("case", CASES)
def test_no_case_times_a_contender_that_loads_something_else(tmp_path: Path, case: str) -> None:
    """An orjson that gives back 1.0 for 1 is named, nothing is timed, and the exit code is 2."""
    (tmp_path / "orjson.py").write_text(
        "import dataclasses, json\n"
        "def dumps(value): return json.dumps(value, default=dataclasses.asdict).encode()\n"
        "def loads(data): return json.loads(data, parse_int=float)\n",
        encoding="utf-8",
    )
    arguments = [*CASES[case][0].split(), "--quick", "--rounds", "1", "--json", "result.json"]
    done = python(tmp_path, *with_bench(few(case, "orjson + fsync"), *arguments), product=tmp_path)
    assert done.stderr == "bench: orjson + fsync does not load the payload that was saved, so its times would mean nothing\n"
    assert done.returncode == 2
    assert not (tmp_path / "result.json").exists()


@needs_orjson
@pytest.mark.parametrize(
    ("case", "value"),
    [("codec", "NaN"), ("codec", "2**70"), ("save", "NaN"), ("run", "2**70"), ("loop", "NaN"), ("restore", "2**70")]
    + [(case, "surrogate") for case in CASES if case != "scale"],
)
def test_who_cannot_hold_a_file_of_ones_own_is_left_out_aloud(tmp_path: Path, case: str, value: str) -> None:
    """NaN, a whole number of more than 64 bits and a lone surrogate, in the last entry: orjson is left out by name, ours and pickle are measured.

    The replaced module cannot hold the surrogate: there are figures then, and no ratios.
    """
    entries: list[Any] = [{"step": step, "text": "x" * 90} for step in range(8)]
    (tmp_path / "mine.json").write_text(
        json.dumps([*entries, {"loss": {"NaN": math.nan, "2**70": 2**70, "surrogate": "a\ud800b"}[value]}]), encoding="utf-8"
    )
    options = [part for part in CASES[case][0].split()[1:] if part not in ("--shapes", "small")]
    arguments = [case, "--file", "mine.json", *options, "--quick", "--rounds", "1", "--json", "result.json"]
    lines = few(case, "orjson + fsync", *([] if case in ("loop", "restore") else ["pickle 5 + fsync"]))
    done = python(tmp_path, *with_bench(lines, *arguments))
    assert (done.returncode, done.stderr) == (0, "")
    assert "left out: orjson + fsync cannot hold this state: " in done.stdout
    made, ratios = json.loads((tmp_path / "result.json").read_text(encoding="utf-8")), value != "surrogate"
    names = {name.split(": ")[1] for name in made["figures"]}
    assert not any(name.startswith("orjson") for name in names)
    assert any(name.startswith("fastckpt") or name.endswith("steps") for name in names)
    if case in ("codec", "save", "run"):
        assert "pickle 5 + fsync" in names
        assert bool(made["ratios"]) == ratios
        assert ("without the replaced module there are no ratios" in done.stdout) == (not ratios)


def holding(monkeypatch: pytest.MonkeyPatch, names: list[str], wrong: set[str], failing: set[str]) -> list[str]:
    """Who holds a file, when some load something else and some raise an error."""

    def answer(name: str, what: str) -> dict[str, Any]:
        if name in failing:
            raise worker.ContenderError(name, what, "TypeError: no", "there, line 1")
        return {"digest": "other" if name in wrong and what == "loaded" else "same"}

    @contextmanager
    def workers(names: list[str], *_: Any) -> Iterator[list[Stand]]:
        yield [Stand(name, [], answer) for name in names]

    monkeypatch.setattr(worker, "workers", workers)
    return worker.holding(names, "file:5:mine.json", Path())


def test_ours_is_never_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What others cannot hold leaves them out; what ours cannot hold, or nobody else, is an error."""
    names = ["replaced module", "orjson + fsync", "pickle 5 + fsync", "fastckpt run, sync"]
    assert holding(monkeypatch, names, {"orjson + fsync"}, {"pickle 5 + fsync"}) == ["replaced module", "fastckpt run, sync"]
    assert capsys.readouterr().out == (
        "left out: orjson + fsync cannot hold this state: it loads something else\nleft out: pickle 5 + fsync cannot hold this state: TypeError: no\n"
    )
    for ours in ("fastckpt, one file", "fastckpt run, sync", "fastckpt run, newest 100", "fastckpt run, async", "fastckpt codec"):
        with pytest.raises(worker.BenchError, match=r"fastckpt.* cannot hold this state: it loads something else"):
            holding(monkeypatch, ["replaced module", ours], {ours}, set())
        with pytest.raises(worker.BenchError, match=r"fastckpt.* cannot hold this state: TypeError: no"):
            holding(monkeypatch, ["replaced module", ours], set(), {ours})
    with pytest.raises(worker.BenchError, match="nothing to compare with"):
        holding(monkeypatch, names, set(names[:3]), set())


def test_of_a_state_of_the_benchmark_nobody_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What fails there is a defect of the benchmark or of the product: nobody is tried beforehand."""
    monkeypatch.setattr(worker, "workers", None)
    assert worker.holding(["orjson + fsync", "fastckpt codec"], "usual", tmp_path) == ["orjson + fsync", "fastckpt codec"]


def test_an_error_of_a_contender_is_told_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its name, the error, and where it was raised; no traceback of another process."""
    with worker.workers(["without saving"], "small", tmp_path) as [each], pytest.raises(worker.ContenderError) as seen:
        each.ask("codec", 0)
    assert str(seen.value).startswith("without saving: BenchError: without saving is no codec (worker.py, line ")
    assert capfd.readouterr().err == ""


@needs_posix
def test_an_interrupt_is_for_the_parent_alone(tmp_path: Path) -> None:
    """Ctrl-C at the terminal, which goes to the whole group, in the middle of a long question: the parent ends its children, none says a word."""
    lines = """
from pathlib import Path
from bench.worker import workers
try:
    with workers(["replaced module", "without saving", "fastckpt run, async"], "small", Path("w")) as all_workers:
        for worker in all_workers:
            worker.ask("save", 0)
        print(*(worker._process.pid for worker in all_workers), flush=True)
        all_workers[1].ask("loop", 1, 1, "sleeping", 300)
except KeyboardInterrupt:
    print("interrupted")
"""
    path = os.pathsep.join([str(Path(sys.modules["fastckpt"].__file__ or "").parents[1]), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-c", lines], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        process_group=0,
    )  # fmt: skip
    assert process.stdout is not None
    children = [int(pid) for pid in process.stdout.readline().split()]
    assert len(children) == 3
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60) == ("interrupted\n", "")
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_runs_of_the_case_history_are_durable(tmp_path: Path, clock: Clock) -> None:
    """Of a run that was not synced, opening would look at every step."""
    history._write(tmp_path, "small", 40)
    assert len(clock.flushed) >= 40


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("scale --sizes 0.02,1,0.020", "the size 0.020 is given twice"),
        ("restore --steps 5,3,5", "5 steps are given twice"),
        ("loop --pause -1", "expected a number from 0 to 3600, got '-1'"),
        ("loop --pause nan", "expected a number from 0 to 3600, got 'nan'"),
        ("loop --pause inf", "expected a number from 0 to 3600, got 'inf'"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(capsys: pytest.CaptureFixture[str], arguments: str, said: str) -> None:
    """Told in the last line, with exit code 2, before anything is measured."""
    with pytest.raises(SystemExit) as seen:
        _parse(arguments.split())
    assert seen.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)
