"""The README's benchmark section, made of the recorded results: every figure in it is one of theirs."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from .contenders import ASYNC, BASELINE, EVERY, ONE_FILE, SYNC, Bare, CompactJson, Msgpack, Nothing, Orjson, OrjsonUnsafe, Ours, Pickle
from .report import Figure, amount, figures_of, named, surroundings
from .worker import BenchError

ROOT = Path(__file__).resolve().parents[1]
README, RESULTS = ROOT / "README.md", Path(__file__).parent / "results"
BEGIN = "<!-- benchmarks: written by `python -m bench readme` from bench/results; change bench/readme.py, not this -->"
END = "<!-- benchmarks: end -->"
NAMES = [contender.name for contender in EVERY]
# What loads a single file in the case `restore`.
SINGLE = (CompactJson.name, Orjson.name)


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
        self.documents: dict[str, dict[str, Any]] = {}
        self._figures: dict[str, dict[str, Figure]] = {}
        for path in sorted(folder.glob("*.json")):
            try:
                self.documents[path.stem] = json.loads(path.read_bytes())
                self._figures[path.stem] = figures_of(self.documents[path.stem])
            except ValueError as error:
                raise BenchError(f"{path} is not what `python -m bench record` writes: {error}") from error
        if not self.documents:
            raise BenchError(f"no results in {folder}: run `python -m bench record`")

    def figure(self, case: str, *parts: str) -> Figure | None:
        return self._figures.get(case, {}).get(named(*parts))

    def said(self, case: str, *parts: str, at: float | None = None) -> str:
        """A median, or another percentile, as the table says it."""
        figure = self.figure(case, *parts)
        if figure is None or (at is not None and not figure.whole):
            return ""
        return amount(figure.median if at is None else figure.at(at), figure.unit)

    def mean(self, case: str, *parts: str) -> str:
        """A mean, where some samples are rare and large: no median has a base or a compaction in it."""
        figure = self.figure(case, *parts)
        return "" if figure is None or not figure.whole else amount(figure.mean, figure.unit)

    def count(self, case: str, *parts: str) -> str:
        """How many samples a figure is made of."""
        figure = self.figure(case, *parts)
        return "" if figure is None else f"{figure.count:,}"

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
    said = (
        "From the checkout, with the extra `bench` (`.venv/bin/pip install '.[bench]'`). In all cases but `check` and `restore` each contender "
        "has a process of its own, must load what it was given before it is timed, and takes turns with the others; the disk is settled in "
        "between; in `codec` the allocator's thresholds are the same for all. The states are those of a real optimisation "
        "(`small` 0.1, `usual` 1.8, `large` 19 MB of JSON), and others of another structure. Ratios are against the replaced module, which "
        "syncs nothing, step by step: the median, and 10th to 90th percentile. "
        f"{_recorded(results.documents)} Every case, its samples and its picture are in `bench/results`."
    )
    if quick := sorted(case for case, document in results.documents.items() if document["quick"]):
        said += f" Of few rounds (`--quick`): {', '.join(quick)}."
    return textwrap.fill(said, 140, break_long_words=False, break_on_hyphens=False)


def _recorded(documents: dict[str, dict[str, Any]]) -> str:
    """When, of which commit and where: what is not the same for all cases is said of each."""
    days = sorted(document["time"][:10] for document in documents.values())
    commits = {case: document["commit"] or "unknown" for case, document in documents.items()}
    said = f"Recorded {_range(days)} at commit {_by_case(commits)}."
    if any(commit.endswith("+") for commit in commits.values()):
        said += " A + stands for changes that were not committed."
    loads = sorted((document["machine"]["load_average"][0], case) for case, document in documents.items() if document["machine"]["load_average"])
    if loads:
        said += f" When a case began, the load average was {_range([f'{load:.1f} ({case})' for load, case in loads])}."
    flush = _range([f"{taken * 1e3:.2f}" for taken in sorted(document["filesystem"]["durable_4k_write_seconds"] for document in documents.values())])
    words = {
        "processor": "{}",
        "CPUs": "{} CPUs",
        "system": "{}",
        "filesystem": f"{{}} (a durable write of 4 KiB takes {flush} ms)",
        "python": "CPython {}",
    }
    where = {case: surroundings(document) for case, document in documents.items()}
    alike, others = [], ""
    for name in dict.fromkeys(name for each in where.values() for name in each):
        values = {case: each.get(name, "not told") for case, each in where.items()}
        value = values[next(iter(values))]
        if len(set(values.values())) > 1:
            others += f" Not the same for all cases: {name} {_by_case(values)}."
        elif value != "not installed":
            value = " ".join(value.split("-")[:2]) if name == "system" else value  # the rest is the build of the kernel
            alike.append(words.get(name, f"{name} {{}}").format(value))
    return said + (f" All on {', '.join(alike)}." if alike else "") + others


def _by_case(values: dict[str, str]) -> str:
    """One value, or each with the cases that have it."""
    distinct = list(dict.fromkeys(values.values()))
    cases = {value: ", ".join(case for case, other in values.items() if other == value) for value in distinct}
    return distinct[0] if len(distinct) == 1 else "; ".join(f"{value} ({cases[value]})" for value in distinct)


def _range(values: list[str]) -> str:
    """The first and the last, once if they are the same."""
    first, last = values[0], values[-1]
    return first if first == last else f"{first} to {last}"


def _run(results: _Results) -> str:
    lines = ["**A run, a save with every step** (`python -m bench run`):"]
    for state in [state for state in ("usual", "large") if state in results.states("run")]:
        rows = [[f"`{state}`", "saves", "blocks the loop", "99%", "until durable", "less", "a pack replaced", "written a step", "memory"]]
        for name in results.contenders("run", state):
            row = [name, results.count("run", state, name, "blocking")]
            row += [results.said("run", state, name, "blocking"), results.said("run", state, name, "blocking", at=99)]
            row += [results.said("run", state, name, "total"), "" if name == BASELINE else results.ratio("run", state, name, "total")]
            row += [results.said("run", state, name, "leap, total"), results.mean("run", state, name, "bytes")]
            rows.append([*row, results.said("run", state, name, "memory")])
        lines.append(_markdown(rows))
    if len(lines) == 1:
        return ""
    said = (
        "SQLite, LangGraph and fastckpt's runs keep every step, *newest 100* so many, the others the last one alone. Who has fewer saves saved "
        "some of the steps: the slow, and of `large` all that write the whole state. Times are medians; of 100 saves or fewer the 99% is the "
        "longest. What is written a step is the mean, with bases and compactions in it."
    )
    return "\n\n".join([*lines, textwrap.fill(said, 140), "![What a step makes the loop wait](bench/results/run.svg)"])


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
        "100 MB, ten steps of a run", "scale", ("100 MB", SYNC, "blocking"), ("100 MB", Orjson.name, "blocking"),
        "three of its ten saves are decoded and compared with the state, which takes five times as long as saving it",
    ),
    (
        "the newest of 10,000 steps", "restore", ("usual", "10000 steps", "newest"), ("usual", f"{Orjson.name}, one file", "newest"),
        "the state lies in several frames, and each is decompressed and checked",
    ),
    (
        "one in the middle of 10,000 steps", "restore", ("usual", "10000 steps", "middle"), ("usual", f"{Orjson.name}, one file", "newest"),
        "it keeps one step alone; here the headers of those after it are read, back from the newest",
    ),
]  # fmt: skip


def _not_first(results: _Results) -> str:
    rows = [["", "fastckpt", "faster", "why"]]
    for what, case, ours, theirs, why in LOSSES:
        own, other = results.figure(case, *ours), results.figure(case, *theirs)
        if own is not None and other is not None and own.median > other.median:
            by = theirs[1].removesuffix(", one file")
            rows.append([what, results.said(case, *ours), f"{by}: {results.said(case, *theirs)}", why])
    return "" if len(rows) == 1 else f"**Where it is not the first**, by the median:\n\n{_markdown(rows)}"


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
    said = (
        "A load is that of a process that has loaded before; the first one of a process asks the system for its memory, and we are less ahead "
        "there, for a compressed state needs some of it twice."
    )
    table = f"**One checkpoint in one file**, by the replaced module's own call (`python -m bench save`):\n\n{_markdown(rows)}"
    return f"{table}\n\n{textwrap.fill(said, 140)}"


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
    said = (
        "A loop that Python keeps busy shares the interpreter with the thread that saves in the background: of what async gains over sync in a "
        "loop that sleeps, little is left there."
    )
    return (
        f"**Wall time of a step of a loop**, and what saving adds to it (`python -m bench loop`):\n\n{_markdown(rows)}\n\n{textwrap.fill(said, 140)}"
    )


def _scale(results: _Results) -> str:
    states = results.states("scale")
    if not states:
        return ""
    contenders = results.contenders("scale", states[0])
    rows = [["a state of", *(f"{name}: blocks" for name in contenders), "its caller", "bare encode", "fastckpt: written a step"]]
    for state in states:
        cells = [results.said("scale", state, name, "blocking") for name in contenders]
        cells += [results.said("scale", state, ASYNC, key) for key in ("caller", "bare encode")]
        rows.append([state, *cells, results.mean("scale", state, SYNC, "bytes")])
    said = (
        "*Its caller* is the thread time that a save in the background takes of the loop; the limit is 1.3 times that of a bare encode by "
        "msgspec, plus 0.1 ms. What is written a step is the mean."
    )
    head = "**How cost grows**, the same 20 records changing in each step (`python -m bench scale`):"
    return f"{head}\n\n{_markdown(rows)}\n\n{textwrap.fill(said, 140)}"


def _restore(results: _Results) -> str:
    lines = []
    for state in results.states("restore"):
        steps = [name for name in results.documents["restore"]["figures"] if name.startswith(f"{state}: ") and name.endswith(" steps: newest")]
        places = [name.split(": ")[1] for name in steps]
        said = "; ".join(
            f"of {int(place.partition(' ')[0]):,} steps, the newest in {results.said('restore', state, place, 'newest')}, one in the middle in "
            f"{results.said('restore', state, place, 'middle')}" for place in places
        )  # fmt: skip
        singles = [f"{name} in {figure}" for name in SINGLE if (figure := results.said("restore", state, f"{name}, one file", "newest"))]
        text = (
            f"**Restoring** a step of `{state}` (`python -m bench restore`): the run opened anew, the state decoded and checked, the file in the "
            f"page cache: {said}. A single JSON file, read and parsed and nothing checked: {', '.join(singles)}."
        )
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
            times, within = results.said("retain", state, "save"), results.said("retain", state, "save", at=99)
            times += f", 99% of {results.count('retain', state, 'save')} within {within}" if within else ""
            said.append(f"`retain`, {state}: a save takes {times}; the largest file was {results.said('retain', state, 'largest file')}.")
    for state in results.states("count"):
        counted = [f"{call} {figure.median / 1e6:.3g}" for call in ("encode", "diff-step") if (figure := results.figure("count", state, call))]
        said.append(f"`count`, `{state}`, in millions of instructions: {', '.join(counted)}.")
    return "The other cases:\n\n" + "\n".join(f"* {line}" for line in said) if said else ""


def _floors(results: _Results) -> str:
    short = [f"* {case}: {line}" for case, document in results.documents.items() for line in document["floors_not_reached"]]
    if short:
        return "Floors (`bench/floors.toml`) that were not reached:\n\n" + "\n".join(short)
    return "Every floor of `bench/floors.toml` that these cases look at was reached."


COMMANDS = """\
`python -m bench CASE --help` says what a case measures. `--shapes` names other states, and `--file runs/a/checkpoint.json` replays a file
of your own as a run that grows; `--json FILE` writes every sample with machine, filesystem, versions, options and commit, `--plot FILE`
draws. `--compare OLD.json` names what else was not alike (machine, filesystem, versions, options), then what changed and whether the
spreads are apart; of fewer than five samples of a time it says that they do not tell. `python -m bench record` measures all cases of one
commit into `bench/results`, `python -m bench readme` writes this section from them.

`python -m bench --check` looks at every case that has floors, exits with 1 and names each floor that is not reached. With `--quick`,
before it or after it, it looks only at what depends on no disk: CPU time with a storage that records in memory, and the system calls,
flushes and bytes of saves. So it says the same on a busy machine. `python -m bench CASE --check` looks at the floors of one case; with
one for which no floor is known it exits with 2 and says so.

Figures for a dashboard come from `--format github-action-benchmark` (name, unit, value; smaller is better), and the tables then go to
the standard error. On a runner that is shared, `check` draws steadier lines than the cases with a disk: bytes, calls and flushes are the
same on each, and its CPU times wait for nothing (`count` gives instructions, where valgrind is installed):

```yaml
- run: python -m bench check --format github-action-benchmark > figures.json
- uses: benchmark-action/github-action-benchmark@v1
  with:
    tool: customSmallerIsBetter
    output-file-path: figures.json
    github-token: ${{ secrets.GITHUB_TOKEN }}
    auto-push: true
```"""
