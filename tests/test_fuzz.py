"""FAULTS F10: valid files changed at every layer, by Hypothesis: only errors of ours, and never a state that was not saved at that step.

10,000 examples over the layers, ten times as many with the profile `long` (see conftest). An example is a string of bytes from which
choices are made one after the other: cheap to draw, and smaller bytes make fewer or smaller changes, so it shrinks.
"""

from __future__ import annotations

import contextlib
import resource
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import forge
import msgspec
import pytest
from faults import ModelStorage
from forge import checksum, compress, file_header, record
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import assert_same, count, difference

import fastckpt
from fastckpt import CheckpointError, CheckpointManager, CheckpointWarning, CorruptError, History
from fastckpt.container import FILE_HEADER_SIZE
from fastckpt.history import NAME
from fastckpt.reader import Reader
from fastckpt.repair import repair

FOLDER = "/disk/runs"
PATH = f"{FOLDER}/{NAME}"
# What all of it may take of memory beyond what the process has already: files of a few kB must not cost hundreds of MB.
MEMORY = 256 << 20


def layer(percent: int) -> settings:
    """This share of 10,000 examples, or of 100,000 in the long profile."""
    return settings(max_examples=settings().max_examples * percent)


@pytest.fixture(autouse=True, scope="module")
def _bounded() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    count("fuzz cases", settings().max_examples * 100)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY


class Choices:
    """Choices by the bytes of a string; where it ends, the first one."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __repr__(self) -> str:
        return f"Choices({self._data!r})"

    def below(self, n: int) -> int:
        size = max((n - 1).bit_length() + 7, 8) // 8
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "big") % n

    def one(self, *of: Any) -> Any:
        return of[self.below(len(of))]

    def blob(self, most: int) -> bytes:
        size = self.below(most + 1)
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        n = self.below(24)
        return n - 4 if n < 16 else [2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 300, 70_000][n - 16]

    def anything(self, depth: int = 3) -> Any:
        match self.below(9 if depth else 6):
            case 0:
                return None
            case 1:
                return self.number()
            case 2:
                return self.blob(20)
            case 3:
                return self.blob(8).decode("latin-1")
            case 4:
                return bool(self.below(2))
            case 5:
                return self.one(0.5, float("nan"), float("inf"), -0.0)
            case 6 | 7:
                return [self.anything(depth - 1) for _ in range(self.below(4))]
        return {self.blob(3).decode("latin-1"): self.anything(depth - 1) for _ in range(self.below(4))}


# As short as Hypothesis likes them, most would choose nothing.
choices = st.binary(min_size=30, max_size=120).map(Choices)


def edited(data: bytes, choice: Choices, start: int = 0) -> bytes:
    """Bytes changed, put in, taken out, moved, repeated or zeroed, in one to three places from `start` on."""
    out = bytearray(data)
    for _ in range(1 + choice.below(3)):
        how, at = choice.below(8), start + choice.below(max(1, len(out) - start))
        end = min(len(out), at + choice.one(1, 1, 2, 8, 40, 512, 700))
        if how == 0:
            out[at:end] = choice.blob(12)
        elif how == 1:
            del out[at:end]
        elif how == 2:
            out[at:at] = choice.blob(12)
        elif how == 3:
            out[at:end] = bytes(end - at)
        elif how == 4:
            out += out[at:end]
        elif how == 5:
            del out[at:]
        elif how == 6 and at < len(out):
            out[at] ^= 1 << choice.below(8)
        elif how == 7:
            to = start + choice.below(max(1, len(out) - start))
            piece = out[at:end]
            del out[at:end]
            out[to:to] = piece
    return bytes(out)


def model(data: bytes) -> ModelStorage:
    return ModelStorage({PATH: data}, folders=["/disk", FOLDER])


def read_as_single(data: bytes, type: Any = Any) -> Any:
    """The state, or the error of ours, whose text is one line and names the file."""
    try:
        return fastckpt.load(PATH, type, storage=model(data))
    except CheckpointError as error:
        assert "\n" not in str(error)
        assert PATH in str(error)
        return error


def read_as_run(data: bytes, known: Callable[[int, Any], bool], *, go_on: bool) -> None:
    """Read every step, and go on with it: each state is one that `known` knows at its step, and only errors of ours."""
    disk = model(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        for use in (
            lambda: fastckpt.load(PATH, storage=disk),
            lambda: fastckpt.inspect(PATH, storage=disk),
            lambda: fastckpt.verify(PATH, storage=disk),
        ):
            with contextlib.suppress(CheckpointError):
                use()
        with contextlib.suppress(CheckpointError), History(PATH, storage=disk, first_step=0) as history:
            for step in history.all_steps():
                with contextlib.suppress(CheckpointError):
                    found = history.restore(step)
                    assert known(step, found), f"step {step}: nobody saved {found!r}"
            for looked in (history.log, history.meta, history.metrics, lambda: history.series("rows.1", stride=2)):
                with contextlib.suppress(CheckpointError):
                    looked()
        assert disk.content(PATH) == data, "a reader changed it"
        if not go_on:
            return
        with contextlib.suppress(CheckpointError):
            repair(PATH, storage=disk)
            with History(PATH, storage=disk, first_step=0) as history:
                for step in history.all_steps():
                    found = history.restore(step)
                    assert known(step, found), f"repaired, step {step}: nobody saved {found!r}"
        disk = model(data)
        with contextlib.suppress(CheckpointError), CheckpointManager(PATH, storage=disk, first_step=0) as manager:
            with contextlib.suppress(CheckpointError):
                manager.restore(fallback=True)
            step = manager.next_step()
            manager.save(step, {"next": step})
            assert_same(manager.restore(), {"next": step})
            with contextlib.suppress(CheckpointError):
                manager.compact()
            assert_same(manager.restore(step), {"next": step})


# What is changed


SINGLE_STATE = {"step": 7, "answers": {"q1": True, "q2": False}, "text": "words, words " * 20, "loss": [0.5, 0.25], "none": None}


def _single() -> bytes:
    disk = ModelStorage(folders=["/disk", FOLDER])
    fastckpt.save(PATH, SINGLE_STATE, meta={"run": "a"}, storage=disk)
    return disk.content(PATH) or b""


def _state(step: int, again: int = 0) -> dict[str, Any]:
    return {"step": step, "again": again, "rows": [f"row {i}: {i * i * 7919 % 10_007 + (step if i == step else 0)}" for i in range(120)]}


#: What was ever saved as a step of the run; of a step that was gone back over, all of it.
SAVED: dict[int, list[Any]] = {}


def _another_run() -> bytes:
    """Other states under the same steps."""
    disk = ModelStorage(folders=["/disk", FOLDER])
    with CheckpointManager(PATH, storage=disk) as manager:
        for step in range(8):
            manager.save(step, _state(step, again=7))
    return disk.content(PATH) or b""


def _run() -> bytes:
    disk = ModelStorage(folders=["/disk", FOLDER])
    with CheckpointManager(PATH, storage=disk) as manager:

        def save(step: int, again: int = 0) -> None:
            manager.save(step, _state(step, again), metrics={"loss": 1 / (step + 1)}, meta={"note": "x"})
            SAVED.setdefault(step, []).append(_state(step, again))

        for step in range(6):
            save(step)
        manager.rewind(3)
        save(4, again=1)
        manager.delete(1)
        save(5, again=1)
    with CheckpointManager(PATH, storage=disk) as manager:
        manager.save(6, _state(6))
        SAVED[6] = [_state(6)]
    return disk.content(PATH) or b""


SINGLE, RUN = _single(), _run()


def saved_at(step: int, found: Any) -> bool:
    return any(difference(found, one) is None for one in SAVED.get(step, []))


def _pieces(data: bytes) -> list[bytes]:
    reader = Reader(PATH, storage=model(data))
    entries = [*reader.entries()][::-1]
    reader.close()
    return [data[e.offset : e.offset + e.length] for e in entries]


RECORDS, FOREIGN = _pieces(RUN), _pieces(_another_run())


# Bytes


@layer(5)
@given(choice=choices, data=st.binary(max_size=300))
def test_f10_bytes_of_nothing(choice: Choices, data: bytes) -> None:
    """FAULTS F10: random bytes, bare and behind a beginning of ours."""
    read_as_single(choice.one(b"", SINGLE[:12], SINGLE[:48], SINGLE[:60], RUN[:48], RUN[:200], b"{") + data)


@layer(15)
@given(choice=choices)
def test_f10_bytes_of_a_single(choice: Choices) -> None:
    """FAULTS F10: a file of one checkpoint with bytes changed, put in, taken out or moved: its state or an error."""
    data = edited(SINGLE, choice)
    found = read_as_single(data)
    if not isinstance(found, CheckpointError):
        assert_same(found, SINGLE_STATE)


@layer(15)
@given(choice=choices)
def test_f10_bytes_of_a_run(choice: Choices) -> None:
    """FAULTS F10: a run with bytes changed, put in, taken out or moved: every step that is read is one that was saved as that."""
    data = edited(RUN, choice, choice.one(FILE_HEADER_SIZE, 0))
    read_as_run(data, saved_at, go_on=choice.below(4) == 0)


@layer(5)
@given(choice=choices)
def test_f10_records_of_a_run(choice: Choices) -> None:
    """FAULTS F10: a run's records, each of them whole, dropped, repeated, in another order, and between them a changed one or another run's."""
    parts = list(RECORDS)
    for _ in range(1 + choice.below(4)):
        how, at = choice.below(5), choice.below(len(parts) or 1)
        if how == 0 and parts:
            del parts[at]
        elif how == 1 and parts:
            parts.insert(choice.below(len(parts) + 1), parts[at])
        elif how == 2 and parts:
            parts.insert(choice.below(len(parts)), parts.pop(at))
        elif how == 3:
            parts.insert(choice.below(len(parts) + 1), choice.one(record(), forge.compress(b"x"), RECORDS[-1][:-1], SINGLE[48:], *FOREIGN))
        elif parts:
            parts[at] = edited(parts[at], choice)
    read_as_run(RUN[:FILE_HEADER_SIZE] + b"".join(parts), saved_at, go_on=choice.below(4) == 0)


# Headers and tables, with every checksum made right


KEYS = ["file", "sequence", "kind", "stream", "key", "step", "base", "retires", "message", "digest", "table", "table_checksum", "frame", "frame_checksum",
        "unsynced", "zeros", "chunk", "codec", "requires", "ext", "meta", "metrics", "config", "source", "type", "schema", "schema_version", "blocked",
        "time", "writer", "unknown"]  # fmt: skip


def lied(choice: Choices) -> dict[str, Any]:
    """Up to three keys of a header with something else in them, of the right type now and then."""
    found: dict[str, Any] = {}
    for _ in range(choice.below(4)):
        key = choice.one(*KEYS)
        if key == "retires":
            found[key] = [[choice.number(), choice.one(None, choice.number())] for _ in range(choice.below(4))]
        elif key in ("meta", "metrics", "config"):
            found[key] = {"k": choice.anything()} if choice.below(2) else choice.anything()
        elif key == "kind":
            found[key] = choice.one("tombstone", "state", "ghost")
        else:
            found[key] = choice.one(choice.number, choice.anything, lambda: forge.OMIT)()
    return found


def table_of_lies(choice: Choices) -> list[Any] | None:
    if choice.below(2):
        return None
    numbers = [[choice.number() for _ in range(choice.below(7))] for _ in range(2)]
    return [numbers[0][:3], choice.blob(16), numbers[1], choice.blob(8), choice.blob(8)]


@layer(20)
@given(choice=choices)
def test_f10_headers_and_tables_of_a_single(choice: Choices) -> None:
    """FAULTS F10: header fields and tables that say anything: the state or an error."""
    data = file_header() + record(b"\x92\x01\x02", header=lied(choice), table=table_of_lies(choice))
    found = read_as_single(data)
    if not isinstance(found, CheckpointError):
        assert_same(found, [1, 2])
    with contextlib.suppress(CheckpointError):
        fastckpt.inspect(PATH, storage=model(data))


def message_of(step: int) -> bytes:
    return msgspec.msgpack.encode({"step": step, "rows": ["a", "b" * step]})


@layer(15)
@given(choice=choices)
@example(choice=Choices(b""))
def test_f10_headers_and_tables_of_a_run(choice: Choices) -> None:
    """FAULTS F10: records of which any header and table may lie, and refer to any other: each step reads as what some record holds."""
    parts: list[bytes] = []
    messages = []
    for number in range(1 + choice.below(6)):
        step = choice.one(number, number, number, choice.below(6))
        header = {"sequence": number + 1, "step": step, **(lied(choice) if choice.below(3) == 0 else {})}
        how = choice.below(6)
        if how == 0:
            header = {**header, "kind": "tombstone", "retires": header.get("retires", [[choice.below(6), choice.one(None, choice.below(6))]])}
            parts.append(record(b"", header=header, table=[[], b"", [], b"", b""], content=b""))
        elif how == 1 and parts:
            # Its message is the one of another record, whose chunk it names, and nothing new: or what the lies make of that.
            other = choice.below(len(parts))
            columns = {choice.below(3): choice.one([choice.number()], choice.blob(9), [1, 0, 1], [1, 0, 1, 1, 0, 1])} if choice.below(2) else {}
            with contextlib.suppress(ValueError, zlib.error, forge.zstandard.ZstdError):
                parts.append(forge.difference(parts, other, b"", table={2: [1, 0, 1], 3: b"", 4: b"", **columns}, header=header))
        else:
            message = message_of(step)
            messages.append(message)
            parts.append(record(message, header=header, table=table_of_lies(choice) if choice.below(4) == 0 else None))
    if choice.below(3) == 0 and parts:
        parts.insert(choice.below(len(parts)), parts[choice.below(len(parts))])
    whole = [msgspec.msgpack.decode(message) for message in messages]
    read_as_run(forge.run(*parts), lambda _, found: any(difference(found, one) is None for one in whole), go_on=choice.below(3) == 0)


# Frames


@layer(10)
@given(choice=choices)
def test_f10_content_of_a_frame(choice: Choices) -> None:
    """FAULTS F10: another content, compressed again, under a frame checksum that fits: what the checksums of chunks and message say counts."""
    message = msgspec.msgpack.encode(SINGLE_STATE)
    content = edited(message, choice)
    frame = (
        edited(compress(content), choice, 4)
        if choice.below(4) == 0
        else compress(content, checked=bool(choice.below(2)), declare=bool(choice.below(2)))
    )
    table = [[], b"", [0, 0, 1], forge.size(content), forge.crc(content if choice.below(2) else message)]
    sized = message if choice.below(2) else content
    data = forge.single(sized, frame=frame, table=table, header={"digest": checksum(forge.crc(message)), "message": len(sized)})
    found = read_as_single(data)
    if content == message and not isinstance(found, CheckpointError):
        assert_same(found, SINGLE_STATE)
    elif content != message:
        assert isinstance(found, CorruptError | fastckpt.LimitError), found


# Messages


class Nested(msgspec.Struct):
    a: int
    b: list[dict[str, float]] = []


@layer(15)
@given(choice=choices)
def test_f10_any_message(choice: Choices) -> None:
    """FAULTS F10: any msgpack, also changed afterwards, with Ext values of any code, under several types."""
    how = choice.below(4)
    if how == 0:
        message = choice.blob(60)
    elif how == 1:
        message = msgspec.msgpack.encode([msgspec.msgpack.Ext(choice.number() % 256 - 128, choice.blob(20)), choice.anything()])
    elif how == 2:
        message = edited(msgspec.msgpack.encode({"a": choice.anything(), "b": choice.anything()}), choice)
    else:
        message = msgspec.msgpack.encode(choice.anything())
    data = forge.single(message or b"\xc0", header={"ext": bool(choice.below(2))})
    read_as_single(data, choice.one(Any, Nested, dict[int, set[str]], list[Nested | None]))
    if choice.below(8) == 0:
        for step in read_as_values(forge.run(record(message or b"\xc0", header={"step": 0}))):
            del step


def read_as_values(data: bytes) -> Iterator[Any]:
    disk = model(data)
    with History(PATH, storage=disk) as history:
        for look in (lambda: history.diff(0, 0), lambda: history.series("a"), lambda: history.series("b.0"), history.restore):
            with contextlib.suppress(CheckpointError):
                yield look()
