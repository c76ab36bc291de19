# SPDX-License-Identifier: Apache-2.0
"""SGLang's UnifiedRadixCache.match_prefix beside our match: run by an interpreter that has SGLang.

Full and sliding-window (128) components, page 16, on the CPU, with the tree core that SGLang chooses (the Rust one
in the releases looked at). Prints JSON: microseconds per call, min of several trials. SGLang does not hash; its
match alone is timed, its locks (our lease) are not, which favours it.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from array import array
from collections.abc import Callable

import torch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

PAGE = 16


def cache_for(tokens: int) -> tuple[UnifiedRadixCache, SWATokenToKVPoolAllocator]:
    common = {"page_size": PAGE, "dtype": torch.bfloat16, "device": "cpu"}
    room = 2 * tokens + 4096
    pool = SWAKVPool(
        size=room, size_swa=room, head_num=1, head_dim=1, swa_attention_layer_ids=[1], full_attention_layer_ids=[0],
        **common,
    )  # fmt: skip
    allocator = SWATokenToKVPoolAllocator(size=room, size_swa=room, kvcache=pool, need_sort=False, **common)
    requests = ReqToTokenPool(size=2, max_context_len=room, device="cpu", enable_memory_saver=False)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=requests,
        token_to_kv_pool_allocator=allocator,
        page_size=PAGE,
        sliding_window_size=128,
        tree_components=(ComponentType.FULL, ComponentType.SWA),
    )
    return UnifiedRadixCache(params=params), allocator


def best_us(call: Callable[[], object], trials: int = 15) -> float:
    start = time.perf_counter()
    call()
    times = max(1, int(0.02 / max(1e-7, time.perf_counter() - start)))
    best = float("inf")
    gc.disable()
    for _ in range(trials):
        start = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter() - start) / times)
        time.sleep(0.01)
    gc.enable()
    return best * 1e6


def main(sizes: list[int]) -> None:
    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy", page_size=PAGE))
    figures: dict[str, float] = {}
    for tokens in sizes:
        cache, allocator = cache_for(tokens)
        ids = [(7 * i) % 50_000 for i in range(tokens)]
        slots = allocator.alloc(tokens)
        assert slots is not None
        cache.insert(InsertParams(key=RadixKey(array("q", ids)), value=slots))
        known = MatchPrefixParams(key=RadixKey(array("q", [*ids, 1])))
        other = MatchPrefixParams(key=RadixKey(array("q", [1, *ids])))
        assert len(cache.match_prefix(known).device_indices) == tokens
        figures[f"hit_{tokens}_us"] = best_us(lambda: cache.match_prefix(known))  # noqa: B023
        assert len(cache.match_prefix(other).device_indices) == 0
        figures[f"miss_{tokens}_us"] = best_us(lambda: cache.match_prefix(other))  # noqa: B023
        cache.evict(EvictParams(num_tokens=0, swa_num_tokens=tokens))
        if len(cache.match_prefix(known).device_indices) == 0:
            figures[f"false_hit_{tokens}_us"] = best_us(lambda: cache.match_prefix(known))  # noqa: B023
    print(json.dumps(figures))


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [8192, 65536])
