# SPDX-License-Identifier: Apache-2.0
"""Bugs of ranks: whose pages a record holds, and who may read them."""

from __future__ import annotations

from seeded_bugs import Bug

RANKS = "python/hybridkv/formats/ranks.py"
TESTS = "tests/python/test_ranks.py"
STORE = f"{TESTS}::test_the_store_of_another_rank_is_no_hit_and_says_why"

BUGS = [
    Bug(
        "rank out of the records",
        "records of one rank are read as another's",
        "python/hybridkv/record_formats.py",
        "    items += ranks.shares(",
        "    _ = ranks.shares(",
        STORE,
    ),
    *(
        Bug(
            f"position of {kind} ranks left out",
            f"records of two {kind} ranks of one geometry have one name",
            RANKS,
            f"(self.{axis}, self.{axis}_rank",
            f"(self.{axis}, 0",
            STORE,
        )
        for kind, axis in (("tensor", "tp"), ("pipeline", "pp"), ("context", "dcp"))
    ),
    Bug(
        "interleave left out",
        "context ranks that keep other tokens in turn read each other's records",
        RANKS,
        "self.dcp_rank, self.dcp_interleave)",
        "self.dcp_rank)",
        f"{TESTS}::test_every_rank_of_every_geometry_has_names_of_its_own",
    ),
    Bug(
        "one rank of one named",
        "records of one rank alone get another name than they had, and every old store is lost",
        RANKS,
        "        if self.pp > 1:",
        "        if self.pp > 0:",
        f"{TESTS}::test_records_of_one_rank_have_the_names_that_they_always_had",
    ),
    Bug(
        "replicated and not found",
        "bytes that are equal on every tensor rank are stored once for each",
        RANKS,
        "        if self.tp > 1 and not replicated:",
        "        if self.tp > 1:",
        f"{TESTS}::test_what_is_replicated_is_a_hit_on_every_tensor_rank",
    ),
    Bug(
        "one replicated group replicates all",
        "windows of another rank's heads are read beside replicated history",
        RANKS,
        "    return all(group.format",
        "    return any(group.format",
        f"{TESTS}::test_of_a_mix_history_is_found_and_windows_are_not",
    ),
    Bug(
        "replicated across stages",
        "a stage reads the layers of another, whose groups are replicated among tensor ranks",
        RANKS,
        "        if self.pp > 1:",
        "        if self.pp > 1 and not replicated:",
        f"{TESTS}::test_tensor_ranks_decide_nothing_of_what_is_replicated",
    ),
    Bug(
        "positions agree",
        "two tensor ranks agree to read each other's bytes",
        "python/hybridkv/formats/negotiation.py",
        'if a != b and f.name in ("tp", "tp_rank") and replicated:',
        'if a != b and (f.name == "tp_rank" or f.name == "tp" and replicated):',
        f"{TESTS}::test_positions_are_compared",
    ),
    Bug(
        "manifest of another rank",
        "every manifest says one rank",
        "python/hybridkv/formats/manifest.py",
        "            ranks=spec.ranks,\n",
        "            ranks=RankGeometry(),\n",
        f"{TESTS}::test_a_cache_declares_the_ranks_of_its_spec",
    ),
    Bug(
        "rank of none",
        "a rank that is none of the ranks is taken",
        RANKS,
        "if rank is None or not 0 <= rank < ranks:",
        "if rank is None or rank < 0:",
        f"{TESTS}::test_a_rank_that_is_none_is_refused",
    ),
]
