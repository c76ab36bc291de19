# SPDX-License-Identifier: Apache-2.0
"""An identity that returns after a flush finds nothing of before: not what was pinned, nor what was still to end."""

from __future__ import annotations

import numpy as np
import pytest

from test_identity_change import NEW, OLD, Event, keys, make, outcome


@pytest.mark.parametrize("reader", ["lease", "ticket"])
def test_pages_that_are_pinned_over_an_update_are_found_by_nobody_when_an_identity_returns(reader: str) -> None:
    """An adapter that is unloaded, and loaded again under its name with other content."""
    cache = make()
    cache.insert(keys(96))
    event = Event()
    lease = cache.match(keys(97)).lease
    assert lease is not None
    ticket = cache.admit("r", 160, lease=lease) if reader == "ticket" else None
    if ticket is None:
        lease.release(after=event)
    else:
        ticket.grow(8)
        ticket.close(after=event)
    assert cache.update_identity(NEW, on_change="flush").kept > 0
    assert cache.update_identity(OLD, on_change="flush").kept > 0
    assert outcome(cache, 97, OLD) == 0
    again = cache.reserve(keys(96))
    again.publish()  # those of before are still read: what is made anew is not filed yet, or apart from them
    event.passed = True
    cache.poll()
    assert outcome(cache, 97, OLD) in (0, 16, 32, 48, 64, 80, 96)
    cache.insert(keys(96))
    assert outcome(cache, 97, OLD) == 96
    del again
    cache.reset()


def test_the_end_of_a_request_that_waits_for_its_event_publishes_nothing() -> None:
    cache = make()
    event = Event()
    ticket = cache.admit("r", 96)
    ticket.grow(56)
    ticket.advance(56, np.arange(56, dtype=np.uint32), after=event)
    ticket.close(after=event)
    del ticket
    cache.update_identity(NEW, on_change="flush")
    event.passed = True
    cache.poll()
    assert cache.live() == []
    cache.update_identity(OLD, on_change="flush")
    assert outcome(cache, 57, OLD) == 0
    assert {info.phase for infos in cache.inspect(keys(56)).values() for info in infos} == {"absent"}
    assert all(counts.free == cache.pages[name] for name, counts in cache.metrics().pages.items())
