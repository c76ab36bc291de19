# SPDX-License-Identifier: Apache-2.0
"""What the records of a spec look like, as fingerprints: a record of another one is never read as this one's."""

from __future__ import annotations

from hybridkv.formats import RankGeometry, framed_digest
from hybridkv.formats.ranks import all_replicated
from hybridkv.group import CacheGroup
from hybridkv.spec import CacheSpec

RECORD_LAYOUT = 3
"""Version of how pages become parts of a record (csrc/cache/offload.cpp), and of what is told of them here."""


def record_formats(spec: CacheSpec) -> tuple[bytes, bytes]:
    """Return the fingerprints of block records and of boundary records, 16 bytes each.

    What is in them: of every group whose pages the record holds its place in the spec, name, kind, layers, format,
    block, the sizes of its parts, and its rows, of which a tip's record has some. Of a boundary also those of history,
    since its states were computed over it; of a block nothing of windows and states, so that history outlives a change
    of theirs.
    Where several ranks share the model, which of them it is: pages of ranks are alike in all else, and hold other
    heads, layers or tokens. Tensor ranks are left out of a record all of whose groups are replicated among them.
    """
    groups = list(enumerate(spec.groups))
    history = [(place, group) for place, group in groups if group.coverage.rule == 0]
    return _fingerprint("block", history, spec.ranks), _fingerprint("boundary", groups, spec.ranks)


def _fingerprint(kind: str, groups: list[tuple[int, CacheGroup]], ranks: RankGeometry) -> bytes:
    items: list[tuple[str, object]] = [("kind", kind), ("layout", RECORD_LAYOUT)]
    for place, group in groups:
        sizes = tuple(group.parts.items()) if group.parts else (group.page_bytes, group.layer_count)
        items += [
            ("place", place),
            ("name", group.name),
            ("kind", int(group.kind)),
            ("layers", tuple(group.layers)),
            ("format", group.fingerprint),
            ("coverage", (group.coverage.rule, group.coverage.parameter)),
            ("block", group.block_tokens),
            ("sizes", sizes),
            ("rows", (group.row_bytes, group.rows_per_page, group.tokens_per_row, group.rows_in_order)),
        ]
    items += ranks.shares(replicated=all_replicated(group for _, group in groups))
    return framed_digest("hybridkv.record", items)
