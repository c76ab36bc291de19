# SPDX-License-Identifier: Apache-2.0
"""Rows: from channels to packed bytes, from packed bytes into pages, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.errors import KernelContract
from hybridkv.reference.arrays import Bytes, Doubles
from hybridkv.reference.contract import array
from hybridkv.reference.groups import require_writable
from hybridkv.reference.hadamard import rotate_hadamard
from hybridkv.reference.page_rows import Pool
from hybridkv.reference.quantise import SMALL_FLOATS, decode_elements, encode_elements
from hybridkv.reference.row_format import Part, RowFormat

NOT_WRITTEN = -1
"""In place of a slot: a row that is not stored."""


def encode_rows(rows: npt.ArrayLike, row_format: RowFormat) -> Bytes:
    """Quantise rows into packed bytes.

    Parameters
    ----------
    rows : array_like
        float64 [[rows, channels]], not yet rotated by a Hadamard matrix.
    row_format : RowFormat
        What to write.

    Returns
    -------
    uint8 ndarray, [[rows, row_bytes]]
        Padding is 0.

    Raises
    ------
    KernelContract
        Another number of channels.
    """
    numbers = np.asarray(rows, np.float64)
    if numbers.ndim != 2 or numbers.shape[1] != row_format.channels:
        raise KernelContract("rows", f"shape [rows, {row_format.channels}]", list(numbers.shape))
    if row_format.hadamard:
        numbers = rotate_hadamard(numbers)
    if row_format.first_rounded_to is not None:
        kind = SMALL_FLOATS[row_format.first_rounded_to]
        numbers = kind.decode(kind.encode(numbers))
    packed = np.zeros((numbers.shape[0], row_format.row_bytes), np.uint8)
    first = 0
    for part in row_format.parts:
        _encode_part(numbers[:, first : first + part.channels], part, packed)
        first += part.channels
    return packed


def _encode_part(numbers: Doubles, part: Part, packed: Bytes) -> None:
    spans = list(part.spans())
    if part.scale is not None:
        tiles = numbers.reshape(len(numbers), part.scale_count, part.channels // part.scale_count)
        limit = SMALL_FLOATS[part.element].largest_value
        scales, stored = part.scale.scales(tiles, limit)
        packed[:, slice(*spans[1])] = stored.reshape(len(numbers), part.scale_count * part.scale.scale_bytes)
        numbers = (tiles / scales[..., None]).reshape(numbers.shape)
    packed[:, slice(*spans[0])] = encode_elements(numbers, part.element)


def decode_rows(packed: npt.NDArray[Any], row_format: RowFormat) -> Doubles:
    """Return what a reader sees in packed rows.

    Parameters
    ----------
    packed : uint8 ndarray, [[rows, row_bytes]]
        As :func:`encode_rows` returns them.
    row_format : RowFormat
        What was written.

    Returns
    -------
    float64 ndarray, [[rows, channels]]
        Scaled, and still rotated where the format rotates: readers rotate their queries instead.

    Raises
    ------
    KernelContract
        Another dtype or shape.
    """
    packed = array("packed", packed, (np.uint8,), (None, row_format.row_bytes))
    channels = []
    for part in row_format.parts:
        spans = list(part.spans())
        values = decode_elements(packed[:, slice(*spans[0])], part.element)
        if part.scale is not None:
            stored = packed[:, slice(*spans[1])].reshape(len(packed), part.scale_count, part.scale.scale_bytes)
            tiles = values.reshape(len(packed), part.scale_count, part.channels // part.scale_count)
            values = (tiles * part.scale.decode(stored)[..., None]).reshape(values.shape)
        channels.append(values)
    return np.concatenate(channels, axis=1)


def store_rows(
    packed: npt.NDArray[Any], pages: npt.NDArray[Any], slots: npt.NDArray[np.integer[Any]], row_format: RowFormat
) -> None:
    """Put packed rows into their places in pages.

    Parameters
    ----------
    packed : uint8 ndarray, [[rows, row_bytes]]
        As :func:`encode_rows` returns them.
    pages : uint8 ndarray, [[pages, page_bytes or more]]
        Written in place; bytes of other rows and padding behind a page keep what they held.
    slots : integer ndarray, [[rows]]
        page * page_rows + row within the page; -1: not written.
    row_format : RowFormat
        Layout of the pages.

    Raises
    ------
    KernelContract
        Another dtype or shape, a slot out of range or twice, pages that are not such as the format
        declares.
    """
    packed = array("packed", packed, (np.uint8,), (None, row_format.row_bytes))
    pool = pages_of("pages", pages, row_format, written=True)
    kept = _places(slots, len(packed), pool, least=NOT_WRITTEN)
    written = kept[kept != NOT_WRITTEN]
    if len(np.unique(written)) != len(written):
        raise KernelContract("slots", "each slot at most once", slots)
    for content, slot in zip(packed, kept.tolist(), strict=True):
        if slot != NOT_WRITTEN:
            pool.unpack(content, 0, *divmod(slot, row_format.page_rows))


def load_rows(pages: npt.NDArray[Any], slots: npt.NDArray[np.integer[Any]], row_format: RowFormat) -> Bytes:
    """Return packed rows from their places in pages.

    Parameters
    ----------
    pages : uint8 ndarray, [[pages, page_bytes or more]]
        As :func:`store_rows` wrote them.
    slots : integer ndarray, [[rows]]
        page * page_rows + row within the page.
    row_format : RowFormat
        Layout of the pages.

    Returns
    -------
    uint8 ndarray, [[rows, row_bytes]]
        A copy.

    Raises
    ------
    KernelContract
        A slot out of range, pages that are not such as the format declares.
    """
    pool = pages_of("pages", pages, row_format, written=False)
    kept = _places(slots, None, pool, least=0)
    packed = np.empty((len(kept), row_format.row_bytes), np.uint8)
    for at, slot in enumerate(kept.tolist()):
        packed[at] = pool.packed(0, *divmod(slot, row_format.page_rows))
    return packed


def pages_of(name: str, pages: object, row_format: RowFormat, *, written: bool) -> Pool:
    """Return pages, after a check that they are such as the format declares.

    Parameters
    ----------
    name : str
        Of the argument.
    pages : object
        uint8 [[pages, page_bytes or more]].
    row_format : RowFormat
        Layout and alignment.
    written : bool
        Whether they must be writable.

    Returns
    -------
    Pool
        Of one layer.

    Raises
    ------
    KernelContract
        Another dtype or shape, pages too small or that overlap, a base address or page stride that the format does
        not allow, a read-only array where it is written.
    """
    given = array(name, pages, (np.uint8,), (None, None))
    if given.shape[1] < row_format.page_bytes:
        raise KernelContract(name, f"pages of at least {row_format.page_bytes} bytes", given.shape[1])
    pool = Pool("", given, row_format.layout, argument=name)
    require_placed(pool, row_format, written=written)
    return pool


def require_placed(pool: Pool, row_format: RowFormat, *, written: bool) -> None:
    """Refuse arrays of pages that do not lie where a format allows.

    Parameters
    ----------
    pool : Pool
        Any number of layers.
    row_format : RowFormat
        Alignment of pages and of the distance between them.
    written : bool
        Whether the arrays must be writable.

    Raises
    ------
    KernelContract
        A base address or page stride that the format does not allow, a read-only array where it is written.
    """
    for name, pages in pool.named.items():
        address, stride = int(pages.__array_interface__["data"][0]), pages.strides[0]
        if pages.size and address % row_format.base_alignment:
            raise KernelContract(name, f"an address that is a multiple of {row_format.base_alignment}", address)
        if len(pages) > 1 and stride % row_format.stride_unit:
            raise KernelContract(name, f"a page stride that is a multiple of {row_format.stride_unit}", stride)
        if written:
            require_writable(name, pages)


def _places(slots: object, rows: int | None, pool: Pool, *, least: int) -> npt.NDArray[np.integer[Any]]:
    kept = array("slots", slots, (np.int32, np.int64), (rows,))
    end = pool.pages * pool.plan.rows
    if kept.size and not (least <= kept.min() and kept.max() < end):
        raise KernelContract("slots", f"{least} <= slot < {end}", f"{kept.min()} to {kept.max()}")
    return kept
