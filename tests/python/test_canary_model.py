# SPDX-License-Identifier: Apache-2.0
"""The canary over a real model: each kind of broken state is seen, sound ones never are, and reuse backs off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is absent: the canary's real answers need it")
pytest.importorskip("transformers", reason="transformers is absent: answers are those of its models")

import torch

import hybridkv as hk
from canary_faults import Answer, Answers
from canary_support import Clock, drawn, stored
from faults import FAULTS
from hybridkv.adapters.transformers import CheckedReuse, PrefixReuse, benign_controls
from hybridkv.adapters.transformers.checked import ends_of
from hybridkv.adapters.transformers.rebuild import rebuilt
from hybridkv.canary import BreakerPolicy, BreakerState, Canary, SampleKind, Scope, acting_share, samples_needed
from hybridkv.demo.models import tiny_deepseek_v4
from hybridkv.rollout import Rollout, RolloutPlan

SOAK = os.environ.get("HYBRIDKV_SOAK") == "1"
POSITIONS = (64, 77, 78, 79, 128, 143, 150) if SOAK else (64, 79)
FAULT_RATE, CONFIDENCE = 0.1, 0.999
"""What the stated sample sizes are for: a tenth of the hits is broken, and one of a thousand such faults is missed."""

RAISING = {
    "history: cut to whole blocks",
    "overlap: one row short",
    "window: gone",
    "window: one row short",
    "window: one row too many",
}
"""Kinds that no canary has to see: the model raises."""


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Answers(tiny_deepseek_v4(), POSITIONS, POSITIONS if SOAK else (79,))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def sound(answers: Answers) -> list[Answer]:
    return list(answers.unbroken(seed=6, rows=26, tokens=80, starts=range(13, 77, 8)))


@pytest.fixture(scope="module")
def broken(answers: Answers) -> dict[str, list[Answer | None]]:
    return answers.broken()


def test_no_alarm_in_200_control_runs(answers: Answers, sound: list[Answer]) -> None:
    assert len(sound) == 208
    canary = Canary(stored(), 1.0, answers.tolerance, breaker=BreakerPolicy(mismatches=1), evict=False)
    for reused, recomputed in sound:
        assert reused is not None
        assert not drawn(canary).settle(reused, recomputed).mismatch
    told = canary.metrics()
    assert (told.compared, told.mismatches, told.trips["model:tiny"]) == (208, 0, 0)
    assert 0 < told.interval().high < 0.018
    assert told.false_alarm_bound < 0.025
    largest = max(answers.tolerance.judge(*pair).difference.largest for pair in sound)  # type: ignore[arg-type]
    assert 0 < largest < answers.tolerance.first, "rounding is there, and below the threshold"


def test_each_kind_of_fault_is_seen_in_the_stated_number_of_samples(
    answers: Answers, sound: list[Answer], broken: dict[str, list[Answer | None]]
) -> None:
    """One hit in ten is broken, some of them where that does not act; the breaker trips within the stated samples."""
    tolerance, random = answers.tolerance, np.random.default_rng(4)
    raising, missed, most = set(), [], 0
    for name, found in broken.items():
        if any(each is not None and each.reused is None for each in found):
            raising.add(name)
            continue
        pairs = [sound[0] if each is None else each for each in found]  # an aligned tail has no rows to lose
        judged = [tolerance.judge(*pair) for pair in pairs]  # type: ignore[arg-type]
        share = acting_share([j.difference.largest for j in judged], max(tolerance.first, tolerance.last))
        assert share > 0, f"{name} acts nowhere"
        needed = samples_needed(FAULT_RATE, CONFIDENCE, acting_share=share, wanted=2)
        most = max(most, needed)
        canary = Canary(stored(), 1.0, tolerance, breaker=BreakerPolicy(2, window_samples=1000), evict=False)
        for _ in range(needed):
            pool = pairs if random.random() < FAULT_RATE else sound
            reused, recomputed = pool[random.integers(len(pool))]
            if drawn(canary).settle(reused, recomputed).tripped:  # type: ignore[arg-type]
                break
        else:
            missed.append((name, share, needed))
    assert raising == RAISING
    assert missed == []
    assert len(broken) > 90 and 89 <= most <= 700


def test_one_end_misses_what_the_other_sees(answers: Answers, broken: dict[str, list[Answer | None]]) -> None:
    tolerance = answers.tolerance
    seen = {
        (name, tokens): tolerance.judge(pair.reused, pair.recomputed).ends
        for name, pairs in broken.items()
        if name not in RAISING and len(pairs) == len(POSITIONS)
        for tokens, pair in zip(POSITIONS, pairs, strict=True)
        if pair is not None and pair.reused is not None
    }
    late = {name for (name, _), ends in seen.items() if ends == ("last",)}
    assert {
        "window: ring pointer lost by five",
        "overlap: all zero",
        "history: one CSA entry zero in one layer",
    } <= late
    assert seen["overlap: all zero", 64] == ("last",), "a tail acts once its window closes"
    assert seen["window: all zero", 64] == ("first", "last")


def test_a_wrong_window_fades_behind_a_long_suffix(answers: Answers) -> None:
    """In one layer it is flushed after as many tokens as it is long: the last of 96 tokens says nothing of it."""
    live, tokens = answers.live, 64
    made = FAULTS["window: of another request in one layer"].apply(live.state(tokens), live.context(tokens))
    assert made is not None
    suffix = live.prompt[None, tokens : tokens + 96].expand(2, -1)
    past = rebuilt(live.layout, [made, dict(live.state(tokens))], tokens)
    wrong, right = live.runner.run(suffix, past, tokens, all_logits=True)
    assert answers.tolerance.judge(ends_of(wrong), ends_of(right)).ends == ("first",)
    assert answers.tolerance.judge(ends_of(wrong[:8]), ends_of(right[:8])).ends == ("first", "last")


# -- behind PrefixReuse ------------------------------------------------------------------------------


def test_a_broken_window_is_laid_to_its_group_and_reuse_backs_off(answers: Answers) -> None:
    clock = Clock()
    reuse = PrefixReuse(answers.model, memory_bytes=1 << 23, verify="off", replay=False, checkpoint_tokens=32)
    policy = BreakerPolicy(mismatches=1, window_samples=10, cooldown_s=1, trial_samples=1)
    canary = Canary(reuse.cache, 1.0, answers.tolerance, breaker=policy, clock=clock)
    checked = CheckedReuse(reuse, canary)
    prompt = answers.prompts(9, 1, 38)[0]
    assert checked.forward(prompt, request=0).sample is None, "nothing was known of it"
    right = checked.forward(prompt, request=1)
    assert right.outcome is not None and not right.outcome.mismatch
    assert (right.row.usable, right.logits.shape[0]) == (32, 6)
    reuse.pages.pools["swa"].zero_()
    wrong = checked.forward(prompt, request=2)
    assert wrong.outcome is not None and wrong.sample is not None
    assert (wrong.outcome.blamed, wrong.outcome.attribution.how) == ((Scope("group", "swa"),), "recomputed")
    assert wrong.outcome.tripped == (Scope("group", "swa"),)
    assert wrong.sample.kind is SampleKind.CANARY and not torch.allclose(wrong.logits, right.logits, atol=0.1)
    assert canary.metrics().evicted_pages > 0
    anew = checked.forward(prompt, request=3)
    assert (anew.row.usable, anew.row.matched) == (0, 0), "what was wrong is gone"
    withheld = checked.forward(prompt, request=4)
    assert (withheld.row.usable, withheld.row.outcome) == (0, hk.Outcome.FALSE_HIT)
    assert withheld.row.why is not None and withheld.row.why.code == "withheld"
    assert torch.allclose(withheld.logits[-6:], right.logits, atol=1e-3)
    assert canary.metrics().withheld == {"group:swa": 1}
    clock.now = 2
    trial = checked.forward(prompt, request=5)
    assert trial.sample is not None and trial.sample.kind is SampleKind.TRIAL
    assert canary.metrics().states["group:swa"] is BreakerState.CLOSED
    assert checked.forward(prompt, request=6).row.usable == 32


def test_the_answer_of_a_hit_that_is_not_used_is_computed_from_scratch(answers: Answers) -> None:
    reuse = PrefixReuse(answers.model, memory_bytes=1 << 23, verify="off", replay=False, checkpoint_tokens=32)
    canary = Canary(reuse.cache, 1.0, answers.tolerance, breaker=None)
    rollout = Rollout(canary, RolloutPlan(samples=3, rate_bound=0.7))
    checked = CheckedReuse(reuse, rollout)
    prompt = answers.prompts(10, 1, 38)[0]
    right = checked.forward(prompt, request="a").logits[-6:]
    reuse.pages.pools["swa"].zero_()
    shadow = checked.forward(prompt, request="b")
    assert shadow.sample is not None and shadow.sample.kind is SampleKind.SHADOW
    assert shadow.outcome is not None and shadow.outcome.mismatch
    assert torch.allclose(shadow.logits, right, atol=1e-3)
    assert (rollout.state.samples, rollout.state.mismatches) == (1, 1)
    with pytest.raises(hk.ArgumentError, match="a rollout decides by it"):
        checked.forward(prompt)


def test_what_is_refused(answers: Answers) -> None:
    canary = Canary(answers.reuse.cache, 1.0, answers.tolerance)
    checked = CheckedReuse(answers.reuse, canary)
    other = Canary(stored(), 1.0, answers.tolerance)
    prompts = answers.prompts(1, 2, 20)
    for field, call in (
        ("reuse", lambda: CheckedReuse(None, canary)),  # type: ignore[arg-type]
        ("watch", lambda: CheckedReuse(answers.reuse, None)),  # type: ignore[arg-type]
        ("watch", lambda: CheckedReuse(answers.reuse, other)),
        ("input_ids", lambda: checked.forward(prompts, request=1)),
        ("request", lambda: checked.forward(prompts[0], request=1.5)),  # type: ignore[arg-type]
        ("prompts", lambda: benign_controls(answers.reuse, prompts[:1], [4])),
        ("starts", lambda: benign_controls(answers.reuse, prompts, [])),
        ("starts", lambda: benign_controls(answers.reuse, prompts, [8, 8])),
        ("starts", lambda: benign_controls(answers.reuse, prompts, [20])),
    ):
        with pytest.raises(hk.ArgumentError) as caught:
            call()
        assert caught.value.field == field, field
    canary.close()


@pytest.mark.soak
def test_no_alarm_in_200_hits_of_prefix_reuse(answers: Answers) -> None:
    reuse = PrefixReuse(answers.model, memory_bytes=1 << 24)
    canary = Canary(reuse.cache, 1.0, answers.tolerance, breaker=BreakerPolicy(mismatches=1))
    checked, random = CheckedReuse(reuse, canary), np.random.default_rng(11)
    systems = random.integers(0, 256, (10, 150))
    for number in range(230):
        length = int(random.integers(20, 150))
        question = random.integers(0, 256, int(random.integers(1, 12)))
        checked.forward(np.concatenate([systems[number % 10][:length], question]), request=number)
    told = canary.metrics()
    assert told.compared >= 200
    assert told.mismatches == 0


@pytest.mark.soak
def test_the_rollout_of_the_demo_goes_on_back_and_on_again() -> None:
    from hybridkv.demo import rollout
    from hybridkv.demo.threads import one_thread

    with one_thread():
        result = rollout.run_rollout()
    assert result.failure == ""
    assert 1 <= result.wrong_answers <= 2
    text = (Path(__file__).resolve().parents[2] / "docs" / "canary.md").read_text(encoding="utf-8")
    for line in rollout.as_text(result).splitlines()[2:-2]:
        assert line.split("  ")[1].strip() in text
