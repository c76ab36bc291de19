# SPDX-License-Identifier: Apache-2.0
"""The four windows between check and use, each closed by a guard that this file fails without.

Find to acquire, acquire to read, free to last launched write, late publish after removal.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, check_counters, keys_of, make_cache, pools, tokens

KEYS = keys_of(97)
PROMPT = keys_of(97)[:6]
OTHER = hk.block_keys(tokens(96, start=5000), 16)
ONE = {"full": (hk.Prefix(), 16)}


def stamped(pages: int = 6) -> tuple[Any, np.ndarray]:
    """A cache of one full-attention group whose pool is full of the prompt, each page stamped with its block."""
    cache = make_cache(16, ONE, pages={"full": pages}, verify="off")
    pool = np.zeros((pages, 64), np.uint8)
    cache.bind("full", pool)
    write(cache, PROMPT, pool, 1)
    return cache, pool


def write(cache: Any, keys: Any, pool: np.ndarray, first: int) -> list[int]:
    fill = cache.reserve(keys)
    pages = [int(page) for page in fill.page_ids("full")]
    for block, page in enumerate(pages):
        if page >= 0:
            pool[page] = first + block
    fill.publish()
    return pages


def read(lease: Any, pool: np.ndarray) -> list[int]:
    return [int(pool[page, 0]) for page in lease.page_ids("full")]


def taken(cache: Any) -> list[int]:
    """Pages that another prompt takes."""
    fill = cache.reserve(OTHER)
    pages = sorted(fill.page_ids("full").tolist())
    fill.publish()
    return pages


# -- find to acquire --------------------------------------------------------------------------------


def test_nothing_comes_between_a_verdict_and_its_use() -> None:
    """The verdict is pinned already: neither an evict nor a writer short of pages takes what it found."""
    cache, pool = stamped()
    lease = cache.match(KEYS).lease
    assert cache.evict(PROMPT) == 0
    with pytest.raises(hk.OutOfPages):
        cache.reserve(OTHER[:1])
    assert read(lease, pool) == [1, 2, 3, 4, 5, 6]
    lease.release()
    assert cache.evict(PROMPT) == 6
    write(cache, OTHER, pool, 101)
    assert cache.match(KEYS).outcome is hk.Outcome.MISS


def test_an_agreed_length_that_went_meanwhile_is_not_resumed() -> None:
    cache, pool = stamped()
    verdict = cache.match(KEYS)
    agreed = int(hk.intersect([verdict.boundaries]))
    assert agreed == 96
    verdict.lease.cancel()
    assert cache.evict(PROMPT, {"full": [5]}) == 1
    write(cache, OTHER[:1], pool, 101)  # the page is another's now
    again = cache.match_at(KEYS, agreed)
    assert (again.lease, again.usable_tokens) == (None, 0)
    assert cache.match_at(KEYS, 80).lease.cancel() is None


def test_an_agreed_length_that_was_filled_anew_reads_the_new_pages() -> None:
    cache, pool = stamped(12)
    verdict = cache.match(KEYS)
    verdict.lease.cancel()
    cache.evict(PROMPT, {"full": [4, 5]})
    write(cache, OTHER[:2], pool, 101)
    write(cache, PROMPT, pool, 51)
    with cache.match_at(KEYS, 96, of=verdict).lease as lease:
        assert read(lease, pool) == [1, 2, 3, 4, 55, 56]


def test_the_lease_of_the_verdict_a_length_comes_from_is_withdrawn_once() -> None:
    cache, _ = stamped()
    verdict = cache.match(KEYS)
    lease = cache.match_at(KEYS, 96, of=verdict).lease
    assert not verdict.lease.valid
    assert [info.pins for info in cache.inspect(PROMPT)["full"]] == [1] * 6
    lease.release()
    assert cache.evict(PROMPT) == 6


def test_extend_takes_nothing_that_went_and_keeps_what_it_has() -> None:
    cache, pool = stamped()
    lease = cache.match(KEYS, limit=33).lease
    assert lease.tokens == 32
    assert cache.evict(PROMPT) == 4
    write(cache, OTHER[:4], pool, 101)
    assert lease.extend(KEYS) == 32
    assert lease.extend(keys_of(32)) == 32  # a match of these keys ends before their last token
    assert read(lease, pool) == [1, 2]
    assert cache.evict(PROMPT) == 0
    lease.release()


def test_extend_pins_what_it_adds_and_counts_what_it_had_once() -> None:
    cache, pool = stamped()
    lease = cache.match(KEYS, limit=33).lease
    assert lease.extend(KEYS) == 96
    assert cache.evict(PROMPT) == 0
    assert read(lease, pool) == [1, 2, 3, 4, 5, 6]
    lease.release()
    assert cache.evict(PROMPT) == 6


# -- acquire to read --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["release", "fail", "cancel", "revoke", "deadline"])
def test_a_lease_that_has_ended_gives_no_page_to_read(how: str) -> None:
    now = [0.0]
    cache = make_cache(16, ONE, pages={"full": 6}, clock=lambda: now[0])
    cache.insert(PROMPT)
    lease = cache.match(KEYS).lease
    pages = lease.page_ids("full").tolist()
    lease.lend("reader", deadline_s=10)
    if how == "revoke":
        cache.revoke(owner="reader")
    elif how == "deadline":
        now[0] = 10.0
    else:
        getattr(lease, how)()
    for reading in (lease.page_ids, lease.handouts):
        with pytest.raises(hk.LeaseExpired):
            reading("full")
    with pytest.raises(hk.LeaseExpired):
        _ = lease.tokens
    assert cache.evict(PROMPT) == 6
    assert taken(cache) == sorted(pages)  # anybody's by now
    with pytest.raises(hk.LeaseExpired):
        lease.page_ids("full")


def test_a_lease_in_a_fills_hands_cannot_be_given_up_beneath_it() -> None:
    cache = make_cache(16, ONE)
    cache.insert(keys_of(20))
    keys = keys_of(48)
    lease = cache.match(keys).lease
    lease.lend("reader")
    fill = cache.reserve(keys, lease=lease)
    ((source, _, rows),) = fill.copies("full").tolist()
    for give_up in (lease.release, lease.cancel, lease.fail):
        with pytest.raises(hk.LeaseExpired):
            give_up()
    assert cache.revoke(owner="reader") == []
    assert cache.evict(keys_of(20)) == 0
    assert (lease.page_ids("full")[1], rows) == (source, 4)
    fill.abort()


# -- free to the last launched write ----------------------------------------------------------------


@pytest.mark.parametrize("how", ["abort", "collected", "published before"])
def test_pages_stay_away_from_others_until_the_last_launched_write(how: str) -> None:
    cache = make_cache(16, ONE, pages={"full": 6})
    early, late = Event(), Event()
    fill = cache.reserve(PROMPT)
    if how == "published before":
        fill.publish(after=late)  # the writes that it waits for run on
        fill.abort(after=early)
    else:
        fill.abort(after=late)
    if how == "collected":
        del fill
        gc.collect()
    for passing in (early, late):
        cache.poll()
        assert pools(cache)["full"] == (0, 6, 0, 0)
        with pytest.raises(hk.OutOfPages):
            cache.reserve(OTHER)
        passing.passed = True
    assert taken(cache) == list(range(6))  # reserve polls
    assert cache.metrics().leaks == 0


@pytest.mark.parametrize("how", ["release", "cancel", "fail", "revoke"])
def test_pages_that_launched_work_reads_stay_away_from_others(how: str) -> None:
    cache, pool = stamped()
    event = Event()
    lease = cache.match(KEYS).lease
    if how == "revoke":
        lease.lend("reader", after=event)
        cache.revoke(owner="reader")
    else:
        getattr(lease, how)(after=event)
    for _ in range(3):
        cache.poll()
        assert cache.evict(PROMPT) == 0
        with pytest.raises(hk.OutOfPages):
            cache.reserve(OTHER[:1])
    event.passed = True
    cache.poll()
    assert cache.evict(PROMPT) == 6
    write(cache, OTHER, pool, 101)


@pytest.mark.parametrize("verb", ["reset", "close"])
@pytest.mark.parametrize("what", ["abort", "release", "revoke"])
def test_the_pools_are_not_given_up_beneath_launched_work(verb: str, what: str) -> None:
    cache, _ = stamped(12)
    event = Event()
    if what == "abort":
        cache.reserve(OTHER).abort(after=event)
    else:
        lease = cache.match(KEYS).lease
        lease.lend("reader", after=event)
        if what == "release":
            lease.release()
        cache.revoke(owner="reader")
    with pytest.raises(hk.Busy):
        getattr(cache, verb)()
    event.passed = True
    getattr(cache, verb)()


# -- late publish after removal ---------------------------------------------------------------------


def test_a_publish_that_waits_makes_nothing_visible_once_its_fill_was_aborted() -> None:
    cache = make_cache(16, ONE, pages={"full": 6})
    event = Event()
    fill = cache.reserve(PROMPT)
    fill.publish(after=event)
    fill.abort()
    assert pools(cache)["full"] == (0, 6, 0, 0)  # what the publish waits for may still be written
    event.passed = True
    cache.poll()
    assert cache.match(KEYS).outcome is hk.Outcome.MISS
    assert pools(cache)["full"] == (6, 0, 0, 0)
    assert cache.metrics().leaks == 0


def test_a_lease_is_withdrawn_where_the_publish_that_would_have_settled_it_was_aborted() -> None:
    cache = make_cache(16, ONE)
    cache.insert(keys_of(32))
    event = Event()
    fill = cache.reserve(KEYS, lease=cache.match(KEYS).lease)
    fill.publish(after=event)
    fill.abort()
    event.passed = True
    cache.poll()
    metrics = cache.metrics()
    assert (metrics.effective_hits, metrics.withdrawn, metrics.pending) == (0, 1, 0)
    check_counters(cache)


def test_an_aborted_fill_publishes_nothing() -> None:
    cache = make_cache(16, ONE, pages={"full": 6})
    fill = cache.reserve(PROMPT)
    fill.abort()
    cache.reserve(OTHER).publish()
    for after in (None, Event()):
        with pytest.raises(hk.FillClosed):
            fill.publish(after=after)
    assert cache.match(KEYS).outcome is hk.Outcome.MISS
    assert pools(cache)["full"] == (0, 0, 0, 6)


def test_what_was_published_and_evicted_is_not_published_again() -> None:
    """Nor given back: the pages are another's by the time the old fill calls again, and when it goes."""
    cache = make_cache(16, ONE, pages={"full": 6})
    fill = cache.reserve(PROMPT)
    fill.publish()
    assert cache.evict(PROMPT) == 6
    other = cache.reserve(OTHER)
    fill.publish()
    assert cache.match(KEYS).outcome is hk.Outcome.MISS
    fill.abort()
    del fill
    assert pools(cache)["full"] == (0, 6, 0, 0)
    other.publish()
    assert pools(cache)["full"] == (0, 0, 0, 6)


@pytest.mark.parametrize("wait", [False, True])
def test_a_fill_older_than_a_reset_publishes_nothing(wait: bool) -> None:
    cache = make_cache(16, ONE, pages={"full": 12})
    winner, late = cache.reserve(PROMPT), cache.reserve(PROMPT)
    winner.publish()
    late.publish()  # private pages, claimed anew once the winner's are gone
    cache.evict(PROMPT)
    cache.reset()
    cache.insert(OTHER)
    with pytest.raises(hk.FillClosed):
        late.publish(after=Event() if wait else None)
    assert cache.match(KEYS).outcome is hk.Outcome.MISS
    late.abort()
    del winner, late
    assert pools(cache)["full"] == (6, 0, 0, 6)


def test_a_revoked_lease_settles_nothing_twice() -> None:
    cache, _ = stamped()
    lease = cache.match(KEYS).lease
    lease.lend("reader")
    cache.revoke(owner="reader")
    for late in (lease.release, lease.fail, lease.cancel):
        with pytest.raises(hk.LeaseExpired):
            late()
    metrics = cache.metrics()
    assert (metrics.lookups, metrics.withdrawn, metrics.effective_hits, metrics.pending) == (1, 1, 0, 0)
    check_counters(cache)
