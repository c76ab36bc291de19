# SPDX-License-Identifier: Apache-2.0
"""Rows of latents and indexers that engines are known to write. Bytes are of one row; pages are of 64 rows."""

from __future__ import annotations

from typing import Any

from hybridkv.formats.format_entry import FormatEntry
from hybridkv.formats.kv_format import KvFormat

PAGE_ROWS = 64
BASE_ALIGNMENT = 16  # of the first byte of a page: the widest load of a kernel

_ENGINE = "the engine's kernel, in its version"
_ARITHMETIC = ("quantiser_input", "rope_rounding", "rounding_point", "softmax_rounding", "bias_rounding")
_POOLED = ("overlap", "projection_dtype")

_V4: dict[str, Any] = {
    "scale": "ue8m0",
    "tile": 64,
    "scale_placement": "page_footer",
    "scale_floor": 1e-4,
    "scale_power_of_two": True,
    "rope_dims": 64,
    "rope_dtype": "bfloat16",
    "position_convention": "absolute_interleaved",
    "channel_order": "nope|rope|scales",
    "row_stride": 576,
}
_INDEXER: dict[str, Any] = {
    "rope_dims": 64,
    "position_convention": "absolute_interleaved",
    "channel_order": "all|scales",
    "head_dim": 128,
    "scale_placement": "inline",
    "scale_power_of_two": True,
}
_V41: dict[str, Any] = {
    "rope_dims": 64,
    "position_convention": "absolute_interleaved",
    "channel_order": "all|scales",
    "scale_placement": "page_footer",
}
_VLLM = {"quantiser_input": "bfloat16", "rope_rounding": "from_float32", "rounding_point": "after_norm"}


def _rows(
    name: str,
    layout: str,
    dtype: str,
    row_bytes: int,
    says: str,
    *used_by: str,
    stride_multiple: int = 1,
    **declared: Any,
) -> FormatEntry:
    """Return an entry of rows; what is None, or not declared of the arithmetic, is left open to the engine."""
    row_stride = declared.setdefault("row_stride", row_bytes)
    page_bytes = PAGE_ROWS * row_bytes
    places: dict[str, Any] = {
        "row_bytes": row_bytes,
        "page_rows": PAGE_ROWS,
        "page_stride": -(-page_bytes // stride_multiple) * stride_multiple,
        "alignment": BASE_ALIGNMENT,
        "row_order": "plain",
        "kv_order": "shared",
        "pool_split": "one",
        "hadamard": False,
        "head_dim": 512,
    }
    if declared.get("scale_placement") == "page_footer":
        places["footer_offset"] = PAGE_ROWS * row_stride
    if declared.get("rope_dims") and "rope_dtype" not in declared:
        declared["rope_dtype"] = dtype
    made = KvFormat(layout, dtype, **(places | declared))
    quantised = made.scale != "none"
    arithmetic = [field for field in _ARITHMETIC if quantised or field != "quantiser_input"]
    undecided = {field: _ENGINE for field in arithmetic if getattr(made, field) is None}
    undecided |= dict.fromkeys(_POOLED, "the layer: compressed or not")
    undecided |= {field: _ENGINE for field, value in declared.items() if value is None}
    return FormatEntry(name, "rows", made, used_by, says, undecided, stride_multiple)


ROWS = (
    _rows(
        "fp8_ds_mla_v4", "fp8_ds_mla", "float8_e4m3", 584,
        "DeepSeek-V4 (MODEL1): 448 x e4m3 in tiles of 64, 64 x bfloat16; 7 UE8M0 scales and a 0 in the page's footer",
        "vLLM", "SGLang", "FlashMLA", stride_multiple=576, **_V4,
    ),
    _rows(
        "fp8_ds_mla_v4_vllm", "fp8_ds_mla", "float8_e4m3", 584,
        "the same, with the arithmetic of vLLM's kernel: float32 through the norm, bfloat16 before the quantiser",
        "vLLM", stride_multiple=576, **_V4, **_VLLM,
    ),
    _rows(
        "fp8_ds_mla_v4_flashinfer", "fp8_ds_mla", "float8_e4m3", 584,
        "the same rows in pages of 64 x 584 bytes exactly, at multiples of 512",
        "SGLang", stride_multiple=512, **_V4,
    ),
    _rows(
        "fp8_ds_mla_v4_trtllm", "fp8_ds_mla", "float8_e4m3", 584,
        "the same pages with a scale floor of 1e-8: other scale bytes for tiles near zero",
        "TensorRT-LLM", stride_multiple=512, **(_V4 | {"scale_floor": 1e-8}),
    ),
    _rows(
        "fp8_ds_mla_v32", "fp8_ds_mla", "float8_e4m3", 656,
        "DeepSeek-V3.2: 512 x e4m3 in tiles of 128, 4 float32 scales, 64 x bfloat16, inline",
        "vLLM", "SGLang", "FlashMLA",
        scale="float32", tile=128, scale_placement="inline", scale_floor=1e-4, scale_power_of_two=False,
        rope_dims=64, rope_dtype="bfloat16", channel_order="nope|scales|rope", head_dim=576, position_convention=None,
    ),
    _rows(
        "fp8_tensor", "fp8_tensor", "float8_e4m3", 512,
        "512 x e4m3 under one scale of the whole tensor, kept beside the pool",
        "TensorRT-LLM (trtllm-gen)",
        scale="float32", tile=0, scale_placement="pool", scale_floor=None, scale_power_of_two=None,
        rope_dims=64, channel_order="nope|rope", position_convention="absolute_interleaved",
    ),
    _rows(
        "bfloat16_rows", "mla_rows", "bfloat16", 1024, "512 x bfloat16: the fallback, and the reference",
        "vLLM", "SGLang", "DeepSeek inference", scale="none", channel_order="all", rope_dims=64,
        position_convention="absolute_interleaved",
    ),
    _rows(
        "fp8_unified_split", "unified_kv", "float8_e4m3", 640,
        "two pools: 512 bytes of unrotated channels with their scales, and 64 x bfloat16",
        "SGLang (ROCm)", "ATOM",
        scale="ue8m0", tile=64, scale_placement="inline", scale_floor=1e-4, scale_power_of_two=True,
        rope_dims=64, rope_dtype="bfloat16", position_convention="absolute_interleaved",
        channel_order="nope|scales|rope", pool_split="nope|rope",
    ),
    _rows(
        "indexer_fp8", "indexer_fp8", "float8_e4m3", 132,
        "128 x e4m3 and a float32 scale that is a power of two; not rotated by a Hadamard matrix",
        "hybridkv", scale="float32", tile=128, scale_floor=1e-4, **_INDEXER,
    ),
    _rows(
        "indexer_fp8_padded", "indexer_fp8", "float8_e4m3", 132,
        "the same rows in pages at multiples of 576",
        "vLLM", scale="float32", tile=128, scale_floor=1e-4, stride_multiple=576, **_INDEXER,
    ),
    _rows(
        "indexer_fp8_hadamard", "indexer_fp8", "float8_e4m3", 132,
        "the same size, rotated by a Hadamard matrix before it is quantised",
        "SGLang", "ATOM", scale="float32", tile=128, scale_floor=1e-4, hadamard=True, **_INDEXER,
    ),
    _rows(
        "indexer_fp8_ue8m0", "indexer_fp8", "float8_e4m3", 132,
        "the same size with four UE8M0 scales in a word, one for each 32 channels",
        "vLLM, on another GPU family", scale="ue8m0x4", tile=32, scale_floor=1e-4, **_INDEXER,
    ),
    _rows(
        "indexer_fp8_page8", "indexer_fp8", "float8_e4m3", 132,
        "the same rows, interleaved by eights inside a page",
        "preshuffled page layouts", scale="float32", tile=128, scale_floor=1e-4, row_order="page8", **_INDEXER,
    ),
    _rows(
        "indexer_mxfp4", "indexer_mxfp4", "float4_e2m1", 68,
        "128 x e2m1 in tiles of 32 and 4 UE8M0 scales; rotated by a Hadamard matrix, as in DeepSeek's own code",
        "SGLang", "ATOM", "DeepSeek inference",
        scale="ue8m0", tile=32, scale_floor=6 * 2.0**-126, hadamard=True, **_INDEXER,
    ),
    _rows(
        "indexer_mxfp4_padded", "indexer_mxfp4", "float4_e2m1", 68,
        "the same size, not rotated, in pages at multiples of 576",
        "vLLM", scale="ue8m0", tile=32, scale_floor=6 * 2.0**-126, stride_multiple=576, **_INDEXER,
    ),
    _rows(
        "v41_fp8", "v41_fp8", "float8_e4m3", 528,
        "DeepSeek-V4.1: 512 x e4m3 in tiles of 32; 16 UE8M0 scales in the page's footer",
        "vLLM", "SGLang", scale="ue8m0", tile=32, scale_floor=1e-4, scale_power_of_two=True, row_stride=512, **_V41,
    ),
    _rows(
        "v41_fp4", "v41_fp4", "float4_e2m1", 288,
        "DeepSeek-V4.1: 512 x e2m1 in tiles of 16; 32 e4m3 scales in the page's footer",
        "vLLM", "SGLang",
        scale="e4m3", tile=16, scale_floor=6 * 2.0**-9, scale_power_of_two=False, row_stride=256, **_V41,
    ),
    _rows(
        "v41_fp8_new", "v41_fp8", "float8_e4m3", 528, "the content of v41_fp8 with the scales inside each row",
        "SGLang",
        scale="ue8m0", tile=32, scale_floor=1e-4, scale_power_of_two=True, **(_V41 | {"scale_placement": "inline"}),
    ),
    _rows(
        "v41_fp4_new", "v41_fp4", "float4_e2m1", 288, "the content of v41_fp4 with the scales inside each row",
        "SGLang",
        scale="e4m3", tile=16, scale_floor=6 * 2.0**-9, scale_power_of_two=False,
        **(_V41 | {"scale_placement": "inline"}),
    ),
)  # fmt: skip
"""In the order of their families."""
