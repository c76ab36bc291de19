# SPDX-License-Identifier: Apache-2.0
"""Two models times three policies: which there are, and all of them served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridkv.demo.boundaries import Boundaries, read_boundaries
from hybridkv.demo.conversations import CONVERSATIONS, Conversation, order_of_requests
from hybridkv.demo.hash_hit import HashHit
from hybridkv.demo.hybrid import Hybrid
from hybridkv.demo.models import tiny_deepseek_v4, tiny_llama
from hybridkv.demo.serving import ModelResult, Request, Score, recompute, serve
from hybridkv.demo.threads import one_thread
from hybridkv.replay.progress import progress

DRAWN = "short read"
"""The conversation of the picture: one of four turns."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run hybridkv.

    Attributes
    ----------
    name : str
        Of the policy.
    note : str
        What is special about it.
    options : mapping
        Of :class:`~hybridkv.adapters.transformers.PrefixReuse`.
    """

    name: str
    note: str
    options: Mapping[str, Any]


PLAIN = Setting("hybridkv", "states kept every 16 tokens, and where a prompt or an answer ends", {})
ENDS = Setting(
    "hybridkv, ends",
    "states kept where a prompt or an answer ends; elsewhere windows are replayed over the history",
    {"checkpoint_tokens": 4096},
)
SCARCE = Setting(
    "hybridkv, scarce",
    "states kept every 320 tokens and at ends, all in 1 MiB; no replay",
    {"checkpoint_tokens": 320, "memory_bytes": 1 << 20, "replay": False},
)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A model and what it is served by, beside recomputation and the hash-hit rule."""

    name: str
    layers: str
    make: Callable[[], Any]
    settings: tuple[Setting, ...]


CONTESTANTS = (
    Contestant(
        "DeepSeek-V4",
        "5 layers (sliding, CSA, HCA, CSA, HCA), window 16, ratios 4 and 16",
        tiny_deepseek_v4,
        (PLAIN, ENDS, SCARCE),
    ),
    Contestant("Llama", "5 layers of full attention", tiny_llama, (PLAIN,)),
)


def run_models(conversations: Sequence[Conversation] = CONVERSATIONS, *, shown: bool = False) -> list[ModelResult]:
    """Serve all requests on both models by every policy.

    Parameters
    ----------
    conversations : sequence of Conversation
        Who talks; :data:`DRAWN` is among them.
    shown : bool
        Whether to show a progress bar on a terminal.

    Returns
    -------
    list of ModelResult
        In the order of :data:`CONTESTANTS`. The boundaries are those of the last setting.
    """
    results = []
    with one_thread():
        for contestant in CONTESTANTS:
            steps = (2 + len(contestant.settings)) * len(order_of_requests(conversations))
            with progress(contestant.name, steps, shown=shown) as step:
                results.append(_run(contestant, conversations, step))
    return results


def _run(contestant: Contestant, conversations: Sequence[Conversation], step: Callable[[], None]) -> ModelResult:
    model = contestant.make()
    requests, reference = recompute(model, step, conversations)
    scores = [reference, serve(HashHit(model), model, requests, step)]
    for setting in contestant.settings:
        policy = Hybrid(model, setting.name, **setting.options)
        score, boundaries = serve_hybrid(policy, model, requests, step, note=setting.note)
        scores.append(score)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return ModelResult(contestant.name, contestant.layers, parameters, tuple(scores), boundaries)


def serve_hybrid(
    policy: Hybrid, model: Any, requests: Sequence[Request], step: Callable[[], None], *, note: str = ""
) -> tuple[Score, Boundaries]:
    """Serve requests by hybridkv; read its counters, and then what it holds of one conversation.

    Parameters
    ----------
    policy : Hybrid
        Fresh.
    model : transformers.PreTrainedModel
        The policy's.
    requests : sequence of Request
        In order of arrival; the conversation :data:`DRAWN` is among them.
    step : callable
        Called after each request.
    note : str
        What is special about the policy.

    Returns
    -------
    Score
        With metrics.
    Boundaries
        Of the conversation at its end.
    """
    score = serve(policy, model, requests, step)
    cache = policy.reuse.cache
    score.note, score.metrics = note, cache.metrics()
    for group in cache.spec.groups:
        counts = score.metrics.pages[group.name]
        score.kept_bytes += (counts.cached + counts.held) * group.total_page_bytes
    own = [request for request in requests if request.conversation == DRAWN]
    unfed = len(own[-1].right.tokens) - 1  # the last token of an answer has no state yet
    tokens = np.concatenate([own[-1].prompt, own[-1].right.tokens[:unfed]])
    boundaries = read_boundaries(
        cache,
        tokens,
        title=f"Where the conversation '{DRAWN}' could resume once it has ended, group by group",
        note=f"{policy.name}: {note}",
        prompt_ends=[request.prompt.size for request in own],
        answer_ends=[request.prompt.size + unfed for request in own],
    )
    return score, boundaries
