# SPDX-License-Identifier: Apache-2.0
"""The life of pages: reserve, publish, abort, insert, evict; who owns a block; what waits for an event."""

from __future__ import annotations

import gc
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
    held,
    keys_of,
    make_cache,
    pools,
    put,
    usable,
)

BOTH = {"full": 256, "swa": 256}


def page_list(holder: Any, name: str) -> list[int]:
    return np.asarray(holder.page_ids(name)).tolist()


def settled(cache: Any) -> None:
    check_conserved(cache, BOTH)
    check_counters(cache)


# -- reserve, publish, abort ------------------------------------------------------------------------


def test_a_reserved_block_is_invisible_until_published() -> None:
    cache = full_swa()
    keys = keys_of(97)[:6]
    fill = cache.reserve(keys)
    v = cache.match(keys_of(97))
    check_verdict(v)
    assert v.outcome == hk.Outcome.MISS
    assert pools(cache)["full"][1] == 6
    fill.publish()
    v = cache.match(keys_of(97))
    assert usable(v) == 96
    assert page_list(v.lease, "full") == page_list(fill, "full")
    assert held(v.lease, "swa") == [4, 5]
    assert page_list(v.lease, "swa")[4:] == page_list(fill, "swa")[4:]
    v.lease.release()
    settled(cache)


def test_page_ids_of_a_fill_are_int32_one_per_own_block() -> None:
    cache = make_cache(8, {"full": (hk.Prefix(), 16), "swa": (hk.Window(9), 8)})
    fill = cache.reserve(keys_of(56, 8))
    for name, size in (("full", 3), ("swa", 7)):
        ids = np.asarray(fill.page_ids(name))
        assert ids.dtype == np.int32
        assert ids.shape == (size,)
        assert len(set(ids.tolist())) == size
        assert min(ids) >= 0
    fill.abort()


def test_groups_named_in_reserve_alone_take_pages() -> None:
    cache = full_swa()
    keys = keys_of(96)
    fill = cache.reserve(keys, groups={"full": [1, 3], "swa": True})
    assert [i >= 0 for i in page_list(fill, "full")] == [False, True, False, True, False, False]
    assert all(i >= 0 for i in page_list(fill, "swa"))
    assert pools(cache)["full"][1] == 2
    fill.abort()
    assert pools(cache) == {"full": (256, 0, 0, 0), "swa": (256, 0, 0, 0)}


def test_an_abort_gives_every_page_back() -> None:
    cache = full_swa()
    fill = cache.reserve(keys_of(96))
    fill.abort()
    assert pools(cache) == {"full": (256, 0, 0, 0), "swa": (256, 0, 0, 0)}
    v = cache.match(keys_of(97))
    assert v.outcome == hk.Outcome.MISS
    assert v.remedy != hk.Remedy.WAIT


def test_no_page_is_taken_where_a_block_is_ready() -> None:
    cache = full_swa()
    put(cache, keys_of(96), {"full": [0, 1, 2], "swa": [2]})
    fill = cache.reserve(keys_of(96))
    assert [i >= 0 for i in page_list(fill, "full")] == [False] * 3 + [True] * 3
    assert [i >= 0 for i in page_list(fill, "swa")] == [True, True, False, True, True, True]
    fill.publish()
    assert give_back(cache.match(keys_of(97))) == 96
    settled(cache)


def test_published_in_parts_what_is_published_is_visible() -> None:
    cache = full_swa(window=17)
    fill = cache.reserve(keys_of(96))
    fill.publish({"full": [0, 1, 2]})
    v = cache.match(keys_of(97))
    check_verdict(v)
    assert (v.outcome, v.matched_tokens) == (hk.Outcome.FALSE_HIT, 48)
    assert (v.why.group, v.why.block, v.why.code) == ("swa", 2, "filling")
    assert v.remedy == hk.Remedy.WAIT
    fill.publish({"swa": [2]})
    assert give_back(cache.match(keys_of(97))) == 48
    fill.publish({"swa": True})
    assert give_back(cache.match(keys_of(97))) == 48
    fill.publish()
    v = cache.match(keys_of(97))
    assert usable(v) == 96
    assert v.remedy != hk.Remedy.WAIT
    v.lease.release()
    settled(cache)


def test_publishing_what_is_published_changes_nothing() -> None:
    cache = full_swa()
    fill = cache.reserve(keys_of(96))
    fill.publish()
    before = pools(cache)
    fill.publish()
    fill.publish({"full": [0]})
    assert pools(cache) == before
    assert cache.metrics().duplicates == 0
    assert give_back(cache.match(keys_of(97))) == 96


def test_insert_is_reserve_and_publish() -> None:
    cache = full_swa()
    cache.insert(keys_of(96), groups={"full": True, "swa": [4, 5]})
    v = cache.match(keys_of(97))
    assert usable(v) == 96
    assert np.asarray(v.boundaries).tolist() == [96]
    v.lease.release()
    assert pools(cache)["swa"] == (254, 0, 0, 2)
    settled(cache)


def test_inserting_twice_takes_no_second_page() -> None:
    cache = full_swa()
    cache.insert(keys_of(96))
    before = pools(cache)
    cache.insert(keys_of(96))
    assert pools(cache) == before


def test_slices_publish_and_retire_their_own_blocks() -> None:
    cache = full_swa(window=2)
    keys = keys_of(96)
    cache.insert(keys[2:4])
    assert cache.match(keys_of(97)).outcome == hk.Outcome.MISS
    cache.insert(keys[:2])
    assert give_back(cache.match(keys_of(97))) == 64
    cache.insert(keys[4:], groups={"full": [4], "swa": [4]})
    assert give_back(cache.match(keys_of(97))) == 80
    assert cache.evict(keys[3:]) == 4
    assert give_back(cache.match(keys_of(97))) == 48


# -- who owns a block -------------------------------------------------------------------------------


def test_the_first_writer_wins_and_the_second_stays_private() -> None:
    cache = full_swa()
    first = cache.reserve(keys_of(96))
    second = cache.reserve(keys_of(96))
    assert not set(page_list(first, "full")) & set(page_list(second, "full"))
    assert all(i >= 0 for i in page_list(second, "full"))
    second.publish()
    assert cache.match(keys_of(97)).outcome == hk.Outcome.MISS
    first.publish()
    v = cache.match(keys_of(97))
    assert usable(v) == 96
    assert page_list(v.lease, "full") == page_list(first, "full")
    v.lease.release()
    assert cache.metrics().duplicates == 12
    check_conserved(cache, BOTH)
    second.abort()
    assert pools(cache) == {"full": (250, 0, 0, 6), "swa": (250, 0, 0, 6)}


def test_private_pages_go_back_when_the_published_fill_is_collected() -> None:
    cache = full_swa()
    first = cache.reserve(keys_of(96))
    second = cache.reserve(keys_of(96))
    first.publish()
    second.publish()
    del second
    gc.collect()
    assert pools(cache)["full"] == (250, 0, 0, 6)
    assert cache.metrics().leaks == 0


def test_what_an_abort_gave_up_can_be_claimed_at_publish() -> None:
    cache = full_swa()
    first = cache.reserve(keys_of(96))
    second = cache.reserve(keys_of(96))
    first.abort()
    assert cache.match(keys_of(97)).outcome == hk.Outcome.MISS
    second.publish()
    v = cache.match(keys_of(97))
    assert usable(v) == 96
    assert page_list(v.lease, "full") == page_list(second, "full")
    v.lease.release()
    assert pools(cache)["full"] == (250, 0, 0, 6)
    settled(cache)


def test_a_fill_publishes_the_blocks_that_nobody_else_claimed() -> None:
    cache = full_swa(window=2)
    first = cache.reserve(keys_of(48))
    second = cache.reserve(keys_of(96))
    second.publish()
    assert cache.match(keys_of(97)).outcome == hk.Outcome.MISS
    first.publish()
    v = cache.match(keys_of(97))
    assert usable(v) == 96
    assert page_list(v.lease, "full") == page_list(first, "full") + page_list(second, "full")[3:]
    v.lease.release()


def test_a_block_evicted_and_written_again_is_another_page_life() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16)}, pages={"full": 1})
    keys = keys_of(16)
    cache.insert(keys)
    v = cache.match(keys_of(17))
    page, count = page_list(v.lease, "full"), np.asarray(v.lease.handouts("full"))
    assert count.dtype == np.uint64
    v.lease.release()
    assert cache.evict(keys) == 1
    cache.insert(keys)
    w = cache.match(keys_of(17))
    assert page_list(w.lease, "full") == page
    assert np.asarray(w.lease.handouts("full"))[0] > count[0]
    w.lease.release()


# -- leaks ------------------------------------------------------------------------------------------


def test_a_fill_left_behind_is_quarantined_and_reported() -> None:
    cache = full_swa()
    fill = cache.reserve(keys_of(96))
    with pytest.warns(ResourceWarning):
        del fill
        gc.collect()
    assert cache.metrics().leaks == 1
    assert pools(cache)["full"][0] == 250
    check_conserved(cache, BOTH)
    assert cache.match(keys_of(97)).outcome == hk.Outcome.MISS


def test_a_lease_left_behind_is_withdrawn_and_reported() -> None:
    cache = full_swa()
    keys = keys_of(97)
    cache.insert(keys[:6])
    v = cache.match(keys)
    assert cache.evict(keys[:6]) == 4
    assert cache.metrics().pending == 1
    with pytest.warns(ResourceWarning):
        del v
        gc.collect()
    m = cache.metrics()
    assert (m.pending, m.withdrawn, m.effective_hits, m.leaks) == (0, 1, 0, 1)
    assert cache.evict(keys[:6]) == 8
    settled(cache)


# -- evict and pins ---------------------------------------------------------------------------------


def test_evict_retires_what_is_not_pinned() -> None:
    cache = full_swa()
    keys = keys_of(97)
    cache.insert(keys[:6])
    v = cache.match(keys)
    assert cache.evict(keys[:6], groups={"full": True}) == 0
    assert cache.evict(keys[:6], groups={"swa": [0, 1, 2, 3]}) == 4
    assert cache.evict(keys[:6], groups={"swa": True}) == 0
    assert pools(cache)["full"] == (250, 0, 6, 0)
    w = cache.match(keys)
    v.lease.release()
    assert cache.evict(keys[:6]) == 0
    w.lease.release()
    assert cache.evict(keys[:6]) == 8
    assert pools(cache) == {"full": (256, 0, 0, 0), "swa": (256, 0, 0, 0)}
    settled(cache)


def test_evict_leaves_what_is_filling() -> None:
    cache = full_swa()
    fill = cache.reserve(keys_of(96))
    assert cache.evict(keys_of(96)) == 0
    fill.publish()
    assert cache.evict(keys_of(96)) == 12


def test_evicting_what_is_not_there_is_nothing() -> None:
    cache = full_swa()
    assert cache.evict(keys_of(96)) == 0
    cache.insert(keys_of(96), groups={"full": [1]})
    assert cache.evict(keys_of(96)) == 1
    assert cache.evict(keys_of(96)) == 0


def test_the_code_tells_expired_stale_and_missing() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16), "swa": (hk.Window(17), 16), "state": (hk.Checkpoint(), 16)})
    keys = keys_of(49)
    cache.insert(keys[:3], groups={"full": True, "state": True})
    v = cache.match(keys)
    assert (v.outcome, v.why.group, v.why.code) == (hk.Outcome.FALSE_HIT, "swa", "missing")
    cache.insert(keys[:3])
    cache.evict(keys[:3], groups={"swa": [2]})
    v = cache.match(keys)
    assert (v.why.group, v.why.block, v.why.code) == ("swa", 2, "expired")
    give_back(v)
    cache.insert(keys[:3])
    cache.evict(keys[:3], groups={"state": [2]})
    v = cache.match(keys)
    assert (v.why.group, v.why.block, v.why.code) == ("state", 2, "stale")
    assert v.why.kind == hk.StateKind.TAIL
    give_back(v)


def test_a_lagging_indexer_is_named() -> None:
    spec = hk.CacheSpec(
        16,
        [
            hk.CacheGroup("csa", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64),
            hk.CacheGroup("index", hk.StateKind.INDEXER, hk.Prefix(), page_bytes=64, in_step_with="csa"),
        ],
    )
    cache = hk.HybridCache(spec, blocks=64)
    put(cache, keys_of(96), {"csa": range(6), "index": range(4)})
    v = cache.match(keys_of(97))
    assert usable(v) == 64
    assert v.matched_tokens == 96
    assert (v.why.check, v.why.group, v.why.block, v.why.code) == (hk.Check.COMPLETE, "index", 4, "lagging")
    assert v.why.kind == hk.StateKind.INDEXER
    assert dict(v.lost) == {hk.Check.COMPLETE: 32}
    give_back(v)
