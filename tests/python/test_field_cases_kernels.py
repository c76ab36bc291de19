# SPDX-License-Identifier: Apache-2.0
"""Field cases of pages and rows that kernels read and write (tests/data/cases/field_cases.json)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
import hybridkv.reference as ref
from compress_support import bfloat16
from hybridkv.reference import published

RATIO, WIDTH = 4, 512


def prompt(tokens: int, row_format: ref.RowFormat, columns: int, **changed: Any) -> dict[str, Any]:
    """The arguments of a call that compresses one prompt from its start."""
    rng = np.random.default_rng(tokens)
    kv, score = (bfloat16(rng.standard_normal((tokens, 2 * WIDTH))) for _ in range(2))
    return {
        "kv": kv, "score": score, "ratio": RATIO, "overlap": True, "norm_weight": np.ones(WIDTH, np.float32),
        "eps": 1e-6, "rope": ref.Rope(64, 160000.0), "row_format": row_format,
        "starts": np.array([0, tokens], np.int32), "positions": np.zeros(1, np.int32),
        "page_ids": np.arange(columns, dtype=np.int32)[None],
    } | changed  # fmt: skip


def compressed(out: np.ndarray, arguments: dict[str, Any]) -> np.ndarray:
    given = dict(arguments)
    hk.ops.compress_tail(given.pop("kv"), given.pop("score"), out, **given)
    return out


@pytest.mark.parametrize("page_bytes", [64 * 584 - 8, 64 * 584, 64 * 584 + 8, 64 * 584 + 512])
def test_FC_109_pages_of_a_size_that_the_format_does_not_state_are_refused(page_bytes: int) -> None:
    row_format = published.FP8_DS_MLA.paged(64)  # 64 rows with a footer, pages at multiples of 576
    out = np.full((3, page_bytes), 7, np.uint8)
    with pytest.raises(hk.KernelContract, match="out"):
        compressed(out, prompt(512, row_format, 2))
    assert (out == 7).all()
    assert row_format.page_stride == 37_440
    compressed(np.zeros((3, 37_440), np.uint8), prompt(512, row_format, 2))


def test_FC_110_rows_that_are_not_live_reach_no_result() -> None:
    row_format = published.FP8_DS_MLA.paged(64)
    call = prompt(6, row_format, 2, positions=np.array([6], np.int32))
    rng = np.random.default_rng(1)
    ring = rng.standard_normal((1, 2 * RATIO, 4 * WIDTH)).astype(np.float32)
    made = []
    for dead in (0.0, np.nan, np.inf):
        carry = ring.copy()
        carry[0, [6, 7]] = dead  # at position 6, tokens 0 to 5 are live: the window before, and two of this one
        made.append(compressed(np.zeros((2, row_format.page_stride), np.uint8), call | {"carry": carry}))
    assert (made[0] == made[1]).all()
    assert (made[0] == made[2]).all()
    assert made[0].any()


def test_FC_116_a_block_that_does_not_fill_its_pages_goes_on_in_the_next_one_or_is_refused() -> None:
    # 640 tokens at ratio 4 are 160 entries: five pages of 32 rows, and two and a half of 64.
    rows = {}
    for page_rows in (32, 64):
        row_format = published.FP8_DS_MLA.paged(page_rows)
        columns = -(-160 // page_rows)
        out = compressed(np.zeros((columns, row_format.page_stride), np.uint8), prompt(640, row_format, columns))
        rows[page_rows] = ref.load_rows(out, np.arange(160, dtype=np.int32), row_format)
        with pytest.raises(hk.KernelContract, match="page_ids"):
            compressed(out, prompt(640, row_format, columns - 1))
    assert (rows[32] == rows[64]).all()
