# SPDX-License-Identifier: Apache-2.0
"""Which boundaries keep their states: each policy with its bytes and its time, and the one that is worth it.

The policies are those of :class:`~hybridkv.KeepWindows`, and one more that is not, "every token": what a store without
policies does, window rows of every token. Its bytes stand here because it is what the others are measured by.

Times are of hits on a kept prefix. A hit where a prompt or an answer ended finds its record where ends are kept; one
elsewhere resumes by the quickest of: the last record before it and computing the rest, a replay over the history, or
computing all. Elsewhere is 16 lengths spread evenly over the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from hybridkv.cost import Candidate, CostModel
from hybridkv.errors import SpecError
from hybridkv.planner.break_even import layer_count
from hybridkv.planner.load import Load
from hybridkv.planner.sizes import every_token, is_window
from hybridkv.replay_schedule import states_of
from hybridkv.spec import CacheSpec
from hybridkv.windows import ApproximateWindows, KeepWindows

Policy: TypeAlias = KeepWindows | ApproximateWindows

SAMPLES = 16
WORTH = Fraction(1, 20)
"""Where there is room for all, a policy that takes more bytes must save so much of the time."""

RECORD_SHARE = Fraction(1, 4)
"""Records take at most so much of the bytes of history where nobody said what capacity there is."""

TRIANGULAR = "none, triangular"
TOLD = (TRIANGULAR,)
"""Never chosen: no engine that is known runs layers for different tokens."""

_BEYOND = 2**31  # no prefix is so long: a period that leaves the ends alone
_FEWEST, _FACTOR = 4, 4  # periods that are tried: so many steps, and so many times more each


class Room(NamedTuple):
    """What the places below the pools bear.

    Attributes
    ----------
    prefix_bytes : int or None
        For one kept prefix; None: records take at most :data:`RECORD_SHARE` of its history.
    write_bytes : float or None
        For one request; None: not known.
    """

    prefix_bytes: int | None = None
    write_bytes: float | None = None


@dataclass(frozen=True)
class Retention:
    """One policy.

    Attributes
    ----------
    name : str
    call : str
        The policy as it is written; empty of "every token".
    period_tokens : int or None
        Distance of kept boundaries.
    ends : int
        Ends of a prefix that keep a record beside.
    states_bytes_per_token : float
        Kept of states on the way, for each token of the prefix.
    record_bytes : int
        Read at a hit on a record.
    prefix_bytes : int
        Of one kept prefix, history and ends included.
    write_bytes : int
        Written for one request: what is new of history and of states on the way, and the states at its ends.
    recompute_tokens : int
        Most tokens that a hit on stored history computes again, or replays.
    layer_tokens : int
        The same, summed over layers; of a triangular replay about half.
    read_back_share : float
        Of the bytes of states that are written, the part that one hit reads.
    end_s, elsewhere_s, mean_s : float or None
        Seconds of a hit; None of an approximate policy and of "every token", which are told and never chosen.
    share : float
        Part of the prefixes for which there is room, in bytes and in writing.
    expected_s : float or None
        Seconds of a hit, where the prefixes without room are computed.
    exact : bool
    fits : bool
        Whether ``share`` is all.
    chosen : bool
    """

    name: str
    call: str
    period_tokens: int | None
    ends: int
    states_bytes_per_token: float
    record_bytes: int
    prefix_bytes: int
    write_bytes: int
    recompute_tokens: int
    layer_tokens: int
    read_back_share: float
    end_s: float | None
    elsewhere_s: float | None
    mean_s: float | None
    share: float
    expected_s: float | None
    exact: bool
    fits: bool
    chosen: bool = False


def policies_of(spec: CacheSpec, load: Load) -> dict[str, Policy]:
    """Return the policies that can be asked for of a spec, by name.

    Parameters
    ----------
    spec : CacheSpec
    load : Load

    Returns
    -------
    dict of str to KeepWindows or ApproximateWindows
        Without replays where a state is that of the whole prefix, which nothing but computing makes again.
    """
    found: dict[str, Policy] = {"all()": KeepWindows.all()}
    period = _FEWEST * spec.boundary_tokens
    while period < load.kept_tokens:
        found[f"every({period})"] = KeepWindows.every(period)
        period *= _FACTOR
    found["ends alone"] = KeepWindows.every(_BEYOND)
    zero: dict[str, Policy] = {
        "ends, replay": KeepWindows.none(),
        "none, replay": KeepWindows.none(ends=False),
        TRIANGULAR: KeepWindows.none(ends=False, replay="triangular"),
        "none, bounded": KeepWindows.bounded(ends=False),
    }
    for name, policy in zero.items():
        try:
            policy.check(spec)
        except SpecError:
            continue
        found[name] = policy
    return found


def retentions_of(
    spec: CacheSpec, load: Load, cost: CostModel, place: str | None, *, room: Room | None = None
) -> tuple[Retention, ...]:
    """Tell what each policy comes to, and choose one.

    Parameters
    ----------
    spec : CacheSpec
    load : Load
    cost : CostModel
    place : str or None
        Where prefixes are read from, by its name in the model; None: memory.
    room : Room, optional
        Default: nothing is known.

    Returns
    -------
    tuple of Retention
        "every token" first; empty of a spec whose boundaries need no states.
    """
    if not any(spec.boundary_bytes.values()):
        return ()
    history = int(Fraction(spec.bytes_per_token) * load.kept_tokens)
    room = room or Room()
    if room.prefix_bytes is None:
        at_ends = load.ends * sum(spec.boundary_bytes.values())
        room = room._replace(prefix_bytes=history + int(history * RECORD_SHARE) + at_ends)
    found = []
    for name, policy in policies_of(spec, load).items():
        found.append(_retention(spec, name, policy, load, cost, place, room))
    best = _best([one for one in found if one.exact and one.name not in TOLD])
    rows = [Retention(**{**vars(one), "chosen": one is best}) for one in found]
    return (_every_token(spec, load, history, room), *rows)


def _best(found: Sequence[Retention]) -> Retention:
    """Return the one of least expected time; where it leaves room, one of fewer bytes that is about as quick."""
    times = {one.name: one.expected_s for one in found if one.expected_s is not None}
    best = min(found, key=lambda one: (times[one.name], one.prefix_bytes))
    if not best.fits:  # the places are full in any case
        return best
    most = times[best.name] * float(1 + WORTH)
    quick = [one for one in found if one.fits and times[one.name] <= most]
    return min(quick, key=lambda one: (one.prefix_bytes, times[one.name]))


def _retention(
    spec: CacheSpec,
    name: str,
    policy: Policy,
    load: Load,
    cost: CostModel,
    place: str | None,
    room: Room,
) -> Retention:
    kept = policy.kept_bytes(spec, load.kept_tokens)
    step, period = spec.boundary_tokens, policy.period_tokens(spec)
    if period is not None and period > load.kept_tokens:
        period = None
    on_the_way = 0.0 if period is None else kept.states
    ends = load.ends if policy.ends else 0
    states = on_the_way + ends * kept.record
    total = int(Fraction(kept.history) + Fraction(states))
    written = _written(load, Fraction(kept.history) + Fraction(on_the_way), ends * kept.record)
    last = load.kept_tokens // step * step
    again, work = _again(spec, policy, last)
    end_s = elsewhere_s = mean_s = expected_s = None
    fitting = _share(room, total, written)
    if policy.exact:
        end_s = _hit_s(spec, policy, cost, place, last, at_end=policy.ends)
        spread = sorted({max(step, last * n // SAMPLES // step * step) for n in range(1, SAMPLES + 1)})
        times = [_hit_s(spec, policy, cost, place, tokens, at_end=False) for tokens in spread]
        elsewhere_s = sum(times) / len(times)
        mean_s = (1 - load.elsewhere_share) * end_s + load.elsewhere_share * elsewhere_s
        computed = cost.estimate(Candidate(0, layers=layer_count(spec)), last).total_s or 0.0
        expected_s = fitting * mean_s + (1 - fitting) * computed
    return Retention(
        name,
        _call(policy),
        period,
        ends,
        on_the_way / load.kept_tokens,
        kept.record if period is not None or ends else 0,
        total,
        written,
        again,
        work,
        min(1.0, kept.record / states) if states else 0.0,
        end_s,
        elsewhere_s,
        mean_s,
        fitting,
        expected_s,
        policy.exact,
        fitting == 1,
    )


def _call(policy: Policy) -> str:
    """Return the policy as it is written."""
    if isinstance(policy, ApproximateWindows):
        return f"KeepWindows.bounded({_ends(policy)})"
    replay = 'replay="triangular"' if policy.replay == "triangular" else ""
    first = "" if policy.every_tokens is None else str(policy.every_tokens)
    return f"KeepWindows.{policy.retain}({', '.join(filter(None, (first, _ends(policy), replay)))})"


def _ends(policy: Policy) -> str:
    return "" if policy.ends else "ends=False"


def _written(load: Load, growing: Fraction, at_ends: int) -> int:
    return int(growing * (1 - Fraction(load.reused_share))) + at_ends


def _share(room: Room, total: int, written: int) -> float:
    assert room.prefix_bytes is not None
    parts = [room.prefix_bytes / total if total else 1.0]
    if room.write_bytes is not None and written:
        parts.append(room.write_bytes / written)
    return min(1.0, *parts)


def _again(spec: CacheSpec, policy: Policy, last: int) -> tuple[int, int]:
    """Most tokens that a hit computes again with the records of the way alone, and the work of it over layers."""
    layers, step, period = layer_count(spec), spec.boundary_tokens, policy.period_tokens(spec)
    if period is not None:
        tokens = min(period, last + step) - step
        return tokens, tokens * layers
    plan = policy.plans(spec, last)[-1]
    if plan.replay is None:
        return last, last * layers
    return last - plan.resume_tokens, plan.candidate().replay_layer_tokens


def _hit_s(
    spec: CacheSpec,
    policy: Policy,
    cost: CostModel,
    place: str | None,
    tokens: int,
    *,
    at_end: bool,
) -> float:
    """Seconds until states at an aligned length are there, all of a prefix being stored up to it."""
    period = policy.period_tokens(spec)
    records = {tokens} if at_end else set()
    if period is not None:
        records.add(tokens // period * period)
    plans = policy.plans(spec, tokens, sorted(records - {0}))
    ways = [plan.candidate(place, history=place) for plan in plans]
    return cost.choose(ways, tokens).estimates[0].total_s or 0.0


def _every_token(spec: CacheSpec, load: Load, history: int, room: Room) -> Retention:
    """What a store keeps that keeps all window rows as it keeps history, and one state at every boundary."""
    windows = sum((every_token(group) for group in spec.groups if is_window(group)), Fraction(0))
    at_boundaries = sum(spec.boundary_bytes[group.name] for group in states_of(spec) if not is_window(group))
    growth = windows + Fraction(at_boundaries, spec.boundary_tokens)
    record = sum(spec.boundary_bytes.values())
    states = growth * load.kept_tokens
    total, written = history + int(states), _written(load, history + states, 0)
    fitting = _share(room, total, written)
    return Retention(
        "every token",
        "",
        spec.boundary_tokens,
        0,
        float(growth),
        record,
        total,
        written,
        0,
        0,
        min(1.0, float(record / states)) if states else 0.0,
        None,
        None,
        None,
        fitting,
        None,
        True,
        fitting == 1,
    )
