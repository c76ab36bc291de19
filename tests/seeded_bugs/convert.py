# SPDX-License-Identifier: Apache-2.0
"""Bugs in conversions: what moves where, scales in their other form, what is looked at before a byte is written."""

from __future__ import annotations

from seeded_bugs import Bug

CONVERT, REWRITE = "python/hybridkv/conversion.py", "python/hybridkv/row_rewrite.py"
PLAN = "python/hybridkv/reference/conversion_plan.py"
DONE, REFUSED = "tests/python/test_ops_convert.py", "tests/python/test_ops_convert_refused.py"
PLANNED = "tests/python/test_conversion_plan.py"

BUGS = [
    Bug(
        "pairs the wrong way round",
        "interleaved pairs are read as halves, and halves as pairs",
        REWRITE,
        "source.rope_dims, width, bool(source.interleaved)",
        "source.rope_dims, width, not source.interleaved",
        f"{DONE}::test_rows_that_were_rotated_one_way_are_those_rotated_the_other_way",
    ),
    Bug(
        "rotated channels not turned",
        "the order of rotated channels stays as it is",
        REWRITE,
        "if source.interleaved != target.interleaved:",
        "if source.rope_dims != target.rope_dims:",
        f"{DONE}::test_rows_that_were_rotated_one_way_are_those_rotated_the_other_way",
    ),
    Bug(
        "scale of half the size",
        "a UE8M0 code is one too small",
        REWRITE,
        "return (stored >> _MANTISSA_BITS).astype(np.uint8)",
        "return ((stored >> _MANTISSA_BITS) - 1).astype(np.uint8)",
        f"{DONE}::test_every_scale_that_both_have_comes_through",
    ),
    Bug(
        "least scale becomes zero",
        "code 0, which has a subnormal float32, is shifted like the others",
        REWRITE,
        "np.where(stored == 0, _LEAST, ",
        "np.where(stored == 0, np.uint32(0), ",
        f"{DONE}::test_every_scale_that_both_have_comes_through",
    ),
    Bug(
        "every scale is a power of two",
        "the mantissa of a scale is not looked at",
        REWRITE,
        "normal = (stored & _MANTISSA == 0) & (exponents > 0)",
        "normal = (exponents > 0)",
        f"{REFUSED}::test_a_scale_that_is_no_power_of_two_is_told_with_its_place",
    ),
    Bug(
        "sign of a scale lost",
        "a negative power of two is taken for a positive one",
        REWRITE,
        "exponents = stored >> _MANTISSA_BITS",
        "exponents = (stored >> _MANTISSA_BITS) & 0xFF",
        f"{REFUSED}::test_a_scale_that_is_no_power_of_two_is_told_with_its_place",
    ),
    Bug(
        "first of four scales taken",
        "scales that become one are not compared",
        REWRITE,
        "for i in range(1, merged)]",
        "for i in range(1, min(merged, 1))]",
        f"{REFUSED}::test_scales_that_are_not_one_are_told_with_their_place",
    ),
    Bug(
        "footer taken for data",
        "bytes that come to lie in the footer are moved as if all lay in the row",
        REWRITE,
        "cuts = {source.data_bytes - move.first, target.data_bytes - move.to}",
        "cuts = {source.data_bytes - move.first}",
        f"{DONE}::test_what_a_reader_decodes_is_the_same_to_the_bit",
    ),
    Bug(
        "padding of a row left over",
        "bytes of a new row that nothing moves to hold what was there",
        CONVERT,
        "else np.zeros((most, sizes[1]), np.uint8)",
        "else np.full((most, sizes[1]), 7, np.uint8)",
        f"{DONE}::test_padding_inside_a_row_moves_along_or_is_zero",
    ),
    Bug(
        "scales of one layer looked at",
        "the first layer stands for all",
        CONVERT,
        "for layer in range(len(self.reader.layers)):",
        "for layer in range(1):",
        f"{REFUSED}::test_the_last_scale_of_the_last_layer_is_looked_at_before_the_first_row_is_written",
    ),
    Bug(
        "rows that fill no block forgotten",
        "a page that is not full loses its last rows",
        CONVERT,
        "(1, whole * block_rows, counts % block_rows)",
        "(1, whole * block_rows, 0 * counts)",
        f"{DONE}::test_a_page_of_64_rows_and_one_of_256",
    ),
    Bug(
        "rows that are apart moved together",
        "padding of rows is taken for rows",
        CONVERT,
        "dense = all(pool.rows[2] == pool.rows[1] for pool in (reader, writer))",
        "dense = True",
        f"{DONE}::test_padded_rows_and_packed_ones",
    ),
    Bug(
        "null page converted",
        "the page that padding of ids points to counts as held",
        CONVERT,
        "np.where(ids == null, -1, ids)",
        "np.where(ids == null, ids, ids)",
        f"{REFUSED}::test_scales_of_rows_that_do_not_move_do_not_count",
    ),
    Bug(
        "page for two sequences",
        "a page of the output that is named twice is not noticed",
        CONVERT,
        "if (times > 1).any():",
        "if (times > 2).any():",
        f"{REFUSED}::test_refused_by_name_and_nothing_written",
    ),
    Bug(
        "output of read memory",
        "an output within the pool is not noticed",
        CONVERT,
        "refuse_overlaps([writer], spans, into_pools=True)",
        "refuse_overlaps([writer], spans, into_pools=False)",
        f"{REFUSED}::test_refused_by_name_and_nothing_written",
    ),
    Bug(
        "way across tiles",
        "channels are said to keep their value under the scale of another tile",
        PLAN,
        "elif _shared_tile(source, target) < source.rope_dims:",
        "elif _shared_tile(source, target) < 0:",
        f"{PLANNED}::test_what_stands_in_the_way_is_named_in_both_directions",
    ),
    Bug(
        "floor of scales not compared",
        "formats are one though writers derive other scales near zero",
        PLAN,
        'self._same(f"{where}.scale.floor", rule.floor, wanted.floor, derived)',
        'self._same(f"{where}.scale.floor", rule.floor, rule.floor, derived)',
        f"{PLANNED}::test_what_stands_in_the_way_is_named_in_both_directions",
    ),
]
