"""What changed between two trees of plain data, paths as text, and one value out of an encoded message.

All of it works on what `Codec().decode` gives: dicts, lists, text, numbers, bytes, None and datetimes.
"""

from __future__ import annotations

import difflib
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from .codec import Codec, stack_is_ample
from .errors import SchemaError
from .tree import ABSENT, REFUSED, abridged, path_text

__all__ = ["Change", "Extractor", "changes", "nearest", "parse_path", "value_at"]


Steps: TypeAlias = tuple[object, ...]


class Change(NamedTuple):
    """A place where two trees differ, with what is there in each; `ABSENT` where one of them has no such place.

    The path is whole (nothing in it is abridged, as `path_text` does for messages), and `parse_path` reads it. Behind an item that was
    inserted into a list or taken out of it, indexes are those of the new list; of an item that was taken out, that of the old one.
    """

    path: str
    old: Any
    new: Any


# --- differences -----------------------------------------------------------------------------------------------------


def changes(old: Any, new: Any) -> Iterator[Change]:
    """The changed leaves of two trees of plain data, in the order of the old one, what was added to a container last.

    Exact: 1, 1.0 and True are three values, as are 0.0 and -0.0; NaN is itself; the order of a dict does not count. A key or an item
    that only one of the trees has is one change, as is a value that became one of another type, however much is in it. Lists are
    matched by what they have in common, so that an insertion is one change, and not one of everything behind it.
    """
    pending: list[tuple[Steps, Any, Any]] = [((), old, new)]
    while pending:
        steps, a, b = pending.pop()
        if type(a) is dict and type(b) is dict:
            below = _by_key(a, b)
        elif type(a) is list and type(b) is list:
            below = _by_index(a, b)
        else:
            if not _same(a, b):
                yield Change(_whole_path(steps), a, b)
            continue
        pending.extend([((*steps, step), x, y) for step, x, y in below][::-1])


def _whole_path(steps: Steps) -> str:
    try:
        return path_text(steps, whole=True)
    except ValueError:  # a key of more digits than Python converts
        return path_text(steps)


def _same(a: Any, b: Any) -> bool:
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is float:
        return (a == b and math.copysign(1.0, a) == math.copysign(1.0, b)) or (a != a and b != b)
    if kind is dict or kind is list:
        # == ends at the first difference, but takes 1 for 1.0 and True. What it takes for equal is encoded to be sure, and never looked
        # into again; what holds NaN is unequal to it and gets walked. Both run in C.
        return bool(a == b) and _encoded(a) == _encoded(b)
    return bool(a == b)


def _encoded(value: Any) -> bytes | bytearray:
    """Bytes that are equal for the same value alone; for a dict, of the same order."""
    try:
        return msgspec.msgpack.encode(value)
    except REFUSED:
        return Codec().encode(value).message  # an integer beyond 64 bits, a lone surrogate


def _by_key(a: dict[Any, Any], b: dict[Any, Any]) -> Iterator[tuple[object, Any, Any]]:
    """Where two dicts differ: key, old, new."""
    if {str}.issuperset(map(type, a)) and {str}.issuperset(map(type, b)):
        for key, x in a.items():
            y = b.get(key, ABSENT)
            if not _same(x, y):
                yield key, x, y
        for key, y in b.items():
            if key not in a:
                yield key, ABSENT, y
        return
    # 1, 1.0 and True are one key to a dict, and here they are three; NaN is none to it, and here it is one.
    old = {bytes(_encoded(key)): (key, value) for key, value in a.items()}
    new = {bytes(_encoded(key)): (key, value) for key, value in b.items()}
    for code, (key, x) in old.items():
        y = new[code][1] if code in new else ABSENT
        if not _same(x, y):
            yield key, x, y
    for code, (key, y) in new.items():
        if code not in old:
            yield key, ABSENT, y


def _by_index(a: list[Any], b: list[Any]) -> Iterator[tuple[int, Any, Any]]:
    """Where two lists differ: index, old, new. The common head is set aside; in the rest, items that occur once are matched."""
    shorter = min(len(a), len(b))
    head = next((i for i in range(shorter) if not _same(a[i], b[i])), shorter)
    start, new_start = head, head
    if head < shorter:
        for i, j in _anchors([_encoded(item) for item in a[head:]], [_encoded(item) for item in b[head:]]):
            yield from _between(a, b, start, head + i, new_start, head + j)
            start, new_start = head + i + 1, head + j + 1
    yield from _between(a, b, start, len(a), new_start, len(b))


def _between(a: list[Any], b: list[Any], start: int, end: int, new_start: int, new_end: int) -> Iterator[tuple[int, Any, Any]]:
    """Differences of two stretches between items that are matched: what they end with alike, then by place, then what one has beyond that."""
    while start < end and new_start < new_end and _same(a[end - 1], b[new_end - 1]):
        end, new_end = end - 1, new_end - 1
    common = min(end - start, new_end - new_start)
    for offset in range(common):
        x, y = a[start + offset], b[new_start + offset]
        if not _same(x, y):
            yield new_start + offset, x, y
    for index in range(start + common, end):
        yield index, a[index], ABSENT
    for index in range(new_start + common, new_end):
        yield index, ABSENT, b[index]


def _anchors(a: list[bytes | bytearray], b: list[bytes | bytearray]) -> list[tuple[int, int]]:
    """Indexes of equal items, of such as occur once in `b`, as many as rise in both (patience diff: its cost grows with n log n alone)."""
    old, new = [bytes(item) for item in a], [bytes(item) for item in b]
    counts = Counter(new)
    places = {item: index for index, item in enumerate(new) if counts[item] == 1}
    pairs = [(index, places[item]) for index, item in enumerate(old) if item in places]
    # The longest rising subsequence: the smallest end of one of each length, and what comes before each in its own.
    ends: list[int] = []
    at: list[int] = []
    before: list[int] = []
    for number, (_, place) in enumerate(pairs):
        length = bisect_left(ends, place)
        ends[length : length + 1] = [place]
        at[length : length + 1] = [number]
        before.append(at[length - 1] if length else -1)
    chain: list[tuple[int, int]] = []
    number = at[-1] if at else -1
    while number >= 0:
        chain.append(pairs[number])
        number = before[number]
    return chain[::-1]


# --- paths -----------------------------------------------------------------------------------------------------------

# A bare number is an index or a key; a bare name is whatever has no dot and no bracket in it, so that `votes.task type A` needs no quotes.
_BARE = re.compile(r"[^.\[\]]+")
_NUMBER = re.compile(r"-?[0-9]+")
# What `repr` gives of a key that is no text: numbers, the three constants; text, bytes and tuples are taken apart below.
_FLOAT = re.compile(r"-?(?:inf|nan|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)(?![\w.])")
_QUOTED = re.compile(r"""(b?)(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")""")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_CONSTANTS = (("True", True), ("False", False), ("None", None))


def parse_path(text: str) -> Steps:
    """The steps of a path: `state.eval_prev_acc`, `$.log_history[-1].loss`, `log_history.-1.loss`, `votes['odd key'].b`.

    A number is an index of a list (from its end, if negative) or a key of a dict, an integer or text, whichever is there; in quotes it is
    text alone. Reads every path of a `Change`. Raises `SchemaError` for what is no path.
    """
    position = 1 if text[:1] == "$" and text[1:2] in ("", ".", "[") else 0
    steps: list[object] = []
    if not text:
        raise _no_path(text, 0, "it is empty")
    while position < len(text):
        if text[position] == "[":
            step, position = _literal(text, position + 1)
            if text[position : position + 1] != "]":
                raise _no_path(text, position, "expected `]`")
            position += 1
        else:
            if text[position] == ".":
                position += 1
            elif steps:
                raise _no_path(text, position, "expected `.` or `[`")
            match = _BARE.match(text, position)
            if match is None:
                raise _no_path(text, position, "expected a name")
            step, position = match.group(), match.end()
            if _NUMBER.fullmatch(match.group()):
                step = _integer(text, match)
        steps.append(step)
    return tuple(steps)


def _no_path(text: str, position: int, fact: str) -> SchemaError:
    remedy = "write it like `state.packs[3].score`, a key with dots or brackets in quotes: `answers['v1.2']`, the whole as `$`"
    return SchemaError(f"not a path, {fact} at character {position + 1}", where=text, remedy=remedy)


def _integer(text: str, match: re.Match[str]) -> int:
    try:
        return int(match.group())
    except ValueError:  # more digits than Python converts
        raise _no_path(text, match.start(), "a number of too many digits") from None


def _literal(text: str, position: int) -> tuple[object, int]:
    """A key as `repr` writes it, and where it ends."""
    if match := _QUOTED.match(text, position):
        inner = match.group(2) if match.group(2) is not None else match.group(3)
        try:
            value = _ESCAPE.sub(_unescaped, inner)
            return (value.encode("latin-1") if match.group(1) else value), match.end()
        except (KeyError, UnicodeEncodeError):
            raise _no_path(text, position, "an unknown escape in quotes") from None
    for name, constant in _CONSTANTS:
        if text.startswith(name, position):
            return constant, position + len(name)
    match = _NUMBER.match(text, position)
    if match and text[match.end() : match.end() + 1] in ("]", ",", ")"):
        return _integer(text, match), match.end()
    if match := _FLOAT.match(text, position):
        return float(match.group()), match.end()
    if text[position : position + 1] == "(" and text.count("(", 0, position) < 64:
        items: list[object] = []
        position += 1
        while text[position : position + 1] != ")":
            item, position = _literal(text, position)
            items.append(item)
            if text[position : position + 1] == ",":
                position += 1 if text[position + 1 : position + 2] == ")" else 2
            elif text[position : position + 1] != ")":
                raise _no_path(text, position, "expected `,` or `)`")
        return tuple(items), position + 1
    raise _no_path(text, position, "expected a number, or text in quotes")


def _unescaped(match: re.Match[str]) -> str:
    code = match.group(1) or match.group(2) or match.group(3)
    return chr(int(code, 16)) if code else _ESCAPED[match.group(4)]


def value_at(root: Any, steps: Sequence[object]) -> Any:
    """The value at a path of a tree of plain data; `ABSENT` where there is none."""
    for step in steps:
        root = _inside(root, step)
        if root is ABSENT:
            break
    return root


def _inside(value: Any, step: object) -> Any:
    if type(value) is dict:
        if step in value:
            return value[step]
        return value.get(str(step), ABSENT) if type(step) is int else ABSENT
    if type(value) is list and type(step) is int and -len(value) <= step < len(value):
        return value[step]
    return ABSENT


def nearest(root: Any, steps: Sequence[object]) -> str:
    """How far a path leads in a tree of plain data, and what is there: a remedy for an error about a path at which nothing is."""
    known = 0
    while known < len(steps) and value_at(root, steps[: known + 1]) is not ABSENT:
        known += 1
    node, place = value_at(root, steps[:known]), path_text(steps[:known])
    if type(node) is list:
        return f"`{place}` is a list of {len(node):,}"
    if type(node) is not dict:
        return f"`{place}` is {abridged(node)}"
    names = [key if type(key) is str and _BARE.fullmatch(key) else abridged(key) for key in node]
    missing = str(steps[known]) if known < len(steps) else ""
    shown = difflib.get_close_matches(missing, names[:1000], n=3, cutoff=0.6) or names[:12]
    rest = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return f"`{place}` holds {', '.join(shown) or 'nothing'}{rest}"


# --- one value of a message ------------------------------------------------------------------------------------------


class _Stage(NamedTuple):
    """Decodes what lies behind `depth` fields, each in the one before; `step` is then picked out of undecoded items, if there is one."""

    decoder: msgspec.msgpack.Decoder[Any]
    depth: int
    step: object = None
    picks: bool = False


_Way: TypeAlias = Literal["field", "key", "index"]


class Extractor:
    """The value at one path of encoded messages, at the cost of skipping what is not on it instead of decoding it.

    A call gives exactly what `value_at(Codec().decode(message, has_ext), path)` does, and raises what that raises (though what is skipped
    may be malformed: read messages whose checksums hold). The first message is decoded whole, to learn where a number is an index and
    where it is a key; so is each one later that is built otherwise. Not thread-safe.
    """

    def __init__(self, path: Sequence[object]) -> None:
        self.steps = tuple(path)
        self._codec = Codec()
        self._ways: tuple[_Way, ...] | None = None
        self._stages: dict[bool, tuple[_Stage, ...]] = {}

    def __call__(self, message: bytes | bytearray, has_ext: bool = False) -> Any:
        """The value in one message, as plain data; `ABSENT` where there is none."""
        # Where the stack may be small, the codec looks at the depth before it decodes; skipping recurses as decoding does.
        if self._ways is not None and stack_is_ample():
            if has_ext not in self._stages:
                self._stages[has_ext] = _stages(self.steps, self._ways, msgspec.Raw if has_ext else Any)
            try:
                return self._skim(message, has_ext)
            except (msgspec.DecodeError, RecursionError):
                pass  # built otherwise on the way to the value, or malformed, which the codec explains
        root = self._codec.decode(message, has_ext)
        self._learn(root)
        return value_at(root, self.steps)

    def _learn(self, root: Any) -> None:
        ways: list[_Way] = []
        for step in self.steps:
            if type(step) is str:
                ways.append("field" if _can_be_field(step) else "key")
            elif type(step) is int:
                ways.append("key" if type(root) is dict else "index")
            else:
                return  # a key of another type: every message is decoded
            root = _inside(root, step)
        # Without a step, what is asked for is all of it.
        if ways and tuple(ways) != self._ways:
            self._ways = tuple(ways)
            self._stages.clear()

    def _skim(self, message: bytes | bytearray, has_ext: bool) -> Any:
        data: Any = message
        found: Any = ABSENT
        for stage in self._stages[has_ext]:
            found = stage.decoder.decode(data)
            for _ in range(stage.depth):
                if found is None or found is msgspec.UNSET:
                    return ABSENT
                found = found.value
            if found is msgspec.UNSET:
                return ABSENT
            if stage.picks:
                data = _inside(found, stage.step)
                if data is ABSENT:
                    return ABSENT
        return self._codec.decode(bytes(found), has_ext) if has_ext else found


def _can_be_field(name: str) -> bool:
    """Whether msgspec takes `name` for that of a field."""
    return name.isprintable() and not any(c in '"\\' for c in name)


def _stages(steps: Steps, ways: tuple[_Way, ...], kind: Any) -> tuple[_Stage, ...]:
    """How to get at the value at `steps`, which is then of `kind`."""
    stages: list[_Stage] = []
    names: list[object] = []
    for step, way in zip(steps, ways, strict=True):
        if way == "field":
            names.append(step)
            continue
        items = list[msgspec.Raw] if way == "index" else dict[int | str, msgspec.Raw]
        stages.append(_Stage(msgspec.msgpack.Decoder(_nested(names, items | None)), len(names), step, picks=True))
        names = []
    stages.append(_Stage(msgspec.msgpack.Decoder(_nested(names, kind)), len(names)))
    return tuple(stages)


def _nested(names: list[object], kind: Any) -> Any:
    """A Struct that knows the first of `names` alone, in which one knows the second, and so on; the last holds a `kind`. None passes as well."""
    for name in reversed(names):
        kind = msgspec.defstruct("Step", [("value", kind, msgspec.UNSET)], rename={"value": str(name)}, gc=False) | None
    return kind
