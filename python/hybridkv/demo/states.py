# SPDX-License-Identifier: Apache-2.0
"""Which states of a cache are not what a recomputation would have left there."""

from __future__ import annotations

from typing import Any

import torch

from hybridkv.adapters.transformers import layers as cache_layers
from hybridkv.adapters.transformers.layout import CacheLayout
from hybridkv.kinds import StateKind

TOLERANCE = 1e-3
"""Largest difference of an element that chunking may explain; float32 chunks differ by about 1e-5."""


def wrong_groups(layout: CacheLayout, resumed: Any, right: Any) -> dict[str, StateKind]:
    """Compare two caches group by group.

    Parameters
    ----------
    layout : CacheLayout
        Of the model.
    resumed, right : transformers.Cache
        Both of one sequence and one position.

    Returns
    -------
    dict of str to StateKind
        Groups in which a tensor is missing, of another shape, or differs by more than :data:`TOLERANCE`.
    """
    found = {}
    for place in layout.places:
        ours = cache_layers.get(resumed.layers[place.layer], place.path)
        theirs = cache_layers.get(right.layers[place.layer], place.path)
        if not _alike(ours, theirs):
            found[place.group] = layout.groups[place.group].kind
    return found


def _alike(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> bool:
    if ours is None or theirs is None:  # before the first row, a layer has no tensor yet
        return all(tensor is None or tensor.numel() == 0 for tensor in (ours, theirs))
    return ours.shape == theirs.shape and bool((ours - theirs).abs().max() <= TOLERANCE if ours.numel() else True)
