# SPDX-License-Identifier: Apache-2.0
"""Is reuse still right? A share of effective hits is recomputed, and the answers are compared at both ends.

`docs/canary.md` is the guide. Reading order: :mod:`.ends` and :mod:`.compare` (what is compared, and when it counts as
different), :mod:`.power` (what a sample can show), :mod:`.breaker` and :mod:`.board` (what turns reuse off),
:mod:`.attribution` and :mod:`.contents` (whose fault it is), :mod:`.watch` (all of it over a cache).
"""

from __future__ import annotations

from hybridkv.canary.attribution import Attribution, attribute
from hybridkv.canary.breaker import BreakerPolicy, BreakerState, Scope
from hybridkv.canary.compare import Bitwise, Comparison, Judgement, Tolerance
from hybridkv.canary.contents import StoredContent
from hybridkv.canary.counts import CanaryMetrics
from hybridkv.canary.ends import Difference, Ends, difference
from hybridkv.canary.power import acting_share, detection, mismatch_interval, samples_needed
from hybridkv.canary.sample import Hit, Outcome, Sample, SampleKind
from hybridkv.canary.shares import Share
from hybridkv.canary.watch import Asked, Canary

__all__ = [
    "Asked",
    "Attribution",
    "Bitwise",
    "BreakerPolicy",
    "BreakerState",
    "Canary",
    "CanaryMetrics",
    "Comparison",
    "Difference",
    "Ends",
    "Hit",
    "Judgement",
    "Outcome",
    "Sample",
    "SampleKind",
    "Scope",
    "Share",
    "StoredContent",
    "Tolerance",
    "acting_share",
    "attribute",
    "detection",
    "difference",
    "mismatch_interval",
    "samples_needed",
]
