"""Bytes in, bytes out: the layout of a file and its records, as `FORMAT.md` specifies it.

    file   = file header, record*
    record = record header, table, zstd frame, trailer

Everything but the zstd frame is a zstd *skippable frame* (magic, length, payload), so a whole file is one valid zstd stream.
Nothing here knows a path, a Struct of the application, or a system call; `path` and `offset` arguments only word errors.
No number read from a file is trusted before it was compared with what is there.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import zstandard

from .errors import CorruptError, LimitError, VersionError

__all__ = [
    "END_MARK",
    "FILE_HEADER_SIZE",
    "FORMAT_VERSION",
    "MAGIC",
    "MAX_CHUNKS",
    "MAX_HEADER",
    "MAX_MESSAGE",
    "TRAILER_SIZE",
    "VERSION",
    "FileHeader",
    "Record",
    "RecordHeader",
    "Source",
    "Table",
    "Trailer",
    "assemble",
    "check_frame",
    "check_lengths",
    "chunk_starts",
    "claims_run",
    "digest",
    "is_ours",
    "most_stored",
    "pack_file_header",
    "pack_record",
    "record_header_size",
    "unpack_content",
    "unpack_file_header",
    "unpack_record",
    "unpack_record_header",
    "unpack_table",
    "unpack_trailer",
    "whole",
]

#: The version of this package; a record says which one wrote it.
VERSION: Final = "0.1.0"
FORMAT_VERSION: Final = 1
# The codec and features of records that this reader knows; what a file requires beyond them is a VersionError.
_CODECS = ("zstd",)
_FEATURES: tuple[str, ...] = ()
_FLAG_RUN = 1

# One of the sixteen magics of zstd's skippable frames (RFC 8878, 3.1.2); the tag in the payload says what the frame is.
_SKIPPABLE = b"\x5c\x2a\x4d\x18"
_FILE, _RECORD, _TABLE, _TRAILER = b"FCKP", b"FCKR", b"FCKT", b"FCKE"
_PREFIX = struct.Struct("<4sI4s")  # skippable magic, length of the payload, tag
_FILE_HEADER = struct.Struct("<4sI4sHH16sII8s")
_TRAILER_LAYOUT = struct.Struct("<4sI4sQ8s8s4s")
#: A record's last bytes; the very last is never zero, which is what an unsynced append leaves.
END_MARK: Final = b"PKCF"

FILE_HEADER_SIZE: Final = _FILE_HEADER.size
TRAILER_SIZE: Final = _TRAILER_LAYOUT.size
#: Bytes 0-11 of every file of ours: zstd and LZ4 streams may begin with a skippable frame too, but not with this payload.
MAGIC: Final = _PREFIX.pack(_SKIPPABLE, FILE_HEADER_SIZE - 8, _FILE)
#: The largest record header, user metadata included, in bytes.
MAX_HEADER: Final = 1 << 20
#: The default limit of a message (one encoded state), in bytes, when saving and when loading.
MAX_MESSAGE: Final = 4 << 30
# zstd's own default limit of a window (ZSTD_WINDOWLOG_LIMIT_DEFAULT, 27): what `zstd -d` accepts without an option.
_MAX_WINDOW = 1 << 27
# The frames that a message is assembled from may hold dead chunks besides: DESIGN's bound on what is decoded for it.
_FRAMES_PER_MESSAGE, _FRAMES_SLACK = 8, 64 << 20
_MAX_CHUNK = 1 << 30
#: The most chunks that a message may consist of; a writer starts a base long before.
MAX_CHUNKS: Final = 1 << 20
# Whatever 512 bytes have one bit set at most hold a run of this many zeros: such a sector must not pass for a lost one if it flips.
_ZEROS = bytes(256)
# One system call less is worth a copy up to this many bytes.
_JOINED = 1 << 18
_AT_ONCE = 8 << 20

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Source(msgspec.Struct, frozen=True):
    """The JSON file that a checkpoint was migrated from: BLAKE2b-128 of its bytes, in hex.

    `migrated` is True in the record that is the migration, False in a later save that carries the digest forward.
    """

    digest: str
    migrated: bool


class FileHeader(NamedTuple):
    """What the first bytes of a file say. `file_id` is random and names the file through compactions."""

    version: int
    min_reader: int
    file_id: bytes
    run: bool


class RecordHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that listing needs of a record, without its table or message. `FORMAT.md` explains every field.

    Lengths are bytes; `time` is nanoseconds since 1970 (UTC); `retires` are step ranges, both ends included, None for
    "and every later one"; `meta`, `metrics` and `config` are msgpack maps that are decoded only when asked for.
    """

    file: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    sequence: Annotated[int, msgspec.Meta(ge=1)]
    kind: Literal["state", "tombstone"]
    stream: str = ""
    key: str = ""
    step: int | None = None
    base: bool
    retires: list[tuple[int, int | None]] = []
    message: _Count
    digest: bytes = b""
    table: _Count = 0
    table_checksum: bytes = b""
    frame: _Count = 0
    frame_checksum: _Count = 0
    unsynced: _Count = 0
    zeros: bool
    chunk: _Count = 0
    codec: str = "zstd"
    requires: list[str] = []
    ext: bool = False
    meta: msgspec.Raw = msgspec.Raw(b"\x80")
    metrics: msgspec.Raw = msgspec.Raw(b"\x80")
    config: msgspec.Raw = msgspec.Raw(b"\x80")
    source: Source | None = None
    type: str = ""
    schema: str = ""
    schema_version: Annotated[int, msgspec.Meta(ge=1)] = 1
    blocked: _Count = 0
    time: int
    writer: str = ""


class Table(msgspec.Struct, array_like=True, frozen=True):
    """Where the chunks of a message are.

    Record 0 is the record itself; record k is `distances[k - 1]` bytes before its start, and its header checksum must be
    `checksums[8 * (k - 1) : 8 * k]`. `runs` is flat, three numbers a run: record, first chunk in it, count. `sizes` and
    `crcs` (little-endian u32 each) are of the chunks that this record's own frame holds, in order.
    """

    distances: list[Annotated[int, msgspec.Meta(gt=0)]]
    checksums: bytes
    runs: list[_Count]
    sizes: bytes
    crcs: bytes


class Trailer(NamedTuple):
    """The end of a record: its whole length, and the checksum of the header that it belongs to."""

    record: int
    header_checksum: bytes


class Record(NamedTuple):
    """A packed record in pieces (header, table, frame, trailer), and the checksum of its header, by which later tables name it."""

    pieces: tuple[bytes, ...]
    header: RecordHeader
    header_checksum: bytes

    @property
    def data(self) -> bytes:
        """The record as it lies in the file."""
        return b"".join(self.pieces)

    def writes(self) -> tuple[bytes, ...]:
        """The record as it is to be written: at once, or in its pieces where joining them would copy much."""
        return (self.data,) if self.size <= _JOINED else self.pieces

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return sum(map(len, self.pieces))


def _checksum(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _u32(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def _hex(data: bytes) -> str:
    return data.hex()


def digest(crcs: bytes) -> bytes:
    """A message's digest: BLAKE2b-64 of its chunks' CRC-32s, so that unchanged chunks are not hashed again.

    It guards integrity and is no identity of content: the same message in other chunks has another digest.
    """
    return _checksum(crcs)


def whole(message: bytes | bytearray) -> Table:
    """The table of a message stored whole: as one chunk, or as several of 1 GiB where it is larger."""
    view = memoryview(message)
    chunks = [view[i : i + _MAX_CHUNK] for i in range(0, len(view), _MAX_CHUNK)]
    sizes = struct.pack(f"<{len(chunks)}I", *map(len, chunks))
    crcs = struct.pack(f"<{len(chunks)}I", *map(zlib.crc32, chunks))
    return Table([], b"", [0, 0, len(chunks)] if chunks else [], sizes, crcs)


# --- writing ---------------------------------------------------------------------------------------------------------


def pack_file_header(file_id: bytes, *, run: bool = False) -> bytes:
    """The 48 bytes at the start of a file."""
    flags = _FLAG_RUN if run else 0
    fields = (_SKIPPABLE, FILE_HEADER_SIZE - 8, _FILE, FORMAT_VERSION, 1, file_id, flags, 0)
    return _FILE_HEADER.pack(*fields, _checksum(_FILE_HEADER.pack(*fields, b"")[:-8]))


def pack_record(header: RecordHeader, table: Table, chunks: bytes | bytearray, *, level: int = 1, threads: int = 0) -> Record:
    """A record whose frame holds `chunks` (the new ones, concatenated), compressed at `level` of zstd: by the caller's thread,
    or by so many others while it waits.

    The caller gives what it knows (sequence, kind, step, base, message length and digest, …); lengths and checksums of
    table and frame, and whether the record holds a run of 256 zero bytes, are filled in here.

    Raises `LimitError` when the header with its metadata exceeds `MAX_HEADER`.
    """
    frame = _compress(chunks, level, threads)
    payload = msgspec.msgpack.encode(table)
    table_frame = _PREFIX.pack(_SKIPPABLE, 4 + len(payload), _TABLE) + payload
    header = msgspec.structs.replace(
        header,
        table=len(table_frame),
        table_checksum=_checksum(table_frame),
        frame=len(frame),
        frame_checksum=zlib.crc32(frame),
        zeros=False,
    )
    record = _assemble(header, table_frame, frame)
    # Every piece begins with a byte that is not zero, so no run of zeros crosses from one into the next.
    if any(_ZEROS in piece for piece in record.pieces):
        # A reader takes a sector of zeros for one that never reached the disk, unless the record says that it has its own.
        record = _assemble(msgspec.structs.replace(header, zeros=True), table_frame, frame)
    return record


def _compress(content: bytes | bytearray, level: int, threads: int) -> bytes:
    # Compression releases the GIL, and zstd's own checksum and content size make `zstd -t` a real check.
    try:
        return zstandard.ZstdCompressor(level=level, threads=threads, write_checksum=True, write_content_size=True).compress(content)
    except zstandard.ZstdError as error:  # what it says where a thread cannot be had, too
        if threads:
            return _compress(content, level, 0)
        raise MemoryError(f"no memory to compress {len(content)} bytes ({error})") from error  # the one reason for which bytes cannot be compressed


def _assemble(header: RecordHeader, table_frame: bytes, frame: bytes) -> Record:
    payload = msgspec.msgpack.encode(header)
    head = _PREFIX.pack(_SKIPPABLE, 4 + len(payload) + 8, _RECORD) + payload
    if len(head) + 8 > MAX_HEADER:
        raise LimitError(
            "the record header with its metadata is too large",
            limit=MAX_HEADER,
            got=len(head) + 8,
            remedy="keep metadata, metrics and the configuration small",
        )
    check = _checksum(head)
    length = len(head) + 8 + len(table_frame) + len(frame) + TRAILER_SIZE
    tail = _TRAILER_LAYOUT.pack(_SKIPPABLE, TRAILER_SIZE - 8, _TRAILER, length, check, b"", b"")[:28]
    trailer = tail + _checksum(tail) + END_MARK
    return Record((head + check, table_frame, frame, trailer), header, check)


# --- reading ---------------------------------------------------------------------------------------------------------


def is_ours(head: bytes, *, path: str = "") -> bool:
    """Whether a file that begins with `head` is one of ours.

    Raises `CorruptError` for what a crash or damage leaves of one: nothing at all, zeros, a part or a damaged copy of the magic.
    """
    if head.startswith(MAGIC):
        return True
    if not head:
        raise CorruptError(
            "the file is empty, which is what a crash leaves of a file that was not synced", path=path, remedy="restore it from a backup"
        )
    if MAGIC.startswith(head):
        raise CorruptError("truncated inside the file header", path=path, offset=len(head), expected=f"{FILE_HEADER_SIZE} bytes", got=len(head))
    begun = head.rstrip(b"\0")
    if MAGIC.startswith(begun):
        fact = (
            f"the file holds only zeros{f' from byte {len(begun)} on' if begun else ''}, which is what a crash leaves of a file that was not synced"
        )
        raise CorruptError(fact, path=path, offset=len(begun), remedy="restore it from a backup")
    if sum(a == b for a, b in zip(head, MAGIC, strict=False)) >= 9:
        raise CorruptError("the file header is damaged", path=path, offset=0, expected=MAGIC.hex(" "), got=head[:12].hex(" "))
    return False


def claims_run(head: bytes) -> bool:
    """Whether a file header, be it damaged, has the flag of a run."""
    return bool(_FILE_HEADER.unpack_from(head)[6] & _FLAG_RUN)


def unpack_file_header(data: bytes, *, path: str = "") -> FileHeader:
    """The file header at the start of `data`, of which the caller knows that it begins with `MAGIC` (or a part of it).

    Raises `CorruptError` (truncated, checksum), `VersionError` (a newer format, an unknown required flag). The layout of
    these 48 bytes is frozen for every version, so the checksum comes before the version: a flipped bit is damage, never
    "a newer version".
    """
    if len(data) < FILE_HEADER_SIZE:
        raise CorruptError("truncated inside the file header", path=path, offset=len(data), expected=f"{FILE_HEADER_SIZE} bytes", got=len(data))
    _, _, _, version, min_reader, file_id, flags, _, check = _FILE_HEADER.unpack_from(data)
    _require("file header checksum mismatch", _checksum(data[: FILE_HEADER_SIZE - 8]), check, path, 0)
    if min_reader > FORMAT_VERSION:
        raise VersionError(path, needs=min_reader, supports=FORMAT_VERSION)
    if flags & ~_FLAG_RUN:
        raise VersionError(path, needs=f"flags {flags & ~_FLAG_RUN:#x}", supports=f"{_FLAG_RUN:#x}", what="file feature")
    return FileHeader(version, min_reader, file_id, bool(flags & _FLAG_RUN))


def _require(fact: str, expected: bytes, got: bytes, path: str, offset: int) -> None:
    if expected != got:
        raise CorruptError(fact, path=path, offset=offset, expected=_hex(got), got=_hex(expected), remedy="run `fastckpt verify` on it")


def record_header_size(data: bytes, available: int, *, path: str = "", offset: int = 0) -> int:
    """The length of the record header whose first 12 bytes are `data`, checked against the `available` bytes."""
    if len(data) < _PREFIX.size:
        raise CorruptError("truncated inside a record header", path=path, offset=offset + len(data))
    magic, size, tag = _PREFIX.unpack_from(data)
    if magic != _SKIPPABLE or tag != _RECORD:
        zeros = "only zeros, which is what data leaves that never reached the disk" if not any(data[:12]) else data[:12].hex(" ")
        raise CorruptError("no record header", path=path, offset=offset, expected=f"{_SKIPPABLE.hex(' ')} … FCKR", got=zeros)
    if not 13 <= size <= MAX_HEADER - 8:
        raise CorruptError("record header of an impossible length", path=path, offset=offset + 4, expected=f"13 to {MAX_HEADER - 8}", got=size)
    if 8 + size > available:
        raise CorruptError("truncated inside a record header", path=path, offset=offset + available, expected=f"{8 + size} bytes", got=available)
    return 8 + int(size)


def unpack_record_header(data: bytes, *, path: str = "", offset: int = 0) -> tuple[RecordHeader, bytes, int]:
    """The record header at the start of `data`: its fields, its checksum, its length.

    Raises `CorruptError`; `VersionError` for a codec or a required feature that this reader does not know. Unknown fields
    are skipped: they are how later versions add what an old reader may ignore.
    """
    size = record_header_size(data, len(data), path=path, offset=offset)
    check = data[size - 8 : size]
    _require("record header checksum mismatch", _checksum(data[: size - 8]), check, path, offset)
    try:
        header = _HEADER_DECODER.decode(data[_PREFIX.size : size - 8])
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptError(f"malformed record header ({error})", path=path, offset=offset) from error
    if header.codec not in _CODECS:
        raise VersionError(path, needs=header.codec, supports=", ".join(_CODECS), what="codec")
    if unknown := [name for name in header.requires if name not in _FEATURES]:
        raise VersionError(path, needs=", ".join(unknown), supports=", ".join(_FEATURES) or "none", what="feature")
    return header, check, size


_HEADER_DECODER = msgspec.msgpack.Decoder(RecordHeader)
_TABLE_DECODER = msgspec.msgpack.Decoder(Table)


def unpack_table(data: bytes, header: RecordHeader, *, path: str = "", offset: int = 0) -> Table:
    """The table of a record, checked against its header: checksum, sums, ranges of its own rows, digest where it is whole.

    Raises `CorruptError`. Afterwards the runs sum to at most what the header says, and every row of record 0 is in range.
    """
    _require("table checksum mismatch", _checksum(data), header.table_checksum, path, offset)
    try:
        magic, size, tag = _PREFIX.unpack_from(data)
        if magic != _SKIPPABLE or tag != _TABLE or size != len(data) - 8:
            raise CorruptError("no table", path=path, offset=offset)
        table = _TABLE_DECODER.decode(data[_PREFIX.size :])
    except (msgspec.DecodeError, struct.error, RecursionError) as error:
        raise CorruptError(f"malformed table ({error})", path=path, offset=offset) from error
    if len(table.checksums) != 8 * len(table.distances) or len(table.sizes) != len(table.crcs) or len(table.sizes) % 4 or len(table.runs) % 3:
        raise CorruptError("malformed table (columns of unequal length)", path=path, offset=offset)
    if 0 in _u32(table.sizes):
        raise CorruptError("a chunk of no bytes", path=path, offset=offset)
    if header.base and table.distances:
        raise CorruptError("a base that refers to other records", path=path, offset=offset)
    return table


def check_frame(frame: bytes | memoryview, header: RecordHeader, *, path: str = "", offset: int = 0) -> None:
    """Compare a record's frame with its checksum in the header. Raises `CorruptError`."""
    if zlib.crc32(frame) != header.frame_checksum:
        raise CorruptError(
            "frame checksum mismatch",
            path=path,
            offset=offset,
            expected=f"{header.frame_checksum:08x}",
            got=f"{zlib.crc32(frame):08x}",
            remedy="run `fastckpt verify` on it",
        )


def unpack_content(frame: bytes | memoryview, header: RecordHeader, table: Table, *, path: str = "", offset: int = 0) -> bytes:
    """The content of a record's zstd frame: its new chunks, concatenated, of exactly the lengths and checksums that the table says.

    Raises `CorruptError`; `LimitError` for a window beyond 128 MiB. The declared size is compared before anything is
    allocated, for zstd believes it.
    """
    check_frame(frame, header, path=path, offset=offset)
    expected = sum(_u32(table.sizes))
    try:
        parameters = zstandard.get_frame_parameters(frame)
        if parameters.content_size != expected or not parameters.has_checksum or parameters.dict_id:
            raise CorruptError(
                "the frame's header does not fit the table",
                path=path,
                offset=offset,
                expected=f"{expected} bytes with a checksum",
                got=f"{parameters.content_size} bytes" + ("" if parameters.has_checksum else " without a checksum"),
            )
        if parameters.window_size > _MAX_WINDOW:
            raise LimitError("a zstd window beyond what a reader must accept", limit=_MAX_WINDOW, got=parameters.window_size, path=path)
        content = zstandard.ZstdDecompressor().decompress(frame, max_output_size=max(expected, 1), allow_extra_data=False)
    except MemoryError as error:
        raise LimitError("no memory to decompress it", limit=expected, path=path) from error
    except zstandard.ZstdError as error:
        if "Allocation error" in str(error):  # zstd's text: its bindings have no code
            raise LimitError("no memory to decompress it", limit=expected, path=path) from error
        raise CorruptError(f"the frame does not decompress ({error})", path=path, offset=offset) from error
    if len(content) != expected:
        raise CorruptError(
            "the frame holds another length than it declares", path=path, offset=offset, expected=f"{expected} bytes", got=len(content)
        )
    _check_chunks(memoryview(content), chunk_starts(table), table.crcs, path, offset)
    return content


def unpack_trailer(data: bytes, *, path: str = "", offset: int = 0) -> Trailer:
    """The trailer that `data` is (40 bytes). Raises `CorruptError`."""
    if len(data) != TRAILER_SIZE:
        raise CorruptError("truncated inside a trailer", path=path, offset=offset + len(data))
    magic, size, tag, record, header_checksum, check, mark = _TRAILER_LAYOUT.unpack(data)
    if magic != _SKIPPABLE or size != TRAILER_SIZE - 8 or tag != _TRAILER or mark != END_MARK:
        raise CorruptError("no trailer", path=path, offset=offset, expected=f"{_SKIPPABLE.hex(' ')} … FCKE … PKCF", got=data.hex(" "))
    _require("trailer checksum mismatch", _checksum(data[:28]), check, path, offset)
    return Trailer(record, header_checksum)


def check_lengths(header: RecordHeader, header_size: int, available: int, *, max_size: int = MAX_MESSAGE, path: str = "", offset: int = 0) -> int:
    """The length of the whole record, checked against the `available` bytes and the message against `max_size`.

    Raises `CorruptError` (truncated), `LimitError`. Nothing of the record beyond its header needs to be read for it.
    """
    length = header_size + header.table + header.frame + TRAILER_SIZE
    if length > available:
        raise CorruptError("truncated inside a record", path=path, offset=offset + available, expected=f"{length} bytes", got=available)
    if header.message > max_size:
        raise LimitError(
            "the message is larger than `max_size`", limit=max_size, got=header.message, path=path, remedy="raise `max_size` if you trust the file"
        )
    return length


def unpack_record(data: bytes, file: FileHeader, *, max_size: int = MAX_MESSAGE, path: str = "", offset: int = 0) -> tuple[RecordHeader, bytes]:
    """The header and the message of a base record, which is all that `data` holds.

    Checked in this order: lengths, header, file id, trailer, table, sums, frame, chunks, digest. Raises `CorruptError`,
    `LimitError`, `VersionError`.
    """
    header, check, size = unpack_record_header(data, path=path, offset=offset)
    length = check_lengths(header, size, len(data), max_size=max_size, path=path, offset=offset)
    if header.file != file.file_id:
        raise CorruptError("a record of another file", path=path, offset=offset, expected=_hex(file.file_id), got=_hex(header.file))
    if length < len(data):
        raise CorruptError("bytes after the record", path=path, offset=offset + length, expected=f"{length} bytes", got=len(data))
    trailer = unpack_trailer(data[length - TRAILER_SIZE :], path=path, offset=offset + length - TRAILER_SIZE)
    if trailer != (length, check):
        raise CorruptError("a trailer of another record", path=path, offset=offset + length - TRAILER_SIZE)
    table = unpack_table(data[size : size + header.table], header, path=path, offset=offset + size)
    frame_at = size + header.table

    def content(_: int) -> bytes:
        return unpack_content(memoryview(data)[frame_at : length - TRAILER_SIZE], header, table, path=path, offset=offset + frame_at)

    return header, assemble(header, table, [table], [chunk_starts(table)], content, path=path, offset=offset + size)


def chunk_starts(table: Table) -> list[int]:
    """Where each new chunk of a record begins in its content, and where the last one ends."""
    return [0, *accumulate(_u32(table.sizes))]


def assemble(
    header: RecordHeader,
    table: Table,
    tables: Sequence[Table],
    starts: Sequence[list[int]],
    content: Callable[[int], bytes],
    *,
    path: str = "",
    offset: int = 0,
) -> bytes:
    """The message of a record, from the chunks that its table names.

    `tables` are those of the records that it touches, its own first, `starts` where their chunks begin; `content(i)` is what unpacking the
    i-th of their frames gives. All sums are checked before the first frame is asked for; each is asked for once, and, unless
    together they are small, only while its chunks are copied.

    Raises `CorruptError` (rows out of range, sums, digest), `LimitError`.
    """
    rows: list[tuple[int, int, int]] = []  # record, and from where to where in its content
    crcs: list[bytes] = []
    length = count = 0
    for record, first, chunks in zip(table.runs[0::3], table.runs[1::3], table.runs[2::3], strict=True):
        if record >= len(tables) or not chunks or first + chunks >= len(starts[record]):
            raise CorruptError("a row of the table is out of range", path=path, offset=offset, got=(record, first, chunks))
        start, end = starts[record][first], starts[record][first + chunks]
        rows.append((record, start, end))
        crcs.append(tables[record].crcs[4 * first : 4 * (first + chunks)])
        length += end - start
        count += chunks
        if length > header.message or count > MAX_CHUNKS:
            break
    if length != header.message:
        raise CorruptError("the table's rows do not sum to the message", path=path, offset=offset, expected=f"{header.message} bytes", got=length)
    if count > MAX_CHUNKS:
        raise LimitError("a message of too many chunks", limit=MAX_CHUNKS, got=count, path=path)
    most, stored = most_stored(header.message), sum(ends[-1] for ends in starts)
    if stored > most:
        raise LimitError("the frames are out of proportion to the message", limit=most, got=stored, path=path)
    _require("message digest mismatch", digest(b"".join(crcs)), header.digest, path, offset)
    own = content(0)
    if rows == [(0, 0, len(own))]:
        return own
    if stored <= max(_AT_ONCE, 2 * length):
        # In one go, which copies the message once: frames that are small enough are held together.
        views = {record: memoryview(content(record) if record else own) for record in {record for record, _, _ in rows}}
        return b"".join([views[record][start:end] for record, start, end in rows])
    out, places = bytearray(length), dict[int, list[tuple[int, int, int]]]()
    position = 0
    for record, start, end in rows:
        places.setdefault(record, []).append((position, start, end))
        position += end - start
    for record, parts in places.items():
        view = memoryview(content(record) if record else own)
        for position, start, end in parts:
            out[position : position + end - start] = view[start:end]
    return bytes(out)


def most_stored(message: int) -> int:
    """How many bytes the frames that a message of this length touches may declare together: a reader refuses more."""
    return _FRAMES_PER_MESSAGE * message + _FRAMES_SLACK


def _check_chunks(view: memoryview, starts: list[int], crcs: bytes, path: str, offset: int) -> None:
    for (start, end), crc in zip(pairwise(starts), _u32(crcs), strict=True):
        if zlib.crc32(view[start:end]) != crc:
            raise CorruptError("chunk checksum mismatch", path=path, offset=offset, expected=f"{crc:08x}", got=f"{zlib.crc32(view[start:end]):08x}")
