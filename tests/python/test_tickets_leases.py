# SPDX-License-Identifier: Apache-2.0
"""A request that starts at a lease: who settles the hit, copies before the first write, failure, re-admission."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import (
    Event,
    check_conserved,
    check_counters,
    full_swa,
    give_back,
    keys_of,
    make_cache,
    pools,
    tokens,
    total,
    usable,
)
from ticket_support import (
    GEMMA,
    RECURRENT,
    assert_named,
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
)


def hit(n: int = 96, ask: int = 200, **more: Any) -> tuple[Any, Any]:
    """A cache (full, swa) that serves n tokens, and a lease on them."""
    cache = make_cache(16, GEMMA, blocks=256, **more)
    served(cache, tokens(n))
    v = cache.match(keys_of(ask))
    assert usable(v) == n
    return cache, v.lease


def settled(cache: Any) -> tuple[int, int, int, int]:
    """(pending, effective, withdrawn, false hits), after the law of counting was checked."""
    check_counters(cache)
    m = cache.metrics()
    return m.pending, m.effective_hits, m.withdrawn, total(m.false_hits)


# -- who settles ------------------------------------------------------------------------------------


def test_a_request_starts_at_its_lease() -> None:
    cache, lease = hit()
    leased = {name: np.asarray(lease.page_ids(name)).tolist() for name in GEMMA}
    ticket = cache.admit("a", 200, lease=lease)
    assert (ticket.tokens, ticket.grown_tokens) == (96, 96)
    assert {name: table(ticket, name) for name in GEMMA} == leased
    slots = ticket.grow(20)
    assert (slots.start, slots.end) == (96, 116)
    assert table(ticket, "full") == leased["full"] + new_pages(slots, "full")
    assert len(new_pages(slots, "swa")) == 2
    ticket.close()


def test_the_first_advance_beyond_the_lease_settles_it_as_effective() -> None:
    cache, lease = hit()
    ticket = cache.admit("a", 200, lease=lease)
    assert settled(cache) == (1, 0, 0, 0)
    ticket.grow(20)
    ticket.advance(96)
    assert settled(cache) == (1, 0, 0, 0)
    ticket.advance(97, tokens(97)[96:])
    assert settled(cache) == (0, 1, 0, 0)
    assert not lease.valid
    ticket.close()
    assert settled(cache) == (0, 1, 0, 0)
    check_idle(cache)


def test_a_step_that_has_not_passed_its_event_settles_all_the_same_once() -> None:
    cache, lease = hit()
    ticket = cache.admit("a", 200, lease=lease)
    event = Event()
    ticket.grow(20)
    ticket.advance(116, tokens(116)[96:], after=event)
    event.passed = True
    cache.poll()
    assert settled(cache) == (0, 1, 0, 0)
    ticket.close()
    assert settled(cache) == (0, 1, 0, 0)


def test_a_close_before_any_step_withdraws_the_hit() -> None:
    cache, lease = hit()
    ticket = cache.admit("a", 200, lease=lease)
    ticket.grow(20)
    ticket.close()
    assert settled(cache) == (0, 0, 1, 0)
    assert not lease.valid
    assert give_back(cache.match(keys_of(200))) == 96
    check_idle(cache)


def test_a_failure_settles_the_hit_as_a_false_one() -> None:
    cache, lease = hit()
    ticket = cache.admit("a", 200, lease=lease)
    ticket.grow(20)
    ticket.fail("wrong bytes")
    assert settled(cache) == (0, 0, 0, 1)
    assert total(cache.metrics().false_hits[hk.Check.INTEGRITY]) == 1
    ticket.close()
    assert settled(cache) == (0, 0, 0, 1)
    check_idle(cache)


def test_a_failure_after_the_first_step_leaves_the_hit_effective() -> None:
    cache, lease = hit()
    ticket = cache.admit("a", 200, lease=lease)
    step(ticket, tokens(200), 20)
    ticket.fail("device lost")
    assert settled(cache) == (0, 1, 0, 0)
    ticket.close()
    assert settled(cache) == (0, 1, 0, 0)


def test_a_lease_that_was_taken_over_can_be_read_and_not_settled() -> None:
    cache, lease = hit()
    ids = np.asarray(lease.page_ids("swa")).tolist()
    ticket = cache.admit("a", 200, lease=lease)
    for settle in (lease.release, lease.cancel, lambda: lease.fail("x"), lambda: lease.extend(keys_of(200))):
        with pytest.raises(hk.LeaseExpired):
            settle()
    assert lease.valid
    assert np.asarray(lease.page_ids("swa")).tolist() == ids
    assert np.all(np.asarray(lease.handouts("full")) > 0)
    with lease:
        pass
    assert lease.valid
    step(ticket, tokens(200), 1)
    with pytest.raises(hk.LeaseExpired):
        lease.page_ids("swa")
    ticket.close()


def test_a_refusal_cancels_the_lease() -> None:
    cache, lease = hit(pages={"full": 16, "swa": 16})
    before = pins(cache, keys_of(96), "full")
    assert before == [1] * 6
    with pytest.raises(hk.NotAdmitted):
        cache.admit("a", 10_000, lease=lease)
    assert not lease.valid
    assert settled(cache) == (0, 0, 1, 0)
    assert pins(cache, keys_of(96), "full") == [0] * 6
    check_idle(cache)


def test_a_lease_left_to_its_ticket_is_no_leak_of_its_own() -> None:
    cache, lease = hit()
    ticket = cache.admit("a", 200, lease=lease)
    del lease
    gc.collect()
    assert cache.metrics().leaks == 0
    assert settled(cache)[0] == 1
    step(ticket, tokens(200), 10)
    assert settled(cache) == (0, 1, 0, 0)
    ticket.close()


def test_a_ticket_left_behind_withdraws_its_hit() -> None:
    cache, lease = hit()
    ticket = cache.admit("a", 200, lease=lease)
    ticket.grow(20)
    with pytest.warns(ResourceWarning):
        del ticket, lease
        gc.collect()
    m = cache.metrics()
    assert (m.pending, m.withdrawn, m.leaks, m.quarantined) == (0, 1, 1, 4)
    assert pins(cache, keys_of(96), "full") == [0] * 6
    check_conserved(cache, cache.pages)
    check_counters(cache)


@pytest.mark.parametrize("which", ["no lease", "released", "of another cache", "taken by a fill"])
def test_a_bad_lease_is_refused_and_changes_nothing(which: str) -> None:
    cache, lease = hit()
    _, foreign = hit()
    fill = cache.reserve(keys_of(200), lease=lease) if which == "taken by a fill" else None
    if which == "released":
        lease.release()
    bad = {"no lease": "lease", "of another cache": foreign}.get(which, lease)
    before = (pools(cache), settled(cache))
    with pytest.raises((hk.ArgumentError, hk.LeaseExpired)) as refused:
        cache.admit("a", 200, lease=bad)
    assert_named(refused.value)
    assert (pools(cache), settled(cache)) == before
    assert foreign.valid
    foreign.cancel()
    if fill is not None:
        fill.abort()
    elif lease.valid:
        lease.cancel()


@pytest.mark.parametrize("most", [95, 96])
def test_a_request_must_be_longer_than_its_lease(most: int) -> None:
    cache, lease = hit()
    with pytest.raises(hk.ArgumentError) as refused:
        cache.admit("a", most, lease=lease)
    assert_named(refused.value)
    if lease.valid:
        lease.cancel()
    cache.match(keys_of(200)).lease.cancel()
    check_idle(cache)


# -- copies before the first write ------------------------------------------------------------------


def tipped() -> Any:
    """A tip of 23 tokens of history and state."""
    cache = make_cache(16, RECURRENT, blocks=64)
    served(cache, tokens(23), 23)
    return cache


def test_a_request_from_inside_a_block_copies_it_first() -> None:
    cache = tipped()
    v = cache.match(keys_of(80))
    assert v.lease.tokens == 23
    shared = {name: np.asarray(v.lease.page_ids(name)).tolist()[1] for name in RECURRENT}
    ticket = cache.admit("a", 80, lease=v.lease)
    slots = ticket.grow(10)
    own = table(ticket, "full")[1]
    assert own in new_pages(slots, "full")
    assert copies_of(ticket, "full") == [[shared["full"], own, 7]]
    [[source, target, _]] = copies_of(ticket, "state")
    assert (source, target) == (shared["state"], ticket.live_page("state"))
    assert own != shared["full"]
    assert target != shared["state"]
    step_end = made(ticket.advance(33, tokens(33)[23:]))
    assert step_end == {}
    assert copies_of(ticket, "full") == copies_of(ticket, "state") == []
    ticket.close()
    check_idle(cache)


def test_the_shared_page_stays_pinned_until_the_copy_was_made() -> None:
    cache = tipped()
    v = cache.match(keys_of(80))
    ticket = cache.admit("a", 80, lease=v.lease)
    ticket.grow(10)
    assert cache.evict(keys_of(23)) == 0
    event = Event()
    ticket.advance(33, tokens(33)[23:], after=event)
    cache.poll()
    assert cache.evict(keys_of(23), {"full": [1], "state": [1]}) == 0
    event.passed = True
    cache.poll()
    ticket.close()
    check_idle(cache)
    assert cache.evict(keys_of(23), {"full": [1], "state": [1]}) == 2


def test_a_request_from_a_whole_block_copies_only_its_state() -> None:
    cache = make_cache(16, RECURRENT, blocks=64)
    served(cache, tokens(32), 32)
    v = cache.match(keys_of(80))
    state = int(np.asarray(v.lease.page_ids("state"))[1])
    ticket = cache.admit("a", 80, lease=v.lease)
    ticket.grow(10)
    assert copies_of(ticket, "full") == []
    assert [row[:2] for row in copies_of(ticket, "state")] == [[state, ticket.live_page("state")]]
    ticket.close()
    check_idle(cache)


def test_two_requests_from_one_tip_never_write_each_others_rows() -> None:
    cache = tipped()
    before = [info.page for info in cache.inspect(keys_of(23))["full"]]
    tickets, ids, ownership = [], [], []
    for number in range(2):
        mine = longer(23, 57, start=10_000 * (number + 1))
        v = cache.match(hk.block_keys(mine, 16))
        ticket = cache.admit(number, 80, lease=v.lease)
        ticket.grow(57)
        tickets.append(ticket)
        ids.append(mine)
        written = {target for _, target, _ in copies_of(ticket, "full")} | set(table(ticket, "full")[1:])
        ownership.append((written, ticket.live_page("state")))
    assert not ownership[0][0] & ownership[1][0]
    assert ownership[0][1] != ownership[1][1]
    assert not set(before[1:]) & (ownership[0][0] | ownership[1][0])
    for ticket, mine in zip(tickets, ids, strict=True):
        ticket.advance(80, mine[23:])
        ticket.close()
    for mine in ids:
        assert give_back(cache.match(hk.block_keys(np.append(mine, 1), 16))) == 80
    assert give_back(cache.match(keys_of(40))) == 23
    assert [info.page for info in cache.inspect(keys_of(23))["full"]] == before
    check_idle(cache)


def test_bytes_of_a_shared_tip_survive_both_continuations() -> None:
    cache = homogeneous(16, verify="all")
    pool = np.zeros((16, 64), dtype=np.uint8)  # 16 rows of 4 bytes
    cache.bind("kv", pool)

    def write(ticket: Any, ids: np.ndarray, start: int, end: int) -> None:
        for source, target, rows in copies_of(ticket, "kv"):
            pool[target, : 4 * rows] = pool[source, : 4 * rows]
        for at in range(start, end):
            pool[table(ticket, "kv")[at // 16], 4 * (at % 16) : 4 * (at % 16) + 4] = ids[at] % 251 + 1

    def rows_of(lease: Any, n: int) -> list[int]:
        page = np.asarray(lease.page_ids("kv"))
        return [int(pool[page[at // 16], 4 * (at % 16)]) for at in range(n)]

    first = cache.admit("tip", 23)
    first.grow(23)
    write(first, tokens(23), 0, 23)
    first.advance(23, tokens(23))
    first.close()
    prompts = [longer(23, 40, start=10_000 * (i + 1)) for i in range(3)]
    tickets = [cache.admit(i, 63, lease=cache.match(hk.block_keys(p, 16)).lease) for i, p in enumerate(prompts)]
    for ticket in tickets:
        ticket.grow(40)
    for ticket, ids in zip(tickets, prompts, strict=True):
        write(ticket, ids, 23, 63)
    for ticket, ids in zip(tickets, prompts, strict=True):
        ticket.advance(63, ids[23:])
        ticket.close()
    for ids in (*prompts, tokens(23)):
        v = cache.match(hk.block_keys(np.append(ids, 1), 16))
        assert usable(v) == len(ids)
        assert rows_of(v.lease, len(ids)) == [int(i) % 251 + 1 for i in ids]
        v.lease.release()
    assert total(cache.metrics().false_hits[hk.Check.INTEGRITY]) == 0


# -- failure ----------------------------------------------------------------------------------------


def test_after_a_failure_nothing_more_is_published() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 32)
    ticket.grow(32)
    event = Event()
    ticket.advance(64, tokens(64)[32:], after=event)
    ticket.fail("wrong bytes")
    event.passed = True
    cache.poll()
    ticket.close()
    cache.poll()
    assert give_back(cache.match(keys_of(100))) == 32
    assert pools(cache)["kv"] == (14, 0, 0, 2)
    check_idle(cache)


def test_after_a_failure_only_close_and_reading_are_left() -> None:
    cache = homogeneous()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 40)
    ids = table(ticket, "kv")
    ticket.fail()
    calls: list[Any] = [lambda: ticket.grow(1), lambda: ticket.advance(41, [1]), lambda: ticket.rewind(0)]
    for call in calls:
        with pytest.raises(hk.Closed):
            call()
    assert (ticket.tokens, table(ticket, "kv")) == (40, ids)
    ticket.close()
    assert give_back(cache.match(keys_of(100))) == 32
    assert free(cache)["kv"] == 14


def test_a_pending_checkpoint_dies_with_a_failure() -> None:
    cache = make_cache(16, RECURRENT, blocks=64)
    ticket = cache.admit("a", 100)
    assert "state" in step(ticket, tokens(100), 32)
    ticket.fail("wrong bytes")
    ticket.close()
    assert phases(cache, keys_of(32), "state") == ["absent", "absent"]
    assert pools(cache)["state"] == (64, 0, 0, 0)
    check_idle(cache)


# -- preemption and re-admission --------------------------------------------------------------------


def test_a_preempted_request_comes_back_by_the_front_door() -> None:
    cache = full_swa(window=33, blocks=64)
    ids = tokens(200)
    ticket = cache.admit("a", 200)
    run(ticket, ids, 20, to=100)
    ticket.close()
    check_idle(cache)
    v = cache.match(hk.block_keys(ids, 16))
    assert usable(v) == 100
    again = cache.admit("a", 200, lease=v.lease)
    run(again, ids, 20)
    assert holds(again, "full") == list(range(13))
    again.close()
    assert give_back(cache.match(keys_of(201))) == 200
    m = cache.metrics()
    assert (m.effective_hits, m.withdrawn) == (1, 1)
    check_idle(cache)


@pytest.mark.parametrize("lost", [{"full": [3]}, {"swa": [5]}, {"full": True}])
def test_a_preempted_request_that_lost_pages_starts_where_it_can(lost: dict[str, Any]) -> None:
    cache = full_swa(window=33, blocks=64)
    ids = tokens(200)
    ticket = cache.admit("a", 200)
    run(ticket, ids, 20, to=100)
    ticket.close(keep_tip=False)
    cache.evict(hk.block_keys(ids[:96], 16), lost)
    v = cache.match(hk.block_keys(ids, 16))
    start = usable(v)
    assert start < 96
    again = cache.admit("a", 200, lease=v.lease)
    assert again.tokens == start
    run(again, ids, 20)
    again.close()
    assert give_back(cache.match(keys_of(201))) == 200
    check_idle(cache)


def test_a_request_aborted_with_work_in_flight_holds_on_to_its_pages() -> None:
    cache, lease = hit(pages={"full": 16, "swa": 16})
    ticket = cache.admit("a", 200, lease=lease)
    step(ticket, tokens(200), 16)
    ticket.grow(16)
    before = free(cache)
    event = Event()
    ticket.close(keep_tip=False, after=event)
    cache.poll()
    assert free(cache) == before
    assert cache.evict(keys_of(112), {"full": True}) == 0
    assert pins(cache, keys_of(112), "full") == [1] * 7
    event.passed = True
    cache.poll()
    check_idle(cache)
    assert cache.evict(keys_of(112), {"full": True}) == 7
