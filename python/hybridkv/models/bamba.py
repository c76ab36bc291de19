# SPDX-License-Identifier: Apache-2.0
"""Bamba: Mamba-2 layers, with full attention at ``attn_layer_indices``."""

from __future__ import annotations

from hybridkv.group import CacheGroup
from hybridkv.models.mamba import mamba_groups
from hybridkv.models.reader import FULL, LINEAR, ConfigReader


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return "kv" and "state"."""
    count = config.positive("num_hidden_layers")
    full = config.get("attn_layer_indices")
    if not isinstance(full, (list, tuple)) or any(type(i) is not int or not 0 <= i < count for i in full):
        raise config.refuse("attn_layer_indices", f"a list of layers below {count}")
    attending = set(full)
    heads, state = config.positive("mamba_n_heads"), config.positive("mamba_d_state")
    channels = config.positive("mamba_expand") * config.positive("hidden_size")
    if channels % heads or config.get("mamba_d_head") not in (None, "auto", channels // heads):
        expected = f"mamba_expand * hidden_size / mamba_n_heads, {channels / heads}"
        raise config.refuse("mamba_d_head", expected)
    return mamba_groups(
        config,
        [FULL if i in attending else LINEAR for i in range(count)],
        unit_tokens,
        dtype,
        layout="mamba2",
        conv_channels=channels + 2 * config.positive("mamba_n_groups") * state,
        kernel=config.positive("mamba_d_conv"),
        matrix_elements=channels * state,
    )
