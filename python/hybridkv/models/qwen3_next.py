# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Next: gated DeltaNet, with full attention in the last layer of every ``full_attention_interval``."""

from __future__ import annotations

from hybridkv.group import CacheGroup
from hybridkv.models.gated_delta import gated_delta_groups
from hybridkv.models.reader import ConfigReader


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return "kv" and "state"."""
    return gated_delta_groups(config, unit_tokens, dtype)
