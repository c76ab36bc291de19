# SPDX-License-Identifier: Apache-2.0
"""What a match says to replay is enough whatever is missing: by a definition that runs layers token by token."""

from __future__ import annotations

import dataclasses
import math
import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridkv as hk
from contract_support import keys_of
from dependence import Place, Replay, everywhere, group, needed, specs
from hybridkv.coverage import Coverage
from hybridkv.replay_reach import most_replayed
from hybridkv.replay_schedule import rebuilt_spec


@settings(max_examples=150, deadline=None)
@given(specs(), st.data())
def test_what_a_match_says_to_replay_is_enough_for_all_that_is_missing(spec: hk.CacheSpec, data: st.DataObject) -> None:
    some = data.draw(st.booleans())
    spec = rebuildable(spec, {g.name for g in spec.groups if not some or data.draw(st.booleans())})
    whole_replays(spec, data.draw(st.integers(1, 30)) * spec.unit_tokens)


def rebuildable(spec: hk.CacheSpec, names: set[str], tokens: dict[str, int] | None = None) -> hk.CacheSpec:
    """The spec with those of the states rebuildable, some with a declaration."""
    return hk.CacheSpec(
        spec.unit_tokens,
        [
            dataclasses.replace(g, rebuildable=True, replay_tokens=(tokens or {}).get(g.name))
            if g.name in names and not isinstance(g.coverage, hk.Prefix)
            else g
            for g in spec.groups
        ],
    )


def whole_replays(spec: hk.CacheSpec, tokens: int, places: dict[str, list[Place]] | None = None) -> int:
    """Match with each set of states missing; what the match says to replay must be enough. Returns: replays."""
    states = [g.name for g in spec.groups if not isinstance(g.coverage, hk.Prefix)]
    names = [name for name in states if spec[name].rebuildable]
    order = (
        everywhere(spec, 0) if places is None else dict.fromkeys(sorted({p for ps in places.values() for p in ps}), 0)
    )
    replays = 0
    for number in range(1, len(names) + 1):
        for missing in combinations(names, number):
            pages = dict.fromkeys((g.name for g in spec.groups), 128)
            cache = hk.HybridCache(spec, blocks=256, pages=pages)
            keys = keys_of(tokens, spec.unit_tokens)
            cache.insert(keys, {g.name: True for g in spec.groups if g.name not in missing})
            verdict = cache.match(keys, limit=tokens + 1)
            if verdict.lease is None:
                continue
            t, plan = verdict.usable_tokens, verdict.plan
            assert set(plan.replay) <= set(missing)
            if plan.replay:
                stored = {g: needed(spec[g], t) for g in states if g not in plan.replay}
                starts = dict.fromkeys(order, plan.resume_tokens)
                assert Replay(spec, t, starts, stored, places).whole(), plan
                assert 0 < plan.resume_tokens < t
                assert set(plan.replay.values()) == {(plan.resume_tokens, t)}
                replays += 1
            verdict.lease.cancel()
    return replays


@settings(max_examples=60, deadline=None)
@given(specs())
def test_each_group_is_replayed_for_what_itself_needs_and_no_more(spec: hk.CacheSpec) -> None:
    rebuilt = rebuilt_spec(spec)
    steps = [g.rows_per_page or 1 for g in spec.groups] + [g.coverage.tokens for g in chunks(spec)]
    lengths = range(100, 100 + min(math.lcm(*steps), 60))
    for g in rebuilt.groups[1:]:
        tokens = most_replayed(g)
        if not tokens:
            assert all(not needed(g, t) for t in lengths)
            continue
        assert all(Replay(spec, t, everywhere(spec, t - tokens)).whole_group(g) for t in lengths)
        if not chunks(spec):
            assert not all(Replay(spec, t, everywhere(spec, t - tokens + 1)).whole_group(g) for t in lengths)


def chunks(spec: hk.CacheSpec) -> list[hk.CacheGroup]:
    return [g for g in spec.groups if isinstance(g.coverage, hk.Chunk)]


@settings(max_examples=150, deadline=None)
@given(specs(), st.data())
def test_a_declaration_is_kept_or_refused(spec: hk.CacheSpec, data: st.DataObject) -> None:
    rebuilt = rebuilt_spec(spec)
    needs = {g.name: most_replayed(g) for g in rebuilt.groups[1:]}
    name = data.draw(st.sampled_from(sorted(needs)))
    declared = max(1, needs[name] + data.draw(st.integers(-3, 20)))
    if declared < needs[name]:
        with pytest.raises(hk.SpecError) as caught:
            rebuildable(spec, set(needs), {name: declared})
        assert caught.value.field == f"groups[{name!r}].replay_tokens" and caught.value.got == declared
        assert f"at least {needs[name]}" in caught.value.expected
        return
    taken = rebuildable(spec, set(needs), {name: declared})
    assert taken[name].replay_tokens == declared
    assert all(taken[g.name] == g for g in rebuilt.groups if g.name != name)
    whole_replays(taken, 24 * spec.unit_tokens)


@pytest.mark.parametrize(
    ("states", "filled"),
    [
        ([("swa", hk.Window(4), [0, 2, 5])], {"swa": None}),  # alone: 9, as its coverage says
        ([("low", hk.Window(3), [0]), ("high", hk.Window(4), [1])], {"low": None, "high": 5}),
        ([("a", hk.Window(3), [0, 2]), ("b", hk.Window(4), [1, 3])], {"a": 7, "b": 10}),
        ([("swa", hk.Window(4), [0, 1]), ("open", hk.Checkpoint(every=4), [1])], {"swa": None, "open": 6}),
        ([("swa", hk.Window(4), [1]), ("open", hk.Checkpoint(every=4), [0])], {"swa": None, "open": None}),
        ([("swa", hk.Window(4), [0]), ("chunk", hk.Chunk(8), [1])], {"swa": None, "chunk": 10}),
        ([("chunk", hk.Chunk(8), [0, 1, 2])], {"chunk": None}),
        (  # a window and a chunk in one layer: what is read there begins anywhere in a chunk
            [("swa", hk.Window(20), [1]), ("chunk", hk.Chunk(8), [0, 1]), ("high", hk.Window(2), [2])],
            {"swa": 26, "chunk": None, "high": 27},
        ),
        ([("swa", hk.Window(1), [0]), ("open", hk.Checkpoint(every=4), [1])], {"swa": None, "open": None}),
    ],
)
def test_what_is_filled_in_is_what_lies_below(
    states: list[tuple[str, Coverage, list[int]]], filled: dict[str, int | None]
) -> None:
    spec = hk.CacheSpec(1, [group("kv", hk.Prefix(), list(range(6))), *(group(*state) for state in states)])
    rebuilt = rebuilt_spec(spec)
    assert {g.name: g.replay_tokens for g in rebuilt.groups[1:]} == filled
    assert rebuilt_spec(rebuilt) == rebuilt and hk.CacheSpec(1, rebuilt.groups) == rebuilt
    assert whole_replays(rebuilt, 31)
    for name, tokens in filled.items():
        if tokens is None:
            continue
        short = [Replay(spec, t, everywhere(spec, t - tokens + 1)) for t in range(31, 47)]
        assert not all(replay.whole_group(spec[name]) for replay in short)
        with pytest.raises(hk.SpecError, match=f"replay_tokens: expected at least {tokens}, .* got {tokens - 1}"):
            rebuildable(spec, {name}, {name: tokens - 1})


def test_a_window_that_is_stored_pushes_back_as_well() -> None:
    """What is stored of it at the length are not the rows before, which the queries of the replay read."""
    low, high = group("low", hk.Window(3), [0]), group("high", hk.Window(4), [1], rebuildable=True)
    spec = hk.CacheSpec(1, [group("kv", hk.Prefix(), [0, 1]), low, high])
    assert spec["high"].replay_tokens == 5
    assert whole_replays(spec, 31) == 1
    stored = {"low": needed(low, 31)}
    assert not Replay(spec, 31, everywhere(spec, 31 - 4), stored).whole()


def test_pages_and_starts_are_those_of_the_earliest() -> None:
    """Of several groups that are missing all have pages from where layers run, and every way of asking says so."""
    low, high = (group(n, hk.Window(w), [i], rebuildable=True) for i, (n, w) in enumerate([("low", 9), ("high", 17)]))
    spec = hk.CacheSpec(8, [group("kv", hk.Prefix(), [0, 1]), low, high])
    cache = hk.HybridCache(spec, blocks=64)
    keys = keys_of(80, 8)
    cache.insert(keys[:2])
    first = cache.match(keys)
    cache.insert(keys, {"kv": True})
    assert first.lease is not None and first.lease.extend(keys) == 16, "a replay needs a plan"
    first.lease.cancel()
    verdict = cache.match(keys, limit=81)
    again = cache.match_at(keys_of(96, 8), 80, of=verdict)
    assert again.lease is not None and again.usable_tokens == 80
    assert again.plan.resume_tokens == 56 and dict(again.plan.replay) == {"low": (56, 80), "high": (56, 80)}
    ticket = cache.admit("a", 96, lease=again.lease)
    for name in ("low", "high"):
        assert [page >= 0 for page in ticket.page_ids(name).tolist()] == [False] * 7 + [True] * 3, name
    ticket.close()
    cache.insert(keys, {"low": [9], "high": [8, 9]})
    alone = cache.match(keys, limit=81)
    assert alone.lease is not None and not alone.plan.replay and alone.plan.resume_tokens == 80
    alone.lease.cancel()


def test_a_group_alone_starts_where_its_coverage_says() -> None:
    low, high = (group(n, hk.Window(w), [i], rebuildable=True) for i, (n, w) in enumerate([("low", 9), ("high", 17)]))
    spec = hk.CacheSpec(8, [group("kv", hk.Prefix(), [0, 1]), low, high])
    cache = hk.HybridCache(spec, blocks=64)
    keys = keys_of(80, 8)
    cache.insert(keys, {"kv": True, "high": True})
    verdict = cache.match(keys, limit=81)
    assert verdict.lease is not None and dict(verdict.plan.replay) == {"low": (72, 80)}
    verdict.lease.cancel()


# -- layers of which nobody knows the order, and states that no replay makes --------------------------


@settings(max_examples=150, deadline=None)
@given(specs(), st.randoms(use_true_random=False), st.data())
def test_layers_of_unknown_order_are_safe_in_every_order(
    spec: hk.CacheSpec, dice: random.Random, data: st.DataObject
) -> None:
    names = data.draw(st.sets(st.sampled_from([g.name for g in spec.groups[1:]]), min_size=1))
    groups = [
        dataclasses.replace(g, layers=[f"{g.name}{i}" for i in g.layers]) if g.name in names else g for g in spec.groups
    ]
    spec = rebuildable(hk.CacheSpec(spec.unit_tokens, groups), {g.name for g in groups})
    for _ in range(3):
        places: dict[str, list[Place]] = {"kv": [*spec["kv"].layers]}
        for g in spec.groups[1:]:
            free = [n / 2 for n in range(2 * len(spec["kv"].layers) + 4)]
            chosen = sorted(dice.sample(free, len(g.layers)))
            places[g.name] = chosen if g.name in names else [*g.layers]  # type: ignore[assignment]
        whole_replays(spec, 24 * spec.unit_tokens, places)


def test_a_state_of_the_whole_prefix_below_is_refused() -> None:
    kv, swa = group("kv", hk.Prefix(), [0, 1, 2]), group("swa", hk.Window(4), [1], rebuildable=True)
    below, above = (group("state", hk.Checkpoint(), layers) for layers in ([0, 2], [1, 2]))
    assert hk.CacheSpec(4, [kv, swa, above])["swa"].replay_tokens is None
    with pytest.raises(hk.SpecError) as caught:
        hk.CacheSpec(4, [kv, swa, below])
    assert caught.value.field == "groups['swa'].rebuildable" and "'state'" in caught.value.expected
    for tokens in (3, 60):
        assert not Replay(hk.CacheSpec(4, [kv, group("swa", hk.Window(4), [1]), below]), 64, {0: 1, 1: 1, 2: 1}).whole()
        with pytest.raises(hk.SpecError, match="rebuildable"):
            hk.CacheSpec(4, [kv, dataclasses.replace(swa, replay_tokens=tokens), below])
    hk.CacheSpec(4, [kv, dataclasses.replace(swa, rebuildable=False), below])


def test_a_state_of_the_whole_prefix_that_may_lie_below_is_refused() -> None:
    kv, state = group("kv", hk.Prefix(), []), group("state", hk.Checkpoint(), [])
    for layers, named in (([], "swa"), ([0, 1], "state"), ([1], "state")):
        with pytest.raises(hk.SpecError) as caught:
            hk.CacheSpec(4, [kv, group("swa", hk.Window(4), layers, rebuildable=True), state])
        assert caught.value.field == f"groups['{named}'].layers"
    lowest = hk.CacheSpec(4, [kv, group("swa", hk.Window(4), [0], rebuildable=True), state])
    assert lowest["swa"].replay_tokens is None
    both = dataclasses.replace(state, rebuildable=True)  # is never replayed, and may lie below
    with pytest.raises(hk.SpecError, match="layer numbers"):
        hk.CacheSpec(4, [kv, group("swa", hk.Window(4), [], rebuildable=True), both])
    assert hk.CacheSpec(4, [kv, both])["state"].replay_tokens is None


def test_a_tail_of_unknown_make_declares_at_least_what_its_newest_token_takes() -> None:
    kv, swa = group("kv", hk.Prefix(), [0, 1, 2]), group("swa", hk.Window(4), [0, 1], rebuildable=True)

    def beside(layers: list[int], tokens: int) -> hk.CacheSpec:
        tail = group("tail", hk.Checkpoint(), layers, rebuildable=True, replay_tokens=tokens)
        return hk.CacheSpec(1, [kv, swa, tail])

    for layers, least in (([0], 1), ([1], 4), ([2], 7), ([], 7)):
        assert beside(layers, least)["tail"].replay_tokens == least
        if least > 1:
            with pytest.raises(hk.SpecError, match=f"at least {least}, "):
                beside(layers, least - 1)
        if layers:
            assert whole_replays(beside(layers, least), 31) == 3


def test_thousands_of_layers_take_no_time() -> None:
    """One pass over the layers of each rebuildable group, whatever their number."""
    count = 10_000
    windows = [
        group(f"w{i}", hk.Window(3 + i), list(range(i, count, 8)), rebuildable=True, block_tokens=1) for i in range(8)
    ]
    spec = hk.CacheSpec(1, [group("kv", hk.Prefix(), []), *windows])
    assert spec["w7"].replay_tokens == sum(2 + i for i in range(8)) * (count // 8)
