# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaNet layers with full attention in between, as in Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from hybridkv.coverage import Prefix
from hybridkv.group import CacheGroup
from hybridkv.models.attention import agreed, attention_groups, every_nth_full
from hybridkv.models.reader import FULL, LINEAR, ConfigReader
from hybridkv.models.recurrent import state_group


def gated_delta_groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return "kv" for layers with full attention and "state" for the recurrent ones.

    The convolution runs over queries, keys and values; the state is one matrix of key width by value width
    per value head.
    """
    count = config.positive("num_hidden_layers")
    interval = config.optional_positive("full_attention_interval")
    derived = None if interval is None else every_nth_full(count, interval, LINEAR)
    types = agreed(config, "layer_types", config.names("layer_types", count, (LINEAR, FULL)), derived)
    row_dtype = config.row_dtype(dtype)
    groups = attention_groups(config, types, unit_tokens, row_dtype, {FULL: Prefix()})
    layers = [i for i, t in enumerate(types) if t == LINEAR]
    if layers:
        key_heads, key_width = (config.positive(f"linear_{n}") for n in ("num_key_heads", "key_head_dim"))
        value_heads, value_width = (config.positive(f"linear_{n}") for n in ("num_value_heads", "value_head_dim"))
        groups.append(
            state_group(
                "gated_delta",
                layers,
                conv_channels=2 * key_heads * key_width + value_heads * value_width,
                kernel=config.positive("linear_conv_kernel_dim"),
                conv_dtype=row_dtype,
                matrix_elements=value_heads * key_width * value_width,
                matrix_dtype=config.state_dtype("mamba_ssm_dtype", "mamba_ssm_cache_dtype"),
            )
        )
    return groups
