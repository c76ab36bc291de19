# SPDX-License-Identifier: Apache-2.0
"""The naive definition of a hit, length by length, from the contract; imports nothing of the package."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

COMPLETE, ABI, GROUPS, ALIGNED = range(4)
READY, FILLING, FOREIGN, GONE = "ready", "filling", "foreign", "gone"  # foreign: ready, of another format
KNOWN = (READY, FOREIGN)


@dataclass(frozen=True)
class Group:
    """One cache group: its rule ("prefix", "window", "chunk", "checkpoint") with the rule's parameter."""

    name: str
    rule: str
    parameter: int  # window or chunk tokens; every (0: needed everywhere)
    block: int
    indexer: bool = False  # an indexer kept in step with another group


@dataclass(frozen=True)
class Why:
    """Reason: the failing group's name and own block are None where no group is to blame (drop)."""

    check: int
    group: str | None
    block: int | None
    code: str  # "missing" stands for missing, stale and expired alike


@dataclass
class Answer:
    """What match must say."""

    matched: int
    usable: int
    boundaries: list[int]
    lost: dict[int, int]
    why: Why | None
    held: dict[str, list[int]] = field(default_factory=dict)  # own blocks a resume at usable needs


Pages = Mapping[str, Mapping[int, str]]
Tips = Mapping[int, Mapping[str, str]]


def needed(group: Group, t: int) -> list[int]:
    """Own blocks holding a row that a resume at t needs; the last one may be partial."""
    if group.rule == "prefix":
        start = 0
    elif group.rule == "window":
        start = t - min(t, group.parameter - 1)
    elif group.rule == "chunk":
        start = t // group.parameter * group.parameter
    else:
        start = t if group.parameter and t % group.parameter == 0 else t - 1
    return [] if start >= t else list(range(start // group.block, -(-t // group.block)))


class Case:
    """One state of a cache with one question to it."""

    def __init__(
        self, groups: Iterable[Group], pages: Pages, tips: Tips, limit: int, misaligned: Iterable[str] = ()
    ) -> None:
        self.groups = list(groups)
        self.pages, self.limit, self.misaligned = pages, limit, set(misaligned)
        self.tips = {t: held for t, held in tips.items() if t < limit and set(held.values()) & set(KNOWN)}
        self.step = math.lcm(*(g.block for g in self.groups))
        self.prefix = [g for g in self.groups if g.rule == "prefix"]
        self.matched = 0
        self.matched = self._matched()

    def state(self, group: Group, block: int, t: int) -> str | None:
        """State of the page that holds an own block for a resume at t; None where there is none."""
        if (block + 1) * group.block <= t:
            return self.pages.get(group.name, {}).get(block)
        return self.tips.get(t, {}).get(group.name)

    def counted(self, group: Group, t: int) -> list[int]:
        """Needed blocks that t can have: those that end at or below it, and a tip's partial page."""
        return [b for b in needed(group, t) if (b + 1) * group.block <= t or t in self.tips]

    def resumes(self, group: Group, t: int) -> bool:
        """Whether this group can resume at t."""
        if t % group.block and t not in self.tips:
            return False
        return all(self.state(group, b, t) == READY for b in needed(group, t))

    def candidates(self, below: int) -> list[int]:
        """Lengths that may be usable, largest first, at most `below`."""
        lengths = set(range(self.step, min(below, self.limit - 1) + 1, self.step))
        return sorted(lengths | {t for t in self.tips if t <= below}, reverse=True)

    def usable(self, t: int) -> bool:
        """Whether every group can resume at t (alignment apart)."""
        return all(self.resumes(g, t) for g in self.groups)

    def aligned(self, t: int) -> bool:
        """Whether a resume at t needs no page of a misaligned group."""
        return not any(needed(g, t) for g in self.groups if g.name in self.misaligned)

    def _matched(self) -> int:
        ends = [0]
        if self.prefix:
            for g in self.prefix:
                run = 0
                while (run + 1) * g.block < self.limit and self.state(g, run, self.limit) in KNOWN:
                    run += 1
                ends.append(run * g.block)
        else:
            for g in self.groups:
                known = (b for b, s in self.pages.get(g.name, {}).items() if s in KNOWN)
                ends += [(b + 1) * g.block for b in known if (b + 1) * g.block < self.limit]
        for t in self.tips:
            if all(self._has(g, t) for g in self.prefix):
                ends.append(t)
        return max(ends)

    def _gap(self, group: Group) -> int | None:
        """First own block of a Prefix group inside the matched span that is not ready."""
        for b in needed(group, self.matched):
            if b in self.counted(group, self.matched) and self.state(group, b, self.matched) not in KNOWN:
                return b
        return None

    def _whole(self) -> int:
        """Length that no Prefix group cuts: up to its first gap, or a longer tip that needs no gap."""
        cut = min([self.matched] + [b * g.block for g in self.prefix if (b := self._gap(g)) is not None])
        history = (t for t in self.tips if t <= self.matched and all(self._has(g, t) for g in self.prefix))
        return max([cut, *history])

    def _has(self, group: Group, t: int) -> bool:
        return all(self.state(group, b, t) in KNOWN for b in needed(group, t))

    def _foreign(self, group: Group, t: int) -> int | None:
        return next((b for b in self.counted(group, t) if self.state(group, b, t) == FOREIGN), None)

    def _stuck(self, group: Group, t: int) -> int | None:
        """Own block that keeps this group from resuming at t."""
        gaps = (b for b in self.counted(group, t) if self.state(group, b, t) != READY)
        inside = t // group.block if t % group.block and t not in self.tips else None
        return next(gaps, inside)

    def _code(self, check: int, group: Group, block: int, t: int) -> str:
        if check == ABI:
            return "format"
        if check == ALIGNED:
            return "aligned"
        if check == GROUPS and (block + 1) * group.block > t and t not in self.tips:
            return "partial"
        state = self.state(group, block, t)
        if state == FILLING:
            return "filling"
        return "lagging" if group.indexer else "missing"

    def _blame(self, check: int, t: int) -> Why:
        """Among the groups that fail a check at t: the one whose failing block starts lowest."""
        finders = {
            COMPLETE: lambda g: self._gap(g) if g.rule == "prefix" else None,
            ABI: lambda g: self._foreign(g, t),
            GROUPS: lambda g: self._stuck(g, t),
            ALIGNED: lambda g: next(iter(needed(g, t)), None) if g.name in self.misaligned else None,
        }
        failing = [(g, b) for g in self.groups if (b := finders[check](g)) is not None]
        group, block = min(failing, key=lambda item: item[1] * item[0].block)  # min keeps the first of equals
        return Why(check, group.name, block, self._code(check, group, block, t))

    def answer(self, drop: int = 0) -> Answer:
        """Apply the checks in order, each to the length that the earlier ones left."""
        whole = self._whole()
        lengths = [whole, *(t for t in self.candidates(whole) if t < whole), 0]
        same = next(t for t in lengths if all(self._foreign(g, t) is None for g in self.groups))
        joint = next((t for t in self.candidates(same) if self.usable(t)), 0)
        fine = [t for t in self.candidates(self.matched) if self.usable(t) and self.aligned(t)]
        best = fine[0] if fine else 0
        final = next((t for t in fine if t <= best - drop), 0)
        lost = {
            COMPLETE: self.matched - whole,
            ABI: whole - same,
            GROUPS: same - joint + best - final,
            ALIGNED: joint - best,
        }
        lost = {check: tokens for check, tokens in lost.items() if tokens}
        why = None
        if lost:
            check = max(lost, key=lambda c: (lost[c], -c))
            if check == GROUPS and same == joint:
                why = Why(GROUPS, None, None, "drop")
            else:
                why = self._blame(check, {COMPLETE: self.matched, ABI: whole, GROUPS: same}.get(check, joint))
        held = {g.name: needed(g, final) if final else [] for g in self.groups}
        return Answer(self.matched, final, sorted(fine), lost, why, held)
