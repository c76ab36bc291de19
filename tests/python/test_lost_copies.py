# SPDX-License-Identifier: Apache-2.0
"""Records that a tier drops by itself: what counts, eviction, write-back and write-through know of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hybridkv as hk
from tier_support import DictTier
from transfer_world import World

UNIT, PAGE, KIB = 16, 4096, 1 << 10

HISTORY = hk.CacheSpec(
    UNIT, [hk.CacheGroup("h", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=PAGE, row_bytes=PAGE // UNIT)]
)


def small_disk(path: Path) -> hk.Tier:
    return hk.DiskTier(path / "store", 4 * 64 * KIB, region_bytes=64 * KIB)


def small_memory(_: Path) -> hk.Tier:
    return hk.MemoryTier(40 * (PAGE + KIB))


def small_stack(path: Path) -> hk.Tier:
    return hk.TierStack([hk.MemoryTier(1 << 20), small_disk(path)])  # the fast one keeps what the slow one drops


TIERS = (small_disk, small_memory, small_stack)


def keys(name: int, units: int) -> hk.BlockKeys:
    return hk.block_keys(range(10_000 * name, 10_000 * name + units * UNIT), UNIT)


def cache_over(tier: hk.Tier, pages: int = 30, writes: str = "none") -> hk.HybridCache:
    cache = hk.HybridCache(HISTORY, blocks=400, pages={"h": pages}, tier=tier, tier_writes=writes, verify="off")
    cache.bind("h", np.zeros((pages, PAGE), np.uint8))
    return cache


def restorable(cache: hk.HybridCache, name: int, units: int) -> int:
    """Tokens of a prefix that is not in memory that the tier has: a plan ends below the last token asked for."""
    plan = cache.restorable(keys(name, units + 1))
    return 0 if plan is None else plan.restore_tokens


def use(cache: hk.HybridCache, name: int, units: int) -> int:
    verdict = cache.match(keys(name, units), limit=units * UNIT + 1)
    if verdict.lease is not None:
        verdict.lease.release()
    return verdict.usable_tokens


def push_through(cache: hk.HybridCache, prefixes: int = 30, stored: str = "offload") -> None:
    """Store so much that nothing is left of what was stored before."""
    for name in range(100, 100 + prefixes):
        cache.insert(keys(name, 3))
        if stored == "offload":
            assert cache.offload(keys(name, 3)).result(10).ok
        else:
            cache.flush(10)
        cache.evict(keys(name, 3))


def settle(cache: hk.HybridCache, tier: hk.Tier, turns: int = 40) -> None:
    """Poll until nothing has moved for so many turns, however slow the disk is; not for ever."""
    quiet = 0
    for _ in range(50 * turns):
        moved = cache.poll()
        usage = tier.usage()
        quiet = 0 if moved or usage.queued or usage.running else quiet + 1
        if quiet == turns:
            break
        tier.wait(0.002)


@pytest.mark.parametrize("make", TIERS, ids=lambda make: make.__name__)
def test_a_copy_counts_as_long_as_the_tier_has_it(make: Callable[[Path], hk.Tier], tmp_path: Path) -> None:
    with make(tmp_path) as tier:
        cache = cache_over(tier)
        cache.insert(keys(1, 5))
        cache.offload(keys(1, 5)).result(10)
        assert cache.metrics().states[hk.StateKind.DISK] == 5
        push_through(cache)
        assert cache.metrics().states[hk.StateKind.DISK] == 0
        assert {block.phase for block in cache.inspect(keys(1, 5))["h"]} == {"ready"}
        assert cache.offload(keys(1, 5)).result(10).records == 5  # and is stored again
        assert cache.metrics().states[hk.StateKind.DISK] == 5
        assert cache.verify()
        cache.close()


@pytest.mark.parametrize("dropped", [False, True])
def test_eviction_does_not_take_for_stored_what_the_disk_has_reclaimed(dropped: bool, tmp_path: Path) -> None:
    with small_disk(tmp_path) as tier:
        cache = cache_over(tier)
        older, newer = 1, 2
        cache.insert(keys(newer, 5))
        cache.offload(keys(newer, 5)).result(10)
        if dropped:
            push_through(cache)
        cache.insert(keys(older, 5))
        for _ in range(8):
            use(cache, older, 5), use(cache, newer, 5)
        for name in range(50, 54):
            cache.insert(keys(name, 5))
            use(cache, name, 5)
        cache.insert(keys(60, 5))  # five pages have to go
        gone = [name for name in (older, newer) if use(cache, name, 5) == 0]
        assert gone == [older if dropped else newer]
        assert restorable(cache, gone[0], 5) == (0 if dropped else 80)
        cache.close()


def test_write_back_stores_where_what_it_counted_as_stored_was_reclaimed(tmp_path: Path) -> None:
    with small_disk(tmp_path) as tier:
        cache = cache_over(tier, writes="back")
        kept, new = keys(1, 10), keys(2, 18)
        cache.insert(kept)
        cache.flush(10)
        for name in range(200, 230):  # not by the cache: what others store
            cache.insert(keys(name, 3))
            cache.offload(keys(name, 3)).result(10)
            cache.evict(keys(name, 3))
        cache._tier_writes._unstored.clear()
        cache._tier_writes._stored.clear()
        cache._tier_writes._running.clear()  # it knows nothing to store again
        cache.insert(new)  # 2 of 30 pages are free
        settle(cache, tier)
        cache.evict(new)
        assert restorable(cache, 2, 18) == 18 * UNIT
        cache.close()


def test_write_back_stores_again_what_the_tier_dropped_and_no_more_often_than_prefixes_are_published(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path) as tier:
        cache = cache_over(tier, pages=13, writes="back")
        kept = keys(1, 10)
        cache.insert(kept)
        cache.flush(10)
        push_through(cache, stored="flush", prefixes=2)
        settle(cache, tier)
        quiet = tier.usage().puts
        settle(cache, tier)
        assert tier.usage().puts == quiet
        for name in range(200, 230):
            cache.insert(keys(name, 2))
            cache.offload(keys(name, 2)).result(10)
            cache.evict(keys(name, 2))
        cache.insert(keys(3, 2))  # one page is free, nothing of what is here is stored
        settle(cache, tier)
        assert cache.metrics().states[hk.StateKind.DISK] >= 10
        cache.evict(kept)
        assert restorable(cache, 1, 10) == 10 * UNIT
        cache.close()


def test_a_tier_smaller_than_the_memory_is_not_written_for_ever(tmp_path: Path) -> None:
    with small_disk(tmp_path) as tier:
        cache = cache_over(tier, pages=100, writes="back")
        for name in range(1, 20):  # 95 pages, of which the disk has place for less than write-back would have there
            cache.insert(keys(name, 5))
        settle(cache, tier, 400)
        assert 95 < tier.usage().puts <= 2 * 95
        cache.flush(10)
        assert tier.usage().puts <= 2 * 95
        cache.close()


def test_a_page_beside_one_that_the_store_no_longer_has_is_no_copy() -> None:
    with DictTier() as tier:
        world = World(tier)
        prefix = world.keys(16)
        world.write(prefix)
        world.cache.offload(prefix).result(10)
        lost = prefix.digests[1].tobytes()
        tier.records = {key: record for key, record in tier.records.items() if key.digest != lost}
        world.cache.evict(prefix, {"kv": [1]})
        phases = {name: blocks[1].phase for name, blocks in world.cache.inspect(prefix).items()}
        assert phases["idx"] == phases["swa"] == "ready with copy"  # nobody has heard of it
        plan = world.cache.restorable(world.keys(17))
        assert plan is not None and world.cache.restore(plan).result(10).status.name == "MISS"
        phases = {name: blocks[1].phase for name, blocks in world.cache.inspect(prefix).items()}
        assert phases["idx"] == "ready" and phases["swa"] == "ready with copy"
        world.cache.close()


@pytest.mark.parametrize("writes", ["through", "back"])
def test_a_block_that_the_store_dropped_between_others_is_stored_when_it_was_computed_again(writes: str) -> None:
    with DictTier() as tier:
        world = World(tier, tier_writes=writes)
        prefix = world.keys(24)
        world.write(prefix)
        world.cache.flush(10)
        world.forget(prefix)
        lost = prefix.digests[1].tobytes()
        tier.records = {key: record for key, record in tier.records.items() if key.digest != lost}
        plan = world.cache.match(prefix, limit=25).plan
        assert world.cache.restore(plan).result(10).status.name == "MISS"
        world.write(prefix)  # as the next match says
        world.cache.flush(10)
        assert lost in {key.digest for key in tier.records}
        world.forget(prefix)
        plan = world.cache.match(prefix, limit=25).plan
        assert plan.restore_tokens == 24
        assert world.cache.restore(plan).result(10).ok and world.reuse(prefix) == 24
        world.cache.close()
