# SPDX-License-Identifier: Apache-2.0
"""Hot update: what happens to a cache whose weights are replaced while it lives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hybridkv import _core
from hybridkv.errors import ArgumentError, Busy, StaleIdentity
from hybridkv.identity import Identity

if TYPE_CHECKING:
    from hybridkv.cache_base import CacheBase

ON_CHANGE = ("flush", "refuse", "version")

_LOOK_AGAIN_S = 50e-6  # at publishes that are under way: each is a few CAS long


@dataclass(frozen=True)
class IdentityChange:
    """What an update of the identity did.

    Attributes
    ----------
    on_change : str
        As it was asked for.
    fields : tuple of str
        Fields of the identity that changed.
    evicted : int
        Pages that were given back.
    kept : int
        Pages that could not be: pinned by who reads them, being written, or on their way from or to a tier. Nobody
        finds them any more.
    tickets : int
        Running requests that were failed.
    """

    on_change: str
    fields: tuple[str, ...]
    evicted: int
    kept: int
    tickets: int


class Era:
    """The time between two replacements of the weights: leases and fills belong to the one that they began in.

    Notes
    -----
    A publish is counted in before it looks whether its era is over, and an update says that the era is over before it
    looks who is counted in: so each publish either sees that it is too late, or is waited for before pages are evicted.
    Both are single operations of the interpreter, which orders them for all threads.
    """

    __slots__ = ("over", "publishing", "refused")

    def __init__(self, refused: Mapping[str, tuple[object, ...]]) -> None:
        self.refused = refused  # by field: values that were replaced
        self.over = False
        self.publishing: set[object] = set()

    def check(self, identity: Identity | None) -> None:
        """Refuse keys of what was replaced; keys of an engine's own hashes carry their own identity.

        Raises
        ------
        StaleIdentity
            A field has a value that was replaced.
        """
        if identity is None:
            return
        stale = tuple(name for name, values in self.refused.items() if getattr(identity, name) in values)
        if stale:
            got = ", ".join(stale)
            raise StaleIdentity(
                "keys", "keys of the identity in use", f"keys of one that was replaced ({got})", fields=stale
            )

    def next(self, old: Identity, new: Identity, changed: tuple[str, ...]) -> Era:
        """Return the era after a replacement: it refuses what this one does, and what is replaced now."""
        refused = {name: (*self.refused.get(name, ()), getattr(old, name)) for name in changed}
        merged = {**self.refused, **refused}
        kept = {name: tuple(v for v in values if v != getattr(new, name)) for name, values in merged.items()}
        return Era({name: values for name, values in kept.items() if values})


def changed_identity(cache: CacheBase, identity: Identity, on_change: str) -> IdentityChange:
    """Give a cache another identity; see :meth:`HybridCache.update_identity`."""
    if not isinstance(identity, Identity):
        raise ArgumentError("identity", "an Identity", type(identity).__name__)
    if on_change not in ON_CHANGE:
        raise ArgumentError("on_change", f"one of {list(ON_CHANGE)}", on_change)
    old = cache.spec.identity
    changed = old.differences(identity)
    if not changed:
        raise ArgumentError("identity", "another identity than the cache has", "the same")
    if on_change == "refuse":
        cache._check_idle()
        if used := _pages_in_use(cache):
            raise Busy("cache", "no page that is published or taken", f"{used} pages")
    spec = replace(cache.spec, identity=identity)
    cache._tell_tier(spec)
    if on_change == "version":
        cache.spec, cache._root = spec, None
        return IdentityChange(on_change, changed, 0, 0, 0)
    ended = cache._era
    cache._era = ended.next(old, identity, changed)
    cache.spec, cache._root = spec, None
    ended.over = True
    while ended.publishing:
        time.sleep(_LOOK_AGAIN_S)
    tickets = _fail_tickets(cache)
    cache._tier_writes.forget()
    return IdentityChange(on_change, changed, _evict_all(cache), _pages_in_use(cache), tickets)


def _fail_tickets(cache: CacheBase) -> int:
    """Let running requests publish nothing more, and those that are closed behind an event; others close the former."""
    failed = 0
    for ref in cache._tickets.valuerefs():
        ticket = ref()
        if ticket is not None and ticket._end_era():
            failed += 1
    for core in cache._deferred.owners():
        if isinstance(core, _core.Ticket) and core.closed:
            core.withhold()
    return failed


def _evict_all(cache: CacheBase) -> int:
    """Let everything go: what nobody pins at once, the rest with its last pin, found by nobody.

    Then by the order of the cache what was published meanwhile.
    """
    evicted = cache._core.withdraw_all()
    for index, pages in enumerate(cache.pages.values()):
        while gone := cache._core.make_room(index, pages):
            evicted += gone
    return evicted


def _pages_in_use(cache: CacheBase) -> int:
    return sum(pages - cache._core.free_pages(index) for index, pages in enumerate(cache.pages.values()))
