# SPDX-License-Identifier: Apache-2.0
"""Where token ids may come from: one result for all, no copy where possible, bad ones refused by name."""

from __future__ import annotations

import array
import collections
import enum
from typing import Any

import numpy as np
import pytest

from hybridkv.errors import ArgumentError
from hybridkv.keys import block_keys

IDS = [7, 1, 100, 33, 2, 90, 5, 6, 64, 127, 0, 8] * 3
EXPECTED = block_keys(IDS, 8)
INTEGERS: list[Any] = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


class Foreign:
    """A tensor of another library: DLPack is all it has."""

    def __init__(self, ids: np.ndarray[Any, Any], device: int = 1) -> None:
        self._ids = ids
        self._device = device

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._ids.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


class Interface:
    """Another array type, known by its array interface."""

    def __init__(self, ids: np.ndarray[Any, Any]) -> None:
        self.__array_interface__ = ids.__array_interface__
        self._ids = ids


class Numbered(enum.IntEnum):
    SEVEN = 7


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_type_and_stride(dtype: Any) -> None:
    ids = np.array(IDS, dtype)
    spread = np.zeros(3 * len(IDS), dtype)
    spread[::3] = ids
    odd = np.zeros(ids.nbytes + 1, np.uint8)[1:].view(dtype)
    odd[:] = ids
    table = np.zeros((len(IDS), 5), dtype)
    table[:, 2] = ids
    record = np.zeros(len(IDS), [("pad", np.uint8), ("id", dtype)])
    record["id"] = ids
    swapped = ids.astype(np.dtype(dtype).newbyteorder())
    frozen = ids.copy()
    frozen.flags.writeable = False
    for same in (ids, spread[::3], ids[::-1].copy()[::-1], odd, table[:, 2], record["id"], swapped, frozen):
        assert block_keys(same, 8) == EXPECTED
        assert block_keys(same, 8)._core.tip_key(1, 5) == EXPECTED._core.tip_key(1, 5)
        assert block_keys(same[8:], 8, parent=block_keys(same[:8], 8)) == EXPECTED
    assert block_keys(np.broadcast_to(ids[:1], 24), 8) == block_keys([7] * 24, 8)


@pytest.mark.parametrize("code", "bBhHiIlLqQ")
def test_array_and_memoryview(code: str) -> None:
    ids = array.array(code, IDS)
    assert block_keys(ids, 8) == EXPECTED
    assert block_keys(memoryview(ids), 8) == EXPECTED
    assert block_keys(memoryview(ids)[::-1][::-1], 8) == EXPECTED


def test_an_array_may_grow_while_its_keys_live() -> None:
    ids = array.array("q", IDS)
    keys = block_keys(ids, 8)
    ids.append(9)  # a view would forbid this
    assert keys == EXPECTED


@pytest.mark.parametrize("kind", [list, tuple, collections.deque, collections.UserList])
def test_sequences(kind: Any) -> None:
    assert block_keys(kind(IDS), 8) == EXPECTED
    assert block_keys(kind([]), 8) == block_keys([], 8)


def test_ranges_and_whatever_is_an_index() -> None:
    assert block_keys(range(100), 8) == block_keys(list(range(100)), 8)
    assert block_keys(range(300, 0, -3), 8) == block_keys(list(range(300, 0, -3)), 8)
    mixed: Any = [np.int64(7), np.uint8(1), Numbered.SEVEN, 3]
    assert block_keys(mixed, 2) == block_keys([7, 1, 7, 3], 2)


def test_large_ids_of_lists() -> None:
    ids = [0, 1, 2**15, 2**30 - 1, 2**30, 2**31, 2**32 - 1, 2**29]
    assert block_keys(ids, 4) == block_keys(np.array(ids, np.uint32), 4) == block_keys(tuple(ids), 4)


def test_dlpack_and_the_array_interface() -> None:
    for dtype in INTEGERS:
        ids = np.array(IDS, dtype)
        assert block_keys(Foreign(ids), 8) == EXPECTED
        other: Any = Interface(ids)
        assert block_keys(other, 8) == EXPECTED
    with pytest.raises(ArgumentError) as refused:
        block_keys(Foreign(np.array(IDS), device=2), 8)
    assert refused.value.field == "tokens"
    assert "device" in str(refused.value)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        ids = torch.tensor(IDS, dtype=dtype)
        assert block_keys(ids, 8) == EXPECTED
        assert block_keys(torch.stack([ids, ids], 1)[:, 0], 8) == EXPECTED
    for wrong in (torch.zeros(8), torch.zeros(8, dtype=torch.bool), torch.zeros((2, 4), dtype=torch.int64)):
        with pytest.raises(ArgumentError) as refused:
            block_keys(wrong, 8)
        assert refused.value.field == "tokens"
    with pytest.raises(ArgumentError):
        block_keys(torch.zeros(8, dtype=torch.bfloat16), 8)
    with pytest.raises(ArgumentError):
        block_keys(torch.zeros(8, dtype=torch.int64, device="meta"), 8)
    tensor = torch.arange(20)
    keys = block_keys(tensor, 16)
    tip = keys._core.tip_key(0, 3)
    tensor[0] = 99  # a view: tips of whole units are looked up in the caller's memory
    assert keys._core.tip_key(0, 3) != tip


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.int64])
def test_memory_is_kept_as_a_view_and_the_partial_rest_is_copied(dtype: Any) -> None:
    ids = np.arange(40).astype(dtype)
    keys = block_keys(ids, 16)
    tips = keys._core.tip_key(1, 5), keys._core.tip_key(2, 5)
    digests = keys.digests.tobytes()
    ids[:] = 3
    assert keys._core.tip_key(1, 5) != tips[0]
    assert keys._core.tip_key(2, 5) == tips[1]
    assert keys.digests.tobytes() == digests
    listed = list(range(40))
    copied = block_keys(listed, 16)
    listed[:] = [3] * 40
    assert copied._core.tip_key(1, 5) == tips[0]


def test_ids_put_out_of_range_later_never_become_a_key() -> None:
    ids = np.arange(40)
    keys = block_keys(ids, 16)
    ids[17] = 2**32 + 17
    assert keys._core.tip_key(1, 1) == block_keys(range(40), 16)._core.tip_key(1, 1)
    with pytest.raises(ArgumentError):
        keys._core.tip_key(1, 2)


def test_the_view_outlives_the_name() -> None:
    keys = block_keys(np.arange(1000, 2000), 16)
    assert [keys._core.tip_key(u, 15) for u in range(62)] == [
        block_keys(range(1000, 2000), 16)._core.tip_key(u, 15) for u in range(62)
    ]


@pytest.mark.parametrize("make", [list, tuple, np.array, lambda ids: np.array(ids)[::-1][::-1]])
@pytest.mark.parametrize("bad", [-1, 2**32, 2**32 + 5, -(2**31), 2**63 - 1])
@pytest.mark.parametrize("at", [0, 1, 40, 63, 64, 69])
def test_an_id_out_of_range_is_named(make: Any, bad: int, at: int) -> None:
    ids = list(range(70))
    ids[at] = bad
    if at < 60:
        ids[at + 5] = -9  # the first one is named
    with pytest.raises(ArgumentError) as refused:
        block_keys(make(ids), 16)
    error = refused.value
    assert (error.field, error.expected, error.got) == ("tokens", "0 <= id < 2**32", f"{bad} at index {at}")


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_a_negative_id_of_any_type_is_named_far_into_a_long_array(dtype: Any) -> None:
    ids = np.ones(100_000, dtype)
    ids[77_777] = -5
    for unit in (16, 256, 65_536):
        with pytest.raises(ArgumentError) as refused:
            block_keys(ids, unit)
        assert refused.value.got == "-5 at index 77777"


def test_a_bad_id_of_a_continuation_changes_nothing() -> None:
    parent = block_keys(range(16), 16, parent=block_keys(range(16), 16))
    before = parent.digests.tobytes()
    for bad in (np.array([1] * 20 + [-1]), [1] * 20 + [2**40]):
        with pytest.raises(ArgumentError):
            block_keys(bad, 16, parent=parent)
    assert parent.digests.tobytes() == before
    grown = block_keys([5] * 16, 16, parent=parent)
    assert grown == block_keys([*range(16), *range(16), *[5] * 16], 16)


def test_an_unsigned_id_beyond_64_bits_signed_is_named() -> None:
    with pytest.raises(ArgumentError) as refused:
        block_keys(np.array([1, 2**63 + 1], np.uint64), 2)
    assert refused.value.got == f"{2**63 + 1} at index 1"


@pytest.mark.parametrize(
    ("item", "got"),
    [(1.0, "float"), ("a", "str"), (None, "NoneType"), (True, "bool"), ([1], "list"), (2**70, str(2**70))],
)
def test_a_wrong_item_of_a_list_is_named(item: Any, got: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        block_keys([1, 2, item, 4], 2)
    assert refused.value.field == "tokens"
    assert refused.value.got == f"{got} at index 2"


@pytest.mark.parametrize(
    "tokens",
    [
        np.zeros(32, np.float32),
        np.zeros(32, bool),
        np.zeros(32, complex),
        np.array(["a"] * 32),
        np.array([1, 2], object),
        np.zeros(32, "datetime64[s]"),
        np.zeros((4, 8), np.int32),
        np.array(5),
        memoryview(array.array("d", [1.0] * 32)),
        np.zeros((4, 8), np.int32).data,
        np.zeros(8, bool).data,
        array.array("d", [1.0] * 32),
        b"12345678",
        bytearray(8),
        "12345678",
        {1, 2, 3},
        {1: 2},
        iter([1, 2, 3]),
        None,
        7,
        np.int64(7),
    ],
)
def test_wrong_kinds_of_tokens_are_refused(tokens: Any) -> None:
    with pytest.raises(ArgumentError) as refused:
        block_keys(tokens, 16)
    assert refused.value.field == "tokens"
    assert isinstance(refused.value, ValueError)


def test_an_empty_float_array_is_no_wrong_id() -> None:
    assert block_keys(np.array([]), 16) == block_keys([], 16)


def test_a_list_that_shrinks_while_it_is_read_is_refused() -> None:
    ids: list[Any] = []

    class Shrinks:
        def __index__(self) -> int:
            ids.clear()
            return 1

    ids.extend([Shrinks(), 2, 3])
    with pytest.raises(ArgumentError):
        block_keys(ids, 1)
