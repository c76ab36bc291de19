# SPDX-License-Identifier: Apache-2.0
"""Hot and cold: which prefixes lie where, what each place reads and writes, and the same for a fleet.

Prefixes fill the places from the fastest down: beside the running requests, then each place below. Which part of a
prefix lies higher makes no difference to bytes: where prefixes are used alike, a hit reads what is not in memory, and
that is ``prefix - memory / prefixes`` bytes on average whatever is put there, windows or history. So whole prefixes
are layered, the ones used last on top: use is never alike, and order of use is what a policy can see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hybridkv.coverage import Prefix
from hybridkv.inspection import own_block_tokens
from hybridkv.planner.capacity import Capacity, bytes_of
from hybridkv.planner.load import Fleet, Load
from hybridkv.planner.places import Place
from hybridkv.planner.retention import Retention
from hybridkv.spec import CacheSpec

POOLS = "pools"
RUNNING, KEPT = "running requests", "kept prefixes"


@dataclass(frozen=True)
class Layer:
    """What lies in one place of one host.

    Attributes
    ----------
    place : str
        "pools", or the name of a place.
    holds : str
        "running requests" or "kept prefixes".
    number : int
    bytes : int
        As they lie there, fills of records included.
    by_kind : dict of str to int
        Bytes of their pages by kind of state.
    share : float or None
        Part of the capacity; None of the pools, whose capacity is shared with running requests.
    """

    place: str
    holds: str
    number: int
    bytes: int
    by_kind: Mapping[str, int]
    share: float | None


@dataclass(frozen=True)
class Traffic:
    """What one place has to read and write.

    Attributes
    ----------
    place : str
    hit_share : float
        Part of the hits that are restored from here.
    read_bytes, write_bytes : int
        Read for one such hit, written for one request (new history, and the states at its ends).
    read_bytes_per_second, write_bytes_per_second : float or None
        With the arrivals of the load; None where nobody said how many.
    read_share, write_share : float or None
        Part of what the place can do.
    most_requests_per_second : float or None
        Arrivals at which it is busy all the time; None where nothing limits.
    """

    place: str
    hit_share: float
    read_bytes: int
    write_bytes: int
    read_bytes_per_second: float | None
    write_bytes_per_second: float | None
    read_share: float | None
    write_share: float | None
    most_requests_per_second: float | None


@dataclass(frozen=True)
class Layering:
    """Hot and cold of one host.

    Attributes
    ----------
    layers : tuple of Layer
    traffic : tuple of Traffic
    prefixes : int or None
        That there are; None: nobody said.
    homeless : int
        Prefixes for which there is room nowhere: their hits are lost.
    record_bytes, block_record_bytes : int
        Payload of a boundary record and of a block record.
    least_region_bytes : int
        ``region_bytes`` that a disk tier needs at least for the larger of them.
    """

    layers: tuple[Layer, ...]
    traffic: tuple[Traffic, ...]
    prefixes: int | None
    homeless: int
    record_bytes: int
    block_record_bytes: int
    least_region_bytes: int


@dataclass(frozen=True)
class FleetPlan:
    """The same of all hosts.

    Attributes
    ----------
    hosts : int
    prefixes : int or None
        Of the whole fleet.
    routed : bool
    prefixes_of_a_host : int or None
    room_of_a_host : int
        Prefixes that one host has room for in all its places.
    requests : int
        Admitted at a time by all hosts.
    bytes : dict of str to int
        Of kept prefixes by place, all hosts together.
    once_bytes : int or None
        What the prefixes take if each is kept once.
    hosts_needed : int or None
        Hosts that have room for all prefixes: where they are routed so many, else None if one host has not the room.
    """

    hosts: int
    prefixes: int | None
    routed: bool
    prefixes_of_a_host: int | None
    room_of_a_host: int
    requests: int
    bytes: Mapping[str, int]
    once_bytes: int | None
    hosts_needed: int | None


def records_of(spec: CacheSpec, tokens: int, retention: Retention | None, ends: int) -> list[tuple[int, int, int]]:
    """List the records of a kept prefix as (how many, payload bytes of each, parts of each).

    A part is a page of one pool, every pool being one array. Block records end where some group's block of history
    ends; one group of blocks has one size.
    """
    history = [group for group in spec.groups if isinstance(group.coverage, Prefix)]
    by_block: dict[int, list[int]] = {}
    for group in history:
        by_block.setdefault(own_block_tokens(group), []).append(group.total_page_bytes)
    found = [(tokens // block, sum(sizes), len(sizes)) for block, sizes in by_block.items()]
    boundary = sum(spec.boundary_bytes.values())
    pages = sum(size // spec[name].total_page_bytes for name, size in spec.boundary_bytes.items())
    if boundary and retention is not None and retention.record_bytes:
        period = retention.period_tokens
        kept = ends + (tokens // period if period is not None else 0)
        found.append((kept, boundary, pages))
    return [record for record in found if record[0]]


def stored_bytes(place: Place, records: Sequence[tuple[int, int, int]]) -> int:
    """Return what records take in a place."""
    return sum(number * place.record_bytes(payload, parts) for number, payload, parts in records)


def layering_of(
    spec: CacheSpec,
    capacity: Capacity,
    load: Load,
    places: Sequence[Place],
    retention: Retention | None,
    prefixes: int | None,
    least_region: int,
) -> Layering:
    """Fill the places from the fastest down.

    Parameters
    ----------
    spec : CacheSpec
    capacity : Capacity
        Of the pools.
    load : Load
    places : sequence of Place
        The fastest first.
    retention : Retention or None
        Which boundaries the places keep.
    prefixes : int or None
        That one host keeps; None: as many as fit, and nothing is cold.
    least_region : int
        See :attr:`Layering.least_region_bytes`.

    Returns
    -------
    Layering
    """
    ends = load.ends if retention is None else retention.ends
    records = records_of(spec, load.kept_tokens, retention, ends)
    running = min(load.concurrency, capacity.cap)
    layers = [_layer(spec, POOLS, RUNNING, running, capacity.request_pages)]
    layers.append(_layer(spec, POOLS, KEPT, capacity.kept_prefixes, capacity.prefix_pages))
    rest = None if prefixes is None else max(0, prefixes - capacity.kept_prefixes)
    held: list[tuple[Place, int]] = []
    for place in places:
        each = stored_bytes(place, records)
        room = place.capacity_bytes // each if each else 0
        number = room if rest is None else min(rest, room)
        rest = None if rest is None else rest - number
        total = number * each
        kinds = _kinds(spec, _pages_of(spec, load.kept_tokens, retention, ends), number)
        layers.append(Layer(place.name, KEPT, number, total, kinds, total / place.capacity_bytes))
        held.append((place, number))
    known = capacity.kept_prefixes + sum(number for _, number in held) + (rest or 0)
    boundary = sum(spec.boundary_bytes.values())
    return Layering(
        tuple(layers),
        tuple(_traffic(spec, load, place, number / known if known else 0.0, retention) for place, number in held),
        prefixes,
        rest or 0,
        boundary,
        max((payload for number, payload, _ in records if payload != boundary), default=0),
        least_region,
    )


def _pages_of(spec: CacheSpec, tokens: int, retention: Retention | None, ends: int) -> dict[str, int]:
    """Pages that the records of a prefix hold, by group."""
    pages = {}
    kept = ends
    if retention is not None and retention.period_tokens is not None:
        kept += tokens // retention.period_tokens
    for group in spec.groups:
        if isinstance(group.coverage, Prefix):
            pages[group.name] = tokens // own_block_tokens(group)
        else:
            pages[group.name] = kept * (spec.boundary_bytes[group.name] // group.total_page_bytes)
    return pages


def _layer(spec: CacheSpec, place: str, holds: str, number: int, pages: Mapping[str, int]) -> Layer:
    return Layer(place, holds, number, number * bytes_of(spec, pages), _kinds(spec, pages, number), None)


def _kinds(spec: CacheSpec, pages: Mapping[str, int], number: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in spec.groups:
        size = number * pages.get(group.name, 0) * group.total_page_bytes
        found[group.kind.name] = found.get(group.kind.name, 0) + size
    return found


def _traffic(spec: CacheSpec, load: Load, place: Place, part: float, retention: Retention | None) -> Traffic:
    growth = Fraction(spec.bytes_per_token) * load.kept_tokens
    reused = Fraction(load.reused_share)
    record = 0 if retention is None else retention.record_bytes
    read = int(growth * reused) + (record if reused else 0)
    written = int(growth * (1 - reused)) if retention is None else retention.write_bytes
    rate, speed = load.requests_per_second, place.write_bytes_per_second
    reads = None if rate is None else rate * part * read
    writes = None if rate is None else rate * written
    busy = part * read / place.read.bytes_per_second  # loads overlap, so that latencies keep nobody busy
    limits = [1 / busy] if busy else []
    if speed is not None and written:
        limits.append(speed / written)
    return Traffic(
        place.name,
        part,
        read,
        written,
        reads,
        writes,
        None if rate is None else rate * busy,
        None if writes is None or speed is None else writes / speed,
        min(limits) if limits else None,
    )


def fleet_of(fleet: Fleet, load: Load, capacity: Capacity, layering: Layering, places: Sequence[Place]) -> FleetPlan:
    """Add up the hosts of a fleet.

    Parameters
    ----------
    fleet : Fleet
    load : Load
        Of one host.
    capacity, layering
        Of one host.
    places : sequence of Place

    Returns
    -------
    FleetPlan
    """
    each = fleet.prefixes_of_a_host(load)
    total = fleet.prefixes if fleet.prefixes is not None else None if each is None else each * fleet.hosts
    kept = [layer for layer in layering.layers if layer.holds == KEPT]
    sizes = {layer.place: layer.bytes // layer.number for layer in kept if layer.number}
    by_name = {place.name: place for place in places}
    room = capacity.kept_prefixes
    for name, size in sizes.items():
        room += by_name[name].capacity_bytes // size if name in by_name and size else 0
    if total is None or not room:
        needed = None
    else:
        needed = -(-total // room) if fleet.routed else fleet.hosts if room >= total else None
    last = next((sizes[place.name] for place in reversed(places) if place.name in sizes), capacity.prefix_bytes)
    return FleetPlan(
        fleet.hosts,
        total,
        fleet.routed,
        each,
        room,
        fleet.hosts * capacity.cap,
        {layer.place: layer.bytes * fleet.hosts for layer in kept},
        None if total is None else total * last,
        needed,
    )
