# SPDX-License-Identifier: Apache-2.0
"""Who reads whose records: fingerprints of records are equal just where negotiation has nothing against it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import hybridkv as hk
from hybridkv.formats import Manifest, negotiate
from hybridkv.formats.severity import COSMETIC

MADE = hk.KvFormat("rows", "bfloat16", theta=1.0)
S = hk.StateKind

CHANGES: dict[str, list[Any]] = {
    "kind": [S.COMPRESSED, S.INDEXER, S.TAIL, S.WINDOW],
    "coverage": [hk.Prefix(), hk.Prefix(), hk.Window(9), hk.Window(8), hk.Chunk(8), hk.Checkpoint(), hk.Checkpoint(16)],
    "page_bytes": [128, 256],
    "block_tokens": [None, 16, 32],
    "tokens_per_row": [1, 4],
    "row_bytes": [None, 2, 4],
    "rows_per_page": [None, 32],
    "layers": [(), (0,), (7,), (0, 1), (1, 0), (2, 3), ("a", "b")],
    "parts": [None, {"x": 64, "y": 64}, {"y": 64, "x": 64}, {"x": 32, "y": 96}, {"x": 64, "z": 64}],
    "format": [
        *(None, MADE, replace(MADE, producer="x"), replace(MADE, theta=2.0), replace(MADE, page_rows=32)),
        *(replace(MADE, scale_placement="page_footer"), replace(MADE, scale=""), replace(MADE, yarn={"a": True})),
    ],
    "alignment": [1, 64],
    "page_stride": [None, 256],
    "rebuildable": [False, True],
}

OF_KEYS = ("identity", "unit_tokens", "key_profile")


def group(draw: random.Random, name: str) -> hk.CacheGroup:
    """A group of a few odd fields."""
    while True:
        given = {field: draw.choice(values) for field, values in CHANGES.items() if draw.random() < 0.3}
        kind, coverage = given.pop("kind", S.COMPRESSED), given.pop("coverage", hk.Prefix())
        try:
            return hk.CacheGroup(name, kind, coverage, **{"page_bytes": 128, **given})
        except hk.SpecError:
            continue


def spec(groups: list[hk.CacheGroup], weights: str = "") -> hk.CacheSpec | None:
    try:
        return hk.CacheSpec(16, groups, identity=hk.Identity("m", weights=weights))
    except hk.SpecError:
        return None


def pair(draw: random.Random) -> tuple[hk.CacheSpec, hk.CacheSpec]:
    """Two specs: of the same groups but for a field of one, or in another order, or one more, or none of it."""
    while True:
        groups = [group(draw, name) for name in draw.sample("abc", draw.randint(1, 3))]
        others, what = list(groups), draw.randrange(5)
        if what == 0:
            draw.shuffle(others)
        elif what == 1:
            others.insert(draw.randint(0, len(others)), group(draw, "d"))
        elif what < 4:
            field = draw.choice(list(CHANGES))
            at = draw.randrange(len(others))
            try:
                others[at] = replace(others[at], **{field: draw.choice(CHANGES[field])})
            except hk.SpecError:
                continue
        one, other = spec(groups), spec(others, draw.choice(["", "r2"]))
        if one is not None and other is not None:
            return one, other


def exact(ours: Manifest, theirs: Manifest, *, boundary: bool) -> bool:
    """Whether negotiation has nothing against bytes of such a record; what keys tell apart is left to keys."""
    history = {one.name for side in (ours, theirs) for one in side.groups if one.coverage[0] == 0}
    counted = [
        d
        for d in negotiate(ours, theirs).differences
        if d.severity != COSMETIC and d.field.partition(".")[0] not in OF_KEYS
    ]
    return not [d for d in counted if boundary or not d.group or d.group in history]


def test_records_are_one_exactly_where_negotiation_has_nothing_against_it() -> None:
    """For any two specs, of the record of a block (history alone) and of a boundary (everything)."""
    draw, found = random.Random(3), Counter[tuple[bool, bool]]()
    for _ in range(1500):
        ours, theirs = (Manifest.of(one) for one in pair(draw))
        for boundary in (False, True):
            same = ours.records[boundary] == theirs.records[boundary]
            agreed = exact(ours, theirs, boundary=boundary)
            differences = [str(d) for d in negotiate(ours, theirs).differences]
            assert same is agreed, f"{'boundary' if boundary else 'block'}: equal names {same}; {differences}"
            found[boundary, same] += 1
    assert len(found) == 4 and min(found.values()) > 100, found
