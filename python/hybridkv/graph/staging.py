# SPDX-License-Identifier: Apache-2.0
"""The tables that captured graphs read: fixed addresses, written in place, padded so that nothing else is touched."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridkv.arguments import count, integer, members
from hybridkv.errors import ArgumentError, Busy
from hybridkv.extras import TORCH, importing
from hybridkv.graph.padding import CLAMP
from hybridkv.graph.staged import StagedStep
from hybridkv.graph.step_shape import StepShape, TableShape, step_shape
from hybridkv.lease import Lease
from hybridkv.stream_capture import refuse_capture
from hybridkv.ticket import Ticket

if TYPE_CHECKING:
    from hybridkv.cache import HybridCache
    from hybridkv.spec import CacheSpec

_Arrays = dict[str, npt.NDArray[Any]]


class _Entries(NamedTuple):
    """What a request has for one table."""

    first: int  # own block of column 0
    entries: int
    ids: npt.NDArray[np.int32]  # from block 0 on, as the cache counts pages


class _Row(NamedTuple):
    """What a request has for all tables."""

    tokens: int
    grown: int
    tables: list[_Entries]


class Staging:
    """Block tables, write targets, positions and lengths of a step, where captured graphs read them.

    One set of arrays serves all buckets: a graph of bucket b was captured on the first b rows of each. All of them are
    made here, once; :meth:`update` writes into them and never replaces one.

    Parameters
    ----------
    spec, max_blocks, padding, buckets, step_tokens, compact, groups
        As in :meth:`Topology.capture <hybridkv.graph.Topology.capture>`, which takes them from here.
    cache : HybridCache, optional
        Then null pages that it may hand out are refused.
    device : torch.device or str, optional
        Where the arrays lie, as tensors of torch: "cpu", "cuda", "cuda:1". Default: numpy arrays of the host.
    copies : int
        Page-locked arrays on the host from which a device is written, at least 1. One more than the steps that are in
        flight at a time is enough: a copy is written again only once the device has read it.

    Raises
    ------
    ArgumentError
        Naming the field.
    ImportError
        A device, and torch is not installed; it names the extra.
    CaptureError
        A stream captures.

    Notes
    -----
    One thread at a time. What :meth:`buffers` returns, by name:

    - ``table.<table>``: int32 [[bucket, width]], pages as the kernel counts them (the cache's plus ``padding.first``).
      Behind a row's entries, where a page is not held, and in rows without a request: the sentinel; for "clamp" a row
      is filled up with its own last page.
    - ``first.<table>``: int32 [[bucket]], of compact tables: the own block of column 0.
    - ``slots.<table>``: int64 [[bucket, step_tokens]], where the new tokens are written: page * block tokens + offset
      of the token in the block; of what is padding -1, or the null page's first. Groups with a live page have none.
    - ``positions``: int64 [[bucket, step_tokens]], of the new tokens; 0 where there is none.
    - ``lengths``: int32 [[bucket]], tokens that a request has with its new ones; 0 where there is none.
    """

    __slots__ = ("_device", "_events", "_mirrors", "_next", "_step", "_views", "shape")

    def __init__(
        self,
        spec: CacheSpec,
        *,
        max_blocks: int | Mapping[str, int],
        padding: object,
        buckets: Iterable[int] = (1,),
        step_tokens: int = 1,
        compact: Collection[str] = (),
        groups: Collection[str] | None = None,
        cache: HybridCache | None = None,
        device: object = None,
        copies: int = 2,
    ) -> None:
        refuse_capture("staging", "arrays that are made")
        self.shape: StepShape = step_shape(spec, max_blocks, padding, buckets, step_tokens, compact, groups)
        if cache is not None:
            if not self.shape.spec.same_pages(getattr(cache, "spec", None)):
                raise ArgumentError("cache", "a HybridCache of this spec", cache)
            for table in self.shape.tables:
                table.padding.check_apart(f"padding[{table.name}]", cache.pages[table.group.name])
        number = count("copies", copies)
        self._device: dict[str, Any] | None = None
        self._mirrors: list[_Arrays] = []
        self._events: list[Any] = []
        self._next = 0
        self._step: StagedStep | None = StagedStep(self.shape.buckets[-1], (), ())  # None: an update broke off
        self._make(device, number)
        arrays = self._arrays()
        self._views = {size: {name: array[:size] for name, array in arrays.items()} for size in self.shape.buckets}
        for mirror in self._mirrors:
            self._pad(mirror, 0, self.shape.buckets[-1])
        if self._events:
            self._send(self.shape.buckets[-1])

    # -- what graphs read --------------------------------------------------------------------------

    def buffers(self, bucket: int | None = None) -> dict[str, Any]:
        """Return the arrays, or their first rows for one bucket.

        All buckets share one memory, and each call returns the same objects.

        Raises
        ------
        ArgumentError
            Not one of the buckets.
        """
        return dict(self._arrays() if bucket is None else self._views[self._rows(bucket)])

    def mark_static(self) -> None:
        """Tell torch that the tensors stay where they are: graphs of ``mode="reduce-overhead"`` read them in place.

        Without it such a graph copies each input at each replay into memory of its own.

        Raises
        ------
        ArgumentError
            The arrays are numpy's.
        """
        if self._device is None:
            raise ArgumentError("staging", "tensors of torch: Staging(device=)", "numpy arrays")
        from torch import _dynamo

        for tensors in (self._device, *self._views.values()):
            for tensor in tensors.values():
                _dynamo.mark_static_address(tensor)

    # -- a step ------------------------------------------------------------------------------------

    def update(self, batch: Lease | Ticket | Iterable[Lease | Ticket], *, bucket: int | None = None) -> int:
        """Write a step's tables in place, and pad every row and column of the bucket that it does not use.

        Nothing is allocated for the arrays, and nothing is waited for: a device is written on torch's current stream,
        so that what is put there next, the replay, finds it.

        Parameters
        ----------
        batch : Lease or Ticket, or iterable of these
            The requests, as they are grown for the step; row i is request i. A lease has no new tokens.
        bucket : int, optional
            Default: the smallest that holds them; ``route(...).bucket`` is the same.

        Returns
        -------
        int
            The bucket.

        Raises
        ------
        ArgumentError
            What :meth:`Topology.route <hybridkv.graph.Topology.route>` would have called eager: too many requests,
            tokens or blocks. Nothing was written.
        Busy
            The device has not yet read what was written `copies` updates ago. Nothing was written.
        LeaseExpired, Closed
            A lease or ticket has ended. Nothing was written.
        CaptureError
            A stream captures: the tables would be part of the graph once and for all.
        """
        refuse_capture("staging", "tables that are written by the host")
        given = [batch] if isinstance(batch, (Lease, Ticket)) else members("batch", batch, "leases and tickets")
        size = self.shape.bucket_for(len(given)) if bucket is None else self._rows(bucket)
        if size is None or len(given) > size:
            raise ArgumentError("batch", f"at most {size or self.shape.buckets[-1]} requests", len(given))
        rows = [self._read(number, step) for number, step in enumerate(given)]
        mirror = self._free_mirror()
        step = StagedStep.of(size, given, self._named_pages(rows))
        self._step = None
        self._write(mirror, rows)
        self._pad(mirror, len(rows), size)
        if self._events:
            self._send(size)
        self._step = step
        return size

    def blank(self, bucket: int | None = None) -> int:
        """Pad all rows: what a warm-up and a capture run on, so that neither touches a page that is in use.

        Returns
        -------
        int
            The bucket; the largest where none is named.

        Raises
        ------
        Busy, ArgumentError, CaptureError
            As :meth:`update`.
        """
        return self.update((), bucket=self.shape.buckets[-1] if bucket is None else bucket)

    # -- reading -----------------------------------------------------------------------------------

    def _arrays(self) -> Mapping[str, Any]:
        return self._mirrors[0] if self._device is None else self._device

    def _rows(self, bucket: object) -> int:
        size = integer("bucket", bucket, f"one of {list(self.shape.buckets)}")
        if size not in self.shape.buckets:
            raise ArgumentError("bucket", f"one of {list(self.shape.buckets)}", bucket)
        return size

    def _read(self, number: int, step: object) -> _Row:
        """Return what a row is made of, all of it checked."""
        if not isinstance(step, (Lease, Ticket)):
            raise ArgumentError(f"batch[{number}]", "a lease or a ticket", step)
        if not self.shape.spec.same_pages(step._cache.spec):
            raise ArgumentError(f"batch[{number}]", "a lease or ticket of a cache of this spec", step)
        tokens = step.tokens
        grown = step.grown_tokens if isinstance(step, Ticket) else tokens
        if grown - tokens > self.shape.step_tokens:
            raise ArgumentError(f"batch[{number}]", f"at most {self.shape.step_tokens} new tokens", grown - tokens)
        pages = []
        for table in self.shape.tables:
            first, needed = table.span(tokens, grown)
            if needed > table.width:
                expected = f"at most {table.width} entries in the table of {table.name!r}"
                raise ArgumentError(f"batch[{number}]", expected, needed)
            pages.append(_Entries(first, needed, _pages(step, table)))
        return _Row(tokens, grown, pages)

    def _named_pages(self, rows: list[_Row]) -> dict[str, list[npt.NDArray[np.int32]]]:
        """Return what each row names, by group; tables of one group name the same pages."""
        named: dict[str, list[npt.NDArray[np.int32]]] = {}
        for column, table in enumerate(self.shape.tables):
            if table.group.name not in named:
                own = [row.tables[column] for row in rows]
                named[table.group.name] = [ids[first : first + entries] for first, entries, ids in own]
        return named

    # -- writing -----------------------------------------------------------------------------------

    def _write(self, mirror: _Arrays, rows: list[_Row]) -> None:
        """Write the rows of requests; all of it was checked."""
        lengths, positions = mirror["lengths"], mirror["positions"]
        for number, row in enumerate(rows):
            new = row.grown - row.tokens
            lengths[number] = row.grown
            positions[number, :new] = range(row.tokens, row.grown)
            positions[number, new:] = 0
        for column, table in enumerate(self.shape.tables):
            own = [row.tables[column] for row in rows]
            _write_table(table, mirror[f"table.{table.name}"], own)
            if table.compact:
                mirror[f"first.{table.name}"][: len(own)] = [entries.first for entries in own]
            if not table.live:
                slots = mirror[f"slots.{table.name}"]
                for number, (row, entries) in enumerate(zip(rows, own, strict=True)):
                    _write_slots(table, slots[number], entries.ids, row)

    def _pad(self, mirror: _Arrays, start: int, end: int) -> None:
        """Make rows [start, end) padding."""
        mirror["positions"][start:end] = 0
        mirror["lengths"][start:end] = 0
        for table in self.shape.tables:
            mirror[f"table.{table.name}"][start:end] = table.padding.page
            if table.compact:
                mirror[f"first.{table.name}"][start:end] = 0
            if not table.live:
                mirror[f"slots.{table.name}"][start:end] = table.padding.slot(table.block_tokens)

    # -- memory ------------------------------------------------------------------------------------

    def _make(self, device: object, copies: int) -> None:
        shapes = self._shapes()
        if device is None:
            self._mirrors = [{name: np.zeros(*one) for name, one in shapes.items()}]
            return
        with importing("tables on a device", TORCH):
            import torch

        try:
            place = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ArgumentError("device", "None, or a device of torch", str(error)) from error
        pinned = place.type == "cuda"
        if place.type != "cpu" and not (pinned and torch.cuda.is_available()):
            raise ArgumentError("device", "'cpu', or a CUDA device that torch sees", str(place))
        kinds = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}
        for _ in range(copies if pinned else 1):
            host = {n: torch.zeros(s, dtype=kinds[np.dtype(d)], pin_memory=pinned) for n, (s, d) in shapes.items()}
            self._mirrors.append({name: tensor.numpy() for name, tensor in host.items()})  # which keep the tensors
            if pinned:
                self._events.append((torch.cuda.Event(), host))
        self._device = {n: t.to(place) for n, t in host.items()} if pinned else host

    def _shapes(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        most, step = self.shape.buckets[-1], self.shape.step_tokens
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "positions": ((most, step), np.int64),
            "lengths": ((most,), np.int32),
        }
        for table in self.shape.tables:
            shapes[f"table.{table.name}"] = (most, table.width), np.int32
            if table.compact:
                shapes[f"first.{table.name}"] = (most,), np.int32
            if not table.live:
                shapes[f"slots.{table.name}"] = (most, step), np.int64
        return shapes

    def _free_mirror(self) -> _Arrays:
        if self._events and not self._events[self._next][0].query():
            expected = f"a device that has read what was written {len(self._events)} updates ago"
            raise Busy("staging", expected, "one that has not; wait for a step, or make it with more copies")
        return self._mirrors[self._next]

    def _send(self, rows: int) -> None:
        """Put the copies to the device on the current stream, and an event behind them."""
        assert self._device is not None
        event, host = self._events[self._next]
        for name, tensor in self._device.items():
            tensor[:rows].copy_(host[name][:rows], non_blocking=True)
        event.record()
        self._next = (self._next + 1) % len(self._events)

    def __repr__(self) -> str:
        return f"Staging(buckets={list(self.shape.buckets)}, tables={[table.name for table in self.shape.tables]})"


def _pages(step: Lease | Ticket, table: TableShape) -> npt.NDArray[np.int32]:
    """Return the pages of a request, of a group with a live page that one alone."""
    name = table.group.name
    if not table.live:
        return step.page_ids(name)
    page = step.live_page(name) if isinstance(step, Ticket) else (step.page_ids(name)[-1:].tolist() or [-1])[0]
    return np.array([page], np.int32)


def _write_table(table: TableShape, target: npt.NDArray[np.int32], rows: list[_Entries]) -> None:
    """Write a row's entries and what stands behind them; pages are counted as the kernel does once all are there."""
    padding, clamps = table.padding, table.padding.kind == CLAMP
    for number, (first, entries, ids) in enumerate(rows):
        row = target[number]
        row[:entries] = ids[first : first + entries]
        row[entries:] = ids[first + entries - 1] if clamps and entries else -1
    written = target[: len(rows)]
    if padding.first:
        written += padding.first
    if padding.page != padding.first - 1:  # or what is not held is the sentinel already
        np.copyto(written, padding.page, where=written < padding.first)


def _write_slots(table: TableShape, slots: npt.NDArray[np.int64], ids: npt.NDArray[np.int32], row: _Row) -> None:
    """Write where the new tokens of a request go."""
    block, first, nowhere = table.block_tokens, table.padding.first, table.padding.slot(table.block_tokens)
    new = row.grown - row.tokens
    slots[new:] = nowhere
    if new == 1:  # decoding: no arrays
        page = int(ids[row.tokens // block])
        slots[0] = nowhere if page < 0 else (page + first) * block + row.tokens % block
    elif new:
        at = np.arange(row.tokens, row.grown)
        pages = ids[at // block].astype(np.int64)
        slots[:new] = np.where(pages < 0, nowhere, (pages + first) * block + at % block)
