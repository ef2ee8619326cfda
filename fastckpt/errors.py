"""Every exception of fastckpt: its fields, its message, its exit code.

One root, `CheckpointError`; below it one class per thing that a caller would do about it. A class has a builtin second
parent where one is natural (`CorruptError` is a `ValueError`, `NotFoundError` a `FileNotFoundError`), builds its own
message from its fields (fact, place, expected and got, remedy), and carries the exit code of the command line.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

__all__ = [
    "CheckpointError",
    "CheckpointWarning",
    "ConfigMismatchError",
    "ConflictError",
    "CorruptError",
    "DurabilityError",
    "EncodeError",
    "JsonError",
    "LimitError",
    "LockedError",
    "MissingFieldError",
    "NotACheckpointError",
    "NotFoundError",
    "ReplacedError",
    "SchemaError",
    "StepAlreadyExistsError",
    "StorageError",
    "VersionError",
]


def _text(value: object) -> str:
    """`value` for a message: on one line, and with no character that a terminal would obey or could not print."""
    text = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class CheckpointError(Exception):
    """Root of every error that fastckpt raises on purpose.

    `str(error)` is one line: the fact, the place, expected and got, the remedy. `exit_code` is the command line's.
    """

    exit_code = 1

    def __init__(self, fact: str, *, remedy: str = "") -> None:
        super().__init__(fact)
        self.fact = fact
        self.remedy = remedy

    def _place(self) -> str:
        """Where it happened, for the message; empty when the fact says it."""
        return ""

    def __str__(self) -> str:
        message = self.fact + self._place()
        return _text(f"{message}; {self.remedy}" if self.remedy else message)

    def __reduce__(self) -> tuple[Any, ...]:
        # The fields are keyword-only and differ by class: rebuild without __init__, as a worker process's error needs.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[CheckpointError], args: tuple[Any, ...], fields: dict[str, Any]) -> CheckpointError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    if isinstance(error, StorageError):
        error.errno, error.strerror, error.filename = fields["code"], fields["fact"], fields["path"]
    return error


class CheckpointWarning(UserWarning):
    """Something that does not stop the work and must not be silent (a duplicate key, a directory that cannot be synced)."""


class EncodeError(CheckpointError, TypeError, ValueError):
    """A value cannot be saved, or would come back different. Nothing was written.

    `where` is the path of the value (`$.state.packs[3].trace[7]`). Also a `TypeError` and a `ValueError`, which is what
    `json.dumps` raises for the same values.
    """

    exit_code = 7

    def __init__(self, fact: str, *, where: str = "$", remedy: str = "") -> None:
        super().__init__(fact, remedy=remedy)
        self.where = where

    def _place(self) -> str:
        return f" at `{self.where}`"


class SchemaError(CheckpointError, ValueError):
    """The stored data does not fit the type that was asked for. `where` is its path as msgspec gives it, `path` the file."""

    exit_code = 7

    def __init__(self, fact: str, *, where: str = "$", path: str = "", remedy: str = "") -> None:
        super().__init__(fact, remedy=remedy)
        self.where = where
        self.path = path

    def _place(self) -> str:
        return f" at `{self.where}`" + (f" in {self.path}" if self.path else "")


class MissingFieldError(SchemaError, KeyError):
    """A required field is not in the stored data; no default hides that. Also a `KeyError`; `field` is its name."""

    def __init__(self, field: str, *, where: str = "$", path: str = "", remedy: str = "") -> None:
        super().__init__(f"missing required field `{field}`", where=where, path=path, remedy=remedy)
        self.field = field


class CorruptError(CheckpointError, ValueError):
    """The bytes are not what was written: `path`, `offset` (bytes from the start of the file), `expected`, `got`."""

    exit_code = 4

    def __init__(
        self, fact: str, *, path: str = "", offset: int | None = None, expected: object = None, got: object = None, remedy: str = ""
    ) -> None:
        super().__init__(fact, remedy=remedy)
        self.path = path
        self.offset = offset
        self.expected = expected
        self.got = got

    def _place(self) -> str:
        text = f" in {self.path}" if self.path else ""
        if self.offset is not None:
            text += f" at byte {self.offset}"
        if self.expected is not None or self.got is not None:
            text += f": expected {self.expected}, got {self.got}"
        return text


class NotACheckpointError(CheckpointError, ValueError):
    """The file is something else: no fastckpt magic, and no JSON either. `got` says what it looks like."""

    exit_code = 4

    def __init__(self, path: str, *, got: str, remedy: str = "") -> None:
        super().__init__(f"not a checkpoint: {path} is {got}", remedy=remedy or "check the path")
        self.path = path
        self.got = got


class VersionError(CheckpointError):
    """The file needs a newer fastckpt: `needs` is the file's minimum reader (or an unknown feature), `supports` what this one reads."""

    exit_code = 5

    def __init__(self, path: str, *, needs: object, supports: object, what: str = "format version") -> None:
        super().__init__(
            f"{path} needs {what} {needs}, this fastckpt reads up to {supports}"
            if what == "format version"
            else f"{path} needs {what} {needs}, this fastckpt knows {supports}",
            remedy="upgrade fastckpt to read it",
        )
        self.path = path
        self.needs = needs
        self.supports = supports


class LimitError(CheckpointError, ValueError):
    """A size or a depth beyond a limit, refused before anything was allocated: `limit` and `got` in the same unit."""

    exit_code = 7

    def __init__(self, fact: str, *, limit: int, got: int | None = None, path: str = "", where: str = "", remedy: str = "") -> None:
        super().__init__(fact, remedy=remedy)
        self.limit = limit
        self.got = got
        self.path = path
        self.where = where

    def _place(self) -> str:
        text = (f" at `{self.where}`" if self.where else "") + (f" in {self.path}" if self.path else "")
        return text + (f": {self.got:,} > {self.limit:,}" if self.got is not None else f" (limit {self.limit:,})")


class StorageError(CheckpointError, OSError):
    """The operating system refused: `operation`, `path`, `errno`. The old file is as it was, unless the class says otherwise."""

    exit_code = 6

    def __init__(self, fact: str, *, path: str, operation: str = "", code: int | None = None, remedy: str = "") -> None:
        super().__init__(fact, remedy=remedy)
        self.path = path
        self.operation = operation
        self.code = code
        self.errno = code
        self.strerror = fact
        self.filename = path

    def _place(self) -> str:
        return (f" at {self.operation}" if self.operation else "") + f": {self.path}"

    @classmethod
    def of(cls, error: OSError, path: str, operation: str, *, remedy: str = "") -> StorageError:
        """The `StorageError` (or `NotFoundError`) for what the operating system said."""
        fact = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
        if error.errno:
            fact = f"{fact[:1].lower()}{fact[1:]}"
        if isinstance(error, FileNotFoundError) and cls is StorageError:
            return NotFoundError(path, operation=operation)
        return cls(fact, path=path, operation=operation, code=error.errno, remedy=remedy)


class NotFoundError(StorageError, FileNotFoundError):
    """There is no such file. Also a `FileNotFoundError`."""

    exit_code = 3

    def __init__(self, path: str, *, operation: str = "", fact: str = "no such file or directory", remedy: str = "") -> None:
        super().__init__(fact, path=path, operation=operation, code=errno.ENOENT, remedy=remedy or "check the path")


class DurabilityError(StorageError):
    """The new content is in place and visible, but a sync of its directory failed: it may not survive a loss of power.

    Nothing is rolled back; saving again publishes it anew.
    """


class JsonError(CheckpointError, ValueError):
    """The JSON cannot be taken as it is: malformed, wrongly encoded, a key twice. `line` and `column` count from 1."""

    exit_code = 4

    def __init__(self, fact: str, *, path: str = "", line: int | None = None, column: int | None = None, remedy: str = "") -> None:
        super().__init__(fact, remedy=remedy)
        self.path = path
        self.line = line
        self.column = column

    def _place(self) -> str:
        text = f" in {self.path}" if self.path else ""
        return text + (f" at line {self.line} column {self.column}" if self.line is not None else "")


class ConflictError(CheckpointError, ValueError):
    """Two things that must agree do not, and choosing would lose one: both `paths` are named, nothing was changed."""

    exit_code = 8

    def __init__(self, fact: str, *, paths: tuple[str, ...], remedy: str = "") -> None:
        super().__init__(fact, remedy=remedy)
        self.paths = paths

    def _place(self) -> str:
        return ": " + " and ".join(self.paths)


class ConfigMismatchError(CheckpointError, ValueError):
    """The configuration is not the one that the run was made with, in fields without which what was saved means nothing.

    `differences` are those of `resume.Fingerprint` (`field`, `saved`, `current`, `tier`), of both tiers; the message has the structural
    ones. `step` is the one that was asked for, `path` the file. Nothing was restored.
    """

    exit_code = 8

    def __init__(self, differences: Sequence[Any], *, step: int | None = None, path: str = "") -> None:
        super().__init__("the configuration is not that of the run", remedy='set it back, or go on all the same with resume="warn"')
        self.differences = list(differences)
        self.step = step
        self.path = path

    def _place(self) -> str:
        structural = [each for each in self.differences if each.tier == "structural"]
        shown = ", and ".join(f"`{each.field}` was {_abridged(each.saved)}, is {_abridged(each.current)}" for each in structural)
        return (f" at step {self.step}" if self.step is not None else "") + (f" in {self.path}" if self.path else "") + f": {shown}"


def _abridged(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class LockedError(CheckpointError):
    """Another writer holds the run: `pid` and `host` of the holder, None and "" where it did not say."""

    exit_code = 9

    def __init__(self, path: str, *, pid: int | None = None, host: str = "") -> None:
        holder = f"by process {pid} on {host}" if pid is not None else "by another process"
        super().__init__(f"{path} is being written {holder}", remedy="wait for it, stop it, or open with read_only=True")
        self.path = path
        self.pid = pid
        self.host = host


class ReplacedError(CheckpointError):
    """The file of a run was replaced, moved or removed under its writer; nothing was written, nothing is acknowledged."""

    exit_code = 8

    def __init__(self, path: str, *, what: str = "file") -> None:
        super().__init__(f"the {what} was replaced or removed while it was open: {path}", remedy="open the run again to go on with what is there now")
        self.path = path
        self.what = what


class StepAlreadyExistsError(CheckpointError, ValueError):
    """The step is not above the newest one of the run; both are fields."""

    exit_code = 8

    def __init__(self, step: int, *, newest: int) -> None:
        remedy = f"save step {newest + 1} or later, or go back with rewind({step - 1}) or save(..., force=True)"
        super().__init__(f"step {step} is not above the newest step {newest}", remedy=remedy)
        self.step = step
        self.newest = newest
