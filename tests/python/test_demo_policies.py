# SPDX-License-Identifier: Apache-2.0
"""The demo's claim, on the beginnings of some of its conversations: the hash-hit rule changes the text, hybridkv does
not. ``make demo`` shows it on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is absent: the demo's models need it")
pytest.importorskip("transformers", reason="transformers is absent: the demo's models need it")

from hybridkv.adapters.transformers.pages import Pages  # noqa: E402
from hybridkv.demo.answers import Meter, Recompute, step  # noqa: E402
from hybridkv.demo.conversations import CONVERSATIONS  # noqa: E402
from hybridkv.demo.hash_hit import HashHit  # noqa: E402
from hybridkv.demo.hybrid import Hybrid  # noqa: E402
from hybridkv.demo.models import tiny_deepseek_v4, tiny_llama  # noqa: E402
from hybridkv.demo.serving import NOISE, Request, Score, recompute, serve  # noqa: E402
from hybridkv.errors import ArgumentError  # noqa: E402
from hybridkv.kinds import StateKind  # noqa: E402

TALKS = tuple(replace(talk, turns=talk.turns[:2]) for talk in CONVERSATIONS[:4])  # two under each system prompt


def nothing() -> None:
    """The step of a run that shows no progress."""


class Stage:
    """A model, its requests and the right answers."""

    def __init__(self, make: Callable[[], Any]) -> None:
        torch.set_num_threads(1)
        self.model = make()
        self.requests, self.reference = recompute(self.model, nothing, TALKS)

    def serve(self, policy: Any) -> Score:
        return serve(policy, self.model, self.requests, nothing)


@pytest.fixture(scope="module")
def v4() -> Stage:
    return Stage(tiny_deepseek_v4)


@pytest.fixture(scope="module")
def llama() -> Stage:
    return Stage(tiny_llama)


@pytest.fixture(scope="module")
def v4_hash_hit(v4: Stage) -> Score:
    return v4.serve(HashHit(v4.model))


def test_recomputation_is_the_reference_and_reuses_nothing(v4: Stage) -> None:
    assert v4.reference.requests == sum(len(talk.turns) for talk in TALKS)
    assert v4.reference.computed_tokens == v4.reference.prompt_tokens
    assert (v4.reference.wrong, v4.reference.off, len(v4.reference.hits)) == (0, 0, 0)
    for earlier, later in zip(v4.requests, v4.requests[len(TALKS) :], strict=False):
        if earlier.conversation == later.conversation:
            said = np.concatenate([earlier.prompt, earlier.right.tokens])
            assert np.array_equal(later.prompt[: said.size], said), "a prompt carries what was answered"


def test_the_hash_hit_rule_answers_wrongly_on_deepseek_v4(v4_hash_hit: Score) -> None:
    assert len(v4_hash_hit.hits) == v4_hash_hit.requests - 2, "all but the first under each system prompt"
    assert v4_hash_hit.wrong >= len(v4_hash_hit.hits) // 2
    assert v4_hash_hit.off == len(v4_hash_hit.hits), "where the text is right, the logits are not"
    assert len(v4_hash_hit.effective) == len(v4_hash_hit.hits) - v4_hash_hit.wrong
    for served in v4_hash_hit.served:
        assert bool(served.wrong_groups) == bool(served.hit_tokens)
        assert not served.hit_tokens or served.wrong_groups["overlap"] is StateKind.TAIL


def test_false_hits_poison_the_history_of_later_ones(v4_hash_hit: Score) -> None:
    first, later = v4_hash_hit.served[: len(TALKS)], v4_hash_hit.served[len(TALKS) :]
    assert all("csa" not in served.wrong_groups for served in first)
    assert any(served.wrong_groups.get("csa") is StateKind.COMPRESSED for served in later)
    assert any(served.wrong_groups.get("indexer") is StateKind.INDEXER for served in later)


def test_the_hash_hit_rule_is_right_on_llama(llama: Stage) -> None:
    score = llama.serve(HashHit(llama.model))
    assert len(score.hits) == len(score.effective) == score.requests - 2
    assert (score.wrong, score.off) == (0, 0)
    assert not any(served.wrong_groups for served in score.served)
    assert score.computed_tokens == score.prompt_tokens - score.reused_tokens


def test_a_manager_that_forgets_the_overlap_alone_is_wrong(v4: Stage) -> None:
    score = v4.serve(HashHit(v4.model, keeps={"window"}))
    assert score.wrong > 0
    assert score.off == len(score.hits)
    assert all("overlap" in served.wrong_groups for served in score.hits)
    assert set(score.hits[0].wrong_groups) == {"overlap"}


def test_a_manager_that_forgets_windows_alone_is_wrong(v4: Stage) -> None:
    score = v4.serve(HashHit(v4.model, keeps={"overlap"}))
    assert score.off > 0
    assert set(score.hits[0].wrong_groups) == {"swa"}


def test_a_manager_that_keeps_both_is_right(v4: Stage) -> None:
    score = v4.serve(HashHit(v4.model, keeps={"window", "overlap"}))
    assert len(score.effective) == score.requests - 2
    assert (score.wrong, score.off) == (0, 0)
    assert not any(served.wrong_groups for served in score.served)


@pytest.mark.parametrize("stage", ["v4", "llama"])
def test_hybridkv_answers_as_recomputation_does(stage: str, request: pytest.FixtureRequest) -> None:
    on: Stage = request.getfixturevalue(stage)
    policy = Hybrid(on.model)
    score = on.serve(policy)
    assert len(score.effective) == score.requests - 2
    assert (score.wrong, score.off, score.lost) == (0, 0, [])
    assert score.computed_tokens == score.prompt_tokens - score.reused_tokens
    metrics = policy.reuse.cache.metrics()
    assert (metrics.lookups, metrics.misses, metrics.false_hits_total, metrics.pending) == (score.requests, 2, 0, 0)
    assert metrics.effective_hits == len(score.effective)
    assert metrics.effective_hits_tokens == score.reused_tokens
    assert metrics.lookups_tokens == score.prompt_tokens


def test_hybridkv_gives_a_reason_for_every_lost_hit(v4: Stage) -> None:
    policy = Hybrid(v4.model, checkpoint_tokens=320, replay=False)
    score = v4.serve(policy)
    metrics = policy.reuse.cache.metrics()
    short = [served for served in score.served if served.reused_tokens < served.hit_tokens]
    assert short == score.lost
    assert len(short) >= 2, "the end of the system prompt is no boundary that is kept"
    assert all(served.lost is not None and served.lost.check == "GROUPS" for served in short)
    assert {served.lost.group for served in short if served.lost} <= {"swa", "overlap"}
    assert (score.wrong, score.off) == (0, 0)
    lost = sum(sum(kinds.values()) for kinds in metrics.lost_tokens.values())
    assert lost == score.hit_tokens - score.reused_tokens
    assert metrics.false_hits_total == sum(served.reused_tokens == 0 for served in short)
    assert len(score.hits) == metrics.lookups - metrics.misses


def test_an_engine_that_forgets_the_overlap_shows_as_wrong_texts(v4: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Pages.read

    def forgetful(self: Pages, *args: Any, **options: Any) -> Any:
        state = read(self, *args, **options)
        return {place: torch.zeros_like(rows) if place.group == "overlap" else rows for place, rows in state.items()}

    monkeypatch.setattr(Pages, "read", forgetful)
    score = v4.serve(Hybrid(v4.model))
    assert score.wrong > 0
    assert score.off == len(score.hits)
    assert len(score.effective) < len(score.hits)


def test_the_last_logits_are_compared_behind_the_right_answer(v4: Stage) -> None:
    """A text that left the right one early has other inputs at its end; the comparison does not go by those."""
    request = v4.requests[0]
    past = HashHit(v4.model).resume(request.prompt[:1])[0]
    step(v4.model, request.prompt, past)

    class Astray:
        name = "astray"

        def answer(self, prompt: Any, count: int) -> Any:
            right = Recompute(v4.model).answer(prompt, count)
            strayed = tuple((token + 1) % 256 for token in right.tokens)
            noise = np.full_like(right.last_logits, 1e9)
            return type(right)(strayed, right.first_logits, noise, at_prompt_end=past)

    served = serve(Astray(), v4.model, [request], nothing).served[0]
    assert served.wrong
    assert served.last_difference < NOISE


def test_the_meter_counts_what_a_model_runs_and_then_lets_go(llama: Stage) -> None:
    meter = Meter()
    with meter.on(llama.model):
        llama.model(torch.zeros((2, 3), dtype=torch.int64))
        llama.model(input_ids=torch.zeros((1, 4), dtype=torch.int64))
    llama.model(torch.zeros((1, 5), dtype=torch.int64))
    assert meter.tokens == 10


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"block_tokens": 8}, "block_tokens"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"window_pages": 1}, "window_pages"),
        ({"keeps": ["windows"]}, "keeps"),
    ],
)
def test_the_hash_hit_rule_refuses_what_it_cannot_do(v4: Stage, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        HashHit(v4.model, **options)
    assert caught.value.field == field


def test_a_window_of_several_blocks_is_read_from_all_of_them() -> None:
    torch.set_num_threads(1)
    model = tiny_deepseek_v4(window=40)
    requests, _ = recompute(model, nothing, TALKS[:1])
    score = serve(HashHit(model, keeps={"window", "overlap"}), model, requests, nothing)
    assert len(score.effective) == score.requests - 1
    assert score.off == 0
    assert isinstance(requests[0], Request)
