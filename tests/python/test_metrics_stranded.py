# SPDX-License-Identifier: Apache-2.0
"""Stranded pages: those that no usable length needs, against an oracle that asks for every length of every prefix."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import hybridkv as hk
from contract_support import Rules, full_swa, keys_of, make_cache, put, tokens
from hybridkv.metrics import StrandedPages

UNIT = 4
ALIGNED: dict[str, Rules] = {
    "uniform": {"full": (hk.Prefix(), 4), "swa": (hk.Window(10), 4), "state": (hk.Checkpoint(), 4)},
    "two of history": {"a": (hk.Prefix(), 4), "b": (hk.Prefix(), 8), "swa": (hk.Window(9), 8)},
    "chunk": {"full": (hk.Prefix(), 4), "chunk": (hk.Chunk(12), 4)},
}
BETWEEN: dict[str, Rules] = {
    "states between": {"full": (hk.Prefix(), 16), "swa": (hk.Window(9), 4), "state": (hk.Checkpoint(every=32), 8)},
    "odd blocks": {"a": (hk.Prefix(), 8), "b": (hk.Prefix(), 12), "swa": (hk.Window(13), 4)},
}
"""Blocks of states end between two blocks of history: nothing tells whose they are where prefixes part there."""


def counted(cache: Any) -> dict[str, int]:
    return {name: found.pages for name, found in cache.stranded().items()}


def by_asking(cache: Any, prefixes: Sequence[Any]) -> dict[str, int]:
    """The same from outside: cached pages of all prefixes, less those that some boundary of theirs needs."""
    cached: dict[str, set[int]] = {g.name: set() for g in cache.spec.groups}
    needed: dict[str, set[int]] = {g.name: set() for g in cache.spec.groups}
    for keys in prefixes:
        seen = cache.inspect(keys)
        verdict = cache.match(keys, limit=keys.tokens + 1)
        boundaries = verdict.boundaries.tolist()
        if verdict.lease is not None:
            verdict.lease.cancel()
        for name, blocks in seen.items():
            cached[name] |= {b.page for b in blocks if b.phase in ("ready", "ready with copy") and b.pins == 0}
        for t in boundaries:
            for name, need in cache.spec.requirements(t).items():
                needed[name] |= {seen[name][i].page for i in need.blocks if i < len(seen[name])}
    return {name: len(pages - needed[name]) for name, pages in cached.items()}


@pytest.mark.parametrize("shape", ALIGNED)
def test_every_page_that_no_boundary_needs_is_stranded(shape: str) -> None:
    dice = random.Random(shape)
    for _ in range(3):
        cache, prefixes = make_cache(UNIT, ALIGNED[shape], blocks=512), []
        for _ in range(30):
            _change(cache, dice, prefixes, tips=True)
            assert counted(cache) == by_asking(cache, prefixes)
        assert cache.verify()


@pytest.mark.parametrize("shape", BETWEEN)
def test_what_is_told_is_stranded_wherever_blocks_end(shape: str) -> None:
    dice, exact = random.Random(shape), 0
    for _ in range(3):
        cache, prefixes = make_cache(UNIT, BETWEEN[shape], blocks=512), []
        for _ in range(20):
            _change(cache, dice, prefixes, tips=False)
            found, wanted = counted(cache), by_asking(cache, prefixes)
            assert all(found[name] <= wanted[name] for name in found)
            exact += found == wanted
            assert len(prefixes) > 1 or found == wanted, "one prefix alone"
    assert exact > 20


def _change(cache: Any, dice: random.Random, prefixes: list[Any], *, tips: bool) -> None:
    """Store a prefix, a branch of one or parts of one, or evict some of one."""
    if prefixes and dice.random() < 0.5:
        keys = dice.choice(prefixes)
        groups = {}
        for group in cache.spec.groups:
            count = keys.tokens // (group.block_tokens or UNIT)
            gone = [i for i in range(count) if dice.random() < 0.2]
            if gone and dice.random() < 0.6:
                groups[group.name] = gone
        if groups:
            cache.evict(keys, groups)
        if dice.random() < 0.3:
            cache.insert(keys)  # what was evicted comes back, in other descriptors perhaps
        return
    shared = dice.choice(prefixes).tokens if prefixes and dice.random() < 0.6 else 0
    shared -= shared % 48 if shared else 0
    base = list(range(shared))
    own = dice.randrange(1, 18) * UNIT + (dice.randrange(UNIT) if tips else 0)
    keys = hk.block_keys([*base, *(dice.randrange(1000, 9000) for _ in range(own))], UNIT)
    cache.insert(keys)
    prefixes.append(keys)


def test_history_without_windows_and_windows_without_history() -> None:
    cache = full_swa()
    keys = keys_of(96)
    cache.insert(keys)
    assert cache.stranded() == {"full": StrandedPages(0, 0), "swa": StrandedPages(0, 0)}
    cache.evict(keys, {"swa": [5]})  # the last window page: 80 can be resumed at, 96 cannot
    assert cache.stranded() == {"full": StrandedPages(1, 64), "swa": StrandedPages(0, 0)}
    cache.evict(keys, {"swa": [2]})  # windows of two pages: 32 is the longest length left, and 80
    assert counted(cache) == {"full": 1, "swa": 0}
    cache.evict(keys, {"full": [0]})
    assert counted(cache) == {"full": 5, "swa": 4}
    cache.insert(keys[:1], {"full": True})
    assert counted(cache) == {"full": 1, "swa": 0}, "a prefix that came back in another place"


def test_a_page_that_is_pinned_is_not_stranded() -> None:
    cache = full_swa()
    keys = keys_of(64)
    cache.insert(keys)
    with cache.match(keys_of(65)).lease:
        cache.evict(keys, {"swa": True})
        assert counted(cache)["full"] == 0
    cache.evict(keys, {"swa": True})
    assert counted(cache) == {"full": 4, "swa": 0}


def test_what_can_be_computed_again_strands_nothing() -> None:
    groups = [
        hk.CacheGroup("full", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64),
        hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(33), page_bytes=64, rebuildable=True),
    ]
    cache = hk.HybridCache(hk.CacheSpec(16, groups), blocks=64)
    cache.insert(keys_of(96))
    cache.evict(keys_of(96), {"swa": True})
    assert counted(cache) == {"full": 0, "swa": 0}
    put(cache, keys_of(96), {"swa": [3]})
    assert counted(cache) == {"full": 0, "swa": 0}, "a page that is there is used where it lies in a window"


def test_a_cache_that_notes_nothing_cannot_tell() -> None:
    with pytest.raises(hk.ArgumentError, match=r"^eviction: "):
        full_swa(eviction="none").stranded()
    with pytest.raises(hk.ArgumentError, match=r"^eviction: "):
        make_cache(UNIT, {"swa": (hk.Window(10), 4)}).stranded()
    cache = full_swa()
    cache.close()
    with pytest.raises(hk.Closed):
        cache.stranded()


def test_stranded_pages_are_looked_for_beside_writers() -> None:
    cache = full_swa(blocks=64)
    over = threading.Event()

    def write(seed: int) -> None:
        dice = random.Random(seed)
        while not over.is_set():
            keys = hk.block_keys(tokens(16 * dice.randrange(1, 8), start=dice.randrange(3)), 16)
            cache.insert(keys)
            cache.evict(keys, {dice.choice(("full", "swa")): True})

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
    for writer in writers:
        writer.start()
    for _ in range(50):
        assert all(0 <= found.pages <= 64 for found in cache.stranded().values())
    over.set()
    for writer in writers:
        writer.join()
    assert cache.verify()
