# SPDX-License-Identifier: Apache-2.0
"""Offload and restore of pools on a CUDA device, without one: a stand-in driver copies when a case says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import device_pool_cases

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the stand-in driver that copies and runs no kernels."""
    library = tmp_path_factory.mktemp("fake_cuda") / "libcuda_copies.so"
    source = ROOT / "tests" / "cpp" / "fake_cuda" / "copies.cpp"
    compiler = shutil.which("c++") or "c++"
    options = ["-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{ROOT / 'tests' / 'cpp'}"]
    subprocess.run([compiler, *options, str(source), "-o", str(library)], check=True, capture_output=True, text=True)
    return library


@pytest.mark.parametrize("name", device_pool_cases.CASES)
def test_on_the_stand_in(name: str, copies: Path) -> None:
    library = "libno_such_driver.so" if name == "without_a_driver" else str(copies)
    path = os.pathsep.join(path for path in sys.path if path)
    told = {**os.environ, "PYTHONPATH": path, "HYBRIDKV_LIBCUDA": library}
    command = [sys.executable, "-W", "error", device_pool_cases.__file__, name]
    run = subprocess.run(command, env=told, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
