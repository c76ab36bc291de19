# SPDX-License-Identifier: Apache-2.0
"""The guard: what is no part of a graph is refused while a stream captures."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, observe, tokens
from graph_support import BLOCK, Engine, close_all
from hybridkv.graph import CaptureError, Staging, Topology, capturing, standin


class World:
    """One of everything that has calls."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.cache = self.engine.cache
        self.keys = hk.block_keys(range(12), BLOCK, identity=self.engine.spec.identity)
        self.cache.insert(self.keys[:2])
        self.lease = self.cache.match(self.keys).lease
        self.ticket = self.engine.admit("a", [1, 2, 3])
        self.fill = self.cache.reserve(hk.block_keys(range(50, 58), BLOCK, identity=self.engine.spec.identity))
        self.ids = np.zeros(1, np.int32)
        self.page = np.zeros((1, BLOCK), np.float64)
        self.ticket.grow(1)

    def close(self) -> None:
        self.lease.cancel()
        self.fill.abort()
        self.ticket.close()


def _step(w: World) -> Any:
    one = np.array([w.ticket.handle]), np.array([1], np.int32), np.array([-1], np.int64)
    return w.cache.step(*one, np.empty((1, 3, 1), np.int32))


REFUSED: dict[str, Callable[[World], Any]] = {
    "match": lambda w: w.cache.match(w.keys),
    "match_at": lambda w: w.cache.match_at(w.keys, 8),
    "reserve": lambda w: w.cache.reserve(w.keys),
    "insert": lambda w: w.cache.insert(w.keys[:2]),
    "evict": lambda w: w.cache.evict(w.keys[:2]),
    "admit": lambda w: w.cache.admit("b", 8),
    "step": _step,
    "bind": lambda w: w.cache.bind("full", w.engine.pools["full"][1:]),
    "set_graph_widths": lambda w: w.cache.set_graph_widths({"full": 2}),
    "reset": lambda w: w.cache.reset(),
    "close": lambda w: w.cache.close(),
    "grow": lambda w: w.ticket.grow(1),
    "rewind": lambda w: w.ticket.rewind(1),
    "advance": lambda w: w.ticket.advance(4, tokens(1)),
    "close a ticket": lambda w: w.ticket.close(),
    "extend": lambda w: w.lease.extend(w.keys),
    "publish": lambda w: w.fill.publish(),
    "release after an event": lambda w: w.lease.release(after=Event()),
    "launched": lambda w: w.lease.launched(Event()),
    "abort after an event": lambda w: w.fill.abort(after=Event()),
    "gather on the host": lambda w: hk.ops.gather(w.engine.pools["full"], w.ids, w.page),
    "scatter on the host": lambda w: hk.ops.scatter(w.page, w.engine.pools["full"], w.ids),
    "fingerprint on the host": lambda w: hk.ops.fingerprint(w.engine.pools["full"], w.ids, np.zeros(1, np.int64)),
    "update": lambda w: w.engine.staging.update([w.ticket]),
    "blank": lambda w: w.engine.staging.blank(),
    "staging": lambda w: w.engine.new_staging(),
    "route": lambda w: w.engine.topology.route([w.ticket]),
    "capture": lambda w: Topology.capture({}, w.engine.spec, staging=w.engine.staging),
    "inspect_null_pages": lambda w: w.engine.topology.inspect_null_pages(),
    "replay": lambda w: w.engine.graphs[2].replay(),
}


@pytest.fixture
def world() -> Any:
    made = World()
    yield made
    made.close()
    close_all()


def seen(world: World) -> str:
    tables = {name: array.tolist() for name, array in world.engine.staging.buffers().items()}
    pools = {name: pool.tolist() for name, pool in world.engine.pools.items()}
    return f"{observe(world.cache, world.keys)} {world.ticket.grown_tokens} {world.ticket.tokens} {tables} {pools}"


def test_calls_that_are_no_part_of_a_graph_are_refused_and_do_nothing(world: World) -> None:
    before = seen(world)
    for name, call in REFUSED.items():
        with capturing(), pytest.raises(CaptureError) as caught:
            call(world)
        assert caught.value.field, name
        assert "captures" in str(caught.value), name
        assert seen(world) == before, name
        assert world.lease.valid, name


def test_what_a_capture_may_look_at_is_there(world: World) -> None:
    with capturing():
        assert world.lease.page_ids("full").size == 2
        assert world.ticket.handouts("full").size == 1
        world.engine.topology.check()
        assert world.engine.staging.buffers(2)
        assert world.cache.poll() == 0  # transfers go on beside a capture
        assert world.cache.inspect(world.keys)["full"]
        assert world.cache.metrics().pending


def test_a_capture_ends_with_its_block_and_concerns_its_thread_alone(world: World) -> None:
    found: list[Any] = []
    with capturing(), capturing():
        thread = threading.Thread(target=lambda: found.append(world.cache.match(world.keys)))
        thread.start()
        thread.join()
    found[0].lease.release()
    with pytest.raises(KeyError), capturing():
        raise KeyError
    world.cache.match(world.keys).lease.release()


def torch_that(captures: bool, initialized: bool = True) -> Any:
    def asked() -> bool:
        assert initialized, "asked before CUDA was initialised"
        return captures

    return SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: initialized, is_current_stream_capturing=asked))


def test_a_stream_of_torch_that_captures_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_that(True))
    with pytest.raises(CaptureError):
        world.cache.match(world.keys)
    with pytest.raises(CaptureError):
        world.ticket.grow(1)
    for idle in (torch_that(False), torch_that(True, initialized=False), SimpleNamespace(), None):
        monkeypatch.setitem(sys.modules, "torch", idle)
        world.cache.match(world.keys).lease.release()


def test_a_wait_in_the_graph_is_an_event_that_the_graph_records() -> None:
    engine = Engine()
    keys = hk.block_keys(range(12), BLOCK, identity=engine.spec.identity)
    engine.cache.insert(keys[:2])
    lease = engine.cache.match(keys).lease
    read, out = standin.Event(), engine.memory.take(BLOCK, np.float64)
    engine.pools["full"][1] = 2.0
    with standin.capture() as graph:
        graph.call(np.copyto, out, engine.pools["full"][1])
        with pytest.raises(CaptureError):
            lease.release(after=read)  # a wait of the host would vanish
        graph.record(read)
    graph.replay()
    assert read.query()
    graph.replay()  # open again where it begins, passed where it comes by
    lease.release(after=read)
    assert engine.cache.evict(keys[:2]) > 0
    lease = engine.cache.match(hk.block_keys(range(3), BLOCK, identity=engine.spec.identity)).lease
    assert lease is None
    pending = standin.Event()
    engine.cache.insert(keys[:2])
    lease = engine.cache.match(keys).lease
    lease.release(after=pending)
    assert engine.cache.evict(keys[:2]) == 0  # a replay that reads them is to come
    with standin.capture() as later:
        later.record(pending)
    later.replay()
    engine.cache.poll()
    assert engine.cache.evict(keys[:2]) > 0


def test_nothing_of_ours_is_made_in_a_capture_of_the_stand_in() -> None:
    spec = Engine().spec
    with standin.capture(), pytest.raises(CaptureError):
        Staging(spec, max_blocks=4, padding=-1)
    close_all()
