# SPDX-License-Identifier: Apache-2.0
"""Each change of topology: wrong where the graph is replayed all the same, eager with its reason where it is asked.

A case changes something between capture and step. It returns what a replay without route and check gave, what an eager
step gives on the same pages, and what must come out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from graph_support import BLOCK, FORMAT, PADDING, PAGES, Engine, close_all, must_be, refused, routed
from hybridkv.graph import Topology, standin
from hybridkv.graph.eager import EAGER_REASONS

Outcome = tuple[Any, Any, Any]  # replayed all the same, eager, right
CASES: dict[str, Callable[[], Outcome]] = {}


def case(reason: str) -> Callable[[Callable[[], Outcome]], Callable[[], Outcome]]:
    def keep(body: Callable[[], Outcome]) -> Callable[[], Outcome]:
        assert reason not in CASES
        CASES[reason] = body
        return body

    return keep


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    close_all()


def started(most: int = 32) -> tuple[Engine, list[Any]]:
    """An engine with two requests of seven tokens that have grown by the next; the null pages hold finite garbage."""
    engine = Engine()
    tickets = [engine.admit("a", [3, 1, 4, 1, 5, 9, 2], most=most), engine.admit("b", [2, 7, 1, 8, 2, 8, 1], most=most)]
    engine.staging.blank()
    engine.run([], 4)
    engine.grow(tickets, [6, 8])
    assert all(page.any() for page in engine.null_pages())
    return engine, tickets


def swapped(engine: Engine, name: str, array: Any) -> dict[str, Any]:
    """The engine's pool lies elsewhere now, and where it was there is poison."""
    old = engine.pools[name]
    flat = array.reshape(-1) if array.flags.c_contiguous else None
    if flat is not None and flat.size >= old.size and array.shape[1:] == old.shape[1:]:
        array[: len(old)] = old
    engine.pools = {**engine.pools, name: array}
    engine.memory.free(old)
    return engine.buffers()


def both(engine: Engine, tickets: list[Any]) -> Outcome:
    """Replay on the captured memory, then step on what the engine has now, from the same start."""
    kept = {name: pool.copy() for name, pool in engine.pools.items()}
    wrong = engine.replay(tickets)
    for name, pool in engine.pools.items():
        pool[...] = kept[name]
    return wrong, engine.eager(tickets), engine.right(tickets)


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


# -- what a step asks for ---------------------------------------------------------------------------


@case("width")
def wider_than_captured() -> Outcome:
    engine, _ = started()
    long = engine.admit("long", [1] * 24)
    engine.grow([long], [5])
    eager = routed(engine, [long], "width")
    assert (eager.group, eager.width, eager.needed) == ("full", 6, 7)
    with pytest.raises(hk.ArgumentError, match="at most 6 entries"):
        engine.staging.update([long])
    tables = engine.staging.buffers()  # written by somebody who does not look
    engine.staging.blank()
    ids = long.page_ids("full") + 1
    tables["table.full"][0], tables["lengths"][0] = ids[:6], 25
    tables["slots.full"][0] = ids[6] * BLOCK
    tables["table.window"][0], tables["first.window"][0] = long.page_ids("window")[4:7], 4
    tables["slots.window"][0] = int(long.page_ids("window")[6]) * BLOCK
    tables["table.state"][0] = long.live_page("state")
    kept = engine.pools["state"].copy()
    wrong = engine.run([long], 2)
    engine.pools["state"][...] = kept
    return wrong, engine.eager([long]), engine.right([long])


@case("batch")
def more_requests_than_captured() -> Outcome:
    engine, tickets = started()
    others = [engine.admit(name, [4]) for name in "cde"]
    engine.grow(others, [1, 2, 3])
    eager = routed(engine, tickets + others, "batch")
    assert (eager.width, eager.needed) == (4, 5)
    with pytest.raises(hk.ArgumentError, match="at most 4 requests"):
        engine.staging.update(tickets + others)
    kept = engine.pools["state"].copy()
    wrong = np.append(engine.replay((tickets + others)[:4]), engine.out[3])
    engine.pools["state"][...] = kept
    return wrong, engine.eager(tickets + others), engine.right(tickets + others)


@case("step")
def more_tokens_than_captured() -> Outcome:
    engine, tickets = started()
    one = tickets[:1]
    assert engine.topology.route(one, more_tokens=1).reason == "step"
    before = engine.pools["state"].copy()
    wrong = engine.replay(one)  # the step of one token, though two are to be written
    engine.pools["state"][...] = before
    engine.eager(one)
    engine.grow(one, [7])
    eager = routed(engine, one, "step")
    assert (eager.width, eager.needed) == (1, 2)
    with pytest.raises(hk.ArgumentError, match="at most 1 new tokens"):
        engine.staging.update(one)
    return wrong, engine.eager(one), engine.right(one)


@case("groups")
def without_a_group() -> Outcome:
    engine, _ = started()
    few = engine.admit("few", [1, 2, 3], groups=["full", "state"])
    engine.grow([few], [4])
    routed(engine, [few], "groups")
    history = engine.histories[few]
    window = must_be(history) - must_be([0.0] * 4)
    assert window
    right = sum((i + 1) * v for i, v in enumerate(history)) + 1e10 * engine.pools["state"][0, 0] * 0
    kept = engine.pools["state"].copy()
    wrong = engine.replay([few])
    engine.pools["state"][...] = kept
    eager = engine.eager([few])
    state = 0.0
    for value in history:
        state = (3 * state + value) % 1009
    return wrong, eager, np.array([right + 1e10 * state])


@case("cache")
def of_another_cache() -> Outcome:
    engine, _ = started()
    other = Engine()
    stranger = other.admit("c", [5, 5, 5, 5, 5])
    other.grow([stranger], [6])
    routed(engine, [stranger], "cache")
    engine.histories[stranger] = other.histories[stranger]
    wrong = engine.replay([stranger])
    return wrong, other.eager([stranger]), other.right([stranger])


@case("format")
def of_another_format() -> Outcome:
    engine, tickets = started()
    halves = hk.KvFormat("halves", "float64")
    eager = routed(engine, tickets, "format", formats={"full": halves})
    assert (eager.group, eager.expected) == ("full", FORMAT.fingerprint.hex())
    assert engine.topology.route(tickets, formats={"full": FORMAT}) == hk.graph.Replay(2, 2)
    whole = engine.pools["full"].copy()
    engine.pools["full"][1:] /= 2  # what a writer of that format leaves; our reader would double it
    wrong = engine.replay(tickets)
    engine.pools["full"][...] = whole
    engine.pools["state"][[t.live_page("state") for t in tickets], 0] = [_state(engine, t) for t in tickets]
    return wrong, engine.eager(tickets), engine.right(tickets)


def _state(engine: Engine, ticket: Any) -> float:
    """The state before the last token."""
    return float(must_be(engine.histories[ticket][:-1]) // 1e10)


@case("padding")
def for_a_kernel_with_another_sentinel() -> Outcome:
    engine, tickets = started(most=8)
    prefix = hk.block_keys(range(144), BLOCK, identity=engine.spec.identity)
    engine.cache.insert(prefix[:36], groups={"full": True})
    assert PAGES["full"] - 1 in [info.page for info in engine.cache.inspect(prefix[:36])["full"]]
    engine.pools["full"][-1] = 9.0  # a page of that prefix
    routed(engine, tickets, "padding", padding={"full": -1})
    assert engine.topology.route(tickets, padding={"full": PADDING["full"]}) == hk.graph.Replay(2, 2)
    before = engine.pools["full"][-1].copy()
    engine.staging.update(tickets, bucket=4)
    tables = engine.staging.buffers()
    tables["table.full"][2:], tables["slots.full"][2:] = -1, -1  # what the new kernel takes for nothing
    engine.run(tickets, 4)
    wrong = engine.pools["full"][-1].copy()
    engine.pools["full"][-1] = before
    engine.staging.update(tickets, bucket=4)
    engine.run(tickets, 4)
    return wrong, engine.pools["full"][-1].copy(), before


# -- buffers ----------------------------------------------------------------------------------------


@case("buffers")
def other_buffers_than_captured() -> Outcome:
    engine, tickets = started()
    scale = engine.memory.take(1, np.float64)
    scale[0] = 2.0
    buffers = engine.buffers(scale=scale)
    eager = routed(engine, tickets, "buffers", buffers=buffers)
    assert "scale" in eager.got
    refused(engine, "buffers", buffers)
    without = dict(engine.buffers())
    del without["values"]
    routed(engine, tickets, "buffers", buffers=without)
    wrong, eager_out, right = both(engine, tickets)
    return wrong, eager_out * scale[0], right * scale[0]


@case("staging")
def tables_that_were_replaced() -> Outcome:
    engine, tickets = started()
    engine.staging.update(list(reversed(tickets)))  # what the graph goes on to read
    fresh = engine.new_staging()
    buffers = engine.buffers(**fresh.buffers())
    routed(engine, tickets, "staging", buffers=buffers)
    refused(engine, "staging", buffers)
    fresh.update(tickets)
    kept = {name: pool.copy() for name, pool in engine.pools.items()}
    wrong = engine.run(tickets, 2)
    for name, pool in engine.pools.items():
        pool[...] = kept[name]
    return wrong, engine.eager(tickets), engine.right(tickets)


class Owned:
    """An array of an engine that says when its memory is gone."""

    def __init__(self, memory: Any, array: Any) -> None:
        self.memory, self.array = memory, array

    @property
    def __array_interface__(self) -> Any:
        if self.array is None:
            raise RuntimeError("freed")
        return self.array.__array_interface__

    def free(self) -> None:
        self.memory.free(self.array)
        self.array = None


@case("freed")
def memory_that_was_given_back() -> Outcome:
    engine, tickets = started()
    owned = Owned(engine.memory, engine.pools["full"])
    engine.topology = Topology.capture(
        engine.buffers(full=owned), engine.spec, staging=engine.staging, cache=engine.cache
    )
    assert engine.topology.route(tickets) == hk.graph.Replay(2, 2)
    elsewhere = engine.memory.take((41, BLOCK), np.float64)
    elsewhere[...] = engine.pools["full"]
    owned.free()
    routed(engine, tickets, "freed")
    refused(engine, "freed")
    engine.pools = {**engine.pools, "full": elsewhere}
    return both(engine, tickets)


@case("moved")
def memory_at_another_address() -> Outcome:
    engine, tickets = started()
    buffers = swapped(engine, "full", engine.memory.take((41, BLOCK), np.float64))
    eager = routed(engine, tickets, "moved", buffers=buffers)
    assert (eager.group, eager.field) == ("full", "full")
    refused(engine, "moved", buffers)
    return both(engine, tickets)


@case("grown")
def pools_of_more_pages() -> Outcome:
    engine, tickets = started()
    buffers = swapped(engine, "window", engine.memory.take((57, BLOCK), np.float64))
    eager = routed(engine, tickets, "grown", buffers=buffers)
    assert (eager.expected, eager.got) == ((41, BLOCK), (57, BLOCK))
    refused(engine, "grown", buffers)
    return both(engine, tickets)


@case("shape")
def pools_of_other_pages() -> Outcome:
    engine, tickets = started()
    smaller = engine.memory.take((33, 1), np.float64)  # woken with a smaller pool
    smaller[...] = engine.pools["state"][:33]
    buffers = swapped(engine, "state", smaller)
    routed(engine, tickets, "shape", buffers=buffers)
    refused(engine, "shape", buffers)
    return both(engine, tickets)


def in_place(engine: Engine, name: str, array: Any) -> dict[str, Any]:
    """The same memory in another form: what was there is written again in that form."""
    held = engine.pools[name].copy()
    engine.pools[name][...] = 55.0
    array[...] = held[: len(array)]
    engine.pools = {**engine.pools, name: array}
    return engine.buffers()


@case("stride")
def pages_further_apart() -> Outcome:
    engine, tickets = started()
    room = engine.pools["state"]
    apart = np.lib.stride_tricks.as_strided(room, (32, 1), (16, 8))
    engine.topology = Topology.capture(
        engine.buffers(state=room[:32]),
        engine.spec,
        max_blocks=6,
        padding={"full": PADDING["full"], "window": PADDING["window"], "state": -1},
        buckets=(2, 4),
    )
    buffers = in_place(engine, "state", apart)
    before = engine.cache.metrics().eager["stride"]
    eager = engine.topology.route(tickets, buffers=buffers)
    assert isinstance(eager, hk.graph.Eager) and eager.reason == "stride"
    assert (eager.expected, eager.got) == ((8, 8), (16, 8))
    assert engine.topology.counts["stride"] == 1
    assert engine.cache.metrics().eager["stride"] == before  # no cache was given to this one
    refused(engine, "stride", buffers)
    return both(engine, tickets)


@case("dtype")
def elements_of_another_type() -> Outcome:
    engine, tickets = started()
    buffers = in_place(engine, "full", engine.pools["full"].view(np.int64))
    eager = routed(engine, tickets, "dtype", buffers=buffers)
    assert (eager.expected, eager.got) == ("<f8", "<i8")
    refused(engine, "dtype", buffers)
    return both(engine, tickets)


class OnDevice:
    """Memory that calls itself a device's."""

    def __init__(self, array: Any) -> None:
        told = array.__array_interface__
        self.__cuda_array_interface__ = {**told, "data": (told["data"][0], False), "version": 3}


@case("device")
def memory_of_another_device() -> Outcome:
    engine, tickets = started()
    buffers = swapped(engine, "full", engine.memory.take((41, BLOCK), np.float64))
    buffers["full"] = OnDevice(engine.pools["full"])
    eager = routed(engine, tickets, "device", buffers=buffers)
    assert (eager.expected, eager.got) == ("cpu", "cuda")
    refused(engine, "device", buffers)
    return both(engine, tickets)


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
