# SPDX-License-Identifier: Apache-2.0
"""The comparison between versions of transformers notices what it is there for; it is made by ``make skew``."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RUN = Path(__file__).resolve().parents[1] / "skew" / "run.py"
CASES = ("deepseek_v4 float32", "llama float32")
PREFIXES = (16, 48, 64, 77, 128)

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("skew_run", RUN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answers() -> dict[str, Answers]:
    """What a run without problems comes to: by version what was written, read by the newest, read by itself."""
    versions = {"newest": "5.24.0", "5.8.0": "5.8.0", "5.23.0": "5.23.0"}
    good = {"unequal": [], "reuse": {"reused_tokens": 9, "wrong_turns": []}}
    accepted = {"accepted": True, "same": True, "unchecked": 0.0}
    refused = {"code": "format", "fields": [["transformers", "5.24.0", "5.8.0"]], "unchecked": 4.5}
    keys = [f"{case} {p}" for case in CASES for p in PREFIXES]

    def read(told: dict[str, Any]) -> dict[str, Any]:
        return {"cases": {key: copy.deepcopy(told) for key in keys}}

    return {
        "written": {
            name: {"transformers": version, "cases": {case: copy.deepcopy(good) for case in CASES}}
            for name, version in versions.items()
        },
        "read": {"newest": read(accepted), "5.8.0": read(refused), "5.23.0": read(refused)},
        "own": {version: read(accepted) for version in ("5.8.0", "5.23.0")},
    }


WRONG: dict[str, Callable[[dict[str, Answers]], object]] = {
    "another version ran": lambda a: a["written"]["5.8.0"].update(transformers="5.9.0"),
    "the newest is an old one": lambda a: a["written"]["newest"].update(transformers="5.23.0"),
    "a model differs from itself": lambda a: a["written"]["5.8.0"]["cases"][CASES[1]].update(unequal=[[3, "chunk"]]),
    "a model is absent": lambda a: a["written"]["5.23.0"]["cases"].update({CASES[1]: {"absent": "KeyError"}}),
    "a model is refused": lambda a: a["written"]["newest"]["cases"].update({CASES[1]: {"refused": "why"}}),
    "a conversation went wrong": lambda a: a["written"]["5.8.0"]["cases"][CASES[1]]["reuse"].update(wrong_turns=[1]),
    "nothing was reused": lambda a: a["written"]["5.23.0"]["cases"][CASES[1]]["reuse"].update(reused_tokens=0),
    "no conversation": lambda a: a["written"]["newest"]["cases"][CASES[1]].update(reuse={"refused": "why"}),
    "an own image is refused": lambda a: a["own"]["5.8.0"]["cases"].update({"llama float32 16": {"code": "format"}}),
    "an own image goes on otherwise": lambda a: a["read"]["newest"]["cases"]["llama float32 16"].update(same=False),
    "an old image is accepted": lambda a: a["read"]["5.23.0"]["cases"].update({"llama float32 16": {"accepted": True}}),
    "for another reason": lambda a: a["read"]["5.8.0"]["cases"]["llama float32 16"].update(fields=[["torch", "", ""]]),
    "with another code": lambda a: a["read"]["5.8.0"]["cases"]["llama float32 16"].update(code="content"),
    "nothing would have changed": lambda a: a["read"]["5.8.0"]["cases"][f"{CASES[0]} 64"].update(unchecked=0.0),
    "it would not have fitted": lambda a: a["read"]["5.8.0"]["cases"][f"{CASES[0]} 64"].update(unchecked="KeyError"),
    "its structure would have told": lambda a: a["read"]["5.8.0"]["cases"][f"{CASES[0]} 64"]["fields"].append(
        ["layers[1].paths", "", "keys"]
    ),
    "an image is lost": lambda a: a["read"]["5.8.0"]["cases"].pop(f"{CASES[0]} 64"),
}


def test_a_good_run_has_no_problems(run: ModuleType) -> None:
    assert run._problems(**answers()) == []


@pytest.mark.parametrize("case", WRONG)
def test_a_problem_is_told(case: str, run: ModuleType) -> None:
    wrong = answers()
    WRONG[case](wrong)
    assert run._problems(**wrong)


def test_an_architecture_that_a_version_does_not_have_is_no_problem(run: ModuleType) -> None:
    found = answers()
    for version, case in run.ABSENT:
        found["written"][version]["cases"][case] = {"absent": "ValueError"}
    assert run._problems(**found) == []
