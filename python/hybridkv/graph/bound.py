# SPDX-License-Identifier: Apache-2.0
"""Pools as kernels see them against the memory that a cache was bound to: page by page, by address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hybridkv.errors import ArgumentError
from hybridkv.graph.buffers import Recorded
from hybridkv.graph.padding import SKIP
from hybridkv.graph.step_shape import TableShape
from hybridkv.pools import ArrayFacts, PoolArray, array_facts

if TYPE_CHECKING:
    from hybridkv.cache_base import CacheBase


class Layout(NamedTuple):
    """Where a buffer has pages, as the kernels of one table count them.

    `rows` of its first dimension make a page: 1, or more where kernels see a pool as rows one behind the other.
    """

    address: int
    stride: int
    rows: int
    pages: int
    low: int  # bytes of a page, from where it begins: [low, high)
    high: int


class SeenPool(NamedTuple):
    """A buffer that is the pool of a table."""

    table: TableShape
    buffer: Recorded
    layout: Layout

    @property
    def null_rows(self) -> slice:
        """The null page, along the first dimension of the buffer."""
        page, rows = self.table.padding.page, self.layout.rows
        return slice(page * rows, (page + 1) * rows)


def seen_pools(tables: Sequence[TableShape], buffers: Sequence[Recorded], cache: CacheBase | None) -> list[SeenPool]:
    """Find which buffer is the pool of which table.

    Where the cache knows where a group's pages lie, a buffer under its name must have each of them where the cache has
    it, under the number that a table will hold: the cache's plus ``padding.first``. A page may be seen in part (a layer
    of several in one array, keys or values alone), or as rows one behind the other.

    Parameters
    ----------
    tables : sequence of TableShape
    buffers : sequence of Recorded
    cache : CacheBase or None
        Whose pools these are; None: not known, and every buffer under a group's name counts as its pool.

    Returns
    -------
    list of SeenPool

    Raises
    ------
    ArgumentError
        A buffer that is not the bound pool; a table whose pages no buffer of its group has where the table will say;
        a null page that is not there, or among the pages that the cache hands out; too few pages.
    """
    seen: list[SeenPool] = []
    for table in tables:
        if cache is not None:
            table.padding.check_apart(f"padding[{table.name}]", cache.pages[table.group.name])
    for group in dict.fromkeys(table.group.name for table in tables):
        own = [buffer for buffer in buffers if buffer.group == group]
        seen += _of_group([table for table in tables if table.group.name == group], own, cache)
    for pool in seen:
        _check_pages(pool, cache)
    return seen


def _of_group(tables: Sequence[TableShape], buffers: Sequence[Recorded], cache: CacheBase | None) -> Iterator[SeenPool]:
    group = tables[0].group.name
    bound = () if cache is None else cache._pool_arrays.get(group, ())
    if cache is None or not bound:
        for table in tables:
            for buffer in buffers:
                if buffer.facts.shape:
                    yield SeenPool(table, buffer, _as_pages(array_facts("buffers", buffer.item)))
        return
    handed = cache.pages[group]
    found = {
        (table.name, buffer.name): SeenPool(table, buffer, layout)
        for buffer in buffers
        for table in tables
        if (layout := _fitting(array_facts("buffers", buffer.item), bound, table.padding.first, handed)) is not None
    }
    for buffer in buffers:
        if not any(name == buffer.name for _, name in found):
            expected = f"pages where the cache has those of {group!r}: {_told(bound, tables[0].padding.first)}"
            raise ArgumentError(f"buffers[{buffer.name}]", expected, _got(buffer))
    for table in tables:
        if buffers and not any(name == table.name for name, _ in found):
            first = table.padding.first
            expected = f"a buffer of {group!r} as its kernel sees it: {_told(bound, first)}"
            raise ArgumentError(f"padding[{table.name}]", expected, "; ".join(map(_got, buffers)))
    yield from found.values()


def _told(bound: Sequence[PoolArray], first: int) -> str:
    more = f" (the first of {len(bound)} arrays)" if len(bound) > 1 else ""
    return f"page {first} at {hex(bound[0].base)}, {bound[0].stride} bytes from page to page{more}"


def _got(buffer: Recorded) -> str:
    facts = buffer.facts
    steps = f"shape {facts.shape} of strides {facts.strides}"
    return f"{buffer.name} at {hex(facts.address)} on {facts.device}, {steps}"


# -- places ------------------------------------------------------------------------------------------


def _as_pages(facts: ArrayFacts) -> Layout:
    """Take the first dimension for pages: nothing else is known."""
    low, high = _reach(facts, 1)
    return Layout(facts.address, facts.strides[0], 1, facts.shape[0], low, high)


def _fitting(facts: ArrayFacts, bound: Sequence[PoolArray], first: int, handed: int) -> Layout | None:
    layouts = (_laid_on(facts, array, first, handed) for array in bound)
    return next((layout for layout in layouts if layout is not None), None)


def _laid_on(facts: ArrayFacts, array: PoolArray, first: int, handed: int) -> Layout | None:
    """Return where a buffer has the pages of a bound array, or None where it has others.

    `first` is the number of the cache's page 0 there, `handed` how many pages the cache hands out.
    """
    if not facts.shape or 0 in facts.shape or not _one_device(facts, array):
        return None
    step, stride, rows = facts.strides[0], array.stride, 1
    if step != stride and 0 < step < stride and stride % step == 0:
        rows = stride // step
    elif step != stride and handed > 1:
        return None
    elif step != stride:  # of a single page no stride says anything
        stride = step
    low, high = _reach(facts, rows)
    at = facts.address + first * stride - array.base
    if at + low < 0 or (at + high > stride if handed > 1 else at + low >= max(array.extent, 1)):
        return None
    return Layout(facts.address, stride, rows, facts.shape[0] // rows, low, high)


def _one_device(facts: ArrayFacts, array: PoolArray) -> bool:
    """Whether they lie on one device, as far as arrays tell its number."""
    return facts.host == array.host and (None in (facts.device, array.device) or facts.device == array.device)


def _reach(facts: ArrayFacts, rows: int) -> tuple[int, int]:
    """Return the first byte and the end of so many rows of the first dimension, from where they begin."""
    counts = (rows, *facts.shape[1:])
    spans = [(count - 1) * step for count, step in zip(counts, facts.strides, strict=True)]
    return sum(min(span, 0) for span in spans), sum(max(span, 0) for span in spans) + facts.dtype.itemsize


# -- pages -------------------------------------------------------------------------------------------


def _check_pages(pool: SeenPool, cache: CacheBase | None) -> None:
    table, buffer, layout = pool
    name, padding = table.group.name, table.padding
    if padding.page >= layout.pages:
        raise ArgumentError(f"padding[{table.name}]", f"a page of the {layout.pages} of {buffer.name}", padding.page)
    if cache is None:
        return
    needed = cache.pages[name] + padding.first
    if layout.pages < needed:
        raise ArgumentError(
            f"buffers[{buffer.name}]", f"at least {needed} pages, which the cache hands out", layout.pages
        )
    if padding.kind == SKIP:
        return
    begin = layout.address + padding.page * layout.stride
    for group, page in _handed_out_at(begin + layout.low, begin + layout.high, cache._pool_arrays, cache.pages):
        expected = f"a page of {buffer.name} that the cache never hands out"
        raise ArgumentError(f"padding[{table.name}]", expected, f"{padding.page}, where page {page} of {group!r} lies")


def _handed_out_at(
    start: int, end: int, bound: Mapping[str, Sequence[PoolArray]], pages: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """Yield (group, page) of pages that the cache hands out and that touch these addresses; of each array the first."""
    for group, arrays in bound.items():
        for array in arrays:
            stride = max(array.stride, 1)
            lowest = max(0, (start - array.extent - array.base) // stride + 1)  # the first that ends behind `start`
            if lowest < pages[group] and array.base + lowest * stride < end:
                yield group, lowest
