# SPDX-License-Identifier: Apache-2.0
"""What a second reader who wanted to break running requests found, each as a test."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, make_cache, tokens

KV = {"kv": (hk.Prefix(), 4)}
RECURRENT = {"full": (hk.Prefix(), 4), "state": (hk.Checkpoint(), 4)}


def keys_of(cache: Any, ids: np.ndarray) -> Any:
    return hk.block_keys(ids, cache.spec.unit_tokens, identity=cache.spec.identity)


def usable(cache: Any, ids: np.ndarray) -> int:
    verdict = cache.match(keys_of(cache, ids))
    if verdict.lease is not None:
        verdict.lease.cancel()
    return int(verdict.usable_tokens)


# -- a live state that went beyond what is left ------------------------------------------------------


@pytest.mark.parametrize("totals", [(4,), (3, 4), (0, 4), (1, 2, 3, 4)])
def test_a_state_beyond_rejected_drafts_is_kept_at_no_later_total_of_that_step(totals: Sequence[int]) -> None:
    cache, ids = make_cache(4, RECURRENT, blocks=16), tokens(12)
    ticket = cache.admit("a", 12)
    ticket.grow(8)  # the step leaves the state of 8 in the live page
    ticket.rewind(4)
    done = 0
    for total in totals:
        copies = ticket.advance(total, ids[done:total])
        assert all(len(rows) == 0 for rows in copies.values())
        done = total
    ticket.close()
    assert usable(cache, ids) == 0


def test_a_step_that_advances_in_two_calls_keeps_no_such_state_either() -> None:
    cache, ids = make_cache(4, RECURRENT, blocks=16), tokens(12).astype(np.int32)
    ticket = cache.admit("a", 12)
    ticket.grow(8)
    ticket.rewind(4)
    handles, none = np.array([ticket.handle]), np.zeros(1, np.int32)
    out, copies = np.empty((1, 2, 1), np.int32), np.empty((4, 4), np.int32)
    for old, total in ((0, 3), (3, 4)):
        starts = np.array([0, total - old])
        computed = np.array([total])
        cache.step(handles, none, computed, out, tokens=ids[old:total], starts=starts, copies=copies)
        assert (copies == -1).all()
    ticket.close()
    assert usable(cache, ids) == 0


def test_no_tip_is_made_of_it_and_the_next_step_makes_it_right_again() -> None:
    cache, ids = make_cache(4, RECURRENT, blocks=16), tokens(12)
    ticket = cache.admit("a", 12)
    ticket.grow(7)
    ticket.rewind(2)
    ticket.advance(4, ids[:4])
    ticket.advance(5, ids[4:5])
    ticket.close()
    assert usable(cache, ids[:6]) == 0
    again = cache.admit("b", 12)
    again.grow(8)
    again.rewind(4)
    again.advance(4, ids[:4])
    again.grow(4)
    assert any(len(rows) for rows in again.advance(8, ids[4:8]).values())
    again.close()
    assert usable(cache, ids) == 8


# -- handles that nobody closed, beside work in flight -------------------------------------------------


def test_a_lost_ticket_holds_what_launched_work_reads_until_its_event_has_passed() -> None:
    cache, event = make_cache(4, KV, blocks=3), Event()
    ticket = cache.admit("a", 8)
    ticket.grow(4)
    ticket.advance(4, range(4))
    ticket.grow(1)
    ticket.advance(5, [4], after=event)
    with pytest.warns(ResourceWarning, match="without close"):
        del ticket
        gc.collect()
    other = keys_of(cache, np.full(8, 9))
    with pytest.raises(hk.OutOfPages):
        cache.reserve(other)
    event.passed = True
    cache.poll()
    pages = cache.metrics().pages["kv"]
    assert (pages.free, pages.held, pages.cached) == (1, 1, 1)  # one page is quarantined
    fill = cache.reserve(other)
    fill.abort()
    assert [leak.what for leak in cache.leaks()] == ["ticket"]


def test_a_lease_of_a_lost_ticket_stays_pinned_for_what_was_launched_on_it() -> None:
    cache, event, ids = make_cache(4, KV, blocks=3), Event(), tokens(4)
    cache.insert(keys_of(cache, ids))
    lease = cache.match(keys_of(cache, tokens(8)), limit=5).lease
    lease.launched(event)
    ticket = cache.admit("a", 8, lease=lease)
    with pytest.warns(ResourceWarning):
        del ticket, lease
        gc.collect()
    assert cache.metrics().pages["kv"].held == 1
    event.passed = True
    cache.poll()
    assert cache.metrics().pages["kv"].held == 0


# -- refused calls beside events that cannot be asked ---------------------------------------------------


def test_a_second_abort_leaves_the_effect_that_waits() -> None:
    cache, event = make_cache(4, KV, blocks=4), Event()
    fill = cache.reserve(keys_of(cache, tokens(12)))
    fill.abort(after=event)
    event.broken = True
    with pytest.raises(hk.FillClosed):
        fill.abort()
    event.broken, event.passed = False, True
    assert cache.poll() == 1
    assert cache.metrics().pages["kv"].free == 4


def waiting_ticket(cache: Any, event: Event) -> Any:
    ticket = cache.admit("x", 12)
    ticket.grow(12)
    ticket.close(after=event)
    return ticket


def waiting_fill(cache: Any, event: Event) -> Any:
    fill = cache.reserve(keys_of(cache, tokens(12)))
    fill.abort(after=event)
    return fill


def waiting_lease(cache: Any, event: Event) -> Any:
    cache.insert(keys_of(cache, tokens(12)))
    lease = cache.match(keys_of(cache, tokens(13)), limit=13).lease
    lease.release(after=event)
    return lease


def waiting_advance(cache: Any, event: Event) -> Any:
    ticket = cache.admit("x", 12)
    ticket.grow(12)
    ticket.advance(12, tokens(12), after=event)
    return ticket


@pytest.mark.parametrize("wait", [waiting_ticket, waiting_fill, waiting_lease, waiting_advance])
@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_refused_reset_drops_no_effect(wait: Callable[[Any, Event], Any], how: str) -> None:
    cache, event = make_cache(4, KV, blocks=16), Event()
    other, handle = cache.admit("other", 4), wait(cache, event)
    event.broken = True
    with pytest.raises(hk.Busy):
        getattr(cache, how)()
    event.broken, event.passed = False, True
    assert cache.poll() == 1
    other.close()
    if wait is waiting_advance:
        assert cache.metrics().published == 3
        handle.close()
    assert cache.metrics().pages["kv"].held == cache.metrics().pages["kv"].filling == 0
    cache.reset()


def test_a_reset_drops_effects_that_cannot_be_asked_where_nothing_else_lives() -> None:
    cache, broken, late = make_cache(4, KV, blocks=16), Event(), Event()
    waiting_ticket(cache, broken)
    broken.broken = True
    fill = waiting_fill(cache, late)
    with pytest.raises(hk.Busy):
        cache.reset()  # one event has merely not passed
    late.passed = True
    del fill
    cache.reset()
    assert cache.metrics().pages["kv"].free == 16


# -- small things -----------------------------------------------------------------------------------


class Nameless:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("request_", [Nameless(), 10**5000], ids=["its text raises", "a long number"])
def test_a_request_without_a_text_loses_nothing(request_: object) -> None:
    cache = make_cache(4, RECURRENT, blocks=4)
    for _ in range(3):
        ticket = cache.admit(request_, 8)
        assert cache.live()[0].owner == type(request_).__name__
        ticket.close()
    assert all(pages.free == 4 for pages in cache.metrics().pages.values())


def test_a_tip_that_gives_way_is_counted() -> None:
    cache = make_cache(8, {"kv": (hk.Prefix(), 8)}, blocks=64)
    for length in range(1, 8):
        cache.insert(keys_of(cache, np.full(length, 9)))
    metrics = cache.metrics()
    assert (metrics.published, metrics.retired, metrics.pages["kv"].cached) == (7, 3, 4)


@pytest.mark.parametrize("limits", [None, hk.Admission(step_tokens=8)])
def test_growth_beyond_max_tokens_is_out_of_pages_whatever_may_be_in_flight(limits: hk.Admission | None) -> None:
    cache = make_cache(4, KV, blocks=16, admission=limits)
    ticket = cache.admit("a", 6)
    ticket.grow(4)
    out = np.empty((1, 1, 4), np.int32)
    status = cache.step(
        np.array([ticket.handle]), np.array([8], np.int32), np.array([4]), out,
        tokens=tokens(4).astype(np.int32), starts=np.array([0, 4]),
    )  # fmt: skip
    assert (status.tolist(), ticket.tokens, ticket.grown_tokens) == ([1], 4, 4)
    ticket.close()


def test_an_array_without_a_length_names_no_groups() -> None:
    cache = make_cache(4, KV, blocks=16)
    with pytest.raises(hk.ArgumentError, match="groups"):
        cache.admit("a", 8, groups=np.array("kv"))  # type: ignore[arg-type]
