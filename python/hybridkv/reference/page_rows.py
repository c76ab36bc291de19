# SPDX-License-Identifier: Apache-2.0
"""Where rows and footers lie in the pages of a pool, and the packed pages and rows read from there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridkv.errors import KernelContract
from hybridkv.page_rows import PageRows
from hybridkv.reference.arrays import Bytes
from hybridkv.reference.contract import number

WIDEST_LOAD = 16  # bytes that one instruction of a kernel moves


class Places(NamedTuple):
    """A :class:`~hybridkv.page_rows.PageRows` with every number filled in."""

    rows: int
    row_bytes: int
    row_stride: int
    footer_bytes: int
    footer_offset: int

    @property
    def extent(self) -> int:
        """End of the last row or footer in a page."""
        rows_end = (self.rows - 1) * self.row_stride + self.row_bytes
        return max(rows_end, self.footer_offset + self.rows * self.footer_bytes if self.footer_bytes else 0)


class Pool:
    """The arrays of one group's layers, checked, as bytes.

    Parameters
    ----------
    suffix : str
        What follows an argument's name in errors.
    pools : ndarray or sequence of ndarray
        As in :func:`~hybridkv.reference.gather`.
    layout : PageRows or None
        Likewise.
    argument, layout_argument : str
        What errors call the pools and the layout.

    Attributes
    ----------
    rows : list of uint8 ndarray, [[pages, rows, row_bytes]]
        Views of the rows, by layer.
    footers : list of uint8 ndarray, [[pages, rows, footer_bytes]]
        Views of the footers, by layer.
    named : dict of str to ndarray
        The bytes of the arrays, up to the end of their rows and footers, by the names that errors give them.
    name : str
        Of the argument, in errors.
    single : bool
        Whether one array was given, not a sequence.
    """

    def __init__(
        self, suffix: str, pools: object, layout: object, argument: str = "pools", layout_argument: str = "layout"
    ) -> None:
        self.name = name = f"{argument}{suffix}"
        self.single = isinstance(pools, np.ndarray)
        given = [pools] if self.single else pools
        if not isinstance(given, (list, tuple)) or not given:
            raise KernelContract(name, "an array, or a list or tuple of at least one", type(pools).__name__)
        self.named: dict[str, npt.NDArray[Any]] = {}
        self.rows: list[Bytes] = []
        self.footers: list[Bytes] = []
        first: tuple[int, Places] | None = None
        for at, member in enumerate(given):
            own_name = name if self.single else f"{name}[{at}]"
            pages = _as_bytes(own_name, member)
            places = _places(own_name, f"{layout_argument}{suffix}", pages, layout)
            first = first or (len(pages), places)
            if (len(pages), places) != first:
                raise KernelContract(own_name, f"{first[0]} pages of {first[1]}, as the first", (len(pages), places))
            rows, footers = _split(own_name, pages, places)
            self.named[own_name] = pages if pages.ndim == 3 else pages[:, : places.extent]
            self.rows.append(rows)
            self.footers.append(footers)
        self.pages, self.plan = first or (0, places)

    @property
    def layers(self) -> int:
        """How many arrays."""
        return len(self.rows)

    @property
    def packed_row_bytes(self) -> int:
        """Bytes of a packed row."""
        return self.plan.row_bytes + self.plan.footer_bytes

    @property
    def in_one_piece(self) -> bool:
        """Whether the packed page lies in the page as it is packed."""
        plan = self.plan
        close = plan.rows == 1 or plan.row_stride == plan.row_bytes
        return close and (plan.footer_bytes == 0 or plan.footer_offset == plan.rows * plan.row_bytes)

    def packed(self, layer: int, page: int, row: int | None) -> Bytes:
        """Return a copy of a packed page, or of a packed row of it."""
        at = slice(None) if row is None else row
        rows, footers = self.rows[layer][page, at], self.footers[layer][page, at]
        return np.concatenate([rows.ravel(), footers.ravel()])

    def unpack(self, content: Bytes, layer: int, page: int, row: int | None) -> None:
        """Write a packed page, or a packed row, where it belongs."""
        at = slice(None) if row is None else row
        rows, footers = self.rows[layer][page, at], self.footers[layer][page, at]
        rows[...] = content[: rows.size].reshape(rows.shape)
        footers[...] = content[rows.size :].reshape(footers.shape)

    def buffer(self, name: str, value: object, count: int, *, by_row: bool) -> Bytes:
        """View a contiguous buffer of packed pieces as uint8 [[layers, count, bytes of a piece]]."""
        piece_bytes = (1 if by_row else self.plan.rows) * self.packed_row_bytes
        if not isinstance(value, np.ndarray):
            raise KernelContract(name, "a numpy array", type(value).__name__)
        value = np.asarray(value)
        if not value.flags.c_contiguous:
            raise KernelContract(name, "a contiguous array", f"strides {value.strides}")
        lead = (count,) if self.single else (self.layers, count)
        if value.shape[: len(lead)] != lead or value.nbytes != math.prod(lead) * piece_bytes:
            got = f"{list(value.shape)} of {value.dtype}"
            raise KernelContract(name, f"{list(lead)} pieces of {piece_bytes} bytes", got)
        return value.reshape(-1).view(np.uint8).reshape(self.layers, count, piece_bytes)

    def unit(self, *, by_row: bool) -> int:
        """Return the largest load, in bytes, that pieces can be moved by."""
        if self.in_one_piece and not by_row:
            return math.gcd(WIDEST_LOAD, self.plan.rows * self.packed_row_bytes)
        return math.gcd(WIDEST_LOAD, self.plan.row_bytes, self.plan.footer_bytes)

    def require_aligned(self, unit: int, buffers: dict[str, npt.NDArray[Any]], *, by_row: bool = False) -> None:
        """Refuse addresses and strides that are no multiple of a unit.

        Parameters
        ----------
        unit : int
            In bytes.
        buffers : dict of str to ndarray
            Arrays of which the address alone counts.
        by_row : bool
            Whether rows are moved, so that their places within the page count in any case.

        Raises
        ------
        KernelContract
            Names what is misaligned.
        """
        facts: list[tuple[str, str, int, bool]] = []
        for name, pages in self.named.items():
            facts.append((name, "address", _address(pages), pages.size > 0))
            facts.append((name, "page stride", pages.strides[0], pages.shape[0] > 1))
        apart = by_row or not self.in_one_piece
        facts.append((self.name, "row stride", self.plan.row_stride, apart and self.plan.rows > 1))
        facts.append((self.name, "footer offset", self.plan.footer_offset, apart and self.plan.footer_bytes > 0))
        facts += [(name, "address", _address(value), value.size > 0) for name, value in buffers.items()]
        for name, what, distance, counts in facts:
            if counts and distance % unit:
                raise KernelContract(name, f"{what} a multiple of {unit}", distance)


def _address(value: npt.NDArray[Any]) -> int:
    return int(value.__array_interface__["data"][0])


def _as_bytes(name: str, member: object) -> Bytes:
    if not isinstance(member, np.ndarray):
        raise KernelContract(name, "a numpy array", type(member).__name__)
    if member.dtype.hasobject:
        raise KernelContract(name, "bytes of a page, no Python objects", f"an array of {member.dtype}")
    if member.ndim not in (2, 3) or min(member.shape[1:]) < 1:
        raise KernelContract(name, "shape [pages, page_bytes] or [pages, rows, row_bytes]", list(member.shape))
    if member.size == 0:  # no pages, of which numpy does not tell strides
        return np.empty(member.shape, member.dtype).view(np.uint8)
    if member.shape[-1] * member.itemsize > 1 and member.strides[-1] != member.itemsize:
        raise KernelContract(name, "the bytes of a row in one piece", f"stride {member.strides[-1]}")
    return np.asarray(member).view(np.uint8)


def _places(name: str, field: str, pages: Bytes, layout: object) -> Places:
    """Return where rows lie: given, or by the dimensions of the array."""
    if layout is None:
        if pages.ndim == 2:
            return Places(1, pages.shape[1], pages.shape[1], 0, pages.shape[1])
        rows, row_bytes = pages.shape[1:]
        stride = pages.strides[1] if rows > 1 else row_bytes
        if stride < row_bytes:
            raise KernelContract(name, f"rows at least {row_bytes} bytes apart", stride)
        return Places(rows, row_bytes, stride, 0, rows * stride)
    if pages.ndim == 3:
        raise KernelContract(field, "None for pools of three dimensions", layout)
    if not isinstance(layout, PageRows):
        raise KernelContract(field, "a PageRows", type(layout).__name__)
    told: list[Any] = [getattr(layout, column) for column in Places._fields]
    rows, row_bytes = (number(field, value, "rows and row_bytes of 1 or more", 1) for value in told[:2])
    stride = number(field, row_bytes if told[2] is None else told[2], "a row_stride of at least row_bytes", row_bytes)
    footer_bytes = number(field, told[3], "footer_bytes of 0 or more", 0)
    told_offset = told[4] if footer_bytes else None  # without footers it does not count
    offset = number(field, rows * stride if told_offset is None else told_offset, "a footer_offset of 0 or more", 0)
    if footer_bytes and offset < (rows - 1) * stride + row_bytes:
        raise KernelContract(field, "footers behind the rows", layout)
    places = Places(rows, row_bytes, stride, footer_bytes, offset)
    if places.extent > pages.shape[1]:
        raise KernelContract(field, f"rows and footers within a page of {pages.shape[1]} bytes", layout)
    return places


def _split(name: str, pages: Bytes, places: Places) -> tuple[Bytes, Bytes]:
    """Return views of rows and footers."""
    apart = pages.shape[1] if pages.ndim == 2 else places.extent
    if pages.shape[0] > 1 and pages.strides[0] < apart:
        raise KernelContract(name, f"pages at least {apart} bytes apart", pages.strides[0])
    if pages.ndim == 3:
        return pages, pages[:, :, :0]
    return (
        _window(pages, 0, (places.rows, places.row_bytes), places.row_stride),
        _window(pages, places.footer_offset, (places.rows, places.footer_bytes), places.footer_bytes),
    )


def _window(pages: Bytes, first: int, shape: Sequence[int], stride: int) -> Bytes:
    """View ``shape[1]`` bytes at ``first + i * stride`` of each page, for i < ``shape[0]``."""
    if shape[1] == 0:
        return np.empty((pages.shape[0], *shape), np.uint8)
    return np.lib.stride_tricks.as_strided(pages[:, first:], (pages.shape[0], *shape), (pages.strides[0], stride, 1))
