# SPDX-License-Identifier: Apache-2.0
"""Captured graphs: why a request runs without one."""

from __future__ import annotations

from dataclasses import dataclass

EAGER_REASONS = ("width",)
"""Why a request runs without a captured graph, in the order of the core's numbers."""


@dataclass(frozen=True)
class Eager:
    """Why a step cannot be a replay of a captured graph. It is right all the same, and costs its launches.

    Attributes
    ----------
    reason : str
        "width": the request's block table of a group is wider than graphs were captured for.
    group : str
        The first such group of the spec.
    width : int
        Own blocks that the captured table has room for.
    needed : int
        Own blocks that begin below the request's ``grown_tokens``.
    """

    reason: str
    group: str
    width: int
    needed: int
