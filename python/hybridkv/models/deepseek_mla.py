# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2, V3 and V3.2: one latent row per token, and from V3.2 on an indexer beside it."""

from __future__ import annotations

from dataclasses import replace

from hybridkv.coverage import Prefix
from hybridkv.formats import REGISTRY, KvFormat
from hybridkv.group import CacheGroup
from hybridkv.kinds import StateKind
from hybridkv.models.attention import rows_group
from hybridkv.models.reader import ELEMENT_BYTES, FULL, ConfigReader
from hybridkv.models.rotary import rotation

ROWS, INDEXER = REGISTRY["fp8_ds_mla_v32"], REGISTRY["indexer_fp8"]
LATENT_WIDTH = (ROWS.format.head_dim or 0) - (ROWS.format.rope_dims or 0)
PUBLISHED_FP8 = (LATENT_WIDTH, ROWS.format.rope_dims, INDEXER.format.head_dim)
"""Latent, rotary and indexer widths of the published FP8 rows of V3.2: 656 and 132 bytes."""


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return one group, "kv". V2 and V3 have no published FP8 rows."""
    config.absent("index_head_dim", "an indexer belongs to deepseek_v32")
    latent = _latent_format(config, config.row_dtype(dtype))
    return [rows_group("kv", Prefix(), _layers(config), latent, unit_tokens)]


def groups_with_indexer(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return "kv" and "indexer", in step."""
    types = config.get("layer_types")
    if types is not None:
        config.names("layer_types", config.positive("num_hidden_layers"), ("indexed_attention",))
    index_width = config.positive("index_head_dim")
    widths = (config.positive("kv_lora_rank"), config.positive("qk_rope_head_dim"), index_width)
    rows = "fp8" if dtype == "fp8" and widths == PUBLISHED_FP8 else config.row_dtype(dtype)
    latent = rows_group("kv", Prefix(), _layers(config), _latent_format(config, rows), unit_tokens)
    index_format = indexer_format(rows, index_width, 1, *rotation(config, FULL))
    return [latent, indexer_group("kv", _layers(config), index_format, unit_tokens)]


def indexer_format(dtype: str, width: int, ratio: int, theta: float | None, yarn: dict[str, object] | None) -> KvFormat:
    """Return the format of rows of indexer keys; in FP8 the published ones, of 128 elements.

    Parameters
    ----------
    dtype : {"fp8", "float16", "bfloat16", "float32"}
        Rows to compute.
    width : int
        Elements of a key.
    ratio : int
        Tokens that a row stands for.
    theta : float or None
        Base of the rotary embedding.
    yarn : dict or None
        Its scaling.
    """
    if dtype != "fp8":
        size = width * ELEMENT_BYTES[dtype]
        return KvFormat("indexer_rows", dtype, row_bytes=size, ratio=ratio, theta=theta, yarn=yarn)
    return replace(INDEXER.declare("scale", "tile", "row_bytes"), ratio=ratio, theta=theta, yarn=yarn)


def indexer_group(leader: str, layers: list[int], row_format: KvFormat, unit_tokens: int) -> CacheGroup:
    """Return the group of indexer keys in step with a leader: as many rows, same block index."""
    rows = max(1, unit_tokens // (row_format.ratio or 1))
    size = row_format.row_bytes or 0
    return CacheGroup(
        "indexer",
        StateKind.INDEXER,
        Prefix(),
        page_bytes=rows * size,
        row_bytes=size,
        rows_per_page=rows,
        tokens_per_row=row_format.ratio or 1,
        format=row_format,
        layers=layers,
        in_step_with=leader,
    )


def _layers(config: ConfigReader) -> list[int]:
    return list(range(config.positive("num_hidden_layers")))


def _latent_format(config: ConfigReader, dtype: str) -> KvFormat:
    """Return the format of a row: the latent, then the rotated part, which FP8 rows keep in bfloat16."""
    latent, rope = config.positive("kv_lora_rank"), config.positive("qk_rope_head_dim")
    theta, yarn = rotation(config, FULL)
    if dtype != "fp8":
        size = (latent + rope) * ELEMENT_BYTES[dtype]
        return KvFormat("mla_rows", dtype, row_bytes=size, ratio=1, rope_dims=rope, theta=theta, yarn=yarn)
    published = ROWS.declare("scale", "tile", "scale_placement", "row_bytes", "rope_dims")
    return replace(published, ratio=1, theta=theta, yarn=yarn)
