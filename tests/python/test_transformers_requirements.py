# SPDX-License-Identifier: Apache-2.0
"""What a spec says a resume needs is what the cache of a real model holds: at every position, in rows and in bytes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is absent: requirements are compared with its caches")

import torch

from hybridkv.adapters.transformers.layers import tensors
from hybridkv.adapters.transformers.layout import least_unit
from hybridkv.spec import CacheSpec
from image_support import CHUNK, empty, ids_of, model_of, prefilled, runner_of
from tiny_models import ARCHITECTURES

LONGEST = 300
RECURRENT = ("qwen3_next", "qwen3_5_text", "bamba", "jamba", "nemotron_h")
V4_GROUPS = {
    "DynamicSlidingWindowLayer": {"keys": "swa"},
    "DeepseekV4CSACache": {
        "keys": "swa",
        "compressed_kv.compressor": "csa",
        "compressed_kv.indexer": "indexer",
        "overlap_kv.compressor": "overlap",
        "overlap_gate.compressor": "overlap",
        "overlap_kv.indexer": "overlap",
        "overlap_gate.indexer": "overlap",
        "buffer_kv.compressor": "pending",
        "buffer_gate.compressor": "pending",
        "buffer_kv.indexer": "pending",
        "buffer_gate.indexer": "pending",
    },
    "DeepseekV4HCACache": {
        "keys": "swa",
        "compressed_kv.compressor": "hca",
        "buffer_kv.compressor": "hca_tail",
        "buffer_gate.compressor": "hca_tail",
    },
}
GROUPS = {
    "DynamicLayer": {"keys": "kv", "values": "kv"},
    "DynamicIndexedLayer": {"keys": "kv", "values": "kv", "indexer_keys": "indexer"},
    "DynamicSlidingWindowLayer": {"keys": "swa", "values": "swa"},
    "LinearAttentionLayer": {"conv_states.0": "state", "recurrent_states.0": "state"},
}
"""By class of a cache layer: the group of every tensor it holds. Written down here, not asked of the adapter."""


def held(model_type: str, past: Any) -> dict[str, tuple[set[int], int]]:
    """Return rows of each layer and bytes over all layers, by group, as the tensors are; an unknown one fails."""
    found: dict[str, tuple[set[int], int]] = {}
    for layer in past.layers:
        for path, tensor in tensors(layer).items():
            if model_type == "deepseek_v4" and path == "values" and torch.equal(tensor, layer.keys):
                if type(layer).__name__ != "DynamicSlidingWindowLayer":
                    assert tensor is layer.keys
                continue  # one latent is both
            group = (V4_GROUPS if model_type == "deepseek_v4" else GROUPS)[type(layer).__name__][path]
            rows, size = _measure(path, tensor)
            counts, total = found.setdefault(group, (set(), 0))
            found[group] = counts | {rows}, total + size
    return found


def _measure(path: str, tensor: torch.Tensor) -> tuple[int, int]:
    if path.startswith("recurrent"):
        return 1, tensor.nbytes
    if path.startswith("conv"):
        return 1, tensor[..., 1:].numel() * tensor.element_size()  # the oldest input has had its last use, see below
    return tensor.shape[2 if path in ("keys", "values") else 1], tensor.nbytes


@pytest.mark.parametrize("name", ["deepseek_v4_w32", *ARCHITECTURES])
def test_needs_are_what_the_cache_holds_at_every_position(name: str) -> None:
    model = model_of(name)
    runner, past, ids = runner_of(model), empty(model), ids_of(LONGEST, batch=1)
    spec = CacheSpec.from_config(model.config.to_dict(), unit_tokens=least_unit(model.config), dtype="float32")
    seen: set[str] = set()
    for t in range(1, LONGEST + 1):
        runner.run(ids[:, t - 1 : t], past, t - 1)
        needs = spec.requirements(t)
        found = held(model.config.model_type, past)
        seen |= set(found)
        for group, need in needs.items():
            rows, size = found.get(group, ({0}, 0))
            assert (rows, size) == ({need.rows}, need.bytes), (t, group)
    assert seen == {group.name for group in spec.groups}


@pytest.mark.parametrize("name", ["deepseek_v4", "gemma3_text", "qwen3_next", "jamba"])
def test_needs_do_not_depend_on_how_the_prompt_came_in(name: str) -> None:
    model, ids = model_of(name), ids_of(140, batch=1)
    spec = CacheSpec.from_config(model.config.to_dict(), unit_tokens=least_unit(model.config), dtype="float32")
    for t in (1, 3, 4, 15, 16, 17, 63, 64, 65, 129, 140):
        found = held(model.config.model_type, prefilled(model, ids[:, :t]))
        for group, need in spec.requirements(t).items():
            rows, size = found.get(group, ({0}, 0))
            assert (rows, size) == ({need.rows}, need.bytes), (t, group)


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 50])
def test_the_oldest_input_of_a_convolution_is_dead(name: str, p: int) -> None:
    model, ids = model_of(name), ids_of(p + CHUNK)
    runner, past = runner_of(model), prefilled(model, ids[:, :p])

    def continued(column: int | None, value: float) -> list[torch.Tensor]:
        logits = []
        for size in (1, CHUNK):
            cache = copy.deepcopy(past)
            for layer in cache.layers:
                if hasattr(layer, "conv_states") and column is not None:
                    layer.conv_states[0][..., column] = value
            logits += [
                runner.run(part, cache, p + i * size, all_logits=True)
                for i, part in enumerate(ids[:, p:].split(size, 1))
            ]
        return logits

    untouched = continued(None, 0)
    assert all(map(torch.equal, untouched, continued(0, float("nan"))))
    assert not all(map(torch.equal, untouched, continued(1, 0.5)))  # the next one is alive
