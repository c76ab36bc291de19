# SPDX-License-Identifier: Apache-2.0
"""Requests that never use a group: no pages, nothing published there, and readers who need it are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import (
    Rules,
    blamed,
    check_conserved,
    give_back,
    group,
    keys_of,
    make_cache,
    pools,
    tokens,
    usable,
)
from ticket_support import ample, assert_named, check_idle, holds, new_pages, run, served, step

RULES: Rules = {
    "full": (hk.Prefix(), 16),
    "image": (hk.Prefix(), 16),
    "swa": (hk.Window(33), 16),
    "state": (hk.Checkpoint(), 16),
}
TEXT = ("full", "swa", "state")


def drafted(*, rebuildable: bool = True) -> Any:
    """A cache whose window of a draft head may be computed again."""
    groups = [
        group("full", hk.Prefix(), 16),
        group("draft", hk.Window(17), 16, rebuildable=rebuildable, **({"replay_tokens": 16} if rebuildable else {})),
    ]
    return hk.HybridCache(hk.CacheSpec(16, groups), blocks=64)


def test_a_request_uses_every_group_unless_it_says_so() -> None:
    cache = make_cache(16, RULES)
    every, some = cache.admit("a", 64), cache.admit("b", 64, groups=["state", "full"])
    assert (every.groups, some.groups) == (tuple(RULES), ("full", "state"))
    every.close()
    some.close()


def test_of_a_group_that_it_does_not_use_it_takes_and_publishes_nothing() -> None:
    cache = make_cache(16, RULES)
    ticket = cache.admit("text", 96, states=1, groups=TEXT)
    slots = ticket.grow(40, states=[32])
    assert new_pages(slots, "image") == []
    assert len(new_pages(slots, "full")) == 3
    ticket.advance(40, tokens(40), states=[32])
    step(ticket, tokens(96), 24)
    assert holds(ticket, "image") == []
    assert ticket.live_page("image") == -1
    assert pools(cache)["image"] == (cache.pages["image"], 0, 0, 0)
    ticket.close()
    assert pools(cache)["image"] == (cache.pages["image"], 0, 0, 0)
    assert pools(cache)["full"][3] == 4
    check_idle(cache)


@pytest.mark.parametrize("unused", RULES)
def test_who_needs_the_group_finds_a_false_hit_that_names_it(unused: str) -> None:
    cache = make_cache(16, RULES)
    ticket = cache.admit("a", 72, groups=[name for name in RULES if name != unused])
    run(ticket, tokens(72), 16)
    ticket.close()
    v = cache.match(keys_of(80))
    assert usable(v) == 0
    assert v.outcome == hk.Outcome.FALSE_HIT
    check, name, _ = blamed(v)
    assert name == unused
    assert check == (hk.Check.COMPLETE if isinstance(RULES[unused][0], hk.Prefix) else hk.Check.GROUPS)
    served(cache, tokens(72))  # who uses all of them files what is missing
    assert give_back(cache.match(keys_of(80))) >= 64
    check_idle(cache)


def test_a_group_that_can_be_computed_again_is_no_loss() -> None:
    cache = drafted()
    ticket = cache.admit("plain", 72, groups=["full"])
    run(ticket, tokens(72), 16)
    ticket.close()
    v = cache.match(keys_of(100))
    assert usable(v) >= 64
    assert "draft" in v.plan.replay
    v.lease.cancel()
    check_idle(cache)


def test_a_partial_last_unit_needs_every_group() -> None:
    cache = drafted(rebuildable=False)
    ticket = cache.admit("plain", 72, groups=["full"])
    run(ticket, tokens(40), 20)
    ticket.close()
    assert pools(cache)["full"][3] == 2  # the whole units alone
    check_idle(cache)


def test_a_request_without_a_group_needs_no_room_there() -> None:
    cache = make_cache(16, RULES, pages={"full": 32, "image": 2, "swa": 32, "state": 40})
    with pytest.raises(hk.NotAdmitted) as caught:
        cache.admit("a", 160)
    assert (caught.value.reason, caught.value.retry) == ("never", False)
    tickets = [cache.admit(i, 160, groups=TEXT) for i in range(2)]
    for number, ticket in enumerate(tickets):
        run(ticket, tokens(160, start=3000 * number), 16)
        ticket.close()
    check_idle(cache)


def test_it_starts_at_a_lease_and_lets_the_unused_go() -> None:
    cache = make_cache(16, RULES)
    served(cache, tokens(72))
    ticket = cache.admit("text", 160, groups=("full", "swa"), lease=cache.match(keys_of(100)).lease)
    assert ticket.tokens == 72
    ticket.grow(16)
    assert ticket.copies("state").shape == (0, 3)
    assert len(ticket.copies("full")) == 1
    ticket.advance(88, tokens(88)[72:])
    check_conserved(cache, cache.pages)
    run(ticket, tokens(160), 16)
    assert cache.metrics().effective_hits == 1
    ticket.close()
    assert give_back(cache.match(keys_of(161))) == 72
    check_idle(cache)


def test_sets_of_groups_are_what_the_cap_on_combinations_counts() -> None:
    cache = make_cache(16, RULES, admission=hk.Admission(max_combinations=2))
    everything, text = cache.admit("a", 64), cache.admit("b", 64, groups=TEXT)
    again = cache.admit("c", 64, groups=[*reversed(TEXT)])  # the same set
    with pytest.raises(hk.NotAdmitted) as caught:
        cache.admit("d", 64, groups=["full"])
    assert_named(caught.value)
    assert (caught.value.reason, caught.value.retry) == ("combinations", True)
    assert cache.metrics().not_admitted["combinations"] == 1
    text.close()
    with pytest.raises(hk.NotAdmitted):
        cache.admit("d", 64, groups=["full"])
    again.close()
    last = cache.admit("d", 64, groups=["full"])
    last.close()
    everything.close()
    check_idle(cache)


def test_a_batch_leaves_the_unused_group_alone() -> None:
    cache = make_cache(16, RULES)
    ticket = cache.admit("text", 64, groups=TEXT)
    out = np.empty((1, 4, 4), np.int32)
    cache.step(np.array([ticket.handle]), np.array([40], np.int32), np.array([-1]), out)
    assert [int((row >= 0).sum()) for row in out[0]] == [3, 0, 3, 0]
    cache.set_graph_widths({"image": 1})
    assert ticket.eager is None
    ticket.close()


def test_a_fill_of_its_ticket_has_no_share_there() -> None:
    cache = make_cache(16, RULES)
    ticket = cache.admit("text", 64, groups=TEXT)
    with pytest.raises(hk.OutOfPages) as caught:
        cache.reserve(keys_of(16), ticket=ticket)
    assert (caught.value.pool, caught.value.free) == ("image", 0)
    cache.reserve(keys_of(16), ticket=ticket, groups={"full": True}).abort()
    ticket.close()
    check_idle(cache)


def test_requests_of_different_groups_finish_beside_each_other() -> None:
    pages = {name: 2 * n for name, n in ample(RULES, 96, step=16).items()}
    cache = make_cache(16, RULES, pages=pages, admission=hk.Admission(step_tokens=16))
    sets = [None, TEXT, ("full",), ("image", "swa"), ("full", "image", "state")]
    for turn in range(40):
        admitted = []
        for number in range(3):
            ids = tokens(96, start=500 * ((turn + number) % 4))
            v = cache.match(hk.block_keys(ids, 16))
            try:
                admitted.append((cache.admit(number, 96, groups=sets[(turn * 3 + number) % 5], lease=v.lease), ids))
            except hk.NotAdmitted as error:
                assert error.retry
        assert admitted
        while any(ticket.tokens < 96 for ticket, _ in admitted):
            for ticket, ids in admitted:
                if ticket.tokens < 96:
                    step(ticket, ids, min(16, 96 - ticket.tokens))
                check_conserved(cache, pages)
        for ticket, _ in admitted:
            ticket.close()
        check_idle(cache)


@pytest.mark.parametrize("groups", ["full", b"full", [], (), 7, ["nothing"], [["full"]], [None]])
def test_groups_that_are_none_are_refused(groups: Any) -> None:
    cache = make_cache(16, RULES)
    with pytest.raises(hk.ArgumentError) as caught:
        cache.admit("a", 64, groups=groups)
    assert_named(caught.value)
    assert cache.metrics().not_admitted["never"] == 0
    cache.close()
