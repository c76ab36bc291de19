# SPDX-License-Identifier: Apache-2.0
"""The benign control: how far two answers to the same tokens are apart although nothing was reused.

Two kinds of pair. "same": the same prompt twice, which shows what batching and kernels without a fixed order do.
"chunked": an answer that was generated token by token, against one to a prompt that holds its first half, which shows
what cutting a prompt elsewhere does; every hit cuts it elsewhere. A tolerance from the first kind alone would call
the rounding of bfloat16 a false hit.
"""

from __future__ import annotations

import statistics
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hybridkv.probe.answers import Answer
from hybridkv.probe.compare import Difference, difference
from hybridkv.probe.endpoint import EndpointError
from hybridkv.probe.isolation import Isolation
from hybridkv.probe.prompts import Prompt
from hybridkv.probe.search import Reuse, reused
from hybridkv.probe.service import Lane, Service

MARGIN = 4.0
"""Tolerance over the largest noise seen: eight pairs see the largest of many only by luck."""

FLOOR = 2e-3
"""Least tolerance in nats: float32 models differ by 2e-5 when a prompt is cut elsewhere; services round to 4 digits."""

UNCHUNKED_FLOOR = 0.25
"""The same where no pair was cut elsewhere: bfloat16 models of a few layers then differ by up to 0.1."""

_CHANGED_TOKENS = 16


@dataclass
class Control:
    """Noise of a service, and what a fault would look like beside it.

    Attributes
    ----------
    same, chunked : list of float
        Largest change of each pair, in nats.
    changed : list of float
        The same for pairs of prompts of which the last 16 tokens before the suffix differ: what a stale block does.
    discarded : int
        Pairs of which something was reused: no control.
    """

    same: list[float] = field(default_factory=list)
    chunked: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    discarded: int = 0

    @property
    def noise(self) -> float:
        """The largest change that nothing caused."""
        return max([*self.same, *self.chunked], default=0.0)

    @property
    def tolerance(self) -> float:
        """Changes above it are no noise."""
        return max(FLOOR if self.chunked else UNCHUNKED_FLOOR, MARGIN * self.noise)

    @property
    def seen_share(self) -> float:
        """Share of the changed pairs that are told from noise."""
        return sum(change > self.tolerance for change in self.changed) / max(1, len(self.changed))

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "same_pairs": len(self.same),
            "chunked_pairs": len(self.chunked),
            "discarded_pairs": self.discarded,
            "noise_nats": self.noise,
            "tolerance_nats": self.tolerance,
            "changed_block_nats": [min(self.changed), statistics.median(self.changed)] if self.changed else None,
            "changed_block_seen_share": self.seen_share,
        }


def measure(service: Service, isolation: Isolation, reuse: Reuse, control: Control, *, tokens: int, pairs: int) -> None:
    """Add pairs to a control.

    Parameters
    ----------
    service, isolation, reuse
        As found.
    control : Control
        Where they go.
    tokens : int
        Length of the prompts, where a lane isolates; else they are shorter than anything that is reused.
    pairs : int
        How many.
    """
    for number in range(pairs):
        one = _chunked if number % 2 and service.form.kind == "ids" else _same
        with suppress(EndpointError):  # kept by the service, as a failure
            one(service, isolation, reuse, control, tokens)


def sensitivity(service: Service, control: Control, *, tokens: int, pairs: int) -> None:
    """Add pairs of prompts that differ before their suffix."""
    for _ in range(pairs):
        prompt = service.prompts.fresh(tokens)
        pieces = prompt.turns[0]
        count = min(_CHANGED_TOKENS, max(1, len(pieces) - 2))
        other = service.prompts.pieces(count, other_than=pieces[-count - 1 :])
        changed = service.prompts.refreshed(Prompt(((*pieces[: -count - 1], *other[:count], pieces[-1]),)))
        with suppress(EndpointError):
            control.changed.append(_largest(service.ask(prompt), service.ask(changed)))


def _same(service: Service, isolation: Isolation, reuse: Reuse, control: Control, tokens: int) -> None:
    # One token can never be reused: the last one of a prompt is always computed.
    for length in [tokens] if isolation.way else [max(1, reuse.step - 4), 1]:
        prompt = service.prompts.fresh(length)
        one, other = service.ask(prompt), service.ask(prompt, _other(isolation))
        if _add(service, control, control.same, one, other, _largest(one, other)):
            return


def _chunked(service: Service, isolation: Isolation, reuse: Reuse, control: Control, tokens: int) -> None:
    half = service.options.answer_tokens
    length = tokens if isolation.way else reuse.step - 1 - half
    if length < 1:
        return
    prompt = service.prompts.fresh(length)
    one = service.ask(prompt, tokens=2 * half)
    if one.ids is None or len(one.ids) <= half:
        return
    longer = prompt.then(one.ids[:half])
    other = service.ask(longer, _other(isolation))
    apart = difference(other, one, total=length + half, boundary=length, skip=half)
    _add(service, control, control.chunked, one, other, apart.largest)


def _other(isolation: Isolation) -> Lane | None:
    return isolation.lane() if isolation.way else None


def _add(service: Service, control: Control, pairs: list[float], one: Answer, other: Answer, largest: float) -> bool:
    if reused(service, one) or reused(service, other) or not (one.top and other.top):
        control.discarded += 1
        return False
    pairs.append(largest)
    return True


def _largest(one: Answer, other: Answer) -> float:
    apart: Difference = difference(other, one, total=1, boundary=0)
    return apart.largest
