# SPDX-License-Identifier: Apache-2.0
"""Events of launched work beside tickets: what waits for whom."""

from __future__ import annotations

import pytest

import hybridkv as hk
from contract_support import Event, make_cache
from ticket_support import check_idle


def test_work_announced_on_a_lease_holds_up_what_its_ticket_gives_back() -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16)}, blocks=16)
    keys = hk.block_keys(range(40), 16, identity=cache.spec.identity)
    cache.insert(keys[:2])
    lease = cache.match(keys).lease
    event = Event()
    lease.launched(event)
    ticket = cache.admit("a", 64, lease=lease)
    ticket.close(keep_tip=False)
    assert cache.evict(keys[:2]) == 0  # launched work may read them
    event.passed = True
    cache.poll()
    assert cache.evict(keys[:2]) == 2


def test_an_event_that_closes_the_ticket_it_is_asked_for_closes_it_once() -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16)}, blocks=16)
    ticket = cache.admit("a", 64)

    class Closing:
        def query(self) -> bool:
            if not ticket.closed:
                ticket.close()
            return True

    with pytest.raises(hk.Closed):
        ticket.close(after=Closing())
    assert cache.metrics().pages["kv"].free == 16


def test_work_announced_on_a_lease_keeps_its_pages_where_its_request_is_refused() -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16)}, blocks=16)
    keys = hk.block_keys(range(40), 16, identity=cache.spec.identity)
    cache.insert(keys[:2])
    lease = cache.match(keys).lease
    event = Event()
    lease.launched(event)
    with pytest.raises(hk.NotAdmitted):
        cache.admit("a", 16 * 17, lease=lease)
    assert cache.evict(keys[:2]) == 0
    event.passed = True
    cache.poll()
    assert cache.evict(keys[:2]) == 2
    check_idle(cache)
