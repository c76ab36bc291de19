# SPDX-License-Identifier: Apache-2.0
"""Leases of readers elsewhere: owner, deadline, revocation, and pins that are counted, not timed."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import hybridkv as hk
from contract_support import Event, check_counters, full_swa, keys_of, make_cache, pools

KEYS = keys_of(97)
READS: dict[str, Callable[[Any], object]] = {
    "tokens": lambda lease: lease.tokens,
    "page_ids": lambda lease: lease.page_ids("full"),
    "handouts": lambda lease: lease.handouts("full"),
    "addresses": lambda lease: lease.addresses("full"),
    "extend": lambda lease: lease.extend(KEYS),
    "launched": lambda lease: lease.launched(Event()),
    "lend": lambda lease: lease.lend("another"),
    "release": lambda lease: lease.release(),
    "release after": lambda lease: lease.release(Event()),
    "fail": lambda lease: lease.fail("late"),
    "cancel": lambda lease: lease.cancel(),
}


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lent(owner: str = "decode-3", *, seconds: float | None = None) -> tuple[Any, Clock, Any]:
    """A cache of one prompt, its clock, and a lease of it that is lent."""
    clock = Clock()
    cache = full_swa(clock=clock)
    cache.insert(KEYS[:6])
    lease = cache.match(KEYS).lease
    lease.lend(owner, deadline_s=None if seconds is None else clock.now + seconds)
    return cache, clock, lease


def evicted(cache: Any) -> int:
    """Pages of the prompt that could be taken away."""
    return int(cache.evict(KEYS[:6], groups={"full": True}))


# -- revoking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("how", ["owner", "deadline", "late"])
def test_every_call_on_a_revoked_lease_says_what_happened(read: str, how: str) -> None:
    cache, clock, lease = lent(seconds=30)
    if how == "owner":
        cache.revoke(owner="decode-3")
    else:
        clock.now += 30
        if how == "deadline":
            cache.revoke()
    with pytest.raises(hk.LeaseExpired, match="revoked" if how == "owner" else "deadline 130") as told:
        READS[read](lease)
    assert (told.value.owner, told.value.deadline_s) == ("decode-3", 130.0)
    assert not lease.valid
    metrics = cache.metrics()
    assert (metrics.withdrawn, metrics.pending, metrics.effective_hits, metrics.leaks) == (1, 0, 0, 0)
    check_counters(cache)
    assert evicted(cache) == 6
    cache.close()


def test_revoking_an_owner_leaves_the_others() -> None:
    cache, _, first = lent("decode-3")
    second, third = cache.match(KEYS).lease, cache.match(KEYS).lease
    second.lend("decode-4", deadline_s=1000)
    revoked = cache.revoke(owner="decode-3")
    assert [(h.what, h.owner, h.tokens, h.pages, h.deadline_s) for h in revoked] == [("lease", "decode-3", 96, 8, None)]
    assert (first.valid, second.valid, third.valid) == (False, True, True)
    assert cache.revoke(owner="decode-3") == []
    assert evicted(cache) == 0  # pins are counted: two leases hold the same pages
    second.release()
    third.release()
    assert evicted(cache) == 6


def test_a_deadline_ends_a_lease_at_its_time_and_not_before() -> None:
    cache, clock, lease = lent(seconds=30)
    clock.now += 29
    assert cache.revoke() == [] and lease.valid
    assert cache.revoke(now=129.5) == []
    clock.now += 1
    assert not lease.valid  # nobody has revoked it: the outcome does not hang on whether a sweep came by
    assert cache.revoke() == []
    assert cache.metrics().withdrawn == 1


def test_revoke_takes_the_time_it_is_given() -> None:
    cache, _, lease = lent(seconds=30)
    assert [holder.deadline_s for holder in cache.revoke(now=130)] == [130.0]
    assert not lease.valid


def test_an_owner_and_a_time_go_together() -> None:
    cache, _, first = lent("a", seconds=30)
    second = cache.match(KEYS).lease
    second.lend("b", deadline_s=110)
    assert cache.revoke(owner="a", now=120) == []
    assert [holder.owner for holder in cache.revoke(owner="b", now=120)] == ["b"]
    first.cancel()


def test_a_lease_without_a_deadline_never_runs_out() -> None:
    cache, clock, lease = lent()
    other = cache.match(KEYS).lease
    clock.now += 1e9
    assert cache.revoke() == []
    assert lease.valid and other.valid
    assert (lease.owner, lease.deadline_s, other.owner, other.deadline_s) == ("decode-3", None, None, None)
    lease.release()
    other.release()


def test_lending_again_renews_and_renames() -> None:
    cache, clock, lease = lent(seconds=30)
    lease.lend("decode-3", deadline_s=160)
    clock.now = 140
    assert cache.revoke() == [] and lease.valid
    lease.lend("decode-5", deadline_s=150)
    assert (lease.owner, lease.deadline_s) == ("decode-5", 150.0)
    assert cache.revoke(owner="decode-3") == []
    lease.lend("decode-5")
    clock.now = 1000
    assert lease.valid and lease.deadline_s is None
    lease.release()
    assert cache.metrics().effective_hits == 1


@pytest.mark.parametrize(
    "owner, more",
    [
        ("", {}),
        (3, {}),
        (None, {}),
        ("x", {"deadline_s": 100.0}),
        ("x", {"deadline_s": 30}),
        ("x", {"deadline_s": float("nan")}),
        ("x", {"deadline_s": True}),
        ("x", {"deadline_s": "soon"}),
        ("x", {"after": 3}),
    ],
)
def test_lend_refuses_what_is_no_term(owner: Any, more: dict[str, Any]) -> None:
    cache, _, lease = lent("first", seconds=30)
    fresh = cache.match(KEYS).lease
    for each in (lease, fresh):
        with pytest.raises(hk.ArgumentError):
            each.lend(owner, **more)
    assert (lease.owner, lease.deadline_s, fresh.owner) == ("first", 130.0, None)
    lease.release()
    fresh.release()
    cache.close()


def test_revoke_refuses_what_is_no_term() -> None:
    cache, _, lease = lent()
    for wrong in ({"owner": ""}, {"owner": 3}, {"now": "soon"}, {"now": True}, {"now": float("nan")}):
        with pytest.raises(hk.ArgumentError):
            cache.revoke(**wrong)
    lease.release()
    cache.close()
    with pytest.raises(hk.Closed):
        cache.revoke()
    with pytest.raises(hk.ArgumentError):
        hk.HybridCache(cache.spec, blocks=4, clock=3)  # type: ignore[arg-type]


def test_a_released_lease_cannot_be_lent() -> None:
    cache, _, lease = lent()
    lease.release()
    fresh = cache.match(KEYS).lease
    fresh.cancel()
    for each in (lease, fresh):
        with pytest.raises(hk.LeaseExpired):
            each.lend("late")
        with pytest.raises(hk.LeaseExpired):
            each.launched(Event())
    cache.close()


# -- launched work ----------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["lend", "launched"])
@pytest.mark.parametrize("how", ["owner", "deadline", "late"])
def test_revocation_keeps_what_launched_work_may_read(through: str, how: str) -> None:
    cache, clock, lease = lent(seconds=30)
    event = Event()
    if through == "lend":
        lease.lend("decode-3", deadline_s=130, after=event)
    else:
        lease.launched(event)
    clock.now += 30
    if how == "late":
        assert not lease.valid
    else:
        assert len(cache.revoke(owner="decode-3" if how == "owner" else None)) == 1
    with pytest.raises(hk.LeaseExpired):
        lease.release()
    cache.poll()
    assert evicted(cache) == 0
    assert pools(cache)["full"][2] == 6  # held
    event.passed = True
    assert cache.poll() == 1
    assert evicted(cache) == 6
    cache.close()


@pytest.mark.parametrize("how", ["release", "fail", "cancel", "with", "raise", "collect", "match_at"])
def test_however_a_lease_ends_its_pages_wait_for_launched_work(how: str) -> None:
    cache = full_swa()
    cache.insert(KEYS[:6])
    verdict = cache.match(KEYS)
    first, second = Event(), Event()
    verdict.lease.launched(first)
    verdict.lease.launched(second)
    if how == "with":
        with verdict.lease:
            pass
    elif how == "raise":
        with pytest.raises(ZeroDivisionError), verdict.lease:
            raise ZeroDivisionError
    elif how == "collect":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del verdict
            gc.collect()
    elif how == "match_at":
        assert cache.match_at(KEYS, 0, of=verdict).lease is None
    else:
        getattr(verdict.lease, how)()
    assert cache.metrics().pending == 0
    for event in (second, first):
        cache.poll()
        assert evicted(cache) == 0
        event.passed = True
    cache.poll()
    assert evicted(cache) == 6
    cache.close()


@pytest.mark.parametrize("how", ["release", "fail", "cancel"])
def test_every_way_to_settle_takes_an_event(how: str) -> None:
    cache = full_swa()
    cache.insert(KEYS[:6])
    lease = cache.match(KEYS).lease
    with pytest.raises(hk.ArgumentError):
        getattr(lease, how)(after=3)
    assert lease.valid
    event = Event()
    getattr(lease, how)(after=event)
    assert not lease.valid and cache.metrics().pending == 0
    assert evicted(cache) == 0
    event.passed = True
    cache.poll()
    assert evicted(cache) == 6


def test_work_that_is_done_keeps_nothing() -> None:
    cache, _, lease = lent()
    for _ in range(50):
        event = Event()
        lease.launched(event)
        event.passed = True
    assert len(cache._deferred) == 1  # the earlier ones left with the next call
    lease.release()
    assert not cache._deferred
    assert evicted(cache) == 6


def test_launched_takes_an_event_and_nothing_else() -> None:
    _, _, lease = lent()
    for wrong in (None, 3, object()):
        with pytest.raises(hk.ArgumentError):
            lease.launched(wrong)
    lease.release()


def test_a_broken_event_keeps_the_pages_but_not_the_owner() -> None:
    """Whoever ends the lease is not stopped by work that nobody can ask about; its pages are safe until the close."""
    cache, _, lease = lent()
    event = Event()
    lease.launched(event)
    event.broken = True
    lease.cancel()
    with pytest.raises(OSError, match="gone"):
        cache.poll()
    assert evicted(cache) == 0
    cache.close()
    assert pools(cache)["full"] == (256, 0, 0, 0)


def test_an_event_that_ends_the_lease_while_it_is_asked() -> None:
    """Whatever runs between the query and the settling: the pins are dropped once."""
    cache, _, lease = lent()

    class Revoking(Event):
        def query(self) -> bool:
            cache.revoke(owner="decode-3")
            return True

    with pytest.raises(hk.LeaseExpired):
        lease.release(Revoking())
    assert pools(cache)["full"] == (250, 0, 0, 6)
    check_counters(cache)


# -- leases in other hands --------------------------------------------------------------------------


def test_a_lease_that_a_fill_took_over_is_not_revoked() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16)}, clock=(clock := Clock()))
    cache.insert(keys_of(20))
    keys = keys_of(48)
    lease = cache.match(keys).lease
    lease.lend("decode-3", deadline_s=130)
    fill = cache.reserve(keys, lease=lease)
    clock.now = 200
    assert cache.revoke() == [] and cache.revoke(owner="decode-3") == []
    assert lease.valid and len(lease.page_ids("full")) == 2
    assert cache.evict(keys_of(20)) == 0  # the sources of its copies
    for change in (lambda: lease.lend("decode-3"), lambda: lease.launched(Event())):
        with pytest.raises(hk.LeaseExpired):
            change()
    fill.publish()
    assert cache.metrics().effective_hits == 1
    cache.close()


def test_a_lease_whose_time_is_up_cannot_be_taken_over() -> None:
    cache, clock, lease = lent(seconds=30)
    clock.now += 31
    with pytest.raises(hk.LeaseExpired, match="deadline"):
        cache.reserve(keys_of(130), lease=lease)
    assert cache.live() == []


def test_a_refused_reserve_gives_the_lease_back_to_its_deadline() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16)}, clock=(clock := Clock()), pages={"full": 4})
    cache.insert(keys_of(32))
    lease = cache.match(keys_of(160)).lease
    lease.lend("decode-3", deadline_s=130)
    with pytest.raises(hk.OutOfPages):
        cache.reserve(keys_of(160), lease=lease)
    clock.now = 130
    assert len(cache.revoke()) == 1


@pytest.mark.parametrize("revoked", ["inside", "late"])
def test_a_with_block_that_was_revoked_ends_in_an_error(revoked: str) -> None:
    cache, clock, lease = lent(seconds=30)
    with pytest.raises(hk.LeaseExpired, match="deadline"), lease:
        clock.now += 40
        if revoked == "inside":
            cache.revoke()
    assert cache.metrics().effective_hits == 0
    assert evicted(cache) == 6


def test_the_error_that_ends_a_with_block_stays_the_one_told() -> None:
    cache, _, lease = lent()
    with pytest.raises(ZeroDivisionError), lease:
        cache.revoke(owner="decode-3")
        raise ZeroDivisionError


def test_match_at_withdraws_a_lease_whose_time_is_up() -> None:
    clock = Clock()
    cache = full_swa(clock=clock)
    cache.insert(KEYS[:6])
    verdict = cache.match(KEYS)
    verdict.lease.lend("decode-3", deadline_s=130)
    clock.now = 200
    again = cache.match_at(KEYS, 96, of=verdict)
    assert again.lease.tokens == 96 and not verdict.lease.valid
    again.lease.release()
    metrics = cache.metrics()
    assert (metrics.withdrawn, metrics.effective_hits, metrics.pending) == (1, 1, 0)
