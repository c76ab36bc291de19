# SPDX-License-Identifier: Apache-2.0
"""Pools that may not be written: matched and read like any other, and never loaded into."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import keys_of
from hybridkv.alignment import NOT_LOADED
from hybridkv.dlpack import device_tensor
from hybridkv.doctor.cache_facts import cache_facts
from hybridkv.pools import array_facts
from ticket_support import assert_named

UNIT, PAGES, BYTES = 16, 8, 4096


def spec_of(*, rebuildable: bool = False) -> Any:
    kinds = hk.StateKind
    return hk.CacheSpec(
        UNIT,
        [
            hk.CacheGroup("full", kinds.COMPRESSED, hk.Prefix(), page_bytes=BYTES, layers=(1,)),
            hk.CacheGroup("state", kinds.TAIL, hk.Checkpoint(), page_bytes=BYTES, layers=(2,)),
            hk.CacheGroup(
                "window", kinds.WINDOW, hk.Window(UNIT), page_bytes=BYTES, layers=(0,), rebuildable=rebuildable,
                replay_tokens=UNIT if rebuildable else None,
            ),
        ],
    )  # fmt: skip


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[Any]:
    """Memory of a file that is mapped to be read: a store into it ends the process."""
    (tmp_path / "pool").write_bytes(bytes(PAGES * BYTES))
    with (tmp_path / "pool").open("rb") as file:
        yield np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8).reshape(PAGES, BYTES)


def stored(tier: Any, spec: Any, keys: Any) -> None:
    """Put a prefix into a tier, by a cache that has gone."""
    cache = hk.HybridCache(spec, blocks=PAGES, tier=tier)
    for group in spec.groups:
        cache.bind(group.name, np.ones((PAGES, BYTES), np.uint8))
    cache.insert(keys)
    assert cache.offload(keys).result(10).status.name == "OK"
    cache.close()


def above(tier: Any, spec: Any, read_only: str, pool: Any) -> Any:
    """A cache over the tier, one of whose pools may not be written."""
    cache = hk.HybridCache(spec, blocks=PAGES, tier=tier)
    for group in spec.groups:
        cache.bind(group.name, pool if group.name == read_only else np.zeros((PAGES, BYTES), np.uint8))
    return cache


@pytest.mark.parametrize("name", ["full", "state", "window"])
def test_nothing_is_loaded_into_a_pool_that_is_read_only(name: str, mapped: Any) -> None:
    spec, keys = spec_of(), keys_of(4 * UNIT, UNIT)
    with hk.MemoryTier(1 << 20) as tier:
        stored(tier, spec, keys)
        cache = above(tier, spec, name, mapped)
        (wrong,) = cache.alignment(name)
        assert (wrong.field, wrong.effect, wrong.code) == ("access", NOT_LOADED, None)
        verdict = cache.match(keys, limit=4 * UNIT + 1)
        assert (verdict.outcome.name, verdict.remedy.name) == ("FALSE_HIT", "RECOMPUTE")
        if verdict.why.group == name:
            assert "a restore needs memory that may be written" in verdict.why.detail
        assert verdict.plan.restore_tokens == 0 and not verdict.plan.loads
        assert cache.restorable(keys) is None and cache.prefetch(keys) is None
        assert cache.match_at(keys, 2 * UNIT).plan.restore_tokens == 0
        cache.bind(name, np.zeros((PAGES, BYTES), np.uint8))
        assert cache.match(keys, limit=4 * UNIT + 1).remedy.name == "RESTORE"
        cache.close()


def test_what_a_read_only_pool_has_is_matched_verified_and_stored(mapped: Any) -> None:
    """The writer has a mapping of its own; this cache reads."""
    spec, keys = spec_of(), keys_of(4 * UNIT, UNIT)
    with hk.MemoryTier(1 << 20) as tier:
        cache = above(tier, spec, "full", mapped)
        cache.insert(keys)
        verdict = cache.match(keys, limit=4 * UNIT + 1, verify="all")
        assert verdict.usable_tokens == 4 * UNIT
        ids, out = verdict.lease.page_ids("full"), np.ones((4, BYTES), np.uint8)
        hk.ops.gather(mapped, ids, out)
        assert not out.any()
        verdict.lease.release()
        assert cache.offload(keys).result(10).status.name == "OK"
        cache.evict(keys, groups={"state": True, "window": True})
        verdict = cache.match(keys, limit=4 * UNIT + 1)  # history is here: what is missing may be loaded
        assert verdict.remedy.name == "RESTORE"
        plan = verdict.plan
        assert {group for group, _ in plan.loads} == {"state", "window"}
        assert cache.restore(plan).result(10).status.name == "OK"
        with cache.match(keys, limit=4 * UNIT + 1).lease as lease:
            assert lease.tokens == 4 * UNIT
        cache.evict(keys)
        cache.close()


def test_a_plan_that_came_to_need_a_read_only_pool_is_refused_by_the_core(mapped: Any) -> None:
    """Between the plan and the restore history went that was here: nothing is left behind."""
    spec, keys = spec_of(), keys_of(4 * UNIT, UNIT)
    with hk.MemoryTier(1 << 20) as tier:
        cache = above(tier, spec, "full", mapped)
        cache.insert(keys)
        cache.offload(keys).result(10)
        cache.evict(keys, groups={"state": True, "window": True})
        plan = cache.match(keys, limit=4 * UNIT + 1).plan
        cache.evict(keys)
        with pytest.raises(hk.ArgumentError) as caught:
            cache.restore(plan)
        assert_named(caught.value)
        assert (caught.value.field, caught.value.got) == ("plan", "a read-only one")
        assert {pages.free for pages in cache.metrics().pages.values()} == {PAGES}
        cache.close()


def test_a_plan_from_before_the_pool_was_bound_anew_is_refused(mapped: Any) -> None:
    spec, keys = spec_of(), keys_of(4 * UNIT, UNIT)
    with hk.MemoryTier(1 << 20) as tier:
        stored(tier, spec, keys)
        cache = above(tier, spec, "", mapped)
        plan = cache.match(keys, limit=4 * UNIT + 1).plan
        assert plan.restore_tokens
        cache.bind("full", mapped)
        with pytest.raises(hk.ArgumentError, match="may be written") as caught:
            cache.restore(plan)
        assert caught.value.field == "plan"
        cache.close()


def test_a_group_that_can_be_computed_again_hinders_no_restore(mapped: Any) -> None:
    """Its record is in the tier, and is not loaded: its tokens are replayed."""
    spec, keys = spec_of(rebuildable=True), keys_of(4 * UNIT, UNIT)
    with hk.MemoryTier(1 << 20) as tier:
        stored(tier, spec, keys)
        cache = above(tier, spec, "window", mapped)
        verdict = cache.match(keys, limit=4 * UNIT + 1)
        assert verdict.remedy.name == "RESTORE"
        assert "window" not in {group for group, _ in verdict.plan.loads}
        assert cache.restore(verdict.plan).result(10).status.name == "OK"
        verdict = cache.match(keys, limit=4 * UNIT + 1)
        assert verdict.usable_tokens == 4 * UNIT and "window" in verdict.plan.replay
        verdict.lease.release()
        cache.close()


def test_a_disk_tier_reads_into_no_read_only_arena(mapped: Any, tmp_path: Path) -> None:
    spec, keys = spec_of(), keys_of(4 * UNIT, UNIT)
    with hk.DiskTier(tmp_path / "tier", 8 << 20, region_bytes=1 << 20) as tier:
        stored(tier, spec, keys)
        cache = above(tier, spec, "full", mapped)
        assert cache.match(keys, limit=4 * UNIT + 1).remedy.name == "RECOMPUTE"
        assert tier.usage().arenas == 2  # those of the others
        cache.close()


# -- how arrays say it -------------------------------------------------------------------------------


class _Tensor(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Exported:
    """Memory of a CUDA device, as DLPack 1.0 exports it; nobody touches it."""

    def __init__(self, *, flags: int = 0, major: int = 1, named: bytes = b"dltensor_versioned") -> None:
        self.shape = (ctypes.c_int64 * 2)(PAGES, BYTES)
        self.held = _Tensor(
            major=major, flags=flags, data=1 << 40, device_type=2, rank=2, code=1, bits=8, lanes=1,
            shape=ctypes.addressof(self.shape),
        )  # fmt: skip
        self.named = named

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> Any:
        assert max_version == (1, 0)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self.held), self.named, None)


class Old:
    """Memory of the host by a producer from before DLPack 1.0, which has no word for it."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


class New(Old):
    """By one that has."""

    def __dlpack__(self, **how: Any) -> Any:  # type: ignore[override]
        return self.array.__dlpack__(**how)


class Interface:
    """Memory that a library tells of in a dict."""

    def __init__(self, name: str, *, read_only: bool) -> None:
        told = np.zeros((PAGES, BYTES), np.uint8).__array_interface__
        setattr(self, name, {**told, "data": (told["data"][0], read_only), "version": 3})


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


HOST, DEVICE = "__array_interface__", "__cuda_array_interface__"


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("how", ["numpy", "interface", "device interface", "dlpack", "device dlpack", "buffer"])
def test_arrays_say_that_they_are_read_only(how: str, read_only: bool) -> None:
    pool = np.zeros((PAGES, BYTES), np.uint8)
    array: Any = {
        "numpy": lambda: frozen(pool) if read_only else pool,
        "interface": lambda: Interface(HOST, read_only=read_only),
        "device interface": lambda: Interface(DEVICE, read_only=read_only),
        "dlpack": lambda: New(frozen(pool) if read_only else pool),
        "device dlpack": lambda: Exported(flags=1 if read_only else 0),
        "buffer": lambda: np.frombuffer(bytes(16) if read_only else bytearray(16), np.uint8).reshape(4, 4),
    }[how]()
    assert array_facts("pool", array).writable is not read_only


def test_producers_of_before_have_no_word_for_it() -> None:
    assert array_facts("pool", Old(np.zeros((PAGES, BYTES), np.uint8))).writable


def test_what_is_no_capsule_of_ours_is_refused() -> None:
    for exported in (Exported(major=2), Exported(named=b"another")):
        with pytest.raises(ValueError, match=r"DLPack 2\.0|incorrect name"):
            device_tensor(exported)


def test_one_read_only_array_of_many_is_enough() -> None:
    spec = hk.CacheSpec.homogeneous(layers=2, page_bytes=BYTES, unit_tokens=UNIT)
    cache = hk.HybridCache(spec, blocks=PAGES)
    pools = [np.zeros((PAGES, BYTES), np.uint8) for _ in range(2)]
    cache.bind("kv", pools)
    assert cache.alignment("kv") == ()
    frozen(pools[1])
    cache.bind("kv", pools)
    (wrong,) = cache.alignment("kv")
    assert wrong.field == "access"
    assert cache_facts(cache)["groups"][0]["violations"][0]["effect"] == NOT_LOADED


# -- everything else that is written -----------------------------------------------------------------


def test_what_a_call_writes_may_not_be_read_only() -> None:
    spec = hk.CacheSpec.homogeneous(layers=1, page_bytes=64, unit_tokens=UNIT)
    cache = hk.HybridCache(spec, blocks=PAGES)
    ticket = cache.admit("a", 32)
    one = np.array([ticket.handle]), np.array([1], np.int32), np.array([-1], np.int64)
    pool, ids, page = np.zeros((4, 64), np.uint8), np.zeros(1, np.int32), np.zeros((1, 64), np.uint8)
    status, counts = frozen(np.zeros(1, np.int32)), np.zeros(4, np.uint64)
    calls = {
        "step": lambda: cache.step(*one, frozen(np.zeros((1, 1, 1), np.int32))),
        "gather": lambda: hk.ops.gather(pool, ids, frozen(page.copy())),
        "gather, statuses": lambda: hk.ops.gather(
            pool, ids, page, status=status, handouts=(counts, np.zeros(1, np.uint64))
        ),
        "scatter": lambda: hk.ops.scatter(page, frozen(pool.copy()), ids),
        "fingerprint": lambda: hk.ops.fingerprint(pool, ids, frozen(np.zeros(1, np.uint64))),
    }
    for name, call in calls.items():
        with pytest.raises(hk.HybridKVError):
            call()
        assert ticket.grown_tokens == 0, name
    ticket.close()
