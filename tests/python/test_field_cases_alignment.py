# SPDX-License-Identifier: Apache-2.0
"""Field cases of alignment, as kernels state their needs: told at bind and by match, before a byte is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import give_back, keys_of
from hybridkv.alignment import KERNELS, ArrayPlace, PoolFacts, check

MODEL1 = "flashmla_sm100_sparse_model1"
ROW, DATA = 584, 576


def memory(size: int) -> np.ndarray[Any, Any]:
    raw = np.zeros(size + 64, np.uint8)
    return raw[-raw.ctypes.data % 64 :][:size]


def rows_of(name: str = "csa", rows: int = 64, **more: Any) -> hk.CacheGroup:
    fmt = hk.KvFormat("fp8_ds_mla", "float8_e4m3", scale_placement="page_footer", footer_offset=rows * DATA)
    given = {"page_bytes": rows * ROW, "row_bytes": ROW, "rows_per_page": rows, "tokens_per_row": 4, "format": fmt}
    return hk.CacheGroup(name, hk.StateKind.COMPRESSED, hk.Prefix(), **(given | more))


def match_after(arrays: Any, **more: Any) -> Any:
    """A match of two blocks in a pool that MODEL1 reads."""
    cache = hk.HybridCache(hk.CacheSpec(256, [rows_of(kernels=[MODEL1], **more)]), blocks=100)
    cache.bind("csa", arrays)
    cache.insert(keys_of(512, 256))
    return cache.match(keys_of(513, 256))


def test_FC_106_each_view_into_one_arena_is_what_its_kernel_needs() -> None:
    arena = memory(100 * 149_760)
    views = [
        np.lib.stride_tricks.as_strided(arena[offset:], (100, 64, ROW), (149_760, ROW, 1), writeable=True)
        for offset in (0, 37_440, 74_880, 112_320)
    ]
    assert give_back(match_after(views, layers=range(4))) == 512
    views[2] = np.lib.stride_tricks.as_strided(arena[74_888:], (99, 64, ROW), (149_760, ROW, 1), writeable=True)
    short = [view[:99] for view in views]
    cache = hk.HybridCache(hk.CacheSpec(256, [rows_of(kernels=[MODEL1], layers=range(4))]), blocks=99)
    cache.bind("csa", short)
    assert [(violation.field, violation.kernel) for violation in cache.alignment("csa")] == [("base", MODEL1)]


def test_FC_107_rows_of_data_cut_out_of_wider_ones_are_told_by_their_stride() -> None:
    wider = memory(100 * 64 * 640 + 100 * 64 * 512).reshape(100, -1)[:, : 64 * 648].reshape(100, 64, 648)[:, :, :ROW]
    cache = hk.HybridCache(hk.CacheSpec(256, [rows_of()]), blocks=100)
    cache.bind("csa", wider, kernel=MODEL1)
    told = {violation.field: violation.got for violation in cache.alignment("csa") if violation.kernel == MODEL1}
    assert told["row_stride"] == "648"


@pytest.mark.parametrize(("rows", "taken"), [(64, True), (32, False), (128, False), (2, False)])
def test_FC_109_a_kernel_states_its_page_sizes_and_others_are_refused(rows: int, taken: bool) -> None:
    kernel = "flashinfer_sm120_footer"
    assert KERNELS[kernel].page_rows == (64,)
    unit = max(256, 4 * rows)
    if taken:
        assert hk.CacheSpec(unit, [rows_of(rows=rows, kernels=[kernel])]).groups[0].kernels
        return
    with pytest.raises(hk.SpecError, match="pages of 64 rows"):
        hk.CacheSpec(4 * rows, [rows_of(rows=rows, kernels=[kernel])])


def test_FC_112_how_far_the_coordinates_of_a_kernel_reach_is_part_of_the_check() -> None:
    pool = {"page_bytes": 64 * ROW, "rows": 64, "row_bytes": ROW, "footer_offset": 64 * DATA}
    steps = 37_440 // KERNELS[MODEL1].coordinate_bytes
    last = (2**31 - 1) // steps
    for pages, told in ((last, []), (last + 1, ["reach"])):
        facts = PoolFacts(arrays=[ArrayPlace(1 << 40, 37_440)], pages=pages, **pool)
        assert [violation.field for violation in check(MODEL1, facts)] == told


def test_FC_115_a_dense_stride_where_the_kernel_pads_is_told_before_anything_is_read() -> None:
    verdict = match_after(memory(100 * 64 * ROW).reshape(100, 64 * ROW))
    assert (verdict.why.check, verdict.why.code, verdict.usable_tokens) == (hk.Check.ALIGNED, "page_stride", 0)
    padded = memory(100 * 37_440).reshape(100, 37_440)[:, : 64 * ROW]
    assert give_back(match_after(padded)) == 512


def test_FC_116_a_block_is_a_multiple_of_the_pages_of_its_kernel_or_is_refused() -> None:
    plain = hk.KvFormat("mla_rows", "bfloat16")
    given = {"row_bytes": 1024, "tokens_per_row": 4, "format": plain, "kernels": ["flashmla_sm90_dense"]}
    whole = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=128 * 1024, **given)
    assert hk.CacheSpec(512, [whole]).groups[0].kernels  # 128 rows: two pages of the kernel
    part = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=160 * 1024, **given)
    with pytest.raises(hk.SpecError, match="pages of 64 rows"):
        hk.CacheSpec(640, [part])  # 160 rows: two and a half
