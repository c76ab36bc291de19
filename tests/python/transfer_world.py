# SPDX-License-Identifier: Apache-2.0
"""A small hybrid model over numpy pools whose pages tell whose they are, and a cache over a tier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import hybridkv as hk

UNIT = 4
LAYERS = 2
PAGE = 96


def spec(**changes: Any) -> hk.CacheSpec:
    """History, its indexer, a window of 6 tokens (2 blocks) and a rolling state; two layers each."""
    kind = hk.StateKind
    groups = [
        hk.CacheGroup("kv", kind.COMPRESSED, hk.Prefix(), page_bytes=PAGE, layers=("0", "1")),
        hk.CacheGroup("idx", kind.INDEXER, hk.Prefix(), page_bytes=32, layers=("0", "1"), in_step_with="kv"),
        hk.CacheGroup("swa", kind.WINDOW, hk.Window(6), page_bytes=PAGE, layers=("0", "1"), **changes),
        hk.CacheGroup("tail", kind.TAIL, hk.Checkpoint(), page_bytes=64, layers=("0", "1")),
    ]
    return hk.CacheSpec(UNIT, groups, identity=hk.Identity(model="small"))


class World:
    """A cache with bound pools; `layered` pools have an array a layer, others one array for both."""

    def __init__(
        self,
        tier: hk.Tier | None,
        *,
        of: hk.CacheSpec | None = None,
        blocks: int = 64,
        pages: Mapping[str, int] | None = None,
        layered: bool = True,
        **options: Any,
    ) -> None:
        self.spec = spec() if of is None else of
        self.cache = hk.HybridCache(self.spec, blocks=blocks, pages=pages, tier=tier, verify="off", **options)
        self.pools: dict[str, list[npt.NDArray[np.uint8]]] = {}
        for group in self.spec.groups:
            rows = self.cache.pages[group.name]
            size, arrays = (group.page_bytes, LAYERS) if layered else (group.page_bytes * LAYERS, 1)
            self.pools[group.name] = [np.full((rows, size), 0xEE, np.uint8) for _ in range(arrays)]
            self.cache.bind(group.name, self.pools[group.name] if layered else self.pools[group.name][0])

    def keys(self, tokens: int, first: int = 1) -> hk.BlockKeys:
        return hk.block_keys(range(first, first + tokens), UNIT, identity=self.spec.identity)

    def page(self, group: str, page: int) -> npt.NDArray[np.uint8]:
        """The bytes of a page of all layers, one after another."""
        return np.concatenate([pool[page] for pool in self.pools[group]])

    def write(self, keys: hk.BlockKeys, groups: Any = None) -> None:
        """Publish every block of the keys, a tip's too, each byte of a page told by key, group and place."""
        fill = self.cache.reserve(keys, groups=groups)
        for group in self.spec.groups:
            for block, page in enumerate(fill.page_ids(group.name)):
                if page < 0:
                    continue
                content = expected(keys, group, block, keys.tokens)
                at = 0
                for pool in self.pools[group.name]:
                    pool[page] = content[at : at + pool.shape[1]]
                    at += pool.shape[1]
        fill.publish(groups)

    def forget(self, keys: hk.BlockKeys, groups: Any = None) -> int:
        """Evict, and paint over what is free, so that old bytes cannot pass for restored ones."""
        gone = self.cache.evict(keys, groups)
        if self.cache.metrics().pages["kv"].cached == 0:
            for pools in self.pools.values():
                for pool in pools:
                    pool[:] = 0xEE
        return gone

    def check(self, keys: hk.BlockKeys, lease: hk.Lease) -> int:
        """Every byte of every page that the lease holds is what was written; returns the pages looked at."""
        seen = 0
        for group in self.spec.groups:
            for block, page in enumerate(lease.page_ids(group.name)):
                if page < 0:
                    continue
                wanted = expected(keys, group, block, lease.tokens)
                assert np.array_equal(self.page(group.name, page), wanted), (group.name, block)
                seen += 1
        return seen

    def reuse(self, keys: hk.BlockKeys) -> int:
        """Match, check every byte, release; returns the usable tokens."""
        verdict = self.cache.match(keys, limit=keys.tokens + 1)
        if verdict.lease is None:
            return 0
        with verdict.lease as lease:
            assert self.check(keys, lease) > 0
        return verdict.usable_tokens

    def expect_idle(self) -> None:
        """Nothing on its way, every page free or cached, look-ups conserved."""
        found = self.cache.metrics()
        for counts in found.pages.values():
            assert counts.filling == counts.held == 0, found.pages
        outcomes = found.misses + found.false_hits_total + found.effective_hits + found.pending + found.withdrawn
        assert found.lookups == outcomes
        assert self.cache.verify()


def expected(keys: hk.BlockKeys, group: hk.CacheGroup, block: int, tokens: int) -> npt.NDArray[np.uint8]:
    """What a page of a block holds, of a prefix of so many tokens: its last block may be a tip's."""
    if (block + 1) * UNIT <= tokens:
        name = keys.digests[block].tobytes()
    else:
        name = keys._core.tip_key(block, tokens % UNIT)
    seed = int.from_bytes(name[:7], "little") * 8 + len(group.name)
    return np.random.default_rng(seed).integers(0, 256, group.total_page_bytes, np.uint8)
