# SPDX-License-Identifier: Apache-2.0
"""Field cases of use after check, of transfers beside a running request, and of states that moved with a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import (
    Event,
    Rules,
    blamed,
    check_conserved,
    full_swa,
    give_back,
    held,
    keys_of,
    make_cache,
    parting,
    pools,
    put,
    tokens,
    usable,
)
from ticket_support import (
    GEMMA,
    RECURRENT,
    check_idle,
    copies_of,
    free,
    holds,
    homogeneous,
    longer,
    made,
    new_pages,
    phases,
    pins,
    run,
    served,
    step,
    table,
    worst,
)

# -- windows, tails and lists that moved with a sequence --------------------------------------------


def test_FC_008_a_page_is_handed_on_only_after_the_table_let_go_of_it() -> None:
    cap = worst(GEMMA, 512, step=16)
    pages = {"full": 64, "swa": 2 * cap["swa"]}
    cache = make_cache(16, GEMMA, blocks=256, pages=pages, admission=hk.Admission(step_tokens=16))
    first, second = cache.admit("a", 512), cache.admit("b", 512)
    other = tokens(512, start=9000)
    handed_on = 0
    slid: set[int] = set()
    for at in range(0, 512, 16):
        event = Event()
        reads = {page for page in table(first, "swa") if page >= 0}
        first.grow(16)
        reads |= {page for page in table(first, "swa") if page >= 0}
        first.advance(at + 16, tokens(512)[at : at + 16], after=event)
        fresh = set(new_pages(second.grow(16), "swa"))
        assert not fresh & reads  # the step that may read them runs
        handed_on += len(fresh & slid)
        second.advance(at + 16, other[at : at + 16])
        event.passed = True
        cache.poll()
        now = {page for page in table(first, "swa") if page >= 0}
        slid |= reads - now
        slid -= now
    assert handed_on > 0
    first.close()
    second.close()
    check_idle(cache)


def test_FC_028_a_checkpoint_of_a_length_holds_the_state_of_that_length_or_is_not_made() -> None:
    cache = make_cache(64, {"full": (hk.Prefix(), 64), "state": (hk.Checkpoint(), 1024)}, blocks=256)
    ticket = cache.admit("a", 4096)
    step(ticket, tokens(4096), 1022)
    ticket.grow(6)  # one token and five drafts
    assert made(ticket.advance(1027, tokens(1027)[1022:])) == {}
    ticket.rewind(1)
    assert list(step(ticket, tokens(4096), 2048 - 1027)) == ["state"]
    ticket.close(keep_tip=False)
    v = cache.match(keys_of(4096, 64))
    assert np.asarray(v.boundaries).tolist() == [2048]
    v.lease.cancel()
    assert phases(cache, keys_of(2048, 64), "state") == ["absent", "ready"]
    check_idle(cache)


def test_FC_037_rejected_drafts_take_every_state_back_in_one_step() -> None:
    rules: Rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(17), 16), "state": (hk.Checkpoint(), 16)}
    cache = make_cache(16, rules, blocks=64)
    served(cache, tokens(44), 44)
    ids = longer(44, 60)
    ticket = cache.admit("a", 104, lease=cache.match(hk.block_keys(ids, 16)).lease)
    ticket.grow(4)
    ticket.advance(45, ids[44:45])
    ticket.rewind(3)
    assert (ticket.tokens, ticket.grown_tokens) == (45, 45)
    assert {len(table(ticket, name)) for name in rules} == {3}
    assert holds(ticket, "full") == [0, 1, 2]
    ticket.close()
    v = cache.match(hk.block_keys(ids, 16))
    assert usable(v) == 44  # no state of 45 was ever in memory alone
    again = cache.admit("a", 104, lease=v.lease)
    again.grow(4)
    assert len({row[1] for row in copies_of(again, "state")} | {again.live_page("state")}) == 1
    run_rest(again, ids)
    again.close()
    assert give_back(cache.match(hk.block_keys(np.append(ids, 1), 16))) == 104
    check_idle(cache)


def run_rest(ticket: Any, ids: np.ndarray) -> None:
    """Write what is grown, then the rest of the ids."""
    ticket.advance(ticket.grown_tokens, ids[ticket.tokens : ticket.grown_tokens])
    run(ticket, ids, 16)


def test_FC_055_the_list_of_tokens_and_the_rows_move_together() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 64)
    step(ticket, tokens(64), 30)
    ticket.grow(5)
    broken = Event()
    broken.broken = True
    with pytest.raises(OSError, match="gone"):
        ticket.advance(35, tokens(35)[30:], after=broken)
    with pytest.raises(hk.ArgumentError):
        ticket.advance(35, tokens(34)[30:])
    assert (ticket.tokens, ticket.grown_tokens) == (30, 35)
    assert give_back(cache.match(keys_of(64))) == 16
    ticket.close()
    v = cache.match(keys_of(64))
    assert usable(v) == 30
    v.lease.release()
    check_idle(cache)


# -- use after check --------------------------------------------------------------------------------


def test_FC_118_what_was_refilled_since_is_not_taken() -> None:
    cache = homogeneous(8)
    mine, other = parting(16, 32, 32, 16)
    cache.insert(mine)
    v = cache.match(mine, limit=17)
    assert v.lease.tokens == 16
    assert cache.evict(mine) == 1
    cache.insert(other)  # other content where the second page was
    assert v.lease.extend(mine) == 16
    v.lease.release()
    v = cache.match(mine, limit=33)
    assert usable(v) == 16
    v.lease.release()
    cache.evict(other)
    empty = cache.match(mine)
    assert (empty.outcome, empty.lease) == (hk.Outcome.MISS, None)


def test_FC_119_pins_are_counted_and_never_timed() -> None:
    cache = homogeneous(4)
    served(cache, tokens(32))
    v = cache.match(keys_of(33))
    pages = np.asarray(v.lease.page_ids("kv")).tolist()
    life = np.asarray(v.lease.handouts("kv")).tolist()
    for turn in range(50):  # everything else is evicted and refilled many times meanwhile
        cache.poll()
        served(cache, tokens(32, start=1000 * (turn + 1)))
    assert np.asarray(v.lease.page_ids("kv")).tolist() == pages
    assert np.asarray(v.lease.handouts("kv")).tolist() == life
    v.lease.release()
    with pytest.raises(hk.LeaseExpired):
        v.lease.page_ids("kv")


def test_FC_121_a_refusal_moves_no_count() -> None:
    cache = homogeneous(8)
    served(cache, tokens(32))
    other = cache.admit("b", 48)
    other.grow(48)
    before = pools(cache)
    assert before["kv"] == (3, 3, 0, 2)  # five to be had, of which two are matched
    v = cache.match(keys_of(96))
    assert usable(v) == 32
    with pytest.raises(hk.NotAdmitted) as refused:
        cache.admit("a", 96, lease=v.lease)
    assert refused.value.retry
    assert pools(cache) == before
    assert pins(cache, keys_of(32), "kv") == [0, 0]
    other.close()
    check_idle(cache)


def test_FC_122_one_lease_covers_what_was_here_and_what_came() -> None:
    cache = homogeneous(4)
    served(cache, tokens(32))
    served(cache, tokens(32, start=7000))
    v = cache.match(keys_of(65))
    here = set(np.asarray(v.lease.page_ids("kv")).tolist())
    loader = cache.admit("loads", 64, lease=cache.match(keys_of(65)).lease)
    target = set(new_pages(loader.grow(32), "kv"))  # no page is free, two can be evicted
    assert not target & here
    loader.advance(64, tokens(64)[32:])
    assert v.lease.extend(keys_of(65)) == 64
    assert set(np.asarray(v.lease.page_ids("kv")).tolist()) == here | target
    loader.close()
    assert pins(cache, keys_of(64), "kv") == [1] * 4
    assert cache.evict(keys_of(64)) == 0
    v.lease.release()
    check_idle(cache)


def test_FC_124_a_group_without_pages_gives_none_back() -> None:
    cache = make_cache(16, GEMMA, blocks=64)
    put(cache, keys_of(64), {"full": range(4)})
    before = free(cache)
    assert cache.evict(keys_of(64), {"swa": True}) == 0
    assert free(cache) == before
    ticket = cache.admit("a", 256)
    run(ticket, tokens(256), 16)
    assert table(ticket, "swa")[:12] == [-1] * 12
    ticket.close()
    cache.evict(keys_of(256))
    assert free(cache) == cache.pages
    everything = cache.reserve(keys_of(64 * 16))
    for name in GEMMA:
        ids = np.asarray(everything.page_ids(name)).tolist()
        assert sorted(ids) == list(range(64))
    everything.abort()


def test_FC_125_what_is_released_is_what_is_credited() -> None:
    cache = make_cache(64, {"full": (hk.Prefix(), 64), "swa": (hk.Window(128), 64)}, blocks=64)
    short, long = keys_of(64, 64), keys_of(576, 64)
    for keys in (short, long):
        cache.insert(keys)
    rest = {name: phases(cache, long, name)[1:] for name in ("full", "swa")}
    before = free(cache)
    assert cache.evict(short, {"swa": True}) == free(cache)["swa"] - before["swa"] == 1
    assert {name: phases(cache, long, name)[1:] for name in ("full", "swa")} == rest
    before = free(cache)
    assert cache.evict(long, {"swa": True}) == free(cache)["swa"] - before["swa"] == 8
    assert free(cache)["full"] == 64 - 9
    assert cache.evict(long) == 9
    assert free(cache) == cache.pages


def test_FC_127_a_lease_is_moved_and_never_dropped_on_the_way() -> None:
    cache = homogeneous(16)
    served(cache, tokens(32))
    keys = keys_of(32)

    def pinned() -> bool:
        return cache.evict(keys) == 0 and min(pins(cache, keys, "kv")) >= 1

    for by in ("ticket", "fill", "extend"):
        lease = cache.match(keys_of(48)).lease
        assert pinned()
        if by == "ticket":
            ticket = cache.admit("a", 48, lease=lease)
            assert pinned()
            ticket.grow(16)
            assert pinned()
            ticket.advance(33, tokens(33)[32:])
            assert pinned()
            ticket.close(keep_tip=False)
        elif by == "fill":
            fill = cache.reserve(keys_of(48), lease=lease)
            assert pinned()
            fill.publish({"kv": []})
            assert pinned()
            fill.abort()
        else:
            assert lease.extend(keys_of(48)) == 32
            assert pinned()
            lease.cancel()
        assert pins(cache, keys, "kv") == [0, 0]
    check_idle(cache)


def test_FC_128_pages_are_free_only_after_the_newest_step_that_may_touch_them() -> None:
    cache = homogeneous(4)
    ticket = cache.admit("a", 48)
    first, second = Event(), Event()
    ticket.grow(47)
    ticket.advance(47, tokens(47), after=first)
    ticket.grow(1)
    mine = set(table(ticket, "kv"))
    ticket.close(keep_tip=False, after=second)  # it ended, and step N + 1 was launched
    first.passed = True
    cache.poll()
    fill = cache.reserve(hk.block_keys(tokens(16, start=900), 16))
    assert not set(np.asarray(fill.page_ids("kv")).tolist()) & mine
    with pytest.raises(hk.OutOfPages):
        cache.reserve(hk.block_keys(tokens(16, start=2000), 16))
    second.passed = True
    cache.poll()
    late = cache.reserve(hk.block_keys(tokens(16, start=2000), 16))
    assert set(np.asarray(late.page_ids("kv")).tolist()) <= mine
    fill.abort()
    late.abort()
    check_idle(cache)


def test_FC_130_a_fill_that_ends_after_its_removal_is_discarded() -> None:
    cache = homogeneous(8)
    fill = cache.reserve(keys_of(32))
    fill.abort()
    with pytest.raises(hk.FillClosed):
        fill.publish()
    ticket = cache.admit("a", 64)
    ticket.grow(32)
    late = Event()
    ticket.advance(32, tokens(32), after=late)
    ticket.fail("removed meanwhile")
    ticket.close()
    late.passed = True
    cache.poll()
    assert cache.match(keys_of(64)).outcome == hk.Outcome.MISS
    assert phases(cache, keys_of(32), "kv") == ["absent", "absent"]
    check_idle(cache)


def test_FC_134_identity_goes_with_the_page() -> None:
    cache = homogeneous(1)
    served(cache, tokens(16))
    [first] = cache.inspect(keys_of(16))["kv"]
    served(cache, tokens(16, start=9000))  # evicts it: the pool has one page
    [gone] = cache.inspect(keys_of(16))["kv"]
    assert (gone.phase, gone.page) == ("absent", -1)
    assert cache.match(keys_of(17)).outcome == hk.Outcome.MISS
    [now] = cache.inspect(hk.block_keys(tokens(16, start=9000), 16))["kv"]
    assert now.page == first.page
    assert now.handouts > first.handouts


# -- transfers beside a running request -------------------------------------------------------------


def test_FC_136_a_load_waits_for_the_step_that_uses_its_target() -> None:
    cache = homogeneous(4)
    ticket = cache.admit("a", 64)
    ticket.grow(64)
    running = Event()
    ticket.close(keep_tip=False, after=running)
    with pytest.raises(hk.NotAdmitted):
        cache.admit("load", 16)
    with pytest.raises(hk.OutOfPages):
        cache.reserve(keys_of(16))
    running.passed = True
    cache.poll()
    load = cache.admit("load", 64)
    assert len(new_pages(load.grow(64), "kv")) == 4
    load.close()
    check_idle(cache)


def test_FC_139_a_pending_store_pins_what_it_reads() -> None:
    cache = homogeneous(4)
    ticket = cache.admit("a", 48)
    run(ticket, tokens(48), 48)
    store = cache.match(keys_of(49)).lease
    source = set(np.asarray(store.page_ids("kv")).tolist())
    ticket.close()  # preempted while the store has not yet read
    sent = Event()
    store.release(after=sent)
    other = cache.admit("b", 16)
    assert not set(new_pages(other.grow(16), "kv")) & source
    other.close()
    with pytest.raises(hk.NotAdmitted):
        cache.admit("c", 64)
    assert cache.evict(keys_of(48)) == 0
    sent.passed = True
    cache.poll()
    cache.admit("c", 64).close()
    check_idle(cache)


def test_FC_142_nothing_is_visible_before_it_is_complete() -> None:
    cache = homogeneous(8)
    fill = cache.reserve(keys_of(32))
    v = cache.match(keys_of(64))
    assert (v.outcome, v.remedy, v.lease) == (hk.Outcome.MISS, hk.Remedy.WAIT, None)
    fill.abort()
    ticket = cache.admit("a", 64)
    ticket.grow(32)
    assert cache.match(keys_of(64)).outcome == hk.Outcome.MISS
    written = Event()
    ticket.advance(32, tokens(32), after=written)
    assert cache.match(keys_of(64)).outcome == hk.Outcome.MISS
    written.passed = True
    cache.poll()
    assert give_back(cache.match(keys_of(64))) == 32
    ticket.close()
    check_idle(cache)


def test_FC_143_what_was_not_filled_is_never_handed_out() -> None:
    cache = homogeneous(3)
    with pytest.raises(hk.OutOfPages):
        cache.reserve(keys_of(80))
    assert cache.match(keys_of(81)).outcome == hk.Outcome.MISS
    assert free(cache)["kv"] == 3
    fill = cache.reserve(keys_of(48))
    fill.publish({"kv": [0, 2]})  # the second one failed
    fill.abort()
    v = cache.match(keys_of(81))
    assert usable(v) == 16
    assert held(v.lease, "kv") == [0]
    v.lease.release()
    check_conserved(cache, {"kv": 3})
    assert free(cache)["kv"] == 1


def test_FC_148_groups_that_share_an_index_are_there_together_or_not_at_all() -> None:
    rules: Rules = {"target": (hk.Prefix(), 16), "draft": (hk.Window(33), 16)}
    cache = make_cache(16, rules, blocks=64)
    put(cache, keys_of(64), {"target": range(4)})
    v = cache.match(keys_of(65))
    assert (v.outcome, v.lease) == (hk.Outcome.FALSE_HIT, None)
    assert blamed(v)[:2] == (hk.Check.GROUPS, "draft")
    spans = cache.spans(keys_of(64))
    assert spans == {"target": [(0, 64, "compressed")], "draft": [(0, 64, "absent")]}


def test_FC_149_pages_of_a_send_stay_until_it_succeeded_or_failed() -> None:
    cache = full_swa(window=33)
    ticket = cache.admit("a", 96)
    run(ticket, tokens(96), 32)
    send = cache.match(keys_of(97)).lease
    sent = {name: np.asarray(send.page_ids(name)).tolist() for name in ("full", "swa")}
    ticket.close(keep_tip=False)  # aborted
    assert cache.evict(keys_of(96), {"full": True, "swa": [4, 5]}) == 0
    assert {name: np.asarray(send.page_ids(name)).tolist() for name in ("full", "swa")} == sent
    send.fail("the peer is gone")
    assert cache.evict(keys_of(96), {"full": True, "swa": [4, 5]}) == 8
    check_idle(cache)


def test_FC_149_a_close_after_the_send_keeps_private_pages_too() -> None:
    cache = make_cache(16, RECURRENT, blocks=64, pages={"full": 6, "state": 4})
    ticket = cache.admit("a", 96)
    step(ticket, tokens(96), 40)
    send = Event()
    before = free(cache)
    ticket.close(keep_tip=False, after=send)
    cache.poll()
    assert free(cache) == before
    send.passed = True
    cache.poll()
    assert free(cache)["state"] > before["state"]
    check_idle(cache)
