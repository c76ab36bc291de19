# SPDX-License-Identifier: Apache-2.0
"""Field cases of partial blocks taken for complete ones, and of intersections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import (
    blamed,
    check_verdict,
    forked,
    full_swa,
    give_back,
    group,
    held,
    keys_of,
    make_cache,
    parting,
    pools,
    put,
    usable,
)

# -- partial taken for complete -----------------------------------------------------------------------


def test_FC_047_sharing_a_part_of_a_block_is_no_hit() -> None:
    cache = make_cache(64, {"kv": (hk.Prefix(), 1152)})
    a, b = parting(700, 1152, 1400, 64)
    cache.insert(a)
    assert give_back(cache.match(a, limit=1153)) == 1152
    v = cache.match(b)
    check_verdict(v)
    assert v.outcome == hk.Outcome.MISS


def test_FC_049_small_blocks_do_not_hide_the_miss_of_large_ones() -> None:
    csa = group("csa", hk.Prefix(), 512, tokens_per_row=4)
    cache = hk.HybridCache(hk.CacheSpec(128, [group("full", hk.Prefix(), 128), csa]), blocks=64)
    a, b = parting(128, 512, 600, 128)
    cache.insert(a)
    v = cache.match(b)
    assert (v.outcome, v.matched_tokens, v.usable_tokens) == (hk.Outcome.FALSE_HIT, 128, 0)
    assert blamed(v) == (hk.Check.GROUPS, "csa", 0)
    assert v.why.code == "partial"


def test_FC_050_a_store_that_failed_leaves_nothing_behind() -> None:
    cache = full_swa()
    before = pools(cache)
    fill = cache.reserve(keys_of(96))
    fill.abort()
    assert pools(cache) == before
    v = cache.match(keys_of(97))
    assert (v.outcome, v.matched_tokens) == (hk.Outcome.MISS, 0)
    cache.insert(keys_of(96))
    assert give_back(cache.match(keys_of(97))) == 96


def test_FC_052_every_full_block_is_published_once() -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16)})
    prompt = keys_of(360)
    fill = cache.reserve(prompt[:22])
    for i in range(22):
        fill.publish({"kv": [i]})
        assert give_back(cache.match(prompt)) == 16 * (i + 1)
    fill.publish()
    m = cache.metrics()
    assert m.duplicates == 0
    assert pools(cache)["kv"] == (256 - 22, 0, 0, 22)
    assert give_back(cache.match(prompt)) == 352


def test_FC_053_each_group_copies_from_its_own_page() -> None:
    cache, shared, fill = forked()
    for name in ("kv", "tail"):
        for source, target, _ in np.asarray(fill.copies(name)).tolist():
            assert source == shared[name]
            assert target in np.asarray(fill.page_ids(name)).tolist()
    assert len(np.asarray(fill.copies("kv"))) == 1
    fill.abort()
    del cache


def test_FC_056_what_to_compute_is_counted_from_the_lease() -> None:
    cache = make_cache(4, {"kv": (hk.Prefix(), 4)})
    cache.insert(keys_of(8, 4))
    keys = keys_of(9, 4)
    v = cache.match(keys)
    assert keys.tokens - v.lease.tokens == 1
    cache.evict(keys_of(8, 4))
    assert v.lease.tokens == 8
    assert held(v.lease, "kv") == [0, 1]
    v.lease.release()


# -- intersections ------------------------------------------------------------------------------------


def three_sizes() -> dict[str, tuple[Any, int]]:
    return {"full": (hk.Prefix(), 256), "swa": (hk.Window(128), 64), "state": (hk.Checkpoint(), 128)}


def test_FC_058_a_drop_is_applied_once_and_checked_again() -> None:
    cache = make_cache(64, three_sizes())
    cache.insert(keys_of(2048, 64))
    keys = keys_of(2049, 64)
    assert give_back(cache.match(keys)) == 2048
    assert give_back(cache.match(keys, drop_tokens=256)) == 1792
    assert give_back(cache.match(keys, drop_tokens=64)) == 1792
    cache.evict(keys, groups={"state": [13]})
    assert give_back(cache.match(keys, drop_tokens=256)) == 1536


def test_FC_059_after_a_drop_all_lists_cover_one_length() -> None:
    cache = make_cache(64, three_sizes())
    cache.insert(keys_of(2048, 64))
    v = cache.match(keys_of(2049, 64), drop_tokens=64)
    for name, (_, block) in three_sizes().items():
        assert len(np.asarray(v.lease.page_ids(name))) * block == v.lease.tokens == 1792
    assert held(v.lease, "swa") == [26, 27]
    assert held(v.lease, "state") == [13]
    v.lease.release()


def test_FC_061_every_list_is_cut_to_the_agreed_length() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16), "other": (hk.Prefix(), 16), "swa": (hk.Window(17), 16)})
    put(cache, keys_of(160), {"full": range(10), "other": range(6), "swa": range(10)})
    v = cache.match(keys_of(161))
    assert usable(v) == 96
    assert v.matched_tokens == 160
    for name in ("full", "other", "swa"):
        assert np.asarray(v.lease.page_ids(name)).shape == (6,)
    assert held(v.lease, "swa") == [5]
    assert cache.evict(keys_of(160), groups={"full": True}) == 4
    v.lease.release()


def test_FC_062_the_step_is_told_with_its_cause() -> None:
    def build(rebuildable: bool) -> Any:
        return hk.CacheSpec(
            2,
            [
                group("kv", hk.Prefix(), 128),
                group("draft", hk.Window(128), 4096, rebuildable=rebuildable, layers=(0,)),
                group("a", hk.Window(32), 32),
                group("b", hk.Window(8), 2),
                group("c", hk.Window(16), 8),
            ],
        )

    coarse, fine = build(False), build(True)
    assert (coarse.boundary_tokens, coarse.boundary_group) == (4096, "draft")
    assert (fine.boundary_tokens, fine.boundary_group) == (128, "kv")
    for spec, expected in ((coarse, 0), (fine, 2048)):
        cache = hk.HybridCache(spec, blocks=4096)
        cache.insert(keys_of(2048, 2))
        v = cache.match(keys_of(2049, 2))
        assert usable(v) == expected
        if not expected:
            assert (v.why.check, v.why.group, v.why.code) == (hk.Check.GROUPS, "draft", "partial")
        else:
            v.lease.release()


def test_FC_064_a_common_member_is_taken_not_the_minimum() -> None:
    rules = {"one": (hk.Window(17), 16), "two": (hk.Window(17), 16)}
    cache = make_cache(16, rules)
    put(cache, keys_of(96), {"one": [3, 5], "two": [3]})
    assert give_back(cache.match(keys_of(97))) == 64
    cache = make_cache(16, rules)
    put(cache, keys_of(96), {"one": [5], "two": [3]})
    v = cache.match(keys_of(97))
    assert usable(v) == 0
    assert (v.outcome, v.matched_tokens) == (hk.Outcome.FALSE_HIT, 96)
    assert blamed(v) == (hk.Check.GROUPS, "two", 5)


def test_FC_065_a_shorter_length_uses_its_own_pages() -> None:
    cache = full_swa(window=17)
    fill = cache.reserve(keys_of(96))
    recorded = np.asarray(fill.page_ids("swa")).tolist()
    fill.publish()
    v = cache.match(keys_of(97))
    assert np.asarray(v.lease.page_ids("swa")).tolist()[5] == recorded[5]
    w = cache.match_at(keys_of(97), 64, of=v)
    assert np.asarray(w.lease.page_ids("swa")).tolist() == [-1, -1, -1, recorded[3]]
    w.lease.release()


def test_FC_070_keys_of_another_unit_are_refused() -> None:
    cache = make_cache(64, {"kv": (hk.Prefix(), 64)})
    cache.insert(keys_of(512, 64))
    with pytest.raises(hk.ArgumentError) as refused:
        cache.match(keys_of(512, 128))
    assert "64" in str(refused.value)
    assert "128" in str(refused.value)


def test_FC_071_a_block_is_named_by_its_last_unit() -> None:
    names = [bytes([i]) * 16 for i in range(10)]
    cache = make_cache(16, {"kv": (hk.Prefix(), 64)})
    cache.insert(hk.BlockKeys.from_hashes(names, 16), groups={"kv": [0]})
    assert give_back(cache.match(hk.BlockKeys.from_hashes(names, 16))) == 64
    other = [*names[:3], b"x" * 16, *names[4:]]
    assert cache.match(hk.BlockKeys.from_hashes(other, 16)).outcome == hk.Outcome.MISS
    fill = cache.reserve(hk.BlockKeys.from_hashes(names, 16)[:8])
    assert [i >= 0 for i in np.asarray(fill.page_ids("kv")).tolist()] == [False, True]
    fill.abort()


def test_FC_073_pages_belong_to_groups_by_name() -> None:
    rules = {"a": (hk.Prefix(), 16), "b": (hk.Window(17), 16), "c": (hk.Checkpoint(), 16)}
    answers = []
    for order in (("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")):
        cache = make_cache(16, {n: rules[n] for n in order})
        put(cache, keys_of(96), {"a": range(6), "b": [2, 4], "c": [2, 5]})
        v = cache.match(keys_of(97))
        answers.append((usable(v), {n: held(v.lease, n) for n in sorted(rules)}))
        v.lease.release()
        with pytest.raises(hk.ArgumentError):
            cache.insert(keys_of(96), groups={"a": True, "d": True})
    assert answers == [answers[0]] * 3
    assert answers[0] == (48, {"a": [0, 1, 2], "b": [2], "c": [2]})


def test_FC_074_a_coarse_group_that_can_be_rebuilt_constrains_nothing() -> None:
    groups = [
        group("kv", hk.Prefix(), 16),
        group("state", hk.Checkpoint(), 16),
        group("draft", hk.Window(129), 2048, rebuildable=True, layers=(0,)),
    ]
    cache = hk.HybridCache(hk.CacheSpec(16, groups), blocks=512)
    a, b = parting(1900, 2048, 2100, 16)
    cache.insert(a)
    v = cache.match(b)
    assert usable(v) == 1888
    assert dict(v.plan.replay) == {"draft": (1760, 1888)}
    v.lease.release()
