# SPDX-License-Identifier: Apache-2.0
"""Figures of one replay, counted by the caller of the cache and not by the cache itself."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hybridkv import Verdict


@dataclass(slots=True)
class Tally:
    """Counters of one lane.

    Attributes
    ----------
    requests, request_tokens : int
        Prompts looked up, and their tokens.
    promised_requests, promised_tokens : int
        What a manager calls a hit that only asks whether the hash is in the table.
    usable_requests, usable_tokens : int
        What could really be resumed: the tokens saved.
    wrong_requests : int
        Promised requests that could not be resumed where the promise ended.
    false_hit_requests, false_hit_tokens : int
        Those of them of which nothing could be resumed, and the tokens promised there.
    lost : dict
        (check, kind) -> [requests, tokens]: why, and how many tokens of promises were lost to it.
    match_ns : list of int
        Time of each match, lease included.
    not_stored : int
        Prompts that did not fit into the pools: even when these were empty, or where nothing could go.
    restored_tokens : int
        Usable tokens that had to be loaded from a tier first.
    not_restored : int
        Requests for which the pools had no room to load what a tier has.
    """

    requests: int = 0
    request_tokens: int = 0
    promised_requests: int = 0
    promised_tokens: int = 0
    usable_requests: int = 0
    usable_tokens: int = 0
    wrong_requests: int = 0
    false_hit_requests: int = 0
    false_hit_tokens: int = 0
    lost: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    match_ns: list[int] = field(default_factory=list)
    not_stored: int = 0
    restored_tokens: int = 0
    not_restored: int = 0

    @property
    def wrong_tokens(self) -> int:
        """Tokens promised and not usable."""
        return self.promised_tokens - self.usable_tokens

    def note(self, verdict: Verdict, tokens: int, match_ns: int) -> None:
        """Count one verdict.

        Parameters
        ----------
        verdict : Verdict
            What the match said.
        tokens : int
            Length of the prompt.
        match_ns : int
            Time the match took.
        """
        matched, usable = verdict.matched_tokens, verdict.usable_tokens
        self.requests += 1
        self.request_tokens += tokens
        self.promised_requests += matched > 0
        self.promised_tokens += matched
        self.usable_requests += usable > 0
        self.usable_tokens += usable
        self.match_ns.append(match_ns)
        if usable == matched:
            return
        self.wrong_requests += 1
        if usable == 0:
            self.false_hit_requests += 1
            self.false_hit_tokens += matched
        why = verdict.why
        if why is not None:
            entry = self.lost[why.check.name, why.kind.name]
            entry[0] += 1
            entry[1] += matched - usable

    def match_us(self) -> tuple[float, float]:
        """Median and 99th percentile of the time of a match.

        Returns
        -------
        tuple of float
            Microseconds.
        """
        if not self.match_ns:
            return 0.0, 0.0
        median, high = np.percentile(np.asarray(self.match_ns), (50, 99))
        return float(median) / 1e3, float(high) / 1e3
