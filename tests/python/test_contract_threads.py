# SPDX-License-Identifier: Apache-2.0
"""Many threads on one cache: a lease holds what was written there, and every page is accounted for."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import check_conserved, check_counters, check_verdict, group, pools, tokens

CAPACITY = {"full": 48, "swa": 40}
PROMPTS = [hk.block_keys(tokens(97, start=1000 * i), 16) for i in range(6)]


@pytest.fixture(autouse=True)
def short_switches() -> Iterator[None]:
    """Let threads change places often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Party:
    """One thread of random calls; every page it publishes carries the name of its block."""

    def __init__(self, cache: Any, bytes_of: dict[str, np.ndarray], seed: int, rounds: int) -> None:
        self.cache, self.bytes_of, self.rng, self.rounds = cache, bytes_of, random.Random(seed), rounds
        self.hits = self.refused = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self.rounds):
                prompt = self.rng.randrange(len(PROMPTS))
                self.rng.choice((self.write, self.read, self.read, self.drop))(prompt)
        except BaseException as error:
            self.failure = error

    def write(self, prompt: int) -> None:
        try:
            fill = self.cache.reserve(PROMPTS[prompt][: self.rng.randrange(1, 7)])
        except hk.OutOfPages:
            self.refused += 1
            return
        for name, pool in self.bytes_of.items():
            for block, page in enumerate(np.asarray(fill.page_ids(name)).tolist()):
                if page >= 0:
                    pool[page] = 100 * prompt + block + 1
        if self.rng.random() < 0.8:
            fill.publish()
        fill.abort()

    def read(self, prompt: int) -> None:
        v = self.cache.match(PROMPTS[prompt])
        check_verdict(v)
        if v.lease is None:
            return
        self.hits += 1
        for name, pool in self.bytes_of.items():
            for block, page in enumerate(np.asarray(v.lease.page_ids(name)).tolist()):
                if page >= 0:
                    assert set(pool[page].tolist()) == {100 * prompt + block + 1}
        v.lease.release()

    def drop(self, prompt: int) -> None:
        self.cache.evict(PROMPTS[prompt], groups={self.rng.choice(("full", "swa")): [self.rng.randrange(6)]})


def test_what_a_lease_holds_is_what_was_written_there() -> None:
    spec = hk.CacheSpec(16, [group("full", hk.Prefix()), group("swa", hk.Window(20))])
    cache = hk.HybridCache(spec, blocks=64, pages=CAPACITY, verify="off")
    bytes_of = {name: np.zeros((count, 8), np.int64) for name, count in CAPACITY.items()}
    for name, pool in bytes_of.items():
        cache.bind(name, pool)
    parties = [Party(cache, bytes_of, seed, 400) for seed in range(4)]
    threads = [threading.Thread(target=party.run) for party in parties]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert [party.failure for party in parties] == [None] * len(parties)
    assert sum(party.hits for party in parties) > 20
    check_counters(cache)
    check_conserved(cache, CAPACITY)
    assert cache.metrics().pending == 0
    for keys in PROMPTS:
        cache.evict(keys[:6])
    assert {name: counts[0] for name, counts in pools(cache).items()} == CAPACITY
    cache.reset()
