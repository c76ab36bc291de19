# SPDX-License-Identifier: Apache-2.0
"""Conversions: what a reader decodes is the same to the bit, and what is not a row keeps its bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridkv as hk
import hybridkv.conversion as conversion
import hybridkv.reference as ref
from convert_support import VARIANTS, channels_of, filled, ids, label, packed_rows, pages, related, rotated
from hybridkv.reference import Part, RowFormat, ScaleRule, published
from kernel_model import level

__all__ = ["level"]  # a fixture

BOTH = [pytest.param(hk.ops.convert, id="ops"), pytest.param(ref.convert, id="reference")]

FP8 = published.INDEXER_FP8

WITH_PAIRS = [
    rotated(row, interleaved)
    for row in (published.FP8_DS_MLA, published.FP8_DS_MLA.inline(), published.INDEXER_FP8, published.INDEXER_FP8_UE8M0,
                published.BFLOAT16_ROWS, published.plain("float32", 96), published.FP8_DS_MLA_V32)
    for interleaved in (True, False)
]  # fmt: skip

# Bytes of odd places, and two scaled parts of which each goes another way.
ODD = [
    replace(FP8, name="odd", row_bytes=137, data_bytes=137, parts=(replace(FP8.parts[0], offset=7, scale_offset=1),)),
    replace(FP8, name="odd"),
]
FLOAT32, CODES = (ScaleRule(encoding, 1e-4) for encoding in ("float32", "ue8m0"))
TWO = [
    RowFormat(
        "two", 181,
        (Part("a", 64, "float8_e4m3", 0, FLOAT32, 64, 65), Part("b", 64, "float8_e4m3", 69, CODES, 32, 133),
         Part("c", 22, "bfloat16", 135)),
        rope_dims=20, interleaved=True,
    ),
    RowFormat(
        "two", 184,
        (Part("a", 64, "float8_e4m3", 0, CODES, 16, 172), Part("b", 64, "float8_e4m3", 64, FLOAT32, 64, 178),
         Part("c", 22, "bfloat16", 128)),
        data_bytes=172, rope_dims=20, interleaved=False,
    ),
]  # fmt: skip

LOSSLESS = [
    pytest.param(a, b, id=f"{label(a)} to {label(b)}")
    for formats in (VARIANTS, WITH_PAIRS, ODD, TWO)
    for a in formats
    for b in formats
    if related(a, b)
]


@pytest.mark.parametrize("convert", BOTH)
@pytest.mark.parametrize(("source", "target"), LOSSLESS)
def test_what_a_reader_decodes_is_the_same_to_the_bit(convert: Any, source: RowFormat, target: RowFormat) -> None:
    rng = np.random.default_rng(1)
    source, target = source.paged(6), target.paged(4)
    pool, out = filled(rng, source, 4), pages(rng, target, 6)
    convert(pool, ids([2, 0, 3]), out, ids([5, 1, 0, 2, 3]), source=source, target=target)
    before = ref.decode_rows(ref.load_rows(pool, np.r_[12:18, 0:6, 18:24], source), source)
    after = ref.decode_rows(ref.load_rows(out, np.r_[20:24, 4:8, 0:4, 8:12, 12:14], target), target)
    assert after.tobytes() == before[:, channels_of(source, target)].tobytes()


@pytest.mark.parametrize("interleaved", [True, False])
def test_rows_that_were_rotated_one_way_are_those_rotated_the_other_way(interleaved: bool) -> None:
    """Channels in the other order, rotated as that order asks: the bytes are those of the conversion."""
    rng = np.random.default_rng(2)
    source, target = (rotated(published.FP8_DS_MLA.paged(4), way) for way in (interleaved, not interleaved))
    rows, positions = rng.standard_normal((8, 512)), np.arange(8)
    here, there = (ref.Rope(64, 160000.0, interleaved=way) for way in (interleaved, not interleaved))
    pool, out, wanted = (pages(rng, row, 2) for row in (source, target, target))
    wanted[...] = out
    ref.store_rows(ref.encode_rows(here.rotate(rows, positions), source), pool, np.arange(8), source)
    turned = there.rotate(rows[:, channels_of(source, target)], positions)
    ref.store_rows(ref.encode_rows(turned, target), wanted, np.arange(8), target)
    hk.ops.convert(pool, ids([0, 1]), out, ids([0, 1]), source=source, target=target)
    assert (out == wanted).all()


def test_scales_by_hand() -> None:
    source, target = published.INDEXER_FP8.paged(1), published.INDEXER_FP8_UE8M0.paged(1)
    packed = np.zeros((3, 132), np.uint8)
    packed[:, 128:].view("<f4")[:, 0] = 2.0**-127, 1.0, 2.0**127
    pool, out = np.zeros((3, source.page_stride), np.uint8), np.full((3, target.page_stride), 9, np.uint8)
    ref.store_rows(packed, pool, np.arange(3), source)
    hk.ops.convert(pool, ids([0, 1, 2]), out, ids([0, 1, 2]), source=source, target=target)
    assert out[:, 128:132].tolist() == [[0] * 4, [127] * 4, [254] * 4]
    back = np.full_like(pool, 9)
    hk.ops.convert(out, ids([0, 1, 2]), back, ids([0, 1, 2]), source=target, target=source)
    assert (back[:, :132] == pool[:, :132]).all() and (back[:, 132:] == 9).all()


@pytest.mark.parametrize("encoding", ["float32", "ue8m0"])
def test_every_scale_that_both_have_comes_through(encoding: str) -> None:
    source, target = published.INDEXER_FP8.paged(255), published.INDEXER_FP8_UE8M0.paged(255)
    packed = np.zeros((255, 132), np.uint8)
    packed[:, 128:] = np.ldexp(1.0, np.arange(255) - 127).astype("<f4").view(np.uint8).reshape(255, 4)
    other = np.zeros((255, 132), np.uint8)
    other[:, 128:] = np.arange(255)[:, None]
    if encoding == "ue8m0":
        source, target, packed, other = target, source, other, packed
    pool, out = (np.zeros((1, row.page_stride), np.uint8) for row in (source, target))
    ref.store_rows(packed, pool, np.arange(255), source)
    hk.ops.convert(pool, ids([0]), out, ids([0]), source=source, target=target)
    assert (ref.load_rows(out, np.arange(255), target) == other).all()


def test_a_page_of_64_rows_and_one_of_256() -> None:
    rng = np.random.default_rng(3)
    small, large = published.FP8_DS_MLA, published.FP8_DS_MLA.paged(256)
    pool, out = filled(rng, small, 9), pages(rng, large, 3)
    before = out.copy()
    hk.ops.convert(pool, ids([8, 1, 4, 0, 7]), out, ids([2, 0]), source=small, target=large, row_counts=ids(300)[0])
    slots = np.concatenate([np.arange(64) + 64 * page for page in (8, 1, 4, 0, 7)])[:300]
    got = ref.load_rows(out, np.r_[512:768, 0:44], large)
    assert (got == ref.load_rows(pool, slots, small)).all()
    assert (ref.load_rows(out, np.r_[44:512], large) == ref.load_rows(before, np.r_[44:512], large)).all()
    assert (out[:, large.page_bytes :] == before[:, large.page_bytes :]).all()
    back = pages(rng, small, 9)
    hk.ops.convert(out, ids([2, 0]), back, ids([8, 1, 4, 0, 7]), source=large, target=small, row_counts=ids(300)[0])
    assert (ref.load_rows(back, slots, small) == ref.load_rows(pool, slots, small)).all()


def test_padded_rows_and_packed_ones() -> None:
    """Rows of 132 bytes in slots of 144, and pages whose footers lie further on."""
    rng = np.random.default_rng(4)
    inline, footer = published.INDEXER_FP8.paged(4), published.INDEXER_FP8.with_footer().paged(4)
    wide = np.zeros((3, 4, 144), np.uint8)[:, :, :132]
    pool = filled(rng, inline, 3)
    hk.ops.convert(pool, ids([0, 1, 2]), wide, ids([2, 1, 0]), source=inline, target=inline)
    assert (wide[::-1].reshape(3, 528) == pool[:, :528]).all()
    assert not wide.base[:, :, 132:].any()
    apart = hk.ops.PageRows(4, 128, row_stride=160, footer_bytes=4, footer_offset=700)
    out = np.full((3, 720), 7, np.uint8)
    hk.ops.convert(wide, ids([2, 1, 0]), out, ids([0, 1, 2]), source=inline, target=footer, out_layout=apart)
    back = np.zeros_like(pool)
    hk.ops.convert(out, ids([0, 1, 2]), back, ids([0, 1, 2]), source=footer, target=inline, layout=apart)
    assert (back[:, :528] == pool[:, :528]).all()
    assert (np.delete(out, [*(160 * i + k for i in range(4) for k in range(128)), *range(700, 716)], axis=1) == 7).all()


def test_padding_inside_a_row_moves_along_or_is_zero() -> None:
    whole = published.FP8_DS_MLA.inline().paged(1)  # byte 583 is padding
    scales_first = replace(
        whole, parts=(replace(whole.parts[0], offset=8, scale_offset=0), replace(whole.parts[1], offset=456))
    )
    pool = filled(np.random.default_rng(5), whole, 2)
    pool[:, 583] = 0x5A
    same, moved = (np.full_like(pool, 0xFF) for _ in range(2))
    hk.ops.convert(pool, ids([0, 1]), same, ids([0, 1]), source=whole, target=published.FP8_DS_MLA.paged(1))
    hk.ops.convert(pool, ids([0, 1]), moved, ids([0, 1]), source=whole, target=scales_first)
    assert (same[:, 583] == 0x5A).all() and (same[:, 584:] == 0xFF).all()
    assert (moved[:, 7] == 0).all() and (moved[:, 8:584] == pool[:, :576]).all()
    assert (moved[:, :7] == pool[:, 576:583]).all()


@st.composite
def conversions(draw: Any) -> dict[str, Any]:
    """A call: formats of one family, layers, sequences that are not full, pages that are not held."""
    numbers = {name: draw(st.integers(low, high)) for name, low, high in (
        ("seed", 0, 2**32 - 1), ("layers", 0, 3), ("sequences", 0, 3), ("columns", 0, 4), ("more", 0, 2))}  # fmt: skip
    start = draw(st.sampled_from([*VARIANTS, *WITH_PAIRS]))
    among = WITH_PAIRS if start.rope_dims else VARIANTS
    end = draw(st.sampled_from([row for row in among if related(start, row) and related(row, start)]))
    unit = draw(st.sampled_from([1, 2, 16]))
    source, target = (
        replace(row, page_rows=draw(st.integers(1, 9)), base_alignment=unit, stride_multiple=1) for row in (start, end)
    )
    rng = np.random.default_rng(numbers["seed"])
    sequences, columns = numbers["sequences"], numbers["columns"]
    room = -(-columns * source.page_rows // target.page_rows) + draw(st.integers(0, 1))
    wide = draw(st.sampled_from([np.int32, np.int64]))
    pool_pages, out_pages = draw(st.integers(1, 6)), 2 + sequences * room
    taken = rng.permutation(out_pages)[: sequences * room].reshape(sequences, room)
    held = rng.integers(-1, pool_pages, (sequences, columns))
    layers = [filled(rng, source, pool_pages) for _ in range(max(numbers["layers"], 1))]
    outs = [filled(rng, target, out_pages, numbers["more"]) for _ in layers]
    return {
        "pools": layers if numbers["layers"] else layers[0],
        "out": outs if numbers["layers"] else outs[0],
        "page_ids": held.astype(wide),
        "out_ids": np.where(rng.random(taken.shape) < 0.1, -1, taken).astype(wide),
        "source": source,
        "target": target,
        "row_counts": draw(st.sampled_from([None, rng.integers(0, columns * source.page_rows + 1, sequences)])),
        "null_page": draw(st.sampled_from([None, 0])),
        "out_null_page": draw(st.sampled_from([None, 1])),
    }  # fmt: skip


def with_copy_of_out(call: dict[str, Any]) -> dict[str, Any]:
    """The same call into memory of its own, at the same distance of pages."""
    layers = call["out"] if isinstance(call["out"], list) else [call["out"]]
    made = []
    for layer in layers:
        memory = np.empty(layer.size + 64, np.uint8)
        start = -memory.ctypes.data % 64
        made.append(memory[start : start + layer.size].reshape(layer.shape))
        made[-1][...] = layer
    return call | {"out": made if isinstance(call["out"], list) else made[0]}


def rows_held(call: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    """Sequence, row, slot in the source pool, slot in the target pool, of each row that is moved."""
    found = []
    for q, (here, there) in enumerate(zip(call["page_ids"].tolist(), call["out_ids"].tolist(), strict=True)):
        rows, out_rows = call["source"].page_rows, call["target"].page_rows
        count = len(here) * rows if call["row_counts"] is None else int(call["row_counts"][q])
        for i in range(count):
            page, out_page = here[i // rows], there[i // out_rows]
            if page not in (-1, call["null_page"]) and out_page not in (-1, call["out_null_page"]):
                found.append((q, i, page * rows + i % rows, out_page * out_rows + i % out_rows))
    return found


def as_layers(arrays: Any) -> list[np.ndarray]:
    return arrays if isinstance(arrays, list) else [arrays]


@given(conversions(), st.sampled_from([600, 5_000, 5 << 18]))
def test_kernels_do_what_the_specification_does(call: dict[str, Any], chunk: int) -> None:
    one, two = with_copy_of_out(call), with_copy_of_out(call)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "_CHUNK_BYTES", chunk)
        hk.ops.convert(**one)
    ref.convert(**two)
    for ours, theirs, before in zip(*(as_layers(each["out"]) for each in (one, two, call)), strict=True):
        assert (ours == theirs).all()
        written = {slot for *_, slot in rows_held(call)}
        slots = np.array([s for s in range(len(ours) * call["target"].page_rows) if s not in written], np.int64)
        kept = [ref.load_rows(pool, slots, call["target"]) for pool in (ours, before)]
        assert (kept[0] == kept[1]).all()
        assert (ours[:, call["target"].page_bytes :] == before[:, call["target"].page_bytes :]).all()


@given(conversions())
def test_what_came_there_and_back_has_its_bytes(call: dict[str, Any]) -> None:
    source, target = call["source"], call["target"]
    hk.ops.convert(**call)
    sequences, columns = call["page_ids"].shape
    fresh = np.arange(sequences * columns, dtype=np.int64).reshape(sequences, columns)
    rng = np.random.default_rng(1)
    back = [pages(rng, source, sequences * columns) for _ in as_layers(call["out"])]
    counts = call["row_counts"]
    hk.ops.convert(
        call["out"], call["out_ids"].astype(np.int64), back if isinstance(call["out"], list) else back[0], fresh,
        source=target, target=source, null_page=call["out_null_page"],
        row_counts=np.full(sequences, columns * source.page_rows) if counts is None else counts,
    )  # fmt: skip
    held = rows_held(call)
    first = np.array([slot for _, _, slot, _ in held], np.int64)
    last = np.array([q * columns * source.page_rows + i for q, i, _, _ in held], np.int64)
    for pool, made in zip(as_layers(call["pools"]), back, strict=True):
        assert (ref.load_rows(made, last, source) == ref.load_rows(pool, first, source)).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_on_every_level_and_for_any_number_of_threads(level: str, threads: int) -> None:
    rng = np.random.default_rng(6)
    source, target = published.FP8_DS_MLA, replace(published.FP8_DS_MLA.inline().paged(96), stride_multiple=1)
    pool, out = filled(rng, source, 48), pages(rng, target, 32)  # 1.8 MB: enough to wake a thread
    hk.ops.convert(pool, ids(range(48)), out, ids(range(32)), source=source, target=target, threads=threads)
    every = np.arange(48 * 64)
    assert (ref.load_rows(out, every, target) == ref.load_rows(pool, every, source)).all()


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(7)
    row, halves = (rotated(published.plain("bfloat16", 64, page_rows=2), way) for way in (True, False))
    pool = pages(rng, row, 3)
    out = torch.zeros((3, 2, 64), dtype=torch.bfloat16)
    hk.ops.convert(
        torch.from_numpy(pool.view(np.int16)).view(torch.bfloat16), torch.tensor([[2, 0, 1]], dtype=torch.int32), out,
        torch.tensor([[0, 1, 2]]), source=row, target=halves, row_counts=torch.tensor([6])[::1],
    )  # fmt: skip
    got = out.view(torch.int16).numpy().reshape(3, 2, 64)
    wanted = pool.view(np.int16).reshape(3, 2, 64)[[2, 0, 1]]
    assert (got == wanted[..., channels_of(row, halves)]).all()


def test_ids_may_lie_anywhere() -> None:
    rng = np.random.default_rng(8)
    row = published.INDEXER_FP8.paged(2)
    pool, out = filled(rng, row, 4), pages(rng, row, 4)
    spread = np.full((4, 2), -1, np.int64)
    spread[:, 1] = 3, 2, 1, 0
    hk.ops.convert(pool, spread[:, 1:].T, out, spread[::-1, 1:].T, source=row, target=row)
    assert (out[:, : row.page_bytes] == pool[::-1, : row.page_bytes]).all()


def test_nothing_to_do_is_done() -> None:
    row = published.FP8_DS_MLA
    pool, out = pages(np.random.default_rng(9), row, 2), pages(np.random.default_rng(9), row, 2)
    before = out.copy()
    for held, room, counts in (([[]], [[]], None), ([[0]], [[1]], [0]), ([[-1]], [[1]], None), ([[0]], [[-1]], None)):
        hk.ops.convert(
            pool, ids(held), out, ids(room), source=row, target=row,
            row_counts=None if counts is None else np.array(counts),
        )  # fmt: skip
    assert (out == before).all()
    none = np.empty((0, 3), np.int32)
    hk.ops.convert(pool, none, out, none, source=row, target=row)
    assert (out == before).all()


def test_packed_rows_of_support_are_rows() -> None:
    """What the tests draw has scales that its format has."""
    rng = np.random.default_rng(10)
    for row in VARIANTS:
        decoded = ref.decode_rows(packed_rows(rng, row, 50), row)
        assert decoded.shape == (50, row.channels) and np.isfinite(decoded).mean() > 0.9
