# SPDX-License-Identifier: Apache-2.0
"""compress_tail on the CPU against the specification: bounds, bytes, carries; levels and threads as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
import hybridkv.reference as ref
from compress_support import (
    GUARD,
    LEVELS,
    RATIOS,
    ROPE,
    V4_ROPE,
    a_call,
    changed,
    level_kept,  # noqa: F401  (a fixture)
    outside,
    rows_of,
    same_carry,
)
from hybridkv.reference import PUBLISHED, published

pytestmark = pytest.mark.usefixtures("level_kept")

PLAIN = published.plain("float32", 40, page_rows=3)
HALVES = ref.Rope(6, 10000.0, interleaved=False)


def wide_values(out: Any, call: Any) -> Any:
    return rows_of(out, call).view(np.float32).astype(np.float64)


def bound_of(call: Any) -> tuple[Any, Any]:
    """Exact entries that are written, and how far float32 may be from them."""
    slots, written = call.slots(), call.places() >= 0
    exact = call.compressor.entries(slots)
    stored = np.abs(exact) * 2.0**-24  # the rounding of what is stored
    return exact[written], (ref.float32_bound(call.compressor, slots) + stored)[written]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("overlap", [False, True])
def test_entries_are_within_the_bound_and_carries_exact(level: str, ratio: int, overlap: bool) -> None:
    entries = 0
    for seed in range(8):
        width = (1, 7, 33, 40, 64, 100, 8, 40)[seed]
        rope = (None, HALVES if width >= 6 else None, ROPE if width >= 4 else None)[seed % 3]
        row_format = published.plain("float32", width, page_rows=3)
        size = {"most_requests": 4, "most_rows": 1200} if ratio == 128 else {}
        call = a_call(seed, ratio, overlap, row_format, rope=rope, bits=seed % 2 == 0, **size)
        out, carry = call.run(level)
        exact, bound = bound_of(call)
        assert np.all(np.abs(wide_values(out, call) - exact) <= bound)
        assert np.all(outside(out, call) == GUARD)
        assert same_carry(carry, call.specified()[1])
        entries += len(exact)
    assert entries > 10


def test_typical_errors_are_far_below_the_bound() -> None:
    """The bound is one of the worst case: an implementation with a wrong digit would hide in it."""
    call = a_call(3, 4, True, published.plain("float32", 512, page_rows=64), rope=V4_ROPE)
    exact, _ = bound_of(call)
    error = np.abs(wide_values(call.run()[0], call) - exact)
    assert np.max(error) < 4e-6
    assert np.mean(error) < 1.5e-7


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@pytest.mark.parametrize(("ratio", "overlap"), [(4, True), (128, False), (1, False), (6, True)])
def test_levels_threads_and_cuts_write_the_same_bytes(name: str, ratio: int, overlap: bool) -> None:
    row_format = PUBLISHED[name].paged(5)
    call = a_call(11, ratio, overlap, row_format, rope=V4_ROPE, most_rows=1200)
    first = call.run("portable")
    for level in LEVELS:
        for threads in range(1, 5):
            out, carry = call.run(level, threads=threads)
            assert np.array_equal(out, first[0])
            assert same_carry(carry, first[1])


def equal_shares(name: str, ratio: int, overlap: bool, bits: bool, seed: int) -> tuple[int, int, int, int]:
    """Rows, rows that are equal, elements in bfloat16, those that are equal or a code apart."""
    row_format = PUBLISHED[name]
    call = a_call(seed, ratio, overlap, row_format, rope=V4_ROPE, bits=bits, most_rows=700 * min(ratio, 16))
    ours, theirs = (rows_of(out, call) for out in (call.run()[0], call.specified()[0]))
    elements = near = 0
    for part in row_format.parts:
        if part.scale is None:
            span = slice(*next(part.spans()))
            codes = [x[:, span].copy().view(np.uint16).astype(np.int64) for x in (ours, theirs)]
            elements += codes[0].size
            near += int(np.sum(np.abs(codes[0] - codes[1]) <= 1))
    covered = np.zeros(row_format.row_bytes, bool)
    for part in row_format.parts:
        for first, end in part.spans():
            covered[first:end] = True
    assert not np.any(ours[:, ~covered])
    return len(ours), int(np.sum(np.all(ours == theirs, axis=1))), elements, near


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"fp8_ds_mla_v32"}))
def test_quantised_rows_are_equal(name: str) -> None:
    counts = np.zeros(4, np.int64)
    for seed, (ratio, overlap) in enumerate([(4, True), (4, True), (2, False), (1, False), (16, True), (6, False)]):
        counts += equal_shares(name, ratio, overlap, seed % 2 == 0, seed)
    rows, equal, elements, near = counts.tolist()
    assert rows > 1000
    assert equal >= 0.999 * rows, f"{rows - equal} of {rows} rows"
    assert near >= 0.99999 * elements


def test_a_float32_scale_is_within_its_roundings() -> None:
    """Such a scale is a sum of roundings itself: compared as a number, its channels by what they are worth."""
    row_format = PUBLISHED["fp8_ds_mla_v32"]
    call = a_call(5, 4, True, row_format, rope=V4_ROPE, most_rows=2000)
    ours, theirs = (rows_of(out, call) for out in (call.run()[0], call.specified()[0]))
    scales = [x[:, 512:528].copy().view(np.float32) for x in (ours, theirs)]
    assert np.allclose(*scales, rtol=2e-6)
    codes = np.mean(ours[:, :512] == theirs[:, :512])
    assert codes > 0.9999
    assert np.array_equal(ours[:, 512:].shape, theirs[:, 512:].shape)


@pytest.mark.parametrize(("ratio", "overlap"), [(1, True), (4, True), (6, True), (4, False), (128, False), (16, True)])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_prompt_in_pieces_has_the_bytes_of_the_whole(ratio: int, overlap: bool, in_place: bool) -> None:
    """Cuts anywhere, the carry between them in float32: the same bytes, since sums have one order."""
    rng = np.random.default_rng(ratio)
    tokens, c = 6 * ratio + 5, 2 if overlap else 1
    rows = rng.standard_normal((2, tokens, c * PLAIN.channels)).astype(np.float32)
    fixed = {
        "ratio": ratio, "overlap": overlap, "norm_weight": np.ones(PLAIN.channels, np.float32), "eps": 1e-6,
        "rope": ROPE,
        "row_format": PLAIN, "page_ids": np.arange(4, dtype=np.int32)[None],
    }  # fmt: skip
    whole, pieces = (np.full((4, PLAIN.page_stride), GUARD, np.uint8) for _ in range(2))
    ends = np.array([0, tokens], np.int32)
    hk.ops.compress_tail(*rows, whole, starts=ends, positions=ends[:1], **fixed)
    carry = np.full((1, c * ratio, 2 * c * PLAIN.channels), np.nan, np.float32)
    at = 0
    while at < tokens:
        n = min(int(rng.integers(1, ratio + 2)), tokens - at)
        new = carry if in_place else np.full_like(carry, np.nan)
        hk.ops.compress_tail(
            *rows[:, at : at + n], pieces, carry=carry, new_carry=new, starts=np.array([0, n], np.int32),
            positions=np.array([at], np.int32), **fixed,
        )  # fmt: skip
        carry, at = new, at + n
    assert np.array_equal(whole, pieces)


def test_rows_of_two_kinds_and_any_stride() -> None:
    """kv in bfloat16 beside scores in float32, both slices of wider rows; pages further apart than they are long."""
    call = a_call(2, 4, True, PLAIN)
    kv, score = call.arguments["kv"], call.arguments["score"]
    wide = np.zeros((len(kv), 3 * kv.shape[1]), np.uint16)
    wide[:, kv.shape[1] : 2 * kv.shape[1]] = kv
    scores = np.repeat(ref.BFLOAT16.decode(score).astype(np.float32), 2, axis=0)
    expected, carry = call.run()
    every_other = np.full((2 * call.pages, PLAIN.page_stride + 2 * PLAIN.stride_unit), GUARD, np.uint8)[::2]
    got = call.run(kv=wide[:, kv.shape[1] : 2 * kv.shape[1]], score=scores[::2], out=every_other)
    assert np.array_equal(every_other, expected)
    assert same_carry(got[1], carry)


def test_without_page_ids_windows_follow_one_another_and_masked_ones_keep_their_rows() -> None:
    call = a_call(4, 2, False, PLAIN)
    count = len(call.places())
    out = np.full((-(-count // 3), PLAIN.page_stride), GUARD, np.uint8)
    theirs = out.copy()
    call.run(out=out, page_ids=None)
    call.specified(out=theirs, page_ids=None)
    kept = ref.load_rows(out, np.arange(count), PLAIN), ref.load_rows(theirs, np.arange(count), PLAIN)
    written = ~np.all(kept[1] == GUARD, axis=1)
    assert np.array_equal(written, ~np.all(kept[0] == GUARD, axis=1))
    assert 0 < np.sum(written) < count
    assert np.allclose(kept[0][written].view(np.float32), kept[1][written].view(np.float32), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ratio", [1, 4, 16])
@pytest.mark.parametrize("spoiled", ["nan", "inf", "-inf", "all -inf", "kv nan", "kv inf"])
def test_scores_that_are_no_numbers(level: str, ratio: int, spoiled: str) -> None:
    call = a_call(7, ratio, True, PLAIN, bits=False, most_rows=150, most_requests=4)
    kv, score = call.arguments["kv"].copy(), call.arguments["score"].copy()
    rows = slice(None, None, 11)
    if spoiled == "all -inf":
        score[: len(score) // 2, 5] = score[: len(score) // 2, 45] = -np.inf
    elif spoiled.startswith("kv"):
        kv[rows, 5] = float(spoiled[3:])
    else:
        score[rows, 5] = float(spoiled)
    call = changed(call, kv=kv, score=score)
    with np.errstate(all="ignore"):
        theirs = wide_values(call.specified()[0], call)
    ours = wide_values(call.run(level)[0], call)
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    assert np.any(np.isnan(ours)) == (spoiled != "-inf")
    assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("spread", "scale", "eps"),
    [
        (60.0, 1.0, 1e-6),
        (1e4, 1.0, 1e-6),
        (1.0, 3e37, 1e-6),
        (30.0, 1e-25, 0.0),
        (1.0, 1e-18, 1e-20),
        (50.0, 1e30, 0.0),
    ],
)
def test_scores_and_values_of_any_size(level: str, spread: float, scale: float, eps: float) -> None:
    call = a_call(9, 6, True, PLAIN, bits=False, spread=spread)
    call = changed(call, kv=(call.arguments["kv"] * scale).astype(np.float32), eps=eps)
    rings = call.arguments["carry"].copy()
    rings[..., : 2 * PLAIN.channels] *= np.float32(scale)
    call = changed(call, carry=rings)
    call.compressor = replace(call.compressor, eps=eps)
    exact, bound = bound_of(call)
    assert np.all(np.isfinite(exact))
    assert np.all(np.abs(wide_values(call.run(level)[0], call) - exact) <= bound + 1e-30)


def test_large_positions_rotate_as_specified() -> None:
    """Without page ids, so that no page table has to reach that far."""
    call = a_call(1, 4, True, PLAIN, most_requests=5)
    given = {name: value for name, value in call.arguments.items() if name not in ("page_ids", "write_mask")}
    far = 4 * (np.arange(len(given["positions"])) * 134217689 % (2**29 - 200))
    given |= {"positions": (given["positions"] % 4 + far).astype(np.int32), "carry": np.nan_to_num(given["carry"])}
    given |= {"row_format": published.plain("float32", PLAIN.channels, page_rows=1)}
    ends = given["positions"] + np.diff(given["starts"])
    assert ends.max() > 2**28
    shape = (int(np.sum(ends // 4 - given["positions"] // 4)), 4 * PLAIN.channels)
    ours, theirs = (np.zeros(shape, np.uint8) for _ in range(2))
    rows = given.pop("kv"), given.pop("score")
    hk.ops.compress_tail(*rows, ours, **given)
    ref.compress_tail(*rows, theirs, **given)
    assert np.allclose(ours.view(np.float32), theirs.view(np.float32), rtol=1e-4, atol=1e-5)
