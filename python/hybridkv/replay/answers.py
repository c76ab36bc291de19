# SPDX-License-Identifier: Apache-2.0
"""What the ids of a trace tell about answers.

A trace names the blocks of prompts only. The blocks of an answer are named by the *next turn*: the later
request whose prompt is this prompt, this answer and something new. Its first ``input + output`` tokens are
then what the cache holds when this request ends. Nothing is invented: a request without a next turn in the
trace leaves only its prompt behind.

A later request is taken as the next turn when the file says so (``parent_chat_id``), or else when it is the
first one that holds the last whole block of this prompt and goes on, provided that this request was the
first to use that block (so that a shared system prompt ties nobody together) and the sessions agree where
both are told. In both cases it must start with all whole blocks of this prompt and be at least as long as
prompt and answer together: where it is shorter, the answer was not kept. That a kept answer stands right
behind the prompt, unchanged, is assumed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hybridkv.replay.trace import Request, Trace


def next_turns(trace: Trace) -> list[int | None]:
    """Find the next turn of each request.

    Parameters
    ----------
    trace : Trace
        The requests.

    Returns
    -------
    list of int or None
        For each request the index of the later request whose ids name its answer.
    """
    turns: list[int | None] = [None] * len(trace.requests)
    settled: set[int] = set()
    by_chat = {request.chat: request.index for request in trace.requests if request.chat is not None}
    firsts = _first_users(trace)
    waiting: dict[int, dict[int, int]] = {}  # id of a last whole block -> where it stands -> whose it is
    for request in trace.requests:
        parent = None if request.parent_chat is None else by_chat.get(request.parent_chat)
        ids = request.block_ids.tolist()
        known = waiting.keys() & set(ids)
        found = {
            index for block_id in known for at, index in waiting[block_id].items() if ids[at : at + 1] == [block_id]
        }
        found = {index for index in found if trace.requests[index].chat is None or request.parent_chat is None}
        if parent is not None and parent < request.index:
            found.add(parent)
        for index in sorted(found - settled):
            earlier = trace.requests[index]
            if request.input_tokens <= earlier.input_tokens or not _same_session(earlier, request):
                continue
            settled.add(index)
            if _holds_answer(trace, earlier, request):
                turns[index] = request.index
        whole = request.input_tokens // trace.block_tokens
        if whole and firsts[request.index][whole - 1]:
            waiting.setdefault(ids[whole - 1], {})[whole - 1] = request.index
    return turns


def _first_users(trace: Trace) -> list[npt.NDArray[np.bool_]]:
    """Say of each id of each request whether no earlier request has it."""
    rows = [request.block_ids for request in trace.requests]
    users = np.repeat(np.arange(len(rows)), [row.size for row in rows])
    _, first, inverse = np.unique(np.concatenate(rows), return_index=True, return_inverse=True)
    return np.split(users[first][inverse] == users, np.cumsum([row.size for row in rows])[:-1])


def _same_session(earlier: Request, later: Request) -> bool:
    return earlier.session is None or later.session is None or earlier.session == later.session


def _holds_answer(trace: Trace, earlier: Request, later: Request) -> bool:
    whole = earlier.input_tokens // trace.block_tokens
    if trace.named_tokens(later) < earlier.input_tokens + earlier.output_tokens:
        return False
    return np.array_equal(earlier.block_ids[:whole], later.block_ids[:whole])
