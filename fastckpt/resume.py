"""What must agree, beyond the state, for a run to go on as if nothing had happened: its configuration and its random numbers."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import random
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

import msgspec

from .errors import CheckpointError, EncodeError
from .tree import ABSENT, MAX_DEPTH, PlainCopy, fields_of, path_text, plain_scalar, type_name

__all__ = ["ConfigDifference", "Fingerprint", "RngState", "Tier", "capture_rng", "restore_rng"]


Tier = Literal["structural", "decision"]


class ConfigDifference(NamedTuple):
    """A field (`optimizer.lr` inside one) that differs: the value of the run, the one now, each `ABSENT` where there is none; and its tier."""

    field: str
    saved: Any
    current: Any
    tier: Tier

    def __str__(self) -> str:
        return f"{self.field}: saved {self.saved!r}, current {self.current!r}"


class Fingerprint:
    """The values of those fields of a configuration that decide whether a run may go on with it.

    `config` is any object with attributes, or a mapping. A change of a `structural` field makes what was saved meaningless, one of a
    `decision` field only steers what comes next. The values themselves are kept, not a hash, so that a difference can be shown: as
    plain data, in which a tuple is a list, a set a sorted list, a path its text, an Enum its value, and a dataclass, Struct or attrs
    object a dict of its fields and its class's name. A field that the configuration has not is absent, and no value equals that;
    `missing` are those: where nothing was saved yet, it is likely that they are misspelt.

    Equal are numbers of one value (1 and 1.0, but not True; NaN is itself), and dicts of the same items in any order: in every process,
    whatever its hash seed.

    Raises `EncodeError` naming the place for a value that is no data (a function, an array), `ValueError` for a field in both tiers.
    """

    def __init__(self, config: Any, structural: Sequence[str], decision: Sequence[str] = ()) -> None:
        for tier, names in (("structural", structural), ("decision", decision)):
            if isinstance(names, str):
                raise ValueError(f"{tier} is a sequence of field names, got the text {names!r}")
        if both := sorted(set(structural) & set(decision)):
            raise ValueError(f"a field is structural or decision, not both: {', '.join(both)}")
        self._tiers: dict[str, Tier] = {**dict.fromkeys(structural, "structural"), **dict.fromkeys(decision, "decision")}
        look_up = config.get if isinstance(config, Mapping) else partial(getattr, config)
        values = {name: look_up(name, ABSENT) for name in self._tiers}
        self.missing = [name for name, value in values.items() if value is ABSENT]
        self._values = {name: _plain(value, (name,)) for name, value in values.items() if value is not ABSENT}

    def saved(self) -> dict[str, Any]:
        """The values by field, as plain data for the header of a record; a field that is absent is left out."""
        return dict(self._values)

    def differences(self, saved: Mapping[str, Any]) -> list[ConfigDifference]:
        """Where the configuration is not the one whose `saved()` this is: structural fields first, each tier in its order.

        Only the fields of this fingerprint are compared: what else was saved is no longer asked for.
        """
        return [
            ConfigDifference(field, before, now, tier)
            for name, tier in self._tiers.items()
            for field, before, now in _differing(name, saved.get(name, ABSENT), self._values.get(name, ABSENT))
        ]


_SURROGATE = re.compile("[\ud800-\udfff]")


def _plain(value: Any, steps: tuple[object, ...]) -> Any:
    """`value` as plain data that comes back from msgpack as it is."""
    if len(steps) > MAX_DEPTH:
        raise EncodeError(f"nested deeper than {MAX_DEPTH} levels", where=_where(steps), remedy="name a smaller part of the configuration")
    names = fields_of(value)
    if names is not None:
        # An attribute that was never set is absent. The class tells an Adam(lr=1) from an SGD(lr=1); no field can have its key's name.
        held = {name: getattr(value, name, ABSENT) for name in names}
        parts = {name: _plain(item, (*steps, name)) for name, item in held.items() if item is not ABSENT}
        return {"class": type(value).__qualname__, **parts}
    if isinstance(value, Mapping):
        pairs = [[_plain(key, (*steps, key)), _plain(item, (*steps, key))] for key, item in value.items()]
        pairs.sort(key=lambda pair: _canonical(pair[0]))
        # Other keys than text have no place in every decoder.
        return dict(pairs) if all(type(key) is str for key, _ in pairs) else pairs
    if isinstance(value, (list, tuple)):
        return [_plain(item, (*steps, index)) for index, item in enumerate(value)]
    if isinstance(value, AbstractSet):
        return sorted((_plain(item, (*steps, item)) for item in value), key=_canonical)
    return _plain_leaf(value, steps)


def _plain_leaf(value: Any, steps: tuple[object, ...]) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value, steps)
    value = plain_scalar(value)
    if isinstance(value, PurePath):
        value = value.as_posix()
    if isinstance(value, (dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if type(value) is int and not -(2**63) <= value < 2**64:
        return {"class": "int", "text": hex(value)}
    if type(value) is str and _SURROGATE.search(value):
        return {"class": "str", "text": ascii(value)}
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    try:
        PlainCopy(steps).copy(value)
    except EncodeError as error:
        error.where = _where(steps)
        raise
    raise EncodeError(f"cannot compare a {type_name(type(value))}", where=_where(steps), remedy="give plain data in its place")


def _where(steps: tuple[object, ...]) -> str:
    return "config" + path_text(steps)[1:]


def _canonical(value: Any) -> tuple[Any, ...]:
    """A key by which plain values are equal, and in an order that is the same in every process."""
    if value is None or value is ABSENT:
        return (0, value is None)
    if isinstance(value, bool):
        return (1, value)
    if isinstance(value, (int, float)):
        return (2, 1, 0) if math.isnan(value) else (2, 0, value)
    if isinstance(value, (str, bytes)):
        return (3 if isinstance(value, str) else 4, value)
    if isinstance(value, Mapping):
        return (6, sorted((_canonical(key), _canonical(item)) for key, item in value.items()))
    return (5, [_canonical(item) for item in value])


def _differing(field: str, saved: Any, current: Any) -> Iterator[tuple[str, Any, Any]]:
    """The field, or what differs inside it where both are dicts of text keys and of one class."""
    if _canonical(saved) == _canonical(current):
        return
    if not (isinstance(saved, Mapping) and isinstance(current, Mapping)) or saved.get("class") != current.get("class"):
        yield field, saved, current
        return
    for key in {**saved, **current}:
        yield from _differing(f"{field}.{key}", saved.get(key, ABSENT), current.get(key, ABSENT))


# --- random numbers ----------------------------------------------------------------------------------------------------


class RngState(msgspec.Struct, frozen=True):
    """Where random number generators stand: `random`'s and NumPy's, each None where there is none. Plain data, to be a field of a state."""

    python: tuple[int, tuple[int, ...], float | None] | None = None
    numpy: dict[str, Any] | None = None


def capture_rng(rng: Any = None) -> RngState:
    """Where the global generators stand: that of `random`, and of NumPy (`numpy.random.seed`) where the program has imported it.

    Or where one of the program's own does: a `random.Random`, a `numpy.random.Generator` or `RandomState`.

    Raises `EncodeError` for something else, and for one without a state (`random.SystemRandom`).
    """
    if rng is None:
        numpy = _numpy()
        return RngState(_python_state(random), None if numpy is None else _plain_arrays(numpy.random.get_state(legacy=False)))
    if isinstance(rng, random.Random):
        return RngState(python=_python_state(rng))
    if (kind := _numpy_kind(rng)) is None:
        raise EncodeError(f"{type_name(type(rng))} is no generator of `random` or NumPy", where="rng", remedy="capture its state yourself")
    return RngState(numpy=_plain_arrays(rng.get_state(legacy=False) if kind == "RandomState" else rng.bit_generator.state))


def restore_rng(state: RngState, rng: Any = None) -> None:
    """Set the global generators, or the one given, to where they stood when `state` was captured; what that has not is left alone.

    Raises `CheckpointError` where NumPy's state is there and the program has not imported NumPy, and where it is that of another kind
    of generator; then nothing is set.
    """
    if rng is None:
        # NumPy's first: it is the one that may be refused.
        if state.numpy is not None:
            if (numpy := _numpy()) is None:
                raise CheckpointError("the state of NumPy's generator cannot be set", remedy="import numpy before restoring")
            _set("numpy.random", numpy.random.set_state, state.numpy)
        if state.python is not None:
            _set("random", random.setstate, state.python)
    elif isinstance(rng, random.Random):
        _set(type_name(type(rng)), rng.setstate, state.python)
    elif _numpy_kind(rng) == "RandomState":
        _set(type_name(type(rng)), rng.set_state, state.numpy)
    else:
        held = state.numpy if _numpy_kind(rng) else None
        _set(type_name(type(rng)), lambda held: setattr(rng.bit_generator, "state", held), held)


def _set(what: str, set_state: Callable[[Any], object], held: Any) -> None:
    try:
        if held is None:
            raise ValueError("there is no state of such a generator")
        set_state(held)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"cannot set {what}: {error}", remedy="give a generator of the kind that was captured") from error


def _python_state(rng: Any) -> Any:
    try:
        return rng.getstate()
    except NotImplementedError:  # how `random.SystemRandom` says that it has none
        raise EncodeError(f"a {type_name(type(rng))} has no state", where="rng", remedy="use random.Random") from None


def _numpy() -> Any:
    """NumPy with its random module, where the program has imported it (never imported here)."""
    return sys.modules.get("numpy") if "numpy.random" in sys.modules else None


def _numpy_kind(rng: Any) -> str | None:
    numpy = _numpy()
    return next((kind for kind in ("RandomState", "Generator") if numpy is not None and isinstance(rng, getattr(numpy.random, kind))), None)


def _plain_arrays(value: Any) -> Any:
    """NumPy's states are dicts of numbers and arrays; it takes lists back."""
    if isinstance(value, dict):
        return {key: _plain_arrays(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return value
