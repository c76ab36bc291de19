# SPDX-License-Identifier: Apache-2.0
"""A rollout goes on by clean samples, back by mismatches, and stands after a restart where it stood before."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from canary_support import RIGHT, TOKENS, TOLERANCE, drawn, ends, keys_of, stored
from hybridkv.canary import Canary, SampleKind
from hybridkv.rollout import CacheManager, Decision, Rollout, RolloutPlan, RolloutState, SideBySide
from hybridkv.rollout.driver import counted, moved, rolled_back
from hybridkv.rollout.state import from_json, to_json

PLAN = RolloutPlan(shares=(0.25, 0.5), samples=14, rate_bound=0.2, rollback_mismatches=2, window_samples=10)


def after(outcomes: str, state: RolloutState | None = None, plan: RolloutPlan = PLAN) -> RolloutState:
    """Return the state after clean (.) and mismatched (x) comparisons."""
    state = RolloutState() if state is None else state
    for outcome in outcomes:
        state = moved(plan, counted(plan, state, mismatch=outcome == "x"))
    return state


# -- on, and back ----------------------------------------------------------------------------------


def test_a_stage_takes_so_many_clean_samples() -> None:
    assert after("." * 13).stage == 0
    state = after("." * 14)
    assert (state.stage, state.samples, state.epoch, state.promotions) == (1, 0, 1, 1)
    assert [after("." * 14 * n).stage for n in range(5)] == [0, 1, 2, 3, 3]
    full = after("." * 50)
    assert PLAN.stages[full.stage] == 1.0 and full.samples == 8


def test_enough_samples_are_not_enough_with_a_mismatch() -> None:
    """One of 14 does not exclude a rate of 20 %; one of 22 does."""
    assert after("x" + "." * 20).stage == 0
    assert after("x" + "." * 20).upper_bound(PLAN) > PLAN.rate_bound
    assert after("x" + "." * 21).stage == 1


def test_mismatches_within_a_window_go_back_to_shadow() -> None:
    full = after("." * 42)
    back = after("x.x", full)
    assert (back.stage, back.rollbacks, back.strikes, back.samples, back.recent) == (0, 1, 1, 0, ())
    assert after("x.........x", full).stage == 3, "ten apart, they are no sign"
    assert after("xx").rollbacks == 1, "in shadow too"


def test_each_rollback_makes_stages_longer_and_too_many_hold_it() -> None:
    back = after("xx", after("." * 42))
    assert after("." * 14, back).stage == 0
    assert after("." * 28, back).stage == 1
    held = after("xx", after("xx", back))
    assert (held.strikes, held.held(PLAN)) == (3, True)
    assert after("." * 500, held).stage == 0


def test_a_plan_that_could_never_go_on_is_refused() -> None:
    assert RolloutPlan(samples=299).samples == 299
    for field, change in (
        ("plan.samples", {"samples": 298}),
        ("plan.samples", {"samples": 0}),
        ("plan.shares", {"shares": (0.5, 0.1)}),
        ("plan.shares[0]", {"shares": (0.0,)}),
        ("plan.shares[1]", {"shares": (0.1, 1.0)}),
        ("plan.shares", {"shares": "ab"}),
        ("plan.shares", {"shares": 0.5}),
        ("plan.rate_bound", {"rate_bound": 1}),
        ("plan.rate_bound", {"rate_bound": 1e-12}),
        ("plan.confidence", {"confidence": 0}),
        ("plan.rollback_mismatches", {"rollback_mismatches": 501}),
        ("plan.most_rollbacks", {"most_rollbacks": -1}),
    ):
        with pytest.raises(hk.ArgumentError) as caught:
            RolloutPlan(**change)  # type: ignore[arg-type]
        assert caught.value.field == field
    assert [PLAN.name(stage) for stage in range(4)] == ["shadow", "canary 25%", "canary 50%", "full"]
    assert RolloutPlan(shares=()).stages == (0.0, 1.0)


# -- over a cache ----------------------------------------------------------------------------------


def serve(rollout: Rollout, request: str, wrong: float = 0.0) -> bool:
    """Serve a request whose prompt is known, and note what its comparison gives; say whether the stage changed."""
    hit = rollout.match(keys_of(0), request=request)
    if hit.verdict.lease is not None:
        hit.verdict.lease.release()
    return hit.sample is not None and rollout.note(hit.sample, hit.sample.settle(ends(first=wrong), RIGHT))


def test_requests_reuse_by_their_share() -> None:
    canary = Canary(stored(), 0.0, TOLERANCE)
    rollout = Rollout(canary, PLAN, seed=3)
    names = [f"r{n}" for n in range(400)]
    reusing = []
    for stage in range(4):
        rollout._state = RolloutState(stage=stage, seed=3)
        used = set()
        for name in names:
            verdict = rollout.match(keys_of(0), request=name).verdict
            if verdict.lease is not None:
                verdict.lease.release()
                used.add(name)
        assert used == {name for name in names if rollout.reuses(name)}
        reusing.append(used)
    assert [len(used) for used in reusing] == [0, pytest.approx(100, abs=30), pytest.approx(200, abs=40), 400]
    assert reusing[1] < reusing[2] < reusing[3], "who reuses goes on to do so"
    assert canary.metrics().shadow_hits == sum(400 - len(used) for used in reusing)


def test_it_goes_on_and_back_by_what_is_compared() -> None:
    rollout = Rollout(Canary(stored(), 1.0, TOLERANCE, breaker=None, evict=False), PLAN)
    stages = []
    for number in range(43):
        serve(rollout, f"r{number}")
        stages.append(rollout.metrics().stage)
    assert [stages.index(name) for name in ("shadow", "canary 25%", "canary 50%", "full")] == [0, 13, 27, 41]
    assert not serve(rollout, "a", wrong=1.0)
    assert serve(rollout, "b", wrong=1.0)
    told = rollout.metrics()
    assert (told.stage, told.share, told.rollbacks, told.wanted_samples, told.held) == ("shadow", 0.0, 1, 28, False)
    assert (told.samples, told.upper_bound, told.promotions) == (0, 1.0, 3)
    rollout.rollback()
    rollout.rollback()
    assert rollout.metrics().held
    rollout.reset()
    assert (rollout.metrics().held, rollout.metrics().wanted_samples, rollout.metrics().rollbacks) == (False, 14, 3)


def test_a_sample_of_a_stage_that_is_over_counts_no_more() -> None:
    rollout = Rollout(Canary(stored(), 1.0, TOLERANCE, breaker=None, evict=False), PLAN)
    late = [rollout.match(keys_of(0), request=f"late {n}") for n in range(3)]
    for number in range(14):
        serve(rollout, f"r{number}")
    for hit in late:
        assert hit.sample is not None and hit.verdict.lease is not None
        assert hit.sample.kind is SampleKind.SHADOW
        hit.verdict.lease.release()
        assert not rollout.note(hit.sample, hit.sample.settle(ends(first=1.0), RIGHT))
    assert (rollout.state.stage, rollout.state.mismatches) == (1, 0)


def test_what_a_rollout_refuses() -> None:
    canary = Canary(stored(), 1.0, TOLERANCE)
    rollout = Rollout(canary, PLAN)
    foreign = drawn(canary)
    outcome = foreign.settle(RIGHT, RIGHT)
    with rollout.asking("r") as asked:
        canary.cache.match(keys_of(0)).lease.release()  # type: ignore[union-attr]
    for field, call in (
        ("canary", lambda: Rollout(None)),  # type: ignore[arg-type]
        ("plan", lambda: Rollout(canary, 1)),  # type: ignore[arg-type]
        ("seed", lambda: Rollout(canary, seed="1")),  # type: ignore[arg-type]
        ("request", lambda: rollout.reuses(None)),  # type: ignore[arg-type]
        ("request", lambda: rollout.match(keys_of(0), request=0.5)),  # type: ignore[arg-type]
        ("sample", lambda: rollout.note(foreign, outcome)),
        ("sample", lambda: rollout.note(None, outcome)),  # type: ignore[arg-type]
        ("outcome", lambda: rollout.note(asked.samples[0], True)),  # type: ignore[arg-type]
    ):
        with pytest.raises(hk.ArgumentError) as caught:
            call()
        assert caught.value.field == field
    asked.samples[0].abandon()


# -- as JSON ---------------------------------------------------------------------------------------


def document(**changes: Any) -> dict[str, Any]:
    """Return a document of a rollout with some fields of its state or plan changed."""
    state = after("..x", after("." * 14))
    made: dict[str, Any] = json.loads(to_json(PLAN, state))
    for name, value in changes.items():
        made["plan" if name in made["plan"] else "state"][name] = value
    return made


def test_a_restart_goes_on_where_it_stood() -> None:
    canary = Canary(stored(), 1.0, TOLERANCE, breaker=None, evict=False)
    rollout = Rollout(canary, PLAN, seed=9)
    for number in range(16):
        serve(rollout, f"r{number}", wrong=float(number == 15))
    again = Rollout.from_json(canary, rollout.to_json())
    assert (again.plan, again.state) == (rollout.plan, rollout.state)
    assert again.state.recent == (2,) and again.state.seed == 9
    assert [again.reuses(f"r{n}") for n in range(50)] == [rollout.reuses(f"r{n}") for n in range(50)]
    assert Rollout.from_json(canary, rollout.to_json().encode()).to_json() == rollout.to_json()
    assert serve(again, "x", wrong=1.0), "the mismatch of before the restart counts"


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("rollout", "{"),
        ("rollout", "[]"),
        ("rollout", b"\xff"),
        ("rollout", 3),
        ("rollout", '{"schema": NaN}'),
        ("rollout", json.dumps(document())[:-1] + ', "schema": 1}'),
        ("rollout", "[" * 100_000),
        ("rollout", '{"schema": ' + "1" * 5000 + "}"),
        ("rollout", json.dumps({**document(), "more": 1})),
        ("rollout.plan", json.dumps({"schema": 1, "state": {}})),
        ("rollout.schema", json.dumps({**document(), "schema": 2})),
        ("rollout.schema", json.dumps({**document(), "schema": True})),
        ("rollout.plan", json.dumps({**document(), "plan": None})),
        ("rollout.state", json.dumps({**document(), "state": {**document()["state"], "x": 1}})),
        ("rollout.state.epoch", json.dumps({**document(), "state": {"stage": 0}})),
        ("plan.shares", json.dumps(document(shares=0.5))),
        ("plan.shares[0]", json.dumps(document(shares=["a"]))),
        ("plan.samples", json.dumps(document(samples=1.5))),
        ("state.stage", json.dumps(document(stage=4))),
        ("state.stage", json.dumps(document(stage=-1))),
        ("state.stage", json.dumps(document(stage=True))),
        ("state.epoch", json.dumps(document(epoch=10**13))),
        ("state.mismatches", json.dumps(document(mismatches=4))),
        ("state.recent", json.dumps(document(recent=[2, 1]))),
        ("state.recent", json.dumps(document(recent=[1, 2]))),
        ("state.recent", json.dumps(document(recent=[4]))),
        ("state.recent", json.dumps(document(recent=[0]))),
        ("state.recent", json.dumps(document(recent=3))),
        ("state.strikes", json.dumps(document(strikes=1))),
        ("state.stage", json.dumps(document(strikes=3, rollbacks=3))),
        ("state.seed", json.dumps(document(seed="1"))),
    ],
)
def test_a_document_that_is_none_is_refused(field: str, text: Any) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        from_json(text)
    assert caught.value.field.startswith(field)


def test_a_sample_count_of_the_document_is_that_of_its_state() -> None:
    plan, state = from_json(json.dumps(document()))
    assert (plan, state) == (PLAN, after("..x", after("." * 14)))
    assert from_json(to_json(plan, rolled_back(state)))[1] == rolled_back(state)


# -- side by side ----------------------------------------------------------------------------------

HISTORY = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, block_tokens=16)
WINDOW = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(17), page_bytes=64, block_tokens=16)


class EndsOnly(CacheManager):
    """Keeps windows at prompt ends alone, as a manager does that lets them slide out."""

    def store(self, tokens: Any) -> None:
        keys = self.keys(tokens)
        whole = keys.tokens // 16
        self.cache.insert(keys[:whole], {"kv": True, "swa": [whole - 1]})


def managers() -> tuple[CacheManager, CacheManager]:
    old = CacheManager(hk.HybridCache(hk.CacheSpec(16, [HISTORY]), blocks=256))
    return old, EndsOnly(hk.HybridCache(hk.CacheSpec(16, [HISTORY, WINDOW]), blocks=256))


def prompt(number: int, tokens: int) -> Any:
    return np.arange(tokens) + 1000 * number


def test_the_smallest_requests_that_show_a_disagreement() -> None:
    side = SideBySide(*managers(), fresh=managers)
    for number in range(20):
        side.store(prompt(number, 96))
    assert side.observe(prompt(3, 97)) is None, "at a prompt's end both resume"
    assert side.observe(prompt(50, 40)) is None, "nobody knows it"
    parted = np.concatenate([prompt(7, 64), prompt(90, 30)])
    found = side.observe(parted)
    assert found is not None
    assert (found.number, found.kind) == (2, "less")
    assert found.old == Decision("REUSABLE", 64, 64)
    assert (found.new.outcome, found.new.matched_tokens) == ("FALSE_HIT", 64)
    assert found.new.why == "GROUPS/missing in swa"
    small = found.smallest
    assert small.from_fresh
    assert [len(stored) for stored in small.stored] == [32], "one prompt of two blocks, whose first window slid out"
    assert len(small.prompt) == 17
    assert (small.old.usable_tokens, small.new.usable_tokens) == (16, 0)
    old, new = managers()
    for stored_prompt in small.stored:
        old.store(stored_prompt)
        new.store(stored_prompt)
    assert (old.decide(small.prompt), new.decide(small.prompt)) == (small.old, small.new)
    told = side.report()
    assert (told.requests, told.agreed, told.disagreed) == (3, 2, {"less": 1})
    assert (told.old_tokens, told.new_tokens) == (96 + 64, 96)
    assert "request 2: less; 17 tokens after 32 stored show it: old REUSABLE at 16, new FALSE_HIT" in told.as_text()
    assert json.loads(json.dumps(told.as_json()))["kept"][0]["smallest"]["prompt"] == list(range(7000, 7017))


def test_without_fresh_managers_the_prompt_alone_is_shortened() -> None:
    side = SideBySide(*managers())
    side.store(prompt(0, 96))
    found = side.observe(prompt(0, 90))
    assert found is not None and not found.smallest.from_fresh
    assert (len(found.smallest.prompt), found.smallest.stored) == (17, ())
    for number in range(20):
        side.observe(prompt(0, 80 + number % 10))
    assert len(side.report().kept) == 16


def test_a_disagreement_that_more_state_caused_is_shown_against_that_state() -> None:
    """What an eviction did to one side cannot be made anew by storing prompts."""
    old, new = (CacheManager(hk.HybridCache(hk.CacheSpec(16, [HISTORY]), blocks=64)) for _ in range(2))
    side = SideBySide(old, new, fresh=lambda: (_plain(), _plain()))
    side.store(prompt(0, 96))
    old.cache.evict(old.keys(prompt(0, 96)))
    found = side.observe(prompt(0, 97))
    assert found is not None and (found.kind, found.smallest.from_fresh) == ("more", False)
    assert len(found.smallest.prompt) == 17


def _plain() -> CacheManager:
    return CacheManager(hk.HybridCache(hk.CacheSpec(16, [HISTORY]), blocks=64))


def test_outcomes_alone_can_disagree() -> None:
    class Miss(CacheManager):
        def decide(self, tokens: Any) -> Decision:
            return Decision("MISS", 0)

    old, new = managers()
    side = SideBySide(Miss(old.cache), new)
    side.store(prompt(0, 96))
    found = side.observe(prompt(0, 40))
    assert found is not None and found.kind == "outcome"


def test_what_side_by_side_refuses() -> None:
    old, new = managers()
    side = SideBySide(old, new)
    for field, call in (
        ("old", lambda: SideBySide(None, new)),  # type: ignore[arg-type]
        ("new", lambda: SideBySide(old, old.cache)),  # type: ignore[arg-type]
        ("fresh", lambda: SideBySide(old, new, fresh=3)),  # type: ignore[arg-type]
        ("most_asks", lambda: SideBySide(old, new, most_asks=0)),
        ("history", lambda: SideBySide(old, new, history=-1)),
        ("tokens", lambda: side.observe("text")),
        ("tokens", lambda: side.observe([0.5])),
        ("tokens", lambda: side.observe([[1], [2, 3]])),
        ("tokens", lambda: side.store(None)),
        ("tokens", lambda: side.observe([-1])),
        ("cache", lambda: CacheManager(None)),  # type: ignore[arg-type]
    ):
        with pytest.raises(hk.ArgumentError) as caught:
            call()
        assert caught.value.field == field, field


def test_a_cache_whose_engine_stores_by_itself_is_only_asked() -> None:
    quiet = CacheManager(stored(), stores=False)
    quiet.store(prompt(5, 96))
    assert quiet.decide(prompt(5, 97)).outcome == "MISS"
    assert quiet.decide(prompt(0, TOKENS + 1)).usable_tokens == TOKENS
    assert quiet.cache.metrics().pending == 0
