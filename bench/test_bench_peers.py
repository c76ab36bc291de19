# SPDX-License-Identifier: Apache-2.0
"""Question: how does a match compare with vLLM's and SGLang's on the same machine in the same run?

Each peer runs in an environment of its own, which a variable names; without it the bench is skipped. The
programs stay alive and take turns, a trial each (peers/compare.py), so that a ratio is of one round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_COMPARE = Path(__file__).parent / "peers" / "compare.py"
_VARIABLES = {"vllm": "HYBRIDKV_VLLM_PYTHON", "sglang": "HYBRIDKV_SGLANG_PYTHON"}


def compared(smoke: bool, **variables: str) -> dict:
    command = [sys.executable, str(_COMPARE)]
    if smoke:
        command += ["--tokens", "2048", "--rounds", "1", "--budget-ms", "1"]
    environment = {k: v for k, v in os.environ.items() if k not in _VARIABLES.values()} | variables
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout)


def test_our_own_side_of_the_comparison_runs(smoke):
    if not smoke:
        pytest.skip("only smoke asks for our side alone; the comparison itself runs it otherwise")
    report = compared(smoke)
    assert [row["hybridkv"]["clean_trials"] >= 0 for row in report["cases"]] == [True] * len(report["cases"])


@pytest.mark.parametrize("peer", sorted(_VARIABLES))
def test_match_beside_a_peer(timer, smoke, peer):
    python = os.environ.get(_VARIABLES[peer])
    if not python:
        pytest.skip(f"{_VARIABLES[peer]} names no interpreter that has {peer} (bench/README.md says how to make one)")
    report = timer.benchmark.pedantic(compared, args=(smoke,), kwargs={_VARIABLES[peer]: python}, rounds=1)
    for row in report["cases"]:
        ratio = row[f"{peer}_over_hybridkv"]["median"]
        timer.figure(f"{peer} over ours: {row['case']}, {row['tokens']} tokens", [ratio], unit="times", at_least=True)
