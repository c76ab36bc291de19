# SPDX-License-Identifier: Apache-2.0
"""The arrays of one group as kernels take them: checked at each call, or once and for many calls."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import gcd
from typing import Any, NamedTuple

from hybridkv.alignment.checks import check, facts_of_pages
from hybridkv.alignment.needs import REFUSED, KernelNeeds
from hybridkv.errors import ArgumentError, KernelContract
from hybridkv.kernel_arguments import Access, Span, check_base, integer, kernel_facts, one_place
from hybridkv.page_rows import PageRows
from hybridkv.pools import ADDRESSES, ArrayFacts, PoolArray, pool_array

_WIDEST_LOAD = 16  # bytes of one load that alignment is asked for

_RowNumbers = tuple[int, int, int, int, int]


class Reach(NamedTuple):
    """Spans of memory in the order in which they begin, and how far those up to each reach."""

    starts: list[int]
    ends: list[int]

    @classmethod
    def over(cls, layers: list[tuple[int, int]], pages: int, rows: _RowNumbers) -> Reach:
        """Return where arrays of so many pages lie."""
        if not pages:
            return cls([], [])
        starts, ends, furthest = [], [], 0
        for base, stride in sorted(layers):
            furthest = max(furthest, base + _array_bytes(pages, stride, rows))
            starts.append(base)
            ends.append(furthest)
        return cls(starts, ends)

    def touches(self, start: int, end: int) -> bool:
        """Say whether one of the spans shares memory with one that is not empty."""
        before = bisect_left(self.starts, end)
        return before > 0 and start < self.ends[before - 1]


class PagedPool(NamedTuple):
    """The arrays of one group, as kernels take them.

    `place` is where all of them lie, host and number of the device, None where they differ or have no pages.
    """

    argument: str
    layers: list[tuple[int, int]]  # base address, page stride
    rows: _RowNumbers  # rows, row_bytes, row_stride, footer_bytes, footer_offset
    pages: int
    listed: bool  # whether they came as a list, so that buffers have a dimension for layers
    arrays: list[ArrayFacts]
    unit: int  # what all addresses and page strides are multiples of
    reach: Reach
    place: tuple[bool, int | None] | None

    @property
    def in_one_piece(self) -> bool:
        rows, row_bytes, row_stride, footer_bytes, footer_offset = self.rows
        return (rows == 1 or row_stride == row_bytes) and (footer_bytes == 0 or footer_offset == rows * row_bytes)

    def name(self, number: int) -> str:
        """Return what refusals call an array."""
        return f"{self.argument}[{number}]" if self.listed else self.argument

    def spans(self) -> list[Span]:
        """Return the memory of each array."""
        if not self.pages:
            return []
        return [
            Span(self.name(number), base, base + _array_bytes(self.pages, stride, self.rows), Access.POOL, facts)
            for number, ((base, stride), facts) in enumerate(zip(self.layers, self.arrays, strict=True))
        ]

    def lead(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the leading extents of a buffer for so many ids."""
        return (len(self.layers), *ids) if self.listed else ids

    def piece_bytes(self, by_row: bool) -> int:
        rows, row_bytes, _, footer_bytes, _ = self.rows
        return (row_bytes + footer_bytes) * (1 if by_row else rows)

    def check_writable(self) -> None:
        """Refuse arrays that are read-only."""
        for number, facts in enumerate(self.arrays):
            check_base(self.name(number), facts, 1, writable=True)

    def check_alignment(self, unit: int, by_row: bool) -> None:
        """Refuse addresses and strides that are no multiple of `unit`."""
        self.check_places(unit, unit)
        if self.in_one_piece and not by_row:
            return
        rows, _, row_stride, footer_bytes, footer_offset = self.rows
        if rows > 1 and row_stride % unit:
            raise KernelContract(self.argument, f"a row stride that is a multiple of {unit} bytes", row_stride)
        if footer_bytes and footer_offset % unit:
            raise KernelContract(self.argument, f"a footer offset that is a multiple of {unit} bytes", footer_offset)

    def check_places(self, base_unit: int, stride_unit: int) -> None:
        """Refuse addresses of arrays, and distances of pages, that are no multiples."""
        if self.unit % base_unit == 0 and self.unit % stride_unit == 0:
            return
        for number, (base, stride) in enumerate(self.layers):
            if base % base_unit and self.pages:
                raise KernelContract(self.name(number), f"an address that is a multiple of {base_unit}", hex(base))
            if self.pages > 1 and stride % stride_unit:
                expected = f"a page stride that is a multiple of {stride_unit} bytes"
                raise KernelContract(self.name(number), expected, stride)

    def load_unit(self, by_row: bool) -> int:
        """Return the bytes that loads of a piece may take at a time."""
        if self.in_one_piece and not by_row:
            return gcd(_WIDEST_LOAD, self.piece_bytes(False))
        return gcd(_WIDEST_LOAD, self.rows[1], self.rows[3])


class Pools:
    """The arrays of one group, checked once: taken by every call in the place of `pools`.

    A call then checks its other arguments alone; with many layers that is most of what a small call costs. What is
    refused, and under which name, is the same.

    Parameters
    ----------
    arrays : array or sequence of arrays
        As `pools` of :func:`~hybridkv.ops.gather`: one array, or one for each layer. Kept alive, and read where they
        lie now: one that is given other memory, shape or permission to be written is another array, and wants other
        Pools.
    layout : PageRows, optional
        As there; calls that take these pools have none of their own.
    kernels : str, KernelNeeds, or a sequence of these, optional
        What else will read what is scattered or converted into these pools (``hk.alignment.KERNELS``): the pools are
        refused where they are not what it needs.

    Raises
    ------
    KernelContract
        Naming argument, expected and got, as a call would; arrays that are not all on one device, or that a kernel
        cannot take, too.

    Examples
    --------
    >>> import numpy as np, hybridkv as hk
    >>> pools = hk.ops.Pools([np.full((4, 8), layer, np.uint8) for layer in range(3)])
    >>> pools.layers, pools.pages
    (3, 4)
    >>> out = np.empty((3, 1, 8), np.uint8)
    >>> hk.ops.gather(pools, np.array([2], np.int32), out)
    >>> out[:, 0, 0].tolist()
    [0, 1, 2]
    """

    __slots__ = ("_pool",)

    def __init__(
        self,
        arrays: Any,
        *,
        layout: PageRows | None = None,
        kernels: str | KernelNeeds | Iterable[str | KernelNeeds] = (),
    ) -> None:
        self._pool = _read("pools", arrays, layout, "layout")
        one_place(self._pool.spans())
        for violation in check(kernels, facts_of_pages(self._pool)):
            if violation.effect == REFUSED:
                raise KernelContract("pools", f"{violation.expected} for {violation.kernel}", violation.got)

    @property
    def layers(self) -> int:
        """Arrays."""
        return len(self._pool.layers)

    @property
    def pages(self) -> int:
        """Pages of each array."""
        return self._pool.pages

    def __repr__(self) -> str:
        rows, row_bytes, _, footer_bytes, _ = self._pool.rows
        return f"Pools({self.layers} x {self.pages} pages of {rows} rows of {row_bytes} + {footer_bytes} bytes)"

    def under(self, argument: str) -> PagedPool:
        """Return the pool, under the name that it has in a call."""
        return self._pool if argument == "pools" else self._pool._replace(argument=argument)


def paged_pool(
    suffix: str, pools: Any, layout: PageRows | None, *, writable: bool = False,
    argument: str = "pools", layout_argument: str = "layout",
) -> PagedPool:  # fmt: skip
    """Take one array of pages, a list of one for each layer, or what was checked before."""
    argument, field = argument + suffix, layout_argument + suffix
    if isinstance(pools, Pools):
        if layout is not None:
            raise KernelContract(field, "None, since these Pools have theirs", layout)
        pool = pools.under(argument)
    else:
        pool = _read(argument, pools, layout, field)
    if writable:
        pool.check_writable()
    return pool


def _read(argument: str, pools: Any, layout: PageRows | None, field: str) -> PagedPool:
    listed = isinstance(pools, (list, tuple))
    items = list(pools) if listed else [pools]
    if not items:
        raise KernelContract(argument, "at least one array", "none")
    arrays: list[ArrayFacts] = []
    layers: list[tuple[int, int]] = []
    first: tuple[PoolArray, _RowNumbers] | None = None
    alike: tuple[object, ...] = ()
    for number, item in enumerate(items):
        name = f"{argument}[{number}]" if listed else argument
        facts = kernel_facts(name, item)
        if first is None or facts[1:4] != alike:
            array, rows = _paged(name, field, facts, layout)
            if first is None:
                first, alike = (array, rows), facts[1:4]
            elif (first[0].pages, first[1]) != (array.pages, rows):
                got = f"{array.pages} pages of rows {rows}"
                raise KernelContract(name, f"as the first: {first[0].pages} pages of rows {first[1]}", got)
            layers.append((array.base, array.stride))
        else:  # shape, strides and dtype of the first: only where it lies has to be looked at
            _check_place(name, facts.address, first[0])
            layers.append((facts.address, first[0].stride))
        arrays.append(facts)
    assert first is not None
    pages, rows = first[0].pages, first[1]
    steps = [stride for _, stride in layers] if pages > 1 else []
    place = (arrays[0].host, arrays[0].device)
    together = pages > 0 and all((facts.host, facts.device) == place for facts in arrays)
    return PagedPool(
        argument, layers, rows, pages, listed, arrays, gcd(*(base for base, _ in layers), *steps),
        Reach.over(layers, pages, rows), place if together else None,
    )  # fmt: skip


def _paged(name: str, field: str, facts: ArrayFacts, layout: PageRows | None) -> tuple[PoolArray, _RowNumbers]:
    try:
        array = pool_array(name, facts)
    except ArgumentError as error:
        raise KernelContract(error.field, error.expected, error.got) from error
    return array, _page_rows(name, field, facts.shape, array, layout)


def _check_place(name: str, address: int, like: PoolArray) -> None:
    """Refuse pages that no address reaches."""
    extent = like.pages * max(like.stride, like.page_bytes)
    if not 0 <= address <= ADDRESSES - 1 - extent:
        raise KernelContract(name, "memory within 63 bits of address", f"{extent} bytes at {address}")


def _array_bytes(pages: int, stride: int, rows: _RowNumbers) -> int:
    """From the first byte of the first page to the last one of the last page."""
    return (pages - 1) * stride + _extent(rows)


def _extent(rows: _RowNumbers) -> int:
    count, row_bytes, row_stride, footer_bytes, footer_offset = rows
    return max((count - 1) * row_stride + row_bytes, footer_offset + count * footer_bytes if footer_bytes else 0)


def _page_rows(name: str, field: str, shape: tuple[int, ...], array: PoolArray, layout: PageRows | None) -> _RowNumbers:
    page_bytes = array.page_bytes
    if page_bytes == 0:
        raise KernelContract(name, "pages of at least 1 byte", f"shape {shape}")
    if layout is None:
        if len(shape) != 3:
            return (1, page_bytes, page_bytes, 0, page_bytes)
        rows, stride = shape[1], array.row_stride
        return (rows, page_bytes // rows, stride, 0, rows * stride)
    if not isinstance(layout, PageRows):
        raise KernelContract(field, "hk.ops.PageRows", type(layout).__name__)
    if len(shape) == 3:
        raise KernelContract(field, "None for arrays [[pages, rows, row_bytes]]", layout)
    rows = integer(field, layout.rows)
    row_bytes, footer_bytes = integer(field, layout.row_bytes), integer(field, layout.footer_bytes)
    row_stride = row_bytes if layout.row_stride is None else integer(field, layout.row_stride)
    offset = rows * row_stride if layout.footer_offset is None else integer(field, layout.footer_offset)
    if rows < 1 or row_bytes < 1 or footer_bytes < 0 or row_stride < row_bytes:
        raise KernelContract(field, "rows and row_bytes of 1 or more, row_stride at least row_bytes", layout)
    if offset < (rows - 1) * row_stride + row_bytes and footer_bytes:
        raise KernelContract(field, "footers behind the rows", layout)
    made = (rows, row_bytes, row_stride, footer_bytes, offset)
    if _extent(made) > page_bytes:
        raise KernelContract(field, f"rows and footers within {page_bytes} bytes of a page", layout)
    return made
