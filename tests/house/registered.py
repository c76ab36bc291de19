# SPDX-License-Identifier: Apache-2.0
"""Registration: a test that is on disk is a test that runs."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

from house.optional import OPTIONAL
from house.tree import files, shown

_PYTHON_TEST = re.compile(r"^\s*(?:async\s+)?def test_\w+\(", re.MULTILINE)


def names(root: Path) -> list[str]:
    """Find files that hold tests but have a name or a place that nothing collects."""
    found = []
    for path in files(root, ".py"):
        collected = re.match(r"^(test|bench)_", path.name) and path.relative_to(root).parts[0] in (
            "tests",
            "bench",
        )
        if not collected and _PYTHON_TEST.search(path.read_text(encoding="utf-8")):
            found.append(f"{shown(root, path)}: holds tests, but is not test_*.py under tests/ or bench/")
    for path in files(root, ".cpp", ".cc", ".cxx", ".c"):
        under_tests = path.is_relative_to(root / "tests" / "cpp")
        collected = under_tests and path.name.endswith("_test.cpp")
        holds = re.search(r"^\s*HKV_TEST\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        if not collected and (holds or re.search(r"_test\.c\w*$", path.name)):
            found.append(f"{shown(root, path)}: holds tests, but is not tests/cpp/**/*_test.cpp")
    return found


def ctest(root: Path, build: Path) -> list[str]:
    """Find C++ tests that CMake does not register; configures the tree in the folder `build`."""
    expected = {
        shown(root / "tests" / "cpp", path).removesuffix(".cpp").replace("/", ".")
        for path in files(root / "tests" / "cpp", "_test.cpp")
        if path.parent.name != "relacy"
    }
    if Path("/usr/include/relacy/relacy.hpp").exists():  # else CMake leaves the model-checked programs out
        expected |= {f"relacy.{path.stem}" for path in (root / "tests" / "cpp" / "relacy").glob("*.cpp")}
    if not expected:
        return ["tests/cpp: no C++ test at all"]
    configure = ["cmake", "-S", str(root), "-B", str(build), "-DHYBRIDKV_TESTS=ON", "-DHYBRIDKV_PYTHON=OFF"]
    subprocess.run(configure, check=True, capture_output=True, text=True)
    listed = subprocess.run(
        ["ctest", "--test-dir", str(build), "--show-only=json-v1"], check=True, capture_output=True, text=True
    )
    registered = {test["name"] for test in json.loads(listed.stdout)["tests"]}
    return [f"{name}: not registered with ctest" for name in sorted(expected - registered)]


def _lacks_an_extra(path: Path) -> bool:
    """Say whether a test file skips itself for want of an optional package, and that package is absent here."""
    skips = [
        call.args[0].value
        for statement in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(statement, (ast.Expr, ast.Assign)) and isinstance(call := statement.value, ast.Call)
        if ast.unparse(call.func) == "pytest.importorskip" and isinstance(call.args[0], ast.Constant)
    ]
    packages = {str(name).partition(".")[0] for name in skips} & OPTIONAL
    return any(importlib.util.find_spec(package) is None for package in packages)


def pytest(root: Path) -> list[str]:
    """Find test files from which pytest collects nothing, those left out that lack an extra."""
    expected = {shown(root, path) for path in files(root / "tests", ".py") if path.name.startswith("test_")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(root),
    ]
    run = subprocess.run([*command, "tests"], cwd=root, capture_output=True, text=True)
    if run.returncode not in (0, 5):
        return [f"pytest --collect-only failed:\n{run.stdout[-2000:]}{run.stderr[-2000:]}"]
    collected = set(re.findall(r"^([\w/.\-]+\.py)(?:::|: \d+)", run.stdout, re.MULTILINE))
    hollow = [name for name in sorted(expected - collected) if not _lacks_an_extra(root / name)]
    return [f"{name}: pytest collects nothing from it" for name in hollow]
