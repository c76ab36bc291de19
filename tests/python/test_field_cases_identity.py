# SPDX-License-Identifier: Apache-2.0
"""Field cases of keys that lack identity, and of alignment, strides and padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import (
    full_swa,
    give_back,
    group,
    held,
    keys_of,
    make_cache,
    other_format,
    tokens,
    usable,
)

# -- identity -----------------------------------------------------------------------------------------


def misses_across(*identities: Any) -> None:
    """Prefixes stored under one identity are found under that one and no other."""
    for stored in identities:
        cache = full_swa()
        cache.insert(keys_of(96, identity=stored))
        for asked in identities:
            n = give_back(cache.match(keys_of(97, identity=asked)))
            assert n == (96 if asked is stored else 0)


def test_FC_076_two_adapters_of_one_name_never_share() -> None:
    misses_across(
        hk.Identity(adapter="x", extra=b"weights 1"),
        hk.Identity(adapter="x", extra=b"weights 2"),
        hk.Identity(),
    )


def test_FC_077_an_adapter_loaded_again_misses_and_old_leases_live() -> None:
    cache = full_swa()
    old, new = hk.Identity(adapter="x@1"), hk.Identity(adapter="x@2")
    cache.insert(keys_of(96, identity=old))
    v = cache.match(keys_of(97, identity=old))
    assert cache.match(keys_of(97, identity=new)).outcome == hk.Outcome.MISS
    assert v.lease.valid
    assert held(v.lease, "full") == list(range(6))
    v.lease.release()


def test_FC_079_any_single_difference_prevents_reuse_and_is_named() -> None:
    misses_across(hk.Identity(model="m", weights="w1"), hk.Identity(model="m", weights="w2"))
    one, two = hk.KvFormat("rows", "bfloat16"), hk.KvFormat("rows", "fp8_e4m3")
    assert one.fingerprint != two.fingerprint
    assert [d.field for d in one.diff(two)] == ["dtype"]
    assert hk.KvFormat("rows", "bfloat16").fingerprint == one.fingerprint


def test_FC_080_stores_of_two_number_formats_never_serve_each_other() -> None:
    cache = full_swa()
    mine, theirs = other_format("mine"), other_format("theirs")
    cache.insert(keys_of(96), formats={"full": mine, "swa": mine})
    assert give_back(cache.match(keys_of(97), formats={"full": mine, "swa": mine})) == 96
    v = cache.match(keys_of(97), formats={"full": theirs, "swa": theirs})
    assert (v.outcome, v.why.check, v.why.code) == (hk.Outcome.FALSE_HIT, hk.Check.ABI, "format")
    v = cache.match(keys_of(97), formats={"full": mine, "swa": theirs})
    assert (v.why.check, v.why.group) == (hk.Check.ABI, "swa")


def test_FC_083_replaced_weights_find_nothing_of_before() -> None:
    cache = full_swa()
    cache.insert(keys_of(96, identity=hk.Identity(weights="epoch 1")))
    assert cache.match(keys_of(97, identity=hk.Identity(weights="epoch 2"))).outcome == hk.Outcome.MISS


def test_FC_085_one_function_makes_every_key() -> None:
    ids = tokens(100)
    whole = hk.block_keys(ids, 16)
    parts = hk.block_keys(ids[64:], 16, parent=hk.block_keys(ids[:64], 16))
    assert whole == parts
    assert whole[:3] == hk.block_keys(ids[:48], 16)
    cache = full_swa()
    cache.insert(parts[:6])
    v = cache.match(whole)
    assert usable(v) == 96
    v.lease.release()
    assert cache.evict(hk.block_keys(ids.tolist(), 16)[:6]) == 12


def test_FC_086_another_image_misses_from_its_first_unit_on() -> None:
    cache = full_swa(window=2)
    one, two = b"1" * 32, b"2" * 32
    cache.insert(keys_of(96, media=[(40, 20, one)]))
    assert give_back(cache.match(keys_of(97, media=[(40, 20, one)]))) == 96
    assert give_back(cache.match(keys_of(97, media=[(40, 20, two)]))) == 32
    assert give_back(cache.match(keys_of(97))) == 32


def test_FC_088_an_incomplete_identity_is_refused() -> None:
    for field in ("model", "weights", "adapter", "salt", "extra"):
        with pytest.raises(hk.SpecError) as refused:
            hk.Identity(**{field: None})
        assert field in refused.value.field


# -- alignment ----------------------------------------------------------------------------------------


def test_FC_106_views_into_one_arena_stay_inside_their_span() -> None:
    arena = np.zeros(100 * 149_760, np.uint8)
    views = [
        np.lib.stride_tricks.as_strided(arena[offset:], (100, 64 * 584), (149_760, 1))
        for offset in (0, 37_440, 74_880, 112_320)
    ]
    full = group("full", hk.Prefix(), 16, page_bytes=64 * 584, layers=(0, 1, 2, 3))
    cache = hk.HybridCache(hk.CacheSpec(16, [full]), blocks=100)
    cache.bind("full", views)
    cache.insert(keys_of(1600))
    v = cache.match(keys_of(1601))
    pages = np.asarray(v.lease.page_ids("full")).astype(np.int64)
    assert sorted(pages.tolist()) == list(range(100))
    addresses = np.asarray(v.lease.addresses("full")).astype(np.int64)
    for layer, offset in enumerate((0, 37_440, 74_880, 112_320)):
        assert (addresses[layer] == arena.ctypes.data + offset + pages * 149_760).all()
    assert int(addresses.max()) + 64 * 584 <= arena.ctypes.data + arena.size
    v.lease.release()


def test_FC_107_rows_that_do_not_lie_together_are_refused() -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16)}, pages={"kv": 8})
    wide = np.zeros((8, 128), np.uint8)
    with pytest.raises(hk.ArgumentError):
        cache.bind("kv", wide[:, ::2])
    cache.bind("kv", wide[:, :64])
    cache.insert(keys_of(32))
    v = cache.match(keys_of(33))
    pages = np.asarray(v.lease.page_ids("kv")).tolist()
    assert np.asarray(v.lease.addresses("kv"))[0].tolist() == [wide.ctypes.data + p * 128 for p in pages]
    v.lease.release()


def test_FC_112_addresses_beyond_four_gib_do_not_wrap() -> None:
    page_bytes, count = 64 << 20, 72
    kv = group("kv", hk.Prefix(), 16, page_bytes=page_bytes)
    cache = hk.HybridCache(hk.CacheSpec(16, [kv]), blocks=128, pages={"kv": count}, verify="off")
    try:
        pool = np.empty((count, page_bytes), np.uint8)
    except MemoryError:
        pytest.skip("no 4.5 GiB of address space here")
    cache.bind("kv", pool)
    cache.insert(keys_of(16 * count))
    v = cache.match(keys_of(16 * count + 1))
    pages = np.asarray(v.lease.page_ids("kv")).tolist()
    addresses = np.asarray(v.lease.addresses("kv"))[0].tolist()
    assert addresses == [pool.ctypes.data + p * page_bytes for p in pages]
    assert max(addresses) - min(addresses) > 2**32
    v.lease.release()


def test_FC_115_padded_pages_are_addressed_by_their_stride() -> None:
    kv = group("kv", hk.Prefix(), 16, page_bytes=37_376, page_stride=38_016, alignment=64)
    cache = hk.HybridCache(hk.CacheSpec(16, [kv]), blocks=16)
    raw = np.zeros(16 * 38_016 + 64, np.uint8)
    base = raw[-raw.ctypes.data % 64 :][: 16 * 38_016]
    cache.bind("kv", base.reshape(16, 38_016)[:, :37_376])
    cache.insert(keys_of(96))
    v = cache.match(keys_of(97))
    assert usable(v) == 96
    pages = np.asarray(v.lease.page_ids("kv")).tolist()
    assert np.asarray(v.lease.addresses("kv"))[0].tolist() == [base.ctypes.data + p * 38_016 for p in pages]
    v.lease.release()
