# SPDX-License-Identifier: Apache-2.0
"""Bugs in who waits for whose load, in what a match says of states that a tier has lost, and in write admission."""

from __future__ import annotations

from seeded_bugs import Bug

TRANSFERS, MATCH, EXPLAIN = "csrc/cache/transfers.cpp", "csrc/cache/tier_match.cpp", "csrc/cache/explain.cpp"
PUTS, TOUCHED = "csrc/tier/disk_puts.cpp", "csrc/tier/touched_keys.h"
REPORT, PYTHON = "python/hybridkv/store_report.py", "python/hybridkv/transfers.py"
TEST, STORE = "cache.transfers_test", "tier.disk_store_test"

BUGS = [
    Bug(
        "second asker does not wait",
        "a restore is done, and OK, while another still loads what it needs",
        TRANSFERS,
        "  transfer.finished = !waits_for_others(transfer);",
        "  transfer.finished = true;",
        TEST,
        "two restores of one prefix",
    ),
    Bug(
        "second asker is told OK",
        "a restore is OK although another did not bring what it was left",
        TRANSFERS,
        "    transfer.status = TierStatus::Busy;\n",
        "",
        TEST,
        "a restore whose pages another did not bring",
    ),
    Bug(
        "second asker waits for ever",
        "a load that never ends holds all who ask for the same",
        TRANSFERS,
        "    if (moves && TierClock::now() < transfer.elsewhere_until) return true;",
        "    if (moves) return true;",
        TEST,
        "a restore waits for others no longer",
    ),
    Bug(
        "loading and in a plan",
        "states that somebody loads are named in a plan, whose restore loads nothing",
        MATCH,
        " || loading_at(scratch, g, tokens)) return false;",
        ") return false;",
        TEST,
        "states that are being loaded are waited for",
    ),
    Bug(
        "state asked for at its own end",
        "a window of several blocks whose record was damaged is told as never written",
        MATCH,
        "asked < most_boundaries_asked && ask(tokens); ++asked",
        "asked < 1 && ask(tokens); ++asked",
        TEST,
        "a window of several blocks whose record was damaged",
    ),
    Bug(
        "dead end told as a tier's",
        "history that leads to no length is named instead of the states that are lost",
        EXPLAIN,
        "      explain_dead_end(scratch, reason);\n",
        "      reason.in_tier = true;\n",
        TEST,
        "states in another format below sound history",
    ),
    Bug(
        "admission cancels the prefix",
        "what is left out once keeps the rest of its prefix from being asked for",
        TRANSFERS,
        "  if (status == TierStatus::Declined) return;\n",
        "",
        TEST,
        "what write admission leaves out",
    ),
    Bug(
        "taken back told as cancelled",
        "records that were lost behind a failed one are told as their caller's own doing",
        TRANSFERS,
        "  const TierStatus cause = cause_of(transfer, done.status);",
        "  const TierStatus cause = done.status;",
        TEST,
        "what was taken back because of another record",
    ),
    Bug(
        "touch behind the parent",
        "a second touch takes one block of a prefix a try",
        PUTS,
        "  if (!operation->pinned && !admitter_.touched(operation->key)) {\n",
        "  if (!operation->pinned && parent_is_coming(operation->key, operation->parent) &&\n"
        "      !admitter_.touched(operation->key)) {\n",
        STORE,
        "admission: a second touch",
    ),
    Bug(
        "touches forgotten too early",
        "a long prefix drives its own keys out and is never stored",
        TOUCHED,
        "has(young_, print) || has(old_, print)",
        "has(young_, print)",
        STORE,
        "of keys asked for once",
    ),
    Bug(
        "touches without a bound",
        "what is remembered of keys grows for ever",
        TOUCHED,
        "    if (count_ == remembered) {",
        "    if (count_ == 4 * remembered) {",
        STORE,
        "of keys asked for once",
    ),
    Bug(
        "resumed end not stored",
        "a tier that waits for a second touch is never asked again for the end that a conversation goes on from",
        PYTHON,
        "            kept.extend(windows.kept(self.spec, [(resumed, True)]))\n",
        "            pass\n",
        "tests/python/test_transfers_flush.py::"
        "test_a_conversation_that_goes_on_is_stored_by_second_touch_up_to_where_it_went_on",
    ),
    Bug(
        "listing removed for good",
        "tips whose listing was damaged and quarantined are found no more",
        REPORT,
        '        if record["is"] == "listing"\n',
        '        if record["is"] == "tip"\n',
        "tests/python/test_transfers_tips.py::test_a_damaged_listing_is_written_anew_since_sound_tips_are_found_by_it",
    ),
]
