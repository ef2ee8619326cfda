"""The commands for a run's life: compact, log --follow, inspect --schema."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import test_cli
from support import assert_same, everything_in, needs_linux, needs_posix
from test_cli import ENVIRONMENT, PROGRAM, Run, one_line

from fastckpt import CheckpointManager, save, verify

NAME = "checkpoint.fastckpt"
run = test_cli.run  # the fixture


def state(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "answers": {f"q {i}": i % 3 == 0 for i in range(40)},
        "rows": [{"n": i * 7919 % (step + 50), "x": None} for i in range(400)],
    }


@pytest.fixture
def long_run(tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path, round_trip="never", fsync=False) as manager:
        for step in range(60):
            manager.save(step, state(step), metrics={"accuracy": step % 7})
    return tmp_path / NAME


# --- compact ---------------------------------------------------------------------------------------------------------


def test_compact_keeps_what_the_options_say(run: Run, long_run: Path) -> None:
    """The line says sizes and numbers; what is kept restores equal, the file is smaller and sound; a second time there is nothing to do."""
    before = long_run.stat().st_size
    ran = run("compact", long_run.parent, "--max-to-keep", 3, "--keep-period", 20)
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines[0].startswith(f"compacted {long_run}: ")
    assert "6 steps kept" in ran.lines[0]
    assert long_run.stat().st_size < before / 2
    assert verify(long_run) == []
    with CheckpointManager(long_run.parent, read_only=True) as manager:
        assert manager.all_steps() == [0, 20, 40, 57, 58, 59]
        for step in manager.all_steps():
            assert_same(manager.restore(step), state(step))
    assert run("compact", long_run, "--max-to-keep", 3, "--keep-period", 20).lines == [f"compact   {long_run}: nothing to drop"]


def test_compact_dry_run_changes_nothing_and_says_why(run: Run, long_run: Path) -> None:
    """Each step with its verdict and the reasons, a summary, no byte written, no lock taken: beside a running writer too."""
    (long_run.parent / f"{NAME}.lock").unlink()
    data, files = long_run.read_bytes(), everything_in(long_run.parent)
    ran = run("compact", long_run, "--max-to-keep", 2, "--best", "accuracy", "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines[0].split() == ["step", "plan", "why"]
    assert ran.lines[1].split(maxsplit=2) == ["0", "drop", "not one of the 2 best (accuracy 0)"]
    assert ran.lines[56].split(maxsplit=2) == ["55", "keep", "one of the 2 best (accuracy 6)"]
    assert ran.lines[60].split(maxsplit=2) == ["59", "keep", "newest"]
    assert ran.lines[61] == f"dry run   {long_run}: 3 steps would be kept, 57 dropped"
    assert long_run.read_bytes() == data
    assert everything_in(long_run.parent) == files


def test_compact_for_machines(run: Run, long_run: Path) -> None:
    """--json has each step with its reasons, and what the compaction did."""
    document = json.loads(run("compact", long_run, "--max-to-keep", 2, "--dry-run", "--json").out)
    assert document["compaction"] is None
    assert document["steps"][0] == {"step": 0, "keep": False, "reasons": ["not one of the 2 newest"]}
    document = json.loads(run("compact", long_run, "--max-to-keep", 2, "--json").out)
    assert document["compaction"]["after"] == long_run.stat().st_size
    assert [each["step"] for each in document["steps"] if each["keep"]] == [58, 59]


def test_compact_refuses_what_makes_no_sense(run: Run, long_run: Path, tmp_path: Path) -> None:
    """Options that need another one, unknown words, a missing run, and a run that is being written."""
    assert run("compact", long_run, "--keep-period", 5).code == 2
    for seconds in ("0", "-5", "nan"):
        ran = run("compact", long_run, "--max-to-keep", 1, "--keep-time-interval", seconds)
        assert ran.code == 2
        one_line(ran, "keep_time_interval")
    assert run("compact", long_run, "--max-to-keep", 1, "--best", "accuracy", "--best-mode", "most").code == 2
    ran = run("compact", tmp_path / "nothing.fastckpt", "--dry-run")
    assert ran.code == 3
    for path in (tmp_path / "typo" / "run", tmp_path / "nothing.fastckpt"):  # and nothing is made
        assert run("compact", path).code == 3
        assert not path.parent.joinpath("run").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, f"{NAME}.lock"]
    assert run("diff", long_run, "9" * 5000).code in (2, 3)
    with CheckpointManager(long_run.parent):
        ran = run("compact", long_run)
        assert ran.code == 9
        one_line(ran, "is being written", os.getpid())


# --- log --follow ----------------------------------------------------------------------------------------------------


@needs_posix
@pytest.mark.parametrize("as_json", [False, True])
def test_follow_shows_steps_as_they_are_saved(tmp_path: Path, as_json: bool) -> None:
    """The last steps first, then each new one as it is saved, across a compaction and a rewind too; Ctrl-C is how it ends, exit code 0."""
    with CheckpointManager(tmp_path, max_to_keep=4, round_trip="never") as manager:
        for step in range(20):
            manager.save(step, state(step), metrics={"loss": 1 / (step + 1)})
        command = [*PROGRAM, "log", str(tmp_path), "--follow", "--last", "3", *(["--json"] if as_json else [])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        assert process.stdout is not None

        def steps(count: int) -> list[int]:
            lines = [process.stdout.readline() for _ in range(count)]
            return [json.loads(line)["step"] if as_json else int(line.split()[0]) for line in lines]

        if not as_json:
            assert process.stdout.readline().split()[:2] == ["step", "record"]
        assert steps(3) == [17, 18, 19]
        manager.save(20, state(20))
        assert steps(1) == [20]
        manager.compact()
        manager.save(21, state(21))
        assert steps(1) == [21]
        manager.rewind(20)
        manager.save(21, {"again": True})
        assert steps(1) == [21]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
        assert (rest, errors, process.returncode) == ("", "", 0)


@needs_linux
def test_follow_on_a_terminal_is_a_live_table(tmp_path: Path) -> None:
    """On a terminal: a table that is redrawn, and below it how many steps came and how large the file is."""
    import pty

    reader, terminal = pty.openpty()
    with CheckpointManager(tmp_path, round_trip="never") as manager:
        manager.save(0, state(0), metrics={"loss": 0.5})
        environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "120", "LINES": "20"}
        process = subprocess.Popen([*PROGRAM, "log", str(tmp_path), "-f"], stdout=terminal, stderr=subprocess.PIPE, env=environment)
        os.close(terminal)
        shown = b""
        deadline = time.monotonic() + 30
        saved = 0
        while b"2 steps since this began" not in shown and time.monotonic() < deadline:
            shown += os.read(reader, 65536)
            if saved < 2 and b"0 steps since this began" in shown:
                saved += 1
                manager.save(saved, state(saved))
        process.send_signal(signal.SIGINT)
        try:
            while part := os.read(reader, 65536):
                shown += part
        except OSError:  # EIO: the other end is closed
            pass
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(reader)
    text = shown.decode()
    assert "loss=0.5" in text
    assert "2 steps since this began" in text
    assert "file " in text


# --- inspect --schema ------------------------------------------------------------------------------------------------


def test_inspect_schema(run: Run, tmp_path: Path) -> None:
    """Every place with the kinds of values in it and how many; what is alike has one place; type, fingerprint and version come first."""
    with CheckpointManager(tmp_path, dict[str, Any], schema_version=3) as manager:
        manager.save(0, state(0))
    ran = run("inspect", tmp_path, "--schema")
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines[0].startswith("type      dict[str, ")
    assert ran.lines[1] == "version   3"
    places = dict(line.split(maxsplit=1) for line in ran.lines[3:])
    assert places == {
        "$": "dict", "$.step": "int", "$.answers": "dict", "$.answers[*]": "40 bool", "$.rows": "list", "$.rows[*]": "400 dict",
        "$.rows[*].n": "400 int", "$.rows[*].x": "400 None",
    }  # fmt: skip
    save(tmp_path / "one.fastckpt", [1, 2.0, "x", None])
    ran = run("inspect", tmp_path / "one.fastckpt", "--schema", "--json")
    document = json.loads(ran.out)
    assert document["type"] == ""
    assert document["places"][1] == {"path": "$[*]", "holds": {"int": 1, "float": 1, "str": 1, "None": 1}}
