# SPDX-License-Identifier: Apache-2.0
"""What is not broken is accepted, and goes on bit for bit as if it had never been stored; and no fault reaches a text.

The uninterrupted run is one live cache that is never stored, taken apart or restored: it is copied whole, by Python,
where a continuation is compared.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is absent: the kit breaks states of its models")

import torch
from transformers import DynamicCache

import hybridkv as hk
from fault_cases import SOAK
from faults import FAULTS
from faults.fault import same_bytes
from faults.images import producer_of
from faults.live import Live
from faults.pages import Opened
from hybridkv.adapters.transformers import PrefixReuse
from hybridkv.adapters.transformers.image import CacheImage
from tiny_models import ARCHITECTURES, tiny

SEEDS = (0, 1, 2, 3) if SOAK else (0, 1)
POSITIONS = (1, 2, 3, 5, 13, 15, 16, 17, 31, 32, 33, 48, 50, 63, 64, 66, 77, 79, 95, 96, 97, 127, 128, 129, 143, 150)
SHORT = (3, 15, 16, 17, 32, 47, 48, 50, 63, 64, 79)
CONTROLS = len(ARCHITECTURES) * len(SEEDS) * len(POSITIONS if SOAK else SHORT)
SUFFIX = 6


def pieces(start: int, end: int, step: int | None) -> Iterator[tuple[int, int]]:
    """Chunks of a run that stops at every multiple of a step."""
    while start < end:
        stop = end if step is None else min(end, (start // step + 1) * step)
        yield start, stop
        start = stop


def run(live: Live, past: Any, ids: torch.Tensor, start: int, step: int | None) -> torch.Tensor:
    """Logits [[tokens, vocabulary]] of all tokens from start on, behind a cache."""
    logits = [
        live.runner.run(ids[None, begin:stop], past, begin, all_logits=True)[0]
        for begin, stop in pieces(start, len(ids), step)
    ]
    return torch.cat(logits)


def step_of(live: Live, reuse: PrefixReuse) -> int | None:
    """Where reuse stops on its way: at every unit where a model has states, nowhere if it has none or must not."""
    keeps_states = any(not isinstance(group.coverage, hk.Prefix) for group in reuse.cache.spec.groups)
    return reuse.cache.spec.unit_tokens if keeps_states and not live.runner.single_steps else None


def question(live: Live, tokens: int, number: int) -> torch.Tensor:
    """The prompt up to a position and other tokens behind it: the first is the question's own, of 255 at most."""
    drawn = torch.randint(0, 256, (SUFFIX,), generator=torch.Generator().manual_seed(number))
    drawn[0] = (int(live.prompt[tokens]) + 1 + number) % 256  # never the prompt's: it would name a block of it
    return torch.cat([live.prompt[:tokens], drawn])


def test_there_are_two_hundred_controls() -> None:
    assert CONTROLS >= 200


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_unbroken_states_are_accepted_and_go_on_bit_for_bit(name: str, seed: int) -> None:
    live = Live(tiny(name, seed), seed)
    producer = producer_of(live)
    reuse = PrefixReuse(live.model, replay=False, memory_bytes=1 << 23)
    step = step_of(live, reuse)
    past, position = DynamicCache(config=live.model.config), 0
    for tokens in POSITIONS if SOAK else SHORT:
        ids = question(live, tokens, tokens)
        run(live, past, live.prompt[:tokens], position, step)  # the uninterrupted run
        position = tokens
        wanted = run(live, copy.deepcopy(past), ids, tokens, step)

        reuse.forward(ids[None, :tokens])  # stored, the last stretch from where the one before it was
        out = reuse.forward(ids[None])
        assert (out.rows[0].matched, out.rows[0].usable) == (tokens, tokens), tokens
        assert (out.rows[0].outcome, out.rows[0].why) == (hk.Outcome.REUSABLE, None), tokens
        assert same_bytes(out.logits[0], wanted), tokens

        image = CacheImage.take(past, live.model.config, producer=producer, tokens=ids[:tokens].numpy())
        again = CacheImage.from_bytes(image.to_bytes())
        restored = again.restore(live.model.config, producer=producer, tokens=ids[:tokens].numpy())
        assert same_bytes(run(live, restored, ids, tokens, step), wanted), tokens
    assert reuse.cache.metrics().hit_rate == 0 or reuse.cache.metrics().effective_hit_rate > 0


@pytest.mark.parametrize("name", ARCHITECTURES if SOAK else ["deepseek_v4", "gpt_oss", "deepseek_v32", "qwen3_next"])
def test_no_fault_in_a_page_changes_an_answer(name: str) -> None:
    """Pages are broken one fault at a time while a model is served from them; it computes again what is refused."""
    live = Live(tiny(name))
    reuse = PrefixReuse(live.model, replay=False, memory_bytes=1 << 23)
    tokens = 79
    step = step_of(live, reuse)
    past = DynamicCache(config=live.model.config)
    run(live, past, live.prompt[:64], 0, step)
    at_64 = copy.deepcopy(past)
    run(live, past, live.prompt[:tokens], 64, step)
    right = {place: rows.clone() for place, rows in live.layout.state(past, tokens).items()}
    context, keys = live.context(tokens), reuse.keys(live.prompt[: tokens + 1].numpy())
    refused = 0
    for number, fault in list(enumerate(FAULTS.values()))[:: 1 if SOAK else 3]:
        broken = fault.apply(right, context)
        if broken is None:
            continue
        reuse.forward(live.prompt[None, :tokens])  # stored, again where the fault before this one was found out
        if not Opened(reuse.cache, reuse.pages, keys, tokens).overwrite(right, broken):
            continue
        ids = question(live, tokens, number)
        out = reuse.forward(ids[None])
        why = out.rows[0].why
        assert why is not None, fault.name
        assert (why.check, why.code) == (hk.Check.INTEGRITY, "content"), fault.name
        assert out.rows[0].usable < tokens
        start, live_past = (64, at_64) if step else (0, DynamicCache(config=live.model.config))
        wanted = run(live, copy.deepcopy(live_past), ids, start, step)  # it does not stop at the prefix's end
        assert same_bytes(out.logits[0, -SUFFIX:], wanted[-SUFFIX:]), fault.name
        refused += 1
    assert refused >= (30 if SOAK else 10)


def test_without_verification_a_fault_in_a_page_changes_the_answer() -> None:
    """The same, verification off: the kit can fail."""
    live = Live(tiny("deepseek_v4"))
    reuse = PrefixReuse(live.model, replay=False, memory_bytes=1 << 23, verify="off")
    tokens = 79
    reuse.forward(live.prompt[None, :tokens])
    keys = reuse.keys(live.prompt[: tokens + 1].numpy())
    opened = Opened(reuse.cache, reuse.pages, keys, tokens)
    right = opened.state()
    assert right is not None
    context = live.context(tokens)
    names = ("window: of one token ago", "overlap: all zero", "tail: of another request", "indexer: all zero")
    for number, name in enumerate(names):
        broken = FAULTS[name].apply(right, context)
        assert broken is not None and opened.overwrite(right, broken)
        ids = question(live, tokens, number)
        wanted = run(live, DynamicCache(config=live.model.config), ids, 0, 16)
        out = reuse.forward(ids[None])
        assert (out.rows[0].usable, out.rows[0].why) == (tokens, None)
        assert opened.overwrite(broken, right)
        assert not same_bytes(out.logits[0], wanted[-SUFFIX:]), name
