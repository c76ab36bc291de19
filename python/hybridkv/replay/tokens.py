# SPDX-License-Identifier: Apache-2.0
"""Block ids become pseudo-tokens: equal ids give equal tokens, distinct ids distinct ones, in every
process."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hybridkv.errors import ArgumentError
from hybridkv.replay.trace import MAX_BLOCK_ID, Request, Trace

Tokens = npt.NDArray[np.uint32]

_SPREAD = np.uint32(0x9E3779B1)  # odd: at every position of a block the token is a bijection of the id
_STRIDE = np.uint32(0x85EBCA6B)
_PRIVATE = MAX_BLOCK_ID + 1  # ids from here on belong to one request each


def expand(block_ids: npt.NDArray[np.int64], block_tokens: int) -> Tokens:
    """Expand ids to tokens.

    Parameters
    ----------
    block_ids : numpy.ndarray
        int64 [[blocks]], each 0 <= id < 2**32.
    block_tokens : int
        Tokens of one block.

    Returns
    -------
    numpy.ndarray
        uint32 [[blocks * block_tokens]]. Two distinct ids differ at every position of their blocks.

    Raises
    ------
    ArgumentError
        An id is out of range, or a block is empty.
    """
    if block_tokens < 1:
        raise ArgumentError("block_tokens", "at least 1", block_tokens)
    if block_ids.size and not (int(block_ids.min()) >= 0 and int(block_ids.max()) < 2**32):
        raise ArgumentError("block_ids", "0 <= id < 2**32", f"{block_ids.min()} to {block_ids.max()}")
    first = block_ids.astype(np.uint32) * _SPREAD
    steps = np.arange(block_tokens, dtype=np.uint32) * _STRIDE
    return (first[:, None] + steps).reshape(-1)


def prompt_tokens(trace: Trace, request: Request) -> Tokens:
    """Tokens of a prompt; those that no id names are equal to nothing in any other request.

    Parameters
    ----------
    trace : Trace
        The trace of the request.
    request : Request
        The request.

    Returns
    -------
    numpy.ndarray
        uint32 [[request.input_tokens]].
    """
    named = expand(request.block_ids, trace.block_tokens)[: request.input_tokens]
    rest = request.input_tokens - named.size
    if rest == 0:
        return named
    private = expand(np.array([_PRIVATE + request.index], dtype=np.int64), rest)
    return np.concatenate([named, private])


def answered_tokens(trace: Trace, request: Request, turn: Request) -> Tokens:
    """Tokens of prompt and answer together, as the next turn names them.

    Parameters
    ----------
    trace : Trace
        The trace of both.
    request, turn : Request
        A request and its next turn, see :func:`hybridkv.replay.answers.next_turns`.

    Returns
    -------
    numpy.ndarray
        uint32 [[request.input_tokens + request.output_tokens]].
    """
    tokens = request.input_tokens + request.output_tokens
    blocks = -(-tokens // trace.block_tokens)
    return expand(turn.block_ids[:blocks], trace.block_tokens)[:tokens]
