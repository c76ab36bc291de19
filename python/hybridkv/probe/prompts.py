# SPDX-License-Identifier: Apache-2.0
"""Prompts that nobody has sent before, cut to a length in tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hybridkv.probe.answers import Answer

Pieces: TypeAlias = tuple[Any, ...]
"""Token ids, or words of about one token each."""

_WORDS = [
    "apple",
    "river",
    "stone",
    "cloud",
    "green",
    "table",
    "seven",
    "light",
    "water",
    "paper",
    "north",
    "horse",
    "glass",
    "music",
    "field",
    "bread",
    "story",
    "winter",
    "silver",
    "garden",
    "window",
    "number",
    "letter",
    "simple",
    "morning",
    "engine",
    "market",
    "island",
    "forest",
    "summer",
    "doctor",
    "school",
    "bridge",
    "yellow",
    "circle",
    "orange",
    "dinner",
    "castle",
    "animal",
    "finger",
    "mountain",
    "pocket",
    "ticket",
    "corner",
    "button",
    "basket",
    "candle",
    "rocket",
    "mirror",
    "ladder",
    "planet",
    "desert",
    "tunnel",
    "violin",
    "hammer",
    "copper",
    "marble",
    "saddle",
    "meadow",
    "valley",
    "harbor",
    "pepper",
    "lemon",
]


@dataclass(frozen=True)
class Prompt:
    """Turns of a conversation: the user's at even places, answers between them; one turn where there is no chat."""

    turns: tuple[Pieces, ...]

    def then(self, pieces: Pieces) -> Prompt:
        """Return it with pieces behind its last turn."""
        return Prompt((*self.turns[:-1], self.turns[-1] + pieces))

    @property
    def pieces(self) -> Pieces:
        """All turns, one after another."""
        return tuple(piece for turn in self.turns for piece in turn)

    def as_text(self) -> str:
        """Return it as one text."""
        return " ".join(str(piece) for piece in self.pieces)

    def as_messages(self) -> list[dict[str, str]]:
        """Return it as the messages of a chat."""
        texts = [" ".join(str(piece) for piece in turn) for turn in self.turns]
        return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


class Prompts:
    """Makes prompts.

    Parameters
    ----------
    seed : int
        Prompts of one seed are always the same.
    vocabulary : (int, int)
        Token ids, half open.

    Attributes
    ----------
    words : bool
        Words are made instead of token ids.
    per_word, around : float
        Tokens of a word, and those that the service puts around a prompt (a chat's template).
    """

    def __init__(self, seed: int, vocabulary: tuple[int, int]) -> None:
        self._random = random.Random(seed)
        self._vocabulary = vocabulary
        self._first: set[Any] = set()
        self.words = False
        self.per_word, self.around = 1.0, 0.0

    def fresh(self, tokens: int) -> Prompt:
        """Return a prompt of so many tokens, its first piece never first before, as far as there are any."""
        return Prompt((self._unique(self.pieces(tokens - round(self.around))),))

    def refreshed(self, prompt: Prompt) -> Prompt:
        """Return a prompt with another first piece, never first before."""
        return Prompt((self._unique(prompt.turns[0]), *prompt.turns[1:]))

    def pieces(self, tokens: int, *, other_than: Sequence[Any] = ()) -> Pieces:
        """Return so many tokens, at least one, the first of which is not that of another suffix."""
        count = max(1, round(tokens / self.per_word) if self.words else tokens)
        made = [self._piece() for _ in range(count)]
        while other_than and made[0] == other_than[0]:
            made[0] = self._piece()
        return tuple(made)

    def below(self, most: int) -> int:
        """Return a random number from 0 on, below another."""
        return self._random.randrange(most)

    def tokens(self, prompt: Prompt, answer: Answer | None = None) -> int:
        """Return the length of a prompt in tokens: what the service counted, if it did, else what is expected."""
        if answer is not None and answer.prompt_tokens is not None:
            return answer.prompt_tokens
        return round(len(prompt.pieces) * (self.per_word if self.words else 1) + self.around)

    def _piece(self) -> Any:
        return self._random.choice(_WORDS) if self.words else self._random.randrange(*self._vocabulary)

    def _unique(self, pieces: Pieces) -> Pieces:
        low, high = self._vocabulary
        for _ in range(1000):
            first = f"{self._random.randrange(10**9):09d}" if self.words else self._random.randrange(low, high)
            if first not in self._first:
                break
        else:
            self._first.clear()  # all were used: what follows the first piece is random as well
        self._first.add(first)
        return (first, *pieces[1:])
