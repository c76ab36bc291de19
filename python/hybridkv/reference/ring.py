# SPDX-License-Identifier: Apache-2.0
"""The ring form of the compressor: one token at a time, with no more than the rows that later entries need.

Row p mod R of a ring of R = c * r rows holds kv and score of the token at p, side by side; c is 2 with overlap. At t
tokens the live rows are

- *tail*: tokens [t - t mod r, t), all channels;
- *overlap*, with overlap and t >= r: the r tokens before those, the first half of kv and of score.

Nothing reads the others: at a multiple of r a ring without overlap has no live row at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.reference.compressor import Compressor, Slots
from hybridkv.reference.small_floats import Doubles


class Ring:
    """The state of one request at one layer, and the step that each token makes.

    Parameters
    ----------
    compressor : Compressor
        Of the layer.
    position : int
        Tokens processed so far.
    rows : ndarray, [[ring rows, 2 * c * d]], optional
        A state at ``position``, copied. Default: no live row, which only a start at 0 or, without overlap, at a
        multiple of the ratio may have.

    Attributes
    ----------
    rows : float64 ndarray, [[ring rows, 2 * c * d]]
        NaN where no token has been yet.
    position : int
        Tokens processed.
    """

    def __init__(self, compressor: Compressor, position: int = 0, rows: npt.NDArray[Any] | None = None) -> None:
        self.compressor = compressor
        self.position = position
        shape = (compressor.ring_rows, 2 * compressor.row_width)
        self.rows: Doubles = np.full(shape, np.nan) if rows is None else rows.astype(np.float64)

    def push(self, kv: Doubles, score: Doubles) -> Doubles | None:
        """Take the next token.

        Parameters
        ----------
        kv, score : ndarray, [[c * d]]
            Of the token at ``position``.

        Returns
        -------
        float64 ndarray [[d]], or None
            The entry whose window this token closes, if it closes one.
        """
        c = self.compressor
        self.rows[self.position % c.ring_rows] = np.concatenate([kv, score])
        self.position += 1
        if self.position % c.ratio:
            return None
        first = self.position - c.ratio
        kvs, scores = self._tokens(first)
        if c.overlap:
            kvs, scores = kvs[:, c.width :], scores[:, c.width :]
            if first > 0:
                earlier = [x[:, : c.width] for x in self._tokens(first - c.ratio)]
            else:
                earlier = [np.zeros(kvs.shape), np.full(kvs.shape, -np.inf)]
            kvs, scores = np.concatenate([earlier[0], kvs]), np.concatenate([earlier[1], scores])
        entry: Doubles = c.entries(Slots(kvs[None], scores[None], np.array([first])))[0]
        return entry

    def _tokens(self, first: int) -> tuple[Doubles, Doubles]:
        """kv and score of one window's tokens, in order of position."""
        c = self.compressor
        rows = self.rows[np.arange(first, first + c.ratio) % c.ring_rows]
        return rows[:, : c.row_width], rows[:, c.row_width :]
