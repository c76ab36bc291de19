# SPDX-License-Identifier: Apache-2.0
"""Running requests: the part of the cache that admits and steps them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cmp_to_key, partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hybridkv import _core
from hybridkv.arguments import count, integer, length
from hybridkv.cache_base import CacheBase
from hybridkv.checkpoints import EVERY_BOUNDARY
from hybridkv.deferred import Event, checked_event
from hybridkv.errors import ArgumentError, NotAdmitted, OutOfPages
from hybridkv.formats import KvFormat
from hybridkv.graph import Eager
from hybridkv.inspection import own_block_tokens
from hybridkv.keys import block_keys
from hybridkv.kinds import REFUSALS
from hybridkv.lease import Lease
from hybridkv.page_budget import worst_pages
from hybridkv.ticket import Ticket

_Result = TypeVar("_Result")
_Arrays = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any]  # of a step, in its order

# Who gives way first, in the order of the core's numbers.
_PREEMPT_ORDERS = ("youngest", "largest")


class Running(CacheBase):
    """The part of :class:`~hybridkv.HybridCache` that admits requests and steps them."""

    def admit(
        self,
        request: object,
        max_tokens: int,
        *,
        lease: Lease | None = None,
        states: int = 0,
        prompt_tokens: int | None = None,
        matched_tokens: int | None = None,
        groups: Collection[str] | None = None,
        formats: Mapping[str, KvFormat] | None = None,
    ) -> Ticket:
        """Give a request the right to memory: its worst case fits beside that of every other.

        Parameters
        ----------
        request : object
            A label, kept for reports.
        max_tokens : int
            Most tokens it may grow to, prompt and answer.
        lease : Lease, optional
            Taken over: the request starts at ``lease.tokens``. The first advance beyond it settles the hit as
            effective, a close before that withdraws it. Without one the request starts at 0, and its keys are of
            ``spec.identity`` unless the first advance gives keys.
        states : int
            Most lengths whose states are asked for in :meth:`Ticket.grow` at a time.
        prompt_tokens : int, optional
            Tokens of the prompt, for a cache with a :class:`~hybridkv.CheckpointPolicy`. Default: none is kept for it.
        matched_tokens : int, optional
            What the match said was known, where it gave no lease. Default: as the lease's match said.
        groups : collection of str, optional
            Groups that the request uses: of the others it takes no page and publishes nothing, a partial last unit not
            at all unless they are ``rebuildable``, so that who needs them finds a false hit. For a request that never
            runs a part of the model: no speculation, no images. Default: every group.
        formats : mapping of str to KvFormat, optional
            The writer's format of each group. Default: the spec's.

        Returns
        -------
        Ticket

        Raises
        ------
        NotAdmitted
            With ``reason``: "requests", "combinations", "watermark", "pages" (not now), "never" (``retry`` is False),
            "lease" (it would fit without what its own lease pins). The lease is cancelled, so that whoever waits
            holds nothing.
        ArgumentError
            A length that is none or not beyond the lease's, a lease of another cache or taken over before, no groups
            or unknown ones.
        LeaseExpired
            The lease is not valid.
        Closed
            The cache was closed.

        Notes
        -----
        Progress: may lock. The youngest request does not wait for others: it is refused at once.
        """
        self._check_deciding()
        most = length("max_tokens", max_tokens)
        if most == 0 and lease is None:
            raise ArgumentError("max_tokens", "1 or more", most)
        asked = integer("states", states, "a number of lengths, 0 or more")
        if not 0 <= asked < 2**32:
            raise ArgumentError("states", "a number of lengths, 0 or more", states)
        prompt = 0 if prompt_tokens is None else length("prompt_tokens", prompt_tokens)
        matched = None if matched_tokens is None else length("matched_tokens", matched_tokens)
        listed = self._format_list(formats)
        used = tuple(self._index) if groups is None else self._used(groups)
        if lease is not None:
            if not isinstance(lease, Lease) or lease._cache is not self:
                raise ArgumentError("lease", "a Lease of this cache", lease)
            lease._check_own()
        if self._deferred:
            with suppress(Exception):  # of somebody else's event: poll tells of it
                self._deferred.apply_due()
        held = None if lease is None else lease._core
        if held is not None and not held.take():
            raise ArgumentError("lease", "a lease that nothing else has taken over", lease)
        start = 0
        try:
            start = 0 if lease is None else lease.tokens
            keep, lengths = self._kept(start, prompt, most, matched, held)
            waits = held is not None and self._deferred.waits(held)
            mask = sum(1 << self._index[name] for name in used)
            found = _core.admit(self._core, self._no_tokens(), most, asked, held, listed, keep, waits, mask)
        except BaseException:
            if held is not None:
                held.give_back()
            raise
        if isinstance(found, tuple):
            if held is not None:
                self._holders.drop(held)
            raise self._refusal(most, start, asked, *found)
        ticket = Ticket(found, self, request, lease, lengths, used)
        self._tickets[ticket.handle] = ticket
        if held is not None and self._deferred:
            self._deferred.hand_over(held, found)  # work announced on the lease holds up what the ticket gives back
        return ticket

    def step(
        self,
        tickets: npt.NDArray[np.int64],
        grow: npt.NDArray[np.int32],
        computed: npt.NDArray[np.int64],
        out_pages: npt.NDArray[np.int32],
        *,
        tokens: npt.NDArray[np.int32] | npt.NDArray[np.uint32] | None = None,
        starts: npt.NDArray[np.int64] | None = None,
        copies: npt.NDArray[np.int32] | None = None,
        status: npt.NDArray[np.int32] | None = None,
        eager: npt.NDArray[np.int32] | None = None,
        after: object = None,
    ) -> npt.NDArray[np.int32]:
        """Advance and grow many requests at once, into arrays of the caller; nothing is allocated in the core.

        For each request first :meth:`Ticket.advance`, for the step that is over, then :meth:`Ticket.grow`, for the
        one to come. All arrays are C-contiguous and of exactly these types.

        Parameters
        ----------
        tickets : numpy.ndarray
            [[requests]] int64, ``ticket.handle``.
        grow : numpy.ndarray
            [[requests]] int32, tokens to grow.
        computed : numpy.ndarray
            [[requests]] int64, new totals; -1, or the total there was: not advanced.
        out_pages : numpy.ndarray
            [[requests, groups, n]] int32, written: the new pages of each group with a page for each block, -1 behind.
        tokens : numpy.ndarray, optional
            [[ids]] int32 or uint32, the new ids of all requests, one after another.
        starts : numpy.ndarray, optional
            [[requests + 1]] int64, where each request's ids begin in `tokens`, and the end.
        copies : numpy.ndarray, optional
            [[m, 4]] int32, written: group number, live page, new page, rows (0: the whole page), to run before the
            next step; -1 behind. Where it is absent or full no state is kept.
        status : numpy.ndarray, optional
            [[requests]] int32, written and returned. Default: a new array.
        eager : numpy.ndarray, optional
            [[requests]] int32, written: number of the first group whose block table is wider now than graphs were
            captured for (:meth:`set_graph_widths`), -1 where none is. Whatever it says, `status` tells what was done.
        after : event, optional
            As in :meth:`Ticket.advance`.

        Returns
        -------
        numpy.ndarray
            [[requests]] int32: 0 done; 1 out of pages: advanced, not grown; 2 no such ticket, or failed; 3 a total,
            number of ids or id that cannot be: nothing done; 4 `out_pages` too narrow: advanced, not grown.

        Raises
        ------
        ArgumentError
            An array of another type, shape or layout; nothing was done.
        Closed
            The cache was closed.
        """
        self._check_deciding()
        if status is None:
            status = np.empty(np.shape(tickets)[:1], np.int32)
        if after is None and not self._deferred:
            _core.step(self._core, tickets, grow, computed, out_pages, tokens, starts, copies, status, eager, True)
        else:
            event = checked_event(after)
            arrays = (tickets, grow, computed, out_pages, tokens, starts, copies, status, eager)
            self._step_later(event, arrays, tickets, status)
        return status

    # -- captured graphs ---------------------------------------------------------------------------

    def set_graph_widths(self, widths: Mapping[str, int] | None) -> None:
        """Say with which widths of block tables graphs were captured.

        A request that grows beyond one is granted its pages all the same and reported: as
        :class:`~hybridkv.graph.Eager` on what :meth:`Ticket.grow <hybridkv.Ticket.grow>` returns and on the ticket, by
        group in :meth:`step`, and in ``metrics().eager["width"]`` once each time it goes beyond: rewound below and
        grown again it counts again. A request that is beyond without growing (it started at a lease, or the widths were
        changed) counts at its next grow.

        Parameters
        ----------
        widths : mapping of str to int, or None
            Own blocks by group: as many entries as :meth:`Ticket.page_ids <hybridkv.Ticket.page_ids>` may have. Groups
            that are not named have any width. None: there are no graphs. Replaces what was said before.

        Raises
        ------
        ArgumentError
            No mapping, an unknown group, a width that is no number of blocks, a group with a live page (it has no
            table); nothing has changed.
        Closed
            The cache was closed.

        Notes
        -----
        As :meth:`bind`, it needs that no other thread is in a call.
        """
        self._check_deciding()
        if widths is not None and not isinstance(widths, Mapping):
            raise ArgumentError("widths", "None, or a mapping of group names to numbers of own blocks", widths)
        listed = [0] * len(self._index)
        for name, width in (widths or {}).items():
            listed[self._group_index(name)] = count(f"widths[{name}]", width)
        self._core.set_graph_widths(listed)
        self._graph_widths = {name: int(width) for name, width in (widths or {}).items()}

    @property
    def graph_widths(self) -> dict[str, int]:
        """Widths of block tables that graphs were captured with, own blocks by group; groups without one left out."""
        return dict(self._graph_widths)

    def _eager(self, core: _core.Ticket) -> Eager | None:
        number = core.eager
        if number < 0:
            return None
        group = self.spec.groups[number]
        needed = -(-core.grown_tokens // own_block_tokens(group))
        return Eager("width", group.name, self._graph_widths[group.name], needed)

    # -- preemption --------------------------------------------------------------------------------

    def preemption_order(self) -> list[Ticket]:
        """Return the running requests, whoever should give way first in front.

        Close one and match it again later: what it published is found.

        Returns
        -------
        list of Ticket
            In the order of ``Admission(preempt=)``: the youngest first, or who holds most.
        """
        how = _PREEMPT_ORDERS.index("youngest" if self.admission is None else self.admission.preempt)
        running = [ticket for ref in self._tickets.valuerefs() if (ticket := ref()) is not None and not ticket.closed]

        def compare(a: Ticket, b: Ticket) -> int:
            return -1 if a._core.preempted_before(b._core, how) else 1

        return sorted(running, key=cmp_to_key(compare))

    def _step_later(self, event: Event | None, arrays: _Arrays, tickets: npt.NDArray[np.int64], status: Any) -> None:
        """Step, and let each ticket's effects wait for the event, behind those that wait already."""
        deferred = self._deferred
        if not isinstance(tickets, np.ndarray) or tickets.dtype != np.int64 or tickets.ndim != 1:
            raise ArgumentError("tickets", "int64 [[requests]]", tickets)
        with suppress(Exception):  # of somebody else's event: poll tells of it
            deferred.apply_due()
        passed = event is None or event.query()
        named = [self._tickets.get(handle) for handle in np.asarray(tickets).tolist()]
        before = [0 if ticket is None else ticket.tokens for ticket in named]
        _core.step(self._core, *arrays, False)
        for ticket, old, state in zip(named, before, status.tolist(), strict=True):
            if ticket is None or state in (2, 3) or ticket.tokens == old:
                continue
            core = ticket._core
            if passed and not deferred.waits(core):
                core.settle_advance(core.tokens, old)
            else:
                until = old if event is None else core.tokens
                deferred.add(core, event, partial(core.settle_advance, core.tokens, until))

    def _with_room(self, take: Callable[[], _Result]) -> _Result:
        """Take pages, once more with what is due after events, or let go by a tier, where there are too few."""
        try:
            return take()
        except OutOfPages:
            if not self._poll_transfers() and not self._deferred:
                raise
        with suppress(Exception):  # of somebody else's event: poll tells of it
            self._deferred.apply_due()
        return take()

    def _kept(
        self, start: int, prompt: int, most: int, matched: int | None, lease: _core.Lease | None
    ) -> tuple[tuple[bool, bool, int, int, int], tuple[int, ...]]:
        """Return the boundaries that a request keeps, as the core takes them and as lengths."""
        if self.checkpoints is None:
            return EVERY_BOUNDARY, ()
        step = self.spec.boundary_tokens
        if matched is None:
            matched = start if lease is None else lease.matched_tokens
        lengths = self.checkpoints.lengths(start, prompt, most, matched, step)
        return self.checkpoints._numbers(start, prompt, matched, step), tuple(lengths)

    def _used(self, groups: Collection[str]) -> tuple[str, ...]:
        """Return the groups named, in the order of the spec."""
        named = () if isinstance(groups, (str, bytes)) or not isinstance(groups, Iterable) else groups
        try:
            numbers = {self._group_index(name) for name in named}
        except TypeError:  # an array without dimensions says that it can be iterated
            numbers = set()
        if not numbers:
            raise ArgumentError("groups", "None, or the names of one or more groups", groups)
        return tuple(name for name, number in self._index.items() if number in numbers)

    def _no_tokens(self) -> _core.KeyChain:
        if self._root is None:
            self._root = block_keys((), self.spec.unit_tokens, identity=self.spec.identity)._core
        return self._root

    def _refusal(self, tokens: int, start: int, states: int, reason: int, group: int) -> NotAdmitted:
        name, asked = REFUSALS[reason], f"a request of up to {tokens} tokens"
        if group < 0:
            return NotAdmitted("request", f"room in {name}", asked, reason=name, retry=name != "never")
        pool = self.spec.groups[group].name
        step = 0 if self.admission is None else self.admission.step_tokens or 0
        needed = worst_pages(self.spec, tokens, start_tokens=start, step_tokens=step or None, states=states)[pool]
        expected = {
            "never": f"at most the {self.pages[pool]} pages of {pool!r}",
            "lease": f"a lease that leaves room in {pool!r} for the request",
        }
        asked += f", which may hold {needed} pages or more"
        if step == 0:
            asked += " (fewer where hk.Admission(step_tokens=) says how much is in flight at most)"
        return NotAdmitted(
            "request",
            expected.get(name, f"room in {name} of {pool!r}"),
            asked,
            reason=name,
            retry=name != "never",
            pool=pool,
            needed=needed,
        )
