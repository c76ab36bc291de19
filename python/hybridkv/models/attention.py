# SPDX-License-Identifier: Apache-2.0
"""Cache groups of attention layers that keep one row of keys and values per token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hybridkv.coverage import Chunk, Coverage, Prefix, Window
from hybridkv.formats import REGISTRY, KvFormat
from hybridkv.group import CacheGroup
from hybridkv.kinds import StateKind
from hybridkv.models.reader import ELEMENT_BYTES, FULL, ConfigReader
from hybridkv.models.rotary import rotation


def head_dim(config: ConfigReader) -> int:
    """Return the width of a head: ``head_dim``, else ``hidden_size / num_attention_heads``."""
    explicit = config.optional_positive("head_dim", "attention_head_dim")
    if explicit is not None:
        return explicit
    hidden, heads = config.positive("hidden_size"), config.positive("num_attention_heads")
    if hidden % heads:
        raise config.refuse("head_dim", f"a value, since {heads} heads do not divide {hidden}")
    return hidden // heads


def key_value_format(config: ConfigReader, dtype: str, layer_type: str) -> KvFormat:
    """Return the format of rows that hold the keys, then the values of all heads of one token."""
    heads = config.optional_positive("num_key_value_heads") or config.positive("num_attention_heads")
    theta, yarn = rotation(config, layer_type)
    return replace(
        REGISTRY["kv_heads"].declare("position_convention"),
        dtype=dtype,
        row_bytes=2 * heads * head_dim(config) * ELEMENT_BYTES[dtype],
        ratio=1,
        theta=theta,
        yarn=yarn,
    )


def rows_group(
    name: str, coverage: Coverage, layers: Sequence[int], row_format: KvFormat, unit_tokens: int
) -> CacheGroup:
    """Return a group of rows: history for ``Prefix``, else a window.

    A window page holds the trailing rows that a boundary needs: the window, or the block if that is less.

    Parameters
    ----------
    name : str
        Name of the group.
    coverage : Prefix, Window or Chunk
        What a resume needs.
    layers : sequence of int
        The layers.
    row_format : KvFormat
        Declares ``row_bytes`` and ``ratio``.
    unit_tokens : int
        Tokens of a block.
    """
    ratio, row_bytes = row_format.ratio or 1, row_format.row_bytes or 0
    tokens = min(unit_tokens, coverage.tokens) if isinstance(coverage, (Window, Chunk)) else unit_tokens
    rows = max(1, tokens // ratio)
    return CacheGroup(
        name,
        StateKind.COMPRESSED if isinstance(coverage, Prefix) else StateKind.WINDOW,
        coverage,
        page_bytes=rows * row_bytes,
        row_bytes=row_bytes,
        rows_per_page=rows,
        tokens_per_row=ratio,
        format=row_format,
        layers=tuple(layers),
    )


def attention_groups(
    config: ConfigReader,
    types: Sequence[str],
    unit_tokens: int,
    dtype: str,
    coverages: Mapping[str, Coverage],
) -> list[CacheGroup]:
    """Return one group of key and value rows per type of attention layer that the model has.

    Parameters
    ----------
    config : ConfigReader
        The text model's configuration.
    types : sequence of str
        Type of each layer; types not in ``coverages`` keep no such rows.
    unit_tokens : int
        Tokens of a block.
    dtype : str
        Element type of rows.
    coverages : mapping of str to coverage
        By type of layer.
    """
    names = {Prefix: "kv", Window: "swa", Chunk: "chunk"}
    groups = []
    for layer_type, coverage in coverages.items():
        layers = [i for i, t in enumerate(types) if t == layer_type]
        if layers:
            row_format = key_value_format(config, dtype, layer_type)
            groups.append(rows_group(names[type(coverage)], coverage, layers, row_format, unit_tokens))
    return groups


def agreed(config: ConfigReader, field: str, explicit: list[str] | None, derived: list[str] | None) -> list[str]:
    """Return the schedule of layers, told by ``field`` or derived from others; if both, they must agree."""
    if explicit is not None and derived is not None and explicit != derived:
        raise config.refuse(field, f"the schedule that the other fields give, {derived}")
    schedule = explicit if explicit is not None else derived
    if schedule is None:
        raise config.refuse(field, "a list of layer types")
    return schedule


def every_nth_full(count: int, interval: int, other: str) -> list[str]:
    """Return a schedule in which the last layer of every ``interval`` has full attention."""
    return [other if (i + 1) % interval else FULL for i in range(count)]
