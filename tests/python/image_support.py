# SPDX-License-Identifier: Apache-2.0
"""Runs of tiny models that were never interrupted, and images taken on the way."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from hybridkv.adapters.transformers.image import CacheImage
from hybridkv.adapters.transformers.producer import Producer
from hybridkv.adapters.transformers.runner import Runner
from hybridkv.demo.models import tiny_deepseek_v4
from tiny_models import tiny

SINGLE_STEPS = ("jamba",)
"""Architectures whose recurrence starts anew where more than one token comes in after the first forward."""

BATCH = 2
CHUNK = 8
"""Tokens that go on behind a prefix in one forward."""
STEPS = 4
"""Tokens that go on one by one."""
OWN_CHUNKS = (7, 8)
"""Tokens of a forward where a model's own chunking is measured: in step with windows and ratios, and not."""


@functools.cache
def model_of(name: str, dtype: torch.dtype | None = None) -> Any:
    """Return a tiny model: an architecture, or "deepseek_v4_w32" for a window of 32 and ratios 4 and 128."""
    torch.set_num_threads(1)
    if name == "deepseek_v4_w32":
        return tiny_deepseek_v4(1, window=32, csa=4, hca=128, dtype=dtype)
    return tiny(name, dtype=dtype)


@functools.cache
def producer_of(name: str, dtype: torch.dtype | None = None) -> Producer:
    """Return who writes the states of a tiny model: its weights are read once."""
    model = model_of(name, dtype)
    past = empty(model)
    runner_of(model).run(ids_of(1, batch=1), past, 0)
    return CacheImage.take(past, model.config, model=model).producer


def runner_of(model: Any) -> Runner:
    """Return the runner that knows how an architecture goes on."""
    return Runner(model, single_steps=model.config.model_type in SINGLE_STEPS)


def ids_of(tokens: int, *, batch: int = BATCH, seed: int = 0) -> torch.Tensor:
    """Return random token ids, [[batch, tokens]]; longer ones begin with shorter ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (512, 4), generator=generator).T[:batch, :tokens].contiguous()


def empty(model: Any) -> Any:
    """Return a cache that has seen nothing."""
    return DynamicCache(config=model.config)


def prefilled(model: Any, ids: torch.Tensor) -> Any:
    """Return a cache that has seen all of ``ids`` in one forward."""
    past = empty(model)
    runner_of(model).run(ids, past, 0)
    return past


def through_bytes(past: Any, model: Any, producer: Producer, tokens: torch.Tensor) -> Any:
    """Return what comes out of an image that went through its bytes."""
    image = CacheImage.take(past, model.config, producer=producer, tokens=tokens)
    return CacheImage.from_bytes(image.to_bytes()).restore(model.config, producer=producer, tokens=tokens)


def worst(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest difference of any logit."""
    return float((first - second).abs().max())


@dataclass(frozen=True)
class Comparison:
    """What restoring at some prefixes came to.

    Attributes
    ----------
    unequal : list of (int, str)
        Prefixes and continuations whose logits are not, bit for bit, those of the uninterrupted run.
    restored, own : dict of str to float
        By continuation ("chunk", "steps"): largest difference of any logit to the whole run, over all
        prefixes, of the restored continuation; and of a run of the same kind that was never restored.
    """

    unequal: list[tuple[int, str]]
    restored: dict[str, float]
    own: dict[str, float]


def compare(name: str, prefixes: Sequence[int], dtype: torch.dtype | None = None) -> Comparison:
    """Take an image at every prefix, restore it through bytes, go on, and compare.

    The *whole* run is one forward over all tokens: a full recompute. *Own* differences come from runs over the same
    tokens that see no image: in chunks of 7 and of 8 (the larger difference counts), and token by token. The
    *uninterrupted* run is, for "chunk", a prefill of the prefix and then one forward of 8 tokens over the same live
    cache; for "steps", the run token by token itself, which passes every prefix on its way.
    """
    model, producer = model_of(name, dtype), producer_of(name, dtype)
    runner = runner_of(model)
    total = max(prefixes) + CHUNK
    ids = ids_of(total)
    whole = runner.run(ids, empty(model), 0, all_logits=True)
    own = {"chunk": max(worst(chunked(model, ids, size), whole) for size in OWN_CHUNKS)}
    steps, restored_steps = _steps(name, dtype, prefixes, ids)
    own["steps"] = worst(steps, whole)
    restored = {"chunk": 0.0, "steps": 0.0}
    unequal = []
    for p in prefixes:
        live = prefilled(model, ids[:, :p])
        again = through_bytes(live, model, producer, ids[:, :p])
        suffix = ids[:, p : p + CHUNK]
        uninterrupted = runner.run(suffix, live, p, all_logits=True)
        got = runner.run(suffix, again, p, all_logits=True)
        if not torch.equal(uninterrupted, got):
            unequal.append((p, "chunk"))
        if not torch.equal(steps[:, p : p + STEPS], restored_steps[p]):
            unequal.append((p, "steps"))
        restored["chunk"] = max(restored["chunk"], worst(got, whole[:, p : p + CHUNK]))
        restored["steps"] = max(restored["steps"], worst(restored_steps[p], whole[:, p : p + STEPS]))
    return Comparison(unequal, restored, own)


def chunked(model: Any, ids: torch.Tensor, size: int) -> torch.Tensor:
    """Return the logits of a run in chunks, [[batch, tokens, vocabulary]]."""
    runner, past = runner_of(model), empty(model)
    pieces = [runner.run(part, past, i * size, all_logits=True) for i, part in enumerate(ids.split(size, dim=1))]
    return torch.cat(pieces, dim=1)


def _steps(
    name: str, dtype: torch.dtype | None, prefixes: Sequence[int], ids: torch.Tensor
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Run token by token; at every prefix restore an image and go on by single steps beside the run."""
    model, producer = model_of(name, dtype), producer_of(name, dtype)
    runner, past = runner_of(model), empty(model)
    logits, restored = [], {}
    for t in range(ids.shape[1]):
        logits.append(runner.run(ids[:, t : t + 1], past, t))
        if t + 1 in prefixes:
            p = t + 1
            again = through_bytes(past, model, producer, ids[:, :p])
            steps = [runner.run(ids[:, i : i + 1], again, i) for i in range(p, p + STEPS)]
            restored[p] = torch.cat(steps, dim=1)
    return torch.cat(logits, dim=1), restored
