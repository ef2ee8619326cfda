"""The JSON twin: the same data as text, as the replaced module wrote it, and back.

The standard library's parser and writer on purpose: they read what msgspec's refuse (bare NaN and Infinity, a byte order mark,
escapes of lone surrogates), and `json.dumps(ensure_ascii=False, indent=2)` is by definition what a `checkpoint.json` looks like.
"""

from __future__ import annotations

import json
import re
import warnings
from typing import Any, Literal

import msgspec

from .codec import convert, stack_is_ample
from .errors import CheckpointWarning, EncodeError, JsonError, LimitError
from .tree import MAX_DEPTH, abridged, article, fields_of, is_container, path_text, plain_scalar, saved_fields, shallow_enough, type_name

__all__ = ["from_json", "to_json"]

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
# Strings as a whole, so that brackets inside them do not count; what is no string and no bracket is skipped.
_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{\]}]', re.DOTALL)


def to_json(obj: Any, *, indent: int | None = 2) -> bytes:
    """`obj` as JSON in UTF-8, byte for byte as `json.dumps(obj, ensure_ascii=False, indent=2)` writes plain data (`indent=None`: on one line).

    Structs, dataclasses and attrs objects become objects, sets and tuples arrays, bytes base64, dates and times ISO 8601,
    Enums their value: what `from_json` with the type turns back. Keys that are numbers, bools or None become text, as
    `json.dumps` does. NaN and the infinities are written as `NaN`, `Infinity` and `-Infinity`, lone surrogates as escapes.

    Raises `EncodeError` naming the path of what JSON cannot say: two keys that become one text, a key that is no scalar, text
    in which two lone surrogates would read back as one character, an object that is no data, more than 256 levels.
    """
    try:
        text = json.dumps(_jsonable(obj, []), ensure_ascii=False, indent=indent)
    except RecursionError:
        raise EncodeError("no stack left to write JSON", remedy="call from a shallower place, or raise sys.setrecursionlimit") from None
    except EncodeError:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise EncodeError(f"JSON cannot hold it ({error})", remedy="store such an integer as text in hex") from error
    # Only lone surrogates do not encode, and Python's escape for one is JSON's.
    return text.encode("utf-8", "backslashreplace")


def _jsonable(value: Any, steps: list[object]) -> Any:
    kind = type(value)
    if kind is str:
        if not value.isascii() and _PAIR.search(value):
            raise EncodeError(
                "JSON reads two lone surrogates in a row as one character", where=path_text(steps), remedy="keep this state in the binary file"
            )
        return value
    if kind in (int, float, bool, type(None)):
        return value
    if len(steps) >= MAX_DEPTH and is_container(value):
        raise EncodeError(f"nested deeper than {MAX_DEPTH} levels, or a cycle", where=path_text(steps[:8]) + "…", remedy="flatten it")
    # Loops, not comprehensions: one frame a level, and 256 levels must fit the interpreter's default limit.
    result: dict[str, Any] = {}
    if isinstance(value, dict):
        for key, item in value.items():
            name = _key(key, steps)
            if name in result:
                raise EncodeError(f"two keys of this dict are {abridged(name)} in JSON", where=path_text(steps), remedy="rename one of them")
            steps.append(key)
            result[name] = _jsonable(item, steps)
            steps.pop()
        return result
    if isinstance(value, (list, tuple, set, frozenset)):
        items = []
        for index, item in enumerate(value):
            steps.append(index)
            items.append(_jsonable(item, steps))
            steps.pop()
        return items
    if fields_of(value) is not None:
        names, result = saved_fields(value, steps)
        for attribute, name in names.items():
            steps.append(attribute)
            result[name] = _jsonable(result[name], steps)
            steps.pop()
        return result
    plain = plain_scalar(value)
    if plain is not value:
        return _jsonable(plain, steps)
    try:
        scalar = msgspec.to_builtins(value)
    except TypeError:
        raise EncodeError(f"JSON cannot say {article(type_name(kind))}", where=path_text(steps), remedy="store plain data") from None
    return scalar if type(scalar) in (str, int, float, bool, type(None)) else _jsonable(scalar, steps)


def _key(key: Any, steps: list[object]) -> str:
    """A key as `json.dumps` writes it."""
    if type(key) is str:
        return str(_jsonable(key, steps))
    plain = plain_scalar(key)
    if type(plain) is str:
        return plain
    if plain is True or plain is False or plain is None:
        return json.dumps(plain)
    if type(plain) in (int, float):
        return json.dumps(plain)
    scalar = _jsonable(plain, steps) if not isinstance(plain, (tuple, frozenset)) and fields_of(plain) is None else None
    if type(scalar) in (str, int):
        return str(scalar)
    raise EncodeError(f"{article(type_name(type(key)))} cannot be a key in JSON", where=path_text(steps), remedy="keep this state in the binary file")


def from_json(
    data: bytes | str, type: Any = Any, *, path: str = "", encoding: str | None = None, duplicates: Literal["warn", "refuse"] = "warn"
) -> Any:
    """What JSON text says, as `type`. Bytes are UTF-8 (with or without a byte order mark), UTF-16 or UTF-32, or `encoding`.

    Of a key that occurs twice in an object the last value is kept, as `json.loads` does, with a `CheckpointWarning`, or
    refused. NaN, Infinity and -Infinity are read. `path` only words errors.

    Raises `JsonError` with line and column (empty, malformed, not in that encoding, a refused duplicate), `LimitError` (more
    than 256 levels), `SchemaError` (does not fit `type`).
    """
    text = data if isinstance(data, str) else _text(data, path, encoding)
    if not stack_is_ample():
        _scan_depth(text, path)
    doubled: list[tuple[str, dict[str, Any]]] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            seen: set[str] = set()
            doubled.append((next(key for key, _ in items if key in seen or seen.add(key)), result))  # type: ignore[func-returns-value]
        return result

    try:
        plain = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise _malformed(error, text, path) from error
    except RecursionError as error:
        raise LimitError("nested too deeply", limit=MAX_DEPTH, path=path) from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise JsonError(f"not readable as JSON ({error})", path=path) from error
    if not shallow_enough(plain):
        raise LimitError("nested too deeply", limit=MAX_DEPTH, path=path)
    if doubled:
        key, holder = doubled[0]
        fact = f"the key {abridged(key)} occurs twice in the object at `{_find(plain, holder)}`"
        if duplicates == "refuse":
            raise JsonError(fact, path=path, remedy="only one of the values can be kept: remove the other")
        warnings.warn(f"{fact}{f' in {path}' if path else ''}; the last one is kept", CheckpointWarning, stacklevel=2)
    return convert(plain, type, path=path, str_keys=True)


def _text(data: bytes, path: str, encoding: str | None) -> str:
    # json.detect_encoding tells UTF-8, -16 and -32 apart by the byte order mark or by the zeros in the first bytes (RFC 4627).
    name = encoding or json.detect_encoding(data)
    if encoding is not None and not data.isascii() and _is_utf8(data) and "utf" not in encoding.lower():
        # In another encoding it would be other characters, and nobody would be told.
        raise JsonError(f"it is UTF-8, not {encoding}", path=path, remedy="leave out the encoding (or convert the file first, if you are sure)")
    try:
        # Lone surrogates in UTF-8 bytes are no UTF-8, but json.loads takes them, and so a file may have been used with them.
        text = data.decode(name, "surrogatepass" if name.lower().startswith("utf") else "strict")
    except UnicodeDecodeError as error:
        bad = data[error.start]
        remedy = (
            "give the encoding that it was written in (a Chinese Windows writes gbk: --encoding gbk)"
            if encoding is None
            else "give another --encoding"
        )
        raise JsonError(f"not {name.upper()}: byte 0x{bad:02x} at offset {error.start}", path=path, remedy=remedy) from error
    except LookupError as error:
        raise JsonError(f"no such encoding as {name!r}", path=path, remedy="give one that Python knows, e.g. gbk") from error
    return text.removeprefix("\ufeff")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _scan_depth(text: str, path: str) -> None:
    # The standard parser recurses in C, and a thread's small stack may end before the interpreter's limit does.
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _BRACKET.finditer(text):
        token = match.group()
        if token in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise LimitError("nested too deeply", limit=MAX_DEPTH, path=path)
        elif token in "]}":
            depth -= 1


def _malformed(error: json.JSONDecodeError, text: str, path: str) -> JsonError:
    if not text.strip():
        return JsonError("the file is empty" if path else "no JSON: the text is empty", path=path, remedy="restore it from a backup")
    fact, remedy = f"malformed JSON ({error.msg})", "restore it from a backup, or mend it by hand"
    if error.msg == "Extra data":
        fact, remedy = "more than one JSON document (JSON Lines?)", "a checkpoint is one document"
    elif error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        fact = "the JSON ends in the middle"
    return JsonError(fact, path=path, line=error.lineno, column=error.colno, remedy=remedy)


def _find(root: Any, holder: dict[str, Any]) -> str:
    """The path of an object by its identity."""
    stack: list[tuple[Any, tuple[object, ...]]] = [(root, ())]
    while stack:
        node, steps = stack.pop()
        if node is holder:
            return path_text(steps)
        if isinstance(node, dict):
            stack.extend((child, (*steps, key)) for key, child in node.items())
        elif isinstance(node, list):
            stack.extend((child, (*steps, index)) for index, child in enumerate(node))
    return "$"
