# SPDX-License-Identifier: Apache-2.0
"""Bugs in tail compression: pooling, norm, rotation, quantisers, carries, bytes moved."""

from __future__ import annotations

from seeded_bugs import Bug

COMPRESS, POOL = "csrc/kernels/compress.cpp", "csrc/kernels/window_pool.h"
NORM, CODES, CHECK = (
    "csrc/kernels/entry_norm.h", "csrc/kernels/row_codes.h", "csrc/kernels/compress_check.cpp",
)  # fmt: skip
CORE = "kernels.compress_test"

BUGS = [
    Bug(
        "overlap reads its own half",
        "slots of the window before take the second half of a row",
        COMPRESS,
        "return own && call_.overlap ? call_.width : 0;",
        "return call_.overlap ? call_.width : 0;",
        CORE,
        "entries are those",
    ),
    Bug(
        "first window draws on nothing",
        "entry 0 pools the slots of a window that is not there",
        COMPRESS,
        "drawn_(call.overlap && entry > 0 ? call.ratio : 0)",
        "drawn_(call.overlap ? call.ratio : 0)",
        CORE,
        "entries are those",
    ),
    Bug(
        "chunks forget what came before",
        "each chunk of slots sets the sums instead of adding to them",
        POOL,
        "if (!first) {",
        "if (false) {",
        CORE,
        "entries are those",
    ),
    Bug(
        "score limit not looked at",
        "a window of large scores is left with powers beyond float32",
        POOL,
        "return below || !Rows::above(most);",
        "return true;",
        CORE,
        "scores beyond",
    ),
    Bug(
        "norm without eps",
        "the norm divides by the mean square alone",
        NORM,
        "1.0 / std::sqrt(mean_square + eps)",
        "1.0 / std::sqrt(mean_square)",
        CORE,
        "scores beyond",
    ),
    Bug(
        "rotation backwards",
        "pairs are turned by the negative angle",
        NORM,
        "a * turn.cosine - b * turn.sine",
        "a * turn.cosine + b * turn.sine",
        CORE,
        "by hand",
    ),
    Bug(
        "entry rotated at the next window",
        "the position of an entry is the first behind its window",
        COMPRESS,
        "entry * call_.ratio, scratch)",
        "entry * call_.ratio + call_.ratio, scratch)",
        CORE,
        "by hand",
    ),
    Bug(
        "ties away from zero",
        "a quantiser rounds half up instead of to even",
        CODES,
        "((a >> dropped) & 1u)",
        "1u",
        CORE,
        "by hand",
    ),
    Bug(
        "scale one step too small",
        "a scale is the power of two below, where the largest channel does not fit",
        CODES,
        "(limit_bits & fraction_bits) ? 1 : 0",
        "(limit_bits & fraction_bits) ? 0 : 0",
        CORE,
        "by hand",
    ),
    Bug(
        "first halves missing from the carry",
        "the window before the open one is not kept",
        "csrc/kernels/compress.h",
        "return overlap && opened > 0 ? opened - ratio : opened;",
        "return opened;",
        CORE,
        "the new carry",
    ),
    Bug(
        "rows read twice",
        "the window is scanned before it is pooled, though no score is large",
        COMPRESS,
        "bool near = true;",
        "bool near = false;",
        CORE,
        "the bytes moved",
    ),
    Bug(
        "mask off by one",
        "an entry that ends at the mask is written",
        "csrc/kernels/compress.h",
        "(entry + 1) * call.ratio <= call.mask(q)",
        "(entry + 1) * call.ratio < call.mask(q)",
        CORE,
        "a masked entry",
    ),
    Bug(
        "reads behind a row",
        "the last block of a row is loaded whole",
        POOL,
        "for (; at + step <= width; at += step) {",
        "for (; at < width; at += step) {",
        CORE,
        "entries are those",
    ),
    Bug(
        "one row for two",
        "a row that two entries take is not noticed",
        CHECK,
        "if (slot >= 0 && !taken.insert(slot)) twice = true;",
        "if (slot >= 0) taken.insert(slot);",
        CORE,
        "lists that are wrong",
    ),
]
