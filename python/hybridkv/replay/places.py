# SPDX-License-Identifier: Apache-2.0
"""Tiers below the pools of a lane: host memory with pages of a fraction of their bytes, or a directory with all.

A tier moves bytes, so pools have to be there. Beside host memory they are small: a page has 1/256 of its bytes (or
less, where the tier is very large), and so has the tier; what a record has besides (its envelope) is put on top. What
fits and what is evicted is nearly what it would be, and a replay of a tier of 256 GiB takes 1 GiB. Beside a
directory pages are whole, and so is what is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridkv import CacheGroup, CacheSpec, DiskTier, HybridCache, MemoryTier, Tier
from hybridkv.errors import ArgumentError
from hybridkv.planner.quantities import byte_text, parse_count
from hybridkv.replay.pools import Demand, far_boundary, is_history

_SCALE = 256
_MOST_BYTES = 1 << 30
_MIB = 1 << 20
_ENVELOPE, _PART = 128, 32


@dataclass(frozen=True, slots=True)
class Place:
    """A tier to replay with.

    Attributes
    ----------
    capacity_bytes : int
        Of all records.
    folder : Path or None
        Where a disk tier lies; None: host memory.
    """

    capacity_bytes: int
    folder: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """Read ``none``, ``memory:SIZE`` or ``DIR:SIZE``.

        Parameters
        ----------
        text : str
            The argument of ``--tier``.

        Returns
        -------
        Place or None
            None: no tier.

        Raises
        ------
        ArgumentError
            None of the three.
        """
        if text == "none":
            return None
        where, colon, size = text.rpartition(":")
        if not colon or not where:
            raise ArgumentError("tier", "none, memory:SIZE, or DIR:SIZE, as memory:64GiB", text)
        capacity = parse_count("tier", size, of_bytes=True)
        return cls(capacity, None if where == "memory" else Path(where))

    def __str__(self) -> str:
        return f"{'memory' if self.folder is None else 'disk'} {byte_text(self.capacity_bytes)}"


def thin(spec: CacheSpec, scale: int) -> CacheSpec:
    """Return a spec of the same rules whose pages have a fraction of their bytes.

    Parameters
    ----------
    spec : CacheSpec
        The model.
    scale : int
        What to divide by.

    Returns
    -------
    CacheSpec
        Groups of the same names, kinds, coverage and blocks, in one layer each; a page has one byte at least.
    """
    groups = [
        CacheGroup(
            group.name,
            group.kind,
            group.coverage,
            page_bytes=max(1, round(group.total_page_bytes / scale)),
            block_tokens=group.block_tokens,
            in_step_with=group.in_step_with,
        )
        for group in spec.groups
    ]
    return CacheSpec(spec.unit_tokens, groups)


def open_place(place: Place, spec: CacheSpec, demand: Demand, number: int) -> tuple[CacheSpec, Tier]:
    """Open the tier of a lane.

    Parameters
    ----------
    place : Place
        Where, and how large.
    spec : CacheSpec
        The model.
    demand : Demand
        What the trace would fill: in which proportion records of history and of states stand.
    number : int
        Of the lane: each has a directory of its own.

    Returns
    -------
    tuple of CacheSpec and Tier
        The spec that the lane's cache is made of, and the tier.

    Raises
    ------
    ArgumentError
        A directory of that lane is there already: what is in it would be found.
    TierError
        The directory cannot be had, or the capacity is too small for one.
    """
    if place.folder is None:
        scale = max(_SCALE, place.capacity_bytes // _MOST_BYTES)
        small = thin(spec, scale)
        factor = _records_bytes(small, demand, envelopes=True) / _records_bytes(spec, demand, envelopes=False)
        return small, MemoryTier(max(1, int(place.capacity_bytes * factor)))
    folder = place.folder / f"lane-{number}"
    if folder.exists():
        raise ArgumentError("tier", "a directory without stores of an earlier replay", str(folder))
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError("tier", "a directory", f"{place.folder}: {error.strerror}") from error
    region = place.capacity_bytes // 8 // _MIB * _MIB
    return spec, DiskTier(folder, place.capacity_bytes, region_bytes=min(64 * _MIB, max(_MIB, region)))


def _records_bytes(spec: CacheSpec, demand: Demand, *, envelopes: bool) -> int:
    total = 0
    needs = spec.requirements(far_boundary(spec))
    for history, count in ((True, demand.units), (False, demand.boundaries)):
        groups = [group for group in spec.groups if is_history(group.coverage) == history]
        pages = [1 if history else len(needs[group.name].blocks) for group in groups]
        payload = sum(n * group.total_page_bytes for n, group in zip(pages, groups, strict=True))
        total += count * (payload + (_ENVELOPE + _PART * sum(pages) if envelopes else 0))
    return max(1, total)


def bind_pages(cache: HybridCache) -> None:
    """Give every group of a cache a pool in host memory, zeros that take no memory before they are written.

    Parameters
    ----------
    cache : HybridCache
        One that is new.
    """
    for group in cache.spec.groups:
        cache.bind(group.name, np.zeros((cache.pages[group.name], group.total_page_bytes), dtype=np.uint8))
