# SPDX-License-Identifier: Apache-2.0
"""Gather, scatter and fingerprint in the reference: bytes, missing pieces, hand-out counts, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridkv.reference as ref
from hybridkv import KernelContract
from hybridkv.reference import PageRows, published
from hybridkv.reference.fingerprint_sums import BASE, CHUNK_WORDS, PRIME, WORD_KEYS

Array = np.ndarray[Any, Any]
FOOTER = PageRows(4, 16, row_stride=24, footer_bytes=8, footer_offset=100 + 4)


def some_pool(pages: int = 6, page_bytes: int = 160, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(1, 256, (pages, page_bytes), np.uint8)  # no 0: zeros stand out


def packed_by_hand(page: Array, layout: PageRows) -> bytes:
    stride, offset = layout.row_stride, layout.footer_offset
    assert stride is not None and offset is not None
    rows = b"".join(page[i * stride : i * stride + layout.row_bytes].tobytes() for i in range(layout.rows))
    size = layout.footer_bytes
    return rows + b"".join(page[offset + i * size : offset + (i + 1) * size].tobytes() for i in range(layout.rows))


def test_a_packed_page_is_its_rows_then_its_footers() -> None:
    pool, out = some_pool(), np.zeros((4, 96), np.uint8)
    ref.gather(pool, np.array([5, 0, 0, 3], np.int32), out, layout=FOOTER)
    assert [piece.tobytes() for piece in out] == [packed_by_hand(pool[page], FOOTER) for page in (5, 0, 0, 3)]


def test_a_packed_row_is_the_row_then_its_footer() -> None:
    pool, out = some_pool(), np.zeros((3, 24), np.uint8)
    ids, rows = np.array([2, 2, 4]), np.array([0, 3, 1])
    ref.gather(pool, ids, out, rows=rows, layout=FOOTER)
    for piece, page, row in zip(out, ids, rows, strict=True):
        assert (piece[:16] == pool[page, 24 * row : 24 * row + 16]).all()
        assert (piece[16:] == pool[page, 104 + 8 * row : 112 + 8 * row]).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_three_dimensions_and_any_dtype(dtype: Any) -> None:
    """Rows further apart than they are long, pages further apart than their rows."""
    memory = np.arange(5 * 8 * 8).astype(dtype).reshape(5, 8, 8)
    pool = memory[:, 1:4, :4]
    out = np.zeros((2, 3, 4), dtype)
    ref.gather(pool, np.array([4, 1]), out)
    assert (out == pool[[4, 1]]).all()
    before = memory.copy()
    ref.scatter(out, pool, np.array([0, 2]))
    before[[0, 2], 1:4, :4] = out
    assert (memory == before).all()


def test_layers_have_their_own_buffers_and_one_list_of_ids() -> None:
    layers = [some_pool(seed=s) for s in range(3)]
    out = np.zeros((3, 2, 160), np.uint8)
    ref.gather(layers, np.array([3, 1], np.int32), out)
    assert all((out[at] == layer[[3, 1]]).all() for at, layer in enumerate(layers))
    ref.scatter(out[:, ::-1].copy(), layers, np.array([3, 1], np.int32))
    assert all((out[at, ::-1] == layer[[3, 1]]).all() for at, layer in enumerate(layers))


@given(seed=st.integers(0, 1000), rows=st.booleans(), layered=st.booleans())
def test_scatter_undoes_gather_and_touches_nothing_else(seed: int, rows: bool, layered: bool) -> None:
    rng = np.random.default_rng(seed)
    pools = [some_pool(8, 160, seed + s) for s in range(2 if layered else 1)]
    places = rng.permutation(8 * 4)[:7]
    ids, row_ids = (places // 4, places % 4) if rows else (rng.permutation(8)[:7], None)
    ids = np.where(rng.random(7) < 0.3, -1, ids)
    out = np.zeros((len(pools), 7, 24 if rows else 96), np.uint8)
    given_pools, buffer = (pools, out) if layered else (pools[0], out[0])
    ref.gather(given_pools, ids, buffer, rows=row_ids, layout=FOOTER)
    blank = [np.zeros_like(pool) for pool in pools]
    ref.scatter(buffer, blank if layered else blank[0], ids, rows=row_ids, layout=FOOTER)
    for pool, other in zip(pools, blank, strict=True):
        copied = other != 0
        assert (other[copied] == pool[copied]).all()
        assert copied.sum() == (ids >= 0).sum() * out.shape[2]
    again = np.ones_like(out)
    ref.gather(blank if layered else blank[0], ids, again if layered else again[0], rows=row_ids, layout=FOOTER)
    assert (again == out).all()


@pytest.mark.parametrize("missing", ["zeros", "skip"])
def test_what_is_missing_is_zeros_or_left_and_never_read(missing: str) -> None:
    pool = some_pool()
    out, status = np.full((4, 24), 7, np.uint8), np.full(4, -9, np.int32)
    ids, rows = np.array([-1, 1, 2, 0]), np.array([0, -1, 3, 2])
    ref.gather(pool, ids, out, rows=rows, layout=FOOTER, status=status, missing=missing, null_page=0)
    assert status.tolist() == [3, 3, 0, 3]
    left = 0 if missing == "zeros" else 7
    assert (out[[0, 1, 3]] == left).all() and out[2].all() and not (out[2] == 7).all()
    before = pool.copy()
    ref.scatter(out, pool, ids, rows=rows, layout=FOOTER, status=status, null_page=0)
    assert status.tolist() == [3, 3, 0, 3] and (pool == before).all()


class Moving(np.ndarray[Any, Any]):
    """Hand-out counts of which one grows each time it has been read so many times."""

    reads: int
    grow: int

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if int(key) == 2:
            self.reads += 1
            if self.reads == self.grow:
                super().__setitem__(2, value + np.uint64(1))
        return value


def moving(grow: int) -> Moving:
    counts = np.arange(10, 16, dtype=np.uint64).view(Moving)
    counts.reads, counts.grow = 0, grow
    return counts


@pytest.mark.parametrize("missing", ["zeros", "skip"])
def test_hand_out_counts_are_compared_before_and_after(missing: str) -> None:
    pool, ids = some_pool(), np.array([2, 3, -1, 4], np.int32)
    expected = np.array([12, 13, 0, 15], np.uint64)
    out, status = np.full((4, 160), 7, np.uint8), np.zeros(4, np.int32)
    ref.gather(pool, ids, out, handouts=(moving(1), expected), status=status, missing=missing)
    assert status.tolist() == [2, 0, 3, 1]  # changed during the copy, fine, missing, stale before
    assert (out[1] == pool[3]).all() and (out[[2, 3]] == (0 if missing == "zeros" else 7)).all()
    if missing == "zeros":
        assert not out[0].any()
    untouched = pool.copy()
    ref.scatter(np.full((4, 160), 9, np.uint8), pool, ids, handouts=(moving(99), expected), status=status)
    assert status.tolist() == [0, 0, 3, 1]
    assert (pool[[2, 3]] == 9).all() and (pool[[0, 1, 4, 5]] == untouched[[0, 1, 4, 5]]).all()


def test_counts_are_compared_as_bits() -> None:
    counts = np.full(6, 2**64 - 1, np.uint64)
    status = np.zeros(1, np.int32)
    out = np.zeros((1, 160), np.uint8)
    ref.gather(some_pool(), np.array([0]), out, handouts=(counts, np.array([-1])), status=status)
    assert status.tolist() == [0]


def test_several_groups_in_one_call() -> None:
    pools = {"kv": [some_pool(seed=1), some_pool(seed=2)], "swa": some_pool(seed=3)}
    ids = {"kv": np.array([1, -1]), "swa": np.array([0, 2, 3])}
    out = {"kv": np.zeros((2, 2, 160), np.uint8), "swa": np.zeros((3, 96), np.uint8)}
    status = {"swa": np.zeros(3, np.int32)}
    ref.gather(pools, ids, out, layout={"swa": FOOTER}, status=status, null_page={"swa": 0})
    assert (out["kv"][0, 0] == pools["kv"][0][1]).all() and status["swa"].tolist() == [3, 0, 0]
    assert out["swa"][1].tobytes() == packed_by_hand(np.asarray(pools["swa"][2]), FOOTER)
    sums = {"kv": np.zeros((2, 2), np.uint64), "swa": np.zeros(3, np.uint64)}
    ref.fingerprint(pools, ids, sums, layout={"swa": FOOTER})
    assert sums["kv"][:, 1].tolist() == [0, 0] and sums["swa"][1] == ref.fingerprint_of(out["swa"][1])
    blank = {"kv": [np.zeros((6, 160), np.uint8) for _ in range(2)], "swa": np.zeros((6, 160), np.uint8)}
    ref.scatter(out, blank, ids, layout={"swa": FOOTER})
    assert (blank["kv"][1][1] == pools["kv"][1][1]).all() and not blank["kv"][0][2:].any()


def test_nothing_at_all_is_legal() -> None:
    none = np.empty(0, np.int32)
    ref.gather(some_pool(), none, np.empty((0, 160), np.uint8))
    ref.scatter(np.empty((0, 160), np.uint8), some_pool(), none)
    ref.fingerprint(some_pool(), none, np.empty(0, np.uint64))


KNOWN = [
    (b"", 0x5692161D100B05E5),
    (bytes(range(24)), 0xC1397DF85856003D),
    (bytes(4096), 0x360A884996368365),
    (bytes(i * 7 % 251 for i in range(37_376)), 0x2766CAAA62C17491),
]


@pytest.mark.parametrize(("content", "value"), KNOWN, ids=[str(len(content)) for content, _ in KNOWN])
def test_known_fingerprints(content: bytes, value: int) -> None:
    """Written down by whoever defined them, not by this code."""
    assert ref.fingerprint_of(content) == value
    assert ref.fingerprint_of(np.frombuffer(content, np.uint8)) == value


def test_keys_of_the_fingerprint() -> None:
    assert (WORD_KEYS[0], WORD_KEYS[1], WORD_KEYS[127]) == (
        0xB3DB1C6C623DE8EE,
        0xD38AEE3B54CC9052,
        0xDB744B800ACD109D,
    )
    assert BASE == 0x083B7E1FCF367DBF and len(WORD_KEYS) == CHUNK_WORDS and PRIME == 2**61 - 1


def test_fingerprints_see_every_bit_the_length_and_the_order() -> None:
    rng = np.random.default_rng(0)
    content = rng.integers(0, 256, 2 * 8 * CHUNK_WORDS + 24, np.uint8)
    seen = {ref.fingerprint_of(content)}
    for bit in rng.permutation(8 * len(content))[:400]:
        changed = content.copy()
        changed[bit // 8] ^= 1 << (bit % 8)
        seen.add(ref.fingerprint_of(changed))
    for words in ((0, 1), (0, 128), (1, 3), (255, 256)):
        changed = content.copy().view(np.uint64)
        changed[list(words)] = changed[list(words[::-1])]
        seen.add(ref.fingerprint_of(changed.view(np.uint8)))
    seen |= {ref.fingerprint_of(content[:size]) for size in range(1, 40)}
    seen |= {ref.fingerprint_of(bytes(size)) for size in range(40)}
    assert len(seen) == 1 + 400 + 4 + 39 + 40 and 0 not in seen


def test_a_fingerprint_does_not_depend_on_where_a_page_lies() -> None:
    pool, ids = some_pool(), np.array([4, -1, 2])
    sums, packed = np.zeros(3, np.int64), np.zeros((3, 96), np.uint8)
    ref.fingerprint(pool, ids, sums, layout=FOOTER, null_page=0)
    ref.gather(pool, ids, packed, layout=FOOTER)
    again = np.zeros(3, np.uint64)
    ref.fingerprint(packed, np.arange(3), again)
    assert sums[1] == 0 and (sums.view(np.uint64)[[0, 2]] == again[[0, 2]]).all()
    pool[:, 24 * 3 + 16 : 104] = 0  # padding between the last row and the footers
    ref.fingerprint(pool, ids, sums, layout=FOOTER)
    assert (sums.view(np.uint64)[[0, 2]] == again[[0, 2]]).all()


def test_a_page_of_the_published_format_by_rows_and_as_a_whole() -> None:
    row = published.FP8_DS_MLA
    pages = np.zeros((2, row.page_stride), np.uint8)
    packed = np.random.default_rng(0).integers(0, 256, (128, 584), np.uint8)
    ref.store_rows(packed, pages, np.arange(128), row)
    out = np.zeros((128, 584), np.uint8)
    ref.gather(pages, np.arange(128) // 64, out, rows=np.arange(128) % 64, layout=row.layout)
    assert (out == packed).all()
    sums = np.zeros(2, np.uint64)
    ref.fingerprint(pages, np.arange(2), sums, layout=row.layout)
    assert sums[1] == ref.fingerprint_of(pages[1, : row.page_bytes])  # footers lie behind the rows: in one piece


OUT = np.zeros((2, 96), np.uint8)
MEMORY = np.zeros(4096, np.uint8)
LOW = MEMORY[-MEMORY.ctypes.data % 16 :][:2048]

BAD: list[tuple[str, dict[str, Any]]] = [
    ("pools", {"pools": None}),
    ("pools", {"pools": []}),
    ("pools", {"pools": np.zeros(160, np.uint8)}),
    ("layout", {"pools": np.zeros((6, 135), np.uint8)}),
    ("pools", {"pools": np.zeros((6, 320), np.uint8)[:, ::2]}),
    ("pools", {"pools": np.lib.stride_tricks.as_strided(LOW, (6, 160), (80, 1))}),
    ("pools", {"pools": LOW[4 : 4 + 960].reshape(6, 160)}),
    ("pools", {"pools": np.zeros((6, 164), np.uint8)}),
    ("pools[1]", {"pools": [some_pool(), some_pool(5)], "out": np.zeros((2, 2, 96), np.uint8)}),
    ("layout", {"pools": [some_pool(), some_pool(6, 100)], "out": np.zeros((2, 2, 96), np.uint8)}),
    ("layout", {"pools": np.zeros((6, 4, 16), np.uint8)}),
    ("page_ids", {"page_ids": [0, 1]}),
    ("page_ids", {"page_ids": np.array([0.0, 1.0])}),
    ("page_ids", {"page_ids": np.array([0, 6])}),
    ("page_ids", {"page_ids": np.array([-2, 0])}),
    ("page_ids", {"page_ids": np.arange(4)[::2]}),
    ("page_ids", {"page_ids": {"kv": np.array([0, 1])}}),
    ("rows", {"rows": np.array([0, 4]), "out": np.zeros((2, 24), np.uint8)}),
    ("rows", {"rows": np.array([0, 1], np.int32), "out": np.zeros((2, 24), np.uint8)}),
    ("rows", {"rows": np.array([0]), "out": np.zeros((2, 24), np.uint8)}),
    ("null_page", {"null_page": 6}),
    ("null_page", {"null_page": -1}),
    ("handouts", {"handouts": np.zeros(6, np.uint64)}),
    ("handouts[0]", {"handouts": (np.zeros(5, np.uint64), np.zeros(2, np.uint64))}),
    ("handouts[1]", {"handouts": (np.zeros(6, np.uint64), np.zeros(3, np.uint64))}),
    ("handouts[1]", {"handouts": (np.zeros(6, np.uint64), np.zeros(2))}),
    ("status", {"handouts": (np.zeros(6, np.uint64), np.zeros(2, np.uint64)), "status": None}),
    ("status", {"status": np.zeros(2, np.int64)}),
    ("threads", {"threads": 0}),
    ("threads", {"threads": 65}),
    ("stream", {"stream": 0}),
]
BUFFERS: list[dict[str, Any]] = [
    {"out": None},
    {"out": np.zeros((2, 95), np.uint8)},
    {"out": np.zeros((96, 2), np.uint8)},
    {"out": np.zeros((3, 96), np.uint8)},
    {"out": np.zeros((2, 192), np.uint8)[:, ::2]},
    {"out": LOW[4 : 4 + 192].reshape(2, 96)},
]


def good() -> dict[str, Any]:
    return {
        "pools": some_pool(),
        "page_ids": np.array([0, 1]),
        "out": np.zeros((2, 96), np.uint8),
        "layout": FOOTER,
        "status": np.full(2, -9, np.int32),
    }


@pytest.mark.parametrize("call", ["gather", "scatter"])
@pytest.mark.parametrize(
    ("argument", "change"), [*BAD, *(("out", change) for change in BUFFERS)], ids=lambda value: str(value)[:40]
)
def test_what_is_refused_is_named_and_nothing_is_written(call: str, argument: str, change: dict[str, Any]) -> None:
    arguments = {**good(), **change}
    status, out = arguments["status"], arguments["out"]
    before = [None if x is None else np.array(x) for x in (status, out)]
    if call == "scatter":
        arguments["src"] = arguments.pop("out")
        argument = "src" if argument == "out" else argument
    with pytest.raises(KernelContract) as caught:
        getattr(ref, call)(**arguments)
    assert caught.value.field == argument, caught.value
    for value, old in zip((status, out), before, strict=True):
        assert old is None or (value == old).all()


def test_outputs_share_memory_with_nothing() -> None:
    arena = LOW[:1920].reshape(12, 160)
    arguments = {**good(), "pools": arena[:6], "out": arena[4:6].reshape(-1)[:192].reshape(2, 96)}
    with pytest.raises(KernelContract, match="out: expected memory of its own, got memory of pools"):
        ref.gather(**arguments)
    arguments["src"] = arguments.pop("out")
    with pytest.raises(KernelContract, match="pools: expected memory of its own, got memory of src"):
        ref.scatter(**arguments)
    with pytest.raises(KernelContract, match="memory of its own"):
        ref.gather(**{**good(), "out": OUT, "status": OUT.reshape(-1).view(np.int32)[:2]})
    shared = dict.fromkeys(("kv", "swa"), OUT)
    pools, ids = {name: some_pool() for name in shared}, {name: np.array([0, 1]) for name in shared}
    with pytest.raises(KernelContract, match="memory of its own"):
        ref.gather(pools, ids, shared, layout=dict.fromkeys(shared, FOOTER))
    layers = [arena[:, :80], arena[:, 80:]]  # layers of one allocation may
    ref.scatter(np.ones((2, 2, 80), np.uint8), layers, np.array([0, 3]))


def test_more_that_only_one_of_them_refuses() -> None:
    arguments = good()
    frozen = arguments["out"].copy()
    frozen.flags.writeable = False
    with pytest.raises(KernelContract, match="out"):
        ref.gather(**{**arguments, "out": frozen})
    with pytest.raises(KernelContract, match="missing"):
        ref.gather(**arguments, missing="nan")
    source = arguments.pop("out")
    ref.scatter(src=frozen, **arguments)
    with pytest.raises(KernelContract, match="page_ids"):
        ref.scatter(src=source, **{**arguments, "page_ids": np.array([1, 1])})
    ref.scatter(src=source, **{**arguments, "page_ids": np.array([-1, -1])})
    locked = arguments["pools"].copy()
    locked.flags.writeable = False
    with pytest.raises(KernelContract, match="pools"):
        ref.scatter(src=source, **{**arguments, "pools": locked})
    for out in (np.zeros(3, np.uint64), np.zeros(2, np.float64), np.zeros(4, np.uint64)[::2]):
        with pytest.raises(KernelContract, match="out"):
            ref.fingerprint(arguments["pools"], arguments["page_ids"], out)
    with pytest.raises(KernelContract, match="rows and footers of multiples of 8"):
        ref.fingerprint(np.zeros((2, 64), np.uint8), np.array([0]), np.zeros(1, np.uint64), layout=PageRows(2, 12, 16))
    ref.fingerprint(np.zeros((2, 24), np.uint8), np.array([0]), np.zeros(1, np.uint64), layout=PageRows(2, 12))


@pytest.mark.parametrize(
    "layout",
    [
        PageRows(0, 16),
        PageRows(True, 16),
        PageRows(4, 0),
        PageRows(4, 16, 15),
        PageRows(4, 16, 16, -1),
        PageRows(4, 16, 24, 8, 87),
        PageRows(4, 16, 24, 8, 136),
        PageRows(4, 16.0),  # type: ignore[arg-type]
        (4, 16),
    ],
    ids=str,
)
def test_a_bad_layout_is_refused(layout: Any) -> None:
    with pytest.raises(KernelContract) as caught:
        ref.gather(some_pool(), np.array([0]), np.zeros((1, 64), np.uint8), layout=layout)
    assert caught.value.field == "layout"


def test_a_buffer_may_lie_in_the_padding_behind_the_last_page() -> None:
    """What counts is where rows and footers lie."""
    memory = np.zeros((2, 160), np.uint8)
    layout = PageRows(2, 16)
    memory[:, :32] = some_pool(2, 32)
    ref.gather(memory, np.array([1]), memory[1, 32:64].reshape(1, 32), layout=layout)
    assert (memory[1, 32:64] == memory[1, :32]).all()
    with pytest.raises(KernelContract, match="memory of its own"):
        ref.gather(memory, np.array([1]), memory[0, 32:64].reshape(1, 32), layout=layout)
