# SPDX-License-Identifier: Apache-2.0
"""What a look-up must find: the cases that every peer's tests agree on, and the golden cases.

One test per case id. A case names the own blocks of each group that are there; it holds for every order
of the groups.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
import oracle
from contract_support import (
    check_counters,
    check_verdict,
    give_back,
    group,
    held,
    keys_of,
    make_cache,
    put,
    tokens,
    usable,
)

CASES = json.loads((Path(__file__).parents[1] / "data" / "cases" / "hybrid-hit-cases.json").read_text())["cases"]


def shared_prompts(common: int, first: int, second: int, unit: int = 16) -> tuple[Any, Any]:
    """Keys of two prompts that share their first `common` tokens."""
    head = tokens(common)
    a = np.concatenate([head, tokens(first, start=10_000)])
    b = np.concatenate([head, tokens(second, start=20_000)])
    return hk.block_keys(a, unit), hk.block_keys(b, unit)


def orders(rules: Mapping[str, tuple[Any, int]]) -> Iterable[dict[str, tuple[Any, int]]]:
    """The same groups in every order."""
    for order in itertools.permutations(rules):
        yield {name: rules[name] for name in order}


def hit(
    unit: int,
    rules: Mapping[str, tuple[Any, int]],
    prompt: int,
    present: Mapping[str, Iterable[int]],
    **question: Any,
) -> tuple[int, dict[str, list[int]]]:
    """Usable tokens and the own blocks held, the same in every order of the groups."""
    present = {name: list(blocks) for name, blocks in present.items()}
    stored = max([prompt] + [(max(b, default=-1) + 1) * rules[n][1] for n, b in present.items()])
    answers = []
    for arranged in orders(rules):
        cache = make_cache(unit, arranged)
        put(cache, keys_of(stored, unit), present)
        v = cache.match(keys_of(prompt, unit), **question)
        n = usable(v)
        answers.append((n, {name: held(v.lease, name) if v.lease else [] for name in sorted(rules)}))
        if v.lease:
            v.lease.release()
        check_counters(cache)
    assert all(a == answers[0] for a in answers), "the order of the groups matters"
    return answers[0]


def three_groups(unit: int = 16) -> dict[str, tuple[Any, int]]:
    return {"full": (hk.Prefix(), unit), "swa1": (hk.Window(32), unit), "swa2": (hk.Window(32), unit)}


def after_eviction(evicted: Mapping[str, list[int]]) -> tuple[int, dict[str, list[int]]]:
    """The answer to the second of two prompts sharing 48 tokens, some blocks of the first evicted."""
    answers = []
    for arranged in orders(three_groups()):
        cache = make_cache(16, arranged)
        a, b = shared_prompts(48, 7, 5)
        cache.insert(a)
        if evicted:
            assert cache.evict(a, groups=evicted) == sum(map(len, evicted.values()))
        v = cache.match(b)
        n = usable(v)
        answers.append((n, {name: held(v.lease, name) if v.lease else [] for name in ("full", "swa1", "swa2")}))
        give_back(v)
    assert all(x == answers[0] for x in answers)
    return answers[0]


def test_L1_a_shared_prefix_hits_its_whole_blocks() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16)})
    a, b = shared_prompts(48, 7, 5)
    cache.insert(a)
    v = cache.match(b)
    assert usable(v) == 48
    assert v.matched_tokens == 48
    assert v.why is None
    assert held(v.lease, "full") == [0, 1, 2]
    fill = cache.reserve(b)
    ids = np.asarray(fill.page_ids("full")).tolist()
    assert ids[:3] == [-1, -1, -1]
    assert [i >= 0 for i in ids[3:]] == [True]
    assert ids[3] not in np.asarray(v.lease.page_ids("full")).tolist()
    fill.publish()
    v.lease.release()


def test_L2_the_last_token_is_never_a_hit() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16)})
    keys = keys_of(48)
    cache.insert(keys)
    v = cache.match(keys)
    assert usable(v) == 32
    assert v.matched_tokens == 32
    assert np.asarray(v.boundaries).tolist() == [16, 32]
    give_back(v)
    assert give_back(cache.match(keys, limit=49)) == 48


def test_L3_windows_hold_only_the_blocks_they_need() -> None:
    assert after_eviction({}) == (48, {"full": [0, 1, 2], "swa1": [1, 2], "swa2": [1, 2]})


def test_L4_a_block_outside_the_window_is_not_missed() -> None:
    assert after_eviction({"swa1": [0], "swa2": [0]})[0] == 48


def test_L5_without_the_first_full_block_nothing_hits() -> None:
    assert after_eviction({"full": [0]})[0] == 0


@pytest.mark.parametrize("name", ["full", "swa1", "swa2"])
def test_L6_the_last_block_of_any_group_shortens_the_hit(name: str) -> None:
    n, blocks = after_eviction({name: [2]})
    assert n == 32
    assert blocks == {"full": [0, 1], "swa1": [0, 1], "swa2": [0, 1]}


MIXES = [
    mix
    for size in (2, 3, 4)
    for mix in itertools.combinations_with_replacement(("full", "swa", "wide", "state"), size)
    if mix.count("full") <= 2
]


@pytest.mark.parametrize("mix", MIXES, ids="-".join)
def test_L8_any_mix_of_groups_in_any_order(mix: tuple[str, ...]) -> None:
    rules = {"full": hk.Prefix(), "swa": hk.Window(32), "wide": hk.Window(64), "state": hk.Checkpoint()}
    for order in set(itertools.permutations(mix)):
        cache = make_cache(16, {f"{name}{i}": (rules[name], 16) for i, name in enumerate(order)})
        a, b = shared_prompts(48, 7, 5)
        cache.insert(a)
        v = cache.match(b)
        assert usable(v) == 48
        needed = {"full": [0, 1, 2], "swa": [1, 2], "wide": [0, 1, 2], "state": [2]}
        for i, name in enumerate(order):
            assert held(v.lease, f"{name}{i}") == needed[name]
        v.lease.release()


L9 = {
    "1": 1,
    "10": 1,
    "11": 2,
    "110": 2,
    "111": 3,
    "1110": 3,
    "110100110111": 12,
    "11010011000": 8,
    "110100110001": 8,
    "0000": 0,
}


def presence(text: str) -> list[int]:
    return [i for i, c in enumerate(text) if c == "1"]


@pytest.mark.parametrize(("text", "blocks"), L9.items())
def test_L9_a_window_run_from_the_right(text: str, blocks: int) -> None:
    n, taken = hit(2, {"swa": (hk.Window(4), 2)}, 2 * len(text) + 1, {"swa": presence(text)})
    assert n == 2 * blocks
    assert taken["swa"] == list(range(max(0, blocks - 2), blocks))


@pytest.mark.parametrize("prompt", [113, 97])
def test_L10_groups_of_different_block_sizes(prompt: int) -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 32), "swa": (hk.Window(32), 16)})
    cache.insert(keys_of(112))
    v = cache.match(keys_of(prompt))
    assert usable(v) == 96
    assert np.asarray(v.lease.page_ids("full")).shape == (3,)
    assert np.asarray(v.lease.page_ids("swa")).shape == (6,)
    assert held(v.lease, "swa") == [4, 5]
    give_back(v)


def full_and(window: int) -> dict[str, tuple[Any, int]]:
    return {"full": (hk.Prefix(), 4), "swa": (hk.Window(window), 4)}


def test_L12_the_window_bounds_a_deeper_history() -> None:
    assert hit(4, full_and(10), 21, {"full": range(4), "swa": [0, 1, 2]})[0] == 12


def test_L13_a_window_run_cut_by_the_history_is_too_short() -> None:
    n, _ = hit(4, full_and(10), 21, {"full": range(4), "swa": [2, 3, 4]})
    assert n == 0
    cache = make_cache(4, full_and(10))
    put(cache, keys_of(21, 4), {"full": range(4), "swa": [2, 3, 4]})
    v = cache.match(keys_of(21, 4))
    check_verdict(v)
    assert v.outcome == hk.Outcome.FALSE_HIT
    assert (v.matched_tokens, v.usable_tokens) == (16, 0)
    assert (v.why.check, v.why.group, v.why.block) == (hk.Check.GROUPS, "swa", 1)
    assert v.why.kind == hk.StateKind.WINDOW
    assert v.why.code == "missing"
    assert dict(v.lost) == {hk.Check.GROUPS: 16}
    assert v.remedy == hk.Remedy.RECOMPUTE
    assert v.lease is None


def test_L14_a_shorter_history_keeps_the_run_below_it() -> None:
    n, taken = hit(4, full_and(10), 21, {"full": range(4), "swa": [1, 2, 3, 4]})
    assert (n, taken["swa"]) == (16, [1, 2, 3])


@pytest.mark.parametrize("companion", [False, True])
def test_L16_only_the_block_in_the_window_is_taken(companion: bool) -> None:
    rules: dict[str, tuple[Any, int]] = {"swa": (hk.Window(4), 4)}
    present: dict[str, Iterable[int]] = {"swa": [0, 2]}
    if companion:
        rules["full"], present["full"] = (hk.Prefix(), 4), range(3)
    n, taken = hit(4, rules, 13, present)
    assert (n, taken["swa"]) == (12, [2])


@pytest.mark.parametrize("companion", [False, True])
def test_L17_a_window_needs_a_contiguous_run(companion: bool) -> None:
    rules: dict[str, tuple[Any, int]] = {"swa": (hk.Window(10), 4)}
    present: dict[str, Iterable[int]] = {"swa": [0, 1, 3, 4]}
    if companion:
        rules["full"], present["full"] = (hk.Prefix(), 4), range(5)
    n, taken = hit(4, rules, 21, present)
    assert (n, taken["swa"]) == (8, [0, 1])


def test_L18_a_window_of_one_needs_no_block() -> None:
    n, taken = hit(4, {"full": (hk.Prefix(), 4), "swa": (hk.Window(1), 4)}, 13, {"full": range(3)})
    assert (n, taken["swa"]) == (12, [])
    cache = make_cache(4, {"swa": (hk.Window(1), 4)})
    put(cache, keys_of(13, 4), {"swa": [1]})
    v = cache.match(keys_of(13, 4))
    assert usable(v) == 8
    assert np.asarray(v.boundaries).tolist() == [4, 8]
    assert np.asarray(v.lease.page_ids("swa")).tolist() == [-1, -1]
    give_back(v)


@pytest.mark.parametrize("companion", [False, True])
def test_L19_one_snapshot_alone_carries_a_state(companion: bool) -> None:
    rules: dict[str, tuple[Any, int]] = {"state": (hk.Checkpoint(), 4)}
    present: dict[str, Iterable[int]] = {"state": [0, 1, 3]}
    if companion:
        rules["full"], present["full"] = (hk.Prefix(), 4), range(4)
    n, taken = hit(4, rules, 17, present)
    assert (n, taken["state"]) == (16, [3])


@pytest.mark.parametrize(("text", "blocks"), {"1": 1, "10": 2, "11": 2, "110": 2, "111": 3, "1110": 4}.items())
def test_L20_chunks_left_of_the_current_one_are_not_needed(text: str, blocks: int) -> None:
    rules = {"full": (hk.Prefix(), 2), "local": (hk.Chunk(4), 2)}
    n, taken = hit(2, rules, 2 * len(text) + 1, {"full": range(len(text)), "local": presence(text)})
    assert n == 2 * blocks
    assert taken["local"] == ([blocks - 1] if blocks % 2 else [])


def test_L22_every_group_alone_supports_the_joint_length() -> None:
    rng = random.Random(22)
    groups = [
        oracle.Group("full", "prefix", 0, 8),
        oracle.Group("swa", "window", 11, 4),
        oracle.Group("local", "chunk", 12, 4),
        oracle.Group("state", "checkpoint", 16, 8),
    ]
    rules = {"full": hk.Prefix(), "swa": hk.Window(11), "local": hk.Chunk(12), "state": hk.Checkpoint(16)}
    cache = make_cache(4, {g.name: (rules[g.name], g.block) for g in groups})
    keys = keys_of(97, 4)
    there: dict[str, dict[int, str]] = {g.name: {} for g in groups}
    lengths = set()
    for _ in range(200):
        for g in groups:
            chosen = [b for b in range(96 // g.block) if rng.random() < 0.5]
            if rng.random() < 0.6:
                put(cache, keys, {g.name: chosen})
                there[g.name].update(dict.fromkeys(chosen, oracle.READY))
            else:
                dropped = [b for b in chosen if rng.random() < 0.3]
                assert cache.evict(keys, groups={g.name: dropped}) == len(set(dropped) & set(there[g.name]))
                for b in dropped:
                    there[g.name].pop(b, None)
        v = cache.match(keys)
        n = give_back(v)
        lengths.add(n)
        case = oracle.Case(groups, there, {}, 97)
        assert all(n == 0 or case.resumes(g, n) for g in groups)
        assert n == case.answer().usable
    assert len(lengths) > 5


def test_L23_another_identity_is_a_miss() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16)})
    base = hk.Identity(model="m", weights="w", adapter="a", salt=b"s", extra=b"x")
    cache.insert(keys_of(48, identity=base))
    assert give_back(cache.match(keys_of(49, identity=base))) == 48
    others = [
        hk.Identity(model="m2", weights="w", adapter="a", salt=b"s", extra=b"x"),
        hk.Identity(model="m", weights="w2", adapter="a", salt=b"s", extra=b"x"),
        hk.Identity(model="m", weights="w", adapter="a2", salt=b"s", extra=b"x"),
        hk.Identity(model="m", weights="w", adapter="a", salt=b"s2", extra=b"x"),
        hk.Identity(model="m", weights="w", adapter="a", salt=b"s", extra=b"x2"),
        hk.Identity(),
    ]
    for other in others:
        v = cache.match(keys_of(49, identity=other))
        assert usable(v) == 0
        assert v.outcome == hk.Outcome.MISS
        assert v.remedy != hk.Remedy.WAIT
    image = keys_of(49, identity=base, media=[(20, 4, b"d" * 32)])
    assert give_back(cache.match(image)) == 16


def test_L23_parts_of_the_identity_are_framed() -> None:
    fields = ("model", "weights", "adapter")
    for first, second in itertools.combinations(fields, 2):
        one = hk.Identity(**{first: "ab", second: "c"})
        two = hk.Identity(**{first: "a", second: "bc"})
        assert keys_of(48, identity=one) != keys_of(48, identity=two)
    assert keys_of(48, identity=hk.Identity(salt=b"ab", extra=b"c")) != keys_of(
        48, identity=hk.Identity(salt=b"a", extra=b"bc")
    )


def test_L23_tokens_cannot_stand_in_for_a_parent() -> None:
    chain = keys_of(48)
    digest = np.asarray(chain.digests)[0]
    imitation = np.concatenate([digest.view(np.int32).view(np.uint32).astype(np.int64), np.asarray(tokens(48)[16:])])
    forged = hk.block_keys(imitation, 16)
    known = {bytes(d) for d in np.asarray(chain.digests)}
    assert not known & {bytes(d) for d in np.asarray(forged.digests)}


def test_L24_a_key_may_not_end_inside_a_compressed_state() -> None:
    with pytest.raises(hk.SpecError) as refused:
        hk.CacheSpec(2, [group("csa", hk.Prefix(), 2, tokens_per_row=4)])
    assert refused.value.field


def deepseek_v4_shape() -> dict[str, tuple[Any, int]]:
    return {
        "mla": (hk.Prefix(), 256),
        "swa0": (hk.Window(128), 64),
        "swa1": (hk.Window(128), 64),
        "c4": (hk.Window(8), 4),
        "c128": (hk.Window(128), 8),
    }


def test_L25_units_may_be_finer_than_hits() -> None:
    cache = make_cache(4, deepseek_v4_shape(), blocks=1024)
    keys = keys_of(769, 4)
    cache.insert(keys)
    v = cache.match(keys)
    assert usable(v) == 768
    assert np.asarray(v.boundaries).tolist() == [256, 512, 768]
    assert held(v.lease, "mla") == [0, 1, 2]
    assert held(v.lease, "swa0") == [10, 11]
    assert held(v.lease, "c4") == [190, 191]
    assert held(v.lease, "c128") == list(range(80, 96))
    give_back(v)
    drafted = cache.match(keys, drop_tokens=64)
    assert give_back(drafted) == 512
    spec = hk.CacheSpec(4, [group(n, rule, block) for n, (rule, block) in deepseek_v4_shape().items()])
    assert spec.boundary_tokens == 256
    assert spec.boundary_group == "mla"


def test_L27_a_draft_head_drops_once_and_is_checked_again() -> None:
    cache = make_cache(16, {"full": (hk.Prefix(), 16)})
    cache.insert(keys_of(48))
    v = cache.match(keys_of(48), drop_tokens=16)
    assert usable(v) == 16
    assert np.asarray(v.boundaries).tolist() == [16, 32]
    assert (v.why.check, v.why.code) == (hk.Check.GROUPS, "drop")
    give_back(v)
    cache = make_cache(16, {"swa": (hk.Window(16), 16)})
    put(cache, keys_of(37), {"swa": [1]})
    assert give_back(cache.match(keys_of(37))) == 32
    v = cache.match(keys_of(37), drop_tokens=16)
    assert usable(v) == 0
    assert v.outcome == hk.Outcome.FALSE_HIT
    assert (v.why.check, v.why.code) == (hk.Check.GROUPS, "drop")


@pytest.mark.parametrize("number", range(len(CASES)))
def test_golden_case(number: int) -> None:
    case = CASES[number]
    rule = {"full": lambda g: hk.Prefix(), "swa": lambda g: hk.Window(g["window"])}
    names = [f"g{i}" for i in range(len(case["groups"]))]
    rules = {n: (rule[g["kind"]](g), g["block"]) for n, g in zip(names, case["groups"], strict=True)}
    unit = math.gcd(*(g["block"] for g in case["groups"]))
    present = dict(zip(names, case["present"], strict=True))
    n, taken = hit(unit, rules, case["prompt_tokens"], present)
    assert n == case["hit_tokens"]
    assert [taken[name] for name in names] == case["blocks_needed"]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_golden_case_and_oracle_agree(number: int) -> None:
    case = CASES[number]
    groups = [
        oracle.Group(f"g{i}", "prefix" if g["kind"] == "full" else "window", g.get("window", 0), g["block"])
        for i, g in enumerate(case["groups"])
    ]
    pages = {f"g{i}": dict.fromkeys(blocks, oracle.READY) for i, blocks in enumerate(case["present"])}
    answer = oracle.Case(groups, pages, {}, case["prompt_tokens"]).answer()
    assert answer.usable == case["hit_tokens"]
    assert list(answer.held.values()) == case["blocks_needed"]


def test_the_golden_cases_are_all_there() -> None:
    assert len(CASES) == 40
    assert sum(1 for c in CASES if c["hit_tokens"] == 0) >= 5
    assert max(len(c["groups"]) for c in CASES) == 5
