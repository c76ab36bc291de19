# SPDX-License-Identifier: Apache-2.0
"""Leases, fills and rebuildable groups at the edges where an answer could be wrong without an error."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event

K = hk.StateKind


def group(name: str, coverage: Any, kind: hk.StateKind = K.COMPRESSED, **more: Any) -> hk.CacheGroup:
    return hk.CacheGroup(name, kind, coverage, page_bytes=64, **more)


def keys_of(tokens: Any) -> hk.BlockKeys:
    return hk.block_keys(np.asarray(tokens, dtype=np.int32), 16)


# -- rebuildable groups -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "coverage, kind",
    [(hk.Checkpoint(), K.TAIL), (hk.Checkpoint(48), K.TAIL), (hk.Window(40), K.WINDOW), (hk.Chunk(64), K.WINDOW)],
)
@pytest.mark.parametrize("block", [16, 32, 48])
def test_a_rebuildable_group_of_any_block_gets_an_answer(coverage: Any, kind: hk.StateKind, block: int) -> None:
    spec = hk.CacheSpec(
        16, [group("kv", hk.Prefix()), group("s", coverage, kind, rebuildable=True, block_tokens=block)]
    )
    for stored in (True, False):
        cache = hk.HybridCache(spec, blocks=64)
        keys = keys_of(range(60))
        cache.insert(keys[:3], None if stored else {"kv": True})
        verdict = cache.match(keys)
        if verdict.lease is not None:
            held = verdict.lease.page_ids("s") >= 0
            replay = verdict.plan.replay
            assert replay or held.sum() == len(spec.requirements(verdict.usable_tokens)["s"].blocks)
            assert not replay or 0 < verdict.plan.resume_tokens <= verdict.usable_tokens
            verdict.lease.cancel()
        m = cache.metrics()
        assert m.lookups == m.misses + m.false_hits_total + m.effective_hits + m.pending + m.withdrawn


def test_a_tip_with_its_rebuildable_state_stored_needs_no_replay() -> None:
    spec = hk.CacheSpec(16, [group("kv", hk.Prefix()), group("s", hk.Checkpoint(), K.TAIL, rebuildable=True)])
    cache = hk.HybridCache(spec, blocks=64)
    cache.insert(keys_of(range(20)))
    verdict = cache.match(keys_of([*range(20), 9, 9]))
    assert (verdict.usable_tokens, verdict.plan.resume_tokens, dict(verdict.plan.replay)) == (20, 20, {})
    with verdict.lease as lease:
        assert lease.page_ids("s").tolist()[1] >= 0


def test_extend_takes_no_length_that_needs_a_plan() -> None:
    spec = hk.CacheSpec(16, [group("kv", hk.Prefix()), group("w", hk.Window(9), K.WINDOW, rebuildable=True)])
    cache = hk.HybridCache(spec, blocks=64)
    keys = keys_of(range(100))
    cache.insert(keys[:2])
    lease = cache.match(keys).lease
    cache.insert(keys[2:5], {"kv": True})
    assert lease.extend(keys) == 32
    lease.cancel()
    verdict = cache.match(keys)
    assert dict(verdict.plan.replay) == {"w": (64, 80)}
    verdict.lease.cancel()


# -- formats -----------------------------------------------------------------------------------------


def test_extend_reads_with_the_formats_of_its_match() -> None:
    a, b = hk.KvFormat("a", "bfloat16"), hk.KvFormat("b", "bfloat16")
    cache = hk.HybridCache(hk.CacheSpec(16, [group("w", hk.Window(17), K.WINDOW, format=a)]), blocks=32)
    keys = keys_of(range(100))
    cache.insert(keys[:2], formats={"w": b})
    cache.insert(keys[2:5], formats={"w": a})
    lease = cache.match(keys, formats={"w": b}).lease
    assert lease.extend(keys) == 32
    lease.cancel()


# -- settling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [100000, 7, -1, 999, None, "WINDOW", True])
def test_fail_refuses_a_reason_whose_kind_is_none(kind: Any) -> None:
    spec = hk.CacheSpec.homogeneous(1, 64)
    cache = hk.HybridCache(spec, blocks=8)
    keys = keys_of(range(65))
    cache.insert(keys[:4])
    lease = cache.match(keys).lease
    with pytest.raises(hk.ArgumentError):
        lease.fail(hk.Why(hk.Check.COMPLETE, kind, "kv", 0, "missing", "x"))
    for number in (7, -1):
        with pytest.raises(hk.ArgumentError):
            lease._core.settle(2, number)  # the core counts by it, so it looks for itself
    assert lease.valid
    lease.cancel()


def test_an_event_that_raises_changes_nothing() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=32)
    keys = keys_of(range(65))
    cache.insert(keys[:4])
    event = Event()
    event.broken = True
    lease = cache.match(keys).lease
    with pytest.raises(OSError):
        lease.release(after=event)
    assert lease.valid
    fill = cache.reserve(keys_of(range(500, 564)))
    with pytest.raises(OSError):
        fill.abort(after=event)
    with pytest.raises(OSError):
        fill.publish(after=event)
    other = cache.match(keys).lease
    other.release()  # somebody else's broken event is not its business
    fill.abort()
    lease.cancel()
    cache.reset()


def test_a_refused_publish_keeps_the_lease_it_took_over() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=32)
    cache.insert(keys_of(range(64)))
    keys = keys_of(range(128))
    fill = cache.reserve(keys, lease=cache.match(keys).lease)
    event = Event()
    for after in (None, event):
        with pytest.raises(hk.ArgumentError):
            fill.publish({"kv": [99]}, after=after)
    fill.publish()
    m = cache.metrics()
    assert (m.effective_hits, m.pending) == (1, 0)


def test_copy_sources_stay_pinned_until_everything_is_published() -> None:
    spec = hk.CacheSpec(16, [group("a", hk.Prefix()), group("b", hk.Prefix())])
    cache = hk.HybridCache(spec, blocks=32)
    base = list(range(20))
    cache.insert(keys_of(base))
    keys = keys_of([*base, *range(500, 520)])
    lease = cache.match(keys).lease
    fill = cache.reserve(keys, lease=lease)
    fill.publish({"a": True})
    assert cache.evict(keys_of(base), {"b": True}) == 0
    with pytest.raises(hk.ArgumentError, match="no other fill"):
        cache.reserve(keys, lease=lease)
    fill.publish()
    assert cache.evict(keys_of(base), {"b": True}) == 2


def test_a_request_that_starts_at_a_lease_takes_no_page_before_it() -> None:
    """It would publish what it never wrote: a window block before the resume point stays absent unless named."""
    spec = hk.CacheSpec(16, [group("kv", hk.Prefix()), group("w", hk.Window(17), K.WINDOW)])
    cache = hk.HybridCache(spec, blocks=64)
    cache.insert(keys_of(range(96)))
    cache.evict(keys_of(range(96)), {"w": [0, 1, 2]})
    keys = keys_of(range(112))
    lease = cache.match(keys).lease
    assert lease.tokens == 96
    fill = cache.reserve(keys, lease=lease)
    assert (fill.page_ids("w") >= 0).tolist() == [False] * 6 + [True]
    fill.publish()
    assert cache.match(keys_of(range(49))).outcome is hk.Outcome.FALSE_HIT
    named = cache.reserve(keys, groups={"w": [2]})
    assert (named.page_ids("w") >= 0).tolist() == [False, False, True, False, False, False, False]
    named.abort()


def test_a_taken_lease_is_its_fills_to_settle() -> None:
    """Extending or settling it would unpin the source of a copy that is still to run."""
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=64)
    base = list(range(20))
    cache.insert(keys_of(base))
    keys = keys_of([*base, *range(500, 520)])
    with cache.match(keys).lease as lease:
        fill = cache.reserve(keys, lease=lease)
    assert lease.valid and len(fill.copies("kv")) == 1
    for settle in (lease.release, lease.cancel, lease.fail, lambda: lease.extend(keys)):
        with pytest.raises(hk.LeaseExpired):
            settle()
    assert cache.evict(keys_of(base)) == 0
    fill.publish()
    assert not lease.valid and cache.metrics().effective_hits == 1


def test_a_refused_reserve_leaves_the_lease_free() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=64, pages={"kv": 4})
    cache.insert(keys_of(range(32)))
    keys = keys_of(range(160))
    lease = cache.match(keys).lease
    with pytest.raises(hk.OutOfPages) as refused:
        cache.reserve(keys, lease=lease)
    assert (refused.value.pool, refused.value.needed, refused.value.free) == ("kv", 8, 2)
    lease.release()


def test_a_broken_event_can_be_left_behind() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=64, pages={"kv": 4})
    event = Event()
    fill = cache.reserve(keys_of(range(64)))
    fill.publish(after=event)
    event.broken = True
    with pytest.raises(hk.OutOfPages):  # and not the error of an event that is none of its business
        cache.reserve(keys_of(range(900, 932)))
    with pytest.raises(OSError):
        cache.poll()
    fill.abort()
    cache.reset()
    assert cache.metrics().pages["kv"].free == 4


def test_a_late_publish_of_a_fill_older_than_a_reset_is_refused_at_once() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=64, pages={"kv": 8})
    fill = cache.reserve(keys_of(range(64)))
    fill.publish()
    cache.reset()
    with pytest.raises(hk.FillClosed):
        fill.publish(after=Event())


def test_a_fill_dropped_with_a_part_waiting_is_a_leak() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=64)
    event = Event()
    fill = cache.reserve(keys_of(range(64)))
    fill.publish({"kv": [0]}, after=event)
    del fill
    event.passed = True
    assert cache.poll() == 1
    gc.collect()
    assert cache.metrics().leaks == 1


def test_no_descriptor_is_no_duplicate() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=5, pages={"kv": 40})
    keys = keys_of(range(64))
    first, second = cache.reserve(keys), cache.reserve(keys)
    first.abort()
    other = keys_of(range(900, 932))
    cache.insert(other)
    second.publish()
    assert cache.metrics().duplicates == 0
    cache.evict(other)
    second.publish()
    verdict = cache.match(keys, limit=65)
    assert verdict.usable_tokens == 64
    verdict.lease.cancel()


def test_match_at_withdraws_no_other_caches_lease() -> None:
    spec = hk.CacheSpec.homogeneous(1, 64)
    one, two = hk.HybridCache(spec, blocks=8), hk.HybridCache(spec, blocks=8)
    keys = keys_of(range(65))
    for cache in (one, two):
        cache.insert(keys[:4])
    verdict = one.match(keys)
    with pytest.raises(hk.ArgumentError):
        two.match_at(keys, 16, of=verdict)
    assert verdict.lease.valid
    verdict.lease.cancel()


def test_handles_are_not_copied() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=32)
    keys = keys_of(range(65))
    cache.insert(keys[:4])
    verdict = cache.match(keys)
    fill = cache.reserve(keys_of(range(500, 564)))
    for handle in (verdict, verdict.lease, fill, cache):
        for take in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                take(handle)
    gc.collect()
    assert verdict.lease.valid and cache.metrics().leaks == 0
    verdict.lease.cancel()
    fill.abort()


def test_boundaries_beside_a_misaligned_pool_take_no_quadratic_time() -> None:
    """Counted by what it returns: 20,000 tokens in one go, which a search from each length on would not end."""
    spec = hk.CacheSpec(1, [group("kv", hk.Prefix()), group("w", hk.Window(1025), K.WINDOW, alignment=64)])
    cache = hk.HybridCache(spec, blocks=20_100)
    memory = np.zeros(20_102 * 64, np.uint8)
    odd = (-memory.ctypes.data) % 64 + 1
    cache.bind("w", memory[odd : odd + 20_100 * 64].reshape(20_100, 64))
    keys = hk.block_keys(np.arange(20_000, dtype=np.int32), 1)
    cache.insert(keys)
    verdict = cache.match(keys)
    assert verdict.why is not None and verdict.why.check is hk.Check.ALIGNED
    assert verdict.boundaries.tolist() == []


def test_a_thread_that_hashes_does_not_break_the_shutdown() -> None:
    program = """
        import threading, time
        import numpy as np
        import hybridkv as hk
        tokens = np.arange(100_000, dtype=np.uint32)
        def hash_for_ever():
            while True:
                hk.block_keys(tokens, 16)
        threading.Thread(target=hash_for_ever, daemon=True).start()
        time.sleep(0.3)
    """
    for _ in range(3):
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
        )
        assert run.returncode == 0, run.stderr
