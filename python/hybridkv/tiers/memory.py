# SPDX-License-Identifier: Apache-2.0
"""The memory tier: records in the memory of this process."""

from __future__ import annotations

from hybridkv import _core
from hybridkv.arguments import byte_count, flag
from hybridkv.tiers.tier import Tier, limits


class MemoryTier(Tier):
    """Records in host memory, bounded, the least recently used gone first, suffix before prefix.

    It is what stands between a device and a disk. A record that names a parent is taken only while that is there and
    goes with it; what is pinned is never evicted, nor what it stands on.

    Parameters
    ----------
    capacity_bytes : int
        Of all records, envelopes included.
    threaded : bool
        Records are copied by a thread of the tier's own; else by whoever asks, within the ask.
    most_items : int
        Items under way or not polled, beyond which an ask is :class:`~hybridkv.Busy`.
    breaker_after : int
        Failures in a row after which the breaker opens; 0: never.
    breaker_seconds : tuple of float
        How long it stays open at first and at most.

    Raises
    ------
    ArgumentError
        An argument out of range.
    TierError
        The process may open no more files.
    """

    name = "memory"

    def __init__(
        self,
        capacity_bytes: int,
        *,
        threaded: bool = False,
        most_items: int = 4096,
        breaker_after: int = 3,
        breaker_seconds: tuple[float, float] = (1.0, 30.0),
    ) -> None:
        common = limits(most_items, breaker_after, breaker_seconds)
        core = _core.open_memory_tier(byte_count("capacity_bytes", capacity_bytes), flag("threaded", threaded), common)
        super().__init__(core, most_items)
