# SPDX-License-Identifier: Apache-2.0
"""What the compressor refuses, by the name of the argument, before it writes anything."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
import hybridkv.reference as ref
from hybridkv import KernelContract, SpecError
from hybridkv.reference import Rope, Yarn, published

WIDTH, ROWS = 4, 12
RING = (2, 8, 16)
ROW = published.plain("float32", WIDTH, page_rows=2)


def good() -> dict[str, Any]:
    """Two requests at 0 and 5, of 5 and 7 rows: one and two closing windows."""
    arena = np.zeros((6, ROW.page_bytes), np.uint8)
    return {
        "kv": np.ones((ROWS, 2 * WIDTH)),
        "score": np.ones((ROWS, 2 * WIDTH), np.float32),
        "out": arena,
        "ratio": 4,
        "overlap": True,
        "norm_weight": np.ones(WIDTH, np.float32),
        "eps": 1e-6,
        "rope": Rope(2, 10000.0),
        "row_format": ROW,
        "carry": np.ones(RING, np.float32),
        "new_carry": np.zeros(RING, np.float32),
        "starts": np.array([0, 5, 12], np.int32),
        "positions": np.array([0, 5], np.int32),
        "write_mask": np.array([0, 8], np.int32),
        "page_ids": np.array([[0, -1], [3, 2]], np.int32),
    }


def test_good_arguments_are_taken() -> None:
    given = good()
    ref.compress_tail(**given)
    assert given["out"].any() and given["new_carry"].any()


def read_only(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    array = np.zeros(shape, dtype)
    array.flags.writeable = False
    return array


SHARED = np.zeros(6 * ROW.page_bytes, np.uint8)
PAGES = SHARED.reshape(6, ROW.page_bytes)

BAD: list[tuple[str, dict[str, Any]]] = [
    ("kv", {"kv": [[1.0] * 8] * ROWS}),
    ("kv", {"kv": np.ones((ROWS, 2 * WIDTH), np.float16)}),
    ("kv", {"kv": np.ones((ROWS, 2 * WIDTH), np.int64)}),
    ("kv", {"kv": np.ones((ROWS, WIDTH))}),
    ("kv", {"kv": np.ones((ROWS, 4 * WIDTH))[:, ::2]}),
    ("kv", {"overlap": False, "carry": None, "new_carry": None}),
    ("score", {"score": np.ones((ROWS - 1, 2 * WIDTH))}),
    ("score", {"score": np.asfortranarray(np.ones((ROWS, 2 * WIDTH)))}),
    ("out", {"out": np.zeros((6, ROW.page_bytes), np.int8)}),
    ("out", {"out": np.zeros((6, ROW.page_bytes - 1), np.uint8)}),
    ("out", {"out": read_only((6, ROW.page_bytes), np.uint8)}),
    ("out", {"out": PAGES, "kv": SHARED.view(np.uint16).reshape(12, 8)}),
    ("out", {"out": PAGES, "page_ids": SHARED[:16].view(np.int32).reshape(2, 2)}),
    ("out", {"page_ids": None, "out": np.zeros((1, ROW.page_bytes), np.uint8)}),
    ("ratio", {"ratio": 0}),
    ("ratio", {"ratio": 4.0}),
    ("ratio", {"ratio": True}),
    ("overlap", {"overlap": 1}),
    ("norm_weight", {"norm_weight": np.ones((1, WIDTH))}),
    ("norm_weight", {"norm_weight": np.ones(0)}),
    ("norm_weight", {"rope": Rope(6, 10000.0)}),
    ("eps", {"eps": -1e-6}),
    ("eps", {"eps": np.nan}),
    ("eps", {"eps": "small"}),
    ("rope", {"rope": 10000.0}),
    ("row_format", {"row_format": None}),
    ("row_format", {"row_format": published.FP8_DS_MLA}),
    ("carry", {"carry": None}),
    ("carry", {"carry": np.ones(RING)[:, :7]}),
    ("carry", {"carry": np.ones(RING, np.float16)}),
    ("carry", {"carry": np.ones((2, 8, 32))[:, :, ::2]}),
    ("new_carry", {"new_carry": np.zeros((1, 8, 16))}),
    ("new_carry", {"new_carry": read_only(RING, np.float32)}),
    ("starts", {"starts": np.array([0, 5, 12])}),
    ("starts", {"starts": np.array([0, 12], np.int32)}),
    ("starts", {"starts": np.array([1, 5, 12], np.int32)}),
    ("starts", {"starts": np.array([0, 5, 11], np.int32)}),
    ("starts", {"starts": np.array([0, 13, 12], np.int32)}),
    ("positions", {"positions": np.array([0, -5], np.int32)}),
    ("positions", {"positions": np.array([0, 2**31 - 7], np.int32)}),
    ("positions", {"positions": np.array([[0, 5]], np.int32)}),
    ("write_mask", {"write_mask": np.array([0], np.int32)}),
    ("write_mask", {"write_mask": np.array([0, 8])}),
    ("page_ids", {"page_ids": np.array([[0], [3]])}),
    ("page_ids", {"page_ids": np.array([[0, 1], [3, 6]], np.int32)}),
    ("page_ids", {"page_ids": np.array([[0, -2], [3, 2]], np.int32)}),
    ("page_ids", {"page_ids": np.array([[0], [3]], np.int32)}),
    ("page_ids", {"page_ids": np.array([[3, 1], [2, 3]], np.int32)}),
]


@pytest.mark.parametrize(("argument", "change"), BAD, ids=[f"{i}-{name}" for i, (name, _) in enumerate(BAD)])
def test_what_is_refused_is_named_and_nothing_is_written(argument: str, change: dict[str, Any]) -> None:
    given = {**good(), **change}
    outputs = [given["out"], given["new_carry"]]
    before = [None if x is None else x.copy() for x in outputs]
    with pytest.raises(KernelContract) as caught:
        ref.compress_tail(**given)
    assert caught.value.field == argument, caught.value
    for output, old in zip(outputs, before, strict=True):
        assert old is None or (output == old).all()


def test_a_new_carry_may_be_the_carry_but_not_a_part_of_it() -> None:
    given = good()
    ref.compress_tail(**{**given, "new_carry": given["carry"]})
    both = np.ones((3, 8, 16), np.float32)
    with pytest.raises(KernelContract, match="new_carry"):
        ref.compress_tail(**{**given, "carry": both[:2], "new_carry": both[1:]})


@pytest.mark.parametrize(
    ("ratio", "overlap", "position", "rows", "mask", "taken"),
    [
        (4, False, 0, 3, 0, True),
        (4, False, 8, 3, 0, True),  # nothing is live at a boundary
        (4, False, 9, 3, 99, False),  # the open window's rows are
        (4, True, 8, 9, 0, False),  # the overlap is
        (4, True, 8, 9, 11, False),  # the first window would be written
        (4, True, 8, 9, 12, True),
        (4, True, 8, 3, 99, False),  # nothing closes: the overlap would be asked for later
        (1, True, 1, 1, 0, False),
        (1, False, 7, 1, 0, True),
    ],
)
def test_when_a_carry_is_needed(ratio: int, overlap: bool, position: int, rows: int, mask: int, taken: bool) -> None:
    width = WIDTH * (1 + overlap)
    given = {
        **good(),
        "kv": np.ones((rows, width)),
        "score": np.ones((rows, width)),
        "ratio": ratio,
        "overlap": overlap,
        "carry": None,
        "new_carry": None,
        "starts": np.array([0, rows], np.int32),
        "positions": np.array([position], np.int32),
        "write_mask": np.array([mask], np.int32),
        "page_ids": None,
    }
    if taken:
        ref.compress_tail(**given)
    else:
        with pytest.raises(KernelContract, match="carry"):
            ref.compress_tail(**given)


def test_the_arguments_are_those_of_the_contract() -> None:
    """By name, in order; what is not in the contract is keyword-only."""
    parameters = inspect.signature(ref.compress_tail).parameters
    assert [name for name in parameters if name != "page_ids"] == [
        *("kv", "score", "out", "ratio", "overlap", "norm_weight", "eps", "rope", "row_format"),
        *("carry", "new_carry", "starts", "positions", "write_mask", "stream"),
    ]
    assert all(p.kind is p.KEYWORD_ONLY for name, p in parameters.items() if name not in ("kv", "score", "out"))
    assert hk.reference is ref


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("rope.dims", lambda: Rope(3, 10000.0)),
        ("rope.dims", lambda: Rope(0, 10000.0)),
        ("rope.theta", lambda: Rope(2, 1.0)),
        ("rope.theta", lambda: Rope(2, "big")),  # type: ignore[arg-type]
        ("rope.theta", lambda: Rope(2, np.inf)),
        ("rope.yarn", lambda: Rope(2, 10000.0, {"factor": 16})),  # type: ignore[arg-type]
        ("rope.interleaved", lambda: Rope(2, 10000.0, interleaved=1)),  # type: ignore[arg-type]
        ("yarn.factor", lambda: Yarn(0.5, 4096)),
        ("yarn.original_positions", lambda: Yarn(16.0, 0)),
        ("yarn.beta_fast", lambda: Yarn(16.0, 4096, 1.0, 32.0)),
        ("yarn.beta_slow", lambda: Yarn(16.0, 4096, 32.0, 0.0)),
        ("yarn.truncate", lambda: Yarn(16.0, 4096, truncate=0)),  # type: ignore[arg-type]
    ],
)
def test_a_bad_rotation_is_refused_by_name(field: str, make: Any) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.field == field
