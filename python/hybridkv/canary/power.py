# SPDX-License-Identifier: Apache-2.0
"""What a sample can show: how many comparisons a fault of some rate takes, and what so many clean ones exclude."""

from __future__ import annotations

import math
from numbers import Real

from hybridkv.arguments import count, finite_number, integer
from hybridkv.binomial import Interval, chance, interval
from hybridkv.errors import ArgumentError

_MOST_SAMPLES = 10**9


def fraction(field: str, value: object, *, zero: bool = False, one: bool = True) -> float:
    """Return a share of 1; of its ends only those that are allowed.

    Raises
    ------
    ArgumentError
        Naming the field.
    """
    expected = f"a number in {'[' if zero else '('}0, 1{']' if one else ')'}"
    number = finite_number(field, value, expected)
    if not 0 <= number <= 1 or (number == 0 and not zero) or (number == 1 and not one):
        raise ArgumentError(field, expected, value)
    return number


def detection(fault_rate: float, samples: int, *, acting_share: float = 1.0, wanted: int = 1) -> float:
    """Return the probability that a canary sees a fault.

    Parameters
    ----------
    fault_rate : float
        Share of hits that are faulted, in [0, 1].
    samples : int
        Hits that are compared, drawn at random among all.
    acting_share : float, optional
        Share of faulted hits that change the compared logits by more than the threshold. A dropped tail changes
        nothing at an aligned length, a wrong window nothing behind a long suffix: see :func:`acting_share`.
    wanted : int, optional
        Mismatches that it takes, such as those of a breaker.

    Raises
    ------
    ArgumentError
        Naming the field.

    Examples
    --------
    >>> round(detection(0.01, 299), 3), round(detection(0.01, 299, acting_share=0.5), 3)
    (0.95, 0.777)
    """
    rate = fraction("fault_rate", fault_rate, zero=True) * fraction("acting_share", acting_share, zero=True)
    return chance(rate, _samples("samples", samples), count("wanted", wanted))


def samples_needed(fault_rate: float, confidence: float = 0.95, *, acting_share: float = 1.0, wanted: int = 1) -> int:
    """Return how many hits have to be compared so that a fault is seen with a probability.

    Parameters
    ----------
    fault_rate : float
        Share of hits that are faulted, in (0, 1].
    confidence : float, optional
        The probability, in (0, 1).
    acting_share, wanted
        As in :func:`detection`.

    Returns
    -------
    int
        The least number. Of a canary that samples a share ``rate`` of all hits it takes ``1 / rate`` times as many
        hits.

    Raises
    ------
    ArgumentError
        Naming the field; a fault so rare that 10^9 samples do not show it.

    Examples
    --------
    >>> samples_needed(0.01), samples_needed(0.01, acting_share=0.5), samples_needed(0.01, wanted=2)
    (299, 598, 473)
    """
    rate = fraction("fault_rate", fault_rate) * fraction("acting_share", acting_share)
    wanted, confidence = count("wanted", wanted), fraction("confidence", confidence, one=False)
    high = wanted
    while chance(rate, high, wanted) < confidence:
        high *= 2
        if high > _MOST_SAMPLES:
            raise ArgumentError("fault_rate", f"a rate that {_MOST_SAMPLES} samples show", fault_rate)
    low = wanted - 1
    while high - low > 1:
        middle = (low + high) // 2
        if chance(rate, middle, wanted) >= confidence:
            high = middle
        else:
            low = middle
    return high


def mismatch_interval(mismatches: int, samples: int, confidence: float = 0.95) -> Interval:
    """Bound the rate of mismatches among all hits by those of a sample.

    Parameters
    ----------
    mismatches, samples : int
        Of so many compared hits, drawn at random among all.
    confidence : float, optional
        In (0, 1).

    Returns
    -------
    Interval
        Of Clopper and Pearson: never too short. Without samples it is [0, 1].

    Raises
    ------
    ArgumentError
        Naming the field.

    Examples
    --------
    >>> [round(bound, 4) for bound in mismatch_interval(0, 300)[:2]]
    [0.0, 0.0122]
    """
    of = _samples("samples", samples)
    seen = integer("mismatches", mismatches, f"an integer in [0, {of}]")
    if not 0 <= seen <= of:
        raise ArgumentError("mismatches", f"an integer in [0, {of}]", mismatches)
    return interval(seen, of, fraction("confidence", confidence, one=False))


def acting_share(distances: object, threshold: float) -> float:
    """Return the share of measured faulted hits that change logits by more than a threshold.

    Parameters
    ----------
    distances : sequence of float
        Largest change of a logit at either end, one for each faulted hit; infinite where it is no number.
    threshold : float
        Of the comparison.

    Raises
    ------
    ArgumentError
        No distances, or something that is none.
    """
    expected = "distances, 0 or more, at least one"
    try:
        found = [float(d) for d in distances if isinstance(d, Real)]  # type: ignore[attr-defined]
    except TypeError:
        raise ArgumentError("distances", expected, type(distances).__name__) from None
    if not found or any(math.isnan(d) or d < 0 for d in found):
        raise ArgumentError("distances", expected, found)
    limit = finite_number("threshold", threshold, "a finite number")
    return sum(d > limit for d in found) / len(found)


def _samples(field: str, value: object) -> int:
    expected = f"a number of comparisons, 0 to {_MOST_SAMPLES}"
    number = integer(field, value, expected)
    if not 0 <= number <= _MOST_SAMPLES:
        raise ArgumentError(field, expected, value)
    return number
