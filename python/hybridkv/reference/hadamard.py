# SPDX-License-Identifier: Apache-2.0
"""The Hadamard rotation of indexer keys and queries.

Orthogonal: q . k is the same where both sides are rotated, and garbage where one is. Rows of both kinds have equal
size, so that only a declared field tells them apart.
"""

from __future__ import annotations

import numpy as np

from hybridkv.errors import KernelContract
from hybridkv.reference.small_floats import Doubles


def rotate_hadamard(rows: Doubles) -> Doubles:
    """Multiply rows by the Walsh-Hadamard matrix in Sylvester's order, over the square root of their length.

    Parameters
    ----------
    rows : float64 ndarray, [[..., channels]]
        A power of two of channels.

    Returns
    -------
    float64 ndarray, [[..., channels]]
        Entry k is ``sum_j (-1)**popcount(j & k) * rows[j] / sqrt(channels)``. The matrix is its own inverse.

    Raises
    ------
    KernelContract
        Channels that are no power of two.
    """
    channels = rows.shape[-1]
    if channels < 1 or channels & (channels - 1):
        raise KernelContract("rows", "channels that are a power of two", channels)
    out = rows.astype(np.float64)
    span = 1
    while span < channels:
        pairs = out.reshape(*rows.shape[:-1], channels // (2 * span), 2, span)
        sums, differences = pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]
        out = np.stack([sums, differences], axis=-2).reshape(rows.shape)
        span *= 2
    result: Doubles = out / np.sqrt(channels)
    return result
