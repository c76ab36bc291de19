# SPDX-License-Identifier: Apache-2.0
"""What the contract tests share: small specs, tokens, presence by own block, and readings of the answers.

Only names of the public contract are used. What the contract leaves free (the exact shape of `inspect`
and of the counters) is read here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import hybridkv as hk

PAGE_BYTES = 64

Rules = Mapping[str, tuple[Any, int]]  # name -> (coverage, own block), in spec order


def tokens(n: int, *, start: int = 0) -> np.ndarray:
    """Token ids [[n]], int32, all different."""
    return np.arange(start, start + n, dtype=np.int32) + 1000


def group(
    name: str,
    coverage: Any,
    block: int | None = None,
    *,
    kind: Any = None,
    page_bytes: int = PAGE_BYTES,
    **more: Any,
) -> Any:
    """A cache group whose kind follows from its coverage unless given."""
    if kind is None:
        kind = hk.StateKind.COMPRESSED
        if isinstance(coverage, hk.Window | hk.Chunk):
            kind = hk.StateKind.WINDOW
        elif isinstance(coverage, hk.Checkpoint):
            kind = hk.StateKind.TAIL
    return hk.CacheGroup(name, kind, coverage, page_bytes=page_bytes, block_tokens=block, **more)


def make_spec(unit: int, rules: Rules) -> Any:
    """A spec of groups {name: (coverage, own block)}."""
    return hk.CacheSpec(unit, [group(name, rule, block) for name, (rule, block) in rules.items()])


def make_cache(unit: int, rules: Rules, *, blocks: int = 256, **more: Any) -> Any:
    """A cache over such a spec."""
    return hk.HybridCache(make_spec(unit, rules), blocks=blocks, **more)


def full_swa(unit: int = 16, *, window: int = 33, blocks: int = 256, **more: Any) -> Any:
    """One full-attention group "full" and one window group "swa", both of one unit a block."""
    return make_cache(unit, {"full": (hk.Prefix(), unit), "swa": (hk.Window(window), unit)}, blocks=blocks, **more)


def keys_of(n: int, unit: int = 16, **more: Any) -> Any:
    """Keys of n distinct tokens."""
    return hk.block_keys(tokens(n), unit, **more)


def put(cache: Any, keys: Any, present: Mapping[str, Iterable[int]], **more: Any) -> None:
    """Publish exactly the named own blocks."""
    cache.insert(keys, groups={name: list(indices) for name, indices in present.items()}, **more)


def held(lease: Any, name: str) -> list[int]:
    """Own blocks of a group that a lease holds."""
    ids = np.asarray(lease.page_ids(name))
    return [int(i) for i in np.flatnonzero(ids >= 0)]


def usable(verdict: Any) -> int:
    """Usable tokens, with what must always hold for a verdict checked on the way."""
    check_verdict(verdict)
    return int(verdict.usable_tokens)


def check_verdict(v: Any) -> None:
    """Relations between the fields of one verdict that hold for every verdict."""
    assert 0 <= v.usable_tokens <= v.matched_tokens
    if v.matched_tokens == 0:
        expected = hk.Outcome.MISS
    else:
        expected = hk.Outcome.REUSABLE if v.usable_tokens else hk.Outcome.FALSE_HIT
    assert v.outcome == expected
    assert (v.lease is not None) == (v.outcome == hk.Outcome.REUSABLE)
    if v.lease is not None:
        assert v.lease.tokens == v.usable_tokens
    lost = {hk.Check(c): n for c, n in dict(v.lost).items() if n}
    assert sum(lost.values()) == v.matched_tokens - v.usable_tokens
    if lost:
        assert v.why is not None
        assert v.why.check == min(c for c, n in lost.items() if n == max(lost.values()))
    elif v.remedy != hk.Remedy.WAIT:
        assert v.why is None
    if v.remedy == hk.Remedy.WAIT:
        assert v.why is not None
        assert v.why.code == "filling"


def give_back(verdict: Any) -> int:
    """Usable tokens of a verdict whose lease, if any, is withdrawn."""
    n = usable(verdict)
    if verdict.lease is not None:
        verdict.lease.cancel()
    return n


def state_text(value: Any) -> str:
    """Everything an answer of `inspect` or `metrics` says, as text that can be compared.

    Times and addresses of objects are left out.
    """
    return re.sub(r" at 0x[0-9a-f]+", "", _plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_plain(v)}" for k, v in value.items()) + "}"
    if isinstance(value, np.ndarray):
        return repr(value.tolist())
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return "[" + ", ".join(_plain(v) for v in value) + "]"
    if hasattr(value, "__dict__"):
        return type(value).__name__ + _plain(vars(value))
    return repr(value)


def observe(cache: Any, keys: Any) -> str:
    """What a caller can see of a cache's state without changing it."""
    return state_text(cache.inspect(keys)) + state_text(cache.metrics()) + state_text(cache.spans(keys))


def pools(cache: Any) -> dict[str, tuple[int, int, int, int]]:
    """Pages of each group: (free, filling, held, cached)."""
    pages = cache.metrics().pages
    return {name: (p.free, p.filling, p.held, p.cached) for name, p in pages.items()}


def check_conserved(cache: Any, capacity: Mapping[str, int]) -> None:
    """free + filling + held + cached = capacity, in every pool."""
    for name, counts in pools(cache).items():
        assert sum(counts) == capacity[name], (name, counts)
        assert min(counts) >= 0, (name, counts)


def check_counters(cache: Any) -> None:
    """lookups = misses + false hits + effective hits + pending + withdrawn."""
    m = cache.metrics()
    assert m.lookups == m.misses + total(m.false_hits) + m.effective_hits + m.pending + m.withdrawn


def total(table: Any) -> int:
    """Sum over a counter split by check and kind."""
    if isinstance(table, Mapping):
        return sum(total(v) for v in table.values())
    return int(np.sum(np.asarray(table)))


class Event:
    """An event a test lets pass, or break, when it wants."""

    def __init__(self) -> None:
        self.passed = False
        self.broken = False
        self.asked = 0

    def query(self) -> bool:
        """Whether the event has passed."""
        self.asked += 1
        if self.broken:
            raise OSError("the device is gone")
        return self.passed


def other_format(layout: str = "other-rows") -> Any:
    """A format that no group of these specs has."""
    return hk.KvFormat(layout, "bfloat16", producer="another")


def blamed(v: Any) -> tuple[Any, str, int]:
    """Check, group and own block that a verdict blames."""
    check_verdict(v)
    return v.why.check, v.why.group, v.why.block


def parting(shared: int, first: int, second: int, unit: int) -> tuple[Any, Any]:
    """Keys of two prompts of so many tokens that share a number of them."""
    head = tokens(shared)
    a = np.concatenate([head, tokens(first - shared, start=50_000)])
    b = np.concatenate([head, tokens(second - shared, start=80_000)])
    return hk.block_keys(a, unit), hk.block_keys(b, unit)


def forked() -> tuple[Any, dict[str, int], Any]:
    """A tip of 23 tokens, its pages, and a fill that goes on from inside them."""
    cache = make_cache(16, {"kv": (hk.Prefix(), 16), "tail": (hk.Checkpoint(), 16)})
    cache.insert(keys_of(23))
    v = cache.match(keys_of(48))
    assert v.lease.tokens == 23
    shared = {name: int(np.asarray(v.lease.page_ids(name))[1]) for name in ("kv", "tail")}
    return cache, shared, cache.reserve(keys_of(48), lease=v.lease)
