# SPDX-License-Identifier: Apache-2.0
"""What kernels need of a pool against what it provides: told at bind, at match, at restore, and what would serve."""

from __future__ import annotations

import random
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from alignment_table import table
from contract_support import give_back, keys_of
from hybridkv.alignment import (
    KERNELS,
    REFUSED,
    SLOWER,
    ArrayPlace,
    KernelNeeds,
    PoolFacts,
    check,
    direct_io,
    suggest,
)

CONFIGS = Path(__file__).resolve().parents[1] / "data" / "configs"
MODEL1 = "flashmla_sm100_sparse_model1"
ROW, DATA, ROWS = 584, 576, 64
PAGE = ROW * ROWS


def memory(count: int, alignment: int = 4096, offset: int = 0) -> np.ndarray[Any, Any]:
    raw = np.zeros(count + 2 * alignment, np.uint8)
    start = -raw.ctypes.data % alignment + offset
    return raw[start : start + count]


def pages(count: int, size: int, stride: int, *, alignment: int = 4096, offset: int = 0) -> np.ndarray[Any, Any]:
    return memory(count * stride, alignment, offset).reshape(count, stride)[:, :size]


def csa(rows: int = ROWS, **more: Any) -> hk.CacheGroup:
    """Compressed rows of DeepSeek-V4, in pages of so many rows."""
    told = {"dtype": "float8_e4m3", "footer_offset": rows * DATA, **more.pop("told", {})}
    fmt = hk.KvFormat("fp8_ds_mla", scale="ue8m0", tile=64, scale_placement="page_footer", page_rows=rows, **told)
    given = {"page_bytes": rows * ROW, "row_bytes": ROW, "rows_per_page": rows, "format": fmt, **more}
    return hk.CacheGroup("csa", hk.StateKind.COMPRESSED, hk.Prefix(), tokens_per_row=4, **given)


def cache_of(group: hk.CacheGroup, unit: int = 256, **more: Any) -> hk.HybridCache:
    return hk.HybridCache(hk.CacheSpec(unit, [group]), blocks=8, **more)


def facts(**changed: Any) -> PoolFacts:
    good = {
        "arrays": [ArrayPlace(1 << 20, 37440, ROW)], "pages": 8, "page_bytes": PAGE, "rows": ROWS, "row_bytes": ROW,
        "packed_stride": ROW, "footer_offset": ROWS * DATA, "dtype": "uint8", "heads": 1, "head_dim": 512,
    }  # fmt: skip
    return PoolFacts(**{**good, **changed})


# -- the table ---------------------------------------------------------------------------------------


def test_the_table_is_whole() -> None:
    assert {name for name, needs in KERNELS.items() if needs.name != name or not needs.source} == set()
    families = {needs.gpu for needs in KERNELS.values()}
    assert families == {"", "sm90", "sm100", "sm120"}
    assert {name for name, needs in KERNELS.items() if needs.effect == SLOWER} == {"vector_copy_16_rows", "direct_io"}


def test_the_table_is_in_the_docs() -> None:
    written = (CONFIGS.parents[2] / "docs" / "alignment.md").read_text(encoding="utf-8")
    for part in table().split("\n\n"):
        assert part in written, "python tests/python/alignment_table.py"


# The figures of the public sources, written down a second time.
@pytest.mark.parametrize(
    ("name", "base", "stride", "row", "footer"),
    [
        ("flashmla_sm90_dense", 16, 16, (), 0),
        ("flashmla_sm90_sparse_v32", 16, 16, (656,), 0),
        ("flashmla_sm90_sparse_model1", 16, 16, (584,), 8),
        ("flashmla_sm100_sparse_v32", 16, 656, (656,), 0),
        ("flashmla_sm100_sparse_model1", 16, 576, (584,), 8),
        ("flashmla_sm100_v41", 16, 512, (528,), 16),
        ("flashmla_sm100_v41_fp4", 16, 256, (288,), 32),
        ("flashinfer_sm120_footer", 16, 512, (584,), 8),
        ("trtllm_gen_mla", 16, 512, (512,), 0),
        ("tma", 16, 16, (), 0),
        ("vector_copy_16", 16, 16, (), 0),
        ("direct_io", 4096, 4096, (), 0),
    ],
)
def test_figures(name: str, base: int, stride: int, row: tuple[int, ...], footer: int) -> None:
    needs = KERNELS[name]
    told = (needs.base_alignment, needs.page_stride_multiple, needs.row_bytes, needs.footer_row_bytes)
    assert told == (base, stride, row, footer)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""), ("source", ""), ("base_alignment", 0), ("page_stride_multiple", -1), ("row_multiple", True),
        ("adjacent_pages", 1), ("page_rows", "64"), ("page_rows", (0,)), ("row_bytes", (2**40,)), ("dtypes", (1,)),
        ("dtypes", None), ("effect", "bad"), ("footer_row_bytes", 8), ("coordinate_bytes", -4),
    ],
)  # fmt: skip
def test_needs_that_cannot_be_are_refused(field: str, value: Any) -> None:
    with pytest.raises(hk.SpecError) as caught:
        KernelNeeds(**{"name": "mine", "source": "here", field: value})
    assert caught.value.field.startswith("needs.")


def test_a_footer_is_smaller_than_its_row() -> None:
    with pytest.raises(hk.SpecError) as caught:
        KernelNeeds(name="mine", source="here", row_bytes=(8,), footer_row_bytes=8)
    assert caught.value.field == "needs.footer_row_bytes"


# -- check -------------------------------------------------------------------------------------------


def test_a_pool_that_fits_has_nothing_wrong() -> None:
    assert check([MODEL1, "flashmla_sm90_sparse_model1", "vector_copy_16"], facts()) == []


BREAKS: list[tuple[str, str, dict[str, Any], str, str]] = [
    (MODEL1, "base", {"arrays": [ArrayPlace(8, 37440, ROW)]}, "0x8", "begin 8 bytes later"),
    (MODEL1, "page_stride", {"arrays": [ArrayPlace(0, PAGE, ROW)]}, "37376", "pad pages to 37440 bytes"),
    (MODEL1, "row_stride", {"arrays": [ArrayPlace(0, 65 * 576 * 2, 592)]}, "592", "leave no padding between rows"),
    (MODEL1, "footer", {"footer_offset": 36880}, "36880", "put the footers behind the 64 rows"),
    (MODEL1, "footer_row", {"footer_offset": None}, "a format that declares none", "declare rows and"),
    (MODEL1, "row_bytes", {"row_bytes": 656}, "656", "convert the rows"),
    (MODEL1, "row_bytes", {"row_bytes": None}, "rows that are not declared", "convert the rows"),
    (MODEL1, "dtype", {"dtype": "bfloat16"}, "bfloat16", "convert the rows"),
    (MODEL1, "heads", {"heads": 2}, "2", "take another kernel"),
    (MODEL1, "head_dim", {"head_dim": 576}, "576", "take another kernel"),
    (MODEL1, "reach", {"pages": 2**31 // 65 + 1}, str(2**31 // 65 + 1), "split the pool"),
    ("flashinfer_sm120_footer", "page_stride", {"arrays": [ArrayPlace(0, 37888)]}, "37888", "leave no padding"),
    ("flashinfer_sm120_footer", "page_rows", {"rows": 128}, "128", "use pages of 64 rows"),
    ("direct_io", "page_bytes", {}, "37376", "make pages of 40960 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "field", "changed", "got", "fix"), BREAKS)
def test_each_need_is_told_by_its_field(kernel: str, field: str, changed: dict[str, Any], got: str, fix: str) -> None:
    told = {violation.field: violation for violation in check(kernel, facts(**changed))}
    assert field in told
    assert (told[field].got, told[field].kernel, told[field].source) == (got, kernel, KERNELS[kernel].source)
    assert fix in told[field].fix
    assert kernel in str(told[field]) and got in str(told[field])


def test_rows_of_584_bytes_are_at_multiples_of_8_alone() -> None:
    inline = facts(footer_offset=None)
    (violation,) = check("vector_copy_16_rows", inline)
    assert (violation.field, violation.got, violation.effect) == ("row_stride", "584", SLOWER)
    assert check("vector_copy_16_rows", facts()) == []  # with a footer they lie 576 bytes apart
    both = check("vector_copy_16_rows", facts(rows=2, footer_offset=1160))
    assert [(violation.field, violation.got) for violation in both] == [("row_stride", "580"), ("footer", "1160")]


def test_the_last_page_that_coordinates_of_32_bits_reach() -> None:
    most = (2**31 - 1) // 65
    assert check(MODEL1, facts(pages=most)) == []
    assert [v.field for v in check(MODEL1, facts(pages=most + 1))] == ["reach"]


def test_one_page_has_no_stride() -> None:
    assert check(MODEL1, facts(arrays=[ArrayPlace(0, 7)], pages=1)) == []


def test_whole_pages_of_a_kernel_may_lie_in_one_of_ours() -> None:
    dense = facts(rows=256, row_bytes=1152, page_bytes=256 * 1152, footer_offset=None, dtype="bfloat16", head_dim=576)
    dense = replace(dense, packed_stride=1152, arrays=[ArrayPlace(0, 256 * 1152)])
    assert check("flashmla_sm90_dense", dense) == []
    padded = replace(dense, arrays=[ArrayPlace(0, 256 * 1152 + 1152)])
    assert [v.field for v in check("flashmla_sm90_dense", padded)] == ["page_stride"]
    assert [v.field for v in check("flashmla_sm90_dense", replace(dense, rows=96))] == ["page_rows"]


@pytest.mark.parametrize("kernels", ["nope", 7, [1], b"tma", {"tma": 1}, [None]])
def test_kernels_that_are_none_are_refused(kernels: Any) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        check(kernels, facts())
    assert caught.value.field == "kernels"
    with pytest.raises(hk.ArgumentError):
        check("tma", np.zeros(3))  # type: ignore[arg-type]


def test_one_name_has_one_meaning() -> None:
    with pytest.raises(hk.ArgumentError, match="one meaning"):
        check(["tma", replace(KERNELS["tma"], base_alignment=32)], facts())


# -- bind and match ----------------------------------------------------------------------------------


def told_by_match(cache: hk.HybridCache) -> Any:
    cache.insert(keys_of(512, 256))
    return cache.match(keys_of(513, 256))


def test_a_group_names_its_kernel_and_match_tells_which_need() -> None:
    cache = cache_of(csa(kernels=[MODEL1]))
    cache.bind("csa", pages(8, PAGE, 37440))
    assert cache.alignment("csa") == ()
    assert give_back(told_by_match(cache)) == 512
    cache = cache_of(csa(kernels=MODEL1))
    cache.bind("csa", pages(8, PAGE, PAGE))
    verdict = told_by_match(cache)
    assert (verdict.outcome, verdict.why.check, verdict.why.code) == (
        hk.Outcome.FALSE_HIT,
        hk.Check.ALIGNED,
        "page_stride",
    )
    wanted = "flashmla_sm100_sparse_model1 needs a page stride that is a multiple of 576, got 37376: pad pages to 37440"
    assert wanted in verdict.why.detail
    assert verdict.remedy is hk.Remedy.RECOMPUTE


@pytest.mark.parametrize(
    ("code", "array"),
    [
        ("base", pages(8, PAGE, 37440, offset=8)),
        ("row_stride", np.zeros(8 * 592 * 576, np.uint8).reshape(8, 576, 592)[:, :64, :584]),
    ],
)
def test_bind_takes_kernels_too(code: str, array: np.ndarray[Any, Any]) -> None:
    cache = cache_of(csa())
    cache.bind("csa", array, kernel=MODEL1)
    verdict = told_by_match(cache)
    assert (verdict.why.check, verdict.why.code) == (hk.Check.ALIGNED, code)
    assert verdict.usable_tokens == 0 and MODEL1 in str([str(v) for v in cache.alignment("csa")])


def test_a_footer_elsewhere_is_told() -> None:
    cache = cache_of(csa(told={"footer_offset": 36880}))
    cache.bind("csa", pages(8, PAGE, 37440), kernel=MODEL1)
    verdict = told_by_match(cache)
    assert (verdict.why.check, verdict.why.code) == (hk.Check.ALIGNED, "footer")
    assert "footers that begin at 36864, got 36880" in verdict.why.detail


def test_each_layer_of_one_array_is_checked() -> None:
    odd = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=584, row_bytes=584, layers=range(2))
    cache = hk.HybridCache(hk.CacheSpec(1, [odd]), blocks=8)
    cache.bind("kv", pages(8, 2 * 584, 2 * 592), kernel="tma")
    assert [(v.field, int(v.got, 16) % 16) for v in cache.alignment("kv")] == [("base", 8)]


def test_what_only_slows_is_told_and_changes_nothing() -> None:
    cache = cache_of(csa(kernels=["direct_io"]))
    cache.bind("csa", pages(8, PAGE, 37440))
    assert {v.effect for v in cache.alignment("csa")} == {SLOWER}
    assert give_back(told_by_match(cache)) == 512


def test_a_group_that_names_no_kernel_is_as_before() -> None:
    cache = cache_of(csa())
    cache.bind("csa", pages(8, PAGE, PAGE, offset=8))
    assert cache.alignment("csa") == ()
    assert give_back(told_by_match(cache)) == 512


def test_a_kernel_that_cannot_read_the_declaration_is_refused() -> None:
    with pytest.raises(hk.SpecError) as caught:
        hk.CacheSpec(256, [csa(kernels=["flashmla_sm100_sparse_v32"])])
    assert caught.value.field == "groups['csa'].kernels" and "rows of 656 bytes" in str(caught.value)
    with pytest.raises(hk.SpecError):
        csa(kernels=["nope"])
    cache = cache_of(csa())
    for kernel in ("trtllm_gen_mla", "nope"):
        with pytest.raises(hk.ArgumentError) as refused:
            cache.bind("csa", pages(8, PAGE, 37440), kernel=kernel)
        assert refused.value.field == "kernel"
    assert cache.alignment("csa") == ()
    with pytest.raises(hk.ArgumentError):
        cache.alignment("nope")


def test_published_specs_are_read_by_the_kernels_of_their_engines() -> None:
    spec = hk.CacheSpec.from_config(CONFIGS / "deepseek-v4-flash.json")
    for group in spec.groups:
        if group.row_bytes == ROW:
            assert replace(group, kernels=[MODEL1]).resolved(256).kernels[0].name == MODEL1
    (kv, _) = hk.CacheSpec.from_config(CONFIGS / "deepseek-v3.2.json").groups
    assert replace(kv, kernels=["flashmla_sm100_sparse_v32"]).resolved(256).kernels


def test_what_the_core_says_of_a_declaration_is_what_is_told_of_it() -> None:
    """The core decides of a group's own declaration; the sentence that goes with it comes from another place."""
    draw = random.Random(7)
    codes = set()
    for _ in range(400):
        rows, row = draw.choice((1, 2, 4)), draw.choice((24, 32, 48))
        alignment, gap = draw.choice((1, 8, 16, 64)), draw.choice((0, 8, 16, 48))
        stride = rows * (row + 8) + gap
        fmt = hk.KvFormat("x", "uint8", footer_offset=draw.choice((0, rows * row - 1, rows * row)))
        named = {"page_stride": stride + draw.choice((0, 0, alignment))} if draw.random() < 0.4 else {}
        if named and named["page_stride"] % alignment:
            continue
        given = {
            "page_bytes": rows * row,
            "row_bytes": row,
            "rows_per_page": rows,
            "alignment": alignment,
            "format": fmt,
        }
        group = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), **given, **named)
        cache = hk.HybridCache(hk.CacheSpec(rows, [group]), blocks=4)
        raw = memory(4 * stride, 64, draw.choice((0, 8, 16)))
        array = np.lib.stride_tricks.as_strided(raw, (4, rows, row), (stride, row + draw.choice((0, 8)), 1))
        cache.bind("kv", array)
        cache.insert(keys_of(2 * rows, rows))
        verdict = cache.match(keys_of(2 * rows + 1, rows))
        first = next(
            iter(
                sorted(
                    cache.alignment("kv"), key=lambda v: ("base", "page_stride", "row_stride", "footer").index(v.field)
                )
            ),
            None,
        )
        assert (verdict.why.code if verdict.why else None) == (first.field if first else None), (given, named)
        if first:
            assert str(first) in verdict.why.detail
        codes.add(first.field if first else None)
        if verdict.lease:
            verdict.lease.cancel()
    assert codes == {None, "base", "page_stride", "row_stride", "footer"}


# -- bytes that change their owner -------------------------------------------------------------------


def test_nothing_is_restored_into_a_pool_that_its_kernel_cannot_take() -> None:
    with hk.MemoryTier(1 << 22) as tier:
        cache = cache_of(csa(kernels=[MODEL1]), tier=tier)
        cache.bind("csa", pages(8, PAGE, 37440))
        cache.insert(keys_of(512, 256))
        cache.offload(keys_of(512, 256)).result(10)
        cache.evict(keys_of(512, 256))
        plan = cache.match(keys_of(513, 256)).plan
        assert plan.restore_tokens == 512
        cache.bind("csa", pages(8, PAGE, PAGE))
        verdict = cache.match(keys_of(513, 256))
        assert (verdict.remedy, verdict.plan.restore_tokens) == (hk.Remedy.RECOMPUTE, 0)
        assert MODEL1 in verdict.why.detail
        assert cache.restorable(keys_of(513, 256)) is None and cache.prefetch(keys_of(513, 256)) is None
        with pytest.raises(hk.ArgumentError, match="multiple of 576"):
            cache.restore(plan)
        cache.bind("csa", pages(8, PAGE, 37440))
        cache.restore(plan).result(10)
        assert give_back(cache.match(keys_of(513, 256))) == 512
        cache.close()


def test_scatter_into_another_pool_is_checked_once() -> None:
    layout = hk.ops.PageRows(ROWS, DATA, footer_bytes=8)
    good = hk.ops.Pools([pages(4, PAGE, 37440)], layout=layout, kernels=[MODEL1])
    hk.ops.scatter(np.ones((1, 1, PAGE), np.uint8), good, np.array([2], np.int32))
    with pytest.raises(hk.KernelContract) as caught:
        hk.ops.Pools([pages(4, PAGE, PAGE)], layout=layout, kernels=[MODEL1])
    assert caught.value.argument == "pools" and MODEL1 in str(caught.value) and caught.value.got == "37376"
    with pytest.raises(hk.KernelContract, match="footers that begin at 36864"):
        hk.ops.Pools([pages(4, 37440, 37440)], layout=replace(layout, footer_offset=36880), kernels=MODEL1)
    hk.ops.Pools([pages(4, PAGE, 37440)], layout=layout, kernels="direct_io")  # slower, and right
    with pytest.raises(hk.ArgumentError):
        hk.ops.Pools([pages(4, PAGE, 37440)], layout=layout, kernels="nope")


# -- which pages -------------------------------------------------------------------------------------


def test_pages_for_one_kernel() -> None:
    found = suggest(csa(), MODEL1)
    assert found.padded is not None and found.unpadded is not None and found.conflicts == ()
    assert (found.padded.rows, found.padded.page_stride, found.padded.padding_bytes) == (64, 37440, 64)
    assert (found.unpadded.rows, found.unpadded.page_stride, found.unpadded.block_tokens) == (72, 42048, 288)
    assert found.base_alignment == 16 and found.best == found.padded


def test_pages_of_two_rows_cost_half() -> None:
    found = suggest(csa(2), MODEL1)
    assert found.padded is not None and found.padded.page_stride == 1728  # 48 % of padding


def test_two_kernels_that_no_page_serves() -> None:
    found = suggest(csa(), [MODEL1, "flashinfer_sm120_footer"])
    assert found.best is None
    (conflict,) = found.conflicts
    assert "pages of 64 rows" in conflict and "no padding" in conflict and "a multiple of 576 rows" in conflict


def test_other_rows_are_a_conflict() -> None:
    assert "rows of 656 bytes" in suggest(csa(), "flashmla_sm90_sparse_v32").conflicts[0]


def test_what_only_slows_gives_way() -> None:
    strict = suggest(csa(), [MODEL1, "flashmla_sm90_sparse_model1"])
    both = suggest(csa(), [MODEL1, "flashmla_sm90_sparse_model1", "direct_io"])
    assert both.unpadded is not None and both.unpadded.page_stride % 4096 == 0 and both.padded is None
    assert both.unpadded.rows == 4608
    narrow = replace(KERNELS["flashinfer_sm120_footer"], page_stride_multiple=1)
    less = suggest(csa(), [narrow, "direct_io"])
    assert less.unpadded is not None and less.unpadded.rows == 64
    assert any("direct_io too" in conflict for conflict in less.conflicts)
    assert strict.conflicts == ()


def test_a_group_without_rows_has_no_pages_to_suggest() -> None:
    bare = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=512)
    for group, kernels in ((bare, "tma"), (csa(), ())):
        with pytest.raises(hk.ArgumentError):
            suggest(group, kernels)


def test_whatever_is_suggested_fits_and_nothing_smaller_does() -> None:
    draw, names = random.Random(5), sorted(KERNELS)
    served = 0
    for _ in range(300):
        kernels = [KERNELS[name] for name in draw.sample(names, draw.randint(1, 3))]
        row, rows = draw.choice((512, 528, 584, 656, 1024, 1152)), draw.choice((2, 32, 64, 128))
        footer = max((needs.footer_row_bytes for needs in kernels), default=0)
        fmt = hk.KvFormat("x", "uint8", footer_offset=rows * (row - footer)) if footer else None
        group = hk.CacheGroup(
            "kv",
            hk.StateKind.COMPRESSED,
            hk.Prefix(),
            page_bytes=rows * row,
            row_bytes=row,
            rows_per_page=rows,
            format=fmt,
        )
        found = suggest(group, kernels)
        if any(needs.effect == SLOWER for needs in kernels):
            continue
        for choice in filter(None, (found.padded, found.unpadded)):
            served += 1
            assert serves(kernels, row, footer, choice.rows, choice.page_stride, found.base_alignment)
        assert found.unpadded is None or found.unpadded.padding_bytes == 0
        if found.unpadded is not None:
            fewer = range(1, found.unpadded.rows)
            assert not any(serves(kernels, row, footer, n, n * row, found.base_alignment) for n in fewer)
        if found.best is None and not any("rows of" in c or "rows at" in c for c in found.conflicts):
            assert not any(serves(kernels, row, footer, n, n * row, found.base_alignment) for n in range(1, 2000))
    assert served > 50


def serves(kernels: list[KernelNeeds], row: int, footer: int, rows: int, stride: int, base: int) -> bool:
    pool = PoolFacts(
        arrays=[ArrayPlace(base, stride)], pages=3, page_bytes=rows * row, rows=rows, row_bytes=row,
        footer_offset=rows * (row - footer) if footer else None,
    )  # fmt: skip
    return not [v for v in check(kernels, pool) if v.effect == REFUSED]


def test_units_of_a_file_system() -> None:
    needs = direct_io(512, 4096)
    assert (needs.base_alignment, needs.page_bytes_multiple) == (512, 4096)
    assert gcd(needs.page_stride_multiple, 512) == 512
    with pytest.raises(hk.SpecError):
        direct_io(0)
