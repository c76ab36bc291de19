# SPDX-License-Identifier: Apache-2.0
"""How many pages of each kind fit into an amount of memory."""

from __future__ import annotations

from hybridkv.adapters.transformers.layout import is_state
from hybridkv.arguments import byte_count
from hybridkv.cache import HybridCache
from hybridkv.errors import ArgumentError
from hybridkv.spec import CacheSpec
from hybridkv.tiers import Tier

_UNITS_PER_END = 8
"""Units of history to one kept prompt end or output end, beside the boundaries at a stride."""

_LEAST_UNITS = 16


def page_counts(spec: CacheSpec, memory_bytes: int, step: int | None) -> tuple[int, dict[str, int]]:
    """Return descriptors and pages by group that fit.

    Parameters
    ----------
    spec : CacheSpec
    memory_bytes : int
        Of all pools together.
    step : int or None
        Distance of kept boundaries in tokens; None: ends only.

    Returns
    -------
    (int, dict of str to int)

    Raises
    ------
    ArgumentError
        Not even 16 units fit.
    """
    unit = spec.unit_tokens
    share = 1 / _UNITS_PER_END + (unit / step if step else 0.0)
    per_unit = 0.0
    for group in spec.groups:
        pages = share if is_state(group) else unit / (group.block_tokens or unit)
        per_unit += group.total_page_bytes * pages
    units = int(byte_count("memory_bytes", memory_bytes) / per_unit)
    if units < _LEAST_UNITS:
        raise ArgumentError("memory_bytes", f"at least {int(_LEAST_UNITS * per_unit) + 1}", memory_bytes)
    pages_of = {}
    for group in spec.groups:
        pages_of[group.name] = max(
            1, int(units * share) if is_state(group) else units * unit // (group.block_tokens or unit)
        )
    # A tip takes a descriptor, and one more for the directory below its parent; both are small beside a page.
    return 3 * units + _LEAST_UNITS, pages_of


def default_cache(spec: CacheSpec, memory_bytes: int, step: int | None, tier: Tier | None = None) -> HybridCache:
    """Make a cache of as many pages as fit into ``memory_bytes``."""
    blocks, pages = page_counts(spec, memory_bytes, step)
    # Whoever stores evicts by a policy.
    return HybridCache(spec, blocks=blocks, pages=pages, eviction="none", tier=tier)
