"""The case `check`: the floors that depend on no disk, for CI. Also `python -m bench --check`.

CPU time with a storage that records in memory, beside the replaced module's without its file; both in one process, in turns, so
that a busy machine slows both. System calls, flushes and bytes of a save: exactly, or within 2%. The differences of two messages
that are hardest. With `--quick` on the smaller state alone.
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
# Steps over which calls and bytes are counted; the same everywhere, for the count is exact.
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
    """System calls and bytes of one save: of one file that replaces another, and of the usual step of a run."""
    work, disk = Training(shape), RecordingStorage()
    old, run_bytes, calls = 0, list[int](), list[Counter[str]]()
    manager = CheckpointManager(RUN, work.type, round_trip="never", storage=disk)
    for step in range(COUNTED):
        work.step(step)
        calls_before, written = disk.calls.copy(), disk.written
        manager.save(step, work.typed(step))
        run_bytes.append(disk.written - written)
        calls.append(disk.calls - calls_before)
        old = len(json.dumps(work.plain(step), ensure_ascii=False, indent=2).encode())
    manager.close()
    one = RecordingStorage()
    for step in range(2):
        calls_before, written = one.calls.copy(), one.written
        dropin.write_checkpoint("/one", state=work.state, **work.around(step), storage=one)
    usual = Counter(tuple(sorted(each.items())) for each in calls).most_common(1)[0][0]
    counted = {"file": (dict(one.calls - calls_before), one.written - written), "run": (dict(usual), round(statistics.median(run_bytes)))}
    found = []
    for what, (made, size) in counted.items():
        outcome.add(shape, what, "bytes", unit="B", samples=[size])
        outcome.add(shape, what, "calls", unit="calls", samples=[sum(made.values())])
        outcome.add(shape, what, "flushes", unit="flushes", samples=[made.get("sync", 0) + made.get("sync_data", 0)])
        print(f"{shape}, {what}: {amount(size, 'B')}, {', '.join(f'{count} {name}' for name, count in sorted(made.items()))}")
        if shape not in SHAPES:
            continue
        expected = floors("check", "calls", what)
        found += [
            Floor(f"{shape}, {what}, calls of {name}", expected.get(name, 0), made.get(name, 0), within=0.0) for name in sorted(made | expected)
        ]
        if known := floors("check", "bytes", shape).get(what):
            found.append(Floor(f"{shape}, {what}, bytes", known, size, within=TOLERANCE))
    held = floors("check", shape)
    sizes = {"file": old / counted["file"][1], "bytes": old / counted["run"][1]}
    found += [Floor(f"{shape}, {what}, times smaller than JSON", held[what], sizes[what]) for what in sizes if what in held]
    return found


def _differences(arguments: argparse.Namespace, outcome: Outcome) -> Floor:
    """The worst of the hard differences. The least of the rounds: what a busy machine adds is no property of the code."""
    worst, where = 0.0, ""
    for name, before, message in hard(int((QUICK_DIFF_MB if arguments.quick else DIFF_MB) * MB)):
        if max(len(before), len(message)) >= LEAST_BYTES:
            samples = measure(before, message, 5)["ms_per_mb"]
            outcome.add("difference", name, unit="ms", samples=samples)
            if min(samples) > worst:
                worst, where = min(samples), name
    return Floor(f"difference, worst case ({where}), ms for a MB", floors("check")["diff_ms_per_mb"], worst, at_most=True)
