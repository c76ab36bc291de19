# SPDX-License-Identifier: Apache-2.0
"""Fills under a ticket: whose pages they are, until they are published, given back, or the ticket is gone."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import hybridkv as hk
from contract_support import Event, Rules, check_conserved, give_back, keys_of, make_cache, pools, tokens
from ticket_support import assert_named, check_idle, free, homogeneous, run, served, step

BOTH: Rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(33), 16)}


def other(n: int, start: int = 9000) -> Any:
    """Keys of n tokens that nothing else here begins with."""
    return hk.block_keys(tokens(n, start=start), 16)


def fits(cache: Any, most: int) -> bool:
    """Whether another request of so many tokens would be admitted now."""
    try:
        cache.admit("asked", most).close()
    except hk.NotAdmitted:
        return False
    return True


def test_a_fill_takes_what_its_ticket_was_promised_and_nothing_else() -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 80)
    assert fits(cache, 48) and not fits(cache, 49)
    fill = cache.reserve(keys_of(48), ticket=ticket)
    assert fits(cache, 48) and not fits(cache, 49)
    assert free(cache)["kv"] == 5
    fill.publish()
    assert fits(cache, 48) and not fits(cache, 49)  # cached: there for whoever it is promised to
    run(ticket, tokens(80, start=7000), 16)
    ticket.close()
    check_idle(cache)
    assert fits(cache, 128)


def test_beyond_the_share_a_fill_is_refused_by_group_and_nothing_changes() -> None:
    cache = make_cache(16, BOTH, pages={"full": 20, "swa": 20}, admission=hk.Admission(step_tokens=16))
    ticket = cache.admit("a", 160)  # 10 pages, and 4 of the window
    before = pools(cache)
    with pytest.raises(hk.OutOfPages) as caught:
        cache.reserve(keys_of(80), ticket=ticket)
    assert_named(caught.value)
    assert (caught.value.pool, caught.value.needed, caught.value.free) == ("swa", 5, 4)
    assert pools(cache) == before
    cache.reserve(keys_of(80), ticket=ticket, groups={"full": True}).publish()
    with pytest.raises(hk.OutOfPages) as caught:
        cache.reserve(other(176), ticket=ticket, groups={"full": True})
    assert (caught.value.pool, caught.value.needed, caught.value.free) == ("full", 11, 10)
    ticket.close()
    check_idle(cache)


def test_what_a_fill_holds_a_request_cannot_grow_by() -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 64)
    fill = cache.reserve(other(48), ticket=ticket)
    ticket.grow(16)
    with pytest.raises(hk.OutOfPages):
        ticket.grow(16)
    fill.abort()
    ticket.grow(48)
    ticket.close()
    check_idle(cache)


def test_a_fill_in_parts_lets_its_pages_go_in_parts() -> None:
    cache = homogeneous(4)
    ticket = cache.admit("a", 64)
    fill = cache.reserve(other(64), ticket=ticket)
    for published in range(1, 4):
        fill.publish({"kv": [published - 1]})
        ticket.grow(16)
        check_conserved(cache, cache.pages)
        with pytest.raises(hk.OutOfPages):
            ticket.grow(16)
    fill.abort()
    ticket.grow(16)
    ticket.advance(64, tokens(64))
    ticket.close()
    check_idle(cache)


def test_a_fill_goes_on_when_its_ticket_ends() -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 64)
    fill = cache.reserve(other(48), ticket=ticket)
    ticket.close()
    assert fits(cache, 80) and not fits(cache, 81)  # its pages are nobody's
    fill.publish()
    assert fits(cache, 128)
    assert give_back(cache.match(other(49))) == 48
    check_idle(cache)


def test_a_fill_goes_on_when_its_ticket_is_lost() -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 64)
    ticket.grow(16)
    fill = cache.reserve(other(48), ticket=ticket)
    with pytest.warns(ResourceWarning):
        del ticket
        gc.collect()
    assert cache.metrics().quarantined == 1  # its own page alone
    check_conserved(cache, cache.pages)
    fill.publish()
    assert give_back(cache.match(other(49))) == 48
    assert fits(cache, 7 * 16) and not fits(cache, 7 * 16 + 1)


def test_pages_of_a_lost_fill_are_missed_by_its_own_request_alone() -> None:
    cache = homogeneous(8)
    one, two = cache.admit("one", 64), cache.admit("two", 64)
    fill = cache.reserve(other(48), ticket=one)
    with pytest.warns(ResourceWarning):
        del fill
        gc.collect()
    assert [(leak.what, leak.owner) for leak in cache.leaks()] == [("fill", "one")]
    run(two, tokens(64), 16)
    one.grow(16)
    with pytest.raises(hk.OutOfPages):
        one.grow(16)
    one.close()
    two.close()
    assert fits(cache, 80) and not fits(cache, 81)
    check_conserved(cache, cache.pages)


def test_a_fill_evicts_for_its_ticket() -> None:
    cache = homogeneous(8)
    served(cache, tokens(128))
    assert free(cache)["kv"] == 0
    ticket = cache.admit("a", 64)
    cache.reserve(other(64), ticket=ticket).publish()
    assert cache.metrics().retired == 4
    run(ticket, tokens(64, start=7000), 16)
    ticket.close()
    check_idle(cache)


def test_a_fill_of_a_ticket_may_start_at_a_lease() -> None:
    cache = homogeneous(8)
    served(cache, tokens(40))
    lease = cache.match(keys_of(80)).lease
    assert lease.tokens == 40
    ticket = cache.admit("a", 48)
    fill = cache.reserve(keys_of(80), ticket=ticket, lease=lease)
    assert len(fill.copies("kv")) == 1
    fill.publish()
    assert cache.metrics().effective_hits == 1
    run(ticket, tokens(48, start=7000), 16)
    ticket.close()
    check_idle(cache)
    with pytest.raises(hk.ArgumentError) as caught:
        lease = cache.match(keys_of(80)).lease
        ticket = cache.admit("a", 128, lease=lease)
        cache.reserve(keys_of(80), ticket=ticket, lease=lease)  # it is the ticket's
    assert caught.value.field == "lease"
    ticket.close()


def test_a_publish_that_waits_beyond_the_end_of_the_ticket() -> None:
    cache = homogeneous(8)
    ticket, event = cache.admit("a", 64), Event()
    fill = cache.reserve(other(48), ticket=ticket)
    fill.publish(after=event)
    ticket.close(after=event)
    assert not fits(cache, 80)
    event.passed = True
    cache.poll()
    check_idle(cache)
    assert give_back(cache.match(other(49))) == 48


def test_pages_taken_back_after_an_event_are_there_for_a_fill() -> None:
    cache = homogeneous(4)
    ticket, event = cache.admit("a", 64), Event()
    ticket.grow(48)
    ticket.rewind(48, after=event)
    with pytest.raises(hk.OutOfPages):
        cache.reserve(other(64), ticket=ticket)
    event.passed = True
    cache.reserve(other(64), ticket=ticket).abort()
    ticket.close()
    check_idle(cache)


def test_later_pages_stay_in_the_share_until_they_go_back() -> None:
    cache = homogeneous(8)
    first = cache.reserve(other(32))
    ticket = cache.admit("a", 64)
    fill = cache.reserve(other(32), ticket=ticket)
    first.publish()
    fill.publish()
    assert cache.metrics().duplicates == 2
    with pytest.raises(hk.OutOfPages):
        ticket.grow(48)
    fill.abort()
    ticket.grow(64)
    ticket.close()
    first.abort()
    check_idle(cache)


def test_a_fill_has_the_name_of_its_request() -> None:
    cache = homogeneous(8)
    ticket = cache.admit("turn 7", 64)
    fill, named = cache.reserve(other(16), ticket=ticket), cache.reserve(keys_of(16), ticket=ticket, owner="loader")
    assert [(h.what, h.owner, h.pages) for h in cache.live()] == [
        ("fill", "loader", 1),
        ("fill", "turn 7", 1),
        ("ticket", "turn 7", 0),
    ]
    fill.abort()
    named.abort()
    ticket.close()


def test_tickets_that_cannot_answer_for_a_fill() -> None:
    cache, another = homogeneous(8), homogeneous(8)
    foreign, closed, failed = another.admit("a", 16), cache.admit("b", 16), cache.admit("c", 16)
    closed.close()
    failed.fail("wrong")
    before = pools(cache)
    wrong: Any
    for wrong in (foreign, "a ticket", 7):
        with pytest.raises(hk.ArgumentError) as caught:
            cache.reserve(keys_of(16), ticket=wrong)
        assert caught.value.field == "ticket"
    for over in (closed, failed):
        with pytest.raises(hk.Closed) as shut:
            cache.reserve(keys_of(16), ticket=over)
        assert_named(shut.value)
    assert pools(cache) == before
    failed.close()
    foreign.close()


def test_a_leased_window_leaves_no_room_for_a_fill() -> None:
    cache = make_cache(16, BOTH, pages={"full": 30, "swa": 12}, admission=hk.Admission(step_tokens=16))
    served(cache, tokens(64))
    ticket = cache.admit("a", 160, lease=cache.match(keys_of(160)).lease)  # 2 window pages leased, 4 at a time
    with pytest.raises(hk.OutOfPages) as caught:
        cache.reserve(other(48), ticket=ticket)
    assert (caught.value.pool, caught.value.free) == ("swa", 2)
    fill = cache.reserve(other(32), ticket=ticket)
    with pytest.raises(hk.OutOfPages):
        ticket.grow(16)
    fill.publish()
    while ticket.tokens < 160:
        step(ticket, tokens(160), 16)
    ticket.close()
    check_idle(cache)
