# SPDX-License-Identifier: Apache-2.0
"""``convert``: rows of one format to rows of another, with every value as it was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hybridkv.errors import KernelContract
from hybridkv.page_rows import PageRows
from hybridkv.reference.arrays import Bytes
from hybridkv.reference.contract import array, check_threads, no_stream
from hybridkv.reference.conversion_plan import plan_conversion
from hybridkv.reference.groups import require_apart
from hybridkv.reference.page_rows import Pool
from hybridkv.reference.pieces import IDS, ids_of, null_page_of
from hybridkv.reference.quantise import UE8M0_BIAS, UE8M0_NAN
from hybridkv.reference.row_format import Part, RowFormat
from hybridkv.reference.rows import require_placed

Place: TypeAlias = tuple[int, int]
"""Page and row of a page."""


def convert(
    pools: Any,
    page_ids: Any,
    out: Any,
    out_ids: Any,
    *,
    source: RowFormat,
    target: RowFormat,
    row_counts: Any = None,
    layout: PageRows | None = None,
    out_layout: PageRows | None = None,
    null_page: Any = None,
    out_null_page: Any = None,
    threads: int = 1,
    stream: object = None,
) -> None:
    """Write rows of one format as rows of another, losslessly: what a reader decodes is the same to the bit.

    Row i of sequence q is row ``i % page_rows`` of page ``page_ids[q, i // page_rows]``, and likewise of ``out``.

    Parameters
    ----------
    pools : ndarray, or list or tuple of ndarray
        [[pages, page bytes or more]] of the source format, or [[pages, rows, row_bytes]] where it has no footer and
        rows may be padded; any dtype, one for each layer where it is a list.
    page_ids : int32 or int64 ndarray, [[sequences, columns]]
        Pages of each sequence in order; -1: not held. A page may be named more than once.
    out : ndarray, or list or tuple of ndarray
        As ``pools``, of the target format and with as many layers. Written: the rows, and no other byte.
    out_ids : int32 or int64 ndarray, [[sequences, columns]]
        Pages of ``out``, none of them for two runs of rows; -1: not held.
    source, target : RowFormat
        What is in the pages, and what shall be.
    row_counts : int32 or int64 ndarray, [[sequences]], optional
        Rows of each sequence. Default: all rows of the columns of ``page_ids``.
    layout, out_layout : PageRows, optional
        Where rows and footers lie in pages of two dimensions, if not as ``source.layout`` and ``target.layout`` say.
    null_page, out_null_page : int, optional
        A page that counts as not held.
    threads : int
        1 to 64, without meaning here.
    stream : None
        Host arrays have none.

    Raises
    ------
    KernelContract
        Before the first byte is written: formats between which there is no lossless way
        (:func:`~hybridkv.reference.plan_conversion`), a scale that has no form in the target (``got`` names page, row
        and value), a wrong dtype, shape, stride or alignment, an id out of range, a page of ``out`` named twice,
        ``out`` that shares memory with another argument.

    Notes
    -----
    A row is moved where both its pages are held; the place of another row keeps its bytes. Padding inside a row is
    moved along where both formats have their parts at the same bytes of the packed row, and is 0 where not.
    """
    no_stream(stream)
    check_threads(threads)
    plan_conversion(source, target).require_lossless()
    reader = _pages("pools", pools, source, "layout", layout, written=False)
    writer = _pages("out", out, target, "out_layout", out_layout, written=True)
    if (writer.single, writer.layers) != (reader.single, reader.layers):
        raise KernelContract("out", f"{reader.layers} layers, as pools", writer.layers)
    ids = ids_of("page_ids", page_ids, (None, None), reader.pages)
    out_places = ids_of("out_ids", out_ids, (len(ids), None), writer.pages)
    counts = _counts(row_counts, ids, out_places, (source, target))
    nulls = [
        null_page_of("null_page", null_page, reader.pages),
        null_page_of("out_null_page", out_null_page, writer.pages),
    ]
    inputs = {"page_ids": page_ids, "out_ids": out_ids, "row_counts": row_counts}
    require_apart([writer.named], [reader.named, inputs])
    ways = list(_ways(ids, out_places, counts, (source, target), nulls))
    made = [
        [_row(reader.packed(layer, *place), source, target, name, place) for place, _ in ways]
        for layer, name in enumerate(reader.named)
    ]
    for layer, rows in enumerate(made):
        for row, (_, place) in zip(rows, ways, strict=True):
            writer.unpack(row, layer, *place)


def _pages(name: str, pools: object, row: RowFormat, field: str, layout: object, *, written: bool) -> Pool:
    first = pools[0] if isinstance(pools, (list, tuple)) and pools else pools
    if layout is None and not (isinstance(first, np.ndarray) and first.ndim == 3):
        layout = row.layout
    pool = Pool("", pools, layout, name, field)
    wanted, plan = (row.page_rows, row.data_bytes, row.footer_bytes), pool.plan
    got = plan.rows, plan.row_bytes, plan.footer_bytes
    if got != wanted:
        where = name if layout is None else field
        raise KernelContract(where, f"rows, row_bytes, footer_bytes of {row.name}: {wanted}", got)
    require_placed(pool, row, written=written)
    return pool


def _counts(
    given: object, ids: npt.NDArray[Any], out_ids: npt.NDArray[Any], formats: tuple[RowFormat, RowFormat]
) -> list[int]:
    """Return the rows of each sequence; none has more than its columns hold."""
    held, room = (table.shape[1] * row.page_rows for table, row in zip((ids, out_ids), formats, strict=True))
    counts = [held] * len(ids)
    if given is not None:
        counts = array("row_counts", given, IDS, (len(ids),)).tolist()
        if any(not 0 <= count <= held for count in counts):
            raise KernelContract("row_counts", f"0 to {held} rows, as page_ids has columns", counts)
    if any(count > room for count in counts):
        raise KernelContract("out_ids", f"columns for {max(counts)} rows", f"columns for {room}")
    return counts


def _ways(
    ids: npt.NDArray[Any],
    out_ids: npt.NDArray[Any],
    counts: list[int],
    formats: tuple[RowFormat, RowFormat],
    nulls: list[int],
) -> Iterator[tuple[Place, Place]]:
    """Yield where each row is and where it goes."""
    taken: set[int] = set()
    for q, count in enumerate(counts):
        pages = out_ids[q, : -(-count // formats[1].page_rows)].tolist()
        held = [page for page in pages if page not in (-1, nulls[1])]
        if len(set(held)) != len(held) or taken & set(held):
            raise KernelContract("out_ids", "each page once", pages)
        taken |= set(held)
        for i in range(count):
            (column, row), (out_column, out_row) = (divmod(i, each.page_rows) for each in formats)
            page, out_page = int(ids[q, column]), int(out_ids[q, out_column])
            if page not in (-1, nulls[0]) and out_page not in (-1, nulls[1]):
                yield (page, row), (out_page, out_row)


def _row(packed: Bytes, source: RowFormat, target: RowFormat, name: str, place: Place) -> Bytes:
    """Return a packed row in the target's format."""
    alike = source.row_bytes == target.row_bytes and all(
        list(a.spans()) == list(b.spans()) for a, b in zip(source.parts, target.parts, strict=True)
    )
    made = packed.copy() if alike else np.zeros(target.row_bytes, np.uint8)
    order = _channel_order(source, target)
    first = 0
    for part, other in zip(source.parts, target.parts, strict=True):
        own = [channel - first for channel in order[first : first + part.channels]]
        first += part.channels
        elements, kept = (packed[p.offset : p.offset + p.element_bytes] for p in (part, other))
        if own == list(range(part.channels)):
            kept = elements
        else:
            kept = elements.reshape(part.channels, -1)[own].ravel()
        made[other.offset : other.offset + other.element_bytes] = kept
        if other.scale is not None and other.scale_offset is not None:
            scales = b"".join(_scales(packed, part, other, name, place))
            made[other.scale_offset : other.scale_offset + len(scales)] = list(scales)
    return made


def _channel_order(source: RowFormat, target: RowFormat) -> list[int]:
    """Return which channel of a source row each channel of a target row is."""
    order = list(range(source.channels))
    if source.interleaved == target.interleaved:
        return order
    first, half = source.channels - source.rope_dims, source.rope_dims // 2
    for pair in range(half):
        pairs, halves = (first + 2 * pair, first + 2 * pair + 1), (first + pair, first + half + pair)
        there, here = (pairs, halves) if source.interleaved else (halves, pairs)
        order[here[0]], order[here[1]] = there
    return order


def _scales(packed: Bytes, part: Part, other: Part, name: str, place: Place) -> Iterator[bytes]:
    """Yield the scales of a target row one by one."""
    rule, wanted = part.scale, other.scale
    assert rule is not None and wanted is not None and part.tile and other.tile and part.scale_offset is not None
    for tile in range(other.scale_count):
        first = tile * other.tile // part.tile
        last = -(-(tile + 1) * other.tile // part.tile)
        start = part.scale_offset + first * rule.scale_bytes
        stored = packed[start : part.scale_offset + last * rule.scale_bytes].reshape(last - first, rule.scale_bytes)
        where = f"of row {place[1]} of page {place[0]}"
        if any(bytes(scale) != bytes(stored[0]) for scale in stored):
            values = rule.decode(stored).tolist()
            raise KernelContract(name, f"one scale for {other.tile} channels", f"{values} from tile {first} on {where}")
        if rule.encoding == wanted.encoding:
            yield bytes(stored[0])
        else:
            yield _reencoded(stored[:1], part, other, name, f"in tile {first} {where}")


def _reencoded(stored: Bytes, part: Part, other: Part, name: str, where: str) -> bytes:
    """Return a power of two in its other form."""
    assert part.scale is not None and other.scale is not None
    value = float(part.scale.decode(stored)[0])
    mantissa, exponent = math.frexp(value) if math.isfinite(value) else (0.0, 0)
    code = exponent - 1 + UE8M0_BIAS
    if mantissa != 0.5 or not 0 <= code < UE8M0_NAN:
        raise KernelContract(name, "a scale that is a power of two from 2**-127 to 2**127", f"{value} {where}")
    return bytes([code]) if other.scale.encoding == "ue8m0" else np.array(value, "<f4").tobytes()
