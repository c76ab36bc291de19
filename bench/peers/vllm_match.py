# SPDX-License-Identifier: Apache-2.0
"""vLLM's KVCacheManager.get_computed_blocks beside our match: run by an interpreter that has vLLM.

Two groups (full, sliding window of 128), block 16, hashes ready. Prints JSON: microseconds per call, min of
several trials. Not one byte of KV cache is allocated; no GPU is needed.
"""

from __future__ import annotations

import gc
import inspect
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, make_block_hash_with_group_id
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request

BLOCK = 16


def accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Leave out what this release of vLLM does not take."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in known}


def manager_for(blocks: int) -> KVCacheManager:
    page = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    groups = [
        KVCacheGroupSpec(["full"], FullAttentionSpec(**page)),
        KVCacheGroupSpec(["window"], SlidingWindowSpec(**page, sliding_window=128)),
    ]
    config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    options = {
        "max_model_len": 1 << 21,
        "enable_caching": True,
        "hash_block_size": BLOCK,
        "scheduler_block_size": BLOCK,
    }
    return KVCacheManager(config, **accepted(KVCacheManager.__init__, options))


def request_of(name: str, ids: list[int]) -> Request:
    sampling = SamplingParams(max_tokens=17)
    sampling.update_from_generation_config({}, 100)
    options = {
        "request_id": name,
        "prompt_token_ids": ids,
        "sampling_params": sampling,
        "pooling_params": None,
        "mm_features": None,
        "eos_token_id": 100,
        "block_hasher": get_request_block_hasher(BLOCK, sha256),
    }
    return Request(**accepted(Request.__init__, options))


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
    init_none_hash(sha256)
    figures: dict[str, float] = {}
    for tokens in sizes:
        manager = manager_for(4 * tokens // BLOCK + 64)
        ids = [(7 * i) % 50_000 for i in range(tokens)]
        first = request_of("first", ids)
        blocks, computed = manager.get_computed_blocks(first)[:2]
        assert computed == 0
        assert manager.allocate_slots(first, tokens, 0, blocks) is not None
        manager.free(first)
        again, other = request_of("again", [*ids, 1]), request_of("other", [1, *ids])
        assert manager.get_computed_blocks(again)[1] == tokens
        figures[f"hit_{tokens}_us"] = best_us(lambda: manager.get_computed_blocks(again))  # noqa: B023
        assert manager.get_computed_blocks(other)[1] == 0
        figures[f"miss_{tokens}_us"] = best_us(lambda: manager.get_computed_blocks(other))  # noqa: B023
        pool = manager.block_pool
        for block_hash in again.block_hashes:  # every window block goes: a false hit for a hash-hit rule
            for block in pool.get_cached_block(block_hash, [1]) or ():
                pool.cached_block_hash_to_block.pop(make_block_hash_with_group_id(block_hash, 1), block.block_id)
        assert manager.get_computed_blocks(again)[1] == 0
        figures[f"false_hit_{tokens}_us"] = best_us(lambda: manager.get_computed_blocks(again))  # noqa: B023
    print(json.dumps(figures))


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [8192, 65536])
