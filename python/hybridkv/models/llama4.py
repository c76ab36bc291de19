# SPDX-License-Identifier: Apache-2.0
"""Llama 4: chunked-local attention where a layer rotates positions, full attention where it does not."""

from __future__ import annotations

from hybridkv.coverage import Chunk, Coverage, Prefix
from hybridkv.group import CacheGroup
from hybridkv.models.attention import agreed, attention_groups, every_nth_full
from hybridkv.models.reader import CHUNKED, FULL, ConfigReader

DEFAULTS = {
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
}
"""``Llama4TextConfig`` of transformers: published files leave some of them out."""


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return "kv" for layers with full attention and "chunk" for the others."""
    text = config.text(DEFAULTS)
    count = text.positive("num_hidden_layers")
    chunk = text.optional_positive("attention_chunk_size")
    explicit = text.names("layer_types", count, (CHUNKED, FULL))
    types = agreed(text, "layer_types", explicit, _derived(text, count, chunk, explicit is None))
    coverages: dict[str, Coverage] = {FULL: Prefix()}
    if CHUNKED in types:
        coverages[CHUNKED] = Chunk(text.positive("attention_chunk_size"))
    return attention_groups(text, types, unit_tokens, text.row_dtype(dtype), coverages)


def _derived(text: ConfigReader, count: int, chunk: int | None, needed: bool) -> list[str] | None:
    """Return the schedule that ``no_rope_layers`` gives (1: the layer rotates), or else the interval."""
    local = CHUNKED if chunk is not None else FULL
    flags = text.get("no_rope_layers")
    if flags:  # an empty list means the interval, as in transformers
        if not isinstance(flags, (list, tuple)) or len(flags) != count or any(f not in (0, 1) for f in flags):
            raise text.refuse("no_rope_layers", f"a list of {count} flags, one per layer")
        return [local if flag else FULL for flag in flags]
    if needed or text.has("no_rope_layer_interval"):
        return every_nth_full(count, text.positive("no_rope_layer_interval"), local)
    return None
