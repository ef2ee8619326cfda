"""States of earlier versions of a program: fields added, removed, renamed and changed, with and without upgrades (FAULTS G3 to G6)."""

from __future__ import annotations

import dataclasses
import enum
import json
from pathlib import Path
from typing import Any, TypedDict

import attrs
import msgspec
import pytest
from support import assert_same

from fastckpt import CheckpointManager, CheckpointWarning, History, MissingFieldError, SchemaError, load, save
from fastckpt.upgrades import unknown_fields

FILE = "checkpoint.fastckpt"


@dataclasses.dataclass
class First:
    loss: int
    name: str
    seen: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Second:
    """`name` became `title`, and `loss` a float."""

    title: str
    loss: float
    seen: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Third:
    """`loss` moved into a dict."""

    title: str
    losses: dict[str, float]
    seen: set[str] = dataclasses.field(default_factory=set)


def renamed(plain: Any) -> Any:
    plain["title"] = plain.pop("name")
    return plain


def moved(plain: Any) -> Any:
    return {"title": plain["title"], "losses": {"train": plain["loss"]}, "seen": plain["seen"]}


UPGRADES = {1: renamed, 2: moved}


def test_every_stored_version_comes_up_to_date(tmp_path: Path) -> None:
    """A run that three versions of a program wrote restores as today's type at every step, each through the upgrades that it needs."""
    with CheckpointManager(tmp_path, First) as manager:
        manager.save(0, First(3, "a", ["x", "y"]))
    with CheckpointManager(tmp_path, Second, schema_version=2, upgrades={1: renamed}) as manager:
        assert_same(manager.restore(), Second("a", 3.0, {"x", "y"}))
        manager.save(1, Second("b", 1.5, {"z"}))
    with CheckpointManager(tmp_path, Third, schema_version=3, upgrades=UPGRADES) as manager:
        assert_same(manager.restore(0), Third("a", {"train": 3.0}, {"x", "y"}))
        assert_same(manager.restore(1), Third("b", {"train": 1.5}, {"z"}))
        manager.save(2, Third("c", {"train": 0.5}))
        assert_same(manager.restore(2), Third("c", {"train": 0.5}))
    with History(tmp_path, Third, schema_version=3, upgrades=UPGRADES) as history:
        assert [history.restore(step).title for step in history.all_steps()] == ["a", "b", "c"]
        assert history.series("title") == [(1, "b"), (2, "c")]  # what was saved, not what it became


def test_data_that_holds_ext_values_is_upgraded_too(tmp_path: Path) -> None:
    """Long integers and lone surrogates are plain values to an upgrade."""
    with CheckpointManager(tmp_path) as manager:
        manager.save(0, {"loss": 2**90, "name": "\ud800"})
    with CheckpointManager(tmp_path, schema_version=2, upgrades={1: renamed}) as manager:
        assert_same(manager.restore(), {"loss": 2**90, "title": "\ud800"})


def test_a_version_without_an_upgrade_is_named(tmp_path: Path) -> None:
    """Where no upgrade leads on, the error says from which version, and how to give one."""
    with CheckpointManager(tmp_path, First) as manager:
        manager.save(0, First(1, "a"))
    expected = r"schema version 1, and there is no upgrade from version 1 to 2.*upgrades=\{1: …\}"
    with CheckpointManager(tmp_path, Third, schema_version=3, upgrades={2: moved}) as manager, pytest.raises(SchemaError, match=expected):
        manager.restore()


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    """A state of a newer program is not read as an older one's."""
    with CheckpointManager(tmp_path, Second, schema_version=2) as manager:
        manager.save(0, Second("a", 1.0))
    with CheckpointManager(tmp_path, Second) as manager, pytest.raises(SchemaError, match="saved with schema version 2, this program has 1"):
        manager.restore()
    assert_same(load(tmp_path / FILE, Second), Second("a", 1.0))  # which knows no versions, and goes by the type alone


def test_what_an_upgrade_raises_comes_through(tmp_path: Path) -> None:
    """An error in an upgrade is the program's own, with a note of where it was, and the run is as it was."""
    with CheckpointManager(tmp_path, First) as manager:
        manager.save(7, First(1, "a"))
    with CheckpointManager(tmp_path, Second, schema_version=2, upgrades={1: lambda plain: plain["nothing"]}) as manager:
        with pytest.raises(KeyError) as caught:
            manager.restore()
        assert "from schema version 1 to 2" in caught.value.__notes__[0]
        assert "step 7" in caught.value.__notes__[0]
        assert manager.all_steps() == [7]


@pytest.mark.parametrize(
    "options",
    [{"schema_version": 0}, {"schema_version": "2"}, {"schema_version": 2, "upgrades": {2: moved}}, {"upgrades": {1: moved}}, {"unknown": "drop"}],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """Versions below 1, upgrades that lead nowhere and unknown words are refused when the manager is made; nothing appears."""
    with pytest.raises(ValueError, match=r"schema|unknown"):
        CheckpointManager(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


# --- the type changed, without an upgrade ----------------------------------------------------------------------------


@dataclasses.dataclass
class Old:
    a: int
    b: str = "old"
    c: float = 1.0


@dataclasses.dataclass
class Reordered:
    c: float
    a: int
    b: str = "new"


@dataclasses.dataclass
class Added:
    a: int
    b: str = "new"
    c: float = 1.0
    d: list[int] = dataclasses.field(default_factory=lambda: [1])


@dataclasses.dataclass
class Removed:
    a: int
    c: float = 1.0


@dataclasses.dataclass
class Demanding:
    a: int
    needed: str


@dataclasses.dataclass
class Widened:
    a: float
    b: str = "old"
    c: float = 1.0


@dataclasses.dataclass
class Narrowed:
    a: int
    b: int
    c: float = 1.0


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path, Old) as manager:
        manager.save(0, Old(5, "kept", 2.5))
    return tmp_path


@pytest.mark.parametrize(
    ("type", "expected"), [(Reordered, Reordered(2.5, 5, "kept")), (Added, Added(5, "kept", 2.5, [1])), (Widened, Widened(5.0, "kept", 2.5))]
)
def test_a_field_added_reordered_or_widened(saved: Path, type: Any, expected: Any) -> None:
    """FAULTS G3, G5: what was saved wins over a new default, the order does not count, an int becomes the float, a new field its default."""
    with CheckpointManager(saved, type) as manager:
        assert_same(manager.restore(), expected)
    assert_same(load(saved / FILE, type), expected)


def test_a_field_removed_is_refused_or_dropped_aloud(saved: Path) -> None:
    """FAULTS G3: a field that the type no longer has is refused by name; with `unknown="warn"` it is dropped with a warning."""
    with CheckpointManager(saved, Removed) as manager, pytest.raises(SchemaError, match=r"Removed does not have: `\$\.b`") as caught:
        manager.restore()
    assert caught.value.where == "$.b"
    with CheckpointManager(saved, Removed, unknown="warn") as manager, pytest.warns(CheckpointWarning, match=r"`\$\.b`; they are dropped"):
        assert_same(manager.restore(), Removed(5, 2.5))
    with pytest.raises(SchemaError, match=r"`\$\.b`"):
        load(saved / FILE, Removed)
    with pytest.warns(CheckpointWarning, match=r"`\$\.b`"):
        assert_same(load(saved / FILE, Removed, unknown="warn"), Removed(5, 2.5))


def test_a_missing_field_is_named_and_never_made_up(saved: Path) -> None:
    """FAULTS G3: a required field that was not saved is an error that names it."""
    with CheckpointManager(saved, Demanding, unknown="warn") as manager, pytest.raises(MissingFieldError, match="needed"):
        manager.restore()


def test_a_value_that_fits_no_longer_is_named_and_readable_untyped(saved: Path) -> None:
    """FAULTS G6: a value that the new annotation does not take is an error with its path; without a type it is still there."""
    with CheckpointManager(saved, Narrowed) as manager, pytest.raises(SchemaError, match=r"\$\.b"):
        manager.restore()
    with CheckpointManager(saved) as manager:
        assert_same(manager.restore(), {"a": 5, "b": "kept", "c": 2.5})


def test_unknown_fields_of_untyped_data(tmp_path: Path) -> None:
    """What was stored untyped, as a migration does, or as JSON, is looked at too."""
    save(tmp_path / FILE, {"a": 1, "c": 2.0, "more": {"x": 1}})
    with pytest.raises(SchemaError, match=r"`\$\.more`"):
        load(tmp_path / FILE, Removed)
    (tmp_path / "x.json").write_text(json.dumps({"a": 1, "c": 2.0, "more": 1}))
    with pytest.raises(SchemaError, match=r"`\$\.more`"):
        load(tmp_path / "x.json", Removed)
    with pytest.warns(CheckpointWarning, match=r"`\$\.more`"):
        assert_same(load(tmp_path / "x.json", Removed, unknown="warn"), Removed(1, 2.0))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Row(msgspec.Struct, frozen=True):
    x: int
    y: int = 0


class Part(TypedDict):
    x: int


@attrs.define
class Noted:
    x: int


class Everything(msgspec.Struct):
    colours: dict[Colour, int] = {}
    rows: list[Row] = []
    unique: set[Row] = set()
    pair: tuple[Row, Row] | None = None
    part: Part | None = None
    noted: Noted | None = None
    numbers: dict[int, Row] = {}
    anything: Any = None


def test_nothing_known_is_taken_for_unknown(tmp_path: Path) -> None:
    """Keys and elements that come back as another type than they are saved as are no unknown fields, however deep they are."""
    value = Everything(
        {Colour.RED: 1, Colour.BLUE: 2},
        [Row(1)],
        {Row(1), Row(2, 3)},
        (Row(1), Row(2)),
        {"x": 1},
        Noted(1),
        {5: Row(1), -7: Row(2)},
        {"a": [{"b": 1}]},
    )
    save(tmp_path / FILE, value)
    plain = load(tmp_path / FILE)
    assert_same(list(unknown_fields(plain, value)), [])
    save(tmp_path / FILE, plain)
    assert load(tmp_path / FILE, Everything) == value


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda plain: plain["rows"][0].update(z=1), "$.rows[0].z"),
        (lambda plain: plain["unique"][1].update(z=1), "$.unique[1].z"),
        (lambda plain: plain["pair"][1].update(z=1), "$.pair[1].z"),
        (lambda plain: plain["part"].update(z=1), "$.part.z"),
        (lambda plain: plain["noted"].update(z=1), "$.noted.z"),
        (lambda plain: plain["numbers"][-7].update(z=1), "$.numbers[-7].z"),
        (lambda plain: plain.update(z=1), "$.z"),
    ],
)
def test_an_unknown_field_is_found_wherever_it_is(tmp_path: Path, change: Any, where: str) -> None:
    """Inside lists, sets, tuples, TypedDicts, attrs classes and keyed by numbers, an unknown field is found and named."""
    value = Everything({}, [Row(1)], {Row(1), Row(2, 3)}, (Row(1), Row(2)), {"x": 1}, Noted(1), {5: Row(1), -7: Row(2)})
    save(tmp_path / FILE, value)
    plain = load(tmp_path / FILE)
    change(plain)
    save(tmp_path / FILE, plain)
    with pytest.raises(SchemaError) as caught:
        load(tmp_path / FILE, Everything)
    assert caught.value.where == where


@pytest.mark.parametrize("type", [Any, Second])
def test_an_upgrade_that_forgets_to_return_is_named(tmp_path: Path, type: Any) -> None:
    """A function that changes the data in place and returns nothing does not make None of a state."""
    with CheckpointManager(tmp_path, First) as manager:
        manager.save(0, First(1, "a"))
    with CheckpointManager(tmp_path, type, schema_version=2, upgrades={1: lambda plain: None}) as manager:
        with pytest.raises(SchemaError, match="the upgrade returned None") as caught:
            manager.restore()
        assert "from schema version 1 to 2" in caught.value.__notes__[0]
