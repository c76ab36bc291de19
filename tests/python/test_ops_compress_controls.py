# SPDX-License-Identifier: Apache-2.0
"""What a wrong compressor writes is told from a right one; and rows come in as any kind of array."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
import hybridkv.reference as ref
from compress_support import LEVELS, V4_ROPE, Call, a_call, changed, level_kept, rows_of  # noqa: F401  (a fixture)
from hybridkv import _core
from hybridkv.reference import PUBLISHED, published

pytestmark = pytest.mark.usefixtures("level_kept")

FP8 = PUBLISHED["fp8_ds_mla"]
INDEXER = PUBLISHED["indexer_fp8"]


def share_of_equal_rows(call: Call, wrong: dict[str, Any]) -> float:
    """Share of the rows that a call with wrong arguments writes as the specification wants them."""
    right = rows_of(call.specified()[0], call)
    made = rows_of(call.run(**wrong)[0], call)
    return float(np.mean(np.all(right == made, axis=1)))


def swapped_halves(rows: Any) -> Any:
    half = rows.shape[1] // 2
    return np.concatenate([rows[:, half:], rows[:, :half]], axis=1)


def test_the_right_arguments_pass_the_controls() -> None:
    assert share_of_equal_rows(a_call(3, 4, True, FP8, rope=V4_ROPE), {}) > 0.97


@pytest.mark.parametrize("control", ["no overlap", "theta", "no yarn", "halves", "pair order", "eps", "position"])
def test_a_wrong_compressor_is_detected(control: str) -> None:
    call = a_call(3, 4, True, FP8, rope=V4_ROPE)
    rows = {name: call.arguments[name] for name in ("kv", "score")}
    if control == "no overlap":
        empty = call.arguments["score"].copy()
        empty[:, : empty.shape[1] // 2] = 0xFF80  # -inf: the slots of the window before weigh nothing
        wrong: dict[str, Any] = {"score": empty}
    elif control == "halves":
        wrong = {name: swapped_halves(array) for name, array in rows.items()}
    elif control == "position":
        wrong = {"positions": call.arguments["positions"] + np.int32(4 * 64), "page_ids": None, "write_mask": None}
        shifted = changed(call, **wrong)
        right = changed(call, page_ids=None, write_mask=None)
        assert not np.any(np.all(shifted.run()[0][:1] == right.specified()[0][:1], axis=1))
        return
    else:
        wrong = {
            "theta": {"rope": replace(V4_ROPE, theta=10000.0)},
            "no yarn": {"rope": replace(V4_ROPE, yarn=None)},
            "pair order": {"rope": replace(V4_ROPE, interleaved=False)},
            "eps": {"eps": 0.1},
        }[control]
    assert share_of_equal_rows(call, wrong) < 0.25


def test_a_wrong_scale_encoding_is_detected() -> None:
    """Rows of one size, scales of another meaning: what a reader of the declared format makes of them is far off."""
    call = a_call(3, 4, True, INDEXER, rope=V4_ROPE)
    part = INDEXER.parts[0]
    assert part.scale is not None
    free = replace(INDEXER, parts=(replace(part, scale=replace(part.scale, power_of_two=False)),))
    low = replace(INDEXER, parts=(replace(part, scale=replace(part.scale, floor=100.0)),))
    unrotated = replace(INDEXER, hadamard=True)
    for wrong in (free, low, unrotated):
        assert share_of_equal_rows(call, {"row_format": wrong}) < 0.02


def test_the_floor_decides_tiles_near_zero() -> None:
    call = a_call(3, 4, False, INDEXER, rope=None)
    near = np.full_like(call.arguments["kv"], 0x2000)
    call = changed(call, eps=1e6, kv=near, carry=np.zeros_like(call.arguments["carry"]))
    assert np.array_equal(rows_of(call.run()[0], call), rows_of(call.specified()[0], call))
    assert share_of_equal_rows(call, {"row_format": _floor(1e-8)}) == 0


def _floor(floor: float) -> ref.RowFormat:
    part = INDEXER.parts[0]
    assert part.scale is not None
    return replace(INDEXER, parts=(replace(part, scale=replace(part.scale, floor=floor)),))


@pytest.mark.parametrize("rounded", ["bfloat16", "float8_e4m3", "float4_e2m1"])
def test_values_rounded_first_are_rounded_as_specified(rounded: str) -> None:
    call = a_call(6, 2, True, replace(INDEXER, first_rounded_to=rounded), rope=None)
    assert share_of_equal_rows(call, {}) > 0.98


def test_odd_tiles_and_inline_scales_between_parts() -> None:
    """A format of no engine: e2m1 with e4m3 scales, then e4m3 with float32 ones, then float32, padding between."""
    rule = ref.ScaleRule
    row_format = ref.RowFormat(
        "mixed", 64,
        (
            ref.Part("a", 12, "float4_e2m1", 2, rule("float8_e4m3", 6 * 2.0**-9, power_of_two=False), 6, 8),
            ref.Part("b", 10, "float8_e4m3", 20, rule("float32", 1e-4), 5, 12),
            ref.Part("c", 2, "float32", 32),
            ref.Part("d", 3, "bfloat16", 50),
        ),
        page_rows=3, data_bytes=50,
    )  # fmt: skip
    call = a_call(8, 4, True, row_format, rope=None)
    ours, theirs = (rows_of(out, call) for out in (call.run()[0], call.specified()[0]))
    same = np.mean(np.all(np.delete(ours, slice(32, 40), 1) == np.delete(theirs, slice(32, 40), 1), axis=1))
    assert same > 0.98


class Interface:
    """An array of others: nothing but __array_interface__."""

    def __init__(self, array: Any) -> None:
        self.__array_interface__ = array.__array_interface__
        self.kept = array


class Exchange:
    """An array of others: nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self.kept = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.kept.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.kept.__dlpack_device__()


@pytest.mark.parametrize("kind", [Interface, Exchange])
def test_other_arrays_are_taken_in_place(kind: Any) -> None:
    call = a_call(5, 4, True, published.plain("float32", 8, page_rows=3))
    expected, carry = call.run()
    out, new_carry = call.out(), np.full_like(carry, np.nan)
    call.run(
        out=Interface(out), new_carry=Interface(new_carry),
        **{name: kind(call.arguments[name]) for name in ("kv", "score", "norm_weight", "carry", "starts")},
    )  # fmt: skip
    assert np.array_equal(out, expected)
    assert np.array_equal(new_carry, carry, equal_nan=True)


@pytest.mark.parametrize("bits", [True, False])
def test_torch_tensors_are_taken_in_place(bits: bool) -> None:
    torch = pytest.importorskip("torch")
    call = a_call(5, 4, True, published.plain("float32", 8, page_rows=3), bits=bits)
    expected, carry = call.run()

    def tensor(array: Any) -> Any:
        if array.dtype == np.uint16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    out, new_carry = torch.from_numpy(call.out()), torch.from_numpy(np.full_like(carry, np.nan))
    arrays = {name: value for name, value in call.arguments.items() if isinstance(value, np.ndarray)}
    call.run(out=out, new_carry=new_carry, **{name: tensor(value) for name, value in arrays.items()})
    assert np.array_equal(out.numpy(), expected)
    assert np.array_equal(new_carry.numpy(), carry, equal_nan=True)
    with pytest.raises(Exception, match="kv"):
        call.run(kv=tensor(arrays["kv"]).to(torch.float16))


def of_any_kind(rng: Any, count: int, limit: float) -> Any:
    """Return float32 numbers of all sizes: ties of small types, zeros of both signs, tiny and large ones."""
    ties = (2 * rng.integers(0, 16, count) + 1) * 2.0 ** rng.integers(-14, 4, count)
    sizes = rng.standard_normal(count) * 2.0 ** rng.integers(-40, 9, count)
    near = limit * rng.choice([1.0, 1 + 2.0**-23, 1 - 2.0**-24, 2.0**-7, 2.0**20], count)
    kinds = np.stack([ties, sizes, near, np.zeros(count), rng.standard_normal(count)])
    signs = rng.choice([1.0, -1.0], count)
    return (np.copysign(kinds[rng.integers(0, 5, count), np.arange(count)], signs)).astype(np.float32)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@pytest.mark.parametrize("level", LEVELS)
def test_quantisers_are_exact(name: str, level: str) -> None:
    """A token whose values are all 1 becomes the weight of the norm, exactly: any number gets to the quantiser."""
    row_format = replace(PUBLISHED[name], hadamard=False).paged(1)
    rng = np.random.default_rng(3)
    ones = np.ones((1, row_format.channels), np.float32)
    _core.cpu_level_choose(level)
    differing = 0
    for round_number in range(60):
        weight = of_any_kind(rng, row_format.channels, 448.0 if round_number % 2 else 6.0)
        if round_number % 10 == 0:
            weight[:: 7 + round_number] = rng.choice([np.inf, -np.inf, np.nan])
        given = {
            "ratio": 1, "overlap": False, "norm_weight": weight, "eps": 0.0, "rope": None, "row_format": row_format,
            "starts": np.array([0, 1], np.int32), "positions": np.array([9], np.int32),
        }  # fmt: skip
        ours, theirs = (np.zeros((1, row_format.page_stride), np.uint8) for _ in range(2))
        hk.ops.compress_tail(ones, ones, ours, **given)
        with np.errstate(all="ignore"):
            ref.compress_tail(ones, ones, theirs, **given)
        differing += int(np.sum(ours != theirs))
    # A quotient by a scale that is no power of two is rounded twice: once to float32.
    free = any(part.scale is not None and not part.scale.power_of_two for part in row_format.parts)
    assert differing <= (3 if free else 0)


@pytest.mark.parametrize("ratio", [1, 4, 2**31, 2**70])
def test_calls_that_close_nothing(ratio: int) -> None:
    """No request at all, requests without rows, and a ratio that no prompt reaches."""
    row_format = published.plain("float32", 8, page_rows=3)
    for requests in (0, 3):
        out = np.full((1, row_format.page_stride), 7, np.uint8)
        hk.ops.compress_tail(
            np.zeros((0, 8), np.float32), np.zeros((0, 8), np.float32), out, ratio=ratio, overlap=False, eps=1e-6,
            rope=None, norm_weight=np.ones(8, np.float32), row_format=row_format,
            starts=np.zeros(requests + 1, np.int32), positions=np.zeros(requests, np.int32),
        )  # fmt: skip
        assert np.all(out == 7)
