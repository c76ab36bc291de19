# SPDX-License-Identifier: Apache-2.0
"""``convert``: rows in pages of one format to rows in pages of another, losslessly, through gather and scatter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv import _core
from hybridkv.errors import KernelContract
from hybridkv.kernel_arguments import (
    IDS,
    Access,
    Span,
    extent_of,
    host_facts,
    host_values,
    kernel_facts,
    no_stream,
    null_page_of,
    require_host,
    thread_count,
)
from hybridkv.kernel_memory import refuse_overlaps
from hybridkv.page_rows import PageRows
from hybridkv.paged_pool import PagedPool, Pools, paged_pool
from hybridkv.reference.arrays import Bytes
from hybridkv.reference.conversion_plan import plan_conversion
from hybridkv.reference.row_format import RowFormat
from hybridkv.row_rewrite import Blocks, row_rewrite

Ids = npt.NDArray[np.int64]

# Rows on their way. They are gathered in shares that stay in the caches (below the size from which gather streams past
# them, csrc/kernels/paged_copy.cpp), and scattered together, streamed: bench/test_bench_convert.py.
_CHUNK_BYTES, _SHARES = 5 << 18, 2


def convert(
    pools: Any, page_ids: Any, out: Any, out_ids: Any, *, source: RowFormat, target: RowFormat, row_counts: Any = None,
    layout: PageRows | None = None, out_layout: PageRows | None = None, null_page: Any = None,
    out_null_page: Any = None, threads: int = 1, stream: Any = None,
) -> None:  # fmt: skip
    """Write rows of one format as rows of another: what a reader decodes is the same to the bit.

    :func:`hybridkv.reference.convert` is the specification, :func:`plan_conversion` tells beforehand whether there is
    a way and which steps it takes. Row i of sequence q is row ``i % page_rows`` of page
    ``page_ids[q, i // page_rows]``, and likewise of `out`, so that pages may have another number of rows.

    Parameters
    ----------
    pools : array, sequence of arrays, or Pools
        [[pages, page bytes or more]] of any dtype, one for each layer where it is a sequence; [[pages, rows,
        row_bytes]] where the format has no footer, rows may then be padded.
    page_ids : array
        int32 or int64 [[sequences, columns]]: the pages of each sequence in order. -1: not held. A page may come
        more than once.
    out : array, sequence of arrays, or Pools
        As `pools`, in the target's format and with as many layers. Written: the rows that are moved, and no other byte.
    out_ids : array
        int32 or int64 [[sequences, columns]]: pages of `out`, each at most once. -1: not held.
    source, target : hybridkv.reference.RowFormat
        What is in the pages, and what shall be.
    row_counts : array, optional
        int32 or int64 [[sequences]]: rows of each sequence. Default: all that the columns of `page_ids` have.
    layout, out_layout : PageRows, optional
        Where rows and footers lie in pages of two dimensions, where that is not `source.layout`, `target.layout`.
    null_page, out_null_page : int, optional
        The page that padding of ids points to: not held.
    threads : int
        At most so many threads for each copy, 1 to 64.
    stream : None
        Host arrays have none; there is no such kernel for devices.

    Raises
    ------
    KernelContract
        Naming argument, expected and got. Nothing has been written: not where one of a million scales has no form in
        the target either, of which `got` names page, row and value.

    Notes
    -----
    A row is moved where both its pages are held. Padding inside a row moves along where both formats have their parts
    at the same bytes of the packed row, and is 0 where not.

    Examples
    --------
    >>> import numpy as np, hybridkv as hk
    >>> from hybridkv.reference import published
    >>> source, target = published.plain("float32", 4, page_rows=1), published.plain("float32", 4, page_rows=2)
    >>> pool, out = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros((2, 8), np.float32)
    >>> hk.ops.convert(pool, np.int32([[2, 0, 1]]), out, np.int32([[0, 1]]), source=source, target=target)
    >>> out.tolist()
    [[8.0, 9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0, 0.0, 0.0, 0.0, 0.0]]
    """
    no_stream(stream)
    plan_conversion(source, target).require_lossless()
    reader = _pages("pools", pools, source, "layout", layout)
    writer = _pages("out", out, target, "out_layout", out_layout, writable=True)
    if (reader.listed, len(reader.layers)) != (writer.listed, len(writer.layers)):
        raise KernelContract("out", f"{len(reader.layers)} layers, as pools", len(writer.layers))
    spans = [span._replace(access=Access.READ) for span in reader.spans()]
    held = _held("page_ids", page_ids, reader, "null_page", null_page, spans)
    room = _held("out_ids", out_ids, writer, "out_null_page", out_null_page, spans, len(held))
    counts = _counts(row_counts, (held, source.page_rows), (room, target.page_rows), spans)
    _refuse_twice(room, -(-counts // target.page_rows))
    refuse_overlaps([writer], spans, into_pools=True)
    copy = _Conversion(reader, writer, source, target, thread_count(threads))
    runs = list(_runs(held, room, counts, (copy.block_rows, source.page_rows, target.page_rows)))
    if copy.rewrite.checked:
        copy.check(runs)
    copy.write(runs)


@dataclass(frozen=True)
class _Runs:
    """Blocks of rows, each in one page of either side: its pages, and its number among the blocks of the page."""

    block_rows: int
    pages: Ids
    blocks: Ids
    out_pages: Ids
    out_blocks: Ids


class _Conversion:
    """What a call copies between, checked."""

    def __init__(
        self, reader: PagedPool, writer: PagedPool, source: RowFormat, target: RowFormat, threads: int
    ) -> None:
        self.reader, self.writer, self.source, self.target, self.threads = reader, writer, source, target, threads
        self.rewrite = row_rewrite(source, target)
        dense = all(pool.rows[2] == pool.rows[1] for pool in (reader, writer))
        self.block_rows = self._block_rows() if dense else 1

    def _block_rows(self) -> int:
        """Return how many rows, at most, lie together on both sides and are few enough for a share."""
        both = gcd(self.source.page_rows, self.target.page_rows)
        most = max(1, _CHUNK_BYTES // _SHARES // max(self.source.row_bytes, self.target.row_bytes))
        return next(rows for rows in range(min(both, most), 0, -1) if both % rows == 0)

    def check(self, runs: list[_Runs]) -> None:
        """Refuse scales that have no form in the target."""
        for layer in range(len(self.reader.layers)):
            for run, first, blocks, _ in self._gathered(runs, layer):
                fault = self.rewrite.fault(Blocks(blocks, run.block_rows, self.source))
                if fault is not None:
                    page, block = run.pages[first + fault.block], run.blocks[first + fault.block]
                    row = block * run.block_rows + fault.row
                    name = f"pools[{layer}]" if self.reader.listed else "pools"
                    raise KernelContract(name, fault.expected, f"{fault.told} of row {row} of page {page}")

    def write(self, runs: list[_Runs]) -> None:
        """Copy all rows of all layers."""
        for layer, place in enumerate(self.writer.layers):
            for run, first, blocks, made in self._gathered(runs, layer):
                if not self.rewrite.nothing:
                    here = Blocks(blocks, run.block_rows, self.source)
                    there = here if self.rewrite.in_place else Blocks(made, run.block_rows, self.target)
                    self.rewrite.rewrite(here, there)
                lists = run.out_pages[first : first + len(made)], run.out_blocks[first : first + len(made)]
                _core.scatter([_piece_copy(self.writer, place, run.block_rows, *lists, made)], self.threads)

    def _gathered(self, runs: list[_Runs], layer: int) -> Iterator[tuple[_Runs, int, Bytes, Bytes]]:
        """Yield blocks of rows with the number of the first of them, and room for what they become.

        Where rows are rewritten in place, or not at all, that room holds them already.
        """
        for run in runs:
            sizes = [run.block_rows * row.row_bytes for row in (self.source, self.target)]
            most = max(1, min(_CHUNK_BYTES // max(sizes), len(run.pages)))
            memory = np.empty((most, sizes[0]), np.uint8)
            made = memory if self.rewrite.in_place else np.zeros((most, sizes[1]), np.uint8)
            share = -(-most // _SHARES)
            for first in range(0, len(run.pages), most):
                last = min(first + most, len(run.pages))
                for at in range(first, last, share):
                    some = slice(at, min(at + share, last))
                    lists, part = (run.pages[some], run.blocks[some]), memory[at - first : some.stop - first]
                    place = self.reader.layers[layer]
                    _core.gather([_piece_copy(self.reader, place, run.block_rows, *lists, part)], self.threads)
                yield run, first, memory[: last - first], made[: last - first]


def _piece_copy(
    pool: PagedPool, layer: tuple[int, int], block_rows: int, pages: Ids, blocks: Ids, buffer: Bytes
) -> tuple[Any, ...]:
    """Return a copy of blocks of rows, as the core takes it: a block is a row to it, and its footers are a footer."""
    rows, row_bytes, row_stride, footer_bytes, footer_offset = pool.rows
    shape = (
        rows // block_rows, block_rows * row_bytes, block_rows * row_stride, block_rows * footer_bytes, footer_offset
    )  # fmt: skip
    return (
        [layer], shape, pool.pages, pages.ctypes.data, blocks.ctypes.data, True, len(pages), -1, "",
        buffer.ctypes.data, 0, 0, 0, False,
    )  # fmt: skip


def _pages(
    name: str, pools: Any, row: RowFormat, field: str, layout: PageRows | None, *, writable: bool = False
) -> PagedPool:
    """Take pages that lie as a format declares."""
    by_format = layout is None and not isinstance(pools, Pools) and not _apart_rows(name, pools)
    pool = paged_pool(
        "", pools, row.layout if by_format else layout, writable=writable, argument=name, layout_argument=field
    )
    for number, facts in enumerate(pool.arrays):
        require_host(pool.name(number), facts)
    rows, row_bytes, _, footer_bytes, _ = pool.rows
    if (rows, row_bytes, footer_bytes) != (row.page_rows, row.data_bytes, row.footer_bytes):
        expected = f"{row.page_rows} rows of {row.data_bytes} bytes and {row.footer_bytes} in the footer, as {row.name}"
        got = f"{rows} rows of {row_bytes} and {footer_bytes}"
        raise KernelContract(name if layout is None else field, expected, got)
    pool.check_places(row.base_alignment, row.stride_unit)
    return pool


def _apart_rows(name: str, pools: Any) -> bool:
    """Say whether the first array has a dimension for rows."""
    listed = isinstance(pools, (list, tuple))
    return bool(pools if listed else True) and len(kernel_facts(name, pools[0] if listed else pools).shape) == 3


def _held(
    name: str, table: Any, pool: PagedPool, null_name: str, null_page: Any, spans: list[Span],
    sequences: int | None = None,
) -> Ids:  # fmt: skip
    """Return the pages of each sequence, -1 for those that are not held."""
    ids = _numbers(name, table, (sequences, None), spans)
    if ids.size and not (ids.min() >= -1 and ids.max() < pool.pages):
        raise KernelContract(name, f"-1 or a page, below {pool.pages}", f"{ids.min()} to {ids.max()}")
    null = null_page_of("", null_page, pool.pages, null_name)
    return ids if null == -1 else np.where(ids == null, -1, ids)


def _numbers(name: str, item: Any, shape: tuple[int | None, ...], spans: list[Span]) -> Ids:
    """Take an array of integers, wherever it is in host memory."""
    facts = host_facts(name, item)
    if facts.dtype not in IDS:
        raise KernelContract(name, " or ".join(str(dtype) for dtype in IDS), str(facts.dtype))
    fits = len(facts.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, facts.shape, strict=True))
    if not fits:
        raise KernelContract(name, f"shape {list(shape)} (None: any)", list(facts.shape))
    spans.append(Span(name, *extent_of(facts), Access.READ, facts))
    return host_values(facts).astype(np.int64)


def _counts(given: Any, held: tuple[Ids, int], room: tuple[Ids, int], spans: list[Span]) -> Ids:
    """Return the rows of each sequence; none has more than its columns hold."""
    sequences = len(held[0])
    most, limit = (table.shape[1] * page_rows for table, page_rows in (held, room))
    counts = np.full(sequences, most) if given is None else _numbers("row_counts", given, (sequences,), spans)
    if sequences == 0:
        return counts
    if not (counts.min() >= 0 and counts.max() <= most):
        raise KernelContract("row_counts", f"0 to {most} rows, as page_ids has columns", counts.tolist())
    if counts.max() > limit:
        raise KernelContract("out_ids", f"columns for {counts.max()} rows", f"columns for {limit}")
    return counts


def _refuse_twice(room: Ids, columns: Ids) -> None:
    """Refuse a page that rows of two sequences, or of two places of one, would go to."""
    used = room[np.arange(room.shape[1]) < columns[:, None]]
    pages, times = np.unique(used[used >= 0], return_counts=True)
    if (times > 1).any():
        raise KernelContract("out_ids", "each page once", f"{pages[times > 1][0]} twice")


def _runs(held: Ids, room: Ids, counts: Ids, sizes: tuple[int, int, int]) -> Iterator[_Runs]:
    """Yield the rows of all sequences: whole blocks, then one by one those that fill none."""
    block_rows, page_rows, out_rows = sizes
    whole = counts // block_rows
    for rows, first, each in ((block_rows, 0 * whole, whole), (1, whole * block_rows, counts % block_rows)):
        sequence = np.repeat(np.arange(len(counts)), each)
        within = np.arange(len(sequence)) - np.repeat(np.cumsum(each) - each, each)
        row = first[sequence] + within * rows
        pages, out_pages = held[sequence, row // page_rows], room[sequence, row // out_rows]
        kept = (pages >= 0) & (out_pages >= 0)
        blocks, out_blocks = row % page_rows // rows, row % out_rows // rows
        yield _Runs(rows, pages[kept], blocks[kept], out_pages[kept], out_blocks[kept])
