# SPDX-License-Identifier: Apache-2.0
"""Question: what does a match through Python cost, keys ready, lease taken and released?"""

from __future__ import annotations

import statistics

import pytest

import hybridkv as hk

COMPRESSED, WINDOW, TAIL = hk.StateKind.COMPRESSED, hk.StateKind.WINDOW, hk.StateKind.TAIL


def two_groups() -> hk.CacheSpec:
    return hk.CacheSpec(
        16,
        [
            hk.CacheGroup("full", COMPRESSED, hk.Prefix(), page_bytes=64),
            hk.CacheGroup("window", WINDOW, hk.Window(128), page_bytes=64),
        ],
    )


def six_groups() -> hk.CacheSpec:
    """Three histories, two windows and a state at every block of 256 tokens."""
    return hk.CacheSpec(
        256,
        [
            *(hk.CacheGroup(f"history{i}", COMPRESSED, hk.Prefix(), page_bytes=64) for i in range(3)),
            *(hk.CacheGroup(f"window{i}", WINDOW, hk.Window(128), page_bytes=64) for i in range(2)),
            hk.CacheGroup("state", TAIL, hk.Checkpoint(), page_bytes=64),
        ],
    )


def vllm_groups() -> hk.CacheSpec:
    """DeepSeek-V4 as vLLM lays it out: blocks of 64, 64, 256, 4 and 8 tokens over a unit of 4."""
    return hk.CacheSpec(
        4,
        [
            hk.CacheGroup("swa0", WINDOW, hk.Window(128), page_bytes=64, block_tokens=64),
            hk.CacheGroup("swa1", WINDOW, hk.Window(128), page_bytes=64, block_tokens=64),
            hk.CacheGroup("history", COMPRESSED, hk.Prefix(), page_bytes=64, block_tokens=256),
            hk.CacheGroup("c4", WINDOW, hk.Window(8), page_bytes=64, block_tokens=4),
            hk.CacheGroup("c128", WINDOW, hk.Window(128), page_bytes=64, block_tokens=8),
        ],
    )


def histories(spec: hk.CacheSpec) -> list[str]:
    return [group.name for group in spec.groups if isinstance(group.coverage, hk.Prefix)]


def filled(spec: hk.CacheSpec, keys: hk.BlockKeys, *, windows: bool = True) -> hk.HybridCache:
    """A cache with the whole units of the keys in it; without windows every hit is a false one."""
    cache = hk.HybridCache(spec, blocks=max(64, 2 * len(keys)))
    cache.insert(keys[: len(keys)], None if windows else dict.fromkeys(histories(spec), True))
    return cache


@pytest.mark.parametrize(("tokens", "must", "aim"), [(8192, 30, 15), (65536, 250, 100)])
def test_hit_of_two_groups(timer, prompt, smoke, tokens, must, aim):
    spec, n = two_groups(), 512 if smoke else tokens
    keys = prompt(n, 16, spec.identity)
    cache = filled(spec, keys)
    verdict = cache.match(keys)
    assert verdict.outcome is hk.Outcome.REUSABLE and verdict.usable_tokens == n
    verdict.lease.release()
    timer.record(f"hit and release, 2 groups, unit 16, {tokens} tokens", lambda: cache.match(keys).lease.release(),
                 must=must, aim=aim)  # fmt: skip
    assert cache.metrics().pending == 0


def test_hit_of_a_prompt_that_is_in_no_cache_of_the_cpu(timer, prompt, smoke):
    """The same with 64 prompts of 64k tokens in turn: 16 MiB of descriptors, cold each time."""
    spec, n, prompts = two_groups(), 512 if smoke else 65536, 2 if smoke else 64
    many = [prompt(n, 16, spec.identity, seed) for seed in range(prompts)]
    cache = hk.HybridCache(spec, blocks=2 * sum(len(keys) for keys in many))
    for keys in many:
        cache.insert(keys[: len(keys)])
    turn = iter(range(10**9))

    def one() -> None:
        verdict = cache.match(many[next(turn) % prompts])
        assert verdict.usable_tokens == n
        verdict.lease.release()

    timer.record("the same, 64 prompts of 65536 tokens in turn (cold)", one)


@pytest.mark.parametrize("tokens", [8192, 65536])
def test_a_false_hit_costs_about_a_hit(timer, prompt, smoke, tokens):
    spec, n = two_groups(), 512 if smoke else tokens
    keys = prompt(n, 16, spec.identity)
    good, bad = filled(spec, keys), filled(spec, keys, windows=False)
    verdict = bad.match(keys)
    assert verdict.outcome is hk.Outcome.FALSE_HIT and verdict.matched_tokens == n
    assert verdict.why.check is hk.Check.GROUPS and verdict.why.group == "window"
    timer.record(f"false hit (no window there), {tokens} tokens", lambda: bad.match(keys))
    hit, false_hit = timer.rounds(lambda: good.match(keys).lease.release(), lambda: bad.match(keys))
    ratios = [b / a if a else 0.0 for a, b in zip(hit, false_hit, strict=True)]
    timer.figure(f"false hit over hit, {tokens} tokens", ratios, must=1.5, unit="times")


def test_a_miss_at_unit_0(timer, prompt, smoke):
    spec, n = two_groups(), 512 if smoke else 65536
    keys, other = prompt(n, 16, spec.identity), prompt(n, 16, spec.identity, seed=1)
    cache = filled(spec, keys)
    assert cache.match(other).outcome is hk.Outcome.MISS
    timer.record("miss at unit 0, 2 groups, 65536 tokens", lambda: cache.match(other), must=0.6)


def test_hit_of_six_groups_over_a_million_tokens(timer, prompt, smoke):
    spec, n = six_groups(), 2048 if smoke else 1 << 20
    keys = prompt(n, 256, spec.identity)
    cache = filled(spec, keys)
    verdict = cache.match(keys)
    assert verdict.usable_tokens == n
    assert len(verdict.lease.page_ids("history2")) == n // 256
    verdict.lease.release()
    timer.record("hit and release, 6 groups, unit 256, 1M tokens", lambda: cache.match(keys).lease.release(),
                 must=150)  # fmt: skip


def test_hit_of_the_layout_of_vllm(timer, prompt, smoke):
    spec, n = vllm_groups(), 2048 if smoke else 1 << 20
    keys = prompt(n, 4, spec.identity)
    cache = filled(spec, keys)
    verdict = cache.match(keys)
    assert verdict.usable_tokens == n
    held = {group.name: int((verdict.lease.page_ids(group.name) >= 0).sum()) for group in spec.groups}
    assert held == {"swa0": 2, "swa1": 2, "history": n // 256, "c4": 2, "c128": 16}
    verdict.lease.release()
    timer.record("hit and release, groups 64/64/256/4/8 over unit 4, 1M tokens",
                 lambda: cache.match(keys).lease.release(), must=500)  # fmt: skip
    bare = filled(spec, keys, windows=False)
    assert bare.match(keys).outcome is hk.Outcome.FALSE_HIT
    hit, false_hit = timer.rounds(lambda: cache.match(keys).lease.release(), lambda: bare.match(keys))
    if not smoke:
        timer.figure("false hit over hit, groups 64/64/256/4/8, 1M tokens",
                     [b / a for a, b in zip(hit, false_hit, strict=True)], must=1.5, unit="times")  # fmt: skip
        timer.note(f"(groups 64/64/256/4/8: false hit {statistics.median(false_hit):.1f} us)")
