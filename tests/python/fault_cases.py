# SPDX-License-Identifier: Apache-2.0
"""Which models are broken at which positions: a short form for every test run, a long one for a soak."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from faults.live import Live
from hybridkv.demo.models import tiny_deepseek_v4
from tiny_models import ARCHITECTURES, tiny

SOAK = os.environ.get("HYBRIDKV_SOAK") == "1"

POSITIONS = (64, 77, 78, 79, 128, 143, 150) if SOAK else (64, 79)
"""64 and 128 are aligned to every block; at 79 and 143 tails are 3 and 15 rows long."""

WIDE = "deepseek_v4, window 32, 4/128"
WIDE_POSITIONS = (125, 128, 250, 271)
"""Only in a soak: the compression ratios of the released model. From 125 and 250 on its long windows close soon."""

BFLOAT16 = "deepseek_v4, bfloat16"
"""Only in a soak."""

SEEDS = (0, 1, 2) if SOAK else (0,)

CASES = [(name, seed, tokens) for name in ARCHITECTURES for seed in SEEDS for tokens in POSITIONS]
if SOAK:
    CASES += [(WIDE, 0, tokens) for tokens in WIDE_POSITIONS]
    CASES += [(BFLOAT16, 0, tokens) for tokens in POSITIONS]

HARMLESS = ("history: one block of another request in one layer",)
"""Does nothing at some positions: a sparse layer may pass over a block."""


def model_of(name: str, seed: int) -> Any:
    """Build a model by the name of a case."""
    if name == WIDE:
        return tiny_deepseek_v4(seed, window=32, hca=128)
    if name == BFLOAT16:
        return tiny_deepseek_v4(seed, dtype=torch.bfloat16)
    return tiny(name, seed)


@functools.cache
def live_model(name: str, seed: int = 0) -> Live:
    """Return a model over prompts of its own; every test of a run shares it."""
    return Live(model_of(name, seed), seed)
