# SPDX-License-Identifier: Apache-2.0
"""The checks of the ops of torch can fail: each op here has one fault, and a check that the real ones pass names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.library import opcheck, register_fake
from torch.testing._internal.optests.generate_tests import OpCheckError

import hybridkv as hk
from torch_op_samples import ids, some

Define = Callable[..., Any]

NUMBERS = count()


@pytest.fixture
def define() -> Iterator[Define]:
    """Define an op from a schema, a kernel and a shape function, for the length of a test; torch keeps its name."""
    with torch.library._scoped_library("faulty", "DEF") as library:

        def made(schema: str, kernel: Callable[..., Any], shape: Callable[..., Any] | None) -> Any:
            name = f"op{next(NUMBERS)}"
            library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
            library.impl(name, kernel, "CPU")
            if shape is not None:
                register_fake(f"faulty::{name}", shape, lib=library)
            return getattr(torch.ops.faulty, name).default

        yield made


def gathered(pools: list[Tensor], page_ids: Tensor) -> Tensor:
    out = pools[0].new_empty((len(pools), len(page_ids), *pools[0].shape[1:]))
    hk.ops.gather(pools, page_ids, out)
    return out


def gather_out(pools: list[Tensor], page_ids: Tensor, out: Tensor) -> None:
    hk.ops.gather(pools, page_ids, out)


def scatter(src: Tensor, pools: list[Tensor], page_ids: Tensor) -> None:
    hk.ops.scatter(src, pools, page_ids)


def nothing(*arguments: Any) -> None:
    """The shape function of an op that returns nothing."""


READ, WRITE = "(Tensor[] pools, Tensor page_ids", "(Tensor src, Tensor[] pools, Tensor page_ids) -> ()"


def pools() -> list[Tensor]:
    return [some((6, 64)), some((6, 64), seed=1)]


def test_an_output_that_is_not_declared_as_written(define: Define) -> None:
    op = define(f"{READ}, Tensor out) -> ()", gather_out, nothing)
    with pytest.raises(OpCheckError, match="out is not defined as mutable but was mutated"):
        opcheck(op, (pools(), ids(1, 2), torch.zeros((2, 2, 64), dtype=torch.uint8)), test_utils="test_schema")


def test_pools_that_are_not_declared_as_written(define: Define) -> None:
    op = define(WRITE, scatter, nothing)
    with pytest.raises(OpCheckError, match="pools is not defined as mutable but was mutated"):
        opcheck(op, (some((2, 2, 64), seed=3), pools(), ids(1, 2)), test_utils="test_schema")


def test_undeclared_writes_are_lost_in_a_graph(define: Define) -> None:
    """What the declaration is for, and that a read behind a write is a test of it."""
    op = define(WRITE, scatter, nothing)

    def run(src: Tensor, given: list[Tensor]) -> Tensor:
        copies = [pool.clone() for pool in given]
        op(src, copies, ids(1, 2))
        return torch.stack(copies)[:, 1:3]

    src = some((2, 2, 64), seed=3)
    assert torch.equal(run(src, pools()), src)
    traced = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert not torch.equal(traced(src, pools()), src)


@pytest.mark.parametrize(
    "shape",
    [
        lambda p, i: p[0].new_empty((len(p), len(i) + 1, *p[0].shape[1:])),
        lambda p, i: p[0].new_empty((len(p), len(i), *p[0].shape[1:]), dtype=torch.int8),
        lambda p, i: p[0].new_empty((len(p), p[0].shape[1], len(i))).transpose(1, 2),
    ],
    ids=["extent", "dtype", "strides"],
)
def test_a_shape_function_that_is_wrong(define: Define, shape: Callable[..., Tensor]) -> None:
    op = define(f"{READ}) -> Tensor", gathered, shape)
    with pytest.raises(OpCheckError, match="test_faketensor"):
        opcheck(op, (pools(), ids(1, 2)), test_utils="test_faketensor")


def test_a_shape_function_that_binds_a_size(define: Define) -> None:
    def bound(given: list[Tensor], page_ids: Tensor) -> Tensor:
        return given[0].new_empty((len(given), int(page_ids.shape[0]), *given[0].shape[1:]))

    op = define(f"{READ}) -> Tensor", gathered, bound)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda p, i: op(p, i), backend=counter, fullgraph=True, dynamic=True)
    for pages in (3, 5, 4):
        compiled(pools(), torch.arange(pages))
    assert counter.frame_count == 3  # of ours there is one graph


def test_an_op_without_a_shape_function(define: Define) -> None:
    op = define(f"{READ}) -> Tensor", gathered, None)
    with pytest.raises(OpCheckError):
        opcheck(op, (pools(), ids(1, 2)), test_utils="test_faketensor")


def test_a_gradient_made_below_autograd(define: Define) -> None:
    class Gathered(torch.autograd.Function):
        """A formula where autograd does not look for one."""

        @staticmethod
        def forward(ctx: Any, pool: Tensor, page_ids: Tensor) -> Tensor:
            return pool.detach()[page_ids]

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            return gradient, None

    op = define("(Tensor pool, Tensor page_ids) -> Tensor", Gathered.apply, None)
    pool = some((6, 16), torch.float32).requires_grad_()
    with pytest.raises(Exception, match="does not have an autograd kernel"):
        opcheck(op, (pool, ids(1, 2)), test_utils="test_autograd_registration")
