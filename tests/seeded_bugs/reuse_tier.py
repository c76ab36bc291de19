# SPDX-License-Identifier: Apache-2.0
"""Bugs between PrefixReuse and a tier, and in what the disk demo lets pass."""

from __future__ import annotations

from seeded_bugs import Bug

TRAFFIC, RECORDER, REUSE = (
    f"python/hybridkv/adapters/transformers/{name}.py" for name in ("tier_traffic", "recorder", "reuse")
)
TRANSFERS, DISK = "python/hybridkv/transfers.py", "python/hybridkv/demo/disk.py"
TIER, DEMO = "tests/python/test_transformers_tier.py", "tests/python/test_demo_disk.py"

BUGS = [
    Bug(
        "loaded pages that nobody evicts",
        "who makes room is not told of what a tier gave",
        TRAFFIC,
        "self._store.note(prefix_of(keys, ids, tokens), tokens, whole=whole)",
        "pass",
        f"{TIER}::test_what_is_loaded_can_be_evicted_again",
        needs="transformers",
    ),
    Bug(
        "first refusal ends the look-up",
        "behind a damaged record the next smaller boundary is not tried",
        TRAFFIC,
        "                told.tokens = tokens\n                break",
        "                told.tokens = tokens\n            break",
        f"{TIER}::test_a_damaged_record_costs_the_lengths_that_need_it",
        needs="transformers",
    ),
    Bug(
        "store without an index not asked",
        "of a store that has no index only what this process wrote is found",
        TRAFFIC,
        "if tier is None or not self._cache._ask_tier(keys, self._timeout_s):",
        "if tier is not None:",
        f"{TIER}::test_a_store_without_an_index_is_asked_for_the_prefix",
        needs="transformers",
    ),
    Bug(
        "failed writes not counted",
        "a prefix that did not arrive in the tier is told of nowhere",
        TRAFFIC,
        "        if not result.ok:\n            with self._lock:",
        "        if result.ok:\n            with self._lock:",
        f"{TIER}::test_a_full_or_failing_store_is_counted_and_harms_nothing",
        needs="transformers",
    ),
    Bug(
        "stored up to the first boundary",
        "of what a call kept only the beginning goes to the tier",
        RECORDER,
        "        self.longest = prefix\n",
        "        self.longest = self.longest or prefix\n",
        f"{TIER}::test_a_prefix_resumes_behind_a_restart_bit_for_bit",
        needs="transformers",
    ),
    Bug(
        "tier that could never give anything back",
        "a model that keeps no aligned boundary stores history that nobody can resume from",
        REUSE,
        "    if step is None and not (keep_tips and cache.tier.windows.ends):",
        "    if step == 0:",
        f"{TIER}::test_arguments",
        needs="transformers",
    ),
    Bug(
        "asked again and never loaded",
        "a prefetch gives up wherever a prompt goes beyond what a store without an index has",
        TRANSFERS,
        "        self._ask_tier(keys, timeout_s)\n        plan = self.restorable(keys)",
        "        plan = None if self._ask_tier(keys, timeout_s) else self.restorable(keys)",
        "tests/python/test_transfers.py::test_a_store_without_an_index_is_asked_once",
    ),
    Bug(
        "demo that uses what is damaged",
        "a turn that resumed at a damaged record is no failure of the demo",
        DISK,
        "not 0 < turn.restored_tokens < turn.damaged_tokens",
        "not 0 < turn.restored_tokens",
        f"{DEMO}::test_what_must_not_be_is_a_failure",
        needs="transformers",
    ),
]
