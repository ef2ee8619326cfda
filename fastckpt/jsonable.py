"""What `json.dumps` takes, told by a walk over exact types: the refusals of the replaced module, by path, at the speed of a save.

Used by `dropin` alone, whose saves are not decoded again. JSON and msgspec see subclasses, dataclasses and keys differently; here
is what stands for each so that msgspec writes just what JSON would have said.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import types
from collections.abc import Callable, Iterable
from inspect import getattr_static
from operator import attrgetter, itemgetter
from pathlib import PurePath
from typing import Any

import msgspec

from .errors import EncodeError
from .tree import MAX_DEPTH, article, path_text, type_name

__all__ = ["LEAVES", "RefusedError", "a_type", "is_plain", "plain"]

LEAVES: frozenset[type] = frozenset({str, int, float, bool, types.NoneType})
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"


class RefusedError(Exception):
    """What cannot be saved; on the way out it gathers the steps and the containers that lead to it, innermost first."""

    def __init__(self, fact: str, mend: str, *steps: object) -> None:
        super().__init__(fact)
        self.fact, self.mend = fact, mend
        self.steps = list(steps)
        self.chain: list[object] = []

    def explained(self) -> EncodeError:
        """With the path; of a cycle, with the place where it closes and the one that it comes back to."""
        steps, chain = self.steps[::-1], self.chain[::-1]
        if self.fact is not _TOO_DEEP:
            return EncodeError(self.fact, where=path_text(steps), remedy=self.mend)
        above = len(steps) - len(chain) + 1  # steps that lead to the first container of the chain
        seen: dict[int, int] = {}
        for index, container in enumerate(chain):
            first = seen.setdefault(id(container), index)
            if first != index:
                fact = f"the state contains itself: this is `{path_text(steps[: above + first])}` again"
                return EncodeError(fact, where=path_text(steps[: above + index]), remedy="break the cycle before saving")
        return EncodeError(self.fact, where=path_text(steps[:8]) + "…", remedy=self.mend)


def is_plain(value: Any, kind: type, depth: int, records: bool) -> bool:
    """Whether `plain` would give back `value` itself. Nearly always so, and every save asks: a loop of its own, as fast as they come."""
    items: Iterable[Any]
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return False
        items = value.values()
    elif kind is list or kind is tuple:
        items = value
    elif records and hasattr(kind, "__dataclass_fields__"):
        _, read = _RECORD_KINDS.get(kind) or _record_kind(kind)
        if read is None:
            return False
        try:
            items = read(value)
        except (KeyError, AttributeError):
            return False
    else:
        return False
    if depth > MAX_DEPTH:
        return False
    for item in items:
        inner = type(item)
        if inner not in LEAVES and not is_plain(item, inner, depth + 1, records):
            return False
    return True


def plain(value: Any, kind: type, depth: int, records: bool, leaves: frozenset[type]) -> Any:
    """`value` itself where msgspec writes it as JSON would, else what stands for it.

    Exact types decide, for msgspec and JSON see subclasses differently. `records` says whether dataclasses may be here.
    """
    original, item = value, _NOTHING
    changed: dict[int, Any] | None = None  # by identity: a place is looked for only once something was found there
    renamed: list[tuple[str, Any]] | None = None
    try:
        items: Iterable[Any] = ()
        if kind is dict:
            for key in value:
                if type(key) is not str:
                    renamed = _text_keys(value)
                    break
            items = value.values()
        elif kind is list or kind is tuple:
            items = value
        elif records and hasattr(kind, "__dataclass_fields__"):
            value, items = _record(value, kind)
        elif isinstance(value, dict):
            renamed = _text_keys(value)
        else:
            value = _exact(value)
            if (kind := type(value)) in LEAVES:
                return value
            items = value
        if renamed is not None:
            # Of two keys that become one the last wins, in the place of the first, as when read back; but JSON has to say both.
            value, items = dict(renamed), [found for _, found in renamed]
        if depth > MAX_DEPTH:
            raise RefusedError(_TOO_DEEP, "flatten the state")
        for item in items:
            inner = type(item)
            if inner not in leaves and (new := plain(item, inner, depth + 1, records, leaves)) is not item:
                if changed is None:
                    changed = {}
                changed[id(item)] = new
    except RefusedError as error:
        if item is not _NOTHING:
            error.steps.append(next((step for step, found in renamed or _pairs(value, kind) if found is item), "?"))
        error.chain.append(original)
        raise
    if changed is None:
        return value
    if kind is list or kind is tuple:
        return [changed.get(id(item), item) for item in value]
    return {step: changed.get(id(item), item) for step, item in _pairs(value, kind)}


_CONTAINERS = frozenset({dict, list, tuple})
_NOTHING = object()


def _pairs(value: Any, kind: type) -> Iterable[tuple[Any, Any]]:
    """Steps and items of what `plain` goes through."""
    if type(value) is dict:
        return value.items()
    if kind in _CONTAINERS:
        return enumerate(value)
    return zip(_RECORD_KINDS[kind][0], _record(value, kind)[1], strict=True)


def _exact(value: Any) -> Any:
    """A subclass of a plain type as `json.dumps` takes it (an Enum by its base, a named tuple as a list); anything else is refused."""
    try:
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            if int.bit_length(value) > 64:
                _digits(value)
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, (list, tuple)):
            return list(value)
    except TypeError:
        pass  # a proxy, which only says that it is one
    raise RefusedError(f"cannot save {a_type(value)}: JSON could not say it either", _mend(value))


def _digits(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:
        fact = f"cannot save an integer of {value.bit_length()} bits: it has too many digits for JSON"
        raise RefusedError(fact, "store it as text in hex") from None


def _text_keys(value: dict[Any, Any]) -> list[tuple[str, Any]]:
    """What a dict holds, by its keys as `json.dumps` writes them."""
    return [(key if type(key) is str else _text_key(key), item) for key, item in value.items()]


def _text_key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, float):
        return json.dumps(float.__float__(key))
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    if isinstance(key, int):
        return _digits(key)
    raise RefusedError(f"{a_type(key)} cannot be a key in JSON", "make the key text")


def _record(value: Any, kind: type) -> tuple[Any, Iterable[Any]]:
    """A dataclass and the values of its fields; a dict in its stead where msgspec would not write what `asdict` gives."""
    names, read = _RECORD_KINDS.get(kind) or _record_kind(kind)
    if read is not None:
        try:
            return value, read(value)
        except (KeyError, AttributeError):
            pass  # not in the instance itself: a default of the class, or not set
    fields: dict[str, Any] = {}
    for name in names:
        try:
            fields[name] = getattr(value, name)
        except AttributeError:
            raise RefusedError(f"the field `{name}` of {type_name(kind)} is not set", "set it before saving", name) from None
    return fields, fields.values()


_Read = Callable[[Any], tuple[Any, ...]]
_RECORD_KINDS: dict[type, tuple[tuple[str, ...], _Read | None]] = {}


def _record_kind(kind: type) -> tuple[tuple[str, ...], _Read | None]:
    """The fields of a dataclass, and how to read them all; None where msgspec sees more or less of such an object than `asdict`."""
    names = tuple(field.name for field in dataclasses.fields(kind))
    _RECORD_KINDS[kind] = names, None
    # Another __getattribute__: one of its own, or that of a built-in container which it is besides.
    if getattr_static(kind, "__getattribute__") is getattr_static(object, "__getattribute__") and not issubclass(kind, (enum.Enum, msgspec.Struct)):
        members = [getattr_static(kind, name, None) for name in names]
        if all(isinstance(member, types.MemberDescriptorType) for member in members):
            _RECORD_KINDS[kind] = names, _reader(attrgetter, names)
        elif kind.__dictoffset__ and not any(hasattr(type(member), "__set__") for member in members):
            held = _reader(itemgetter, names)
            _RECORD_KINDS[kind] = names, lambda value: held(value.__dict__)
    return _RECORD_KINDS[kind]


def _reader(getter: Callable[..., Callable[[Any], Any]], names: tuple[str, ...]) -> _Read:
    """All of `names` as a tuple; the getters of the standard library give a bare value for one, and do not take none."""
    if len(names) > 1:
        return getter(*names)
    reads = [getter(name) for name in names]
    return lambda value: tuple(read(value) for read in reads)


def a_type(value: object) -> str:
    """The type of a value, for a message: `an int`, `a set`."""
    return article(type_name(type(value)))


def _mend(value: object) -> str:
    kind = type(value)
    if kind.__module__.partition(".")[0] in ("numpy", "torch", "jax", "jaxlib", "tensorflow", "pandas"):
        return "store its `.item()` or `.tolist()`"
    for kinds, mend in _MENDS:
        if isinstance(value, kinds):
            return mend
    if dataclasses.is_dataclass(value):
        return "store `dataclasses.asdict(...)` of it"
    return "store its name and look it up after loading" if callable(value) else "store plain data: numbers, text, lists, dicts"


_MENDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (enum.Enum, "store its `.value`"),
    ((set, frozenset), "store `sorted(...)` of it"),
    ((bytes, bytearray, memoryview), "store text, such as its `.hex()`"),
    ((dt.date, dt.time), "store its `.isoformat()`"),
    (PurePath, "store `str(path)`"),
    (msgspec.Struct, "store `msgspec.to_builtins(...)` of it, or make its class a dataclass"),
)
