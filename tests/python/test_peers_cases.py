# SPDX-License-Identifier: Apache-2.0
"""What other cache managers' tests pin for any correct hybrid manager: each case has its tests here, or waits.

`tests/data/cases/peer_cases.json` says each case in a sentence.
"""

from __future__ import annotations

import pytest

from case_lists import collected, problems, read, summary

CASES = read("peer_cases.json")
ALLOCATION = ("A1", "A2", "A4", "A5", "A6", "A8", "A9", "A11", "A12", "A13", "A18", "A19", "A20")
REPLAY_AND_LOADS = ("R1", "R2", "R4", "T1", "T3", "T4", "T5", "F2", "F3")
IDS = {*ALLOCATION, *REPLAY_AND_LOADS}


def test_every_case_has_its_tests_or_the_feature_it_waits_for(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    assert problems(CASES, collected(CASES, request.session), IDS) == []
    with capsys.disabled():
        print("\n" + summary("peer cases", CASES))
    assert all("tests" in case for case in CASES if case["id"] in ALLOCATION)


def test_a_wrong_list_is_noticed() -> None:
    known = {name for case in CASES for name in case.get("tests", ())}
    assert problems(CASES, known, IDS) == []
    first, *others = CASES
    assert problems(others, known, IDS) == ["A1: not in the list"]
    assert problems([first, *CASES], known, IDS) == ["A1: twice"]
    assert problems([{**first, "id": "A99"}, *CASES], known, IDS) == ["A99: not asked for"]
    assert problems([{**first, "tests": ["test_peers_replay.py::test_gone"]}, *others], known, IDS)
    assert problems([{**first, "waits": "waits: disk tier"}, *others], known, IDS)
    assert problems([{**first, "tests": [], "waits": "waits: luck"}, *others], known, IDS)
    assert problems([{**first, "says": ""}, *others], known, IDS)
