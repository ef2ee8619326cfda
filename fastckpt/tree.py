"""Trees of nested plain data: their paths, their depth, a plain copy, and the first difference of two.

What the codec and the JSON twin share. Every walk here uses exact types, names a place as `$.state.packs[3].trace[7]`, and
ends at `MAX_DEPTH`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import re
import struct
import sys
import uuid
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from .errors import EncodeError

__all__ = [
    "ABSENT",
    "EXT_INT",
    "EXT_MAP",
    "EXT_TEXT",
    "MAX_DEPTH",
    "REFUSED",
    "Absent",
    "Difference",
    "Places",
    "PlainCopy",
    "abridged",
    "article",
    "difference",
    "fields_of",
    "is_container",
    "patched",
    "path_text",
    "places_of",
    "plain_scalar",
    "saved_fields",
    "shallow_enough",
    "type_name",
]

#: Containers inside containers, at most, when saving and when loading; the deepest real file seen has 32.
MAX_DEPTH: Final = 256

#: Ext codes of FORMAT.md: an integer beyond 64 bits, text with lone surrogates, a map whose keys need one of these.
EXT_INT, EXT_TEXT, EXT_MAP = 1, 2, 3

_INT64, _UINT64 = -(2**63), 2**64
_Ext = msgspec.msgpack.Ext
_SURROGATE = re.compile("[\ud800-\udfff]")
# Equal values of one of these types are the same value (unlike float, whose 0.0 equals -0.0).
_ATOMS = frozenset({str, int, bool, bytes, type(None), bytearray, uuid.UUID, dt.date, dt.timedelta})
_PLAIN = frozenset({dict, list, str, int, float, bool, bytes, type(None)})
_LEAVES = frozenset({str, int, float, bool, bytes, type(None), bytearray})
# What msgspec raises for a value that it cannot encode; it never says where.
REFUSED = (TypeError, OverflowError, UnicodeEncodeError, AttributeError, RecursionError)

Path: TypeAlias = tuple[object, ...]


class Absent(enum.Enum):
    """The type of `ABSENT`."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "absent"


#: Stands for a value that is not there: of None, "" and 0.0 each is a value.
ABSENT: Final = Absent.ABSENT


def path_text(steps: Sequence[object], *, whole: bool = False) -> str:
    """`$.state.packs[3]['odd key']` from its steps, outermost first; unless `whole`, abridged where it is long."""
    if len(steps) > 40 and not whole:
        return path_text(steps[:20]) + "…" + path_text(steps[-5:])[1:]
    text = repr if whole else abridged
    return "$" + "".join(f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{text(step)}]" for step in steps)


def abridged(value: object) -> str:
    """`repr(value)` in at most 60 characters, without running code of the value's own class."""
    if value is ABSENT:
        return repr(value)
    if type(value) in _LEAVES:
        # Of a long integer the repr itself is refused beyond 4,300 digits, and of long text only the start is wanted.
        if isinstance(value, int) and value.bit_length() > 1000:
            return f"an int of {value.bit_length()} bits"
        text = repr(value[:60] if isinstance(value, (str, bytes, bytearray)) else value)
        return text if len(text) <= 60 else text[:57] + "..."
    return article(type_name(type(value)))


def type_name(kind: type) -> str:
    """`set`, `numpy.ndarray`, `mymodule.Probe`: how a message names a type."""
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def plain_scalar(value: Any) -> Any:
    """The plain value that stands for a subclass of str, int or float, or for a NumPy scalar; `value` itself otherwise.

    NumPy is never imported: a scalar of it can only exist where the application did.
    """
    kind = type(value)
    if kind in _PLAIN or isinstance(value, enum.Enum):
        return value
    numpy = sys.modules.get("numpy")
    generic: Any = getattr(numpy, "generic", ())
    if isinstance(value, generic):
        item: Any = value.item()
        return item if type(item) in _PLAIN else value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return value


def fields_of(value: Any) -> tuple[str, ...] | None:
    """The attribute names that are saved of a Struct, dataclass or attrs object; None for anything else."""
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if hasattr(kind, "__dataclass_fields__"):
        return tuple(field.name for field in dataclasses.fields(kind))
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in kind.__attrs_attrs__)
    return None


def saved_fields(value: Any, steps: Sequence[object]) -> tuple[dict[str, str], dict[str, Any]]:
    """Attribute → saved name, and saved name → value (the tag first), of an object with fields, as msgspec saves it.

    Raises `EncodeError` at `steps` when a field was never set; fields that are UNSET are left out.
    """
    result: dict[str, Any] = {}
    attributes = saved = fields_of(value) or ()
    if isinstance(value, msgspec.Struct):
        saved = value.__struct_encode_fields__
        if value.__struct_config__.tag is not None:
            result[value.__struct_config__.tag_field or "type"] = value.__struct_config__.tag
    names: dict[str, str] = {}
    for name, saved_name in zip(attributes, saved, strict=True):
        try:
            item = getattr(value, name)
        except AttributeError:
            fact = f"field `{name}` of {type_name(type(value))} is not set"
            raise EncodeError(fact, where=path_text(steps), remedy="set it before saving") from None
        if item is not msgspec.UNSET:
            names[name] = saved_name
            result[saved_name] = item
    return names, result


class PlainCopy:
    """A copy of a state in which containers are plain and what msgspec refuses is replaced; the places are remembered.

    Containers are copied in one step each before they are walked, so that another thread's change of one shows as the old
    content or the new, never as a crash inside msgspec.
    """

    def __init__(self, steps: Path = ()) -> None:
        self.steps: list[object] = list(steps)
        self.ancestors: list[object] = []
        self.has_ext = False
        self.odd: list[Path] = []

    def copy(self, value: Any) -> Any:
        """The plain copy of `value`. Raises `EncodeError` for what is no data, by path."""
        kind = type(value)
        if kind is str:
            return self._text(value)
        if kind is int:
            return self._integer(value)
        if kind in _LEAVES:
            return value
        if len(self.ancestors) >= MAX_DEPTH and is_container(value):
            raise self._too_deep(value)
        self.ancestors.append(value)
        if isinstance(value, dict):
            result = self._map(value)
        elif isinstance(value, (list, tuple, set, frozenset)):
            # A set as a list: msgpack knows no other, and a replaced element could not be hashed.
            since, ordered = len(self.odd), isinstance(value, (list, tuple))
            result = []
            for index, item in enumerate(list(value)):
                self.steps.append(index if ordered else item)
                result.append(self.copy(item))
                self.steps.pop()
            if not ordered and len(self.odd) > since:
                self._mark(since)
        elif fields_of(value) is not None:
            result = self._object(value)
        else:
            result = self._scalar(value)
        self.ancestors.pop()
        return result

    def _mark(self, since: int | None = None) -> None:
        """This place is odd (and stands for those below it that were found since)."""
        if since is not None:
            del self.odd[since:]
        self.odd.append(tuple(self.steps))

    def _text(self, value: str) -> Any:
        if value.isascii() or not _SURROGATE.search(value):
            return value
        self.has_ext = True
        self._mark()
        return _Ext(EXT_TEXT, value.encode("utf-8", "surrogatepass"))

    def _integer(self, value: int) -> Any:
        if _INT64 <= value < _UINT64:
            return value
        self.has_ext = True
        self._mark()
        return _Ext(EXT_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))

    def _map(self, value: dict[Any, Any]) -> Any:
        items = dict.copy(value)
        since = len(self.odd)
        keys = [key if type(key) is str and key.isascii() else self._key(key) for key in items]
        if odd_keys := len(self.odd) > since:
            self._mark(since)
        since = len(self.odd)
        values: list[Any] = []
        # A loop, not a comprehension: one frame less a level, and 256 levels must fit the interpreter's default limit.
        for key, item in items.items():
            self.steps.append(key)
            values.append(self.copy(item))
            self.steps.pop()
        if odd_keys:
            del self.odd[since:]
            if any(type(key) in (_Ext, list) for key in keys):
                self.has_ext = True
                return _Ext(EXT_MAP, msgspec.msgpack.encode([part for pair in zip(keys, values, strict=True) for part in pair]))
        plain = dict(zip(keys, values, strict=True))
        if len(plain) != len(items):
            raise EncodeError("two keys become one when saved as plain values", where=path_text(self.steps), remedy="rename one of them")
        return plain

    def _key(self, key: Any) -> Any:
        """The key as it is saved; marked as odd where that is not `key` itself."""
        try:
            msgspec.msgpack.encode(key)
            return key
        except REFUSED:
            self._mark()
            self.steps.append(key)
            saved = self.copy(key)
            self.steps.pop()
            return saved

    def _object(self, value: Any) -> Any:
        names, result = saved_fields(value, self.steps)
        for name, saved_name in names.items():
            self.steps.append(name)
            result[saved_name] = self.copy(result[saved_name])
            self.steps.pop()
        if isinstance(value, msgspec.Struct) and value.__struct_config__.array_like:
            return list(result.values())
        return result

    def _scalar(self, value: Any) -> Any:
        plain = plain_scalar(value)
        if plain is not value:
            self._mark()
            since = len(self.odd)
            plain = self.copy(plain)
            del self.odd[since:]
            return plain
        try:
            msgspec.msgpack.encode(value)
            return value
        except REFUSED as error:
            kind = type_name(type(value))
            reason = f"its value cannot be encoded ({error})" if isinstance(value, enum.Enum) else "it is not plain data"
            raise EncodeError(f"cannot save {article(kind)}: {reason}", where=path_text(self.steps), remedy=_hint(value)) from None

    def _too_deep(self, value: object) -> EncodeError:
        chain = [*self.ancestors, value]
        for first, ancestor in enumerate(chain):
            again = next((i for i in range(first + 1, len(chain)) if chain[i] is ancestor), None)
            if again is not None:
                top = len(self.steps) - len(self.ancestors)
                start, end = self.steps[: top + first], self.steps[: top + again]
                fact = f"the state contains itself: this is `{path_text(start)}` again"
                return EncodeError(fact, where=path_text(end), remedy="break the cycle before saving")
        return EncodeError(f"nested deeper than {MAX_DEPTH} levels", where=path_text(self.steps), remedy="flatten the state")


def article(noun: str) -> str:
    """The noun with its indefinite article."""
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def _hint(value: object) -> str:
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    if module in ("numpy", "torch", "jax", "jaxlib", "tensorflow", "pandas"):
        return "store `.tolist()`, or keep arrays in a file of their own beside the checkpoint"
    if callable(value):
        return "store its name and look it up after loading"
    known = {
        "pathlib": "store `str(path)`",
        "collections": "store `list(...)`",
        "builtins": "store plain data: numbers, text, bytes, lists, dicts",
    }
    return known.get(module, "store plain data, or make it a dataclass or a msgspec.Struct")


def is_container(value: Any) -> bool:
    """Whether `value` counts as a level of nesting."""
    return isinstance(value, (dict, list, tuple, set, frozenset)) or fields_of(value) is not None


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return list(dict.copy(value).values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    return [getattr(value, name, None) for name in fields_of(value) or ()]


def shallow_enough(root: Any) -> bool:
    """Whether `root` nests at most `MAX_DEPTH` deep; level by level, so that neither stack nor shared parts matter."""
    level = [root] if is_container(root) else []
    for _ in range(MAX_DEPTH):
        below = {id(child): child for value in level for child in _children(value) if type(child) not in _LEAVES and is_container(child)}
        level = list(below.values())
        if not level:
            return True
    return not level


Places: TypeAlias = dict[object, "Places | None"]


def places_of(odd: list[Path]) -> Places | None:
    """The odd places as a tree of steps; None stands for a whole value, also where a container holds many."""
    if () in odd:
        return None
    below: dict[object, list[Path]] = {}
    for first, *rest in odd:
        below.setdefault(first, []).append(tuple(rest))
    if len(below) > 16:
        return None  # patching each would cost more than copying the container
    return {step: places_of(rest) for step, rest in below.items()}


def patched(value: Any, places: Places | None, copier: PlainCopy) -> Any:
    """`value` with shallow copies along the remembered places, and plain copies at their ends."""
    if places is None:
        return copier.copy(value)
    result: Any
    if isinstance(value, dict):
        result = dict.copy(value)
        steps = [(key, key) for key in places if key in result]
    elif isinstance(value, (list, tuple)):
        result = list(value)
        steps = [(index, index) for index in places if type(index) is int and 0 <= index < len(result)]
    elif fields_of(value) is not None:
        names, result = saved_fields(value, copier.steps)
        steps = [(name, names[name]) for name in places if name in names]
    else:
        return value
    for step, key in steps:
        copier.steps.append(step)
        result[key] = patched(result[key], places[step], copier)
        copier.steps.pop()
    return result


# --- comparison ------------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """Where two trees differ (`$.a[3]`), how, the annotation under which the first would have come back, and what is there in each."""

    where: str
    reason: str
    annotation: str
    saved: Any
    loaded: Any


def difference(saved: Any, loaded: Any, *, lenient: bool = False) -> Difference | None:
    """The first place where two trees differ in value or exact type; None when they are the same.

    Exact: 1, 1.0 and True are three values, as are 0.0 and -0.0, a set and a frozenset, an Enum and its value; NaN is itself;
    the order of a dict counts. With `lenient` (the check of a save) the documented conversions pass: a subclass of str, int
    or float and a NumPy scalar as their plain value, an int as the float that equals it, a datetime of a fixed offset in UTC.
    """
    found = _differ(saved, loaded, lenient, 0)
    if found is None:
        return None
    (reason, annotation, here, there), *steps = found
    return Difference(path_text(steps[::-1]), reason, annotation, here, there)


def _differ(a: Any, b: Any, lenient: bool, depth: int) -> list[Any] | None:
    """None, or the reason (and annotation) followed by the steps to the place, innermost first."""
    kind = type(a)
    if kind is not type(b):
        return _other_type(a, b, lenient, depth)
    if kind in _ATOMS:
        return None if a == b else _changed(a, b)
    if kind is float:
        # By the bits where == is not enough: NaN is itself, and 0.0 is not -0.0.
        return None if (a == b and a) or struct.pack("<d", a) == struct.pack("<d", b) else _changed(a, b)
    if depth >= MAX_DEPTH and is_container(a):
        return [(f"nested deeper than {MAX_DEPTH} levels", "", a, b)]
    found: list[Any] | None
    if isinstance(a, dict):
        if len(a) != len(b):
            return _lengths(a, b)
        for (key, x), (other, y) in zip(a.items(), b.items(), strict=False):
            if key is not other and not (type(key) is str is type(other) and key == other) and _differ(key, other, lenient, depth + 1) is not None:
                return [(f"the key {abridged(key)} would come back as {abridged(other)}", _annotation(key), key, other), key]
            if x is not y and (found := _differ(x, y, lenient, depth + 1)) is not None:
                return [*found, key]
        return None
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return _lengths(a, b)
        for index, (x, y) in enumerate(zip(a, b, strict=False)):
            if x is not y and (found := _differ(x, y, lenient, depth + 1)) is not None:
                return [*found, index]
        return None
    if isinstance(a, (set, frozenset)):
        return _differ_sets(a, b, lenient, depth)
    names = fields_of(a)
    if names is not None:
        return _differ_fields(a, b, names, lenient, depth)
    return None if _same_scalar(a, b) else [(f"{article(type_name(kind))} would come back different", "", a, b)]


def _differ_sets(a: Any, b: Any, lenient: bool, depth: int) -> list[Any] | None:
    if len(a) != len(b):
        return _lengths(a, b)
    loaded = {item: item for item in b}
    for item in a:
        if item not in loaded:
            return [(f"the element {abridged(item)} would come back different", "", a, b)]
        if (found := _differ(item, loaded[item], lenient, depth + 1)) is not None:
            return [*found, item]
    return None


def _differ_fields(a: Any, b: Any, names: tuple[str, ...], lenient: bool, depth: int) -> list[Any] | None:
    for name in names:
        x, y = getattr(a, name, msgspec.UNSET), getattr(b, name, msgspec.UNSET)
        if x is not y and (found := _differ(x, y, lenient, depth + 1)) is not None:
            return [*found, name]
    held = getattr(a, "__dict__", None)
    if held and (extra := held.keys() - set(names)):
        return [(f"an attribute that is no field of {type_name(type(a))} would be lost", "", a, b), min(extra)]
    return None


def _same_scalar(a: Any, b: Any) -> bool:
    """Whether two values of one type, neither plain nor a container, are the same value."""
    if isinstance(a, enum.Enum):
        return a is b
    if isinstance(a, (dt.datetime, dt.time)):
        if a.fold or (a.utcoffset() is None) != (b.utcoffset() is None):
            return False
        if a.tzinfo is not None and not isinstance(a.tzinfo, dt.timezone):
            return False  # a zone with rules: only its instant would come back
        return bool(a == b)
    if isinstance(a, decimal.Decimal):
        return bool(a.as_tuple() == b.as_tuple())  # == takes 1.50 for 1.5
    if isinstance(a, memoryview):
        return bool(a.format == b.format and a.tobytes() == b.tobytes())
    return False  # Raw, Ext, …: nothing that a caller should see come back


def _other_type(a: Any, b: Any, lenient: bool, depth: int) -> list[Any] | None:
    if lenient and not isinstance(a, enum.Enum):
        plain = plain_scalar(a)
        if type(plain) is int and type(b) is float:
            # int == float is exact in Python, whatever their sizes.
            return None if plain == b else _changed(a, b)
        if plain is not a:
            return _differ(plain, b, lenient, depth)
    return [(f"{article(type_name(type(a)))} would come back as {article(type_name(type(b)))}", _annotation(a), a, b)]


def _changed(a: object, b: object) -> list[Any]:
    return [(f"{abridged(a)} would come back as {abridged(b)}", "", a, b)]


def _lengths(a: Any, b: Any) -> list[Any]:
    return [(f"{len(a)} items would come back as {len(b)}", "", a, b)]


def _annotation(value: Any) -> str:
    """The annotation under which a value of this type comes back as itself; empty where there is none."""
    kind = type(value)
    if kind in (tuple, set, frozenset):
        return f"{kind.__name__}[...]"
    data = (dt.datetime, dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID, enum.Enum, bytearray)
    named = isinstance(value, data) or fields_of(value) is not None or hasattr(kind, "_fields")
    return type_name(kind) if named else ""
