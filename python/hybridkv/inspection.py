# SPDX-License-Identifier: Apache-2.0
"""What a cache knows about single blocks: their phase, and the form of every token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hybridkv import _core
from hybridkv.group import CacheGroup
from hybridkv.kinds import StateKind

PHASES = ("absent", "tier-only", "filling", "restoring", "ready", "ready with copy", "offloading", "retiring")
"""Phases of a (block, group), in the order of their numbers."""

_FORMS = {
    StateKind.COMPRESSED: "compressed",
    StateKind.TAIL: "uncompressed",
    StateKind.WINDOW: "window",
    StateKind.INDEXER: "indexer",
}


class BlockInfo(NamedTuple):
    """State of one own block of one group.

    Attributes
    ----------
    phase : str
        One of :data:`PHASES`.
    pins : int
        Pins of the word the group lives in; groups of one class share it.
    page : int
        Page it owns, -1 if none. For looking only: pages to read come from a lease.
    handouts : int
        How often that page was handed out.
    """

    phase: str
    pins: int
    page: int
    handouts: int


def own_block_count(group: CacheGroup, keys: _core.KeyChain) -> int:
    """Return the group's own blocks that the keys cover, the partial block of a tip included."""
    whole = keys.end_unit * keys.unit_tokens // own_block_tokens(group)
    return whole + (keys.rest_tokens != 0 and keys.has_tokens)


def form_spans(group: CacheGroup, blocks: Iterable[BlockInfo], tokens: int) -> list[tuple[int, int, str]]:
    """Return (from, to, form) covering [0, tokens) without gap or overlap, neighbours of one form merged."""
    block_tokens = own_block_tokens(group)
    spans: list[tuple[int, int, str]] = []
    end = 0
    for number, info in enumerate(blocks):
        end = min((number + 1) * block_tokens, tokens)
        _append(spans, number * block_tokens, end, _form(group, info))
    _append(spans, end, tokens, "absent")
    return spans


def own_block_tokens(group: CacheGroup) -> int:
    assert group.block_tokens is not None  # the spec fills it in
    return group.block_tokens


def _form(group: CacheGroup, info: BlockInfo) -> str:
    if info.phase in {"tier-only", "restoring"}:
        return "disk"
    if info.phase in {"ready", "ready with copy", "offloading"}:
        return _FORMS[group.kind]
    return "absent"


def _append(spans: list[tuple[int, int, str]], start: int, end: int, form: str) -> None:
    if start >= end:
        return
    if spans and spans[-1][2] == form:
        start = spans.pop()[0]
    spans.append((start, end, form))
