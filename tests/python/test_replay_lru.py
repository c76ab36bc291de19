# SPDX-License-Identifier: Apache-2.0
"""The order of eviction: oldest prefix first, suffix before prefix, windows on their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.replay.lru import PrefixLru, chunk_names


class Recorder:
    """Keeps what was evicted: digests of the units and the groups named."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[bytes], Any]] = []

    def evict(self, keys: hk.BlockKeys, groups: dict[str, bool] | None = None) -> int:
        self.calls.append(([digest.tobytes() for digest in keys.digests], groups))
        return len(keys)


def keys_of(*units: int) -> hk.BlockKeys:
    return hk.block_keys(np.repeat(np.array(units, dtype=np.uint32), 4), 4)


def lru_of(history: int, states: int, chunk_units: int = 1) -> tuple[PrefixLru, Recorder]:
    cache = Recorder()
    order = PrefixLru(
        cache, chunk_units=chunk_units, history_chunks=history, state_chunks=states, state_groups=("swa",)
    )
    return order, cache


def test_chunks_are_named_by_their_last_unit() -> None:
    keys = keys_of(1, 2, 3, 4, 5)
    assert chunk_names(keys, 1) == [digest.tobytes() for digest in keys.digests]
    assert chunk_names(keys, 2) == [keys.digests[1].tobytes(), keys.digests[3].tobytes()]


def test_suffix_goes_before_prefix_and_old_before_new() -> None:
    order, _ = lru_of(10, 10)
    old, new = keys_of(1, 2), keys_of(1, 3)
    order.stored(old, chunk_names(old, 1), ())
    order.stored(new, chunk_names(new, 1), ())
    shared, old_end = chunk_names(old, 1)
    assert order.history() == [old_end, chunk_names(new, 1)[1], shared]
    order.touch(chunk_names(old, 1))
    assert order.history() == [chunk_names(new, 1)[1], old_end, shared]
    order.touch([b"unknown"])
    assert len(order.history()) == 3


def test_room_is_made_for_exactly_what_is_new() -> None:
    order, cache = lru_of(4, 4)
    first, second = keys_of(1, 2), keys_of(5, 6)
    for keys in (first, second):
        order.stored(keys, chunk_names(keys, 1), ())
    longer = keys_of(5, 6, 7)
    assert order.make_room(chunk_names(longer, 1), ())
    assert cache.calls == [([first.digests[1].tobytes()], None)]
    assert order.evicted_pages == 1


def test_neighbours_are_evicted_in_one_call() -> None:
    order, cache = lru_of(3, 3)
    first = keys_of(1, 2, 3)
    order.stored(first, chunk_names(first, 1), (2,))
    assert order.make_room(chunk_names(keys_of(7, 8), 1), ())
    assert cache.calls == [([first.digests[1].tobytes(), first.digests[2].tobytes()], None)]
    assert order.states() == []  # the window went with its history


def test_windows_go_on_their_own_and_leave_history() -> None:
    order, cache = lru_of(10, 1)
    first, second = keys_of(1, 2), keys_of(5, 6)
    order.stored(first, chunk_names(first, 1), (1,))
    assert order.make_room(chunk_names(second, 1), (1,))
    assert cache.calls == [([first.digests[1].tobytes()], {"swa": True})]
    assert order.history() == list(reversed(chunk_names(first, 1)))
    assert order.states() == []


def test_windows_in_use_go_last() -> None:
    order, _ = lru_of(10, 10)
    first, second = keys_of(1, 2), keys_of(5, 6)
    for keys in (first, second):
        order.stored(keys, chunk_names(keys, 1), (1,))
    order.touch_states([chunk_names(first, 1)[1], b"unknown"])
    assert order.states() == [chunk_names(second, 1)[1], chunk_names(first, 1)[1]]


@pytest.mark.parametrize("units", [1, 130])
def test_where_the_count_sees_room_small_steps_are_taken_until_nothing_is_left(units: int) -> None:
    order, cache = lru_of(1000, 1000)
    keys = keys_of(*range(units))
    order.stored(keys, chunk_names(keys, 1), ())
    steps = 0
    while order.make_room([], ()):
        steps += 1
    assert steps == len(cache.calls)
    assert steps < 130
    assert order.evicted_pages == units
    assert order.history() == []


def test_a_chunk_of_several_units_is_evicted_whole() -> None:
    order, cache = lru_of(2, 2, chunk_units=2)
    keys = keys_of(1, 2, 3, 4, 5)
    order.stored(keys, chunk_names(keys, 2), ())
    assert order.make_room(chunk_names(keys_of(7, 8), 2), ())
    assert cache.calls == [([keys.digests[2].tobytes(), keys.digests[3].tobytes()], None)]


def test_the_prefix_that_needs_room_keeps_what_it_holds() -> None:
    order, cache = lru_of(3, 3)
    old, own = keys_of(1), keys_of(5, 6)
    for keys in (own, old):  # its own chunks are the oldest
        order.stored(keys, chunk_names(keys, 1), ())
    longer = keys_of(5, 6, 7)
    assert order.make_room(chunk_names(longer, 1), ())
    assert cache.calls == [([old.digests[0].tobytes()], None)]
    assert not order.make_room(chunk_names(keys_of(5, 6, 7, 8), 1), ())  # longer than the pools: nothing is lost
    assert len(cache.calls) == 1
    assert order.history() == list(reversed(chunk_names(own, 1)))


def test_more_windows_than_the_pools_hold_are_refused_at_once() -> None:
    order, cache = lru_of(10, 1)
    first = keys_of(1)
    order.stored(first, chunk_names(first, 1), (0,))
    assert not order.make_room(chunk_names(keys_of(5, 6), 1), (0, 1))
    assert cache.calls == []


def test_a_window_taken_by_its_history_is_not_counted_again() -> None:
    order, cache = lru_of(3, 2)
    first, second = keys_of(1, 2), keys_of(5)
    for keys in (first, second):
        order.stored(keys, chunk_names(keys, 1), (len(keys) - 1,))
    order.make_room(chunk_names(keys_of(7), 1), (0,))
    assert cache.calls == [([first.digests[1].tobytes()], None)]  # its window went too: the other one stays
    assert order.states() == chunk_names(second, 1)
