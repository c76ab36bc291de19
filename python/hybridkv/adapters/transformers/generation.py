# SPDX-License-Identifier: Apache-2.0
"""Decoding through ``model.generate`` itself, from caches that were restored.

The prompt is run up to its last token; that one is left to ``generate``, which then does all that it does (logits
processors, sampling, stopping) over a cache that it takes for its own. Boundaries that pass by are kept by a stopping
criterion that never stops: it is called after every step.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, GenerationMixin, StoppingCriteria, StoppingCriteriaList

from hybridkv.adapters.transformers.prefill import Prefill
from hybridkv.adapters.transformers.rebuild import rebuilt
from hybridkv.adapters.transformers.rows import Row
from hybridkv.adapters.transformers.runner import Runner
from hybridkv.adapters.transformers.stops import state_blocks
from hybridkv.errors import ArgumentError

_REFUSED = {
    "cache": "a cache of the caller: prefixes are looked up here",
    "past_key_values": "a cache of the caller: prefixes are looked up here",
    "cache_implementation": "another kind of cache",
    "inputs_embeds": "embeddings instead of tokens: they have no key",
    "assistant_model": "assisted generation, which takes tokens back",
    "prompt_lookup_num_tokens": "assisted generation, which takes tokens back",
    "assistant_early_exit": "assisted generation, which takes tokens back",
    "use_mtp": "assisted generation, which takes tokens back",
    "penalty_alpha": "contrastive search, which forks the cache",
    "dola_layers": "another search",
    "constraints": "constrained beam search, which forks the cache",
    "force_words_ids": "constrained beam search, which forks the cache",
    "custom_generate": "another search",
    "token_healing": "prompts that are changed after they were looked up",
    "position_ids": "positions of the caller",
}
"""Settings that are refused unless None or False, and what they would mean."""

_OPTIONS = {
    *GenerationConfig().to_dict(),
    *inspect.signature(GenerationMixin.generate).parameters,
    *_REFUSED,
    "tokenizer",  # reads stop strings
}
"""What can be said to ``generate``. Anything else goes to the model's forward: images, token types, masks."""

_PER_ROW = ("streamer", "negative_prompt_ids", "negative_prompt_attention_mask")
"""Arguments that belong to the rows of the call in their order."""


class Generation:
    """One call of ``generate``.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    runner : Runner
    arguments : dict
        Of the call.

    Raises
    ------
    ArgumentError
        An argument that cannot be served.
    """

    def __init__(self, model: Any, runner: Runner, arguments: Mapping[str, Any]) -> None:
        if arguments.get("use_cache") is False:
            raise ArgumentError("use_cache", "True", False)
        for name in arguments:
            if name not in _OPTIONS:
                raise ArgumentError(name, "an option of generate; what else a model reads has no key", name)
        self._model = model
        self._runner = runner
        self._arguments = {name: value for name, value in arguments.items() if name not in ("inputs", "use_cache")}
        for name, meaning in _REFUSED.items():
            value = self._setting(name)
            # Configurations saved long ago say "hybrid", which generate passes over.
            if value is not None and value is not False and (name, value) != ("cache_implementation", "hybrid"):
                raise ArgumentError(name, f"none: {meaning}", value)
        if int(self._setting("num_beams") or 1) != 1:
            raise ArgumentError("num_beams", "1: beams fork the cache", self._setting("num_beams"))
        new_tokens = self._arguments.get("max_new_tokens")
        if new_tokens is not None and (not isinstance(new_tokens, int) or new_tokens < 1):
            raise ArgumentError("max_new_tokens", "an int of at least 1", new_tokens)
        self._repeats = int(self._setting("num_return_sequences") or 1)
        if self._repeats > 1 and not self._setting("do_sample"):
            raise ArgumentError("num_return_sequences", "1, or do_sample: greedy search finds one", self._repeats)
        self._arguments["num_return_sequences"] = 1
        if self._setting("prefill_chunk_size") is not None:  # the prompt is run by then, but for one token
            self._arguments["prefill_chunk_size"] = None

    def _setting(self, name: str) -> Any:
        """Return what ``generate`` will take: the argument, else the given configuration's, else the model's."""
        if name in self._arguments:
            return self._arguments[name]
        given = getattr(self._arguments.get("generation_config"), name, None)
        return getattr(self._model.generation_config, name, None) if given is None else given

    def repeated(self, batch: Sequence[Any]) -> list[Any]:
        """Return the rows, each as often as sequences are wanted of it."""
        return [ids for ids in batch for _ in range(self._repeats)]

    def run(self, rows: Sequence[Row], prefill: Prefill, width: int, *, tips: bool) -> Any:
        """Generate from rows that were run up to their last token.

        Parameters
        ----------
        rows : sequence of Row
        prefill : Prefill
            Says which boundaries are kept.
        width : int
            Tokens of the input, padding included: lengths are counted from there.
        tips : bool
            Keep prompt end and output end.

        Returns
        -------
        list of torch.Tensor, or ModelOutput
            What was generated for each row; the output of ``generate`` where it was asked for.

        Raises
        ------
        ArgumentError
            For rows of different length: outputs other than tokens, a streamer, negative prompts.
        """
        lengths: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            lengths.setdefault(len(row.ids), []).append(number)
        if len(lengths) > 1:
            given = [name for name in _PER_ROW if self._arguments.get(name) is not None]
            if given or self._setting("return_dict_in_generate"):
                of = given[0] if given else "return_dict_in_generate"
                raise ArgumentError("attention_mask", f"rows of one length with {of}", sorted(lengths))
        found: list[torch.Tensor] = [torch.empty(0)] * len(rows)
        for tokens, numbers in lengths.items():
            some = [rows[number] for number in numbers]
            arguments = {**self._lengths(width - tokens), **self._allowed(numbers)}
            result = self._together(some, prefill, tokens, arguments, tips)
            if not isinstance(result, torch.Tensor):
                return result
            for number, sequence in zip(numbers, result, strict=True):
                found[number] = sequence[tokens:]
        return found

    def _together(self, rows: list[Row], prefill: Prefill, tokens: int, changed: Mapping[str, Any], tips: bool) -> Any:
        layout = prefill.store.pages.layout
        states = [layout.state(row.past, tokens - 1, row.index) if tokens > 1 else {} for row in rows]
        past = rebuilt(layout, states, tokens - 1)
        ids = torch.from_numpy(np.stack([row.ids for row in rows])).to(self._runner.device)
        keeper = _Keeper(rows, prefill, past, tips=tips, ends=self._end_ids())
        arguments = {**self._arguments, **changed}
        arguments["stopping_criteria"] = StoppingCriteriaList([*(arguments.get("stopping_criteria") or []), keeper])
        arguments[self._runner.cache_argument] = past
        result = self._model.generate(ids, attention_mask=torch.ones_like(ids), use_cache=True, **arguments)
        keeper.finish(result if isinstance(result, torch.Tensor) else result.sequences)
        return result

    def _lengths(self, padding: int) -> dict[str, int]:
        """Return lengths that count the input, without the padding that is not there any more."""
        if not padding:
            return {}
        found = {name: self._setting(name) for name in ("max_length", "min_length")}
        if self._setting("max_new_tokens") is not None:
            del found["max_length"]
        return {name: max(1, int(value) - padding) for name, value in found.items() if value}

    def _allowed(self, numbers: list[int]) -> dict[str, Any]:
        """Return the caller's function of allowed tokens, told the row of the call instead of that of a part of it."""
        allowed = self._arguments.get("prefix_allowed_tokens_fn")
        if allowed is None:
            return {}
        return {"prefix_allowed_tokens_fn": lambda row, ids: allowed(numbers[row], ids)}

    def _end_ids(self) -> tuple[int, ...]:
        ends = self._setting("eos_token_id")
        if ends is None:
            return ()
        values = ends.flatten().tolist() if isinstance(ends, torch.Tensor) else ends
        return tuple(values) if isinstance(values, (list, tuple)) else (int(values),)

    def pad_id(self) -> int:
        """Return what fills the rows that ended before others."""
        pad = self._setting("pad_token_id")
        return int(pad) if pad is not None else (self._end_ids() or (0,))[0]


class _Keeper(StoppingCriteria):  # type: ignore[misc]
    """Keeps boundaries of a batch while it is decoded; never stops it."""

    def __init__(self, rows: list[Row], prefill: Prefill, past: Any, *, tips: bool, ends: tuple[int, ...]) -> None:
        self._rows = rows
        self._prefill = prefill
        self._past = past
        self._tips = tips
        self._ends = ends
        self._prompt = len(rows[0].ids)
        self._ended: set[int] = set()
        self._in_use = [row.keys for row in rows]

    def __call__(self, input_ids: torch.Tensor, scores: Any, **arguments: Any) -> torch.Tensor:
        # The newest token was chosen, not run.
        tokens = input_ids.shape[1] - 1
        step = self._prefill.step
        at_stride = step is not None and tokens % step == 0
        for index, row in enumerate(self._rows):
            if index in self._ended:
                continue
            row.recorder.note_ends(self._past, index, tokens)
            ended = int(input_ids[index, -1]) in self._ends
            if at_stride or (self._tips and (ended or tokens == self._prompt)):
                self._keep(index, row, tokens, input_ids)
            if ended:
                self._ended.add(index)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    def finish(self, sequences: torch.Tensor) -> None:
        """Keep the output ends of the rows that went on to the last step."""
        tokens = sequences.shape[1] - 1
        for index, row in enumerate(self._rows):
            row.told.computed += tokens + 1 - self._prompt
            if self._tips and index not in self._ended and tokens not in row.recorder.boundaries:
                self._keep(index, row, tokens, sequences)
            row.told.stored = row.recorder.boundaries

    def _keep(self, index: int, row: Row, tokens: int, ids: torch.Tensor) -> None:
        for position, blocks in state_blocks(self._prefill.store.pages.groups, tokens, tokens).items():
            row.recorder.note(self._past, index, position, blocks)
        row.recorder.keep(self._past, index, tokens, ids[index, :tokens].cpu().numpy(), self._in_use)
