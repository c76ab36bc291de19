# SPDX-License-Identifier: Apache-2.0
"""Rows and pages of any format, drawn, for tests of conversions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import hybridkv.reference as ref
from hybridkv.reference import PUBLISHED, RowFormat, published

FAMILIES = {"fp8_ds_mla_512": "fp8_ds_mla", "indexer_fp8_ue8m0": "indexer_fp8"}
"""Published formats whose rows can become each other's, by the name of one of them; others are alone."""

VARIANTS = [
    *PUBLISHED.values(),
    published.FP8_DS_MLA.inline(),
    published.INDEXER_FP8.with_footer(),
    published.INDEXER_FP8_UE8M0.with_footer(),
    published.INDEXER_MXFP4.with_footer(),
    published.V41_FP8.inline(),
    published.V41_FP4.inline(),
]


def family(row: RowFormat) -> str:
    return FAMILIES.get(row.name, row.name)


def related(source: RowFormat, target: RowFormat) -> bool:
    """Whether there is a way: of one family, and no channel comes to a tile of another scale."""
    crossing = source.interleaved != target.interleaved and source.name == target.name == "indexer_fp8_ue8m0"
    return family(source) == family(target) and not crossing


def label(row: RowFormat) -> str:
    marks = {None: "", True: "-pairs", False: "-halves"}[row.interleaved]
    return f"{row.name}-{row.page_rows}-{row.data_bytes}{marks}"


def rotated(row: RowFormat, interleaved: bool, dims: int = 64) -> RowFormat:
    return replace(row, rope_dims=dims, interleaved=interleaved)


def packed_rows(rng: np.random.Generator, row: RowFormat, count: int, shared: int = 128) -> np.ndarray:
    """Rows of any bytes, NaN among them; scales are such as the format has, one for `shared` channels at least."""
    packed = rng.integers(0, 256, (count, row.row_bytes), dtype=np.uint8)
    for part in row.parts:
        if part.scale is None:
            continue
        tile = max(part.tile, min(shared, part.channels))
        codes = np.repeat(rng.integers(0, 255, (count, part.channels // tile)), tile // part.tile, axis=1)
        stored = codes.astype(np.uint8)
        if part.scale.encoding == "float32":
            values = np.ldexp(1.0 if part.scale.power_of_two else 1.3, codes - 127)
            stored = values.astype("<f4").view(np.uint8).reshape(count, -1)
        packed[:, part.scale_offset : part.scale_offset + stored.shape[1]] = stored
    return packed


def pages(rng: np.random.Generator, row: RowFormat, count: int, more: int = 0) -> np.ndarray:
    """Pages of anything, `more` stride units further apart than they have to be."""
    stride = row.page_stride + more * row.stride_unit
    memory = np.empty(count * stride + 64, np.uint8)
    start = -memory.ctypes.data % 64
    made = memory[start : start + count * stride].reshape(count, stride)
    made[...] = rng.integers(0, 256, made.shape, dtype=np.uint8)
    return made


def filled(rng: np.random.Generator, row: RowFormat, count: int, more: int = 0) -> np.ndarray:
    """Pages full of rows."""
    made, rows = pages(rng, row, count, more), count * row.page_rows
    ref.store_rows(packed_rows(rng, row, rows), made, np.arange(rows), row)
    return made


def ids(rows: Any) -> np.ndarray:
    return np.array(rows, np.int32, ndmin=2)


def channels_of(source: RowFormat, target: RowFormat) -> np.ndarray:
    """Which channel of a source row each channel of a target row is: pair k is (2k, 2k + 1), or (k, k + dims / 2)."""
    order = np.arange(source.channels)
    if source.interleaved != target.interleaved:
        last = order[-source.rope_dims :]
        last[...] = last.reshape((-1, 2) if source.interleaved else (2, -1)).T.ravel()
    return order
