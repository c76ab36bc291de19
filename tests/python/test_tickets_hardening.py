# SPDX-License-Identifier: Apache-2.0
"""What a reader who wanted to break running requests found, each as a test."""

from __future__ import annotations

import gc
import threading

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
