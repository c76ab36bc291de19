# SPDX-License-Identifier: Apache-2.0
"""The definition of keys, written again over hashlib, and the frozen digests of key profile 1."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridkv import _core
from hybridkv.identity import Identity
from hybridkv.keys import KEY_PROFILE, BlockKeys, block_keys

Span = tuple[int, int, bytes]


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def body(ids: list[int], media: list[Span], begin: int, count: int) -> bytes:
    out = struct.pack(f"<{count}I", *ids[begin : begin + count])
    touching = [s for s in sorted(media) if s[0] < begin + count and s[0] + s[1] > begin]
    for offset, length, digest in touching:
        out += u64(offset) + u64(length) + u64(len(digest)) + digest
    return out + u64(len(touching)) + u64(count)


class Definition:
    """Chain values of one sequence, straight from the text of csrc/layout/key_chain.h."""

    def __init__(self, ids: list[int], unit: int, identity: Identity, media: list[Span]) -> None:
        self.ids, self.unit, self.media = ids, unit, media
        parts = identity.model, identity.weights, identity.adapter, identity.salt, identity.extra
        encoded = [p if isinstance(p, bytes) else p.encode() for p in parts]
        framed = b"".join(u64(len(p)) + p for p in encoded)
        self.root = sha(u64(unit), framed, b"hybridkv root  1")
        self.chain: list[bytes] = []
        for u in range(len(ids) // unit):
            local = sha(body(ids, media, u * unit, unit), b"hybridkv unit  1")
            self.chain.append(sha(self.before(u)[:28], local[:27]))

    def before(self, unit: int) -> bytes:
        return self.chain[unit - 1] if unit else self.root

    def keys(self) -> list[bytes]:
        return [value[:16] for value in self.chain]

    def tip(self, unit: int, length: int) -> bytes:
        ids = body(self.ids, self.media, unit * self.unit, length)
        return sha(ids, self.before(unit)[:16], b"hybridkv tip   1")[:16]

    def directory(self, unit: int) -> bytes:
        return sha(self.before(unit)[:16], b"hybridkv tips  1")[:16]


@pytest.fixture(params=["portable", "sha_ni"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both SHA-256 paths, where the machine has both."""
    name: str = request.param
    if not _core.sha256_supported(name):
        pytest.skip("this machine has no SHA instructions")
    before = _core.sha256_path()
    _core.sha256_choose(name)
    yield name
    _core.sha256_choose(before)


def rows(keys: BlockKeys) -> list[bytes]:
    return [row.tobytes() for row in keys.digests]


def assert_defined(keys: BlockKeys, definition: Definition) -> None:
    assert rows(keys) == definition.keys()
    assert keys._core.root() == definition.root[:16]
    unit = definition.unit
    for u in range(len(definition.chain) + 1):
        assert keys._core.tip_directory_key(u) == definition.directory(u)
        for length in {1, unit // 2, unit - 1}:
            if 0 < length < unit and u * unit + length <= keys.tokens:
                assert keys._core.tip_key(u, length) == definition.tip(u, length)


@pytest.mark.parametrize("unit", [1, 2, 3, 7, 12, 15, 16, 17, 24, 32, 64, 100, 128, 256, 300])
@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.int64, np.uint16])
def test_every_unit_and_count_agrees_with_hashlib(path: str, unit: int, dtype: Any) -> None:
    for units in (0, 1, 3, 4, 5, 9, 21):
        count = units * unit + unit // 3
        ids = np.random.default_rng(count).integers(0, 2**15, count).astype(dtype)
        keys = block_keys(ids, unit, identity=Identity("m", salt=b"s"))
        assert_defined(keys, Definition(ids.tolist(), unit, Identity("m", salt=b"s"), []))


def test_a_long_sequence_agrees_with_hashlib(path: str) -> None:
    ids = np.random.default_rng(5).integers(0, 2**32, 300_001, dtype=np.uint32)
    for same in (ids, ids.astype(np.int64)):  # both are hashed in several portions
        keys = block_keys(same, 16)
        assert rows(keys) == Definition(ids.tolist(), 16, Identity(), []).keys()


@st.composite
def sequences(draw: st.DrawFn) -> tuple[list[int], int, list[Span], list[int]]:
    unit = draw(st.sampled_from([1, 2, 4, 5, 16, 17, 64]))
    count = draw(st.integers(0, 6 * unit + 3))
    ids = draw(st.lists(st.integers(0, 2**32 - 1), min_size=count, max_size=count))
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=4)))
    edges = sorted(draw(st.sets(st.integers(0, count), max_size=6)))
    media = [
        (a, b - a, draw(st.binary(min_size=1, max_size=40))) for a, b in zip(edges[::2], edges[1::2], strict=False)
    ]
    return ids, unit, media, cuts


@given(sequences(), st.text(max_size=4), st.binary(max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_sequence_agrees_with_hashlib_however_it_was_continued(
    sequence: tuple[list[int], int, list[Span], list[int]], model: str, salt: bytes
) -> None:
    ids, unit, media, cuts = sequence
    identity = Identity(model, salt=salt)
    whole = block_keys(ids, unit, identity=identity, media=media)
    assert_defined(whole, Definition(ids, unit, identity, media))
    grown = block_keys([], unit, identity=identity)
    for cut in [*cuts, len(ids)]:
        start = len(grown) * unit
        if any(s[0] < cut < s[0] + s[1] for s in media):
            continue  # a span must lie within its sequence
        ahead = [s for s in media if start <= s[0] < cut]
        # The rest that is replaced may have carried spans; they come again with the tokens.
        grown = block_keys(ids[start:cut], unit, identity=identity, parent=grown, media=ahead)
        assert grown.tokens == cut
        assert_defined(grown, Definition(ids[:cut], unit, identity, [s for s in media if s[0] < cut]))
    assert grown == whole


GOLDEN_ROOT = "b467fad9c4d2764dccfe2f13f644252a"
GOLDEN_PLAIN = [
    "8c5040c68d67c1ff05cca9b3cd62404d",
    "219605c4df4d657cdb14bf800a8a34e6",
]
GOLDEN_TIP = "b134189f4a36d9fe3681dadfaee4d61e"
GOLDEN_DIRECTORY = "fe28d1e3f132fe31b6a01806ce6fbfd8"
GOLDEN_RICH = [
    "9b0413515b94a4bd6af2e73cb6e10fe9",
    "aca6255b094b0f51c19f7aaaff831a9d",
    "7f64d4f1c14fb108ee76a637f7889a2a",
    "c546f767bc47996d24c62fe371f35527",
]
GOLDEN_HASHES_ROOT = "2d6684dd5497548a7432f52cb4e2ca9b"


def test_profile_1_is_frozen() -> None:
    """These values may never change under profile 1: disk tiers and other processes hold them."""
    assert KEY_PROFILE == 1
    plain = block_keys(range(40), 16)
    assert [row.hex() for row in rows(plain)] == GOLDEN_PLAIN
    assert plain._core.root().hex() == GOLDEN_ROOT
    assert plain._core.tip_key(2, 8).hex() == GOLDEN_TIP
    assert plain._core.tip_directory_key(2).hex() == GOLDEN_DIRECTORY
    whose = Identity("model", weights="w1", adapter="lora", salt=b"\x00secret", extra=b"x")
    media = [(60, 10, b"picture")]
    rich = block_keys(range(4_294_967_000, 4_294_967_296), 64, identity=whose, media=media)
    assert [row.hex() for row in rows(rich)] == GOLDEN_RICH
    assert BlockKeys.from_hashes([b"h" * 16], 16)._core.root().hex() == GOLDEN_HASHES_ROOT
