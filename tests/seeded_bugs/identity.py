# SPDX-License-Identifier: Apache-2.0
"""Bugs of identities, of weights that are replaced, and of what reads files of others."""

from __future__ import annotations

from seeded_bugs import Bug

IDENTITY, CHANGE, DIGESTS = (
    "python/hybridkv/identity.py",
    "python/hybridkv/identity_change.py",
    "python/hybridkv/digests.py",
)
FIELDS, UPDATES, FILES = (
    "tests/python/test_identity.py",
    "tests/python/test_identity_change.py",
    "tests/python/test_digests.py",
)

BUGS = [
    Bug(
        "declared field left out of keys",
        "two caches whose element types differ share pages",
        IDENTITY,
        'for name in (*_DIGESTS, *_SETTINGS, "kv_dtype"):',
        "for name in (*_DIGESTS, *_SETTINGS):",
        f"{FIELDS}::test_every_declared_field_alone_changes_the_key_and_is_named",
    ),
    Bug(
        "extra that passes for declared fields",
        "whoever sets `extra` can make the key of another identity",
        IDENTITY,
        "if self.extra.startswith(DECLARED_TAG):",
        "if self.extra == DECLARED_TAG:",
        f"{FIELDS}::test_extra_cannot_pass_for_declared_fields",
    ),
    Bug(
        "true is one",
        "identities that are equal have different keys, and a chain goes on under the wrong one",
        IDENTITY,
        'return ("bool", told)',
        "return told",
        f"{FIELDS}::test_one_value_has_one_form",
    ),
    Bug(
        "short digest taken",
        "64 bits stand for the weights",
        IDENTITY,
        "DIGEST_BYTES = (16, 64)",
        "DIGEST_BYTES = (8, 64)",
        f"{FIELDS}::test_a_digest_that_is_short_long_or_none_is_refused",
    ),
    Bug(
        "salt shown",
        "a dataclass helper or a message prints the salt",
        IDENTITY,
        'return "<salt>"',
        "return bytes.__repr__(self)",
        f"{FIELDS}::test_nothing_shows_the_salt",
    ),
    Bug(
        "salt pickled",
        "a spec that travels to a worker takes the salt along",
        IDENTITY,
        'raise TypeError("a salt is not pickled: give the identity its salt where it is used")',
        "return bytes, (bytes(self),)",
        f"{FIELDS}::test_an_identity_with_a_salt_is_copied_but_not_pickled",
    ),
    Bug(
        "old keys asked for",
        "a scheduler that still makes keys of the replaced weights is answered",
        "python/hybridkv/cache.py",
        "        if era.refused:\n            era.check(keys.identity)\n",
        "",
        f"{UPDATES}::test_flush_gives_pages_back_and_refuses_old_keys",
    ),
    Bug(
        "fill of old weights published",
        "a fill that was begun before the weights were replaced publishes what it computed",
        "python/hybridkv/fill.py",
        "        if era.over:\n            return core.done\n",
        "",
        f"{UPDATES}::test_a_publish_that_waits_for_its_event_makes_nothing_visible",
    ),
    Bug(
        "lease outlives its weights",
        "pages of the replaced weights are read on",
        "python/hybridkv/lease.py",
        "        if self._era.over:\n            if self._core.revoke():",
        "        if self._era.refused:\n            if self._core.revoke():",
        f"{UPDATES}::test_a_lease_of_before_ends_and_its_pages_go_once_it_is_released",
    ),
    Bug(
        "requests run on",
        "a running request publishes under the old keys after the weights were replaced",
        CHANGE,
        "if ticket is not None and ticket._end_era():",
        "if ticket is not None and ticket.closed:",
        f"{UPDATES}::test_running_requests_fail_and_publish_nothing",
    ),
    Bug(
        "publish not waited for",
        "pages are evicted while a publish of before is half done: what it makes visible stays",
        CHANGE,
        "    while ended.publishing:\n",
        "    while ended.refused and ended.publishing:\n",
        f"{UPDATES}::test_an_update_waits_for_a_publish_that_is_under_way",
    ),
    Bug(
        "held back and stored",
        "write-back stores prefixes of the replaced weights",
        CHANGE,
        "    cache._tier_writes.forget()\n",
        "",
        f"{UPDATES}::test_records_of_before_are_found_by_nobody_and_nothing_held_back_is_stored",
    ),
    Bug(
        "refused for good",
        "weights that come back are never used again",
        CHANGE,
        "tuple(v for v in values if v != getattr(new, name))",
        "tuple(v for v in values if v is not new)",
        f"{UPDATES}::test_values_that_come_back_are_taken_again",
    ),
    Bug(
        "refuse that does not look",
        "an identity is exchanged although prefixes are published",
        CHANGE,
        "        if used := _pages_in_use(cache):",
        "        if used := 0:",
        f"{UPDATES}::test_refuse_wants_an_empty_cache",
    ),
    Bug(
        "index that leads out",
        "an index of weights files names a file outside its folder",
        DIGESTS,
        'any(c in name for c in "/\\\\\\0")',
        'any(c in name for c in "\\\\\\0")',
        f"{FILES}::test_an_index_does_not_lead_out_of_its_folder",
    ),
    Bug(
        "bytes of no tensor",
        "a weights file may hide bytes that no digest covers",
        DIGESTS,
        "        if tensor.start != reached:\n",
        "        if tensor.start < 8 + length:\n",
        f"{FILES}::test_a_file_that_is_none_is_refused",
    ),
    Bug(
        "order of files counts",
        "a checkpoint of other shards is another",
        DIGESTS,
        "    for name in sorted(where):\n",
        "    for name in where:\n",
        f"{FILES}::test_content_decides_and_not_how_it_is_spread",
    ),
    Bug(
        "footer with a tombstone of no kind",
        "a forged store makes inspect fail with an error that nobody expects",
        "csrc/tier/region.cpp",
        "(entry.key.kind != RecordKind::Tombstone || names_removable(entry.flags)) &&",
        "",
        "tier.disk_index_test",
        "a tombstone removes a block",
    ),
    Bug(
        "salts alike in words",
        "keys of one identity are expected and keys of the same one came, where only the salts differ",
        "python/hybridkv/keys.py",
        'if "salt" in fields else ("", "")',
        'if "salt" not in fields else ("", "")',
        "tests/python/test_format_values.py::"
        "test_identities_that_differ_in_the_salt_alone_are_told_apart_and_the_salt_is_not_told",
    ),
]
