"""What is compared: ways to keep one training state in one file, behind one tiny interface.

Every contender gets the live state, and gives back the payload that the replaced module would have written. It imports what it
needs when it is made, in its own process, so that nobody pays for another's libraries.
"""

# ruff: noqa: D102 (what `save` and `load` owe stands in `Contender`)

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from .shapes import PERSISTED, TrainState, envelope, old_save, payload

# The configuration of a run, with a value for every key that goes into the fingerprint: `dropin` takes the fingerprint of it, the
# others are given it.
KEYS = """
    batch_size min_class_per_batch epochs diag_size val_size batch_correct_ratio edit_budget_start edit_budget_end early_stop_patience
    use_slow_momentum skill_update_mode appendix_consolidate_threshold momentum_samples gate_e_confirm gate_e_provisional gate_w_net_min
    gate_delta_min gate_lambda_dir gate_e_rollback gate_block gate_n_max gate_p_low gate_p_high gate_probe_quota gate_gamma_decay
    gate_cooldown_steps gate_guard_err
"""
CONFIG = SimpleNamespace(**{key: number / 4 for number, key in enumerate(KEYS.split())})


def whole_payload(state: TrainState, step: int) -> dict[str, Any]:
    """The payload as the replaced module made it: this is what every contender must load."""
    return payload(state, step, vars(CONFIG))


def write_durably(path: Path, data: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the directory: what a save without a library has to do to survive a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """fsync of a file or a directory by name; nothing where directories cannot be opened (Windows)."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Contender(ABC):
    """One way to save and to load; `workspace` is a directory of its own."""

    name: ClassVar[str]
    file_name: ClassVar[str] = "checkpoint.json"
    requires: ClassVar[str] = ""
    """The module that must be importable, of the extra `bench`; empty for what is always there."""

    def path(self, workspace: Path) -> Path:
        return workspace / self.file_name

    @abstractmethod
    def save(self, workspace: Path, state: TrainState, step: int) -> None:
        """All that an application waits for when it checkpoints the live `state`."""

    def load(self, workspace: Path) -> Any:
        """The payload as plain data; read as the replaced module did unless a contender knows better."""
        with open(self.path(workspace), encoding="utf-8") as file:
            return json.load(file)


class Replaced(Contender):
    """The replaced module as it is: asdict, indent=2 (which is CPython's slow encoder), rename, no fsync."""

    name = "replaced module"

    def save(self, workspace: Path, state: TrainState, step: int) -> None:
        old_save(state, workspace, step, vars(CONFIG))


class CompactJson(Contender):
    """The least change to the replaced module: the same payload without whitespace (the C encoder), made durable."""

    name = "json compact + fsync"

    def save(self, workspace: Path, state: TrainState, step: int) -> None:
        text = json.dumps(whole_payload(state, step), ensure_ascii=False, separators=(",", ":"))
        write_durably(self.path(workspace), text.encode())


class Orjson(Contender):
    """The fastest JSON: orjson walks the dataclasses itself, no asdict; made durable."""

    name = "orjson + fsync"
    requires = "orjson"

    def __init__(self) -> None:
        import orjson  # noqa: PLC0415 (in the process that needs it, and in no other)

        self._dumps, self._loads = orjson.dumps, orjson.loads

    def save(self, workspace: Path, state: TrainState, step: int) -> None:
        fields = {name: getattr(state, name) for name in PERSISTED}
        fields["changed_task_types_this_epoch"] = sorted(state.changed_task_types_this_epoch)
        write_durably(self.path(workspace), self._dumps({**envelope(state, step, vars(CONFIG)), "state": fields}))

    def load(self, workspace: Path) -> Any:
        return self._loads(self.path(workspace).read_bytes())


class Fastckpt(Contender):
    """Ours, by the functions of the replaced module; durable, checked on load."""

    name = "fastckpt"
    file_name = "checkpoint.fastckpt"

    def __init__(self) -> None:
        from fastckpt import dropin  # noqa: PLC0415 (as above)

        self._write, self._load = dropin.write_checkpoint, dropin.load_checkpoint

    def save(self, workspace: Path, state: TrainState, step: int) -> None:
        around = envelope(state, step)
        self._write(
            workspace,
            state=state,
            **around["progress"],
            version_snapshot=around["version_snapshot"],
            epoch_batches=around["epoch_batches"],
            config=CONFIG,
        )

    def load(self, workspace: Path) -> Any:
        return self._load(workspace)


CONTENDERS: dict[str, type[Contender]] = {contender.name: contender for contender in (Replaced, CompactJson, Orjson, Fastckpt)}
