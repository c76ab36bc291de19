# SPDX-License-Identifier: Apache-2.0
"""Keys of tips and of their directories, and the identity in the root."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hybridkv.errors import ArgumentError, SpecError
from hybridkv.identity import Identity
from hybridkv.keys import block_keys

# Tips and their bounds


def test_tips_of_every_unit_and_length_differ() -> None:
    keys = block_keys(range(70), 16)._core
    tips = [keys.tip_key(u, n) for u in range(4) for n in range(1, 16)]
    tips += [keys.tip_key(4, n) for n in range(1, 7)]
    tips += [keys.tip_directory_key(u) for u in range(5)]
    tips += [row.tobytes() for row in keys.digests]
    assert len(tips) == len(set(tips))
    slice_ = block_keys(range(70), 16)[2:4]._core
    assert slice_.tip_key(3, 15) == keys.tip_key(3, 15)


def test_a_tip_is_of_its_length_and_parent() -> None:
    a, b = block_keys([1, 2, 3, 4, 5, 0], 4)._core, block_keys([1, 2, 3, 4, 5, 9], 4)._core
    assert a.tip_key(1, 1) == b.tip_key(1, 1)
    assert a.tip_key(1, 2) != b.tip_key(1, 2)
    assert block_keys([1, 2, 3, 9, 5], 4)._core.tip_key(1, 1) != a.tip_key(1, 1)
    assert block_keys([0, 0], 4)._core.tip_key(0, 1) != block_keys([0, 0], 4)._core.tip_key(0, 2)


@pytest.mark.parametrize(("unit", "length"), [(0, 0), (0, 16), (4, 7), (5, 1), (-1, 1), (0, -1), (2**62, 1)])
def test_a_tip_outside_the_keys_is_refused(unit: int, length: int) -> None:
    with pytest.raises(ArgumentError):
        block_keys(range(70), 16)._core.tip_key(unit, length)


def test_a_slice_ends_its_tips() -> None:
    keys = block_keys(range(70), 16)[:4]._core
    with pytest.raises(ArgumentError):
        keys.tip_key(4, 1)
    with pytest.raises(ArgumentError):
        keys.tip_directory_key(5)


# Identity


@pytest.mark.parametrize("field", ["model", "weights", "adapter", "salt", "extra"])
def test_an_incomplete_identity_is_refused(field: str) -> None:
    wrong: list[Any] = [None, 7, b"bytes" if field in ("model", "weights", "adapter") else "str", ["a"]]
    for value in wrong:
        with pytest.raises(SpecError) as refused:
            Identity(**{field: value})
        assert refused.value.field == f"identity.{field}"


def test_an_identity_is_a_value() -> None:
    assert Identity("m") == Identity("m")
    assert hash(Identity("m")) == hash(Identity("m"))
    assert Identity("m", salt=b"1") != Identity("m", salt=b"2")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Identity("m").model = "n"  # type: ignore[misc]
    with pytest.raises(SpecError):
        Identity("\ud800")
    wrong: list[Any] = ["m", None, {}]
    for bad in wrong:
        with pytest.raises(ArgumentError) as refused:
            block_keys(range(16), 16, identity=bad)
        assert refused.value.field == "identity"
