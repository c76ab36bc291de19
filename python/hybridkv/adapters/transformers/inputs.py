# SPDX-License-Identifier: Apache-2.0
"""The rows of a batch, each without its padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hybridkv.errors import ArgumentError


def sequences(input_ids: Any, attention_mask: Any = None, vocabulary: int | None = None) -> list[npt.NDArray[np.int64]]:
    """Return the tokens of each row, left padding taken off.

    Parameters
    ----------
    input_ids : torch.Tensor or nested sequence of int
        [[rows, tokens]] integers, or [[tokens]] for one row.
    attention_mask : torch.Tensor or nested sequence, optional
        [[rows, tokens]] of 0 and 1: zeros only at the start of a row. Default: no padding, whatever the ids: a prompt
        may contain the padding id.
    vocabulary : int, optional
        Ids are below it.

    Returns
    -------
    list of numpy.ndarray
        [[tokens of the row]] int64 each, at least one token.

    Raises
    ------
    ArgumentError
        Naming the argument: no integers, another shape, a mask with a hole or with padding at the end, a row
        without tokens.
    """
    ids = _integers("input_ids", input_ids)
    if ids.ndim == 1:
        ids = ids[None]
    if ids.ndim != 2 or 0 in ids.shape:
        raise ArgumentError("input_ids", "[[rows, tokens]], at least one of each", f"shape {ids.shape}")
    if int(ids.min()) < 0:
        raise ArgumentError("input_ids", "ids of 0 or more", int(ids.min()))
    if vocabulary is not None and int(ids.max()) >= vocabulary:
        raise ArgumentError("input_ids", f"ids below {vocabulary}, the model's vocabulary", int(ids.max()))
    if attention_mask is None:
        return list(ids)
    mask = _integers("attention_mask", attention_mask)
    if mask.ndim == 1:
        mask = mask[None]
    if mask.shape != ids.shape:
        raise ArgumentError("attention_mask", f"the shape of input_ids, {ids.shape}", mask.shape)
    if not np.isin(mask, (0, 1)).all():
        raise ArgumentError("attention_mask", "0 and 1", np.unique(mask).tolist())
    found = []
    for number, (row, seen) in enumerate(zip(ids, mask, strict=True)):
        if (np.diff(seen) < 0).any() or not seen[-1]:
            raise ArgumentError(
                "attention_mask", "padding at the start of a row only", f"row {number}: {seen.tolist()}"
            )
        found.append(row[int(seen.argmax()) :])
    return found


def _integers(name: str, value: Any) -> npt.NDArray[np.int64]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() or value.is_meta:  # numpy has no bfloat16, and a tensor without content no numbers
            raise ArgumentError(name, "integers", f"a tensor of {value.dtype} on {value.device}")
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ArgumentError(name, "rows of one length", str(error)) from error
    if array.dtype.kind not in "iub":
        raise ArgumentError(name, "integers", f"an array of {array.dtype}")
    return array.astype(np.int64)
