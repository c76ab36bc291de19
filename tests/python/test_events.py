# SPDX-License-Identifier: Apache-2.0
"""Events: whoever applies them all has what can be found in the cache, whatever happened in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.inspection import own_block_tokens

UNIT = 4
USABLE = {"ready", "ready with copy", "offloading"}


def _spec(identity: hk.Identity | None = None) -> hk.CacheSpec:
    kv = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
    swa = hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(7), page_bytes=64)
    state = hk.CacheGroup("state", hk.StateKind.TAIL, hk.Checkpoint(), page_bytes=64, block_tokens=2 * UNIT)
    return hk.CacheSpec(UNIT, [kv, swa, state], identity=identity or hk.Identity())


def _keys(tokens: list[int], spec: hk.CacheSpec | None = None) -> hk.BlockKeys:
    return hk.block_keys(tokens, UNIT, identity=(spec or _spec()).identity)


def _there(cache: hk.HybridCache, prompts: list[hk.BlockKeys]) -> set[tuple[str, bytes]]:
    """What can be found of these prompts, by another way than events: every block of each is looked at."""
    found = set()
    for keys in prompts:
        core = keys._core
        tip = core.tip_key(core.end_unit, core.rest_tokens) if core.rest_tokens else b""
        for group in cache.spec.groups:
            units = own_block_tokens(group) // UNIT
            for block, info in enumerate(cache.inspect(keys)[group.name]):
                end = (block + 1) * units
                if info.phase in USABLE:
                    found.add((group.name, keys.digests[end - 1].tobytes() if end <= len(keys) else tip))
    return found


def _family(seed: int, count: int) -> list[hk.BlockKeys]:
    """Prompts that share beginnings of many lengths; most end inside a unit."""
    chosen = random.Random(seed)
    prompts = []
    for _ in range(count):
        length = chosen.randint(3, 30)
        prompts.append(_keys([2 * at + (chosen.randint(0, 1) if at % 7 == 0 else 0) for at in range(length)]))
    return prompts


class _World:
    """A small cache to which anything may happen, and the index that follows it."""

    def __init__(self, seed: int) -> None:
        self.cache = hk.HybridCache(_spec(), blocks=28, pages={"kv": 18, "swa": 14, "state": 10})
        self.prompts = _family(seed, 10)
        self.index = hk.EventIndex()

    def follow(self) -> None:
        self.index.apply(self.cache.events())

    def insert(self, keys: hk.BlockKeys) -> None:
        self.cache.insert(keys)

    def give_up(self, keys: hk.BlockKeys) -> None:
        fill = self.cache.reserve(keys)
        fill.publish(groups={"swa": True, "kv": [0]} if len(keys) else {})
        fill.abort()

    def look(self, keys: hk.BlockKeys) -> None:
        verdict = self.cache.match(keys)
        if verdict.lease is not None:
            verdict.lease.release()

    def evict(self, keys: hk.BlockKeys) -> None:
        self.cache.evict(keys)

    def withdraw_under_a_lease(self, keys: hk.BlockKeys) -> None:
        verdict = self.cache.match(keys)
        self.cache._core.withdraw_all()
        self.follow()
        assert self.index.pages() == frozenset()
        if verdict.lease is not None:
            verdict.lease.release()

    def run(self, keys: hk.BlockKeys) -> None:
        tokens = np.arange(20, dtype=np.int64) + 1000
        ticket = self.cache.admit("r", 20)
        for _ in range(3):
            ticket.grow(6)
            ticket.advance(ticket.tokens + 6, tokens[:6])
        ticket.close()

    def reset(self, keys: hk.BlockKeys) -> None:
        self.cache.reset()

    def steps(self) -> list[Callable[[hk.BlockKeys], None]]:
        often: list[Callable[[hk.BlockKeys], None]] = [self.insert, self.look, self.evict, self.give_up]
        return [*often * 8, self.run, self.run, self.withdraw_under_a_lease, self.reset]


def _do(step: Callable[[hk.BlockKeys], None], keys: hk.BlockKeys) -> None:
    with suppress(hk.OutOfPages, hk.NotAdmitted, hk.Busy):
        step(keys)


@pytest.mark.parametrize("seed", range(6))
def test_an_index_made_of_events_is_the_cache(seed: int) -> None:
    world = _World(seed)
    chosen = random.Random(seed)
    running = [_keys([*range(1000, 1006)] * 3)]
    for _ in range(400):
        _do(chosen.choice(world.steps()), chosen.choice(world.prompts))
        if chosen.random() < 0.4:
            world.follow()
            mine = _there(world.cache, [*world.prompts, *running])
            assert world.index.pages() == mine
    world.follow()
    assert world.cache.events() == []


def test_an_index_follows_many_threads() -> None:
    world = _World(9)

    def work(seed: int) -> None:
        chosen = random.Random(seed)
        steps = [world.insert, world.look, world.evict, world.give_up]
        for _ in range(400):
            _do(chosen.choice(steps), chosen.choice(world.prompts))

    threads = [Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        world.follow()
    for thread in threads:
        thread.join()
    world.follow()
    assert world.index.pages() == _there(world.cache, world.prompts)


def test_what_comes_back_from_a_tier_is_stored_again() -> None:
    with hk.MemoryTier(1 << 20) as tier:
        cache = hk.HybridCache(_spec(), blocks=28, tier=tier)
        for group in cache.spec.groups:
            cache.bind(group.name, np.zeros((cache.pages[group.name], 64), np.uint8))
        keys, index = _keys(list(range(17))), hk.EventIndex()
        cache.insert(keys)
        index.apply(cache.events())
        assert cache.offload(keys[:4]).result(30)
        assert cache.events() == []  # a copy elsewhere changes nothing here
        cache.evict(keys)
        gone = cache.events()
        assert {event.kind for event in gone} == {hk.EventKind.REMOVED}
        index.apply(gone)
        assert len(index) == 0
        verdict = cache.match(keys)
        assert cache.restore(verdict.plan).result(30)
        index.apply(cache.events())
        assert index.pages() == _there(cache, [keys]) != set()
        cache.close()


def test_a_flush_is_one_event_and_a_reset_too() -> None:
    cache = hk.HybridCache(_spec(hk.Identity("m", weights="1")), blocks=28)
    keys = _keys(list(range(16)), cache.spec)
    cache.insert(keys)
    assert len(cache.events()) > 3
    cache.update_identity(hk.Identity("m", weights="2"), on_change="flush")
    assert cache.events() == [hk.Event(hk.EventKind.CLEARED)]
    new = _keys(list(range(16)), cache.spec)
    cache.insert(new)
    cache.reset()
    cache.insert(new)
    events = cache.events()
    assert [event.kind for event in events].count(hk.EventKind.CLEARED) == 1
    assert events[0].kind is hk.EventKind.CLEARED and len(events) == 1 + len(_there(cache, [new]))


def test_an_index_that_was_lost_begins_anew() -> None:
    cache = hk.HybridCache(_spec(), blocks=28)
    keys = _keys(list(range(16)))
    cache.insert(keys)
    cache.events()
    index = hk.EventIndex()
    index.apply(cache.events(anew=True))
    assert index.pages() == _there(cache, [keys]) != set()
    assert cache.events() == []
    with pytest.raises(hk.ArgumentError):
        cache.events(anew=1)  # type: ignore[arg-type]


def test_a_removal_says_why_and_for_whom() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=64, pages={"kv": 4})
    first, second = (hk.block_keys(range(at, at + 64), 16) for at in (0, 1000))
    cache.insert(first)
    cache.events()
    cache.insert(second[:2])
    removed = [event for event in cache.events() if event.kind is hk.EventKind.REMOVED]
    assert [event.end_tokens for event in removed] == [64, 48]  # what ends last first
    for event in removed:
        assert event.reason is not None and event.reason.made_room_for == "kv"
        assert 0 <= event.reason.age_s < 60


def test_parents_come_before_what_continues_them() -> None:
    cache = hk.HybridCache(_spec(), blocks=40)
    keys = _keys(list(range(40)))
    cache.insert(keys)
    ends = [event.end_tokens for event in cache.events()]
    assert ends == sorted(ends, key=lambda end: end or 0)


def test_FC_193_the_log_holds_changes_only_and_replayed_it_is_the_index() -> None:
    cache = hk.HybridCache(_spec(), blocks=28)
    keys = _keys(list(range(16)))
    cache.insert(keys)
    index = hk.EventIndex()
    index.apply(cache.events())
    for _ in range(3):
        verdict = cache.match(keys)
        assert verdict.lease is not None
        verdict.lease.release()
    assert cache.events() == []
    assert index.pages() == _there(cache, [keys])
    cache.reset()
    assert cache.events() == [hk.Event(hk.EventKind.CLEARED)]


def test_FC_194_a_block_that_was_there_already_is_still_the_parent() -> None:
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64), blocks=64)
    keys = hk.block_keys(range(64), 16)
    cache.insert(keys, {"kv": [1]})
    cache.events()
    cache.insert(keys)
    stored = {event.key: event.parent for event in cache.events()}
    digests = [digest.tobytes() for digest in keys.digests]
    assert stored == {digests[0]: None, digests[2]: digests[1], digests[3]: digests[2]}
