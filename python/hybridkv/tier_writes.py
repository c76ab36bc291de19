# SPDX-License-Identifier: Apache-2.0
"""When a published prefix is stored in the tier by itself: at once, before it may be evicted, or never."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from hybridkv import _core
from hybridkv.errors import ArgumentError
from hybridkv.kinds import StateKind
from hybridkv.tiers import TierStatus

if TYPE_CHECKING:
    from hybridkv.transfers import Tiered

TIER_WRITES = ("none", "through", "back")

LOW_FREE = 0.1
"""Of a pool: where less is free, eviction is near, and prefixes that are not stored would be lost to it."""

CLEAN_SHARE = 0.25
"""Of the units that hold a page: so many are to be stored while eviction is near, those longest unwritten first."""

_MOST_UNSTORED = 4096  # prefixes remembered; beyond, the oldest is stored at once
_STORED_SHARE = 4  # times the units that fit the cache: so long may the prefixes be that are remembered as stored
_ASKED_A_POLL = 4  # of them, whether the tier has them still


class TierWrites:
    """Prefixes that were published and are not stored yet.

    Write-through looks at what each publish added, and at what of the history below was not stored before; a boundary
    that could not be stored when it was published is stored when somebody offloads it.

    Write-back never delays an eviction: what is evicted before it was stored is lost to the tier, as without one. It
    stores the prefixes that were written longest ago, since those are the next to go. What it stored and the tier has
    dropped since, while it is still in memory, it stores again: as many prefixes as were published, all in all, so that
    a tier smaller than the memory above it is not written for ever.

    Parameters
    ----------
    mode : {"none", "through", "back"}
        Never by itself; when a fill is published whole or a ticket is closed; or once eviction is near.

    Raises
    ------
    ArgumentError
        Another mode.
    """

    def __init__(self, mode: str) -> None:
        if not isinstance(mode, str) or mode not in TIER_WRITES:
            raise ArgumentError("tier_writes", f"one of {list(TIER_WRITES)}", mode)
        self.mode = mode
        self._unstored: OrderedDict[bytes, _core.KeyChain] = OrderedDict()
        self._stored: OrderedDict[bytes, _core.KeyChain] = OrderedDict()  # by write-back, the longest ago first
        self._stored_units = 0
        self._again = 0  # prefixes that may be stored again
        self._lost = 0  # copies that the tier had dropped when the prefixes were asked of
        self._unasked = 0  # of _stored, from the front, since
        self._running: list[tuple[bytes, _core.KeyChain, _core.Transfer]] = []
        self._warned = False
        self._unsent: list[str] = []  # why, of prefixes that could not be handed over since that was told

    def note(self, cache: Tiered, keys: _core.KeyChain, since: int, resumed: int) -> None:
        """Take note of a prefix that was published, as :meth:`Tiered._written` does."""
        if self.mode == "none" or keys.tokens == 0:
            return
        if self.mode == "through":
            self._begin(lambda: cache._offload_new(keys, since, resumed))
            return
        name = _name_of(keys)
        self._forget(name)
        self._unstored[name] = keys
        self._unstored.move_to_end(name)
        self._again = min(self._again + 1, _MOST_UNSTORED)
        if len(self._unstored) > _MOST_UNSTORED:
            self._store_oldest(cache)

    def store_due(self, cache: Tiered) -> None:
        """Store what eviction may take next, the longest unwritten first, one prefix at a time."""
        self._settle(cache)
        if (self._unstored or self._stored) and not self._running and self._is_due(cache):
            self._take_dropped(cache, _ASKED_A_POLL)
            if self._unstored:
                self._store_oldest(cache)

    def store_all(self, cache: Tiered) -> None:
        """Store everything that is held back, and what the tier has dropped."""
        self._settle(cache)
        if self._stored:
            cache._core.states()  # which asks the tier
        while self._take_dropped(cache, len(self._stored)):
            pass
        while self._unstored:
            self._store_oldest(cache)

    def forget(self) -> None:
        """Hold nothing back any more, and remember nothing as stored: nobody can ask for it."""
        self._unstored.clear()
        self._stored.clear()
        self._stored_units = self._unasked = 0

    def take_unsent(self) -> str:
        """Tell, once, how many prefixes could not be handed to the tier and why the first; empty where all could."""
        unsent, self._unsent = self._unsent, []
        return f", {len(unsent)} prefixes not handed over ({unsent[0]})" if unsent else ""

    def _is_due(self, cache: Tiered) -> bool:
        core = cache._core
        free = min(core.free_pages(index) / pages for index, pages in enumerate(cache.pages.values()))
        if free >= LOW_FREE:
            return False
        states = core.states(False)
        return bool(states[StateKind.DISK] < CLEAN_SHARE * max(states[: StateKind.DISK]))

    def _store_oldest(self, cache: Tiered) -> None:
        name, keys = self._unstored.popitem(last=False)
        transfer = self._begin(lambda: cache._offload_all(keys))
        if transfer is None:
            return
        self._running.append((name, keys, transfer))

    def _settle(self, cache: Tiered) -> None:
        """Remember what was stored whole: what the tier would not have now is not offered again."""
        running, self._running = self._running, []
        for name, keys, core in running:
            state = core.state()
            if not state[0]:
                self._running.append((name, keys, core))
            elif TierStatus(state[9]) is TierStatus.OK and name not in self._unstored:
                self._remember(name, keys)
        while self._stored and self._stored_units > _STORED_SHARE * cache.blocks:
            self._forget(next(iter(self._stored)))

    def _take_dropped(self, cache: Tiered, most: int) -> bool:
        """Ask of so many stored prefixes whether the tier has them; the first that it has not is held back anew."""
        lost = _core.copies_lost(cache._core)
        if lost != self._lost:
            self._lost, self._unasked = lost, len(self._stored)
        for _ in range(min(most, self._unasked, len(self._stored) if self._again else 0)):
            name = next(iter(self._stored))
            keys = self._forget(name)
            self._unasked -= 1
            if keys is not None and _core.is_unstored(cache._core, keys, cache._kept_boundaries(keys, keys.tokens)):
                self._again -= 1
                self._unstored[name] = keys
                self._unstored.move_to_end(name, last=False)
                return True
            if keys is not None:
                self._remember(name, keys)
        return False

    def _remember(self, name: bytes, keys: _core.KeyChain) -> None:
        self._forget(name)
        self._stored[name] = keys
        self._stored_units += keys.end_unit

    def _forget(self, name: bytes) -> _core.KeyChain | None:
        keys = self._stored.pop(name, None)
        if keys is not None:
            self._stored_units -= keys.end_unit
        return keys

    def _begin(self, offload: Callable[[], _core.Transfer]) -> _core.Transfer | None:
        try:
            return offload()
        except ArgumentError as error:  # of the pools: they may be bound later
            self._unsent.append(str(error))
            warned, self._warned = self._warned, True
            if not warned:
                warnings.warn(f"hybridkv: published prefixes are not stored in the tier: {error}", RuntimeWarning, 2)
        return None


def _name_of(keys: _core.KeyChain) -> bytes:
    return keys.tip_key(keys.end_unit, keys.rest_tokens) if keys.rest_tokens else keys.digests[-1].tobytes()
