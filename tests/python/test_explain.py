# SPDX-License-Identifier: Apache-2.0
"""``cache.explain``: for every reason that a prompt is not reused, the reason, its age, and what would have kept it."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.departures import _WORDS, CAUSES, age_text, departure
from hybridkv.explain import explanation as module_entry
from hybridkv.explain.text import COLUMNS
from hybridkv.explain.timeline import STATES

UNIT = 16


def _spec() -> hk.CacheSpec:
    kv = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
    swa = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(17), page_bytes=64)
    return hk.CacheSpec(UNIT, [kv, swa])


def _keys(units: int, first: int = 0, rest: int = 1) -> hk.BlockKeys:
    return hk.block_keys(np.arange(first, first + units * UNIT + rest), UNIT)


def _state(found: hk.Explanation, group: str, block: int) -> str:
    run = next(line for line in found.groups if line.group == group).at(block)
    assert run is not None
    return run.state if run.departure is None else run.departure.cause


def _settings(found: hk.Explanation) -> str:
    return "\n".join(map(str, found.settings))


def _evicted() -> tuple[hk.HybridCache, hk.BlockKeys]:
    cache = hk.HybridCache(_spec(), blocks=64, pages={"kv": 6, "swa": 64})
    keys = _keys(4)
    cache.insert(keys[:4])
    cache.insert(_keys(4, first=5000)[:4])
    return cache, keys


def test_evicted_for_whom_and_how_many_pages_were_short() -> None:
    cache, keys = _evicted()
    found = cache.explain(keys)
    assert (found.outcome, found.matched_tokens) == ("REUSABLE", 32)
    run = next(line for line in found.groups if line.group == "kv").at(3)
    assert run is not None and run.departure is not None
    assert (run.first_block, run.blocks) == (2, 2) and run.departure.made_room_for == "kv"
    assert run.departure.cause in {"tail", "history", "superseded", "stranded"} and run.departure.age_s < 60
    assert "pages={'kv': 8}" in _settings(found) and "hk.DiskTier" in _settings(found)
    last = found.boundaries[-1]
    assert (last.usable, last.check, last.groups[0], last.block) == (False, "MISS", "kv", 2)
    assert "for pages of 'kv'" in str(found)


def test_the_pool_that_explain_names_would_have_kept_it() -> None:
    short, keys = _evicted()
    pages = {"kv": short.explain(keys).settings[0].setting.split(": ")[1].rstrip("}"), "swa": 64}
    cache = hk.HybridCache(_spec(), blocks=64, pages={name: int(number) for name, number in pages.items()})
    cache.insert(keys[:4])
    cache.insert(_keys(4, first=5000)[:4])
    assert cache.explain(keys).usable_tokens == 64


def test_evicted_for_descriptors() -> None:
    cache = hk.HybridCache(_spec(), blocks=5, pages={"kv": 64, "swa": 64})
    keys = _keys(4)
    cache.insert(keys[:4])
    cache.insert(_keys(3, first=5000)[:3])
    found = cache.explain(keys)
    gone = [run.departure for line in found.groups for run in line.runs if run.departure is not None]
    assert {why.made_room_for for why in gone} == {"descriptors"}
    assert "blocks=" in _settings(found) and "for keys" in str(found)


def test_taken_by_the_application() -> None:
    cache = hk.HybridCache(_spec(), blocks=64)
    keys = _keys(4)
    cache.insert(keys[:4])
    cache.evict(keys, {"swa": [2, 3]})
    found = cache.explain(keys)
    assert (found.usable_tokens, found.lost) == (32, {"GROUPS": 32})
    assert _state(found, "swa", 3) == "asked" and _state(found, "kv", 3) == "here"
    refused = found.boundaries[-1]
    assert (refused.check, refused.groups, refused.lengths) == ("GROUPS", ("swa",), 2)
    assert "evict()" in _settings(found)


def test_slid_out_of_a_window_that_no_policy_keeps() -> None:
    policy = hk.CheckpointPolicy(prompt_end=False, output_end=False, junctions=False)
    cache = hk.HybridCache(_spec(), blocks=64, checkpoints=policy)
    keys = _keys(4)
    ticket = cache.admit("r", 4 * UNIT)
    tokens = np.arange(4 * UNIT)
    for at in range(0, 4 * UNIT, UNIT):
        ticket.grow(UNIT)
        ticket.advance(at + UNIT, tokens[at : at + UNIT])
    ticket.close()
    found = cache.explain(keys)
    assert found.outcome == "FALSE_HIT" and _state(found, "swa", 1) == "expired"
    assert f"CheckpointPolicy(every={UNIT})" in _settings(found)


def test_a_state_that_nobody_kept() -> None:
    kv = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
    tail = hk.CacheGroup("tail", hk.StateKind.TAIL, hk.Checkpoint(), page_bytes=64)
    cache = hk.HybridCache(hk.CacheSpec(UNIT, [kv, tail]), blocks=64)
    keys = _keys(4)
    cache.insert(keys[:4], {"kv": True, "tail": [3]})
    found = cache.explain(keys[:3])
    assert found.outcome == "FALSE_HIT" and _state(found, "tail", 1) == "never here"
    assert "states=[...]" in _settings(found)


def test_displaced_by_a_fifth_tip() -> None:
    cache = hk.HybridCache(_spec(), blocks=64)
    tips = [hk.block_keys([*range(UNIT), *range(100 * n, 100 * n + 5)], UNIT) for n in range(1, 6)]
    for keys in tips:
        cache.insert(keys)
    found = cache.explain(tips[0])
    assert _state(found, "kv", 1) == "displaced" and "four tips" in _settings(found)


def test_withdrawn_with_its_identity() -> None:
    spec = hk.CacheSpec.homogeneous(1, 64, identity=hk.Identity("m", weights="1"))
    cache = hk.HybridCache(spec, blocks=64)
    keys = hk.block_keys(range(65), 16, identity=spec.identity)
    cache.insert(keys[:4])
    cache.update_identity(hk.Identity("m", weights="2"), on_change="flush")
    cache.update_identity(spec.identity, on_change="flush")
    found = cache.explain(keys)
    assert _state(found, "kv", 0) == "withdrawn" and 'on_change="version"' in _settings(found)


def test_damaged() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=8, verify="all")
    memory = np.zeros((8, 64), np.uint8)
    cache.bind("kv", memory)
    keys = _keys(2)
    cache.insert(keys[:2])
    memory[1] += 1
    assert cache.match(keys).outcome is hk.Outcome.FALSE_HIT
    found = cache.explain(keys)
    assert _state(found, "kv", 1) == "damaged" and 'verify="all"' in _settings(found)


def test_given_up_and_lost_by_its_writer() -> None:
    cache = hk.HybridCache(_spec(), blocks=64)
    keys, others = _keys(2), _keys(2, first=900)
    cache.reserve(keys[:2]).abort()
    found = cache.explain(keys)
    assert _state(found, "kv", 0) == "aborted" and "publish()" in _settings(found)
    lost = cache.reserve(others[:2])
    with pytest.warns(ResourceWarning):
        del lost
        gc.collect()
    assert _state(cache.explain(others), "kv", 0) == "lost"


def test_forgotten_by_a_reset() -> None:
    cache = hk.HybridCache(_spec(), blocks=64)
    keys = _keys(2)
    cache.insert(keys[:2])
    cache.reset()
    assert _state(cache.explain(keys), "swa", 1) == "reset"


def test_what_is_back_is_here() -> None:
    cache = hk.HybridCache(_spec(), blocks=64)
    keys = _keys(2)
    cache.insert(keys[:2])
    cache.evict(keys)
    cache.insert(keys[:2])
    found = cache.explain(keys)
    assert {run.state for line in found.groups for run in line.runs if run.to_tokens <= 32} == {"here"}
    assert found.usable_tokens == 32


def test_being_written_by_another() -> None:
    cache = hk.HybridCache(_spec(), blocks=64)
    keys = _keys(2)
    fill = cache.reserve(keys[:2])
    found = cache.explain(keys)
    assert (found.remedy, _state(found, "kv", 0)) == ("WAIT", "filling") and "wait:" in _settings(found)
    fill.abort()


def test_resting_in_a_tier() -> None:
    with hk.MemoryTier(1 << 20) as tier:
        cache = hk.HybridCache(_spec(), blocks=64, tier=tier)
        for name in ("kv", "swa"):
            cache.bind(name, np.zeros((64, 64), np.uint8))
        keys = _keys(4)
        cache.insert(keys[:4])
        cache.offload(keys[:4]).result(30)
        assert cache.explain(keys).groups[0].runs[0].copies
        cache.evict(keys)
        found = cache.explain(keys)
        assert (found.restore_tokens, found.remedy, _state(found, "kv", 3)) == (64, "RESTORE", "in tier")
        assert "cache.restore(verdict.plan)" in _settings(found) and "after a restore from memory" in str(found)
        cache.close()


def test_bytes_of_another_format() -> None:
    formats = {name: hk.KvFormat(name, "bfloat16", row_bytes=64) for name in ("one", "other")}
    kv = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=1024, row_bytes=64, format=formats["one"])
    cache = hk.HybridCache(hk.CacheSpec(UNIT, [kv]), blocks=8)
    keys = _keys(2)
    cache.insert(keys[:2], formats={"kv": formats["other"]})
    found = cache.explain(keys)
    assert found.outcome == "FALSE_HIT" and found.boundaries[-1].check == "ABI"
    assert found.boundaries[-1].groups == () and "format=" in _settings(found)


def test_memory_that_its_kernel_cannot_read() -> None:
    kv = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, alignment=64)
    cache = hk.HybridCache(hk.CacheSpec(UNIT, [kv]), blocks=8)
    raw = np.zeros(8 * 64 + 128, np.uint8)
    begin = -raw.ctypes.data % 64 + 8
    cache.bind("kv", raw[begin : begin + 8 * 64].reshape(8, 64))
    keys = _keys(2)
    cache.insert(keys[:2])
    found = cache.explain(keys)
    assert found.boundaries[-1].check == "ALIGNED" and "bind('kv', ...)" in _settings(found)


def test_a_miss_and_what_can_never_hit() -> None:
    cache = hk.HybridCache(_spec(), blocks=64)
    found = cache.explain(_keys(0, rest=9))
    assert (found.outcome, found.boundaries) == ("MISS", ())
    assert found.static.findings[0].kind == "step" and found.static.findings[0].never
    assert "NEVER" in str(found)
    assert "identity" in _settings(cache.explain(_keys(3)))


def test_it_counts_nothing_pins_nothing_and_changes_no_order() -> None:
    cache, keys = _evicted()
    before = cache.metrics()
    pins = cache.inspect(keys)
    for _ in range(3):
        cache.explain(keys)
    assert cache.metrics() == before and cache.inspect(keys) == pins
    cache.reset()


def test_runs_cover_the_prompt_and_boundaries_agree_with_a_match() -> None:
    cache, keys = _evicted()
    found = cache.explain(keys)
    for line in found.groups:
        assert line.runs[0].from_tokens == 0
        for one, other in zip(line.runs, line.runs[1:], strict=False):
            assert one.to_tokens == other.from_tokens and one.first_block + one.blocks == other.first_block
    step = found.static.least_tokens
    usable = [t for run in found.boundaries if run.usable for t in range(run.from_tokens, run.to_tokens + 1, step)]
    verdict = cache.match(keys)
    assert usable == verdict.boundaries.tolist() and found.usable_tokens == verdict.usable_tokens
    assert verdict.lease is not None
    verdict.lease.release()


def test_text_and_json() -> None:
    cache, keys = _evicted()
    found = cache.explain(keys)
    text = str(found)
    assert text.isascii() and "\x1b" not in text
    timeline = next(line for line in text.splitlines() if line.startswith("kv "))
    assert timeline.split()[1].strip("#x") == "." * timeline.count(".") and len(timeline) <= COLUMNS + 9
    document = json.loads(json.dumps(found.to_json()))
    assert document["schema"] == 1 and document["usable_tokens"] == 32
    assert document["groups"][0]["runs"][1]["departure"]["made_room_for"] == "kv"
    assert document["static"]["sentence"].startswith("this configuration cannot hit below 16 tokens")
    assert module_entry(cache, keys, None).tokens == found.tokens


def test_a_name_of_others_does_nothing_to_a_terminal() -> None:
    group = hk.CacheGroup("kv\x1b[2J", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
    text = str(hk.HybridCache(hk.CacheSpec(UNIT, [group]), blocks=8).explain(_keys(2)))
    assert "\x1b" not in text and "\\x1b" in text


def test_every_cause_has_words() -> None:
    assert set(_WORDS) == set(CAUSES[1:])
    assert departure((0, 17, 0), ["kv"]) is None
    told = departure((4, 16, 1500), ["kv"])
    assert told == hk.Departure("history", "descriptors", 1.5) and str(told).endswith("for keys, 1.50 s ago")
    assert [age_text(s) for s in (0.01, 59, 3000, 90000)] == ["0.01 s", "59 s", "50 min", "25 h"]


def test_a_picture_shows_every_state(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from hybridkv.explain.picture import COLOURS, draw, save_picture

    assert set(COLOURS) == set(STATES)
    cache, keys = _evicted()
    found = cache.explain(keys)
    save_picture(found, tmp_path / "explain.svg")
    written = (tmp_path / "explain.svg").read_text()
    labels = [text.get_text() for text in draw(found).legends[0].get_texts()]
    assert "gone" in labels and "here" in labels and written.startswith("<?xml")


def test_refusals() -> None:
    cache = hk.HybridCache(_spec(), blocks=8)
    with pytest.raises(hk.ArgumentError):
        cache.explain(hk.block_keys(range(40), 8))
    with pytest.raises(hk.ArgumentError):
        cache.explain(_keys(3)[1:])
    cache.close()
    with pytest.raises(hk.Closed):
        cache.explain(_keys(3))
    with pytest.raises(hk.Closed):
        cache.events()
