# SPDX-License-Identifier: Apache-2.0
"""A running request from admission to its end in a cache of full attention: totals, pages, tips, leaks."""

from __future__ import annotations

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, check_conserved, check_verdict, give_back, keys_of, pools, tokens, usable
from ticket_support import (
    check_idle,
    copies_of,
    free,
    homogeneous,
    made,
    new_pages,
    phases,
    pins,
    run,
    served,
    step,
    table,
)

KV = {"kv": 16}


# -- admit and grow ---------------------------------------------------------------------------------


def test_an_admitted_request_begins_with_nothing() -> None:
    cache = homogeneous()
    label = object()
    ticket = cache.admit(label, 100)
    assert isinstance(ticket, hk.Ticket)
    assert ticket.request is label
    assert (ticket.tokens, ticket.grown_tokens, ticket.max_tokens, ticket.closed) == (0, 0, 100, False)
    assert table(ticket, "kv") == []
    assert copies_of(ticket, "kv") == []
    assert ticket.live_page("kv") == -1
    assert pools(cache)["kv"] == (16, 0, 0, 0)
    ticket.close()
    assert ticket.closed
    check_idle(cache)


def test_grown_pages_are_private_and_invisible() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    slots = ticket.grow(40)
    ids = new_pages(slots, "kv")
    assert (slots.start, slots.end) == (0, 40)
    assert slots.live_page("kv") == -1
    assert len(ids) == 3 == len(set(ids))
    assert min(ids) >= 0
    assert table(ticket, "kv") == ids
    assert (ticket.tokens, ticket.grown_tokens) == (0, 40)
    assert pools(cache)["kv"] == (13, 3, 0, 0)
    v = cache.match(keys_of(100))
    check_verdict(v)
    assert v.outcome == hk.Outcome.MISS
    assert phases(cache, keys_of(40), "kv")[:2] == ["absent", "absent"]
    ticket.close()
    check_idle(cache)


def test_a_page_is_taken_only_where_a_block_begins() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    counts = [len(new_pages(ticket.grow(n), "kv")) for n in (1, 15, 1, 15, 16, 2)]
    assert counts == [1, 0, 1, 0, 1, 1]
    assert ticket.grown_tokens == 50
    assert len(table(ticket, "kv")) == 4
    ticket.close()


def test_growing_by_nothing_takes_nothing() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 20)
    before = (pools(cache), table(ticket, "kv"))
    slots = ticket.grow(0)
    assert (slots.start, slots.end, new_pages(slots, "kv")) == (20, 20, [])
    assert (pools(cache), table(ticket, "kv"), ticket.grown_tokens) == (*before, 20)
    ticket.close()


def test_slots_tell_where_the_new_tokens_go() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    spans = [(s.start, s.end) for s in (ticket.grow(n) for n in (20, 5, 30))]
    assert spans == [(0, 20), (20, 25), (25, 55)]
    ticket.close()


def test_grow_beyond_what_was_admitted_is_refused_and_changes_nothing() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    ticket.grow(90)
    before = (table(ticket, "kv"), pools(cache))
    with pytest.raises(hk.OutOfPages) as refused:
        ticket.grow(11)
    assert refused.value.pool == "max_tokens"
    assert (table(ticket, "kv"), pools(cache)) == before
    assert ticket.grown_tokens == 90
    ticket.grow(10)
    assert ticket.grown_tokens == 100
    ticket.close()


def test_a_ticket_has_a_handle_of_its_own() -> None:
    cache = homogeneous()
    first, second = cache.admit("a", 16), cache.admit("b", 16)
    old = first.handle
    assert isinstance(old, int)
    assert old != second.handle
    first.close()
    third = cache.admit("c", 16)
    assert third.handle not in (old, second.handle)
    second.close()
    third.close()


# -- advance ----------------------------------------------------------------------------------------


def test_complete_blocks_are_published_and_stay_the_requests_own() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    ids = new_pages(ticket.grow(40), "kv")
    assert made(ticket.advance(40, tokens(40))) == {}
    assert ticket.tokens == 40
    assert table(ticket, "kv") == ids
    assert pools(cache)["kv"] == (13, 1, 2, 0)
    v = cache.match(keys_of(100))
    assert usable(v) == 32
    assert np.asarray(v.lease.page_ids("kv")).tolist() == ids[:2]
    v.lease.cancel()
    assert pins(cache, keys_of(32), "kv") == [1, 1]
    assert cache.evict(keys_of(32)) == 0
    ticket.close()
    assert pins(cache, keys_of(32), "kv") == [0, 0]
    check_idle(cache)


def test_only_written_rows_are_published() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    ticket.grow(64)
    ticket.advance(17, tokens(17))
    assert give_back(cache.match(keys_of(100))) == 16
    ticket.advance(31, tokens(64)[17:31])
    assert give_back(cache.match(keys_of(100))) == 16
    ticket.advance(32, tokens(64)[31:32])
    assert give_back(cache.match(keys_of(100))) == 32
    ticket.close()


@pytest.mark.parametrize("steps", [[96], [16] * 6, [1] * 96, [5, 27, 3, 61], [31, 1, 32, 32]])
def test_what_is_published_does_not_depend_on_the_steps(steps: list[int]) -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 96)
    for n in steps:
        step(ticket, tokens(96), n)
        assert phases(cache, keys_of(96), "kv") == ["ready"] * (ticket.tokens // 16) + ["absent"] * (
            6 - ticket.tokens // 16
        )
    assert cache.metrics().published == 6
    assert cache.metrics().duplicates == 0
    ticket.close()
    assert give_back(cache.match(keys_of(97))) == 96
    assert pools(cache)["kv"] == (10, 0, 0, 6)


def test_keys_do_as_well_as_tokens() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    ticket.grow(40)
    ticket.advance(20, keys=keys_of(100))
    ticket.advance(40, tokens(40)[20:])
    ticket.grow(60)
    ticket.advance(100, keys=keys_of(120))
    assert give_back(cache.match(keys_of(120))) == 96
    ticket.close()
    assert give_back(cache.match(keys_of(120))) == 100


def test_keys_carry_their_own_identity() -> None:
    cache = homogeneous()
    mine = hk.Identity(adapter="mine")
    ticket = cache.admit("a", 32)
    ticket.grow(32)
    ticket.advance(32, keys=keys_of(32, identity=mine))
    assert cache.match(keys_of(40)).outcome == hk.Outcome.MISS
    assert give_back(cache.match(keys_of(40, identity=mine))) == 32
    ticket.close()


def test_a_ticket_keys_with_the_identity_of_the_spec() -> None:
    mine = hk.Identity(model="m", weights="w")
    spec = hk.CacheSpec(16, [hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)], identity=mine)
    cache = hk.HybridCache(spec, blocks=16)
    served(cache, tokens(32))
    assert cache.match(keys_of(40)).outcome == hk.Outcome.MISS
    assert give_back(cache.match(keys_of(40, identity=mine))) == 32


def test_advance_by_nothing_changes_nothing() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    ticket.grow(40)
    ticket.advance(20, tokens(20))
    before = (pools(cache), table(ticket, "kv"))
    assert made(ticket.advance(20)) == {}
    assert (pools(cache), table(ticket, "kv")) == before
    ticket.close()


def test_publishing_waits_for_the_event_and_totals_do_not() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    ticket.grow(40)
    event = Event()
    ticket.advance(40, tokens(40), after=event)
    assert ticket.tokens == 40
    ticket.grow(8)
    cache.poll()
    assert cache.match(keys_of(100)).outcome == hk.Outcome.MISS
    check_conserved(cache, KV)
    event.passed = True
    cache.poll()
    assert give_back(cache.match(keys_of(100))) == 32
    ticket.close()
    check_idle(cache)


def test_later_steps_are_published_after_earlier_ones() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 64)
    ticket.grow(64)
    first, second = Event(), Event()
    ticket.advance(32, tokens(32), after=first)
    ticket.advance(64, tokens(64)[32:], after=second)
    second.passed = True
    cache.poll()
    assert cache.match(keys_of(100)).outcome == hk.Outcome.MISS
    first.passed = True
    cache.poll()
    assert give_back(cache.match(keys_of(100))) == 64
    ticket.close()


# -- two of one prompt ------------------------------------------------------------------------------


def test_the_first_writer_wins_and_the_second_stays_private() -> None:
    cache = homogeneous()
    first, second = cache.admit("a", 48), cache.admit("b", 48)
    mine, other = new_pages(first.grow(48), "kv"), new_pages(second.grow(48), "kv")
    assert not set(mine) & set(other)
    first.advance(48, tokens(48))
    second.advance(48, tokens(48))
    assert cache.metrics().duplicates == 3
    assert table(second, "kv") == other
    v = cache.match(keys_of(49))
    assert np.asarray(v.lease.page_ids("kv")).tolist() == mine
    v.lease.cancel()
    assert pools(cache)["kv"] == (10, 3, 3, 0)
    second.close()
    assert pools(cache)["kv"] == (13, 0, 3, 0)
    first.close()
    assert pools(cache)["kv"] == (13, 0, 0, 3)
    check_idle(cache)


def test_a_request_publishes_past_what_another_published_first() -> None:
    cache = homogeneous()
    served(cache, tokens(32))
    ticket = cache.admit("b", 64)
    run(ticket, tokens(64), 64)
    assert cache.metrics().duplicates == 2
    assert give_back(cache.match(keys_of(65))) == 64
    ticket.close()
    assert pools(cache)["kv"] == (12, 0, 0, 4)


def test_what_another_holds_filling_stays_private_here() -> None:
    cache = homogeneous()
    fill = cache.reserve(keys_of(32))
    ticket = cache.admit("a", 48)
    run(ticket, tokens(48), 48)
    v = cache.match(keys_of(49))
    assert (v.outcome, v.remedy) == (hk.Outcome.MISS, hk.Remedy.WAIT)
    fill.publish()
    assert give_back(cache.match(keys_of(49))) == 48
    ticket.close()
    check_idle(cache)


# -- rewind -----------------------------------------------------------------------------------------


def test_rejected_drafts_give_their_pages_back() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 30)
    ids = table(ticket, "kv")
    ticket.grow(20)
    assert len(table(ticket, "kv")) == 4
    ticket.rewind(18)
    assert (ticket.tokens, ticket.grown_tokens) == (30, 32)
    assert table(ticket, "kv") == ids
    assert free(cache)["kv"] == 14
    ticket.rewind(2)
    assert ticket.grown_tokens == 30
    ticket.close()


def test_rewind_below_what_is_advanced_is_busy() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 30)
    ticket.grow(5)
    before = (pools(cache), table(ticket, "kv"))
    with pytest.raises(hk.Busy):
        ticket.rewind(6)
    assert (pools(cache), table(ticket, "kv"), ticket.grown_tokens) == (*before, 35)
    ticket.rewind(5)
    with pytest.raises(hk.Busy):
        ticket.rewind(1)
    ticket.close()


def test_pages_of_a_rewind_stay_until_its_event_passed() -> None:
    cache = homogeneous(4)
    ticket = cache.admit("a", 64)
    ticket.grow(64)
    event = Event()
    ticket.rewind(48, after=event)
    assert ticket.grown_tokens == 16
    cache.poll()
    assert free(cache)["kv"] == 0
    event.passed = True
    cache.poll()
    assert free(cache)["kv"] == 3
    ticket.close()
    check_idle(cache)


def test_accepted_drafts_are_published_and_the_rest_can_be_drafted_again() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 96)
    step(ticket, tokens(96), 30)
    while ticket.tokens < 90:
        ticket.grow(5)
        ticket.advance(ticket.tokens + 2, tokens(96)[ticket.tokens : ticket.tokens + 2])
        ticket.rewind(ticket.grown_tokens - ticket.tokens)
        assert give_back(cache.match(keys_of(97))) == ticket.tokens // 16 * 16
        check_conserved(cache, KV)
    assert cache.metrics().duplicates == 0
    ticket.close()
    assert give_back(cache.match(keys_of(97))) == 90
