"""The states that are measured: seeded, with the shape and the sizes of a real optimisation of skills and prompts.

`make` gives a live state as an application holds it, `change` and `replace_pack` are steps of a run, `payload` and `old_save`
are what the replaced module made of it. The same name and the same steps give the same state everywhere, so the order in which
random numbers are drawn is part of the definition: reordering two fields below changes every figure ever recorded.
"""

# ruff: noqa: D101, D102 (the classes are an application's, and their fields say what they are)

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


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
    reason: str
    epoch: int
    step: int
    scores: dict[str, float]
    evidence: list[dict[str, Any]]


@dataclass
class Probation:
    task_type: str
    started_step: int
    baseline: float
    observed: dict[str, float]
    pending_edits: list[RejectedEdit] = field(default_factory=list)


@dataclass
class TrainState:
    correctness: dict[str, bool]
    eval_prev_acc: float
    eval_prev_run_id: str
    baseline_skills_version: str
    baseline_prompts_version: str
    steps_since_best_improved: int
    epoch_start_skills: str
    changed_task_types_this_epoch: set[str]
    rejected_buffer: dict[str, list[RejectedEdit]]
    system_packs: list[SystemCasePack]
    tool_packs: list[ToolCasePack]
    probations: dict[str, Probation]
    gate_cooldown: dict[str, int]
    gate_epoch_observed: dict[str, bool]
    # What follows is held by the live state and never persisted.
    gate_pools: Any = None
    baseline_cache: Any = None
    best_acc: float = 0.0
    global_step: int = 0
    author: Author | None = field(default=None, repr=False)


PERSISTED = tuple(itertools.takewhile(lambda name: name != "gate_pools", TrainState.__dataclass_fields__))
FINGERPRINT = {"batch_size": 20, "epochs": 4, "gate_delta_min": 0.01}
TASK_TYPES = [f"task type {letter}" for letter in "ABCDEFGHIJKL"]


class Shape(NamedTuple):
    questions: int
    packs: int
    failures: int
    successes: int
    trace_steps: int
    trace_chars: int
    edits_per_task_type: int
    tool_packs: int
    chinese: float = 0.0
    """Share of the texts that are Chinese."""


SHAPES = {
    "small": Shape(60, 2, 4, 2, 6, 400, 4, 2),
    "usual": Shape(600, 6, 12, 6, 8, 1200, 20, 8),
    "usual-cjk": Shape(600, 6, 12, 6, 8, 1200, 20, 8, chinese=0.5),
    "large": Shape(5000, 40, 20, 10, 8, 1200, 200, 30),
}


class Vocabulary:
    """6,000 made-up words in each of two scripts, with the frequencies of natural text (Zipf): it compresses as prose does."""

    SIZE = 6000

    def __init__(self) -> None:
        draw = random.Random(7)
        letters, frequency = "etaoinshrdlucmfwypvbgkjqxz", range(26, 0, -1)
        self.latin = ["".join(draw.choices(letters, frequency, k=draw.randint(2, 10))) for _ in range(self.SIZE)]
        self.chinese = ["".join(self._ideograph(draw) for _ in range(draw.randint(1, 4))) for _ in range(self.SIZE)]
        self.cumulative_weights = list(itertools.accumulate(1 / (rank + 2) for rank in range(self.SIZE)))

    @staticmethod
    def _ideograph(draw: random.Random) -> str:
        return chr(0x4E00 + int(draw.paretovariate(0.6)) % 3000)


class Author:
    """Writes the texts, cases and edits of one shape from one stream of random numbers."""

    def __init__(self, shape: Shape, seed: int, vocabulary: Vocabulary) -> None:
        self.shape = shape
        self.draw = random.Random(seed)
        self.vocabulary = vocabulary

    def text(self, characters: int) -> str:
        if self.draw.random() < self.shape.chinese:
            words, space, mean_length = self.vocabulary.chinese, "", 2.5
        else:
            words, space, mean_length = self.vocabulary.latin, " ", 6.0
        enough = int(characters / mean_length) + 2
        return space.join(self.draw.choices(words, cum_weights=self.vocabulary.cumulative_weights, k=enough))[:characters]

    def trace_step(self, number: int, output_chars: int) -> dict[str, Any]:
        thought = self.text(self.shape.trace_chars // 3)
        arguments = json.dumps({"query": self.text(40), "level": "L2"})
        output = self.text(output_chars * 2 // 3)
        return {"step": number, "thought": thought, "tool_name": "search_nodes", "tool_args": arguments, "tool_output": output}

    def case(self) -> CaseSample:
        question = self.draw.randrange(self.shape.questions)
        # One case in fifty has tool outputs eight times as long.
        output_chars = self.shape.trace_chars * (8 if self.draw.random() < 0.02 else 1)
        trace = [self.trace_step(number, output_chars) for number in range(self.shape.trace_steps)]
        text, options, prediction = self.text(120), [self.text(30) for _ in range(4)], self.draw.choice(["A", "C", None])
        reason = self.text(60)
        metrics = {
            "format_compliance": self.draw.random(),
            "budget_usage": self.draw.random(),
            "spans": [self.draw.random() for _ in range(6)],
            "tool_usage": {"search": self.draw.randint(0, 9), "view": 3},
        }
        names = f"q_{question:05d}", f"v_{question % 400:04d}", TASK_TYPES[question % 12]
        return CaseSample(*names, text, options, "B", prediction, False, "search_failure", reason, metrics, trace)

    def edit(self, step: int) -> RejectedEdit:
        content, reason = self.text(400), self.text(200)
        scores = {"net": self.draw.random(), "p": self.draw.random()}
        evidence = [{"question_id": f"q_{step:05d}", "delta": self.draw.random()}]
        return RejectedEdit("temporal.md", "replace", content, reason, step // 10, step, scores, evidence)

    def edits(self, count: int) -> list[RejectedEdit]:
        return [self.edit(step) for step in range(count)]

    def system_pack(self) -> SystemCasePack:
        stats = {"confirmation_bias": self.draw.random()}
        failures = [self.case() for _ in range(self.shape.failures)]
        return SystemCasePack(stats, failures, [self.case() for _ in range(self.shape.successes)])

    def span(self) -> dict[str, Any]:
        return {"query": self.text(60), "output": self.text(800), "completeness": self.draw.random()}

    def tool_pack(self, number: int) -> ToolCasePack:
        stats = {"hallucination": self.draw.random()}
        failures, successes = [self.span() for _ in range(10)], [self.span() for _ in range(5)]
        return ToolCasePack(f"tool_{number}", ["search_extract.md", "search_verify.md"], stats, failures, successes)


def make(name: str) -> TrainState:
    """The state of the shape `name` as an application holds it in mid-run, with attributes that are not persisted besides."""
    shape, vocabulary = SHAPES[name], Vocabulary()
    author = Author(shape, 11, vocabulary)
    return TrainState(
        correctness={f"q_{number:05d}": author.draw.random() < 0.6 for number in range(shape.questions)},
        eval_prev_acc=0.61,
        eval_prev_run_id="run_1",
        baseline_skills_version="v12",
        baseline_prompts_version="v9",
        steps_since_best_improved=3,
        epoch_start_skills=author.text(4000),
        changed_task_types_this_epoch={"task type B", "task type A"},
        rejected_buffer={task: author.edits(shape.edits_per_task_type) for task in TASK_TYPES[:6]},
        system_packs=[author.system_pack() for _ in range(shape.packs)],
        tool_packs=[author.tool_pack(number) for number in range(shape.tool_packs)],
        probations={task: Probation(task, 4, 0.5, {"accuracy": 0.1}, author.edits(3)) for task in TASK_TYPES[:2]},
        gate_cooldown={TASK_TYPES[0]: 2},
        gate_epoch_observed={TASK_TYPES[0]: True},
        gate_pools=object(),
        baseline_cache={"not": {"plain", "data"}},
        author=Author(shape, 3, vocabulary),
    )


def change(state: TrainState, i: int) -> None:
    """One step of a run: 20 answers flip, one edit is appended and one dropped, one case is replaced, counters move."""
    author = _author(state)
    for question in author.draw.sample(list(state.correctness), 20):
        state.correctness[question] = not state.correctness[question]
    buffer = state.rejected_buffer[TASK_TYPES[i % 6]]
    buffer.append(author.edit(i))
    del buffer[0]
    cases = state.system_packs[i % len(state.system_packs)].failure_cases
    cases[i % len(cases)] = author.case()
    state.gate_cooldown[TASK_TYPES[i % 12]] = i
    state.steps_since_best_improved = i % 7
    state.eval_prev_acc = author.draw.random()


def replace_pack(state: TrainState, i: int) -> None:
    """A bigger step: a whole pack of cases is replaced."""
    state.system_packs[i % len(state.system_packs)] = _author(state).system_pack()


def _author(state: TrainState) -> Author:
    if state.author is None:
        raise TypeError("the state was not made by `make`, so there is no source of changes in it")
    return state.author


def batches(state: TrainState, size: int = 20) -> list[list[str]]:
    """The epoch's questions in batches."""
    questions = list(state.correctness)
    return [questions[start : start + size] for start in range(0, len(questions), size)]


def old_serialize(state: TrainState) -> dict[str, Any]:
    """The persisted fields as the replaced module made them plain: `asdict` on every dataclass, the set as a sorted list."""
    return {
        **{name: getattr(state, name) for name in PERSISTED},
        "changed_task_types_this_epoch": sorted(state.changed_task_types_this_epoch),
        "rejected_buffer": {task: [asdict(edit) for edit in edits] for task, edits in state.rejected_buffer.items()},
        "system_packs": [asdict(pack) for pack in state.system_packs],
        "tool_packs": [asdict(pack) for pack in state.tool_packs],
        "probations": {task: asdict(probation) for task, probation in state.probations.items()},
    }


def envelope(state: TrainState, step: int = 33, fingerprint: Mapping[str, Any] = FINGERPRINT) -> dict[str, Any]:
    """Everything in a payload but the state itself."""
    return {
        "schema_version": 1,
        "progress": {"epoch": 1, "step_completed": step % 30, "phase": "in_epoch", "global_step": step, "total_steps": 120},
        "version_snapshot": {"skills": "v12", "prompts": "v9"},
        "epoch_batches": batches(state),
        "config_fingerprint": dict(fingerprint),
    }


def payload(state: TrainState, step: int = 33, fingerprint: Mapping[str, Any] = FINGERPRINT) -> dict[str, Any]:
    """What the replaced module wrote."""
    return {**envelope(state, step, fingerprint), "state": old_serialize(state)}


def old_save(state: TrainState, folder: Path, step: int = 33, fingerprint: Mapping[str, Any] = FINGERPRINT) -> int:
    """The replaced module's save, without any fsync; returns the bytes written."""
    path = folder / "checkpoint.json"
    temporary = folder / "checkpoint.json.tmp"
    text = json.dumps(payload(state, step, fingerprint), ensure_ascii=False, indent=2)
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
    return path.stat().st_size
