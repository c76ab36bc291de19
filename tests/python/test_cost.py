# SPDX-License-Identifier: Apache-2.0
"""The cost model: least time against brute force, ties, what is not known, what is measured."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridkv as hk
from hybridkv.cost import Estimate

TARGET = 1000
TIERS = ("disk", "host", "far")


@st.composite
def candidates(draw: st.DrawFn) -> hk.Candidate:
    size = st.integers(0, 4)
    loads = {tier: 1000 * draw(size) for tier in draw(st.lists(st.sampled_from(TIERS), unique=True))}
    tokens = 100 * draw(st.integers(0, 10))
    replayed = 100 * draw(size)
    return hk.Candidate(tokens, loads=loads, replay_layer_tokens=replayed, layers=4, exact=draw(st.booleans()))


@st.composite
def models(draw: st.DrawFn) -> hk.CostModel:
    speed = st.sampled_from([500.0, 1000.0, 2000.0])
    known = draw(st.lists(st.sampled_from(TIERS), unique=True))
    tiers = {tier: hk.Bandwidth(draw(speed), draw(st.sampled_from([0.0, 0.5]))) for tier in known}
    rate = draw(st.none() | speed)
    per_layer = draw(st.booleans())
    return hk.CostModel(
        tiers,
        tokens_per_second=None if per_layer else rate,
        layer_tokens_per_second=rate if per_layer else None,
    )


def seconds(model: hk.CostModel, one: hk.Candidate) -> Fraction | None:
    """Time of a candidate by the definition, exactly."""
    total = Fraction(0)
    for tier, size in one.loads.items():
        if tier not in model.tiers:
            return None
        total += Fraction(model.tiers[tier].latency_s) + size / Fraction(model.tiers[tier].bytes_per_second)
    work = one.replay_layer_tokens + (TARGET - one.tokens) * one.layers
    if not work:
        return total
    if model.layer_tokens_per_second is not None:
        return total + work / Fraction(model.layer_tokens_per_second)
    if model.tokens_per_second is None:
        return None
    return total + Fraction(work, one.layers) / Fraction(model.tokens_per_second)


def left(one: hk.Candidate) -> Fraction:
    return Fraction(one.replay_layer_tokens, one.layers) + TARGET - one.tokens


@settings(max_examples=500, deadline=None)
@given(models(), st.lists(candidates(), min_size=1, max_size=6), st.booleans())
def test_the_choice_is_the_best_by_brute_force(model: hk.CostModel, ways: list[hk.Candidate], allow: bool) -> None:
    allowed = [one for one in ways if one.exact or allow]
    if not allowed:
        with pytest.raises(hk.ArgumentError, match="at least one that is allowed"):
            model.choose(ways, TARGET, allow_approximate=allow)
        return
    choice = model.choose(ways, TARGET, allow_approximate=allow)
    timed = [(s, one) for one in allowed if (s := seconds(model, one)) is not None]
    chosen = seconds(model, choice.candidate)
    assert choice.candidate in allowed
    if timed:
        best = min(s for s, _ in timed)
        assert chosen == best
        equal = [one for s, one in timed if s == chosen]
        assert choice.candidate.load_bytes == min(one.load_bytes for one in equal)
        assert choice.reason == ("only one" if len(allowed) == 1 else "least time")
    else:
        assert chosen is None and left(choice.candidate) == min(map(left, allowed))
        least = [one for one in allowed if left(one) == left(choice.candidate)]
        assert choice.candidate.load_bytes == min(one.load_bytes for one in least)
        assert choice.reason == ("only one" if len(allowed) == 1 else "no time known")
    assert next(e.candidate for e in choice.estimates if e.allowed) is choice.estimates[0].candidate
    assert len(choice.estimates) == len(ways) and sum(e.allowed for e in choice.estimates) == len(allowed)
    check_estimates(model, choice.estimates)


def check_estimates(model: hk.CostModel, estimates: tuple[Estimate, ...]) -> None:
    for estimate in estimates:
        want, got = seconds(model, estimate.candidate), estimate.total_s
        assert (want is None) == (got is None)
        assert want is None or got is None or math.isclose(got, want, abs_tol=1e-12)
        parts = (estimate.load_s, estimate.replay_s, estimate.recompute_s)
        assert (None in parts) == (got is None)


@settings(max_examples=100, deadline=None)
@given(models(), st.lists(candidates(), min_size=1, max_size=4))
def test_the_order_of_candidates_decides_nothing(model: hk.CostModel, ways: list[hk.Candidate]) -> None:
    answers = {
        json.dumps(model.choose(order, TARGET, allow_approximate=True).record(), sort_keys=True)
        for order in permutations(ways)
    }
    assert len(answers) == 1


def test_equal_times_read_less_then_reuse_more() -> None:
    model = hk.CostModel({"disk": hk.Bandwidth(1000), "host": hk.Bandwidth(500)}, tokens_per_second=100)
    disk, host = hk.Candidate(100, loads={"disk": 1000}), hk.Candidate(100, loads={"host": 500})
    nothing = hk.Candidate(0)
    replay = hk.Candidate(100, replay_layer_tokens=100)
    near = hk.Candidate(100, replay_layer_tokens=100, exact=False)
    ways = [near, nothing, disk, replay, host]
    choice = model.choose(ways, 100, allow_approximate=True)
    assert {estimate.total_s for estimate in choice.estimates} == {1.0}
    assert [estimate.candidate for estimate in choice.estimates] == [replay, near, nothing, host, disk]


def test_times_that_are_equal_are_equal_whatever_their_parts() -> None:
    """4.5 + 0.3 + 2.4 and 4 + 3.2: as sums of floats one of them is the smaller."""
    tiers = {"disk": hk.Bandwidth(1000, 0.5), "host": hk.Bandwidth(500)}
    more = hk.Candidate(400, loads={"disk": 4000}, replay_layer_tokens=300, layers=4)
    less = hk.Candidate(200, loads={"host": 2000}, layers=4)
    assert 4.5 + 0.3 + 2.4 != 4 + 3.2
    assert hk.CostModel(tiers, layer_tokens_per_second=1000).choose([more, less], 1000).candidate == less


def test_no_number_is_too_large_for_a_time() -> None:
    slowest = hk.CostModel({"disk": hk.Bandwidth(5e-324, 1e308)}, tokens_per_second=5e-324)
    ways = [hk.Candidate(0), hk.Candidate(2**61, loads={"disk": 2**61})]
    choice = slowest.choose(ways, 2**61)
    assert json.loads(json.dumps(choice.record(), allow_nan=False)) == choice.record()
    assert choice.estimates[0].total_s == 1e300


def test_what_is_not_known_is_not_bet_on() -> None:
    disk, recompute = hk.Candidate(900, loads={"disk": 1}), hk.Candidate(0)
    memory = hk.Candidate(500)
    slow = hk.CostModel(tokens_per_second=0.001)
    assert slow.choose([disk, recompute], 1000).candidate == recompute
    assert slow.choose([disk, memory, recompute], 1000).candidate == memory
    assert hk.CostModel().choose([memory, disk, recompute], 1000).candidate == disk
    assert hk.CostModel().choose([memory, disk, recompute], 1000).reason == "no time known"
    tape = hk.CostModel({"disk": hk.Bandwidth(1e-3)})
    whole = hk.Candidate(1000, loads={"disk": 1})
    assert tape.choose([memory, whole, recompute], 1000).candidate == whole  # the only time that is known
    assert tape.choose([memory, whole, recompute], 1000).reason == "least time"


def test_an_approximate_way_is_listed_and_not_taken() -> None:
    model = hk.CostModel({"disk": hk.Bandwidth(3e9)}, tokens_per_second=20_000)
    ways = [hk.Candidate(0), hk.Candidate(8192, replay_layer_tokens=128, exact=False)]
    choice = model.choose(ways, 8192)
    assert choice.exact and choice.candidate.tokens == 0
    assert choice.why.endswith("1 approximate not allowed")
    assert [entry["allowed"] for entry in choice.record()["candidates"]] == [True, False]  # type: ignore[attr-defined]
    taken = model.choose(ways, 8192, allow_approximate=True)
    assert not taken.exact and taken.record()["exact"] is False and ", approximate)" in taken.why
    with pytest.raises(hk.ArgumentError):
        model.choose(ways[1:], 8192)


def test_the_record_tells_every_candidate_in_plain_values() -> None:
    model = hk.CostModel({"disk": hk.Bandwidth(1000, 0.25)}, layer_tokens_per_second=400)
    ways = [
        hk.Candidate(0, layers=4),
        hk.Candidate(80, loads={"disk": 500}, layers=4),
        hk.Candidate(100, replay_layer_tokens=40, loads={"far": 1}, layers=4),
    ]
    choice = model.choose(ways, 100)
    record = choice.record()
    assert json.loads(json.dumps(record)) == record
    assert record == {
        "target_tokens": 100,
        "tokens": 80,
        "exact": True,
        "reason": "least time",
        "candidates": [
            entry(80, {"disk": 500}, 0, 0.75, 0.0, 0.2, 0.95),
            entry(0, {}, 0, 0.0, 0.0, 1.0, 1.0),
            entry(100, {"far": 1}, 40, None, 0.1, 0.0, None),
        ],
    }
    assert choice.why == (
        "least time: 80 tokens in 0.95 s (load 0.75, replay 0, recompute 0.2); "
        "next 0 tokens in 1 s (load 0, replay 0, recompute 1)"
    )


def entry(
    tokens: int,
    loads: dict[str, int],
    replayed: int,
    load: float | None,
    replay: float,
    recompute: float,
    total: float | None,
) -> dict[str, object]:
    return {
        "tokens": tokens,
        "loads": loads,
        "replay_layer_tokens": replayed,
        "exact": True,
        "allowed": True,
        "load_s": load,
        "replay_s": replay,
        "recompute_s": recompute,
        "total_s": total,
    }


# -- measured ---------------------------------------------------------------------------------------


def observed(loads: list[tuple[int, float]], **more: int) -> hk.Observations:
    seen = hk.Observations(**more)
    for size, took in loads:
        seen.loaded("disk", size, took)
    return seen


@settings(max_examples=200, deadline=None)
@given(
    st.floats(1e6, 1e11),
    st.floats(0, 1e-2),
    st.lists(st.integers(1 << 16, 1 << 28), min_size=3, max_size=40),
)
def test_bandwidth_and_latency_come_back(speed: float, latency: float, sizes: list[int]) -> None:
    model = hk.CostModel.measured(observed([(size, latency + size / speed) for size in sizes]))
    found = model.tiers["disk"]
    for size in sizes:
        assert math.isclose(found.seconds(size), latency + size / speed, rel_tol=1e-6)


def test_a_few_stalls_move_nothing() -> None:
    rng = random.Random(6)
    loads = [(size, 2e-4 + size / 2e9) for size in (rng.randrange(1 << 18, 1 << 24) for _ in range(64))]
    for at in range(0, 64, 5):  # a fifth
        loads[at] = (loads[at][0], loads[at][1] + rng.choice([0.25, 61.5]))
    found = hk.CostModel.measured(observed(loads)).tiers["disk"]
    assert abs(found.bytes_per_second / 2e9 - 1) < 0.02
    assert abs(found.latency_s - 2e-4) < 2e-4
    mean = sum(size for size, _ in loads) / sum(took for _, took in loads)
    assert mean < 1e8, "which an average would be"


def test_newer_observations_count_more() -> None:
    old = [(1 << 20, (1 << 20) / 1e9)] * 40
    new = [(1 << 20, (1 << 20) / 4e9)] * 20
    assert math.isclose(hk.CostModel.measured(observed(old + new)).tiers["disk"].bytes_per_second, 4e9)
    assert math.isclose(hk.CostModel.measured(observed(old + new, half_life=1000)).tiers["disk"].bytes_per_second, 1e9)
    gone = observed(old + new, most=20, half_life=1000)
    assert math.isclose(hk.CostModel.measured(gone).tiers["disk"].bytes_per_second, 4e9)


def test_the_rate_is_measured_in_layer_tokens() -> None:
    seen = hk.Observations()
    for took in (1.0, 1.0, 90.0, 1.0, 1.0):
        seen.computed(86_000, took)
    model = hk.CostModel.measured(seen, given=hk.CostModel({"disk": hk.Bandwidth(7.0)}, tokens_per_second=5))
    assert model == hk.CostModel({"disk": hk.Bandwidth(7.0)}, layer_tokens_per_second=86_000)
    assert model.choose([hk.Candidate(0, layers=43)], 2000).estimates[0].recompute_s == 1.0


def test_fewer_than_three_observations_are_none() -> None:
    given_ = hk.CostModel({"disk": hk.Bandwidth(7.0)}, tokens_per_second=5)
    seen = observed([(100, 1.0), (200, 2.0)])
    seen.computed(100, 1.0)
    seen.computed(100, 1.0)
    assert hk.CostModel.measured(seen) == hk.CostModel()
    assert hk.CostModel.measured(seen, given=given_) == given_
    seen.loaded("disk", 300, 3.0)
    assert math.isclose(hk.CostModel.measured(seen, given=given_).tiers["disk"].bytes_per_second, 100)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.floats(5e-324, 1e300)), min_size=3, max_size=20))
def test_whatever_is_observed_gives_a_bandwidth(loads: list[tuple[int, float]]) -> None:
    found = hk.CostModel.measured(observed(loads)).tiers["disk"]
    assert 0 < found.bytes_per_second < math.inf and 0 <= found.latency_s < math.inf
    assert hk.CostModel.measured(observed(loads)) == hk.CostModel.measured(observed(loads))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: hk.Bandwidth(0), "bytes_per_second"),
        (lambda: hk.Bandwidth(math.nan), "bytes_per_second"),
        (lambda: hk.Bandwidth("3"), "bytes_per_second"),
        (lambda: hk.Bandwidth(10**400), "bytes_per_second"),
        (lambda: hk.Bandwidth(1.0, -1.0), "latency_s"),
        (lambda: hk.Bandwidth(1.0, math.inf), "latency_s"),
        (lambda: hk.Candidate(-1), "tokens"),
        (lambda: hk.Candidate(1, loads=[("disk", 1)]), "loads"),
        (lambda: hk.Candidate(1, loads={"disk": -1}), "loads['disk']"),
        (lambda: hk.Candidate(1, layers=0), "layers"),
        (lambda: hk.Candidate(1, exact=1), "exact"),
        (lambda: hk.CostModel({"disk": 3e9}), "tiers"),
        (lambda: hk.CostModel(tokens_per_second=0), "tokens_per_second"),
        (lambda: hk.CostModel(tokens_per_second=1, layer_tokens_per_second=1), "layer_tokens_per_second"),
        (lambda: hk.CostModel().choose([], 1), "candidates"),
        (lambda: hk.CostModel().choose(5, 1), "candidates"),
        (lambda: hk.CostModel().choose([hk.Candidate(2)], 1), "candidates"),
        (lambda: hk.CostModel().choose([3], 1), "candidates"),
        (lambda: hk.CostModel().choose([hk.Candidate(0)], -1), "target_tokens"),
        (lambda: hk.CostModel().choose([hk.Candidate(0)], 1, allow_approximate=1), "allow_approximate"),
        (lambda: hk.CostModel.measured([]), "observations"),
        (lambda: hk.CostModel.measured(hk.Observations(), given=3), "given"),
        (lambda: hk.Observations(most=257), "most"),
        (lambda: hk.Observations(half_life=0), "half_life"),
        (lambda: hk.Observations().loaded("", 1, 1.0), "tier"),
        (lambda: hk.Observations().loaded("disk", 0, 1.0), "size"),
        (lambda: hk.Observations().loaded("disk", 1, 0.0), "seconds"),
        (lambda: hk.Observations().computed(0, 1.0), "layer_tokens"),
    ],
)
def test_bad_arguments_name_their_field(make: Callable[[], object], field: str) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        make()
    assert caught.value.field == field


def test_numbers_of_numpy_are_numbers() -> None:
    model = hk.CostModel({"disk": hk.Bandwidth(np.float32(4.0))}, tokens_per_second=np.int64(2))
    way = hk.Candidate(np.int32(1), loads={"disk": np.int64(2)})
    assert model.choose([way], np.int64(2)).estimates[0].total_s == 1.0
    assert json.loads(json.dumps(model.choose([way], np.int64(2)).record()))["tokens"] == 1
