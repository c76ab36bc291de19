# SPDX-License-Identifier: Apache-2.0
"""A small hybrid cache without bytes, answers as logits, and a clock that a test moves."""

from __future__ import annotations

from typing import Any

import numpy as np

import hybridkv as hk
from hybridkv.canary import BreakerPolicy, Canary, Ends, Sample, Tolerance
from hybridkv.canary.sample import Outcome

TOKENS = 64
"""Length of a prompt whose prefix is stored; one token more is asked for."""

TOLERANCE = Tolerance(first=0.1, last=0.1)
QUICK = BreakerPolicy(mismatches=2, window_samples=10, cooldown_s=5, most_cooldown_s=40, trial_samples=3)

SPEC = hk.CacheSpec(
    16,
    [
        hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, block_tokens=16),
        hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(17), page_bytes=64, block_tokens=16),
        hk.CacheGroup("tail", hk.StateKind.TAIL, hk.Checkpoint(every=32), page_bytes=64, block_tokens=16),
    ],
    identity=hk.Identity("tiny"),
)
"""At a multiple of 32 no tail is read."""


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def keys_of(prompt: int, tokens: int = TOKENS + 1) -> hk.BlockKeys:
    """Return the keys of a prompt by its number."""
    return hk.block_keys(np.arange(tokens) + 1000 * prompt, 16, identity=SPEC.identity)


def stored(prompts: int = 1, *, blocks: int = 256, tier: hk.Tier | None = None) -> hk.HybridCache:
    """Return a cache that knows so many prompts."""
    return stored_in_pools(prompts, blocks=blocks, tier=tier)[0]


def stored_in_pools(
    prompts: int = 1, *, blocks: int = 256, tier: hk.Tier | None = None
) -> tuple[hk.HybridCache, dict[str, Any]]:
    """Return a cache that knows so many prompts, and its pools of random bytes."""
    cache, random = hk.HybridCache(SPEC, blocks=blocks, tier=tier, verify="off"), np.random.default_rng(0)
    pools = {}
    for group in SPEC.groups:
        shape = cache.pages[group.name], group.total_page_bytes
        pools[group.name] = random.integers(0, 256, shape, dtype=np.uint8)
        cache.bind(group.name, pools[group.name])
    for prompt in range(prompts):
        cache.insert(keys_of(prompt, TOKENS))
    return cache, pools


def ends(first: float = 0.0, last: float = 0.0) -> Ends:
    """Return logits of four tokens that are off by so much at either end."""
    base = np.array([3.0, 1.0, 0.5, 0.0], np.float32)
    one, other = base.copy(), base.copy()
    one[1] += first
    other[2] += last
    return Ends(one, other)


RIGHT = ends()


def drawn(canary: Canary, prompt: int = 0, **question: Any) -> Sample:
    """Match a stored prompt, let it run, and return the sample that was drawn."""
    hit = canary.match(keys_of(prompt), **question)
    assert hit.sample is not None and hit.verdict.lease is not None, hit.verdict
    hit.verdict.lease.release()
    return hit.sample


def settled(canary: Canary, wrong: float = 0.0, prompt: int = 0, **told: Any) -> Outcome:
    """Draw a hit and compare its answer, off by so much at the last token."""
    return drawn(canary, prompt).settle(ends(last=wrong), RIGHT, **told)
