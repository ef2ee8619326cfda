"""Repair of a damaged run: what is readable is kept under its old names, the old file is kept aside, and no crash leaves less."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faults import Crash, CrashingStorage, FaultyStorage, ModelStorage, temporaries
from support import everything_in, needs_posix

import fastckpt
import fastckpt.repair
from fastckpt.container import FILE_HEADER_SIZE, TRAILER_SIZE, RecordHeader
from fastckpt.errors import CheckpointError, CorruptError, DurabilityError, LockedError, NotACheckpointError, NotFoundError, StorageError
from fastckpt.journal import Journal
from fastckpt.lock import Lock
from fastckpt.reader import Entry, Reader
from fastckpt.repair import Repair, marked, repair
from fastckpt.storage import DISK, Storage, is_temporary

NAME = "checkpoint.fastckpt"


def message(step: int, size: int = 9000) -> bytes:
    """A message that shares most of its chunks with those of the other steps."""
    noise = bytearray(random.Random(1).randbytes(size))
    noise[500 * step % size] ^= 1 + step
    return bytes(noise)


def write_run(
    path: str | os.PathLike[str], steps: range = range(12), *, bases: tuple[int, ...] = (0, 5), storage: Storage = DISK, size: int = 9000
) -> None:
    """A run of these steps, with a base at the beginning and at some others."""
    journal = Journal(path, storage=storage)
    for step in steps:
        journal.append(message(step, size), step=step, meta={"at": step}, metrics={"acc": step / 8}, base=step in bases, type_name="t")
    journal.close()


def entries(path: str | os.PathLike[str]) -> dict[int, Entry]:
    """The records by their step."""
    reader = Reader(path)
    found = {entry.header.step: entry for entry in reader.entries()}
    reader.close()
    return found


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def inside_frame(entry: Entry) -> int:
    return entry.offset + entry.length - TRAILER_SIZE - 5


def require_kept(path: Path, old: dict[int, Entry], kept: list[int], done: Repair) -> None:
    """The run holds exactly these steps, under the headers that they had; it is sound, and goes on."""
    assert [header.step for header in done.kept] == kept
    reader = Reader(path)
    assert list(reader.verify()) == []
    found = {entry.header.step: entry for entry in reader.live()}
    assert sorted(found) == kept
    for step, entry in found.items():
        assert reader.read(entry) == message(step)
        assert entry.header.unsynced == 0  # else a reader would look at all of it, and take damage for a torn append
        for field in ("file", "sequence", "step", "time", "meta", "metrics", "type", "writer", "stream", "key", "retires"):
            assert getattr(entry.header, field) == getattr(old[step].header, field), field
    reader.close()
    journal = Journal(path)
    assert journal.append(b"next", step=99).sequence == max(old[step].sequence for step in kept) + 1
    journal.close()


def test_sound_run_is_left_alone(tmp_path: Path) -> None:
    """A sound run: nothing is written, nothing set aside, no lock file is made."""
    path = tmp_path / NAME
    write_run(path)
    os.remove(f"{path}.lock")
    before = path.read_bytes(), path.stat()
    assert repair(path) == Repair([], [], None)
    assert (path.read_bytes(), path.stat()) == before
    assert everything_in(tmp_path) == [NAME]


def test_damaged_record_costs_what_refers_to_it(tmp_path: Path) -> None:
    """A flipped bit in a base: its generation is lost, by step and with the reason; the others are kept under their old headers."""
    path = tmp_path / NAME
    write_run(path)
    old = entries(path)
    flip(path, inside_frame(old[0]))
    damaged = path.read_bytes()
    done = repair(path)
    assert done.aside == f"{path}.aside.1"
    assert Path(done.aside).read_bytes() == damaged
    assert [(lost.sequence, lost.step) for lost in done.lost] == [(step + 1, step) for step in range(5)]
    assert all("mismatch" in lost.fact and str(path) in lost.fact for lost in done.lost)
    require_kept(path, old, list(range(5, 12)), done)
    assert everything_in(tmp_path) == [NAME, f"{NAME}.aside.1", f"{NAME}.lock"]


def test_damaged_header_hides_one_record(tmp_path: Path) -> None:
    """A record whose header is damaged is lost as bytes between two steps, and so is what refers to it."""
    path = tmp_path / NAME
    write_run(path)
    old = entries(path)
    flip(path, old[7].offset + 20)
    done = repair(path)
    assert (done.lost[0].sequence, done.lost[0].step) == (None, None)
    assert done.lost[0].fact == f"{old[7].length:,} bytes at byte {old[7].offset:,} that are no record, after step 6 before step 8"
    require_kept(path, old, [header.step for header in done.kept], done)
    assert {0, 1, 2, 3, 4, 5, 6} <= {header.step for header in done.kept}


@pytest.mark.parametrize("step", [0, 3, 5, 11])
def test_damaged_trailer_costs_nothing(step: int, tmp_path: Path) -> None:
    """A record whose trailer alone is damaged is found by its header: every step is kept, wherever it is."""
    path = tmp_path / NAME
    write_run(path)
    old = entries(path)
    flip(path, old[step].offset + old[step].length - 30)
    done = repair(path)
    assert done.lost == []
    require_kept(path, old, list(range(12)), done)


@pytest.mark.parametrize("offset", [0, 3, 13, 25, 33, 45])
def test_damaged_file_header_costs_nothing(offset: int, tmp_path: Path) -> None:
    """A damaged file header hides every record from a reader, and costs none: each says what it said."""
    path = tmp_path / NAME
    write_run(path)
    old = entries(path)
    flip(path, offset)
    done = repair(path)
    assert done.lost == []
    require_kept(path, old, list(range(12)), done)
    assert everything_in(tmp_path) == [NAME, f"{NAME}.aside.1", f"{NAME}.lock"]


def test_torn_tail(tmp_path: Path) -> None:
    """The half of an append at the end is said and cut; every whole step is kept."""
    path = tmp_path / NAME
    write_run(path)
    old = entries(path)
    os.truncate(path, old[11].offset + old[11].length - 50)
    done = repair(path)
    (lost,) = done.lost
    assert lost.fact.endswith("that are no record (the file ends inside a record), after step 10")
    require_kept(path, old, list(range(11)), done)


def test_every_stretch_that_can_be_damaged(tmp_path: Path) -> None:
    """Wherever a stretch of the file is overwritten, the repaired run is sound and holds every step whose generation is untouched."""
    origin = tmp_path / "origin"
    write_run(origin)
    old = entries(origin)
    size = origin.stat().st_size
    path = tmp_path / NAME
    for start in range(13, size, size // 40):
        for file in tmp_path.glob(f"{NAME}*"):
            file.unlink()
        shutil.copy(origin, path)
        with open(path, "r+b") as stream:
            stream.seek(start)
            stream.write(random.Random(start).randbytes(min(97, size - start)))
        done = repair(path)
        kept = [header.step for header in done.kept]
        touched = {step for step, entry in old.items() if entry.offset < start + 97 and start < entry.offset + entry.length}
        generations = [range(5), range(5, 12)]
        for generation in generations:
            if not touched & set(generation):
                assert set(generation) <= set(kept)
        for step in set(range(12)) - set(kept):
            assert any(lost.step == step for lost in done.lost) or any(lost.step is None for lost in done.lost)
        require_kept(path, old, kept, done)


@pytest.mark.parametrize("piece", [16, 100, 4096])
def test_records_across_pieces(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records without a trailer are found behind damage, wherever the pieces end in which a file is read."""
    monkeypatch.setattr(fastckpt.repair, "_PIECE", piece)
    path = tmp_path / NAME
    write_run(path, range(8), bases=tuple(range(8)))
    old = entries(path)
    flip(path, 40)
    for step in (0, 2, 4):
        flip(path, old[step].offset + 20)
        flip(path, old[step + 1].offset + old[step + 1].length - 30)
    done = repair(path)
    assert len(done.lost) == 3
    require_kept(path, old, [1, 3, 5, 6, 7], done)


def test_record_out_of_its_place(tmp_path: Path) -> None:
    """A copy of an older record behind the newest is no step, and does not hinder the repair."""
    path = tmp_path / NAME
    write_run(path, range(4), bases=(0, 1, 2, 3))
    old = entries(path)
    data = path.read_bytes()
    path.write_bytes(data + data[old[1].offset : old[2].offset])
    done = repair(path)
    assert [lost.step for lost in done.lost] == [None]
    assert f"{old[1].length:,} bytes at byte {len(data):,} that are no record" in done.lost[0].fact
    require_kept(path, old, [0, 1, 2, 3], done)


def test_new_file_is_read_back_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the new file not what was read, the old one would stay, and nothing be set aside."""
    path = tmp_path / NAME
    write_run(path)
    flip(path, inside_frame(entries(path)[0]))
    before = path.read_bytes()
    for change in ({"message": message(3)}, {"step": 70}):
        with monkeypatch.context() as patch:
            copy = Journal.copy

            def wrong(self: Journal, header: RecordHeader, message: bytes, change: dict[str, Any] = change, copy: Any = copy) -> Any:
                step = change.get("step", header.step) if header.step == 7 else header.step
                return copy(self, msgspec.structs.replace(header, step=step), change.get("message", message) if header.step == 7 else message)

            patch.setattr(Journal, "copy", wrong)
            with pytest.raises(CheckpointError, match="record 8 is another one"):
                repair(path)
        assert path.read_bytes() == before
        assert everything_in(tmp_path) == [NAME, f"{NAME}.lock"]


def test_retired_steps_stay_away(tmp_path: Path) -> None:
    """Steps that were deleted, or left by a forced save, do not come back; every stream is judged by its own ranges."""
    path = tmp_path / NAME
    write_run(path)
    with closing(Journal(path)) as journal:
        journal.tombstone([(2, 3)])
        journal.append(message(9), step=9, retires=[(9, None)])
        for step in range(3):
            journal.append(message(step), step=step, stream="other", key=f"k{step}")
        journal.append(message(2), step=2, stream="other", key="again", retires=[(2, None)])
    old = {(entry.header.stream, entry.sequence): entry for entry, live in marked(Reader(path)) if live}
    flip(path, inside_frame(entries(path)[11]))
    done = repair(path)
    assert [(header.stream, header.sequence) for header in done.kept] == sorted(old, key=lambda key: key[1])
    assert [header.step for header in done.kept if not header.stream] == [0, 1, 4, 5, 6, 7, 8, 9]
    assert [header.key for header in done.kept if header.stream] == ["k0", "k1", "again"]
    reader = Reader(path)
    assert list(reader.verify()) == []
    assert [reader.read(entry) for entry in reader.live("other")] == [message(2), message(1), message(0)]
    reader.close()


def test_single_file_is_not_touched(tmp_path: Path) -> None:
    """A damaged file of one checkpoint is an error, and nothing at all is changed; a sound one needs nothing."""
    path = tmp_path / "x"
    fastckpt.save(path, {"a": 1})
    assert repair(path).aside is None
    data = path.read_bytes()
    for offset in (30, FILE_HEADER_SIZE + 20, len(data) - 50, len(data) - 5):
        path.write_bytes(data)
        flip(path, offset)
        before = path.read_bytes()
        with pytest.raises(CorruptError, match="nothing was changed") as caught:
            repair(path)
        assert caught.value.exit_code == 4
        assert path.read_bytes() == before
        assert everything_in(tmp_path) == ["x"]


@pytest.mark.parametrize("content", [b"", bytes(5000), b"\x5c\x2a\x4d\x18"])
def test_nothing_readable(content: bytes, tmp_path: Path) -> None:
    """A file that is empty, zeros or cut in its header is an error, and nothing is changed."""
    path = tmp_path / NAME
    path.write_bytes(content)
    with pytest.raises(CorruptError, match="nothing was changed"):
        repair(path)
    assert path.read_bytes() == content
    assert everything_in(tmp_path) == [NAME]


def test_no_state_readable(tmp_path: Path) -> None:
    """A run of which no state can be read is an error; the file is as it was, nothing is set aside, no temporary is left."""
    path = tmp_path / NAME
    write_run(path, range(3))
    flip(path, inside_frame(entries(path)[0]))
    for step in (1, 2):
        flip(path, entries(path)[step].offset + 30)
    before = path.read_bytes()
    with pytest.raises(CorruptError, match="no step of the run can be read"):
        repair(path)
    assert path.read_bytes() == before
    assert everything_in(tmp_path) == [NAME, f"{NAME}.lock"]


def test_what_is_no_run(tmp_path: Path) -> None:
    """What is not there is not found, and nothing is made for it; JSON is no checkpoint of ours."""
    with pytest.raises(NotFoundError):
        repair(tmp_path / "nowhere" / NAME)
    assert everything_in(tmp_path) == []
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(NotACheckpointError):
        repair(tmp_path / "x.json")
    assert everything_in(tmp_path) == ["x.json"]


@needs_posix
def test_writer_keeps_repair_out(tmp_path: Path) -> None:
    """While another writer holds the run nothing is repaired."""
    path = tmp_path / NAME
    write_run(path)
    flip(path, inside_frame(entries(path)[0]))
    before = path.read_bytes()
    lock = Lock(f"{path}.lock")
    try:
        with pytest.raises(LockedError):
            repair(path)
    finally:
        lock.release()
    assert path.read_bytes() == before
    assert repair(path).aside


def test_asides_add_up(tmp_path: Path) -> None:
    """A second repair sets aside under the next number; no earlier aside is touched."""
    path = tmp_path / NAME
    for number in (1, 2):
        path.unlink(missing_ok=True)
        write_run(path)
        flip(path, inside_frame(entries(path)[0]) + number)
        damaged = path.read_bytes()
        assert repair(path).aside == f"{path}.aside.{number}"
        assert Path(f"{path}.aside.{number}").read_bytes() == damaged


@needs_posix
def test_link_is_written_through(tmp_path: Path) -> None:
    """Of a linked file the one that it points to is repaired and set aside; the link and the permission bits stay."""
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / NAME, tmp_path / NAME
    write_run(real)
    real.chmod(0o640)
    link.symlink_to(real)
    flip(real, inside_frame(entries(real)[0]))
    assert repair(link).aside == f"{real}.aside.1"
    assert link.is_symlink()
    assert (real.stat().st_mode & 0o777, list(Reader(real).verify())) == (0o640, [])


class NoLinks(Storage):
    def link(self, source: str, target: str) -> None:
        raise PermissionError(1, "Operation not permitted")


def test_without_hard_links(tmp_path: Path) -> None:
    """Where the filesystem has no hard links the old file is copied aside."""
    path = tmp_path / NAME
    write_run(path)
    flip(path, inside_frame(entries(path)[0]))
    damaged = path.read_bytes()
    aside = repair(path, storage=NoLinks()).aside
    assert aside is not None
    assert Path(aside).read_bytes() == damaged


# --- crashes and failing calls ---------------------------------------------------------------------------------------

PATH = f"/disk/{NAME}"


def damaged_disk() -> tuple[ModelStorage, bytes]:
    """A disk with a small run whose first generation is damaged, all of it durable; and the file's content."""
    model = ModelStorage(folders=["/disk"])
    write_run(PATH, range(3), storage=model, size=200)
    reader = Reader(PATH, storage=model)
    first = list(reader.entries())[-1]
    reader.close()
    fd = model.open(PATH, os.O_RDWR)
    offset = inside_frame(first)
    byte = model.read(fd, 1, offset)
    model.write(fd, memoryview(bytes([byte[0] ^ 1])), offset)
    model.close(fd)
    model.sync_everything()
    return model, content(model, PATH)


def content(storage: Storage, path: str) -> bytes:
    fd = storage.open(path, os.O_RDONLY)
    try:
        return storage.read(fd, 1 << 20, 0)
    finally:
        storage.close(fd)


def steps_of(storage: Storage) -> list[int]:
    reader = Reader(PATH, storage=storage)
    try:
        assert list(reader.verify()) == []
        assert [reader.read(entry) for entry in reader.live()] == [message(step, 200) for step in (2, 1)]
        return [entry.header.step for entry in reader.live()]
    finally:
        reader.close()


def require_old_or_new(machine: ModelStorage, old: bytes, *, new_only: bool = False) -> None:
    """The run is the old file, or the repaired one with the old one aside; and a repair after that mends it."""
    found = content(machine, PATH)
    if found == old:
        assert not new_only
        repair(PATH, storage=machine)
    assert steps_of(machine) == [2, 1]
    asides = [name for name in machine.list("/disk") if ".aside." in name]
    assert any(content(machine, f"/disk/{name}") == old for name in asides)


def test_crash_after_every_call() -> None:
    """In every state that a loss of power may leave, the run is the old file or the repaired one, and then the old one is aside."""
    seen: set[object] = set()
    for after in itertools.count():
        model, old = damaged_disk()
        finished = False
        try:
            repair(PATH, storage=CrashingStorage(model, after))
            finished = True
        except Crash:
            pass
        for state in model.states(after):
            # Drafts are in many states, and nobody looks at them.
            key = finished, *sorted((path, data) for path, (_, _, data) in state.files.items() if not is_temporary(path[-1]))
            if key not in seen:
                seen.add(key)
                require_old_or_new(state.boot(), old, new_only=finished)
        if finished:
            assert len(seen) > 3, len(seen)
            return


@pytest.mark.parametrize(
    "kind", ["open", "read", "write", "sync", "sync_data", "close", "replace", "link", "stat", "list", "lock", "unlink", "truncate", "chmod"]
)
def test_every_failing_call(kind: str) -> None:
    """Whatever call fails: an error of ours and the old file, or the repaired one with the old one aside; and the next repair works."""
    for nth in itertools.count(1):
        model, old = damaged_disk()
        faulty = FaultyStorage(model, nth, kind=kind)
        try:
            repair(PATH, storage=faulty)
            refused = False
        except DurabilityError:
            refused = False
        except StorageError:
            refused = True
        assert not model.descriptors, faulty.trace()
        if refused:
            assert content(model, PATH) == old
        require_old_or_new(model, old)
        assert not faulty.hit or kind in ("unlink", "close") or not temporaries(model), faulty.trace()
        if not faulty.hit:
            return
