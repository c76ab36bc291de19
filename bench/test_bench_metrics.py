# SPDX-License-Identifier: Apache-2.0
"""Question: what does it cost to read the counters, to scrape a cache, and to look for stranded pages?

What counting itself costs a match is in `match.cpp`.
"""

from __future__ import annotations

import pytest
from test_bench_match import filled, two_groups, vllm_groups

import hybridkv as hk


@pytest.mark.parametrize("blocks", [1 << 14, 1 << 20])
def test_readings(timer, prompt, smoke, blocks):
    count = 256 if smoke else blocks
    spec = two_groups()
    keys = prompt(16 * count, 16, spec.identity)
    cache = filled(spec, keys[:count])
    cache.evict(keys[count // 2 : count], {"window": True})
    assert cache.stranded()["full"].pages == count - count // 2
    registry = pytest.importorskip("prometheus_client").CollectorRegistry()
    registry.register(hk.metrics.prometheus(cache, stranded=False))

    def scrape() -> int:
        return sum(len(metric.samples) for metric in registry.collect())

    assert scrape() > 100
    timer.record(f"metrics(), {blocks} units known, 2 groups", cache.metrics)
    stranded, scrapes = timer.rounds(cache.stranded, scrape)
    timer.figure("the same: stranded()", stranded)
    timer.figure("the same: a scrape without stranded pages", scrapes)


def test_stranded_states_between_nodes(timer, prompt, smoke):
    spec = vllm_groups()
    tokens = 2048 if smoke else 1 << 20
    keys = prompt(tokens, 4, spec.identity)
    cache = filled(spec, keys)
    assert cache.stranded()["history"].pages == 0
    timer.record(f"stranded(), groups 64/64/256/4/8 over unit 4, {tokens // 4} units", cache.stranded)
