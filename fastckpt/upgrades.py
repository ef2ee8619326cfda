"""Messages of earlier versions of an application as objects of its type today: upgraded, and nothing dropped in silence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, TypeAlias

from .codec import Codec, convert
from .container import RecordHeader
from .errors import CheckpointWarning, EncodeError, SchemaError
from .tree import Path, fields_of, path_text, saved_fields

__all__ = ["Loader", "Unknown", "Upgrade", "unknown_fields"]

#: Plain data of one schema version to plain data of the next; it may change what it is given, and returns what is to be used.
Upgrade: TypeAlias = Callable[[Any], Any]
#: What to do about saved fields that the type does not have.
Unknown: TypeAlias = Literal["refuse", "warn"]

_PLAIN = Codec()
# Paths that an error or a warning names.
_NAMED = 5


class Loader:
    """Decodes messages as the type of `codec`, through `upgrades` (version → function to the next one) up to `version`.

    Records that say no schema version have version 1; with `version=None` whatever they say is today's. A field that is saved and that
    the type does not have is refused, or, with `unknown="warn"`, dropped with a `CheckpointWarning`; it is looked for, after the upgrades,
    where the saved type's fingerprint is another one than today's.

    Raises `ValueError` for upgrades that lead nowhere.
    """

    def __init__(self, codec: Codec, *, version: int | None = 1, upgrades: Mapping[int, Upgrade] | None = None, unknown: Unknown = "refuse") -> None:
        if version is not None and (type(version) is not int or not 1 <= version < 2**31):
            raise ValueError(f"schema_version is a whole number from 1 on, got {version!r}")
        if unknown not in ("refuse", "warn"):
            raise ValueError(f"unknown is 'refuse' or 'warn', got {unknown!r}")
        self.codec = codec
        self.version = version or 1
        self._any_version = version is None
        self._upgrades = dict(upgrades or {})
        self._unknown = unknown
        for known in self._upgrades:
            if type(known) is not int or not 1 <= known < self.version:
                raise ValueError(f"an upgrade from schema version {known!r} leads nowhere: the newest is schema_version={version}")

    def load(self, message: bytes, header: RecordHeader, *, path: str = "") -> Any:
        """The object of a record's message.

        Raises `SchemaError` (a version that no upgrade leads on from, or a newer one; data that does not fit the type; unknown fields),
        `MissingFieldError`, `LimitError`, `CorruptError`; what an upgrade raises comes through as it is, with a note.
        """
        if header.schema_version != self.version and not self._any_version:
            return self.convert(self._upgraded(_PLAIN.decode(message, header.ext, path=path), header, path), path=path)
        loaded = self.codec.decode(message, header.ext, path=path)
        if header.schema == self.codec.schema or self.codec.type is Any:
            return loaded  # of what it was saved as, nothing is unknown
        return self._known(_PLAIN.decode(message, header.ext, path=path), loaded, path)

    def convert(self, plain: Any, *, path: str = "", str_keys: bool = False) -> Any:
        """Plain data of today's version as the type. Raises `SchemaError`, also for unknown fields, and `MissingFieldError`."""
        return self._known(plain, convert(plain, self.codec.type, path=path, str_keys=str_keys), path)

    def _upgraded(self, plain: Any, header: RecordHeader, path: str) -> Any:
        saved = header.schema_version
        if saved > self.version:
            fact = f"saved with schema version {saved}, this program has {self.version}"
            raise SchemaError(fact, path=path, remedy="load it with the newer program")
        for version in range(saved, self.version):
            if version not in self._upgrades:
                fact = f"saved with schema version {saved}, and there is no upgrade from version {version} to {version + 1}"
                raise SchemaError(fact, path=path, remedy=f"give upgrades={{{version}: …}}")
            try:
                plain = _something(self._upgrades[version](plain))
            except Exception as error:
                error.add_note(f"in the upgrade from schema version {version} to {version + 1} of {path or 'a checkpoint'}, step {header.step}")
                raise
        return plain

    def _known(self, plain: Any, loaded: Any, path: str) -> Any:
        if self.codec.type is Any:
            return loaded
        found = [path_text(steps) for steps in islice(unknown_fields(plain, loaded), _NAMED + 1)]
        if found:
            names = ", ".join(f"`{name}`" for name in found[:_NAMED]) + (", …" if found[_NAMED:] else "")
            fact = f"saved fields that {self.codec.type_name} does not have: {names}"
            if self._unknown == "refuse":
                remedy = 'add them to the type, remove them in an upgrade, or drop them with unknown="warn"'
                raise SchemaError(fact, path=path, where=found[0], remedy=remedy)
            warnings.warn(f"{path}: {fact}; they are dropped", CheckpointWarning, stacklevel=5)
        return loaded


def _something(plain: Any) -> Any:
    if plain is None:
        raise SchemaError("the upgrade returned None", remedy="return the data, also where it was changed in place")
    return plain


def unknown_fields(plain: Any, loaded: Any, steps: Path = ()) -> Iterator[Path]:
    """Where `plain` has fields of which nothing is left in `loaded`, the object that was made of it."""
    if isinstance(plain, dict):
        if isinstance(loaded, dict):
            if len(loaded) == len(plain):
                # Keys may have become another type; their order is the same.
                for (key, item), other in zip(plain.items(), loaded.values(), strict=True):
                    yield from unknown_fields(item, other, (*steps, key))
                return
            others = loaded
        elif fields_of(loaded) is None:
            return
        else:
            try:
                _, others = saved_fields(loaded, steps)
            except EncodeError:
                return  # an attribute that its own class removed: what is there cannot be told
        for key, item in plain.items():
            if key in others:
                yield from unknown_fields(item, others[key], (*steps, key))
            else:
                yield (*steps, key)
    elif isinstance(plain, list):
        if isinstance(loaded, (list, tuple)):
            for index, (item, other) in enumerate(zip(plain, loaded, strict=False)):
                if isinstance(item, (dict, list)):
                    yield from unknown_fields(item, other, (*steps, index))
        elif isinstance(loaded, (set, frozenset)):
            # In no order: an element is one that lost nothing, if there is any.
            for index, item in enumerate(plain):
                if isinstance(item, (dict, list)):
                    lost = [list(unknown_fields(item, other, (*steps, index))) for other in loaded]
                    yield from min(lost, key=len, default=[])
