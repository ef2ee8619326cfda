"""`fastckpt.dropin` and `fastckpt.schema` against an application that used the replaced module, and against that module itself."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime as dt
import decimal
import enum
import importlib.util
import inspect
import json
import math
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Self

import msgspec
import numpy as np
import old_module
import pytest
from faults import FaultyStorage, RecordingStorage
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import SHARED, assert_same, everything_in

import fastckpt
from fastckpt import container, dropin, file, schema
from fastckpt.codec import Codec
from fastckpt.errors import (
    CheckpointError,
    CheckpointWarning,
    ConflictError,
    EncodeError,
    JsonError,
    MissingFieldError,
    SchemaError,
    StorageError,
)
from fastckpt.storage import Storage
from fastckpt.tree import MAX_DEPTH
from fastckpt.twin import to_json

OURS, THEIRS = "checkpoint.fastckpt", "checkpoint.json"


# An application like the replaced one ---------------------------------------------------------------------------------


@dataclass
class CaseSample:
    question_id: str
    video_id: str
    task_type: str
    question: str
    options: list[str]
    answer: str
    prediction: str | None
    correct: bool
    error_type: str | None
    selection_reason: str
    metrics: dict[str, Any]
    trace: list[dict[str, Any]]


@dataclass
class SystemCasePack:
    stats: dict[str, Any]
    failure_cases: list[CaseSample] = field(default_factory=list)
    success_cases: list[CaseSample] = field(default_factory=list)


@dataclass
class ToolCasePack:
    tool_name: str
    target_files: list[str]
    stats: dict[str, Any]
    failure_spans: list[dict[str, Any]] = field(default_factory=list)
    success_spans: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class RejectedEdit:
    target: str
    op: str
    content: str
    epoch: int
    scores: dict[str, float]
    evidence: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Probation:
    task_type: str
    started_step: int
    baseline: float
    pending_edits: list[RejectedEdit] = field(default_factory=list)


APP = SimpleNamespace(CaseSample=CaseSample, SystemCasePack=SystemCasePack, ToolCasePack=ToolCasePack, RejectedEdit=RejectedEdit, Probation=Probation)
CLASSES: dict[str, Any] = {"rejected_edit": RejectedEdit, "probation": Probation, "system_pack": SystemCasePack, "tool_pack": ToolCasePack}
PERSISTED = schema.TrainState.__struct_fields__


def new_case(number: int = 1, **changed: Any) -> CaseSample:
    case = CaseSample(
        f"q_{number}", "v_1", "temporal", "谁先到？", ["A", "B"], "B", None, correct=False, error_type="search_failure", selection_reason="hard",
        metrics={"format": 0.5, "spans": [0.1, -0.0, math.inf], "usage": {"search": 3}},
        trace=[{"step": 0, "tool_name": "search", "tool_args": '{"q": "x"}', "tool_output": "a\nb\t\u2028", "thought": None}],
    )  # fmt: skip
    return dataclasses.replace(case, **changed)


def new_edit(number: int = 1, **changed: Any) -> RejectedEdit:
    edit = RejectedEdit("temporal.md", "replace", f"text {number}", number, {"net": 0.1 * number, "p": math.nan}, [{"question_id": "q_1"}])
    return dataclasses.replace(edit, **changed)


def new_state(**changed: Any) -> SimpleNamespace:
    """A live state: the persisted attributes, and others that JSON could never have said."""
    state = SimpleNamespace(
        correctness={"q_1": True, "q_2": False},
        eval_prev_acc=0.61,
        eval_prev_run_id="run_1",
        baseline_skills_version="v12",
        baseline_prompts_version="v9",
        steps_since_best_improved=3,
        epoch_start_skills="技能 v1",
        changed_task_types_this_epoch={"temporal", "causal", "spatial"},
        rejected_buffer={"temporal": [new_edit(1), new_edit(2)], "causal": []},
        system_packs=[SystemCasePack({"bias": 0.25}, [new_case(1), new_case(2)], [new_case(3, prediction="B", correct=True)])],
        tool_packs=[ToolCasePack("search", ["search.md"], {"n": 1}, [{"query": "x", "completeness": 0.5}], [])],
        probations={"temporal": Probation("temporal", 4, 0.5, [new_edit(5)])},
        gate_cooldown={"temporal": 2},
        gate_epoch_observed={"temporal": True},
        gate_pools=object(),
        baseline_cache={1, 2},
        best_acc=0.7,
        global_step=99,
    )
    vars(state).update(changed)
    return state


def new_config(**changed: Any) -> SimpleNamespace:
    keys = old_module.STRUCTURAL_KEYS + old_module.DECISION_KEYS
    return SimpleNamespace(**{**{key: number / 4 for number, key in enumerate(keys)}, "not_fingerprinted": object(), **changed})


def arguments(state: Any = None, step: Any = 33, **changed: Any) -> dict[str, Any]:
    return {
        "state": state if state is not None else new_state(),
        "epoch": 1,
        "step_completed": 3,
        "phase": "in_epoch",
        "global_step": step,
        "total_steps": 120,
        "version_snapshot": {"skills": "v12", "prompts": "v9"},
        "epoch_batches": [["q_1"], ["q_2"]],
        "config": new_config(),
        **changed,
    }


class Unsynced(Storage):
    """The real disk without the waiting: for tests that save a hundred times and are not about durability."""

    def sync(self, fd: int) -> None:
        pass


FAST = Unsynced()


def both(folder: Path, **changed: Any) -> tuple[Any, Any]:
    """What the replaced module reads back, and what ours does, of the same call."""
    old_module.write_checkpoint(folder, **arguments(**changed))
    theirs = old_module.load_checkpoint(folder)
    (folder / THEIRS).rename(folder / "old.json")
    dropin.write_checkpoint(folder, **arguments(**changed), storage=FAST)
    return theirs, dropin.load_checkpoint(folder)


def assert_equivalent(folder: Path, **changed: Any) -> Any:
    """Ours reads back what the replaced module does, and exports its file byte for byte; the payload."""
    theirs, ours = both(folder, **changed)
    assert_same(ours, theirs)
    assert to_json(fastckpt.load(folder / OURS)) == (folder / "old.json").read_bytes()
    return ours


def assert_refused(folder: Path, where: str, *, also_before: bool = True, **changed: Any) -> EncodeError:
    """Ours refuses, naming the place, and leaves no trace; so did the replaced module (`also_before`)."""
    if also_before:
        with pytest.raises((TypeError, ValueError, AttributeError, RuntimeError)):
            old_module.write_checkpoint(tempfile.mkdtemp(dir=folder), **arguments(**changed))
    workspace = folder / "refused"
    with pytest.raises(EncodeError) as caught:
        dropin.write_checkpoint(workspace, **arguments(**changed))
    assert not workspace.exists()
    error = caught.value
    assert isinstance(error, TypeError)
    assert isinstance(error, ValueError)
    assert error.where == where
    assert where in str(error)
    assert error.remedy
    return error


@contextmanager
def shapes_module() -> Iterator[ModuleType]:
    path = SHARED / "tools" / "shapes.py"
    if not path.exists():
        pytest.skip(f"{path}, the definition of the shapes, is not here")
    spec = importlib.util.spec_from_file_location("dropin_shapes", path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


# Writing: what comes back, and what is refused -------------------------------------------------------------------------


def test_a_live_state_comes_back_as_from_the_replaced_module(tmp_path: Path) -> None:
    """Same payload in value, type and order, NaN, -0.0 and infinity included; the export is the replaced module's file, byte for byte."""
    payload = assert_equivalent(tmp_path)
    assert list(payload) == ["schema_version", "progress", "version_snapshot", "epoch_batches", "config_fingerprint", "state"]
    assert list(payload["progress"]) == ["epoch", "step_completed", "phase", "global_step", "total_steps"]
    assert list(payload["state"]) == list(PERSISTED)
    assert payload["state"]["changed_task_types_this_epoch"] == ["causal", "spatial", "temporal"]


def test_writing_changes_neither_the_state_nor_anything_else_in_the_folder(tmp_path: Path) -> None:
    """Also where parts of the state are replaced for the file (number keys, NumPy numbers); no lock, no temporary file is left."""
    state = new_state(correctness={1: np.float64(0.5)}, gate_pools=None)
    before = copy.deepcopy(state)
    (tmp_path / THEIRS).write_bytes(b"whatever it is")
    info = dropin.write_checkpoint(tmp_path, **arguments(state))
    assert_same(state, before)
    assert everything_in(tmp_path) == [OURS, THEIRS]
    assert (tmp_path / THEIRS).read_bytes() == b"whatever it is"
    assert info.path == str((tmp_path / OURS).resolve())
    assert info.file_bytes == (tmp_path / OURS).stat().st_size


@pytest.mark.parametrize("shape", ["small", "usual", "usual-cjk"])
def test_the_shapes_of_a_real_run_come_back_as_from_the_replaced_module(tmp_path: Path, shape: str) -> None:
    """A fresh state and after changes: payload and export equal, and the application's classes are revived equal."""
    with shapes_module() as shapes:
        state = shapes.make(shape)
        packs = {"system_pack": shapes.SystemCasePack, "tool_pack": shapes.ToolCasePack}
        classes = {"rejected_edit": shapes.RejectedEdit, "probation": shapes.Probation, **packs}
        for step in range(2):
            shapes.change(state, step)
            payload = assert_equivalent(tmp_path, state=state, step=step, epoch_batches=shapes.batches(state))
            assert_same(dropin.deserialize_state_fields(payload["state"], **classes), {name: getattr(state, name) for name in PERSISTED})


def test_serialize_state_gives_what_the_replaced_module_gave() -> None:
    """The same plain data, in the same order."""
    state = new_state(system_packs=(pack for pack in new_state().system_packs), gate_cooldown={1: 2})
    expected = new_state(gate_cooldown={1: 2})
    assert_same(dropin.serialize_state(state), old_module.serialize_state(expected))


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Ratio(float, enum.Enum):
    HALF = 0.5


class Words(str):
    __slots__ = ()


class Loud(str, enum.Enum):  # noqa: UP042  (what StrEnum would not do)
    """Its value is not the text that it is."""

    A = "a"

    def __new__(cls, text: str) -> Self:
        member = str.__new__(cls, text)
        member._value_ = text.upper()
        return member


class Items(list[Any]):
    pass


class Pair(NamedTuple):
    a: Any
    b: Any


class Table(dict[Any, Any]):
    def items(self) -> Any:
        return [("own", "items")]


def ordered(**items: Any) -> collections.OrderedDict[str, Any]:
    result = collections.OrderedDict(items)
    result.move_to_end(next(iter(items)))
    return result


CONVERTED: dict[str, Any] = {
    "an int enum": Level.LOW,
    "a text enum": Mode.FAST,
    "a float enum": Ratio.HALF,
    "a text enum of another value": Loud.A,
    "a subclass of str": Words("x"),
    "a numpy double": np.float64(0.1),
    "numpy's NaN": np.float64("nan"),
    "numpy text": np.str_("x"),
    "a tuple": (1, (2, 3)),
    "a named tuple": Pair(1, [Level.LOW]),
    "a subclass of list": Items([np.float64(1.5)]),
    "an ordered dict that was reordered": ordered(a=1, b=2),
    "a dict with items of its own": Table(a=1),
    "an int of 64 bits": 2**64 - 1,
    "an int of 128 bits": -(2**127) - 1,
    "the smallest double": 5e-324,
    "nothing in lists": [[], {}, ()],
}


@pytest.mark.parametrize("name", CONVERTED)
def test_what_json_took_in_another_guise_is_taken_as_json_took_it(tmp_path: Path, name: str) -> None:
    """Subclasses of plain types, NumPy's double among them: they come back as the plain values that the replaced module gave."""
    value = CONVERTED[name]
    packs = [SystemCasePack({"x": value, "y": [value], "z": {"deep": [0, value]}})]
    assert_equivalent(tmp_path, state=new_state(epoch_start_skills=[value, {"k": value}], system_packs=packs), phase=value)


KEYS: dict[str, dict[Any, Any]] = {
    "int": {1: "a", -(2**70): "b"},
    "float": {0.5: "a", 1e300: "b", math.inf: "c", -math.inf: "d", math.nan: "e", -0.0: "f"},
    "bool": {True: "a", False: "b"},
    "none": {None: "a"},
    "numpy double": {np.float64(0.25): "a"},
    "enums": {Level.LOW: "a", Mode.FAST: "b", Loud.A: "c", Ratio.HALF: "d"},
    "subclass of str": {Words("x"): "a"},
    "the last of two wins": {1: "first", "other": "between", "1": "last", None: 0, "null": 1, "true": 2, "None": 3},
    "nested": {1: {2: {3: []}}},
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_become_text_as_in_json(tmp_path: Path, name: str) -> None:
    """Number, bool and None keys are text when read back; the last of two that become one wins, in the place of the first."""
    keys = KEYS[name]
    state = new_state(correctness=keys, system_packs=[SystemCasePack({"deep": [keys]})], rejected_buffer={key: [new_edit()] for key in keys})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        theirs, ours = both(tmp_path, state=state)
    assert_same(ours, theirs)


class Thing(msgspec.Struct):
    x: int = 1


@dataclass
class Note:
    text: Any = "x"


class Proxy:
    """Says that it is of the class of what it stands for, as lazy objects do."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def __class__(self) -> Any:
        return type(self.value)


REFUSED: dict[str, Any] = {
    "a proxy of text": Proxy("x"),
    "a proxy of an int": Proxy(1),
    "a set": {1, 2},
    "a frozenset": frozenset("a"),
    "bytes": b"x",
    "a bytearray": bytearray(b"x"),
    "a datetime": dt.datetime(2024, 1, 1),
    "a date": dt.date(2024, 1, 1),
    "a timedelta": dt.timedelta(1),
    "a Decimal": decimal.Decimal("1.5"),
    "an Enum of no plain base": Color.RED,
    "a Struct": Thing(),
    "an unset value": msgspec.UNSET,
    "a NumPy int": np.int64(1),
    "a NumPy float32": np.float32(1),
    "a NumPy bool": np.bool_(True),
    "a NumPy array": np.zeros(2),
    "a path": Path("x"),
    "a function": len,
    "a class": int,
    "a class that is a dataclass": Note,
    "an object": object(),
    "a deque": collections.deque([1]),
    "a complex number": 1j,
    "an int of too many digits": 10**5000,
    "a dict view": {}.keys(),
    "an Ext": msgspec.msgpack.Ext(1, b"x"),
    "raw msgpack": msgspec.Raw(b"\x01"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_json_refused_is_refused_by_path_before_any_file_is_touched(tmp_path: Path, name: str) -> None:
    """FAULTS H1: wherever it is: in plain fields, in dataclasses, in the envelope; the error says type, place and mend."""
    value = REFUSED[name]
    assert_refused(tmp_path, "$.state.correctness.a[1]", state=new_state(correctness={"a": [0, value]}))
    packs = [SystemCasePack({}, [new_case(), new_case(trace=[{"x": 1}, {"odd key": value}])])]
    assert_refused(tmp_path, "$.state.system_packs[0].failure_cases[1].trace[1]['odd key']", state=new_state(system_packs=packs))
    assert_refused(tmp_path, "$.state.rejected_buffer.t[0].scores", state=new_state(rejected_buffer={"t": [new_edit(scores=value)]}))
    assert_refused(tmp_path, "$.progress.global_step", step=value)
    assert_refused(tmp_path, "$.config_fingerprint.gate_block", config=new_config(gate_block=value))
    error = assert_refused(tmp_path, "$.epoch_batches[0]", epoch_batches=[value])
    assert type(value).__name__ in str(error) or name == "an int of too many digits"


NO_KEYS = [(1, 2), b"x", frozenset(), np.int64(1), dt.date(2024, 1, 1), Color.RED, object(), 10**5000]


@pytest.mark.parametrize("key", NO_KEYS, ids=lambda key: type(key).__name__)
def test_a_key_that_json_refused_is_refused(tmp_path: Path, key: Any) -> None:
    """The error names the dict that holds it, also where another key beside it becomes text."""
    assert_refused(tmp_path, "$.state.gate_cooldown.a", state=new_state(gate_cooldown={"a": {5: 1, key: 2}}))
    assert_refused(tmp_path, "$.state.tool_packs[0].stats", state=new_state(tool_packs=[ToolCasePack("x", [], {key: 1})]))


def test_a_refusal_leaves_the_checkpoint_as_it_was(tmp_path: Path) -> None:
    """The old file stands byte for byte, and nothing beside it."""
    dropin.write_checkpoint(tmp_path, **arguments())
    before = (tmp_path / OURS).read_bytes()
    with pytest.raises(EncodeError):
        dropin.write_checkpoint(tmp_path, **arguments(new_state(eval_prev_acc=b"x")))
    assert (tmp_path / OURS).read_bytes() == before
    assert everything_in(tmp_path) == [OURS]


def test_dataclasses_are_taken_only_where_asdict_reached(tmp_path: Path) -> None:
    """Anywhere below packs, buffers and probations, in lists, tuples and dicts; refused in the other fields, with the mend."""
    assert_equivalent(tmp_path, state=new_state(tool_packs=[ToolCasePack("x", [], {"n": Note([Note((Note(1),)), {"k": Note({"z": Note()})}])})]))
    error = assert_refused(tmp_path, "$.state.gate_cooldown.a", state=new_state(gate_cooldown={"a": Note()}))
    assert "asdict" in error.remedy
    assert_refused(tmp_path, "$.version_snapshot", version_snapshot=Note())
    for name, value, where in [
        ("system_packs", [1], "[0]"),
        ("system_packs", [Note], "[0]"),
        ("tool_packs", 5, ""),
        ("tool_packs", "ab", "[0]"),
        ("rejected_buffer", [new_edit()], ""),
        ("rejected_buffer", {"t": new_edit()}, ".t"),
        ("rejected_buffer", {"t": [new_edit(), None]}, ".t[1]"),
        ("probations", {"t": None}, ".t"),
        ("probations", None, ""),
    ]:
        assert_refused(tmp_path, f"$.state.{name}{where}", state=new_state(**{name: value}))


def test_any_iterable_of_dataclasses_is_a_list_of_them(tmp_path: Path) -> None:
    """Deques, tuples and defaultdicts at the places that the replaced module went through."""
    buffer = collections.defaultdict(collections.deque, {"t": collections.deque([new_edit()], maxlen=3)})
    packs = tuple(new_state().system_packs)
    assert_equivalent(tmp_path, state=new_state(rejected_buffer=buffer, system_packs=packs, correctness=collections.Counter("aab")))


def test_a_record_that_was_never_revived_is_written_as_it_is(tmp_path: Path) -> None:
    """Plain dicts in the places of dataclasses: a state loaded without classes can be saved again, and nothing of it is lost."""
    dropin.write_checkpoint(tmp_path, **arguments())
    first = dropin.load_checkpoint(tmp_path)
    assert first is not None
    first["state"]["rejected_buffer"]["temporal"][0]["unknown"] = {"kept": [1]}
    dropin.write_checkpoint(tmp_path, **arguments(SimpleNamespace(**first["state"])))
    second = dropin.load_checkpoint(tmp_path)
    assert_same(second, first)
    assert_same(dropin.serialize_state(SimpleNamespace(**first["state"])), first["state"])


@dataclass(slots=True)
class Slotted:
    x: Any
    y: Any = 2


@dataclass
class Derived(Note):
    more: Any = "m"
    loaded: int = field(default=5, init=False)

    def __post_init__(self) -> None:
        self.extra = object()


class Undecorated(Derived):
    other: ClassVar[set[int]] = {1, 2}


@dataclass
class Private:
    _hidden: Any
    __very: Any = 1


@dataclass
class Sum:
    x: Any
    start: dataclasses.InitVar[int] = 3


@dataclass
class Computed:
    """`x` is a property, so nothing of that name is in the instance's dict."""

    x: Any

    @property  # type: ignore[no-redef]
    def x(self) -> Any:
        return self._x

    @x.setter
    def x(self, value: Any) -> None:
        self._x = [value]


@dataclass
class Intercepting:
    x: Any

    def __getattribute__(self, name: str) -> Any:
        return "intercepted" if name == "x" else object.__getattribute__(self, name)


@dataclass
class Empty:
    pass


@dataclass
class OfDict(dict[str, Any]):
    x: Any = 1


@dataclass
class Base:
    label: str


class Member(Base, enum.Enum):
    """Its value is plain, but `asdict` saw the dataclass."""

    A = "a"

    def __new__(cls, text: str) -> Self:
        member = object.__new__(cls)
        member._value_ = text
        return member


class Doubling:
    """A descriptor as validating ones are: it keeps what is set in the instance's dict, under its own name."""

    def __get__(self, instance: Any, owner: type) -> Any:
        return 0 if instance is None else instance.__dict__["x"] * 2

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__["x"] = value


@dataclass
class Described:
    x: Any = Doubling()


@dataclass
class OfList(list[Any]):
    x: Any = 1


@dataclass
class HalfSlotted(Slotted):
    z: Any = 3


@dataclass(frozen=True, kw_only=True, order=True)
class Frozen:
    b: Any = 1
    a: Any = 2


RECORDS: dict[str, Callable[[], Any]] = {
    "slots": lambda: Slotted(Note(), np.float64(2)),
    "a derived one with attributes that are no fields": Derived,
    "a subclass that is not decorated": Undecorated,
    "private names": lambda: Private([1]),
    "an InitVar": lambda: Sum(1),
    "a property as a field": lambda: Computed(Note()),
    "__getattribute__": lambda: Intercepting({1}),
    "no field": Empty,
    "one field": lambda: Note(Note(None)),
    "a dict besides": lambda: OfDict(2),
    "a list besides": lambda: OfList([3]),
    "an Enum besides": lambda: Member.A,
    "a descriptor as a field": lambda: Described(2),
    "slots in the base only": lambda: HalfSlotted(1, 2, [Note()]),
    "frozen, keywords only": lambda: Frozen(a={1: 2}),
}


@pytest.mark.parametrize("name", RECORDS)
def test_every_kind_of_dataclass_is_written_as_asdict_saw_it(tmp_path: Path, name: str) -> None:
    """Whatever msgspec makes of such an object by itself: the fields of `asdict`, all of them and no more, in its order."""
    make = RECORDS[name]
    state = new_state(tool_packs=[make()], rejected_buffer={"t": [make(), make()]}, probations={"t": Note({"k": [make()]})})
    for _ in range(2):  # the second time the class is known
        assert_equivalent(tmp_path, state=state)


def test_a_default_of_the_class_is_a_value_like_any_other(tmp_path: Path) -> None:
    """A field that only the class has (msgspec skips those of the instance's dict) is written, as `asdict` did."""
    edit = Note()
    del edit.text
    assert assert_equivalent(tmp_path, state=new_state(rejected_buffer={"t": [edit]}))["state"]["rejected_buffer"] == {"t": [{"text": "x"}]}


def test_a_field_that_is_not_set_is_refused(tmp_path: Path) -> None:
    """FAULTS H2: an attribute that was deleted, in a slot or in a dict, and one of the state itself."""
    edit, slotted, state = new_edit(), Slotted(1), new_state()
    del edit.op, slotted.y, state.gate_cooldown
    assert_refused(tmp_path, "$.state.rejected_buffer.t[1].op", state=new_state(rejected_buffer={"t": [new_edit(), edit]}))
    assert_refused(tmp_path, "$.state.tool_packs[0].text[0].y", state=new_state(tool_packs=[Note([slotted])]))
    assert_refused(tmp_path, "$.state.gate_cooldown", state=state)
    assert_refused(tmp_path, "$.state.changed_task_types_this_epoch", state=new_state(changed_task_types_this_epoch={"a", 1}))


def nested(levels: int, make: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = make(value)
    return value


NESTINGS = {"lists": lambda inner: [inner], "dicts": lambda inner: {"k": inner}, "number keys": lambda inner: {1: inner}, "dataclasses": Note}


@pytest.mark.parametrize("make", NESTINGS.values(), ids=NESTINGS)
def test_depth_ends_at_the_limit_everywhere(tmp_path: Path, make: Callable[[Any], Any]) -> None:
    """FAULTS H3: 256 levels of containers are saved and loaded, one more is refused; in a small thread and under any recursion limit too."""
    deepest, too_deep = ([Note(nested(MAX_DEPTH - levels, make))] for levels in (4, 3))  # the payload, `state`, the list, the first Note

    def check() -> None:
        dropin.write_checkpoint(tmp_path / "w", **arguments(new_state(tool_packs=deepest)), storage=FAST)
        loaded = dropin.load_checkpoint(tmp_path / "w")
        assert loaded is not None
        with pytest.raises(EncodeError, match="nested deeper than 256"):
            dropin.write_checkpoint(tmp_path / "w", **arguments(new_state(tool_packs=too_deep)), storage=FAST)
        again = dropin.load_checkpoint(tmp_path / "w")
        assert again is not None
        assert again["state"]["tool_packs"] == loaded["state"]["tool_packs"]  # not assert_same, whose own recursion is deeper

    limit, size = sys.getrecursionlimit(), threading.stack_size()
    failures: list[BaseException] = []

    def in_thread() -> None:
        try:
            check()
        except BaseException as error:  # reported by the test
            failures.append(error)

    check()
    try:
        sys.setrecursionlimit(1_000_000)
        check()
        threading.stack_size(256 * 1024)
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(size)
    assert not failures, failures


def test_a_cycle_is_named(tmp_path: Path) -> None:
    """FAULTS H3: where it closes and what it comes back to; one with many ways round too, which must not take for ever."""
    inner: dict[str, Any] = {}
    inner["up"] = [1, inner]
    error = assert_refused(tmp_path, "$.state.gate_cooldown.x.up[1]", state=new_state(gate_cooldown={"x": inner}))
    assert "this is `$.state.gate_cooldown.x` again" in str(error)
    note = Note()
    note.text = {"a": 1, "b": (note, note, note)}
    error = assert_refused(tmp_path, "$.state.tool_packs[0].text.b[0]", state=new_state(tool_packs=[note]))
    assert "this is `$.state.tool_packs[0]` again" in str(error)
    table = collections.OrderedDict[Any, Any]()
    table[1] = table
    assert_refused(tmp_path, "$.epoch_batches[0]['1']", epoch_batches=[table])


def test_no_stack_left_is_an_error_of_ours(tmp_path: Path) -> None:
    """FAULTS H3: called at the bottom of a deep recursion, with a state that is not too deep: an EncodeError, and the file as it was."""
    args = arguments(new_state(tool_packs=[Note(nested(200))]))

    def down(levels: int) -> None:
        if levels:
            return down(levels - 1)
        dropin.write_checkpoint(tmp_path / "w", **args)
        return None

    with pytest.raises(EncodeError, match="no stack left"):
        down(sys.getrecursionlimit() - 180)
    assert not (tmp_path / "w").exists()


def test_lone_surrogates_are_saved_where_the_replaced_module_crashed(tmp_path: Path) -> None:
    """In a value and in a key, again at the next save, beside integers beyond 64 bits and number keys."""
    state = new_state(correctness={"\ud800": "\udfff", 1: 2**80}, rejected_buffer={"t": [new_edit(content="a\udc80")]}, phase="x")
    with pytest.raises(UnicodeEncodeError):
        old_module.write_checkpoint(tmp_path, **arguments(state))
    for _ in range(2):
        dropin.write_checkpoint(tmp_path, **arguments(state))
        loaded = fastckpt.load(tmp_path / OURS)
        assert_same(loaded["state"]["correctness"], {"\ud800": "\udfff", "1": 2**80})
        assert loaded["state"]["rejected_buffer"]["t"][0]["content"] == "a\udc80"
        assert file.inspect(tmp_path / OURS).has_ext
    dropin.write_checkpoint(tmp_path, **arguments())
    assert not file.inspect(tmp_path / OURS).has_ext


SHARED_DICT: dict[str, Any] = {}


@dataclass
class Meddling:
    """Whoever reads it changes the dict that holds it, as another thread may at that moment."""

    x: Any

    @property  # type: ignore[no-redef]
    def x(self) -> Any:
        SHARED_DICT[f"new {len(SHARED_DICT)}"] = 1
        return 1

    @x.setter
    def x(self, value: Any) -> None:
        pass


def test_a_dict_that_changes_size_while_it_is_walked_is_an_error_of_ours(tmp_path: Path) -> None:
    """FAULTS D8: an EncodeError that says what to do; the replaced module raised, too."""
    SHARED_DICT.clear()
    SHARED_DICT.update(a=Meddling(1), b=2)
    error = assert_refused(tmp_path, "$", state=new_state(tool_packs=[Note(SHARED_DICT)]))
    assert "lock" in error.remedy


def test_another_threads_change_is_an_error_not_a_crash(tmp_path: Path) -> None:
    """FAULTS D8: a dict that grows while it is walked: saved whole, or an EncodeError that says so; what is there loads."""
    state = new_state(gate_cooldown={str(number): [number] for number in range(300)})
    stop = threading.Event()

    def grow() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            state.gate_cooldown[f"new {number}"] = [number]
            state.gate_cooldown.pop(f"new {number - 5}", None)

    thread = threading.Thread(target=grow)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(60):
            try:
                dropin.write_checkpoint(tmp_path, **arguments(state), storage=FAST)
            except EncodeError as error:
                assert "another thread" in str(error)  # one of two allowed outcomes
            loaded = dropin.load_checkpoint(tmp_path) if (tmp_path / OURS).exists() else None
            assert loaded is None or loaded["state"]["gate_cooldown"]["299"] == [299]
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)


# Payload by payload ----------------------------------------------------------------------------------------------------

texts = st.text() | st.text("aé\u4e2d\ud800\udc00", max_size=3)
plain_leaves = st.none() | st.booleans() | st.integers() | st.integers(-(2**130), 2**130) | st.floats() | texts
odd_leaves = st.sampled_from([Level.LOW, Mode.FAST, Ratio.HALF, Loud.A, Words("w"), np.float64(0.1), np.str_("n"), 10**400])
refused_leaves = st.sampled_from([np.int64(1), b"b", {1}, Color.RED, dt.date(2024, 1, 1), Thing(), msgspec.UNSET, object(), Note])
leaves = st.one_of(plain_leaves, plain_leaves, plain_leaves, odd_leaves)
odd_keys = [1, True, None, 0.5, "1", "true", "null", "0.5", -0.0, Level.LOW, Mode.FAST, np.float64(0.5), Words("1"), math.nan]
keys = st.text(max_size=4) | st.sampled_from(odd_keys)
rare_keys = st.sampled_from([(1,), b"k", np.int64(1)])


def extend(records: bool) -> Callable[[st.SearchStrategy[Any]], st.SearchStrategy[Any]]:
    """Containers of what there is so far."""

    def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        lists = st.lists(inner, max_size=4)
        dicts = st.dictionaries(keys, inner, max_size=4)
        made = [lists, lists.map(tuple), lists.map(Items), st.builds(Pair, inner, inner), dicts, dicts]
        made += [st.dictionaries(st.text(max_size=3), inner, max_size=4), st.dictionaries(keys | rare_keys, inner, max_size=3)]
        made += [dicts.filter(bool).map(reordered)]
        if records:
            made += [st.builds(kind, inner) for kind in (Note, Slotted, Derived, Private, Computed, Intercepting, HalfSlotted, Sum)]
        else:
            made += [st.builds(Note, inner)]  # refused
        return st.one_of(made)

    return containers


def reordered(items: dict[Any, Any]) -> collections.OrderedDict[Any, Any]:
    result = collections.OrderedDict(items)
    result.move_to_end(next(iter(items)))
    return result


def trees(records: bool) -> st.SearchStrategy[Any]:
    accepted = st.recursive(leaves, extend(records), max_leaves=12)
    return st.one_of(accepted, accepted, accepted, st.recursive(leaves | refused_leaves, extend(records), max_leaves=6))


@settings(max_examples=250)
@given(
    plain=trees(False),
    record=trees(True),
    edit=trees(True),
    tasks=st.lists(keys, max_size=3),
    value=trees(False),
    step=st.integers(0, 2**64) | st.sampled_from([True, 1.5, Level.LOW]),
)
@example(plain={"0.5": Note(), 0.5: None}, record=None, edit=None, tasks=[], value=None, step=0)  # lost, but JSON had to say it
@example(plain=None, record=None, edit={1: "x", "1": {"1": {1}, 1: 0}}, tasks=[], value=None, step=0)
@example(plain={1: "a", "1": "b"}, record=None, edit=np.float64(1), tasks=[1, "1", True], value=2**64, step=True)
@example(plain={math.nan: 1}, record="\ud800\udc00", edit=[Note({"\ud800": 1})], tasks=[], value=-0.0, step=2**64)
@example(plain=None, record=Derived({1}), edit=0, tasks=[], value=0, step=0)
@example(plain=None, record=None, edit=None, tasks=[], value=Note(), step=0)
def test_payload_by_payload_as_the_replaced_module(plain: Any, record: Any, edit: Any, tasks: list[Any], value: Any, step: Any) -> None:
    """What it wrote comes back the same from ours, value and type; what it refused is refused, before a file exists; only lone surrogates are new."""
    state = new_state(
        correctness=plain,
        epoch_start_skills=[plain, value],
        system_packs=[SystemCasePack({"x": record}), Note(record)],
        rejected_buffer={task: [new_edit(number, evidence=edit)] for number, task in enumerate(tasks)},
        probations={"t": Probation("t", 1, value, [new_edit(scores=edit)])},
    )
    args = arguments(state, step, config=new_config(gate_block=value))
    with tempfile.TemporaryDirectory(prefix="fastckpt-dropin-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # a key twice, in the JSON file
        workspace = Path(folder, "w")
        try:
            old_module.write_checkpoint(folder, **args)
        except UnicodeEncodeError:
            dropin.write_checkpoint(workspace, **args, storage=FAST)
            # As text that was never encoded; escapes would join two lone surrogates in a row.
            assert_same(dropin.load_checkpoint(workspace), json.loads(json.dumps(old_module.payload(**args), ensure_ascii=False)))
            return
        except Exception:  # whatever it was, ours is an EncodeError
            with pytest.raises(EncodeError):
                dropin.write_checkpoint(workspace, **args, storage=FAST)
            assert not workspace.exists()
            return
        dropin.write_checkpoint(workspace, **args, storage=FAST)
        loaded = dropin.load_checkpoint(workspace)
        assert loaded is not None
        assert_same(loaded, old_module.load_checkpoint(folder))
        assert_same(dropin.load_checkpoint(folder), loaded)  # the JSON file itself, read by ours
        expected = json.dumps(loaded, ensure_ascii=False, indent=2).encode()
        assert to_json(fastckpt.load(workspace / OURS)) == expected
        if len(expected) == os.path.getsize(Path(folder, THEIRS)):  # no key twice
            assert Path(folder, THEIRS).read_bytes() == expected


# The configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"batch_size": 7},
        {"gate_block": 1, "epochs": None},
        {"diag_size": 0.0, "gate_p_low": "", "gate_n_max": None},
        {"skill_update_mode": Mode.FAST},
        {"momentum_samples": (1, 2)},
    ],
    ids=repr,
)
def test_fingerprints_compare_as_in_the_replaced_module(changed: dict[str, Any]) -> None:
    """The same keys are reported in the same tier and order, each with both values; a key that was not saved compares as None."""
    saved = json.loads(json.dumps(dropin.compute_fingerprint(new_config())))
    assert_same(saved, old_module.compute_fingerprint(new_config()))
    del saved["val_size"], saved["gate_delta_min"]
    for config in (new_config(**changed), new_config(**changed, val_size=None, gate_delta_min=None), SimpleNamespace(batch_size=4), object()):
        found = dropin.check_fingerprint(saved, config)
        expected = old_module.check_fingerprint(saved, config)
        assert tuple([line.partition(":")[0] for line in tier] for tier in found) == expected


def test_a_difference_of_the_configuration_is_described() -> None:
    """Name, saved and current value; an attribute that is missing counts as None, on either side."""
    saved = dropin.compute_fingerprint(SimpleNamespace(batch_size=20))
    assert dropin.check_fingerprint(saved, SimpleNamespace(batch_size=20)) == ([], [])
    structural, decision = dropin.check_fingerprint(saved, SimpleNamespace(batch_size=40, gate_block="x"))
    assert structural == ["batch_size: saved 20, current 40"]
    assert decision == ["gate_block: saved None, current 'x'"]


# Reviving the application's classes --------------------------------------------------------------------------------------


def plain_state(**changed: Any) -> dict[str, Any]:
    return json.loads(json.dumps(old_module.serialize_state(new_state(**changed))))  # type: ignore[no-any-return]


def test_the_applications_classes_are_revived_as_by_hand() -> None:
    """Edits, probations with their pending edits, packs with their cases, and the set; equal, by value and type, to hand-written revivers."""
    d = plain_state()
    revived = dropin.deserialize_state_fields(d, **CLASSES)
    assert_same(revived, old_module.deserialize_state_fields(d, APP))
    assert_same(revived, {name: getattr(new_state(), name) for name in PERSISTED})
    assert_same(d, plain_state())


@pytest.mark.parametrize("keyword", CLASSES)
def test_a_class_that_is_not_given_is_asked_for(keyword: str) -> None:
    """Also when there is nothing to revive; a TypeError, which no handler of damaged files takes for damage."""
    given = {name: cls for name, cls in CLASSES.items() if name != keyword}
    with pytest.raises(TypeError, match=f"needs {keyword}=:"):
        dropin.deserialize_state_fields(plain_state(rejected_buffer={}, system_packs=[], tool_packs=[], probations={}), **given)
    with pytest.raises(TypeError, match="rejected_edit=, probation=, system_pack=, tool_pack="):
        dropin.deserialize_state_fields(plain_state())


@pytest.mark.parametrize("name", PERSISTED)
def test_a_missing_field_of_the_state_is_corruption(name: str) -> None:
    """No default hides it: a MissingFieldError, which is a KeyError, with the field's name."""
    d = plain_state()
    del d[name]
    with pytest.raises(MissingFieldError) as caught:
        dropin.deserialize_state_fields(d, **CLASSES)
    assert isinstance(caught.value, KeyError)
    assert caught.value.field == name
    assert caught.value.where == "$.state"


def test_a_missing_key_of_a_record_is_corruption_even_where_the_class_has_a_default() -> None:
    """Anywhere below, named with its path."""
    for path, where, key in [
        (("system_packs", 0), "$.state.system_packs[0]", "failure_cases"),
        (("system_packs", 0, "success_cases", 0), "$.state.system_packs[0].success_cases[0]", "trace"),
        (("rejected_buffer", "temporal", 1), "$.state.rejected_buffer.temporal[1]", "evidence"),
        (("probations", "temporal"), "$.state.probations.temporal", "pending_edits"),
        (("probations", "temporal", "pending_edits", 0), "$.state.probations.temporal.pending_edits[0]", "op"),
    ]:
        d = plain_state()
        holder: Any = d
        for step in path:
            holder = holder[step]
        del holder[key]
        with pytest.raises(KeyError) as caught:
            dropin.deserialize_state_fields(d, **CLASSES)
        error = caught.value
        assert isinstance(error, MissingFieldError)
        assert (error.where, error.field) == (where, key)


def test_a_key_that_no_field_takes_is_refused_not_dropped() -> None:
    """In an edit, and in a case of a pack; `dict` in place of the class keeps it."""
    for path, where in [
        (("rejected_buffer", "temporal", 1), ".rejected_buffer.temporal[1]"),
        (("system_packs", 0, "failure_cases", 1), ".system_packs[0].failure_cases[1]"),
    ]:
        d = plain_state()
        holder: Any = d
        for step in path:
            holder = holder[step]
        holder["reviewer"] = "x"
        with pytest.raises(SchemaError, match="'reviewer'") as caught:
            dropin.deserialize_state_fields(d, **CLASSES)
        assert caught.value.where == f"$.state{where}"
        assert_same(dropin.deserialize_state_fields(d, **dict.fromkeys(CLASSES, dict))[path[0]], d[path[0]])


def test_a_value_that_does_not_fit_is_named() -> None:
    """A SchemaError, which is a ValueError, with the path down to the key."""
    d = plain_state()
    d["rejected_buffer"]["causal"] = [{**d["rejected_buffer"]["temporal"][0], "epoch": "one"}]
    with pytest.raises(ValueError, match="expected `int`, got `str`") as caught:
        dropin.deserialize_state_fields(d, **CLASSES)
    assert isinstance(caught.value, SchemaError)
    assert caught.value.where == "$.state.rejected_buffer.causal[0].epoch"
    with pytest.raises(SchemaError, match=r"`\$\.state\.changed_task_types_this_epoch"):
        dropin.deserialize_state_fields({**plain_state(), "changed_task_types_this_epoch": [["unhashable"]]}, **CLASSES)
    with pytest.raises(SchemaError, match="expected a dict"):
        dropin.deserialize_state_fields([], **CLASSES)  # type: ignore[arg-type]


@dataclass
class LooseProbation:
    task_type: str
    started_step: int
    baseline: float
    pending_edits: list  # type: ignore[type-arg]


@dataclass
class Unresolved:
    text: NotThere  # type: ignore[name-defined]  # noqa: F821  (an import under TYPE_CHECKING looks like this)


@dataclass
class Rich:
    """What JSON could not say, but the annotation can."""

    by_number: dict[int, tuple[int, ...]]
    mode: Mode
    tags: set[str]
    loaded: int = field(default=1, init=False)


def test_pending_edits_are_revived_whatever_their_annotation(tmp_path: Path) -> None:
    """`list` without a parameter holds edits all the same, checked like the others."""
    revived = dropin.deserialize_state_fields(plain_state(), **{**CLASSES, "probation": LooseProbation})
    assert_same(revived["probations"], {"temporal": LooseProbation("temporal", 4, 0.5, [new_edit(5)])})
    d = plain_state()
    d["probations"]["temporal"]["pending_edits"][0]["extra"] = 1
    with pytest.raises(SchemaError, match=r"pending_edits\[0\]"):
        dropin.deserialize_state_fields(d, **{**CLASSES, "probation": LooseProbation})
    assert_equivalent(tmp_path, state=new_state(**revived))


def test_annotations_turn_back_what_json_could_not_say() -> None:
    """Number keys, tuples, sets, Enums, and fields that are not parameters of `__init__`."""
    d = plain_state(rejected_buffer={})
    d["rejected_buffer"] = {"t": [{"by_number": {"1": [2, 3]}, "mode": "fast", "tags": ["a"], "loaded": 7}]}
    rich = Rich({1: (2, 3)}, Mode.FAST, {"a"})
    rich.loaded = 7
    assert_same(dropin.deserialize_state_fields(d, **{**CLASSES, "rejected_edit": Rich, "probation": dict})["rejected_buffer"], {"t": [rich]})


def test_a_class_that_cannot_be_made_is_an_error_of_ours() -> None:
    """An InitVar, an annotation that does not resolve, something that is no class."""
    for cls in (Sum, Unresolved, 3):
        with pytest.raises(SchemaError, match="cannot revive"):
            dropin.deserialize_state_fields(plain_state(), **{**CLASSES, "rejected_edit": cls})


def test_structs_can_be_revived_too() -> None:
    """Those of `schema` for the packs, and one with renamed fields and a tag."""

    class Edit(msgspec.Struct, rename={"operation": "op"}):
        target: str
        operation: str
        content: str
        epoch: int
        scores: dict[str, float]
        evidence: list[Any]

    revived = dropin.deserialize_state_fields(
        plain_state(), rejected_edit=Edit, probation=Probation, system_pack=schema.SystemCasePack, tool_pack=schema.ToolCasePack
    )
    assert revived["rejected_buffer"]["temporal"][0].operation == "replace"
    assert isinstance(revived["system_packs"][0].failure_cases[0], schema.CaseSample)
    assert revived["tool_packs"] == [schema.ToolCasePack("search", ["search.md"], {"n": 1}, [{"query": "x", "completeness": 0.5}], [])]


def test_resuming_gives_the_next_checkpoint_that_an_unbroken_run_gives(tmp_path: Path) -> None:
    """Save, load, revive, save: the same message again."""
    dropin.write_checkpoint(tmp_path, **arguments())
    first = file.read(tmp_path / OURS).message
    payload = dropin.load_checkpoint(tmp_path)
    assert payload is not None
    state = new_state(**dropin.deserialize_state_fields(payload["state"], **CLASSES))
    dropin.write_checkpoint(tmp_path, **arguments(state))
    assert file.read(tmp_path / OURS).message == first


# The typed view --------------------------------------------------------------------------------------------------------


def test_a_parametrised_checkpoint_loads_into_the_applications_classes(tmp_path: Path) -> None:
    """From our file and from the JSON, dataclasses and all, and a set again."""
    typed = schema.Checkpoint[schema.TrainState[RejectedEdit, Probation, SystemCasePack, ToolCasePack]]
    dropin.write_checkpoint(tmp_path, **arguments())
    old_module.write_checkpoint(tmp_path, **arguments())
    for name in (OURS, THEIRS):
        loaded = fastckpt.load(tmp_path / name, typed)
        assert_same(loaded.progress, schema.Progress(1, 3, "in_epoch", 33, 120))
        assert loaded.epoch_batches == [["q_1"], ["q_2"]]
        assert_same({field: getattr(loaded.state, field) for field in PERSISTED}, {field: getattr(new_state(), field) for field in PERSISTED})


def test_unparametrised_places_hold_plain_dicts_and_lose_nothing(tmp_path: Path) -> None:
    """`Checkpoint` alone holds the state as a dict, `Checkpoint[TrainState]` the records, with keys that nobody knows."""
    state = new_state(rejected_buffer={"t": [Derived({"unknown": 1})]}, probations={"t": Note()})
    dropin.write_checkpoint(tmp_path, **arguments(state))
    plain = dropin.load_checkpoint(tmp_path)
    assert plain is not None
    assert_same(fastckpt.load(tmp_path / OURS, schema.Checkpoint).state, plain["state"])
    loaded = fastckpt.load(tmp_path / OURS, schema.Checkpoint[schema.TrainState])
    assert isinstance(loaded.state, schema.TrainState)
    for name in ("rejected_buffer", "system_packs", "tool_packs", "probations"):
        assert_same(getattr(loaded.state, name), plain["state"][name])
    fastckpt.save(tmp_path / "typed.fastckpt", loaded, type=schema.Checkpoint[schema.TrainState])
    again = fastckpt.load(tmp_path / "typed.fastckpt")
    again["state"]["changed_task_types_this_epoch"].sort()
    assert_same(again, plain)


def test_the_ready_made_structs_refuse_what_they_do_not_know(tmp_path: Path) -> None:
    """A key that none of their fields takes is an error that names it, not a loss; so is one that is missing."""
    dropin.write_checkpoint(tmp_path, **arguments())
    payload = dropin.load_checkpoint(tmp_path)
    assert payload is not None
    typed = schema.Checkpoint[schema.TrainState[dict[str, Any], dict[str, Any], schema.SystemCasePack, schema.ToolCasePack]]
    fastckpt.load(tmp_path / OURS, typed)
    payload["state"]["system_packs"][0]["failure_cases"][0]["extra"] = 1
    fastckpt.save(tmp_path / "extra.fastckpt", payload)
    with pytest.raises(SchemaError, match="extra"):
        fastckpt.load(tmp_path / "extra.fastckpt", typed)
    del payload["state"]["system_packs"][0]["failure_cases"][0]["extra"], payload["state"]["gate_cooldown"]
    fastckpt.save(tmp_path / "less.fastckpt", payload)
    with pytest.raises(MissingFieldError, match="gate_cooldown"):
        fastckpt.load(tmp_path / "less.fastckpt", typed)


def test_every_ready_made_struct_is_a_map_with_all_its_fields() -> None:
    """FAULTS G4, G5: no array_like, no omit_defaults, and no default that could hide a loss."""
    for name in schema.__all__:
        config = getattr(schema, name).__struct_config__
        assert not config.array_like
        assert not config.omit_defaults
        assert getattr(schema, name).__struct_defaults__ == ()


# Loading: which file, and what is wrong with it --------------------------------------------------------------------------


def migrated(folder: Path, **changed: Any) -> None:
    """`checkpoint.json` as the replaced module wrote it, and our file that was migrated from it."""
    old_module.write_checkpoint(folder, **arguments(**changed))
    data = (folder / THEIRS).read_bytes()
    encoded = Codec().encode(json.loads(data))
    file.write(folder / OURS, encoded, source=container.Source(file.source_digest(data), migrated=True))


def test_none_only_when_neither_file_exists(tmp_path: Path) -> None:
    """Also in a workspace that does not exist yet; one that is no directory is an error."""
    assert dropin.load_checkpoint(tmp_path) is None
    assert dropin.load_checkpoint(tmp_path / "not" / "yet") is None
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError):
        dropin.load_checkpoint(tmp_path / "file")
    (tmp_path / OURS).mkdir()
    with pytest.raises(StorageError):
        dropin.load_checkpoint(tmp_path)


def test_either_file_alone_is_loaded(tmp_path: Path) -> None:
    """A program can switch before its files do; a path may be text or a Path."""
    old_module.write_checkpoint(tmp_path, **arguments())
    expected = old_module.load_checkpoint(tmp_path)
    assert_same(dropin.load_checkpoint(str(tmp_path)), expected)
    dropin.write_checkpoint(str(tmp_path), **arguments())
    (tmp_path / THEIRS).unlink()
    assert_same(dropin.load_checkpoint(tmp_path), expected)


def test_the_source_of_a_migration_is_ignored_for_good(tmp_path: Path) -> None:
    """Right after the migration and after later saves, of whatever step; the digest is carried on, no longer as the migration itself."""
    migrated(tmp_path, step=33)
    payload = dropin.load_checkpoint(tmp_path)
    assert payload is not None
    assert payload["progress"]["global_step"] == 33
    for step in (34, 2, 33):
        dropin.write_checkpoint(tmp_path, **arguments(new_state(eval_prev_acc=0.9), step))
        payload = dropin.load_checkpoint(tmp_path)
        assert payload is not None
        assert payload["progress"]["global_step"] == step
        source = file.inspect(tmp_path / OURS).source
        assert source == container.Source(file.source_digest((tmp_path / THEIRS).read_bytes()), migrated=False)


@pytest.mark.parametrize(("ours", "theirs"), [(34, 33), (33, 34), (0, -1), (2**64, 3)])
def test_of_two_files_the_larger_step_is_taken_with_a_warning(tmp_path: Path, ours: int, theirs: int) -> None:
    """The warning names both files and both steps, and is the caller's; nothing is removed."""
    dropin.write_checkpoint(tmp_path, **arguments(step=ours))
    old_module.write_checkpoint(tmp_path, **arguments(step=theirs))
    with pytest.warns(CheckpointWarning) as caught:
        payload = dropin.load_checkpoint(tmp_path)
    assert payload is not None
    assert payload["progress"]["global_step"] == max(ours, theirs)
    text = str(caught[0].message)
    assert all(part in text for part in (str(tmp_path / OURS), str(tmp_path / THEIRS), f"step {ours} in", f"step {theirs} in"))
    assert caught[0].filename == __file__
    assert everything_in(tmp_path) == [OURS, THEIRS]


def test_a_json_that_changed_after_its_migration_counts_again(tmp_path: Path) -> None:
    """Somebody went back to the old program for a while: its newer step wins, loudly, until our file is ahead again."""
    migrated(tmp_path, step=33)
    old_module.write_checkpoint(tmp_path, **arguments(step=40))
    for step in (40, 41):
        with pytest.warns(CheckpointWarning, match="two checkpoints"):
            payload = dropin.load_checkpoint(tmp_path)
        assert payload is not None
        assert payload["progress"]["global_step"] == step
        dropin.write_checkpoint(tmp_path, **arguments(step=41))


def test_two_files_of_one_step_must_agree(tmp_path: Path) -> None:
    """Different content, by value or by type, is a ConflictError that names both; the same content is fine, in whatever order and format."""
    dropin.write_checkpoint(tmp_path, **arguments())
    old_module.write_checkpoint(tmp_path, **arguments())
    expected = old_module.load_checkpoint(tmp_path)
    assert expected is not None
    assert_same(dropin.load_checkpoint(tmp_path), expected)
    (tmp_path / THEIRS).write_text(json.dumps(expected, sort_keys=True))
    assert_same(dropin.load_checkpoint(tmp_path), expected)
    for changed in ({"correctness": {"q_1": True, "q_2": 0}}, {"eval_prev_acc": 0.62}):
        (tmp_path / THEIRS).write_text(json.dumps({**expected, "state": {**expected["state"], **changed}}))
        with pytest.raises(ConflictError) as caught:
            dropin.load_checkpoint(tmp_path)
        assert caught.value.paths == (str(tmp_path / OURS), str(tmp_path / THEIRS))
        assert isinstance(caught.value, ValueError)
        assert "step 33" in str(caught.value)


def test_steps_that_cannot_be_compared_are_a_conflict(tmp_path: Path) -> None:
    """Where the step is no number (JSON took anything) the newer one is not guessed."""
    dropin.write_checkpoint(tmp_path, **arguments(step="33"))
    assert file.inspect(tmp_path / OURS).step is None
    old_module.write_checkpoint(tmp_path, **arguments(step=34))
    with pytest.raises(ConflictError, match="'33' and 34"):
        dropin.load_checkpoint(tmp_path)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "all but the last byte": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
    "a zeroed tail": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "another kind of file": lambda data: b"PK\x03\x04 something else",
}


@pytest.mark.parametrize("other", [False, True], ids=["alone", "beside a sound one"])
@pytest.mark.parametrize("name", [OURS, THEIRS])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_raises_whatever_is_beside_it(tmp_path: Path, damage: str, name: str, other: bool) -> None:
    """FAULTS E2, E3: never None and never the other file in silence; the error names the damaged file, and how to go on with the other."""
    dropin.write_checkpoint(tmp_path, **arguments(step=34))
    old_module.write_checkpoint(tmp_path, **arguments(step=33))
    broken, sound = (tmp_path / OURS, tmp_path / THEIRS) if name == OURS else (tmp_path / THEIRS, tmp_path / OURS)
    broken.write_bytes(data := DAMAGE[damage](broken.read_bytes()))
    if not other:
        sound.unlink()
    with pytest.raises(CheckpointError) as caught:
        dropin.load_checkpoint(tmp_path)
    error = caught.value
    assert isinstance(error, ValueError)
    assert str(broken) in str(error)
    assert (f"go on from step {34 if name == THEIRS else 33} in {sound}" in error.remedy) == other
    assert broken.read_bytes() == data


def test_any_flipped_bit_of_our_file_is_found(tmp_path: Path) -> None:
    """FAULTS E1: a sample of bits all over the file: an error under CheckpointError, or the identical payload."""
    dropin.write_checkpoint(tmp_path, **arguments())
    expected, data = dropin.load_checkpoint(tmp_path), (tmp_path / OURS).read_bytes()
    for bit in range(0, 8 * len(data), 37):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / OURS).write_bytes(flipped)
        try:
            loaded = dropin.load_checkpoint(tmp_path)
        except CheckpointError:
            continue
        assert_same(loaded, expected)


def test_json_of_another_encoding_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """The replaced module on a Chinese Windows wrote GBK: not read as something else."""
    old_module.write_checkpoint(tmp_path, **arguments())
    path = tmp_path / THEIRS
    path.write_bytes(path.read_text("utf-8").encode("gbk", "backslashreplace"))
    with pytest.raises(JsonError, match="gbk"):
        dropin.load_checkpoint(tmp_path)


def required() -> Iterator[tuple[str, str]]:
    for key in ("schema_version", "progress", "version_snapshot", "epoch_batches", "config_fingerprint", "state"):
        yield "$", key
    for key in schema.Progress.__struct_fields__:
        yield "$.progress", key
    for key in PERSISTED:
        yield "$.state", key


@pytest.mark.parametrize(("where", "key"), list(required()))
def test_a_payload_without_a_required_key_is_refused(tmp_path: Path, where: str, key: str) -> None:
    """In either file: a MissingFieldError (a KeyError) that names key, place and file, never a default and never None."""
    dropin.write_checkpoint(tmp_path, **arguments())
    payload = dropin.load_checkpoint(tmp_path)
    assert payload is not None
    del (payload if where == "$" else payload[where[2:]])[key]
    fastckpt.save(tmp_path / OURS, payload)
    for path in (tmp_path / OURS, tmp_path / THEIRS):
        with pytest.raises(KeyError) as caught:
            dropin.load_checkpoint(tmp_path)
        error = caught.value
        assert isinstance(error, MissingFieldError)
        assert (error.field, error.where, error.path) == (key, where, str(path))
        (tmp_path / OURS).unlink(missing_ok=True)
        (tmp_path / THEIRS).write_text(json.dumps(payload))


@pytest.mark.parametrize("version", [2, 0, "1", None, True, 1.0])
def test_an_unknown_schema_version_is_refused(tmp_path: Path, version: Any) -> None:
    """It says both versions; a newer payload is not read as if it were this one, even where it has other keys."""
    (tmp_path / THEIRS).write_text(json.dumps({"schema_version": version, "new": {}}))
    with pytest.raises(SchemaError, match=r"unknown schema version .*, this module knows 1"):
        dropin.load_checkpoint(tmp_path)


def test_something_else_than_a_payload_is_refused(tmp_path: Path) -> None:
    """Another JSON document, or one whose parts are of another kind."""
    for data in ([], 1, {"schema_version": 1, "progress": [], "version_snapshot": {}, "epoch_batches": [], "config_fingerprint": {}, "state": {}}):
        (tmp_path / THEIRS).write_text(json.dumps(data))
        with pytest.raises(SchemaError, match="expected a dict, got"):
            dropin.load_checkpoint(tmp_path)


# The file itself -------------------------------------------------------------------------------------------------------


def test_the_file_says_its_step_and_holds_plain_data(tmp_path: Path) -> None:
    """`inspect` shows the step; whatever kind of number it is, the header stays readable."""
    for step, expected in [(33, 33), (True, 1), (Level.LOW, 1), (2**64, None), (1.5, None), (-3, -3), (None, None)]:
        dropin.write_checkpoint(tmp_path, **arguments(step=step), storage=FAST)
        info = fastckpt.inspect(tmp_path / OURS)
        assert_same(info.step, expected)
        assert (info.kind, info.type, info.source) == ("single", "", None)
        assert fastckpt.verify(tmp_path / OURS) == []


def test_a_damaged_old_file_is_replaced_and_hands_nothing_on(tmp_path: Path) -> None:
    """Neither an error nor a digest out of rubble."""
    migrated(tmp_path)
    data = bytearray((tmp_path / OURS).read_bytes())
    data[60] ^= 1
    (tmp_path / OURS).write_bytes(data)
    dropin.write_checkpoint(tmp_path, **arguments())
    assert file.inspect(tmp_path / OURS).source is None


def test_a_run_is_never_replaced(tmp_path: Path) -> None:
    """A file of many steps stays as it is: ConflictError."""
    (tmp_path / OURS).write_bytes(data := container.pack_file_header(bytes(range(16)), run=True) + b"records")
    with pytest.raises(ConflictError):
        dropin.write_checkpoint(tmp_path, **arguments())
    assert (tmp_path / OURS).read_bytes() == data


def test_every_failing_call_leaves_the_old_checkpoint_or_the_new(tmp_path: Path) -> None:
    """FAULTS B1, B4, B9: the n-th system call fails, for every n: an error of ours or success, and a load of the old step or the new."""
    dropin.write_checkpoint(tmp_path, **arguments(step=1))
    recorder = RecordingStorage(Storage())
    dropin.write_checkpoint(tmp_path, **arguments(step=1), storage=recorder)
    calls = len(recorder.calls)
    assert calls > 8
    for number in range(1, calls + 1):
        storage = FaultyStorage(Storage(), nth=number)
        try:
            dropin.write_checkpoint(tmp_path, **arguments(step=2), storage=storage)
        except CheckpointError:
            pass
        loaded = dropin.load_checkpoint(tmp_path)
        assert loaded is not None
        assert loaded["progress"]["global_step"] in (1, 2)
        dropin.write_checkpoint(tmp_path, **arguments(step=1))


def test_what_is_written_was_synced_before_it_got_its_name(tmp_path: Path) -> None:
    """FAULTS A6 for the drop-in: the file, then the rename, then the directory."""
    recorder = RecordingStorage(Storage())
    dropin.write_checkpoint(tmp_path, **arguments(), storage=recorder)
    calls = [call[0] for call in recorder.calls]
    assert [call for call in calls[calls.index("write") :] if call in ("sync", "replace")] == ["sync", "replace", "sync"]


def test_removing_starts_afresh(tmp_path: Path) -> None:
    """Both files go, the JSON first, each durably; where there is none, nothing happens; nothing else is touched."""
    dropin.remove_checkpoint(tmp_path)
    migrated(tmp_path)
    (tmp_path / "other.json").write_text("{}")
    recorder = RecordingStorage(Storage())
    dropin.remove_checkpoint(tmp_path, storage=recorder)
    assert [call[0] for call in recorder.calls if call[0] in ("unlink", "sync")] == ["unlink", "sync", "unlink", "sync"]
    assert everything_in(tmp_path) == ["other.json"]
    assert dropin.load_checkpoint(tmp_path) is None
    dropin.remove_checkpoint(str(tmp_path))


def test_the_names_of_the_replaced_module_are_all_there() -> None:
    """A changed import line is all that a run needs; keyword arguments have the same names."""
    functions = ("serialize_state", "compute_fingerprint", "check_fingerprint", "write_checkpoint", "load_checkpoint", "remove_checkpoint")
    for name in ("CHECKPOINT_SCHEMA_VERSION", *functions):
        ours, theirs = getattr(dropin, name), getattr(old_module, name)
        assert name in dropin.__all__
        if callable(ours):
            expected = {key: parameter.kind for key, parameter in inspect.signature(theirs).parameters.items()}
            found = {key: parameter.kind for key, parameter in inspect.signature(ours).parameters.items() if key != "storage"}
            assert found == expected
        else:
            assert_same(ours, theirs)
