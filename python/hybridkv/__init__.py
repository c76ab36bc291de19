# SPDX-License-Identifier: Apache-2.0
"""hybridkv decides, proves and counts the reuse of KV-cache prefixes for hybrid-attention models."""

from __future__ import annotations

import sys as _sys

try:
    from hybridkv import _core as _core
except ImportError as error:  # pragma: no cover - only a broken installation comes here
    raise ImportError(
        "hybridkv's compiled core could not be loaded. Install the package (`pip install .` in a clone, or the wheel "
        f"for this Python): {error}"
    ) from error

from hybridkv.admission import Admission
from hybridkv.cache import HybridCache
from hybridkv.checkpoints import CheckpointPolicy
from hybridkv.cost import Bandwidth, Candidate, Choice, CostModel, Observations
from hybridkv.coverage import Checkpoint, Chunk, Prefix, Window
from hybridkv.departures import Departure
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
    StaleIdentity,
    TierError,
    UnsupportedModel,
)
from hybridkv.events import Event, EventIndex, EventKind
from hybridkv.explain import Explanation
from hybridkv.fill import Fill
from hybridkv.formats import KvFormat
from hybridkv.holders import Holder, Leak
from hybridkv.identity import Identity
from hybridkv.identity_change import IdentityChange
from hybridkv.inspection import BlockInfo
from hybridkv.keys import BlockKeys, block_keys
from hybridkv.kinds import Check, Outcome, Remedy, StateKind
from hybridkv.lease import Lease
from hybridkv.metrics import Metrics, PageCounts
from hybridkv.page_budget import PagePlan, size_pages, worst_pages
from hybridkv.policy import EvictionPolicy, LruPolicy
from hybridkv.slots import Slots
from hybridkv.spec import CacheGroup, CacheSpec, Need
from hybridkv.static_checks import StaticChecks, static_checks
from hybridkv.ticket import Ticket
from hybridkv.tiers import DiskTier, MemoryTier, Tier, TierAdapter, TierStack
from hybridkv.transfer_results import FlushResult, TransferResult
from hybridkv.transfers import Transfer
from hybridkv.verdict import Plan, Verdict, Why, intersect
from hybridkv.windows import KeepWindows

from hybridkv import (  # isort: skip  (hk.formats.compatible, hk.ops.gather)
    alignment,
    canary,
    digests,
    formats,
    graph,
    metrics,
    ops,
    reference,
    rollout,
    tiers,
)

if hasattr(_sys.modules.get("torch"), "library"):  # imported before: torch.ops.hybridkv.* are there at once
    from hybridkv.adapters import torch_ops as _torch_ops  # noqa: F401

__version__ = "0.1.0"

__all__ = [
    "Admission",
    "ArgumentError",
    "Bandwidth",
    "BlockInfo",
    "BlockKeys",
    "Busy",
    "CacheGroup",
    "CacheSpec",
    "Candidate",
    "Check",
    "Checkpoint",
    "CheckpointPolicy",
    "Choice",
    "Chunk",
    "Closed",
    "CostModel",
    "Departure",
    "DiskTier",
    "Event",
    "EventIndex",
    "EventKind",
    "EvictionPolicy",
    "Explanation",
    "Fill",
    "FillClosed",
    "FlushResult",
    "Holder",
    "HybridCache",
    "HybridKVError",
    "Identity",
    "IdentityChange",
    "KeepWindows",
    "KernelContract",
    "KvFormat",
    "Leak",
    "Lease",
    "LeaseExpired",
    "LruPolicy",
    "MemoryTier",
    "Metrics",
    "Need",
    "NotAdmitted",
    "Observations",
    "OutOfPages",
    "Outcome",
    "PageCounts",
    "PagePlan",
    "Plan",
    "Prefix",
    "Remedy",
    "RestoreRefused",
    "Slots",
    "SpecError",
    "StaleIdentity",
    "StateKind",
    "StaticChecks",
    "Ticket",
    "Tier",
    "TierAdapter",
    "TierError",
    "TierStack",
    "Transfer",
    "TransferResult",
    "UnsupportedModel",
    "Verdict",
    "Why",
    "Window",
    "alignment",
    "block_keys",
    "canary",
    "digests",
    "formats",
    "graph",
    "intersect",
    "metrics",
    "ops",
    "reference",
    "rollout",
    "size_pages",
    "static_checks",
    "tiers",
    "worst_pages",
]
