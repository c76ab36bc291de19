# SPDX-License-Identifier: Apache-2.0
"""Groups that an engine can rebuild, against a definition of usable lengths and replays written for this test."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import numpy as np

import hybridkv as hk
from dependence import OVERLAP, Replay, needed
from hybridkv.replay_reach import most_replayed

K = hk.StateKind
ROUNDS = 1500
LAYERS = 4


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
    """From what the spec says of the group; whether that is enough is for `Replay` to say."""
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
    coverage = rng.choice(
        [
            hk.Prefix(),
            hk.Window(rng.randrange(1, 30)),
            hk.Window(rng.randrange(1, 30)),
            hk.Chunk(rng.randrange(1, 40)),
            hk.Checkpoint(),
            hk.Checkpoint(rng.randrange(1, 30)),
        ]
    )
    kind = K.COMPRESSED if isinstance(coverage, hk.Prefix) else K.WINDOW
    if isinstance(coverage, hk.Checkpoint):
        kind = K.TAIL
    overlap = coverage == hk.Checkpoint() and rng.random() < 0.5
    return hk.CacheGroup(
        name,
        kind,
        coverage,
        page_bytes=64,
        block_tokens=unit * rng.choice([1, 1, 2, 3, 4]),
        rows_per_page=rng.randrange(1, 6) if overlap else None,
        format=OVERLAP if overlap else None,
        rebuildable=not isinstance(coverage, hk.Prefix) and rng.random() < 0.6,
        layers=sorted(rng.sample(range(LAYERS), rng.choice([1, 1, 2]))),
    )


def draw_spec(rng: random.Random) -> hk.CacheSpec:
    """A spec of some layers; what a group declares is what it needs or more, and less is refused."""
    unit = rng.choice([1, 2, 4, 8])
    kv = hk.CacheGroup("kv", K.COMPRESSED, hk.Prefix(), page_bytes=64, layers=range(LAYERS))
    while True:
        groups = [kv, *(draw_group(rng, f"g{i}", unit) for i in range(rng.randrange(1, 4)))]
        try:
            spec = hk.CacheSpec(unit, groups)
        except hk.SpecError as error:
            check_refused(error, groups)
            continue
        return hk.CacheSpec(unit, [declared(rng, g) for g in spec.groups])


def check_refused(error: hk.SpecError, groups: list[hk.CacheGroup]) -> None:
    """The group named cannot be made right by running layers from anywhere but the beginning."""
    named = next(g for g in groups if error.field == g.field_name("rebuildable"))
    spec = hk.CacheSpec(1, [dataclasses.replace(g, block_tokens=None, rebuildable=False) for g in groups])
    runs = [Replay(spec, t, dict.fromkeys(range(LAYERS), 1)) for t in (119, 120)]  # at one of them it may need nothing
    assert not all(run.whole_group(named) for run in runs)


def declared(rng: random.Random, group: hk.CacheGroup) -> hk.CacheGroup:
    """With a number of its own, some of the time."""
    tokens = most_replayed(group)
    if not group.rebuildable or not tokens or rng.random() < 0.7:
        return group
    return dataclasses.replace(group, replay_tokens=tokens + rng.randrange(20))


def test_usable_lengths_and_replays_are_those_of_the_definition() -> None:
    rng = random.Random(20261129)
    replays = together = 0
    for _ in range(ROUNDS):
        spec = draw_spec(rng)
        unit, names = spec.unit_tokens, [g.name for g in spec.groups]
        count = unit * rng.randrange(1, 40) + 1
        keys = hk.block_keys(np.arange(count, dtype=np.int32), unit)
        keys = keys[: len(keys)]
        cache = hk.HybridCache(spec, blocks=64, pages=dict.fromkeys(names, 128))
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
        starts = {g.name: replay_start(g, step, t) for g in spec.groups if not stored(g, ready[g.name], t)}
        resume = min([t, *starts.values()])
        assert dict(verdict.plan.replay) == dict.fromkeys(starts, (resume, t))
        assert verdict.plan.resume_tokens == resume
        for g in spec.groups:
            held = np.flatnonzero(verdict.lease.page_ids(g.name) >= 0).tolist()
            blocks = {p // (g.block_tokens or 1) for p in needed_tokens(g.coverage, t)}
            assert held == ([] if g.name in starts else sorted(blocks))
        if not starts:
            verdict.lease.cancel()
            continue
        replays += 1
        together += len({replay_start(spec[name], step, t) for name in starts}) > 1
        there = {name: needed(spec[name], t) for name in names[1:] if name not in starts and states(spec[name])}
        assert Replay(spec, t, dict.fromkeys(range(LAYERS), resume), there).whole(), (spec, t, resume)
        check_pages(cache.admit(str(count), t + unit, lease=verdict.lease), [spec[name] for name in starts], resume, t)
    assert replays > ROUNDS // 10 and together > ROUNDS // 50


def states(group: hk.CacheGroup) -> bool:
    return not isinstance(group.coverage, hk.Prefix)


def check_pages(ticket: Any, replayed: list[hk.CacheGroup], resume: int, t: int) -> None:
    """Every row that is computed again has a page: from where layers run, not from where the group alone would."""
    for g in replayed:
        block = g.block_tokens or 1
        if isinstance(g.coverage, hk.Checkpoint):
            continue  # one live page
        pages = ticket.page_ids(g.name).tolist()
        assert all(page >= 0 for page in pages[resume // block : -(-t // block)]), (g, resume, t, pages)
    ticket.close()
