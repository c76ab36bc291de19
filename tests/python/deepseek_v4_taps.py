# SPDX-License-Identifier: Apache-2.0
"""What the modules of a DeepSeek-V4 model took and gave in one forward, layer by layer, as float64 arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4

from hybridkv.demo.models import tiny_deepseek_v4
from hybridkv.reference import Compressor, Rope, Yarn

TOKENS = 301
YARN = {"factor": 16.0, "original_max_position_embeddings": 65536, "beta_fast": 32.0, "beta_slow": 1.0}
Array = np.ndarray[Any, Any]


@dataclass
class Compressed:
    """One compressor's inputs and what it gave.

    ``kv`` and ``score`` are [[tokens, c * d]], the score with its position bias as the module adds it, in float32.
    """

    compressor: Compressor
    kv: Array
    score: Array
    entries: Array


@dataclass
class Tapped:
    """Layers by index, each for one row of the batch."""

    config: Any
    cache: Any
    windows: dict[int, Compressed] = field(default_factory=dict)
    entries: dict[int, Compressed] = field(default_factory=dict)
    indexers: dict[int, Compressed] = field(default_factory=dict)
    queries: dict[int, Array] = field(default_factory=dict)  # projected, [[tokens, heads, d]], not yet rotated
    weights: dict[int, Array] = field(default_factory=dict)
    scores: dict[int, Array] = field(default_factory=dict)
    chosen: dict[int, Array] = field(default_factory=dict)


def doubles(tensor: Any) -> Array:
    array: Array = tensor.detach().double().numpy()
    return array


def model_with(yarn: bool) -> Any:
    """A tiny model with the published ratios, 4 and 128; its compressed layers with or without YaRN."""
    model = tiny_deepseek_v4(csa=4, hca=128)
    if yarn:
        compress = model.config.rope_parameters["compress"]
        compress.update(YARN, rope_type="yarn", attention_factor=1.0)
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, v4.DeepseekV4RotaryEmbedding):
                    setattr(parent, name, v4.DeepseekV4RotaryEmbedding(model.config))
    return model


def rope_of(config: Any, label: str) -> Rope:
    """The rotation of a type of layer, as the configuration tells it: "main" or "compress"."""
    told = config.rope_parameters[label]
    yarn = None
    if told["rope_type"] == "yarn":
        yarn = Yarn(told["factor"], told["original_max_position_embeddings"], told["beta_fast"], told["beta_slow"])
    return Rope(int(config.head_dim * told["partial_rotary_factor"]), float(told["rope_theta"]), yarn)


def compressor_of(module: Any, config: Any, *, overlap: bool) -> Compressor:
    """The reference for a compressor or an indexer of the model."""
    weight = module.kv_norm.weight.detach().numpy()
    return Compressor(module.compress_rate, overlap, weight, config.rms_norm_eps, rope_of(config, "compress"))


def tap(model: Any, ids: Any) -> Tapped:
    """Run ids [[1, tokens]] through a model and keep what its attention modules saw."""
    outputs: dict[Any, Any] = {}

    def keep(module: Any, inputs: Any, output: Any) -> None:
        outputs[module] = output

    hooks = [module.register_forward_hook(keep) for module in model.modules()]
    cache = DynamicCache(config=model.config)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fixture of a module's scope runs before the one that sets it for tests
    with torch.no_grad():
        model(input_ids=ids, cache=cache)
    torch.set_num_threads(threads)
    for hook in hooks:
        hook.remove()
    config, tapped = model.config, Tapped(model.config, cache)
    for at, layer in enumerate(model.model.layers):
        attention, held = layer.self_attn, cache.layers[at]
        rope = rope_of(config, attention.rope_layer_type)
        rows = doubles(outputs[attention.kv_proj])[0]
        norm = Compressor(1, False, attention.kv_norm.weight.detach().numpy(), config.rms_norm_eps, rope)
        tapped.windows[at] = Compressed(norm, rows, np.zeros_like(rows), doubles(held.keys)[0, 0])
        if attention.compressor is None:
            continue
        overlap = attention.layer_type == "compressed_sparse_attention"
        whole = doubles(held.compressed_kv["compressor"])[0]
        tapped.entries[at] = _compressed(attention.compressor, config, outputs, whole, overlap=overlap)
        if overlap:
            indexer = attention.compressor.indexer
            whole = doubles(held.compressed_kv["indexer"])[0]
            tapped.indexers[at] = _compressed(indexer, config, outputs, whole, overlap=True)
            queries = doubles(outputs[indexer.q_b_proj])[0]
            tapped.queries[at] = queries.reshape(len(queries), config.index_n_heads, config.index_head_dim)
            tapped.weights[at] = doubles(outputs[indexer.scorer.weights_proj])[0]
            tapped.scores[at] = doubles(outputs[indexer.scorer])[0]
            tapped.chosen[at] = outputs[indexer][0].numpy()
    return tapped


def _compressed(module: Any, config: Any, outputs: dict[Any, Any], entries: Array, *, overlap: bool) -> Compressed:
    kv, gate = outputs[module.kv_proj][0], outputs[module.gate_proj][0]
    bias = module.position_bias[torch.arange(len(gate)) % module.compress_rate]
    score = doubles(gate + bias)  # in float32, as the module adds it: a rounding that is not the compressor's
    return Compressed(compressor_of(module, config, overlap=overlap), doubles(kv), score, entries)
