# SPDX-License-Identifier: Apache-2.0
"""The order of eviction as its definition reads: a log of uses, and sets of prefixes that are searched in whole.

Prefixes are tuples of token ids. What lies in the cache, and what is pinned there, is asked before each eviction
and given as sets of (prefix, group): the page that the group records at the end of that prefix.
"""

from __future__ import annotations

from collections.abc import Iterable

import hybridkv as hk

Tokens = tuple[int, ...]
Page = tuple[Tokens, str]


class NaivePolicy:
    """What :class:`hybridkv.LruPolicy` should do, without a thought for time or memory."""

    def __init__(self, spec: hk.CacheSpec, step: int) -> None:
        self.spec = spec
        self.step = step
        self.history = [g.name for g in spec.groups if isinstance(g.coverage, hk.Prefix)]
        self.states = [g.name for g in spec.groups if g.name not in self.history]
        self.rebuilt = [g.name for g in spec.groups if g.rebuildable]
        self.uses: list[Tokens] = []
        self.known: set[Tokens] = set()
        self.passed: set[Tokens] = set()
        self.boundaries: dict[Tokens, int] = {}  # number of the use that read its states last
        self.having: dict[Tokens, set[str]] = {}  # groups whose states it has not lost

    # -- prefixes ----------------------------------------------------------------------------------

    def is_tip(self, prefix: Tokens) -> bool:
        return len(prefix) % self.spec.unit_tokens != 0

    def path(self, tokens: Tokens) -> list[Tokens]:
        """Steps of a prefix, and its tip."""
        steps = [tokens[:end] for end in range(self.step, len(tokens) + 1, self.step)]
        return [*steps, tokens] if self.is_tip(tokens) else steps

    def parent(self, prefix: Tokens) -> Tokens:
        return prefix[: (len(prefix) - 1) // self.step * self.step]

    def children(self, prefix: Tokens) -> list[Tokens]:
        return [one for one in self.known if self.parent(one) == prefix and one != prefix]

    def is_boundary(self, prefix: Tokens) -> bool:
        return self.is_tip(prefix) or len(prefix) % self.spec.boundary_tokens == 0

    def last_use(self, prefix: Tokens) -> int:
        """A use of what continues a prefix uses the prefix; a tip is used by itself alone."""
        if self.is_tip(prefix):
            return max(n for n, used in enumerate(self.uses) if used == prefix)
        return max(n for n, used in enumerate(self.uses) if used[: len(prefix)] == prefix)

    # -- what is told ------------------------------------------------------------------------------

    def touch(self, tokens: Tokens, *, states: bool = True) -> None:
        known = [one for one in self.path(tokens) if one in self.known]
        if not known:
            return
        self.uses.append(max(known, key=len))
        if states and tokens in self.known and self.is_boundary(tokens):
            self._read(tokens)

    def stored(self, whole: Tokens, tokens: Tokens, *, states: bool = True) -> None:
        path = self.path(tokens)
        for one in path:
            if one not in self.known:
                for tip in self.children(self.parent(one)):
                    if self.is_tip(tip) and len(tip) < len(one) and whole[: len(tip)] == tip:
                        self.passed.add(tip)
                self.known.add(one)
        if not path:
            return
        self.uses.append(path[-1])
        if states and self.is_boundary(tokens):
            self._read(tokens)

    def _read(self, prefix: Tokens) -> None:
        self.boundaries[prefix] = len(self.uses)
        self.having[prefix] = set(self.states)

    # -- what is worth what ------------------------------------------------------------------------

    def tail(self, prefix: Tokens, groups: Iterable[str]) -> set[Page]:
        """Pages that a resume at a prefix needs of some state groups."""
        needs = self.spec.requirements(len(prefix))
        found = set()
        for name in groups:
            block = self.spec.group(name).block_tokens or 1
            for index in needs[name].blocks:
                end = (index + 1) * block
                if end <= len(prefix):
                    found.add((prefix[:end], name))
                elif self.is_tip(prefix):
                    found.add((prefix, name))
        return found

    def claimed(self, without: Tokens | None = None, groups: Iterable[str] = ()) -> set[Page]:
        """Pages in any tail; those of one boundary may be left out."""
        found = set()
        for one in self.boundaries:
            found |= self.tail(one, self.having[one] - set(groups) if one == without else self.having[one])
        return found

    def ends_branch(self, prefix: Tokens) -> bool:
        if prefix in self.passed:
            return False
        follow = [one for one in self.children(prefix) if one not in self.passed]
        if len(follow) != 1:
            return True
        return follow[0] not in self.boundaries and self.ends_branch(follow[0])

    # -- what goes ---------------------------------------------------------------------------------

    def kept(self, keep: Iterable[Tokens]) -> set[Tokens]:
        return {one for one in self.known for whole in keep if whole[: len(one)] == one}

    def forget(self, prefix: Tokens) -> None:
        self.known.discard(prefix)
        self.passed.discard(prefix)
        self.boundaries.pop(prefix, None)
        self.having.pop(prefix, None)
        others = self.children(self.parent(prefix))
        if all(self.is_tip(one) for one in others):
            for tip in others:
                self.passed.discard(tip)
                if any(one[: len(tip)] == tip and one != tip for one in others):
                    self.passed.add(tip)

    def take(self, prefix: Tokens, pages: set[Page], pinned: set[Page]) -> set[Page]:
        """Take all pages of the end of a prefix; it is forgotten where none is left."""
        gone = {page for page in pages - pinned if page[0] == prefix}
        # Whoever pins its history pins it all; its states stay with it.
        if any((prefix, name) in pinned & pages for name in self.history):
            gone = {page for page in gone if page[1] in self.history}
        pages -= gone
        if not any(page[0] == prefix for page in pages):
            self.forget(prefix)
        return gone

    def evict_prefixes(
        self, pool: str, wanted: int, kept: set[Tokens], pages: set[Page], pinned: set[Page]
    ) -> set[Page]:
        gone: set[Page] = set()
        skip = set(kept)
        while wanted > 0:
            ends = [one for one in self.known - skip if not self.children(one) or self.is_tip(one)]
            if not ends:
                break
            oldest = min(ends, key=self.last_use)
            taken = self.take(oldest, pages, pinned)
            gone |= taken
            if pool == "blocks":
                wanted -= oldest not in self.known
            else:
                wanted -= sum(page[1] == pool for page in taken)
            if oldest in self.known:
                skip.add(oldest)
        return gone

    def outside(self, kept: set[Tokens], pages: set[Page]) -> set[Page]:
        """Pages of states that are in no tail."""
        return {page for page in pages - self.claimed() if page[1] in self.states and page[0] not in kept}

    def evict_states(self, pool: str, wanted: int, kept: set[Tokens], pages: set[Page], pinned: set[Page]) -> set[Page]:
        """What goes after all that is in no tail has gone."""
        gone: set[Page] = set()
        skip = set(kept)
        together = {pool} if pool in self.rebuilt else set(self.states) - set(self.rebuilt)
        while wanted > 0:
            having = [one for one in self.boundaries if together <= self.having[one] and one not in skip]
            if not having:
                break
            least = min(having, key=lambda one: (self.ends_branch(one), self.boundaries[one]))
            if self.is_tip(least) and pool not in self.rebuilt:
                taken = self.take(least, pages, pinned)
                wanted -= sum(page[1] == pool for page in taken)
                if wanted > 0:
                    taken |= (more := self.outside(kept, pages) - pinned)
                    pages -= more
                    wanted -= sum(page[1] == pool for page in more)
                if least in self.known:
                    skip.add(least)
            else:
                lost = together if pool in self.rebuilt else set(self.states)
                alone = self.tail(least, lost & self.having[least]) - self.claimed(least, lost)
                alone = {page for page in alone & pages if page[0] not in kept}
                taken = alone - pinned
                pages -= taken
                wanted -= sum(page[1] == pool for page in taken)
                if alone & pinned:
                    skip.add(least)
                else:
                    self.having[least] -= lost
                    if lost != {pool} or pool not in self.rebuilt:
                        del self.boundaries[least], self.having[least]
                    if not self.history:
                        self.prune(least, kept, pages)
            gone |= taken
        return gone

    def prune(self, prefix: Tokens, kept: set[Tokens], pages: set[Page]) -> None:
        """Without history, an end that records nothing is not known any more."""
        while prefix in self.known and not self.children(prefix):
            if any(page[0] == prefix for page in pages) or any(page[0] == prefix for page in self.claimed()):
                break
            self.forget(prefix)
            prefix = self.parent(prefix)
