# SPDX-License-Identifier: Apache-2.0
"""A fill: pages taken for a prefix, invisible to match until published."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkv import _core
from hybridkv.declared import GroupSelection
from hybridkv.deferred import checked_event
from hybridkv.errors import ArgumentError, FillClosed, StaleIdentity
from hybridkv.handles import Uncopied
from hybridkv.holders import Size
from hybridkv.lease import RELEASED, WITHDRAWN, Lease
from hybridkv.stream_capture import refuse_capture

if TYPE_CHECKING:
    from hybridkv.cache import HybridCache
    from hybridkv.identity_change import Era
    from hybridkv.ticket import Ticket


class Fill(Uncopied):
    """Pages in phase filling, from :meth:`HybridCache.reserve <hybridkv.HybridCache.reserve>`.

    A fill that is garbage collected before it is published or aborted may still be written by somebody: its
    pages are quarantined (kept out of the pools until :meth:`HybridCache.reset`) and it is reported as a
    leak. Private pages of a published fill go back when it is collected; that is no leak.

    The pages of a fill that was reserved with a ticket are part of the ticket's share until they are published or given
    back; ticket and fill have one owner. Where the ticket ends first the fill goes on as one without a ticket. Pages
    that such a fill loses the ticket loses too: it may be short of them, no other request is.
    """

    __slots__ = ("__weakref__", "_cache", "_core", "_era", "_lease", "_owner", "_tokens")

    def __init__(
        self, core: _core.Fill, cache: HybridCache, lease: Lease | None, tokens: int, owner: str | None, era: Era
    ) -> None:
        self._core = core
        self._era = era  # of its reserve: nothing is published after it
        self._cache = cache
        self._lease = lease
        self._tokens = tokens
        self._owner = owner
        if owner is not None:
            cache._holders.name("fill", core, owner, partial(_size, groups=len(cache.spec.groups), tokens=tokens))

    def page_ids(self, group: str) -> npt.NDArray[np.int32]:
        """Return the pages to write.

        Parameters
        ----------
        group : str
            Name of a group of the spec.

        Returns
        -------
        numpy.ndarray
            [[own blocks that end inside the keys]] int32, a tip's partial block last; -1 where no page is taken
            (the block is ready, hence not this request's to write or read; or it was not asked for). Blocks are those
            of the keys given: for a slice the first is the first that ends inside it.

        Raises
        ------
        ArgumentError
            Unknown group.
        FillClosed
            The fill was aborted.
        """
        index = self._cache._group_index(group)
        self._check_open()
        return self._core.page_ids(index)

    def copies(self, group: str) -> npt.NDArray[np.int32]:
        """Return the copies to run before the first write, where the request starts inside a shared page.

        Parameters
        ----------
        group : str
            Name of a group of the spec.

        Returns
        -------
        numpy.ndarray
            [[n, 3]] int32: source page, own new page, rows of the page that the source attests (from its first).

        Raises
        ------
        ArgumentError
            Unknown group.
        FillClosed
            The fill was aborted.
        """
        index = self._cache._group_index(group)
        self._check_open()
        return self._core.copies(index)

    def publish(self, groups: GroupSelection | None = None, *, after: object = None) -> None:
        """Make pages visible, in parts if you like.

        The first writer of a key wins; pages of later ones stay private and are counted as duplicates.
        Publishing what is published is a no-op. Once everything is published, a lease taken over is released: the hit
        was effective.

        Parameters
        ----------
        groups : mapping, optional
            As in :meth:`HybridCache.insert`. Default: everything.
        after : event, optional
            Nothing is visible before it has passed.

        Raises
        ------
        ArgumentError
            Unknown group, or a block index out of range.
        FillClosed
            The fill was aborted.
        StaleIdentity
            The weights were replaced since it was reserved: abort it. Where this call waited for an event then,
            nothing is published and the fill is aborted by itself.
        """
        refuse_capture("fill", "pages that are published")
        self._check_open()
        _check_era(self._core, self._era)
        chosen = self._cache._selection(groups)
        event = checked_event(after)
        core, lease, cache, era = self._core, self._lease, self._cache, self._era
        core.check(chosen)
        waits = False

        def effect() -> None:
            if core.closed:  # aborted while this waited: the key may be another's to write by now
                return
            if not _published(core, era, chosen):
                if not waits:
                    _check_era(core, era)
                core.close()  # nobody is there to be told
                _give_back(core, lease)
                return
            if core.done and not era.over:
                cache._written(core.keys, core.since, 0 if lease is None else lease.tokens)
            # Copies out of shared pages may be due until everything is published.
            if lease is not None and core.done and lease.valid:
                lease._settle(RELEASED, 0, None)

        if self._cache._deferred.due(core, event):
            effect()
        else:
            waits = True
            self._cache._deferred.add(core, event, effect)

    def abort(self, *, after: object = None) -> None:
        """Give back what is not published. A lease taken over is cancelled.

        A publish that still waits for its event makes nothing visible any more; its pages stay out of the pools
        until that event has passed all the same, since what writes them may still run.

        Parameters
        ----------
        after : event, optional
            Pages stay out of the pools until it has passed; the fill is closed from now on either way.

        Raises
        ------
        FillClosed
            The fill was aborted before.
        """
        refuse_capture("fill", "pages that are given back")
        core, lease, deferred = self._core, self._lease, self._cache._deferred
        event = checked_event(after)
        if event is None and not core.closed:
            deferred.drop_broken(core)  # the way out for a fill whose earlier event cannot be asked any more
        self._check_open()
        due = deferred.due(core, event)
        core.close()

        if due:
            _give_back(core, lease)
        else:
            deferred.add(core, event, partial(_give_back, core, lease))

    def _check_open(self) -> None:
        if self._core.closed:
            with suppress(Exception):  # of an event: its effect waits on, and poll tells of it
                self._cache._deferred.apply_due(self._core)
            raise FillClosed("fill", "a fill not yet aborted", "an aborted one")
        self._cache._deferred.apply_due(self._core)

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is None or core.closed:
            return
        cache, tokens, owner = self._cache, self._tokens, self._owner

        def report() -> None:
            held = _size(core, len(cache.spec.groups), tokens)
            if held is not None:
                cache._holders.leaked("fill", owner, held[0])

        if cache._deferred.waits(core):  # its last effect may publish what is left
            cache._deferred.add(core, None, report, quiet=True)
        elif not core.done:
            report()
            warnings.warn(
                "hybridkv: a fill was dropped unpublished; its pages are quarantined",
                ResourceWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"Fill({'closed' if self._core.closed else 'done' if self._core.done else 'filling'})"


def reserved(
    cache: HybridCache,
    keys: _core.KeyChain,
    chosen: list[bool | npt.NDArray[np.int64]],
    formats: list[bytes] | None,
    lease: Lease | None,
    ticket: Ticket | None,
) -> _core.Fill:
    """Take pages from the core, once more with what is due after events where it is short; take the lease over."""
    held = None if lease is None else lease._core
    if held is not None and not held.take():
        raise ArgumentError("lease", "a lease that no other fill has taken over", lease)
    right = None if ticket is None else ticket._core
    try:
        return cache._with_room(partial(_core.reserve, cache._core, keys, chosen, formats, held, right))
    except BaseException:
        if held is not None:
            held.give_back()
        raise


def _published(core: _core.Fill, era: Era, chosen: list[bool | npt.NDArray[np.int64]]) -> bool:
    """Publish unless the weights were replaced; an update that comes meanwhile waits for it."""
    mark = object()
    era.publishing.add(mark)
    try:
        if era.over:
            return core.done
        core.publish(chosen)
        return True
    finally:
        era.publishing.discard(mark)


def _check_era(core: _core.Fill, era: Era) -> None:
    if era.over and not core.done:
        raise StaleIdentity("fill", "a fill of the weights in use", "one from before they were replaced")


def _give_back(core: _core.Fill, lease: Lease | None) -> None:
    core.abort(False)
    if lease is not None and lease._core.valid:
        lease._settle(WITHDRAWN, 0, None)


def _size(core: _core.Fill, groups: int, tokens: int) -> tuple[Size, bool] | None:
    if core.done:
        return None
    pages = sum(int(np.count_nonzero(core.page_ids(group) >= 0)) for group in range(groups))
    return (tokens, pages), core.closed
