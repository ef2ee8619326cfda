"""A second writer of the format, made from FORMAT.md alone, that can lie: every checksum is right, the content is what a test says.

It shares no code with the product, so it is also a witness that the specification suffices to write a file.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Any

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
