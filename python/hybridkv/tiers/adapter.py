# SPDX-License-Identifier: Apache-2.0
"""Tiers of your own: five blocking methods, and everything else is :class:`Tier`'s."""

from __future__ import annotations

import errno
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hybridkv import _core
from hybridkv.arguments import byte_count, count, flag
from hybridkv.tiers.records import RecordKey, RecordKind, TierStatus
from hybridkv.tiers.tier import Tier, limits

_LOG = logging.getLogger("hybridkv.tiers")

_Name = tuple[bytes, bytes, int]
_Answer = tuple[int, bytes, list[Any]]


class PartLabel(NamedTuple):
    """Which page a part is; see :class:`Part`."""

    group: int
    layer: int
    block: int
    rows: int


class TierAdapter(Tier, ABC):
    """A tier over a store whose calls block: derive from it and implement :meth:`store`, :meth:`load`, :meth:`discard`
    and :meth:`contains`.

    They run on threads of the tier's own, each for one item, several at a time. They decide nothing: deadlines, the
    breaker and the proof of every record are :class:`Tier`'s. Whatever one raises is its item's status and nothing
    else's: ``ConnectionError`` and ``TimeoutError`` are UNAVAILABLE (which the breaker counts), an ``OSError`` with
    ENOSPC or EDQUOT and ``MemoryError`` are NO_SPACE, all else is IO_ERROR and is logged (``hybridkv.tiers``).

    The tier keeps its adapter alive: close it. When the interpreter ends, calls under way have two seconds to return.

    Parameters
    ----------
    threads : int
        Calls at a time.
    most_bytes : int
        Largest record that it takes, envelope included.
    durable : bool
        Whether what was stored survives this process once :meth:`sync` returned.
    most_items, breaker_after, breaker_seconds
        As of :class:`MemoryTier`.

    Raises
    ------
    ArgumentError
        An argument out of range.
    TierError
        The process may open no more files.
    """

    name = "adapter"

    def __init__(
        self,
        *,
        threads: int = 1,
        most_bytes: int = 1 << 30,
        durable: bool = False,
        most_items: int = 4096,
        breaker_after: int = 3,
        breaker_seconds: tuple[float, float] = (1.0, 30.0),
    ) -> None:
        core = _core.open_adapter_tier(
            _engine(self),
            min(count("threads", threads), 1024),
            byte_count("most_bytes", most_bytes),
            flag("durable", durable),
            limits(most_items, breaker_after, breaker_seconds),
        )
        super().__init__(core, most_items)

    @abstractmethod
    def store(self, key: RecordKey, envelope: bytes, parts: Sequence[memoryview], pinned: bool) -> None:
        """Keep a record, whole or not at all; where there is one of that key already, leave it.

        Parameters
        ----------
        key : RecordKey
            Its name, to be found by :meth:`load`.
        envelope : bytes
            To be given back as it is.
        parts : sequence of memoryview
            The bytes of its parts, in the order of the envelope's table. They can be read until the call returns; an
            adapter that still refers to them then has failed to store.
        pinned : bool
            Keep it as long as possible.
        """

    @abstractmethod
    def load(self, key: RecordKey, parts: Sequence[PartLabel]) -> tuple[bytes, Sequence[Any]] | None:
        """Find a record.

        Parameters
        ----------
        key : RecordKey
            Its name.
        parts : sequence of PartLabel
            Which parts are asked for.

        Returns
        -------
        tuple or None
            The envelope, and one buffer (bytes, memoryview, array) for each label, in their order; None where there is
            no such record. Where it lacks a part, any buffer will do: the envelope tells.
        """

    @abstractmethod
    def discard(self, key: RecordKey) -> bool:
        """Remove a record; say whether there was one."""

    @abstractmethod
    def contains(self, key: RecordKey) -> bool:
        """Say whether there is such a record."""

    def sync(self) -> None:
        """Return once everything stored and discarded before survives a power cut, where the tier is durable."""


def _engine(adapter: TierAdapter) -> Callable[[str, _Name, Any], _Answer]:
    """What the core calls: one verb and its detail to a status, and of a get the envelope and a buffer a part."""

    def put(key: RecordKey, detail: Any) -> _Answer:
        envelope, parts, pinned = detail
        adapter.store(key, envelope, parts, pinned)
        return TierStatus.OK, b"", []

    def get(key: RecordKey, detail: Any) -> _Answer:
        found = adapter.load(key, [PartLabel(*label) for label in detail])
        if found is None:
            return TierStatus.MISS, b"", []
        envelope, buffers = bytes(found[0]), [memoryview(buffer) for buffer in found[1]]
        if not all(buffer.c_contiguous for buffer in buffers):
            raise BufferError("load returned a buffer that is not contiguous")
        return TierStatus.OK, envelope, buffers

    def remove(key: RecordKey, detail: Any) -> _Answer:
        return TierStatus.OK if adapter.discard(key) else TierStatus.MISS, b"", []

    def probe(key: RecordKey, detail: Any) -> _Answer:
        return TierStatus.OK if adapter.contains(key) else TierStatus.MISS, b"", []

    verbs = {"put": put, "get": get, "remove": remove, "probe": probe}

    def call(verb: str, name: _Name, detail: Any) -> _Answer:
        try:
            if verb == "flush":
                adapter.sync()
                return TierStatus.OK, b"", []
            digest, layout, kind = name
            return verbs[verb](RecordKey(digest, layout, RecordKind(kind)), detail)
        except BaseException as error:  # also SystemExit and the like: this thread is not theirs to end
            return _status_of(error, verb, adapter), b"", []

    return call


def _status_of(error: BaseException, verb: str, adapter: TierAdapter) -> TierStatus:
    if isinstance(error, (ConnectionError, TimeoutError)):
        return TierStatus.UNAVAILABLE
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return TierStatus.NO_SPACE
    _LOG.warning("%s: %s failed", type(adapter).__name__, verb, exc_info=error)
    return TierStatus.IO_ERROR
