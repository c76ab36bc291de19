# SPDX-License-Identifier: Apache-2.0
"""Question: what does a change of format cost beside copying the same bytes in a row?

64 MiB of rows in scattered pages, each conversion beside ``numpy.copyto`` of as many contiguous bytes in the same
rounds, on one thread. Those that rewrite scales read the rows twice: all scales are looked at first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.reference import RowFormat, published

MLA, FP8, UE8M0 = published.FP8_DS_MLA, published.INDEXER_FP8, published.INDEXER_FP8_UE8M0


def rotated(row: RowFormat, interleaved: bool) -> RowFormat:
    return replace(row, rope_dims=64, interleaved=interleaved)


CONVERSIONS = {
    "pages of 64 to 256 rows of 584": (MLA, MLA.paged(256)),
    "pages of 256 to 64 rows of 584": (MLA.paged(256), MLA),
    "padded to packed pages, 584": (MLA, replace(MLA, stride_multiple=1)),
    "footer to inline, 584": (MLA, replace(MLA.inline(), stride_multiple=1)),
    "inline to footer, 584": (replace(MLA.inline(), stride_multiple=1), MLA),
    "inline to footer, 132": (FP8, FP8.with_footer()),
    "float32 to UE8M0 x 4, 132": (FP8, UE8M0),
    "UE8M0 x 4 to float32, 132": (UE8M0, FP8),
    "pairs to halves, 584": (rotated(MLA, True), rotated(MLA, False)),
    "halves to pairs, bfloat16": (rotated(published.BFLOAT16_ROWS, False), rotated(published.BFLOAT16_ROWS, True)),
}


def pages_of(row: RowFormat, count: int) -> np.ndarray:
    memory = np.zeros(count * row.page_stride + 64, np.uint8)
    return memory[-memory.ctypes.data % 64 :][: count * row.page_stride].reshape(count, row.page_stride)


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversion_beside_a_copy(timer, smoke, name):
    source, target = CONVERSIONS[name]
    rows = ((1 << 20 if smoke else 1 << 26) // source.row_bytes) // 256 * 256
    pool, out = pages_of(source, rows // source.page_rows), pages_of(target, rows // target.page_rows)
    packed = np.full((rows, source.row_bytes), 0x3A, np.uint8)
    rule, place = source.parts[0].scale, source.parts[0].scale_offset
    if rule is not None and rule.encoding == "float32":
        packed[:, place : place + 4] = np.array([1.0], "<f4").view(np.uint8)
    every = np.arange(rows)
    hk.ops.scatter(packed, pool, every // source.page_rows, rows=every % source.page_rows, layout=source.layout)
    rng = np.random.default_rng(1)
    held, room = (rng.permutation(len(pages))[None] for pages in (pool, out))
    flat, copy = packed.ravel(), np.empty(packed.size, np.uint8)
    calls = [
        lambda: hk.ops.convert(pool, held, out, room, source=source, target=target),
        lambda: np.copyto(copy, flat),
    ]
    for call in calls:
        call()
    back = np.zeros_like(pool)
    hk.ops.convert(out, room, back, held, source=target, target=source)
    assert (back[:, : source.page_bytes] == pool[:, : source.page_bytes]).all()
    timer.benchmark.pedantic(calls[0], rounds=1 if smoke else 5)
    ours, theirs = timer.rounds(*calls)
    ratios = [other / max(own, 1e-9) for own, other in zip(ours, theirs, strict=True)]
    timer.figure(f"{name}: 64 MiB", ours)
    timer.figure(f"{name}: copy over conversion", ratios, unit="times", at_least=True)
