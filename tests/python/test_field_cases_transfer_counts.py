# SPDX-License-Identifier: Apache-2.0
"""Field cases of what is counted when prefixes move to a tier and back; see field_cases.json."""

from __future__ import annotations

import hybridkv as hk
from hybridkv.tiers import RecordKind
from transfer_cases import KIND, BadTier, ask, finish, history_spec, stored
from transfer_world import PAGE, UNIT, World


def test_FC_188_bytes_are_counted_by_group_and_a_full_store_is_full_of_content() -> None:
    sizes = [16384, 8192, 4096, 2048, 1024, 32768, 65536, 512, 24576]
    kinds = (KIND.COMPRESSED, KIND.INDEXER, KIND.WINDOW, KIND.TAIL)
    rules = (hk.Prefix(), hk.Prefix(), hk.Window(UNIT + 1), hk.Checkpoint())
    groups = [
        hk.CacheGroup("g" * (i + 1), kinds[i % 4], rules[i % 4], page_bytes=size, layers=("0", "1"))
        for i, size in enumerate(sizes)
    ]
    tier = hk.MemoryTier(8 << 20)
    world = World(tier, of=hk.CacheSpec(UNIT, groups, identity=hk.Identity(model="wide")), blocks=8)
    keys = world.keys(16)
    world.write(keys)
    assert world.cache.offload(keys).result(10).ok
    moved = world.cache.metrics().offloads
    content = 0
    for kind in kinds:
        of_kind = [g for g in groups if g.kind is kind]
        assert moved[kind].bytes == 4 * sum(g.total_page_bytes for g in of_kind), kind
        assert moved[kind].successes == 4 * len(of_kind)
        content += moved[kind].bytes
    assert content <= tier.usage().bytes <= 1.02 * content
    world.cache.evict(keys)
    for pool in (pool for pools in world.pools.values() for pool in pools):
        pool[:] = 0xEE
    assert world.cache.restore(ask(world, keys).plan).result(10).ok
    assert world.reuse(keys) == 16
    finish(world, tier)


def test_FC_190_what_the_tier_was_asked_for_and_gave_is_counted_apart() -> None:
    tier = BadTier(breaker_after=0, threads=1)
    world, keys = stored(tier, 40, of=history_spec())
    world.write(keys[:6])  # 24 tokens here, 16 more there, of which 8 cannot be had
    tier.broken = frozenset((RecordKind.BLOCK, keys.digests[block].tobytes()) for block in (8, 9))
    verdict = ask(world, keys)
    before = world.cache.metrics()
    assert (verdict.usable_tokens, verdict.plan.restore_tokens, len(verdict.plan.loads)) == (24, 40, 4)
    result = world.cache.restore(verdict.plan).result(10)
    assert (result.records, result.stored) == (4, 2)
    found = world.cache.metrics()
    assert found.restores[KIND.COMPRESSED].attempts - before.restores[KIND.COMPRESSED].attempts == 4
    assert found.restores[KIND.COMPRESSED].successes - before.restores[KIND.COMPRESSED].successes == 2
    assert sum(found.load_failures.values()) == 2
    assert found.lookups == before.lookups, "a load is no look-up"
    assert found.effective_hits == before.effective_hits, "nor a hit"
    assert world.reuse(keys) == 32
    finish(world, tier)


def test_FC_191_blocks_that_are_stored_and_restored_count_once() -> None:
    tier = hk.MemoryTier(1 << 20)
    world = World(tier, of=history_spec())
    keys = world.keys(40)
    world.write(keys)
    for _ in range(2):
        assert world.cache.offload(keys).result(10).ok
    world.forget(keys)
    plan = ask(world, keys).plan
    for _ in range(2):
        assert world.cache.restore(plan).result(10).ok
    assert world.reuse(keys) == 40
    found = world.cache.metrics()
    for moved in (found.offloads[KIND.COMPRESSED], found.restores[KIND.COMPRESSED]):
        assert (moved.attempts, moved.successes, moved.bytes) == (10, 10, 10 * 2 * PAGE)
    finish(world, tier)
