# SPDX-License-Identifier: Apache-2.0
"""A plan is offered only where following it gives what the reader's declared format says, byte by byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import declared_pages as dp
import hybridkv as hk
from hybridkv.formats import REGISTRY, Agreement, KvFormat, Refusal, negotiate, relation, row_format_of
from hybridkv.reference.conversion_plan import ConversionPlan

NAMES = [name for name, entry in REGISTRY.items() if entry.row_format() is not None]
V4, INDEXER = REGISTRY["fp8_ds_mla_v4"].format, REGISTRY["indexer_fp8"].format

CHANGES: dict[str, list[Any]] = {
    "footer_offset": [None, 0, 7, 64, 36928, "more"],
    "row_stride": [None, 0, 1, 600, "more", "twice"],
    "row_bytes": [None, "more"],
    "page_stride": [None, 1, 37377, "more"],
    "page_rows": [None, 0, 3],
    "alignment": [None, 0, 1, 3, 64, 4096],
    "scale_placement": [None, "inline", "page_footer", "pool", "elsewhere"],
    "scale": [None, "none", "float32", "ue8m0", "ue8m0x4", "e4m3"],
    "tile": [None, 0, 16, 32, 64, 128],
    "channel_order": [None, "all", "all|scales", "scales|all", "rope|nope|scales", "nope|nope|rope|scales", "|"],
    "position_convention": [
        None,
        "absolute",
        "absolute_halves",
        "absolute_interleaved",
        "entry_halves",
        "halves",
        "_halves",
    ],
    "rope_dims": [None, 0, 32, 64],
    "rope_dtype": [None, "bfloat16", "float8_e4m3"],
    "head_layout": ["HND"],
    "local_heads": [1, 8],
    "ring_rows": [8],
    "state_format": ["rows_mod_ring"],
    "hadamard": [None, False, True],
    "kv_order": [None, "page"],
    "row_order": [None, "page8"],
    "pool_split": [None, "nope|rope"],
    "shard": ["heads"],
    "theta": [1.0],
    "head_dim": [None, 64],
    "overlap": [True],
    "quantiser_input": ["bfloat16"],
}


def changed(rng: np.random.Generator, made: KvFormat) -> KvFormat:
    """Change one field into whatever it takes."""
    field = str(rng.choice(list(CHANGES)))
    value = CHANGES[field][rng.integers(len(CHANGES[field]))]
    if isinstance(value, str) and value in ("more", "twice"):
        own = getattr(made, field) or 0
        value = 2 * own if value == "twice" else own + int(rng.choice([1, 8, 16, 64]))
    return replace(made, **{field: value})


def pair(rng: np.random.Generator) -> tuple[KvFormat, KvFormat]:
    """Two formats of one family, laid out in two ways; some fields of some are changed, on one side or both alike."""
    name = str(rng.choice(NAMES))
    base = REGISTRY[name].format
    twin = REGISTRY["indexer_fp8_ue8m0" if name == "indexer_fp8" else name].format
    if rng.integers(3) == 0:
        twin = replace(twin, position_convention="absolute_halves")
    reader = dp.laid_out(base, rng)
    writer = dp.laid_out(twin, rng) if rng.integers(2) else replace(reader)
    for _ in range(int(rng.integers(0, 3))):
        seed = int(rng.integers(2**32))
        if rng.integers(3) != 0:
            reader = changed(np.random.default_rng(seed), reader)
        if rng.integers(3) != 0:
            writer = changed(np.random.default_rng(seed + int(rng.integers(2))), writer)
    return (reader, writer) if rng.integers(2) else (writer, reader)


def follow(rng: np.random.Generator, plan: ConversionPlan, reader: KvFormat, writer: KvFormat) -> None:
    """Write rows as the writer declares, convert, read them as the reader declares."""
    content = dp.drawn(rng, writer)
    pool, out = dp.memory(rng, writer), dp.memory(rng, reader)
    dp.write(writer, content, pool)
    assert dp.read(writer, pool) == dp.values_of(content), "the writer's own definition"
    ids = [np.arange(len(pages), dtype=np.int32)[None] for pages in (pool, out)]
    counts = np.array([dp.ROWS])
    hk.ops.convert(pool, ids[0], out, ids[1], source=plan.source, target=plan.target, row_counts=counts)
    assert dp.read(reader, out) == dp.values_of(content)


def side(made: KvFormat) -> hk.CacheSpec | None:
    """A spec of the format; None where its sizes make no group."""
    rows, row = made.page_rows, made.row_bytes
    if not rows or not row:
        return None
    try:
        group = hk.CacheGroup(
            *("kv", hk.StateKind.COMPRESSED, hk.Prefix()),
            page_bytes=rows * row, row_bytes=row, rows_per_page=rows, block_tokens=rows, format=made,
        )  # fmt: skip
        return hk.CacheSpec(1, [group])
    except hk.SpecError:
        return None


def offered(reader: KvFormat, writer: KvFormat) -> list[ConversionPlan | None]:
    """What every other way to ask for a plan answers."""
    found: list[ConversionPlan | None] = []
    ours, theirs = side(reader), side(writer)
    if ours is not None and theirs is not None:
        told = negotiate(ours, theirs)
        blocks = sorted(one.groups[0].block_tokens or 1 for one in (ours, theirs))
        assert isinstance(told, Refusal) or blocks[1] % blocks[0] == 0
        if blocks[1] % blocks[0] == 0:  # else no block of one is made of whole blocks of the other
            found.append(told.conversions["kv"] if isinstance(told, Agreement) else None)
    if ours is not None and {d.field for d in reader.diff(writer)} - {"page_stride", "alignment"}:
        cache = hk.HybridCache(ours, blocks=64)
        with pytest.raises(hk.SpecError) as caught:
            cache.bind("kv", np.zeros((64, ours.groups[0].page_bytes), np.uint8), format=writer)
        found.append(caught.value.plan)  # type: ignore[attr-defined]
        cache.close()
    if theirs is not None:
        cache = hk.HybridCache(theirs, blocks=64)
        cache.bind("kv", np.zeros((64, theirs.groups[0].page_bytes), np.uint8))
        tokens = theirs.groups[0].block_tokens or 1
        keys = hk.block_keys(range(tokens), 1)
        cache.insert(keys)
        verdict = cache.match(keys, limit=tokens + 1, formats={"kv": reader})
        assert verdict.why is not None and verdict.why.code == "format"
        assert verdict.plan.converter is None or verdict.remedy is hk.Remedy.CONVERT
        found.append(verdict.plan.converter)
        cache.close()
    return found


def test_every_plan_that_is_offered_gives_what_the_reader_reads() -> None:
    rng = np.random.default_rng(20)
    plans: Counter[str] = Counter()
    for _ in range(600):
        reader, writer = pair(rng)
        if reader.fingerprint == writer.fingerprint:
            continue
        told = relation(reader, writer)
        if told.plan is not None:
            assert told.plan.steps, f"a plan without a step for {[d.field for d in told.differences]}"
            assert (told.plan.source, told.plan.target) == (row_format_of(writer), row_format_of(reader))
            follow(rng, told.plan, reader, writer)
            plans.update(["any", *(step.name for step in told.plan.steps)])
        if rng.integers(4) == 0 or told.plan is not None:
            assert all(plan == told.plan for plan in offered(reader, writer)), [d.field for d in told.differences]
        plans["refused"] += told.plan is None
    assert set(plans) == {"any", "refused", "pages", "strides", "placement", "scales", "tiles", "pairs"}
    assert plans["any"] >= 80 and min(plans.values()) >= 4, plans


ALONE = [
    (base, field, value)
    for base in (V4, INDEXER, REGISTRY["bfloat16_rows"].format, REGISTRY["v41_fp4_new"].format)
    for field, values in CHANGES.items()
    for value in values
    if not isinstance(value, str) or value not in ("more", "twice")
]


def test_no_field_alone_makes_a_plan_of_no_steps() -> None:
    """A field that one side declares otherwise, or not at all, in each of four formats."""
    for base, field, value in ALONE:
        other = replace(base, **{field: value})
        for reader, writer in ((base, other), (other, base)):
            told = relation(reader, writer)
            assert told.plan is None or told.plan.steps, (base.layout, field, value)


@pytest.mark.parametrize(
    ("base", "field", "value"),
    [
        (V4, "footer_offset", 36928), (V4, "footer_offset", 0), (V4, "footer_offset", None), (V4, "row_stride", 592),
        (V4, "row_stride", None), (V4, "page_stride", 37377), (V4, "page_stride", 1), (V4, "alignment", 0),
        (V4, "scale_placement", "pool"), (V4, "scale_placement", None), (V4, "head_layout", "HND"),
        (V4, "local_heads", 8), (V4, "rope_dims", 0), (V4, "channel_order", "nope|nope|rope|scales"),
        (INDEXER, "footer_offset", 7), (INDEXER, "row_stride", 200), (INDEXER, "rope_dtype", "bfloat16"),
        (INDEXER, "rope_dims", None), (INDEXER, "scale", "ue8m0x4"),
        (REGISTRY["bfloat16_rows"].format, "scale_placement", "inline"), (REGISTRY["bfloat16_rows"].format, "tile", 64),
    ],
)  # fmt: skip
def test_what_a_row_format_does_not_express_makes_none(base: KvFormat, field: str, value: Any) -> None:
    assert row_format_of(base) is not None
    other = replace(base, **{field: value})
    assert row_format_of(other) is None and relation(base, other).plan is relation(other, base).plan is None


def test_two_words_for_one_encoding_are_no_step() -> None:
    """Four codes in a word or four bytes: row formats say one thing of both, so nothing accounts for the difference."""
    words = REGISTRY["indexer_fp8_ue8m0"].format
    told = relation(words, replace(words, scale="ue8m0", page_rows=8, page_stride=8 * 132))
    assert told.plan is None and told.reason == "no converter for scale"


def test_a_longer_row_is_a_step() -> None:
    """Rows that keep more in the footer: the same bytes of data, and no padding where there was none."""
    longer = replace(V4, row_bytes=592, page_stride=64 * 600)
    told = relation(longer, V4)
    assert told.plan is not None and [step.name for step in told.plan.steps] == ["strides", "placement"]
    follow(np.random.default_rng(1), told.plan, longer, V4)
