# SPDX-License-Identifier: Apache-2.0
"""Question: what does a gather cost through Python, beside torch's own ways to take pages out of a pool?

Pages are drawn anew for each call, from a pool that no cache holds; the buffer is there already, except for torch's
``pool[idx]``, which makes one. Small gathers show what the call costs.
"""

from __future__ import annotations

import numpy as np
import pytest

import hybridkv as hk

PAGES = (4096, 16384, 37376, 65536)
# At least so many times as fast as index_select(out=) and as pool[idx], of each size.
MUSTS = {4096: 1.4, 16384: 1.4, 37376: 1.9, 65536: 2.1}


def drawn(rng: np.random.Generator, pages: int, count: int) -> list[np.ndarray]:
    return [rng.permutation(pages)[:count].astype(np.int64) for _ in range(8)]


@pytest.mark.parametrize("page_bytes", PAGES)
def test_gather_beside_torch(timer, smoke, page_bytes):
    total, moved = (1 << 22, 1 << 20) if smoke else (1 << 29, 1 << 24)
    pages, count = total // page_bytes, moved // page_bytes
    rng = np.random.default_rng(1)
    pool = np.ones((pages, page_bytes), np.uint8)
    out = np.empty((count, page_bytes), np.uint8)
    lists = drawn(rng, pages, count)
    turn = [0]

    def ids() -> np.ndarray:
        turn[0] += 1
        return lists[turn[0] % len(lists)]

    hk.ops.gather(pool, lists[0], out)
    assert (out == 1).all()
    calls = [lambda: hk.ops.gather(pool, ids(), out), lambda: np.take(pool, ids(), axis=0, out=out, mode="clip")]
    names = ["numpy.take(out=)"]
    try:
        import torch
    except ImportError:
        timer.note("torch is not installed: gather was measured beside numpy alone")
    else:
        torch.set_num_threads(1)
        torch_pool, torch_out = torch.from_numpy(pool), torch.from_numpy(out)
        calls.append(lambda: torch.index_select(torch_pool, 0, torch.from_numpy(ids()), out=torch_out))
        calls.append(lambda: torch_pool[torch.from_numpy(ids())])
        names += ["torch index_select(out=)", "torch pool[idx]"]
    timer.benchmark.pedantic(calls[0], rounds=1 if smoke else 5)
    series = timer.rounds(*calls)
    timer.figure(f"gather of {count} pages of {page_bytes} bytes", series[0])
    for name, times in zip(names, series[1:], strict=True):
        ratios = [theirs / max(ours, 1e-9) for theirs, ours in zip(times, series[0], strict=True)]
        must = {"torch index_select(out=)": MUSTS[page_bytes], "torch pool[idx]": 8.0}.get(name)
        timer.figure(f"{name} over gather, {page_bytes} bytes", ratios, must=must, unit="times", at_least=True)


def test_a_small_gather(timer):
    pool, out = np.zeros((64, 4096), np.uint8), np.empty((4, 4096), np.uint8)
    ids = np.arange(4, dtype=np.int32)
    timer.record("gather of 4 pages of 4 KiB from Python", lambda: hk.ops.gather(pool, ids, out))


def test_a_gather_of_many_arrays(timer):
    layers, ids = [np.zeros((64, 4096), np.uint8) for _ in range(61)], np.zeros(1, np.int32)
    out = np.empty((61, 1, 4096), np.uint8)
    pools = hk.ops.Pools(layers)
    timer.benchmark.pedantic(lambda: hk.ops.gather(pools, ids, out), rounds=2, warmup_rounds=1)
    listed, prepared = timer.rounds(lambda: hk.ops.gather(layers, ids, out), lambda: hk.ops.gather(pools, ids, out))
    timer.figure("gather of 1 page of 61 arrays from Python", listed)
    timer.figure("the same of Pools, checked before", prepared)
    ratios = [theirs / max(ours, 1e-9) for theirs, ours in zip(listed, prepared, strict=True)]
    timer.figure("61 arrays over their Pools", ratios, unit="times")


def test_small_fingerprints(timer):
    pool, ids, out = np.zeros((64, 4096), np.uint8), np.arange(4, dtype=np.int32), np.empty(4, np.uint64)
    timer.record("fingerprints of 4 pages of 4 KiB from Python", lambda: hk.ops.fingerprint(pool, ids, out))
