# SPDX-License-Identifier: Apache-2.0
"""Rows in pages: the state of a sequence split over pages of a :class:`~hybridkv.HybridCache`, and put together again.

A page is regions, one for each part of the group and layer; a region is rows, and a row is the group's tensors side
by side. Which token a row stands for follows from the block alone:

=============  =========================================================================================
``Prefix``     row i of block b stands for the tokens from ``b * block + i * tokens_per_row`` on
``Window``     the page holds the trailing rows of its block, or of its part below a tip; its last row is
               that of the last token
``Checkpoint`` the rows of the state at the page's end, from row 0 on
=============  =========================================================================================

What a page does not use is zero: every byte is defined before it is published, since its fingerprint covers all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hybridkv.adapters.transformers.layout import CacheLayout, Place, is_checkpoint, is_state, refusal, window_tokens
from hybridkv.adapters.transformers.rebuild import State
from hybridkv.group import CacheGroup
from hybridkv.lease import Lease


@dataclass(frozen=True)
class RowShape:
    """One row of a place.

    Attributes
    ----------
    dtype : torch.dtype
    shape : tuple of int
    device : torch.device
        Where the model keeps it.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device

    @property
    def nbytes(self) -> int:
        """Bytes of the row."""
        return int(self.dtype.itemsize) * math.prod(self.shape)


@dataclass(frozen=True)
class Column:
    """A place inside a region: bytes ``start`` to ``start + width`` of each row."""

    place: Place
    start: int
    width: int


@dataclass(frozen=True)
class Region:
    """Rows of one part of one layer inside a page, ``rows * row_bytes`` bytes from ``offset`` on."""

    offset: int
    rows: int
    row_bytes: int
    columns: tuple[Column, ...]

    def of(self, page: torch.Tensor) -> torch.Tensor:
        """Return the region of a page, [[rows, row_bytes]] uint8, a view."""
        return page[self.offset : self.offset + self.rows * self.row_bytes].view(self.rows, self.row_bytes)


def regions_of(group: CacheGroup, layout: CacheLayout, shapes: Mapping[Place, RowShape]) -> tuple[Region, ...]:
    """Return the regions of a group's page: part after part, in each layer after layer."""
    rows = group.rows_per_page or 1
    found: list[Region] = []
    offset = 0
    for part in layout.family.groups[group.name]:
        for layer in group.layers:
            columns, width = [], 0
            for place in layout.places:
                if (place.group, place.part, place.layer) == (group.name, part, layer):
                    columns.append(Column(place, width, shapes[place].nbytes))
                    width += shapes[place].nbytes
            found.append(Region(offset, rows, width, tuple(columns)))
            offset += rows * width
    return tuple(found)


@dataclass(frozen=True)
class Span:
    """Which rows of a sequence lie where in one page.

    Attributes
    ----------
    block : int
        The group's own block.
    first : int
        The sequence's row (counted from row 0 of the place's tensor) that comes first.
    page_row : int
        Where it lies in the page.
    rows : int
    """

    block: int
    first: int
    page_row: int
    rows: int


class Pages:
    """The pools of one model, in host memory, and the way of rows into and out of them.

    Parameters
    ----------
    layout : CacheLayout
        With the groups of the cache's own spec.
    groups : mapping of str to CacheGroup
        Of the cache's spec: their bytes are the measured ones.
    shapes : mapping of Place to RowShape
        Of every place.
    pages : mapping of str to int
        Pages of each pool.

    Notes
    -----
    Thread safety: pages of a fill are written by its owner, pages of a lease are read by anyone.
    """

    def __init__(
        self,
        layout: CacheLayout,
        groups: Mapping[str, CacheGroup],
        shapes: Mapping[Place, RowShape],
        pages: Mapping[str, int],
    ) -> None:
        self.layout = layout
        self.groups = dict(groups)
        self.shapes = dict(shapes)
        self.regions = {name: regions_of(group, layout, shapes) for name, group in self.groups.items()}
        with torch.inference_mode(False):  # pools outlive the block in which they are made
            self.pools = {
                name: torch.zeros((pages[name], group.total_page_bytes), dtype=torch.uint8, device="cpu")
                for name, group in self.groups.items()
            }

    def arrays(self, group: str) -> npt.NDArray[np.uint8]:
        """Return a pool for :meth:`HybridCache.bind <hybridkv.HybridCache.bind>`: [[pages, page_bytes]] uint8."""
        pool: npt.NDArray[np.uint8] = self.pools[group].numpy()
        return pool

    def written_span(self, group: CacheGroup, block: int, end: int, tokens: int) -> Span | None:
        """Return which rows of a sequence at ``tokens`` fill the page of a block that ends at ``end``.

        Parameters
        ----------
        group : CacheGroup
        block : int
            The group's own block.
        end : int
            Last token of the page plus one: the block's end, or a tip's length.
        tokens : int
            Where the sequence stands.

        Returns
        -------
        Span or None
            None where the state at ``tokens`` no longer holds what the page must hold.
        """
        size = group.block_tokens or 1
        start = block * size
        if not is_state(group):
            ratio = group.tokens_per_row
            return Span(block, start // ratio, 0, end // ratio - start // ratio)
        if is_checkpoint(group):
            return Span(block, 0, 0, self.layout.rows_at(group.name, tokens)) if end == tokens else None
        held = self.layout.rows_at(group.name, tokens)
        kept = min(end - start, group.rows_per_page or size)
        needed = min(end - start, window_tokens(group) - 1)
        oldest = tokens - held
        if end - needed < oldest:
            return None
        first = max(end - kept, oldest)
        return Span(block, first - oldest, kept - (end - first), end - first)

    def read_spans(self, group: CacheGroup, tokens: int) -> Iterator[Span]:
        """Yield which rows of the state at ``tokens`` lie in which pages."""
        size = group.block_tokens or 1
        total = self.layout.rows_at(group.name, tokens)
        if not total:
            return
        if is_checkpoint(group):
            yield Span((tokens - 1) // size, 0, 0, total)
            return
        if not is_state(group):
            per_block = size // group.tokens_per_row
            for first in range(0, total, per_block):
                yield Span(first // per_block, first, 0, min(per_block, total - first))
            return
        oldest = tokens - total
        for block in range(oldest // size, (tokens - 1) // size + 1):
            end = min((block + 1) * size, tokens)
            kept = min(end - block * size, group.rows_per_page or size)
            first = max(end - kept, oldest)
            yield Span(block, first - oldest, kept - (end - first), end - first)

    def write(self, group: str, page: int, span: Span, state: State) -> None:
        """Fill a page, all of it, from the rows of a sequence.

        Parameters
        ----------
        group : str
        page : int
            A page of a fill of this caller.
        span : Span
            Of :meth:`written_span`.
        state : mapping of Place to torch.Tensor
            [[rows, ...]] each; on any device.

        Raises
        ------
        RestoreRefused
            Rows of another dtype or shape than measured (code "format"): a run under autocast, for one.
        """
        target = self.pools[group][page]
        target.zero_()
        for region in self.regions[group]:
            rows = region.of(target)
            for column in region.columns:
                if span.rows:
                    source = state[column.place][span.first : span.first + span.rows].to("cpu")
                    self._check_shape(column.place, source)
                    flat = source.contiguous().reshape(span.rows, -1).view(torch.uint8)
                    rows[span.page_row : span.page_row + span.rows, column.start : column.start + column.width] = flat

    def read(self, lease: Lease, tokens: int, *, skip: tuple[str, ...] = ()) -> State:
        """Put the state of a sequence together again.

        Parameters
        ----------
        lease : Lease
            Valid; its pages are pinned.
        tokens : int
            ``lease.tokens``, or less where only history is wanted.
        skip : tuple of str, optional
            Groups that a replay rebuilds.

        Returns
        -------
        State
            Copies, each on its layer's device.
        """
        state: dict[Place, torch.Tensor] = {}
        for name, group in self.groups.items():
            if name in skip:
                continue
            spans = list(self.read_spans(group, tokens))
            ids = lease.page_ids(name)
            for region in self.regions[name] if spans else ():
                pieces = [
                    region.of(self.pools[name][int(ids[span.block])])[span.page_row : span.page_row + span.rows]
                    for span in spans
                ]
                rows = torch.cat(pieces)
                for column in region.columns:
                    state[column.place] = self._typed(column, rows)
        return state

    def _check_shape(self, place: Place, rows: torch.Tensor) -> None:
        wanted = self.shapes[place]
        if (rows.dtype, tuple(rows.shape[1:])) != (wanted.dtype, wanted.shape):
            got = f"{rows.dtype} {list(rows.shape[1:])}"
            raise refusal("format", place.name, f"{wanted.dtype} {list(wanted.shape)}", got)

    def _typed(self, column: Column, rows: torch.Tensor) -> torch.Tensor:
        shape = self.shapes[column.place]
        flat = rows[:, column.start : column.start + column.width].contiguous()
        return flat.view(shape.dtype).reshape(rows.shape[0], *shape.shape).to(shape.device)
