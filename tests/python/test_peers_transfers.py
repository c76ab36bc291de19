# SPDX-License-Identifier: Apache-2.0
"""Cases that the tests of other cache managers pin of their tiers; see peer_cases.json."""

from __future__ import annotations

import pytest

import hybridkv as hk
from transfer_world import PAGE, UNIT, World

KIND = hk.StateKind
GROUPS = ("kv", "swa")


def history_and_window() -> hk.CacheSpec:
    """A window of two blocks: at a length it needs the two before it."""
    kv = hk.CacheGroup("kv", KIND.COMPRESSED, hk.Prefix(), page_bytes=PAGE, layers=("0", "1"))
    swa = hk.CacheGroup("swa", KIND.WINDOW, hk.Window(2 * UNIT), page_bytes=PAGE, layers=("0", "1"))
    return hk.CacheSpec(UNIT, [kv, swa], identity=hk.Identity(model="small"))


def world_of(pages: int = 16) -> World:
    return World(hk.MemoryTier(1 << 20), of=history_and_window(), pages=dict.fromkeys(GROUPS, pages))


def done(world: World) -> None:
    world.expect_idle()
    tier = world.cache.tier
    world.cache.close()
    assert tier is not None
    tier.close()


@pytest.mark.parametrize(
    ("missing", "length", "loads"),
    [
        ({"swa": [3]}, 12, [("kv", 1), ("kv", 2), ("swa", 1), ("swa", 2)]),
        ({"kv": [2]}, 8, [("kv", 1), ("swa", 1)]),
    ],
    ids=["window", "history"],
)
def test_T1_a_tier_extends_a_hit_under_the_same_rule(
    missing: dict[str, list[int]], length: int, loads: list[tuple[str, int]]
) -> None:
    world = world_of()
    keys = world.keys(16)
    world.write(keys)
    world.cache.evict(keys, missing)
    stored = world.cache.offload(keys, boundaries=[4, 8, 12, 16]).result(10)
    assert stored.tokens == length, "the rule holds for what is stored"
    world.cache.evict(keys, {"kv": [1, 2, 3], "swa": [1, 2, 3]})
    verdict = world.cache.match(keys, limit=17)
    assert verdict.usable_tokens == 4, "the device alone"
    assert verdict.plan.restore_tokens == length
    assert sorted(verdict.plan.loads) == loads
    assert verdict.lease is not None
    verdict.lease.release()
    assert world.cache.restore(verdict.plan).result(10).ok
    assert world.reuse(keys) == length
    done(world)


def test_T3_a_page_that_was_handed_out_again_is_not_taken_for_what_it_held() -> None:
    world = world_of(4)
    keys, other = world.keys(16), world.keys(16, first=500)
    world.write(keys)
    assert world.cache.offload(keys).result(10).ok
    world.cache.evict(keys, {"kv": [3]})
    verdict = world.cache.match(keys, limit=17)
    assert verdict.plan.loads == (("kv", 3),), "the others were here when it was asked"
    was = [block.page for block in world.cache.inspect(keys)["kv"][:3]]
    assert verdict.lease is not None
    verdict.lease.release()
    world.write(other)  # takes their pages
    assert set(was) <= {block.page for block in world.cache.inspect(other)["kv"]}
    result = world.cache.restore(verdict.plan).result(10)
    assert (result.ok, result.records) == (True, 5), "all of them are loaded"
    assert world.reuse(keys) == 16
    done(world)


@pytest.mark.parametrize("pages", [6, 4])
def test_T4_a_load_that_needs_pages_does_not_take_those_that_it_builds_on(pages: int) -> None:
    world = world_of(pages)
    keys, other = world.keys(16), world.keys(4 * (pages - 2), first=700)
    world.write(keys)
    assert world.cache.offload(keys).result(10).ok
    world.cache.evict(keys, {"kv": [2, 3], "swa": True})
    world.write(other)
    held = world.cache.match(other, limit=other.tokens + 1).lease
    assert held is not None
    looked = world.cache.match(keys, limit=17)
    assert looked.plan.restore_tokens == 16
    before = world.cache.metrics().pages["kv"].free
    with pytest.raises(hk.OutOfPages):  # there are pages: those of the blocks below
        world.cache.restore(looked.plan)
    assert world.cache.metrics().pages["kv"].free == before
    assert [block.phase for block in world.cache.inspect(keys)["kv"][:2]] == ["ready with copy"] * 2
    held.release()
    assert world.cache.restore(looked.plan).result(10).ok
    lease = world.cache.match(keys, limit=17).lease
    assert lease is not None
    with lease:
        ids = [page for page in lease.page_ids("kv").tolist() if page >= 0]
        assert len(ids) == len(set(ids)) == 4
        world.check(keys, lease)
    done(world)
