"""Files that earlier versions wrote, one for each feature of the format, are loaded for ever: FAULTS G1, G2, G7.

`golden/write.py` wrote them, `golden/expected.json` says what is in them. They are never written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from golden.write import CASES, EXPECTED, HERE, SOURCE, Trained, records_of, the_same_each_time, traits_of
from support import assert_same

import fastckpt
from fastckpt import CheckpointManager, CheckpointWarning, CorruptError, History, VersionError
from fastckpt.history import NAME
from fastckpt.journal import Journal
from fastckpt.migrate import export
from fastckpt.reader import Reader

KNOWN: dict[str, dict[str, Any]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
REFUSED = [name for name in KNOWN if "records" not in KNOWN[name]]
READ = [name for name in KNOWN if "records" in KNOWN[name]]

golden = pytest.mark.parametrize("name", READ, ids=lambda name: name.removesuffix(".fastckpt"))


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By the name of a file: its states by their steps, as what wrote them says; and each is written again, by today's writer."""
    folder = tmp_path_factory.mktemp("today")
    with the_same_each_time():
        return {name: case(folder / name) for name, case in CASES.items()} | {"folder": folder}


def type_of(states: dict[int | None, Any]) -> Any:
    return Trained if all(isinstance(one, Trained) for one in states.values()) else Any


def test_every_file_is_there_as_it_was() -> None:
    """FAULTS G1: each golden file is the one that was first written, byte for byte, and each case has one."""
    assert set(KNOWN) == set(CASES) == {path.name for path in HERE.glob("*.fastckpt")}
    for name, known in KNOWN.items():
        assert hashlib.blake2b((HERE / name).read_bytes(), digest_size=16).hexdigest() == known["file"], name
        assert (HERE / name).stat().st_size < 20_000, name


@golden
def test_states_load_exactly(name: str, states: dict[str, Any]) -> None:
    """FAULTS G1: every state of a golden file comes back in value and exact type, and there are no other steps."""
    found, path = states[name], HERE / name
    if list(found) == [None]:
        assert_same(fastckpt.load(path, type_of(found)), found[None])
        return
    with History(path, type_of(found), schema_version=3 if "all-keys" in name else 1) as history:
        assert history.all_steps() == list(found)
        for step, state in found.items():
            assert_same(history.restore(step), state)
    assert_same(fastckpt.load(path, type_of(found)), [*found.values()][-1])


@golden
def test_records_say_what_they_said(name: str) -> None:
    """FAULTS G1: the header of every record of a golden file says what it said when it was written, and its message is the same."""
    assert records_of(HERE / name) == KNOWN[name]["records"]
    assert traits_of(HERE / name) == KNOWN[name]["traits"]


@golden
def test_golden_files_verify(name: str) -> None:
    """FAULTS G1: nothing is wrong with a golden file, but for the end of the one that a crash cut short."""
    assert [problem.fact for problem in fastckpt.verify(HERE / name)] == (["the file ends inside a record"] if name == "run-torn.fastckpt" else [])


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: name.removesuffix(".fastckpt"))
def test_what_is_too_new_is_refused(name: str, tmp_path: Path) -> None:
    """FAULTS G2: a newer minimum reader, and a flag, feature or codec that is not known, is a VersionError that names both sides, for every
    reader; a writer refuses it too, and changes nothing."""
    needs = {"newer-reader": "version 2", "unknown-flag": "0x10", "unknown-requirement": "dictionary", "unknown-codec": "lzma"}[
        name.removesuffix(".fastckpt")
    ]
    path = Path(shutil.copy(HERE / name, tmp_path / NAME))
    before = path.read_bytes()
    for use in (fastckpt.load, fastckpt.inspect, Reader, History, CheckpointManager, export):
        with pytest.raises(VersionError, match=needs) as caught:
            use(path)
        assert "this fastckpt" in str(caught.value)
        assert caught.value.exit_code == 5
    assert [problem.fact.count(needs) for problem in fastckpt.verify(path)] == [1]
    assert path.read_bytes() == before


def test_what_may_be_skipped_is_skipped() -> None:
    """FAULTS G2: a later format version that this reader may read, and a header key that it does not know, are no obstacle."""
    assert fastckpt.inspect(HERE / "newer-version.fastckpt").format_version == 2
    assert b"colour" in (HERE / "unknown-key.fastckpt").read_bytes()
    for name in ("newer-version", "unknown-key"):
        assert_same(fastckpt.load(HERE / f"{name}.fastckpt"), fastckpt.load(HERE / "single.fastckpt"))


def test_a_migrated_file_gives_its_source_back() -> None:
    """FAULTS G1: the export of a migrated file is its source, byte for byte; so is that of the step that a run made of it."""
    assert export(HERE / "single-migrated.fastckpt") == SOURCE
    assert export(HERE / "run-adopted.fastckpt", step=41) == SOURCE


def test_every_stream_of_a_file() -> None:
    """FAULTS G1: each of several streams has its own steps, and what one of them retires is its own."""
    with contextlib.closing(Reader(HERE / "run-of-streams.fastckpt")) as reader:
        found = {stream: [entry.header.step for entry in reader.live(stream)] for stream in ("", "worker/1", "工")}
        keys = {entry.header.key for entry in reader.live("工")}
    assert found == {"": [3, 2, 1, 0], "worker/1": [3, 2, 1, 0], "工": [2]}
    assert keys == {"k2"}


@golden
def test_old_files_are_gone_on_with(name: str, states: dict[str, Any], tmp_path: Path) -> None:
    """FAULTS G8: today's writer goes on with a golden file: the old steps stay as they are, also through a compaction."""
    found, path = states[name], Path(shutil.copy(HERE / name, tmp_path / NAME))
    options: dict[str, Any] = {"schema_version": 3} if "all-keys" in name else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # of the torn end
        with CheckpointManager(path, type_of(found), first_step=0, **options) as manager:
            newest = manager.next_step()
            if len(found) > 3:
                manager.delete(manager.all_steps()[0])
            manager.save(newest, [*found.values()][-1])
            manager.compact()
            for step in manager.all_steps():
                assert_same(manager.restore(step), [*found.values()][-1] if step == newest or None in found else found[step])
            assert len(manager.all_steps()) >= min(len(found), 2)


@golden
def test_today_s_writer_writes_the_same(name: str, states: dict[str, Any]) -> None:
    """FAULTS G7: what wrote a golden file leaves the same live states today, under the same metadata, whatever zstd, the differences, the
    policy and compaction make of the bytes and of what is retired besides."""

    def live(path: Path) -> dict[Any, Any]:
        with contextlib.closing(Reader(path)) as reader:
            streams = dict.fromkeys(entry.header.stream for entry in reader.entries())
            steps = {(stream, entry.header.step, entry.sequence) for stream in streams for entry in reader.live(stream)}
        told = ("sequence", "retires", "time", "writer", "schema", "type")
        records = [one for one in records_of(path) if (one["stream"], one["step"], one["sequence"]) in steps]
        return {(one["stream"], one["step"]): {key: value for key, value in one.items() if key not in told} for one in records}

    then, now = live(HERE / name), live(states["folder"] / name)
    assert then
    assert now == then


def test_every_level_of_zstd(tmp_path: Path) -> None:
    """FAULTS G7: the state of a golden file is the same from a frame of any level."""
    state = fastckpt.load(HERE / "single.fastckpt")
    for level in (1, 3, 9, 19, 22):
        fastckpt.save(tmp_path / "x", state, level=level)
        assert_same(fastckpt.load(tmp_path / "x"), state)


def test_damage_in_golden_files_is_found(tmp_path: Path) -> None:
    """A golden file in which one bit is another is not taken for what it was: these tests would notice."""
    for name in ("single.fastckpt", "run-compacted.fastckpt"):
        data = bytearray((HERE / name).read_bytes())
        data[-100] ^= 1
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CorruptError):
            fastckpt.load(tmp_path / name)


def test_the_script_adds_and_never_replaces(tmp_path: Path) -> None:
    """`golden/write.py` writes what is missing, and leaves alone what is there, even if it is another file."""
    folder = tmp_path / "tests" / "golden"
    folder.mkdir(parents=True)
    shutil.copy(HERE / "write.py", folder)
    shutil.copy(HERE.parent / "forge.py", folder.parent)
    (folder / "single.fastckpt").write_bytes(b"of old")
    import fastckpt as package

    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    subprocess.run([sys.executable, folder / "write.py"], check=True, env=environment, timeout=100)
    assert (folder / "single.fastckpt").read_bytes() == b"of old"
    assert {path.name for path in folder.glob("*.fastckpt")} == set(CASES)
    assert set(json.loads((folder / "expected.json").read_text(encoding="utf-8"))) == set(CASES) - {"single.fastckpt"}


def test_streams_and_their_chunks_are_read_by_a_journal(tmp_path: Path) -> None:
    """FAULTS G1: each record of a golden run is appended to and read by a journal, in every stream."""
    path = Path(shutil.copy(HERE / "run-of-streams.fastckpt", tmp_path / NAME))
    with contextlib.closing(Journal(path)) as journal:
        for stream in ("", "worker/1", "工"):
            journal.append(b"\xc0", step=9, stream=stream)
        for stream in ("", "worker/1", "工"):
            assert journal.read(journal.state(9, stream)) == b"\xc0"
            assert journal.read(journal.state(2, stream))
