# SPDX-License-Identifier: Apache-2.0
"""Whether there is a lossless way between two formats, told from the formats alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
import hybridkv.reference as ref
from convert_support import VARIANTS, family, ids, label, pages, rotated
from hybridkv import KernelContract, SpecError
from hybridkv.reference import RowFormat, ScaleRule, published

FP8, UE8M0, MLA, BF16 = (
    published.INDEXER_FP8, published.INDEXER_FP8_UE8M0, published.FP8_DS_MLA, published.BFLOAT16_ROWS
)  # fmt: skip
FINE = published.tiled("fine", "float8_e4m3", 128, 16, ScaleRule("ue8m0", published.SMALLEST_AMAX))


def part_changed(row: RowFormat, **change: Any) -> RowFormat:
    return replace(row, parts=(replace(row.parts[0], **change), *row.parts[1:]))


def test_the_same_format_has_nothing_to_do_whatever_its_name() -> None:
    plan = hk.ops.plan_conversion(MLA, replace(MLA, name="another"))
    assert plan.lossless and not plan.steps and not plan.checked


STEPS = [
    (MLA, MLA.paged(256), ["pages"], False),
    (MLA, published.FP8_DS_MLA_512, ["strides"], False),
    (MLA, MLA.inline(), ["placement"], False),
    (published.V41_FP8.inline(), published.V41_FP8, ["placement"], False),
    (FP8, UE8M0, ["scales", "tiles"], True),
    (UE8M0, FP8.with_footer(), ["placement", "scales", "tiles"], True),
    (rotated(BF16, True), rotated(BF16, False), ["pairs"], False),
    (rotated(FP8, True), rotated(UE8M0.paged(8), False), ["pages", "scales", "tiles", "pairs"], True),
    (UE8M0, FINE, ["placement", "tiles"], False),
    (FINE, UE8M0, ["placement", "tiles"], True),
    (part_changed(FP8, offset=4, scale_offset=0), FP8, ["placement"], False),
]


@pytest.mark.parametrize(("source", "target", "wanted", "checked"), STEPS)
def test_the_steps_of_a_way(source: RowFormat, target: RowFormat, wanted: list[str], checked: bool) -> None:
    plan = hk.ops.plan_conversion(source, target)
    assert [step.name for step in plan.steps] == wanted
    assert (plan.lossless, plan.checked) == (True, checked)
    assert plan == ref.plan_conversion(source, target)


def test_a_step_tells_both_values() -> None:
    (step,) = hk.ops.plan_conversion(MLA, MLA.paged(256)).steps
    assert (step.field, step.source, step.target) == ("page_rows", 64, 256)


OBSTACLES = [
    ("rotated by a Hadamard matrix, or not", FP8, replace(FP8, hadamard=True), ["hadamard"]),
    ("rounded first", MLA, replace(MLA, first_rounded_to="bfloat16"), ["first_rounded_to"]),
    ("another element", FP8, published.plain("bfloat16", 128), ["parts[all].element", "parts[all].scale"]),
    ("other parts", MLA, published.V41_FP8, ["parts"]),
    ("another floor", MLA, part_changed(MLA, scale=ScaleRule("ue8m0", 1e-8)), ["parts[nope].scale.floor"]),
    ("scales of any value", published.FP8_DS_MLA_V32,
     part_changed(published.FP8_DS_MLA_V32, scale=ScaleRule("float32", 1e-4)), ["parts[nope].scale.power_of_two"]),
    ("scales in e4m3", published.V41_FP4,
     part_changed(published.V41_FP4, scale=ScaleRule("ue8m0", 6 * 2.0**-9)),
     ["parts[all].scale.power_of_two", "parts[all].scale.encoding"]),
    ("tiles across each other", *(published.tiled("some", "float8_e4m3", 96, tile, ScaleRule("ue8m0", 1.0))
                                  for tile in (48, 32)), ["parts[all].tile"]),
    ("pairs declared by one", rotated(BF16, True), BF16, ["rope_dims"]),
    ("other rotated channels", rotated(BF16, True), rotated(BF16, False, 32), ["rope_dims"]),
    ("pairs behind a Hadamard matrix", rotated(replace(FP8, hadamard=True), True),
     rotated(replace(FP8, hadamard=True), False), ["interleaved"]),
    ("pairs across tiles", rotated(UE8M0, True), rotated(UE8M0, False), ["interleaved"]),
    ("pairs of half bytes", *(rotated(replace(published.INDEXER_MXFP4, hadamard=False), way, 32)
                              for way in (True, False)), ["interleaved"]),
    ("pairs across parts", *(rotated(MLA, way, 128) for way in (True, False)), ["interleaved"]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "fields"), [pytest.param(*case, id=name) for name, *case in OBSTACLES])
def test_what_stands_in_the_way_is_named_in_both_directions(
    source: RowFormat, target: RowFormat, fields: list[str]
) -> None:
    for here, there in ((source, target), (target, source)):
        plan = hk.ops.plan_conversion(here, there)
        assert not plan.lossless and [obstacle.field for obstacle in plan.obstacles] == fields
        for convert in (hk.ops.convert, ref.convert):
            refused(convert, here, there, fields)


def refused(convert: Any, source: RowFormat, target: RowFormat, fields: list[str]) -> None:
    pool, out = (pages(np.random.default_rng(0), row, 1) for row in (source, target))
    before = out.copy()
    with pytest.raises(KernelContract) as caught:
        convert(pool, ids([0]), out, ids([0]), source=source, target=target, row_counts=np.array([1]))
    assert caught.value.field == "target" and (out == before).all()
    assert all(field in str(caught.value.got) for field in fields)


@pytest.mark.parametrize("source", VARIANTS, ids=label)
def test_published_formats_of_two_families_have_no_way(source: RowFormat) -> None:
    for target in VARIANTS:
        plan = hk.ops.plan_conversion(source, target)
        assert plan.lossless == (family(source) == family(target)), label(target)
        if not plan.lossless:
            refused(hk.ops.convert, source, target, [obstacle.field for obstacle in plan.obstacles])


def test_what_is_no_format_is_refused() -> None:
    for name, given in (("source", (None, MLA)), ("target", (MLA, "fp8_ds_mla"))):
        with pytest.raises(KernelContract) as caught:
            hk.ops.plan_conversion(*given)  # type: ignore[arg-type]
        assert caught.value.field == name


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("row_format.rope_dims", {"rope_dims": 63, "interleaved": True}),
        ("row_format.rope_dims", {"rope_dims": -2, "interleaved": True}),
        ("row_format.rope_dims", {"rope_dims": 514, "interleaved": True}),
        ("row_format.rope_dims", {"rope_dims": "64", "interleaved": True}),
        ("row_format.interleaved", {"rope_dims": 64}),
        ("row_format.interleaved", {"interleaved": False}),
        ("row_format.interleaved", {"rope_dims": 64, "interleaved": 1}),
    ],
)
def test_a_bad_declaration_of_rotated_channels_is_refused(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        replace(MLA, **change)
    assert caught.value.field == field


@pytest.mark.parametrize("module", [hk.ops, ref], ids=["ops", "reference"])
def test_rows_are_written_by_the_rotation_that_is_declared(module: Any) -> None:
    row = rotated(published.plain("float32", 8, page_rows=1), True, 4)
    call: dict[str, Any] = {
        "ratio": 1, "overlap": False, "norm_weight": np.ones(8, np.float32), "eps": 0.0, "row_format": row,
        "starts": np.int32([0, 1]), "positions": np.int32([3]),
    }  # fmt: skip
    rows, out = np.arange(8, dtype=np.float32)[None], np.zeros((1, 32), np.uint8)
    for rope in (None, ref.Rope(4, 100.0, interleaved=False), ref.Rope(8, 100.0)):
        with pytest.raises(KernelContract) as caught:
            module.compress_tail(rows, np.zeros_like(rows), out, rope=rope, **call)
        assert caught.value.field == "rope" and not out.any()
    module.compress_tail(rows, np.zeros_like(rows), out, rope=ref.Rope(4, 100.0), **call)
    assert out.any()
