# SPDX-License-Identifier: Apache-2.0
"""Jamba: Mamba-1 layers, with full attention at ``attn_layer_offset`` of every ``attn_layer_period``."""

from __future__ import annotations

from hybridkv.group import CacheGroup
from hybridkv.models.mamba import mamba_groups
from hybridkv.models.reader import FULL, LINEAR, ConfigReader


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return "kv" and "state"."""
    config.absent("sliding_window", "Jamba's attention layers have no sliding window")
    period, offset = config.positive("attn_layer_period"), config.get("attn_layer_offset")
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < period:
        raise config.refuse("attn_layer_offset", f"an int below attn_layer_period, {period}")
    count = config.positive("num_hidden_layers")
    channels = config.positive("mamba_expand") * config.positive("hidden_size")
    return mamba_groups(
        config,
        [FULL if i % period == offset else LINEAR for i in range(count)],
        unit_tokens,
        dtype,
        layout="mamba1",
        conv_channels=channels,
        kernel=config.positive("mamba_d_conv"),
        matrix_elements=channels * config.positive("mamba_d_state"),
    )
