# SPDX-License-Identifier: Apache-2.0
"""Pools of a capture against the memory that the cache is bound to: what is another place is refused, views are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from graph_cases import OnDevice
from hybridkv.graph import Padding, Replay, Staging, Topology
from ticket_support import assert_named

PAGES, BLOCK = 8, 4
BYTES = 32  # of a page
strided = np.lib.stride_tricks.as_strided


def cache_of(arrays: Any, *, layers: int = 1, pages: int = PAGES, page_bytes: int = BYTES) -> Any:
    group = hk.CacheGroup(
        "kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=page_bytes, layers=tuple(range(layers))
    )
    cache = hk.HybridCache(hk.CacheSpec(BLOCK, [group]), blocks=16, pages={"kv": pages}, verify="off")
    if arrays is not None:
        cache.bind("kv", arrays)
    return cache


def captured(cache: Any, pool: Any, padding: object = PAGES, **more: Any) -> Any:
    return Topology.capture({"kv": pool}, cache.spec, max_blocks=2, padding=padding, cache=cache, **more)


def rows(pages: int = PAGES + 1) -> Any:
    return np.zeros((pages, BLOCK))


# -- what is refused ---------------------------------------------------------------------------------


def test_padding_in_front_of_a_pool_that_is_bound_from_its_start_writes_into_a_published_page() -> None:
    """The null page is page 0, and the cache was bound to it: counts agree, addresses do not."""
    pool = rows()
    cache = cache_of(pool[:PAGES])
    keys = hk.block_keys(range(5), BLOCK, identity=cache.spec.identity)
    cache.insert(keys[:1])
    with cache.match(keys).lease as lease:
        (page,) = lease.page_ids("kv")
    pool[page] = 7.0
    padding = Padding.null(0, first=1)
    staging = Staging(cache.spec, max_blocks=2, padding=padding, buckets=(2,), cache=cache)
    staging.blank()
    slots = staging.buffers()["slots.kv"][:, 0]
    kept = pool.copy()
    pool[slots // BLOCK, slots % BLOCK] = 99.0  # what a kernel does with padding
    assert pool[page].tolist() == [99.0, 7.0, 7.0, 7.0]
    pool[...] = kept
    with pytest.raises(hk.ArgumentError) as caught:
        Topology.capture({"kv": pool}, cache.spec, staging=staging, cache=cache)
    assert_named(caught.value)
    assert caught.value.field == "buffers[kv]"
    assert hex(pool.__array_interface__["data"][0]) in caught.value.expected
    cache.evict(keys)
    cache.reset()
    cache.bind("kv", pool[1:])
    assert Topology.capture({"kv": pool}, cache.spec, staging=staging, cache=cache).route([]) == Replay(2, 0)


WRONG: dict[str, tuple[Callable[[Any], Any], object]] = {
    "a page too far": (lambda p: p[1:], PAGES - 1),
    "a page too far, with room behind": (lambda p: p[1:], PAGES),
    "page 0 in front": (lambda p: p, Padding.null(0, first=1)),
    "no null page in front": (lambda p: p[1:], Padding.skip()),
    "two pages in front": (lambda p: p, Padding.null(0, first=2)),
    "backwards": (lambda p: p[::-1], PAGES + 1),
    "backwards from page 0": (lambda p: strided(p, p.shape, (-BYTES, 8)), PAGES + 1),
    "every second page": (lambda p: p[::2], Padding.skip()),
    "a page for all": (lambda p: strided(p, (PAGES + 2, BLOCK), (0, 8)), PAGES),
    "a row too far": (lambda p: strided(p[0, 1:], (PAGES + 1, BLOCK), p.strides), PAGES),
    "bytes too far": (lambda p: strided(p[:, :].view(np.uint8)[0, 1:], (PAGES + 1, BYTES), (BYTES, 1)), PAGES),
    "pages of another size": (lambda p: p.reshape(-1, 2 * BLOCK), Padding.skip()),
    "pages that overlap": (lambda p: strided(p, (PAGES + 1, BLOCK + 1), (BYTES, 8)), PAGES),
    "a copy": (lambda p: p.copy(), PAGES),
    "memory of a device": (lambda p: OnDevice(p), PAGES),
    "no pages": (lambda p: p[0, 0:1].reshape(()), Padding.skip()),
    "one of two is another's": (lambda p: [p, p.copy()], PAGES),
    "fewer pages": (lambda p: p[: PAGES - 1], Padding.skip()),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_buffer_that_is_not_the_bound_pool_is_refused(name: str) -> None:
    view, padding = WRONG[name]
    pool = rows(PAGES + 2)
    cache = cache_of(pool[:PAGES])
    captured(cache, pool)
    with pytest.raises(hk.ArgumentError) as caught:
        captured(cache, view(pool), padding)
    assert_named(caught.value)
    assert caught.value.field.startswith(("buffers[kv", "padding[kv"))


def test_arrays_of_layers_are_held_against_each() -> None:
    pools = [rows(), rows()]
    cache = cache_of([pool[:PAGES] for pool in pools], layers=2)
    with pytest.raises(hk.ArgumentError, match="first of 2 arrays"):
        captured(cache, [pools[0], rows()])


def test_a_null_page_of_one_group_is_no_page_of_another() -> None:
    """The groups lie one behind the other in one array: behind the pages of the first begin those of the second."""
    spec = hk.CacheSpec(
        BLOCK,
        [hk.CacheGroup(name, hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=BYTES) for name in ("a", "b")],
    )
    pool = rows(2 * PAGES + 1)
    cache = hk.HybridCache(spec, blocks=16, pages={"a": PAGES, "b": PAGES})
    cache.bind("a", pool[:PAGES])
    cache.bind("b", pool[PAGES : 2 * PAGES])
    for null in (PAGES, 2 * PAGES - 1):
        with pytest.raises(hk.ArgumentError) as caught:
            Topology.capture({"a": pool}, spec, max_blocks=2, padding={"a": null}, cache=cache, groups=["a"])
        assert_named(caught.value)
        assert (caught.value.field, f"page {null - PAGES} of 'b'" in caught.value.got) == ("padding[a]", True)
    buffers = {"a": pool, "b": pool[PAGES:]}
    Topology.capture(buffers, spec, max_blocks=2, padding={"a": 2 * PAGES, "b": PAGES}, cache=cache)


def test_a_kernel_whose_pages_no_buffer_has_is_refused() -> None:
    pool = rows()
    cache = cache_of(pool[1:])
    two = {"kv": {"attention": Padding.skip(), "indexer": Padding.null(0, first=1)}}
    with pytest.raises(hk.ArgumentError) as caught:
        captured(cache, pool, two)
    assert caught.value.field == "padding[kv.attention]"
    topology = captured(cache, [pool, pool[1:]], two)  # each kernel as it sees the pool
    pool[0, 2] = np.nan
    assert topology.inspect_null_pages() == ["kv[0]"]


# -- what is right -----------------------------------------------------------------------------------


def two_groups_in_turns() -> Any:
    """Pages of two groups in turns in one array: the null pages are the last two."""
    spec = hk.CacheSpec(
        BLOCK,
        [hk.CacheGroup(name, hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=BYTES) for name in ("a", "b")],
    )
    pool = rows(2 * PAGES + 2)
    cache = hk.HybridCache(spec, blocks=16, pages={"a": PAGES, "b": PAGES})
    cache.bind("a", pool[: 2 * PAGES : 2])
    cache.bind("b", pool[1 : 2 * PAGES : 2])
    return Topology.capture({"a": pool[::2], "b": pool[1::2]}, spec, max_blocks=2, padding=PAGES, cache=cache)


def one_page() -> Any:
    """Of a single page no stride says anything."""
    pool = rows(2)
    odd = strided(pool[:1], (1, BLOCK), (8, 8))
    return captured(cache_of(odd, pages=1), pool, 1)


def rows_apart() -> Any:
    """Rows of a page are padded, and so are pages."""
    raw = np.zeros((PAGES + 1, 256), np.uint8)
    padded = strided(raw, (PAGES + 1, 4, 8), (256, 16, 1))
    return captured(cache_of(padded[:PAGES]), raw)


def torch_tensor() -> Any:
    torch = pytest.importorskip("torch")
    pool = torch.zeros(PAGES + 1, BLOCK, dtype=torch.float64)
    cache = cache_of(pool[:PAGES])
    captured(cache, pool.numpy())
    return captured(cache, pool.view(torch.uint8))


def device_memory(bound: int | None, seen: int | None) -> Any:
    """Devices that arrays number, or do not."""

    def facts(array: Any, device: int | None) -> Any:
        read = hk.pools.array_facts("pool", array)
        return read._replace(host=False, device=device)

    pool = rows()
    return captured(cache_of([facts(pool[:PAGES], bound)]), [facts(pool, seen)])


def seen(make: Any, bound: Any, view: Any, padding: object = PAGES, layers: int = 1) -> Callable[[], Any]:
    """A topology of a view of some memory, of which another view is bound."""

    def capture() -> Any:
        pool = make()
        return captured(cache_of(bound(pool), layers=layers), view(pool), padding)

    return capture


def most(pool: Any) -> Any:
    return pool[:PAGES]


def layers() -> Any:
    return [rows(), rows(), rows()]


def layers_in_one() -> Any:
    """One array for two layers, a page of which is the layers one after another."""
    return np.zeros((PAGES + 1, 2, BLOCK))


def wider() -> Any:
    """Pages that are padded."""
    return np.zeros((PAGES + 1, 6))


def itself(pool: Any) -> Any:
    return pool


RIGHT: dict[str, Callable[[], Any]] = {
    "more pages than are bound": seen(rows, most, itself),
    "bound with its null page": seen(rows, itself, itself),
    "page 0 in front": seen(rows, lambda p: p[1:], itself, Padding.null(0, first=1)),
    "page 0 in front, and nothing read there": seen(rows, lambda p: p[1:], itself, Padding.skip(first=1)),
    "no null page": seen(rows, most, most, Padding.skip()),
    "backwards and back": seen(rows, most, lambda p: p[::-1][::-1]),
    "other elements": seen(rows, most, lambda p: p.view(np.uint16)),
    "pages of two dimensions": seen(rows, most, lambda p: p.reshape(PAGES + 1, 2, 2)),
    "heads in front of rows": seen(rows, most, lambda p: p.reshape(PAGES + 1, 2, 2).transpose(0, 2, 1)),
    "rows of a page backwards": seen(rows, most, lambda p: p[:, ::-1]),
    "rows one behind the other": seen(rows, most, lambda p: p.reshape(-1, 1)),
    "elements one behind the other": seen(rows, most, lambda p: p.reshape(-1)),
    "every layer": seen(layers, lambda p: [one[:PAGES] for one in p], itself, layers=3),
    "some layers, in any order": seen(layers, lambda p: [one[:PAGES] for one in p], lambda p: [p[2], p[0]], layers=3),
    "layers in one page": seen(layers_in_one, most, itself, layers=2),
    "one layer of a page": seen(layers_in_one, most, lambda p: p[:, 1], layers=2),
    "each layer of a page": seen(layers_in_one, most, lambda p: [p[:, 0], p[:, 1]], layers=2),
    "half of a page": seen(rows, most, lambda p: p[:, 2:]),
    "pages further apart": seen(wider, lambda p: p[:PAGES, :4], itself),
    "a part of pages further apart": seen(wider, most, lambda p: p[:, :4]),
    "rows apart": rows_apart,
    "one page": one_page,
    "groups in turns": two_groups_in_turns,
    "tensors": torch_tensor,
    "a device": lambda: device_memory(1, 1),
    "a device that only one array numbers": lambda: device_memory(None, 1),
    "a device that only the pool numbers": lambda: device_memory(0, None),
    "unbound": lambda: captured(cache_of(None), rows()),
    "under another name": lambda: Topology.capture(
        {"pool": rows()}, (c := cache_of(rows())).spec, max_blocks=2, padding=PAGES, cache=c
    ),
    "no cache": lambda: Topology.capture({"kv": rows()[::-1]}, cache_of(None).spec, max_blocks=2, padding=PAGES),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_view_of_the_bound_pool_is_taken(name: str) -> None:
    topology = RIGHT[name]()
    topology.check()
    assert topology.route([]) == Replay(1, 0)


def test_devices_of_other_numbers_are_others() -> None:
    with pytest.raises(hk.ArgumentError, match="cuda:1"):
        device_memory(0, 1)


@pytest.mark.parametrize("shape", [(-1, 1), (-1,), (PAGES + 1, BLOCK)])
def test_the_null_page_is_found_in_any_view(shape: tuple[int, ...]) -> None:
    pool = rows()
    topology = captured(cache_of(pool[:PAGES]), pool.reshape(shape))
    pool[PAGES - 1] = np.inf  # the last page of the cache, next to it
    assert topology.inspect_null_pages() == []
    pool[PAGES, BLOCK - 1] = np.inf
    assert topology.inspect_null_pages() == ["kv"]


def test_pools_that_are_bound_later_are_bound_anew() -> None:
    pool = rows()
    cache = cache_of(None)
    topology = captured(cache, pool)
    cache.bind("kv", pool[:PAGES])
    assert topology.route([]).reason == "rebound"
