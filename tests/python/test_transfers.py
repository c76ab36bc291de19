# SPDX-License-Identifier: Apache-2.0
"""Offload and restore: what comes back is what was written, or it is told why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridkv as hk
from hybridkv.tiers import TierStatus
from tier_support import DictTier, HostileTier
from transfer_world import UNIT, World, spec

MIB = 1 << 20


def memory() -> hk.MemoryTier:
    return hk.MemoryTier(MIB, threaded=True)


def test_a_prefix_outlives_the_cache_that_stored_it() -> None:
    with memory() as tier:
        first = World(tier)
        keys = first.keys(17)
        first.write(keys[:4])
        stored = first.cache.offload(keys[:4]).result(10)
        assert stored.ok and stored.tokens == 16 and stored.records == stored.stored == 8
        first.cache.close()
        second = World(tier)
        verdict = second.cache.match(keys)
        assert (verdict.outcome, verdict.matched_tokens) == (hk.Outcome.FALSE_HIT, 16)
        assert verdict.remedy is hk.Remedy.RESTORE
        assert verdict.why is not None
        assert (verdict.why.check, verdict.why.kind, verdict.why.code) == (
            hk.Check.COMPLETE,
            hk.StateKind.DISK,
            "in_tier",
        )
        assert verdict.plan.restore_tokens == 16
        loads = [("kv", b) for b in range(4)] + [("idx", b) for b in range(4)]
        assert list(verdict.plan.loads) == [*loads, ("swa", 2), ("swa", 3), ("tail", 3)]
        assert second.cache.spans(keys[:4])["kv"] == [(0, 16, "disk")]
        back = second.cache.restore(verdict.plan).result(10)
        assert back.ok and back.tokens == 16 and back.why is None
        assert second.reuse(keys) == 16
        found = second.cache.metrics()
        assert found.restores[hk.StateKind.COMPRESSED].successes == 4
        assert found.restores[hk.StateKind.WINDOW] == (moved := found.restores[hk.StateKind.WINDOW])
        assert (moved.attempts, moved.successes, moved.bytes) == (2, 2, 2 * 2 * 96)
        second.expect_idle()
        second.cache.close()


def test_records_do_not_depend_on_how_a_pool_was_bound() -> None:
    with memory() as tier:
        first = World(tier, layered=True)
        keys = first.keys(8)
        first.write(keys)
        assert first.cache.offload(keys).result(10).ok
        first.cache.close()
        second = World(tier, layered=False)
        assert second.cache.restore(second.cache.match(keys, limit=9).plan).result(10).ok
        assert second.reuse(keys) == 8
        second.cache.close()


def test_the_windows_of_a_tier_decide_which_boundaries_are_stored() -> None:
    with memory() as tier:
        tier.windows = hk.KeepWindows.every(8, ends=False)
        world = World(tier)
        keys = world.keys(28)
        world.write(keys)
        assert world.cache.offload(keys).result(10).tokens == 24
        world.forget(keys)
        assert world.cache.match(keys).plan.restore_tokens == 24
        assert world.cache.match(keys, limit=23).plan.restore_tokens == 16
        world.cache.close()


def test_a_boundary_without_its_states_is_left_out_and_said_so() -> None:
    with memory() as tier:
        world = World(tier)
        keys = world.keys(16)
        world.write(keys)
        world.cache.evict(keys, {"tail": [3]})
        result = world.cache.offload(keys, boundaries=[12, 16]).result(10)
        assert result.ok and result.tokens == 12 and result.left_out == (16,)
        world.forget(keys)
        verdict = world.cache.match(keys, limit=17)
        assert (verdict.matched_tokens, verdict.plan.restore_tokens) == (16, 12)
        world.cache.close()


def test_a_second_asker_waits_for_the_first() -> None:
    tier = DictTier()
    with tier:
        world = World(hk.MemoryTier(MIB))
        keys = world.keys(8)
        del world
        writer = World(slow := hk.MemoryTier(MIB, threaded=True))
        writer.write(keys)
        writer.cache.offload(keys).result(10)
        writer.forget(keys)
        plan = writer.cache.match(keys, limit=9).plan
        first = writer.cache.restore(plan)
        second = writer.cache.restore(plan)
        if not first.done():
            assert writer.cache.match(keys, limit=9).remedy is hk.Remedy.WAIT
        assert first.result(10).ok
        assert second.result(10).ok
        assert writer.reuse(keys) == 8
        writer.expect_idle()
        writer.cache.close()
        slow.close()


def test_prefetch_counts_no_look_up_and_finds_nothing_where_nothing_is() -> None:
    with memory() as tier:
        world = World(tier)
        keys = world.keys(9)
        assert world.cache.prefetch(keys) is None
        world.write(keys[:2])
        world.cache.offload(keys[:2]).result(10)
        world.forget(keys)
        before = world.cache.metrics().lookups
        plan = world.cache.restorable(keys)
        assert plan is not None and plan.restore_tokens == 8 and ("tail", 1) in plan.loads
        transfer = world.cache.prefetch(keys)
        assert transfer is not None and transfer.result(10).ok
        assert world.cache.metrics().lookups == before
        assert world.cache.restorable(keys) is None
        assert world.reuse(keys) == 8
        world.cache.close()


def test_a_restore_under_a_ticket_uses_what_the_request_was_promised() -> None:
    with memory() as tier:
        world = World(tier, pages={"kv": 8, "idx": 8, "swa": 8, "tail": 12})
        keys = world.keys(17)
        world.write(keys[:4])
        world.cache.offload(keys[:4]).result(10)
        world.forget(keys)
        verdict = world.cache.match(keys)
        ticket = world.cache.admit("a", 24, states=1)
        assert world.cache.restore(verdict.plan, ticket=ticket).result(10).ok
        assert world.reuse(keys) == 16
        ticket.close()
        world.expect_idle()
        world.cache.close()


def test_no_room_to_restore_leaves_everything_as_it_was() -> None:
    with memory() as tier:
        world = World(tier, pages=dict.fromkeys(("kv", "idx", "swa", "tail"), 4))
        keys = world.keys(17)
        world.write(keys[:4])
        world.cache.offload(keys[:4]).result(10)
        world.forget(keys)
        other = world.keys(12, first=500)
        world.write(other)
        lease = world.cache.match(other, limit=13).lease
        assert lease is not None
        plan = world.cache.match(keys).plan
        with pytest.raises(hk.OutOfPages):
            world.cache.restore(plan)
        lease.release()
        assert world.cache.restore(plan).result(10).ok  # evicts what nobody holds
        assert world.reuse(keys) == 16
        world.expect_idle()
        world.cache.close()


@pytest.mark.parametrize("mode", ["through", "back"])
def test_published_prefixes_are_stored_by_themselves(mode: str) -> None:
    with memory() as tier:
        world = World(tier, tier_writes=mode, pages=dict.fromkeys(("kv", "idx", "swa", "tail"), 12))
        for number in range(3):
            world.write(world.keys(16, first=1000 * number + 1))
            for _ in range(200):
                world.cache.poll()
                tier.wait(0.001)
        stored = tier.usage().records
        assert stored == (3 * 8 if mode == "through" else stored)
        assert stored >= 8
        ticket = world.cache.admit("a", 8)
        ticket.grow(8)
        ticket.advance(8, range(5001, 5009))
        ticket.close()
        for _ in range(200):
            world.cache.poll()
            tier.wait(0.001)
        if mode == "through":
            assert tier.usage().records > stored
        world.cache.close()


def test_write_back_stores_nothing_while_pages_are_free() -> None:
    with memory() as tier:
        world = World(tier, tier_writes="back")
        world.write(world.keys(16))
        for _ in range(20):
            world.cache.poll()
        assert tier.usage().records == 0
        world.cache.close()


def test_a_store_with_another_format_is_a_false_hit_by_abi() -> None:
    with memory() as tier:
        world = World(tier)
        keys = world.keys(9)
        world.write(keys[:2])
        world.cache.offload(keys[:2]).result(10)
        world.cache.close()
        groups = list(spec().groups)
        groups[0] = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=128, layers=("0", "1"))
        other = World(tier, of=hk.CacheSpec(UNIT, groups, identity=hk.Identity(model="small")))
        verdict = other.cache.match(keys)
        assert verdict.why is not None
        assert (verdict.why.check, verdict.why.code, verdict.why.kind) == (
            hk.Check.ABI,
            "format",
            hk.StateKind.DISK,
        )
        assert verdict.remedy is hk.Remedy.RECOMPUTE and verdict.plan.restore_tokens == 0
        other.cache.close()


def test_arguments() -> None:
    with memory() as tier, memory() as elsewhere:
        world, other = World(tier), World(elsewhere)
        keys = world.keys(9)
        plain = World(None)
        with pytest.raises(hk.ArgumentError, match="tier"):
            plain.cache.offload(keys)
        with pytest.raises(hk.ArgumentError, match="boundaries"):
            world.cache.offload(keys, boundaries=[0])
        with pytest.raises(hk.ArgumentError, match="boundaries"):
            world.cache.offload(keys, boundaries=[12])
        for bad in (5, 4.0, [None], "4", [2**62]):
            with pytest.raises(hk.ArgumentError, match=r"boundaries: expected .*tokens"):
                world.cache.offload(keys, boundaries=bad)  # type: ignore[arg-type]
        for late in (0, 1e9, 2**2000):
            with pytest.raises(hk.ArgumentError, match="timeout_s"):
                world.cache.offload(keys, timeout_s=late)
            with pytest.raises(hk.ArgumentError, match="timeout_s"):
                world.cache.prefetch(keys, timeout_s=late)
            with pytest.raises(hk.ArgumentError, match="timeout"):
                world.cache.flush(late)
        with pytest.raises(hk.ArgumentError, match="timeout: expected a time in seconds"):
            world.cache.offload(keys).result(2**2000)
        assert world.cache.offload(keys).result(1e300).ok
        with pytest.raises(hk.ArgumentError, match="now"):
            world.cache.revoke(now=2**2000)
        with pytest.raises(hk.ArgumentError, match="keys"):
            world.cache.offload(keys[1:])
        with pytest.raises(hk.ArgumentError, match="plan"):
            world.cache.restore(world.cache.match(keys).plan)
        world.write(keys[:2])
        world.cache.offload(keys[:2]).result(10)
        world.forget(keys)
        with pytest.raises(hk.ArgumentError, match="plan"):
            other.cache.restore(world.cache.match(keys).plan)
        with pytest.raises(hk.ArgumentError, match="tier_writes"):
            hk.HybridCache(spec(), blocks=4, tier_writes="sometimes")
        for mode in ("through", "back"):
            with pytest.raises(hk.ArgumentError, match=f"tier_writes: expected a tier .*'{mode}' without a tier"):
                hk.HybridCache(spec(), blocks=4, tier_writes=mode)
        with pytest.raises(hk.Busy, match="tier"):
            World(tier)
        unbound = hk.HybridCache(spec(), blocks=8, tier=hk.MemoryTier(MIB))
        with pytest.raises(hk.ArgumentError, match=r"pools\[kv\]"):
            unbound.offload(keys)
        unbound.close()
        world.cache.close()
        other.cache.close()


def test_close_is_refused_while_something_moves() -> None:
    tier = DictTier(threads=1)
    world = World(tier)
    keys = world.keys(16)
    world.write(keys)
    tier.gate.clear()
    transfer = world.cache.offload(keys)
    for refused in (world.cache.close, world.cache.reset):
        with pytest.raises(hk.Busy, match="transfer"):
            refused()
    assert transfer.progress == 0 and not transfer.done()
    tier.gate.set()
    assert transfer.result(10).ok and transfer.progress == 1
    world.cache.close()
    tier.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("wofrrmmcs"), st.integers(0, 5), st.integers(1, 24)), max_size=40))
def test_whatever_is_reused_holds_what_was_written(events: list[tuple[str, int, int]]) -> None:
    with hk.MemoryTier(6000, threaded=True) as tier:
        world = World(tier, blocks=24)
        moving: list[hk.Transfer] = []
        for what, which, tokens in events:
            first = 1 + (which % 3) * 100
            keys, prefix = world.keys(tokens + 1, first=first), world.keys(tokens, first=first)  # perhaps a tip
            try:
                if what == "w":
                    world.write(prefix)
                elif what == "o":
                    moving.append(world.cache.offload(prefix))
                elif what == "f":
                    world.cache.evict(prefix)
                elif what == "s":
                    world.cache.flush(10)
                elif what == "r":
                    verdict = world.cache.match(keys)
                    if verdict.lease is not None:
                        verdict.lease.release()
                    if verdict.remedy is hk.Remedy.RESTORE:
                        moving.append(world.cache.restore(verdict.plan))
                elif what == "c" and moving:
                    moving[which % len(moving)].cancel()
                else:
                    world.reuse(keys)
            except hk.OutOfPages:
                pass
        for transfer in moving:
            transfer.result(10)
        for which in range(3):
            world.reuse(world.keys(25, first=1 + which * 100))
        world.expect_idle()
        world.cache.close()


def spoiled(change: str) -> tuple[HostileTier, World, hk.BlockKeys]:
    tier = HostileTier(breaker_after=0)
    world = World(tier)
    keys = world.keys(9)
    world.write(keys[:2])
    assert world.cache.offload(keys[:2]).result(10).ok
    world.forget(keys)

    def spoil(envelope: bytes, buffers: list[object]) -> tuple[bytes, list[object]]:
        first = bytearray(buffers[0])  # type: ignore[arg-type]
        if change == "flip":
            first[3] ^= 16
        elif change == "short":
            first = first[:-1]
        elif change == "envelope":
            return envelope[:16] + bytes(4) + envelope[20:], buffers
        return envelope, [bytes(first), *buffers[1:]]

    tier.spoil = spoil
    return tier, world, keys


@pytest.mark.parametrize("change", ["flip", "short", "envelope"])
def test_what_a_store_gives_back_wrong_is_never_published(change: str) -> None:
    tier, world, keys = spoiled(change)
    with tier:
        verdict = world.cache.match(keys)
        assert verdict.remedy is hk.Remedy.RESTORE
        result = world.cache.restore(verdict.plan).result(10)
        assert result.status in {TierStatus.CORRUPT, TierStatus.IO_ERROR}
        assert result.why is not None and result.why.check is hk.Check.INTEGRITY
        after = world.cache.match(keys)
        assert after.usable_tokens == 0 and after.outcome is hk.Outcome.FALSE_HIT
        assert after.why is not None and (after.why.check, after.why.code) == (hk.Check.INTEGRITY, "load")
        assert sum(world.cache.metrics().load_failures.values()) >= 1
        world.expect_idle()
        world.write(keys[:2])
        assert world.reuse(keys) == 8
        world.cache.close()


def test_a_store_without_an_index_is_asked_once() -> None:
    tier = DictTier(threads=1)
    world = World(tier)
    keys = world.keys(9)
    world.write(keys[:2])
    assert world.cache.offload(keys[:2]).result(10).ok
    world.cache.close()
    tier.close()
    again = DictTier(threads=1)
    again.records = tier.records
    reader = World(again)
    assert reader.cache.match(keys).outcome is hk.Outcome.MISS
    assert reader.cache.prefetch(keys) is None  # asks
    assert again.drain(10)
    reader.cache.poll()
    assert reader.cache.match(keys).plan.restore_tokens == 8
    transfer = reader.cache.prefetch(keys)
    assert transfer is not None and transfer.result(10).ok
    assert reader.reuse(keys) == 8
    reader.forget(keys)
    longer = reader.keys(21)  # of which the store has never had the rest
    transfer = reader.cache.prefetch(longer)
    assert transfer is not None and transfer.result(10).tokens == 8
    reader.cache.close()
    again.close()


def test_a_frozen_store_times_out_and_its_late_bytes_land_nowhere() -> None:
    tier = DictTier(breaker_after=0)
    world = World(tier)
    keys = world.keys(9)
    world.write(keys[:2])
    assert world.cache.offload(keys[:2]).result(10).ok
    world.forget(keys)
    plan = world.cache.match(keys).plan
    tier.gate.clear()
    transfer = world.cache.restore(plan, timeout_s=0.05)
    with pytest.raises(TimeoutError):
        transfer.result(0.3)
    assert world.cache.metrics().load_failures.keys() == {"timeout"}
    world.write(keys[:2])
    assert world.reuse(keys) == 8
    tier.gate.set()
    assert transfer.result(10).status is TierStatus.TIMEOUT
    assert world.reuse(keys) == 8
    world.expect_idle()
    world.cache.close()
    tier.close()


def test_a_cache_that_is_dropped_lets_go_of_its_pools_last() -> None:
    tier = hk.MemoryTier(MIB, threaded=True)
    world = World(tier, blocks=256)
    keys = world.keys(512)
    world.write(keys)
    world.cache.offload(keys)
    del world
    assert tier.drain(10)
    tier.close()


def test_pool_memory_outside_of_numpy_owners_stays_alive() -> None:
    tier = hk.MemoryTier(MIB)
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(layers=1, page_bytes=64, unit_tokens=4), blocks=8, tier=tier)
    cache.bind("kv", np.zeros((8, 64), np.uint8))
    keys = hk.block_keys(range(8), 4, identity=cache.spec.identity)
    cache.insert(keys)
    assert cache.offload(keys).result(10).ok
    cache.close()
    tier.close()


FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which is what this is about
import hybridkv as hk
from tier_support import DictTier
from transfer_world import World

tier = DictTier(threads=1)
world = World(tier)
keys = world.keys(8)
world.write(keys)
tier.gate.clear()
transfer = world.cache.offload(keys)
child = os.fork()
if child == 0:
    for forbidden in (transfer.done, transfer.cancel, world.cache.poll, lambda: world.cache.offload(keys)):
        try:
            forbidden()
            os._exit(1)
        except hk.Closed:
            pass
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
tier.gate.set()
assert transfer.result(20).ok
world.forget(keys)
assert world.cache.restore(world.cache.match(keys, limit=9).plan).result(20).ok
assert world.reuse(keys) == 8
world.cache.close()
tier.close()
print("the parent went on")
"""


def test_a_fork_leaves_what_is_on_its_way_to_the_parent() -> None:
    here = str(Path(__file__).resolve().parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])}
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout == "the parent went on\n", done.stderr
