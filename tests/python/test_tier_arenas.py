# SPDX-License-Identifier: Apache-2.0
"""Arenas: memory that a tier may count on, over every tier, and the pools of a cache as such."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import hybridkv as hk
from hybridkv.tiers import Part, PutItem
from tier_support import TIERS, Asker, DictTier, key, parts, record, room

KIB = 1 << 10
DISKS: dict[str, Callable[[Path], hk.Tier]] = {
    "disk": lambda path: hk.DiskTier(path, 32 << 20, region_bytes=4 << 20),
    "disk, threads": lambda path: hk.DiskTier(path, 32 << 20, region_bytes=4 << 20, engine="threads"),
    "memory over disk": lambda path: hk.TierStack(
        [hk.MemoryTier(1 << 20), hk.DiskTier(path, 32 << 20, region_bytes=4 << 20)]
    ),
}


@pytest.fixture(params=[*TIERS, *DISKS])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hk.Tier]:
    with TIERS[request.param]() if request.param in TIERS else DISKS[request.param](tmp_path / "store") as made:
        yield made


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[hk.DiskTier]:
    with hk.DiskTier(tmp_path / "store", 64 << 20, region_bytes=8 << 20) as made:
        yield made


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """Memory that direct I/O takes."""
    return np.frombuffer(mmap.mmap(-1, size), np.uint8)


def fixes(tier: hk.Tier) -> bool:
    """Whether the tier's engine can use an arena: io_uring, with a table of buffers."""
    memory = aligned(4096)
    tier.add_arena(memory)
    found = tier.usage().arenas_fixed
    tier.drop_arena(memory)
    return found == 1


def test_what_lies_in_an_arena_moves_as_anything_else(tier: hk.Tier) -> None:
    ask = Asker(tier)
    memory = aligned(512 * KIB)
    source, target = memory[: 256 * KIB], memory[256 * KIB :]
    source[:] = np.random.default_rng(1).integers(0, 256, source.size, np.uint8)
    tier.add_arena(memory)
    assert tier.usage().arenas == 1
    assert ask.put(PutItem(key(1), (Part(source, group=0),))) == "OK"
    assert ask.get(key(1), [Part(target, group=0)]).status.name == "OK"
    assert np.array_equal(source, target)
    tier.drop_arena(memory)
    assert tier.usage().arenas == 0
    target[:] = 0
    assert ask.get(key(1), [Part(target, group=0)]).status.name == "OK"
    assert np.array_equal(source, target)


def test_memory_of_many_kinds(tier: hk.Tier) -> None:
    kinds: list[Any] = [
        bytearray(100),
        memoryview(bytearray(100)),
        mmap.mmap(-1, 4096),
        np.zeros((3, 4), np.float16),
        np.zeros((2, 1, 4), np.int64)[:, ::2],  # one row of each: nothing is passed over
    ]
    for buffer in kinds:
        tier.add_arena(buffer)
    assert tier.usage().arenas == len(kinds)
    with pytest.raises(BufferError):  # the tier keeps it
        kinds[2].close()
    for buffer in kinds:
        tier.drop_arena(buffer)
    assert tier.usage().arenas == 0
    kinds[2].close()


WRONG: list[Callable[[hk.Tier, npt.NDArray[np.uint8]], None]] = [
    lambda tier, known: tier.add_arena(7),
    lambda tier, known: tier.add_arena(bytearray()),
    lambda tier, known: tier.add_arena(np.empty(0, np.uint8)),
    lambda tier, known: tier.add_arena(np.zeros((4, 4), np.uint8)[:, ::2]),
    lambda tier, known: tier.add_arena(np.zeros((4, 4), np.uint8).T),
    lambda tier, known: tier.add_arena(known),
    lambda tier, known: tier.add_arena(known[10:20]),
    lambda tier, known: tier.drop_arena(known[10:20]),
    lambda tier, known: tier.drop_arena(np.zeros(4)),
]


@pytest.mark.parametrize("use", WRONG)
def test_what_is_no_arena_is_refused_by_the_name_of_the_argument(
    use: Callable[[hk.Tier, npt.NDArray[np.uint8]], None], tier: hk.Tier
) -> None:
    known = np.zeros(100, np.uint8)
    tier.add_arena(known)
    with pytest.raises(hk.ArgumentError) as caught:
        use(tier, known)
    assert caught.value.field == "buffer" and caught.value.expected and caught.value.got
    assert tier.usage().arenas == 1 and len(tier._arenas) == 1
    tier.drop_arena(known[:5])  # it begins where the arena does
    assert tier.usage().arenas == 0 and not tier._arenas


def test_an_arena_in_use_is_busy_until_the_memory_is_released() -> None:
    with DictTier(breaker_after=0) as tier:
        ask = Asker(tier)
        assert ask.put(record(1)) == "OK"
        arrays = room()
        tier.add_arena(arrays[1])
        tier.gate.clear()
        batch = tier.get([hk.tiers.GetItem(key(1), parts(arrays))], timeout=0.01)
        assert ask.first(batch).status.name == "TIMEOUT"
        with pytest.raises(hk.Busy) as caught:
            tier.drop_arena(arrays[1])
        assert caught.value.field == "buffer" and tier.usage().arenas == 1
        tier.gate.set()
        assert ask.last(batch).released
        tier.drop_arena(arrays[1])


def test_a_closed_tier_lets_go_of_arenas(tier: hk.Tier) -> None:
    memory = mmap.mmap(-1, 4096)
    tier.add_arena(memory)
    tier.close()
    memory.close()
    with pytest.raises(hk.Closed):
        tier.add_arena(np.zeros(10))


# ---- pools ---------------------------------------------------------------------------------------


class Pools:
    """A model of two groups over memory that direct I/O takes: pages of 256 KiB, and of four layers of 64 KiB."""

    def __init__(self, tier: hk.Tier | None) -> None:
        kind = hk.StateKind
        groups = [
            hk.CacheGroup("kv", kind.COMPRESSED, hk.Prefix(), page_bytes=256 * KIB),
            hk.CacheGroup("idx", kind.INDEXER, hk.Prefix(), page_bytes=64 * KIB, layers=range(4), in_step_with="kv"),
        ]
        self.spec = hk.CacheSpec(16, groups, identity=hk.Identity(model="large pages"))
        self.cache = hk.HybridCache(self.spec, blocks=16, tier=tier)
        self.arrays = {name: aligned(16 * 256 * KIB).reshape(16, 256 * KIB) for name in ("kv", "idx")}
        for name, array in self.arrays.items():
            self.cache.bind(name, array)
        self.keys = hk.block_keys(range(8 * 16), 16, identity=self.spec.identity)

    def content(self, name: str) -> npt.NDArray[np.uint8]:
        return np.random.default_rng(len(name)).integers(0, 256, (8, 256 * KIB), np.uint8)

    def write(self) -> None:
        fill = self.cache.reserve(self.keys)
        for name, array in self.arrays.items():
            array[fill.page_ids(name)] = self.content(name)
        fill.publish()

    def restored(self) -> bool:
        """Store, forget, load; say whether every byte came back."""
        self.write()
        assert self.cache.offload(self.keys).result(30).ok
        self.cache.evict(self.keys)
        for array in self.arrays.values():
            array[:] = 0
        plan = self.cache.match(self.keys, limit=self.keys.tokens + 1).plan
        assert plan is not None and self.cache.restore(plan).result(30).ok
        verdict = self.cache.match(self.keys, limit=self.keys.tokens + 1)
        assert verdict.lease is not None
        with verdict.lease as lease:
            return all(
                np.array_equal(self.arrays[name][lease.page_ids(name)], self.content(name)) for name in self.arrays
            )


def test_loads_into_pools_are_fixed_reads(disk: hk.DiskTier) -> None:
    known = fixes(disk)
    model = Pools(disk)
    usage = disk.usage()
    assert (usage.arenas, usage.arenas_fixed) == (2, 2 if known else 0)
    assert model.restored()
    usage = disk.usage()
    # Each of the 8 block records is read by a request for its page of each group, and one for its envelope.
    assert usage.arena_reads == (16 if known else 0)
    assert usage.bytes_read >= 8 * 512 * KIB
    model.cache.close()
    assert disk.usage().arenas == 0 and not disk._arenas


def test_pools_are_arenas_of_every_tier_and_of_those_below_it(tier: hk.Tier) -> None:
    model = Pools(tier)
    assert tier.usage().arenas == 2
    if isinstance(tier, hk.TierStack):
        assert [below.usage().arenas for below in tier.tiers] == [2, 2]
    if tier.most_bytes > MOST:
        assert model.restored()
    model.cache.close()
    assert tier.usage().arenas == 0
    if isinstance(tier, hk.TierStack):
        assert [below.usage().arenas for below in tier.tiers] == [0, 0]


MOST = 2 * 256 * KIB + 4096


def test_a_pool_bound_anew_replaces_its_arena(disk: hk.DiskTier) -> None:
    model = Pools(disk)
    again = np.zeros((16, 256 * KIB), np.uint8)
    model.cache.bind("kv", again)
    assert disk.usage().arenas == 2
    assert set(disk._arenas) == {again.ctypes.data, model.arrays["idx"].ctypes.data}
    model.cache.bind("kv", again)  # the same
    assert disk.usage().arenas == 2
    model.cache.bind("idx", [np.zeros((16, 64 * KIB), np.uint8) for _ in range(4)])
    assert disk.usage().arenas == 5
    model.cache.bind("idx", np.zeros((16, 2, 256 * KIB), np.uint8)[:, 0])  # gaps between its pages
    assert disk.usage().arenas == 1
    model.cache.bind("idx", again)  # in an arena already
    assert disk.usage().arenas == 1
    model.cache.reset()
    assert disk.usage().arenas == 1  # the pools are as they were
    disk.drop_arena(again)  # by hand: nothing breaks
    model.cache.close()
    assert disk.usage().arenas == 0


def test_a_cache_that_is_dropped_leaves_no_arena(disk: hk.DiskTier) -> None:
    Pools(disk)
    gc.collect()
    assert disk.usage().arenas == 0 and not disk._arenas


def test_a_pool_whose_memory_an_ask_still_uses_is_dropped_later() -> None:
    with DictTier(breaker_after=0) as tier:
        model = Pools(tier)
        model.write()
        tier.gate.clear()
        moving = model.cache.offload(model.keys, timeout_s=0.01)
        with pytest.raises(TimeoutError):
            moving.result(0.2)
        with pytest.raises(hk.Busy):
            model.cache.close()
        assert tier.usage().arenas == 2
        tier.gate.set()
        moving.result(30)
        model.cache.close()
        assert tier.usage().arenas == 0
