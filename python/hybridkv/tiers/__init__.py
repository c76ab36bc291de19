# SPDX-License-Identifier: Apache-2.0
"""Tiers: colder memory for records of prefixes, each proved on its way back.

:class:`Tier` is what all of them can do, :class:`MemoryTier` keeps records in host memory, :class:`TierAdapter` makes a
tier of a store of your own, and :class:`TierStack` one of several.
"""

from __future__ import annotations

from hybridkv.tiers.adapter import PartLabel, TierAdapter
from hybridkv.tiers.disk import DiskTier, Recovered
from hybridkv.tiers.memory import MemoryTier
from hybridkv.tiers.records import (
    Answer,
    Damage,
    GetItem,
    Part,
    Presence,
    Priority,
    PutItem,
    RecordKey,
    RecordKind,
    Report,
    TierStatus,
    TierUsage,
)
from hybridkv.tiers.stack import StackCounts, TierStack
from hybridkv.tiers.store import Flaw, Store, StoredPart, StoredRecord, StoredRegion, StoreFile
from hybridkv.tiers.tier import Tier
from hybridkv.tiers.writers_file import KeptWriters, WritersFound

__all__ = [
    "Answer",
    "Damage",
    "DiskTier",
    "Flaw",
    "GetItem",
    "KeptWriters",
    "MemoryTier",
    "Part",
    "PartLabel",
    "Presence",
    "Priority",
    "PutItem",
    "RecordKey",
    "RecordKind",
    "Recovered",
    "Report",
    "StackCounts",
    "Store",
    "StoreFile",
    "StoredPart",
    "StoredRecord",
    "StoredRegion",
    "Tier",
    "TierAdapter",
    "TierStack",
    "TierStatus",
    "TierUsage",
    "WritersFound",
]
