# SPDX-License-Identifier: Apache-2.0
"""The tensors and counts of a transformers cache layer, by path; what each must be at a position.

A layer is read by walking its attributes, so that nothing it holds goes unseen: a tensor that no group claims is an
error, not a loss. Every count is a function of the position, hence none is stored: it is compared when a state is
taken and set when it is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

POSITION = "cumulative_length"
ENTRIES = "entry_count"
STARTED = "has_previous_state"
_CONSTANT = {"_sliding_window_tensor"}
"""Tensors that say how a layer is made, not what it holds."""


def tensors(layer: Any) -> dict[str, torch.Tensor]:
    """Return every tensor that a layer holds.

    Parameters
    ----------
    layer : object
        A layer of a transformers cache.

    Returns
    -------
    dict of str to torch.Tensor
        By path, ``name`` or ``name.entry``; the layer's own tensors, not copies. Attributes that are None or
        placeholders without elements and without a row axis (before the first forward) are left out.
    """
    found = {}
    for path, value in _walk(layer):
        if isinstance(value, torch.Tensor) and path not in _CONSTANT and value.ndim > 1:
            found[path] = value
    return found


def counts(layer: Any) -> dict[str, int]:
    """Return the positions and counts of entries that a layer keeps beside its tensors, by path."""
    wanted = (POSITION, ENTRIES)
    return {path: int(value) for path, value in _walk(layer) if path.split(".")[0] in wanted}


def expected_count(layer: Any, path: str, tokens: int) -> int:
    """Return what a count must be after ``tokens`` tokens.

    Parameters
    ----------
    layer : object
        The layer, which knows its compression ratio.
    path : str
        One of :func:`counts`.
    tokens : int
        The position.
    """
    return tokens if path == POSITION else tokens // int(layer.compress_rate)


def is_started(layer: Any) -> bool:
    """Whether the layer will go on from the state that it holds; a recurrent layer keeps a flag for that."""
    flag = getattr(layer, STARTED, True)
    return all(flag.values()) if isinstance(flag, dict) else bool(flag)


def put(layer: Any, path: str, value: Any) -> None:
    """Set an attribute, or an entry of a dict, by path."""
    name, _, entry = path.partition(".")
    if not entry:
        setattr(layer, name, value)
        return
    held = getattr(layer, name)
    held[_entry_key(held, entry)] = value


def get(layer: Any, path: str) -> Any:
    """Return an attribute, or an entry of a dict, by path; None where there is none."""
    name, _, entry = path.partition(".")
    held = getattr(layer, name, None)
    return held.get(_entry_key(held, entry)) if entry and isinstance(held, dict) else held


def matching(paths: dict[str, torch.Tensor], wanted: str) -> list[str]:
    """Return the paths that ``wanted`` stands for: itself, or every entry of the dict that it names."""
    return [wanted] if wanted in paths else sorted(path for path in paths if path.startswith(wanted + "."))


def entries(layer: Any, wanted: str) -> list[str]:
    """Return the paths that ``wanted`` stands for in a layer that is not filled yet."""
    held = getattr(layer, wanted, None)
    return [f"{wanted}.{entry}" for entry in held] if isinstance(held, dict) else [wanted]


def _entry_key(held: dict[Any, Any], entry: str) -> Any:
    return next((key for key in held if str(key) == entry), entry)


def _walk(layer: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            yield from ((f"{name}.{entry}", part) for entry, part in value.items())
        else:
            yield name, value
