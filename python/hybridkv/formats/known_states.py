# SPDX-License-Identifier: Apache-2.0
"""States of compressors and of recurrent layers, in the orders in which engines keep them. Bytes are of one row."""

from __future__ import annotations

from typing import Any

from hybridkv.formats.format_entry import FormatEntry
from hybridkv.formats.kv_format import KvFormat

_ENGINE = "the engine's kernel, in its version"
_MODEL = "the model"
_WORD = 4  # bytes of a float32
_CSA, _INDEXER, _HCA = (512, 2, 8), (128, 2, 8), (512, 1, 128)  # head, halves, rows of the ring


def _compressor(
    name: str, shape: tuple[int, int, int], state_format: str, says: str, *used_by: str, **declared: Any
) -> FormatEntry:
    """Return an entry of rows of keys and scores side by side in float32."""
    head, halves, ring = shape
    fields: dict[str, Any] = {
        "state_format": state_format,
        "bias_added": True,
        "overlap": halves == 2,
        "head_dim": head,
        "ring_rows": ring,
        "row_bytes": 2 * halves * head * _WORD,
        "gate_dtype": "float32",
        "bias_rounding": "float32",
        "projection_dtype": "float32",
    }
    if halves == 2:
        fields["half_order"] = "first_feeds_next"
    fields |= declared
    undecided = {field: _ENGINE for field, value in fields.items() if value is None}
    return FormatEntry(name, "compressor", KvFormat("compressor_rows", "float32", **fields), used_by, says, undecided)


def _recurrent(name: str, layout: str, matrix_order: str, says: str, *used_by: str) -> FormatEntry:
    """Return an entry of a convolution's inputs, then a state matrix."""
    made = KvFormat(layout, "float32", conv_order="channels|taps", matrix_order=matrix_order)
    undecided = {
        "state_format": "the dtype of the rows",
        "row_bytes": _MODEL,
        "conv_dtype": _MODEL,
        "conv_rows": _MODEL,
    }
    return FormatEntry(name, "recurrent", made, used_by, says, undecided)


STATES = (
    _compressor("csa_ring", _CSA, "rows_mod_ring", "row p mod 8, nothing copied", "vLLM", "SGLang"),
    _compressor("csa_reference", _CSA, "reference_order", "previous window, then current", "DeepSeek inference"),
    _compressor("csa_ring_draft", (512, 2, 16), "rows_mod_ring", "row p mod 16: room for drafts", "SGLang"),
    _compressor("csa_indexer_ring", _INDEXER, "rows_mod_ring", "row p mod 8, 128 wide", "vLLM", "SGLang"),
    _compressor(
        "csa_indexer_reference", _INDEXER, "reference_order", "previous, then current, 128 wide", "DeepSeek inference"
    ),
    _compressor("hca_ring", _HCA, "rows_mod_ring", "row p mod 128", "vLLM", "SGLang", "DeepSeek inference"),
    _compressor("hca_ring_draft", (512, 1, 256), "rows_mod_ring", "row p mod 256: room for drafts", "SGLang"),
    _compressor(
        "hca_online", (512, 1, 1), "online_triple", "running maximum, sum and weighted keys; no way back to rows",
        "SGLang ONLINE_C128", row_bytes=3 * 512 * _WORD,
    ),
    _compressor(
        "rows_in_position_order", _CSA, "position_order", "rows of the open window in the order of their tokens",
        "hybridkv", ring_rows=None, row_bytes=None, overlap=None, half_order=None, head_dim=None,
    ),
    _compressor(
        "transformers_tail", _HCA, "position_order", "rows of the open window, scores without their position bias",
        "transformers", bias_added=False, ring_rows=None, row_bytes=None, overlap=None, half_order=None,
        head_dim=None, gate_dtype=None, bias_rounding=None, projection_dtype=None,
    ),
    _compressor(
        "transformers_overlap", _CSA, "position_order", "first halves of the last closed window, scores with bias",
        "transformers", ring_rows=4, row_bytes=2 * 512 * _WORD, gate_dtype=None, bias_rounding=None,
        projection_dtype=None,
    ),
    _recurrent("gated_delta", "gated_delta", "heads|key|value", "inputs, then keys by values", "transformers"),
    _recurrent("mamba2", "mamba2", "heads|channels|state", "inputs, then channels by state", "transformers"),
    _recurrent("mamba1", "mamba1", "channels|state", "inputs, then channels by state", "transformers"),
)  # fmt: skip
"""Compressors first, then recurrent layers."""
