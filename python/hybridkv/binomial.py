# SPDX-License-Identifier: Apache-2.0
"""What counts of independent trials show: chances, and bounds of a rate that hold for any number of trials."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

_STEPS = 60  # halvings: beyond what a float tells apart


class Interval(NamedTuple):
    """A rate, bounded from both sides.

    Attributes
    ----------
    low, high : float
        In [0, 1]. Each bound alone is wrong with a probability of at most ``(1 - confidence) / 2``.
    confidence : float
        That both hold.
    """

    low: float
    high: float
    confidence: float


def chance(rate: float, compared: int, wanted: int = 1) -> float:
    """Return the probability of at least so many events in independent trials.

    Parameters
    ----------
    rate : float
        Probability of the event in one trial, in [0, 1].
    compared : int
        Trials.
    wanted : int
        Events, at least.
    """
    if wanted <= 0:
        return 1.0
    if wanted > compared or rate <= 0:
        return 0.0
    if rate >= 1:
        return 1.0
    # The side of few terms, each in logarithms: a binomial coefficient of 10,000 trials is no float.
    if wanted <= compared // 2:
        return min(1.0, max(0.0, 1.0 - _sum_of_terms(rate, compared, 0, wanted)))
    return min(1.0, _sum_of_terms(rate, compared, wanted, compared + 1))


def _sum_of_terms(rate: float, trials: int, first: int, last: int) -> float:
    """Return the probability of ``first`` to ``last - 1`` events."""
    start = math.lgamma(trials + 1) - math.lgamma(first + 1) - math.lgamma(trials - first + 1)
    start += first * math.log(rate) + (trials - first) * math.log1p(-rate)
    counts = np.arange(first, last - 1, dtype=np.float64)
    steps = np.log((trials - counts) / (counts + 1)) + (math.log(rate) - math.log1p(-rate))
    return float(np.exp(np.concatenate([[start], start + np.cumsum(steps)])).sum())


def least_rate(events: int, trials: int, confidence: float) -> float:
    """Return the lower bound of a rate: a smaller one would give as many events with less than 1 - confidence."""
    if events == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if chance(middle, trials, events) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def most_rate(events: int, trials: int, confidence: float) -> float:
    """Return the upper bound of a rate: a larger one would give as few events with less than 1 - confidence.

    Without any event and at a confidence of 0.95 it is close to 3 / trials (the rule of three).
    """
    if events >= trials:
        return 1.0
    if events == 0:
        return float(-math.expm1(math.log1p(-confidence) / trials))
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if 1 - chance(middle, trials, events + 1) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def interval(events: int, trials: int, confidence: float) -> Interval:
    """Return the interval of Clopper and Pearson, which is never too short, whatever the rate is.

    Without trials it is [0, 1].
    """
    each_side = (1 + confidence) / 2
    if trials == 0:
        return Interval(0.0, 1.0, confidence)
    return Interval(least_rate(events, trials, each_side), most_rate(events, trials, each_side), confidence)
