"""The commands for runs: log, repair, export of steps, and what inspect and verify say of a run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import test_cli
from support import assert_same, everything_in
from test_cli import Run, one_line, run_program

import fastckpt
from fastckpt.codec import Codec
from fastckpt.container import TRAILER_SIZE
from fastckpt.journal import Journal
from fastckpt.lock import Lock
from fastckpt.reader import Entry, Reader

NAME = "checkpoint.fastckpt"
run = test_cli.run  # the fixture


def state(step: int) -> dict[str, Any]:
    return {"step": step, "text": "检查点" * (step + 1), "scores": [step / 3] * 40}


def write_run(folder: Path, steps: range = range(6)) -> Path:
    """A run as a training loop leaves it; each step is a base, so that damage stays where it is."""
    journal = Journal(folder / NAME)
    for step in steps:
        encoded = Codec().encode(state(step))
        journal.append(*encoded[:1], has_ext=encoded.has_ext, step=step, metrics={"loss": 1 / (step + 3)}, meta={"note": f"n{step}"}, base=True)
    journal.close()
    return folder / NAME


def records(path: Path) -> dict[int | None, Entry]:
    reader = Reader(path)
    found = {entry.header.step: entry for entry in reader.entries()}
    reader.close()
    return found


def damage(path: Path, step: int) -> None:
    """Flip a bit in the frame of a step."""
    entry = records(path)[step]
    data = bytearray(path.read_bytes())
    data[entry.offset + entry.length - TRAILER_SIZE - 5] ^= 1
    path.write_bytes(data)


# --- log -------------------------------------------------------------------------------------------------------------


def test_log_lists_the_steps(run: Run, tmp_path: Path) -> None:
    """Each live step is a line, the newest last: step, record, time, sizes, base, metrics, meta; a directory means the run in it."""
    path = write_run(tmp_path)
    ran = run("log", path)
    assert (ran.code, ran.err) == (0, "")
    head, *lines = ran.lines
    assert head.split() == ["step", "record", "written", "(UTC)", "message", "in", "file", "base", "metrics", "meta"]
    assert [line.split()[:2] for line in lines] == [[str(step), str(step + 1)] for step in range(6)]
    entry = records(path)[3]
    assert re.search(rf"\d\d:\d\d:\d\d +{entry.header.message:,} +{entry.length:,}  base  loss=0.166667  note=n3$", lines[3])
    assert run("log", tmp_path).out == ran.out
    assert run("log", path, "--last", 2).lines[1:] == [line for line in ran.lines if line.split()[0] in "45"]


def test_log_for_machines(run: Run, tmp_path: Path) -> None:
    """--json has everything exactly, metrics among it."""
    path = write_run(tmp_path)
    document = json.loads(run("log", path, "--json", "--last", 1).out)
    entry = records(path)[5]
    (record,) = document.pop("records")
    assert document == {"path": str(path), "kind": "run", "damage": None, "gaps": []}
    assert_same(
        record,
        {"step": 5, "sequence": 6, "kind": "state", "live": True, "base": True, "time": entry.header.time, "message_bytes": entry.header.message,
         "file_bytes": entry.length, "previous_blocked_seconds": entry.header.blocked / 1e6 or None, "stream": "", "key": "", "retires": [],
         "metrics": {"loss": 0.125}, "meta": {"note": "n5"}},
    )  # fmt: skip


def test_log_of_what_was_retired(run: Run, tmp_path: Path) -> None:
    """Steps that were deleted are listed with --all only, marked, with the tombstone that says so; streams and keys are shown."""
    path = write_run(tmp_path)
    journal = Journal(path)
    journal.tombstone([(1, 2), (4, None)])
    journal.append(b"\x01", step=4, stream="other", key="k")
    journal.close()
    assert [line.split()[0] for line in run("log", path).lines] == ["step", "0", "3", "4"]
    ran = run("log", path, "--all")
    assert [line.split()[0] for line in ran.lines] == ["step", "0", "1", "2", "3", "4", "5", "-", "4"]
    assert ["retired" in line for line in ran.lines] == [False, False, True, True, False, True, True, False, False]
    assert ran.lines[7].endswith("tombstone  1 to 2, 4 on")
    assert ran.lines[8].endswith("other   k")
    assert [record["live"] for record in json.loads(run("log", path, "--all", "--json").out)["records"]] == [
        True,
        False,
        False,
        True,
        False,
        False,
        False,
        True,
    ]


def test_log_never_reads_a_message(run: Run, tmp_path: Path) -> None:
    """A step whose message is destroyed is listed like the others: only headers are read (and the newest record, on opening)."""
    path = write_run(tmp_path)
    before = run("log", path)
    damage(path, 2)
    assert run("log", path) == before


def test_log_of_a_damaged_run(run: Run, tmp_path: Path) -> None:
    """What is wrong at the end or in between is one warning with the place and the remedy, and the whole steps are listed."""
    path = write_run(tmp_path)
    entry = records(path)[5]
    os.truncate(path, entry.offset + entry.length - 50)
    ran = run("log", path)
    one_line(ran, "warning", path, "the file ends inside a record", f"byte {entry.offset}", "the next save mends it")
    assert ran.code == 0
    assert len(ran.lines) == 6
    assert json.loads(run("log", path, "--json").out)["damage"]["torn"] is True
    data = bytearray(path.read_bytes())
    data[records(path)[1].offset + 20] ^= 1
    path.write_bytes(data)
    ran = run("log", path)
    one_line(ran, "warning", "1 place more", "fastckpt repair")
    assert [line.split()[0] for line in ran.lines[1:]] == ["0", "2", "3", "4"]


def test_log_of_a_single_file(run: Run, tmp_path: Path) -> None:
    """A file of one checkpoint has one line."""
    fastckpt.save(tmp_path / "x", state(1), meta={"a": 1})
    ran = run("log", tmp_path / "x")
    assert (ran.code, ran.err, len(ran.lines)) == (0, "", 2)
    assert ran.lines[1].endswith("base  a=1")


def test_log_keeps_to_its_lines(run: Run, tmp_path: Path) -> None:
    """What people put into metadata cannot end a line or move the cursor, and a long one is cut; --json has all of it."""
    meta = {"evil": "a\nb\x1b[2J", "long": "x" * 500}
    fastckpt.save(tmp_path / "x", 1, meta=meta)
    ran = run("log", tmp_path / "x")
    assert len(ran.lines) == 2
    assert rb"evil=a\nb\x1b[2J long=xxx" in ran.out
    assert len(ran.lines[1]) < 200
    assert json.loads(run("log", tmp_path / "x", "--json").out)["records"][0]["meta"] == meta


@pytest.mark.parametrize("command", ["log", "repair", "inspect"])
@pytest.mark.parametrize(
    ("content", "code", "words"),
    [(None, 3, "no such file"), (b"", 4, "empty"), (b"{}", 4, "not a checkpoint"), (bytes(4096), 4, "zeros"), (b"\x1f\x8b\x08\x00", 4, "not a checkpoint")],
)  # fmt: skip
def test_what_is_no_run(command: str, content: bytes | None, code: int, words: str, run: Run, tmp_path: Path) -> None:
    """What is no file of ours, or nothing is left of, is one line with the place and the exit code of its kind; nothing is written."""
    path = tmp_path / NAME
    if content is not None:
        path.write_bytes(content)
    ran = run(command, path)
    one_line(ran, path, words)
    assert (ran.code, ran.out) == (code, b"")
    assert everything_in(tmp_path) == ([] if content is None else [NAME])


# --- repair ----------------------------------------------------------------------------------------------------------


def test_repair(run: Run, tmp_path: Path) -> None:
    """A damaged run is repaired: what is lost and why, what is kept, where the old file is; then it is sound, and there is nothing to do."""
    path = write_run(tmp_path)
    for step in (2, 3):
        damage(path, step)
    damaged = path.read_bytes()
    ran = run("verify", path)
    assert ran.code == 4
    assert ran.err.count("\n") == 2
    ran = run("repair", tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert [line.split(":")[0] for line in ran.lines[:2]] == ["lost      step 2", "lost      step 3"]
    assert "frame checksum mismatch" in ran.lines[0]
    assert ran.lines[2:] == [f"repaired  {path}: 4 steps kept (0 to 1, 4 to 5), 2 lost", f"aside     the old file is {path}.aside.1"]
    assert Path(f"{path}.aside.1").read_bytes() == damaged
    assert run("verify", path).code == 0
    assert [line.split()[:2] for line in run("log", path).lines[1:]] == [["0", "1"], ["1", "2"], ["4", "5"], ["5", "6"]]
    ran = run("repair", path)
    assert (ran.code, ran.err, ran.lines) == (0, "", [f"sound  {path}: nothing to repair"])
    assert everything_in(tmp_path) == [NAME, f"{NAME}.aside.1", f"{NAME}.lock"]


def test_repair_for_machines(run: Run, tmp_path: Path) -> None:
    """--json says the same, also that a run is sound."""
    path = write_run(tmp_path)
    assert json.loads(run("repair", path, "--json").out) == {"path": str(path), "sound": True, "kept": [], "lost": [], "aside": None}
    damage(path, 4)
    document = json.loads(run("repair", path, "--json").out)
    assert (document["sound"], document["kept"], document["aside"]) == (False, [0, 1, 2, 3, 5], f"{path}.aside.1")
    assert [(lost["step"], lost["sequence"]) for lost in document["lost"]] == [(4, 5)]


def test_repair_that_is_refused(run: Run, tmp_path: Path) -> None:
    """A damaged single file, and a run that somebody writes, are one line each with their exit codes; nothing is changed."""
    single = tmp_path / "x"
    fastckpt.save(single, state(1))
    data = bytearray(single.read_bytes())
    data[-60] ^= 1
    single.write_bytes(data)
    ran = run("repair", single)
    one_line(ran, single, "nothing was changed")
    assert ran.code == 4
    path = write_run(tmp_path)
    damage(path, 1)
    before = path.read_bytes()
    lock = Lock(f"{path}.lock")
    ran = run("repair", path)
    lock.release()
    one_line(ran, path, f"by process {os.getpid()}")
    assert ran.code == 9
    assert (single.read_bytes(), path.read_bytes()) == (data, before)


# --- export, inspect, verify -----------------------------------------------------------------------------------------


def exported(step: int) -> bytes:
    return json.dumps(state(step), ensure_ascii=False, indent=2).encode()


def test_export_a_step(run: Run, tmp_path: Path) -> None:
    """--step exports one step to standard output or a file, without it the newest; one that is not there is not found."""
    path = write_run(tmp_path)
    assert run("export", path).out == exported(5)
    assert run("export", tmp_path, "--step", 2).out == exported(2)
    ran = run("export", path, "--step", 0, "-o", tmp_path / "out.json")
    assert (ran.code, ran.err) == (0, "")
    assert (tmp_path / "out.json").read_bytes() == exported(0)
    ran = run("export", path, "--step", 77)
    one_line(ran, path, "77", "fastckpt log")
    assert (ran.code, ran.out) == (3, b"")


def test_export_a_step_of_a_single_file(run: Run, tmp_path: Path) -> None:
    """Of a file of one checkpoint only its own step can be asked for."""
    (tmp_path / "checkpoint.json").write_bytes(b'{"progress": {"global_step": 7}}')
    run("migrate", tmp_path)
    assert run("export", tmp_path, "--step", 7).code == 0
    ran = run("export", tmp_path, "--step", 8)
    one_line(ran, tmp_path / NAME, "no step 8, but step 7 alone")
    assert ran.code == 3


def test_export_all_steps(run: Run, tmp_path: Path) -> None:
    """--all writes each live step to step-N.json in a new directory; again it does nothing, and what is another file stays without --force."""
    path = write_run(tmp_path)
    journal = Journal(path)
    journal.tombstone([(1, 1)])
    journal.close()
    out = tmp_path / "a" / "out"
    ran = run("export", tmp_path, "--all", "-o", out)
    assert (ran.code, ran.err) == (0, "")
    (line,) = ran.lines
    assert line.startswith(f"exported  5 steps of {path} -> {out}  ")
    assert {name: (out / name).read_bytes() for name in everything_in(out)} == {f"step-{step}.json": exported(step) for step in (0, 2, 3, 4, 5)}
    assert run("export", path, "--all", "-o", out).code == 0
    (out / "step-3.json").write_text("mine")
    ran = run("export", path, "--all", "-o", out)
    one_line(ran, "step 3: ", out / "step-3.json", "--force")
    assert ran.code == 1
    assert ran.lines[0].endswith(", 1 failed")
    assert (out / "step-3.json").read_text() == "mine"
    assert run("export", path, "--all", "-o", out, "--force").code == 0
    assert (out / "step-3.json").read_bytes() == exported(3)


def test_export_all_of_a_damaged_run(run: Run, tmp_path: Path) -> None:
    """A step that cannot be read is named and does not stop the others; damage that may hide steps is a warning."""
    path = write_run(tmp_path)
    damage(path, 3)
    ran = run("export", path, "--all", "-o", tmp_path / "out")
    one_line(ran, "step 3: ", path, "mismatch")
    assert ran.code == 1
    assert len(everything_in(tmp_path / "out")) == 5
    os.truncate(path, path.stat().st_size - 10)
    ran = run("export", path, "--all", "-o", tmp_path / "other")
    assert ran.err.splitlines()[0].startswith(f"fastckpt: warning: {path} is damaged at byte")
    assert len(everything_in(tmp_path / "other")) == 4
    path.write_bytes(b"\0" * 100)
    ran = run("export", path, "--all", "-o", tmp_path / "none")
    one_line(ran, path, "zeros")
    assert ran.code == 4


@pytest.mark.parametrize(
    "options", [["--all"], ["--all", "--step", "1", "-o", "out"], ["--step", "1", "--beside"], ["--all", "--beside", "-o", "out"], ["x", "--step", "1"], ["--step", "-1"]]
)  # fmt: skip
def test_export_wrong_usage(options: list[str], run: Run, tmp_path: Path) -> None:
    """Options that do not go together are wrong usage, one line, and nothing is written."""
    path = write_run(tmp_path)
    ran = run("export", path, *options)
    one_line(ran, "`fastckpt export --help`")
    assert (ran.code, ran.out) == (2, b"")
    assert everything_in(tmp_path) == [NAME, f"{NAME}.lock"]


def test_inspect_a_run(run: Run, tmp_path: Path) -> None:
    """inspect says that it is a run, its newest step, and how many steps are in how many records; its fields are the newest step's."""
    path = write_run(tmp_path)
    journal = Journal(path)
    journal.tombstone([(1, 2)])
    journal.close()
    ran = run("inspect", tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines[0].startswith(f"file      {path}, ")
    assert "(run, format 1" in ran.lines[0]
    assert ran.lines[2].endswith(", step 5")
    assert "run       4 steps, 0 to 5, in 7 records" in ran.lines
    assert any("$.scores" in line for line in ran.lines)
    document = json.loads(run("inspect", path, "--json").out)
    assert document["run"] == {"records": 7, "steps": 4, "first": 0, "newest": 5}
    assert (document["header"]["kind"], document["header"]["step"]) == ("run", 5)


def test_verify_a_run(run: Run, tmp_path: Path) -> None:
    """A sound run is sound; of a damaged one every problem is a line with the place, and the exit code is 4 although the newest step loads."""
    path = write_run(tmp_path)
    assert run("verify", path).lines == [f"sound  {path}", "1 file: 1 sound, 0 bad"]
    data = bytearray(path.read_bytes())
    data[records(path)[1].offset + 20] ^= 1
    path.write_bytes(data)
    damage(path, 3)
    ran = run("verify", path)
    assert ran.code == 4
    assert len(ran.err.splitlines()) == 2
    assert all(line.startswith("fastckpt: ") and str(path) in line and "byte" in line for line in ran.err.splitlines())


def test_the_program_itself(tmp_path: Path) -> None:
    """The installed program does the same, in another process."""
    path = write_run(tmp_path)
    damage(path, 0)
    ran = run_program("repair", path)
    assert (ran.code, ran.err, len(ran.lines)) == (0, "", 3)
    assert len(run_program("log", path, "--last", 3).lines) == 4
