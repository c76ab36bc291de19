# SPDX-License-Identifier: Apache-2.0
"""Weights replaced while a cache lives: flushed, refused or a new version; nothing of before passes for new."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk

OLD, NEW = hk.Identity("m", weights="r1"), hk.Identity("m", weights="r2")
UNIT = 16


class Event:
    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed


def make(**more: Any) -> hk.HybridCache:
    groups = [
        hk.CacheGroup("full", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, block_tokens=UNIT),
        hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(33), page_bytes=64, block_tokens=UNIT),
    ]
    return hk.HybridCache(hk.CacheSpec(UNIT, groups, identity=OLD), blocks=256, **more)


def keys(n: int, identity: hk.Identity = OLD, *, start: int = 0) -> hk.BlockKeys:
    return hk.block_keys(np.arange(start, start + n, dtype=np.uint32), UNIT, identity=identity)


def outcome(cache: hk.HybridCache, n: int, identity: hk.Identity) -> int:
    verdict = cache.match(keys(n, identity))
    if verdict.lease is None:
        return 0
    verdict.lease.release()
    return verdict.usable_tokens


# -- flush --------------------------------------------------------------------------------------------


def test_flush_gives_pages_back_and_refuses_old_keys() -> None:
    cache = make()
    cache.insert(keys(96))
    change = cache.update_identity(NEW, on_change="flush")
    assert change == hk.IdentityChange("flush", ("weights",), 12, 0, 0)
    assert cache.spec.identity == NEW
    assert all(count.free == cache.pages[name] for name, count in cache.metrics().pages.items())
    calls = [
        lambda: cache.match(keys(97)),
        lambda: cache.match_at(keys(97), 96),
        lambda: cache.reserve(keys(96)),
        lambda: cache.reserve(keys(96)[1:]),
        lambda: cache.insert(keys(96)),
    ]
    for call in calls:
        with pytest.raises(hk.StaleIdentity) as refused:
            call()
        assert refused.value.fields == ("weights",)
        assert refused.value.field == "keys"
    assert outcome(cache, 97, NEW) == 0
    cache.insert(keys(96, NEW))
    assert outcome(cache, 97, NEW) == 96
    assert cache.verify()


def test_keys_of_every_tenant_are_of_the_old_weights() -> None:
    cache = make()
    tenant = replace(OLD, salt=b"tenant", adapter="lora")
    cache.insert(keys(96, tenant))
    cache.update_identity(NEW, on_change="flush")
    with pytest.raises(hk.StaleIdentity):
        cache.match(keys(97, tenant))
    assert outcome(cache, 97, replace(tenant, weights="r2")) == 0


def test_values_that_come_back_are_taken_again() -> None:
    cache = make()
    cache.update_identity(NEW, on_change="flush")
    cache.update_identity(replace(NEW, adapter="x"), on_change="flush")
    with pytest.raises(hk.StaleIdentity) as refused:
        cache.match(keys(97, OLD))
    assert refused.value.fields == ("weights", "adapter")
    cache.update_identity(OLD, on_change="flush")
    assert outcome(cache, 97, OLD) == 0
    with pytest.raises(hk.StaleIdentity):
        cache.match(keys(97, NEW))


def test_a_lease_of_before_ends_and_its_pages_go_once_it_is_released() -> None:
    cache = make()
    cache.insert(keys(96))
    lease, taken = cache.match(keys(97)).lease, cache.match(keys(97)).lease
    assert lease is not None
    assert taken is not None
    fill = cache.reserve(keys(128), lease=taken)
    change = cache.update_identity(NEW, on_change="flush")
    assert (change.evicted, change.kept) == (4, 12)  # windows behind the lease; its pages and the fill's
    for read in (
        lambda: lease.page_ids("full"),
        lambda: lease.handouts("full"),
        lambda: lease.tokens,
        lambda: lease.extend(keys(128)),
        lambda: lease.lend("somebody"),
        lambda: lease.launched(Event()),
        lambda: lease.cancel(),
        lambda: lease.release(),
        lambda: taken.page_ids("full"),
    ):
        with pytest.raises(hk.LeaseExpired):
            read()
    assert not lease.valid
    fill.abort()
    assert cache.live() == []
    metrics = cache.metrics()
    assert (metrics.effective_hits, metrics.leaks) == (0, 0)
    for name, pages in cache.pages.items():  # what was pinned makes room like anything else
        cache.insert(keys(UNIT * pages, NEW), groups={name: True})
    assert cache.verify()


def test_a_lease_of_before_that_nobody_looks_at_is_withdrawn_with_its_block() -> None:
    cache = make()
    cache.insert(keys(96))
    with pytest.raises(hk.LeaseExpired), cache.match(keys(97)).lease:
        cache.update_identity(NEW, on_change="flush")
    assert cache.live() == []
    assert cache.metrics().effective_hits == 0


def test_a_lease_of_before_that_is_dropped_is_no_leak() -> None:
    cache = make()
    cache.insert(keys(96))
    lease = cache.match(keys(97)).lease
    assert lease is not None
    cache.update_identity(NEW, on_change="flush")
    del lease
    assert cache.live() == []
    assert cache.metrics().leaks == 0
    cache.reset()


@pytest.mark.parametrize("lease", [False, True])
def test_a_fill_of_before_publishes_nothing(lease: bool) -> None:
    cache = make()
    cache.insert(keys(96))
    held = cache.match(keys(97)).lease if lease else None
    fill = cache.reserve(keys(160), lease=held)
    cache.update_identity(NEW, on_change="flush")
    with pytest.raises(hk.StaleIdentity) as refused:
        fill.publish()
    assert refused.value.field == "fill"
    with pytest.raises(hk.StaleIdentity):
        fill.publish({"full": True})
    assert {info.phase for infos in cache.inspect(keys(160)).values() for info in infos[6:]} == {"filling"}
    fill.abort()
    assert cache.live() == []
    assert {info.phase for infos in cache.inspect(keys(160)).values() for info in infos[6:]} == {"absent"}
    cache.reset()


def test_a_publish_that_waits_for_its_event_makes_nothing_visible() -> None:
    cache = make()
    cache.insert(keys(96))
    event = Event()
    fill = cache.reserve(keys(160), lease=cache.match(keys(97)).lease)
    fill.publish(after=event)
    assert cache.update_identity(NEW, on_change="flush").kept > 0
    event.passed = True
    cache.poll()
    assert {info.phase for infos in cache.inspect(keys(160)).values() for info in infos} <= {"absent", "ready"}
    assert {info.phase for infos in cache.inspect(keys(160)).values() for info in infos[6:]} == {"absent"}
    with pytest.raises(hk.FillClosed):
        fill.publish()
    assert cache.live() == []
    assert cache.metrics().effective_hits == 0
    cache.update_identity(OLD, on_change="flush")  # the old keys are taken again: nothing was published under them
    assert outcome(cache, 161, OLD) == 0


def test_a_fill_that_was_published_before_stays_quiet() -> None:
    cache = make()
    fill = cache.reserve(keys(96))
    fill.publish()
    cache.update_identity(NEW, on_change="flush")
    fill.publish()  # of what is published: a no-op, as ever
    assert outcome(cache, 97, NEW) == 0


def test_running_requests_fail_and_publish_nothing() -> None:
    cache = make()
    cache.insert(keys(96))
    lease = cache.match(keys(97)).lease
    ticket, other = cache.admit("r1", 160, lease=lease), cache.admit("r2", 64)
    ids = np.arange(160, dtype=np.uint32)
    for each, start in ((ticket, 96), (other, 0)):
        each.grow(32)
        each.advance(start + 16, ids[start : start + 16])
    closed = cache.admit("r3", 64)
    closed.close()
    event = Event()
    other.grow(16)
    other.advance(32, ids[16:32], after=event)
    change = cache.update_identity(NEW, on_change="flush")
    assert change.tickets == 2
    for each, start in ((ticket, 112), (other, 32)):
        with pytest.raises(hk.Closed):
            each.grow(16)
        with pytest.raises(hk.Closed):
            each.advance(start + 16, ids[start : start + 16])
        event.passed = True
        each.close()
    cache.poll()
    assert cache.live() == []
    cache.update_identity(OLD, on_change="flush")
    assert outcome(cache, 161, OLD) == 0
    assert {info.phase for infos in cache.inspect(keys(161)).values() for info in infos[7:]} == {"absent"}
    cache.reset()


def test_a_ticket_whose_lease_is_open_withdraws_it() -> None:
    cache = make()
    cache.insert(keys(96))
    ticket = cache.admit("r1", 160, lease=cache.match(keys(97)).lease)
    cache.update_identity(NEW, on_change="flush")
    ticket.close()
    metrics = cache.metrics()
    assert metrics.effective_hits == 0
    assert not any(count for kinds in metrics.false_hits.values() for count in kinds.values())
    assert cache.live() == []


def test_requests_without_tokens_begin_at_the_new_identity() -> None:
    cache = make()
    ticket = cache.admit("r0", 64)
    ticket.close()
    cache.update_identity(NEW, on_change="flush")
    ticket = cache.admit("r1", 64)
    ticket.grow(32)
    ticket.advance(32, np.arange(32, dtype=np.uint32))
    ticket.close()
    assert outcome(cache, 33, NEW) == 32


def test_pages_that_nothing_evicts_by_itself_are_given_back_too() -> None:
    cache = make(eviction="none")
    cache.insert(keys(96))
    ticket = cache.admit("r", 64)
    ticket.grow(40)
    ticket.advance(40, np.arange(1000, 1040, dtype=np.uint32))
    ticket.close()  # with a tip, and its directory
    held = sum(pages - cache.metrics().pages[name].free for name, pages in cache.pages.items())
    assert held > 12
    change = cache.update_identity(NEW, on_change="flush")
    assert (change.evicted, change.kept) == (held, 0)
    assert outcome(cache, 97, NEW) == 0
    cache.update_identity(OLD, on_change="flush")
    assert outcome(cache, 97, OLD) == 0
    everything = cache.reserve(keys(UNIT * min(cache.pages.values()), start=5000))
    everything.abort()


# -- tiers --------------------------------------------------------------------------------------------


def test_records_of_before_are_found_by_nobody_and_nothing_held_back_is_stored() -> None:
    cache = make(tier=hk.MemoryTier(1 << 20), tier_writes="back")
    for name in cache.pages:
        cache.bind(name, np.zeros((cache.pages[name], 64), np.uint8))
    cache.insert(keys(96))
    assert cache.flush(10).records > 0
    cache.insert(keys(96, start=1000))  # held back
    pinned = cache.match(keys(97, start=1000)).lease  # its pages stay: they could still be stored
    assert pinned is not None
    cache.evict(keys(96))
    plan = cache.restorable(keys(97))
    assert plan is not None
    cache.update_identity(NEW, on_change="flush")
    stored = cache.flush(10)
    assert stored.records == 0
    with pytest.raises(hk.LeaseExpired):
        pinned.release()
    for call in (
        lambda: cache.restore(plan),
        lambda: cache.restorable(keys(97)),
        lambda: cache.prefetch(keys(97)),
        lambda: cache.offload(keys(96)),
    ):
        with pytest.raises(hk.StaleIdentity):
            call()
    assert cache.restorable(keys(97, NEW)) is None
    assert cache.match(keys(97, NEW)).outcome is hk.Outcome.MISS
    cache.close()


def test_a_restore_on_its_way_ends_under_the_old_keys() -> None:
    cache = make(tier=hk.MemoryTier(1 << 20))
    for name in cache.pages:
        cache.bind(name, np.zeros((cache.pages[name], 64), np.uint8))
    cache.insert(keys(96))
    cache.offload(keys(96)).result(10)
    cache.evict(keys(96))
    plan = cache.restorable(keys(97))
    assert plan is not None
    transfer = cache.restore(plan)
    cache.update_identity(NEW, on_change="flush")
    assert transfer.result(10).status is hk.tiers.TierStatus.OK
    assert cache.match(keys(97, NEW)).outcome is hk.Outcome.MISS
    with pytest.raises(hk.StaleIdentity):
        cache.match(keys(97))
    cache.close()


# -- refuse and version -------------------------------------------------------------------------------


def test_refuse_wants_an_empty_cache() -> None:
    cache = make()
    fill = cache.reserve(keys(32))
    with pytest.raises(hk.Busy):
        cache.update_identity(NEW, on_change="refuse")
    fill.publish()
    with pytest.raises(hk.Busy) as refused:
        cache.update_identity(NEW, on_change="refuse")
    assert "4 pages" in str(refused.value)
    assert cache.spec.identity == OLD
    assert outcome(cache, 33, OLD) == 32
    cache.evict(keys(32))
    assert cache.update_identity(NEW, on_change="refuse") == hk.IdentityChange("refuse", ("weights",), 0, 0, 0)
    with pytest.raises(hk.StaleIdentity):
        cache.match(keys(33))


def test_versions_live_side_by_side() -> None:
    cache = make()
    cache.insert(keys(96))
    lease = cache.match(keys(97)).lease
    assert lease is not None
    fill = cache.reserve(keys(160))
    assert cache.update_identity(NEW, on_change="version") == hk.IdentityChange("version", ("weights",), 0, 0, 0)
    assert cache.spec.identity == NEW
    assert outcome(cache, 161, NEW) == 0
    cache.insert(keys(64, NEW))
    assert lease.valid
    lease.release()
    fill.publish()
    assert outcome(cache, 161, OLD) == 160
    assert outcome(cache, 161, NEW) == 64


def test_what_is_no_update_is_refused() -> None:
    cache = make()
    for identity, how in ((OLD, "flush"), ("r2", "flush"), (NEW, "replace"), (NEW, None), (NEW, ["flush"])):
        with pytest.raises(hk.ArgumentError):
            cache.update_identity(identity, on_change=how)  # type: ignore[arg-type]
    assert cache.spec.identity == OLD
    cache.close()
    with pytest.raises(hk.Closed):
        cache.update_identity(NEW, on_change="flush")


# -- threads ------------------------------------------------------------------------------------------


def test_an_update_waits_for_a_publish_that_is_under_way() -> None:
    cache = make()
    mark = object()
    cache._era.publishing.add(mark)  # as a publish does on its thread, before it looks
    era, done = cache._era, threading.Event()

    def update() -> None:
        cache.update_identity(NEW, on_change="flush")
        done.set()

    thread = threading.Thread(target=update)
    thread.start()
    assert not done.wait(0.05)
    assert era.over, "what publishes next must see it"
    era.publishing.discard(mark)
    assert done.wait(10)
    thread.join()


def test_fills_under_way_never_publish_what_they_began_before() -> None:
    """Threads fill, match and abort while the weights are replaced again and again; each page says whose it is."""
    cache = make()
    pools = {name: np.zeros((cache.pages[name], 64), np.uint8) for name in cache.pages}
    for name, pool in pools.items():
        cache.bind(name, pool)
    turns = 40
    generation = [0]  # what "the kernels" compute with; the identity comes back every other time
    state = [(0, OLD)]
    errors: list[BaseException] = []
    found, stale = [0] * 4, [0] * 4
    done = threading.Event()

    def read(lease: hk.Lease) -> set[int]:
        return {int(pool[page, 0]) for name, pool in pools.items() for page in lease.page_ids(name) if page >= 0}

    def use(identity: hk.Identity, least: int, number: int, turn: int) -> None:
        asked = keys(64 + 16 * (turn % 3), identity, start=1000 * (turn % 5))
        verdict = cache.match(asked)
        if verdict.lease is not None:
            found[number] += 1
            seen = read(verdict.lease)
            verdict.lease.release()  # raises where the weights were replaced meanwhile: nothing was used then
            assert min(seen) >= least, f"pages of {seen} under the weights {least}"
            return
        fill = cache.reserve(asked)
        try:
            computed = generation[0]
            for name, pool in pools.items():
                pages = fill.page_ids(name)
                pool[pages[pages >= 0]] = computed
            if turn % 3 == 0:
                done.wait(0.003)
            fill.publish()
        except hk.StaleIdentity:
            fill.abort()
            raise

    def work(number: int) -> None:
        turn = 0
        try:
            while not done.is_set():
                turn += 1
                least, identity = state[0]
                try:
                    use(identity, least, number, turn)
                except (hk.StaleIdentity, hk.LeaseExpired):
                    stale[number] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(1, turns):
            done.wait(0.01)
            generation[0] = turn  # replaced in place, under fills that are being written
            identity = NEW if turn % 2 else OLD
            cache.update_identity(identity, on_change="flush")
            state[0] = (turn, identity)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert sum(found) > 0
    assert sum(stale) > 0
    assert cache.live() == []
    assert cache.verify()
