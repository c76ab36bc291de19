# SPDX-License-Identifier: Apache-2.0
"""One row of a request: what was found for it, what of it is used, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hybridkv.adapters.transformers.recorder import Recorder
from hybridkv.adapters.transformers.tier_traffic import Loaded
from hybridkv.keys import BlockKeys
from hybridkv.kinds import Check, Outcome
from hybridkv.lease import Lease
from hybridkv.verdict import Why


@dataclass
class RowReuse:
    """What became of one row.

    Attributes
    ----------
    tokens : int
        Length of the row without padding.
    matched, usable : int
        Tokens that a hash-hit rule would have reused, and tokens that were: where the row resumed.
    outcome : Outcome
    why : Why or None
        Why not more, with check, kind of state, group and code.
    lost : dict of Check to int
        Tokens lost by check.
    replayed : tuple of (int, int) or None
        Tokens that were run again to rebuild windows and tails.
    computed : int
        Tokens that were run, the replayed ones included.
    loaded : Loaded or None
        What a tier gave, where there is one.
    stored : list of int
        Boundaries that were kept, in tokens.
    logits : torch.Tensor or None
        ``forward`` only: [[computed tokens from ``usable`` on, vocabulary]].
    """

    tokens: int
    matched: int
    usable: int
    outcome: Outcome
    why: Why | None
    lost: dict[Check, int]
    replayed: tuple[int, int] | None = None
    computed: int = 0
    loaded: Loaded | None = None
    stored: list[int] = field(default_factory=list)
    logits: torch.Tensor | None = field(default=None, repr=False)


@dataclass
class Row:
    """A row while it is worked on.

    Attributes
    ----------
    ids : numpy.ndarray
        [[tokens]] int64.
    keys : BlockKeys
    lease : Lease or None
        Pins what the row resumes from.
    recorder : Recorder
    told : RowReuse
    past : transformers.Cache or None
        The row's own cache, or the one that it shares with others.
    index : int
        Its row in that cache.
    """

    ids: npt.NDArray[np.int64]
    keys: BlockKeys
    lease: Lease | None
    recorder: Recorder
    told: RowReuse
    past: Any = None
    index: int = 0

    @property
    def start(self) -> int:
        """Where computing begins, in tokens."""
        return self.told.usable

    def settle(self, failed: bool) -> None:
        """Settle the lease: effective where the continuation ran, withdrawn where it did not."""
        if self.lease is not None and self.lease.valid:
            if failed:
                self.lease.cancel()
            else:
                self.lease.release()
