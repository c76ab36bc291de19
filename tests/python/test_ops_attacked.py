# SPDX-License-Identifier: Apache-2.0
"""What a reader who wanted to break the kernels found, each as a test: outside of memory, by dtype, by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import hybridkv as hk
import hybridkv.reference as ref
from hybridkv import KernelContract
from hybridkv.reference import published

FORMAT = published.plain("bfloat16", 8, page_rows=2)
BOTH = pytest.mark.parametrize("kernels", [hk.ops, ref], ids=["ops", "reference"])


def tail(**changes: Any) -> dict[str, Any]:
    """A call of two requests at ratio 2 with overlap, of which one is in the middle of a window."""
    rng = np.random.default_rng(5)
    call = {
        "kv": rng.standard_normal((9, 16), np.float32), "score": rng.standard_normal((9, 16), np.float32),
        "out": np.full((8, FORMAT.page_stride), 9, np.uint8), "ratio": 2, "overlap": True,
        "norm_weight": np.ones(8, np.float32), "eps": 1e-6, "rope": None, "row_format": FORMAT,
        "carry": rng.standard_normal((2, 4, 32), np.float32), "new_carry": np.zeros((2, 4, 32), np.float32),
        "starts": np.array([0, 4, 9], np.int32), "positions": np.array([0, 3], np.int32),
        "write_mask": np.array([0, 0], np.int32), "page_ids": np.arange(8, dtype=np.int32).reshape(2, 4),
    }  # fmt: skip
    return call | changes


def run(kernels: Any, call: dict[str, Any]) -> None:
    kernels.compress_tail(call["kv"], call["score"], call["out"], **{k: v for k, v in call.items() if k not in ARRAYS})


ARRAYS = ("kv", "score", "out")


@BOTH
def test_the_call_itself_is_legal(kernels: Any) -> None:
    call = tail()
    run(kernels, call)
    assert np.any(call["out"] != 9) and np.any(call["new_carry"] != 0)


@BOTH
@pytest.mark.parametrize(
    "name",
    ["kv", "score", "norm_weight", "carry", "new_carry", "starts", "positions", "write_mask", "page_ids"],
)
def test_arrays_of_another_byte_order_are_refused(kernels: Any, name: str) -> None:
    call = tail()
    call[name] = call[name].astype(call[name].dtype.newbyteorder(">"))
    with pytest.raises(KernelContract) as refused:
        run(kernels, call)
    assert refused.value.field == name
    assert np.all(call["out"] == 9) and np.all(call["new_carry"] == 0)


@BOTH
def test_rings_of_two_requests_in_the_same_memory_are_refused(kernels: Any) -> None:
    memory = np.zeros(2 * 4 * 32, np.float32)
    for strides in ((0, 128, 4), (128, 128, 4), (512, 64, 4)):
        with pytest.raises(KernelContract, match="rows that do not overlap") as refused:
            run(kernels, tail(new_carry=as_strided(memory, (2, 4, 32), strides)))
        assert refused.value.field == "new_carry"
    apart = as_strided(memory, (2, 4, 32), (128, 256, 4))  # requests side by side, in other order than usual
    run(kernels, tail(new_carry=apart))
    assert np.any(memory != 0)


@BOTH
def test_what_is_missing_is_told_by_a_text(kernels: Any) -> None:
    pool, out = np.zeros((2, 16), np.uint8), np.zeros((1, 16), np.uint8)
    for missing in (np.array(["zeros", "skip"]), None, 0, ["zeros"]):
        with pytest.raises(KernelContract) as refused:
            kernels.gather(pool, np.array([0]), out, missing=missing)
        assert refused.value.field == "missing"


@BOTH
def test_a_group_of_any_name_is_taken(kernels: Any) -> None:
    class Odd:
        def __repr__(self) -> str:
            return "\ud800"

    odd, pool, out = Odd(), np.arange(32, dtype=np.uint8).reshape(2, 16), np.zeros((1, 16), np.uint8)
    kernels.gather({odd: pool}, {odd: np.array([1])}, {odd: out})
    assert np.array_equal(out[0], pool[1])
    with pytest.raises(KernelContract, match="page_ids"):
        kernels.gather({odd: pool}, {odd: np.array([7])}, {odd: out})


@pytest.mark.parametrize(("field", "value"), [("page_rows", 0), ("data_bytes", 10**9), ("base_alignment", 0)])
def test_a_format_that_was_changed_by_force_is_refused(field: str, value: int) -> None:
    forced = published.plain("bfloat16", 8, page_rows=2)
    object.__setattr__(forced, field, value)
    call = tail(row_format=forced)
    with pytest.raises(KernelContract) as refused:
        run(hk.ops, call)
    assert refused.value.field == "row_format"
    assert np.all(call["out"] == 9)


@pytest.mark.parametrize(("field", "value"), [("dims", 3), ("dims", -2), ("theta", float("nan")), ("interleaved", 7)])
def test_a_rotation_that_was_changed_by_force_is_refused(field: str, value: Any) -> None:
    forced = ref.Rope(4, 10000.0)
    object.__setattr__(forced, field, value)
    call = tail(rope=forced)
    with pytest.raises(KernelContract) as refused:
        run(hk.ops, call)
    assert refused.value.field == "rope"
    assert np.all(call["out"] == 9)


@BOTH
def test_pools_without_pages_padded_rows_and_offsets_that_do_not_count(kernels: Any) -> None:
    none = np.array([], np.int32)
    kernels.gather(np.zeros((0, 16)), none, np.zeros((0, 128), np.uint8))
    memory = np.arange(2 * 112, dtype=np.uint8)
    padded = as_strided(memory, (2, 4, 16), (112, 32, 1))  # the last row of a page ends where the next page begins
    out = np.zeros((1, 64), np.uint8)
    kernels.gather(padded, np.array([1]), out)
    assert np.array_equal(out.reshape(4, 16), padded[1])
    layout = hk.ops.PageRows(2, 8, 8, 0, -5)  # no footers: it does not matter where they are
    kernels.gather(memory.reshape(2, 112), np.array([1]), out[:, :16].copy(), layout=layout)
    matrix = np.zeros((1, 16), np.uint8).view(np.matrix)
    kernels.gather(memory.reshape(14, 16), np.array([3]), matrix)
    assert np.array_equal(np.asarray(matrix)[0], memory[48:64])


@BOTH
def test_pages_in_reverse_and_a_ratio_beyond_positions(kernels: Any) -> None:
    with pytest.raises(KernelContract) as refused:
        run(kernels, tail(out=tail()["out"][::-1]))
    assert refused.value.field == "out"
    beyond = {"ratio": 2**62, "carry": None, "new_carry": None, "page_ids": None}
    call = tail(**beyond, positions=np.zeros(2, np.int32))
    run(kernels, call)
    assert np.all(call["out"] == 9)


@BOTH
def test_ids_that_are_no_array_are_refused(kernels: Any) -> None:
    class Liar:
        @property
        def __array_interface__(self) -> dict[str, Any]:
            return {"shape": "three", "typestr": "<i4", "data": (0, False), "version": 3}

    for ids in (Liar(), object(), [[0]]):
        with pytest.raises(KernelContract) as refused:
            run(kernels, tail(page_ids=ids))
        assert refused.value.field == "page_ids"


def test_a_level_that_nobody_knows_is_refused() -> None:
    for wish in ("bogus", "AVX2", "none"):
        told = {**os.environ, "HYBRIDKV_CPU": wish, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", "import hybridkv"]
        done = subprocess.run(command, env=told, capture_output=True, text=True)
        assert done.returncode != 0 and "ArgumentError: HYBRIDKV_CPU: expected one of" in done.stderr


def short(*shape: int, held: int, dtype: str = "uint8") -> Any:
    """A tensor of torch whose storage was made smaller than it is."""
    torch = pytest.importorskip("torch", reason="torch is absent")
    tensor = torch.zeros(*shape, dtype=getattr(torch, dtype))
    tensor.untyped_storage().resize_(held)
    return tensor


SHORT: dict[str, tuple[str, Callable[[], None]]] = {
    "pool": ("pools", lambda: hk.ops.gather(short(64, 4096, held=8192), np.array([3]), np.zeros((1, 4096), np.uint8))),
    "pool written": (
        "pools",
        lambda: hk.ops.scatter(np.zeros((1, 64), np.uint8), short(3, 64, held=64), np.array([1])),
    ),
    "buffer": ("out", lambda: hk.ops.gather(np.zeros((3, 64), np.uint8), np.array([1]), short(1, 64, held=63))),
    "Pools": ("pools", lambda: hk.ops.Pools(short(3, 64, held=191))),
    "rows": ("kv", lambda: run(hk.ops, tail(kv=short(9, 16, held=9 * 64 - 1, dtype="float32")))),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_tensor_beyond_its_storage_is_refused(name: str) -> None:
    field, call = SHORT[name]
    with pytest.raises(KernelContract, match="that has memory") as refused:
        call()
    assert refused.value.field == field


def test_a_view_that_lies_within_its_storage_is_taken() -> None:
    torch = pytest.importorskip("torch", reason="torch is absent")
    storage = torch.arange(256, dtype=torch.uint8)
    pool = storage[64:].reshape(3, 64)
    out = np.zeros((1, 64), np.uint8)
    hk.ops.gather(pool, np.array([2]), out)
    assert out[0].tolist() == list(range(192, 256))
    storage.untyped_storage().resize_(255)
    with pytest.raises(KernelContract, match="256 bytes of storage"):
        hk.ops.gather(pool, np.array([2]), out)
