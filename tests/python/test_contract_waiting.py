# SPDX-License-Identifier: Apache-2.0
"""What waits: for a fill, for an event, for leases and fills to end; and everything at random."""

from __future__ import annotations

import random
from typing import Any

import pytest

import hybridkv as hk
from contract_support import (
    Event,
    check_conserved,
    check_counters,
    check_verdict,
    full_swa,
    give_back,
    keys_of,
    make_cache,
    pools,
    put,
    tokens,
)

BOTH = {"full": 256, "swa": 256}


def settled(cache: Any) -> None:
    check_conserved(cache, BOTH)
    check_counters(cache)


# -- waiting ----------------------------------------------------------------------------------------


def test_a_miss_whose_first_block_is_filling_says_wait() -> None:
    cache = full_swa()
    fill = cache.reserve(keys_of(96))
    v = cache.match(keys_of(97))
    check_verdict(v)
    assert (v.outcome, v.remedy) == (hk.Outcome.MISS, hk.Remedy.WAIT)
    assert (v.why.group, v.why.block, v.why.code) == ("full", 0, "filling")
    assert (v.matched_tokens, v.usable_tokens, dict(v.lost)) == (0, 0, {})
    assert cache.metrics().misses == 1
    fill.abort()
    v = cache.match(keys_of(97))
    assert v.remedy == hk.Remedy.NONE or v.remedy == hk.Remedy.RECOMPUTE
    assert v.why is None


def test_a_hit_whose_next_block_is_filling_says_wait() -> None:
    cache = full_swa(window=2)
    cache.insert(keys_of(48))
    fill = cache.reserve(keys_of(96))
    v = cache.match(keys_of(97))
    check_verdict(v)
    assert (v.outcome, v.usable_tokens, v.remedy) == (hk.Outcome.REUSABLE, 48, hk.Remedy.WAIT)
    assert (v.why.group, v.why.block, v.why.code) == ("full", 3, "filling")
    v.lease.release()
    fill.publish()
    assert give_back(cache.match(keys_of(97))) == 96


def test_a_window_being_filled_says_wait() -> None:
    cache = full_swa()
    put(cache, keys_of(96), {"full": range(6)})
    fill = cache.reserve(keys_of(96), groups={"swa": [4, 5]})
    v = cache.match(keys_of(97))
    check_verdict(v)
    assert (v.outcome, v.remedy) == (hk.Outcome.FALSE_HIT, hk.Remedy.WAIT)
    assert (v.why.check, v.why.group, v.why.block, v.why.code) == (hk.Check.GROUPS, "swa", 4, "filling")
    fill.publish()
    assert give_back(cache.match(keys_of(97))) == 96


# -- events -----------------------------------------------------------------------------------------


def test_a_publish_after_an_event_is_invisible_until_it_passed() -> None:
    cache = full_swa()
    fill = cache.reserve(keys_of(96))
    event = Event()
    fill.publish(after=event)
    cache.poll()
    assert cache.match(keys_of(97)).outcome == hk.Outcome.MISS
    check_conserved(cache, BOTH)
    event.passed = True
    cache.poll()
    assert give_back(cache.match(keys_of(97))) == 96
    settled(cache)


def test_match_asks_no_event() -> None:
    cache = full_swa()
    fill = cache.reserve(keys_of(96))
    event = Event()
    fill.publish(after=event)
    asked = event.asked
    for _ in range(5):
        cache.match(keys_of(97))
    assert event.asked == asked
    event.passed = True
    cache.poll()


def test_pins_stay_until_the_event_of_the_release_passed() -> None:
    cache = full_swa()
    keys = keys_of(97)
    cache.insert(keys[:6])
    v = cache.match(keys)
    event = Event()
    v.lease.release(after=event)
    assert not v.lease.valid
    with pytest.raises(hk.LeaseExpired):
        v.lease.page_ids("full")
    cache.poll()
    assert cache.evict(keys[:6], groups={"full": True}) == 0
    event.passed = True
    cache.poll()
    assert cache.evict(keys[:6], groups={"full": True}) == 6
    assert cache.metrics().effective_hits == 1
    settled(cache)


def test_pages_of_an_abort_stay_until_its_event_passed() -> None:
    cache = full_swa()
    fill = cache.reserve(keys_of(96))
    event = Event()
    fill.abort(after=event)
    cache.poll()
    assert pools(cache)["full"][0] == 250
    event.passed = True
    cache.poll()
    assert pools(cache)["full"] == (256, 0, 0, 0)


def test_reserve_polls_when_it_is_short_of_pages() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16)}, pages={"full": 6})
    fill = cache.reserve(keys_of(96))
    event = Event()
    fill.abort(after=event)
    other = hk.block_keys(tokens(96, start=700), 16)
    with pytest.raises(hk.OutOfPages):
        cache.reserve(other)
    event.passed = True
    cache.reserve(other).abort()


def test_effects_of_one_object_come_in_order() -> None:
    cache = full_swa(window=2)
    fill = cache.reserve(keys_of(96))
    first, second = Event(), Event()
    fill.publish({"full": True, "swa": [0, 1, 2]}, after=first)
    fill.publish({"swa": [3, 4, 5]}, after=second)
    first.passed = True
    cache.poll()
    assert give_back(cache.match(keys_of(97))) == 48
    second.passed = True
    cache.poll()
    assert give_back(cache.match(keys_of(97))) == 96


def test_poll_without_anything_due_is_quiet() -> None:
    cache = full_swa()
    cache.poll()
    settled(cache)


# -- reset and close --------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["reset", "close"])
def test_reset_and_close_are_refused_while_something_lives(verb: str) -> None:
    cache = full_swa()
    keys = keys_of(97)
    cache.insert(keys[:6])
    v = cache.match(keys)
    with pytest.raises(hk.Busy):
        getattr(cache, verb)()
    assert v.lease.valid
    v.lease.release()
    fill = cache.reserve(hk.block_keys(tokens(32, start=900), 16))
    with pytest.raises(hk.Busy):
        getattr(cache, verb)()
    fill.abort()
    assert give_back(cache.match(keys)) == 96
    getattr(cache, verb)()


def test_reset_forgets_everything() -> None:
    cache = full_swa()
    keys = keys_of(97)
    cache.insert(keys)
    cache.reset()
    assert cache.match(keys).outcome == hk.Outcome.MISS
    assert pools(cache) == {"full": (256, 0, 0, 0), "swa": (256, 0, 0, 0)}
    cache.insert(keys)
    assert give_back(cache.match(keys)) == 96


# -- all of it at random ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_pages_are_conserved_at_every_step(seed: int) -> None:
    rng = random.Random(seed)
    capacity = {"full": 40, "swa": 24, "state": 24}
    rules = {"full": (hk.Prefix(), 8), "swa": (hk.Window(12), 4), "state": (hk.Checkpoint(), 8)}
    cache = make_cache(4, rules, blocks=128, pages=capacity)
    prompts = [hk.block_keys(tokens(rng.randrange(8, 90), start=100 * (i % 3)), 4) for i in range(6)]
    fills: list[Any] = []
    leases: list[Any] = []
    refused = hits = 0
    for _ in range(400):
        keys = rng.choice(prompts)
        action = rng.randrange(8)
        try:
            if action == 0:
                cache.insert(keys)
            elif action == 1:
                fills.append(cache.reserve(keys))
            elif action == 2 and fills:
                rng.choice(fills).publish()
            elif action == 3 and fills:
                fills.pop(rng.randrange(len(fills))).abort()
            elif action == 4:
                cache.evict(keys)
            elif action in (5, 6):
                v = cache.match(keys)
                check_verdict(v)
                if v.lease:
                    hits += 1
                    leases.append(v.lease)
            elif leases:
                getattr(leases.pop(rng.randrange(len(leases))), rng.choice(["release", "cancel"]))()
        except hk.OutOfPages:
            refused += 1
        check_conserved(cache, capacity)
        check_counters(cache)
    assert hits > 10
    assert refused > 0
    for fill in fills:
        fill.abort()
    for lease in leases:
        lease.release()
    assert cache.metrics().pending == 0
    for keys in prompts:
        cache.evict(keys)
    assert {n: p[0] for n, p in pools(cache).items()} == capacity
