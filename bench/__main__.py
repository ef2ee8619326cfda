"""`python -m bench CASE`: run one case of the benchmark, print its table, write its samples. See the README, "Benchmarks"."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from . import check, codec, count, diff, history, loop, memory, migrate, plots, readme, restore, retain, run, save, scale
from .floors import floors
from .options import UnavailableError, positive
from .report import Outcome, compared, dashboard, environment, figures_of, heading, recorded, written
from .worker import BenchError
from .workloads import NAMES

# A case is a module with HELP (its docstring is the rest of the help), `add_arguments(parser)`, and `run(arguments, folder)`, which
# measures in `folder`, prints, and returns an `Outcome`.
CASES: dict[str, ModuleType] = {
    "codec": codec, "save": save, "run": run, "loop": loop, "restore": restore, "migrate": migrate, "scale": scale, "diff": diff,
    "memory": memory, "history": history, "retain": retain, "check": check, "count": count,
}  # fmt: skip
# Those that `--check` can judge; without a case it looks at all of them, or at `check` alone when it is to be quick.
WITH_FLOORS = ("check", "memory", "history", "retain", "diff", "save", "run", "scale")
# Those whose floors are of one state each.
FLOORS_OF_STATES = ("save", "run")
# Those in which nothing is repeated that a median could be of.
WITHOUT_ROUNDS = ("retain", "count")
# Options that say where to and how, not what is measured.
NOT_MEASURED = ("case", "check", "dir", "json", "plot", "compare", "format")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure fastckpt against what it replaces. `python -m bench --check` looks whether every floor is reached, with --quick\n"
        "those that depend on no disk.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cases = parser.add_subparsers(dest="case", required=True, metavar="CASE")
    for name, case in CASES.items():
        child = cases.add_parser(name, help=case.HELP, description=case.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        case.add_arguments(child)
        if name not in WITHOUT_ROUNDS:
            child.add_argument("--rounds", type=positive, metavar="N", help="timed rounds (default: what a steady median needs)")
        child.add_argument("--check", action="store_true", help="exit with 1, naming what fell short, when a floor is not reached (floors.toml)")
        child.add_argument("--quick", action="store_true", help="few rounds, for a first impression")
        child.add_argument("--dir", type=Path, metavar="DIR", help="measure on the disk that holds DIR (default: the one for temporary files)")
        child.add_argument("--json", type=Path, metavar="FILE", help="write every sample, the machine, the filesystem and the versions to FILE")
        child.add_argument("--plot", type=Path, metavar="FILE", help="draw the picture of the case into FILE (SVG; needs pygal)")
        child.add_argument("--compare", type=Path, metavar="OLD", help="print what changed against what --json wrote earlier, with its spread")
        child.add_argument("--format", choices=["table", "github-action-benchmark"], default="table", help="what goes to standard output")
    recording = cases.add_parser("record", help="run cases and keep their results in bench/results, for the README")
    recording.add_argument("cases", nargs="*", metavar="CASE", help=f"which (default: all; {', '.join(CASES)})")
    recording.add_argument("--quick", action="store_true", help="few rounds, for a first impression")
    recording.add_argument("--dir", type=Path, metavar="DIR", help="as above")
    recording.add_argument("--results", type=Path, default=readme.RESULTS, metavar="DIR", help="where to (default: %(default)s)")
    writing = cases.add_parser("readme", help="write the README's benchmark section from bench/results")
    writing.add_argument("--check", action="store_true", help="write nothing; exit with 1 when the section is another one")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 when `--check` found a floor that is not reached; 2 when nothing could be measured; 130 when interrupted."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        if given and given[0].startswith("-") and "--check" in given:
            return _cases([_parse([case, *given]) for case in (("check",) if "--quick" in given else WITH_FLOORS)])
        arguments = _parse(given)
        if arguments.case == "readme":
            return readme.main(check=arguments.check)
        if arguments.case == "record":
            return _record(arguments)
        return _cases([arguments])
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    except (BenchError, OSError, subprocess.SubprocessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def _cases(asked: list[argparse.Namespace]) -> int:
    """Run cases as asked for: everything that can be refused is refused before anything is measured."""
    first = asked[0]
    for option in ("json", "plot", "compare"):
        if len(asked) > 1 and getattr(first, option):
            raise BenchError(f"--{option} is of one case, here are {len(asked)}: name one, as in `python -m bench {first.case} --check`")
    old = _read(first.compare) if first.compare else None
    if old is not None and old["case"] != first.case:
        raise BenchError(f"{first.compare} holds the case {old['case']}, not {first.case}")
    if first.plot and not plots.available():
        raise BenchError("pygal is not installed; it comes with the extra `bench`: run `pip install '.[bench]'` in the checkout")
    for path in filter(None, (first.json, first.plot)):
        _writable(path)
    unjudged = [_unjudged(arguments) if arguments.check else "" for arguments in asked]
    entries, reached = list[Any](), True
    with redirect_stdout(sys.stdout if first.format == "table" else sys.stderr):
        for arguments, missing in zip(asked, unjudged, strict=True):
            outcome, document = _measured(arguments.case, arguments)
            entries += json.loads(dashboard(arguments.case, outcome))
            if missing:
                print(f"no floor is known for {missing}")
            if old is not None:
                print(f"\nagainst {arguments.compare} ({old['time']}, commit {old['commit'] or 'unknown'})\n{compared(old, document)}")
            if arguments.json:
                arguments.json.write_text(written(document), encoding="utf-8")
            if arguments.plot and outcome.picture:
                arguments.plot.write_bytes(plots.svg(outcome.picture))
            for line in outcome.short if arguments.check else ():
                reached = False
                print(f"bench: floor not reached: {line}", file=sys.stderr)
    if first.format != "table":
        print(json.dumps(entries, indent=1))
    return 0 if reached else 1


def _writable(path: Path) -> None:
    """Find out before a long measurement that its result could not be written. What is there stays, and what is not is not made."""
    there = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}") from error
    if not there:
        path.unlink()


def _unjudged(arguments: argparse.Namespace) -> str:
    """The states that no floor is known for, if one is known for others. Raises `BenchError` where none is known at all."""
    if arguments.case not in WITH_FLOORS:
        raise BenchError(f"no floor is known for {arguments.case}: --check is for {', '.join(WITH_FLOORS)}")
    if arguments.case not in FLOORS_OF_STATES:
        return ""
    if arguments.file:
        raise BenchError(f"no floor is known for {arguments.file}: --check is for the states of --shapes")
    missing = [shape for shape in arguments.shapes if not CASES[arguments.case].floors(arguments.case, shape)]
    if missing == arguments.shapes:
        known = [shape for shape in floors(arguments.case) if shape in NAMES]
        raise BenchError(f"no floor is known for {', '.join(missing)} in {arguments.case}: there is one for {', '.join(known)}")
    return ", ".join(missing)


def _measured(case: str, arguments: argparse.Namespace) -> tuple[Outcome, dict[str, Any]]:
    """What a case finds, printed as it goes, and the document of it."""
    with tempfile.TemporaryDirectory(prefix="fastckpt-bench-", dir=arguments.dir) as name:
        where = environment(Path(name))
        print(f"{case}\n{heading(where)}")
        outcome: Outcome = CASES[case].run(arguments, Path(name))
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items() if key not in NOT_MEASURED}
    return outcome, {**outcome.document(case, where), "quick": bool(arguments.quick), "options": options}


def _read(path: Path) -> dict[str, Any]:
    try:
        document: Any = json.loads(path.read_bytes())
        if not isinstance(document, dict) or not {"case", "figures", "time", "commit"} <= document.keys():
            raise BenchError(f"{path} is not what `--json` writes: it has no case, figures, time and commit")
        figures_of(document)
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{path} is not what `--json` writes: {error}") from error
    return document


def _record(arguments: argparse.Namespace) -> int:
    """The results of cases, small enough for the repository, with their pictures; all of one commit."""
    if unknown := [case for case in arguments.cases if case not in CASES]:
        raise BenchError(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    if not plots.available():
        raise BenchError("pygal is not installed; it comes with the extra `bench`: run `pip install '.[bench]'` in the checkout")
    commit = _commit()
    arguments.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=arguments.results):  # it can be written to
        pass
    options = [*(["--quick"] if arguments.quick else []), *(["--dir", str(arguments.dir)] if arguments.dir else [])]
    for case in arguments.cases or CASES:
        began = time.monotonic()
        try:
            outcome, document = _measured(case, _parse([case, *options]))
        except UnavailableError as error:
            if arguments.cases:
                raise
            print(f"{case} is skipped: {error}\n", flush=True)
            continue
        if (now := _commit()) != commit:
            raise BenchError(f"{case} was measured while the checkout went from {commit} to {now}: record all cases again, of one commit")
        (arguments.results / f"{case}.json").write_text(written(recorded({**document, "commit": commit})), encoding="utf-8")
        if outcome.picture:
            (arguments.results / f"{case}.svg").write_bytes(plots.svg(outcome.picture))
        print(f"{case} took {time.monotonic() - began:.0f} s\n", flush=True)
    return 0


def _commit() -> str:
    """The commit that a recording is of. Raises `BenchError` where there is none, or where files that matter differ from it."""
    # What a recording and `readme` write themselves does not count.
    commands = ["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results", ":!README.md"]
    try:
        commit, changed = (
            subprocess.run(["git", "-C", str(readme.ROOT), *command], capture_output=True, text=True, timeout=60, check=True).stdout
            for command in commands
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchError(f"no commit is known of {readme.ROOT}: record in a checkout with git") from error
    if changed:
        raise BenchError(f"a recording is of a commit, and files differ from it ({', '.join(changed.split()[1::2])}): commit first")
    return commit.strip()


if __name__ == "__main__":
    sys.exit(main())
