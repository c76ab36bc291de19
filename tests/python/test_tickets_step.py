# SPDX-License-Identifier: Apache-2.0
"""`step`: advance and grow of a whole batch in one call, and that it does what the single calls do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, check_conserved, give_back, keys_of, make_cache, observe, pools, tokens
from ticket_support import (
    GEMMA,
    RECURRENT,
    assert_named,
    check_idle,
    free,
    holds,
    homogeneous,
    served,
    step,
    table,
)

OK, OUT_OF_PAGES, NO_TICKET, BAD, NARROW = range(5)


class Batch:
    """Arrays of one call over some tickets, as an engine keeps them."""

    def __init__(self, cache: Any, tickets: list[Any], *, width: int = 4) -> None:
        self.cache = cache
        n, groups = len(tickets), len(cache.spec.groups)
        self.handles = np.array([t.handle for t in tickets], dtype=np.int64)
        self.grow = np.zeros(n, dtype=np.int32)
        self.computed = np.full(n, -1, dtype=np.int64)
        self.out = np.full((n, groups, width), 77, dtype=np.int32)
        self.new: list[np.ndarray] = [np.empty(0, np.uint32)] * n

    def call(self, **more: Any) -> list[int]:
        """Run the step; returns the status of each request."""
        starts = np.cumsum([0, *map(len, self.new)]).astype(np.int64)
        flat = np.concatenate(self.new).astype(np.uint32)
        status = self.cache.step(self.handles, self.grow, self.computed, self.out, tokens=flat, starts=starts, **more)
        assert np.asarray(status).dtype == np.int32
        return [int(s) for s in status]

    def pages(self, row: int, group: int) -> list[int]:
        """New pages of one request and group; what follows them is -1."""
        got = self.out[row, group].tolist()
        ids = [page for page in got if page >= 0]
        assert got == ids + [-1] * (len(got) - len(ids))
        return ids


# -- what it does -----------------------------------------------------------------------------------


def test_a_step_grows_and_fills_in_the_new_pages() -> None:
    cache = make_cache(16, GEMMA, blocks=64)
    tickets = [cache.admit(i, 100) for i in range(3)]
    batch = Batch(cache, tickets)
    batch.grow[:] = [40, 0, 16]
    assert batch.call() == [OK, OK, OK]
    assert [t.grown_tokens for t in tickets] == [40, 0, 16]
    for row, ticket in enumerate(tickets):
        for number, name in enumerate(GEMMA):
            assert batch.pages(row, number) == table(ticket, name)
    assert [len(batch.pages(row, 0)) for row in range(3)] == [3, 0, 1]
    for ticket in tickets:
        ticket.close()
    check_idle(cache)


def test_a_step_advances_first_and_then_grows() -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 128)
    ticket.grow(20)
    batch = Batch(cache, [ticket])
    batch.grow[:], batch.computed[:], batch.new[0] = 1, 20, tokens(20)
    assert batch.call() == [OK]
    assert (ticket.tokens, ticket.grown_tokens) == (20, 21)
    assert give_back(cache.match(keys_of(100))) == 16
    batch.computed[:], batch.new[0] = 21, tokens(21)[20:]
    assert batch.call() == [OK]
    assert (ticket.tokens, ticket.grown_tokens) == (21, 22)
    ticket.close()


def test_a_batch_of_decode_steps_does_what_single_calls_do() -> None:
    rng = random.Random(7)
    caches = [make_cache(16, GEMMA, blocks=512) for _ in range(2)]
    prompts = [tokens(rng.randrange(30, 120), start=1000 * i) for i in range(6)]
    singles, batched = ([c.admit(i, 300) for i in range(6)] for c in caches)
    for ticket, twin, ids in zip(singles, batched, prompts, strict=True):
        step(ticket, ids, len(ids))
        step(twin, ids, len(ids))
    batch = Batch(caches[1], batched)
    last: list[Any] = [np.empty(0, np.int32)] * 6
    for turn in range(80):
        batch.grow[:] = 1
        for row, ticket in enumerate(singles):
            if turn:
                ticket.advance(ticket.tokens + 1, last[row])
            ticket.grow(1)
            batch.computed[row] = batched[row].grown_tokens if turn else -1
            batch.new[row] = last[row]
            last[row] = np.array([rng.randrange(2**31)], np.int32)
        assert batch.call() == [OK] * 6
        for ticket, twin in zip(singles, batched, strict=True):
            assert (ticket.tokens, ticket.grown_tokens) == (twin.tokens, twin.grown_tokens)
            assert all(holds(ticket, name) == holds(twin, name) for name in GEMMA)
        assert pools(caches[0]) == pools(caches[1])
    for ticket in (*singles, *batched):
        ticket.close()
    assert pools(caches[0]) == pools(caches[1])
    for cache in caches:
        check_idle(cache)


def test_status_and_pages_go_where_the_caller_says() -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 64)
    status = np.full(1, 9, dtype=np.int32)
    out = np.full((1, 1, 2), 7, dtype=np.int32)
    handles, grow, computed = np.array([ticket.handle]), np.array([16], np.int32), np.array([-1], np.int64)
    got = cache.step(handles, grow, computed, out, status=status)
    assert got is status
    assert status.tolist() == [OK]
    assert out.tolist() == [[[table(ticket, "kv")[0], -1]]]
    ticket.close()


def test_ids_may_be_signed() -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 64)
    ticket.grow(16)
    out = np.empty((1, 1, 2), dtype=np.int32)
    cache.step(
        np.array([ticket.handle]),
        np.array([0], np.int32),
        np.array([16], np.int64),
        out,
        tokens=tokens(16),
        starts=np.array([0, 16], np.int64),
    )
    assert give_back(cache.match(keys_of(17))) == 16
    ticket.close()


def test_a_step_after_an_event_publishes_when_it_passed() -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 64)
    ticket.grow(32)
    batch, event = Batch(cache, [ticket]), Event()
    batch.computed[:], batch.new[0] = 32, tokens(32)
    assert batch.call(after=event) == [OK]
    assert ticket.tokens == 32
    cache.poll()
    assert cache.match(keys_of(40)).outcome == hk.Outcome.MISS
    event.passed = True
    cache.poll()
    assert give_back(cache.match(keys_of(40))) == 32
    ticket.close()


def test_a_step_settles_the_lease_of_a_request() -> None:
    cache = homogeneous(16)
    cache.insert(keys_of(48))
    ticket = cache.admit("a", 64, lease=cache.match(keys_of(64)).lease)
    batch = Batch(cache, [ticket])
    batch.grow[:] = 1
    assert batch.call() == [OK]
    assert cache.metrics().pending == 1
    batch.computed[:], batch.new[0] = 49, tokens(49)[48:]
    assert batch.call() == [OK]
    assert (cache.metrics().pending, cache.metrics().effective_hits) == (0, 1)
    ticket.close()


def test_an_empty_batch_is_nothing() -> None:
    cache = homogeneous(8)
    status = cache.step(
        np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64), np.empty((0, 1, 1), np.int32)
    )
    assert len(status) == 0


# -- checkpoints ------------------------------------------------------------------------------------


def test_copies_of_a_step_name_group_source_and_target() -> None:
    cache = make_cache(16, RECURRENT, blocks=64)
    tickets = [cache.admit(i, 100) for i in range(3)]
    ids = [tokens(32, start=1000 * i) for i in range(3)]
    for ticket, n in zip(tickets, (16, 20, 32), strict=True):
        ticket.grow(n)
    batch = Batch(cache, tickets)
    batch.computed[:] = [16, 20, 32]
    batch.new = [mine[:n] for mine, n in zip(ids, (16, 20, 32), strict=True)]
    copies = np.full((4, 4), 5, dtype=np.int32)
    assert batch.call(copies=copies) == [OK] * 3
    rows = copies.tolist()
    assert [row[:2] for row in rows[:2]] == [[1, t.live_page("state")] for t in (tickets[0], tickets[2])]
    assert len({row[2] for row in rows[:2]} | {t.live_page("state") for t in tickets}) == 5
    assert rows[2] == [-1] * 4
    for ticket in tickets:
        ticket.close()
    lengths = [give_back(cache.match(hk.block_keys(np.append(mine, 1), 16))) for mine in ids]
    assert lengths == [16, 20, 32]
    check_idle(cache)


@pytest.mark.parametrize("room", [None, 0, 1])
def test_no_checkpoint_is_made_that_the_caller_cannot_copy(room: int | None) -> None:
    cache = make_cache(16, RECURRENT, blocks=64)
    tickets = [cache.admit(i, 100) for i in range(2)]
    ids = [tokens(48, start=1000 * i) for i in range(2)]
    for ticket in tickets:
        ticket.grow(32)
    batch = Batch(cache, tickets)
    batch.computed[:], batch.grow[:] = 32, 1
    batch.new = [mine[:32] for mine in ids]
    copies = None if room is None else np.empty((room, 4), np.int32)
    assert batch.call(**({} if copies is None else {"copies": copies})) == [OK, OK]
    for ticket, mine in zip(tickets, ids, strict=True):
        ticket.advance(33, mine[32:33])
        ticket.close(keep_tip=False)
    usable = [give_back(cache.match(hk.block_keys(mine, 16))) for mine in ids]
    assert sorted(usable) == [0] * (2 - (room or 0)) + [32] * (room or 0)
    check_idle(cache)


# -- one status a request ---------------------------------------------------------------------------


def test_a_request_without_pages_is_told_and_the_others_go_on() -> None:
    cache = homogeneous(64)
    small, large = cache.admit("small", 20), cache.admit("large", 100)
    small.grow(16)
    batch = Batch(cache, [small, large])
    batch.grow[:] = [16, 16]
    batch.computed[0], batch.new[0] = 16, tokens(16)
    assert batch.call() == [OUT_OF_PAGES, OK]
    assert (small.tokens, small.grown_tokens, large.grown_tokens) == (16, 16, 16)
    assert batch.pages(0, 0) == []
    assert batch.pages(1, 0) == table(large, "kv")
    assert give_back(cache.match(keys_of(20))) == 16
    small.close()
    large.close()
    check_idle(cache)


def test_a_handle_of_nobody_is_told() -> None:
    cache = homogeneous(64)
    gone, live = cache.admit("gone", 64), cache.admit("live", 64)
    batch = Batch(cache, [gone, live])
    gone.close()
    batch.grow[:] = 16
    assert batch.call() == [NO_TICKET, OK]
    assert batch.pages(0, 0) == []
    again = cache.admit("again", 64)  # may live where the first one did
    batch.handles[1] = -1
    assert batch.call() == [NO_TICKET, NO_TICKET]
    batch.handles[:] = [2**40 + 7, 123]
    assert batch.call() == [NO_TICKET, NO_TICKET]
    assert (again.grown_tokens, live.grown_tokens) == (0, 16)
    again.close()
    live.close()
    check_idle(cache)


BAD_ROWS: dict[str, tuple[int, int, int]] = {  # grow, computed, ids
    "negative growth": (-1, -1, 0),
    "beyond what is grown": (1, 41, 21),
    "below the total": (1, 19, 0),
    "a total below -1": (1, -2, 0),
    "too few ids": (1, 30, 9),
    "too many ids": (1, 30, 11),
    "ids without a total": (1, -1, 1),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_does_nothing_and_the_others_go_on(name: str) -> None:
    cache = homogeneous(64)
    bad, good = cache.admit("bad", 100), cache.admit("good", 100)
    bad.grow(40)
    bad.advance(20, tokens(20))
    grow, computed, count = BAD_ROWS[name]
    batch = Batch(cache, [bad, good])
    batch.grow[:], batch.computed[:] = [grow, 16], [computed, -1]
    batch.new[0] = tokens(20 + count)[20:]
    before = (table(bad, "kv"), give_back(cache.match(keys_of(100))))
    assert batch.call() == [BAD, OK]
    assert (bad.tokens, bad.grown_tokens, good.grown_tokens) == (20, 40, 16)
    assert (table(bad, "kv"), give_back(cache.match(keys_of(100)))) == before
    assert batch.pages(0, 0) == []
    bad.close()
    good.close()
    check_idle(cache)


def test_a_failed_ticket_does_nothing_more() -> None:
    cache = homogeneous(64)
    ticket = cache.admit("a", 100)
    ticket.grow(20)
    ticket.fail("wrong bytes")
    batch = Batch(cache, [ticket])
    batch.grow[:], batch.computed[:], batch.new[0] = 16, 20, tokens(20)
    assert batch.call()[0] in (NO_TICKET, BAD)
    assert (ticket.tokens, ticket.grown_tokens) == (0, 20)
    ticket.close()
    check_idle(cache)


def test_too_narrow_a_table_takes_no_page() -> None:
    cache = homogeneous(64)
    wide, narrow = cache.admit("wide", 100), cache.admit("narrow", 100)
    narrow.grow(16)
    batch = Batch(cache, [wide, narrow], width=2)
    batch.grow[:] = [32, 33]
    batch.computed[1], batch.new[1] = 16, tokens(16)
    before = free(cache)["kv"]
    assert batch.call() == [OK, NARROW]
    assert free(cache)["kv"] == before - 2
    assert (narrow.tokens, narrow.grown_tokens) == (16, 16)
    assert batch.pages(1, 0) == []
    wide.close()
    narrow.close()
    check_idle(cache)


def test_no_request_is_half_grown() -> None:
    cache = make_cache(16, GEMMA, blocks=64, pages={"full": 16, "swa": 8})
    served(cache, tokens(64))
    ticket = cache.admit("a", 128)
    lease = cache.match(keys_of(65)).lease  # pins four window pages that could have been evicted
    batch = Batch(cache, [ticket], width=16)
    batch.grow[:] = 128
    before = free(cache)
    assert batch.call() == [OUT_OF_PAGES]
    assert free(cache) == before
    assert batch.out.tolist() == [[[-1] * 16] * 2]
    assert (ticket.grown_tokens, table(ticket, "full"), table(ticket, "swa")) == (0, [], [])
    lease.release()
    assert batch.call() == [OK]
    assert [len(batch.pages(0, number)) for number in range(2)] == [8, 8]
    ticket.close()
    check_idle(cache)


# -- bad arrays -------------------------------------------------------------------------------------


def arrays(ticket: Any) -> dict[str, Any]:
    return {
        "tickets": np.array([ticket.handle], np.int64),
        "grow": np.array([16], np.int32),
        "computed": np.array([16], np.int64),
        "out_pages": np.full((1, 1, 2), 7, np.int32),
        "tokens": tokens(16),
        "starts": np.array([0, 16], np.int64),
    }


def call(cache: Any, given: dict[str, Any]) -> Any:
    """A step with these arrays."""
    named = dict(given)
    places = [named.pop(name) for name in ("tickets", "grow", "computed", "out_pages")]
    return cache.step(*places, **named)


def read_only(shape: tuple[int, ...]) -> np.ndarray:
    array = np.zeros(shape, np.int32)
    array.flags.writeable = False
    return array


BAD_ARRAYS: dict[str, dict[str, Any]] = {
    "tickets of two axes": {"tickets": np.zeros((1, 1), np.int64)},
    "tickets floats": {"tickets": np.zeros(1)},
    "tickets no array": {"tickets": "t"},
    "growth of another length": {"grow": np.zeros(2, np.int32)},
    "growth floats": {"grow": np.zeros(1)},
    "totals of another length": {"computed": np.zeros(2, np.int64)},
    "pages of two axes": {"out_pages": np.zeros((1, 2), np.int32)},
    "pages of other groups": {"out_pages": np.zeros((1, 2, 2), np.int32)},
    "pages of fewer requests": {"out_pages": np.zeros((0, 1, 2), np.int32)},
    "pages wider numbers": {"out_pages": np.zeros((1, 1, 2), np.int64)},
    "pages read only": {"out_pages": read_only((1, 1, 2))},
    "pages with gaps": {"out_pages": np.zeros((1, 1, 4), np.int32)[:, :, ::2]},
    "tokens without starts": {"starts": None},
    "starts without tokens": {"tokens": None},
    "starts too few": {"starts": np.array([0], np.int64)},
    "starts falling": {"starts": np.array([16, 0], np.int64)},
    "starts beyond the tokens": {"starts": np.array([0, 17], np.int64)},
    "starts of narrower numbers": {"starts": np.array([0, 16], np.int32)},
    "starts negative": {"starts": np.array([-1, 15], np.int64)},
    "tokens floats": {"tokens": np.zeros(16)},
    "status of another length": {"status": np.zeros(2, np.int32)},
    "status of wider numbers": {"status": np.zeros(1, np.int64)},
    "status read only": {"status": read_only((1,))},
    "copies of three columns": {"copies": np.zeros((4, 3), np.int32)},
    "copies read only": {"copies": read_only((4, 4))},
    "after no event": {"after": 7},
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_bad_arrays_are_refused_and_change_nothing(name: str) -> None:
    cache = homogeneous(16)
    ticket = cache.admit("a", 64)
    ticket.grow(16)
    before = observe(cache, keys_of(64))
    given = {**arrays(ticket), **BAD_ARRAYS[name]}
    with pytest.raises(hk.ArgumentError) as refused:
        call(cache, given)
    assert_named(refused.value)
    assert observe(cache, keys_of(64)) == before
    assert (ticket.tokens, ticket.grown_tokens) == (0, 16)
    assert call(cache, arrays(ticket)).tolist() == [OK]
    check_conserved(cache, {"kv": 16})
    ticket.close()
    check_idle(cache)
