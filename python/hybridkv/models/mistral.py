# SPDX-License-Identifier: Apache-2.0
"""Mistral: every layer has a sliding window, or none where ``sliding_window`` is null."""

from __future__ import annotations

from hybridkv.coverage import Prefix, Window
from hybridkv.group import CacheGroup
from hybridkv.models.attention import attention_groups
from hybridkv.models.reader import FULL, SLIDING, ConfigReader


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return one group, "swa" or "kv"."""
    config.absent("layer_types", "Mistral gives all its layers one type")
    if "sliding_window" not in config:
        raise config.refuse("sliding_window", "an int >= 1, or null")
    window = config.optional_positive("sliding_window")
    kind, coverage = (FULL, Prefix()) if window is None else (SLIDING, Window(window))
    types = [kind] * config.positive("num_hidden_layers")
    return attention_groups(config, types, unit_tokens, config.row_dtype(dtype), {kind: coverage})
