# SPDX-License-Identifier: Apache-2.0
"""Counters of a canary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridkv.binomial import Interval
from hybridkv.canary.breaker import BreakerState
from hybridkv.canary.power import mismatch_interval


@dataclass(frozen=True)
class CanaryMetrics:
    """What a canary saw, as one consistent reading.

    ``sampled = compared + abandoned + pending``, always; trials and shadow samples are among them.

    Attributes
    ----------
    hits, hits_tokens : int
        Reusable verdicts of the cache since the canary watches it, withheld ones included, and their usable tokens.
    sampled : int
        Hits that were drawn.
    compared : int
        Of these, those whose answers were compared.
    abandoned : int
        Those that were dropped, or given up: the request failed, or was cancelled.
    pending : int
        Those that are not settled yet.
    trials : int
        Sampled hits that were let through by a breaker that is half open.
    mismatches : int
        Comparisons that differ at either end.
    mismatches_by_end : mapping of str to int
        "first" and "last": those that differ there. One that differs at both counts in both.
    other_token : mapping of str to int
        Comparisons whose greedy token is another, by end. It decides nothing.
    blamed : mapping of str to int
        Mismatches by the scope that they are laid to, as "group:swa"; one of two groups counts in both. "model:..." are
        those of which nothing nearer is known.
    trips : mapping of str to int
        How often the breaker of a scope tripped.
    states : mapping of str to BreakerState
        By scope.
    resets : int
        Breakers that were closed by hand.
    withheld, withheld_tokens : mapping of str to int
        Hits that a breaker withheld, by the scope that is off, and their tokens.
    shadow_hits, shadow_hits_tokens : int
        Hits that were decided and not used, since the canary, or the request, is in shadow.
    evicted_pages : int
        Pages of mismatched prefixes that were retired.
    false_alarm_bound : float
        Most of what share of benign comparisons counts as a mismatch.
    """

    hits: int
    hits_tokens: int
    sampled: int
    compared: int
    abandoned: int
    pending: int
    trials: int
    mismatches: int
    mismatches_by_end: Mapping[str, int]
    other_token: Mapping[str, int]
    blamed: Mapping[str, int]
    trips: Mapping[str, int]
    states: Mapping[str, BreakerState]
    resets: int
    withheld: Mapping[str, int]
    withheld_tokens: Mapping[str, int]
    shadow_hits: int
    shadow_hits_tokens: int
    evicted_pages: int
    false_alarm_bound: float

    @property
    def mismatch_rate(self) -> float:
        """Mismatches of all comparisons. 0.0 without any; see :meth:`interval`."""
        return self.mismatches / self.compared if self.compared else 0.0

    def interval(self, confidence: float = 0.95) -> Interval:
        """Bound the rate of mismatches among all hits; see :func:`.mismatch_interval`."""
        return mismatch_interval(self.mismatches, self.compared, confidence)
