# SPDX-License-Identifier: Apache-2.0
"""The answer of ``cache.explain``: one object, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridkv import _core
from hybridkv.coverage import Prefix
from hybridkv.explain.settings import Setting, settings
from hybridkv.explain.timeline import GroupTimeline, Refusals, Run, lengths_below, timelines
from hybridkv.kinds import Check
from hybridkv.static_checks import StaticChecks, static_checks
from hybridkv.verdict import Verdict

if TYPE_CHECKING:
    from hybridkv.cache_view import CacheView
    from hybridkv.formats import KvFormat
    from hybridkv.keys import BlockKeys

SCHEMA = 1
"""Version of the object of JSON: it counts up when a field means something else or goes."""

_ONLY_LOOK = -1
_NOTHING_KNOWN = "MISS"


@dataclass(frozen=True, slots=True)
class BoundaryRun:
    """Neighbouring lengths that are all usable, or that one thing refuses.

    Attributes
    ----------
    from_tokens, to_tokens : int
        The first and the last of these lengths.
    lengths : int
        How many they are.
    usable : bool
    check : str or None
        Name of the check that refuses them; MISS where nothing there is known.
    groups : tuple of str
        Those that refuse them, history first; empty where it is no page that is missing.
    block : int or None
        Of the first of those groups, the block that is missing for the first of these lengths.
    reason : str
        In words.
    """

    from_tokens: int
    to_tokens: int
    lengths: int
    usable: bool
    check: str | None
    groups: tuple[str, ...]
    block: int | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.from_tokens}" if self.lengths == 1 else f"{self.from_tokens}..{self.to_tokens} ({self.lengths})"
        return f"{where} {'usable' if self.usable else f'refused by {self.check}: {self.reason}'}"


@dataclass(frozen=True)
class Explanation:
    """Why a prompt can be reused as far as it can.

    Attributes
    ----------
    tokens : int
        Of the prompt; a usable length is below it.
    outcome, remedy : str
        As of a match now.
    matched_tokens, usable_tokens, restore_tokens : int
        As of a match now; ``restore_tokens`` is the length that a restore would make usable, 0: none.
    why : str or None
        The loss that costs most.
    lost : mapping of str to int
        Tokens lost, by the name of the check.
    groups : tuple of GroupTimeline
        In the order of the spec.
    boundaries : tuple of BoundaryRun
        Ascending.
    settings : tuple of Setting
        What would have kept what is missing, or helps now.
    static : StaticChecks
        What this configuration can never do.
    tier : str or None
        Name of the cache's tier.
    """

    tokens: int
    outcome: str
    remedy: str
    matched_tokens: int
    usable_tokens: int
    restore_tokens: int
    why: str | None
    lost: Mapping[str, int]
    groups: tuple[GroupTimeline, ...]
    boundaries: tuple[BoundaryRun, ...]
    settings: tuple[Setting, ...]
    static: StaticChecks
    tier: str | None

    def to_json(self) -> dict[str, Any]:
        """Return all of it as one object of JSON."""
        return {"schema": SCHEMA, **asdict(self), "static": self.static.to_json()}

    def __str__(self) -> str:
        from hybridkv.explain.text import as_text

        return as_text(self)


def explanation(cache: CacheView, keys: BlockKeys, formats: Mapping[str, KvFormat] | None) -> Explanation:
    """Explain a prompt to a cache; see ``HybridCache.explain``."""
    core = cache._whole_keys(keys)
    listed = cache._format_list(formats)
    verdict: Verdict = _core.match(Verdict, cache, cache._core, keys, core, -1, formats, listed, 0, -1, _ONLY_LOOK)
    lines = timelines(cache, keys)
    told = list(_boundaries(cache, verdict, lines, keys.tokens))
    refusing = [pair for each in told for pair in each.refusing]
    # A tip at the very end is no length that this prompt could resume at, but one that a longer one could have.
    refusing += [(line.group, run) for line in lines for run in line.runs[-1:] if run.departure is not None]
    why = verdict.why
    return Explanation(
        tokens=keys.tokens,
        outcome=verdict.outcome.name,
        remedy=verdict.remedy.name,
        matched_tokens=verdict.matched_tokens,
        usable_tokens=verdict.usable_tokens,
        restore_tokens=verdict.plan.restore_tokens,
        why=None if why is None else why.detail,
        lost={check.name: tokens for check, tokens in verdict.lost.items()},
        groups=lines,
        boundaries=tuple(each.run for each in told),
        settings=settings(cache, verdict, lines, refusing),
        static=static_checks(
            cache.spec,
            pages=cache.pages,
            blocks=cache.blocks,
            prompt_tokens=[keys.tokens],
            checkpoints=cache.checkpoints,
        ),
        tier=None if cache.tier is None else cache.tier.name,
    )


class _Told(NamedTuple):
    """A run of lengths, the runs of pages that refuse them, and what they have in common."""

    run: BoundaryRun
    refusing: list[tuple[str, Run]]
    alike: tuple[object, ...]


def _boundaries(cache: CacheView, verdict: Verdict, lines: tuple[GroupTimeline, ...], tokens: int) -> Iterator[_Told]:
    """Say of each length whether it is usable, and what refuses it; neighbours of one reason together."""
    usable = {int(length) for length in verdict.boundaries}
    refusals = Refusals(cache.spec.groups, lines)
    before: _Told | None = None
    for length in lengths_below(tokens, cache.spec.boundary_tokens, usable):
        now = _usable(length) if length in usable else _refused(verdict, refusals, length)
        if before is not None and before.alike == now.alike:
            more = [pair for pair in now.refusing if pair not in before.refusing]
            joined = replace(before.run, to_tokens=length, lengths=before.run.lengths + 1)
            before = _Told(joined, before.refusing + more, now.alike)
            continue
        if before is not None:
            yield before
        before = now
    if before is not None:
        yield before


def _usable(length: int) -> _Told:
    return _Told(BoundaryRun(length, length, 1, True, None, (), None, ""), [], ())


def _refused(verdict: Verdict, refusals: Refusals, length: int) -> _Told:
    found = refusals.of(length)
    if not found:
        check, reason = _of_bytes(verdict)
        return _Told(BoundaryRun(length, length, 1, False, check, (), None, reason), [], (reason,))
    group, run, block = found[0]
    check = Check.COMPLETE.name if isinstance(group.coverage, Prefix) else Check.GROUPS.name
    if length > verdict.matched_tokens:
        check = _NOTHING_KNOWN
    what = "lies beyond the prompt" if run is None else _in_words(run)
    names = tuple(each.name for each, _, _ in found)
    reason = f"block {block} of {group.name!r} {what}"
    runs = [(each.name, missing) for each, missing, _ in found if missing is not None]
    cause = None if run is None or run.departure is None else (run.departure.cause, run.departure.made_room_for)
    alike = (check, names, None if run is None else run.state, cause)  # of windows the missing block moves along
    return _Told(BoundaryRun(length, length, 1, False, check, names, block, reason), runs, alike)


def _in_words(run: Run) -> str:
    if run.departure is not None:
        return f"is gone, {run.departure}"
    return {
        "in tier": "rests in a tier",
        "restoring": "is being loaded from a tier",
        "filling": "is being written by another request",
        "retiring": "is on its way out",
        "never here": "was never here, or is forgotten",
    }[run.state]


def _of_bytes(verdict: Verdict) -> tuple[str, str]:
    """Name the check that refuses bytes that are there."""
    why = verdict.why
    for check in (Check.ABI, Check.ALIGNED, Check.GROUPS):
        if check in verdict.lost:
            return check.name, why.detail if why is not None and why.check is check else f"refused by {check.name}"
    return Check.RACED.name, "it changed while it was looked at"
