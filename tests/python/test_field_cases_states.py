# SPDX-License-Identifier: Apache-2.0
"""Field cases of windows, tails and indexers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import (
    Event,
    blamed,
    check_verdict,
    forked,
    full_swa,
    give_back,
    group,
    held,
    keys_of,
    make_cache,
    pools,
    put,
    tokens,
    usable,
)

CONFIGS = Path(__file__).parents[1] / "data" / "configs"


# -- windows ----------------------------------------------------------------------------------------


def test_FC_001_history_without_its_window_is_a_false_hit_of_the_window() -> None:
    cache = full_swa(window=128, blocks=1024)
    put(cache, keys_of(7700), {"full": range(481)})
    v = cache.match(keys_of(7700))
    assert v.matched_tokens == 481 * 16
    assert v.outcome == hk.Outcome.FALSE_HIT
    assert blamed(v) == (hk.Check.GROUPS, "swa", 481 - 8)
    assert v.why.kind == hk.StateKind.WINDOW
    assert v.lease is None


def replayed(window: int, unit: int, hit: int) -> Any:
    spec = hk.CacheSpec(
        unit, [group("full", hk.Prefix()), group("swa", hk.Window(window), rebuildable=True, layers=(0,))]
    )
    cache = hk.HybridCache(spec, blocks=8192)
    put(cache, keys_of(hit, unit), {"full": range(hit // unit)})
    return cache.match(keys_of(hit + 1, unit))


def test_FC_002_a_window_nobody_shares_is_replayed_over_a_named_range() -> None:
    v = replayed(128, 256, 1024)
    assert usable(v) == 1024
    assert dict(v.plan.replay) == {"swa": (768, 1024)}
    assert v.plan.resume_tokens == 768
    assert held(v.lease, "swa") == []
    v.lease.release()


@pytest.mark.parametrize(("hit", "start"), [(64, None), (128, None), (192, 64), (4096, 3968)])
def test_FC_004_a_window_that_is_never_kept(hit: int, start: int | None) -> None:
    v = replayed(128, 64, hit)
    check_verdict(v)
    assert v.matched_tokens == hit
    if start is None:
        assert v.usable_tokens == 0
        return
    assert v.usable_tokens == hit
    assert dict(v.plan.replay) == {"swa": (start, hit)}
    assert held(v.lease, "full") == list(range(hit // 64))
    v.lease.release()


def test_FC_005_the_window_is_checked_again_below_the_drop() -> None:
    cache = make_cache(2, {"full": (hk.Prefix(), 2), "swa": (hk.Window(4), 2)})
    put(cache, keys_of(8, 2), {"full": range(4), "swa": [2, 3]})
    assert give_back(cache.match(keys_of(9, 2))) == 8
    v = cache.match(keys_of(9, 2), drop_tokens=2)
    check_verdict(v)
    assert (v.outcome, v.usable_tokens) == (hk.Outcome.FALSE_HIT, 0)
    assert (v.why.check, v.why.code) == (hk.Check.GROUPS, "drop")


def test_FC_007_a_page_without_written_rows_enters_no_list() -> None:
    cache = make_cache(128, {"full": (hk.Prefix(), 128), "swa": (hk.Window(129), 128)})
    fill = cache.reserve(keys_of(512, 128))
    assert len(np.asarray(fill.page_ids("swa"))) == 4
    fill.publish({"full": [0, 1], "swa": [0, 1]})
    v = cache.match(keys_of(513, 128))
    assert usable(v) == 256
    written = np.asarray(fill.page_ids("swa"))[:2].tolist()
    assert np.asarray(v.lease.page_ids("swa")).tolist() == [-1, written[1]]
    v.lease.release()
    fill.abort()


def test_FC_010_the_newest_page_keeps_its_window() -> None:
    cache = make_cache(256, {"full": (hk.Prefix(), 256), "swa": (hk.Window(128), 256)})
    keys = keys_of(512, 256)
    cache.insert(keys)
    spec = hk.CacheSpec(256, [group("full", hk.Prefix()), group("swa", hk.Window(128))])
    assert list(spec.requirements(512)["swa"].blocks) == [1]
    v = cache.match(keys_of(513, 256))
    assert cache.evict(keys, groups={"swa": True}) == 1
    assert held(v.lease, "swa") == [1]
    v.lease.release()
    assert give_back(cache.match(keys_of(513, 256))) == 512


def test_FC_013_only_lengths_whose_window_was_made_are_usable() -> None:
    cache = full_swa(window=128, blocks=2048)
    shared = tokens(16384)
    windows = [*range(504, 512), *range(1016, 1024)]
    put(cache, hk.block_keys(shared, 16), {"full": range(1024), "swa": windows})
    other = np.concatenate([shared[:10000], tokens(3000, start=90_000)])
    v = cache.match(hk.block_keys(other, 16))
    assert usable(v) == 8192
    assert v.matched_tokens == 10000
    assert np.asarray(v.boundaries).tolist() == [8192]
    v.lease.release()
    v = cache.match(keys_of(16385))
    assert np.asarray(v.boundaries).tolist() == [8192, 16384]
    give_back(v)


def test_FC_014_no_row_leaves_the_window_early() -> None:
    spec = hk.CacheSpec(1, [group("swa", hk.Window(8))])
    needs = {t: spec.requirements(t)["swa"] for t in (6, 7, 8, 9)}
    assert {t: n.rows for t, n in needs.items()} == {6: 6, 7: 7, 8: 7, 9: 7}
    assert {t: list(n.blocks) for t, n in needs.items()} == {
        6: list(range(6)),
        7: list(range(7)),
        8: list(range(1, 8)),
        9: list(range(2, 9)),
    }


def test_FC_016_exactly_the_rows_that_were_written_count() -> None:
    cache = make_cache(256, {"full": (hk.Prefix(), 256)})
    cache.insert(keys_of(4, 256))
    assert give_back(cache.match(keys_of(200, 256))) == 4
    cache.insert(keys_of(5, 256))
    v = cache.match(keys_of(200, 256))
    assert np.asarray(v.boundaries).tolist() == [4, 5]
    assert usable(v) == 5
    assert give_back(cache.match(keys_of(5, 256))) == 4
    v.lease.release()


def test_FC_017_the_whole_prompt_shrinks_to_the_boundary_below() -> None:
    cache = full_swa(window=33)
    put(cache, keys_of(96), {"full": range(6), "swa": [2, 3, 4, 5]})
    assert give_back(cache.match(keys_of(96))) == 80
    put(cache, keys_of(96), {})
    cache.evict(keys_of(96), groups={"swa": [2, 3]})
    v = cache.match(keys_of(96))
    assert usable(v) == 0
    assert v.outcome == hk.Outcome.FALSE_HIT


def test_FC_020_lookup_and_store_ask_one_rule() -> None:
    rules = {"full": (hk.Prefix(), 16), "swa": (hk.Window(32 + 3), 16)}
    spec = hk.CacheSpec(16, [group(n, rule, block) for n, (rule, block) in rules.items()])
    need = [int(b) for b in spec.requirements(64)["swa"].blocks]
    assert need == [1, 2, 3]
    for missing in need:
        cache = make_cache(16, rules)
        put(cache, keys_of(64), {"full": range(4), "swa": [b for b in need if b != missing]})
        v = cache.match(keys_of(65))
        assert usable(v) == 0
        assert blamed(v) == (hk.Check.GROUPS, "swa", missing)
    cache = make_cache(16, rules)
    put(cache, keys_of(64), {"full": range(4), "swa": need})
    v = cache.match(keys_of(65))
    assert usable(v) == 64
    assert held(v.lease, "swa") == need
    v.lease.release()


# -- tails ------------------------------------------------------------------------------------------


def test_FC_022_a_fork_reads_the_shared_page_and_writes_its_own() -> None:
    cache, shared, fill = forked()
    source, target, rows = np.asarray(fill.copies("kv")).tolist()[0]
    assert (source, rows) == (shared["kv"], 7)
    assert target != source
    assert target == int(np.asarray(fill.page_ids("kv"))[1])
    fill.abort()
    assert give_back(cache.match(keys_of(48))) == 23


def test_FC_023_overlap_is_never_described_without_its_state() -> None:
    configs = sorted(CONFIGS.glob("**/*.json"))
    compressed = 0
    for path in configs:
        config = json.loads(path.read_text())
        if config.get("model_type") != "deepseek_v4":
            continue
        compressed += 1
        spec = hk.CacheSpec.from_config(config)
        tails = [g for g in spec.groups if g.kind == hk.StateKind.TAIL]
        assert tails
        for length in (256, 512, 1024):
            needs = spec.requirements(length)
            assert any(len(needs[g.name].blocks) for g in tails)
    assert compressed >= 2


def test_FC_025_a_tail_is_asked_only_where_it_exists() -> None:
    rules = {"hca": (hk.Prefix(), 8), "tail": (hk.Checkpoint(128), 8)}
    spec = hk.CacheSpec(8, [group(n, rule, block) for n, (rule, block) in rules.items()])
    assert list(spec.requirements(512)["tail"].blocks) == []
    assert list(spec.requirements(600)["tail"].blocks) == [74]
    cache = make_cache(8, rules)
    put(cache, keys_of(600, 8), {"hca": range(75)})
    v = cache.match(keys_of(601, 8))
    assert usable(v) == 512
    assert np.asarray(v.boundaries).tolist() == [128, 256, 384, 512]
    assert blamed(v) == (hk.Check.GROUPS, "tail", 74)
    v.lease.release()
    put(cache, keys_of(600, 8), {"tail": [74]})
    assert give_back(cache.match(keys_of(601, 8))) == 600


def test_FC_026_a_checkpoint_is_taken_whole_or_not_at_all() -> None:
    members = ("conv", "state", "carry")
    rules = {"kv": (hk.Prefix(), 16), **{m: (hk.Checkpoint(), 16) for m in members}}
    for missing in members:
        cache = make_cache(16, rules)
        present = {m: [3] for m in members if m != missing}
        put(cache, keys_of(64), {"kv": range(4), **present})
        v = cache.match(keys_of(65))
        assert usable(v) == 0
        assert blamed(v) == (hk.Check.GROUPS, missing, 3)


def test_FC_029_a_page_handed_out_again_has_another_count() -> None:
    cache = make_cache(16, {"state": (hk.Checkpoint(), 16)}, pages={"state": 1})
    cache.insert(keys_of(16))
    v = cache.match(keys_of(17))
    first = int(np.asarray(v.lease.handouts("state"))[0])
    v.lease.release()
    cache.evict(keys_of(16))
    other = hk.block_keys(tokens(17, start=500), 16)
    missed = cache.match(other)
    assert missed.outcome == hk.Outcome.MISS
    assert missed.lease is None
    cache.insert(other[:1])
    w = cache.match(other)
    assert int(np.asarray(w.lease.handouts("state"))[0]) > first
    w.lease.release()
    assert cache.match(keys_of(17)).outcome == hk.Outcome.MISS


def test_FC_031_history_without_its_checkpoint_is_history_only() -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16), "state": (hk.Checkpoint(), 16)})
    put(cache, keys_of(96), {"kv": range(6)})
    v = cache.match(keys_of(97))
    assert (v.outcome, v.matched_tokens) == (hk.Outcome.FALSE_HIT, 96)
    assert blamed(v) == (hk.Check.GROUPS, "state", 5)
    assert v.why.kind == hk.StateKind.TAIL
    assert v.remedy == hk.Remedy.RECOMPUTE


def test_FC_032_a_missing_draft_group_is_the_reason() -> None:
    cache = make_cache(16, {"target": (hk.Prefix(), 16), "draft": (hk.Prefix(), 16)})
    put(cache, keys_of(96), {"target": range(6)})
    v = cache.match(keys_of(97))
    assert v.outcome == hk.Outcome.FALSE_HIT
    assert blamed(v) == (hk.Check.COMPLETE, "draft", 0)


def test_FC_034_checkpoints_of_a_batch_do_not_share_content() -> None:
    cache = make_cache(16, {"state": (hk.Checkpoint(), 16)}, verify="all")
    pool = np.zeros((256, 64), np.uint8)
    cache.bind("state", pool)
    prompts = [hk.block_keys(tokens(16, start=1000 * i), 16) for i in range(3)]
    fills = [cache.reserve(keys) for keys in prompts]
    for i, fill in enumerate(fills):
        pool[int(np.asarray(fill.page_ids("state"))[0])] = i + 1
    for fill in fills:
        fill.publish()
    for i, keys in enumerate(prompts):
        v = cache.match(keys, limit=17)
        assert usable(v) == 16
        assert set(pool[int(np.asarray(v.lease.page_ids("state"))[0])].tolist()) == {i + 1}
        v.lease.release()


def test_FC_035_the_exact_end_is_excluded_from_every_source() -> None:
    cache = make_cache(1024, {"kv": (hk.Prefix(), 1024), "state": (hk.Checkpoint(), 1024)})
    cache.insert(keys_of(2234, 1024))
    v = cache.match(keys_of(2234, 1024))
    assert usable(v) == 2048
    assert np.asarray(v.boundaries).tolist() == [1024, 2048]
    v.lease.release()
    assert give_back(cache.match(keys_of(2235, 1024))) == 2234


# -- indexers ---------------------------------------------------------------------------------------


def with_index() -> Any:
    kv = group("kv", hk.Prefix())
    index = group("index", hk.Prefix(), kind=hk.StateKind.INDEXER, in_step_with="kv")
    return hk.HybridCache(hk.CacheSpec(16, [kv, index]), blocks=64)


def test_FC_038_every_group_becomes_visible_after_the_same_event() -> None:
    cache = with_index()
    fill = cache.reserve(keys_of(96))
    event = Event()
    fill.publish(after=event)
    for _ in range(3):
        cache.poll()
        assert cache.match(keys_of(97)).outcome == hk.Outcome.MISS
    event.passed = True
    cache.poll()
    v = cache.match(keys_of(97))
    assert usable(v) == 96
    assert held(v.lease, "index") == held(v.lease, "kv")
    v.lease.release()


def test_FC_040_one_lost_index_page_cuts_the_length_there() -> None:
    cache = with_index()
    cache.insert(keys_of(160))
    assert cache.evict(keys_of(160), groups={"index": [8]}) == 1
    v = cache.match(keys_of(161))
    assert usable(v) == 128
    assert v.matched_tokens == 160
    assert blamed(v) == (hk.Check.COMPLETE, "index", 8)
    assert v.why.kind == hk.StateKind.INDEXER
    assert held(v.lease, "kv") == list(range(8))
    assert pools(cache)["kv"][2:] == (8, 2)
    v.lease.release()


def test_FC_041_three_of_four_groups_name_the_fourth() -> None:
    names = ("kv", "index", "draft_kv", "draft_index")
    groups = [group(n, hk.Prefix(), kind=hk.StateKind.INDEXER if "index" in n else None) for n in names]
    cache = hk.HybridCache(hk.CacheSpec(16, groups), blocks=64)
    put(cache, keys_of(96), {n: range(6) for n in names[:3]})
    v = cache.match(keys_of(97))
    assert v.outcome == hk.Outcome.FALSE_HIT
    assert blamed(v) == (hk.Check.COMPLETE, "draft_index", 0)
    assert v.why.kind == hk.StateKind.INDEXER


def test_FC_043_the_producer_is_waited_for_and_page_bytes_are_checked() -> None:
    cache = with_index()
    with pytest.raises(hk.ArgumentError):
        cache.bind("index", np.zeros((64, 63), np.uint8))
    cache.bind("index", np.zeros((64, 64), np.uint8))
    event = Event()
    fill = cache.reserve(keys_of(32))
    fill.publish({"index": True}, after=event)
    fill.publish({"kv": True})
    cache.poll()
    v = cache.match(keys_of(33))
    check_verdict(v)
    assert v.usable_tokens == 0
    event.passed = True
    cache.poll()
    assert give_back(cache.match(keys_of(33))) == 32


def test_FC_044_what_was_keyed_by_a_page_number_shows_its_age() -> None:
    cache = make_cache(16, {"kv": (hk.Prefix(), 16)}, pages={"kv": 2})
    side: dict[tuple[int, int], str] = {}
    for start, name in ((0, "a"), (300, "b"), (600, "c")):
        keys = hk.block_keys(tokens(33, start=start), 16)
        cache.insert(keys[:2])
        v = cache.match(keys)
        places = zip(
            np.asarray(v.lease.page_ids("kv")).tolist(),
            np.asarray(v.lease.handouts("kv")).tolist(),
            strict=True,
        )
        for place in places:
            assert place not in side
            side[place] = name
        v.lease.release()
        cache.evict(keys[:2])
    assert len(side) == 6


def test_FC_046_a_hit_inside_a_large_page_resumes_at_its_start() -> None:
    cache = make_cache(
        4,
        {"mla": (hk.Prefix(), 4096), "index": (hk.Prefix(), 4096), "tail": (hk.Checkpoint(4096), 4096)},
        blocks=4096,
    )
    cache.insert(keys_of(4100, 4), groups={"mla": [0], "index": [0]})
    v = cache.match(keys_of(4100, 4))
    assert usable(v) == 4096
    assert held(v.lease, "tail") == []
    v.lease.release()
