# SPDX-License-Identifier: Apache-2.0
"""What can be read as what: by the fields, by the kernels' planner, and by bytes that went through a conversion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.formats import REGISTRY, Compatibility, KvFormat, Relation, relation, row_format_of
from hybridkv.reference.rows import decode_rows, encode_rows, load_rows, store_rows

EXACT, CONVERTIBLE, INCOMPATIBLE = Compatibility


def of(reader: str, writer: str) -> Relation:
    return relation(REGISTRY[reader].format, REGISTRY[writer].format)


PLANS = [
    ("fp8_ds_mla_v4", "fp8_ds_mla_v4_flashinfer", ["strides"], False),
    ("indexer_fp8", "indexer_fp8_padded", ["strides"], False),
    ("v41_fp8", "v41_fp8_new", ["placement"], False),
    ("v41_fp4", "v41_fp4_new", ["placement"], False),
    ("indexer_fp8", "indexer_fp8_ue8m0", ["scales", "tiles"], True),
]
NO_CONVERTER = [
    ("indexer_fp8", "indexer_fp8_page8", "row_order"),
    ("paged_flashinfer_nhd", "paged_flashinfer_hnd", "head_layout"),
    ("paged_vllm", "paged_flashinfer_nhd", "kv_order"),
    ("paged_vllm", "paged_sglang", "kv_order"),
    ("csa_ring", "csa_ring_draft", "ring_rows"),
]
MEANS_ELSE = [
    ("indexer_fp8", "indexer_fp8_hadamard", "hadamard"),
    ("fp8_ds_mla_v4_flashinfer", "fp8_ds_mla_v4_trtllm", "scale_floor"),
    ("csa_ring", "csa_reference", "state_format"),
    ("hca_ring", "hca_online", "state_format"),
    ("v41_fp8", "v41_fp4", "layout"),
    ("fp8_ds_mla_v4", "fp8_ds_mla_v32", "scale"),
]


@pytest.mark.parametrize(("reader", "writer", "steps", "checked"), PLANS)
def test_a_plan_where_the_kernels_have_one(reader: str, writer: str, steps: list[str], checked: bool) -> None:
    for told in (of(reader, writer), of(writer, reader)):
        assert told.compatibility is CONVERTIBLE and told.plan is not None and told.reason == ""
        assert [step.name for step in told.plan.steps] == steps
        assert told.plan.lossless and told.plan.checked is checked


@pytest.mark.parametrize(("reader", "writer", "field"), NO_CONVERTER)
def test_what_nothing_converts_is_said_so(reader: str, writer: str, field: str) -> None:
    told = of(reader, writer)
    assert told.compatibility is CONVERTIBLE and told.plan is None
    assert told.reason.startswith("no converter for") and field in told.reason
    assert told.decisive is not None and told.decisive.field == field


@pytest.mark.parametrize(("reader", "writer", "field"), MEANS_ELSE)
def test_bytes_that_mean_something_else(reader: str, writer: str, field: str) -> None:
    for told in (of(reader, writer), of(writer, reader)):
        assert told.compatibility is INCOMPATIBLE and told.plan is None and told.reason
        assert told.decisive is not None and told.decisive.field == field


def test_every_pair_is_consistent() -> None:
    """Exact where fingerprints are equal; a plan is lossless and from the writer's rows to the reader's."""
    for reader in REGISTRY.values():
        for writer in REGISTRY.values():
            told = relation(reader.format, writer.format)
            assert (told.compatibility is EXACT) is (reader.format.fingerprint == writer.format.fingerprint)
            assert (told.compatibility is EXACT) is (told.decisive is None)
            if reader.kind != writer.kind:
                assert told.compatibility is INCOMPATIBLE and told.decisive is not None
                assert told.decisive.field == "layout"
            if told.plan is not None:
                assert told.plan.source == row_format_of(writer.format)
                assert told.plan.target == row_format_of(reader.format)
    own = REGISTRY["csa_ring"].format
    assert relation(own, replace(own, producer="x")).compatibility is EXACT


@pytest.mark.parametrize(("reader", "writer"), [(r, w) for r, w, _, checked in PLANS if not checked])
def test_converted_rows_decode_to_the_same_values(reader: str, writer: str) -> None:
    """The plan of two declared formats, run: what the reader decodes is what the writer encoded, bit by bit."""
    plan = of(reader, writer).plan
    assert plan is not None
    values = np.random.default_rng(7).normal(size=(64, plan.source.channels))
    packed, slots = encode_rows(values, plan.source), np.arange(64)
    page, out = (np.zeros((1, row.page_stride), np.uint8) for row in (plan.source, plan.target))
    store_rows(packed, page, slots, plan.source)
    hk.ops.convert(page, np.int32([[0]]), out, np.int32([[0]]), source=plan.source, target=plan.target)
    again = load_rows(out, slots, plan.target)
    assert np.array_equal(decode_rows(again, plan.target), decode_rows(packed, plan.source))
    moved = out[0, : plan.source.page_bytes].tobytes() != page[0, : plan.source.page_bytes].tobytes()
    assert moved is ([step.name for step in plan.steps] != ["strides"])


V4 = REGISTRY["fp8_ds_mla_v4"].format


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_order", None),
        ("row_order", None),
        ("pool_split", None),
        ("hadamard", None),
        ("row_bytes", None),
        ("page_rows", None),
        ("head_dim", None),
        ("scale", None),
        ("scale", "e5m2"),
        ("scale_floor", None),
        ("scale_power_of_two", None),
        ("tile", None),
        ("tile", 100),
        ("channel_order", None),
        ("channel_order", "nope|scales"),
        ("rope_dtype", None),
        ("rope_dims", None),
        ("row_bytes", 500),
        ("dtype", "int3"),
    ],
)
def test_nothing_is_guessed_of_what_is_not_declared(field: str, value: Any) -> None:
    assert row_format_of(V4) is not None
    assert row_format_of(replace(V4, **{field: value})) is None


def test_a_row_with_its_parts_the_other_way_round_is_a_conversion_of_places() -> None:
    other = replace(V4, channel_order="rope|nope|scales")
    told = relation(V4, other)
    assert told.compatibility is CONVERTIBLE and told.plan is not None
    assert [step.field for step in told.plan.steps] == ["parts"]


def test_pairs_are_reordered_and_rotations_are_not() -> None:
    halves = replace(V4, position_convention="absolute_halves")
    told = relation(V4, halves)
    assert told.plan is not None and [step.name for step in told.plan.steps] == ["pairs"]
    elsewhere = replace(V4, position_convention="entry_halves")
    assert relation(V4, elsewhere).compatibility is INCOMPATIBLE
    assert relation(V4, elsewhere).reason == "no converter for position_convention"


@pytest.mark.parametrize(
    ("field", "value"), [("theta", 1.0), ("norm_eps", 1e-20), ("rounding_point", "before_norm"), ("shard", "heads")]
)
def test_what_no_row_format_says_is_never_converted(field: str, value: Any) -> None:
    """Their row formats are equal, so that the planner alone would see nothing to do."""
    other = replace(V4, **{field: value})
    assert row_format_of(other) == row_format_of(V4)
    told = relation(V4, other)
    assert told.plan is None and told.compatibility is not EXACT and told.reason == f"no converter for {field}"


def test_what_is_no_format_is_refused() -> None:
    for bad in (None, "fp8_ds_mla_v4", 3):
        with pytest.raises(hk.ArgumentError):
            relation(bad, V4)  # type: ignore[arg-type]
        with pytest.raises(hk.ArgumentError, match="made"):
            row_format_of(bad)  # type: ignore[arg-type]
    assert row_format_of(KvFormat("kv_heads", "bfloat16")) is None
