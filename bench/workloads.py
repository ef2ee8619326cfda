"""What is saved: a live state, what a step of a run changes in it, and how each kind of contender is handed it.

`make_workload` knows them by name: the shapes of a real optimisation, states of another structure, states of a given size, and a JSON
file that is replayed as a growing run. The same name and the same steps give the same state in every process.
"""

# ruff: noqa: D102 (what the methods owe stands in `Workload`)

from __future__ import annotations

import json
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from .shapes import (
    PERSISTED,
    SHAPES,
    Probation,
    RejectedEdit,
    SystemCasePack,
    ToolCasePack,
    TrainState,
    change,
    envelope,
    make,
    payload,
    replace_pack,
)

# The configuration of a run, with a value for every key that goes into the fingerprint: `dropin` takes the fingerprint of it, the
# others are given it.
KEYS = """
    batch_size min_class_per_batch epochs diag_size val_size batch_correct_ratio edit_budget_start edit_budget_end early_stop_patience
    use_slow_momentum skill_update_mode appendix_consolidate_threshold momentum_samples gate_e_confirm gate_e_provisional gate_w_net_min
    gate_delta_min gate_lambda_dir gate_e_rollback gate_block gate_n_max gate_p_low gate_p_high gate_probe_quota gate_gamma_decay
    gate_cooldown_steps gate_guard_err
"""
CONFIG = SimpleNamespace(**{key: number / 4 for number, key in enumerate(KEYS.split())})
# Records that one step of a made-up state replaces, however large the state is.
CHANGED = 20
# Levels that a replayed document has at most: the replaced module's encoder ends at about twice as many.
MOST_LEVELS = 500


class WorkloadError(ValueError):
    """There is no such workload, or its file does not do for one."""


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


class Workload(ABC):
    """A live state that goes through the steps of a run."""

    type: Any = Any
    """What `typed` comes back as."""

    @abstractmethod
    def step(self, number: int) -> None:
        """One step of a run: a little of the state changes."""

    def leap(self, number: int) -> None:
        """A bigger step, where there is one."""
        self.step(number)

    @abstractmethod
    def live(self, number: int) -> Any:
        """What an application would hand to a serialiser that knows dataclasses; nothing in it is copied."""

    def typed(self, number: int) -> Any:
        """The same as a value of `type`."""
        return self.live(number)

    def plain(self, number: int) -> Any:
        """The same as the replaced module made it, plain data; what every contender must load."""
        return self.live(number)


class Training(Workload):
    """The state of an optimisation of skills and prompts, of one of the shapes."""

    type = Payload

    def __init__(self, shape: str) -> None:
        self.state = make(shape)

    def step(self, number: int) -> None:
        change(self.state, number)

    def leap(self, number: int) -> None:
        replace_pack(self.state, number)

    def live(self, number: int) -> dict[str, Any]:
        return {**envelope(self.state, number, vars(CONFIG)), "state": persisted(self.state)}

    def typed(self, number: int) -> Payload:
        return payload_of(self.state, number)

    def around(self, number: int) -> dict[str, Any]:
        """What the replaced module's save takes beside the state."""
        made = envelope(self.state, number)
        return {**made["progress"], "version_snapshot": made["version_snapshot"], "epoch_batches": made["epoch_batches"], "config": CONFIG}

    def plain(self, number: int) -> dict[str, Any]:
        return payload(self.state, number, vars(CONFIG))


def persisted(state: TrainState) -> dict[str, Any]:
    """The persisted fields with the application's objects in them."""
    return {**{name: getattr(state, name) for name in PERSISTED}, "changed_task_types_this_epoch": sorted(state.changed_task_types_this_epoch)}


def payload_of(state: TrainState, step: int) -> Payload:
    """What a run of ours saves of a live state."""
    return Payload(**envelope(state, step, vars(CONFIG)), state=Persisted(**persisted(state)))


class Records(Workload):
    """A plain state of many records, each made by `record(draw, number)`; a step replaces `CHANGED` of them, a leap a quarter."""

    def __init__(self, count: int, record: Callable[[random.Random, int], Any], *, shuffled: bool = False) -> None:
        self._draw = random.Random(13)
        self._record, self._shuffled = record, shuffled
        self.state: dict[str, Any] = {"epoch": 3, "step": 0, "records": [record(self._draw, number) for number in range(count)]}

    def step(self, number: int) -> None:
        self._replace(number, CHANGED)
        if self._shuffled:
            self._draw.shuffle(self.state["records"])

    def leap(self, number: int) -> None:
        self._replace(number, max(CHANGED, len(self.state["records"]) // 4))

    def _replace(self, number: int, count: int) -> None:
        records = self.state["records"]
        self.state["step"] = number
        for place in self._draw.sample(range(len(records)), min(count, len(records))):
            records[place] = self._record(self._draw, place)

    def live(self, number: int) -> dict[str, Any]:
        del number
        return self.state


class Replayed(Workload):
    """A JSON document as a run of so many steps: the container that holds most of it begins with its first entries, and grows."""

    def __init__(self, path: Path, steps: int) -> None:
        try:
            self.document = json.loads(path.read_bytes())
            deep = _deeper(self.document, MOST_LEVELS)
        except RecursionError:
            deep = True
        except (OSError, ValueError) as error:
            raise WorkloadError(f"{path} cannot be replayed: {error}") from error
        if deep:
            raise WorkloadError(f"{path} cannot be replayed: expected at most {MOST_LEVELS} lists and objects in each other, found more")
        found: list[tuple[int, list[Any]]] = []
        self._look(self.document, [], found)
        if not found:
            raise WorkloadError(f"{path} cannot be replayed: expected a list or an object with two entries or more in it, found none")
        # Of those that hold most of the document, the one with the most entries: what is around one long list does not grow by itself.
        most = max(size for size, _ in found)
        self._place = max((place for size, place in found if 2 * size >= most), key=lambda place: len(self._at(place)))
        self._whole = self._at(self._place)
        self.steps = min(steps, len(self._whole))
        self._shown = self.document
        self.step(0)

    def _look(self, value: Any, place: list[Any], found: list[tuple[int, list[Any]]]) -> None:
        if isinstance(value, (list, dict)):
            if len(value) > 1:
                found.append((sum(len(json.dumps(each)) for each in (value.values() if isinstance(value, dict) else value)), place))
            for key, child in value.items() if isinstance(value, dict) else enumerate(value):
                if len(place) < 3:
                    self._look(child, [*place, key], found)

    def _at(self, place: list[Any]) -> Any:
        value = self.document
        for key in place:
            value = value[key]
        return value

    def step(self, number: int) -> None:
        count = math.ceil(len(self._whole) * min(number + 1, self.steps) / self.steps)
        part = dict(list(self._whole.items())[:count]) if isinstance(self._whole, dict) else self._whole[:count]
        if self._place:
            self._at(self._place[:-1])[self._place[-1]] = part
        else:
            self.document = part

    def live(self, number: int) -> Any:
        del number
        return self.document


def _deeper(document: Any, levels: int) -> bool:
    """Whether more lists and objects than that are in each other."""
    level = [document]
    for _ in range(levels):
        level = [child for each in level if isinstance(each, (list, dict)) for child in (each.values() if isinstance(each, dict) else each)]
    return any(isinstance(each, (list, dict)) for each in level)


def _prose() -> str:
    """A million characters of made-up words, of which texts are pieces: making 100 MB of states must not take minutes."""
    draw = random.Random(7)
    words = ["".join(draw.choices("etaoinshrdlucmfwypvbg", range(21, 0, -1), k=draw.randint(2, 10))) for _ in range(6000)]
    return " ".join(draw.choices(words, [1 / (rank + 2) for rank in range(6000)], k=200_000))[:1_000_000]


def _structure(draw: random.Random, number: int) -> Any:
    """Twenty small values in five containers and hardly any text."""
    return {
        "id": number,
        "ok": draw.random() < 0.5,
        "none": None,
        "scores": {"net": draw.random(), "p": draw.random(), "n": draw.randrange(1000)},
        "path": [[draw.randrange(100), draw.randrange(100)] for _ in range(3)],
        "flags": [draw.random() < 0.5 for _ in range(6)],
    }


def _texts(prose: str, size: int) -> Callable[[random.Random, int], Any]:
    def record(draw: random.Random, number: int) -> Any:
        start = draw.randrange(len(prose) - size)
        return {"id": f"case {number}", "text": prose[start : start + size], "scores": [draw.random(), draw.random()], "ok": draw.random() < 0.5}

    return record


# What is there beside the shapes: many small values, a few long texts, and records that come in another order with each step.
STRUCTURES: dict[str, Callable[[], Workload]] = {
    "structure-heavy": lambda: Records(9000, _structure),
    "long-strings": lambda: Records(60, _texts(_prose(), 27_000)),
    "shuffled": lambda: Records(2000, _texts(_prose(), 700), shuffled=True),
}
NAMES = [*SHAPES, *STRUCTURES]


def make_workload(name: str) -> Workload:
    """The workload of that name: one of `NAMES`, `MB:5.5` (made-up records of so many MB of JSON), or `file:STEPS:PATH`.

    Raises `WorkloadError`.
    """
    if name in SHAPES:
        return Training(name)
    if name in STRUCTURES:
        return STRUCTURES[name]()
    kind, _, rest = name.partition(":")
    if kind == "MB":
        return Records(max(1, round(float(rest) * 1e6 / 1100)), _texts(_prose(), 1000))
    if kind == "file":
        steps, _, path = rest.partition(":")
        return Replayed(Path(path), int(steps))
    raise WorkloadError(f"no state {name!r}; there are {', '.join(NAMES)}")
