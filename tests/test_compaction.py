"""A run's file without what was retired: what is live is there afterwards as before, in less space, and nobody beside it is disturbed.

Crashes, I/O errors, kills and forks are in test_compaction_crash.
"""

from __future__ import annotations

import random
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faults import RUN, Lost, ModelStorage
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support import everything_in, open_descriptors

import fastckpt
from fastckpt.compaction import compact, estimate
from fastckpt.errors import CorruptError, ReplacedError, StorageError
from fastckpt.journal import Journal
from fastckpt.reader import Reader, Retired

STREAMS = ("", "a", "b")


def disk() -> ModelStorage:
    return ModelStorage(folders=["/disk"])


def live_states(reader: Reader, streams: tuple[str, ...] = STREAMS) -> list[tuple[Any, ...]]:
    """All that the live states say, those of each stream newest first."""
    found = []
    for stream in streams:
        for entry in reader.live(stream):
            header = entry.header
            said = (entry.sequence, header.stream, header.step, header.key, header.time, bytes(header.meta), header.ext, header.type)
            found.append((*said, reader.read(entry)))
    return found


def noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def changed(message: bytes, seed: int, size: int = 40) -> bytes:
    at = random.Random(seed).randrange(len(message) - size)
    return message[:at] + noise(size, seed) + message[at + size :]


def grown(journal: Journal, steps: int, *, size: int = 40_000, first: int = 0, bases: int = 10, stream: str = "", sync: bool = False) -> list[bytes]:
    """A run of `steps` messages of which each is the one before with a little changed; a base every so many."""
    messages = [noise(size, 1)]
    for step in range(first, first + steps):
        messages.append(changed(messages[-1], step))
        journal.append(messages[-1], step=step, stream=stream, base=step % bases == 0, sync=sync)
    return messages[1:]


# Everything there is, in any order

edits = st.one_of(
    st.binary(max_size=300),
    st.tuples(st.integers(0, 2000), st.integers(0, 200), st.binary(max_size=200)),  # a slice of the last one replaced
    st.just("again"),
)
steps = st.one_of(st.just("next"), st.none(), st.integers(0, 12))
ranges = st.lists(st.tuples(st.integers(0, 12), st.one_of(st.none(), st.integers(0, 12))), max_size=2)
appends = st.tuples(st.just("append"), st.sampled_from(STREAMS), edits, steps, ranges, st.sampled_from([False, False, False, True]))
retires = st.tuples(st.just("retire"), st.sampled_from(STREAMS), ranges)
grows = st.tuples(st.just("grow"), st.sampled_from(STREAMS), st.integers(1, 25))  # so many steps with a little changed
prunes = st.tuples(st.just("prune"), st.sampled_from(STREAMS), st.integers(1, 9), st.integers(0, 9))  # every so many steps, and the last ones, stay
compacts = st.tuples(st.just("compact"), st.lists(st.tuples(st.integers(0, 60), st.one_of(appends, grows)), max_size=3))
others = st.sampled_from([("reopen",), ("poison",), ("sync",)])
actions = st.lists(st.one_of(appends, grows, grows, retires, prunes, prunes, compacts, compacts, others), max_size=30)


class Oracle:
    """What a plain list says of the states that are live."""

    def __init__(self) -> None:
        self.states: list[tuple[str, int | None, bytes]] = []
        self.last: dict[str, bytes] = {"": noise(1500, 5), "a": noise(700, 6), "b": noise(700, 7)}
        self.steps: dict[str, int] = {}

    def retire(self, stream: str, gone: list[tuple[int, int | None]]) -> None:
        def dead(step: int | None) -> bool:
            return step is not None and any(first <= step and (last is None or step <= last) for first, last in gone)

        self.states = [(s, step, message) for s, step, message in self.states if s != stream or not dead(step)]

    def perform(self, journal: Journal, action: Any) -> None:
        if action[0] == "grow":
            for n in range(action[2]):
                place = len(self.states) * 37 % 600
                self.perform(journal, ("append", action[1], (place, 5, b"%05d" % len(self.states)), "next", [], n % 9 == 8))
            return
        if action[0] == "prune":
            _, stream, every, last = action
            newest = self.steps.get(stream, 0)
            gone = [(step, step) for step in range(newest - last) if step % every]
            self.perform(journal, ("retire", stream, gone))
            return
        if action[0] == "retire":
            _, stream, gone = action
            if journal.newest is not None and gone:
                journal.tombstone(gone, stream=stream)
                self.retire(stream, gone)
            return
        _, stream, edit, step, gone, base = action
        old = self.last[stream]
        message = edit if isinstance(edit, bytes) else old if edit == "again" else old[: edit[0]] + edit[2] + old[edit[0] + edit[1] :]
        step = self.steps.get(stream, -1) + 1 if step == "next" else step
        journal.append(
            message, stream=stream, step=step, retires=gone, base=base, sync=len(message) % 2 == 0, key=stream * 2, meta={"n": len(message)}
        )
        self.retire(stream, gone)
        self.states.append((stream, step, message))
        self.last[stream], self.steps[stream] = message, step or 0

    def require(self, reader: Reader) -> None:
        for stream in STREAMS:
            found = [(e.header.step, reader.read(e)) for e in reader.live(stream)]
            if found != [(step, message) for s, step, message in self.states[::-1] if s == stream]:
                raise Lost(f"stream {stream!r}: found steps {[step for step, _ in found]}")


@settings(max_examples=60)
@given(actions)
def test_any_history_compacted_anywhere(history: list[Any]) -> None:
    """Appends, retirements, going back, three streams, compactions anywhere with appends in the midst of them: what is live stays, as it was."""
    model, oracle = disk(), Oracle()
    journal = Journal(RUN, storage=model, chunk=64)
    for action in [("grow", "", 25), ("grow", "a", 10), *history, ("prune", "", 7, 3), ("prune", "a", 9, 1), ("compact", [])]:
        if action[0] == "reopen":
            journal.close()
            journal = Journal(RUN, storage=model, chunk=64)
        elif action[0] == "poison":
            journal._poisoned = journal.newest is not None  # as after a failed sync
        elif action[0] == "sync":
            journal.sync()
        elif action[0] == "compact":
            compacted(journal, oracle, action[1])
        else:
            oracle.perform(journal, action)
        oracle.require(journal)
    assert [*journal.verify()] == []
    journal.close()
    with closing(Reader(RUN, storage=model)) as fresh:
        oracle.require(fresh)
        assert fresh.damage is None
        assert [*fresh.verify()] == []


def compacted(journal: Journal, oracle: Oracle, meanwhile: list[tuple[int, Any]]) -> None:
    """Compact, with appends in the midst of it, and hold what is there against what was."""
    before, size = live_states(journal), journal.size
    expected = estimate(journal)
    newest = journal.newest.sequence if journal.newest else 0
    held, reading = [*journal.entries()], journal.entries()
    read = [next(reading).sequence] if held else [*reading]
    messages = [journal.read(entry) for entry in held]
    waiting = list(meanwhile)

    poisoned = journal._poisoned  # then an append would write the file anew, which a compaction refuses

    def appending() -> bool:
        while waiting and waiting[0][0] <= 0 and not poisoned:
            oracle.perform(journal, waiting.pop(0)[1])
        if waiting:
            waiting[0] = (waiting[0][0] - 1, waiting[0][1])
        return False

    done = compact(journal, cancelled=appending)
    for _, action in waiting:
        oracle.perform(journal, action)
    assert [journal.read(entry) for entry in held] == messages, "an entry that is held reads otherwise"
    assert [*read, *(entry.sequence for entry in reading)] == [entry.sequence for entry in held], "an iteration that is held goes on otherwise"
    assert (journal.newest.sequence if journal.newest else 0) >= newest
    event("compacted" if done else "nothing to drop")
    if not meanwhile:
        assert live_states(journal) == before
        if done is None:
            assert journal.size == size
        else:
            assert done.before == size
            assert done.after == journal.size
            assert done.after <= 1.2 * expected + 300 * (done.kept + 1)
            assert done.kept + done.dropped == sum(entry.header.kind == "state" for entry in held)


# What is left


def test_a_run_of_which_the_older_half_was_retired() -> None:
    """The generations of the retired half are gone, the rest is as it was, byte for byte; a second compaction has nothing to do."""
    model = disk()
    with closing(Journal(RUN, storage=model)) as journal:
        messages = grown(journal, 100)
        journal.tombstone([(0, 49)])
        before, whole = live_states(journal), model.content(RUN) or b""
        start = journal.state(50).offset
        done = compact(journal)
        assert done is not None
        assert (done.dropped, done.kept) == (50, 50)
        assert done.after == estimate(journal) == journal.size < 0.6 * done.before
        assert (model.content(RUN) or b"")[48:] == whole[start:]
        assert live_states(journal) == before
        assert [message for *_, message in before] == messages[:49:-1]
        assert compact(journal) is None
        assert not journal.append(changed(messages[-1], 7), step=100).base


def test_sparse_steps_are_packed_anew() -> None:
    """Of older generations one step in ten is kept: as differences from each other, under their old numbers; the next step is a difference too."""
    model = disk()
    with closing(Journal(RUN, storage=model)) as journal:
        messages = grown(journal, 200, bases=25, size=400_000)
        journal.tombstone([(step, step) for step in range(150) if step % 10])
        before = live_states(journal)
        expected = estimate(journal)
        done = compact(journal)
        assert done is not None
        assert done.after <= expected
        assert done.after < 0.6 * done.before
        assert live_states(journal) == before
        kept = [*journal.live()][::-1]
        assert [entry.header.step for entry in kept] == [*range(0, 150, 10), *range(150, 200)]
        assert sum(entry.header.base for entry in kept[:10]) <= 2
        assert not journal.append(changed(messages[-1], 7), step=200).base
        assert [*journal.verify()] == []
        # What was packed anew stays as it is when more is dropped behind it.
        old = (model.content(RUN) or b"")[: kept[9].offset + kept[9].length]
        journal.tombstone([(150, 195)])
        grown(journal, 30, first=300)
        assert compact(journal) is not None
        assert (model.content(RUN) or b"").startswith(old)


def test_nothing_left_but_the_newest() -> None:
    """Everything was retired: the record that says so stays, so that sequence numbers never begin anew, and steps do not come back."""
    with closing(Journal(RUN, storage=disk())) as journal:
        grown(journal, 40)
        grown(journal, 40, stream="a")
        journal.tombstone([(0, None)])
        last = journal.tombstone([(0, None)], stream="a").sequence
        done = compact(journal)
        assert done is not None
        assert done.after < 100_000
        assert live_states(journal) == []
        assert journal.append(b"next", step=0).sequence == last + 1
        assert [journal.read(entry) for entry in journal.live()] == [b"next"]


def test_going_back_does_not_bring_steps_back() -> None:
    """Steps that were gone back over and saved again: the old ones, and those off the timeline, stay gone after any number of compactions."""
    with closing(Journal(RUN, storage=disk())) as journal:
        grown(journal, 30, bases=7)
        journal.append(noise(40_000, 3), step=12, retires=[(12, None)])
        messages = grown(journal, 12, first=13, bases=5)
        before = live_states(journal)
        for more in range(4):
            compact(journal)
            assert live_states(journal)[more:] == before
            journal.append(changed(messages[-1], more), step=25 + more)
        assert [entry.header.step for entry in journal.live()] == [*range(29)][::-1]


def test_a_stream_that_rests_does_not_hold_up_the_others() -> None:
    """A thousand streams, of which one has an old base and another goes on: what they retired is dropped, and none needs a base afterwards."""
    model = disk()
    with closing(Journal(RUN, storage=model, level=1)) as journal:
        rest = noise(20_000, 9)
        journal.append(rest, step=0, stream="rests")
        for n in range(100):
            journal.append(noise(300, n), step=0, stream=f"s{n}", sync=False)
        messages = grown(journal, 120, bases=1000, size=30_000)
        for n in range(100):
            journal.append(noise(290, n), step=1, stream=f"s{n}", sync=False, retires=[(0, 0)])
        journal.append(changed(rest, 1), step=1, stream="rests")
        journal.tombstone([(0, 110)])
        names = ("", "rests", *(f"s{n}" for n in range(100)))
        before = live_states(journal, names)
        expected = estimate(journal)
        done = compact(journal)
        assert done is not None
        assert done.after <= 1.1 * expected
        assert done.after < 0.5 * done.before
        assert live_states(journal, names) == before
        assert not journal.append(changed(messages[-1], 5), step=120).base
        assert not journal.append(changed(rest, 2), step=2, stream="rests").base
        assert [*journal.verify()] == []


def test_a_stream_that_goes_on_while_it_is_cut_off() -> None:
    """Streams that hold each other up append in the midst of it: nothing that they append refers to what is gone."""
    with closing(Journal(RUN, storage=disk())) as journal:
        last = {}
        for step in range(40):
            for stream in STREAMS:
                last[stream] = changed(last.get(stream, noise(9000, 1)), step)
                journal.append(last[stream], step=step, stream=stream, sync=False)
        for stream in STREAMS:
            journal.tombstone([(0, 37)], stream=stream)
        calls = 0

        def append() -> bool:
            nonlocal calls
            calls += 1
            if calls % 20 == 0 and calls < 2000:
                stream = STREAMS[calls // 20 % 3]
                last[stream] = changed(last[stream], calls)
                journal.append(last[stream], step=40 + calls, stream=stream)
            return False

        done = compact(journal, cancelled=append)
        assert done is not None
        assert calls > 100
        assert [*journal.verify()] == []
        for stream in STREAMS:
            assert journal.read(journal.state(stream=stream)) == last[stream]
            assert not journal.append(changed(last[stream], 1), step=5000, stream=stream).base
            assert {38, 39} <= {entry.header.step for entry in journal.live(stream)}
        assert [*journal.verify()] == []


def test_nothing_to_compact(tmp_path: Path) -> None:
    """An empty journal, a file of one checkpoint, and a run in which all is live are left alone: the same file, not a byte written."""
    with closing(Journal(tmp_path / "none.fastckpt")) as journal:
        assert compact(journal) is None
        assert estimate(journal) == 0
    fastckpt.save(tmp_path / "single.fastckpt", {"a": 1})
    with closing(Journal(tmp_path / "single.fastckpt")) as journal:
        assert compact(journal) is None
        assert estimate(journal) == journal.size
    with closing(Journal(tmp_path / "run.fastckpt")) as journal:
        grown(journal, 30)
        inode = (tmp_path / "run.fastckpt").stat().st_ino
        assert compact(journal) is None
        assert estimate(journal) == journal.size
        assert (tmp_path / "run.fastckpt").stat().st_ino == inode
    assert [name for name in everything_in(tmp_path) if "tmp" in name] == []


def test_a_read_only_journal_is_not_compacted(tmp_path: Path) -> None:
    """Opened read-only, a run is not compacted, and what it would come to can be asked nevertheless."""
    with closing(Journal(tmp_path / "run.fastckpt")) as journal:
        grown(journal, 30)
        journal.tombstone([(0, 20)])
        journal.sync()
        with closing(Journal(tmp_path / "run.fastckpt", read_only=True)) as reading:
            assert estimate(reading) == estimate(journal) < journal.size
            with pytest.raises(StorageError, match="read-only"):
                compact(reading)


def test_mode_and_link_stay(tmp_path: Path) -> None:
    """A run that is reached through a symbolic link, with its own permissions: both stay; nothing is left beside it."""
    (tmp_path / "real").mkdir()
    path = tmp_path / "real" / "run.fastckpt"
    with closing(Journal(path)) as journal:
        grown(journal, 30)
    path.chmod(0o640)
    (tmp_path / "link").symlink_to(path)
    with closing(Journal(tmp_path / "link")) as journal:
        journal.tombstone([(0, 25)])
        assert compact(journal) is not None
    assert (tmp_path / "link").is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert everything_in(tmp_path / "real") == ["run.fastckpt", "run.fastckpt.lock"]


def test_without_syncs() -> None:
    """With `fsync=False` no sync is made, and a later call of `sync` makes up for it, the directory's included."""
    model = disk()
    with closing(Journal(RUN, storage=model)) as journal:
        messages = grown(journal, 40)
        journal.tombstone([(0, 30)], sync=False)
        model.sync_everything()
        assert len([*model.states()]) == 1
        assert compact(journal, fsync=False) is not None
        assert len([*model.states(most=20)]) > 1
        journal.sync()
        assert [state.files["disk", "runs", "checkpoint.fastckpt"][2] for state in model.states()] == [model.content(RUN)]
        assert journal.read(journal.state()) == messages[-1]


def test_cancelled() -> None:
    """Wherever it is cancelled, the file stays as it was, no temporary is left, and it can be done later."""
    for after in range(0, 400, 7):
        model = disk()
        with closing(Journal(RUN, storage=model)) as journal:
            messages = grown(journal, 60)
            journal.tombstone([(0, 20), (22, 28), (30, 50)])
            before = model.content(RUN)
            calls = iter(range(after))
            done = compact(journal, cancelled=lambda calls=calls: next(calls, None) is None)
            assert model.list("/disk/runs") == ["checkpoint.fastckpt.lock", "checkpoint.fastckpt"]
            if done is not None:
                assert after > 60
                break
            assert model.content(RUN) == before
            assert not journal.append(changed(messages[-1], 1), step=60).base
    else:
        raise AssertionError("it never came to an end")


# Damage


def test_damage_is_refused(tmp_path: Path) -> None:
    """What would be kept is damaged, or bytes are no record: an error with the place, the file as it was; in what is dropped it does not matter."""
    path = tmp_path / "run.fastckpt"
    with closing(Journal(path)) as journal:
        grown(journal, 60, sync=True)
        journal.tombstone([(0, 20), (22, 28), (30, 45)])
        places = {e.header.step: (e.offset, e.length) for e in journal.entries()}
    whole = path.read_bytes()
    outcomes = {}
    for step in (5, 21, 29, 30, 50, 55, 59):
        for part, at in (("header", 20), ("frame", places[step][1] - 60), ("trailer", places[step][1] - 20)):
            data = bytearray(whole)
            data[places[step][0] + at] ^= 4
            path.write_bytes(data)
            with closing(Journal(path)) as journal:
                try:
                    outcomes[step, part] = compact(journal) is not None
                except CorruptError as error:
                    assert error.offset is not None
                    assert path.read_bytes() == data
                    outcomes[step, part] = False
                    assert [name for name in everything_in(tmp_path) if "tmp" in name] == []
    # A header or a trailer hides what lies around it, so what is dropped is no longer known.
    assert outcomes == {(step, part): step in (5, 30) and part == "frame" for step, part in outcomes}


def test_a_torn_tail_is_kept_aside(tmp_path: Path) -> None:
    """A run whose last append a crash cut short: what is torn is copied aside and cut, as an append would, and the rest is compacted."""
    path = tmp_path / "run.fastckpt"
    with closing(Journal(path)) as journal:
        grown(journal, 40)
        journal.tombstone([(0, 30)])
        end = journal.size
        journal.append(noise(3000, 3), step=40)
    path.write_bytes(path.read_bytes()[:-5])
    torn = path.read_bytes()[end:]
    with closing(Journal(path)) as journal:
        assert journal.damage is not None
        assert compact(journal) is not None
        assert journal.damage is None
        assert [entry.header.step for entry in journal.live()] == [*range(31, 40)][::-1]
    assert Path(f"{path}.aside.1").read_bytes() == torn


# Others meanwhile


def test_entries_and_iterations_are_held(tmp_path: Path) -> None:
    """Entries and iterations from before a compaction read on as before it, in the writer and in a reader that refreshes, until it is closed."""
    path = tmp_path / "run.fastckpt"
    before = open_descriptors()
    journal = Journal(path)
    messages = grown(journal, 60)
    with closing(Reader(path)) as reader:
        held = [[*one.entries()][::-1] for one in (journal, reader)]
        going = [(one, one.live()) for one in (journal, reader)]
        firsts = [next(live) for _, live in going]
        for _ in range(3):
            journal.tombstone([(0, journal.state().header.step - 5)])
            assert compact(journal) is not None
            grown(journal, 30, first=journal.state().header.step + 1)
            assert reader.refresh()
        for one, entries in zip((journal, reader), held, strict=True):
            assert [one.read(entry) for entry in entries] == messages
        for (one, live), first in zip(going, firsts, strict=True):
            assert [one.read(entry) for entry in (first, *live)] == messages[::-1]
        many = len(open_descriptors())
        del held, going, firsts, live, first, entries
        assert len(open_descriptors()) == many - 2
        entry = next(reader.entries())
        journal.tombstone([(0, journal.state().header.step - 5)])
        assert compact(journal) is not None
        assert reader.refresh()
        old = next(journal.entries())
        journal.append(b"x", step=10_000)
    for call in (lambda: reader.read(entry), lambda: [*reader.entries()]):
        with pytest.raises(StorageError, match="closed"):
            call()
    journal.close()
    with pytest.raises(StorageError, match="closed"):
        journal.read(old)
    assert open_descriptors() == before


def test_threads_beside_compactions(tmp_path: Path) -> None:
    """Threads append, read, list and verify while another compacts again and again: every message right, the newest never goes back."""
    journal = Journal(tmp_path / "run.fastckpt")
    base = noise(20_000, 4)
    done = threading.Event()
    failures: list[BaseException] = []

    def message(step: int) -> bytes:
        return base[: step * 10] + b"%010d" % step + base[step * 10 :]

    def guarded(action: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                action()
            except BaseException as error:
                failures.append(error)
                done.set()

        return run

    def read() -> None:
        newest = 0
        while not done.is_set():
            entry = journal.newest
            assert entry is not None
            assert entry.sequence >= newest
            newest = entry.sequence
            steps = []
            for one in journal.live():
                assert journal.read(one) == message(one.header.step or 0)
                steps.append(one.header.step or 0)
                if len(steps) == 6:
                    break
            assert steps == [*range(steps[0], steps[0] - len(steps), -1)]

    def verify() -> None:
        while not done.is_set():
            assert [*journal.verify()] == []

    compactions = []

    def compacting() -> None:
        while not done.is_set():
            compactions.append(compact(journal))

    journal.append(message(0), step=0)
    threads = [threading.Thread(target=guarded(target)) for target in (read, read, verify, compacting)]
    for thread in threads:
        thread.start()
    try:
        for step in range(1, 4000):
            journal.append(message(step), step=step, sync=step % 10 == 0, retires=[(step - 12, step - 12)] if step >= 12 else [])
            if done.is_set() or (step > 300 and sum(each is not None for each in compactions) > 5):
                break
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert sum(each is not None for each in compactions) > 5
    assert [entry.header.step for entry in journal.live()] == [*range(step - 11, step + 1)][::-1]
    assert [*journal.verify()] == []
    assert journal.size < 200_000
    journal.close()


def test_closed_meanwhile(tmp_path: Path) -> None:
    """`close` in another thread does not wait for the bulk; the compaction gives up, the file is as it was, nothing stays open or beside it."""
    path = tmp_path / "run.fastckpt"
    before = open_descriptors()
    journal = Journal(path)
    grown(journal, 60)
    journal.tombstone([(0, 20), (22, 28), (30, 50)])
    whole = path.read_bytes()
    calls = 0

    def close() -> bool:
        nonlocal calls
        calls += 1
        if calls == 66:
            thread = threading.Thread(target=journal.close)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
        return False

    with pytest.raises(StorageError, match="closed"):
        compact(journal, cancelled=close)
    assert calls >= 66
    assert path.read_bytes() == whole
    assert everything_in(tmp_path) == ["run.fastckpt", "run.fastckpt.lock"]
    assert open_descriptors() == before


def rewritten(journal: Journal) -> None:
    journal._poisoned = True
    journal.append(b"in a new file", step=70)


def compacted_inside(journal: Journal) -> None:
    assert compact(journal) is not None


def replaced(journal: Journal) -> None:
    path = Path(journal.path)
    path.with_name("other").write_bytes(path.read_bytes())
    path.with_name("other").replace(path)


@pytest.mark.parametrize("happens", [rewritten, compacted_inside, replaced], ids=lambda happens: happens.__name__)
def test_another_file_meanwhile(tmp_path: Path, happens: Callable[[Journal], None]) -> None:
    """FAULTS E12: the file is written anew, compacted, or replaced by somebody meanwhile: refused, and that file stays as it is."""
    path = tmp_path / "run.fastckpt"
    with closing(Journal(path)) as journal:
        grown(journal, 60)
        journal.tombstone([(0, 20), (22, 28), (30, 50)])
        calls, found = 0, b""

        def happen() -> bool:
            nonlocal calls, found
            calls += 1
            if calls == 66:
                happens(journal)
                found = path.read_bytes()
            return False

        with pytest.raises(ReplacedError if happens is replaced else StorageError):
            compact(journal, cancelled=happen)
        assert path.read_bytes() == found
        assert [name for name in everything_in(tmp_path) if "tmp" in name] == []
        if happens is not replaced:
            journal.append(b"next", step=80)
            assert [*journal.verify()] == []
            assert compact(journal) is not None or happens is compacted_inside
            assert [e.header.step for e in journal.live() if (e.header.step or 0) < 60] == [*range(59, 50, -1), 29, 21]


def test_only_the_end_is_waited_for(tmp_path: Path) -> None:
    """Appends go on during all of the bulk, and what they appended, however much, is in the new file."""
    with closing(Journal(tmp_path / "run.fastckpt")) as journal:
        messages = grown(journal, 200)
        journal.tombstone([(0, 100)])
        added = []

        def append() -> bool:
            if len(added) < 100:
                added.append(changed((added or messages)[-1], len(added), 3000))
                thread = threading.Thread(target=lambda: journal.append(added[-1], step=200 + len(added)))
                thread.start()
                thread.join(10)
                assert not thread.is_alive(), "an append waits for the bulk"
            return False

        done = compact(journal, cancelled=append)
        assert done is not None
        assert len(added) == 100
        assert done.blocked_seconds <= done.seconds
        assert [journal.read(entry) for entry in journal.live()] == [*added[::-1], *messages[:100:-1]]
        assert not journal.append(changed(added[-1], 1), step=400).base


# The ranges of what is retired


@given(st.lists(st.tuples(st.integers(-5, 40), st.one_of(st.none(), st.integers(-5, 40)))), st.integers(-10, 50))
def test_ranges_of_retired_steps(ranges: list[tuple[int, int | None]], step: int) -> None:
    """A step is retired if one of the ranges has it, whatever their order and however they overlap."""
    retired = Retired()
    retired.add(ranges)
    assert (step in retired) == any(first <= step and (last is None or step <= last) for first, last in ranges)


def test_ranges_that_meet_are_one() -> None:
    """10,000 steps that are retired one at a time are looked up as fast as one."""
    retired, pick = Retired(), random.Random(1)
    steps = [*range(10_000)]
    pick.shuffle(steps)
    for step in steps:
        retired.add([(step, step)])
    assert retired._firsts == [0]
    assert retired._lasts == [9_999]
