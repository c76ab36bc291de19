# SPDX-License-Identifier: Apache-2.0
"""A ticket: the right of a running request to memory, and the pages it holds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hybridkv.arguments import flag, length
from hybridkv.deferred import checked_event
from hybridkv.errors import ArgumentError, Closed, SpecError
from hybridkv.handles import Uncopied
from hybridkv.keys import readable_ids
from hybridkv.lease import WITHDRAWN, failed_kind
from hybridkv.slots import Slots
from hybridkv.stream_capture import refuse_capture

if TYPE_CHECKING:
    from hybridkv import _core
    from hybridkv.graph import Eager
    from hybridkv.holders import Size
    from hybridkv.keys import BlockKeys
    from hybridkv.kinds import StateKind
    from hybridkv.lease import Lease
    from hybridkv.running import Running
    from hybridkv.verdict import Why

Copies = dict[str, npt.NDArray[np.int32]]
"""Copies to run, by group: [[n, 3]] int32 source page, target page, rows from the first; 0 rows: the whole page."""


class Ticket(Uncopied):
    """A running request, from :meth:`HybridCache.admit <hybridkv.HybridCache.admit>`.

    Attributes
    ----------
    request : object
        What it was admitted as.
    kept_lengths : tuple of int
        Lengths whose states the cache's :class:`~hybridkv.CheckpointPolicy` keeps, were all ``max_tokens`` computed:
        end steps there, or ask for their states. Empty without a policy.
    groups : tuple of str
        The groups that it uses.

    Notes
    -----
    One owner at a time. Groups are of two classes. Most have a page for each of their blocks, taken by :meth:`grow`
    when the block's first token is grown. A group whose state is replaced at every step (``Checkpoint``), or whose
    page holds fewer rows than its block, has one live page, and a page more for each length whose state is kept.

    A ticket that is garbage collected open is reported as a leak; its pages are kept out of the pools until
    :meth:`HybridCache.reset <hybridkv.HybridCache.reset>`, since somebody may still write them.
    """

    __slots__ = ("__weakref__", "_cache", "_core", "_label", "_lease", "groups", "kept_lengths", "request")

    def __init__(
        self,
        core: _core.Ticket,
        cache: Running,
        request: object,
        lease: Lease | None,
        kept: tuple[int, ...],
        groups: tuple[str, ...],
    ) -> None:
        self.kept_lengths = kept
        self.groups = groups
        self._core = core
        self._cache = cache
        self._lease = lease  # readable until it is settled
        self.request = request
        self._label = request_label(request)
        cache._holders.name("ticket", core, self._label, partial(_size, groups=len(cache.spec.groups)))

    @property
    def tokens(self) -> int:
        """Tokens whose rows are written: what was advanced, or matched."""
        return self._core.tokens

    @property
    def grown_tokens(self) -> int:
        """Tokens that have their pages, at least `tokens`."""
        return self._core.grown_tokens

    @property
    def max_tokens(self) -> int:
        """Most tokens it may grow to."""
        return self._core.max_tokens

    @property
    def handle(self) -> int:
        """What :meth:`HybridCache.step <hybridkv.HybridCache.step>` names it by."""
        return self._core.handle

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._core.closed

    @property
    def eager(self) -> Eager | None:
        """Why no captured graph fits it as it is grown now; None where one does, or no width was given."""
        return self._cache._eager(self._core)

    # -- memory ------------------------------------------------------------------------------------

    def grow(self, tokens: int, *, states: Sequence[int] = ()) -> Slots:
        """Take pages for more tokens, contents not yet known; all or none. May evict what nobody holds.

        Parameters
        ----------
        tokens : int
            How many more; 0 changes nothing by itself.
        states : sequence of int
            Lengths not asked for before, multiples of the unit in (``tokens``, ``grown_tokens`` after the call],
            whose states the step will write into pages of their own, named again in :meth:`advance`.

        Returns
        -------
        Slots

        Raises
        ------
        OutOfPages
            A pool has not enough room, or more than ``max_tokens`` (pool "max_tokens"). A ticket's own share is always
            there once leases and fills that have no ticket have ended: try again.
        ArgumentError
            No number, or a state that cannot be asked for.
        Closed
            The ticket was closed, or failed.
        """
        refuse_capture("ticket", "pages that are taken")
        more, named = length("tokens", tokens), _lengths(states)
        core, cache = self._core, self._cache
        start = core.grown_tokens
        if cache._deferred:
            cache._deferred.apply_due(core)
        pages = cache._with_room(partial(core.grow, more, list(named)))
        live = [core.live_page(number) for number in range(len(pages))]
        return Slots(start, start + more, named, pages, live, cache._index, self.eager)

    def rewind(self, tokens: int, *, after: object = None) -> None:
        """Take back grown tokens that were not advanced: rejected drafts, with every state asked for beyond.

        Parameters
        ----------
        tokens : int
            How many.
        after : event, optional
            Their pages stay out of the pools until it has passed.

        Raises
        ------
        Busy
            More than were grown and not advanced: what is advanced may be published.
        ArgumentError, Closed
            As :meth:`grow`.
        """
        refuse_capture("ticket", "pages that are given back")
        less, event = length("tokens", tokens), checked_event(after)
        core, deferred = self._core, self._cache._deferred
        due = (event is None and not deferred) or deferred.due(core, event)
        parked = core.rewind(less)
        if not parked:
            return
        effect = partial(core.give_back_parked, parked)
        if due:
            effect()
        else:
            deferred.add(core, event, effect)

    # -- progress ----------------------------------------------------------------------------------

    def advance(
        self,
        computed_tokens: int,
        tokens: npt.ArrayLike | None = None,
        *,
        keys: BlockKeys | None = None,
        states: Sequence[int] = (),
        wrote: Mapping[str, npt.ArrayLike] | None = None,
        after: object = None,
    ) -> Copies:
        """Note that rows are written: complete blocks are named and published, windows slide.

        The first advance beyond a lease settles it: the hit was effective. A state is published only where it was in
        memory: at lengths of `states`, and at `computed_tokens` where nothing beyond was grown, or taken back since the
        last :meth:`grow`. The first writer of a block wins; later ones keep their pages private, counted as duplicates.

        Parameters
        ----------
        computed_tokens : int
            The new total, at most ``grown_tokens``.
        tokens : array of int, optional
            Exactly the ids of the tokens from the old total to the new one.
        keys : BlockKeys, optional
            Instead: keys of the sequence, of at least that many tokens.
        states : sequence of int
            Lengths named in :meth:`grow` whose states the step wrote.
        wrote : mapping of str to array, optional
            Pages that the step wrote, by group: checked to be this ticket's pages of that group.
        after : event, optional
            Nothing is published or retired before it has passed; the totals move at once.

        Returns
        -------
        dict of str to numpy.ndarray
            [[n, 3]] int32 (live page, new page, rows; 0 rows: the whole page) to copy before the next step. What they
            keep becomes visible at the next advance, at close, or when `after` has passed, which is to come after
            the copies.

        Raises
        ------
        ArgumentError
            A total out of range, a wrong number of ids, keys of another sequence, a state never asked for.
        SpecError
            A page of `wrote` that is not this ticket's page of that group.
        Closed
            The ticket was closed, or failed.
        """
        refuse_capture("ticket", "blocks that are published")
        if tokens is not None and keys is not None:
            raise ArgumentError("keys", "tokens or keys", "both")
        core, cache = self._core, self._cache
        total, named, event = length("computed_tokens", computed_tokens), list(_lengths(states)), checked_event(after)
        chain = None if keys is None else cache._whole_keys(keys)
        if wrote is not None:
            self._check_wrote(wrote)
        deferred = cache._deferred
        due = (event is None and not deferred) or deferred.due(core, event)
        before = core.tokens
        ids = None if tokens is None else readable_ids(tokens)
        copies = core.advance(total, ids, chain, named, due)
        if due:
            core.settle_advance(total, before)
        else:
            deferred.add(core, event, partial(core.settle_advance, total, before if event is None else total))
        names = cache.spec.groups
        return {names[number].name: rows for number, rows in copies.items()}

    def copies(self, group: str) -> npt.NDArray[np.int32]:
        """Return the copies to run before the first write, where the request starts from shared pages.

        Parameters
        ----------
        group : str
            Name of a group of the spec.

        Returns
        -------
        numpy.ndarray
            [[n, 3]] int32: shared page, own page, rows from the first; 0 rows: the whole page. Empty once the ticket
            has advanced. Of a block that the lease ends in, there once :meth:`grow` took the own page.

        Raises
        ------
        ArgumentError
            Unknown group.
        Closed
            The ticket was closed.
        """
        number = self._cache._group_index(group)
        self._check_open()
        return self._core.copies(number)

    # -- the end -----------------------------------------------------------------------------------

    def fail(self, why: Why | str | StateKind = "") -> None:
        """Say that the continuation did not work: nothing more of this request is published. Then close it.

        A fill made under it (``cache.reserve(ticket=)``) has its own end: abort it, if its pages are not good either.

        Parameters
        ----------
        why : Why, StateKind or str, optional
            An open lease is settled as FalseHit(INTEGRITY) under the kind that it names, COMPRESSED if it names none.

        Raises
        ------
        ArgumentError
            Something else than a reason.
        Closed
            The ticket was closed, or failed before.
        """
        refuse_capture("ticket", "its failure")
        self._core.fail(failed_kind(why))

    def close(self, *, keep_tip: bool = True, after: object = None) -> None:
        """End the request: what was published stays in the cache, everything else goes back.

        An open lease is withdrawn.

        Parameters
        ----------
        keep_tip : bool
            Publish the partial last unit, so that the next turn can start there.
        after : event, optional
            Work in flight may use the pages until it has passed.

        Raises
        ------
        Closed
            It was closed before.
        """
        core, cache, deferred = self._core, self._cache, self._cache._deferred
        refuse_capture("ticket", "its end")
        tip, event = flag("keep_tip", keep_tip), checked_event(after)
        self._check_open()
        if event is None:
            deferred.drop_broken(core)  # the way out where an earlier event cannot be asked any more
        due = (event is None and not deferred) or deferred.due(core, event)
        core.close()
        era = cache._era

        def effect() -> None:
            core.end(tip)
            if cache.tier is not None and not era.over:
                cache._written(core.chain(), core.start_tokens, core.start_tokens)

        if due:
            effect()
        else:
            deferred.add(core, event, effect)

    # -- looking -----------------------------------------------------------------------------------

    def page_ids(self, group: str) -> npt.NDArray[np.int32]:
        """Return the pages held of a group: those of the lease, own ones, and published ones.

        Parameters
        ----------
        group : str
            Name of a group of the spec.

        Returns
        -------
        numpy.ndarray
            [[own blocks that begin below grown_tokens]] int32, -1 where none is held.

        Raises
        ------
        ArgumentError
            Unknown group.
        Closed
            The ticket was closed.
        """
        return self._core.page_ids(self._cache._group_index(group))

    def handouts(self, group: str) -> npt.NDArray[np.uint64]:
        """Return the hand-out counts of those pages, uint64 [[own blocks]]; 0 where none is held.

        Parameters
        ----------
        group : str
            Name of a group of the spec.

        Raises
        ------
        ArgumentError, Closed
            As :meth:`page_ids`.
        """
        return self._core.handouts(self._cache._group_index(group))

    def addresses(self, group: str) -> npt.NDArray[np.uint64]:
        """Return where those pages lie, uint64 [[layers, own blocks]]; 0 where none is held.

        Parameters
        ----------
        group : str
            Name of a group whose pool is bound.

        Raises
        ------
        ArgumentError, Closed
            As :meth:`page_ids`; the pool is not bound.
        """
        number = self._cache._group_index(group)
        if group not in self._cache._bound:
            raise ArgumentError("group", "a group whose pool is bound", group)
        return self._core.addresses(number)

    def live_page(self, group: str) -> int:
        """Return the page that every step overwrites; -1 where the group has a page for each block.

        Parameters
        ----------
        group : str
            Name of a group of the spec.

        Raises
        ------
        ArgumentError, Closed
            As :meth:`page_ids`.
        """
        number = self._cache._group_index(group)
        self._check_open()
        return self._core.live_page(number)

    def _end_era(self) -> bool:
        """Fail it since its weights were replaced, and withdraw the hit; False where it ended before."""
        core, lease = self._core, self._lease
        if core.closed or core.ended:
            return False
        if lease is not None and lease._core.valid:
            lease._core.settle(WITHDRAWN, 0)
        with suppress(Closed):  # it failed before
            core.fail(0)
            return True
        return False

    def _check_open(self) -> None:
        if self._core.closed:
            raise Closed("ticket", "an open ticket", "a closed one")

    def _check_wrote(self, wrote: Mapping[str, npt.ArrayLike]) -> None:
        if not isinstance(wrote, Mapping):
            raise ArgumentError("wrote", "a mapping of group names to page ids", wrote)
        for name, pages in wrote.items():
            own = set(self.page_ids(name).tolist()) | {self.live_page(name)}
            array = np.asarray(pages)
            if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
                raise ArgumentError(f"wrote[{name}]", "page ids [[n]], integers", pages)
            strange = [page for page in array.tolist() if page < 0 or page not in own]
            if strange:
                raise SpecError(f"wrote[{name}]", f"pages of {name} that this ticket holds", strange)

    def __del__(self) -> None:
        core: Any = getattr(self, "_core", None)
        if core is None or core.closed:
            return
        cache = self._cache
        tokens, pages = _size(core, len(cache.spec.groups))[0]  # type: ignore[index]
        cache._holders.leaked("ticket", self._label, (tokens, pages))
        core.abandon()
        if cache._deferred.waits(core):  # its pins stay until what was launched for it is over
            cache._deferred.add(core, None, core.lose, quiet=True)
        else:
            core.lose()
        warnings.warn("hybridkv: a ticket was dropped without close; its pages are quarantined", ResourceWarning, 2)

    def __repr__(self) -> str:
        state = "closed" if self._core.closed else f"{self.tokens}/{self.grown_tokens} of {self.max_tokens} tokens"
        return f"Ticket({self.request!r}, {state})"


def request_label(request: object) -> str:
    """Return what a request is called in reports: its text, or its type's name where it has none."""
    try:
        return str(request) or "request"
    except Exception:
        return type(request).__name__


def _lengths(states: Sequence[int]) -> tuple[int, ...]:
    try:
        listed = tuple(length("states", each) for each in states)
    except TypeError:
        raise ArgumentError("states", "lengths in tokens", states) from None
    if len(set(listed)) != len(listed):
        raise ArgumentError("states", "different lengths", list(listed))
    return listed


def _size(core: _core.Ticket, groups: int) -> tuple[Size, bool] | None:
    if core.ended:
        return None
    return (core.tokens, core.held_pages()), core.closed
