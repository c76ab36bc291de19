# SPDX-License-Identifier: Apache-2.0
"""A lease: pins on exactly the pages that a resume needs, and the only source of their ids and addresses."""

from __future__ import annotations

import warnings
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkv.deferred import checked_event
from hybridkv.errors import ArgumentError, LeaseExpired
from hybridkv.handles import Uncopied
from hybridkv.holders import Named, Size, label
from hybridkv.kinds import Check, StateKind
from hybridkv.stream_capture import refuse_capture
from hybridkv.verdict import Why

if TYPE_CHECKING:
    from hybridkv import _core
    from hybridkv.cache import HybridCache
    from hybridkv.identity_change import Era
    from hybridkv.keys import BlockKeys

RELEASED, _FAILED, WITHDRAWN = 1, 2, 3


class Lease(Uncopied):
    """The right to read the pages of a prefix until it is released.

    Use it in a ``with`` block: leaving it normally releases the lease, which counts the hit as effective; an
    exception cancels it. A lease that is garbage collected open is cancelled and reported as a leak
    (``ResourceWarning``, and ``leaks`` in the metrics). A lease that a fill has taken over stays readable, and its
    fill settles it.

    Every reader raises :class:`~hybridkv.errors.LeaseExpired` once the lease is released, failed, cancelled or
    revoked, or the weights that its pages were computed with are replaced (:meth:`HybridCache.update_identity`).

    A lease whose reader is elsewhere (another process, another machine) is lent: it has an owner's name and a
    deadline (:meth:`lend`), and it can be revoked (:meth:`HybridCache.revoke`). Pins are counted, not timed: a
    deadline ends the right to read, and the pages stay pinned until every event given for work that reads them
    (:meth:`launched`, ``after=``) has passed.
    """

    __slots__ = ("__weakref__", "_cache", "_core", "_era", "_formats", "_loan", "_verify")

    def __init__(
        self, core: _core.Lease, cache: HybridCache, formats: list[bytes] | None, verify: int, era: Era
    ) -> None:
        self._core = core
        self._cache = cache
        self._era = era  # of its match: it ends with it
        self._formats = formats  # the reader's, which extend keeps to
        self._verify = verify
        self._loan: Named | None = None  # once it is lent

    @property
    def tokens(self) -> int:
        """Length the lease covers, in tokens."""
        if self._loan is not None or self._era.over:
            self._check_loan()
        return self._core.tokens

    @property
    def valid(self) -> bool:
        """Whether the lease is neither released, failed, cancelled nor revoked, and not past its deadline."""
        if self._loan is not None or self._era.over:
            with suppress(LeaseExpired):
                self._check_loan()
        return self._core.valid

    @property
    def owner(self) -> str | None:
        """Name of who holds the lease; None where it was never lent."""
        return None if self._loan is None else self._loan.terms[0]

    @property
    def deadline_s(self) -> float | None:
        """When its time is up, on the clock of the cache; None where it has no deadline."""
        return None if self._loan is None else self._loan.terms[1]

    def page_ids(self, group: str) -> npt.NDArray[np.int32]:
        """Return the pages held of a group.

        Parameters
        ----------
        group : str
            Name of a group of the spec.

        Returns
        -------
        numpy.ndarray
            [[blocks]] int32, one entry for each own block below ``tokens``, the partial block of a tip included;
            -1 where the resume needs none.

        Raises
        ------
        ArgumentError
            Unknown group.
        LeaseExpired
            The lease is not valid.
        """
        if self._loan is not None or self._era.over:
            self._check_loan()
        return self._core.page_ids(self._cache._group_index(group))

    def addresses(self, group: str) -> npt.NDArray[np.uint64]:
        """Return where those pages lie, valid exactly as long as the lease.

        Parameters
        ----------
        group : str
            Name of a group whose pool is bound.

        Returns
        -------
        numpy.ndarray
            [[layers, blocks]] uint64, one row for each bound array; 0 where no page is held.

        Raises
        ------
        ArgumentError
            Unknown group, or its pool is not bound.
        LeaseExpired
            The lease is not valid.
        """
        if self._loan is not None or self._era.over:
            self._check_loan()
        index = self._cache._group_index(group)
        if group not in self._cache._bound:
            raise ArgumentError("group", "a group whose pool is bound", group)
        return self._core.addresses(index)

    def handouts(self, group: str) -> npt.NDArray[np.uint64]:
        """Return the hand-out counts of those pages, for checks outside the process or on a device.

        Parameters
        ----------
        group : str
            Name of a group of the spec.

        Returns
        -------
        numpy.ndarray
            [[blocks]] uint64; 0 where no page is held.

        Raises
        ------
        ArgumentError
            Unknown group.
        LeaseExpired
            The lease is not valid.
        """
        if self._loan is not None or self._era.over:
            self._check_loan()
        return self._core.handouts(self._cache._group_index(group))

    def extend(self, keys: BlockKeys) -> int:
        """Make the lease longer if more of the sequence has become usable; counts as no look-up.

        It reads with the formats and the verification of its match. A length that would need a replay is not
        taken, since only a verdict carries the plan for it: ask :meth:`HybridCache.match`.

        Parameters
        ----------
        keys : BlockKeys
            Keys of the same sequence from its start, at least as long as the lease.

        Returns
        -------
        int
            ``tokens`` now; never smaller than before. On failure nothing has changed.

        Raises
        ------
        ArgumentError
            Keys of another unit, a slice, or of another sequence.
        LeaseExpired
            The lease is not valid.
        """
        self._check_own()
        core = self._cache._whole_keys(keys)
        self._cache._check_deciding()
        if not self._core.continues(core):
            raise ArgumentError("keys", f"keys that begin with the lease's {self.tokens} tokens", keys)
        return self._core.extend(core, self._formats, self._verify)

    def lend(self, owner: str, *, deadline_s: float | None = None, after: object = None) -> None:
        """Say who reads the pages and until when. Lending again renews the deadline, or names another owner.

        From its deadline on the lease is not valid, whether or not anybody has revoked it by then: the hit is
        withdrawn, and every call of the reader raises LeaseExpired, its release too. What it read is then not to
        be used, whatever the bytes say.

        Parameters
        ----------
        owner : str
            Name for :meth:`HybridCache.revoke`, :meth:`HybridCache.live` and the report of leaks.
        deadline_s : float, optional
            A point in time on the cache's clock (``time.monotonic`` unless another was given), later than now.
            Default: no deadline; an earlier one ends to apply.
        after : event, optional
            As in :meth:`launched`: it passes once the owner has read everything.

        Raises
        ------
        ArgumentError
            No name, no time after now, no event.
        LeaseExpired
            The lease is not valid, or a fill has taken it over.

        Examples
        --------
        >>> import time
        >>> import hybridkv as hk
        >>> spec = hk.CacheSpec.homogeneous(layers=2, page_bytes=64)
        >>> cache = hk.HybridCache(spec, blocks=128)
        >>> keys = hk.block_keys(range(100), spec.unit_tokens, identity=spec.identity)
        >>> cache.insert(keys[:4])
        >>> lease = cache.match(keys).lease
        >>> lease.lend("decode-3", deadline_s=time.monotonic() + 30)
        >>> [(holder.owner, holder.pages) for holder in cache.revoke(owner="decode-3")]
        [('decode-3', 4)]
        >>> lease.valid
        False
        """
        self._check_own()
        refuse_capture("lease", "terms of a lease")
        holders = self._cache._holders
        owner, deadline_s, event = label(owner), holders.deadline(deadline_s), checked_event(after)
        if event is None:
            self._check_valid()
        else:
            self.launched(event)
        if self._loan is None:
            self._loan = holders.name("lease", self._core, owner, _size)
        holders.lend(self._loan, owner, deadline_s)

    def launched(self, after: object) -> None:
        """Say that work that reads the pages was launched: they stay pinned until the event has passed.

        That holds however the lease ends: released, failed, cancelled, revoked or garbage collected. Where another
        thread may revoke the lease, call it before the launch, with an object whose ``query`` is False until the work
        is done; pages read without such an event may be handed out again once the lease was revoked.

        Parameters
        ----------
        after : event
            It passes once the work is done.

        Raises
        ------
        ArgumentError
            No event.
        LeaseExpired
            The lease is not valid: do not launch, or do not use what the work gives. Or a fill or a ticket has taken
            it over: the event is then for their ``after=``.
        """
        self._check_own()
        event = checked_event(after)
        if event is None:
            raise ArgumentError("after", "an object with query() -> bool", after)
        deferred = self._cache._deferred
        with suppress(Exception):  # of an earlier event: its pins stay, and poll tells of it
            deferred.apply_due(self._core)
        # First the event, then the look: a revocation on another thread that ends the lease before the look sees it.
        waiting = deferred.hold(self._core, event)
        if not self._core.valid:
            deferred.withdraw(waiting)
            self._check_valid()

    def release(self, after: object = None) -> None:
        """Settle the hit as effective: the continuation ran.

        Parameters
        ----------
        after : event, optional
            Pages stay pinned until it has passed. The lease is not valid from now on either way.

        Raises
        ------
        LeaseExpired
            It was released, failed, cancelled or revoked before, or its deadline has passed.
        """
        self._check_ending()
        self._settle(RELEASED, 0, after)

    def fail(self, why: Why | str | StateKind = "", *, after: object = None) -> None:
        """Settle it as FalseHit(INTEGRITY): the continuation did not work.

        Parameters
        ----------
        why : Why, StateKind or str, optional
            Counted under the kind that it names, COMPRESSED if it names none.
        after : event, optional
            As in :meth:`release`.

        Raises
        ------
        ArgumentError
            Something else than a reason, no event.
        LeaseExpired
            As :meth:`release`.
        """
        kind = failed_kind(why)
        self._check_ending()
        self._settle(_FAILED, kind, after)

    def cancel(self, *, after: object = None) -> None:
        """Withdraw the hit: it counts as neither effective nor false.

        Parameters
        ----------
        after : event, optional
            As in :meth:`release`.

        Raises
        ------
        LeaseExpired
            As :meth:`release`.
        """
        self._check_ending()
        self._settle(WITHDRAWN, 0, after)

    def _check_loan(self) -> None:
        """Raise where a revocation, the deadline or other weights have ended it; asked only where one can have."""
        if self._era.over:
            if self._core.revoke():
                self._cache._holders.drop(self._core)
            raise LeaseExpired("lease", "a lease of the weights in use", "one from before they were replaced")
        if self._loan is not None:
            self._cache._holders.check(self._loan)

    def _check_valid(self) -> None:
        self._check_loan()
        _ = self._core.tokens  # raises where the lease has ended

    def _check_own(self) -> None:
        if self._loan is not None or self._era.over:
            self._check_loan()
        if self._core.valid and self._core.taken:
            raise LeaseExpired("lease", "a lease that nothing has taken over", "one that its fill or ticket settles")

    def _check_ending(self) -> None:
        self._check_own()
        refuse_capture("lease", "pages that are given back")

    def _settle(self, how: int, kind: int, after: object) -> None:
        core, deferred = self._core, self._cache._deferred
        event, passed = None, True
        if after is not None:
            event = checked_event(after)
            passed = event is None or event.query()  # raises before anything has changed
        core.settle(how, kind)  # raises where somebody else has ended it
        if deferred:  # asked when the lease has ended: work launched until then is seen
            with suppress(Exception):  # of an earlier event: its pins stay, and poll tells of it
                deferred.apply_due(core)
            passed = passed and not deferred.waits(core)
        if passed:
            core.drop()
        else:
            deferred.add(core, event, core.drop)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if self._loan is not None or self._era.over:
                self._check_loan()  # whoever was revoked on the way must not take what it read for good
            if self._core.valid and not self._core.taken:
                self._check_ending()
                self._settle(RELEASED, 0, None)
        elif self._core.valid and not self._core.taken:
            # Revoked since, or in a capture: the exception that ends the block, and the capture, is the one to tell.
            with suppress(LeaseExpired):
                self._settle(WITHDRAWN, 0, None)

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is None or not core.valid:
            return
        holders, loan = self._cache._holders, self._loan
        if self._era.over and core.revoke():  # it ended with its weights: nobody had to end it
            holders.drop(core)
            return
        holders.leaked("lease", None if loan is None else loan.terms[0], core.holds())
        core.settle(WITHDRAWN, 0)
        holders.drop(core)
        self._cache._core.leak()
        warnings.warn("hybridkv: a lease was dropped without release, fail or cancel", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"Lease(tokens={self.tokens})" if self.valid else "Lease(expired)"


def failed_kind(why: object) -> int:
    """Return the kind that a failure counts under: the one it names, COMPRESSED if it names none.

    Raises
    ------
    ArgumentError
        Something else than a reason.
    """
    if isinstance(why, Why) and isinstance(why.kind, StateKind):
        return int(why.kind)
    if isinstance(why, StateKind):
        return int(why)
    if isinstance(why, (str, Check)):
        return int(StateKind.COMPRESSED)
    raise ArgumentError("why", "a Why, a StateKind or a text", why)


def _size(core: _core.Lease) -> tuple[Size, bool] | None:
    held = core.holds()
    return None if held is None else (held, not core.valid)
