# SPDX-License-Identifier: Apache-2.0
"""Keeping boundaries of one sequence while a model runs over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.adapters.transformers.layout import is_state
from hybridkv.adapters.transformers.pages import Pages, Span
from hybridkv.adapters.transformers.rebuild import State
from hybridkv.adapters.transformers.stops import Blocks, needed_blocks
from hybridkv.adapters.transformers.store import Store, Written
from hybridkv.coverage import Window
from hybridkv.identity import Identity
from hybridkv.keys import BlockKeys, block_keys


class Recorder:
    """The states of one sequence, noted as they pass by and published at boundaries.

    Parameters
    ----------
    store : Store
    keys : BlockKeys
        Of the prompt.
    ids : numpy.ndarray
        [[tokens]] int64, the prompt.
    start : int
        Where the run begins: history below is in the cache already.
    identity : Identity
        Of the keys.

    Attributes
    ----------
    boundaries : list of int
        Kept so far, in tokens.
    longest : BlockKeys or None
        Of the sequence up to the last of them.

    Notes
    -----
    Thread safety: one owner. A state that is noted is copied: the model goes on writing into its cache.
    """

    def __init__(
        self, store: Store, keys: BlockKeys, ids: npt.NDArray[np.int64], start: int, identity: Identity
    ) -> None:
        self._store = store
        self._pages: Pages = store.pages
        self._keys = keys
        self._ids = ids
        self._identity = identity
        self._noted: dict[tuple[str, int, int], Written] = {}  # group, own block, end: a tip's block grows on
        self._start = start
        self._stored_tokens = start
        self.boundaries: list[int] = []
        self.longest: BlockKeys | None = None

    def note(self, past: Any, row: int, tokens: int, blocks: Blocks) -> None:
        """Copy the rows of window and checkpoint blocks while they are there.

        Parameters
        ----------
        past : transformers.Cache
            At position ``tokens``.
        row : int
            This sequence's row.
        tokens : int
        blocks : Blocks
            Blocks that end there, or end below and are still in the window.
        """
        if not any(blocks.values()):
            return
        state = self._pages.layout.state(past, tokens, row)
        for name, numbers in blocks.items():
            group = self._pages.groups[name]
            size = group.block_tokens or 1
            own = {place: rows for place, rows in state.items() if place.group == name}
            for block in numbers:
                end = min((block + 1) * size, tokens)
                span = self._pages.written_span(group, block, end, tokens)
                if span is not None:
                    self._noted[name, block, end] = _copied(span, own)

    def note_ends(self, past: Any, row: int, tokens: int) -> None:
        """Note every window block that ends here, since a later boundary may reach back into it."""
        blocks: Blocks = {}
        for name, group in self._pages.groups.items():
            size = group.block_tokens or 1
            if isinstance(group.coverage, Window) and tokens % size == 0:
                blocks[name] = [tokens // size - 1]
        self.note(past, row, tokens, blocks)

    def keep(self, past: Any, row: int, tokens: int, ids: npt.NDArray[np.int64], in_use: Sequence[BlockKeys]) -> bool:
        """Publish the boundary at a position: history up to it, and the blocks noted that it needs.

        Parameters
        ----------
        past : transformers.Cache
            At position ``tokens``.
        row : int
        tokens : int
            Unaligned positions become tips.
        ids : numpy.ndarray
            [[at least tokens]] int64, the sequence.
        in_use : sequence of BlockKeys
            Prefixes that are not to be evicted for it.

        Returns
        -------
        bool
            Whether it was stored.
        """
        groups = self._pages.groups
        state = self._pages.layout.state(past, tokens, row)
        written: dict[str, dict[int, Written]] = {name: {} for name in groups}
        whole = True
        for name, group in groups.items():
            size = group.block_tokens or 1
            if is_state(group):
                for block in needed_blocks(group, tokens):
                    end = min((block + 1) * size, tokens)
                    noted = self._noted.get((name, block, end))
                    if noted is not None:
                        written[name][block] = noted
                    elif end > self._start:
                        whole = False
                continue
            for block in range(self._stored_tokens // size, -(-tokens // size)):
                span = self._pages.written_span(group, block, min((block + 1) * size, tokens), tokens)
                if span is not None:
                    written[name][block] = Written(span, state)
        prefix = self._prefix(ids, tokens)
        if not self._store.publish(prefix, written, in_use, whole=whole):
            return False
        self.boundaries.append(tokens)
        self.longest = prefix
        unit = self._keys.unit_tokens
        self._stored_tokens = max(self._stored_tokens, tokens // unit * unit)
        self._forget(tokens)
        return True

    def _prefix(self, ids: npt.NDArray[np.int64], tokens: int) -> BlockKeys:
        """Return the keys of ``ids[:tokens]``; what was hashed before is not hashed again."""
        unit = self._keys.unit_tokens
        whole = min(tokens // unit, len(self._keys))
        if len(ids) > self._keys.tokens:
            known = len(self._keys)
            self._keys = block_keys(ids[known * unit :], unit, identity=self._identity, parent=self._keys)
            whole = tokens // unit
        if whole * unit == tokens:
            return self._keys[:whole]
        return block_keys(ids[whole * unit : tokens], unit, identity=self._identity, parent=self._keys[:whole])

    def _forget(self, tokens: int) -> None:
        """Drop notes that no later boundary can need."""
        for name, block, end in list(self._noted):
            size = self._pages.groups[name].block_tokens or 1
            whole = end == (block + 1) * size
            if not whole or block not in needed_blocks(self._pages.groups[name], tokens):
                del self._noted[name, block, end]


def _copied(span: Span, own: State) -> Written:
    rows = {place: tensor[span.first : span.first + span.rows].clone() for place, tensor in own.items()}
    return Written(Span(span.block, 0, span.page_row, span.rows), rows)
