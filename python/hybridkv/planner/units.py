# SPDX-License-Identifier: Apache-2.0
"""How many tokens one key names: each unit that a model allows, what it costs, and the least that costs little.

A small unit loses few tokens: a prompt's end lies half a step behind the last boundary, on average. It costs pages
where a window is at least a block (a request holds every block of a step then, and states of its neighbours with it),
and fills on a disk, where envelope and payload of a record are each filled up. So of the units that lose little of a
prefix the smallest is chosen at which a request holds about as little as at any, and a block record has little fill.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from hybridkv.coverage import Prefix
from hybridkv.errors import SpecError
from hybridkv.inspection import own_block_tokens
from hybridkv.page_budget import worst_pages
from hybridkv.planner.capacity import bytes_of
from hybridkv.planner.load import Load
from hybridkv.planner.places import DISK_UNIT_BYTES, ENVELOPE_BYTES, PART_BYTES
from hybridkv.spec import CacheSpec

UNITS = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Units that are tried."""

MOST_FILL = Fraction(3, 100)
"""Part of a block record on disk that may be envelope and fill."""

MORE_BYTES = Fraction(1, 10)
"""A smaller unit may cost a request so much more than the cheapest."""

MOST_LOST = Fraction(1, 20)
"""Part of a kept prefix that may be lost at its end on average, unless every unit loses more."""


@dataclass(frozen=True)
class Unit:
    """One unit.

    Attributes
    ----------
    unit_tokens, boundary_tokens : int
        Tokens of a key, and the step of usable lengths that comes of it.
    boundary_group : str or None
        The group that causes the step.
    lost_tokens : float
        Computed again at the end of a prompt that ends anywhere, on average, where no tip is kept.
    request_bytes : int
        Most that one request holds.
    boundary_bytes : int
        Kept for each boundary.
    block_record_bytes : int
        History of one unit.
    fill_share : float
        Part of its record on disk that is envelope and fill.
    chosen : bool
    """

    unit_tokens: int
    boundary_tokens: int
    boundary_group: str | None
    lost_tokens: float
    request_bytes: int
    boundary_bytes: int
    block_record_bytes: int
    fill_share: float
    chosen: bool = False


def units_of(
    config: Mapping[str, object] | str | os.PathLike[str], dtype: str, load: Load, unit_tokens: int | None
) -> tuple[tuple[Unit, ...], CacheSpec]:
    """Try units, and choose one.

    Parameters
    ----------
    config : mapping or path
        As :meth:`CacheSpec.from_config <hybridkv.CacheSpec.from_config>` takes it.
    dtype : str
        Likewise.
    load : Load
    unit_tokens : int or None
        The unit that was asked for; None: the one that is chosen here.

    Returns
    -------
    (tuple of Unit, CacheSpec)
        Of every unit that the model allows and that is no longer than the context, and the spec of the chosen one.

    Raises
    ------
    UnsupportedModel, ArgumentError
        As ``from_config``.
    SpecError
        As ``from_config``, of the unit that was asked for; no unit suits the model.
    """
    specs: dict[int, CacheSpec] = {}
    refused = None
    for unit in sorted({*UNITS, *((unit_tokens,) if unit_tokens is not None else ())}):
        if unit > load.context_tokens and unit not in (unit_tokens, UNITS[0]) and specs:
            continue
        try:
            specs[unit] = CacheSpec.from_config(config, unit_tokens=unit, dtype=dtype)
        except SpecError as error:
            if unit == unit_tokens:
                raise
            refused = error
    if not specs:
        assert refused is not None
        raise refused
    found = [unit_of(spec, load) for spec in specs.values()]
    chosen = unit_tokens if unit_tokens is not None else _best(found, load).unit_tokens
    return tuple(Unit(**{**vars(one), "chosen": one.unit_tokens == chosen}) for one in found), specs[chosen]


def unit_of(spec: CacheSpec, load: Load, *, chosen: bool = False) -> Unit:
    """Tell what the unit of a spec costs.

    Parameters
    ----------
    spec : CacheSpec
    load : Load
    chosen : bool, optional

    Returns
    -------
    Unit
    """
    history = [group for group in spec.groups if isinstance(group.coverage, Prefix)]
    payload = sum(Fraction(g.total_page_bytes * spec.unit_tokens, own_block_tokens(g)) for g in history)
    stored = _filled(ENVELOPE_BYTES + PART_BYTES * len(history)) + _filled(payload)
    return Unit(
        spec.unit_tokens,
        spec.boundary_tokens,
        spec.boundary_group,
        lost_tokens(spec.boundary_tokens),
        bytes_of(spec, worst_pages(spec, load.context_tokens, step_tokens=load.step_tokens)),
        sum(spec.boundary_bytes.values()),
        int(payload),
        float(1 - payload / stored) if payload else 0.0,
        chosen,
    )


def lost_tokens(step: int) -> float:
    """Return how far behind the last multiple of a step a prompt ends, on average."""
    return (step - 1) / 2


def most_lost(load: Load) -> float:
    """Return the tokens of a kept prefix that may be lost at its end on average."""
    return float(MOST_LOST * load.kept_tokens)


def _best(found: list[Unit], load: Load) -> Unit:
    little = [unit for unit in found if unit.lost_tokens <= most_lost(load)] or found[:1]
    least = min(unit.request_bytes for unit in little)
    cheap = [unit for unit in little if unit.request_bytes <= least * (1 + MORE_BYTES)]
    return next((unit for unit in cheap if unit.fill_share <= MOST_FILL), min(cheap, key=lambda unit: unit.fill_share))


def _filled(size: int | Fraction) -> int:
    return -(-size // DISK_UNIT_BYTES) * DISK_UNIT_BYTES
