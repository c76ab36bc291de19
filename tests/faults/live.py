# SPDX-License-Identifier: Apache-2.0
"""A real model to break states of: its states at any position, and what it answers when it goes on from one."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from hybridkv.adapters.transformers import layers as cache_layers
from hybridkv.adapters.transformers.layout import CacheLayout, least_unit
from hybridkv.adapters.transformers.rebuild import rebuilt
from hybridkv.adapters.transformers.runner import Runner

from .fault import Context, Fault, State

PROMPT_TOKENS = 320
"""Tokens of a prompt: positions are below."""

UNIT_TOKENS = 16
"""Tokens of a block at least, as the adapter's default."""

CONTINUED_TOKENS = 8
"""Tokens that a model goes on for."""


def other_weights(model: Any, noise: float = 0.01, seed: int = 77) -> Any:
    """Return a model whose weights differ from a model's by normal noise of 1 % of their own spread."""
    changed = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in changed.parameters():
            spread = parameter.float().std(correction=0)
            drawn = torch.randn(parameter.shape, generator=generator) * spread * noise
            parameter.add_(drawn.to(parameter.dtype))
    return changed


@dataclass
class Live:
    """A model over two prompts of random tokens.

    Attributes
    ----------
    model : transformers.PreTrainedModel
    seed : int
        Of the prompts.
    """

    model: Any
    seed: int = 0

    def __post_init__(self) -> None:
        random = np.random.default_rng(1000 + self.seed)
        drawn = random.integers(0, self.model.config.get_text_config().vocab_size, (2, PROMPT_TOKENS))
        self.prompt, self.other_prompt = torch.from_numpy(drawn)
        past = DynamicCache(config=self.model.config)
        probe = Runner(self.model, single_steps=False)
        probe.run(self.prompt[None, :2], past, 0)
        unit = least_unit(self.model.config, UNIT_TOKENS)
        self.layout = CacheLayout(self.model.config, past, unit_tokens=unit)
        self.runner = Runner(self.model, single_steps=self.layout.family.single_steps)
        self._states: dict[tuple[str, int], State] = {}

    @cached_property
    def changed(self) -> Any:
        """The same model with other weights."""
        return other_weights(self.model)

    def filled(self, tokens: int) -> Any:
        """Return a cache that the model has filled with the prompt's first tokens, in one pass."""
        return self._filled(self.runner, self.prompt, tokens)

    def state(self, tokens: int) -> State:
        """Return the prompt's state at a position, copied."""
        return self._state("own", self.runner, self.prompt, tokens)

    def context(self, tokens: int) -> Context:
        """Return what faults draw on at a position."""
        noisy = Runner(self.changed, single_steps=self.runner.single_steps)
        return Context(
            layout=self.layout,
            tokens=tokens,
            at=lambda position: self.state(position) if position > 0 else None,
            foreign=self._state("foreign", self.runner, self.other_prompt, tokens),
            other_weights=self._state("noise", noisy, self.prompt, tokens),
            bias=self.bias,
        )

    def bias(self, place: Any) -> torch.Tensor | None:
        """Return the position bias of a compressor's gates."""
        attention = getattr(self.model.model.layers[place.layer], "self_attn", None)
        compressor = getattr(attention, "compressor", None)
        if place.part == "indexer":
            compressor = getattr(compressor, "indexer", None)
        bias = getattr(compressor, "position_bias", None)
        return None if bias is None else bias.detach()

    def continued(self, past: Any, tokens: int, *, position: int | None = None) -> torch.Tensor:
        """Return the logits [[tokens, vocabulary]] of the prompt's next tokens behind a cache.

        Parameters
        ----------
        past : transformers.Cache
            It then holds those tokens too.
        tokens : int
            How many tokens of the prompt it stands for.
        position : int, optional
            What the model takes for the position. Default: ``tokens``.
        """
        suffix = self.prompt[None, tokens : tokens + CONTINUED_TOKENS]
        start = tokens if position is None else position
        return self.runner.run(suffix, past, start, all_logits=True)[0]

    def uninterrupted(self, tokens: int) -> torch.Tensor:
        """Return the logits that follow if nothing is stored or restored."""
        return self.continued(self.filled(tokens), tokens)

    def restored(self, state: State, tokens: int) -> torch.Tensor:
        """Return the logits that follow a state, its structure checked."""
        return self.continued(rebuilt(self.layout, [state], tokens), tokens)

    def unchecked(self, broken: State, context: Context, fault: Fault) -> Any:
        """Return a cache that holds a broken state, as a restore without any check would leave it.

        Parameters
        ----------
        broken : State
        context : Context
        fault : Fault
            Its counts are set.

        Returns
        -------
        transformers.DynamicCache
        """
        past = rebuilt(self.layout, [self.state(context.tokens)], context.tokens)
        for place in self.layout.places:
            layer = past.layers[place.layer]
            rows = broken.get(place)
            if rows is not None:
                cache_layers.put(layer, place.path, place.to_layer([rows]))
            elif cache_layers.get(layer, place.path) is not None:
                _empty(layer, place)
        for layer in past.layers:
            for copied in self.layout.family.copies:
                cache_layers.put(layer, copied.path, cache_layers.get(layer, copied.of))
        for index, layer in enumerate(past.layers):
            for path, right in cache_layers.counts(layer).items():
                if fault.counts is not None:
                    cache_layers.put(layer, path, fault.counts(index, path, right, context))
        return past

    def answer(self, broken: State, context: Context, fault: Fault) -> torch.Tensor | str:
        """Return the logits that follow a broken state with all checks off, or what the model raised.

        Where counts lie the position is what the cache says, as transformers itself takes it.
        """
        past = self.unchecked(broken, context, fault)
        position = None if fault.counts is None else int(past.get_seq_length())
        try:
            return self.continued(past, context.tokens, position=position)
        except (RuntimeError, ValueError, IndexError) as error:
            return f"{type(error).__name__}: {error}"

    def _filled(self, runner: Runner, prompt: torch.Tensor, tokens: int) -> Any:
        past = DynamicCache(config=self.model.config)
        if tokens:
            runner.run(prompt[None, :tokens], past, 0)
        return past

    def _state(self, name: str, runner: Runner, prompt: torch.Tensor, tokens: int) -> State:
        if (name, tokens) not in self._states:
            state = self.layout.state(self._filled(runner, prompt, tokens), tokens)
            self._states[name, tokens] = {place: rows.clone() for place, rows in state.items()}
        return self._states[name, tokens]


def _empty(layer: Any, place: Any) -> None:
    """Leave a place as a layer has it that was never restored."""
    held = cache_layers.get(layer, place.path)
    if place.rows.axis is None:  # recurrent: a fresh layer makes its own
        name, _, entry = place.path.partition(".")
        for path in (name, f"is_{name}_initialized", "has_previous_state"):
            cache_layers.put(layer, f"{path}.{entry}" if entry else path, None if path == name else False)
    elif "." in place.path:  # entries of a compressor: None before the first
        cache_layers.put(layer, place.path, None)
    else:
        cache_layers.put(layer, place.path, held.narrow(place.rows.axis, 0, 0))
