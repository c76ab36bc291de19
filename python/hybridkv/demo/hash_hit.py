# SPDX-License-Identifier: Apache-2.0
"""The hash-hit rule: a homogeneous manager, as engines had it, under a hybrid model.

Every block of 16 tokens is hashed with all before it. A hash that is in the table is a hit, and the request resumes
behind the last one. Taken from the table, and right:

- *history*: full-attention keys and values, compressed entries and the router's entries of each block are kept under
  its hash, never evicted, and never written again.

What such a manager does with the rest, each as seen in the field (ids of tests/data/cases):

- *window*: a block's window rows live in a page of a small pool. The page goes back to the pool once its block has
  left the window of the request that wrote it, or that request has ended, since nothing will read it again; the next
  request takes the page that was freed first and writes there. The table of hashes is not told (FC-008, and FC-001
  for a ring per slot instead of a pool). On a hit the window is read from the page that the block had: what lies there
  is what was written last.
- *tail and overlap*: rows the compressors hold between two entries are no blocks, and nothing here is a group for them
  (FC-023, FC-026). A request that resumes finds its compressors as a request that starts has them: empty. Where
  the resumed length is a multiple of every ratio the open windows are rightly empty, the overlap never is.
- *what is computed after a false hit* is stored under its hashes like anything else, and so the history of later hits
  is wrong as well.

Nothing of this raises, on either side. For a model of full attention only there is no rest, and the rule is right.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from hybridkv.adapters.transformers import layers as cache_layers
from hybridkv.demo.answers import Answer, Tokens, as_array, step
from hybridkv.errors import ArgumentError
from hybridkv.keys import block_keys

Rows = dict[str, torch.Tensor]
"""Tensors of one cache layer, by attribute or by ``attribute.entry`` of a dict."""

OVERLAPS = ("overlap_kv", "overlap_gate")


@dataclass(frozen=True, slots=True)
class Block:
    """What the table holds under one hash; lists are by cache layer.

    Attributes
    ----------
    history : list of Rows
        Empty for a layer without history.
    window_page : int
        Page of the pool that the window rows were written to.
    window, overlap : list of Rows
        Kept with the block if the manager was asked to, else empty.
    """

    history: list[Rows]
    window_page: int
    window: list[Rows]
    overlap: list[Rows]


@dataclass(slots=True)
class _Run:
    """One request: its cache, its position, its blocks, and the first of them whose window page it still holds."""

    past: Any
    tokens: int
    blocks: list[Block]
    first_held: int


class HashHit:
    """Serve requests under the hash-hit rule; see the head of this module.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Of full, sliding or DeepSeek-V4 layers.
    block_tokens : int
        Tokens of a block: a multiple of the model's compression ratios.
    window_pages : int
        Pages of the window pool; default: two for each of eight running requests.
    keeps : collection of str
        What this manager stores with each block after all, out of "window" and "overlap". With both it is right where
        blocks are multiples of the ratios; with one of them it shows what the other is worth.
    """

    def __init__(
        self, model: Any, *, block_tokens: int = 16, window_pages: int = 16, keeps: Collection[str] = ()
    ) -> None:
        rates = sorted(set((getattr(model.config, "compress_rates", None) or {}).values()))
        if block_tokens < 1 or any(block_tokens % rate for rate in rates):
            raise ArgumentError("block_tokens", f"a multiple of the ratios {rates}", block_tokens)
        self._model, self.block_tokens, self._keeps = model, block_tokens, frozenset(keeps)
        if self._keeps - {"window", "overlap"}:
            raise ArgumentError("keeps", "window, overlap", ", ".join(sorted(self._keeps)))
        self._window_rows = (getattr(model.config, "sliding_window", None) or 1) - 1
        self._window_blocks = -(-self._window_rows // block_tokens)
        if window_pages < self._window_blocks + 1:
            raise ArgumentError("window_pages", f"at least {self._window_blocks + 1}: one request's", window_pages)
        self._table: dict[bytes, Block] = {}
        self._pages: list[list[Rows]] = [[] for _ in range(window_pages)]
        self._free = deque(range(window_pages))

    @property
    def name(self) -> str:
        """Of the policy."""
        return " + ".join(["hash-hit rule", *sorted(self._keeps)])

    def answer(self, prompt: Tokens, count: int) -> Answer:
        """Answer a prompt; see :class:`~hybridkv.demo.answers.Policy`."""
        hit = self._look_up(prompt)
        run = self._resume(hit)
        logits = self._advance(run, prompt[run.tokens :])
        at_prompt_end = copy.deepcopy(run.past)
        tokens, first = [int(logits.argmax())], logits
        while len(tokens) < count:
            logits = self._advance(run, tokens[-1:])
            tokens.append(int(logits.argmax()))
        self._finish(run, np.concatenate([prompt, tokens[:-1]]))
        reused = len(hit) * self.block_tokens
        return Answer(tuple(tokens), as_array(first), as_array(logits), reused, reused, at_prompt_end=at_prompt_end)

    def resume(self, prompt: Tokens) -> tuple[Any, int]:
        """Return the cache that a request with this prompt would resume from, and how many tokens it stands for."""
        run = self._resume(self._look_up(prompt))
        return run.past, run.tokens

    def _look_up(self, prompt: Tokens) -> list[Block]:
        """Find the longest run of known blocks that leaves at least one token to compute."""
        hit: list[Block] = []
        for key in self._hashes(prompt[:-1]):
            block = self._table.get(key)
            if block is None:
                break
            hit.append(block)
        return hit

    def _hashes(self, tokens: Tokens) -> list[bytes]:
        return [digest.tobytes() for digest in block_keys(tokens, self.block_tokens).digests]

    def _resume(self, hit: list[Block]) -> _Run:
        """Fill a fresh cache with what the blocks of a hit lead to."""
        past: Any = DynamicCache(config=self._model.config)
        run = _Run(past, len(hit) * self.block_tokens, list(hit), len(hit))
        if not hit:
            return run
        for index, layer in enumerate(past.layers):
            if _is_window(layer):
                parts = [block.window or self._pages[block.window_page] for block in hit[-self._window_blocks :]]
                for path in ("keys", "values"):
                    joined = torch.cat([part[index][path] for part in parts], dim=2)
                    cache_layers.put(layer, path, joined[:, :, -self._window_rows :].clone())
                layer.cumulative_length = run.tokens
            for path, axis, ratio in _history(layer):
                cache_layers.put(layer, path, torch.cat([block.history[index][path] for block in hit], dim=axis))
                if hasattr(layer, "entry_count"):
                    layer.entry_count[path.partition(".")[2]] = run.tokens // ratio
            for path, rows in (hit[-1].overlap[index] if hit[-1].overlap else {}).items():
                cache_layers.put(layer, path, rows.clone())
            layer.is_initialized, layer.dtype, layer.device = True, layer.keys.dtype, layer.keys.device
        return run

    def _advance(self, run: _Run, tokens: Tokens | list[int]) -> torch.Tensor:
        """Run tokens, block by block, and store each block that they complete; return the last logits."""
        begin = 0
        while begin < len(tokens):
            room = self.block_tokens - run.tokens % self.block_tokens
            chunk = tokens[begin : begin + room]
            logits = step(self._model, chunk, run.past)[-1]
            begin += len(chunk)
            run.tokens += len(chunk)
            if run.tokens % self.block_tokens == 0:
                self._store_block(run)
        return logits

    def _store_block(self, run: _Run) -> None:
        size, index = self.block_tokens, len(run.blocks)
        history, window, overlap = [], [], []
        for layer in run.past.layers:
            history.append(
                {
                    path: cache_layers.get(layer, path).narrow(axis, index * size // ratio, size // ratio).clone()
                    for path, axis, ratio in _history(layer)
                }
            )
            held = {path: getattr(layer, path) for path in ("keys", "values")} if _is_window(layer) else {}
            window.append({path: rows[:, :, -size:].clone() for path, rows in held.items()})
            kept = cache_layers.tensors(layer).items()
            overlap.append({path: rows.clone() for path, rows in kept if path.partition(".")[0] in OVERLAPS})
        page = self._free.popleft()
        self._pages[page] = window
        run.blocks.append(
            Block(
                history,
                page,
                window if "window" in self._keeps else [],
                overlap if "overlap" in self._keeps else [],
            )
        )
        expired = (run.tokens - self._window_rows) // size  # blocks before this one hold no row of the window
        self._give_back(run, expired)

    def _give_back(self, run: _Run, end: int) -> None:
        """Free the window pages that the run holds of the blocks before ``end``."""
        while run.first_held < end:
            self._free.append(run.blocks[run.first_held].window_page)
            run.first_held += 1

    def _finish(self, run: _Run, tokens: Tokens) -> None:
        self._give_back(run, len(run.blocks))
        for key, block in zip(self._hashes(tokens), run.blocks, strict=True):
            self._table.setdefault(key, block)


def _is_window(layer: Any) -> bool:
    return getattr(layer, "sliding_window", None) is not None


def _history(layer: Any) -> list[tuple[str, int, int]]:
    """Return the history of a layer: attribute, axis of its rows, tokens of a row."""
    if hasattr(layer, "compressed_kv"):
        return [(f"compressed_kv.{entry}", 1, layer.compress_rate) for entry in layer.compressed_kv]
    return [] if _is_window(layer) else [("keys", 2, 1), ("values", 2, 1)]
