# SPDX-License-Identifier: Apache-2.0
"""``hybridkv demo --rollout``: what it prints, and when it fails. ``test_canary_model.py`` runs it, in a soak."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="torch is absent: the rollout is over a real model")
pytest.importorskip("transformers", reason="transformers is absent: the rollout is over one of its models")

from canary_support import TOLERANCE, settled, stored
from hybridkv import cli, extras
from hybridkv.canary import Canary
from hybridkv.demo import rollout
from hybridkv.demo.rollout import RolloutResult, RolloutStep


@pytest.fixture
def result() -> RolloutResult:
    canary = Canary(stored(), 1.0, TOLERANCE)
    settled(canary)
    settled(canary, wrong=1.0)
    steps = (
        RolloutStep(0, "it begins", "shadow", 0, 0, 1.0, "closed"),
        RolloutStep(9, "on", "full", 11, 1, 0.25, "open"),
    )
    return RolloutResult(steps, 1e-4, 64, 0.07, canary.metrics(), wrong_answers=1, served=12, failure="")


def test_a_line_for_each_step(
    result: RolloutResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rollout, "run_rollout", lambda shown: result)
    assert cli.main(["demo", "--rollout"]) == 0
    printed = capsys.readouterr().out
    assert (
        "A logit may be off by 0.0001, 4 times the most of 64 benign comparisons; false alarms are below 7.0%."
        in printed
    )
    assert "9        on            full    11       1       25%    open" in printed
    assert "12 answers, 2 compared, 1 differ (0 at the first token, 1 at the last); 1 wrong ones" in printed
    assert cli.main(["demo", "--rollout", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["models"], document["disk"], document["skipped"]) == (None, None, {})
    assert document["rollout"]["canary"]["states"]["group:swa"] == "closed"
    assert document["rollout"]["steps"][1]["stage"] == "full"


def test_what_did_not_happen_fails_the_demo(
    result: RolloutResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rollout, "run_rollout", lambda shown: replace(result, failure="no breaker tripped"))
    assert cli.main(["demo", "--rollout"]) == 1
    assert "no breaker tripped" in capsys.readouterr().err
    monkeypatch.setattr(extras, "absent", lambda packages: "install transformers")
    assert cli.main(["demo", "--rollout"]) == 2
    assert "install transformers" in capsys.readouterr().err
