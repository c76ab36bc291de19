# SPDX-License-Identifier: Apache-2.0
"""Which setting would have kept what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridkv.coverage import Prefix
from hybridkv.departures import DESCRIPTORS, EVICTED
from hybridkv.explain.timeline import FILLING, GONE, NEVER, RESTORING, RETIRING, TIER, GroupTimeline, Run
from hybridkv.kinds import Check, Remedy

if TYPE_CHECKING:
    from hybridkv.cache_view import CacheView
    from hybridkv.verdict import Verdict

_OF_CAUSE = {
    "asked": ("evict()", "the application took these pages: it has to ask for fewer"),
    "displaced": ("unit_tokens", "four tips are kept after one unit: smaller units keep more ends of conversations"),
    "withdrawn": ('update_identity(on_change="version")', "keeps what was computed before, beside the new"),
    "damaged": (
        'verify="all"',
        "finds damage at the first match; look at who writes such bytes",
    ),
    "aborted": ("fill.publish()", "only what is published is found; a load that failed is told by the tier"),
    "lost": ("fill.publish(), ticket.close()", "pages of a writer that is collected are lost: cache.leaks() names it"),
    "unpromised": ("pages", "a larger pool lets a reader beside it have the page"),
    "reset": ("reset()", "a reset forgets everything"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Something to set otherwise.

    Attributes
    ----------
    setting : str
        What, as it is written in code where it is one.
    why : str
        What it would have done.
    """

    setting: str
    why: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.why}"


def settings(
    cache: CacheView, verdict: Verdict, lines: Iterable[GroupTimeline], refusing: Iterable[tuple[str, Run]]
) -> tuple[Setting, ...]:
    """Return what would have kept the missing pages, or helps now; each once.

    Parameters
    ----------
    cache : HybridCache
    verdict : Verdict
    lines : iterable of GroupTimeline
    refusing : iterable of (str, Run)
        The runs that refuse a length, with their group.
    """
    found = [
        *_of_room(cache, list(lines), refusing := list(refusing)),
        *_of_states(cache, refusing),
        *_of_causes(cache, refusing),
        *_of_now(cache, verdict, refusing),
    ]
    return tuple(dict.fromkeys(found))


def _of_room(cache: CacheView, lines: list[GroupTimeline], refusing: list[tuple[str, Run]]) -> Iterator[Setting]:
    """Pools and tables that were short, by as many pages as this prefix lost to them."""
    short = {run.departure.made_room_for for _, run in refusing if run.departure is not None} - {None}
    for whom in sorted(filter(None, short)):
        if whom == DESCRIPTORS:
            lost = sum(_lost(line, whom) for line in lines)
            yield Setting(f"blocks={cache.blocks + lost}", f"the table of keys was short: {lost} more keep this prefix")
            continue
        lost = next(_lost(line, whom) for line in lines if line.group == whom)
        lost = lost or max(_lost(line, whom) for line in lines)
        more = f"the pool of {whom!r} was short: {lost} more pages keep this prefix beside what took its place"
        yield Setting(f"pages={{{whom!r}: {cache.pages[whom] + lost}}}", more)
    if not short:
        return
    if cache.tier is None:
        yield Setting("tier=hk.DiskTier(...)", "what is evicted from the pools rests there, with tier_writes=")
    elif cache._tier_writes.mode == "none":
        yield Setting('tier_writes="back"', "stores what is evicted in the tier without being asked")
    if cache.eviction == "lru":
        yield Setting('eviction="usability"', "takes first what nothing can resume from")


def _lost(line: GroupTimeline, whom: str) -> int:
    gone = (run for run in line.runs if run.departure is not None)
    return sum(run.blocks for run in gone if run.departure is not None and run.departure.made_room_for == whom)


def _of_states(cache: CacheView, refusing: list[tuple[str, Run]]) -> Iterator[Setting]:
    """States that nobody kept at these lengths."""
    step = cache.spec.boundary_tokens
    for name, run in refusing:
        expired = run.departure is not None and run.departure.cause == "expired"
        never = run.state == NEVER and not isinstance(cache.spec[name].coverage, Prefix)
        if expired or (never and cache.checkpoints is not None):
            yield Setting(
                f"checkpoints=hk.CheckpointPolicy(every={step})",
                f"keeps the states of {name!r} at every length that a step ends at, {step} tokens apart",
            )
        if never:
            yield Setting(
                "ticket.grow(states=[...])",
                f"a state of {name!r} exists only where a step ended or one was asked for: name the lengths that "
                "other prompts will share",
            )


def _of_causes(cache: CacheView, refusing: list[tuple[str, Run]]) -> Iterator[Setting]:
    for _, run in refusing:
        if run.departure is None or run.departure.cause in EVICTED:
            continue
        if run.departure.cause == "unplaced":
            yield Setting(f"blocks={2 * cache.blocks}", "the table of keys had no room for what was written")
        elif run.departure.cause in _OF_CAUSE:
            yield Setting(*_OF_CAUSE[run.departure.cause])


def _of_now(cache: CacheView, verdict: Verdict, refusing: list[tuple[str, Run]]) -> Iterator[Setting]:
    """What helps the request that asks."""
    states = {run.state for _, run in refusing}
    if TIER in states:
        if verdict.remedy is Remedy.RESTORE:
            loads = f"loads what makes {verdict.plan.restore_tokens} tokens usable"
            yield Setting("cache.restore(verdict.plan)", loads)
        else:
            yield Setting("cache.offload", "what the tier has leads to no usable length: it lacks a group's pages")
    if states & {FILLING, RESTORING}:
        yield Setting("wait", "another request is writing or loading this; match again once it is published")
    if RETIRING in states:
        yield Setting("lease.release()", "these pages are on their way out and go with their last pin")
    if Check.ABI in verdict.lost:
        yield Setting("format=", "the bytes are of another format: declare what the writer writes, or convert them")
    if Check.ALIGNED in verdict.lost:
        why = verdict.why
        group = "..." if why is None else why.group
        yield Setting(f"bind({group!r}, ...)", "memory that its kernel can read: cache.alignment() says what is wrong")
    if not states - {GONE, NEVER} and verdict.usable_tokens == 0 and verdict.matched_tokens == 0:
        yield Setting("identity", "was it here before? Other tokens, salt, adapter or unit make other keys")
