# SPDX-License-Identifier: Apache-2.0
"""Rows as kernels of one engine write them, read as those of another do: as many bytes, another meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from .fault import Change, Context, as_bytes, from_bytes

Rows: TypeAlias = torch.Tensor
Decode: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

E4M3_MOST = 448.0
QUARTERS = 4  # of a row, where four scale bytes stand for one float32


def _quantised(flat: Rows, scale: Rows) -> Rows:
    """Rows over their scales as e4m3, [[rows, columns]] float32."""
    return (flat / scale).clamp(-E4M3_MOST, E4M3_MOST).to(torch.float8_e4m3fn).to(torch.float32)


def _scale_of(flat: Rows, pieces: int) -> Rows:
    """Scales of equal pieces of a row, [[rows, pieces]] float32."""
    tiles = flat.reshape(flat.shape[0], pieces, -1)
    return tiles.abs().amax(dim=-1).clamp_min(1e-4) / E4M3_MOST


def _spread(scale: Rows, columns: int) -> Rows:
    return scale.repeat_interleave(columns // scale.shape[1], dim=1)


def _applies(rows: Rows) -> bool:
    return rows.ndim > 1 and rows.shape[0] > 0 and rows[0].numel() % QUARTERS == 0


def float32_scale_read_as_ue8m0(rows: Rows, place: Any, context: Context) -> Rows:
    """Read the four bytes of a row's float32 scale as exponents of its quarters."""
    if not _applies(rows):
        return rows
    flat = rows.reshape(rows.shape[0], -1).to(torch.float32)
    scale = _scale_of(flat, 1)
    exponents = as_bytes(scale).reshape(-1, QUARTERS).to(torch.float32) - 127
    return (_quantised(flat, scale) * _spread(torch.exp2(exponents), flat.shape[1])).reshape(rows.shape).to(rows.dtype)


def ue8m0_scales_read_as_float32(rows: Rows, place: Any, context: Context) -> Rows:
    """Read the exponents of a row's quarters as the four bytes of one float32 scale."""
    if not _applies(rows):
        return rows
    flat = rows.reshape(rows.shape[0], -1).to(torch.float32)
    exponents = torch.ceil(torch.log2(_scale_of(flat, QUARTERS)))
    written = _quantised(flat, _spread(torch.exp2(exponents), flat.shape[1]))
    scale = from_bytes((exponents + 127).to(torch.uint8), torch.empty(flat.shape[0], 1))
    return (written * scale).reshape(rows.shape).to(rows.dtype)


def hadamard(rows: Rows, place: Any, context: Context) -> Rows:
    """Rotate rows by a Hadamard matrix, which whoever reads them does not expect."""
    width = rows.shape[-1]
    if width & (width - 1):
        return rows
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < width:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (rows.to(torch.float64) @ matrix / width**0.5).to(rows.dtype)


def rows_by_eights(piece_bytes: int) -> Change:
    """Read row by row what was written in pages of eight rows, a piece of each row in turn."""

    def change(rows: Rows, place: Any, context: Context) -> Rows:
        width = rows[0].numel() * rows.element_size() if rows.shape[0] else 0
        whole = rows.shape[0] // 8 * 8
        if width == 0 or width % piece_bytes or whole == 0:
            return rows
        data = as_bytes(rows).reshape(rows.shape[0], width).clone()
        pages = data[:whole].reshape(-1, 8, width // piece_bytes, piece_bytes)
        data[:whole] = pages.transpose(1, 2).reshape(whole, width)
        return from_bytes(data.reshape(-1), rows)

    return change


def gate_in_another_dtype(rows: Rows, place: Any, context: Context) -> Rows:
    """Read the bytes of a gate that was kept as bfloat16 as float32; of a bfloat16 model the other way round."""
    if "gate" not in place.path or rows.numel() == 0:
        return rows
    other = torch.float32 if rows.dtype == torch.bfloat16 else torch.bfloat16
    data = as_bytes(rows.to(other))
    lacking = max(0, rows.numel() * rows.element_size() - data.numel())
    return from_bytes(torch.nn.functional.pad(data, (0, lacking)), rows)
