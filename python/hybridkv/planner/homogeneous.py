# SPDX-License-Identifier: Apache-2.0
"""The homogeneous design of the same model: one lifetime for everything.

A homogeneous manager has one group. Whatever layers keep is kept for every block for as long as its history is, so
that a known hash is a hit at every block, with nothing else to check. In bytes:

- history grows as it does;
- windows and chunks keep the rows of every token, as if nothing ever slid out;
- a checkpoint that a resume at a block needs is kept once a block;
- live rows of a running request (of a window of a compressor that is open) are what they are.

It is written as a spec, so that sizes, pools and admission are worked out by the same functions. Its block is the one
that suits it best: where a state is kept for every block, larger blocks have fewer of them.
"""

from __future__ import annotations

import math

from hybridkv.coverage import Checkpoint, Prefix
from hybridkv.group import CacheGroup
from hybridkv.inspection import own_block_tokens
from hybridkv.kinds import StateKind
from hybridkv.page_budget import worst_pages
from hybridkv.planner.capacity import bytes_of, prefix_pages
from hybridkv.planner.load import Load
from hybridkv.planner.sizes import whole_pages
from hybridkv.planner.units import lost_tokens, most_lost
from hybridkv.spec import CacheSpec

HISTORY, LIVE = "kv", "live"

MOST_BLOCK_TOKENS = 2048
"""Largest block that is tried, unless the model's own blocks have a larger common multiple."""


def is_homogeneous(spec: CacheSpec) -> bool:
    """Tell whether the two designs are one: history alone, in blocks of one size."""
    blocks = {group.block_tokens for group in spec.groups}
    return len(blocks) == 1 and all(isinstance(group.coverage, Prefix) for group in spec.groups)


def homogeneous_spec(spec: CacheSpec, times: int = 1) -> CacheSpec:
    """Return the spec of the homogeneous design: the group "kv", and "live" where requests hold rolling rows.

    Parameters
    ----------
    spec : CacheSpec
    times : int, optional
        Its block is so many times the least common multiple of all blocks.

    Returns
    -------
    CacheSpec
        ``parts`` tells the bytes of each group of the model.

    Raises
    ------
    SpecError
        A page of it would have 2**48 bytes or more.
    """
    block = times * math.lcm(spec.unit_tokens, *(own_block_tokens(group) for group in spec.groups))
    parts: dict[str, int] = {}
    live = 0
    for group in spec.groups:
        if isinstance(group.coverage, Checkpoint):
            kept = spec.boundary_bytes[group.name]
            live += 0 if kept else group.total_page_bytes
        else:
            kept = group.total_page_bytes * whole_pages(group) * (block // own_block_tokens(group))
        if kept:
            parts[group.name] = kept
    groups = []
    if parts:
        total = sum(parts.values())
        groups.append(CacheGroup(HISTORY, StateKind.COMPRESSED, Prefix(), page_bytes=total, parts=parts))
    if live:
        groups.append(CacheGroup(LIVE, StateKind.TAIL, Checkpoint(every=block), page_bytes=live))
    return CacheSpec(block, groups)


def cheapest_homogeneous(spec: CacheSpec, load: Load, kept: int) -> CacheSpec:
    """Return the homogeneous design in the block at which a load takes least.

    Of blocks of at most :data:`MOST_BLOCK_TOKENS` that lose as little of a prefix as a unit may: what is saved by
    keeping few states is no gain where hits are lost for it.

    Parameters
    ----------
    spec : CacheSpec
    load : Load
    kept : int
        Prefixes that are kept.

    Returns
    -------
    CacheSpec
        Of equal bytes the smallest block.
    """
    found = [homogeneous_spec(spec)]
    times = 2
    while (block := times * found[0].unit_tokens) <= MOST_BLOCK_TOKENS and lost_tokens(block) <= most_lost(load):
        found.append(homogeneous_spec(spec, times))
        times *= 2
    return min(found, key=lambda one: load_bytes(one, load, kept))


def load_bytes(spec: CacheSpec, load: Load, kept: int) -> int:
    """Return what a load takes: requests that run at their worst, and so many kept prefixes."""
    worst = worst_pages(spec, load.context_tokens, step_tokens=load.step_tokens)
    prefix = prefix_pages(spec, load.kept_tokens, load.ends)
    return load.concurrency * bytes_of(spec, worst) + kept * bytes_of(spec, prefix)
