# SPDX-License-Identifier: Apache-2.0
"""Fingerprints from Python against the definition, and what they tell apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridkv as hk
from kernel_model import fingerprint_of, level

__all__ = ["level"]  # a fixture


def prints(pool: np.ndarray, ids: list[int], **options: object) -> list[int]:
    out = np.full(len(ids), 7, np.uint64)
    hk.ops.fingerprint(pool, np.array(ids, np.int32), out, **options)
    return [int(value) for value in out]


def test_values_of_the_document() -> None:
    assert fingerprint_of(b"") == 0x5692161D100B05E5
    assert prints(np.arange(24, dtype=np.uint8).reshape(1, 24), [0]) == [0xC1397DF85856003D]
    assert prints(np.zeros((1, 4096), np.uint8), [0]) == [0x360A884996368365]
    assert prints((np.arange(37376) * 7 % 251).astype(np.uint8).reshape(1, -1), [0]) == [0x2766CAAA62C17491]


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=3000), st.integers(0, 3))
def test_any_content_has_the_fingerprint_of_the_definition(content: bytes, padding: int) -> None:
    stride = -(-len(content) // 8) * 8 + 8 * padding
    whole = np.full((3, stride), 0xEE, np.uint8)
    whole[1, : len(content)] = np.frombuffer(content, np.uint8)
    assert prints(whole[:, : len(content)], [1, -1]) == [fingerprint_of(content), 0]


def test_it_is_that_of_the_packed_page_wherever_it_lies(level: str) -> None:
    rng = np.random.default_rng(1)
    whole = rng.integers(0, 256, (6, 5, 96), dtype=np.uint8)
    pool, ids = whole[:, :, :80], np.array([4, 0, -1], np.int32)
    packed = np.empty((3, 400), np.uint8)
    hk.ops.gather(pool, ids, packed)
    found = prints(pool, [4, 0, -1])
    assert found[:2] == prints(packed, [0, 1]) == [fingerprint_of(page.tobytes()) for page in packed[:2]]
    assert found[2] == 0
    layout = hk.ops.PageRows(5, 80, 96)
    assert prints(whole.reshape(6, 480), [4, 0, 1], layout=layout, null_page=1) == found


def test_footers_belong_to_it() -> None:
    rng = np.random.default_rng(2)
    pool = rng.integers(0, 256, (2, 4 * 64 + 32 + 4 * 8), dtype=np.uint8)
    layout = hk.ops.PageRows(4, 64, footer_bytes=8, footer_offset=4 * 64 + 32)
    before = prints(pool, [1], layout=layout)
    pool[1, 4 * 64] ^= 1  # padding
    assert prints(pool, [1], layout=layout) == before
    pool[1, -1] ^= 1
    assert prints(pool, [1], layout=layout) != before


def test_layers_and_groups_have_their_own_and_threads_change_nothing(level: str) -> None:
    rng = np.random.default_rng(3)
    pools = {"a": [rng.integers(0, 256, (40, 65536), dtype=np.uint8) for _ in range(2)],
             "b": rng.integers(0, 256, (4, 64), dtype=np.uint8)}  # fmt: skip
    ids = {"a": np.arange(39, -1, -1, dtype=np.int64), "b": np.array([3], np.int32)}
    out = {"a": np.empty((2, 40), np.uint64), "b": np.empty(1, np.int64)}
    hk.ops.fingerprint(pools, ids, out, threads=3)
    for layer in range(2):
        assert out["a"][layer, 5] == fingerprint_of(pools["a"][layer][34].tobytes())
        assert out["a"][layer].tolist() == prints(pools["a"][layer], list(range(39, -1, -1)))
    assert out["b"].view(np.uint64)[0] == fingerprint_of(pools["b"][3].tobytes())


def test_every_flipped_bit_of_a_page_is_told() -> None:
    page = np.random.default_rng(4).integers(0, 256, 584, dtype=np.uint8)
    flipped = np.repeat(page[None], 584 * 8 + 1, axis=0)
    bits = np.arange(584 * 8)
    flipped[bits + 1, bits // 8] ^= (1 << bits % 8).astype(np.uint8)
    found = prints(flipped, list(range(584 * 8 + 1)))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("size", [8, 16, 584, 1024])
def test_swapped_and_moved_parts_are_told(size: int) -> None:
    content = np.random.default_rng(5).integers(0, 256, (size * 8,), dtype=np.uint8)
    variants = [content]
    for i in range(8):
        for j in range(i):
            swapped = content.reshape(8, size).copy()
            swapped[[i, j]] = swapped[[j, i]]
            variants.append(swapped.ravel())
    variants += [np.roll(content, by) for by in (1, 8, size) if by != size * 8]
    distinct = {variant.tobytes() for variant in variants}
    found = prints(np.stack(variants), list(range(len(variants))))
    assert len(set(found)) == len(distinct)
