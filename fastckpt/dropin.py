"""The functions of the replaced checkpoint module, call for call, on a durable binary file instead of a `checkpoint.json`.

A run changes its import line, and hands its own classes to `deserialize_state_fields`. What `load_checkpoint` returns equals,
value and type, what the replaced module would have read back from its JSON; what that could not write is refused here too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import PurePath
from typing import Any, Generic, NamedTuple, Self
from warnings import warn

import msgspec

from . import file
from .codec import Codec, Encoded, convert
from .container import Source
from .errors import CheckpointError, CheckpointWarning, ConflictError, EncodeError, MissingFieldError, NotFoundError, SchemaError
from .jsonable import LEAVES, RefusedError, a_type, is_plain, plain
from .manager import CheckpointManager, SaveStats
from .resume import ConfigDifference, Fingerprint, Tier
from .schema import EditT, ProbationT, Progress, SystemPackT, ToolPackT, TrainState
from .storage import DISK, Storage, remove
from .tree import abridged, difference, fields_of, path_text, type_name
from .twin import from_json

__all__ = [
    "CHECKPOINT_SCHEMA_VERSION",
    "StepCheckpointer",
    "check_fingerprint",
    "compute_fingerprint",
    "deserialize_state_fields",
    "fingerprint",
    "load_checkpoint",
    "remove_checkpoint",
    "serialize_state",
    "write_checkpoint",
]

CHECKPOINT_SCHEMA_VERSION = 1

_OURS, _THEIRS = "checkpoint.fastckpt", "checkpoint.json"

# A changed structural key makes the saved batches and counters meaningless; a decision key only steers what comes next.
_STRUCTURAL = ("batch_size", "min_class_per_batch", "epochs", "diag_size", "val_size", "batch_correct_ratio")
_DECISION = (
    "edit_budget_start", "edit_budget_end", "early_stop_patience", "use_slow_momentum", "skill_update_mode", "appendix_consolidate_threshold",
    "momentum_samples", "gate_e_confirm", "gate_e_provisional", "gate_w_net_min", "gate_delta_min", "gate_lambda_dir", "gate_e_rollback",
    "gate_block", "gate_n_max", "gate_p_low", "gate_p_high", "gate_probe_quota", "gate_gamma_decay", "gate_cooldown_steps", "gate_guard_err",
)  # fmt: skip

_PERSISTED: tuple[str, ...] = TrainState.__struct_fields__
_PROGRESS: tuple[str, ...] = Progress.__struct_fields__
_PAYLOAD = ("progress", "version_snapshot", "epoch_batches", "config_fingerprint", "state")
# The fields in which the replaced module took `asdict` of what they hold; only there may dataclasses be.
_LISTS, _LISTS_BY_TASK, _BY_TASK = ("system_packs", "tool_packs"), ("rejected_buffer",), ("probations",)
_RECORDS = (*_LISTS_BY_TASK, *_LISTS, *_BY_TASK)

PathType = str | PathLike[str]

# One for all saves: it remembers where values are that msgspec refuses (lone surrogates, long integers) from one to the next.
_CODEC = Codec()


# --- the state and the configuration -----------------------------------------------------------------------------------


def serialize_state(state: Any) -> dict[str, Any]:
    """The 14 persisted fields: dataclasses in the packs, buffers and probations as dicts, the set of task types as a sorted list.

    `write_checkpoint` takes the state itself and does not need this. Raises `EncodeError` where an attribute is missing, or where
    something else than dataclasses (or dicts) is in the place of one.
    """
    fields = _fields(state)
    return {name: dataclasses.asdict(_Holder(value))["value"] if name in _RECORDS else value for name, value in fields.items()}


@dataclasses.dataclass
class _Holder:
    """For `asdict`, which takes a dataclass and then goes through what it holds."""

    value: Any


def _fields(state: Any) -> dict[str, Any]:
    """The persisted fields in their order, the set sorted, and records in exact dicts and lists."""
    fields: dict[str, Any] = {}
    for name in _PERSISTED:
        try:
            fields[name] = getattr(state, name)
        except AttributeError as error:
            raise EncodeError(f"the state has no attribute `{name}`", where=f"$.state.{name}", remedy="set it before saving") from error
    try:
        fields["changed_task_types_this_epoch"] = sorted(fields["changed_task_types_this_epoch"])
    except TypeError as error:
        raise EncodeError(f"it cannot be sorted ({error})", where="$.state.changed_task_types_this_epoch", remedy="make it a set of text") from error
    for name in _LISTS:
        fields[name] = _list(fields[name], "state", name)
        _require_records(enumerate(fields[name]), "state", name)
    for name in (*_LISTS_BY_TASK, *_BY_TASK):
        held = fields[name]
        if not hasattr(held, "items"):
            raise EncodeError(f"expected a dict, got {a_type(held)}", where=f"$.state.{name}", remedy="make it a dict by task type")
        fields[name] = held = dict(held.items())  # a snapshot, which no other thread can change under the loops below
        if name in _BY_TASK:
            _require_records(held.items(), "state", name)
            continue
        for key, items in held.items():
            held[key] = _list(items, "state", name, key)
            _require_records(enumerate(held[key]), "state", name, key)
    return fields


def _list(items: Any, *steps: object) -> list[Any]:
    if type(items) is list:
        return items
    try:
        return list(items)
    except TypeError:
        raise EncodeError(f"expected a list, got {a_type(items)}", where=path_text(steps), remedy="make it a list of dataclasses") from None


def _require_records(items: Iterable[tuple[Any, Any]], *steps: object) -> None:
    """A dict stands for a record that was never revived; the replaced module took nothing but dataclasses."""
    for step, item in items:
        if not isinstance(item, dict) and not hasattr(type(item), "__dataclass_fields__"):
            where = path_text([*steps, step])
            raise EncodeError(f"expected a dataclass, got {a_type(item)}", where=where, remedy="put the application's own object there")


def deserialize_state_fields(
    d: dict[str, Any],
    *,
    rejected_edit: Any = None,
    probation: Any = None,
    system_pack: Any = None,
    tool_pack: Any = None,
) -> dict[str, Any]:
    """The 14 fields of a loaded state (`load_checkpoint(...)["state"]`), with objects of the application's classes and the set again.

    The classes are dataclasses or Structs; whatever classes they hold are revived too, and `dict` keeps the records of a place as
    they are. Values must fit the annotations, which also turn back what JSON could not say: an int for a float, number keys,
    tuples, sets, Enums. `__post_init__` runs, `__init__` does not.

    Raises `TypeError` naming the keywords that are not given, `MissingFieldError` (a `KeyError`) for a field that is not there,
    also where the class has a default, and `SchemaError` (a `ValueError`) for a value that does not fit or a key that no field takes.
    """
    given = {"rejected_edit": rejected_edit, "probation": probation, "system_pack": system_pack, "tool_pack": tool_pack}
    if missing := [f"{name}=" for name, cls in given.items() if cls is None]:
        # Always, and not only when there is something to revive: otherwise it would be found out at the first resume that needs it.
        raise TypeError(f"deserialize_state_fields() needs {', '.join(missing)}: the application's own classes (or `dict` to keep plain dicts)")
    _require(d, _PERSISTED, "$.state", "")
    fields = {name: d[name] for name in _PERSISTED}
    try:
        revived = _revive(d, _Revived[rejected_edit, probation, system_pack, tool_pack])
        fields.update({name: getattr(revived, name) for name in _RECORDS})
        for name in _RECORDS:
            _require_fields(d[name], fields[name], [name])
        for task, item in fields["probations"].items():
            _revive_pending(item, rejected_edit, ["probations", task, "pending_edits"])
        fields["changed_task_types_this_epoch"] = _revive(d["changed_task_types_this_epoch"], set[Any], "changed_task_types_this_epoch")
    except SchemaError as error:
        error.where = f"$.state{error.where[1:]}"
        raise
    return fields


class _Revived(msgspec.Struct, Generic[EditT, ProbationT, SystemPackT, ToolPackT]):
    """The fields of a state that hold the application's objects; the others are taken as they are."""

    rejected_buffer: dict[str, list[EditT]]
    system_packs: list[SystemPackT]
    tool_packs: list[ToolPackT]
    probations: dict[str, ProbationT]


def _revive(plain: Any, type: Any, *steps: object) -> Any:
    try:
        return convert(plain, type, str_keys=True)
    except SchemaError as error:
        error.where = path_text(steps) + error.where[1:]
        raise
    except (TypeError, NameError) as error:  # a class that msgspec cannot make: an InitVar, an annotation that does not resolve
        fact = f"cannot revive the application's classes ({error})"
        raise SchemaError(fact, where=path_text(steps), remedy="give classes that msgspec supports") from error


def _revive_pending(probation: Any, cls: Any, steps: list[object]) -> None:
    """`pending_edits` of one probation, where its annotation is too loose for msgspec to know what it holds."""
    edits = getattr(probation, "pending_edits", None)
    if type(edits) is not list:
        return
    for index, item in enumerate(edits):
        if type(item) is dict:
            edits[index] = _revive(item, cls, *steps, index)
            _require_fields(item, edits[index], [*steps, index])


def _require_fields(plain: Any, revived: Any, steps: list[object]) -> None:
    """Wherever a dict became an object: its keys are exactly the fields, so that nothing was dropped or made up."""
    names = fields_of(revived)
    if isinstance(plain, dict) and names is not None:
        saved, known = names, set(names)
        if isinstance(revived, msgspec.Struct):
            saved = revived.__struct_encode_fields__
            known = {*saved, revived.__struct_config__.tag_field or ""}
        what = type_name(type(revived))
        if extra := plain.keys() - known:
            fact = f"the saved key {abridged(min(extra, key=str))} is no field of {what}"
            raise SchemaError(fact, where=path_text(steps), remedy="add the field to the class, or take the key out of the dict first")
        for name, key in zip(names, saved, strict=True):
            if key not in plain:
                raise MissingFieldError(key, where=path_text(steps), remedy=f"if {what} has gained it since, put it into the dict first")
            _require_fields(plain[key], getattr(revived, name, None), [*steps, key])
    elif isinstance(plain, dict) and isinstance(revived, dict):
        for key, item in plain.items():
            _require_fields(item, revived.get(key), [*steps, key])
    elif isinstance(plain, list) and isinstance(revived, (list, tuple)) and len(plain) == len(revived):
        for index, item in enumerate(plain):
            _require_fields(item, revived[index], [*steps, index])


def compute_fingerprint(config: Any) -> dict[str, Any]:
    """The values of the structural and the decision keys of `config`, by name; None for an attribute that it has not."""
    return {key: getattr(config, key, None) for key in (*_STRUCTURAL, *_DECISION)}


def check_fingerprint(saved: Mapping[str, Any], config: Any) -> tuple[list[str], list[str]]:
    """What differs between a saved fingerprint and `config`: (structural, decision), a line for each key, which it begins with.

    A key that was not saved compares as None, as does an attribute that `config` has not.
    """
    current = compute_fingerprint(config)

    def differing(keys: Iterable[str], tier: Tier) -> list[str]:
        return [str(ConfigDifference(key, saved.get(key), current[key], tier)) for key in keys if saved.get(key) != current[key]]

    return differing(_STRUCTURAL, "structural"), differing(_DECISION, "decision")


def fingerprint(config: Any) -> Fingerprint:
    """What a `CheckpointManager` compares of `config`: the same keys in the same two tiers, but a value that is absent is not None.

    Raises `EncodeError` for a value that is no data.
    """
    return Fingerprint(config, _STRUCTURAL, _DECISION)


# --- the file ----------------------------------------------------------------------------------------------------------


def _paths(workspace_dir: PathType) -> tuple[str, str]:
    folder = PurePath(workspace_dir)
    return fspath(folder / _OURS), fspath(folder / _THEIRS)


def write_checkpoint(
    workspace_dir: PathType,
    *,
    state: Any,
    epoch: int,
    step_completed: int,
    phase: str,
    global_step: int,
    total_steps: int,
    version_snapshot: dict[str, str],
    epoch_batches: list[list[str]],
    config: Any,
    storage: Storage = DISK,
) -> file.SaveInfo:
    """Save one step to `checkpoint.fastckpt` in the workspace, as its only content. When it returns, it is durable.

    A `checkpoint.json` beside it is left alone. No other thread may change the state meanwhile.

    Raises `EncodeError` (also a `TypeError` and a `ValueError`) naming the path of what the replaced module could not write
    either, before any file is touched; `ConflictError` when the file holds a run; `StorageError`, the old file untouched.
    """
    payload = _payload(state, epoch, step_completed, phase, global_step, total_steps, version_snapshot, epoch_batches, config)
    encoded = _encode(payload)
    path, _ = _paths(workspace_dir)
    step = int(global_step) if isinstance(global_step, int) and abs(global_step) < 2**63 else None
    return file.write(path, encoded, step=step, source=_carried(path, storage), storage=storage)


def _payload(state: Any, epoch: int, step_completed: int, phase: str, global_step: int, total_steps: int, version_snapshot: dict[str, str],
             epoch_batches: list[list[str]], config: Any) -> dict[str, Any]:  # fmt: skip
    return {
        "schema_version": CHECKPOINT_SCHEMA_VERSION,
        "progress": {"epoch": epoch, "step_completed": step_completed, "phase": phase, "global_step": global_step, "total_steps": total_steps},
        "version_snapshot": version_snapshot,
        "epoch_batches": epoch_batches,
        "config_fingerprint": compute_fingerprint(config),
        "state": _fields(state),
    }


def _carried(path: str, storage: Storage) -> Source | None:
    """The JSON file that the checkpoint which is about to be replaced came from: `load_checkpoint` must go on knowing it."""
    try:
        source = file.inspect(path, storage=storage).source
    except CheckpointError:
        return None  # absent, or nothing that tells; what may not be replaced is refused when writing
    return source and Source(source.digest, migrated=False)


def load_checkpoint(workspace_dir: PathType, *, storage: Storage = DISK) -> dict[str, Any] | None:
    """The payload of the workspace's checkpoint as plain data; None only when there is neither `checkpoint.fastckpt` nor `.json`.

    A JSON file that the other was migrated from is not looked at. Otherwise, of two files the one with the larger
    `progress.global_step` is taken, with a `CheckpointWarning` that names both.

    Raises `CorruptError`, `JsonError` or `NotACheckpointError` (all `ValueError`) for a damaged file, also when the other one is
    sound; `MissingFieldError` (a `KeyError`) for a payload that lacks a key; `SchemaError` for an unknown `schema_version`;
    `ConflictError` for two files of the same step and different content.
    """
    paths = _paths(workspace_dir)
    found = [_read(path, storage) for path in paths]
    if isinstance(found[0], file.Document) and isinstance(found[1], file.Document):
        source = found[0].header and found[0].header.source
        if source and source.digest == file.source_digest(found[1].message):
            found[1] = None
    checkpoints = [_checkpoint(item) if isinstance(item, file.Document) else item for item in found]
    for bad, other in (checkpoints, checkpoints[::-1]):
        if isinstance(bad, CheckpointError):
            if isinstance(other, _Checkpoint) and isinstance(bad, ValueError):
                bad.remedy = f"{bad.remedy or 'restore it from a backup'}, or move it away to go on from step {other.step} in {other.path}"
            raise bad
    sound = [item for item in checkpoints if isinstance(item, _Checkpoint)]
    if len(sound) < 2 or _same(sound[0].payload, sound[1].payload):
        return sound[0].payload if sound else None
    first, second = sound
    if not all(isinstance(item.step, (int, float)) for item in sound) or not (first.step < second.step or second.step < first.step):
        steps = f"{first.step!r}" if first.step == second.step else f"{first.step!r} and {second.step!r}"
        raise ConflictError(f"two checkpoints of step {steps} with different content", paths=paths, remedy="move away the one that is wrong")
    older, newer = sorted(sound, key=lambda item: item.step)
    text = f"two checkpoints: going on from step {newer.step} in {newer.path}; step {older.step} in {older.path} is ignored: remove it"
    warn(text, CheckpointWarning, stacklevel=2)
    return newer.payload


class _Checkpoint(NamedTuple):
    """A payload that is complete; its step is what was saved as one, and so perhaps no number."""

    path: str
    step: Any
    payload: dict[str, Any]


def _read(path: str, storage: Storage) -> file.Document | CheckpointError | None:
    try:
        return file.read(path, storage=storage)
    except NotFoundError:
        return None
    except CheckpointError as error:
        return error


def _checkpoint(document: file.Document) -> _Checkpoint | CheckpointError:
    path, header, message = document
    try:
        payload = _CODEC.decode(message, header.ext, path=path) if header else from_json(message, path=path)
        _validated(payload, path)
    except CheckpointError as error:
        return error
    return _Checkpoint(path, payload["progress"]["global_step"], payload)


def _validated(payload: Any, path: str) -> dict[str, Any]:
    """`payload`, which is complete. Raises `SchemaError`, `MissingFieldError`."""
    _require(payload, ("schema_version",), "$", path)
    version = payload["schema_version"]
    if type(version) is not int or version != CHECKPOINT_SCHEMA_VERSION:
        fact = f"unknown schema version {abridged(version)}, this module knows {CHECKPOINT_SCHEMA_VERSION}"
        raise SchemaError(fact, where="$.schema_version", path=path, remedy="load it with the version of the program that wrote it")
    _require(payload, _PAYLOAD, "$", path)
    _require(payload["progress"], _PROGRESS, "$.progress", path)
    _require(payload["state"], _PERSISTED, "$.state", path)
    return payload  # type: ignore[no-any-return]


def _require(plain: Any, keys: tuple[str, ...], where: str, path: str) -> None:
    """`plain` is a dict with all of `keys`."""
    if not isinstance(plain, dict):
        raise SchemaError(f"expected a dict, got {a_type(plain)}", where=where, path=path, remedy="check that this is a checkpoint of this program")
    for key in keys:
        if key not in plain:
            raise MissingFieldError(key, where=where, path=path, remedy="the checkpoint is incomplete: restore it from a backup")


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Equal in value and type, in whatever order their keys are."""
    try:
        return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    except (TypeError, ValueError):  # a file of ours that holds what JSON cannot say
        return difference(a, b) is None


def remove_checkpoint(workspace_dir: PathType, *, storage: Storage = DISK) -> None:
    """Remove `checkpoint.fastckpt` and `checkpoint.json` durably, so that the run starts afresh; neither needs to exist.

    Raises `StorageError` and `DurabilityError`.
    """
    ours, theirs = _paths(workspace_dir)
    remove(theirs, storage=storage)  # first: a crash in between must not leave the stale one of the two
    remove(ours, storage=storage)


class StepCheckpointer:
    """`write_checkpoint` and `load_checkpoint` on a run, which keeps every step in the one file instead of the last one alone.

    The file is a run's from the first `write` on; a checkpoint that `write_checkpoint` or `migrate` left there becomes its first
    step. `load_checkpoint(workspace_dir)` goes on reading the newest. To start afresh, call `remove_checkpoint` before opening one.

        with StepCheckpointer(workspace_dir) as checkpointer:
            checkpointer.write(state=state, epoch=epoch, step_completed=..., ...)   # durable when it returns

    Raises `LockedError` (another one has the run open), `NotACheckpointError`, `StorageError`; damage is a `CheckpointWarning`.
    """

    def __init__(self, workspace_dir: PathType, *, storage: Storage = DISK) -> None:
        self._workspace, self._storage = workspace_dir, storage
        # No check by decoding: the walk over exact types has looked at every value already.
        self.manager: CheckpointManager[Any] = CheckpointManager(_paths(workspace_dir)[0], round_trip="never", max_file_bytes=None, storage=storage)

    def write(
        self, *, state: Any, epoch: int, step_completed: int, phase: str, global_step: int, total_steps: int, version_snapshot: dict[str, str],
        epoch_batches: list[list[str]], config: Any,
    ) -> SaveStats:  # fmt: skip
        """Save one step as `write_checkpoint` does, beside the earlier ones; what it cost. When it returns, it is durable.

        A `global_step` that is not above the newest takes its place and that of every later one, as a program that goes back means it.

        Raises `EncodeError` naming the path of what the replaced module could not write either, before the file is touched;
        `StorageError`, the earlier steps untouched.
        """
        payload = _payload(state, epoch, step_completed, phase, global_step, total_steps, version_snapshot, epoch_batches, config)
        encoded = _encode(payload)
        newest = self.manager.latest_step()
        # The manager takes what is encoded already as it is.
        self.manager.save(global_step, encoded, force=newest is not None and global_step <= newest)
        return self.manager.last_stats

    def load(self, step: int | None = None) -> dict[str, Any] | None:
        """The payload of `step`, or the newest as `load_checkpoint` finds it (a newer `checkpoint.json` included; None where there is nothing).

        Raises as `load_checkpoint` does, and `NotFoundError` for a step that is not there, naming its neighbours.
        """
        if step is None:
            return load_checkpoint(self._workspace, storage=self._storage)
        return _validated(self.manager.restore(step), self.manager.path)

    def steps(self) -> list[int]:
        """The `global_step` of every step that can be loaded, in order."""
        return self.manager.all_steps()

    def close(self) -> None:
        """Let the next one open the run."""
        self.manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.manager.__exit__(kind, error, trace)


# --- what is written ---------------------------------------------------------------------------------------------------


def _encode(payload: dict[str, Any]) -> Encoded:
    encoded = _CODEC.encode(_walked(payload), shallow=True)  # the walk has looked at the depth
    if encoded.has_ext:
        _walked(payload, LEAVES - {int})  # there may be an integer that JSON cannot say; nearly never, so not looked for before
    return encoded


def _walked(payload: dict[str, Any], leaves: frozenset[type] | None = None) -> dict[str, Any]:
    """`payload` as msgspec writes it just as JSON would: the application's own objects, and copies only where something is odd.

    With `leaves` every value of another type is looked at one by one.
    """
    fields = payload["state"]
    # The records separately, for only there may dataclasses be; their places keep the order.
    rest = {**payload, "state": {**fields, **dict.fromkeys(_RECORDS)}}
    try:
        if leaves is None and is_plain(rest, dict, 1, False) and all(is_plain(fields[name], type(fields[name]), 3, True) for name in _RECORDS):
            return payload
        result = dict(plain(rest, dict, 1, False, leaves or LEAVES))
        result["state"] = dict(result["state"])
        for name in _RECORDS:
            try:
                result["state"][name] = plain(fields[name], type(fields[name]), 3, True, leaves or LEAVES)
            except RefusedError as error:
                error.steps += [name, "state"]
                raise
    except RefusedError as error:
        raise error.explained() from None
    except RecursionError:
        raise EncodeError("no stack left to walk the state", remedy="save from a shallower call, or raise sys.setrecursionlimit") from None
    except RuntimeError as error:  # "dictionary changed size during iteration"
        raise EncodeError(f"another thread changed the state meanwhile ({error})", remedy="hold a lock around changes and saves") from error
    return result
