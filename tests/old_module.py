"""The replaced checkpoint module, restated: the oracle of `test_dropin`. Not fast, not durable, and not a line of fastckpt in it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

CHECKPOINT_SCHEMA_VERSION = 1

STRUCTURAL_KEYS = ["batch_size", "min_class_per_batch", "epochs", "diag_size", "val_size", "batch_correct_ratio"]
DECISION_KEYS = [
    "edit_budget_start", "edit_budget_end", "early_stop_patience", "use_slow_momentum", "skill_update_mode",
    "appendix_consolidate_threshold", "momentum_samples", "gate_e_confirm", "gate_e_provisional", "gate_w_net_min", "gate_delta_min",
    "gate_lambda_dir", "gate_e_rollback", "gate_block", "gate_n_max", "gate_p_low", "gate_p_high", "gate_probe_quota",
    "gate_gamma_decay", "gate_cooldown_steps", "gate_guard_err",
]  # fmt: skip


def serialize_state(state: Any) -> dict[str, Any]:
    return {
        "correctness": state.correctness,
        "eval_prev_acc": state.eval_prev_acc,
        "eval_prev_run_id": state.eval_prev_run_id,
        "baseline_skills_version": state.baseline_skills_version,
        "baseline_prompts_version": state.baseline_prompts_version,
        "steps_since_best_improved": state.steps_since_best_improved,
        "epoch_start_skills": state.epoch_start_skills,
        "changed_task_types_this_epoch": sorted(state.changed_task_types_this_epoch),
        "rejected_buffer": {task: [asdict(edit) for edit in edits] for task, edits in state.rejected_buffer.items()},
        "system_packs": [asdict(pack) for pack in state.system_packs],
        "tool_packs": [asdict(pack) for pack in state.tool_packs],
        "probations": {task: asdict(probation) for task, probation in state.probations.items()},
        "gate_cooldown": state.gate_cooldown,
        "gate_epoch_observed": state.gate_epoch_observed,
    }


def deserialize_state_fields(d: dict[str, Any], app: Any) -> dict[str, Any]:
    """With a hand-written reviver a class, as an application does it; `app` holds the classes."""

    def system_pack(pack: dict[str, Any]) -> Any:
        cases = {name: [app.CaseSample(**case) for case in pack[name]] for name in ("failure_cases", "success_cases")}
        return app.SystemCasePack(stats=pack["stats"], **cases)

    def probation(item: dict[str, Any]) -> Any:
        return app.Probation(**{**item, "pending_edits": [app.RejectedEdit(**edit) for edit in item["pending_edits"]]})

    return {
        "correctness": d["correctness"],
        "eval_prev_acc": d["eval_prev_acc"],
        "eval_prev_run_id": d["eval_prev_run_id"],
        "baseline_skills_version": d["baseline_skills_version"],
        "baseline_prompts_version": d["baseline_prompts_version"],
        "steps_since_best_improved": d["steps_since_best_improved"],
        "epoch_start_skills": d["epoch_start_skills"],
        "changed_task_types_this_epoch": set(d["changed_task_types_this_epoch"]),
        "rejected_buffer": {task: [app.RejectedEdit(**edit) for edit in edits] for task, edits in d["rejected_buffer"].items()},
        "system_packs": [system_pack(pack) for pack in d["system_packs"]],
        "tool_packs": [app.ToolCasePack(**pack) for pack in d["tool_packs"]],
        "probations": {task: probation(item) for task, item in d["probations"].items()},
        "gate_cooldown": d["gate_cooldown"],
        "gate_epoch_observed": d["gate_epoch_observed"],
    }


def compute_fingerprint(config: Any) -> dict[str, Any]:
    return {key: getattr(config, key, None) for key in STRUCTURAL_KEYS + DECISION_KEYS}


def check_fingerprint(saved: dict[str, Any], config: Any) -> tuple[list[str], list[str]]:
    """The keys whose values differ, structural and decision."""
    current = compute_fingerprint(config)
    structural = [key for key in STRUCTURAL_KEYS if saved.get(key) != current[key]]
    decision = [key for key in DECISION_KEYS if saved.get(key) != current[key]]
    return structural, decision


def payload(
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
) -> dict[str, Any]:
    return {
        "schema_version": CHECKPOINT_SCHEMA_VERSION,
        "progress": {
            "epoch": epoch,
            "step_completed": step_completed,
            "phase": phase,
            "global_step": global_step,
            "total_steps": total_steps,
        },
        "version_snapshot": version_snapshot,
        "epoch_batches": epoch_batches,
        "config_fingerprint": compute_fingerprint(config),
        "state": serialize_state(state),
    }


def write_checkpoint(
    workspace_dir: str | os.PathLike[str],
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
) -> None:
    plain = payload(
        state=state,
        epoch=epoch,
        step_completed=step_completed,
        phase=phase,
        global_step=global_step,
        total_steps=total_steps,
        version_snapshot=version_snapshot,
        epoch_batches=epoch_batches,
        config=config,
    )
    path = Path(workspace_dir) / "checkpoint.json"
    temporary = Path(workspace_dir) / "checkpoint.json.tmp"
    temporary.write_text(json.dumps(plain, ensure_ascii=False, indent=2), encoding="utf-8")
    os.replace(temporary, path)


def load_checkpoint(workspace_dir: str | os.PathLike[str]) -> dict[str, Any] | None:
    path = Path(workspace_dir) / "checkpoint.json"
    if not path.exists():
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def remove_checkpoint(workspace_dir: str | os.PathLike[str]) -> None:
    (Path(workspace_dir) / "checkpoint.json").unlink(missing_ok=True)
