# SPDX-License-Identifier: Apache-2.0
"""Delta debugging: the smallest part of a list that still shows something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def minimal(items: Sequence[_Item], shows: Callable[[list[_Item]], bool], *, most_calls: int = 10_000) -> list[_Item]:
    """Return a part of a list, in its order, that shows something, and none of whose items can be left out.

    Parameters
    ----------
    items : sequence
        All of them together show it.
    shows : callable
        Of a part; asked for the same part twice it must say the same.
    most_calls : int, optional
        After which the smallest part so far is returned.

    Notes
    -----
    The algorithm ddmin of Zeller and Hildebrandt: parts, then what remains without a part, in ever smaller parts.
    Where one item does it, it is found by halving.
    """
    left, pieces, calls = list(items), 2, 0
    while len(left) > 1 and calls < most_calls:
        size = -(-len(left) // pieces)
        parts = [left[at : at + size] for at in range(0, len(left), size)]
        rests = [left[:at] + left[at + size :] for at in range(0, len(left), size)] if len(parts) > 2 else []
        for number, smaller in enumerate((*parts, *rests)):
            calls += 1
            if shows(smaller):
                left = smaller
                pieces = 2 if number < len(parts) else max(2, len(parts) - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(left), 2 * pieces)
    return left
