# SPDX-License-Identifier: Apache-2.0
"""Tables of captured graphs: fixed addresses, padded rows and tails, write targets; and what is refused."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridkv as hk
from contract_support import make_cache, tokens
from graph_support import BLOCK, BUCKETS, PADDING, PAGES, Engine, close_all
from hybridkv.graph import Padding, Staging, window_width
from ticket_support import assert_named, homogeneous


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    close_all()


def addresses(staging: Any) -> dict[str, int]:
    return {name: array.__array_interface__["data"][0] for name, array in staging.buffers().items()}


def check_rows(engine: Engine, tickets: list[Any], bucket: int) -> None:
    """Every cell of a bucket is what its request has, or the sentinel."""
    live: dict[str, set[int]] = {name: set() for name in PAGES}
    for ticket in engine.histories:
        if not ticket.closed:
            live["state"].add(ticket.live_page("state"))
            for name in ("full", "window"):
                live[name] |= {page + PADDING[name].first for page in ticket.page_ids(name).tolist() if page >= 0}
    found = engine.staging.buffers(bucket)
    for row in range(bucket):
        ticket = tickets[row] if row < len(tickets) else None
        assert found["lengths"][row] == (0 if ticket is None else ticket.grown_tokens)
        assert found["positions"][row, 0] == (0 if ticket is None else ticket.tokens)
        for name, padding in PADDING.items():
            entries = found[f"table.{name}"][row].tolist()
            own: list[int] = []
            if ticket is not None and name == "state":
                own = [ticket.live_page("state")]
            elif ticket is not None:
                begin = 0 if name == "full" else max(0, ticket.tokens - 5) // BLOCK
                own = (ticket.page_ids(name)[begin:] + padding.first).tolist()
                page, at = own[-1], ticket.tokens % BLOCK
                assert found[f"slots.{name}"][row, 0] == page * BLOCK + at
                if name == "window":
                    assert found["first.window"][row] == begin
            elif name != "state":
                assert found[f"slots.{name}"][row, 0] == padding.page * BLOCK
            assert entries == own + [padding.page] * (len(entries) - len(own))
            assert padding.page not in live[name]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), min_size=1, max_size=12))
def test_padding_never_names_a_live_page_whatever_the_batches(batches: list[list[int]]) -> None:
    engine = Engine()
    tickets = [engine.admit(name) for name in "abcd"]
    before = addresses(engine.staging)
    for batch in batches:
        step = [tickets[number] for number in batch if tickets[number].grown_tokens < 24]
        engine.grow(step, [number + 1 for number in range(len(step))])
        route = engine.topology.route(step)
        assert engine.staging.update(step) == route.bucket
        check_rows(engine, step, route.bucket)
        engine.eager(step)
        engine.advance(step)
    assert addresses(engine.staging) == before
    close_all()


def test_a_smaller_batch_leaves_nothing_of_the_larger_one() -> None:
    engine = Engine()
    tickets = [engine.admit(name, range(1, 10)) for name in "abcd"]
    engine.grow(tickets, [1, 2, 3, 4])
    engine.staging.update(tickets)
    check_rows(engine, tickets, 4)
    assert engine.staging.update(tickets[:1], bucket=4) == 4
    check_rows(engine, tickets[:1], 4)
    assert engine.staging.blank() == BUCKETS[-1]
    check_rows(engine, [], 4)


def test_a_shorter_row_leaves_nothing_of_a_longer_one() -> None:
    engine = Engine()
    long, short = engine.admit("long", [1] * 20), engine.admit("short")
    engine.grow([long, short], [1, 2])
    engine.staging.update([long])
    engine.staging.update([short])
    check_rows(engine, [short], 2)


def test_buckets_are_rows_of_one_memory() -> None:
    engine = Engine()
    check_rows(engine, [], 4)  # padded from the start
    small, large = engine.staging.buffers(2), engine.staging.buffers(4)
    for name, array in small.items():
        assert array.shape[0] == 2
        assert array.__array_interface__["data"] == large[name].__array_interface__["data"]
        assert array is engine.staging.buffers(2)[name]  # what was marked for a compiler, or captured, is the same


def test_an_update_allocates_no_tables() -> None:
    cache = homogeneous(512)
    staging = Staging(cache.spec, max_blocks=4096, padding=-1, buckets=(64,), cache=cache)
    ticket = cache.admit("a", 1024)
    ticket.grow(16)
    ticket.advance(16, tokens(16))
    ticket.grow(1)
    staging.update([ticket])
    tracemalloc.start()
    staging.update([ticket])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert staging.buffers()["table.kv"].nbytes == 64 * 4096 * 4
    assert peak < 16384, peak
    ticket.close()


def test_a_kernel_that_skips_has_minus_one_everywhere() -> None:
    cache = make_cache(4, {"full": (hk.Prefix(), 4), "swa": (hk.Window(5), 4)})
    staging = Staging(cache.spec, max_blocks=4, padding=-1, buckets=(2,), step_tokens=3)
    ticket = cache.admit("a", 16)
    ticket.grow(12)
    ticket.advance(12, tokens(12))
    ticket.grow(2)
    staging.update(ticket)
    found = staging.buffers()
    assert found["table.full"].tolist() == [ticket.page_ids("full").tolist(), [-1] * 4]
    held = ticket.page_ids("swa").tolist()
    assert held[0] == -1  # slid out of the window
    assert found["table.swa"].tolist() == [held, [-1] * 4]
    last = 4 * int(ticket.page_ids("full")[3])
    assert found["slots.full"].tolist() == [[last, last + 1, -1], [-1] * 3]
    assert found["positions"].tolist() == [[12, 13, 0], [0, 0, 0]]
    assert found["lengths"].tolist() == [14, 0]
    ticket.close()


def test_a_page_that_slid_out_is_the_null_page_and_not_the_last_one() -> None:
    cache = make_cache(4, {"full": (hk.Prefix(), 4), "swa": (hk.Window(5), 4)}, pages={"full": 8, "swa": 8})
    padding = {"full": Padding.clamp(0, first=1), "swa": Padding.clamp(8)}
    staging = Staging(cache.spec, max_blocks=6, padding=padding, buckets=(2,), cache=cache)
    ticket = cache.admit("a", 16)
    ticket.grow(12)
    ticket.advance(12, tokens(12))
    ticket.grow(1)
    staging.update(ticket)
    found = staging.buffers()
    own = (ticket.page_ids("full") + 1).tolist()
    assert found["table.full"].tolist() == [[*own, own[-1], own[-1]], [0] * 6]
    held = [8 if page < 0 else page for page in ticket.page_ids("swa").tolist()]
    assert held[0] == 8
    assert found["table.swa"].tolist() == [[*held, held[-1], held[-1]], [8] * 6]
    assert found["slots.full"][1].tolist() == [0]
    assert found["slots.swa"][1].tolist() == [8 * 4]
    ticket.close()


def test_kernels_of_one_group_have_tables_of_their_own() -> None:
    cache = homogeneous(8)
    staging = Staging(cache.spec, max_blocks=2, padding={"kv": {"attention": -1, "indexer": 8}}, cache=cache)
    found = staging.buffers()
    assert found["table.kv.attention"].tolist() == [[-1, -1]]
    assert found["table.kv.indexer"].tolist() == [[8, 8]]
    assert found["slots.kv.indexer"].tolist() == [[8 * 16]]
    assert staging.shape.widths == {"kv": 2}
    assert "kv.indexer" in repr(staging)


def test_a_lease_has_its_pages_and_no_new_token() -> None:
    engine = Engine()
    keys = hk.block_keys(range(12), BLOCK, identity=engine.spec.identity)
    engine.cache.insert(keys[:2])
    lease = engine.cache.match(keys).lease
    engine.staging.update(lease)
    found = engine.staging.buffers(2)
    ids = lease.page_ids("full") + 1
    assert found["table.full"][0].tolist() == [*ids, 0, 0, 0, 0]
    assert found["table.state"][0].tolist() == [lease.page_ids("state")[-1]]
    assert found["slots.full"].tolist() == [[0], [0]]
    assert (found["lengths"].tolist(), found["positions"].tolist()) == ([8, 0], [[0], [0]])
    lease.release()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a live page for padding": ({"padding": 0}, "padding[kv]"),
    "the last live page": ({"padding": 7}, "padding[kv]"),
    "clamp to a live page": ({"padding": Padding.clamp(3)}, "padding[kv]"),
    "behind the shift": ({"padding": Padding.null(8, first=1)}, "padding[kv]"),
    "clamp without a page": ({"padding": "clamp"}, "padding"),
    "no sentinel of the group": ({"padding": {}}, "padding"),
    "no kernel": ({"padding": {"kv": {}}}, "padding[kv]"),
    "unknown group": ({"padding": {"kv": -1, "no": -1}}, "padding"),
    "no width": ({"max_blocks": {}}, "max_blocks"),
    "a width of nothing": ({"max_blocks": 0}, "max_blocks"),
    "a width of another group": ({"max_blocks": {"kv": 2, "no": 2}}, "max_blocks"),
    "no bucket": ({"buckets": ()}, "buckets"),
    "a bucket of nothing": ({"buckets": (0, 2)}, "buckets"),
    "no tokens": ({"step_tokens": 0}, "step_tokens"),
    "a compact history": ({"compact": ["kv"]}, "compact"),
    "no group": ({"groups": []}, "groups"),
    "no copies": ({"copies": 0}, "copies"),
    "another spec": ({"cache": None}, "cache"),
    "no spec": ({"spec": "kv"}, "spec"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_tables_are_refused(name: str) -> None:
    change, field = REFUSED[name]
    cache = homogeneous(8)
    given_arguments: dict[str, Any] = {"spec": cache.spec, "max_blocks": 2, "padding": -1, "cache": cache, **change}
    if name == "another spec":
        given_arguments["cache"] = make_cache(4, {"full": (hk.Prefix(), 4)})
    with pytest.raises(hk.ArgumentError) as caught:
        Staging(given_arguments.pop("spec"), **given_arguments)
    assert_named(caught.value)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "page", "first"), [("skip", 3, 0), ("null", -1, 0), ("none", -1, 0), ("null", 1, -1), ("clamp", 2**31, 0)]
)
def test_a_sentinel_that_means_nothing_is_refused(kind: str, page: int, first: int) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        Padding(kind, page, first)
    assert_named(caught.value)


def test_a_refused_batch_writes_nothing() -> None:
    engine = Engine()
    tickets = [engine.admit(name, [1, 2]) for name in "ab"]
    engine.grow(tickets, [3, 4])
    engine.staging.update(tickets)
    before = {name: array.copy() for name, array in engine.staging.buffers().items()}
    long = engine.admit("c", [1] * 24)
    engine.grow([long], [1])
    other = homogeneous(4).admit("other", 16)
    refused: tuple[tuple[Any, int | None], ...] = (
        ([tickets[1], long], None), ([*tickets, *tickets, long], None), ([*tickets, tickets[0]], 2),
        ([tickets[1]], 3), ([tickets[1], "b"], None), ([tickets[1], other], None), (7, None),
    )  # fmt: skip
    for batch, bucket in refused:
        with pytest.raises(hk.ArgumentError) as caught:
            engine.staging.update(batch, bucket=bucket)
        assert_named(caught.value)
    closed = engine.admit("d")
    closed.close()
    with pytest.raises(hk.Closed):
        engine.staging.update([tickets[1], closed])
    for name, array in engine.staging.buffers().items():
        assert np.array_equal(array, before[name]), name
    other.close()


@pytest.mark.parametrize("block", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 9, 16, 17])
@pytest.mark.parametrize("step", [1, 3])
def test_a_window_is_never_wider_than_its_worst_offset(block: int, size: int, step: int) -> None:
    spec = hk.CacheSpec(1, [hk.CacheGroup("w", hk.StateKind.WINDOW, hk.Window(size), page_bytes=8, block_tokens=block)])
    width = window_width(spec, "w", step_tokens=step)
    (table,) = Staging(spec, max_blocks=width, padding=-1, compact=["w"], step_tokens=step).shape.tables
    widest = max(table.span(at, at + step)[1] for at in range(4 * size + 4 * block))
    assert widest == width


def test_tables_on_a_device_name_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"torch not installed: pip install '\.\[torch\]'"):
        Staging(homogeneous(8).spec, max_blocks=2, padding=-1, device="cpu")


def test_window_width_is_of_windows_alone() -> None:
    spec = Engine().spec
    for name in ("full", "state", "none"):
        with pytest.raises(hk.ArgumentError) as caught:
            window_width(spec, name)
        assert_named(caught.value)
    assert window_width(spec, "window") == 3
