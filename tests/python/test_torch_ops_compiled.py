# SPDX-License-Identifier: Apache-2.0
"""Ops of torch in compiled and exported graphs: the bytes of eager, what is written is seen, no size is bound.

Few graphs: one costs seconds. ``aot_eager`` traces and makes a graph functional as the default backend does, without
its code; that one is tried once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch._dynamo.testing import CompileCounterWithBackend

import hybridkv as hk
import torch_op_samples as samples
from hybridkv import KernelContract
from torch_op_samples import ids, padded, some

OPS = torch.ops.hybridkv


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget the graphs of the test before."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def written_and_read(src: torch.Tensor, pools: list[torch.Tensor], page_ids: torch.Tensor) -> list[torch.Tensor]:
    """Write twice and read after each; each read has to see what was written before it, and no more."""
    OPS.scatter(src, pools, page_ids)
    first = OPS.gather(pools, page_ids)
    prints = OPS.fingerprint(pools, page_ids)
    OPS.scatter(255 - src, pools, page_ids)
    buffer = torch.full_like(src, 9)
    OPS.gather_out(pools, page_ids, buffer)
    after = torch.zeros_like(prints)
    OPS.fingerprint_out(pools, page_ids, after)
    return [first, prints, buffer, after]


def in_numpy(src: np.ndarray, pools: list[np.ndarray], page_ids: np.ndarray) -> list[np.ndarray]:
    def prints() -> np.ndarray:
        made = np.zeros((len(pools), len(page_ids)), np.int64)
        hk.ops.fingerprint(pools, page_ids, made)
        return made

    first, buffer = np.empty_like(src), np.empty_like(src)
    hk.ops.scatter(src, pools, page_ids)
    hk.ops.gather(pools, page_ids, first)
    before = prints()
    hk.ops.scatter(255 - src, pools, page_ids)
    hk.ops.gather(pools, page_ids, buffer)
    return [first, before, buffer, prints()]


def compare(function: Callable[..., list[torch.Tensor]], count: int) -> None:
    """Call with so many pages; results and pools have the bytes of eager and of numpy."""
    page_ids = torch.randperm(6, generator=torch.Generator().manual_seed(count))[:count]
    src, runs = some((2, count, 256), seed=count), []
    for run in (function, written_and_read):
        pools = padded(2)
        runs.append([*run(src, pools, page_ids), *pools])
    arrays = [pool.numpy() for pool in padded(2)]
    runs.append([*in_numpy(src.numpy(), arrays, page_ids.numpy()), *arrays])
    for compiled, eager, array in zip(*runs, strict=True):
        assert torch.equal(compiled, eager)
        assert np.array_equal(eager.numpy().reshape(array.shape), array)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_written_is_seen(dynamic: bool) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(written_and_read, backend=counter, fullgraph=True, dynamic=dynamic)
    for count in (3, 5, 4):
        compare(compiled, count)
    assert counter.frame_count == (1 if dynamic else 3)


@pytest.mark.soak  # half a minute of a C++ compiler
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
def test_by_the_default_backend() -> None:
    compare(torch.compile(written_and_read, fullgraph=True, dynamic=True), 3)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_tail_is_compressed_in_a_graph(in_place: bool) -> None:
    """With the carry updated in place, too, which a graph may do in memory of its own and copy back."""

    def run(kv: torch.Tensor, score: torch.Tensor, out: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
        OPS.compress_tail(kv, score, out, **more)
        return out.sum(dtype=torch.int64)

    results = []
    for function in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        sample = samples.compress(2, 4, True, in_place=in_place)
        total = function(*sample.args, sample.kwargs)
        results.append([total, sample.args[2], sample.kwargs["new_carry"]])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))
    assert not torch.equal(results[0][1], samples.compress(2, 4, True).args[2])


def test_a_graph_whose_sizes_depend_on_data() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda p, i: OPS.gather(p, i[i >= 0]), backend="aot_eager", fullgraph=True)
        pools, page_ids = padded(2), ids(4, -1, 0)
        assert torch.equal(compiled(pools, page_ids), OPS.gather(pools, ids(4, 0)))


def test_a_null_page_that_is_a_symbol() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda p, i, n: OPS.gather(p, i, null_page=n), backend=counter, dynamic=True)
    pools, page_ids = padded(2), ids(4, 3, 0)
    for null_page in (4, 3, 5):
        assert torch.equal(compiled(pools, page_ids, null_page), OPS.gather(pools, page_ids, null_page=null_page))
    assert counter.frame_count == 1


def test_a_graph_that_is_trained_around_the_ops() -> None:
    """Bytes that need no gradient are written and read between tensors that do."""

    def run(x: torch.Tensor, weight: torch.Tensor, pools: list[torch.Tensor]) -> torch.Tensor:
        keys = x @ weight
        OPS.scatter(keys.detach(), pools, ids(3, 1, 0))
        return (OPS.gather(pools, ids(3, 1, 0)) * keys).sum()

    x, results = torch.arange(192.0).view(2, 3, 32) / 192, []
    for function in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        weight, pools = torch.eye(32).requires_grad_(), [torch.zeros(6, 32), torch.zeros(6, 32)]
        function(x, weight, pools).backward()
        results.append([weight.grad, *pools])
    assert all(torch.equal(eager, compiled) for eager, compiled in zip(*results, strict=True))
    assert results[0][0].any() and torch.equal(results[0][1][3], x[0, 0])


class TwoLayers(torch.nn.Module):
    """Writes pages of two layers, and reads others."""

    def forward(
        self, first: torch.Tensor, second: torch.Tensor, src: torch.Tensor, into: torch.Tensor, out_of: torch.Tensor
    ) -> torch.Tensor:
        OPS.scatter(src, [first, second], into)
        return OPS.gather([first, second], out_of, null_page=0)


def test_an_exported_graph() -> None:
    count = torch.export.Dim("count", min=2, max=6)
    pools, sizes = [some((6, 64)), some((6, 64), seed=1)], (None, None, {1: count}, {0: count}, None)
    arguments = (*pools, some((2, 3, 64)), ids(1, 2, 3), ids(2, 0))
    exported = torch.export.export(TwoLayers(), arguments, dynamic_shapes=sizes)
    src, into = some((2, 4, 64), seed=5), ids(5, 3, 4, 2)
    got = exported.module()(*pools, src, into, ids(3, 0))
    assert torch.equal(got[:, 0], src[:, 1]) and not got[:, 1].any()
    assert torch.equal(pools[1][[5, 3, 4, 2]], src[1])


def test_what_a_graph_refuses() -> None:
    """From shapes when it is traced, where torch wraps the refusal; else as the op does, with its fields."""
    compiled = torch.compile(lambda p, i: OPS.gather(p, i), backend="aot_eager", fullgraph=True)
    pools = padded(2)
    with pytest.raises(RuntimeError, match=r"KernelContract\('pools\[1\]: expected as the first: 6 pages"):
        compiled([pools[0], pools[1][:5]], ids(1))
    with pytest.raises(RuntimeError, match=r"KernelContract\('pools\[0\]: expected a tensor without gradient"):
        compiled([torch.zeros((4, 8), requires_grad=True)], ids(1))
    with pytest.raises(KernelContract) as refused:
        compiled(pools, ids(6))
    assert refused.value.argument == "page_ids" and refused.value.got == "6 at index 0"
