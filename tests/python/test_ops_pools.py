# SPDX-License-Identifier: Apache-2.0
"""Pools that are checked once: the bytes and the refusals of the arrays themselves, call after call."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv import KernelContract
from hybridkv.kernel_arguments import Access, Span
from hybridkv.kernel_memory import refuse_overlaps
from hybridkv.paged_pool import PagedPool, Reach
from hybridkv.pools import ArrayFacts
from hybridkv.reference import published

IDS = np.array([3, -1, 0], np.int32)


def layers(count: int, pages: int = 5, *, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (pages, 4, 64), dtype=np.uint8) for _ in range(count)]


def test_the_bytes_are_those_of_the_arrays() -> None:
    arrays = layers(7)
    pools = hk.ops.Pools(arrays)
    assert (pools.layers, pools.pages) == (7, 5)
    assert repr(pools) == "Pools(7 x 5 pages of 4 rows of 64 + 0 bytes)"
    for ids in (IDS, np.array([4], np.int64), np.empty(0, np.int32)):
        ours, theirs = (np.full((7, len(ids), 256), 9, np.uint8) for _ in range(2))
        hk.ops.gather(pools, ids, ours)
        hk.ops.gather(arrays, ids, theirs)
        assert np.array_equal(ours, theirs)
        rows = np.zeros_like(ids)
        hk.ops.gather(pools, ids, ours[:, :, :64].copy(), rows=rows, status=np.empty(len(ids), np.int32))
        prints = [np.zeros((7, len(ids)), np.uint64) for _ in range(2)]
        hk.ops.fingerprint(pools, ids, prints[0])
        hk.ops.fingerprint(arrays, ids, prints[1])
        assert np.array_equal(*prints)
    src = np.random.default_rng(2).integers(0, 256, (7, 3, 256), dtype=np.uint8)
    hk.ops.scatter(src, pools, IDS)
    for layer, array in enumerate(arrays):
        assert np.array_equal(array[3].ravel(), src[layer, 0]) and np.array_equal(array[0].ravel(), src[layer, 2])


def test_one_array_is_no_list_of_one() -> None:
    (array,) = layers(1)
    hk.ops.gather(hk.ops.Pools(array), IDS, np.empty((3, 256), np.uint8))
    hk.ops.gather(hk.ops.Pools([array]), IDS, np.empty((1, 3, 256), np.uint8))
    for pools, lead in ((hk.ops.Pools(array), (1, 3)), (hk.ops.Pools([array]), (3,))):
        with pytest.raises(KernelContract, match=r"^out:"):
            hk.ops.gather(pools, IDS, np.empty((*lead, 256), np.uint8))


def test_their_layout_is_theirs() -> None:
    array, layout = np.arange(3 * 96, dtype=np.uint8).reshape(3, 96), hk.ops.PageRows(4, 16, footer_bytes=8)
    pools, ids, rows = hk.ops.Pools(array, layout=layout), np.array([2], np.int32), np.array([1], np.int32)
    ours, theirs = np.zeros((1, 24), np.uint8), np.zeros((1, 24), np.uint8)
    hk.ops.gather(pools, ids, ours, rows=rows)
    hk.ops.gather(array, ids, theirs, rows=rows, layout=layout)
    assert np.array_equal(ours, theirs) and ours.any()
    with pytest.raises(KernelContract, match=r"^layout: expected None, since these Pools have theirs"):
        hk.ops.gather(pools, ids, ours, rows=rows, layout=layout)


def test_as_one_group_of_several_they_are_called_by_its_name() -> None:
    arrays = layers(2)
    arrays[1].flags.writeable = False
    pools: dict[str, Any] = {"kv": hk.ops.Pools(arrays), "index": layers(1, seed=3)[0]}
    ids = dict.fromkeys(pools, IDS)
    out = {"kv": np.empty((2, 3, 256), np.uint8), "index": np.empty((3, 256), np.uint8)}
    hk.ops.gather(pools, ids, out)
    assert np.array_equal(out["kv"][1, 0], arrays[1][3].ravel()) and not out["kv"][:, 1].any()
    with pytest.raises(KernelContract) as refused:
        hk.ops.scatter(out, pools, ids)
    assert refused.value.argument == "pools['kv'][1]"
    with pytest.raises(KernelContract) as refused:
        hk.ops.gather(pools, ids, out, layout={"kv": hk.ops.PageRows(4, 64)})
    assert refused.value.argument == "layout['kv']"
    within = arrays[0].reshape(-1)[256:1024].reshape(3, 256)
    with pytest.raises(KernelContract, match=r"^out\['index'\]: expected memory apart from pools\['kv'\]\[0\]"):
        hk.ops.gather(pools, ids, {**out, "index": within})


def test_they_keep_the_arrays() -> None:
    class Array(np.ndarray):
        """An array that can be watched."""

    array = np.full((4, 64), 7, np.uint8).view(Array)
    gone, pools = weakref.ref(array), hk.ops.Pools([array])
    del array
    gc.collect()
    out = np.zeros((1, 3, 64), np.uint8)
    hk.ops.gather(pools, IDS, out)
    assert gone() is not None and out[0, 0].tolist() == [7] * 64
    del pools
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("what", [{"kv": np.zeros((4, 64), np.uint8)}, [hk.ops.Pools(np.zeros((4, 64), np.uint8))], []])
def test_what_is_no_group_is_refused_when_they_are_made(what: Any) -> None:
    with pytest.raises(KernelContract) as refused:
        hk.ops.Pools(what)
    assert refused.value.argument == ("pools[0]" if what and isinstance(what, list) else "pools")


def test_pools_of_no_pages_hold_nothing() -> None:
    pools, none = hk.ops.Pools([np.empty((0, 64), np.uint8)] * 2), np.array([-1], np.int32)
    out = np.full((2, 1, 64), 5, np.uint8)
    hk.ops.gather(pools, none, out)
    assert not out.any()
    with pytest.raises(KernelContract, match=r"^page_ids"):
        hk.ops.gather(pools, np.zeros(1, np.int32), out)


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    arrays = [torch.full((4, 32), float(n), dtype=torch.bfloat16) for n in range(3)]
    out = torch.empty((3, 1, 32), dtype=torch.bfloat16)
    hk.ops.gather(hk.ops.Pools(arrays), torch.tensor([2]), out)
    assert out[:, 0, 0].tolist() == [0.0, 1.0, 2.0]


def a_pool(name: str, layers: list[tuple[int, int]], pages: int, page_bytes: int) -> PagedPool:
    facts = ArrayFacts(0, (pages, page_bytes), (page_bytes, 1), np.dtype(np.uint8), True, True, None)
    rows, place = (1, page_bytes, page_bytes, 0, page_bytes), (True, None)
    reach = Reach.over(layers, pages, rows)
    return PagedPool(name, layers, rows, pages, True, [facts] * len(layers), 1, reach, place)


def shared(pools: list[PagedPool], spans: list[Span], into_pools: bool) -> bool:
    """Compare every pair."""
    every = [*(span for pool in pools for span in pool.spans()), *spans]

    def conflict(one: Span, other: Span) -> bool:
        kinds = {one.access, other.access}
        if kinds == {Access.POOL} or kinds == {Access.READ}:
            return False
        return Access.WRITTEN in kinds or into_pools

    return any(
        conflict(one, other) and max(one.start, other.start) < min(one.end, other.end)
        for n, one in enumerate(every)
        for other in every[:n]
    )


@pytest.mark.parametrize("seed", range(6))
def test_overlaps_are_those_of_every_pair(seed: int) -> None:
    """Spans and pools at random, crowded so that about half share something."""
    rng = random.Random(seed)
    facts = ArrayFacts(0, (1,), (1,), np.dtype(np.uint8), True, True, None)
    counts = [0, 0]
    for _ in range(400):
        pools = [
            a_pool(
                f"p{n}", [(rng.randrange(4000), rng.choice([32, 40, 300])) for _ in range(rng.randint(1, 4))],
                rng.randint(0, 3), 32,
            )
            for n in range(rng.randint(1, 2))
        ]  # fmt: skip
        spans = []
        for n in range(rng.randint(1, 5)):
            start = rng.randrange(4000)
            access = rng.choice([Access.READ, Access.WRITTEN])
            spans.append(Span(f"s{n}", start, start + rng.choice([0, 1, 8, 60, 200]), access, facts))
        into_pools = rng.random() < 0.5
        expected = shared(pools, spans, into_pools)
        counts[expected] += 1
        if not expected:
            refuse_overlaps(pools, spans, into_pools=into_pools)
            continue
        with pytest.raises(KernelContract, match="apart"):
            refuse_overlaps(pools, spans, into_pools=into_pools)
    assert min(counts) > 60


@pytest.mark.parametrize("address", [-1, 2**63 - 256])
def test_a_layer_that_no_address_reaches(address: int) -> None:
    """The second layer is as the first in all else, and is looked at nevertheless."""

    class At:
        """Device memory by its address."""

        def __init__(self, at: int) -> None:
            self.__cuda_array_interface__ = {"shape": (4, 64), "typestr": "|u1", "data": (at, False), "version": 3}

    with pytest.raises(KernelContract, match="63 bits") as refused:
        hk.ops.Pools([At(1 << 32), At(address)])
    assert refused.value.argument == "pools[1]"


def test_a_conversion_takes_them_as_their_arrays() -> None:
    source, target = published.plain("float32", 4, page_rows=1), published.plain("float32", 4, page_rows=2)
    arrays = [np.arange(12, dtype=np.float32).reshape(3, 4) + layer for layer in range(2)]
    ids, out_ids = np.int32([[2, 0, 1]]), np.int32([[0, 1]])
    outs = [[np.zeros((2, 8), np.float32) for _ in arrays] for _ in range(2)]
    hk.ops.convert(arrays, ids, outs[0], out_ids, source=source, target=target)
    made = hk.ops.Pools(outs[1], layout=target.layout)
    hk.ops.convert(hk.ops.Pools(arrays), ids, made, out_ids, source=source, target=target)
    assert np.array_equal(outs[0], outs[1])
    with pytest.raises(hk.KernelContract, match="out: expected 2 rows of 16 bytes") as refused:
        hk.ops.convert(arrays, ids, hk.ops.Pools(outs[1]), out_ids, source=source, target=target)
    assert refused.value.field == "out"
    with pytest.raises(hk.KernelContract) as refused:
        hk.ops.convert(made, out_ids, made, out_ids, source=target, target=target)
    assert refused.value.field.startswith(("out", "pools"))
