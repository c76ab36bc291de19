# SPDX-License-Identifier: Apache-2.0
"""Windows and chunks of a running request: what slides out and when, blocks of several sizes, forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event, Rules, check_conserved, give_back, keys_of, make_cache, pools, tokens, usable
from ticket_support import (
    CHUNKED,
    ENGINE,
    GEMMA,
    check_idle,
    free,
    holds,
    needed,
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


def gemma(full: int = 32, swa: int = 32, **more: Any) -> Any:
    """History and a window of 64 tokens, both in blocks of 16."""
    return make_cache(16, GEMMA, blocks=256, pages={"full": full, "swa": swa}, **more)


# -- sliding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 16, 40, 256])
def test_a_request_holds_the_pages_of_its_window_and_all_history(count: int) -> None:
    cache = gemma()
    ticket = cache.admit("a", 256)
    while ticket.tokens < 256:
        step(ticket, tokens(256), min(count, 256 - ticket.tokens))
        t = ticket.tokens
        assert holds(ticket, "full") == needed(hk.Prefix(), 16, t)
        assert holds(ticket, "swa") == needed(hk.Window(64), 16, t)
        assert len(table(ticket, "swa")) == len(table(ticket, "full")) == -(-t // 16)
        check_conserved(cache, cache.pages)
    ticket.close()
    check_idle(cache)


def test_a_published_page_that_slid_out_is_unpinned_and_stays_cached() -> None:
    cache = gemma()
    ticket = cache.admit("a", 256)
    run(ticket, tokens(256), 16)
    keys = keys_of(256)
    assert phases(cache, keys, "swa") == ["ready"] * 16
    assert pins(cache, keys, "swa") == [0] * 12 + [1] * 4
    assert pins(cache, keys, "full") == [1] * 16
    assert pools(cache) == {"full": (16, 0, 16, 0), "swa": (16, 0, 4, 12)}
    v = cache.match(keys_of(257))
    assert np.asarray(v.boundaries).tolist() == list(range(16, 257, 16))
    v.lease.cancel()
    assert cache.evict(keys, {"swa": True}) == 12
    assert holds(ticket, "swa") == [12, 13, 14, 15]
    assert give_back(cache.match(keys_of(257))) == 256
    ticket.close()
    check_idle(cache)


def test_no_page_slides_out_one_token_early() -> None:
    cache = gemma()
    ticket = cache.admit("a", 256)
    step(ticket, tokens(256), 78)
    assert holds(ticket, "swa") == [0, 1, 2, 3, 4]  # the next token, 78, looks back to 15
    step(ticket, tokens(256), 1)
    assert holds(ticket, "swa") == [1, 2, 3, 4]
    assert pins(cache, keys_of(256), "swa")[:2] == [0, 1]
    ticket.close()


def test_what_is_grown_ahead_lets_nothing_go() -> None:
    cache = gemma()
    ticket = cache.admit("a", 256)
    step(ticket, tokens(256), 64)
    ticket.grow(100)
    assert holds(ticket, "swa") == list(range(11))
    assert pins(cache, keys_of(256), "swa")[:4] == [1] * 4
    ticket.rewind(100)
    assert holds(ticket, "swa") == [0, 1, 2, 3]
    ticket.close()


def test_pages_retire_only_after_the_step_that_may_read_them() -> None:
    cache = gemma()
    ticket = cache.admit("a", 256)
    keys = keys_of(256)
    step(ticket, tokens(256), 64)
    event = Event()
    step(ticket, tokens(256), 64, after=event)
    assert ticket.tokens == 128
    cache.poll()
    assert pins(cache, keys, "swa")[:4] == [1] * 4
    assert cache.evict(keys, {"swa": True}) == 0
    event.passed = True
    cache.poll()
    assert pins(cache, keys, "swa")[:8] == [0] * 4 + [1] * 4
    assert cache.evict(keys, {"swa": True}) == 4
    ticket.close()
    check_idle(cache)


def test_a_private_page_that_slid_out_goes_back() -> None:
    cache = gemma()
    served(cache, tokens(256))
    ticket = cache.admit("b", 256)
    run(ticket, tokens(256), 16)
    assert cache.metrics().duplicates == 32
    assert holds(ticket, "swa") == [12, 13, 14, 15]
    assert pools(cache) == {"full": (0, 16, 0, 16), "swa": (12, 4, 0, 16)}
    ticket.close()
    assert pools(cache) == {"full": (16, 0, 0, 16), "swa": (16, 0, 0, 16)}


def test_a_private_page_goes_back_only_after_its_event() -> None:
    cache = gemma()
    served(cache, tokens(256))
    ticket = cache.admit("b", 256)
    run(ticket, tokens(256), 16, to=64)
    event = Event()
    step(ticket, tokens(256), 64, after=event)
    cache.poll()
    assert free(cache)["swa"] == 32 - 16 - 8
    event.passed = True
    cache.poll()
    assert free(cache)["swa"] == 32 - 16 - 4
    ticket.close()


def test_own_pages_out_of_the_window_make_room_for_the_next_step() -> None:
    rules = GEMMA
    cap = worst(rules, 512, step=64)
    cache = gemma(full=32, swa=cap["swa"], admission=hk.Admission(step_tokens=64))
    ticket = cache.admit("a", 512)
    run(ticket, tokens(512), 64)
    assert ticket.tokens == 512
    assert holds(ticket, "swa") == [28, 29, 30, 31]
    ticket.close()
    assert give_back(cache.match(keys_of(513))) == 512
    check_idle(cache)


def test_a_request_never_holds_more_than_the_worst_case() -> None:
    for count in (1, 5, 16, 33):
        cap = worst(GEMMA, 300, step=count)
        cache = gemma(admission=hk.Admission(step_tokens=count))
        ticket = cache.admit("a", 300)
        while ticket.tokens < 300:
            n = min(count, 300 - ticket.tokens)
            ticket.grow(n)
            for name in ("full", "swa"):
                pinned = 32 - free(cache)[name] - pools(cache)[name][3]
                assert pinned <= cap[name], (count, ticket.tokens, name)
            ticket.advance(ticket.tokens + n, tokens(300)[ticket.tokens : ticket.tokens + n])
        ticket.close()


def test_a_window_of_one_token_holds_only_what_is_being_written() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16), "one": (hk.Window(1), 16)}, blocks=64)
    ticket = cache.admit("a", 96)
    step(ticket, tokens(96), 48)
    assert holds(ticket, "one") == []
    assert give_back(cache.match(keys_of(97))) == 48
    ticket.close()
    check_idle(cache)


# -- chunks -----------------------------------------------------------------------------------------


def test_a_chunk_goes_when_the_next_begins() -> None:
    cache = make_cache(2, CHUNKED, blocks=64)
    ticket = cache.admit("a", 20)
    seen = []
    for _ in range(10):
        step(ticket, tokens(20), 2)
        seen.append(holds(ticket, "local"))
    assert seen == [[0], [], [2], [], [4], [], [6], [], [8], []]
    assert pins(cache, keys_of(20, 2), "local") == [0] * 10
    ticket.close()
    assert give_back(cache.match(keys_of(21, 2))) == 20
    check_idle(cache)


def test_a_chunk_wider_than_its_block_holds_from_its_start() -> None:
    rules: Rules = {"full": (hk.Prefix(), 16), "local": (hk.Chunk(64), 16)}
    cache = make_cache(16, rules, blocks=64)
    ticket = cache.admit("a", 256)
    while ticket.tokens < 256:
        step(ticket, tokens(256), 8)
        assert holds(ticket, "local") == needed(hk.Chunk(64), 16, ticket.tokens)
    ticket.close()
    check_idle(cache)


# -- blocks of several sizes ------------------------------------------------------------------------


def test_groups_of_several_block_sizes_move_on_their_own() -> None:
    cache = make_cache(4, ENGINE, blocks=1024)
    ticket = cache.admit("a", 700)
    for n in (100, 156, 1, 3, 200, 140, 100):
        slots = ticket.grow(n)
        start = ticket.tokens
        for name, (_, block) in ENGINE.items():
            assert len(new_pages(slots, name)) == -(-(start + n) // block) - -(-start // block)
        ticket.advance(start + n, tokens(700)[start : start + n])
        t = ticket.tokens
        for name, (coverage, block) in ENGINE.items():
            assert len(table(ticket, name)) == -(-t // block)
            assert holds(ticket, name) == needed(coverage, block, t)
            whole = t // block
            assert phases(cache, keys_of(700, 4), name)[:whole] == ["ready"] * whole
            assert set(phases(cache, keys_of(700, 4), name)[whole:]) <= {"absent"}
        assert give_back(cache.match(keys_of(701, 4))) == t // 256 * 256
        check_conserved(cache, cache.pages)
    ticket.close()
    check_idle(cache)


def test_a_tip_of_several_block_sizes_is_found() -> None:
    cache = make_cache(4, ENGINE, blocks=1024)
    served(cache, tokens(702), 100)
    v = cache.match(keys_of(900, 4))
    assert usable(v) == 702
    assert np.asarray(v.boundaries).tolist() == [256, 512, 702]
    v.lease.release()


def test_two_windows_slide_on_their_own() -> None:
    rules: Rules = {"full": (hk.Prefix(), 16), "near": (hk.Window(17), 16), "far": (hk.Window(129), 16)}
    cache = make_cache(16, rules, blocks=128)
    ticket = cache.admit("a", 320)
    while ticket.tokens < 320:
        step(ticket, tokens(320), 20)
        for name in ("near", "far"):
            assert holds(ticket, name) == needed(rules[name][0], 16, ticket.tokens)
    ticket.close()
    assert give_back(cache.match(keys_of(321))) == 320
    check_idle(cache)


# -- between requests -------------------------------------------------------------------------------


def test_no_page_has_two_owners() -> None:
    cache = gemma(64, 64)
    tickets = [cache.admit(i, 128) for i in range(4)]
    ids = [tokens(128, start=1000 * i) for i in range(4)]
    for _ in range(16):
        for ticket, mine in zip(tickets, ids, strict=True):
            step(ticket, mine, 8)
            everything = [page for t in tickets for page in owned(t, GEMMA)]
            assert len(everything) == len(set(everything))
    for ticket in tickets:
        ticket.close()
    check_idle(cache)


def test_one_requests_sliding_leaves_anothers_pins_alone() -> None:
    cache = gemma()
    served(cache, tokens(64))
    keys = keys_of(300)
    first, second = cache.match(keys), cache.match(keys)
    a = cache.admit("a", 192, lease=first.lease)
    b = cache.admit("b", 192, lease=second.lease)
    assert pins(cache, keys, "swa")[:4] == [2] * 4
    run(a, tokens(192), 16)
    assert holds(a, "swa") == [8, 9, 10, 11]
    assert pins(cache, keys, "swa")[:4] == [1] * 4
    assert holds(b, "swa") == [0, 1, 2, 3]
    assert cache.evict(keys, {"swa": [0, 1, 2, 3]}) == 0
    a.close()
    b.close()
    check_idle(cache)


# -- forms ------------------------------------------------------------------------------------------


def test_every_token_of_every_group_has_one_form() -> None:
    rules: Rules = {"full": (hk.Prefix(), 32), "swa": (hk.Window(64), 16), "state": (hk.Checkpoint(), 16)}
    cache = make_cache(16, rules, blocks=128)
    ticket = cache.admit("a", 300)
    keys = keys_of(300)
    form = {"full": "compressed", "swa": "window", "state": "uncompressed"}
    while ticket.tokens < 300:
        step(ticket, tokens(300), min(20, 300 - ticket.tokens))
        spans = cache.spans(keys)
        for name, parts in spans.items():
            assert [a for a, _, _ in parts] == [0, *[b for _, b, _ in parts[:-1]]]
            assert parts[-1][1] == 300
            assert all(a < b for a, b, _ in parts)
            assert {f for _, _, f in parts} <= {form[name], "absent"}
        t = ticket.tokens
        assert spans["full"][0] == ((0, t // 32 * 32, "compressed") if t >= 32 else (0, 300, "absent"))
        assert spans["swa"][0] == ((0, t // 16 * 16, "window") if t >= 16 else (0, 300, "absent"))
    ticket.close()
