# SPDX-License-Identifier: Apache-2.0
"""The stand-in behaves like a captured graph; and replay equals eager, bit for bit, over random batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridkv as hk
from graph_support import BUCKETS, PADDING, Engine, close_all
from hybridkv.graph import standin
from ticket_support import assert_named

STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), st.integers(1, 90), st.booleans()),
    min_size=1,
    max_size=20,
)


@given(STEPS)
def test_replay_equals_eager_and_touches_nothing_else(steps: list[tuple[list[int], int, bool]]) -> None:
    engine = Engine()
    tickets = [engine.admit(name) for name in "abcd"]
    replays = 0
    for numbers, value, large in steps:
        batch = [tickets[number] for number in numbers]
        for number, ticket in zip(numbers, batch, strict=True):
            if ticket.grown_tokens == 28:  # ends, and another request takes its place and its pages
                ticket.close(keep_tip=False)
                tickets[number] = engine.admit(f"{number} again")
        batch = [tickets[number] for number in numbers]
        engine.grow(batch, [value + number for number in range(len(batch))])
        route = engine.topology.route(batch)
        fresh = {name: pool.copy() for name, pool in engine.pools.items()}
        eager = engine.eager(batch, fresh)
        if isinstance(route, hk.graph.Replay):
            size = engine.staging.update(batch, bucket=BUCKETS[-1] if large else route.bucket)
            engine.topology.check(route=route)
            got = engine.run(batch, size)
            replays += 1
            assert got.tobytes() == eager.tobytes()
            for name, pool in engine.held().items():  # the victims, not the output alone
                assert pool.tobytes() == np.delete(fresh[name], PADDING[name].page, axis=0).tobytes(), name
        else:
            assert route.reason == "width" and max(ticket.grown_tokens for ticket in batch) > 24
            engine.eager(batch)
        assert eager.tolist() == engine.right(batch).tolist()
        engine.advance(batch)
    assert replays
    assert engine.topology.inspect_null_pages() == []
    close_all()


def test_a_capture_runs_nothing_and_a_replay_reads_what_is_there_then() -> None:
    memory = standin.Memory(4096)
    source, target = memory.take(4, np.int64), memory.take(4, np.int64)
    with standin.capture() as graph:
        graph.call(np.add, source, [1, 2, 3, 4], out=target)
    assert not target.any()
    source[:] = 10
    graph.replay()
    assert target.tolist() == [11, 12, 13, 14]


def test_lists_and_mappings_are_recorded_by_their_arrays() -> None:
    first, second, out = np.zeros(2), np.zeros(2), np.zeros(2)

    def add(arrays: Any, more: Any) -> None:
        more["out"][...] = arrays[0] + arrays[1] + more["plus"]

    with standin.capture() as graph:
        graph.call(add, [first, second], {"out": out, "plus": 1})
    first[:], second[:] = 2, 3
    graph.replay()
    assert out.tolist() == [6, 6]


def test_freed_memory_is_poison_and_then_somebody_elses() -> None:
    memory = standin.Memory(1024)
    one = memory.take(4, np.float64)
    out = memory.take(4, np.float64)
    with standin.capture() as graph:
        graph.call(np.copyto, out, one)
    memory.free(one)
    graph.replay()
    assert np.isnan(out).all()
    other = memory.take(4, np.float64)
    assert other.__array_interface__["data"] == one.__array_interface__["data"]
    other[:] = 7
    graph.replay()
    assert (out == 7).all()
    with pytest.raises(hk.ArgumentError, match="not freed"):
        memory.free(out[1:])
    memory.free(out)
    with pytest.raises(hk.ArgumentError, match="not freed"):
        memory.free(out)
    memory.free(other)
    assert memory.take(1024, np.uint8).nbytes == 1024  # neighbours are one piece again
    with pytest.raises(hk.ArgumentError, match="room for 1 bytes"):
        memory.take(1, np.uint8)


def test_a_graph_keeps_the_arrays_that_it_reads() -> None:
    out = np.zeros(1000)
    with standin.capture() as graph:
        graph.call(np.copyto, out, np.full(1000, 3.0))
    for _ in range(4):
        np.full(1000, 9.0)
    graph.replay()
    assert (out == 3.0).all()


def test_misuse_is_refused() -> None:
    graphs = []
    with standin.capture() as graph:
        graphs.append(graph)
        with pytest.raises(hk.ArgumentError) as caught:
            graph.replay()
        assert_named(caught.value)

        class OnDevice:
            def __init__(self) -> None:
                self.__cuda_array_interface__ = {"shape": (1,), "typestr": "<f8", "data": (4096, False), "version": 3}

        with pytest.raises(hk.ArgumentError) as caught:
            graph.call(np.copyto, OnDevice(), np.zeros(1))
        assert_named(caught.value)
    with pytest.raises(hk.ArgumentError) as caught:
        graphs[0].call(np.copyto, np.zeros(1), np.zeros(1))
    assert_named(caught.value)
    with pytest.raises(hk.ArgumentError):
        standin.Memory(0)
