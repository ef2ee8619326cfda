"""Sticky chunks: what a message shares with the one before it, bytes in, bytes out.

A message is a list of chunks of about 4 KiB. Each lies in the frame of the record that introduced it, its *owner*. `diff` finds
the chunks of the previous message that are still there, in their order and each of them whole, and cuts only what is between
them into new ones. So boundaries stick to content: an insertion moves what follows without touching it, and what does not
change is never copied, hashed or compressed again. Equal inputs give equal chunks: bytes decide, never time or chance.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

__all__ = ["CHUNK", "EMPTY", "Chunks", "Difference", "diff"]

#: The size that chunks aim at, in bytes, unless the caller says otherwise.
CHUNK: Final = 4096
# A longer message (than 256 MB) has larger chunks, not more of them. A step writes the same up to there, whatever the size of the state; with
# a quarter of it, it would write a third more at 100 MB, and finding that would take 9.0 ms rather than 9.3.
_MOST_CHUNKS = 1 << 16

# What finding chunks may cost in one difference, in bytes searched: so many times the larger message, which counts at least so
# much. Everything else it does is charged at what could be searched in the time: a call, and searches that are slow for the bytes
# that are searched: an anchor of few distinct bytes, or one that was found at a wrong place, so that the bytes repeat themselves.
_BUDGET, _LEAST = 16, 1 << 18
_CALL, _POOR_COST, _RECURRING_COST = 1 << 12, 32, 12
_ANCHOR = 256
_POOR, _POOR_WINDOW = 8, 1 << 16  # fewer distinct bytes are poor: they turn up everywhere, so only what is near counts
_SMALL = 32  # smaller chunks turn up everywhere too
_HOT = 8  # chunks at either end of a gap that are looked at one by one
_STRETCH = 64  # chunks compared at once: so few that halving them afterwards finds them in the processor's cache

# Chunks that are kept: the first, the last + 1, and their shift (their place in the new message less that in the old one).
_Kept = tuple[int, int, int]


class Chunks(NamedTuple):
    """A message and the chunks that it consists of; never changed once made."""

    message: bytes | bytearray
    #: Size and CRC-32 of every chunk, in the order of the message.
    sizes: array[int]
    crcs: array[int]
    #: Where they are: owner, first chunk in the owner's frame, count; no run goes on where the one before it ends.
    runs: list[tuple[int, int, int]]

    def checksums(self) -> bytes:
        """The CRC-32s of all chunks, u32 little-endian each: what the message's digest is made of."""
        return _little_endian(self.crcs.tobytes())


#: The chunks of no message: the difference from it is a base.
EMPTY: Final = Chunks(b"", array("I"), array("I"), [])


class Difference(NamedTuple):
    """A message as chunks of earlier records and new ones: all that the table and the frame of its record are made of."""

    #: The new message; the next one is compared with it, once its record is in the file.
    chunks: Chunks
    #: The other owners that the message touches. None: the record is a base.
    touched: list[int]
    #: Three numbers a run: 0 for this record or k for the k-th of `touched`, first chunk in it, count.
    runs: list[int]
    #: Sizes and CRC-32s of the new chunks, u32 little-endian each, and the new chunks, concatenated.
    sizes: bytes
    crcs: bytes
    content: bytes | bytearray
    #: The size that the new chunks aimed at.
    chunk: int


def diff(old: Chunks, new: bytes | bytearray, owner: int, *, chunk: int = CHUNK) -> Difference:
    """`new` in terms of `old`. `owner` is the int by which the caller names the record that will hold the new chunks.

    `diff(EMPTY, new, owner)` makes a base. So does any other one that would leave the message in more than four times the chunks
    that its length asks for (`touched` is empty then).

    Raises `ValueError` for a `chunk` below 64, or an `owner` that has chunks in `old` already.
    """
    if chunk < 64:
        raise ValueError(f"a chunk of {chunk} bytes is too small, the least is 64")
    if owner in {run[0] for run in old.runs}:
        raise ValueError(f"{owner} owns chunks of the previous message already")
    aim = max(chunk, -(-len(new) // _MOST_CHUNKS))
    made = _Cutter(_Matcher(old, new, aim), owner).cut()
    if made.touched and _crowded(made.chunks.sizes, new, aim, 4):
        return diff(EMPTY, new, owner, chunk=chunk)
    return made


def _crowded(chunks: array[int], message: bytes | bytearray, aim: int, times: int) -> bool:
    """Whether there are more chunks than `times` what the length of the message asks for, give or take a few."""
    return len(chunks) > times * (len(message) // aim) + 16


def _little_endian(numbers: bytes) -> bytes:
    """u32 in the file's order, of ones in the machine's."""
    if sys.byteorder == "little":
        return numbers
    swapped = array("I", numbers)
    swapped.byteswap()
    return swapped.tobytes()


class _Matcher:
    """Finds chunks of the old message in the new one. `start[i]` is where chunk i begins in the old message."""

    def __init__(self, old: Chunks, new: bytes | bytearray, aim: int) -> None:
        self.old, self.new, self.aim = old, new, aim
        self.view = memoryview(old.message)
        self.start = list(accumulate(old.sizes, initial=0))
        self.budget = _BUDGET * max(len(new), len(old.message), _LEAST)

    def kept(self) -> list[_Kept]:
        """What is kept, in order; the first begins both messages and the last ends them, and these two may be empty."""
        last, limit = len(self.old.sizes), len(self.new)
        i = self.forward(0, last, 0, limit)
        kept, position = [(0, i, 0)], self.start[i]
        # What the ends share needs no search. Between them, each place where the messages part is looked at in its turn.
        shift = limit - self.start[last]
        end = self.backward(i, last, shift, position)
        limit = self.start[end] + shift
        while i < end and position < limit and (found := self.resume(i, end, position, limit)):
            k, at = found
            first, i = self.backward(i, k, at, position), self.forward(k, end, at, limit)
            kept.append((first, i, at))
            position = self.start[i] + at
        return [*kept, (end, last, shift)]

    def forward(self, i: int, end: int, shift: int, limit: int) -> int:
        """The first chunk from i on, at most `end`, that is not at `shift`, or not wholly before `limit`, in the new message.

        Ever longer stretches are compared, then the one that differs is halved. `startswith` is one memcmp, without a copy.
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
        """The first of the chunks before `end`, at least i, that are all at `shift`, from `limit` on, in the new message."""
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

    def resume(self, i: int, end: int, position: int, limit: int) -> tuple[int, int] | None:
        """A chunk of i to `end` - 1 that is in the new message between `position` and `limit`, and its shift; None: none is.

        The messages part at chunk i and `position`. What is near comes first, in windows that double on both sides.
        """
        start, aim = self.start, self.aim
        shift, window, seen, searched = position - start[i], 4 * aim, i, position
        following = [k for k in (i + 1, i + 2) if k < end] + [i]
        self.budget -= 24 * _CALL  # for what is done about a gap besides
        while self.budget > 0:
            reach, near = min(bisect_right(start, start[i] + window), end), window <= 16 * aim
            ahead = range(seen + 1, reach)
            # Most changes keep the length, or insert or remove a little;
            for k in ahead[:: max(1, len(ahead) // 16)]:
                self.budget -= _CALL // 4
                at = start[k] + shift
                if start[k + 1] + shift <= limit and self.new.startswith(self.view[start[k] : start[k + 1]], at):
                    return k, shift
                if near and (at := self.find(k, max(position, at - aim // 2), start[k + 1] + shift + aim // 2, limit)) >= 0:
                    return k, at - start[k]
            # or much was inserted,
            for k in following:
                if (at := self.find(k, max(position, searched - _ANCHOR), position + window, limit)) >= 0:
                    return k, at - start[k]
            # or much removed.
            for k in (*ahead[-1:], *ahead[len(ahead) // 2 : -1][:1]):
                if (at := self.find(k, position, position + window + window // 4, limit)) >= 0:
                    return k, at - start[k]
            if window >= max(limit - position, start[end] - start[i]):
                break
            seen, searched, window = max(seen, reach - 1), position + window, 2 * window
        return None

    def find(self, k: int, low: int, high: int, limit: int) -> int:
        """Where chunk k is in the new message, from `low` on and before `high`, all of it before `limit`; -1: nowhere.

        First by its anchor, for setting up a search takes the longer the more is searched for; then, unless that was the
        place, by all of it.
        """
        chunk = self.view[self.start[k] : self.start[k + 1]]
        anchor, high, cost, fee = chunk[:_ANCHOR], min(high, limit), 1, _CALL
        if len(chunk) < _SMALL:
            return -1
        if len(set(anchor[::5])) < _POOR:
            cost, high = _POOR_COST, min(high, low + _POOR_WINDOW)
        for needle in (anchor, chunk):
            self.budget -= fee
            high = min(high, low + self.budget // cost)
            if high - low < len(needle):
                break
            at = self.new.find(needle, low, high)
            self.budget -= cost * ((high if at < 0 else at) - low)
            if at < 0 or at + len(chunk) > limit:
                break
            if self.new.startswith(chunk, at):
                return at
            low, cost, fee = at + 1, max(cost, _RECURRING_COST), 8 * _CALL
        return -1


class _Cutter:
    """Makes the difference: kept chunks are copied as whole runs, and what is between them is cut."""

    def __init__(self, matcher: _Matcher, owner: int) -> None:
        self.matcher, self.owner = matcher, owner
        self.ends = list(accumulate(run[2] for run in matcher.old.runs))
        self.sizes, self.crcs, self.new_sizes, self.new_crcs = array("I"), array("I"), array("I"), array("I")
        self.runs: list[tuple[int, int, int]] = []

    def cut(self) -> Difference:
        """The difference."""
        matcher, start, new, position = self.matcher, self.matcher.start, memoryview(self.matcher.new), 0
        content: list[memoryview] = []
        kept = matcher.kept()
        seams = self.seams(kept)
        for first, last, shift in self.absorb(kept):
            if (begin := start[first] + shift) > position:
                self.add(new, [position, *seams[bisect_right(seams, position) : bisect_left(seams, begin)], begin])
                content.append(new[position:begin])
            if first < last:
                self.keep(first, last)
            position = start[last] + shift
        numbers = {self.owner: 0}
        flat: list[int] = []
        for owner, first, count in self.runs:
            flat += (numbers.setdefault(owner, len(numbers)), first, count)
        columns = _little_endian(self.new_sizes.tobytes()), _little_endian(self.new_crcs.tobytes())
        return Difference(
            Chunks(matcher.new, self.sizes, self.crcs, self.runs),
            list(numbers)[1:],
            flat,
            *columns,
            matcher.new if sum(map(len, content)) == len(matcher.new) else b"".join(content),
            matcher.aim,
        )

    def absorb(self, kept: list[_Kept]) -> list[_Kept]:
        """Without the small chunks at a gap that has grown and is as large as they are: they become part of it.

        So what grows by a little at a time is rewritten at 1, 2, 4, 8 … times the size: seldom enough, and in few chunks.
        """
        start, sizes, most = self.matcher.start, self.matcher.old.sizes, self.matcher.aim // 2
        result: list[_Kept] = []
        for first, last, shift in kept:
            while True:
                before = result[-1] if result else (0, 0, 0)
                gap = start[first] + shift - start[before[1]] - before[2]
                room = min(gap, most - gap) if shift > before[2] else 0
                if before[0] < before[1] and sizes[before[1] - 1] <= room:
                    result.pop()
                    if before[0] < before[1] - 1:
                        result.append((before[0], before[1] - 1, before[2]))
                elif first < last and sizes[first] <= room:
                    first += 1  # noqa: PLW2901 (the range shrinks)
                else:
                    break
            if first < last:
                result.append((first, last, shift))
        return [*result, (len(sizes), len(sizes), kept[-1][2])]

    def seams(self, kept: list[_Kept]) -> list[int]:
        """Where to cut inside of new bytes: around what differs from the old ones that they replace.

        What changes once often changes again, and then only the piece in the middle has to be written.
        """
        matcher, new, view, start = self.matcher, self.matcher.new, self.matcher.view, self.matcher.start
        unit, seams = max(1, matcher.aim // 256), list[int]()
        if _crowded(matcher.old.sizes, new, matcher.aim, 2):
            return seams
        for (_, first, before), (last, _, after) in pairwise(kept):
            i, j, begin, end = first, last, start[first] + before, start[last] + after
            left, right, cuts = begin, end, set[int]()
            # Chunks that changed in place, from either side: they end, or begin, as they did.
            while i < min(j, first + _HOT):
                upto = left + start[i + 1] - start[i]
                short = min(unit, upto - left)
                if upto > right or not new.startswith(view[start[i + 1] - short : start[i + 1]], upto - short):
                    break
                cuts |= self.around(start[i], start[i + 1], left, upto)
                i, left = i + 1, upto
            while max(i, last - _HOT) < j:
                upto = right - start[j] + start[j - 1]
                if upto < left or not new.startswith(view[start[j - 1] : min(start[j - 1] + unit, start[j])], upto):
                    break
                cuts |= self.around(start[j - 1], start[j], upto, right)
                j, right = j - 1, upto
            if i < j:
                cuts |= self.around(start[i], start[j], left, right)
            seams += sorted(cuts - {begin, end})
        return seams

    def around(self, low: int, high: int, begin: int, end: int) -> set[int]:
        """Where to cut the new bytes from `begin` to `end`, which replace the old ones from `low` to `high`; both ends included."""
        new, view, aim, unit = self.matcher.new, self.matcher.view, self.matcher.aim, max(1, self.matcher.aim // 256)
        head, tail, count, least = 0, 0, min(high - low, end - begin), aim // 16 + unit
        if count >= least and new.startswith(view[low : low + least], begin):
            head, step = least, aim
            while step >= unit:
                if head + step <= count and new.startswith(view[low + head : low + head + step], begin + head):
                    head += step
                step //= 2
        if count - head >= least and new.startswith(view[high - least : high], end - least):
            tail, step = least, aim
            while step >= unit:
                if head + tail + step <= count and new.startswith(view[high - tail - step : high - tail], end - tail - step):
                    tail += step
                step //= 2
        # A little more than what differs, for it may differ a little more the next time (a counter's carry). And two places
        # that change in one chunk part at once when there is a cut between them: hence one in the middle.
        a = begin + head - unit if head else begin
        b = end - tail + unit if tail else end
        return {begin, a, (a + b) // 2, b, end} if aim // 4 < b - a <= 3 * aim // 2 else {begin, a, b, end}

    def add(self, new: memoryview, places: list[int]) -> None:
        """New chunks from the first to the last of `places`, cut there and, evenly, where that leaves too much."""
        count, aim = len(self.new_sizes), self.matcher.aim
        for low, high in pairwise(places):
            pieces = max(1, (2 * (high - low) + aim) // (2 * aim))
            for begin, end in pairwise([low + (high - low) * n // pieces for n in range(pieces + 1)]):
                self.new_sizes.append(end - begin)
                self.new_crcs.append(zlib.crc32(new[begin:end]))
        self.sizes += self.new_sizes[count:]
        self.crcs += self.new_crcs[count:]
        self.runs.append((self.owner, count, len(self.new_sizes) - count))

    def keep(self, i: int, j: int) -> None:
        """Old chunks i to j - 1: slices, however many they are."""
        old, a, b = self.matcher.old, bisect_right(self.ends, i), bisect_left(self.ends, j)
        self.sizes += old.sizes[i:j]
        self.crcs += old.crcs[i:j]
        owner, first, count = old.runs[a]
        skipped = i - self.ends[a] + count
        if a == b:
            self.run(owner, first + skipped, j - i)
            return
        self.run(owner, first + skipped, count - skipped)
        self.runs += old.runs[a + 1 : b]
        owner, first, count = old.runs[b]
        self.runs.append((owner, first, j - self.ends[b] + count))

    def run(self, owner: int, first: int, count: int) -> None:
        """One more run, joined to the last one where it goes on: what was between them may be gone."""
        if self.runs and (last := self.runs[-1])[0] == owner and last[1] + last[2] == first:
            self.runs[-1] = (owner, last[1], last[2] + count)
        else:
            self.runs.append((owner, first, count))
