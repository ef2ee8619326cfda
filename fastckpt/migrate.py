"""JSON checkpoints to ours and back, on disk, with proof: what `fastckpt migrate` and `fastckpt export` do.

    from fastckpt.migrate import export, find, migrate

    for source in find(["runs"]):                 # every checkpoint.json below
        print(migrate(source).proof)              # "byte-identical"
    export("runs/a/checkpoint.fastckpt")          # those very bytes again

A source is never touched, and a target that holds anything else is never replaced unless `force` says so.
"""

from __future__ import annotations

import errno
import fnmatch
import importlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from .codec import Codec, Encoded
from .codec import convert as as_type
from .container import MAGIC, Source
from .errors import (
    CheckpointError,
    CheckpointWarning,
    ConflictError,
    CorruptError,
    DurabilityError,
    EncodeError,
    JsonError,
    NotACheckpointError,
    NotFoundError,
    SchemaError,
    StorageError,
)
from .file import PathType, inspect, read, source_digest, write
from .reader import Reader
from .storage import DISK, Storage, open_file, publish, read_at, vouch, walk
from .tree import abridged, difference, fields_of, path_text
from .twin import from_json, to_json

__all__ = ["Exported", "Migration", "Outcome", "attempt", "export", "export_all", "find", "import_type", "migrate", "target_of"]

BYTES = "byte-identical"
VALUES = "value-identical, source formatted differently"
CONVERTED = "converted, no byte proof"

Status = Literal["migrated", "would migrate", "already done", "newer, left alone"]
_FORCE = "`--force` (force=True) replaces it"


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one source: sizes in bytes (`target_bytes` 0 when nothing was written), wall time in seconds.

    `proof` is what was proven now, before anything was written; empty for a target that stood already.
    """

    source: str
    target: str
    status: Status
    proof: str
    source_bytes: int
    target_bytes: int
    seconds: float


class Outcome(NamedTuple):
    """A migration or the error in its place, and the warnings meanwhile; it can cross a process boundary."""

    source: str
    migration: Migration | None
    error: CheckpointError | None
    warnings: tuple[str, ...] = ()


def target_of(path: PathType, suffix: str = ".fastckpt", old: str = ".json") -> str:
    """The neighbour of a file: `X/checkpoint.fastckpt` for `X/checkpoint.json`; another ending than `old` is kept before `suffix`."""
    name = os.fspath(path)
    stem, ending = os.path.splitext(name)
    return (stem if ending.lower() == old else name) + suffix


def find(
    paths: Iterable[PathType],
    *,
    name: str = "checkpoint.json",
    on_error: Callable[[CheckpointError], None] | None = None,
    storage: Storage = DISK,
) -> list[Path]:
    """Files as given and, in directories, every file below that is called `name` (a pattern such as `*.json`, too); sorted.

    A file that several paths lead to is listed once. Linked directories are not entered, unless given.

    Raises `NotFoundError` (no such path, or nothing of that name below it), `StorageError`; with `on_error` that gets the error of
    one path, and the others are searched all the same.
    """
    found: dict[tuple[str, str], Path] = {}
    folders: dict[str, str] = {}
    for given in [os.fspath(path) for path in paths]:
        matches = False
        try:
            for file in walk(given, storage, on_error=on_error):
                folder, base = os.path.split(file)
                if file != given and base != name and not fnmatch.fnmatchcase(base, name):
                    continue
                matches = True
                if folder not in folders:
                    folders[folder] = _resolved(folder or ".", storage)
                found.setdefault((folders[folder], base), Path(file))
            if not matches:
                raise _nothing(name, given)
        except CheckpointError as error:
            if on_error is None:
                raise
            on_error(error)
    return sorted(found.values(), key=str)


def _resolved(path: str, storage: Storage) -> str:
    try:
        return storage.resolve(path)
    except OSError as error:
        raise StorageError.of(error, path, "resolve") from error


def _nothing(name: str, folder: str) -> NotFoundError:
    error = NotFoundError(folder, remedy="check the path, or give the name that the files have (`--name`)")
    error.fact = error.strerror = f"no {name} below"
    return error


def migrate(
    source: PathType,
    *,
    target: PathType | None = None,
    force: bool = False,
    dry_run: bool = False,
    encoding: str | None = None,
    type: Any = Any,
    convert: bool = False,
    fsync: bool = True,
    storage: Storage = DISK,
) -> Migration:
    """Write the JSON file `source` as a checkpoint beside it (or to `target`), proven equal before and read back afterwards.

    The data is stored untyped, so that `export` gives the source back: byte for byte where it is formatted as the replaced module did
    (`json.dumps(ensure_ascii=False, indent=2)`, UTF-8), else value for value; `proof` says which. With `type` the data must
    fit it; `convert` then stores it as that type (keys that became text turn into numbers again, lists into sets), without the
    byte proof. A second call finds its own work and does nothing; a target that has moved on since is left alone.

    Raises `JsonError` (malformed, a key twice, not in that encoding), `SchemaError` (does not fit `type`, or `convert` would lose
    something), `ConflictError` (the target is something else, or the source changed meanwhile), `CorruptError` and
    `NotACheckpointError` (an empty or foreign source, or such a target), `LimitError`, `StorageError`. The target is as it was
    then, except after a `DurabilityError` and what reading back found; the source is in every case.
    """
    started = time.perf_counter()
    if convert and type is Any:
        raise ValueError("convert=True needs a type")
    codec = Codec(type)
    name = os.fspath(source)
    goal = target_of(name) if target is None else os.fspath(target)
    data = _json_of(name, storage)
    source_stamp = Source(source_digest(data), migrated=True)

    def result(status: Status, proof: str = "", size: int = 0) -> Migration:
        seconds = time.perf_counter() - started
        return Migration(source=name, target=goal, status=status, proof=proof, source_bytes=len(data), target_bytes=size, seconds=seconds)

    # 1. A target that stands already is ours to leave alone, or not ours to touch.
    _refuse_same(name, goal, storage)
    if not force and (standing := _standing(goal, name, source_stamp.digest, codec, convert, storage)):
        if fsync and not dry_run:
            # "Already done" is what people delete their JSON by, and who did it may have been killed before it was durable.
            vouch(goal, storage)
        return result(*standing)

    # 2. Parsed, encoded and proven in memory, before any file is touched.
    plain = from_json(data, path=name, encoding=encoding, duplicates="refuse")
    value = as_type(plain, type, path=name, str_keys=True)
    with _named(name):
        encoded, proof = (_converted(plain, value, codec, name), CONVERTED) if convert else _proven(plain, data)
    if dry_run:
        return result("would migrate", proof)

    # 3. What was proven is still what stands there.
    _require_unchanged(name, data, storage, "nothing was written", "migrate it when nothing writes to it")
    type_name, schema = (codec.type_name, codec.schema) if convert else ("", "")
    stamps: dict[str, Any] = {"step": _step(plain), "source": source_stamp, "type_name": type_name, "schema": schema}
    try:
        info = write(goal, encoded, fsync=fsync, exclusive=not force, storage=storage, **stamps)
    except StorageError as error:
        if error.errno == errno.EEXIST:
            fact = "the target appeared while its source was migrated and was left alone"
            raise ConflictError(fact, paths=(name, goal), remedy="migrate again") from error
        if not isinstance(error, DurabilityError):
            raise
        error.remedy = "the new content is in place, its durability unknown: migrate again with `--force`"
        raise

    # 4. From the disk, what was meant to be there. The source last: "migrated" is what people delete their JSON by, so it must
    #    have been true of both files after the target was in place.
    back = read(goal, storage=storage)
    if back.message != encoded.message or back.header is None or back.header.source != source_stamp:
        raise ConflictError("another process replaced the target as soon as it was written", paths=(goal,), remedy="see what it holds")
    _require_unchanged(name, data, storage, f"{goal} holds its old content", "migrate again with `--force`")
    return result("migrated", proof, info.file_bytes)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """An `EncodeError` inside names the file, too: among many, a place in the data is not enough."""
    try:
        yield
    except EncodeError as error:
        error.fact += f" in {path}"
        raise


def _json_of(path: str, storage: Storage) -> bytes:
    document = read(path, storage=storage)
    if document.header is not None:
        raise JsonError("a fastckpt file already, not JSON", path=path, remedy="`fastckpt export` turns it into JSON")
    return document.message


def _bytes_of(path: str, storage: Storage) -> bytes:
    with open_file(path, storage) as (fd, status):
        return read_at(fd, status.st_size + 1, 0, storage)


def _require_unchanged(path: str, data: bytes, storage: Storage, outcome: str, remedy: str) -> None:
    # The bytes are compared, for size and times may be the same.
    try:
        unchanged = _bytes_of(path, storage) == data
    except NotFoundError:
        unchanged = False
    if not unchanged:
        raise ConflictError(f"the source changed while it was migrated ({outcome})", paths=(path,), remedy=remedy)


def _refuse_same(source: str, target: str, storage: Storage) -> None:
    if _resolved(source, storage) == _resolved(target, storage):
        raise ConflictError("the target is the source itself", paths=(source, target), remedy="choose another target")


def _standing(target: str, source: str, digest: str, codec: Codec, convert: bool, storage: Storage) -> tuple[Status, str, int] | None:
    """What a sound target says of this source; None when there is no target.

    Raises `ConflictError` for anything else, `CorruptError` or `NotACheckpointError` for a damaged or foreign one.
    """
    try:
        document = read(target, storage=storage)
    except NotFoundError:
        return None
    except (CorruptError, NotACheckpointError) as error:
        error.remedy = f"see what it is; {_FORCE}"
        raise
    header = document.header
    if header is None or header.source is None or header.source.digest != digest:
        what = "holds JSON" if header is None else "is no migration" if header.source is None else "was migrated from other content"
        raise ConflictError(f"the target exists and {what}", paths=(source, target), remedy=_FORCE)
    size = inspect(target, storage=storage).file_bytes
    if not header.source.migrated:
        return "newer, left alone", "", size
    if convert and (header.type, header.schema) != (codec.type_name, codec.schema):
        stored = header.type or "plain data"
        raise ConflictError(f"the target was migrated as {stored}, not as {codec.type_name}", paths=(source, target), remedy=_FORCE)
    if header.type and codec.type is not Any:
        codec.decode(document.message, header.ext, path=target)
    else:
        as_type(Codec().decode(document.message, header.ext, path=target), codec.type, path=target, str_keys=True)
    return "already done", "", size


def _proven(plain: Any, data: bytes) -> tuple[Encoded, str]:
    """`plain` encoded untyped, and the proof that its export is `data` again, byte for byte or value for value."""
    codec = Codec()
    encoded = codec.encode(plain)
    decoded = codec.decode(*encoded)
    _require_same(plain, decoded, "decoded")
    exported = to_json(decoded)
    if exported == data:
        return encoded, BYTES
    _require_same(plain, from_json(exported), "exported")
    return encoded, VALUES


def _require_same(plain: Any, other: Any, how: str) -> None:
    found = difference(plain, other)
    if found is not None:
        raise EncodeError(f"{found.reason} when {how}", where=found.where, remedy="keep the JSON, and report this as a fault of fastckpt")


def _converted(plain: Any, value: Any, codec: Codec, path: str) -> Encoded:
    """`value`, which is `plain` as the codec's type, encoded; refused where the type has no place for something."""
    _require_kept(plain, value, [], path)
    encoded = codec.encode(value)
    codec.check(value, encoded)
    return encoded


def _require_kept(plain: Any, value: Any, steps: list[object], path: str) -> None:
    """Raise `SchemaError` where conversion dropped a key (a field that the type does not have) or merged two keys or elements."""
    pairs: list[tuple[object, Any, Any]] = []
    if isinstance(plain, list) and isinstance(value, (list, tuple, set, frozenset)):
        if len(plain) != len(value):
            raise _loss(f"{len(plain)} items become {len(value)}", steps, path)
        if not isinstance(value, (set, frozenset)):
            pairs = [(index, item, value[index]) for index, item in enumerate(plain)]
    elif isinstance(plain, dict) and isinstance(value, dict):
        if len(plain) != len(value):
            # A TypedDict drops a key that it does not know, a dict[float, ...] takes "1" and "1.0" for one.
            lost = [key for key in plain if key not in value]
            dropped = len(value) + len(lost) == len(plain)
            raise _loss(f"the type has no field {abridged(lost[0])}" if dropped else "two keys become one", steps, path)
        pairs = [(key, item, other) for (key, item), other in zip(plain.items(), value.values(), strict=True)]
    elif isinstance(plain, dict) and (names := fields_of(value)) is not None:
        saved = value.__struct_encode_fields__ if isinstance(value, msgspec.Struct) else names
        attributes = dict(zip(saved, names, strict=True))
        tag = (value.__struct_config__.tag_field or "type") if isinstance(value, msgspec.Struct) and value.__struct_config__.tag is not None else None
        for key, item in plain.items():
            if key in attributes:
                pairs.append((key, item, getattr(value, attributes[key])))
            elif key != tag:
                raise _loss(f"the type has no field {abridged(key)}", steps, path)
    for step, item, other in pairs:
        if isinstance(item, (dict, list)):
            steps.append(step)
            _require_kept(item, other, steps, path)
            steps.pop()


def _loss(fact: str, steps: list[object], path: str) -> SchemaError:
    return SchemaError(f"{fact}, which would lose data", where=path_text(steps), path=path, remedy="change the type, or migrate without `--convert`")


def _step(plain: Any) -> int | None:
    """The step that the replaced module counted; a manager adopts the file as that one."""
    progress = plain.get("progress") if isinstance(plain, dict) else None
    step = progress.get("global_step") if isinstance(progress, dict) else None
    return step if type(step) is int and 0 <= step < 2**63 else None


def export(path: PathType, target: PathType | None = None, *, step: int | None = None, force: bool = False, storage: Storage = DISK) -> bytes:
    """The JSON of the checkpoint `path` (of a run, the newest step or `step`), as `to_json` writes it; with `target` also written there, durably.

    A target that holds these bytes already is left alone; one that holds others is replaced with `force` only, and a checkpoint
    of ours never.

    Raises what `load` raises, `NotFoundError` (no such step), `EncodeError` (JSON cannot say it), `NotACheckpointError` (it is JSON),
    `ConflictError`, `StorageError`.
    """
    name = os.fspath(path)
    document = read(path, step=step, storage=storage)
    if document.header is None:
        raise NotACheckpointError(name, got="JSON already", remedy="use it as it is")
    if step is not None and document.header.step != step:  # a file of one checkpoint
        there = "a checkpoint without a step" if document.header.step is None else f"step {document.header.step} alone"
        raise NotFoundError(name, fact=f"no step {step}, but {there}", remedy="export it without a step")
    with _named(name):
        data = to_json(Codec().decode(document.message, document.header.ext, path=name))
    if target is not None:
        _publish_export(name, os.fspath(target), data, force, storage)
    return data


class Exported(NamedTuple):
    """One step of a run and where its JSON is, of so many bytes; or the error in its place."""

    step: int
    target: str
    size: int
    error: CheckpointError | None


def export_all(path: PathType, folder: PathType, *, force: bool = False, storage: Storage = DISK) -> Iterator[Exported]:
    """Export every live step of a run, oldest first, each to `step-N.json` in `folder`, which is made; durable as they come.

    A step that fails (damaged, or in the way of something else) does not stop the others. As `export` otherwise. Warns
    (`CheckpointWarning`) of damage that may hide steps.

    Raises `NotFoundError` (no such file, or no step in it), `CorruptError` (nothing is left of it), `NotACheckpointError`,
    `VersionError`, `StorageError`.
    """
    name = os.fspath(path)
    with closing(Reader(path, storage=storage)) as reader:
        steps: list[tuple[int, Any]] = []
        for entry in reader.live():
            # A run's live steps rise; one that does not was retired by a record that is lost.
            if entry.header.step is not None and (not steps or entry.header.step < steps[-1][0]):
                steps.append((entry.header.step, entry))
        if reader.damage is not None:
            offset, _, _, fact = reader.damage
            if not steps:
                raise CorruptError(fact, path=name, offset=offset, remedy="`fastckpt repair` keeps what is readable")
            warnings.warn(f"{name} is damaged at byte {offset} ({fact}): steps may be missing", CheckpointWarning, stacklevel=2)
        if not steps:
            raise NotFoundError(name, fact="no step is in it", remedy="export it without `--all`")
        for step, entry in reversed(steps):
            target = os.path.join(folder, f"step-{step}.json")
            try:
                with _named(name):
                    data = to_json(Codec().decode(reader.read(entry), entry.header.ext, path=name))
                _publish_export(name, target, data, force, storage)
            except CheckpointError as error:
                yield Exported(step, target, 0, error)
            else:
                yield Exported(step, target, len(data), None)


def _publish_export(source: str, target: str, data: bytes, force: bool, storage: Storage) -> None:
    try:
        there = _bytes_of(target, storage)
    except NotFoundError:
        there = None
    if there == data:
        vouch(target, storage)
        return
    if there is not None and there.startswith(MAGIC):
        raise ConflictError("the target is a checkpoint, which JSON must not replace", paths=(source, target), remedy="choose another target")
    if there is not None and not force:
        raise ConflictError("the target exists and holds something else", paths=(source, target), remedy=_FORCE)
    publish(target, data, storage=storage)


# --- many files ------------------------------------------------------------------------------------------------------


def attempt(source: PathType, *, type: str = "", **options: Any) -> Outcome:
    """`migrate` with `type` as text (`module:Class`), its error and warnings as values: for worker processes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CheckpointWarning)
        done, failed = None, None
        try:
            done = migrate(source, type=import_type(type) if type else Any, **options)
        except CheckpointError as error:
            failed = error
        except MemoryError:
            failed = CheckpointError(f"no memory to migrate {os.fspath(source)}", remedy="migrate it on a larger machine, or with fewer `--jobs`")
    texts = tuple(str(warning.message) for warning in caught if issubclass(warning.category, CheckpointWarning))
    return Outcome(os.fspath(source), done, failed, texts)


def import_type(spec: str) -> Any:
    """What `module:Name` (or `module:Outer.Inner`) names. Raises `CheckpointError` when it cannot be imported."""
    module, colon, name = spec.partition(":")
    if not (module and colon and name):
        raise CheckpointError(f"{spec!r} names no type", remedy="write it as module:Class")
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # the module is the user's and may raise anything
        reason = f"{error.__class__.__name__}: {error}"
        raise CheckpointError(f"cannot import {spec} ({reason})", remedy="write it as module:Class, as Python would import it here") from error
    return found
