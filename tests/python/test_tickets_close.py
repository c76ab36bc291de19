# SPDX-License-Identifier: Apache-2.0
"""The end of a running request: close, tips, what waits for an event, calls after it, leaks."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, check_conserved, give_back, keys_of, make_cache, pools, tokens, usable
from ticket_support import check_idle, free, homogeneous, pins, served, step, table

KV = {"kv": 16}


# -- close ------------------------------------------------------------------------------------------


def test_a_close_keeps_the_partial_last_unit_as_a_tip() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 40)
    ids = table(ticket, "kv")
    ticket.close()
    v = cache.match(keys_of(100))
    assert usable(v) == 40
    assert np.asarray(v.lease.page_ids("kv")).tolist() == ids
    v.lease.release()
    assert pools(cache)["kv"] == (13, 0, 0, 3)
    check_idle(cache)


def test_a_close_without_a_tip_gives_the_partial_page_back() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 40)
    ticket.close(keep_tip=False)
    assert give_back(cache.match(keys_of(100))) == 32
    assert pools(cache)["kv"] == (14, 0, 0, 2)
    check_idle(cache)


def test_a_tip_attests_what_was_advanced_and_not_what_was_grown() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    ticket.grow(90)
    ticket.advance(40, tokens(40))
    ticket.close()
    v = cache.match(keys_of(100))
    assert np.asarray(v.boundaries).tolist() == [16, 32, 40]
    v.lease.release()
    assert pools(cache)["kv"] == (13, 0, 0, 3)


def test_a_tip_of_blocks_of_many_units() -> None:
    cache = make_cache(4, {"kv": (hk.Prefix(), 16)}, blocks=64)
    served(cache, tokens(30), 30)
    v = cache.match(keys_of(60, 4))
    assert np.asarray(v.boundaries).tolist() == [16, 30]
    v.lease.release()


def test_a_request_that_computed_nothing_leaves_nothing() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    ticket.grow(40)
    ticket.close()
    assert pools(cache)["kv"] == (16, 0, 0, 0)
    assert cache.match(keys_of(100)).outcome == hk.Outcome.MISS
    check_idle(cache)


def test_pages_of_a_close_stay_until_its_event_passed() -> None:
    cache = homogeneous(4)
    ticket = cache.admit("a", 64)
    step(ticket, tokens(64), 32)
    ticket.grow(32)
    event = Event()
    ticket.close(keep_tip=False, after=event)
    assert ticket.closed
    cache.poll()
    assert free(cache)["kv"] == 0
    assert cache.evict(keys_of(32)) == 0
    with pytest.raises(hk.Busy):
        cache.reset()
    event.passed = True
    cache.poll()
    assert pools(cache)["kv"] == (2, 0, 0, 2)
    check_idle(cache)


def test_a_close_behind_a_waiting_step_keeps_its_order() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 48)
    ticket.grow(48)
    event = Event()
    ticket.advance(40, tokens(40), after=event)
    ticket.close()
    assert cache.match(keys_of(48)).outcome == hk.Outcome.MISS
    check_conserved(cache, KV)
    event.passed = True
    cache.poll()
    assert give_back(cache.match(keys_of(48))) == 40
    check_idle(cache)


CLOSED: dict[str, Any] = {
    "grow": lambda t: t.grow(1),
    "advance": lambda t: t.advance(41, tokens(1)),
    "rewind": lambda t: t.rewind(1),
    "fail": lambda t: t.fail("late"),
    "close": lambda t: t.close(),
    "page_ids": lambda t: t.page_ids("kv"),
    "copies": lambda t: t.copies("kv"),
    "live_page": lambda t: t.live_page("kv"),
}


@pytest.mark.parametrize("name", CLOSED)
def test_any_call_after_close_is_refused(name: str) -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 40)
    ticket.grow(4)
    ticket.close()
    before = pools(cache)
    with pytest.raises(hk.Closed):
        CLOSED[name](ticket)
    assert pools(cache) == before
    assert (ticket.closed, ticket.tokens, ticket.request) == (True, 40, "a")


# -- the cache's own life ---------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["reset", "close"])
def test_reset_and_close_of_the_cache_wait_for_tickets(verb: str) -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    with pytest.raises(hk.Busy):
        getattr(cache, verb)()
    step(ticket, tokens(100), 40)
    with pytest.raises(hk.Busy):
        getattr(cache, verb)()
    ticket.close()
    getattr(cache, verb)()


def test_a_closed_cache_admits_nobody() -> None:
    cache = homogeneous()
    cache.close()
    with pytest.raises(hk.Closed):
        cache.admit("a", 16)


# -- leaks ------------------------------------------------------------------------------------------


def test_a_ticket_left_behind_is_quarantined_and_reported() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 40)
    ticket.grow(20)
    with pytest.warns(ResourceWarning):
        del ticket
        gc.collect()
    m = cache.metrics()
    assert (m.leaks, m.quarantined) == (1, 2)
    assert pools(cache)["kv"] == (12, 0, 2, 2)
    assert pins(cache, keys_of(32), "kv") == [0, 0]
    assert give_back(cache.match(keys_of(100))) == 32
    cache.reset()
    assert pools(cache)["kv"] == (16, 0, 0, 0)


def test_a_leaked_ticket_gives_its_right_to_memory_back() -> None:
    cache = homogeneous(6)
    ticket = cache.admit("a", 96)
    with pytest.raises(hk.NotAdmitted):
        cache.admit("b", 16)
    with pytest.warns(ResourceWarning):
        del ticket
        gc.collect()
    cache.admit("b", 96).close()


def test_a_closed_ticket_leaks_nothing_when_it_is_collected() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 40)
    event = Event()
    ticket.close(after=event)
    del ticket
    gc.collect()
    event.passed = True
    cache.poll()
    assert cache.metrics().leaks == 0
    check_idle(cache)
