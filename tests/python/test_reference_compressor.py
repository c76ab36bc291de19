# SPDX-License-Identifier: Apache-2.0
"""The compressor: batch, ring and resume forms are one function; what is written, carried and refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hybridkv.reference as ref
from hybridkv.reference import Compressor, Ring, Rope, Yarn, published

RATIOS = (1, 2, 4, 6, 16, 128)
WIDTH = 6
ROPE = Rope(4, 160000.0, Yarn(16.0, 65536))
EXACT = published.plain("float64", WIDTH, page_rows=3)
Array = np.ndarray[Any, Any]


def a_compressor(ratio: int, overlap: bool, seed: int = 0) -> Compressor:
    weight = np.random.default_rng(seed).standard_normal(WIDTH)
    return Compressor(ratio, overlap, weight, 1e-6, ROPE)


def prompt(compressor: Compressor, tokens: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    shape = (tokens, compressor.row_width)
    return rng.standard_normal(shape), 3 * rng.standard_normal(shape)


@dataclass
class Calls:
    """Requests that are compressed in calls of some tokens each, into rows that are read back."""

    compressor: Compressor
    prompts: list[tuple[Array, Array]]

    def __post_init__(self) -> None:
        c, count = self.compressor, len(self.prompts)
        self.at = [0] * count
        self.carry: Array = np.full((count, c.ring_rows, 2 * c.row_width), np.nan)
        entries = [len(kv) // c.ratio for kv, _ in self.prompts]
        columns = -(-max(entries) // EXACT.page_rows)
        order = np.random.default_rng(1).permutation(count * columns).astype(np.int32)
        self.page_ids = order.reshape(count, columns)
        self.pages = np.full((count * columns, EXACT.page_stride), 0xA5, np.uint8)

    def call(self, lengths: list[int], **more: Any) -> None:
        c = self.compressor
        parts = [(kv[p : p + n], z[p : p + n]) for (kv, z), p, n in zip(self.prompts, self.at, lengths, strict=True)]
        new_carry = np.full_like(self.carry, np.nan)  # what is not live stays NaN, and would be seen
        ref.compress_tail(
            np.concatenate([kv for kv, _ in parts]),
            np.concatenate([z for _, z in parts]),
            self.pages,
            **arguments(c),
            **{
                "carry": self.carry,
                "new_carry": new_carry,
                "starts": np.cumsum([0, *lengths]).astype(np.int32),
                "positions": np.array(self.at, np.int32),
                "page_ids": self.page_ids,
                **more,
            },
        )
        self.carry = new_carry
        self.at = [p + n for p, n in zip(self.at, lengths, strict=True)]

    def entries(self, request: int) -> Array:
        count = self.at[request] // self.compressor.ratio
        index = np.arange(count)
        slots = self.page_ids[request, index // EXACT.page_rows].astype(np.int64) * EXACT.page_rows
        packed = ref.load_rows(self.pages, slots + index % EXACT.page_rows, EXACT)
        return ref.decode_rows(packed, EXACT)


def arguments(c: Compressor) -> dict[str, Any]:
    return {
        "ratio": c.ratio,
        "overlap": c.overlap,
        "norm_weight": c.norm_weight,
        "eps": c.eps,
        "rope": c.rope,
        "row_format": EXACT,
    }


def by_ring(compressor: Compressor, kv: Array, score: Array) -> tuple[Array, Ring]:
    ring = Ring(compressor)
    closed = [ring.push(*row) for row in zip(kv, score, strict=True)]
    return np.array([entry for entry in closed if entry is not None]).reshape(-1, compressor.width), ring


def by_the_book(compressor: Compressor, kv: Array, score: Array) -> Array:
    """The formulas, slot by slot and channel by channel, without any of the code under test."""
    r, d, out = compressor.ratio, compressor.width, []
    for i in range(len(kv) // r):
        slots = [(kv[j, -d:], score[j, -d:]) for j in range(i * r, i * r + r)]
        if compressor.overlap and i > 0:
            slots += [(kv[j, :d], score[j, :d]) for j in range(i * r - r, i * r)]
        y = np.zeros(d)
        for k in range(d):
            weights = [np.exp(z[k]) for _, z in slots]
            y[k] = sum(w * v[k] for w, (v, _) in zip(weights, slots, strict=True)) / sum(weights)
        y = y / np.sqrt(sum(y * y) / d + compressor.eps) * compressor.norm_weight
        if compressor.rope is not None:
            frequencies = compressor.rope.frequencies()
            for pair, frequency in enumerate(frequencies):
                at = d - compressor.rope.dims + 2 * pair
                turned = complex(*y[at : at + 2]) * np.exp(1j * i * r * frequency)
                y[at : at + 2] = turned.real, turned.imag
        out.append(y)
    return np.array(out).reshape(-1, d)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("ratio", RATIOS)
def test_the_batch_form_is_the_formulas(ratio: int, overlap: bool) -> None:
    c = a_compressor(ratio, overlap)
    kv, score = prompt(c, 3 * ratio + ratio // 2)
    got = c.batch(kv, score)
    assert got.shape == (3, WIDTH)
    np.testing.assert_allclose(got, by_the_book(c, kv, score), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("ratio", RATIOS)
def test_the_ring_form_is_the_batch_form(ratio: int, overlap: bool) -> None:
    c = a_compressor(ratio, overlap)
    kv, score = prompt(c, 300)
    got, ring = by_ring(c, kv, score)
    assert (got == c.batch(kv, score)).all() and ring.position == 300


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(
    ratio=st.sampled_from(RATIOS),
    overlap=st.booleans(),
    calls=st.lists(st.lists(st.integers(0, 150), min_size=3, max_size=3), min_size=1, max_size=6),
    seed=st.integers(0, 100),
)
def test_any_cut_into_calls_is_the_batch_form(ratio: int, overlap: bool, calls: list[list[int]], seed: int) -> None:
    """Entries and the state at the end are the same to the bit, wherever the calls are cut."""
    c = a_compressor(ratio, overlap)
    prompts = [prompt(c, max(sum(lengths), ratio), seed + q) for q, lengths in enumerate(zip(*calls, strict=True))]
    run = Calls(c, prompts)
    for lengths in calls:
        run.call(lengths)
    for request, (kv, score) in enumerate(prompts):
        tokens = run.at[request]
        assert (run.entries(request) == c.batch(kv[:tokens], score[:tokens])).all()
        assert_live_rows(c, run.carry[request], kv, score, tokens)


def assert_live_rows(c: Compressor, carry: Array, kv: Array, score: Array, tokens: int) -> None:
    """What is live holds the prompt's rows, what is not was left alone (NaN)."""
    wanted = np.full_like(carry, np.nan)
    opened, width = tokens - tokens % c.ratio, c.row_width
    for token in range(opened, tokens):
        wanted[token % c.ring_rows] = np.concatenate([kv[token], score[token]])
    if c.overlap and opened:
        for token in range(opened - c.ratio, opened):
            wanted[token % c.ring_rows, :WIDTH] = kv[token, :WIDTH]
            wanted[token % c.ring_rows, width : width + WIDTH] = score[token, :WIDTH]
    np.testing.assert_array_equal(carry, wanted)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("ratio", RATIOS)
def test_a_ring_goes_on_from_a_carry_and_a_call_from_a_ring(ratio: int, overlap: bool) -> None:
    c = a_compressor(ratio, overlap)
    kv, score = prompt(c, 300)
    wanted = c.batch(kv, score)
    run = Calls(c, [(kv, score)])
    run.call([131])
    ring = Ring(c, 131, run.carry[0])
    closed = [ring.push(kv[p], score[p]) for p in range(131, 200)]
    rows = [entry for entry in closed if entry is not None]
    assert (np.array(rows).reshape(-1, WIDTH) == wanted[131 // ratio : 200 // ratio]).all()
    run.carry, run.at = ring.rows[None].copy(), [200]
    run.call([100])
    first = -(-200 // ratio)
    assert (run.entries(0)[first:] == wanted[first:]).all()


def test_a_carry_is_updated_in_place() -> None:
    c = a_compressor(4, True)
    kv, score = prompt(c, 40)
    apart, inside = Calls(c, [(kv, score)]), Calls(c, [(kv, score)])
    for length in (1, 3, 6, 2, 0, 9):
        apart.call([length])
        own = inside.carry
        inside.call([length], new_carry=own)
        inside.carry = own
        live = ~np.isnan(apart.carry)
        assert (apart.carry[live] == inside.carry[live]).all()
    assert (apart.entries(0) == inside.entries(0)).all()


def test_missing_overlap_spoils_the_next_entry_and_no_other() -> None:
    c = a_compressor(4, True)
    kv, score = prompt(c, 40)
    run = Calls(c, [(kv, score)])
    run.call([16])
    run.carry[:, :4] = 0.0
    run.carry[:, 4:] = 0.0
    run.call([24])
    far = np.abs(run.entries(0) - c.batch(kv, score)).max(axis=1)
    assert far[4] > 0.1 and not np.delete(far, 4).any()


@pytest.mark.parametrize("ratio", (1, 4, 16))
@pytest.mark.parametrize("overlap", [False, True])
def test_a_replay_writes_nothing_below_its_mask_and_carries_on(ratio: int, overlap: bool) -> None:
    """From a boundary without a carry: the first window lacks its overlap, is masked, and feeds the second."""
    c = a_compressor(ratio, overlap)
    kv, score = prompt(c, 100)
    start = 48
    for mask in (start + ratio, 70, 99):
        run = Calls(c, [(kv, score)])
        run.at = [start]
        untouched = run.pages.copy()
        run.call([100 - start], carry=None, write_mask=np.array([mask], np.int32))
        index = np.arange(100 // ratio)
        written = (index + 1) * ratio > mask
        got = run.entries(0)
        assert (got[written] == c.batch(kv, score)[written]).all()
        assert_live_rows(c, run.carry[0], kv, score, 100)
        run.at = [0]
        blank = Calls(c, [(kv, score)])
        assert (blank.pages == untouched).all()
        blank.at = [100]
        assert (got[~written] == blank.entries(0)[~written]).all()


def test_without_page_ids_entries_fill_rows_one_after_another() -> None:
    c = a_compressor(4, True)
    kv, score = prompt(c, 30)
    pages = np.zeros((3, EXACT.page_bytes), np.uint8)
    starts, positions = np.array([0, 9, 9, 30], np.int32), np.array([0, 0, 0], np.int32)
    mask = np.array([4, 0, 8], np.int32)
    ref.compress_tail(kv, score, pages, **arguments(c), starts=starts, positions=positions, write_mask=mask)
    got = ref.decode_rows(ref.load_rows(pages, np.arange(7), EXACT), EXACT)
    first, last = c.batch(kv[:9], score[:9]), c.batch(kv[9:], score[9:])
    assert (got[1] == first[1]).all() and (got[4:] == last[2:]).all() and not got[[0, 2, 3]].any()


def test_a_page_that_is_not_held_is_not_written() -> None:
    c = a_compressor(2, False)
    run = Calls(c, [prompt(c, 30)])
    before = run.pages.copy()
    held = run.page_ids.copy()
    run.page_ids[0, 1] = -1
    run.call([30])
    assert (run.pages[held[0, 1]] == before[held[0, 1]]).all()
    run.page_ids = held
    assert (run.entries(0)[:3] == c.batch(*run.prompts[0])[:3]).all()


def test_a_window_row_is_the_entry_of_ratio_one() -> None:
    """Whatever its score: softmax over one slot is 1."""
    c = a_compressor(1, False)
    kv, score = prompt(c, 20)
    rows = ROPE.rotate(ref.compressor.rms_norm(kv, c.norm_weight, c.eps), np.arange(20))
    assert (c.batch(kv, score) == rows).all() and (c.batch(kv, np.zeros_like(kv)) == rows).all()


def test_scores_that_are_no_numbers_have_a_declared_result() -> None:
    c = a_compressor(4, False)
    kv, score = prompt(c, 20)
    wanted = c.batch(kv, score)
    score[0, 0] = -np.inf  # one slot less
    score[4, 1], score[9, 2], score[12:16, 3] = np.nan, np.inf, -np.inf
    got = c.batch(kv, score)
    assert np.isfinite(got[0]).all() and got[0, 0] != wanted[0, 0]
    assert np.isnan(got[1:4]).all() and (got[4] == wanted[4]).all()
    score[0, 0], kv[0, 0] = -1e9, np.inf
    assert np.isnan(c.batch(kv, score)[0, 0])


def test_very_different_scores_do_not_overflow() -> None:
    c = a_compressor(4, True)
    kv, score = prompt(c, 20)
    assert np.isfinite(c.batch(kv, score * 1e300)).all()
    shifted = c.batch(kv, score + 700.0)
    np.testing.assert_allclose(shifted, c.batch(kv, score), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_narrow_rows_are_taken_as_the_numbers_they_are(dtype: Any) -> None:
    c = a_compressor(4, True)
    kv, score = prompt(c, 20)
    narrow = [ref.BFLOAT16.encode(x) if dtype == np.uint16 else x.astype(dtype) for x in (kv, score)]
    wide = [ref.BFLOAT16.decode(x) if dtype == np.uint16 else x.astype(np.float64) for x in narrow]
    assert (c.batch(*narrow) == c.batch(*wide)).all()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("ratio", RATIOS)
def test_a_run_in_float32_stays_within_the_bound_and_not_far_below(ratio: int, overlap: bool) -> None:
    """Pool, norm and rotate in numpy's float32, and compare with the bound that kernels have to keep."""
    rng = np.random.default_rng(ratio)
    c = Compressor(ratio, overlap, rng.standard_normal(64), 1e-6, Rope(32, 10000.0))
    assert c.rope is not None
    kv, score = (rng.standard_normal((8 * ratio, c.row_width)).astype(np.float32) for _ in range(2))
    slots = c.slots(kv.astype(np.float64), 4 * score.astype(np.float64), 0, None)
    values, scores = slots.values.astype(np.float32), slots.scores.astype(np.float32)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    pooled = (values * (powers / powers.sum(axis=1, keepdims=True))).sum(axis=1)
    scale = np.sqrt(np.mean(pooled * pooled, axis=-1, keepdims=True) + np.float32(1e-6))
    weight = c.norm_weight.astype(np.float32)
    rows = pooled / scale * weight
    assert rows.dtype == np.float32
    angles = (slots.positions[:, None] * c.rope.frequencies()).astype(np.float32)
    cosines, sines = np.cos(angles), np.sin(angles)
    first, second = c.rope.pairs()
    a, b = rows[:, first].copy(), rows[:, second].copy()
    rows[:, first], rows[:, second] = a * cosines - b * sines, b * cosines + a * sines
    exact = Compressor(ratio, overlap, weight, 1e-6, c.rope)
    bound = ref.float32_bound(exact, slots)
    share = np.abs(rows - exact.entries(slots)) / bound
    assert 1e-3 < share.max() <= 1.0 and bound.max() < 1e-3
    half = Compressor(ratio, overlap, weight, 1e-6, Rope(32, 10000.0, interleaved=False))
    assert (np.abs(rows - half.entries(slots)) > bound).any()
