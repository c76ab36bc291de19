# SPDX-License-Identifier: Apache-2.0
"""A spec, and what names its groups, as the core takes them: plain numbers, one entry a group."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hybridkv.arguments import block_indices, count
from hybridkv.errors import ArgumentError
from hybridkv.formats import KvFormat
from hybridkv.inspection import own_block_tokens
from hybridkv.spec import CacheSpec

GroupSelection = Mapping[str, "bool | npt.ArrayLike"]
"""Groups by name: True for every block, or indices of the group's own blocks."""


def group_index(index: Mapping[str, int], name: str) -> int:
    """Return the number of a group, or raise ArgumentError."""
    try:
        return index[name]
    except (KeyError, TypeError):
        raise ArgumentError("group", f"one of {list(index)}", name) from None


def selection(index: Mapping[str, int], groups: GroupSelection | None) -> list[bool | npt.NDArray[np.int64]]:
    """Return True, False or block indices for each group; None selects all."""
    if groups is None:
        return [True] * len(index)
    if not isinstance(groups, Mapping):
        raise ArgumentError("groups", "a mapping of group names to True or block indices", groups)
    chosen: list[bool | npt.NDArray[np.int64]] = [False] * len(index)
    for name, blocks in groups.items():
        chosen[group_index(index, name)] = blocks if isinstance(blocks, bool) else block_indices(name, blocks)
    return chosen


def format_list(
    spec: CacheSpec, index: Mapping[str, int], formats: Mapping[str, KvFormat], known: dict[bytes, KvFormat]
) -> list[bytes]:
    """Return the fingerprint of each group's format, the spec's where ``formats`` names none; remember them."""
    if not isinstance(formats, Mapping):
        raise ArgumentError("formats", "a mapping of group names to KvFormat", formats)
    listed = [group.fingerprint for group in spec.groups]
    for name, fmt in formats.items():
        if not isinstance(fmt, KvFormat):
            raise ArgumentError(f"formats[{name}]", "a KvFormat", fmt)
        listed[group_index(index, name)] = fmt.fingerprint
        known[fmt.fingerprint] = fmt
    return listed


def page_counts(spec: CacheSpec, blocks: int, pages: Mapping[str, int] | None) -> dict[str, int]:
    """Return the size of each group's pool: as asked for, else as many own blocks as ``blocks`` units make."""
    if pages is not None and not isinstance(pages, Mapping):
        raise ArgumentError("pages", "a mapping of group names to numbers", pages)
    counts = {g.name: max(1, blocks * spec.unit_tokens // own_block_tokens(g)) for g in spec.groups}
    for name, number in (pages or {}).items():
        if name not in counts:
            raise ArgumentError("pages", f"groups of {list(counts)}", name)
        counts[name] = count(f"pages[{name}]", number)
    return counts


def described(spec: CacheSpec, pages: Mapping[str, int]) -> list[tuple[object, ...]]:
    """Return what the constructor of the core's cache reads, in its order."""
    names = [group.name for group in spec.groups]
    rows: list[tuple[object, ...]] = []
    for group in spec.groups:
        footer = None if group.format is None else group.format.footer_offset
        rows.append(
            (
                group.name,
                int(group.kind),
                group.coverage.rule,
                group.coverage.parameter,
                own_block_tokens(group) // spec.unit_tokens,
                pages[group.name],
                group.total_page_bytes,
                group.layer_count,
                group.tokens_per_row,
                group.row_bytes or 0,
                group.rows_per_page or 0,
                group.alignment,
                group.page_stride or 0,
                -1 if group.in_step_with is None else names.index(group.in_step_with),
                group.rebuildable,
                group.fingerprint,
                -1 if footer is None else footer,
                group.replay_tokens or 0,
                group.rows_in_order,
            )
        )
    return rows
