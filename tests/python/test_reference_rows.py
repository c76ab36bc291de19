# SPDX-License-Identifier: Apache-2.0
"""Row formats: sizes, places in pages, encoding and decoding."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hybridkv.reference as ref
from hybridkv import KernelContract, SpecError
from hybridkv.reference import PUBLISHED, Part, RowFormat, ScaleRule, published
from hybridkv.reference.quantise import SMALL_FLOATS

FORMATS = [
    *PUBLISHED.values(),
    published.INDEXER_FP8.with_footer(),
    replace(published.INDEXER_FP8, hadamard=True),
    published.V41_FP8.inline(),
    published.V41_FP4.inline(),
    published.FP8_DS_MLA.paged(2),
    replace(published.FP8_DS_MLA, first_rounded_to="bfloat16"),
    published.plain("float32", 24, page_rows=3),
]
U8 = np.ndarray[Any, np.dtype[np.uint8]]


def label(row: RowFormat) -> str:
    marks = "-rotated" * row.hadamard + "-rounded" * bool(row.first_rounded_to)
    return f"{row.name}-{row.page_rows}-{row.data_bytes}{marks}"


def some_rows(row: RowFormat, count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Rows whose channels differ in size by orders of magnitude, with some zeros."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, row.channels)) * 10.0 ** rng.uniform(-4, 3, (count, row.channels))
    return np.where(rng.random(rows.shape) < 0.02, 0.0, rows)


@pytest.mark.parametrize(
    ("row", "row_bytes", "page_bytes", "page_stride", "footer"),
    [
        (published.FP8_DS_MLA, 584, 37_376, 37_440, 36_864),
        (published.FP8_DS_MLA.paged(2), 584, 1_168, 1_728, 1_152),
        (published.FP8_DS_MLA_512, 584, 37_376, 37_376, 36_864),
        (published.FP8_DS_MLA_V32, 656, 41_984, 41_984, 41_984),
        (replace(published.INDEXER_FP8, stride_multiple=576), 132, 8_448, 8_640, 8_448),
        (published.INDEXER_FP8.with_footer(), 132, 8_448, 8_448, 8_192),
        (replace(published.INDEXER_MXFP4, stride_multiple=576), 68, 4_352, 4_608, 4_352),
        (published.V41_FP8, 528, 33_792, 33_792, 32_768),
        (published.V41_FP4, 288, 18_432, 18_432, 16_384),
        (published.BFLOAT16_ROWS, 1024, 65_536, 65_536, 65_536),
    ],
    ids=lambda value: label(value) if isinstance(value, RowFormat) else "",
)
def test_sizes_of_published_formats(
    row: RowFormat, row_bytes: int, page_bytes: int, page_stride: int, footer: int
) -> None:
    got = (row.row_bytes, row.page_bytes, row.page_stride, row.footer_offset)
    assert got == (row_bytes, page_bytes, page_stride, footer)


def test_the_bytes_of_a_row_of_584_by_hand() -> None:
    """Seven tiles of 64 with a scale each, 64 channels in bfloat16, one byte of padding."""
    row = np.zeros((1, 512))
    row[0, :64] = 448.0
    row[0, 64] = -449.0  # the tile's scale becomes 2
    row[0, 128] = 3e-5  # below the floor: the scale is that of 1e-4, 2**-22
    row[0, 447] = 2.0**-9 * 448
    row[0, 448:450] = 1.0, -2.5
    packed = ref.encode_rows(row, published.FP8_DS_MLA)[0]
    assert packed[:64].tolist() == [0x7E] * 64
    assert packed[64] == 0xF6  # -224.5 lies between -224 and -240, the nearer is -224
    assert packed[128] == ref.E4M3.encode(3e-5 * 2**22)
    assert packed[447] == 0x7E
    assert packed[448:452].tolist() == [0x80, 0x3F, 0x20, 0xC0]
    assert packed[452:576].tolist() == [0] * 124
    assert packed[576:].tolist() == [127, 128, 105, 105, 105, 105, 118, 0]


def test_the_bytes_of_a_row_of_656_by_hand() -> None:
    row = np.zeros((1, 576))
    row[0, 128] = 672.0  # 1.5 * 448: the scale is no power of two
    row[0, 129] = 1.5
    row[0, 512] = 1.0
    packed = ref.encode_rows(row, published.FP8_DS_MLA_V32)[0]
    assert packed[128:130].tolist() == [0x7E, 0x38]
    scales = packed[512:528].view("<f4")
    assert scales.tolist() == [np.float32(1e-4 / 448), 1.5, np.float32(1e-4 / 448), np.float32(1e-4 / 448)]
    assert packed[528:530].tolist() == [0x80, 0x3F]


def test_the_bytes_of_packed_four_bit_rows_by_hand() -> None:
    row = np.zeros((1, 512))
    row[0, :3] = 6.0, -3.0, 0.5
    packed = ref.encode_rows(row, published.V41_FP4)[0]
    assert packed[:2].tolist() == [0xD7, 0x01] and not packed[2:256].any()
    assert packed[256:].tolist() == [0x38] + [0x01] * 31
    plain = replace(published.INDEXER_MXFP4, hadamard=False)
    packed = ref.encode_rows(row[:, :128] * 2, plain)[0]
    assert packed[:2].tolist() == [0xD7, 0x01] and packed[64:].tolist() == [128, 1, 1, 1]


@pytest.mark.parametrize("row", FORMATS, ids=label)
def test_what_is_read_differs_by_half_a_step_at_most(row: RowFormat) -> None:
    rows = some_rows(row, 40)
    packed = ref.encode_rows(rows, row)
    got = ref.decode_rows(packed, row)
    wanted = ref.rotate_hadamard(rows) if row.hadamard else rows
    first = 0
    for part in row.parts:
        mine = slice(first, first + part.channels)
        first += part.channels
        assert (np.abs(got[:, mine] - wanted[:, mine]) <= half_steps(wanted[:, mine], part, row)).all(), part
    assert (ref.encode_rows(rows, row) == packed).all()


def half_steps(values: np.ndarray[Any, Any], part: Part, row: RowFormat) -> np.ndarray[Any, Any]:
    """Half a step of the element type at each value, times the scale; and the rounding before, if there is one."""
    before = np.abs(values) * (2.0**-8 if row.first_rounded_to else 0)
    if part.element in ("float32", "float64"):
        return np.abs(values) * 2.0**-24 + before
    kind = SMALL_FLOATS[part.element]
    scales: Any = 1.0
    if part.scale is not None:
        tiles = values.reshape(len(values), -1, part.tile)
        largest = np.maximum(np.abs(tiles).max(axis=-1), part.scale.floor) / kind.largest_value
        scales = np.repeat(largest * (2 if part.scale.power_of_two else 1 + 2.0**-4), part.tile, axis=-1)
    smallest = 2.0 ** (1 - kind.bias - kind.mantissa_bits)
    beyond = part.scale is not None and part.scale.encoding == "float8_e4m3"  # a scale rounded down clips
    relative = 2.0 ** -(kind.mantissa_bits + 1)
    return np.maximum(np.abs(values) * (relative + beyond * 2.0**-4), smallest * scales) + before


@pytest.mark.parametrize("row", FORMATS, ids=label)
def test_what_was_read_is_written_again_alike(row: RowFormat) -> None:
    """Bytes of a writer survive a reader that decodes and encodes, but for a tile whose largest value was rounded."""
    plain = replace(row, hadamard=False)
    once = ref.decode_rows(ref.encode_rows(some_rows(row, 20), plain), plain)
    twice = ref.decode_rows(ref.encode_rows(once, plain), plain)
    if all(part.scale is None or part.scale.power_of_two for part in row.parts):
        assert (once == twice).all()
    else:
        assert np.abs(once - twice).max() <= np.abs(once).max() * 2.0**-3


@pytest.mark.parametrize("row", FORMATS, ids=label)
def test_rows_lie_where_the_layout_says_and_nowhere_else(row: RowFormat) -> None:
    row = row.paged(5)
    stride = row.page_stride + 24
    memory = np.full((4, stride), 0xA5, np.uint8)
    packed = np.random.default_rng(1).integers(0, 256, (6, row.row_bytes), np.uint8)
    slots = np.array([0, 19, -1, 7, 4, 11])
    ref.store_rows(packed, memory, slots, row)
    wanted = np.full((4, stride), 0xA5, np.uint8)
    for content, slot in zip(packed, slots, strict=True):
        if slot >= 0:
            page, k = divmod(int(slot), 5)
            wanted[page, k * row.data_bytes : (k + 1) * row.data_bytes] = content[: row.data_bytes]
            footer = 5 * row.data_bytes + k * row.footer_bytes
            wanted[page, footer : footer + row.footer_bytes] = content[row.data_bytes :]
    assert (memory == wanted).all()
    there = slots >= 0
    assert (ref.load_rows(memory, slots[there], row) == packed[there]).all()
    gathered = np.empty((there.sum(), row.row_bytes), np.uint8)
    ids, rows = slots[there] // 5, slots[there] % 5
    unit = math.gcd(16, row.data_bytes, row.footer_bytes)
    if stride % unit == 0:
        ref.gather(memory, ids, gathered, rows=rows, layout=row.layout)
        assert (gathered == packed[there]).all()


def test_inline_and_footer_hold_one_content_at_different_places() -> None:
    inline, footer = published.INDEXER_FP8, published.INDEXER_FP8.with_footer()
    packed = ref.encode_rows(some_rows(inline, 64), inline)
    assert (packed == ref.encode_rows(some_rows(inline, 64), footer)).all()
    pages = [np.zeros((1, 8448), np.uint8) for _ in range(2)]
    for page, row in zip(pages, (inline, footer), strict=True):
        ref.store_rows(packed, page, np.arange(64), row)
        assert (ref.load_rows(page, np.arange(64), row) == packed).all()
    misread = ref.load_rows(pages[1], np.arange(64), inline)
    assert pages[0].shape == pages[1].shape and (misread != packed).any(axis=1)[1:].all()


def test_a_wrong_scale_encoding_is_noticed() -> None:
    """Four bytes of UE8M0 read as a float32, or a scale of the neighbour: far beyond half a step."""
    rows = some_rows(published.INDEXER_MXFP4, 8)
    four = replace(published.INDEXER_FP8.parts[0], tile=32, scale=ScaleRule("ue8m0", 1e-4))
    ours = replace(published.INDEXER_FP8, parts=(four,))
    packed = ref.encode_rows(rows, ours)
    assert packed.shape[1] == published.INDEXER_FP8.row_bytes
    right, wrong = ref.decode_rows(packed, ours), ref.decode_rows(packed, published.INDEXER_FP8)
    assert np.abs(right - rows).max() <= np.abs(rows).max() / 8
    assert not (np.abs(wrong - rows).max(axis=1) <= np.abs(rows).max(axis=1) / 2).any()
    shifted = packed.copy()
    shifted[:, 128:] = np.roll(packed[:, 128:], 1, axis=1)
    assert (np.abs(ref.decode_rows(shifted, ours) - rows).max(axis=1) > np.abs(rows).max(axis=1) / 2).any()


def test_values_without_a_number_have_declared_bytes() -> None:
    rows = np.zeros((3, 512))
    rows[0, 3], rows[1, 3], rows[2, 500] = np.nan, np.inf, -np.inf
    packed = ref.encode_rows(rows, published.FP8_DS_MLA)
    assert packed[0, 3] == 0x7F and packed[0, 576] == 105
    assert packed[1, 3] == 0x7E and packed[1, 576] == 254
    assert packed[2, 448 + 104 : 448 + 106].tolist() == [0x80, 0xFF]
    assert np.isnan(ref.decode_rows(packed, published.FP8_DS_MLA)[0, 3])


GOOD = Part("all", 32, "float8_e4m3", 0, ScaleRule("ue8m0", 1e-4), 16, 32)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("row_format.name", {"name": ""}),
        ("row_format.row_bytes", {"row_bytes": 0}),
        ("row_format.page_rows", {"page_rows": True}),
        ("row_format.base_alignment", {"base_alignment": 24}),
        ("row_format.stride_multiple", {"stride_multiple": -576}),
        ("row_format.data_bytes", {"data_bytes": 41}),
        ("row_format.data_bytes", {"data_bytes": 33}),
        ("row_format.data_bytes", {"data_bytes": 31}),
        ("row_format.hadamard", {"hadamard": 1}),
        ("row_format.first_rounded_to", {"first_rounded_to": "float32"}),
        ("row_format.parts", {"parts": ()}),
        ("row_format.parts", {"parts": (None,)}),
        ("row_format.parts[all].offset", {"row_bytes": 33}),
        ("row_format.parts[more].offset", {"parts": (GOOD, replace(GOOD, name="more", offset=30, scale_offset=36))}),
        ("row_format.parts[all].channels", {"parts": (replace(GOOD, channels=0),)}),
        ("row_format.parts[all].element", {"parts": (replace(GOOD, element="int8"),)}),
        ("row_format.parts[all].scale", {"parts": (replace(GOOD, tile=None),)}),
        ("row_format.parts[all].scale", {"parts": (replace(GOOD, element="bfloat16"),)}),
        ("row_format.parts[all].tile", {"parts": (replace(GOOD, tile=24),)}),
        ("row_format.parts[all].channels", {"parts": (Part("all", 3, "float4_e2m1", 0),)}),
        ("row_format.hadamard", {"parts": (replace(GOOD, channels=24, tile=8),), "hadamard": True}),
    ],
)
def test_a_bad_format_is_refused_by_name(field: str, fields: dict[str, Any]) -> None:
    given: dict[str, Any] = {"name": "x", "row_bytes": 40, "parts": (GOOD,), "data_bytes": 32}
    RowFormat(**given)
    with pytest.raises(SpecError) as caught:
        RowFormat(**{**given, **fields})
    assert caught.value.field == field


def test_scales_within_a_row_cannot_move_to_the_footer() -> None:
    for row in (published.FP8_DS_MLA_V32, published.BFLOAT16_ROWS):
        with pytest.raises(SpecError, match=r"row_format\.parts"):
            row.with_footer()


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("packed", {"packed": np.zeros((2, 583), np.uint8)}),
        ("packed", {"packed": np.zeros((2, 584), np.int8)}),
        ("pages", {"pages": np.zeros((3, 1167), np.uint8)}),
        ("pages", {"pages": np.zeros((3, 2400), np.uint8)[:, ::2]}),
        ("pages", {"pages": np.broadcast_to(np.zeros(1168, np.uint8), (3, 1168))}),
        ("pages", {"pages": np.lib.stride_tricks.as_strided(np.zeros(4000, np.uint8), (3, 1168), (1160, 1))}),
        ("pages", {"pages": [[0]]}),
        ("slots", {"slots": np.array([0, 6])}),
        ("slots", {"slots": np.array([-2, 0])}),
        ("slots", {"slots": np.array([1, 1])}),
        ("slots", {"slots": np.array([1])}),
        ("slots", {"slots": np.array([0.0, 1.0])}),
    ],
)
def test_a_store_that_is_refused_writes_nothing(argument: str, change: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "packed": np.ones((2, 584), np.uint8),
        "pages": np.zeros((3, 1168), np.uint8),
        "slots": np.array([0, 1]),
        **change,
    }
    with pytest.raises(KernelContract) as caught:
        ref.store_rows(**given, row_format=published.FP8_DS_MLA.paged(2))
    assert caught.value.field == argument and not np.any(given["pages"])


def test_rows_of_another_width_are_refused() -> None:
    for shape in ((512,), (1, 511)):
        with pytest.raises(KernelContract, match="rows"):
            ref.encode_rows(np.zeros(shape), published.FP8_DS_MLA)


@pytest.mark.parametrize("row", FORMATS, ids=label)
def test_no_rows_are_no_rows(row: RowFormat) -> None:
    packed = ref.encode_rows(np.empty((0, row.channels)), row)
    assert packed.shape == (0, row.row_bytes) and ref.decode_rows(packed, row).shape == (0, row.channels)
