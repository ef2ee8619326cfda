"""Differences: a message always comes back, equal inputs give equal bytes, and little is written when little changed.

Bounds are on counts and bytes, never on time.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import struct
import subprocess
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastckpt
from fastckpt import delta
from fastckpt.delta import EMPTY, Chunks, Difference, diff

ROOT = Path(__file__).resolve().parents[1]


def column(data: bytes) -> list[int]:
    return [number for (number,) in struct.iter_unpack("<I", data)]


class File:
    """What a file would hold: the new chunks of every record, by owner. It checks everything that is true of any difference."""

    def __init__(self, chunk: int = delta.CHUNK) -> None:
        self.chunk = chunk
        self.chunks = EMPTY
        self.frames: dict[int, list[bytes]] = {}

    def append(self, message: bytes, *, base: bool = False) -> Difference:
        """The difference of the next message, checked and taken over."""
        owner = len(self.frames) + 1
        old = EMPTY if base else self.chunks
        made = diff(old, message, owner, chunk=self.chunk)
        self.frames[owner] = self._cut(made)
        self._check(made, message, owner)
        self.chunks = made.chunks
        return made

    @staticmethod
    def _cut(made: Difference) -> list[bytes]:
        ends = list(itertools.accumulate(column(made.sizes), initial=0))
        assert ends[-1] == len(made.content)
        return [made.content[a:b] for a, b in itertools.pairwise(ends)]

    def _check(self, made: Difference, message: bytes, owner: int) -> None:
        rows = list(zip(made.runs[0::3], made.runs[1::3], made.runs[2::3], strict=True))
        owners = [owner, *made.touched]
        # A row names whole chunks of a record that is there: by construction none is ever split.
        assert all(count > 0 and first + count <= len(self.frames[owners[record]]) for record, first, count in rows)
        pieces = [piece for record, first, count in rows for piece in self.frames[owners[record]][first : first + count]]
        assert b"".join(pieces) == message == made.chunks.message
        assert all(pieces)
        assert list(made.chunks.sizes) == [len(piece) for piece in pieces]
        assert list(made.chunks.crcs) == [zlib.crc32(piece) for piece in pieces]
        assert column(made.chunks.checksums()) == list(made.chunks.crcs)
        assert column(made.crcs) == [zlib.crc32(piece) for piece in self.frames[owner]]
        # Each new chunk is used, once and in order; each record named is touched, and named once; rows that go on are one row.
        assert [n for record, first, count in rows if record == 0 for n in range(first, first + count)] == list(range(len(self.frames[owner])))
        assert sorted({record for record, _, _ in rows} - {0}) == list(range(1, len(owners)))
        assert len(set(owners)) == len(owners)
        assert all(a[0] != b[0] or a[1] + a[2] != b[1] for a, b in itertools.pairwise(rows))
        assert made.chunks.runs == [(owners[record], first, count) for record, first, count in rows]
        assert made.chunk == max(self.chunk, -(-len(message) // 65_536))
        if made.touched:
            assert len(pieces) <= 4 * (len(message) // made.chunk) + 16


def after(messages: Iterable[bytes], chunk: int = delta.CHUNK) -> tuple[File, Difference]:
    """The file after these messages, and the last difference."""
    file = File(chunk)
    for message in messages:
        made = file.append(message)
    return file, made


def rewritten(*messages: bytes) -> int:
    """How many bytes the last of these messages adds."""
    return len(after(messages)[1].content)


def edited(message: bytes, place: int, removed: int, inserted: bytes = b"") -> bytes:
    return message[:place] + inserted + message[place + removed :]


# Messages that are unlike each other: nothing recurs, much recurs, everything does, few symbols, words, records of one form.
KINDS: dict[str, Callable[[random.Random, int], bytes]] = {
    "random": lambda draw, size: draw.randbytes(size),
    "equal": lambda draw, size: bytes([draw.randrange(256)]) * size,
    "periodic": lambda draw, size: (draw.randbytes(draw.choice([3, 61, 64, 300, 5000])) * (size // 3 + 1))[:size],
    "few symbols": lambda draw, size: bytes(draw.choices(b"ab", k=size)),
    "words": lambda draw, size: b" ".join(draw.choices([draw.randbytes(5).hex().encode() for _ in range(40)], k=size // 11 + 1))[:size],
    "records": lambda draw, size: b"".join(b"a-rather-long-name-of-a-field" * 10 + draw.randbytes(2) for _ in range(size // 292 + 1))[:size],
    "floats": lambda draw, size: struct.pack(f">{size // 8}d", *(draw.random() for _ in range(size // 8))),
    "sparse": lambda draw, size: bytes(draw.choices([0, 1], [500, 1], k=size)),
}


def change(draw: random.Random, message: bytes) -> bytes:
    """One of the changes that states go through."""
    place, size = draw.randrange(len(message) + 1), draw.choice([1, 9, 62, 300, 2000, 9000])
    other = KINDS[draw.choice(list(KINDS))](draw, size)
    stop = min(place + size, len(message))
    match draw.randrange(12):
        case 0:
            return edited(message, place, 0, other)
        case 1:
            return edited(message, place, size)
        case 2:
            return edited(message, place, size, other)
        case 3:
            return edited(message, place, len(message[place:stop]), other[: stop - place].ljust(stop - place, b"x"))
        case 4:  # moved
            rest = message[:place] + message[stop:]
            return edited(rest, draw.randrange(len(rest) + 1), 0, message[place:stop])
        case 5:  # repeated
            return edited(message, place, 0, message[place:stop] * draw.randrange(1, 4))
        case 6:
            return message[:place]
        case 7:
            return other + message
        case 8:
            return message + other
        case 9:
            return draw.choice([b"", b"x", message[::-1], message * 2, other])
        case 10:  # many small edits
            changed = bytearray(message)
            for _ in range(min(len(changed), 20)):
                changed[draw.randrange(len(changed))] ^= 1
            return bytes(changed)
        case _:
            return message


@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(sorted(KINDS)),
    size=st.sampled_from([0, 1, 70, 3000, 20_000, 60_000]),
    steps=st.integers(1, 12),
    chunk=st.sampled_from([64, 256, 4096]),
)
def test_any_sequence_of_messages_comes_back(seed: int, kind: str, size: int, steps: int, chunk: int) -> None:
    """Whatever happens to a message, its chunks put together are the message, and every size, checksum and row is right."""
    draw, file = random.Random(seed), File(chunk)
    message = KINDS[kind](draw, size)
    for _ in range(steps):
        file.append(message)
        message = change(draw, message)


@given(messages=st.lists(st.binary(max_size=40).flatmap(lambda unit: st.integers(0, 60).map(lambda times: unit * times)), max_size=8))
def test_any_bytes_come_back(messages: list[bytes]) -> None:
    """Short messages of any bytes, repeated or not, one after the other, come back as they were."""
    file = File(64)
    for message in messages:
        file.append(message)


def history(seed: int, steps: int, size: int = 100_000) -> list[bytes]:
    draw = random.Random(seed)
    messages = [KINDS["words"](draw, size)]
    while len(messages) < steps:
        messages.append(change(draw, messages[-1]) or messages[0])
    return messages


def digest_of_a_history() -> str:
    state, file = hashlib.sha256(), File()
    for message in history(5, 40):
        made = file.append(message)
        state.update(repr((made.touched, made.runs, made.sizes, made.crcs, made.content)).encode())
    return state.hexdigest()


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_equal_messages_give_equal_bytes_in_any_process(hash_seed: str) -> None:
    """The same messages give the same chunks and rows in another process, whatever its hash seed."""
    path = os.pathsep.join([str(Path(fastckpt.__file__).parents[1]), str(ROOT / "tests")])
    child = subprocess.run(
        [sys.executable, "-c", "import test_delta; print(test_delta.digest_of_a_history())"],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.split() == [digest_of_a_history()]


def test_old_chunks_are_left_as_they_are() -> None:
    """A difference that is thrown away (the append failed) changes nothing: made again from the same chunks, it is the same."""
    old = EMPTY
    for owner, message in enumerate(history(8, 30)):
        kept = Chunks(old.message, array("I", old.sizes), array("I", old.crcs), list(old.runs))
        made = diff(old, message, owner)
        assert old == kept
        assert diff(old, message, owner) == made
        old = made.chunks


def test_no_message_has_no_chunks() -> None:
    """From nothing to nothing there are no rows and no bytes; from something to nothing neither, and it is a base."""
    for old in (EMPTY, diff(EMPTY, b"abc", 1).chunks):
        made = diff(old, b"", 2)
        assert (made.touched, made.runs, made.sizes, made.crcs, made.content) == ([], [], b"", b"", b"")


def test_a_base_is_cut_evenly() -> None:
    """The chunks of a base are about as large as asked for, all of them, and touch nothing."""
    for size in (1, 4095, 6143, 6144, 100_000, 1_000_000):
        made = diff(EMPTY, random.Random(size).randbytes(size), 1)
        sizes = column(made.sizes)
        assert made.touched == []
        assert made.runs == [0, 0, len(sizes)]
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == max(1, round(size / 4096))


def test_long_messages_have_larger_chunks() -> None:
    """A message has about 65,536 chunks at most, whatever its length; those that were there stay, also when the aim grows."""
    draw = random.Random(1)
    message = draw.randbytes(3_600_000)
    file = File(64)
    assert len(file.append(message).sizes) // 4 == 3_600_000 // 64
    message += draw.randbytes(4_400_000)
    made = file.append(message)
    assert made.chunk == 123
    assert len(made.content) <= 4_400_000 + 200
    assert len(file.append(message, base=True).sizes) // 4 <= 65_536


def test_an_unchanged_message_is_one_row() -> None:
    """The same message again adds no bytes and has the rows that it had."""
    message = random.Random(2).randbytes(3_000_000)
    file, first = after([message])
    again = file.append(message)
    assert again.content == b""
    assert again.touched == [1]
    assert again.runs == [1, 0, len(first.sizes) // 4]


@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["random", "words", "floats"]),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=8),
)
def test_an_edit_disturbs_its_neighbourhood_only(seed: int, kind: str, edits: list[tuple[float, int, int]]) -> None:
    """An insertion, removal or replacement anywhere costs at most the chunks that it touches, and two rows."""
    draw = random.Random(seed)
    before = message = KINDS[kind](draw, 400_000)
    for place, removed, inserted in edits:
        message = edited(message, int(place * len(message)), removed, draw.randbytes(inserted))
    _, made = after([before, message])
    assert len(made.content) <= len(edits) * (2 * 4096 + 200)
    assert len(made.runs) // 3 <= 2 * len(edits) + 1


def test_twenty_changed_floats_are_twenty_chunks() -> None:
    """Twenty floats that change in 10 MB rewrite the twenty chunks that they are in, in at most 41 rows; hardly a search is needed."""
    draw = random.Random(3)
    before = draw.randbytes(10_000_000)
    message = bytearray(before)
    for place in draw.sample(range(0, len(before) - 8, 8), 20):
        message[place : place + 8] = draw.randbytes(8)
    counted = Counted(message)
    _, made = after([before, counted])
    assert 0 < len(made.content) <= 20 * 4200
    assert len(made.runs) // 3 <= 41
    assert counted.finds <= 5


@pytest.mark.parametrize("size", [500, 20_000, 300_000, 2_000_000])
@pytest.mark.parametrize("place", [0, 1, 777_777, 999_999, 1_000_000])
def test_what_is_inserted_or_removed_is_all_that_counts(place: int, size: int) -> None:
    """Much that is inserted costs what it is and two chunks; much that is removed costs two chunks; wherever it is."""
    draw = random.Random(4)
    message = draw.randbytes(1_000_000)
    longer = edited(message, place, 0, draw.randbytes(size))
    assert size <= rewritten(message, longer) <= size + 3 * 4096
    assert rewritten(longer, message) <= 2 * 4096


def test_a_large_piece_is_replaced_by_one_of_another_length() -> None:
    """Where 100 kB give way to 30 kB, or to 300 kB, what comes after is found again."""
    draw = random.Random(5)
    message = draw.randbytes(1_000_000)
    for size in (30_000, 300_000):
        for place in (0, 333_333, 890_000):
            assert rewritten(message, edited(message, place, 100_000, draw.randbytes(size))) <= size + 2 * 4096


def test_what_is_between_two_large_insertions_is_found() -> None:
    """20 kB between two insertions of 300 kB are kept, though little is left there to look for."""
    draw = random.Random(16)
    front, middle, back = draw.randbytes(400_000), draw.randbytes(20_000), draw.randbytes(400_000)
    longer = front + draw.randbytes(300_000) + middle + draw.randbytes(300_000) + back
    assert rewritten(front + middle + back, longer) <= 600_000 + 3 * 4096


def test_what_is_between_many_small_insertions_is_found() -> None:
    """With a few bytes inserted every 7,000, what can be kept is kept: the chunks in which nothing was inserted."""
    draw = random.Random(17)
    message = draw.randbytes(700_000)
    inserted = b"".join(message[n : n + 7000] + draw.randbytes(draw.randrange(1, 20)) for n in range(0, len(message), 7000))
    file, _ = after([message])
    places = list(itertools.accumulate(file.chunks.sizes, initial=0))
    whole = sum(b - a for a, b in itertools.pairwise(places) if a % 7000 + b - a <= 7000)
    assert len(file.append(inserted).content) <= len(inserted) - 0.95 * whole


def test_what_is_found_never_overlaps_what_is_at_the_end() -> None:
    """Where a chunk recurs, the new message may be too short for one more of it before the end that is kept."""
    draw = random.Random(18)
    for size in (1, 300, 2000, 4095):
        after([draw.randbytes(8192) + bytes(4 * 4096), draw.randbytes(8192) + bytes(4096 + size)])


def test_rows_join_again_when_what_parted_them_is_gone() -> None:
    """A message from which an insertion at a boundary was removed is the one row that it was."""
    message = random.Random(19).randbytes(100_000)
    file, first = after([message])
    place = sum(column(first.sizes)[:7])
    assert len(file.append(edited(message, place, 0, b"x" * 9000)).runs) // 3 == 3
    assert file.append(message).runs == [1, 0, len(first.sizes) // 4]


def test_a_tiny_chunk_does_not_lead_astray() -> None:
    """A chunk of five bytes, gone from where it was, is no reason to go on where the same five bytes happen to be."""
    draw = random.Random(13)
    message = draw.randbytes(14_288) + bytes(5) + draw.randbytes(120_000)
    file, _ = after([message])
    place = sum(file.chunks.sizes[:3])
    assert len(file.append(edited(message, place, 0, bytes(5))).content) == 5
    made = file.append(message[: place - 4000] + draw.randbytes(11_000) + message[place:-1] + b"?")
    assert len(made.content) <= 11_000 + 4096 + 600


def test_a_list_that_loses_its_first_item_and_gets_a_new_last_one() -> None:
    """What is between the two places is kept, although what follows them is where it was."""
    draw = random.Random(6)
    message = draw.randbytes(300_000)
    shifted = message[:100_000] + message[100_700:140_000] + draw.randbytes(700) + message[140_000:]
    assert rewritten(message, shifted) <= 3 * 4096 + 700


def test_a_moved_block_costs_no_more_than_itself() -> None:
    """The smaller of two blocks that change places is new, the larger one is kept."""
    message = random.Random(7).randbytes(1_000_000)
    assert rewritten(message, message[100_000:] + message[:100_000]) <= 100_000 + 2 * 4096
    assert rewritten(message, message[900_000:] + message[:900_000]) <= 100_000 + 2 * 4096


def test_the_same_place_changes_again_and_again() -> None:
    """A place that changes at every step soon costs a few hundred bytes, and its chunks do not shrink, in ten thousand steps."""
    draw, file = random.Random(9), File()
    message = bytearray(draw.randbytes(40_000))
    for step in range(10_000):
        message[17_000:17_009] = struct.pack(">Bd", 0xCB, draw.random())
        made = diff(file.chunks, bytes(message), step + 1)
        file.chunks = made.chunks
        assert len(made.content) <= 300 or step < 4
    assert len(file.chunks.sizes) <= 16
    assert len(made.touched) <= 4


@pytest.mark.parametrize("places", [(100, 4000), (4000, 4200), (5000, 9000, 13_000), (500, 1500, 2500, 3500), (0, 39_999)])
def test_several_places_in_neighbouring_chunks_change_again_and_again(places: tuple[int, ...]) -> None:
    """Counters near each other part into pieces of their own within a few steps; what is between them is not written again."""
    draw, file = random.Random(10), File()
    message = bytearray(draw.randbytes(40_000))
    for _ in range(12):
        for place in places:
            message[place] = (message[place] + 1) % 256
        made = file.append(bytes(message))
    assert len(made.content) <= 600 * len(places)


def test_a_counter_and_a_growing_list() -> None:
    """2,000 rows of 62 bytes, one a step, in the middle of a message whose header counts them: little is written, in few chunks.

    A row is written again a few times, at ever longer intervals, and full chunks stay: so the rows touch few records.
    """
    draw, file = random.Random(11), File()
    front, back, rows = draw.randbytes(50_000), draw.randbytes(50_000), b""
    total = 0
    for step in range(2000):
        rows += draw.randbytes(62)
        made = file.append(struct.pack(">I", step) + front + struct.pack(">I", step) + rows + back)
        total += len(made.content) if step >= 10 else 0
    assert total <= 2000 * 900
    assert len(file.chunks.sizes) <= (100_000 + len(rows)) // 4096 * 3
    assert len(made.touched) <= 2000 * 62 // 1500 + 20


def test_counters_behind_a_growing_list() -> None:
    """Counters behind what grows move at every step, and still part into pieces of their own."""
    draw, file = random.Random(11), File()
    front, back, rows = draw.randbytes(50_000), draw.randbytes(50_000), b""
    total = 0
    for step in range(500):
        rows += draw.randbytes(62)
        count = struct.pack(">I", step)
        made = file.append(count + front + count + rows + back[:500] + count + back[500:4000] + count + back[4000:])
        total += len(made.content) if step >= 10 else 0
    assert total <= 490 * 1350


def test_many_places_that_change_do_not_break_a_message_up() -> None:
    """Places that change at random do not cut a message into ever more pieces, so they do not force a base either."""
    draw, file = random.Random(13), File()
    message = bytearray(draw.randbytes(400_000))
    for step in range(400):
        for _ in range(5):
            message[draw.randrange(len(message))] ^= 1
        made = diff(file.chunks, bytes(message), step)
        file.chunks = made.chunks
        assert len(made.chunks.sizes) <= 2.5 * 400_000 / 4096
        assert made.touched or step == 0


def test_a_message_in_too_many_pieces_is_cut_anew() -> None:
    """Chunks that shrink until there are four times as many as needed give way to a base, by themselves."""
    draw, file = random.Random(12), File()
    message = draw.randbytes(60 * 4096)
    bases = 0
    for n in range(59, -1, -1):
        file.append(message)
        message = edited(message, n * 4096 + 50, 4000)
        bases += not diff(file.chunks, message, 0).touched
    assert bases >= 1
    made = file.append(message)
    assert len(made.chunks.sizes) <= 4 * (len(message) // 4096) + 16


def recurring(draw: random.Random, size: int) -> bytes:
    """Every kilobyte begins alike, so that what a search looks for is found, and is never it."""
    return b"".join(b"the same beginning every time " * 10 + draw.randbytes(724) for _ in range(size // 1024))


def unfriendly(size: int) -> Iterable[tuple[str, bytes, bytes]]:
    draw = random.Random(13)
    noise = draw.randbytes(size)
    blocks = [noise[n : n + 5000] for n in range(0, size, 5000)]
    draw.shuffle(blocks)
    yield "all new", noise, draw.randbytes(size)
    yield "reversed", noise, noise[::-1]
    yield "permuted", noise, b"".join(blocks)
    yield "from nothing", b"", noise
    yield "changed here and there", noise, b"".join(noise[n : n + 8999] + b"\xff" for n in range(0, size, 9000))
    yield "doubled in front", noise, draw.randbytes(size) + noise
    yield "recurring beginnings", recurring(draw, size), recurring(draw, size)
    for name, make in KINDS.items():
        yield name, make(draw, size), make(draw, size)
        message = make(draw, size)
        parts = (message[n : n + 3000] + draw.randbytes(draw.randrange(9)) for n in range(0, size, 3000))
        yield f"{name}, inserted everywhere", message, b"".join(parts)
        yield f"{name}, changed everywhere", message, b"".join(message[n : n + 2999] + b"\xff" for n in range(0, size, 3000))


class Counted(bytes):
    """A message that counts the bytes that were searched in it, the searches, and all calls that compared or searched."""

    searched = finds = calls = 0

    def find(self, needle: bytes, low: int, high: int) -> int:  # type: ignore[override]
        at = super().find(needle, low, high)
        self.searched += (high if at < 0 else at) - low
        self.finds += 1
        self.calls += 1
        return at

    def startswith(self, prefix: bytes, place: int) -> bool:  # type: ignore[override]
        self.calls += 1
        return super().startswith(prefix, place)


@pytest.mark.parametrize("budget", [0, 1, 3, 16])
def test_the_budget_bounds_what_is_searched(monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    """Whatever the messages, at most so many times the larger one is searched, in a bounded number of calls; the result is right."""
    monkeypatch.setattr(delta, "_BUDGET", budget)
    most, size = 0.0, 300_000
    for name, before, message in unfriendly(size):
        file, _ = after([before])
        counted = Counted(message)
        made = diff(file.chunks, counted, 2)
        larger = max(len(before), len(message))
        assert counted.searched <= budget * larger, name
        # Beside the search: one walk over the chunks, and some tens of comparisons for each of the gaps that can be paid for.
        assert counted.calls <= 100 + 4 * larger // 4096 + budget * larger // 1024, name
        # What is slow to search is searched less: few distinct bytes, or ones that come again and again.
        if name.startswith(("few symbols", "equal", "sparse", "recurring", "records", "periodic, ")):
            assert counted.searched <= budget * larger / 5, name
        # Each gap between kept chunks costs 96 KiB of the budget, or the search for the next one would not be all that takes time.
        assert len(made.runs) // 3 <= 2 * (budget * larger // 98_304 + 2) + 1, name
        most = max(most, counted.searched / larger)
        assert file.append(message) == made, name
    assert most > min(budget, 5) / 3 or budget == 0  # the bound is near: without it more would be searched


def test_ordinary_states_do_not_come_near_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dozen edits of any length in a state are found with the budget as with an unbounded one."""
    draw = random.Random(14)
    message = KINDS["words"](draw, 300_000)
    for _ in range(10):
        file, _ = after([message])
        for _ in range(12):
            message = edited(message, draw.randrange(len(message)), draw.choice([0, 9, 700, 5000]), draw.randbytes(draw.choice([0, 9, 700, 5000])))
        made = diff(file.chunks, message, 2)
        with monkeypatch.context() as patch:
            patch.setattr(delta, "_BUDGET", 1 << 40)
            assert diff(file.chunks, message, 2) == made
        assert len(made.content) <= 12 * (2 * 4096 + 5000)


def test_states_as_msgspec_writes_them() -> None:
    """500 steps of a small state, twenty flags flipped and a text replaced: all come back, in a tenth of the bytes of full ones."""
    draw, file = random.Random(15), File()
    flags = {f"q_{n:05d}": False for n in range(600)}
    texts = [draw.randbytes(500).hex() for _ in range(200)]
    total = full = 0
    for step in range(500):
        for name in draw.sample(list(flags), 20):
            flags[name] = not flags[name]
        texts[step % 200] = draw.randbytes(draw.randrange(300, 700)).hex()
        message = msgspec.msgpack.encode({"step": step, "flags": flags, "texts": texts, "accuracy": draw.random()})
        total += len(file.append(message).content)
        full += len(message)
    assert total <= full / 10


@pytest.mark.parametrize("chunk", [-1, 0, 63])
def test_chunks_must_not_be_tiny(chunk: int) -> None:
    """A chunk size below 64 is refused, naming it."""
    with pytest.raises(ValueError, match=f"{chunk} bytes is too small"):
        diff(EMPTY, b"message", 1, chunk=chunk)


def test_an_owner_is_never_used_twice() -> None:
    """An owner that has chunks in the previous message already would make rows ambiguous, and is refused."""
    old = diff(EMPTY, b"message", 7).chunks
    with pytest.raises(ValueError, match="7 owns"):
        diff(old, b"another message", 7)
