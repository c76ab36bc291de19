# SPDX-License-Identifier: Apache-2.0
"""Question: what does a step of decoding cost from Python, for all running requests in one call?"""

from __future__ import annotations

import numpy as np
import pytest

import hybridkv as hk

BLOCK = 64


def spec_of(groups: int) -> hk.CacheSpec:
    history = hk.CacheGroup("full", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
    windows = (
        hk.CacheGroup(f"window{i}", hk.StateKind.WINDOW, hk.Window(128), page_bytes=64) for i in range(groups - 1)
    )
    return hk.CacheSpec(BLOCK, [history, *windows])


class Decoding:
    """Requests that decode side by side, one token a step; every step some of them begin a block."""

    longest = 4000

    def __init__(self, requests: int, groups: int) -> None:
        spec = spec_of(groups)
        blocks = requests * -(-self.longest // BLOCK)
        pages = {group.name: blocks for group in spec.groups}
        self.cache = hk.HybridCache(spec, blocks=blocks, pages=pages, admission=hk.Admission(step_tokens=BLOCK))
        self.tickets = [self.cache.admit(number, self.longest) for number in range(requests)]
        self.handles = np.array([ticket.handle for ticket in self.tickets])
        self.computed = 1 + np.arange(requests, dtype=np.int64) * 37 % BLOCK
        for number, (ticket, tokens) in enumerate(zip(self.tickets, self.computed.tolist(), strict=True)):
            ticket.grow(tokens)
            ticket.advance(tokens, np.full(tokens, number))
            ticket.grow(1)
        self.one = np.ones(requests, np.int32)
        self.starts = np.arange(requests + 1)
        self.ids = np.arange(requests, dtype=np.int32)
        self.out = np.empty((requests, groups, 1), np.int32)
        self.status = np.empty(requests, np.int32)

    def step(self) -> None:
        self.computed += 1
        self.cache.step(
            self.handles, self.one, self.computed, self.out, tokens=self.ids, starts=self.starts, status=self.status
        )

    def close(self) -> None:
        for ticket in self.tickets:
            ticket.close()


@pytest.mark.parametrize(("groups", "must", "aim"), [(1, None, None), (3, None, None), (6, 60, 12)])
def test_step_of_decoding(timer, smoke, groups, must, aim):
    requests = 32 if smoke else 1024
    decoding = Decoding(requests, groups)
    timer.record(f"step of {requests} requests, {groups} groups", decoding.step, must=must, aim=aim, trial_ms=2.0)
    assert not decoding.status.any()
    decoding.close()
    assert decoding.cache.metrics().pages["full"].held == 0
