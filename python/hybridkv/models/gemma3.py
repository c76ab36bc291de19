# SPDX-License-Identifier: Apache-2.0
"""Gemma 3: sliding windows, with full attention in the last layer of every six."""

from __future__ import annotations

from hybridkv.coverage import Coverage, Prefix, Window
from hybridkv.group import CacheGroup
from hybridkv.models.attention import agreed, attention_groups, every_nth_full
from hybridkv.models.reader import FULL, SLIDING, ConfigReader

DEFAULTS = {
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}
"""``Gemma3TextConfig`` of transformers: published files name only what differs."""


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return "kv" for layers with full attention and "swa" for the others."""
    text = config.text(DEFAULTS)
    text.absent("use_bidirectional_attention", "state of bidirectional attention is no prefix")
    count = text.positive("num_hidden_layers")
    explicit = text.names("layer_types", count, (SLIDING, FULL))
    derived = None
    if explicit is None or text.has("sliding_window_pattern"):
        derived = every_nth_full(count, text.positive("sliding_window_pattern"), SLIDING)
    types = agreed(text, "layer_types", explicit, derived)
    coverages: dict[str, Coverage] = {FULL: Prefix(), SLIDING: Window(text.positive("sliding_window"))}
    return attention_groups(text, types, unit_tokens, text.row_dtype(dtype), coverages)
