# SPDX-License-Identifier: Apache-2.0
"""The metrics of a canary: recomputed samples of effective hits, and the breaker that they move."""

from __future__ import annotations

from collections.abc import Mapping

from hybridkv.errors import ArgumentError
from hybridkv.metrics.series import Family, Sample, Series

STATES = ("closed", "open", "half open")
"""Of a breaker; closed: reuse goes on."""

_SAMPLES = Series(
    "hybridkv_canary_samples_total", "counter", "hits", (), "Effective hits that were computed again and compared."
)
_MISMATCHES = Series(
    "hybridkv_canary_mismatches_total", "counter", "hits", ("end",),
    "Of those, the ones that differ at that end of what followed the reused prefix.",
)  # fmt: skip
_TRIPS = Series(
    "hybridkv_canary_trips_total", "counter", "times", ("scope",), "Times that the breaker turned reuse off."
)
_STATE = Series(
    "hybridkv_canary_breaker_state", "gauge", "scopes", ("scope", "state"), "1 for the state that the breaker is in."
)
_SHADOW = Series(
    "hybridkv_canary_shadow_decisions_total", "counter", "requests", ("decision",),
    "Decisions that were made and not used.",
)  # fmt: skip

CANARY_SERIES: tuple[Series, ...] = (_SAMPLES, _MISMATCHES, _TRIPS, _STATE, _SHADOW)
"""Every metric of a canary, in the order of an exposition."""


def canary_families(
    *,
    samples: int,
    mismatches: Mapping[str, int],
    trips: Mapping[str, int],
    states: Mapping[str, str],
    shadow: Mapping[str, int],
) -> tuple[Family, ...]:
    """Return the metrics of a canary, as the ``families()`` of a :class:`Source` gives them.

    Parameters
    ----------
    samples : int
        Effective hits that were compared.
    mismatches : mapping of str to int
        Those that differ, by end; an end without any as well, or its first one shows no increase.
    trips : mapping of str to int
        By scope, such as "group:swa"; those without any as well.
    states : mapping of str to str
        Of the breaker, by scope: one of :data:`STATES`.
    shadow : mapping of str to int
        Decisions that were not used, by what was decided.

    Raises
    ------
    ArgumentError
        Another state.
    """
    for scope, state in states.items():
        if state not in STATES:
            raise ArgumentError("states", f"one of {STATES}", f"{state!r} of {scope}")
    by = [
        (_SAMPLES, [Sample(samples)]),
        (_MISMATCHES, [Sample(count, (end,)) for end, count in mismatches.items()]),
        (_TRIPS, [Sample(count, (scope,)) for scope, count in trips.items()]),
        (_STATE, [Sample(int(now == state), (scope, state)) for scope, now in states.items() for state in STATES]),
        (_SHADOW, [Sample(count, (decision,)) for decision, count in shadow.items()]),
    ]
    return tuple(Family(series, found) for series, found in by if found)
