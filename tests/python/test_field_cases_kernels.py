# SPDX-License-Identifier: Apache-2.0
"""Field cases of pages and rows that kernels read and write (tests/data/cases/field_cases.json)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
import hybridkv.reference as ref
from compress_support import bfloat16
from convert_support import filled, ids, pages
from hybridkv.reference import published

RATIO, WIDTH = 4, 512


def prompt(tokens: int, row_format: ref.RowFormat, columns: int, **changed: Any) -> dict[str, Any]:
    """The arguments of a call that compresses one prompt from its start."""
    rng = np.random.default_rng(tokens)
    kv, score = (bfloat16(rng.standard_normal((tokens, 2 * WIDTH))) for _ in range(2))
    return {
        "kv": kv, "score": score, "ratio": RATIO, "overlap": True, "norm_weight": np.ones(WIDTH, np.float32),
        "eps": 1e-6, "rope": ref.Rope(64, 160000.0), "row_format": row_format,
        "starts": np.array([0, tokens], np.int32), "positions": np.zeros(1, np.int32),
        "page_ids": np.arange(columns, dtype=np.int32)[None],
    } | changed  # fmt: skip


def compressed(out: np.ndarray, arguments: dict[str, Any]) -> np.ndarray:
    given = dict(arguments)
    hk.ops.compress_tail(given.pop("kv"), given.pop("score"), out, **given)
    return out


@pytest.mark.parametrize("page_bytes", [64 * 584 - 8, 64 * 584, 64 * 584 + 8, 64 * 584 + 512])
def test_FC_109_pages_of_a_size_that_the_format_does_not_state_are_refused(page_bytes: int) -> None:
    row_format = published.FP8_DS_MLA.paged(64)  # 64 rows with a footer, pages at multiples of 576
    out = np.full((3, page_bytes), 7, np.uint8)
    with pytest.raises(hk.KernelContract, match="out"):
        compressed(out, prompt(512, row_format, 2))
    assert (out == 7).all()
    assert row_format.page_stride == 37_440
    compressed(np.zeros((3, 37_440), np.uint8), prompt(512, row_format, 2))


def test_FC_110_rows_that_are_not_live_reach_no_result() -> None:
    row_format = published.FP8_DS_MLA.paged(64)
    call = prompt(6, row_format, 2, positions=np.array([6], np.int32))
    rng = np.random.default_rng(1)
    ring = rng.standard_normal((1, 2 * RATIO, 4 * WIDTH)).astype(np.float32)
    made = []
    for dead in (0.0, np.nan, np.inf):
        carry = ring.copy()
        carry[0, [6, 7]] = dead  # at position 6, tokens 0 to 5 are live: the window before, and two of this one
        made.append(compressed(np.zeros((2, row_format.page_stride), np.uint8), call | {"carry": carry}))
    assert (made[0] == made[1]).all()
    assert (made[0] == made[2]).all()
    assert made[0].any()


def test_FC_116_a_block_that_does_not_fill_its_pages_goes_on_in_the_next_one_or_is_refused() -> None:
    # 640 tokens at ratio 4 are 160 entries: five pages of 32 rows, and two and a half of 64.
    rows = {}
    for page_rows in (32, 64):
        row_format = published.FP8_DS_MLA.paged(page_rows)
        columns = -(-160 // page_rows)
        out = compressed(np.zeros((columns, row_format.page_stride), np.uint8), prompt(640, row_format, columns))
        rows[page_rows] = ref.load_rows(out, np.arange(160, dtype=np.int32), row_format)
        with pytest.raises(hk.KernelContract, match="page_ids"):
            compressed(out, prompt(640, row_format, columns - 1))
    assert (rows[32] == rows[64]).all()


def test_FC_116_rows_of_a_block_go_on_in_the_next_page_of_another_size_or_are_refused() -> None:
    # 160 rows: five pages of 32, two and a half of 64, and 32 of 5, which divides neither.
    small, large, odd = (published.FP8_DS_MLA.paged(rows) for rows in (32, 64, 5))
    pool = filled(np.random.default_rng(1), small, 5)
    every = np.arange(160, dtype=np.int32)
    wanted = ref.load_rows(pool, every, small)
    for row, columns in ((large, 3), (odd, 32)):
        out = pages(np.random.default_rng(2), row, columns)
        before = out.copy()
        call = {"source": small, "target": row, "row_counts": np.array([160])}
        with pytest.raises(hk.KernelContract, match="out_ids"):
            hk.ops.convert(pool, ids(range(5)), out, ids(range(columns - 1)), **call)
        assert (out == before).all()
        hk.ops.convert(pool, ids(range(5)), out, ids(range(columns)), **call)
        assert (ref.load_rows(out, every, row) == wanted).all()


def test_FC_106_kernels_keep_to_their_view_of_an_arena() -> None:
    span, stride, offsets = 64 * 584, 149_760, (0, 37_440, 74_880, 112_320)
    memory = np.full(99 * stride + offsets[-1] + span + 64 + 4096, 0x5A, np.uint8)
    arena = memory[-memory.ctypes.data % 64 :][: 99 * stride + offsets[-1] + span]  # no byte behind the last view
    views = [np.lib.stride_tricks.as_strided(arena[first:], (100, span), (stride, 1)) for first in offsets]
    row, last = published.FP8_DS_MLA, np.array([99], np.int32)
    pool = filled(np.random.default_rng(3), row, 1)[:, :span]

    def written_by(write: Any) -> None:
        arena[...] = 0x5A
        write(views[3])
        assert (views[3][99] == pool[0]).all()
        views[3][99] = 0x5A
        assert (memory == 0x5A).all()

    written_by(lambda view: hk.ops.scatter(pool, view, last))
    written_by(lambda view: hk.ops.convert(pool, ids(0), view, ids(99), source=row, target=row))
    views[3][99] = pool[0]
    out, prints = np.zeros_like(pool), np.zeros(2, np.uint64)
    hk.ops.gather(views[3], last, out)
    hk.ops.fingerprint(views[3], last, prints[:1])
    hk.ops.fingerprint(pool, last - 99, prints[1:])
    assert (out == pool).all() and prints[0] == prints[1]
    entries = np.zeros((1, row.page_stride), np.uint8)
    call = prompt(4 * 64, row, 1)
    compressed(entries, call)
    pool[...] = entries[:, :span]
    written_by(lambda view: compressed(view, call | {"page_ids": ids(99)}))


def test_FC_107_a_slice_of_rows_with_their_scales_is_no_row_of_the_format() -> None:
    wide = np.zeros((3, 4, 144), np.uint8)
    data, every_other = wide[:, :, :128], wide[:, :, ::2]  # the scales are left out; bytes are left out
    row, table = published.INDEXER_FP8.paged(4), ids([0, 1, 2])
    out = np.full((3, 528), 7, np.uint8)
    for pool in (data, every_other):
        with pytest.raises(hk.KernelContract, match="pools"):
            hk.ops.convert(pool, table, out, table, source=row, target=row)
        with pytest.raises(hk.KernelContract, match="out"):
            hk.ops.convert(out, table, pool, table, source=row, target=row)
    for kernel in (hk.ops.gather, hk.ops.fingerprint):
        with pytest.raises(hk.KernelContract, match="pools"):
            kernel(every_other, table[0], out)
    with pytest.raises(hk.KernelContract, match="pools"):
        hk.ops.scatter(out, every_other, table[0])
    with pytest.raises(hk.KernelContract, match="out"):
        compressed(np.zeros((3, 2 * 37_440), np.uint8)[:, ::2], prompt(512, published.FP8_DS_MLA, 2))
    assert not wide.any() and (out == 7).all()


def test_FC_112_kernels_reach_pages_beyond_four_gib() -> None:
    row, last = published.BFLOAT16_ROWS.paged(1 << 16), np.array([71], np.int32)  # pages of 64 MiB
    try:
        pool = np.zeros((72, row.page_stride), np.uint8)  # of which a few rows are touched
    except MemoryError:
        pytest.skip("no 4.5 GiB of address space here")
    near = published.BFLOAT16_ROWS.paged(1)
    src = filled(np.random.default_rng(5), near, 1)
    at = {"rows": last - 71 + 65_535, "layout": row.layout}
    out = np.zeros_like(src)
    hk.ops.scatter(src, pool, last, **at)
    hk.ops.gather(pool, last, out, **at)
    assert (out == src).all() and (pool[71, -1024:] == src[0]).all()
    out[...] = 0
    columns = np.full((1, 65_536), -1, np.int32)
    columns[0, 65_535] = 0
    hk.ops.convert(pool, ids(71), out, columns, source=row, target=near)
    assert (out == src).all()
    pool[71, -1024:] = 0
    hk.ops.convert(src, columns, pool, ids(71), source=near, target=row)
    assert (pool[71, -1024:] == src[0]).all() and not pool[71, :4096].any()
    entries = np.zeros((1, row.page_stride), np.uint8)
    compressed(entries, call := prompt(4, row, 1))
    compressed(pool, call | {"page_ids": ids(71)})
    assert (pool[71, :1024] == entries[0, :1024]).all() and entries[0, :1024].any()
    assert not pool[7, :1024].any()  # where it would be if addresses wrapped at 4 GiB


def test_FC_115_a_page_is_written_within_its_padded_stride() -> None:
    row = replace(published.FP8_DS_MLA, stride_multiple=1)
    padded = np.full((6, 38_016), 0x5A, np.uint8)
    dense = filled(np.random.default_rng(4), row, 1)
    for write in (
        lambda: hk.ops.scatter(dense, padded[:, :37_376], np.array([5], np.int32)),
        lambda: hk.ops.convert(dense, ids(0), padded, ids(5), source=row, target=row),
    ):
        padded[...] = 0x5A
        write()
        assert (padded[5, :37_376] == dense[0]).all()
        assert (padded[5, 37_376:] == 0x5A).all() and (padded[:5] == 0x5A).all()


def test_FC_097_the_size_of_a_page_comes_from_the_rows_that_are_read() -> None:
    """A page of 64 rows of 128 bytes has no room for their scales."""
    row = published.INDEXER_FP8
    for page_bytes in (64 * 128, 64 * 132 - 1):
        pool, out = np.zeros((2, page_bytes), np.uint8), np.full((2, 64 * 132), 7, np.uint8)
        with pytest.raises(hk.KernelContract, match="page"):
            hk.ops.convert(pool, ids(0), out, ids(1), source=row, target=row)
        with pytest.raises(hk.KernelContract, match="page"):
            hk.ops.convert(out, ids(0), pool, ids(1), source=row, target=row)
        assert not pool.any() and (out == 7).all()


def test_FC_101_rows_in_bfloat16_are_not_made_rows_in_fp8() -> None:
    writer, reader = published.BFLOAT16_ROWS, published.V41_FP8
    out = np.full((1, reader.page_stride), 7, np.uint8)
    for source, target in ((writer, reader), (reader, writer)):
        with pytest.raises(hk.KernelContract, match="element"):
            hk.ops.convert(None, None, out, None, source=source, target=target)  # nothing else is looked at
    assert (out == 7).all()


def test_FC_044_a_page_handed_out_again_is_not_moved() -> None:
    pool, out, status = np.arange(8, dtype=np.uint64).reshape(4, 2), np.zeros((2, 2), np.uint64), np.zeros(2, np.int32)
    counts = np.array([1, 1, 2, 1], np.uint64)  # page 2 has another owner now
    hk.ops.gather(pool, np.array([1, 2]), out, handouts=(counts, np.array([1, 1], np.uint64)), status=status)
    assert status.tolist() == [hk.ops.CopyStatus.OK, hk.ops.CopyStatus.STALE]
    assert out.tolist() == [[2, 3], [0, 0]]
