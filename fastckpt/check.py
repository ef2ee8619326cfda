"""The check of a save: that what was encoded comes back as what it was, and how often to look."""

from __future__ import annotations

import time
from typing import Any, Final, Literal

from .codec import Codec, Encoded, different, unreadable
from .errors import CorruptError, EncodeError, LimitError, SchemaError

__all__ = ["Checker"]

# The share of the time spent saving that checking may take, besides saves 1, 2, 4, 8, … and bases.
_SHARE: Final = 0.1


class Checker:
    """Compares saves with the live state, and knows which ones: all, none, or ("auto") as many as cost little.

    `verified` is the newest step that was compared and saved. Times are kept apart for `where`: the thread that saves and the
    one that writes, each of which gives a tenth of its own time.
    """

    def __init__(self, codec: Codec, mode: Literal["auto", "always", "never"]) -> None:
        self.mode = mode
        self.verified: int | None = None
        self._codec = codec
        self._saves = 0
        self._inconclusive = False
        self._saving = {"caller": 0.0, "writer": 0.0}
        self._checking = dict(self._saving)
        self._last = 0.0

    def saved(self, seconds: float, where: str) -> None:
        """Count what was spent on saving, without checks."""
        self._saving[where] += seconds

    def due(self, where: str) -> bool:
        """Whether the next save is to be compared; asked once a save."""
        self._saves += 1
        if self.mode != "auto":
            return self.mode == "always"
        return self._inconclusive or self._saves & (self._saves - 1) == 0 or self._affordable(where)

    def due_at_once(self) -> bool:
        """Whether that must be in the caller's thread: the first save, and after one whose live state had changed meanwhile."""
        return self.mode == "always" or (self.mode == "auto" and (self._saves == 1 or (self._inconclusive and self._affordable("caller"))))

    def _affordable(self, where: str) -> bool:
        return self._checking[where] + self._last <= _SHARE * self._saving[where]

    def compare(self, state: Any, encoded: Encoded, where: str) -> bool:
        """Decode and compare with the live state; False when that was changed meanwhile, so that nothing can be said.

        Raises `EncodeError` for what would come back different.
        """
        began = time.perf_counter()
        changed: BaseException | None = None
        try:
            found = self._codec.compare(state, encoded)
            if found is None:
                self._inconclusive = False
                return True
            # A type that would be lost encodes as what it comes back as; where the bytes differ, the state was changed meanwhile.
            if self._alike(found.saved, found.loaded):
                raise self._explained(different(found))
        except EncodeError as error:
            if error.__cause__ is None:
                raise
            raise self._explained(error) from error.__cause__  # what no load can read is that whatever the state is by now
        except RuntimeError as error:  # a dict changed its size while it was walked
            changed = error
        finally:
            self._count(began, where)
        if self.mode == "always":
            remedy = "hold a lock around changes and saves"
            raise EncodeError("another thread changed the state while it was checked", remedy=remedy) from changed
        self._inconclusive = True
        return False

    @staticmethod
    def _alike(saved: Any, loaded: Any) -> bool:
        try:
            return Codec().encode(saved) == Codec().encode(loaded)
        except EncodeError:
            return False

    def read_back(self, encoded: Encoded, where: str = "") -> None:
        """Decode what was encoded, without a state to compare with. Raises `EncodeError` for what no load could read."""
        began = time.perf_counter()
        try:
            self._codec.decode(*encoded)
        except (SchemaError, LimitError, CorruptError) as error:
            raise self._explained(unreadable(error)) from error
        finally:
            self._count(began, where)

    def _count(self, began: float, where: str) -> None:
        if where:
            self._last = time.perf_counter() - began
            self._checking[where] += self._last

    def _explained(self, error: EncodeError) -> EncodeError:
        last = "no step was checked before" if self.verified is None else f"the last step that was checked is {self.verified}"
        error.remedy = f"{error.remedy}; {last}" if error.remedy else last
        error.__dict__["last_verified"] = self.verified
        return error
