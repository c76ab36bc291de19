# SPDX-License-Identifier: Apache-2.0
"""Failures of prefix and KV caches seen in public, as tests: what must be impossible or visible here.

`tests/data/cases/field_cases.json` says each case in a sentence and names its tests, or the feature that
it waits for.
"""

from __future__ import annotations

from typing import Any

import pytest

from case_lists import collected, problems, read, summary

CASES = read("field_cases.json")
COUNTS = {
    "swa-window-stale-or-missing": 14,
    "tail-or-rolling-state-missing": 11,
    "indexer-out-of-sync": 6,
    "partial-cached-as-complete": 7,
    "group-intersection-wrong": 12,
    "key-lacks-identity": 11,
    "alignment-stride-padding": 8,
    "format-abi-mismatch": 9,
    "toctou-refcount-eviction": 12,
    "offload-onload-race-or-misplaced": 10,
    "disk-tier-integrity": 7,
    "graph-topology": 8,
    "admission-deadlock": 11,
    "metrics-or-events-misreport": 4,
    "security-isolation": 6,
}
IDS = {case["id"] for case in CASES}


def wrong(cases: list[dict[str, Any]], known: set[str]) -> list[str]:
    """What is wrong with a list: with its cases, and with how many of each class it has."""
    classes = [case["class"] for case in cases]
    counts = {name: classes.count(name) for name in {*COUNTS, *classes}}
    miscounted = [f"{name}: {n} cases" for name, n in sorted(counts.items()) if n != COUNTS.get(name)]
    return problems(cases, known, IDS) + miscounted


def test_every_case_has_its_tests_or_the_feature_it_waits_for(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    assert wrong(CASES, collected(CASES, request.session)) == []
    with capsys.disabled():
        print("\n" + summary("field cases", CASES))
    assert 4 * sum("tests" in case for case in CASES) >= 3 * len(CASES)


def test_a_wrong_list_is_noticed() -> None:
    known = {name for case in CASES for name in case.get("tests", ())}
    assert wrong(CASES, known) == []
    first, *others = CASES
    assert wrong(others, known)
    assert wrong([{**first, "tests": ["test_field_cases_states.py::test_gone"]}, *others], known)
    assert wrong([{**first, "waits": "waits: disk tier"}, *others], known)
    assert wrong([{**first, "class": "luck"}, *others], known)
    assert wrong([*CASES, {**first, "id": "FC-999"}], known)
    luck = {key: value for key, value in first.items() if key != "tests"} | {"waits": "waits: luck"}
    assert wrong([luck, *others], known) == [f"{first['id']}: unknown feature 'waits: luck'"]
