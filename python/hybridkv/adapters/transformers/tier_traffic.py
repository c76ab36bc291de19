# SPDX-License-Identifier: Apache-2.0
"""Pages on their way to a tier and back: what a call kept is stored behind it, what a call needs loaded before it."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hybridkv.adapters.transformers.store import Store
from hybridkv.adapters.transformers.whole import prefix_of
from hybridkv.cache import HybridCache
from hybridkv.errors import OutOfPages
from hybridkv.keys import BlockKeys
from hybridkv.tiers import TierStatus
from hybridkv.transfer_results import TransferResult
from hybridkv.transfers import Transfer
from hybridkv.verdict import Why

_MOST_FAILED = 8
"""Loads of one look-up that may fail, each of a smaller boundary than the one before."""

_MOST_WRITES = 32
"""Transfers to the tier at a time: each pins its pages."""

_ASKED = 3
"""Times that a tier without an index is asked: for history, for what lists tips behind it, for the tips."""

_LATE_S = 1.0  # that a transfer may be late: its records have deadlines of their own


@dataclass
class Loaded:
    """What a tier gave for one look-up.

    Attributes
    ----------
    tokens : int
        Length that its records made usable; 0 where none did.
    bytes : int
        Read and published, those of loads that came to nothing included.
    refused : list of Why
        One for each record that was not what was written, or did not come.
    """

    tokens: int = 0
    bytes: int = 0
    refused: list[Why] = field(default_factory=list)


class TierTraffic:
    """What goes between the pages of a :class:`.store.Store` and the tier of its cache.

    Parameters
    ----------
    cache : HybridCache
        With a tier.
    store : Store
        Makes room for what is loaded.
    timeout_s : float
        Of each record, in seconds.

    Attributes
    ----------
    not_written : collections.Counter
        Transfers to the tier that failed, by the name of the status; of what the cache stores by itself, records.

    Notes
    -----
    Thread safety: any thread may call.
    """

    def __init__(self, cache: HybridCache, store: Store, timeout_s: float) -> None:
        self._cache = cache
        self._store = store
        self._timeout_s = timeout_s
        self._writes: deque[Transfer] = deque()
        self._lock = threading.Lock()
        self._own_writes = cache._tier_writes.mode == "none"
        self.not_written: Counter[str] = Counter()

    # -- to the tier -------------------------------------------------------------------------------

    def write(self, keys: BlockKeys | None) -> None:
        """Begin to store a prefix, unless the cache does so by itself.

        Parameters
        ----------
        keys : BlockKeys or None
            Up to the longest boundary that was kept; None: none was.
        """
        if not self._own_writes:
            self._cache.poll()
            return
        if keys is not None and self._store.formats is None:  # else it is of another format than the tier's records
            transfer = self._cache.offload(keys, timeout_s=self._timeout_s)
            with self._lock:
                self._writes.append(transfer)
        self._forget_done()
        while len(self._writes) > _MOST_WRITES and self.wait_for_one():
            pass

    def wait_for_one(self) -> bool:
        """Wait for the oldest write, whose pages are pinned meanwhile; say whether one let go of them."""
        with self._lock:
            if not self._writes:
                return False
            oldest = self._writes.popleft()
        try:
            self._count(oldest.result(self._timeout_s + _LATE_S))
        except TimeoutError:  # the store hangs
            with self._lock:
                self._writes.append(oldest)
            return False
        return True

    def flush(self, timeout: float | None) -> bool:
        """Wait until all that the tier took is durable, at most so many seconds; say whether nothing is on its way."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._writes:
            with self._lock:
                oldest = self._writes[0] if self._writes else None
            if oldest is None:
                break
            try:
                oldest.result(None if until is None else max(0.0, until - time.monotonic()))
            except TimeoutError:
                return False
            self._forget_done()
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            return False
        try:
            status, result = self._cache._flush(left)
        except TimeoutError:
            return False
        with self._lock:
            if not self._own_writes:
                self.not_written.update(result.refused)
            if status is not TierStatus.OK and status.name not in self.not_written:  # told once
                self.not_written[status.name] = 1
        return True

    def _forget_done(self) -> None:
        with self._lock:
            done = [transfer for transfer in self._writes if transfer.done()]
            self._writes = deque(transfer for transfer in self._writes if transfer not in done)
        for transfer in done:
            self._count(transfer.result())

    def _count(self, result: TransferResult) -> None:
        if not result.ok:
            with self._lock:
                self.not_written[result.status.name] += 1

    # -- from the tier -----------------------------------------------------------------------------

    def load(self, keys: BlockKeys, ids: npt.NDArray[np.int64]) -> Loaded:
        """Load what makes more of a prefix usable than memory does; where a record is refused, the next smaller length.

        Parameters
        ----------
        keys : BlockKeys
            Of a prompt.
        ids : numpy.ndarray
            [[tokens]] int64, what the keys were made of.

        Returns
        -------
        Loaded
        """
        told = Loaded()
        if self._store.formats is not None:
            return told
        for _ in range(_MOST_FAILED):
            try:
                begun = self._begin(keys)
            except OutOfPages:  # no room: what is in memory has to do
                break
            if begun is None:
                break
            tokens, transfer = begun
            try:
                result = transfer.result(self._timeout_s + _LATE_S)
            except TimeoutError:
                break
            finally:  # whatever was published is known to who makes room
                whole = transfer.done() and transfer.result().ok
                self._store.note(prefix_of(keys, ids, tokens), tokens, whole=whole)
            told.bytes += result.bytes
            if result.why is not None:
                told.refused.append(result.why)
            if result.ok:
                told.tokens = tokens
                break
        return told

    def _begin(self, keys: BlockKeys) -> tuple[int, Transfer] | None:
        tier = self._cache.tier
        for _ in range(_ASKED):
            if tier is None or not self._cache._ask_tier(keys, self._timeout_s):
                break
            tier.drain(self._timeout_s)
            self._cache.poll()
        plan = self._cache.restorable(keys)
        if plan is None:
            return None
        while True:
            try:
                return plan.restore_tokens, self._cache.restore(plan, timeout_s=self._timeout_s)
            except OutOfPages as error:
                if not self._store.make_room(error, [keys]) and not self.wait_for_one():
                    raise
