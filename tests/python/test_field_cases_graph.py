# SPDX-License-Identifier: Apache-2.0
"""Field cases of captured graphs: what a graph addresses, what its padding touches, and what it was captured with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from graph_support import PADDING, Engine, close_all, must_be, refused, routed
from hybridkv.graph import CaptureError, Padding, Replay, Staging, Topology, standin, window_width


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    close_all()


def test_FC_161_a_graph_over_a_freed_row_is_eager() -> None:
    engine = Engine()
    first = engine.admit("seq 1", [5, 5, 5])
    row = int(first.page_ids("full")[0])
    with standin.capture() as graph:
        graph.call(np.copyto, engine.out, engine.pools["full"][1 + row])
    engine.topology = Topology.capture(
        engine.buffers(), engine.spec, staging=engine.staging, cache=engine.cache, pages=[first]
    )
    graph.replay()
    assert engine.out.tolist() == [5, 5, 5, 0]
    engine.topology.check()
    first.close(keep_tip=False)
    second = engine.admit("seq 2", [9, 9, 9])
    assert row in second.page_ids("full")  # same address, shape and stride: only who has it tells
    graph.replay()
    assert engine.out.tolist() == [9, 9, 9, 0]  # what the graph would have given for seq 1
    engine.grow([second], [9])
    routed(engine, [second], "expired")
    refused(engine, "expired")
    assert engine.eager([second]).tolist() == engine.right([second]).tolist()


def test_FC_163_a_capture_writes_only_to_the_null_page_and_a_smaller_pool_is_told() -> None:
    engine = Engine()
    served = engine.admit("served", [1, 2, 3, 4, 5])
    before = engine.held()
    for bucket in (2, 4):  # wake up: warm the graphs
        engine.staging.blank(bucket)
        engine.run([], bucket)
    for name, pool in engine.held().items():
        assert np.array_equal(pool, before[name]), name
    assert all(page.any() for page in engine.null_pages())
    smaller = engine.buffers(full=engine.pools["full"][:33])
    engine.grow([served], [6])
    routed(engine, [served], "shape", buffers=smaller)
    with pytest.raises(hk.ArgumentError, match="which the cache hands out"):
        Topology.capture(smaller, engine.spec, staging=engine.staging, cache=engine.cache)


def test_FC_164_a_window_that_moved_while_its_shape_stayed_is_eager() -> None:
    engine = Engine()
    pool = engine.pools["window"]
    for at in range(4):
        pool[at] = at
    view = pool[0:2]
    with standin.capture() as graph:
        graph.call(np.copyto, engine.out[:2], view[:, 0])
    topology = Topology.capture(engine.buffers(view=view), engine.spec, staging=engine.staging)
    engine.topology = topology
    moved = engine.buffers(view=pool[1:3])
    assert moved["view"].shape == view.shape
    refused(engine, "moved", moved)
    graph.replay()
    assert engine.out[:2].tolist() == [0, 1] != pool[1:3, 0].tolist()


def test_FC_166_rows_of_a_larger_batch_leave_nothing_in_a_smaller_one() -> None:
    engine = Engine()
    large = [engine.admit(name, [1, 2, 3, 4, 5]) for name in "abcd"]
    engine.grow(large, [6, 7, 8, 9])
    engine.replay(large)
    engine.advance(large)
    foreign = [engine.admit("foreign", [9] * 9)]
    small = large[:1]
    before = engine.held()
    engine.grow(small, [5])
    own = {int(small[0].page_ids("full")[-1]) + 1}
    got = engine.replay(small, bucket=4)
    assert got.tolist() == engine.right(small).tolist()
    changed = {
        name: {int(page) for page in np.flatnonzero((pool != before[name]).any(axis=1))}
        for name, pool in engine.held().items()
    }
    assert {page + 1 for page in changed["full"]} == own  # the null page was page 0, and is left out of both
    assert changed["window"] == {int(small[0].page_ids("window")[-1])}
    assert changed["state"] == {small[0].live_page("state")}
    tables = engine.staging.buffers(4)
    for name, padding in PADDING.items():
        assert (tables[f"table.{name}"][1:] == padding.page).all()
        width = len(engine.staging.buffers()[f"table.{name}"][0])
        assert (tables[f"table.{name}"][0, min(2, width) :] == padding.page).all()
    assert foreign[0].tokens == 9


def test_FC_167_a_prompt_in_a_larger_bucket_writes_its_rows_and_no_others() -> None:
    group = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=16 * 8)
    cache = hk.HybridCache(hk.CacheSpec(16, [group]), blocks=64, pages={"kv": 24})
    pool, rows = np.zeros((25, 16)), np.zeros(128)
    cache.bind("kv", pool[:24])
    staging = Staging(cache.spec, max_blocks=8, padding=Padding.null(24), step_tokens=128, cache=cache)
    slots = staging.buffers(1)["slots.kv"][0]

    def store(pool: Any, slots: Any, rows: Any) -> None:
        pool[slots // 16, slots % 16] = rows

    with standin.capture() as graph:  # captured while rows 0 to 127 were the blank ones
        graph.call(store, pool, slots, rows)
    other = cache.admit("other", 64)
    other.grow(64)
    pool[other.page_ids("kv")] = 7.0
    prompt = cache.admit("prompt", 112)
    prompt.grow(100)
    before = pool[:24].copy()
    staging.update([prompt])
    rows[:100], rows[100:] = np.arange(1, 101), 99.0
    graph.replay()
    own = prompt.page_ids("kv")
    assert pool[own].reshape(-1)[:100].tolist() == list(range(1, 101))
    before[own] = pool[own]
    assert np.array_equal(pool[:24], before)
    assert not pool[own].reshape(-1)[100:].any()
    assert pool[24].any()  # the 28 rows behind the prompt
    for ticket in (other, prompt):
        ticket.close(keep_tip=False)


@pytest.mark.parametrize("size", [4, 6, 8, 9])
def test_FC_169_a_window_table_holds_the_worst_offset_or_the_step_is_eager(size: int) -> None:
    group = hk.CacheGroup("w", hk.StateKind.WINDOW, hk.Window(size), page_bytes=8, block_tokens=4)
    cache = hk.HybridCache(hk.CacheSpec(1, [group]), blocks=64)
    worst = window_width(cache.spec, "w")
    for width in (worst, worst - 1):
        staging = Staging(cache.spec, max_blocks=max(width, 1), padding=-1, compact=["w"])
        topology = Topology.capture({}, cache.spec, staging=staging, cache=cache)
        ticket = cache.admit("a", 40)
        eager = 0
        for at in range(40):
            ticket.grow(1)
            route = topology.route(ticket)
            if isinstance(route, Replay):
                staging.update(ticket)
                first = int(staging.buffers()["first.w"][0])
                begin = max(0, at + 1 - size)
                assert first * 4 <= begin
                held = staging.buffers()["table.w"][0].tolist()
                needed = ticket.page_ids("w")[first:].tolist()
                assert held[: len(needed)] == needed and -1 not in needed[begin // 4 - first :]
            else:
                assert (route.reason, route.group, route.needed) == ("width", "w", worst)
                eager += 1
            ticket.advance(at + 1, [at])
        assert (eager > 0) == (width < worst)
        assert cache.metrics().eager["width"] == eager
        ticket.close(keep_tip=False)
        cache.reset()


def test_FC_170_what_is_selected_is_an_input_of_the_graph() -> None:
    blocks, chosen = 200, 64
    rng = np.random.default_rng(20261130)
    index, lengths = rng.standard_normal(blocks), np.array([blocks], np.int32)
    out = np.zeros(chosen)

    def select(index: Any, lengths: Any, out: Any) -> None:
        score = np.where(np.arange(blocks) < lengths[0], index, -np.inf)
        best = np.argsort(-score, kind="stable")[:chosen]
        out[...] = np.where(score[best] == -np.inf, 0.0, index[best])

    def select_with(index: Any, length: int, out: Any) -> None:  # a number of the host
        select(index, np.array([length]), out)

    with standin.capture() as right:
        right.call(select, index, lengths, out)
    with standin.capture() as baked:
        baked.call(select_with, index, int(lengths[0]), out)
    wrong = 0
    for length in (200, 150, 64, 63, 10):
        lengths[0] = length
        eager = np.zeros(chosen)
        select(index, lengths, eager)
        right.replay()
        assert out.tobytes() == eager.tobytes()
        baked.replay()
        wrong += out.tobytes() != eager.tobytes()
    assert wrong == 4  # all but the length of the capture
    engine = Engine()
    ticket = engine.admit("a", [1, 2, 3])
    engine.grow([ticket], [4])
    with standin.capture(), pytest.raises(CaptureError):  # our own lengths are written between replays alone
        engine.staging.update([ticket])
    assert engine.replay([ticket]).tolist() == [must_be([1, 2, 3, 4])]


def test_FC_172_many_graphs_keep_what_they_read() -> None:
    engine = Engine()
    graphs = []
    for bucket in range(1, 257):  # each with a table of its own that nobody else keeps
        staging = Staging(engine.spec, max_blocks=6, padding=PADDING, buckets=(bucket,), cache=engine.cache)
        out = np.zeros(bucket, np.int64)
        with standin.capture() as graph:
            graph.call(np.add, staging.buffers()["table.window"][:, 0], bucket, out=out)
        topology = Topology.capture({"out": out}, engine.spec, staging=staging, cache=engine.cache)
        graphs.append((graph, topology))
        del staging, out
    for bucket, (graph, topology) in enumerate(graphs, 1):
        topology.check()
        graph.replay()
        facts = topology.buffers["out"]
        assert facts.shape == (bucket,)
        kept = next(one.item for one in topology._buffers if one.name == "out")
        assert kept.tolist() == [PADDING["window"].page + bucket] * bucket
