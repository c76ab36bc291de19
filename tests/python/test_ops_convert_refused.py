# SPDX-License-Identifier: Apache-2.0
"""What conversions refuse: by name, and before a byte is written, one bad scale of very many included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridkv as hk
import hybridkv.conversion as conversion
import hybridkv.reference as ref
from convert_support import filled, ids, pages
from hybridkv import KernelContract
from hybridkv.reference import RowFormat, published
from test_ops_refusals import Device, read_only

FP8, UE8M0 = published.INDEXER_FP8.paged(4), published.INDEXER_FP8_UE8M0.paged(4)
MODULES = [pytest.param(hk.ops, id="ops"), pytest.param(ref, id="reference")]

Change = Callable[[dict[str, Any]], None]


def arguments(source: RowFormat = FP8, target: RowFormat = UE8M0, count: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "pools": filled(rng, source, count), "page_ids": ids([2, 0, 1]), "out": pages(rng, target, count),
        "out_ids": ids([0, 1, 2]), "source": source, "target": target,
    }  # fmt: skip


def put(name: str, value: Any) -> Change:
    return lambda call: call.__setitem__(name, value)


def off_by(name: str, offset: int) -> Change:
    def change(call: dict[str, Any]) -> None:
        shape, stride = call[name].shape, call[name].strides[0]
        memory = np.zeros(call[name].size + 64, np.uint8)
        start = -memory.ctypes.data % 64 + offset
        call[name] = np.lib.stride_tricks.as_strided(memory[start:], shape, (stride, 1))

    return change


def onto_itself(call: dict[str, Any]) -> None:
    memory = np.zeros((6, call["out"].shape[1]), np.uint8)
    call["pools"], call["out"] = memory[:4], memory[3:]


def ids_in_out(call: dict[str, Any]) -> None:
    call["page_ids"] = call["out"][0, :12].view(np.int32).reshape(1, 3)
    call["page_ids"][...] = 0


CASES: list[tuple[str, str, Change]] = [
    ("pools", "no array", put("pools", object())),
    ("pools", "no layers", put("pools", [])),
    ("pools", "one dimension", put("pools", np.zeros(528, np.uint8))),
    ("layout", "pages too small", put("pools", np.zeros((3, 512), np.uint8))),
    ("pools", "rows of another width", put("pools", np.zeros((3, 4, 128), np.uint8))),
    ("pools", "more rows than a page has", put("pools", np.zeros((3, 5, 132), np.uint8))),
    ("pools", "an address that the format does not allow", off_by("pools", 8)),
    ("pools", "a page stride that the format does not allow", put("pools", np.zeros((3, 532), np.uint8))),
    ("layout", "of other rows", put("layout", hk.ops.PageRows(2, 132))),
    ("layout", "with a footer", put("layout", hk.ops.PageRows(4, 128, footer_bytes=4))),
    ("layout", "no layout", put("layout", 4)),
    ("out", "no array", put("out", None)),
    ("out", "read-only", lambda call: put("out", read_only(call["out"]))(call)),
    ("out", "layers where there is one", lambda call: put("out", [call["out"]])(call)),
    ("out", "an address that the format does not allow", off_by("out", 8)),
    ("out", "pages on pages", put("out", np.lib.stride_tricks.as_strided(np.zeros(2000, np.uint8), (3, 528), (16, 1)))),
    ("out", "within the pool", onto_itself),
    ("out_layout", "of other rows", put("out_layout", hk.ops.PageRows(5, 132))),
    ("page_ids", "one dimension", put("page_ids", np.arange(3))),
    ("page_ids", "floats", put("page_ids", np.zeros((1, 3)))),
    ("page_ids", "a list", put("page_ids", [[0, 1, 2]])),
    ("page_ids", "beyond the pool", put("page_ids", ids([0, 1, 3]))),
    ("page_ids", "below -1", put("page_ids", ids([0, -2, 1]))),
    ("out_ids", "beyond the pool", put("out_ids", ids([0, 1, 3]))),
    ("out_ids", "other sequences", put("out_ids", ids([[0], [1]]))),
    ("out_ids", "too few columns", put("out_ids", ids([0, 1]))),
    ("out_ids", "a page twice", put("out_ids", ids([0, 1, 0]))),
    ("row_counts", "of another length", put("row_counts", np.array([1, 1]))),
    ("row_counts", "more than the columns have", put("row_counts", np.array([13]))),
    ("row_counts", "below 0", put("row_counts", np.array([-1]))),
    ("row_counts", "a number", put("row_counts", 3)),
    ("null_page", "beyond the pool", put("null_page", 3)),
    ("out_null_page", "-1", put("out_null_page", -1)),
    ("threads", "none", put("threads", 0)),
    ("threads", "too many", put("threads", 65)),
    ("stream", "of a device", put("stream", 1)),
    ("source", "a name", put("source", "indexer_fp8")),
    ("target", "no way", put("target", published.FP8_DS_MLA)),
]  # fmt: skip


def contents(call: dict[str, Any]) -> list[bytes]:
    return [value.tobytes() for value in call.values() if isinstance(value, np.ndarray)]


def refused(module: Any, call: dict[str, Any]) -> KernelContract:
    before = contents(call)
    with pytest.raises(KernelContract) as caught:
        module.convert(**call)
    assert contents(call) == before
    return caught.value


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("argument", "change"), [pytest.param(a, c, id=f"{a}: {what}") for a, what, c in CASES])
def test_refused_by_name_and_nothing_written(module: Any, argument: str, change: Change) -> None:
    call = arguments()
    module.convert(**call)
    change(call)
    assert refused(module, call).field == argument


@pytest.mark.parametrize("module", MODULES)
def test_an_output_that_holds_its_own_ids_is_refused(module: Any) -> None:
    call = arguments()
    ids_in_out(call)
    assert refused(module, call).field in ("out", "page_ids")


def test_memory_of_devices_is_refused() -> None:
    for name in ("pools", "out", "page_ids", "out_ids", "row_counts"):
        call = arguments() | {name: Device()}
        assert refused(hk.ops, call).field == name


def test_a_page_named_twice_beyond_the_rows_is_none() -> None:
    call = arguments() | {"out_ids": ids([0, 1, 0]), "row_counts": np.array([8])}
    for module in (hk.ops, ref):
        module.convert(**call)


WRONG = [0.0, -1.0, 3.0, np.nan, np.inf, -np.inf, -0.0, 2.0**-128, 2.0**-149, 1.5 * 2.0**-127, 1 + 2.0**-23]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("footer", [False, True], ids=["inline", "footer"])
@pytest.mark.parametrize("value", WRONG)
def test_a_scale_that_is_no_power_of_two_is_told_with_its_place(module: Any, footer: bool, value: float) -> None:
    call = arguments(FP8.with_footer() if footer else FP8)
    row = ref.load_rows(call["pools"], np.array([2]), call["source"])
    row[0, 128:] = np.array([value], "<f4").view(np.uint8)
    ref.store_rows(row, call["pools"], np.array([2]), call["source"])
    error = refused(module, call)
    assert error.field == "pools" and "power of two" in str(error.expected)
    assert error.got == f"{float(np.float32(value))} in tile 0 of row 2 of page 0"


@pytest.mark.parametrize("module", MODULES)
def test_scales_that_are_not_one_are_told_with_their_place(module: Any) -> None:
    call = arguments(UE8M0, FP8)
    for at, code, told in ((130, 5, str(2.0**-122)), (128, 255, "nan")):
        row = ref.load_rows(call["pools"], np.array([9]), UE8M0)
        row[0, 128:] = 127
        row[0, at] = code
        ref.store_rows(row, call["pools"], np.array([9]), UE8M0)
        error = refused(module, call)
        assert error.field == "pools" and "one scale for 128 channels" in str(error.expected)
        assert "from tile 0 on of row 1 of page 2" in str(error.got)
        assert told in str(error.got) and "1.0" in str(error.got)


@pytest.mark.parametrize("module", MODULES)
def test_the_code_of_no_number_is_no_scale(module: Any) -> None:
    call = arguments(UE8M0, FP8)
    row = np.full((1, 132), 255, np.uint8)
    ref.store_rows(row, call["pools"], np.array([4]), UE8M0)
    assert refused(module, call).got == "nan in tile 0 of row 0 of page 1"


def test_the_last_scale_of_the_last_layer_is_looked_at_before_the_first_row_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversion, "_CHUNK_BYTES", 600)
    call = arguments(count=40) | {"page_ids": ids(range(40)), "out_ids": ids(range(40)), "row_counts": np.array([159])}
    call["pools"] = [call["pools"], call["pools"].copy()]
    call["out"] = [call["out"], call["out"].copy()]
    before = [layer.tobytes() for layer in call["out"]]
    bad = np.full((1, 132), 1, np.uint8)
    for slot, fails in ((159, False), (158, True)):
        ref.store_rows(bad, call["pools"][1], np.array([slot]), FP8)
        if not fails:
            hk.ops.convert(**call)  # a row behind the last one does not count
            before = [layer.tobytes() for layer in call["out"]]
            continue
        with pytest.raises(KernelContract) as caught:
            hk.ops.convert(**call)
        assert caught.value.field == "pools[1]" and "row 2 of page 39" in str(caught.value.got)
    assert [layer.tobytes() for layer in call["out"]] == before


def test_scales_of_rows_that_do_not_move_do_not_count() -> None:
    for module in (hk.ops, ref):
        for change in ({"page_ids": ids([2, -1, 1])}, {"out_ids": ids([0, -1, 2])}, {"null_page": 0},
                       {"out_null_page": 1}):  # fmt: skip
            call = arguments() | change
            ref.store_rows(np.zeros((4, 132), np.uint8), call["pools"], np.arange(4), FP8)
            module.convert(**call)
        assert "page 0" in str(refused(module, call | {"out_null_page": None}).got)


@st.composite
def strange_calls(draw: Any) -> dict[str, Any]:
    """A call of which one argument, or two, are whatever comes."""
    call = arguments()
    wild = st.one_of(
        st.none(), st.integers(-3, 70), st.floats(), st.text(max_size=3), st.booleans(),
        st.sampled_from([FP8, UE8M0, FP8.paged(2), published.V41_FP4, hk.ops.PageRows(4, 132), hk.ops.PageRows(9, 9)]),
        st.sampled_from([np.arange(3), ids([0, 1, 2]), ids([[0], [1]]), ids([5, 5, 5]), np.zeros((2, 528), np.uint8),
                         np.zeros((3, 4, 132), np.uint8), np.zeros((3, 4), object), np.zeros((1, 3), np.int64),
                         np.zeros((0, 528), np.uint8), np.zeros((3, 0), np.uint8)]),
        st.lists(st.sampled_from([np.zeros((3, 528), np.uint8), None, 4]), max_size=2),
    )  # fmt: skip
    names = [*call, "row_counts", "layout", "out_layout", "null_page", "out_null_page", "threads", "stream"]
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)):
        call[name] = draw(wild)
    return call


@given(strange_calls())
def test_whatever_comes_both_refuse_it_or_both_do_the_same(call: dict[str, Any]) -> None:
    outcomes = []
    for module in (hk.ops, ref):
        own = call | {"out": pages_like(call["out"])}
        before = contents(own)
        try:
            module.convert(**own)
            outcomes.append(("done", contents(own)))
        except KernelContract as error:
            assert contents(own) == before
            outcomes.append(("refused", error.field.partition("[")[0]))
    assert outcomes[0][0] == outcomes[1][0], outcomes
    if outcomes[0][0] == "done":
        assert outcomes[0] == outcomes[1]


def pages_like(out: Any) -> Any:
    """A copy that lies as the original does; an output that is no array stays what it is."""
    if not isinstance(out, np.ndarray) or out.dtype.hasobject or out.ndim != 2 or not out.size:
        return out
    memory = np.zeros(out.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + out.ctypes.data % 64
    made = memory[start : start + out.nbytes].view(out.dtype).reshape(out.shape)
    made[...] = out
    return made


def test_a_conversion_within_one_allocation_needs_room_of_its_own() -> None:
    """Layers of one allocation may lie among each other, source and output may not."""
    row = replace(published.INDEXER_FP8.paged(2), stride_multiple=1, base_alignment=1)
    arena = np.zeros((4, 4, 264), np.uint8)
    rng = np.random.default_rng(3)
    first, second = (filled(rng, row, 4) for _ in range(2))
    table = ids([0, 1, 2, 3])
    for module in (hk.ops, ref):
        arena[...] = 0
        module.convert([first, second], table, [arena[:, 0], arena[:, 2]], table, source=row, target=row)
        assert (arena[:, 0] == first).all() and (arena[:, 2] == second).all() and not arena[:, 1::2].any()
        with pytest.raises(KernelContract):
            module.convert(arena[:, 0], table, arena[:, 1], table, source=row, target=row)
        assert not arena[:, 1::2].any()
