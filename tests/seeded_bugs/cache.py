# SPDX-License-Identifier: Apache-2.0
"""Bugs in cache/: leases and fills."""

from __future__ import annotations

from seeded_bugs import Bug

FILL, LEASE = "csrc/cache/fill.cpp", "csrc/cache/lease.h"

BUGS = [
    Bug(
        "release that forgets a pin",
        "a lease drops all its pins but the newest",
        LEASE,
        "for (auto pin = pins.rbegin(); pin != pins.rend(); ++pin)",
        "for (auto pin = pins.rbegin() + !pins.empty(); pin != pins.rend(); ++pin)",
        "sim.windows_test",
        "acquire to read",
    ),
    Bug(
        "drop twice",
        "a lease drops each of its pins twice",
        LEASE,
        "store.unpin(pin->id, pin->which, tick, change);",
        "for (int n = 0; n < 2; ++n) store.unpin(pin->id, pin->which, tick, change);",
        "sim.windows_test",
        "acquire to read",
    ),
    Bug(
        "freed before the last launched write",
        "a quarantined fill gives its claimed pages back",
        FILL,
        "store_.abort(entry.id, entry.key, group, quarantine);",
        "store_.abort(entry.id, entry.key, group, false);",
        "sim.windows_test",
        "launched write",
    ),
    Bug(
        "late publish",
        "an entry that was given back can still be published",
        FILL,
        "  entry.state = Fill::State::Given;\n}",
        "}",
        "sim.windows_test",
        "aborted fill",
    ),
    Bug(
        "publish past a reset",
        "a fill older than the last reset publishes pages that are no longer its own",
        FILL,
        'if (fill.born != resets_)\n    throw Error(ErrorCode::FillClosed, "fill", "a fill younger than the last reset", "an older one");',
        "",
        "sim.windows_test",
        "last reset",
    ),
]
