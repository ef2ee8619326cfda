"""What changed between two trees, paths as text, and one value out of an encoded message (DESIGN §7, History)."""

from __future__ import annotations

import copy
import functools
import math
import threading
import tracemalloc
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import plain, texts
from support import assert_same, difference, in_child, needs_posix

from fastckpt import CorruptError, LimitError, SchemaError
from fastckpt.changes import Extractor, changes, nearest, parse_path, value_at
from fastckpt.codec import Codec
from fastckpt.tree import ABSENT, path_text

NAN = float("nan")


def places(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """The changes by path."""
    found = list(changes(old, new))
    assert len({change.path for change in found}) == len(found) or any(change.old is ABSENT or change.new is ABSENT for change in found)
    return {change.path: (change.old, change.new) for change in found}


# --- differences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, [("$.b", 2, 3)]),
        ({"a": {"odd key": [1, 2]}}, {"a": {"odd key": [1, 5]}}, [("$.a['odd key'][1]", 2, 5)]),
        ({"a": 1}, {"b": 1}, [("$.a", 1, ABSENT), ("$.b", ABSENT, 1)]),
        ({"a": None}, {}, [("$.a", None, ABSENT)]),
        ({}, {"a": {"b": [1]}}, [("$.a", ABSENT, {"b": [1]})]),
        ({"a": {"b": 1}}, {"a": [1]}, [("$.a", {"b": 1}, [1])]),
        ({"a": []}, {"a": {}}, [("$.a", [], {})]),
        (1, 2, [("$", 1, 2)]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({1: "x", "1": "y"}, {1: "x", "1": "z"}, [("$['1']", "y", "z")]),
        ({("a", 1): 0}, {("a", 1): 1}, [("$[('a', 1)]", 0, 1)]),
        ({NAN: 1}, {NAN: 1}, []),
        ({NAN: 1}, {float("nan"): 2}, [("$[nan]", 1, 2)]),
    ],
)
def test_a_change_is_named_by_its_path(old: Any, new: Any, expected: list[tuple[str, Any, Any]]) -> None:
    """A changed leaf, a key that only one has, and a value that became another kind are one change each, with both values."""
    assert_same([tuple(change) for change in changes(old, new)], expected)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([1, 2], [1, 2, 3, 4], [("$[2]", ABSENT, 3), ("$[3]", ABSENT, 4)]),
        ([1, 2, 3], [0, 1, 2, 3], [("$[0]", ABSENT, 0)]),
        ([1, 2, 3], [1, 3], [("$[1]", 2, ABSENT)]),
        ([], [{"a": 1}], [("$[0]", ABSENT, {"a": 1})]),
        ([1, 2, 3, 4], [2, 3, 4, 5], [("$[0]", 1, ABSENT), ("$[3]", ABSENT, 5)]),
        ([{"id": 1}, {"id": 2}, {"id": 3}], [{"id": 2}, {"id": 3}, {"id": 4}], [("$[0]", {"id": 1}, ABSENT), ("$[2]", ABSENT, {"id": 4})]),
        ([{"id": 1, "n": 0}, {"id": 2}], [{"id": 1, "n": 5}, {"id": 2}, {"id": 3}], [("$[0].n", 0, 5), ("$[2]", ABSENT, {"id": 3})]),
        ([0, 0, 1, 0], [0, 1, 1, 0], [("$[1]", 0, 1)]),
        ([[1], [2]], [[9], [1], [2, 3]], [("$[0]", ABSENT, [9]), ("$[2][1]", ABSENT, 3)]),
        ([0, 0], [0, 0, 0], [("$[2]", ABSENT, 0)]),
        (["a", "b", "c", "d"], ["d", "a", "b", "c"], [("$[0]", ABSENT, "d"), ("$[3]", "d", ABSENT)]),
        (["a", 0, 0], ["b", "c", 0, 0], [("$[0]", "a", "b"), ("$[1]", ABSENT, "c")]),
        (["a", 0, "once", 1], ["b", "c", 0, "once", 2], [("$[0]", "a", "b"), ("$[1]", ABSENT, "c"), ("$[4]", 1, 2)]),
    ],
)
def test_lists_are_matched_by_what_they_share(old: list[Any], new: list[Any], expected: list[tuple[str, Any, Any]]) -> None:
    """What is appended, inserted or taken out of a list is reported, not everything behind it; a bounded buffer shows as one out, one in."""
    assert_same([tuple(change) for change in changes(old, new)], expected)


@pytest.mark.parametrize(
    ("old", "new"),
    [(1, 1.0), (1, True), (1.0, True), (0.0, -0.0), (0, False), ("1", 1), (b"a", "a"), (2**64, 2.0**64), (None, False), ("\ud800", "\ud801")],
)
@pytest.mark.parametrize(
    "around",
    [lambda x: x, lambda x: [x], lambda x: {"a": {"b": x}}, lambda x: [[0, {"a": x}], 1], lambda x: {"big": 2**70, "\ud800": [x], 3: 4}],
    ids=["itself", "list", "dict", "mixed", "what msgpack lacks"],
)
def test_values_that_compare_equal_are_told_apart(old: Any, new: Any, around: Any) -> None:
    """1, 1.0 and True are three values, 0.0 and -0.0 two, wherever they are and whichever is the old one."""
    for a, b in ((old, new), (new, old)):
        found = list(changes(around(a), around(b)))
        assert_same([tuple(change)[1:] for change in found], [(a, b)])
        assert list(changes(around(a), around(copy.deepcopy(a)))) == []


def test_keys_that_compare_equal_are_told_apart() -> None:
    """A key that became 1.0 from 1 is one key gone and one come."""
    assert_same([tuple(change) for change in changes({1: "x"}, {1.0: "x"})], [("$[1]", "x", ABSENT), ("$[1.0]", ABSENT, "x")])


def test_nan_is_itself() -> None:
    """NaN is no change from NaN, whatever its bits are; what changed beside it is found."""
    old = {"a": [NAN, {"b": NAN, "c": 1}]}
    assert list(changes(old, {"a": [-NAN, {"b": float("nan"), "c": 1}]})) == []
    assert_same([tuple(change) for change in changes(old, {"a": [NAN, {"b": NAN, "c": 2}]})], [("$.a[1].c", 1, 2)])


@settings(max_examples=150)
@given(plain)
def test_a_tree_does_not_differ_from_its_copy(tree: Any) -> None:
    """No change is reported between a tree and a copy of it."""
    assert list(changes(tree, copy.deepcopy(tree))) == []


def _set(tree: Any, path: str, value: Any) -> Any:
    """The tree with `value` at a path where something is."""
    steps = parse_path(path)
    if not steps:
        return value
    holder = value_at(tree, steps[:-1])
    if type(holder) is list:
        holder[steps[-1]] = value
    else:
        # By the key that is there: 1 and True are one to a dict, and what it keeps is the first of them.
        holder[next(key for key in holder if difference(key, steps[-1]) is None)] = value
    return tree


@settings(max_examples=250)
@given(plain, plain)
def test_every_difference_is_reported(old: Any, new: Any) -> None:
    """Two trees without a reported change are the same but for the order of their keys; a reported change is one, and is as it says."""
    assume(not _lost_keys(old) and not _lost_keys(new))
    found = list(changes(old, new))
    assert bool(found) == (difference(_ordered(old), _ordered(new)) is not None)
    for change in found:
        assert change.old is not change.new
        assert difference(change.old, change.new) is not None


@settings(max_examples=250)
@given(plain, plain, st.data())
def test_a_change_leads_to_its_place(tree: Any, value: Any, data: st.DataObject) -> None:
    """Where one value of a tree is replaced, exactly what is at and below that place is reported, under paths that lead to it."""
    assume(not _lost_keys(tree) and not _lost_keys(value))
    steps = data.draw(st.sampled_from(_paths(tree)))
    new = _set(copy.deepcopy(tree), path_text(steps, whole=True), value)
    for change in changes(tree, new):
        assert change.path.startswith("$")
        parsed = parse_path(change.path)
        held = value_at(new, parsed) if change.new is not ABSENT else ABSENT
        assert_same(held, change.new)
        # An index is that of the new list, so the way to the place leads there unless items moved.
        if change.old is ABSENT or change.new is ABSENT or len(parsed) < len(steps):
            continue
        assert difference(list(parsed[: len(steps)]), list(steps)) is None


@settings(max_examples=300)
@given(st.lists(st.integers(0, 12), max_size=14), st.lists(st.integers(0, 12), max_size=14))
def test_the_changes_of_a_list_make_the_new_one(old: list[int], new: list[int]) -> None:
    """Without what was taken out (by its old index), with what was added and changed (by its new index), the old list is the new one."""
    found = [(parse_path(change.path)[0], change) for change in changes(old, new)]
    gone = {index for index, change in found if change.new is ABSENT}
    made = {index: change for index, change in found if change.new is not ABSENT}
    kept = [item for index, item in enumerate(old) if index not in gone]
    result = []
    for index in range(len(new)):
        change = made.get(index)
        before = ABSENT if change is not None and change.old is ABSENT else kept.pop(0)
        assert change is None or change.old == before
        result.append(before if change is None else change.new)
    assert (result, kept) == (new, [])


def _ordered(tree: Any) -> Any:
    """The tree with its keys in one order, so that two of them can be compared that do not agree in it."""
    if type(tree) is dict:
        return {"dict": [[repr(key), _ordered(tree[key])] for key in sorted(tree, key=repr)]}
    return [_ordered(item) for item in tree] if type(tree) is list else tree


def _lost_keys(tree: Any) -> bool:
    """Whether there are keys in which NaN is: a dict does not find them again."""
    return any("nan" in repr(step) for steps in _paths(tree) for step in steps)


def _paths(tree: Any, steps: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The steps to everything in a tree."""
    found = [steps]
    if type(tree) in (dict, list):
        for step, item in tree.items() if type(tree) is dict else enumerate(tree):
            found += _paths(item, (*steps, step))
    return found


def test_a_long_insertion_is_found_in_time() -> None:
    """Lists of many thousand items, changed all over, are compared in time that does not grow with their square."""
    old: list[Any] = [{"id": number, "text": "x" * 20} for number in range(30_000)]
    new = [{**item, "n": 1} if item["id"] % 7 == 0 else item for item in old if item["id"] % 11]
    new[100:100] = [{"new": True}] * 500
    found = list(changes(old, new))  # in a square of them it would not end within the suite's time for a test
    assert sum(change.new is ABSENT for change in found) + sum(change.old is ABSENT and not change.path.endswith(".n") for change in found) < 8_000
    flags = [number % 3 == 0 for number in range(60_000)]
    assert len(list(changes(flags, [not flag for flag in flags]))) == 60_000


def test_deep_trees_are_compared() -> None:
    """256 levels, the most that is saved, need no stack."""
    old: Any = 1
    new: Any = 2
    for level in range(255):
        old, new = ([old, "same"], [new, "same"]) if level % 2 else ({"k": old}, {"k": new})
    (found,) = changes(old, new)
    assert (found.old, found.new, len(parse_path(found.path))) == (1, 2, 255)


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("state.eval_prev_acc", ("state", "eval_prev_acc")),
        ("$.log_history[-1].loss", ("log_history", -1, "loss")),
        ("log_history.-1.loss", ("log_history", -1, "loss")),
        ("votes.3", ("votes", 3)),
        ("votes['3']", ("votes", "3")),
        ("$", ()),
        ("$[3]", (3,)),
        ("[3].a", (3, "a")),
        ("$$.a", ("$$", "a")),
        ("task type A.x-y", ("task type A", "x-y")),
        ("a['odd key'].b", ("a", "odd key", "b")),
        ('a["it\'s"]', ("a", "it's")),
        (r"a['\'\"\\\n\x00\u4e2d\U0001f600']", ("a", "'\"\\\n\x00中😀")),
        ("a[None][True][False][1.5][-inf]", ("a", None, True, False, 1.5, -math.inf)),
        (r"a[b'\xff']", ("a", b"\xff")),
        ("a[('x', 1)][()][(1,)]", ("a", ("x", 1), (), (1,))),
        ("答案.正确", ("答案", "正确")),
    ],
)
def test_a_path_is_read(text: str, steps: tuple[object, ...]) -> None:
    """Dots or brackets, with or without `$`, quotes where a key needs them."""
    assert_same(parse_path(text), steps)


_keys = st.recursive(
    st.one_of(
        texts, st.integers(), st.floats(), st.none(), st.booleans(), st.binary(max_size=8), st.text(st.sampled_from("a.[]'\"\\$-1 "), max_size=6)
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


@settings(max_examples=300)
@given(st.lists(_keys, max_size=50))
def test_every_path_that_is_printed_is_read(steps: list[Any]) -> None:
    """The path of a change reads back as the steps that it was made of, whatever the keys are and however many."""
    assert_same(list(parse_path(path_text(steps, whole=True))), steps)


@settings(max_examples=150)
@given(st.one_of(st.text(max_size=12), st.text(st.sampled_from("a1.-[]()'\"\\,$bxu "), max_size=12)))
def test_any_text_is_a_path_or_refused(text: str) -> None:
    """Text is read as a path, whose print reads back the same, or refused as none; nothing else happens."""
    try:
        steps = parse_path(text)
    except SchemaError as error:
        assert "not a path" in str(error)
        return
    assert_same(parse_path(path_text(steps, whole=True)), steps)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "it is empty"), (".", "expected a name at character 2"), ("a..b", "expected a name at character 3"), ("a[", "expected a number"),
        ("a[3", "expected `]`"), ("a[3]b", "expected `.` or `[`"), ("a['x]", "expected a number, or text in quotes"), ("a]", "expected `.` or `["),
        (r"a['\q']", "unknown escape"), ("a[x]", "expected a number"), ("a[3.]", "expected a number"), ("a." + "9" * 5000, "too many digits"),
        ("a[" + "(" * 5000, "expected a number"), ("a[b'\u4e2d']", "unknown escape"), (r"a['\U00110000']", "unknown escape"),
    ],
)  # fmt: skip
def test_what_is_no_path_is_refused(text: str, fact: str) -> None:
    """The error says what is wrong, where, and how a path is written."""
    with pytest.raises(SchemaError, match="not a path") as caught:
        parse_path(text)
    assert fact in str(caught.value)
    assert "write it like" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("state.los", "`$.state` holds loss and 2 more"),
        ("stat", "`$` holds state and 2 more"),
        ("zzz", "`$` holds state, rows, 'a.b'"),
        ("rows[9]", "`$.rows` is a list of 2"),
        ("rows[0].x.y", "`$.rows[0].x` is 5"),
        ("state.none", "`$.state` holds loss, step, empty"),
        ("state.empty.x", "`$.state.empty` holds nothing"),
    ],
)
def test_the_nearest_part_of_a_path_is_named(path: str, remedy: str) -> None:
    """Where a path leads nowhere, it is said how far it leads and what is there; a key that looks like it alone."""
    tree = {"state": {"loss": 1, "step": 2, "empty": {}}, "rows": [{"x": 5}, {"x": 6}], "a.b": 1}
    assert nearest(tree, parse_path(path)) == remedy


def test_the_keys_of_a_wide_place_are_not_all_named() -> None:
    """Of hundreds of keys the first are named, and how many more there are."""
    assert nearest({f"q_{number:04d}": 1 for number in range(600)}, ("zzzz",)).endswith("q_0011 and 588 more")


# --- one value of a message ------------------------------------------------------------------------------------------


_names = st.sampled_from(["a", "b", "3", "-1", "odd key", 'q"q', "\ud800", "值"])
_int_keys = st.one_of(st.integers(-2, 3), st.just(2**70))
_any_keys = st.one_of(_names, _int_keys, st.booleans(), st.none(), st.just(1.5))
_trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.just(2**70), st.floats(), st.sampled_from(["x", "\ud800"]), st.just(b"b")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(_names, inner, max_size=4), st.dictionaries(_int_keys, inner, max_size=3),
        st.dictionaries(_any_keys, inner, max_size=3),
    ),
    max_leaves=20,
)  # fmt: skip
_steps = st.one_of(_names, _int_keys, st.sampled_from([0, 1, -1, "a", "b"]), st.just(None), st.just(True))


@settings(max_examples=600)
@given(st.lists(st.one_of(_trees, st.dictionaries(_names, _trees, min_size=1)), min_size=2, max_size=5), st.lists(_steps, max_size=4), st.data())
def test_a_value_is_extracted_as_if_all_was_decoded(trees: list[Any], steps: list[Any], data: st.DataObject) -> None:
    """Whatever the messages are, in whichever order, the value at a path is that of the decoded message, in value and exact type."""
    there = [path for tree in trees for path in _paths(tree)]
    path = data.draw(st.one_of(st.just(tuple(steps)), st.sampled_from(there)))
    extract = Extractor(path)
    for tree in [*trees, *trees]:
        encoded = Codec().encode(tree)
        assert_same(extract(*encoded), value_at(Codec().decode(*encoded), path))


@pytest.mark.parametrize(
    "shape",
    [
        lambda n: {"s": {"loss": n}}, lambda n: {"s": {"loss": n}, 3: 4}, lambda n: {"s": None}, lambda n: {"s": [n]}, lambda n: {"s": {}},
        lambda n: {"s": {"loss": {"deep": [n]}}}, lambda n: [n], lambda n: {"s": {"loss": 2**80 + n}}, lambda n: {"s": {"loss": n}, "big": 2**80},
        lambda n: {"s": {"\ud800": n, "loss": n}}, lambda n: {"t": 2**80, "s": {"loss": "\ud800"}}, lambda n: None,
    ],
)  # fmt: skip
def test_messages_that_change_their_shape_are_followed(shape: Any) -> None:
    """A field that is None at first, a dict that becomes a list, Ext values on the way or beside it: each gives what a whole decode gives."""
    extract = Extractor(("s", "loss"))
    for tree in [{"s": {"loss": 0.5}}, shape(1), shape(2), {"s": {"loss": 0.25}}, shape(3)]:
        encoded = Codec().encode(tree)
        assert_same(extract(*encoded), value_at(tree, ("s", "loss")))


def test_a_number_is_an_index_or_a_key() -> None:
    """`votes.3` is the fourth of a list, the key 3 of a dict, or its key '3', whichever is there; the integer goes first."""
    extract = Extractor(parse_path("votes.3"))
    for votes, expected in [
        ([0, 1, 2, "list"], "list"),
        ({3: "int"}, "int"),
        ({"3": "text"}, "text"),
        ({"3": "text", 3: "int"}, "int"),
        ([1], ABSENT),
    ] * 2:
        encoded = Codec().encode({"votes": votes})
        assert extract(*encoded) == expected
    assert Extractor(("votes", "3"))(*Codec().encode({"votes": [0, 1, 2, 3]})) is ABSENT


def test_one_value_costs_less_than_all() -> None:
    """After the first message only what is on the path is decoded: of a large message, many times faster than all of it."""
    tree = {
        "history": [{"loss": n / 3, "text": ["x" * 30, {"n": n}]} for n in range(20_000)],
        "s": {"acc": 0.5},
        "more": [{"k": n} for n in range(50_000)],
    }
    tree |= {"votes": {3: 5}, "none": None}
    first = Codec().encode({"votes": [0, 1, 2, 3], "history": None, "none": {"x": 1}})
    encoded = Codec().encode(tree)
    whole = _allocated(lambda: Codec().decode(*encoded))
    for path, value in {
        "s.acc": 0.5,
        "history.-1.loss": 19_999 / 3,
        "history[7].text[1].n": 7,
        "votes.3": 5,
        "none.x": ABSENT,
        "none[0].x": ABSENT,
    }.items():
        extract = Extractor(parse_path(path))
        extract(*first)  # a message of another shape, in which the number may be an index and not a key
        assert_same(extract(*encoded), value)
        assert _allocated(functools.partial(extract, *encoded)) < whole / 2, path


def _allocated(function: Any) -> float:
    """The bytes that it takes at its peak: what is skipped is not made."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_malformed_message_is_corrupt() -> None:
    """Bytes that are no document raise what decoding them raises, also after good ones."""
    message, _ = Codec().encode({"s": {"loss": 1}})
    extract = Extractor(("s", "loss"))
    for _ in range(2):
        with pytest.raises(CorruptError, match="not a msgpack document"):
            extract(message[:-1])
        assert extract(message) == 1


@needs_posix
def test_a_small_stack_is_no_crash() -> None:
    """In a thread of unknown stack the depth is looked at before anything is decoded or skipped, as when restoring."""
    message = b"\x82\xa1a\x01\xa1b" + b"\x91" * 950 + b"\x01"
    extract, raised = Extractor(("a",)), []
    assert extract(Codec().encode({"a": 5}).message) == 5

    def work() -> None:
        try:
            extract(message)
        except LimitError as error:
            raised.append(error)

    def child() -> None:
        threading.stack_size(48 * 1024)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(raised) == 1

    in_child(child)
