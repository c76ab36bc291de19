# SPDX-License-Identifier: Apache-2.0
"""Look-ups of a hybrid prefix in SGLang: UnifiedRadixCache (Rust core) with Full + SWA-128 at page 16.

`hit` is match_prefix, which pins nothing; `hit_pinned` goes on with lock and unlock; `hit_ids` reads the
indices of the full group's slots too. SGLang hashes nothing: `from_tokens` is `hit_pinned` with its key made.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import sys
import types
from array import array
from unittest.mock import MagicMock


class _Stub(types.ModuleType):
    __path__: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> MagicMock:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


def _stand_in_for_torchvision() -> None:
    """Model configurations import torchvision, the caches never use it: it need not be installed."""
    if importlib.util.find_spec("torchvision") is not None:
        return
    from transformers.utils import import_utils

    import_utils.is_torchvision_available()  # remembers that it is absent before the stand-in is there
    names = ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2")
    for name in (f"torchvision{part}" for part in names):
        stub = _Stub(name)
        stub.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = stub


_stand_in_for_torchvision()

import torch  # noqa: E402
import trial  # noqa: E402
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool  # noqa: E402
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402


class _Cache:
    """A cache on the CPU with pools of one head of one element."""

    def __init__(self, slots: int) -> None:
        sizes = {"size": slots, "size_swa": slots, "page_size": trial.UNIT_TOKENS, "dtype": torch.bfloat16}
        layers = {"full_attention_layer_ids": [0], "swa_attention_layer_ids": [1]}
        pool = SWAKVPool(**sizes, **layers, head_num=1, head_dim=1, device="cpu")
        self.slots = SWATokenToKVPoolAllocator(**sizes, kvcache=pool, device="cpu", need_sort=False)
        requests = ReqToTokenPool(size=2, max_context_len=1024, device="cpu", enable_memory_saver=False)
        self.tree = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=requests,
                token_to_kv_pool_allocator=self.slots,
                page_size=trial.UNIT_TOKENS,
                sliding_window_size=trial.WINDOW_TOKENS,
                tree_components=(ComponentType.FULL, ComponentType.SWA),
            )
        )
        trial.expect("tree core", type(self.tree.tree_core).__name__, "RustUnifiedTreeCore")

    def store(self, tokens: list[int], *, without_window: int = 0) -> None:
        """Insert `tokens`, the window's slots of the first `without_window` being gone."""
        found = self.tree.match_prefix(_params(tokens))
        new = len(tokens) - found.device_prefix_len
        full = self.slots.full_attn_allocator.alloc(new)
        window = self.slots.swa_attn_allocator.alloc(new)
        self.slots.full_to_swa_index_mapping[full] = window.to(torch.int64)
        known = self.tree.path_device_indices(found.last_device_node)[: found.device_prefix_len]
        self.tree.insert(
            InsertParams(
                key=RadixKey(array("q", tokens)),
                value=torch.cat([known, full]),
                prev_prefix_len=found.device_prefix_len,
                component_evicted_seqlens={ComponentType.SWA: without_window},
            )
        )


def _params(tokens: list[int]) -> MatchPrefixParams:
    return MatchPrefixParams(key=RadixKey(array("q", tokens)))


def build(tokens: int, case: str) -> trial.Call:
    """A tree that holds `tokens`, and the call that `case` times."""
    cache = _Cache(2 * tokens)
    tree = cache.tree
    asked = trial.prompt(tokens)
    params = _params(trial.unknown(tokens) if case == "miss" else asked)
    if case == "false_hit":  # a later window is there, so that the full slots below it are kept
        cache.store(asked[:tokens] + [5] * 2 * trial.WINDOW_TOKENS, without_window=tokens)
    else:
        cache.store(asked[:tokens])
    if case == "hit_forked":
        for fork in trial.forks(tokens):
            cache.store(fork)
    found = tree.match_prefix(params)
    lengths = {"false_hit": (0, tokens), "miss": (0, 0)}.get(case, (tokens, tokens))
    trial.expect(case, (found.device_prefix_len, found.full_kv_hit_length), lengths)

    def look_up() -> object:
        return tree.match_prefix(params)

    def pinned(asking: MatchPrefixParams = params, *, ids: bool = False) -> None:
        node = tree.match_prefix(asking).last_device_node
        lock = tree.lock(node)
        if ids:
            tree.path_device_indices(node)
        tree.unlock(lock)

    if case == "from_tokens":
        key = array("q", asked)
        return lambda: pinned(MatchPrefixParams(key=RadixKey(key)))
    if case == "hit_ids":
        return lambda: pinned(ids=True)
    return pinned if case == "hit_pinned" else look_up


def _version() -> str:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # a trial has one core; a second thread would wait for the other jobs
    trial.main("sglang", _version(), build)
