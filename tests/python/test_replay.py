# SPDX-License-Identifier: Apache-2.0
"""A replay whose figures were computed by hand, the form of the report, and the traces of the clone."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import hybridkv as hk
from hybridkv.errors import ArgumentError
from hybridkv.replay import progress as progress_module
from hybridkv.replay import report, runs
from hybridkv.replay.pools import Demand, Pools, Windows, demand_bytes, size_pools
from hybridkv.replay.replay import Lane, prepare
from hybridkv.replay.runs import Options
from hybridkv.replay.shapes import BUILT_IN, Shape, find_shape
from hybridkv.replay.trace import load_trace

ROWS = [
    (8, 4, [1, 2]),  # 0: new. Its answer is named by request 1: the unit of id 3
    (14, 0, [1, 2, 3, 4]),  # 1: finds 12 tokens, and the window at the end of that answer
    (6, 0, [1, 9]),  # 2: finds 4 tokens of history, and no window at 4: a false hit
    (6, 0, [1, 10]),  # 3: finds the window that request 2 left at 4
    (3, 0, [11]),  # 4: a prompt below one unit
]


def tiny_spec(unit_tokens: int = 4) -> hk.CacheSpec:
    return hk.CacheSpec(
        unit_tokens,
        [
            hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64),
            hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(5), page_bytes=128),
        ],
    )


def write(path: Path, rows: list[tuple[int, int, list[int]]]) -> Path:
    lines = [
        json.dumps({"timestamp": at, "input_length": tokens, "output_length": out, "hash_ids": ids})
        for at, (tokens, out, ids) in enumerate(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def tiny_options(**changes: Any) -> Options:
    plain: dict[str, Any] = {"shapes": (Shape("tiny", tiny_spec),), "budgets_gib": (1.0,), "unit_tokens": 4}
    return Options(**{**plain, **changes})


def tiny_run(tmp_path: Path, **changes: Any) -> runs.TraceResult:
    return runs.replay([write(tmp_path / "tiny.jsonl", ROWS)], tiny_options(**changes))[0]


def test_figures_computed_by_hand(tmp_path: Path) -> None:
    found = tiny_run(tmp_path)
    assert found.answers == 1
    (result,) = found.results
    tally = result.hybrid.tally
    assert (tally.requests, tally.request_tokens) == (5, 37)
    assert (tally.promised_requests, tally.promised_tokens) == (3, 20)
    assert (tally.usable_requests, tally.usable_tokens) == (2, 16)
    assert (tally.wrong_requests, tally.wrong_tokens) == (1, 4)
    assert (tally.false_hit_requests, tally.false_hit_tokens) == (1, 4)
    assert dict(tally.lost) == {("GROUPS", "WINDOW"): [1, 4]}
    assert (tally.not_stored, result.hybrid.evicted_pages, len(tally.match_ns)) == (0, 0, 5)
    promise = result.promise.tally
    assert (promise.promised_requests, promise.promised_tokens) == (3, 20)
    assert (promise.usable_tokens, promise.wrong_requests) == (20, 0)


def test_windows_at_every_boundary_lose_nothing(tmp_path: Path) -> None:
    (result,) = tiny_run(tmp_path, windows=Windows("all")).results
    assert (result.hybrid.tally.usable_tokens, result.hybrid.tally.wrong_requests) == (20, 0)


def test_without_answers_only_prompts_are_found(tmp_path: Path) -> None:
    found = tiny_run(tmp_path, answers=False)
    assert found.answers == 0
    assert found.results[0].hybrid.tally.usable_tokens == 8 + 4


def test_windows_at_a_stride_are_kept_there_alone(tmp_path: Path) -> None:
    (result,) = tiny_run(tmp_path, windows=Windows("every", 8)).results
    tally = result.hybrid.tally
    # Request 1 falls back from 12 to 8; requests 2 and 3 find nothing at 4.
    assert (tally.promised_tokens, tally.usable_tokens, tally.wrong_requests) == (20, 8, 3)
    assert tally.lost["GROUPS", "WINDOW"] == [3, 4 + 4 + 4]


def test_the_cache_counts_the_same(tmp_path: Path) -> None:
    (result,) = tiny_run(tmp_path).results
    metrics = result.hybrid.cache.metrics()
    assert (metrics.lookups, metrics.misses, metrics.effective_hits) == (5, 2, 2)
    assert (metrics.pending, metrics.withdrawn) == (0, 0)
    assert metrics.false_hits[hk.Check.GROUPS][hk.StateKind.WINDOW] == 1


def test_full_pools_evict_the_oldest_and_what_never_fits_is_counted(tmp_path: Path) -> None:
    rows = [(12, 0, [1, 2, 3]), (12, 0, [4, 5, 6]), (12, 0, [1, 2, 3]), (16, 0, [7, 8, 9, 10])]
    trace = load_trace(write(tmp_path / "full.jsonl", rows))
    lane = Lane(tiny_spec(), Pools(3, {"kv": 3, "swa": 1}, 1, 1.0), Windows("ends"))
    for work in prepare(trace, [None] * 4, 4):
        lane.serve(work)
    assert lane.tally.promised_requests == 0
    assert lane.tally.not_stored == 1
    assert lane.evicted_pages == 2 * (3 + 1)
    assert lane.cache.metrics().pending == 0
    # The last one could never fit: nothing was evicted for it.
    assert lane.policy is not None
    assert len(lane.policy) == 3


def test_a_prompt_too_long_for_the_pools_keeps_its_prefix_in_reach_of_eviction(tmp_path: Path) -> None:
    rows = [(8, 0, [1, 2]), (20, 0, [1, 2, 3, 4, 5]), (12, 0, [6, 7, 8])]
    trace = load_trace(write(tmp_path / "long.jsonl", rows))
    lane = Lane(tiny_spec(), Pools(3, {"kv": 3, "swa": 1}, 1, 1.0), Windows("ends"))
    for work in prepare(trace, [None] * 3, 4):
        lane.serve(work)
    assert (lane.tally.usable_tokens, lane.tally.not_stored) == (8, 1)
    pages = lane.cache.metrics().pages["kv"]
    assert (pages.free, pages.cached) == (
        0,
        3,
    )  # those of the last prompt: the pinned prefix was not lost sight of


def test_a_hit_survives_eviction_of_what_is_older(tmp_path: Path) -> None:
    rows = [(9, 0, [1, 2, 3]), (9, 0, [4, 5, 6]), (9, 0, [1, 2, 7]), (9, 0, [8, 9, 10]), (9, 0, [1, 2, 11])]
    trace = load_trace(write(tmp_path / "lru.jsonl", rows))
    lane = Lane(tiny_spec(), Pools(4, {"kv": 4, "swa": 2}, 1, 1.0), Windows("ends"))
    for work in prepare(trace, [None] * 5, 4):
        lane.serve(work)
    assert lane.tally.usable_tokens == 8 + 8
    assert lane.tally.wrong_requests == 0


def serve_all(tmp_path: Path, lane: Lane, prompts: list[list[int]]) -> list[int]:
    """Serve prompts of whole blocks and one more token each; the usable tokens of each."""
    rows = [(4 * len(ids) + 1, 0, [*ids, 100 + index]) for index, ids in enumerate(prompts)]
    trace = load_trace(write(tmp_path / "served.jsonl", rows))
    usable = [0]
    for work in prepare(trace, [None] * len(rows), 4):
        lane.serve(work)
        usable.append(lane.tally.usable_tokens)
    return [after - before for before, after in itertools.pairwise(usable)]


def test_a_window_that_was_read_outlives_one_that_was_not(tmp_path: Path) -> None:
    lane = Lane(tiny_spec(), Pools(9, {"kv": 9, "swa": 2}, 1, 1.0), Windows("ends"))
    assert serve_all(tmp_path, lane, [[1, 2], [3, 4], [1, 2], [5, 6], [1, 2], [3, 4]]) == [0, 0, 8, 0, 8, 0]


def test_a_prefix_that_was_read_outlives_one_that_was_not(tmp_path: Path) -> None:
    lane = Lane(tiny_spec(), Pools(4, {"kv": 4, "swa": 4}, 1, 1.0), Windows("ends"))
    # The third prompt does not fit and is not stored, and still it read the first one's prefix.
    assert serve_all(tmp_path, lane, [[1, 2], [3, 4], [1, 2, 7, 8, 9], [5], [1, 2]]) == [0, 0, 8, 0, 8]


def test_a_request_that_resumed_claims_no_window_below(tmp_path: Path) -> None:
    lane = Lane(tiny_spec(), Pools(9, {"kv": 9, "swa": 9}, 1, 1.0), Windows("ends"))
    assert serve_all(tmp_path, lane, [[1, 2, 3]]) == [0]
    lane.windows = Windows("all")
    # It resumes at 12, so the rows before 4 and 8 were never in its memory.
    assert serve_all(tmp_path, lane, [[1, 2, 3, 4], [1], [1, 2, 3, 4]]) == [12, 0, 16]


@pytest.mark.parametrize(
    ("policy", "start", "end", "kept"),
    [
        ("ends", 0, 40, [40]),
        ("ends", 40, 40, []),
        ("all", 8, 20, [12, 16, 20]),
        ("16", 0, 40, [16, 32]),
        ("16", 16, 32, [32]),
        ("10", 0, 32, [8, 20, 28]),
        ("2", 0, 8, [4, 8]),
    ],
)
def test_kept_boundaries(policy: str, start: int, end: int, kept: list[int]) -> None:
    assert Windows.parse(policy).boundaries(start, end, 4) == kept


@pytest.mark.parametrize("text", ["", "0", "-4", "some", "1.5", "²"])
def test_windows_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="all, ends, or a distance"):
        Windows.parse(text)


def test_a_budget_is_shared_by_history_and_boundaries() -> None:
    spec, demand = tiny_spec(), Demand(units=100, boundaries=10)
    assert demand_bytes(spec, demand) == 100 * 64 + 10 * 128
    pools = size_pools(spec, 3840, demand)
    assert (pools.units, pools.pages, pools.share) == (50, {"kv": 50, "swa": 5}, 0.5)
    assert size_pools(spec, 10**9, demand).pages == {"kv": 100, "swa": 10}
    assert size_pools(spec, 1, demand).pages == {"kv": 1, "swa": 1}
    with pytest.raises(ArgumentError, match="at least 1"):
        size_pools(spec, 0, demand)


def test_deepseek_v4_flash_costs_what_its_layout_says() -> None:
    spec = find_shape("deepseek-v4-flash").make(256)
    assert spec.bytes_per_token == 3850.25
    assert sum(spec.boundary_bytes.values()) == 3_644_416
    assert demand_bytes(spec, Demand(units=1000, boundaries=10)) == 1000 * 256 * 3850.25 + 10 * 3_644_416


def test_gemma_3_has_five_window_layers_for_each_global_one() -> None:
    spec = find_shape("gemma-3-4b").make(256)
    # K and V of 4 heads of 256 in 2 bytes: 4 KiB a token and layer; 5 global layers, 29 windows.
    assert spec.bytes_per_token == 5 * 4096
    assert sum(spec.boundary_bytes.values()) == 29 * 4096 * 1024


def test_unknown_models_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"deepseek-v4-flash, gemma-3-4b, or the path"):
        find_shape("gpt-7")


def check_report(document: dict[str, Any]) -> None:
    """Every key with its type, and the sums that must hold."""
    rate = (int, float)
    top = {
        "schema": str,
        "version": str,
        "unit_tokens": int,
        "windows": str,
        "answers": bool,
        "seconds": rate,
    }
    trace_keys = {
        "name": str,
        "block_tokens": int,
        "requests": int,
        "prompt_tokens": int,
        "answers_named": int,
    }
    run_keys = {"model": str, "budget_bytes": int, "share": rate, "units": int, "pages": dict}
    hit_keys = {"hits": int, "hit_tokens": int, "hit_rate": rate, "hit_rate_tokens": rate}
    counts = (
        "usable",
        "usable_tokens",
        "wrong",
        "wrong_tokens",
        "false_hits",
        "false_hit_tokens",
        "evicted_pages",
    )
    own_keys = dict.fromkeys((*counts, "not_stored", "unplaced"), int) | {"lost": list, "match_us": dict}
    own_keys |= {"effective_hit_rate": rate, "effective_hit_rate_tokens": rate}

    def same(found: dict[str, Any], keys: dict[str, Any], *more: str) -> None:
        assert set(found) == {*keys, *more}
        assert [name for name, kind in keys.items() if not isinstance(found[name], kind)] == []

    same(document, top, "traces")
    assert document["schema"] == report.SCHEMA
    for trace in document["traces"]:
        same(trace, trace_keys, "runs")
        for run in trace["runs"]:
            same(run, run_keys, "homogeneous", "hybrid")
            same(run["homogeneous"], hit_keys)
            same(run["hybrid"], hit_keys | own_keys)
            hybrid = run["hybrid"]
            assert hybrid["wrong_tokens"] == hybrid["hit_tokens"] - hybrid["usable_tokens"]
            assert hybrid["wrong"] == sum(entry["requests"] for entry in hybrid["lost"])
            assert hybrid["wrong_tokens"] == sum(entry["tokens"] for entry in hybrid["lost"])
            assert hybrid["hits"] == hybrid["usable"] + hybrid["false_hits"]
            assert set(hybrid["match_us"]) == {"median", "p99"}


def test_the_json_report_has_its_form(tmp_path: Path) -> None:
    options = tiny_options()
    found = runs.replay([write(tmp_path / "tiny.jsonl", ROWS)], options)
    document = json.loads(json.dumps(report.as_json(found, options, version="1", seconds=0.5)))
    check_report(document)
    hybrid = document["traces"][0]["runs"][0]["hybrid"]
    assert hybrid["lost"] == [{"check": "GROUPS", "kind": "WINDOW", "requests": 1, "tokens": 4}]
    assert (hybrid["hit_rate"], hybrid["effective_hit_rate"]) == (3 / 5, 2 / 5)
    assert (hybrid["hit_rate_tokens"], hybrid["effective_hit_rate_tokens"]) == (20 / 37, 16 / 37)


def test_the_table_says_how_many_promises_were_wrong(tmp_path: Path) -> None:
    options = tiny_options()
    text = report.as_text(runs.replay([write(tmp_path / "tiny.jsonl", ROWS)], options), options, seconds=0.5)
    assert max(map(len, text.splitlines())) <= 110
    assert "of 3 hash hits 1 (33.3%)" in text
    assert "check GROUPS    state WINDOW" in text


def test_the_traces_of_the_clone_replay() -> None:
    paths = runs.find_demo_traces([Path(__file__).resolve().parent])
    options = Options(shapes=tuple(BUILT_IN.values()), requests=120)
    found = runs.replay(paths, options)
    assert [trace.trace.name for trace in found] == [path.stem for path in paths]
    check_report(report.as_json(found, options, version="1", seconds=0.0))
    for trace in found:
        assert len(trace.results) == len(BUILT_IN) * len(runs.DEFAULT_SHARES)
        for result in trace.results:
            hybrid, promise = result.hybrid.tally, result.promise.tally
            assert promise.wrong_requests == 0
            # Same order of eviction, same history: the twin promises what the hybrid calls matched.
            assert promise.promised_tokens == hybrid.promised_tokens
            assert result.hybrid.cache.metrics().pending == 0
    conversation = found[0].results
    assert all(r.hybrid.tally.wrong_requests > 0 for r in conversation if r.model == "DeepSeek-V4-Flash")


def test_shipped_traces_are_small_and_whole() -> None:
    paths = runs.find_demo_traces([Path(__file__).resolve().parent])
    assert [path.stat().st_size <= 1_000_000 for path in paths] == [True] * 3
    assert [load_trace(path).block_tokens for path in paths] == [512, 16, 16]
    named = (paths[0].parent / "README.md").read_text()
    assert all(f"`{path.name}`" in named for path in paths)


def test_away_from_a_clone_a_trace_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="--trace PATH"):
        runs.find_demo_traces([tmp_path])
    folder = tmp_path / "tests" / "data" / "traces"
    folder.mkdir(parents=True)
    for name in runs.DEMO_TRACES:
        (folder / name).touch()
    with pytest.raises(ArgumentError, match="--trace PATH"):  # files of such names, and no clone around them
        runs.find_demo_traces([folder])
    (tmp_path / "pyproject.toml").touch()
    assert runs.find_demo_traces([folder]) == [folder / name for name in runs.DEMO_TRACES]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_drawn_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_rich_progress", lambda out: None)
    for out, shown in ((io.StringIO(), True), (Terminal(), False)):
        with progress_module.progress("t", 2, shown=shown, out=out) as step:
            step()
        assert out.getvalue() == ""
    terminal = Terminal()
    with progress_module.progress("t", 2, shown=True, out=terminal) as step:
        step()
        step()
    assert "t [################################] 2/2" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
