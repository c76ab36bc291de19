# SPDX-License-Identifier: Apache-2.0
"""Stacks of tiers from Python. What one does by itself is tested in tests/cpp/tier; test_tiers.py runs over one too."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.tiers import Answer, GetItem, StackCounts
from tier_support import Asker, DictTier, key, pages, parts, record, room
from transfer_world import World


def memory() -> hk.MemoryTier:
    return hk.MemoryTier(1 << 24)


def wait_for_copies(stack: hk.TierStack, records: int) -> StackCounts:
    for _ in range(6000):
        first = stack.counts()[0]
        if first.promoted + first.not_promoted >= records:
            return first
        stack.wait(0.01)
    raise AssertionError("no copy within a minute")


@pytest.mark.parametrize(
    ("tiers", "field"),
    [
        (lambda: [], "tiers"),
        (lambda: [memory()], "tiers"),
        (lambda: 7, "tiers"),
        (lambda: [memory(), "disk"], "tiers[1]"),
        (lambda: [memory()] * 2, "tiers[1]"),
    ],
)
def test_what_makes_no_stack_is_refused(tiers: Any, field: str) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        hk.TierStack(tiers())
    assert caught.value.field == field


@pytest.mark.parametrize("bytes_", [-1, 2**62, 1.5])
def test_room_for_copies_is_a_number_of_bytes(bytes_: Any) -> None:
    with pytest.raises(hk.ArgumentError, match="promotion_bytes"):
        hk.TierStack([memory(), memory()], promotion_bytes=bytes_)


def test_a_tier_is_in_one_stack_and_free_after_a_refusal() -> None:
    fast, slow, other = memory(), memory(), memory()
    with hk.TierStack([fast, slow]) as stack:
        with pytest.raises(hk.Busy):
            hk.TierStack([other, slow])
        with hk.TierStack([other, memory()]):
            pass
        assert stack.tiers == (fast, slow)


def test_copies_above_and_everything_below() -> None:
    slow = DictTier()
    below = Asker(slow)
    assert below.put(record(1)) == "OK"
    with hk.TierStack([memory(), slow]) as stack:
        ask = Asker(stack)
        assert ask.has(1)
        assert wait_for_copies(stack, 1).promoted == 1
        assert stack.tiers[0].look(key(1)).answer is Answer.HERE
        assert ask.has(1)
        assert ask.put(record(2)) == "OK"
        assert [counts.hits for counts in stack.counts()] == [1, 1]
        assert [tier.usage().puts for tier in stack.tiers] == [2, 2]
        assert ask.remove(key(1)) == "OK"
        assert ask.probe(key(1)) == "MISS"
        assert ask.flush() == "OK"
    assert slow.synced == 1  # of the slowest it is asked, durable or not


def test_some_parts_are_no_record() -> None:
    with hk.TierStack([memory(), DictTier()], promotion_bytes=0) as stack:
        ask = Asker(stack)
        assert ask.put(record(1)) == "OK"
        arrays = room()
        assert ask.get(key(1), parts(arrays)[:2]).status.name == "OK"
        assert np.array_equal(arrays[0], pages(1)[0])
        assert stack.counts()[0] == StackCounts(1, 0, 0, 0, 0)


def test_a_frozen_store_below_costs_a_deadline_and_its_arrays_are_kept() -> None:
    slow = DictTier()
    assert Asker(slow).put(record(1)) == "OK"
    with hk.TierStack([memory(), slow]) as stack:
        ask = Asker(stack)
        slow.gate.clear()
        arrays = room()
        kept = weakref.ref(arrays[0])
        batch = stack.get([GetItem(key(1), parts(arrays))], timeout=0.1)
        del arrays
        first = ask.first(batch)
        assert (first.status.name, first.released) == ("TIMEOUT", False)
        gc.collect()
        assert kept() is not None
        slow.gate.set()
        late = ask.last(batch)
        assert late.late and late.status.name == "OK"


def test_close_closes_the_tiers_and_a_collected_stack_is_closed() -> None:
    fast, slow = memory(), memory()
    stack = hk.TierStack([fast, slow])
    assert stack.close()
    for tier in (stack, fast, slow):
        with pytest.raises(hk.Closed):
            tier.flush()
    fast, slow = memory(), memory()
    stack = hk.TierStack([fast, slow])
    del stack
    gc.collect()
    with pytest.raises(hk.Closed):
        slow.flush()


def test_a_copy_above_does_not_pass_for_what_is_stored(tmp_path: Path) -> None:
    disk = hk.DiskTier(tmp_path, 4 << 16, region_bytes=1 << 16)
    with hk.TierStack([hk.MemoryTier(8 << 20), disk]) as tier:
        world = World(tier)
        keys = world.keys(16)
        world.write(keys)
        first = world.cache.offload(keys, durable=True).result(10)
        for number in range(1, 60):
            if disk.usage().reclaimed > 2 * first.records:
                break
            others = world.keys(16, first=1000 * number)
            world.write(others)
            assert world.cache.offload(others, durable=True).result(10).ok
            world.cache.evict(others)
        again = world.cache.offload(keys, durable=True).result(10)
        assert again.ok and again.records == first.records
        world.cache.close()
    with hk.DiskTier(tmp_path, 4 << 16, region_bytes=1 << 16) as alone:
        assert World(alone).cache.match(keys, limit=17).plan.restore_tokens == 16
