# SPDX-License-Identifier: Apache-2.0
"""Question: what does it cost to read the counters, to scrape a cache, and to look for stranded pages?

What counting itself costs a match is in `match.cpp`.
"""

from __future__ import annotations

import pytest

import hybridkv as hk


def cache_of(units: int, unit: int, history_block: int, identity: hk.Identity) -> hk.HybridCache:
    """A cache with room for so many units: history in blocks of its own, a window in blocks of a unit."""
    groups = [
        hk.CacheGroup(
            "history", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, block_tokens=history_block
        ),
        hk.CacheGroup("window", hk.StateKind.WINDOW, hk.Window(128), page_bytes=64),
    ]  # fmt: skip
    return hk.HybridCache(hk.CacheSpec(unit, groups, identity=identity), blocks=units)


@pytest.mark.parametrize("units", [1 << 14, 1 << 20])
def test_readings(timer, prompt, smoke, units):
    count = 256 if smoke else units
    cache = cache_of(count, 16, 16, hk.Identity())
    keys = prompt(16 * count, 16, cache.spec.identity)[:count]
    cache.insert(keys)
    cache.evict(keys[count // 2 : count], {"window": True})
    assert cache.stranded()["history"].pages == count - count // 2
    registry = pytest.importorskip("prometheus_client").CollectorRegistry()
    registry.register(hk.metrics.prometheus(cache, stranded=False))

    def scrape() -> int:
        return sum(len(metric.samples) for metric in registry.collect())

    assert scrape() > 100
    timer.record(f"metrics(), {units} units known, 2 groups", cache.metrics)
    stranded, scrapes = timer.rounds(cache.stranded, scrape)
    timer.figure("the same: stranded()", stranded)
    timer.figure("the same: a scrape without stranded pages", scrapes)


def test_stranded_states_between_blocks_of_history(timer, prompt, smoke):
    count = 256 if smoke else 1 << 18
    cache = cache_of(count, 4, 256, hk.Identity())
    cache.insert(prompt(4 * count, 4, cache.spec.identity)[:count])
    assert cache.stranded()["history"].pages == 0
    timer.record(f"stranded(), window blocks of 4 under history blocks of 256, {count} units", cache.stranded)
