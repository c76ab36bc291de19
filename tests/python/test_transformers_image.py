# SPDX-License-Identifier: Apache-2.0
"""A state that left the model and came back: bit for bit the run that was never interrupted."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("transformers", reason="transformers is absent: images are of its caches")

import torch

from image_support import compare
from tiny_models import ARCHITECTURES

SOAK = os.environ.get("HYBRIDKV_SOAK") == "1"
SHORT = range(1, 72) if SOAK else (*range(1, 6), *range(12, 21), 31, 32, 33, 47, 48, 49, *range(62, 72))
V4_PREFIXES = (*SHORT, 96, 127, 128, 129, 255, 256)
PREFIXES = (1, 2, 3, 7, 15, 16, 17, 31, 50, 64, 100)
FEW = (3, 17, 40)


def check(name: str, prefixes: tuple[int, ...], dtype: torch.dtype | None = None) -> None:
    found = compare(name, prefixes, dtype)
    print(f"{name} {dtype or 'float32'}: to the whole run: restored {found.restored}, own {found.own}")
    assert found.unequal == []
    if dtype is not torch.bfloat16:  # there a logit differs by a rounding or not at all: no scale to compare with
        for kind, difference in found.restored.items():
            assert difference <= 2 * found.own[kind], kind


@pytest.mark.parametrize("name", ["deepseek_v4", "deepseek_v4_w32"])
def test_v4_goes_on_bit_for_bit_wherever_it_is_cut(name: str) -> None:
    check(name, V4_PREFIXES)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "deepseek_v4"])
def test_the_other_nine_go_on_bit_for_bit(name: str) -> None:
    check(name, PREFIXES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_other_dtypes_go_on_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    check(name, FEW, dtype)
