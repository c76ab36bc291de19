# SPDX-License-Identifier: Apache-2.0
"""Field cases of admission that starved or lied, and of evictions that made a prefix useless."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import (
    Event,
    Rules,
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
    check_idle,
    free,
    homogeneous,
    longer,
    new_pages,
    phases,
    run,
    served,
    step,
    table,
    worst,
)

# -- what makes a prefix usable stays ---------------------------------------------------------------


def test_FC_067_tails_of_idle_sessions_outlive_pages_outside_every_tail() -> None:
    pages = {"full": 8 * 36, "swa": 8 * 9}  # a quarter of the window pages that eight sessions write
    cache = make_cache(16, GEMMA, blocks=1024, pages=pages, admission=hk.Admission(step_tokens=64))
    sessions = [tokens(576, start=10_000 * i) for i in range(8)]
    for ids in sessions:
        served(cache, ids, 64)
    for ids in sessions:
        assert give_back(cache.match(hk.block_keys(np.append(ids, 1), 16))) == 576
    check_idle(cache)


def test_FC_068_the_first_blocks_live_as_long_as_what_goes_on_from_them() -> None:
    pages = {"full": 40, "swa": 40}  # the prefix and one tail of eighteen blocks, not two tails
    cache = make_cache(16, GEMMA, blocks=256, pages=pages, admission=hk.Admission(step_tokens=64))
    starts = []
    prompts = [longer(128, 288, start=10_000 * (turn + 1)) for turn in range(12)]
    for turn, ids in enumerate(prompts):
        v = cache.match(hk.block_keys(ids, 16))
        starts.append(usable(v))
        assert v.matched_tokens == min(128, 128 * turn)
        ticket = cache.admit(turn, len(ids), lease=v.lease)
        run(ticket, ids, 64)
        ticket.close()
        for earlier in prompts[: turn + 1]:
            ready = phases(cache, hk.block_keys(earlier, 16), "full")
            assert ready == sorted(ready, reverse=True)  # no history above a gap
    assert starts == [0] + [128] * 11
    check_idle(cache)


# -- an empty pool admits, and who is admitted finishes ---------------------------------------------


@pytest.mark.parametrize(
    ("unit", "rules", "blocks"),
    [(16, {"kv": (hk.Prefix(), 16)}, 32), (16, GEMMA, 32), (16, RECURRENT, 32), (4, ENGINE, 256), (2, CHUNKED, 128)],
)
@pytest.mark.parametrize("ahead", [None, 48])
def test_FC_173_an_empty_pool_admits_every_prompt_it_was_sized_for(
    unit: int, rules: Rules, blocks: int, ahead: int | None
) -> None:
    admission = None if ahead is None else hk.Admission(step_tokens=ahead)
    cache = make_cache(unit, rules, blocks=blocks, admission=admission)
    longest = blocks * unit
    for most in (1, unit, longest // 3, longest - 1, longest):
        cache.admit("a", most).close()
    ticket = cache.admit("b", longest)
    run(ticket, tokens(longest), longest if ahead is None else ahead)
    ticket.close()
    check_idle(cache)


def test_FC_173_a_pool_of_a_model_is_sized_by_the_cap_that_admits() -> None:
    rules: Rules = {"csa": (hk.Prefix(), 64), "swa": (hk.Window(128), 64)}
    for length in (64, 1000, 4096):
        cap = worst(rules, length, step=256)
        cache = make_cache(64, rules, blocks=256, pages=cap, admission=hk.Admission(step_tokens=256))
        ticket = cache.admit("a", length)
        run(ticket, tokens(length), 256)
        ticket.close()
        check_idle(cache)


def test_FC_175_a_second_load_is_refused_if_both_could_not_make_their_first_step() -> None:
    cache = homogeneous(7)
    first = cache.admit("a", 80)  # four blocks to load, one to compute
    first.grow(64)
    with pytest.raises(hk.NotAdmitted) as refused:
        cache.admit("b", 64)  # three and one: loaded, both would wait for a page for ever
    assert (refused.value.reason, refused.value.retry) == ("pages", True)
    first.advance(64, tokens(64))
    step(first, tokens(80), 16)
    first.close()
    second = cache.admit("b", 64)
    run(second, tokens(64, start=9000), 48)
    second.close()
    check_idle(cache)


def test_FC_176_nobody_who_holds_pages_waits_behind_one_who_holds_none() -> None:
    cache = homogeneous(8)
    served(cache, tokens(48))
    holder = cache.admit("holds", 64)
    for _ in range(20):
        v = cache.match(keys_of(129))
        with pytest.raises(hk.NotAdmitted):
            cache.admit("parked", 112, lease=v.lease)
        cache.admit("passes", 16).close()  # a refusal closes no door to others
    assert pools(cache)["kv"][2] == 0
    run(holder, tokens(64, start=9000), 16)
    holder.close()
    cache.admit("parked", 112).close()
    assert cache.metrics().pending == 0
    check_idle(cache)


def test_FC_178_no_request_starves_on_its_own_pages_outside_the_window() -> None:
    rules: Rules = {"full": (hk.Prefix(), 256), "swa": (hk.Window(4096), 256)}
    pages = {"full": 160, "swa": 13_056 // 256}
    cache = make_cache(256, rules, blocks=256, pages=pages, admission=hk.Admission(step_tokens=8192))
    total = 3 * (8192 + 4608)
    ticket = cache.admit("a", total)
    for _ in range(3):
        step(ticket, tokens(total), 8192)
        step(ticket, tokens(total), 4608)
    assert ticket.tokens == total
    ticket.close()
    check_idle(cache)


def test_FC_179_pages_of_the_next_decode_steps_are_not_there_for_a_prefill() -> None:
    rules: Rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(17), 16)}
    cap = worst(rules, 256, step=16)["swa"]
    pages = {"full": 256, "swa": 8 * cap}
    cache = make_cache(16, rules, blocks=512, pages=pages, admission=hk.Admission(step_tokens=16))
    decodes = [cache.admit(i, 256) for i in range(8)]
    ids = [tokens(256, start=1000 * i) for i in range(8)]
    for ticket, mine in zip(decodes, ids, strict=True):
        step(ticket, mine, 16)
    assert free(cache)["swa"] >= 8
    with pytest.raises(hk.NotAdmitted) as refused:
        cache.admit("prefill", 128)
    assert refused.value.retry
    while decodes[0].tokens < 256:
        before = free(cache)
        for ticket, mine in zip(decodes, ids, strict=True):
            step(ticket, mine, 16)
        assert free(cache)["full"] == before["full"] - 8
    for ticket in decodes:
        ticket.close()
    cache.admit("prefill", 128).close()
    check_idle(cache)


def test_FC_181_credit_of_a_state_group_is_what_a_release_returns() -> None:
    cache = make_cache(16, RECURRENT, blocks=64, pages={"full": 8, "state": 6})
    for turn in range(40):
        held = free(cache)["state"] + pools(cache)["state"][3]
        assert held == 6
        pair = [cache.admit(i, 64, states=1) for i in range(2)]  # three state pages each
        with pytest.raises(hk.NotAdmitted):
            cache.admit("third", 16)
        for ticket in pair:
            ids = tokens(64, start=1000 * (2 * turn + ticket.request))
            ticket.grow(48, states=(32,))
            ticket.advance(48, ids[:48], states=(32,))
        for ticket in pair:
            ticket.close(keep_tip=turn % 2 == 0)
        check_idle(cache)


@pytest.mark.parametrize("by", ["ticket", "fill"])
def test_FC_182_a_thousand_aborted_loads_leak_nothing(by: str) -> None:
    rules = GEMMA if by == "ticket" else {"full": (hk.Prefix(), 16)}
    cache = make_cache(16, rules, blocks=64, pages=dict.fromkeys(rules, 8))
    for turn in range(1000):
        load = Event()
        if by == "ticket":
            ticket = cache.admit(turn, 64)
            ticket.grow(64)
            if turn % 3 == 0:
                ticket.advance(64, tokens(64), after=load)
                ticket.fail("load failed")
            ticket.close(after=load if turn % 2 else None)
        else:
            fill = cache.reserve(keys_of(64))
            fill.abort(after=load)
        load.passed = True
        cache.poll()
        assert free(cache) == cache.pages
    assert cache.metrics().leaks == 0
    assert cache.metrics().published == 0
    check_idle(cache)
    cache.close()


def test_FC_184_a_shortage_is_a_typed_result_that_leaks_nothing() -> None:
    cache = homogeneous(10)
    assert free(cache)["kv"] == 10
    taken = cache.reserve(keys_of(80))  # somebody else was faster
    with pytest.raises(hk.OutOfPages) as short:
        cache.reserve(hk.block_keys(tokens(160, start=900), 16))
    assert (short.value.pool, short.value.needed, short.value.free) == ("kv", 10, 5)
    with pytest.raises(hk.NotAdmitted) as refused:
        cache.admit("a", 160)
    assert (refused.value.reason, refused.value.retry) == ("pages", True)
    assert pools(cache)["kv"] == (5, 5, 0, 0)
    with pytest.raises(hk.ArgumentError):  # misuse is another thing than a shortage
        cache.admit("a", -1)
    taken.abort()
    check_idle(cache)


def test_FC_185_a_page_too_small_for_its_state_is_refused_with_the_least_page() -> None:
    mib = 2**20
    with pytest.raises(hk.SpecError) as refused:
        hk.CacheGroup(
            "state",
            hk.StateKind.TAIL,
            hk.Checkpoint(),
            page_bytes=2 * mib,
            row_bytes=3 * mib,
            rows_per_page=1,
        )
    assert "page_bytes" in refused.value.field
    assert str(3 * mib) in str(refused.value.expected)
    assert refused.value.got == 2 * mib


def test_FC_187_a_request_that_can_never_fit_is_told_at_admission() -> None:
    cache = homogeneous(8)
    with pytest.raises(hk.NotAdmitted) as refused:
        cache.admit("a", 129)
    assert (refused.value.reason, refused.value.retry) == ("never", False)
    check_idle(cache)


def test_FC_187_two_that_do_not_fit_together_never_take_turns_to_preempt() -> None:
    cache = homogeneous(8)
    waiting: list[Any] = [("a", tokens(112)), ("b", tokens(112, start=9000))]
    running: list[Any] = []
    refusals = 0
    finished: list[str] = []
    for _ in range(100):
        if waiting:
            try:
                label, ids = waiting[0]
                running.append((cache.admit(label, len(ids)), ids))
                waiting.pop(0)
            except hk.NotAdmitted as error:
                assert error.retry
                refusals += 1
        for ticket, ids in list(running):
            step(ticket, ids, 8)  # whoever was admitted never runs out of pages
            if ticket.tokens == len(ids):
                ticket.close()
                running.remove((ticket, ids))
                finished.append(ticket.request)
    assert finished == ["a", "b"]
    assert refusals == 13
    check_counters(cache)
    check_idle(cache)


def test_FC_175_every_group_is_reserved_through_the_first_step() -> None:
    rules: Rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(17), 16)}
    cap = worst(rules, 80)
    for short in rules:
        pages = {name: 2 * n - (name == short) for name, n in cap.items()}
        cache = make_cache(16, rules, blocks=64, pages=pages)
        first = cache.admit("a", 80)
        with pytest.raises(hk.NotAdmitted) as refused:
            cache.admit("b", 80)
        assert (refused.value.reason, refused.value.retry) == ("pages", True)
        slots = first.grow(80)
        assert new_pages(slots, short) == table(first, short)
        first.close()
        check_idle(cache)
