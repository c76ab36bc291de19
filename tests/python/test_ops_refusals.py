# SPDX-License-Identifier: Apache-2.0
"""What kernels refuse: the argument is named, and not a byte of anything has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv import KernelContract

Change = Callable[[dict[str, Any]], None]


def aligned(shape: tuple[int, ...], dtype: type = np.uint8, off: int = 0) -> np.ndarray:
    """An array `off` bytes beyond a multiple of 64, filled with something."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.full(count + 128 + off, 0x2A, np.uint8)
    start = -raw.ctypes.data % 64 + off
    return raw[start : start + count].view(dtype).reshape(shape)


def strided(strides: tuple[int, ...]) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(aligned((6 * 260,)), (6, 4, 64), strides)


def arguments(operation: str) -> dict[str, Any]:
    pool = aligned((6, 4, 64))
    ids = np.array([2, 0, -1], np.int32)
    given: dict[str, Any] = {"pools": pool, "page_ids": ids}
    if operation == "fingerprint":
        return {**given, "out": np.full(3, 5, np.uint64)}
    given["src" if operation == "scatter" else "out"] = aligned((3, 64))
    given["rows"] = np.array([3, 0, 1], np.int32)
    given["handouts"] = (np.ones(6, np.uint64), np.ones(3, np.uint64))
    given["status"] = np.full(3, 77, np.int32)
    return given


def put(name: str, value: Any) -> Change:
    return lambda given: given.__setitem__(name, value)


def name_a_row_twice(given: dict[str, Any]) -> None:
    given["page_ids"] = np.array([2, 2, -1], np.int32)
    given["rows"] = np.array([3, 3, 1], np.int32)


def read_only(array: np.ndarray) -> np.ndarray:
    made = array.copy()
    made.flags.writeable = False
    return made


class Device:
    """An array that says it lies on a device."""

    __cuda_array_interface__ = {"shape": (6, 4, 64), "typestr": "|u1", "data": (1 << 32, False), "version": 3}  # noqa: RUF012


IDS = np.array([2, 0, -1], np.int32)
BOTH = ("gather", "scatter")
ALL = (*BOTH, "fingerprint")

CASES: list[tuple[tuple[str, ...], str, str, Change]] = [
    (ALL, "pools", "no array", put("pools", object())),
    (ALL, "pools", "a number", put("pools", 7)),
    (ALL, "pools", "none", put("pools", None)),
    (ALL, "pools", "no layers", put("pools", [])),
    (ALL, "pools", "one dimension", put("pools", aligned((64,)))),
    (ALL, "pools", "objects", put("pools", np.full((6, 4), None))),
    (ALL, "pools", "a page in pieces", put("pools", aligned((6, 4, 128))[:, :, ::2])),
    (ALL, "pools", "pages on pages", put("pools", strided((64, 64, 1)))),
    (ALL, "pools", "backwards", put("pools", aligned((6, 4, 64))[::-1])),
    (ALL, "pools", "a device", put("pools", Device())),
    (ALL, "pools", "off by 4", put("pools", aligned((6, 4, 64), off=4))),
    (ALL, "pools", "a page stride of 4 more", put("pools", strided((260, 64, 1)))),
    (ALL, "pools", "empty pages", put("pools", aligned((6, 4, 0)))),
    (ALL, "pools[1]", "layers unlike", put("pools", [aligned((6, 4, 64)), aligned((5, 4, 64))])),
    (ALL, "pools[1]", "a layer that is none", put("pools", [aligned((6, 4, 64)), None])),
    (ALL, "page_ids", "floats", put("page_ids", np.ones(3))),
    (ALL, "page_ids", "a list", put("page_ids", [2, 0, -1])),
    (ALL, "page_ids", "uint32", put("page_ids", np.ones(3, np.uint32))),
    (ALL, "page_ids", "two dimensions", put("page_ids", np.ones((3, 1), np.int32))),
    (ALL, "page_ids", "every other", put("page_ids", np.zeros(6, np.int32)[::2])),
    (ALL, "page_ids", "off by 2", put("page_ids", aligned((3,), np.int32, off=2))),
    (ALL, "page_ids", "the other byte order", put("page_ids", IDS.astype(">i4"))),
    (ALL, "page_ids", "beyond the pool", put("page_ids", np.array([0, 1, 6], np.int32))),
    (ALL, "page_ids", "far beyond", put("page_ids", np.array([0, 2**31 - 1, 1], np.int32))),
    (ALL, "page_ids", "below -1", put("page_ids", np.array([-2, 0, 1], np.int32))),
    (ALL, "null_page", "beyond the pool", put("null_page", 6)),
    (ALL, "null_page", "-1", put("null_page", -1)),
    (ALL, "null_page", "a word", put("null_page", "zero")),
    (ALL, "threads", "none", put("threads", 0)),
    (ALL, "threads", "too many", put("threads", 65)),
    (ALL, "threads", "a flag", put("threads", True)),
    (ALL, "stream", "of a device", put("stream", 1)),
    (ALL, "layout", "of three dimensions", put("layout", hk.ops.PageRows(4, 64))),
    (BOTH, "rows", "beyond the page", put("rows", np.array([3, 4, 1], np.int32))),
    (BOTH, "rows", "below -1", put("rows", np.array([3, -2, 1], np.int32))),
    (BOTH, "rows", "another dtype", put("rows", np.array([3, 0, 1], np.int64))),
    (BOTH, "rows", "another length", put("rows", np.array([3, 0], np.int32))),
    (BOTH, "handouts", "no pair", put("handouts", np.ones(6, np.uint64))),
    (BOTH, "handouts[0]", "too few counts", put("handouts", (np.ones(5, np.uint64), np.ones(3, np.uint64)))),
    (BOTH, "handouts[0]", "of 32 bits", put("handouts", (np.ones(6, np.uint32), np.ones(3, np.uint64)))),
    (BOTH, "handouts[0]", "off by 4", put("handouts", (aligned((6,), np.uint64, off=4), np.ones(3, np.uint64)))),
    (BOTH, "handouts[1]", "too few expected", put("handouts", (np.ones(6, np.uint64), np.ones(2, np.uint64)))),
    (BOTH, "status", "none beside handouts", put("status", None)),
    (BOTH, "status", "of 64 bits", put("status", np.zeros(3, np.int64))),
    (BOTH, "status", "too long", put("status", np.zeros(4, np.int32))),
    (BOTH, "status", "read-only", put("status", read_only(np.zeros(3, np.int32)))),
    (("gather",), "missing", "a strange word", put("missing", "ones")),
    (("gather",), "out", "too few pieces", put("out", aligned((2, 64)))),
    (("gather",), "out", "pieces too short", put("out", aligned((3, 63)))),
    (("gather",), "out", "whole pages where rows are asked", put("out", aligned((3, 256)))),
    (("gather",), "out", "layers where there is one array", put("out", aligned((1, 3, 64)))),
    (("gather",), "out", "gaps", put("out", aligned((3, 80))[:, :64])),
    (("gather",), "out", "off by 8", put("out", aligned((3, 64), off=8))),
    (("gather",), "out", "read-only", put("out", read_only(aligned((3, 64))))),
    (("gather",), "out", "no array", put("out", None)),
    (("scatter",), "src", "too few pieces", put("src", aligned((2, 64)))),
    (("scatter",), "src", "off by 8", put("src", aligned((3, 64), off=8))),
    (("scatter",), "pools", "read-only", put("pools", read_only(aligned((6, 4, 64))))),
    (("scatter",), "page_ids", "a row twice", name_a_row_twice),
    (("fingerprint",), "out", "of 32 bits", put("out", np.zeros(3, np.uint32))),
    (("fingerprint",), "out", "too short", put("out", np.zeros(2, np.uint64))),
    (("fingerprint",), "out", "read-only", put("out", read_only(np.zeros(3, np.uint64)))),
    (("fingerprint",), "pools", "padded rows of 60 bytes", put("pools", aligned((6, 4, 64))[:, :, :60])),
]  # fmt: skip


def run(operation: str, given: dict[str, Any], *, prepared: bool = False) -> None:
    if prepared:
        given = {name: value for name, value in given.items() if name != "layout"} | {
            "pools": hk.ops.Pools(given["pools"], layout=given.get("layout"))
        }
    getattr(hk.ops, operation)(**given)


def images(given: dict[str, Any]) -> list[bytes]:
    pair = given.get("handouts")
    arrays = [*given.values(), *(pair if isinstance(pair, tuple) else ())]
    return [array.tobytes() for array in arrays if isinstance(array, np.ndarray) and not array.dtype.hasobject]


@pytest.mark.parametrize(
    ("operation", "argument", "change"),
    [pytest.param(o, a, c, id=f"{o}: {a}: {what}") for operations, a, what, c in CASES for o in operations],
)
@pytest.mark.parametrize("prepared", [False, True], ids=["arrays", "Pools"])
def test_refused_and_nothing_written(operation: str, argument: str, change: Change, prepared: bool) -> None:
    given = arguments(operation)
    change(given)
    before = images(given)
    with pytest.raises(KernelContract) as refused:
        run(operation, given, prepared=prepared)
    assert refused.value.argument == refused.value.field == argument
    assert str(refused.value.expected) and refused.value.got != refused.value.expected
    assert images(given) == before


@pytest.mark.parametrize("operation", ALL)
def test_the_arguments_themselves_are_taken(operation: str) -> None:
    run(operation, arguments(operation))
    run(operation, arguments(operation), prepared=True)


def test_a_page_twice_is_refused_by_scatter_alone() -> None:
    pool, ids = np.zeros((4, 64), np.uint8), np.array([1, 2, 1], np.int64)
    hk.ops.gather(pool, ids, np.empty((3, 64), np.uint8))
    with pytest.raises(KernelContract) as refused:
        hk.ops.scatter(np.ones((3, 64), np.uint8), pool, ids)
    assert refused.value.argument == "page_ids" and not pool.any()


@pytest.mark.parametrize("layout", [
    hk.ops.PageRows(4, 65), hk.ops.PageRows(0, 64), hk.ops.PageRows(4, 0), hk.ops.PageRows(4, 64, 63),
    hk.ops.PageRows(4, 64, 96), hk.ops.PageRows(3, 64, footer_bytes=-1), hk.ops.PageRows(3, 64, footer_bytes=32),
    hk.ops.PageRows(3, 64, footer_bytes=8, footer_offset=128),
    hk.ops.PageRows(3, 64, footer_bytes=8, footer_offset=240),
    hk.ops.PageRows(2**70, 64), hk.ops.PageRows(4.0, 64), hk.ops.PageRows(True, 64), (4, 64),
])  # fmt: skip
def test_a_layout_that_the_page_does_not_hold(layout: Any) -> None:
    pool, ids = np.zeros((4, 256), np.uint8), np.array([1], np.int32)
    for call in (
        lambda: hk.ops.gather(pool, ids, np.empty((1, 256), np.uint8), layout=layout),
        lambda: hk.ops.fingerprint(pool, ids, np.empty(1, np.uint64), layout=layout),
    ):
        with pytest.raises(KernelContract) as refused:
            call()
        assert refused.value.argument == "layout"


def test_strides_and_footers_off_their_unit() -> None:
    pool, ids = aligned((4, 304)), np.array([1], np.int32)
    for layout in (hk.ops.PageRows(4, 64, 68), hk.ops.PageRows(4, 64, footer_bytes=8, footer_offset=260)):
        with pytest.raises(KernelContract) as refused:
            size = 4 * (64 + layout.footer_bytes)
            hk.ops.gather(pool, ids, aligned((1, size)), layout=layout)
        assert refused.value.argument == "pools"


def views() -> tuple[np.ndarray, Callable[[int, tuple[int, ...], type], np.ndarray]]:
    memory = aligned((8192,))

    def part(at: int, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return memory[at : at + count].view(dtype).reshape(shape)

    return memory, part


@pytest.mark.parametrize("at", [0, 448, 1024 - 16, 1024 + 5 * 512 + 64])
def test_an_output_within_a_pool_is_refused(at: int) -> None:
    memory, part = views()
    memory[:] = 0
    pool = part(512, (6, 512), np.uint8)[:, :64]
    out = part(at, (2, 64), np.uint8)
    inside = at + 128 > 512 and at < 512 + 5 * 512 + 64
    ids = np.array([0, 5], np.int32)
    if not inside:
        hk.ops.gather(pool, ids, out)
        hk.ops.scatter(out, pool, ids)
        return
    for pools in (pool, hk.ops.Pools(pool)):
        with pytest.raises(KernelContract, match="apart"):
            hk.ops.gather(pools, ids, out)
        with pytest.raises(KernelContract, match="apart"):
            hk.ops.scatter(out, pools, ids)


def test_whatever_is_written_is_apart_from_everything_else() -> None:
    memory, part = views()
    memory[:] = 0
    pool = part(4096, (4, 64), np.uint8)
    ids, out = part(0, (4,), np.int32), part(64, (4, 64), np.uint8)
    status, counts, expected = part(512, (4,), np.int32), part(1024, (4,), np.uint64), part(2048, (4,), np.uint64)
    good = {"handouts": (counts, expected), "status": status}
    hk.ops.gather(pool, ids, out, **good)
    ids[:] = np.arange(4)
    hk.ops.scatter(out, pool, ids, **good)
    for where in (ids, counts, expected, out, pool):
        start = where.ctypes.data - memory.ctypes.data
        bad = {**good, "status": part(start, (4,), np.int32)}
        for call in (
            lambda b=bad: hk.ops.gather(pool, ids, out, **b),
            lambda b=bad: hk.ops.scatter(out, pool, ids, **b),
        ):
            with pytest.raises(KernelContract, match="apart"):
                call()
    for at in (4096, 4096 + 128):
        with pytest.raises(KernelContract, match="apart"):
            hk.ops.scatter(out, pool, ids, handouts=(part(at, (4,), np.uint64), expected), status=status)
        with pytest.raises(KernelContract, match="apart"):
            hk.ops.fingerprint(pool, ids, part(at, (4,), np.uint64))


def test_reading_twice_is_no_overlap() -> None:
    pool, ids = np.zeros((4, 4, 16), np.uint8), np.array([1, 2], np.int32)
    counts = np.zeros(4, np.uint64)
    hk.ops.gather(
        pool, ids, np.empty((2, 16), np.uint8), rows=ids, handouts=(counts, counts[:2]), status=np.empty(2, np.int32)
    )


@pytest.mark.parametrize("operation", ALL)
def test_groups_that_do_not_match(operation: str) -> None:
    one = {name: value for name, value in arguments(operation).items() if name not in ("handouts", "status", "rows")}
    buffer = "src" if operation == "scatter" else "out"
    if operation != "fingerprint":
        one[buffer] = aligned((3, 256))
    good = {name: {"a": value} for name, value in one.items()}
    run(operation, good)
    for name in ("page_ids", buffer):
        for bad in (one[name], {}, {"b": one[name]}, {"a": one[name], "b": one[name]}):
            with pytest.raises(KernelContract) as refused:
                run(operation, {**good, name: bad})
            assert refused.value.argument == name
    with pytest.raises(KernelContract) as refused:
        run(operation, {**good, "null_page": {"b": 0}})
    assert refused.value.argument == "null_page"
    with pytest.raises(KernelContract) as refused:
        run(operation, {**good, "null_page": {"a": 9}})
    assert refused.value.argument == "null_page['a']"


def test_a_fault_in_the_last_group_leaves_the_first_as_it_was() -> None:
    pools = {"a": np.zeros((4, 64), np.uint8), "b": np.zeros((4, 64), np.uint8)}
    ids = {"a": np.array([1], np.int32), "b": np.array([4], np.int32)}
    out = {name: np.full((1, 64), 9, np.uint8) for name in pools}
    with pytest.raises(KernelContract) as refused:
        hk.ops.gather(pools, ids, out)
    assert refused.value.argument == "page_ids['b']" and (out["a"] == 9).all()
    with pytest.raises(KernelContract):
        hk.ops.scatter(out, pools, ids)
    assert not pools["a"].any()
    shared = {"a": out["a"], "b": out["a"]}
    with pytest.raises(KernelContract, match="apart"):
        hk.ops.gather(pools, {"a": ids["a"], "b": ids["a"]}, shared)
