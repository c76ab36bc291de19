# SPDX-License-Identifier: Apache-2.0
"""Restore against recompute: from which bandwidth on, from which length on, and what both take.

With b bytes of history a token, R bytes of a boundary record, a place that reads B bytes a second after l seconds,
and r tokens computed a second, a prefix of t tokens takes::

    restore(t)   = l + (b t + R) / B          recompute(t) = t / r

So history is worth reading only from a place faster than ``b r``; where it is, from the length on at which
``t (1/r - b/B)`` exceeds ``l + R/B``. And a record is worth reading where it saves more tokens than ``r (l + R/B)``.
The times are those of :class:`~hybridkv.CostModel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hybridkv.cost import Candidate, CostModel
from hybridkv.errors import SpecError
from hybridkv.planner.places import Place
from hybridkv.replay_schedule import exact_replay, states_of
from hybridkv.spec import CacheSpec

_MOST_TOKENS = 2**62


@dataclass(frozen=True)
class BreakEven:
    """One place against computing.

    Attributes
    ----------
    place : str
    tokens : int
        The length that the seconds are of: the last boundary of a kept prefix.
    restore_s, recompute_s : float
        Of history and record at that length; of computing all of it.
    record_s : float
        Of the boundary record alone.
    replay_s : float or None
        Of making the states again over history that is there; None where no replay can.
    least_bytes_per_second : float
        A place that reads slower than this is slower than computing, whatever the length.
    least_tokens : int or None
        Shortest prefix that is restored sooner than computed; None: there is none.
    record_tokens : int
        Most tokens whose computing takes no longer than reading a record.
    """

    place: str
    tokens: int
    restore_s: float
    recompute_s: float
    record_s: float
    replay_s: float | None
    least_bytes_per_second: float
    least_tokens: int | None
    record_tokens: int

    @property
    def pays(self) -> bool:
        """Whether a kept prefix of that length is restored sooner than computed."""
        return self.restore_s < self.recompute_s


def break_even(spec: CacheSpec, place: Place, cost: CostModel, tokens: int) -> BreakEven:
    """Compare restoring from a place with computing.

    Parameters
    ----------
    spec : CacheSpec
    place : Place
        Its bandwidth must be in the model under its name.
    cost : CostModel
        With ``tokens_per_second``.
    tokens : int
        Length of a prefix.

    Returns
    -------
    BreakEven
    """
    assert cost.tokens_per_second is not None
    rate = Fraction(cost.tokens_per_second)
    record = sum(spec.boundary_bytes.values())
    growth = Fraction(spec.bytes_per_token)
    layers = layer_count(spec)
    size = int(growth * tokens) + record
    restored = cost.estimate(Candidate(tokens, loads={place.name: size}, layers=layers), tokens)
    computed = cost.estimate(Candidate(0, layers=layers), tokens)
    fixed = Fraction(place.read.latency_s) + record / Fraction(place.read.bytes_per_second)
    gained = 1 / rate - growth / Fraction(place.read.bytes_per_second)  # seconds a token
    least = fixed // gained + 1 if gained > 0 else None
    return BreakEven(
        place.name,
        tokens,
        restored.total_s or 0.0,
        computed.total_s or 0.0,
        place.read.seconds(record),
        _replay_s(spec, cost, tokens),
        float(growth * rate),
        int(least) if least is not None and least < _MOST_TOKENS else None,
        int(fixed * rate) if record else 0,
    )


def layer_count(spec: CacheSpec) -> int:
    """Return the layers that the spec names, at least 1."""
    return len({layer for group in spec.groups for layer in group.layers}) or 1


def _replay_s(spec: CacheSpec, cost: CostModel, tokens: int) -> float | None:
    aligned = tokens // spec.boundary_tokens * spec.boundary_tokens
    if not states_of(spec):
        return None
    try:
        replay = exact_replay(spec, aligned, triangular=False)
    except SpecError:
        return None
    if replay is None:
        return None
    work = Candidate(aligned, replay_layer_tokens=replay.layer_tokens, layers=layer_count(spec))
    return cost.estimate(work, aligned).replay_s
