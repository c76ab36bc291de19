# SPDX-License-Identifier: Apache-2.0
"""``gather``, ``scatter`` and ``fingerprint``: pages moved and summed by page id.

A page has R rows of b bytes at a distance s, then R footers of f bytes, from o on. The *packed page* is its rows one
after another, then its footers; the *packed row* is a row, then its footer. What belongs to neither is padding,
never read and never written.

Each of the three takes one group, or several: then pools, page ids and buffers are mappings from group name to what
is described, and the optional arguments are None or mappings that may lack names. All groups are checked before the
first byte is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridkv.errors import KernelContract
from hybridkv.reference.arrays import Bytes
from hybridkv.reference.contract import array, check_threads, no_stream
from hybridkv.reference.fingerprint_sums import fingerprint_of
from hybridkv.reference.groups import by_group, require_apart, require_writable
from hybridkv.reference.page_rows import Pool
from hybridkv.reference.pieces import OK, Pieces

MISSING = ("zeros", "skip")
FINGERPRINT_LOAD = 8  # bytes


def gather(
    pools: Any,
    page_ids: Any,
    out: Any,
    *,
    rows: Any = None,
    layout: Any = None,
    handouts: Any = None,
    status: Any = None,
    missing: str = "zeros",
    null_page: Any = None,
    threads: int = 1,
    stream: object = None,
) -> None:
    """Copy packed pages, or packed rows, out of pools.

    Parameters
    ----------
    pools : ndarray, or list or tuple of ndarray
        [[pages, page_bytes]] or [[pages, rows, row_bytes]], any dtype; one for each layer. The bytes of a row lie in
        one piece; pages and rows may be further apart than they are long.
    page_ids : int32 or int64 ndarray, [[n]]
        A page may be named more than once; -1: missing.
    out : ndarray, contiguous
        [[n, ...]] for one array, [[layers, n, ...]] for a list; a piece is a packed page, with ``rows`` a packed row.
    rows : ndarray as ``page_ids``, optional
        Row within each page; -1: missing.
    layout : PageRows, optional
        Where rows lie in a page of a pool of two dimensions. Default: one row, the page.
    handouts : pair of ndarray, optional
        ``(counts, expected)``, uint64 or int64: the live hand-out counts of all pages, [[pages or more]], and what
        the caller saw, [[n]].
    status : int32 ndarray, [[n]], optional
        Receives 0 OK, 1 STALE (the count had changed before: treated as missing), 2 CHANGED (it changed during the
        copy: zeros, or unspecified bytes with "skip"), 3 SKIPPED (missing). Required with ``handouts``.
    missing : {"zeros", "skip"}
        What becomes of the bytes of a missing piece: 0, or left as they are.
    null_page : int, optional
        A page that counts as missing, and is never read.
    threads : int
        1 to 64, without meaning here; the same calls are made of the kernels.
    stream : None
        Host arrays have none.

    Raises
    ------
    KernelContract
        Before the first byte is written: a wrong dtype, shape, stride or alignment, an id out of range, an output
        that shares memory with another argument, ``handouts`` without ``status``.
    """
    if missing not in MISSING:
        raise KernelContract("missing", f"one of {list(MISSING)}", missing)
    no_stream(stream)
    check_threads(threads)
    jobs = []
    options = {"layout": layout, "rows": rows, "handouts": handouts, "status": status, "null_page": null_page}
    for suffix, own in by_group({"pools": pools, "page_ids": page_ids, "out": out}, options):
        pool, pieces, buffer = _prepared(suffix, own, "out")
        require_writable(f"out{suffix}", own["out"])
        jobs.append((pool, pieces, buffer, {f"out{suffix}": own["out"]} | pieces.outputs))
    written = [job[3] for job in jobs]
    require_apart(written, [*written, *(job[1].inputs for job in jobs), *(job[0].named for job in jobs)])
    for pool, pieces, buffer, _ in jobs:
        for i in range(len(pieces)):
            outcome = pieces.before(i)
            if outcome == OK:
                for layer in range(pool.layers):
                    buffer[layer, i] = pool.packed(layer, *pieces.place(i))
                outcome = pieces.after(i)
            if outcome != OK and missing == "zeros":
                buffer[:, i] = 0
            pieces.report(i, outcome)


def scatter(
    src: Any,
    pools: Any,
    page_ids: Any,
    *,
    rows: Any = None,
    layout: Any = None,
    handouts: Any = None,
    status: Any = None,
    null_page: Any = None,
    threads: int = 1,
    stream: object = None,
) -> None:
    """Copy packed pages, or packed rows, into pools: the reverse of :func:`gather`.

    Parameters
    ----------
    src : ndarray, contiguous
        As ``out`` of :func:`gather`.
    pools : ndarray, or list or tuple of ndarray
        Written in place; padding keeps its bytes, missing pieces are not written, a stale one neither.
    page_ids : int32 or int64 ndarray, [[n]]
        No page, with ``rows`` no row, twice; -1: missing.
    rows, layout, handouts, status, null_page, threads, stream
        As in :func:`gather`; CHANGED: the bytes may have been written into a page of another owner.

    Raises
    ------
    KernelContract
        As in :func:`gather`, and a page or row named twice.
    """
    no_stream(stream)
    check_threads(threads)
    jobs = []
    options = {"layout": layout, "rows": rows, "handouts": handouts, "status": status, "null_page": null_page}
    for suffix, own in by_group({"pools": pools, "page_ids": page_ids, "src": src}, options):
        pool, pieces, buffer = _prepared(suffix, own, "src")
        for name, member in pool.named.items():
            require_writable(name, member)
        places = [pieces.place(i) for i in range(len(pieces)) if not pieces.is_missing(i)]
        if len(set(places)) != len(places):
            raise KernelContract(f"page_ids{suffix}", "each page, or row of a page, at most once", own["page_ids"])
        jobs.append((pool, pieces, buffer, {f"src{suffix}": own["src"]} | pieces.inputs))
    statuses = [job[1].outputs for job in jobs]
    require_apart([job[0].named for job in jobs], [*statuses, *(job[3] for job in jobs)])
    require_apart(statuses, [*statuses, *(job[3] for job in jobs)])
    for pool, pieces, buffer, _ in jobs:
        for i in range(len(pieces)):
            outcome = pieces.before(i)
            if outcome == OK:
                for layer in range(pool.layers):
                    pool.unpack(buffer[layer, i], layer, *pieces.place(i))
                outcome = pieces.after(i)
            pieces.report(i, outcome)


def fingerprint(
    pools: Any,
    page_ids: Any,
    out: Any,
    *,
    layout: Any = None,
    null_page: Any = None,
    threads: int = 1,
    stream: object = None,
) -> None:
    """Sum up the content of packed pages in place.

    Parameters
    ----------
    pools, page_ids, layout, null_page, threads, stream
        As in :func:`gather`. Addresses, page strides and, where the packed page does not lie in one piece, row
        strides, footer offsets and the bytes of rows and footers are multiples of 8.
    out : uint64 or int64 ndarray, contiguous
        [[n]] for one array, [[layers, n]] for a list. Receives the fingerprint
        (:mod:`hybridkv.reference.fingerprint_sums`) of each packed page, 0 where the page is missing.

    Raises
    ------
    KernelContract
        As in :func:`gather`.
    """
    no_stream(stream)
    check_threads(threads)
    jobs = []
    options = {"layout": layout, "null_page": null_page}
    for suffix, own in by_group({"pools": pools, "page_ids": page_ids, "out": out}, options):
        pool = Pool(suffix, own["pools"], own["layout"])
        pieces = Pieces(pool, suffix, own["page_ids"], null_page=own["null_page"])
        _check_loads(pool)
        name, sums = f"out{suffix}", own["out"]
        shape = (len(pieces),) if pool.single else (pool.layers, len(pieces))
        require_writable(name, array(name, sums, (np.uint64, np.int64), shape))
        if not sums.flags.c_contiguous or not sums.flags.aligned:
            raise KernelContract(name, "a contiguous, aligned array", f"strides {sums.strides}")
        jobs.append((pool, pieces, sums.view(np.uint64).reshape(pool.layers, len(pieces)), {name: sums}))
    written = [job[3] for job in jobs]
    require_apart(written, [*written, *(job[1].inputs for job in jobs), *(job[0].named for job in jobs)])
    for pool, pieces, sums, _ in jobs:
        for i in range(len(pieces)):
            for layer in range(pool.layers):
                there = not pieces.is_missing(i)
                sums[layer, i] = fingerprint_of(pool.packed(layer, *pieces.place(i))) if there else 0


def _prepared(suffix: str, own: dict[str, Any], buffer: str) -> tuple[Pool, Pieces, Bytes]:
    """Check what gather and scatter have in common."""
    pool = Pool(suffix, own["pools"], own["layout"])
    pieces = Pieces(pool, suffix, own["page_ids"], own["rows"], own["handouts"], own["status"], own["null_page"])
    by_row = own["rows"] is not None
    view = pool.buffer(f"{buffer}{suffix}", own[buffer], len(pieces), by_row=by_row)
    pool.require_aligned(pool.unit(by_row=by_row), {f"{buffer}{suffix}": own[buffer]}, by_row=by_row)
    return pool, pieces, view


def _check_loads(pool: Pool) -> None:
    pool.require_aligned(FINGERPRINT_LOAD, {})
    sizes = (pool.plan.row_bytes, pool.plan.footer_bytes)
    if not pool.in_one_piece and any(size % FINGERPRINT_LOAD for size in sizes):
        raise KernelContract(pool.name, f"rows and footers of multiples of {FINGERPRINT_LOAD} bytes", sizes)
