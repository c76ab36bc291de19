# SPDX-License-Identifier: Apache-2.0
"""Cache groups of recurrent layers: one state of fixed size per layer, needed exactly at t.

A layer's state is the last ``kernel - 1`` inputs of its convolution, in the dtype of rows, and the state
matrix, in its own dtype. Both are needed at every t > 0, and neither can be rolled back: only checkpoints
bring an earlier one back.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridkv.coverage import Checkpoint
from hybridkv.formats import KvFormat
from hybridkv.group import CacheGroup
from hybridkv.kinds import StateKind
from hybridkv.models.reader import ELEMENT_BYTES


def state_group(
    layout: str,
    layers: Sequence[int],
    *,
    conv_channels: int,
    kernel: int,
    conv_dtype: str,
    matrix_elements: int,
    matrix_dtype: str,
) -> CacheGroup:
    """Return the group of recurrent states.

    Parameters
    ----------
    layout : str
        Name of the layout, told in the format.
    layers : sequence of int
        The recurrent layers.
    conv_channels, kernel : int
        Channels and width of the convolution; ``kernel - 1`` inputs are kept.
    conv_dtype : str
        Element type of those inputs.
    matrix_elements : int
        Elements of the state matrix of one layer.
    matrix_dtype : str
        Their type.
    """
    conv = conv_channels * (kernel - 1) * ELEMENT_BYTES[conv_dtype]
    matrix = matrix_elements * ELEMENT_BYTES[matrix_dtype]
    members = {"conv": conv, "matrix": matrix}
    return CacheGroup(
        "state",
        StateKind.TAIL,
        Checkpoint(),
        page_bytes=conv + matrix,
        row_bytes=conv + matrix,
        rows_per_page=1,
        parts={name: size * len(layers) for name, size in members.items() if size},
        format=KvFormat(layout, matrix_dtype, state_format=f"conv_{conv_dtype}_then_matrix", row_bytes=conv + matrix),
        layers=tuple(layers),
    )
