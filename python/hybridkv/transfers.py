# SPDX-License-Identifier: Apache-2.0
"""Offload and restore: records of a prefix on their way to a tier and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from hybridkv import _core
from hybridkv.alignment.checks import told
from hybridkv.arguments import flag, length, members
from hybridkv.cost import Choice
from hybridkv.coverage import Prefix
from hybridkv.deferred import checked_event
from hybridkv.errors import ArgumentError, TierError
from hybridkv.gate import Gate
from hybridkv.handles import Uncopied
from hybridkv.holders import seconds
from hybridkv.keys import BlockKeys
from hybridkv.kinds import Check, StateKind
from hybridkv.restore_choice import choose_restore
from hybridkv.running import Running
from hybridkv.ticket import Ticket
from hybridkv.tiers import Damage, TierStatus
from hybridkv.transfer_results import LACKING, LOST, FlushResult, TransferResult
from hybridkv.verdict import Plan, Why

_FOREVER_S = 1e9

TIMEOUT_S = 10.0
"""Of each record of a transfer unless something else is said, from when it is sent."""

_LOOK_AGAIN_S = 0.05  # another thread may have taken the report that a wait was for
_LOOK_AT_EVENT_S = 0.001  # nothing tells of an event


class Transfer(Uncopied):
    """Records on their way. Made by :meth:`HybridCache.offload` and :meth:`HybridCache.restore`.

    Nothing moves on by itself: :meth:`done`, :meth:`result` and ``cache.poll()`` take what the tier reports, publish or
    give back pages, and send what waits. A transfer that is dropped goes on all the same, moved by ``cache.poll()``.
    """

    def __init__(self, cache: Tiered, core: _core.Transfer, kind: str, gate: Gate | None = None) -> None:
        self._cache = cache
        self._core = core
        self.kind = kind
        self._gate = gate

    def done(self) -> bool:
        """Whether every record is settled, and every page with it.

        Returns
        -------
        bool
        """
        if self._gate is not None:
            self._gate.look()
        if self.kind == "restore" and self._cache._deferred:  # others publish after events what it waits for
            with suppress(Exception):  # of an event: poll tells of it
                self._cache._deferred.apply_due()
        _core.poll_transfers(self._cache._core)
        return bool(self._core.state()[0])

    @property
    def progress(self) -> float:
        """Bytes that have moved, of all that were to move; 1.0 where there were none.

        What another request loads is no part of it: a restore that waits for such pages is not done at 1.0.
        """
        state = self._core.state()
        return 1.0 if state[6] == 0 else state[7] / state[6]

    def result(self, timeout: float | None = None) -> TransferResult:
        """Wait until it is done.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most. Default: as long as it takes. Each record has a deadline of its own, after which
            its status is known; but pages that the tier may still write or read are let go only when it lets go, and
            behind a store that hangs that may be never.

        Returns
        -------
        TransferResult

        Raises
        ------
        TimeoutError
            It is not done by then; it goes on.
        ArgumentError
            No number of seconds.
        CaptureError
            A stream captures, and something of the cache waits for an event: none is asked meanwhile.
        """
        self._cache._check_waiting()
        until = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        while not self.done():
            shut = self._gate is not None and self._gate.shut
            waits = self.kind == "restore" and bool(self._cache._deferred)
            most = _LOOK_AT_EVENT_S if shut or waits else _LOOK_AGAIN_S
            left = most if until is None else min(until - time.monotonic(), most)
            if left <= 0:
                raise TimeoutError(f"{self!r} is not done after {timeout} s")
            _core.wait_transfers(self._cache._core, left)
        return self._result()

    def cancel(self) -> None:
        """Send nothing more, and take back what the tier has not begun; the rest is still moved. Idempotent."""
        if self._gate is not None:
            self._gate.give_up()
        self._core.cancel()

    def _result(self) -> TransferResult:
        state = self._core.state()
        _, _, _, records, _, ok, _, moved, elsewhere, status, damage, group, block, left_out, device_error = state
        if not device_error and self._gate is not None:
            device_error = self._gate.error
        found = TierStatus(status)
        why = None
        if self.kind == "restore" and group >= 0 and found is not TierStatus.CANCELLED:
            if found is TierStatus.BUSY and elsewhere:
                why = self._why_elsewhere(group, block)
            else:
                why = self._why(found, Damage(damage), group, block, device_error)
        boundaries, missed, blocks, *_ = self._core.outcome()
        lengths = tuple(sorted(boundaries))
        unit = self._cache.spec.unit_tokens
        return TransferResult(
            found,
            lengths[-1] if lengths else 0,
            records,
            ok,
            moved,
            why,
            tuple(left_out),
            elsewhere,
            lengths,
            tuple(t for t in lengths if t % unit),
            {group.name: count for group, count in zip(self._cache.spec.groups, blocks, strict=True) if count},
            {length: LACKING[why] if why < 0 else TierStatus(why).name for length, why in sorted(missed)},
            device_error,
        )

    def _why(self, status: TierStatus, damage: Damage, group: int, block: int, device_error: str) -> Why:
        name = self._cache.spec.groups[group].name
        foreign = damage is Damage.FORMAT
        said = status.name.lower() if damage is Damage.NONE else f"{status.name.lower()} ({damage.name.lower()})"
        said = f"{said} ({device_error})" if device_error else said
        detail = f"the record of block {block} of {name!r} could not be loaded: {said}"
        check, code = (Check.ABI, "format") if foreign else (Check.INTEGRITY, "load")
        return Why(check, StateKind.DISK, name, block, code, detail)

    def _why_elsewhere(self, group: int, block: int) -> Why:
        lacking = self._cache.spec.groups[group]
        check = Check.COMPLETE if isinstance(lacking.coverage, Prefix) else Check.GROUPS
        detail = f"block {block} of {lacking.name!r} was left to another request, and is not there"
        return Why(check, lacking.kind, lacking.name, block, "filling", detail)

    def __repr__(self) -> str:
        state = self._core.state()
        return f"Transfer({self.kind}, {state[4]} of {state[3]} records settled, {self.progress:.0%})"


class Tiered(Running):
    """The part of :class:`~hybridkv.HybridCache` that moves prefixes to a tier and back."""

    def offload(
        self,
        keys: BlockKeys,
        *,
        boundaries: Sequence[int] | None = None,
        timeout_s: float = TIMEOUT_S,
        durable: bool = False,
        pinned: bool = False,
        after: object = None,
    ) -> Transfer:
        """Store a prefix in the tier: its history, and the states at boundaries.

        Whole units from the start, up to the first that is neither here nor in the tier; what is in the tier is not
        written again. Pages stay pinned until their record is stored, and usable all the while. Pages of pools on a
        CUDA device are copied to host memory first, on a stream of the cache's own.

        Parameters
        ----------
        keys : BlockKeys
            Keys of the sequence from its start.
        boundaries : sequence of int, optional
            Lengths in tokens whose windows and states are stored with it, tips among them: of a tip the partial pages
            of history too, their attested rows alone. Default: of all lengths that are usable now, those that the
            tier's policy of windows keeps (:class:`~hybridkv.KeepWindows`); a tip is an end to it.
        timeout_s : float
            Of each record, from when it is sent, in seconds.
        durable : bool
            Done only once all of it survives a power cut.
        pinned : bool
            The tier keeps it as long as it can. Of records that it has already nothing changes: they are not written
            again, and are pinned only where they were when they were first stored.
        after : event, optional
            Read no page before the event has passed, which :meth:`poll` and the transfer look at: for pages that were
            published before what writes them had run. What was published ``after=`` an event needs none. Where the
            event fails later, the transfer is cancelled and its result says so.

        Returns
        -------
        Transfer

        Raises
        ------
        ArgumentError
            No tier, keys of another unit or a slice, a boundary outside the keys or that neither is a multiple of
            ``spec.boundary_tokens`` nor ends inside a unit, a pool that is not bound, or to memory that is neither
            the host's nor a CUDA device's, a time that is none, no event.
        Closed
            The cache was closed.
        """
        core_keys = self._tier_keys(keys)
        if boundaries is None:
            chosen = self._kept_boundaries(core_keys, keys.tokens)
        else:
            chosen = sorted({length("boundaries", t) for t in members("boundaries", boundaries, "lengths in tokens")})
        event = checked_event(after)
        options = (duration(timeout_s), flag("durable", durable), flag("pinned", pinned))
        if event is None or event.query():
            return Transfer(self, _core.offload(self._core, core_keys, chosen, *options), "offload")
        core = _core.offload(self._core, core_keys, chosen, *options, gated=True)
        return Transfer(self, core, "offload", Gate(self._deferred, core, event))

    def flush(self, timeout: float | None = None) -> FlushResult:
        """Wait until everything that was handed to the tier before survives a power cut.

        What a write-back cache holds back is stored first, whatever its pools have free; then this waits for every
        offload that was begun, and for the tier to say that what it took is durable.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most. Default: as long as it takes.

        Returns
        -------
        FlushResult
            What was stored since the flush before, and what the tier would not have.

        Raises
        ------
        TimeoutError
            It is not done by then. What was handed over goes on.
        TierError
            Something that was handed over since the flush before is not durable, for another reason than room, write
            admission, a block below that is not there or its own cancellation: ``got`` says how many records came to
            what. Or a prefix that ``tier_writes=`` was to store could not be handed over, as
            where a pool is not bound; it is not tried again. Each is told once.
        ArgumentError
            No tier, no number of seconds.
        Closed
            The cache was closed.
        CaptureError
            As :meth:`Transfer.result`.
        """
        self._check_usable()
        if self.tier is None:
            raise ArgumentError("tier", "a cache made with a tier", None)
        self._check_waiting()
        status, result = self._flush(timeout)
        lost = ", ".join(f"{count} {name}" for name, count in result.refused.items() if TierStatus[name] in LOST)
        unsent = self._tier_writes.take_unsent()
        if lost or unsent or status is not TierStatus.OK:
            got = f"sync {status.name}, records {lost or 'none lost'}{unsent}"
            raise TierError("flush", "every record stored and synced", got)
        return result

    def _flush(self, timeout: float | None) -> tuple[TierStatus, FlushResult]:
        """Flush, and say what the tier's own flush came to; what was lost is among what was refused."""
        assert self.tier is not None
        limit = _FOREVER_S if timeout is None else duration(timeout, "timeout")
        with suppress(Exception):  # of an event: poll tells of it
            self._deferred.apply_due()
        self._tier_writes.store_all(self)
        transfer = Transfer(self, _core.flush(self._core, limit), "flush")
        try:
            status = transfer.result(timeout).status
        except TimeoutError:
            transfer.cancel()
            status = TierStatus.TIMEOUT
        if status is TierStatus.TIMEOUT:
            raise TimeoutError(f"what was handed to the tier is not durable after {timeout} s")
        *_, records, moved, failed = transfer._core.outcome()
        came_to = {TierStatus(index).name: count for index, count in enumerate(failed) if count}
        return status, FlushResult(records, moved, came_to, self.tier.durable)

    def _offload_all(self, keys: _core.KeyChain) -> _core.Transfer:
        """Store a prefix as :meth:`offload` would by default."""
        return _core.offload(self._core, keys, self._kept_boundaries(keys, keys.tokens), TIMEOUT_S, False, False)

    def _offload_new(self, keys: _core.KeyChain, since: int, resumed: int) -> _core.Transfer:
        """Store what is new in a prefix of which nothing below `since` tokens is: work that does not grow with it.

        Boundaries are those that the policy keeps of all lengths beyond `since`; the core leaves out what lacks states.
        The end of the sequence, or the longest boundary below it that is complete, is an end to the policy; and so was
        `resumed`, which a tier that waits for a second touch would else never be asked for again.
        """
        assert self.tier is not None
        step, tokens, windows = self.spec.boundary_tokens, keys.tokens, self.tier.windows
        aligned = range(since // step * step + step, tokens + 1, step)
        ends = list(windows.kept(self.spec, [(t, True) for t in aligned]))[::-1] if windows.ends else []
        if windows.ends and keys.rest_tokens:
            ends.insert(0, tokens)
        kept = list(windows.kept(self.spec, [(t, False) for t in aligned]))
        if resumed and (resumed % step == 0 or self._names_tip(keys, resumed)):
            kept.extend(windows.kept(self.spec, [(resumed, True)]))
        return _core.offload_new(self._core, keys, since, kept, ends, TIMEOUT_S)

    def _names_tip(self, keys: _core.KeyChain, tokens: int) -> bool:
        """Tell whether a length ends inside a unit whose tokens the keys know."""
        unit = self.spec.unit_tokens
        return bool(keys.has_tokens and tokens % unit and tokens // unit >= keys.first_tip_unit)

    def _written(self, keys: _core.KeyChain, since: int, resumed: int) -> None:
        """Store what was published where the cache does so by itself; see the base."""
        if self.tier is not None:
            self._tier_writes.note(self, keys, since, resumed)

    def poll(self) -> int:
        """Apply what is due after events, take what the tier reports, and store what is due.

        Returns
        -------
        int
            Effects applied, and records settled.
        """
        done = super().poll()
        if self.tier is not None:
            self._tier_writes.store_due(self)
        return done

    def restore(
        self,
        plan: Plan,
        *,
        ticket: Ticket | None = None,
        prefetch: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Transfer:
        """Load what a plan names from the tier; once it is done, match again.

        Parameters
        ----------
        plan : Plan
            ``verdict.plan`` of a match of this cache whose remedy is RESTORE.
        ticket : Ticket, optional
            Take the pages under this request's right to memory: for rolling states that needs one admitted with
            ``states=1`` or more. Default: pages that no request was promised.
        prefetch : bool
            Behind all loads that somebody waits for.
        timeout_s : float
            Of each record, from when it is sent, in seconds.

        Returns
        -------
        Transfer
            Every page is published only after its record was verified, all pages of a record at once. What is damaged,
            torn, of another format or gone is never published: ``result().why`` says so, and so does the next match.

        Raises
        ------
        ArgumentError
            A plan that loads nothing or is of another cache, a ticket of another cache, a pool as in :meth:`offload`,
            one that its kernels cannot take or that is read-only (:meth:`alignment`).
        OutOfPages
            No room; everything is as it was.
        Closed
            The cache was closed, or the ticket was.
        """
        self._check_deciding()
        if not isinstance(plan, Plan) or plan._keys is None or not plan.restore_tokens:
            raise ArgumentError("plan", "the plan of a verdict whose remedy is RESTORE", plan)
        if plan._cache is not self:
            raise ArgumentError("plan", "a plan of this cache", plan)
        if ticket is not None and (not isinstance(ticket, Ticket) or ticket._cache is not self):
            raise ArgumentError("ticket", "a Ticket of this cache", ticket)
        for group in dict.fromkeys(name for name, _ in plan.loads):  # bound anew since the plan was made
            if wrong := told(self.alignment(group), None):
                raise ArgumentError("plan", f"a pool of {group!r} that its kernels can take, and loads", wrong)
        core_keys = self._tier_keys(plan._keys)
        right = None if ticket is None else ticket._core
        rest = (duration(timeout_s), flag("prefetch", prefetch))
        core = self._with_room(lambda: _core.restore(self._core, core_keys, plan.restore_tokens, right, *rest))
        return Transfer(self, core, "restore")

    def prefetch(self, keys: BlockKeys, *, timeout_s: float = TIMEOUT_S) -> Transfer | None:
        """Begin to load what a queued request will need, behind all loads that somebody waits for.

        Counts no look-up. A tier that has no index in memory (a :class:`~hybridkv.TierAdapter`) knows of what was
        stored, read or asked for since it was opened; a call asks it for the rest, and a later one finds: first history
        and aligned boundaries, then what lists tips behind them, then the tips.

        Parameters
        ----------
        keys : BlockKeys
            Keys of the sequence from its start.
        timeout_s : float
            As in :meth:`restore`.

        Returns
        -------
        Transfer or None
            None where the tier has nothing that would make more usable, or computing is quicker (``cache.cost``).

        Raises
        ------
        ArgumentError, OutOfPages, Closed
            As :meth:`restore`.
        """
        self._check_deciding()
        self._ask_tier(keys, timeout_s)
        plan = self.restorable(keys)
        return None if plan is None else self.restore(plan, prefetch=True, timeout_s=timeout_s)

    def restorable(self, keys: BlockKeys) -> Plan | None:
        """Tell what a restore would make usable beyond what is. Counts no look-up, pins nothing, does no I/O.

        Parameters
        ----------
        keys : BlockKeys
            Keys of the sequence from its start.

        Returns
        -------
        Plan or None
            For :meth:`restore`; None where the tier is not known to have anything that would help, the cache's cost
            model says that computing is quicker, or a canary turned the tier off.

        Raises
        ------
        ArgumentError
            No tier, keys of another unit or a slice.
        Closed
            The cache was closed.
        """
        core_keys = self._tier_keys(keys)
        if self._steering is not None and self._steering.tier_is_off():
            return None
        choice = None
        tokens = _core.restorable(self._core, core_keys, keys.tokens)
        if tokens and self.cost is not None:
            usable = max((t for t in self._core.boundaries(core_keys, keys.tokens, None)), default=0)
            choice = self._choose_restore(keys, keys.tokens, int(usable), None)
            tokens = tokens if choice is None else choice.candidate.tokens
            tokens = 0 if tokens <= usable else tokens
        if not tokens:
            return None
        names = [group.name for group in self.spec.groups]
        loads = _core.restore_loads(self._core, core_keys, tokens)
        named = tuple((names[group], block) for group, block in loads)
        return Plan(loads=named, restore_tokens=tokens, choice=choice, _keys=keys, _cache=self)

    def _choose_restore(self, keys: BlockKeys, limit: int, usable: int, exactly: int | None) -> Choice | None:
        """Let the cost model choose among restores and computing; None where there is nothing to restore."""
        assert self.tier is not None and self.cost is not None
        options = _core.restore_options(self._core, keys._core, limit)
        if exactly is not None:
            options = [option for option in options if option[0] == exactly]
        if not options:
            return None
        return choose_restore(self.cost, self.spec, self.tier.name, options, usable, max(exactly or 0, keys.tokens))

    def _ask_tier(self, keys: BlockKeys, timeout_s: float) -> bool:
        """Ask a tier that has no index for what it is not known to have; say whether there was such a thing.

        What it does not have stays unknown, so that this is true of every prompt that goes beyond what is stored.
        """
        return bool(_core.ask_tier(self._core, self._tier_keys(keys), duration(timeout_s)))

    def _kept_boundaries(self, keys: _core.KeyChain, tokens: int) -> list[int]:
        """Return the usable lengths whose states are stored: an end is where the sequence ends, as far as it can."""
        assert self.tier is not None
        step = self.spec.boundary_tokens
        usable = [int(t) for t in self._core.boundaries(keys, tokens + 1, None)]
        ends = [(t, t % step != 0 or t == usable[-1]) for t in usable]
        return list(self.tier.windows.kept(self.spec, ends))

    def _tier_keys(self, keys: BlockKeys) -> _core.KeyChain:
        if self.tier is None:
            self._check_usable()
            raise ArgumentError("tier", "a cache made with a tier", None)
        return self._whole_keys(keys)


def duration(timeout_s: float, name: str = "timeout_s") -> float:
    """Return a time-out in seconds, or refuse what is none."""
    value = seconds(name, timeout_s)
    if not 0 < value < _FOREVER_S:
        raise ArgumentError(name, "seconds, above 0 and below 1e9", timeout_s)
    return value
