# SPDX-License-Identifier: Apache-2.0
"""The right to memory: the worst case of each group, refusals with their reason, and that nobody starves."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable
from typing import Any

import pytest

import hybridkv as hk
from contract_support import (
    Rules,
    check_conserved,
    check_counters,
    give_back,
    keys_of,
    make_cache,
    pools,
    tokens,
    usable,
)
from ticket_support import (
    CHUNKED,
    ENGINE,
    GEMMA,
    RECURRENT,
    ample,
    assert_named,
    check_idle,
    free,
    homogeneous,
    pins,
    run,
    served,
    step,
    worst,
)

SPECS: dict[str, tuple[int, Rules]] = {
    "homogeneous": (16, {"kv": (hk.Prefix(), 16)}),
    "gemma": (16, GEMMA),
    "recurrent": (16, RECURRENT),
    "engine": (4, ENGINE),
    "chunked": (2, CHUNKED),
    "all kinds": (
        8,
        {
            "full": (hk.Prefix(), 32),
            "near": (hk.Window(40), 8),
            "far": (hk.Window(100), 16),
            "local": (hk.Chunk(64), 8),
            "state": (hk.Checkpoint(), 16),
        },
    ),
}


def refused(cache: Any, most: int, **more: Any) -> Any:
    """The refusal of a request, after what every refusal must leave was checked."""
    before = pools(cache)
    with pytest.raises(hk.NotAdmitted) as caught:
        cache.admit("refused", most, **more)
    assert_named(caught.value)
    assert isinstance(caught.value.reason, str)
    assert isinstance(caught.value.retry, bool)
    if more.get("lease") is None:
        assert pools(cache) == before
    return caught.value


def why(cache: Any, most: int, **more: Any) -> tuple[str, bool]:
    error = refused(cache, most, **more)
    return error.reason, error.retry


# -- the worst case ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["homogeneous", "gemma", "recurrent", "chunked"])
@pytest.mark.parametrize(("most", "ahead"), [(1, None), (100, None), (512, 16), (300, 33), (700, 256)])
def test_an_empty_pool_of_the_worst_case_admits_and_one_page_less_never_does(
    name: str, most: int, ahead: int | None
) -> None:
    unit, rules = SPECS[name]
    cap = worst(rules, most, step=ahead)
    admission = None if ahead is None else hk.Admission(step_tokens=ahead)
    cache = make_cache(unit, rules, blocks=1024, pages=cap, admission=admission)
    cache.admit("a", most).close()
    for short in rules:
        if cap[short] == 1:
            continue
        fewer = make_cache(unit, rules, blocks=1024, pages={**cap, short: cap[short] - 1}, admission=admission)
        assert why(fewer, most) == ("never", False)
        check_idle(fewer)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("ahead", [1, 7, 16, 40])
def test_an_admitted_request_finishes_in_the_pages_it_was_admitted_for(name: str, ahead: int) -> None:
    unit, rules = SPECS[name]
    alone = sum(not isinstance(coverage, hk.Prefix) for coverage, _ in rules.values()) < 2
    cap = (worst if alone else ample)(rules, 300, step=ahead)
    cache = make_cache(unit, rules, blocks=1024, pages=cap, admission=hk.Admission(step_tokens=ahead))
    ticket = cache.admit("a", 300)
    run(ticket, tokens(300), ahead)
    assert ticket.tokens == 300
    ticket.close()
    check_idle(cache)


def freed_one(cache: Any, group: str, sequences: Iterable[Any]) -> bool:
    """Evict one page of a group that is cached under no pin, as the user of a cache without an order does."""
    for ids in sequences:
        keys = hk.block_keys(ids, cache.spec.unit_tokens, identity=cache.spec.identity)
        for block in range(len(cache.inspect(keys)[group])):
            if cache.evict(keys, {group: [block]}) == 1:
                return True
    return False


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", range(4))
def test_where_nothing_evicts_an_admitted_request_goes_on_once_its_user_has_evicted(name: str, seed: int) -> None:
    unit, rules = SPECS[name]
    draw = random.Random(seed)
    ahead = draw.choice([7, 16, 40])
    pages = {group: 2 * most for group, most in ample(rules, 300, step=ahead).items()}
    cache = make_cache(
        unit, rules, blocks=1024, pages=pages, admission=hk.Admission(step_tokens=ahead), eviction="none"
    )
    sequences = [tokens(300, start=1000 * i) for i in range(2)]
    running = [(cache.admit(i, 300), ids) for i, ids in enumerate(sequences)]
    short = 0
    while running:
        ticket, ids = draw.choice(running)
        count = min(draw.randint(1, ahead), 300 - ticket.tokens)
        try:
            ticket.grow(count)
        except hk.OutOfPages as error:
            short += 1
            assert cache.metrics().pages[error.pool].cached > 0
            assert ticket.grown_tokens == ticket.tokens
            assert freed_one(cache, error.pool, sequences)
            continue
        ticket.advance(ticket.tokens + count, ids[ticket.tokens : ticket.tokens + count])
        if ticket.tokens == 300:
            ticket.close()
            running.remove((ticket, ids))
    assert short > 0 or name in ("homogeneous", "all kinds")  # all of theirs is there at once
    check_idle(cache)


def test_states_asked_for_are_part_of_the_worst_case() -> None:
    cache = make_cache(16, RECURRENT, blocks=64, pages={"full": 16, "state": 4})
    assert why(cache, 100, states=3) == ("never", False)
    ticket = cache.admit("a", 100, states=2)
    ticket.grow(64, states=(16, 32))
    ticket.advance(64, tokens(64), states=(16, 32))
    assert why(cache, 100) == ("pages", True)
    ticket.close()
    cache.admit("b", 100, states=2).close()


def test_a_window_is_counted_by_its_window_and_not_by_the_length() -> None:
    admission = hk.Admission(step_tokens=128)
    cache = make_cache(16, GEMMA, blocks=256, pages={"full": 64, "swa": 26}, admission=admission)
    tickets = [cache.admit(i, 512) for i in range(2)]  # 32 + 13 pages each, of 32 + 32 by length
    assert why(cache, 16) == ("pages", True)
    for ticket in tickets:
        ticket.close()


def test_the_leased_history_is_not_counted_again() -> None:
    cache = homogeneous(8)
    served(cache, tokens(96))
    v = cache.match(keys_of(120))
    ticket = cache.admit("a", 128, lease=v.lease)  # 8 blocks, of which 6 are leased
    assert why(cache, 16) == ("pages", True)
    run(ticket, tokens(128), 16)
    ticket.close()
    check_idle(cache)


def test_a_leased_tip_is_copied_and_so_its_block_is_counted() -> None:
    cache = homogeneous(3)
    served(cache, tokens(23))
    v = cache.match(keys_of(60))
    assert usable(v) == 23
    assert refused(cache, 48, lease=v.lease).retry  # one whole block leased, two more, one free beside the tip
    check_idle(cache)
    cache.admit("a", 48).close()
    v = cache.match(keys_of(60))
    ticket = cache.admit("b", 32, lease=v.lease)
    run(ticket, tokens(32), 4)
    ticket.close()
    check_idle(cache)


def test_more_in_flight_than_was_counted_is_refused_and_changes_nothing() -> None:
    cache = make_cache(16, GEMMA, blocks=256, admission=hk.Admission(step_tokens=32))
    ticket = cache.admit("a", 300)
    step(ticket, tokens(300), 32)
    ticket.grow(20)
    before = pools(cache)
    with pytest.raises((hk.ArgumentError, hk.OutOfPages)) as caught:
        ticket.grow(13)
    assert_named(caught.value)
    assert (ticket.grown_tokens, pools(cache)) == (52, before)
    ticket.grow(12)
    ticket.advance(40, tokens(40)[32:])
    ticket.grow(8)
    ticket.close()
    check_idle(cache)


# -- reasons ----------------------------------------------------------------------------------------


def test_more_than_a_pool_has_is_never_admitted() -> None:
    cache = homogeneous(8)
    error = refused(cache, 8 * 16 + 1)
    assert (error.reason, error.retry) == ("never", False)
    assert why(cache, 2**40) == ("never", False)
    cache.admit("a", 8 * 16).close()


def test_what_does_not_fit_now_may_try_again() -> None:
    cache = homogeneous(8)
    holder = cache.admit("a", 64)
    assert why(cache, 80) == ("pages", True)
    other = cache.admit("b", 64)
    assert why(cache, 1) == ("pages", True)
    holder.close()
    other.close()
    cache.admit("c", 128).close()


def test_pages_that_leases_pin_are_not_there() -> None:
    cache = homogeneous(8)
    served(cache, tokens(64))
    lease = cache.match(keys_of(100)).lease
    assert why(cache, 80) == ("pages", True)
    cache.admit("a", 64).close()
    lease.release()
    cache.admit("b", 128).close()


def test_pages_that_a_fill_holds_are_not_there() -> None:
    cache = homogeneous(8)
    fill = cache.reserve(keys_of(64))
    assert why(cache, 80) == ("pages", True)
    fill.abort()
    cache.admit("b", 128).close()


def test_cached_pages_that_nobody_pins_are_there() -> None:
    cache = homogeneous(8)
    served(cache, tokens(128))
    assert free(cache)["kv"] == 0
    ticket = cache.admit("a", 128)
    run(ticket, tokens(128, start=9000), 16)
    ticket.close()
    assert give_back(cache.match(hk.block_keys(tokens(129, start=9000), 16))) == 128
    check_idle(cache)


def test_a_request_whose_own_lease_is_in_its_way_is_told_so() -> None:
    rules: Rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(64), 16)}
    cache = make_cache(16, rules, blocks=64, pages={"full": 3, "swa": 8})
    served(cache, tokens(23))
    v = cache.match(keys_of(60))
    assert usable(v) == 23
    error = refused(cache, 48, lease=v.lease)  # block 0 leased, its tip pinned: one page is left of two
    assert (error.reason, error.retry) == ("lease", True)
    assert pins(cache, keys_of(23), "full") == [0, 0]
    cache.admit("a", 48).close()


def test_the_cap_on_requests() -> None:
    cache = homogeneous(64, admission=hk.Admission(max_requests=2))
    first, second = cache.admit("a", 16), cache.admit("b", 16)
    assert why(cache, 16) == ("requests", True)
    first.close()
    third = cache.admit("c", 16)
    assert why(cache, 16) == ("requests", True)
    second.close()
    third.close()


def test_requests_that_hold_the_same_groups_are_one_combination() -> None:
    cache = make_cache(16, GEMMA, blocks=256, admission=hk.Admission(max_combinations=1))
    tickets = [cache.admit(i, 64) for i in range(3)]
    for ticket in tickets:
        step(ticket, tokens(64), 20)
    for ticket in tickets:
        ticket.close()
    check_idle(cache)


def test_the_watermark_holds_back_and_lets_go_later() -> None:
    cache = homogeneous(100, admission=hk.Admission(watermark=(0.2, 0.5)))
    tickets = [cache.admit(i, 160) for i in range(8)]
    assert why(cache, 16) == ("watermark", True)
    tickets.pop().close()
    assert why(cache, 16) == ("watermark", True)  # 30 of 100 are free: once refused, it waits for 50
    tickets.pop().close()
    assert why(cache, 16) == ("watermark", True)
    tickets.pop().close()
    tickets.append(cache.admit("again", 160))
    tickets.append(cache.admit("again", 160))
    for ticket in tickets:
        ticket.close()


def test_the_watermark_never_keeps_an_idle_cache_idle() -> None:
    cache = homogeneous(10, admission=hk.Admission(watermark=(0.5, 0.9)))
    ticket = cache.admit("a", 160)
    run(ticket, tokens(160), 16)
    assert why(cache, 16)[1]
    ticket.close()
    cache.admit("b", 160).close()


@pytest.mark.parametrize("exact", [0, 1])
def test_the_watermark_is_exact(exact: int) -> None:
    cache = homogeneous(100, admission=hk.Admission(watermark=(0.2, 0.2)))
    first = cache.admit("a", 16)
    if exact:
        second = cache.admit("b", 16 * 79)
        second.close()
    else:
        assert why(cache, 16 * 80) == ("watermark", True)
    first.close()


BAD_ADMISSIONS: dict[str, dict[str, Any]] = {
    "no requests": {"max_requests": 0},
    "requests no number": {"max_requests": "two"},
    "requests a bool": {"max_requests": True},
    "no combinations": {"max_combinations": 0},
    "watermark negative": {"watermark": (-0.1, 0.5)},
    "watermark above one": {"watermark": (0.1, 1.5)},
    "watermark upside down": {"watermark": (0.5, 0.1)},
    "watermark no numbers": {"watermark": ("a", "b")},
    "watermark nan": {"watermark": (float("nan"), 0.5)},
    "no step": {"step_tokens": 0},
    "step negative": {"step_tokens": -16},
    "preempt unknown": {"preempt": "nobody"},
}


@pytest.mark.parametrize("name", BAD_ADMISSIONS)
def test_a_bad_admission_is_refused(name: str) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        hk.Admission(**BAD_ADMISSIONS[name])
    assert_named(caught.value)


def test_a_cache_takes_no_other_admission() -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        homogeneous(admission={"max_requests": 2})
    assert_named(caught.value)


# -- holders never wait behind those who hold nothing -----------------------------------------------


def test_a_refused_request_holds_nothing() -> None:
    cache = make_cache(16, GEMMA, blocks=256, pages={"full": 20, "swa": 24})
    served(cache, tokens(96))
    holder = cache.admit("a", 160)
    v = cache.match(keys_of(300))
    assert pins(cache, keys_of(96), "full") == [1] * 6
    assert refused(cache, 300, lease=v.lease).retry
    assert pins(cache, keys_of(96), "full") == [0] * 6
    assert cache.metrics().withdrawn == 1
    run(holder, tokens(160, start=7000), 16)
    holder.close()
    check_idle(cache)


def test_a_fill_without_a_ticket_leaves_the_admitted_their_pages() -> None:
    cache = homogeneous(8)
    ticket = cache.admit("a", 80)
    fill = cache.reserve(keys_of(48))
    with pytest.raises(hk.OutOfPages):
        cache.reserve(hk.block_keys(tokens(16, start=900), 16))
    with pytest.raises(hk.OutOfPages):
        cache.insert(hk.block_keys(tokens(16, start=900), 16))
    run(ticket, tokens(80, start=7000), 16)
    ticket.close()
    fill.abort()
    cache.insert(hk.block_keys(tokens(48, start=900), 16))
    check_idle(cache)


def test_every_admitted_request_finishes_whatever_the_others_do() -> None:
    rules = SPECS["all kinds"][1]
    rng = random.Random(20261129)
    cap = ample(rules, 200, step=24)
    pages = {name: 2 * n for name, n in cap.items()}
    cache = make_cache(8, rules, blocks=2048, pages=pages, admission=hk.Admission(step_tokens=24))
    prompts = [tokens(200, start=700 * (i % 4)) for i in range(12)]
    live: list[tuple[Any, Any]] = []
    admitted = refusals = hits = 0
    for _ in range(1500):
        if rng.random() < 0.15:
            ids = prompts[rng.randrange(12)][: rng.randrange(20, 201)]
            v = cache.match(hk.block_keys(ids, 8))
            hits += v.lease is not None
            try:
                live.append((cache.admit(len(live), len(ids), lease=v.lease), ids))
                admitted += 1
            except hk.NotAdmitted as error:
                refusals += 1
                assert error.retry
                assert live
        elif live:
            at = rng.randrange(len(live))
            ticket, ids = live[at]
            if ticket.tokens == len(ids) or rng.random() < 0.02:
                live.pop(at)[0].close(keep_tip=rng.random() < 0.7)
            else:
                step(ticket, ids, rng.randrange(1, min(24, len(ids) - ticket.tokens) + 1))
        check_conserved(cache, pages)
    check_counters(cache)
    assert min(admitted, refusals, hits) > 20
    for ticket, ids in live:
        run(ticket, ids, 24)
        ticket.close()
    check_idle(cache)


# -- preemption -------------------------------------------------------------------------------------


def test_whoever_was_admitted_last_is_preempted_first() -> None:
    cache = homogeneous(64)
    tickets = [cache.admit(i, n) for i, n in enumerate((16, 160, 48))]
    assert [t.request for t in cache.preemption_order()] == [2, 1, 0]
    assert all(a is b for a, b in zip(cache.preemption_order(), tickets[::-1], strict=True))
    tickets[1].close()
    again = cache.admit("again", 160)
    assert [t.request for t in cache.preemption_order()] == ["again", 2, 0]
    for ticket in (tickets[0], tickets[2], again):
        ticket.close()
    assert list(cache.preemption_order()) == []


def test_the_largest_may_be_preempted_first() -> None:
    cache = homogeneous(64, admission=hk.Admission(preempt="largest"))
    tickets = [cache.admit(i, n) for i, n in enumerate((32, 96, 16))]
    for ticket in tickets:
        run(ticket, tokens(ticket.max_tokens, start=1000 * ticket.request), 16)
    assert [t.request for t in cache.preemption_order()] == [1, 0, 2]
    for ticket in tickets:
        ticket.close()


def test_the_order_of_preemption_keeps_no_ticket_alive() -> None:
    cache = homogeneous(64)
    ticket = cache.admit("a", 16)
    assert len(cache.preemption_order()) == 1
    with pytest.warns(ResourceWarning):
        del ticket
        gc.collect()
    assert list(cache.preemption_order()) == []
