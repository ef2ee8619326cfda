"""Small helpers that several test modules share: comparing exactly, finding shared material, running a piece of a test elsewhere."""

from __future__ import annotations

import ctypes
import dataclasses
import datetime as dt
import decimal
import enum
import math
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

SHARED = Path(os.environ.get("FASTCKPT_SHARED") or Path(__file__).resolve().parents[2] / "shared")

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared material is not at {SHARED} (set FASTCKPT_SHARED)")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="a Linux facility")
needs_posix = pytest.mark.skipif(os.name != "posix", reason="a POSIX facility")
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may do this")


def needs_tool(name: str) -> pytest.MarkDecorator:
    """Skips, with its reason, where the program `name` is not installed."""
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"the program {name} is not installed")


# Comparing exactly


def assert_same(a: Any, b: Any) -> None:
    """`a` and `b` are equal in value **and exact type** all the way down: 1, 1.0 and True differ, so do 0.0 and -0.0, NaN is itself.

    Also the order of dict keys. Known are plain values, dates, Decimals, Enums, containers, dataclasses, msgspec Structs and
    ordinary objects with attributes.
    """
    __tracebackhide__ = True
    found = difference(a, b)
    assert found is None, found


def difference(a: Any, b: Any, where: str = "$") -> str | None:
    """Where and how `a` and `b` differ, as `assert_same` reports it; None when they do not."""
    if type(a) is not type(b):
        return f"{where}: {_short(a)} is a {type(a).__qualname__}, {_short(b)} is a {type(b).__qualname__}"
    differ = f"{where}: {_short(a)} is not {_short(b)}"
    if isinstance(a, enum.Enum):
        return None if a is b else differ
    if isinstance(a, float):
        if math.isnan(a) or math.isnan(b):
            return None if math.isnan(a) and math.isnan(b) else differ
        return None if a == b and math.copysign(1, a) == math.copysign(1, b) else differ
    if isinstance(a, decimal.Decimal):
        return None if a.as_tuple() == b.as_tuple() else differ
    if isinstance(a, (dt.datetime, dt.time)):
        same = a.replace(tzinfo=None) == b.replace(tzinfo=None) and a.utcoffset() == b.utcoffset() and a.fold == b.fold
        return None if same else differ
    if isinstance(a, (str, bytes, bytearray, int)):  # their subclasses too: the type is known to be the same
        return None if a == b else differ
    if isinstance(a, Mapping):
        return _pairwise([*a], [*b], where, "key") or _first(difference(a[x], b[y], f"{where}[{x!r}]") for x, y in zip(a, b, strict=True))
    if isinstance(a, (list, tuple)):
        return _pairwise(a, b, where, "")
    if isinstance(a, (set, frozenset)):
        return _unordered(a, b, where)
    fields = _attributes(a)
    if fields is None:
        return None if a == b else differ
    others = _attributes(b) or {}
    if list(fields) != list(others):
        return f"{where}: attributes {list(fields)} and {list(others)}"
    return _first(difference(fields[name], others[name], f"{where}.{name}") for name in fields)


def _first(found: Any) -> str | None:
    return next((reason for reason in found if reason is not None), None)


def _pairwise(a: Any, b: Any, where: str, what: str) -> str | None:
    if len(a) != len(b):
        return f"{where}: {len(a)} and {len(b)} {what or 'item'}s"
    return _first(difference(x, y, f"{where}[{what and what + ' '}{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)))


def _unordered(a: Any, b: Any, where: str) -> str | None:
    if len(a) != len(b):
        return f"{where}: {len(a)} and {len(b)} items"
    rest: dict[int, list[Any]] = {}
    for item in b:
        rest.setdefault(hash(item), []).append(item)
    for item in a:
        # Of the same hash first, but 1 == True == 1.0 share one, and equal NaNs do not.
        for bucket in (rest.get(hash(item), []), *rest.values()):
            match = next((i for i, other in enumerate(bucket) if difference(item, other, where) is None), None)
            if match is not None:
                del bucket[match]
                break
        else:
            return f"{where}: {_short(item)} is only in the first set"
    return None


_UNSET = type("Unset", (), {"__repr__": lambda self: "UNSET ATTRIBUTE"})()


def _attributes(a: Any) -> dict[str, Any] | None:
    """What makes up an object: fields first, then anything else hung onto it. None for an opaque value."""
    names: list[str] = []
    if isinstance(a, msgspec.Struct):
        names += a.__struct_fields__
    elif dataclasses.is_dataclass(a):
        names += [field.name for field in dataclasses.fields(a)]
    elif type(a).__module__ in sys.stdlib_module_names:
        return None  # a UUID, a Path, a date, a timedelta: its own == is exact
    for base in type(a).__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [name for name in ((slots,) if isinstance(slots, str) else slots) if not name.startswith("__")]
    names += getattr(a, "__dict__", {})
    if not names and not isinstance(a, msgspec.Struct) and not dataclasses.is_dataclass(a) and not hasattr(a, "__dict__"):
        return None
    return {name: getattr(a, name, _UNSET) for name in dict.fromkeys(names)}


def _short(value: Any) -> str:
    try:
        text = ascii(value)  # a lone surrogate must be printable in the report
    except Exception:
        text = object.__repr__(value)  # half an object, which cannot show itself
    return text if len(text) <= 80 else text[:77] + "..."


# What a test looks at on the real disk


def open_descriptors() -> set[str]:
    """The descriptors that this process holds, as text, to compare before and after."""
    return set(os.listdir("/proc/self/fd"))


def everything_in(folder: str | os.PathLike[str]) -> list[str]:
    """Every path below `folder`, relative to it, sorted: a leftover anywhere shows."""
    root = Path(folder)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


# What a test did


def count(what: str, n: int = 1) -> None:
    """Add `n` to the figure `what` ("faults injected", "bits flipped" …) of this run, for `tests/prove.py`.

    A line to the file that FASTCKPT_FIGURES names, in one append, so that children may count too; without the variable nothing.
    """
    figures = os.environ.get("FASTCKPT_FIGURES")
    if figures:
        fd = os.open(figures, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(fd, f"{n} {what}\n".encode())
        finally:
            os.close(fd)


# Running a piece of a test elsewhere


def in_child(*functions: Callable[[], object], timeout: float = 60) -> None:
    """Run the functions, each in a forked child, all at the same time; fail, with its traceback, if one fails there.

    For what a test must not do to its own process (lower a limit, drop privileges, mount something, leave its directory), and
    for processes that get into each other's way.
    """
    __tracebackhide__ = True
    sys.stdout.flush()
    sys.stderr.flush()
    reports = []
    for child, reader in [_fork(function, timeout) for function in functions]:
        with open(reader, "rb") as stream:
            report = stream.read().decode("utf-8", "replace")
        reports.append((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), report))
    for code, report in reports:
        if code == _SKIPPED:
            pytest.skip(report)
        if code == -signal.SIGALRM:
            pytest.fail(f"still busy after {timeout} s", pytrace=False)
        if code != 0:
            pytest.fail(report or f"the child ended with {code}", pytrace=False)


_SKIPPED = 77


def _fork(function: Callable[[], object], timeout: float) -> tuple[int, int]:
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    report, code = "", 1
    try:
        signal.alarm(int(timeout))  # a child that hangs is killed by the signal, and the test says so
        function()
        code = 0
    except pytest.skip.Exception as skipped:
        report, code = str(skipped), _SKIPPED
    except BaseException:  # a child reports whatever ended it
        report = traceback.format_exc()
    finally:
        try:
            os.write(writer, report.encode("utf-8", "backslashreplace")[-60_000:])
        finally:
            os._exit(code)


def without_privileges() -> None:
    """In a forked child: become a user who owns nothing, so that permissions count (to root they do not)."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


def mount_tmpfs(folder: str | os.PathLike[str], options: str) -> None:
    """In a forked child: a tmpfs at `folder` that nobody else sees and that vanishes with the child (`unshare -m`)."""
    clone_newns = 0x00020000
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(clone_newns) != 0:
        pytest.skip(f"cannot unshare the mount namespace: {os.strerror(ctypes.get_errno())}")
    for command in (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "-o", options, "tmpfs", os.fspath(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
