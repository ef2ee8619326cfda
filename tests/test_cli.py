"""The command line: what it prints where, what it exits with, and that whatever goes wrong is one line with place and remedy."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from forge import file_header, record
from support import SHARED, assert_same, everything_in, in_child, mount_tmpfs, needs_linux, needs_posix, needs_root, needs_shared, without_privileges

import fastckpt
from fastckpt import CheckpointManager, cli
from fastckpt.__main__ import main
from fastckpt.errors import CheckpointError
from fastckpt.storage import Storage

PROGRAM = [sys.executable, "-m", "fastckpt"]
# The package under test, also from another directory.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(fastckpt.__file__).parents[1])}
STATE = {"progress": {"global_step": 7}, "answers": {"q_1": True, "q_2": False}, "text": "检查点" * 20, "big": 2**70, "lone": "\ud83d"}
OLD = json.dumps(STATE, ensure_ascii=False, indent=2).encode("utf-8", "backslashreplace")


class Ran(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


Run = Callable[..., Ran]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command in this process, which is faster than a new one."""

    def run_here(*arguments: object) -> Ran:
        capfdbinary.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capfdbinary.readouterr()
        return Ran(code, captured.out, captured.err.decode())

    return run_here


def run_program(*arguments: object, **options: Any) -> Ran:
    done = subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, timeout=60, check=False, **{"env": ENVIRONMENT, **options})
    return Ran(done.returncode, done.stdout, done.stderr.decode())


def tree(root: Path, **files: bytes) -> Path:
    """`root` with a folder for each file, in which it is called checkpoint.json."""
    for name, data in files.items():
        (root / name).mkdir(parents=True)
        (root / name / "checkpoint.json").write_bytes(data)
    return root


def one_line(ran: Ran, *words: object) -> None:
    """Standard error is exactly one line of ours that holds all the words."""
    __tracebackhide__ = True
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.startswith("fastckpt: ")
    assert ran.err.endswith("\n")
    assert "Traceback" not in ran.err
    for word in words:
        assert str(word) in ran.err, ran.err


# --- migrate ---------------------------------------------------------------------------------------------------------


def test_migrate_a_tree(run: Run, tmp_path: Path) -> None:
    """Each file is one line with both paths and the proof, then a summary; a second run says that all is done already."""
    root = tree(tmp_path, a=OLD, b=OLD.replace(b"\n", b"\r\n"))
    ran = run("migrate", root)
    assert (ran.code, ran.err) == (0, "")
    first, second, summary = ran.lines
    for line, folder, proof in ((first, "a", "byte-identical"), (second, "b", "value-identical, source formatted differently")):
        assert line.startswith("migrated ")
        assert line.endswith(f"  {proof}")
        assert f"{root / folder / 'checkpoint.json'} -> {root / folder / 'checkpoint.fastckpt'}" in line
    assert summary == "2 files: 2 migrated"
    ran = run("migrate", root)
    assert (ran.code, ran.err) == (0, "")
    assert [line[:12] for line in ran.lines] == ["already done", "already done", "2 files: 2 a"]
    assert ran.lines[-1] == "2 files: 2 already done"


@pytest.mark.parametrize("jobs", [1, 2])
def test_bad_file_does_not_stop_the_others(jobs: int, run: Run, tmp_path: Path) -> None:
    """A file that cannot be migrated is named in one line, with place and remedy; the others are migrated; the exit code is 1."""
    root = tree(tmp_path, a=OLD, b=b'{"x": 1, "x": 2}', c=b"{}\n{}\n", d=OLD)
    ran = run("migrate", root, "--jobs", jobs)
    assert ran.code == 1
    assert ran.lines[-1] == "4 files: 2 migrated, 2 failed"
    assert len(ran.lines) == 3
    errors = ran.err.splitlines()
    assert len(errors) == 2
    for line, folder, word in zip(errors, "bc", ("twice", "JSON Lines"), strict=True):
        assert line.startswith("fastckpt: ")
        assert str(root / folder / "checkpoint.json") in line
        assert word in line
        assert "; " in line
    assert "Traceback" not in ran.err
    assert everything_in(root) == [
        "a", "a/checkpoint.fastckpt", "a/checkpoint.json", "b", "b/checkpoint.json", "c", "c/checkpoint.json", "d", "d/checkpoint.fastckpt", "d/checkpoint.json",
    ]  # fmt: skip


@needs_shared
def test_the_eleven_real_files(tmp_path: Path) -> None:
    """`fastckpt migrate` on all eleven real files, in two processes: ten migrate, the JSON Lines file is refused by name, exit code 1."""
    files = sorted(path for path in (SHARED / "data").iterdir() if path.suffix in (".json", ".jsonl"))
    assert len(files) == 11
    for path in files:
        shutil.copy(path, tmp_path)
    ran = run_program("migrate", "--name", "*.json*", ".", "--jobs", "2", cwd=tmp_path)
    one_line(ran, "ray_sac_result.jsonl", "JSON Lines", "line 2")
    assert ran.code == 1
    assert ran.lines[-1] == "11 files: 10 migrated, 1 failed"
    again = run_program("migrate", "--name", "*.json*", ".", cwd=tmp_path)
    assert (again.code, again.lines[-1]) == (1, "11 files: 10 already done, 1 failed")
    assert run_program("verify", ".", cwd=tmp_path).lines[-1] == "10 files: 10 sound, 0 bad"


def test_machine_readable_results(run: Run, tmp_path: Path) -> None:
    """With --json the results are one JSON document on standard output, errors among them, and --report writes the same to a file."""
    root = tree(tmp_path, a=OLD, b=b"{")
    ran = run("migrate", root, root / "nowhere", "--json", "--report", root / "report.json")
    assert ran.code == 1
    document = json.loads(ran.out)
    assert document["summary"] == {"migrated": 1, "failed": 2}
    missing, good, bad = document["files"]
    assert (missing["source"], missing["error"]) == (str(root / "nowhere"), "NotFoundError")
    assert (good["status"], good["proof"]) == ("migrated", "byte-identical")
    assert (good["source_bytes"], good["target_bytes"]) == (len(OLD), (root / "a" / "checkpoint.fastckpt").stat().st_size)
    assert (bad["source"], bad["status"], bad["error"]) == (str(root / "b" / "checkpoint.json"), "failed", "JsonError")
    assert f"fastckpt: {bad['message']}\n" in ran.err
    assert (root / "report.json").read_bytes() == ran.out


def test_report_never_replaces_a_checkpoint(run: Run, tmp_path: Path) -> None:
    """A report in the place of a source or a target is refused before anything is done."""
    root = tree(tmp_path, a=OLD)
    for name in ("checkpoint.json", "checkpoint.fastckpt"):
        ran = run("migrate", root, "--report", root / "a" / "." / name)
        one_line(ran, "report", root / "a" / name)
        assert ran.code == 8
    assert everything_in(root) == ["a", "a/checkpoint.json"]


def test_report_never_replaces_anything_else(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever name the report is given (absolute, relative, through a link), no source, target, run or other file is replaced."""
    root = tree(tmp_path, a=OLD)
    (tmp_path / "link").symlink_to(root / "a")
    with CheckpointManager(tmp_path / "run", dict) as manager:
        manager.save(0, {"a": 1})
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.chdir(root)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for source, report in [
        ("a/checkpoint.json", root / "a" / "checkpoint.json"),
        (root / "a", Path("a/checkpoint.json")),
        (root / "a", tmp_path / "link" / "checkpoint.fastckpt"),
        (root / "a", tmp_path / "run" / "checkpoint.fastckpt"),
        (root / "a", tmp_path / "notes.txt"),
    ]:
        ran = run("migrate", source, "--report", report)
        assert ran.code == 8, report
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    for _ in range(2):
        assert run("migrate", root / "a", "--report", tmp_path / "report.json").code == 0


def test_dry_run_and_force(run: Run, tmp_path: Path) -> None:
    """A dry run writes nothing; a target that holds something else stays until --force."""
    root = tree(tmp_path, a=OLD)
    assert run("migrate", root, "--dry-run").lines[0].startswith("would migrate  ")
    assert everything_in(root) == ["a", "a/checkpoint.json"]
    target = root / "a" / "checkpoint.fastckpt"
    target.write_bytes(b"")
    ran = run("migrate", root)
    one_line(ran, target, "--force")
    assert ran.code == 1
    assert target.read_bytes() == b""
    assert run("migrate", root, "--force").code == 0
    assert_same(fastckpt.load(target), STATE)


def test_encoding(run: Run, tmp_path: Path) -> None:
    """A GBK file is refused with the option that helps, and migrated with it."""
    root = tree(tmp_path, a=json.dumps({"k": "检查点"}, ensure_ascii=False).encode("gbk"))
    one_line(run("migrate", root), "--encoding gbk", root / "a" / "checkpoint.json")
    assert "value-identical, source formatted differently" in run("migrate", root, "--encoding", "gbk").lines[0]


MODULE = """
import dataclasses
@dataclasses.dataclass
class State:
    votes: dict[int, float]
    seen: set[str]
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_type_from_the_current_directory(jobs: int, tmp_path: Path) -> None:
    """--type imports from the current directory, also in worker processes; the data must fit; --convert stores it as that type and says so."""
    (tmp_path / "mine.py").write_text(MODULE)
    fits = json.dumps({"votes": {"3": 0.5}, "seen": ["a"]}, indent=2).encode()
    tree(tmp_path, a=fits, b=b'{"votes": {"x": 1}, "seen": []}', c=fits)
    program = [sys.executable, "-c", "import sys; sys.path.remove(''); from fastckpt.__main__ import main; sys.exit(main())"]
    command = [*program, "migrate", ".", "--type", "mine:State", "--jobs", str(jobs)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    one_line(Ran(1, b"", done.stderr), "$.votes", "b/checkpoint.json")
    assert [line.split("  ")[-1] for line in done.stdout.splitlines()] == ["byte-identical", "byte-identical", "3 files: 2 migrated, 1 failed"]
    done = subprocess.run([*command, "--convert", "--force"], cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.stdout.count("  converted, no byte proof\n") == 2
    assert list(fastckpt.load(tmp_path / "a" / "checkpoint.fastckpt")["votes"]) == [3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--type", "nothing"], "module:Class"), (["--type", "no_such_module:A"], "no_such_module"), (["--type", "fastckpt:nope"], "nope"), (["--convert"], "--type"),
        (["--type", "builtins:complex"], "complex"), (["--jobs", "0"], "jobs"), (["--jobs", "two"], "jobs"), (["--no-such"], "--no-such"),
    ],
)  # fmt: skip
def test_wrong_usage(options: list[str], words: str, run: Run, tmp_path: Path) -> None:
    """Wrong usage is one line that points to the help, exit code 2, and nothing is done."""
    ran = run("migrate", tree(tmp_path, a=OLD), *options)
    one_line(ran, words, "`fastckpt migrate --help`")
    assert ran.code == 2
    assert everything_in(tmp_path) == ["a", "a/checkpoint.json"]


def test_two_sources_of_one_target(run: Run, tmp_path: Path) -> None:
    """Where two sources share a target, the second is refused, also when two processes share the work."""
    (tmp_path / "a.json").write_bytes(b"[1]")
    (tmp_path / "a").write_bytes(b"[2]")
    ran = run("migrate", tmp_path, "--name", "a*", "--jobs", 2)
    one_line(ran, "other content", tmp_path / "a.json")
    assert ran.code == 1
    assert fastckpt.load(tmp_path / "a.fastckpt") == [2]


def test_worker_that_is_killed(run: Run, tmp_path: Path) -> None:
    """When a worker process dies, the files that it had are named as failed, in one line each, and nothing hangs."""
    (tmp_path / "killer.py").write_text(
        "import multiprocessing, os\nif multiprocessing.parent_process():\n    os.kill(os.getpid(), 9)\nState = dict\n"
    )
    tree(tmp_path, a=b"{}", b=b"{}")
    ran = run_program("migrate", ".", "--jobs", 2, "--type", "killer:State", cwd=tmp_path)
    errors = ran.err.splitlines()
    assert ran.code == 1
    assert [("worker process was killed" in line, "--jobs" in line) for line in errors] == [(True, True), (True, True)]


# --- what goes wrong, on every command -------------------------------------------------------------------------------


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _damaged(path: Path) -> None:
    fastckpt.save(path, STATE)
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.write_bytes(data)


WRONG: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "nothing": (lambda path: None, 3, "no such file"),
    "empty directory": (lambda path: path.mkdir(), 3, "no "),
    "fifo": (_fifo, 6, "is a fifo"),
    "foreign": (lambda path: path.write_bytes(b"\x1f\x8b\x08\x00"), 4, "gzip"),
    "0 bytes": (lambda path: path.write_bytes(b""), 4, "empty"),
    "half a checkpoint": (lambda path: path.write_bytes(_half()), 4, "truncated"),
    "damaged": (_damaged, 4, "mismatch"),
    "newer format": (lambda path: path.write_bytes(file_header(version=7, min_reader=7) + record()), 5, "7"),
    "unknown codec": (lambda path: path.write_bytes(file_header() + record(header={"codec": "lz77"})), 5, "lz77"),
}


def _half() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        fastckpt.save(f"{folder}/x", STATE)
        return Path(folder, "x").read_bytes()[:200]


@needs_posix
@pytest.mark.parametrize("command", ["migrate", "export", "inspect", "verify"])
@pytest.mark.parametrize("what", WRONG)
def test_wrong_path_is_one_line(what: str, command: str, run: Run, tmp_path: Path) -> None:
    """A path that is no checkpoint: one line on standard error with the place, no traceback, the exit code of its kind (of many files: 1)."""
    make, code, words = WRONG[what]
    path = tmp_path / "that one"
    make(path)
    ran = run(command, path)
    one_line(ran, path, words)
    assert ran.code == (1 if command == "migrate" else code)
    assert command in ("migrate", "verify") or ran.out == b""


def test_error_says_the_remedy(run: Run, tmp_path: Path) -> None:
    """After the place stands what to do."""
    ran = run("inspect", tmp_path / "nowhere")
    assert ran.err == f"fastckpt: no such file or directory at open: {tmp_path / 'nowhere'}; check the path\n"


def test_json_given_where_a_checkpoint_is_wanted(run: Run, tmp_path: Path) -> None:
    """A JSON file has no header and needs no export; each says what to do instead. It can be verified."""
    path = tree(tmp_path, a=OLD) / "a" / "checkpoint.json"
    one_line(run("inspect", path), "JSON", "migrate")
    one_line(run("export", path), "JSON already")
    assert run("verify", path).code == 0


def test_verify_many(run: Run, tmp_path: Path) -> None:
    """Of several files the bad ones are named, the sound ones listed, and the exit code is 1; --json has it all."""
    for name in ("a", "b"):
        fastckpt.save(tmp_path / f"{name}.fastckpt", STATE)
    _damaged(tmp_path / "c.fastckpt")
    ran = run("verify", tmp_path)
    one_line(ran, tmp_path / "c.fastckpt", "at byte")
    assert ran.code == 1
    assert ran.lines == [f"sound  {tmp_path / 'a.fastckpt'}", f"sound  {tmp_path / 'b.fastckpt'}", "3 files: 2 sound, 1 bad"]
    document = json.loads(run("verify", tmp_path, "--json").out)
    assert document["summary"] == {"sound": 2, "bad": 1}
    assert [entry["sound"] for entry in document["files"]] == [True, True, False]
    assert isinstance(document["files"][2]["problems"][0]["offset"], int)


def test_hostile_names_stay_on_one_line(run: Run, tmp_path: Path) -> None:
    """A name with line ends, escapes or bytes that are no text is printed escaped, in results and errors alike."""
    folder = os.fsencode(tmp_path) + b"/x\n\x1b[31m\xff"
    os.mkdir(folder)
    with open(folder + b"/checkpoint.json", "wb") as stream:
        stream.write(OLD)
    ran = run("migrate", tmp_path)
    assert (ran.code, len(ran.lines)) == (0, 2)
    assert b"\x1b" not in ran.out
    assert rb"x\n\x1b[31m\udcff" in ran.out
    ran = run("verify", os.fsdecode(folder) + "/nowhere")
    one_line(ran, r"\x1b[31m")
    assert json.loads(run("verify", tmp_path, "--json").out)["summary"] == {"sound": 1, "bad": 0}


def test_warning_is_one_line(run: Run, tmp_path: Path) -> None:
    """A warning of ours is one line on standard error, and no error."""
    path = tmp_path / "x.json"
    path.write_text('{"a": 1, "a": 2}')
    ran = run("verify", path)
    one_line(ran, "warning: ", "'a'", "twice")
    assert ran.code == 0


def test_warning_of_a_migration(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a migration warns of (here a filesystem that cannot sync directories) is shown, and the file is migrated."""

    def sync(_: Storage, fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(Storage, "sync", sync)
    lay = tree(tmp_path, a=OLD)
    (lay / "a" / "checkpoint.fastckpt").write_bytes(b"")
    ran = run("migrate", lay, "--force")
    one_line(ran, "warning: ", "sync")
    assert ran.lines[-1] == "1 file: 1 migrated"


@needs_linux
def test_no_space(tmp_path: Path) -> None:
    """A full disk is one line with the place and the remedy; the target is not there."""

    def fill() -> None:
        mount_tmpfs(tmp_path, "size=1m")
        noise = json.dumps({"noise": os.urandom(400_000).hex()}, indent=2)
        tree(tmp_path, a=noise.encode())
        ran = run_program("migrate", tmp_path)
        one_line(ran, "no space", tmp_path / "a", "free some space")
        assert ran.code == 1
        assert everything_in(tmp_path) == ["a", "a/checkpoint.json"]

    in_child(fill)


@needs_root
def test_no_permission(public_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No permission to read a source, or to write beside it, is one line with the place and the remedy."""
    root = tree(public_path, shut=OLD, secret=OLD)
    (root / "secret" / "checkpoint.json").chmod(0)
    # Imports what the command needs: that user may not read where Python is.
    assert main(["migrate", str(tree(public_path / "before", mine=OLD))]) == 0

    def nobody() -> None:
        without_privileges()
        assert main(["migrate", str(root / "secret" / "checkpoint.json")]) == 1
        assert main(["migrate", str(root / "shut")]) == 1

    in_child(nobody)
    errors = capfd.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all("permission denied" in line and "check the permissions" in line for line in errors)
    assert str(root / "secret" / "checkpoint.json") in errors[0]
    assert str(root / "shut") in errors[1]


# --- export and inspect ----------------------------------------------------------------------------------------------


def test_export_to_standard_output(tmp_path: Path) -> None:
    """One checkpoint goes to standard output, exactly its bytes, without a line end."""
    fastckpt.save(tmp_path / "a.fastckpt", STATE)
    ran = run_program("export", tmp_path / "a.fastckpt", env={**ENVIRONMENT, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    assert ran == Ran(0, OLD, "")


def test_export_to_a_file(run: Run, tmp_path: Path) -> None:
    """-o writes it to a file, and does not replace another one without --force."""
    fastckpt.save(tmp_path / "a.fastckpt", STATE)
    ran = run("export", tmp_path / "a.fastckpt", "-o", tmp_path / "out.json")
    assert (ran.code, ran.err) == (0, "")
    assert (tmp_path / "out.json").read_bytes() == OLD
    fastckpt.save(tmp_path / "a.fastckpt", {})
    ran = run("export", tmp_path / "a.fastckpt", "-o", tmp_path / "out.json")
    one_line(ran, tmp_path / "out.json", "--force")
    assert ran.code == 8
    assert run("export", tmp_path / "a.fastckpt", "-o", tmp_path / "out.json", "--force").code == 0
    assert (tmp_path / "out.json").read_bytes() == b"{}"


def test_export_beside(run: Run, tmp_path: Path) -> None:
    """Directories and several files are exported beside each checkpoint; one that fails does not stop the others."""
    root = tree(tmp_path, a=OLD, b=b"[1]")
    run("migrate", root)
    for name in "ab":
        (root / name / "checkpoint.json").unlink()
    (root / "b" / "checkpoint.json").write_text("mine")
    ran = run("export", root)
    one_line(ran, root / "b" / "checkpoint.json", "--force")
    assert ran.code == 1
    assert len(ran.lines) == 1
    assert (root / "a" / "checkpoint.json").read_bytes() == OLD
    assert (root / "b" / "checkpoint.json").read_text() == "mine"
    assert run("export", root / "a" / "checkpoint.fastckpt", root / "b" / "checkpoint.fastckpt", "--force").code == 0
    assert (root / "b" / "checkpoint.json").read_bytes() == b"[\n  1\n]"
    (root / "a" / "checkpoint.json").unlink()
    assert run("export", root / "a" / "checkpoint.fastckpt", "--beside").code == 0
    assert (root / "a" / "checkpoint.json").read_bytes() == OLD
    one_line(run("export", root, "-o", root / "x"), "--output", "one checkpoint")


def test_inspect(run: Run, tmp_path: Path) -> None:
    """inspect shows the header and the fields with their encoded bytes, largest first, each followed by its own; Ext values count too."""
    fastckpt.save(tmp_path / "a", STATE, meta={"note": "x\x1b[0m"})
    ran = run("inspect", tmp_path / "a")
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines[0].startswith(f"file      {tmp_path / 'a'}, ")
    text = ran.out.decode()
    assert "with Ext values" in text
    assert "\x1b" not in text
    rows = [match.group(1) for match in re.finditer(r"^ +(\$\S*)", text, re.MULTILINE)]
    assert rows == [
        "$.text", "$.progress", "$.progress.global_step", "$.big", "$.answers", "$.answers.q_1", "$.answers.q_2", "$.lone",
    ]  # fmt: skip
    document = json.loads(run("inspect", tmp_path / "a", "--json").out)
    assert document["header"]["has_ext"] is True
    assert document["header"]["meta"] == {"note": "x\x1b[0m"}
    assert document["fields"][0] == {"path": "$.text", "bytes": 182, "holds": "str of 60"}
    assert {field["path"]: field["bytes"] for field in document["fields"]}["$.answers.q_1"] == 1


def test_inspect_shortens_long_lists_of_fields(run: Run, tmp_path: Path) -> None:
    """A dict of thousands is shown by its largest entries and what the rest takes; --json has them all."""
    fastckpt.save(tmp_path / "a", {"answers": {f"q_{i:04}": "x" * i for i in range(1000)}})
    ran = run("inspect", tmp_path / "a")
    assert "$.answers.q_0999" in ran.out.decode()
    assert "980 more" in ran.out.decode()
    assert len(ran.lines) < 40
    assert len(json.loads(run("inspect", tmp_path / "a", "--json").out)["fields"]) == 1001


@pytest.mark.parametrize("state", [None, 3, "x", [], {}, [[1], {"a": 2}], {1: {(2, 3): 4}}], ids=str)
def test_inspect_any_state(state: Any, run: Run, tmp_path: Path) -> None:
    """A state without fields, or with keys that are no text, is shown all the same."""
    fastckpt.save(tmp_path / "a", state, type=dict[int, dict[tuple[int, int], int]] if isinstance(state, dict) and 1 in state else Any)
    assert run("inspect", tmp_path / "a").code == 0


# --- demo, and the program itself ------------------------------------------------------------------------------------


def test_demo_needs_nothing(tmp_path: Path) -> None:
    """`fastckpt demo` needs no input: every step is saved, the process killed, all steps equal; it prints the costs and "byte-identical"."""
    started = time.monotonic()
    ran = run_program("demo", cwd=tmp_path, env={**ENVIRONMENT, "TMPDIR": str(tmp_path)})
    assert (ran.code, ran.err) == (0, "")
    text = ran.out.decode()
    assert ran.lines[-1].endswith("byte-identical")
    for word in (
        "killed    with SIGKILL",
        "resumed   from step",
        "equal     all 200 steps",
        "one checkpoint.fastckpt",
        "MB",
        "ms",
        "times better",
        "migrated in",
    ):
        assert word in text
    assert everything_in(tmp_path) == []
    assert time.monotonic() - started < 20


def test_demo_keeps_its_files(run: Run, tmp_path: Path) -> None:
    """In a directory of the user's the files are kept: the run, and the JSON of its newest step; a second demo does not replace them."""
    new = tmp_path / "new"
    ran = run("demo", new, "--steps", 12)
    assert (ran.code, ran.err) == (0, "")
    found = [name for name in everything_in(new) if ".aside." not in name]  # half a record, if the kill came in the middle of one
    assert found == ["checkpoint.fastckpt", "checkpoint.fastckpt.lock", "json", "json/checkpoint.fastckpt", "json/checkpoint.json"]
    data = json.loads((new / "json" / "checkpoint.json").read_bytes())
    assert_same(fastckpt.load(new / "json" / "checkpoint.fastckpt"), data)
    newest = json.loads(run("export", new / "checkpoint.fastckpt").out)
    newest["seen"].sort()  # a set, in no order
    assert_same(newest, data)
    assert len(run("log", new).lines) == 13
    assert run("migrate", new).lines[-1] == "1 file: 1 already done"
    ran = run("demo", new)
    one_line(ran, new / "checkpoint.fastckpt")
    assert ran.code == 8
    one_line(run("demo", "--steps", 9), "--steps", "10")


@pytest.mark.parametrize(
    ("change", "words"),
    [("state.votes[-1] = 0", "step 0 of the run is not that of an uninterrupted one"), ("raise SystemExit(3)", "ended with 3")],
)  # fmt: skip
def test_demo_can_fail(change: str, words: str, tmp_path: Path) -> None:
    """When the processes do not train alike, or one ends too early, the demo says so in one line and exits with 1."""
    code = f"""
import fastckpt.demo
advance = fastckpt.demo._advance
def changed(state, step, words):
    advance(state, step, words)
    {change}

fastckpt.demo._advance = changed
"""
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif sys.argv[0] == '-c':\n{''.join('    ' + line + chr(10) for line in code.splitlines())}"
    )
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    ran = run_program("demo", "--steps", 12, env=environment)
    one_line(ran, words)
    assert ran.code == 1


def test_version_and_help(run: Run) -> None:
    """--version prints it, no arguments print the help, and the help names the commands and the exit codes."""
    assert run("--version") == Ran(0, f"fastckpt {fastckpt.__version__}\n".encode(), "")
    for arguments in ((), ("--help",)):
        ran = run(*arguments)
        assert (ran.code, ran.err) == (0, "")
        for word in ("demo", "migrate", "export", "inspect", "log", "verify", "repair", "Exit codes", "130"):
            assert word in ran.out.decode()
    one_line(run("nonsense"), "nonsense", "--help")


def test_exit_codes_are_those_of_the_errors() -> None:
    """Every exit code that an error class carries is explained in the help."""
    classes = [CheckpointError]
    for each in classes:
        classes.extend(each.__subclasses__())
    for code in {each.exit_code for each in classes}:
        assert re.search(rf"\b{code} ", cli._EXIT_CODES), code


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra(missing: str) -> None:
    """Without typer or rich the program says in one line how to install them, and exits with 2; the library works."""
    code = f"import sys; sys.modules[{missing!r}] = None\nimport fastckpt, fastckpt.migrate\nfrom fastckpt.__main__ import main\nsys.exit(main(['--version']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    one_line(Ran(done.returncode, b"", done.stderr), missing, "pip install '.[cli]'")
    assert done.returncode == 2
    assert "pip install fastckpt" not in done.stderr


@needs_posix
def test_reader_that_has_seen_enough(tmp_path: Path) -> None:
    """A pipe that is closed early (`| head`) ends the program quietly."""
    fastckpt.save(tmp_path / "a", {"x": ["y" * 100] * 20_000})
    for command in (["export", tmp_path / "a"], ["inspect", "--json", tmp_path / "a"]):
        with subprocess.Popen([*PROGRAM, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(10)
            process.stdout.close()
            assert process.stderr.read() == b""


@needs_linux
def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    """A full disk behind standard output is one line too."""
    fastckpt.save(tmp_path / "a", {"x": "y" * 100_000})
    for command in ("export", "inspect", "verify"):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([*PROGRAM, command, str(tmp_path / "a")], stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False)
        one_line(Ran(done.returncode, b"", done.stderr.decode()), "cannot write the output", "o space left")
        assert done.returncode == 6


@needs_posix
@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupt(jobs: int, tmp_path: Path) -> None:
    """Ctrl-C ends with 130 and one line, no traceback, also when worker processes share the terminal; what was written is whole."""
    data = json.dumps([{"x": i / 3} for i in range(20_000)]).encode()
    tree(tmp_path, **{f"f{i:03}": data for i in range(100)})
    command = [*PROGRAM, "migrate", str(tmp_path), "--jobs", str(jobs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"migrated")
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    one_line(Ran(process.returncode, b"", errors.decode()), "interrupted")
    assert process.returncode == 130
    done = list(tmp_path.glob("*/checkpoint.fastckpt"))
    assert 0 < len(done) < 100
    assert all(fastckpt.verify(path) == [] for path in done)
    assert not list(tmp_path.glob("*/.*"))


@needs_linux
def test_bar_and_colours_only_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal a bar is drawn on standard error and words are coloured; what goes to a file has neither, and its lines are whole."""
    import pty

    root = tree(tmp_path / ("long" * 50), a=OLD, b=b"{", c=OLD)
    reader, terminal = pty.openpty()
    with open(tmp_path / "out", "wb") as out:
        environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "60"}
        process = subprocess.Popen([*PROGRAM, "migrate", str(root)], stdout=out, stderr=terminal, env=environment)
        os.close(terminal)
        shown = b""
        try:
            while part := os.read(reader, 65536):
                shown += part
        except OSError:  # EIO: the other end is closed
            pass
        process.wait()
    os.close(reader)
    assert b"migrating" in shown
    assert b"100%" in shown
    written = (tmp_path / "out").read_text()
    assert "\x1b" not in written
    assert written.splitlines()[-1] == "3 files: 2 migrated, 1 failed"
    assert str(root / "c" / "checkpoint.fastckpt") in written
    assert len(written.splitlines()) == 3
