# SPDX-License-Identifier: Apache-2.0
"""Specs: what is legal, what a resume needs, and what a boundary costs."""

from __future__ import annotations

import math
import pickle
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hybridkv.coverage import Checkpoint, Chunk, Coverage, Prefix, Window
from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats import KvFormat
from hybridkv.identity import Identity
from hybridkv.kinds import Check, Outcome, Remedy, StateKind
from hybridkv.spec import CacheGroup, CacheSpec, Need

KIND_OF = {
    Prefix: StateKind.COMPRESSED,
    Window: StateKind.WINDOW,
    Chunk: StateKind.WINDOW,
    Checkpoint: StateKind.TAIL,
}


def group(name: str = "g", coverage: Coverage | None = None, **fields: Any) -> CacheGroup:
    coverage = Prefix() if coverage is None else coverage
    kind = fields.pop("kind", KIND_OF[type(coverage)])
    return CacheGroup(name, kind, coverage, **{"page_bytes": 1024, **fields})


def refused(exception: type[SpecError | ArgumentError], field: str, make: Any) -> SpecError | ArgumentError:
    with pytest.raises(exception) as caught:
        make()
    error = caught.value
    assert field in error.field
    assert str(error.expected) in str(error) and "got" in str(error)
    return error


def test_the_closed_sets_have_the_values_of_the_contract() -> None:
    assert [(k.name, int(k)) for k in StateKind] == [
        ("COMPRESSED", 0),
        ("TAIL", 1),
        ("WINDOW", 2),
        ("INDEXER", 3),
        ("DISK", 4),
    ]
    assert [c.name for c in Check] == ["COMPLETE", "ABI", "GROUPS", "ALIGNED", "RACED", "INTEGRITY"]
    assert [o.name for o in Outcome] == ["MISS", "FALSE_HIT", "REUSABLE"]
    assert [r.name for r in Remedy] == ["NONE", "RECOMPUTE", "RESTORE", "CONVERT", "WAIT"]
    for kinds in (StateKind, Check, Outcome, Remedy):
        assert [int(k) for k in kinds] == list(range(len(kinds)))


@pytest.mark.parametrize(
    ("coverage", "rule", "parameter"),
    [
        (Prefix(), 0, 0),
        (Window(128), 1, 128),
        (Window(np.int64(1)), 1, 1),
        (Chunk(8192), 2, 8192),
        (Checkpoint(), 3, 0),
        (Checkpoint(every=4), 3, 4),
        (Checkpoint(4), 3, 4),
    ],
)
def test_coverage_names_rule_and_parameter(coverage: Coverage, rule: int, parameter: int) -> None:
    assert (coverage.rule, coverage.parameter) == (rule, parameter)
    assert type(coverage.parameter) is int


@pytest.mark.parametrize("bad", [0, -1, True, 1.0, "4", None, 2**63])
def test_coverage_refuses_what_is_no_positive_int(bad: Any) -> None:
    assert refused(SpecError, "tokens", lambda: Window(bad)).got is bad
    refused(SpecError, "tokens", lambda: Chunk(bad))
    if bad is not None:
        refused(SpecError, "every", lambda: Checkpoint(every=bad))


BAD_NUMBERS = [0, -1, True, 1.5, "1", 2**63]


@pytest.mark.parametrize("bad", [*BAD_NUMBERS, None])
@pytest.mark.parametrize("field", ["page_bytes", "tokens_per_row", "alignment"])
def test_group_refuses_a_bad_number(field: str, bad: Any) -> None:
    assert refused(SpecError, field, lambda: group(**{field: bad})).got is bad


@pytest.mark.parametrize("bad", BAD_NUMBERS)
@pytest.mark.parametrize("field", ["block_tokens", "row_bytes", "rows_per_page", "page_stride"])
def test_group_refuses_a_bad_optional_number(field: str, bad: Any) -> None:
    assert refused(SpecError, field, lambda: group(**{field: bad})).got is bad


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("kind", {"kind": StateKind.DISK}),
        ("kind", {"kind": 7}),
        ("kind", {"kind": True}),
        ("kind", {"kind": "TAIL"}),
        ("coverage", {"coverage": 128, "kind": StateKind.WINDOW}),
        ("alignment", {"alignment": 48}),
        ("page_stride", {"page_stride": 1023}),
        ("page_stride", {"page_stride": 1040, "alignment": 64}),
        ("page_bytes", {"row_bytes": 1025}),
        ("page_bytes", {"row_bytes": 100, "rows_per_page": 11}),
        ("format", {"format": "fp8"}),
        ("layers", {"layers": "abc"}),
        ("layers", {"layers": 3}),
        ("layers", {"layers": [0, 1, 0]}),
        ("layers", {"layers": [0.5]}),
        ("layers", {"layers": [True]}),
        ("parts", {"parts": {}}),
        ("parts", {"parts": [1024]}),
        ("parts", {"parts": {"a": 1023}}),
        ("parts", {"parts": {"a": 1024, "b": 1}}),
        ("parts", {"parts": {"a": 1024, "b": 1025}, "layers": [0, 1]}),
        ("parts", {"parts": {"": 1024}}),
        ("parts['a']", {"parts": {"a": 0}}),
        ("rebuildable", {"rebuildable": 1}),
        ("in_step_with", {"in_step_with": 3}),
    ],
)
def test_group_refuses(field: str, fields: dict[str, Any]) -> None:
    def make() -> CacheGroup:
        given = {"page_bytes": 1024, "kind": StateKind.COMPRESSED, "coverage": Prefix(), **fields}
        return CacheGroup("g", given.pop("kind"), given.pop("coverage"), **given)

    error = refused(SpecError, field, make)
    assert "'g'" in error.field


@pytest.mark.parametrize("name", ["", None, 3, b"kv"])
def test_group_refuses_a_name_that_is_no_text(name: Any) -> None:
    refused(SpecError, "name", lambda: group(name))


def test_group_tells_which_layer_and_how_many_rows() -> None:
    assert refused(SpecError, "layers", lambda: group(layers=[0, 1, 2, 1])).got == 1
    assert "room for 11 rows" in str(refused(SpecError, "page_bytes", lambda: group(row_bytes=100, rows_per_page=11)))


def test_group_accepts_what_stands_at_the_edge() -> None:
    group(alignment=64, page_stride=1088, row_bytes=1024, rows_per_page=1)
    group(page_stride=1024)
    group(parts={"a": 1024, "b": 1024}, layers=[0, 1])
    group(parts={"a": 1024}, layers=["only", "other"])
    group(kind=1)


def test_spec_fills_in_the_block_and_keeps_the_arguments_readable() -> None:
    fmt = KvFormat("kv_heads", "bfloat16")
    spec = CacheSpec(
        16,
        [
            group(
                "a",
                row_bytes=64,
                rows_per_page=16,
                alignment=8,
                page_stride=2048,
                format=fmt,
                layers=[3, "x"],
            ),
            group("b", Window(33), block_tokens=np.int32(32), in_step_with=None, rebuildable=True),
        ],
        identity=Identity(model="m"),
    )
    a, b = spec.groups
    assert isinstance(spec.groups, tuple) and (a.block_tokens, b.block_tokens) == (16, 32)
    assert (a.name, a.kind, a.coverage, a.page_bytes, a.row_bytes) == (
        "a",
        StateKind.COMPRESSED,
        Prefix(),
        1024,
        64,
    )
    assert (a.rows_per_page, a.tokens_per_row, a.alignment, a.page_stride) == (16, 1, 8, 2048)
    assert (a.format, a.layers, a.parts, a.in_step_with, a.rebuildable) == (fmt, (3, "x"), None, None, False)
    assert b.rebuildable and spec.identity.model == "m" and spec.unit_tokens == 16
    assert spec["a"] is a and spec.group("b") is b
    refused(ArgumentError, "group", lambda: spec.group("c"))
    assert pickle.loads(pickle.dumps(spec)) == spec and hash(spec) == hash(pickle.loads(pickle.dumps(spec)))


@pytest.mark.parametrize("unit", [*BAD_NUMBERS, None])
def test_spec_refuses_a_bad_unit(unit: Any) -> None:
    refused(SpecError, "unit_tokens", lambda: CacheSpec(unit, [group()]))


@pytest.mark.parametrize(
    ("field", "unit", "groups"),
    [
        ("groups", 16, []),
        ("groups", 16, None),
        ("groups", 16, "kv"),
        ("groups", 16, [object()]),
        ("groups", 16, [group("a"), group("a", Window(9))]),
        ("block_tokens", 16, [group(block_tokens=24)]),
        ("block_tokens", 16, [group(block_tokens=8)]),
        ("in_step_with", 16, [group("a", kind=StateKind.INDEXER, in_step_with="b")]),
        ("in_step_with", 16, [group("a", kind=StateKind.INDEXER, in_step_with="a")]),
        ("in_step_with", 16, [group("a", kind=StateKind.INDEXER, in_step_with="w"), group("w", Window(9))]),
        ("coverage", 16, [group("a", Window(9), kind=StateKind.INDEXER, in_step_with="b"), group("b")]),
        ("tokens_per_row", 16, [group(block_tokens=48, tokens_per_row=5)]),
        ("tokens_per_row", 16, [group(block_tokens=256, tokens_per_row=128)]),
        ("page_bytes", 16, [group(row_bytes=65)]),
        ("rows_per_page", 16, [group(rows_per_page=15)]),
        ("rows_per_page", 16, [group(tokens_per_row=4, rows_per_page=3)]),
        ("rows_per_page", 256, [group(coverage=Window(129), rows_per_page=127)]),
        ("rows_per_page", 64, [group(coverage=Window(129), rows_per_page=63)]),
        ("rows_per_page", 256, [group(coverage=Chunk(129), rows_per_page=127)]),
        ("page_bytes", 256, [group(coverage=Window(129), row_bytes=9)]),
        ("groups", 16, [group(f"p{i}") for i in range(9)]),
        (
            "groups",
            16,
            [group(f"w{i}", Window(9)) for i in range(6)] + [group(f"c{i}", Checkpoint()) for i in range(3)],
        ),
        ("groups", 2, [group("a", block_tokens=2 * (2**40 + 1)), group("b", block_tokens=2 * (2**40 - 1))]),
    ],
)
def test_spec_refuses(field: str, unit: int, groups: Any) -> None:
    refused(SpecError, field, lambda: CacheSpec(unit, groups))


def test_spec_refuses_an_identity_that_is_none() -> None:
    refused(SpecError, "identity", lambda: CacheSpec(16, [group()], identity=None))  # type: ignore[arg-type]


def test_spec_accepts_what_stands_at_the_edge() -> None:
    CacheSpec(256, [group(coverage=Window(129), rows_per_page=128, row_bytes=8)])
    CacheSpec(256, [group(coverage=Window(1), rows_per_page=1)])
    prefixes = [group(f"p{i}") for i in range(8)]
    CacheSpec(16, prefixes + [group(f"w{i}", Window(9)) for i in range(8)])
    CacheSpec(16, [group("idx", kind=StateKind.INDEXER, in_step_with="kv"), group("kv")])


@pytest.mark.parametrize(
    ("blocks", "step", "cause"),
    [
        ({"a": 16, "b": 16}, 16, "a"),
        ({"a": 64, "b": 64, "c": 256, "d": 4, "e": 8}, 256, "c"),
        ({"a": 4, "b": 8, "c": 8}, 8, "b"),
        ({"a": 4, "b": 6}, 12, "b"),
        ({"a": 6, "b": 4}, 12, "b"),
        ({"a": 6, "b": 4, "c": 2}, 12, "b"),
        ({"a": 12, "b": 8, "c": 6}, 24, "b"),
    ],
)
def test_step_of_usable_lengths_and_what_causes_it(blocks: dict[str, int], step: int, cause: str) -> None:
    spec = CacheSpec(2, [group(name, block_tokens=block) for name, block in blocks.items()])
    assert (spec.boundary_tokens, spec.boundary_group) == (step, cause)


def test_rebuildable_groups_never_coarsen_the_step() -> None:
    kv, swa = group("kv"), group("swa", Window(129), block_tokens=256, rebuildable=True)
    assert CacheSpec(16, [kv, swa]).boundary_tokens == 16
    assert CacheSpec(16, [kv, swa]).boundary_group == "kv"
    alone = CacheSpec(16, [swa])
    assert (alone.boundary_tokens, alone.boundary_group) == (16, None)


def test_homogeneous_is_one_full_attention_group() -> None:
    spec = CacheSpec.homogeneous(layers=3, page_bytes=4096)
    (kv,) = spec.groups
    assert (kv.name, kv.coverage, kv.layers, kv.page_bytes) == ("kv", Prefix(), (0, 1, 2), 4096)
    assert (spec.unit_tokens, spec.boundary_tokens, spec.bytes_per_token) == (16, 16, 3 * 4096 / 16)
    assert spec.boundary_bytes == {}
    assert CacheSpec.homogeneous(["x", "y"], 64, 32).groups[0].layers == ("x", "y")
    for bad in (0, -1, True, 1.5, "ab", []):
        refused(SpecError, "layers", lambda bad=bad: CacheSpec.homogeneous(bad, 64))
    refused(SpecError, "page_bytes", lambda: CacheSpec.homogeneous(1, 0))
    refused(SpecError, "unit_tokens", lambda: CacheSpec.homogeneous(1, 64, 0))


def test_growth_per_token_is_exact() -> None:
    spec = CacheSpec(
        128,
        [
            group("a", page_bytes=584, tokens_per_row=128, layers=range(31)),
            group("b", page_bytes=3, block_tokens=256),
            group("c", page_bytes=1024, layers=[0, 1], parts={"x": 1024, "y": 512}),
            group("w", Window(9)),
        ],
    )
    assert spec.bytes_per_token == 31 * 584 / 128 + 3 / 256 + 1536 / 128


@pytest.mark.parametrize("tokens", [-1, True, 1.0, "8", None, 2**63])
def test_requirements_refuses_what_is_no_length(tokens: Any) -> None:
    spec = CacheSpec.homogeneous(1, 64)
    assert refused(ArgumentError, "tokens", lambda: spec.requirements(tokens)).got is tokens
    refused(ArgumentError, "tokens", lambda: spec.groups[0].need(tokens))


def test_a_group_outside_a_spec_has_no_block_to_count() -> None:
    refused(SpecError, "block_tokens", lambda: group().need(3))
    assert group(block_tokens=2).need(np.int64(3)) == Need(3, 2048, range(0, 2))


def test_nothing_is_needed_at_zero() -> None:
    coverages = [Prefix(), Window(9), Chunk(7), Checkpoint(), Checkpoint(every=4)]
    spec = CacheSpec(16, [group(str(i), c) for i, c in enumerate(coverages)])
    for need in spec.requirements(0).values():
        assert need.rows == need.bytes == 0 and len(need.blocks) == 0


def test_checkpoint_counts_states_and_pending_rows() -> None:
    spec = CacheSpec(
        16,
        [
            group("state", Checkpoint(), row_bytes=1000, layers=[0, 1]),
            group("overlap", Checkpoint(), row_bytes=10, rows_per_page=4),
            group("pending", Checkpoint(every=4), row_bytes=10, rows_per_page=4, layers=[0, 1, 2]),
            group("blob", Checkpoint(every=4), page_bytes=7),
        ],
    )
    at = spec.requirements(18)
    assert at["state"] == Need(1, 2000, range(1, 2))
    assert at["overlap"] == Need(4, 40, range(1, 2))
    assert at["pending"] == Need(2, 60, range(1, 2))
    assert at["blob"] == Need(1, 7, range(1, 2))
    at = spec.requirements(16)
    assert at["state"].blocks == range(0, 1) and at["overlap"].rows == 4
    assert at["pending"].rows == at["pending"].bytes == at["blob"].rows == 0 and not at["pending"].blocks


def test_parts_count_a_row_over_all_of_them() -> None:
    uneven = group(
        "u",
        Checkpoint(every=4),
        page_bytes=40,
        row_bytes=10,
        rows_per_page=4,
        layers=[0, 1],
        parts={"0": 40, "1": 20},
    )
    spec = CacheSpec(16, [uneven])
    assert spec.groups[0].total_page_bytes == 60
    assert spec.requirements(19)["u"] == Need(3, 45, range(1, 2))


def naive_tokens(coverage: Coverage, t: int) -> set[int]:
    """The tokens whose rows a resume at t needs, by the words of the contract."""
    match coverage:
        case Prefix():
            return set(range(t))
        case Window(tokens):
            return {p for p in range(t) if p > t - tokens}
        case Chunk(tokens):
            return {p for p in range(t) if p // tokens == t // tokens}
        case Checkpoint(every):
            return {t - 1} if t > 0 and (every is None or t % every) else set()
    raise AssertionError(coverage)


def random_coverage(rng: random.Random) -> Coverage:
    tokens = rng.choice([1, 2, 3, 4, 7, 8, 16, 33, 128])
    return rng.choice([Prefix(), Window(tokens), Chunk(tokens), Checkpoint(), Checkpoint(every=tokens)])


def test_requirements_equal_a_naive_definition() -> None:
    rng = random.Random(20261129)
    for _ in range(4000):
        coverage, block, ratio = random_coverage(rng), rng.choice([4, 8, 16, 64]), rng.choice([1, 2, 4])
        t, layers = rng.randrange(300), rng.randrange(1, 4)
        fields = {"row_bytes": 2, "tokens_per_row": ratio, "layers": range(layers)}
        spec = CacheSpec(4, [group("g", coverage, block_tokens=block, page_bytes=2**20, **fields)])
        need = spec.requirements(t)["g"]
        tokens = naive_tokens(coverage, t)
        assert list(need.blocks) == sorted({p // block for p in tokens})
        if isinstance(coverage, Checkpoint):
            rows = len(tokens)
        else:  # a row is needed if it is complete at t and covers a needed token
            rows = len({p // ratio for p in tokens if (p // ratio + 1) * ratio <= t})
        assert (need.rows, need.bytes) == (rows, rows * 2 * layers), (coverage, block, ratio, t)


def test_cost_of_a_boundary_equals_a_naive_maximum() -> None:
    rng = random.Random(7)
    for _ in range(300):
        groups = [
            group(
                f"g{i}",
                coverage,
                block_tokens=rng.choice([2, 4, 6, 16]),
                rebuildable=not isinstance(coverage, Prefix) and rng.random() < 0.2,
                layers=(0,),
            )
            for i, coverage in enumerate(random_coverage(rng) for _ in range(rng.randrange(1, 5)))
        ]
        spec = CacheSpec(2, groups)
        step = spec.boundary_tokens
        period = math.lcm(step, *(g.coverage.parameter or 1 for g in groups), *(g.block_tokens or 1 for g in groups))
        period = min(period, 40_000)
        lengths = range(step, 2 * period + 256, step)
        for g in spec.groups:
            if isinstance(g.coverage, Prefix):
                assert g.name not in spec.boundary_bytes
                continue
            most = max(len({p // (g.block_tokens or 1) for p in naive_tokens(g.coverage, t)}) for t in lengths[:400])
            assert spec.boundary_bytes[g.name] >= most * 1024
            if len(lengths) <= 400:
                assert spec.boundary_bytes[g.name] == most * 1024, (spec, g.name)


def test_groups_declared_alike_have_one_fingerprint() -> None:
    base = group("a", block_tokens=16, row_bytes=64, rows_per_page=16, layers=[0, 1])
    assert len(base.fingerprint) == 16
    alike = group("b", block_tokens=16, row_bytes=64, rows_per_page=16, layers=["x", "y"], alignment=8)
    assert base.fingerprint == alike.fingerprint
    changed = [
        {"page_bytes": 2048},
        {"block_tokens": 32, "rows_per_page": 16},
        {"row_bytes": 32},
        {"rows_per_page": 15},
        {"tokens_per_row": 2},
        {"layers": [0]},
        {"parts": {"0": 1024, "1": 1024}},
        {"coverage": Window(17)},
        {"kind": StateKind.INDEXER},
    ]
    fields = {"block_tokens": 16, "row_bytes": 64, "rows_per_page": 16, "layers": [0, 1]}
    prints = [group("a", **{**fields, **change}).fingerprint for change in changed]
    assert len({base.fingerprint, *prints}) == 1 + len(changed)


def test_a_declared_format_is_the_fingerprint() -> None:
    fmt = KvFormat("kv_heads", "bfloat16")
    assert group(format=fmt).fingerprint == fmt.fingerprint != group().fingerprint
    assert group(format=fmt, page_bytes=2048).fingerprint == fmt.fingerprint


def test_a_group_in_step_may_have_another_block() -> None:
    leader = CacheGroup("kv", StateKind.COMPRESSED, Prefix(), page_bytes=64, block_tokens=32)
    index = CacheGroup("index", StateKind.INDEXER, Prefix(), page_bytes=64, block_tokens=16, in_step_with="kv")
    assert CacheSpec(16, [leader, index]).boundary_tokens == 32
    with pytest.raises(SpecError, match="in_step_with"):
        CacheSpec(16, [replace(leader, name="x"), index])
