"""`python -m bench CASE`: run one case of the benchmark, print its table, write its samples. See the README, "Benchmarks"."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from . import check, codec, count, diff, history, loop, memory, migrate, plots, readme, restore, retain, run, save, scale
from .options import positive
from .report import Outcome, compared, dashboard, environment, heading, recorded, written
from .worker import BenchError

# A case is a module with HELP (its docstring is the rest of the help), `add_arguments(parser)`, and `run(arguments, folder)`, which
# measures in `folder`, prints, and returns an `Outcome`.
CASES: dict[str, ModuleType] = {
    "codec": codec, "save": save, "run": run, "loop": loop, "restore": restore, "migrate": migrate, "scale": scale, "diff": diff,
    "memory": memory, "history": history, "retain": retain, "check": check, "count": count,
}  # fmt: skip
# What `--check` without a case looks at beside `check`, unless it is to be quick.
WITH_FLOORS = ("check", "memory", "history", "retain", "diff", "save", "run", "scale")


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
    """0; 1 when `--check` found a floor that is not reached; 2 when nothing could be measured."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        if given[:1] == ["--check"]:
            cases = ("check",) if "--quick" in given else WITH_FLOORS
            return max(_case(_parse([case, *given])) for case in cases)
        arguments = _parse(given)
        if arguments.case == "readme":
            return readme.main(check=arguments.check)
        if arguments.case == "record":
            return _record(arguments)
        return _case(arguments)
    except (BenchError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def _case(arguments: argparse.Namespace) -> int:
    """Run one case as asked for."""
    old = _read(arguments.compare) if arguments.compare else None
    if old is not None and old["case"] != arguments.case:
        raise BenchError(f"{arguments.compare} holds the case {old['case']}, not {arguments.case}")
    if arguments.plot and not plots.available():
        raise BenchError("pygal is not installed; it comes with the extra `bench`: run `pip install '.[bench]'` in the checkout")
    with redirect_stdout(sys.stdout if arguments.format == "table" else sys.stderr):
        outcome, document = _measured(arguments.case, arguments)
        if old is not None:
            print(f"\nagainst {arguments.compare} ({old['time']}, commit {old['commit'] or 'unknown'})\n{compared(old, document)}")
    if arguments.format != "table":
        print(dashboard(arguments.case, outcome))
    if arguments.json:
        arguments.json.write_text(written(document), encoding="utf-8")
    if arguments.plot and outcome.picture:
        arguments.plot.write_bytes(plots.svg(outcome.picture))
    if not arguments.check:
        return 0
    for line in outcome.short:
        print(f"bench: floor not reached: {line}", file=sys.stderr)
    return 1 if outcome.short else 0


def _measured(case: str, arguments: argparse.Namespace) -> tuple[Outcome, dict[str, Any]]:
    """What a case finds, printed as it goes, and the document of it."""
    with tempfile.TemporaryDirectory(prefix="fastckpt-bench-", dir=arguments.dir) as name:
        where = environment(Path(name))
        print(f"{case}\n{heading(where)}")
        outcome: Outcome = CASES[case].run(arguments, Path(name))
    document = outcome.document(case, where)
    return outcome, {**document, "quick": bool(arguments.quick)}


def _read(path: Path) -> dict[str, Any]:
    try:
        document: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise BenchError(f"{path} is not what `--json` writes: {error}") from error
    if not isinstance(document, dict) or not {"case", "figures", "time", "commit"} <= document.keys():
        raise BenchError(f"{path} is not what `--json` writes: it has no case, figures, time and commit")
    return document


def _record(arguments: argparse.Namespace) -> int:
    """The results of cases, small enough for the repository, with their pictures."""
    if unknown := [case for case in arguments.cases if case not in CASES]:
        raise BenchError(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    if not plots.available():
        raise BenchError("pygal is not installed; it comes with the extra `bench`: run `pip install '.[bench]'` in the checkout")
    arguments.results.mkdir(parents=True, exist_ok=True)
    for case in arguments.cases or CASES:
        options = ["--quick"] if arguments.quick else []
        outcome, document = _measured(case, _parse([case, *options, *(["--dir", str(arguments.dir)] if arguments.dir else [])]))
        (arguments.results / f"{case}.json").write_text(written(recorded(document)), encoding="utf-8")
        if outcome.picture:
            (arguments.results / f"{case}.svg").write_bytes(plots.svg(outcome.picture))
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
