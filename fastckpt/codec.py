"""Objects to one msgpack document and back, lossless or refused by name.

Encoding is one `msgspec` call without a hook: no Python code runs meanwhile, so the bytes are a consistent snapshot even
while other threads change the state. Only what msgspec refuses (integers beyond 64 bits, lone surrogates, NumPy scalars,
subclasses of str, int and float) takes the slow path: a plain copy, then the same hook-free call. What encodes but would
come back different is found by `Codec.check`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import hashlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from .errors import CorruptError, EncodeError, LimitError, MissingFieldError, SchemaError
from .tree import (
    EXT_INT,
    EXT_MAP,
    EXT_TEXT,
    MAX_DEPTH,
    REFUSED,
    Difference,
    Places,
    PlainCopy,
    difference,
    patched,
    path_text,
    places_of,
    shallow_enough,
    type_name,
)

__all__ = ["Codec", "Encoded", "convert", "describe", "different", "pack_meta", "stack_is_ample", "unpack_meta", "unreadable"]


class Encoded(NamedTuple):
    """One msgpack document, never changed once made, and whether it holds Ext values of ours."""

    message: bytes | bytearray
    has_ext: bool


_ENCODER = msgspec.msgpack.Encoder()


def _encoded(obj: Any) -> bytearray:
    # Not `encode`: where memory ends while the bytes that it makes grow, msgspec crashes; a bytearray raises MemoryError.
    message = bytearray()
    _ENCODER.encode_into(obj, message)
    return message


class Codec:
    """Encodes and decodes states of one type.

    With `compact` its messages take no more memory than their length, for who holds them from one save to the next: msgspec lets its
    buffer grow by half whenever it is full, and leaves what is not needed to the message. So each is encoded into a buffer of its own,
    a little longer than the message before it, which takes a fifth less time as well (measured on 1.6 and 16 MB). Not thread-safe.

    Raises `SchemaError` when `type` cannot come back: a type that msgspec cannot decode, an `InitVar`, a field with
    `init=False`, a Struct with `array_like` (a reordering of its fields would swap values) or `omit_defaults` (a changed
    default would rewrite history).
    """

    def __init__(self, type: Any = Any, *, compact: bool = False) -> None:
        self.type = type
        self.type_name, self.schema = describe(type)
        self._encode: Callable[[Any], bytes | bytearray] = self._encode_compact if compact else _encoded
        self._room = self._length = 0  # of the next message, as far as it can be told, and of the last one
        self._decoder = msgspec.msgpack.Decoder(type)
        self._places: Places | None = {}

    def encode(self, obj: Any, *, shallow: bool = False) -> Encoded:
        """`obj` as one msgpack document. `shallow`: the caller has seen to it that it nests at most 256 deep.

        Raises `EncodeError` naming the path, the type and the mend; `obj` is never changed. What msgspec refuses and we
        store all the same is remembered by its place, so that the next encode costs little more than one without it.
        """
        if not shallow and not stack_is_ample() and not shallow_enough(obj):
            PlainCopy().copy(obj)  # raises, with the path
        try:
            if self._places != {}:
                copier = PlainCopy()
                plain = patched(obj, self._places, copier)
                return Encoded(self._encode(plain), copier.has_ext)
            return Encoded(self._encode(obj), False)
        except (*REFUSED, RuntimeError):
            return self._encode_copy(obj)

    def _encode_compact(self, obj: Any) -> bytearray:
        message, last = bytearray(self._room), self._length
        _ENCODER.encode_into(obj, message)
        self._length = len(message)
        # Room for as much growth as there was the last time (of the first one it is not known), in steps, so that what one message leaves
        # free is of the size that the next one asks for.
        growth = max(self._length - last, 0) if last else self._length // 10
        step = 1 << max(12, self._length.bit_length() - 7)
        self._room = ((self._length + growth) // step + 2) * step
        # The first one had to grow. A later one that outgrows its room stays so, up to half too large: a copy would take more at once.
        return message if last else message[:]

    def _encode_copy(self, obj: Any) -> Encoded:
        copier = PlainCopy()
        try:
            plain = copier.copy(obj)
            self._places = places_of(copier.odd) if copier.odd else {}
            return Encoded(self._encode(plain), copier.has_ext)
        except EncodeError:
            raise
        except RecursionError:
            raise EncodeError("no stack left to walk the state", remedy="save from a shallower call, or raise sys.setrecursionlimit") from None
        except (*REFUSED, RuntimeError) as error:  # RuntimeError: "dictionary changed size during iteration"
            raise EncodeError(
                f"the state cannot be encoded, or another thread changed it meanwhile ({error})", remedy="hold a lock around changes and saves"
            ) from error

    def decode(self, message: bytes | bytearray, has_ext: bool = False, *, path: str = "") -> Any:
        """The object that `message` encodes, as this codec's type.

        Raises `SchemaError` (`MissingFieldError` where a field is missing) when the data does not fit the type, `LimitError`
        when it nests deeper than 256 levels or memory ends, `CorruptError` when it is no msgpack document.
        """
        if not stack_is_ample():
            _scan_depth(message)
        with _explained(path, len(message)):
            if has_ext:
                return convert(_uncollected(len(message), _untyped, message), self.type, path=path)
            try:
                return _uncollected(len(message), self._decoder.decode, message)
            except msgspec.ValidationError as error:
                # Decoded plainly first: behind the place that does not fit, the document may be malformed.
                raise _misfit(error, self.type, _untyped(message), path) from error

    def check(self, obj: Any, encoded: Encoded) -> None:
        """Decode `encoded` and compare it with `obj`, value and exact type: proof that what was saved comes back.

        Raises `EncodeError` naming the first path that would not, both types, and the mend.
        """
        if (found := self.compare(obj, encoded)) is not None:
            raise different(found)

    def compare(self, obj: Any, encoded: Encoded) -> Difference | None:
        """As `check`, but what comes back different is returned; `EncodeError` only for what does not come back at all."""
        try:
            loaded = self.decode(*encoded)
        except (SchemaError, LimitError, CorruptError) as error:
            raise unreadable(error) from error
        try:
            return difference(obj, loaded, lenient=True)
        except RecursionError:
            raise EncodeError("no stack left to check the state", remedy="save from a shallower call, or raise sys.setrecursionlimit") from None


def different(found: Difference) -> EncodeError:
    """The error for a value that would come back different."""
    mend = "save plain data there (lists, dicts, text, numbers)"
    if found.annotation:
        mend = f"annotate its field as `{found.annotation}`, or {mend}"
    return EncodeError(found.reason, where=found.where, remedy=mend)


def unreadable(error: SchemaError | LimitError | CorruptError) -> EncodeError:
    """The error for a value that encodes and that no load could read."""
    where = getattr(error, "where", "") or "$"
    return EncodeError(f"no load could read this back: {error.fact}", where=where, remedy="change the value, or the annotation of its field")


def convert(plain: Any, type: Any, *, path: str = "", str_keys: bool = False, strict: bool = True) -> Any:
    """Plain data as `type`: `msgspec.convert` with our errors, which name dict keys too.

    Raises `SchemaError`, `MissingFieldError`.
    """
    if type is Any:
        return plain
    with _explained(path, 0):
        try:
            return _uncollected(_PAUSE_FROM, msgspec.convert, plain, type, strict=strict, str_keys=str_keys)
        except msgspec.ValidationError as error:
            raise _misfit(error, type, copy.deepcopy(plain), path, str_keys=str_keys, strict=strict) from error
        except UnicodeEncodeError as error:
            raise SchemaError("text with a lone surrogate where the type allows no free text", path=path) from error


@contextmanager
def _explained(path: str, size: int) -> Iterator[None]:
    """What msgspec raises for bytes that are no document, too deep or too much becomes an error of ours."""
    try:
        yield
    except msgspec.DecodeError as error:
        raise CorruptError(f"not a msgpack document ({error})", path=path) from error
    except RecursionError as error:
        raise LimitError("nested too deeply", limit=MAX_DEPTH, path=path) from error
    except MemoryError as error:
        raise LimitError("no memory to decode it", limit=size, path=path) from error


# Up to 3.11 the cyclic collector runs inside a call that makes many objects, of which none is garbage: 1.4 s instead of 0.6 for 1.8 million
# lists and objects. From 3.12 on it waits for the call's end by itself.
_INTERRUPTS = sys.version_info < (3, 12)
# A small message has hardly a collection in it, and what pauses the collector is seen by all threads.
_PAUSE_FROM = 1 << 20
_pausing: set[int] = set()  # threads


def _uncollected(size: int, make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What `make` gives of a message of `size` bytes, without a cyclic collection in the middle. The collector is left as it was."""
    if not _INTERRUPTS or size < _PAUSE_FROM or not gc.isenabled():
        return make(*arguments, **options)
    # Switched off inside the `try`, and on again first: no interrupt comes in between, and a child forked meanwhile does it for itself.
    try:
        _pausing.add(threading.get_ident())
        gc.disable()
        return make(*arguments, **options)
    finally:
        gc.enable()
        _pausing.discard(threading.get_ident())


def _in_a_child() -> None:
    """A thread that had switched the collector off is not there to switch it on again."""
    if _pausing:
        gc.enable()
        _pausing.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)


def pack_meta(meta: dict[str, Any] | None, what: str = "meta") -> msgspec.Raw:
    """Small plain data for a record's header. Raises `EncodeError` for what would not come back."""
    if not meta:
        return msgspec.Raw(b"\x80")
    try:
        packed = msgspec.msgpack.encode(meta)
        found = difference(meta, msgspec.msgpack.decode(packed))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EncodeError(f"the metadata cannot be saved ({error})", where=what, remedy="keep it plain data") from error
    if found is not None or any(key.__class__ is not str for key in meta):
        where, reason = (found.where, found.reason) if found else ("$", "a key is not text")
        raise EncodeError(f"the metadata would not come back: {reason}", where=where.replace("$", what, 1), remedy="keep it plain data")
    return msgspec.Raw(packed)


def unpack_meta(raw: msgspec.Raw, *, path: str = "", offset: int | None = None) -> dict[str, Any]:
    """What `pack_meta` packed. Raises `CorruptError` for anything else."""
    try:
        if not stack_is_ample():
            _scan_depth(bytes(raw))
        return msgspec.msgpack.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, LimitError) as error:
        raise CorruptError(f"malformed metadata ({error})", path=path, offset=offset) from error


# --- Ext values ------------------------------------------------------------------------------------------------------


def _untyped(message: bytes | bytearray) -> Any:
    """Plain data with the Ext values resolved. Raises `msgspec.DecodeError`.

    A map that is an Ext is put into the tree empty and filled afterwards, one after the other, so that maps inside maps need
    no stack.
    """
    unfilled: list[tuple[dict[Any, Any], bytes, int]] = []
    depth = 0

    def ext_hook(code: int, data: memoryview) -> Any:
        if code == EXT_INT:
            return int.from_bytes(data, "big", signed=True)
        if code == EXT_TEXT:
            return bytes(data).decode("utf-8", "surrogatepass")
        if code == EXT_MAP:
            if depth >= MAX_DEPTH:
                raise LimitError("nested too deeply", limit=MAX_DEPTH)
            unfilled.append(({}, bytes(data), depth + 1))
            return unfilled[-1][0]
        raise msgspec.DecodeError(f"unknown Ext code {code}")

    try:
        root = msgspec.msgpack.decode(message, ext_hook=ext_hook)
        while unfilled:
            mapping, data, depth = unfilled.pop()
            parts = msgspec.msgpack.decode(data, ext_hook=ext_hook)
            if type(parts) is not list or len(parts) % 2:
                raise msgspec.DecodeError("an Ext map that is no array of pairs")
            mapping.update(zip(map(_hashable, parts[::2]), parts[1::2], strict=True))
    except (UnicodeDecodeError, TypeError) as error:  # no surrogates after all; a key that cannot be one
        raise msgspec.DecodeError(f"malformed Ext value: {error}") from error
    return root


def _hashable(key: Any) -> Any:
    """A key out of an array: msgspec makes tuples of the arrays in ordinary keys, and so do we here."""
    return tuple(map(_hashable, key)) if type(key) is list else key


# --- depth -----------------------------------------------------------------------------------------------------------


def stack_is_ample() -> bool:
    """Whether msgspec's own recursion ends in RecursionError here, and not in a crash.

    Its recursion is bounded by the interpreter's limit, which fits the main thread's stack (8 MiB) up to 10,000 levels;
    CPython 3.12 and later bound it in C. Another thread may have been given any stack (990 levels of decoding overflow 256 KiB,
    measured), unless it says that it has an `ample_stack`. Where it is not known, the depth is looked at first.
    """
    thread = threading.current_thread()
    if thread is not threading.main_thread() and not getattr(thread, "ample_stack", False):
        return False
    return sys.version_info >= (3, 12) or sys.getrecursionlimit() <= 10_000


def _scan_depth(message: bytes | bytearray) -> None:
    """Raise `LimitError` where `message` nests deeper than `MAX_DEPTH`; malformed bytes are left to the decoder.

    Iterative, so that it needs no stack. The payload of a map Ext is scanned in place: its bytes are what is decoded.
    """
    open_items: list[int] = []
    left, position = 1, 0
    try:
        while True:
            while not left:
                if not open_items:
                    return
                left = open_items.pop()
            left -= 1
            byte = message[position]
            if byte < 0x80 or byte >= 0xE0 or 0xC0 <= byte <= 0xC3:
                position += 1
                continue
            items = 0
            if byte < 0xA0:  # fixmap, fixarray
                items = 2 * (byte & 15) if byte < 0x90 else byte & 15
                position += 1
            elif byte < 0xC0:
                position += 1 + (byte & 31)
                continue
            elif byte in (0xDC, 0xDE):
                items = int.from_bytes(message[position + 1 : position + 3], "big") * (1 if byte == 0xDC else 2)
                position += 3
            elif byte in (0xDD, 0xDF):
                items = int.from_bytes(message[position + 1 : position + 5], "big") * (1 if byte == 0xDD else 2)
                position += 5
            else:
                head, length_bytes = _SCALARS[byte]
                code = position + 1 + length_bytes
                size = int.from_bytes(message[position + 1 : code], "big") if length_bytes else head
                if 0xC7 <= byte <= 0xC9 or 0xD4 <= byte <= 0xD8:  # Ext: the code, then the payload
                    if message[code] == EXT_MAP:
                        position = code + 1
                        left += 1  # its array of pairs stands in its place
                    else:
                        position = code + 1 + size
                else:
                    position = code + size
                continue
            open_items.append(left)
            left = items
            if len(open_items) > MAX_DEPTH:
                raise LimitError("nested too deeply", limit=MAX_DEPTH)
    except IndexError:
        return


# Byte → (payload size, or 0 where the size follows; bytes of that size field), for what is neither container nor one byte.
_SCALARS: Final = {
    0xC4: (0, 1), 0xC5: (0, 2), 0xC6: (0, 4), 0xC7: (0, 1), 0xC8: (0, 2), 0xC9: (0, 4), 0xCA: (4, 0), 0xCB: (8, 0), 0xCC: (1, 0), 0xCD: (2, 0),
    0xCE: (4, 0), 0xCF: (8, 0), 0xD0: (1, 0), 0xD1: (2, 0), 0xD2: (4, 0), 0xD3: (8, 0), 0xD4: (1, 0), 0xD5: (2, 0), 0xD6: (4, 0), 0xD7: (8, 0),
    0xD8: (16, 0), 0xD9: (0, 1), 0xDA: (0, 2), 0xDB: (0, 4),
}  # fmt: skip


# --- types -----------------------------------------------------------------------------------------------------------


def describe(type: Any) -> tuple[str, str]:
    """The name of `type` and its fingerprint (BLAKE2b-64 of its structure, in hex); both empty for Any.

    Raises `SchemaError` for what `Codec` refuses.
    """
    if type is Any:
        return "", ""
    try:
        return _described(type)
    except TypeError:  # an annotation that cannot be hashed, such as Annotated[int, {}]
        return _described.__wrapped__(type)


@functools.lru_cache(maxsize=256)
def _described(type: Any) -> tuple[str, str]:
    try:
        msgspec.msgpack.Decoder(type)
        info = inspect.type_info(type)
    except (TypeError, NameError, RecursionError) as error:
        raise SchemaError(f"the type {_type_text(type)} cannot be decoded: {error}", remedy="give a type that msgspec supports") from error
    seen: dict[Any, str] = {}
    text = _describe(info, (), seen)
    structure = "\n".join([text, *sorted(seen.values())])
    return _type_text(type), hashlib.blake2b(structure.encode(), digest_size=8).hexdigest()


def _type_text(type: Any) -> str:
    return f"{type.__module__}:{type.__qualname__}" if hasattr(type, "__qualname__") and not hasattr(type, "__args__") else str(type)


def _describe(info: inspect.Type, steps: tuple[object, ...], seen: dict[Any, str]) -> str:
    """One line of the structure; of a class its name, with its own line in `seen`."""
    kind = info.__class__.__name__.removesuffix("Type").lower()
    if isinstance(info, (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)):
        name = _type_text(info.cls)
        if info.cls not in seen:
            seen[info.cls] = ""
            _refuse(info, steps)
            fields = [
                f"{field.encode_name}{'' if field.required else '?'}: {_describe(field.type, (*steps, field.name), seen)}" for field in info.fields
            ]
            seen[info.cls] = f"{kind} {name} {getattr(info, 'tag', None)!r} {{{', '.join(fields)}}}"
        return name
    if isinstance(info, inspect.UnionType):
        return " | ".join(_describe(item, steps, seen) for item in info.types)
    if isinstance(info, inspect.DictType):
        return f"dict[{_describe(info.key_type, (*steps, '*'), seen)}, {_describe(info.value_type, (*steps, '*'), seen)}]"
    if isinstance(info, inspect.TupleType):
        return f"tuple[{', '.join(_describe(item, (*steps, index), seen) for index, item in enumerate(info.item_types))}]"
    if isinstance(info, inspect.CollectionType):
        return f"{kind}[{_describe(info.item_type, (*steps, '*'), seen)}]"
    if isinstance(info, (inspect.CustomType, inspect.RawType, inspect.ExtType)):
        cls = getattr(info, "cls", msgspec.Raw if isinstance(info, inspect.RawType) else msgspec.msgpack.Ext)
        if not issubclass(dict, cls):  # object, Hashable, …: what any plain value is an instance of
            raise SchemaError(
                f"a field of type {type_name(cls)} cannot come back",
                where=path_text(steps),
                remedy="use plain data, a dataclass or a msgspec.Struct there",
            )
        return "any"
    if isinstance(info, inspect.EnumType):
        return f"enum {_type_text(info.cls)}"
    if isinstance(info, inspect.LiteralType):
        return f"literal {info.values!r}"
    return kind


def _refuse(info: Any, steps: tuple[object, ...]) -> None:
    cls = getattr(info.cls, "__origin__", info.cls)
    where, name = path_text(steps), type_name(cls)
    if isinstance(info, inspect.StructType):
        config = cls.__struct_config__
        if config.array_like:
            raise SchemaError(
                f"{name} is an `array_like` Struct: reordering its fields would swap saved values",
                where=where,
                remedy="save it as a map (array_like=False)",
            )
        if config.omit_defaults:
            raise SchemaError(f"{name} omits defaults: changing a default would rewrite history", where=where, remedy="set omit_defaults=False")
    elif isinstance(info, inspect.DataclassType):
        lost = (
            [f.name for f in dataclasses.fields(cls) if not f.init]
            if dataclasses.is_dataclass(cls)
            else [a.name for a in getattr(cls, "__attrs_attrs__", ()) if not a.init or a.name.startswith("_")]
        )
        if lost:
            raise SchemaError(
                f"the field `{lost[0]}` of {name} is not a parameter of its __init__, so it cannot come back",
                where=where,
                remedy="make it one (init=True, no leading underscore)",
            )


# --- errors that name the place --------------------------------------------------------------------------------------

_AT = re.compile(r" - at (?:`(key|tag)` in )?`(\$.*)`$")
_MISSING = re.compile(r"Object missing required field `(.*)`$")
_STEP = re.compile(r"\[\.\.\.\]|\[(\d+)\]|\.([^.\[]+)")


def _misfit(error: msgspec.ValidationError, type: Any, document: Any, path: str, **options: Any) -> SchemaError:
    """The `SchemaError` for what msgspec found; its `[...]`, which hides a dict's key, is replaced by the key."""
    text = str(error)
    match = _AT.search(text)
    fact = text[: match.start()] if match else text
    where = match.group(2) if match else "$"
    if match and "[...]" in where:
        where = _where(where, text, type, document, options)
    fact = fact[:1].lower() + fact[1:]
    if missing := _MISSING.match(text[: match.start()] if match else text):
        return MissingFieldError(
            missing.group(1), where=where, path=path, remedy="the type asks for it: give it a default there, or load with type=Any"
        )
    return SchemaError(fact, where=where, path=path, remedy="load with type=Any to see what is stored")


def _where(where: str, text: str, type: Any, root: Any, options: dict[str, Any]) -> str:
    """The path with keys in place of `[...]`: each dict on it is halved until one entry still gives the same error.

    `root` is a document of its own, which is cut down on the way.
    """

    def fails() -> bool:
        try:
            msgspec.convert(root, type, **options)
        except msgspec.ValidationError as error:
            return str(error) == text
        except (TypeError, ValueError):
            return False
        return False

    node, steps = root, list[object]()
    for match in _STEP.finditer(where):
        step: object = int(match.group(1)) if match.group(1) else match.group(2)
        if match.group() == "[...]":
            if not isinstance(node, dict):
                return where
            entries = list(node.items())
            while len(entries) > 1:
                half = entries[: len(entries) // 2]
                node.clear()
                node.update(half)
                entries = half if fails() else entries[len(entries) // 2 :]
            node.clear()
            node.update(entries)
            step = entries[0][0] if entries else "..."
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):
            # A field under another name than it is saved by, or the bad key itself: as far as it can be followed.
            return path_text([*steps, step])
        steps.append(step)
    return path_text(steps)
