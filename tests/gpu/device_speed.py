# SPDX-License-Identifier: Apache-2.0
"""Speed on a device as a fraction of copies of the same bytes, measured in turns in one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import hybridkv as hk
from hybridkv.reference import PUBLISHED, Rope, Yarn

TOTAL = 2 << 30  # bytes that a measurement moves at a time
ROUNDS = 15
CALLS = 4  # of a round


def measurements() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield rows K1 to K4 of the goals: name and measurement."""
    for ratio, overlap, floor in ((4, True, 4242), (128, False, 2053)):
        for tokens in (16_384, 65_536):
            name = f"K1 compress_tail, ratio {ratio}, {tokens} tokens"
            yield name, partial(compress, ratio, overlap, floor, tokens)
        yield f"K2 compress_tail, ratio {ratio}, 256 requests of a token in a graph", partial(step, ratio, overlap)
    for size in (4096, 16_384, 37_376, 65_536):
        yield f"K3 gather, pages of {size}", partial(pages, size)
    yield "K3 gather, rows of 584 in pages of 37,376", rows
    yield "K3 gather with hand-outs, pages of 37,376", partial(pages, 37_376, verified=True)
    yield "K3 scatter, pages of 37,376", partial(pages, 37_376, scatters=True)
    yield "fingerprint, pages of 37,376", fingerprints
    for size in (4096, 16_384, 65_536):
        yield f"K4 device to host, pages of {size}", partial(to_host, size)
        yield f"K4 host to device, pages of {size}", partial(to_host, size, back=True)
    yield "K3 decode, 8 pages of 3 groups in a graph", decode


def _milliseconds(body: Callable[[], Any]) -> float:
    """Time a body on the stream; the device sleeps first, until all calls stand in its queue."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(3_000_000)  # cycles
    start.record()
    for _ in range(CALLS):
        body()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / CALLS


def _in_turns(bodies: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Time each body once a round, after a round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in bodies}
    for number in range(ROUNDS + 1):
        for name, body in bodies.items():
            taken = _milliseconds(body)
            if number:
                times[name].append(taken)
    return times


def _told(times: dict[str, list[float]], ours: str, base: str, moved: int) -> str:
    ratio = statistics.median(b / a for a, b in zip(times[ours], times[base], strict=True))
    rate = moved / statistics.median(times[ours]) / 1e6
    rest = [
        f"{name} {statistics.median(b / a for a, b in zip(times[ours], times[name], strict=True)):.2f}x slower"
        for name in times
        if name not in (ours, base)
    ]
    return ", ".join([f"{ratio:.3f} of {base}", f"{rate:,.0f} GB/s", *rest])


def _pool(size: int, pages: int) -> Any:
    import torch

    return torch.randint(0, 255, (pages, size), dtype=torch.uint8, device="cuda")


def pages(size: int, *, verified: bool = False, scatters: bool = False) -> str:
    """Measure whole pages at random ids beside a copy of the same bytes."""
    import torch

    count = TOTAL // size
    pool, out = _pool(size, count), torch.empty((count, size), dtype=torch.uint8, device="cuda")
    ids = torch.randperm(count, device="cuda").int()
    wide = ids.long()
    options: dict[str, Any] = {}
    if verified:
        counts = torch.ones(count, dtype=torch.int64, device="cuda")
        options = {"handouts": (counts, counts.clone()), "status": torch.zeros_like(ids)}
    ours = partial(hk.ops.scatter, out, pool, ids) if scatters else partial(hk.ops.gather, pool, ids, out, **options)
    bodies: dict[str, Callable[[], Any]] = {"ours": ours, "copy": lambda: out.copy_(pool)}
    if not scatters:
        bodies["torch index_select"] = lambda: torch.index_select(pool, 0, wide, out=out)
    return _told(_in_turns(bodies), "ours", "copy", 2 * count * size)


def rows() -> str:
    """Measure rows of 576 bytes and their footers of 8 at random places."""
    import torch

    count = 1 << 20
    pool = _pool(37_376, 16_384)
    places = torch.randperm(16_384 * 64, device="cuda")[:count]
    ids, rows_of = (places // 64).int(), (places % 64).int()
    out = torch.empty((count, 584), dtype=torch.uint8, device="cuda")
    other = torch.empty_like(out)
    layout = hk.ops.PageRows(64, 576, None, 8)
    times = _in_turns(
        {
            "ours": lambda: hk.ops.gather(pool, ids, out, rows=rows_of, layout=layout),
            "copy": lambda: other.copy_(out),
        }
    )
    return _told(times, "ours", "copy", 2 * count * 584)


def fingerprints() -> str:
    """Measure fingerprints beside a copy, which moves twice the bytes."""
    import torch

    count = TOTAL // 37_376
    pool, out = _pool(37_376, count), torch.empty((count, 37_376), dtype=torch.uint8, device="cuda")
    ids, prints = torch.randperm(count, device="cuda").int(), torch.zeros(count, dtype=torch.int64, device="cuda")
    bodies = {"ours": lambda: hk.ops.fingerprint(pool, ids, prints), "copy": lambda: out.copy_(pool)}
    return _told(_in_turns(bodies), "ours", "copy", count * 37_376)


def to_host(size: int, *, back: bool = False) -> str:
    """Measure pages through a staging buffer of the device and one copy, beside that copy alone."""
    import torch

    count = (TOTAL // 4) // size
    pool, stage = _pool(size, 2 * count), torch.empty((count, size), dtype=torch.uint8, device="cuda")
    host = torch.empty((count, size), dtype=torch.uint8, pin_memory=True)
    ids = torch.randperm(2 * count, device="cuda")[:count].int()

    def ours() -> None:
        if back:
            stage.copy_(host, non_blocking=True)
            hk.ops.scatter(stage, pool, ids)
        else:
            hk.ops.gather(pool, ids, stage)
            host.copy_(stage, non_blocking=True)

    def copy() -> None:
        if back:
            stage.copy_(host, non_blocking=True)
        else:
            host.copy_(stage, non_blocking=True)

    return _told(_in_turns({"ours": ours, "pinned copy": copy}), "ours", "pinned copy", count * size)


def _tail(ratio: int, overlap: bool, tokens: int, requests: int) -> Callable[[], None]:
    """Return a call over rows in bfloat16 of DeepSeek-V4's shape, `tokens` of each request."""
    import torch

    c, count = 2 if overlap else 1, tokens * requests
    row_format = PUBLISHED["fp8_ds_mla"]
    columns = -(-(tokens + ratio) // ratio // row_format.page_rows) + 1
    kv, score = (torch.randn((count, 512 * c), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.zeros((requests * columns, row_format.page_stride), dtype=torch.uint8, device="cuda")
    carry = torch.zeros((requests, ratio * c, 1024 * c), device="cuda")
    lists: dict[str, Any] = {
        "starts": torch.arange(requests + 1, device="cuda").int() * tokens,
        # Of single tokens each closes a window: the dearest step there is.
        "positions": torch.full((requests,), ratio - 1 if tokens == 1 else 0, device="cuda").int(),
        "page_ids": torch.arange(requests * columns, device="cuda").int().reshape(requests, columns),
    }
    return partial(
        hk.ops.compress_tail, kv, score, out, ratio=ratio, overlap=overlap, eps=1e-6,
        norm_weight=torch.ones(512, device="cuda"), rope=Rope(64, 160000.0, Yarn(16.0, 65536)), row_format=row_format,
        carry=carry, new_carry=carry, **lists,
    )  # fmt: skip


def compress(ratio: int, overlap: bool, floor: int, tokens: int) -> str:
    """Measure a prompt beside a copy that moves the floor's bytes, read and written together."""
    import torch

    calls = max((TOTAL // 4) // (floor * tokens), 1)
    ours = [_tail(ratio, overlap, tokens, 1) for _ in range(calls)]  # memory of their own: nothing is cached
    source = torch.zeros(calls * floor * tokens // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def all_calls() -> None:
        for call in ours:
            call()

    times = _in_turns({"ours": all_calls, "copy": lambda: target.copy_(source)})
    each = statistics.median(times["ours"]) / calls * 1000
    return _told(times, "ours", "copy", calls * floor * tokens) + f", {each:.1f} us a call"


def step(ratio: int, overlap: bool) -> str:
    """Measure a decode step in a graph, in microseconds."""
    import torch

    call = _tail(ratio, overlap, 1, 256)
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            call()
    taken = statistics.median(_milliseconds(graph.replay) for _ in range(ROUNDS))
    return f"{taken * 10:.2f} us a call"


def decode() -> str:
    """Measure one small call of several groups in a graph, in microseconds."""
    import torch

    sizes = {"kv": 37_376, "indexer": 8448, "window": 4096}
    pools = {k: _pool(n, 256) for k, n in sizes.items()}
    ids = {k: torch.randperm(256, device="cuda")[:8].int() for k in sizes}
    out = {k: torch.empty((8, n), dtype=torch.uint8, device="cuda") for k, n in sizes.items()}
    hk.ops.gather(pools, ids, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            hk.ops.gather(pools, ids, out)
    taken = statistics.median(_milliseconds(graph.replay) for _ in range(ROUNDS))
    return f"{taken * 10:.2f} us a call"
