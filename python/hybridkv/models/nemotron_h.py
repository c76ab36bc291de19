# SPDX-License-Identifier: Apache-2.0
"""Nemotron-H: Mamba-2, full attention, MLP and expert layers in the order of a pattern."""

from __future__ import annotations

from hybridkv.group import CacheGroup
from hybridkv.models.attention import agreed
from hybridkv.models.mamba import mamba_groups
from hybridkv.models.reader import FULL, LINEAR, ConfigReader

PATTERN = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
"""Letters of ``hybrid_override_pattern``."""

NAMES = {"mamba": LINEAR, "attention": FULL, **{name: name for name in PATTERN.values()}}
"""Names in ``layers_block_type``, older ones included."""


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return "kv" and "state"; MLP and expert layers keep nothing."""
    config.absent("sliding_window", "Nemotron-H's attention layers have no sliding window")
    if config.optional_positive("head_dim", "attention_head_dim") is None:
        raise config.refuse("head_dim", "an int >= 1")
    heads, state = config.positive("mamba_num_heads"), config.positive("ssm_state_size")
    channels = heads * config.positive("mamba_head_dim")
    return mamba_groups(
        config,
        _types(config),
        unit_tokens,
        dtype,
        layout="mamba2",
        conv_channels=channels + 2 * config.positive("n_groups", "mamba_n_groups") * state,
        kernel=config.positive("conv_kernel", "mamba_d_conv"),
        matrix_elements=channels * state,
    )


def _types(config: ConfigReader) -> list[str]:
    pattern, count = config.get("hybrid_override_pattern"), config.optional_positive("num_hidden_layers")
    derived = None
    if pattern is not None:
        if not isinstance(pattern, str) or not pattern or set(pattern) - set(PATTERN):
            raise config.refuse("hybrid_override_pattern", f"letters out of {''.join(PATTERN)}")
        if count is not None and len(pattern) != count:
            raise config.refuse("hybrid_override_pattern", f"{count} letters, one per layer")
        derived = [PATTERN[letter] for letter in pattern]
    field = "layers_block_type" if config.has("layers_block_type") else "layer_types"
    listed = config.get(field)
    length = count if count is not None else len(listed) if isinstance(listed, (list, tuple)) else 0
    explicit = config.names(field, length, tuple(NAMES))
    return agreed(config, field, None if explicit is None else [NAMES[name] for name in explicit], derived)
