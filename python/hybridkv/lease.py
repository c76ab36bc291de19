# SPDX-License-Identifier: Apache-2.0
"""A lease: pins on exactly the pages that a resume needs, and the only source of their ids and addresses."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hybridkv.deferred import checked_event
from hybridkv.errors import ArgumentError, LeaseExpired
from hybridkv.handles import Uncopied
from hybridkv.kinds import Check, StateKind
from hybridkv.verdict import Why

if TYPE_CHECKING:
    from hybridkv import _core
    from hybridkv.cache import HybridCache
    from hybridkv.keys import BlockKeys

RELEASED, _FAILED, WITHDRAWN = 1, 2, 3


class Lease(Uncopied):
    """The right to read the pages of a prefix until it is released.

    Use it in a ``with`` block: leaving it normally releases the lease, which counts the hit as effective; an
    exception cancels it. A lease that is garbage collected open is cancelled and reported as a leak
    (``ResourceWarning``, and ``leaks`` in the metrics). A lease that a fill has taken over stays readable, and its
    fill settles it.

    Every reader raises :class:`~hybridkv.errors.LeaseExpired` once the lease is released, failed or cancelled.
    """

    __slots__ = ("__weakref__", "_cache", "_core", "_formats", "_verify")

    def __init__(self, core: _core.Lease, cache: HybridCache, formats: list[bytes] | None, verify: int) -> None:
        self._core = core
        self._cache = cache
        self._formats = formats  # the reader's, which extend keeps to
        self._verify = verify

    @property
    def tokens(self) -> int:
        """Length the lease covers, in tokens."""
        return self._core.tokens

    @property
    def valid(self) -> bool:
        """Whether the lease is neither released, failed nor cancelled."""
        return self._core.valid

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
        if not self._core.continues(core):
            raise ArgumentError("keys", f"keys that begin with the lease's {self.tokens} tokens", keys)
        return self._core.extend(core, self._formats, self._verify)

    def release(self, after: object = None) -> None:
        """Settle the hit as effective: the continuation ran.

        Parameters
        ----------
        after : event, optional
            Pages stay pinned until it has passed. The lease is not valid from now on either way.

        Raises
        ------
        LeaseExpired
            It was released, failed or cancelled before.
        """
        self._check_own()
        self._settle(RELEASED, 0, after)

    def fail(self, why: Why | str | StateKind = "") -> None:
        """Settle it as FalseHit(INTEGRITY): the continuation did not work.

        Parameters
        ----------
        why : Why, StateKind or str, optional
            Counted under the kind that it names, COMPRESSED if it names none.

        Raises
        ------
        ArgumentError
            Something else than a reason.
        LeaseExpired
            It was released, failed or cancelled before.
        """
        if isinstance(why, Why) and isinstance(why.kind, StateKind):
            kind = why.kind
        elif isinstance(why, StateKind):
            kind = why
        elif isinstance(why, (str, Check)):
            kind = StateKind.COMPRESSED
        else:
            raise ArgumentError("why", "a Why, a StateKind or a text", why)
        self._check_own()
        self._settle(_FAILED, int(kind), None)

    def cancel(self) -> None:
        """Withdraw the hit: it counts as neither effective nor false.

        Raises
        ------
        LeaseExpired
            It was released, failed or cancelled before.
        """
        self._check_own()
        self._settle(WITHDRAWN, 0, None)

    def _check_own(self) -> None:
        if self._core.valid and self._core.taken:
            raise LeaseExpired("lease", "a lease that no fill has taken over", "one that its fill settles")

    def _settle(self, how: int, kind: int, after: object) -> None:
        event = checked_event(after)
        deferred = self._cache._deferred
        due = (event is None and not deferred) or deferred.due(self._core, event)
        self._core.settle(how, kind)
        if due:
            self._core.drop()
        else:
            deferred.add(self._core, event, self._core.drop)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._core.valid and not self._core.taken:
            self._settle(RELEASED if kind is None else WITHDRAWN, 0, None)

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is None or not core.valid:
            return
        core.settle(WITHDRAWN, 0)
        core.drop()
        self._cache._core.leak()
        warnings.warn("hybridkv: a lease was dropped without release, fail or cancel", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"Lease(tokens={self.tokens})" if self.valid else "Lease(expired)"
