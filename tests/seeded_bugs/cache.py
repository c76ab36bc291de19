# SPDX-License-Identifier: Apache-2.0
"""Bugs in cache/: leases and fills."""

from __future__ import annotations

from seeded_bugs import Bug

FILL, LEASE = "csrc/cache/fill.cpp", "csrc/cache/lease.h"
TICKET_FILLS = "cache.ticket_fills_test"

BUGS = [
    Bug(
        "partial multi-group pin",
        "a match that lost the race for a page of a window group takes the lease all the same",
        "csrc/cache/pin.cpp",
        "if (result == PinResult::Pinned) result = pin_blocks(question, scratch, tip, lease, change);",
        "if (result == PinResult::Pinned) pin_blocks(question, scratch, tip, lease, change);",
        "sim.fills_test",
        "find to acquire",
    ),
    Bug(
        "release that forgets a pin",
        "a lease drops all its pins but the newest",
        LEASE,
        "for (auto pin = pins.rbegin(); pin != pins.rend(); ++pin)",
        "for (auto pin = pins.rbegin() + !pins.empty(); pin != pins.rend(); ++pin)",
        "sim.fills_test",
        "acquire to read",
    ),
    Bug(
        "drop twice",
        "a lease drops each of its pins twice",
        LEASE,
        "store.unpin(pin->id, pin->which, tick, change);",
        "for (int n = 0; n < 2; ++n) store.unpin(pin->id, pin->which, tick, change);",
        "sim.fills_test",
        "acquire to read",
    ),
    Bug(
        "freed before the last launched write",
        "a quarantined fill gives its claimed pages back",
        FILL,
        "store_.abort(entry.id, entry.key, group, quarantine);",
        "store_.abort(entry.id, entry.key, group, false);",
        "sim.fills_test",
        "launched write",
    ),
    Bug(
        "late publish",
        "an entry that was given back can still be published",
        FILL,
        "  entry.state = Fill::State::Given;\n}",
        "}",
        "sim.fills_test",
        "aborted fill",
    ),
    Bug(
        "publish past a reset",
        "a fill older than the last reset publishes pages that are no longer its own",
        FILL,
        "  if (fill.born != resets_)\n    throw Error(ErrorCode::FillClosed,",
        "  if (fill.born < 0)\n    throw Error(ErrorCode::FillClosed,",
        "sim.fills_test",
        "last reset",
    ),
    Bug(
        "directory victim not looked at again",
        "a directory chosen to make room is emptied although its line is a unit's by now",
        "csrc/cache/tips.cpp",
        "if (!directory.found() || !store_.is_directory(directory.id)) return;",
        "if (!directory.found()) return;",
        "sim.fills_test",
        "directory",
    ),
    Bug(
        "tip evicted by its own filing",
        "a tip that comes back is taken for the one whose place it gets",
        "csrc/cache/tips.cpp",
        "if (lives && store_.is_tip_of(",
        "if (there != no_entry && store_.is_tip_of(",
        "stress.tips_test",
        "comes back",
    ),
    Bug(
        "fill of a ticket not charged",
        "a fill takes its pages beside its ticket's share instead of from it",
        FILL,
        "    admission_.took(*share, group, pages);\n",
        "",
        TICKET_FILLS,
        "takes from its ticket's share",
    ),
    Bug(
        "fill that outlives its ticket unaccounted",
        "what a fill holds when its ticket ends is in no count any more",
        "csrc/cache/close.cpp",
        "    unowned_pages_[g].fetch_add(ticket.fills->pages[static_cast<std::size_t>(g)]);",
        "    unowned_pages_[g].fetch_add(0);",
        TICKET_FILLS,
        "takes from its ticket's share",
    ),
    Bug(
        "published under another's pin",
        "a ticket's fill lets a page go from the share that somebody's pin keeps from being evicted",
        FILL,
        "      if (!admission_.pass_on(share, group, room_of(group))) return false;",
        "      admission_.gave(share, group, 1);",
        TICKET_FILLS,
        "stays private where no page is to spare",
    ),
    Bug(
        "lost page promised again",
        "a page that a lost fill keeps out of the pool comes back into its ticket's right",
        FILL,
        "if (share != nullptr) admission_.lost(*share, group);",
        "if (share != nullptr) admission_.gave(*share, group, 1);",
        TICKET_FILLS,
        "its own request's loss",
    ),
    Bug(
        "own descriptors promised as room",
        "descriptors that a fill needs itself count as those that can go for it: it evicts and is refused",
        "csrc/cache/evict.cpp",
        "  for (const DescriptorId id : but) wanted += can_go_whole(store_, id);\n",
        "",
        "alloc.eviction_test",
        "descriptors that a fill needs itself",
    ),
]
