# SPDX-License-Identifier: Apache-2.0
"""What tests of other cache managers pin about allocation, windows and eviction, as tests of this one.

`tests/data/cases/peer_cases.json` says each case in a sentence. Other managers share one pool among groups; here
each group has its own, so sizes are given by group.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, Rules, full_swa, give_back, held, keys_of, make_cache, pools, tokens, usable
from ticket_support import (
    GEMMA,
    RECURRENT,
    ample,
    check_idle,
    copies_of,
    free,
    holds,
    homogeneous,
    longer,
    new_pages,
    owned,
    phases,
    pins,
    run,
    served,
    step,
    table,
    worst,
)

MIXED: Rules = {"full": (hk.Prefix(), 4), "swa": (hk.Window(10), 4)}


@pytest.mark.parametrize("short", ["full", "swa"])
def test_A1_a_shortfall_of_one_group_touches_no_group(short: str) -> None:
    pages = {**worst(MIXED, 12), short: 2}
    cache = make_cache(4, MIXED, blocks=64, pages=pages)
    with pytest.raises(hk.NotAdmitted) as refused:
        cache.admit("a", 12)
    assert (refused.value.reason, refused.value.retry) == ("never", False)
    with pytest.raises(hk.OutOfPages):
        cache.reserve(keys_of(12, 4))
    assert free(cache) == pages
    assert {name: set(phases(cache, keys_of(12, 4), name)) for name in MIXED} == {n: {"absent"} for n in MIXED}
    check_idle(cache)


def test_A1_a_shortfall_while_growing_touches_no_group() -> None:
    cache = make_cache(16, GEMMA, blocks=64, pages={"full": 16, "swa": 8})
    served(cache, tokens(64))
    ticket = cache.admit("a", 128)
    step(ticket, tokens(128, start=9000), 16)
    lease = cache.match(keys_of(65)).lease  # pins four window pages that could have been evicted
    before = (free(cache), table(ticket, "full"), table(ticket, "swa"))
    with pytest.raises(hk.OutOfPages) as refused:
        ticket.grow(112)
    assert refused.value.pool == "swa"
    assert (free(cache), table(ticket, "full"), table(ticket, "swa")) == before
    assert ticket.grown_tokens == 16
    lease.release()
    step(ticket, tokens(128, start=9000), 112)
    ticket.close()
    check_idle(cache)


def test_A2_a_refusal_leaves_the_owners_of_a_hit_as_they_were() -> None:
    cache = homogeneous(10)
    ids = longer(48, 48)
    served(cache, ids)
    holder = cache.admit("holds three", 49, lease=cache.match(hk.block_keys(ids[:49], 16)).lease)
    other = cache.admit("takes two", 32)
    other.grow(32)
    holder.grow(1)
    keys = hk.block_keys(ids, 16)
    assert pins(cache, keys, "kv") == [1, 1, 1, 0, 0, 0]
    assert free(cache)["kv"] == 1
    v = cache.match(hk.block_keys(np.append(ids, tokens(48, start=9000)), 16))
    assert usable(v) == 96
    assert pins(cache, keys, "kv") == [2, 2, 2, 1, 1, 1]
    with pytest.raises(hk.NotAdmitted) as refused:
        cache.admit("needs three", 144, lease=v.lease)
    assert refused.value.retry
    assert pins(cache, keys, "kv") == [1, 1, 1, 0, 0, 0]
    assert free(cache)["kv"] == 1
    holder.close()
    other.close()
    check_idle(cache)


def test_A4_what_is_taken_is_what_the_blocks_need() -> None:
    rules: Rules = {"full": (hk.Prefix(), 2), "swa": (hk.Window(8), 2)}
    cache = make_cache(2, rules, blocks=64)
    ticket = cache.admit("a", 16)
    for end in (4, 8, 12, 16):
        before = free(cache)
        slots = ticket.grow(4)
        taken = {name: before[name] - free(cache)[name] for name in rules}
        assert taken == {name: len(new_pages(slots, name)) for name in rules} == {"full": 2, "swa": 2}
        ticket.advance(end, tokens(16)[end - 4 : end])
    ticket.close()
    check_idle(cache)


def test_A5_hits_of_all_groups_are_pinned_before_anything_is_allocated() -> None:
    rules: Rules = {"full": (hk.Prefix(), 16), "near": (hk.Window(17), 16), "far": (hk.Window(33), 16)}
    cache = make_cache(16, rules, blocks=256, pages=ample(rules, 128, step=128))
    served(cache, tokens(64))
    for _ in range(3):  # run, preempt, and admit again
        v = cache.match(keys_of(128))
        assert usable(v) >= 64
        leased = {(name, page) for name in rules for page in np.asarray(v.lease.page_ids(name)).tolist() if page >= 0}
        ticket = cache.admit("a", 128, lease=v.lease)
        slots = ticket.grow(128 - ticket.tokens)  # local hits, and blocks that come from elsewhere, in one call
        fresh = {(name, page) for name in rules for page in new_pages(slots, name)}
        assert not leased & fresh
        assert len(fresh) == sum(len(new_pages(slots, name)) for name in rules)
        assert owned(ticket, rules) >= leased | fresh
        ticket.advance(ticket.tokens + 16, tokens(128)[ticket.tokens : ticket.tokens + 16])
        ticket.close(keep_tip=False)
        check_idle(cache)


@pytest.mark.parametrize("count", [-16, -48])
def test_A6_no_request_for_fewer_than_no_pages(count: int) -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 64)
    step(ticket, tokens(64), 48)
    before = (pools(cache), table(ticket, "kv"))
    with pytest.raises(hk.ArgumentError):
        ticket.grow(count)
    with pytest.raises(hk.ArgumentError):
        ticket.advance(16, tokens(16))  # an outside load reports less than is held
    assert new_pages(ticket.grow(0), "kv") == []
    assert (pools(cache), table(ticket, "kv")) == before
    ticket.close()
    check_idle(cache)


def test_A8_window_pages_go_once_and_after_the_step_that_reads_them() -> None:
    cache = make_cache(16, GEMMA, blocks=256)
    ticket = cache.admit("a", 512)
    keys = keys_of(512)
    step(ticket, tokens(512), 64)
    prefill, decode = Event(), Event()
    ticket.grow(192)
    ticket.advance(256, tokens(256)[64:], after=prefill)
    ticket.grow(16)  # the next step is planned while the prefill runs
    ticket.advance(272, tokens(272)[256:], after=decode)
    cache.poll()
    assert pins(cache, keys, "swa")[:4] == [1] * 4
    assert cache.evict(keys, {"swa": [0, 1, 2, 3]}) == 0
    prefill.passed = True
    cache.poll()
    assert pins(cache, keys, "swa")[:16] == [0] * 12 + [1] * 4
    decode.passed = True
    cache.poll()
    assert pins(cache, keys, "swa")[:17] == [0] * 13 + [1] * 4
    assert cache.evict(keys, {"swa": True}) == 13
    ticket.close()
    check_idle(cache)


@pytest.mark.parametrize("failed", [False, True])
def test_A9_pages_of_an_aborted_request_wait_for_its_newest_step(failed: bool) -> None:
    cache = make_cache(16, RECURRENT, blocks=256, pages={"full": 8, "state": 4})
    served(cache, tokens(23), 23)
    v = cache.match(keys_of(64))
    source = {name: np.asarray(v.lease.page_ids(name)).tolist()[1] for name in RECURRENT}
    ticket = cache.admit("a", 64, lease=v.lease)
    ticket.grow(41)
    assert copies_of(ticket, "full")[0][0] == source["full"]
    mine = owned(ticket, RECURRENT)
    before = free(cache)
    if failed:
        ticket.fail("device lost")
    event = Event()
    ticket.close(keep_tip=False, after=event)
    cache.poll()
    assert free(cache) == before
    assert cache.evict(keys_of(23)) == 0  # the source of a queued copy is withheld as well
    other = cache.reserve(keys_of(16 * before["full"]), groups={"full": True})
    assert not {("full", page) for page in np.asarray(other.page_ids("full")).tolist()} & mine
    other.abort()
    event.passed = True
    cache.poll()
    check_idle(cache)
    assert cache.evict(keys_of(23)) == 3


def test_A11_a_prompt_is_admitted_by_what_its_windows_hold_at_once() -> None:
    admission = hk.Admission(step_tokens=128)
    cache = make_cache(16, GEMMA, blocks=256, pages={"full": 64, "swa": 13}, admission=admission)
    assert worst(GEMMA, 512, step=128) == {"full": 32, "swa": 13}
    ticket = cache.admit("a", 512)
    run(ticket, tokens(512), 128)
    ticket.close()
    check_idle(cache)
    small = make_cache(16, GEMMA, blocks=256, pages={"full": 4, "swa": 13}, admission=admission)
    with pytest.raises(hk.NotAdmitted) as refused:
        small.admit("b", 256)
    assert not refused.value.retry


def test_A12_a_page_that_is_used_again_has_lost_its_name() -> None:
    cache = homogeneous(1)
    served(cache, tokens(16))
    assert give_back(cache.match(keys_of(17))) == 16
    ticket = cache.admit("b", 15)
    ticket.grow(15)
    assert cache.match(keys_of(17)).outcome == hk.Outcome.MISS
    assert phases(cache, keys_of(16), "kv") == ["absent"]
    ticket.advance(15, tokens(15, start=9000))
    ticket.close()
    assert cache.match(keys_of(17)).outcome == hk.Outcome.MISS
    assert give_back(cache.match(hk.block_keys(tokens(16, start=9000), 16))) == 15
    check_idle(cache)


def test_A13_a_page_that_is_hit_is_not_the_one_that_goes() -> None:
    cache = homogeneous(2)
    served(cache, tokens(32))
    v = cache.match(keys_of(32))
    assert usable(v) == 16
    kept = int(np.asarray(v.lease.page_ids("kv"))[0])
    ticket = cache.admit("b", 32, lease=v.lease)
    ticket.grow(16)
    assert table(ticket, "kv")[0] == kept
    assert phases(cache, keys_of(32), "kv") == ["ready", "absent"]
    ticket.advance(32, tokens(16, start=9000))
    ticket.close()
    assert give_back(cache.match(keys_of(33))) == 16
    check_idle(cache)


def test_A18_a_reset_is_refused_while_a_request_owns_pages_and_forgets_all_after() -> None:
    cache = homogeneous(16)
    served(cache, tokens(32))
    ticket = cache.admit("a", 64, lease=cache.match(keys_of(64)).lease)
    step(ticket, tokens(64), 16)
    with pytest.raises(hk.Busy):
        cache.reset()
    assert ticket.tokens == 48
    assert phases(cache, keys_of(48), "kv") == ["ready"] * 3
    ticket.close()
    cache.reset()
    assert cache.match(keys_of(64)).outcome == hk.Outcome.MISS
    assert pools(cache)["kv"] == (16, 0, 0, 0)


def test_A19_history_survives_while_its_window_is_evicted() -> None:
    cache = full_swa(window=33)
    served(cache, tokens(96))
    v = cache.match(keys_of(97))
    assert held(v.lease, "swa") == [4, 5]
    assert cache.evict(keys_of(96)) == 4  # windows that the lease does not need
    assert phases(cache, keys_of(96), "full") == ["ready"] * 6
    assert phases(cache, keys_of(96), "swa") == ["absent"] * 4 + ["ready"] * 2
    assert pins(cache, keys_of(96), "full") == [1] * 6
    v.lease.release()
    check_idle(cache)


def test_A19_an_early_release_drops_the_callers_own_pins_alone() -> None:
    cache = full_swa(window=33)
    served(cache, tokens(96))
    keys = keys_of(400)
    tickets = [cache.admit(i, 200, lease=cache.match(keys).lease) for i in range(2)]
    assert pins(cache, keys, "swa")[4:6] == [2, 2]
    run(tickets[0], longer(96, 104, start=7000), 16)
    assert holds(tickets[0], "swa")[0] > 5
    assert pins(cache, keys, "swa")[4:6] == [1, 1]
    assert pins(cache, keys, "full")[:6] == [2] * 6
    tickets[0].close()
    assert pins(cache, keys, "swa")[4:6] == [1, 1]
    assert pins(cache, keys, "full")[:6] == [1] * 6
    assert cache.evict(keys_of(96), {"swa": [4, 5]}) == 0
    tickets[1].close()
    check_idle(cache)


def test_A20_what_a_match_returned_is_not_evicted_until_it_is_dropped() -> None:
    cache = homogeneous(4)
    served(cache, tokens(64))
    v = cache.match(keys_of(65))
    pages = np.asarray(v.lease.page_ids("kv")).tolist()
    with pytest.raises(hk.NotAdmitted):
        cache.admit("b", 16)
    with pytest.raises(hk.OutOfPages):
        cache.reserve(hk.block_keys(tokens(16, start=900), 16))
    assert cache.evict(keys_of(64)) == 0
    assert np.asarray(v.lease.page_ids("kv")).tolist() == pages
    v.lease.cancel()
    ticket: Any = cache.admit("b", 16)
    ticket.grow(16)
    ticket.close()
    check_idle(cache)
