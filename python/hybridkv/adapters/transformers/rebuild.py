# SPDX-License-Identifier: Apache-2.0
"""A fresh transformers cache out of rows: every tensor, every count and every flag set.

Nothing of a live cache is shared: recurrent layers write their state in place, and a view keeps the whole storage
that it was cut from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from hybridkv.adapters.transformers import layers as cache_layers
from hybridkv.adapters.transformers.layout import CacheLayout, Place, refusal

State = Mapping[Place, torch.Tensor]
"""Rows of one sequence at one position, [[rows, ...]] by place."""


def rebuilt(layout: CacheLayout, states: Sequence[State], tokens: int) -> Any:
    """Make a cache that holds a batch of sequences at one position.

    Parameters
    ----------
    layout : CacheLayout
        Of the model that will go on.
    states : sequence of State
        One per sequence, all at ``tokens``.
    tokens : int
        The position; 0 gives an empty cache.

    Returns
    -------
    transformers.DynamicCache
        Tensors of its own, on the device of the rows.

    Raises
    ------
    RestoreRefused
        The cache that this version of transformers makes has other layers (code "format"); rows of a place are
        missing, or are of another number than the position asks for ("missing", "partial").
    """
    past = DynamicCache(config=layout.config)
    classes = tuple(type(layer).__name__ for layer in past.layers)
    if classes != layout.classes:
        raise refusal("format", "past.layers", ", ".join(layout.classes), ", ".join(classes))
    if tokens == 0:
        return past
    by_layer: dict[int, dict[str, torch.Tensor]] = {}
    for place in layout.places:
        tensor = _joined(layout, states, place, tokens)
        if tensor is not None:
            by_layer.setdefault(place.layer, {})[place.path] = tensor
    for index, layer in enumerate(past.layers):
        if index in by_layer:
            _fill(layout, layer, by_layer[index], tokens)
    return past


def batch_size(layout: CacheLayout, past: Any) -> int:
    """Return the number of sequences in a cache that is not empty."""
    for layer in past.layers:
        for tensor in cache_layers.tensors(layer).values():
            return int(tensor.shape[0])
    raise refusal("missing", "past", "a cache that has seen tokens", "an empty one")


def _joined(layout: CacheLayout, states: Sequence[State], place: Place, tokens: int) -> torch.Tensor | None:
    wanted = layout.rows_at(place.group, tokens)
    rows = [state[place] for state in states if place in state]
    if len(rows) != len(states):
        if wanted or rows:
            raise refusal("missing", place.name, f"{wanted} rows of each of {len(states)} sequences", len(rows))
        return None
    for tensor in rows:
        if tensor.shape[0] != wanted:
            raise refusal("partial", place.name, f"{wanted} rows at position {tokens}", tensor.shape[0])
    return place.to_layer(rows)


def _fill(layout: CacheLayout, layer: Any, held: dict[str, torch.Tensor], tokens: int) -> None:
    _initialise(layer, held)
    for path, tensor in held.items():
        cache_layers.put(layer, path, tensor)
    for copy in layout.family.copies:
        source = held.get(copy.of)
        if source is not None:
            cache_layers.put(layer, copy.path, source if _aliases(layer) else source.clone())
    for path in cache_layers.counts(layer):
        cache_layers.put(layer, path, cache_layers.expected_count(layer, path, tokens))


def _initialise(layer: Any, held: Mapping[str, torch.Tensor]) -> None:
    """Let the layer set its flags, devices and dtypes as it does before its first forward."""
    if "keys" in held:
        keys = held["keys"]
        layer.lazy_initialization(keys, held.get("values", keys))
    if "indexer_keys" in held:
        layer.lazy_initialization_indexer(held["indexer_keys"])
    for path, tensor in held.items():
        name, _, entry = path.partition(".")
        if name in ("conv_states", "recurrent_states"):
            layer.lazy_initialization(**{name: tensor}, **({"state_idx": int(entry)} if entry else {}))
            flag = f"{cache_layers.STARTED}.{entry}" if entry else cache_layers.STARTED
            cache_layers.put(layer, flag, True)


def _aliases(layer: Any) -> bool:
    """Whether the layer itself keeps keys and values as one tensor."""
    return hasattr(layer, "compress_rate")
