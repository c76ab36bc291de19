# SPDX-License-Identifier: Apache-2.0
"""States of a running request: the live page, checkpoints made from it, states a step wrote itself, drafts."""

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
    check_verdict,
    give_back,
    group,
    held,
    keys_of,
    make_cache,
    pools,
    tokens,
    usable,
)
from ticket_support import RECURRENT, check_idle, free, holds, made, new_pages, phases, run, step, table


def recurrent(pages: int = 16, **more: Any) -> Any:
    """History and a recurrent state, both in blocks of 16."""
    return make_cache(16, RECURRENT, blocks=256, pages={"full": 32, "state": pages}, **more)


def boundaries(cache: Any, n: int, unit: int = 16) -> list[int]:
    """Usable lengths of n tokens."""
    v = cache.match(keys_of(n, unit))
    lengths = np.asarray(v.boundaries).tolist()
    give_back(v)
    return lengths


# -- the live page ----------------------------------------------------------------------------------


def test_the_live_page_is_one_and_never_published() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100)
    slots = ticket.grow(32)
    live = ticket.live_page("state")
    assert live >= 0
    assert slots.live_page("state") == live
    assert (slots.live_page("full"), ticket.live_page("full")) == (-1, -1)
    assert new_pages(slots, "state") == []
    assert table(ticket, "state") == [-1, -1]
    ticket.advance(32, tokens(32))
    run(ticket, tokens(96), 16)
    assert ticket.live_page("state") == live
    assert live not in [info.page for info in cache.inspect(keys_of(96))["state"]]
    ticket.close()
    check_idle(cache)


def test_a_checkpoint_is_a_copy_and_visible_at_the_next_advance() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100)
    copies = step(ticket, tokens(100), 32)
    assert list(copies) == ["state"]
    [[source, target, rows]] = copies["state"]
    assert (source, rows) == (ticket.live_page("state"), 0)
    assert target != source
    v = cache.match(keys_of(100))
    check_verdict(v)
    assert (v.outcome, v.matched_tokens, v.why.group) == (hk.Outcome.FALSE_HIT, 32, "state")
    check_conserved(cache, cache.pages)
    assert step(ticket, tokens(100), 1) == {}
    v = cache.match(keys_of(100))
    assert usable(v) == 32
    assert np.asarray(v.lease.page_ids("state")).tolist() == [-1, target]
    v.lease.cancel()
    ticket.close(keep_tip=False)
    assert pools(cache)["state"] == (15, 0, 0, 1)
    check_idle(cache)


def test_a_checkpoint_is_visible_once_the_event_of_its_step_passed() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100)
    event = Event()
    assert list(step(ticket, tokens(100), 32, after=event)) == ["state"]
    cache.poll()
    assert give_back(cache.match(keys_of(100))) == 0
    event.passed = True
    cache.poll()
    assert give_back(cache.match(keys_of(100))) == 32
    ticket.close()
    check_idle(cache)


@pytest.mark.parametrize("keep_tip", [True, False])
def test_a_checkpoint_is_visible_at_close(keep_tip: bool) -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 32)
    ticket.close(keep_tip=keep_tip)
    assert give_back(cache.match(keys_of(100))) == 32
    assert pools(cache)["state"] == (15, 0, 0, 1)
    check_idle(cache)


def test_a_checkpoint_exists_only_where_a_step_ended() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 200)
    ends = []
    for n in (20, 12, 64, 3, 13, 16):
        copies = step(ticket, tokens(200), n)
        ends.append((ticket.tokens, list(copies)))
    assert ends == [(20, []), (32, ["state"]), (96, ["state"]), (99, []), (112, ["state"]), (128, ["state"])]
    ticket.close()
    assert boundaries(cache, 200) == [32, 96, 112, 128]
    assert phases(cache, keys_of(128), "state") == [
        "ready" if end in (32, 96, 112, 128) else "absent" for end in range(16, 129, 16)
    ]
    check_idle(cache)


def test_a_live_page_that_is_ahead_is_no_checkpoint() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100)
    ticket.grow(40)
    assert made(ticket.advance(32, tokens(32))) == {}
    step_end = made(ticket.advance(40, tokens(40)[32:]))
    assert step_end == {}
    ticket.close(keep_tip=False)
    v = cache.match(keys_of(100))
    assert v.outcome == hk.Outcome.FALSE_HIT
    assert blamed(v)[:2] == (hk.Check.GROUPS, "state")


def test_a_live_page_that_saw_rejected_drafts_is_no_checkpoint() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 30)
    ticket.grow(5)  # one token and four drafts, of which one is accepted: 32 in all
    ticket.rewind(3)
    assert ticket.grown_tokens == 32
    assert made(ticket.advance(32, tokens(32)[30:])) == {}
    assert phases(cache, keys_of(32), "state") == ["absent", "absent"]
    assert list(step(ticket, tokens(100), 16)) == ["state"]
    ticket.close()
    assert boundaries(cache, 100) == [48]
    check_idle(cache)


def test_accepted_first_and_rewound_after_is_no_checkpoint_either() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 30)
    ticket.grow(5)
    assert made(ticket.advance(32, tokens(32)[30:])) == {}
    ticket.rewind(3)
    ticket.close()
    assert cache.match(keys_of(100)).outcome == hk.Outcome.FALSE_HIT
    assert pools(cache)["state"] == (16, 0, 0, 0)


def test_a_tip_after_rejected_drafts_has_no_state() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 32)
    step(ticket, tokens(100), 3)
    ticket.grow(4)
    ticket.advance(37, tokens(37)[35:])
    ticket.rewind(2)
    ticket.close()
    assert boundaries(cache, 100) == [32]
    check_idle(cache)


def test_a_close_turns_the_live_page_into_the_tips_state() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100)
    step(ticket, tokens(100), 40)
    live = ticket.live_page("state")
    ticket.close()
    v = cache.match(keys_of(100))
    assert usable(v) == 40
    assert np.asarray(v.lease.page_ids("state")).tolist() == [-1, -1, live]
    v.lease.release()
    assert pools(cache)["state"] == (15, 0, 0, 1)
    check_idle(cache)


def test_a_close_that_is_ahead_keeps_no_state() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100)
    ticket.grow(44)
    ticket.advance(40, tokens(40))
    ticket.close()
    assert give_back(cache.match(keys_of(100))) == 0
    assert pools(cache)["state"] == (16, 0, 0, 0)
    check_idle(cache)


def test_no_page_for_a_checkpoint_is_no_failure() -> None:
    cache = recurrent(2)
    ticket = cache.admit("a", 96)
    for end in (16, 32, 48, 64):
        step(ticket, tokens(96), 16)
        assert ticket.tokens == end
        check_conserved(cache, cache.pages)
    ticket.close()
    assert give_back(cache.match(keys_of(97))) == 64
    check_idle(cache)


def test_no_state_is_made_where_none_is_needed() -> None:
    rules: Rules = {"full": (hk.Prefix(), 16), "tail": (hk.Checkpoint(32), 16)}
    cache = make_cache(16, rules, blocks=64)
    ticket = cache.admit("a", 100)
    ends = [(list(step(ticket, tokens(100), 16)), ticket.tokens) for _ in range(4)]
    assert ends == [(["tail"], 16), ([], 32), (["tail"], 48), ([], 64)]
    ticket.close()
    assert boundaries(cache, 100) == [16, 32, 48, 64]


def test_a_state_of_larger_blocks_is_made_at_its_own_boundaries() -> None:
    rules: Rules = {"full": (hk.Prefix(), 16), "state": (hk.Checkpoint(), 64)}
    cache = make_cache(16, rules, blocks=64)
    ticket = cache.admit("a", 200)
    ends = [ticket.tokens for _ in range(8) if "state" in step(ticket, tokens(200), 16)]
    assert ends == [64, 128]
    ticket.close()
    assert boundaries(cache, 200) == [64, 128]


# -- states that a step wrote itself ----------------------------------------------------------------


def test_named_states_are_published_at_once() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100, states=2)
    slots = ticket.grow(64, states=(32, 64))
    first, second = new_pages(slots, "state")
    assert len({first, second, ticket.live_page("state")}) == 3
    assert table(ticket, "state") == [-1, first, -1, second]
    assert new_pages(slots, "full") == table(ticket, "full")
    assert made(ticket.advance(64, tokens(64), states=(32, 64))) == {}
    assert boundaries(cache, 100) == [32, 64]
    v = cache.match(keys_of(100))
    assert np.asarray(v.lease.page_ids("state")).tolist() == [-1, -1, -1, second]
    v.lease.cancel()
    ticket.close(keep_tip=False)
    assert pools(cache)["state"] == (14, 0, 0, 2)
    check_idle(cache)


def test_a_named_state_waits_for_its_length() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100, states=2)
    first, second = new_pages(ticket.grow(64, states=(32, 64)), "state")
    ticket.advance(48, tokens(48), states=(32,))
    assert boundaries(cache, 100) == [32]
    assert table(ticket, "state")[3] == second
    ticket.advance(64, tokens(64)[48:], states=(64,))
    assert boundaries(cache, 100) == [32, 64]
    assert [cache.inspect(keys_of(64))["state"][b].page for b in (1, 3)] == [first, second]
    ticket.close()


def test_a_state_may_be_asked_for_what_was_grown_before() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100, states=1)
    ticket.grow(48)
    slots = ticket.grow(0, states=(32,))
    assert (slots.start, slots.end) == (48, 48)
    assert len(new_pages(slots, "state")) == 1
    assert new_pages(slots, "full") == []
    ticket.advance(48, tokens(48), states=(32,))
    ticket.close()
    assert boundaries(cache, 100) == [32, 48]


def test_named_states_where_a_group_keeps_nothing_have_no_page() -> None:
    rules: Rules = {"full": (hk.Prefix(), 16), "state": (hk.Checkpoint(), 32), "tail": (hk.Checkpoint(48), 16)}
    cache = make_cache(16, rules, blocks=64)
    ticket = cache.admit("a", 100, states=3)
    slots = ticket.grow(96, states=(32, 48, 64))
    assert [page >= 0 for page in new_pages(slots, "state")] == [True, False, True]
    assert [page >= 0 for page in new_pages(slots, "tail")] == [True, False, True]
    ticket.advance(96, tokens(96), states=(32, 48, 64))
    ticket.close()
    assert boundaries(cache, 100) == [32, 64, 96]
    check_idle(cache)


def test_a_rewind_drops_the_states_beyond() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100, states=2)
    first, _ = new_pages(ticket.grow(64, states=(32, 64)), "state")
    before = free(cache)["state"]
    ticket.rewind(16)
    assert table(ticket, "state") == [-1, first, -1]
    assert free(cache)["state"] == before + 1
    ticket.advance(48, tokens(48), states=(32,))
    ticket.close()
    assert boundaries(cache, 100) == [32]
    check_idle(cache)


def test_states_that_were_never_written_are_never_seen() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100, states=2)
    ticket.grow(64, states=(16, 32))
    ticket.advance(64, tokens(64), states=(32,))
    ticket.close(keep_tip=False)
    assert 16 not in boundaries(cache, 100)
    assert phases(cache, keys_of(16), "state") == ["absent"]
    check_idle(cache)


def test_more_states_than_admitted_are_refused() -> None:
    cache = recurrent()
    ticket = cache.admit("a", 100, states=1)
    before = pools(cache)
    with pytest.raises((hk.OutOfPages, hk.ArgumentError)):
        ticket.grow(96, states=(16, 32, 48))
    assert (pools(cache), ticket.grown_tokens) == (before, 0)
    ticket.close()


# -- windows whose page holds fewer rows than its block ---------------------------------------------


def short_window() -> Any:
    """History in blocks of 64 tokens, and a window page of the last 16 rows of each block."""
    swa = group("swa", hk.Window(16), page_bytes=16 * 8, row_bytes=8, rows_per_page=16)
    return hk.HybridCache(hk.CacheSpec(64, [group("full", hk.Prefix()), swa]), blocks=64)


def test_a_window_of_trailing_rows_is_a_live_state() -> None:
    cache = short_window()
    ticket = cache.admit("a", 400)
    assert new_pages(ticket.grow(128), "swa") == []
    live = ticket.live_page("swa")
    copies = made(ticket.advance(128, tokens(128)))
    assert [[source, rows] for source, _, rows in copies["swa"]] == [[live, 0]]
    step(ticket, tokens(400), 20)
    v = cache.match(keys_of(400, 64))
    assert np.asarray(v.boundaries).tolist() == [128]
    assert held(v.lease, "swa") == [1]
    v.lease.cancel()
    ticket.close()
    assert boundaries(cache, 400, 64) == [128, 148]
    check_idle(cache)


def test_a_window_page_of_all_rows_is_no_live_state() -> None:
    whole = group("swa", hk.Window(16), page_bytes=64 * 8, row_bytes=8, rows_per_page=64)
    cache = hk.HybridCache(hk.CacheSpec(64, [group("full", hk.Prefix()), whole]), blocks=64)
    ticket = cache.admit("a", 400)
    assert len(new_pages(ticket.grow(128), "swa")) == 2
    assert ticket.live_page("swa") == -1
    assert made(ticket.advance(128, tokens(128))) == {}
    assert holds(ticket, "swa") == [1]
    assert boundaries(cache, 400, 64) == [64, 128]
    ticket.close()
