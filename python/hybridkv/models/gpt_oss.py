# SPDX-License-Identifier: Apache-2.0
"""gpt-oss: sliding windows and full attention in turn."""

from __future__ import annotations

from hybridkv.coverage import Coverage, Prefix, Window
from hybridkv.group import CacheGroup
from hybridkv.models.attention import agreed, attention_groups
from hybridkv.models.reader import FULL, SLIDING, ConfigReader

PUBLISHED_DTYPE = "bfloat16"
"""Published files name no dtype: weights outside the MXFP4 experts are bfloat16."""


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return "kv" for layers with full attention and "swa" for the others."""
    count = config.positive("num_hidden_layers")
    types = agreed(config, "layer_types", config.names("layer_types", count, (SLIDING, FULL)), None)
    coverages: dict[str, Coverage] = {FULL: Prefix(), SLIDING: Window(config.positive("sliding_window"))}
    row_dtype = config.row_dtype(dtype, PUBLISHED_DTYPE)
    return attention_groups(config, types, unit_tokens, row_dtype, coverages)
