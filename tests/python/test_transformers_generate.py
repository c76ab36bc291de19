# SPDX-License-Identifier: Apache-2.0
"""``generate`` through PrefixReuse gives the tokens of ``model.generate``: 300 random conversations of ten architectures.

Pools are too small for them, so that pages are evicted all the time; several conversations of different length and
of different reusable length go into one call. See :mod:`conversations` for what they do and what is a tie.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import conversations  # noqa: E402
import tiny_models  # noqa: E402
from conversations import SETTINGS, Tally, play  # noqa: E402

CONVERSATIONS = 5  # of each of six settings and ten architectures: 300
TURNS = 4


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def played(name: str) -> Tally:
    """All conversations of one architecture."""
    model = tiny_models.tiny(name)
    total = Tally()
    for number, setting in enumerate(SETTINGS):
        total += play(model, setting, CONVERSATIONS, TURNS, seed=number)
    return total


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_generate_gives_the_tokens_of_the_model(name: str) -> None:
    start = time.time()
    tally = played(name)
    print(name, tally, time.time() - start)
    assert tally.wrong == []
