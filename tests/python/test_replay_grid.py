# SPDX-License-Identifier: Apache-2.0
"""Replays of many policies and sizes: causes by hand, numbered units against hashed tokens, partial results."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.errors import ArgumentError, TierError
from hybridkv.replay import grid_report
from hybridkv.replay import units as units_module
from hybridkv.replay.answers import next_turns
from hybridkv.replay.grid import EVICTIONS, Grid, TraceRuns, replay_grid
from hybridkv.replay.places import Place, thin
from hybridkv.replay.pools import Demand, Windows, size_pools
from hybridkv.replay.replay import Lane
from hybridkv.replay.shapes import Shape
from hybridkv.replay.timeline import MOST_SAMPLES, sample_after
from hybridkv.replay.trace import Trace, load_trace
from hybridkv.replay.units import Units, by_tokens, chained, prepare_units
from replay_support import ROWS, TRACES, Row, line, serve, tiny_spec, write

GIB = 1 << 30


def tiny_grid(**changes: Any) -> Grid:
    plain: dict[str, Any] = {"shapes": (Shape("tiny", tiny_spec),), "memory": (GIB,), "unit_tokens": 4}
    return Grid(**{**plain, **changes})


def run(path: Path, **changes: Any) -> TraceRuns:
    return replay_grid([path], tiny_grid(**changes))[0]


# -- causes ----------------------------------------------------------------------------------------


def test_figures_computed_by_hand(tmp_path: Path) -> None:
    found = run(write(tmp_path / "tiny.jsonl", ROWS))
    (one,) = found.runs
    assert one.lane.losses is not None
    assert (found.answers, found.served, found.ever_seen, found.interrupted) == (1, 5, 20, False)
    assert (one.lane.losses.tokens, one.lane.losses.usable, one.lane.losses.new) == (37, 16, 17)
    assert dict(one.lane.losses.causes) == {"window not kept": 4}
    assert one.metrics is not None
    assert (one.metrics.lookups, one.metrics.effective_hits, one.metrics.pending) == (5, 2, 0)


@pytest.mark.parametrize(
    ("rows", "pools", "causes"),
    [
        ([(12, 0, [1, 2, 3]), (12, 0, [4, 5, 6]), (13, 0, [1, 2, 3])], (3, 3), {"history evicted": 12}),
        ([(16, 0, [7, 8, 9, 10]), (17, 0, [7, 8, 9, 10])], (3, 3), {"history not stored": 16}),
        ([(8, 0, [1, 2]), (8, 0, [3, 4]), (9, 0, [1, 2])], (9, 1), {"window evicted": 8}),
        ([(12, 0, [1, 2, 3]), (9, 0, [1, 2])], (9, 9), {"window not kept": 8}),
        # The states at 4 were kept and went; those at 8 and 12 never were.
        (
            [(4, 0, [1]), (8, 0, [8, 9]), (16, 0, [1, 2, 3, 5]), (13, 0, [1, 2, 3])],
            (9, 1),
            {"window not kept": 8, "window evicted": 4 + 4},
        ),
        # The prompt resumes at 4 and holds the one page that its own end would need.
        ([(4, 0, [1]), (16, 0, [1, 2, 3, 5]), (13, 0, [1, 2, 3])], (9, 1), {"history not stored": 8}),
        ([(8, 0, [1, 2]), (9, 0, [1, 2])], (9, 9), {}),
    ],
)
def test_each_cause_by_hand(tmp_path: Path, rows: list[Row], pools: tuple[int, int], causes: dict[str, int]) -> None:
    losses = serve(tmp_path, rows, *pools, eviction="lru").losses
    assert losses is not None
    assert dict(losses.causes) == causes
    assert losses.new + losses.usable + sum(causes.values()) == losses.tokens == sum(row[0] for row in rows)


def test_what_is_known_past_the_last_boundary_is_a_cause_of_its_own(tmp_path: Path) -> None:
    coarse = hk.CacheGroup("far", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, block_tokens=8)
    spec = hk.CacheSpec(4, [*tiny_spec().groups, coarse])
    lane = serve(tmp_path, [(12, 0, [1, 2, 3]), (13, 0, [1, 2, 3])], 9, 9, spec=spec)
    assert lane.losses is not None
    assert dict(lane.losses.causes) == {"between boundaries": 4}
    assert lane.losses.usable == 8


def test_an_infinite_cache_that_keeps_all_saves_what_was_ever_seen() -> None:
    for name in ("agent_magagent_blk16", "mooncake_conversation"):
        found = run(
            TRACES / f"{name}.jsonl", policies=(Windows("all"),), memory=(1 << 60,), unit_tokens=512, requests=150
        )
        (one,) = found.runs
        assert one.samples[-1].usable == found.ever_seen > 0
        assert one.samples[-1].causes == {}


# -- numbered units are hashed tokens --------------------------------------------------------------


def drawn(seed: int) -> list[Row]:
    """Draw conversations that fork, share beginnings, and end inside blocks."""
    dice = random.Random(seed)
    rows: list[Row] = []
    bodies: list[list[int]] = [[0, 1]]
    fresh = 2
    for _ in range(40):
        body = list(dice.choice(bodies))[: dice.randint(1, 6)]
        for _ in range(dice.randint(1, 4)):
            body.append(fresh)
            fresh += 1
        bodies.append(body)
        cut = dice.choice((0, 0, 1, 3))
        rows.append((8 * len(body) - cut, dice.choice((0, 5, 8, 16)), body))
    return rows


def test_demand_is_what_an_infinite_cache_would_hold(tmp_path: Path) -> None:
    rows: list[Row] = [(8, 4, [1, 2]), (18, 0, [1, 2, 3, 4, 5]), (6, 0, [1, 9]), (6, 0, [1, 10])]
    trace = load_trace(write(tmp_path / "tiny.jsonl", rows))
    units = Units.of(trace, next_turns(trace), 4)
    # Whole units: 1, 2, 3, 4. Ends: of request 0 at 8, of its answer at 12, of request 1 at 16, of 2 and 3 at 4.
    assert units.demand(Windows("ends"), 4) == Demand(4, 4)
    assert units.demand(Windows("all"), 4) == Demand(4, 4)
    assert units.demand(Windows("every", 8), 4) == Demand(4, 2)
    assert units.demand(Windows("ends"), 8) == Demand(4, 2)


def figures(trace: Trace, units: Units, unit: int, eviction: str, windows: Windows) -> list[tuple[int, ...]]:
    turns = next_turns(trace)
    demand = Demand.of(trace, turns, unit, windows)
    pools = size_pools(tiny_spec(unit), 3000, demand)
    lane = Lane(tiny_spec(unit), pools, windows, eviction=eviction, units=len(units.names))
    course = []
    for work in prepare_units(trace, units):
        lane.serve(work)
        assert lane.losses is not None
        course.append(
            (lane.tally.promised_tokens, lane.losses.usable, lane.losses.new, sum(lane.losses.causes.values()))
        )
    return course


@pytest.mark.parametrize("unit", [4, 8, 16])
@pytest.mark.parametrize("seed", range(2))
def test_numbered_units_are_what_hashed_tokens_are(tmp_path: Path, seed: int, unit: int) -> None:
    trace = load_trace(write(tmp_path / "drawn.jsonl", drawn(seed)), block_tokens=8)
    turns = next_turns(trace)
    fast, slow = Units.of(trace, turns, unit), by_tokens(trace, turns, unit)
    assert fast.seen.tolist() == slow.seen.tolist()
    assert [row.size for row in fast.prompts] == [row.size for row in slow.prompts]
    same: dict[int, int] = {}
    for one, other in zip(fast.prompts, slow.prompts, strict=True):
        assert all(same.setdefault(a, b) == b for a, b in zip(one.tolist(), other.tolist(), strict=True))
    assert len(set(same.values())) == len(same)
    for eviction in EVICTIONS:
        windows = Windows("all" if eviction == "lru" else "ends")
        assert figures(trace, fast, unit, eviction, windows) == figures(trace, slow, unit, eviction, windows)


def test_the_demo_and_the_grid_replay_alike(tmp_path: Path) -> None:
    from hybridkv.replay.replay import prepare

    trace = load_trace(write(tmp_path / "drawn.jsonl", drawn(9)), block_tokens=8)
    turns = next_turns(trace)
    pools = size_pools(tiny_spec(8), 3000, Demand.of(trace, turns, 8, Windows("ends")))
    tallies = []
    for works in (prepare(trace, turns, 8), prepare_units(trace, Units.of(trace, turns, 8))):
        lane = Lane(tiny_spec(8), pools, Windows("ends"))
        for work in works:
            lane.serve(work)
        lane.tally.match_ns.clear()
        tallies.append((lane.tally, lane.evicted_pages))
    assert tallies[0] == tallies[1]
    assert tallies[0][1] > 0


def test_units_that_no_block_ends_at_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        units_module, "by_tokens", lambda trace, turns, unit: asked.append(unit) or by_tokens(trace, turns, unit)
    )
    trace = load_trace(write(tmp_path / "drawn.jsonl", drawn(1)), block_tokens=8)
    for unit in (4, 8, 12, 24):
        Units.of(trace, next_turns(trace), unit)
    assert asked == [12]


def test_ids_that_do_not_name_what_is_before_them_are_told_apart() -> None:
    rows = [np.asarray(row, dtype=np.int64) for row in ([5, 7, 9], [6, 7, 9], [], [5, 7, 8], [7], [5, 5])]
    numbered = [row.tolist() for row in chained(rows)]
    prefixes: dict[int, tuple[int, ...]] = {}
    for row, numbers in zip(rows, numbered, strict=True):
        assert len(numbers) == row.size
        for end, number in enumerate(numbers, start=1):
            assert prefixes.setdefault(number, tuple(row[:end].tolist())) == tuple(row[:end].tolist())
    assert len(set(prefixes.values())) == len(prefixes)
    assert chained([]) == []


def test_names_are_distinct_and_spread() -> None:
    names = units_module._names(5000)
    assert len({name[:8] for name in names}) == len({name[8:] for name in names}) == 5000
    bits = np.unpackbits(np.frombuffer(b"".join(names), dtype=np.uint8).reshape(5000, 16), axis=1)
    assert np.all(np.abs(bits.mean(axis=0) - 0.5) < 0.04)


# -- the grid --------------------------------------------------------------------------------------


def test_every_combination_runs_once(tmp_path: Path) -> None:
    found = run(
        write(tmp_path / "tiny.jsonl", ROWS),
        memory=(300, 900),
        policies=(Windows("ends"), Windows("every", 8)),
        evictions=("usability", "lru"),
        places=(None, Place(1 << 20)),
    )
    told = {(str(one.policy), one.eviction, one.lane.pools.budget_bytes, one.place) for one in found.runs}
    assert len(told) == len(found.runs) == 16


def test_a_replay_is_deterministic() -> None:
    def document() -> Any:
        grid = tiny_grid(
            memory=(20_000,), policies=(Windows("ends"), Windows("all")), evictions=("usability", "tree"), requests=40
        )
        grid = Grid(**{name: getattr(grid, name) for name in grid.__slots__} | {"unit_tokens": 64})
        paths = [TRACES / "agent_magagent_blk16.jsonl"]
        found = grid_report.as_json(replay_grid(paths, grid), grid, paths=1, version="1", seconds=0.0)
        for one in found["traces"][0]["runs"]:
            one.pop("match_us")
        return json.dumps(found)

    assert document() == document()


def test_samples_are_steps_of_time_and_end_with_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "slow.jsonl"
    path.write_text("".join(line(1000 * at, (8, 0, [at, 100 + at])) + "\n" for at in (0, 1, 2, 50, 200, 199)))
    found = run(path)
    (one,) = found.runs
    assert [sample.requests for sample in one.samples] == [3, 4, 6]
    assert [sample.seconds for sample in one.samples] == [3.125, 53.125, 200]
    assert one.samples[-1].cached == {"kv": 12, "swa": 6}
    assert one.samples[-1].states["compressed"] == 12
    (tmp_path / "still.jsonl").write_text((line(7, (8, 0, [1, 2])) + "\n") * 500)
    due = sample_after(load_trace(tmp_path / "still.jsonl", block_tokens=4))
    assert np.count_nonzero(~np.isnan(due)) == MOST_SAMPLES
    assert not np.isnan(due[-1])


def test_seconds_are_those_of_the_trace(tmp_path: Path) -> None:
    assert load_trace(write(tmp_path / "ms.jsonl", ROWS)).tick_s == 1e-3
    (tmp_path / "s.jsonl").write_text(line(61.5, (6, 0, [1, 9]), chat_id=4, parent_chat_id=-1, type="text", turn=1))
    assert load_trace(tmp_path / "s.jsonl", block_tokens=4).tick_s == 1.0


# -- tiers -----------------------------------------------------------------------------------------


AGAIN: list[Row] = [(12, 0, [1, 2, 3]), (12, 0, [4, 5, 6]), (13, 0, [1, 2, 3]), (13, 0, [4, 5, 6])]


@pytest.mark.parametrize(("where", "eviction"), [("memory", "usability"), ("memory", "tree"), ("disk", "usability")])
def test_what_was_evicted_comes_back_from_a_tier(tmp_path: Path, where: str, eviction: str) -> None:
    path = write(tmp_path / "again.jsonl", AGAIN)
    folder = tmp_path / "stores"
    place = Place(64 << 20, None if where == "memory" else folder)
    found = run(path, memory=(500,), places=(None, place), evictions=(eviction,))
    bare, tiered = found.runs
    assert bare.lane.pools.pages["kv"] == tiered.lane.pools.pages["kv"] < 6
    assert (bare.samples[-1].usable, bare.samples[-1].causes) == (0, {"history evicted": 16, "window not kept": 8})
    assert (tiered.samples[-1].usable, tiered.samples[-1].causes) == (24, {})
    assert (tiered.lane.tally.restored_tokens, tiered.lane.tally.not_restored) == (24, 0)
    assert tiered.usage is not None
    assert tiered.usage.records > 0
    if where == "disk":
        assert (folder / "lane-1").is_dir()
        with pytest.raises(ArgumentError, match="without stores of an earlier replay"):
            run(path, memory=(500,), places=(None, place))


def test_a_tier_that_is_too_small_keeps_less(tmp_path: Path) -> None:
    path = write(tmp_path / "again.jsonl", AGAIN)
    (one,) = run(path, memory=(500,), places=(Place(200),)).runs
    assert one.lane.tally.restored_tokens < 24
    assert sum(one.samples[-1].causes.values()) + one.samples[-1].usable == 24


def test_thin_pages_keep_rules_and_proportions() -> None:
    spec = hk.CacheSpec.from_config(str(TRACES.parent / "configs" / "deepseek-v4-flash.json"), unit_tokens=256)
    small = thin(spec, 256)
    assert [(g.name, g.kind, g.coverage, g.block_tokens) for g in small.groups] == [
        (g.name, g.kind, g.coverage, g.block_tokens) for g in spec.groups
    ]
    assert small.boundary_tokens == spec.boundary_tokens
    for one, other in zip(spec.groups, small.groups, strict=True):
        assert other.total_page_bytes == pytest.approx(one.total_page_bytes / 256, rel=0.01)


@pytest.mark.parametrize("text", ["", "memory", "memory:", ":1GiB", "memory:0", "memory:-1GiB", "some", "memory:x"])
def test_tiers_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Place.parse(text)
    assert caught.value.field == "tier"


def test_tiers_are_read() -> None:
    assert Place.parse("none") is None
    assert Place.parse("memory:64GiB") == Place(64 << 30)
    assert Place.parse("a:b/c:2GB") == Place(2 * 10**9, Path("a:b/c"))
    assert [str(Place.parse(text)) for text in ("memory:64GiB", "d:1GiB")] == ["memory 64 GiB", "disk 1 GiB"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "again.jsonl", AGAIN)
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="a directory"):
        run(path, places=(Place(64 << 20, tmp_path / "file" / "below"),))
    with pytest.raises(TierError):
        run(path, places=(Place(1 << 10, tmp_path / "small"),))


# -- partial results -------------------------------------------------------------------------------


def test_an_interrupt_keeps_what_was_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_one = Lane.serve

    def interrupting(self: Lane, work: Any) -> None:
        serve_one(self, work)
        if self.tally.requests == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Lane, "serve", interrupting)
    before = signal.getsignal(signal.SIGINT)
    paths = [write(tmp_path / f"{name}.jsonl", ROWS) for name in ("one", "two")]
    grid = tiny_grid()
    found = replay_grid(paths, grid)
    assert signal.getsignal(signal.SIGINT) is before
    assert [(one.served, one.interrupted) for one in found] == [(3, True)]
    assert found[0].runs[0].samples[-1].requests == 3
    assert grid_report.shortcomings(found, 2) == [
        "one: interrupted after 3 of 5 requests",
        "interrupted: 1 of 2 traces were not begun",
    ]
    document = grid_report.as_json(found, grid, paths=2, version="1", seconds=0.0)
    assert document["complete"] is False
    assert (document["traces"][0]["served"], document["traces"][0]["interrupted"]) == (3, True)
    assert "PARTIAL RESULTS" in grid_report.as_text(found, grid, paths=2, seconds=0.0)


@pytest.mark.parametrize(
    ("tail", "field"),
    [
        ('{"timestamp": 9, "input_len', "t.jsonl:6"),
        (line(-1, (8, 0, [1, 2])), "t.jsonl:6: timestamp"),
        (line(9, (512, 0, [1, 2])), "t.jsonl:6: hash_ids"),
        ('{"arrival": 9}', "t.jsonl:6: timestamp"),
        ("\udcff", "trace"),
    ],
)
def test_a_trace_is_replayed_up_to_its_first_broken_line(tmp_path: Path, tail: str, field: str) -> None:
    path = tmp_path / "t.jsonl"
    write(path, ROWS)
    path.write_bytes(path.read_bytes() + tail.encode("utf-8", "surrogateescape") + b"\n")
    if field == "trace":  # no line of a text that cannot be decoded is known
        with pytest.raises(ArgumentError, match="UTF-8"):
            run(path)
        return
    found = run(path)
    assert (found.served, found.interrupted, found.runs[0].samples[-1].usable) == (5, False, 16)
    assert found.trace.broken is not None
    assert found.trace.broken.field == field
    assert not grid_report.is_complete([found], 1)
    with pytest.raises(ArgumentError) as caught:  # whoever did not ask for a part gets none
        load_trace(path)
    assert caught.value.field == field
    path.write_bytes(tail.encode("utf-8", "surrogateescape") + b"\n" + path.read_bytes())
    with pytest.raises(ArgumentError):
        run(path)


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "Request tokens"),
        ("\ufeffTIMESTAMP,ContextTokens", "TIMESTAMP, ContextTokens"),
    ],
)
def test_tables_without_ids_are_refused_with_what_cannot_be_said(tmp_path: Path, head: str, told: str) -> None:
    (tmp_path / "azure.csv").write_text(f"{head}\n2023-11-16 18:17:03.9799600,4808,10\n", encoding="utf-8")
    with pytest.raises(ArgumentError) as caught:
        run(tmp_path / "azure.csv")
    assert caught.value.field == "azure.csv:1"
    assert "no hit can be counted" in str(caught.value.expected)
    assert told in str(caught.value.got)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"evictions": ("random",)}, "eviction"),
        ({"unit_tokens": 0}, "unit_tokens"),
        ({"memory": (0,)}, "budget_bytes"),
        ({"memory": ()}, "replay"),
        ({"memory": tuple(range(1, 300))}, "replay"),
    ],
)
def test_grids_that_mean_nothing_are_refused(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        run(write(tmp_path / "tiny.jsonl", ROWS), **changes)
    assert caught.value.field == field
