"""A stream as its writer knows it: the last message, and what the next one can be told by."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Final

import msgspec

from . import container, delta
from .container import RecordHeader, Table
from .reader import MAX_TOUCHED

__all__ = ["RECORDS_PER_BASE", "Stream"]

#: DESIGN, "bases": since the last base the records may reach so many times its bytes, and their tables so many.
RECORDS_PER_BASE: Final = 4
_TABLES_PER_BASE = 1


class Stream:
    """A stream's last message, where its chunks lie in the file, and what its records since the last base come to."""

    def __init__(self) -> None:
        self.chunks = delta.EMPTY
        # Of each record that the chunks lie in, by its offset: the header checksum, and the bytes that its frame holds.
        self.owners: dict[int, tuple[bytes, int]] = {}
        self.base_bytes = self.base_message = self.records = self.tables = 0

    def pack(
        self, message: bytes | bytearray, header: RecordHeader, offset: int, *, base: bool = False, unsynced: int = 0, chunk: int, level: int
    ) -> tuple[delta.Difference, container.Record]:
        """The record of the stream's next message, for this place in the file; once it is there, `appended` is to be told.

        With `base` it refers to no other record. `header` is asked for what a record keeps wherever it lies.
        """
        change = delta.diff(delta.EMPTY if base else self.chunks, message, offset, chunk=chunk)
        if change.touched and self._outgrown(change, len(message)):
            change = delta.diff(delta.EMPTY, message, offset, chunk=chunk)
        table = Table(
            [offset - owner for owner in change.touched],
            b"".join(self.owners[owner][0] for owner in change.touched),
            change.runs,
            change.sizes,
            change.crcs,
        )
        digest = container.digest(change.chunks.checksums())
        header = msgspec.structs.replace(header, base=not change.touched, digest=digest, unsynced=unsynced, chunk=change.chunk)
        return change, container.pack_record(header, table, change.content, level=level)

    def _outgrown(self, change: delta.Difference, message: int) -> bool:
        """Whether the next record is to be a base: what bounds a restore and the size of the file."""
        # What a reader refuses must never be written: a message that shrank far below what the frames it lies in hold.
        stored = len(change.content) + sum(self.owners[owner][1] for owner in change.touched)
        return (
            stored > container.most_stored(message)
            or self.records >= RECORDS_PER_BASE * self.base_bytes
            or self.tables >= _TABLES_PER_BASE * self.base_bytes
            or len(change.touched) > MAX_TOUCHED
            or message >= 2 * self.base_message
        )

    def appended(self, change: delta.Difference, offset: int, record: container.Record) -> None:
        """The record is in the file: the next one may refer to it."""
        # More owners than are needed first: an interrupt between these lines must leave no chunk without its own.
        own = {offset: (record.header_checksum, len(change.content))}
        self.owners = {**self.owners, **own}
        self.chunks = change.chunks
        self.owners = {**{owner: self.owners[owner] for owner in change.touched}, **own}
        if record.header.base:
            self.base_bytes, self.base_message, self.records, self.tables = record.size, record.header.message, 0, 0
        else:
            self.records += record.size
            self.tables += record.header.table

    def moved(self, where: Callable[[int], int | None]) -> Stream | None:
        """The stream in another file, in which `where` says where a record of this one lies; None if one that it needs is not there."""
        places = {owner: where(owner) for owner in self.owners}
        there = {owner: place for owner, place in places.items() if place is not None}
        if len(there) < len(places):
            return None
        other = copy(self)
        other.owners = {there[owner]: known for owner, known in self.owners.items()}
        other.chunks = self.chunks._replace(runs=[(there[owner], first, count) for owner, first, count in self.chunks.runs])
        return other
