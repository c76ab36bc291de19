# SPDX-License-Identifier: Apache-2.0
"""What a forward pass over reused prefixes gives back."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from hybridkv.adapters.transformers.layout import CacheLayout
from hybridkv.adapters.transformers.rebuild import rebuilt
from hybridkv.adapters.transformers.rows import Row, RowReuse
from hybridkv.errors import ArgumentError


class ReuseOutput:
    """Logits, cache and what was reused.

    Attributes
    ----------
    rows : list of RowReuse
        What was found for each row, and what of it was used.
    """

    def __init__(self, layout: CacheLayout, rows: list[Row]) -> None:
        self.rows: list[RowReuse] = [row.told for row in rows]
        self._layout = layout
        self._held = [(row.past, row.index, len(row.ids)) for row in rows]

    @cached_property
    def logits(self) -> torch.Tensor:
        """[[rows, computed, vocabulary]] of the last tokens, as many as were computed in every row."""
        each = [row.logits for row in self.rows if row.logits is not None]
        fewest = min(logits.shape[0] for logits in each)
        return torch.stack([logits[-fewest:] for logits in each])

    @cached_property
    def past(self) -> Any:
        """The cache of all rows at their end, a copy: yours to go on with.

        Raises
        ------
        ArgumentError
            Rows of different lengths have no common cache; see :meth:`past_of`.
        """
        lengths = {tokens for _, _, tokens in self._held}
        if len(lengths) != 1:
            raise ArgumentError("past", "rows of one length", sorted(lengths))
        states = [self._layout.state(past, tokens, index) for past, index, tokens in self._held]
        return rebuilt(self._layout, states, lengths.pop())

    def past_of(self, row: int) -> Any:
        """Return a cache of one row at its end, a copy."""
        past, index, tokens = self._held[row]
        return rebuilt(self._layout, [self._layout.state(past, tokens, index)], tokens)
