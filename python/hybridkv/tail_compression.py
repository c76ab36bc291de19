# SPDX-License-Identifier: Apache-2.0
"""``compress_tail``: projected rows of many requests, and what each carries, to finished rows in pages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridkv import _core
from hybridkv.coverage import real_number
from hybridkv.errors import HybridKVError, KernelContract
from hybridkv.kernel_arguments import Access, Span, extent_of, kernel_facts, thread_count
from hybridkv.kernel_memory import target_of
from hybridkv.pools import ArrayFacts
from hybridkv.reference.contract import flag, number, require_rows_apart
from hybridkv.reference.rotary import Rope
from hybridkv.reference.row_format import RowFormat

_ROWS = ("float32", "bfloat16", "uint16")
_ELEMENTS = {"float8_e4m3": 0, "float4_e2m1": 1, "bfloat16": 2, "float32": 3}
_SCALES = {"ue8m0": 1, "float32": 2, "float8_e4m3": 3}
_POSITIONS = 2**31  # a ratio beyond closes no window
_NO_RING = (0, 0, 0)
_NO_LIST = (0, 0)


def compress_tail(
    kv: Any, score: Any, out: Any, *, ratio: int, overlap: bool, norm_weight: Any, eps: float, rope: Rope | None,
    row_format: RowFormat, carry: Any = None, new_carry: Any = None, starts: Any, positions: Any,
    write_mask: Any = None, page_ids: Any = None, threads: int = 1, stream: Any = None,
) -> None:  # fmt: skip
    """Close every window that the rows fill: pool, norm, rotate, quantise and store its entry; keep the rest.

    :func:`hybridkv.reference.compress_tail` is the specification, argument by argument; this is the same in float32,
    within :func:`hybridkv.reference.float32_bound` before it quantises. All instruction sets, any number of threads and
    CUDA devices write the same bytes.

    Parameters
    ----------
    kv, score : array, [[rows, c * d]]
        float32 or bfloat16 (uint16 holds its bits where there is no such dtype), rows of all requests one after
        another; c is 2 with overlap, else 1. Scores carry their position bias. Channels are contiguous, rows at any
        distance.
    out : array, [[pages, page bytes or more]]
        uint8. Written: the rows of closing windows, and no other byte.
    ratio : int
        Tokens of an entry, at least 1.
    overlap : bool
        Whether an entry also draws on the window before its own.
    norm_weight : array, [[d]]
        float32 or bfloat16.
    eps : float
        Of the norm.
    rope : hybridkv.reference.Rope or None
        Applied at the first token of an entry's own window.
    row_format : hybridkv.reference.RowFormat
        Of the rows and pages of `out`.
    carry, new_carry : array, [[requests, ring rows, 2 * c * d]], optional
        float32: the rings before and after the call; `new_carry` may be `carry`.
    starts, positions, write_mask : array
        int32 [[requests + 1]], [[requests]], [[requests]].
    page_ids : array, [[requests, columns]], optional
        int32. Default: the windows of the call fill the rows of `out` one after another.
    threads : int
        At most so many threads, 1 to 64, the caller's among them; small calls take fewer. Of no meaning on a device.
    stream : torch stream or int, optional
        Of device arrays, which all lie on one CUDA device, the lists too: where the call, one launch, is put; nothing
        waits for it. Default: torch's current stream for tensors, else the default stream. Host arrays have none. What
        the host refuses in a list a device leaves out (``docs/kernels.md`` section 9).

    Raises
    ------
    KernelContract
        Naming argument, expected and got. Nothing has been written.

    Examples
    --------
    >>> import numpy as np, hybridkv as hk
    >>> from hybridkv.reference import published
    >>> out = np.zeros((1, 8), np.uint8)
    >>> hk.ops.compress_tail(
    ...     np.float32([[1, 0], [3, 0]]), np.zeros((2, 2), np.float32), out, ratio=2, overlap=False, eps=0.0, rope=None,
    ...     norm_weight=np.ones(2, np.float32), row_format=published.plain("float32", 2, page_rows=1),
    ...     starts=np.int32([0, 2]), positions=np.int32([0]),
    ... )
    >>> [f"{value:.4f}" for value in out.view(np.float32)[0]]
    ['1.4142', '0.0000']
    """
    arrays = check_tail(
        kv, score, out, ratio, overlap, norm_weight, eps, rope, row_format, carry, new_carry, starts, positions,
        write_mask, page_ids,
    )  # fmt: skip
    values, scores, weight, pages, inputs, rings = arrays
    reached = {**inputs, "out": pages, **rings}
    spans = [Span(name, *extent_of(facts), Access.READ, facts) for name, facts in reached.items()]
    target = target_of([], spans, stream)
    _check_apart(pages, inputs, rings)
    ids, requests = inputs.get("page_ids"), inputs["positions"].shape[0]
    frequencies = None if rope is None else _frequencies(rope)
    call = (
        _core_rows(values), _core_rows(scores), values.shape[0], int(min(ratio, _POSITIONS)), bool(overlap),
        weight.shape[0], _core_rows(weight), float(eps),
        (0, 0, True) if rope is None or frequencies is None else (frequencies.ctypes.data, rope.dims, rope.interleaved),
        _core_format(row_format), (pages.address, pages.strides[0], pages.shape[0]),
        _core_ring(rings.get("carry")), _core_ring(rings.get("new_carry")), requests, _core_list(inputs["starts"]),
        _core_list(inputs["positions"]), _core_list(inputs.get("write_mask")),
        (0, 0, 0, 0) if ids is None else (ids.address or 4, ids.strides[1], ids.strides[0], ids.shape[1]),
    )  # fmt: skip
    count = thread_count(threads)
    if target.stream is None:
        _core.compress_tail(call, count)
    else:
        _core.device_compress_tail(call, target.stream, target.device)


class TailArrays(NamedTuple):
    """The arrays of a call, checked one by one; `inputs` has all that are read but the carry, by name."""

    values: ArrayFacts
    scores: ArrayFacts
    weight: ArrayFacts
    pages: ArrayFacts
    inputs: dict[str, ArrayFacts]
    rings: dict[str, ArrayFacts]


def check_tail(
    kv: Any, score: Any, out: Any, ratio: int, overlap: bool, norm_weight: Any, eps: float, rope: Rope | None,
    row_format: RowFormat, carry: Any, new_carry: Any, starts: Any, positions: Any, write_mask: Any, page_ids: Any,
) -> TailArrays:  # fmt: skip
    """Check what :func:`compress_tail` takes, each array by itself."""
    ratio, overlap = number("ratio", ratio, "an int of at least 1", 1), flag("overlap", overlap)
    weight = _rows("norm_weight", norm_weight, (None,))
    width = weight.shape[0]
    _check_numbers(width, eps, rope)
    row_width, ring_rows = width * (2 if overlap else 1), ratio * (2 if overlap else 1)
    values = _rows("kv", kv, (None, row_width))
    scores = _rows("score", score, (values.shape[0], row_width))
    if not isinstance(row_format, RowFormat) or row_format.channels != width:
        raise KernelContract("row_format", f"a RowFormat of {width} channels", row_format)
    _check_again(row_format, rope)
    row_format.require_rope(rope)
    pages = _pages(out, row_format)
    firsts = _shaped("positions", positions, ("int32",), (None,))
    requests = firsts.shape[0]
    inputs = {"kv": values, "score": scores, "norm_weight": weight, "positions": firsts}
    inputs["starts"] = _shaped("starts", starts, ("int32",), (requests + 1,))
    if write_mask is not None:
        inputs["write_mask"] = _shaped("write_mask", write_mask, ("int32",), (requests,))
    rings = {
        name: _ring(name, given, (requests, ring_rows, 2 * row_width))
        for name, given in (("carry", carry), ("new_carry", new_carry))
        if given is not None
    }
    if page_ids is not None:
        inputs["page_ids"] = _shaped("page_ids", page_ids, ("int32",), (requests, None))
    return TailArrays(values, scores, weight, pages, inputs, rings)


def _check_numbers(width: int, eps: object, rope: object) -> None:
    told = real_number(eps)
    if told is None or not 0 <= told < inf:
        raise KernelContract("eps", "a finite number, 0 or more", eps)
    if rope is not None and not isinstance(rope, Rope):
        raise KernelContract("rope", "a Rope or None", rope)
    least = 1 if rope is None else rope.dims
    if width < least:
        raise KernelContract("norm_weight", f"at least {least} channels", width)


def _shaped(name: str, item: Any, dtypes: tuple[str, ...], shape: tuple[int | None, ...]) -> ArrayFacts:
    """Take an array of one of some dtypes and a shape, None for any extent; its items are aligned."""
    facts = kernel_facts(name, item)
    if facts.dtype.name not in dtypes or not facts.dtype.isnative:
        raise KernelContract(name, f"dtype {' or '.join(dtypes)}", str(facts.dtype))
    fits = len(facts.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, facts.shape, strict=True))
    if not fits:
        raise KernelContract(name, f"shape {list(shape)} (None: any)", list(facts.shape))
    unit = facts.dtype.itemsize
    if facts.address % unit:
        raise KernelContract(name, f"an address that is a multiple of {unit}", hex(facts.address))
    if any(extent > 1 and stride % unit for extent, stride in zip(facts.shape, facts.strides, strict=True)):
        raise KernelContract(name, f"strides that are multiples of {unit}", facts.strides)
    return facts


def _rows(name: str, item: Any, shape: tuple[int | None, ...]) -> ArrayFacts:
    facts = _shaped(name, item, _ROWS, shape)
    if prod(facts.shape) and facts.shape[-1] > 1 and facts.strides[-1] != facts.dtype.itemsize:
        raise KernelContract(name, "contiguous channels", f"stride {facts.strides[-1]}")
    return facts


def _ring(name: str, item: Any, shape: tuple[int, int, int]) -> ArrayFacts:
    facts = _shaped(name, item, ("float32",), shape)
    if prod(shape) and facts.strides[2] != facts.dtype.itemsize:
        raise KernelContract(name, "contiguous channels", f"stride {facts.strides[2]}")
    return facts


def _pages(out: Any, row_format: RowFormat) -> ArrayFacts:
    facts = _shaped("out", out, ("uint8",), (None, None))
    need, unit = row_format.page_bytes, row_format.base_alignment
    if facts.shape[1] < need:
        raise KernelContract("out", f"pages of at least {need} bytes", facts.shape[1])
    if prod(facts.shape) and facts.strides[1] != 1 and facts.shape[1] > 1:
        raise KernelContract("out", "contiguous bytes within a page", f"stride {facts.strides[1]}")
    if not facts.writable:
        raise KernelContract("out", "an array that can be written", "a read-only one")
    if facts.shape[0] > 1 and facts.strides[0] < need:
        raise KernelContract("out", f"pages at least {need} bytes apart", facts.strides[0])
    if facts.shape[0] and facts.address % unit:
        raise KernelContract("out", f"an address that is a multiple of {unit}", hex(facts.address))
    if facts.shape[0] > 1 and facts.strides[0] % row_format.stride_unit:
        expected = f"a page stride that is a multiple of {row_format.stride_unit}"
        raise KernelContract("out", expected, facts.strides[0])
    return facts


def _check_apart(pages: ArrayFacts, inputs: dict[str, ArrayFacts], rings: dict[str, ArrayFacts]) -> None:
    """Refuse outputs that share memory with anything else; a carry may be updated in place."""
    _require_apart("out", pages, (inputs | rings).items())
    new, old = rings.get("new_carry"), rings.get("carry")
    if new is None:
        return
    if not new.writable:
        raise KernelContract("new_carry", "an array that can be written", "a read-only one")
    require_rows_apart("new_carry", new.shape, new.strides, new.dtype.itemsize)
    in_place = old is not None and (old.address, old.strides) == (new.address, new.strides)
    _require_apart("new_carry", new, (inputs | ({} if in_place or old is None else {"carry": old})).items())


def _require_apart(name: str, ours: ArrayFacts, others: Iterable[tuple[str, ArrayFacts]]) -> None:
    start, end = extent_of(ours)
    for other, theirs in others:
        first, last = extent_of(theirs)
        if start < last and first < end and start < end and first < last:
            raise KernelContract(name, "memory of its own", f"memory of {other}")


def _core_rows(facts: ArrayFacts) -> tuple[int, int, bool]:
    return facts.address, facts.strides[0], facts.dtype.itemsize == 4


def _core_ring(facts: ArrayFacts | None) -> tuple[int, int, int]:
    return _NO_RING if facts is None else (facts.address, facts.strides[0], facts.strides[1])


def _core_list(facts: ArrayFacts | None) -> tuple[int, int]:
    return _NO_LIST if facts is None else (facts.address, facts.strides[0])


@lru_cache(maxsize=64)
def _check_again(row_format: RowFormat, rope: Rope | None) -> None:
    """Refuse a description that was changed by force since it was made: the core trusts its numbers."""
    try:
        replace(row_format, parts=tuple(replace(part) for part in row_format.parts))
        if rope is not None:
            replace(rope, yarn=rope.yarn and replace(rope.yarn))
    except HybridKVError as error:
        name = "rope" if error.field.startswith(("rope", "yarn")) else "row_format"
        raise KernelContract(name, error.expected, f"{error.field} of {error.got}") from error


@lru_cache(maxsize=64)
def _frequencies(rope: Rope) -> npt.NDArray[np.float64]:
    return np.ascontiguousarray(rope.frequencies(), np.float64)


@lru_cache(maxsize=64)
def _core_format(row_format: RowFormat) -> tuple[Any, ...]:
    parts = []
    for part in row_format.parts:
        if part.element not in _ELEMENTS:
            raise KernelContract("row_format", f"elements among {sorted(_ELEMENTS)}", part.element)
        scaled: tuple[Any, ...] = (0, True, 0.0, 1, 0)
        if part.scale is not None:
            rule = part.scale
            scaled = (_SCALES[rule.encoding], rule.power_of_two, float(rule.floor), part.tile, part.scale_offset)
        parts.append((part.channels, _ELEMENTS[part.element], part.offset, *scaled))
    rounded = -1 if row_format.first_rounded_to is None else _ELEMENTS[row_format.first_rounded_to]
    return (
        tuple(parts), row_format.page_rows, row_format.row_bytes, row_format.data_bytes, row_format.hadamard, rounded,
    )  # fmt: skip
