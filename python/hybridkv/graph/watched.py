# SPDX-License-Identifier: Apache-2.0
"""What of a cache a captured graph stands on: its pools' bindings, pages that the graph addresses, and requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridkv.arguments import members
from hybridkv.errors import ArgumentError, Closed, LeaseExpired
from hybridkv.graph.eager import Eager
from hybridkv.graph.step_shape import StepShape
from hybridkv.lease import Lease
from hybridkv.ticket import Ticket

if TYPE_CHECKING:
    from hybridkv.cache import HybridCache
    from hybridkv.spec import CacheSpec


class _Addressed(NamedTuple):
    """Pages of one group that a graph addresses itself."""

    handle: Lease | Ticket
    group: str
    ids: npt.NDArray[np.int32]
    handouts: npt.NDArray[np.uint64]


class Watched:
    """A cache as it was at capture, and the pages that a graph addresses itself."""

    __slots__ = ("_addressed", "_bindings", "_cache", "_resets", "_spec")

    def __init__(self, cache: HybridCache | None, spec: CacheSpec, addressed: list[_Addressed]) -> None:
        self._cache = cache
        self._spec = spec
        self._addressed = addressed
        self._bindings: Mapping[str, int] = {} if cache is None else dict(cache._bindings)
        self._resets = 0 if cache is None else cache._resets

    @classmethod
    def of(
        cls, cache: HybridCache | None, spec: CacheSpec, shape: StepShape, pages: Iterable[Lease | Ticket]
    ) -> Watched:
        """Take note of a cache and of pages.

        Raises
        ------
        ArgumentError
            A cache of another spec, something else than leases and tickets of it.
        LeaseExpired, Closed
            A lease or ticket has ended.
        """
        if cache is not None and not spec.same_pages(getattr(cache, "spec", None)):
            raise ArgumentError("cache", "a HybridCache of this spec", cache)
        handles = [pages] if isinstance(pages, (Lease, Ticket)) else members("pages", pages, "leases and tickets")
        addressed = []
        for handle in handles:
            if not isinstance(handle, (Lease, Ticket)) or (cache is not None and handle._cache is not cache):
                raise ArgumentError("pages", "leases and tickets of the cache", handle)
            addressed += [_Addressed(handle, g, handle.page_ids(g), handle.handouts(g)) for g in shape.groups]
        return cls(cache, spec, addressed)

    def count(self, eager: Eager) -> None:
        """Count it in the cache's metrics, unless the core does at the growth."""
        if self._cache is not None and (eager.reason != "width" or eager.group not in self._cache.graph_widths):
            self._cache._eager_counts.add(eager.reason)

    def change(self) -> Eager | None:
        """Return what has changed of the cache's pools, or of pages that the graph addresses."""
        cache = self._cache
        if cache is not None:
            if cache._closed:
                return Eager("freed", field="cache", expected="an open cache", got="a closed one")
            if cache._resets != self._resets:
                return Eager("cleared", field="cache", expected=self._resets, got=cache._resets)
            if cache._bindings != self._bindings:
                now = cache._bindings
                name = next(name for name in now if now[name] != self._bindings.get(name))
                return Eager("rebound", name, field=name, expected=self._bindings.get(name, 0), got=now[name])
        for addressed in self._addressed:
            eager = _handed_on(addressed)
            if eager is not None:
                return eager
        return None

    def step_change(self, steps: list[Any], shape: StepShape, formats: Mapping[str, bytes], more: int) -> Eager | None:
        """Return why the requests of a step do not fit what was captured."""
        for step in steps:
            if not isinstance(step, (Lease, Ticket)):
                raise ArgumentError("batch", "leases and tickets", step)
            if isinstance(step, Ticket):
                step._check_open()
            eager = self._stranger(step, shape, formats) or _too_long(step, shape, more)
            if eager is not None:
                return eager
        return None

    def _stranger(self, step: Lease | Ticket, shape: StepShape, formats: Mapping[str, bytes]) -> Eager | None:
        """Return why a request belongs to another capture, whatever its length."""
        cache = step._cache
        known = self._spec.same_pages(cache.spec)
        if not known or (self._cache is not None and cache is not self._cache):
            return Eager("cache", field="batch", expected="a lease or ticket of the captured cache", got=repr(cache))
        used = step.groups if isinstance(step, Ticket) else tuple(cache._index)
        if used != shape.groups:
            return Eager("groups", field="batch", expected=shape.groups, got=used)
        for name, read in zip(cache._index, (step._formats or ()) if isinstance(step, Lease) else (), strict=False):
            if formats.get(name, read) != read:
                return Eager("format", name, field=name, expected=formats[name].hex(), got=read.hex())
        return None


def _too_long(step: Lease | Ticket, shape: StepShape, more: int) -> Eager | None:
    tokens = step.tokens
    grown = (step.grown_tokens if isinstance(step, Ticket) else tokens) + more
    if grown - tokens > shape.step_tokens:
        return Eager("step", width=shape.step_tokens, needed=grown - tokens)
    for table in shape.tables:
        needed = table.span(tokens, grown)[1]
        if needed > table.width:
            return Eager("width", table.group.name, table.width, needed)
    return None


def _handed_on(addressed: _Addressed) -> Eager | None:
    """Return whether pages that a graph addresses are no longer the pages that they were."""
    handle, group = addressed.handle, addressed.group
    held = addressed.ids >= 0
    try:
        ids, handouts = handle.page_ids(group)[: held.size], handle.handouts(group)[: held.size]
    except (LeaseExpired, Closed):
        return Eager("expired", group, field=group, expected="a lease or ticket that has not ended", got=repr(handle))
    # The count tells the same page handed out again, the id another page that was handed out as often.
    same_pages = ids.size == held.size and bool((ids[held] == addressed.ids[held]).all())
    if same_pages and bool((handouts[held] == addressed.handouts[held]).all()):
        return None
    expected = addressed.ids.tolist(), addressed.handouts.tolist()
    return Eager("handout", group, field=group, expected=expected, got=(ids.tolist(), handouts.tolist()))
