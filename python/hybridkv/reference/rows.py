# SPDX-License-Identifier: Apache-2.0
"""Rows: from channels to packed bytes, from packed bytes into pages, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.errors import KernelContract
from hybridkv.reference.contract import array, readable_pages, writable_pages
from hybridkv.reference.hadamard import rotate_hadamard
from hybridkv.reference.quantise import SMALL_FLOATS, Bytes, decode_elements, encode_elements
from hybridkv.reference.row_format import Part, RowFormat
from hybridkv.reference.small_floats import Doubles


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
        Another dtype or shape, a slot out of range or twice, pages that do not hold the format.
    """
    packed = array("packed", packed, (np.uint8,), (None, row_format.row_bytes))
    pages = writable_pages("pages", pages, row_format.page_bytes)
    kept = _places(slots, len(packed), pages, row_format, least=-1)
    written = kept[kept >= 0]
    if len(np.unique(written)) != len(written):
        raise KernelContract("slots", "each slot at most once", slots)
    for row, slot in enumerate(kept):
        if slot >= 0:
            data, footer = _spans(int(slot) % row_format.page_rows, row_format)
            page = pages[slot // row_format.page_rows]
            page[data] = packed[row, : row_format.data_bytes]
            page[footer] = packed[row, row_format.data_bytes :]


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
        A slot out of range, pages that do not hold the format.
    """
    pages = readable_pages("pages", pages, row_format.page_bytes)
    kept = _places(slots, None, pages, row_format, least=0)
    packed = np.empty((len(kept), row_format.row_bytes), np.uint8)
    for row, slot in enumerate(kept):
        data, footer = _spans(int(slot) % row_format.page_rows, row_format)
        page = pages[slot // row_format.page_rows]
        packed[row, : row_format.data_bytes] = page[data]
        packed[row, row_format.data_bytes :] = page[footer]
    return packed


def _places(
    slots: object, rows: int | None, pages: Bytes, row_format: RowFormat, *, least: int
) -> npt.NDArray[np.integer[Any]]:
    kept = array("slots", slots, (np.int32, np.int64), (rows,))
    end = pages.shape[0] * row_format.page_rows
    if kept.size and not (least <= kept.min() and kept.max() < end):
        raise KernelContract("slots", f"{least} <= slot < {end}", f"{kept.min()} to {kept.max()}")
    return kept


def _spans(row: int, row_format: RowFormat) -> tuple[slice, slice]:
    """Bytes of a row within its page: its data, and its part of the footer."""
    data, footer = row * row_format.data_bytes, row_format.footer_offset + row * row_format.footer_bytes
    return slice(data, data + row_format.data_bytes), slice(footer, footer + row_format.footer_bytes)
