# SPDX-License-Identifier: Apache-2.0
"""Why a prompt can be reused so far and no further: what is there, what went, why, and what would have kept it.

:func:`explanation` answers for a cache (``cache.explain``), :mod:`~hybridkv.explain.stored` for a store on disk without
one. Neither counts as a look-up, and neither pins anything.
"""

from __future__ import annotations

from hybridkv.explain.explanation import BoundaryRun, Explanation, explanation
from hybridkv.explain.settings import Setting
from hybridkv.explain.timeline import GroupTimeline, Run

__all__ = ["BoundaryRun", "Explanation", "GroupTimeline", "Run", "Setting", "explanation"]
