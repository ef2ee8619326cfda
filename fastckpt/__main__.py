"""The command `fastckpt`, also as `python -m fastckpt`; its parts need the extra `cli`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]

# Never by the bare name: on PyPI it is somebody else's project.
_INSTALL = "fastckpt: the command line needs typer and rich ({missing} is missing); install them from the checkout: pip install '.[cli]'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (`fastckpt --help` lists them)."""
    try:
        from .cli import main as run  # noqa: PLC0415  (the extra may be missing)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("typer", "rich", "click"):
            raise
        sys.stderr.write(_INSTALL.format(missing=missing) + "\n")
        return 2
    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
