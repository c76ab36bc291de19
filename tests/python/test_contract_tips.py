# SPDX-License-Identifier: Apache-2.0
"""Published partial units (tips), and the copies to make before the first write inside a shared page."""

from __future__ import annotations

from typing import Any

import numpy as np

import hybridkv as hk
from contract_support import (
    check_conserved,
    full_swa,
    give_back,
    held,
    keys_of,
    make_cache,
    pools,
    put,
    tokens,
    usable,
)


def ready(n: int = 96, **more: Any) -> tuple[Any, Any]:
    """A cache (full, swa) that holds n tokens, and keys of one token more."""
    cache = full_swa(**more)
    cache.insert(keys_of(n))
    return cache, keys_of(n + 1)


# -- tips -------------------------------------------------------------------------------------------


def test_a_longer_prompt_finds_a_tip() -> None:
    cache = full_swa()
    cache.insert(keys_of(55))
    v = cache.match(keys_of(90))
    assert usable(v) == 55
    assert v.matched_tokens == 55
    assert v.why is None
    assert np.asarray(v.lease.page_ids("full")).shape == (4,)
    assert held(v.lease, "full") == [0, 1, 2, 3]
    assert held(v.lease, "swa") == [1, 2, 3]
    assert np.asarray(v.boundaries).tolist() == [16, 32, 48, 55]
    v.lease.release()
    other = np.concatenate([tokens(54), tokens(40, start=7000)])
    assert give_back(cache.match(hk.block_keys(other, 16))) == 48


def test_a_tip_lies_strictly_below_the_limit() -> None:
    cache = full_swa()
    cache.insert(keys_of(55))
    assert give_back(cache.match(keys_of(55))) == 48
    assert give_back(cache.match(keys_of(56))) == 55
    assert give_back(cache.match(keys_of(90), limit=55)) == 48


def test_the_longest_tip_is_taken() -> None:
    cache = full_swa()
    for n in (50, 55, 52):
        cache.insert(keys_of(n))
    v = cache.match(keys_of(90))
    assert usable(v) == 55
    assert np.asarray(v.boundaries).tolist() == [16, 32, 48, 50, 52, 55]
    v.lease.release()
    assert give_back(cache.match(keys_of(54))) == 52


def test_a_tip_below_the_first_unit() -> None:
    cache = full_swa()
    cache.insert(keys_of(7))
    assert give_back(cache.match(keys_of(40))) == 7
    assert cache.match(keys_of(7)).outcome == hk.Outcome.MISS


def test_a_tip_needs_every_group() -> None:
    cache = full_swa(window=9)
    cache.insert(keys_of(48))
    put(cache, keys_of(55), {"full": [3]})
    v = cache.match(keys_of(90))
    assert usable(v) == 48
    assert v.matched_tokens == 55
    assert (v.why.check, v.why.group, v.why.block) == (hk.Check.GROUPS, "swa", 3)
    v.lease.release()
    put(cache, keys_of(55), {"swa": [3]})
    assert give_back(cache.match(keys_of(90))) == 55


def test_a_tip_asks_no_state_where_none_is_needed() -> None:
    rules = {"full": (hk.Prefix(), 16), "tail": (hk.Checkpoint(4), 16)}
    cache = make_cache(16, rules)
    cache.insert(keys_of(48), groups={"full": True})
    put(cache, keys_of(52), {"full": [3]})
    put(cache, keys_of(54), {"full": [3]})
    v = cache.match(keys_of(90))
    assert usable(v) == 52
    assert v.matched_tokens == 54
    assert (v.why.group, v.why.block) == ("tail", 3)
    v.lease.release()


def test_a_tip_of_a_large_block_attests_its_whole_units() -> None:
    cache = make_cache(4, {"full": (hk.Prefix(), 16), "swa": (hk.Window(5), 4)})
    cache.insert(keys_of(30, 4))
    v = cache.match(keys_of(60, 4))
    assert usable(v) == 30
    assert held(v.lease, "full") == [0, 1]
    assert held(v.lease, "swa") == [6, 7]
    assert np.asarray(v.boundaries).tolist() == [16, 30]
    v.lease.release()


def test_a_fifth_tip_of_one_parent_replaces_the_oldest() -> None:
    cache = full_swa()
    for n in (49, 50, 51, 52):
        cache.insert(keys_of(n))
    assert cache.metrics().tips_displaced == 0
    cache.insert(keys_of(53))
    v = cache.match(keys_of(90))
    assert np.asarray(v.boundaries).tolist() == [16, 32, 48, 50, 51, 52, 53]
    v.lease.release()
    found = cache.metrics()
    assert (found.tips_displaced, found.unplaced) == (1, 0)
    check_conserved(cache, {"full": 256, "swa": 256})
    assert pools(cache)["full"] == (256 - 7, 0, 0, 7)


def test_a_tip_that_takes_the_place_of_one_that_was_evicted_displaces_none() -> None:
    cache = full_swa()
    for n in (49, 50, 51, 52):
        cache.insert(keys_of(n))
    block = {"full": [3], "swa": [3]}  # of the tip alone
    assert cache.evict(keys_of(50), block) == 2
    cache.insert(keys_of(53))
    v = cache.match(keys_of(90))
    assert np.asarray(v.boundaries).tolist() == [16, 32, 48, 49, 51, 52, 53]
    give_back(v)
    assert cache.metrics().tips_displaced == 0


def test_a_pinned_tip_is_not_replaced() -> None:
    cache = full_swa()
    cache.insert(keys_of(49))
    pinned = cache.match(keys_of(50))
    assert usable(pinned) == 49
    for n in (50, 51, 52, 53):
        cache.insert(keys_of(n))
    v = cache.match(keys_of(90))
    assert np.asarray(v.boundaries).tolist() == [16, 32, 48, 49, 51, 52, 53]
    assert pinned.lease.valid
    v.lease.release()
    pinned.lease.release()


def test_tips_of_other_parents_are_apart() -> None:
    cache = full_swa()
    lengths = [5, 6, 7, 8, 21, 22, 23, 24, 37, 38]
    for n in lengths:
        cache.insert(keys_of(n))
    v = cache.match(keys_of(90))
    assert np.asarray(v.boundaries).tolist() == sorted([*lengths, 16, 32])
    give_back(v)


def test_a_tip_can_be_evicted() -> None:
    cache = full_swa()
    cache.insert(keys_of(55))
    assert cache.evict(keys_of(55), groups={"full": [3]}) == 1
    assert give_back(cache.match(keys_of(90))) == 48
    assert cache.evict(keys_of(55)) == 7


def test_engine_hashes_have_no_tips() -> None:
    names = [bytes([i]) * 16 for i in range(4)]
    keys = hk.BlockKeys.from_hashes(names, 16)
    cache = full_swa()
    cache.insert(keys)
    assert keys.tokens == 64
    assert give_back(cache.match(keys)) == 48
    assert give_back(cache.match(keys, limit=65)) == 64


# -- copies -----------------------------------------------------------------------------------------


def test_a_fill_from_inside_a_shared_page_copies_first() -> None:
    cache = full_swa()
    cache.insert(keys_of(55))
    v = cache.match(keys_of(80))
    assert v.lease.tokens == 55
    source = {name: np.asarray(v.lease.page_ids(name)).tolist() for name in ("full", "swa")}
    fill = cache.reserve(keys_of(80), lease=v.lease)
    for name in ("full", "swa"):
        copies = np.asarray(fill.copies(name))
        assert copies.dtype == np.int32
        own = np.asarray(fill.page_ids(name)).tolist()
        assert copies.tolist() == [[source[name][3], own[3], 7]]
        assert own[3] not in source[name]
    fill.publish()
    assert give_back(cache.match(keys_of(81))) == 80


def test_a_fill_from_a_whole_block_copies_nothing() -> None:
    cache, _ = ready(48)
    v = cache.match(keys_of(80))
    fill = cache.reserve(keys_of(80), lease=v.lease)
    assert np.asarray(fill.copies("full")).shape == (0, 3)
    fill.publish()
    plain = cache.reserve(keys_of(200))
    assert np.asarray(plain.copies("full")).shape == (0, 3)
    plain.abort()
