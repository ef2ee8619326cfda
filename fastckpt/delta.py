"""Sticky chunks: what a message shares with the one before it, bytes in, bytes out.

A message is a list of chunks of about 4 KiB. Each of them lies in the frame of the record that introduced it, its *owner*; owners
are whatever ints the caller names its records by. `diff` finds the chunks of the previous message that are still there, in
their order and each of them whole, and cuts only what lies between them into new ones. So boundaries stick to content: an
insertion moves what follows without touching it, and a chunk that does not change is never copied, hashed or compressed again.

Everything is decided by the bytes alone, never by time or chance, so equal inputs give equal chunks.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

__all__ = ["CHUNK", "EMPTY", "Chunks", "Difference", "diff", "gather"]

#: The size that chunks aim at, in bytes, unless the caller says otherwise.
CHUNK: Final = 4096
# A message is about this many chunks at most, whatever its length: the chunks grow instead.
_MOST_CHUNKS = 16_384
# How many bytes are searched at most, as a multiple of the larger message; see `_Matcher.find` for what a search costs.
_BUDGET = 24
_FEE = 1024  # what setting up a search costs, in bytes that could be searched meanwhile
_POOR, _POOR_COST, _POOR_WINDOW = 8, 32, 1 << 16  # fewer distinct bytes than this: searching is slow, and finds the wrong place
_ANCHOR = 256
_PROBES = 16
_MARGIN = 16
_STRETCH = 64


class Chunks(NamedTuple):
    """A message and the chunks that it consists of: where each lies, its size and its CRC-32. Never changed once made."""

    message: bytes
    #: Of every chunk of the message, in order.
    sizes: array[int]
    crcs: array[int]
    #: (owner, first chunk in the owner's frame, count), in the order of the message; adjoining ones are merged.
    runs: list[tuple[int, int, int]]

    def checksums(self) -> bytes:
        """The CRC-32s of all chunks, u32 little-endian each: what the message's digest is made of."""
        return _little(self.crcs)


#: The chunks of no message: a difference from it is a base.
EMPTY: Final = Chunks(b"", array("I"), array("I"), [])


class Difference(NamedTuple):
    """A message as chunks of earlier records and new ones: what a record's table and frame are made of."""

    #: The new message; the next one is compared with it, once this one is in the file.
    chunks: Chunks
    #: The other records that the message touches; empty: the record is a base.
    touched: list[int]
    #: Flat, three numbers a run: 0 for this record or k for the k-th of `touched`, first chunk in it, count.
    runs: list[int]
    #: Sizes and CRC-32s of the new chunks, u32 little-endian each, and the new chunks themselves, concatenated.
    sizes: bytes
    crcs: bytes
    content: bytes
    #: The size that was aimed at, and how many bytes were searched for chunks that had moved.
    chunk: int
    searched: int


def diff(old: Chunks, new: bytes, owner: int, *, chunk: int = CHUNK) -> Difference:
    """`new` in terms of `old`; `owner` names the record that will hold the new chunks, and owns none of the old ones.

    `diff(EMPTY, new, owner)` makes a base. So does every other one that would leave the message in more than four times as many
    chunks as its length asks for: whether a record is a base is told by `touched` alone.
    """
    if chunk < 64:
        raise ValueError(f"a chunk of {chunk} bytes is too small: expected at least 64")
    aim = max(chunk, -(-len(new) // _MOST_CHUNKS))
    matcher = _Matcher(old, new, aim)
    difference = _Cutter(matcher, owner).cut(matcher.kept())
    if difference.touched and len(difference.chunks.sizes) > 4 * (len(new) // aim) + 16:
        return diff(EMPTY, new, owner, chunk=chunk)
    return difference


def gather(message: bytes, runs: list[tuple[int, int, int]], columns: Mapping[int, tuple[bytes, bytes]]) -> Chunks:
    """The chunks of a message that was read: `columns` has the sizes and CRC-32s (u32 little-endian each) of every owner's frame.

    Raises `IndexError` or `KeyError` when the runs name what is not there, `ValueError` when they do not sum to the message.
    """
    sizes, crcs = array("I"), array("I")
    for owner, first, count in runs:
        for column, data in zip((sizes, crcs), columns[owner], strict=True):
            piece = data[4 * first : 4 * (first + count)]
            if len(piece) != 4 * count:
                raise IndexError(f"record {owner} has no chunks {first} to {first + count - 1}")
            column.frombytes(_swapped(piece))
    if sum(sizes) != len(message):
        raise ValueError(f"the runs sum to {sum(sizes)} bytes, the message has {len(message)}")
    return Chunks(message, sizes, crcs, list(runs))


def _little(numbers: array[int]) -> bytes:
    return _swapped(numbers.tobytes())


def _swapped(data: bytes) -> bytes:
    if sys.byteorder == "little":
        return data
    numbers = array("I", data)
    numbers.byteswap()
    return numbers.tobytes()


class _Matcher:
    """Where chunks of the old message are in the new one.

    A place is told by a *shift*: position in the new message less position in the old. `start[i]` is where chunk i begins.
    """

    def __init__(self, old: Chunks, new: bytes, aim: int) -> None:
        self.old, self.new, self.aim = old, new, aim
        self.view = memoryview(old.message)
        self.start = list(accumulate(old.sizes, initial=0))
        self.budget = _BUDGET * max(len(new), len(old.message))
        self.searched = 0

    def forward(self, i: int, end: int, shift: int, limit: int) -> int:
        """The first chunk, from i on and before `end`, that is not at `shift` and before `limit` in the new message.

        Ever longer stretches are compared; the one that differs is halved. `startswith` is a memcmp that copies nothing.
        """
        start, step, growing = self.start, 1, True
        end = min(end, bisect_right(start, limit - shift) - 1)
        while step and i < end:
            upto = min(i + step, end)
            if self.new.startswith(self.view[start[i] : start[upto]], start[i] + shift):
                i = upto
            else:
                growing = False
            step = min(2 * step, _STRETCH) if growing else step // 2
        return i

    def backward(self, i: int, end: int, shift: int, limit: int) -> int:
        """The first of the chunks just before `end`, none of them before i, that are at `shift` and from `limit` on."""
        start, step, growing = self.start, 1, True
        i = max(i, bisect_left(start, limit - shift))
        while step and i < end:
            upto = max(end - step, i)
            if self.new.startswith(self.view[start[upto] : start[end]], start[upto] + shift):
                end = upto
            else:
                growing = False
            step = min(2 * step, _STRETCH) if growing else step // 2
        return end

    def kept(self) -> list[tuple[int, int, int]]:
        """(first chunk, last + 1, shift) of what is kept, in order, the last one ending both messages (and perhaps empty)."""
        last, limit = len(self.old.sizes), len(self.new)
        i = self.forward(0, last, 0, limit)
        kept = [(0, i, 0)]
        position = self.start[i]
        # What the ends share needs no search. Between them, each place where the messages differ is looked at in its turn.
        shift = limit - self.start[last]
        end = self.backward(i, last, shift, position)
        limit = self.start[end] + shift
        while i < end and position < limit:
            found = self.resume(i, end, position, limit)
            if found is None:
                break
            k, at = found
            first = self.backward(i, k, at, position)
            i = self.forward(k, end, at, limit)
            kept.append((first, i, at))
            position = self.start[i] + at
        kept.append((end, last, shift))
        return kept

    def resume(self, i: int, end: int, position: int, limit: int) -> tuple[int, int] | None:
        """A chunk of i to `end` - 1 that is in the new message between `position` and `limit`, and its shift; None: there is none.

        Chunk i is not at `position`. What is near comes first, in windows that double on both sides.
        """
        start, view, new = self.start, self.view, self.new
        shift, window, looked, seen = position - start[i], 4 * self.aim, position, i
        near = [k for k in (i + 1, i + 2) if k < end] + [i]
        while self.budget > 0:
            reach = min(bisect_right(start, start[i] + window), end)
            ahead = range(seen + 1, reach)
            # Most changes keep the length: what comes after is where it was, and looking at one place costs next to nothing.
            for k in ahead[:: max(1, len(ahead) // 16)]:
                self.budget -= _FEE // 4
                if start[k + 1] + shift <= limit and new.startswith(view[start[k] : start[k + 1]], start[k] + shift):
                    return k, shift
            # Or a little was inserted or removed,
            if window <= 16 * self.aim:
                for k in ahead:
                    if (at := self.find(k, max(position, start[k] + shift - self.aim // 2), start[k + 1] + shift + self.aim // 2, limit)) >= 0:
                        return k, at - start[k]
            # or much inserted,
            for k in near:
                if (at := self.find(k, max(position, looked - _ANCHOR), position + window, limit)) >= 0:
                    return k, at - start[k]
            # or much removed.
            for k in (*ahead[-1:], *ahead[len(ahead) // 2 : -1][:1]):
                if (at := self.find(k, position, position + window + window // 4, limit)) >= 0:
                    return k, at - start[k]
            if window >= max(limit - position, start[end] - start[i]):
                return None
            looked, seen, window = position + window, max(seen, reach - 1), 2 * window
        return None

    def find(self, k: int, low: int, high: int, limit: int) -> int:
        """Where chunk k begins in the new message, from `low` on and before `high`, all of it before `limit`; -1: nowhere.

        Bytes are looked for by the first `_ANCHOR` of the chunk, which is faster than by all of it, unless that finds the
        wrong place.
        """
        begin, size = self.start[k], self.start[k + 1] - self.start[k]
        anchor = self.view[begin : begin + min(size, _ANCHOR)]
        high = min(high, limit)
        cost = 1
        if len(set(anchor[::5])) < _POOR:
            cost, high = _POOR_COST, min(high, low + _POOR_WINDOW)
        chunk = self.view[begin : begin + size]
        for needle, fee in ((anchor, _FEE), (chunk, 4 * _FEE)):
            self.budget -= fee
            high = min(high, low + max(self.budget, 0) // cost)
            if high - low < len(needle):
                return -1
            at = self.new.find(needle, low, high)
            looked = (high if at < 0 else at) - low
            self.searched += looked
            self.budget -= cost * looked
            if at < 0 or at + size > limit:
                return -1
            if self.new.startswith(chunk, at):
                return at
            low = at + 1
        return -1


class _Cutter:
    """Puts a difference together: kept chunks are copied as whole runs, and what lies between them is cut."""

    def __init__(self, matcher: _Matcher, owner: int) -> None:
        self.matcher, self.owner = matcher, owner
        self.ends = list(accumulate(count for _, _, count in matcher.old.runs))
        self.sizes, self.crcs = array("I"), array("I")
        self.runs: list[tuple[int, int, int]] = []
        self.new_sizes, self.new_crcs = array("I"), array("I")

    def cut(self, kept: list[tuple[int, int, int]]) -> Difference:
        matcher, start = self.matcher, self.matcher.start
        new = memoryview(matcher.new)
        content: list[memoryview] = []
        seams = self.seams(kept)
        position = 0
        for first, last, shift in self.absorbed(kept):
            begin = start[first] + shift
            if begin > position:
                self.fresh(new, [position, *seams[bisect_right(seams, position) : bisect_left(seams, begin)], begin])
                content.append(new[position:begin])
            self.keep(first, last)
            position = start[last] + shift
        numbers = {self.owner: 0}
        flat: list[int] = []
        for owner, first, count in self.runs:
            flat += (numbers.setdefault(owner, len(numbers)), first, count)
        chunks = Chunks(matcher.new, self.sizes, self.crcs, self.runs)
        columns = _little(self.new_sizes), _little(self.new_crcs)
        return Difference(chunks, [*numbers][1:], flat, *columns, b"".join(content), matcher.aim, matcher.searched)

    def absorbed(self, kept: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """`kept` without the small chunks that border on a gap at least as large: they go into it.

        So what grows by a little at a time is rewritten in steps of 1, 2, 4, 8 …: a logarithm of times, and as few chunks.
        """
        start, sizes, most = self.matcher.start, self.matcher.old.sizes, self.matcher.aim // 2
        result: list[tuple[int, int, int]] = []
        for first, last, shift in kept:
            while True:
                before = result[-1] if result else (0, 0, 0)
                gap = start[first] + shift - start[before[1]] - before[2]
                room = min(gap, most - gap)
                if before[0] < before[1] and sizes[before[1] - 1] <= room:
                    result[-1] = (before[0], before[1] - 1, before[2])
                    if before[1] - 1 == before[0]:
                        result.pop()
                elif first < last and sizes[first] <= room:
                    first += 1  # noqa: PLW2901
                else:
                    break
            if first < last or last == len(sizes):
                result.append((first, last, shift))
        return result

    def seams(self, kept: list[tuple[int, int, int]]) -> list[int]:
        matcher, aim = self.matcher, self.matcher.aim
        view, new, start = matcher.view, matcher.new, matcher.start
        seams = []
        for (_, i, before), (j, _, after) in pairwise([(0, 0, 0), *kept]):
            low, high, begin, end = start[i], start[j], start[i] + before, start[j] + after
            step, count = aim // 2, min(high - low, end - begin)
            head = tail = 0
            while step >= aim // 64:
                if head + step <= count and new.startswith(view[low + head : low + head + step], begin + head):
                    head += step
                step //= 2
            step, count = aim // 2, count - head
            while step >= aim // 64:
                if tail + step <= count and new.startswith(view[high - tail - step : high - tail], end - tail - step):
                    tail += step
                step //= 2
            if head - _MARGIN >= aim // 8:
                seams.append(begin + head - _MARGIN)
            if tail - _MARGIN >= aim // 8:
                seams.append(end - tail + _MARGIN)
        return seams

    def fresh(self, new: memoryview, places: list[int]) -> None:
        """New chunks between `places`."""
        first, aim = len(self.new_sizes), self.matcher.aim
        for low, high in pairwise(places):
            count = max(1, (2 * (high - low) + aim) // (2 * aim))
            for begin, end in pairwise([low + (high - low) * n // count for n in range(count + 1)]):
                self.new_sizes.append(end - begin)
                self.new_crcs.append(zlib.crc32(new[begin:end]))
        self.sizes += self.new_sizes[first:]
        self.crcs += self.new_crcs[first:]
        self.run(self.owner, first, len(self.new_sizes) - first)

    def keep(self, i: int, j: int) -> None:
        """Old chunks i to j - 1, with as little work for many as for one."""
        if i == j:
            return
        old, ends = self.matcher.old, self.ends
        self.sizes += old.sizes[i:j]
        self.crcs += old.crcs[i:j]
        a, b = bisect_right(ends, i), bisect_left(ends, j)
        owner, first, count = old.runs[a]
        skipped = i - (ends[a] - count)
        self.run(owner, first + skipped, min(j, ends[a]) - i)
        if a < b:
            self.runs += old.runs[a + 1 : b]
            owner, first, count = old.runs[b]
            self.run(owner, first, j - (ends[b] - count))

    def run(self, owner: int, first: int, count: int) -> None:
        """One more run, merged with the last one where it goes on."""
        if self.runs:
            before = self.runs[-1]
            if before[0] == owner and before[1] + before[2] == first:
                self.runs[-1] = (owner, before[1], before[2] + count)
                return
        self.runs.append((owner, first, count))
