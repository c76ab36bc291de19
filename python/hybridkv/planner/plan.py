# SPDX-License-Identifier: Apache-2.0
"""The plan: a model, memory and a load become sizes, pools, policies, layers, and what to do.

Everything is a pure function of declared numbers. No device is asked, no clock is read, no file but the configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from hybridkv.arguments import byte_count, positive_number
from hybridkv.cost import Candidate, CostModel
from hybridkv.errors import ArgumentError
from hybridkv.models.reader import ConfigReader
from hybridkv.page_budget import worst_pages
from hybridkv.planner.advice import HYBRID, Advice, advice_of, design_of
from hybridkv.planner.break_even import BreakEven, break_even, layer_count
from hybridkv.planner.capacity import Capacity, bytes_of, capacity_of
from hybridkv.planner.homogeneous import cheapest_homogeneous, is_homogeneous, load_bytes
from hybridkv.planner.layers import FleetPlan, Layering, fleet_of, layering_of, records_of
from hybridkv.planner.load import Fleet, Load, TraceFacts
from hybridkv.planner.places import Place, least_region_bytes
from hybridkv.planner.retention import Retention, Room, retentions_of
from hybridkv.planner.sizes import Sizes, sizes_of, with_rows
from hybridkv.planner.units import Unit, unit_of, units_of
from hybridkv.spec import CacheSpec, read_config

SCHEMA = "hybridkv.plan/1"
LENGTHS = (8_192, 32_768, 131_072, 1_048_576)
"""Lengths of the table, as far as the model has them; the context is added."""


@dataclass(frozen=True)
class Design:
    """One of the two designs.

    Attributes
    ----------
    sizes : Sizes
    capacity : Capacity
    load_bytes : int
        What the load takes: requests that run, and as many kept prefixes as there are, or as run.
    """

    sizes: Sizes
    capacity: Capacity
    load_bytes: int


@dataclass(frozen=True)
class Length:
    """One request of a length.

    Attributes
    ----------
    tokens : int
    request_bytes, homogeneous_request_bytes : int
        Most that it holds.
    requests, homogeneous_requests : int
        That memory admits of them where nothing is kept beside.
    history_bytes : int
    restore_s : float or None
        From the last place; None without one.
    recompute_s : float
    """

    tokens: int
    request_bytes: int
    homogeneous_request_bytes: int
    requests: int
    homogeneous_requests: int
    history_bytes: int
    restore_s: float | None
    recompute_s: float


@dataclass(frozen=True)
class Question:
    """What was asked: the declared numbers, defaults filled in.

    Attributes
    ----------
    model : str
    most_tokens : int or None
        Longest context that the configuration declares.
    memory_bytes : int
    load : Load
    trace : TraceFacts or None
    places : tuple of Place
    tokens_per_second : float
    fleet : Fleet
    """

    model: str
    most_tokens: int | None
    memory_bytes: int
    load: Load
    trace: TraceFacts | None
    places: tuple[Place, ...]
    tokens_per_second: float
    fleet: Fleet


@dataclass(frozen=True)
class Answer:
    """The plan.

    Attributes
    ----------
    question : Question
    hybrid, homogeneous : Design
    is_homogeneous : bool
        Whether the two are one: the model keeps history alone.
    design : str
        "hybrid" or "homogeneous": the one that is recommended. What follows but ``units`` and ``lengths`` is of it.
    units : tuple of Unit
        Of the hybrid design.
    retentions : tuple of Retention
        Empty where a boundary needs no states.
    break_even : tuple of BreakEven
        One for each place.
    layering : Layering
    lengths : tuple of Length
    fleet : FleetPlan
    advice : tuple of Advice
        What to do, and why.
    """

    question: Question
    hybrid: Design
    homogeneous: Design
    is_homogeneous: bool
    design: str
    units: tuple[Unit, ...]
    retentions: tuple[Retention, ...]
    break_even: tuple[BreakEven, ...]
    layering: Layering
    lengths: tuple[Length, ...]
    fleet: FleetPlan
    advice: tuple[Advice, ...]

    @property
    def recommended(self) -> Design:
        """The design that is recommended."""
        return self.hybrid if self.is_homogeneous or self.design == HYBRID else self.homogeneous

    @property
    def retention(self) -> Retention | None:
        """The policy that was chosen; None where a boundary needs no states."""
        return next((one for one in self.retentions if one.chosen), None)

    @property
    def unit(self) -> Unit:
        """The unit that was chosen."""
        return next(one for one in self.units if one.chosen)

    def to_dict(self) -> dict[str, Any]:
        """Return the same for a machine: str, int, float, bool and None alone, in dicts and lists."""
        return {"schema": SCHEMA, **_plain(self)}


def plan(
    model: CacheSpec | Mapping[str, object] | str | os.PathLike[str],
    memory_bytes: int,
    load: Load,
    *,
    places: Sequence[Place] = (),
    tokens_per_second: float = 20_000.0,
    fleet: Fleet | None = None,
    unit_tokens: int | None = None,
    dtype: str = "fp8",
    rows: Mapping[str, str] | None = None,
    trace: TraceFacts | None = None,
) -> Answer:
    """Plan a cache.

    Parameters
    ----------
    model : CacheSpec, mapping or path
        A spec, taken as it is; or a configuration, or its path, as :meth:`CacheSpec.from_config
        <hybridkv.CacheSpec.from_config>` takes it.
    memory_bytes : int
        Of one host, for pages.
    load : Load
        Of one host.
    places : sequence of Place, optional
        Where prefixes rest below the pools, the fastest first. Default: nowhere.
    tokens_per_second : float, optional
        Prompt tokens that one host computes in a second, the same at every length.
    fleet : Fleet, optional
        Default: one host.
    unit_tokens : int, optional
        Of a configuration. Default: chosen among those that the model allows.
    dtype : str, optional
        Of a configuration.
    rows : mapping of str to str, optional
        Groups whose rows are of another named format.
    trace : TraceFacts, optional
        Where the load was counted, to be told with the answer.

    Returns
    -------
    Answer

    Raises
    ------
    ArgumentError
        Naming the field; a context beyond the model's.
    UnsupportedModel, SpecError
        As ``from_config``.

    Examples
    --------
    >>> from hybridkv import CacheSpec
    >>> answer = plan(CacheSpec.homogeneous(32, 65536), 80 << 30, Load(32_768, 8))
    >>> answer.hybrid.capacity.cap, answer.is_homogeneous, answer.advice[0].choice
    (20, True, 'homogeneous')
    """
    question, units, spec = _asked(
        model, memory_bytes, load, places, tokens_per_second, fleet or Fleet(), unit_tokens, dtype, trace
    )
    for name, entry in (rows or {}).items():
        spec = with_rows(spec, name, entry)
    if rows:
        units = tuple(unit_of(spec, load, chosen=True) if one.chosen else one for one in units)
    return _answer(question, units, spec)


def _answer(question: Question, units: tuple[Unit, ...], spec: CacheSpec) -> Answer:
    load, places = question.load, question.places
    prefixes = question.fleet.prefixes_of_a_host(load)
    kept = load.concurrency if prefixes is None else prefixes
    twin = cheapest_homogeneous(spec, load, kept)
    hybrid, other = (_design(one, question.memory_bytes, load, prefixes, kept) for one in (spec, twin))
    one = is_homogeneous(spec)
    design = design_of(hybrid, other, one)
    chosen, capacity = (spec, hybrid.capacity) if one or design == HYBRID else (twin, other.capacity)
    cost = CostModel({place.name: place.read for place in places}, tokens_per_second=question.tokens_per_second)
    last = places[-1].name if places else None
    retentions = retentions_of(chosen, load, cost, last, room=_room(question, capacity, prefixes))
    retention = next((policy for policy in retentions if policy.chosen), None)
    aligned = max(1, load.kept_tokens // chosen.boundary_tokens) * chosen.boundary_tokens
    records = records_of(chosen, aligned, retention, load.ends)
    region = least_region_bytes(max((places[-1].record_bytes(*one[1:]) for one in records), default=0)) if places else 0
    layering = layering_of(chosen, capacity, load, places, retention, prefixes, region)
    parts: dict[str, Any] = {
        "question": question,
        "hybrid": hybrid,
        "homogeneous": other,
        "is_homogeneous": one,
        "design": design,
        "units": units,
        "retentions": retentions,
        "break_even": tuple(break_even(chosen, place, cost, aligned) for place in places),
        "layering": layering,
        "lengths": tuple(_length(spec, twin, question, cost, tokens) for tokens in _lengths(question)),
        "fleet": fleet_of(question.fleet, load, capacity, layering, places),
    }
    return Answer(**parts, advice=advice_of(**parts))


def _room(question: Question, capacity: Capacity, prefixes: int | None) -> Room:
    """What the places bear of one prefix, where they have to keep all that do not stay in the pools."""
    places, rate = question.places, question.load.requests_per_second
    each = written = None
    if places and prefixes is not None:
        cold = max(1, prefixes - capacity.kept_prefixes)
        each = sum(place.capacity_bytes for place in places) // cold
    if places and rate is not None and (speed := places[-1].write_bytes_per_second) is not None:
        written = speed / rate
    return Room(each, written)


def _asked(
    model: CacheSpec | Mapping[str, object] | str | os.PathLike[str],
    memory_bytes: int,
    load: Load,
    places: Sequence[Place],
    tokens_per_second: float,
    fleet: Fleet,
    unit_tokens: int | None,
    dtype: str,
    trace: TraceFacts | None,
) -> tuple[Question, tuple[Unit, ...], CacheSpec]:
    memory = byte_count("memory_bytes", memory_bytes)
    for field, value, kind in (("load", load, Load), ("fleet", fleet, Fleet)):
        if not isinstance(value, kind):
            raise ArgumentError(field, f"a {kind.__name__}", type(value).__name__)
    named = list(places)
    if any(not isinstance(place, Place) for place in named) or len({place.name for place in named}) < len(named):
        raise ArgumentError("places", "Place objects of different names", [type(place).__name__ for place in named])
    rate = positive_number("tokens_per_second", tokens_per_second)
    most = None
    if isinstance(model, CacheSpec):
        if unit_tokens is not None and unit_tokens != model.unit_tokens:
            raise ArgumentError("unit_tokens", f"None beside a spec, or its own, {model.unit_tokens}", unit_tokens)
        name, spec = model.identity.model or "a spec", model
        units: tuple[Unit, ...] = (unit_of(spec, load, chosen=True),)
    else:
        config = read_config(model)
        units, spec = units_of(config, dtype, load, unit_tokens)
        name, most = _name_of(config), _most_tokens(config)
    if most is not None and load.context_tokens > most:
        expected = f"at most {most}, the model's max_position_embeddings"
        raise ArgumentError("context_tokens", expected, load.context_tokens)
    return Question(name, most, memory, load, trace, tuple(named), rate, fleet), units, spec


def _name_of(config: Mapping[str, object]) -> str:
    named = config.get("architectures")
    if isinstance(named, list) and named and isinstance(named[0], str):
        return named[0]
    return str(config.get("model_type"))


def _most_tokens(config: Mapping[str, object]) -> int | None:
    return ConfigReader(config).text().optional_positive("max_position_embeddings")


def _design(spec: CacheSpec, memory_bytes: int, load: Load, prefixes: int | None, kept: int) -> Design:
    return Design(
        sizes_of(spec, load.context_tokens, load.step_tokens),
        capacity_of(spec, memory_bytes, load, prefixes=prefixes),
        load_bytes(spec, load, kept),
    )


def _lengths(question: Question) -> list[int]:
    most = question.most_tokens or max(LENGTHS)
    return sorted({*(tokens for tokens in LENGTHS if tokens <= most), question.load.context_tokens})


def _length(spec: CacheSpec, twin: CacheSpec, question: Question, cost: CostModel, tokens: int) -> Length:
    step = min(question.load.step_tokens, tokens)
    both = [bytes_of(one, worst_pages(one, tokens, step_tokens=step)) for one in (spec, twin)]
    layers, restore_s = layer_count(spec), None
    history = int(spec.bytes_per_token * tokens)
    if question.places:
        loads = {question.places[-1].name: history + sum(spec.boundary_bytes.values())}
        restore_s = cost.estimate(Candidate(tokens, loads=loads, layers=layers), tokens).total_s
    computed = cost.estimate(Candidate(0, layers=layers), tokens).total_s
    requests = [question.memory_bytes // size for size in both]
    return Length(tokens, both[0], both[1], requests[0], requests[1], history, restore_s, computed or 0.0)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
