# SPDX-License-Identifier: Apache-2.0
"""What tests of other cache managers pin about replayed windows and failed loads, as tests of this one.

A load from elsewhere is seen here as an engine sees it: pages that a ticket has grown, whose rows are written by
the load, and an event that passes when it ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, Rules, check_verdict, give_back, group, keys_of, make_cache, pools, tokens, usable
from ticket_support import (
    RECURRENT,
    check_idle,
    free,
    holds,
    homogeneous,
    made,
    new_pages,
    phases,
    run,
    served,
    step,
    table,
)


def rebuilt(hit: int) -> Any:
    """A cache that holds history alone; its window of 32 tokens is rebuilt by replay."""
    swa = group("swa", hk.Window(32), rebuildable=True, layers=(0,))
    cache = hk.HybridCache(hk.CacheSpec(16, [group("full", hk.Prefix()), swa]), blocks=64)
    cache.insert(keys_of(hit), {"full": True})
    return cache


# -- replay -----------------------------------------------------------------------------------------


def test_R1_a_hit_replays_its_window_without_allocating_history_again() -> None:
    cache = rebuilt(96)
    v = cache.match(keys_of(100))
    assert usable(v) == 96
    assert v.plan.resume_tokens == 64
    assert 100 - v.plan.resume_tokens == 36
    shared = np.asarray(v.lease.page_ids("full")).tolist()
    ticket = cache.admit("a", 100, lease=v.lease)
    replayed = table(ticket, "swa")
    assert replayed[:4] == [-1] * 4
    assert min(replayed[4:]) >= 0  # pages for the rows that are written again
    slots = ticket.grow(4)
    assert table(ticket, "full") == shared + new_pages(slots, "full")
    assert len(new_pages(slots, "full")) == 1
    window = table(ticket, "swa")
    assert window == replayed + new_pages(slots, "swa")
    assert len(window[4:]) == len(set(window[4:])) == 3
    ticket.advance(100, tokens(100)[96:])
    assert holds(ticket, "swa") == [4, 5, 6]
    ticket.close()
    check_idle(cache)


@pytest.mark.parametrize("hit", [16, 32])
def test_R2_a_hit_no_longer_than_its_window_is_none(hit: int) -> None:
    cache = rebuilt(hit)
    v = cache.match(keys_of(100))
    check_verdict(v)
    assert (v.matched_tokens, v.usable_tokens, v.lease) == (hit, 0, None)
    assert not dict(v.plan.replay)
    ticket = cache.admit("a", 100)
    assert ticket.tokens == 0
    run(ticket, tokens(100), 50)
    ticket.close()
    check_idle(cache)


def test_R4_chunks_that_only_replay_make_progress_and_allocate_nothing() -> None:
    cache = rebuilt(96)
    v = cache.match(keys_of(100))
    at = v.plan.resume_tokens
    ticket = cache.admit("a", 100, lease=v.lease)
    ticket.grow(4)
    before = pools(cache)
    chunks = []
    while at < 100:
        count = min(16, 96 - at) or 4
        at += count
        chunks.append(count)
        if at <= 96:  # what is replayed was counted before: the total stays
            ticket.advance(96)
            assert (ticket.tokens, pools(cache), cache.metrics().pending) == (96, before, 1)
    assert chunks == [16, 16, 4]
    ticket.advance(100, tokens(100)[96:])
    assert cache.metrics().effective_hits == 1
    ticket.close()
    check_idle(cache)


# -- loads ------------------------------------------------------------------------------------------


def test_T5_a_completion_that_comes_twice_changes_nothing() -> None:
    cache = homogeneous(16)
    load = Event()
    fill = cache.reserve(keys_of(64))
    fill.publish(after=load)
    load.passed = True
    assert cache.poll() == 1
    before = pools(cache)
    assert cache.poll() == 0
    fill.publish(after=load)
    fill.publish()
    assert pools(cache) == before
    assert cache.metrics().published == 4
    ticket = cache.admit("a", 128, lease=cache.match(keys_of(128)).lease)
    second = Event()
    step(ticket, tokens(128), 32, after=second)
    second.passed = True
    assert cache.poll() >= 1
    before = pools(cache)
    assert cache.poll() == 0
    assert made(ticket.advance(96)) == {}
    assert (pools(cache), cache.metrics().published) == (before, 6)
    ticket.close()
    check_idle(cache)


@pytest.mark.parametrize("by", ["ticket", "fill"])
def test_T5_an_abort_while_a_load_runs_keeps_its_pages(by: str) -> None:
    cache = homogeneous(4)
    load = Event()
    if by == "ticket":
        ticket = cache.admit("a", 64)
        ticket.grow(64)
        ticket.close(after=load)
    else:
        cache.reserve(keys_of(64)).abort(after=load)
    for _ in range(3):
        cache.poll()
        assert free(cache)["kv"] == 0
        with pytest.raises(hk.OutOfPages):
            cache.reserve(hk.block_keys(tokens(16, start=900), 16))
        with pytest.raises(hk.NotAdmitted):
            cache.admit("b", 16)
    load.passed = True
    cache.poll()
    check_idle(cache)
    assert free(cache)["kv"] == 4
    assert cache.match(keys_of(65)).outcome == hk.Outcome.MISS


# -- failed loads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_F2_a_bad_block_cuts_the_length_and_is_never_published(asynchronous: bool) -> None:
    rules: Rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(33), 16)}
    cache = make_cache(16, rules, blocks=64)
    ticket = cache.admit("a", 160)
    ticket.grow(96)  # six blocks are loaded; the fourth turns out bad
    before = {name: table(ticket, name) for name in rules}
    load = Event() if asynchronous else None
    ticket.rewind(48)
    ticket.advance(48, tokens(48), after=load)
    if load is not None:
        cache.poll()
        assert cache.match(keys_of(160)).outcome == hk.Outcome.MISS
        load.passed = True
        cache.poll()
    assert (ticket.tokens, ticket.grown_tokens) == (48, 48)
    assert table(ticket, "full") == before["full"][:3]
    assert phases(cache, keys_of(96), "full") == ["ready"] * 3 + ["absent"] * 3
    assert phases(cache, keys_of(96), "swa") == ["ready"] * 3 + ["absent"] * 3
    assert give_back(cache.match(keys_of(160))) == 48
    run(ticket, tokens(160), 16)  # recomputed
    assert give_back(cache.match(keys_of(161))) == 160
    ticket.close()
    check_idle(cache)


def test_F2_the_good_blocks_before_a_bad_one_stay_the_requests_own() -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 128)
    step(ticket, tokens(128), 32)
    held = table(ticket, "kv")
    ticket.grow(48)
    ticket.rewind(48)
    assert table(ticket, "kv") == held
    assert free(cache)["kv"] == 6
    with pytest.raises(hk.Busy):
        ticket.rewind(16)
    ticket.close()
    check_idle(cache)


@pytest.mark.parametrize("rules", [RECURRENT, {"full": (hk.Prefix(), 16), "swa": (hk.Window(33), 16)}])
def test_F3_a_failed_load_of_several_groups_publishes_nothing_of_any(rules: Rules) -> None:
    cache = make_cache(16, rules, blocks=64)
    ticket = cache.admit("a", 160)
    ticket.grow(96)
    load = Event()
    ticket.advance(96, tokens(96), after=load)
    ticket.fail("one group's load failed")
    load.passed = True
    cache.poll()
    ticket.close()
    cache.poll()
    assert cache.match(keys_of(160)).outcome == hk.Outcome.MISS
    for name in rules:
        assert phases(cache, keys_of(96), name) == ["absent"] * 6
    assert free(cache) == cache.pages
    check_idle(cache)


def test_F3_a_failed_resume_is_counted_against_integrity_and_published_nowhere() -> None:
    cache = make_cache(16, RECURRENT, blocks=64)
    served(cache, tokens(96), 96)
    ticket = cache.admit("a", 160, lease=cache.match(keys_of(160)).lease)
    ticket.grow(32)
    ticket.fail(hk.StateKind.TAIL)
    m = cache.metrics()
    assert m.false_hits[hk.Check.INTEGRITY][hk.StateKind.TAIL] == 1
    with pytest.raises(hk.Closed):
        ticket.advance(128, tokens(128)[96:])
    ticket.close()
    assert give_back(cache.match(keys_of(160))) == 96
    check_idle(cache)
