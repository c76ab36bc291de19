# SPDX-License-Identifier: Apache-2.0
"""What so many comparisons can show: which rate of false hits would have been seen, and with what probability."""

from __future__ import annotations

from hybridkv.binomial import chance


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
