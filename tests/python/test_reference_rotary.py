# SPDX-License-Identifier: Apache-2.0
"""The rotary embedding by hand: frequencies, YaRN, pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hybridkv.reference import Rope, Yarn


def test_plain_frequencies_are_a_geometric_series() -> None:
    assert Rope(4, 10_000.0).frequencies() == pytest.approx([1.0, 0.01], rel=1e-14)
    assert Rope(6, 1_000_000.0).frequencies() == pytest.approx([1.0, 0.01, 0.0001], rel=1e-14)


def test_yarn_keeps_fast_pairs_and_slows_slow_ones() -> None:
    """Published sizes: 32 turns over 65,536 positions lie at pair 15.4, 1 turn at 24.7; the ramp runs from 15 to 25."""
    plain = Rope(64, 160_000.0).frequencies()
    share = Rope(64, 160_000.0, Yarn(16.0, 65_536)).frequencies() / plain
    assert share[:16] == pytest.approx(1.0, rel=1e-14)
    assert share[25:] == pytest.approx(1 / 16, rel=1e-14)
    assert share[20] == pytest.approx(0.5 + 0.5 / 16, rel=1e-14)
    assert share[16] == pytest.approx(0.9 + 0.1 / 16, rel=1e-14)
    turns = 65_536 * plain / (2 * math.pi)
    assert turns[15] > 32 > turns[16] and turns[24] > 1 > turns[25]


def test_a_ramp_that_is_not_rounded_begins_and_ends_between_pairs() -> None:
    whole = Rope(64, 160_000.0, Yarn(16.0, 65_536)).frequencies()
    exact = Rope(64, 160_000.0, Yarn(16.0, 65_536, truncate=False)).frequencies()
    assert exact[16] > whole[16] and exact[24] < whole[24] and (exact[[0, 15, 25]] == whole[[0, 15, 25]]).all()


def test_a_ramp_of_no_length_is_a_step() -> None:
    share = Rope(8, 10_000.0, Yarn(4.0, 1)).frequencies() / Rope(8, 10_000.0).frequencies()
    assert share == pytest.approx([1.0, 0.25, 0.25, 0.25])


@pytest.mark.parametrize(("interleaved", "first", "second"), [(True, [2, 4], [3, 5]), (False, [2, 3], [4, 5])])
def test_pairs_of_the_last_channels_turn_by_their_angles(
    interleaved: bool, first: list[int], second: list[int]
) -> None:
    rope = Rope(4, 100.0, interleaved=interleaved)
    rows = np.random.default_rng(0).standard_normal((3, 6))
    positions = np.array([0, 1, 50])
    turned = rope.rotate(rows, positions)
    assert (turned[:, :2] == rows[:, :2]).all() and (turned[0] == rows[0]).all()
    for row, position in enumerate(positions):
        for pair, frequency in enumerate((1.0, 0.1)):
            a, b = rows[row, first[pair]], rows[row, second[pair]]
            wanted = complex(a, b) * np.exp(1j * position * frequency)
            assert turned[row, first[pair]] == pytest.approx(wanted.real, abs=1e-13)
            assert turned[row, second[pair]] == pytest.approx(wanted.imag, abs=1e-13)


def test_products_depend_on_the_distance_alone() -> None:
    rope = Rope(64, 160_000.0, Yarn(16.0, 65_536))
    q, k = np.random.default_rng(0).standard_normal((2, 128))
    products = [rope.rotate(q, p + 37) @ rope.rotate(k, p) for p in (0, 1, 1000, 100_000)]
    assert products == pytest.approx([products[0]] * 4, abs=1e-9)
    assert rope.rotate(q, 38) @ rope.rotate(k, 0) != pytest.approx(products[0], abs=1e-3)
