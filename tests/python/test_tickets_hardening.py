# SPDX-License-Identifier: Apache-2.0
"""What a reader who wanted to break running requests found, each as a test."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import make_cache

KV = {"kv": (hk.Prefix(), 16)}


def arrays(cache: hk.HybridCache, tickets: list[hk.Ticket]) -> dict[str, np.ndarray]:
    n = len(tickets)
    return {
        "tickets": np.array([ticket.handle for ticket in tickets], np.int64),
        "grow": np.ones(n, np.int32),
        "computed": np.full(n, -1, np.int64),
        "out_pages": np.empty((n, len(cache.spec.groups), 1), np.int32),
    }


@pytest.mark.parametrize("name", ["tickets", "grow", "computed", "out_pages"])
def test_arrays_of_another_byte_order_are_refused(name: str) -> None:
    cache = make_cache(16, KV, blocks=16)
    ticket = cache.admit("a", 64)
    given = arrays(cache, [ticket])
    given[name] = given[name].astype(given[name].dtype.newbyteorder(">"))
    with pytest.raises(hk.ArgumentError, match=name):
        cache.step(**given)
    assert ticket.grown_tokens == 0
    ticket.close()


@pytest.mark.parametrize("tickets", [None, 3, np.int64(3), np.array([[1]], object)])
def test_what_is_no_array_of_handles_is_refused(tickets: object) -> None:
    cache = make_cache(16, KV, blocks=16)
    ticket = cache.admit("a", 64)
    given = arrays(cache, [ticket]) | {"tickets": tickets}
    for after in (None, threading.Event()):
        event = None if after is None else type("Late", (), {"query": lambda self: False})()
        with pytest.raises(hk.ArgumentError, match="tickets"):
            cache.step(**given, after=event)
    ticket.close()


def test_a_number_of_states_beyond_counting_is_refused() -> None:
    cache = make_cache(16, KV, blocks=16)
    for states in (2**32, 2**63, 2**70):
        with pytest.raises(hk.ArgumentError, match="states"):
            cache.admit("a", 64, states=states)


def test_a_handle_of_zero_names_nobody() -> None:
    cache = make_cache(16, KV, blocks=16)
    ticket = cache.admit("a", 64)
    given = arrays(cache, [ticket]) | {"tickets": np.zeros(1, np.int64)}
    assert cache.step(**given).tolist() == [2]
    assert ticket.handle != 0
    ticket.close()


def test_the_order_of_preemption_is_told_while_others_come_and_go() -> None:
    cache = make_cache(16, KV, blocks=64)
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            cache.admit("a", 16).close()

    others = [threading.Thread(target=come_and_go) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(2000):
            assert len(cache.preemption_order()) <= 2
    finally:
        stop.set()
        for other in others:
            other.join()


def test_a_fill_whose_block_finds_no_place_is_done_with_it() -> None:
    cache = make_cache(16, KV, blocks=1, pages={"kv": 4})
    keys, other = hk.block_keys(range(16), 16), hk.block_keys(range(1, 17), 16)
    first, late = cache.reserve(keys), cache.reserve(keys)
    first.abort()
    third = cache.reserve(other)  # the only descriptor is taken now, and its page is being filled
    late.publish()
    assert cache.metrics().unplaced == 1
    del late
    gc.collect()
    third.publish()
    metrics = cache.metrics()
    assert (metrics.leaks, metrics.quarantined, metrics.pages["kv"].free) == (0, 0, 3)


class Unreadable(Mapping[Any, Any], Sequence[Any]):  # type: ignore[misc]
    """An object of the caller's that raises its own error wherever it is read."""

    def __getitem__(self, key: Any) -> Any:
        raise LookupError("mine")

    def __iter__(self) -> Any:
        raise LookupError("mine")

    def __len__(self) -> int:
        return 1

    def __contains__(self, key: object) -> bool:
        raise LookupError("mine")

    def items(self) -> Any:
        raise LookupError("mine")

    keys = values = items


READ_BY: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    "match": lambda cache, keys, ticket, fill, bad: cache.match(keys, formats=bad),
    "match_at": lambda cache, keys, ticket, fill, bad: cache.match_at(keys, 16, formats=bad),
    "reserve groups": lambda cache, keys, ticket, fill, bad: cache.reserve(keys, groups=bad),
    "reserve formats": lambda cache, keys, ticket, fill, bad: cache.reserve(keys, formats=bad),
    "reserve for a ticket": lambda cache, keys, ticket, fill, bad: cache.reserve(keys, groups=bad, ticket=ticket),
    "insert": lambda cache, keys, ticket, fill, bad: cache.insert(keys, groups=bad),
    "evict": lambda cache, keys, ticket, fill, bad: cache.evict(keys, bad),
    "publish": lambda cache, keys, ticket, fill, bad: fill.publish(bad),
    "admit groups": lambda cache, keys, ticket, fill, bad: cache.admit("b", 64, groups=bad),
    "admit formats": lambda cache, keys, ticket, fill, bad: cache.admit("b", 64, formats=bad),
    "graph widths": lambda cache, keys, ticket, fill, bad: cache.set_graph_widths(bad),
    "grow": lambda cache, keys, ticket, fill, bad: ticket.grow(16, states=bad),
    "advance states": lambda cache, keys, ticket, fill, bad: ticket.advance(32, range(16, 32), states=bad),
    "advance wrote": lambda cache, keys, ticket, fill, bad: ticket.advance(32, range(16, 32), wrote=bad),
}


@pytest.mark.parametrize("name", READ_BY)
def test_an_error_of_an_object_that_is_read_passes_and_nothing_has_changed(name: str) -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16), "state": (hk.Checkpoint(), 16)}, blocks=16)
    ticket = cache.admit("a", 64)
    ticket.grow(16)
    ticket.advance(16, range(16))
    ticket.grow(16)
    keys = hk.block_keys(range(100, 140), 16, identity=cache.spec.identity)
    fill = cache.reserve(keys)

    def seen() -> Any:
        return cache.metrics(), cache.live(), ticket.tokens, ticket.grown_tokens, ticket.page_ids("kv").tolist()

    before = seen()
    with pytest.raises(LookupError, match="mine"):
        READ_BY[name](cache, keys, ticket, fill, Unreadable())
    assert seen() == before
    ticket.advance(32, range(16, 32))
    ticket.close()
    fill.publish()
    metrics = cache.metrics()
    assert (metrics.leaks, metrics.quarantined) == (0, 0)
