# SPDX-License-Identifier: Apache-2.0
"""What a probe asks and how much; every default with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridkv.arguments import integer
from hybridkv.errors import ArgumentError
from hybridkv.holders import seconds

FORMS = ("auto", "ids", "text", "chat")

MOST_TOKENS = 1 << 20
"""Of one prompt."""


@dataclass(frozen=True)
class ProbeOptions:
    """How a service is probed.

    Attributes
    ----------
    model : str, optional
        Name to ask for. Default: the first of ``/v1/models``.
    other_models : sequence of str
        Further names (of adapters, of another model) whose prefixes must be others. Default: none.
    form : {"auto", "ids", "text", "chat"}
        ``/v1/completions`` with token ids or text, or ``/v1/chat/completions``. Default: the first that is accepted.
    windows : sequence of int
        Widths of sliding windows in tokens. Default: 128 and 1024, of DeepSeek-V4 and of Gemma 3.
    lengths : sequence of int
        Further prefix lengths in tokens to probe, such as block sizes the vendor names. Default: none.
    answer_tokens : int
        Tokens generated for each request. Default: 8; the last one is then 8 tokens further from the boundary.
    far_tokens : int
        Tokens of the long suffix, behind which a wrong window has faded. Default: 48.
    top : int
        Log-probabilities asked for at each position. Default: 5, the most that the completions API promises.
    samples : int
        Rounds over all trials. Default: 2.
    controls : int
        Pairs of requests that calibrate the tolerance. Default: 8.
    longest : int
        Longest prompt in tokens. Default: 4096.
    vocabulary : (int, int)
        Token ids of prompts, half open. Default: 1000 to 30000, ordinary words in nearly all vocabularies.
    max_requests : int
        Most requests. Default: 600.
    deadline_s, timeout_s : float
        Of the whole probe, and of one request. Defaults: 900 and 60.
    retries : int
        Times that a request is sent again after a passing failure. Default: 1.
    key_env : str, optional
        Environment variable with the API key. Default: no key.
    other_key_env : str, optional
        The same for another tenant, whose prefixes must not be shared: its requests are computed from scratch.
    reference : str, optional
        Address of the same model without prefix reuse. Default: none; see :mod:`.isolation`.
    plain_key : bool
        Let the key go over http. Default: not to another host.
    seed : int, optional
        Of the prompts. Default: fresh ones each time; with a seed that was used before, the service knows them.

    Raises
    ------
    ArgumentError
        A value that is not legal.
    """

    model: str | None = None
    other_models: Sequence[str] = ()
    form: str = "auto"
    windows: Sequence[int] = (128, 1024)
    lengths: Sequence[int] = ()
    answer_tokens: int = 8
    far_tokens: int = 48
    top: int = 5
    samples: int = 2
    controls: int = 8
    longest: int = 4096
    vocabulary: tuple[int, int] = (1000, 30000)
    max_requests: int = 600
    deadline_s: float = 900.0
    timeout_s: float = 60.0
    retries: int = 1
    key_env: str | None = None
    other_key_env: str | None = None
    reference: str | None = None
    plain_key: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ArgumentError("form", f"one of {FORMS}", self.form)
        bounds = {
            "answer_tokens": (1, 64), "far_tokens": (1, 4096), "top": (1, 20), "samples": (1, 1000),
            "controls": (2, 1000), "longest": (32, MOST_TOKENS), "max_requests": (1, 10**6), "retries": (0, 10),
        }  # fmt: skip
        for name, (low, high) in bounds.items():
            _within(name, getattr(self, name), low, high)
        for name in ("windows", "lengths"):
            for value in getattr(self, name):
                _within(name, value, 1, self.longest)
        for name in ("deadline_s", "timeout_s"):
            if not 0 < seconds(name, getattr(self, name)) < 10**6:
                raise ArgumentError(name, "above 0 and below 10**6 seconds", getattr(self, name))
        low, high = self.vocabulary
        if integer("vocabulary", high, "an integer") - _within("vocabulary", low, 0, 2**31) < 64 or high > 2**31:
            raise ArgumentError("vocabulary", "at least 64 token ids below 2**31", f"{low} to {high}")


def _within(field: str, value: Any, low: int, high: int) -> int:
    expected = f"an integer in [{low}, {high}]"
    number = integer(field, value, expected)
    if not low <= number <= high:
        raise ArgumentError(field, expected, value)
    return number
