"""A run's file as its users see it: what is appended is read, in every combination; bases, streams, threads, copies, sizes.

What may go wrong is in test_journal_crash, test_journal_damage and test_journal_processes.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faults import RUN, ModelStorage, Passing, contents
from hypothesis import given, settings
from hypothesis import strategies as st
from support import needs_tool

import fastckpt
from fastckpt.container import Source
from fastckpt.errors import LimitError, NotACheckpointError, NotFoundError, StorageError
from fastckpt.journal import Journal
from fastckpt.reader import MAX_TOUCHED, Reader


def disk() -> ModelStorage:
    return ModelStorage(folders=["/disk"])


def changed(message: bytes, pick: random.Random, places: int = 1) -> bytes:
    """A few bytes of it are others."""
    other = bytearray(message)
    for _ in range(places):
        at = pick.randrange(len(other) - 8)
        other[at : at + 8] = pick.randbytes(8)
    return bytes(other)


edits = st.one_of(
    st.binary(max_size=2000),
    st.tuples(st.integers(0, 3000), st.integers(0, 500), st.binary(max_size=300)),  # a slice of the last one replaced
    st.just("again"),
)
appends = st.tuples(
    edits, st.sampled_from(["", "a", "b"]), st.sampled_from(["", "k"]), st.one_of(st.none(), st.integers(0, 5)), st.booleans(), st.booleans()
)


@settings(max_examples=60)
@given(st.lists(st.one_of(appends, st.sampled_from(["reopen", "sync", "refresh", "tombstone"])), max_size=25))
def test_any_sequence_of_messages(actions: list[Any]) -> None:
    """Whatever is appended, over several streams and keys, with and without sync, reopened in between: a plain list says what is read."""
    model = disk()
    journal = Journal(RUN, storage=model, chunk=64)
    expected: list[tuple[str, str, int | None, bytes]] = []
    newest: dict[str, bytes] = {}
    reader: Reader | None = None
    for action in actions:
        if action == "reopen":
            journal.close()
            journal = Journal(RUN, storage=model, chunk=64)
        elif action == "sync":
            journal.sync()
        elif action == "refresh":
            if reader is not None:
                reader.refresh()
            elif expected:
                reader = Reader(RUN, storage=model)
            if reader is not None:
                assert listed(reader) == expected
        elif action == "tombstone":
            if expected:
                journal.tombstone([(90, 91)], stream="t")
        else:
            edit, stream, key, step, base, sync = action
            old = newest.get(stream, b"")
            message = edit if isinstance(edit, bytes) else old if edit == "again" else old[: edit[0]] + edit[2] + old[edit[0] + edit[1] :]
            done = journal.append(message, stream=stream, key=key, step=step, base=base, sync=sync)
            assert done.base or not base
            newest[stream] = message
            expected.append((stream, key, step, message))
    assert listed(journal) == expected
    assert [*journal.verify()] == []
    journal.close()
    if expected:
        with closing(Reader(RUN, storage=model)) as fresh:
            assert listed(fresh) == expected
            assert fresh.damage is None
            for stream in ("", "a", "b"):
                assert [fresh.read(e) for e in fresh.live(stream)] == [m for s, _, _, m in expected[::-1] if s == stream]


def listed(reader: Reader) -> list[tuple[str, str, int | None, bytes]]:
    found = [(e.header.stream, e.header.key, e.header.step, reader.read(e)) for e in reader.entries() if e.header.kind == "state"]
    return found[::-1]


def test_all_that_a_record_says() -> None:
    """Metadata, metrics, source, type, schema, key and flags come back; times and sequence numbers increase."""
    model = disk()
    with closing(Journal(RUN, storage=model)) as journal:
        source = Source("ab" * 16, migrated=True)
        options: dict[str, Any] = {"step": 7, "stream": "s", "key": "k", "has_ext": True, "source": source, "type_name": "T", "schema": "f"}
        journal.append(b"m", meta={"note": "x", "n": [1, None]}, metrics={"loss": 0.5}, **options)
        journal.append(b"m2")
        first, second = [*journal.entries()][::-1]
    header = first.header
    assert (header.step, header.stream, header.key, header.ext, header.source, header.type, header.schema) == (7, "s", "k", True, source, "T", "f")
    assert msgspec.msgpack.decode(header.meta) == {"note": "x", "n": [1, None]}
    assert msgspec.msgpack.decode(header.metrics) == {"loss": 0.5}
    assert (second.header.step, second.header.meta, second.header.source) == (None, msgspec.Raw(b"\x80"), None)
    assert second.sequence > first.sequence
    assert second.header.time >= first.header.time


def test_live_states() -> None:
    """Retired steps, by a tombstone, a range, an open range or a step saved again after going back, are live no longer; others are."""

    def live(journal: Journal) -> list[tuple[int | None, bytes]]:
        return [(e.header.step, journal.read(e)) for e in journal.live()]

    with closing(Journal(RUN, storage=disk())) as journal:
        for step in range(6):
            journal.append(b"%d" % step, step=step)
        journal.append(b"other", step=3, stream="other")
        journal.tombstone([(1, 1)])
        assert live(journal) == [(5, b"5"), (4, b"4"), (3, b"3"), (2, b"2"), (0, b"0")]
        journal.append(b"3 again", step=3, retires=[(3, None)])  # back to 3
        assert live(journal) == [(3, b"3 again"), (2, b"2"), (0, b"0")]
        journal.append(b"4 again", step=4)
        journal.append(b"1 again", step=1)
        assert live(journal) == [(1, b"1 again"), (4, b"4 again"), (3, b"3 again"), (2, b"2"), (0, b"0")]
        journal.tombstone([(0, 2), (4, 9)], sync=False)
        assert live(journal) == [(3, b"3 again")]
        assert [journal.read(e) for e in journal.live("other")] == [b"other"]
        assert journal.state(3) == next(journal.live())
        with pytest.raises(NotFoundError):
            journal.state(4)


# Bases


def test_first_and_forced_and_reopened_are_bases() -> None:
    """The first record of a file, of a stream, after opening, and one that asks for it are bases; the next ones are not."""
    model, pick = disk(), random.Random(1)
    message = pick.randbytes(50_000)
    with closing(Journal(RUN, storage=model)) as journal:
        assert [journal.append(message := changed(message, pick)).base for _ in range(3)] == [True, False, False]
        assert journal.append(message, base=True).base
        assert not journal.append(message).base
        assert journal.append(message, stream="a").base
        assert not journal.append(message, stream="a").base
        assert not journal.append(changed(message, pick)).base
    with closing(Journal(RUN, storage=model)) as journal:
        assert journal.append(message).base
        assert not journal.append(message).base
        assert journal.append(message * 2 + b"x").base  # doubled


def touched(reader: Reader) -> list[int]:
    """How many other records each one touches, oldest first."""
    return [len(reader._table(entry).distances) for entry in reader.entries()][::-1]


def test_never_more_than_256_touched() -> None:
    """600 steps of four changed floats in a message of a thousand chunks: 256 records are touched at most, and that is reached."""
    model, pick = disk(), random.Random(2)
    message = bytearray(pick.randbytes(2_000_000))
    kept: dict[int, bytes] = {}
    with closing(Journal(RUN, storage=model, level=1, chunk=2048)) as journal:
        for step in range(600):
            for _ in range(4):
                at = 8 * pick.randrange(len(message) // 8)
                message[at : at + 8] = struct.pack("<d", pick.random())
            journal.append(bytes(message), step=step, sync=False)
            if step % 60 == 0 or step > 590:
                kept[step] = bytes(message)
            model._find(RUN).unsynced.clear()  # or the model keeps every version
        counts = touched(journal)
        assert max(counts) == MAX_TOUCHED
        assert counts.count(0) >= 2
        for step, there in kept.items():
            assert journal.read(journal.state(step)) == there


def test_bases_bound_the_file() -> None:
    """One row more a step: the file stays in proportion, and tables refer to nothing before the newest base of their stream."""
    model, row = disk(), b"%060d\n"
    message = b""
    with closing(Journal(RUN, storage=model)) as journal:
        for step in range(1500):
            message += row % step
            journal.append(message, step=step, stream="ab"[step % 2], sync=False)
        bases: dict[str, int] = {}
        for entry in [*journal.entries()][::-1]:
            if entry.header.base:
                bases[entry.header.stream] = entry.offset
            distances = journal._table(entry).distances
            assert len(distances) <= MAX_TOUCHED
            assert all(entry.offset - distance >= bases[entry.header.stream] for distance in distances)
        assert len(model.content(RUN) or b"") < 2_500_000
        assert journal.read(journal.state(1499, "b")) == message


def test_streams_do_not_suffer_from_each_other() -> None:
    """50 streams interleaved in one file cost, in frames and tables, what they cost in 50 files."""
    picks = [random.Random(n) for n in range(50)]
    states = [pick.randbytes(20_000) for pick in picks]
    together, alone = disk(), [disk() for _ in picks]
    journals = [Journal(RUN, storage=model) for model in alone]
    with closing(Journal(RUN, storage=together)) as one:
        for step in range(6):
            for n, pick in enumerate(picks):
                states[n] = changed(states[n], pick, 3)
                one.append(states[n], step=step, stream=f"s{n}", sync=False)
                journals[n].append(states[n], step=step, sync=False)

        def cost(reader: Reader) -> int:
            return sum(entry.header.frame + entry.header.table for entry in reader.entries())

        assert cost(one) < 1.01 * sum(map(cost, journals))
        for n, state in enumerate(states):
            assert one.read(one.state(5, f"s{n}")) == state
    for journal in journals:
        journal.close()


# Syncs


class Counting(Passing):
    """How many calls of each kind there were, and bytes read."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.read_bytes = 0

    def call(self, name: str, *arguments: Any) -> Any:
        result = super().call(name, *arguments)
        self.read_bytes += len(result) if name == "read" else 0
        return result

    def count(self, kind: str) -> int:
        return sum(name == kind for name, _ in self.calls)


def test_sync_per_append() -> None:
    """An append without a sync makes none; `sync` makes one, and none where nothing is to be synced; records say what was not synced."""
    storage = Counting(disk())
    with closing(Journal(RUN, storage=storage)) as journal:
        journal.append(b"first", step=0)
        storage.calls.clear()
        done = [journal.append(b"more", step=step, sync=False) for step in (1, 2)]
        assert storage.count("sync_data") == 0
        assert [d.flushes for d in done] == [0, 0]
        assert journal.append(b"synced", step=3).flushes == 1
        assert storage.count("sync_data") == 1
        journal.append(b"more", step=4, sync=False)
        journal.sync()
        journal.sync()
        assert storage.count("sync_data") == 2
        journal.append(b"more", step=5, sync=False)
        entries = [*journal.entries()][::-1]
        assert [e.header.unsynced for e in entries] == [0, 0, entries[1].length, entries[1].length + entries[2].length, 0, 0]
    assert storage.count("sync_data") == 3
    assert storage.count("sync") == 0


# Reading


def test_opening_reads_only_the_end() -> None:
    """Opening for append and the first append read as much of a file of 5,000 records as of one of 10."""
    counts = []
    for records in (10, 5000):
        model = disk()
        with closing(Journal(RUN, storage=model)) as journal:
            journal.append(b"x", step=0)
            file = model._find(RUN)
            for step in range(1, records):
                journal.append(b"%d" % step, step=step, sync=step % 50 == 0)
                file.unsynced.clear()  # or the model keeps every version
            journal.append(b"x", step=records)
            journal.append(b"x", step=records)
        counting = Counting(model)
        with closing(Journal(RUN, storage=counting)) as journal:
            assert journal.newest is not None
            assert journal.newest.header.step == records
            journal.append(b"next", step=records)
        counts.append(counting.read_bytes)
    assert counts[1] < counts[0] + 200
    assert counts[0] < 3000


def test_cache_of_frames() -> None:
    """A second read of a step, and the read of its neighbour, decode no frame twice; a long run does not grow the cache beyond its limit."""
    storage = Counting(disk())
    pick = random.Random(3)
    message = pick.randbytes(1 << 20)
    with closing(Journal(RUN, storage=storage)) as journal:
        for step in range(20):
            message = changed(message, pick)
            journal.append(message, step=step)
        entries = [*journal.entries()]
        assert journal.read(entries[0]) == message
        storage.read_bytes = 0
        assert journal.read(entries[0]) == message
        journal.read(entries[1])
        assert storage.read_bytes < 300_000
        for step in range(20, 40):
            message = pick.randbytes(1 << 20)
            journal.append(message, step=step)
            assert journal.read(journal.state()) == message
        assert journal._cached == sum(map(len, journal._cache.values())) <= 9 << 20


def test_limit_of_messages() -> None:
    """A message beyond `max_size` is refused by append and by read, before anything is written or read, with both numbers."""
    model = disk()
    with closing(Journal(RUN, storage=model, max_size=1000)) as journal:
        journal.append(b"x" * 1000)
        with pytest.raises(LimitError) as caught:
            journal.append(b"x" * 1001)
        assert (caught.value.limit, caught.value.got) == (1000, 1001)
        with pytest.raises(LimitError):
            journal.append(b"x", meta={"note": "y" * (1 << 20)})
        journal.append(b"small")
    with closing(Reader(RUN, storage=model, max_size=10)) as reader:
        small, large = reader.entries()
        assert reader.read(small) == b"small"
        with pytest.raises(LimitError):
            reader.read(large)


def test_reading_while_other_threads_append(tmp_path: Path) -> None:
    """Threads read, list and verify while others append, and while the file is rewritten: right messages, `newest` never goes back."""
    journal = Journal(tmp_path / "checkpoint.fastckpt")
    base = random.Random(4).randbytes(30_000)

    def message(step: int) -> bytes:
        return base[: step * 10] + b"%010d" % step + base[step * 10 :]

    journal.append(message(0), step=0)
    done = threading.Event()
    failures: list[BaseException] = []
    reads = 0

    def read() -> None:
        nonlocal reads
        newest = 0
        try:
            while not done.is_set():
                entry = journal.newest
                assert entry is not None
                assert entry.sequence >= newest
                newest = entry.sequence
                for _, one in zip(range(5), journal.entries(), strict=False):
                    assert journal.read(one) == message(one.header.step or 0)
                reads += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for step in range(1, 200):
            journal.append(message(step), step=step, sync=step % 3 == 0)
            if step % 20 == 0:
                journal._poisoned = True  # as after a failed sync: the next append publishes a new file
                journal.refresh()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert reads > 3
    assert [*journal.verify()] == []
    journal.close()
    assert len(contents(str(tmp_path / "checkpoint.fastckpt")) or []) == 200


def test_appends_of_several_threads(tmp_path: Path) -> None:
    """Eight threads append to one journal, each to its own stream: every record is whole, each stream in its order."""
    with closing(Journal(tmp_path / "checkpoint.fastckpt")) as journal:

        def append(name: str) -> None:
            for step in range(25):
                journal.append(f"{name}{step}".encode() * 100, step=step, stream=name, sync=step % 5 == 0)

        threads = [threading.Thread(target=append, args=(f"t{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for n in range(8):
            assert [(e.header.step, journal.read(e)) for e in journal.live(f"t{n}")] == [(s, f"t{n}{s}".encode() * 100) for s in range(25)][::-1]
        assert [*journal.verify()] == []


def test_refresh_follows_a_writer(tmp_path: Path) -> None:
    """A reader sees what was there when it opened, until `refresh`: then what was appended, a rewritten file, another run in its place."""
    path = tmp_path / "checkpoint.fastckpt"
    with closing(Journal(path)) as journal:
        journal.append(b"0", step=0)
        with closing(Reader(path)) as reader, closing(Journal(path, read_only=True)) as same:
            for step in range(1, 6):
                journal.append(b"%d" % step, step=step)
                if step == 3:
                    journal._poisoned = True
                for one in (reader, same):
                    assert one.newest is not None
                    assert one.newest.header.step == step - 1
                    assert one.refresh()
                    assert not one.refresh()
                    assert one.read(one.newest) == b"%d" % step
            journal.close()
            path.unlink()
            with pytest.raises(StorageError):
                reader.refresh()
            fastckpt.save(path, {"another": 1})
            assert reader.refresh()
            assert reader.single


def test_read_only(tmp_path: Path) -> None:
    """A journal that is opened read-only changes nothing, beside a writer too, and says so; without a file there is nothing to read."""
    path = tmp_path / "runs" / "checkpoint.fastckpt"
    with pytest.raises(NotFoundError):
        Journal(path, read_only=True)
    assert not path.parent.exists()
    with closing(Journal(path)) as journal:
        journal.append(b"0", step=0)
        with closing(Journal(path, read_only=True)) as reading:
            for call in (lambda: reading.append(b"1"), lambda: reading.tombstone([(0, 0)]), lambda: reading.adopt(1)):
                with pytest.raises(StorageError, match="read-only"):
                    call()
    assert sorted(p.name for p in path.parent.iterdir()) == ["checkpoint.fastckpt", "checkpoint.fastckpt.lock"]


def test_closed(tmp_path: Path) -> None:
    """After `close` every use is refused with the reason; a second `close` does nothing; what was not synced is."""
    path = tmp_path / "checkpoint.fastckpt"
    journal = Journal(path)
    journal.append(b"0", step=0)
    entry = journal.newest
    assert entry is not None
    journal.close()
    journal.close()
    for call in (lambda: journal.append(b"1"), lambda: journal.tombstone([(0, 0)]), lambda: journal.read(entry), journal.sync):
        with pytest.raises(StorageError, match="closed"):
            call()


def test_adopt(tmp_path: Path) -> None:
    """A file of one checkpoint becomes a run: its state is the first step, its metadata and time stay; appending before is refused."""
    path = tmp_path / "checkpoint.fastckpt"
    state = {"weights": [0.5] * 5000}
    fastckpt.save(path, state, meta={"note": "old"})
    before = fastckpt.inspect(path)
    with closing(Journal(path)) as journal:
        assert journal.single
        with pytest.raises(StorageError, match="adopted"):
            journal.append(b"x", step=8)
        journal.adopt(7)
        assert not journal.single
        journal.adopt(9)  # nothing more to do
        done = journal.append(msgspec.msgpack.encode({"weights": [0.5] * 4999 + [1.5]}), step=8)
        assert done.base
    assert [step for step, _ in contents(str(path)) or []] == [7, 8]
    assert fastckpt.load(path) == {"weights": [0.5] * 4999 + [1.5]}
    with closing(Reader(path)) as reader:
        first = [*reader.entries()][-1]
        assert msgspec.msgpack.decode(reader.read(first)) == state
        assert (first.header.time, first.header.meta) == (before.time, msgspec.Raw(msgspec.msgpack.encode({"note": "old"})))
        assert reader._file_id.hex() == before.file_id


def test_other_files_are_refused(tmp_path: Path) -> None:
    """What is no file of ours is refused, and is left as it is, and so is its directory's lock."""
    path = tmp_path / "checkpoint.fastckpt"
    for content in (b'{"a": 1}', b"\x28\xb5\x2f\xfd" + bytes(100), b"text" * 100):
        path.write_bytes(content)
        for open_it in (Journal, Reader):
            with pytest.raises(NotACheckpointError):
                open_it(path)
        assert path.read_bytes() == content
    path.unlink()
    Journal(path).close()  # nobody holds the lock


@needs_tool("zstd")
def test_zstd_accepts_a_run(tmp_path: Path) -> None:
    """`zstd -t` finds a run's file good: it is one valid zstd stream."""
    path, pick = tmp_path / "checkpoint.fastckpt", random.Random(6)
    message = pick.randbytes(30_000)
    with closing(Journal(path)) as journal:
        for step in range(20):
            message = changed(message, pick)
            journal.append(message, step=step, sync=False)
        journal.tombstone([(3, 5)])
        journal.append(b"", step=21)
    done = subprocess.run(["zstd", "-t", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_copies_taken_while_it_is_written(tmp_path: Path) -> None:
    """A copy that is taken while the run grows is readable up to its last whole record, and can be gone on with."""
    path, copy = tmp_path / "checkpoint.fastckpt", tmp_path / "copy" / "checkpoint.fastckpt"
    copy.parent.mkdir()
    journal = Journal(path)
    journal.append(b"0" * 1000, step=0)
    done = threading.Event()

    def write() -> None:
        step = 0
        while not done.is_set():
            step += 1
            journal.append(b"%d " % step * 20_000, step=step, sync=False)
            time.sleep(0.003)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(20):
            shutil.copyfile(path, copy)
            found = contents(str(copy)) or []
            assert [step for step, _ in found] == [*range(len(found))]
            assert all(message == (b"%d " % step * 20_000 if step else b"0" * 1000) for step, message in found)
    finally:
        done.set()
        thread.join()
    data = path.read_bytes()
    copy.write_bytes(data[:-7])
    with closing(Journal(copy)) as other:
        assert other.damage is not None
        assert other.damage.torn
        other.append(b"next", step=10**6)
    assert (contents(str(copy)) or [])[-1] == (10**6, b"next")
    journal.close()


def test_same_bytes_for_same_messages() -> None:
    """Frames and tables of equal messages are equal, byte for byte: nothing is decided by time or chance."""

    def made() -> list[tuple[int, bytes]]:
        pick, model = random.Random(8), disk()
        message = pick.randbytes(40_000)
        with closing(Journal(RUN, storage=model)) as journal:
            for step in range(10):
                message = changed(message, pick, 4)
                journal.append(message, step=step)
            return [(e.header.frame_checksum, e.header.digest) for e in journal.entries()]

    assert made() == made()


@pytest.mark.parametrize("kept", [1, 1000, 100_000])
def test_a_message_that_shrinks_stays_readable(tmp_path: Path, kept: int) -> None:
    """A small message out of a large one becomes a base before the frames that it lies in are more than a reader takes for it."""
    large = b"".join(i.to_bytes(8, "big") * 512 for i in range(20_000))  # 80 MB
    with closing(Journal(tmp_path / "x", lock=False)) as journal:
        for message in (large, large[:kept], large[: kept + 5000], large[:kept]):
            journal.append(message, sync=False)
            assert journal.newest is not None
            assert journal.read(journal.newest) == message
