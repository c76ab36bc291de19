# SPDX-License-Identifier: Apache-2.0
"""Which boundaries of a running request keep their states, as data."""

from __future__ import annotations

from dataclasses import dataclass

from hybridkv.arguments import count, flag


@dataclass(frozen=True)
class CheckpointPolicy:
    """Lengths at which window, tail and recurrent states are kept; history is kept always.

    A state costs as many bytes as many units of history, and most boundaries are passed for good. Lengths are rounded
    down to a boundary of the spec, and `every` up to a multiple of ``spec.boundary_tokens``. A state can be kept only
    where a step ends, or where it was asked for in :meth:`Ticket.grow <hybridkv.Ticket.grow>`:
    :attr:`Ticket.kept_lengths <hybridkv.Ticket.kept_lengths>` says where.

    Parameters
    ----------
    prompt_end : bool
        The end of the prompt, ``admit(prompt_tokens=)``.
    output_end : bool
        The last length, when the ticket is closed.
    junctions : bool
        Where the request left a prefix that is known but was not usable: the next one resumes there.
    every : int, optional
        Multiples of so many tokens as well.

    Raises
    ------
    ArgumentError
        Naming the field.
    """

    prompt_end: bool = True
    output_end: bool = True
    junctions: bool = True
    every: int | None = None

    def __post_init__(self) -> None:
        for field in ("prompt_end", "output_end", "junctions"):
            flag(field, getattr(self, field))
        if self.every is not None:
            count("every", self.every)

    def lengths(self, start: int, prompt: int, end: int, matched: int, step: int) -> list[int]:
        """Return the lengths that keep their states.

        Parameters
        ----------
        start : int
            Tokens that were resumed; what lies at or below was kept by others.
        prompt, end : int
            Tokens of the prompt, and with the answer.
        matched : int
            Tokens that were known when the request was matched.
        step : int
            ``spec.boundary_tokens``.

        Returns
        -------
        list of int
            Ascending, multiples of `step` in (start, end].
        """
        kept = set(range(self._every(step), end + 1, self._every(step))) if self.every is not None else set()
        if self.prompt_end:
            kept.add(prompt // step * step)
        if self.output_end:
            kept.add(end // step * step)
        if self.junctions and matched > start:
            kept.add(matched // step * step)
        return sorted(length for length in kept if start < length <= end)

    def _every(self, step: int) -> int:
        assert self.every is not None
        return -(-self.every // step) * step

    def _numbers(self, start: int, prompt: int, matched: int, step: int) -> tuple[bool, bool, int, int, int]:
        """Return what the core keeps by: (all, output end, every, prompt end, junction)."""
        prompt_end = prompt // step * step if self.prompt_end else 0
        junction = matched // step * step if self.junctions and matched > start else 0
        return (False, self.output_end, 0 if self.every is None else self._every(step), prompt_end, junction)


EVERY_BOUNDARY = (True, True, 0, 0, 0)
"""What the core keeps by where there is no policy: every boundary that a step ends at."""
