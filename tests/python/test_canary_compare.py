# SPDX-License-Identifier: Apache-2.0
"""When answers count as different, how thresholds are calibrated, and what a sample can show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from canary_support import RIGHT, ends
from hybridkv.binomial import chance, interval, least_rate, most_rate
from hybridkv.canary import (
    Bitwise,
    BreakerPolicy,
    Difference,
    Ends,
    Tolerance,
    acting_share,
    detection,
    difference,
    mismatch_interval,
    samples_needed,
)
from hybridkv.minimal import minimal

# -- answers ---------------------------------------------------------------------------------------


def test_each_end_is_compared_by_itself() -> None:
    assert difference(RIGHT, RIGHT) == Difference(0.0, 0.0, equal_bits=True)
    window, tail = difference(ends(first=0.5), RIGHT), difference(ends(last=0.25), RIGHT)
    assert (window.first, window.last, window.equal_bits, window.largest) == (0.5, 0.0, False, 0.5)
    assert (tail.first, tail.last) == (0.0, 0.25)
    assert difference(ends(first=5.0), RIGHT).other_token == ("first",)
    tolerance = Tolerance(first=0.3, last=0.2)
    assert tolerance.judge(ends(first=0.5), RIGHT).ends == ("first",)
    assert tolerance.judge(ends(last=0.25), RIGHT).ends == ("last",)
    assert tolerance.judge(ends(first=0.25, last=0.1), RIGHT).ends == ()
    assert not tolerance.judge(RIGHT, RIGHT).mismatch


def test_ends_are_the_first_and_the_last_token() -> None:
    logits = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = Ends.of(logits)
    assert found.first.tolist() == [0, 1, 2, 3]
    assert found.last.tolist() == [8, 9, 10, 11]
    logits[:] = 0  # copies: an engine uses its buffer again
    assert found.last.tolist() == [8, 9, 10, 11]
    one = Ends.of(np.ones((1, 4), np.float32))
    assert one.first.tolist() == one.last.tolist()


def test_what_is_no_number_is_as_far_as_can_be() -> None:
    broken = Ends(np.array([np.nan, 1, 0, 0], np.float32), RIGHT.last)
    assert difference(broken, RIGHT).first == math.inf
    ruled_out = Ends(np.array([3, -np.inf], np.float32), np.array([3, -np.inf], np.float32))
    assert difference(ruled_out, ruled_out).largest == 0.0
    allowed = Ends(np.array([3, 0], np.float32), np.array([3, -np.inf], np.float32))
    assert difference(allowed, ruled_out) == Difference(math.inf, 0.0, equal_bits=False)


def test_bitwise_sees_any_bit() -> None:
    zero, minus = (Ends(*2 * [np.array([sign * 0.0, 1.0], np.float32)]) for sign in (1, -1))
    assert Bitwise().judge(zero, zero).ends == ()
    assert Bitwise().judge(zero, minus).ends == ("first", "last")
    assert Tolerance(1e-9, 1e-9).judge(zero, minus).ends == ()
    assert Bitwise().judge(ends(last=1e-6), RIGHT).ends == ("last",)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("logits", lambda: Ends.of(np.zeros((0, 4), np.float32))),
        ("logits", lambda: Ends.of(np.zeros(4, np.float32))),
        ("first", lambda: Ends(np.zeros(4, np.int64), np.zeros(4, np.float32))),
        ("last", lambda: Ends(np.zeros(4, np.float32), np.zeros(5, np.float32))),
        ("last", lambda: Ends(np.zeros(4, np.float32), np.zeros(4, np.float16))),
        ("reused", lambda: difference(None, RIGHT)),  # type: ignore[arg-type]
        ("recomputed", lambda: difference(RIGHT, Ends(*2 * [np.zeros(9, np.float32)]))),
        ("recomputed", lambda: difference(RIGHT, Ends(*2 * [np.zeros(4, np.float16)]))),
        ("first", lambda: Tolerance(0, 1)),
        ("last", lambda: Tolerance(1, math.inf)),
        ("controls", lambda: Tolerance.calibrated([])),
        ("controls[0]", lambda: Tolerance.calibrated([1.0])),  # type: ignore[list-item]
        ("controls[0]", lambda: Tolerance.calibrated([Difference(math.inf, 0, False)] * 30)),
        ("margin", lambda: Tolerance.calibrated([Difference(1, 1, False)] * 30, margin=0.5)),
        ("floor", lambda: Tolerance.calibrated([Difference(0, 0, True)] * 30)),
        ("floor", lambda: Tolerance.calibrated([Difference(1, 1, False)] * 30, floor=-1)),
        ("controls", lambda: Tolerance.calibrated([Difference(1, 1, False)] * 30, most_false_alarms=0.01)),
        ("confidence", lambda: Tolerance(1, 1, confidence=1)),
        ("fault_rate", lambda: samples_needed(0)),
        ("fault_rate", lambda: samples_needed(1e-12)),
        ("confidence", lambda: samples_needed(0.1, 1)),
        ("acting_share", lambda: detection(0.1, 10, acting_share=1.5)),
        ("samples", lambda: detection(0.1, -1)),
        ("wanted", lambda: detection(0.1, 1, wanted=0)),
        ("mismatches", lambda: mismatch_interval(3, 2)),
        ("mismatches", lambda: mismatch_interval(True, 2)),
        ("distances", lambda: acting_share([], 1)),
        ("distances", lambda: acting_share(None, 1)),
        ("distances", lambda: acting_share([math.nan], 1)),
        ("breaker.mismatches", lambda: BreakerPolicy(mismatches=11, window_samples=10)),
        ("breaker.cooldown_s", lambda: BreakerPolicy(cooldown_s=0)),
        ("breaker.most_cooldown_s", lambda: BreakerPolicy(cooldown_s=10, most_cooldown_s=5)),
        ("breaker.trial_samples", lambda: BreakerPolicy(trial_samples=0)),
        ("false_alarm_rate", lambda: BreakerPolicy().false_trip_chance(2)),
    ],
)
def test_what_is_refused(field: str, call: Any) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        call()
    assert caught.value.field == field


# -- thresholds ------------------------------------------------------------------------------------


def noise(random: np.random.Generator, count: int) -> list[Difference]:
    """Benign differences with a heavy tail."""
    drawn = random.lognormal(-10, 1.0, (count, 2))
    return [Difference(float(first), float(last), equal_bits=False) for first, last in drawn]


def test_thresholds_stand_above_the_noise_of_each_end() -> None:
    controls = [Difference(0.001 * n, 0.01 * n, equal_bits=n == 0) for n in range(40)]
    made = Tolerance.calibrated(controls, margin=3)
    assert (made.first, made.last, made.controls) == (pytest.approx(0.117), pytest.approx(1.17), 40)
    assert Tolerance.calibrated(controls, floor=0.5) == Tolerance(0.5, 1.56, 40)
    assert Tolerance.calibrated(controls).first == pytest.approx(4 * 0.039), "a margin by default"


def test_the_bound_of_false_alarms_holds() -> None:
    """At a margin of 1 about a share of 2 / (n + 1) is beyond either threshold; the bound holds 95 of 100 times."""
    random = np.random.default_rng(3)
    made = Tolerance.calibrated(noise(random, 60), margin=1)
    largest = random.lognormal(-10, 1.0, (4000, 60, 2)).max(axis=1)  # the thresholds of as many calibrations
    below = np.vectorize(lambda t: (1 + math.erf((math.log(t) + 10) / math.sqrt(2))) / 2)(largest).prod(axis=1)
    assert 0.03 <= np.mean(1 - below > made.false_alarm_bound) <= 0.055
    assert Tolerance(1, 1).false_alarm_bound == 1.0, "nothing is claimed of given thresholds"
    assert Tolerance.calibrated(noise(random, 200)).false_alarm_bound == pytest.approx(0.0235, abs=1e-3)
    assert Bitwise().false_alarm_bound == 0.0


def test_the_chance_that_a_window_of_false_alarms_trips() -> None:
    policy = BreakerPolicy(mismatches=3, window_samples=100)
    assert policy.false_trip_chance(0.001) == pytest.approx(1.5e-4, rel=0.1)
    assert policy.false_trip_chance(0.0) == 0.0


# -- samples ---------------------------------------------------------------------------------------


def test_so_many_samples_show_a_fault_of_a_rate() -> None:
    assert [samples_needed(0.01), samples_needed(0.001), samples_needed(1.0), samples_needed(0.5, 0.99)] == [
        299, 2995, 1, 7,
    ]  # fmt: skip
    assert samples_needed(0.01, acting_share=0.5) == samples_needed(0.005)
    assert samples_needed(0.01, wanted=3) == 628
    for rate, share, wanted in ((0.02, 1.0, 1), (0.1, 0.4, 2), (0.5, 0.5, 4)):
        needed = samples_needed(rate, acting_share=share, wanted=wanted)
        assert detection(rate, needed, acting_share=share, wanted=wanted) >= 0.95
        assert detection(rate, needed - 1, acting_share=share, wanted=wanted) < 0.95
        drawn = np.random.default_rng(1).random((4000, needed)) < rate * share
        assert np.mean(drawn.sum(axis=1) >= wanted) == pytest.approx(0.955, abs=0.02)
    assert acting_share([0.0, 0.2, math.inf, 0.1], 0.1) == 0.5
    assert detection(0.0, 100) == 0.0


def test_the_interval_of_a_rate() -> None:
    assert mismatch_interval(0, 300).high == pytest.approx(3.69 / 300, rel=0.01)
    assert most_rate(0, 300, 0.95) == pytest.approx(3 / 300, rel=0.01), "the rule of three"
    assert mismatch_interval(0, 0)[:2] == (0.0, 1.0)
    assert mismatch_interval(5, 5)[:2] == (pytest.approx(0.478, abs=1e-3), 1.0)
    assert mismatch_interval(10, 100)[:2] == (pytest.approx(0.0490, abs=1e-4), pytest.approx(0.1762, abs=1e-4))
    assert least_rate(0, 10, 0.95) == 0.0
    random = np.random.default_rng(2)
    for rate in (0.01, 0.2):
        counts = random.binomial(80, rate, 400)
        held = {seen: interval(seen, 80, 0.9) for seen in set(counts.tolist())}
        assert np.mean([held[seen].low <= rate <= held[seen].high for seen in counts.tolist()]) >= 0.9


def test_chances_of_many_trials_are_numbers() -> None:
    assert chance(0.5, 100_000, 50_000) == pytest.approx(0.5, abs=0.01)
    assert chance(0.3, 10, 4) == pytest.approx(0.3504, abs=1e-4)
    assert chance(0.3, 10, 8) == pytest.approx(0.00159, abs=1e-5)
    assert (chance(0.3, 3, 4), chance(1.0, 3, 3), chance(0.0, 3, 1), chance(0.2, 3, 0)) == (0.0, 1.0, 0.0, 1.0)


# -- the smallest part -----------------------------------------------------------------------------


def test_the_smallest_part_that_shows_it() -> None:
    calls = 0

    def shows(part: list[int]) -> bool:
        nonlocal calls
        calls += 1
        return {3, 11} <= set(part)

    assert minimal(range(40), shows) == [3, 11]
    assert calls < 80
    assert minimal(range(64), lambda part: 17 in part) == [17]
    assert minimal([5], lambda part: True) == [5]
    assert minimal(range(8), lambda part: len(part) == 8) == list(range(8))
    assert len(minimal(range(1000), lambda part: {1, 500, 900} <= set(part), most_calls=5)) > 3
