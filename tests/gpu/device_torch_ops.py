# SPDX-License-Identifier: Apache-2.0
"""The ops of torch on tensors of a device: on the current stream, in a graph of the compiler, refused where mixed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.library import opcheck

import hybridkv as hk
from hybridkv.adapters import torch_ops

PAGES, LAYERS = 32, 3


def ops(device: str = "cuda") -> str:
    """Compare with ``hk.ops`` on the host; `device` "cpu" tries this check itself."""
    assert "gather" in torch_ops.NAMES
    rng = np.random.default_rng(7)
    arrays = [rng.integers(0, 256, (PAGES, 4, 64), dtype=np.uint8) for _ in range(LAYERS)]
    ids, src = rng.permutation(PAGES)[:9].astype(np.int64), rng.integers(0, 256, (LAYERS, 9, 256), dtype=np.uint8)
    wanted = _on_the_host([array.copy() for array in arrays], ids, src)
    runs = {
        "eager": _written_and_read,
        "compiled": torch.compile(_written_and_read, backend="aot_eager", fullgraph=True),
    }
    for name, run in runs.items():
        pools = [torch.from_numpy(array).to(device, copy=True) for array in arrays]
        given = pools, torch.from_numpy(ids).to(device), torch.from_numpy(src).to(device)
        if device != "cpu":
            torch.cuda.synchronize()
        with nullcontext() if device == "cpu" else torch.cuda.stream(torch.cuda.Stream()):
            got = run(*given)
        if device != "cpu":
            torch.cuda.synchronize()
        for tensor, array in zip(got, wanted, strict=True):
            assert np.array_equal(tensor.cpu().numpy().reshape(array.shape), array), name
    pools, page_ids = given[:2]
    utils = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    opcheck(torch.ops.hybridkv.gather.default, (pools, page_ids), test_utils=utils)
    if device != "cpu":
        _refused(lambda: torch.ops.hybridkv.gather(pools, page_ids.cpu()), "page_ids")
        _refused(lambda: torch.ops.hybridkv.gather([pools[0], pools[1].cpu()], page_ids), "pools[1]")
    return f"{LAYERS} layers, eager and compiled, on a stream of its own"


def _written_and_read(pools: list[torch.Tensor], page_ids: torch.Tensor, src: torch.Tensor) -> list[torch.Tensor]:
    ours = torch.ops.hybridkv
    first = ours.gather(pools, page_ids, null_page=0)
    ours.scatter(src, pools, page_ids)
    out, status = torch.full_like(src, 9), torch.full_like(page_ids, 9, dtype=torch.int32)
    ours.gather_out(pools, page_ids, out, status=status)
    return [first, out, status, ours.fingerprint(pools, page_ids), *pools]


def _on_the_host(pools: list[np.ndarray[Any, Any]], ids: Any, src: Any) -> list[np.ndarray[Any, Any]]:
    first, out, status = np.empty_like(src), np.empty_like(src), np.full(len(ids), 9, np.int32)
    prints = np.empty((LAYERS, len(ids)), np.int64)
    hk.ops.gather(pools, ids, first, null_page=0)
    hk.ops.scatter(src, pools, ids)
    hk.ops.gather(pools, ids, out, status=status)
    hk.ops.fingerprint(pools, ids, prints)
    return [first, out, status, prints, *pools]


def _refused(call: Any, argument: str) -> None:
    try:
        call()
    except hk.KernelContract as error:
        assert error.argument == argument, error
    else:
        raise AssertionError(f"{argument} was taken")
