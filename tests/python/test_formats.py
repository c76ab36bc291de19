# SPDX-License-Identifier: Apache-2.0
"""Formats: fingerprints, differences and what they mean."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats import Compatibility, FieldDiff, KvFormat, compatible, framed_digest

FIRST = KvFormat(
    "fp8_ds_mla",
    "float8_e4m3",
    scale="ue8m0",
    tile=64,
    scale_placement="page_footer",
    scale_floor=1e-4,
    rope_dims=64,
    position_convention="absolute_interleaved",
    theta=160000,
    yarn={"factor": 16, "type": "yarn"},
    hadamard=False,
    norm_eps=1e-6,
    rounding_point="after_norm",
    ratio=4,
    overlap=True,
    state_format="rows_mod_ring",
    bias_added=True,
    ring_rows=8,
    spec_width=0,
    row_bytes=584,
    page_rows=64,
    page_stride=37440,
    alignment=64,
    footer_offset=36864,
    shard="tp1",
    roles={"0": "sliding_attention"},
    family="deepseek_v4",
    model="flash",
    weights="r1",
    kernel_version="1.0",
    gpu_family="sm100",
    producer="engine",
)

FULL = replace(
    FIRST,
    scale_power_of_two=True,
    quantiser_input="bfloat16",
    channel_order="nope|rope|scales",
    head_dim=512,
    rope_dtype="bfloat16",
    rope_rounding="from_float32",
    softmax_rounding="float32",
    bias_rounding="float32",
    projection_dtype="float32",
    gate_dtype="float32",
    half_order="first_feeds_next",
    row_order="plain",
    row_stride=576,
    kv_order="shared",
    head_layout="NHD",
    local_heads=1,
    total_heads=1,
    pool_split="one",
    conv_dtype="bfloat16",
    conv_order="channels|taps",
    conv_rows=3,
    matrix_order="heads|key|value",
    dcp_interleave=1,
    producer_version="1.0",
)

OTHER: dict[str, Any] = {
    "layout": "other",
    "dtype": "bfloat16",
    "scale": "float32",
    "tile": 128,
    "scale_placement": "inline",
    "scale_floor": 1e-8,
    "rope_dims": 32,
    "position_convention": "absolute_halves",
    "theta": 10000.0,
    "yarn": {"factor": 32, "type": "yarn"},
    "hadamard": True,
    "norm_eps": 1e-20,
    "rounding_point": "before_norm",
    "ratio": 128,
    "overlap": False,
    "state_format": "reference_order",
    "bias_added": False,
    "ring_rows": 16,
    "spec_width": 8,
    "row_bytes": 656,
    "page_rows": 128,
    "page_stride": 74752,
    "alignment": 128,
    "footer_offset": 73728,
    "shard": "tp2",
    "roles": {"0": "full_attention"},
    "family": "deepseek_v32",
    "model": "pro",
    "weights": "r2",
    "kernel_version": "1.1",
    "gpu_family": "sm90",
    "producer": "engine2",
    "schema": 2,
    "scale_power_of_two": False,
    "quantiser_input": "float32",
    "channel_order": "rope|nope|scales",
    "head_dim": 128,
    "rope_dtype": "float8_e4m3",
    "rope_rounding": "from_bfloat16",
    "softmax_rounding": "model",
    "bias_rounding": "model",
    "projection_dtype": "model",
    "gate_dtype": "bfloat16",
    "half_order": "second_feeds_next",
    "row_order": "page8",
    "row_stride": 584,
    "kv_order": "page",
    "head_layout": "HND",
    "local_heads": 2,
    "total_heads": 2,
    "pool_split": "nope|rope",
    "conv_dtype": "float32",
    "conv_order": "taps|channels",
    "conv_rows": 4,
    "matrix_order": "heads|value|key",
    "dcp_interleave": 2,
    "producer_version": "2.0",
}

COSMETIC = {"producer", "producer_version"}

CONVERTIBLE = {
    "scale_placement",
    "ring_rows",
    "spec_width",
    "page_rows",
    "page_stride",
    "alignment",
    "footer_offset",
    "shard",
    "channel_order",
    "row_order",
    "row_stride",
    "kv_order",
    "head_layout",
    "local_heads",
    "pool_split",
    "conv_order",
    "matrix_order",
    "dcp_interleave",
}


def test_every_field_is_tried() -> None:
    assert set(OTHER) == {f.name for f in fields(KvFormat)}


@pytest.mark.parametrize("field", OTHER)
def test_a_changed_field_is_told_with_what_it_means(field: str) -> None:
    theirs = replace(FULL, **{field: OTHER[field]})
    severity = "cosmetic" if field in COSMETIC else "convertible" if field in CONVERTIBLE else "incompatible"
    assert FULL.diff(theirs) == [FieldDiff(field, getattr(FULL, field), getattr(theirs, field), severity)]
    expected = {
        "cosmetic": Compatibility.EXACT,
        "convertible": Compatibility.CONVERTIBLE,
        "incompatible": Compatibility.INCOMPATIBLE,
    }[severity]
    assert compatible(FULL, theirs) is compatible(theirs, FULL) is expected
    assert (FULL.fingerprint == theirs.fingerprint) is (severity == "cosmetic")


@pytest.mark.parametrize("field", [f for f in OTHER if f not in {"layout", "dtype", "schema", *COSMETIC}])
def test_an_undeclared_field_differs_from_a_declared_one(field: str) -> None:
    undeclared = replace(FULL, **{field: "" if isinstance(OTHER[field], str) and field in STRINGS else None})
    assert [d.field for d in FULL.diff(undeclared)] == [field]
    assert FULL.fingerprint != undeclared.fingerprint


STRINGS = {"family", "model", "weights", "kernel_version", "gpu_family"}


def test_the_worst_difference_decides() -> None:
    theirs = replace(FULL, page_rows=128, producer="x", theta=1.0)
    assert [d.severity for d in FULL.diff(theirs)] == ["incompatible", "convertible", "cosmetic"]
    assert compatible(FULL, theirs) is Compatibility.INCOMPATIBLE
    assert compatible(FULL, replace(FULL)) is Compatibility.EXACT
    assert FULL.diff(replace(FULL)) == []


def test_fingerprints_are_the_same_in_every_process() -> None:
    code = (
        "from hybridkv.formats import KvFormat;"
        "print(KvFormat('a', 'bfloat16', theta=10000, yarn={'b': 1, 'a': 2.0}).fingerprint.hex())"
    )
    ours = KvFormat("a", "bfloat16", theta=10000.0, yarn={"a": 2, "b": 1.0}).fingerprint.hex()
    for seed in ("0", "1"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
        assert done.stdout.strip() == ours


def test_the_fingerprint_of_schema_1_never_changes() -> None:
    """Stores keep fingerprints: one that changes orphans what was written before."""
    plain = KvFormat("kv_heads", "bfloat16")
    assert plain.fingerprint.hex() == "cc8134ce091dc073f66257680fbfdb55"
    assert FIRST.fingerprint.hex() == "dda9a1df8e7912f160a77a0bb05c0272"

    def framed(kind: bytes, body: bytes) -> bytes:
        return kind + len(body).to_bytes(8, "big") + body

    items = [(b"s", b"layout", b"kv_heads"), (b"s", b"dtype", b"bfloat16"), (b"i", b"schema", b"1")]
    text = framed(b"s", b"hybridkv.format")
    text += b"".join(framed(b"s", name) + framed(kind, value) for kind, name, value in items)
    assert hashlib.sha256(text).digest()[:16] == plain.fingerprint


def test_framing_keeps_neighbours_apart() -> None:
    assert framed_digest("t", [("a", "bc")]) != framed_digest("t", [("ab", "c")])
    assert framed_digest("t", [("a", 1)]) != framed_digest("t", [("a", True)])
    assert framed_digest("t", [("a", 1)]) != framed_digest("t", [("a", 1.0)])
    assert framed_digest("t", [("a", "1")]) != framed_digest("t", [("a", b"1")])
    assert framed_digest("t", [("a", ("b", "c"))]) != framed_digest("t", [("a", ("bc",))])
    assert framed_digest("t", []) != framed_digest("u", [])
    with pytest.raises(ArgumentError):
        framed_digest("t", [("a", {1, 2})])


def test_the_namespace_is_a_file_name() -> None:
    odd = KvFormat("a/b c", "bfloat16")
    assert odd.namespace == f"a_b_c.bfloat16-{odd.fingerprint.hex()[:16]}"
    assert FULL.namespace != replace(FULL, theta=1.0).namespace
    assert FULL.namespace == replace(FULL, producer="x").namespace


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("layout", ""),
        ("layout", 3),
        ("dtype", None),
        ("tile", -1),
        ("tile", 1.5),
        ("tile", True),
        ("theta", "big"),
        ("theta", True),
        ("hadamard", 1),
        ("yarn", [1]),
        ("yarn", {"a": None}),
        ("scale", 3),
        ("producer", None),
        ("schema", 0),
        ("schema", None),
    ],
)
def test_a_bad_field_is_refused_by_name(field: str, bad: Any) -> None:
    given: dict[str, Any] = {"layout": "a", "dtype": "bfloat16", field: bad}
    with pytest.raises(SpecError) as caught:
        KvFormat(given.pop("layout"), given.pop("dtype"), **given)
    assert f"format.{field}" in caught.value.field


@pytest.mark.parametrize("field", [f.name for f in fields(KvFormat) if f.type == "str | None"])
def test_an_empty_text_declares_nothing(field: str) -> None:
    """Found by a fuzz run: it was another format of the same fingerprint."""
    plain, empty = KvFormat("a", "bfloat16"), KvFormat("a", "bfloat16", **{field: ""})  # type: ignore[arg-type]
    assert empty == plain and empty.fingerprint == plain.fingerprint and empty.diff(plain) == []
    assert compatible(plain, empty) is Compatibility.EXACT


def test_what_is_no_format_is_refused() -> None:
    for bad in (None, "fp8", 3):
        with pytest.raises(ArgumentError, match="other"):
            FULL.diff(bad)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="reader"):
            compatible(bad, FULL)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="writer"):
            compatible(FULL, bad)  # type: ignore[arg-type]


def test_formats_are_values() -> None:
    assert hash(FULL) == hash(replace(FULL)) and {FULL, replace(FULL)} == {FULL}
