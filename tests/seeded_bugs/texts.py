# SPDX-License-Identifier: Apache-2.0
"""Bugs of texts and paths that are given, of files of others, and of what is printed of them."""

from __future__ import annotations

from seeded_bugs import Bug

TEXTS, PRINTED = "python/hybridkv/texts.py", "python/hybridkv/printed.py"
GIVEN, SHOWN = "tests/python/test_texts.py", "tests/python/test_printed.py"
KEPT = "tests/python/test_manifest_files.py"

BUGS = [
    Bug(
        "half a pair taken",
        "a name that UTF-8 cannot encode is taken, and fails later where it is written down",
        TEXTS,
        "    if not is_encodable(text):\n",
        '    if not is_encodable(text) and "/" in text:\n',
        f"{GIVEN}::test_half_a_surrogate_pair_is_refused_at_the_entry",
    ),
    Bug(
        "NUL in a path",
        "a path with a NUL leaves the call as an error of the system's",
        TEXTS,
        'not text or "\\0" in text:',
        "not text:",
        f"{GIVEN}::test_a_path_that_no_file_has_is_refused_at_the_entry",
    ),
    Bug(
        "identities unchecked",
        "keys are made of a name that no manifest can hold",
        "python/hybridkv/identity.py",
        '        encodable(f"identity.{name}", value)\n',
        "        pass\n",
        f"{GIVEN}::test_keys_are_not_made_of_what_is_refused_later",
    ),
    Bug(
        "escapes to the terminal",
        "a file of others can clear the screen of who looks at it",
        PRINTED,
        "c if c.isprintable() else c.encode",
        'c if c.isprintable() or c == "\\x1b" else c.encode',
        f"{SHOWN}::test_a_file_cannot_fake_a_line",
    ),
    Bug(
        "lines of others",
        "a value of a file can look like a line of the report",
        PRINTED,
        'return "\\n".join(map(printable, lines))',
        'return "\\n".join(lines)',
        f"{SHOWN}::test_a_file_cannot_fake_a_line",
    ),
    Bug(
        "messages of many lines",
        "what a message says of a value can look like another message",
        "python/hybridkv/errors.py",
        "super().__init__(printable(f",
        "super().__init__(str(f",
        f"{SHOWN}::test_a_message_is_one_line_that_can_be_printed",
    ),
    Bug(
        "more written than is read",
        "a tier cannot read the file that it wrote",
        "python/hybridkv/formats/manifest_file.py",
        "MOST_FILE_BYTES = MOST_MANIFESTS * (MOST_BYTES + 1)",
        "MOST_FILE_BYTES = 8 * MOST_BYTES",
        f"{KEPT}::test_as_many_as_are_known_can_be_read_again",
    ),
    Bug(
        "the last writer wins",
        "of two tiers that keep one file, one forgets who wrote into the other",
        "python/hybridkv/tiers/known_writers.py",
        "others = () if file is None else read_manifests(file)",
        "others = () if file is None or self._manifests else read_manifests(file)",
        f"{KEPT}::test_two_tiers_that_keep_one_file_lose_nothing",
    ),
]
