# SPDX-License-Identifier: Apache-2.0
"""The indexer: which entries a query attends to.

    I[p, s] = sum_h w[p, h] * ReLU(q[p, h] . k[s]) / sqrt(d * heads)     for s < (p + 1) div ratio, else -inf

The product is rectified before it is weighted, so that a scale folded into w must be positive. Keys are entries of a
compressor of their own, in step with those that they choose.

Source: DeepSeek-V4 technical report (arXiv 2606.19348), "lightning indexer".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.reference.contract import array, number, real_rows
from hybridkv.reference.small_floats import Doubles

NO_ENTRY = -1
"""In place of an entry where a query may use fewer than were asked for."""


def index_scores(
    queries: npt.NDArray[Any],
    keys: npt.NDArray[Any],
    weights: npt.NDArray[Any],
    positions: npt.NDArray[np.integer[Any]],
    *,
    ratio: int,
) -> Doubles:
    """Score every entry for every query.

    Parameters
    ----------
    queries : ndarray, [[queries, heads, d]]
        float64, float32 or bits of bfloat16; rotated at their positions, and by a Hadamard matrix exactly where the
        keys are.
    keys : ndarray, [[entries, d]]
        From entry 0 on.
    weights : ndarray, [[queries, heads]]
        As projected, not yet scaled.
    positions : integer ndarray, [[queries]]
        Absolute position of each query.
    ratio : int
        Tokens of an entry.

    Returns
    -------
    float64 ndarray, [[queries, entries]]
        -inf for an entry whose window has not closed at the query; a token that closes a window sees its entry.

    Raises
    ------
    KernelContract
        Another dtype or shape, a ratio below 1.
    """
    q = real_rows("queries", queries, (None, None, None))
    count, heads, width = q.shape
    k = real_rows("keys", keys, (None, width))
    w = real_rows("weights", weights, (count, heads))
    at = array("positions", positions, (np.int32, np.int64), (count,)).astype(np.int64)
    rate = number("ratio", ratio, "an int of at least 1", 1)
    products = np.maximum(q @ k.T, 0.0)
    scores = np.einsum("qh,qhs->qs", w, products) / np.sqrt(width * heads)
    closed = np.arange(len(k)) < ((at + 1) // rate)[:, None]
    return np.where(closed, scores, -np.inf)


def choose_entries(scores: npt.NDArray[Any], count: int) -> npt.NDArray[np.int32]:
    """Choose the entries of the highest scores.

    Parameters
    ----------
    scores : ndarray, [[queries, entries]]
        float64 or float32, as :func:`index_scores` returns them.
    count : int
        How many to choose, at least 1.

    Returns
    -------
    int32 ndarray, [[queries, min(count, entries)]]
        Highest first, of equal ones the earlier entry first; -1 where no closed entry is left.

    Raises
    ------
    KernelContract
        Another dtype or shape, a count below 1.
    """
    kept = real_rows("scores", scores, (None, None))
    wanted = number("count", count, "an int of at least 1", 1)
    order = np.argsort(-kept, axis=1, kind="stable")[:, :wanted]
    open_yet = np.isneginf(np.take_along_axis(kept, order, axis=1))
    return np.where(open_yet, NO_ENTRY, order).astype(np.int32)
