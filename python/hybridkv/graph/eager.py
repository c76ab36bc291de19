# SPDX-License-Identifier: Apache-2.0
"""Why a step runs without a captured graph, and how often each reason came up."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

WHY = {
    "width": "a block table has more entries than graphs were captured with",
    "batch": "more requests than the largest batch that was captured",
    "step": "a request has more new tokens than a step that was captured",
    "groups": "a request uses other groups than the graph reads",
    "cache": "a lease or ticket of another cache, or of another spec",
    "format": "bytes of another format than the graph was captured for",
    "padding": "a kernel takes another sentinel for padding than the tables were captured with",
    "buffers": "other buffers are named than were captured",
    "staging": "the tables that the graph reads were replaced by others",
    "freed": "the memory of a buffer was given back",
    "moved": "a buffer lies at another address",
    "grown": "a buffer has more pages than were captured",
    "shape": "a buffer has another shape",
    "stride": "a buffer has other strides",
    "dtype": "a buffer has elements of another type",
    "device": "a buffer lies on another device",
    "rebound": "a pool was bound anew: its pages are others, whatever its address",
    "cleared": "the cache was reset: pages that were captured belong to nobody",
    "expired": "a lease or ticket whose pages the graph addresses has ended",
    "handout": "a page that the graph addresses was given up, or handed out again",
    "null_page": "the page that padding points to holds values that are not finite",
    "ended": "a request of the step has ended since its tables were written",
    "passed_on": "a page in the step's tables was taken back, or handed out again, since they were written",
    "restaged": "the tables hold a step that is over, or another than the one that was routed",
    "released": "the topology was released: it guards nothing any more",
}
"""Every reason for eager, with what it means."""

EAGER_REASONS = tuple(WHY)
"""Why a request runs without a captured graph; first those that the core counts, in the order of its numbers."""


@dataclass(frozen=True)
class Eager:
    """Why a step cannot be a replay of a captured graph. It is right all the same, and costs its launches.

    Attributes
    ----------
    reason : str
        One of :data:`EAGER_REASONS`, which :data:`WHY` explains. "width": the request's block table of a group is wider
        than graphs were captured for.
    group : str
        The first such group of the spec; empty where it is not about one.
    width : int
        What there is room for: own blocks of the captured table ("width"), requests ("batch"), tokens ("step").
    needed : int
        As many as the step needs; own blocks that begin below the request's ``grown_tokens``.
    field : str
        The buffer, table or argument that changed; empty where the numbers say it.
    expected, got : object
        What was captured, and what is there now.
    """

    reason: str
    group: str = ""
    width: int = 0
    needed: int = 0
    field: str = ""
    expected: object = None
    got: object = None


class Routed(NamedTuple):
    """A request as a step found it: tokens, those it had grown to, and how many more were to be grown."""

    request: weakref.ref[Any]
    tokens: int
    grown: int
    more: int


@dataclass(frozen=True)
class Replay:
    """A captured graph fits the step.

    Attributes
    ----------
    bucket : int
        Batch of the graph to replay: the smallest captured one that holds the requests.
    requests : int
        Requests of the step; the rows of the bucket behind them are padding.

    Notes
    -----
    It knows the requests that it was asked about, as they were then, for ``check(route=)``. It keeps none of them
    alive, and equals any other of the same two numbers.
    """

    bucket: int
    requests: int
    _requests: Sequence[Routed] = field(default=(), repr=False, compare=False)


class EagerCounts:
    """How often each reason was given. Any thread may call: a lock is held for the few instructions of a count."""

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(EAGER_REASONS, 0)

    def add(self, reason: str) -> None:
        """Count one more."""
        with self._lock:
            self._counts[reason] += 1

    def read(self) -> dict[str, int]:
        """Return all counts, of one moment."""
        with self._lock:
            return dict(self._counts)
