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

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
    if not isinstance(missing, str) or missing not in MISSING:
        raise KernelContract("missing", f"one of {list(MISSING)}", missing)
    no_stream(stream)
    check_threads(threads)
    options = {"layout": layout, "rows": rows, "handouts": handouts, "status": status, "null_page": null_page}
    jobs = _jobs({"pools": pools, "page_ids": page_ids, "out": out}, options)
    written = [{**job.given, **job.pieces.outputs} for job in jobs]
    for job in jobs:
        for name, buffer in job.given.items():
            require_writable(name, buffer)
    require_apart(written, [*written, *(job.pieces.inputs for job in jobs), *(job.pool.named for job in jobs)])
    _copy_pieces(jobs, _pack, zero_missing=missing == "zeros")


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
    options = {"layout": layout, "rows": rows, "handouts": handouts, "status": status, "null_page": null_page}
    jobs = _jobs({"pools": pools, "page_ids": page_ids, "src": src}, options)
    for job in jobs:
        for name, member in job.pool.named.items():
            require_writable(name, member)
        job.pieces.require_once()
    statuses = [job.pieces.outputs for job in jobs]
    others = [*statuses, *({**job.given, **job.pieces.inputs} for job in jobs)]
    require_apart([job.pool.named for job in jobs], others)
    require_apart(statuses, others)
    _copy_pieces(jobs, _unpack, zero_missing=False)


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


class _Job(NamedTuple):
    """One group of a copy, checked; `given` is its buffer as it came, by the name that errors give it."""

    pool: Pool
    pieces: Pieces
    buffer: Bytes
    given: dict[str, npt.NDArray[Any]]


def _jobs(required: dict[str, Any], options: dict[str, Any]) -> list[_Job]:
    """Check what gather and scatter have in common; the last of what is required is the buffer."""
    buffer = list(required)[-1]
    jobs = []
    for suffix, own in by_group(required, options):
        pool = Pool(suffix, own["pools"], own["layout"])
        pieces = Pieces(pool, suffix, own["page_ids"], own["rows"], own["handouts"], own["status"], own["null_page"])
        by_row, name = own["rows"] is not None, f"{buffer}{suffix}"
        view = pool.buffer(name, own[buffer], len(pieces), by_row=by_row)
        pool.require_aligned(pool.unit(by_row=by_row), {name: own[buffer]}, by_row=by_row)
        jobs.append(_Job(pool, pieces, view, {name: own[buffer]}))
    return jobs


def _copy_pieces(jobs: list[_Job], move: Callable[[_Job, int, int], None], *, zero_missing: bool) -> None:
    """Move each piece between two looks at its hand-out count, and report."""
    for job in jobs:
        for i in range(len(job.pieces)):
            outcome = job.pieces.before(i)
            if outcome == OK:
                for layer in range(job.pool.layers):
                    move(job, layer, i)
                outcome = job.pieces.after(i)
            if outcome != OK and zero_missing:
                job.buffer[:, i] = 0
            job.pieces.report(i, outcome)


def _pack(job: _Job, layer: int, piece: int) -> None:
    job.buffer[layer, piece] = job.pool.packed(layer, *job.pieces.place(piece))


def _unpack(job: _Job, layer: int, piece: int) -> None:
    job.pool.unpack(job.buffer[layer, piece], layer, *job.pieces.place(piece))


def _check_loads(pool: Pool) -> None:
    pool.require_aligned(FINGERPRINT_LOAD, {})
    sizes = (pool.plan.row_bytes, pool.plan.footer_bytes)
    if not pool.in_one_piece and any(size % FINGERPRINT_LOAD for size in sizes):
        raise KernelContract(pool.name, f"rows and footers of multiples of {FINGERPRINT_LOAD} bytes", sizes)
