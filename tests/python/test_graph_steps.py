# SPDX-License-Identifier: Apache-2.0
"""The step between `staging.update` and the replay: who ended, whose page is another's, which step the tables hold."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from graph_cases import started
from graph_step_cases import staged
from graph_support import BLOCK, PADDING, WIDTHS, Engine, close_all, refused
from hybridkv.graph import Staging, Topology, TopologyChanged
from ticket_support import assert_named, homogeneous


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    close_all()


def reason_of(engine: Engine, route: Any) -> Any:
    with pytest.raises(TopologyChanged) as caught:
        engine.topology.check(route=route)
    return caught.value.eager


def test_a_step_that_was_routed_and_not_written() -> None:
    engine, tickets = started()
    route = engine.topology.route(tickets)
    eager = reason_of(engine, route)  # the tables are blank
    assert (eager.reason, eager.field, eager.expected, eager.got) == ("restaged", "batch", 2, 0)
    staged(engine, tickets)
    engine.run(tickets, 2)
    engine.advance(tickets)
    engine.grow(tickets, [1, 2])
    eager = reason_of(engine, engine.topology.route(tickets))  # the tables are those of the step before
    assert (eager.reason, eager.field) == ("restaged", "batch[0]")


def test_a_step_that_is_over_is_not_replayed_again() -> None:
    """Its rows would be written once more, which nobody would see; its state would move on."""
    engine, tickets = started()
    route = staged(engine, tickets)
    right = engine.run(tickets, 2)
    assert right.tolist() == engine.right(tickets).tolist()
    engine.topology.check(route=route)
    engine.advance(tickets)
    eager = reason_of(engine, route)
    assert (eager.reason, eager.field, eager.got) == ("restaged", "batch[0]", 8)
    refused(engine, "restaged")
    assert engine.run(tickets, 2).tolist() != right.tolist()


def test_a_lease_that_was_extended_is_another_step() -> None:
    engine = Engine()
    keys = hk.block_keys(range(20), BLOCK, identity=engine.spec.identity)
    engine.cache.insert(keys[:2])
    lease = engine.cache.match(keys).lease
    staged(engine, [lease])
    engine.cache.insert(keys[:4])
    assert lease.extend(keys) == 16
    refused(engine, "restaged")
    lease.cancel()


def test_the_order_of_a_batch_is_part_of_a_step() -> None:
    engine, tickets = started()
    route = engine.topology.route(tickets)
    engine.staging.update(tickets[::-1])
    assert reason_of(engine, route).field == "batch[0]"


def test_rows_that_were_not_written_are_an_earlier_steps() -> None:
    engine, tickets = started()
    three = [*tickets, engine.admit("c", [1])]
    engine.grow(three[2:], [2])
    route = staged(engine, three)
    assert route.bucket == 4
    engine.staging.update(tickets)
    eager = reason_of(engine, route)
    assert (eager.reason, eager.field, eager.expected, eager.got) == ("restaged", "bucket", 4, 2)
    route = engine.topology.route(tickets)
    engine.staging.update(tickets, bucket=4)
    engine.topology.check(route=route)  # more rows than the graph reads


def test_tokens_that_were_to_be_grown_are_the_routed_step() -> None:
    engine, tickets = started()
    engine.eager(tickets)
    engine.advance(tickets)
    none = engine.topology.route(tickets)
    route = engine.topology.route(tickets, more_tokens=1)
    engine.grow(tickets, [1, 2])
    engine.staging.update(tickets)
    engine.topology.check(route=route)
    eager = reason_of(engine, none)
    assert (eager.reason, eager.field) == ("restaged", "batch[0]")
    tickets[0].grow(1)  # the next step's, ahead of time
    engine.topology.check(route=route)


def test_what_happens_in_good_order_is_no_change() -> None:
    engine, tickets = started()
    route = staged(engine, tickets)
    engine.staging.update(tickets)  # once more
    engine.topology.check(route=route)
    for ticket in tickets:
        ticket.close(keep_tip=False)
        del engine.histories[ticket]
    refused(engine, "ended")
    engine.staging.blank()
    engine.topology.check()
    engine.topology.check(route=engine.topology.route([]))


def test_a_step_keeps_no_request_alive() -> None:
    engine = Engine()
    ticket = engine.cache.admit("dropped", 8)
    ticket.grow(1)
    route = staged(engine, [ticket])
    with pytest.warns(ResourceWarning, match="without close"):
        del ticket
        gc.collect()
    eager = reason_of(engine, route)
    assert (eager.reason, eager.got) == ("ended", "one that was dropped")
    assert "Ticket" not in repr(route)


def leased(engine: Engine) -> Any:
    keys = hk.block_keys(range(12), BLOCK, identity=engine.spec.identity)
    engine.cache.insert(keys[:2])
    return engine.cache.match(keys).lease


def test_a_lease_ends_in_many_ways() -> None:
    engine = Engine()
    for end in ("release", "cancel", "fail"):
        lease = leased(engine)
        staged(engine, [lease])
        getattr(lease, end)()
        refused(engine, "ended")
    lease = leased(engine)
    lease.lend("decode-1")
    staged(engine, [lease])
    engine.cache.revoke(owner="decode-1")
    refused(engine, "ended")


def test_weights_that_are_replaced_end_the_step() -> None:
    engine, tickets = started()
    lease = leased(engine)
    for batch in ([lease], tickets):
        staged(engine, batch)
    engine.cache.update_identity(hk.Identity("m", weights="r2"), on_change="flush")
    refused(engine, "ended")


def test_without_a_staging_the_requests_of_the_route_are_looked_at() -> None:
    engine, tickets = started()
    topology = Topology.capture(
        engine.buffers(), engine.spec, max_blocks=WIDTHS | {"window": 6}, padding=PADDING, buckets=(2,)
    )
    route = topology.route(tickets)
    topology.check(route=route)
    tickets[0].close(keep_tip=False)
    topology.check()
    with pytest.raises(TopologyChanged) as caught:
        topology.check(route=route)
    assert caught.value.eager.reason == "ended"


def test_caches_of_one_spec_share_tables() -> None:
    caches = [homogeneous(8), homogeneous(8)]
    spec = caches[0].spec
    staging = Staging(spec, max_blocks=2, padding=-1, buckets=(3,))
    topology = Topology.capture({}, spec, staging=staging)
    tickets = [cache.admit(name, 16) for name, cache in zip("abc", [*caches, caches[0]], strict=True)]
    for ticket in tickets:
        ticket.grow(1)
    staging.update(tickets)
    topology.check()
    tickets[1].rewind(1)
    tickets[1].grow(1)
    with pytest.raises(TopologyChanged) as caught:
        topology.check()
    assert (caught.value.eager.reason, caught.value.eager.group) == ("passed_on", "kv")
    for ticket in tickets:
        ticket.close()


def test_an_update_that_breaks_off_leaves_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, tickets = started()
    staged(engine, tickets)

    def broken(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Staging, "_pad", broken)
    with pytest.raises(MemoryError):
        engine.staging.update(tickets)
    monkeypatch.undo()
    refused(engine, "restaged")
    with pytest.raises(hk.ArgumentError):
        engine.staging.update([*tickets, *tickets, *tickets])  # refused: nothing was written
    engine.staging.update(tickets)
    engine.topology.check()


def test_what_is_no_route_is_refused() -> None:
    engine, _ = started()
    long = engine.admit("long", [1] * 24)
    engine.grow([long], [5])
    for route in (engine.topology.route([long]), 2, "replay"):
        with pytest.raises(hk.ArgumentError) as caught:
            engine.topology.check(route=route)
        assert_named(caught.value)
        assert caught.value.field == "route"


def test_hand_out_counts_of_any_page_are_there() -> None:
    engine, (ticket, _) = started()
    core, index = engine.cache._core, engine.cache._index["full"]
    ids = ticket.page_ids("full")
    assert core.handouts(index, ids).tolist() == ticket.handouts("full").tolist()
    assert core.handouts(index, np.array([-1, 40, 2**31 - 1], np.int32)).tolist() == [0, 0, 0]
    for group in (-1, 3):
        with pytest.raises(hk.ArgumentError):
            core.handouts(group, ids)
