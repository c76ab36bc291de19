# SPDX-License-Identifier: Apache-2.0
"""How facts answer the questions of the checklist: yes, no or cannot tell, and what was seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridkv.doctor.documents import Json, Reader
from hybridkv.errors import ArgumentError

YES, NO, UNKNOWN = "yes", "no", "cannot tell"

_SHARE_OF_RACES, _SHARE_OF_EAGER = 0.01, 0.05
_MOST_ITEMS = 10_000
_MEMORY_CHANGED = ("freed", "moved", "grown", "rebound", "cleared", "expired", "handout", "null_page")
"""Reasons for eager that say: something took memory away under a graph that was kept."""


Answer = tuple[str, str]
"""Yes, no or cannot tell, and what was seen."""

NO_CACHE: Answer = (UNKNOWN, "no facts of a cache were given (--cache)")
"""What every question about a cache comes to where nothing is told of one."""


class CacheFacts(Reader):
    """Facts of a cache, its counters among them."""

    def metric(self, name: str) -> int | float | None:
        """Return a counter; None where it is not told."""
        inside = self.inside("metrics")
        return None if inside is None else inside.number(name)

    def total(self, name: str) -> int | float | None:
        """Return the sum of a counter that is kept by reason; None where it is not told."""
        metrics = self.inside("metrics")
        inside = None if metrics is None else metrics.inside(name)
        return None if inside is None else sum(inside.number(key) or 0 for key in inside.names())

    def groups(self) -> list[Reader]:
        """Return the groups; none where they are not told."""
        groups = self.each("groups") or []
        if len(groups) > _MOST_ITEMS:
            raise ArgumentError("cache.groups", f"at most {_MOST_ITEMS}", len(groups))
        return groups


@dataclass(frozen=True)
class Facts:
    """What questions are answered from: a host, and a cache where its facts were given."""

    host: Json
    cache: CacheFacts | None


def _of_a_cache(answer: Callable[[CacheFacts], Answer]) -> Callable[[Facts], Answer]:
    """Make of what a cache tells an answer that also does without one."""
    return lambda facts: NO_CACHE if facts.cache is None else answer(facts.cache)


def _of(value: object, good: bool, evidence: str) -> Answer:
    return (UNKNOWN, f"{evidence}: not told") if value is None else (YES if good else NO, f"{evidence}: {value}")


def none_counted(*names: str) -> Callable[[Facts], Answer]:
    @_of_a_cache
    def answer(cache: CacheFacts) -> Answer:
        values = [cache.metric(name) for name in names]
        if None in values:
            return UNKNOWN, "metrics: " + ", ".join(n for n, v in zip(names, values, strict=True) if v is None)
        told = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
        return (NO if any(values) else YES), told

    return answer


@_of_a_cache
def verified(cache: CacheFacts) -> Answer:
    verify = cache.text("verify")
    return _of(verify, verify in ("sampled", "all"), "verify")


@_of_a_cache
def few_races(cache: CacheFacts) -> Answer:
    raced, lookups = cache.metric("raced"), cache.metric("lookups")
    if raced is None or not lookups:
        return UNKNOWN, "no look-up was counted yet"
    return (YES if raced <= _SHARE_OF_RACES * lookups else NO), f"{raced} of {lookups} look-ups looked again"


@_of_a_cache
def lookups_settle(cache: CacheFacts) -> Answer:
    names = ("lookups", "misses", "effective_hits", "pending", "withdrawn")
    values = [cache.metric(name) for name in names]
    metrics = cache.inside("metrics")
    false_hits = None if metrics is None else metrics.inside("false_hits")
    if false_hits is None or None in values:
        return UNKNOWN, "metrics: not told"
    by_check = [false_hits.inside(name) for name in false_hits.names()]
    false = sum(kinds.number(kind) or 0 for kinds in by_check if kinds is not None for kind in kinds.names())
    lookups, *rest = (value or 0 for value in values)
    if not lookups:
        return UNKNOWN, "no look-up was counted yet"
    settled = sum(rest) + false
    return (YES if lookups == settled else NO), f"{lookups} look-ups, {settled} accounted for"


@_of_a_cache
def pages_conserved(cache: CacheFacts) -> Answer:
    metrics = cache.inside("metrics")
    pages = None if metrics is None else metrics.inside("pages")
    sizes = {group.text("name"): group.number("pages") for group in cache.groups()}
    if pages is None or not sizes or None in sizes.values():
        return UNKNOWN, "pages: not told"
    for name, size in sizes.items():
        counts = pages.inside(name or "")
        parts = (
            [counts.number(part) for part in ("free", "filling", "held", "cached")] if counts is not None else [None]
        )
        if None in parts:
            return UNKNOWN, f"pages of {name}: not told"
        if sum(part or 0 for part in parts) != size:
            return NO, f"{name}: {sum(part or 0 for part in parts)} of {size} pages accounted for"
    return YES, f"{len(sizes)} pools"


@_of_a_cache
def eviction(cache: CacheFacts) -> Answer:
    eviction = cache.text("eviction")
    return _of(eviction, eviction == "usability", "eviction")


@_of_a_cache
def tier_writes(cache: CacheFacts) -> Answer:
    if "tier" not in cache.names():
        return UNKNOWN, "tier: not told"
    if cache.text("tier") is None:
        return YES, "no tier: nothing to write"
    writes = cache.text("tier_writes")
    return _of(writes, writes in ("through", "back"), "tier_writes")


@_of_a_cache
def no_lost_records(cache: CacheFacts) -> Answer:
    loads, stores = cache.total("load_failures"), cache.total("store_failures")
    if loads is None or stores is None:
        return UNKNOWN, "metrics: not told"
    return (NO if loads or stores else YES), f"{loads} loads and {stores} stores failed"


def every_group_has(what: str, has: Callable[[Reader], object]) -> Callable[[Facts], Answer]:
    @_of_a_cache
    def answer(cache: CacheFacts) -> Answer:
        groups = cache.groups()
        bare = [group.text("name") or "?" for group in groups if not has(group)]
        if not groups:
            return UNKNOWN, "groups: not told"
        return (NO, f"without a {what}: {', '.join(bare)}") if bare else (YES, f"{len(groups)} groups")

    return answer


@_of_a_cache
def pools_fit(cache: CacheFacts) -> Answer:
    groups = cache.groups()
    unbound = [group.text("name") or "?" for group in groups if not group.flag("bound")]
    if not groups or unbound:
        return UNKNOWN, f"no pool bound: {', '.join(unbound)}" if unbound else "groups: not told"
    wrong = [
        v.text("text") for group in groups for v in group.each("violations") or [] if v.text("effect") == "refused"
    ]
    return (NO, str(wrong[0])) if wrong else (YES, f"{len(groups)} pools")


@_of_a_cache
def writers_agree(cache: CacheFacts) -> Answer:
    writers = cache.each("writers")
    if writers is None:
        alone = "tier" in cache.names() and cache.text("tier") is None
        return (YES, "no tier: nobody else's records") if alone else (UNKNOWN, "writers: not told")
    apart = [told for writer in writers for told in (writer.texts("differences") or [])[:1]]
    return (NO, f"{len(apart)} of {len(writers)}: {apart[0]}") if apart else (YES, f"{len(writers)} known writers")


@_of_a_cache
def identity(cache: CacheFacts) -> Answer:
    identity = cache.inside("identity")
    if identity is None:
        return UNKNOWN, "identity: not told"
    missing = [name for name in ("model", "weights") if not identity.text(name)]
    return (NO, f"empty: {', '.join(missing)}") if missing else (YES, f"{identity.text('model')}")


@_of_a_cache
def salted(cache: CacheFacts) -> Answer:
    identity = cache.inside("identity")
    salted = None if identity is None else identity.flag("salted")
    return _of(salted, bool(salted), "salt set")


def gpu_family(facts: Facts) -> Answer:
    gpu = Reader("host.gpu", facts.host.get("gpu", {}))
    families = gpu.texts("families") or []
    if families:
        one = len(families) == 1
        return (YES if one else NO), ", ".join(families)
    return UNKNOWN, f"no GPU is seen: {gpu.text('reason') or 'the driver does not tell'}"


def versions_known(facts: Facts) -> Answer:
    engines = Reader("host.engines", facts.host.get("engines", {}))
    here = [(name, inside) for name in engines.names() if (inside := engines.inside(name)) and inside.text("version")]
    if not here:
        return UNKNOWN, "no engine is installed here"
    unknown = [f"{name} {inside.text('version')}" for name, inside in here if not inside.flag("known")]
    told = ", ".join(f"{name} {inside.text('version')}" for name, inside in here)
    return (NO, f"nothing is known of {', '.join(unknown)}") if unknown else (YES, told)


@_of_a_cache
def widths(cache: CacheFacts) -> Answer:
    widths = cache.inside("graph_widths")
    if widths is None:
        return UNKNOWN, "graph_widths: not told"
    names = widths.names()
    return (YES, ", ".join(names)) if names else (NO, "graph_widths: none")


@_of_a_cache
def guarded(cache: CacheFacts) -> Answer:
    topologies = cache.each("topologies")
    if topologies is None:
        return UNKNOWN, "topologies: not told"
    live = [topology for topology in topologies if not topology.flag("released")]
    told = f"{len(live)} topologies watch this cache, {len(topologies) - len(live)} were released"
    return (YES if live else NO), told


@_of_a_cache
def memory_stays(cache: CacheFacts) -> Answer:
    metrics = cache.inside("metrics")
    eager = None if metrics is None else metrics.inside("eager")
    counts = {} if eager is None else {reason: eager.number(reason) for reason in _MEMORY_CHANGED}
    if not counts or None in counts.values():
        return UNKNOWN, "eager: not told"
    changed = {reason: times for reason, times in counts.items() if times}
    told = ", ".join(f"{reason} {times}" for reason, times in changed.items())
    return (NO, told) if changed else (YES, "no step found other memory than was captured")


@_of_a_cache
def few_eager(cache: CacheFacts) -> Answer:
    widths = cache.inside("graph_widths")
    if widths is None or not widths.names():
        return UNKNOWN, "no widths are known, so no step is counted"
    eager, lookups = cache.total("eager"), cache.metric("lookups")
    if eager is None or not lookups:
        return UNKNOWN, "no look-up was counted yet"
    return (YES if eager <= _SHARE_OF_EAGER * lookups else NO), f"{eager} eager steps at {lookups} look-ups"


@_of_a_cache
def is_watched(cache: CacheFacts) -> Answer:
    lookups = cache.metric("lookups")
    return _of(lookups, bool(lookups), "look-ups counted")


@_of_a_cache
def effective(cache: CacheFacts) -> Answer:
    hits, lookups, misses = cache.metric("effective_hits"), cache.metric("lookups"), cache.metric("misses")
    if hits is None or misses is None or not lookups or lookups == misses:
        return UNKNOWN, "no hit was counted yet"
    return (YES if 2 * hits >= lookups - misses else NO), f"{hits} of {lookups - misses} hits were effective"


@_of_a_cache
def canary(cache: CacheFacts) -> Answer:
    canary = cache.inside("canary")
    if canary is None:
        return NO, "no canary was told of"
    rate, differed = canary.number("rate"), canary.number("mismatches")
    if rate is None or differed is None:
        return UNKNOWN, "rate or mismatches: not told"
    return (YES if rate > 0 and not differed else NO), f"rate {rate}, {differed} differed"
