# SPDX-License-Identifier: Apache-2.0
"""The text of metrics: what is not 0, and no more."""

from __future__ import annotations

import hybridkv as hk
from contract_support import full_swa, keys_of
from transfer_world import World


def test_an_unused_cache_has_nothing_to_tell() -> None:
    assert repr(full_swa().metrics()) == str(full_swa().metrics()) == "Metrics()"


def test_what_is_not_zero_is_told_by_name() -> None:
    cache = full_swa()
    cache.insert(keys_of(32))
    cache.evict(keys_of(32), {"swa": True})
    assert cache.match(keys_of(33)).outcome is hk.Outcome.FALSE_HIT
    assert repr(cache.metrics()) == (
        "Metrics(lookups=1, lookups_tokens=33, misses_tokens=1, false_hits={GROUPS: {WINDOW: 1}}, "
        "false_hits_tokens=32, lost_tokens={GROUPS: {WINDOW: 32}}, lost_by_code_tokens={expired: 32}, "
        "published=4, retired=2, pages={full: 2 cached}, states={COMPRESSED: 2})"
    )


def test_every_part_that_moves_is_told() -> None:
    with hk.MemoryTier(1 << 20) as tier:
        world = World(tier)
        keys = world.keys(16)
        world.write(keys)
        assert world.cache.offload(keys, boundaries=[16]).result(10).ok
        fill = world.cache.reserve(world.keys(4, first=900))
        text = repr(world.cache.metrics())
        assert "pages={kv: 1 filling 4 cached, " in text
        assert "offloads={COMPRESSED: 4 attempts 4 successes 768 bytes" in text
        assert "restores" not in text and " 0 " not in text and "=0" not in text
        fill.abort()
        world.cache.close()
