# SPDX-License-Identifier: Apache-2.0
"""Bytes by state: for each token, for each boundary, for each request that runs. All of it follows from the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from hybridkv.coverage import Checkpoint, Chunk, Prefix, Window
from hybridkv.errors import ArgumentError
from hybridkv.formats import REGISTRY
from hybridkv.group import CacheGroup
from hybridkv.inspection import own_block_tokens
from hybridkv.kinds import StateKind
from hybridkv.page_budget import worst_pages
from hybridkv.replay_reach import is_overlap, states_among
from hybridkv.spec import CacheSpec


@dataclass(frozen=True)
class GroupSize:
    """What one cache group costs.

    Attributes
    ----------
    name, kind, coverage : str
    layers : int
    block_tokens : int
    page_bytes : int
        Of one block over all layers.
    bytes_per_token : float
        Growth of history; 0 of states.
    boundary_bytes : int
        Kept for each boundary that can be resumed from; 0 of history.
    every_token_bytes : float
        For each token, if nothing ever slid out of a window; of history its growth, of checkpoints 0.
    request_bytes : int
        Most that one running request holds.
    """

    name: str
    kind: str
    coverage: str
    layers: int
    block_tokens: int
    page_bytes: int
    bytes_per_token: float
    boundary_bytes: int
    every_token_bytes: float
    request_bytes: int


@dataclass(frozen=True)
class TailState:
    """Rolling rows of a compressor or a recurrent layer, of one member of a group.

    Attributes
    ----------
    name : str
        Group, and member where it has several.
    row_bytes : int
    ring_rows : int
        Rows that an engine's ring holds: of the open window, and of the one before where entries overlap.
    layer_bytes : int
        Of the ring of one layer.
    layers : int
    live_rows : str
        How many of them mean something at t.
    """

    name: str
    row_bytes: int
    ring_rows: int
    layer_bytes: int
    layers: int
    live_rows: str


@dataclass(frozen=True)
class KindSize:
    """The same of all groups of one kind: ``bytes_per_token``, ``boundary_bytes``, ``request_bytes``."""

    bytes_per_token: float
    boundary_bytes: int
    request_bytes: int


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model's cache.

    Attributes
    ----------
    groups : tuple of GroupSize
    by_kind : dict of str to KindSize
    tails : tuple of TailState
    bytes_per_token : float
        Growth of history.
    boundary_bytes : int
        Kept for each boundary that can be resumed from.
    boundary_tokens : int
        Step of usable lengths.
    boundary_group : str or None
        The group that causes it.
    window_bytes_per_token : float
        What windows would cost for each token if nothing slid out.
    window_bytes : int
        What they cost at a boundary.
    ring_bytes : int
        Rings of rolling rows of one request.
    """

    groups: tuple[GroupSize, ...]
    by_kind: Mapping[str, KindSize]
    tails: tuple[TailState, ...]
    bytes_per_token: float
    boundary_bytes: int
    boundary_tokens: int
    boundary_group: str | None
    window_bytes_per_token: float
    window_bytes: int
    ring_bytes: int

    @property
    def window_ratio(self) -> float | None:
        """Bytes of windows kept for every token over bytes of history; None without history."""
        return self.window_bytes_per_token / self.bytes_per_token if self.bytes_per_token else None

    @property
    def boundary_in_tokens(self) -> float | None:
        """Tokens of history that one kept boundary costs as much as; None without history."""
        return self.boundary_bytes / self.bytes_per_token if self.bytes_per_token else None


def sizes_of(spec: CacheSpec, context_tokens: int, step_tokens: int) -> Sizes:
    """Work out the bytes of a spec.

    Parameters
    ----------
    spec : CacheSpec
    context_tokens, step_tokens : int
        Longest request and most tokens of it in flight, for what a request holds.

    Returns
    -------
    Sizes

    Raises
    ------
    ArgumentError
        As :func:`~hybridkv.worst_pages`.
    """
    worst = worst_pages(spec, context_tokens, step_tokens=step_tokens)
    groups = tuple(_group(spec, group, worst[group.name]) for group in spec.groups)
    windows = [size for size, group in zip(groups, spec.groups, strict=True) if is_window(group)]
    tails = tail_states(spec)
    by_kind = {kind.name: [size for size in groups if size.kind == kind.name] for kind in StateKind}
    return Sizes(
        groups,
        {kind: _summed(found) for kind, found in by_kind.items() if found},
        tails,
        spec.bytes_per_token,
        sum(spec.boundary_bytes.values()),
        spec.boundary_tokens,
        spec.boundary_group,
        sum(size.every_token_bytes for size in windows),
        sum(size.boundary_bytes for size in windows),
        sum(tail.layer_bytes * tail.layers for tail in tails),
    )


def is_window(group: CacheGroup) -> bool:
    """Tell whether rows of the group slide out: a window or a chunk."""
    return isinstance(group.coverage, (Window, Chunk))


def whole_pages(group: CacheGroup) -> int:
    """Return pages that hold all rows of a block: a window page may have only those that a boundary needs."""
    if isinstance(group.coverage, Checkpoint) or group.rows_per_page is None:
        return 1
    return max(1, -(-own_block_tokens(group) // (group.tokens_per_row * group.rows_per_page)))


def every_token(group: CacheGroup) -> Fraction:
    """Return bytes for each token if every row were kept; of checkpoints 0."""
    if isinstance(group.coverage, Checkpoint):
        return Fraction(0)
    return Fraction(group.total_page_bytes * whole_pages(group), own_block_tokens(group))


def _group(spec: CacheSpec, group: CacheGroup, pages: int) -> GroupSize:
    history = isinstance(group.coverage, Prefix)
    every = float(every_token(group))
    return GroupSize(
        group.name,
        group.kind.name,
        _told(group),
        group.layer_count,
        own_block_tokens(group),
        group.total_page_bytes,
        every if history else 0.0,
        0 if history else spec.boundary_bytes[group.name],
        every,
        pages * group.total_page_bytes,
    )


def _told(group: CacheGroup) -> str:
    name, parameter = type(group.coverage).__name__.lower(), group.coverage.parameter
    return f"{name} {parameter:,}" if parameter else name


def _summed(found: list[GroupSize]) -> KindSize:
    return KindSize(
        sum(size.bytes_per_token for size in found),
        sum(size.boundary_bytes for size in found),
        sum(size.request_bytes for size in found),
    )


def tail_states(spec: CacheSpec) -> tuple[TailState, ...]:
    """List rolling rows as engines keep them: what a boundary needs of them is less.

    Parameters
    ----------
    spec : CacheSpec

    Returns
    -------
    tuple of TailState
        Of every checkpoint group, by member; an overlap group is part of the ring that it belongs to.
    """
    states = [group for group in states_among(spec.groups) if isinstance(group.coverage, Checkpoint)]
    overlaps = [group for group in states if is_overlap(group)]
    found: list[TailState] = []
    for group in states:
        ring = group.coverage.parameter if group.rows_per_page == group.coverage.parameter else 0
        before = next((one for one in overlaps if ring and set(one.layers) == set(group.layers)), None)
        if group in overlaps and any(set(one.layers) == set(group.layers) for one in states if one is not group):
            continue
        kept = (before.rows_per_page or 0) if before is not None else 0
        rows = (ring or group.rows_per_page or 1) + kept
        live = " + ".join(filter(None, (str(kept) if kept else "", f"t mod {ring}" if ring else str(rows))))
        members = group.parts or {"": group.total_page_bytes}
        for member, size in members.items():
            row = size // (group.layer_count * (group.rows_per_page or 1))
            name = f"{group.name} {member}".strip()
            found.append(TailState(name, row, rows, row * rows, group.layer_count, live))
    return tuple(found)


def with_rows(spec: CacheSpec, name: str, entry: str) -> CacheSpec:
    """Return the spec with the rows of a group in another named format: an indexer in MXFP4.

    Parameters
    ----------
    spec : CacheSpec
    name : str
        The group.
    entry : str
        A name of ``hk.formats.REGISTRY`` that declares the bytes of a row.

    Returns
    -------
    CacheSpec

    Raises
    ------
    ArgumentError
        No such group, no such format, or one of the two has no rows.
    """
    group = spec.group(name)
    made = next((found.format for key, found in REGISTRY.items() if key == entry), None)
    if made is None or made.row_bytes is None:
        names = ", ".join(key for key, found in REGISTRY.items() if found.format.row_bytes is not None)
        raise ArgumentError("rows", f"one of {names}", entry)
    if group.row_bytes is None or group.rows_per_page is None or group.parts is not None:
        raise ArgumentError("rows", "a group that declares its rows, and no parts", name)
    rows = group.rows_per_page
    ratio = None if group.format is None else group.format.ratio
    changed = replace(
        group,
        row_bytes=made.row_bytes,
        page_bytes=rows * made.row_bytes,
        format=replace(made, page_rows=rows, page_stride=None, footer_offset=None, ratio=ratio),
    )
    return replace(spec, groups=[changed if one is group else one for one in spec.groups])
