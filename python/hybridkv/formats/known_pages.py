# SPDX-License-Identifier: Apache-2.0
"""Plain paged keys and values, in the orders of vLLM, SGLang and FlashInfer, and in the library's own."""

from __future__ import annotations

from typing import Any

from hybridkv.formats.format_entry import FormatEntry
from hybridkv.formats.kv_format import KvFormat

_MODEL = "the model"
_POOL = "whoever makes the pool"
_OPEN = {
    "position_convention": _MODEL,
    "head_dim": _MODEL,
    "row_bytes": _MODEL,
    "row_stride": _MODEL,
    "page_rows": _POOL,
    "page_stride": _POOL,
    "alignment": _POOL,
}


def _pages(
    name: str, layout: str, kv_order: str, head_layout: str, says: str, *used_by: str, **more: Any
) -> FormatEntry:
    made = KvFormat(
        layout,
        "bfloat16",
        scale="none",
        kv_order=kv_order,
        head_layout=head_layout,
        row_order="plain",
        pool_split="keys|values" if kv_order == "pools" else "one",
        **more,
    )
    return FormatEntry(name, "paged", made, used_by, says, {k: v for k, v in _OPEN.items() if k not in more})


PAGES = (
    _pages(
        "paged_vllm", "paged_kv", "pool", "NHD", "[2, pages, rows, heads, dim]: all keys, then all values",
        "vLLM FlashAttention",
    ),
    _pages(
        "paged_flashinfer_nhd", "paged_kv", "page", "NHD", "[pages, 2, rows, heads, dim]: a token's heads together",
        "FlashInfer", "vLLM FlashInfer",
    ),
    _pages(
        "paged_flashinfer_hnd", "paged_kv", "page", "HND", "[pages, 2, heads, rows, dim]: a head's tokens together",
        "FlashInfer", "vLLM FlashInfer", "TensorRT-LLM",
    ),
    _pages(
        "paged_sglang", "paged_kv", "pools", "NHD", "keys [rows, heads, dim], and values in another array",
        "SGLang",
    ),
    _pages(
        "kv_heads", "kv_heads", "row", "NHD", "of each token the keys of all heads, then the values",
        "hybridkv", position_convention="absolute",
    ),
)  # fmt: skip
"""In bfloat16; ``dataclasses.replace(entry.format, dtype=...)`` for others."""
