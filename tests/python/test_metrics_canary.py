# SPDX-License-Identifier: Apache-2.0
"""A canary beside its cache in one exposition: what its alerts look at is there."""

from __future__ import annotations

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.canary import BreakerPolicy, Canary, Ends, Tolerance

prometheus_client = pytest.importorskip("prometheus_client", reason="prometheus_client is absent")


def test_a_mismatch_and_its_trip_are_in_the_scrape() -> None:
    spec = hk.CacheSpec.homogeneous(layers=2, page_bytes=64, identity=hk.Identity("tiny"))
    cache = hk.HybridCache(spec, blocks=128)
    keys = hk.block_keys(range(100), spec.unit_tokens, identity=spec.identity)
    cache.insert(keys[:4])
    canary = Canary(cache, rate=1.0, compare=Tolerance(first=0.1, last=0.1), breaker=BreakerPolicy(mismatches=1))
    collector = hk.metrics.prometheus(cache)
    collector.add(canary)
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)

    def told(name: str, **labels: str) -> float:
        found = [
            sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, (name, labels, found)
        return float(found[0])

    assert told("hybridkv_canary_mismatches_total", end="last") == 0  # there before the first one, so that it shows
    assert told("hybridkv_canary_trips_total", scope="model:tiny") == 0
    hit = canary.match(keys, request="r1")
    assert hit.verdict.lease is not None and hit.sample is not None
    hit.verdict.lease.release()
    zeros = np.zeros((36, 8), np.float32)
    hit.sample.settle(Ends.of(zeros), Ends.of(zeros + np.linspace(0, 0.5, 36, dtype=np.float32)[:, None]))
    assert told("hybridkv_canary_samples_total") == 1
    assert told("hybridkv_canary_mismatches_total", end="last") == 1
    assert told("hybridkv_canary_mismatches_total", end="first") == 0
    assert told("hybridkv_canary_trips_total", scope="model:tiny") == 1
    assert told("hybridkv_canary_breaker_state", scope="model:tiny", state="open") == 1
