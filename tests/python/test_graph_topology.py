# SPDX-License-Identifier: Apache-2.0
"""Topology: what is recorded, what is refused, and how reasons are counted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import keys_of, make_cache
from graph_support import FORMAT, PADDING, WIDTHS, Engine, close_all, routed
from hybridkv.graph import EAGER_REASONS, WHY, Eager, Padding, Replay, Staging, Topology
from hybridkv.graph.eager import EagerCounts
from ticket_support import assert_named, homogeneous


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    close_all()


class Interface:
    """An array that is numpy's in nothing but its interface."""

    def __init__(self, array: Any) -> None:
        self.array, self.__array_interface__ = array, array.__array_interface__


class Exchanged:
    """An array that knows DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("kind", [lambda array: array, Interface, Exchanged])
def test_any_array_is_recorded_by_what_it_is(kind: Callable[[Any], Any]) -> None:
    cache = homogeneous(8)
    layers = [np.zeros((9, 16), np.uint8), np.zeros((12, 32), np.uint8)[:, ::2][:, :16]]
    topology = Topology.capture({"kv": [kind(layer) for layer in layers]}, cache.spec, max_blocks=2, padding=8)
    facts = topology.buffers
    assert list(facts) == ["kv[0]", "kv[1]"]
    for layer, name in zip(layers, facts, strict=True):
        told = facts[name].address, facts[name].shape, facts[name].strides, facts[name].dtype, facts[name].device
        assert told == (layer.__array_interface__["data"][0], layer.shape, layer.strides, "|u1", "cpu")
    topology.check()
    topology.check({"kv": [kind(layer) for layer in layers]})
    other = [kind(layers[0]), kind(np.zeros((12, 32), np.uint8)[:, ::2][:, :16])]
    assert topology.route((), buffers={"kv": other}).field == "kv[1]"
    assert "buckets=[1], buffers=2" in repr(topology)


def test_the_smallest_bucket_that_holds_the_batch_is_taken() -> None:
    engine = Engine()
    tickets = [engine.admit(name, [1]) for name in "abcd"]
    engine.grow(tickets, [1, 2, 3, 4])
    for count, bucket in ((0, 2), (1, 2), (2, 2), (3, 4), (4, 4)):
        assert engine.topology.route(tickets[:count]) == Replay(bucket, count)
    assert engine.topology.route(tickets[0]) == Replay(2, 1)
    assert engine.topology.route(iter(tickets)) == Replay(4, 4)


def test_growth_past_the_width_counts_once_in_the_metrics_and_each_step_in_the_topology() -> None:
    engine = Engine()
    assert engine.staging.shape.widths == {"full": 6}
    engine.cache.set_graph_widths(engine.staging.shape.widths)
    ticket = engine.admit("a", [1] * 24)
    for step in range(1, 4):
        engine.grow([ticket], [1])
        assert engine.topology.route(ticket).reason == "width"
        assert engine.topology.counts["width"] == step
        assert engine.cache.metrics().eager["width"] == 1  # the growth, counted by the core
        engine.eager([ticket])
        engine.advance([ticket])
    engine.cache.set_graph_widths(None)
    routed(engine, ticket, "width")  # nobody else counts it now


def test_a_lease_may_be_longer_than_the_tables() -> None:
    engine = Engine()
    keys = hk.block_keys(range(32), 4, identity=engine.spec.identity)
    engine.cache.insert(keys[:7])
    lease = engine.cache.match(keys).lease
    eager = routed(engine, lease, "width")
    assert (eager.group, eager.needed) == ("full", 7)
    lease.cancel()
    with pytest.raises(hk.LeaseExpired):
        engine.topology.route(lease)
    lease = engine.cache.match(keys, limit=25).lease
    assert lease.tokens == 24
    assert engine.topology.route([lease]) == Replay(2, 1)
    assert engine.topology.route([lease], more_tokens=1).reason == "width"
    lease.cancel()


def test_a_spec_that_is_equal_is_the_same_without_a_cache() -> None:
    engine = Engine()
    topology = Topology.capture({}, engine.spec, max_blocks=WIDTHS | {"window": 6}, padding=PADDING)
    other = Engine()
    ticket = other.admit("a", [1])
    other.grow([ticket], [2])
    assert topology.route([ticket]) == Replay(1, 1)
    stranger = homogeneous(8).admit("b", 16)
    eager = topology.route([stranger])
    assert (eager.reason, eager.field) == ("cache", "batch")
    stranger.close()


@pytest.mark.parametrize("on_change", ["flush", "version"])
def test_a_graph_outlives_weights_that_are_replaced_in_place(on_change: str) -> None:
    """Pages, tables and addresses are as they were: what is another is the identity, of which no graph knows."""
    cache = homogeneous(8)
    staging = Staging(cache.spec, max_blocks=4, padding=-1, cache=cache)
    topology = Topology.capture({}, cache.spec, staging=staging, cache=cache)
    cache.update_identity(hk.Identity("m", weights="r2"), on_change=on_change)
    ticket = cache.admit("later", max_tokens=8)
    ticket.grow(1)
    assert topology.route([ticket]) == Replay(1, 1)
    assert staging.update([ticket]) == 1
    again = Staging(cache.spec, max_blocks=4, padding=-1, cache=cache)
    assert isinstance(Topology.capture({}, cache.spec, staging=again, cache=cache).route([ticket]), Replay)
    ticket.close()


def test_counts_of_many_threads_are_all_there() -> None:
    counts, before = EagerCounts(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda: [counts.add("moved") for _ in range(2000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert counts.read() == {reason: 8000 * (reason == "moved") for reason in EAGER_REASONS}


def _capture(**change: Any) -> Any:
    cache = homogeneous(8)
    given: dict[str, Any] = {"buffers": {"kv": np.zeros((9, 16), np.uint8)}, "spec": cache.spec, "max_blocks": 2}
    given |= {"padding": 8, "cache": cache, **change}
    return Topology.capture(given.pop("buffers"), given.pop("spec"), **given)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no mapping": ({"buffers": [1]}, "buffers"),
    "no array": ({"buffers": {"kv": None}}, "buffers[kv]"),
    "a name that is none": ({"buffers": {1: np.zeros(1)}}, "buffers"),
    "no width": ({"max_blocks": None}, "max_blocks"),
    "no sentinel": ({"padding": None}, "padding"),
    "a live page": ({"padding": 7}, "padding[kv]"),
    "a null page that is not there": ({"padding": 9}, "padding[kv]"),
    "a shifted null page": ({"padding": Padding.null(0)}, "padding[kv]"),
    "too few pages": ({"buffers": {"kv": np.zeros((7, 16), np.uint8)}, "padding": -1}, "buffers[kv]"),
    "too few behind the null page": (
        {"buffers": {"kv": np.zeros((8, 16), np.uint8)}, "padding": Padding.null(0, first=1)}, "buffers[kv]"
    ),
    "a cache of another spec": ({"cache": 7}, "cache"),
    "no lease": ({"pages": [7]}, "pages"),
    "no leases": ({"pages": 7}, "pages"),
    "no spec": ({"spec": "kv"}, "spec"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_capture_is_refused(name: str) -> None:
    change, field = BAD[name]
    _capture()
    with pytest.raises(hk.ArgumentError) as caught:
        _capture(**change)
    assert_named(caught.value)
    assert caught.value.field == field


def test_a_staging_says_all_or_nothing() -> None:
    engine = Engine()
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"max_blocks": 2}, "staging"), ({"padding": -1}, "staging"), ({"compact": ["window"]}, "staging"),
        ({"step_tokens": 2}, "staging"), ({"groups": ["full"]}, "staging"), ({"spec": homogeneous(8).spec}, "staging"),
        ({"buffers": {"lengths": np.zeros(1)}}, "buffers"),
    )  # fmt: skip
    for change, field in bad:
        given: dict[str, Any] = {"buffers": {}, "spec": engine.spec, "staging": engine.staging, **change}
        with pytest.raises(hk.ArgumentError) as caught:
            Topology.capture(given.pop("buffers"), given.pop("spec"), **given)
        assert_named(caught.value)
        assert caught.value.field == field, change


def test_bad_questions_are_refused_and_count_nothing() -> None:
    engine = Engine()
    ticket = engine.admit("a", [1])
    bad: tuple[tuple[Any, dict[str, Any]], ...] = (
        (["a"], {}), (7, {}), (ticket, {"more_tokens": -1}), (ticket, {"formats": {"full": "fp8"}}),
        (ticket, {"formats": {"typo": FORMAT}}), (ticket, {"formats": {7: FORMAT}}), (ticket, {"formats": ["full"]}),
        (ticket, {"padding": [("full", -1)]}),
        (ticket, {"padding": {"none": -1}}), (ticket, {"padding": {"full": "clamp"}}), (ticket, {"buffers": 7}),
        (ticket, {"buffers": engine.buffers(full=None)}),
    )  # fmt: skip
    for batch, more in bad:
        with pytest.raises(hk.ArgumentError) as caught:
            engine.topology.route(batch, **more)
        assert_named(caught.value)
    ticket.close()
    with pytest.raises(hk.Closed):
        engine.topology.route(ticket)
    assert not any(engine.topology.counts.values())


def test_dtypes_of_groups_that_are_not_there_are_refused() -> None:
    engine = Engine()
    for dtypes in ({"typo": "float64"}, {7: "float64"}, "float64"):
        with pytest.raises(hk.ArgumentError) as caught:
            engine.topology.inspect_null_pages(dtypes=dtypes)
        assert_named(caught.value)
        assert caught.value.field == "dtypes"
    assert engine.topology.inspect_null_pages(dtypes={"full": "float64"}) == []


def test_a_format_of_a_group_that_the_graph_does_not_read_says_nothing() -> None:
    engine = Engine()
    topology = Topology.capture(engine.buffers(), engine.spec, max_blocks=6, padding=PADDING, groups=["state"])
    assert topology.route([], formats={"full": hk.KvFormat("halves", "float64")}) == Replay(1, 0)


def test_pages_of_another_cache_are_refused() -> None:
    engine, other = Engine(), make_cache(4, {"full": (hk.Prefix(), 4)})
    other.insert(keys_of(8, 4)[:1])
    lease = other.match(keys_of(8, 4)).lease
    with pytest.raises(hk.ArgumentError, match="leases and tickets of the cache"):
        Topology.capture({}, engine.spec, staging=engine.staging, cache=engine.cache, pages=lease)
    lease.cancel()


def test_a_lease_past_its_deadline_has_ended() -> None:
    now = [0.0]
    spec = hk.CacheSpec.homogeneous(layers=1, page_bytes=16)
    cache = hk.HybridCache(spec, blocks=8, clock=lambda: now[0])
    keys = hk.block_keys(range(32), 16, identity=spec.identity)
    cache.insert(keys[:1])
    lease = cache.match(keys).lease
    topology = Topology.capture({}, spec, max_blocks=2, padding=-1, cache=cache, pages=lease)
    lease.lend("decode-1", deadline_s=5.0)
    topology.check()
    now[0] = 6.0
    with pytest.raises(hk.graph.TopologyChanged) as caught:
        topology.check()
    assert caught.value.eager.reason == "expired"
    cache.revoke()


def test_reasons_are_said_in_the_metrics_and_in_the_document() -> None:
    assert tuple(WHY) == EAGER_REASONS == tuple(homogeneous(8).metrics().eager)
    assert EAGER_REASONS[0] == "width"
    document = Path(__file__).resolve().parents[2] / "docs" / "graphs.md"
    text = document.read_text(encoding="utf-8")
    assert [reason for reason in EAGER_REASONS if f"| `{reason}` | {WHY[reason]} |" not in text] == []
    assert Eager("width", "kv", 4, 5) == Eager("width", group="kv", width=4, needed=5)
