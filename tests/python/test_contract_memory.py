# SPDX-License-Identifier: Apache-2.0
"""Bound pools: addresses, alignment facts, verified contents; formats of the bytes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import (
    check_conserved,
    check_counters,
    check_verdict,
    full_swa,
    give_back,
    group,
    keys_of,
    other_format,
    usable,
)

# -- memory -----------------------------------------------------------------------------------------


def aligned_bytes(count: int, alignment: int, offset: int = 0) -> np.ndarray:
    """uint8 [[count]] whose address is `offset` beyond a multiple of `alignment`."""
    raw = np.zeros(count + 2 * alignment, np.uint8)
    start = -raw.ctypes.data % alignment + offset
    return raw[start : start + count]


def memory_cache(*, alignment: int = 64, page_bytes: int = 128, layers: tuple[int, ...] = (), **more: Any) -> Any:
    full = group("full", hk.Prefix(), 16, page_bytes=page_bytes, alignment=alignment, layers=layers, **more)
    swa = group("swa", hk.Window(17), 16, page_bytes=page_bytes)
    return hk.HybridCache(hk.CacheSpec(16, [full, swa]), blocks=16)


def test_addresses_are_base_plus_page_times_stride() -> None:
    cache = memory_cache(layers=(0, 1))
    pool = [aligned_bytes(16 * 192, 64).reshape(16, 192)[:, :128] for _ in range(2)]
    cache.bind("full", pool)
    cache.insert(keys_of(64))
    v = cache.match(keys_of(65))
    addresses = np.asarray(v.lease.addresses("full"))
    assert addresses.dtype == np.uint64
    assert addresses.shape == (2, 4)
    pages = np.asarray(v.lease.page_ids("full"))
    for layer in range(2):
        assert addresses[layer].tolist() == [pool[layer].ctypes.data + int(p) * 192 for p in pages]
    v.lease.release()
    with pytest.raises(hk.LeaseExpired):
        v.lease.addresses("full")


def test_one_array_means_one_row_of_addresses() -> None:
    cache = memory_cache(layers=(0, 1, 2))
    pool = aligned_bytes(16 * 384, 64).reshape(16, 384)
    cache.bind("full", pool)
    cache.insert(keys_of(64))
    v = cache.match(keys_of(65))
    pages = np.asarray(v.lease.page_ids("full"))
    addresses = np.asarray(v.lease.addresses("full"))
    assert addresses.tolist() == [[pool.ctypes.data + int(p) * 384 for p in pages]]
    v.lease.release()


class Dlpack:
    """An array seen through DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **more: Any) -> Any:
        return self._array.__dlpack__(**more)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class Interface:
    """An array seen through the array interface alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


@pytest.mark.parametrize("wrap", [Dlpack, Interface])
def test_bind_takes_other_arrays(wrap: type) -> None:
    cache = memory_cache()
    pool = aligned_bytes(16 * 128, 64).reshape(16, 128)
    cache.bind("full", wrap(pool))
    cache.insert(keys_of(64))
    v = cache.match(keys_of(65))
    pages = np.asarray(v.lease.page_ids("full"))
    assert np.asarray(v.lease.addresses("full"))[0].tolist() == [pool.ctypes.data + int(p) * 128 for p in pages]
    v.lease.release()


def test_rows_of_other_types_hold_pages_too() -> None:
    cache = memory_cache()
    pool = aligned_bytes(16 * 128, 64).view(np.float32).reshape(16, 32)
    cache.bind("full", pool)
    cache.insert(keys_of(64))
    assert give_back(cache.match(keys_of(65))) == 64


def misaligned(verdict: Any, code: str) -> None:
    check_verdict(verdict)
    assert (verdict.outcome, verdict.usable_tokens) == (hk.Outcome.FALSE_HIT, 0)
    assert (verdict.why.check, verdict.why.group, verdict.why.code) == (hk.Check.ALIGNED, "full", code)
    assert verdict.why.kind == hk.StateKind.COMPRESSED
    assert dict(verdict.lost) == {hk.Check.ALIGNED: 64}


def test_a_misaligned_base_is_reported_by_match() -> None:
    cache = memory_cache()
    cache.bind("full", aligned_bytes(16 * 128, 64, offset=8).reshape(16, 128))
    cache.insert(keys_of(64))
    misaligned(cache.match(keys_of(65)), "base")


def test_a_misaligned_base_of_one_layer_is_enough() -> None:
    cache = memory_cache(layers=(0, 1))
    good = aligned_bytes(16 * 128, 64).reshape(16, 128)
    bad = aligned_bytes(16 * 128, 64, offset=32).reshape(16, 128)
    cache.bind("full", [good, bad])
    cache.insert(keys_of(64))
    misaligned(cache.match(keys_of(65)), "base")


def test_a_page_stride_off_the_alignment_is_reported_by_match() -> None:
    cache = memory_cache()
    cache.bind("full", aligned_bytes(16 * 136, 64).reshape(16, 136)[:, :128])
    cache.insert(keys_of(64))
    misaligned(cache.match(keys_of(65)), "page_stride")


def test_a_declared_page_stride_is_compared() -> None:
    cache = memory_cache(page_stride=192)
    cache.bind("full", aligned_bytes(16 * 192, 64).reshape(16, 192)[:, :128])
    cache.insert(keys_of(64))
    assert give_back(cache.match(keys_of(65))) == 64
    cache = memory_cache(page_stride=192)
    cache.bind("full", aligned_bytes(16 * 128, 64).reshape(16, 128))
    cache.insert(keys_of(64))
    misaligned(cache.match(keys_of(65)), "page_stride")


def test_a_misaligned_group_that_is_not_needed_costs_nothing() -> None:
    full = group("full", hk.Prefix(), 16)
    state = group("state", hk.Checkpoint(32), 16, alignment=64)
    cache = hk.HybridCache(hk.CacheSpec(16, [full, state]), blocks=16)
    cache.bind("state", aligned_bytes(16 * 64, 64, offset=8).reshape(16, 64))
    cache.insert(keys_of(48))
    v = cache.match(keys_of(49))
    assert usable(v) == 32
    assert (v.why.check, v.why.group, v.why.code) == (hk.Check.ALIGNED, "state", "base")
    assert dict(v.lost) == {hk.Check.ALIGNED: 16}
    give_back(v)


# -- contents ---------------------------------------------------------------------------------------


def written(verify: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """A cache with known bytes published for 64 tokens, its pool, and the pages of "full"."""
    full, swa = (
        group("full", hk.Prefix(), 16, page_bytes=128),
        group("swa", hk.Window(17), 16, page_bytes=128),
    )
    cache = hk.HybridCache(hk.CacheSpec(16, [full, swa]), blocks=16, verify=verify)
    pool = np.zeros((16, 128), np.uint8)
    cache.bind("full", pool)
    cache.bind("swa", np.ones((16, 128), np.uint8))
    fill = cache.reserve(keys_of(64))
    pages = np.asarray(fill.page_ids("full")).copy()
    pool[pages] = np.random.default_rng(1).integers(0, 256, (4, 128), dtype=np.uint8)
    fill.publish()
    return cache, pool, pages


def test_addresses_can_be_read_while_the_lease_holds() -> None:
    cache, pool, pages = written("off")
    v = cache.match(keys_of(65))
    addresses = np.asarray(v.lease.addresses("full"))
    for block, address in enumerate(addresses[0]):
        content = ctypes.string_at(int(address), 128)
        assert content == pool[pages[block]].tobytes()
    v.lease.release()


def test_intact_contents_pass_every_verification() -> None:
    for verify in ("off", "sampled", "all"):
        cache, _, _ = written(verify)
        for _ in range(20):
            assert give_back(cache.match(keys_of(65))) == 64


@pytest.mark.parametrize("per_call", [False, True])
def test_a_flipped_byte_is_found_and_its_page_quarantined(per_call: bool) -> None:
    cache, pool, pages = written("off" if per_call else "all")
    more = {"verify": "all"} if per_call else {}
    pool[pages[2], 77] ^= 1
    v = cache.match(keys_of(65), **more)
    check_verdict(v)
    assert v.outcome == hk.Outcome.FALSE_HIT
    assert (v.why.check, v.why.group, v.why.block, v.why.code) == (hk.Check.INTEGRITY, "full", 2, "content")
    assert v.remedy == hk.Remedy.RECOMPUTE
    check_counters(cache)
    check_conserved(cache, {"full": 16, "swa": 16})
    w = cache.match(keys_of(65), **more)
    assert usable(w) == 32
    assert (w.why is None) or w.why.check == hk.Check.COMPLETE
    give_back(w)
    assert cache.metrics().quarantined == 1
    cache.insert(keys_of(64), groups={"full": [2]})
    again = cache.match(keys_of(65), **more)
    assert usable(again) == 64
    again.lease.release()


def test_off_looks_at_no_content() -> None:
    cache, pool, pages = written("off")
    pool[pages[2], 77] ^= 1
    assert give_back(cache.match(keys_of(65))) == 64
    cache, pool, pages = written("all")
    pool[pages[2], 77] ^= 1
    assert give_back(cache.match(keys_of(65), verify="off")) == 64


def test_sampling_finds_a_flipped_byte_in_time() -> None:
    cache, pool, pages = written("sampled")
    pool[pages[2], 77] ^= 1
    for _ in range(5000):
        v = cache.match(keys_of(65))
        if v.lease is None:
            assert (v.why.check, v.why.code) == (hk.Check.INTEGRITY, "content")
            return
        v.lease.cancel()
    raise AssertionError("never looked")


def test_rows_beyond_a_tip_are_nobodys() -> None:
    full = group("full", hk.Prefix(), 16, page_bytes=16 * 8, row_bytes=8, rows_per_page=16)
    cache = hk.HybridCache(hk.CacheSpec(16, [full]), blocks=16, verify="all")
    pool = np.zeros((16, 128), np.uint8)
    cache.bind("full", pool)
    fill = cache.reserve(keys_of(21))
    page = int(np.asarray(fill.page_ids("full"))[1])
    fill.publish()
    pool[page, 5 * 8 :] = 255
    assert give_back(cache.match(keys_of(30))) == 21
    pool[page, 5 * 8 - 1] ^= 1
    assert cache.match(keys_of(30)).why.check == hk.Check.INTEGRITY


# -- formats ----------------------------------------------------------------------------------------


def test_bytes_of_another_format_are_a_false_hit() -> None:
    cache = full_swa()
    cache.insert(keys_of(48))
    cache.insert(keys_of(96), groups={"full": True}, formats={"full": other_format()})
    cache.insert(keys_of(96), groups={"swa": True})
    v = cache.match(keys_of(97))
    assert usable(v) == 48
    assert v.matched_tokens == 96
    assert (v.why.check, v.why.group, v.why.block, v.why.code) == (hk.Check.ABI, "full", 3, "format")
    assert dict(v.lost) == {hk.Check.ABI: 48}
    assert v.remedy in (hk.Remedy.CONVERT, hk.Remedy.RECOMPUTE)
    v.lease.release()


def test_a_reader_of_another_format_is_refused_and_the_right_one_served() -> None:
    cache = full_swa()
    fmt = {"full": other_format()}
    cache.insert(keys_of(96), groups={"full": True}, formats=fmt)
    cache.insert(keys_of(96), groups={"swa": True})
    assert cache.match(keys_of(97)).outcome == hk.Outcome.FALSE_HIT
    assert give_back(cache.match(keys_of(97), formats=fmt)) == 96
    assert cache.match(keys_of(97), formats={"full": other_format("third")}).why.check == hk.Check.ABI
    assert cache.match(keys_of(97), formats={**fmt, "swa": other_format()}).why.group == "swa"


def test_a_window_page_of_another_format_lets_shorter_lengths_stand() -> None:
    cache = full_swa(window=2)
    cache.insert(keys_of(96), groups={"full": True, "swa": [0, 1]})
    cache.insert(keys_of(96), groups={"swa": [5]}, formats={"swa": other_format()})
    v = cache.match(keys_of(97))
    assert usable(v) == 32
    assert v.lost[hk.Check.ABI] == 16
    assert v.lost[hk.Check.GROUPS] == 48
    assert (v.why.check, v.why.block) == (hk.Check.GROUPS, 4)
    v.lease.release()
