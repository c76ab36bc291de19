# SPDX-License-Identifier: Apache-2.0
"""Bugs in what looks at a store from outside: what it must find, must not find, and must not do."""

from __future__ import annotations

from seeded_bugs import Bug

READ_ONLY, STREAM = "csrc/tier/read_only_io.h", "csrc/tier/region_stream.cpp"
CHECK, WALK = "csrc/tier/region_check.cpp", "csrc/tier/store_walk.cpp"
REPORT, TEST = "python/hybridkv/store_report.py", "tests/python/test_cli_store.py"
PROGRAM = "tier.disk_index_test"
HISTORY, BIT, DEVICE = "a walk says of each record", "a flipped bit is a flaw", "where nothing can be read"
AHEAD = "wherever chunks that are read ahead"

BUGS = [
    Bug(
        "listings among boundaries",
        "a record that holds nothing of a prefix counts as one that a request can resume from",
        REPORT,
        'kind = "boundary" if what == "tip" else what',
        'kind = "boundary" if what in ("tip", "listing") else what',
        "tests/python/test_transfers_tips.py::test_inspect_and_verify_name_tips",
    ),
    Bug(
        "walk that removes",
        "looking at a store removes what a crash left of its superblock",
        READ_ONLY,
        "int remove(const std::string&) override { return -EROFS; }",
        "int remove(const std::string& name) override { return io_.remove(name); }",
        PROGRAM,
        HISTORY,
    ),
    Bug(
        "checksum of a part not compared",
        "a part is read and its checksum made, and nothing follows from it",
        CHECK,
        "if (!wrong(flaw) && crc != parts[i].crc) {",
        "if (!wrong(flaw) && crc != parts[i].crc && i > 1) {",
        PROGRAM,
        BIT,
    ),
    Bug(
        "fill not compared",
        "a byte between records that is no zero any more goes unnoticed",
        CHECK,
        "if (at == piece.count || wrong(set)) return;",
        "if (at != piece.count || wrong(set)) return;",
        PROGRAM,
        BIT,
    ),
    Bug(
        "damaged footer taken for none",
        "a footer whose end is garbled looks like one that was never written",
        WALK,
        "if (!trailer && first_set(last) == last.size()) return;",
        "if (!trailer) return;",
        PROGRAM,
        BIT,
    ),
    Bug(
        "losses counted twice",
        "a damaged record above a damaged one counts for itself and with the other",
        WALK,
        "if (below == none_u32) lost += index_->tree_size(n, none_u32);",
        "lost += index_->tree_size(n, none_u32);",
        PROGRAM,
        DEVICE,
    ),
    Bug(
        "unreadable bytes compared",
        "memory that a failed read left as it was is taken for what is on disk",
        STREAM,
        "  if (from->whole()) {\n",
        "  if (from->done) {\n",
        PROGRAM,
        DEVICE,
    ),
    Bug(
        "a bad sector takes a megabyte",
        "where a chunk cannot be read none of its records can",
        STREAM,
        "  if (!from->whole()) {\n",
        "  if (!from->done) {\n",
        PROGRAM,
        DEVICE,
    ),
    Bug(
        "chunk read into too early",
        "the chunk that is being looked at is read into again",
        STREAM,
        "given_up_to_ < at_ / chunk_bytes; ++",
        "given_up_to_ <= at_ / chunk_bytes; ++",
        PROGRAM,
        AHEAD,
    ),
    Bug(
        "damage beside records ignored",
        "a store with a damaged header or footer is called sound",
        REPORT,
        "wrong = bool(flaws) or any(",
        "wrong = any(",
        f"{TEST}::test_a_flipped_byte_of_a_header_or_footer_is_found_and_takes_nothing",
    ),
    Bug(
        "quarantine of what can be read",
        "a record is removed though no byte of it that anybody gets is wrong",
        REPORT,
        'if record["standing"] == "live" and not record["readable"]]\n',
        'if record["standing"] == "live"]\n',
        f"{TEST}::test_quarantine_removes_the_damaged_and_what_stands_on_it",
    ),
    Bug(
        "removed and damaged is not sound",
        "what nobody can ask for any more fails a verification for good",
        REPORT,
        'any(record["standing"] == "live" for record in damaged)',
        "bool(damaged)",
        f"{TEST}::test_what_is_damaged_and_removed_already_is_listed_and_does_no_harm",
    ),
    Bug(
        "bytes beyond a file's end counted",
        "a record that was cut off counts with all its bytes",
        "python/hybridkv/tiers/store.py",
        "return max(0, min(record.offset + record.bytes, self.bytes) - record.offset)",
        "return record.bytes",
        f"{TEST}::test_a_record_whose_fill_is_cut_off_is_not_counted_on",
    ),
]
