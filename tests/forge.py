"""A second writer of the format, made from FORMAT.md alone, that can lie: every checksum is right, the content is what a test says.

It shares no code with the product, so it is also a witness that the specification suffices to write a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import zstandard

SKIPPABLE = b"\x5c\x2a\x4d\x18"
FILE_ID = bytes(range(100, 116))
OMIT = object()


def checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def skippable(payload: bytes) -> bytes:
    return SKIPPABLE + struct.pack("<I", len(payload)) + payload


def file_header(*, version: int = 1, min_reader: int = 1, flags: int = 0, file_id: bytes = FILE_ID) -> bytes:
    body = skippable(b"FCKP" + struct.pack("<HH16sII", version, min_reader, file_id, flags, 0) + bytes(8))[:-8]
    return body + checksum(body)


def compress(content: bytes, *, level: int = 1, declare: bool = True, checked: bool = True) -> bytes:
    return zstandard.ZstdCompressor(level=level, write_checksum=checked, write_content_size=declare).compress(content)


def raw_frame(content: bytes) -> bytes:
    """A valid zstd frame that holds `content` as it is (RFC 8878: single segment, content size, checksum, raw blocks)."""
    blocks = [content[i : i + (1 << 17)] for i in range(0, len(content), 1 << 17)] or [b""]
    body = b"".join(struct.pack("<I", (n == len(blocks) - 1) | len(block) << 3)[:3] + block for n, block in enumerate(blocks))
    return b"\x28\xb5\x2f\xfd\xa4" + struct.pack("<I", len(content)) + body + compress(content)[-4:]


@contextlib.contextmanager
def raw_frames() -> Iterator[None]:
    """What the product writes inside is not compressed, so that a frame holds the zeros of its message."""
    fake = SimpleNamespace(**{name: getattr(zstandard, name) for name in dir(zstandard) if not name.startswith("_")})
    fake.ZstdCompressor = lambda **options: SimpleNamespace(compress=raw_frame)
    with mock.patch("fastckpt.container.zstandard", fake):
        yield


def record(
    message: bytes = b"\xc0",
    *,
    header: dict[str, Any] | None = None,
    table: list[Any] | None = None,
    table_bytes: bytes | None = None,
    content: bytes | None = None,
    frame: bytes | None = None,
    trailer_length: int | None = None,
) -> bytes:
    """A base record of `message`, with whatever is given changed and every checksum made right for it.

    `header` replaces (or, with OMIT, drops) keys of the header's map; `table` replaces the table's five columns.
    """
    content = message if content is None else content
    if table is None:
        table = [[], b"", [0, 0, 1], struct.pack("<I", len(content)), struct.pack("<I", zlib.crc32(content))]
    table_frame = skippable(b"FCKT" + (msgspec.msgpack.encode(table) if table_bytes is None else table_bytes))
    frame = compress(content) if frame is None else frame
    fields: dict[str, Any] = {
        "file": FILE_ID,
        "sequence": 1,
        "kind": "state",
        "base": True,
        "message": len(message),
        "digest": checksum(table[4]) if isinstance(table[4], bytes) else bytes(8),
        "table": len(table_frame),
        "table_checksum": checksum(table_frame),
        "frame": len(frame),
        "frame_checksum": zlib.crc32(frame),
        "zeros": False,
        "time": 1_767_225_600_000_000_000,
    }
    fields.update(header or {})
    payload = b"FCKR" + msgspec.msgpack.encode({key: value for key, value in fields.items() if value is not OMIT})
    head = SKIPPABLE + struct.pack("<I", len(payload) + 8) + payload
    length = len(head) + 8 + len(table_frame) + len(frame) + 40
    tail = SKIPPABLE + struct.pack("<I4sQ8s", 32, b"FCKE", length if trailer_length is None else trailer_length, checksum(head))
    return head + checksum(head) + table_frame + frame + tail + checksum(tail) + b"PKCF"


def single(message: bytes = b"\xc0", **lies: Any) -> bytes:
    """A whole file with one record."""
    return file_header() + record(message, **lies)


def header_checksum(data: bytes) -> bytes:
    """By which a table names the record that `data` is."""
    return data[-20:-12]


def crc(data: bytes) -> bytes:
    return struct.pack("<I", zlib.crc32(data))


def size(data: bytes) -> bytes:
    return struct.pack("<I", len(data))


def difference(before: list[bytes], old: int, new: bytes, *, table: dict[int, Any] | None = None, header: dict[str, Any] | None = None) -> bytes:
    """A record behind the records `before`, whose message is the one chunk of the record with that index, and then `new`.

    `table` replaces columns of its table by their number, `header` as in `record`.
    """
    there = before[old]
    chunk = zstandard.ZstdDecompressor().decompress(there[there.index(b"\x28\xb5\x2f\xfd") : -40], max_output_size=1 << 20)
    columns = [[sum(map(len, before[old:]))], header_checksum(there), [1, 0, 1, 0, 0, 1], size(new), crc(new)]
    for number, value in (table or {}).items():
        columns[number] = value
    fields = {
        "sequence": len(before) + 1,
        "base": False,
        "message": len(chunk) + len(new),
        "digest": checksum(crc(chunk) + crc(new)),
        **(header or {}),
    }
    return record(chunk + new, header=fields, table=columns, content=new)


def run(*records: bytes) -> bytes:
    """A whole run's file."""
    return file_header(flags=1) + b"".join(records)
