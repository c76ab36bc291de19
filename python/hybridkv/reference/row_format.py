# SPDX-License-Identifier: Apache-2.0
"""Row formats as data: which channels lie where in a row, and where the rows of a page lie.

A row is described *packed*: its data bytes, then whatever the page keeps apart from them. In a page of b rows

    byte i of row k, i < data_bytes     at  k * data_bytes + i
    byte i of row k, i >= data_bytes    at  b * data_bytes + k * footer_bytes + (i - data_bytes)

so that an inline format has ``data_bytes == row_bytes``, and a format with its scales in the page's footer a smaller
one. Equal sizes say nothing: 584 bytes inline and 584 bytes with a footer are two formats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hybridkv.coverage import positive_int, truth, whole_number
from hybridkv.errors import KernelContract, SpecError
from hybridkv.page_rows import PageRows
from hybridkv.reference.quantise import ELEMENT_BITS, SMALL_FLOATS, ScaleRule
from hybridkv.reference.rotary import Rope
from hybridkv.texts import name_of


@dataclass(frozen=True)
class Part:
    """Consecutive channels of one element type.

    Parameters
    ----------
    name : str
        For people, such as "nope" or "rope".
    channels : int
        How many; parts take the channels of a row in order.
    element : str
        ``"float8_e4m3"``, ``"float4_e2m1"``, ``"bfloat16"``, ``"float32"`` or ``"float64"``.
    offset : int
        Of the first byte in the packed row.
    scale : ScaleRule, optional
        None for a part without scales.
    tile : int, optional
        Channels that share a scale; given exactly where ``scale`` is.
    scale_offset : int, optional
        Of the first scale in the packed row; scales of a part are consecutive. Given exactly where ``scale`` is.
    """

    name: str
    channels: int
    element: str
    offset: int
    scale: ScaleRule | None = None
    tile: int | None = None
    scale_offset: int | None = None

    @property
    def element_bytes(self) -> int:
        """Bytes of all its elements in a row."""
        return self.channels * ELEMENT_BITS[self.element] // 8

    @property
    def scale_count(self) -> int:
        """Scales in a row."""
        return 0 if self.tile is None else self.channels // self.tile

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield first byte and end of its elements, then of its scales, in the packed row."""
        yield self.offset, self.offset + self.element_bytes
        if self.scale is not None and self.scale_offset is not None:
            yield self.scale_offset, self.scale_offset + self.scale_count * self.scale.scale_bytes


@dataclass(frozen=True)
class RowFormat:
    """How the bytes of a row and of a page are laid out.

    Parameters
    ----------
    name : str
        For people and errors.
    row_bytes : int
        Of a packed row.
    parts : tuple of Part
        In the order of their channels.
    page_rows : int
        Rows of a page.
    data_bytes : int, optional
        Bytes of a row that lie with the row; the rest lies in the footer of the page. Default: all.
    base_alignment : int
        Alignment of a page's first byte in memory, a power of two.
    stride_multiple : int
        What the distance between pages is a multiple of, beside the alignment.
    hadamard : bool
        Whether the channels of a row are rotated by a Hadamard matrix before they are quantised.
    first_rounded_to : str, optional
        Element type that values are rounded to before the quantiser sees them, such as ``"bfloat16"``; default: none.
    rope_dims : int
        Channels at the end of a row that a rotary embedding turned; 0: not declared.
    interleaved : bool, optional
        Which of these channels are pairs, as in :class:`~hybridkv.reference.Rope`; given exactly where `rope_dims` is.

    Raises
    ------
    SpecError
        Sizes below 1, spans of parts that leave the row, overlap or are split by the footer, a tile that does not
        divide its channels, a Hadamard matrix over channels that are no power of two, rotated channels that are odd
        or more than there are.

    Notes
    -----
    Bytes of a packed row that no part covers are padding and written as 0.
    """

    name: str
    row_bytes: int
    parts: tuple[Part, ...]
    page_rows: int = 64
    data_bytes: int = 0
    base_alignment: int = 1
    stride_multiple: int = 1
    hadamard: bool = False
    first_rounded_to: str | None = None
    rope_dims: int = 0
    interleaved: bool | None = None

    def __post_init__(self) -> None:
        name_of("row_format.name", self.name, SpecError)
        for field in ("row_bytes", "page_rows", "base_alignment", "stride_multiple"):
            positive_int(f"row_format.{field}", getattr(self, field))
        if self.data_bytes == 0:
            object.__setattr__(self, "data_bytes", self.row_bytes)
        positive_int("row_format.data_bytes", self.data_bytes)
        if self.data_bytes > self.row_bytes:
            raise SpecError("row_format.data_bytes", f"at most row_bytes, {self.row_bytes}", self.data_bytes)
        if self.base_alignment & (self.base_alignment - 1):
            raise SpecError("row_format.base_alignment", "a power of two", self.base_alignment)
        for field in ("hadamard", "interleaved"):
            if (told := truth(getattr(self, field))) is not None:
                object.__setattr__(self, field, told)
        if not isinstance(self.hadamard, bool):
            raise SpecError("row_format.hadamard", "True or False", self.hadamard)
        if self.first_rounded_to is not None and self.first_rounded_to not in SMALL_FLOATS:
            raise SpecError("row_format.first_rounded_to", f"one of {sorted(SMALL_FLOATS)}", self.first_rounded_to)
        if not isinstance(self.parts, tuple) or not self.parts:
            raise SpecError("row_format.parts", "a tuple of at least one Part", self.parts)
        for part in self.parts:
            _check_part(part)
        _check_spans(self)
        if self.hadamard and self.channels & (self.channels - 1):
            raise SpecError("row_format.hadamard", "channels that are a power of two", self.channels)
        _check_rotation(self)

    @property
    def channels(self) -> int:
        """Channels of a row."""
        return sum(part.channels for part in self.parts)

    @property
    def footer_bytes(self) -> int:
        """Bytes of a row that lie in the footer of its page."""
        return self.row_bytes - self.data_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, padding between pages left out."""
        return self.page_rows * self.row_bytes

    @property
    def stride_unit(self) -> int:
        """What the distance between pages must be a multiple of, so that every page is aligned."""
        return math.lcm(self.base_alignment, self.stride_multiple)

    @property
    def page_stride(self) -> int:
        """Smallest distance between pages."""
        return -(-self.page_bytes // self.stride_unit) * self.stride_unit

    @property
    def footer_offset(self) -> int:
        """First byte of the footer in a page; the end of the page where there is none."""
        return self.page_rows * self.data_bytes

    @property
    def layout(self) -> PageRows:
        """Where rows and footers lie, as :func:`~hybridkv.reference.gather` takes it; its packed row is ours."""
        return PageRows(self.page_rows, self.data_bytes, footer_bytes=self.footer_bytes)

    def paged(self, page_rows: int) -> RowFormat:
        """Return the same rows in pages of another size.

        Parameters
        ----------
        page_rows : int
            Rows of a page.

        Returns
        -------
        RowFormat
            Equal in all else.

        Raises
        ------
        SpecError
            Below 1.
        """
        return replace(self, page_rows=page_rows)

    def with_footer(self) -> RowFormat:
        """Return the format with its scales, and what follows the first of them, in the footer of the page.

        Returns
        -------
        RowFormat
            Equal in all else.

        Raises
        ------
        SpecError
            No part has a scale, or elements follow one: such scales are inline by their place in the row.
        """
        offsets = [part.scale_offset for part in self.parts if part.scale_offset is not None]
        ends = [part.offset + part.element_bytes for part in self.parts]
        if not offsets or min(offsets) < max(ends):
            raise SpecError("row_format.parts", "scales behind all elements", self.name)
        return replace(self, data_bytes=min(offsets))

    def require_rope(self, rope: Rope | None) -> None:
        """Refuse a rotation that is not the declared one; where none is declared, any is taken.

        Parameters
        ----------
        rope : Rope or None
            What rows are rotated by before they are written.

        Raises
        ------
        KernelContract
            Other channels, or other pairs of them.
        """
        if self.rope_dims and (rope is None or (rope.dims, rope.interleaved) != (self.rope_dims, self.interleaved)):
            pairs = "interleaved pairs" if self.interleaved else "halves"
            raise KernelContract("rope", f"{self.rope_dims} channels in {pairs}, as row_format declares", rope)

    def inline(self) -> RowFormat:
        """Return the format with all bytes of a row together, in the order of the packed row."""
        return replace(self, data_bytes=self.row_bytes)


def _check_part(part: Part) -> None:
    if not isinstance(part, Part):
        raise SpecError("row_format.parts", "a tuple of Part", part)
    where = f"row_format.parts[{part.name}]"
    positive_int(f"{where}.channels", part.channels)
    if part.element not in ELEMENT_BITS:
        raise SpecError(f"{where}.element", f"one of {sorted(ELEMENT_BITS)}", part.element)
    if part.channels * ELEMENT_BITS[part.element] % 8:
        raise SpecError(f"{where}.channels", "whole bytes", part.channels)
    if len({part.scale is None, part.tile is None, part.scale_offset is None}) > 1:
        raise SpecError(f"{where}.scale", "scale, tile and scale_offset together, or none of them", part)
    if part.scale is not None:
        if part.element not in ("float8_e4m3", "float4_e2m1"):
            raise SpecError(f"{where}.scale", "a scale only for e4m3 or e2m1", part.element)
        tile = positive_int(f"{where}.tile", part.tile)
        if part.channels % tile:
            raise SpecError(f"{where}.tile", f"a divisor of {part.channels} channels", tile)


def _check_rotation(row: RowFormat) -> None:
    dims = whole_number(row.rope_dims)
    if dims is None or dims % 2 or not 0 <= dims <= row.channels:
        raise SpecError("row_format.rope_dims", f"an even number of {row.channels} channels at most", row.rope_dims)
    if (dims == 0) is not (row.interleaved is None) or not isinstance(row.interleaved, (bool, type(None))):
        raise SpecError("row_format.interleaved", "True or False with rope_dims, None without", row.interleaved)


def _check_spans(row: RowFormat) -> None:
    spans = sorted((*span, part.name) for part in row.parts for span in part.spans())
    end = 0
    for first, last, name in spans:
        where = f"row_format.parts[{name}].offset"
        if first < end:
            raise SpecError(where, f"byte {end} or later", first)
        if last > row.row_bytes:
            raise SpecError(where, f"an end within {row.row_bytes} bytes", last)
        if first < row.data_bytes < last:
            raise SpecError("row_format.data_bytes", f"no split of {name}, bytes {first} to {last}", row.data_bytes)
        end = last
