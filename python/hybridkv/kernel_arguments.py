# SPDX-License-Identifier: Apache-2.0
"""Arguments of kernels, checked before a byte moves: every refusal is a ``KernelContract`` that names the argument."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import gcd, prod
from typing import Any

import numpy as np

from hybridkv import _core
from hybridkv.errors import ArgumentError, KernelContract
from hybridkv.page_rows import PageRows
from hybridkv.pools import ArrayFacts, PoolArray, array_facts, dense_strides, is_torch, pool_array

IDS = (np.dtype(np.int32), np.dtype(np.int64))
COUNTS = (np.dtype(np.uint64), np.dtype(np.int64))
STATUS = (np.dtype(np.int32),)

_MOST_THREADS = 64
_WIDEST_LOAD = 16  # bytes of one load that alignment is asked for


class Access(Enum):
    """What a call does with a span of memory."""

    READ = "read"
    WRITTEN = "written"
    POOL = "pool"  # pages of it, read or written


@dataclass(frozen=True)
class Span:
    """Memory that a call touches, under the name of its argument."""

    argument: str
    start: int
    end: int
    access: Access
    facts: ArrayFacts


@dataclass(frozen=True)
class PagedPool:
    """The arrays of one group, as kernels take them."""

    argument: str
    layers: list[tuple[int, int]]  # base address, page stride
    rows: tuple[int, int, int, int, int]  # rows, row_bytes, row_stride, footer_bytes, footer_offset
    pages: int
    listed: bool  # whether they came as a list, so that buffers have a dimension for layers
    spans: list[Span]

    @property
    def in_one_piece(self) -> bool:
        rows, row_bytes, row_stride, footer_bytes, footer_offset = self.rows
        return (rows == 1 or row_stride == row_bytes) and (footer_bytes == 0 or footer_offset == rows * row_bytes)

    def lead(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the leading extents of a buffer for so many ids."""
        return (len(self.layers), *ids) if self.listed else ids

    def piece_bytes(self, by_row: bool) -> int:
        rows, row_bytes, _, footer_bytes, _ = self.rows
        return (row_bytes + footer_bytes) * (1 if by_row else rows)

    def check_alignment(self, unit: int, by_row: bool) -> None:
        """Refuse addresses and strides that are no multiple of `unit`."""
        for number, (base, stride) in enumerate(self.layers):
            name = f"{self.argument}[{number}]" if self.listed else self.argument
            if base % unit:
                raise KernelContract(name, f"an address that is a multiple of {unit}", hex(base))
            if self.pages > 1 and stride % unit:
                raise KernelContract(name, f"a page stride that is a multiple of {unit} bytes", stride)
        if self.in_one_piece and not by_row:
            return
        rows, _, row_stride, footer_bytes, footer_offset = self.rows
        if rows > 1 and row_stride % unit:
            raise KernelContract(self.argument, f"a row stride that is a multiple of {unit} bytes", row_stride)
        if footer_bytes and footer_offset % unit:
            raise KernelContract(self.argument, f"a footer offset that is a multiple of {unit} bytes", footer_offset)

    def load_unit(self, by_row: bool) -> int:
        """Return the bytes that loads of a piece may take at a time."""
        if self.in_one_piece and not by_row:
            return gcd(_WIDEST_LOAD, self.piece_bytes(False))
        return gcd(_WIDEST_LOAD, self.rows[1], self.rows[3])


def kernel_facts(name: str, item: Any) -> ArrayFacts:
    """Read where an array lies; :func:`target_of` sees to it that kernels can reach it."""
    try:
        return array_facts(name, item)
    except ArgumentError as error:
        raise KernelContract(error.field, error.expected, error.got) from error


def _is_contiguous(facts: ArrayFacts) -> bool:
    if prod(facts.shape) == 0:
        return True
    dense = dense_strides(facts.shape, facts.dtype.itemsize)
    sides = zip(facts.shape, facts.strides, dense, strict=True)
    return all(extent == 1 or stride == wanted for extent, stride, wanted in sides)


def flat_array(
    name: str, item: Any, dtypes: tuple[np.dtype[Any], ...], shape: tuple[int, ...] | None, *, writable: bool = False
) -> ArrayFacts:
    """Take a contiguous, aligned array of one of some dtypes; `shape` None: any length of one dimension."""
    facts = kernel_facts(name, item)
    if facts.dtype not in dtypes:
        raise KernelContract(name, " or ".join(str(dtype) for dtype in dtypes), str(facts.dtype))
    if shape is None and len(facts.shape) != 1:
        raise KernelContract(name, "one dimension", f"shape {facts.shape}")
    if shape is not None and facts.shape != shape:
        raise KernelContract(name, f"shape {shape}", f"shape {facts.shape}")
    if not _is_contiguous(facts):
        raise KernelContract(name, "a contiguous array", f"strides {facts.strides} of shape {facts.shape}")
    _check_base(name, facts, facts.dtype.itemsize, writable)
    return facts


def buffer_array(
    name: str, item: Any, lead: tuple[int, ...], piece_bytes: int, unit: int, writable: bool
) -> ArrayFacts:
    """Take a contiguous buffer of `lead` pieces of `piece_bytes` each, whatever its dtype."""
    facts = kernel_facts(name, item)
    depth = len(lead)
    got_bytes = prod(facts.shape[depth:]) * facts.dtype.itemsize
    if facts.shape[:depth] != lead or (got_bytes != piece_bytes and 0 not in lead):
        got = f"shape {facts.shape} of {facts.dtype.itemsize} bytes"
        raise KernelContract(name, f"shape {lead} of pieces of {piece_bytes} bytes", got)
    if not _is_contiguous(facts):
        raise KernelContract(name, "a contiguous array", f"strides {facts.strides} of shape {facts.shape}")
    _check_base(name, facts, unit, writable)
    return facts


def _check_base(name: str, facts: ArrayFacts, unit: int, writable: bool) -> None:
    if facts.address % unit:
        raise KernelContract(name, f"an address that is a multiple of {unit}", hex(facts.address))
    if writable and not facts.writable:
        raise KernelContract(name, "a writable array", "a read-only one")


def span_of(argument: str, facts: ArrayFacts, access: Access = Access.READ) -> Span:
    """Return the memory of a contiguous array."""
    return Span(argument, facts.address, facts.address + prod(facts.shape) * facts.dtype.itemsize, access, facts)


def paged_pool(suffix: str, pools: Any, layout: PageRows | None, *, writable: bool = False) -> PagedPool:
    """Take one array of pages or a list of one for each layer."""
    argument = f"pools{suffix}"
    listed = isinstance(pools, (list, tuple))
    items = list(pools) if listed else [pools]
    if not items:
        raise KernelContract(argument, "at least one array", "none")
    layers: list[tuple[int, int]] = []
    spans: list[Span] = []
    first: tuple[int, tuple[int, int, int, int, int]] | None = None
    for number, item in enumerate(items):
        name = f"{argument}[{number}]" if listed else argument
        facts = kernel_facts(name, item)
        try:
            array = pool_array(name, facts)
        except ArgumentError as error:
            raise KernelContract(error.field, error.expected, error.got) from error
        _check_base(name, facts, 1, writable)
        rows = _page_rows(name, suffix, facts.shape, array, layout)
        if first is None:
            first = (array.pages, rows)
        elif first != (array.pages, rows):
            got = f"{array.pages} pages of rows {rows}"
            raise KernelContract(name, f"as the first: {first[0]} pages of rows {first[1]}", got)
        layers.append((array.base, array.stride))
        if array.pages:
            end = array.base + (array.pages - 1) * array.stride + _extent(rows)
            spans.append(Span(name, array.base, end, Access.POOL, facts))
    assert first is not None
    return PagedPool(argument, layers, first[1], first[0], listed, spans)


def _extent(rows: tuple[int, int, int, int, int]) -> int:
    count, row_bytes, row_stride, footer_bytes, footer_offset = rows
    return max((count - 1) * row_stride + row_bytes, footer_offset + count * footer_bytes if footer_bytes else 0)


def _page_rows(
    name: str, suffix: str, shape: tuple[int, ...], array: PoolArray, layout: PageRows | None
) -> tuple[int, int, int, int, int]:
    page_bytes = array.page_bytes
    if page_bytes == 0:
        raise KernelContract(name, "pages of at least 1 byte", f"shape {shape}")
    if layout is None:
        if len(shape) != 3:
            return (1, page_bytes, page_bytes, 0, page_bytes)
        rows, stride = shape[1], array.row_stride
        return (rows, page_bytes // rows, stride, 0, rows * stride)
    field = f"layout{suffix}"
    if not isinstance(layout, PageRows):
        raise KernelContract(field, "hk.ops.PageRows", type(layout).__name__)
    if len(shape) == 3:
        raise KernelContract(field, "None for arrays [[pages, rows, row_bytes]]", layout)
    rows = _integer(field, layout.rows)
    row_bytes, footer_bytes = _integer(field, layout.row_bytes), _integer(field, layout.footer_bytes)
    row_stride = row_bytes if layout.row_stride is None else _integer(field, layout.row_stride)
    offset = rows * row_stride if layout.footer_offset is None else _integer(field, layout.footer_offset)
    if rows < 1 or row_bytes < 1 or footer_bytes < 0 or row_stride < row_bytes:
        raise KernelContract(field, "rows and row_bytes of 1 or more, row_stride at least row_bytes", layout)
    if offset < (rows - 1) * row_stride + row_bytes and footer_bytes:
        raise KernelContract(field, "footers behind the rows", layout)
    made = (rows, row_bytes, row_stride, footer_bytes, offset)
    if _extent(made) > page_bytes:
        raise KernelContract(field, f"rows and footers within {page_bytes} bytes of a page", layout)
    return made


def _integer(field: str, value: object) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise KernelContract(field, "integers", repr(value))
    if not -(2**62) < int(value) < 2**62:
        raise KernelContract(field, "integers of at most 62 bits", int(value))
    return int(value)


def null_page_of(suffix: str, value: object, pages: int) -> int:
    if value is None:
        return -1
    number = _integer(f"null_page{suffix}", value)
    if not 0 <= number < pages:
        raise KernelContract(f"null_page{suffix}", f"None or a page of the pool, 0 to {pages - 1}", number)
    return number


def thread_count(value: object) -> int:
    number = _integer("threads", value)
    if not 1 <= number <= _MOST_THREADS:
        raise KernelContract("threads", f"1 to {_MOST_THREADS}", number)
    return number


@dataclass(frozen=True)
class Target:
    """Where a call runs: on the host where `stream` is None, else on a stream of a CUDA device."""

    stream: int | None
    device: int


def target_of(spans: list[Span], stream: object) -> Target:
    """Find the one device of all arrays of a call, and the stream to use there."""
    if not spans:
        return Target(None, 0)
    first = spans[0]
    there = next((span for span in spans if not span.facts.host), None)
    if there is not None and not (cuda := _core.cuda_facts())["available"]:
        expected = f"host memory (CUDA is not available: {cuda['reason']})"
        raise KernelContract(there.argument, expected, "a device array")
    known = next((s.facts.device for s in spans if not s.facts.host and s.facts.device is not None), None)
    for span in spans:
        if span.facts.host != first.facts.host:
            raise KernelContract(span.argument, f"{_where(first)}, as {first.argument}", _where(span))
        if not span.facts.host and span.facts.device not in (None, known):
            raise KernelContract(span.argument, f"an array on CUDA device {known}", f"CUDA device {span.facts.device}")
    if first.facts.host:
        if stream is not None:
            raise KernelContract("stream", "None for host arrays", stream)
        return Target(None, 0)
    return Target(_stream_handle(stream, spans), known or 0)


def _where(span: Span) -> str:
    return "host memory" if span.facts.host else "memory of a CUDA device"


def _stream_handle(stream: object, spans: list[Span]) -> int:
    """Return the driver's handle; without a stream, torch's current one for tensors, and else the default stream."""
    if stream is None:
        tensor = next((span.facts.keepalive for span in spans if is_torch(span.facts.keepalive)), None)
        torch = sys.modules.get("torch")
        if tensor is None or torch is None:
            return 0
        stream = torch.cuda.current_stream(tensor.device)  # type: ignore[attr-defined]
    handle = getattr(stream, "cuda_stream", stream)  # a stream of torch, or the handle itself
    if hasattr(handle, "__cuda_stream__"):
        handle = handle.__cuda_stream__()[1]
    number = _integer("stream", handle)
    if number < 0:
        raise KernelContract("stream", "None, a stream of torch, or the handle of one", stream)
    return number


def refuse_overlaps(spans: Iterable[Span], *, into_pools: bool) -> None:
    """Refuse memory that is written and lies within anything else of the call; pools may overlap each other."""
    conflicts = {
        Access.READ: (Access.WRITTEN, Access.POOL) if into_pools else (Access.WRITTEN,),
        Access.WRITTEN: (Access.READ, Access.WRITTEN, Access.POOL),
        Access.POOL: (Access.READ, Access.WRITTEN) if into_pools else (Access.WRITTEN,),
    }
    furthest: dict[Access, Span] = {}  # of those that begin no later, the one that ends last
    for span in sorted(spans, key=lambda span: span.start):
        if span.start == span.end:
            continue
        for access in conflicts[span.access]:
            before = furthest.get(access)
            if before is not None and span.start < before.end:
                shared = min(before.end, span.end) - span.start
                raise KernelContract(span.argument, f"memory apart from {before.argument}", f"{shared} bytes shared")
        before = furthest.get(span.access)
        if before is None or span.end > before.end:
            furthest[span.access] = span


def by_group(argument: str, value: Any, names: list[str], *, whole: bool) -> dict[str, Any]:
    """Take a mapping from group to argument; `whole`: every group must be there."""
    if value is None and not whole:
        return dict.fromkeys(names)
    if not isinstance(value, Mapping):
        raise KernelContract(argument, f"a mapping from groups {names}, as pools is one", type(value).__name__)
    strange = [name for name in value if name not in names]
    lacking = [name for name in names if name not in value]
    if strange or (whole and lacking):
        raise KernelContract(argument, f"groups {names}", f"groups {list(value)}")
    return {name: value.get(name) for name in names}
