# SPDX-License-Identifier: Apache-2.0
"""Look-ups of a hybrid prefix in vLLM: KVCacheManager with a full and a window-128 group at block 16.

`hit` is get_computed_blocks with the request's hashes ready, which pins nothing; `hit_pinned` goes on with
allocate_slots for one token and free. SHA-256 is the hash, as is vLLM's default.
"""

from __future__ import annotations

import torch
import trial
import vllm
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request

init_none_hash(sha256)
_HASHER = get_request_block_hasher(trial.UNIT_TOKENS, sha256)


def _request(name: str, tokens: list[int]) -> Request:
    return Request(name, tokens, SamplingParams(max_tokens=1), None, block_hasher=_HASHER)


def _manager(tokens: int) -> KVCacheManager:
    page = {"block_size": trial.UNIT_TOKENS, "num_kv_heads": 1, "head_size": 1, "dtype": torch.bfloat16}
    config = KVCacheConfig(
        num_blocks=8 * tokens // trial.UNIT_TOKENS,
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec(["full"], FullAttentionSpec(**page)),
            KVCacheGroupSpec(["window"], SlidingWindowSpec(**page, sliding_window=trial.WINDOW_TOKENS)),
        ],
    )
    return KVCacheManager(
        config,
        max_model_len=2 * tokens,
        scheduler_block_size=trial.UNIT_TOKENS,
        hash_block_size=trial.UNIT_TOKENS,
    )


def _store(manager: KVCacheManager, name: str, tokens: list[int]) -> list[int]:
    request = _request(name, tokens)
    blocks, computed, _ = manager.get_computed_blocks(request)
    if manager.allocate_slots(request, len(tokens) - computed, computed, blocks) is None:
        raise SystemExit("the pool is too small")
    window = [block.block_id for block in manager.coordinator.single_type_managers[1].req_to_blocks[name]]
    manager.free(request)
    return window


def _decode() -> trial.Call:
    """allocate_slots of one token for each running request, as the scheduler calls it at every step."""
    manager = _manager(trial.DECODING * trial.DECODE_TOKENS)
    running: list[Request] = []

    def start() -> None:
        for request in running:
            manager.free(request)
        running[:] = [_request(f"r{i}", [i, *range(1, 1 + i * 37 % trial.UNIT_TOKENS)]) for i in range(trial.DECODING)]
        for request in running:
            blocks, computed, _ = manager.get_computed_blocks(request)
            manager.allocate_slots(request, request.num_tokens - computed, computed, blocks)
            request.num_computed_tokens = request.num_tokens

    def step() -> None:
        if not running or running[0].num_tokens >= trial.DECODE_TOKENS:
            start()
        for request in running:
            request.append_output_token_ids(7)
            if manager.allocate_slots(request, 1) is None:
                raise SystemExit("the pool is too small")
            request.num_computed_tokens += 1

    return step


def build(tokens: int, case: str) -> trial.Call:
    """A manager that holds `tokens`, and the call that `case` times."""
    if case == "decode":
        return _decode()
    manager = _manager(tokens)
    trial.expect("coordinator", type(manager.coordinator).__name__, "HybridKVCacheCoordinator")
    asked = trial.prompt(tokens)
    window = _store(manager, "cached", asked[:tokens])
    if case == "hit_forked":
        for number, fork in enumerate(trial.forks(tokens)):
            _store(manager, f"fork {number}", fork)
    request = _request("asked", trial.unknown(tokens) if case == "miss" else asked)
    if case == "false_hit":
        manager.block_pool.evict_blocks(set(window) - {manager.block_pool.null_block.block_id})
        trial.expect("false hit", manager.get_computed_blocks(request)[1:], (0, tokens))
    elif case == "miss":
        trial.expect("miss", manager.get_computed_blocks(request)[1:], (0, 0))
    else:
        trial.expect(case, manager.get_computed_blocks(request)[1], tokens)

    def look_up() -> object:
        return manager.get_computed_blocks(request)

    def pinned(asking: Request = request, *, ids: bool = False) -> None:
        blocks, computed, _ = manager.get_computed_blocks(asking)
        manager.allocate_slots(asking, 1, computed, blocks)
        if ids:
            blocks.get_block_ids()
        manager.free(asking)

    if case == "from_tokens":
        return lambda: pinned(_request("asked", asked))
    if case == "hit_ids":
        return lambda: pinned(ids=True)
    return pinned if case == "hit_pinned" else look_up


if __name__ == "__main__":
    torch.set_num_threads(1)  # a trial has one core; a second thread would wait for the other jobs
    trial.main("vllm", vllm.__version__, build)
