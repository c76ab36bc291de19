# SPDX-License-Identifier: Apache-2.0
"""Lists of cases, each with the tests that cover it or the feature it waits for, and what can be wrong with one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FEATURES = (
    "waits: disk tier",
    "waits: offload and restore",
    "waits: kernels",
    "waits: format registry and negotiation",
    "waits: engine adapters",
)


def read(name: str) -> list[dict[str, Any]]:
    """The cases of a file of tests/data/cases."""
    cases = json.loads((HERE.parent / "data" / "cases" / name).read_text(encoding="utf-8"))
    assert isinstance(cases, list)
    return cases


def collected(cases: Sequence[dict[str, Any]], session: pytest.Session) -> set[str]:
    """Names of the tests that pytest collects from the files a list names; those of this run, where it has them all."""
    here = {f"{item.path.name}::{item.name.split('[')[0]}" for item in session.items}
    wanted = {name for case in cases for name in case.get("tests", ())}
    if wanted <= here:
        return here
    files = sorted({name.split("::")[0] for name in wanted})
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


def problems(cases: Sequence[dict[str, Any]], known: set[str], ids: set[str]) -> list[str]:
    """What is wrong with a list of cases that must have exactly these ids."""
    found = []
    for case in cases:
        tests, waits = case.get("tests"), case.get("waits")
        if bool(tests) == bool(waits):
            found.append(f"{case['id']}: name its tests or the feature it waits for")
        if waits and waits not in FEATURES:
            found.append(f"{case['id']}: unknown feature {waits!r}")
        if not case.get("says", "").endswith("."):
            found.append(f"{case['id']}: say it in a sentence")
        found += [f"{case['id']}: no test {name}" for name in tests or () if name not in known]
    have = [case["id"] for case in cases]
    found += [f"{name}: twice" for name in sorted(set(have)) if have.count(name) > 1]
    found += [f"{name}: not in the list" for name in sorted(ids - set(have))]
    found += [f"{name}: not asked for" for name in sorted(set(have) - ids)]
    return found


def summary(title: str, cases: Sequence[dict[str, Any]]) -> str:
    """How many cases have tests, and what the others wait for."""
    lines = [f"{title}: {len(cases)}, tested {sum('tests' in case for case in cases)}"]
    lines += [f"  {feature}: {sum(case.get('waits') == feature for case in cases)}" for feature in FEATURES]
    return "\n".join(lines)
