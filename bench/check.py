"""The case `check`: the floors that depend on no disk, for CI. Also `python -m bench --check`.

CPU time with a storage that records in memory, beside the replaced module's without its file; both in one process, in turns, so
that a busy machine slows both. System calls and flushes of 40 saves: exactly, all of them; their bytes within 2%. The differences of
two messages that are hardest: thread time, and the least of it. With `--quick` on the smaller state alone.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from fastckpt import CheckpointManager, dropin

from .diff import LEAST_BYTES, MB, hard, measure
from .floors import Floor, floors, judged
from .recording import RecordingStorage
from .report import Outcome, Picture, Ratio, amount, named, table
from .workloads import Training

HELP = "the floors that depend on no disk: CPU time, system calls, flushes and bytes"
SHAPES, QUICK_SHAPES = ["usual", "usual-cjk", "large"], ["usual"]
ROUNDS, QUICK_ROUNDS = {"large": 9}, {"large": 3}
DIFF_MB, QUICK_DIFF_MB = 2.0, 0.5
# How often a difference is made, and how often that is done again, so many seconds apart, while the least of all is over the floor.
DIFF_ROUNDS, DIFF_AGAIN, DIFF_PAUSE = 5, 20, 0.1
# Saves of which calls and bytes are counted; the same everywhere, for the count is exact.
COUNTED = 40
TOLERANCE = 0.02
RUN = "/run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    parser.add_argument("--shapes", type=_shapes, metavar="NAME,...", help=f"of {', '.join(SHAPES)} (default: all; with --quick usual)")


def _shapes(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in (*SHAPES, "small")]:  # that one for a first impression: no floor is known of it
        raise argparse.ArgumentTypeError(f"no state {unknown[0]!r} here; there are {', '.join(SHAPES)}")
    return names


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print."""
    del folder  # nothing is written
    outcome, found = Outcome(), list[Floor]()
    shapes = arguments.shapes or (QUICK_SHAPES if arguments.quick else SHAPES)
    bars: dict[str, list[tuple[float, float]]] = {}
    for shape in shapes:
        rounds = arguments.rounds or (QUICK_ROUNDS.get(shape, 15) if arguments.quick else ROUNDS.get(shape, 25))
        samples = _times(shape, rounds)
        rows = [["", "replaced module", "fastckpt", "less"]]
        for what, (old, ours) in samples.items():
            before = outcome.add(shape, "replaced module", what, unit="ms", samples=old)
            after = outcome.add(shape, "fastckpt", what, unit="ms", samples=ours)
            ratio = outcome.ratios[named(shape, what)] = Ratio.of(old, ours)
            rows.append([what, amount(before.median, "ms"), amount(after.median, "ms"), str(ratio)])
            bars.setdefault(what, []).append((float(shapes.index(shape)), ratio.median))
        bare, blocking = (outcome.figures[named(shape, *name)] for name in (("replaced module", "encode"), ("fastckpt", "encode")))
        found += [
            Floor(f"{shape}, {what}, times less CPU", floor, outcome.ratios[named(shape, what)].median)
            for what, floor in floors("check", shape).items()
            if what not in ("file", "bytes")
        ]
        over = statistics.median(b / (1.3 * a + 0.1) for a, b in zip(bare.samples, blocking.samples, strict=True))
        found.append(Floor(f"{shape}, blocking ms over 1.3 x a bare encode + 0.1 ms", floors("check")["blocking_over_encode"], over, at_most=True))
        print(f"\n{shape}, {rounds} rounds, CPU time\n{table(rows)}", flush=True)
        found += _counts(shape, outcome)
    found.append(_differences(arguments, outcome))
    said, outcome.short = judged(found)
    print(f"\n{said}")
    outcome.picture = Picture("Times less CPU than the replaced module", "state", "times", bars, labels=shapes)
    return outcome


def _times(shape: str, rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """CPU milliseconds of the replaced module and of ours by what is done, round by round, after two that do not count."""
    work, disk = Training(shape), RecordingStorage()
    old_bytes = b""

    def manager(durability: Literal["sync", "async"]) -> CheckpointManager[Any]:
        return CheckpointManager(f"{RUN}-{len(managers)}", work.type, durability=durability, storage=RecordingStorage())

    def old_save(step: int) -> None:
        nonlocal old_bytes
        old_bytes = json.dumps(work.plain(step), ensure_ascii=False, indent=2).encode()

    def save(step: int) -> None:
        dropin.write_checkpoint("/one", state=work.state, **work.around(step), storage=disk)

    def in_run(what: str) -> Callable[[int], Any]:
        return lambda step: managers[what].save(step, work.typed(step))

    managers: dict[str, CheckpointManager[Any]] = {}
    for what in ("step", "leap", "blocking", "encode"):
        managers[what] = manager("sync" if what in ("step", "leap") else "async")
    # What takes turns in one round: what is done, the old way, ours. A load comes after a save, as the first one of a process does,
    # with memory that others have had.
    rounds_of: list[list[tuple[str, Callable[[int], Any], Callable[[int], Any]]]] = [
        [
            ("save", old_save, save),
            # As text, line ends looked at: that is how the replaced module read.
            (
                "load",
                lambda _: json.load(io.TextIOWrapper(io.BytesIO(old_bytes), encoding="utf-8")),
                lambda _: dropin.load_checkpoint("/one", storage=disk),
            ),
        ],
        [("step", old_save, in_run("step"))],
        [("leap", old_save, in_run("leap"))],
        [("blocking", old_save, in_run("blocking"))],
        [("encode", lambda step: msgspec.msgpack.encode(work.typed(step)), in_run("encode"))],
    ]
    samples: dict[str, tuple[list[float], list[float]]] = {}
    step = 0
    for pairs in rounds_of:
        for number in range(-2, rounds):
            step += 1
            (work.leap if pairs[0][0] == "leap" else work.step)(step)
            for what, old, ours in pairs:
                # What goes on in the background is no time of the caller's.
                clock = time.thread_time if what in ("blocking", "encode") else time.process_time
                for at, call in ((0, old), (1, ours))[:: -1 if number % 2 else 1]:
                    gc.collect()
                    start = clock()
                    result = call(step)
                    taken = 1e3 * (clock() - start)
                    del result  # what a load made is let go of outside of the time
                    if what in managers:
                        managers[what].wait_until_finished()
                    if number >= 0:
                        samples.setdefault(what, ([], []))[at].append(taken)
    for each in managers.values():
        each.close()
    return samples


def _counts(shape: str, outcome: Outcome) -> list[Floor]:
    """System calls and bytes of so many saves, all of them: of one file that each replaces, and of a run, its base and its end included."""
    work, disks = Training(shape), {"file": RecordingStorage(), "run": RecordingStorage()}
    manager = CheckpointManager(RUN, work.type, round_trip="never", storage=disks["run"])
    before = {what: disk.calls.copy() for what, disk in disks.items()}
    calls, sizes = {what: list[Counter[str]]() for what in disks}, {what: list[int]() for what in disks}
    for step in range(COUNTED):
        work.step(step)
        for what, disk in disks.items():
            made, written = disk.calls.copy(), disk.written
            if what == "run":
                manager.save(step, work.typed(step))
            else:
                dropin.write_checkpoint("/one", state=work.state, **work.around(step), storage=disk)
            calls[what].append(disk.calls - made)
            sizes[what].append(disk.written - written)
    manager.close()
    old = len(json.dumps(work.plain(step), ensure_ascii=False, indent=2).encode())
    held, found = floors("check", shape), list[Floor]()
    for what, disk in disks.items():
        saves = f"{what}, {COUNTED} saves"
        usual = Counter(dict(Counter(tuple(sorted(each.items())) for each in calls[what]).most_common(1)[0][0]))
        total, usual_size = disk.calls - before[what], statistics.median(sizes[what])
        for name, made, size in ((what, usual, usual_size), (saves, total, float(sum(sizes[what])))):
            outcome.add(shape, name, "bytes", unit="B", samples=[size])
            outcome.add(shape, name, "calls", unit="calls", samples=[made.total()])
            outcome.add(shape, name, "flushes", unit="flushes", samples=[_flushes(made)])
            print(f"{shape}, {name}: {amount(size, 'B')}, {', '.join(f'{count} {call}' for call, count in sorted(made.items()))}")
        if shape in SHAPES:
            expected = floors("check", "calls", what)
            # A flush less of one save and one more of another would be the same in all.
            exact = [("fewest flushes of one", floors("check", "flushes")[what], min(map(_flushes, calls[what])))]
            exact += [(f"calls of {name}", expected.get(name, 0), total[name]) for name in sorted(total | expected)]
            found += [Floor(f"{shape}, {saves}, {name}", known, counted, within=0.0) for name, known, counted in exact]
            first, others = floors("check", "bytes", shape)[what]
            # Each of the two, for beside the base of a large state the steps would not be seen.
            for name, known, written in (("the first", first, sizes[what][0]), ("the others", others, sum(sizes[what][1:]))):
                found.append(Floor(f"{shape}, {saves}, bytes of {name}", known, written, within=TOLERANCE))
        key = "bytes" if what == "run" else what
        if key in held:
            found.append(Floor(f"{shape}, {what}, times smaller than JSON", held[key], old / usual_size))
    return found


def _flushes(calls: Counter[str]) -> int:
    return calls["sync"] + calls["sync_data"]


def _differences(arguments: argparse.Namespace, outcome: Outcome) -> Floor:
    """The worst of the hard differences."""
    worst, where, most = 0.0, "", floors("check")["diff_ms_per_mb"]
    for name, before, message in hard(int((QUICK_DIFF_MB if arguments.quick else DIFF_MB) * MB)):
        if max(len(before), len(message)) >= LEAST_BYTES:
            samples = _difference(before, message, most)
            outcome.add("difference", name, unit="ms", samples=samples)
            if min(samples) > worst:
                worst, where = min(samples), name
    return Floor(f"difference, worst case ({where}), ms for a MB", most, worst, at_most=True)


def _difference(before: bytes, message: bytes, most: float) -> list[float]:
    """Thread milliseconds for a MB. The least of them counts: what a busy machine adds, by caches and cores that are shared, is no property
    of the code; what the code takes is there at every moment, so over the floor it is measured again, for some seconds."""
    samples: list[float] = []
    for again in range(DIFF_AGAIN):
        time.sleep(DIFF_PAUSE if again else 0)
        samples += measure(before, message, DIFF_ROUNDS)["ms_per_mb"]
        if min(samples) <= most:
            break
    return samples
