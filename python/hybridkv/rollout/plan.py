# SPDX-License-Identifier: Apache-2.0
"""What a rollout goes through, and what it takes to go on, or back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hybridkv.arguments import count, members
from hybridkv.canary.power import fraction, samples_needed
from hybridkv.errors import ArgumentError

_MOST_SHARES = 32


@dataclass(frozen=True)
class RolloutPlan:
    """Shares of requests that reuse, one stage after another: none (shadow), each of ``shares``, all.

    Parameters
    ----------
    shares : tuple of float, optional
        Ascending, each in (0, 1): the stages between shadow and full.
    samples : int, optional
        Comparisons that a stage takes at least.
    rate_bound : float, optional
        A stage is passed only where the upper bound of the rate of mismatches, of this stage's samples alone, is at or
        below it.
    confidence : float, optional
        With which that bound holds.
    rollback_mismatches : int, optional
        So many within ``window_samples`` comparisons, and it goes back to shadow.
    window_samples : int, optional
    most_rollbacks : int, optional
        After so many it stays in shadow until somebody resets it. Each one before doubles the samples that a stage
        takes.

    Raises
    ------
    ArgumentError
        Naming the field; so few samples that not even clean ones meet the bound.
    """

    shares: tuple[float, ...] = (0.01, 0.1, 0.5)
    samples: int = 300
    rate_bound: float = 0.01
    confidence: float = 0.95
    rollback_mismatches: int = 2
    window_samples: int = 500
    most_rollbacks: int = 3

    def __post_init__(self) -> None:
        expected = f"ascending shares in (0, 1), at most {_MOST_SHARES}"
        if isinstance(self.shares, (str, bytes)):
            raise ArgumentError("plan.shares", expected, self.shares)
        found = members("plan.shares", self.shares, expected)
        made = tuple(fraction(f"plan.shares[{n}]", share, one=False) for n, share in enumerate(found))
        if len(made) > _MOST_SHARES or any(a >= b for a, b in pairwise(made)):
            raise ArgumentError("plan.shares", expected, made)
        object.__setattr__(self, "shares", made)
        for field in ("samples", "rollback_mismatches", "window_samples", "most_rollbacks"):
            count(f"plan.{field}", getattr(self, field))
        fraction("plan.rate_bound", self.rate_bound, one=False)
        fraction("plan.confidence", self.confidence, one=False)
        if self.rollback_mismatches > self.window_samples:
            expected = f"at most window_samples, {self.window_samples}"
            raise ArgumentError("plan.rollback_mismatches", expected, self.rollback_mismatches)
        try:
            needed = samples_needed(self.rate_bound, self.confidence)
        except ArgumentError as error:  # so rare that nothing shows it
            raise ArgumentError("plan.rate_bound", error.expected, self.rate_bound) from None
        if self.samples < needed:
            expected = f"at least {needed}: fewer clean ones do not exclude a rate of {self.rate_bound}"
            raise ArgumentError("plan.samples", expected, self.samples)

    @property
    def stages(self) -> tuple[float, ...]:
        """Share of requests that reuse in each stage: shadow's 0.0 first, full's 1.0 last."""
        return (0.0, *self.shares, 1.0)

    def name(self, stage: int) -> str:
        """Return the name of a stage: "shadow", "canary 1%" and the like, "full"."""
        if stage == 0:
            return "shadow"
        share = self.stages[stage]
        return "full" if share == 1.0 else f"canary {share:.4g}" if share < 1e-4 else f"canary {100 * share:.4g}%"
