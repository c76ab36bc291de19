# SPDX-License-Identifier: Apache-2.0
"""Question: what does a call cost, as an op of torch, through ``hk.ops``, and with pools that were checked before?

Little is copied, 4 pages of 4 KiB or one page of 61 layers, so that what is measured is the call. ``index_select`` does
the same copies for one pool, and is called once a layer for 61. An op that does nothing, registered by both ways that
torch has, shows what the registration costs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hybridkv as hk

torch = pytest.importorskip("torch")

OPS = pytest.importorskip("hybridkv.adapters.torch_ops") and torch.ops.hybridkv


def compared(timer, head: str, calls: dict[str, Callable[[], object]]) -> None:
    """Put each call into the table, and what it costs over the first, round by round."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first = next(iter(calls.values()))
        timer.benchmark.pedantic(first, rounds=2, warmup_rounds=1)
        series = timer.rounds(*calls.values())
    finally:
        torch.set_num_threads(threads)
    for name, times in zip(calls, series, strict=True):
        timer.figure(f"{head}: {name}", times)
        ratios = [ours / max(theirs, 1e-9) for ours, theirs in zip(times, series[0], strict=True)]
        if times is not series[0]:
            timer.figure(f"{head}: {name} over the first", ratios, unit="times")


def test_a_small_gather(timer):
    pool, ids = torch.zeros((64, 4096), dtype=torch.uint8), torch.arange(4)
    out, pools = torch.empty((4, 4096), dtype=torch.uint8), hk.ops.Pools(pool)
    listed = out[None]
    with torch.no_grad():
        compared(timer, "4 pages of 4 KiB", {
            "index_select(out=)": lambda: torch.index_select(pool, 0, ids, out=out),
            "hk.ops.gather": lambda: hk.ops.gather(pool, ids, out),
            "hk.ops.gather of Pools": lambda: hk.ops.gather(pools, ids, out),
            "torch.ops gather_out": lambda: OPS.gather_out([pool], ids, listed),
            "torch.ops gather": lambda: OPS.gather([pool], ids),
        })  # fmt: skip


def test_a_gather_of_61_layers(timer):
    layers, ids = [torch.zeros((64, 4096), dtype=torch.uint8) for _ in range(61)], torch.zeros(1, dtype=torch.int64)
    out, pools = torch.empty((61, 1, 4096), dtype=torch.uint8), hk.ops.Pools(layers)

    def one_by_one() -> None:
        for layer, pool in enumerate(layers):
            torch.index_select(pool, 0, ids, out=out[layer])

    with torch.no_grad():
        compared(timer, "1 page of 61 layers", {
            "hk.ops.gather of Pools": lambda: hk.ops.gather(pools, ids, out),
            "hk.ops.gather": lambda: hk.ops.gather(layers, ids, out),
            "torch.ops gather_out": lambda: OPS.gather_out(layers, ids, out),
            "index_select(out=), layer by layer": one_by_one,
        })  # fmt: skip


def test_what_a_registration_costs(timer):
    def nothing(pools: list[torch.Tensor], page_ids: torch.Tensor, out: torch.Tensor) -> None:
        """What a kernel would be."""

    nothing.__annotations__ |= {"pools": list[torch.Tensor], "page_ids": torch.Tensor, "out": torch.Tensor}
    nothing.__annotations__["return"] = None
    pool, ids = torch.zeros((64, 4096), dtype=torch.uint8), torch.arange(4)
    out = torch.empty((1, 4, 4096), dtype=torch.uint8)
    with torch.library._scoped_library("hybridkv_bench", "DEF") as library, torch.no_grad():
        library.define("bare(Tensor[] pools, Tensor page_ids, Tensor(a!) out) -> ()")
        library.impl("bare", nothing, "CPU")
        torch.library.custom_op("hybridkv_bench::custom", nothing, mutates_args=("out",))
        ops = torch.ops.hybridkv_bench
        compared(timer, "an op that does nothing", {
            "Library.define and impl": lambda: ops.bare([pool], ids, out),
            "custom_op": lambda: ops.custom([pool], ids, out),
        })  # fmt: skip
