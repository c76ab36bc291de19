# SPDX-License-Identifier: Apache-2.0
"""How far two answers to the same tokens are apart: position by position, so that both ends of a suffix are seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridkv.probe.answers import Answer, Top


@dataclass(frozen=True)
class Difference:
    """Distances in nats of two answers.

    Attributes
    ----------
    by_position : tuple of (int, float)
        (tokens behind the boundary at which the position stands, largest change of a log-probability there), in order.
    first_other_token : int or None
        Number of the first generated token that is another; None where all are the same. A weak detector: most faults
        change no greedy token.
    """

    by_position: tuple[tuple[int, float], ...]
    first_other_token: int | None = None

    @property
    def largest(self) -> float:
        """Over all positions; 0 where none could be compared."""
        return max((change for _, change in self.by_position), default=0.0)

    @property
    def near(self) -> float:
        """At the position next to the boundary, where a wrong window shows most."""
        return self.by_position[0][1] if self.by_position else 0.0

    @property
    def far(self) -> float:
        """At the last position that could be compared, where a wrong tail or history still shows."""
        return self.by_position[-1][1] if self.by_position else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "largest": self.largest,
            "near": self.near,
            "far": self.far,
            "by_position": [[distance, change] for distance, change in self.by_position],
            "first_other_token": self.first_other_token,
        }


def difference(one: Answer, other: Answer, *, total: int, boundary: int, skip: int = 0) -> Difference:
    """Compare two answers to the same prompt.

    Parameters
    ----------
    one, other : Answer
        Where `other` is the one that was computed from scratch.
    total : int
        Tokens of the prompt.
    boundary : int
        Tokens from where it went on: distances count from here.
    skip : int
        Generated tokens of `other` that the prompt of `one` holds already.

    Returns
    -------
    Difference
        Of positions with the same tokens before them: the prompt's where both sides give any, then the generated ones
        up to the first that differs, which is still compared.
    """
    found: list[tuple[int, float]] = []
    for at, (ours, theirs) in enumerate(zip(one.prompt_top, other.prompt_top, strict=False)):
        if at > boundary and ours is not None and theirs is not None:
            found.append((at - boundary, change(ours, theirs, one.asked)))
    diverged = None
    ours_too = zip(one.tokens, one.top, strict=True)
    theirs_too = zip(other.tokens[skip:], other.top[skip:], strict=True)
    for at, ((token, ours), (wanted, theirs)) in enumerate(zip(ours_too, theirs_too, strict=False)):
        found.append((total + at - boundary, change(ours, theirs, one.asked)))
        if token != wanted:
            diverged = at
            break
    return Difference(tuple(found), diverged)


def change(ours: Top, theirs: Top, asked: int) -> float:
    """Return the largest change of a log-probability between two lists of the likeliest tokens.

    A token that only one list has is at most as likely as the least of the other: the change is at least that far. The
    token of a prompt stands in a list however unlikely it is, beyond those that were asked for; it bounds nothing.
    """
    least_ours, least_theirs = (sorted(top.values(), reverse=True)[:asked][-1] for top in (ours, theirs))
    shared = [abs(ours[token] - theirs[token]) for token in ours.keys() & theirs.keys()]
    gone = [value - least_ours for token, value in theirs.items() if token not in ours]
    new = [value - least_theirs for token, value in ours.items() if token not in theirs]
    return max(0.0, *shared, *gone, *new)
