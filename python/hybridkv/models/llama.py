# SPDX-License-Identifier: Apache-2.0
"""Llama: every layer has full attention."""

from __future__ import annotations

from hybridkv.coverage import Prefix
from hybridkv.group import CacheGroup
from hybridkv.models.attention import attention_groups
from hybridkv.models.reader import FULL, ConfigReader


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return one group, "kv"."""
    config.absent("sliding_window", "Llama has no sliding window")
    types = [FULL] * config.positive("num_hidden_layers")
    return attention_groups(config, types, unit_tokens, config.row_dtype(dtype), {FULL: Prefix()})
