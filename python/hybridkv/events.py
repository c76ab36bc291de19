# SPDX-License-Identifier: Apache-2.0
"""What became findable in a cache and what went: for an index kept elsewhere, such as a router's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from hybridkv.departures import Departure, departure


class EventKind(IntEnum):
    """What an event tells an index to do."""

    CLEARED = 0
    """Forget everything. After a reset, after all was withdrawn, and where everything was asked for anew."""
    STORED = 1
    """A page can be found from now on."""
    REMOVED = 2
    """It can be found no more."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change of what can be found.

    Attributes
    ----------
    kind : EventKind
    group : str
        The group whose page it is; "" of CLEARED.
    key : bytes
        16 bytes: the digest of the block's last unit, as ``keys.digests`` has it, or of a tip. Identity is part of it,
        so that one index may hold several. Empty of CLEARED.
    end_tokens : int or None
        Where the block, or tip, ends: tokens from the start of its prefix. None where that is not known, or 2**30 - 1
        and more.
    parent : bytes or None
        Of STORED: the key at the end of the nearest history before it. None where nothing comes before it, and where
        that is not known: of a cache made with ``eviction="none"``, or where what came before was forgotten.
    reason : Departure or None
        Of REMOVED: why it went. None where that is not remembered.
    """

    kind: EventKind
    group: str = ""
    key: bytes = b""
    end_tokens: int | None = None
    parent: bytes | None = None
    reason: Departure | None = None


class EventIndex:
    """The pages that can be found, made of events alone: what an index elsewhere has to do, in its smallest form.

    Examples
    --------
    >>> import hybridkv as hk
    >>> cache = hk.HybridCache(hk.CacheSpec.homogeneous(layers=2, page_bytes=64), blocks=128)
    >>> keys = hk.block_keys(range(64), 16)
    >>> cache.insert(keys)
    >>> index = EventIndex()
    >>> index.apply(cache.events())
    >>> len(index), index.has("kv", keys.digests[3].tobytes())
    (4, True)
    """

    def __init__(self) -> None:
        self._pages: set[tuple[str, bytes]] = set()

    def apply(self, events: Iterable[Event]) -> None:
        """Apply events in their order.

        Parameters
        ----------
        events : iterable of Event
            All of them since the last call, of one cache.
        """
        for event in events:
            if event.kind is EventKind.CLEARED:
                self._pages.clear()
            elif event.kind is EventKind.STORED:
                self._pages.add((event.group, event.key))
            else:
                self._pages.discard((event.group, event.key))

    def has(self, group: str, key: bytes) -> bool:
        """Say whether a page can be found.

        Parameters
        ----------
        group : str
        key : bytes
        """
        return (group, key) in self._pages

    def pages(self) -> frozenset[tuple[str, bytes]]:
        """Return every (group, key)."""
        return frozenset(self._pages)

    def __len__(self) -> int:
        return len(self._pages)


_Raw = tuple[int, int, bytes, int, bytes | None, tuple[int, int, int]]


def made(raw: _Raw, groups: list[str]) -> Event:
    """Return an event as the core tells it."""
    kind, group, key, end, parent, why = raw
    if kind == EventKind.CLEARED:
        return Event(EventKind.CLEARED)
    return Event(EventKind(kind), groups[group], key, _end(end), parent, departure(why, groups))


def _end(tokens: int) -> int | None:
    return tokens if 0 < tokens < 2**30 - 1 else None
