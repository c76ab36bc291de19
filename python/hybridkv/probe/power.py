# SPDX-License-Identifier: Apache-2.0
"""What so many comparisons can show: which rate of false hits would have been seen, and with what probability."""

from __future__ import annotations

import math


def chance(rate: float, compared: int, wanted: int = 1) -> float:
    """Return the probability that at least `wanted` of so many independent hits are false, at a rate of false hits."""
    if rate >= 1:
        return 1.0 if compared >= wanted else 0.0
    fewer = sum(
        math.comb(compared, k) * rate**k * (1 - rate) ** (compared - k) for k in range(min(wanted, compared + 1))
    )
    return max(0.0, 1.0 - fewer)


def rate_seen(compared: int, *, seen_share: float = 1.0, wanted: int = 1, probability: float = 0.95) -> float | None:
    """Return the least rate of false hits that so many comparisons show with a probability.

    Parameters
    ----------
    compared : int
        Hits that were compared with a computation from scratch.
    seen_share : float
        Share of false hits that change an answer by more than the tolerance.
    wanted : int
        False hits it takes.
    probability : float
        Of seeing as many.

    Returns
    -------
    float or None
        In (0, 1]; None where not even a service whose every hit is false would be told with that probability.
    """
    if compared < wanted or chance(min(1.0, seen_share), compared, wanted) < probability:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if chance(middle * seen_share, compared, wanted) >= probability:
            high = middle
        else:
            low = middle
    return high
