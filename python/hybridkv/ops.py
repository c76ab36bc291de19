# SPDX-License-Identifier: Apache-2.0
"""Kernels: pages and rows between pools and contiguous buffers, or to another format; fingerprints; tail compression.

``docs/kernels.md`` defines every byte and code. Refused inputs raise :class:`~hybridkv.KernelContract`, and nothing is
written then. The instruction set is chosen when first used; ``HYBRIDKV_CPU=portable``, ``avx2`` or ``avx512`` forces
one; a level that this machine does not have is not taken.
Arrays on a CUDA device go to its kernels, on the caller's stream (``docs/kernels.md`` section 8).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from hybridkv import _core
from hybridkv.conversion import convert
from hybridkv.errors import ArgumentError, KernelContract
from hybridkv.kernel_arguments import (
    COUNTS,
    IDS,
    STATUS,
    Access,
    Span,
    buffer_array,
    flat_array,
    null_page_of,
    span_of,
    thread_count,
)
from hybridkv.kernel_memory import refuse_overlaps, target_of
from hybridkv.page_rows import PageRows
from hybridkv.paged_pool import PagedPool, Pools, paged_pool
from hybridkv.reference.conversion_plan import ConversionPlan, plan_conversion
from hybridkv.reference.groups import by_group
from hybridkv.tail_compression import compress_tail

__all__ = [
    "ConversionPlan",
    "CopyStatus",
    "PageRows",
    "Pools",
    "compress_tail",
    "convert",
    "fingerprint",
    "gather",
    "plan_conversion",
    "scatter",
]

_FINGERPRINT_UNIT = 8

_LEVELS = ("portable", "avx2", "avx512")
if (_wish := os.environ.get("HYBRIDKV_CPU", "")) and _wish not in _LEVELS:  # a typo must not choose by itself
    raise ArgumentError("HYBRIDKV_CPU", f"one of {list(_LEVELS)}, or nothing", _wish)


class CopyStatus(IntEnum):
    """What became of one piece of a copy."""

    OK = 0
    """Copied; its page was the expected one before and after."""
    STALE = 1
    """Not copied: its page had been handed out again before."""
    CHANGED = 2
    """Its page was handed out again during the copy."""
    SKIPPED = 3
    """Its id or row is -1, or it is the null page."""
    OUT_OF_RANGE = 4
    """Written by device kernels alone, which cannot refuse an id."""


class KernelCall(NamedTuple):
    """One group of a call, checked: what the core takes, and the memory that it touches, its pools and the rest."""

    core: tuple[Any, ...]
    pool: PagedPool
    spans: list[Span]


class _Arguments(NamedTuple):
    """One group's arguments, as they came."""

    suffix: str
    pools: Any
    page_ids: Any
    buffer: Any
    rows: Any = None
    layout: Any = None
    handouts: Any = None
    status: Any = None
    null_page: Any = None


def gather(
    pools: Any, page_ids: Any, out: Any, *, rows: Any = None, layout: Any = None, handouts: Any = None,
    status: Any = None, missing: str = "zeros", null_page: Any = None, threads: int = 1, stream: Any = None,
) -> None:  # fmt: skip
    """Copy pages, or rows of pages, out of a pool into a contiguous buffer.

    Parameters
    ----------
    pools : array or sequence of arrays, or Pools, or a mapping of group to these
        [[pages, page_bytes]] or [[pages, rows, row_bytes]] of any dtype, one for each layer where it is a sequence;
        pages and rows may be padded. With a mapping, all arguments up to `out` are mappings, and the keyword
        arguments up to `null_page`, `missing` apart, are mappings that may lack groups.
    page_ids : array
        int32 or int64 [[n]]. -1 is a missing piece; an id may come more than once.
    out : array
        Contiguous, [[n, ...]], or [[layers, n, ...]] where `pools` is a sequence; ``...`` is one packed page (its rows,
        then its footers), or with `rows` one packed row (and its footer). Written.
    rows : array, optional
        [[n]], the dtype of `page_ids`: copy this row of each page instead of the whole page.
    layout : PageRows, optional
        How rows and footers lie in a page of a two-dimensional array; default: the page is one row.
    handouts : (array, array), optional
        The live hand-out count of each page of the pool, uint64 or int64 [[pages]], and the counts expected of each
        piece, [[n]] (``lease.handouts(group)``). Compared before and after each copy; needs `status`.
    status : array, optional
        int32 [[n]]: a :class:`CopyStatus` for each piece. Written.
    missing : {"zeros", "skip"}
        What becomes of a piece in `out` that is missing, stale or changed: it is zero, or it is left (where changed:
        unspecified).
    null_page : int, optional
        The page that engines point padding to: a missing piece.
    threads : int
        At most so many threads, 1 to 64, the caller's among them; small copies take fewer.
    stream : torch stream or int, optional
        Of device arrays, which all lie on one CUDA device: where the call is put; nothing waits for it. Default:
        torch's current stream for tensors, else the default stream. Host arrays have none.

    Raises
    ------
    KernelContract
        Naming argument, expected and got. Nothing has been written.

    Examples
    --------
    >>> import numpy as np, hybridkv as hk
    >>> pool = np.arange(8, dtype=np.uint64).reshape(4, 2)
    >>> out = np.empty((3, 2), np.uint64)
    >>> hk.ops.gather(pool, np.array([2, -1, 0], np.int32), out)
    >>> out.tolist()
    [[4, 5], [0, 0], [0, 1]]
    """
    _run(
        "gather",
        check_gather(pools, page_ids, out, rows, layout, handouts, status, missing, null_page),
        threads,
        stream,
    )


def scatter(
    src: Any, pools: Any, page_ids: Any, *, rows: Any = None, layout: Any = None, handouts: Any = None,
    status: Any = None, null_page: Any = None, threads: int = 1, stream: Any = None,
) -> None:  # fmt: skip
    """Copy pages, or rows of pages, out of a contiguous buffer into a pool: the reverse of :func:`gather`.

    Parameters
    ----------
    src : array or mapping of arrays
        As `out` of :func:`gather`.
    pools : array or sequence of arrays, or Pools, or a mapping of group to these
        Written: the pieces, and no byte of padding.
    page_ids : array or mapping of arrays
        int32 or int64 [[n]]. Pieces that are missing are not written; no page, with `rows` no row, comes twice.
    rows, layout, handouts, status, null_page, threads, stream
        As in :func:`gather`. A stale piece is not written, a changed one may have been.

    Raises
    ------
    KernelContract
        Naming argument, expected and got. Nothing has been written.
    """
    _run("scatter", check_scatter(src, pools, page_ids, rows, layout, handouts, status, null_page), threads, stream)


def fingerprint(
    pools: Any, page_ids: Any, out: Any, *, layout: Any = None, null_page: Any = None, threads: int = 1,
    stream: Any = None,
) -> None:  # fmt: skip
    """Write a 64-bit fingerprint of the content of each page, the same on every device and at every place.

    It tells damage and wrong pages; it is no cryptographic hash. ``docs/kernels.md`` defines it and states its bound.

    Parameters
    ----------
    pools, page_ids, layout, null_page, threads, stream
        As in :func:`gather`; addresses and strides must be multiples of 8.
    out : array or mapping of arrays
        uint64 or int64 [[n]], or [[layers, n]] where `pools` is a sequence. 0 where a piece is missing, and only there.

    Raises
    ------
    KernelContract
        Naming argument, expected and got. Nothing has been written.
    """
    _run("fingerprint", check_fingerprint(pools, page_ids, out, layout, null_page), threads, stream)


def check_gather(
    pools: Any, page_ids: Any, out: Any, rows: Any, layout: Any, handouts: Any, status: Any, missing: str,
    null_page: Any,
) -> list[KernelCall]:  # fmt: skip
    """Check what :func:`gather` takes, each array by itself."""
    if not isinstance(missing, str) or missing not in ("zeros", "skip"):
        raise KernelContract("missing", "'zeros' or 'skip'", repr(missing))
    each = _each("out", pools, page_ids, out, rows, layout, handouts, status, null_page)
    return [_copy_call(arguments, "out", missing == "zeros") for arguments in each]


def check_scatter(
    src: Any, pools: Any, page_ids: Any, rows: Any, layout: Any, handouts: Any, status: Any, null_page: Any
) -> list[KernelCall]:
    """Check what :func:`scatter` takes, each array by itself."""
    each = _each("src", pools, page_ids, src, rows, layout, handouts, status, null_page)
    return [_copy_call(arguments, "src", False) for arguments in each]


def check_fingerprint(pools: Any, page_ids: Any, out: Any, layout: Any, null_page: Any) -> list[KernelCall]:
    """Check what :func:`fingerprint` takes, each array by itself."""
    each = _each("out", pools, page_ids, out, None, layout, None, None, null_page)
    return [_fingerprint_call(arguments) for arguments in each]


def _each(
    buffer_name: str, pools: Any, page_ids: Any, buffer: Any, rows: Any, layout: Any, handouts: Any, status: Any,
    null_page: Any,
) -> Iterator[_Arguments]:  # fmt: skip
    """Yield the arguments of each group: of the only one, or by name."""
    required = {"pools": pools, "page_ids": page_ids, buffer_name: buffer}
    optional = {"rows": rows, "layout": layout, "handouts": handouts, "status": status, "null_page": null_page}
    for suffix, own in by_group(required, optional):
        yield _Arguments(suffix, buffer=own.pop(buffer_name), **own)


def _copy_call(given: _Arguments, buffer_name: str, zeros: bool) -> KernelCall:
    suffix, by_row, into_pool = given.suffix, given.rows is not None, buffer_name == "src"
    pool = paged_pool(suffix, given.pools, given.layout, writable=into_pool)
    ids = flat_array(f"page_ids{suffix}", given.page_ids, IDS, None)
    spans = [span_of(f"page_ids{suffix}", ids)]
    rows_at = 0
    if by_row:
        rows = flat_array(f"rows{suffix}", given.rows, (ids.dtype,), ids.shape)
        spans.append(span_of(f"rows{suffix}", rows))
        rows_at = rows.address
    unit = pool.load_unit(by_row)
    pool.check_alignment(unit, by_row)
    name, lead = f"{buffer_name}{suffix}", pool.lead(ids.shape)
    buffer = buffer_array(name, given.buffer, lead, pool.piece_bytes(by_row), unit, not into_pool)
    spans.append(span_of(name, buffer, Access.READ if into_pool else Access.WRITTEN))
    verified = _handout_addresses(given, pool.pages, ids.shape, spans)
    null_page = null_page_of(suffix, given.null_page, pool.pages)
    core = (
        pool.layers, pool.rows, pool.pages, ids.address, rows_at, ids.dtype.itemsize == 8, ids.shape[0], null_page,
        suffix, buffer.address, *verified, zeros,
    )  # fmt: skip
    return KernelCall(core, pool, spans)


def _handout_addresses(
    given: _Arguments, pages: int, shape: tuple[int, ...], spans: list[Span]
) -> tuple[int, int, int]:
    """Return where counts, expected counts and statuses are, 0 for what is not given."""
    counts_at = expected_at = status_at = 0
    if given.handouts is not None:
        name = f"handouts{given.suffix}"
        if not isinstance(given.handouts, (tuple, list)) or len(given.handouts) != 2:
            raise KernelContract(name, "a pair (counts of pages, expected counts)", type(given.handouts).__name__)
        if given.status is None:
            raise KernelContract(f"status{given.suffix}", "an array, since handouts are given", None)
        counts = flat_array(f"{name}[0]", given.handouts[0], COUNTS, None)
        if counts.shape[0] < pages:
            raise KernelContract(f"{name}[0]", f"counts of at least {pages} pages", counts.shape[0])
        expected = flat_array(f"{name}[1]", given.handouts[1], COUNTS, shape)
        spans += [span_of(f"{name}[0]", counts), span_of(f"{name}[1]", expected)]
        counts_at, expected_at = counts.address, expected.address
    if given.status is not None:
        status = flat_array(f"status{given.suffix}", given.status, STATUS, shape, writable=True)
        spans.append(span_of(f"status{given.suffix}", status, Access.WRITTEN))
        status_at = status.address
    return counts_at, expected_at, status_at


def _fingerprint_call(given: _Arguments) -> KernelCall:
    suffix = given.suffix
    pool = paged_pool(suffix, given.pools, given.layout)
    ids = flat_array(f"page_ids{suffix}", given.page_ids, IDS, None)
    pool.check_alignment(_FINGERPRINT_UNIT, by_row=False)
    _, row_bytes, _, footer_bytes, _ = pool.rows
    if not pool.in_one_piece and (row_bytes % _FINGERPRINT_UNIT or footer_bytes % _FINGERPRINT_UNIT):
        got = f"rows of {row_bytes} and footers of {footer_bytes} bytes"
        raise KernelContract(pool.argument, f"rows and footers that are multiples of {_FINGERPRINT_UNIT} bytes", got)
    out = flat_array(f"out{suffix}", given.buffer, COUNTS, pool.lead(ids.shape), writable=True)
    spans = [span_of(f"page_ids{suffix}", ids), span_of(f"out{suffix}", out, Access.WRITTEN)]
    null_page = null_page_of(suffix, given.null_page, pool.pages)
    core = (
        pool.layers, pool.rows, pool.pages, ids.address, 0, ids.dtype.itemsize == 8, ids.shape[0], null_page, suffix,
        out.address,
    )  # fmt: skip
    return KernelCall(core, pool, spans)


def _run(name: str, calls: list[KernelCall], threads: object, stream: object) -> None:
    count = thread_count(threads)
    pools, spans = [call.pool for call in calls], [span for call in calls for span in call.spans]
    target = target_of(pools, spans, stream)
    refuse_overlaps(pools, spans, into_pools=name == "scatter")
    groups = [call.core for call in calls]
    if target.stream is None:
        getattr(_core, name)(groups, count)
    else:
        getattr(_core, f"device_{name}")(groups, target.stream, target.device)
