# SPDX-License-Identifier: Apache-2.0
"""Verdict and lease: settling, counting, what a lease shows, extending, agreed boundaries, replay, forms."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import (
    check_conserved,
    check_counters,
    check_verdict,
    full_swa,
    give_back,
    group,
    held,
    keys_of,
    make_cache,
    pools,
    put,
    state_text,
    tokens,
    total,
    usable,
)


def ready(n: int = 96, **more: Any) -> tuple[Any, Any]:
    """A cache (full, swa) that holds n tokens, and keys of one token more."""
    cache = full_swa(**more)
    cache.insert(keys_of(n))
    return cache, keys_of(n + 1)


# -- settling ---------------------------------------------------------------------------------------


def test_release_settles_the_hit_as_effective() -> None:
    cache, keys = ready()
    v = cache.match(keys)
    m = cache.metrics()
    assert (m.lookups, m.pending, m.effective_hits, m.withdrawn) == (1, 1, 0, 0)
    assert v.lease.valid
    v.lease.release()
    m = cache.metrics()
    assert (m.lookups, m.pending, m.effective_hits, m.withdrawn) == (1, 0, 1, 0)
    assert (m.hit_rate, m.effective_hit_rate) == (1.0, 1.0)


def test_cancel_withdraws_the_hit() -> None:
    cache, keys = ready()
    cache.match(keys).lease.cancel()
    m = cache.metrics()
    assert (m.pending, m.effective_hits, m.withdrawn) == (0, 0, 1)


def test_fail_settles_the_hit_as_a_false_one() -> None:
    cache, keys = ready()
    cache.match(keys).lease.fail("wrong bytes")
    m = cache.metrics()
    assert (m.pending, m.effective_hits, m.withdrawn, total(m.false_hits)) == (0, 0, 0, 1)
    assert m.false_hits[hk.Check.INTEGRITY][hk.StateKind.COMPRESSED] == 1
    check_counters(cache)


def test_a_with_block_settles_by_how_it_ends() -> None:
    cache, keys = ready()
    with cache.match(keys).lease as lease:
        assert lease.tokens == 96
    assert cache.metrics().effective_hits == 1
    with pytest.raises(RuntimeError, match="stop"), cache.match(keys).lease as lease:
        raise RuntimeError("stop")
    assert not lease.valid
    m = cache.metrics()
    assert (m.effective_hits, m.withdrawn, m.pending) == (1, 1, 0)
    with cache.match(keys).lease as lease:
        lease.release()
    assert cache.metrics().effective_hits == 2
    assert cache.evict(keys) > 0


def test_counters_add_up_in_lookups_and_in_tokens() -> None:
    cache, keys = ready()
    cache.match(hk.block_keys(tokens(80, start=3000), 16))
    put(cache, hk.block_keys(tokens(80, start=6000), 16), {"full": range(5)})
    false_hit = cache.match(hk.block_keys(tokens(81, start=6000), 16))
    assert false_hit.outcome == hk.Outcome.FALSE_HIT
    cache.match(keys).lease.release()
    cache.match(keys).lease.cancel()
    pending = cache.match(keys)
    m = cache.metrics()
    assert (m.lookups, m.misses, total(m.false_hits)) == (5, 1, 1)
    assert (m.effective_hits, m.withdrawn, m.pending) == (1, 1, 1)
    assert m.false_hits[hk.Check.GROUPS][hk.StateKind.WINDOW] == 1
    assert m.lost_tokens[hk.Check.GROUPS][hk.StateKind.WINDOW] == 80
    assert total(m.lost_tokens) == 80
    assert m.lookups_tokens == (
        m.misses_tokens + total(m.false_hits_tokens) + m.effective_hits_tokens + m.pending_tokens + m.withdrawn_tokens
    )
    assert m.effective_hits_tokens >= 96
    assert m.hit_rate == pytest.approx(4 / 5)
    assert m.effective_hit_rate == pytest.approx(1 / 5)
    assert 0 <= m.effective_hit_rate_tokens <= m.hit_rate_tokens <= 1
    pending.lease.release()
    assert cache.metrics().pending == 0
    assert cache.metrics().pending_tokens == 0


def test_rates_of_nothing_are_numbers() -> None:
    m = full_swa().metrics()
    assert m.lookups == 0
    assert math.isfinite(m.hit_rate)
    assert math.isfinite(m.effective_hit_rate)


def test_a_partial_loss_counts_as_lost_tokens_not_as_a_false_hit() -> None:
    cache = full_swa(window=2)
    put(cache, keys_of(96), {"full": range(6), "swa": [2]})
    give_back(cache.match(keys_of(97)))
    m = cache.metrics()
    assert total(m.false_hits) == 0
    assert m.lost_tokens[hk.Check.GROUPS][hk.StateKind.WINDOW] == 48


# -- what a lease shows -----------------------------------------------------------------------------


def test_a_lease_holds_exactly_what_a_resume_needs() -> None:
    cache, keys = ready()
    v = cache.match(keys)
    for name, own in (("full", list(range(6))), ("swa", [4, 5])):
        ids = np.asarray(v.lease.page_ids(name))
        assert ids.dtype == np.int32
        assert ids.shape == (6,)
        assert held(v.lease, name) == own
        assert set(ids[ids < 0].tolist()) <= {-1}
        counts = np.asarray(v.lease.handouts(name))
        assert counts.dtype == np.uint64
        assert counts.shape == (6,)
    assert pools(cache)["full"][2] == 6
    assert pools(cache)["swa"][2] in (2, 6)  # a page may stay while its word is pinned for a neighbour
    v.lease.release()


def test_boundaries_are_int64_and_ascending() -> None:
    cache = full_swa(window=2)
    put(cache, keys_of(96), {"full": range(6), "swa": [0, 2, 5]})
    v = cache.match(keys_of(97))
    b = np.asarray(v.boundaries)
    assert b.dtype == np.int64
    assert b.tolist() == [16, 48, 96]
    give_back(v)


def test_a_longer_prompt_may_be_usable_where_its_prefix_is_not() -> None:
    cache = full_swa(window=2)
    put(cache, keys_of(96), {"full": range(6), "swa": [5]})
    assert give_back(cache.match(keys_of(81))) == 0
    assert give_back(cache.match(keys_of(97))) == 96


def test_limits() -> None:
    cache, keys = ready(window=2)
    for limit, expected in ((1, 0), (16, 0), (17, 16), (32, 16), (33, 32), (96, 80), (97, 96)):
        assert give_back(cache.match(keys, limit=limit)) == expected
    assert cache.match(keys, limit=0).outcome == hk.Outcome.MISS


def test_drops() -> None:
    cache, keys = ready(window=2)
    for drop, expected in ((0, 96), (1, 80), (16, 80), (17, 64), (95, 0), (96, 0), (1000, 0)):
        v = cache.match(keys, drop_tokens=drop)
        assert usable(v) == expected
        assert np.asarray(v.boundaries).tolist() == [16, 32, 48, 64, 80, 96]
        if drop:
            assert (v.why.check, v.why.code) == (hk.Check.GROUPS, "drop")
            assert dict(v.lost) == {hk.Check.GROUPS: 96 - expected}
        if v.lease:
            v.lease.release()


def test_extend_pays_for_new_blocks_only() -> None:
    cache = full_swa()
    keys = keys_of(161)
    cache.insert(keys[:4])
    v = cache.match(keys)
    first = np.asarray(v.lease.page_ids("full")).tolist()
    lookups = cache.metrics().lookups
    assert v.lease.extend(keys) == 64
    cache.insert(keys[:8])
    assert v.lease.extend(keys) == 128
    assert v.lease.tokens == 128
    now = np.asarray(v.lease.page_ids("full")).tolist()
    assert now[:4] == first
    assert len(now) == 8
    assert set(held(v.lease, "swa")) >= {6, 7}
    assert cache.metrics().lookups == lookups
    assert cache.evict(keys[:8], groups={"full": True}) == 0
    v.lease.release()
    assert cache.metrics().effective_hits == 1
    assert cache.evict(keys[:8]) == 16
    check_conserved(cache, {"full": 256, "swa": 256})


@pytest.mark.parametrize("length", [50, 97])
def test_extend_is_never_smaller(length: int) -> None:
    cache, keys = ready()
    v = cache.match(keys)
    try:
        assert v.lease.extend(keys_of(length)) == 96
    except hk.ArgumentError:  # keys that do not reach the lease's end may be refused
        assert length < 96
    assert v.lease.tokens == 96
    assert held(v.lease, "full") == list(range(6))
    v.lease.release()


# -- agreed boundaries ------------------------------------------------------------------------------


def test_match_at_resumes_there_or_not_at_all() -> None:
    cache = full_swa(window=2)
    put(cache, keys_of(96), {"full": range(6), "swa": [0, 2, 5]})
    keys = keys_of(97)
    v = cache.match_at(keys, 48)
    assert usable(v) == 48
    assert v.matched_tokens == 48
    assert held(v.lease, "swa") == [2]
    v.lease.release()
    v = cache.match_at(keys, 64)
    check_verdict(v)
    assert v.outcome == hk.Outcome.FALSE_HIT
    assert v.matched_tokens <= 64
    assert (v.why.check, v.why.group, v.why.block) == (hk.Check.GROUPS, "swa", 3)
    v = cache.match_at(keys, 40)
    check_verdict(v)
    assert v.lease is None
    m = cache.metrics()
    assert m.lookups == 3
    check_counters(cache)


@pytest.mark.parametrize("window", [1, 5])
def test_every_boundary_can_be_resumed_at(window: int) -> None:
    cache = make_cache(4, {"swa": (hk.Window(window), 4)})
    put(cache, keys_of(16, 4), {"swa": [0, 2]})
    v = cache.match(keys_of(17, 4))
    boundaries = np.asarray(v.boundaries).tolist()
    assert boundaries == ([4, 8, 12] if window == 1 else [4, 12])
    v.lease.cancel()
    for tokens_there in boundaries:
        assert give_back(cache.match_at(keys_of(17, 4), tokens_there)) == tokens_there


def test_match_at_of_a_verdict_withdraws_its_lease() -> None:
    cache, keys = ready(window=2)
    v = cache.match(keys)
    w = cache.match_at(keys, 48, of=v)
    assert usable(w) == 48
    assert not v.lease.valid
    m = cache.metrics()
    assert (m.lookups, m.withdrawn, m.pending) == (2, 1, 1)
    w.lease.release()


def test_intersect_agrees_on_the_largest_common_length() -> None:
    assert hk.intersect([np.array([16, 32, 96]), np.array([32, 64])]) == 32
    assert hk.intersect([np.array([16, 32, 96]), np.array([16, 64]), np.array([8, 16])]) == 16
    assert hk.intersect([np.array([16, 96]), np.array([32, 64])]) == 0
    assert hk.intersect([np.array([16, 96])]) == 96
    assert hk.intersect([np.array([16, 96]), np.array([], np.int64)]) == 0


def test_ranks_agree_by_intersection_not_by_minimum() -> None:
    presence = ([0, 2, 5], [2, 4])
    ranks = [full_swa(window=2) for _ in presence]
    for cache, windows in zip(ranks, presence, strict=True):
        put(cache, keys_of(96), {"full": range(6), "swa": windows})
    verdicts = [cache.match(keys_of(97)) for cache in ranks]
    assert [v.usable_tokens for v in verdicts] == [96, 80]
    agreed = hk.intersect([v.boundaries for v in verdicts])
    assert agreed == 48
    for cache, v in zip(ranks, verdicts, strict=True):
        w = cache.match_at(keys_of(97), agreed, of=v)
        assert usable(w) == 48
        w.lease.release()


# -- replay -----------------------------------------------------------------------------------------


def replay_cache(window: int = 32, layers: tuple[int, ...] = (), block: int = 16) -> Any:
    full = group("full", hk.Prefix(), 16)
    swa = group("swa", hk.Window(window), block, rebuildable=True, layers=layers)
    return hk.HybridCache(hk.CacheSpec(16, [full, swa]), blocks=512)


def test_a_missing_rebuildable_window_is_replayed() -> None:
    cache = replay_cache()
    put(cache, keys_of(96), {"full": range(6)})
    v = cache.match(keys_of(100))
    assert usable(v) == 96
    assert dict(v.plan.replay) == {"swa": (64, 96)}
    assert v.plan.resume_tokens == 64
    assert np.asarray(v.lease.page_ids("swa")).tolist() == [-1] * 6
    assert held(v.lease, "full") == list(range(6))
    v.lease.release()


def test_replay_reaches_back_over_every_layer() -> None:
    cache = replay_cache(window=17, layers=(0, 1, 2))
    put(cache, keys_of(96), {"full": range(6)})
    v = cache.match(keys_of(100))
    assert dict(v.plan.replay) == {"swa": (48, 96)}
    assert np.asarray(v.boundaries).tolist() == [64, 80, 96]
    give_back(v)


def test_no_replay_from_the_very_start() -> None:
    cache = replay_cache()
    put(cache, keys_of(32), {"full": range(2)})
    v = cache.match(keys_of(40))
    assert usable(v) == 0
    assert v.outcome == hk.Outcome.FALSE_HIT
    assert v.why.group == "swa"


def test_a_rebuildable_group_that_is_there_is_used() -> None:
    cache = replay_cache()
    cache.insert(keys_of(96))
    v = cache.match(keys_of(97))
    assert usable(v) == 96
    assert not dict(v.plan.replay)
    assert held(v.lease, "swa") == [4, 5]
    v.lease.release()


# -- spans and inspect ------------------------------------------------------------------------------


def test_every_token_has_one_form_per_group() -> None:
    spec = hk.CacheSpec(
        16,
        [
            group("plain", hk.Prefix()),
            group("csa", hk.Prefix(), 16, tokens_per_row=4),
            group("index", hk.Prefix(), kind=hk.StateKind.INDEXER, in_step_with="csa"),
            group("swa", hk.Window(17)),
        ],
    )
    cache = hk.HybridCache(spec, blocks=64)
    put(cache, keys_of(100), {"plain": range(6), "csa": range(5), "index": range(4), "swa": [1, 5]})
    spans = cache.spans(keys_of(100))
    assert list(spans) == ["plain", "csa", "index", "swa"]
    for rows in spans.values():
        assert rows[0][0] == 0
        assert rows[-1][1] == 100
        assert all(a[1] == b[0] for a, b in itertools.pairwise(rows))
        assert all(a < b for a, b, _ in rows)
    forms = {name: {t: str(form) for a, b, form in rows for t in range(a, b)} for name, rows in spans.items()}
    assert {forms["index"][t] for t in range(64)} == {"indexer"}
    assert forms["index"][64] == "absent"
    assert {forms["csa"][t] for t in range(80)} == {"compressed"}
    assert {t for t, form in forms["swa"].items() if form == "window"} == {*range(16, 32), *range(80, 96)}
    assert forms["plain"][0] in ("uncompressed", "compressed")
    assert all(forms[name][99] == "absent" for name in spans)


def test_inspect_and_spans_are_no_lookups() -> None:
    cache, keys = ready()
    cache.inspect(keys)
    cache.spans(keys)
    assert cache.metrics().lookups == 0


def test_inspect_tells_a_pin_from_none() -> None:
    cache, keys = ready()
    before = state_text(cache.inspect(keys))
    v = cache.match(keys)
    assert state_text(cache.inspect(keys)) != before
    v.lease.release()
    assert state_text(cache.inspect(keys)) == before


def test_the_homogeneous_spec_is_the_same_api_with_one_group() -> None:
    spec = hk.CacheSpec.homogeneous(2, 4096, unit_tokens=16)
    cache = hk.HybridCache(spec, blocks=64)
    cache.insert(keys_of(48))
    v = cache.match(keys_of(60))
    assert usable(v) == 48
    assert held(v.lease, "kv") == [0, 1, 2]
    assert v.why is None
    v.lease.release()
