# SPDX-License-Identifier: Apache-2.0
"""Tail compression through Python, beside the same formulas in torch, eager: DeepSeek-V4's shapes, 584-byte rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.reference import PUBLISHED, Rope, Yarn

WIDTH = 512
ROPE = Rope(64, 160000.0, Yarn(16.0, 65536))
SHAPES = {"C4": (4, True), "C128": (128, False)}


def seconds(work: Callable[[], object], rounds: int) -> list[float]:
    work()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return taken


def eager(torch: Any, kv: Any, score: Any, ratio: int, overlap: bool, turns: Any) -> Callable[[], object]:
    """Pool, norm, rotate and quantise as a model's code would, in float32."""

    def slots(rows: Any, empty: float) -> Any:
        windows = rows.float().view(-1, ratio, rows.shape[1])
        if not overlap:
            return windows
        first = torch.full_like(windows[:1, :, :WIDTH], empty)
        return torch.cat([torch.cat([first, windows[:-1, :, :WIDTH]]), windows[..., WIDTH:]], dim=1)

    def run() -> object:
        weights = torch.softmax(slots(score, float("-inf")), dim=1)
        y = (weights * slots(kv, 0.0)).sum(dim=1)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        rotated = torch.view_as_real(torch.view_as_complex(y[:, 448:].reshape(len(y), 32, 2)) * turns).flatten(1)
        tiles = y[:, :448].reshape(len(y), 7, 64)
        scales = torch.exp2(torch.ceil(torch.log2(tiles.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448)))
        return (tiles / scales).to(torch.float8_e4m3fn), scales, rotated.to(torch.bfloat16)

    return run


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_compress_beside_torch(timer, smoke, shape):
    torch = pytest.importorskip("torch")
    ratio, overlap = SHAPES[shape]
    tokens, rounds = (1024, 2) if smoke else (16384, 9)
    width = WIDTH * (2 if overlap else 1)
    rows = torch.randn(tokens, 2 * width, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    kv, score = rows[:, :width], rows[:, width:]
    row_format = PUBLISHED["fp8_ds_mla"]
    out = np.zeros((tokens // ratio // 64 + 1, row_format.page_stride), np.uint8)
    arguments = {
        "ratio": ratio, "overlap": overlap, "norm_weight": np.ones(WIDTH, np.float32), "eps": 1e-6, "rope": ROPE,
        "row_format": row_format, "starts": np.array([0, tokens], np.int32), "positions": np.zeros(1, np.int32),
    }  # fmt: skip
    angles = np.arange(tokens // ratio)[:, None] * ratio * ROPE.frequencies()
    turns = torch.from_numpy(np.exp(1j * angles).astype(np.complex64))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        theirs = seconds(eager(torch, kv, score, ratio, overlap, turns), rounds)
    finally:
        torch.set_num_threads(threads)
    ours = timer.benchmark.pedantic(
        seconds, args=(lambda: hk.ops.compress_tail(kv, score, out, **arguments), rounds), rounds=1
    )
    size = tokens * 4 * width
    timer.figure(f"compress {shape}, GB/s", [size / s / 1e9 for s in ours], must=10, aim=15, unit="GB/s", at_least=True)
    ratios = [t / o for t, o in zip(theirs, ours, strict=True)]
    timer.figure(f"torch eager over compress {shape}", ratios, must=40 if overlap else 30, unit="times", at_least=True)
    few = [np.array([0, 1], np.int32), np.array([ratio - 1], np.int32)]
    carry = np.zeros((1, ratio * (2 if overlap else 1), 2 * width), np.float32)
    step = arguments | {"starts": few[0], "positions": few[1], "carry": carry, "new_carry": carry}
    calls = [s * 1e6 for s in seconds(lambda: hk.ops.compress_tail(kv[:1], score[:1], out, **step), 20 * rounds)]
    timer.figure(f"compress {shape}, one token of one request that closes a window", calls, unit="us")
