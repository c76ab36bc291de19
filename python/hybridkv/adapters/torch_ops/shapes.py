# SPDX-License-Identifier: Apache-2.0
"""Shape functions: what an op returns, and what it refuses, told from shapes alone.

Where all extents are numbers, the checks of ``hk.ops`` run on facts of tensors at address 0, so that what is refused,
and under which name, is the same by construction. Of a call in which an extent is a symbol nothing is asked, so that
no symbol is bound to a number: it is refused when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hybridkv import ops
from hybridkv.adapters.torch_ops.arguments import layout_of, rope_of, row_format_of
from hybridkv.adapters.torch_ops.gradients import refuse_gradients, refuse_gradients_of
from hybridkv.errors import KernelContract
from hybridkv.kernel_arguments import thread_count
from hybridkv.page_rows import PageRows
from hybridkv.pools import ArrayFacts, torch_dtype
from hybridkv.tail_compression import check_tail


def gathered(pools: list[Tensor], page_ids: Tensor, rows: Tensor | None, layout: PageRows | None) -> Tensor:
    """Make room for what ``gather`` returns.

    Returns
    -------
    Tensor, [[layers, n, ...]]
        ``...`` is a page of the first pool, with `rows` a row of it; bytes in uint8 where there is a `layout`.
    """
    if not pools:
        raise KernelContract("pools", "at least one array", "none")
    first, lead = pools[0], (len(pools), *page_ids.shape)
    if layout is not None:
        packed_row = layout.row_bytes + layout.footer_bytes
        piece_bytes = packed_row * (layout.rows if rows is None else 1)
        return first.new_empty((*lead, piece_bytes), dtype=torch.uint8)
    return first.new_empty((*lead, *first.shape[2 if rows is not None and first.dim() == 3 else 1 :]))


def fingerprints(pools: list[Tensor], page_ids: Tensor) -> Tensor:
    """Make room for what ``fingerprint`` returns.

    Returns
    -------
    Tensor, [[layers, n]], int64
    """
    return page_ids.new_empty((len(pools), *page_ids.shape), dtype=torch.int64)


class _SymbolError(Exception):
    """An extent is no number yet."""


def _facts(item: Any) -> Any:
    """Put facts in the place of tensors; what is none stays."""
    if isinstance(item, (list, tuple)):
        return [_facts(one) for one in item]
    if isinstance(item, torch.SymInt):
        raise _SymbolError
    if not isinstance(item, Tensor):
        return item
    shape, strides = tuple(item.shape), tuple(item.stride())
    if not all(isinstance(extent, int) for extent in (*shape, *strides)):
        raise _SymbolError
    dtype = torch_dtype(item)
    steps = tuple(stride * dtype.itemsize for stride in strides)
    return ArrayFacts(0, shape, steps, dtype, item.device.type != "cuda", True, None, item.device.index)


def _check(check: Callable[..., object], threads: int, *arguments: Any) -> None:
    """Run a check of ``hk.ops`` on facts, unless one of them is open."""
    thread_count(threads)
    try:
        known = [_facts(argument) for argument in arguments]
    except _SymbolError:
        return
    check(*known)


def _gather(
    pools: list[Tensor], page_ids: Tensor, *, rows: Tensor | None = None, layout: list[int] | None = None,
    null_page: int | None = None, threads: int = 1,
) -> Tensor:  # fmt: skip
    refuse_gradients_of(pools)
    shape = layout_of(layout)
    _check(lambda given: ops.Pools(given, layout=shape), threads, pools)
    out = gathered(pools, page_ids, rows, shape)
    _check(ops.check_gather, threads, pools, page_ids, out, rows, shape, None, None, "zeros", null_page)
    return out


def _gather_out(
    pools: list[Tensor], page_ids: Tensor, out: Tensor, *, rows: Tensor | None = None,
    handouts: list[Tensor] | None = None, status: Tensor | None = None, missing: str = "zeros",
    layout: list[int] | None = None, null_page: int | None = None, threads: int = 1,
) -> None:  # fmt: skip
    refuse_gradients_of(pools)
    refuse_gradients(out=out)
    shape = layout_of(layout)
    _check(ops.check_gather, threads, pools, page_ids, out, rows, shape, handouts, status, missing, null_page)


def _scatter(
    src: Tensor, pools: list[Tensor], page_ids: Tensor, *, rows: Tensor | None = None,
    handouts: list[Tensor] | None = None, status: Tensor | None = None, layout: list[int] | None = None,
    null_page: int | None = None, threads: int = 1,
) -> None:  # fmt: skip
    refuse_gradients(src=src)
    refuse_gradients_of(pools)
    _check(ops.check_scatter, threads, src, pools, page_ids, rows, layout_of(layout), handouts, status, null_page)


def _fingerprint(
    pools: list[Tensor], page_ids: Tensor, *, layout: list[int] | None = None, null_page: int | None = None,
    threads: int = 1,
) -> Tensor:  # fmt: skip
    out = fingerprints(pools, page_ids)
    _fingerprint_out(pools, page_ids, out, layout=layout, null_page=null_page, threads=threads)
    return out


def _fingerprint_out(
    pools: list[Tensor], page_ids: Tensor, out: Tensor, *, layout: list[int] | None = None,
    null_page: int | None = None, threads: int = 1,
) -> None:  # fmt: skip
    refuse_gradients_of(pools)
    _check(ops.check_fingerprint, threads, pools, page_ids, out, layout_of(layout), null_page)


def _compress_tail(
    kv: Tensor, score: Tensor, out: Tensor, *, ratio: int, overlap: bool, norm_weight: Tensor, eps: float,
    row_format: str, starts: Tensor, positions: Tensor, carry: Tensor | None = None, new_carry: Tensor | None = None,
    write_mask: Tensor | None = None, page_ids: Tensor | None = None, rope_dims: int = 0, rope_theta: float = 10000.0,
    rope_interleaved: bool = True, yarn_factor: float | None = None, yarn_original_positions: int = 0,
    yarn_beta_fast: float = 32.0, yarn_beta_slow: float = 1.0, yarn_truncate: bool = True, threads: int = 1,
) -> None:  # fmt: skip
    refuse_gradients(kv=kv, score=score, out=out, norm_weight=norm_weight, carry=carry, new_carry=new_carry)
    rope = rope_of(
        rope_dims, rope_theta, rope_interleaved, yarn_factor, yarn_original_positions, yarn_beta_fast, yarn_beta_slow,
        yarn_truncate,
    )  # fmt: skip
    _check(
        check_tail, threads, kv, score, out, ratio, overlap, norm_weight, eps, rope, row_format_of(row_format), carry,
        new_carry, starts, positions, write_mask, page_ids,
    )  # fmt: skip


SHAPES: dict[str, Callable[..., Any]] = {
    "gather": _gather,
    "gather_out": _gather_out,
    "scatter": _scatter,
    "fingerprint": _fingerprint,
    "fingerprint_out": _fingerprint_out,
    "compress_tail": _compress_tail,
}
"""Shape functions, by the name of their op."""
