# SPDX-License-Identifier: Apache-2.0
"""Cases of changed topology: of what a step asks for, and of buffers.

A case changes something between capture and step. It returns what a replay without route and check gave, what an eager
step gives on the same pages, and what must come out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from graph_support import BLOCK, FORMAT, PADDING, PAGES, Engine, must_be, refused, routed
from hybridkv.graph import Topology

Outcome = tuple[Any, Any, Any]  # replayed all the same, eager, right
CASES: dict[str, Callable[[], Outcome]] = {}


def case(reason: str) -> Callable[[Callable[[], Outcome]], Callable[[], Outcome]]:
    def keep(body: Callable[[], Outcome]) -> Callable[[], Outcome]:
        assert reason not in CASES
        CASES[reason] = body
        return body

    return keep


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
