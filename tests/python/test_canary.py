# SPDX-License-Identifier: Apache-2.0
"""Which hits are drawn, what becomes of them, and what is counted."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from canary_support import (
    QUICK,
    RIGHT,
    TOKENS,
    TOLERANCE,
    Clock,
    drawn,
    ends,
    keys_of,
    settled,
    stored,
    stored_in_pools,
)
from hybridkv.canary import Bitwise, Canary, Sample, SampleKind, Scope, Share, StoredContent
from hybridkv.steering import SteeredVerdict

# -- which ones ------------------------------------------------------------------------------------


def test_a_share_is_drawn_by_name_alike_everywhere() -> None:
    cache = stored()
    first = Canary(cache, 0.2, TOLERANCE, seed=5)
    names = [f"request {n}" for n in range(2000)]
    one = [first._share.takes(name) for name in names]
    again = Share(0.2, seed=5, purpose="canary")
    assert one == [again.takes(name) for name in names]
    assert 340 <= sum(one) <= 460
    wider, other = Share(0.5, seed=5, purpose="canary"), Share(0.2, seed=6, purpose="canary")
    assert all(wider.takes(name) for name, taken in zip(names, one, strict=True) if taken)
    both = sum(taken and other.takes(name) for name, taken in zip(names, one, strict=True))
    assert 50 <= both <= 110, "another seed draws independently"
    rollout = Share(0.2, seed=5, purpose="rollout")
    assert 50 <= sum(rollout.takes(name) for name, taken in zip(names, one, strict=True) if taken) <= 110
    assert not any(Share(0, seed=5, purpose="canary").takes(name) for name in names)
    assert all(Share(1, seed=5, purpose="canary").takes(name) for name in names)
    assert again.takes(b"a") in (True, False) and again.takes(3) in (True, False)


def test_no_prompt_is_passed_over_for_ever() -> None:
    """Hits are drawn by request: each of a few prompts that come again and again has its share of samples."""
    canary = Canary(stored(8), 0.25, TOLERANCE)
    seen: Counter[int] = Counter()
    for number in range(800):
        hit = canary.match(keys_of(number % 8))
        assert hit.verdict.lease is not None
        hit.verdict.lease.release()
        if hit.sample is not None:
            seen[number % 8] += 1
            hit.sample.abandon()
    assert len(seen) == 8
    assert min(seen.values()) >= 10 and max(seen.values()) <= 45
    assert 150 <= sum(seen.values()) <= 250
    assert canary.metrics().hits == 800


def test_only_hits_are_drawn() -> None:
    canary = Canary(stored(), 1.0, TOLERANCE)
    assert canary.match(keys_of(7)).sample is None
    canary.cache.evict(keys_of(0), {"swa": True})
    false_hit = canary.match(keys_of(0))
    assert (false_hit.verdict.outcome, false_hit.sample) == (hk.Outcome.FALSE_HIT, None)
    told = canary.metrics()
    assert (told.hits, told.sampled) == (0, 0)


def test_what_an_engine_asks_deep_inside_is_drawn_too() -> None:
    canary = Canary(stored(2), 1.0, TOLERANCE)
    with canary.asking("r1") as asked:
        for prompt in (0, 1):
            verdict = canary.cache.match(keys_of(prompt))
            assert verdict.lease is not None
            verdict.lease.release()
    assert [sample.tokens for sample in asked.samples] == [TOKENS, TOKENS]
    verdict = canary.cache.match(keys_of(0))
    assert verdict.lease is not None
    verdict.lease.release()
    assert len(asked.samples) == 2
    for sample in asked.samples:
        sample.settle(RIGHT, RIGHT)
    assert canary.metrics().sampled == 2


def test_a_cache_that_nobody_watches_is_as_it_was() -> None:
    cache = stored()
    verdict = cache.match(keys_of(0))
    assert type(verdict) is hk.Verdict and verdict.lease is not None
    verdict.lease.release()
    canary = Canary(cache, 0.0, TOLERANCE)
    watched = cache.match(keys_of(0))
    assert isinstance(watched, SteeredVerdict) and watched.lease is not None
    assert watched.boundaries.tolist() == verdict.boundaries.tolist()
    assert (watched.plan, watched.lost, watched.remedy) == (verdict.plan, verdict.lost, verdict.remedy)
    watched.lease.release()
    canary.trip()
    canary.close()
    canary.close()
    again = cache.match(keys_of(0))
    assert type(again) is hk.Verdict and again.lease is not None
    again.lease.release()
    with pytest.raises(hk.Closed):
        canary.match(keys_of(0))
    Canary(cache, 0.0, TOLERANCE).close()


# -- shadow ----------------------------------------------------------------------------------------


def test_in_shadow_hits_are_decided_and_not_used() -> None:
    canary = Canary(stored(), 0.0, TOLERANCE, shadow=True)
    verdict = canary.cache.match(keys_of(0))
    assert (verdict.outcome, verdict.lease, verdict.matched_tokens) == (hk.Outcome.FALSE_HIT, None, TOKENS)
    assert verdict.why is not None and "in shadow" in verdict.why.detail
    told, counts = canary.metrics(), canary.cache.metrics()
    assert (told.shadow_hits, told.shadow_hits_tokens, told.withheld) == (1, TOKENS, {})
    assert (counts.withdrawn, counts.false_hits_total) == (1, 0), "nothing was wrong with it"
    canary.shadow = False
    canary.cache.match(keys_of(0)).lease.release()  # type: ignore[union-attr]
    assert canary.match(keys_of(0), shadow=True).verdict.lease is None


def test_a_shadow_sample_is_compared_and_not_used() -> None:
    canary = Canary(stored(), 1.0, TOLERANCE, shadow=True, breaker=QUICK, evict=False)
    sample = drawn(canary)
    assert (sample.kind, sample.use_reused) == (SampleKind.SHADOW, False)
    sample.settle(RIGHT, RIGHT)
    settled(canary, wrong=1.0)
    assert settled(canary, wrong=1.0).tripped == (Scope("model", "tiny"),)
    assert canary.metrics().shadow_hits == 3


# -- what becomes of them --------------------------------------------------------------------------


def test_counters_of_both_ends() -> None:
    canary = Canary(stored(), 1.0, TOLERANCE, breaker=None, evict=False)
    for first, last in ((0, 0), (5, 0), (0, 1), (5, 1), (0.01, 0.01)):
        drawn(canary).settle(ends(first, last), RIGHT)
    pending, dropped = drawn(canary), drawn(canary)
    told = canary.metrics()
    assert (told.sampled, told.compared, told.pending, told.mismatches) == (7, 5, 2, 3)
    assert (told.mismatches_by_end, told.other_token) == ({"first": 2, "last": 2}, {"first": 2, "last": 0})
    assert told.mismatch_rate == 0.6
    assert told.interval().low <= 0.6 <= told.interval().high
    assert told.false_alarm_bound == 1.0
    del dropped
    pending.settle(RIGHT, RIGHT)
    told = canary.metrics()
    assert (told.sampled, told.compared, told.abandoned, told.pending) == (7, 6, 1, 0)
    for again in (pending.abandon, lambda: pending.settle(RIGHT, RIGHT)):
        with pytest.raises(hk.ArgumentError, match="settled or abandoned"):
            again()


def test_a_prompt_that_differs_is_retired() -> None:
    canary = Canary(stored(2), 1.0, TOLERANCE, breaker=None)
    assert not settled(canary, prompt=0).mismatch
    settled(canary, wrong=1.0, prompt=1)
    assert canary.metrics().evicted_pages == 10
    assert canary.match(keys_of(1)).verdict.outcome is hk.Outcome.MISS
    held = canary.match(keys_of(0))
    assert held.sample is not None and held.verdict.lease is not None
    held.sample.settle(ends(last=1.0), RIGHT)  # while its pages are read
    assert held.verdict.lease.page_ids("kv").min() >= 0
    held.verdict.lease.release()


def test_what_an_answer_raises_leaves_the_sample_open() -> None:
    canary = Canary(stored(), 1.0, TOLERANCE, breaker=None)
    sample = drawn(canary)

    def answer(replaced: frozenset[str]) -> Any:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        sample.settle(ends(last=1.0), RIGHT, answer=answer)
    assert canary.metrics().pending == 1
    assert sample.settle(ends(last=1.0), RIGHT).mismatch


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("cache", {"cache": None}),
        ("rate", {"rate": 1.5}),
        ("rate", {"rate": "1"}),
        ("compare", {"compare": lambda one, other: True}),
        ("breaker", {"breaker": 2}),
        ("seed", {"seed": 0.5}),
        ("shadow", {"shadow": 1}),
        ("evict", {"evict": None}),
        ("clock", {"clock": 0.0}),
    ],
)
def test_what_a_canary_refuses(field: str, change: dict[str, Any]) -> None:
    cache = stored()
    arguments = {"cache": cache, "rate": 0.1, "compare": Bitwise(), **change}
    with pytest.raises(hk.ArgumentError) as caught:
        Canary(**arguments)
    assert caught.value.field == field
    Canary(cache, 0.1, Bitwise()).close()  # nobody watches it for that


def test_what_its_calls_refuse() -> None:
    canary = Canary(stored(), 1.0, TOLERANCE)
    sample = drawn(canary)
    for field, call in (
        ("cache", lambda: Canary(canary.cache, 1.0, TOLERANCE)),
        ("request", lambda: canary.match(keys_of(0), request=1.5)),  # type: ignore[arg-type]
        ("request", lambda: canary.match(keys_of(0), request="\ud800")),
        ("shadow", lambda: canary.match(keys_of(0), shadow=1)),  # type: ignore[arg-type]
        ("scope", lambda: canary.trip(Scope("group", "none"))),
        ("scope", lambda: canary.reset("model")),  # type: ignore[arg-type]
        ("why", lambda: canary.trip(why=None)),  # type: ignore[arg-type]
        ("differing", lambda: sample.settle(RIGHT, RIGHT, differing=["tail"])),
        ("reused", lambda: sample.settle(None, RIGHT)),  # type: ignore[arg-type]
    ):
        with pytest.raises(hk.ArgumentError) as caught:
            call()
        assert caught.value.field == field
    assert not sample.settle(RIGHT, RIGHT).mismatch


def test_many_threads_at_once() -> None:
    clock = Clock()
    canary = Canary(stored(4), 0.5, TOLERANCE, breaker=QUICK, evict=False, clock=clock)

    def run(seed: int) -> None:
        dice = np.random.default_rng(seed)
        for number in range(150):
            hit = canary.match(keys_of(int(dice.integers(5))), request=f"{seed}/{number}")
            if hit.verdict.lease is not None:
                hit.verdict.lease.release()
            if hit.sample is not None and dice.random() < 0.9:
                hit.sample.settle(ends(last=float(dice.random() < 0.1)), RIGHT)
            clock.now += 0.5
            if number % 40 == 0:
                canary.reset()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told, counts = canary.metrics(), canary.cache.metrics()
    assert told.sampled == told.compared + told.abandoned and told.pending == 0
    assert told.mismatches == sum(told.blamed.values()) == told.mismatches_by_end["last"]
    assert told.trips["model:tiny"] >= 1
    assert sum(told.withheld.values()) == counts.false_hits_total
    assert counts.pending == 0
    assert told.hits == counts.effective_hits + counts.false_hits_total


# -- content ---------------------------------------------------------------------------------------


def test_content_tells_the_group() -> None:
    cache, pools = stored_in_pools(2)
    content = StoredContent(cache, pools)
    for prompt in (0, 1):
        with cache.match(keys_of(prompt)).lease as lease:  # type: ignore[union-attr]
            assert content.note(lease) == 5
    with cache.match(keys_of(0)).lease as lease:  # type: ignore[union-attr]
        assert content.differing(lease) == ()
        held = lease.page_ids("kv")
        gathered = np.zeros((4, 64), np.uint8)
        hk.ops.gather(pools["kv"], held, gathered)
        assert content.differing(lease, {"kv": gathered}) == ()
        assert content.differing(lease, {"kv": gathered[::-1].copy()}) == ("kv",), "right pages, wrong order"
        pools["swa"][lease.page_ids("swa").max(), 7] ^= 1
        assert content.differing(lease) == ("swa",)
        assert content.differing(lease, {"kv": gathered}) == ("swa",)
        for field, call in (
            ("gathered['kv']", lambda: content.differing(lease, {"kv": gathered[:3]})),
            ("group", lambda: content.differing(lease, {"none": gathered})),
        ):
            with pytest.raises(hk.ArgumentError) as caught:
                call()
            assert caught.value.field == field
    small = StoredContent(cache, pools, most_pages=3)
    with cache.match(keys_of(1)).lease as lease:  # type: ignore[union-attr]
        small.note(lease)
        assert len(small) == 3
        pools["kv"][lease.page_ids("kv")[0]] ^= 1  # forgotten: not compared
        assert small.differing(lease) == ()
        assert content.differing(lease) == ("kv",)
    for field, given in (("cache", (None, pools)), ("pools", (cache, {"kv": pools["kv"]})), ("pools", (cache, None))):
        with pytest.raises(hk.ArgumentError) as caught:
            StoredContent(*given)  # type: ignore[arg-type]
        assert caught.value.field == field
    with pytest.raises(hk.ArgumentError, match="most_pages"):
        StoredContent(cache, pools, most_pages=0)


# -- a tier ----------------------------------------------------------------------------------------


def test_a_tier_goes_off_alone() -> None:
    with hk.MemoryTier(1 << 20) as tier:
        cache = stored(3, tier=tier)
        scope = Scope("tier", tier.name)
        for prompt in (0, 1):
            assert cache.offload(keys_of(prompt, TOKENS)).result(10).ok
        cache.evict(keys_of(1))
        canary = Canary(cache, 1.0, TOLERANCE, breaker=QUICK, evict=False)
        lost = cache.match(keys_of(1))
        assert (lost.outcome, lost.remedy) == (hk.Outcome.FALSE_HIT, hk.Remedy.RESTORE)
        assert [drawn(canary, prompt).loaded for prompt in (0, 2)] == [True, False]
        assert settled(canary, wrong=1.0, prompt=0, differing=("kv",)).blamed == (scope,)
        assert settled(canary, wrong=1.0, prompt=2, loaded=True).tripped == (scope,), "only the engine knew"
        assert (lost.remedy, lost.plan.loads) == (hk.Remedy.RECOMPUTE, ())
        assert cache.restorable(keys_of(1)) is None and cache.prefetch(keys_of(1)) is None
        withheld = cache.match(keys_of(0))
        assert withheld.why is not None and withheld.why.kind is hk.StateKind.DISK
        assert drawn(canary, 2).kind is SampleKind.CANARY, "what the tier never had goes on"
        canary.reset(scope)
        assert lost.remedy is hk.Remedy.RESTORE
        assert cache.restorable(keys_of(1)) is not None
        canary.close()
        assert lost.remedy is hk.Remedy.RESTORE
        cache.close()


def test_a_sample_says_what_it_is() -> None:
    canary = Canary(stored(), 1.0, TOLERANCE)
    sample = drawn(canary)
    assert repr(sample) == "Sample(canary, tokens=64)"
    sample.abandon()
    assert repr(sample) == "Sample(canary, tokens=64, settled)"
    assert isinstance(sample, Sample) and canary.rate == 1.0
