# SPDX-License-Identifier: Apache-2.0
"""Whether a stream captures a graph here and now, for calls that must not run inside one.

What the host does while a stream captures happens once, at capture: a page that is taken, a length that is read, an
event that is waited for are not part of the graph, and at replay they are silently missing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hybridkv.errors import HybridKVError


class CaptureError(HybridKVError):
    """A call that allocates, waits or decides by data was made while a stream captured; nothing was done."""


class _Entries(threading.local):
    """What this thread has entered and not left: a token for each, so that whoever leaves one ends that one."""

    def __init__(self) -> None:
        self.open: list[object] = []


_entries = _Entries()


@contextmanager
def capturing() -> Iterator[None]:
    """Say that this thread captures a graph: calls that would not be part of it raise :class:`CaptureError`.

    Put it around a capture of any kind. ``torch.cuda.graph`` and its like are noticed without it, on the thread whose
    current stream captures. It may be nested, and other threads are not concerned. It is over for the thread that
    entered it whichever thread leaves it, as where a generator that holds it is closed by another.

    Examples
    --------
    >>> import hybridkv as hk
    >>> cache = hk.HybridCache(hk.CacheSpec.homogeneous(layers=2, page_bytes=64), blocks=8)
    >>> with hk.graph.capturing():
    ...     try:
    ...         cache.admit("late", 16)
    ...     except hk.graph.CaptureError as error:
    ...         print(error.field)
    cache
    """
    mine, token = _entries.open, object()
    mine.append(token)
    try:
        yield
    finally:
        mine.remove(token)  # of the thread that entered: one operation of its list


def is_capturing() -> bool:
    """Say whether this thread captures: inside :func:`capturing`, or on a stream of torch that does."""
    if _entries.open:
        return True
    torch = sys.modules.get("torch")
    return torch is not None and _torch_captures(torch)


def _torch_captures(torch: Any) -> bool:
    cuda = getattr(torch, "cuda", None)  # absent while torch itself is being imported
    initialized = getattr(cuda, "is_initialized", None)
    return cuda is not None and initialized is not None and initialized() and bool(cuda.is_current_stream_capturing())


def refuse_capture(field: str, what: str) -> None:
    """Refuse a call while a stream captures.

    Parameters
    ----------
    field : str
        The object or argument that the call is about.
    what : str
        What would be missing from the graph.

    Raises
    ------
    CaptureError
        A stream captures.
    """
    if is_capturing():
        raise CaptureError(field, "no stream that captures a graph", what)
