# SPDX-License-Identifier: Apache-2.0
"""Prefixes of device pools in a disk tier and back: every byte, beside a running stream, a graph, and how fast."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
from device_places import Array, Place, TorchDevice

import hybridkv as hk

UNIT, UNITS = 16, 24
TOKENS = UNIT * UNITS
WAIT_S = 60.0


class Engine:
    """A hybrid model's pools on a device, with an array a layer or one for all, and the cache over them."""

    def __init__(self, place: Place, tier: hk.Tier, *, layered: bool, page_bytes: int = 1536) -> None:
        kind = hk.StateKind
        layers = ("0", "1", "2")
        groups = [
            hk.CacheGroup("kv", kind.COMPRESSED, hk.Prefix(), page_bytes=page_bytes, layers=layers),
            hk.CacheGroup("swa", kind.WINDOW, hk.Window(3 * UNIT), page_bytes=4096, layers=layers),
            hk.CacheGroup("state", kind.TAIL, hk.Checkpoint(), page_bytes=640, layers=layers),
        ]
        self.place = place
        self.spec = hk.CacheSpec(UNIT, groups, identity=hk.Identity(model="device"))
        self.cache = hk.HybridCache(self.spec, blocks=2 * UNITS, tier=tier, verify="off", staging_bytes=4 << 20)
        self.pools: dict[str, list[Any]] = {}
        for group in groups:
            count, size = (len(layers), group.page_bytes) if layered else (1, group.page_bytes * len(layers))
            rows = self.cache.pages[group.name]
            self.pools[group.name] = [place.put(np.full((rows, size), 0xEE, np.uint8)) for _ in range(count)]
            self.cache.bind(group.name, self.pools[group.name] if layered else self.pools[group.name][0])
        self.keys = hk.block_keys(range(TOKENS), UNIT, identity=self.spec.identity)
        self.longer = hk.block_keys(range(TOKENS + 1), UNIT, identity=self.spec.identity)
        self.content: dict[str, Array] = {}

    def write(self, seed: int, after: Any = None) -> None:
        """Publish the whole prefix with random bytes."""
        rng = np.random.default_rng(seed)
        fill = self.cache.reserve(self.keys)
        for name, arrays in self.pools.items():
            ids = np.asarray(fill.page_ids(name))
            size = sum(array.shape[1] for array in map(self.place.get, arrays))
            self.content[name] = rng.integers(0, 256, (len(ids), size), dtype=np.uint8)
            self._store(name, ids)
        fill.publish(after=after)

    def _store(self, name: str, ids: Array) -> None:
        at = 0
        for array in self.pools[name]:
            width = self.place.get(array).shape[1]
            self.place.write(array, ids[ids >= 0], self.content[name][ids >= 0, at : at + width])
            at += width

    def forget(self) -> None:
        """Evict everything, and paint over it."""
        self.cache.evict(self.keys)
        for name, arrays in self.pools.items():
            for array in arrays:
                rows = np.arange(self.cache.pages[name])
                self.place.write(array, rows, np.full((len(rows), self.place.get(array).shape[1]), 0xEE, np.uint8))

    def check(self) -> int:
        """Match all of it and compare every byte that the lease holds; returns how many pages."""
        verdict = self.cache.match(self.longer)
        assert verdict.usable_tokens == TOKENS, verdict
        pages = 0
        with verdict.lease as lease:
            for name, arrays in self.pools.items():
                held = [self.place.get(array) for array in arrays]
                for block, page in enumerate(lease.page_ids(name)):
                    if page >= 0:
                        found = np.concatenate([array[page] for array in held])
                        assert np.array_equal(found, self.content[name][block]), (name, block)
                        pages += 1
        return pages

    def offload(self, **options: Any) -> hk.TransferResult:
        return self.cache.offload(self.keys, boundaries=[TOKENS], **options).result(timeout=WAIT_S)

    def restore(self) -> hk.TransferResult:
        plan = self.cache.restorable(self.longer)
        assert plan is not None
        return self.cache.restore(plan).result(timeout=WAIT_S)


def round_trip(place: Place) -> str:
    """Compare every byte of a prefix that went to a disk tier and came back."""
    pages = 0
    for seed, layered in enumerate((True, False)):
        with tempfile.TemporaryDirectory() as directory:
            tier = hk.DiskTier(directory, 32 << 20, region_bytes=4 << 20)
            engine = Engine(place, tier, layered=layered)
            engine.write(seed)
            stored = engine.offload(durable=True)
            assert stored.ok, stored
            engine.forget()
            assert engine.cache.match(engine.longer).lease is None
            loaded = engine.restore()
            assert loaded.ok and loaded.tokens == TOKENS, loaded
            pages += engine.check()
            metrics = engine.cache.metrics()
            assert metrics.staged_to_host_bytes == stored.bytes, metrics
            assert metrics.staged_to_device_bytes == loaded.bytes, metrics
            engine.cache.close()
            tier.close()
    return f"{pages} pages, disk"


def refused(place: Place) -> str:
    """Memory of the host under a device's name is refused with the pool's name."""
    engine = Engine(place, hk.MemoryTier(32 << 20), layered=True)

    class Wrong:
        def __init__(self, array: Array) -> None:
            self.array = array
            told = array.__array_interface__
            self.__cuda_array_interface__ = {**{k: told[k] for k in ("shape", "typestr", "data")}, "version": 3}

    engine.cache.bind("swa", [Wrong(np.zeros((2 * UNITS, 4096), np.uint8)) for _ in range(3)])
    try:
        engine.cache.offload(engine.keys)
    except hk.ArgumentError as error:
        assert error.field == "pools[swa][0]", error
        return str(error.got)
    raise AssertionError("memory of the host was taken for a device's")


def beside_a_stream() -> str:
    """Pages that a long stream still writes are stored as it leaves them; another stream reads what was restored."""
    import torch

    place = TorchDevice()
    engine = Engine(place, hk.MemoryTier(64 << 20), layered=False)
    work = torch.randn(4096, 4096, device="cuda")
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    fill = engine.cache.reserve(engine.keys)
    rng = np.random.default_rng(3)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(60):
            work = work @ work
        for name, (pool,) in engine.pools.items():
            ids = np.asarray(fill.page_ids(name))
            engine.content[name] = rng.integers(0, 256, (len(ids), pool.shape[1]), dtype=np.uint8)
            there = torch.from_numpy(engine.content[name]).pin_memory().to("cuda", non_blocking=True)
            pool[torch.from_numpy(ids).pin_memory().to("cuda", non_blocking=True).long()] = there
        event.record(stream)
    early = not event.query()
    fill.publish()  # before the stream has come to it
    transfer = engine.cache.offload(engine.keys, boundaries=[TOKENS], after=event)
    assert transfer.result(timeout=WAIT_S).ok
    engine.forget()
    torch.cuda.synchronize()
    assert engine.restore().ok
    other = torch.cuda.Stream()
    with engine.cache.match(engine.longer).lease as lease, torch.cuda.stream(other):  # ordered with nothing
        for name, (pool,) in engine.pools.items():
            ids = np.asarray(lease.page_ids(name))
            blocks = np.flatnonzero(ids >= 0)
            found = pool[torch.from_numpy(ids[blocks]).cuda().long()].cpu().numpy()
            assert np.array_equal(found, engine.content[name][blocks]), name
    engine.cache.close()
    return "offloaded while the stream ran" if early else "the stream had ended before the offload"


def beside_a_capture() -> str:
    """A graph captured in the strictest mode stays whole while transfers of another prefix move on."""
    import torch

    engine = Engine(TorchDevice(), hk.MemoryTier(64 << 20), layered=True)
    engine.write(4)
    x = torch.ones(1 << 16, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    transfer = None
    with torch.cuda.graph(graph, capture_error_mode="global"):
        y = x + 1
        transfer = engine.cache.offload(engine.keys, boundaries=[TOKENS])
        for _ in range(200):
            transfer.done()
            time.sleep(0.0005)
        y = y * 2
    assert transfer.result(timeout=WAIT_S).ok
    graph.replay()
    torch.cuda.synchronize()
    assert bool((y == 4).all())
    engine.forget()
    assert engine.restore().ok
    engine.check()
    engine.cache.close()
    return "captured, replayed, every byte"


def speed() -> str:
    """Bytes a second of copies alone, through a tier in memory, by 24 records of 3 MiB and more."""
    engine = Engine(TorchDevice(), hk.MemoryTier(1 << 30), layered=False, page_bytes=1 << 20)
    engine.write(5)
    began = time.perf_counter()
    stored = engine.offload()
    out = time.perf_counter() - began
    assert stored.ok
    engine.cache.evict(engine.keys)
    began = time.perf_counter()
    loaded = engine.restore()
    back = time.perf_counter() - began
    assert loaded.ok
    engine.check()
    engine.cache.close()
    return f"{stored.bytes / out / 1e9:.2f} GB/s out, {loaded.bytes / back / 1e9:.2f} GB/s back, memory tier included"
