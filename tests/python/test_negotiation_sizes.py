# SPDX-License-Identifier: Apache-2.0
"""A conversion accounts for the sizes that it begins and ends with, and for no other; groups have an order."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.formats import REGISTRY, Agreement, Manifest, Refusal, negotiate, row_format_of

ENTRY = REGISTRY["indexer_fp8"]
ROWS = 64


def group(rows: int = ROWS, **more: Any) -> hk.CacheGroup:
    """Rows of an indexer in pages of so many, one for each block."""
    given = {"page_bytes": rows * 132, "row_bytes": 132, "rows_per_page": rows, "block_tokens": 4 * rows, **more}
    made = given.pop("format", ENTRY.paged(rows))
    return hk.CacheGroup("idx", hk.StateKind.INDEXER, hk.Prefix(), tokens_per_row=4, format=made, **given)


def manifest(one: hk.CacheGroup, **changed: Any) -> Manifest:
    """What a side declares; changed as another version, or who is no friend, could send it."""
    own = Manifest.of(hk.CacheSpec(16, [one]))
    return replace(own, groups=(replace(own.groups[0], **changed),))


PADDED = replace(ENTRY.format, page_stride=8640, alignment=64)


def told(ours: Manifest, theirs: Manifest) -> Agreement | Refusal:
    found = negotiate(ours, theirs)
    again = negotiate(theirs, ours)
    assert type(found) is type(again) and {d.where for d in found.differences} == {d.where for d in again.differences}
    return found


def test_pages_of_the_plans_own_sizes_agree() -> None:
    agreed = told(manifest(group()), manifest(group(format=PADDED)))
    assert isinstance(agreed, Agreement) and [s.name for s in agreed.conversions["idx"].steps] == ["strides"]
    agreed = told(manifest(group()), manifest(group(page_bytes=8640, format=PADDED)))
    assert isinstance(agreed, Agreement), "the page with its padding is a page of the format"
    assert agreed.differences[0].where == "groups['idx'].page_bytes"
    agreed = told(manifest(group()), manifest(group(128)))
    assert isinstance(agreed, Agreement)
    assert {d.where for d in agreed.differences} >= {"groups['idx'].block_tokens", "groups['idx'].rows_per_page"}


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("parts", {"parts": (("a", 8448), ("b", 192))}),
    ("row_bytes", {"row_bytes": None}),
    ("row_bytes", {"row_bytes": 128}),
    ("rows_per_page", {"rows_per_page": None}),
    ("rows_per_page", {"rows_per_page": 65}),
    ("page_bytes", {"page_bytes": 8449}),
    ("page_bytes", {"page_bytes": 100000}),
    ("block_tokens", {"block_tokens": 512}),
    ("block_tokens", {"block_tokens": 128}),
]


@pytest.mark.parametrize(("field", "changed"), OTHERS)
def test_a_size_that_is_not_the_plans_is_refused(field: str, changed: dict[str, Any]) -> None:
    """With a plan for what the formats differ in, and without any."""
    for made in (PADDED, ENTRY.format):
        found = told(manifest(group()), manifest(group(format=made), **changed))
        assert isinstance(found, Refusal)
        wrong = {d.where: d for d in found.differences if d.reason}
        assert f"groups['idx'].{field}" in wrong


@pytest.mark.parametrize("changed", [c for field, c in OTHERS if field != "block_tokens" and None not in c.values()])
def test_a_size_that_both_have_and_the_plan_has_not_is_refused(changed: dict[str, Any]) -> None:
    """A group that contradicts its format is no spec's, but may come in a manifest: the plan is of other pages."""
    found = told(manifest(group(), **changed), manifest(group(format=PADDED), **changed))
    assert isinstance(found, Refusal) and {d.where for d in found.differences} == {
        *("groups['idx'].format.page_stride", "groups['idx'].format.alignment")
    }
    assert all(d.reason.startswith("no converter: ") for d in found.differences)


def test_pages_that_are_not_full_of_rows_change_their_size_by_no_conversion() -> None:
    def window(rows: int) -> Manifest:
        one = group(rows, block_tokens=256, rows_per_page=rows)
        return manifest(replace(one, kind=hk.StateKind.WINDOW, coverage=hk.Window(65)))

    found = told(window(32), window(64))
    assert isinstance(found, Refusal)
    assert "pages of windows and states are not full of rows" in found.differences[0].reason
    fuller = manifest(group(128), block_tokens=256)  # pages of 128 rows, of which a block has 64
    found = told(manifest(group()), fuller)
    assert isinstance(found, Refusal) and "128 rows of a page are no block of 256 tokens" in str(found)


def test_a_fingerprint_that_nothing_explains_is_a_difference() -> None:
    plain = manifest(replace(group(), format=None))
    found = told(plain, manifest(replace(group(), format=None), fingerprint=b"another version!"))
    assert isinstance(found, Refusal) and found.because == "groups['idx'].fingerprint"


def test_an_agreement_is_of_sizes_that_its_plans_have() -> None:
    """Sides at random: where they agree, each side's pages are those that its plan begins or ends with."""
    draw = random.Random(4)
    agreed = converted = 0
    for _ in range(600):
        sides = []
        for _ in range(2):
            rows = draw.choice((32, 64))
            made = replace(ENTRY.paged(rows), page_stride=draw.choice((None, rows * 132, 8640)), alignment=16)
            _, change = draw.choice([*[(None, {})] * 9, *OTHERS])
            sides.append(manifest(group(rows), format=made, fingerprint=made.fingerprint, **change))
        found = told(*sides)
        if isinstance(found, Refusal):
            continue
        agreed += 1
        plan = found.conversions.get("idx")
        sizes = [(s.groups[0].row_bytes, s.groups[0].rows_per_page, s.groups[0].parts) for s in sides]
        assert plan is not None or (sizes[0] == sizes[1] and sides[0].groups[0] == sides[1].groups[0])
        for side, row in zip(sides, (plan and plan.target, plan and plan.source), strict=True):
            if row is None:
                continue
            converted += 1
            own = side.groups[0]
            assert row == row_format_of(own.format)
            assert not own.parts and own.row_bytes in (None, row.row_bytes)
            assert own.rows_per_page in (None, row.page_rows) and own.page_bytes in (row.page_bytes, row.page_stride)
            same = sides[0].groups[0].block_tokens == sides[1].groups[0].block_tokens
            assert own.block_tokens == 4 * row.page_rows or (same and "pages" not in [s.name for s in plan.steps])
    assert agreed > 50 and converted > 20, (agreed, converted)


# ---- order ---------------------------------------------------------------------------------------


def spec(*names: str) -> hk.CacheSpec:
    sizes = {"a": 64, "b": 128, "c": 64}
    groups = [
        hk.CacheGroup(
            name, hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=sizes[name], format=hk.KvFormat(name, "bfloat16")
        )
        for name in names
    ]
    return hk.CacheSpec(16, groups)


def cache_of(described: hk.CacheSpec, tier: hk.Tier) -> hk.HybridCache:
    cache = hk.HybridCache(described, blocks=8, tier=tier)
    for one in described.groups:
        cache.bind(one.name, np.zeros((8, one.page_bytes), np.uint8))
    return cache


def test_groups_in_another_order_are_a_difference_and_its_cost_is_told() -> None:
    found = negotiate(spec("b", "a"), spec("a", "b"))
    assert isinstance(found, Refusal) and found.because == "groups['b'].order"
    assert [(d.group, d.ours, d.theirs) for d in found.differences] == [("b", 0, 1), ("a", 1, 0)]
    shorter = negotiate(spec("a", "b"), spec("b"))
    assert {d.where for d in shorter.differences} == {"groups['b'].order", "groups['a'].group"}
    assert [d.where for d in negotiate(spec("a", "b"), spec("a")).differences] == ["groups['b'].group"]
    keys = hk.block_keys(range(65), 16)
    with hk.MemoryTier(1 << 20) as tier:
        writer = cache_of(spec("a", "b"), tier)
        writer.insert(keys[:4])
        writer.offload(keys[:4]).result()
        writer.close()
        reader = cache_of(spec("b", "a"), tier)
        verdict = reader.match(keys)
        assert verdict.outcome is hk.Outcome.FALSE_HIT
        assert [d.where for d in verdict.differences] == ["groups['b'].order", "groups['a'].order"]
        assert reader.metrics().tier_skew == {"groups['b'].order": 1}
        reader.close()
        with pytest.raises(hk.TierError, match=r"groups\['b'\]\.order"):
            hk.HybridCache(spec("b", "a"), blocks=8, tier=tier, tier_skew="refuse")
