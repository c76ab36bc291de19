# SPDX-License-Identifier: Apache-2.0
"""A canary behind :class:`.reuse.PrefixReuse`: the model itself recomputes what was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from hybridkv.adapters.transformers.inputs import sequences
from hybridkv.adapters.transformers.rebuild import State, rebuilt
from hybridkv.adapters.transformers.reuse import PrefixReuse
from hybridkv.adapters.transformers.rows import RowReuse
from hybridkv.canary import Asked, Canary, Difference, Ends, Outcome, Sample, difference
from hybridkv.errors import ArgumentError
from hybridkv.rollout import Rollout


@dataclass(frozen=True)
class Checked:
    """What became of one prompt.

    Attributes
    ----------
    logits : torch.Tensor
        [[computed tokens, vocabulary]], those for the user: recomputed where the reused ones are not to be used.
    row : RowReuse
        What was found, and used or compared.
    sample : Sample or None
        Where the hit was drawn.
    outcome : hybridkv.canary.Outcome or None
        What the comparison gave.
    """

    logits: torch.Tensor
    row: RowReuse
    sample: Sample | None = None
    outcome: Outcome | None = None


class CheckedReuse:
    """Forward passes of a model whose hits are watched.

    Parameters
    ----------
    reuse : PrefixReuse
    watch : Canary or Rollout
        Over ``reuse.cache``.

    Raises
    ------
    ArgumentError
        Naming the field; a canary of another cache.

    Notes
    -----
    A drawn prompt is recomputed at once, on the thread that asks: its answer takes as long as without reuse. States
    that were computed from a reused prefix are stored before it is compared; those of a prompt that differs are
    retired.
    """

    def __init__(self, reuse: PrefixReuse, watch: Canary | Rollout) -> None:
        if not isinstance(reuse, PrefixReuse):
            raise ArgumentError("reuse", "a PrefixReuse", type(reuse).__name__)
        if not isinstance(watch, (Canary, Rollout)):
            raise ArgumentError("watch", "a Canary or a Rollout", type(watch).__name__)
        self._canary = watch.canary if isinstance(watch, Rollout) else watch
        if self._canary.cache is not reuse.cache:
            raise ArgumentError("watch", "one over reuse.cache", "one over another cache")
        self.reuse, self._watch = reuse, watch

    def forward(self, input_ids: Any, *, request: str | bytes | int | None = None) -> Checked:
        """Compute the logits of one prompt, and compare where it is drawn.

        Parameters
        ----------
        input_ids : torch.Tensor
            [[tokens]] or [[1, tokens]] integers.
        request : str, bytes or int, optional
            Its name. Default, without a rollout: the number of the call.

        Returns
        -------
        Checked

        Raises
        ------
        ArgumentError
            More rows than one, ids that are none, no name.
        """
        rows = sequences(input_ids)
        if len(rows) != 1:
            raise ArgumentError("input_ids", "one prompt", f"{len(rows)} rows")
        ids = torch.from_numpy(rows[0])
        with self._asking(request) as asked:
            row = self.reuse.forward(ids[None]).rows[0]
        assert row.logits is not None
        for passed_over in asked.samples[:-1]:  # a page was damaged, and another length was taken
            passed_over.abandon()
        if not asked.samples:
            return Checked(row.logits, row)
        sample = asked.samples[-1]
        scratch = recomputed(self.reuse, ids[None])[0, sample.tokens :]
        bisected = _Replaced(self, ids, sample, row) if row.replayed is None else None
        outcome = sample.settle(ends_of(row.logits), ends_of(scratch), answer=bisected)
        if isinstance(self._watch, Rollout):
            self._watch.note(sample, outcome)
        return Checked(row.logits if sample.use_reused else scratch, row, sample, outcome)

    def _asking(self, request: str | bytes | int | None) -> AbstractContextManager[Asked]:
        if not isinstance(self._watch, Rollout):
            return self._watch.asking(request)
        if request is None:
            raise ArgumentError("request", "a name: a rollout decides by it", None)
        return self._watch.asking(request)


class _Replaced:
    """The reused answer with the states of some groups recomputed."""

    def __init__(self, checked: CheckedReuse, ids: torch.Tensor, sample: Sample, row: RowReuse) -> None:
        self._checked, self._ids, self._sample, self._row = checked, ids, sample, row
        self._held: State | None = None
        self._right: State = {}

    def __call__(self, groups: frozenset[str]) -> Ends:
        reuse, tokens = self._checked.reuse, self._sample.tokens
        layout = reuse.pages.layout
        if self._held is None:
            self._held = self._read()
            past = DynamicCache(config=reuse.model.config)
            reuse._runner.run(self._ids[None, :tokens], past, 0)
            self._right = layout.state(past, tokens)
        if not self._held:  # it went meanwhile: no answer is right, and the groups stay unknown
            assert self._row.logits is not None
            return ends_of(self._row.logits)
        state = {place: self._right[place] if place.group in groups else rows for place, rows in self._held.items()}
        past = rebuilt(layout, [state], tokens)
        return ends_of(reuse._runner.run(self._ids[None, tokens:], past, tokens, all_logits=True)[0])

    def _read(self) -> State:
        """Return the state that was reused; empty where it is not all there any more."""
        reuse = self._checked.reuse
        with self._checked._canary.passing():
            verdict = reuse.cache.match_at(self._sample.keys, self._sample.tokens, verify="off")
        if verdict.lease is None:
            return {}
        state = reuse.pages.read(verdict.lease, self._sample.tokens) if not verdict.plan.replay else {}
        verdict.lease.cancel()
        return state


def ends_of(logits: torch.Tensor) -> Ends:
    """Return both ends of the logits of a suffix.

    Parameters
    ----------
    logits : torch.Tensor
        [[tokens, vocabulary]] of any float dtype; numpy has no bfloat16, so it becomes float32, which is exact.
    """
    wide = logits.float() if logits.dtype is torch.bfloat16 else logits
    return Ends.of(wide.detach().cpu().numpy())


def recomputed(reuse: PrefixReuse, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of whole prompts, computed from scratch in one pass.

    Parameters
    ----------
    reuse : PrefixReuse
    ids : torch.Tensor
        [[rows, tokens]] int64.

    Returns
    -------
    torch.Tensor
        [[rows, tokens, vocabulary]].
    """
    past = DynamicCache(config=reuse.model.config)
    return reuse._runner.run(ids.to(reuse._runner.device), past, 0, all_logits=True)


def benign_controls(reuse: PrefixReuse, prompts: Any, starts: Sequence[int]) -> list[Difference]:
    """Compare answers that nothing was reused for: whole prompts, against the same cut and batched otherwise.

    Parameters
    ----------
    reuse : PrefixReuse
        It stores nothing of this.
    prompts : torch.Tensor
        [[rows, tokens]] integers like those that are served, at least two rows.
    starts : sequence of int
        Ascending: where hits would begin. Each prompt is cut at all of them, in batches of half as many rows.

    Returns
    -------
    list of Difference
        One for each row and start, whose ends are at the start and before the next one. For
        :meth:`.Tolerance.calibrated`.

    Raises
    ------
    ArgumentError
        One row, starts that do not ascend inside the prompts.
    """
    rows = sequences(prompts)
    if len(rows) < 2:
        raise ArgumentError("prompts", "at least two rows", len(rows))
    ids = torch.from_numpy(np.stack(rows))
    tokens = ids.shape[1]
    bounds = [0, *starts, tokens]
    if not starts or any(a >= b for a, b in pairwise(bounds)):
        raise ArgumentError("starts", f"ascending, above 0 and below {tokens}, the tokens of a prompt", list(starts))
    whole = recomputed(reuse, ids)
    half = -(-len(rows) // 2)
    found = []
    for part, right in zip((ids[:half], ids[half:]), (whole[:half], whole[half:]), strict=True):
        past = DynamicCache(config=reuse.model.config)
        for begin, end in pairwise(bounds):
            cut = reuse._runner.run(part[:, begin:end].to(reuse._runner.device), past, begin, all_logits=True)
            if begin:
                pairs = zip(cut, right[:, begin:end], strict=True)
                found += [difference(ends_of(one), ends_of(other)) for one, other in pairs]
    return found
