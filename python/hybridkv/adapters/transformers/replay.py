# SPDX-License-Identifier: Apache-2.0
"""Rebuilding a window that is gone: replay of the tokens before a boundary over the stored history.

L layers with a window of W rows push what a row depends on L * (W - 1) tokens back. So a replay that starts that far
before t, over a window of nothing, leaves exactly the window at t and everything made beside it (overlap and raw rows
of open compression windows), provided that history is not made anew on the way: entries recomputed from the first
replayed tokens would be wrong and stay visible for ever. They are forced: while it lasts, a layer's history answers
with what is stored, whatever the model hands to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hybridkv.adapters.transformers import layers as cache_layers
from hybridkv.adapters.transformers.layout import CacheLayout, Place, is_state
from hybridkv.adapters.transformers.pages import Pages
from hybridkv.adapters.transformers.rebuild import State, rebuilt
from hybridkv.adapters.transformers.runner import Runner


def replayed(
    runner: Runner, pages: Pages, history: State, ids: torch.Tensor, start: int, tokens: int, most_tokens: int | None
) -> Any:
    """Make the cache of one sequence at ``tokens`` out of its history alone.

    Parameters
    ----------
    runner : Runner
    pages : Pages
        For the layout and the shape of rows.
    history : State
        The ``Prefix`` groups at ``tokens``.
    ids : torch.Tensor
        [[tokens]] int64, the sequence up to ``tokens``.
    start : int
        Where the replay begins; a multiple of every compression ratio.
    tokens : int
        The boundary.
    most_tokens : int, optional
        Most tokens of one forward pass.

    Returns
    -------
    transformers.DynamicCache
        At ``tokens``: windows and tails as a run over the whole prefix leaves them, up to rounding.
    """
    layout = pages.layout
    past = rebuilt(layout, [_without_windows(pages, history, start)], start)
    step = most_tokens or tokens - start
    with _forced(layout, past, history):
        for begin in range(start, tokens, step):
            end = min(begin + step, tokens)
            runner.run(ids[None, begin:end], past, begin)
    return past


def _without_windows(pages: Pages, history: State, start: int) -> State:
    """Return the state at ``start``: stored history, and rows of zeros where a window or a tail would be."""
    state: dict[Place, torch.Tensor] = {}
    for place in pages.layout.places:
        rows = pages.layout.rows_at(place.group, start)
        if place in history and not is_state(pages.groups[place.group]):
            state[place] = history[place][:rows]
        elif rows:
            shape = pages.shapes[place]
            state[place] = torch.zeros((rows, *shape.shape), dtype=shape.dtype, device=shape.device)
    return state


@contextmanager
def _forced(layout: CacheLayout, past: Any, history: State) -> Iterator[None]:
    """Let the history of every layer answer with what is stored; afterwards it is what is stored."""
    undo: list[Callable[[], None]] = []
    for index, layer in enumerate(past.layers):
        places = [place for place in history if place.layer == index and not is_state(layout.groups[place.group])]
        if not places:
            continue
        stored = {place.path: place.to_layer([history[place]]) for place in places}
        undo.append(
            _force_entries(layer, stored) if hasattr(layer, cache_layers.ENTRIES) else _force_rows(layer, stored)
        )
    try:
        yield
    finally:
        for action in undo:
            action()


def _force_entries(layer: Any, stored: dict[str, torch.Tensor]) -> Callable[[], None]:
    """A compressor's entries: its windows close as ever, what it makes of them is dropped."""
    entries = {path.partition(".")[2]: tensor for path, tensor in stored.items()}

    def update(name: str, compressed: torch.Tensor) -> torch.Tensor:
        layer.entry_count[name] += compressed.shape[1]
        return entries[name][:, : layer.entry_count[name]]

    layer.update_compressor_states = update

    def undo() -> None:
        del layer.update_compressor_states
        for name, tensor in entries.items():
            layer.compressed_kv[name] = tensor

    return undo


def _force_rows(layer: Any, stored: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Keys and values of full attention: a row that is stored takes the place of the one handed in."""
    update_own = layer.update

    def update(keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        begin = layer.keys.shape[-2]
        end = begin + keys.shape[-2]
        return update_own(stored["keys"][:, :, begin:end], stored["values"][:, :, begin:end], *args, **kwargs)

    layer.update = update

    def undo() -> None:
        del layer.update

    return undo
