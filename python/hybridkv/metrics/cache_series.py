# SPDX-License-Identifier: Apache-2.0
"""The metrics of a cache: each with its name, labels and meaning, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Literal

from hybridkv.metrics.counts import Metrics, StrandedPages
from hybridkv.metrics.series import Family, Sample, Series
from hybridkv.tier_skew import UNKNOWN
from hybridkv.tiers import TierStatus

if TYPE_CHECKING:
    from hybridkv.cache_view import CacheView
    from hybridkv.tiers import TierUsage

READINGS = 4
"""Times that counters are read before look-ups that do not add up are taken: somebody counts meanwhile."""


@dataclass(frozen=True)
class Reading:
    """What one scrape reads of a cache, once.

    Attributes
    ----------
    counts : Metrics
        All counters together.
    cache : CacheView
        For what never changes.
    open : bool
        Whether the cache still is.
    usage : TierUsage or None
        Of its tier.
    stranded : mapping of str to StrandedPages
        By group; empty where it was not asked for, or cannot be told.
    """

    counts: Metrics
    cache: CacheView
    open: bool
    usage: TierUsage | None
    stranded: Mapping[str, StrandedPages]


def read_cache(cache: CacheView, *, stranded: bool) -> Reading:
    """Read a cache once; ``stranded``: look for stranded pages as well."""
    counts = cache.metrics()
    for _ in range(READINGS - 1):
        if counts.adds_up:
            break
        counts = cache.metrics()
    is_open = not cache._closed
    tier = cache.tier if is_open else None
    found = cache.stranded() if stranded and is_open and cache._notes_order else {}
    return Reading(counts, cache, is_open, None if tier is None else tier.usage(), found)


def cache_families(reading: Reading) -> Iterator[Family]:
    """Yield what was read, metric by metric; of a closed cache what it has counted alone."""
    for series, read in _TABLE:
        samples = tuple(read(reading)) if reading.open or series.kind == "counter" or series is _OPEN else ()
        if samples:
            yield Family(series, samples)


_Read = Callable[[Reading], Iterable[Sample]]


def _named(field: str, reading: Reading) -> Iterator[Sample]:
    yield Sample(getattr(reading.counts, field))


def _by(field: str, reading: Reading) -> Iterator[Sample]:
    """Yield a mapping of the metrics, of mappings perhaps."""
    yield from _flat(getattr(reading.counts, field), ())


def _flat(value: Mapping[object, object] | float, labels: tuple[str, ...]) -> Iterator[Sample]:
    if not isinstance(value, Mapping):
        yield Sample(value, labels)
        return
    for name, part in value.items():
        yield from _flat(part, (*labels, _label(name)))  # type: ignore[arg-type]


def _label(name: object) -> str:
    return name.name.lower() if isinstance(name, Enum) else str(name)


def _moved(field: str, what: str, reading: Reading) -> Iterator[Sample]:
    for kind, counts in getattr(reading.counts, field).items():
        yield Sample(getattr(counts, what), (_label(kind),))


def _statuses(field: str, reading: Reading) -> Iterator[Sample]:
    """Yield all of them: what appears with its first count shows no increase."""
    counts = getattr(reading.counts, field)
    for status in TierStatus:
        if status is not TierStatus.OK:
            yield Sample(counts.get(_label(status), 0), (_label(status),))


def _skew(reading: Reading) -> Iterator[Sample]:
    for differs, count in ({UNKNOWN: 0} | dict(reading.counts.tier_skew)).items():
        yield Sample(count, (differs,))


def _pages(reading: Reading) -> Iterator[Sample]:
    for group, counts in reading.counts.pages.items():
        for state in ("free", "filling", "held", "cached"):
            yield Sample(getattr(counts, state), (group, state))


def _page_bytes(reading: Reading) -> Iterator[Sample]:
    for group in reading.cache.spec.groups:
        yield Sample(group.total_page_bytes, (group.name,))


def _stranded(what: str, reading: Reading) -> Iterator[Sample]:
    for group, found in reading.stranded.items():
        yield Sample(getattr(found, what), (group,))


def _step(reading: Reading) -> Iterator[Sample]:
    spec = reading.cache.spec
    yield Sample(spec.boundary_tokens, (spec.boundary_group or "",))


def _open(reading: Reading) -> Iterator[Sample]:
    yield Sample(int(reading.open))


def _usage(field: str, reading: Reading) -> Iterator[Sample]:
    if reading.usage is not None and reading.cache.tier is not None:
        yield Sample(int(getattr(reading.usage, field)), (reading.cache.tier.name,))


_TIER_GETS = {"hit": "hits", "miss": "misses", "corrupt": "corrupt", "mismatch": "mismatched", "timeout": "timeouts"}


def _tier_gets(reading: Reading) -> Iterator[Sample]:
    if reading.usage is not None and reading.cache.tier is not None:
        for result, field in _TIER_GETS.items():
            yield Sample(getattr(reading.usage, field), (reading.cache.tier.name, result))


_ROWS: list[tuple[str, str, str, tuple[str, ...], str, _Read]] = [
    ("lookups_total", "counter", "requests", (), "Look-ups: match, and match_at.", partial(_named, "lookups")),
    ("misses_total", "counter", "requests", (), "Look-ups of which nothing was known.", partial(_named, "misses")),
    (
        "false_hits_total", "counter", "requests", ("check", "kind"),
        "Look-ups of which something was known and nothing usable, by the check that cost most and the kind of state.",
        partial(_by, "false_hits"),
    ),
    (
        "effective_hits_total", "counter", "requests", (),
        "Look-ups whose lease was released: reused, and computed on from.", partial(_named, "effective_hits"),
    ),
    ("withdrawn_total", "counter", "requests", (), "Look-ups whose lease was cancelled.", partial(_named, "withdrawn")),
    ("pending", "gauge", "requests", (), "Look-ups whose lease is open; 0 when idle.", partial(_named, "pending")),
    ("lookups_tokens_total", "counter", "tokens", (), "Tokens asked for.", partial(_named, "lookups_tokens")),
    ("misses_tokens_total", "counter", "tokens", (), "Tokens not matched.", partial(_named, "misses_tokens")),
    (
        "false_hits_tokens_total", "counter", "tokens", (),
        "Tokens matched and not usable, those of shorter hits too: the sum of the lost ones.",
        partial(_named, "false_hits_tokens"),
    ),
    (
        "effective_hits_tokens_total", "counter", "tokens", (), "Tokens reused and computed on from.",
        partial(_named, "effective_hits_tokens"),
    ),
    ("withdrawn_tokens_total", "counter", "tokens", (), "Usable tokens of leases that were cancelled.",
     partial(_named, "withdrawn_tokens")),
    ("pending_tokens", "gauge", "tokens", (), "Usable tokens of leases that are open.",
     partial(_named, "pending_tokens")),
    (
        "lost_tokens_total", "counter", "tokens", ("check", "kind"),
        "Tokens matched and not usable, by check and kind of state (disk: what is missing rests in a tier).",
        partial(_by, "lost_tokens"),
    ),
    (
        "lost_by_code_tokens_total", "counter", "tokens", ("code",),
        "The same tokens by what was wrong: missing, stale, expired, lagging, filling, in_tier, content, and so on.",
        partial(_by, "lost_by_code_tokens"),
    ),
    ("raced_total", "counter", "times", (), "Matches that looked again: something changed before the pin.",
     partial(_named, "raced")),
    ("duplicates_total", "counter", "pages", (), "Pages that stayed private: another writer was first.",
     partial(_named, "duplicates")),
    ("unplaced_total", "counter", "blocks", (), "Blocks and tips for which the table had no room.",
     partial(_named, "unplaced")),
    ("tips_displaced_total", "counter", "tips", (), "Tips whose place a newer one took.",
     partial(_named, "tips_displaced")),
    ("leaks_total", "counter", "handles", (), "Leases and fills that were dropped unsettled.",
     partial(_named, "leaks")),
    ("quarantined_pages_total", "counter", "pages", (), "Pages whose content is trusted no more.",
     partial(_named, "quarantined")),
    ("published_pages_total", "counter", "pages", (), "Pages that became visible.", partial(_named, "published")),
    ("retired_pages_total", "counter", "pages", (), "Pages that went: evicted, expired, quarantined.",
     partial(_named, "retired")),
    ("not_admitted_total", "counter", "requests", ("reason",), "Requests that admission refused.",
     partial(_by, "not_admitted")),
    ("eager_total", "counter", "steps", ("reason",), "Steps that ran without a captured graph.",
     partial(_by, "eager")),
    ("pages", "gauge", "pages", ("group", "state"), "Pages of a pool: free, filling, held or cached.", _pages),
    ("page_bytes", "gauge", "bytes", ("group",), "Bytes of one page, all layers together.", _page_bytes),
    ("state_units", "gauge", "units", ("kind",),
     "Units that hold a usable page of the kind (disk: a record in the tier).", partial(_by, "states")),
    (
        "stranded_pages", "gauge", "pages", ("group",),
        "Cached pages that no length usable in memory needs.", partial(_stranded, "pages"),
    ),
    ("stranded_bytes", "gauge", "bytes", ("group",), "Bytes of those.", partial(_stranded, "bytes")),
    (
        "reachable_step_tokens", "gauge", "tokens", ("group",),
        "Lengths that can be resumed at are multiples of it, tips aside; the group that causes it.", _step,
    ),
    ("open", "gauge", "caches", (), "1 while the cache is open, 0 once it is closed.", _open),
    *(
        (f"{one}_{name}_total", "counter", unit, ("kind",), f"{meaning} {way}.", partial(_moved, f"{one}s", field))
        for one, way in (("restore", "loaded from the tier"), ("offload", "stored in the tier"))
        for name, unit, field, meaning in (
            ("attempts", "pages", "attempts", "Pages that were to be"),
            ("successes", "pages", "successes", "Pages that were"),
            ("bytes", "bytes", "bytes", "Bytes that were"),
        )
    ),
    ("load_failures_total", "counter", "records", ("status",), "Records that could not be loaded.",
     partial(_statuses, "load_failures")),
    ("store_failures_total", "counter", "records", ("status",), "Records that could not be stored.",
     partial(_statuses, "store_failures")),
    (
        "tier_skew_total", "counter", "requests", ("differs",),
        "Look-ups that found nothing to use beside records of another writer, by what differs.",
        _skew,
    ),
    ("staged_to_host_bytes_total", "counter", "bytes", (), "Bytes copied from pools on devices.",
     partial(_named, "staged_to_host_bytes")),
    ("staged_to_device_bytes_total", "counter", "bytes", (), "Bytes copied to pools on devices.",
     partial(_named, "staged_to_device_bytes")),
    ("copy_failures_total", "counter", "records", (), "Records whose copy the device or its driver failed.",
     partial(_named, "copy_failures")),
    ("tier_records", "gauge", "records", ("tier",), "Records in the tier.", partial(_usage, "records")),
    ("tier_bytes", "gauge", "bytes", ("tier",), "Bytes of them.", partial(_usage, "bytes")),
    ("tier_capacity_bytes", "gauge", "bytes", ("tier",), "Bytes that the tier may hold.",
     partial(_usage, "capacity_bytes")),
    ("tier_running", "gauge", "items", ("tier",), "Loads and stores under way.", partial(_usage, "running")),
    ("tier_queued", "gauge", "items", ("tier",), "Loads and stores that wait.", partial(_usage, "queued")),
    ("tier_breaker_open", "gauge", "tiers", ("tier",), "1 while the tier's circuit breaker is open.",
     partial(_usage, "breaker_open")),
    ("tier_breaker_opened_total", "counter", "times", ("tier",), "Times that it opened.",
     partial(_usage, "breaker_opened")),
    ("tier_read_only", "gauge", "tiers", ("tier",), "1 once writes were given up after repeated failure.",
     partial(_usage, "read_only")),
    ("tier_gets_total", "counter", "records", ("tier", "result"), "Records asked for, by what became of it.",
     _tier_gets),
    ("tier_io_errors_total", "counter", "requests", ("tier",), "Reads and writes that the system failed.",
     partial(_usage, "io_errors")),
    ("tier_reclaimed_total", "counter", "records", ("tier",), "Records that made room for others.",
     partial(_usage, "reclaimed")),
    ("tier_refused_total", "counter", "items", ("tier",), "Loads and stores that the tier would not take.",
     partial(_usage, "refused")),
    ("tier_read_bytes_total", "counter", "bytes", ("tier",), "Bytes read.", partial(_usage, "bytes_read")),
    ("tier_written_bytes_total", "counter", "bytes", ("tier",), "Bytes written.", partial(_usage, "bytes_written")),
]  # fmt: skip


def _series(name: str, kind: str, unit: str, labels: tuple[str, ...], meaning: str) -> Series:
    known: Literal["counter", "gauge"] = "counter" if kind == "counter" else "gauge"
    return Series(f"hybridkv_{name}", known, unit, labels, meaning)


_TABLE: tuple[tuple[Series, _Read], ...] = tuple((_series(*row[:5]), row[5]) for row in _ROWS)

SERIES: tuple[Series, ...] = tuple(series for series, _ in _TABLE)
"""Every metric of a cache, in the order of an exposition."""

_OPEN = next(series for series in SERIES if series.name == "hybridkv_open")
