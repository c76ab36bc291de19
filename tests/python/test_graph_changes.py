# SPDX-License-Identifier: Apache-2.0
"""Each change of topology: wrong where the graph is replayed all the same, eager with its reason where it is asked.

Half of the cases are in `graph_cases.py`, which says what a case is; those of a cache and its pages are here, those of
a step in `graph_step_cases.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graph_step_cases  # noqa: F401  three of the cases
import hybridkv as hk
from graph_cases import CASES, Outcome, both, case, started, swapped
from graph_support import BLOCK, Engine, close_all, refused, routed
from hybridkv.graph import Topology, standin
from hybridkv.graph.eager import EAGER_REASONS


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    close_all()


@pytest.mark.parametrize("reason", EAGER_REASONS)
def test_a_change_is_wrong_in_a_replay_and_eager_by_its_reason(reason: str) -> None:
    wrong, eager, right = CASES[reason]()
    assert np.array_equal(eager, right)
    assert not np.array_equal(wrong, right)


def test_nothing_changed_is_a_replay_and_right() -> None:
    engine, tickets = started()
    assert engine.topology.route(tickets) == hk.graph.Replay(2, 2)
    engine.topology.check()
    engine.topology.check(engine.buffers())
    engine.topology.check(engine.buffers(**engine.staging.buffers()))
    wrong, eager, right = both(engine, tickets)
    assert np.array_equal(wrong, right) and np.array_equal(eager, right)
    assert set(engine.topology.counts.values()) == {0}
    assert set(engine.cache.metrics().eager.values()) == {0}
    engine.close()


# -- the cache and its pages ------------------------------------------------------------------------


@case("rebound")
def pools_bound_anew() -> Outcome:
    engine = started()[0]
    engine.close()
    engine.cache.reset()
    engine.topology = Topology.capture(engine.buffers(), engine.spec, staging=engine.staging, cache=engine.cache)
    held = engine.pools["full"]
    moved = engine.memory.take((45, BLOCK), np.float64)
    engine.pools = {**engine.pools, "full": moved}
    engine.cache.bind("full", moved[1:])
    ticket = engine.admit("c", [1, 2, 3, 4, 5])
    engine.grow([ticket], [6])
    eager = routed(engine, [ticket], "rebound")  # nobody told the topology of the new array
    assert eager.group == "full"
    refused(engine, "rebound")
    assert held is not moved
    return both(engine, [ticket])


def addressed(engine: Engine, handle: Any) -> tuple[Any, Any]:
    """A graph that reads the first page of a request by its address; returns it and where it writes the sum."""
    page, total = engine.pools["full"][1 + int(handle.page_ids("full")[0])], engine.memory.take(1, np.float64)
    with standin.capture() as graph:
        graph.call(np.sum, page, out=total[0:1].reshape(()))
    engine.topology = Topology.capture(
        engine.buffers(total=total), engine.spec, staging=engine.staging, cache=engine.cache, pages=[handle]
    )
    return graph, total


def summed(graph: Any, total: Any) -> Any:
    graph.replay()
    return total.copy()


def published(engine: Engine) -> Any:
    """A lease of the first eight tokens of a request that has ended."""
    keys = hk.block_keys(range(12), BLOCK, identity=engine.spec.identity)
    engine.cache.insert(keys[:2])
    lease = engine.cache.match(keys).lease
    engine.pools["full"][1 + lease.page_ids("full")] = 2.0
    return lease


def taken_again(engine: Engine) -> None:
    """Others take every page of history, and write them."""
    engine.cache.evict(hk.block_keys(range(12), BLOCK, identity=engine.spec.identity)[:2])
    engine.pools["full"][1:] = 5.0


@case("cleared")
def a_cache_that_was_reset() -> Outcome:
    engine = Engine()
    lease = published(engine)
    graph, total = addressed(engine, lease)
    lease.release()
    engine.topology = Topology.capture(
        engine.buffers(total=total), engine.spec, staging=engine.staging, cache=engine.cache
    )
    engine.cache.reset()
    taken_again(engine)
    ticket = engine.admit("c")
    engine.grow([ticket], [1])
    routed(engine, [ticket], "cleared")
    refused(engine, "cleared")
    return summed(graph, total), np.array([8.0]), np.array([BLOCK * 2.0])


@case("expired")
def a_page_whose_lease_has_ended() -> Outcome:
    engine = Engine()
    lease = published(engine)
    graph, total = addressed(engine, lease)
    engine.topology.check()
    assert summed(graph, total) == 8.0
    lease.release()
    taken_again(engine)
    ticket = engine.admit("c")
    engine.grow([ticket], [1])
    routed(engine, [ticket], "expired")
    refused(engine, "expired")
    return summed(graph, total), np.array([8.0]), np.array([BLOCK * 2.0])


@case("handout")
def a_page_that_was_handed_out_again() -> Outcome:
    engine = Engine()
    ticket = engine.admit("a", most=8)
    ticket.grow(4)
    page = int(ticket.page_ids("full")[0])
    engine.pools["full"][1 + page] = 2.0
    graph, total = addressed(engine, ticket)
    engine.topology.check()
    ticket.rewind(4)  # rejected drafts
    other = engine.admit("b", [5, 5, 5, 5])
    assert page in other.page_ids("full")  # who writes it now
    ticket.grow(4)
    engine.grow([other], [5])
    eager = routed(engine, [other], "handout")
    assert eager.group == "full" and eager.expected != eager.got
    refused(engine, "handout")
    ticket.close(keep_tip=False)
    return summed(graph, total), np.array([8.0]), np.array([BLOCK * 2.0])


def test_a_page_that_came_back_to_its_request_is_another_page() -> None:
    engine = Engine()
    ticket = engine.admit("a", most=8)
    ticket.grow(4)
    ids, counts = ticket.page_ids("full"), ticket.handouts("full")
    addressed(engine, ticket)
    ticket.rewind(4)
    ticket.grow(4)
    assert ticket.page_ids("full").tolist() == ids.tolist()
    assert ticket.handouts("full").tolist() != counts.tolist()
    refused(engine, "handout")


@case("null_page")
def a_null_page_that_is_not_finite() -> Outcome:
    engine, tickets = started()
    assert engine.topology.inspect_null_pages() == []
    engine.pools["full"][0, 1] = np.nan
    assert engine.topology.inspect_null_pages() == ["full"]
    routed(engine, tickets, "null_page")
    refused(engine, "null_page")
    outcome = both(engine, tickets)
    assert np.isnan(outcome[0]).all()
    engine.pools["full"][0] = 0.0
    assert engine.topology.inspect_null_pages() == []
    assert engine.topology.route(tickets) == hk.graph.Replay(2, 2)
    return outcome


@case("released")
def a_topology_that_guards_nothing() -> Outcome:
    engine, tickets = started()
    engine.topology.release()
    assert engine.topology.buffers == {}
    assert engine.topology.route(tickets).reason == "released"
    assert engine.topology.counts["released"] == 1
    refused(engine, "released")
    swapped(engine, "full", engine.memory.take((41, BLOCK), np.float64))
    return both(engine, tickets)


def test_a_closed_cache_has_given_its_pools_back() -> None:
    engine = started()[0]
    engine.close()
    other = Engine()
    ticket = other.admit("c")
    engine.cache.close()
    refused(engine, "freed")
    assert engine.topology.route([ticket]).reason == "freed"
    other.close()


def test_what_a_lease_reads_counts_as_its_format() -> None:
    engine = Engine()
    other = hk.KvFormat("halves", "float64")
    keys = hk.block_keys(range(12), BLOCK, identity=engine.spec.identity)
    engine.cache.insert(keys[:2], formats={"full": other})
    lease = engine.cache.match(keys, formats={"full": other}).lease
    routed(engine, lease, "format")
    lease.cancel()


def test_every_reason_has_its_case_and_they_are_at_least_twelve() -> None:
    assert set(CASES) == set(EAGER_REASONS)
    assert len(CASES) >= 12
