# SPDX-License-Identifier: Apache-2.0
"""Failures of prefix and KV caches seen in public, as tests: what must be impossible or visible here.

`tests/data/cases/field_cases.json` says each case in a sentence and names its tests, or the feature that
it waits for.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CASES = json.loads((HERE.parent / "data" / "cases" / "field_cases.json").read_text())
CLASSES = (
    "swa-window",
    "tail",
    "indexer",
    "partial-cached",
    "group-intersection",
    "key-lacks-identity",
    "alignment",
    "format-abi",
)
COUNT = 78
FEATURES = (
    "waits: tickets and admission",
    "waits: tiers",
    "waits: kernels",
    "waits: format registry and negotiation",
    "waits: engine adapters",
)


# -- the list itself --------------------------------------------------------------------------------


def collected() -> set[str]:
    """Names of the tests that pytest collects from the files the list names."""
    files = sorted({name.split("::")[0] for case in CASES for name in case.get("tests", ())})
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    nodes = (line.split("[")[0] for line in run.stdout.splitlines() if "::" in line)
    found = {node.split("/")[-1] for node in nodes}
    for name in files if find_spec("transformers") is None else ():
        if name.startswith("test_transformers"):  # skipped as a whole where that is not installed
            found |= {f"{name}::{test}" for test in re.findall(r"^def (test_\w+)", (HERE / name).read_text(), re.M)}
    return found


def problems(cases: list[dict[str, Any]], known: set[str]) -> list[str]:
    """What is wrong with a list of cases."""
    found = []
    for case in cases:
        tests, waits = case.get("tests"), case.get("waits")
        if bool(tests) == bool(waits):
            found.append(f"{case['id']}: name its tests or the feature it waits for")
        if waits and waits not in FEATURES:
            found.append(f"{case['id']}: unknown feature {waits!r}")
        found += [f"{case['id']}: no test {name}" for name in tests or () if name not in known]
    ids = [case["id"] for case in cases]
    if len(set(ids)) != COUNT or len(ids) != COUNT:
        found.append(f"{len(set(ids))} different ids, expected {COUNT}")
    if any(not case["class"].startswith(CLASSES) for case in cases):
        found.append("a case of another class")
    return found


def test_every_case_has_its_tests_or_the_feature_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    known = collected()
    assert problems(CASES, known) == []
    covered = [case for case in CASES if case.get("tests")]
    with capsys.disabled():
        print(f"\nfield cases: {len(CASES)}, tested {len(covered)}")
        for feature in FEATURES:
            print(f"  {feature}: {sum(case.get('waits') == feature for case in CASES)}")
    assert 2 * len(covered) >= len(CASES)


def test_a_wrong_list_is_noticed() -> None:
    known = {name for case in CASES for name in case.get("tests", ())}
    assert problems(CASES, known) == []
    assert problems(CASES[1:], known)
    assert problems([{**CASES[0], "tests": ["test_field_cases_states.py::test_gone"]}, *CASES[1:]], known)
    assert problems([{**CASES[0], "waits": "waits: tiers"}, *CASES[1:]], known)
    assert problems([*CASES[1:], {"id": "FC-001", "class": "alignment", "waits": "waits: luck"}], known)
