# SPDX-License-Identifier: Apache-2.0
"""Replays, against a definition of their own: a row is right if everything that it is made from is right.

`Replay` runs layers over tokens and keeps a flag for each row and each output. Nothing is known of windows and tails
but what it is told is stored; history below the length is stored and right.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hybridkv as hk
from contract_support import keys_of
from hybridkv.coverage import Coverage
from hybridkv.replay_schedule import (
    BoundedReplay,
    ReplaySchedule,
    bounded_replay,
    check_declared,
    exact_replay,
    rebuilt_spec,
    replay_distance,
)

CONFIGS = Path(__file__).resolve().parents[1] / "data" / "configs"
OVERLAP = hk.KvFormat("compressor_rows", "float32", overlap=True)


def needed(group: hk.CacheGroup, t: int) -> range:
    """Tokens whose rows of one layer a resume at t needs."""
    rule = group.coverage
    if isinstance(rule, hk.Window):
        return range(max(0, t - rule.tokens + 1), t)
    if isinstance(rule, hk.Chunk):
        return range(t - t % rule.tokens, t)
    assert isinstance(rule, hk.Checkpoint)
    if rule.every is not None:
        return range(t - t % rule.every, t)
    rows = group.rows_per_page or 1
    closed = t - t % rows
    return range(max(0, closed - rows), closed)


def seen(group: hk.CacheGroup, query: int) -> range:
    """Tokens whose rows of one layer the query at a token reads, its own included; of tails none: history has them."""
    rule = group.coverage
    if isinstance(rule, hk.Window):
        return range(max(0, query - rule.tokens + 1), query + 1)
    return range(query - query % rule.tokens, query + 1) if isinstance(rule, hk.Chunk) else range(0)


class Replay:
    """What running layers over tokens makes right; `starts` by layer, from the lowest."""

    def __init__(
        self, spec: hk.CacheSpec, t: int, starts: Mapping[int, int], stored: Mapping[str, range] | None = None
    ) -> None:
        self.spec, self.t, self.stored = spec, t, stored or {}
        self.made: dict[int, set[int]] = {}  # tokens whose rows a layer made right
        put_out = set(range(t))  # of the layer below; of the lowest: embeddings
        for layer, start in starts.items():
            ran = set(range(max(start, 0), t))
            self.made[layer] = ran & put_out
            reads = [g for g in spec.groups if layer in g.layers and not isinstance(g.coverage, hk.Prefix)]
            put_out = {j for j in self.made[layer] if all(self.right(g, layer, seen(g, j)) for g in reads)}

    def right(self, group: hk.CacheGroup, layer: int, tokens: range) -> bool:
        return all(j in self.made[layer] or j in self.stored.get(group.name, ()) for j in tokens)

    def whole(self) -> bool:
        states = [g for g in self.spec.groups if not isinstance(g.coverage, hk.Prefix)]
        return all(self.right(g, layer, needed(g, self.t)) for g in states for layer in g.layers)

    def right_entries(self, layer: int, ratio: int, *, overlap: bool) -> set[int]:
        """Entries below t that a layer's compressor would write right."""
        windows = range(self.t // ratio)
        first = {i: (i - overlap) * ratio for i in windows}
        return {i for i in windows if set(range(max(first[i], 0), (i + 1) * ratio)) <= self.made[layer]}


def group(name: str, coverage: Coverage, layers: list[int], **more: object) -> hk.CacheGroup:
    kinds = {hk.Prefix: hk.StateKind.COMPRESSED, hk.Checkpoint: hk.StateKind.TAIL}
    kind = kinds.get(type(coverage), hk.StateKind.WINDOW)
    return hk.CacheGroup(name, kind, coverage, page_bytes=64, layers=layers, **more)  # type: ignore[arg-type]


@st.composite
def specs(draw: st.DrawFn) -> hk.CacheSpec:
    """Models of up to five layers with history in all and windows, chunks and tails in some."""
    count = draw(st.integers(1, 5))
    chosen = st.lists(st.integers(0, count - 1), min_size=1, unique=True).map(sorted)
    groups = [group("kv", hk.Prefix(), list(range(count)))]
    rest = list(range(count))
    for name, rule in (("a", hk.Window), ("b", hk.Window), ("c", hk.Chunk)):
        mine = [layer for layer in draw(chosen) if layer in rest] if draw(st.booleans()) else []
        if mine:
            groups.append(group(name, rule(draw(st.integers(1, 6))), mine))
            rest = [layer for layer in rest if layer not in mine]
    if draw(st.booleans()):
        every = draw(st.integers(1, 5))
        groups.append(group("open", hk.Checkpoint(every=every), draw(chosen), rows_per_page=every))
    if draw(st.booleans()):
        rows = draw(st.integers(1, 3))
        groups.append(group("overlap", hk.Checkpoint(), draw(chosen), rows_per_page=rows, format=OVERLAP))
    assume(len(groups) > 1)
    return hk.CacheSpec(draw(st.integers(1, 4)), groups)


def starts_of(schedule: ReplaySchedule | BoundedReplay) -> dict[int, int]:
    return {int(span.layer): span.start for span in schedule.spans}


def everywhere(spec: hk.CacheSpec, start: int) -> dict[int, int]:
    return dict.fromkeys(spec["kv"].layers, start)  # type: ignore[arg-type]


@settings(max_examples=300, deadline=None)
@given(specs(), st.integers(1, 70))
def test_the_triangular_schedule_is_enough_and_nothing_less_is(spec: hk.CacheSpec, t: int) -> None:
    schedule = exact_replay(spec, t, triangular=True)
    if schedule is None:
        assert not Replay(spec, t, everywhere(spec, 1)).whole()
        return
    starts = starts_of(schedule)
    assert list(starts) == list(spec["kv"].layers) and all(span.stop == t for span in schedule.spans)
    assert Replay(spec, t, starts).whole()
    for layer, start in starts.items():
        if start < t:
            assert not Replay(spec, t, {**starts, layer: start + 1}).whole()
    assert schedule.layer_tokens == sum(t - start for start in starts.values())


@settings(max_examples=300, deadline=None)
@given(specs(), st.integers(1, 70))
def test_running_all_layers_starts_at_the_last_boundary_that_is_enough(spec: hk.CacheSpec, t: int) -> None:
    step = spec.boundary_tokens
    schedule = exact_replay(spec, t, triangular=False)
    enough = [s for s in range(step, t + 1, step) if Replay(spec, t, everywhere(spec, s)).whole()]
    if Replay(spec, t, everywhere(spec, t)).whole():  # nothing is needed at t
        assert schedule is not None and schedule.resume_tokens == t and schedule.layer_tokens == 0
    elif not enough:
        assert schedule is None
    else:
        assert schedule is not None and set(starts_of(schedule).values()) == {max(enough)}
        assert schedule.resume_tokens == max(enough)


@settings(max_examples=120, deadline=None)
@given(specs())
def test_the_distance_is_enough_at_every_length_and_reached(spec: hk.CacheSpec) -> None:
    distance = replay_distance(spec)
    found = 0
    for t in range(1, 100):
        schedule = exact_replay(spec, t, triangular=True)
        if schedule is not None:
            found = max(found, t - schedule.resume_tokens)
    assert found <= distance
    if not any(isinstance(g.coverage, hk.Chunk) for g in spec.groups):
        assert found == distance


def test_a_tail_above_a_chunk_pushes_back_into_the_chunk_before() -> None:
    kv, chunk = group("kv", hk.Prefix(), [0, 1]), group("c", hk.Chunk(8), [0, 1])
    alone = hk.CacheSpec(1, [kv, chunk])
    beside = hk.CacheSpec(1, [kv, chunk, group("overlap", hk.Checkpoint(), [1], rows_per_page=1, format=OVERLAP)])
    assert replay_distance(alone) == 7
    schedule = exact_replay(beside, 64, triangular=True)  # the overlap is of token 63, in the chunk from 56 on
    assert schedule is not None and schedule.resume_tokens == 56 == 64 - 8 and replay_distance(beside) >= 8


@settings(max_examples=150, deadline=None)
@given(specs(), st.data())
def test_a_match_over_the_rebuilt_spec_replays_enough(spec: hk.CacheSpec, data: st.DataObject) -> None:
    rebuilt = rebuilt_spec(spec)
    check_declared(rebuilt)
    units = data.draw(st.integers(1, 30))
    whole_replays(rebuilt, units * spec.unit_tokens)


def whole_replays(spec: hk.CacheSpec, tokens: int) -> int:
    """Match with each set of states missing; what the match says to replay must be enough. Returns: replays."""
    states = [g.name for g in spec.groups if g.rebuildable]
    replays = 0
    for number in range(1, len(states) + 1):
        for missing in combinations(states, number):
            cache = hk.HybridCache(spec, blocks=256, pages=dict.fromkeys((g.name for g in spec.groups), 128))
            keys = keys_of(tokens, spec.unit_tokens)
            cache.insert(keys, {g.name: True for g in spec.groups if g.name not in missing})
            verdict = cache.match(keys, limit=tokens + 1)
            if verdict.lease is None:
                continue
            t, plan = verdict.usable_tokens, verdict.plan
            verdict.lease.cancel()
            assert set(plan.replay) <= set(missing)
            if plan.replay:
                stored = {g: needed(spec[g], t) for g in states if g not in plan.replay}
                assert Replay(spec, t, everywhere(spec, plan.resume_tokens), stored).whole(), plan
                replays += 1
    return replays


@settings(max_examples=150, deadline=None)
@given(specs(), st.data())
def test_a_declaration_that_is_taken_is_enough_for_every_match(spec: hk.CacheSpec, data: st.DataObject) -> None:
    declared = st.none() | st.integers(1, 40)
    groups = [
        g
        if isinstance(g.coverage, hk.Prefix)
        else hk.CacheGroup(
            g.name,
            g.kind,
            g.coverage,
            page_bytes=64,
            layers=g.layers,
            rows_per_page=g.rows_per_page,
            format=g.format,
            rebuildable=True,
            replay_tokens=data.draw(declared),
        )
        for g in spec.groups
    ]
    spec = hk.CacheSpec(spec.unit_tokens, groups)
    try:
        check_declared(spec)
    except hk.SpecError as error:
        assert error.field.endswith(".replay_tokens")
        return
    whole_replays(spec, 24 * spec.unit_tokens)


@pytest.mark.parametrize(
    "states",
    [
        [("low", hk.Window(3), [0]), ("high", hk.Window(4), [1])],
        [("swa", hk.Window(4), [0, 1]), ("open", hk.Checkpoint(every=4), [1])],
    ],
)
def test_the_default_of_a_match_is_refused_where_it_would_be_too_short(
    states: list[tuple[str, hk.Window | hk.Checkpoint, list[int]]],
) -> None:
    groups = [group(n, rule, layers, rebuildable=True) for n, rule, layers in states]
    spec = hk.CacheSpec(1, [group("kv", hk.Prefix(), [0, 1]), *groups])
    with pytest.raises(hk.SpecError, match="replay_tokens: expected at least"):
        check_declared(spec)
    with pytest.raises(AssertionError):  # and it is: what a match says by itself leaves rows wrong
        whole_replays(spec, 31)
    assert whole_replays(rebuilt_spec(spec), 31)


@settings(max_examples=200, deadline=None)
@given(specs(), st.integers(1, 70), st.integers(0, 8))
def test_a_bounded_replay_is_marked_and_no_exact_one(spec: hk.CacheSpec, t: int, more: int) -> None:
    assume(not any(isinstance(g.coverage, hk.Chunk) for g in spec.groups))
    default = bounded_replay(spec, 10_000)
    assert default is not None and not isinstance(default, ReplaySchedule)
    least = 10_000 - default.resume_tokens
    bounded = bounded_replay(spec, t, least + more)
    if bounded is None:
        assert t <= least + more
        return
    assert not bounded.exact and set(starts_of(bounded).values()) == {t - least - more}
    enough = Replay(spec, t, starts_of(bounded)).whole()
    assert enough == (t - least - more <= min([t, *starts_of_exact(spec, t)]))


def starts_of_exact(spec: hk.CacheSpec, t: int) -> list[int]:
    schedule = exact_replay(spec, t, triangular=True)
    return [0] if schedule is None else [span.start for span in schedule.spans]


def test_two_layers_already_make_a_bounded_replay_wrong() -> None:
    spec = hk.CacheSpec(1, [group("kv", hk.Prefix(), [0, 1]), group("swa", hk.Window(8), [0, 1])])
    bounded = bounded_replay(spec, 64)
    assert bounded is not None and bounded.resume_tokens == 56
    assert not Replay(spec, 64, starts_of(bounded)).whole()
    with pytest.raises(hk.SpecError, match="at least 8"):
        bounded_replay(spec, 64, 7)


def flash(**more: object) -> hk.CacheSpec:
    return hk.CacheSpec.from_config(CONFIGS / "deepseek-v4-flash.json", unit_tokens=128, **more)  # type: ignore[arg-type]


def test_entries_that_a_replay_makes_first_are_wrong_so_it_may_not_write_them() -> None:
    spec, t = flash(), 6400
    layer = int(spec["csa"].layers[0])
    for triangular in (False, True):
        schedule = exact_replay(spec, t, triangular=triangular)
        assert schedule is not None
        below = {n: start for n, start in starts_of(schedule).items() if n <= layer}
        closed = set(range(-(-below[layer] // 4), t // 4))  # entries whose own window is run
        made = Replay(spec, t, below).right_entries(layer, 4, overlap=True)
        assert made < closed and min(closed) not in made, "the first entry lacks the window before it"
        assert schedule.groups == ("swa", "overlap", "pending", "hca_tail")
        assert not any(isinstance(spec[name].coverage, hk.Prefix) for name in schedule.groups)


def test_window_rows_alone_do_not_bring_the_overlap_back() -> None:
    """A checkpoint of window rows at b: running the last 4 tokens again reads rows from b - 131 on."""
    spec = flash()
    b = 1024
    starts = dict.fromkeys(range(43), b - 4)
    for rows, enough in ((127, False), (128, False), (130, False), (131, True)):
        stored = {"swa": range(b - rows, b)}
        assert Replay(spec, b, starts, stored).whole() == enough, rows
    kept = {"swa": range(b - 127, b), "overlap": range(b - 4, b)}
    assert Replay(spec, b, dict.fromkeys(range(43), b), kept).whole()


def test_what_no_replay_can_make_is_refused() -> None:
    kv, swa = group("kv", hk.Prefix(), [0, 1]), group("swa", hk.Window(4), [0])
    recurrent = hk.CacheSpec(4, [kv, swa, group("state", hk.Checkpoint(), [1])])
    with pytest.raises(hk.SpecError, match="kept checkpoints"):
        exact_replay(recurrent, 64, triangular=True)
    with pytest.raises(hk.SpecError, match="kept checkpoints"):
        rebuilt_spec(recurrent)
    names = hk.CacheSpec(4, [kv, swa, hk.CacheGroup("w", hk.StateKind.WINDOW, hk.Window(4), page_bytes=64)])
    with pytest.raises(hk.SpecError, match="layer numbers"):
        exact_replay(names, 64, triangular=False)
    with pytest.raises(hk.SpecError, match="within a bound"):
        bounded_replay(hk.CacheSpec(4, [kv, group("c", hk.Chunk(8), [0])]), 64)


def test_layers_that_have_names_lie_in_the_order_given() -> None:
    kv = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
    swa = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(5), page_bytes=64, layers=("x", "y", "z"))
    schedule = exact_replay(hk.CacheSpec(4, [kv, swa]), 64, triangular=True)
    assert schedule is not None
    assert [(s.layer, s.start) for s in schedule.spans] == [("x", 52), ("y", 56), ("z", 60)]
    only = exact_replay(hk.CacheSpec(4, [kv]), 64, triangular=False)
    assert only is not None and (only.resume_tokens, only.layer_tokens, only.groups) == (64, 0, ())
