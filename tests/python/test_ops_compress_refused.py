# SPDX-License-Identifier: Apache-2.0
"""compress_tail refuses what the specification refuses, by the same argument, before a byte is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import hybridkv as hk
import hybridkv.reference as ref
from compress_support import GUARD, Call, a_call
from hybridkv.reference import published

PLAIN = published.plain("float32", 8, page_rows=3)
WIDTH = 16  # channels of a row with overlap


def a_good_call() -> Call:
    """Requests that close windows, carry and mask: seeds until there is one with all of them."""
    for seed in range(100):
        call = a_call(seed, 4, True, PLAIN, most_requests=4, most_rows=60)
        given = call.arguments
        if len(given["positions"]) == 3 and np.all(given["positions"] > 4) and np.sum(call.places() >= 0) > 4:
            return call
    raise AssertionError("no seed makes such a call")


GOOD = a_good_call()
ROWS = len(GOOD.arguments["kv"])
PAGES = GOOD.pages


def with_item(array: Any, at: Any, value: Any) -> Any:
    made = array.copy()
    made[at] = value
    return made


def given(name: str) -> Any:
    return GOOD.arguments[name]


def out_of(pages: int, width: int) -> Any:
    return np.full((pages, width), GUARD, np.uint8)


def read_only(array: Any) -> Any:
    made = array.copy()
    made.flags.writeable = False
    return made


def shared_with_ids() -> dict[str, Any]:
    out = out_of(PAGES, PLAIN.page_stride + 2 * PLAIN.stride_unit)
    ids = given("page_ids")
    inside = out.reshape(-1)[: ids.nbytes].view(np.int32).reshape(ids.shape)
    inside[:] = ids
    return {"out": out, "page_ids": inside}


def half_apart() -> dict[str, Any]:
    both = np.zeros((len(given("positions")) + 1, *given("carry").shape[1:]), np.float32)
    return {"carry": both[:-1], "new_carry": both[1:]}


def rows_twice() -> Any:
    """Two requests of one page table that close the same entry."""
    ids = given("page_ids")
    return np.repeat(ids[:1], len(ids), axis=0)


BOTH = {
    "ratio 0": lambda: {"ratio": 0},
    "ratio a float": lambda: {"ratio": 4.0},
    "overlap an int": lambda: {"overlap": 1},
    "eps negative": lambda: {"eps": -1e-6},
    "eps nan": lambda: {"eps": float("nan")},
    "rope a dict": lambda: {"rope": {}},
    "rope too wide": lambda: {"rope": ref.Rope(10, 1e4)},
    "norm of another width": lambda: {"norm_weight": np.ones(9, np.float32)},
    "norm of two dimensions": lambda: {"norm_weight": np.ones((8, 1), np.float32)},
    "format of another width": lambda: {"row_format": published.plain("float32", 9)},
    "no format": lambda: {"row_format": None},
    "kv of another width": lambda: {"kv": given("kv")[:, :-1]},
    "kv of one dimension": lambda: {"kv": given("kv").reshape(-1)},
    "kv of int32": lambda: {"kv": given("kv").astype(np.int32)},
    "kv column by column": lambda: {"kv": np.asfortranarray(given("kv"))},
    "score shorter": lambda: {"score": given("score")[:-1]},
    "score column by column": lambda: {"score": np.asfortranarray(given("score"))},
    "out of int8": lambda: {"out": out_of(PAGES, PLAIN.page_stride).view(np.int8)},
    "out of one dimension": lambda: {"out": out_of(1, PLAIN.page_stride).reshape(-1)},
    "pages too small": lambda: {"out": out_of(PAGES, PLAIN.page_bytes - 1)},
    "pages too near": lambda: {
        "out": as_strided(out_of(PAGES, 200), (PAGES, 96), (95, 1)),
    },
    "bytes of a page apart": lambda: {"out": out_of(PAGES, 2 * PLAIN.page_stride)[:, ::2]},
    "out read-only": lambda: {"out": read_only(out_of(PAGES, PLAIN.page_stride))},
    "starts of int64": lambda: {"starts": given("starts").astype(np.int64)},
    "starts too short": lambda: {"starts": given("starts")[:-1]},
    "starts from 1": lambda: {"starts": with_item(given("starts"), 0, 1)},
    "starts beyond the rows": lambda: {"starts": with_item(given("starts"), -1, ROWS + 1)},
    "starts short of the rows": lambda: {"starts": with_item(given("starts"), -1, ROWS - 1)},
    "starts that fall": lambda: {"starts": with_item(given("starts"), 1, ROWS + 1)},
    "positions of two dimensions": lambda: {"positions": given("positions")[None]},
    "a position below 0": lambda: {"positions": with_item(given("positions"), 0, -1)},
    "a position beyond int32": lambda: {"positions": with_item(given("positions"), -1, 2**31 - 1)},
    "mask too long": lambda: {"write_mask": np.zeros(9, np.int32)},
    "carry of float16": lambda: {"carry": given("carry").astype(np.float16)},
    "carry too narrow": lambda: {"carry": given("carry")[..., :-1]},
    "new carry with too few rows": lambda: {"new_carry": given("carry")[:, :-1].copy()},
    "new carry read-only": lambda: {"new_carry": read_only(given("carry"))},
    "new carry channels apart": lambda: {"new_carry": np.zeros((3, 8, 4 * WIDTH), np.float32)[..., ::2]},
    "no carry": lambda: {"carry": None},
    "carry half apart": half_apart,
    "ids of int64": lambda: {"page_ids": given("page_ids").astype(np.int64)},
    "ids for fewer requests": lambda: {"page_ids": given("page_ids")[:-1]},
    "an id beyond the pages": lambda: {"page_ids": with_item(given("page_ids"), (0, 0), PAGES)},
    "an id below -1": lambda: {"page_ids": with_item(given("page_ids"), (0, 0), -2)},
    "too few columns": lambda: {"page_ids": given("page_ids")[:, :1].copy(), "write_mask": None},
    "a row for two": lambda: {"page_ids": rows_twice(), "write_mask": None},
    "too few pages": lambda: {"page_ids": None, "out": out_of(1, PLAIN.page_stride)},
    "out with ids in it": shared_with_ids,
}


def refusal(operation: Any, changes: dict[str, Any]) -> hk.KernelContract:
    carry = np.full_like(given("carry"), np.nan)
    arguments = (
        {"out": out_of(PAGES, PLAIN.page_stride + 2 * PLAIN.stride_unit), "new_carry": carry} | GOOD.arguments | changes
    )
    outputs = [arguments["out"], arguments["new_carry"]]
    before = [x.copy() for x in outputs]
    with pytest.raises(hk.KernelContract) as refused:
        operation(arguments.pop("kv"), arguments.pop("score"), arguments.pop("out"), **arguments)
    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(before, outputs, strict=True))
    return refused.value


def test_the_call_that_the_cases_change_is_a_good_one() -> None:
    out, _ = GOOD.run()
    assert np.any(out != GUARD)


@pytest.mark.parametrize("case", sorted(BOTH))
def test_refused_as_the_specification_refuses(case: str) -> None:
    ours, theirs = (refusal(operation, BOTH[case]()) for operation in (hk.ops.compress_tail, ref.compress_tail))
    assert ours.argument == theirs.argument
    assert ours.expected and str(ours)


def off_by(array: Any, count: int) -> Any:
    """Return a copy that starts so many bytes behind an aligned address."""
    room = np.zeros(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64 + count
    made = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[:] = array
    return made


OURS = {
    "kv off its alignment": lambda: ("kv", {"kv": off_by(given("kv"), 1)}),
    "kv of float64": lambda: ("kv", {"kv": ref.BFLOAT16.decode(given("kv"))}),
    "norm of float64": lambda: ("norm_weight", {"norm_weight": np.ones(8)}),
    "carry of float64": lambda: ("carry", {"carry": given("carry").astype(np.float64)}),
    "carry off its alignment": lambda: ("carry", {"carry": off_by(given("carry"), 2)}),
    "starts off their alignment": lambda: ("starts", {"starts": off_by(given("starts"), 2)}),
    "row strides off": lambda: (
        "score",
        {"score": as_strided(given("score"), (ROWS, 16), (31, 2))},
    ),
    "out off the alignment of its format": lambda: (
        "out",
        {"out": off_by(out_of(PAGES, PLAIN.page_stride), 8), "row_format": replace(PLAIN, base_alignment=16)},
    ),
    "pages off the stride of their format": lambda: ("out", {"out": out_of(PAGES, PLAIN.page_stride + 8)}),
    "a row of float64": lambda: ("row_format", {"row_format": published.plain("float64", 8)}),
    "no array": lambda: ("kv", {"kv": [[1.0] * WIDTH] * ROWS}),
    "threads 0": lambda: ("threads", {"threads": 0}),
    "threads 65": lambda: ("threads", {"threads": 65}),
    "a stream": lambda: ("stream", {"stream": 0}),
}


@pytest.mark.parametrize("case", sorted(OURS))
def test_refused_by_the_kernel_alone(case: str) -> None:
    argument, changes = OURS[case]()
    if argument == "row_format":
        changes["out"] = out_of(PAGES, 64 * 64)
    assert refusal(hk.ops.compress_tail, changes).argument == argument


# A carry may be updated in place; half apart it is refused, by a test above.
SHARED = [
    (name, output)
    for name in ("kv", "score", "norm_weight", "starts", "positions", "write_mask", "page_ids", "carry")
    for output in ("out", "new_carry")
    if (name, output) != ("carry", "new_carry")
]


@pytest.mark.parametrize(("name", "output"), SHARED)
def test_an_output_in_the_memory_of_an_input(name: str, output: str) -> None:
    out = out_of(20 * PAGES, PLAIN.page_stride + 2 * PLAIN.stride_unit)  # larger than every input
    carry = given("carry").copy()
    memory = (out if output == "out" else carry).reshape(-1).view(np.uint8)
    array = given(name)
    start = -memory.ctypes.data % 8
    shared = memory[start : start + array.nbytes]
    assert len(shared) == array.nbytes
    inside = shared.view(array.dtype).reshape(array.shape)
    inside[:] = array
    changes = {"out": out, "new_carry": carry if output == "new_carry" else None, name: inside}
    if output == "out":
        changes.pop("new_carry")
    assert refusal(hk.ops.compress_tail, changes).argument == output
    assert refusal(ref.compress_tail, changes).argument == output
