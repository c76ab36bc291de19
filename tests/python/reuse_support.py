# SPDX-License-Identifier: Apache-2.0
"""What the tests of PrefixReuse share: prompts, and the logits of a recompute."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def some_ids(length: int, seed: int = 0, rows: int = 1) -> torch.Tensor:
    """Return a prompt, [[rows, length]] int64."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (rows, length)))


def whole_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return what one forward pass over a prompt gives, [[rows, tokens, vocabulary]]."""
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits
