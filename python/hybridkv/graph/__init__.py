# SPDX-License-Identifier: Apache-2.0
"""Captured graphs: what one assumed, which step may replay it, the tables that it reads, and why a step is eager.

``docs/graphs.md`` has a program. Nothing here imports torch before a tensor of it is asked for.
"""

from __future__ import annotations

from hybridkv.graph import standin
from hybridkv.graph.buffers import BufferFacts
from hybridkv.graph.eager import EAGER_REASONS, WHY, Eager, Replay
from hybridkv.graph.padding import Padding
from hybridkv.graph.staging import Staging
from hybridkv.graph.step_shape import StepShape, TableShape, window_width
from hybridkv.graph.topology import Topology, TopologyChanged
from hybridkv.stream_capture import CaptureError, capturing

__all__ = [
    "EAGER_REASONS",
    "WHY",
    "BufferFacts",
    "CaptureError",
    "Eager",
    "Padding",
    "Replay",
    "Staging",
    "StepShape",
    "TableShape",
    "Topology",
    "TopologyChanged",
    "capturing",
    "standin",
    "window_width",
]
