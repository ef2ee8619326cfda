"""Hypothesis strategies: plain data as it comes from JSON and from msgpack, and values together with the type they load as."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import msgspec
from hypothesis import strategies as st

T = TypeVar("T")
U = TypeVar("U")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Box(msgspec.Struct, Generic[T]):
    value: T
    name: str = ""


@dataclasses.dataclass
class Pair(Generic[T, U]):
    left: T
    right: U
    note: str | None = None


@dataclasses.dataclass(slots=True)
class Slotted(Generic[T]):
    value: T


@attrs.define
class Attr:
    count: int
    items: list[str] = attrs.field(factory=list)


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict):
    on: bool
    rate: float


class Leaf(msgspec.Struct, tag=True):
    weight: float


class Node(msgspec.Struct, tag=True):
    children: list[Leaf | Node] = []


# Text of every kind, lone surrogates included; integers of every size, with the edges of 64 bits; every float.
texts = st.one_of(st.text(max_size=8), st.text(st.characters(categories=["Cs", "Lu"]), max_size=3))
integers = st.one_of(
    st.integers(), st.integers(-3, 3), st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**127, -(2**127)])
)
floats = st.one_of(st.floats(), st.sampled_from([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 5e-324, 1.0]))
scalars = st.one_of(st.none(), st.booleans(), integers, floats, texts, st.binary(max_size=8))
_hashable = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2).map(tuple), max_leaves=3)

#: What comes back without a type.
plain = st.recursive(scalars, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_hashable, inner, max_size=4)), max_leaves=15)

#: What `json.loads` can return. Two surrogates that make a pair are one character in JSON, so none stand alone in a row here.
json_texts = texts.map(lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if text else text)
jsonable = st.recursive(
    st.one_of(st.none(), st.booleans(), integers, floats, json_texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(json_texts, inner, max_size=4)),
    max_leaves=15,
)

# fold=1 is refused (test_codec), so it is not among what comes back.
naive = st.datetimes().map(lambda value: value.replace(fold=0))
aware = st.datetimes(timezones=st.just(dt.UTC)).map(lambda value: value.replace(fold=0))
decimals = st.decimals(allow_nan=False)  # Decimal("sNaN") cannot be hashed or compared


def _typed(kind: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return values.map(lambda value: (kind, value))


_hashable_leaves = [
    _typed(int, integers),
    _typed(str, texts),
    _typed(bytes, st.binary(max_size=8)),
    _typed(bool, st.booleans()),
    _typed(dt.datetime, naive),
    _typed(dt.datetime, aware),
    _typed(dt.date, st.dates()),
    _typed(dt.timedelta, st.timedeltas(dt.timedelta(-10000), dt.timedelta(10000))),
    _typed(uuid.UUID, st.uuids()),
    _typed(decimal.Decimal, decimals),
    _typed(Colour, st.sampled_from(Colour)),
    _typed(Level, st.sampled_from(Level)),
    _typed(Point, st.builds(Point, st.integers(-5, 5), st.floats(allow_nan=False))),
]
_leaves = [
    *_hashable_leaves,
    _typed(float, floats),
    _typed(dt.time, st.times().map(lambda value: value.replace(fold=0))),
    _typed(type(None), st.none()),
    _typed(Any, plain),
    _typed(bytearray, st.binary(max_size=8).map(bytearray)),
    _typed(Options, st.fixed_dictionaries({"on": st.booleans(), "rate": floats})),
    _typed(Attr, st.builds(Attr, integers, st.lists(texts, max_size=2))),
    _typed(Leaf | Node, st.recursive(st.builds(Leaf, floats), lambda inner: st.builds(Node, st.lists(inner, max_size=2)), max_leaves=4)),
]


@st.composite
def _hashables(draw: Any) -> tuple[Any, list[Any]]:
    """A hashable type and a few values of it."""
    kind, value = draw(st.one_of(_hashable_leaves))
    values = [value]
    if kind in (int, str, bytes, bool):
        more = {int: integers, str: texts, bytes: st.binary(max_size=8), bool: st.booleans()}[kind]
        values += draw(st.lists(more, max_size=3))
    elif draw(st.booleans()):
        kind, values = tuple[kind, ...], [tuple(values)]
    return kind, values


@st.composite
def typed(draw: Any, depth: int = 2) -> tuple[Any, Any]:
    """A type and a value of it."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.one_of(_leaves))
    shape = draw(st.sampled_from(["list", "tuple", "tuple2", "set", "frozenset", "dict", "optional", "box", "pair", "slotted"]))
    if shape in ("set", "frozenset"):
        kind, values = draw(_hashables())
        return (set[kind], set(values)) if shape == "set" else (frozenset[kind], frozenset(values))
    kind, value = draw(typed(depth - 1))
    if shape == "list":
        return list[kind], [value] * draw(st.integers(0, 3))
    if shape == "tuple":
        return tuple[kind, ...], (value,) * draw(st.integers(0, 3))
    if shape == "dict":
        key, keys = draw(_hashables())
        return dict[key, kind], dict.fromkeys(keys, value)
    if shape == "optional":
        if kind is dt.datetime or kind in (Any, type(None)):
            return kind, value
        return kind | None, draw(st.sampled_from([value, None]))
    if shape == "box":
        return Box[kind], Box(value, draw(texts))
    if shape == "slotted":
        return Slotted[kind], Slotted(value)
    other, second = draw(typed(depth - 1))
    if shape == "tuple2":
        return tuple[kind, other], (value, second)
    return Pair[kind, other], Pair(value, second)
