# SPDX-License-Identifier: Apache-2.0
"""A trial at start: does a model, as it is installed here, go on from its own cache, and from a restored one?

Two questions. A restored state has to continue bit for bit as the live cache does: else the cache is not all of the
state. And a prompt in two parts has to mean what it means in one: some models restart a recurrence when more than one
token comes in, and some releases mask compressed entries differently; then a correct state continues wrongly, by
the code that continues it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from hybridkv.adapters.transformers.layout import least_unit
from hybridkv.adapters.transformers.runner import Runner
from hybridkv.errors import UnsupportedModel

_LEAST_UNIT = 16
_ROUNDING = {torch.float32: 0.02, torch.float64: 0.02}
"""Largest difference between parts and whole in standard deviations of the logits; rounding is a hundredth of it."""

_COARSE_ROUNDING = 0.5
"""The same for dtypes of 8 bits of mantissa and less."""

Restore = Callable[[Any, int], Any]
"""(live cache, tokens) -> restored cache."""


def trial_ids(config: Any, device: torch.device) -> torch.Tensor:
    """Return tokens enough to close every compression window twice, [[1, tokens]] int64."""
    tokens = 2 * least_unit(config, _LEAST_UNIT) + 5
    vocabulary = int(config.get_text_config().vocab_size)
    return torch.from_numpy(np.random.default_rng(0).integers(0, vocabulary, (1, tokens))).to(device)


def try_out(runner: Runner, config: Any, restore: Restore) -> None:
    """Run a prompt whole, in two parts, and in two parts over a restored cache.

    Parameters
    ----------
    runner : Runner
        Its ``single_steps`` is set where only tokens one by one continue the first part.
    config : transformers.PretrainedConfig
    restore : callable
        Takes a live cache apart and puts it together again.

    Raises
    ------
    UnsupportedModel
        The restored continuation is not the live one, or neither way of going on gives what the whole prompt gives.
    """
    ids = trial_ids(config, runner.device)
    whole = runner.run(ids, DynamicCache(config=config), 0, all_logits=True)
    bound = _ROUNDING.get(whole.dtype, _COARSE_ROUNDING) * float(whole.float().std())
    away = []
    for single_steps in (False, True):
        runner.single_steps = single_steps
        away.append(_difference(runner, config, ids, whole, restore))
        if away[-1] <= bound:
            return
    expected = f"logits of a prompt in two parts within {bound:.2g} of those of the whole"
    got = f"{away[0]:.2g} away, {away[1]:.2g} token by token"
    raise UnsupportedModel("model", expected, got, model_type=config.get_text_config().model_type)


def _difference(runner: Runner, config: Any, ids: torch.Tensor, whole: torch.Tensor, restore: Restore) -> float:
    """Return how far the second part is from the same tokens of the whole."""
    first = ids.shape[1] // 2 + 1  # aligned to nothing
    live = DynamicCache(config=config)
    runner.run(ids[:, :first], live, 0)
    restored = restore(live, first)
    parts = [runner.run(ids[:, first:], past, first, all_logits=True) for past in (live, restored)]
    if not torch.equal(*parts):
        model_type = config.get_text_config().model_type
        raise UnsupportedModel("model", "the same logits from a restored state", "others", model_type=model_type)
    return float((parts[0] - whole[:, first:]).abs().max())
