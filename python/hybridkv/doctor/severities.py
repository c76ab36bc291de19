# SPDX-License-Identifier: Apache-2.0
"""What a difference between two hosts comes to."""

from __future__ import annotations

from hybridkv.doctor.documents import Json, shown

FALSE_HIT, REFUSED, LOST_HITS, UNEQUAL, COSMETIC = "false hit", "refused", "lost hits", "unequal numbers", "cosmetic"
SEVERITIES = (FALSE_HIT, REFUSED, LOST_HITS, UNEQUAL, COSMETIC)
"""From worst to none: bytes taken for others unless formats tell them apart; refused with a reason; keys that never
meet; right, and not bit for bit what the other computes; nothing."""


def difference(field: str, ours: object, theirs: object, severity: str, consequence: str) -> Json:
    """Return a difference as JSON; values that are no plain ones as their text."""
    told = [
        value if isinstance(value, (str, int, float, bool, type(None))) else shown(value) for value in (ours, theirs)
    ]
    return {"field": field, "ours": told[0], "theirs": told[1], "severity": severity, "consequence": consequence}
