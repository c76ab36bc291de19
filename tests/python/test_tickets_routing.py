# SPDX-License-Identifier: Apache-2.0
"""State routing: what a step says it wrote must be pages of this request and of that group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Rules, check_conserved, give_back, keys_of, make_cache, observe, tokens
from ticket_support import assert_named, check_idle, holds, phases, step, table

RULES: Rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(33), 16), "state": (hk.Checkpoint(), 16)}
PAGES = {"full": 60, "swa": 64, "state": 70}


def two_requests() -> tuple[Any, Any, Any]:
    """Two requests of 48 grown tokens each, of which the first has written 32."""
    cache = make_cache(16, RULES, blocks=256, pages=PAGES)
    first, second = cache.admit("a", 100, states=1), cache.admit("b", 100, states=1)
    step(first, tokens(100), 32)
    first.grow(32, states=(64,))
    second.grow(48)
    return cache, first, second


def every_page(ticket: Any, name: str) -> list[int]:
    """Pages a request may write of a group."""
    ids = [page for page in table(ticket, name) if page >= 0]
    return [*ids, ticket.live_page(name)] if ticket.live_page(name) >= 0 else ids


def test_pages_of_this_request_may_be_said() -> None:
    cache, first, second = two_requests()
    wrote = {name: np.array(every_page(first, name)[-2:], np.int32) for name in RULES}
    first.advance(64, tokens(64)[32:], states=(64,), wrote=wrote)
    assert first.tokens == 64
    second.advance(48, tokens(48, start=5000), wrote={"full": table(second, "full"), "state": []})
    for ticket in (first, second):
        ticket.close()
    assert give_back(cache.match(keys_of(100))) == 64
    check_idle(cache)


def wrong_pages() -> dict[str, Any]:
    """What a step must not have written, by the group it names."""
    return {
        "full: of the window": ("full", lambda a, b, c: foreign(a, "full", every_page(a, "swa"), c)),
        "swa: of the history": ("swa", lambda a, b, c: foreign(a, "swa", every_page(a, "full"), c)),
        "state: of the history": ("state", lambda a, b, c: foreign(a, "state", every_page(a, "full"), c)),
        "swa: of the state": ("swa", lambda a, b, c: foreign(a, "swa", every_page(a, "state"), c)),
        "full: of another request": ("full", lambda a, b, c: table(b, "full")[0]),
        "swa: of another request": ("swa", lambda a, b, c: table(b, "swa")[0]),
        "state: live page of another request": ("state", lambda a, b, c: b.live_page("state")),
        "full: a free page": ("full", lambda a, b, c: 59),
        "full: a page that is none": ("full", lambda a, b, c: -1),
        "full: beyond the pool": ("full", lambda a, b, c: 60),
        "state: beyond the pool": ("state", lambda a, b, c: 2**30),
    }


def foreign(ticket: Any, name: str, pages: list[int], cache: Any) -> int:
    """A page of another group that is none of this one, whatever the numbers; beyond the pool if there is none."""
    return next((page for page in pages if page not in every_page(ticket, name)), cache.pages[name])


WRONG = wrong_pages()


@pytest.mark.parametrize("name", WRONG)
def test_a_page_of_another_group_or_request_is_refused(name: str) -> None:
    cache, first, second = two_requests()
    group, choose = WRONG[name]
    page = choose(first, second, cache)
    before = observe(cache, keys_of(100)), table(first, "full"), first.tokens
    wrote = {group: [*every_page(first, group), page]}
    with pytest.raises(hk.SpecError) as refused:
        first.advance(64, tokens(64)[32:], states=(64,), wrote=wrote)
    assert_named(refused.value)
    assert group in refused.value.field
    assert str(page) in str(refused.value.got)
    assert (observe(cache, keys_of(100)), table(first, "full"), first.tokens) == before
    first.advance(64, tokens(64)[32:], states=(64,))
    first.close()
    second.close()
    assert give_back(cache.match(keys_of(100))) == 64
    check_idle(cache)


def test_a_shared_page_is_not_one_to_write() -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16)}, blocks=16)
    cache.insert(keys_of(23))
    v = cache.match(keys_of(60))
    shared = int(np.asarray(v.lease.page_ids("kv"))[1])
    ticket = cache.admit("a", 60, lease=v.lease)
    ticket.grow(10)
    with pytest.raises(hk.SpecError):
        ticket.advance(33, tokens(33)[23:], wrote={"kv": [shared]})
    ticket.advance(33, tokens(33)[23:], wrote={"kv": table(ticket, "kv")[1:]})
    ticket.close()
    check_idle(cache)


def test_a_page_that_slid_out_is_not_one_to_write() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16), "swa": (hk.Window(17), 16)}, blocks=64)
    ticket = cache.admit("a", 200)
    step(ticket, tokens(200), 32)
    gone = table(ticket, "swa")
    step(ticket, tokens(200), 64)
    assert holds(ticket, "swa") == [5]
    left = [page for page in gone if page not in table(ticket, "swa")]
    ticket.grow(16)
    with pytest.raises(hk.SpecError):
        ticket.advance(112, tokens(112)[96:], wrote={"swa": left[:1]})
    assert ticket.tokens == 96
    ticket.close()
    check_idle(cache)


# -- a group records only its own form --------------------------------------------------------------


def test_each_group_records_its_own_form_and_only_where_its_coverage_uses_it() -> None:
    spec = hk.CacheSpec(
        16,
        [
            hk.CacheGroup("csa", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64),
            hk.CacheGroup("index", hk.StateKind.INDEXER, hk.Prefix(), page_bytes=64, in_step_with="csa"),
            hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(33), page_bytes=64),
            hk.CacheGroup("tail", hk.StateKind.TAIL, hk.Checkpoint(32), page_bytes=64),
        ],
    )
    cache = hk.HybridCache(spec, blocks=64)
    forms = {"csa": "compressed", "index": "indexer", "swa": "window", "tail": "uncompressed"}
    ticket = cache.admit("a", 200)
    for end in range(16, 161, 16):
        step(ticket, tokens(200), 16)
        for name, parts in cache.spans(keys_of(200)).items():
            covered = [0] * 200
            for start, stop, form in parts:
                assert form in (forms[name], "absent")
                covered[start:stop] = [n + 1 for n in covered[start:stop]]
            assert covered == [1] * 200
        assert phases(cache, keys_of(200), "csa") == phases(cache, keys_of(200), "index")
        check_conserved(cache, cache.pages)
        assert ticket.tokens == end
    ticket.close()
    ready = [phase == "ready" for phase in phases(cache, keys_of(160), "tail")]
    assert ready == [end % 32 != 0 for end in range(16, 161, 16)]
    states = cache.metrics().states
    assert states[hk.StateKind.INDEXER] == states[hk.StateKind.COMPRESSED] == 10
    check_idle(cache)
