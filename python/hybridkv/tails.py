# SPDX-License-Identifier: Apache-2.0
"""The boundaries of the prefixes in a cache: which pages of window and checkpoint groups each needs, its *tail*, and
which of them are worth least.

Boundaries inside a branch are worth less than its end: exactly one thing that is known continues them up to the
next boundary. The end of a branch, and the last boundary before a fork, is where the next prompt will come. Of
two in one class the one that was used earlier is worth less.

Groups that only together make a boundary usable are one *set*; a group that can be rebuilt by replay is a set of
its own.
"""

from __future__ import annotations

from collections.abc import Collection

from hybridkv import _core
from hybridkv.coverage import Prefix
from hybridkv.inspection import own_block_tokens
from hybridkv.prefix_tree import Entry, RankQueue, recorded_block
from hybridkv.spec import CacheGroup, CacheSpec

Page = tuple[Entry, int]
"""A page of a state group: the entry that records it, and the group's number in :attr:`Tails.groups`."""


class Tails:
    """Boundaries, in the order in which they lose their states.

    Parameters
    ----------
    spec : CacheSpec
        Of the cache.

    Attributes
    ----------
    groups : tuple of CacheGroup
        The groups with states, those without ``Prefix`` coverage.
    outside : dict of Entry to None
        Entries that may record a page which is in no tail, the oldest first.
    """

    def __init__(self, spec: CacheSpec) -> None:
        self.groups: tuple[CacheGroup, ...] = tuple(g for g in spec.groups if not isinstance(g.coverage, Prefix))
        self.outside: dict[Entry, None] = {}
        numbers = range(len(self.groups))
        kept = [number for number in numbers if not self.groups[number].rebuildable]
        self._sets = ([kept] if kept else []) + [[n] for n in numbers if self.groups[n].rebuildable]
        self._orders = [RankQueue() for _ in self._sets]

    def set_of(self, number: int) -> int:
        """Return the set that a group belongs to."""
        return next(which for which, numbers in enumerate(self._sets) if number in numbers)

    def may_go_alone(self, number: int) -> bool:
        """Say whether a boundary is usable without the group: by replay."""
        return self.groups[number].rebuildable

    # -- what a boundary needs ---------------------------------------------------------------------

    def pages(self, entry: Entry, which: int) -> list[Page]:
        """Return the pages of a set that a resume at the entry needs, from the start of the sequence on."""
        needs = []
        start = entry.end
        for number in self._sets[which]:
            group = self.groups[number]
            block = own_block_tokens(group)
            low, high = _core.needed_blocks(group.coverage.rule, group.coverage.parameter, block, entry.end)
            if low < high:
                needs.append((number, block, low, high))
                start = min(start, low * block)
        found = []
        for at in entry.path():
            if at.end <= start:
                break
            for number, block, low, high in needs:
                recorded = recorded_block(at, block)
                if recorded is not None and low <= recorded < high:
                    found.append((at, number))
        found.reverse()
        return found

    def unclaimed(self, entry: Entry) -> list[Page]:
        """Return the pages that the entry may record and no boundary needs."""
        return [
            (entry, number)
            for number, group in enumerate(self.groups)
            if not entry.claims[number] and recorded_block(entry, own_block_tokens(group)) is not None
        ]

    def added(self, entry: Entry) -> None:
        """Note an entry that was not known: nobody says which states it records."""
        if self.groups:
            self.outside[entry] = None

    # -- boundaries --------------------------------------------------------------------------------

    def note(self, entry: Entry, now: int, having: int = -1) -> None:
        """Note that states of a boundary are there, and when they were used; `having` are sets, one bit each."""
        if not self.groups:
            return
        fresh = not entry.boundary
        entry.boundary = now
        for which in range(len(self._sets)):
            if having & ~entry.having & 1 << which:
                entry.having |= 1 << which
                for at, number in self.pages(entry, which):
                    at.claim(number, 1)
        self._rank(entry)
        if fresh and entry.parent is not None:
            self.followed(entry.parent)

    def drop(self, entry: Entry, which: int | None = None) -> list[Page]:
        """Note that a boundary has lost a set of its states; None: all, it is no boundary any more.

        What it was the next one of has to be told by :meth:`followed`.

        Returns
        -------
        list of Page
            Those that no boundary needs now, from the start of the sequence on.
        """
        freed = []
        for one in range(len(self._sets)) if which is None else (which,):
            if not entry.having >> one & 1:
                continue
            entry.having &= ~(1 << one)
            self._orders[one].drop(entry)
            for at, number in self.pages(entry, one):
                if not at.claim(number, -1):
                    freed.append((at, number))
        if which is None:
            entry.boundary = 0
        return sorted(freed, key=lambda page: page[0].end)

    # -- their order -------------------------------------------------------------------------------

    def lowest(self, which: int, skip: Collection[Entry]) -> Entry | None:
        """Return the boundary that is worth least of those that have a set; :meth:`restore` stops skipping."""
        return self._orders[which].lowest(skip)

    def restore(self) -> None:
        """Stop skipping."""
        for order in self._orders:
            order.restore()

    def passed_by(self, tip: Entry, passed: bool) -> None:
        """Say whether something longer continues a tip, so that it is not the end of a branch."""
        if tip.passed != passed:
            tip.passed = passed
            self._rank(tip)

    def followed(self, entry: Entry) -> None:
        """What follows the entry has changed: so may what the boundary at it, or next above it, is worth."""
        at: Entry | None = entry if self.groups else None
        while at is not None and not at.boundary:
            at = at.parent
        if at is not None:
            self._rank(at)

    def _rank(self, entry: Entry) -> None:
        if entry.boundary:
            rank = (int(ends_branch(entry)), entry.boundary)
            for which, order in enumerate(self._orders):
                if entry.having >> which & 1:
                    order.put(entry, rank)


def ends_branch(entry: Entry) -> bool:
    """Say whether no boundary follows this one before the next fork."""
    if entry.passed:
        return False
    branches = entry.branches()
    while len(branches) == 1:
        if branches[0].boundary:
            return False
        branches = branches[0].branches()
    return True
