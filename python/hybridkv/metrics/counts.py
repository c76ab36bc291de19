# SPDX-License-Identifier: Apache-2.0
"""Counters of a cache, as one consistent reading when the cache is idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum

from hybridkv import _core
from hybridkv.graph import EAGER_REASONS
from hybridkv.kinds import REFUSALS, Check, StateKind
from hybridkv.tiers import TierStatus


@dataclass(frozen=True)
class PageCounts:
    """Pages of one pool by what they are; the four sum to its size.

    Attributes
    ----------
    free : int
        Not handed out.
    filling : int
        Being written, or private to a fill.
    held : int
        Pinned, retiring or quarantined.
    cached : int
        Published and pinned by nobody.
    """

    free: int
    filling: int
    held: int
    cached: int


@dataclass(frozen=True)
class MovedCounts:
    """Pages of one kind on their way to a tier, or back.

    Attributes
    ----------
    attempts : int
        Pages that were sent, or asked for.
    successes : int
        Pages that were stored, or verified and published.
    bytes : int
        Bytes of those.
    """

    attempts: int
    successes: int
    bytes: int

    @property
    def success_rate(self) -> float:
        """successes / attempts, those under way among the attempts. 0.0 without attempts."""
        return _ratio(self.successes, self.attempts)


@dataclass(frozen=True)
class StrandedPages:
    """Cached pages of one group that no usable length needs; see :meth:`HybridCache.stranded
    <hybridkv.HybridCache.stranded>`.

    Attributes
    ----------
    pages : int
    bytes : int
        Of those pages, all layers together.
    """

    pages: int
    bytes: int


@dataclass(frozen=True, repr=False)
class Metrics:
    """What happened, by requests and by tokens.

    ``lookups = misses + false_hits + effective_hits + pending + withdrawn``, always, also in tokens: a look-up's
    tokens are those not matched (misses), those matched but not usable (false hits) and those usable
    (effective once released, pending or withdrawn). ``pending`` is 0 when no lease lives.

    Attributes
    ----------
    lookups, misses, effective_hits, pending, withdrawn : int
        Requests; each also with the suffix ``_tokens``.
    false_hits : mapping of Check to mapping of StateKind to int
        Requests of which nothing was usable, by the check that cost most and the kind of its group.
    false_hits_tokens : int
        Tokens matched and not usable, shortfalls of reusable requests included.
    lost_tokens : mapping of Check to mapping of StateKind to int
        The same tokens by check and kind.
    lost_by_code_tokens : mapping of str to int
        The same tokens by ``why.code``: "missing", "expired", "in_tier", ...; "untold" where there was none.
    raced : int
        Matches that had to look again because something changed between check and pin.
    duplicates : int
        Pages that stayed private because another writer of the key was first.
    unplaced : int
        Blocks and tips that could not be found again because the table had no room for them, or because all four tips
        of their unit were pinned.
    tips_displaced : int
        Tips whose place in memory a newer one took: a unit has at most four tips after it. What a tier has of them
        stays.
    leaks : int
        Leases and fills that were dropped unsettled.
    quarantined : int
        Pages whose content is trusted no more: damaged ones (the page itself is handed out again once nobody
        reads it) and those of a leaked fill (kept out of the pool until ``reset``).
    published, retired : int
        Pages.
    staged_to_host_bytes, staged_to_device_bytes : int
        Bytes copied from pools on CUDA devices on their way to the tier, and to them on their way back.
    copy_failures : int
        Records whose copy the device or its driver failed.
    not_admitted : mapping of str to int
        Requests that admission refused, by reason; see :meth:`HybridCache.admit <hybridkv.HybridCache.admit>`.
    eager : mapping of str to int
        By reason (:data:`hybridkv.graph.EAGER_REASONS`). "width": how often a running request went beyond what graphs
        were captured for, see :meth:`HybridCache.set_graph_widths <hybridkv.HybridCache.set_graph_widths>`. The others:
        steps that a topology with this cache sent to run without a graph
        (:meth:`Topology.route <hybridkv.graph.Topology.route>`).
    restores, offloads : mapping of StateKind to MovedCounts
        Pages loaded from the tier and stored in it, by the kind of their group.
    load_failures, store_failures : mapping of str to int
        Records that could not be loaded or stored, by status ("corrupt", "miss", "timeout", ...).
    tier_skew : mapping of str to int
        Look-ups that found nothing to use, by what the tier's records have that this cache's have not: the field that
        differs, as "groups['swa'].format.theta", where the writer's manifest is known to the tier
        (:meth:`Tier.know <hybridkv.Tier.know>`), else "unknown writer". Under "identity.weights" and the like, which
        change every key, stand all misses beside a writer of such a manifest: whether it had the prefix cannot be told.
    pages : mapping of str to PageCounts
        By group.
    states : mapping of StateKind to int
        Units that hold a usable page of the kind (DISK: a record in a tier, which is asked where it lost any), from the
        derived index.

    Notes
    -----
    Its text leaves out whatever is 0, of ``pages`` also what is free; the attributes have all of it.
    """

    lookups: int
    lookups_tokens: int
    misses: int
    misses_tokens: int
    false_hits: Mapping[Check, Mapping[StateKind, int]]
    false_hits_tokens: int
    effective_hits: int
    effective_hits_tokens: int
    pending: int
    pending_tokens: int
    withdrawn: int
    withdrawn_tokens: int
    lost_tokens: Mapping[Check, Mapping[StateKind, int]]
    lost_by_code_tokens: Mapping[str, int]
    raced: int
    duplicates: int
    unplaced: int
    tips_displaced: int
    leaks: int
    quarantined: int
    published: int
    retired: int
    staged_to_host_bytes: int
    staged_to_device_bytes: int
    copy_failures: int
    not_admitted: Mapping[str, int]
    eager: Mapping[str, int]
    restores: Mapping[StateKind, MovedCounts]
    offloads: Mapping[StateKind, MovedCounts]
    load_failures: Mapping[str, int]
    store_failures: Mapping[str, int]
    tier_skew: Mapping[str, int]
    pages: Mapping[str, PageCounts]
    states: Mapping[StateKind, int]

    def __repr__(self) -> str:
        told = ((field.name, getattr(self, field.name)) for field in fields(self))
        return f"Metrics({', '.join(f'{name}={text}' for name, value in told if (text := _nonzero(value)))})"

    @property
    def false_hits_total(self) -> int:
        """Requests of which nothing was usable, over all checks and kinds."""
        return sum(sum(kinds.values()) for kinds in self.false_hits.values())

    @property
    def adds_up(self) -> bool:
        """Whether look-ups are the sum of what became of them, by requests and by tokens.

        Always so when the cache is idle. A reading beside a match may have one of its counts and not yet the other.
        """
        told = self.misses + self.false_hits_total + self.effective_hits + self.pending + self.withdrawn
        tokens = self.misses_tokens + self.false_hits_tokens + self.effective_hits_tokens
        return told == self.lookups and tokens + self.pending_tokens + self.withdrawn_tokens == self.lookups_tokens

    @property
    def hit_rate(self) -> float:
        """(lookups - misses) / lookups: what a prefix-hash rule would report. 0.0 without look-ups."""
        return _ratio(self.lookups - self.misses, self.lookups)

    @property
    def effective_hit_rate(self) -> float:
        """effective_hits / lookups: hit, and continued. 0.0 without look-ups."""
        return _ratio(self.effective_hits, self.lookups)

    @property
    def hit_rate_tokens(self) -> float:
        """Matched tokens of all tokens asked for."""
        return _ratio(self.lookups_tokens - self.misses_tokens, self.lookups_tokens)

    @property
    def effective_hit_rate_tokens(self) -> float:
        """Tokens reused of all tokens asked for."""
        return _ratio(self.effective_hits_tokens, self.lookups_tokens)


def _nonzero(value: object) -> str:
    """Return the text of a counter, or of those of several that are not 0; empty where there is none."""
    if isinstance(value, Mapping):
        parts = ((name.name if isinstance(name, Enum) else str(name), _nonzero(part)) for name, part in value.items())
        joined = ", ".join(f"{name}: {text}" for name, text in parts if text)
        return f"{{{joined}}}" if joined else ""
    if isinstance(value, (PageCounts, MovedCounts)):
        shown = [(field.name, getattr(value, field.name)) for field in fields(value) if field.name != "free"]
        return " ".join(f"{count} {name}" for name, count in shown if count)
    return str(value) if value else ""


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def read_metrics(
    core: _core.Cache, groups: Mapping[str, int], routed: Mapping[str, int], tier_skew: Mapping[str, int]
) -> Metrics:
    """Read the counters of the core's cache.

    ``groups`` numbers its groups by name; ``routed`` is what was eager beside it, ``tier_skew`` is passed on.
    """
    raw = core.counters()
    raw["false_hits"] = _by_check_and_kind(raw["false_hits"])
    raw["lost_tokens"] = _by_check_and_kind(raw["lost_tokens"])
    raw["not_admitted"] = dict(list(zip(REFUSALS, raw["not_admitted"], strict=True))[1:])
    grown = dict(zip(EAGER_REASONS, raw["eager"], strict=False))
    raw["eager"] = {reason: count + grown.get(reason, 0) for reason, count in routed.items()}
    kinds = len(StateKind)
    for moved in ("restores", "offloads"):
        raw[moved] = {kind: MovedCounts(*raw[moved][kind::kinds]) for kind in StateKind}
    for failures in ("load_failures", "store_failures"):
        raw[failures] = {TierStatus(i).name.lower(): n for i, n in enumerate(raw[failures]) if n}
    pages = {name: PageCounts(**core.census(index)) for name, index in groups.items()}
    states = {StateKind(kind): count for kind, count in enumerate(core.states())}
    return Metrics(pages=pages, states=states, tier_skew=tier_skew, **raw)


def _by_check_and_kind(flat: list[int]) -> dict[Check, dict[StateKind, int]]:
    """Turn the core's flat table [[checks * kinds]] into a mapping."""
    kinds = len(StateKind)
    return {check: {kind: flat[check * kinds + kind] for kind in StateKind} for check in Check}
