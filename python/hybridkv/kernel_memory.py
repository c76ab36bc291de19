# SPDX-License-Identifier: Apache-2.0
"""Where the memory of a call lies: on one device, and what is written apart from everything else."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from hybridkv.errors import KernelContract
from hybridkv.kernel_arguments import Access, Span, integer, one_place, refuse_absent_cuda
from hybridkv.paged_pool import PagedPool
from hybridkv.pools import is_torch
from hybridkv.stream_capture import refuse_capture


class Target(NamedTuple):
    """Where a call runs: on the host where `stream` is None, else on a stream of a CUDA device."""

    stream: int | None
    device: int


def target_of(pools: list[PagedPool], spans: list[Span], stream: object) -> Target:
    """Find the one device of all arrays of a call, and the stream to use there."""
    host, device = place_of(pools, spans)
    if not host:
        return Target(_stream_handle(stream, pools, spans), device)
    if stream is not None:
        raise KernelContract("stream", "None for host arrays", stream)
    refuse_capture("stream", "a kernel on host arrays: it runs now, once")
    return Target(None, 0)


def place_of(pools: list[PagedPool], spans: list[Span]) -> tuple[bool, int]:
    """Return whether all arrays lie on the host, and else the number of their CUDA device, 0 where none tells it."""
    place = pools[0].place if pools else None
    for pool in pools:
        place = place if pool.place == place else None
    for span in spans:
        place = place if (span.facts.host, span.facts.device) == place else None
    if place is None:
        place = one_place([*_pool_spans(pools), *spans])
    elif not place[0]:
        refuse_absent_cuda(pools[0].name(0))
    host, device = place
    return host, device or 0


def _pool_spans(pools: list[PagedPool]) -> list[Span]:
    return [span for pool in pools for span in pool.spans()]


def _stream_handle(stream: object, pools: list[PagedPool], spans: list[Span]) -> int:
    """Return the driver's handle; without a stream, torch's current one for tensors, and else the default stream."""
    if stream is None:
        arrays = [facts.keepalive for pool in pools for facts in pool.arrays] + [span.facts.keepalive for span in spans]
        tensor: Any = next((array for array in arrays if is_torch(array)), None)
        torch = sys.modules.get("torch")
        if tensor is None or torch is None:
            return 0
        stream = torch.cuda.current_stream(tensor.device)
    handle = getattr(stream, "cuda_stream", stream)  # a stream of torch, or the handle itself
    if hasattr(handle, "__cuda_stream__"):
        handle = handle.__cuda_stream__()[1]
    number = integer("stream", handle)
    if number < 0:
        raise KernelContract("stream", "None, a stream of torch, or the handle of one", stream)
    return number


def refuse_overlaps(pools: list[PagedPool], spans: list[Span], *, into_pools: bool) -> None:
    """Refuse memory that is written and lies within anything else of the call; pools may overlap each other."""
    if not _plainly_apart(pools, spans, into_pools):
        _look_for_overlap([*_pool_spans(pools), *spans], into_pools)


def _plainly_apart(pools: list[PagedPool], spans: list[Span], into_pools: bool) -> bool:
    """Say whether everything beside the pools is apart from each other, and from the pools where that counts.

    False decides nothing: two inputs may share memory.
    """
    end = 0
    for span in sorted(spans, key=_start_of):
        if span.start == span.end:
            continue
        if span.start < end:
            return False
        end = span.end
        if into_pools or span.access is Access.WRITTEN:
            for pool in pools:
                if pool.reach.touches(span.start, span.end):
                    return False
    return True


def _start_of(span: Span) -> int:
    return span.start


def _look_for_overlap(spans: Iterable[Span], into_pools: bool) -> None:
    conflicts = {
        Access.READ: (Access.WRITTEN, Access.POOL) if into_pools else (Access.WRITTEN,),
        Access.WRITTEN: (Access.READ, Access.WRITTEN, Access.POOL),
        Access.POOL: (Access.READ, Access.WRITTEN) if into_pools else (Access.WRITTEN,),
    }
    furthest: dict[Access, Span] = {}  # of those that begin no later, the one that ends last
    for span in sorted(spans, key=_start_of):
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
