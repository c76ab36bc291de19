# SPDX-License-Identifier: Apache-2.0
"""No op has a gradient: a tensor that requires one is refused where gradients are recorded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridkv.errors import KernelContract


def refuse_gradients(**tensors: Tensor | None) -> None:
    """Refuse arguments that require a gradient."""
    if torch.is_grad_enabled():
        for name, tensor in tensors.items():
            if tensor is not None and tensor.requires_grad:
                expected = "a tensor without gradient (torch.no_grad(), tensor.detach()): the op has none"
                raise KernelContract(name, expected, "requires_grad=True")


def refuse_gradients_of(pools: Sequence[Tensor]) -> None:
    """Refuse pools that require a gradient."""
    if torch.is_grad_enabled() and any(pool.requires_grad for pool in pools):
        refuse_gradients(**{f"pools[{number}]": pool for number, pool in enumerate(pools)})


def written(*tensors: Tensor | None) -> None:
    """Tell autograd that memory has changed: it then notices where the old bytes were kept for a gradient."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
