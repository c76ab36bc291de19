# SPDX-License-Identifier: Apache-2.0
"""What every policy is asked and what it answers: the same prompt, 16 greedy tokens, the logits at both ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from hybridkv.adapters.transformers.layout import position_of
from hybridkv.adapters.transformers.runner import Runner

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lost:
    """Why less was resumed from than a hash promised.

    Attributes
    ----------
    check, kind : str
        The check that took most of it, and the kind of state that it found wanting.
    group, code, detail : str
        The cache group, what is the matter with it in a word, and in a sentence for an operator.
    """

    check: str
    kind: str
    group: str
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy answered, and how it got there.

    Attributes
    ----------
    tokens : tuple of int
        Chosen greedily.
    first_logits, last_logits : ndarray
        Those that chose the first and the last token, float64 [[vocabulary]].
    hit_tokens : int
        Prompt tokens that a lookup of hashes promised.
    reused_tokens : int
        Prompt tokens that were resumed from and not computed.
    lost : Lost or None
        Why `reused_tokens` is less than `hit_tokens`, where the policy knows.
    at_prompt_end : transformers.Cache or None
        The policy's cache as it stood at the end of the prompt, for those who compare.
    """

    tokens: tuple[int, ...]
    first_logits: npt.NDArray[np.float64]
    last_logits: npt.NDArray[np.float64]
    hit_tokens: int = 0
    reused_tokens: int = 0
    lost: Lost | None = None
    at_prompt_end: Any = None


class Policy(Protocol):
    """One way to serve requests; it keeps what it likes from one to the next."""

    @property
    def name(self) -> str:
        """A few words."""
        ...

    def answer(self, prompt: Tokens, count: int) -> Answer:
        """Answer a prompt by ``count`` tokens, each the likeliest."""
        ...


class Meter:
    """Counts the tokens that a model really runs, whoever calls it.

    Attributes
    ----------
    tokens : int
        So far.
    """

    def __init__(self) -> None:
        self.tokens = 0

    @contextmanager
    def on(self, model: Any) -> Iterator[Meter]:
        """Count while the block runs."""
        handle = model.register_forward_pre_hook(self._count, with_kwargs=True)
        try:
            yield self
        finally:
            handle.remove()

    def _count(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = args[0] if args else kwargs["input_ids"]
        self.tokens += int(ids.numel())


class Recompute:
    """No reuse: transformers' own ``generate`` on the whole prompt. What it says is right by definition."""

    name = "no reuse"

    def __init__(self, model: Any) -> None:
        self._model = model

    def answer(self, prompt: Tokens, count: int) -> Answer:
        """Answer a prompt; see :class:`Policy`."""
        ids = torch.from_numpy(prompt)[None]
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        tokens = tuple(int(token) for token in out.sequences[0, prompt.size :])
        return Answer(tokens, as_array(out.logits[0][0]), as_array(out.logits[-1][0]))


def step(model: Any, tokens: Sequence[int] | Tokens, past: Any) -> torch.Tensor:
    """Run tokens after what a cache holds.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model.
    tokens : sequence of int
        At least one.
    past : transformers.Cache
        Grows by these tokens.

    Returns
    -------
    torch.Tensor
        Logits after each of them, [[tokens, vocabulary]].
    """
    ids = torch.as_tensor(tokens, dtype=torch.int64)[None]
    return Runner(model, single_steps=False).run(ids, past, position_of(past), all_logits=True)[0]


def as_array(logits: torch.Tensor) -> npt.NDArray[np.float64]:
    """Copy logits out of torch, as float64."""
    array: npt.NDArray[np.float64] = logits.detach().to(torch.float64).numpy().copy()
    return array
