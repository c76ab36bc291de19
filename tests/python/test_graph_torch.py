# SPDX-License-Identifier: Apache-2.0
"""Topology and tables of torch: tensors of the CPU, what only torch can change, and the checks for a device, tried."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import hybridkv as hk
from graph_support import PADDING, Engine, close_all
from hybridkv.graph import Staging, Topology, standin
from ticket_support import homogeneous

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    close_all()


def shape_of(cache: Any) -> dict[str, Any]:
    return {"spec": cache.spec, "max_blocks": 2, "padding": 8, "cache": cache}


def test_tables_are_tensors_that_an_update_writes_in_place() -> None:
    cache = homogeneous(8)
    staging = Staging(**shape_of(cache), buckets=(1, 2), device="cpu")
    tables = staging.buffers()
    assert {str(tensor.dtype) for tensor in tables.values()} == {"torch.int32", "torch.int64"}
    places = {name: tensor.data_ptr() for name, tensor in tables.items()}
    ticket = cache.admit("a", 32)
    ticket.grow(1)
    assert staging.update([ticket], bucket=2) == 2
    assert tables["table.kv"].tolist() == [[int(ticket.page_ids("kv")[0]), 8], [8, 8]]
    assert {name: tensor.data_ptr() for name, tensor in staging.buffers().items()} == places
    ticket.close()


def test_numpy_tables_are_not_for_compilers() -> None:
    with pytest.raises(hk.ArgumentError, match="tensors of torch"):
        Staging(**shape_of(homogeneous(8))).mark_static()


@pytest.mark.parametrize("device", ["gpu", "meta", 1.5, *([] if torch.cuda.is_available() else ["cuda", "cuda:1"])])
def test_a_device_that_is_not_there_is_refused(device: Any) -> None:
    with pytest.raises(hk.ArgumentError) as caught:
        Staging(**shape_of(homogeneous(8)), device=device)
    assert caught.value.field == "device"


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "moved": lambda x: x.clone(),
    "stride": lambda x: x.T.contiguous().T,
    "dtype": lambda x: x.view(torch.float8_e5m2),  # as wide as it was, and other numbers
    "grown": lambda x: torch.cat([x.view(torch.uint8), x.view(torch.uint8)]).view(torch.float8_e4m3fn),
    "shape": lambda x: x[:, :4],
    "device": lambda x: x.to("meta"),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_tensor_in_place_of_another(reason: str) -> None:
    cache = homogeneous(8)
    pool = torch.zeros((9, 16), dtype=torch.float8_e4m3fn)
    topology = Topology.capture({"kv": pool}, **shape_of(cache))
    topology.check({"kv": pool})
    topology.check({"kv": pool.view(9, 16)})  # another object for the same memory
    with pytest.raises(hk.graph.TopologyChanged) as caught:
        topology.check({"kv": CHANGES[reason](pool)})
    assert caught.value.eager.reason == reason
    assert caught.value.field == "kv"


@pytest.mark.parametrize("size", [0, 8])
def test_a_storage_that_was_given_back_is_freed(size: int) -> None:
    cache = homogeneous(8)
    pool = torch.zeros((9, 16), dtype=torch.uint8)
    topology = Topology.capture({"kv": pool}, **shape_of(cache))
    pool.untyped_storage().resize_(size)
    with pytest.raises(hk.graph.TopologyChanged) as caught:
        topology.check()
    assert caught.value.eager.reason == "freed"
    assert topology.counts["freed"] == cache.metrics().eager["freed"] == 1


def test_a_tensor_that_was_given_other_memory_has_moved() -> None:
    pool = torch.zeros((9, 16), dtype=torch.uint8)
    topology = Topology.capture({"kv": pool}, **shape_of(homogeneous(8)))
    keep = pool.data
    pool.set_(torch.zeros((9, 16), dtype=torch.uint8))
    with pytest.raises(hk.graph.TopologyChanged) as caught:
        topology.check()
    assert caught.value.eager.reason == "moved"
    assert keep.numel()


@pytest.mark.parametrize(
    ("dtype", "bad"),
    [
        ("float16", float("inf")), ("bfloat16", float("nan")), ("float32", float("-inf")), ("float64", float("nan")),
        ("float8_e5m2", float("inf")), ("float8_e5m2", float("nan")), ("float8_e4m3fn", float("nan")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_bytes", [False, True])
def test_null_pages_of_every_dtype_are_looked_at(dtype: str, bad: float, as_bytes: bool) -> None:
    pool = torch.ones((9, 16)).to(getattr(torch, dtype))
    pool[0] = bad  # of a request, and not our business
    given: Any = pool.view(torch.uint8) if as_bytes else pool
    array = given.numpy() if as_bytes else given
    dtypes = {"kv": dtype} if as_bytes else None
    for kind in (given, array):
        topology = Topology.capture({"kv": kind}, **shape_of(homogeneous(8)))
        pool[8] = 2.0
        assert topology.inspect_null_pages(dtypes=dtypes) == []
        pool[8, 3] = bad
        assert topology.inspect_null_pages(dtypes=dtypes) == ["kv"]
        pool[8, 3] = torch.finfo(pool.dtype).max
        assert topology.inspect_null_pages(dtypes=dtypes) == []


@pytest.mark.parametrize("dtypes", [None, {"kv": "uint8"}, {"kv": 7}])
def test_a_null_page_of_bytes_needs_a_dtype(dtypes: Any) -> None:
    topology = Topology.capture({"kv": torch.zeros((9, 16), dtype=torch.uint8)}, **shape_of(homogeneous(8)))
    with pytest.raises(hk.ArgumentError, match="one of"):
        topology.inspect_null_pages(dtypes=dtypes)


def test_the_stand_in_records_tensors() -> None:
    source, ids, out = torch.arange(8.0).bfloat16(), torch.zeros(2, dtype=torch.int64), torch.zeros(2).bfloat16()
    with standin.capture() as graph:
        graph.call(torch.index_select, source, 0, ids, out=out)
    ids[:] = torch.tensor([5, 3])
    source[5] = 40
    graph.replay()
    assert out.tolist() == [40, 3]


def test_tables_of_torch_say_what_those_of_numpy_say() -> None:
    engine = Engine()
    tickets = [engine.admit(name, [1, 2, 3, 4, 5]) for name in "abc"]
    engine.grow(tickets, [1, 2, 3])
    there = Staging(
        engine.spec, max_blocks=6, padding=PADDING, buckets=(2, 4), compact=["window"], cache=engine.cache, device="cpu"
    )
    here = Staging(engine.spec, max_blocks=6, padding=PADDING, buckets=(2, 4), compact=["window"], cache=engine.cache)
    for batch in (tickets, tickets[:1]):
        assert there.update(batch) == here.update(batch)
        for name, array in here.buffers().items():
            assert np.array_equal(there.buffers()[name].numpy(), array), name


class Sent:
    """An event of a device that reads when it likes."""

    def __init__(self) -> None:
        self.passed = True

    def query(self) -> bool:
        return self.passed

    def record(self) -> None:
        self.passed = False


def test_a_copy_that_the_device_has_not_read_is_not_written_again() -> None:
    cache = homogeneous(8)
    staging, other = (Staging(**shape_of(cache), buckets=(2,), device="cpu") for _ in range(2))
    events = [Sent(), Sent()]
    copies = [staging.buffers(), other.buffers()]  # in the place of page-locked ones
    staging._mirrors = [{name: tensor.numpy() for name, tensor in copy.items()} for copy in copies]
    staging._events = list(zip(events, copies, strict=True))
    staging._device = {name: tensor.clone() for name, tensor in copies[0].items()}
    ticket = cache.admit("a", 64)
    for written in range(4):
        ticket.grow(1)
        if written >= 2:
            before = [copy["lengths"].tolist() for copy in copies]
            with pytest.raises(hk.Busy, match="2 updates ago"):
                staging.update(ticket)
            assert [copy["lengths"].tolist() for copy in copies] == before
            events[written % 2].passed = True
        staging.update(ticket)
        assert staging.buffers()["lengths"].tolist() == [ticket.grown_tokens, 0]
        assert copies[written % 2]["lengths"].tolist() == [ticket.grown_tokens, 0]
        ticket.advance(ticket.grown_tokens, [written])
    ticket.close()


def test_the_checks_for_a_device_hold_on_the_stand_in() -> None:
    import device_graphs

    told = device_graphs.replayed("cpu")
    assert told.endswith("equal") and not told.startswith("0")


def test_a_compiled_step_reads_the_tables_in_place() -> None:
    import device_graphs

    torch._dynamo.reset()
    assert device_graphs.compiled("cpu", backend="aot_eager") == "12 steps of two buckets equal"
    torch._dynamo.reset()


def test_graphs_of_cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device: the stand-in ran; tests/gpu/run_device_checks.py runs these on one")
    import device_graphs

    assert device_graphs.replayed("cuda") and device_graphs.events() and device_graphs.compiled("cuda")
