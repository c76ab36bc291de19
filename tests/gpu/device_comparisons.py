# SPDX-License-Identifier: Apache-2.0
"""Same bytes and codes on a device as on the CPU, in graphs too, and beside a writer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from device_places import Array, Place, TorchDevice

import hybridkv as hk
from hybridkv import _core
from hybridkv.reference import PUBLISHED, Rope, Yarn


def driver(place: Place) -> str:
    """Tell what device is checked."""
    facts = _core.cuda_facts()
    assert facts["available"], facts["reason"]
    name = type(place).__name__
    if name == "TorchDevice":
        import torch

        name = torch.cuda.get_device_name()
    return f"{name}, driver {facts['driver_version']}, image of {facts['image_bytes']} bytes"


@dataclass
class World:
    """One random group."""

    pools: list[Array]
    ids: Array
    rows: Array | None
    layout: hk.ops.PageRows
    piece_bytes: int
    null_page: int | None
    counts: Array | None
    expected: Array | None


def random_world(seed: int, *, unique: bool) -> World:
    """Draw a group: shape, padding, footers, ids of either width, hand-outs or none."""
    rng = np.random.default_rng(seed)
    unit = int(rng.choice([1, 4, 8, 16, 16]))
    rows = int(rng.choice([1, 2, 7, 64]))
    row_bytes = unit * int(rng.integers(1, int(rng.choice([4, 80, 300]))))
    footer = unit * int(rng.choice([0, 0, 1, 2]))
    step = math.gcd(16, row_bytes, footer)  # what strides and offsets have to be multiples of
    row_stride = row_bytes + step * int(rng.choice([0, 0, 1, 4]))
    offset = rows * row_stride + step * int(rng.choice([0, 0, 3]))
    page_bytes = -(-(offset + rows * footer) // 16) * 16 + 16 * int(rng.choice([0, 1, 5]))
    pages, layers = int(rng.integers(1, 40)), int(rng.choice([1, 1, 3]))
    by_row = bool(rng.integers(2))
    kind = np.int64 if rng.integers(2) else np.int32
    places = rng.permutation(pages * (rows if by_row else 1))
    count = int(rng.integers(0, len(places) + 1))
    places = places[:count] if unique else rng.choice(places, count)
    ids = (places // rows if by_row else places).astype(kind)
    ids[rng.random(count) < 0.1] = -1
    counts = expected = None
    if rng.integers(2):
        counts = rng.integers(1, 5, pages, np.uint64)
        expected = np.where(ids < 0, 0, counts[ids]) + (rng.random(count) < 0.2)
        expected = expected.astype(np.uint64)
    return World(
        [rng.integers(0, 256, (pages, page_bytes), np.uint8) for _ in range(layers)], ids,
        (places % rows).astype(kind) if by_row else None, hk.ops.PageRows(rows, row_bytes, row_stride, footer, offset),
        (row_bytes + footer) * (1 if by_row else rows), int(rng.integers(pages)) if rng.integers(2) else None,
        counts, expected,
    )  # fmt: skip


def _options(place: Place | None, world: World, status: Any) -> dict[str, Any]:
    """Return the keyword arguments of a copy, for the host or a device."""

    def there(array: Array | None) -> Any:
        return array if place is None or array is None else place.put(array)

    handouts = None if world.counts is None else (there(world.counts), there(world.expected))
    return {
        "rows": there(world.rows), "layout": world.layout, "handouts": handouts, "status": status,
        "null_page": world.null_page,
    }  # fmt: skip


def gather(place: Place, rounds: int) -> str:
    """Compare gathers of random groups."""
    moved = 0
    for seed in range(rounds):
        world = random_world(seed, unique=False)
        out = np.full((len(world.pools), len(world.ids), world.piece_bytes), 9, np.uint8)
        status = np.full(len(world.ids), 7, np.int32)
        there, told = place.put(out), place.put(status)
        missing = "skip" if seed % 3 == 0 else "zeros"
        hk.ops.gather(
            [place.put(pool) for pool in world.pools], place.put(world.ids), there, missing=missing,
            **_options(place, world, told),
        )  # fmt: skip
        hk.ops.gather(world.pools, world.ids, out, missing=missing, **_options(None, world, status))
        assert (place.get(there) == out).all(), f"bytes of group {seed}"
        assert (place.get(told) == status).all(), f"statuses of group {seed}"
        moved += out.nbytes
    return f"{rounds} groups, {moved / 1e6:.0f} MB equal"


def scatter(place: Place, rounds: int) -> str:
    """Compare scatters of random groups, padding too."""
    for seed in range(rounds):
        world = random_world(seed, unique=True)
        source = np.random.default_rng(seed).integers(
            0, 256, (len(world.pools), len(world.ids), world.piece_bytes), np.uint8
        )
        status = np.full(len(world.ids), 7, np.int32)
        pools, told = [place.put(pool) for pool in world.pools], place.put(status)
        hk.ops.scatter(place.put(source), pools, place.put(world.ids), **_options(place, world, told))
        hk.ops.scatter(source, world.pools, world.ids, **_options(None, world, status))
        for there, pool in zip(pools, world.pools, strict=True):
            assert (place.get(there) == pool).all(), f"bytes of group {seed}"
        assert (place.get(told) == status).all(), f"statuses of group {seed}"
    return f"{rounds} groups equal"


def fingerprint(place: Place, rounds: int) -> str:
    """Compare fingerprints of random pages, and one with the definition."""
    known = (np.arange(37_376) * np.int64(7) % 251).astype(np.uint8).reshape(1, -1)
    out = place.put(np.zeros(1, np.uint64))
    hk.ops.fingerprint(place.put(known), place.put(np.zeros(1, np.int32)), out)
    assert int(place.get(out).view(np.uint64)[0]) == 0x2766CAAA62C17491, "the value of docs/kernels.md"
    for seed in range(rounds):
        rng = np.random.default_rng(seed)
        size = 8 * int(rng.integers(1, 700))
        pools = [rng.integers(0, 256, (6, size), np.uint8) for _ in range(2)]
        layout = hk.ops.PageRows(2, size // 2 // 8 * 8 or size, None) if size >= 16 and seed % 2 else None
        ids = rng.integers(-1, 6, 9).astype(np.int32)
        host = np.zeros((2, 9), np.uint64)
        there = place.put(host)
        hk.ops.fingerprint([place.put(pool) for pool in pools], place.put(ids), there, layout=layout)
        hk.ops.fingerprint(pools, ids, host, layout=layout)
        assert (place.get(there).view(np.uint64) == host).all(), f"group {seed}"
    return f"{rounds} groups equal"


@dataclass
class Tail:
    """The arguments of one random compress_tail, and what it writes into."""

    arguments: dict[str, Any]
    out: Array
    new_carry: Array
    windows: int


def random_tail(seed: int, most_rows: int = 300) -> Tail:
    """Draw a call: published row, ratio, requests at positions of their own, masks, pages that are not held."""
    rng = np.random.default_rng(seed)
    row_format = PUBLISHED[sorted(PUBLISHED)[seed % len(PUBLISHED)]].paged(int(rng.choice([1, 5, 64])))
    ratio, overlap = int(rng.choice([1, 2, 4, 6, 16, 128])), bool(rng.integers(2))
    width, c = row_format.channels, 2 if overlap else 1
    requests = int(rng.integers(1, 18))
    lengths = rng.integers(0, most_rows // requests + 2, requests)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    positions = np.where(rng.random(requests) < 0.4, 0, rng.integers(0, 5 * ratio + 2, requests)).astype(np.int32)
    kv, score = rng.standard_normal((2, starts[-1], c * width)).astype(np.float32)
    if seed % 2:
        kv, score = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in (kv, score))
    if seed % 7 == 0:
        score = score * np.float32(40) if score.dtype == np.float32 else score
    columns = int((positions + lengths).max() // ratio // row_format.page_rows) + 1
    pages = requests * columns + 1
    page_ids = rng.permutation(pages)[: requests * columns].reshape(requests, columns).astype(np.int32)
    page_ids[rng.random(page_ids.shape) < 0.1] = -1
    carry = rng.standard_normal((requests, c * ratio, 2 * c * width)).astype(np.float32)
    arguments = {
        "kv": kv, "score": score, "ratio": ratio, "overlap": overlap, "eps": 1e-6, "row_format": row_format,
        "norm_weight": rng.standard_normal(width).astype(np.float32), "carry": carry, "starts": starts,
        "rope": Rope(64, 160000.0, Yarn(16.0, 65536)), "positions": positions, "page_ids": page_ids,
        "write_mask": np.where(rng.random(requests) < 0.3, positions + ratio, 0).astype(np.int32),
    }  # fmt: skip
    out = rng.integers(0, 256, (pages, -(-row_format.page_bytes // 576 // 16) * 576 * 16), np.uint8)
    windows = int(((positions + lengths) // ratio - positions // ratio).sum())
    return Tail(arguments, out, np.full_like(carry, 7), windows)


def _compress(arguments: dict[str, Any], out: Any, new_carry: Any) -> None:
    given = dict(arguments)
    hk.ops.compress_tail(given.pop("kv"), given.pop("score"), out, new_carry=new_carry, **given)


def compress_tail(place: Place, rounds: int) -> str:
    """Compare calls of every row format: pages with what lies between their rows, and carries, to the byte."""
    windows = 0
    for seed in range(rounds):
        tail = random_tail(seed, 300 if rounds > 50 else 40)
        there = {k: place.put(v) if isinstance(v, np.ndarray) else v for k, v in tail.arguments.items()}
        out, kept = place.put(tail.out), place.put(tail.new_carry)
        _compress(there, out, kept)
        _compress(tail.arguments, tail.out, tail.new_carry)
        assert (place.get(out) == tail.out).all(), f"rows of call {seed}"
        assert (place.get(kept) == tail.new_carry).all(), f"carry of call {seed}"
        windows += tail.windows
    return f"{rounds} calls, {windows} windows equal"


def out_of_range(place: Place) -> str:
    """See that ids behind the pool are told and touch nothing."""
    pool, status = place.put(np.ones((4, 16), np.uint8)), place.put(np.zeros(3, np.int32))
    out = place.put(np.full((3, 16), 9, np.uint8))
    hk.ops.gather(pool, place.put(np.array([4, -2, 0], np.int32)), out, status=status)
    assert place.get(status).tolist() == [4, 4, 0]
    assert place.get(out).sum(axis=1).tolist() == [0, 0, 16]
    return "told, zeros"


def graph() -> str:
    """Capture gather, fingerprint and scatter of three groups, replay them on other ids and other bytes."""
    import torch

    torch.manual_seed(1)
    sizes = {"kv": 37_376, "indexer": 8448, "window": 4096}
    pools = {k: torch.randint(0, 256, (64, n), dtype=torch.uint8, device="cuda") for k, n in sizes.items()}
    back = {k: torch.zeros_like(pool) for k, pool in pools.items()}
    ids = {k: torch.randperm(64, device="cuda")[:16].int() for k in sizes}
    out = {k: torch.zeros((16, n), dtype=torch.uint8, device="cuda") for k, n in sizes.items()}
    prints = {k: torch.zeros(16, dtype=torch.int64, device="cuda") for k in sizes}

    def calls() -> None:
        hk.ops.gather(pools, ids, out)
        hk.ops.fingerprint(pools, ids, prints)
        hk.ops.scatter(out, back, ids)

    calls()  # loads the code
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        calls()
    for _ in range(5):
        for k in sizes:
            pools[k].random_(0, 256)
            ids[k].copy_(torch.randperm(64, device="cuda")[:16])
            back[k].zero_()
        captured.replay()
        torch.cuda.synchronize()
        for k in sizes:
            assert torch.equal(out[k], pools[k][ids[k].long()]), f"gather of {k}"
            assert torch.equal(back[k][ids[k].long()], out[k]), f"scatter of {k}"
            host = np.zeros(16, np.int64)
            hk.ops.fingerprint(pools[k].cpu().numpy(), ids[k].cpu().numpy(), host)
            assert (prints[k].cpu().numpy() == host).all(), f"fingerprint of {k}"
    return "3 calls of 3 groups, 5 replays equal"


def compress_graph() -> str:
    """Capture a decode step of compress_tail with its carry in place, replay it token by token."""
    import torch

    row_format, ratio, requests, steps = PUBLISHED["fp8_ds_mla"], 4, 64, 13
    rng = np.random.default_rng(5)
    rows = (rng.standard_normal((steps, 2, requests, 1024)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    ring = np.zeros((requests, 8, 2048), np.float32)
    out = np.zeros((requests, row_format.page_stride), np.uint8)
    arguments: dict[str, Any] = {
        "kv": rows[0, 0], "score": rows[0, 1], "norm_weight": np.ones(512, np.float32),
        "starts": np.arange(requests + 1, dtype=np.int32), "positions": np.zeros(requests, np.int32),
        "page_ids": np.arange(requests, dtype=np.int32)[:, None],
    }  # fmt: skip
    fixed = {"ratio": ratio, "overlap": True, "eps": 1e-6, "row_format": row_format, "rope": None}
    place = TorchDevice()
    there = {name: place.put(array) for name, array in arguments.items()}
    carry, pages = torch.from_numpy(ring).cuda(), torch.from_numpy(out).cuda()

    def call() -> None:
        _compress(there | fixed | {"carry": carry}, pages, carry)

    call()  # loads the code
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        call()
    carry.zero_()
    pages.zero_()
    for step in range(steps):
        for name, index in (("kv", 0), ("score", 1)):
            arguments[name] = rows[step, index]
            there[name].copy_(place.put(rows[step, index]))
        arguments["positions"] = np.full(requests, step, np.int32)
        there["positions"].fill_(step)
        captured.replay()
        torch.cuda.synchronize()
        _compress(arguments | fixed | {"carry": ring}, out, ring)
        assert (pages.cpu().numpy() == out).all(), f"rows at step {step}"
        assert (carry.cpu().numpy() == ring).all(), f"carry at step {step}"
    return f"{steps} replays of {requests} requests equal"


def writer() -> str:
    """Gather pages that another stream hands out again and overwrites: what is OK holds its owner's bytes alone."""
    import torch

    pages, words, part = 2048, 8192, 128
    pool = torch.ones((pages, words), dtype=torch.int64, device="cuda")
    counts = torch.ones(pages, dtype=torch.int64, device="cuda")
    ids = torch.arange(pages, dtype=torch.int32, device="cuda")
    status = torch.zeros(pages, dtype=torch.int32, device="cuda")
    out = torch.zeros_like(pool)
    aside = torch.cuda.Stream()
    seen = [0, 0, 0]
    for number in range(2, 130):
        expected = counts.clone()
        torch.cuda.synchronize()
        when = number % (pages // part)  # so many parts are written before the gather is launched
        for turn, first in enumerate(range(0, pages, part)):
            if turn == when:
                hk.ops.gather(pool, ids, out, handouts=(counts, expected), status=status)
            with torch.cuda.stream(aside):
                counts[first : first + part] += 1
                pool[first : first + part] = number
        torch.cuda.synchronize()
        fine = status == 0
        sound = (out == number - 1).all(dim=1)
        assert bool(sound[fine].all()), f"round {number}: bytes of the next owner under OK"
        assert not bool(out[~fine].any()), f"round {number}: bytes of a stale page"
        for code in range(3):
            seen[code] += int((status == code).sum())
    return f"ok {seen[0]}, stale {seen[1]}, changed {seen[2]}; none mixed"
