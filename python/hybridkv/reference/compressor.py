# SPDX-License-Identifier: Apache-2.0
"""The compressor: r rows of tokens become one entry, in float64.

A token at position p brings kv_p and z_p of c * d channels each, z with its position bias added; c is 2 with overlap,
else 1. Entry i stands for the window of tokens [i r, i r + r) and pools these slots:

- without overlap: (kv_j, z_j) of the window, r slots;
- with overlap: (kv_j[:d], z_j[:d]) of the window before, then (kv_j[d:], z_j[d:]) of its own, 2 r slots. For entry 0
  the first r slots have value 0 and score -inf.

For each channel k alone, with s over the slots:

    a[s, k] = exp(z[s, k] - max_s z[s, k]) / sum_s exp(...)       y[k] = sum_s a[s, k] * kv[s, k]
    y <- weight * y / sqrt(mean(y**2) + eps)
    the last channels of y are rotated at position i r, the first token of the entry's own window

Source: DeepSeek-V4 technical report (arXiv 2606.19348), sections on CSA and HCA; the halves are named there in the
reverse order. A row of the sliding window is the entry of ratio 1: one slot, whose weight is 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.coverage import real_number
from hybridkv.errors import KernelContract
from hybridkv.reference.arrays import Doubles
from hybridkv.reference.contract import flag, number, real_rows
from hybridkv.reference.rotary import Rope


@dataclass(frozen=True)
class Slots:
    """What entries pool.

    Attributes
    ----------
    values, scores : float64 ndarray, [[entries, slots, d]]
        In order of position.
    positions : int64 ndarray, [[entries]]
        First token of each entry's own window.
    """

    values: Doubles
    scores: Doubles
    positions: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Compressor:
    """The compressor of one layer.

    Parameters
    ----------
    ratio : int
        Tokens of an entry, at least 1.
    overlap : bool
        Whether an entry also draws on the window before its own.
    norm_weight : ndarray, [[d]]
        float64, float32 or bits of bfloat16; its length is the width of an entry.
    eps : float
        Of the norm, 0 or more.
    rope : Rope or None
        None: nothing is rotated.

    Raises
    ------
    KernelContract
        One of these out of range, or a rotation wider than an entry.
    """

    ratio: int
    overlap: bool
    norm_weight: npt.NDArray[Any]
    eps: float
    rope: Rope | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", number("ratio", self.ratio, "an int of at least 1", 1))
        object.__setattr__(self, "overlap", flag("overlap", self.overlap))
        object.__setattr__(self, "norm_weight", real_rows("norm_weight", self.norm_weight, (None,)))
        eps = real_number(self.eps)
        if eps is None or not 0 <= eps < math.inf:
            raise KernelContract("eps", "a finite number, 0 or more", self.eps)
        object.__setattr__(self, "eps", eps)
        if self.rope is not None and not isinstance(self.rope, Rope):
            raise KernelContract("rope", "a Rope or None", self.rope)
        if self.width < 1 or (self.rope is not None and self.rope.dims > self.width):
            least = 1 if self.rope is None else self.rope.dims
            raise KernelContract("norm_weight", f"at least {least} channels", self.width)

    @property
    def width(self) -> int:
        """Channels of an entry, d."""
        return int(self.norm_weight.shape[0])

    @property
    def row_width(self) -> int:
        """Channels of a token's kv and of its score, c * d."""
        return self.width * (2 if self.overlap else 1)

    @property
    def ring_rows(self) -> int:
        """Rows of the ring that a state is kept in, c * r."""
        return self.ratio * (2 if self.overlap else 1)

    def batch(self, kv: npt.NDArray[Any], score: npt.NDArray[Any]) -> Doubles:
        """Return all entries of a prompt that starts at position 0: the definition.

        Parameters
        ----------
        kv, score : ndarray, [[tokens, c * d]]
            float64, float32 or bits of bfloat16.

        Returns
        -------
        float64 ndarray, [[tokens // ratio, d]]
            The tokens of the partial last window are not in it.
        """
        rows = (None, self.row_width)
        return self.entries(self.slots(real_rows("kv", kv, rows), real_rows("score", score, rows), 0, None))

    def slots(self, kv: Doubles, score: Doubles, position: int, before: tuple[Doubles, Doubles] | None) -> Slots:
        """Lay out the slots of all windows that rows fill.

        Parameters
        ----------
        kv, score : float64 ndarray, [[tokens, c * d]]
            Rows of consecutive tokens.
        position : int
            Of the first row, a multiple of the ratio.
        before : pair of float64 ndarray [[ratio, d]], or None
            First halves of kv and of score of the window before ``position``; None: there is none.

        Returns
        -------
        Slots
            Of ``tokens // ratio`` entries.
        """
        count, r, d = len(kv) // self.ratio, self.ratio, self.width
        values, scores = (x[: count * r].reshape(count, r, x.shape[1]) for x in (kv, score))
        if self.overlap:
            empty = np.zeros((r, d)), np.full((r, d), -np.inf)
            values, scores = (
                np.concatenate([np.concatenate([first[None], x[:-1, :, :d]])[:count], x[..., d:]], axis=1)
                for x, first in zip((values, scores), before or empty, strict=True)
            )
        return Slots(values, scores, position + r * np.arange(count, dtype=np.int64))

    def entries(self, slots: Slots) -> Doubles:
        """Pool, norm and rotate.

        Parameters
        ----------
        slots : Slots
            Of any number of entries.

        Returns
        -------
        float64 ndarray, [[entries, d]]
            NaN in a whole row where the scores of one of its channels hold NaN or +inf, or are all -inf, or where
            a value is NaN or infinite.
        """
        with np.errstate(invalid="ignore"):
            pooled = pool(slots.values, slots.scores)
            normed = rms_norm(pooled, self.norm_weight, self.eps)
        return normed if self.rope is None else self.rope.rotate(normed, slots.positions)


def pool(values: Doubles, scores: Doubles) -> Doubles:
    """Average values over the slots with softmax weights, each channel by itself.

    Parameters
    ----------
    values, scores : float64 ndarray, [[..., slots, channels]]
        At least one slot.

    Returns
    -------
    float64 ndarray, [[..., channels]]
        NaN in a channel whose scores hold NaN or +inf, or are all -inf.
    """
    weights = softmax(scores)
    result: Doubles = np.sum(weights * values, axis=-2)
    return result


def softmax(scores: Doubles) -> Doubles:
    """Return the softmax weights of scores over their slots, each channel by itself.

    Parameters
    ----------
    scores : float64 ndarray, [[..., slots, channels]]
        At least one slot.

    Returns
    -------
    float64 ndarray, [[..., slots, channels]]
        Sums over the slots are 1.
    """
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - np.max(scores, axis=-2, keepdims=True))
    result: Doubles = powers / np.sum(powers, axis=-2, keepdims=True)
    return result


def rms_norm(rows: Doubles, weight: Doubles, eps: float) -> Doubles:
    """Scale rows to a root mean square of 1, then by a weight for each channel.

    Parameters
    ----------
    rows : float64 ndarray, [[..., channels]]
        Any.
    weight : float64 ndarray, [[channels]]
        Any.
    eps : float
        Added to the mean square.

    Returns
    -------
    float64 ndarray, [[..., channels]]
        ``weight * rows / sqrt(mean(rows**2) + eps)``.
    """
    mean_square = np.mean(rows * rows, axis=-1, keepdims=True)
    result: Doubles = weight * (rows / np.sqrt(mean_square + eps))
    return result
