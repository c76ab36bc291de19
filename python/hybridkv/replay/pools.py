# SPDX-License-Identifier: Apache-2.0
"""A budget of bytes becomes pages of each group.

History (``Prefix`` groups) grows with the tokens; windows and checkpoints cost a fixed sum for each
boundary that is kept. A trace needs so many units of the one and so many boundaries of the other; a budget
that is too small for all is given to both in that proportion, so that on this trace they run out together.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybridkv import CacheSpec, Prefix
from hybridkv.errors import ArgumentError
from hybridkv.replay.trace import Trace

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Windows:
    """Which boundaries keep their window and checkpoint pages.

    Attributes
    ----------
    policy : str
        ``"ends"``: prompt end and answer end, as DeepSeek-V4 does in production. ``"all"``: every boundary.
        ``"every"``: each boundary next below a multiple of `stride_tokens`.
    stride_tokens : int
        Distance for ``"every"``; else 0.
    """

    policy: str
    stride_tokens: int = 0

    @classmethod
    def parse(cls, text: str) -> Windows:
        """Read ``all``, ``ends`` or a number of tokens.

        Parameters
        ----------
        text : str
            The argument of ``--windows``.

        Returns
        -------
        Windows
            The policy.

        Raises
        ------
        ArgumentError
            None of the three.
        """
        if text in ("all", "ends"):
            return cls(text)
        if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) == 0:
            raise ArgumentError("windows", "all, ends, or a distance in tokens", text)
        return cls("every", int(text))

    def __str__(self) -> str:
        return f"every {self.stride_tokens:,} tokens" if self.policy == "every" else self.policy

    def boundaries(self, start: int, end: int, step: int) -> list[int]:
        """Boundaries to keep of the tokens computed from `start` to `end`.

        Parameters
        ----------
        start, end : int
            First token computed and the token after the last; both multiples of `step`.
        step : int
            ``spec.boundary_tokens``.

        Returns
        -------
        list of int
            Ascending, in (start, end].
        """
        if self.policy == "ends" or end <= start:
            return [end] if end > start else []
        if self.policy == "all":
            return list(range(start + step, end + 1, step))
        stride = max(self.stride_tokens, step)
        found = {at // step * step for at in range(start // stride * stride, end + step, stride)}
        return sorted(at for at in found if start < at <= end)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a trace would fill if nothing were ever evicted.

    Attributes
    ----------
    units : int
        Keyed units of history.
    boundaries : int
        Boundaries whose windows are kept.
    """

    units: int
    boundaries: int

    @classmethod
    def of(cls, trace: Trace, turns: list[int | None], unit_tokens: int, windows: Windows) -> Demand:
        """Count the demand of a trace.

        Parameters
        ----------
        trace : Trace
            The requests.
        turns : list of int or None
            See :func:`hybridkv.replay.answers.next_turns`.
        unit_tokens : int
            Tokens of a key.
        windows : Windows
            Which boundaries are kept.

        Returns
        -------
        Demand
            Units from the distinct ids; boundaries by the policy.
        """
        units = max(1, trace.distinct_tokens // unit_tokens)
        if windows.policy == "ends":
            boundaries = len(trace.requests) + sum(turn is not None for turn in turns)
        elif windows.policy == "all":
            boundaries = units
        else:
            boundaries = max(1, units * unit_tokens // max(windows.stride_tokens, unit_tokens))
        return cls(units=units, boundaries=min(boundaries, units))


@dataclass(frozen=True, slots=True)
class Pools:
    """Sizes of one cache.

    Attributes
    ----------
    units : int
        Units of history.
    pages : dict of str to int
        Pages of each group.
    budget_bytes : int
        The budget they were cut from.
    share : float
        Part of the demand that fits, at most 1.
    """

    units: int
    pages: dict[str, int]
    budget_bytes: int
    share: float


def is_history(coverage: object) -> bool:
    """Tell history, which grows with the tokens, from what is kept at boundaries.

    Parameters
    ----------
    coverage : object
        Coverage rule of a group.

    Returns
    -------
    bool
        True for ``Prefix``.
    """
    return isinstance(coverage, Prefix)


def block_of(spec: CacheSpec, name: str) -> int:
    """Tokens of a group's own block.

    Parameters
    ----------
    spec : CacheSpec
        The model.
    name : str
        The group.

    Returns
    -------
    int
        Tokens; the unit where the group declares none.
    """
    return spec.group(name).block_tokens or spec.unit_tokens


def far_boundary(spec: CacheSpec) -> int:
    """Find a boundary that lies past every window, so that no window is cut short by the start.

    Parameters
    ----------
    spec : CacheSpec
        The model.

    Returns
    -------
    int
        Tokens.
    """
    step = spec.boundary_tokens
    reach = max((int(group.coverage.parameter) for group in spec.groups), default=0)
    return (-(-reach // step) + 1) * step


def demand_bytes(spec: CacheSpec, demand: Demand) -> int:
    """Bytes that the whole demand takes.

    Parameters
    ----------
    spec : CacheSpec
        The model.
    demand : Demand
        What the trace would fill.

    Returns
    -------
    int
        Bytes.
    """
    history = demand.units * spec.unit_tokens * spec.bytes_per_token
    return int(history + demand.boundaries * sum(_boundary_bytes(spec, demand).values()))


def size_pools(spec: CacheSpec, budget_bytes: int, demand: Demand) -> Pools:
    """Cut a budget into pages.

    Parameters
    ----------
    spec : CacheSpec
        The model.
    budget_bytes : int
        Bytes for all pools together.
    demand : Demand
        What the trace would fill; a budget above it is not used up.

    Returns
    -------
    Pools
        At least one unit and one boundary.

    Raises
    ------
    ArgumentError
        The budget is not positive.
    """
    if budget_bytes < 1:
        raise ArgumentError("budget_bytes", "at least 1", budget_bytes)
    share = min(1.0, budget_bytes / demand_bytes(spec, demand))
    step = spec.boundary_tokens // spec.unit_tokens
    units = max(step, int(demand.units * share))
    boundaries = max(1, int(demand.boundaries * share))
    pages = {}
    for group in spec.groups:
        per_unit = -(-units * spec.unit_tokens // block_of(spec, group.name))
        pages[group.name] = per_unit
        if not is_history(group.coverage):
            pages[group.name] = max(1, min(per_unit, boundaries * _boundary_blocks(spec, demand, group.name)))
    return Pools(units=units, pages=pages, budget_bytes=budget_bytes, share=share)


def _boundary_blocks(spec: CacheSpec, demand: Demand, name: str) -> int:
    """Blocks of a group for one more boundary: all it needs, or the one step where every boundary is kept."""
    needed = len(spec.requirements(far_boundary(spec))[name].blocks)
    if demand.boundaries < demand.units:
        return needed
    return min(needed, max(1, spec.boundary_tokens // block_of(spec, name)))


def _boundary_bytes(spec: CacheSpec, demand: Demand) -> dict[str, float]:
    needs = spec.requirements(far_boundary(spec))
    return {
        name: total * _boundary_blocks(spec, demand, name) / max(1, len(needs[name].blocks))
        for name, total in spec.boundary_bytes.items()
    }
