# SPDX-License-Identifier: Apache-2.0
"""Arguments of kernels, checked before a byte moves: every refusal is a ``KernelContract`` that names the argument."""

from __future__ import annotations

from enum import Enum
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hybridkv import _core
from hybridkv.errors import ArgumentError, KernelContract
from hybridkv.pools import ArrayFacts, array_facts, dense_strides
from hybridkv.stream_capture import refuse_capture

IDS = (np.dtype(np.int32), np.dtype(np.int64))
COUNTS = (np.dtype(np.uint64), np.dtype(np.int64))
STATUS = (np.dtype(np.int32),)

_MOST_THREADS = 64


class Access(Enum):
    """What a call does with a span of memory."""

    READ = "read"
    WRITTEN = "written"
    POOL = "pool"  # pages of it, read or written


class Span(NamedTuple):
    """Memory that a call touches, under the name of its argument."""

    argument: str
    start: int
    end: int
    access: Access
    facts: ArrayFacts


def kernel_facts(name: str, item: Any) -> ArrayFacts:
    """Read where an array lies; :func:`~hybridkv.kernel_memory.target_of` sees to it that kernels can reach it."""
    try:
        return array_facts(name, item)
    except ArgumentError as error:
        raise KernelContract(error.field, error.expected, error.got) from error


def host_facts(name: str, item: Any) -> ArrayFacts:
    """Read where an array lies that has to be in host memory: the kernel runs on the CPU alone."""
    facts = kernel_facts(name, item)
    require_host(name, facts)
    return facts


def require_host(name: str, facts: ArrayFacts) -> None:
    """Refuse device memory where the kernel runs on the CPU alone."""
    if not facts.host:
        raise KernelContract(name, "host memory (there is no such kernel for devices)", "a device array")


class _HostMemory:
    """Memory that numpy can look at, whatever array it belongs to."""

    def __init__(self, facts: ArrayFacts) -> None:
        self._keepalive = facts.keepalive
        self.__array_interface__ = {
            "shape": facts.shape, "strides": facts.strides, "typestr": facts.dtype.str,
            "data": (facts.address, True), "version": 3,
        }  # fmt: skip


def host_values(facts: ArrayFacts) -> np.ndarray[Any, Any]:
    """View an array of the host, read-only, as numpy's."""
    return np.asarray(_HostMemory(facts)) if prod(facts.shape) else np.empty(facts.shape, facts.dtype)


def no_stream(stream: object) -> None:
    """Refuse a stream where all is done on the CPU."""
    if stream is not None:
        raise KernelContract("stream", "None for host arrays", stream)
    refuse_capture("stream", "a kernel on host arrays: it runs now, once")


def _is_contiguous(facts: ArrayFacts) -> bool:
    dense = dense_strides(facts.shape, facts.dtype.itemsize)
    if facts.strides == dense or prod(facts.shape) == 0:
        return True
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
    check_base(name, facts, facts.dtype.itemsize, writable)
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
    check_base(name, facts, unit, writable)
    return facts


def check_base(name: str, facts: ArrayFacts, unit: int, writable: bool) -> None:
    """Refuse an address that is no multiple of `unit`, and an array that must be written and is read-only."""
    if facts.address % unit:
        raise KernelContract(name, f"an address that is a multiple of {unit}", hex(facts.address))
    if writable and not facts.writable:
        raise KernelContract(name, "a writable array", "a read-only one")


def span_of(argument: str, facts: ArrayFacts, access: Access = Access.READ) -> Span:
    """Return the memory of a contiguous array."""
    return Span(argument, facts.address, facts.address + prod(facts.shape) * facts.dtype.itemsize, access, facts)


def extent_of(facts: ArrayFacts) -> tuple[int, int]:
    """Return the first byte and the end of an array, gaps included."""
    if prod(facts.shape) == 0:
        return facts.address, facts.address
    reach = [(extent - 1) * stride for extent, stride in zip(facts.shape, facts.strides, strict=True)]
    start = facts.address + sum(min(span, 0) for span in reach)
    return start, facts.address + sum(max(span, 0) for span in reach) + facts.dtype.itemsize


def one_place(spans: list[Span]) -> tuple[bool, int | None]:
    """Return where all arrays lie, host and number of the device; refuses what is not where the first one is."""
    if not spans:
        return True, None
    first = spans[0]
    there = next((span for span in spans if not span.facts.host), None)
    if there is not None:
        refuse_absent_cuda(there.argument)
    known = next((s.facts.device for s in spans if not s.facts.host and s.facts.device is not None), None)
    for span in spans:
        if span.facts.host != first.facts.host:
            raise KernelContract(span.argument, f"{_where(first)}, as {first.argument}", _where(span))
        if not span.facts.host and span.facts.device not in (None, known):
            raise KernelContract(span.argument, f"an array on CUDA device {known}", f"CUDA device {span.facts.device}")
    return first.facts.host, known


def refuse_absent_cuda(argument: str) -> None:
    """Refuse a device array where there is no device."""
    cuda = _core.cuda_facts()
    if not cuda["available"]:
        expected = f"host memory (CUDA is not available: {cuda['reason']})"
        raise KernelContract(argument, expected, "a device array")


def _where(span: Span) -> str:
    return "host memory" if span.facts.host else "memory of a CUDA device"


def integer(field: str, value: object) -> int:
    """Take a number that the core can hold."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise KernelContract(field, "integers", repr(value))
    if not -(2**62) < int(value) < 2**62:
        raise KernelContract(field, "integers of at most 62 bits", int(value))
    return int(value)


def null_page_of(suffix: str, value: object, pages: int, argument: str = "null_page") -> int:
    if value is None:
        return -1
    number = integer(f"{argument}{suffix}", value)
    if not 0 <= number < pages:
        raise KernelContract(f"{argument}{suffix}", f"None or a page of the pool, 0 to {pages - 1}", number)
    return number


def thread_count(value: object) -> int:
    number = integer("threads", value)
    if not 1 <= number <= _MOST_THREADS:
        raise KernelContract("threads", f"1 to {_MOST_THREADS}", number)
    return number
