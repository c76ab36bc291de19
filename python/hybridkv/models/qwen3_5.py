# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5, dense and with experts: as Qwen3-Next, the text model nested in a multimodal configuration."""

from __future__ import annotations

from hybridkv.group import CacheGroup
from hybridkv.models.gated_delta import gated_delta_groups
from hybridkv.models.reader import ConfigReader


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return "kv" and "state"."""
    return gated_delta_groups(config.text(), unit_tokens, dtype)
