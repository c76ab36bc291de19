# SPDX-License-Identifier: Apache-2.0
"""Publishing rows as pages, and making room for them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hybridkv.adapters.transformers.layout import is_state
from hybridkv.adapters.transformers.pages import Pages, Span
from hybridkv.adapters.transformers.rebuild import State
from hybridkv.cache import HybridCache
from hybridkv.errors import OutOfPages
from hybridkv.fill import Fill
from hybridkv.formats import KvFormat
from hybridkv.keys import BlockKeys
from hybridkv.policy import EvictionPolicy


@dataclass(frozen=True)
class Written:
    """What goes into one page: a span of rows, and the state that they come from."""

    span: Span
    state: State


class Store:
    """Pages of a cache, filled from live states.

    Parameters
    ----------
    cache : HybridCache
        Its pools are those of ``pages``.
    pages : Pages
    policy : EvictionPolicy
        Asked for room where a pool is short.

    Attributes
    ----------
    not_stored : collections.Counter
        Boundaries that were not kept, by the pool that had no room.
    formats : dict of str to KvFormat, or None
        What is written now, where it is not what the spec of the cache says.
    unpin : callable
        Waits until something that pins pages for a while lets go of them; says whether there was such a thing.

    Notes
    -----
    Thread safety: any thread may call. The policy is asked under a lock; bytes are written outside it.
    """

    def __init__(self, cache: HybridCache, pages: Pages, policy: EvictionPolicy) -> None:
        self.cache = cache
        self.pages = pages
        self.not_stored: Counter[str] = Counter()
        self.formats: dict[str, KvFormat] | None = None
        self.unpin: Callable[[], bool] = lambda: False
        self._policy = policy
        self._state_pools = {group.name for group in cache.spec.groups if is_state(group)}
        self._lock = threading.Lock()

    def publish(
        self,
        keys: BlockKeys,
        written: Mapping[str, Mapping[int, Written]],
        in_use: Sequence[BlockKeys],
        *,
        whole: bool = True,
    ) -> bool:
        """Store pages of a prefix, all or none.

        Parameters
        ----------
        keys : BlockKeys
            From the start of the sequence to the end of the pages; with a partial rest a tip is stored.
        written : mapping of str to mapping of int to Written
            By group and own block.
        in_use : sequence of BlockKeys
            Prefixes that are not to be evicted for it.
        whole : bool, optional
            Whether a resume at the end is possible: every window and checkpoint that it needs is there.

        Returns
        -------
        bool
            False where no room could be made: nothing is stored then, and it is counted.
        """
        groups = {name: list(blocks) for name, blocks in written.items() if blocks}
        fill = self._reserve(keys, groups, in_use)
        if fill is None:
            return False
        try:
            self._write(fill, written)
        except BaseException:
            fill.abort()
            raise
        fill.publish()
        self.note(keys, keys.tokens, whole=whole)
        return True

    def note(self, keys: BlockKeys, tokens: int, *, whole: bool) -> None:
        """Tell the policy that a prefix lies in the cache; ``whole``: and what a resume at its end needs."""
        with self._lock:
            self._policy.stored(keys, tokens, states=whole)

    def _write(self, fill: Fill, written: Mapping[str, Mapping[int, Written]]) -> None:
        for name, blocks in written.items():
            ids = fill.page_ids(name) if blocks else ()
            for block, content in blocks.items():
                if ids[block] >= 0:  # else the block is ready already
                    self.pages.write(name, int(ids[block]), content.span, content.state)

    def touch(self, keys: BlockKeys, tokens: int) -> None:
        """Tell the policy that a prefix was resumed from."""
        with self._lock:
            self._policy.touch(keys, tokens)

    def _reserve(self, keys: BlockKeys, groups: dict[str, list[int]], in_use: Sequence[BlockKeys]) -> Fill | None:
        while True:
            try:
                return self.cache.reserve(keys, groups=groups, formats=self.formats)
            except OutOfPages as error:
                if not self.make_room(error, [keys, *in_use]) and not self.unpin():
                    with self._lock:
                        self.not_stored[error.pool] += 1
                    return None

    def make_room(self, error: OutOfPages, keep: Sequence[BlockKeys]) -> int:
        """Evict for what was refused.

        Parameters
        ----------
        error : OutOfPages
        keep : sequence of BlockKeys
            Prefixes in use.

        Returns
        -------
        int
            Pages retired; 0 where nothing is left to evict.
        """
        pages = max(1, error.needed - error.free)
        with self._lock:
            gone = self._policy.make_room(error.pool, keep, pages=pages)
            if not gone and error.pool in self._state_pools:
                # Of what is in use history stays; boundaries inside a long prompt make room for its later ones.
                gone = self._policy.make_room(error.pool, pages=pages)
        return gone
