# SPDX-License-Identifier: Apache-2.0
"""Growth past the width that graphs were captured with: granted, and reported where the engine looks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Rules, keys_of, make_cache, pools, tokens
from ticket_support import assert_named, check_idle, homogeneous, run, served, step, table

BOTH: Rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(33), 32), "state": (hk.Checkpoint(), 16)}


def crossings(cache: Any) -> int:
    """Crossings of a captured width, counted."""
    assert set(cache.metrics().eager) == set(hk.graph.EAGER_REASONS)
    return int(cache.metrics().eager["width"])


def stepped(cache: Any, ticket: Any, grow: int) -> tuple[int, int]:
    """Status and eager group of one batched step that advances to all that was grown, then grows."""
    ids = tokens(ticket.grown_tokens)[ticket.tokens :]
    groups = len(cache.spec.groups)
    eager, out = np.full(1, 77, np.int32), np.empty((1, groups, 8), np.int32)
    status = cache.step(
        np.array([ticket.handle]),
        np.array([grow], np.int32),
        np.array([ticket.grown_tokens]),
        out,
        tokens=ids,
        starts=np.array([0, len(ids)]),
        eager=eager,
    )
    return int(status[0]), int(eager[0])


def test_without_widths_nothing_is_eager() -> None:
    cache = homogeneous(16)
    assert cache.graph_widths == {}
    ticket = cache.admit("a", 256)
    assert ticket.grow(256).eager is None
    assert ticket.eager is None
    assert stepped(cache, ticket, 0) == (0, -1)
    assert crossings(cache) == 0
    ticket.close()


def test_growth_past_the_width_is_granted_and_reported() -> None:
    cache = homogeneous(16)
    cache.set_graph_widths({"kv": 4})
    ticket = cache.admit("a", 256)
    assert ticket.grow(64).eager is None  # just as wide
    slots = ticket.grow(1)
    assert slots.page_ids("kv").size == 1
    assert slots.eager == ticket.eager == hk.graph.Eager("width", "kv", 4, 5)
    assert crossings(cache) == 1
    ticket.grow(60)
    assert ticket.eager.needed == 8
    assert crossings(cache) == 1
    ticket.close()
    check_idle(cache)


def test_chunks_cross_once() -> None:
    cache = make_cache(16, BOTH, blocks=64)
    cache.set_graph_widths({"full": 6, "swa": 2})
    ticket = cache.admit("a", 256)
    seen = []
    for _ in range(8):
        slots = ticket.grow(32)
        ticket.advance(ticket.grown_tokens, tokens(ticket.grown_tokens)[ticket.tokens :])
        seen.append(slots.eager and (slots.eager.group, slots.eager.width, slots.eager.needed))
    assert seen[:4] == [None, None, ("swa", 2, 3), ("full", 6, 8)]  # the first of the spec
    assert all(group == "full" for group, _, _ in seen[4:])
    assert len(table(ticket, "full")) == seen[-1][2] == 16
    assert crossings(cache) == 1
    ticket.close()


def test_rewound_below_and_grown_again_counts_again() -> None:
    cache = homogeneous(16)
    cache.set_graph_widths({"kv": 2})
    ticket = cache.admit("a", 128)
    step(ticket, tokens(128), 32)
    for turn in range(1, 4):
        assert ticket.grow(8).eager
        ticket.rewind(4)
        assert ticket.eager
        assert ticket.grow(2).eager
        assert crossings(cache) == turn
        ticket.rewind(6)
        assert ticket.eager is None
    assert ticket.grow(0).eager is None
    ticket.close()


def test_a_refused_grow_is_no_crossing() -> None:
    cache = homogeneous(4)
    cache.set_graph_widths({"kv": 2})
    ticket = cache.admit("a", 64)
    ticket.grow(32)
    with pytest.raises(hk.OutOfPages):
        ticket.grow(33)
    assert ticket.eager is None
    assert crossings(cache) == 0
    ticket.close()


def test_a_step_tells_by_group_and_its_status_stays_done() -> None:
    cache = make_cache(16, BOTH, blocks=64)
    cache.set_graph_widths({"swa": 1})
    ticket = cache.admit("a", 128)
    seen = [stepped(cache, ticket, 1) for _ in range(40)]
    assert seen == [(0, -1)] * 32 + [(0, 1)] * 8
    assert crossings(cache) == 1
    other = cache.admit("b", 64)
    other.fail("wrong")
    assert stepped(cache, other, 0) == (2, -1)
    other.close()
    ticket.close()
    assert stepped(cache, ticket, 0) == (2, -1)


def test_a_request_that_starts_beyond_the_width_counts_when_it_grows() -> None:
    cache = homogeneous(16)
    served(cache, tokens(96))
    cache.set_graph_widths({"kv": 4})
    ticket = cache.admit("a", 256, lease=cache.match(keys_of(200)).lease)
    assert ticket.eager == hk.graph.Eager("width", "kv", 4, 6)
    assert crossings(cache) == 0
    assert ticket.grow(1).eager.needed == 7
    ticket.grow(1)
    assert crossings(cache) == 1
    ticket.close()


def test_widths_that_change_while_requests_run() -> None:
    cache = homogeneous(16)
    ticket = cache.admit("a", 256)
    ticket.grow(70)  # 5 blocks
    cache.set_graph_widths({"kv": 4})
    assert ticket.eager.needed == 5
    assert crossings(cache) == 0
    assert ticket.grow(1).eager  # takes no page
    assert crossings(cache) == 1
    cache.set_graph_widths({"kv": 3})  # beyond still
    assert ticket.eager.width == 3
    ticket.grow(1)
    assert crossings(cache) == 1
    cache.set_graph_widths({"kv": 8})
    assert ticket.eager is None
    assert ticket.grow(57).eager.needed == 9
    assert crossings(cache) == 2
    cache.set_graph_widths(None)
    assert cache.graph_widths == {}
    assert ticket.grow(16).eager is None
    assert crossings(cache) == 2
    ticket.close()
    check_idle(cache)


def test_a_batch_counts_what_single_calls_count() -> None:
    rng = random.Random(20261130)
    for _ in range(20):
        widths = {name: rng.randrange(1, 6) for name in rng.sample(["full", "swa"], rng.randrange(1, 3))}
        one, many = make_cache(16, BOTH, blocks=64), make_cache(16, BOTH, blocks=64)
        for cache in (one, many):
            cache.set_graph_widths(widths)
        a, b = one.admit("a", 200), many.admit("b", 200)
        expected = 0
        beyond = False
        while a.grown_tokens < 200:
            more = min(rng.randrange(1, 40), 200 - a.grown_tokens)
            a.advance(a.grown_tokens, tokens(a.grown_tokens)[a.tokens :])
            slots = a.grow(more)
            status, group = stepped(many, b, more)
            wide = [n for n, w in widths.items() if -(-a.grown_tokens // {"full": 16, "swa": 32}[n]) > w]
            first = min(wide, key=["full", "swa"].index) if wide else None
            assert (slots.eager.group if slots.eager else None) == first
            assert (status, group) == (0, -1 if first is None else ["full", "swa"].index(first))
            expected += bool(wide) and not beyond
            beyond = bool(wide)
        assert crossings(one) == crossings(many) == expected
        a.close()
        b.close()


BAD_WIDTHS: dict[str, tuple[Any, str]] = {
    "no mapping": ([4], "widths"),
    "unknown group": ({"kv": 4}, "group"),
    "none": ({"full": None}, "widths[full]"),
    "zero": ({"full": 0}, "widths[full]"),
    "a bool": ({"full": True}, "widths[full]"),
    "a fraction": ({"full": 4.0}, "widths[full]"),
    "negative": ({"full": 4, "swa": -1}, "widths[swa]"),
    "no table": ({"full": 4, "state": 1}, "widths[state]"),
}


@pytest.mark.parametrize("name", BAD_WIDTHS)
def test_bad_widths_are_refused_and_change_nothing(name: str) -> None:
    widths, field = BAD_WIDTHS[name]
    cache = make_cache(16, BOTH, blocks=64)
    cache.set_graph_widths({"full": 2})
    with pytest.raises(hk.ArgumentError) as caught:
        cache.set_graph_widths(widths)
    assert_named(caught.value)
    assert caught.value.field == field
    assert cache.graph_widths == {"full": 2}
    ticket = cache.admit("a", 64)
    assert ticket.grow(48).eager == hk.graph.Eager("width", "full", 2, 3)
    ticket.close()
    cache.close()
    with pytest.raises(hk.Closed):
        cache.set_graph_widths(None)


@pytest.mark.parametrize(
    "array", [np.zeros(2, np.int32), np.zeros(1, np.int64), np.zeros((1, 1), np.int32), [0], "eager"]
)
def test_a_bad_array_for_what_is_eager_is_refused(array: Any) -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 64)
    before = pools(cache)
    out = np.empty((1, 1, 2), np.int32)
    with pytest.raises(hk.ArgumentError) as caught:
        cache.step(np.array([ticket.handle]), np.array([16], np.int32), np.array([-1], np.int64), out, eager=array)
    assert caught.value.field == "eager"
    assert (pools(cache), ticket.grown_tokens) == (before, 0)
    ticket.close()


def test_the_largest_width_is_no_limit() -> None:
    cache = homogeneous(16)
    cache.set_graph_widths({"kv": np.int64(2**31)})
    assert cache.graph_widths == {"kv": 2**31}
    ticket = cache.admit("a", 256)
    run(ticket, tokens(256), 16)
    assert ticket.eager is None
    ticket.close()
