# SPDX-License-Identifier: Apache-2.0
"""Bugs of doctor: what it guesses, overlooks or lets in."""

from __future__ import annotations

from seeded_bugs import Bug

ENGINES, DOCUMENTS = "python/hybridkv/doctor/engines.py", "python/hybridkv/doctor/documents.py"
ANSWERS, COMPARISON = "python/hybridkv/doctor/answers.py", "python/hybridkv/doctor/comparison.py"
CACHES, MANIFESTS = "python/hybridkv/doctor/cache_comparison.py", "python/hybridkv/doctor/manifests.py"
TEST, HOSTS = "tests/python/test_doctor.py", "tests/python/test_doctor_compare.py"

BUGS = [
    Bug(
        "next version taken for read",
        "formats are told of a version of an engine that nobody read",
        ENGINES,
        "and padded[: len(high)] <= high",
        "and padded[:1] <= high",
        TEST,
    ),
    Bug(
        "release candidate taken for the release",
        "a version before a release is taken for the one that was read",
        ENGINES,
        '    if re.search(r"[a-z]", version.partition("+")[0].replace(".post", "")):\n        return False',
        '    if re.search(r"[A-Z]", version.partition("+")[0].replace(".post", "")):\n        return False',
        TEST,
    ),
    Bug(
        "unknown counted as met",
        "a question that nobody can answer counts as answered with yes",
        "python/hybridkv/doctor/readiness.py",
        'sum(item["answer"] == YES for item in items)',
        'sum(item["answer"] != "no" for item in items)',
        TEST,
    ),
    Bug(
        "untold counted as good",
        "a fact that is not told counts as a good one",
        ANSWERS,
        '    return (UNKNOWN, f"{evidence}: not told") if value is None else',
        '    return (YES, f"{evidence}: not told") if value is None else',
        TEST,
    ),
    Bug(
        "released topology guards",
        "a topology that was released counts as one that guards graphs",
        ANSWERS,
        'if not topology.flag("released")]',
        "if topology is not None]",
        TEST,
    ),
    Bug(
        "writers all alike",
        "what other writers of a tier have apart is not told",
        "python/hybridkv/doctor/cache_facts.py",
        "if d.severity != COSMETIC]",
        "if d.severity == COSMETIC]",
        TEST,
    ),
    Bug(
        "salt written down",
        "facts of a cache carry the salt that keys stand on",
        "python/hybridkv/doctor/cache_facts.py",
        '            "salted": identity.salted,\n',
        '            "salted": identity.salted,\n            "salt": identity.salt.hex(),\n',
        TEST,
    ),
    Bug(
        "GPU families alike",
        "two GPU families are taken for one where formats depend on them",
        COMPARISON,
        "    if mine and its and mine != its:\n",
        "    if mine and its and len(mine) != len(its):\n",
        HOSTS,
    ),
    Bug(
        "equal size overlooked",
        "two formats of equal rows on two GPU families are told to be seen by their size",
        COMPARISON,
        'if there and size is not None and size == its.number("row_bytes"):',
        'if there and size is None and size == its.number("row_bytes"):',
        HOSTS,
    ),
    Bug(
        "undeclared formats agree",
        "groups without a format are alike where their sizes are",
        CACHES,
        "if other is not None and group.format is None and",
        "if other is None and group.format is None and",
        HOSTS,
    ),
    Bug(
        "refusals of negotiate untold",
        "doctor says that two caches do not differ where one refuses what the other wrote",
        CACHES,
        "    if found.reason:\n        return difference(field, ours, theirs, REFUSED,",
        "    if found.reason:\n        return difference(field, ours, theirs, COSMETIC,",
        f"{HOSTS}::test_compare_says_nothing_exactly_where_negotiate_agrees",
    ),
    Bug(
        "facts against their manifest",
        "facts that tell something else than the manifest beside them are believed",
        DOCUMENTS,
        "if told is not None and (type(told), told) != (type(value), value):",
        "if told is not None and type(told) is not type(value):",
        f"{HOSTS}::test_facts_that_contradict_their_manifest_are_refused",
    ),
    Bug(
        "groups of one manifest twice",
        "a group that is listed beside the manifest's own is passed over",
        MANIFESTS,
        "    if len(groups) != len(manifest.groups):\n",
        "    if not groups:\n",
        f"{HOSTS}::test_a_group_that_is_listed_twice_is_refused",
    ),
    Bug(
        "revisions overlooked",
        "versions whose states hold other numbers under the same names are told to write the same",
        COMPARISON,
        '        elif one.text("revision") != other.text("revision"):\n',
        '        elif one.text("role") != other.text("role"):\n',
        HOSTS,
    ),
    Bug(
        "documents without a bound",
        "a file of any length is read whole",
        DOCUMENTS,
        "raw = read_regular(name, MOST_BYTES)",
        "raw = read_regular(name, 2 * MOST_BYTES)",
        TEST,
    ),
    Bug(
        "a name twice",
        "of two values of one name the last is taken",
        DOCUMENTS,
        "    if len(made) != len(pairs):\n",
        "    if len(made) > len(pairs):\n",
        TEST,
    ),
    Bug(
        "documents of any depth",
        "an object of any depth is taken",
        DOCUMENTS,
        "    if _depth(document) > _DEEPEST:\n",
        "    if _depth(document) > 99 * _DEEPEST:\n",
        TEST,
    ),
    Bug(
        "any schema is read",
        "facts of another schema are judged as if they were of this one",
        DOCUMENTS,
        "    if isinstance(schema, bool) or schema != SCHEMA or not isinstance(schema, int):\n",
        "    if isinstance(schema, bool) or not isinstance(schema, int):\n",
        TEST,
    ),
]
