# SPDX-License-Identifier: Apache-2.0
"""Ten tiny models with random weights, one per architecture that the adapter knows; vocabulary 256."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hybridkv.demo.models import tiny_deepseek_v4

_COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 64}
_FOUR: dict[str, Any] = {"num_hidden_layers": 4, "intermediate_size": 128}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GATED_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


def _built(model_type: str, seed: int, dtype: torch.dtype | None, **fields: Any) -> Any:
    config = AutoConfig.for_model(model_type, **{**_COMMON, **fields})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, **({} if dtype is None else {"dtype": dtype})).eval()


def _gemma3(seed: int, dtype: torch.dtype | None) -> Any:
    types = ["sliding_attention"] * 3 + ["full_attention"]
    return _built("gemma3_text", seed, dtype, **_HEADS, **_FOUR, layer_types=types, sliding_window=16)


def _gpt_oss(seed: int, dtype: torch.dtype | None) -> Any:
    types = ["sliding_attention", "full_attention"] * 2
    fields = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16, "layer_types": types}
    model = _built("gpt_oss", seed, dtype, **_HEADS, **_FOUR, **fields)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.normal_(0, 1)
    return model


def _deepseek_v32(seed: int, dtype: torch.dtype | None) -> Any:
    return _built(
        "deepseek_v32",
        seed,
        dtype,
        **_FOUR,
        hidden_size=64,
        moe_intermediate_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=32,
        kv_lora_rank=16,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        index_n_heads=16,
        index_head_dim=32,
        index_topk=8,
    )


def _qwen3_next(seed: int, dtype: torch.dtype | None) -> Any:
    types = ["linear_attention"] * 3 + ["full_attention"]
    shared = {"shared_expert_intermediate_size": 32, "layer_types": types}
    return _built("qwen3_next", seed, dtype, **_HEADS, **_FOUR, **_EXPERTS, **_GATED_DELTA, **shared)


def _qwen3_5(seed: int, dtype: torch.dtype | None) -> Any:
    types = ["linear_attention"] * 3 + ["full_attention"]
    return _built("qwen3_5_text", seed, dtype, **_HEADS, **_FOUR, **_GATED_DELTA, layer_types=types)


def _bamba(seed: int, dtype: torch.dtype | None) -> Any:
    mamba = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_expand": 2}
    return _built("bamba", seed, dtype, **_HEADS, **_FOUR, **mamba, mamba_d_conv=4, attn_layer_indices=[3])


def _jamba(seed: int, dtype: torch.dtype | None) -> Any:
    mamba = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 8, "use_mamba_kernels": False}
    layers = {"attn_layer_period": 4, "attn_layer_offset": 3, "expert_layer_period": 2, "expert_layer_offset": 1}
    experts = {"num_experts": 4, "num_experts_per_tok": 2}
    return _built("jamba", seed, dtype, **_HEADS, **_FOUR, **mamba, **layers, **experts)


def _nemotron_h(seed: int, dtype: torch.dtype | None) -> Any:
    mamba = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1, "expand": 2}
    types = ["mamba", "attention", "mlp", "mamba"]
    return _built("nemotron_h", seed, dtype, **_HEADS, **_FOUR, **mamba, conv_kernel=4, layers_block_type=types)


def _v4(seed: int, dtype: torch.dtype | None) -> Any:
    return tiny_deepseek_v4(seed, dtype=dtype)


def _llama(seed: int, dtype: torch.dtype | None) -> Any:
    return _built("llama", seed, dtype, **_HEADS, **_FOUR)


ARCHITECTURES: dict[str, Callable[[int, torch.dtype | None], Any]] = {
    "deepseek_v4": _v4,
    "llama": _llama,
    "gemma3_text": _gemma3,
    "gpt_oss": _gpt_oss,
    "deepseek_v32": _deepseek_v32,
    "qwen3_next": _qwen3_next,
    "qwen3_5_text": _qwen3_5,
    "bamba": _bamba,
    "jamba": _jamba,
    "nemotron_h": _nemotron_h,
}
"""By ``model_type``: (seed, dtype or None for float32) -> model in eval mode."""


def tiny(model_type: str, seed: int = 0, dtype: torch.dtype | None = None) -> Any:
    """Build one of :data:`ARCHITECTURES`."""
    return ARCHITECTURES[model_type](seed, dtype)
