# SPDX-License-Identifier: Apache-2.0
"""The same requests through every policy, each answer beside the recomputed one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import DynamicCache

from hybridkv.adapters.transformers.layout import CacheLayout
from hybridkv.demo.answers import Answer, Lost, Meter, Policy, Recompute, Tokens, as_array, step
from hybridkv.demo.boundaries import Boundaries
from hybridkv.demo.conversations import ANSWER_TOKENS, CONVERSATIONS, Conversation, order_of_requests
from hybridkv.demo.hash_hit import HashHit
from hybridkv.demo.states import wrong_groups
from hybridkv.kinds import StateKind
from hybridkv.metrics import Metrics

NOISE = 1e-3
"""Difference of logits that computing a prompt in other chunks may make; float32 makes about 1e-5."""


@dataclass(frozen=True, slots=True)
class Request:
    """One turn of a conversation, and its right answer.

    Attributes
    ----------
    conversation : str
        Its name.
    turn : int
        From 0.
    prompt : ndarray
        Token ids, int64 [[tokens]].
    right : Answer
        What recomputation answers.
    """

    conversation: str
    turn: int
    prompt: Tokens
    right: Answer


@dataclass(frozen=True, slots=True)
class Served:
    """How one request was served, beside how it should have been.

    Attributes
    ----------
    request : Request
    hit_tokens, reused_tokens : int
        Of the prompt: what hashes promised, and what was resumed from.
    computed_tokens : int
        Tokens the model ran before the first token of the answer was known, replays included.
    wrong : bool
        Whether the answer is another one than the recomputed one.
    first_difference, last_difference : float
        Largest difference of a logit from the recomputed one, where the first and where the last token of the
        right answer is chosen; the latter behind the right answer's own tokens.
    lost : Lost or None
        As the policy says.
    wrong_groups : dict of str to StateKind
        Cache groups that the request resumed from although they did not hold what belongs there, found by recomputing;
        only looked for under the hash-hit rule.
    """

    request: Request
    hit_tokens: int
    reused_tokens: int
    computed_tokens: int
    wrong: bool
    first_difference: float
    last_difference: float
    lost: Lost | None
    wrong_groups: dict[str, StateKind]


@dataclass(slots=True)
class Score:
    """One policy on one model.

    Attributes
    ----------
    policy : str
    served : list of Served
        In order of arrival.
    seconds : float
        Spent in answering.
    note : str
        What is special about the policy.
    metrics : Metrics or None
        The counters of the cache behind the policy, if it has one.
    kept_bytes : int
        Pages of that cache that hold something at the end.
    """

    policy: str
    served: list[Served] = field(default_factory=list)
    seconds: float = 0.0
    note: str = ""
    metrics: Metrics | None = None
    kept_bytes: int = 0

    @property
    def requests(self) -> int:
        """Number of requests."""
        return len(self.served)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(served.request.prompt.size for served in self.served)

    @property
    def hits(self) -> list[Served]:
        """Requests for which hashes promised something."""
        return [served for served in self.served if served.hit_tokens]

    @property
    def hit_tokens(self) -> int:
        """Tokens promised."""
        return sum(served.hit_tokens for served in self.served)

    @property
    def effective(self) -> list[Served]:
        """Requests that resumed from something and got the recomputed answer."""
        return [served for served in self.served if served.reused_tokens and not served.wrong]

    @property
    def effective_tokens(self) -> int:
        """Tokens those resumed from."""
        return sum(served.reused_tokens for served in self.effective)

    @property
    def reused_tokens(self) -> int:
        """Tokens resumed from, rightly or not."""
        return sum(served.reused_tokens for served in self.served)

    @property
    def computed_tokens(self) -> int:
        """Tokens run for prompts."""
        return sum(served.computed_tokens for served in self.served)

    @property
    def wrong(self) -> int:
        """Answers other than the recomputed ones."""
        return sum(served.wrong for served in self.served)

    @property
    def off(self) -> int:
        """Answers whose logits are further from the recomputed ones than :data:`NOISE`, wrong ones included."""
        return sum(max(served.first_difference, served.last_difference) > NOISE for served in self.served)

    @property
    def lost(self) -> list[Served]:
        """Requests of which less was resumed than promised."""
        return [served for served in self.served if served.lost is not None]


@dataclass(frozen=True, slots=True)
class ModelResult:
    """All policies on one model.

    Attributes
    ----------
    name : str
        Of the model.
    layers : str
        Its layers in a few words.
    parameters : int
    scores : tuple of Score
        By policy; the first is the recomputation that all others are compared with.
    boundaries : Boundaries
        What the last policy's cache holds of one conversation.
    """

    name: str
    layers: str
    parameters: int
    scores: tuple[Score, ...]
    boundaries: Boundaries


def recompute(
    model: Any, step: Callable[[], None], conversations: Sequence[Conversation] = CONVERSATIONS
) -> tuple[list[Request], Score]:
    """Hold the conversations without any reuse.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Over bytes.
    step : callable
        Called after each request.
    conversations : sequence of Conversation
        Who talks.

    Returns
    -------
    list of Request
        In order of arrival; each prompt carries what the model answered before.
    Score
        Of the recomputation.
    """
    policy = Recompute(model)
    answers: list[list[Sequence[int]]] = [[] for _ in conversations]
    requests, score = [], Score(policy.name)
    for index, turn in order_of_requests(conversations):
        prompt = conversations[index].prompt(answers[index])
        meter, began = Meter(), time.perf_counter()
        with meter.on(model):
            right = policy.answer(prompt, ANSWER_TOKENS)
        score.seconds += time.perf_counter() - began
        answers[index].append(right.tokens)
        requests.append(Request(conversations[index].name, turn, prompt, right))
        score.served.append(_compare(model, requests[-1], right, meter, {}))
        step()
    return requests, score


def serve(policy: Policy, model: Any, requests: Sequence[Request], step: Callable[[], None]) -> Score:
    """Serve requests by a policy and compare each answer with the right one.

    Parameters
    ----------
    policy : Policy
        Fresh: it has seen nothing yet.
    model : transformers.PreTrainedModel
        The policy's.
    requests : sequence of Request
        In order of arrival.
    step : callable
        Called after each request.

    Returns
    -------
    Score
        Without metrics.
    """
    score = Score(policy.name)
    for request in requests:
        wrong = _wrong_groups(policy, model, request) if isinstance(policy, HashHit) else {}
        meter, began = Meter(), time.perf_counter()
        with meter.on(model):
            answer = policy.answer(request.prompt, ANSWER_TOKENS)
        score.seconds += time.perf_counter() - began
        score.served.append(_compare(model, request, answer, meter, wrong))
        step()
    return score


def _compare(model: Any, request: Request, answer: Answer, meter: Meter, wrong: dict[str, StateKind]) -> Served:
    right = request.right
    last_logits = answer.last_logits
    if answer.tokens[:-1] != right.tokens[:-1] and answer.at_prompt_end is not None:
        last_logits = as_array(step(model, right.tokens[:-1], answer.at_prompt_end)[-1])
    return Served(
        request,
        answer.hit_tokens,
        answer.reused_tokens,
        meter.tokens - (len(answer.tokens) - 1),  # all but the last token of an answer are run too
        answer.tokens != right.tokens,
        _difference(answer.first_logits, right.first_logits),
        _difference(last_logits, right.last_logits),
        answer.lost,
        wrong,
    )


def _difference(ours: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> float:
    return float(np.abs(ours - theirs).max())


def _wrong_groups(policy: HashHit, model: Any, request: Request) -> dict[str, StateKind]:
    resumed, tokens = policy.resume(request.prompt)
    if tokens == 0:
        return {}
    right = DynamicCache(config=model.config)
    step(model, request.prompt[:tokens], right)
    return wrong_groups(CacheLayout(model.config, right, unit_tokens=policy.block_tokens), resumed, right)
