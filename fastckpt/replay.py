"""What a checkpoint costs on a disk: replayed as a run, the way of the replaced module and ours, in turn.

A run is replayed by its own steps. Of a single state the steps are made up: some of its values change, the same ones each time.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Final, Literal, NamedTuple, Self

from .codec import Codec
from .errors import CheckpointError
from .file import inspect, read
from .history import NAME, History
from .manager import CheckpointManager
from .reader import MAX_TOUCHED, Entry, Reader
from .repair import marked
from .storage import open_file, publish, read_at, vouch
from .stream import RECORDS_PER_BASE
from .twin import from_json, to_json

__all__ = ["CONTENDERS", "Contender", "Costs", "Growth", "Spread", "replay"]

#: Who is measured, by their names in the results: the replaced module as it is, with fsync, and ours.
CONTENDERS: Final = ("json", "json+fsync", "sync", "async")
# How long it may take, where nobody says how many rounds, and of that: sizes, and the first saves of a run, of which more are checked.
_SECONDS, _FORECAST, _WARMING = 14.0, 3.0, 1.0
_MOST, _LEAST, _WARM = 50, 2, 8
_TIMED = 1 + _WARM + _MOST
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_CODEC = Codec()


class Spread(NamedTuple):
    """The median of some samples, and between what the middle eight tenths of them lie."""

    median: float
    low: float
    high: float


class Contender(NamedTuple):
    """What its saves took of the loop and until they were done, in seconds, and the bytes that they wrote; one sample a round.

    `first` is what the first save took, which for ours makes the file and is a base: the whole state.
    """

    name: str
    durable: bool
    blocking: list[float]
    total: list[float]
    written: list[int]
    first: float

    def spread(self, samples: Literal["blocking", "total", "written"]) -> Spread:
        """Of the samples of that name."""
        values: list[float] = [*getattr(self, samples)]
        tenths = statistics.quantiles(values, n=10, method="inclusive")
        return Spread(statistics.median(values), tenths[0], tenths[-1])


class Growth(NamedTuple):
    """The file of a run in which every step is kept: so many steps came to so many bytes, and what goes on at this rate.

    `rate` is bytes a step, bases included, once a run is under way; a base comes once in `period` steps, and until it is durable it takes
    `base_seconds` more than another step.
    """

    steps: int
    file_bytes: int
    rate: float
    period: float
    base_seconds: float

    def after(self, steps: int) -> float:
        """The size of the file after so many steps: measured, or where fewer were, about."""
        return self.file_bytes + (steps - self.steps) * self.rate


class Costs(NamedTuple):
    """What was replayed, and what it cost. `steps` are the real ones, 0 where they are made up: `changed` of `values` a step."""

    kind: str
    as_json: bool
    values: int
    changed: int
    steps: int
    message_bytes: int
    rounds: int
    contenders: dict[str, Contender]
    growth: Growth

    def waits(self, name: str, step_seconds: float = math.inf) -> float:
        """What a step of a long run waits for saving, its share of a base included, if a step of training takes `step_seconds`.

        In the background one save is being written and one may wait: where steps are shorter than what writing them takes, each waits for
        the rest of that; where only a base takes longer than two of them, the one after the next waits for it.
        """
        blocking, total, base = self._seconds(name)
        share = base / self.growth.period
        if name == "sync":
            return blocking + share
        if name != "async":
            return blocking
        return max(blocking + max(0.0, total + base - 2 * step_seconds) / self.growth.period, total + share - step_seconds)

    @property
    def step_needed(self) -> float:
        """How many seconds a step of training must take for an async save to cost the loop no more than what it blocks, bases included."""
        blocking, total, base = self._seconds("async")
        return max(total + base / self.growth.period - blocking, (total + base) / 2)

    def _seconds(self, name: str) -> tuple[float, float, float]:
        """The medians of a contender's blocking and total time, and what a base takes more."""
        contender = self.contenders[name]
        return contender.spread("blocking").median, contender.spread("total").median, self.growth.base_seconds


def replay(
    path: str, folder: str, *, change: float = 0.01, rounds: int | None = None, steps: int = 1000, on_step: Callable[[str, float], object]
) -> Costs:
    """Replay the checkpoint `path` as a run in the directory `folder`, which is left as the last step leaves it.

    Each round is a step that every contender saves, in alternating order; without `rounds` there are as many as a quarter of a minute allows.
    What each of them saved first is read back and compared before anything counts. The size of a run's file is that of one of
    `steps`, or of as many as there are, or as there is time for. `on_step` is called with what is being done and how much of it is done.

    Raises what `load` does, `EncodeError` for a state that has no JSON form, `StorageError`, `CheckpointError` for what comes back different.
    """
    until = time.perf_counter() + _SECONDS
    on_step("reading", 0.0)
    with ExitStack() as stack:
        source = _Source(path, change, steps, stack)
        growth = _grown(source, folder, steps, on_step)
        contenders: list[_Saver] = [_Json(folder, fsync=False), _Json(folder, fsync=True)]
        contenders += [stack.enter_context(_Run(folder, durability, durability=durability)) for durability in CONTENDERS[2:]]
        replayed = source.in_turn()
        first = _first(contenders, next(replayed)[0])
        _warm(contenders, replayed)
        samples = _rounds(contenders, replayed, rounds, until, on_step)
    measured = {}
    for each in contenders:
        blocking, total, written = (list(column) for column in zip(*samples[each.name], strict=True))
        measured[each.name] = Contender(each.name, each.durable, blocking, total, written, first[each.name].total)
    real = len(source.entries)
    return Costs(
        source.kind, source.as_json, len(source.places), 0 if real else source.changed, real, source.message_bytes, len(samples["json"]),
        measured, growth,
    )  # fmt: skip


# --- the states ------------------------------------------------------------------------------------------------------


class _Source:
    """The states of a run: real ones, or one that changes."""

    def __init__(self, path: str, change: float, most: int, stack: ExitStack) -> None:
        self._path, document = path, read(path)
        self.entries: list[Entry] = []
        if document.header is None:
            self.kind, self.as_json = "json", False
            state = from_json(document.message, path=path)
        else:
            self.kind = inspect(path).kind
            state = _CODEC.decode(document.message, document.header.ext, path=path)
            self.as_json = not _is_json(state)
            if self.kind == "run":
                self._open(stack, most)
        # Both ways save the same data, so what JSON cannot say is replayed as what it would have been.
        self._state = _in_json(state) if self.as_json else state
        self.message_bytes = len(_CODEC.encode(self._state).message)
        self.places = list(_values(self._state))
        self.changed = min(max(1, round(change * len(self.places))), len(self.places))

    def _open(self, stack: ExitStack, most: int) -> None:
        """The last steps of a run, as many as are needed; none where there is no step to another one."""
        with History(self._path, first_step=0) as history:
            steps = set(history.all_steps()[-max(most, _TIMED) :])
        self._reader = stack.enter_context(closing(Reader(self._path)))
        for entry, live in marked(self._reader):
            if live and entry.header.step in steps and not entry.header.stream:
                self.entries.insert(0, entry)
                if len(self.entries) == len(steps):
                    break
        if len(self.entries) < 2:
            self.entries = []

    def states(self, most: int = 0) -> Iterator[Any]:
        """The (last so many) states of a run, one after the other. A made-up one is always the same object, and is changed in between."""
        for entry in self.entries[-most:]:
            state = _CODEC.decode(self._reader.read(entry), entry.header.ext, path=self._path)
            yield _in_json(state) if self.as_json else state
        if not self.entries:
            draw = random.Random(5)
            while True:
                yield self._state
                for place in draw.sample(range(len(self.places)), self.changed):
                    holder, key = self.places[place]
                    holder[key] = _another(holder[key], draw)

    def in_turn(self) -> Iterator[tuple[Any, bool]]:
        """The states for ever, and of each whether it is a step on from the one before: not where a run begins again."""
        while True:
            for number, state in enumerate(self.states(_TIMED)):
                yield state, number > 0


def _is_json(state: Any) -> bool:
    """Whether JSON gives it back as it is."""
    try:
        return bool(_CODEC.encode(json.loads(json.dumps(state))) == _CODEC.encode(state))
    except (TypeError, ValueError):
        return False


def _in_json(state: Any) -> Any:
    return from_json(to_json(state))


def _values(root: Any) -> Iterator[tuple[Any, Any]]:
    """Where the values are that a step could change: container and key of each number, truth value and text."""
    stack = [root] if isinstance(root, (dict, list)) else []
    while stack:
        holder = stack.pop()
        for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if isinstance(value, (dict, list)):
                stack.append(value)
            elif value is not None and value != "":
                yield holder, key


def _another(value: Any, draw: random.Random) -> Any:
    """A value of the same kind and about the same size."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw.randint(1, 9)
    if isinstance(value, float):
        near = value * (1 + draw.gauss(0, 0.01)) if value and math.isfinite(value) else draw.random()
        return near if math.isfinite(near) else draw.random()
    words = value.split(" ")
    if len(words) > 3:
        draw.shuffle(words)
        other = " ".join(words)
    elif len(value) > 40:
        other = "".join(draw.sample(value, len(value)))
    else:
        place = draw.randrange(len(value))
        other = value[:place] + draw.choice(_LETTERS.replace(value[place], "")) + value[place + 1 :]
    return other if value.isascii() or _is_text(other) else value


def _is_text(text: str) -> bool:
    """Whether it has no halves of characters, two of which could come to stand side by side and be one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- those who save --------------------------------------------------------------------------------------------------


class _Sample(NamedTuple):
    blocking: float
    total: float
    written: int


class _Saver(ABC):
    """A way of saving the steps of a run."""

    name: str
    durable: bool

    @abstractmethod
    def save(self, state: Any) -> _Sample:
        """Save the next step; when it returns, nothing of it is left to be done."""

    @abstractmethod
    def load(self) -> Any:
        """What was saved last."""


class _Json(_Saver):
    """The replaced module: indented JSON in a new file that takes the place of the old one."""

    def __init__(self, folder: str, *, fsync: bool) -> None:
        self.name, self.durable = CONTENDERS[fsync], fsync
        self._path = os.path.join(folder, self.name, "checkpoint.json")

    def save(self, state: Any) -> _Sample:
        started = time.perf_counter()
        data = json.dumps(state, ensure_ascii=False, indent=2).encode("utf-8", "backslashreplace")
        publish(self._path, data, fsync=self.durable)
        taken = time.perf_counter() - started
        if not self.durable:
            vouch(self._path)  # or the next one's sync writes it, too
        return _Sample(taken, taken, len(data))

    def load(self) -> Any:
        with open_file(self._path) as (fd, status):
            return from_json(read_at(fd, status.st_size, 0), path=self._path)


class _Run(_Saver):
    """A run of ours; its files are in a folder of its own."""

    durable = True

    def __init__(self, folder: str, name: str, **options: Any) -> None:
        self.name = name
        # Nobody else knows of the folder, and a filesystem without locks is to be measured, too.
        self.manager: CheckpointManager[Any] = CheckpointManager(os.path.join(folder, name), max_file_bytes=None, lock=False, **options)
        self.step = -1

    def save(self, state: Any) -> _Sample:
        self.step += 1
        started = time.perf_counter()
        self.manager.save(self.step, state)
        blocked = time.perf_counter()
        self.manager.wait_until_finished()
        return _Sample(blocked - started, time.perf_counter() - started, self.manager.last_stats.written_bytes)

    def load(self) -> Any:
        return self.manager.restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.manager.__exit__(kind, error, trace)


# --- measuring -------------------------------------------------------------------------------------------------------


def _first(contenders: list[_Saver], state: Any) -> dict[str, _Sample]:
    """What the first saves take; each is read back, for what does not save the same need not be compared."""
    saved, samples = _CODEC.encode(state), {}
    for each in contenders:
        samples[each.name] = each.save(state)
        if _CODEC.encode(each.load()) != saved:
            raise CheckpointError(f"{each.name} gave back another state than was saved", remedy="report it as a fault of fastckpt")
    return samples


def _warm(contenders: list[_Saver], replayed: Iterator[tuple[Any, bool]]) -> None:
    """A few steps of ours that do not count: of a run's first saves more are compared than of those that follow."""
    until = time.perf_counter() + _WARMING
    for _ in range(_WARM):
        if time.perf_counter() > until:
            break
        state, _ = next(replayed)
        for each in contenders:
            if isinstance(each, _Run):
                each.save(state)


def _rounds(
    contenders: list[_Saver], replayed: Iterator[tuple[Any, bool]], rounds: int | None, until: float, on_step: Callable[[str, float], object]
) -> dict[str, list[_Sample]]:
    samples: dict[str, list[_Sample]] = {each.name: [] for each in contenders}
    contenders = [*contenders]
    count, began = 0, time.perf_counter()
    while count < (rounds or _MOST) and (rounds or count < _LEAST or time.perf_counter() < until):
        state, counts = next(replayed)
        for each in contenders if counts else [each for each in contenders if isinstance(each, _Run)]:
            sample = each.save(state)
            if counts:
                samples[each.name].append(sample)
        if counts:
            contenders.reverse()  # what comes after whom is no advantage
            count += 1
        spent = (time.perf_counter() - began) / max(until - began, 0.1)
        on_step(f"round {count}", min(max(count / (rounds or _MOST), 0.0 if rounds else spent), 1.0))
    return samples


def _grown(source: _Source, folder: str, steps: int, on_step: Callable[[str, float], object]) -> Growth:
    """The file of a run of so many steps, or as many as there is time for. Durable, for what a base takes is measured, too."""
    until = time.perf_counter() + _FORECAST
    sizes: list[int] = []
    seconds: list[float] = []
    bases: list[int] = []
    with _Run(folder, "growth") as run:
        for state in source.states():
            saved = run.save(state)
            sizes.append(saved.written)
            seconds.append(saved.total)
            if run.manager.last_stats.bases:
                bases.append(run.step)
            on_step("a run's file", min(len(sizes) / steps, 1.0))
            if len(sizes) == steps or (len(sizes) > _LEAST and time.perf_counter() > until):
                break
    if len(bases) > 1:
        # Whole generations: the steps of one are not all alike.
        rate, period = sum(sizes[: bases[-1]]) / bases[-1], bases[-1] / (len(bases) - 1)
    else:
        # By the rule after which the next base would come.
        step = statistics.mean(sizes[1:] or sizes)
        period = max(1.0, min(MAX_TOUCHED, RECORDS_PER_BASE * sizes[0] / step))
        rate = step + sizes[0] / period
    with open_file(os.path.join(folder, "growth", NAME)) as (_, status):
        size = status.st_size
    others = [each for step, each in enumerate(seconds) if step not in bases] or seconds
    # The first one makes the file, which no other base does.
    more = statistics.median(seconds[step] for step in bases[1:] or bases) - statistics.median(others)
    return Growth(len(sizes), size, rate, period, max(more, 0.0))
