# SPDX-License-Identifier: Apache-2.0
"""From ``hk.ops`` to the kernel without a device: a stand-in driver runs the kernels under the harness."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import device_cases
from device_cases import WITHOUT
from hybridkv import _core

ROOT = Path(__file__).resolve().parents[2]

# Cases that compare bytes run in each order of threads.
ORDERED = [
    (name, order)
    for name in device_cases.CASES
    for order in (("0", "1", "2") if "host" in name else ("0",))
    if name != WITHOUT
]

needs_kernels = pytest.mark.skipif(
    _core.cuda_facts()["image_bytes"] == 0, reason="this build carries no CUDA kernels: nvcc was absent"
)


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the stand-in driver."""
    library = tmp_path_factory.mktemp("fake_cuda") / "libcuda_stand_in.so"
    include = [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests' / 'cpp'}"]
    source = ROOT / "tests" / "cpp" / "fake_cuda" / "driver.cpp"
    compiler = shutil.which("c++") or "c++"
    command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", *include, str(source)]
    subprocess.run([*command, "-o", str(library)], check=True, capture_output=True, text=True)
    return library


@functools.cache
def run_cases(names: tuple[str, ...], **environment: str) -> dict[str, tuple[bool, str]]:
    """Run cases, each in a fork that opens the driver afresh: whether each came through, and what it wrote."""
    command = [sys.executable, "-W", "error", device_cases.__file__, *names]
    path = os.pathsep.join(path for path in sys.path if path)
    told = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", **environment}  # a fork has one thread
    run = subprocess.run(command, env=told, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return {name: (through, wrote) for name, through, wrote in map(json.loads, run.stdout.splitlines())}


def run_case(name: str, **environment: str) -> None:
    """Run the case that tells why there is no device."""
    through, wrote = run_cases((name,), **environment)[name]
    assert through, wrote[-3000:]


@needs_kernels
@pytest.mark.parametrize(("name", "order"), ORDERED)
def test_on_the_stand_in(name: str, order: str, stand_in: Path) -> None:
    names = tuple(one for one, of in ORDERED if of == order)
    through, wrote = run_cases(names, HYBRIDKV_LIBCUDA=str(stand_in), HKV_FAKE_ORDER=order)[name]
    assert through, wrote[-3000:]


@needs_kernels
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"HKV_FAKE_INIT": "100"}, "cuInit: no CUDA-capable device is detected"),
        ({"HKV_FAKE_INIT": "999"}, "cuInit: error 999"),
        ({"HKV_FAKE_DEVICES": "0"}, "no CUDA device is visible"),
        ({"HYBRIDKV_LIBCUDA": "libno_such_driver.so"}, "no NVIDIA driver: libno_such_driver.so"),
        ({"HYBRIDKV_LIBCUDA": "libm.so.6"}, "the NVIDIA driver is too old: no cuInit"),
    ],
)
def test_why_there_is_no_device(environment: dict[str, str], reason: str, stand_in: Path) -> None:
    run_case(WITHOUT, **{"HYBRIDKV_LIBCUDA": str(stand_in), "HKV_REASON": reason, **environment})


def test_a_build_without_kernels_says_so() -> None:
    if _core.cuda_facts()["image_bytes"]:
        pytest.skip("this build carries CUDA kernels")
    run_case(WITHOUT, HKV_REASON="this build carries no CUDA kernels")


def configure(folder: Path, *options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Configure the core alone in `folder`, with this search path."""
    command = ["cmake", "-S", str(ROOT), "-B", str(folder), "-DHYBRIDKV_PYTHON=OFF", *options]
    told = {key: value for key, value in os.environ.items() if key not in ("CUDA_HOME", "CUDA_PATH")}
    return subprocess.run(command, env={**told, "PATH": path or told["PATH"]}, capture_output=True, text=True)


@pytest.fixture(scope="session")
def path_without_nvcc(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make a folder with what a build needs, and no nvcc."""
    folder = tmp_path_factory.mktemp("tools")
    for name in ("cmake", "make", "ninja", "c++", "g++", "cc", "gcc", "ar", "ranlib", "ld", "as", "nm", "strip", "sh"):
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return str(folder)


def test_without_nvcc_the_build_is_for_the_cpu(tmp_path: Path, path_without_nvcc: str) -> None:
    run = configure(tmp_path, path=path_without_nvcc)
    assert run.returncode == 0, run.stderr
    assert "built without CUDA kernels (HYBRIDKV_CUDA=AUTO)" in run.stdout
    target = "CMakeFiles/hybridkv_core.dir/csrc/kernels/device_image.cpp.o"
    build = subprocess.run(
        ["cmake", "--build", str(tmp_path), "--target", "help"], capture_output=True, text=True, check=True
    )
    assert "hybridkv_core" in build.stdout
    flags = (tmp_path / "compile_commands.json").read_text(encoding="utf-8")
    assert target in flags and "HKV_DEVICE_IMAGE" not in flags


def test_on_without_nvcc_fails_with_one_line(tmp_path: Path, path_without_nvcc: str) -> None:
    run = configure(tmp_path, "-DHYBRIDKV_CUDA=ON", path=path_without_nvcc)
    assert run.returncode != 0
    assert "HYBRIDKV_CUDA=ON needs nvcc, and none was found" in run.stderr


@pytest.mark.parametrize("value", ["OFF", "MAYBE"])
def test_off_and_what_is_no_choice(tmp_path: Path, value: str) -> None:
    run = configure(tmp_path, f"-DHYBRIDKV_CUDA={value}")
    assert (run.returncode == 0) == (value == "OFF")
    text = "built without CUDA kernels" if value == "OFF" else "is AUTO, ON, PIP or OFF, not MAYBE"
    assert text in run.stdout + run.stderr


CHECKS = [sys.executable, "-W", "error", str(ROOT / "tests" / "gpu" / "run_device_checks.py")]


@needs_kernels
def test_the_device_checks_pass_on_the_stand_in(stand_in: Path) -> None:
    told = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run([*CHECKS, "--rehearse", str(stand_in)], env=told, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("| ok |") == 8


def test_the_device_checks_say_that_there_is_no_gpu() -> None:
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(CHECKS, env=hidden, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("not run: torch ")
