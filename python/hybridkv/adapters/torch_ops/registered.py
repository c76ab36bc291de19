# SPDX-License-Identifier: Apache-2.0
"""Schemas, kernels and their registration.

``torch.library.Library`` and not ``custom_op``: a call through the latter costs some 60 us of Python, through the
former 2 us, and ``custom_op`` takes neither keyword-only tensors nor optional lists of them.

No op has a gradient. A tensor that requires one is refused where gradients are recorded, so that none is lost in
silence; hence the autograd keys have nothing to do and are passed by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hybridkv import ops
from hybridkv.adapters.torch_ops import shapes
from hybridkv.adapters.torch_ops.arguments import layout_of, rope_of, row_format_of
from hybridkv.adapters.torch_ops.gradients import refuse_gradients, refuse_gradients_of, written

NAMES = ("gather", "gather_out", "scatter", "fingerprint", "fingerprint_out", "compress_tail")
"""Ops under ``torch.ops.hybridkv``."""

_PAGES = "int[]? layout=None, SymInt? null_page=None, int threads=1"

_SCHEMAS = (
    f"gather(Tensor[] pools, Tensor page_ids, *, Tensor? rows=None, {_PAGES}) -> Tensor",
    "gather_out(Tensor[] pools, Tensor page_ids, Tensor(a!) out, *, Tensor? rows=None, Tensor[]? handouts=None, "
    f"Tensor(b!)? status=None, str missing='zeros', {_PAGES}) -> ()",
    "scatter(Tensor src, Tensor(a!)[] pools, Tensor page_ids, *, Tensor? rows=None, Tensor[]? handouts=None, "
    f"Tensor(b!)? status=None, {_PAGES}) -> ()",
    f"fingerprint(Tensor[] pools, Tensor page_ids, *, {_PAGES}) -> Tensor",
    f"fingerprint_out(Tensor[] pools, Tensor page_ids, Tensor(a!) out, *, {_PAGES}) -> ()",
    "compress_tail(Tensor kv, Tensor score, Tensor(a!) out, *, int ratio, bool overlap, Tensor norm_weight, float eps, "
    "str row_format, Tensor starts, Tensor positions, Tensor? carry=None, Tensor(b!)? new_carry=None, "
    "Tensor? write_mask=None, Tensor? page_ids=None, int rope_dims=0, float rope_theta=10000.0, "
    "bool rope_interleaved=True, float? yarn_factor=None, int yarn_original_positions=0, float yarn_beta_fast=32.0, "
    "float yarn_beta_slow=1.0, bool yarn_truncate=True, int threads=1) -> ()",
)


def _gather(
    pools: list[Tensor], page_ids: Tensor, *, rows: Tensor | None = None, layout: list[int] | None = None,
    null_page: int | None = None, threads: int = 1,
) -> Tensor:  # fmt: skip
    refuse_gradients_of(pools)
    layout_given = layout_of(layout)
    checked = ops.Pools(pools, layout=layout_given)
    out = shapes.gathered(pools, page_ids, rows, layout_given)
    ops.gather(checked, page_ids, out, rows=rows, null_page=null_page, threads=threads)
    return out


def _gather_out(
    pools: list[Tensor], page_ids: Tensor, out: Tensor, *, rows: Tensor | None = None,
    handouts: list[Tensor] | None = None, status: Tensor | None = None, missing: str = "zeros",
    layout: list[int] | None = None, null_page: int | None = None, threads: int = 1,
) -> None:  # fmt: skip
    refuse_gradients_of(pools)
    refuse_gradients(out=out)
    ops.gather(
        pools, page_ids, out, rows=rows, layout=layout_of(layout), handouts=handouts, status=status, missing=missing,
        null_page=null_page, threads=threads,
    )  # fmt: skip
    written(out, status)


def _scatter(
    src: Tensor, pools: list[Tensor], page_ids: Tensor, *, rows: Tensor | None = None,
    handouts: list[Tensor] | None = None, status: Tensor | None = None, layout: list[int] | None = None,
    null_page: int | None = None, threads: int = 1,
) -> None:  # fmt: skip
    refuse_gradients(src=src)
    refuse_gradients_of(pools)
    ops.scatter(
        src, pools, page_ids, rows=rows, layout=layout_of(layout), handouts=handouts, status=status,
        null_page=null_page, threads=threads,
    )  # fmt: skip
    written(*pools, status)


def _fingerprint(
    pools: list[Tensor], page_ids: Tensor, *, layout: list[int] | None = None, null_page: int | None = None,
    threads: int = 1,
) -> Tensor:  # fmt: skip
    refuse_gradients_of(pools)
    out = shapes.fingerprints(pools, page_ids)
    ops.fingerprint(pools, page_ids, out, layout=layout_of(layout), null_page=null_page, threads=threads)
    return out


def _fingerprint_out(
    pools: list[Tensor], page_ids: Tensor, out: Tensor, *, layout: list[int] | None = None,
    null_page: int | None = None, threads: int = 1,
) -> None:  # fmt: skip
    refuse_gradients_of(pools)
    ops.fingerprint(pools, page_ids, out, layout=layout_of(layout), null_page=null_page, threads=threads)
    written(out)


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
    ops.compress_tail(
        kv, score, out, ratio=ratio, overlap=overlap, norm_weight=norm_weight, eps=eps, rope=rope,
        row_format=row_format_of(row_format), carry=carry, new_carry=new_carry, starts=starts, positions=positions,
        write_mask=write_mask, page_ids=page_ids, threads=threads,
    )  # fmt: skip
    written(out, new_carry)


_KERNELS: dict[str, Callable[..., Any]] = {
    "gather": _gather,
    "gather_out": _gather_out,
    "scatter": _scatter,
    "fingerprint": _fingerprint,
    "fingerprint_out": _fingerprint_out,
    "compress_tail": _compress_tail,
}


def _register() -> torch.library.Library:
    library = torch.library.Library("hybridkv", "DEF")
    for schema in _SCHEMAS:
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for name, kernel in _KERNELS.items():
        for key in ("CPU", "CUDA"):
            library.impl(name, kernel, key)
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")
        torch.library.register_fake(f"hybridkv::{name}", shapes.SHAPES[name], lib=library)
    return library


_LIBRARY = _register()  # what it registers lives as long as it does
