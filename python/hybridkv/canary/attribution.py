# SPDX-License-Identifier: Apache-2.0
"""To which groups a mismatch belongs: those whose content is another, or without which the answer is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hybridkv.canary.compare import Comparison
from hybridkv.canary.ends import Ends
from hybridkv.minimal import minimal

Answer = Callable[[frozenset[str]], Ends]
"""Names of groups -> the reused answer with their states recomputed, and those of all other groups reused."""


@dataclass(frozen=True)
class Attribution:
    """To which groups a mismatch belongs.

    Attributes
    ----------
    groups : tuple of str
        None where it is not known.
    how : str
        "content": what was gathered is not what was stored. "recomputed": with these groups' states recomputed the
        answer is right, and with any one of them reused it is not. "unknown": neither was told, or the answer stays
        wrong with every state recomputed, so that it is no state that is wrong.
    """

    groups: tuple[str, ...] = ()
    how: str = "unknown"


def attribute(
    groups: Sequence[str],
    recomputed: Ends,
    compare: Comparison,
    *,
    differing: Sequence[str] = (),
    answer: Answer | None = None,
) -> Attribution:
    """Find the groups that a mismatch belongs to.

    Parameters
    ----------
    groups : sequence of str
        Of which the hit read pages.
    recomputed : Ends
        The right answer.
    compare : Comparison
    differing : sequence of str, optional
        Groups whose gathered content is not what was stored (:class:`.StoredContent`). They are the answer: content
        decides without any computation.
    answer : callable, optional
        Asked for sets of groups, by halves: for one culprit among n about ``2 * log2(n)`` times.

    Returns
    -------
    Attribution
    """
    if differing:
        return Attribution(tuple(differing), "content")
    if answer is None or not groups:
        return Attribution()

    def is_right(replaced: Sequence[str]) -> bool:
        return not compare.judge(answer(frozenset(replaced)), recomputed).mismatch

    if is_right(()) or not is_right(groups):  # it did not happen again, or is not of the states
        return Attribution()
    return Attribution(tuple(minimal(groups, is_right)), "recomputed")
