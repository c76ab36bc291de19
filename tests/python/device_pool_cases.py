# SPDX-License-Identifier: Apache-2.0
"""Offload and restore of pools on a device under the stand-in driver, each case in a process of its own.

``python device_pool_cases.py NAME`` runs the function of that name; ``HYBRIDKV_LIBCUDA`` names a library made of
``tests/cpp/fake_cuda``, whose device memory the CPU cannot touch at its address: whoever tries is killed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

import hybridkv as hk
from hybridkv.errors import ArgumentError, Busy
from transfer_world import PAGE, UNIT, World, expected, spec

GROUPS = ("kv", "idx", "swa", "tail")
AT_ONCE = 1 << 20  # operations that a question after an event gets done: all of them


def driver() -> ctypes.CDLL:
    """Return the stand-in, which the core will open too."""
    library = ctypes.CDLL(os.environ["HYBRIDKV_LIBCUDA"])
    library.fake_allocate.restype = ctypes.c_uint64
    library.fake_allocate.argtypes = (ctypes.c_size_t, ctypes.c_int)
    library.fake_seen.restype = ctypes.c_void_p
    library.fake_seen.argtypes = (ctypes.c_uint64,)
    library.fake_call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for name in ("fake_run", "fake_by_itself"):
        getattr(library, name).argtypes = (ctypes.c_size_t,)
    return library


class DeviceArray:
    """Bytes on a device, under ``__cuda_array_interface__``."""

    def __init__(self, address: int, shape: tuple[int, int]) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "|u1", "data": (address, False), "version": 3}


def allocate(shape: tuple[int, int], device: int = 0) -> tuple[DeviceArray, npt.NDArray[np.uint8]]:
    """Return device memory, and what the test sees of it."""
    size = shape[0] * shape[1]
    address = driver().fake_allocate(size, device)
    seen = (ctypes.c_uint8 * size).from_address(driver().fake_seen(address))
    return DeviceArray(address, shape), np.frombuffer(seen, np.uint8).reshape(shape)


class DeviceWorld(World):
    """The small hybrid model with some of its pools on a device."""

    def __init__(self, tier: hk.Tier | None, groups: Iterable[str] = GROUPS, **options: Any) -> None:
        super().__init__(tier, **options)
        for name in groups:
            made = [allocate(pool.shape) for pool in self.pools[name]]  # type: ignore[arg-type]
            self.pools[name] = [seen for _, seen in made]
            arrays = [array for array, _ in made]
            self.cache.bind(name, arrays if len(arrays) > 1 else arrays[0])

    def restore(self, tokens: int) -> hk.Transfer:
        """Load what helps a request of so many tokens."""
        plan = self.cache.restorable(self.keys(tokens))
        assert plan is not None
        return self.cache.restore(plan)

    def close(self) -> None:
        assert driver().fake_misuses() == 0
        self.cache.close()


class Event:
    """An event of the engine."""

    def __init__(self) -> None:
        self.passed = False
        self.broken = False

    def query(self) -> bool:
        if self.broken:
            raise RuntimeError("the device is gone")
        return self.passed


def disk_round_trip() -> None:
    """Every group on the device, or some; one array a layer, or one for both: each byte comes back from the disk."""
    driver().fake_by_itself(AT_ONCE)
    for groups, layered in ((GROUPS, True), (GROUPS, False), (("kv", "tail"), True), (("swa",), False)):
        with tempfile.TemporaryDirectory() as directory:
            tier = hk.DiskTier(directory, 4 << 20, region_bytes=1 << 20)
            world = DeviceWorld(tier, groups, layered=layered)
            keys = world.keys(32)
            world.write(keys)
            before = driver().fake_copies()
            stored = world.cache.offload(keys, boundaries=[16, 32], durable=True).result(timeout=60)
            assert (stored.status.name, stored.device_error) == ("OK", "")
            assert driver().fake_copies() > before
            world.forget(keys)
            assert world.cache.match(keys, limit=33).lease is None
            loaded = world.restore(33).result(timeout=60)
            assert (loaded.status.name, loaded.tokens) == ("OK", 32)
            assert world.reuse(keys) == 32
            metrics = world.cache.metrics()
            assert 0 < metrics.staged_to_device_bytes <= metrics.staged_to_host_bytes
            assert (groups == GROUPS) == (metrics.staged_to_host_bytes == stored.bytes)
            assert metrics.copy_failures == 0
            world.close()
            tier.close()


def a_tip_comes_back_with_zeros_behind_its_rows() -> None:
    """Where rows are declared a tip stores its own alone; on the device the rest is zeros, whatever was there."""
    driver().fake_by_itself(AT_ONCE)
    row = PAGE // UNIT
    for groups, layered in ((GROUPS, True), (GROUPS, False), (("kv",), True)):
        tier = hk.MemoryTier(1 << 20)
        world = DeviceWorld(tier, groups, layered=layered, of=spec(row_bytes=row))
        keys = world.keys(4 * UNIT + 1)
        world.write(keys)
        assert world.cache.offload(keys).result(timeout=60).tips == (keys.tokens,)
        world.forget(keys)
        assert world.restore(keys.tokens + 1).result(timeout=60).tokens == keys.tokens
        lease = world.cache.match(keys, limit=keys.tokens + 1).lease
        assert lease is not None
        page = int(lease.page_ids("swa")[-1])
        found = world.page("swa", page).reshape(2, PAGE)
        wanted = expected(keys, world.spec.groups[2], 4, keys.tokens).reshape(2, PAGE)
        assert np.array_equal(found[:, :row], wanted[:, :row])
        assert not found[:, row:].any()
        lease.release()
        world.close()
        tier.close()


def nothing_is_published_before_its_copy() -> None:
    """The tier has answered, the copy to the device has not ended: the prefix is on its way and not usable."""
    tier = hk.MemoryTier(1 << 20)
    world = DeviceWorld(tier)
    keys = world.keys(16)
    world.write(keys)
    out = world.cache.offload(keys, boundaries=[16])
    assert not out.done()
    assert out.progress == 0.0
    driver().fake_by_itself(AT_ONCE)
    assert out.result(timeout=60).ok
    driver().fake_by_itself(0)
    world.forget(keys)
    back = world.restore(17)
    for _ in range(50):
        assert not back.done()
    verdict = world.cache.match(keys, limit=17)
    assert (verdict.outcome.name, verdict.remedy.name) == ("FALSE_HIT", "WAIT")
    try:
        world.cache.close()
    except Busy as error:
        assert error.expected == "no transfer on its way"
    else:
        raise AssertionError("closed while a copy was under way")
    driver().fake_run(AT_ONCE)
    assert back.done()
    assert world.reuse(keys) == 16
    world.close()


def after_an_event() -> None:
    """Nothing is read before the event has passed; a prefix of host pools waits as well."""
    for groups in (GROUPS, ()):
        driver().fake_by_itself(AT_ONCE)
        tier = hk.MemoryTier(1 << 20)
        world = DeviceWorld(tier, groups)
        keys = world.keys(16)
        world.write(keys)
        right = {name: [pool.copy() for pool in pools] for name, pools in world.pools.items()}
        for pools in world.pools.values():
            for pool in pools:
                pool[:] = 0  # published, and not written yet
        event, before = Event(), driver().fake_copies()
        out = world.cache.offload(keys, boundaries=[16], after=event)
        for _ in range(20):
            assert not out.done()
            world.cache.poll()
        assert driver().fake_copies() == before
        assert tier.usage().puts == 0
        for name, pools in world.pools.items():
            for pool, content in zip(pools, right[name], strict=True):
                pool[:] = content
        event.passed = True
        assert out.result(timeout=60).ok
        world.forget(keys)
        assert world.restore(17).result(timeout=60).ok
        assert world.reuse(keys) == 16
        passed = Event()
        passed.passed = True
        assert world.cache.offload(keys, after=passed).result(timeout=60).ok
        world.close()


def after_an_event_that_fails() -> None:
    """Whoever gives up the event, or loses it, gets the pages back."""
    tier = hk.MemoryTier(1 << 20)
    world = DeviceWorld(tier)
    keys = world.keys(16)
    world.write(keys)
    event = Event()
    event.broken = True
    try:
        world.cache.offload(keys, after=event)
    except RuntimeError:
        assert world.cache.evict(keys) > 0  # nothing had changed: no page is pinned
    else:
        raise AssertionError("an event that raises was taken")
    world.write(keys)
    event = Event()
    out = world.cache.offload(keys, boundaries=[16], after=event)
    event.broken = True
    result = out.result(timeout=60)
    assert (result.status.name, result.device_error) == ("CANCELLED", "after: RuntimeError: the device is gone")
    event = Event()
    out = world.cache.offload(keys, boundaries=[16], after=event)
    out.cancel()
    assert out.done()
    event = Event()
    world.cache.offload(keys, boundaries=[16], after=event)  # its handle is dropped
    gc.collect()
    try:
        world.cache.offload(keys, after=3)
    except ArgumentError as error:
        assert error.field == "after"
    event.broken = True
    assert tier.usage().puts == 0
    world.close()


def a_lost_device() -> None:
    """The result says what the driver said, the next match names the restore again, and the cache can be closed."""
    tier = hk.MemoryTier(1 << 20)
    world = DeviceWorld(tier)
    keys = world.keys(16)
    world.write(keys)
    driver().fake_by_itself(AT_ONCE)
    assert world.cache.offload(keys, boundaries=[16]).result(timeout=60).ok
    driver().fake_by_itself(0)
    world.forget(keys)
    back = world.restore(17)
    back.done()
    driver().fake_lose()
    result = back.result(timeout=60)
    said = "cuEventQuery: an illegal memory access was encountered"
    assert (result.status.name, result.device_error) == ("UNAVAILABLE", said)
    assert result.why is not None and said in result.why.detail
    assert world.cache.match(keys, limit=17).remedy.name == "RESTORE"
    metrics = world.cache.metrics()
    assert metrics.copy_failures > 0 and metrics.quarantined > 0
    out = world.cache.offload(keys)
    assert out.result(timeout=60).records == 0  # it is all in the tier
    world.close()


def dropped_while_it_copies() -> None:
    """A cache that is dropped waits for its copies, and only then lets the pools go."""
    tier = hk.MemoryTier(1 << 20)
    world = DeviceWorld(tier)
    keys = world.keys(16)
    world.write(keys)
    world.cache.offload(keys, boundaries=[16])
    assert not driver().fake_idle()
    driver().fake_by_itself(1)
    del world
    gc.collect()
    assert driver().fake_idle()
    assert driver().fake_misuses() == 0
    tier.close()


def refused_by_name() -> None:
    """Memory that is neither the host's nor a device's, and a machine without a driver."""
    kinds = {1: "managed memory", 2: "memory of the host", 3: "does not know"}
    worlds = []  # all are kept: the stand-in knows memory by its address
    for kind, got in kinds.items():
        worlds.append(world := DeviceWorld(hk.MemoryTier(1 << 20), ()))
        pool = world.pools["swa"][1]
        if kind != 3:
            driver().fake_call(pool.ctypes.data, pool.nbytes, kind)
        here = np.ascontiguousarray(world.pools["swa"][0])
        driver().fake_call(here.ctypes.data, here.nbytes, 0)
        arrays = [DeviceArray(array.ctypes.data, array.shape) for array in (here, pool)]  # type: ignore[arg-type]
        world.cache.bind("swa", arrays)
        keys = world.keys(16)
        world.write(keys)
        error = refusal(world, keys)
        assert (error.field, got in str(error.got)) == ("pools[swa][1]", True), error
    try:
        hk.HybridCache(world.spec, blocks=8, tier=hk.MemoryTier(1 << 20), staging_bytes=0)
    except ArgumentError as error:
        assert error.field == "staging_bytes"
    else:
        raise AssertionError("no memory at all was taken")


def without_a_driver() -> None:
    """A pool on a device where there is no driver: refused with the reason, and nothing has changed."""
    world = World(hk.MemoryTier(1 << 20))
    pool = np.zeros((64, 192), np.uint8)
    world.cache.bind("kv", DeviceArray(pool.ctypes.data, pool.shape))  # type: ignore[arg-type]
    keys = world.keys(16)
    error = refusal(world, keys)
    expected = ("pools[kv]", "a pool in host memory, or in memory of a CUDA device")
    assert (error.field, error.expected) == expected
    assert str(error.got).startswith("device memory, and CUDA is not available: no NVIDIA driver: ")


def refusal(world: World, keys: hk.BlockKeys) -> ArgumentError:
    """Return what an offload is refused with."""
    try:
        world.cache.offload(keys)
    except ArgumentError as error:
        return error
    raise AssertionError("the pool was taken")


CASES = {
    function.__name__: function
    for function in (
        disk_round_trip,
        a_tip_comes_back_with_zeros_behind_its_rows,
        nothing_is_published_before_its_copy,
        after_an_event,
        after_an_event_that_fails,
        a_lost_device,
        dropped_while_it_copies,
        refused_by_name,
        without_a_driver,
    )
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
