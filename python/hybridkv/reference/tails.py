# SPDX-License-Identifier: Apache-2.0
"""``compress_tail``: rows of many requests, each with what it carried, to finished rows in pages and the new carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.errors import KernelContract
from hybridkv.reference.arrays import Doubles, widen
from hybridkv.reference.compressor import Compressor
from hybridkv.reference.contract import array, no_stream, real_rows, require_rows_apart
from hybridkv.reference.groups import Named, require_apart, require_writable
from hybridkv.reference.rotary import Rope
from hybridkv.reference.row_format import RowFormat
from hybridkv.reference.rows import NOT_WRITTEN, encode_rows, pages_of, store_rows

POSITION_LIMIT = 2**31
"""Positions are int32 in every kernel."""

MISSING = -2
"""In place of a slot: an entry behind the last column of ``page_ids``, refused unless it is masked."""


def compress_tail(
    kv: npt.NDArray[Any],
    score: npt.NDArray[Any],
    out: npt.NDArray[np.uint8],
    *,
    ratio: int,
    overlap: bool,
    norm_weight: npt.NDArray[Any],
    eps: float,
    rope: Rope | None,
    row_format: RowFormat,
    carry: npt.NDArray[Any] | None = None,
    new_carry: npt.NDArray[Any] | None = None,
    starts: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int32],
    write_mask: npt.NDArray[np.int32] | None = None,
    page_ids: npt.NDArray[np.int32] | None = None,
    stream: object = None,
) -> None:
    """Close every window that the rows fill: pool, norm, rotate, quantise and store its entry; keep the rest.

    The formulas are those of :mod:`hybridkv.reference.compressor`, in float64.

    Parameters
    ----------
    kv, score : ndarray, [[rows, c * d]]
        float64, float32 or uint16 (bits of bfloat16), the rows of all requests one after another; c is 2 with
        overlap, else 1. Scores carry their position bias. The channels of a row are contiguous.
    out : uint8 ndarray, [[pages, page bytes or more]]
        Written in place, nothing but the bytes of the rows that are written.
    ratio : int
        Tokens of an entry, at least 1.
    overlap : bool
        Whether an entry also draws on the window before its own.
    norm_weight : ndarray, [[d]]
        Weight of the norm, as ``kv``.
    eps : float
        Of the norm.
    rope : Rope or None
        Applied at the first token of an entry's own window.
    row_format : RowFormat
        Of the rows and pages of ``out``; d channels.
    carry : ndarray, [[requests, ring rows, 2 * c * d]], optional
        float32 or float64: the ring of each request at ``positions``, as :mod:`hybridkv.reference.ring` says; only
        live rows are read. None: no request has a live row. A request at a position above 0 has some with overlap,
        or where the position is no multiple of the ratio; the one exception is a replay whose first window closes
        in this call and is masked.
    new_carry : ndarray, as ``carry``, optional
        Receives the live rows at the end of each request's rows, rounded to its dtype; nothing else in it changes.
        May be ``carry``.
    starts : int32 ndarray, [[requests + 1]]
        Row of each request's first token; the last is the number of rows.
    positions : int32 ndarray, [[requests]]
        Absolute position of each request's first token.
    write_mask : int32 ndarray, [[requests]], optional
        A position for each request: an entry whose window ends at or below it is not written, though its rows
        count for what comes later. For replays: what is cached is never overwritten. Default: 0.
    page_ids : int32 ndarray, [[requests, columns]], optional
        Page of each request's entries: entry i goes to row ``i % page_rows`` of page ``page_ids[q, i //
        page_rows]``; -1: not written. Default: the windows of the call, masked ones too, fill the rows of ``out``
        one after another.
    stream : None
        Host arrays have none.

    Raises
    ------
    KernelContract
        Before anything is written: a wrong dtype, shape or stride, memory shared between an output and another
        argument, starts that do not ascend from 0 to the rows, a position below 0 or beyond int32, a carry that is
        needed and not there, an entry without a column or a row of ``out``, a page id out of range, a row that two
        entries would take.

    Notes
    -----
    Scores of -inf are weights of 0. A NaN or +inf, or nothing but -inf in a channel, makes the entry NaN in all
    channels, and is no error. A kernel in float32 has to stay within
    :func:`hybridkv.reference.bounds.float32_bound` before it quantises.
    """
    no_stream(stream)
    compressor = Compressor(_closing(ratio), overlap, norm_weight, eps, rope)
    shape = (None, compressor.row_width)
    rows = real_rows("kv", kv, shape), real_rows("score", score, (len(kv), compressor.row_width))
    if not isinstance(row_format, RowFormat) or row_format.channels != compressor.width:
        raise KernelContract("row_format", f"a RowFormat of {compressor.width} channels", row_format)
    row_format.require_rope(rope)
    pages_of("out", out, row_format, written=True)
    requests = _requests(starts, positions, write_mask, len(kv))
    if page_ids is not None:
        array("page_ids", page_ids, (np.int32,), (len(requests), None))
    _check_carry("carry", carry, compressor, len(requests))
    _check_carry("new_carry", new_carry, compressor, len(requests))
    inputs: dict[str, npt.NDArray[Any] | None]
    inputs = {"kv": kv, "score": score, "norm_weight": norm_weight, "starts": starts, "positions": positions}
    _check_outputs(out, carry, new_carry, inputs | {"write_mask": write_mask, "page_ids": page_ids})
    slots = _slots(requests, compressor.ratio, row_format, out, page_ids)
    for request in requests:
        _check_needed(request, compressor, carry)
    entries = [np.empty((0, compressor.width))]
    for q, request in enumerate(requests):
        old, new = (None if rings is None else rings[q] for rings in (carry, new_carry))
        entries.append(_advance(request, compressor, rows, old, new))
    store_rows(encode_rows(np.concatenate(entries), row_format), out, slots, row_format)


@dataclass(frozen=True)
class Request:
    """Rows [first, end) of a call are the tokens of one request from ``position`` on."""

    index: int
    first: int
    end: int
    position: int
    mask: int

    @property
    def last(self) -> int:
        """Position behind its last token."""
        return self.position + self.end - self.first

    def closing(self, ratio: int) -> range:
        """Return the indices of the entries whose windows its tokens close."""
        return range(self.position // ratio, self.last // ratio)


def _closing(ratio: Any) -> Any:
    """Return the ratio, or the least of those that close no window either."""
    return min(ratio, POSITION_LIMIT) if isinstance(ratio, (int, np.integer)) else ratio


def _requests(starts: object, positions: object, write_mask: object, rows: int) -> list[Request]:
    kept = array("positions", positions, (np.int32,), (None,))
    bounds = array("starts", starts, (np.int32,), (len(kept) + 1,))
    if bounds[0] != 0 or bounds[-1] != rows or np.any(np.diff(bounds) < 0):
        raise KernelContract("starts", f"ascending from 0 to {rows}", bounds.tolist())
    masks = np.zeros(len(kept), np.int32) if write_mask is None else write_mask
    masks = array("write_mask", masks, (np.int32,), (len(kept),))
    pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), kept.tolist(), masks.tolist(), strict=True)
    requests = [Request(q, *fields) for q, fields in enumerate(pairs)]
    for request in requests:
        if request.position < 0 or request.last >= POSITION_LIMIT:
            raise KernelContract("positions", "0 or more, and below 2**31 at the last row", request.position)
    return requests


def _check_carry(name: str, carry: object, compressor: Compressor, requests: int) -> None:
    if carry is not None:
        shape = (requests, compressor.ring_rows, 2 * compressor.row_width)
        kept = array(name, carry, (np.float32, np.float64), shape)
        if kept.size and kept.strides[2] != kept.itemsize:
            raise KernelContract(name, "contiguous channels", f"stride {kept.strides[2]}")


def _check_outputs(
    out: npt.NDArray[Any], carry: npt.NDArray[Any] | None, new_carry: npt.NDArray[Any] | None, inputs: Named
) -> None:
    """Refuse outputs that cannot be written, or that share memory; a carry may be updated in place."""
    require_apart([{"out": out}], [inputs, {"carry": carry, "new_carry": new_carry}])
    if new_carry is not None:
        require_writable("new_carry", new_carry)
        require_rows_apart("new_carry", new_carry.shape, new_carry.strides, new_carry.itemsize)
        in_place = carry is not None and _place(carry) == _place(new_carry)
        require_apart([{"new_carry": new_carry}], [inputs, {} if in_place else {"carry": carry}])


def _place(value: npt.NDArray[Any]) -> tuple[Any, ...]:
    return value.__array_interface__["data"][0], value.strides, value.dtype


def _check_needed(request: Request, compressor: Compressor, carry: object) -> None:
    """Refuse a start in the middle of things without what it needs."""
    inside = request.position % compressor.ratio != 0
    drawn = compressor.overlap and request.position > 0
    replayed = not inside and request.position + compressor.ratio <= min(request.mask, request.last)
    if carry is None and (inside or drawn) and not replayed:
        raise KernelContract("carry", f"the ring of request {request.index} at {request.position}", None)


def _slots(
    requests: list[Request], ratio: int, row_format: RowFormat, out: npt.NDArray[np.uint8], page_ids: object
) -> npt.NDArray[np.int64]:
    """Return where each closing window's entry goes, in the order of requests and windows."""
    windows = [(request, entry) for request in requests for entry in request.closing(ratio)]
    places = out.shape[0] * row_format.page_rows
    if page_ids is None:
        if len(windows) > places:
            raise KernelContract("out", f"room for {len(windows)} rows", f"{places} rows")
        slots = list(range(len(windows)))
    else:
        ids = array("page_ids", page_ids, (np.int32,), (len(requests), None))
        if ids.size and not (ids.min() >= -1 and ids.max() < out.shape[0]):
            raise KernelContract("page_ids", f"-1 <= id < {out.shape[0]}", f"{ids.min()} to {ids.max()}")
        slots = [_slot(ids[request.index], entry, row_format.page_rows) for request, entry in windows]
    written = [
        slot if (entry + 1) * ratio > request.mask else NOT_WRITTEN
        for slot, (request, entry) in zip(slots, windows, strict=True)
    ]
    taken = [slot for slot in written if slot != NOT_WRITTEN]
    if any(slot == MISSING for slot in taken):
        raise KernelContract("page_ids", "a column for every entry that is written", list(ids.shape))
    if len(set(taken)) != len(taken):
        raise KernelContract("page_ids", "each row for one entry", "a row for two")
    return np.array(written, np.int64)


def _slot(ids: npt.NDArray[np.int32], entry: int, page_rows: int) -> int:
    column, row = divmod(entry, page_rows)
    if column >= len(ids):
        return MISSING
    page = int(ids[column])
    return NOT_WRITTEN if page < 0 else page * page_rows + row


def _advance(
    request: Request,
    compressor: Compressor,
    rows: tuple[Doubles, Doubles],
    carry: npt.NDArray[Any] | None,
    new_carry: npt.NDArray[Any] | None,
) -> Doubles:
    """Return the entries of a request's closing windows, and write its live rows into the new carry."""
    r, d = compressor.ratio, compressor.width
    opened = request.position - request.position % r
    low = _first_live(request.position, compressor) if carry is not None else request.position
    new = slice(request.first, request.end)
    kv, score = rows[0][new], rows[1][new]
    if carry is not None:
        carried = widen(carry[np.arange(low, request.position) % compressor.ring_rows])
        kv = np.concatenate([carried[:, : compressor.row_width], kv])
        score = np.concatenate([carried[:, compressor.row_width :], score])
    entries = np.empty((0, d))
    if request.closing(r):
        before = (kv[:r, :d], score[:r, :d]) if low < opened else None
        own = opened - low
        entries = compressor.entries(compressor.slots(kv[own:], score[own:], opened, before))
    if new_carry is not None:
        _keep(request, compressor, kv, score, low, new_carry)
    return entries


def _keep(
    request: Request, compressor: Compressor, kv: Doubles, score: Doubles, low: int, new_carry: npt.NDArray[Any]
) -> None:
    """Write the live rows at the end of a request into its ring; ``low`` is the position of the first row of kv."""
    width = compressor.row_width
    with np.errstate(over="ignore"):  # what is too large for a float32 is infinity there
        for token in range(_first_live(request.last, compressor), request.last):
            row = new_carry[token % compressor.ring_rows]
            live = width if token >= request.last - request.last % compressor.ratio else compressor.width
            row[:live] = kv[token - low, :live]
            row[width : width + live] = score[token - low, :live]


def _first_live(position: int, compressor: Compressor) -> int:
    """Return the first token whose row a ring at ``position`` must hold."""
    opened = position - position % compressor.ratio
    return opened - compressor.ratio if compressor.overlap and opened > 0 else opened
