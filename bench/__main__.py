"""`python -m bench CASE`: run one case of the benchmark, print its table, write its samples."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import diff, history, memory, retain, run, save
from .report import environment, heading
from .worker import BenchError

# A case is a module with HELP (its docstring is the rest of the help), `add_arguments(parser)`, and `run(arguments, folder)`, which
# measures in `folder`, prints, and returns the results for `--json` and a line for each floor that was not reached.
CASES = {"save": save, "run": run, "diff": diff, "memory": memory, "history": history, "retain": retain}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure fastckpt against what it replaces.")
    cases = parser.add_subparsers(dest="case", required=True, metavar="CASE")
    for name, case in CASES.items():
        child = cases.add_parser(name, help=case.HELP, description=case.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        case.add_arguments(child)
        child.add_argument("--rounds", type=_positive, metavar="N", help="timed rounds (default: what a steady median needs)")
        child.add_argument("--quick", action="store_true", help="few rounds, for a first impression")
        child.add_argument("--dir", type=Path, metavar="DIR", help="measure on the disk that holds DIR (default: the one for temporary files)")
        child.add_argument("--json", type=Path, metavar="FILE", help="write every sample, the machine, the filesystem and the versions to FILE")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 when `--check` found a floor that is not reached; 2 when nothing could be measured."""
    arguments = _parse(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="fastckpt-bench-", dir=arguments.dir) as name:
            where = environment(Path(name))
            print(heading(where))
            results, short = CASES[arguments.case].run(arguments, Path(name))
        if arguments.json:
            arguments.json.write_text(json.dumps({"case": arguments.case, **where, **results}, indent=1) + "\n", encoding="utf-8")
    except (BenchError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if arguments.check:
        for line in short:
            print(f"bench: floor not reached: {line}", file=sys.stderr)
        return 1 if short else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
