# SPDX-License-Identifier: Apache-2.0
"""hybridkv decides, proves and counts the reuse of KV-cache prefixes for hybrid-attention models."""

from __future__ import annotations

try:
    from hybridkv import _core as _core
except ImportError as error:  # pragma: no cover - only a broken installation comes here
    raise ImportError(
        "hybridkv's compiled core could not be loaded. Install the package (`pip install .` in a clone, or the wheel "
        f"for this Python): {error}"
    ) from error

from hybridkv.cache import HybridCache
from hybridkv.coverage import Checkpoint, Chunk, Prefix, Window
from hybridkv.errors import (
    ArgumentError,
    Busy,
    Closed,
    FillClosed,
    HybridKVError,
    KernelContract,
    LeaseExpired,
    NotAdmitted,
    OutOfPages,
    RestoreRefused,
    SpecError,
    TierError,
    UnsupportedModel,
)
from hybridkv.fill import Fill
from hybridkv.formats import KvFormat
from hybridkv.identity import Identity
from hybridkv.inspection import BlockInfo
from hybridkv.keys import BlockKeys, block_keys
from hybridkv.kinds import Check, Outcome, Remedy, StateKind
from hybridkv.lease import Lease
from hybridkv.metrics import Metrics, PageCounts
from hybridkv.policy import EvictionPolicy, LruPolicy
from hybridkv.spec import CacheGroup, CacheSpec, Need
from hybridkv.verdict import Plan, Verdict, Why, intersect

from hybridkv import formats  # isort: skip  (hk.formats.compatible)

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "BlockInfo",
    "BlockKeys",
    "Busy",
    "CacheGroup",
    "CacheSpec",
    "Check",
    "Checkpoint",
    "Chunk",
    "Closed",
    "EvictionPolicy",
    "Fill",
    "FillClosed",
    "HybridCache",
    "HybridKVError",
    "Identity",
    "KernelContract",
    "KvFormat",
    "Lease",
    "LeaseExpired",
    "LruPolicy",
    "Metrics",
    "Need",
    "NotAdmitted",
    "OutOfPages",
    "Outcome",
    "PageCounts",
    "Plan",
    "Prefix",
    "Remedy",
    "RestoreRefused",
    "SpecError",
    "StateKind",
    "TierError",
    "UnsupportedModel",
    "Verdict",
    "Why",
    "Window",
    "block_keys",
    "formats",
    "intersect",
]
