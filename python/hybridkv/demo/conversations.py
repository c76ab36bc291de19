# SPDX-License-Identifier: Apache-2.0
"""Eight conversations under two system prompts, and how one becomes the tokens of a prompt.

The text is ours. A token is a byte of UTF-8. What the assistant says is not written here: it is what the model
answers, and the next turn's prompt carries it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ANSWER_TOKENS = 16
"""Tokens of every answer, chosen greedily."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one user says to the assistant.

    Attributes
    ----------
    name : str
        A few words.
    system : str
        The system prompt, which other conversations share.
    turns : tuple of str
        What the user says, turn by turn.
    """

    name: str
    system: str
    turns: tuple[str, ...]

    def prompt(self, answers: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
        """Make the prompt of the turn that follows the given answers.

        Parameters
        ----------
        answers : sequence of sequence of int
            Tokens the assistant answered in the turns before; fewer than there are turns.

        Returns
        -------
        ndarray
            Token ids, int64 [[tokens]], each below 256.
        """
        text = bytearray(self.system.encode())
        for turn, said in enumerate(self.turns[: len(answers) + 1]):
            text += f"\n\nUser: {said}\nAssistant: ".encode()
            if turn < len(answers):
                text += bytes(answers[turn])
        return np.frombuffer(bytes(text), dtype=np.uint8).astype(np.int64)


SUPPORT = (
    "You answer for Northbound Parcels. Be brief and friendly. Ask for the parcel number before you look anything up."
    " Never promise a day of delivery; name the depot that holds the parcel and the next scan. Refunds above 40 euros"
    " go to a colleague. Answer in the language of the customer."
)

REVIEW = (
    "You review patches to a storage engine written in C++20. Say first whether the patch is right, then what to"
    " change, most important first. Quote the line you mean. Look for lifetimes, integer widths, error paths and tests"
    " that cannot fail. No praise, no style remarks that the formatter settles."
)

CONVERSATIONS = (
    Conversation(
        "late parcel",
        SUPPORT,
        (
            "My parcel was due on Tuesday and the page still says 'in transit'.",
            "The number is NB 4471 0932 8.",
            "So it is in Leipzig. Can I pick it up there myself?",
            "Thanks. Please hold it at the depot, then.",
        ),
    ),
    Conversation(
        "null lease",
        REVIEW,
        (
            "void drop(Lease* lease) { lease->release(); delete lease; }  // called from two threads",
            "Would an atomic exchange of the pointer be enough?",
            "And if release() throws?",
        ),
    ),
    Conversation(
        "broken vase",
        SUPPORT,
        (
            "The vase I ordered arrived in pieces. I would like my money back.",
            "It cost 65 euros, the number is NB 2208 5516 0. I have photographs.",
            "Where do I send them?",
        ),
    ),
    Conversation(
        "short read",
        REVIEW,
        (
            "if (read(fd, buffer, size) < 0) return Error::Io;  // the rest of the record follows",
            "A regular file never reads short, does it?",
            "I made it a loop. Here it is: while (done < size) done += read(fd, buffer + done, size - done);",
            "Fixed. Which test would have found it?",
        ),
    ),
    Conversation(
        "falsche Adresse",
        SUPPORT,
        (
            "Guten Tag, ich habe beim Bestellen die falsche Hausnummer angegeben. Lässt sich das noch ändern?",
            "Die Nummer ist NB 7730 1145 2, richtig wäre Mühlstraße 18.",
            "Muss ich dafür etwas bezahlen?",
            "Vielen Dank für die schnelle Hilfe!",
        ),
    ),
    Conversation(
        "wide shift",
        REVIEW,
        (
            "uint64_t mask = (1 << bits) - 1;  // bits is at most 48",
            "The test passes: EXPECT_EQ(mask_of(8), 255).",
            "Then let me test 31, 32 and 48. Anything else?",
        ),
    ),
    Conversation(
        "two numbers",
        SUPPORT,
        (
            "I have two numbers for one order, NB 1010 4242 7 and NB 1010 4243 5. Which of them is mine?",
            "Only one of the boxes came.",
            "It was the lighter one. When will the other be scanned next?",
            "Could a neighbour take it?",
        ),
    ),
    Conversation(
        "cache key",
        REVIEW,
        (
            "The key of a block is now hash(tokens); the model's name was dropped because all pods run the same one.",
            "We do serve two adapters, but they share the base weights.",
            "So the adapter's digest goes into the root. What about the tenant?",
            "Here is the new patch, with a salt for each tenant.",
        ),
    ),
)
"""In order of arrival; :func:`order_of_requests` interleaves their turns."""


def order_of_requests(conversations: Sequence[Conversation] = CONVERSATIONS) -> list[tuple[int, int]]:
    """Interleave the turns as users would: everybody's first, then everybody's second.

    Parameters
    ----------
    conversations : sequence of Conversation
        Who talks.

    Returns
    -------
    list of (int, int)
        Index of the conversation, index of the turn.
    """
    longest = max(len(conversation.turns) for conversation in conversations)
    return [
        (index, turn)
        for turn in range(longest)
        for index, conversation in enumerate(conversations)
        if turn < len(conversation.turns)
    ]
