# SPDX-License-Identifier: Apache-2.0
"""Groups that an engine can rebuild, against a definition of usable lengths and replays written for this test."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

import hybridkv as hk

K = hk.StateKind
ROUNDS = 1500


def needed_tokens(coverage: Any, t: int) -> range:
    if isinstance(coverage, hk.Prefix):
        return range(t)
    if isinstance(coverage, hk.Window):
        return range(max(0, t - coverage.tokens + 1), t)
    if isinstance(coverage, hk.Chunk):
        return range(t - t % coverage.tokens, t)
    every = coverage.every
    return range(t, t) if every is not None and t % every == 0 else range(t - 1, t)


def replay_start(group: hk.CacheGroup, step: int, t: int) -> int:
    if group.replay_tokens is not None:
        start = t - group.replay_tokens
    elif isinstance(group.coverage, hk.Window):
        start = t - group.layer_count * (group.coverage.tokens - 1)
    elif isinstance(group.coverage, hk.Chunk):
        start = t - t % group.coverage.tokens
    else:
        every = group.coverage.every
        start = 0 if every is None else t - t % every
    return max(0, start) // step * step


def stored(group: hk.CacheGroup, ready: set[int], t: int) -> bool:
    blocks = {p // group.block_tokens for p in needed_tokens(group.coverage, t)}
    return not blocks or (t % group.block_tokens == 0 and blocks <= ready)


def draw_group(rng: random.Random, name: str, unit: int) -> hk.CacheGroup:
    block = unit * rng.choice([1, 1, 2, 3, 4])
    coverage = rng.choice(
        [
            hk.Prefix(),
            hk.Window(rng.randrange(1, 60)),
            hk.Chunk(rng.randrange(1, 60)),
            hk.Checkpoint(),
            hk.Checkpoint(rng.randrange(1, 50)),
        ]
    )
    kind = K.COMPRESSED if isinstance(coverage, hk.Prefix) else K.WINDOW
    if isinstance(coverage, hk.Checkpoint):
        kind = K.TAIL
    rebuildable = not isinstance(coverage, hk.Prefix) and rng.random() < 0.6
    layers = range(rng.randrange(1, 3))
    declared = rng.randrange(1, 80) if rebuildable and rng.random() < 0.3 else None
    return hk.CacheGroup(
        name,
        kind,
        coverage,
        page_bytes=64,
        block_tokens=block,
        rebuildable=rebuildable,
        replay_tokens=declared,
        layers=tuple(layers),
    )


def test_usable_lengths_and_replays_are_those_of_the_definition() -> None:
    rng = random.Random(20261129)
    replays = 0
    for _ in range(ROUNDS):
        unit = rng.choice([1, 2, 4, 8])
        groups = [hk.CacheGroup("kv", K.COMPRESSED, hk.Prefix(), page_bytes=64)]
        groups += [draw_group(rng, f"g{i}", unit) for i in range(rng.randrange(1, 4))]
        spec = hk.CacheSpec(unit, groups)
        count = unit * rng.randrange(1, 40) + 1
        keys = hk.block_keys(np.arange(count, dtype=np.int32), unit)
        keys = keys[: len(keys)]
        cache = hk.HybridCache(spec, blocks=64, pages={g.name: 64 for g in groups})
        ready: dict[str, set[int]] = {}
        for g in spec.groups:
            assert g.block_tokens is not None
            density = rng.choice([0.0, 0.5, 0.9, 1.0])
            ready[g.name] = {b for b in range(keys.tokens // g.block_tokens) if rng.random() < density}
            if g.name == "kv" and rng.random() < 0.8:
                ready["kv"] = set(range(keys.tokens // unit))
            if ready[g.name]:
                cache.insert(keys, {g.name: sorted(ready[g.name])})
        step = math.lcm(*(g.block_tokens or 1 for g in spec.groups if not g.rebuildable))
        want = [
            t
            for t in range(step, keys.tokens + 1, step)
            if all(stored(g, ready[g.name], t) or (g.rebuildable and replay_start(g, step, t) > 0) for g in spec.groups)
        ]
        verdict = cache.match(keys, limit=keys.tokens + 1)
        assert verdict.boundaries.tolist() == want, (spec, ready)
        assert verdict.usable_tokens == max(want, default=0)
        if verdict.lease is None:
            continue
        t = verdict.usable_tokens
        missing = {g.name: replay_start(g, step, t) for g in spec.groups if not stored(g, ready[g.name], t)}
        assert dict(verdict.plan.replay) == {name: (start, t) for name, start in missing.items()}
        assert verdict.plan.resume_tokens == min([t, *missing.values()])
        replays += bool(missing)
        for g in spec.groups:
            held = np.flatnonzero(verdict.lease.page_ids(g.name) >= 0).tolist()
            blocks = {p // (g.block_tokens or 1) for p in needed_tokens(g.coverage, t)}
            assert held == ([] if g.name in missing else sorted(blocks))
        verdict.lease.cancel()
    assert replays > ROUNDS // 20
