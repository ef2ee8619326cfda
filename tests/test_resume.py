"""The resume check and the random numbers: what must agree for a run to go on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import os
import pickle
import random
import subprocess
import sys
import uuid
from pathlib import Path, PurePosixPath
from types import MappingProxyType, SimpleNamespace
from typing import Any

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import assert_same, in_child, needs_posix

from fastckpt import load, save
from fastckpt.codec import pack_meta
from fastckpt.errors import CheckpointError, ConfigMismatchError, EncodeError
from fastckpt.resume import ConfigDifference, Fingerprint, RngState, capture_rng, restore_rng
from fastckpt.tree import ABSENT


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass(frozen=True)
class Adam:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


@dataclasses.dataclass(frozen=True)
class Sgd:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


class Data(msgspec.Struct):
    folder: Path
    splits: dict[str, int]


@attrs.define
class Schedule:
    warmup: int


def stored(fingerprint: Fingerprint) -> dict[str, Any]:
    """What comes back of `saved()` from the header of a record."""
    found = msgspec.msgpack.decode(pack_meta(fingerprint.saved()))
    assert isinstance(found, dict)
    return found


def differences(saved: Any, current: Any) -> list[ConfigDifference]:
    """Between a run with the value `saved` in its field `x` and a program with `current`."""
    return Fingerprint({"x": current}, ["x"]).differences(stored(Fingerprint({"x": saved}, ["x"])))


# What is equal and what is not -----------------------------------------------------------------------------------------

EQUAL: list[tuple[Any, Any]] = [
    (1, 1.0), (0.0, -0.0), (math.nan, math.nan), (2**53, float(2**53)), (2**200, 2**200), ("\ud800x", "\ud800x"),
    ((1, 2), [1, 2]), ({1, 2.0}, {1.0, 2}), ({"b", "aa"}, frozenset({"aa", "b"})), ([], ()),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({2: "x", 1: "y"}, {1: "y", 2: "x"}), ({(1, 2): 0}, {(1, 2): 0}),
    (MappingProxyType({"a": 1}), {"a": 1}), (Path("a/b"), PurePosixPath("a/b")), (Path("a/b"), "a/b"), (Mode.FAST, "fast"), (Level.LOW, 1),
    (Adam(), Adam(0.1)), (Data(Path("a"), {"x": 1, "y": 2}), Data(Path("a"), {"y": 2, "x": 1})), (Schedule(3), Schedule(3)),
    (np.float64(0.5), 0.5), (np.int32(3), 3), (np.bool_(True), True), (b"\xff", bytearray(b"\xff")), (None, None),
    (uuid.UUID(int=5), uuid.UUID(int=5)), (dt.timedelta(1), dt.timedelta(hours=24)), ({Mode.FAST, Mode.SLOW}, {"slow", "fast"}),
    ({None, True, 1.5, "x", b"y", (1, "z"), frozenset({3})}, {frozenset({3}), (1, "z"), b"y", "x", 1.5, True, None}),
]  # fmt: skip

DIFFERENT: list[tuple[Any, Any]] = [
    (True, 1), (False, 0), (False, 0.0), (None, 0), (None, ""), (None, False), (0.0, ""), ("", []), ([], {}), ("1", 1), (b"a", "a"), (1, 2),
    (0.1, 0.1 + 2**-55), (math.nan, None), (math.nan, 0.0), (math.inf, -math.inf), (2**200, 2**200 + 1), (2**53 + 1, float(2**53)), ("\ud800", "\ud801"),
    ([1, 2], [2, 1]), ([1], [1, 1]), ({1, 2}, {1, 3}), ({True}, {1}), ({"a": None}, {}), ({"a": 1}, {"a": 2}), ({1: 2}, {True: 2}), ({1: 2}, {"1": 2}),
    (Adam(), Sgd()), (Adam(), {"lr": 0.1, "betas": (0.9, 0.99)}), (Adam(), Adam(0.2)), (Path("a"), Path("b")), (Mode.FAST, Mode.SLOW),
    (decimal.Decimal("1.5"), decimal.Decimal("1.50")), (dt.date(2024, 1, 1), dt.date(2024, 1, 2)), (uuid.UUID(int=5), uuid.UUID(int=6)),
]  # fmt: skip


@pytest.mark.parametrize(("saved", "current"), EQUAL, ids=lambda value: ascii(value)[:30])
def test_equal_values(saved: Any, current: Any) -> None:
    """Numbers by value, containers by what they hold, in whatever order where order means nothing."""
    assert differences(saved, current) == []
    assert differences(current, saved) == []
    assert differences([saved], [current]) == []
    assert differences({"in": saved}, {"in": current}) == []


@pytest.mark.parametrize(("saved", "current"), DIFFERENT, ids=lambda value: ascii(value)[:30])
def test_different_values(saved: Any, current: Any) -> None:
    """Value and type count: True is not 1, "" and 0.0 and None are three values, an Adam is no Sgd."""
    for before, now in ((saved, current), (current, saved), ([saved], [current]), ({"in": saved}, {"in": current})):
        assert differences(before, now) != []


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.booleans(), inner) | st.tuples(inner, inner),
    max_leaves=15,
)


@given(value=plain, other=plain)
def test_what_was_saved_is_equal_to_itself_alone(value: Any, other: Any) -> None:
    """Any plain value equals itself when it comes back from a header; and where two are equal, they are so both ways."""
    assert differences(value, value) == []
    assert (differences(value, other) == []) == (differences(other, value) == [])


@given(items=st.lists(st.tuples(st.text() | st.integers() | st.none() | st.floats(), st.integers()), unique_by=lambda item: item[0]), data=st.data())
def test_the_order_of_a_dict_means_nothing(items: list[tuple[Any, int]], data: st.DataObject) -> None:
    """The same items put in in another order are the same dict, and are saved as the same bytes."""
    again = data.draw(st.permutations(items))
    assert differences(dict(items), dict(again)) == []
    assert pack_meta(Fingerprint({"x": dict(items)}, ["x"]).saved()) == pack_meta(Fingerprint({"x": dict(again)}, ["x"]).saved())


def test_equal_in_every_process() -> None:
    """A configuration of sets and dicts is saved as the same bytes in processes with other hash seeds."""
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]\nfrom fastckpt.resume import Fingerprint\nfrom fastckpt.codec import pack_meta\n"
        "words = ['alpha', 'be', 'gamma', 'd' * 40, 'ε', 'zeta', 'eta']\n"
        "config = {'names': set(words), 'pairs': {(word, len(word)) for word in words}, 'nested': {frozenset(words): {*words[:4]}}, 'mixed': {*words, 1, None}}\n"
        "print(bytes(pack_meta(Fingerprint(config, list(config)).saved())).hex(), list(set(words)))"
    )
    package = str(Path(sys.modules["fastckpt"].__file__ or "").parents[1])
    printed = [
        subprocess.run([sys.executable, "-c", code, package], env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONIOENCODING": "utf-8"},
                       capture_output=True, text=True, check=True, encoding="utf-8").stdout.partition(" ")
        for seed in range(1, 5)
    ]  # fmt: skip
    assert len({order for _, _, order in printed}) > 1  # the seeds do make a difference
    assert len({saved for saved, _, _ in printed}) == 1


# The fields ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [{"lr": 0.1, "betas": [0.9, 0.99], "more": object()}, SimpleNamespace(lr=0.1, betas=(0.9, 0.99), more=object()), Adam(),
     msgspec.defstruct("Config", [("lr", float, 0.1), ("betas", Any, (0.9, 0.99))])(), attrs.make_class("Config", {"lr": attrs.field(default=0.1), "betas": attrs.field(default=(0.9, 0.99))})()],
    ids=lambda config: type(config).__name__,
)  # fmt: skip
def test_a_configuration_is_an_object_or_a_mapping(config: Any) -> None:
    """Attributes or keys, and of those only the listed ones: what else there is may be anything."""
    fingerprint = Fingerprint(config, ["lr"], ["betas"])
    assert_same(fingerprint.saved(), {"lr": 0.1, "betas": [0.9, 0.99]})
    assert fingerprint.missing == []


def test_absent_is_no_value() -> None:
    """A field that is not there equals no value, None, "" and 0.0 included, on either side; absent on both sides is no difference."""
    for value in (None, "", 0.0, False, []):
        assert differences_of({"x": value}, {}) == [ConfigDifference("x", [] if value == [] else value, ABSENT, "structural")]
        assert differences_of({}, {"x": value}) == [ConfigDifference("x", ABSENT, [] if value == [] else value, "structural")]
    assert differences_of({}, {}) == []
    assert repr(ABSENT) == "absent"
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT


def differences_of(saved: dict[str, Any], current: dict[str, Any]) -> list[ConfigDifference]:
    return Fingerprint(current, ["x"]).differences(stored(Fingerprint(saved, ["x"])))


def test_a_field_that_no_configuration_has_is_told() -> None:
    """A misspelt field would never differ; `missing` names it, in a configuration that has None in others."""
    assert Fingerprint({"lr": None}, ["lr", "batchsize"], ["epoch"]).missing == ["batchsize", "epoch"]


def test_differences_come_structural_first() -> None:
    """Each with both values and its tier, the structural ones first, in the order of the lists."""
    saved = stored(Fingerprint({"a": 1, "b": 2, "c": 3, "d": 4}, ["a", "b"], ["c", "d"]))
    fingerprint = Fingerprint({"a": 1, "b": 20, "c": 30, "d": 40}, ["b", "a"], ["d", "c"])
    assert fingerprint.differences(saved) == [
        ConfigDifference("b", 2, 20, "structural"),
        ConfigDifference("d", 4, 40, "decision"),
        ConfigDifference("c", 3, 30, "decision"),
    ]


def test_the_lists_of_the_program_count() -> None:
    """A field may change its tier from one version of the program to the next, or no longer be asked for."""
    saved = stored(Fingerprint({"a": 1, "b": 2}, ["a"], ["b"]))
    assert Fingerprint({"a": 1, "b": 3}, ["b"]).differences(saved) == [ConfigDifference("b", 2, 3, "structural")]


def test_the_difference_inside_a_field_is_named() -> None:
    """Where a field is an object of one class, or a dict, the difference is named by its path, and not shown as two long texts."""
    before = {"optimizer": Adam(), "data": {"train": {"size": 5, "seed": 1}, "test": 2}}
    now = {"optimizer": Adam(0.2), "data": {"train": {"size": 5}, "test": 3, "new": None}}
    names = list(before)
    assert Fingerprint(now, names).differences(stored(Fingerprint(before, names))) == [
        ConfigDifference("optimizer.lr", 0.1, 0.2, "structural"),
        ConfigDifference("data.test", 2, 3, "structural"),
        ConfigDifference("data.train.seed", 1, ABSENT, "structural"),
        ConfigDifference("data.new", ABSENT, None, "structural"),
    ]
    (found,) = differences(Adam(), Sgd(0.2))
    assert (found.field, found.saved["class"], found.current["class"]) == ("x", "Adam", "Sgd")


def test_the_values_are_those_of_the_beginning() -> None:
    """What is changed in the configuration afterwards changes neither the fingerprint nor what it has handed out."""
    config = {"x": {"sizes": [1]}}
    fingerprint = Fingerprint(config, ["x"])
    config["x"]["sizes"].append(2)
    saved = fingerprint.saved()
    saved["x"] = None
    assert_same(fingerprint.saved(), {"x": {"sizes": [1]}})


class Unset:
    """An attribute that raises nothing is a value; one that is not there is absent."""

    __slots__ = ("x", "y")


def test_an_attribute_that_was_never_set_is_absent() -> None:
    """As in an object with slots."""
    config = Unset()
    config.x = None
    assert Fingerprint(config, ["x", "y"]).missing == ["y"]


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (print, "function"),
        ({"a": [1, object()]}, "object"),
        (np.zeros(3), "numpy.ndarray"),
        (Adam(lr=print), "function"),
        (range(3), "range"),
        (nested(300), "256"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_is_no_data_is_refused(value: Any, text: str) -> None:
    """By the path of the place, before anything is saved."""
    with pytest.raises(EncodeError, match=text) as caught:
        Fingerprint({"x": value}, ["x"])
    assert caught.value.where.startswith("config.x")
    if isinstance(value, dict):
        assert caught.value.where == "config.x.a[1]"


def test_a_field_has_one_tier() -> None:
    """A field in both lists, and a text where a list of names belongs, are mistakes of the caller."""
    with pytest.raises(ValueError, match="not both: lr"):
        Fingerprint({}, ["lr", "a"], ["b", "lr"])
    with pytest.raises(ValueError, match=r"decision .* 'lr'"):
        Fingerprint({}, [], "lr")


def test_the_error_says_what_differs() -> None:
    """It names each structural field with both values, the step, the file and the remedy, keeps all the differences, and can be pickled."""
    found = [
        ConfigDifference("size", 0.0, ABSENT, "structural"),
        ConfigDifference("data.names", "n" * 500, None, "structural"),
        ConfigDifference("lr", 1, 2, "decision"),
    ]
    error = ConfigMismatchError(found, step=7, path="run/checkpoint.fastckpt")
    text = str(error)
    for part in ("`size` was 0.0, is absent", "`data.names` was 'nnn", "is None", "step 7", "run/checkpoint.fastckpt", 'resume="warn"'):
        assert part in text
    assert "`lr`" not in text
    assert len(text) < 400
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.differences, again.step, again.path, str(again), again.exit_code) == (found, 7, "run/checkpoint.fastckpt", text, 8)
    assert again.differences[0].current is ABSENT


# Random numbers --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class State:
    rng: RngState


def through_a_file(state: RngState, folder: Path) -> RngState:
    save(folder / "rng.fastckpt", State(state))
    found = load(folder / "rng.fastckpt", State).rng
    assert_same(found, state)
    return found


def test_global_generators_go_on(tmp_path: Path) -> None:
    """The state of `random` and NumPy, from a file, makes them draw again what they drew; a drawn half of a Gaussian pair included."""
    random.gauss(0, 1)
    np.random.standard_normal()
    state = through_a_file(capture_rng(), tmp_path)

    def draw() -> list[Any]:
        return [random.random(), random.gauss(0, 1), *np.random.standard_normal(3).tolist(), int(np.random.randint(1000))]

    drawn = draw()
    assert draw() != drawn
    restore_rng(state)
    assert draw() == drawn


@pytest.mark.parametrize("name", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_generators_of_numpy_go_on(name: str, tmp_path: Path) -> None:
    """A Generator over each of NumPy's bit generators, the 128-bit integers of some included, and its unused half of a 64-bit draw."""
    rng = np.random.Generator(getattr(np.random, name)(3))
    rng.integers(5, dtype=np.int32)
    state = through_a_file(capture_rng(rng), tmp_path)
    drawn = rng.integers(1000, size=9, dtype=np.int32).tolist()
    for again in (rng, np.random.Generator(getattr(np.random, name)())):
        restore_rng(state, again)
        assert again.integers(1000, size=9, dtype=np.int32).tolist() == drawn


@pytest.mark.parametrize("make", [random.Random, np.random.RandomState], ids=lambda kind: kind.__name__)
def test_instances_go_on(make: Any, tmp_path: Path) -> None:
    """A generator of the program's own; the global ones are left alone."""
    before = capture_rng()
    rng = make(3)
    rng.random()
    state = through_a_file(capture_rng(rng), tmp_path)
    drawn = [rng.random() for _ in range(3)]
    again = make(4)
    restore_rng(state, again)
    assert [again.random() for _ in range(3)] == drawn
    assert_same(capture_rng(), before)


def test_capturing_draws_nothing() -> None:
    """Looking at a generator does not move it."""
    assert_same(capture_rng(), capture_rng())


@pytest.mark.parametrize("rng", [random.SystemRandom(), object(), 5, np.random.PCG64(1)], ids=lambda rng: type(rng).__name__)
def test_what_has_no_state_is_refused(rng: Any) -> None:
    """The operating system's randomness, and what is no generator."""
    with pytest.raises(EncodeError):
        capture_rng(rng)


@pytest.mark.parametrize(
    ("state", "rng"),
    [(capture_rng(random.Random(1)), np.random.default_rng(1)), (capture_rng(np.random.default_rng(1)), random.Random(1)),
     (capture_rng(np.random.default_rng(1)), np.random.Generator(np.random.Philox(1))), (capture_rng(np.random.default_rng(1)), np.random.RandomState(1)),
     (RngState(), random.Random(1)), (RngState(), np.random.default_rng(1)), (capture_rng(), object())],
    ids=["numpy from python", "python from numpy", "philox from pcg", "legacy from pcg", "python from nothing", "numpy from nothing", "no generator"],
)  # fmt: skip
def test_the_state_of_another_kind_is_refused(state: RngState, rng: Any) -> None:
    """Rather than to leave a generator where it stands and say nothing."""
    with pytest.raises(CheckpointError, match="cannot set"):
        restore_rng(state, rng)


def test_another_global_generator_is_refused() -> None:
    """Where the program has put another bit generator behind NumPy's functions, or the state is none: neither generator is moved."""
    before = capture_rng()
    other = capture_rng(np.random.default_rng(1)).numpy
    for numpy in (other, {}, {"bit_generator": "MT19937", "state": {}}):
        with pytest.raises(CheckpointError, match=r"cannot set numpy.random"):
            restore_rng(RngState(capture_rng(random.Random(1)).python, numpy))
    assert_same(capture_rng(), before)


def test_what_was_not_captured_is_left_alone() -> None:
    """A state without NumPy's part does not touch NumPy, and one without `random`'s not `random`."""
    before = capture_rng()
    restore_rng(RngState())
    assert_same(capture_rng(), before)


WITHOUT_NUMPY = """
import random, sys
sys.path[:0] = [sys.argv[1]]
from fastckpt.errors import CheckpointError
from fastckpt.resume import RngState, capture_rng, restore_rng
state = capture_rng()
assert "numpy" not in sys.modules and state.numpy is None
first = random.random()
restore_rng(state)
assert random.random() == first
before = capture_rng()
try:
    restore_rng(RngState(state.python, {"bit_generator": "MT19937"}))
except CheckpointError as error:
    assert "import numpy" in str(error)
else:
    raise SystemExit("not refused")
assert capture_rng() == before
assert "numpy" not in sys.modules
"""


def test_numpy_is_never_imported() -> None:
    """Without NumPy `random` alone is captured; a state that has NumPy's part is refused, with the remedy and nothing changed."""
    package = str(Path(sys.modules["fastckpt"].__file__ or "").parents[1])
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMPY, package], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_posix
def test_another_bit_generator_behind_the_global_functions(tmp_path: Path) -> None:
    """`numpy.random.set_bit_generator` puts any generator there; its state is captured all the same."""

    def work() -> None:
        np.random.set_bit_generator(np.random.PCG64(3))
        state = through_a_file(capture_rng(), tmp_path)
        drawn = np.random.standard_normal(3).tolist()
        restore_rng(state)
        assert np.random.standard_normal(3).tolist() == drawn

    in_child(work)
