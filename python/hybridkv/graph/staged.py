# SPDX-License-Identifier: Apache-2.0
"""The step that tables were last written for: who is in it, and whose pages they name."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridkv.graph.eager import Eager, Replay, Routed
from hybridkv.lease import Lease
from hybridkv.ticket import Ticket

if TYPE_CHECKING:
    from hybridkv.cache_base import CacheBase

_Ids = npt.NDArray[np.int32]


class _Named(NamedTuple):
    """Pages of one group that the tables name, and how often each was handed out by then."""

    cache: CacheBase
    group: str
    ids: _Ids
    handouts: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, cache: CacheBase, group: str, ids: _Ids) -> _Named:
        return cls(cache, group, ids, cache._core.handouts(cache._index[group], ids))

    def change(self) -> Eager | None:
        now = self.cache._core.handouts(self.cache._index[self.group], self.ids)
        if np.array_equal(now, self.handouts):
            return None
        at = int(np.flatnonzero(now != self.handouts)[0])
        page, was, got = int(self.ids[at]), int(self.handouts[at]), int(now[at])
        return Eager("passed_on", self.group, field=self.group, expected=(page, was), got=(page, got))


class StagedStep:
    """What one update of :class:`~hybridkv.graph.Staging` wrote. It keeps no request alive."""

    __slots__ = ("_bucket", "_named", "_requests")

    def __init__(self, bucket: int, requests: Sequence[Routed], named: Sequence[_Named]) -> None:
        self._bucket = bucket
        self._requests = requests
        self._named = named

    @classmethod
    def of(cls, bucket: int, batch: Sequence[Lease | Ticket], pages: Mapping[str, Sequence[_Ids]]) -> StagedStep:
        """Take note of a step.

        Parameters
        ----------
        bucket : int
            How many rows were written.
        batch : sequence of Lease or Ticket
        pages : mapping of str to sequence of numpy.ndarray
            By group, what each row names, as the cache counts pages; -1 where none is held.
        """
        rows_of: dict[CacheBase, list[int]] = {}
        for row, step in enumerate(batch):
            rows_of.setdefault(step._cache, []).append(row)
        named = [
            _Named.of(cache, group, np.concatenate(own if len(rows) == len(own) else [own[row] for row in rows]))
            for cache, rows in rows_of.items()
            for group, own in pages.items()
        ]
        return cls(bucket, [routed(step) for step in batch], named)

    def change(self, route: Replay | None) -> Eager | None:
        """Return why the tables are not those of a step that may be replayed now; `route` None: of any step."""
        if route is not None and (eager := self._other_step(route)) is not None:
            return eager
        return moved_on(self._requests) or next((eager for one in self._named if (eager := one.change())), None)

    def _other_step(self, route: Replay) -> Eager | None:
        if self._bucket < route.bucket:  # rows behind are those of an earlier step
            return Eager("restaged", field="bucket", expected=route.bucket, got=self._bucket)
        if len(self._requests) != len(route._requests):
            return Eager("restaged", field="batch", expected=len(route._requests), got=len(self._requests))
        for row, (asked, there) in enumerate(zip(route._requests, self._requests, strict=True)):
            grown_apart = not 0 <= there.grown - asked.grown <= asked.more
            if there.request != asked.request or there.tokens != asked.tokens or grown_apart:
                expected, got = (_told(each) for each in (asked, there))
                return Eager("restaged", field=f"batch[{row}]", expected=expected, got=got)
        return None


def routed(step: Lease | Ticket, more: int = 0) -> Routed:
    """Take note of a request as it is now, with so many tokens more that are to be grown."""
    if isinstance(step, Ticket):
        core = step._core  # a step has many of these
        return Routed(weakref.ref(step), core.tokens, core.grown_tokens, more)
    tokens = step.tokens
    return Routed(weakref.ref(step), tokens, tokens, more)


def moved_on(requests: Sequence[Routed]) -> Eager | None:
    """Return whether a request has ended since, was advanced, or was taken back behind what it had."""
    for row, was in enumerate(requests):
        step: Any = was.request()
        field = f"batch[{row}]"
        if isinstance(step, Ticket):
            core = step._core
            over, tokens, grown = core.closed or core.failed, core.tokens, core.grown_tokens
        else:
            over = step is None or not step.valid
            tokens = grown = was.tokens if over else step.tokens
        if over:
            got = "one that was dropped" if step is None else repr(step)
            return Eager("ended", field=field, expected="a request that has not ended", got=got)
        if tokens != was.tokens:
            return Eager("restaged", field=field, expected=f"{was.tokens} tokens before the step", got=tokens)
        if grown < was.grown:
            return Eager("passed_on", field=field, expected=f"{was.grown} tokens with the step", got=grown)
    return None


def _told(request: Routed) -> str:
    return f"{request.request()!r} from {request.tokens} to {request.grown + request.more} tokens"
