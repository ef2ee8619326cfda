"""The case `diff`: what a message shares with the one before it. CPU time, new bytes and rows; and what whole runs come to.

First single differences: ordinary ones, and those that are hard to find anything in. Then whole runs, without a disk: frames and
tables as a file has them, what else a record costs added, and bases as a run makes them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from fastckpt.delta import CHUNK, EMPTY, Difference, diff

from .floors import floors
from .options import between, positive, whole
from .report import Outcome, Picture, table
from .shapes import PERSISTED, TrainState, change, make, replace_pack

HELP = "what a message shares with the one before it: CPU time, new bytes, rows; files of whole runs, simulated"
ROUNDS, QUICK_ROUNDS = 9, 3
MB = 1_000_000
# A message counts as so many bytes at least, for a call costs something too.
LEAST_BYTES = MB // 4
SHARED = Path(os.environ.get("FASTCKPT_SHARED") or Path(__file__).resolve().parents[2] / "shared") / "data"
# Of a record beside its table and frame, with some metadata.
_HEADERS = 330


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this case alone."""
    parser.add_argument("--mb", type=between(0.001, 1000), default=2.0, metavar="MB", help="size of the made-up messages (default: %(default)s)")
    parser.add_argument("--chunk", type=whole(64), default=CHUNK, metavar="BYTES", help="size that chunks aim at (default: %(default)s)")
    parser.add_argument("--level", type=whole(1, 22), default=3, metavar="N", help="zstd's, for the simulated runs (default: %(default)s)")
    parser.add_argument("--steps", type=positive, metavar="N", help="steps of each simulated run at most (default: all; with --quick a tenth)")


def run(arguments: argparse.Namespace, folder: Path) -> Outcome:
    """Measure and print."""
    del folder  # nothing is written
    outcome = Outcome()
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    held, most_mb = floors("diff"), floors("diff", "file_mb")
    rows, bars = [["", "MB", "CPU ms", "ms/MB", "new kB", "rows"]], list[tuple[float, float]]()
    for name, before, message in [*_ordinary(arguments.quick), *hard(int(arguments.mb * MB))]:
        result = measure(before, message, rounds, arguments.chunk)
        per_mb = outcome.add("one difference", name, "a MB", unit="ms", samples=result["ms_per_mb"]).median
        outcome.add("one difference", name, "new bytes", unit="B", samples=[result["new_bytes"]])
        rows.append([name, f"{len(message) / MB:.2f}", f"{statistics.median(result['cpu_seconds']) * 1e3:.2f}", f"{per_mb:.2f}"])
        rows[-1] += [f"{result['new_bytes'] / 1e3:.1f}", str(result["rows"])]
        bars.append((float(len(bars)), per_mb))
        if per_mb > held["ms_per_mb"]:
            outcome.short.append(f"diff, {name}: {per_mb:.2f} ms/MB, at most {held['ms_per_mb']}")
    print(f"\none difference, {rounds} rounds\n{table(rows)}", flush=True)
    outcome.picture = Picture("What two messages share", "", "milliseconds for a MB", {"CPU": bars}, labels=[row[0] for row in rows[1:]])
    rows = [["", "steps", "MB", "of it tables", "MB a state", "bases", "touched", "chunks", "CPU ms a step"]]
    for name, (steps, messages) in _runs().items():
        asked = min(arguments.steps or (max(steps // 10, 2) if arguments.quick else steps), steps)
        result = simulate(islice(messages(), asked), arguments.chunk, arguments.level)
        outcome.add("whole run", f"{name}, {result['steps']} steps", "file", unit="B", samples=[result["file_bytes"]])
        outcome.add("whole run", f"{name}, {result['steps']} steps", "a step", unit="ms", samples=[1e3 * result["cpu_seconds"] / result["steps"]])
        rows.append([name, str(result["steps"]), f"{result['file_bytes'] / MB:.3f}", f"{result['table_bytes'] / MB:.3f}"])
        rows[-1] += [f"{result['message_bytes'] / MB:.2f}", str(result["bases"]), str(result["touched"]), str(result["chunks"])]
        rows[-1].append(f"{result['cpu_seconds'] / result['steps'] * 1e3:.2f}")
        if asked == steps and result["file_bytes"] > most_mb.get(name, float("inf")) * MB:
            outcome.short.append(f"diff, {name}: {result['file_bytes'] / MB:.2f} MB, at most {most_mb[name]}")
    print(f"\nwhole runs, simulated; touched: most records that a message lies in; chunks: of the last message\n{table(rows)}")
    return outcome


def measure(before: bytes, message: bytes, rounds: int, chunk: int = CHUNK) -> dict[str, Any]:
    """The difference of two messages, made `rounds` times."""
    old = diff(EMPTY, before, 1, chunk=chunk).chunks
    made, samples = diff(old, message, 2, chunk=chunk), []
    for _ in range(rounds):
        start = time.thread_time()
        diff(old, message, 2, chunk=chunk)
        samples.append(time.thread_time() - start)
    return {
        "message_bytes": len(message),
        "cpu_seconds": samples,
        "ms_per_mb": [seconds * 1e3 / max(len(message), len(before), LEAST_BYTES) * MB for seconds in samples],
        "new_bytes": len(made.content),
        "rows": len(made.runs) // 3,
    }


def simulate(messages: Iterable[bytes], chunk: int, level: int) -> dict[str, Any]:
    """The file that a run of these messages would be, with a base wherever a run makes one."""
    chunks, offsets, offset = EMPTY, dict[int, int](), 48
    base_bytes = base_message = records = tables = 0
    total = {"steps": 0, "bases": 0, "table_bytes": 0, "new_bytes": 0, "touched": 0, "cpu_seconds": 0.0}
    message = b""
    for owner, message in enumerate(messages, 1):
        start = time.thread_time()
        made = diff(chunks, message, owner, chunk=chunk)
        total["cpu_seconds"] += time.thread_time() - start
        outgrown = records >= 4 * base_bytes or tables >= base_bytes or len(made.touched) > 256 or len(message) >= 2 * base_message
        if made.touched and outgrown:
            made = diff(EMPTY, message, owner, chunk=chunk)
        rows, size = _record(made, [offset - offsets[other] for other in made.touched], level)
        if made.touched:
            records, tables = records + size, tables + rows
        else:
            base_bytes, base_message, records, tables = size, len(message), 0, 0
        offsets[owner], offset, chunks = offset, offset + size, made.chunks
        total["steps"] += 1
        total["bases"] += not made.touched
        total["table_bytes"] += rows
        total["new_bytes"] += len(made.content)
        total["touched"] = max(total["touched"], len(made.touched))
    return {**total, "file_bytes": offset, "message_bytes": len(message), "chunks": len(chunks.sizes)}


def _record(made: Difference, distances: list[int], level: int) -> tuple[int, int]:
    """Bytes of its table, and of all of it."""
    # Checksums do not compress, and neither table nor header is compressed: any bytes will do.
    rows = 12 + len(msgspec.msgpack.encode([distances, bytes(8 * len(distances)), made.runs, made.sizes, made.crcs]))
    return rows, _HEADERS + rows + len(zstandard.ZstdCompressor(level=level, write_checksum=True).compress(made.content))


# --- messages ----------------------------------------------------------------------------------------------------------

_Case = tuple[str, bytes, bytes]


def _ordinary(quick: bool) -> Iterator[_Case]:
    """Steps of a real optimisation, and a large array of which a little changes."""
    for shape in ("usual",) if quick else ("usual", "large"):
        for what, step in (("a step", change), ("a pack replaced", replace_pack)):
            state = make(shape)
            before = _encoded(state)
            step(state, 0)
            yield f"{shape}, {what}", before, _encoded(state)
    before, message = islice(_floats(), 2)
    yield "20 floats of 10 MB", before, message
    yield "unchanged", message, message


def hard(size: int) -> Iterator[_Case]:
    """Messages in which there is little to find, or in which the same is found everywhere."""
    draw = random.Random(3)
    noise, text = draw.randbytes(size), _text(draw, size)
    yield "from nothing", b"", noise
    yield "all new", noise, draw.randbytes(size)
    yield "all new, text", text, _text(draw, size)
    yield "reversed", noise, noise[::-1]
    yield "doubled in front", noise, draw.randbytes(size) + noise
    yield "first half gone", noise, noise[size // 2 + 11 :]
    for block in (1000, 4096, 20_000, 100_000):
        yield f"blocks of {block} permuted", noise, _permuted(draw, noise, block)
    yield "text in blocks of 4096 permuted", text, _permuted(draw, text, 4096)
    for every in (1500, 3000, 5000, 10_000):
        yield f"a byte in {every} changed", noise, _everywhere(draw, noise, every, 0)
        yield f"insertions every {every}", noise, _everywhere(draw, noise, every, 20)
    yield "text, insertions every 5000", text, _everywhere(draw, text, 5000, 20)
    yield "all equal, one more", bytes(size), bytes(size + 1)
    yield "all equal, others", bytes(size), b"\1" * size
    yield "all equal, insertions", _everywhere(draw, bytes(size), 3000, 20), _everywhere(draw, bytes(size), 3000, 20)
    yield "two symbols", bytes(draw.choices(b"ab", k=size)), bytes(draw.choices(b"ab", k=size))
    two = bytes(draw.choices(b"ab", k=size))
    yield "two symbols, insertions", two, _everywhere(draw, two, 4096, 20)
    for length in (61, 5000):
        period = (draw.randbytes(length) * (size // length + 1))[:size]
        name = "periodic" if length == 61 else f"period of {length}"
        yield f"{name}, another phase", period, period[7:]
        yield f"{name}, changed everywhere", period, _everywhere(draw, period, 3000, 0)
        yield f"{name}, insertions in both", _everywhere(draw, period, 3000, 20), _everywhere(draw, period, 3000, 20)
    yield "recurring beginnings", _recurring(draw, size), _recurring(draw, size)
    yield "all floats new", _float_array(draw, size), _float_array(draw, size)
    for tiny in (1, 100, 5000):
        yield f"{tiny} bytes", draw.randbytes(tiny), draw.randbytes(tiny)


def _text(draw: random.Random, size: int) -> bytes:
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(3000)]
    return " ".join(draw.choices(words, k=size // 5 + 1))[:size].encode()


def _permuted(draw: random.Random, message: bytes, block: int) -> bytes:
    blocks = [message[start : start + block] for start in range(0, len(message), block)]
    draw.shuffle(blocks)
    return b"".join(blocks)


def _everywhere(draw: random.Random, message: bytes, every: int, longest: int) -> bytes:
    """In each stretch of `every` bytes one is changed, or up to `longest` are inserted."""
    result = bytearray()
    for start in range(0, len(message), every):
        piece = bytearray(message[start : start + every])
        place = draw.randrange(len(piece))
        if longest:
            piece[place:place] = draw.randbytes(draw.randint(1, longest))
        else:
            piece[place] ^= 1
        result += piece
    return bytes(result)


def _recurring(draw: random.Random, size: int) -> bytes:
    return b"".join(b"the same beginning every time, " * 10 + draw.randbytes(714) for _ in range(size // 1024 + 1))


def _float_array(draw: random.Random, size: int) -> bytes:
    return b"".join(struct.pack(">Bd", 0xCB, draw.random()) for _ in range(size // 9 + 1))


# --- runs --------------------------------------------------------------------------------------------------------------


def _runs() -> dict[str, tuple[int, Callable[[], Iterator[bytes]]]]:
    """Steps and messages of each run; the two of real files only where these are."""
    runs: dict[str, tuple[int, Callable[[], Iterator[bytes]]]] = {
        "usual": (500, lambda: _steps("usual", change)),
        "usual, packs replaced": (60, lambda: _steps("usual", replace_pack)),
        "large": (60, lambda: _steps("large", change)),
        "20 floats of 10 MB": (600, _floats),
        "appended rows": (10_000, _rows),
    }
    if SHARED.is_dir():
        runs["200 trajectories"] = (200, _trajectories)
        runs["trainer state"] = (500, _trainer_states)
    else:
        print(f"\nthe runs of real files are left out: there is no {SHARED}")
    return runs


def _encoded(state: TrainState) -> bytes:
    return msgspec.msgpack.encode({name: getattr(state, name) for name in PERSISTED})


def _steps(shape: str, step: Callable[[TrainState, int], None]) -> Iterator[bytes]:
    state = make(shape)
    for number in range(1 << 30):
        step(state, number)
        yield _encoded(state)


def _floats() -> Iterator[bytes]:
    draw = random.Random(5)
    state = {"step": 0, "weights": [draw.random() for _ in range(10 * MB // 9)]}
    while True:
        yield msgspec.msgpack.encode(state)
        state["step"] += 1  # type: ignore[operator]
        for _ in range(20):
            state["weights"][draw.randrange(10 * MB // 9)] = draw.random()  # type: ignore[index]


def _rows() -> Iterator[bytes]:
    """One row of 62 bytes a step, in a list in the middle of the state."""
    draw = random.Random(6)
    log: list[dict[str, Any]] = []
    notes, scores = "".join(draw.choices("abcdefghij klmno", k=4000)), {f"k{number}": draw.random() for number in range(285)}
    for step in range(1 << 30):
        log.append({"step": step, "loss": draw.random(), "lr": 1e-4 * draw.random(), "acc": draw.random(), "name": "train/x"})
        yield msgspec.msgpack.encode({"step": step, "notes": notes, "log": log, "scores": scores})


def _trajectories() -> Iterator[bytes]:
    everything = json.loads((SHARED / "tau_bench_gpt4o_airline_trajectories.json").read_bytes())
    for count in range(1, len(everything) + 1):
        yield msgspec.msgpack.encode(everything[:count])


def _trainer_states() -> Iterator[bytes]:
    state = json.loads((SHARED / "trainer_state_star_40000steps.json").read_bytes())
    for count in range(4, len(state["log_history"]) + 1, 4):
        yield msgspec.msgpack.encode({**state, "global_step": 20 * count, "log_history": state["log_history"][:count]})
