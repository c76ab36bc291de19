# SPDX-License-Identifier: Apache-2.0
"""What a group declares of its bytes agrees with itself and with the kernels that it names; slow pages are told."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.alignment import KERNELS, REFUSED, ArrayPlace, KernelNeeds, PoolFacts, check, suggest
from hybridkv.formats import REGISTRY

V4 = REGISTRY["fp8_ds_mla_v4"].format
PAGE = 64 * 584


def csa(made: hk.KvFormat | None, **more: Any) -> hk.CacheGroup:
    given = {"page_bytes": PAGE, "row_bytes": 584, "rows_per_page": 64, "tokens_per_row": 4, "format": made, **more}
    return hk.CacheGroup("csa", hk.StateKind.COMPRESSED, hk.Prefix(), **given)


@pytest.mark.parametrize(
    ("field", "value", "more"),
    [
        ("row_bytes", 656, {}), ("row_bytes", 656, {"row_bytes": None}), ("page_rows", 32, {}), ("page_rows", 128, {}),
        ("row_stride", 600, {}), ("page_stride", 37375, {}),
        ("page_stride", 37440, {"page_stride": 37376}), ("row_bytes", 132, {"row_bytes": 128}),
    ],
)  # fmt: skip
def test_a_group_that_contradicts_its_format_is_refused(field: str, value: int, more: dict[str, Any]) -> None:
    with pytest.raises(hk.SpecError) as caught:
        csa(replace(V4, **{field: value}), **more)
    assert caught.value.field == f"groups['csa'].format.{field}" and caught.value.got == value


def test_a_page_of_the_format_holds_the_rows_of_a_block() -> None:
    made = replace(V4, page_rows=32, page_stride=None)
    with pytest.raises(hk.SpecError, match="128 rows within a page of 37376 bytes"):
        csa(replace(V4, page_rows=128), rows_per_page=None)
    bare = csa(made, rows_per_page=None, page_bytes=32 * 584, block_tokens=256)
    with pytest.raises(hk.SpecError) as caught:
        hk.CacheSpec(256, [bare])
    assert caught.value.field == "groups['csa'].format.page_rows"
    hk.CacheSpec(128, [replace(bare, block_tokens=128)])


READERS = [name for name, needs in KERNELS.items() if needs.formats and all(n in REGISTRY for n in needs.formats)]


@pytest.mark.parametrize("kernel", READERS)
def test_a_kernel_takes_the_formats_that_it_names_whatever_of_them_is_declared(kernel: str) -> None:
    draw = random.Random(kernel)
    for name in KERNELS[kernel].formats:
        full = REGISTRY[name].format
        for _ in range(8):
            chosen = [f for f in full.declared() if draw.random() < 0.5 and f not in ("layout", "dtype", "schema")]
            made = REGISTRY[name].declare(*{*chosen, *(["footer_offset"] if full.footer_offset else [])})
            row = full.row_bytes or 0
            one = csa(made, row_bytes=row, page_bytes=64 * row, kernels=[kernel])
            assert hk.CacheSpec(256, [one]).groups[0].kernels[0].name == kernel


BESIDE = {
    "scale_placement": "inline", "scale": "float32", "tile": 128, "position_convention": "absolute_halves",
    "channel_order": "rope|nope|scales", "hadamard": True, "rope_dims": 32, "rope_dtype": "float8_e4m3",
    "kv_order": "page", "row_order": "page8", "pool_split": "nope|rope", "head_dim": 576, "layout": "unified_kv",
    "scale_floor": 1e-8, "scale_power_of_two": False, "row_stride": 568,
}  # fmt: skip


@pytest.mark.parametrize("field", BESIDE)
def test_a_kernel_that_reads_another_format_is_refused_where_it_is_named(field: str) -> None:
    made = replace(V4, **{field: BESIDE[field]})
    kernel = "flashmla_sm100_sparse_model1"
    with pytest.raises(hk.SpecError) as caught:
        hk.CacheSpec(256, [csa(made, kernels=[kernel])])
    assert caught.value.field == f"groups['csa'].format.{field}"
    assert kernel in str(caught.value) and "fp8_ds_mla_v4" in str(caught.value)
    cache = hk.HybridCache(hk.CacheSpec(256, [csa(made)]), blocks=2)
    pool = np.zeros((2, PAGE), np.uint8)
    with pytest.raises(hk.ArgumentError) as refused:
        cache.bind("csa", pool, kernel=kernel)
    assert refused.value.field == "kernel" and f"format.{field}" in str(refused.value)
    cache.bind("csa", pool)  # what is not asked for is not compared
    cache.close()


def test_the_nearest_format_is_named_and_a_field_that_all_contradict_comes_first() -> None:
    both = "flashinfer_sm120_footer"  # reads two that differ in the floor of scales
    for floor in (1e-4, 1e-8):
        made = replace(REGISTRY["fp8_ds_mla_v4_flashinfer"].format, scale_floor=floor)
        assert hk.CacheSpec(256, [csa(made, kernels=[both])])
        with pytest.raises(hk.SpecError, match="hadamard"):
            hk.CacheSpec(256, [csa(replace(made, hadamard=True), kernels=[both])])
    with pytest.raises(hk.SpecError, match="scale_floor"):
        hk.CacheSpec(256, [csa(replace(V4, scale_floor=1.0), kernels=[both])])


def test_kernels_that_name_no_format_or_one_that_is_not_registered_are_not_asked() -> None:
    odd = replace(V4, hadamard=True)
    own = KernelNeeds(name="mine", source="here", formats=("mine",))
    slower = replace(KERNELS["flashmla_sm100_sparse_model1"], name="slower", effect="slower")
    for kernel in ("vector_copy_16", own, slower):
        assert hk.CacheSpec(256, [csa(odd, kernels=[kernel])])
    with pytest.raises(hk.SpecError, match="hadamard"):
        hk.CacheSpec(256, [csa(odd, kernels=[replace(own, formats=("fp8_ds_mla_v4",))])])


def test_rows_that_only_slow_are_told_with_the_pages() -> None:
    inline = csa(None)
    found = suggest(inline, "vector_copy_16_rows")
    assert found.padded is not None
    assert found.conflicts == (
        "vector_copy_16_rows wants rows at multiples of 16 bytes, they are 584: bytes go slower",
    )
    footers = csa(V4)  # 576 bytes apart
    assert suggest(footers, "vector_copy_16_rows").conflicts == suggest(footers, "tma").conflicts == ()


def test_every_kernel_that_a_suggested_page_does_not_meet_is_in_a_conflict() -> None:
    draw, names = random.Random(11), sorted(KERNELS)
    served = slowed = 0
    for _ in range(400):
        kernels = [KERNELS[name] for name in draw.sample(names, draw.randint(1, 3))]
        row, rows = draw.choice((132, 512, 528, 584, 656, 1024, 7)), draw.choice((2, 3, 32, 64))
        footer = max((needs.footer_row_bytes for needs in kernels), default=0) or draw.choice((0, 0, 4))
        fmt = hk.KvFormat("x", "uint8", footer_offset=rows * (row - footer)) if 0 < footer < row else None
        group = hk.CacheGroup(
            *("kv", hk.StateKind.COMPRESSED, hk.Prefix()),
            page_bytes=rows * row, row_bytes=row, rows_per_page=rows, format=fmt,
        )  # fmt: skip
        found = suggest(group, kernels)
        for choice in filter(None, (found.padded, found.unpadded)):
            pool = PoolFacts(
                arrays=[ArrayPlace(found.base_alignment, choice.page_stride)], pages=2, page_bytes=choice.page_bytes,
                rows=choice.rows, row_bytes=row, footer_offset=choice.rows * (row - footer) if fmt else None,
            )  # fmt: skip
            wrong = {v.kernel for v in check(kernels, pool) if v.field not in ("footer_row", "reach")}
            assert all(any(name in conflict for conflict in found.conflicts) for name in wrong), (wrong, found)
            assert all(KERNELS[name].effect != REFUSED for name in wrong)
            served, slowed = served + 1, slowed + bool(wrong)
    assert served > 100 and slowed > 10, (served, slowed)


def test_no_page_is_suggested_of_which_a_kernel_reaches_none() -> None:
    wide = KernelNeeds(name="wide", source="here", page_stride_multiple=2**32 - 5)
    found = suggest(csa(V4), ["flashmla_sm100_sparse_model1", wide])
    assert found.best is None and found.conflicts
