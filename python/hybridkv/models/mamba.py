# SPDX-License-Identifier: Apache-2.0
"""Mamba layers between attention layers: what Jamba, Bamba and Nemotron-H have in common."""

from __future__ import annotations

from collections.abc import Sequence

from hybridkv.coverage import Prefix
from hybridkv.group import CacheGroup
from hybridkv.models.attention import attention_groups
from hybridkv.models.reader import FULL, LINEAR, ConfigReader
from hybridkv.models.recurrent import state_group


def mamba_groups(
    config: ConfigReader,
    types: Sequence[str],
    unit_tokens: int,
    dtype: str,
    *,
    layout: str,
    conv_channels: int,
    kernel: int,
    matrix_elements: int,
) -> list[CacheGroup]:
    """Return "kv" for layers with full attention and "state" for Mamba layers; others keep nothing.

    Parameters
    ----------
    config : ConfigReader
        The configuration.
    types : sequence of str
        Type of each layer.
    unit_tokens : int
        Tokens of a block.
    dtype : str
        Rows to compute.
    layout : {"mamba1", "mamba2"}
        Name of the state's layout.
    conv_channels, kernel : int
        Channels and width of the convolution.
    matrix_elements : int
        Elements of the state of one layer.
    """
    row_dtype = config.row_dtype(dtype)
    groups = attention_groups(config, types, unit_tokens, row_dtype, {FULL: Prefix()})
    layers = [i for i, t in enumerate(types) if t == LINEAR]
    if layers:
        groups.append(
            state_group(
                layout,
                layers,
                conv_channels=conv_channels,
                kernel=kernel,
                conv_dtype=row_dtype,
                matrix_elements=matrix_elements,
                matrix_dtype=config.state_dtype("mamba_ssm_cache_dtype", "mamba_ssm_dtype"),
            )
        )
    return groups
