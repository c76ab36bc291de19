# SPDX-License-Identifier: Apache-2.0
"""Gather and scatter from Python against the model: shapes, rows, footers, groups, layers, hand-out counts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridkv as hk
from hybridkv import _core
from kernel_model import CHANGED, LEVELS, OK, SKIPPED, STALE, Rows, gathered, level, scattered

__all__ = ["level"]  # a fixture

SCALES = Rows(64, 576, 576, 8, 64 * 576)  # rows of 584 bytes of which 8 lie behind the rows
WINDOW = Rows(2, 584, 584)
INDEXER = Rows(64, 132, 132)


def random_pool(rng: np.random.Generator, pages: int, layout: Rows, padding: int = 0) -> np.ndarray:
    """uint8 [[pages, page_bytes]] whose pages are `padding` bytes apart."""
    whole = rng.integers(0, 256, (pages, layout.page_bytes + padding), dtype=np.uint8)
    return whole[:, : layout.page_bytes]


def as_argument(layout: Rows) -> hk.ops.PageRows:
    return hk.ops.PageRows(
        layout.rows, layout.row_bytes, layout.row_stride, layout.footer_bytes,
        layout.footer_offset if layout.footer_bytes else None,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("padding", [0, 64])
def test_whole_pages_of_584_byte_rows(level: str, dtype: type, padding: int) -> None:
    rng = np.random.default_rng(1)
    pool = random_pool(rng, 40, SCALES, padding)
    ids = np.array([3, -1, 39, 3, 0, 17, 18, 19, 20], dtype)
    out = rng.integers(0, 256, (9, 37376), dtype=np.uint8)
    status = np.full(9, 77, np.int32)
    hk.ops.gather(pool, ids, out, status=status, threads=2)
    want, statuses = gathered(pool, ids, SCALES)
    assert np.array_equal(out, want) and np.array_equal(status, statuses)


def test_rows_take_their_footers_along(level: str) -> None:
    rng = np.random.default_rng(2)
    pool = random_pool(rng, 9, SCALES)
    ids = rng.integers(-1, 9, 50).astype(np.int32)
    rows = rng.integers(-1, 64, 50).astype(np.int32)
    out = np.empty((50, 584), np.uint8)
    hk.ops.gather(pool, ids, out, rows=rows, layout=as_argument(SCALES))
    assert np.array_equal(out, gathered(pool, ids, SCALES, rows)[0])


def test_padded_rows_of_a_pool_are_packed_and_put_back(level: str) -> None:
    rng = np.random.default_rng(3)
    whole = rng.integers(0, 256, (12, 5, 96), dtype=np.uint8)
    pool, flat = whole[:, :, :80], whole.reshape(12, 480)
    layout = Rows(5, 80, 96)
    ids = np.array([7, 0, 11, -1], np.int64)
    out = np.empty((4, 400), np.uint8)
    hk.ops.gather(pool, ids, out)
    assert np.array_equal(out, gathered(flat, ids, layout)[0])
    src = rng.integers(0, 256, (4, 5, 80), dtype=np.uint8)
    want = scattered(flat, ids, src.reshape(4, 400), layout)
    hk.ops.scatter(src, pool, ids)
    assert np.array_equal(flat, want)


def test_layers_have_a_dimension_of_the_buffer_and_may_share_an_allocation(level: str) -> None:
    rng = np.random.default_rng(4)
    whole = rng.integers(0, 256, (10, 3, 1168), dtype=np.uint8)  # a page is the layers one after another
    pools = [whole[:, layer] for layer in range(3)]
    ids = np.array([9, 1, -1, 4, 1], np.int32)
    out = np.empty((3, 5, 1168), np.uint8)
    hk.ops.gather(pools, ids, out)
    for layer in range(3):
        assert np.array_equal(out[layer], gathered(pools[layer], ids, WINDOW)[0])
    ids[4] = 2
    want = whole.copy()
    for layer in range(3):
        want[:, layer] = scattered(pools[layer], ids, 255 - out[layer], WINDOW)
    hk.ops.scatter(255 - out, pools, ids)
    assert np.array_equal(whole, want)


def test_what_is_missing_is_zero_or_left_as_asked(level: str) -> None:
    pool = np.full((4, 64), 9, np.uint8)
    ids = np.array([-1, 2, 1], np.int32)
    for missing, left in (("zeros", 0), ("skip", 5)):
        out, status = np.full((3, 64), 5, np.uint8), np.zeros(3, np.int32)
        hk.ops.gather(pool, ids, out, missing=missing, null_page=1, status=status)
        assert out.tolist() == [[left] * 64, [9] * 64, [left] * 64]
        assert status.tolist() == [SKIPPED, OK, SKIPPED]


def test_the_null_page_stays_as_it_was(level: str) -> None:
    pool = np.zeros((4, 8), np.float32)
    hk.ops.scatter(np.full((2, 8), np.nan, np.float32), pool, np.array([0, 3], np.int32), null_page=0)
    assert np.isfinite(pool[0]).all() and np.isnan(pool[3]).all()


def test_several_groups_in_one_call(level: str) -> None:
    rng = np.random.default_rng(5)
    pools = {"kv": random_pool(rng, 9, SCALES), "indexer": [random_pool(rng, 7, INDEXER) for _ in range(2)]}
    ids = {"kv": np.array([8, 0], np.int32), "indexer": np.array([1, 1, -1], np.int64)}
    out = {"kv": np.empty((2, 584), np.uint8), "indexer": np.empty((2, 3, 64 * 132), np.uint8)}
    status = {"indexer": np.empty(3, np.int32)}
    rows = {"kv": np.array([63, 1], np.int32)}
    hk.ops.gather(pools, ids, out, rows=rows, layout={"kv": as_argument(SCALES)}, status=status)
    assert np.array_equal(out["kv"], gathered(pools["kv"], ids["kv"], SCALES, rows["kv"])[0])
    for layer in range(2):
        assert np.array_equal(out["indexer"][layer], gathered(pools["indexer"][layer], ids["indexer"], INDEXER)[0])
    assert status["indexer"].tolist() == [OK, OK, SKIPPED]


def test_stale_pages_do_not_get_out_and_are_not_written(level: str) -> None:
    rng = np.random.default_rng(6)
    pool = random_pool(rng, 8, WINDOW)
    ids = np.array([1, 2, 3, -1], np.int32)
    counts = np.arange(100, 108, dtype=np.uint64)
    expected = np.array([101, 9, 103, 0], np.int64)
    out, status = np.full((4, 1168), 5, np.uint8), np.empty(4, np.int32)
    hk.ops.gather(pool, ids, out, handouts=(counts, expected), status=status)
    assert status.tolist() == [OK, STALE, OK, SKIPPED]
    assert np.array_equal(out, gathered(pool, ids, WINDOW, bad=(1,))[0])
    src = rng.integers(0, 256, (4, 1168), dtype=np.uint8)
    want = scattered(pool, ids, src, WINDOW, bad=(1,))
    status[:] = 0
    hk.ops.scatter(src, pool, ids, handouts=(counts, expected), status=status)
    assert status.tolist() == [OK, STALE, OK, SKIPPED] and np.array_equal(pool, want)


def test_pages_handed_out_during_a_gather_are_flagged_and_zero() -> None:
    pages, page_bytes = 64, 65536
    pool = np.full((pages, page_bytes), 3, np.uint8)
    counts = np.zeros(pages, np.uint64)
    ids = np.arange(pages, dtype=np.int32)
    out, status = np.empty_like(pool), np.empty(pages, np.int32)
    stop, seen = threading.Event(), set()

    def hand_out() -> None:
        while not stop.is_set():
            counts[pages // 2 :] += np.uint64(1)

    writer = threading.Thread(target=hand_out)
    writer.start()
    try:
        for _ in range(3000):
            hk.ops.gather(pool, ids, out, handouts=(counts, counts.copy()), status=status)
            seen |= set(status.tolist())
            assert not status[: pages // 2].any()
            assert all((out[i] == (3 if status[i] == OK else 0)).all() for i in (0, pages // 2, pages - 1))
            if CHANGED in seen:
                break
    finally:
        stop.set()
        writer.join()
    assert CHANGED in seen


def test_counts_of_a_lease_are_what_is_expected() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64, unit_tokens=4), blocks=8)
    keys = hk.block_keys(np.arange(9, dtype=np.uint32), 4)
    pool = np.arange(8 * 64, dtype=np.uint32).astype(np.uint8).reshape(8, 64)
    cache.bind("kv", pool)
    cache.insert(keys)
    with cache.match(keys).lease as lease:
        ids, expected = lease.page_ids("kv"), lease.handouts("kv")
        counts = np.zeros(8, np.uint64)
        counts[ids] = expected
        out, status = np.empty((len(ids), 64), np.uint8), np.empty(len(ids), np.int32)
        hk.ops.gather(pool, ids, out, handouts=(counts, expected), status=status)
        assert not status.any() and np.array_equal(out, pool[ids])
    cache.close()


def test_no_pieces_and_an_empty_pool_are_legal(level: str) -> None:
    none = np.empty(0, np.int32)
    hk.ops.gather(np.empty((3, 64), np.uint8), none, np.empty((0, 64), np.uint8))
    hk.ops.scatter(np.empty((0, 64), np.uint8), np.empty((3, 64), np.uint8), none)
    out = np.ones((2, 64), np.uint8)
    hk.ops.gather(np.empty((0, 64), np.uint8), np.array([-1, -1], np.int32), out)
    assert not out.any()


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_shape_comes_back_as_it_went(data: st.DataObject) -> None:
    """Property: scatter of a gather changes nothing; gather of a scatter gives what was scattered; padding stays."""
    rows, row_bytes = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 300))
    stride = row_bytes + data.draw(st.sampled_from([0, 16, 3]))
    footer = data.draw(st.sampled_from([0, 1, 4, 8]))
    offset = rows * stride + data.draw(st.sampled_from([0, 16, 5])) if footer else 0
    layout = Rows(rows, row_bytes, stride, footer, offset)
    unit = int(np.gcd.reduce([16, row_bytes, footer or 16]))
    pages, layers = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    padding = -layout.page_bytes % 16 + data.draw(st.sampled_from([0, 16]))
    if (rows > 1 and stride % unit) or (footer and offset % unit):
        layout = Rows(rows, row_bytes, row_bytes, 0)
        padding += 16 * 40
    page_bytes = layout.page_bytes + (-layout.page_bytes) % 16 + padding // 16 * 16
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    pools = [rng.integers(0, 256, (pages, page_bytes), dtype=np.uint8) for _ in range(layers)]
    by_row = data.draw(st.booleans())
    n = data.draw(st.integers(0, pages * (rows if by_row else 1)))
    chosen = rng.permutation(pages * (rows if by_row else 1))[:n]
    ids = (chosen // rows if by_row else chosen).astype(data.draw(st.sampled_from([np.int32, np.int64])))
    ids[rng.random(n) < 0.2] = -1
    which = (chosen % rows).astype(ids.dtype) if by_row else None
    width = row_bytes + footer if layout.footer_bytes or not footer else row_bytes
    width *= 1 if by_row else rows
    keep = {"rows": which, "layout": as_argument(layout), "threads": data.draw(st.integers(1, 3))}
    before = _core.cpu_level()
    try:
        for name in LEVELS:
            _core.cpu_level_choose(name)
            mine = [pool.copy() for pool in pools]
            out = np.empty((layers, n, width), np.uint8)
            hk.ops.gather(mine, ids, out, **keep)
            hk.ops.scatter(out, mine, ids, **keep)
            for layer in range(layers):
                assert np.array_equal(out[layer], gathered(pools[layer], ids, layout, which)[0])
                assert np.array_equal(mine[layer], pools[layer])
            src = rng.integers(0, 256, out.shape, dtype=np.uint8)
            hk.ops.scatter(src, mine, ids, **keep)
            for layer in range(layers):
                assert np.array_equal(mine[layer], scattered(pools[layer], ids, src[layer], layout, which))
    finally:
        _core.cpu_level_choose(before)


@pytest.mark.parametrize("name", LEVELS)
def test_the_environment_forces_a_level(name: str) -> None:
    code = "from hybridkv import _core; print(_core.cpu_level())"
    environment = {**os.environ, "HYBRIDKV_CPU": name}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == name


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(hk.ArgumentError):
        _core.cpu_level_choose("avx1024")


def test_other_threads_run_during_a_long_copy() -> None:
    pool = np.zeros((512, 65536), np.uint8)
    ids, out = np.arange(512, dtype=np.int32), np.empty((512, 65536), np.uint8)
    turns, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)  # gives the lock up

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is made to give it up
    counter = threading.Thread(target=count)
    counter.start()
    try:
        before = turns[0]
        for _ in range(100):
            hk.ops.gather(pool, ids, out)
        during = turns[0] - before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        counter.join()
    assert during > 10
