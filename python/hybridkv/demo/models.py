# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random weights over bytes: DeepSeek-V4 with every kind of layer, a Llama of like size, and a
Qwen3-Next, whose state is one matrix a head.

Needs torch and transformers, and imports them: import this module only where they are wanted.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 256
"""Token ids of all models: the values of a byte."""

_SLIDING = "sliding_attention"
_CSA = "compressed_sparse_attention"
_HCA = "heavily_compressed_attention"


def tiny_deepseek_v4(
    seed: int = 0, *, window: int = 16, csa: int = 4, hca: int = 16, dtype: torch.dtype | None = None
) -> Any:
    """Make a DeepSeek-V4 of five layers (sliding, CSA, HCA, CSA, HCA) and 0.47 million parameters.

    Parameters
    ----------
    seed : int
        Of the weights.
    window : int
        Sliding window in tokens, the querying one included; at least 2.
    csa, hca : int
        Tokens of one compressed entry in the two kinds of compressed layers.
    dtype : torch.dtype, optional
        Of the weights; default: float32.

    Returns
    -------
    transformers.PreTrainedModel
        In eval mode, with eager attention, on the CPU. The global random state is left alone.

    Notes
    -----
    Position bias, sinks and the table of hashed experts are zero as transformers makes them; here they are random,
    or the compressors' bias would not matter and every token would go to expert 0. The sparse router has 16
    heads: with fewer, exact ties in its scores make the choice of entries depend on how a prompt was chunked.
    """
    config = AutoConfig.for_model(
        "deepseek_v4",
        vocab_size=VOCABULARY,
        hidden_size=64,
        moe_intermediate_size=64,
        num_hidden_layers=5,
        layer_types=[_SLIDING, _CSA, _HCA, _CSA, _HCA],
        mlp_layer_types=["hash_moe", "hash_moe", "moe", "moe", "moe"],
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        q_lora_rank=32,
        partial_rotary_factor=0.5,
        o_groups=2,
        o_lora_rank=16,
        index_n_heads=16,
        index_head_dim=16,
        index_topk=4,
        compress_rates={_CSA: csa, _HCA: hca},
        sliding_window=window,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        hc_mult=2,
        hc_sinkhorn_iters=4,
        max_position_embeddings=4096,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    config._experts_implementation = "eager"  # the grouped one refuses float64
    model = _make(config, seed, dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("position_bias", "sinks")):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name.endswith("tid2eid"):
                order = torch.rand(buffer.shape[0], config.n_routed_experts, generator=generator).argsort(dim=1)
                buffer.copy_(order[:, : buffer.shape[1]])
    return model


def tiny_llama(seed: int = 0, *, dtype: torch.dtype | None = None) -> Any:
    """Make a Llama of five layers and 0.46 million parameters: full attention everywhere, one kind of state.

    Parameters
    ----------
    seed : int
        Of the weights.
    dtype : torch.dtype, optional
        Of the weights; default: float32.

    Returns
    -------
    transformers.PreTrainedModel
        In eval mode, with eager attention, on the CPU. The global random state is left alone.
    """
    config = AutoConfig.for_model(
        "llama",
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=384,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return _make(config, seed, dtype)


def tiny_qwen3_next(seed: int = 0, *, dtype: torch.dtype | None = None) -> Any:
    """Make a Qwen3-Next of four layers, three of linear attention and one of full, and 0.3 million parameters.

    Parameters
    ----------
    seed : int
        Of the weights.
    dtype : torch.dtype, optional
        Of the weights; default: float32.

    Returns
    -------
    transformers.PreTrainedModel
        In eval mode, with eager attention, on the CPU. The global random state is left alone.
    """
    config = AutoConfig.for_model(
        "qwen3_next",
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_hidden_layers=4,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=4,
        max_position_embeddings=4096,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    config._experts_implementation = "eager"
    return _make(config, seed, dtype)


def _make(config: Any, seed: int, dtype: torch.dtype | None) -> Any:
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        maker: Any = AutoModelForCausalLM  # its methods carry no types
        model = maker.from_config(config, dtype=torch.float32 if dtype is None else dtype)
    return model.eval()
