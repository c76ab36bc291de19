# SPDX-License-Identifier: Apache-2.0
"""Running a model over a cache, whatever its version calls the argument."""

from __future__ import annotations

import inspect
from typing import Any

import torch


class Runner:
    """Forward passes of one model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model.
    single_steps : bool
        After the first forward tokens go in one by one, because more at a time would not continue it (:mod:`.trial`).

    Attributes
    ----------
    cache_argument : str
        ``cache`` from transformers 5.24 on, ``past_key_values`` before.
    """

    def __init__(self, model: Any, *, single_steps: bool) -> None:
        self.model = model
        self.single_steps = single_steps
        arguments = inspect.signature(model.forward).parameters
        self.cache_argument = "cache" if "cache" in arguments else "past_key_values"
        self._keeps = "logits_to_keep" in arguments
        self._positions = "position_ids" in arguments

    @property
    def device(self) -> torch.device:
        """Where the model's inputs go."""
        return torch.device(self.model.device)

    def run(self, ids: torch.Tensor, past: Any, start: int, *, all_logits: bool = False) -> torch.Tensor:
        """Run tokens behind what a cache holds; the cache then holds them too.

        Parameters
        ----------
        ids : torch.Tensor
            [[rows, tokens]] int64, without padding.
        past : transformers.Cache
            At position ``start``.
        start : int
            In tokens. Positions are always passed: one architecture counts from 0 where they are not.
        all_logits : bool, optional
            Logits of all tokens instead of the last.

        Returns
        -------
        torch.Tensor
            [[rows, tokens, vocabulary]], or [[rows, 1, vocabulary]].
        """
        with torch.no_grad():
            if self.single_steps and start > 0 and ids.shape[1] > 1:
                steps = [self._step(ids[:, i : i + 1], past, start + i, False) for i in range(ids.shape[1])]
                return torch.cat(steps, dim=1) if all_logits else steps[-1]
            return self._step(ids, past, start, all_logits)

    def _step(self, ids: torch.Tensor, past: Any, start: int, all_logits: bool) -> torch.Tensor:
        arguments: dict[str, Any] = {"input_ids": ids, self.cache_argument: past, "use_cache": True}
        if self._positions:
            positions = torch.arange(start, start + ids.shape[1], device=ids.device)
            arguments["position_ids"] = positions.unsqueeze(0).expand(ids.shape[0], -1)
        if self._keeps and not all_logits:
            arguments["logits_to_keep"] = 1
        logits: torch.Tensor = self.model(**arguments).logits
        return logits if all_logits else logits[:, -1:]
