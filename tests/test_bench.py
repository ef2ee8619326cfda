"""The benchmark at toy size, so that it cannot rot: what it measures is right and complete. No test looks at a time."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import needs_linux

import fastckpt

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("FASTCKPT_SHARED", ROOT.parent / "shared"))
DEFINITION = SHARED / "tools" / "shapes.py"
CONTENDERS = {"replaced module", "json compact + fsync", "orjson + fsync", "fastckpt"}

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
    return "-c", f"import sys\nimport bench.save\nfrom bench.__main__ import main\n{lines}\nsys.exit(main({list(arguments)!r}))"


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
    """A toy run names all contenders in its table and gives a well-formed result: every sample, ratios, machine, disk, versions."""
    (tmp_path / "disk").mkdir()
    run = python(tmp_path, "-m", "bench", "save", "--quick", "--shapes", "small", "--rounds", "2", "--dir", "disk", "--json", "result.json")
    assert run.returncode == 0, run.stderr
    assert all(name in run.stdout for name in CONTENDERS)
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["case"] == "save"
    assert result["machine"]["cpus"] > 0
    assert result["filesystem"]["type"]
    assert result["versions"]["python"]
    assert set(result["shapes"]) == {"small"}
    small = result["shapes"]["small"]
    assert small["rounds"] == 2
    assert set(small["samples"]) == set(small["ratios"]) == CONTENDERS
    for name, samples in small["samples"].items():
        assert set(samples) == {"save_seconds", "save_cpu_seconds", "bytes", "load_seconds", "load_cpu_seconds"}
        assert all(len(values) == 2 and min(values) >= 0 for values in samples.values())
        assert min(samples["save_seconds"] + samples["load_seconds"] + samples["bytes"]) > 0
        assert {key: set(ratio) for key, ratio in small["ratios"][name].items()} == {key: {"median", "p10", "p90"} for key in samples}
    assert list((tmp_path / "disk").iterdir()) == []


@needs_orjson
def test_check_names_the_floor_that_is_not_reached(tmp_path: Path) -> None:
    """With `--check` a floor out of reach gives exit code 1 and one line that names it; the reached one is not named."""
    floors = "bench.save.FLOORS = {'small': {'save_seconds': 0.0, 'bytes': 1e9, 'load_seconds': 0.0}}"
    run = python(tmp_path, *with_bench(floors, "save", "--quick", "--shapes", "small", "--rounds", "1", "--check"))
    assert run.returncode == 1
    [line] = run.stderr.splitlines()
    assert line.startswith("bench: floor not reached: fastckpt, small, file: ")


@needs_orjson
def test_a_contender_that_loads_something_else_is_not_timed(tmp_path: Path) -> None:
    """A product that gives back 1.0 for 1 is refused before anything is timed, by name, with exit code 2."""
    (tmp_path / "fastckpt").mkdir()
    # The rest of the product stays the real one.
    (tmp_path / "fastckpt" / "__init__.py").write_text(f"__path__.append({str(Path(fastckpt.__file__).parent)!r})", encoding="utf-8")
    stand_in = """
        import json, bench.contenders
        def write_checkpoint(folder, *, state, global_step, **others):
            payload = bench.contenders.whole_payload(state, global_step)
            payload["progress"]["total_steps"] = float(payload["progress"]["total_steps"])
            (folder / "checkpoint.fastckpt").write_text(json.dumps(payload))
        def load_checkpoint(folder):
            return json.loads((folder / "checkpoint.fastckpt").read_text())
    """
    (tmp_path / "fastckpt" / "dropin.py").write_text("if True:" + stand_in, encoding="utf-8")
    run = python(tmp_path, "-m", "bench", "save", "--quick", "--shapes", "small", "--rounds", "1", "--json", "result.json", product=tmp_path)
    assert run.returncode == 2
    assert run.stderr == "bench: fastckpt does not load the payload that was saved, so its times would mean nothing\n"
    assert not (tmp_path / "result.json").exists()


def test_a_missing_extra_is_named_with_its_remedy(tmp_path: Path) -> None:
    """Without orjson nothing is measured: one line names the module and the command that installs it, exit code 2."""
    run = python(tmp_path, *with_bench("sys.modules['orjson'] = None", "save", "--quick"))
    assert run.returncode == 2
    assert run.stderr == "bench: orjson is not installed; it comes with the extra `bench`: run `pip install '.[bench]'` in the checkout\n"


@pytest.mark.parametrize("arguments", [["save", "--shapes", "huge"], ["save", "--rounds", "0"], ["rest"]])
def test_what_the_command_line_does_not_know_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    """An unknown shape, zero rounds or an unknown case is a usage error, told in one line below the usage."""
    run = python(tmp_path, "-m", "bench", *arguments)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith("python -m bench")
    assert "Traceback" not in run.stderr


@needs_linux
def test_the_case_memory_at_toy_size(tmp_path: Path) -> None:
    """The case `memory` runs and gives a peak for each way of saving; how large it is depends on the machine."""
    done = python(tmp_path, "-m", "bench", "memory", "--quick", "--shapes", "small", "--rounds", "2", "--json", "result.json")
    assert done.returncode == 0, done.stderr
    peaks = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["peaks"]
    assert {(peak["durability"], peak["round_trip"]) for peak in peaks} == {(d, r) for d in ("sync", "async") for r in ("auto", "never")}
    assert all(peak[kind][-1] > 0 for peak in peaks for kind in ("held", "resident"))


@needs_linux
def test_a_writer_holds_at_most_so_many_messages(tmp_path: Path) -> None:
    """On `usual`, checks included, a writer holds at most 4 times the message beside the state, 5 in the background; allocations, not time."""
    done = python(tmp_path, "-m", "bench", "memory", "--shapes", "usual", "--rounds", "24", "--check")
    assert done.returncode == 0, done.stderr
