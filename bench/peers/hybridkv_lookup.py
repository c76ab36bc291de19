# SPDX-License-Identifier: Apache-2.0
"""Look-ups of a hybrid prefix in hybridkv: Prefix + Window(128) at 16 tokens to a key.

Every match pins what it promises, so `hit` and `hit_pinned` are the same call here.
"""

from __future__ import annotations

from importlib import metadata

import numpy as np
import trial

import hybridkv as hk


def _spec() -> hk.CacheSpec:
    return hk.CacheSpec(
        trial.UNIT_TOKENS,
        [
            hk.CacheGroup("full", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=4096),
            hk.CacheGroup("window", hk.StateKind.WINDOW, hk.Window(trial.WINDOW_TOKENS), page_bytes=4096),
        ],
    )


def _decode() -> trial.Call:
    """One step for all running requests: advanced by a token, pages for the next, complete blocks published."""
    blocks = trial.DECODING * trial.DECODE_TOKENS // trial.UNIT_TOKENS
    cache = hk.HybridCache(_spec(), blocks=blocks, admission=hk.Admission(step_tokens=trial.UNIT_TOKENS))
    running: list[hk.Ticket] = []
    n = trial.DECODING
    handles, computed, status = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int32)
    one, starts, ids = np.ones(n, np.int32), np.arange(n + 1), np.full(n, 7, np.int32)
    out = np.empty((n, 2, 1), np.int32)

    def start() -> None:
        for ticket in running:
            ticket.close()
        running[:] = [cache.admit(i, trial.DECODE_TOKENS) for i in range(n)]
        for i, ticket in enumerate(running):
            tokens = [i, *range(1, 1 + i * 37 % trial.UNIT_TOKENS)]
            ticket.grow(len(tokens))
            ticket.advance(len(tokens), tokens)
            ticket.grow(1)
            handles[i], computed[i] = ticket.handle, len(tokens)

    def step() -> None:
        nonlocal computed
        if not running or computed.max() + 2 >= trial.DECODE_TOKENS:
            start()
        computed += 1
        cache.step(handles, one, computed, out, tokens=ids, starts=starts, status=status)
        if status.any():
            raise SystemExit(f"a step was refused: {status}")

    return step


def build(tokens: int, case: str) -> trial.Call:
    """A cache that holds `tokens`, and the call that `case` times."""
    if case == "decode":
        return _decode()
    spec = _spec()
    units = tokens // trial.UNIT_TOKENS
    cache = hk.HybridCache(spec, blocks=2 * units)
    ids = np.array(trial.prompt(tokens), dtype=np.int32)
    keys = hk.block_keys(ids, trial.UNIT_TOKENS)
    cache.insert(keys[:units])
    if case == "miss":
        other = hk.block_keys(trial.unknown(tokens), trial.UNIT_TOKENS)
        trial.expect("miss", cache.match(other).outcome, hk.Outcome.MISS)
        return lambda: cache.match(other)
    if case == "false_hit":
        cache.evict(keys[:units], {"window": True})
        verdict = cache.match(keys)
        trial.expect("false hit", (verdict.outcome, verdict.matched_tokens), (hk.Outcome.FALSE_HIT, tokens))
        return lambda: cache.match(keys)
    if case == "hit_forked":
        for fork in trial.forks(tokens):
            cache.insert(hk.block_keys(fork, trial.UNIT_TOKENS))

    def hit() -> int:
        verdict = cache.match(keys)
        verdict.lease.release()
        return verdict.usable_tokens

    def hit_ids() -> int:
        verdict = cache.match(keys)
        lease = verdict.lease
        lease.page_ids("full")
        lease.page_ids("window")
        lease.release()
        return verdict.usable_tokens

    def from_tokens() -> int:
        verdict = cache.match(hk.block_keys(ids, trial.UNIT_TOKENS))
        verdict.lease.release()
        return verdict.usable_tokens

    call = {"hit_ids": hit_ids, "from_tokens": from_tokens}.get(case, hit)
    trial.expect(case, call(), tokens)
    return call


def _version() -> str:
    try:
        return metadata.version("hybridkv")
    except metadata.PackageNotFoundError:
        return "not installed as a package"


if __name__ == "__main__":
    trial.main("hybridkv", _version(), build)
