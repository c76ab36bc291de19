# SPDX-License-Identifier: Apache-2.0
"""Noticing that a live model is no longer the one whose states are stored.

Reading all weights at every call is out of the question. What is read instead moves with every way of changing a
model that torch or an adapter library offers: tensors exchanged, tensors written in place, adapters switched on, off
or over, the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_ADAPTER_FACTS = ("active_adapter", "active_adapters", "_active_adapter", "_disable_adapters", "merged_adapters")
"""Attributes in which adapter layers say what they add to their base."""


def weights_version(model: Any) -> int:
    """Return a number that moves where a parameter or a buffer is exchanged or written in place, in this process.

    Writes through ``tensor.data`` move nothing in torch: whoever does that makes a new :class:`.PrefixReuse`.
    """
    tensors = [*model.parameters(), *model.buffers()]
    return hash((tuple((id(t), t.data_ptr(), t._version) for t in tensors), repr(model.config.to_dict())))


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
