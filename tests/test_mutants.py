"""The tests can fail: each wrong edit of the product is found by a test, because a checkpoint is lost or a wrong one is loaded.

FAULTS A6. A mutant of the disk work changes the product's stream of calls (`faults`, section 5), a mutant of the format takes
checksums out. MUTANTS says for each which test kills it: the test is called as it stands, first with the product as it is,
then with the mutant, and there it must end in `Lost`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import uuid
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import pytest
import test_crash
import test_io_errors
import zstandard
from faults import (
    PUBLISH,
    SAVE,
    FixedTemporaryName,
    InPlace,
    Lost,
    ModelStorage,
    NoDirectorySync,
    NoFileSync,
    NoParentSync,
    NoSyncError,
    ReplaceFirst,
    ShortWriteIgnored,
    Subject,
    SyncAfterReplace,
    SyncAgain,
    is_one_of,
    load_or_none,
    unchanged,
)
from support import assert_same

import fastckpt
from fastckpt import container
from fastckpt.errors import CheckpointError

# Mutants of the disk work


class Kill(NamedTuple):
    """A mutant, and the test of the suite that finds it."""

    mutant: Callable[[Any], Any]
    test: Callable[..., None]


MUTANTS = [
    Kill(NoFileSync, test_crash.test_a1_first_save_ever),
    Kill(NoFileSync, test_crash.test_a1_overwrite),
    Kill(NoFileSync, test_crash.test_a3_torn_at_every_sector),
    Kill(NoDirectorySync, test_crash.test_a1_first_save_ever),
    Kill(NoDirectorySync, test_crash.test_a1_overwrite),
    Kill(NoParentSync, test_crash.test_a1_directories_made),
    Kill(NoParentSync, test_crash.test_a1_directories_made_by_a_process_that_was_killed),
    Kill(NoParentSync, partial(test_crash.test_a1_directories_made_by_a_save_that_failed, kind="write")),
    Kill(ReplaceFirst, test_crash.test_a1_first_save_ever),
    Kill(ReplaceFirst, test_crash.test_a1_overwrite),
    Kill(SyncAfterReplace, test_crash.test_a1_overwrite),
    Kill(InPlace, test_crash.test_a1_overwrite),
    Kill(SyncAgain, partial(test_io_errors.test_b4_sync_of_the_file_fails, times=1, first=False, code=5)),
    Kill(NoSyncError, partial(test_io_errors.test_b4_sync_of_the_file_fails, times=1, first=False, code=28)),
    Kill(ShortWriteIgnored, test_io_errors.test_b2_one_short_write),
    Kill(FixedTemporaryName, test_crash.test_d1_a_save_inside_a_save),
]


# Which tests have passed without a mutant, so that each does so once.
PASSED: set[tuple[str, str]] = set()


def name_of(kill: Kill) -> str:
    test = kill.test.func if isinstance(kill.test, partial) else kill.test
    return f"{kill.mutant.__name__}-{test.__name__}"


@pytest.mark.parametrize("subject", [PUBLISH, SAVE], ids=lambda subject: subject.name)
@pytest.mark.parametrize("kill", MUTANTS, ids=name_of)
def test_mutant_is_killed(kill: Kill, subject: Subject) -> None:
    """FAULTS A6: the test passes with the product as it is, and with the mutant it finds a checkpoint lost."""
    if (key := (name_of(kill).partition("-")[2], subject.name)) not in PASSED:
        kill.test(subject=subject, product=unchanged)
        PASSED.add(key)
    with pytest.raises(Lost):
        kill.test(subject=subject, product=kill.mutant)


def test_harmless_mutant_survives() -> None:
    """The harness is no mere spy: a mutant that only makes useless calls besides passes the tests."""

    class Fussy(NoFileSync):
        def call(self, name: str, *arguments: Any) -> Any:
            if name == "replace":
                self.inner.stat(arguments[0])
                self.inner.list("/disk")
            return self.inner.sync(*arguments) if name == "sync" else super().call(name, *arguments)

    test_crash.test_a1_overwrite(subject=PUBLISH, product=Fussy)


# Mutants of the format


@contextlib.contextmanager
def without_crc() -> Iterator[None]:
    """Our checksums of the frame and of its chunks are taken out: whatever is compared is the same."""
    with mock.patch.object(container, "zlib", SimpleNamespace(crc32=lambda data: 0)):
        yield


@contextlib.contextmanager
def without_any_checksum_of_the_frame() -> Iterator[None]:
    """Ours are taken out, and zstd's own with them."""

    def compressor(**options: Any) -> zstandard.ZstdCompressor:
        return zstandard.ZstdCompressor(**{**options, "write_checksum": False})

    def parameters(frame: bytes) -> Any:
        found = zstandard.get_frame_parameters(frame)
        return SimpleNamespace(content_size=found.content_size, has_checksum=True, dict_id=found.dict_id, window_size=found.window_size)

    fake = SimpleNamespace(
        ZstdCompressor=compressor, ZstdDecompressor=zstandard.ZstdDecompressor, ZstdError=zstandard.ZstdError, get_frame_parameters=parameters
    )
    with without_crc(), mock.patch.object(container, "zstandard", fake):
        yield


@contextlib.contextmanager
def without_checksum_of_the_header() -> Iterator[None]:
    """The checksums of headers, tables and trailers, and the digest, are not compared."""
    with mock.patch.object(container, "_require", return_value=None):
        yield


PATH = "/checkpoint.fastckpt"


def file_of(state: Any) -> bytes:
    """The bytes of a file that holds `state`."""
    model = ModelStorage()
    fastckpt.save(PATH, state, storage=model)
    return bytes(model.root.entries["checkpoint.fastckpt"].content)


def require_whole(data: bytes, state: Any, told: str) -> None:
    """`data` loads as `state` or ends in a `CheckpointError`."""
    found = load_or_none(SAVE, PATH, ModelStorage({PATH: data}))
    if not isinstance(found, CheckpointError) and not is_one_of(found, [state]):
        raise Lost(f"{told}: loaded {found!r}")


def test_e1_every_bit_of_the_frame() -> None:
    """FAULTS E1: any single bit of the frame flipped: an error, or the identical state."""
    state = {"step": 7, "answers": ["a", "b", "d"]}
    whole = file_of(state)
    for bit in range(8 * whole.index(zstandard.FRAME_HEADER), 8 * (len(whole) - container.TRAILER_SIZE)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        require_whole(bytes(flipped), state, f"bit {bit} flipped")


def test_e1_every_bit_of_the_file() -> None:
    """FAULTS E1: any single bit of the file flipped: an error, or the identical state."""
    state = {"step": 7, "answers": ["a", "b", "d"]}
    whole = file_of(state)
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        require_whole(bytes(flipped), state, f"bit {bit} flipped")


def test_e1_every_bit_of_what_inspect_says() -> None:
    """FAULTS E1: any single bit of the file flipped: `inspect`, which reads the headers alone, says the same or ends in an error."""
    whole = file_of({"step": 7})

    def inspected(data: bytes) -> Any:
        try:
            return fastckpt.inspect(PATH, storage=ModelStorage({PATH: data}))
        except CheckpointError:
            return None

    truth = inspected(whole)
    assert truth is not None
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        if not is_one_of(found := inspected(bytes(flipped)), [truth, None]):
            raise Lost(f"bit {bit} flipped: {found!r}")


def test_e5_frame_of_another_checkpoint() -> None:
    """FAULTS E5: the frame of another checkpoint, valid in itself and of the same length, in the place of ours: an error."""
    mine, theirs = ({"step": 1, "answer": text} for text in ("quick", "brown"))
    ours, others = file_of(mine), file_of(theirs)
    start, end = ours.index(zstandard.FRAME_HEADER), len(ours) - container.TRAILER_SIZE
    there = others.index(zstandard.FRAME_HEADER)
    frame = others[there : len(others) - container.TRAILER_SIZE]
    assert len(frame) == end - start
    require_whole(ours[:start] + frame + ours[end:], mine, "another frame")


FORMAT_MUTANTS = [
    (without_crc, test_e5_frame_of_another_checkpoint),
    (without_any_checksum_of_the_frame, test_e1_every_bit_of_the_frame),
    (without_any_checksum_of_the_frame, test_e5_frame_of_another_checkpoint),
    (without_checksum_of_the_header, test_e1_every_bit_of_what_inspect_says),
]


@pytest.mark.parametrize(("mutant", "test"), FORMAT_MUTANTS, ids=lambda value: value.__name__)
def test_mutant_of_the_format_is_killed(mutant: Callable[[], Any], test: Callable[[], None]) -> None:
    """FAULTS A6: with a checksum taken out the test finds a wrong state loaded."""
    with mutant(), pytest.raises(Lost):
        test()


def test_frame_checksum_is_not_alone() -> None:
    """Each of the frame's checksums (ours over the frame, ours over its chunks, zstd's own) finds every flipped bit by itself."""
    state = {"step": 7, "answers": ["a", "b", "d"]}
    whole = file_of(state)
    frame = whole[whole.index(zstandard.FRAME_HEADER) : -container.TRAILER_SIZE]
    content = zstandard.ZstdDecompressor().decompress(frame)
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        assert zlib.crc32(flipped) != zlib.crc32(frame)
        with contextlib.suppress(zstandard.ZstdError):
            decoded = zstandard.ZstdDecompressor().decompress(bytes(flipped), max_output_size=len(content))
            assert decoded == content or zlib.crc32(decoded) != zlib.crc32(content)


# The comparison that every test of a round trip leans on


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = dataclasses.field(default=0, compare=False)


class Packed(msgspec.Struct):
    x: Any


class Colour(enum.Enum):
    RED = "red"


class Text(str):
    pass


DIFFERENT = [
    (1, True), (1, 1.0), (0.0, -0.0), (float("nan"), 0.0), ("a", b"a"), ("a", Text("a")), ([1], (1,)), ({1}, frozenset({1})),
    ({1}, {True}), ({1}, {1.0}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1: "a"}, {True: "a"}), ({"a": 0.0}, {"a": -0.0}),
    ([1, 2], [1]), ([[1]], [[1.0]]), ({(1,)}, {(True,)}),
    (Point(1), Point(1.0)), (Point(1, 0), Point(1, 1)), (Packed(1), Packed(True)), (Point(1), Packed(1)), (Colour.RED, "red"),
    (None, False), ("", None),
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")), (dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2020, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))),
    (dt.datetime(2020, 1, 1, fold=0), dt.datetime(2020, 1, 1, fold=1)), (Path("a"), "a"), (uuid.UUID(int=1), 1), (b"a", bytearray(b"a")),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), DIFFERENT, ids=repr)
def test_assert_same_sees_the_difference(a: Any, b: Any) -> None:
    """What `==` may take for equal is told apart, both ways round, also deep inside, and the report can be printed."""
    for left, right in ((a, b), (b, a), ([{"k": (a,)}], [{"k": (b,)}])):
        with pytest.raises(AssertionError) as caught:
            assert_same(left, right)
        str(caught.value).encode("utf-8")


def same_twice(make: Callable[[], Any]) -> tuple[Any, Any]:
    return make(), make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: float("nan"), lambda: [float("nan"), {"x": float("nan")}], lambda: {float("nan"), 1.0},
        lambda: -0.0, lambda: {"b": 1, "a": [None, "\ud800"]},
        lambda: Point(Packed({1, 2}), frozenset({"a"})), lambda: {i: str(i) for i in range(1000)}, lambda: set(range(5000)),
        lambda: Colour.RED, lambda: 2**128,
        lambda: decimal.Decimal("NaN"), lambda: dt.datetime(2020, 1, 1, tzinfo=dt.UTC), lambda: dt.date(2020, 1, 1),
        lambda: uuid.UUID(int=5),
        lambda: Path("a"), lambda: dt.timedelta(1), lambda: bytearray(b"x"), lambda: (), lambda: None,
    ],
)  # fmt: skip
def test_assert_same_accepts_what_is_the_same(make: Callable[[], Any]) -> None:
    """Two values made alike are the same, NaN and lone surrogates included."""
    assert_same(*same_twice(make))


def test_assert_same_sees_extra_attributes() -> None:
    """An attribute that is no field, or one that is missing, is a difference."""
    a, b = Point(1), Point(1)
    a.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        assert_same(a, b)
    with pytest.raises(AssertionError):
        assert_same(Point(1), object.__new__(Point))
