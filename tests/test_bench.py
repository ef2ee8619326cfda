"""The benchmark at toy size, so that it cannot rot: what it measures is right and complete. No test looks at a time."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import needs_linux

import fastckpt

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
    """Blocking and total time of every step, and the bytes of it: the whole state for who replaces a file, far fewer for a run; in the
    background the loop waits for less than the whole save. A step that replaces a pack writes more."""
    made = result(tmp_path, "run", "--shapes", "small", "--steps", "6", "--rounds", "2")
    assert parts(made, 1) >= RUNS
    figures = {name: figure["samples"] for name, figure in made["figures"].items()}
    for name in RUNS:
        assert len(figures[f"small: {name}: total"]) == 6
        assert all(a <= b for a, b in zip(figures[f"small: {name}: blocking"], figures[f"small: {name}: total"], strict=True))
    whole, ours = (figures[f"small: {name}: bytes"] for name in ("replaced module", "fastckpt run, sync"))
    assert min(whole) > 100_000
    assert 0 < max(ours) < 30_000
    assert min(figures["small: fastckpt run, sync: leap, bytes"]) > sorted(ours)[len(ours) // 2]
    assert len(figures["small: fastckpt run, async: caller, blocking"]) == 4


@needs_orjson
def test_a_slow_contender_saves_some_steps_of_a_long_run(tmp_path: Path) -> None:
    """Of 6 steps, with 3 for the slow ones, those save each other one, and ratios are of the same steps."""
    done = python(
        tmp_path,
        *with_bench(f"{FEW}\nbench.run.SLOW_STEPS = 3", "run", "--shapes", "small", "--steps", "6", "--rounds", "1", "--json", "result.json"),
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["figures"]
    assert len(figures["small: replaced module: total"]["samples"]) == 3
    assert len(figures["small: fastckpt run, sync: total"]["samples"]) == 6


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


def test_the_check_without_a_disk_sees_more_flushes_calls_and_bytes(tmp_path: Path) -> None:
    """`python -m bench --check --quick` on a product that syncs an append twice, and pads each record, names calls and bytes; exit code 1."""
    lines = """
import bench.check as check
check.QUICK_SHAPES, check.hard = ["usual"], lambda size: []
check._times = lambda shape, rounds: {what: ([100.0], [1.0]) for what in ("save", "load", "step", "leap", "blocking")} | {"encode": ([1.0], [1.0])}
"""
    well = python(tmp_path, *with_bench(lines, "--check", "--quick"))
    assert (well.returncode, well.stderr) == (0, ""), well.stderr
    lines += """
from fastckpt.journal import Journal
from fastckpt.storage import Storage
import fastckpt.journal as journal
real, sync = journal.write_at, Journal._sync_data
def padded(fd, data, offset, storage):
    real(fd, data, offset, storage)
    if len(data) > 5000: storage.written += len(data) // 40
journal.write_at = padded
def twice(self):
    sync(self); sync(self)
Journal._sync_data = twice
"""
    worse = python(tmp_path, *with_bench(lines, "--check", "--quick"))
    assert worse.returncode == 1
    named = [line.removeprefix("bench: floor not reached: usual, run, ").partition(":")[0] for line in worse.stderr.splitlines()]
    assert named == ["calls of sync_data", "bytes"]


def test_the_check_without_a_disk_measures_both_ways(tmp_path: Path) -> None:
    """At toy size: CPU time of the replaced module and of ours for each thing that is done, and what one save asks of the disk."""
    made = result(tmp_path, "check", "--shapes", "small", "--rounds", "1")
    for name in ("replaced module", "fastckpt"):
        assert {name_.split(": ")[2] for name_ in made["figures"] if f": {name}: " in name_} == {"save", "load", "step", "leap", "blocking", "encode"}
    assert made["figures"]["small: run: flushes"]["samples"] == [1]
    assert made["figures"]["small: file: flushes"]["samples"] == [2]


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

    old = document(up=[1, 1.1, 1.2], down=[8, 9, 10], noise=[1, 2, 3], same=[4], gone=[1])
    lines = compared(old, document(up=[2, 2.2, 2.4], down=[4, 4.5, 5], noise=[1, 2.2, 3.1], same=[4], fresh=[1])).splitlines()
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
        assert after.at(at) == pytest.approx(before.at(at), abs=0.06)
    assert after.median == pytest.approx(before.median, abs=0.06)


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
