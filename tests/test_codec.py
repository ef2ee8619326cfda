"""What is saved comes back, or is refused by name (DESIGN, "Lossless, or refused by name"; FAULTS H)."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import gc
import pathlib
import random
import signal
import struct
import subprocess
import sys
import threading
import uuid
import zoneinfo
from typing import Annotated, Any, NamedTuple

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Box, Colour, Level, Point, plain, typed
from support import assert_same, difference, in_child, needs_posix

import fastckpt
from fastckpt import CheckpointError, EncodeError, SchemaError
from fastckpt.codec import Codec
from fastckpt.tree import MAX_DEPTH


def round_trip(value: Any, type: Any = Any) -> Any:
    """`value` through a checked encode and a decode."""
    codec = Codec(type)
    encoded = codec.encode(value)
    codec.check(value, encoded)
    return codec.decode(*encoded)


@settings(max_examples=400)
@given(plain)
def test_plain_data_comes_back(value: Any) -> None:
    """Any nested plain data is accepted without a type and comes back equal in value and exact type."""
    assert_same(round_trip(value), value)


@settings(max_examples=800)
@given(typed())
def test_typed_data_comes_back(pair: tuple[Any, Any]) -> None:
    """A value of a type comes back under that type, equal in value and exact type, whatever is nested in it."""
    kind, value = pair
    assert_same(round_trip(value, kind), value)


@settings(max_examples=400)
@given(typed(), typed())
def test_what_is_accepted_comes_back(pair: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    """Under a type that may not fit, a value is either refused by an EncodeError or comes back (an int as an equal float)."""
    kind, value = pair[0], other[1]
    try:
        back = round_trip(value, kind)
    except EncodeError as error:
        assert error.where.startswith("$")
        return
    found = difference(back, value)
    assert found is None or "is a float" in found


# The values that JSON and msgpack libraries trip over.
ODD = {
    "nan": float("nan"), "inf": float("inf"), "-inf": -float("inf"), "-0.0": -0.0, "5e-324": 5e-324, "2**63": 2**63, "2**64": 2**64,
    "128 bits": 2**127 + 1, "-2**64": -(2**64), "5,000 digits": 10**5000, "surrogate": "\ud800", "surrogate inside": "a\udfff中", "pair of surrogates": "\ud83d\ude00",
    "surrogate key": {"\ud800": 1, "b": 2}, "int key": {1: "a", -1: "b"}, "big int key": {2**70: 1}, "float key": {1.5: 1, -0.0: 2}, "bool key": {True: 1},
    "none key": {None: 1}, "bytes key": {b"\xff": 1}, "tuple key": {(1, "a", (2.5, None)): 1}, "tuple key with a big int": {(2**70, "\ud800"): [{"\ud801": 2**80}]},
    "text and int keys": {"1": "a", 1: "b"}, "NUL": "\0", "empty": ["", b"", [], {}], "astral": "\U0001f600",
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("place", ["alone", "in a list", "deep", "in a Struct", "in a typed dict"])
def test_odd_values(name: str, place: str) -> None:
    """FAULTS H2, H4, H5, H6: numbers, text and keys that JSON or msgpack lack come back exactly, typed and untyped."""
    value = ODD[name]
    wrapped, kind = {
        "alone": (value, Any),
        "in a list": ([value, value], list[Any]),
        "deep": ({"a": [{"b": {"c": [value]}}]}, Any),
        "in a Struct": (Box(value), Box[Any]),
        "in a typed dict": ({"x": value}, dict[str, Any]),
    }[place]
    assert_same(round_trip(wrapped, kind), wrapped)


def test_odd_values_in_typed_positions() -> None:
    """Ext values under `int`, `str`, `dict[str, int]` and a set load by the same types."""
    assert_same(round_trip(2**100, int), 2**100)
    assert_same(round_trip({"\ud800": 2**100}, dict[str, int]), {"\ud800": 2**100})
    assert_same(round_trip({2**70, 1}, set[int]), {2**70, 1})
    assert_same(round_trip({(2**70,): frozenset({"\ud800"})}, dict[tuple[int], frozenset[str]]), {(2**70,): frozenset({"\ud800"})})


def test_one_and_true_and_one_point_zero() -> None:
    """1, 1.0 and True stay three values, as values and as keys of different dicts."""
    assert_same(
        round_trip([1, 1.0, True, 0, 0.0, -0.0, False, {1: 0}, {1.0: 0}, {True: 0}]), [1, 1.0, True, 0, 0.0, -0.0, False, {1: 0}, {1.0: 0}, {True: 0}]
    )


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Ratio(float):
    def __float__(self) -> float:
        raise RuntimeError("the application's own code must not run")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Text("a"), "a"), (Number(7), 7), (Number(2**70), 2**70), (Ratio(0.5), 0.5), (Text("\ud800"), "\ud800"), ({Text("k"): Number(1)}, {"k": 1}),
        (np.float64(0.1), 0.1), (np.float32(0.1), float(np.float32(0.1))), (np.float16(0.5), 0.5), (np.int64(-5), -5), (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True), (np.str_("x"), "x"), (np.bytes_(b"x"), b"x"), ({np.int64(3): [np.float64("nan")]}, {3: [float("nan")]}),
    ],
)  # fmt: skip
def test_subclasses_and_numpy_scalars_become_plain(value: Any, expected: Any) -> None:
    """FAULTS H6: subclasses of str, int and float and NumPy scalars are stored as their plain value, as documented."""
    assert_same(round_trip(value), expected)
    assert_same(round_trip([{"a": value}]), [{"a": expected}])
    assert_same(round_trip(Box(value), Box[Any]), Box(expected))


def test_int_in_a_float_field() -> None:
    """An int that a float equals comes back as that float; one that no float equals is refused."""
    assert_same(round_trip(Box(3), Box[float]), Box(3.0))
    with pytest.raises(EncodeError, match=r"`\$\.value`"):
        round_trip(Box(2**53 + 1), Box[float])


def test_fixed_offset_comes_back_in_utc() -> None:
    """A datetime of a fixed offset comes back as the same instant in UTC; one of a zone with rules is refused."""
    east = dt.timezone(dt.timedelta(hours=8))
    assert_same(round_trip(dt.datetime(2026, 1, 1, 8, tzinfo=east)), dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    with pytest.raises(EncodeError):
        round_trip(dt.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")))


@dataclasses.dataclass
class Opt:
    layers: list[Any]


@dataclasses.dataclass
class Holder:
    opt: Opt
    rest: list[int]


class Tuple(NamedTuple):
    a: int


@dataclasses.dataclass
class Plain:
    a: int = 0


def with_attribute() -> Plain:
    value = Plain()
    value.extra = 1  # type: ignore[attr-defined]
    return value


REFUSED = {
    "set": {1, 2}, "frozenset": frozenset({1}), "tuple": (1, 2), "namedtuple": Tuple(1), "defaultdict": collections.defaultdict(int), "ordered dict": collections.OrderedDict(a=1),
    "counter": collections.Counter("a"), "deque": collections.deque([1]), "dataclass": Plain(), "struct": Box(1), "attribute of no field": with_attribute(),
    "decimal": decimal.Decimal("1.5"), "fraction": fractions.Fraction(1, 2), "uuid": uuid.UUID(int=1), "date": dt.date(2026, 1, 1), "naive datetime": dt.datetime(2026, 1, 1),
    "time": dt.time(1), "timedelta": dt.timedelta(1), "enum": Colour.RED, "int enum": Level.LOW, "path": pathlib.Path("x"), "complex": 1j, "bytearray": bytearray(b"a"),
    "memoryview": memoryview(b"a"), "array": np.zeros(2), "datetime64": np.datetime64("2026-01-01"), "function": len, "class": int, "object": object(), "generator": iter([]),
    "range": range(3), "raw": msgspec.Raw(b"\x01"), "ext": msgspec.msgpack.Ext(1, b"\x01"), "ext of another code": msgspec.msgpack.Ext(77, b"\x01"), "unset": msgspec.UNSET,
    "frozenset key": {frozenset({1}): 1}, "enum key": {Colour.RED: 1}, "random": random.Random(), "exception": ValueError("x"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_h1_h7_refused_by_name(tmp_path: Any, name: str) -> None:
    """FAULTS H1, H7: what would not come back is an EncodeError that names its exact path, with a remedy, and touches no file."""
    path = tmp_path / "x"
    with pytest.raises(EncodeError) as caught:
        fastckpt.save(path, Holder(Opt([0, 1, 2, {"fn": REFUSED[name]}]), list(range(100))))
    assert not path.exists()
    assert caught.value.where.startswith("$.opt.layers[3].fn")
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in REFUSED if "key" not in name and name != "attribute of no field"])
def test_h1_exact_path(name: str) -> None:
    """FAULTS H1: the path leads exactly to the value, through dicts and lists alike."""
    with pytest.raises(EncodeError) as caught:
        round_trip({"opt": {"layers": [0, 1, 2, {"fn": REFUSED[name]}], "odd key!": 1}})
    assert caught.value.where == "$.opt.layers[3].fn"


def test_paths_of_keys() -> None:
    """A path shows text keys that are names as `.name`, and other keys in brackets."""
    for state, where in [({"a b": {1: [(1,)]}}, "$['a b'][1][0]"), ({"": {"x": (1,)}}, "$[''].x"), ([[[{"ü": (1,)}]]], "$[0][0][0].ü")]:
        with pytest.raises(EncodeError) as caught:
            round_trip(state)
        assert caught.value.where == where


@pytest.mark.parametrize(
    ("value", "kind", "where"),
    [
        ({"a": True}, dict[str, int], "$.a"),
        ({"a": {"b": [{"x": 1, "y": "no"}]}}, dict[str, dict[str, list[dict[str, int]]]], "$.a.b[0].y"),
        (Plain(None), Plain, "$.a"),  # type: ignore[arg-type]
        (float("nan"), Annotated[float, msgspec.Meta(ge=0)], "$"),
        ({"m": float("nan")}, dict[str, Annotated[float, msgspec.Meta(ge=0)]], "$.m"),
        (Box("text"), Box[int], "$.value"),
        ({f"k{i}": i if i != 700 else "x" for i in range(1000)}, dict[str, int], "$.k700"),
        ([1, 2, "x"], list[int], "$[2]"),
        (Plain(2**70), Box[int], "$"),
        ({"a": 2**70, "b": {"c": "x"}}, dict[str, int], "$.b"),
    ],
)
def test_h4_h11_what_no_load_could_read(value: Any, kind: Any, where: str) -> None:
    """FAULTS H4, H11: values that encode but do not decode as the type are found by the check, with the path down to the key."""
    with pytest.raises(EncodeError, match="no load could read") as caught:
        round_trip(value, kind)
    assert caught.value.where == where


class ArrayLike(msgspec.Struct, array_like=True):
    a: int = 0


class Omitting(msgspec.Struct, omit_defaults=True):
    a: int = 0


@dataclasses.dataclass
class WithInitVar:
    a: int
    b: dataclasses.InitVar[int] = 0


@dataclasses.dataclass
class NoInit:
    a: int = 0
    b: int = dataclasses.field(init=False, default=4)


@attrs.define
class Private:
    _a: int = 0


class MixedEnum(enum.Enum):
    A = 1
    B = "b"


@pytest.mark.parametrize(
    "kind", [ArrayLike, Omitting, WithInitVar, NoInit, Private, MixedEnum, collections.deque, complex, np.ndarray, pathlib.Path, "text", 5], ids=str
)
def test_g4_h7_h8_types_that_cannot_come_back(kind: Any) -> None:
    """FAULTS G4, H7, H8: such a type is refused by name when the codec is made, also deep inside another, before any state exists."""
    for nested, where in [(kind, "$"), (list[Box[kind]] if not isinstance(kind, (str, int)) else kind, "$")]:
        with pytest.raises(SchemaError) as caught:
            Codec(nested)
        assert caught.value.where.startswith(where)
        assert caught.value.remedy


def test_g4_names_the_place_in_the_type() -> None:
    """FAULTS G4: the error says where in the type the Struct is, and which it is."""

    class Outer(msgspec.Struct):
        packs: dict[str, list[ArrayLike]]

    with pytest.raises(SchemaError, match="ArrayLike") as caught:
        Codec(Outer)
    assert caught.value.where.startswith("$.packs")


def test_save_refuses_such_an_object(tmp_path: Any) -> None:
    """FAULTS G4, H7: saving an object of such a class is refused even where no type was given."""
    for value in (ArrayLike(), Omitting(), WithInitVar(1), NoInit()):
        with pytest.raises(SchemaError):
            fastckpt.save(tmp_path / "x", value)
    assert list(tmp_path.iterdir()) == []


def test_fold_is_refused() -> None:
    """A datetime or time with fold=1 would lose it, so it is refused, also where its type is declared."""
    for value in (dt.datetime(2026, 1, 1, fold=1), dt.time(1, fold=1)):
        with pytest.raises(EncodeError, match="come back different"):
            round_trip([value], list[type(value)])


def test_subclass_in_a_base_typed_field() -> None:
    """FAULTS H7: a subclass whose fields the declared base would slice off is refused with its path."""

    class More(Box[int]):
        more: int = 1

    with pytest.raises(EncodeError) as caught:
        round_trip([More(1)], list[Box[int]])
    assert caught.value.where == "$[0]"


def test_post_init_that_changes_is_found() -> None:
    """A class whose construction changes the value is found by the check."""

    @dataclasses.dataclass
    class Counting:
        n: int

        def __post_init__(self) -> None:
            self.n += 1

    with pytest.raises(EncodeError) as caught:
        round_trip(Counting(1), Counting)
    assert caught.value.where == "$.n"


def test_unset_fields() -> None:
    """FAULTS H2: a field that was never set is an EncodeError that names it."""
    box = Box(1)
    del box.value
    with pytest.raises(EncodeError, match="`value`"):
        Codec(Any).encode([box])

    @dataclasses.dataclass(slots=True)
    class Slots:
        a: int
        b: int = 0

    value = Slots(1)
    del value.b
    with pytest.raises(EncodeError):
        round_trip({"x": value}, dict[str, Slots])


def cyclic() -> dict[str, Any]:
    state: dict[str, Any] = {"packs": [{"id": 1}]}
    state["packs"][0]["owner"] = state["packs"]
    return state


def nested(levels: int, make: Any = lambda inner: [inner]) -> Any:
    state: Any = 1
    for _ in range(levels):
        state = make(state)
    return state


def test_h3_cycle_names_its_path() -> None:
    """FAULTS H3: a state that contains itself is an EncodeError that names both ends of the cycle."""
    with pytest.raises(EncodeError, match=r"`\$\.packs`.* at `\$\.packs\[0\]\.owner`"):
        Codec(Any).encode(cyclic())
    own: list[Any] = []
    own.append(own)
    with pytest.raises(EncodeError, match=r"`\$` again at `\$\[0\]`"):
        Codec(Any).encode(own)


SHAPES = {"list": lambda x: [x], "dict": lambda x: {"a": x}, "odd dict": lambda x: {"\ud800": x}, "struct": Box, "dataclass": lambda x: Opt([x])}


@pytest.mark.parametrize("shape", SHAPES)
def test_h3_depth_limit(shape: str) -> None:
    """FAULTS H3, I6: 256 levels come back, 257 are refused; the same for every container."""
    step = 2 if shape == "dataclass" else 1
    make = SHAPES[shape]
    kind: Any = Any
    if shape in ("struct", "dataclass"):
        encoded = Codec(kind).encode(nested(MAX_DEPTH // step, make))
        assert Codec(Any).decode(*encoded) is not None
    else:
        value = nested(MAX_DEPTH, make)
        encoded = Codec(kind).encode(value)
        Codec(kind).check(value, encoded)
    deep = nested(MAX_DEPTH // step + 1, make)
    with pytest.raises(EncodeError, match=r"nested deeper|nested too deeply|would come back"):
        round_trip(deep, kind)


@pytest.mark.parametrize("where", ["main", "thread of 256 KiB", "recursion limit 10,000,000"])
def test_h3_no_crash(where: str) -> None:
    """FAULTS H3: a cycle and a depth of 100,000 are an EncodeError in any thread and under any recursion limit, never a crash."""
    code = f"""
import sys, threading, fastckpt
from fastckpt.codec import Codec
def run():
    cycle = {{}}
    cycle["a"] = [cycle]
    deep = 1
    for _ in range(100_000):
        deep = [deep]
    for state in (cycle, deep):
        try:
            Codec().encode(state)
        except fastckpt.EncodeError as error:
            print(str(error)[:90])
    keep.append(deep)  # tearing it down needs stack as well
keep = []
if {where!r}.startswith("recursion"):
    sys.setrecursionlimit(10_000_000)
if {where!r}.startswith("thread"):
    threading.stack_size(256 * 1024)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
else:
    run()
import os
sys.stdout.flush()
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2, done.stdout + done.stderr


def test_the_state_is_never_changed() -> None:
    """Encoding with odd values everywhere leaves the state itself as it was."""
    state = {"a": [2**70, {"\ud800": np.float64(1)}], "b": Box(Number(3)), "c": {np.int64(1): {1, 2**65}}}
    Codec(Any).encode(state)
    assert type(state["a"][0]) is int
    assert type(state["a"][1]["\ud800"]) is np.float64
    assert type(state["b"].value) is Number
    assert type(next(iter(state["c"]))) is np.int64


def test_remembered_places_follow_the_state() -> None:
    """A codec that has seen odd values encodes later states right, whether these moved, went, changed kind or came."""
    codec = Codec(Any)
    generator = np.random.default_rng(3)
    states: list[Any] = [
        {"rng": generator.bit_generator.state, "n": 1, "list": [1, 2, 3]},
        {"rng": generator.bit_generator.state, "n": 2, "list": [1, 2**65, 3]},
        {"rng": None, "n": 3, "list": [1, 2**65, "\ud800"]},
        {"rng": {"state": 5}, "list": []},
        {"n": 2**66, "rng": {"state": {"state": [2**70]}}, "list": {"\ud800": 1}},
        [2**65],
        {-1: 2**70},
        [],
        [1, 2],
        {"rng": {"state": {"state": 2**100, "inc": 2**101}}, "list": {"a": 1}},
        dict.fromkeys(range(40), 2**70),
        {},
        5,
    ]
    for state in [*states, *reversed(states), *states]:
        encoded = codec.encode(state)
        codec.check(state, encoded)
        assert_same(codec.decode(*encoded), state)


@settings(max_examples=150)
@given(st.lists(plain, min_size=2, max_size=6))
def test_one_codec_for_many_states(states: list[Any]) -> None:
    """What a codec remembers of one state never changes what it makes of another."""
    codec = Codec(Any)
    for state in states:
        encoded = codec.encode(state)
        codec.check(state, encoded)
        assert encoded.message == Codec(Any).encode(state).message


@pytest.mark.parametrize("odd", [False, True], ids=["plain values", "with odd values"])
def test_d7_d8_another_thread_changes_the_state(odd: bool) -> None:
    """FAULTS D7, D8: while another thread grows and shrinks the state, an encode gives bytes that decode or a clean error; without
    odd values it is one consistent moment."""
    lists: list[Any] = [[] for _ in range(20)]
    state: dict[str, Any] = {"lists": lists, "dict": {}, "odd": [2**70] if odd else 1, "more": [{"x": [0]} for _ in range(50)]}
    stop = threading.Event()

    def change() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            for inner in lists:
                inner.append(i)
            state["dict"][i % 50] = i
            if i % 7 == 0:
                for inner in lists:
                    inner.clear()
                state["dict"].clear()
                state["more"].pop()
                state["more"].append({"x": [i]})

    thread = threading.Thread(target=change)
    thread.start()
    try:
        codec = Codec(Any)
        for _ in range(1500):
            try:
                encoded = codec.encode(state)
            except EncodeError:
                assert odd
                continue
            back = codec.decode(*encoded)
            assert back["odd"] == state["odd"]
            if not odd:
                lengths = {len(inner) for inner in back["lists"]}
                assert max(lengths) - min(lengths) <= 7
    finally:
        stop.set()
        thread.join()


def test_g3_schema_changes(tmp_path: Any) -> None:
    """FAULTS G3: a field added with a default, reordered, renamed by its encoded name, or widened from int to float loads right; a
    required field that is missing is named, with its path; a default of today never replaces a saved value."""

    class Old(msgspec.Struct):
        a: int = 1
        b: int = 2

    class New(msgspec.Struct, kw_only=True):
        b: float
        c: str = "new"
        first: int = msgspec.field(default=99, name="a")

    class Missing(msgspec.Struct):
        d: int

    fastckpt.save(tmp_path / "x", {"s": Old()}, type=dict[str, Old])
    assert_same(fastckpt.load(tmp_path / "x", dict[str, New]), {"s": New(b=2.0, c="new", first=1)})
    with pytest.raises(fastckpt.MissingFieldError, match=r"`d` at `\$\.s`") as caught:
        fastckpt.load(tmp_path / "x", dict[str, Missing])
    assert isinstance(caught.value, KeyError)
    assert caught.value.field == "d"


def test_f11_a_file_names_no_class(tmp_path: Any) -> None:
    """FAULTS F11: the type in the header is information only; loading without a type gives plain data."""
    fastckpt.save(tmp_path / "x", Point(1, 2.0))
    assert fastckpt.inspect(tmp_path / "x").type == "strategies:Point"
    assert_same(fastckpt.load(tmp_path / "x"), [1, 2.0])


def test_the_fingerprint_of_a_type() -> None:
    """The schema fingerprint is the same for the same structure and another where a field is added, renamed or of another type."""

    def make(**fields: Any) -> Any:
        return msgspec.defstruct("Same", list(fields.items()), module="m")

    base = Codec(make(a=int, b=list[str])).schema
    assert base == Codec(make(a=int, b=list[str])).schema
    others = [
        Codec(make(**fields)).schema for fields in ({"a": int}, {"a": int, "c": list[str]}, {"a": float, "b": list[str]}, {"a": int, "b": list[int]})
    ]
    assert base not in others
    assert len(set(others)) == 4
    assert Codec(Any).schema == ""


def test_recursive_types() -> None:
    """A type that contains itself works."""

    class Tree(msgspec.Struct):
        name: str
        below: list[Tree] = []

    Tree.__annotations__["below"] = list[Tree]
    try:
        codec = Codec(Tree)
    except SchemaError:
        pytest.fail("a recursive type is refused")
    value = Tree("a", [Tree("b"), Tree("c", [Tree("d")])])
    codec.check(value, codec.encode(value))


# Above the size from which decoding pauses the cyclic collector, where it has to.
MANY = b"\xdd" + struct.pack(">I", 1 << 21) + bytes(1 << 21)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("type", [Any, list[int], str], ids=["plain", "typed", "refused"])
def test_the_collector_is_left_as_it_was(enabled: bool, type: Any) -> None:
    """Decoding may pause the cyclic collector, and leaves it as it was, also after an error, also when it was off."""
    (gc.enable if enabled else gc.disable)()
    try:
        for message, has_ext in ((MANY, False), (MANY, True), (MANY[:-1], False), (MANY[:-1], True)):
            with contextlib.suppress(CheckpointError):
                Codec(type).decode(message, has_ext)
            assert gc.isenabled() is enabled
    finally:
        gc.enable()


@needs_posix
def test_an_interrupt_leaves_the_collector_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C right behind what switches the collector off, and right before decoding: it is on again."""
    disable = gc.disable

    def interrupted() -> None:
        disable()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(gc, "disable", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        Codec(Any).decode(MANY)
    assert gc.isenabled()


@needs_posix
def test_a_child_forked_while_another_thread_decodes_collects() -> None:
    """The thread that switched the collector off is not there in the child to switch it on."""
    ended = threading.Event()

    def decoding() -> None:
        while not ended.is_set():
            Codec(Any).decode(MANY)

    def child() -> None:
        assert gc.isenabled()

    thread = threading.Thread(target=decoding)
    thread.start()
    try:
        for _ in range(30):
            in_child(child)
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("sizes", [[100_000] * 4, [10, 100_000, 1_000_000, 50], [300_000, 310_000, 320_000, 330_000]])
def test_a_compact_codec_writes_the_same_bytes(sizes: list[int]) -> None:
    """A codec that is `compact` encodes to the same bytes, whatever was before, and each message is its own: a later one changes none."""
    compact, plain = Codec(compact=True), Codec()
    states = [{"text": "x" * size, "n": size} for size in sizes]
    made = [compact.encode(state) for state in states]
    assert [bytes(each.message) for each in made] == [plain.encode(state).message for state in states]
    assert [compact.decode(*each) for each in made] == states


def test_a_compact_codec_takes_no_more_than_the_length() -> None:
    """Of messages of about one length each takes at most a sixth more memory than its length (msgspec's own: up to half)."""
    compact = Codec(compact=True)
    for step in range(5):
        message = compact.encode({"text": ["x" * 1000] * 1010, "step": step}).message
        assert sys.getsizeof(message) <= len(message) * 7 / 6 + 64
