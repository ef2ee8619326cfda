"""The JSON twin: byte for byte the replaced module's text, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from strategies import Box, Colour, Pair, Point, jsonable, typed
from support import assert_same

import fastckpt
from fastckpt import CheckpointWarning, EncodeError, JsonError, LimitError, SchemaError, from_json, to_json
from fastckpt.codec import Codec


def old_text(value: Any) -> bytes:
    """What the replaced module wrote; lone surrogates, at which it crashed, as escapes."""
    return json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "backslashreplace")


@settings(max_examples=500)
@given(jsonable)
def test_json_twin_parity(value: Any) -> None:
    """Whatever JSON can say: the export of what was saved is byte for byte the replaced module's text, and reads back the same."""
    codec = Codec(Any)
    stored = codec.decode(*codec.encode(value))
    text = to_json(stored)
    assert text == old_text(value)
    assert_same(from_json(text), value)


@settings(max_examples=300)
@given(typed())
def test_typed_data_through_json(pair: tuple[Any, Any]) -> None:
    """Typed data comes back through JSON as its type, or is refused by an EncodeError (a key that is no scalar, say)."""
    kind, value = pair
    if "Any" in str(kind) or "bytearray" in str(kind):
        return  # without a type, JSON has no bytes and no keys but text
    try:
        text = to_json(value)
    except EncodeError:
        return
    try:
        assert_same(from_json(text, kind), value)
    except SchemaError:
        assert "dict[" in str(kind)  # a key that is text in JSON and no text in the type


def test_objects_become_json() -> None:
    """Structs, dataclasses, sets, tuples, bytes and Enums become what their type turns back."""
    value = Pair(Box({3: b"\xff"}, "n"), [Point(1, 2.0), Colour.RED])
    assert json.loads(to_json(value)) == {"left": {"value": {"3": "/w=="}, "name": "n"}, "right": [[1, 2.0], "red"], "note": None}


@pytest.mark.parametrize(
    ("value", "says", "where"),
    [
        ({"a": {1: "x", "1": "y"}}, "two keys", "$.a"),
        ({"a": {True: "x", "true": "y"}}, "two keys", "$.a"),
        ({"a": [{(1, 2): 1}]}, "a tuple", "$.a[0]"),
        ({"a": object()}, "an object", "$.a"),
        ({"a": "\ud83d\ude00"}, "surrogates", "$.a"),
        ({"a": {"\ud83d\ude00": 1}}, "surrogates", "$.a"),
        ({"a": [10**5000]}, "digits", "$"),
    ],
)
def test_what_json_cannot_say(value: Any, says: str, where: str) -> None:
    """What would be lost in JSON is refused with its path and a remedy, never written."""
    with pytest.raises(EncodeError) as caught:
        to_json(value)
    assert caught.value.where == where
    assert says in caught.value.fact
    assert caught.value.remedy
    assert str(caught.value).count(" at `") == 1


def test_depth_of_to_json() -> None:
    """256 levels and a cycle: the first is written, the second refused."""
    value: Any = 1
    for _ in range(256):
        value = [value]
    assert to_json(value).count(b"[") == 256
    with pytest.raises(EncodeError):
        to_json([value])
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(EncodeError):
        to_json(cycle)


def test_depth_of_from_json() -> None:
    """256 levels are read, 257 are a LimitError, brackets in text do not count."""
    assert from_json("[" * 256 + "]" * 256) is not None
    with pytest.raises(LimitError):
        from_json("[" * 257 + "]" * 257)
    assert_same(from_json('["' + "[" * 1000 + '\\"["]'), ["[" * 1000 + '"['])


def test_numbers() -> None:
    """Every float and integer that JSON text can hold is read exactly."""
    assert_same(from_json("[NaN, Infinity, -Infinity, -0.0, 5e-324, 1e400, 18446744073709551616, -170141183460469231731687303715884105728, 1.0, 1]"),
                [float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, float("inf"), 2**64, -(2**127), 1.0, 1])  # fmt: skip


def test_duplicate_keys() -> None:
    """A key that occurs twice: the last wins with a warning that names it and its place, or it is refused."""
    text = '{"a": [{"k": 1, "x": 0, "k": 2}]}'
    with pytest.warns(CheckpointWarning, match=r"'k'.*`\$\.a\[0\]`"):
        assert_same(from_json(text), {"a": [{"k": 2, "x": 0}]})
    with pytest.raises(JsonError, match=r"'k'.*`\$\.a\[0\]`"):
        from_json(text, duplicates="refuse")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"), (b"  \n", "empty"), (b'{"a": 1', "ends in the middle"), (b'{"a": [1, 2', "ends in the middle"), (b"{'a': 1}", "line 1 column 2"),
        (b'{"a": 1}\n{"a": 2}\n', "JSON Lines.*line 2 column 1"), (b'{"a":\n  x}', "line 2 column 3"), ('{"a": "中"}'.encode("gbk"), "byte 0x.*--encoding"),
        (b"9" * 5000, "JSON"), (b'{"a": "\x01"}', "line 1"), (b"\xff\xfe{", "UTF-16"),
    ],
)  # fmt: skip
def test_malformed_json(data: bytes, says: str) -> None:
    """What is no JSON is a JsonError that says what and where, on one line."""
    with pytest.raises(JsonError, match=says) as caught:
        from_json(data, path="p.json")
    assert "p.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_encodings() -> None:
    """GBK bytes are read with their encoding given; an encoding that Python does not know is named."""
    assert_same(from_json('{"键": "值"}'.encode("gbk"), encoding="gbk"), {"键": "值"})
    with pytest.raises(JsonError, match="klingon"):
        from_json(b"{}", encoding="klingon")
    with pytest.raises(JsonError, match="another --encoding"):
        from_json(b'"\xff\xff"', encoding="gbk")


def test_an_encoding_that_is_not_needed() -> None:
    """UTF-8 with another encoding given is refused, for it would be read as other characters; ASCII is the same in both."""
    with pytest.raises(JsonError, match="leave out"):
        from_json('{"a": "好人"}'.encode(), encoding="gbk")
    assert_same(from_json(b'{"a": "plain"}', encoding="gbk"), {"a": "plain"})
    assert_same(from_json('{"a": "好人"}'.encode("utf-8-sig"), encoding="utf-8-sig"), {"a": "好人"})


def test_lone_surrogates() -> None:
    """Escapes of lone surrogates are read and written, in values and keys."""
    text = b'{\n  "\\ud800": "a\\udfffb"\n}'
    assert_same(from_json(text), {"\ud800": "a\udfffb"})
    assert to_json(from_json(text)) == text


def test_from_json_with_a_type() -> None:
    """Text keys become the type's keys; what does not fit is a SchemaError with the path down to the key."""
    assert_same(from_json('{"1": ["a"], "2": []}', dict[int, set[str]]), {1: {"a"}, 2: set()})
    with pytest.raises(SchemaError, match=r"`\$\.a\.b`"):
        from_json('{"a": {"x": 1, "b": "no"}}', dict[str, dict[str, int]])


def test_public_names() -> None:
    """`fastckpt.to_json` and `from_json` are these."""
    assert fastckpt.to_json is to_json
    assert fastckpt.from_json is from_json
