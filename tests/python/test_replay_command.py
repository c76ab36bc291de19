# SPDX-License-Identifier: Apache-2.0
"""``hybridkv replay`` and ``hybridkv compare``: what they print, write, draw and refuse."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridkv import cli
from hybridkv.errors import ArgumentError
from hybridkv.extras import PICTURE, absent
from hybridkv.replay import command, versus, versus_text
from hybridkv.replay.grid import replay_grid
from hybridkv.replay.pools import Windows
from hybridkv.replay.shapes import BUILT_IN, Shape
from replay_support import ROOT, ROWS, TRACES, tiny_spec, write

GOLDEN = ROOT / "tests" / "data" / "replay"
CONVERSATION, AGENT = TRACES / "mooncake_conversation.jsonl", TRACES / "agent_magagent_blk16.jsonl"
LLAMA = str(ROOT / "tests" / "data" / "configs" / "llama-3.1-8b.json")

needs_matplotlib = pytest.mark.skipif(absent(PICTURE) is not None, reason="matplotlib is not installed")


def run(argv: list[str], capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    assert cli.main(argv) == status
    printed = capsys.readouterr()
    assert status or printed.err == ""
    return printed.out if status == 0 else printed.err


def untimed(text: str) -> str:
    """Leave out what a clock says: the two last columns of a row, the last row of a comparison, seconds at the end."""
    text = re.sub(r"(%\s+\S+ +[\d,]+)  +\d+ +\d+$", r"\1", text, flags=re.MULTILINE)
    text = re.sub(r"^complexity.*", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\n[\d.]+ s\n$", "\n", text)


# -- replay ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        (
            "conversation",
            [CONVERSATION, "--unit-tokens", "512", "--memory", "1,4GiB", "--policy", "ends,all,every:4096"],
        ),
        ("agent", [AGENT, "--memory", "24MiB", "--eviction", "usability,tree", "--tier", "none", "--tier"]),
    ],
)
def test_tables_are_those_that_were_looked_at(name: str, argv: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The tables in tests/data/replay; ``--write`` of nothing: a change there is to be looked at."""
    more = ["memory:256MiB"] if name == "agent" else []
    printed = untimed(run(["replay", *map(str, argv), *more, "--requests", "70"], capsys))
    assert printed == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_one_json_object_holds_the_table_and_the_course(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "found.json"
    argv = ["replay", str(AGENT), "--memory", "64MiB", "--requests", "30", "--policy", "ends,all"]
    table = run([*argv, "--json", str(target)], capsys)
    document = json.loads(target.read_text())
    printed = json.loads(run([*argv, "--json", "-"], capsys))
    assert (document["schema"], document["complete"]) == ("hybridkv.replay/2", True)
    (trace,) = document["traces"]
    assert (trace["name"], trace["served"], trace["broken"]) == ("agent_magagent_blk16", 30, None)
    assert [one["policy"] for one in trace["runs"]] == ["ends", "all"]
    for one, again in zip(trace["runs"], printed["traces"][0]["runs"], strict=True):
        assert one["tokens"] == one["new_tokens"] + one["usable_tokens"] + sum(one["lost_tokens"].values())
        last = one["samples"][-1]
        assert (last["requests"], last["usable"], last["causes"]) == (30, one["usable_tokens"], one["lost_tokens"])
        assert one["usable_tokens"] / one["tokens"] == one["effective_hit_rate_tokens"]
        assert f"{one['effective_hit_rate_tokens']:.1%}" in table
        assert one.pop("match_us").keys() == again.pop("match_us").keys() == {"median", "p99"}
        assert one == again


def test_several_traces_and_models_are_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(write(tmp_path / f"{name}.jsonl", ROWS)) for name in ("one", "two")]
    argv = ["--block-tokens", "4", "--unit-tokens", "256", "--model", "gemma-3-4b", "--model", LLAMA]
    printed = run(["replay", *paths, *argv], capsys)
    assert [name for name in ("one: 5 requests", "two: 5 requests") if name not in printed] == []
    assert printed.count("Gemma-3-4B") == printed.count("llama-3.1-8b") == 2 * 2 * 3


@needs_matplotlib
def test_pictures_are_drawn_and_not_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import matplotlib.image

    argv = ["replay", str(CONVERSATION), "--unit-tokens", "512", "--memory", "1GiB", "--policy", "ends"]
    assert cli.main([*argv, "--requests", "60", "--pictures", str(tmp_path / "new" / "folder")]) == 0
    told = capsys.readouterr().err
    names = [f"mooncake_conversation-{what}.png" for what in ("hit-rate", "lost", "states")]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == names
    for name in names:
        assert f"drawn: {tmp_path / 'new' / 'folder' / name}" in told
        drawn = matplotlib.image.imread(tmp_path / "new" / "folder" / name)
        colours = (drawn[:, :, :3] * 255).astype(int) @ (1 << 16, 1 << 8, 1)
        assert min(drawn.shape[:2]) > 300
        assert np.unique(colours).size > 20  # lines or bars, and text


@needs_matplotlib
def test_pictures_show_what_was_counted(tmp_path: Path) -> None:
    from hybridkv.replay import pictures
    from hybridkv.replay.grid import Grid

    path = write(tmp_path / "tiny.jsonl", ROWS)
    grid = Grid((Shape("tiny", tiny_spec),), (500, 1 << 20), (Windows("ends"), Windows("all")), unit_tokens=4)
    (found,) = replay_grid([path], grid)
    (axes,) = pictures.hit_rate(found).axes
    saved = [line.get_ydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    rates = [run.samples[-1].usable / 37 for run in found.runs]
    assert saved == [rates[:2], rates[2:]]
    panels = pictures.lost(found).axes
    assert len(panels) == 4
    for panel in panels:
        tops: dict[float, float] = {}
        for bar in panel.patches:
            tops[bar.get_x()] = tops.get(bar.get_x(), 0.0) + bar.get_height()
        assert list(tops.values()) == pytest.approx([1.0] * len(tops))
    for panel, one in zip(pictures.states(found).axes, found.runs, strict=True):
        last = {line.get_label(): line.get_ydata()[-1] for line in panel.lines}
        assert last["kv (compressed)"] == one.samples[-1].cached["kv"] / one.lane.pools.pages["kv"]


def test_without_matplotlib_pictures_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hybridkv.extras._there", lambda module: module != "matplotlib")
    told = run(["replay", str(AGENT), "--pictures", str(tmp_path / "p")], capsys, 2)
    assert re.search(r"pictures: expected matplotlib.*pip install '\.\[plots", told)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["no/such/file"], "No such file"),
        (["TRACE", "--memory", "0"], "memory: expected bytes, 1 or more"),
        (["TRACE", "--memory", "8,,16GiB"], "memory: expected bytes"),
        (["TRACE", "--memory", "8,x"], "memory: expected bytes"),
        (["TRACE", "--memory", "-1GiB"], "expected one argument|memory: expected bytes"),
        (["TRACE", "--policy", "ends,some"], "policy: expected ends, all or every:TOKENS"),
        (["TRACE", "--policy", "every:0"], "policy: expected a whole number"),
        (["TRACE", "--policy", "all:3"], "policy: expected ends, all"),
        (["TRACE", "--eviction", "random"], "eviction: expected one of usability, lru, tree, none"),
        (["TRACE", "--tier", "memory:none"], "tier: expected bytes"),
        (["TRACE", "--model", "gpt-7"], "model: expected one of deepseek-v4-flash"),
        (["TRACE", "--unit-tokens", "0"], "unit_tokens: expected at least 1"),
        (["TRACE", "--requests", "0"], "requests: expected at least 1"),
        (["TRACE", "--block-tokens", "16"], "tiny.jsonl:1: hash_ids"),
        (["TRACE", "--json", "TRACE"], "json: expected a file that is no input"),
        (["TRACE", "--json", "no/such/folder/x.json"], "json: expected a file in a folder that is there"),
        (["TRACE", "--pictures", "TRACE"], "pictures: expected a folder|pictures: expected matplotlib"),
        (["AZURE"], "no hit can be counted"),
    ],
)
def test_refusals_name_what_was_expected(
    tmp_path: Path, argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    trace = write(tmp_path / "tiny.jsonl", ROWS)
    before = trace.read_bytes()
    named = [{"TRACE": str(trace), "AZURE": str(azure)}.get(part, part) for part in argv]
    try:
        status = cli.main(["replay", *named])
    except SystemExit as left:  # argparse's own
        status = left.code
    printed = capsys.readouterr()
    assert status == 2
    assert re.search(told, printed.err)
    assert printed.out == ""
    assert trace.read_bytes() == before


def test_partial_results_are_printed_and_said_to_be_partial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "cut.jsonl", ROWS)
    path.write_text(path.read_text() + '{"timestamp": 9, "inp')
    assert cli.main(["replay", str(path), "--block-tokens", "4", "--json", str(tmp_path / "j")]) == 2
    printed = capsys.readouterr()
    assert "cut: 5 requests" in printed.out
    assert "PARTIAL RESULTS" in printed.out
    assert "partial results: cut: read up to its request 5 alone: cut.jsonl:6: expected a JSON object" in printed.err
    document = json.loads((tmp_path / "j").read_text())
    assert document["complete"] is False
    assert document["traces"][0]["broken"].startswith("cut.jsonl:6")


def test_an_interrupted_command_leaves_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "tiny.jsonl", ROWS))
    grids: list[Any] = []

    def cut(paths: Any, grid: Any, *, shown: bool) -> Any:
        grids.append(grid)
        return [] if len(grids) > 1 else replay_grid(paths[:1], grid)

    monkeypatch.setattr("hybridkv.replay.grid.replay_grid", cut)
    assert cli.main(["replay", path, path, "--block-tokens", "4"]) == 1
    assert "interrupted: 1 of 2 traces were not begun" in capsys.readouterr().err
    assert cli.main(["replay", path, "--block-tokens", "4"]) == 1
    assert capsys.readouterr().err == "hybridkv replay: interrupted before the first request\n"


def test_sizes_take_the_unit_of_the_last() -> None:
    assert command.sizes("memory", None) is None
    assert command.sizes("memory", "8,16,64GiB") == (8 << 30, 16 << 30, 64 << 30)
    assert command.sizes("memory", "512MiB, 2 GB,4096") == (512 << 20, 2 * 10**9, 4096)


# -- compare ---------------------------------------------------------------------------------------


def tiny_pair(tmp_path: Path, **options: Any) -> versus.Pair:
    path = write(tmp_path / "tiny.jsonl", ROWS)
    return versus.compare(path, Shape("tiny", tiny_spec), memory_bytes=1 << 20, unit_tokens=4, **options)


def test_both_sides_are_counted(tmp_path: Path) -> None:
    pair = tiny_pair(tmp_path)
    document = versus_text.as_json(pair, version="1")
    one, other = document["homogeneous"], document["hybrid"]
    assert (one["designed"], other["designed"]) == (True, False)
    # All that is seen again is usable where everything is kept; windows at ends alone lose request 2.
    assert (one["hit_tokens"], one["usable_tokens"], one["wrong"], one["lost_tokens"]) == (20, 20, 0, {})
    assert (other["hit_tokens"], other["usable_tokens"], other["wrong"]) == (20, 16, 1)
    assert other["lost_tokens"] == {"window not kept": 4}
    assert (one["bytes_per_token"], other["bytes_per_token"]) == ((64 + 128) / 4, 64 / 4)
    assert other["boundary_bytes"] == {"swa": 128}
    assert one["prefix_bytes"] == {"131072": 131072 * 48, "1048576": 1048576 * 48}
    assert other["prefix_bytes"] == {"131072": 131072 * 16 + 2 * 128, "1048576": 1048576 * 16 + 2 * 128}
    told = {row["aspect"]: (row["homogeneous"], row["hybrid"]) for row in document["rows"]}
    assert "3 of 3 hash hits hold" in told["what a hit means"][0]
    assert "2 of 3 hash hits hold" in told["what a hit means"][1]
    assert told["failure mode"][0] == "a miss: slow, and right"
    assert "1 requests (20.0%), 4 tokens" in told["failure mode"][1]
    assert set(told) == {
        "model",
        "attention",
        "cache states",
        "what a hit means",
        "allocator duties",
        "metric",
        "failure mode",
        "lost tokens",
        "long context",
        "complexity",
    }


def test_text_and_markdown_hold_the_same_rows(tmp_path: Path) -> None:
    pair = tiny_pair(tmp_path, policy=Windows("every", 8))
    text, markdown = versus_text.as_text(pair), versus_text.as_markdown(pair)
    assert max(map(len, text.splitlines())) <= 120
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert [line.count("|") for line in table] == [4] * len(table)
    for aspect, one, other in versus_text.rows(pair):
        assert f"| {aspect} | {one} | {other} |" in table
        assert all(word in text for word in f"{aspect} {one} {other}".split())
    assert "states of the hybrid one kept: every:8" in text


def test_two_models_are_compared_in_the_same_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["compare", LLAMA, "gemma-3-4b", "--trace", str(AGENT), "--requests", "20", "--memory", "2GiB"]
    document = json.loads(run([*argv, "--json", "-"], capsys))
    assert (document["memory_bytes"], document["requests"]) == (2 << 30, 20)
    assert (document["homogeneous"]["model"], document["homogeneous"]["designed"]) == ("llama-3.1-8b", False)
    assert document["homogeneous"]["groups"] == {"kv": "COMPRESSED"}
    assert document["hybrid"]["groups"] == {"kv": "COMPRESSED", "swa": "WINDOW"}
    for side in ("homogeneous", "hybrid"):
        shape = BUILT_IN["gemma-3-4b"].make(256) if side == "hybrid" else None
        if shape is not None:
            pages = document[side]["pages"]
            assert sum(pages[group.name] * group.total_page_bytes for group in shape.groups) <= 1.02 * (2 << 30)
    target = tmp_path / "pair.json"
    assert run([*argv, "--markdown", "--json", str(target)], capsys).count("\n| ") == 12
    assert json.loads(target.read_text())["schema"] == "hybridkv.compare/1"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([LLAMA], "hybrid: expected a model that keeps more than history"),
        (["gemma-3-4b", LLAMA], "hybrid: expected a model that keeps more than history"),
        (["gemma-3-4b"] * 3, "model: expected one model, or"),
        (["gpt-7"], "model: expected one of"),
        (["gemma-3-4b", "--memory", "0"], "memory: expected bytes"),
        (["gemma-3-4b", "--policy", "ends,all"], "policy: expected ends, all"),
        ([LLAMA, "gemma-3-4b", "--json", LLAMA], "json: expected a file that is no input"),
    ],
)
def test_pairs_that_mean_nothing_are_refused(
    tmp_path: Path, argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(tmp_path / "tiny.jsonl", ROWS)
    argv = ["compare", *argv, "--trace", str(trace), "--block-tokens", "4"]
    assert told in run(argv, capsys, 2)


def test_half_a_trace_compares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "cut.jsonl", ROWS)
    path.write_text(path.read_text() + "{")
    shape = Shape("tiny", tiny_spec)
    with pytest.raises(ArgumentError, match=r"cut\.jsonl:6"):
        versus.compare(path, shape, memory_bytes=1 << 20, unit_tokens=4, block_tokens=4)
    monkeypatch.setattr(versus, "replay_grid", lambda paths, grid, shown: [])
    with pytest.raises(ArgumentError, match="an interrupt"):
        versus.compare(write(tmp_path / "tiny.jsonl", ROWS), shape, memory_bytes=1 << 20, unit_tokens=4)


# -- the document ----------------------------------------------------------------------------------


def test_the_output_of_the_document_is_real(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Commands of docs/replaying.md print what stands below them, but times; '...' stands for lines left out."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "replaying.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(hybridkv (?:replay|compare) .*?)```\n+```text\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 2
    for shown, told in blocks:
        printed = untimed(run(shlex.split(shown.replace("\\\n", " "))[1:], capsys))
        for part in untimed(told).split("...\n"):
            assert part in printed, f"{shown}\n{printed}"
