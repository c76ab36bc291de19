# SPDX-License-Identifier: Apache-2.0
"""Pools of a cache as arenas of its tier, so that loads go into their pages in the cheapest way."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hybridkv.errors import ArgumentError, Busy, Closed
from hybridkv.pools import PoolArray
from hybridkv.tiers import Tier


class PoolArenas:
    """What a tier knows of the pools of one cache: host arrays whose pages lie behind each other and may be written.

    An array that the tier cannot take changes nothing but speed: one that overlaps another arena (two groups in one
    array, or memory that its user registered), or of a tier that is closed. One that an ask of the tier still uses is
    dropped later; the tier keeps it alive until then.
    """

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._known: dict[str, list[int]] = {}  # addresses by group
        self._stale: list[int] = []
        self._lock = threading.Lock()

    def bound(self, group: str, arrays: Sequence[PoolArray]) -> None:
        """Take note that a group's pool is these arrays now."""
        with self._lock:
            self._drop(self._known.pop(group, []))
            known = self._known[group] = []
            for array in arrays:
                if not (array.host and array.writable) or (array.stride != array.page_bytes and array.pages > 1):
                    continue
                try:
                    self._tier._keep_arena(array.base, array.page_bytes * array.pages, array.keepalive)
                except (ArgumentError, Closed):
                    continue
                known.append(array.base)

    def unbound(self) -> None:
        """Take note that the cache has no pools any more."""
        with self._lock:
            for addresses in self._known.values():
                self._stale += addresses
            self._known.clear()
            self._drop([])

    def _drop(self, addresses: list[int]) -> None:
        self._stale += addresses
        waiting = []
        for address in self._stale:
            try:
                self._tier._let_arena_go(address)
            except Busy:
                waiting.append(address)
            except (ArgumentError, Closed):  # its user dropped it, or another process has the tier
                pass
        self._stale = waiting
