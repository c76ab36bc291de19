# SPDX-License-Identifier: Apache-2.0
"""Values of declared fields have one form: fingerprint, difference and equality say the same of any two formats."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.alignment import KernelNeeds
from hybridkv.formats import Compatibility, KvFormat, Manifest, compatible, from_document, negotiate, to_document
from hybridkv.formats.severity import COSMETIC
from hybridkv.frozen_mapping import FrozenMapping
from hybridkv.reference import Rope, ScaleRule, published


class Odd(str):
    """A str that prints and compares as it likes."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7

    def __str__(self) -> str:
        return "odd"


STRINGS = ["", "a", "A", "\u00e9", "e\u0301", np.str_("a"), Odd("a"), Odd("b"), "\ud800", " a", "a\0", b"a"]
ODD: dict[str, list[Any]] = {
    "str": STRINGS,
    "int": [0, 1, True, np.int64(1), np.uint8(0), np.True_, 1.0, np.float64(1), 2**47, np.uint64(2**47), 2**48, -1],
    "float": [
        *(0.0, -0.0, 0, 1, 1.0, True, np.True_, np.float32(1), np.int8(1), 0.1, np.float32(0.1), np.float64(0.1)),
        *(float("nan"), float("inf"), 2**53, 2**53 + 1, 1e-320, np.float16(0.5), 0.5, 10**400, "1", np.array(1.0)),
    ],
    "bool": [True, False, np.True_, np.False_, 1, 0, "True"],
    "Mapping": [
        *({}, {"a": 1}, {"a": 1.0}, {"a": True}, {"a": np.True_}, {"a": np.float32(1)}, {"a": "1"}),
        *({1: 2}, {1: 2, "1": 3}, {"1": 3, 1: 2}, {"1": 3}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"\u00e9": 1}),
        *({"e\u0301": 1}, {"a": -0.0}, {"a": 0}, {"a": False}, {"a": np.bool_(0)}, {"a": None}, {None: 1}),
        *({Odd("a"): 1}, {Odd("a"): 1, Odd("b"): 2}, {"a": Odd("1")}, {"a": [1]}, [("a", 1)]),
        *({"a": np.str_("1")}, {"\ud800": 1}, FrozenMapping([("a", 1)])),
    ],
}  # fmt: skip

FIELDS = {f.name: str(f.type) for f in fields(KvFormat)}


def formats_of(field: str) -> list[KvFormat]:
    """Every format that differs from a plain one in this field alone, by what is taken of the odd values."""
    made = []
    optional = [None] if "None" in FIELDS[field] else []
    for value in [*ODD[FIELDS[field].partition("[")[0].partition(" ")[0]], *optional]:
        given: dict[str, Any] = {"layout": "rows", "dtype": "bfloat16", field: value}
        try:
            made.append(KvFormat(given.pop("layout"), given.pop("dtype"), **given))
        except hk.SpecError as error:
            assert error.field.startswith(f"format.{field}")
    return made


@pytest.mark.parametrize("field", FIELDS)
def test_fingerprint_difference_and_equality_say_the_same(field: str) -> None:
    made = formats_of(field)
    assert len(made) >= (2 if field == "schema" else 3)
    bare = [replace(one, producer="", producer_version=None) for one in made]
    for (one, plain), (other, other_plain) in product(zip(made, bare, strict=True), repeat=2):
        same = one.fingerprint == other.fingerprint
        assert same is (not [d for d in one.diff(other) if d.severity != COSMETIC])
        assert same is (plain == other_plain) is (compatible(one, other) is Compatibility.EXACT)
        assert not same or (hash(one) == hash(other) and one.canonical == other.canonical)
        assert (one == other) is (one.diff(other) == [])


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_travels_as_it_is(field: str) -> None:
    for made in formats_of(field):
        sent = json.dumps(to_document(made))
        for again in (from_document(json.loads(sent)), pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
            assert again == made and again.diff(made) == [] and again.fingerprint == made.fingerprint
        if field in ("row_bytes", "page_rows", "page_stride", "row_stride"):  # of which few fit a group
            continue
        group = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, format=made)
        own = Manifest.of(hk.CacheSpec(16, [group]))
        read = Manifest.from_bytes(own.to_bytes())
        assert read == own and negotiate(own, read).differences == ()


def test_numbers_and_bools_of_numpy_are_taken_as_pythons() -> None:
    """Nothing else is the one form of them: their message was "expected a number, got 10000"."""
    for given, plain in [(np.int64(10000), 10000), (np.float32(0.5), 0.5), (np.float64(0.1), 0.1)]:
        made = KvFormat("a", "b", theta=given, yarn={"factor": given})
        assert made == KvFormat("a", "b", theta=plain, yarn={"factor": plain})
        assert type(made.theta) is float and made.yarn is not None and type(made.yarn["factor"]) is float
    made = KvFormat("a", "b", hadamard=np.True_, tile=np.int32(64), yarn={"truncate": np.False_})  # type: ignore[arg-type]
    assert (made.hadamard, type(made.hadamard), type(made.tile)) == (True, bool, int)
    assert made.yarn is not None and made.yarn["truncate"] is False
    group = hk.CacheGroup(
        *("w", hk.StateKind.WINDOW, hk.Window(np.int64(9))), page_bytes=np.int64(64), rebuildable=np.True_,
        layers=[np.int32(0), np.int64(1)],
    )  # type: ignore[arg-type]  # fmt: skip
    assert group.rebuildable is True and group.layers == (0, 1) and type(group.layers[0]) is int
    needs = KernelNeeds(name="mine", source="here", adjacent_pages=np.True_, packed_rows=np.False_)  # type: ignore[arg-type]
    assert needs.adjacent_pages is True and needs.packed_rows is False
    row = replace(published.INDEXER_FP8, hadamard=np.False_, rope_dims=np.int64(64), interleaved=np.True_)
    assert row.hadamard is False and row.interleaved is True
    rule = ScaleRule("float32", np.float32(0.5), np.True_)  # type: ignore[arg-type]
    assert (rule.floor, type(rule.floor), rule.power_of_two) == (0.5, float, True)
    rope = Rope(64, np.int64(10000), interleaved=np.False_)  # type: ignore[arg-type]
    assert rope == Rope(64, 10000.0, interleaved=False) and rope.interleaved is False
    told = hk.Identity("m", rope={"theta": np.float32(16), "n": np.int64(3), "b": np.True_})
    assert told == hk.Identity("m", rope={"theta": 16, "n": 3, "b": True})
    assert told.digest == hk.Identity("m", rope={"theta": 16, "n": 3, "b": True}).digest


@pytest.mark.parametrize("given", [{1: 2}, {1: 2, "1": 3}, {None: 1}, {True: 1}, {b"a": 1}])
def test_names_of_a_mapping_are_strings(given: Any) -> None:
    """A name that became one could be another that is there."""
    for field in ("yarn", "roles"):
        with pytest.raises(hk.SpecError, match="names that are str") as caught:
            KvFormat("a", "b", **{field: given})
        assert caught.value.field == f"format.{field}"


def test_what_is_hashed_is_never_changed() -> None:
    given = {"factor": 16.0}
    made = KvFormat("a", "b", yarn=given, roles={"0": "x"})
    before = made.fingerprint
    given["factor"] = 1.0
    for kept in (made.yarn, made.roles):
        with pytest.raises(TypeError):
            kept["factor"] = 1.0  # type: ignore[index]
    parts = hk.CacheGroup("p", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, parts={"a": 32, "b": 32}).parts
    own = Manifest.of(hk.CacheSpec.homogeneous(2, 64))
    entry = hk.formats.REGISTRY["indexer_fp8"]
    for kept in (parts, own.identity_parts, entry.leaves_open):
        with pytest.raises(TypeError):
            kept["a"] = 1  # type: ignore[index]
    assert made.fingerprint == before


def test_groups_whose_parts_lie_in_another_order_are_not_equal() -> None:
    def group(**parts: int) -> hk.CacheGroup:
        return hk.CacheGroup("p", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64, parts=parts)

    assert group(a=32, b=32) == group(a=32, b=32) and group(a=32, b=32) != group(b=32, a=32)
    assert group(a=32, b=32).fingerprint != group(b=32, a=32).fingerprint


def test_a_frozen_mapping_is_a_mapping() -> None:
    kept = FrozenMapping([("b", 1), ("a", True)])
    assert kept == {"a": True, "b": 1.0} and kept != {"a": 1, "b": 1} and kept != 3 and len(kept) == 2
    assert pickle.loads(pickle.dumps(kept)) == copy.deepcopy(kept) == kept and repr(kept) == "{'b': 1, 'a': True}"
    assert hash(kept) == hash(copy.copy(kept)) and kept != FrozenMapping([("a", True), ("b", 1)])
    error = pickle.loads(pickle.dumps(hk.SpecError("format.yarn", "another", kept)))
    assert error.got == kept


def test_identities_that_differ_in_the_salt_alone_are_told_apart_and_the_salt_is_not_told() -> None:
    secret, other = b"first secret of one", b"other secret of two"
    keys = hk.block_keys(range(40), 16, identity=hk.Identity("m", salt=secret))
    for salt in (other, b""):
        with pytest.raises(hk.ArgumentError) as caught:
            hk.block_keys(range(8), 16, parent=keys, identity=hk.Identity("m", salt=salt))
        expected = (
            "parent: expected keys of Identity(model='m') and of its salt, got keys of Identity(model='m') of another"
        )
        assert str(caught.value).startswith(f"{expected} salt") and caught.value.fields == ("salt",)  # type: ignore[attr-defined]
        assert b"secret" not in pickle.dumps(caught.value)
    with pytest.raises(hk.ArgumentError) as caught:
        hk.block_keys(range(8), 16, parent=keys, identity=hk.Identity("z", salt=secret))
    assert "salt" not in str(caught.value)
