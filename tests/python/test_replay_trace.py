# SPDX-License-Identifier: Apache-2.0
"""Trace files become requests; bad lines are refused with their number; ids become tokens; next turns name
answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridkv.errors import ArgumentError
from hybridkv.replay.answers import next_turns
from hybridkv.replay.tokens import answered_tokens, expand, prompt_tokens
from hybridkv.replay.trace import Trace, load_trace

THREE = [3668339987, 1620195198, 3867017705, 1818872916]


def row(tokens: int, ids: list[int], output: int = 0, **more: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": tokens, "output_length": output, "hash_ids": ids, **more}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def trace_of(tmp_path: Path, rows: list[Any], **options: Any) -> Trace:
    return load_trace(write(tmp_path / "t.jsonl", rows), **options)


def test_requests_keep_order_lengths_and_ids(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [row(14, [1, 2, 3, 4], 5), row(8, [1, 2], session=3), row(3, [])], block_tokens=4)
    assert [r.index for r in trace.requests] == [0, 1, 2]
    assert [r.input_tokens for r in trace.requests] == [14, 8, 3]
    assert [r.output_tokens for r in trace.requests] == [5, 0, 0]
    assert [r.block_ids.tolist() for r in trace.requests] == [[1, 2, 3, 4], [1, 2], []]
    assert [r.session for r in trace.requests] == [None, 3, None]
    assert [trace.named_tokens(r) for r in trace.requests] == [14, 8, 0]
    assert (trace.prompt_tokens, trace.distinct_tokens) == (25, 16)


def test_block_size_follows_from_the_lengths(tmp_path: Path) -> None:
    assert trace_of(tmp_path, [row(6758, list(range(14))), row(1024, [0, 1])]).block_tokens == 512
    assert trace_of(tmp_path, [row(333, list(range(20)))]).block_tokens == 16  # whole blocks only


def test_block_size_that_does_not_follow_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="to be given") as caught:
        trace_of(tmp_path, [row(3, [])])
    assert caught.value.field == "block_tokens"
    assert trace_of(tmp_path, [row(3, [])], block_tokens=16).block_tokens == 16


def test_extra_keys_and_blank_lines_are_passed_over(tmp_path: Path) -> None:
    qwen = row(40, [0, 1, 2], 7, chat_id=5, parent_chat_id=-1, type="text", turn=1)
    (request,) = trace_of(tmp_path, ["", {**qwen, "timestamp": 61.5}, ""]).requests
    assert (request.chat, request.parent_chat, request.timestamp) == (5, -1, 61.5)


def test_only_the_first_requests_are_read(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [row(16, [0]), row(16, [1]), "broken"], block_tokens=16, requests=2)
    assert len(trace.requests) == 2


@pytest.mark.parametrize(
    ("line", "field", "expected"),
    [
        ("{", "t.jsonl:2", "a JSON object"),
        ("[1]", "t.jsonl:2", "a JSON object"),
        ({"input_length": 1}, "t.jsonl:2: timestamp", "a number"),
        ({**row(16, [0]), "timestamp": True}, "t.jsonl:2: timestamp", "a number"),
        ({**row(16, [0]), "timestamp": -1}, "t.jsonl:2: timestamp", "at least 0"),
        ({**row(16, [0]), "input_length": -16}, "t.jsonl:2: input_length", "at least 0"),
        ({**row(16, [0]), "output_length": 1.5}, "t.jsonl:2: output_length", "an integer"),
        ({**row(16, [0]), "hash_ids": None}, "t.jsonl:2: hash_ids", "a list"),
        ({**row(16, [0]), "hash_ids": [-1]}, "t.jsonl:2: hash_ids[0]", "at least 0"),
        ({**row(16, [0]), "hash_ids": [True]}, "t.jsonl:2: hash_ids[0]", "an integer"),
        ({**row(16, [0]), "session": "a"}, "t.jsonl:2: session", "an integer"),
        (row(64, [0]), "t.jsonl:2: hash_ids", "4 ids for 64 tokens in blocks of 16"),
    ],
)
def test_bad_lines_are_refused_by_number(tmp_path: Path, line: Any, field: str, expected: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        trace_of(tmp_path, [row(16, [0]), line], block_tokens=16)
    assert caught.value.field == field
    assert expected in str(caught.value.expected)


def test_a_line_that_no_block_size_fits_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        trace_of(tmp_path, [row(6758, list(range(14))), row(512, [0]), row(6758, [1, 2])])
    assert caught.value.field == "t.jsonl:3: hash_ids"


def test_files_that_hold_nothing_or_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="No such file"):
        load_trace(tmp_path / "none.jsonl")
    with pytest.raises(ArgumentError, match="at least one request"):
        trace_of(tmp_path, [""])
    (tmp_path / "latin.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(ArgumentError, match="UTF-8"):
        load_trace(tmp_path / "latin.jsonl")
    for option in ("requests", "block_tokens"):
        with pytest.raises(ArgumentError, match="at least 1"):
            trace_of(tmp_path, [row(16, [0])], **{option: 0})


def test_ids_too_large_to_expand_are_numbered_by_first_use(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [row(32, [2**63, 7]), row(48, [2**63, 7, 2**80])], block_tokens=16)
    assert [r.block_ids.tolist() for r in trace.requests] == [[0, 1], [0, 1, 2]]


def test_equal_ids_give_equal_tokens_and_distinct_ids_differ_everywhere() -> None:
    ids = np.array([0, 1, 2, 5, 2**31 - 1, 2**31, 2**32 - 1], dtype=np.int64)
    blocks = expand(ids, 64).reshape(len(ids), 64)
    assert blocks.dtype == np.uint32
    assert np.array_equal(blocks, expand(ids, 64).reshape(len(ids), 64))
    assert np.array_equal(expand(ids[3:4], 64), blocks[3])  # an id alone is what it is among others
    for column in blocks.T:
        assert len(set(column.tolist())) == len(ids)
    assert expand(ids[:0], 64).size == 0
    assert expand(np.array([3]), 4).tolist() == THREE  # in every process


def test_ids_that_are_no_token_seed_are_refused() -> None:
    for bad in (-1, 2**32):
        with pytest.raises(ArgumentError, match="0 <= id"):
            expand(np.array([bad]), 4)
    with pytest.raises(ArgumentError, match="at least 1"):
        expand(np.array([1]), 0)


def test_tokens_that_no_id_names_are_private(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [row(40, [1, 2]), row(40, [1, 2]), row(30, [1, 2])], block_tokens=16)
    first, second, short = (prompt_tokens(trace, r) for r in trace.requests)
    assert first.size == second.size == 40
    assert np.array_equal(first[:32], second[:32])
    assert not np.any(first[32:] == second[32:])
    assert np.array_equal(short, first[:30])  # a partial last block is the start of its id's tokens


def test_a_next_turn_names_the_answer(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [row(8, [1, 2], 4), row(14, [1, 2, 3, 4])], block_tokens=4)
    assert next_turns(trace) == [1, None]
    tokens = answered_tokens(trace, trace.requests[0], trace.requests[1])
    assert np.array_equal(tokens, expand(np.array([1, 2, 3]), 4))


def test_a_shared_system_prompt_ties_nobody_together(tmp_path: Path) -> None:
    rows = [row(8, [1, 2], 4), row(4, [1]), row(16, [1, 5, 6, 7])]
    assert next_turns(trace_of(tmp_path, rows, block_tokens=4)) == [None, None, None]


def test_an_answer_that_was_not_kept_is_not_invented(tmp_path: Path) -> None:
    rows = [row(8, [1, 2], 12), row(12, [1, 2, 3]), row(24, [1, 2, 3, 4, 5, 6])]
    turns = next_turns(trace_of(tmp_path, rows, block_tokens=4))
    # Request 1 goes on and is too short to hold the answer of 0: what comes later holds other things.
    assert turns[0] is None
    assert turns[1] == 2


def test_a_repeated_prompt_is_no_next_turn(tmp_path: Path) -> None:
    rows = [row(8, [1, 2], 4), row(8, [1, 2], 4), row(16, [1, 2, 3, 4])]
    assert next_turns(trace_of(tmp_path, rows, block_tokens=4)) == [2, None, None]


def test_sessions_and_parents_decide_where_they_are_told(tmp_path: Path) -> None:
    rows = [row(8, [1, 2], 4, session=0), row(16, [1, 2, 3, 4], session=1), row(16, [1, 2, 5, 6], session=0)]
    assert next_turns(trace_of(tmp_path, rows, block_tokens=4)) == [2, None, None]
    chats = [
        row(8, [1, 2], 4, chat_id=10, parent_chat_id=-1),
        row(16, [1, 2, 3, 4], chat_id=11, parent_chat_id=-1),
        row(16, [1, 2, 5, 6], chat_id=12, parent_chat_id=10),
    ]
    assert next_turns(trace_of(tmp_path, chats, block_tokens=4)) == [2, None, None]
    chats[2] = row(16, [9, 2, 5, 6], chat_id=12, parent_chat_id=10)  # does not start with its parent's prompt
    assert next_turns(trace_of(tmp_path, chats, block_tokens=4)) == [None, None, None]
