# SPDX-License-Identifier: Apache-2.0
"""Question: what does it cost to route a step, to check a graph before its replay, and to write the tables it reads?"""

from __future__ import annotations

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.graph import Replay, Staging, Topology

BLOCK, LONGEST = 64, 8192


class Decoding:
    """Requests that decode side by side, with tables of three groups and a pool for each layer."""

    def __init__(self, requests: int, layers: int) -> None:
        kinds = hk.StateKind
        groups = [
            hk.CacheGroup("full", kinds.COMPRESSED, hk.Prefix(), page_bytes=64),
            hk.CacheGroup("index", kinds.INDEXER, hk.Prefix(), page_bytes=64),
            hk.CacheGroup("window", kinds.WINDOW, hk.Window(128), page_bytes=64),
        ]
        spec = hk.CacheSpec(BLOCK, groups)
        blocks = requests * LONGEST // BLOCK
        pages = {group.name: blocks for group in groups}
        self.cache = hk.HybridCache(spec, blocks=2 * blocks, pages=pages)
        self.pools = {group.name: [np.zeros((blocks + 1, 64), np.uint8) for _ in range(layers)] for group in groups}
        self.staging = Staging(
            spec,
            max_blocks={"full": LONGEST // BLOCK, "index": LONGEST // BLOCK, "window": 4},
            padding=blocks,
            buckets=(requests,),
            compact=["window"],
            cache=self.cache,
        )
        self.topology = Topology.capture(self.pools, spec, staging=self.staging, cache=self.cache)
        self.tickets = [self.cache.admit(number, LONGEST) for number in range(requests)]
        for number, ticket in enumerate(self.tickets):
            tokens = 1 + number * 37 % (LONGEST - 2)
            ticket.grow(tokens)
            ticket.advance(tokens, np.full(tokens, number))
            ticket.grow(1)

    def close(self) -> None:
        for ticket in self.tickets:
            ticket.close()


@pytest.mark.parametrize("layers", [1, 61])
@pytest.mark.parametrize("what", ["check", "route", "update"])
def test_a_step_of_captured_graphs(timer, smoke, what, layers):
    requests = 4 if smoke else 64
    decoding = Decoding(requests, layers)
    topology, staging, tickets = decoding.topology, decoding.staging, decoding.tickets
    calls = {
        "check": topology.check,
        "route": lambda: topology.route(tickets),
        "update": lambda: staging.update(tickets),
    }
    assert calls["route"]() == Replay(requests, requests)
    timer.record(f"{what}, {requests} requests, {len(topology.buffers)} buffers", calls[what], trial_ms=2.0)
    if what == "update":
        assert staging.buffers()["lengths"].tolist() == [ticket.grown_tokens for ticket in tickets]
    decoding.close()
