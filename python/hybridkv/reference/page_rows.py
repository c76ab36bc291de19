# SPDX-License-Identifier: Apache-2.0
"""Where rows and footers lie in the pages of a pool, and the packed pages and rows read from there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.errors import KernelContract
from hybridkv.reference.contract import number

Bytes = npt.NDArray[np.uint8]

WIDEST_LOAD = 16  # bytes that one instruction of a kernel moves


@dataclass(frozen=True)
class PageRows:
    """Rows and footers of a page.

    Parameters
    ----------
    rows : int
        Of a page.
    row_bytes : int
        Of a row, its footer left out.
    row_stride : int, optional
        From row to row; default: ``row_bytes``.
    footer_bytes : int
        Of one row.
    footer_offset : int, optional
        Of the first row's footer in the page; default: behind the last row, ``rows * row_stride``.

    Raises
    ------
    KernelContract
        Rows or bytes below 1, rows that overlap, a footer within the rows.
    """

    rows: int
    row_bytes: int
    row_stride: int | None = None
    footer_bytes: int = 0
    footer_offset: int | None = None

    def __post_init__(self) -> None:
        for field in ("rows", "row_bytes"):
            number(f"layout.{field}", getattr(self, field), "an int of at least 1", 1)
        number("layout.footer_bytes", self.footer_bytes, "an int of at least 0", 0)
        stride = self.row_bytes if self.row_stride is None else self.row_stride
        number("layout.row_stride", stride, f"an int of at least row_bytes, {self.row_bytes}", self.row_bytes)
        object.__setattr__(self, "row_stride", stride)
        offset = self.rows * stride if self.footer_offset is None else self.footer_offset
        last = (self.rows - 1) * stride + self.row_bytes
        number("layout.footer_offset", offset, f"an int of at least {last}, the end of the rows", last)
        object.__setattr__(self, "footer_offset", offset)


class Pool:
    """The arrays of one group's layers, checked, as bytes.

    Parameters
    ----------
    name : str
        What errors call the argument.
    pools : ndarray or sequence of ndarray
        As in :func:`~hybridkv.reference.gather`.
    layout : PageRows or None
        Likewise.

    Attributes
    ----------
    rows : list of uint8 ndarray, [[pages, rows, row_bytes]]
        Views of the rows, by layer.
    footers : list of uint8 ndarray, [[pages, rows, footer_bytes]]
        Views of the footers, by layer.
    named : dict of str to ndarray
        The arrays by the names that errors give them.
    single : bool
        Whether one array was given, not a sequence.
    """

    def __init__(self, name: str, pools: object, layout: PageRows | None) -> None:
        self.single = isinstance(pools, np.ndarray)
        given = [pools] if self.single else pools
        if not isinstance(given, (list, tuple)) or not given:
            raise KernelContract(name, "an array, or a list or tuple of at least one", type(pools).__name__)
        self.named: dict[str, npt.NDArray[Any]] = {}
        self.rows: list[Bytes] = []
        self.footers: list[Bytes] = []
        plans = set()
        for at, member in enumerate(given):
            own_name = name if self.single else f"{name}[{at}]"
            pages = _as_bytes(own_name, member)
            plan = _plan(own_name, pages, layout)
            rows, footers = _split(own_name, pages, plan)
            self.named[own_name] = member
            self.rows.append(rows)
            self.footers.append(footers)
            plans.add((plan, pages.shape[0]))
        if len(plans) > 1:
            raise KernelContract(name, "layers of one shape and row stride", plans)
        self.plan = plan
        self.pages = len(self.rows[0])

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
        plan, facts = self.plan, []
        for name, value in {**self.named, **buffers}.items():
            facts.append((name, "address", int(value.__array_interface__["data"][0]), value.size > 0))
        for name, pages in self.named.items():
            facts.append((name, "page stride", pages.strides[0], pages.shape[0] > 1))
            apart = by_row or not self.in_one_piece
            facts.append((name, "row stride", plan.row_stride or 0, apart and plan.rows > 1))
            facts.append((name, "footer offset", plan.footer_offset or 0, apart and plan.footer_bytes > 0))
        for name, what, distance, counts in facts:
            if counts and distance % unit:
                raise KernelContract(name, f"{what} a multiple of {unit}", distance)


def _as_bytes(name: str, member: object) -> Bytes:
    if not isinstance(member, np.ndarray):
        raise KernelContract(name, "a numpy array", type(member).__name__)
    if member.ndim not in (2, 3) or min(member.shape[1:]) < 1:
        raise KernelContract(name, "shape [pages, page_bytes] or [pages, rows, row_bytes]", list(member.shape))
    if member.shape[-1] * member.itemsize > 1 and member.strides[-1] != member.itemsize:
        raise KernelContract(name, "the bytes of a row in one piece", f"stride {member.strides[-1]}")
    return member.view(np.uint8)


def _plan(name: str, pages: Bytes, layout: PageRows | None) -> PageRows:
    """Return where rows lie: given, or by the dimensions of the array."""
    if pages.ndim == 2:
        return layout or PageRows(1, pages.shape[1])
    if layout is not None:
        raise KernelContract("layout", "None for pools of three dimensions", layout)
    rows, row_bytes = pages.shape[1:]
    stride = pages.strides[1] if rows > 1 else row_bytes
    if stride < row_bytes:
        raise KernelContract(name, f"rows at least {row_bytes} bytes apart", stride)
    return PageRows(rows, row_bytes, stride)


def _split(name: str, pages: Bytes, plan: PageRows) -> tuple[Bytes, Bytes]:
    """Return views of rows and footers, after a check that they lie within the pages."""
    stride, offset = plan.row_stride or 0, plan.footer_offset or 0
    needed = (plan.rows - 1) * stride + plan.row_bytes
    if plan.footer_bytes:
        needed = offset + plan.rows * plan.footer_bytes
    extent = pages.shape[1] if pages.ndim == 2 else needed
    if needed > extent:
        raise KernelContract(name, f"pages of at least {needed} bytes", extent)
    if pages.shape[0] > 1 and pages.strides[0] < extent:
        raise KernelContract(name, f"pages at least {extent} bytes apart", pages.strides[0])
    if pages.ndim == 3:
        return pages, pages[:, :, :0]
    return (
        _window(pages, 0, (plan.rows, plan.row_bytes), stride),
        _window(pages, offset, (plan.rows, plan.footer_bytes), plan.footer_bytes),
    )


def _window(pages: Bytes, first: int, shape: Sequence[int], stride: int) -> Bytes:
    """View ``shape[1]`` bytes at ``first + i * stride`` of each page, for i < ``shape[0]``."""
    if shape[1] == 0:
        return np.empty((pages.shape[0], *shape), np.uint8)
    return np.lib.stride_tricks.as_strided(pages[:, first:], (pages.shape[0], *shape), (pages.strides[0], stride, 1))
