# SPDX-License-Identifier: Apache-2.0
"""A homogeneous and a hybrid design on one trace in the same memory, side by side.

Each side is a spec and a run of the real manager over the trace. What a side says about itself is read off its spec;
what it did is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridkv import CacheSpec
from hybridkv.coverage import Prefix
from hybridkv.errors import ArgumentError
from hybridkv.planner.capacity import bytes_of, prefix_pages
from hybridkv.planner.homogeneous import homogeneous_spec, is_homogeneous
from hybridkv.replay.answers import next_turns
from hybridkv.replay.grid import Grid, Run, TraceRuns, replay_grid
from hybridkv.replay.pools import Windows, demand_bytes
from hybridkv.replay.runs import ENDS
from hybridkv.replay.shapes import Shape
from hybridkv.replay.trace import load_trace
from hybridkv.replay.units import Units

LENGTHS = (131_072, 1_048_576)
"""Tokens of the prefixes whose bytes are told."""

_DEFAULT_SHARE = 1 / 4
_ENDS = 2  # of a kept prefix: of its prompt, and of its answer


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two designs.

    Attributes
    ----------
    model : str
    spec : CacheSpec
    designed : bool
        Whether it is the homogeneous design of a model that is none.
    found : TraceRuns
        The trace.
    prefix_bytes : dict of int to int
        Bytes of a kept prefix of so many tokens, with the states at its two ends.
    """

    model: str
    spec: CacheSpec
    designed: bool
    found: TraceRuns
    prefix_bytes: dict[int, int]

    @property
    def run(self) -> Run:
        """The one run."""
        return self.found.runs[0]


@dataclass(frozen=True, slots=True)
class Pair:
    """Both.

    Attributes
    ----------
    homogeneous, hybrid : Side
    memory_bytes : int
        For pages, of each.
    policy : Windows
        Of the hybrid one.
    """

    homogeneous: Side
    hybrid: Side
    memory_bytes: int
    policy: Windows


def compare(
    path: Path,
    hybrid: Shape,
    homogeneous: Shape | None = None,
    *,
    memory_bytes: int | None = None,
    policy: Windows = ENDS,
    unit_tokens: int = 256,
    requests: int | None = None,
    block_tokens: int | None = None,
    shown: bool = False,
) -> Pair:
    """Replay a trace on both.

    Parameters
    ----------
    path : Path
        A trace with ids.
    hybrid : Shape
        A model with more than history.
    homogeneous : Shape, optional
        The other model; where that keeps more than history too, its homogeneous design. Default: the homogeneous
        design of the hybrid model, which keeps everything for as long as history.
    memory_bytes : int, optional
        For pages, of each. Default: a quarter of what the trace would fill of the hybrid one.
    policy : Windows, optional
        Which boundaries of the hybrid one keep states.
    unit_tokens, requests, block_tokens
        As of :class:`hybridkv.replay.grid.Grid`.
    shown : bool
        Whether to show progress bars on a terminal.

    Returns
    -------
    Pair

    Raises
    ------
    ArgumentError
        An argument or the file is not legal; a line of the trace is broken; it was interrupted: half a table compares
        nothing.
    """
    spec = hybrid.make(unit_tokens)
    if is_homogeneous(spec):
        raise ArgumentError("hybrid", "a model that keeps more than history", hybrid.name)
    if memory_bytes is None:
        trace = load_trace(path, block_tokens=block_tokens, requests=requests)
        demand = Units.of(trace, next_turns(trace), unit_tokens).demand(policy, spec.boundary_tokens)
        memory_bytes = max(1, int(demand_bytes(spec, demand) * _DEFAULT_SHARE))
    other = (homogeneous or hybrid).make(unit_tokens)
    designed = not is_homogeneous(other)
    if designed:
        other = homogeneous_spec(other)
    limits: dict[str, Any] = {"requests": requests, "block_tokens": block_tokens}
    sides = []
    for name, one, made, keeps in (
        ((homogeneous or hybrid).name, other, designed, ENDS),
        (hybrid.name, spec, False, policy),
    ):
        grid = Grid(
            shapes=(_fixed(name, one),),
            memory=(memory_bytes,),
            policies=(keeps,),
            unit_tokens=one.unit_tokens,
            **limits,
        )
        sides.append(_side(path, name, one, made, grid, shown))
    return Pair(sides[0], sides[1], memory_bytes, policy)


def _fixed(name: str, spec: CacheSpec) -> Shape:
    return Shape(name, lambda _: spec)


def _side(path: Path, name: str, spec: CacheSpec, designed: bool, grid: Grid, shown: bool) -> Side:
    found = replay_grid([path], grid, shown=shown)
    if not found or found[0].interrupted:
        raise ArgumentError("compare", "both designs replayed to the end", "an interrupt")
    if found[0].trace.broken is not None:
        raise found[0].trace.broken
    kept = {tokens: bytes_of(spec, prefix_pages(spec, tokens, _ENDS)) for tokens in LENGTHS}
    return Side(name, spec, designed, found[0], kept)


def groups_by_rule(spec: CacheSpec) -> Mapping[bool, list[str]]:
    """Return names of groups of history (True), and of states at boundaries (False)."""
    return {
        history: [group.name for group in spec.groups if isinstance(group.coverage, Prefix) == history]
        for history in (True, False)
    }
