"""The functions of the replaced checkpoint module, call for call, on a durable binary file instead of a `checkpoint.json`.

A run changes its import line, and hands its own classes to `deserialize_state_fields`. What `load_checkpoint` returns equals,
value and type, what the replaced module would have read back from its JSON; what that could not write is refused here too.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter, itemgetter
from os import PathLike, fspath
from pathlib import PurePath
from typing import Any, Generic, NamedTuple, TypeVar
from warnings import warn

import msgspec

from . import file
from .codec import Codec, Encoded, convert
from .container import Source
from .errors import CheckpointError, CheckpointWarning, ConflictError, EncodeError, MissingFieldError, NotFoundError, SchemaError
from .schema import Progress, TrainState
from .storage import DISK, Storage, remove
from .tree import MAX_DEPTH, abridged, difference, fields_of, path_text, type_name
from .twin import from_json

__all__ = [
    "CHECKPOINT_SCHEMA_VERSION",
    "check_fingerprint",
    "compute_fingerprint",
    "deserialize_state_fields",
    "load_checkpoint",
    "remove_checkpoint",
    "serialize_state",
    "write_checkpoint",
]

CHECKPOINT_SCHEMA_VERSION = 1

_FILE, _JSON = "checkpoint.fastckpt", "checkpoint.json"

# A changed structural key makes the saved batches and counters meaningless; a decision key only steers what comes next.
_STRUCTURAL = ("batch_size", "min_class_per_batch", "epochs", "diag_size", "val_size", "batch_correct_ratio")
_DECISION = (
    "edit_budget_start", "edit_budget_end", "early_stop_patience", "use_slow_momentum", "skill_update_mode", "appendix_consolidate_threshold",
    "momentum_samples", "gate_e_confirm", "gate_e_provisional", "gate_w_net_min", "gate_delta_min", "gate_lambda_dir", "gate_e_rollback",
    "gate_block", "gate_n_max", "gate_p_low", "gate_p_high", "gate_probe_quota", "gate_gamma_decay", "gate_cooldown_steps", "gate_guard_err",
)  # fmt: skip

_PERSISTED: tuple[str, ...] = TrainState.__struct_fields__
_PAYLOAD = ("progress", "version_snapshot", "epoch_batches", "config_fingerprint", "state")
# The fields of which the replaced module took `asdict`, and which of them map a task type to what they hold.
_LISTS, _MAPS_OF_LISTS, _MAPS = ("system_packs", "tool_packs"), ("rejected_buffer",), ("probations",)

# Module-wide: it remembers where values are that msgspec refuses (lone surrogates, long integers), from one save to the next.
_CODEC = Codec()

PathType = str | PathLike[str]


# --- the state ---------------------------------------------------------------------------------------------------------


def serialize_state(state: Any) -> dict[str, Any]:
    """The 14 persisted fields as plain data: dataclasses in the packs, buffers and probations as dicts, the set as a sorted list.

    `write_checkpoint` does not need it. Raises `EncodeError` where a field is missing or holds no dataclasses where it must.
    """

    def plain(item: Any) -> Any:
        return dataclasses.asdict(item) if dataclasses.is_dataclass(item) else dict(item)

    result = _fields(state)
    for name in _LISTS:
        result[name] = [plain(item) for item in result[name]]
    for name in _MAPS_OF_LISTS:
        result[name] = {key: [plain(item) for item in items] for key, items in result[name].items()}
    for name in _MAPS:
        result[name] = {key: plain(item) for key, item in result[name].items()}
    return result


def _fields(state: Any) -> dict[str, Any]:
    """The persisted fields, in order; where `asdict` was taken, in exact dicts and lists that hold dataclasses or dicts."""
    result: dict[str, Any] = {}
    for name in _PERSISTED:
        try:
            result[name] = getattr(state, name)
        except AttributeError as error:
            raise EncodeError(f"the state has no attribute `{name}`", where=f"$.state.{name}", remedy="set it before saving") from error
    try:
        result["changed_task_types_this_epoch"] = sorted(result["changed_task_types_this_epoch"])
    except TypeError as error:
        raise EncodeError(f"it cannot be sorted ({error})", where="$.state.changed_task_types_this_epoch", remedy="make it a set of text") from error
    for name in _LISTS:
        result[name] = _records(result[name], ["state", name])
    for name in (*_MAPS_OF_LISTS, *_MAPS):
        held = result[name]
        if not hasattr(held, "items"):
            raise EncodeError(f"expected a dict, got {_a(held)}", where=f"$.state.{name}", remedy="make it a dict of task types")
        if type(held) is not dict:
            held = result[name] = dict(held.items())
        if name in _MAPS:
            _records(list(held.values()), ["state", name], list(held))
        else:
            lists = {key: _records(items, ["state", name, key]) for key, items in held.items()}
            result[name] = lists
    return result


def _records(items: Any, steps: list[object], keys: list[Any] | None = None) -> list[Any]:
    """`items` as a list, each of them a dataclass (what `asdict` takes) or a dict (a record that was never revived)."""
    if type(items) is not list:
        try:
            items = list(items)
        except TypeError:
            raise EncodeError(f"expected a list, got {_a(items)}", where=path_text(steps), remedy="make it a list of dataclasses") from None
    for index, item in enumerate(items):
        if not isinstance(item, dict) and not hasattr(type(item), "__dataclass_fields__"):
            step = index if keys is None else keys[index]
            raise EncodeError(f"expected a dataclass, got {_a(item)}", where=path_text([*steps, step]), remedy="put the application's own object there")
    return items  # type: ignore[no-any-return]  # a list by now


class _Revived(msgspec.Struct, Generic[_E := TypeVar("_E"), _P := TypeVar("_P"), _S := TypeVar("_S"), _T := TypeVar("_T")]):
    pass
