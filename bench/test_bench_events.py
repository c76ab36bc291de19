# SPDX-License-Identifier: Apache-2.0
"""Question: what does it cost to keep an index elsewhere in step with a cache, and to explain a prompt?

The limit is a walk over everything that is there: what an index without differences would need each time.
"""

from __future__ import annotations

import hybridkv as hk

UNIT = 16


def cache_of(units: int) -> hk.HybridCache:
    """A cache with room for so many units, history and a window."""
    groups = [
        hk.CacheGroup("history", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64),
        hk.CacheGroup("window", hk.StateKind.WINDOW, hk.Window(128), page_bytes=64),
    ]
    return hk.HybridCache(hk.CacheSpec(UNIT, groups), blocks=units)


def test_events(timer, prompt, smoke):
    count = 256 if smoke else 1 << 17
    cache = cache_of(count)
    keys = prompt(UNIT * count, UNIT, cache.spec.identity)[:count]
    changed = keys[count - 64 :]
    cache.insert(keys)
    assert len(cache.events()) == 2 * count  # a store of each group

    def after_a_prompt() -> int:
        """64 blocks of two groups go and come back, each told."""
        cache.evict(changed)
        gone = len(cache.events())
        cache.insert(keys)
        return gone + len(cache.events())

    assert after_a_prompt() == 4 * 64
    assert len(cache.events(anew=True)) == 1 + 2 * count  # CLEARED before them
    timer.record("events() where nothing changed", cache.events)
    some, everything = timer.rounds(after_a_prompt, lambda: cache.events(anew=True))
    timer.figure(f"256 events of {count} units, evicted and inserted", some)
    timer.figure("events(anew=True)", everything)


def test_explain(timer, prompt, smoke):
    count = 64 if smoke else 4096
    cache = cache_of(2 * count)
    keys = prompt(UNIT * count, UNIT, cache.spec.identity)[:count]
    cache.insert(keys)
    cache.evict(keys[count // 2 :], {"window": True})
    found = cache.explain(keys)
    assert found.matched_tokens > found.usable_tokens > 0
    timer.record(f"explain(), a prompt of {count} units", lambda: cache.explain(keys))
