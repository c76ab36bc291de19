# SPDX-License-Identifier: Apache-2.0
"""The answer of a match: how much is known, how much is usable, why not more, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from hybridkv import _core
from hybridkv.alignment.checks import told
from hybridkv.cost import Choice
from hybridkv.errors import ArgumentError
from hybridkv.formats import COSMETIC, Compatibility, Difference, KvFormat, Relation, relation
from hybridkv.formats.negotiation import format_differences, worst_first
from hybridkv.kinds import Check, Outcome, Remedy, StateKind

if TYPE_CHECKING:
    from hybridkv.cache import HybridCache
    from hybridkv.group import CacheGroup
    from hybridkv.keys import BlockKeys
    from hybridkv.lease import Lease
    from hybridkv.reference.conversion_plan import ConversionPlan
    from hybridkv.steering import Steering


_MOST_NAMED = 3  # differences in one sentence


class Why(NamedTuple):
    """The loss that cost most.

    Attributes
    ----------
    check : Check
        Which check took the tokens.
    kind : StateKind
        Kind of the group; DISK if what is missing rests in a tier.
    group : str
        The group whose first failing block starts lowest.
    block : int
        That group's own block index, from the start of the prefix.
    code : str
        missing, partial, stale, expired, lagging, filling, drop, pins, in_tier, format, base, page_stride,
        row_stride, footer, content, load or withheld.
    detail : str
        One sentence for an operator; of ABI with the fields that differ (``verdict.differences`` has all).
    """

    check: Check
    kind: StateKind
    group: str
    block: int
    code: str
    detail: str


@dataclass(frozen=True)
class Plan:
    """What to do so that more, or all, of a prefix becomes usable.

    Attributes
    ----------
    loads : tuple
        (group, block) to be restored from a tier, each group's own blocks, as things are when it is read; empty where
        there is nothing to restore.
    conversions : tuple
        (group, block) whose bytes are of a convertible format.
    converter : ConversionPlan or None
        Of ``conversions``: how :func:`hybridkv.ops.convert` makes the reader's rows of them. None where nothing here
        does, so that whoever knows both arrangements has to.
    replay : mapping of str to (int, int)
        For each rebuildable group that is missing: the tokens [from, t) to compute again for it. They start
        together, where the first of them has to. Queries of the replay read rows of every window and chunk from
        ``from`` on: those of groups that are not named are made on the way and kept nowhere.
    resume_tokens : int
        Where the engine resumes computing: ``from`` of the replay, or the usable length. Below the usable length
        writes are masked for every other group.
    exact : bool
        Whether the continuation is bit for bit what recomputation gives.
    restore_tokens : int
        Length that becomes usable once all of ``loads`` are restored; 0 where there is nothing to restore.
    choice : Choice or None
        Of a cache with a cost model, where a tier has something: which of the lengths was chosen and why. Its candidate
        of ``usable_tokens`` is computing what is missing: chosen, ``restore_tokens`` is 0.
    """

    loads: tuple[tuple[str, int], ...] = ()
    conversions: tuple[tuple[str, int], ...] = ()
    replay: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    resume_tokens: int = 0
    exact: bool = True
    restore_tokens: int = 0
    choice: Choice | None = field(default=None, repr=False, compare=False)
    converter: ConversionPlan | None = field(default=None, repr=False, compare=False)
    _keys: BlockKeys | None = field(default=None, repr=False, compare=False)
    _cache: object = field(default=None, repr=False, compare=False)


class Verdict(_core.Verdict):
    """What :meth:`HybridCache.match <hybridkv.HybridCache.match>` decided.

    ``MISS`` is ``matched_tokens == 0``; ``FALSE_HIT`` is matched but nothing usable; ``REUSABLE`` carries a lease,
    and a ``why`` if less is usable than matched. A verdict that is dropped with its lease unsettled withdraws
    it, which is reported as a leak.
    """

    __slots__ = ()

    lease: Lease | None
    """A :class:`~hybridkv.Lease` exactly when REUSABLE, already pinned."""

    # Kept by the core's object, which this class only describes.
    _outcome: int
    _remedy: int
    _matched_tokens: int
    _usable_tokens: int
    _limit_tokens: int
    _resume_tokens: int
    _restore_tokens: int
    _lost: list[int]
    _why: tuple[int, int, int, str, bool, int] | None
    _replay: list[tuple[int, int]]
    _held: _core.Lease | None
    _cache: HybridCache
    _keys: BlockKeys
    _formats: Mapping[str, KvFormat] | None
    _boundaries: npt.NDArray[np.int64] | None
    _choice: Choice | None
    _exactly: int

    @property
    def outcome(self) -> Outcome:
        """MISS, FALSE_HIT or REUSABLE."""
        return Outcome(self._outcome)

    @property
    def matched_tokens(self) -> int:
        """What a homogeneous manager would call the hit, in tokens."""
        return self._matched_tokens

    @property
    def usable_tokens(self) -> int:
        """Length at which every group can resume, in tokens; 0 unless REUSABLE."""
        return self._usable_tokens

    @property
    def why(self) -> Why | None:
        """The loss that cost most; None only if MISS, or if all that matched is usable, and nothing is filling."""
        raw = self._why
        if raw is None:
            return None
        check, group, block, code, in_tier, _ = raw
        described = self._cache.spec.groups[group]
        kind = StateKind.DISK if in_tier else described.kind
        detail = _detail(Check(check), described.name, block, code, self._lost[check])
        if check == Check.ALIGNED or code == "in_tier":  # what rests in a tier stays there, if it could not be used
            wrong = told(self._cache.alignment(described.name), None if in_tier else code)
            detail = f"{detail}: {wrong}" if wrong else detail
        elif check == Check.ABI:
            detail = f"{detail}: {_named(self.differences)}"
        return Why(Check(check), kind, described.name, block, code, detail)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """In what the format that ``why`` lost tokens to differs from the reader's, what stands in the way first.

        Of a page, fields of its format. Of a record in a tier also sizes, identity and the other groups that it holds,
        where the tier knows its writer's manifest (``tier.manifests``). Empty where ``why.check`` is not ABI, and where
        the writer is not known.
        """
        raw = self._why
        if raw is None or raw[0] != Check.ABI:
            return ()
        if raw[4]:
            return self._cache._skew.differences(self)
        group = self._cache.spec.groups[raw[1]]
        return worst_first(format_differences(group.name, *self._formats_of(group, raw[5]))[0])

    @property
    def lost(self) -> dict[Check, int]:
        """Tokens that each check took off the length the earlier ones left; checks that took none are absent."""
        return {Check(check): tokens for check, tokens in enumerate(self._lost) if tokens}

    @property
    def remedy(self) -> Remedy:
        """RECOMPUTE, RESTORE, CONVERT or WAIT for what ``why`` names; NONE where nothing was lost.

        RECOMPUTE also where a restore would help and the cache's cost model says that computing is quicker:
        ``plan.choice`` tells.
        """
        why = self.why
        if self._conversion(why) is not None:
            return Remedy.CONVERT
        remedy = Remedy(self._remedy)
        if remedy is Remedy.RESTORE and self._best_restore() == 0:
            return Remedy.RECOMPUTE
        return remedy

    @property
    def plan(self) -> Plan:
        """What would make more usable, and the replay that this lease needs."""
        names = [group.name for group in self._cache.spec.groups]
        replay = {names[group]: (start, self.usable_tokens) for group, start in self._replay}
        why = self.why
        conversion = self._conversion(why)
        restore = self._best_restore()
        loads = _core.restore_loads(self._cache._core, self._keys._core, restore) if restore else ()
        return Plan(
            loads=tuple((names[group], block) for group, block in loads),
            conversions=() if why is None or conversion is None else ((why.group, why.block),),
            converter=None if conversion is None else conversion.plan,
            replay=replay,
            resume_tokens=self._resume_tokens,
            exact=True,
            restore_tokens=restore,
            choice=self._choice,
            _keys=self._keys,
            _cache=self._cache,
        )

    @property
    def boundaries(self) -> npt.NDArray[np.int64]:
        """Every usable length in tokens, ascending, [[lengths]] int64; read when first asked.

        Only ``lease.tokens`` is guaranteed: nothing pins the others. Lengths are those before the drop.
        """
        if self._boundaries is None:
            formats = self._cache._format_list(self._formats)
            core = self._cache._core.boundaries(self._keys._core, self._limit_tokens, formats)
            core.flags.writeable = False
            self._boundaries = core
        return self._boundaries

    def _settle(self, steering: Steering) -> None:
        """Ask who watches the cache; only a :class:`.steering.SteeredVerdict` is ever asked about."""

    def _best_restore(self) -> int:
        """Return the length to restore: the longest, or what the cost model chooses when first asked; 0: none."""
        longest = self._restore_tokens
        if not longest or self._cache.cost is None:
            return longest
        if self._choice is None:
            exactly = self._exactly if self._exactly >= 0 else None
            limit = min(self._limit_tokens, self._keys.tokens + 1)
            self._choice = self._cache._choose_restore(self._keys, limit, self.usable_tokens, exactly)
        if self._choice is None:  # what there was went meanwhile
            return longest
        chosen = self._choice.candidate.tokens
        return chosen if chosen > self.usable_tokens else 0

    def _conversion(self, why: Why | None) -> Relation | None:
        """Return how the page that was lost to another format becomes the reader's; None where it does not."""
        raw = self._why
        if why is None or raw is None or why.check is not Check.ABI or why.kind is StateKind.DISK:
            return None
        reader, writer = self._formats_of(self._cache.spec.groups[raw[1]], raw[5])
        if reader is None or writer is None:
            return None
        told = relation(reader, writer)
        return told if told.compatibility is Compatibility.CONVERTIBLE else None

    def _formats_of(self, group: CacheGroup, number: int) -> tuple[KvFormat | None, KvFormat | None]:
        """Return the reader's format of a group and the one that the cache knows by a number; None: not declared."""
        reader = (self._formats or {}).get(group.name, group.format)
        return reader, self._cache._known_formats.get(self._cache._core.format(number))

    def __repr__(self) -> str:
        return (
            f"Verdict({self.outcome.name}, matched_tokens={self.matched_tokens}, "
            f"usable_tokens={self.usable_tokens}, why={self.why})"
        )


def _named(differences: tuple[Difference, ...]) -> str:
    """Name what was lost to another format, for an operator."""
    decisive = [d for d in differences if d.severity != COSMETIC]
    if not decisive:
        return "its writer is not known here"
    more = len(decisive) - _MOST_NAMED
    told = "; ".join(map(str, decisive[:_MOST_NAMED]))
    return f"{told}; and {more} more (verdict.differences)" if more > 0 else told


def _detail(check: Check, group: str, block: int, code: str, tokens: int) -> str:
    reason = {
        "missing": f"block {block} of {group!r} was never here",
        "partial": f"the length is no multiple of {group!r}'s block (block {block})",
        "stale": f"block {block} of {group!r} was here and is gone",
        "expired": f"block {block} of {group!r} was here and slid out of its window, or was evicted",
        "lagging": f"{group!r} has not reached block {block} that the group it indexes has",
        "filling": f"block {block} of {group!r} is being filled by another request",
        "drop": "the length was shortened for a draft head",
        "pins": f"a block of {group!r} has no room for another pin",
        "in_tier": f"block {block} of {group!r} rests in a tier",
        "format": f"block {block} of {group!r} was written in another format",
        "base": f"the pool of {group!r} starts at an address its kernel cannot take",
        "page_stride": f"the pool of {group!r} has a page stride its kernel cannot take",
        "row_stride": f"the pool of {group!r} has a row stride its kernel cannot take",
        "footer": f"the pool of {group!r} has its footer where its kernel does not look",
        "content": f"block {block} of {group!r} does not hold the bytes that were published",
        "load": f"the record of block {block} of {group!r} could not be loaded from the tier",
    }[code]
    return f"{check.name}: {reason} ({tokens} tokens lost)"


def intersect(boundaries: Iterable[npt.ArrayLike]) -> int:
    """Agree on one boundary among ranks.

    Parameters
    ----------
    boundaries : iterable of array_like
        Usable lengths of each rank, [[lengths]] integers, as ``verdict.boundaries``.

    Returns
    -------
    int
        The largest length that every rank can resume at, in tokens; 0 if none. It is a member of every set,
        never the smallest of the largest.

    Raises
    ------
    ArgumentError
        No rank, or something else than lengths of 0 or more.

    Examples
    --------
    >>> intersect([[16, 48, 96], [16, 32, 48, 64]])
    48
    """
    expected = "arrays [[lengths]] of integers, 0 or more"
    try:
        ranks = iter(boundaries)
    except TypeError as error:
        raise ArgumentError("boundaries", f"an iterable of {expected}", boundaries) from error
    common: set[int] | None = None
    for lengths in ranks:
        try:
            array = np.asarray(lengths)
        except Exception as error:  # ragged, or whatever an array interface of others raises
            raise ArgumentError("boundaries", expected, lengths) from error
        if array.ndim != 1 or (array.size and (not np.issubdtype(array.dtype, np.integer) or array.min() < 0)):
            raise ArgumentError("boundaries", expected, lengths)
        members = {int(length) for length in array}
        common = members if common is None else common & members
    if common is None:
        raise ArgumentError("boundaries", "at least one rank", "none")
    return max(common, default=0)
