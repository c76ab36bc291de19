# SPDX-License-Identifier: Apache-2.0
"""When reuse goes off, for what, and what it takes to come on again."""

from __future__ import annotations

import pytest

import hybridkv as hk
from canary_support import QUICK, RIGHT, TOKENS, TOLERANCE, Clock, drawn, ends, keys_of, settled, stored
from hybridkv.canary import BreakerState, Canary, SampleKind, Scope
from hybridkv.canary.breaker import Breaker

SWA, MODEL = Scope("group", "swa"), Scope("model", "tiny")
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def watched(**settings: object) -> tuple[Canary, Clock]:
    """Return a canary that draws every hit of a cache with one prompt, and its clock."""
    clock = Clock()
    settings = {"breaker": QUICK, "evict": False, "clock": clock, **settings}
    return Canary(stored(), 1.0, TOLERANCE, **settings), clock  # type: ignore[arg-type]


def refused(canary: Canary, tokens: int = TOKENS + 1) -> hk.Verdict:
    """Match as somebody does who knows nothing of the canary."""
    return canary.cache.match(keys_of(0, tokens))


# -- one breaker -----------------------------------------------------------------------------------


def noted(breaker: Breaker, outcomes: str, now_s: float = 0.0) -> bool:
    """Note clean (.) and mismatched (x) comparisons; say whether the last one tripped it."""
    tripped = False
    for outcome in outcomes:
        tripped = breaker.note(breaker.era, now_s, mismatch=outcome == "x")
    return tripped


@pytest.mark.parametrize(
    ("outcomes", "trips"),
    [("x", False), ("xx", True), ("x........x", True), ("x.........x", False), ("x.........x.x", True)],
)
def test_it_takes_so_many_within_a_window(outcomes: str, trips: bool) -> None:
    assert noted(Breaker(QUICK), outcomes) is trips


def test_open_half_open_closed() -> None:
    breaker = Breaker(QUICK)
    noted(breaker, "xx", now_s=100)
    assert [breaker.state(t) for t in (100, 104.9, 105)] == [OPEN, OPEN, HALF_OPEN]
    assert not breaker.wants_trial(104)
    for _ in range(QUICK.trial_samples):
        assert breaker.wants_trial(105)
        breaker.begin_trial()
    assert not breaker.wants_trial(105), "no more at a time than are wanted"
    era = breaker.era
    for number in range(QUICK.trial_samples):
        assert breaker.state(106) is HALF_OPEN, number
        breaker.end_trial(era, 106, mismatch=False)
    assert breaker.state(106) is CLOSED
    assert not noted(breaker, "x"), "its window began anew"
    assert noted(breaker, "x", now_s=200)
    assert breaker.state(205) is HALF_OPEN, "and its cooldown too"


def test_a_trial_that_fails_doubles_the_cooldown() -> None:
    breaker = Breaker(QUICK)
    noted(breaker, "xx", now_s=0)
    now, waits = 0.0, []
    for _ in range(5):
        wait = next(w for w in range(1, 100) if breaker.state(now + w) is HALF_OPEN)
        waits.append(wait)
        now += wait
        breaker.begin_trial()
        breaker.end_trial(breaker.era, now, mismatch=True)
    assert waits == [5, 10, 20, 40, 40]
    assert breaker.trips == 1


def test_what_was_drawn_before_moves_nothing() -> None:
    breaker = Breaker(QUICK)
    before = breaker.era
    noted(breaker, "xx", now_s=0)
    breaker.begin_trial()
    trial = breaker.era
    for _ in range(5):
        breaker.note(before, 6, mismatch=False)
        breaker.end_trial(before, 6, mismatch=False)
    assert breaker.state(6) is HALF_OPEN
    breaker.withdraw_trial(trial)
    breaker.reset()
    assert not breaker.note(before, 7, mismatch=True)
    assert not breaker.note(before, 7, mismatch=True)
    breaker.end_trial(trial, 7, mismatch=True)
    assert breaker.state(7) is CLOSED


# -- over a cache ----------------------------------------------------------------------------------


def test_mismatches_turn_reuse_off_and_clean_trials_on_again() -> None:
    canary, clock = watched()
    assert settled(canary, wrong=1.0).tripped == ()
    assert settled(canary, wrong=1.0).tripped == (MODEL,)
    verdict = refused(canary)
    assert (verdict.outcome, verdict.lease, verdict.usable_tokens) == (hk.Outcome.FALSE_HIT, None, 0)
    assert (verdict.matched_tokens, verdict.remedy, verdict.boundaries.size) == (TOKENS, hk.Remedy.RECOMPUTE, 0)
    assert verdict.why is not None and verdict.lost == {hk.Check.INTEGRITY: TOKENS}
    assert (verdict.why.check, verdict.why.code) == (hk.Check.INTEGRITY, "withheld")
    assert "model:tiny is open (64 tokens reused: logits change by 0 first, 1 last)" in verdict.why.detail
    assert canary.match(keys_of(0)).sample is None, "open: no trial yet"
    clock.now = 5
    assert canary.metrics().states["model:tiny"] is HALF_OPEN
    assert refused(canary).outcome is hk.Outcome.FALSE_HIT, "trials are for whoever compares"
    for _ in range(QUICK.trial_samples):
        sample = drawn(canary)
        assert (sample.kind, sample.use_reused) == (SampleKind.TRIAL, False)
        assert not sample.settle(RIGHT, RIGHT).mismatch
    assert canary.metrics().states["model:tiny"] is CLOSED
    sample = drawn(canary)
    assert (sample.kind, sample.use_reused) == (SampleKind.CANARY, True)
    told = canary.metrics()
    assert (told.trips["model:tiny"], told.withheld, told.trials) == (1, {"model:tiny": 3}, QUICK.trial_samples)
    assert told.withheld_tokens == {"model:tiny": 3 * TOKENS}
    counts = canary.cache.metrics()
    assert counts.false_hits[hk.Check.INTEGRITY][hk.StateKind.COMPRESSED] == 3
    assert counts.lookups == counts.misses + counts.false_hits_total + counts.effective_hits


def test_reset_by_hand_needs_no_trial() -> None:
    canary, _ = watched()
    canary.trip(SWA, why="a new kernel is suspected")
    verdict = refused(canary)
    assert verdict.why is not None and verdict.why.kind is hk.StateKind.WINDOW
    assert verdict.why.group == "swa" and "a new kernel is suspected" in verdict.why.detail
    assert canary.reset(MODEL) == 0
    assert refused(canary).outcome is hk.Outcome.FALSE_HIT
    assert canary.reset(SWA) == 1
    assert drawn(canary).kind is SampleKind.CANARY
    canary.trip()
    canary.trip(SWA)
    assert canary.reset() == 2
    assert canary.metrics().resets == 3


def test_a_group_that_a_hit_does_not_read_is_no_reason() -> None:
    canary, _ = watched()
    canary.trip(Scope("group", "tail"))
    assert drawn(canary).groups == ("kv", "swa"), "64 is a multiple of 32: no tail is read there"
    verdict = canary.cache.match(keys_of(0, 49))
    assert verdict.usable_tokens == 0
    assert verdict.why is not None and verdict.why.group == "tail"


def test_mismatches_are_laid_to_the_least_that_can_be_turned_off() -> None:
    canary, _ = watched()
    told = settled(canary, wrong=1.0, differing=("swa",))
    assert (told.blamed, told.attribution.how) == ((SWA,), "content")
    asked = []

    def answer(replaced: frozenset[str]) -> object:
        asked.append(replaced)
        return ends(last=0.0 if "swa" in replaced else 1.0)

    told = settled(canary, wrong=1.0, answer=answer)
    assert (told.blamed, told.attribution.how, told.tripped) == ((SWA,), "recomputed", (SWA,))
    assert len(asked) <= 4
    assert canary.metrics().states["model:tiny"] is CLOSED
    assert canary.metrics().blamed == {"group:swa": 2}


def test_two_groups_at_fault_and_none() -> None:
    canary, _ = watched(breaker=None)

    def both(replaced: frozenset[str]) -> object:
        return ends(last=0.0 if {"kv", "swa"} <= replaced else 1.0)

    assert settled(canary, wrong=1.0, answer=both).attribution.groups == ("kv", "swa")
    never = settled(canary, wrong=1.0, answer=lambda replaced: ends(last=1.0))
    gone = settled(canary, wrong=1.0, answer=lambda replaced: RIGHT)
    assert [told.attribution.how for told in (never, gone)] == ["unknown", "unknown"]
    assert never.blamed == gone.blamed == (MODEL,)
    assert not any(canary.metrics().trips.values()), "without a policy nothing trips by itself"
    canary.trip()
    assert refused(canary).outcome is hk.Outcome.FALSE_HIT, "by hand it does"


def test_a_trial_of_one_scope_that_ends_wrong_for_another_reason_closes_nothing() -> None:
    canary, clock = watched()
    canary.trip(SWA)
    clock.now = 5
    drawn(canary).settle(ends(last=1.0), RIGHT)
    assert canary.metrics().states["group:swa"] is OPEN


def test_an_abandoned_trial_gives_its_place_back() -> None:
    canary, clock = watched()
    canary.trip()
    clock.now = 5
    samples = [drawn(canary) for _ in range(QUICK.trial_samples)]
    assert canary.match(keys_of(0)).sample is None
    samples.pop().abandon()
    del samples[0]
    assert canary.metrics().abandoned == 2
    again = [drawn(canary), drawn(canary)]
    for sample in (*samples, *again):
        sample.settle(RIGHT, RIGHT)
    assert canary.metrics().states["model:tiny"] is CLOSED
