"""The rules of the package's architecture, read from its source: who may import whom, and who may touch the disk."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fastckpt

PACKAGE = Path(fastckpt.__file__).parent  # the installed one, where the tests run against a wheel

# From the bottom up. A module imports only from rows below its own.
ROWS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("tree",),  # what codec and the JSON twin both need to know of nested plain data
    ("codec", "delta", "container", "storage", "schema"),  # strangers to one another
    ("lock", "twin", "jsonable", "changes", "upgrades"),
    ("reader",),
    ("stream",),
    ("journal",),
    ("file", "repair", "compaction"),
    ("check", "timeline", "writer", "resume", "retention", "preempt"),
    ("history", "upkeep"),
    ("manager",),
    ("migrate", "dropin", "testing", "replay"),
    ("console", "plot"),
    ("demo", "cli_history", "cli_inspect", "cli_runs", "cli_bench"),
    ("cli", "__main__", "__init__"),
)
# What one module may take from its own row, each with its reason.
WITHIN = {
    ("__main__", "cli"): "the entry point is the command line, or says how to install it",
    ("cli", "__init__"): "for the version",
}
LAYER = {name: number for number, row in enumerate(ROWS) for name in row}

# Only `storage` touches the disk. Elsewhere `os` gives names, types and texts, never a file.
PURE_OS = {"PathLike", "fspath", "fsencode", "fsdecode", "strerror", "sep", "altsep", "curdir", "name", "environ", "urandom", "path", "stat_result"}
# Of the process and the machine, not of the disk.
PURE_OS |= {"getpid", "uname", "register_at_fork", "cpu_count", "process_cpu_count"}
PURE_PATH = {"abspath", "join", "normcase", "split", "splitext", "basename", "dirname", "normpath", "isabs", "commonpath", "commonprefix", "sep"}
DISK_MODULES = {"tempfile", "fcntl", "msvcrt", "shutil", "mmap", "glob", "fileinput", "io", "posix", "nt", "linecache", "sqlite3", "zipfile"}
# Code in a file: never read, so never there to be run.
CODE_MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "copyreg", "joblib", "code", "runpy"}
BUILTINS = {"open", "eval", "exec", "compile", "__import__"}
# Methods of pathlib.Path that look at the disk or change it.
PATH_METHODS = {
    "open", "read_bytes", "read_text", "write_bytes", "write_text", "exists", "is_file", "is_dir", "is_symlink", "is_fifo", "stat", "lstat",
    "iterdir", "glob", "rglob", "mkdir", "rmdir", "unlink", "rename", "touch", "resolve", "samefile", "readlink", "symlink_to", "hardlink_to",
    "chmod", "lchmod", "expanduser", "cwd", "home",
}  # fmt: skip


def modules() -> list[str]:
    return sorted(path.stem for path in PACKAGE.rglob("*.py"))


def parsed(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))


def imported(tree: ast.Module) -> set[str]:
    """The modules of the package that are imported anywhere in `tree`; `__init__` for the package itself."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "fastckpt" if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            # `from fastckpt import x` is the module x, if there is one, or something of the façade.
            names = [f"{source}.{alias.name}" for alias in node.names] if source == "fastckpt" else [source]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "fastckpt":
                module = rest.partition(".")[0]
                found.add(module if module in LAYER or (PACKAGE / f"{module}.py").exists() else "__init__")
    return found


def wrong_imports(module: str, tree: ast.Module) -> list[str]:
    return [
        f"{module} imports {other}"
        for other in sorted(imported(tree))
        if other != module and LAYER.get(other, len(ROWS)) >= LAYER[module] and (module, other) not in WITHIN
    ]


def touches(tree: ast.Module, *, may_touch_the_disk: bool = False) -> list[str]:
    """Each place where the disk is touched, or where code could come out of data."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for top, name in _names(node):
                if top in CODE_MODULES or (top in DISK_MODULES and not may_touch_the_disk):
                    found.append((line, f"import of {top}"))
                elif top == "os" and name and not may_touch_the_disk and not _pure(name.split(".")):
                    found.append((line, f"import of os.{name}"))
        elif isinstance(node, ast.Name) and node.id in BUILTINS and not (may_touch_the_disk and node.id == "open"):
            found.append((line, f"{node.id}()"))
        elif may_touch_the_disk:
            continue
        elif isinstance(node, ast.Attribute) and _dotted(node)[:1] == ["os"]:
            if not _pure(_dotted(node)[1:]):
                found.append((line, ".".join(_dotted(node))))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            receiver = _dotted(node.func.value)
            # Path.replace takes the target alone, str.replace two texts, dataclasses.replace keywords besides.
            moves = node.func.attr == "replace" and len(node.args) == 1 and not node.keywords
            if (node.func.attr in PATH_METHODS or moves) and receiver[-1:] not in (["storage"], ["_storage"], ["DISK"]):
                found.append((line, f"{'.'.join(receiver)}.{node.func.attr}()"))
    return [f"line {line}: {what}" for line, what in sorted(found)]


def _names(node: ast.Import | ast.ImportFrom) -> list[tuple[str, str]]:
    """(first part, the rest) of all that is imported from outside the package."""
    if isinstance(node, ast.ImportFrom):
        return [] if node.level else [((node.module or "").partition(".")[0], _rest(node.module or "", alias.name)) for alias in node.names]
    # `import os` alone is harmless; what is used of it is looked at where it is used.
    return [(alias.name.partition(".")[0], "") for alias in node.names]


def _rest(module: str, name: str) -> str:
    return ".".join(filter(None, (module.partition(".")[2], name)))


def _pure(parts: list[str]) -> bool:
    if parts[:1] == [] or (parts[0] not in PURE_OS and not parts[0].startswith("O_")):  # O_RDONLY and the like: for storage.open
        return False
    return parts[0] != "path" or len(parts) < 2 or parts[1] in PURE_PATH


def _dotted(node: ast.expr) -> list[str]:
    """`a.b.c` as a list; an empty name in front for what is no plain name."""
    if isinstance(node, ast.Attribute):
        return [*_dotted(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else ""]


@pytest.mark.parametrize("module", modules())
def test_imports_point_down(module: str) -> None:
    """A module has its place in the table, and imports only from rows below its own."""
    assert module in LAYER, f"{module} is not in the table of layers"
    assert wrong_imports(module, parsed(module)) == []


@pytest.mark.parametrize("module", modules())
def test_only_storage_touches_the_disk(module: str) -> None:
    """Disk access is in `storage` alone, which is what makes faults injectable; and no module can run what a file holds."""
    assert touches(parsed(module), may_touch_the_disk=module == "storage") == []


def test_package_is_flat() -> None:
    """There are no sub-packages, in which a module could hide from these rules."""
    assert [str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE] == []


@pytest.mark.parametrize(
    "source",
    [
        "open('f')", "f = open", "eval('1')", "exec('')", "import pickle", "from pickle import loads", "import marshal", "import tempfile",
        "import fcntl", "from shutil import copy", "import os\nos.replace('a', 'b')", "import os\nos.path.exists('f')", "from os import unlink",
        "from os.path import isfile", "import os.path\nos.path.getsize('f')", "import os\nos.open('f', 0)", "import io\nio.open('f')",
        "from pathlib import Path\nPath('f').read_bytes()", "path.write_text('')", "path.exists()", "path.replace(target)", "path.unlink()",
        "(a / b).mkdir()", "def f():\n    import mmap", "path.open()", "[p for p in path.iterdir()]", "__import__('os')", "import os\nos.fsync(fd)",
    ],
)  # fmt: skip
def test_disk_rule_can_fail(source: str) -> None:
    """The rule finds each of the ways in which a module could touch the disk or run code."""
    assert touches(ast.parse(source)) != []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.fspath(path)\nos.path.join('a', 'b')", "from os import PathLike, fspath", "text.replace('a', 'b')",
        "dataclasses.replace(x, a=1)", "storage.open(path, 0)", "self.storage.stat(path)", "storage.replace(a, b)", "DISK.list(folder)",
        "path.name", "Path('a') / 'b'", "from .storage import open_file", "import re\nre.compile('x')",
    ],
)  # fmt: skip
def test_disk_rule_lets_the_rest_be(source: str) -> None:
    """The rule leaves alone what only looks like it."""
    assert touches(ast.parse(source)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("codec", "from .file import save"), ("storage", "from . import container"), ("errors", "import fastckpt.storage"),
        ("file", "from fastckpt import save"), ("file", "def f():\n    from .migrate import find"), ("codec", "from .nowhere import x"),
        ("manager", "from .cli import app"), ("cli", "from . import __main__"),
    ],
)  # fmt: skip
def test_import_rule_can_fail(module: str, source: str) -> None:
    """The rule finds an import from above, from a stranger of the same row, inside a function, and of the façade."""
    assert wrong_imports(module, ast.parse(source)) != []
