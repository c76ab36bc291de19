# SPDX-License-Identifier: Apache-2.0
"""What the demo's models are asked: shared system prompts, bytes of real text, turns that continue each other."""

from __future__ import annotations

import itertools

import numpy as np

from hybridkv.demo.conversations import ANSWER_TOKENS, CONVERSATIONS, REVIEW, SUPPORT, order_of_requests


def test_eight_conversations_share_two_system_prompts() -> None:
    assert len(CONVERSATIONS) == 8
    assert {conversation.system for conversation in CONVERSATIONS} == {SUPPORT, REVIEW}
    assert all(3 <= len(conversation.turns) <= 4 for conversation in CONVERSATIONS)
    assert len({conversation.turns[0] for conversation in CONVERSATIONS}) == 8
    assert len({conversation.name for conversation in CONVERSATIONS}) == 8


def test_a_prompt_is_the_bytes_of_the_text() -> None:
    conversation = next(found for found in CONVERSATIONS if found.name == "falsche Adresse")
    prompt = conversation.prompt([])
    assert prompt.dtype == np.int64
    assert bytes(prompt.astype(np.uint8)).decode() == f"{SUPPORT}\n\nUser: {conversation.turns[0]}\nAssistant: "
    assert prompt.max() > 127, "text beyond ASCII is bytes like any other"


def test_the_next_turn_continues_the_prompt_and_the_answer() -> None:
    answers = [[65 + turn] * ANSWER_TOKENS for turn in range(3)]
    for conversation in CONVERSATIONS:
        prompts = [conversation.prompt(answers[:turn]) for turn in range(len(conversation.turns))]
        for turn, (earlier, later) in enumerate(itertools.pairwise(prompts)):
            said = np.concatenate([earlier, answers[turn]])
            assert np.array_equal(later[: said.size], said)
            assert conversation.turns[turn + 1].encode() in bytes(later.astype(np.uint8)[said.size :])


def test_every_turn_is_asked_once_and_conversations_take_turns() -> None:
    order = order_of_requests()
    assert sorted(order) == [
        (index, turn) for index, found in enumerate(CONVERSATIONS) for turn in range(len(found.turns))
    ]
    assert [turn for _, turn in order] == sorted(turn for _, turn in order)
    assert [index for index, turn in order if turn == 0] == list(range(8))
