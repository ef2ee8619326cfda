"""The README's benchmark section, made of the recorded results: every figure in it is one of theirs."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from .contenders import ASYNC, BASELINE, EVERY, ONE_FILE, SYNC, Bare, Msgpack, Nothing, Orjson, OrjsonUnsafe, Ours, Pickle
from .report import Figure, amount, figures_of, named
from .worker import BenchError

ROOT = Path(__file__).resolve().parents[1]
README, RESULTS = ROOT / "README.md", Path(__file__).parent / "results"
BEGIN = "<!-- benchmarks: written by `python -m bench readme` from bench/results; change bench/readme.py, not this -->"
END = "<!-- benchmarks: end -->"
NAMES = [contender.name for contender in EVERY]


def main(*, check: bool) -> int:
    """Write the section, or look whether it is the one that would be written; the exit code."""
    text = README.read_text(encoding="utf-8")
    wanted = renewed(text, section(RESULTS))
    if check and wanted != text:
        print("bench: the README's benchmark section is not that of bench/results: run `python -m bench readme`", file=sys.stderr)
        return 1
    if not check and wanted != text:
        README.write_text(wanted, encoding="utf-8")
    return 0


def renewed(text: str, section: str) -> str:
    """The README with this section in the place of the one between the markers. Raises `BenchError` where they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError("the README has no place for its benchmark section: expected its two marker lines")
    return f"{before}{BEGIN}\n\n{section}\n{END}{after}"


class _Results:
    """The recorded cases."""

    def __init__(self, folder: Path) -> None:
        self.documents: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))}
        if not self.documents:
            raise BenchError(f"no results in {folder}: run `python -m bench record`")
        self._figures = {case: figures_of(document) for case, document in self.documents.items()}

    def figure(self, case: str, *parts: str) -> Figure | None:
        return self._figures.get(case, {}).get(named(*parts))

    def said(self, case: str, *parts: str, at: float | None = None) -> str:
        """A median, or another percentile, as the table says it."""
        figure = self.figure(case, *parts)
        return "" if figure is None else amount(figure.median if at is None else figure.at(at), figure.unit)

    def ratio(self, case: str, *parts: str) -> str:
        ratio = self.documents.get(case, {}).get("ratios", {}).get(named(*parts))
        return "" if ratio is None else f"{ratio['median']:.3g}x ({ratio['p10']:.3g}-{ratio['p90']:.3g})"

    def states(self, case: str) -> list[str]:
        """The states of a case, in its order."""
        return list(dict.fromkeys(name.partition(": ")[0] for name in self._figures.get(case, {})))

    def contenders(self, case: str, state: str) -> list[str]:
        return [name for name in NAMES if any(figure.startswith(f"{state}: {name}: ") for figure in self._figures.get(case, {}))]


def section(folder: Path) -> str:
    """The text between the markers."""
    results = _Results(folder)
    parts = [_introduction(results), _run(results), _not_first(results), _save(results), _codec(results), _loop(results), _scale(results)]
    parts += [_restore(results), _others(results), _floors(results), COMMANDS]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)).replace("|  |", "| |")


def _introduction(results: _Results) -> str:
    first = next(iter(results.documents.values()))
    machine, disk, versions = first["machine"], first["filesystem"], first["versions"]
    flush = f"a durable write of 4 KiB takes {disk['durable_4k_write_seconds'] * 1e3:.2f} ms"
    others = [f"{name} {version}" for name, version in versions.items() if name not in ("python", "fastckpt") and version != "not installed"]
    said = (
        "From the checkout, with the extra `bench` (`.venv/bin/pip install '.[bench]'`). Each contender has a process of its own, must load "
        "what it was given before it is timed, and takes turns with the others; the disk is settled in between. The states are those of a real "
        "optimisation (`small` 0.1, `usual` 1.8, `large` 19 MB of JSON), and others of another structure. Ratios are against the replaced "
        "module, which syncs nothing, step by step: the median, and 10th to 90th percentile. "
        f"One run on {machine['processor']}, {machine['cpus']} CPUs, {disk['type']} ({flush}), {machine['system'].split('-')[0]}, "
        f"CPython {versions['python']}, {', '.join(others)}. Every case, its samples and its picture are in `bench/results`."
    )
    if quick := sorted(case for case, document in results.documents.items() if document["quick"]):
        said += f" Of few rounds (`--quick`): {', '.join(quick)}."
    return textwrap.fill(said, 140, break_long_words=False, break_on_hyphens=False)


def _run(results: _Results) -> str:
    lines = ["**A run, every step kept and durable** (`python -m bench run`):"]
    for state in [state for state in ("usual", "large") if state in results.states("run")]:
        rows = [[f"`{state}`", "blocks the loop", "99%", "until durable", "less", "a pack replaced", "written a step", "memory"]]
        for name in results.contenders("run", state):
            row = [name, results.said("run", state, name, "blocking"), results.said("run", state, name, "blocking", at=99)]
            row += [results.said("run", state, name, "total"), "" if name == BASELINE else results.ratio("run", state, name, "total")]
            rows.append([*row, *(results.said("run", state, name, key) for key in ("leap, total", "bytes", "memory"))])
        lines.append(_markdown(rows))
    lines.append("![What a step makes the loop wait](bench/results/run.svg)")
    return "" if len(lines) == 2 else "\n\n".join(lines)


# What is compared with what, and why the other may be faster: (what, the case, ours, theirs, the reason).
_Place = tuple[str, ...]
LOSSES: list[tuple[str, str, _Place, _Place, str]] = [
    (
        "a small state in one file", "save", ("small", ONE_FILE, "save"), ("small", OrjsonUnsafe.name, "save"),
        "it syncs nothing, and two flushes are most of such a save",
    ),
    (
        "`usual` in one file", "save", ("usual", ONE_FILE, "save"), ("usual", Orjson.name, "save"),
        "it neither compresses nor checks, and writes three times the bytes",
    ),
    (
        "loading `usual` from one file", "save", ("usual", ONE_FILE, "load"), ("usual", Orjson.name, "load"),
        "it has nothing to decompress, and looks at no checksum",
    ),
    (
        "a step of a run of `usual`", "run", ("usual", SYNC, "total"), ("usual", OrjsonUnsafe.name, "total"),
        "it syncs nothing, and keeps the last step alone",
    ),
    (
        "a pack replaced, `usual`", "run", ("usual", SYNC, "leap, total"), ("usual", Orjson.name, "leap, total"),
        "much of the message is new, and what is new is compressed",
    ),
    (
        "a pack replaced, `large`", "run", ("large", SYNC, "leap, total"), ("large", Orjson.name, "leap, total"),
        "much of the message is new, and what is new is compressed",
    ),
    (
        "records in another order each step", "run", ("shuffled", SYNC, "total"), ("shuffled", Orjson.name, "total"),
        "hardly any stretch of the message is found again, so all of it is new",
    ),
    (
        "async, a loop bound by Python, `usual`", "loop", ("usual", ASYNC, "Python-bound, more"), ("usual", SYNC, "Python-bound, more"),
        "the thread takes the interpreter from the loop",
    ),
    (
        "async, a loop bound by Python, `large`", "loop", ("large", ASYNC, "Python-bound, more"), ("large", SYNC, "Python-bound, more"),
        "the thread takes the interpreter from the loop",
    ),
    (
        "the newest of 10,000 steps", "restore", ("usual", "10000 steps", "newest"), ("usual", f"{Orjson.name}, one file", "newest"),
        "a step lies in several frames, and each is checked",
    ),
]  # fmt: skip


def _not_first(results: _Results) -> str:
    rows = [["", "fastckpt", "faster", "why"]]
    for what, case, ours, theirs, why in LOSSES:
        own, other = results.figure(case, *ours), results.figure(case, *theirs)
        if own is not None and other is not None and own.median > other.median:
            by = theirs[1].removesuffix(", one file")
            rows.append([what, results.said(case, *ours), f"{by}: {results.said(case, *theirs)}", why])
    return "" if len(rows) == 1 else f"**Where it is not the first**, in this run:\n\n{_markdown(rows)}"


def _save(results: _Results) -> str:
    states = [state for state in ("small", "usual", "large") if state in results.states("save")]
    if not states:
        return ""
    rows = [["", *(part for state in states for part in (f"`{state}`: save", "file", "load"))]]
    for name in results.contenders("save", states[0]):
        row = [name]
        for state in states:
            for key in ("save", "file", "load"):
                ratio = results.ratio("save", state, name, key).partition(" ")[0]
                row.append(results.said("save", state, name, key) + ("" if name == BASELINE or key == "file" else f", {ratio}"))
        rows.append(row)
    return f"**One checkpoint in one file**, by the replaced module's own call (`python -m bench save`):\n\n{_markdown(rows)}"


def _codec(results: _Results) -> str:
    states = [state for state in ("usual", "structure-heavy", "long-strings") if state in results.states("codec")]
    if not states:
        return ""
    rows = [["", *(part for state in states for part in (f"`{state}`: encode", "decode"))]]
    shown = [
        name for name in (BASELINE, Orjson.name, Pickle.name, Msgpack.name, Bare.name, Ours.name) if name in results.contenders("codec", states[0])
    ]
    rows += [[name, *(results.said("codec", state, name, key) for state in states for key in ("encode", "decode"))] for name in shown]
    return f"**Bytes alone**, CPU time without a disk (`python -m bench codec`):\n\n{_markdown(rows)}"


def _loop(results: _Results) -> str:
    states = results.states("loop")
    if not states:
        return ""
    rows = [["", *(f"`{state}`, {kind} loop" for state in states for kind in ("sleeping", "Python-bound"))]]
    for name in sorted(results.contenders("loop", states[0]), key=lambda name: name != Nothing.name):
        key = "" if name == Nothing.name else ", more"
        cells = [results.said("loop", state, name, f"{kind}{key}") for state in states for kind in ("sleeping", "Python-bound")]
        rows.append([name, *(cells if not key else [f"+ {cell}" for cell in cells])])
    return f"**Wall time of a step of a loop**, and what saving adds to it (`python -m bench loop`):\n\n{_markdown(rows)}"


def _scale(results: _Results) -> str:
    states = results.states("scale")
    if not states:
        return ""
    rows = [["a state of", *(f"{name}: blocks" for name in results.contenders("scale", states[0])), "fastckpt: written a step"]]
    for state in states:
        cells = [results.said("scale", state, name, "blocking") for name in results.contenders("scale", states[0])]
        rows.append([state, *cells, results.said("scale", state, SYNC, "bytes")])
    return f"**How cost grows**, the same 20 records changing in each step (`python -m bench scale`):\n\n{_markdown(rows)}"


def _restore(results: _Results) -> str:
    lines = []
    for state in results.states("restore"):
        steps = [name for name in results.documents["restore"]["figures"] if name.startswith(f"{state}: ") and name.endswith(" steps: newest")]
        places = [name.split(": ")[1] for name in steps]
        said = "; ".join(
            f"of {place}, the newest in {results.said('restore', state, place, 'newest')}, one in the middle in "
            f"{results.said('restore', state, place, 'middle')}" for place in places
        )  # fmt: skip
        single = results.said("restore", state, "json compact + fsync, one file", "newest")
        text = f"**Restoring** `{state}` from a run, opened anew (`python -m bench restore`): {said}. A single JSON file loads in {single}."
        lines.append(textwrap.fill(text, 140))
    return "\n\n".join(lines)


def _others(results: _Results) -> str:
    """The cases of which the section says one sentence."""
    said = []
    for state in results.states("migrate"):
        figure = results.figure("migrate", state, "migrate")
        if figure is not None:
            said.append(f"`migrate`, `{state}`: {1e3 / figure.median:.3g} files a second, proven and durable.")
    worst = (
        [figure for name, figure in figures_of(results.documents["diff"]).items() if name.endswith(": a MB")] if "diff" in results.documents else []
    )
    if worst:
        said.append(f"`diff`: {max(figure.median for figure in worst):.2f} ms for a MB in the worst of {len(worst)} cases.")
    for state in results.states("memory"):
        held = [results.figure("memory", state, mode, "checks auto", "held") for mode in ("sync", "async")]
        if held[0] is not None and held[1] is not None:
            said.append(
                f"`memory`, `{state}`: a writer holds {held[0].median:.1f} times the message at its peak, {held[1].median:.1f} in the background."
            )
    for state in results.states("history"):
        ratio = results.ratio("history", state, "series").replace("x", "")
        said += [f"`history`: a value across the steps of `{state}` takes {ratio} of the time of decoding them."] if ratio else []
    for state in results.states("retain"):
        if "newest" in state:
            times = f"{results.said('retain', state, 'save')}, 99% within {results.said('retain', state, 'save', at=99)}"
            said.append(f"`retain`, {state}: a save takes {times}; the largest file was {results.said('retain', state, 'largest file')}.")
    for state in results.states("count"):
        counted = [f"{call} {figure.median / 1e6:.3g}" for call in ("encode", "diff-step") if (figure := results.figure("count", state, call))]
        said.append(f"`count`, `{state}`, in millions of instructions: {', '.join(counted)}.")
    return "The other cases:\n\n" + "\n".join(f"* {line}" for line in said) if said else ""


def _floors(results: _Results) -> str:
    short = [f"* {case}: {line}" for case, document in results.documents.items() for line in document["floors_not_reached"]]
    if short:
        return "Floors (`bench/floors.toml`) that were not reached in this run:\n\n" + "\n".join(short)
    return "Every floor of `bench/floors.toml` that these cases look at was reached in this run."


COMMANDS = """\
`python -m bench CASE --help` says what a case measures. `--shapes` names other states, and `--file runs/a/checkpoint.json` replays a file
of your own as a run that grows; `--json FILE` writes every sample with machine, filesystem, versions and commit, `--plot FILE` draws,
`--compare OLD.json` says what changed and whether the spreads are apart. `python -m bench record` measures all cases into
`bench/results`, `python -m bench readme` writes this section from them.

`python -m bench --check` exits with 1 and names every floor that is not reached; with `--quick` only what depends on no disk: CPU time
with a storage that records in memory, and exactly the system calls, flushes and bytes of a save. So it says the same on a busy machine.

Figures for a dashboard come from `--format github-action-benchmark` (name, unit, value; smaller is better), and the tables then go to
the standard error:

```yaml
- run: python -m bench run --shapes usual --steps 100 --format github-action-benchmark > figures.json
- uses: benchmark-action/github-action-benchmark@v1
  with:
    tool: customSmallerIsBetter
    output-file-path: figures.json
    github-token: ${{ secrets.GITHUB_TOKEN }}
    auto-push: true
```"""
