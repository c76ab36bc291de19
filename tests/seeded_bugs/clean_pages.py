# SPDX-License-Identifier: Apache-2.0
"""Bugs of an eviction that knows what a tier has too."""

from __future__ import annotations

from seeded_bugs import Bug

ORDER, STANDING, TEST = "csrc/alloc/usability.cpp", "csrc/alloc/standing.cpp", "alloc.usability_test"

BUGS = [
    Bug(
        "copies count for nothing",
        "eviction asks nobody what a tier has",
        ORDER,
        "  rank = rank << 1 | (copied ? 0u : 1u);\n",
        "  rank = rank << 1 | (copied ? 1u : 1u);\n",
        TEST,
        "what the tier has a copy of",
    ),
    Bug(
        "copies before age",
        "what was just loaded goes before what nobody used for long, since the tier has it",
        ORDER,
        "  rank = rank << 6 | static_cast<std::uint64_t>(32 - octave);\n  rank = rank << 1 | (copied ? 0u : 1u);\n",
        "  rank = rank << 1 | (copied ? 0u : 1u);\n  rank = rank << 6 | static_cast<std::uint64_t>(32 - octave);\n",
        TEST,
        "used much later stays",
    ),
    Bug(
        "all that is not old is as old",
        "ages are compared with a horizon that lies far ahead, beside which they are all alike",
        ORDER,
        "std::max(~used, Recency::ahead) - Recency::ahead;",
        "std::max(~used, Recency::ahead);",
        TEST,
        "used much later stays",
    ),
    Bug(
        "age lost within a factor of two",
        "of what is about as old anything may go first",
        ORDER,
        "((std::uint64_t{1} << rest_bits) - 1 - rest);",
        "(rest - rest);",
        TEST,
        "what the tier has a copy of",
    ),
    Bug(
        "copies of states passed over",
        "of two tails the older goes first, although only the other can be loaded again",
        STANDING,
        "    node.copies = b.slots_in(Phase::ReadyCopy);\n",
        "",
        TEST,
        "of tails about as old",
    ),
    Bug(
        "copied prefix without what continues it",
        "a copied prefix comes up before its suffix, and is passed over then",
        STANDING,
        "    tell_alone(node);\n",
        "    if (node.is(kPinnedB)) tell_alone(node);\n",
        TEST,
        "a copied prefix stays",
    ),
]
