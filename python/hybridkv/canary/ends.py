# SPDX-License-Identifier: Apache-2.0
"""Logits at both ends of what follows a reused prefix, and how far two of them are apart.

Wrong windows act on the first token behind the prefix and fade, since a window is flushed; wrong tails and history stay
and grow. So one end alone misses a kind of fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hybridkv.errors import ArgumentError

End = Literal["first", "last"]

ENDS: tuple[End, End] = ("first", "last")
"""The first and the last token that were computed behind the reused prefix."""


@dataclass(frozen=True, eq=False)
class Ends:
    """Logits of one answer at both ends of its suffix.

    Parameters
    ----------
    first, last : array
        [[vocabulary]] of any float dtype, as the engine made them: behind the first token that follows the prefix, and
        behind the last one of the prompt. Where only one token follows they are the same.

    Raises
    ------
    ArgumentError
        No row of numbers, or two of different length or dtype.
    """

    first: npt.NDArray[Any]
    last: npt.NDArray[Any]

    def __post_init__(self) -> None:
        for end in ENDS:
            object.__setattr__(self, end, _row(end, getattr(self, end)))
        if (self.first.shape, self.first.dtype) != (self.last.shape, self.last.dtype):
            expected = f"{self.first.dtype} [[{self.first.size}]], as the first"
            raise ArgumentError("last", expected, f"{self.last.dtype} [[{self.last.size}]]")

    @classmethod
    def of(cls, logits: Any) -> Ends:
        """Take both ends of the logits of a whole suffix.

        Parameters
        ----------
        logits : array
            [[tokens, vocabulary]], one row for each token behind the prefix, in order.

        Raises
        ------
        ArgumentError
            No such rows.
        """
        rows = np.asarray(logits)
        if rows.ndim != 2 or rows.shape[0] == 0:
            raise ArgumentError("logits", "[[tokens, vocabulary]] of at least one token", f"shape {rows.shape}")
        return cls(rows[0].copy(), rows[-1].copy())


@dataclass(frozen=True)
class Difference:
    """How far a reused answer is from a recomputed one.

    Attributes
    ----------
    first, last : float
        Largest change of a logit at either end; infinite where a logit of one of them is no number.
    equal_bits : bool
        Whether every bit is the same at both ends.
    other_token : tuple of str
        The ends at which the greedy token is another. It is reported and decides nothing: most faults change none.
    """

    first: float
    last: float
    equal_bits: bool
    other_token: tuple[End, ...] = ()

    @property
    def largest(self) -> float:
        """The larger of both ends."""
        return max(self.first, self.last)


def difference(reused: Ends, recomputed: Ends) -> Difference:
    """Compare two answers to the same prompt.

    Parameters
    ----------
    reused, recomputed : Ends
        With the prefix reused, and from scratch.

    Raises
    ------
    ArgumentError
        No Ends, or of different vocabulary or dtype.
    """
    for field, ends in (("reused", reused), ("recomputed", recomputed)):
        if not isinstance(ends, Ends):
            raise ArgumentError(field, "Ends", type(ends).__name__)
    if (reused.first.shape, reused.first.dtype) != (recomputed.first.shape, recomputed.first.dtype):
        expected = f"{reused.first.dtype} [[{reused.first.size}]], as the reused"
        raise ArgumentError("recomputed", expected, f"{recomputed.first.dtype} [[{recomputed.first.size}]]")
    pairs = [(getattr(reused, end), getattr(recomputed, end)) for end in ENDS]
    first, last = (_distance(*pair) for pair in pairs)
    equal = all(one.tobytes() == other.tobytes() for one, other in pairs)
    tokens = tuple(end for end, (one, other) in zip(ENDS, pairs, strict=True) if one.argmax() != other.argmax())
    return Difference(first, last, equal, tokens)


def _row(field: str, logits: Any) -> npt.NDArray[Any]:
    row = np.asarray(logits)
    if row.ndim != 1 or row.size == 0 or not np.issubdtype(row.dtype, np.floating):
        raise ArgumentError(field, "logits [[vocabulary]] of a float dtype", f"{row.dtype}, shape {row.shape}")
    return row


def _distance(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Largest change; tokens that both sides rule out (minus infinity) count as equal."""
    ours, theirs = one.astype(np.float64), other.astype(np.float64)
    if np.isnan(ours).any() or np.isnan(theirs).any():
        return float("inf")
    with np.errstate(invalid="ignore"):
        apart = np.abs(ours - theirs)
    apart[ours == theirs] = 0.0
    return float(apart.max())
