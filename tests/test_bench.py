"""The benchmark at toy size, so that it cannot rot: what it measures is right and complete. No test looks at a time."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support import needs_linux

import fastckpt
from fastckpt import file, journal, storage
from fastckpt.journal import Journal

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("FASTCKPT_SHARED", ROOT.parent / "shared"))
DEFINITION = SHARED / "tools" / "shapes.py"
# Those that need no library beyond the tests' own.
ONE_FILE = {"replaced module", "replaced module + fsync", "json compact + fsync", "orjson + fsync", "orjson, no fsync", "pickle 5 + fsync"}
ONE_FILE |= {"GEPA's way, no fsync", "fastckpt, one file"}
RUNS = {"replaced module", "orjson + fsync", "pickle 5 + fsync", "SQLite, one blob a step", "fastckpt run, sync", "fastckpt run, async"}

# Lines for `with_bench`: the case `run` with as few processes as it can do with.
FEW = "import bench.run\nbench.run.COMPARED = ['replaced module', 'orjson + fsync', 'fastckpt run, sync', 'fastckpt run, async']"

needs_orjson = pytest.mark.skipif(importlib.util.find_spec("orjson") is None, reason="orjson, of the extra `bench`, is not installed")


def module(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = made = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(made)
    return made


def python(folder: Path, *arguments: str, product: Path = Path(fastckpt.__file__).parents[1]) -> subprocess.CompletedProcess[str]:
    """Python in an empty directory: `bench` is the checkout's, `fastckpt` the one under test (or `product`'s), installed or not."""
    path = os.pathsep.join([str(product), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False
    )


def with_bench(lines: str, *arguments: str) -> tuple[str, str]:
    """Arguments for `python`: the benchmark's main with something about it changed first."""
    return "-c", f"import sys\nimport bench.floors\nfrom bench.__main__ import main\n{lines}\nsys.exit(main({list(arguments)!r}))"


def result(folder: Path, *arguments: str) -> dict[str, Any]:
    """What a case writes with `--json`, after it ended well and left its disk as it was."""
    (folder / "disk").mkdir(exist_ok=True)
    done = python(folder, "-m", "bench", *arguments, "--quick", "--dir", "disk", "--json", "result.json", "--plot", "plot.svg")
    assert done.returncode == 0, done.stderr
    assert list((folder / "disk").iterdir()) == []
    assert b"<svg" in (folder / "plot.svg").read_bytes()
    made: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert made["case"] == arguments[0]
    for name, figure in made["figures"].items():
        assert figure["samples"], name
        assert figure["unit"] in {"ms", "B", "messages", "instructions", "calls", "flushes"}
        assert (figure["unit"] == "B") == name.endswith(("bytes", "file", "written", "memory"))
    return made


def parts(made: dict[str, Any], position: int) -> set[str]:
    """What stands at one place of the names of the figures."""
    return {name.split(": ")[position] for name in made["figures"]}


@pytest.mark.skipif(not DEFINITION.exists(), reason=f"{DEFINITION}, the definition of the shapes, is not here")
@pytest.mark.parametrize("shape", ["small", "usual", "usual-cjk"])
def test_the_generator_gives_the_states_of_the_definition(shape: str) -> None:
    """The same payload, byte for byte as the replaced module writes it, for a fresh state and after every kind of step."""
    ours, theirs = module(ROOT / "bench" / "shapes.py", "bench_shapes"), module(DEFINITION, "defined_shapes")
    state, expected = ours.make(shape), theirs.make(shape)
    for step in range(7):
        assert json.dumps(ours.old_serialize(state)) == json.dumps(theirs.old_serialize(expected))
        assert json.dumps(ours.payload(state, step)) == json.dumps(theirs.payload(expected, step))
        for generator, value in ((ours, state), (theirs, expected)):
            (generator.replace_pack if step % 3 == 2 else generator.change)(value, step)


@pytest.mark.skipif(not DEFINITION.exists(), reason=f"{DEFINITION}, the definition of the shapes, is not here")
def test_the_replaced_save_writes_the_bytes_of_the_definition(tmp_path: Path) -> None:
    """`old_save` leaves one file, byte-identical to the one of the definition."""
    ours, theirs = module(ROOT / "bench" / "shapes.py", "bench_shapes"), module(DEFINITION, "defined_shapes")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert ours.old_save(ours.make("small"), tmp_path / "a", 5) == theirs.old_save(theirs.make("small"), str(tmp_path / "b"), 5)
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["checkpoint.json"]
    assert (tmp_path / "a" / "checkpoint.json").read_bytes() == (tmp_path / "b" / "checkpoint.json").read_bytes()


@needs_orjson
def test_the_save_case_runs_and_yields_every_sample(tmp_path: Path) -> None:
    """A toy run has every contender in it, every sample, ratios, machine, disk and versions; files are as large as they are."""
    made = result(tmp_path, "save", "--shapes", "small,long-strings", "--rounds", "2")
    assert made["machine"]["cpus"] > 0
    assert made["filesystem"]["type"]
    assert made["versions"]["python"]
    assert parts(made, 0) == {"small", "long-strings"}
    assert parts(made, 1) >= ONE_FILE
    for name in ONE_FILE:
        for key in ("save", "save CPU", "file", "load", "load CPU"):
            samples = made["figures"][f"small: {name}: {key}"]["samples"]
            assert len(samples) == 2
            assert min(samples) > 0 or key.endswith("CPU")
        assert set(made["ratios"][f"small: {name}: save"]) == {"median", "p10", "p90"}
    sizes = {name: made["figures"][f"small: {name}: file"]["samples"][0] for name in ONE_FILE}
    assert sizes["replaced module"] > sizes["json compact + fsync"] == sizes["orjson, no fsync"] > 2 * sizes["fastckpt, one file"]


@needs_orjson
def test_the_run_case_counts_what_is_written(tmp_path: Path) -> None:
    """Times of every step, and the bytes of it: the whole state for who replaces a file, far fewer for a run, in the background as many.
    A step that replaces a pack writes more."""
    made = result(tmp_path, "run", "--shapes", "small", "--steps", "6", "--rounds", "2")
    assert parts(made, 1) >= RUNS
    figures = {name: figure["samples"] for name, figure in made["figures"].items()}
    for name in RUNS:
        assert [len(figures[f"small: {name}: {key}"]) for key in ("blocking", "total", "cpu", "bytes")] == [6, 6, 6, 6]
    whole, ours, background = (figures[f"small: {name}: bytes"] for name in ("replaced module", "fastckpt run, sync", "fastckpt run, async"))
    # Numbers in the header, such as a time, are a few bytes longer or shorter.
    assert background == [pytest.approx(size, abs=30) for size in ours]
    assert min(whole) > 100_000
    assert 0 < max(ours) < 30_000
    assert min(figures["small: fastckpt run, sync: leap, bytes"]) > sorted(ours)[len(ours) // 2]
    assert len(figures["small: fastckpt run, async: caller, blocking"]) == 4


def test_what_the_loop_waits_for_is_not_all_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocking is until the contender lets the loop go on, total until the state is durable; the step before is in neither."""
    from bench import worker

    clock = [0.0]

    class Contender:
        def takes(self, seconds: float) -> None:
            clock[0] += seconds

        def step(self, number: int) -> None:
            self.takes(100.0)

        def submit(self, step: int) -> None:
            self.takes(1.0)

        def finish(self) -> None:
            self.takes(5.0)

        def file_bytes(self) -> int:
            return 7

    monkeypatch.setattr(worker.time, "perf_counter", lambda: clock[0])
    child = object.__new__(worker.Child)
    child.__dict__.update(_workspace=tmp_path, _work=Contender(), contender=Contender())
    saved = child.save(0)
    assert (saved["blocking"], saved["total"]) == (1000.0, 6000.0)


@needs_orjson
def test_a_slow_contender_saves_some_steps_of_a_long_run(tmp_path: Path) -> None:
    """Of 6 steps, with 3 for the slow ones, those save each other one, and ratios are of the same steps."""
    done = python(
        tmp_path,
        *with_bench(f"{FEW}\nbench.run.SLOW_STEPS = 3", "run", "--shapes", "small", "--steps", "6", "--rounds", "1", "--json", "result.json"),
    )
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    slow, ours = (made["figures"][f"small: {name}: total"]["samples"] for name in ("replaced module", "fastckpt run, sync"))
    assert (len(slow), len(ours)) == (3, 6)
    ratios = sorted(theirs / own for theirs, own in zip(slow, ours[::2], strict=True))
    assert made["ratios"]["small: fastckpt run, sync: total"]["median"] == pytest.approx(ratios[1])


@needs_orjson
def test_a_file_of_ones_own_is_replayed_as_a_run_that_grows(tmp_path: Path) -> None:
    """The list that holds most of the document grows from its first entries to all of them, whatever is around it."""
    (tmp_path / "mine.json").write_text(json.dumps({"run": {"log": [{"step": step, "text": "x" * 90} for step in range(40)]}, "best": 1}))
    done = python(tmp_path, *with_bench(FEW, "run", "--file", "mine.json", "--steps", "4", "--rounds", "1", "--json", "result.json"))
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["figures"]
    written = figures["mine.json: orjson + fsync: bytes"]["samples"]
    # Two steps warmed up: then there are three quarters of the list, and from the next step on all of it.
    assert 3000 < written[0] < written[1] == written[-1] < 5000
    from bench.workloads import make_workload

    replayed = make_workload(f"file:4:{tmp_path / 'mine.json'}")
    lengths = []
    for step in range(6):
        replayed.step(step)
        lengths.append(len(replayed.plain(step)["run"]["log"]))
    assert lengths == [10, 20, 30, 40, 40, 40]


@pytest.mark.parametrize("content", ["{", "3", "[]", '{"a": 1}'])
def test_a_file_that_cannot_be_replayed_is_named(tmp_path: Path, content: str) -> None:
    """What is no JSON, or has nothing that could grow, is an error that names the file; exit code 2."""
    (tmp_path / "mine.json").write_text(content)
    done = python(tmp_path, "-m", "bench", "codec", "--file", "mine.json", "--quick")
    assert done.returncode == 2
    assert done.stderr.startswith(f"bench: {tmp_path / 'mine.json'} cannot be replayed: ")


@needs_orjson
@pytest.mark.parametrize(
    ("arguments", "first", "last"),
    [
        ("codec --shapes small --rounds 1", {"small"}, {"encode", "decode", "bytes"}),
        ("loop --shapes small --steps 1 --rounds 1 --pause 0.001", {"small"}, {"sleeping", "Python-bound", "sleeping, more", "Python-bound, more"}),
        ("restore --shapes small --steps 2,5 --rounds 1", {"small"}, {"newest", "middle", "file"}),
        ("migrate --shapes small --rounds 2", {"small"}, {"migrate", "parsing alone"}),
        ("scale --sizes 0.02,0.05 --rounds 2", {"0.02 MB", "0.05 MB"}, {"blocking", "total", "cpu", "bytes", "file", "caller", "bare encode"}),
        ("diff --mb 0.02 --steps 2 --rounds 1", {"one difference", "whole run"}, {"a MB", "new bytes", "file", "a step"}),
        ("history --shapes small --diff small --steps 5 --rounds 1", {"small"}, {"series, a step", "decoded, a step", "diff of two steps"}),
        ("retain --shapes small --steps 12 --keep 3", {"small, newest 3 kept", "small, all kept"}, {"save", "largest file", "written"}),
    ],
)
def test_every_case_at_toy_size(tmp_path: Path, arguments: str, first: set[str], last: set[str]) -> None:
    """Every case runs, draws its picture and gives the figures that it is there for."""
    made = result(tmp_path, *arguments.split())
    assert parts(made, 0) == first
    assert parts(made, -1) == last


def test_instructions_are_those_of_one_call(tmp_path: Path) -> None:
    """What starts the program is taken out: of the counts for one and three repetitions, half the difference. Nothing counts but valgrind."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "valgrind"
    script.write_text('#!/bin/sh\nfor last; do :; done\necho "==1== Collected : $((5000 + 700 * last))" >&2\n')
    script.chmod(0o755)
    path = f"import os\nos.environ['PATH'] = {str(tmp_path / 'bin')!r} + ':/usr/bin:/bin'"
    arguments = ["count", "--shapes", "small", "--calls", "encode,diff-step", "--json", "result.json"]
    done = python(tmp_path, *with_bench(path, *arguments))
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["figures"]
    assert {name: figure["samples"] for name, figure in figures.items()} == {"small: encode": [700], "small: diff-step": [700]}
    script.unlink()
    done = python(tmp_path, *with_bench(path.replace(":/usr/bin:/bin", ""), *arguments))
    assert done.returncode == 2
    assert done.stderr == "bench: valgrind is not installed: there is nothing here that counts instructions\n"


def test_what_is_counted_under_valgrind_is_the_call() -> None:
    """Each call that is counted can be made, and made again."""
    from bench.count import CALLS

    for make in CALLS.values():
        call = make("small")
        call()
        assert call()


def floor(name: str, value: dict[str, float]) -> str:
    """Lines for `with_bench`: one floor of the toy state, which otherwise has none."""
    return f"real = bench.floors.floors\nimport bench.{name} as case\ncase.floors = lambda *at: {value!r} if at[1:] == ('small',) else real(*at)"


@needs_orjson
def test_check_names_the_floor_that_is_not_reached(tmp_path: Path) -> None:
    """With `--check` a floor out of reach gives exit code 1 and one line that names it; the reached one is not named."""
    lines = floor("save", {"save": 0.0, "file": 1e9, "load": 0.0})
    lines += "\ncase.COMPARED = ['replaced module', 'fastckpt, one file']"
    run = python(tmp_path, *with_bench(lines, "save", "--quick", "--shapes", "small", "--rounds", "1", "--check"))
    assert run.returncode == 1
    [line] = run.stderr.splitlines()
    assert line.startswith("bench: floor not reached: small: fastckpt, one file: file: ")


@pytest.fixture
def without_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case `check` finds its floors of CPU time and of differences reached, whatever the machine is doing."""
    from bench import check

    reached = {what: ([100.0], [1.0]) for what in ("save", "load", "step", "leap", "blocking")}
    monkeypatch.setattr(check, "_times", lambda shape, rounds: {**reached, "encode": ([1.0], [1.0])})
    monkeypatch.setattr(check, "hard", lambda size: [])


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    """Exit code of the benchmark, and the names of the floors that it says are not reached."""
    from bench.__main__ import main

    capsys.readouterr()
    code = main(arguments)
    return code, [line.removeprefix("bench: floor not reached: ").partition(": ")[0] for line in capsys.readouterr().err.splitlines()]


def third(call: Callable[..., Any], more: Callable[..., object]) -> Callable[..., Any]:
    """`call`, and each third time `more` after it."""
    count = itertools.count(1)

    def called(*arguments: Any, **options: Any) -> Any:
        result = call(*arguments, **options)
        if next(count) % 3 == 0:
            more(*arguments, **options)
        return result

    return called


def flushed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "_sync_data", third(Journal._sync_data, Journal._sync_data))


def flushed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three appends one with no flush, and the next with two."""
    count, sync = itertools.count(1), Journal._sync_data

    def later(self: Journal) -> None:
        for _ in range({1: 0, 2: 2}.get(next(count) % 3, 1)):
            sync(self)

    monkeypatch.setattr(Journal, "_sync_data", later)


def read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "_sync_data", third(Journal._sync_data, lambda self: self._storage.read(self._file.fd, 1, 0)))


def padded(monkeypatch: pytest.MonkeyPatch) -> None:
    def more(fd: int, data: bytes, offset: int, storage: Any) -> None:
        storage.written += 700

    monkeypatch.setattr(journal, "write_at", third(journal.write_at, more))


def published_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "publish", third(file.publish, file.publish))


def folder_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "sync_folder", lambda *arguments: None)


@pytest.mark.parametrize(
    ("worse", "named"),
    [
        (flushed_again, ["run, 40 saves, calls of sync_data"]),
        (flushed_later, ["run, 40 saves, fewest flushes of one"]),
        (read_again, ["run, 40 saves, calls of read"]),
        (padded, ["run, 40 saves, bytes of the others"]),
        (
            published_twice,
            [f"file, 40 saves, calls of {call}" for call in ("chmod", "close", "open", "replace", "resolve", "stat", "sync", "write")]
            + ["file, 40 saves, bytes of the others"],
        ),
        (
            folder_left_out,
            [f"file, 40 saves, {what}" for what in ("fewest flushes of one", "calls of close", "calls of open", "calls of sync")]
            + [f"run, 40 saves, calls of {call}" for call in ("close", "open", "sync")],
        ),
    ],
)
@pytest.mark.usefixtures("without_times")
def test_the_check_without_a_disk_sees_every_flush_call_and_byte(
    worse: Callable[[pytest.MonkeyPatch], None], named: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A product that does something more, or less, in some of the 40 saves only does not pass: exit code 1, and what is not as expected."""
    worse(monkeypatch)
    assert checked(capsys, "--check", "--quick") == (1, [f"usual, {each}" for each in named])


@pytest.mark.usefixtures("without_times")
def test_the_check_without_a_disk_passes_the_product(capsys: pytest.CaptureFixture[str]) -> None:
    """What the product does is what is expected of each state, bytes to a per cent."""
    assert checked(capsys, "check", "--check", "--shapes", "usual,usual-cjk") == (0, [])


def as_fast_as_asked(shape: str) -> dict[str, tuple[list[float], list[float]]]:
    """Samples with which each floor of CPU time is just reached: two rounds of three, as the median has it."""
    from bench.floors import floors

    times = {what: ([least, least, 0.0], [1.0, 1.0, 1.0]) for what, least in floors("check", shape).items() if what not in ("file", "bytes")}
    return {**times, "encode": ([1.0, 1.0, 1.0], [1.4, 1.4, 100.0])}


@pytest.mark.parametrize("what", ["save", "load", "step", "leap", "blocking"])
@pytest.mark.parametrize("shape", ["usual", "usual-cjk", "large"])
@pytest.mark.usefixtures("without_times")
def test_the_check_without_a_disk_sees_more_cpu_time(
    shape: str, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A floor of CPU time that the median of the rounds does not reach is the one that is named, exit code 1; one that it just reaches is not."""
    from bench import check

    samples = as_fast_as_asked(shape)
    monkeypatch.setattr(check, "_times", lambda shape, rounds: samples)
    monkeypatch.setattr(check, "_counts", lambda shape, outcome: [])
    assert checked(capsys, "check", "--check", "--shapes", shape) == (0, [])
    least = samples[what][0][0]
    samples[what] = ([0.99 * least, 0.99 * least, 100 * least], [1.0, 1.0, 1.0])
    assert checked(capsys, "check", "--check", "--shapes", shape) == (1, [f"{shape}, {what}, times less CPU"])


@pytest.mark.usefixtures("without_times")
def test_the_check_without_a_disk_sees_what_the_caller_gives(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In the background the caller may give 1.3 times a bare encode and 0.1 ms, and no more."""
    from bench import check

    samples = as_fast_as_asked("usual") | {"encode": ([1.0, 2.0, 9.0], [1.41, 2.71, 0.1])}
    monkeypatch.setattr(check, "_times", lambda shape, rounds: samples)
    monkeypatch.setattr(check, "_counts", lambda shape, outcome: [])
    assert checked(capsys, "--check", "--quick") == (1, ["usual, blocking ms over 1.3 x a bare encode + 0.1 ms"])


@pytest.mark.usefixtures("without_times")
def test_the_check_without_a_disk_sees_a_slow_difference(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The least of all rounds is judged: what is slow for a while, on a busy machine, is measured again, and what stays slow is named."""
    from bench import check

    slow, busy = [6.01, 9.0], iter([[9.0, 8.0], [7.0, 6.01], [5.9, 12.0]])
    feed = {b"fast": lambda: [0.1], b"slow": lambda: slow, b"busy": lambda: next(busy), b"tiny": lambda: [99.0]}
    monkeypatch.setattr(check, "DIFF_PAUSE", 0)
    monkeypatch.setattr(check, "_counts", lambda shape, outcome: [])
    monkeypatch.setattr(check, "measure", lambda before, message, rounds: {"ms_per_mb": feed[message[:4]]()})
    monkeypatch.setattr(check, "hard", lambda size: [(kind.decode(), b"", kind.ljust(4 if kind == b"tiny" else check.LEAST_BYTES)) for kind in feed])
    assert checked(capsys, "--check", "--quick") == (1, ["difference, worst case (slow), ms for a MB"])
    slow[1], busy = 5.99, iter([[6.0]])
    assert checked(capsys, "--check", "--quick") == (0, [])


def test_a_difference_is_measured_in_the_time_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other threads and processes take meanwhile is none of it, so that the floor holds on a busy machine."""
    from bench import diff

    ticks = itertools.count()
    monkeypatch.setattr(diff.time, "thread_time", lambda: next(ticks) / 500)
    assert diff.measure(b"", bytes(2 * diff.MB), 3)["ms_per_mb"] == pytest.approx([1.0] * 3)


def test_the_check_without_a_disk_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old way and ours go first by turns. In the background the caller's thread is what is timed, otherwise the whole process."""
    from bench import check

    process, thread, order = itertools.count(0, 7), itertools.count(0, 3), list[str]()
    monkeypatch.setattr(check, "time", SimpleNamespace(process_time=lambda: next(process), thread_time=lambda: next(thread)))
    old, ours = check.json.load, check.dropin.load_checkpoint
    monkeypatch.setattr(check.json, "load", lambda *arguments: (order.append("old"), old(*arguments)))
    monkeypatch.setattr(check.dropin, "load_checkpoint", lambda *arguments, **options: (order.append("ours"), ours(*arguments, **options)))
    samples = check._times("small", 2)
    assert order == ["old", "ours", "ours", "old"] * 2
    taken = {"save": 7000, "load": 7000, "step": 7000, "leap": 7000, "blocking": 3000, "encode": 3000}
    assert samples == {what: ([each] * 2, [each] * 2) for what, each in taken.items()}


def test_the_check_without_a_disk_measures_both_ways(tmp_path: Path) -> None:
    """At toy size: CPU time of the replaced module and of ours for each thing that is done, and what one save asks of the disk."""
    made = result(tmp_path, "check", "--shapes", "small", "--rounds", "1")
    for name in ("replaced module", "fastckpt"):
        assert {name_.split(": ")[2] for name_ in made["figures"] if f": {name}: " in name_} == {"save", "load", "step", "leap", "blocking", "encode"}
    flushes = {name: made["figures"][f"small: {name}: flushes"]["samples"] for name in ("run", "run, 40 saves", "file", "file, 40 saves")}
    # The first save of both makes the file, and syncs the directory above, too.
    assert flushes == {"run": [1], "run, 40 saves": [3 + 39], "file": [2], "file, 40 saves": [3 + 39 * 2]}
    usual, every = (made["figures"][f"small: {name}: bytes"]["samples"][0] for name in ("run", "run, 40 saves"))
    assert every > 39 * usual


def test_a_recording_storage_holds_what_a_disk_would(tmp_path: Path) -> None:
    """The same saves leave byte-identical states in memory and on the disk, and as many bytes: what is measured is the product's work."""
    from bench.recording import RecordingStorage
    from fastckpt import CheckpointManager, load, save

    disk = RecordingStorage()
    with CheckpointManager("/run", storage=disk) as ours, CheckpointManager(tmp_path / "run") as real:
        for step in range(5):
            state = {"step": step, "values": list(range(3000 + step))}
            ours.save(step, state)
            real.save(step, state)
        assert [ours.restore(step) for step in range(5)] == [real.restore(step) for step in range(5)]
        assert len(disk.content("/run/checkpoint.fastckpt")) == pytest.approx(Path(real.path).stat().st_size, abs=50)
    save("/one/a.fastckpt", {"a": 1}, storage=disk)
    save("/one/a.fastckpt", {"a": 2}, storage=disk)
    assert load("/one/a.fastckpt", storage=disk) == {"a": 2}
    with pytest.raises(FileNotFoundError):
        load("/one/b.fastckpt", storage=disk)
    written = disk.written
    fd = disk.open("/one/c", os.O_RDWR | os.O_CREAT)
    for data, offset in ((b"abcd", 0), (b"XY", 1), (b"z", 6)):
        disk.write(fd, memoryview(data), offset)
    assert disk.content("/one/c") == b"aXYd\0\0z"
    assert disk.written - written == 7


@needs_orjson
def test_a_contender_that_loads_something_else_is_not_timed(tmp_path: Path) -> None:
    """A product that gives back 1.0 for 1 is refused before anything is timed, by name, with exit code 2."""
    (tmp_path / "fastckpt").mkdir()
    # The rest of the product stays the real one.
    (tmp_path / "fastckpt" / "__init__.py").write_text(
        f"__path__.append({str(Path(fastckpt.__file__).parent)!r})\nfrom fastckpt.manager import CheckpointManager, SaveStats", encoding="utf-8"
    )
    stand_in = """
        import json, bench.workloads
        from fastckpt.errors import CheckpointError
        def write_checkpoint(folder, *, state, global_step, **others):
            payload = bench.workloads.payload(state, global_step, vars(bench.workloads.CONFIG))
            payload["progress"]["total_steps"] = float(payload["progress"]["total_steps"])
            (folder / "checkpoint.fastckpt").write_text(json.dumps(payload))
        def load_checkpoint(folder):
            return json.loads((folder / "checkpoint.fastckpt").read_text())
    """
    (tmp_path / "fastckpt" / "dropin.py").write_text("if True:" + stand_in, encoding="utf-8")
    run = python(tmp_path, "-m", "bench", "save", "--quick", "--shapes", "small", "--rounds", "1", "--json", "result.json", product=tmp_path)
    assert run.returncode == 2
    assert run.stderr == "bench: fastckpt, one file does not load the payload that was saved, so its times would mean nothing\n"
    assert not (tmp_path / "result.json").exists()


def test_a_missing_extra_is_named_with_its_remedy(tmp_path: Path) -> None:
    """Without orjson nothing is measured: one line names the module and the command that installs it, exit code 2."""
    hidden = (
        "import importlib.util as util\nfind = util.find_spec\nutil.find_spec = lambda name, *more: find(name, *more) if name != 'orjson' else None"
    )
    run = python(tmp_path, *with_bench(hidden, "save", "--quick"))
    assert run.returncode == 2
    assert run.stderr == "bench: orjson is not installed; it comes with the extra `bench`: run `pip install '.[bench]'` in the checkout\n"


@pytest.mark.parametrize("arguments", [["save", "--shapes", "huge"], ["save", "--rounds", "0"], ["scale", "--sizes", "-1"], ["rest"]])
def test_what_the_command_line_does_not_know_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    """An unknown state, zero rounds, no size or an unknown case is a usage error, told in one line below the usage."""
    run = python(tmp_path, "-m", "bench", *arguments)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith("python -m bench")
    assert "Traceback" not in run.stderr


def test_compare_says_what_changed_and_whether_the_spreads_are_apart(tmp_path: Path) -> None:
    """Of two results: a figure whose spreads are apart is slower or faster, one within the spread is said to be, what is gone is named."""
    from bench.report import compared

    def document(**samples: list[float]) -> dict[str, Any]:
        return {"figures": {name: {"unit": "ms", "samples": values} for name, values in samples.items()}}

    old = document(up=[1, 1.1, 1.2] * 2, down=[8, 9, 10] * 2, noise=[1, 2, 3] * 2, same=[4], gone=[1])
    lines = compared(old, document(up=[2, 2.2, 2.4] * 2, down=[4, 4.5, 5] * 2, noise=[1, 2.2, 3.1] * 2, same=[4], fresh=[1])).splitlines()
    said = {line.split()[0]: line for line in lines[1:-2]}
    assert "+100.0%" in said["up"]
    assert said["up"].endswith("slower or larger")
    assert "-50.0%" in said["down"]
    assert said["down"].endswith("faster or smaller")
    assert said["noise"].endswith("within the spread")
    assert said["same"].endswith("same")
    assert lines[-2:] == ["only before: gone", "only after: fresh"]


def test_the_command_compares_with_an_earlier_result_of_the_same_case(tmp_path: Path) -> None:
    """`--compare` prints the comparison after the table; a result of another case, or another file, is refused by name."""
    arguments = ["migrate", "--shapes", "small", "--rounds", "1"]
    result(tmp_path, *arguments)
    again = python(tmp_path, "-m", "bench", *arguments, "--compare", "result.json")
    assert again.returncode == 0, again.stderr
    assert "against result.json" in again.stdout
    assert "small: migrate" in again.stdout
    other = python(tmp_path, "-m", "bench", "retain", "--compare", "result.json")
    assert (other.returncode, other.stderr) == (2, "bench: result.json holds the case migrate, not retain\n")
    (tmp_path / "other.json").write_text("[1]")
    other = python(tmp_path, "-m", "bench", "retain", "--compare", "other.json")
    assert other.returncode == 2
    assert other.stderr.startswith("bench: other.json is not what `--json` writes")


def test_a_dashboard_gets_json_alone(tmp_path: Path) -> None:
    """With `--format github-action-benchmark` standard output is a list of name, unit and value, and the table is on the standard error."""
    done = python(tmp_path, "-m", "bench", "migrate", "--shapes", "small", "--rounds", "2", "--format", "github-action-benchmark")
    assert done.returncode == 0, done.stderr
    entries = json.loads(done.stdout)
    assert {entry["name"] for entry in entries} == {"migrate: small: migrate", "migrate: small: parsing alone"}
    assert all(entry["unit"] == "ms" and entry["value"] > 0 for entry in entries)
    assert "files a second" in done.stderr


def test_a_recorded_figure_keeps_its_spread_in_few_numbers() -> None:
    """Of many samples the percentiles are kept, of equal ones one, four digits of each; median and spread stay what they were."""
    from bench.report import figures_of, recorded, written

    samples = [1 + number / 997 for number in range(997)]
    document = {"case": "x", "figures": {"a": {"unit": "ms", "samples": samples}, "b": {"unit": "B", "samples": [7, 7]}}, "ratios": {}}
    kept = json.loads(written(recorded(document)))
    assert kept["figures"]["b"] == {"unit": "B", "samples": [7]}
    assert kept["figures"]["a"]["percentiles_of"] == 997
    before, after = figures_of(document)["a"], figures_of(kept)["a"]
    assert len(after.samples) < 30
    for at in (10, 90):
        assert after.at(at) == pytest.approx(before.at(at), abs=0.001)
    assert after.median == pytest.approx(before.median, abs=0.001)


needs_readme = pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="the README is not beside the tests")


@needs_readme
def test_the_readme_says_what_was_recorded() -> None:
    """The README's benchmark section is the one that `python -m bench readme` makes of bench/results."""
    from bench.readme import README, RESULTS, renewed, section

    assert renewed(README.read_text("utf-8"), section(RESULTS)) == README.read_text("utf-8"), "run `python -m bench readme`"


@needs_readme
def test_another_result_changes_the_section(tmp_path: Path) -> None:
    """A figure that is recorded anew shows in the section, and one that is first no longer stands among those that are not."""
    from bench.readme import RESULTS, section

    for path in RESULTS.glob("*.json"):
        document = json.loads(path.read_text("utf-8"))
        for name, figure in document["figures"].items():
            if "fastckpt run, sync" in name or name.startswith("usual: fastckpt, one file"):
                figure["samples"] = [0.000987]
        (tmp_path / path.name).write_text(json.dumps(document), "utf-8")
    before, after = section(RESULTS), section(tmp_path)
    assert "0.0010 ms" not in before
    assert "0.0010 ms" in after
    assert "| `usual` in one file |" in before
    assert "| `usual` in one file |" not in after


@needs_linux
def test_the_case_memory_at_toy_size(tmp_path: Path) -> None:
    """The case `memory` runs and gives a peak for each way of saving; how large it is depends on the machine."""
    made = result(tmp_path, "memory", "--shapes", "small", "--rounds", "2")
    assert parts(made, 1) == {"sync", "async"}
    assert parts(made, 2) == {"checks auto", "checks never"}
    assert all(figure["samples"][-1] > 0 for figure in made["figures"].values())


@needs_linux
def test_a_writer_holds_at_most_so_many_messages(tmp_path: Path) -> None:
    """On `usual`, checks included, a writer holds at most 4 times the message beside the state, 5 in the background; allocations, not time."""
    done = python(tmp_path, "-m", "bench", "memory", "--shapes", "usual", "--rounds", "24", "--check")
    assert done.returncode == 0, done.stderr
