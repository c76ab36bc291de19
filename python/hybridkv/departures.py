# SPDX-License-Identifier: Apache-2.0
"""Why a page went: what the core remembers of it, in words."""

from __future__ import annotations

from dataclasses import dataclass

CAUSES = (
    "",
    "stranded",
    "superseded",
    "tail",
    "history",
    "asked",
    "expired",
    "displaced",
    "withdrawn",
    "damaged",
    "aborted",
    "lost",
    "unplaced",
    "unpromised",
    "reset",
)
"""Causes in the order of the core's numbers."""

EVICTED = frozenset({"stranded", "superseded", "tail", "history"})
"""Those of pages that made room."""

DESCRIPTORS = "descriptors"
"""In place of a group: room was made in the table of keys."""

_FOR_DESCRIPTORS = 16

_WORDS = {
    "stranded": "evicted as the first to go: nothing could reach it any more",
    "superseded": "evicted: no prompt resumed there any more",
    "tail": "evicted, although a next prompt might have resumed there",
    "history": "evicted as the oldest",
    "asked": "taken by a call of evict()",
    "expired": "slid out of its window, at a length whose states are not kept",
    "displaced": "displaced by a fifth tip after the same unit",
    "withdrawn": "withdrawn when the identity changed",
    "damaged": "taken out of use: it did not hold the bytes that were published",
    "aborted": "given up by its writer, or by a load that failed, before it was published",
    "lost": "lost with its writer before it was published",
    "unplaced": "written, and not findable: the table of keys had no room",
    "unpromised": "written, and not findable: a reader beside it was not promised its page",
    "reset": "forgotten when the cache was reset",
}


@dataclass(frozen=True, slots=True)
class Departure:
    """Why a page went, as far as it is remembered.

    Attributes
    ----------
    cause : str
        stranded, superseded, tail or history (it made room: see the order of eviction), asked, expired, displaced,
        withdrawn, damaged, aborted, lost, unplaced, unpromised or reset.
    made_room_for : str or None
        The group whose pool was short, or "descriptors"; None where it did not go to make room.
    age_s : float
        How long ago, in seconds, to 10 ms.
    """

    cause: str
    made_room_for: str | None
    age_s: float

    def __str__(self) -> str:
        return f"{_WORDS[self.cause]}{self._whom()}, {age_text(self.age_s)} ago"

    def _whom(self) -> str:
        if self.made_room_for is None:
            return ""
        whom = "keys" if self.made_room_for == DESCRIPTORS else f"pages of {self.made_room_for!r}"
        return f", for {whom}"


def departure(raw: tuple[int, int, int], groups: list[str]) -> Departure | None:
    """Return what the core remembers; None where that is nothing."""
    cause, made_for, age_ms = raw
    if cause == 0:
        return None
    name = None
    if CAUSES[cause] in EVICTED:
        name = DESCRIPTORS if made_for == _FOR_DESCRIPTORS else groups[made_for]
    return Departure(CAUSES[cause], name, age_ms / 1000)


def age_text(seconds: float) -> str:
    """Return a length of time for people, to the second beyond ten."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 600:
        return f"{seconds:.0f} s"
    if seconds < 36_000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
