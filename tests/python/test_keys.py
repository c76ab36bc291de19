# SPDX-License-Identifier: Apache-2.0
"""Keys: what makes them equal, what makes them differ, and how they continue, slice and compare."""

from __future__ import annotations

import dataclasses
import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridkv.errors import ArgumentError
from hybridkv.identity import Identity
from hybridkv.keys import BlockKeys, block_keys


def rows(keys: BlockKeys) -> list[bytes]:
    return [row.tobytes() for row in keys.digests]


def common(a: BlockKeys, b: BlockKeys) -> int:
    """Units from the start on that have equal keys."""
    equal = [x == y for x, y in zip(rows(a), rows(b), strict=False)]
    return equal.index(False) if False in equal else len(equal)


# What must make them differ


@pytest.mark.parametrize("field", ["model", "weights", "adapter", "salt", "extra"])
def test_another_identity_shares_no_key(field: str) -> None:
    base = Identity("m", "w", "a", b"s", b"x")
    changed: dict[str, Any] = {field: getattr(base, field) * 2}
    other = dataclasses.replace(base, **changed)
    a, b = block_keys(range(64), 16, identity=base), block_keys(range(64), 16, identity=other)
    assert not set(rows(a)) & set(rows(b))
    assert a != b


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (Identity("ab", "c"), Identity("a", "bc")),
        (Identity("ab"), Identity(weights="ab")),
        (Identity(adapter="ab", salt=b"c"), Identity(adapter="a", salt=b"bc")),
        (Identity(salt=b"ab", extra=b"c"), Identity(salt=b"a", extra=b"bc")),
        (Identity(salt=b"s"), Identity(extra=b"s")),
        (Identity("\x00"), Identity("")),
        (Identity("m" + "\x01" + "\x00" * 7 + "w"), Identity("m", "w")),
    ],
)
def test_parts_of_the_identity_are_framed(one: Identity, two: Identity) -> None:
    a, b = block_keys(range(32), 16, identity=one), block_keys(range(32), 16, identity=two)
    assert not set(rows(a)) & set(rows(b))
    assert block_keys([], 16, identity=one) != block_keys([], 16, identity=two)


def test_the_unit_is_in_the_root() -> None:
    ids = list(range(64))
    assert rows(block_keys(ids, 32))[0] != rows(block_keys(ids, 64))[0]
    seen = [row for unit in (1, 2, 4, 8, 16, 32, 64) for row in rows(block_keys(ids, unit))]
    assert len(seen) == len(set(seen))


@given(st.data())
def test_a_changed_token_changes_every_key_from_its_unit_on(data: st.DataObject) -> None:
    unit = data.draw(st.integers(1, 40))
    ids = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=unit, max_size=6 * unit))
    at = data.draw(st.integers(0, len(ids) - 1))
    other = ids.copy()
    other[at] ^= 1 << data.draw(st.integers(0, 31))
    a, b = block_keys(ids, unit), block_keys(other, unit)
    shared = min(at // unit, len(a))
    assert common(a, b) == shared
    assert not set(rows(a)[shared:]) & set(rows(b)[shared:])
    assert a != b


def test_a_token_moved_across_a_unit_changes_keys() -> None:
    assert rows(block_keys([1, 2, 3, 0], 2)) != rows(block_keys([1, 2, 0, 3], 2))
    assert rows(block_keys([7] * 8, 4))[0] != rows(block_keys([7] * 8, 4))[1]


def test_tokens_cannot_imitate_a_parent_or_a_frame() -> None:
    honest = block_keys(range(64), 16)
    for digest in honest.digests:
        forged = block_keys(np.concatenate([digest.view(np.uint32), np.arange(16, 60, dtype=np.uint32)]), 16)
        assert not set(rows(forged)) & set(rows(honest))
    # The ids that spell out exactly what a media span adds to its unit's message.
    span = (4, 8, b"d" * 16)
    media = block_keys(range(16), 16, media=[span])
    frame = np.frombuffer(
        np.array([4, 8, 16], np.uint64).tobytes() + b"d" * 16 + np.array([1, 16], np.uint64).tobytes(),
        np.uint32,
    )
    longer = np.concatenate([np.arange(16, dtype=np.uint32), frame])
    assert rows(block_keys(longer, len(longer)))[0] not in rows(media)
    assert not set(rows(block_keys(longer, 16))) & set(rows(media))


# Media


def test_media_change_keys_from_the_first_unit_touched() -> None:
    ids = list(range(96))
    plain = block_keys(ids, 16)
    for offset, length, first in [(0, 1, 0), (15, 1, 0), (16, 1, 1), (15, 2, 0), (40, 20, 2), (95, 1, 5)]:
        one = block_keys(ids, 16, media=[(offset, length, b"1")])
        two = block_keys(ids, 16, media=[(offset, length, b"2")])
        for a, b in [(plain, one), (plain, two), (one, two)]:
            assert common(a, b) == first
            assert not set(rows(a)[first:]) & set(rows(b)[first:])


def test_every_part_of_a_span_counts_and_spans_are_framed() -> None:
    ids = list(range(32))
    variants: list[list[tuple[int, int, bytes]]] = [
        [],
        [(2, 3, b"ab")],
        [(1, 3, b"ab")],
        [(2, 4, b"ab")],
        [(2, 3, b"abc")],
        [(2, 3, b"ab"), (5, 1, b"c")],
        [(2, 3, b"a"), (5, 1, b"bc")],
        [(2, 4, b"abc")],
    ]
    seen = [rows(block_keys(ids, 32, media=media))[0] for media in variants]
    assert len(set(seen)) == len(seen)


def test_spans_may_come_in_any_order() -> None:
    spans = [(40, 4, b"b"), (3, 5, b"a"), (8, 2, b"c")]
    assert block_keys(range(64), 16, media=spans) == block_keys(range(64), 16, media=sorted(spans))


def test_media_reach_the_tip_that_they_touch() -> None:
    plain = block_keys(range(40), 16)
    media = block_keys(range(40), 16, media=[(36, 2, b"d")])
    assert rows(plain) == rows(media)
    assert plain._core.tip_key(2, 4) == media._core.tip_key(2, 4)
    assert plain._core.tip_key(2, 5) != media._core.tip_key(2, 5)
    assert plain != media


@pytest.mark.parametrize(
    "media",
    [
        [(-1, 4, b"d")],
        [(4, 0, b"d")],
        [(4, -1, b"d")],
        [(60, 5, b"d")],
        [(2**70, 1, b"d")],
        [(2**62 - 1, 2**62 - 1, b"d")],
        [(4, 4, b"")],
        [(4, 4, None)],
        [(4, 4, "digest")],
        [(4, 4)],
        [(4.0, 4, b"d")],
        [(True, 4, b"d")],
        [(0, 5, b"a"), (4, 5, b"b")],
        [(0, 5, b"a"), (0, 5, b"a")],
        [7],
        "spans",
        None,
        {(0, 1, b"d")},
    ],
)
def test_bad_media_are_refused(media: Any) -> None:
    with pytest.raises(ArgumentError) as refused:
        block_keys(range(64), 16, media=media)
    assert refused.value.field == "media"


# Continuation


def test_a_continuation_is_the_whole() -> None:
    ids = np.random.default_rng(0).integers(0, 129280, 1000)
    whole = block_keys(ids, 16)
    for cut in (0, 1, 15, 16, 17, 500, 999, 1000):
        parent = block_keys(ids[:cut], 16)
        grown = block_keys(ids[cut // 16 * 16 :], 16, parent=parent)
        assert grown == whole
        assert (grown.tokens, len(grown)) == (1000, 62)
        assert parent == block_keys(ids[:cut], 16)  # it is not changed


def test_a_continuation_goes_on_from_the_whole_digest_not_from_the_key() -> None:
    ids = list(range(64))
    forged = BlockKeys.from_hashes(rows(block_keys(ids[:32], 16)), 16)
    with pytest.raises(ArgumentError) as refused:
        block_keys(ids[32:], 16, parent=forged)
    assert (refused.value.field, refused.value.got) == ("parent", "keys made from hashes")


def test_nothing_is_hashed_twice_and_growing_copies_nothing() -> None:
    ids = np.arange(1 << 16, dtype=np.uint32)
    keys = block_keys(ids, 16)
    first = block_keys(ids[:16], 16, parent=keys)  # gets room
    addresses = set()
    for _ in range(200):
        first = block_keys(ids[:16], 16, parent=first)
        addresses.add(first.digests.ctypes.data)
    assert len(addresses) == 1
    changed = ids.copy()
    parent = block_keys(changed, 16)
    before = rows(parent)
    changed[:] = 0  # were the parent's units hashed again, this would show
    assert rows(block_keys([1] * 16, 16, parent=parent))[: len(before)] == before


def test_two_continuations_of_one_parent_do_not_disturb_each_other() -> None:
    ids = list(range(160))
    parent = block_keys(ids[16:32], 16, parent=block_keys(ids[:16], 16))
    grown = []
    for last in range(40):
        grown.append(block_keys([*ids[32:96], *[last] * 16], 16, parent=parent))
    for last, keys in enumerate(grown):
        assert keys == block_keys([*ids[:96], *[last] * 16], 16)
    again = [block_keys([last] * 16, 16, parent=keys) for last, keys in enumerate(grown)]
    for last, keys in enumerate(again):
        assert keys == block_keys([*ids[:96], *[last] * 32], 16)


def test_threads_that_continue_one_parent_agree() -> None:
    ids = np.arange(40_000, dtype=np.uint32)  # long enough for hashing to let other threads in
    parent = block_keys(ids[:16], 16, parent=block_keys(ids[:16], 16))
    expected = [block_keys(np.concatenate([ids[:16], ids[:16], ids + n]), 16) for n in range(4)]
    wrong: list[int] = []

    def grow(n: int) -> None:
        for _ in range(10):
            if block_keys(ids + n, 16, parent=parent) != expected[n]:
                wrong.append(n)

    threads = [threading.Thread(target=grow, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_slice_from_the_start_can_be_continued() -> None:
    ids = list(range(100))
    keys = block_keys(ids, 16)
    for units in range(7):
        other = block_keys([9] * 40, 16, parent=keys[:units])
        assert other == block_keys([*ids[: units * 16], *[9] * 40], 16)
        for unit in range(other._core.end_unit + 1):
            if unit * 16 + 5 <= other.tokens:  # tokens are found in the right piece
                same = block_keys([*ids[: units * 16], *[9] * 40], 16)
                assert other._core.tip_key(unit, 5) == same._core.tip_key(unit, 5)
    assert block_keys(ids[96:], 16, parent=keys[2:]) == keys  # the whole chain, from a later slice too


def test_the_parents_media_are_kept() -> None:
    ids = list(range(80))
    spans = [(4, 4, b"a"), (30, 6, b"b"), (45, 2, b"c")]
    whole = block_keys(ids, 16, media=[*spans, (70, 3, b"d")])
    parent = block_keys(ids[:50], 16, media=spans)
    assert block_keys(ids[48:], 16, parent=parent, media=[(70, 3, b"d")]) == whole
    again = [*spans, (70, 3, b"d")]  # given again, equal: no matter
    assert block_keys(ids[48:], 16, parent=parent, media=again) == whole
    with pytest.raises(ArgumentError) as refused:
        block_keys(ids[48:], 16, parent=parent, media=[(20, 3, b"e")])
    assert "token 48" in str(refused.value)
    in_the_rest = block_keys(ids[:50], 16, media=[(48, 2, b"r")])
    assert block_keys(ids[48:], 16, parent=in_the_rest) == block_keys(ids, 16, media=[(48, 2, b"r")])
    with pytest.raises(ArgumentError):  # its tokens are gone
        block_keys([1], 16, parent=in_the_rest)
    assert block_keys([1], 16, parent=in_the_rest[:3]) == block_keys([*ids[:48], 1], 16)


def test_a_parent_of_another_unit_or_identity_is_refused() -> None:
    parent = block_keys(range(32), 16, identity=Identity("m"))
    assert block_keys([], 16, identity=Identity("m"), parent=parent) == parent
    for unit, identity in [(8, Identity("m")), (16, Identity("n")), (16, Identity())]:
        with pytest.raises(ArgumentError) as refused:
            block_keys(range(8), unit, identity=identity, parent=parent)
        assert refused.value.field == "parent"
    nothing: Any = "root"
    with pytest.raises(ArgumentError):
        block_keys(range(8), 16, parent=nothing)


def test_a_secret_salt_is_not_shown() -> None:
    keys = block_keys(range(20), 16, identity=Identity("m", salt=b"hunter2"))
    assert "hunter2" not in repr(keys) + repr(keys.identity)
    assert "units 0:1 of 16 tokens + 4 tokens" in repr(keys)
    with pytest.raises(ArgumentError) as refused:
        block_keys([1], 16, parent=keys)
    assert "hunter2" not in str(refused.value)


# Slices, length, comparison


def test_len_and_tokens() -> None:
    for count, units in [(0, 0), (15, 0), (16, 1), (17, 1), (64, 4)]:
        keys = block_keys(range(count), 16)
        assert (len(keys), keys.tokens, keys.unit_tokens) == (units, count, 16)
        assert keys.digests.shape == (units, 16)
        assert keys.digests.dtype == np.uint8


def test_slices() -> None:
    ids = list(range(70))
    keys = block_keys(ids, 16)
    assert rows(keys[1:3]) == rows(keys)[1:3]
    assert (len(keys[1:3]), keys[1:3].tokens) == (2, 48)
    assert keys[:3] == block_keys(ids[:48], 16)
    assert keys[:] == keys
    assert keys[0:] == keys
    assert keys[:4] == block_keys(ids[:64], 16) != keys  # a stop drops the partial rest
    assert (len(keys[4:]), keys[4:].tokens) == (0, 70)
    assert (len(keys[9:]), keys[9:].tokens) == (0, 70)
    assert rows(keys[-2:]) == rows(keys)[2:]
    assert keys[-2:].tokens == 70
    assert keys[:-1] == keys[:3]
    assert len(keys[3:1]) == 0
    assert keys[1:][1:] == keys[2:]
    assert keys[1:4][1:2] == keys[2:3]
    assert keys[2:3] != keys[3:4]
    assert keys[2:3] == block_keys(ids[:48], 16)[2:]
    assert keys[2:2] != block_keys([5, *ids[1:]], 16)[2:2]  # empty, but chained to other tokens


@pytest.mark.parametrize("index", [0, -1, slice(None, None, 2), slice(None, None, -1), slice("a", None), "a", None])
def test_bad_indices_are_refused(index: Any) -> None:
    with pytest.raises(ArgumentError) as refused:
        block_keys(range(70), 16)[index]
    assert refused.value.field == "index"


def test_keys_do_not_pretend_to_be_a_list_of_keys() -> None:
    whole: Any = block_keys(range(70), 16)
    with pytest.raises(TypeError):
        iter(whole)


def test_equality_is_of_digests_and_rest() -> None:
    a = block_keys(range(40), 16)
    assert a == block_keys(np.arange(40), 16)
    assert hash(a) == hash(block_keys(np.arange(40), 16))
    assert a != block_keys(range(41), 16)
    assert a != block_keys([*range(39), 99], 16)
    assert a != "keys"
    assert len({a, block_keys(range(40), 16), a[:2]}) == 2


def test_digests_are_a_read_only_view_that_keeps_the_keys_alive() -> None:
    digests = block_keys(range(64), 16).digests
    gc.collect()
    assert digests.tobytes() == b"".join(rows(block_keys(range(64), 16)))
    assert not digests.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        digests[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        digests.flags.writeable = True


# Engines' hashes


def test_hashes_of_an_engine() -> None:
    hashes = [bytes([n]) * 32 for n in range(5)]
    keys = BlockKeys.from_hashes(hashes, 16)
    assert (len(keys), keys.tokens, keys.unit_tokens, keys.identity) == (5, 80, 16, None)
    assert rows(keys) == [h[:16] for h in hashes]
    array = np.frombuffer(b"".join(hashes), np.uint8).reshape(5, 32)
    assert BlockKeys.from_hashes(array, 16) == keys
    assert BlockKeys.from_hashes(array[::-1][::-1], 16) == keys
    mutable: list[Any] = [bytearray(h) for h in hashes]
    assert BlockKeys.from_hashes(mutable, 16) == keys
    assert keys[1:3] == BlockKeys.from_hashes(hashes[:3], 16)[1:]
    assert len(BlockKeys.from_hashes([], 16)) == 0
    own = block_keys(range(80), 16)
    assert BlockKeys.from_hashes(rows(own), 16) == own
    with pytest.raises(ArgumentError):
        keys._core.tip_key(0, 3)


@pytest.mark.parametrize(
    "hashes",
    [
        [b"x" * 15],
        [b"x" * 16, b""],
        [17],
        ["x" * 16],
        [None],
        b"x" * 32,
        "x" * 32,
        None,
        7,
        np.zeros((2, 15), np.uint8),
        np.zeros(32, np.uint8),
        np.zeros((2, 16), np.int8),
    ],
)
def test_bad_hashes_are_refused(hashes: Any) -> None:
    with pytest.raises(ArgumentError) as refused:
        BlockKeys.from_hashes(hashes, 16)
    assert refused.value.field == "hashes"


@pytest.mark.parametrize("unit", [0, -16, 2**24 + 1, 2**70, 16.0, "16", None, True])
def test_a_bad_unit_is_refused(unit: Any) -> None:
    for make in (block_keys, BlockKeys.from_hashes):
        with pytest.raises(ArgumentError) as refused:
            make([], unit)
        assert refused.value.field == "unit_tokens"


# Life of the memory


def test_no_reference_is_left_behind() -> None:
    ids = np.arange(64, dtype=np.uint32)
    before = sys.getrefcount(ids)
    keys = block_keys(ids, 16)
    keys = block_keys([1], 16, parent=keys)
    assert sys.getrefcount(ids) > before
    del keys
    gc.collect()
    assert sys.getrefcount(ids) == before


def test_tokens_that_no_unit_needs_any_more_are_let_go() -> None:
    ids = np.arange(64, dtype=np.uint32)
    before = sys.getrefcount(ids)
    keys = block_keys(ids, 16, parent=block_keys(range(16), 16))
    keys = block_keys([1] * 40, 16, parent=keys[:1])
    gc.collect()
    assert sys.getrefcount(ids) == before
    assert keys == block_keys([*range(16), *[1] * 40], 16)
