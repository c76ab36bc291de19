# SPDX-License-Identifier: Apache-2.0
"""The probe over HTTP against real tiny models: hybridkv's own reuse is consistent, states that are broken are not."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="transformers is absent: the service runs one of its models")

import torch

from faults import FAULTS
from hybridkv.probe import ProbeVerdict
from probe_models import HashHit, Real, Reusing
from probe_support import probed
from tiny_models import tiny

SOAK = os.environ.get("HYBRIDKV_SOAK") == "1"

SMALL: dict[str, Any] = {
    "windows": (),
    "answer_tokens": 2 if SOAK else 1,
    "far_tokens": 24 if SOAK else 8,
    "longest": 64,
    "http": True,
}

WINDOWED, COMPRESSED, RECURRENT = "gemma3_text", "deepseek_v4", "qwen3_next"

ONE_BLOCK_LESS = "one block less than is said"

SHORT_RUN = [(WINDOWED, 16, "window: of one token ago")]
"""(model, tokens of a block, fault): what every run stages."""

LONG_RUN = [
    (WINDOWED, 16, "history: of another request"),
    *((COMPRESSED, 16, name) for name in (
        "window: of one window ago, expired", "window: of another request", "window: newest row first",
        "overlap: gone", "overlap: of another request", "indexer: all zero", "indexer: of another request",
        "history: one CSA block of another request", "history: moved by one entry", "history: pages read transposed",
        "history: [plain | rotated] read as [rotated | plain]",
        "storage: last quarter of the history not yet there", "storage: states of one window ago, history right",
        "storage: everything of another request", "storage: everything of weights that differ by 1 %", ONE_BLOCK_LESS,
    )),
    *((COMPRESSED, 1, name) for name in ("tail: buffers gone", "tail: all zero", "tail: of another request")),
    *((RECURRENT, 16, name) for name in ("recurrent: of one token ago", "recurrent: all zero")),
]  # fmt: skip
"""In a soak too. A tail that is aligned has no rows to lose: those need a block of one token."""

STAGED = SHORT_RUN + (LONG_RUN if SOAK else [])


@functools.cache
def model(name: str, dtype: Any = None) -> Any:
    return tiny(name, 0, dtype)


@functools.cache
def real(name: str) -> Real:
    return Real(model(name))


@pytest.mark.parametrize(("name", "block", "fault"), STAGED)
def test_broken_states_of_a_real_model_are_false_hits(name: str, block: int, fault: str) -> None:
    engine = HashHit(real(name), block=block, fault=16 if fault == ONE_BLOCK_LESS else FAULTS[fault])
    # A verdict of false hits stands where requests run out.
    report = probed(engine, controls=2, max_requests=55, **SMALL)
    assert engine.false_hits
    assert report.verdict is ProbeVerdict.FALSE_HITS, report.as_text()


@pytest.mark.soak
def test_states_that_give_no_numbers_are_told() -> None:
    engine = HashHit(real(COMPRESSED), fault=FAULTS["format: other byte order"])
    report = probed(engine, controls=2, **SMALL)
    assert report.verdict is ProbeVerdict.CANNOT_TELL and "NaN" in report.reason, report.as_text()


def check_own_reuse(name: str, dtype: Any = None, **options: Any) -> None:
    report = probed(Reusing(model(name, dtype)), **{**SMALL, **options})
    assert report.verdict is ProbeVerdict.CONSISTENT, report.as_text()
    assert len(report.compared) >= 8 and report.isolation.way == "cache_salt"
    assert {one.trial.design for one in report.compared} == {"repeat", "continued", "branch", "turn", "twin"} - {"twin"}


def test_hybridkvs_own_reuse_is_consistent() -> None:
    check_own_reuse(WINDOWED, controls=2)


@pytest.mark.soak
@pytest.mark.parametrize("name", [WINDOWED, COMPRESSED, RECURRENT])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_hybridkvs_own_reuse_is_consistent_on_every_kind_of_model(name: str, dtype: Any) -> None:
    check_own_reuse(name, dtype, controls=8, windows=(16,), answer_tokens=8)


@pytest.mark.soak
@pytest.mark.parametrize("name", [WINDOWED, COMPRESSED])
def test_the_same_manager_without_a_fault_is_consistent(name: str) -> None:
    report = probed(HashHit(real(name)), controls=8, **{**SMALL, "windows": (16,)})
    assert report.verdict is ProbeVerdict.CONSISTENT, report.as_text()
