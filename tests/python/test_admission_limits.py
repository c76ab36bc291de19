# SPDX-License-Identifier: Apache-2.0
"""Admission as data: checked when made, and what the core is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import hybridkv as hk


def test_defaults_are_no_limits() -> None:
    assert hk.Admission()._numbers() == (0, 0, 0, 0, 0)
    assert hk.Admission().preempt == "youngest"


def test_numbers_of_the_core() -> None:
    seven: Any = np.int64(7)
    limits = hk.Admission(max_requests=seven, max_combinations=2, watermark=(0.07, 0.29), step_tokens=8192)
    assert limits._numbers() == (7, 2, 70_000, 290_000, 8192)
    assert type(limits.max_requests) is int
    assert hk.Admission(watermark=0.5).watermark == (0.5, 0.5)
    assert hk.Admission(watermark=1e-9)._numbers()[2:4] == (1, 1)  # not off
    assert hk.Admission(watermark=0)._numbers()[2:4] == (0, 0)
    assert hk.Admission(watermark=(0, 1)).watermark == (0.0, 1.0)
    assert dataclasses.replace(limits, max_requests=None).watermark == (0.07, 0.29)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_requests", 0),
        ("max_requests", True),
        ("max_requests", 1.0),
        ("max_requests", 2**62),
        ("max_combinations", -1),
        ("step_tokens", "8"),
        ("step_tokens", 0),
        ("watermark", -0.1),
        ("watermark", 1.1),
        ("watermark", (0.5, 0.4)),
        ("watermark", (0.5,)),
        ("watermark", (0.1, 0.2, 0.3)),
        ("watermark", float("nan")),
        ("watermark", (0.1, float("nan"))),
        ("watermark", "0.1"),
        ("watermark", True),
        ("watermark", np.True_),
        ("watermark", [0.1, 0.2]),
        ("watermark", None.__class__),
        ("preempt", "oldest"),
        ("preempt", None),
        ("preempt", ["youngest"]),
    ],
)
def test_a_bad_field_is_named(field: str, value: object) -> None:
    with pytest.raises(hk.ArgumentError) as refused:
        hk.Admission(**{field: value})  # type: ignore[arg-type]
    assert refused.value.field == field


def test_limits_are_values() -> None:
    assert hk.Admission(watermark=0.1) == hk.Admission(watermark=(0.1, 0.1))
    assert len({hk.Admission(), hk.Admission(max_requests=1), hk.Admission()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        hk.Admission().max_requests = 1  # type: ignore[misc]
