# SPDX-License-Identifier: Apache-2.0
"""Faults of format, stride and base: every byte is there, and means something else or lies elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hybridkv.kinds import Check, StateKind

from .changes import (
    base_off,
    bfloat16_as_float16,
    bias,
    halves_exchanged,
    longer_ring,
    matrices_transposed,
    newest_first,
    other_byte_order,
    packed_read_padded,
    padded_read_packed,
    pages_transposed,
    pairs_as_halves,
    paths_exchanged,
    ring_in_reference_order,
    rotated_first,
    rounded,
    scale_of_neighbour,
)
from .contents import BUFFERS, EVERY, HISTORY, INDEXER, OVERLAP, RECURRENT, WINDOW
from .fault import Change, Context, Fault, State, Way, on
from .quantised import (
    float32_scale_read_as_ue8m0,
    gate_in_another_dtype,
    hadamard,
    rows_by_eights,
    ue8m0_scales_read_as_float32,
)

Changed = Callable[[State, Context], State | None]

_KINDS = {
    HISTORY: ("history", StateKind.COMPRESSED),
    ("csa",): ("history", StateKind.COMPRESSED),
    ("hca",): ("history", StateKind.COMPRESSED),
    WINDOW: ("window", StateKind.WINDOW),
    INDEXER: ("indexer", StateKind.INDEXER),
    BUFFERS: ("tail", StateKind.TAIL),
    OVERLAP: ("overlap", StateKind.TAIL),
    RECURRENT: ("recurrent", StateKind.TAIL),
    EVERY: ("format", StateKind.COMPRESSED),
}


def _misread(
    groups: tuple[str, ...], name: str, change: Changed, way: Way = Way.WRONG_FORMAT, **declares: object
) -> Fault:
    state, kind = _KINDS[groups]
    said: Mapping[str, object] = declares
    return Fault(f"{state}: {name}", way, kind, groups, Check.INTEGRITY, "content", change, declares=said)


def _keys(groups: tuple[str, ...], change: Change) -> Changed:
    """Only what is rotated: keys and entries, not values."""

    def keys_only(rows: torch.Tensor, place: Any, context: Context) -> torch.Tensor | None:
        return rows if place.path == "values" else change(rows, place, context)

    return on(groups, keys_only)


def _taps(rows: torch.Tensor, place: Any, context: Context) -> torch.Tensor:
    """Read the inputs of a convolution newest first."""
    return rows.flip(-1)


_HALVES = "absolute_halves"
_PADDED = {"row_stride": 4096}
"""Other than what any row here takes."""

FORMAT_FAULTS = (
    _misread(HISTORY, "bfloat16 bytes read as float16", on(HISTORY, bfloat16_as_float16), dtype="float16"),
    _misread(WINDOW, "bfloat16 bytes read as float16", on(WINDOW, bfloat16_as_float16), dtype="float16"),
    _misread(RECURRENT, "bfloat16 bytes read as float16", on(RECURRENT, bfloat16_as_float16), dtype="float16"),
    _misread(HISTORY, "rotated pairs read as halves", _keys(HISTORY, pairs_as_halves), position_convention=_HALVES),
    _misread(WINDOW, "rotated pairs read as halves", _keys(WINDOW, pairs_as_halves), position_convention=_HALVES),
    _misread(INDEXER, "rotated pairs read as halves", _keys(INDEXER, pairs_as_halves), position_convention=_HALVES),
    _misread(
        HISTORY, "[plain | rotated] read as [rotated | plain]", _keys(HISTORY, rotated_first), channel_order="rope|nope"
    ),
    _misread(HISTORY, "pages read transposed", on(HISTORY, pages_transposed), row_order="transposed"),
    _misread(INDEXER, "pages read transposed", on(INDEXER, pages_transposed), row_order="transposed"),
    _misread(HISTORY, "pages by eights read row by row", on(HISTORY, rows_by_eights(16)), row_order="page8"),
    _misread(INDEXER, "pages by eights read row by row", on(INDEXER, rows_by_eights(16)), row_order="page8"),
    _misread(INDEXER, "float32 scale read as UE8M0", on(INDEXER, float32_scale_read_as_ue8m0), scale="float32"),
    _misread(INDEXER, "UE8M0 scales read as float32", on(INDEXER, ue8m0_scales_read_as_float32), scale="ue8m0x4"),
    _misread(INDEXER, "rows rotated by Hadamard read as they are", on(INDEXER, hadamard), hadamard=True),
    _misread(OVERLAP, "gate in another dtype", on(OVERLAP, gate_in_another_dtype), gate_dtype="other"),
    _misread(HISTORY, "scale of the neighbour", on(HISTORY, scale_of_neighbour), scale_placement="next_row"),
    _misread(HISTORY, "keys and values exchanged", paths_exchanged(("kv",), "keys", "values"), layout="values_keys"),
    _misread(WINDOW, "keys and values exchanged", paths_exchanged(WINDOW, "keys", "values"), layout="values_keys"),
    _misread(WINDOW, "newest row first", on(WINDOW, newest_first), layout="newest_first"),
    _misread(OVERLAP, "gate without its position bias", on(OVERLAP, bias(-1)), bias_added=False),
    _misread(BUFFERS, "gate with its position bias", on(BUFFERS, bias(1)), bias_added=True),
    _misread(
        BUFFERS, "values and gates exchanged", paths_exchanged(BUFFERS, "_kv", "_gate"), state_format="gates_first"
    ),
    _misread(
        OVERLAP, "values and gates exchanged", paths_exchanged(OVERLAP, "_kv", "_gate"), state_format="gates_first"
    ),
    _misread(OVERLAP, "ring of 16 rows read as one of 8", on(OVERLAP, longer_ring(16)), ring_rows=16),
    _misread(
        OVERLAP, "ring p mod 8 read in reference order", on(OVERLAP, ring_in_reference_order), state_format="ring"
    ),
    _misread(BUFFERS, "halves of overlapping rows exchanged", on(BUFFERS, halves_exchanged), state_format="b_first"),
    _misread(RECURRENT, "matrices transposed", on(RECURRENT, matrices_transposed, path="recurrent"), state_format="t"),
    _misread(RECURRENT, "taps of the convolution turned round", on(RECURRENT, _taps, path="conv"), state_format="t"),
    _misread(EVERY, "rounded on the way", on(EVERY, rounded), rounding_point="stored"),
    _misread(EVERY, "other byte order", on(EVERY, other_byte_order), dtype="float32_be"),
)

MEMORY_FAULTS = (
    _misread(("csa",), "CSA rows padded, read packed", on(("csa",), padded_read_packed), Way.WRONG_STRIDE, **_PADDED),
    _misread(("hca",), "HCA rows padded, read packed", on(("hca",), padded_read_packed), Way.WRONG_STRIDE, **_PADDED),
    _misread(HISTORY, "rows packed, read padded", on(HISTORY, packed_read_padded), Way.WRONG_STRIDE, **_PADDED),
    _misread(WINDOW, "rows padded, read packed", on(WINDOW, padded_read_packed), Way.WRONG_STRIDE, **_PADDED),
    _misread(INDEXER, "rows padded, read packed", on(INDEXER, padded_read_packed), Way.WRONG_STRIDE, **_PADDED),
    _misread(HISTORY, "base off by 16 bytes", on(HISTORY, base_off(16)), Way.WRONG_BASE),
    _misread(WINDOW, "base off by 16 bytes", on(WINDOW, base_off(16)), Way.WRONG_BASE),
    _misread(INDEXER, "base off by 16 bytes", on(INDEXER, base_off(16)), Way.WRONG_BASE),
    _misread(BUFFERS, "base off by 16 bytes", on(BUFFERS, base_off(16)), Way.WRONG_BASE),
    _misread(OVERLAP, "base off by 16 bytes", on(OVERLAP, base_off(16)), Way.WRONG_BASE),
    _misread(RECURRENT, "base off by 16 bytes", on(RECURRENT, base_off(16)), Way.WRONG_BASE),
)
