"""One checkpoint in one file: save, load, inspect, verify.

A file is read whole and checked before anything of it is decoded; it is written whole and durably, or not at all.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import closing
from os import PathLike, fspath, urandom
from typing import Any, NamedTuple

import msgspec

from . import container
from .codec import Codec, Encoded, describe, pack_meta, unpack_meta
from .container import FILE_HEADER_SIZE, MAGIC, MAX_MESSAGE, RecordHeader, Source
from .errors import (
    CheckpointError,
    ConflictError,
    CorruptError,
    LimitError,
    NotACheckpointError,
    NotFoundError,
    SchemaError,
    StorageError,
)
from .reader import Reader
from .storage import DISK, Storage, open_file, publish, read_at
from .tree import fields_of
from .twin import from_json
from .upgrades import Loader, Unknown

__all__ = ["Document", "Info", "Problem", "SaveInfo", "inspect", "load", "read", "save", "source_digest", "verify", "write"]

# From this size on a message is compressed by two threads, for the caller waits: 4 MB in 12 ms rather than 15, 16 MB in 38 rather than
# 60, for 5% more CPU. A thread of zstd takes 2 MiB at a time at level 1, and so much more at higher ones that it seldom pays.
_LARGE, _THREADS = 4 << 20, 2
# One read that covers the headers of nearly every file.
_HEAD = 1 << 16
# What a JSON document can begin with, after white space and a byte order mark: a value, or Python's NaN and Infinity.
_JSON_STARTS = b'{["-0123456789tfnNI'
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
# What other files begin with, only to name them in the error; none of them is read.
_FOREIGN = {
    b"\x28\xb5\x2f\xfd": "a zstd stream of something else",
    b"\x04\x22\x4d\x18": "an LZ4 stream",
    b"\x1f\x8b": "a gzip stream",
    b"PK\x03\x04": "a zip archive (a torch or numpy file?)",
    b"SQLite format 3": "an SQLite database",
    b"\x80": "a Python pickle or bare msgpack",
    b"\x93NUMPY": "a numpy array",
}

PathType = str | PathLike[str]


class SaveInfo(NamedTuple):
    """What a save did: where (links resolved), sizes in bytes, wall time in seconds, and whether it was checked."""

    path: str
    message_bytes: int
    file_bytes: int
    seconds: float
    checked: bool


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What a file's headers say; sizes in bytes, `time` in nanoseconds since 1970 (UTC), `file_id` in hex.

    `type` and `schema` are the name and the fingerprint of the type that it was saved as, empty for untyped data; `schema_version` is the
    program's.
    """

    path: str
    kind: str
    format_version: int
    min_reader: int
    file_id: str
    file_bytes: int
    message_bytes: int
    has_ext: bool
    codec: str
    step: int | None
    time: int
    writer: str
    type: str
    schema: str
    schema_version: int
    meta: dict[str, Any]
    source: Source | None


class Problem(NamedTuple):
    """One thing that is wrong with a file: `offset` in bytes, None where it has no place, and the fact on one line."""

    path: str
    offset: int | None
    fact: str


class Document(NamedTuple):
    """What a file holds, before decoding: our message with its header, or (`header` None) the bytes of a JSON file."""

    path: str
    header: RecordHeader | None
    message: bytes


def save(
    path: PathType,
    obj: Any,
    *,
    type: Any = None,
    round_trip: bool = True,
    level: int = 1,
    fsync: bool = True,
    meta: dict[str, Any] | None = None,
    storage: Storage = DISK,
) -> SaveInfo:
    """Save `obj` as the one checkpoint in the file `path`. When it returns, the file survives a kill and a loss of power.

    At every moment `path` is the old file or the new one. `type` is what it will be loaded as (that of `obj` if not given:
    give it where the class alone does not say it, such as `dict[int, set[str]]` or a parametrised generic). With
    `round_trip` the bytes are decoded and compared with `obj`, value and exact type, before the file is touched. `level` is
    zstd's, 1 to 22. `fsync=False` gives up the power-loss half of the guarantee. `meta` is small plain data that `inspect`
    shows without reading the state.

    Raises `EncodeError` or `SchemaError` (what would not come back, by path, nothing written), `LimitError` (over 4 GiB),
    `ConflictError` (the file is a run's), `StorageError` (the old file is untouched), `DurabilityError` (in place, but a
    directory could not be synced).
    """
    started = time.perf_counter()
    codec = Codec(_type_of(obj) if type is None else type)
    encoded = codec.encode(obj)
    if round_trip:
        codec.check(obj, encoded)
    info = write(path, encoded, level=level, fsync=fsync, meta=meta, type_name=codec.type_name, schema=codec.schema, storage=storage)
    return info._replace(seconds=time.perf_counter() - started, checked=round_trip)


def _type_of(obj: Any) -> Any:
    """The class of `obj` where decoding needs it; Any for plain data, and for what no decoder makes (encoding refuses it)."""
    kind = obj.__class__
    if kind in (dict, list, str, int, float, bool, bytes, None.__class__):
        return Any
    try:
        describe(kind)
    except SchemaError:
        if fields_of(obj) is not None:
            raise
        return Any
    return kind


def write(
    path: PathType,
    encoded: Encoded,
    *,
    level: int = 1,
    fsync: bool = True,
    step: int | None = None,
    meta: dict[str, Any] | None = None,
    source: Source | None = None,
    type_name: str = "",
    schema: str = "",
    exclusive: bool = False,
    storage: Storage = DISK,
) -> SaveInfo:
    """Write one encoded message as the single record of a file; what `save` does after encoding.

    With `exclusive` a file that exists, or appears meanwhile, is an error (`StorageError`, EEXIST).
    """
    started = time.perf_counter()
    if not 1 <= level <= 22:
        raise ValueError(f"level must be 1 to 22, got {level}")
    if step is not None and (type(step) is not int or not -(2**63) <= step < 2**63):
        raise ValueError(f"step must be an int of at most 64 bits, got {step!r}")
    message = encoded.message
    if len(message) > MAX_MESSAGE:
        raise LimitError("the state is too large", limit=MAX_MESSAGE, got=len(message), path=fspath(path), remedy="split it into several files")
    table = container.whole(message)
    file_id = urandom(16)
    header = RecordHeader(
        file=file_id,
        sequence=1,
        kind="state",
        step=step,
        base=True,
        message=len(message),
        digest=container.digest(table.crcs),
        zeros=False,
        ext=encoded.has_ext,
        meta=pack_meta(meta),
        source=source,
        type=type_name,
        schema=schema,
        time=time.time_ns(),
        writer=container.VERSION,
    )
    threads = _THREADS if level == 1 and len(message) >= _LARGE else 0
    record = container.pack_record(header, table, message, level=level, threads=threads)
    _refuse_run(path, storage)
    first, *others = record.writes()
    pieces = (container.pack_file_header(file_id) + first, *others)
    target = publish(path, pieces, fsync=fsync, exclusive=exclusive, storage=storage)
    return SaveInfo(target, len(message), sum(map(len, pieces)), time.perf_counter() - started, checked=False)


def _refuse_run(path: PathType, storage: Storage) -> None:
    """A run holds many steps; one state in its place would lose the others. What cannot be read may be a run."""
    try:
        with open_file(path, storage) as (fd, _):
            head = read_at(fd, FILE_HEADER_SIZE, 0, storage)
    except NotFoundError:
        return
    if head.startswith(MAGIC) and len(head) == FILE_HEADER_SIZE:
        try:
            run = container.unpack_file_header(head, path=fspath(path)).run
        except CorruptError:
            run = container.claims_run(head)  # damaged, and if it was a run, most of its steps are not
        if run:
            raise ConflictError(
                "the file holds a run of many steps, which one checkpoint would replace",
                paths=(fspath(path),),
                remedy="save to another path, or remove the run first",
            )


def load(path: PathType, type: Any = Any, *, unknown: Unknown = "refuse", max_size: int = MAX_MESSAGE, storage: Storage = DISK) -> Any:
    """The state in the file `path` (of a run, its newest), as `type` (plain data if not given); JSON is told by its content.

    Everything is checked before it is decoded, and `max_size` (bytes of the decompressed state, or of the JSON) before
    anything is allocated. Nothing in a file ever names a class: only `type` does. Fields that are saved and that `type` does not have
    are refused by name, or with `unknown="warn"` dropped with a `CheckpointWarning`.

    Raises `NotFoundError`, `CorruptError` (with the offset), `NotACheckpointError`, `VersionError`, `LimitError`, `JsonError`,
    `SchemaError` and `MissingFieldError` (it does not fit `type`), `StorageError`.
    """
    document = read(path, max_size=max_size, storage=storage)
    loader = Loader(Codec(type), version=None, unknown=unknown)
    if document.header is None:
        return loader.convert(from_json(document.message, path=document.path), path=document.path, str_keys=True)
    return loader.load(document.message, document.header, path=document.path)


def read(path: PathType, *, step: int | None = None, max_size: int = MAX_MESSAGE, storage: Storage = DISK) -> Document:
    """The checked message of a file, not decoded; what `load` does before decoding. Of a run, the newest step or the one given."""
    name = fspath(path)
    with open_file(path, storage) as (fd, status):
        head = read_at(fd, _HEAD, 0, storage)
        if _is_json(head, name):
            if status.st_size > max_size:
                raise LimitError("the JSON file is larger than `max_size`", limit=max_size, got=status.st_size, path=name, remedy="raise `max_size`")
            return Document(name, None, head if len(head) == status.st_size else read_at(fd, status.st_size, 0, storage))
        file = container.unpack_file_header(head, path=name)
        if not file.run:
            _, length = _header(fd, head, status.st_size, name, max_size, storage)
            record = read_at(fd, length, FILE_HEADER_SIZE, storage)
            header, message = container.unpack_record(record, file, max_size=max_size, path=name, offset=FILE_HEADER_SIZE)
            return Document(name, header, message)
    # A run: opened by its reader, which may follow a writer.
    with closing(Reader(path, max_size=max_size, storage=storage)) as reader:
        entry = reader.state(step)
        return Document(name, entry.header, reader.read(entry))


def _header(fd: int, head: bytes, size: int, path: str, max_size: int, storage: Storage) -> tuple[RecordHeader, int]:
    """The header of the only record of a file and the record's length, checked against the file's size."""
    available = size - FILE_HEADER_SIZE
    header_size = container.record_header_size(head[FILE_HEADER_SIZE:], available, path=path, offset=FILE_HEADER_SIZE)
    if FILE_HEADER_SIZE + header_size > len(head):
        head = read_at(fd, FILE_HEADER_SIZE + header_size, 0, storage)
    header, _, _ = container.unpack_record_header(head[FILE_HEADER_SIZE:], path=path, offset=FILE_HEADER_SIZE)
    length = container.check_lengths(header, header_size, available, max_size=max_size, path=path, offset=FILE_HEADER_SIZE)
    if length < available:
        raise CorruptError(
            "bytes after the only record", path=path, offset=FILE_HEADER_SIZE + length, expected=f"{FILE_HEADER_SIZE + length} bytes", got=size
        )
    return header, length


def _is_json(head: bytes, path: str) -> bool:
    """Whether a file that begins with `head` is to be read as JSON; False for ours.

    Raises `CorruptError` for what a crash or damage leaves of our files, `NotACheckpointError` for everything else.
    """
    if container.is_ours(head, path=path):
        return False
    if (
        head.startswith(_BYTE_ORDER_MARKS)
        or not head.strip()
        or head.lstrip()[:1] in [bytes([c]) for c in _JSON_STARTS]
        or (b"\0" in head[:4] and head[:4].strip(b"\0")[:1] in (b"{", b"["))
    ):
        return True
    got = next((what for start, what in _FOREIGN.items() if head.startswith(start)), "neither ours nor JSON")
    raise NotACheckpointError(path, got=f"{got} (it begins with {head[:8].hex(' ')})")


def inspect(path: PathType, *, storage: Storage = DISK) -> Info:
    """What the headers of one of our files say (of a run, its newest step's), without reading the state.

    Raises as `load` does for what the headers show; `NotACheckpointError` for JSON, which has no header.
    """
    name = fspath(path)
    with open_file(path, storage) as (fd, status):
        head = read_at(fd, _HEAD, 0, storage)
        if _is_json(head, name):
            raise NotACheckpointError(name, got="JSON, which has no header", remedy="run `fastckpt migrate` on it")
        file = container.unpack_file_header(head, path=name)
        if not file.run:
            header, _ = _header(fd, head, status.st_size, name, MAX_MESSAGE, storage)
    if file.run:
        with closing(Reader(path, storage=storage)) as reader:
            header = reader.state().header
    meta = unpack_meta(header.meta, path=name)
    return Info(
        path=name,
        kind="run" if file.run else "single",
        format_version=file.version,
        min_reader=file.min_reader,
        file_id=file.file_id.hex(),
        file_bytes=status.st_size,
        message_bytes=header.message,
        has_ext=header.ext,
        codec=header.codec,
        step=header.step,
        time=header.time,
        writer=header.writer,
        type=header.type,
        schema=header.schema,
        schema_version=header.schema_version,
        meta=meta,
        source=header.source,
    )


def verify(path: PathType, *, storage: Storage = DISK) -> list[Problem]:
    """What is wrong with the file `path`, ours or JSON: every checksum of every record is checked, and the (newest) state decoded.

    Empty when the file is sound.

    Raises `NotFoundError` and `StorageError`, for then nothing is known of the content.
    """
    name = fspath(path)
    problems: list[Problem] = []
    try:
        document = read(path, storage=storage)
        if document.header is None:
            from_json(document.message, path=name)
        else:
            Codec().decode(document.message, document.header.ext, path=name)
            with closing(Reader(path, storage=storage)) as reader:
                problems = [Problem(name, offset, fact) for offset, fact in reader.verify()]
    except StorageError:
        raise
    except CheckpointError as error:
        problems.append(Problem(name, getattr(error, "offset", None), str(error)))
    return problems


def source_digest(data: bytes) -> str:
    """The digest by which a checkpoint knows the JSON file that it was migrated from: BLAKE2b-128 in hex."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
