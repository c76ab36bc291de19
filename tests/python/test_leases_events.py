# SPDX-License-Identifier: Apache-2.0
"""Effects behind events under threads: order per source and per owner, and nothing applied twice or lost."""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hybridkv as hk
from contract_support import Event, check_counters, full_swa, keys_of, pools, tokens
from hybridkv.deferred import Deferred

KEYS = keys_of(97)
PATIENCE_S = 60  # of a thread that waits for another


@pytest.fixture
def short_switches() -> Iterator[None]:
    """Let threads change places often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def evicted(cache: Any) -> int:
    """Pages of the prompt that could be taken away."""
    return int(cache.evict(KEYS[:6], groups={"full": True}))


class Stream:
    """A source of events that goes on while it is asked: after each query two more have passed."""

    def __init__(self) -> None:
        self.recorded = self.passed = 0

    def record(self) -> Any:
        self.recorded += 1
        number = self.recorded

        class Recorded:
            def query(_) -> bool:
                done = self.passed >= number
                self.passed += 2
                return done

        return Recorded()


def together(*runs: Callable[[], None]) -> None:
    """Run all at once, each on a thread of its own; raise what one raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(runs))

    def guarded(run: Callable[[], None]) -> None:
        try:
            barrier.wait(60)
            run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


# -- order ------------------------------------------------------------------------------------------


def test_effects_of_one_source_are_applied_in_order_while_it_goes_on() -> None:
    """Asked in the order of recording, the second would be found passed where the first was not yet."""
    deferred, stream, applied = Deferred(), Stream(), list[int]()
    for number in range(5):
        deferred.add(object(), stream.record(), lambda number=number: applied.append(number))
    while deferred:
        deferred.apply_due()
        assert applied == list(range(len(applied)))
    assert len(applied) == 5


def test_effects_of_one_event_are_applied_together() -> None:
    """It passes between two looks of one poll: then none of its effects is due, or all are."""
    deferred, applied = Deferred(), list[int]()

    class Passing:
        asked = 0

        def query(self) -> bool:
            self.asked += 1
            return self.asked > 1

    event = Passing()
    for number in range(3):
        deferred.add(object(), event, lambda number=number: applied.append(number))
    assert (deferred.apply_due(), applied, event.asked) == (0, [], 1)
    assert (deferred.apply_due(), applied) == (3, [0, 1, 2])


def test_effects_of_one_owner_keep_their_order_across_sources() -> None:
    deferred, applied = Deferred(), list[int]()
    owner, late = object(), Event()
    deferred.add(owner, late, lambda: applied.append(0))
    deferred.add(owner, None, lambda: applied.append(1))
    deferred.add(object(), None, lambda: applied.append(2))
    assert (deferred.apply_due(), applied) == (1, [2])
    assert deferred.waits(owner) and len(deferred) == 2
    late.passed = True
    assert (deferred.apply_due(owner), applied) == (2, [2, 0, 1])
    assert not deferred and not deferred.waits(owner)


def test_an_effect_withdrawn_between_the_query_and_its_turn_is_not_applied() -> None:
    deferred, applied = Deferred(), list[int]()

    class Withdrawing:
        def query(self) -> bool:
            deferred.withdraw(second)
            return True

    deferred.add(object(), Withdrawing(), lambda: applied.append(0))
    second = deferred.add(object(), None, lambda: applied.append(1))
    assert (deferred.apply_due(), applied, len(deferred)) == (1, [0], 0)
    deferred.withdraw(second)  # again: nothing


def test_an_effect_in_the_middle_of_being_applied_is_not_given_up() -> None:
    """An owner whose effect runs still waits, so what is asked for meanwhile goes behind it."""
    deferred, applied = Deferred(), list[int]()
    owner = object()

    def effect() -> None:
        deferred.withdraw(waiting)
        assert deferred.waits(owner)
        deferred.run(owner, None, lambda: applied.append(1))
        assert deferred.apply_due() == 0
        applied.append(0)

    waiting = deferred.add(owner, None, effect)
    assert (deferred.apply_due(), deferred.apply_due(), applied) == (1, 1, [0, 1])


def test_what_waits_for_an_owner_can_be_handed_over() -> None:
    deferred, applied = Deferred(), list[int]()
    lease, ticket, event = object(), object(), Event()
    deferred.hold(lease, event)
    deferred.hand_over(lease, ticket)
    deferred.hand_over(lease, ticket)  # again: nothing
    deferred.run(ticket, None, lambda: applied.append(0))
    assert not deferred.waits(lease) and applied == [] and deferred.apply_due() == 0
    event.passed = True
    assert (deferred.apply_due(), applied, len(deferred)) == (1, [0], 0)


def test_a_broken_event_is_given_up_with_its_effect_alone() -> None:
    deferred, applied = Deferred(), list[int]()
    owner, broken = object(), Event()
    broken.broken = True
    deferred.add(owner, broken, lambda: applied.append(0))
    deferred.add(owner, None, lambda: applied.append(1))
    with pytest.raises(OSError, match="gone"):
        deferred.apply_due()
    deferred.drop_broken()
    assert (deferred.apply_due(), applied) == (1, [1])


def test_a_handle_collected_within_a_call_adds_its_effect() -> None:
    """The collector may run a lease's end at any step, here while the queues are locked."""
    cache = full_swa()
    cache.insert(KEYS[:6])
    event = Event()
    verdict = cache.match(KEYS)
    verdict.lease.launched(event)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with cache._deferred._lock:
            del verdict
            gc.collect()
    assert cache.metrics().leaks == 1
    event.passed = True
    assert cache.poll() == 1
    cache.close()


# -- launching beside a revocation ------------------------------------------------------------------


@pytest.mark.parametrize("revoked", ["before", "after"])
def test_work_launched_while_another_thread_revokes(revoked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either the reader is told, or the pages wait for its event: here the revocation comes within the call."""
    cache = full_swa()
    cache.insert(KEYS[:6])
    lease = cache.match(KEYS).lease
    lease.lend("reader")
    hold = Deferred.hold

    def interrupted(self: Deferred, *arguments: Any) -> Any:
        if revoked == "before":
            cache.revoke(owner="reader")
        waiting = hold(self, *arguments)
        if revoked == "after":
            cache.revoke(owner="reader")
            assert evicted(cache) == 0
        return waiting

    monkeypatch.setattr(Deferred, "hold", interrupted)
    with pytest.raises(hk.LeaseExpired):
        lease.launched(Event())
    cache.poll()
    assert not cache._deferred  # a reader that was told holds nothing
    assert evicted(cache) == 6
    cache.close()


def test_readers_and_a_revoker_at_once(short_switches: None) -> None:
    cache = full_swa()
    cache.insert(KEYS[:6])
    told, asked, ended = [0, 0], [0, 0], threading.Event()

    def read(number: int) -> None:
        until = time.monotonic() + PATIENCE_S
        while told[number] < 50 or asked[number] < 300:
            assert time.monotonic() < until
            lease = cache.match(KEYS).lease
            asked[number] += 1
            event = Event()
            try:
                lease.lend(f"reader-{number}")
                lease.launched(event)
                time.sleep(0)
                assert evicted(cache) == 0
            except hk.LeaseExpired:
                told[number] += 1
                continue
            finally:
                event.passed = True
            try:
                lease.release()
            except hk.LeaseExpired:
                told[number] += 1

    def revoke() -> None:
        while not ended.is_set():
            cache.revoke(owner="reader-0")
            cache.revoke(owner="reader-1")
            cache.poll()

    def both() -> None:
        try:
            together(lambda: read(0), lambda: read(1))
        finally:
            ended.set()

    together(both, revoke)
    cache.poll()
    metrics = cache.metrics()
    assert (metrics.lookups, metrics.pending, metrics.leaks) == (sum(asked), 0, 0)
    assert (metrics.withdrawn, metrics.effective_hits) == (sum(told), sum(asked) - sum(told))
    assert evicted(cache) == 6
    cache.close()


# -- a thousand aborts ------------------------------------------------------------------------------


def test_a_thousand_aborts_whose_completions_come_late_leak_nothing(short_switches: None) -> None:
    cache = full_swa(blocks=1024, pages={"full": 512, "swa": 512})
    cache.insert(KEYS[:4])
    events: list[Event] = []
    ended = threading.Event()

    def abort(number: int) -> None:
        until = time.monotonic() + PATIENCE_S
        for turn in range(250):
            keys = hk.block_keys(tokens(48, start=10_000 * number + 100 * turn + 1000), 16)
            event = Event()
            while True:
                try:
                    fill = cache.reserve(keys)
                    break
                except hk.OutOfPages:  # until the other threads' events have passed
                    assert time.monotonic() < until
            lease = cache.match(KEYS).lease
            if turn % 3 == 0:
                fill.publish({"full": [0]}, after=event)
            if turn % 3 == 1:
                lease.lend(f"reader-{number}", after=event)
                cache.revoke(owner=f"reader-{number}")
            else:
                lease.cancel(after=event)
            fill.abort(after=None if turn % 3 == 0 else event)
            events.append(event)

    def complete() -> None:
        done = 0
        while not ended.is_set() or done < len(events):
            if done < len(events) - 20 or ended.is_set():
                events[done].passed = True
                done += 1
            cache.poll()

    def all_aborts() -> None:
        try:
            together(*(lambda number=number: abort(number) for number in range(4)))
        finally:
            ended.set()

    together(all_aborts, complete, lambda: [cache.poll() for _ in range(2000)] and None)
    cache.poll()
    gc.collect()
    assert not cache._deferred
    assert cache.live() == []
    metrics = cache.metrics()
    assert (metrics.leaks, metrics.quarantined, metrics.pending, metrics.withdrawn) == (0, 0, 0, 1000)
    check_counters(cache)
    assert pools(cache) == {"full": (508, 0, 0, 4), "swa": (508, 0, 0, 4)}
    cache.close()
