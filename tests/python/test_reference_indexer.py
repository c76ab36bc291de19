# SPDX-License-Identifier: Apache-2.0
"""The indexer: the Hadamard rotation, scores by their formula, and which entries are chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv.reference as ref
from hybridkv import KernelContract
from hybridkv.reference import published

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("channels", [1, 2, 4, 128])
def test_the_hadamard_matrix_is_that_of_sylvester(channels: int) -> None:
    signs = [[(-1) ** (j & k).bit_count() for j in range(channels)] for k in range(channels)]
    matrix = np.array(signs) / np.sqrt(channels)
    np.testing.assert_allclose(ref.rotate_hadamard(np.eye(channels)), matrix, atol=1e-15)
    rows = np.random.default_rng(0).standard_normal((2, 3, channels))
    np.testing.assert_allclose(ref.rotate_hadamard(rows), rows @ matrix, atol=1e-14)
    np.testing.assert_allclose(ref.rotate_hadamard(ref.rotate_hadamard(rows)), rows, atol=1e-14)


@pytest.mark.parametrize("channels", [0, 3, 96])
def test_other_widths_have_no_such_matrix(channels: int) -> None:
    with pytest.raises(KernelContract, match="power of two"):
        ref.rotate_hadamard(np.zeros((2, channels)))


def scene(queries: int = 9, entries: int = 4, heads: int = 3, width: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "queries": rng.standard_normal((queries, heads, width)),
        "keys": rng.standard_normal((entries, width)),
        "weights": rng.standard_normal((queries, heads)),
        "positions": np.arange(7, 7 + queries),
        "ratio": 4,
    }


def test_scores_are_the_formula() -> None:
    given = scene()
    scores = ref.index_scores(**given)
    for p, at in enumerate(given["positions"]):
        for s, key in enumerate(given["keys"]):
            if s >= (at + 1) // 4:
                assert scores[p, s] == -np.inf
                continue
            products = [max(0.0, float(query @ key)) for query in given["queries"][p]]
            wanted = sum(w * x for w, x in zip(given["weights"][p], products, strict=True)) / np.sqrt(8 * 3)
            assert scores[p, s] == pytest.approx(wanted, rel=1e-12, abs=1e-15)


def test_a_token_that_closes_a_window_sees_its_entry() -> None:
    closed = np.isfinite(ref.index_scores(**scene())).sum(axis=1)
    assert closed.tolist() == [2, 2, 2, 2, 3, 3, 3, 3, 4]  # positions 7 to 15


def test_a_positive_scale_of_keys_can_be_folded_into_the_weights() -> None:
    given = scene()
    folded = {**given, "keys": given["keys"] * 4, "weights": given["weights"] / 4}
    assert (ref.index_scores(**folded) == ref.index_scores(**given)).all()
    negative = {**given, "keys": -given["keys"], "weights": -given["weights"]}
    assert (ref.index_scores(**negative) != ref.index_scores(**given)).any()


def test_the_highest_are_chosen_and_of_equals_the_earlier() -> None:
    minus = -np.inf
    scores = np.array([[0.5, 2.0, 0.5, 2.0, minus], [minus] * 5, [-1.0, minus, minus, minus, minus]])
    assert ref.choose_entries(scores, 3).tolist() == [[1, 3, 0], [-1, -1, -1], [0, -1, -1]]
    assert ref.choose_entries(scores, 9)[0].tolist() == [1, 3, 0, 2, -1]
    assert ref.choose_entries(scores[:, :0], 2).shape == (3, 0)
    assert ref.choose_entries(scores, 3).dtype == np.int32


@pytest.mark.parametrize("row", [published.INDEXER_FP8, published.INDEXER_MXFP4], ids=lambda row: row.name)
def test_quantised_keys_rank_nearly_alike_only_where_both_sides_are_rotated(row: Any) -> None:
    rng = np.random.default_rng(1)
    queries, keys = rng.standard_normal((20, 8, 128)), rng.standard_normal((64, 128))
    weights, at = np.abs(rng.standard_normal((20, 8))), np.full(20, 1000)
    exact = ref.index_scores(queries, keys, weights, at, ratio=4)
    read = ref.decode_rows(ref.encode_rows(keys, row), row)

    def correlation(turned: Array) -> float:
        return float(np.corrcoef(ref.index_scores(turned, read, weights, at, ratio=4).ravel(), exact.ravel())[0, 1])

    right, wrong = queries, ref.rotate_hadamard(queries)
    if row.hadamard:
        right, wrong = wrong, right
    assert correlation(right) > 0.97 and correlation(wrong) < 0.7


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("queries", {"queries": np.zeros((9, 24))}),
        ("keys", {"keys": np.zeros((4, 7))}),
        ("keys", {"keys": np.zeros((4, 8), np.float16)}),
        ("weights", {"weights": np.zeros((9, 2))}),
        ("positions", {"positions": np.zeros(8, np.int64)}),
        ("positions", {"positions": np.zeros(9)}),
        ("ratio", {"ratio": 0}),
    ],
)
def test_what_is_refused_is_named(argument: str, change: dict[str, Any]) -> None:
    with pytest.raises(KernelContract) as caught:
        ref.index_scores(**{**scene(), **change})
    assert caught.value.field == argument


def test_a_bad_number_of_entries_is_refused() -> None:
    for scores, count, name in ((np.zeros((2, 3)), 0, "count"), (np.zeros(3), 1, "scores")):
        with pytest.raises(KernelContract, match=name):
            ref.choose_entries(scores, count)
