# SPDX-License-Identifier: Apache-2.0
"""Questions of the checklist, each with how facts answer it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridkv.doctor.documents import Json, Reader
from hybridkv.errors import ArgumentError

YES, NO, UNKNOWN = "yes", "no", "cannot tell"
TOPICS = ("races", "state machine", "abi", "graphs", "metrics")

_SHARE_OF_RACES, _SHARE_OF_EAGER = 0.01, 0.05
_MOST_ITEMS = 10_000

Answer = tuple[str, str]
"""Yes, no or cannot tell, and what was seen."""

NO_CACHE: Answer = (UNKNOWN, "no facts of a cache were given (--cache)")
"""What every question about a cache comes to where nothing is told of one."""


@dataclass(frozen=True)
class Facts:
    """What questions are answered from: a host, and a cache where its facts were given."""

    host: Json
    cache: Reader | None

    def metric(self, name: str) -> int | float | None:
        """Return a counter of the cache; None where it is not told."""
        inside = self.cache.inside("metrics") if self.cache is not None else None
        return None if inside is None else inside.number(name)

    def total(self, name: str) -> int | float | None:
        """Return the sum of a counter that is kept by reason; None where it is not told."""
        metrics = self.cache.inside("metrics") if self.cache is not None else None
        inside = None if metrics is None else metrics.inside(name)
        return None if inside is None else sum(inside.number(key) or 0 for key in inside.names())

    def groups(self) -> list[Reader]:
        """Return the groups of the cache; none where they are not told."""
        groups = self.cache.each("groups") if self.cache is not None else None
        if groups is not None and len(groups) > _MOST_ITEMS:
            raise ArgumentError("cache.groups", f"at most {_MOST_ITEMS}", len(groups))
        return groups or []


@dataclass(frozen=True)
class Item:
    """One question of the checklist.

    Parameters
    ----------
    name : str
        Of the item, for people and scripts.
    topic : str
        One of :data:`TOPICS`.
    question : str
    remedy : str
        What to do where the answer is no.
    answer : callable
        Takes :class:`Facts`, returns an :data:`Answer`.
    """

    name: str
    topic: str
    question: str
    remedy: str
    answer: Callable[[Facts], Answer]


def _of(value: object, good: bool, evidence: str) -> Answer:
    return (UNKNOWN, f"{evidence}: not told") if value is None else (YES if good else NO, f"{evidence}: {value}")


def _none_counted(*names: str) -> Callable[[Facts], Answer]:
    def answer(facts: Facts) -> Answer:
        if facts.cache is None:
            return NO_CACHE
        values = [facts.metric(name) for name in names]
        if None in values:
            return UNKNOWN, "metrics: " + ", ".join(n for n, v in zip(names, values, strict=True) if v is None)
        told = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
        return (NO if any(values) else YES), told

    return answer


def _verified(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    verify = facts.cache.text("verify")
    return _of(verify, verify in ("sampled", "all"), "verify")


def _few_races(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    raced, lookups = facts.metric("raced"), facts.metric("lookups")
    if raced is None or not lookups:
        return UNKNOWN, "no look-up was counted yet"
    return (YES if raced <= _SHARE_OF_RACES * lookups else NO), f"{raced} of {lookups} look-ups looked again"


def _lookups_settle(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    names = ("lookups", "misses", "effective_hits", "pending", "withdrawn")
    values = [facts.metric(name) for name in names]
    metrics = facts.cache.inside("metrics")
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


def _pages_conserved(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    metrics = facts.cache.inside("metrics")
    pages = None if metrics is None else metrics.inside("pages")
    sizes = {group.text("name"): group.number("pages") for group in facts.groups()}
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


def _eviction(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    eviction = facts.cache.text("eviction")
    return _of(eviction, eviction == "usability", "eviction")


def _tier_writes(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    if "tier" not in facts.cache.names():
        return UNKNOWN, "tier: not told"
    if facts.cache.text("tier") is None:
        return YES, "no tier: nothing to write"
    writes = facts.cache.text("tier_writes")
    return _of(writes, writes in ("through", "back"), "tier_writes")


def _no_lost_records(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    loads, stores = facts.total("load_failures"), facts.total("store_failures")
    if loads is None or stores is None:
        return UNKNOWN, "metrics: not told"
    return (NO if loads or stores else YES), f"{loads} loads and {stores} stores failed"


def _formats_declared(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    groups = facts.groups()
    bare = [group.text("name") or "?" for group in groups if group.inside("format") is None]
    if not groups:
        return UNKNOWN, "groups: not told"
    return (NO, f"without a format: {', '.join(bare)}") if bare else (YES, f"{len(groups)} groups")


def _kernels_named(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    groups = facts.groups()
    bare = [group.text("name") or "?" for group in groups if not group.texts("kernels")]
    if not groups:
        return UNKNOWN, "groups: not told"
    return (NO, f"without a kernel: {', '.join(bare)}") if bare else (YES, f"{len(groups)} groups")


def _pools_fit(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    groups = facts.groups()
    unbound = [group.text("name") or "?" for group in groups if not group.flag("bound")]
    if not groups or unbound:
        return UNKNOWN, f"no pool bound: {', '.join(unbound)}" if unbound else "groups: not told"
    wrong = [
        v.text("text") for group in groups for v in group.each("violations") or [] if v.text("effect") == "refused"
    ]
    return (NO, str(wrong[0])) if wrong else (YES, f"{len(groups)} pools")


def _identity(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    identity = facts.cache.inside("identity")
    if identity is None:
        return UNKNOWN, "identity: not told"
    missing = [name for name in ("model", "weights") if not identity.text(name)]
    return (NO, f"empty: {', '.join(missing)}") if missing else (YES, f"{identity.text('model')}")


def _salted(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    identity = facts.cache.inside("identity")
    salted = None if identity is None else identity.flag("salted")
    return _of(salted, bool(salted), "salt set")


def _gpu_family(facts: Facts) -> Answer:
    gpu = Reader("host.gpu", facts.host.get("gpu", {}))
    families = gpu.texts("families") or []
    if families:
        one = len(families) == 1
        return (YES if one else NO), ", ".join(families)
    return UNKNOWN, f"no GPU is seen: {gpu.text('reason') or 'the driver does not tell'}"


def _versions_known(facts: Facts) -> Answer:
    engines = Reader("host.engines", facts.host.get("engines", {}))
    here = [(name, inside) for name in engines.names() if (inside := engines.inside(name)) and inside.text("version")]
    if not here:
        return UNKNOWN, "no engine is installed here"
    unknown = [f"{name} {inside.text('version')}" for name, inside in here if not inside.flag("known")]
    told = ", ".join(f"{name} {inside.text('version')}" for name, inside in here)
    return (NO, f"nothing is known of {', '.join(unknown)}") if unknown else (YES, told)


def _widths(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    widths = facts.cache.inside("graph_widths")
    if widths is None:
        return UNKNOWN, "graph_widths: not told"
    names = widths.names()
    return (YES, ", ".join(names)) if names else (NO, "graph_widths: none")


def _few_eager(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    widths = facts.cache.inside("graph_widths")
    if widths is None or not widths.names():
        return UNKNOWN, "no widths are known, so no step is counted"
    eager, lookups = facts.total("eager"), facts.metric("lookups")
    if eager is None or not lookups:
        return UNKNOWN, "no look-up was counted yet"
    return (YES if eager <= _SHARE_OF_EAGER * lookups else NO), f"{eager} eager steps at {lookups} look-ups"


def _is_watched(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    lookups = facts.metric("lookups")
    return _of(lookups, bool(lookups), "look-ups counted")


def _effective(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    hits, lookups, misses = facts.metric("effective_hits"), facts.metric("lookups"), facts.metric("misses")
    if hits is None or misses is None or not lookups or lookups == misses:
        return UNKNOWN, "no hit was counted yet"
    return (YES if 2 * hits >= lookups - misses else NO), f"{hits} of {lookups - misses} hits were effective"


def _canary(facts: Facts) -> Answer:
    if facts.cache is None:
        return NO_CACHE
    canary = facts.cache.inside("canary")
    if canary is None:
        return NO, "no canary was told of"
    rate, differed = canary.number("rate"), canary.number("mismatches")
    if rate is None or differed is None:
        return UNKNOWN, "rate or mismatches: not told"
    return (YES if rate > 0 and not differed else NO), f"rate {rate}, {differed} differed"


ITEMS = (
    Item(
        "verify",
        "races",
        "Are the bytes of pages compared with what was published?",
        "verify='sampled'",
        _verified,
    ),
    Item(
        "raced",
        "races",
        "Do few look-ups find their blocks changed between check and pin?",
        "evict less while requests are matched: more pages, or a watermark",
        _few_races,
    ),
    Item(
        "leaks",
        "races",
        "Is every lease and fill settled by its owner?",
        "cache.leaks() names who dropped them",
        _none_counted("leaks"),
    ),
    Item(
        "quarantine",
        "races",
        "Does no page hold bytes that were not published there?",
        "find who writes there: cache.explain()",
        _none_counted("quarantined"),
    ),
    Item(
        "settled",
        "state machine",
        "Is every look-up accounted for, once?",
        "report it: this must not be",
        _lookups_settle,
    ),
    Item(
        "pages",
        "state machine",
        "Is every page accounted for, once?",
        "report it: this must not be",
        _pages_conserved,
    ),
    Item(
        "eviction",
        "state machine",
        "Does eviction keep what makes prefixes usable?",
        "eviction='usability'",
        _eviction,
    ),
    Item(
        "placed",
        "state machine",
        "Is there room in the table for every block and tip?",
        "more blocks=",
        _none_counted("unplaced"),
    ),
    Item(
        "tier writes",
        "state machine",
        "Does what is published reach the tier?",
        "tier_writes='through' or 'back'",
        _tier_writes,
    ),
    Item(
        "formats",
        "abi",
        "Does every group declare the format of its bytes?",
        "CacheGroup(format=...)",
        _formats_declared,
    ),
    Item(
        "kernels",
        "abi",
        "Does every group name the kernels that read it?",
        "CacheGroup(kernels=[...])",
        _kernels_named,
    ),
    Item(
        "alignment",
        "abi",
        "Is every pool what its kernels need?",
        "cache.alignment(group) says what to do",
        _pools_fit,
    ),
    Item(
        "identity",
        "abi",
        "Do keys name the model and the revision of its weights?",
        "Identity(model=..., weights=...)",
        _identity,
    ),
    Item(
        "salt",
        "abi",
        "Are tenants kept apart by a secret salt?",
        "Identity(salt=...), set by the gateway",
        _salted,
    ),
    Item(
        "gpu",
        "abi",
        "Is there one GPU family, so that one set of formats is written?",
        "a namespace for each family",
        _gpu_family,
    ),
    Item(
        "engines",
        "abi",
        "Is it known which formats the installed engines write?",
        "declare the formats, and prove them",
        _versions_known,
    ),
    Item(
        "records",
        "abi",
        "Was every record of a tier stored and loaded whole?",
        "hybridkv verify STORE",
        _no_lost_records,
    ),
    Item(
        "widths",
        "graphs",
        "Does the cache know how wide captured block tables are?",
        "cache.set_graph_widths(...)",
        _widths,
    ),
    Item(
        "eager",
        "graphs",
        "Do few steps run without their graph?",
        "capture wider tables",
        _few_eager,
    ),
    Item(
        "copies",
        "graphs",
        "Did every copy between device and host succeed?",
        "TransferResult.device_error says why",
        _none_counted("copy_failures"),
    ),
    Item(
        "counted",
        "metrics",
        "Are look-ups counted?",
        "send traffic, then ask again",
        _is_watched,
    ),
    Item(
        "effective",
        "metrics",
        "Do at least half of the hits go on from what they found?",
        "verdict.why, metrics().lost_tokens",
        _effective,
    ),
    Item(
        "canary",
        "metrics",
        "Does a canary recompute a sample of hits and find no difference?",
        "recompute a sample and compare",
        _canary,
    ),
)
"""The checklist, in the order of its topics."""
