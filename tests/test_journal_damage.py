"""A run's file that was damaged: what is whole is read, nothing wrong ever is, damage is told from a crash, and nothing is thrown away.

FAULTS E1 to E6, E8, E10, E11, F6, F12 for runs.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from typing import Any

import forge
import pytest
from faults import REOPEN, RUN, Lost, ModelStorage, Promised, Put, contents, perform, puts
from support import count

from fastckpt import container
from fastckpt.container import FILE_HEADER_SIZE
from fastckpt.errors import CheckpointError, CorruptError, LimitError, NotACheckpointError
from fastckpt.journal import Journal
from fastckpt.reader import Reader

SECTOR = 512
ZEROS = puts(1200, seed=2)[0].message + bytes(1600) + puts(1200, seed=3)[0].message


class Damaged:
    """A run, and what comes of it when its bytes are others."""

    def __init__(self, history: list[Any], *, raw: bool = False) -> None:
        model = ModelStorage(folders=["/disk"])
        if raw:
            with forge.raw_frames():
                perform(history, model, Promised())
        else:
            perform(history, model, Promised())
        self.whole = model.content(RUN) or b""
        with closing(self.reader(self.whole)) as reader:
            self.entries = [*reader.entries()][::-1]
            self.messages = {entry.header.step: reader.read(entry) for entry in self.entries}
        assert self.messages == {step: action.message for step, action in enumerate(history) if isinstance(action, Put)}

    def model(self, data: bytes) -> ModelStorage:
        return ModelStorage({RUN: data}, folders=["/disk", "/disk/runs"])

    def reader(self, data: bytes) -> Reader:
        return Reader(RUN, storage=self.model(data))

    def read(self, data: bytes, told: str) -> tuple[dict[int | None, CorruptError | None], Reader]:
        """Which steps are found, and for each None or the error in which reading it ends; a wrong message raises `Lost`."""
        try:
            reader = self.reader(data)
            found: dict[int | None, CorruptError | None] = {}
            for entry in reader.entries():
                step = entry.header.step
                try:
                    if reader.read(entry) != self.messages.get(step) or step in found:
                        raise Lost(f"{told}: step {step} reads wrong, or twice")
                    found[step] = None
                except CorruptError as error:
                    found[step] = error
        except CheckpointError as error:
            raise Lost(f"{told}: ends in {error!r}") from error
        return found, reader

    def append(self, data: bytes, told: str) -> ModelStorage:
        """The next append to `data`: it is a base and works; whatever of `data` is not there any more is aside, byte for byte."""
        model = self.model(data)
        with closing(Journal(RUN, storage=model)) as journal:
            done = journal.append(b"next", step=999)
            if not done.base or journal.newest is None or journal.read(journal.newest) != b"next":
                raise Lost(f"{told}: the next append went wrong")
        now = model.content(RUN) or b""
        asides = [model.content(f"/disk/runs/{name}") for name in model.list("/disk/runs") if ".aside." in name]
        if (
            not now.startswith(data)
            and data not in asides
            and not any(aside and now.startswith(data[: -len(aside)]) and data.endswith(aside) for aside in asides)
        ):
            raise Lost(f"{told}: something was thrown away")
        return model


def flipped(data: bytes, bit: int) -> bytes:
    other = bytearray(data)
    other[bit // 8] ^= 1 << bit % 8
    return bytes(other)


SMALL = [*puts(30, 20, seed=1), *puts(40, seed=3)]
CHANGED = puts(30_000, *[300] * 9, changed=True)


# Single bits


def test_e1_every_bit_of_a_run() -> None:
    """FAULTS E1, E8: any bit of a run flipped: each step reads right or ends in a CorruptError; `verify` names it; what is gone is said."""
    run = Damaged(SMALL[1:])
    count("bits flipped", 8 * len(run.whole))
    for bit in range(8 * len(run.whole)):
        data, told = flipped(run.whole, bit), f"bit {bit} flipped"
        found, reader = run.read(data, told)
        with closing(reader):
            if bit % 3 == 0 and not [*reader.verify()]:
                raise Lost(f"{told}: nobody notices")
            if reader.damage is not None and reader.damage.torn:
                raise Lost(f"{told}: damage is taken for a crash: {reader.damage}")
            bad = [step for step in run.messages if found.get(step, reader) is not None]
            if bit >= 8 * FILE_HEADER_SIZE and (len(bad) > 1 or (not bad and reader.damage is None)):
                raise Lost(f"{told}: steps {bad} are gone")
            if 1 not in found and reader.damage is None:
                raise Lost(f"{told}: the newest step is gone without a word")


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
def test_e11_every_bit_of_the_last_record(zeros: bool) -> None:
    """FAULTS E11: any bit of the last, acknowledged record flipped: not torn; asking for the newest is an error; nothing goes without a copy."""
    run = Damaged([*puts(30, seed=1), *([Put(ZEROS)] if zeros else puts(60, seed=2))], raw=zeros)
    last = run.entries[-1]
    assert last.header.zeros is zeros
    bits: Any = range(8 * last.offset, 8 * len(run.whole))
    if zeros:  # all of what is not frame, and some of that
        start = last.offset + last.length - container.TRAILER_SIZE - last.header.frame
        inside = [bit for bit in bits if start <= bit // 8 < start + last.header.frame]
        bits = [*sorted({*bits} - {*inside}), *random.Random(1).sample(inside, 500)]
    count("bits flipped", len(bits))
    for bit in bits:
        data, told = flipped(run.whole, bit), f"bit {bit - 8 * last.offset} of the last record flipped"
        with closing(run.reader(data)) as reader:
            if reader.damage is None or reader.damage.torn:
                raise Lost(f"{told}: {reader.damage}")
            if reader.newest is None or reader.newest.sequence not in (1, 2):
                raise Lost(f"{told}: the newest is {reader.newest}")
            with pytest.raises(CorruptError):
                reader.read(reader.state())
        if bit % 16 == 0:
            run.append(data, told)


# Cut, zeroed


def test_e2_cut_at_every_byte() -> None:
    """FAULTS E2: a run cut at every byte: the steps before it, and torn; inside the first record or the header: damage, never "no run"."""
    run = Damaged(SMALL)
    ends = [entry.offset + entry.length for entry in run.entries]
    count("cuts", len(run.whole))
    for size in range(len(run.whole)):
        data, told = run.whole[:size], f"cut to {size} bytes"
        found, reader = run.read(data, told)
        with closing(reader):
            whole = [step for step, end in enumerate(ends) if end <= size]
            if [*found][::-1] != whole or any(found.values()):
                raise Lost(f"{told}: found {found}, expected {whole}")
            if size in ends:
                assert reader.damage is None, told  # cannot be seen
            else:
                assert reader.damage is not None, told
                assert reader.damage.torn is (size > ends[0]), (told, reader.damage)
                with pytest.raises(CorruptError):
                    reader.state() if not reader.damage.torn else reader._entry_at(size, 0)
        if size % 7 == 0:
            run.append(data, told)


@pytest.mark.parametrize("size", [1, 40, 511, 512, 513, 5000])
def test_e3_zeros_behind_the_end(size: int) -> None:
    """FAULTS E3: zeros behind the last record, as an append leaves whose size reached the disk alone: torn, every step there."""
    run = Damaged(SMALL)
    found, reader = run.read(run.whole + bytes(size), "zeros behind the end")
    assert [*found] == [2, 1, 0]
    assert reader.damage is not None
    assert reader.damage.torn
    assert (reader.damage.offset, reader.damage.size) == (len(run.whole), size)
    model = run.append(run.whole + bytes(size), "zeros behind the end")
    assert contents(RUN, model) == [*run.messages.items(), (999, b"next")]


def test_e3_all_zeros_and_nothing() -> None:
    """FAULTS E3: an empty file, and one of zeros: damage that says so; the next append keeps it aside."""
    run = Damaged(SMALL)
    for data, fact in ((b"", "empty"), (bytes(len(run.whole)), "only zeros")):
        with closing(run.reader(data)) as reader:
            assert reader.damage is not None
            assert fact in reader.damage.fact
            assert not reader.damage.torn
            assert reader.newest is None
            with pytest.raises(CorruptError, match=fact):
                reader.state()
        run.append(data, fact)


# Sectors


@pytest.mark.parametrize("with_zeros", [False, True], ids=["garbage", "zeros"])
def test_e4_every_sector_in_the_middle(with_zeros: bool) -> None:
    """FAULTS E4: any sector becomes garbage or zeros: steps that touch it end in an error with an offset, all others read; then a base works."""
    run = Damaged([*CHANGED, REOPEN, *puts(3000, *[200] * 3, changed=True, seed=9)])
    last = run.entries[-1].offset
    random_bytes = random.Random(5)
    for start in range(0, last, SECTOR):
        end = min(start + SECTOR, last)
        data = run.whole[:start] + (bytes(end - start) if with_zeros else random_bytes.randbytes(end - start)) + run.whole[end:]
        told = f"sector at {start}"
        if start == 0:  # the file's own header
            with pytest.raises((NotACheckpointError, CorruptError)), closing(run.reader(data)) as reader:
                reader.state()
            continue
        found, reader = run.read(data, told)
        hit = {entry.sequence for entry in run.entries if entry.offset < end and start < entry.offset + entry.length}
        with closing(reader):
            # A damaged step does not show where its header or trailer is hit; others fail only where they refer to one that is.
            for entry in run.entries:
                table = None if entry.sequence in hit else clean_table(run, entry.offset)
                touches = table is not None and bool(
                    {run_entry.sequence for run_entry in run.entries if entry.offset - run_entry.offset in table.distances} & hit
                )
                error = found.get(entry.header.step, reader)
                if entry.sequence not in hit and not touches and error is not None:
                    raise Lost(f"{told}: step {entry.header.step} is not hit and not read: {error!r}")
                if isinstance(error, CorruptError):
                    assert error.offset is not None
            named = [offset for offset, _ in reader.verify()]
            if not any(min(e.offset for e in run.entries if e.sequence in hit) <= offset < end + SECTOR for offset in named):
                raise Lost(f"{told}: verify names {named}")
        model = run.append(data, told)
        assert (model.content(RUN) or b"").startswith(data), told
        assert not [name for name in model.list("/disk/runs") if ".aside." in name]


def clean_table(run: Damaged, offset: int) -> container.Table:
    with closing(run.reader(run.whole)) as reader:
        return reader._table(reader._entry_at(offset, 1 << 40))


def test_e4_damage_before_a_torn_append() -> None:
    """A damaged record just before an append that a crash cut short: only what lies behind the last whole record is cut, with a copy."""
    run = Damaged(puts(300, 300, 300, 900))
    for hurt in (run.entries[2].offset + 20, run.entries[2].offset + 300, run.entries[2].offset + run.entries[2].length - 10):
        data = bytearray(run.whole)
        data[hurt] ^= 1
        data[run.entries[3].offset + 200 : run.entries[3].offset + 900] = bytes(700)
        told = f"byte {hurt} and the tail"
        found, reader = run.read(bytes(data), told)
        with closing(reader):
            assert found.get(0, reader) is None
            assert found.get(1, reader) is None
            assert 3 not in found
        model = run.append(bytes(data), told)
        after = contents_where_readable(model)
        assert [step for step, message in after if message == run.messages.get(step)] == [0, 1]


def contents_where_readable(model: ModelStorage) -> list[tuple[int | None, bytes]]:
    found = []
    with closing(Reader(RUN, storage=model)) as reader:
        for entry in reader.entries():
            try:
                found.append((entry.header.step, reader.read(entry)))
            except CorruptError:
                continue
    return found[::-1]


# Out of place


def pieces(run: Damaged) -> list[bytes]:
    return [run.whole[:FILE_HEADER_SIZE], *(run.whole[e.offset : e.offset + e.length] for e in run.entries)]


PLACES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "last twice": lambda p: [*p, p[-1]],
    "last thrice": lambda p: [*p, p[-1], p[-1]],
    "tail twice": lambda p: [*p, *p[-3:]],
    "an old one at the end": lambda p: [*p, p[2]],
    "last two swapped": lambda p: [*p[:-2], p[-1], p[-2]],
    "two in the middle swapped": lambda p: [*p[:3], p[4], p[3], *p[5:]],
    "one in the middle twice": lambda p: [*p[:4], p[3], *p[4:]],
    "one missing": lambda p: [*p[:3], *p[4:]],
    "the first missing": lambda p: [p[0], *p[2:]],
    "the end before the beginning": lambda p: [p[0], *p[4:], *p[1:4]],
}


@pytest.mark.parametrize("place", PLACES, ids=lambda name: name.replace(" ", "-"))
def test_e5_records_out_of_place(place: str) -> None:
    """FAULTS E5: records twice, swapped or missing: never a wrong message, never the wrong newest without a word, and it can be gone on."""
    run = Damaged(CHANGED[:7])
    parts = PLACES[place](pieces(run))
    data = b"".join(parts)
    _, reader = run.read(data, place)
    with closing(reader):
        assert [*reader.verify()], place
        assert reader.damage is None or not reader.damage.torn
        newest = max(step for step, part in enumerate(pieces(run)[1:]) if part in parts)
        # Opening looks at the end only: of what was moved from far away `verify` alone tells.
        if reader.newest is None or (reader.newest.header.step != newest and reader.damage is None and place != "the end before the beginning"):
            raise Lost(f"{place}: the newest is {reader.newest}")
    with closing(Reader(RUN, storage=run.append(data, place))) as reader:
        assert reader.newest is not None
        assert reader.newest.header.step == 999
        assert reader.newest.sequence == 1 + max(entry.sequence for entry in [*reader.entries()][1:])


def test_e5_record_of_another_run() -> None:
    """FAULTS E5: records of another run, at the end or in the middle, are none of this one's: known by the file id."""
    mine, theirs = Damaged(SMALL), Damaged(puts(30, 20, 50, seed=7))
    for at in (2, 3, 4):
        parts = pieces(mine)
        parts.insert(at, pieces(theirs)[3])
        found, reader = mine.read(b"".join(parts), f"a foreign record as number {at}")
        with closing(reader):
            assert not any(found.values())
            assert [*found] == [2, 1, 0]
            assert any("no record" in fact or "another file" in fact for _, fact in reader.verify())
            assert (reader.damage is not None) is (at == 4)
            assert reader.damage is None or not reader.damage.torn
        mine.append(b"".join(parts), "a foreign record")


def test_e5_record_of_an_earlier_generation() -> None:
    """FAULTS E5, E6: a record with this file's id and a fitting number, whose table refers to what lay there in another file: an error."""
    file_id = b"g" * 16
    generations = []
    for seed in (1, 50):
        model = ModelStorage(folders=["/disk"])
        with closing(Journal(RUN, storage=model)) as journal:
            journal._file_id = file_id
            for step, put in enumerate(puts(9000, *[200] * 3, changed=True, seed=seed)):
                journal.append(put.message, step=step)
            entries = [*journal.entries()][::-1]
        whole = model.content(RUN) or b""
        generations.append([whole[:FILE_HEADER_SIZE], *(whole[e.offset : e.offset + e.length] for e in entries)])
    old, new = generations
    data = b"".join([*new[:4], old[4]])
    with closing(Reader(RUN, storage=ModelStorage({RUN: data}, folders=["/disk", "/disk/runs"]))) as reader:
        assert reader.newest is not None
        assert reader.newest.sequence == 4
        with pytest.raises(CorruptError, match=r"another record|no record header|checksum mismatch|bytes"):
            reader.read(reader.newest)
        assert len([*reader.entries()]) == 4
        assert [*reader.verify()]


# Tables that lie, with all checksums right


A, B, C = (forge.record(bytes([65 + n]) * 300, header={"sequence": n + 1, "step": n}) for n in range(3))
GOOD = forge.record(b"good", header={"sequence": 100, "step": 100})


def lie(table: dict[int, Any] | None = None, **header: Any) -> bytes:
    return forge.difference([A, B, C], 1, b"new", table=table, header={"step": 3, **header})


NEAR_B, NAME_B = len(B) + len(C), forge.header_checksum(B)
LIES: dict[str, bytes] = {
    "itself": lie({0: [0]}),
    "negative": lie({0: [-5]}),
    "before the file": lie({0: [10**6]}),
    "far before the file": lie({0: [2**63]}),
    "into the file header": lie({0: [len(A) + NEAR_B + 20]}),
    "between records": lie({0: [NEAR_B - 10]}),
    "inside a record": lie({0: [NEAR_B - 100]}),
    "another record than named": lie({0: [len(C)]}),
    "another name than the record's": lie({1: forge.header_checksum(A)}),
    "a name too short": lie({1: NAME_B[:7]}),
    "a name too many": lie({1: NAME_B + NAME_B}),
    "a row of a record that it does not touch": lie({2: [2, 0, 1, 0, 0, 1]}),
    "a first chunk out of range": lie({2: [1, 1, 1, 0, 0, 1]}),
    "too many chunks": lie({2: [1, 0, 2, 0, 0, 1]}),
    "absurdly many chunks": lie({2: [1, 0, 2**62, 0, 0, 1]}),
    "its own chunk out of range": lie({2: [1, 0, 1, 0, 1, 1]}),
    "a row too many": lie({2: [1, 0, 1, 0, 0, 1, 1, 0, 1]}),
    "a row too few": lie({2: [1, 0, 1]}),
    "half a row": lie({2: [1, 0, 1, 0, 0]}),
    "rows swapped": lie({2: [0, 0, 1, 1, 0, 1]}),
    "a base with references": lie(base=True),
    "the checksum of another chunk": lie({4: forge.crc(b"old")}),
    "the size of another chunk": lie({3: struct.pack("<I", 4)}),
    "a digest of something else": lie(digest=bytes(8)),
    "a longer message": lie(message=304),
    "an absurd message": lie(message=2**64 - 1),
    "no message": lie(message=0),
    "a touched record from the future": lie({0: [1]}),
}


@pytest.mark.parametrize("name", LIES, ids=lambda name: name.replace(" ", "-"))
def test_e6_tables_that_lie(name: str) -> None:
    """FAULTS E6, F6: a table that lies, all checksums right: a CorruptError or LimitError, other steps read, `verify` names it, a base works."""
    honest = Damaged.__new__(Damaged)
    for data in (forge.run(A, B, C, LIES[name], GOOD), forge.run(A, B, C, LIES[name])):
        with closing(honest.reader(data)) as reader:
            entries = {entry.header.step: entry for entry in reader.entries()}
            assert {0, 1, 2} <= entries.keys()
            for step in (0, 1, 2):
                assert reader.read(entries[step]) == bytes([65 + step]) * 300
            with pytest.raises((CorruptError, LimitError)):
                reader.read(entries[3])
            assert any("4" in fact or "damage" in fact for _, fact in reader.verify())
        honest.append(data, name)


def test_e6_the_forge_can_tell_the_truth() -> None:
    """The record that the lies are made from is a good one: the forge, made from FORMAT.md alone, and the product agree."""
    with closing(Damaged.__new__(Damaged).reader(forge.run(A, B, C, lie(), GOOD))) as reader:
        entries = {entry.header.step: entry for entry in reader.entries()}
        assert reader.read(entries[3]) == b"B" * 300 + b"new"
        assert [*reader.verify()] == []


def test_e6_more_than_256_touched() -> None:
    """FAULTS E6: a table that touches 256 records is read, one that touches 257 refused."""
    for touched in (256, 257):
        records = [forge.record(b"%04d" % n, header={"sequence": n + 1, "step": n}) for n in range(touched)]
        distances = [sum(map(len, records[n:])) for n in range(touched)]
        content, crcs = b"!", b"".join(forge.crc(b"%04d" % n) for n in range(touched)) + forge.crc(b"!")
        table = [
            distances,
            b"".join(map(forge.header_checksum, records)),
            [x for n in range(touched) for x in (n + 1, 0, 1)] + [0, 0, 1],
            forge.size(content),
            forge.crc(content),
        ]
        fields = {"sequence": touched + 1, "base": False, "message": 4 * touched + 1, "digest": forge.checksum(crcs), "step": touched}
        data = forge.run(*records, forge.record(header=fields, table=table, content=content))
        with closing(Damaged.__new__(Damaged).reader(data)) as reader:
            assert reader.newest is not None
            if touched == 256:
                assert reader.read(reader.newest) == b"".join(b"%04d" % n for n in range(touched)) + b"!"
            else:
                with pytest.raises(LimitError) as caught:
                    reader.read(reader.newest)
                assert (caught.value.limit, caught.value.got) == (256, 257)


def test_f12_table_bomb() -> None:
    """FAULTS F12: a small run whose last record touches frames of gigabytes together, for a small message: refused before one is read."""
    blocks = 40
    bomb = b"\0" * (40 << 20)
    frame = forge.compress(bomb, level=1)
    columns = [[], b"", [0, 0, blocks], struct.pack("<I", len(bomb) // blocks) * blocks, bytes(4 * blocks)]
    records = [forge.record(header={"sequence": n + 1, "step": n, "message": len(bomb)}, table=columns, frame=frame) for n in range(50)]
    distances = [sum(map(len, records[n:])) for n in range(50)]
    rows = [[distances, b"".join(map(forge.header_checksum, records)), [0, 0, 1], forge.size(b"x"), forge.crc(b"x")]]
    last = forge.record(
        header={"sequence": 51, "base": False, "message": 1, "digest": forge.checksum(forge.crc(b"x")), "step": 50}, table=rows[0], content=b"x"
    )
    data = forge.run(*records, last)
    assert len(data) < 300_000
    with closing(Damaged.__new__(Damaged).reader(data)) as reader:
        assert reader.newest is not None
        tracemalloc.start()
        with pytest.raises(LimitError):
            reader.read(reader.newest)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()


@pytest.mark.parametrize("field", ["table", "frame", "message", "unsynced"])
@pytest.mark.parametrize("value", [2**63, 2**63 - 1, 2**64 - 1, 10**6, -1])
def test_f6_lengths_of_a_record(field: str, value: int) -> None:
    """FAULTS F6: a length in a header that is enormous, negative or beyond the file: damage or an error, no allocation, others read."""
    record = forge.record(b"x" * 100, header={"sequence": 2, "step": 2, field: value})
    for data in (forge.run(A, record), forge.run(A, record, GOOD)):
        tracemalloc.start()
        with closing(Damaged.__new__(Damaged).reader(data)) as reader:
            entries = {entry.header.step: entry for entry in reader.entries()}
            assert reader.read(entries[0]) == b"A" * 300
            if field != "unsynced":
                assert [*reader.verify()]
            if 2 in entries and field == "message":
                with pytest.raises((CorruptError, LimitError)):
                    reader.read(entries[2])
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


@pytest.mark.parametrize("length", [0, 1, 39, 2**63, 2**64 - 1, 500])
def test_f6_length_in_a_trailer(length: int) -> None:
    """FAULTS F6: a trailer with its checksum right that lies about the length: its record is not found, all others are."""
    record = forge.record(b"x" * 100, header={"sequence": 2, "step": 2}, trailer_length=length)
    with closing(Damaged.__new__(Damaged).reader(forge.run(A, record))) as reader:
        assert [entry.header.step for entry in reader.entries()] == [0]
        assert reader.damage is not None
        assert not reader.damage.torn


# Torn or corrupt


def test_torn_or_corrupt_with_zeros() -> None:
    """A sector of zeros in the last record is a lost one, unless the record says that it has such: then it is damage."""
    for message, raw, torn in ((puts(2000, seed=1)[0].message, False, True), (ZEROS, True, False)):
        run = Damaged([*puts(30), Put(message)], raw=raw)
        first = -(-(run.entries[-1].offset + 300) // SECTOR) * SECTOR
        data = run.whole[:first] + bytes(SECTOR) + run.whole[first + SECTOR :]
        assert data != run.whole
        found, reader = run.read(data, "a sector of zeros")
        with closing(reader):
            assert reader.damage is not None
            assert reader.damage.torn is torn
            assert found[0] is None
            assert (1 in found) is not torn  # damage stays where it is, and reading it says so
        run.append(data, "a sector of zeros")


def test_damage_in_what_was_not_synced() -> None:
    """Damage in what a valid later header calls not yet synced is torn, a hole included; damage in what was synced is not."""
    soft = [Put(put.message, sync=False) for put in puts(300, 300, 300, seed=4)]
    run = Damaged([*puts(300, 300), *soft])
    # Each place in the middle of a header, a frame and a trailer.
    for number, entry in enumerate(run.entries[:-1]):
        for place in (20, entry.length // 2 + 60, entry.length - 10):
            data = flipped(run.whole, 8 * (entry.offset + place))
            found, reader = run.read(data, f"record {entry.sequence}, byte {place}")
            with closing(reader):
                if number >= 2:
                    assert reader.damage is not None
                    assert reader.damage.torn
                    assert [*found] == [*range(number)][::-1]
                else:
                    assert reader.damage is None
                    assert {2, 3, 4} <= found.keys()


def test_e10_reading_changes_nothing() -> None:
    """FAULTS E10: opening and reading a damaged run, also as a writer that appends nothing, leaves every byte as it was."""
    run = Damaged(SMALL)
    for data in (run.whole[:-20], run.whole + bytes(600), flipped(run.whole, 8 * 700), flipped(run.whole, 100), b""):
        model = run.model(data)
        for open_it in (Reader, Journal):
            with closing(open_it(RUN, storage=model)) as opened:
                for entry in opened.entries():
                    try:
                        opened.read(entry)
                    except CorruptError:
                        continue
                [*opened.verify()]
            assert model.content(RUN) == data
        assert sorted(model.list("/disk/runs")) == ["checkpoint.fastckpt", "checkpoint.fastckpt.lock"]


def test_at_most_three_asides() -> None:
    """What is cut time after time is kept aside, the three newest; the same file set aside again is not kept twice."""
    model = ModelStorage(folders=["/disk"])
    perform(SMALL, model, Promised())
    for n in range(5):
        file = model._find(RUN)
        file.content.extend(b"garbage %d" % n)
        with closing(Journal(RUN, storage=model)) as journal:
            journal.append(b"next", step=10 + n)
    asides = sorted(name for name in model.list("/disk/runs") if ".aside." in name)
    assert asides == [f"checkpoint.fastckpt.aside.{n}" for n in (3, 4, 5)]
    assert model.content(f"{RUN}.aside.5") == b"garbage 4"


def test_random_damage() -> None:
    """FAULTS F10: bytes changed, removed, inserted and moved at random in a run: right messages or errors of ours, and an append that works."""
    run = Damaged(CHANGED[:6])
    pick = random.Random(11)
    for n in range(600):
        data = bytearray(run.whole)
        for _ in range(pick.randint(1, 3)):
            start = pick.randrange(FILE_HEADER_SIZE, len(data))
            end = min(len(data), start + pick.choice([1, 2, 40, 512, 700]))
            match pick.randrange(5):
                case 0:
                    data[start:end] = pick.randbytes(end - start)
                case 1:
                    del data[start:end]
                case 2:
                    data[start:start] = pick.randbytes(end - start)
                case 3:
                    data[start:end] = bytes(end - start)
                case 4:
                    data += data[start:end]
        _, reader = run.read(bytes(data), f"round {n}")
        reader.close()
        run.append(bytes(data), f"round {n}")
