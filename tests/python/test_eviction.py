# SPDX-License-Identifier: Apache-2.0
"""What makes room when a reserve is short of pages: the order of the cache, seen from outside."""

from __future__ import annotations

import random

import numpy as np
import pytest

import hybridkv as hk

UNIT = 16


def _group(name: str, coverage: hk.Prefix | hk.Window | hk.Checkpoint, kind: hk.StateKind) -> hk.CacheGroup:
    return hk.CacheGroup(name, kind, coverage, page_bytes=64, layers=(0,))


def _hybrid() -> hk.CacheSpec:
    kv = _group("kv", hk.Prefix(), hk.StateKind.COMPRESSED)
    swa = _group("swa", hk.Window(17), hk.StateKind.WINDOW)  # one block before a boundary
    return hk.CacheSpec(UNIT, [kv, swa])


def _branch(name: int, units: int, shared: int = 0, rest: int = 0) -> hk.BlockKeys:
    tokens = np.arange(units * UNIT + rest)
    return hk.block_keys(np.where(tokens < shared * UNIT, tokens, tokens + 10_000 * (name + 1)), UNIT)


def _there(cache: hk.HybridCache, keys: hk.BlockKeys, group: str) -> str:
    return "".join("1" if block.phase == "ready" else "0" for block in cache.inspect(keys)[group])


def _evicted(cache: hk.HybridCache) -> list[list[int]]:
    pages: list[list[int]] = cache._core.eviction_counts()["pages"].tolist()
    return pages


def test_an_order_is_a_word_and_can_be_read() -> None:
    assert hk.HybridCache(_hybrid(), blocks=4).eviction == "usability"
    for order in ("usability", "lru", "none"):
        assert hk.HybridCache(_hybrid(), blocks=4, eviction=order).eviction == order
    for wrong in ("fifo", "", None, 2, ["lru"]):
        with pytest.raises(hk.ArgumentError) as refused:
            hk.HybridCache(_hybrid(), blocks=4, eviction=wrong)  # type: ignore[arg-type]
        assert refused.value.field == "eviction"


def test_unhashed_first_then_least_recently_used_tail_before_head() -> None:
    """vLLM's test_evict (A14): an 87-token request, then one of 48 tokens, both freed."""
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=64, pages={"kv": 10}, eviction="lru")
    first = cache.reserve(_branch(1, 5))
    partial = cache.reserve(_branch(7, 1))  # what holds a partial block has no hash yet
    second = cache.reserve(_branch(2, 3))
    first.publish()
    second.publish()
    partial.abort()
    fills = [cache.reserve(_branch(20 + number, 1)) for number in range(10)]
    assert [int(fill.page_ids("kv")[0]) + 1 for fill in fills] == [6, 10, 5, 4, 3, 2, 1, 9, 8, 7]
    assert _evicted(cache) == [[0, 0, 0, 8]]
    for fill in fills:
        fill.abort()


@pytest.mark.parametrize("order", ["lru", "usability"])
def test_a_block_that_made_room_is_gone_and_a_hit_is_kept(order: str) -> None:
    """A12, A13."""
    one = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=8, pages={"kv": 1}, eviction=order)
    one.insert(_branch(1, 1))
    one.insert(_branch(2, 1))
    assert one.match(_branch(1, 1), limit=17).outcome == hk.Outcome.MISS
    two = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=8, pages={"kv": 2}, eviction=order)
    two.insert(_branch(1, 1))
    two.insert(_branch(2, 1))
    verdict = two.match(_branch(1, 1), limit=17)
    assert verdict.lease is not None
    fill = two.reserve(_branch(1, 2), lease=verdict.lease)
    assert (_there(two, _branch(1, 1), "kv"), _there(two, _branch(2, 1), "kv")) == ("1", "0")
    fill.publish()
    assert _there(two, _branch(1, 2), "kv") == "11"


def test_with_no_order_the_user_evicts() -> None:
    cache = hk.HybridCache(_hybrid(), blocks=8, pages={"kv": 2, "swa": 2}, eviction="none")
    cache.insert(_branch(1, 2))
    with pytest.raises(hk.OutOfPages) as refused:
        cache.reserve(_branch(2, 1))
    assert (refused.value.pool, refused.value.needed, refused.value.free) == ("kv", 1, 0)
    assert _there(cache, _branch(1, 2), "kv") == _there(cache, _branch(1, 2), "swa") == "11"


@pytest.mark.parametrize("order", ["lru", "usability"])
def test_a_whole_that_does_not_fit_changes_nothing(order: str) -> None:
    cache = hk.HybridCache(_hybrid(), blocks=32, pages={"kv": 4, "swa": 9}, eviction=order)
    cache.insert(_branch(1, 2))
    cache.insert(_branch(2, 2))
    lease = cache.match(_branch(1, 2), limit=33).lease
    assert lease is not None
    for keys, needed, free in ((_branch(3, 3), 3, 2), (_branch(2, 3), 1, 0)):  # its own history is no room
        with pytest.raises(hk.OutOfPages) as refused:
            cache.reserve(keys)
        assert (refused.value.pool, refused.value.needed, refused.value.free) == ("kv", needed, free)
        for name in (1, 2):
            assert _there(cache, _branch(name, 2), "kv") == _there(cache, _branch(name, 2), "swa") == "11"
    lease.release()


def test_usability_keeps_what_makes_prefixes_usable() -> None:
    tails: dict[str, int] = {}
    for order in ("usability", "lru"):
        cache = hk.HybridCache(_hybrid(), blocks=64, pages={"kv": 40, "swa": 8}, eviction=order)
        cache.insert(_branch(1, 4))
        cache.insert(_branch(2, 4))
        cache.insert(_branch(3, 4))
        cache.insert(_branch(4, 1))
        hits = [
            cache.match(_branch(name, units), limit=units * UNIT + 1)
            for name, units in ((1, 4), (2, 4), (3, 4), (4, 1))
        ]
        tails[order] = sum(hit.usable_tokens for hit in hits)
        for hit in hits:
            if hit.lease is not None:
                hit.lease.cancel()
    assert tails["usability"] == 13 * UNIT > tails["lru"]


def test_what_the_tier_has_too_goes_before_what_is_here_alone() -> None:
    with hk.MemoryTier(1 << 20) as tier:
        kv = _group("kv", hk.Prefix(), hk.StateKind.COMPRESSED)
        cache = hk.HybridCache(hk.CacheSpec(UNIT, [kv]), blocks=12, tier=tier)
        cache.bind("kv", np.zeros((12, 64), np.uint8))
        alone, stored, used = (_branch(name, 4) for name in range(3))
        for keys in (alone, stored, used):  # `alone` is the oldest
            cache.insert(keys)
        assert cache.offload(stored).result(10).ok
        for _ in range(100):  # so that the two others are about as old as each other
            lease = cache.match(used, limit=used.tokens + 1).lease
            assert lease is not None
            lease.release()
        assert [block.phase for block in cache.inspect(stored)["kv"]] == ["ready with copy"] * 4
        cache.insert(_branch(3, 3))
        assert _there(cache, alone, "kv") == _there(cache, used, "kv") == "1111"
        found = cache.match(stored, limit=stored.tokens + 1)
        assert (found.usable_tokens, found.matched_tokens) == (UNIT, 4 * UNIT)
        assert found.lease is not None
        found.lease.cancel()
        assert found.plan.restore_tokens == 4 * UNIT
        cache.close()


def test_stranded_history_is_counted_and_goes_first() -> None:
    cache = hk.HybridCache(_hybrid(), blocks=64, pages={"kv": 7, "swa": 20})
    cache.insert(_branch(1, 3))
    cache.insert(_branch(2, 4))
    cache.evict(_branch(2, 4), {"kv": [0]})
    assert cache._core.eviction_counts()["stranded_now"] == 3 * UNIT
    cache.insert(_branch(3, 4))
    assert _there(cache, _branch(1, 3), "kv") == "111"
    counts = cache._core.eviction_counts()
    assert (counts["stranded_now"], counts["stranded_tokens"]) == (0, 3 * UNIT)


@pytest.mark.parametrize("order", ["usability", "lru"])
@pytest.mark.parametrize("seed", range(12))
def test_random_runs(order: str, seed: int) -> None:
    """Nothing pinned goes, pages are conserved, a refusal changes nothing, and history stays whole."""
    dice = random.Random(seed)
    kv = _group("kv", hk.Prefix(), hk.StateKind.COMPRESSED)
    swa = _group("swa", hk.Window(33), hk.StateKind.WINDOW)
    state = _group("state", hk.Checkpoint(), hk.StateKind.TAIL)
    spec = hk.CacheSpec(UNIT, [kv, swa, state])
    pages = {"kv": dice.randint(8, 24), "swa": dice.randint(8, 24), "state": dice.randint(8, 24)}
    cache = hk.HybridCache(spec, blocks=dice.choice((16, 64)), pages=pages, eviction=order)
    branches = [_branch(name, dice.randint(1, 7), dice.randint(0, 3), dice.choice((0, 0, 5))) for name in range(10)]
    leases: list[hk.Lease] = []
    made_room = 0
    for _ in range(150):
        keys = dice.choice(branches)
        what = dice.random()
        if what < 0.5:
            before = [_there(cache, other, name) for other in branches for name in pages]
            try:
                cache.insert(keys)
            except hk.OutOfPages as short:
                assert short.needed > short.free
                assert before == [_there(cache, other, name) for other in branches for name in pages]
        elif what < 0.8:
            lease = cache.match(keys, limit=keys.tokens + 1).lease
            if lease is not None:
                leases.append(lease)
        elif leases:
            leases.pop(dice.randrange(len(leases))).release()
        for lease in leases:
            held = lease.page_ids("kv")
            assert (held >= 0).all() and lease.valid
        metrics = cache.metrics()
        for number, (name, total) in enumerate(pages.items()):
            census = metrics.pages[name]
            assert census.free + census.filling + census.held + census.cached == total
            assert cache._core.evictable(number) == census.cached
        if order == "usability":
            assert all("01" not in _there(cache, other[: len(other)], "kv") for other in branches)
    made_room = sum(map(sum, _evicted(cache)))
    assert made_room > 20
    assert cache.verify()
    for lease in leases:
        lease.release()
