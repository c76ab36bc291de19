# SPDX-License-Identifier: Apache-2.0
"""Reuse switched on by steps over a real model, a fault on the way, and what backs off by itself.

A tiny DeepSeek-V4 serves questions behind a few system prompts. Reuse goes from shadow to a half of the requests to
all; then every window page loses its bytes, as where a copy on a device is lost (content verification is off here, as
it is there). The canary sees it and lays it to the windows; the breaker withholds hits, and the rollout goes back to
shadow. Once pages are sound again and what was stored is dropped, trials close the breaker, and the stages are passed
anew, each with twice as many samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from hybridkv.adapters.transformers import CheckedReuse, PrefixReuse, benign_controls
from hybridkv.binomial import most_rate
from hybridkv.canary import BreakerPolicy, Canary, CanaryMetrics, Tolerance, samples_needed
from hybridkv.canary.compare import MARGIN
from hybridkv.demo.models import VOCABULARY, tiny_deepseek_v4
from hybridkv.printed import page
from hybridkv.replay.progress import progress
from hybridkv.rollout import Rollout, RolloutPlan

_SYSTEM_TOKENS, _QUESTION_TOKENS = 64, 6
_SYSTEMS = 3
_RATE_BOUND = 0.25
"""Loose, so that a stage takes few samples: the demonstration is to be short."""

_MOST_REQUESTS = 200
_SOUND_AFTER = 5
"""Requests after which pages keep their bytes again."""

_HEAD = ("request", "what happens", "stage", "samples", "differ", "bound", "breaker of windows")


@dataclass(frozen=True)
class RolloutStep:
    """Something that happened.

    Attributes
    ----------
    request : int
        Number of the request, from 0.
    event : str
    stage : str
        Of the rollout, behind it.
    samples, mismatches : int
        Of the stage that ended, or of the one that is under way.
    upper_bound : float
        Of the rate of mismatches, by these.
    breaker : str
        State of the windows' breaker.
    """

    request: int
    event: str
    stage: str
    samples: int
    mismatches: int
    upper_bound: float
    breaker: str


@dataclass(frozen=True)
class RolloutResult:
    """What the demonstration found.

    Attributes
    ----------
    steps : tuple of RolloutStep
    tolerance : float
        Threshold of a change of a logit, calibrated by ``controls`` benign comparisons.
    controls : int
    false_alarm_bound : float
    canary : CanaryMetrics
    wrong_answers : int
        Answers for the user that were computed from a broken state before reuse went off.
    served : int
        Answers in all.
    failure : str
        What should have happened and did not; empty where all is as it should be.
    """

    steps: tuple[RolloutStep, ...]
    tolerance: float
    controls: int
    false_alarm_bound: float
    canary: CanaryMetrics
    wrong_answers: int
    served: int
    failure: str


class _Scene:
    """The model, what watches it, and what was noted."""

    def __init__(self) -> None:
        random = np.random.default_rng(8)
        self.systems = random.integers(0, VOCABULARY, (_SYSTEMS, _SYSTEM_TOKENS))
        self.random = random
        self.reuse = PrefixReuse(
            tiny_deepseek_v4(), memory_bytes=1 << 23, verify="off", replay=False, checkpoint_tokens=_SYSTEM_TOKENS
        )
        controls = benign_controls(self.reuse, random.integers(0, VOCABULARY, (16, 48)), (17, 25, 32, 40))
        self.tolerance = Tolerance.calibrated(controls)
        self.now = 0.0
        policy = BreakerPolicy(mismatches=2, window_samples=50, cooldown_s=6, trial_samples=3)
        self.canary = Canary(self.reuse.cache, 1.0, self.tolerance, breaker=policy, clock=lambda: self.now)
        plan = RolloutPlan(shares=(0.5,), samples=samples_needed(_RATE_BOUND), rate_bound=_RATE_BOUND)
        self.rollout = Rollout(self.canary, plan, seed=1)
        self.checked = CheckedReuse(self.reuse, self.rollout)
        self.steps: list[RolloutStep] = []
        self.wrong = 0

    def serve(self, number: int, *, broken: bool) -> None:
        """Answer one question, and note what happened."""
        before, breaker = self.rollout.metrics(), self.breaker
        if broken:
            self.reuse.pages.pools["swa"].zero_()
        question = self.random.integers(0, VOCABULARY, _QUESTION_TOKENS)
        ids = torch.from_numpy(np.concatenate([self.systems[number % _SYSTEMS], question]))
        answer = self.checked.forward(ids, request=number)
        self.now += 1
        after, bad = self.rollout.metrics(), answer.outcome is not None and answer.outcome.mismatch
        differ, samples = before.mismatches + bad, before.samples + (answer.outcome is not None)
        bound = most_rate(differ, samples, self.rollout.plan.confidence) if samples else 1.0
        ended = samples, differ, bound
        if answer.outcome is not None and bad:
            self.wrong += answer.sample is not None and answer.sample.use_reused
            apart = answer.outcome.judgement.difference.largest
            blamed = ", ".join(map(str, answer.outcome.blamed))
            self.note(number, f"a logit is off by {apart:.2g}; laid to {blamed}", before.stage, *ended)
        if after.stage != before.stage:
            self.note(number, f"{before.stage} -> {after.stage}", after.stage, *ended)
        if self.breaker != breaker:
            self.note(number, f"breaker of windows: {breaker} -> {self.breaker}")

    @property
    def breaker(self) -> str:
        """State of the windows' breaker."""
        return str(self.canary.metrics().states["group:swa"])

    def note(self, request: int, event: str, stage: str = "", *ended: Any) -> None:
        """Add a step: at a stage with its counts, or as the rollout stands."""
        told = self.rollout.metrics()
        samples, mismatches, bound = ended or (told.samples, told.mismatches, told.upper_bound)
        self.steps.append(RolloutStep(request, event, stage or told.stage, samples, mismatches, bound, self.breaker))


def run_rollout(*, shown: bool = False) -> RolloutResult:
    """Roll out, break, back off, and roll out again.

    Parameters
    ----------
    shown : bool, optional
        Whether to show a progress bar on a terminal.

    Returns
    -------
    RolloutResult
    """
    scene = _Scene()
    scene.note(0, "it begins: every hit is decided, compared, and not used")
    number, broke_at = 0, _MOST_REQUESTS
    with progress("rollout", _MOST_REQUESTS, shown=shown) as step:
        while number < _MOST_REQUESTS:
            scene.serve(number, broken=broke_at <= number < broke_at + _SOUND_AFTER)
            number += 1
            step()
            full = scene.rollout.metrics().stage == "full"
            if full and broke_at == _MOST_REQUESTS:
                broke_at = number
                scene.note(number, "window pages lose their bytes")
            elif number == broke_at + _SOUND_AFTER:
                scene.reuse.cache.reset()
                scene.note(number, "window pages are sound again; what was stored is dropped")
            elif full and number > broke_at + _SOUND_AFTER:
                break
    metrics = scene.canary.metrics()
    told = scene.rollout.metrics()
    failures = []
    if told.stage != "full" or told.rollbacks != 1:
        failures.append(f"the rollout ended at {told.stage} after {told.rollbacks} rollbacks")
    if metrics.trips["group:swa"] != 1 or metrics.states["group:swa"] != "closed":
        failures.append("the breaker of the windows did not trip and close")
    return RolloutResult(
        tuple(scene.steps),
        scene.tolerance.first,
        scene.tolerance.controls,
        scene.tolerance.false_alarm_bound,
        metrics,
        scene.wrong,
        number,
        "; ".join(failures),
    )


def as_json(result: RolloutResult) -> dict[str, Any]:
    """Return the result as plain data: the fields of :class:`RolloutResult`, the counters of the canary by name."""
    return asdict(result)


def as_text(result: RolloutResult) -> str:
    """Return the result for people, a line for each thing that happened."""
    rows: list[Sequence[str]] = [_HEAD]
    for each in result.steps:
        counts = (str(each.samples), str(each.mismatches), f"{each.upper_bound:.0%}")
        rows.append((str(each.request), each.event, each.stage, *counts, each.breaker))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    told = result.canary
    lines = [
        f"A logit may be off by {result.tolerance:.2g}, {MARGIN:g} times the most of {result.controls} benign "
        f"comparisons; false alarms are below {result.false_alarm_bound:.1%}.",
        "",
        *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows),
        "",
        f"{result.served} answers, {told.compared} compared, {told.mismatches} differ "
        f"({told.mismatches_by_end['first']} at the first token, {told.mismatches_by_end['last']} at the last); "
        f"{result.wrong_answers} wrong ones were given before reuse went off; hits withheld by the breaker: "
        f"{sum(told.withheld.values())}.",
    ]
    return page(lines)
