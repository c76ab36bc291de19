# SPDX-License-Identifier: Apache-2.0
"""Planning a cache: what a model's states cost, what fits, what is kept where, and what to do. ``docs/planning.md``."""

from hybridkv.planner.advice import Advice
from hybridkv.planner.break_even import BreakEven
from hybridkv.planner.capacity import Capacity
from hybridkv.planner.homogeneous import homogeneous_spec
from hybridkv.planner.layers import FleetPlan, Layer, Layering, Traffic
from hybridkv.planner.load import Fleet, Load, TraceFacts, load_of_trace
from hybridkv.planner.places import DISK_UNIT_BYTES, Place
from hybridkv.planner.plan import Answer, Design, Length, Question, plan
from hybridkv.planner.retention import Retention
from hybridkv.planner.sizes import GroupSize, KindSize, Sizes, TailState
from hybridkv.planner.units import Unit

__all__ = [
    "DISK_UNIT_BYTES",
    "Advice",
    "Answer",
    "BreakEven",
    "Capacity",
    "Design",
    "Fleet",
    "FleetPlan",
    "GroupSize",
    "KindSize",
    "Layer",
    "Layering",
    "Length",
    "Load",
    "Place",
    "Question",
    "Retention",
    "Sizes",
    "TailState",
    "TraceFacts",
    "Traffic",
    "Unit",
    "homogeneous_spec",
    "load_of_trace",
    "plan",
]
