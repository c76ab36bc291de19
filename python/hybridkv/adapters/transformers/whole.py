# SPDX-License-Identifier: Apache-2.0
"""Boundaries whose windows and tails are all there, among those that a replay could bring back."""

from __future__ import annotations

from collections.abc import Sequence

from hybridkv.adapters.transformers.stops import needed_blocks
from hybridkv.cache import HybridCache
from hybridkv.inspection import BlockInfo
from hybridkv.keys import BlockKeys
from hybridkv.kinds import Check
from hybridkv.verdict import Verdict, Why

_READABLE = {"ready", "ready with copy", "offloading"}


def longest_whole(cache: HybridCache, keys: BlockKeys, lengths: Sequence[int]) -> int | None:
    """Return the largest of some usable lengths at which nothing has to be replayed.

    Parameters
    ----------
    cache : HybridCache
    keys : BlockKeys
    lengths : sequence of int
        Aligned, ascending.

    Returns
    -------
    int or None
        A hint: pages may go before they are pinned.
    """
    seen = cache.inspect(keys)
    rebuildable = [group for group in cache.spec.groups if group.rebuildable]
    for tokens in reversed(lengths):
        if tokens % cache.spec.unit_tokens:
            continue  # a tip: its blocks are not those of the keys
        if all(_ready(seen[group.name], block) for group in rebuildable for block in needed_blocks(group, tokens)):
            return tokens
    return None


def windows_lost(cache: HybridCache, verdict: Verdict, tokens: int) -> Why:
    """Say why a length was passed over for the boundary ``tokens``, which is whole."""
    name, (begin, end) = next(iter(verdict.plan.replay.items()))
    group = next(group for group in cache.spec.groups if group.name == name)
    blocks = needed_blocks(group, end)
    detail = f"{name!r} is not there at {end}; a replay from {begin} would compute more than going on from {tokens}"
    return Why(Check.GROUPS, group.kind, name, blocks[-1] if blocks else 0, "missing", detail)


def _ready(blocks: Sequence[BlockInfo], block: int) -> bool:
    return block < len(blocks) and blocks[block].phase in _READABLE
