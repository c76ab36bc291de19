# SPDX-License-Identifier: Apache-2.0
"""What a match leaves behind: no memory, however often it is asked. (The core counts operator new itself:
tests/cpp/cache/allocation_test.cpp.)"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

import hybridkv as hk

ROUNDS = 300


@pytest.fixture
def spec() -> hk.CacheSpec:
    return hk.CacheSpec(
        16,
        [
            hk.CacheGroup("full", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64),
            hk.CacheGroup("window", hk.StateKind.WINDOW, hk.Window(128), page_bytes=64),
        ],
    )


@pytest.fixture
def asked(spec: hk.CacheSpec) -> dict[str, Callable[[], object]]:
    """One call for each outcome, each with a cache of its own."""

    def keys_of(seed: int) -> hk.BlockKeys:
        ids = np.random.default_rng(seed).integers(0, 1000, 4097, dtype=np.uint32)
        return hk.block_keys(ids, 16, identity=spec.identity)

    keys, other = keys_of(1), keys_of(2)
    whole, bare = hk.HybridCache(spec, blocks=512), hk.HybridCache(spec, blocks=512)
    whole.insert(keys[:256])
    bare.insert(keys[:256], {"full": True})

    def hit() -> None:
        verdict = whole.match(keys)
        assert verdict.lease is not None
        verdict.lease.release()

    def false_hit() -> None:
        assert bare.match(keys).outcome is hk.Outcome.FALSE_HIT

    def miss() -> None:
        assert whole.match(other).outcome is hk.Outcome.MISS

    return {"hit": hit, "false hit": false_hit, "miss": miss}


def growth(call: Callable[[], object]) -> int:
    """Return the bytes that Python's allocator holds more after many calls than after a few."""
    for _ in range(ROUNDS):
        call()
    gc.collect()
    tracemalloc.start()
    try:
        call()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(ROUNDS):
            call()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("outcome", ["hit", "false hit", "miss"])
def test_a_match_leaves_no_memory_behind(asked: dict[str, Callable[[], object]], outcome: str) -> None:
    assert growth(asked[outcome]) < ROUNDS  # less than a byte a call


def test_the_measure_sees_what_stays(asked: dict[str, Callable[[], object]]) -> None:
    kept: list[object] = []

    def keeps() -> None:
        kept.append(bytearray(64))

    assert growth(keeps) > 64 * ROUNDS
