# SPDX-License-Identifier: Apache-2.0
"""Kernels take arrays of any kind: the array interface, DLPack, and torch tensors of dtypes that numpy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridkv as hk


class Interface:
    """Nothing but the array interface."""

    def __init__(self, array: np.ndarray) -> None:
        self.__array_interface__ = array.__array_interface__
        self.array = array


class DLPack:
    """Nothing but DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("kind", [Interface, DLPack, np.asarray])
def test_each_kind_of_array(kind: Any) -> None:
    pool = np.arange(4 * 32, dtype=np.float32).reshape(4, 32)
    out, prints = np.empty((2, 32), np.float32), np.zeros(2, np.uint64)
    ids = np.array([3, 1], np.int32)
    hk.ops.gather(kind(pool), kind(ids), kind(out))
    assert np.array_equal(out, pool[[3, 1]])
    hk.ops.scatter(kind(out), kind(pool), kind(ids[::-1].copy()))
    assert np.array_equal(pool[[1, 3]], out)
    hk.ops.fingerprint(kind(pool), kind(ids), kind(prints))
    assert prints.all()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float16", "uint8", "float32"])
def test_torch_tensors(name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    pool = torch.arange(4 * 64).reshape(4, 64).to(torch.float32).to(dtype)
    out = torch.zeros((2, 64), dtype=dtype)
    status = torch.full((2,), 9, dtype=torch.int32)
    ids = torch.tensor([3, 1])
    hk.ops.gather(pool, ids, out, status=status)
    assert torch.equal(out.view(torch.uint8), pool[ids].view(torch.uint8)) and status.tolist() == [0, 0]
    layers = torch.zeros((4, 2, 64), dtype=dtype)
    hk.ops.scatter(out[None].repeat(2, 1, 1), [layers[:, 0], layers[:, 1]], ids)
    assert torch.equal(layers[3, 1].view(torch.uint8), pool[3].view(torch.uint8))
    prints = torch.zeros(2, dtype=torch.int64)
    hk.ops.fingerprint(layers[:, 1], ids, prints)
    want = np.zeros(2, np.uint64)
    hk.ops.fingerprint(pool, ids, want)
    assert prints.tolist() == want.view(np.int64).tolist()


def test_torch_tensors_that_are_refused() -> None:
    torch = pytest.importorskip("torch")
    pool, out, ids = torch.zeros((4, 64)), torch.zeros((1, 64)), torch.tensor([1])
    for argument, bad in {
        "pools": pool.to("meta"),
        "page_ids": ids.to(torch.int16),
        "out": torch.zeros((1, 128))[:, ::2],
    }.items():
        given = {"pools": pool, "page_ids": ids, "out": out, argument: bad}
        with pytest.raises(hk.KernelContract) as refused:
            hk.ops.gather(**given)
        assert refused.value.argument == argument
    with pytest.raises(hk.KernelContract):
        hk.ops.gather(pool.to_sparse(), ids, out)


def test_tensors_of_a_class_of_its_own() -> None:
    torch = pytest.importorskip("torch")

    class Named(torch.Tensor):
        """A subclass as engines make them, of a dtype that numpy lacks."""

    pool = torch.arange(4 * 64).reshape(4, 64).to(torch.bfloat16).as_subclass(Named)
    out = torch.nn.Parameter(torch.zeros((1, 64), dtype=torch.bfloat16))
    hk.ops.gather(pool, torch.tensor([3]), out)
    assert torch.equal(out[0], pool[3].as_subclass(torch.Tensor))


def test_tensors_whose_bytes_are_not_where_or_what_they_seem() -> None:
    """Nothing is read at address 0, and no lazy view is taken for its values."""
    torch = pytest.importorskip("torch")
    gone, lazy = torch.zeros((4, 64)), torch.zeros((4, 32), dtype=torch.complex64).conj()
    gone.untyped_storage().resize_(0)
    for bad in (gone, lazy, lazy.imag, torch._efficientzerotensor((4, 64)), torch.zeros((4, 64)).to_mkldnn()):
        with pytest.raises(hk.KernelContract) as refused:
            hk.ops.gather(bad, torch.tensor([1]), torch.zeros((1, 64)))
        assert refused.value.argument == "pools"
    hk.ops.gather(torch.zeros((4, 64)), torch.empty(0, dtype=torch.int64), torch.empty((0, 64)))


def test_a_cache_takes_torch_tensors_of_dtypes_that_numpy_lacks() -> None:
    torch = pytest.importorskip("torch")
    cache = hk.HybridCache(hk.CacheSpec.homogeneous(1, 64, unit_tokens=4), blocks=8)
    pool = torch.zeros((8, 32), dtype=torch.bfloat16)
    cache.bind("kv", pool)
    keys = hk.block_keys(np.arange(9, dtype=np.uint32), 4)
    cache.insert(keys)
    with cache.match(keys).lease as lease:
        assert lease.addresses("kv")[0, 0] == pool.data_ptr() + 64 * int(lease.page_ids("kv")[0])
    cache.close()
