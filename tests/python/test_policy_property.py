# SPDX-License-Identifier: Apache-2.0
"""The policy evicts what the naive definition of naive_policy.py says, on a real cache with small pools: random
prompts, tips, boundaries, leases, evictions behind its back, and whatever is kept.
"""

from __future__ import annotations

import os
import random
from copy import deepcopy
from itertools import product

import pytest

import hybridkv as hk
from hybridkv.policy import LruPolicy
from naive_policy import NaivePolicy, Page, Tokens

SEEDS = 600 if os.environ.get("HYBRIDKV_SOAK") == "1" else 12
STEPS = 50
UNIT = 4


def group(name: str, kind: str, coverage: object, block: int = UNIT, *, rebuildable: bool = False) -> hk.CacheGroup:
    state = hk.StateKind[kind]
    layers = (0,) if rebuildable else ()  # below the state beside it, or no replay could make it
    return hk.CacheGroup(
        name,
        state,
        coverage,  # type: ignore[arg-type]
        page_bytes=64,
        block_tokens=block,
        layers=layers,
        rebuildable=rebuildable,
    )


KV = group("kv", "COMPRESSED", hk.Prefix())
SPECS = {
    "window": (KV, group("swa", "WINDOW", hk.Window(7))),
    "blocks of their own": (
        group("kv", "COMPRESSED", hk.Prefix(), 8),
        group("index", "INDEXER", hk.Prefix()),
        group("swa", "WINDOW", hk.Window(10)),
        group("state", "TAIL", hk.Checkpoint(every=16), 8),
    ),
    "coarse steps": (group("kv", "COMPRESSED", hk.Prefix(), 8), group("state", "TAIL", hk.Checkpoint(), 8)),
    "history in coarse blocks": (
        group("kv", "COMPRESSED", hk.Prefix(), 8),
        group("swa", "WINDOW", hk.Window(10)),
        group("state", "TAIL", hk.Checkpoint(every=8)),
    ),
    "rebuildable": (
        KV,
        group("swa", "WINDOW", hk.Window(7), rebuildable=True),
        group("state", "TAIL", hk.Checkpoint()),
        group("chunk", "WINDOW", hk.Chunk(12)),
    ),
    "no history": (group("state", "TAIL", hk.Checkpoint()),),
    "homogeneous": (KV,),
}


class Scene:
    """A cache, its policy, the naive one, and a caller that makes the same calls to both."""

    def __init__(self, groups: tuple[hk.CacheGroup, ...], seed: int) -> None:
        self.random = random.Random(seed)
        self.spec = hk.CacheSpec(UNIT, groups)
        pages = {g.name: self.random.randint(6, 14) for g in groups}
        self.cache = hk.HybridCache(self.spec, blocks=self.random.choice((16, 40)), pages=pages, eviction="none")
        self.policy = LruPolicy(self.cache)
        self.naive = NaivePolicy(self.spec, min(g.block_tokens or UNIT for g in self.spec.groups))
        self.leases: list[hk.Lease] = []
        self.lost: set[Page] = set()  # in no tail, but pinned when that was looked at: they go with their history
        self.evicted = 0

    def keys(self, tokens: Tokens) -> hk.BlockKeys:
        return hk.block_keys(tokens, UNIT)

    def prompt(self) -> Tokens:
        units = [self.random.choice("AAB") for _ in range(self.random.randint(1, 6))]
        tokens = [ord(unit) for unit in units for _ in range(UNIT)]
        return (*tokens, *([ord(self.random.choice("AB"))] * self.random.choice((0, 0, 1, 2, 3))))

    def seen(self) -> tuple[set[Page], set[Page]]:
        """Pages that lie in the cache, and those of them that are pinned."""
        held, pinned = set(), set()
        for prefix in self.naive.known:
            for g in self.spec.groups:
                if not self.naive.is_tip(prefix) and len(prefix) % (g.block_tokens or UNIT):
                    continue
                info = self.cache.inspect(self.keys(prefix))[g.name][-1]
                if info.phase == "ready":
                    held.add((prefix, g.name))
                    if info.pins:
                        pinned.add((prefix, g.name))
        return held, pinned

    def make_room(self, pool: str, keep: list[Tokens], wanted: int) -> int:
        before, pinned = self.seen()
        retired = self.policy.make_room(pool, [self.keys(one) for one in keep], pages=wanted)
        gone = before - self.still(before)
        assert retired == len(gone)
        self.evicted += retired
        kept = self.naive.kept(keep)
        assert not {page for page in gone if page[0] in kept}
        pages = set(before)
        if pool not in self.naive.states:
            expected = [(self.naive, self.naive.evict_prefixes(pool, wanted, kept, pages, pinned))]
        else:
            free = self.naive.outside(kept, pages)
            self.lost -= self.naive.claimed()  # known when that boundary goes
            first = gone & free - pinned
            # What nobody told of is known again once it was in a tail, and is found at last, when all tails have gone.
            found = {sum(page[1] == pool for page in one) for one in (first, first - self.lost)}
            rest = free - pinned - self.lost
            assert rest <= first or max(found) >= wanted
            expected = []
            for number, hidden in product(found, (set(), self.lost)):
                naive = deepcopy(self.naive)
                more = naive.evict_states(pool, wanted - number, kept, pages - first, pinned | hidden)
                expected.append((naive, first | more))
        matching = [naive for naive, pages in expected if pages == gone]
        assert matching, (pool, wanted, keep, gone, [pages for _, pages in expected])
        self.naive = matching[0]
        self.lost |= self.naive.outside(kept, before - gone) & pinned
        assert len(self.policy) == len(self.naive.known)
        return retired

    def still(self, pages: set[Page]) -> set[Page]:
        return {
            (prefix, name) for prefix, name in pages if self.cache.inspect(self.keys(prefix))[name][-1].phase == "ready"
        }

    # -- steps -------------------------------------------------------------------------------------

    def store(self) -> None:
        tokens = self.prompt()
        keys = self.keys(tokens)
        step = self.spec.boundary_tokens
        ends = [end for end in range(step, len(tokens) + 1, step) if self.random.random() < 0.4]
        if len(tokens) % UNIT:
            ends.append(len(tokens))
        needs = [self.spec.requirements(end) for end in ends]
        groups: dict[str, object] = dict.fromkeys(self.naive.history, True)
        for name in self.naive.states:
            block = self.spec.group(name).block_tokens or UNIT
            whole = len(tokens) // block
            fresh = tokens[: whole * block] not in self.naive.known and self.random.random() < 0.3
            extra = {whole - 1} if whole and fresh else set()
            tip = len(tokens) % UNIT != 0
            blocks = {block for need in needs for block in need[name].blocks if block < whole + tip}
            groups[name] = sorted(blocks | extra)
        keep = [tokens] if self.random.random() < 0.7 else []
        for _ in range(20):
            try:
                self.cache.insert(keys, groups)  # type: ignore[arg-type]
                break
            except hk.OutOfPages as short:
                if not self.make_room(short.pool, keep, short.needed - short.free):
                    return
        else:
            return
        for end in ends:
            self.policy.stored(keys, end)
            self.naive.stored(tokens, tokens[:end])
        self.policy.stored(keys, len(tokens), states=False)
        self.naive.stored(tokens, tokens, states=False)

    def resume(self) -> None:
        tokens = (*self.prompt(), 1)
        verdict = self.cache.match(self.keys(tokens))
        if verdict.lease is None:
            return
        self.policy.touch(self.keys(tokens), verdict.usable_tokens)
        self.naive.touch(tokens[: verdict.usable_tokens])
        if len(self.leases) < 2:
            self.leases.append(verdict.lease)
        else:
            verdict.lease.release()

    def release(self) -> None:
        if self.leases:
            self.leases.pop(self.random.randrange(len(self.leases))).release()

    def touch(self) -> None:
        tokens = self.prompt()
        self.policy.touch(self.keys(tokens), len(tokens), states=False)
        self.naive.touch(tokens, states=False)

    def room(self) -> None:
        pool = self.random.choice([*(g.name for g in self.spec.groups), "blocks"])
        keep = [self.prompt() for _ in range(self.random.choice((0, 0, 1, 2)))]
        self.make_room(pool, keep, self.random.choice((1, 1, 2, 5)))

    def behind_its_back(self) -> None:
        keys = self.keys(self.prompt())
        self.cache.evict(keys[self.random.randint(0, len(keys)) :])


@pytest.mark.parametrize("name", SPECS)
def test_it_evicts_what_the_definition_says(name: str) -> None:
    evicted = 0
    for seed in range(SEEDS):
        scene = Scene(SPECS[name], seed)
        steps = [scene.store] * 6 + [scene.resume] * 2 + [scene.release] * 2 + [scene.touch, scene.room]
        steps += [scene.behind_its_back] * (seed % 2)
        for number in range(STEPS):
            try:
                scene.random.choice(steps)()
            except AssertionError as error:
                raise AssertionError(f"{name}, seed {seed}, step {number}: {error}") from error
        for lease in scene.leases:
            lease.release()
        evicted += scene.evicted
    assert evicted > SEEDS * 10
