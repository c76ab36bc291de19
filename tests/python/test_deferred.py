# SPDX-License-Identifier: Apache-2.0
"""Effects behind events: order, re-entry, and what a reset does to fills that outlive it."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event


def cache_and_keys(tokens: int = 64) -> tuple[hk.HybridCache, hk.BlockKeys]:
    spec = hk.CacheSpec.homogeneous(layers=1, page_bytes=64)
    return hk.HybridCache(spec, blocks=32), hk.block_keys(np.arange(tokens), 16)


def usable(cache: hk.HybridCache, keys: hk.BlockKeys) -> int:
    verdict = cache.match(keys, limit=keys.tokens + 1)
    if verdict.lease is not None:
        verdict.lease.cancel()
    return verdict.usable_tokens


def test_an_effect_that_calls_back_disturbs_nobody() -> None:
    """A publish behind an event releases the lease it took over, while other effects are being applied."""
    cache, keys = cache_and_keys(96)
    cache.insert(keys[:4])
    event = Event()
    first = cache.match(keys).lease
    second = cache.match(keys).lease
    fill = cache.reserve(keys, lease=first)
    fill.publish(after=event)
    second.release(after=event)
    assert cache.poll() == 0
    event.passed = True
    assert cache.poll() == 2
    assert cache.metrics().effective_hits == 2
    assert cache.metrics().pages["kv"].held == 0
    cache.reset()


def test_an_event_that_raises_loses_no_effect() -> None:
    cache, keys = cache_and_keys()
    event = Event()
    fill = cache.reserve(keys)
    fill.publish(after=event)
    event.broken = True
    with pytest.raises(OSError, match="device is gone"):
        cache.poll()
    event.broken, event.passed = False, True
    assert cache.poll() == 1
    assert usable(cache, keys) == 64


def test_effects_of_one_owner_keep_their_order() -> None:
    cache, keys = cache_and_keys()
    late, early = Event(), Event()
    fill = cache.reserve(keys)
    fill.publish({"kv": [0]}, after=late)
    fill.publish({"kv": [1]}, after=early)
    early.passed = True
    fill.publish({"kv": [2]})  # due by itself, but behind the first
    assert cache.poll() == 0
    assert [info.phase for info in cache.inspect(keys)["kv"]] == ["filling"] * 4
    late.passed = True
    assert cache.poll() == 3
    fill.abort()


def test_a_fill_older_than_a_reset_owns_nothing() -> None:
    """Its private pages were taken back by the reset: they must not go back a second time."""
    cache, keys = cache_and_keys()
    first, second = cache.reserve(keys), cache.reserve(keys)
    first.publish()
    second.publish()  # too late: four private pages
    assert cache.metrics().duplicates == 4
    cache.reset()
    with pytest.raises(hk.FillClosed):
        second.publish()
    del first, second
    gc.collect()
    pages = cache.metrics().pages["kv"]
    assert (pages.free, pages.filling, pages.held, pages.cached) == (32, 0, 0, 0)


def test_a_private_page_is_published_once_its_rival_gave_up() -> None:
    cache, keys = cache_and_keys()
    first, second = cache.reserve(keys), cache.reserve(keys)
    second.publish()
    assert cache.metrics().duplicates == 4
    first.abort()
    second.publish()
    assert cache.metrics().duplicates == 4
    assert usable(cache, keys) == 64


def test_evict_takes_what_only_an_index_can_store() -> None:
    """A state at a multiple of `every` is stored only where its block is named, but evicting all takes it."""
    group = hk.CacheGroup("tail", hk.StateKind.TAIL, hk.Checkpoint(32), page_bytes=64)
    history = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
    cache = hk.HybridCache(hk.CacheSpec(16, [history, group]), blocks=32)
    keys = hk.block_keys(np.arange(64), 16)
    cache.insert(keys)
    assert [info.phase for info in cache.inspect(keys)["tail"]] == ["ready", "absent", "ready", "absent"]
    cache.insert(keys, {"tail": [1]})
    assert cache.evict(keys, {"tail": True}) == 3
