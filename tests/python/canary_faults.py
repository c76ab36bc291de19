# SPDX-License-Identifier: Apache-2.0
"""Answers of a real model over right and over broken states, many rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import DynamicCache

from faults import FAULTS, Context, Fault, State
from faults.live import CONTINUED_TOKENS, Live
from hybridkv.adapters.transformers import PrefixReuse, benign_controls
from hybridkv.adapters.transformers.checked import ends_of, recomputed
from hybridkv.adapters.transformers.rebuild import rebuilt
from hybridkv.canary import Ends, Tolerance


class Answer(NamedTuple):
    """A reused answer beside the recomputed one; ``reused`` is None where the model raised."""

    reused: Ends | None
    recomputed: Ends


class Answers:
    """What one model answers.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    positions : sequence of int
        Where states are broken.
    alone_at : sequence of int
        Those of them at which faults that change counts or shapes are tried too: each takes a pass of its own.
    """

    def __init__(self, model: Any, positions: Sequence[int], alone_at: Sequence[int]) -> None:
        self.model, self.positions, self.alone_at = model, positions, alone_at
        self.live = Live(model)
        self.reuse = PrefixReuse(model, memory_bytes=1 << 23)

    def prompts(self, seed: int, rows: int, tokens: int) -> torch.Tensor:
        """Return prompts of random tokens, [[rows, tokens]]."""
        return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (rows, tokens)))

    @cached_property
    def tolerance(self) -> Tolerance:
        """Calibrated by 216 benign comparisons."""
        return Tolerance.calibrated(benign_controls(self.reuse, self.prompts(5, 24, 80), range(8, 80, 8)))

    def unbroken(self, seed: int, rows: int, tokens: int, starts: Sequence[int]) -> Iterator[Answer]:
        """Yield answers over states that were taken apart and put together again, one for each row and start."""
        ids = self.prompts(seed, rows, tokens)
        whole = recomputed(self.reuse, ids)
        layout, past = self.live.layout, DynamicCache(config=self.model.config)
        for begin, end in pairwise([0, *starts, tokens]):
            if begin:
                past = rebuilt(layout, [layout.state(past, begin, row) for row in range(rows)], begin)
            logits = self.live.runner.run(ids[:, begin:end], past, begin, all_logits=True)
            if begin:
                for reused, right in zip(logits, whole[:, begin:end], strict=True):
                    yield Answer(ends_of(reused), ends_of(right))

    def broken(self) -> dict[str, list[Answer | None]]:
        """Return the answers over each kind of broken state; None at a position where the fault does not act."""
        found: dict[str, list[Answer | None]] = {}
        longest = max(self.positions) + CONTINUED_TOKENS
        whole = recomputed(self.reuse, self.live.prompt[None, :longest])[0]
        for tokens in self.positions:
            context, state = self.live.context(tokens), self.live.state(tokens)
            right = ends_of(whole[tokens : tokens + CONTINUED_TOKENS])
            together: list[tuple[Fault, State]] = []
            for fault in FAULTS.values():
                made = fault.apply(state, context)
                if made is not None and _alike(fault, state, made):
                    together.append((fault, made))
                elif made is not None and tokens in self.alone_at:
                    found.setdefault(fault.name, []).append(Answer(self._alone(made, context, fault), right))
                elif made is None:
                    found.setdefault(fault.name, []).append(None)
            past = rebuilt(self.live.layout, [made for _, made in together], tokens)
            suffix = self.live.prompt[None, tokens : tokens + CONTINUED_TOKENS].expand(len(together), -1)
            logits = self.live.runner.run(suffix, past, tokens, all_logits=True)
            for (fault, _), reused in zip(together, logits, strict=True):
                found.setdefault(fault.name, []).append(Answer(ends_of(reused), right))
        return {name: answers for name, answers in found.items() if any(answers)}

    def _alone(self, made: State, context: Context, fault: Fault) -> Ends | None:
        answer = self.live.answer(made, context, fault)
        return None if isinstance(answer, str) else ends_of(answer)


def _alike(fault: Fault, state: State, made: State) -> bool:
    """Whether a broken state has the shapes of the right one, so that it goes into a batch."""
    if fault.counts is not None or made.keys() != state.keys():
        return False
    return all((made[p].shape, made[p].dtype) == (state[p].shape, state[p].dtype) for p in state)
