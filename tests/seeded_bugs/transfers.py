# SPDX-License-Identifier: Apache-2.0
"""Bugs in offload and restore, and in what a tier adds to a match."""

from __future__ import annotations

from seeded_bugs import Bug

TRANSFERS, OFFLOAD, RESTORE = "csrc/cache/transfers.cpp", "csrc/cache/offload.cpp", "csrc/cache/restore.cpp"
MATCH = "csrc/cache/tier_match.cpp"
TEST = "cache.transfers_test"

BUGS = [
    Bug(
        "published unverified",
        "pages whose load failed are published all the same",
        TRANSFERS,
        "  const bool ok = done.status == TierStatus::Ok;",
        "  const bool ok = done.released;",
        TEST,
        "a load that fails publishes nothing",
    ),
    Bug(
        "late load lets its page go",
        "the page of a load that timed out goes back while the tier may still write it",
        TRANSFERS,
        "  if (!done.released) {",
        "  if (!done.released && storing) {",
        TEST,
        "a load that is late keeps its page",
    ),
    Bug(
        "offload without a pin",
        "a page can be evicted, and written by its next owner, while it is being stored",
        OFFLOAD,
        "  count_unowned(pin, 1);\n",
        "  store.unpin(seen.id, which);\n  record.pins.clear();\n",
        TEST,
        "a late store keeps its source pinned",
    ),
    Bug(
        "boundary with a hole",
        "a boundary record is written although a state that it needs is not here",
        OFFLOAD,
        "  if (!g.rebuildable || replay_from(g, layout.step_tokens(), tokens) <= 0) return false;\n",
        "",
        TEST,
        "a boundary whose states are not all here",
    ),
    Bug(
        "foreign page stored",
        "a page of another format is stored under the spec's",
        OFFLOAD,
        "    if (written.format.load() == cache_.spec_formats_[static_cast<std::size_t>(g)] &&\n",
        "    if (\n",
        TEST,
        "a foreign page is not stored",
    ),
    Bug(
        "pins of an offload unowned by nobody",
        "admission promises pages that an offload pins",
        OFFLOAD,
        "    if (pin.counted >> g & 1) cache_.unowned_pages_[g].fetch_add(by);",
        "    if (pin.counted >> g & 0x10000) cache_.unowned_pages_[g].fetch_add(by);",
        TEST,
        "counted among those that nobody answers for",
    ),
    Bug(
        "history taken for a boundary",
        "a length is called restorable although nobody stored its states",
        MATCH,
        "      if (ask_tier(key, RecordKind::Boundary) != TierAnswer::Here) return Obtainable::No;\n",
        "",
        TEST,
        "history without its boundary record",
    ),
    Bug(
        "restorable past a gap",
        "history behind a block that is neither here nor in the tier counts",
        "csrc/cache/match.cpp",
        "  if (scratch.obtainable == position) note_obtainable(scratch, position);",
        "  note_obtainable(scratch, position);\n  scratch.obtainable = position + 1;",
        TEST,
        "the longest boundary record whose history is there",
    ),
    Bug(
        "other format taken for ours",
        "a record of another format is called restorable",
        MATCH,
        "    case Presence::Answer::OtherFormat: return TierAnswer::OtherFormat;",
        "    case Presence::Answer::OtherFormat: return TierAnswer::Here;",
        TEST,
        "a record of another format",
    ),
    Bug(
        "failed load forgotten",
        "after a load that failed the prefix is a miss, as if it had never been there",
        TRANSFERS,
        "  if (!storing && lost) cache_.failed_loads_.note(",
        "  if (!storing && lost) cache_.failed_loads_.forget(",
        TEST,
        "a load that fails publishes nothing",
    ),
    Bug(
        "left-out group asked for",
        "a restore waits for windows that the record says it does not have",
        RESTORE,
        "    if (group.rebuildable && (left_out & left_out_flag(layout, static_cast<int>(g))) != 0) continue;\n",
        "",
        TEST,
        "may be left out of the record",
    ),
    Bug(
        "tier-only stays in a word",
        "a block whose page went while a tier had it can be neither restored nor written again",
        "csrc/block/word.h",
        "    return kept == 0 ? *this : Word(apply(kept, Event::RecordGone)->bits() - generation_one);",
        "    return kept == 0 ? *this : *this;",
        TEST,
        "what is only in the tier",
    ),
    Bug(
        "generation moved twice",
        "a page that had a copy moves the generation by two when it goes",
        "csrc/block/word.h",
        "Word(apply(kept, Event::RecordGone)->bits() - generation_one);",
        "*apply(kept, Event::RecordGone);",
        "sim.pairs_test",
        "one operation beside one, every state",
    ),
    Bug(
        "restore without a claim",
        "a restore takes a block that another fills",
        "csrc/cache/restore.cpp",
        "      if (entry.state != Fill::State::Claimed) {",
        "      if (entry.state == Fill::State::Given) {",
        TEST,
        "two restores of one prefix load each block once",
    ),
]
