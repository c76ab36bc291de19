# SPDX-License-Identifier: Apache-2.0
"""Replays, against a definition of their own: a row is right if everything that it is made from is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hybridkv as hk
from dependence import OVERLAP, Place, Replay, everywhere, group, specs
from hybridkv.replay_schedule import (
    BoundedReplay,
    ReplaySchedule,
    bounded_replay,
    exact_replay,
    rebuilt_spec,
    replay_distance,
)

CONFIGS = Path(__file__).resolve().parents[1] / "data" / "configs"


def starts_of(schedule: ReplaySchedule | BoundedReplay) -> dict[Place, int]:
    return {int(span.layer): span.start for span in schedule.spans}


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
