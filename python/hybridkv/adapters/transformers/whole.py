# SPDX-License-Identifier: Apache-2.0
"""Choosing between a replay and a shorter boundary: whichever computes fewer tokens.

Asked before the match, since a match counts: what is found here is a hint, and pages may go before they are pinned.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybridkv.adapters.transformers.stops import needed_blocks
from hybridkv.cache import HybridCache
from hybridkv.group import CacheGroup
from hybridkv.identity import Identity
from hybridkv.inspection import PHASES
from hybridkv.keys import BlockKeys, block_keys
from hybridkv.kinds import Check
from hybridkv.replay_reach import most_replayed
from hybridkv.verdict import Why

_READABLE = {"ready", "ready with copy", "offloading"}


class PassedOver(NamedTuple):
    """A longer length that was not taken.

    Attributes
    ----------
    matched_tokens : int
    why : Why
    """

    matched_tokens: int
    why: Why


def usable_lengths(cache: HybridCache, keys: BlockKeys, formats: list[bytes] | None) -> npt.NDArray[np.int64]:
    """Return every usable length in tokens, ascending, [[lengths]] int64. Counts no look-up and pins nothing."""
    return cache._core.boundaries(keys._core, -1, formats)


def whole_limit(
    cache: HybridCache, keys: BlockKeys, ids: npt.NDArray[np.int64], formats: list[bytes] | None
) -> tuple[int | None, PassedOver | None]:
    """Return below which length to match so that nothing is replayed which is dearer than to compute.

    Parameters
    ----------
    cache : HybridCache
        With rebuildable groups, or without.
    keys : BlockKeys
    ids : numpy.ndarray
        [[tokens]] int64, what the keys were made of.
    formats : list of bytes or None
        The reader's, by group; None: those of the spec.

    Returns
    -------
    (int or None, PassedOver or None)
        The limit, and what is passed over; None where the longest length is what to take, replayed or not.
    """
    rebuildable = [(number, group) for number, group in enumerate(cache.spec.groups) if group.rebuildable]
    lengths = usable_lengths(cache, keys, formats) if rebuildable else np.empty(0, np.int64)
    if not lengths.size:
        return None, None
    longest = int(lengths[-1])
    gone = _first_gone(cache, rebuildable, prefix_of(keys, ids, longest), longest)
    if gone is None:
        return None, None
    replay = max(most_replayed(group) for _, group in rebuildable)
    start = max(0, longest - replay) // cache.spec.boundary_tokens * cache.spec.boundary_tokens
    for tokens in reversed(lengths[lengths >= max(start, 1)][:-1].tolist()):
        if _first_gone(cache, rebuildable, prefix_of(keys, ids, tokens), tokens) is None:
            group, block = gone
            detail = (
                f"{group.name!r} is gone at {longest}: a replay from {start} computes more than going on at {tokens}"
            )
            why = Why(Check.GROUPS, group.kind, group.name, block, "missing", detail)
            return tokens + 1, PassedOver(longest, why)
    return None, None


def _first_gone(
    cache: HybridCache, groups: list[tuple[int, CacheGroup]], keys: BlockKeys, tokens: int
) -> tuple[CacheGroup, int] | None:
    """Return the first block that a resume at ``tokens`` needs and that cannot be read."""
    for number, group in groups:
        for block in needed_blocks(group, tokens):
            if PHASES[cache._core.inspect(keys._core, number, block)[0]] not in _READABLE:
                return group, block
    return None


def prefix_of(keys: BlockKeys, ids: npt.NDArray[np.int64], tokens: int) -> BlockKeys:
    """Return the keys of ``ids[:tokens]``, a tip where that is no multiple of the unit."""
    whole = tokens // keys.unit_tokens
    start = whole * keys.unit_tokens
    if start == tokens:
        return keys[:whole]
    return block_keys(ids[start:tokens], keys.unit_tokens, identity=keys.identity or Identity(), parent=keys[:whole])
