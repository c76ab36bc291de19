# SPDX-License-Identifier: Apache-2.0
"""Running prompts from where they resume, keeping boundaries on the way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hybridkv.adapters.transformers.layout import is_state
from hybridkv.adapters.transformers.rebuild import State, rebuilt
from hybridkv.adapters.transformers.replay import replayed
from hybridkv.adapters.transformers.rows import Row
from hybridkv.adapters.transformers.runner import Runner
from hybridkv.adapters.transformers.stops import Blocks, plan_stops
from hybridkv.adapters.transformers.store import Store
from hybridkv.keys import BlockKeys


class Prefill:
    """Computes what is not known of prompts.

    Parameters
    ----------
    runner : Runner
    store : Store
    step : int or None
        Distance of kept boundaries in tokens; None: none but ends.
    most_tokens : int or None
        Most tokens of one forward pass.
    """

    def __init__(self, runner: Runner, store: Store, *, step: int | None, most_tokens: int | None) -> None:
        self.store = store
        self.runner = runner
        self.step = step
        self._most_tokens = most_tokens
        self._layout = store.pages.layout

    def run(
        self, rows: Sequence[Row], ends: Sequence[int], *, tips: bool, all_logits: bool = False, ahead: bool = False
    ) -> None:
        """Run every row up to its end; rows that start and end alike go together.

        Parameters
        ----------
        rows : sequence of Row
            ``past`` and ``index`` are set, ``told`` is completed.
        ends : sequence of int
            Where each row stops, at or behind its start.
        tips : bool
            Keep the state at the end.
        all_logits : bool, optional
            Give each row the logits of its computed tokens.
        ahead : bool, optional
            The state one token behind the end will be kept: take now what it needs of blocks below.
        """
        together: dict[tuple[int, int], list[Row]] = {}
        for row, end in zip(rows, ends, strict=True):
            together.setdefault((row.start, end), []).append(row)
        in_use = [row.keys for row in rows]
        for (start, end), some in together.items():
            targets = set(self.targets(start, end))
            wanted = targets | ({end} if tips and end > start else set())
            ahead_of = {end + 1} if ahead else set()
            stops = plan_stops(self.store.pages.groups, start, end, wanted | ahead_of, self._most_tokens)
            logits = self._run_together(some, start, stops, wanted, in_use, all_logits)
            for index, row in enumerate(some):
                row.told.computed += end - start
                if all_logits and logits:
                    row.told.logits = torch.cat([part[index] for part in logits])

    def targets(self, start: int, end: int) -> list[int]:
        """Return the boundaries at a stride between two positions, the end included."""
        if self.step is None:
            return []
        return list(range((start // self.step + 1) * self.step, end + 1, self.step))

    def _run_together(
        self,
        rows: list[Row],
        start: int,
        stops: dict[int, Blocks],
        wanted: set[int],
        in_use: Sequence[BlockKeys],
        all_logits: bool,
    ) -> list[torch.Tensor]:
        past = rebuilt(self._layout, [self._state(row) for row in rows], start)
        for index, row in enumerate(rows):
            row.past, row.index = past, index
            if row.told.replayed is not None:
                self._keep_replayed(row, start, in_use)
        ids = torch.from_numpy(np.stack([row.ids for row in rows])).to(self.runner.device)
        logits = []
        position = start
        for stop, blocks in stops.items():
            if stop > position:
                logits.append(self.runner.run(ids[:, position:stop], past, position, all_logits=all_logits))
                position = stop
            for index, row in enumerate(rows):
                row.recorder.note(past, index, stop, blocks)
                if stop in wanted:
                    row.recorder.keep(past, index, stop, row.ids, in_use)
        return logits

    def _state(self, row: Row) -> State:
        """Return the state that a row resumes from."""
        if row.lease is None:
            return {}
        pages = self.store.pages
        if row.told.replayed is None:
            return pages.read(row.lease, row.start)
        begin, end = row.told.replayed
        states = tuple(name for name, group in pages.groups.items() if is_state(group))
        history = pages.read(row.lease, end, skip=states)
        ids = torch.from_numpy(row.ids[:end]).to(self.runner.device)
        row.told.computed += end - begin
        past = replayed(self.runner, pages, history, ids, begin, end, self._most_tokens)
        return self._layout.state(past, end)

    def _keep_replayed(self, row: Row, tokens: int, in_use: Sequence[BlockKeys]) -> None:
        """What a replay rebuilt need not be rebuilt again."""
        groups = self.store.pages.groups
        for position, blocks in plan_stops(groups, tokens, tokens, [tokens]).items():
            row.recorder.note(row.past, row.index, position, blocks)
        row.recorder.keep(row.past, row.index, tokens, row.ids, in_use)
