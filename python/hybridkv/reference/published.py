# SPDX-License-Identifier: Apache-2.0
"""Row formats that engines are known to write, by name.

Sizes in bytes of a row; in pages of 64 rows unless said. What a format leaves open (whether the indexer's rows are
rotated, where its scales lie, values rounded to bfloat16 first) is a field: ``dataclasses.replace``,
:meth:`RowFormat.with_footer`, :meth:`RowFormat.paged`.
"""

from __future__ import annotations

from dataclasses import replace

from hybridkv.reference.quantise import ELEMENT_BITS, ScaleRule
from hybridkv.reference.row_format import Part, RowFormat

SMALLEST_AMAX = 1e-4
"""Floor of the absolute maximum in the published FP8 rows. One engine's footer kernel has 1e-8: other bytes near 0."""

TMA_MULTIPLE = 576
"""What the page stride is a multiple of where FlashMLA reads 584-byte rows."""

PAGE_ALIGNMENT = 16
"""Of the first byte of a page: the widest load of a kernel."""


def tiled(
    name: str,
    element: str,
    channels: int,
    tile: int,
    scale: ScaleRule,
    *,
    rope: int = 0,
    pad: int = 0,
    page_rows: int = 64,
    hadamard: bool = False,
) -> RowFormat:
    """Describe rows of quantised channels, then channels in bfloat16, then the scales.

    Parameters
    ----------
    name : str
        Of the format.
    element : {"float8_e4m3", "float4_e2m1"}
        Of the quantised channels.
    channels, tile : int
        How many are quantised, and how many of them share a scale.
    scale : ScaleRule
        Of each tile.
    rope : int, optional
        Channels in bfloat16 that follow.
    pad : int, optional
        Bytes behind the scales.
    page_rows : int, optional
        Rows of a page.
    hadamard : bool, optional
        As in :class:`RowFormat`.

    Returns
    -------
    RowFormat
        With its scales inline.
    """
    quantised = channels * ELEMENT_BITS[element] // 8
    data = quantised + 2 * rope
    parts = [Part("nope" if rope else "all", channels, element, 0, scale, tile, data)]
    if rope:
        parts.append(Part("rope", rope, "bfloat16", quantised))
    row_bytes = data + channels // tile * scale.scale_bytes + pad
    return RowFormat(
        name, row_bytes, tuple(parts), page_rows=page_rows, base_alignment=PAGE_ALIGNMENT, hadamard=hadamard
    )


def plain(element: str, channels: int, page_rows: int = 64) -> RowFormat:
    """Describe rows of one element type without scales.

    Parameters
    ----------
    element : {"bfloat16", "float32", "float64"}
        Of every channel.
    channels : int
        Of a row.
    page_rows : int, optional
        Rows of a page.

    Returns
    -------
    RowFormat
        The element type is its name.
    """
    row_bytes, whole = channels * ELEMENT_BITS[element] // 8, (Part("all", channels, element, 0),)
    return RowFormat(element, row_bytes, whole, page_rows=page_rows, base_alignment=PAGE_ALIGNMENT)


def _v4(name: str, stride_multiple: int) -> RowFormat:
    rule = ScaleRule("ue8m0", SMALLEST_AMAX)
    inline = tiled(name, "float8_e4m3", 448, 64, rule, rope=64, pad=1)
    return replace(inline.with_footer(), stride_multiple=stride_multiple)


FP8_DS_MLA = _v4("fp8_ds_mla", TMA_MULTIPLE)
"""584: DeepSeek-V4. 448 x e4m3 in tiles of 64, 64 x bfloat16; 7 UE8M0 scales and a 0 in the footer of the page."""

FP8_DS_MLA_512 = _v4("fp8_ds_mla_512", 512)
"""584: the same rows where pages follow each other at multiples of 512; 64 rows fill one exactly."""

FP8_DS_MLA_V32 = RowFormat(
    "fp8_ds_mla_v32",
    656,
    (
        Part("nope", 512, "float8_e4m3", 0, ScaleRule("float32", SMALLEST_AMAX, power_of_two=False), 128, 512),
        Part("rope", 64, "bfloat16", 528),
    ),
    base_alignment=PAGE_ALIGNMENT,
)
"""656: DeepSeek-V3.2. 512 x e4m3 in tiles of 128, 4 float32 scales, 64 x bfloat16, inline."""

INDEXER_FP8 = tiled("indexer_fp8", "float8_e4m3", 128, 128, ScaleRule("float32", SMALLEST_AMAX))
"""132: 128 x e4m3 and a float32 scale that is a power of two. Rotated by a Hadamard matrix in some engines."""

INDEXER_FP8_UE8M0 = tiled("indexer_fp8_ue8m0", "float8_e4m3", 128, 32, ScaleRule("ue8m0", SMALLEST_AMAX))
"""132: the same size with four UE8M0 scales, one for each 32 channels, where another GPU family reads."""

INDEXER_MXFP4 = tiled("indexer_mxfp4", "float4_e2m1", 128, 32, ScaleRule("ue8m0", 6 * 2.0**-126), hadamard=True)
"""68: 128 x e2m1 in tiles of 32 and 4 UE8M0 scales; rotated, as in DeepSeek's own code."""

V41_FP8 = tiled("v41_fp8", "float8_e4m3", 512, 32, ScaleRule("ue8m0", SMALLEST_AMAX)).with_footer()
"""528: DeepSeek-V4.1. 512 x e4m3 in tiles of 32; 16 UE8M0 scales in the footer. Newer kernels' rows: ``.inline()``."""

V41_FP4 = tiled(
    "v41_fp4", "float4_e2m1", 512, 16, ScaleRule("float8_e4m3", 6 * 2.0**-9, power_of_two=False)
).with_footer()
"""288: DeepSeek-V4.1. 512 x e2m1 in tiles of 16; 32 e4m3 scales in the footer, at least the smallest that is not 0."""

BFLOAT16_ROWS = plain("bfloat16", 512)
"""1024: every channel in bfloat16, the fallback of all engines."""

PUBLISHED = {
    row.name: row
    for row in (
        FP8_DS_MLA,
        FP8_DS_MLA_512,
        FP8_DS_MLA_V32,
        INDEXER_FP8,
        INDEXER_FP8_UE8M0,
        INDEXER_MXFP4,
        V41_FP8,
        V41_FP4,
        BFLOAT16_ROWS,
    )
}
"""All of the above by name."""
