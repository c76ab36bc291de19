# SPDX-License-Identifier: Apache-2.0
"""The plan against what it plans: caches admit what is said to fit and nothing more, tiers hold what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hybridkv as hk
from hybridkv import Checkpoint, Chunk, Prefix, StateKind, Window
from hybridkv.coverage import Coverage
from hybridkv.planner import DISK_UNIT_BYTES, Capacity, Load, Place, plan
from hybridkv.planner.capacity import capacity_of
from hybridkv.planner.homogeneous import homogeneous_spec
from hybridkv.planner.layers import records_of, stored_bytes
from hybridkv.planner.retention import Retention, retentions_of

CONFIGS = Path(__file__).resolve().parents[1] / "data" / "configs"
GIB = 2**30


def cache_of(spec: hk.CacheSpec, capacity: Capacity, load: Load) -> hk.HybridCache:
    limits = hk.Admission(step_tokens=load.step_tokens)
    blocks = min(capacity.descriptors, 4096)
    return hk.HybridCache(spec, blocks=blocks, pages=dict(capacity.pages), admission=limits)


def admitted(cache: hk.HybridCache, number: int, tokens: int) -> list[hk.Ticket]:
    return [cache.admit(None, tokens) for _ in range(number)]


def check_cap(spec: hk.CacheSpec, memory: int, load: Load) -> Capacity:
    """As many requests as the plan says are admitted together, and the next one is not."""
    capacity = capacity_of(spec, memory, load)
    assert capacity.pool_bytes <= memory
    assert capacity.fits == (capacity.least_bytes <= memory) == (capacity.cap >= load.concurrency)
    if not capacity.pages:
        assert capacity.cap == 0 and capacity.request_bytes > memory
        return capacity
    cache = cache_of(spec, capacity, load)
    tickets = admitted(cache, capacity.cap, load.context_tokens)
    with pytest.raises(hk.NotAdmitted) as refused:
        cache.admit(None, load.context_tokens)
    assert refused.value.reason == "pages"
    for ticket in tickets:
        ticket.close()
    cache.close()
    return capacity


MODELS = [
    ("deepseek-v4-flash", 40 * GIB, 131_072, 8),
    ("deepseek-v4-pro", 80 * GIB, 65_536, 4),
    ("gemma-3-12b-it", 60 * GIB, 32_768, 2),
    ("gpt-oss-20b", 40 * GIB, 32_768, 8),
    ("llama-4-scout", 100 * GIB, 65_536, 2),
    ("llama-3.1-8b", 40 * GIB, 32_768, 4),
    ("jamba-1.5-mini", 40 * GIB, 65_536, 8),
    ("qwen3-next-defaults", 60 * GIB, 32_768, 8),
    ("nemotron-3-nano-30b-a3b", 40 * GIB, 131_072, 8),
]


@pytest.mark.parametrize(("model", "memory", "context", "concurrency"), MODELS)
def test_what_is_said_to_fit_is_admitted_and_one_more_is_not(
    model: str, memory: int, context: int, concurrency: int
) -> None:
    load = Load(context, concurrency)
    answer = plan(CONFIGS / f"{model}.json", memory, load)
    spec = hk.CacheSpec.from_config(CONFIGS / f"{model}.json", unit_tokens=answer.unit.unit_tokens)
    capacity = check_cap(spec, memory, load)
    assert capacity == answer.hybrid.capacity and capacity.cap >= concurrency
    check_cap(homogeneous_spec(spec), memory, load)


@st.composite
def specs(draw: st.DrawFn) -> hk.CacheSpec:
    number = st.integers
    groups = [
        hk.CacheGroup(
            "kv", StateKind.COMPRESSED, Prefix(), page_bytes=draw(number(1, 99)), block_tokens=4 * draw(number(1, 3))
        )
    ]
    rules: list[Coverage] = [Window(draw(number(1, 40))), Chunk(draw(number(1, 40)))]
    rules += [Checkpoint(), Checkpoint(every=draw(number(1, 20)))]
    for i, rule in enumerate(draw(st.lists(st.sampled_from(rules), max_size=3))):
        block = 4 * draw(number(1, 3))
        rows: dict[str, Any] = {}
        if isinstance(rule, Window) and draw(st.booleans()):  # a live page of the trailing rows
            rows = {"rows_per_page": min(block, max(1, rule.tokens - 1)), "row_bytes": 1}
        page = max(draw(number(1, 99)), 40)
        groups.append(hk.CacheGroup(f"g{i}", StateKind.WINDOW, rule, page_bytes=page, block_tokens=block, **rows))
    return hk.CacheSpec(4, groups)


loads = st.builds(
    Load,
    st.integers(1, 120),
    st.integers(1, 6),
    step_tokens=st.integers(1, 120),
    ends=st.integers(0, 3),
)


@settings(max_examples=150, deadline=None)
@given(specs(), loads, st.integers(1, 60_000))
def test_any_spec_admits_what_its_plan_says(spec: hk.CacheSpec, load: Load, memory: int) -> None:
    capacity = check_cap(spec, memory, load)
    longest = capacity.longest_tokens
    assert capacity.fits == (longest == load.context_tokens)
    if 0 < longest < load.context_tokens:
        shorter, longer = (
            capacity_of(spec, memory, Load(tokens, load.concurrency, step_tokens=load.step_tokens))
            for tokens in (longest, longest + 1)
        )
        assert shorter.fits and not longer.fits


@settings(max_examples=100, deadline=None)
@given(specs(), loads, st.integers(2_000, 60_000))
def test_prefixes_that_are_said_to_stay_do_stay_beside_running_requests(
    spec: hk.CacheSpec, load: Load, memory: int
) -> None:
    """Each with its states at its ends; the requests grow to the end beside them and evict none."""
    step = spec.boundary_tokens
    assume(load.context_tokens >= step)
    load = Load(load.context_tokens, load.concurrency, step_tokens=load.step_tokens, ends=min(load.ends, 1),
                prefix_tokens=load.context_tokens // step * step)  # fmt: skip
    capacity = capacity_of(spec, memory, load)
    kept = min(capacity.kept_prefixes, 8)
    assume(capacity.fits and kept > 0)
    cache = hk.HybridCache(
        spec, blocks=4096, pages=dict(capacity.pages), admission=hk.Admission(step_tokens=load.step_tokens)
    )
    prefixes = [hk.block_keys([7 + n] * load.kept_tokens, 4) for n in range(kept)]
    for keys in prefixes:
        needs = spec.requirements(load.kept_tokens)
        groups: dict[str, Any] = {name: list(need.blocks) for name, need in needs.items()}
        if not load.ends:
            groups = {name: found for name, found in groups.items() if isinstance(spec[name].coverage, Prefix)}
        cache.insert(keys, groups)
    tickets = admitted(cache, load.concurrency, load.context_tokens)
    for n, ticket in enumerate(tickets):
        while ticket.grown_tokens < load.context_tokens:
            ticket.grow(min(load.step_tokens, load.context_tokens - ticket.grown_tokens))
            ticket.advance(ticket.grown_tokens, [10_000 + n] * (ticket.grown_tokens - ticket.tokens))
    for keys in prefixes:
        verdict = cache.match(keys, limit=load.kept_tokens + 1)
        assert verdict.matched_tokens == load.kept_tokens
        if load.ends:
            assert verdict.usable_tokens == load.kept_tokens
        if verdict.lease is not None:
            verdict.lease.cancel()
    for ticket in tickets:
        ticket.close()


# -- tiers ------------------------------------------------------------------------------------------


def chosen(spec: hk.CacheSpec, load: Load, name: str) -> Retention:
    cost = hk.CostModel(tokens_per_second=20_000)
    return next(one for one in retentions_of(spec, load, cost, None) if one.name == name)


@pytest.mark.parametrize("every", [1, 4, None])
@pytest.mark.parametrize("block", [64, 128])
def test_a_disk_tier_takes_what_the_plan_says(every: int | None, block: int, tmp_path: Path) -> None:
    """Records and bytes of a stored prefix, envelopes and fills included, against a real store."""
    history = hk.CacheGroup("history", StateKind.COMPRESSED, Prefix(), page_bytes=5000, block_tokens=block)
    indexer = hk.CacheGroup("indexer", StateKind.INDEXER, Prefix(), page_bytes=700, block_tokens=block)
    window = hk.CacheGroup("window", StateKind.WINDOW, Window(64), page_bytes=9000)
    state = hk.CacheGroup("state", StateKind.TAIL, Checkpoint(), page_bytes=20_000)
    spec = hk.CacheSpec(64, [history, indexer, window, state])
    name, windows = "ends alone", hk.KeepWindows.every(2**31)
    if every is not None:
        name = "all()" if every == 1 else f"every({every * block})"
        windows = hk.KeepWindows.all() if every == 1 else hk.KeepWindows.every(every * block)
    policy = chosen(spec, Load(5120, ends=1), name)
    ends = policy.ends if every is None else 0  # the end is a boundary that the others keep already
    records = records_of(spec, 5120, policy, ends)
    keys = hk.block_keys(range(5120), 64)
    with hk.DiskTier(tmp_path / "kv", 64 << 20, windows=windows, region_bytes=8 << 20) as tier:
        cache = hk.HybridCache(spec, blocks=256, tier=tier)
        for group in spec.groups:
            cache.bind(group.name, np.zeros((256, group.page_bytes), np.uint8))
        cache.insert(keys)
        stored = cache.offload(keys).result()
        cache.flush(10)
        usage = tier.usage()
        cache.close()
    place = Place("disk", 1 << 30, hk.Bandwidth(3e9), unit_bytes=DISK_UNIT_BYTES)
    assert stored.records == usage.records == sum(number for number, _, _ in records)
    assert usage.bytes == stored_bytes(place, records)


@pytest.mark.parametrize("model", ["deepseek-v4-flash", "jamba-1.5-mini", "gpt-oss-20b", "llama-3.1-8b"])
def test_a_record_of_the_plan_fits_the_region_that_it_names(model: str) -> None:
    place = Place("disk", 4 << 40, hk.Bandwidth(3e9), unit_bytes=DISK_UNIT_BYTES)
    answer = plan(CONFIGS / f"{model}.json", 80 * GIB, Load(32_768, 4), places=[place])
    largest = max(answer.layering.record_bytes, answer.layering.block_record_bytes)
    region = answer.layering.least_region_bytes
    assert region % DISK_UNIT_BYTES == 0 and largest < region * 5 // 8 < largest + 4 * DISK_UNIT_BYTES


def test_the_pools_of_a_plan_serve_its_load() -> None:
    """What the command prints is a cache that runs: requests come and go, prefixes are found again."""
    spec = hk.CacheSpec.from_config(CONFIGS / "gpt-oss-20b.json", unit_tokens=256)
    load = Load(4096, 4, prefixes=4)
    capacity = capacity_of(spec, GIB, load, prefixes=4)
    assert capacity.fits and capacity.kept_prefixes == 4
    cache = hk.HybridCache(
        spec,
        blocks=capacity.descriptors,
        pages=dict(capacity.pages),
        admission=hk.Admission(step_tokens=load.step_tokens),
        checkpoints=hk.CheckpointPolicy(),
    )
    for n in range(4):
        tokens = np.arange(4096, dtype=np.uint32) + 10_000 * n
        ticket = cache.admit(n, 4096, prompt_tokens=2048)
        for at in (2048, 4096):
            ticket.grow(2048)
            ticket.advance(at, tokens[at - 2048 : at])
        ticket.close()
    found = []
    for n in range(4):
        keys = hk.block_keys(np.arange(4096, dtype=np.uint32) + 10_000 * n, 256)
        verdict = cache.match(keys, limit=4097)
        found.append(verdict.usable_tokens)
        if verdict.lease is not None:
            verdict.lease.release()
    assert found == [4096] * 4
