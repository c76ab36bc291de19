# SPDX-License-Identifier: Apache-2.0
"""Which requests belong to a share of all: by their name, the same in every process, apart from any other share."""

from __future__ import annotations

import hashlib

from hybridkv.arguments import integer
from hybridkv.canary.power import fraction
from hybridkv.errors import ArgumentError
from hybridkv.texts import encodable

_RANGE = 1 << 64


class Share:
    """A share of all requests.

    Parameters
    ----------
    fraction : float
        In [0, 1]. A larger share of the same seed and purpose holds the smaller one.
    seed : int
        Other seeds draw other requests.
    purpose : str
        Shares of different purposes are drawn independently: else a canary of 1 % within a rollout of 1 % would compare
        every request, or none.

    Raises
    ------
    ArgumentError
        Naming the field.

    Examples
    --------
    >>> share = Share(0.25, seed=7, purpose="canary")
    >>> sum(share.takes(f"request {number}") for number in range(10_000))
    2458
    """

    def __init__(self, fraction: float, *, seed: int, purpose: str) -> None:
        self.fraction = _fraction(fraction)
        self.seed = integer("seed", seed, "an integer")
        self._key = hashlib.sha256(f"{purpose}:{self.seed}".encode()).digest()
        self._below = int(self.fraction * _RANGE)

    def takes(self, request: str | bytes | int) -> bool:
        """Whether a request belongs to the share.

        Parameters
        ----------
        request : str, bytes or int
            Its name: an id of the request, so that retries and all ranks decide alike. Not the name of a prompt: of
            prompts that come often the same ones would be drawn for ever, and the others never.

        Raises
        ------
        ArgumentError
            No name.
        """
        if isinstance(request, str):
            name = b"s" + encodable("request", request, ArgumentError).encode()
        elif isinstance(request, bytes):
            name = b"b" + request
        else:
            name = b"i%d" % integer("request", request, "a str, bytes or an int")
        return int(hashlib.blake2b(name, digest_size=8, key=self._key).hexdigest(), 16) < self._below


def _fraction(value: object) -> float:
    return fraction("fraction", value, zero=True)
