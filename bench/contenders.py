"""What is compared: ways to keep one training state in one file, behind one tiny interface.

Every contender gets the live state, and gives back the payload that the replaced module would have written. It imports what it
needs when it is made, in its own process, so that nobody pays for another's libraries.
"""

# ruff: noqa: D102 (what `save` and `load` owe stands in `Contender`)

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import msgspec

from .shapes import PERSISTED, Probation, RejectedEdit, SystemCasePack, ToolCasePack, TrainState, envelope, old_save, payload

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
    appends: ClassVar[bool] = False
    """Whether the file grows by each save, so that a save's bytes are what it grew by."""
    requires: ClassVar[str] = ""
    """The module that must be importable, of the extra `bench`; empty for what is always there."""

    def path(self, workspace: Path) -> Path:
        return workspace / self.file_name

    @abstractmethod
    def save(self, workspace: Path, state: TrainState, step: int) -> None:
        """All that an application waits for when it checkpoints the live `state`."""

    def block(self, workspace: Path, state: TrainState, step: int) -> tuple[float, float]:
        """Thread seconds of a bare encode of the same state, and of the caller in a save; only where the rest is done in the background."""
        del workspace, state, step
        raise TypeError(f"{self.name} saves in the caller's thread")

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


class Persisted(msgspec.Struct):
    """The persisted fields of a state, as a type that a run restores them as."""

    correctness: dict[str, bool]
    eval_prev_acc: float
    eval_prev_run_id: str
    baseline_skills_version: str
    baseline_prompts_version: str
    steps_since_best_improved: int
    epoch_start_skills: str
    changed_task_types_this_epoch: list[str]
    rejected_buffer: dict[str, list[RejectedEdit]]
    system_packs: list[SystemCasePack]
    tool_packs: list[ToolCasePack]
    probations: dict[str, Probation]
    gate_cooldown: dict[str, int]
    gate_epoch_observed: dict[str, bool]


class Payload(msgspec.Struct):
    """What is saved: the replaced module's payload, with the application's objects in it."""

    schema_version: int
    progress: dict[str, Any]
    version_snapshot: dict[str, str]
    epoch_batches: list[list[str]]
    config_fingerprint: dict[str, Any]
    state: Persisted


class Run(Contender):
    """Ours as a run: every step kept in one file, durable when `save` returns; the manager's defaults."""

    name = "fastckpt run, sync"
    file_name = "checkpoint.fastckpt"
    appends = True
    durability: ClassVar[Literal["sync", "async"]] = "sync"

    def __init__(self) -> None:
        self._managers: dict[Path, Any] = {}

    def _manager(self, workspace: Path) -> Any:
        if workspace not in self._managers:
            from fastckpt.manager import CheckpointManager  # noqa: PLC0415 (as above)

            self._managers[workspace] = CheckpointManager(workspace, Payload, durability=self.durability)
        return self._managers[workspace]

    @staticmethod
    def payload(state: TrainState, step: int) -> Payload:
        """What is saved of a live state."""
        fields = {name: getattr(state, name) for name in PERSISTED}
        fields["changed_task_types_this_epoch"] = sorted(state.changed_task_types_this_epoch)
        return Payload(**envelope(state, step, vars(CONFIG)), state=Persisted(**fields))

    def save(self, workspace: Path, state: TrainState, step: int) -> None:
        self._manager(workspace).save(step, self.payload(state, step))

    def load(self, workspace: Path) -> Any:
        return msgspec.to_builtins(self._manager(workspace).restore())


class BackgroundRun(Run):
    """Ours as a run with `durability="async"`: the caller encodes, a thread does the rest."""

    name = "fastckpt run, async"
    durability = "async"

    def save(self, workspace: Path, state: TrainState, step: int) -> None:
        super().save(workspace, state, step)
        self._manager(workspace).wait_until_finished()

    def block(self, workspace: Path, state: TrainState, step: int) -> tuple[float, float]:
        payload, manager = self.payload(state, step), self._manager(workspace)
        times = []
        for work in (lambda: msgspec.msgpack.encode(payload), lambda: manager.save(step, payload)):
            start = time.thread_time()
            work()
            times.append(time.thread_time() - start)
        manager.wait_until_finished()
        return times[0], times[1]


CONTENDERS: dict[str, type[Contender]] = {contender.name: contender for contender in (Replaced, CompactJson, Orjson, Fastckpt)}
RUNS: dict[str, type[Contender]] = {contender.name: contender for contender in (Replaced, Orjson, Run, BackgroundRun)}
ALL = CONTENDERS | RUNS
