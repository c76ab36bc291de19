# SPDX-License-Identifier: Apache-2.0
"""What cases of transfers share: a store that breaks, prefixes that rest in a tier alone, and how a cache sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hybridkv as hk
from contract_support import check_counters
from hybridkv.tiers import PartLabel, RecordKey, RecordKind
from tier_support import DictTier
from transfer_world import PAGE, UNIT, World

KIND = hk.StateKind


class BadTier(DictTier):
    """A store of which some records cannot be had: `fails` says which, and how."""

    broken: frozenset[tuple[RecordKind, bytes]] = frozenset()
    error: BaseException | None = None  # None: a byte of the last part is another

    def load(self, key: RecordKey, parts: Sequence[PartLabel]) -> Any:
        found = super().load(key, parts)
        if found is None or (key.kind, key.digest) not in self.broken:
            return found
        if self.error is not None:
            raise self.error
        envelope, buffers = found
        last = bytearray(buffers[-1])
        last[-1] ^= 1
        return envelope, [*buffers[:-1], bytes(last)]


def history_spec() -> hk.CacheSpec:
    """History alone, so that every block is a length to resume at."""
    group = hk.CacheGroup("kv", KIND.COMPRESSED, hk.Prefix(), page_bytes=PAGE, layers=("0", "1"))
    return hk.CacheSpec(UNIT, [group], identity=hk.Identity(model="small"))


def stored(tier: hk.Tier, tokens: int = 16, **options: Any) -> tuple[World, hk.BlockKeys]:
    """A world whose prefix rests in the tier and nowhere else."""
    world = World(tier, **options)
    keys = world.keys(tokens)
    world.write(keys)
    assert world.cache.offload(keys).result(10).ok
    world.forget(keys)
    return world, keys


def ask(world: World, keys: hk.BlockKeys) -> hk.Verdict:
    """Match up to the end of the keys, and let go of what it holds."""
    verdict = world.cache.match(keys, limit=keys.tokens + 1)
    if verdict.lease is not None:
        verdict.lease.release()
    return verdict


def free(world: World) -> dict[str, int]:
    return {name: counts.free for name, counts in world.cache.metrics().pages.items()}


def phases(world: World, keys: hk.BlockKeys, group: str) -> list[str]:
    return [block.phase for block in world.cache.inspect(keys)[group]]


def finish(world: World, tier: hk.Tier) -> None:
    """Nothing is left on its way, counted twice, or held."""
    world.expect_idle()
    check_counters(world.cache)
    world.cache.close()
    tier.close()
