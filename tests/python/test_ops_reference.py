# SPDX-License-Identifier: Apache-2.0
"""Kernels and the specification in numpy, written apart from the same document: one outcome, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from kernel_model import level

__all__ = ["level"]  # a fixture


def drawn(rng: np.random.Generator) -> dict[str, Any]:
    """One group: layout, pools, ids now and then out of range, counts of which half are stale."""

    def pick(*of: Any) -> Any:
        return of[rng.integers(len(of))]

    rows, row_bytes, footer = int(rng.integers(1, 7)), pick(8, 16, 24, 60, 64, 68, 132, 576, 584), pick(0, 0, 4, 8, 16)
    stride = row_bytes + pick(0, 0, 8, 16, 3)
    offset = rows * stride + pick(0, 0, 16, 8, 5)
    page_bytes = max(offset + rows * footer, rows * stride) + pick(0, 0, 16, 8)
    pages, count = int(rng.integers(1, 9)), int(rng.integers(0, 9))
    dtype = pick(np.int32, np.int64)
    by_row = bool(rng.integers(2))
    beyond = int(rng.random() < 0.05)
    return {
        "layout": (rows, row_bytes, stride, footer, offset if footer else None),
        "pools": [rng.integers(0, 256, (pages, page_bytes), dtype=np.uint8) for _ in range(rng.integers(1, 4))],
        "ids": rng.integers(-1, pages + beyond, count).astype(dtype),
        "rows": rng.integers(-1, rows, count).astype(dtype) if by_row else None,
        "width": (row_bytes + footer) * (1 if by_row else rows),
        "handouts": pick(None, tuple(rng.integers(0, 2, n).astype(np.uint64) for n in (pages, count))),
        "null_page": pick(None, 0),
        "missing": pick("zeros", "skip"),
        "seed": int(rng.integers(2**32)),
    }  # fmt: skip


def outcome(module: Any, operation: str, case: dict[str, Any]) -> list[bytes] | str:
    pools, count = [pool.copy() for pool in case["pools"]], len(case["ids"])
    shape = (len(pools), count, case["width"])
    buffer = np.random.default_rng(case["seed"]).integers(0, 256, shape, dtype=np.uint8)
    status, prints = np.full(count, 9, np.int32), np.zeros(shape[:2], np.uint64)
    common = {"layout": module.PageRows(*case["layout"]), "null_page": case["null_page"]}
    copied = {**common, "rows": case["rows"], "status": status, "handouts": case["handouts"]}
    try:
        if operation == "gather":
            module.gather(pools, case["ids"], buffer, missing=case["missing"], **copied)
        elif operation == "scatter":
            module.scatter(buffer, pools, case["ids"], **copied)
        else:
            module.fingerprint(pools, case["ids"], prints, **common)
    except hk.KernelContract:
        return "refused"
    return [array.tobytes() for array in (buffer, status, prints, *pools)]


@pytest.mark.parametrize("operation", ["gather", "scatter", "fingerprint"])
def test_kernels_do_what_the_specification_does(level: str, operation: str) -> None:
    reference = pytest.importorskip("hybridkv.reference", reason="the specification in numpy is not in this tree")
    rng = np.random.default_rng(1)
    outcomes = []
    for _ in range(400):
        case = drawn(rng)
        ours = outcome(hk.ops, operation, case)
        assert ours == outcome(reference, operation, case), case
        outcomes.append(ours == "refused")
    assert 0 < sum(outcomes) < len(outcomes)
