# SPDX-License-Identifier: Apache-2.0
"""The prefixes that lie in a cache, as a tree, for policies that have to know what continues what.

An entry is one *step* of a prefix: the greatest common divisor of the groups' blocks, named by the key of its
last unit; a tip is an entry too, named by its own key. An entry knows its parent, so that of a path only the
names are kept, 16 bytes each, and not the prompts that they came from. A tip keeps its keys: only they can take
it out of its directory. Their prefix lies in the cache as long as the tip does.

Thread safety: none; whoever owns the tree holds a lock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

from hybridkv.arguments import length
from hybridkv.errors import ArgumentError
from hybridkv.inspection import own_block_tokens
from hybridkv.keys import BlockKeys
from hybridkv.spec import CacheSpec

_NO_KEY = bytes(16)  # stands where no group records a block: nothing is looked up there
_NOTHING: dict[bytes, Entry] = {}


class Entry:
    """One step of a prefix, or a tip.

    Attributes
    ----------
    name : bytes
        Key of its last unit, or of the tip; empty at the root.
    end : int
        Tokens from the start of the sequence to its end.
    parent : Entry or None
        What it continues; None for the root.
    children, tips : dict of bytes to Entry
        What continues it.
    tip : BlockKeys or None
        Keys of a tip without its whole units; None for a step.
    passed : bool
        A tip that something longer continues: no end of a branch.
    used : int
        When it, or what continued it and is gone, was used last.
    boundary : int
        When its states were used last; 0 where it is no boundary.
    having : int
        Which sets of states the boundary has, one bit each.
    claims : tuple of int
        By group with states: boundaries that need the page which this entry records.
    """

    __slots__ = ("boundary", "children", "claims", "end", "having", "name", "parent", "passed", "tip", "tips", "used")

    def __init__(
        self, name: bytes, end: int, parent: Entry | None, claims: tuple[int, ...], tip: BlockKeys | None = None
    ) -> None:
        self.name = name
        self.end = end
        self.parent = parent
        # Few entries have tips: the others share what is empty.
        self.children: dict[bytes, Entry] = _NOTHING
        self.tips: dict[bytes, Entry] = _NOTHING
        self.claims = claims
        self.tip = tip
        self.passed = False
        self.used = 0
        self.boundary = 0
        self.having = 0

    @property
    def is_leaf(self) -> bool:
        """Whether nothing that is known continues it."""
        return not self.children and not self.tips

    def claim(self, number: int, change: int) -> int:
        """Count one boundary more or less that needs the page of a group; returns how many there are."""
        claims = list(self.claims)
        claims[number] += change
        self.claims = tuple(claims)
        return claims[number]

    def path(self) -> Iterator[Entry]:
        """Yield this entry and what it continues, up to the root and without it."""
        entry = self
        while entry.parent is not None:
            yield entry
            entry = entry.parent

    def branches(self) -> list[Entry]:
        """Return what continues it, tips left out that something longer continues; two at most."""
        found: list[Entry] = []
        for entry in chain(self.tips.values(), self.children.values()) if self.tips else self.children.values():
            if not entry.passed:
                found.append(entry)
                if len(found) == 2:
                    break
        return found


class PrefixTree:
    """Entries by name, and the keys to evict them by.

    Parameters
    ----------
    spec : CacheSpec
        Of the cache.
    claims : int
        Groups that entries count claims for.
    """

    def __init__(self, spec: CacheSpec, claims: int) -> None:
        blocks = [own_block_tokens(group) for group in spec.groups]
        self.step_tokens = math.gcd(*blocks)
        self.unit_tokens = spec.unit_tokens
        self._unclaimed = (0,) * claims
        self.root = Entry(b"", 0, None, self._unclaimed)
        self._step_units = self.step_tokens // spec.unit_tokens
        self._period = math.lcm(*blocks) // self.step_tokens
        self._entries: dict[bytes, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: object) -> bool:
        return isinstance(entry, Entry) and self._entries.get(entry.name) is entry

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def find(self, keys: BlockKeys, tokens: int) -> Entry:
        """Return the longest entry that is a prefix of the first `tokens` tokens; the root where none is known.

        Of tips only that of exactly `tokens` tokens is looked for.
        """
        rest = tokens % self.unit_tokens
        if rest and keys._core.has_tokens:
            tip = self._entries.get(keys._core.tip_key(tokens // self.unit_tokens, rest))
            if tip is not None:
                return tip
        digests, units = keys.digests, self._step_units
        for row in range(tokens // self.step_tokens * units - 1, -1, -units):
            entry = self._entries.get(digests[row].tobytes())
            if entry is not None:
                return entry
        return self.root

    def add(self, keys: BlockKeys, tokens: int) -> tuple[Entry, list[Entry]]:
        """Make the entry that ends at `tokens`, and all that leads to it.

        Parameters
        ----------
        keys : BlockKeys
            From the start of the sequence.
        tokens : int
            Rounded down to a step; ``keys.tokens`` where that is a tip.

        Returns
        -------
        entry : Entry
            The last one, or the root.
        new : list of Entry
            Those that were not known, each after its parent.
        """
        entry = self.find(keys, tokens - tokens % self.step_tokens)
        new = []
        if entry.end + self.step_tokens <= tokens:
            units = self._step_units
            raw = keys.digests[units - 1 : tokens // self.step_tokens * units : units].tobytes()
            for at in range(entry.end // self.step_tokens * 16, len(raw), 16):
                name = raw[at : at + 16]
                entry = self._made(Entry(name, entry.end + self.step_tokens, entry, self._unclaimed))
                new.append(entry)
        rest = tokens % self.unit_tokens
        if rest:
            name = keys._core.tip_key(tokens // self.unit_tokens, rest)
            tip = self._entries.get(name)
            if tip is None:
                tip = self._made(Entry(name, tokens, entry, self._unclaimed, keys[len(keys) :]))
                new.append(tip)
            entry = tip
        return entry, new

    def _made(self, entry: Entry) -> Entry:
        parent = entry.parent
        assert parent is not None
        if entry.tip is None:
            if parent.children is _NOTHING:
                parent.children = {}
            parent.children[entry.name] = entry
        else:
            if parent.tips is _NOTHING:
                parent.tips = {}
            parent.tips[entry.name] = entry
        self._entries[entry.name] = entry
        return entry

    def remove(self, leaf: Entry) -> Entry:
        """Take out an entry that nothing continues; returns its parent, which was used when it was."""
        parent = leaf.parent
        assert parent is not None and leaf.is_leaf
        del self._entries[leaf.name]
        del (parent.children if leaf.tip is None else parent.tips)[leaf.name]
        parent.used = max(parent.used, leaf.used)
        leaf.parent = None  # a queue may hold on to it for a while, and must not to all that it continued
        return parent

    def holds(self, keys: BlockKeys, tip: Entry) -> bool:
        """Say whether the tip is a prefix of these keys, given that its parent is."""
        core = keys._core
        if not core.has_tokens or core.tokens < tip.end:
            return False
        return bool(core.tip_key(tip.end // self.unit_tokens, tip.end % self.unit_tokens) == tip.name)

    def keys_of(self, run: Sequence[Entry]) -> tuple[BlockKeys, int]:
        """Return keys of entries that continue one another, and the step that they count from.

        Which of its blocks end where is told by the position in the sequence, but only up to the common
        multiple of all blocks. So keys are made from the names, after as many as bring them to such a position.

        Parameters
        ----------
        run : sequence of Entry
            Steps, each after its parent; or one tip, which then stands for a step at which every group's block
            ends, as the tip's pages are found under its key.

        Returns
        -------
        keys : BlockKeys
            A slice that begins with the run.
        base : int
            Tokens to take off the position in the sequence for the one in these keys.
        """
        before = self._period - 1 if run[0].tip is not None else (run[0].end // self.step_tokens - 1) % self._period
        hashes = [_NO_KEY] * ((before + len(run)) * self._step_units)
        hashes[(before + 1) * self._step_units - 1 :: self._step_units] = [entry.name for entry in run]
        keys = BlockKeys.from_hashes(hashes, self.unit_tokens)
        return keys[before * self._step_units :], run[0].end - (before + 1) * self.step_tokens


class RankQueue:
    """Entries by rank, the lowest first. What was put again or dropped is passed over when it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], int, Entry]] = []
        self._aside: list[tuple[tuple[int, int], int, Entry]] = []
        self._ranks: dict[Entry, tuple[int, int]] = {}
        self._count = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._ranks)

    def put(self, entry: Entry, rank: tuple[int, int]) -> None:
        """Put an entry in, or give it another rank."""
        if self._ranks.get(entry) == rank:
            return
        self._ranks[entry] = rank
        self._count += 1
        heappush(self._heap, (rank, self._count, entry))
        if len(self._heap) > 2 * len(self._ranks) + 64:
            self._heap = [item for item in self._heap if self._ranks.get(item[2]) == item[0]]
            heapify(self._heap)

    def drop(self, entry: Entry) -> None:
        """Take an entry out, if it is in."""
        self._ranks.pop(entry, None)

    def lowest(self, skip: Collection[Entry]) -> Entry | None:
        """Return the entry of the lowest rank that is not in `skip`, which stays in; None where there is none.

        What is skipped is looked at once until :meth:`restore`, however often this is asked.
        """
        while self._heap:
            rank, _, entry = self._heap[0]
            if self._ranks.get(entry) != rank:
                heappop(self._heap)
            elif entry in skip:
                self._aside.append(heappop(self._heap))
            else:
                return entry
        return None

    def restore(self) -> None:
        """Stop skipping."""
        for item in self._aside:
            heappush(self._heap, item)
        self._aside.clear()


def recorded_block(entry: Entry, block_tokens: int) -> int | None:
    """Return the own block that an entry records for a group of such blocks; None where it records none."""
    if entry.tip is not None:
        return entry.end // block_tokens
    return None if entry.end % block_tokens else entry.end // block_tokens - 1


def checked(spec: CacheSpec, keys: BlockKeys, tokens: int | None = None) -> int:
    """Check keys that a policy is told of, and a length in them.

    Returns
    -------
    int
        The length; ``keys.tokens`` where `tokens` is None.

    Raises
    ------
    ArgumentError
        No keys of this spec from the start of a sequence, or no length inside them.
    """
    if not isinstance(keys, BlockKeys):
        raise ArgumentError("keys", "BlockKeys", type(keys).__name__)
    if keys.unit_tokens != spec.unit_tokens:
        raise ArgumentError("keys", f"keys of unit {spec.unit_tokens}", f"unit {keys.unit_tokens}")
    if keys._core.begin_unit:
        raise ArgumentError("keys", "keys from the start of the sequence", f"a slice from unit {keys._core.begin_unit}")
    if tokens is None:
        return keys.tokens
    tokens = length("tokens", tokens)
    if tokens > keys.tokens:
        raise ArgumentError("tokens", f"a length, 0 to {keys.tokens}", tokens)
    return tokens
