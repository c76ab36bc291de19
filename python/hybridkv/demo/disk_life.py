# SPDX-License-Identifier: Apache-2.0
"""What both processes of the disk demo are made of, and the first of them: it talks, stores, and waits to be killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.utils import logging

from hybridkv.adapters.transformers import PrefixReuse, RowReuse
from hybridkv.demo.answers import Tokens
from hybridkv.demo.conversations import ANSWER_TOKENS, CONVERSATIONS, Conversation, order_of_requests
from hybridkv.demo.models import tiny_deepseek_v4, tiny_qwen3_next
from hybridkv.demo.threads import one_thread
from hybridkv.tiers import DiskTier, Tier

REGION_BYTES = 1 << 20
STORE_BYTES = 48 << 20
TALKS = ("late parcel", "null lease", "broken vase", "short read")


@dataclass(frozen=True, slots=True)
class Speaker:
    """A model of the demo.

    Attributes
    ----------
    name, layers : str
        For people.
    make : callable
        Gives it, the same weights in every process.
    memory_bytes : int
        Of its pages: less than its conversations take.
    """

    name: str
    layers: str
    make: Callable[[], Any]
    memory_bytes: int


SPEAKERS = {
    "deepseek-v4": Speaker(
        "DeepSeek-V4",
        "5 layers (sliding, CSA, HCA, CSA, HCA), window 16, ratios 4 and 16",
        tiny_deepseek_v4,
        2 << 20,
    ),
    "qwen3-next": Speaker("Qwen3-Next", "3 layers of gated delta rule, 1 of full attention", tiny_qwen3_next, 2 << 20),
}


@dataclass(frozen=True, slots=True)
class Said:
    """One answer.

    Attributes
    ----------
    tokens : tuple of int
    logits : ndarray
        That chose them, float32 [[tokens, vocabulary]].
    """

    tokens: tuple[int, ...]
    logits: npt.NDArray[np.float32]


def talks() -> tuple[Conversation, ...]:
    """Return the conversations of this demo."""
    return tuple(conversation for conversation in CONVERSATIONS if conversation.name in TALKS)


def open_store(folder: Path) -> DiskTier:
    """Open a store of the demo, or make it."""
    return DiskTier(folder, STORE_BYTES, region_bytes=REGION_BYTES)


def reuse_over(model: Any, tier: Tier | None, memory_bytes: int) -> PrefixReuse:
    """Make what talks, without replay: whoever resumes does so where everybody would, at the end of what was said.

    So it computes in the same pieces: bit for bit the same.
    """
    return PrefixReuse(model, tier=tier, memory_bytes=memory_bytes, replay=False)


def answer(generate: Callable[..., Any], prompt: Tokens) -> Said:
    """Answer a prompt by a ``generate``, each token the likeliest."""
    ids = torch.from_numpy(prompt)[None]
    out = generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=ANSWER_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    tokens = tuple(int(token) for token in out.sequences[0, prompt.size :])
    return Said(tokens, torch.cat(list(out.logits)).detach().float().numpy().copy())


def talk(
    reuse: PrefixReuse, conversations: Sequence[Conversation], step: Callable[[], None], *, last: bool
) -> tuple[list[list[Said]], list[RowReuse]]:
    """Hold conversations.

    Parameters
    ----------
    reuse : PrefixReuse
    conversations : sequence of Conversation
    step : callable
        Called after each turn.
    last : bool
        Hold the last turn of each as well.

    Returns
    -------
    list of list of Said
        By conversation and turn.
    list of RowReuse
        In order of the turns.
    """
    answers: list[list[Said]] = [[] for _ in conversations]
    rows = []
    for index, turn in order_of_requests(conversations):
        if turn + 1 < len(conversations[index].turns) or last:
            prompt = conversations[index].prompt([said.tokens for said in answers[index]])
            answers[index].append(answer(reuse.generate, prompt))
            rows.append(reuse.last_rows[0])
        step()
    return answers, rows


def quiet() -> None:
    """Keep transformers from telling of kernels that a model this small does not need."""
    logging.set_verbosity_error()


def first_life(key: str, folder: Path) -> dict[str, Any]:
    """Hold all turns but the last of each conversation, and see all of it stored; nothing is closed.

    Parameters
    ----------
    key : str
        Of :data:`SPEAKERS`.
    folder : Path
        Of the store.

    Returns
    -------
    dict
        ``answers``: tokens by conversation and turn; what was stored, and what went from memory meanwhile.
    """
    speaker = SPEAKERS[key]
    tier = open_store(folder)
    reuse = reuse_over(speaker.make(), tier, speaker.memory_bytes)
    answers, rows = talk(reuse, talks(), lambda: None, last=False)
    reuse.flush()
    usage = tier.usage()
    return {
        "answers": [[list(said.tokens) for said in of] for of in answers],
        "turns": len(rows),
        "prompt_tokens": sum(row.tokens for row in rows),
        "reloaded_turns": sum(row.loaded is not None and row.loaded.tokens > 0 for row in rows),
        "evicted_pages": reuse.cache.metrics().retired,
        "page_bytes": sum(reuse.cache.pages[g.name] * g.total_page_bytes for g in reuse.cache.spec.groups),
        "records": usage.records,
        "record_bytes": usage.bytes,
        "not_written": dict(reuse.not_written),
        "not_kept": dict(reuse.not_stored),
    }


def main(arguments: Sequence[str]) -> None:
    """Live: ``disk_life MODEL FOLDER``; tell on stdout, and wait for the end on stdin."""
    key, folder = arguments
    quiet()
    with one_thread():
        print(json.dumps(first_life(key, Path(folder))), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
