# SPDX-License-Identifier: Apache-2.0
"""Who goes first when pages run out: the interface that a cache's user calls, and a least-recently-used order.

There is one order in this package; the replay of traces and the adapters tell it the same three things: what was
used, what was stored, and which pool is short.

History. A use of a prefix touches it from its end to its start. So of two steps of one prefix the later one is
never used more recently, and the order can be kept at the ends alone: only what nothing continues can go, and
what has lost its continuation was used when that was. No history goes from under its continuation.

States. The pages that a resume at a boundary needs of a window or checkpoint group are the boundary's *tail*.
Pages outside every tail go first, for they make nothing usable. Then go the tails of boundaries inside a branch,
where exactly one thing that is known continues them up to the next boundary; then those at the end of a branch
and at forks, where the next prompt will come: in both classes the one that was used last is kept longest. A page
that another boundary needs as well stays. Groups that only together make a boundary usable go together; one that
can be rebuilt by replay goes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Protocol

from hybridkv.arguments import count
from hybridkv.coverage import Prefix
from hybridkv.errors import ArgumentError
from hybridkv.inspection import BlockInfo, own_block_tokens
from hybridkv.keys import BlockKeys
from hybridkv.prefix_tree import Entry, PrefixTree, RankQueue, checked, recorded_block
from hybridkv.spec import CacheGroup, CacheSpec
from hybridkv.tails import Page, Tails

DESCRIPTORS = "blocks"
"""What :attr:`OutOfPages.pool <hybridkv.OutOfPages>` says where the table has no free descriptor."""

_HELD = frozenset({"ready", "ready with copy", "offloading"})
_FEWEST_TO_LOOK_AT = 64  # entries known before it is worth asking which are gone


class EvictionPolicy(Protocol):
    """What is told which prefixes are used, and says what goes when pages run out.

    Every method may be called by one thread at a time only: callers hold a lock.
    """

    def touch(self, keys: BlockKeys, tokens: int, *, states: bool = True) -> None:
        """Note a use of the prefix of `tokens` tokens.

        Parameters
        ----------
        keys : BlockKeys
            From the start of the sequence.
        tokens : int
            At most ``keys.tokens``; a tip's length is not aligned.
        states : bool
            The prefix was resumed from there, so that its windows and checkpoints were read; False: only
            its history was used.

        Raises
        ------
        ArgumentError
            Keys of another unit, a slice, or no length inside them.
        """

    def stored(self, keys: BlockKeys, tokens: int, *, states: bool = True) -> None:
        """Note that the first `tokens` tokens of a prefix now lie in the cache.

        Parameters
        ----------
        keys : BlockKeys
            From the start of the sequence.
        tokens : int
            A multiple of the unit, or ``keys.tokens`` where that is a tip.
        states : bool
            Whether the windows and checkpoints that a resume there needs lie in the cache as well; False:
            history alone.

        Raises
        ------
        ArgumentError
            As :meth:`touch`; a length that is neither aligned nor the tip of these keys.
        """

    def make_room(self, pool: str, keep: Sequence[BlockKeys] = (), *, pages: int = 1) -> int:
        """Retire what frees pages of a pool.

        Parameters
        ----------
        pool : str
            Name of a group, or "blocks": as :attr:`OutOfPages.pool <hybridkv.OutOfPages>` says.
        keep : sequence of BlockKeys
            What these prefixes hold is not retired.
        pages : int
            Pages of that pool that are wanted, ``needed - free`` of the error; more may go, and less
            where nothing is left.

        Returns
        -------
        int
            Pages retired, of all pools together; 0 where nothing is left to evict.

        Raises
        ------
        ArgumentError
            No such pool; keys as in :meth:`touch`; no number of pages.
        """


class PolicyCache(Protocol):
    """The part of :class:`hybridkv.HybridCache` that a policy needs."""

    @property
    def spec(self) -> CacheSpec: ...

    def evict(self, keys: BlockKeys, groups: Mapping[str, bool | Sequence[int]] | None = None) -> int: ...

    def inspect(self, keys: BlockKeys) -> dict[str, list[BlockInfo]]: ...


class LruPolicy:
    """The least recently used prefix goes first; see the head of this module.

    Parameters
    ----------
    cache : HybridCache
        The cache whose pages are retired.

    Attributes
    ----------
    evicted_pages : int
        Pages retired so far.

    Notes
    -----
    Thread safety: none, callers hold a lock. Pages may be pinned, unpinned and taken by other threads meanwhile:
    what is pinned is skipped and stays known.

    Memory: an entry of less than 1 KiB for each step of history that lies in the cache, and for each step up to a
    checkpoint in a spec without history. What went without the policy being told (the cache was reset, a
    fifth tip took the place of the oldest) is dropped when it comes up, and whenever there are twice as many
    entries as were left the last time: then the ends of all prefixes are looked at.
    """

    def __init__(self, cache: PolicyCache) -> None:
        self._cache = cache
        spec = cache.spec
        self._history = tuple(group for group in spec.groups if isinstance(group.coverage, Prefix))
        self._tails = Tails(spec)
        self._tree = PrefixTree(spec, len(self._tails.groups))
        self._leaves = RankQueue()
        # Where every step records history, a step whose history went has no pinned state: a lease pins both.
        self._history_tells = any(own_block_tokens(group) == self._tree.step_tokens for group in self._history)
        self._boundary_tokens = spec.boundary_tokens
        self._now = 0
        self._look_at = _FEWEST_TO_LOOK_AT
        self.evicted_pages = 0

    def __len__(self) -> int:
        """Entries known: steps of prefixes, and tips."""
        return len(self._tree)

    # -- what is told ------------------------------------------------------------------------------

    def touch(self, keys: BlockKeys, tokens: int, *, states: bool = True) -> None:
        """See :meth:`EvictionPolicy.touch`. What is not known is passed over."""
        tokens = checked(self._cache.spec, keys, tokens)
        entry = self._tree.find(keys, tokens)
        if entry.parent is None:
            return
        self._use(entry)
        if states and entry.end == tokens and self._is_boundary(tokens):
            self._tails.note(entry, self._now)  # what was resumed from has its states, whoever stored them

    def stored(self, keys: BlockKeys, tokens: int, *, states: bool = True) -> None:
        """See :meth:`EvictionPolicy.stored`."""
        tokens = checked(self._cache.spec, keys, tokens)
        if tokens % self._tree.unit_tokens and tokens != keys.tokens:
            raise ArgumentError("tokens", f"a multiple of {self._tree.unit_tokens}, or the tip of the keys", tokens)
        entry, new = self._tree.add(keys, tokens)
        if entry.parent is None:
            return
        for made in new:
            parent = made.parent
            assert parent is not None
            self._leaves.drop(parent)
            self._tails.added(made)
            for tip in parent.tips.values():
                if tip.end < made.end and self._tree.holds(keys, tip):
                    self._tails.passed_by(tip, True)
        self._use(entry)
        if new and new[0].parent is not None:
            self._tails.followed(new[0].parent)
        if states and self._is_boundary(tokens):
            self._tails.note(entry, self._now)
        if len(self._tree) >= self._look_at:
            self._drop_gone()
            self._look_at = max(_FEWEST_TO_LOOK_AT, 2 * len(self._tree))

    def _is_boundary(self, tokens: int) -> bool:
        return tokens % self._tree.unit_tokens != 0 or tokens % self._boundary_tokens == 0

    def _use(self, entry: Entry) -> None:
        self._now += 1
        entry.used = self._now
        self._end(entry)

    def _end(self, entry: Entry) -> None:
        """Put an entry that nothing continues in its place."""
        if entry.is_leaf and entry.parent is not None:
            self._leaves.put(entry, (entry.used, 0))

    # -- what goes ---------------------------------------------------------------------------------

    def make_room(self, pool: str, keep: Sequence[BlockKeys] = (), *, pages: int = 1) -> int:
        """See :meth:`EvictionPolicy.make_room`."""
        wanted = count("pages", pages)
        before = self.evicted_pages
        skip = self._kept(keep)
        number = next((n for n, group in enumerate(self._tails.groups) if group.name == pool), None)
        if number is not None:
            self._evict_states(number, wanted, skip)
        elif pool == DESCRIPTORS or any(group.name == pool for group in self._history):
            self._evict_prefixes(pool, wanted, skip)
        else:
            names = [group.name for group in self._cache.spec.groups]
            raise ArgumentError("pool", f"one of {[*names, DESCRIPTORS]}", pool)
        return self.evicted_pages - before

    def _kept(self, keep: Sequence[BlockKeys]) -> set[Entry]:
        """Return what the prefixes hold, tips inside them included."""
        kept: set[Entry] = set()
        for keys in keep:
            last = self._tree.find(keys, checked(self._cache.spec, keys))
            for at in (*last.path(), self._tree.root):
                kept.add(at)
                kept.update(tip for tip in at.tips.values() if self._tree.holds(keys, tip))
        return kept

    def _evict(self, keys: BlockKeys, groups: Mapping[str, bool | Sequence[int]]) -> int:
        gone = self._cache.evict(keys, groups) if groups else 0
        self.evicted_pages += gone
        return gone

    def _holds_pages(self, entry: Entry, groups: Sequence[CacheGroup]) -> bool:
        """Ask the cache whether pages that the entry records are there."""
        keys, base = self._tree.keys_of([entry])
        seen = self._cache.inspect(keys)
        for group in groups:
            block = own_block_tokens(group)
            recorded = recorded_block(entry, block)
            if recorded is None:
                continue
            info = seen[group.name][-1 if entry.tip is not None else recorded - base // block]
            if info.phase in _HELD:
                return True
        return False

    # -- prefixes ----------------------------------------------------------------------------------

    def _evict_prefixes(self, pool: str, wanted: int, skip: set[Entry]) -> None:
        """Retire prefixes from their ends, the least recently used first."""
        if pool == DESCRIPTORS:
            # The error tells of one only, and each refusal costs the caller a walk over its prefix.
            wanted = max(wanted, len(self._tree) // 64)
        while wanted > 0 and (leaf := self._leaves.lowest(skip)) is not None:
            wanted -= self._retire(self._run(leaf, pool, wanted, skip), pool, skip)
        self._leaves.restore()

    def _run(self, leaf: Entry, pool: str, wanted: int, skip: set[Entry]) -> list[Entry]:
        """Return the leaf and as much of what it continues as would go next anyway, so that one call evicts it."""
        block = next((own_block_tokens(group) for group in self._history if group.name == pool), 1)
        self._leaves.drop(leaf)
        other = self._leaves.lowest(skip)
        run = [leaf]
        wanted -= recorded_block(leaf, block) is not None
        used, at = leaf.used, leaf.parent
        alone = leaf.tip is not None or not self._history_tells
        while wanted > 0 and not alone and at is not None and at.parent is not None and at not in skip:
            used = max(used, at.used)
            if len(at.children) > 1 or at.tips or (other is not None and other.used < used):
                break
            run.append(at)
            wanted -= recorded_block(at, block) is not None
            at = at.parent
        run.reverse()
        return run

    def _retire(self, run: list[Entry], pool: str, skip: set[Entry]) -> int:
        """Retire all pages of entries, each after its parent, the last one a leaf.

        Returns
        -------
        int
            Pages of the pool that are free now; entries where it is the table. What is pinned is skipped from now on.
        """
        history, states = self._history, self._tails.groups
        gone = self._evict_all(run, history)
        # A lease pins all history below it, but of states only what it needs: those of what stays must stay.
        left = self._held(run, 0, history, gone)
        gone.update(self._evict_all(run[left:], states))
        left = self._held(run, left, states, gone)
        self._forget(run[left:])
        if left:
            self._end(run[left - 1])
            skip.add(run[left - 1])
        return gone[pool] if pool != DESCRIPTORS else len(run) - left

    def _held(self, run: list[Entry], left: int, groups: Sequence[CacheGroup], gone: Mapping[str, int]) -> int:
        """Return how many entries stay because pages of these groups do; at least `left`."""
        if self._history_tells and all(gone[group.name] >= self._recorded(group, run[left:]) for group in groups):
            return left
        held = len(run)
        while held > left and not self._holds_pages(run[held - 1], groups):
            held -= 1
        return held

    def _recorded(self, group: CacheGroup, run: list[Entry]) -> int:
        """Pages of a group that entries record for all that is known: all history, and of states the tails."""
        block = own_block_tokens(group)
        recording = [entry for entry in run if recorded_block(entry, block) is not None]
        if group in self._history:
            return len(recording)
        number = self._tails.groups.index(group)
        return sum(entry.claims[number] > 0 for entry in recording)

    def _evict_all(self, run: list[Entry], groups: Sequence[CacheGroup]) -> Counter[str]:
        """Retire all that entries, each after its parent, record for some groups; returns how much went, by group."""
        if not run:
            return Counter()
        keys = self._tree.keys_of(run)[0] if run[0].tip is None else run[0].tip
        return Counter({group.name: self._evict(keys, {group.name: True}) for group in groups})

    def _forget(self, run: list[Entry]) -> None:
        """Drop entries whose pages are gone, each after its parent, the last one a leaf."""
        above = run[0].parent if run else None
        if above is None:
            return
        for entry in reversed(run):
            if entry.boundary:
                self._tails.outside.update((at, None) for at, _ in self._tails.drop(entry))
            self._tails.outside.pop(entry, None)
            self._leaves.drop(entry)
            self._tree.remove(entry)
        if not above.children:  # its tips may be ends of branches again
            for tip in above.tips.values():
                longer = (other.tip for other in above.tips.values() if other.end > tip.end)
                passed = any(keys is not None and self._tree.holds(keys, tip) for keys in longer)
                self._tails.passed_by(tip, passed)
        self._end(above)
        self._tails.followed(above)

    def _drop_gone(self) -> None:
        """Drop what went without the policy being told, from the ends of prefixes."""
        for leaf in list(self._leaves):
            run: list[Entry] = []
            for at in leaf.path():
                if len(at.children) + len(at.tips) > len(run[-1:]) or self._holds_pages(at, self._cache.spec.groups):
                    break
                run.append(at)
            self._forget(run[::-1])

    # -- states ------------------------------------------------------------------------------------

    def _evict_states(self, number: int, wanted: int, skip: set[Entry]) -> None:
        """Retire pages outside every tail, then tails, those of the boundary that is worth least first."""
        which = self._tails.set_of(number)
        kept = frozenset(skip)
        wanted -= self._evict_outside(number, wanted, kept)
        while wanted > 0 and (entry := self._tails.lowest(which, skip)) is not None:
            if entry.tip is None or self._tails.may_go_alone(number):
                wanted -= self._evict_tail(entry, number, skip, kept)
                continue
            # A tip's history is of use to it alone. What its tail has in whole steps may be in no tail now.
            wanted -= self._retire([entry], self._tails.groups[number].name, skip)
            wanted -= self._evict_outside(number, wanted, kept)
        self._tails.restore()
        if wanted > 0:  # pages that nobody told of: stored where the history was known, or pinned when it was looked at
            for entry in self._tree:
                self._tails.added(entry)
            self._evict_outside(number, wanted, kept)

    def _evict_outside(self, number: int, wanted: int, kept: Collection[Entry]) -> int:
        """Retire pages that no boundary needs; returns how many of them the group has free now."""
        freed = 0
        pages: list[Page] = []
        last: Entry | None = None
        for entry in list(self._tails.outside):
            if entry in kept:
                continue
            if entry.parent is not last:
                freed += self._evict_pages(pages)[number]
                pages = []
                if freed >= wanted:
                    break
            del self._tails.outside[entry]
            pages += self._tails.unclaimed(entry)
            last = entry
        return freed + self._evict_pages(pages)[number]

    def _evict_tail(self, entry: Entry, number: int, skip: set[Entry], kept: Collection[Entry]) -> int:
        """Take a boundary's states away, except what another needs; returns freed pages of the group."""
        used, having = entry.boundary, entry.having
        lost = self._tails.drop(entry, self._tails.set_of(number) if self._tails.may_go_alone(number) else None)
        pages = [page for page in lost if page[0] not in kept]
        self._tails.outside.update((at, None) for at, _ in lost if at in kept)
        self._tails.followed(entry)
        gone = self._evict_pages(pages)
        if gone.total() < len(pages) and any(self._holds_pages(at, (self._tails.groups[n],)) for at, n in pages):
            self._tails.note(entry, used, having)  # pinned: what is left may be whole
            skip.add(entry)
        elif not self._history:
            self._prune(entry)
        return gone[number]

    def _evict_pages(self, pages: list[Page]) -> Counter[int]:
        """Retire pages that lie on one path, from its start on; returns how many went, by group."""
        gone: Counter[int] = Counter()
        steps = [at for at, _ in pages if at.tip is None]
        if steps:
            run = list(takewhile(lambda at: at is not steps[0].parent, steps[-1].path()))
            keys, base = self._tree.keys_of(run[::-1])
        for number in sorted({number for _, number in pages}):
            group = self._tails.groups[number]
            block = own_block_tokens(group)
            blocks = [(at.end - base) // block - 1 for at, n in pages if n == number and at.tip is None]
            if blocks:
                gone[number] += self._evict(keys, {group.name: blocks})
            for tip in (at.tip for at, n in pages if n == number and at.tip is not None):
                gone[number] += self._evict(tip, {group.name: True})
        return gone

    def _prune(self, entry: Entry) -> None:
        """Without history, what no boundary needs records nothing, as a rule."""
        run: list[Entry] = []
        for at in entry.path():
            if len(at.children) + len(at.tips) > len(run[-1:]) or any(at.claims):
                break
            if at in self._tails.outside and self._holds_pages(at, self._tails.groups):
                break
            run.append(at)
        self._forget(run[::-1])
