# SPDX-License-Identifier: Apache-2.0
"""A cache with a cost model: what of a tier it names to be restored, and when it says that computing is quicker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridkv as hk
from hybridkv import _core
from hybridkv.restore_choice import choose_restore
from tier_support import DictTier
from transfer_world import UNIT, World, spec

BLOCK = 2 * (96 + 32)  # bytes of history, kv and idx
STATES = 2 * (2 * 96 + 64)  # of a boundary: two blocks of window, one state


def model(bandwidth: float | None = None, rate: float | None = 1000.0, tier: str = "memory") -> hk.CostModel:
    tiers = {} if bandwidth is None else {tier: hk.Bandwidth(bandwidth)}
    return hk.CostModel(tiers, tokens_per_second=rate)


@pytest.fixture
def tier() -> Iterator[hk.MemoryTier]:
    with hk.MemoryTier(1 << 20) as made:
        yield made


def stored(
    tier: hk.Tier, cost: hk.CostModel | None, *, forget: Any = None, **options: Any
) -> tuple[World, hk.BlockKeys]:
    """A prefix of 64 tokens with records at 16, 32 and 64; what is to be forgotten is in the tier alone."""
    world = World(tier, cost=cost, **options)
    keys = world.keys(64)
    world.write(keys)
    assert world.cache.offload(keys, boundaries=[16, 32, 64]).result(10).ok
    world.cache.evict(keys, forget)
    return world, keys


def match(world: World, keys: hk.BlockKeys) -> hk.Verdict:
    verdict = world.cache.match(keys, limit=keys.tokens + 1)
    if verdict.lease is not None:
        verdict.lease.cancel()
    return verdict


def test_without_a_model_the_longest_is_named(tier: hk.MemoryTier) -> None:
    world, keys = stored(tier, None)
    plan = match(world, keys).plan
    assert (plan.restore_tokens, plan.choice) == (64, None)
    assert world.cache.cost is None


def test_a_tier_that_is_quick_restores_the_longest(tier: hk.MemoryTier) -> None:
    world, keys = stored(tier, model(1e9))
    verdict = match(world, keys)
    assert verdict.remedy is hk.Remedy.RESTORE
    plan = verdict.plan
    assert plan.restore_tokens == 64 and plan.loads
    choice = plan.choice
    assert choice is not None and choice is verdict.plan.choice  # it is made once
    assert (choice.reason, choice.target_tokens) == ("least time", 64)
    listed = {one.candidate.tokens: one.candidate.load_bytes for one in choice.estimates}
    assert listed == {0: 0, 16: 4 * BLOCK + STATES, 32: 8 * BLOCK + STATES, 64: 16 * BLOCK + STATES}
    assert "64 tokens" in choice.why
    done = world.cache.restore(plan).result(10)
    assert done.ok and done.bytes == choice.candidate.load_bytes
    assert world.reuse(keys) == 64
    world.expect_idle()


def test_a_tip_is_weighed_beside_the_boundaries_below_it(tier: hk.MemoryTier) -> None:
    world = World(tier, cost=model(1e9))
    keys = world.keys(66)
    world.write(keys)
    assert world.cache.offload(keys, boundaries=[16, 64, 66]).result(10).tips == (66,)
    world.cache.evict(keys)
    plan = match(world, keys).plan
    assert plan.restore_tokens == 66 and plan.choice is not None
    listed = {one.candidate.tokens: one.candidate.load_bytes for one in plan.choice.estimates}
    assert listed == {0: 0, 16: 4 * BLOCK + STATES, 64: 16 * BLOCK + STATES, 66: 17 * BLOCK + STATES}
    done = world.cache.restore(plan).result(10)
    assert done.ok and done.bytes == plan.choice.candidate.load_bytes
    assert world.reuse(keys) == 66
    world.expect_idle()


def test_partial_pages_of_a_tip_that_are_here_are_not_paid_for(tier: hk.MemoryTier) -> None:
    world = World(tier, cost=model(1e9))
    keys = world.keys(66)
    world.write(keys)
    assert world.cache.offload(keys, boundaries=[66]).result(10).tips == (66,)
    world.cache.evict(keys, {"swa": True, "tail": True, "kv": [16]})  # of the tip its indexer page stays
    plan = match(world, keys).plan
    assert plan.restore_tokens == 66 and plan.choice is not None
    assert plan.choice.candidate.load_bytes == 2 * 96 + STATES
    done = world.cache.restore(plan).result(10)
    assert done.ok and done.bytes == plan.choice.candidate.load_bytes
    assert world.reuse(keys) == 66
    world.expect_idle()


def test_computing_that_is_quicker_is_said_to_be(tier: hk.MemoryTier) -> None:
    world, keys = stored(tier, model(100.0))
    verdict = match(world, keys)
    assert (verdict.outcome, verdict.matched_tokens) == (hk.Outcome.FALSE_HIT, 64)
    assert verdict.why is not None and verdict.why.code == "in_tier"
    assert verdict.remedy is hk.Remedy.RECOMPUTE
    plan = verdict.plan
    assert (plan.restore_tokens, plan.loads) == (0, ())
    assert plan.choice is not None and plan.choice.candidate.tokens == 0
    assert [one.candidate.tokens for one in plan.choice.estimates] == [0, 16, 32, 64]
    assert plan.choice.why.startswith("least time: 0 tokens in 0.064 s")
    with pytest.raises(hk.ArgumentError, match="plan"):
        world.cache.restore(plan)
    assert world.cache.restorable(keys) is None
    assert world.cache.prefetch(keys) is None


def test_what_is_here_already_is_not_paid_for(tier: hk.MemoryTier) -> None:
    # Half of the history is in memory: to 32 only the states are loaded, beyond that 3.2 ms a token against 1.
    gone = {"kv": range(8, 16), "idx": range(8, 16), "swa": True, "tail": True}
    world, keys = stored(
        tier, model(20_000.0), forget={name: list(v) if v is not True else v for name, v in gone.items()}
    )
    verdict = match(world, keys)
    assert verdict.remedy is hk.Remedy.RESTORE
    plan = verdict.plan
    assert plan.restore_tokens == 32 and plan.choice is not None
    assert plan.choice.candidate.load_bytes == STATES
    assert {name for name, _ in plan.loads} == {"swa", "tail"}
    found = world.cache.restorable(keys)
    assert found is not None and found.restore_tokens == 32 and found.choice is not None
    assert world.cache.restore(plan).result(10).tokens == 32
    assert world.reuse(keys) == 32
    # Now 32 are usable: computing on from there is the quickest, and that is what the remedy says.
    again = match(world, keys)
    assert (again.outcome, again.usable_tokens, again.remedy) == (hk.Outcome.REUSABLE, 32, hk.Remedy.RECOMPUTE)
    assert again.plan.choice is not None and again.plan.choice.candidate.tokens == 32
    world.cache.cost = model(1e9)
    more = match(world, keys)
    assert (more.remedy, more.plan.restore_tokens) == (hk.Remedy.RESTORE, 64)
    world.cache.cost = None
    assert match(world, keys).plan.choice is None


def test_what_is_not_known_is_not_bet_on(tier: hk.MemoryTier) -> None:
    world, keys = stored(tier, model(None))  # a rate of computing, and a tier that nobody measured
    assert match(world, keys).remedy is hk.Remedy.RECOMPUTE
    tier.name = "another"
    world.cache.cost = model(1e9, tier="another")
    assert match(world, keys).remedy is hk.Remedy.RESTORE
    world.cache.cost = model(None, rate=None)
    plan = match(world, keys).plan
    assert plan.choice is not None
    assert (plan.restore_tokens, plan.choice.reason) == (64, "no time known")


def test_measured_bandwidth_decides(tier: hk.MemoryTier) -> None:
    def measured(bytes_per_second: float) -> hk.CostModel:
        seen = hk.Observations()
        for size in (1000, 2000, 4000, 8000):
            seen.loaded(tier.name, size, size / bytes_per_second)
            seen.computed(size, size / 1000.0 / 2)  # two layers
        return hk.CostModel.measured(seen)

    world, keys = stored(tier, measured(1e6))
    assert match(world, keys).plan.restore_tokens == 64
    world.cache.cost = measured(100.0)
    verdict = match(world, keys)
    assert (verdict.remedy, verdict.plan.restore_tokens) == (hk.Remedy.RECOMPUTE, 0)


def test_replay_counts_as_computing(tier: hk.MemoryTier) -> None:
    groups = [
        hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=96, layers=(0, 1)),
        hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(6), page_bytes=96, layers=(0, 1), rebuildable=True),
        hk.CacheGroup("tail", hk.StateKind.TAIL, hk.Checkpoint(), page_bytes=64, layers=(2, 3)),
    ]
    world = World(tier, of=hk.CacheSpec(UNIT, groups, identity=hk.Identity(model="small")), cost=model(1e9))
    keys = world.keys(64)
    world.write(keys, {"kv": True, "tail": True})  # no window: it is replayed
    assert world.cache.offload(keys, boundaries=[64]).result(10).ok
    world.cache.evict(keys)
    choice = match(world, keys).plan.choice
    assert choice is not None
    assert choice.candidate.tokens == 64
    # Rows that two layers of window need, rounded down to a step, for all four layers.
    assert (choice.candidate.replay_layer_tokens, choice.candidate.layers) == (12 * 4, 4)
    assert choice.candidate.load_bytes == 2 * (16 * 96 + 64)
    assert choice.estimates[0].replay_s == pytest.approx(0.012)


def test_match_at_has_one_length_to_choose(tier: hk.MemoryTier) -> None:
    world, _ = stored(tier, model(1e9))
    longer = world.keys(66)
    plan = world.cache.match_at(longer, 32).plan
    assert plan.restore_tokens == 32 and plan.choice is not None
    assert [one.candidate.tokens for one in plan.choice.estimates] == [32, 0]
    world.cache.cost = model(100.0)
    verdict = world.cache.match_at(longer, 32)
    assert (verdict.remedy, verdict.plan.restore_tokens) == (hk.Remedy.RECOMPUTE, 0)


def test_where_there_is_nothing_to_restore_nobody_chooses(tier: hk.MemoryTier, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tier, cost=model(1e9))
    keys = world.keys(16)

    def never(*_: object) -> None:
        raise AssertionError("asked for options")

    monkeypatch.setattr(_core, "restore_options", never)
    for verdict in (match(world, keys), (world.write(keys), match(world, keys))[1]):
        assert verdict.plan.choice is None and verdict.remedy is hk.Remedy.NONE
    assert world.cache.restorable(world.keys(64)) is None
    gone, key = stored(hk.MemoryTier(1 << 20), model(1e9))
    assert gone.cache.match(key, limit=65).matched_tokens == 64  # nor by the match itself


def test_other_tiers_by_name() -> None:
    with hk.TierStack([hk.MemoryTier(1 << 16), DictTier()]) as stack:
        assert stack.name == "adapter"
    assert (hk.MemoryTier(1).name, DictTier().name, hk.DiskTier.name) == ("memory", "adapter", "disk")


def test_a_model_that_is_none_is_refused(tier: hk.MemoryTier) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        World(tier, cost=7)
    assert caught.value.field == "cost"
    world = World(tier)
    with pytest.raises(hk.ArgumentError):
        world.cache.cost = "longest"  # type: ignore[assignment]
    assert world.cache.cost is None


def test_a_model_that_knows_other_tiers_alone_is_refused(tier: hk.MemoryTier) -> None:
    def refused(caught: pytest.ExceptionInfo[hk.ArgumentError], name: str) -> None:
        assert caught.value.field == "cost.tiers"
        assert str(caught.value) == (
            f"cost.tiers: expected the bandwidth of the cache's tier, {name!r} by its name, got that of 'dsk' alone"
        )

    with pytest.raises(hk.ArgumentError) as caught:
        World(tier, cost=model(1e9, tier="dsk"))
    refused(caught, "memory")
    world = World(tier)  # the tier was not taken by the cache that was refused
    with pytest.raises(hk.ArgumentError) as caught:
        world.cache.cost = model(1e9, tier="dsk")
    refused(caught, "memory")
    assert world.cache.cost is None
    both = hk.CostModel({"dsk": hk.Bandwidth(1.0), "memory": hk.Bandwidth(1.0)}, tokens_per_second=1.0)
    for allowed in (both, model(None), None):  # more than the tier; of no tier; none
        world.cache.cost = allowed
        assert world.cache.cost is allowed
    with hk.TierStack([hk.MemoryTier(1 << 16), hk.MemoryTier(1 << 16)]) as stack:
        stack.name = "slow"
        with pytest.raises(hk.ArgumentError) as caught:
            World(stack, cost=model(1e9, tier="dsk"))
        refused(caught, "slow")
    assert World(None, cost=model(1e9, tier="dsk")).cache.cost is not None  # nothing to compare it with


@given(
    st.lists(st.integers(0, 2000), min_size=65, max_size=200),
    st.sampled_from([None, 1e3, 1e5]),
    st.sampled_from([None, 10.0, 1e4]),
)
def test_of_many_the_same_is_chosen_as_of_all(sizes: list[int], bandwidth: float | None, rate: float | None) -> None:
    described = spec()
    options = [((at + 1) * UNIT, max(0, (at + 1) * UNIT - size % 40), [size, 0, 0, 0]) for at, size in enumerate(sizes)]
    target = len(sizes) * UNIT + 3
    priced = model(bandwidth, rate)
    chosen = choose_restore(priced, described, "memory", options, 0, target)
    assert len(chosen.estimates) == 64
    all_of_them = [
        hk.Candidate(tokens, loads={"memory": pages[0] * 192}, replay_layer_tokens=2 * (tokens - resume), layers=2)
        for tokens, resume, pages in options
    ]
    best = priced.choose([hk.Candidate(0, layers=2), *all_of_them], target)
    told, wanted = chosen.estimates[0].total_s, best.estimates[0].total_s
    if wanted is None:
        left = [c.replay_layer_tokens / 2 - c.tokens for c in (chosen.candidate, best.candidate)]
        assert told is None and left[0] == left[1]
    else:
        assert told == pytest.approx(wanted)


def test_a_model_of_layers() -> None:
    described = spec()
    per_layer = hk.CostModel({"memory": hk.Bandwidth(1e5)}, layer_tokens_per_second=2000.0)
    options = [(4 * (at + 1), 4 * (at + 1), [at + 1, 0, 0, 0]) for at in range(100)]
    chosen = choose_restore(per_layer, described, "memory", options, 0, 400)
    assert chosen.candidate.tokens == 400
    assert chosen.estimates[-1].total_s is not None
    assert np.isclose(chosen.estimates[0].load_s or 0, 100 * 192 / 1e5)
