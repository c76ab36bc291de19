# SPDX-License-Identifier: Apache-2.0
"""The canary: a share of effective hits is recomputed and compared, and reuse goes off where it is wrong."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridkv.arguments import flag
from hybridkv.canary.attribution import Answer, Attribution, attribute
from hybridkv.canary.board import Board, Eras
from hybridkv.canary.breaker import BreakerPolicy, Scope
from hybridkv.canary.compare import Comparison, Judgement
from hybridkv.canary.counts import CanaryMetrics
from hybridkv.canary.ends import ENDS, Ends
from hybridkv.canary.power import fraction
from hybridkv.canary.sample import Hit, Outcome, Sample, SampleKind
from hybridkv.canary.shares import Share
from hybridkv.errors import ArgumentError, Closed
from hybridkv.kinds import StateKind
from hybridkv.metrics.canary_series import canary_families
from hybridkv.metrics.series import Family
from hybridkv.steering import SteeredVerdict, Withheld
from hybridkv.verdict import Verdict

if TYPE_CHECKING:
    from hybridkv.cache import HybridCache
    from hybridkv.keys import BlockKeys
    from hybridkv.lease import Lease

_DEFAULT = BreakerPolicy()


class Asked:
    """What the matches of one request drew.

    Attributes
    ----------
    samples : list of Sample
        In the order of the matches.
    """

    def __init__(self, *, drawn: bool, shadow: bool, passes: bool = False) -> None:
        self.samples: list[Sample] = []
        self._drawn, self._shadow, self._passes = drawn, shadow, passes


class Canary:
    """Watches one cache: draws hits, compares answers, withholds hits of what is not trusted.

    Parameters
    ----------
    cache : HybridCache
        It asks the canary about each hit from now on, until :meth:`close`. Nobody else may watch it.
    rate : float
        Share of effective hits that are recomputed, in [0, 1].
    compare : Comparison
        :class:`.Tolerance`, calibrated by benign controls; :class:`.Bitwise` for engines that repeat themselves to the
        bit; or another judge.
    breaker : BreakerPolicy, optional
        Of the model, each group and the tier. None: nothing trips by itself.
    seed : int, optional
        Other seeds draw other requests.
    shadow : bool, optional
        Hits are decided and not used; see :attr:`shadow`.
    evict : bool, optional
        Retire the pages of a prompt that differs, of every group: what was computed behind a wrong state is wrong too.
        Pinned ones stay: settle after the lease was released.
    clock : callable, optional
        Seconds that never go back. Default: ``time.monotonic``.

    Raises
    ------
    ArgumentError
        Naming the field; a cache that somebody watches.

    Notes
    -----
    Any thread may call. Where no canary watches, a match asks nothing; where one does, a hit costs some microseconds of
    Python more.

    A hit is drawn by the name of its request, or else by its number, never by its prompt: of prompts that come often
    the same ones would be compared for ever, and the others never.

    Examples
    --------
    >>> import numpy as np, hybridkv as hk
    >>> from hybridkv.canary import Canary, Ends, Tolerance
    >>> spec = hk.CacheSpec.homogeneous(layers=2, page_bytes=64)
    >>> cache = hk.HybridCache(spec, blocks=128)
    >>> keys = hk.block_keys(range(100), spec.unit_tokens, identity=spec.identity)
    >>> cache.insert(keys[:4])
    >>> canary = Canary(cache, rate=1.0, compare=Tolerance(first=0.1, last=0.1))
    >>> hit = canary.match(keys, request="r1")
    >>> with hit.verdict.lease:
    ...     reused = Ends.of(np.zeros((36, 8), np.float32))
    >>> recomputed = Ends.of(np.full((36, 8), 0.5, np.float32))
    >>> hit.sample.settle(reused, recomputed).judgement.ends
    ('first', 'last')
    """

    def __init__(
        self,
        cache: HybridCache,
        rate: float,
        compare: Comparison,
        *,
        breaker: BreakerPolicy | None = _DEFAULT,
        seed: int = 0,
        shadow: bool = False,
        evict: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from hybridkv.cache import HybridCache

        if not isinstance(cache, HybridCache):
            raise ArgumentError("cache", "a HybridCache", type(cache).__name__)
        if not isinstance(compare, Comparison):
            raise ArgumentError("compare", "a Tolerance, Bitwise, or what judges as they do", type(compare).__name__)
        if breaker is not None and not isinstance(breaker, BreakerPolicy):
            raise ArgumentError("breaker", "a BreakerPolicy or None", type(breaker).__name__)
        if not callable(clock):
            raise ArgumentError("clock", "a callable that returns seconds", clock)
        self._share = Share(_rate(rate), seed=seed, purpose="canary")
        self._shadow, self._evict = flag("shadow", shadow), flag("evict", evict)
        self.cache, self.compare = cache, compare
        self._model = Scope("model", cache.spec.identity.model or "model")
        self._groups = {group.name: Scope("group", group.name) for group in cache.spec.groups}
        self._kinds = {self._groups[group.name]: group.kind for group in cache.spec.groups}
        self._tier = None if cache.tier is None else Scope("tier", cache.tier.name)
        scopes = [self._model, *self._groups.values(), *([] if self._tier is None else [self._tier])]
        self._board = Board(breaker, scopes, clock)
        self._local = threading.local()
        self._lock = threading.RLock()  # a sample that is collected meanwhile counts too
        self._number = 0
        self._counts: Counter[str] = Counter()
        self._by_end: Counter[str] = Counter()
        self._other_token: Counter[str] = Counter()
        self._blamed: Counter[Scope] = Counter()
        self._withheld: Counter[Scope] = Counter()
        self._withheld_tokens: Counter[Scope] = Counter()
        self._closed = False
        if cache._steering is not None:
            raise ArgumentError("cache", "a cache that nobody watches", "one that has a canary: close that first")
        cache._verdict_type, cache._steering = SteeredVerdict, self

    # -- asking ------------------------------------------------------------------------------------

    @property
    def rate(self) -> float:
        """Share of effective hits that are recomputed."""
        return self._share.fraction

    @property
    def shadow(self) -> bool:
        """Whether hits are decided and not used; they are counted. May be set at any time."""
        return self._shadow

    @shadow.setter
    def shadow(self, shadow: bool) -> None:
        self._shadow = flag("shadow", shadow)

    @contextmanager
    def asking(self, request: str | bytes | int | None = None, *, shadow: bool = False) -> Iterator[Asked]:
        """Draw among the matches that the calling thread makes inside, however deep.

        Parameters
        ----------
        request : str, bytes or int, optional
            Name of the request: whoever names it alike draws alike. Default: the number of the call.
        shadow : bool, optional
            Do not use the hits of this request.

        Yields
        ------
        Asked
            ``samples`` has what was drawn.

        Raises
        ------
        ArgumentError
            No name.
        Closed
            The canary was closed.
        """
        self._check_open()
        if request is None:
            with self._lock:
                self._number += 1
                request = self._number
        asked = Asked(drawn=self._share.takes(request), shadow=flag("shadow", shadow))
        with self._as(asked):
            yield asked

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Hand hits of this thread out as they are, not counted: for a diagnosis, never for an answer."""
        with self._as(Asked(drawn=False, shadow=False, passes=True)):
            yield

    @contextmanager
    def _as(self, asked: Asked) -> Iterator[None]:
        outer = getattr(self._local, "asked", None)
        self._local.asked = asked
        try:
            yield
        finally:
            self._local.asked = outer

    def match(
        self, keys: BlockKeys, *, request: str | bytes | int | None = None, shadow: bool = False, **question: Any
    ) -> Hit:
        """Match as the cache does, and draw.

        Parameters
        ----------
        keys : BlockKeys
            As of :meth:`HybridCache.match <hybridkv.HybridCache.match>`.
        request, shadow
            As in :meth:`asking`.
        **question
            The other arguments of a match.

        Returns
        -------
        Hit

        Raises
        ------
        ArgumentError, Closed
            As :meth:`asking` and :meth:`HybridCache.match <hybridkv.HybridCache.match>`.
        """
        with self.asking(request, shadow=shadow) as asked:
            verdict = self.cache.match(keys, **question)
        return Hit(verdict, asked.samples[0] if asked.samples else None)

    # -- what the cache asks -----------------------------------------------------------------------

    def withheld(self, verdict: SteeredVerdict, lease: Lease) -> Withheld | None:
        """Decide about one hit; the cache asks."""
        asked: Asked | None = getattr(self._local, "asked", None)
        if asked is not None and asked._passes:
            return None
        tokens = lease.tokens
        with self._lock:
            self._counts["hits"] += 1
            self._counts["hits_tokens"] += tokens
        off = self._off_for(verdict._keys, lease) if self._board.tripped else ()
        shadow = self._shadow or (asked is not None and asked._shadow)
        if off:
            trials = None if asked is None else self._board.begin_trial(off)  # in shadow too: nobody is given it
            if asked is None or trials is None:
                return self._withhold(lease, off[0], tokens)
            self._draw(asked, SampleKind.TRIAL, verdict, lease, trials)
            return None
        if shadow:
            with self._lock:
                self._counts["shadow_hits"] += 1
                self._counts["shadow_hits_tokens"] += tokens
            if asked is None or not asked._drawn:
                lease.cancel()
                first = self.cache.spec.groups[0].name
                return Withheld(StateKind.COMPRESSED, first, f"{tokens} tokens are usable, and not used: in shadow")
            self._draw(asked, SampleKind.SHADOW, verdict, lease, {})
        elif asked is not None and asked._drawn:
            self._draw(asked, SampleKind.CANARY, verdict, lease, {})
        return None

    def tier_is_off(self) -> bool:
        """Whether nothing is to be loaded from the tier; the cache asks."""
        return self._tier in self._board.tripped

    def _off_for(self, keys: BlockKeys, lease: Lease) -> tuple[Scope, ...]:
        """Return the scopes that are off and that a hit depends on, the model's first."""
        off = self._board.tripped
        if off <= {self._model}:
            return tuple(off)
        wanted = [self._model, *(self._groups[name] for name in self._read_groups(lease))]
        if self._tier in off and self._may_be_loaded(keys, lease):
            assert self._tier is not None
            wanted.append(self._tier)
        return tuple(scope for scope in wanted if scope in off)

    def _withhold(self, lease: Lease, scope: Scope, tokens: int) -> Withheld:
        kind = StateKind.DISK if scope == self._tier else self._kinds.get(scope, StateKind.COMPRESSED)
        lease.fail(kind)
        with self._lock:
            self._withheld[scope] += 1
            self._withheld_tokens[scope] += tokens
        group = scope.name if scope in self._kinds else self.cache.spec.groups[0].name
        detail = f"{tokens} tokens are usable, and withheld: the breaker of {scope} is open ({self._board.why(scope)})"
        return Withheld(kind, group, detail)

    def _draw(self, asked: Asked, kind: SampleKind, verdict: SteeredVerdict, lease: Lease, trials: Eras) -> None:
        keys, groups = verdict._keys, self._read_groups(lease)
        loaded = self._tier is not None and self._may_be_loaded(keys, lease)
        depends = [self._model, *(self._groups[name] for name in groups)]
        if loaded and self._tier is not None:
            depends.append(self._tier)
        drawn = self._board.eras(depends)
        asked.samples.append(Sample(self, kind, keys, lease.tokens, groups, loaded, drawn, trials))
        with self._lock:
            self._counts["sampled"] += 1
            self._counts["trials"] += kind is SampleKind.TRIAL

    def _read_groups(self, lease: Lease) -> tuple[str, ...]:
        return tuple(name for name in self._groups if bool((lease.page_ids(name) >= 0).any()))

    def _may_be_loaded(self, keys: BlockKeys, lease: Lease) -> bool:
        """Whether the tier has a page of the lease too: where it came from is not kept."""
        for name, blocks in self.cache.inspect(keys).items():
            held = np.flatnonzero(lease.page_ids(name) >= 0)
            if any(block < len(blocks) and blocks[block].phase == "ready with copy" for block in held.tolist()):
                return True
        return False

    # -- what became of it -------------------------------------------------------------------------

    def _settle(
        self,
        sample: Sample,
        reused: Ends,
        recomputed: Ends,
        differing: Sequence[str],
        answer: Answer | None,
        loaded: bool | None,
    ) -> Outcome:
        judgement = self.compare.judge(reused, recomputed)
        attribution, blamed = Attribution(), tuple[Scope, ...]()
        if judgement.mismatch:
            attribution = attribute(sample.groups, recomputed, self.compare, differing=differing, answer=answer)
            blamed = self._blame(sample, attribution, sample.loaded if loaded is None else loaded)
        why = _sentence(sample, judgement)
        sample._open = False
        tripped = self._board.note(_with(sample, blamed, self._board), sample._trials, blamed, why)
        evicted = self._retire(sample) if blamed and self._evict else 0
        with self._lock:
            self._counts.update(compared=1, mismatches=judgement.mismatch, evicted_pages=evicted)
            self._by_end.update(judgement.ends)
            self._other_token.update(judgement.difference.other_token)
            self._blamed.update(blamed)
        return Outcome(judgement, attribution, blamed, tripped)

    def _blame(self, sample: Sample, attribution: Attribution, loaded: bool) -> tuple[Scope, ...]:
        """Lay a mismatch to the least that can be turned off: the tier, else groups, else the model.

        If it was not that, hits that do not depend on it go on to differ, and are laid to the next.
        """
        if loaded and self._tier is not None:
            return (self._tier,)
        if attribution.groups:
            return tuple(self._groups[name] for name in attribution.groups)
        return (self._model,)

    def _retire(self, sample: Sample) -> int:
        """Retire the whole prompt: what was computed behind a wrong state is wrong in every group."""
        with suppress(Closed, ArgumentError):  # closed, or the weights were replaced meanwhile: nothing is left of it
            return self.cache.evict(sample.keys)
        return 0

    def _abandon(self, sample: Sample) -> None:
        sample._open = False
        self._board.withdraw_trial(sample._trials)
        with self._lock:
            self._counts["abandoned"] += 1

    # -- steering ----------------------------------------------------------------------------------

    def trip(self, scope: Scope | None = None, *, why: str = "by hand") -> None:
        """Turn reuse off by hand.

        Parameters
        ----------
        scope : Scope, optional
            One of those in ``metrics().states``, such as ``Scope("group", "swa")``. Default: the model's.
        why : str, optional
            Told with each hit that is withheld.

        Raises
        ------
        ArgumentError
            Another scope.
        """
        if not isinstance(why, str):
            raise ArgumentError("why", "a str", type(why).__name__)
        self._board.trip(self._model if scope is None else scope, why)

    def reset(self, scope: Scope | None = None) -> int:
        """Turn reuse on again by hand, without trials.

        Parameters
        ----------
        scope : Scope, optional
            Default: every scope.

        Returns
        -------
        int
            Scopes that were off.

        Raises
        ------
        ArgumentError
            Another scope.
        """
        return self._board.reset(scope)

    def metrics(self) -> CanaryMetrics:
        """Read all counters."""
        states, trips = self._board.states(), self._board.trips()
        with self._lock:
            counts = self._counts
            pending = counts["sampled"] - counts["compared"] - counts["abandoned"]
            names = ("hits", "hits_tokens", "sampled", "compared", "abandoned", "trials", "mismatches", "shadow_hits")
            return CanaryMetrics(
                **{name: counts[name] for name in (*names, "shadow_hits_tokens", "evicted_pages")},
                pending=pending,
                mismatches_by_end={end: self._by_end[end] for end in ENDS},
                other_token={end: self._other_token[end] for end in ENDS},
                blamed=_named(self._blamed),
                trips=_named(trips),
                states={str(scope): state for scope, state in states.items()},
                resets=self._board.resets,
                withheld=_named(self._withheld),
                withheld_tokens=_named(self._withheld_tokens),
                false_alarm_bound=self.compare.false_alarm_bound,
            )

    def families(self) -> tuple[Family, ...]:
        """Return the counters as metrics, for ``hk.metrics.prometheus(cache).add(canary)``."""
        now = self.metrics()
        return canary_families(
            samples=now.compared,
            mismatches=now.mismatches_by_end,
            trips=now.trips,
            states=now.states,
            shadow={"hit": now.shadow_hits},
        )

    def close(self) -> None:
        """Watch no more: the cache hands out every hit again. Idempotent; samples under way may still be settled."""
        if not self._closed:
            self._closed = True
            self.cache._steering, self.cache._verdict_type = None, Verdict

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("canary", "a canary that watches", "one that was closed")


def _rate(value: object) -> float:
    return fraction("rate", value, zero=True)


def _with(sample: Sample, blamed: Sequence[Scope], board: Board) -> dict[Scope, int]:
    """Add to what a sample counts for the scope of a tier that only the engine knew of."""
    missing = [scope for scope in blamed if scope not in sample._drawn]
    return dict(sample._drawn) | board.eras(missing)


def _sentence(sample: Sample, judgement: Judgement) -> str:
    apart = judgement.difference
    return f"{sample.tokens} tokens reused: logits change by {apart.first:.3g} first, {apart.last:.3g} last"


def _named(counts: dict[Scope, int] | Counter[Scope]) -> dict[str, int]:
    return {str(scope): number for scope, number in counts.items()}
