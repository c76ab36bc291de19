# SPDX-License-Identifier: Apache-2.0
"""The demo's report and picture, of a run of two conversations: figures that add up and agree with each other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is absent: the demo's models need it")
pytest.importorskip("transformers", reason="transformers is absent: the demo's models need it")

from hybridkv.demo import parts, report, runs
from hybridkv.demo.conversations import CONVERSATIONS
from hybridkv.demo.serving import ModelResult

NAMES = ("null lease", "short read")  # of one system prompt
TALKS = tuple(dataclasses.replace(talk, turns=talk.turns[:2]) for talk in CONVERSATIONS if talk.name in NAMES)
REQUESTS = 4


@pytest.fixture(scope="module")
def results() -> list[ModelResult]:
    return runs.run_models(TALKS)


@pytest.fixture(scope="module")
def policies(results: list[ModelResult]) -> dict[tuple[str, str], dict[str, Any]]:
    document = json.loads(json.dumps(report.as_json(results)))
    return {(model["model"], policy["policy"]): policy for model in document for policy in model["policies"]}


def test_every_model_is_served_by_every_policy(policies: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert list(policies) == [
        ("DeepSeek-V4", "no reuse"),
        ("DeepSeek-V4", "hash-hit rule"),
        ("DeepSeek-V4", "hybridkv"),
        ("DeepSeek-V4", "hybridkv, ends"),
        ("DeepSeek-V4", "hybridkv, scarce"),
        ("Llama", "no reuse"),
        ("Llama", "hash-hit rule"),
        ("Llama", "hybridkv"),
    ]


def test_the_figures_add_up(policies: dict[tuple[str, str], dict[str, Any]]) -> None:
    for (_, name), policy in policies.items():
        assert policy["requests"] == REQUESTS
        assert policy["hit_rate"] == policy["hits"] / REQUESTS
        assert policy["hit_rate_tokens"] == policy["hit_tokens"] / policy["prompt_tokens"]
        assert policy["effective_hit_rate"] == policy["effective_hits"] / REQUESTS
        assert policy["effective_hit_rate_tokens"] == policy["effective_hit_tokens"] / policy["prompt_tokens"]
        assert policy["effective_hits"] <= policy["hits"] <= REQUESTS - (name != "no reuse")
        assert (
            policy["effective_hit_tokens"] <= policy["reused_tokens"] <= policy["hit_tokens"] <= policy["prompt_tokens"]
        )
        assert policy["wrong"] <= policy["off"]
        replayed = policy["computed_tokens"] - (policy["prompt_tokens"] - policy["reused_tokens"])
        assert replayed > 0 if name == "hybridkv, ends" else replayed == 0
        lost = sum(entry["hit_tokens"] - entry["reused_tokens"] for entry in policy["lost"])
        assert lost == policy["hit_tokens"] - policy["reused_tokens"]
        assert policy["seconds"] > 0


def test_counters_of_the_cache_agree_with_what_was_compared(policies: dict[tuple[str, str], dict[str, Any]]) -> None:
    for (_, name), policy in policies.items():
        metrics = policy["metrics"]
        assert (metrics is None) == (not name.startswith("hybridkv")) == (policy["kept_bytes"] is None)
        if metrics is None:
            continue
        settled = metrics["misses"] + metrics["false_hits"] + metrics["effective_hits"]
        assert metrics["lookups"] == settled + metrics["pending"] + metrics["withdrawn"]
        assert metrics["pending"] == 0
        assert metrics["lookups"] - metrics["withdrawn"] == REQUESTS
        assert metrics["effective_hits"] == policy["effective_hits"]
        assert metrics["false_hits"] == sum(entry["requests"] for entry in metrics["false_hits_by_state"])
        assert metrics["false_hits"] == sum(entry["reused_tokens"] == 0 for entry in policy["lost"])
        by_state = sum(entry["tokens"] for entry in metrics["lost_tokens_by_state"])
        assert by_state == policy["hit_tokens"] - policy["reused_tokens"]
        assert policy["kept_bytes"] > 0


def test_only_the_hash_hit_rule_on_deepseek_v4_is_wrong(policies: dict[tuple[str, str], dict[str, Any]]) -> None:
    for names, policy in policies.items():
        if names == ("DeepSeek-V4", "hash-hit rule"):
            assert policy["wrong"] > 0
            assert policy["effective_hits"] < policy["hits"] == policy["off"]
            assert {entry["kind"] for entry in policy["wrong_states"]} >= {"WINDOW", "TAIL"}
            continue
        assert (policy["wrong"], policy["off"], policy["wrong_states"]) == (0, 0, [])
        if "scarce" in names[1]:
            assert policy["effective_hits"] < policy["hits"], "what is not there is not promised"
            assert policy["lost"][0]["kind"] == "WINDOW"
        else:
            assert policy["effective_hits"] == policy["hits"]


def test_the_text_tells_the_same_figures(
    results: list[ModelResult], policies: dict[tuple[str, str], dict[str, Any]]
) -> None:
    text = report.as_text(results)
    assert max(map(len, text.splitlines())) <= 120
    rows = [line for line in text.splitlines() if line.startswith(("no reuse", "hash-hit rule  ", "hybridkv"))]
    assert len(rows) == len(policies)
    for row, policy in zip(rows, policies.values(), strict=True):
        cells = row[16:].split()
        rates = ("hit_rate", "hit_rate_tokens", "effective_hit_rate", "effective_hit_rate_tokens")
        assert cells[:4] == [f"{policy[rate]:.1%}" for rate in rates]
        assert int(cells[4]) == policy["wrong"]
        assert [int(cell.replace(",", "")) for cell in cells[7:9]] == [
            policy["reused_tokens"],
            policy["computed_tokens"],
        ]
    for policy in policies.values():
        for entry in policy["lost"]:
            assert entry["detail"] in text
    assert "went on from state that was not theirs" in text


def test_an_answer_of_hybridkv_that_is_wrong_fails_the_demo(results: list[ModelResult]) -> None:
    assert report.failure(results) == ""
    broken = [dataclasses.replace(served, first_difference=1.0) for served in results[0].scores[2].served]
    score = dataclasses.replace(results[0].scores[2], served=broken)
    changed = dataclasses.replace(results[0], scores=(*results[0].scores[:2], score))
    assert f"DeepSeek-V4, hybridkv: {REQUESTS} answers" in report.failure([changed])


def test_boundaries_are_where_all_lanes_agree(results: list[ModelResult]) -> None:
    found = results[0].boundaries
    together = set.intersection(*(set(lane.lengths.tolist()) for lane in found.lanes))
    assert together == set(found.usable.tolist())
    assert found.promised.tolist() == list(range(16, found.tokens + 1, 16))
    assert len(found.prompt_ends) == len(found.answer_ends) == 2
    assert found.answer_ends[-1] == found.tokens == found.usable.max()
    assert set(found.promised.tolist()) - together, "the hash-hit rule would resume where it cannot"
    assert [lane.group for lane in found.lanes] == ["csa", "hca", "indexer", "swa", "overlap", "pending", "hca_tail"]
    llama = results[1].boundaries
    assert set(llama.promised.tolist()) <= set(llama.usable.tolist()), "one kind of state: a hash is a hit"


def test_the_picture_shows_each_length_as_it_is(results: list[ModelResult], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is absent: the picture needs it")
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    from hybridkv.demo import picture

    found = results[0].boundaries
    marks = [mark for mark in picture.draw(found).axes[0].collections if isinstance(mark, LineCollection)]

    def marked(colour: str) -> set[float]:
        same = [mark for mark in marks if np.allclose(mark.get_colors()[0], to_rgba(colour))]
        return {float(line[0, 0]) for mark in same for line in mark.get_segments()}

    assert marked(picture.BAD) == set(found.promised.tolist()) - set(found.usable.tolist())
    assert marked(picture.GOOD) == set(found.usable.tolist())
    path = tmp_path / "boundaries.png"
    picture.save_picture(found, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


def test_the_part_draws_where_it_is_told_and_says_so(
    results: list[ModelResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is absent: the picture needs it")
    monkeypatch.setattr(runs, "run_models", lambda shown: results)
    path = tmp_path / "here.png"
    part = parts.models_part(path, shown=False)
    assert path.is_file()
    assert str(path) in part.text
    assert (part.data["picture"], part.skipped, part.failure) == (str(path), {}, "")
    assert parts.models_part(None, shown=False).data["picture"] is None


def test_a_picture_without_matplotlib_is_left_out_with_a_reason(
    results: list[ModelResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "run_models", lambda shown: results)
    there = parts.extras._there
    monkeypatch.setattr(parts.extras, "_there", lambda module: module != "matplotlib" and there(module))
    part = parts.models_part(tmp_path / "none.png", shown=False)
    assert part.skipped == {"picture": "matplotlib not installed: pip install '.[plots]' in a clone of hybridkv"}
    assert part.data["picture"] is None
    assert len(part.data["models"]) == 2


def test_the_picture_goes_to_build_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parts.default_picture() == Path("hybridkv-boundaries.png")
    (tmp_path / "build").mkdir()
    assert parts.default_picture() == Path("build/hybridkv-boundaries.png")
