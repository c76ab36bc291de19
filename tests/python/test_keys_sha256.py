# SPDX-License-Identifier: Apache-2.0
"""SHA-256, each path, against hashlib; and the choice of the path."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridkv import _core
from hybridkv.errors import ArgumentError

PATHS = [name for name in ("portable", "sha_ni") if _core.sha256_supported(name)]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    before = _core.sha256_path()
    _core.sha256_choose(name)
    yield name
    _core.sha256_choose(before)


def test_every_length_to_300_agrees_with_hashlib(path: str) -> None:
    message = np.random.default_rng(1).integers(0, 256, 300, dtype=np.uint8).tobytes()
    for length in range(301):
        assert _core.sha256(message[:length]) == hashlib.sha256(message[:length]).digest(), length


@pytest.mark.parametrize("piece", [1, 3, 55, 63, 64, 65, 128, 1000])
def test_a_message_fed_in_pieces_agrees_with_hashlib(path: str, piece: int) -> None:
    message = np.random.default_rng(2).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    for length in (0, 1, 63, 64, 65, 119, 120, 4096, 5000):
        assert _core.sha256(message[:length], piece) == hashlib.sha256(message[:length]).digest()


@given(st.binary(max_size=2000), st.integers(0, 200))
def test_any_message_agrees_on_every_path(message: bytes, piece: int) -> None:
    before = _core.sha256_path()
    try:
        for name in PATHS:
            _core.sha256_choose(name)
            assert _core.sha256(message, piece) == hashlib.sha256(message).digest()
    finally:
        _core.sha256_choose(before)


def test_an_unknown_path_is_refused() -> None:
    before = _core.sha256_path()
    with pytest.raises(ArgumentError) as refused:
        _core.sha256_choose("md5")
    assert (refused.value.field, refused.value.got) == ("path", "md5")
    assert _core.sha256_path() == before


@pytest.mark.parametrize(("wish", "given"), [("portable", "portable"), ("sha_ni", PATHS[-1]), ("", PATHS[-1])])
def test_the_environment_chooses_the_path(wish: str, given: str) -> None:
    script = "from hybridkv import _core; print(_core.sha256_path())"
    env = {**os.environ, "HYBRIDKV_SHA256": wish, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    run = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == given


def test_the_instructions_are_used_where_the_machine_has_them() -> None:
    try:
        with open("/proc/cpuinfo") as lines:
            flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    except OSError:
        pytest.skip("no /proc/cpuinfo to compare with")
    assert _core.sha256_supported("portable")
    assert _core.sha256_supported("sha_ni") == {"sha_ni", "ssse3", "sse4_1"}.issubset(flags)
