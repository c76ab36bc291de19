# SPDX-License-Identifier: Apache-2.0
"""Bugs of what kernels need of a pool, and of what is made of it."""

from __future__ import annotations

from seeded_bugs import Bug

CHECKS, CHOICE = "python/hybridkv/alignment/checks.py", "python/hybridkv/alignment/choice.py"
NEEDS, BASE = "python/hybridkv/alignment/needs.py", "python/hybridkv/cache_base.py"
DECLARED = "tests/python/test_declared_formats.py"
TEST, CASES = "tests/python/test_alignment.py", "tests/python/test_field_cases_alignment.py"

BUGS = [
    Bug(
        "stride of another tensor map",
        "the page stride of MODEL1 is compared with the TMA stride of V3.2",
        NEEDS,
        "        page_stride_multiple=576,\n",
        "        page_stride_multiple=656,\n",
        TEST,
    ),
    Bug(
        "footer not looked for",
        "a footer that begins elsewhere than the kernel reads it passes",
        CHECKS,
        "expected_at is not None and pool.footer_offset != expected_at:",
        "expected_at is None and pool.footer_offset != expected_at:",
        TEST,
    ),
    Bug(
        "first layer only",
        "of a pool of one array only the first layer's address is checked",
        CHECKS,
        "    starts = _layer_offsets(group) if together else (0,)\n",
        "    starts = (0,)\n",
        TEST,
    ),
    Bug(
        "coordinates wrap",
        "pages beyond the reach of 32-bit coordinates pass",
        CHECKS,
        "pool.pages * (stride // needs.coordinate_bytes) >= COORDINATES:",
        "pool.pages * (stride // needs.coordinate_bytes) > 2 * COORDINATES:",
        CASES,
    ),
    Bug(
        "footer of a part of a page",
        "a kernel with footers is given pages that are several of its own",
        CHECKS,
        "    if needs.footer_row_bytes:\n        return None\n",
        "    if needs.footer_row_bytes:\n        pass\n",
        CASES,
    ),
    Bug(
        "padding where none is taken",
        "pages with padding pass for a kernel that wants them adjacent",
        CHECKS,
        "elif needs.adjacent_pages and stride != pool.page_bytes:",
        "elif needs.adjacent_pages and stride < pool.page_bytes:",
        TEST,
    ),
    Bug(
        "what slows refuses",
        "a need that only makes bytes slower takes every hit",
        CHECKS,
        "    codes = {violation.code for violation in of_kernels if violation.effect == REFUSED}\n",
        "    codes = {violation.code for violation in of_kernels}\n",
        TEST,
    ),
    Bug(
        "kernels forgotten at bind",
        "what kernels cannot take of a pool is told and stops no hit",
        BASE,
        "*([of_kernels] if of_kernels else [])",
        "*([] if of_kernels else [])",
        TEST,
    ),
    Bug(
        "stale plan loads",
        "a plan that was made before the pool was bound anew loads into it",
        "python/hybridkv/transfers.py",
        "            if wrong := told(self.alignment(group), None):\n",
        "            if wrong := told(self.alignment(group)[:0], None):\n",
        TEST,
    ),
    Bug(
        "pools of another kernel",
        "arrays that a kernel cannot take are taken to be scattered into",
        "python/hybridkv/paged_pool.py",
        "            if violation.effect == REFUSED:\n",
        "            if violation.effect != REFUSED:\n",
        TEST,
    ),
    Bug(
        "sum for common multiple",
        "pages are suggested that one of two kernels does not take",
        CHOICE,
        "    stride = lcm(*(one.page_stride_multiple for one in needs))\n",
        "    stride = max(one.page_stride_multiple for one in needs)\n",
        TEST,
    ),
    Bug(
        "padding suggested where none is taken",
        "padded pages are suggested for a kernel that takes none",
        CHOICE,
        "    if not any(one.adjacent_pages for one in needs):\n",
        "    if not all(one.adjacent_pages for one in needs):\n",
        TEST,
    ),
    Bug(
        "misaligned pool restored into",
        "a restore is offered into a pool whose pages no match could use, again and again",
        "csrc/cache/tier_match.cpp",
        "  if (!aligned_at(s, tokens)) return Obtainable::No;\n",
        "",
        "cache.transfers_test",
        "nothing is restored into a pool that its kernels cannot take",
    ),
    Bug(
        "kernels before the declaration",
        "the code of a kernel's need is told where the group's own declaration is not met",
        "csrc/cache/cache.cpp",
        "  misaligned_[g] = declared != Code::None ? declared : of_kernels;\n",
        "  misaligned_[g] = of_kernels != Code::None ? of_kernels : declared;\n",
        "cache.transfers_test",
        "what the group itself declares comes before what kernels need",
    ),
    Bug(
        "needs of kernels dropped",
        "the core forgets what kernels cannot take of a pool",
        "csrc/cache/cache.cpp",
        "  misaligned_[g] = declared != Code::None ? declared : of_kernels;\n",
        "  misaligned_[g] = declared;\n  (void)of_kernels;\n",
        "cache.transfers_test",
        "what kernels cannot take of a pool is told by match, with its code",
    ),
    Bug(
        "group against its format",
        "a group may have other rows and pages than its own format",
        "python/hybridkv/group.py",
        "        check_format(self)\n",
        "",
        DECLARED,
    ),
    Bug(
        "formats of a kernel unasked",
        "a kernel is named by a group whose format it does not read",
        "python/hybridkv/alignment/declared_formats.py",
        "    if not wrong[nearest]:\n",
        "    if len(wrong[nearest]) < 99:\n",
        DECLARED,
    ),
    Bug(
        "formats of a kernel unasked at bind",
        "a kernel is bound to a group whose format it does not read",
        CHECKS,
        "        if (wrong := unread(one, group.format)) is not None:\n",
        "        if (wrong := unread(one, None)) is not None:\n",
        DECLARED,
    ),
    Bug(
        "slow rows unsaid",
        "pages are suggested whose rows go slower, and no word of it",
        CHOICE,
        "conflicts=(*conflicts, *slower))",
        "conflicts=(*conflicts, *slower[:0]))",
        DECLARED,
    ),
]
