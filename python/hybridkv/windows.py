# SPDX-License-Identifier: Apache-2.0
"""Which boundaries of a prefix keep their windows and tails in a tier, and how a hit elsewhere resumes: as data.

History (``Prefix`` groups) is always kept, block by block. What a resume at a length needs besides, its *states*,
costs about as many bytes as a thousand tokens of history, and is kept in one *boundary record* of that length:
windows, tails, overlap, of a tip the partial history pages, all of them or none. A record of window rows alone would
not do: where history is compressed with overlap, the first entry after the boundary draws on the last window before
it, and running those tokens again wants window rows from before the record's first. So there is no policy that keeps
windows and not the overlap, and a spec that has such history without an overlap group is refused.

Policies differ in which boundaries have a record, and in what happens at the others:

- :meth:`KeepWindows.all`: every boundary; nothing is computed again.
- :meth:`KeepWindows.every`: every n tokens; the tokens behind the last record are computed again.
- :meth:`KeepWindows.none`: no boundary; states are made by exact replay over the stored history.
- :meth:`KeepWindows.bounded`: as none, with a replay that is cut off. It gives another type, which is not exact.

Prompt end and output end, where the next turn of a conversation comes, are kept by each of them unless ``ends=False``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Literal, NamedTuple

from hybridkv.arguments import count, flag, length, members
from hybridkv.checkpoints import CheckpointPolicy
from hybridkv.cost import Candidate
from hybridkv.coverage import Prefix
from hybridkv.errors import ArgumentError
from hybridkv.group import Need
from hybridkv.inspection import own_block_tokens
from hybridkv.replay_schedule import BoundedReplay, ReplaySchedule, bounded_replay, exact_replay
from hybridkv.spec import CacheSpec

MILLION = 1_000_000

Schedule = Literal["layers", "triangular"]
SCHEDULES = ("layers", "triangular")


class KeptBytes(NamedTuple):
    """What a tier keeps of so many tokens, in bytes.

    Attributes
    ----------
    history : float
        Of all blocks.
    states : float
        Of the records that the policy keeps on the way.
    record : int
        Of one record; one more for each end that is kept.
    """

    history: float
    states: float
    record: int


@dataclass(frozen=True)
class WindowPlan:
    """One way to reuse a prefix.

    Attributes
    ----------
    tokens : int
        The length that is reused; 0: nothing is.
    reads : dict of str to Need
        What is read of each group: history below `tokens`, and the states exactly at `tokens` unless they are
        replayed. Of a length that is not aligned the partial pages are part of its record.
    history_bytes, record_bytes : int
        What that is in pages: of history blocks, and of the boundary record.
    replay : ReplaySchedule, BoundedReplay or None
        How states are made where no record is read.
    layers : int
        Layers of the model, as far as the spec names them.
    """

    tokens: int
    reads: dict[str, Need] = field(hash=False)
    history_bytes: int
    record_bytes: int
    replay: ReplaySchedule | BoundedReplay | None
    layers: int

    @property
    def exact(self) -> bool:
        """Whether the continuation is what recomputation gives. False only of a :class:`BoundedReplay`."""
        return self.replay is None or self.replay.exact

    @property
    def resume_tokens(self) -> int:
        """Where computing starts, as in :class:`~hybridkv.Plan`; below `tokens` writes are masked, see `writes`."""
        return self.tokens if self.replay is None else self.replay.resume_tokens

    @property
    def writes(self) -> tuple[str, ...]:
        """Groups that may be written below `tokens`: those that a replay makes, never one of ``Prefix`` coverage."""
        return () if self.replay is None else self.replay.groups

    def candidate(self, place: str | None = None, *, history: str | None = None) -> Candidate:
        """Return this plan for :meth:`CostModel.choose <hybridkv.CostModel.choose>`.

        Parameters
        ----------
        place : str, optional
            Tier that the record is read from. Default: it is in memory.
        history : str, optional
            Tier that history is read from, all of it. Default: it is in memory.

        Returns
        -------
        Candidate
        """
        loads: dict[str, int] = {}
        for tier, size in ((place, self.record_bytes), (history, self.history_bytes)):
            if tier is not None and size:
                loads[tier] = loads.get(tier, 0) + size
        work = 0 if self.replay is None else self.replay.layer_tokens
        if self.replay is not None and len(self.replay.spans) < self.layers:  # layers of unknown order: as the others
            work = -(-work * self.layers // max(len(self.replay.spans), 1))
        return Candidate(self.tokens, loads=loads, replay_layer_tokens=work, layers=self.layers, exact=self.exact)


@dataclass(frozen=True)
class _Windows(ABC):
    """What both types share: which boundaries are kept, and the plans of a hit."""

    ends: bool = field(default=True, kw_only=True)

    exact: ClassVar[bool]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", flag("ends", self.ends))

    @abstractmethod
    def period_tokens(self, spec: CacheSpec) -> int | None:
        """Return the distance of kept boundaries in tokens, a multiple of the spec's step; None: no such."""

    def check(self, spec: CacheSpec) -> None:
        """Refuse a spec whose prefixes this policy would give back wrong or not at all.

        Parameters
        ----------
        spec : CacheSpec

        Raises
        ------
        SpecError
            Compressed history with overlap and no group that keeps the overlap; with replay: a state that no replay
            can make, layers of unknown order, a declared ``replay_tokens`` that is too small.
        """
        from hybridkv.models.deepseek_v4 import require_overlap  # the families build on specs

        require_overlap(spec.groups)

    def kept(self, spec: CacheSpec, boundaries: Iterable[tuple[int, bool]]) -> tuple[int, ...]:
        """Tell which boundaries get a record.

        Parameters
        ----------
        spec : CacheSpec
        boundaries : iterable of (int, bool)
            Lengths in tokens whose states are there, and whether a prompt or an output ends there. Only an end may be
            no multiple of the spec's step.

        Returns
        -------
        tuple of int
            Ascending, each once.

        Raises
        ------
        ArgumentError
            No length of 1 or more, or an unaligned one that is no end.
        SpecError
            As :meth:`check`.
        """
        self.check(spec)
        step, period = spec.boundary_tokens, self.period_tokens(spec)
        found = set()
        pair = "pairs of a length and whether it is an end"
        for boundary in members("boundaries", boundaries, pair):
            if not isinstance(boundary, tuple) or len(boundary) != 2:
                raise ArgumentError("boundaries", pair, boundary)
            tokens, is_end = length("boundaries", boundary[0]), flag("boundaries", boundary[1])
            if tokens == 0 or (tokens % step and not is_end):
                raise ArgumentError("boundaries", f"a multiple of {step} above 0, or an end", tokens)
            if (is_end and self.ends) or (period is not None and tokens % period == 0):
                found.add(tokens)
        return tuple(sorted(found))

    def checkpoints(self, spec: CacheSpec) -> CheckpointPolicy | None:
        """Return what a cache must keep so that these records can be written: its ``checkpoints=``.

        Parameters
        ----------
        spec : CacheSpec

        Returns
        -------
        CheckpointPolicy or None
            None: every boundary, as a cache without a policy does.
        """
        period = self.period_tokens(spec)
        if period == spec.boundary_tokens:
            return None
        return CheckpointPolicy(prompt_end=self.ends, output_end=self.ends, junctions=False, every=period)

    def kept_bytes(self, spec: CacheSpec, tokens: int = MILLION) -> KeptBytes:
        """Tell what a tier keeps of so many tokens of one prefix.

        Parameters
        ----------
        spec : CacheSpec
        tokens : int, optional
            Default: a million.

        Returns
        -------
        KeptBytes

        Raises
        ------
        ArgumentError, SpecError
            No such number; as :meth:`check`.
        """
        self.check(spec)
        tokens, period = length("tokens", tokens), self.period_tokens(spec)
        record = sum(spec.boundary_bytes.values())
        states = 0.0 if period is None else float(Fraction(record * tokens, period))
        return KeptBytes(spec.bytes_per_token * tokens, states, record)

    def plans(
        self, spec: CacheSpec, tokens: int, boundaries: Iterable[int] = (), *, limit: int | None = None
    ) -> tuple[WindowPlan, ...]:
        """Tell each way to reuse a prefix: from every record that is there, by replay, or not at all.

        Parameters
        ----------
        spec : CacheSpec
        tokens : int
            How far history is stored.
        boundaries : iterable of int, optional
            Lengths that have a record, whatever policy wrote them. Those beyond `tokens` are passed over.
        limit : int, optional
            Lengths are below it, as in a match: at least one token is left to compute. Default: ``tokens + 1``.

        Returns
        -------
        tuple of WindowPlan
            By length, the first of them for 0: computing all. At most one of replay, at the last aligned length; it
            comes after that of a record there.

        Raises
        ------
        ArgumentError, SpecError
            No such length; as :meth:`check`.
        """
        self.check(spec)
        tokens = length("tokens", tokens)
        below = tokens + 1 if limit is None else length("limit", limit)
        lengths = {length("boundaries", t) for t in members("boundaries", boundaries, "lengths in tokens")}
        plans = [_plan(spec, t, None) for t in sorted({0, *lengths}) if t <= tokens and t < max(below, 1)]
        aligned = min(tokens, max(below - 1, 0)) // spec.boundary_tokens * spec.boundary_tokens
        replay = self._replay(spec, aligned) if aligned else None
        if replay is not None:
            plans.append(_plan(spec, aligned, replay))
        return tuple(sorted(plans, key=lambda plan: plan.tokens))

    @abstractmethod
    def _replay(self, spec: CacheSpec, tokens: int) -> ReplaySchedule | BoundedReplay | None:
        """Return the replay that makes states at an aligned length; None: there is none."""


@dataclass(frozen=True)
class KeepWindows(_Windows):
    """Which boundaries keep their states; everything that follows from it is exact.

    Made by :meth:`all`, :meth:`every` or :meth:`none`. What :meth:`bounded` gives is no ``KeepWindows``: code that
    takes this type cannot be handed an approximation, and no argument or default of it makes one.

    Parameters
    ----------
    retain : {"all", "every", "none"}
        The rule.
    every_tokens : int, optional
        Of "every": the distance, rounded up to a boundary of the spec.
    ends : bool, optional
        Prompt end and output end as well.
    replay : {"layers", "triangular"}, optional
        Exact replay where no record is: all layers for the whole span (window x layers, what every engine can
        run), or each layer for what is needed of it. Default: no replay. "none" must have one.

    Attributes
    ----------
    exact : bool
        True: a property of the class.

    Raises
    ------
    ArgumentError
        Naming the field.

    Examples
    --------
    >>> KeepWindows.every(4096)
    KeepWindows(ends=True, retain='every', every_tokens=4096, replay=None)
    """

    retain: Literal["all", "every", "none"]
    every_tokens: int | None = None
    replay: Schedule | None = None

    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.retain, str) or self.retain not in ("all", "every", "none"):
            raise ArgumentError("retain", "one of ['all', 'every', 'none']", self.retain)
        if self.retain == "every":
            object.__setattr__(self, "every_tokens", count("every_tokens", self.every_tokens))
        elif self.every_tokens is not None:
            raise ArgumentError("every_tokens", "None unless retain is 'every'", self.every_tokens)
        if self.replay is None and self.retain != "none":
            return
        if not isinstance(self.replay, str) or self.replay not in SCHEDULES:
            raise ArgumentError("replay", f"one of {list(SCHEDULES)}", self.replay)

    @classmethod
    def all(cls, *, ends: bool = True, replay: Schedule | None = None) -> KeepWindows:
        """Keep every boundary; `ends` adds those of them that are not aligned."""
        return cls("all", ends=ends, replay=replay)

    @classmethod
    def every(cls, tokens: int, *, ends: bool = True, replay: Schedule | None = None) -> KeepWindows:
        """Keep a boundary every so many tokens, rounded up to a multiple of ``spec.boundary_tokens``.

        With units of 64, ``every(100)`` keeps one every 128: a state can be kept only where a boundary is.
        :meth:`period_tokens` tells the distance.
        """
        return cls("every", tokens, ends=ends, replay=replay)

    @classmethod
    def none(cls, *, ends: bool = True, replay: Schedule = "layers") -> KeepWindows:
        """Keep no boundary but the ends; ``ends=False``: none at all. States are made by exact replay."""
        return cls("none", ends=ends, replay=replay)

    @staticmethod
    def bounded(tokens: int | None = None, *, ends: bool = True) -> ApproximateWindows:
        """Keep no boundary but the ends, and replay the last `tokens` alone (default: the widest window): NOT exact."""
        return ApproximateWindows(tokens, ends=ends)

    def period_tokens(self, spec: CacheSpec) -> int | None:
        """Return the distance of kept boundaries in tokens, a multiple of the spec's step; None: no such.

        That of ``every(n)`` is n rounded up.
        """
        step = spec.boundary_tokens
        if self.retain == "every":
            return CheckpointPolicy(every=self.every_tokens)._every(step)
        return step if self.retain == "all" else None

    def check(self, spec: CacheSpec) -> None:
        """See :meth:`_Windows.check`."""
        super().check(spec)
        if self.replay is not None:
            exact_replay(spec, spec.boundary_tokens, triangular=True)  # refuses what cannot be replayed

    def _replay(self, spec: CacheSpec, tokens: int) -> ReplaySchedule | None:
        if self.replay is None:
            return None
        return exact_replay(spec, tokens, triangular=self.replay == "triangular")


@dataclass(frozen=True)
class ApproximateWindows(_Windows):
    """Ends alone, and a replay of the last tokens with windows cut off where it starts: results depend on the hit.

    Made by :meth:`KeepWindows.bounded`, and by nothing else in this package. It is no :class:`KeepWindows`.

    Parameters
    ----------
    replay_tokens : int, optional
        Tokens that are run again. Default: the widest window.
    ends : bool, optional
        Prompt end and output end keep a record.

    Attributes
    ----------
    exact : bool
        False: a property of the class.
    """

    replay_tokens: int | None = None

    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replay_tokens is not None:
            object.__setattr__(self, "replay_tokens", count("tokens", self.replay_tokens))

    def period_tokens(self, spec: CacheSpec) -> int | None:
        """None: nothing is kept on the way."""
        return None

    def check(self, spec: CacheSpec) -> None:
        """See :meth:`_Windows.check`."""
        super().check(spec)
        bounded_replay(spec, spec.boundary_tokens, self.replay_tokens)

    def _replay(self, spec: CacheSpec, tokens: int) -> BoundedReplay | None:
        return bounded_replay(spec, tokens, self.replay_tokens)


def _plan(spec: CacheSpec, tokens: int, replay: ReplaySchedule | BoundedReplay | None) -> WindowPlan:
    needs = spec.requirements(tokens)
    history, record = 0, 0
    for group in spec.groups:
        blocks = needs[group.name].blocks
        if not isinstance(group.coverage, Prefix):
            if replay is not None:
                needs[group.name] = Need(0, 0, range(blocks.stop, blocks.stop))
            else:
                record += len(blocks) * group.total_page_bytes
            continue
        whole = tokens // own_block_tokens(group)
        history += whole * group.total_page_bytes
        record += (len(blocks) - whole) * group.total_page_bytes
    layers = len({layer for group in spec.groups for layer in group.layers}) or 1
    return WindowPlan(tokens, needs, history, record, replay, layers)
