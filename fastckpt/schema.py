"""Ready-made Structs for the payload of the replaced module: data only, for `load(path, Checkpoint[TrainState[...]])`.

Generic over the application's own classes, which may be dataclasses or Structs:

    load(path, Checkpoint[TrainState[RejectedEdit, Probation, SystemCasePack, ToolCasePack]])

Where a parameter is left out, its places hold plain dicts, and nothing of them is lost. Probation and RejectedEdit belong to the
application, so there is no Struct for them here. A key that these Structs do not know is refused, never dropped.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["CaseSample", "Checkpoint", "Progress", "SystemCasePack", "ToolCasePack", "TrainState"]

StateT = TypeVar("StateT")
EditT = TypeVar("EditT")
ProbationT = TypeVar("ProbationT")
SystemPackT = TypeVar("SystemPackT")
ToolPackT = TypeVar("ToolPackT")


class CaseSample(msgspec.Struct, forbid_unknown_fields=True):
    """One answered question with its reasoning trace (`step`, `tool_name`, `tool_args`, `tool_output`, `thought` each)."""

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


class SystemCasePack(msgspec.Struct, forbid_unknown_fields=True):
    """Cases that failed and cases that succeeded."""

    stats: dict[str, Any]
    failure_cases: list[CaseSample]
    success_cases: list[CaseSample]


class ToolCasePack(msgspec.Struct, forbid_unknown_fields=True):
    """Calls of one tool that failed and that succeeded, with the files that describe it."""

    tool_name: str
    target_files: list[str]
    stats: dict[str, Any]
    failure_spans: list[dict[str, Any]]
    success_spans: list[dict[str, Any]]


class Progress(msgspec.Struct, forbid_unknown_fields=True):
    """Where in the run the checkpoint was taken."""

    epoch: int
    step_completed: int
    phase: str
    global_step: int
    total_steps: int


class TrainState(msgspec.Struct, Generic[EditT, ProbationT, SystemPackT, ToolPackT], forbid_unknown_fields=True):
    """The persisted fields of a trainer state, in the order in which they are written; no defaults, for none may hide a loss."""

    correctness: dict[str, bool]
    eval_prev_acc: float | None
    eval_prev_run_id: str | None
    baseline_skills_version: str | None
    baseline_prompts_version: str | None
    steps_since_best_improved: int
    epoch_start_skills: Any
    changed_task_types_this_epoch: set[str]
    rejected_buffer: dict[str, list[EditT]]
    system_packs: list[SystemPackT]
    tool_packs: list[ToolPackT]
    probations: dict[str, ProbationT]
    gate_cooldown: dict[str, Any]
    gate_epoch_observed: dict[str, Any]


class Checkpoint(msgspec.Struct, Generic[StateT], forbid_unknown_fields=True):
    """The whole payload. `version_snapshot` maps `skills` and `prompts` to versions, `epoch_batches` holds question ids."""

    schema_version: int
    progress: Progress
    version_snapshot: dict[str, str]
    epoch_batches: list[list[str]]
    config_fingerprint: dict[str, Any]
    state: StateT
