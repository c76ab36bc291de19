# SPDX-License-Identifier: Apache-2.0
"""Noticing that a live model is no longer the one whose states are stored.

Reading all weights at every call is out of the question. What is read instead moves with every way of changing a
model that torch or an adapter library offers: tensors exchanged, tensors written in place, adapters switched on, off
or over, the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

_SAMPLES = 8

_ADAPTER_FACTS = ("active_adapter", "active_adapters", "_active_adapter", "_disable_adapters", "merged_adapters")
"""Attributes in which adapter layers say what they add to their base."""


def weights_version(model: Any) -> int:
    """Return a number that moves where a parameter or buffer is exchanged or written, or a setting is changed.

    Torch counts writes into a tensor, but not those through ``tensor.data``, which is how adapters are merged: eight
    elements of each tensor are read besides. A write through ``.data`` that spares all eight goes unseen.
    """
    tensors = [*model.parameters(), *model.buffers()]
    versions = tuple((id(t), t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)
    config = model.config
    switches = [getattr(config, name, None) for name in ("_attn_implementation", "_experts_implementation")]
    return hash((versions, _sampled(tensors), repr(config.to_dict()), repr(switches)))


def _sampled(tensors: Iterable[torch.Tensor]) -> bytes:
    """Return a few elements of every tensor, fetched from each device at once."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() and not tensor.is_meta:
            flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[(0,) * (tensor.ndim - 1)]
            few = flat[:: max(1, flat.numel() // _SAMPLES)][:_SAMPLES]
            by_device.setdefault(tensor.device, []).append(
                few.abs().to(torch.float32) if few.is_complex() else few.float()
            )
    return b"".join(torch.cat(parts).cpu().numpy().tobytes() for parts in by_device.values())


def adapter_state(model: Any) -> str:
    """Return which adapters a model's layers apply, in one string; empty where it has none.

    Parameters
    ----------
    model : torch.nn.Module
    """
    return ";".join(sorted(set(_adapter_facts(model))))


def _adapter_facts(model: Any) -> Iterator[str]:
    for module in model.modules():
        held = vars(module)
        facts = [f"{name}={held[name]!r}" for name in _ADAPTER_FACTS if name in held]
        if facts:
            yield ",".join(facts)
