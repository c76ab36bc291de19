# SPDX-License-Identifier: Apache-2.0
"""Switching reuse on by steps: shadow, a share of requests, all; on, and back, by what a canary compares.

`docs/canary.md` is the guide. :mod:`.plan` says what a stage takes, :mod:`.state` where a rollout stands (as JSON),
:mod:`.driver` moves it; :mod:`.side_by_side` asks an old and a new manager about the same requests.
"""

from __future__ import annotations

from hybridkv.rollout.driver import Rollout, RolloutMetrics
from hybridkv.rollout.managers import CacheManager, Decision, Manager
from hybridkv.rollout.plan import RolloutPlan
from hybridkv.rollout.side_by_side import Disagreement, Reproduction, SideBySide, SideBySideReport
from hybridkv.rollout.state import RolloutState

__all__ = [
    "CacheManager",
    "Decision",
    "Disagreement",
    "Manager",
    "Reproduction",
    "Rollout",
    "RolloutMetrics",
    "RolloutPlan",
    "RolloutState",
    "SideBySide",
    "SideBySideReport",
]
