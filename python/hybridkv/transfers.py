# SPDX-License-Identifier: Apache-2.0
"""Offload and restore: records of a prefix on their way to a tier and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hybridkv import _core
from hybridkv.arguments import flag, length
from hybridkv.cost import Choice
from hybridkv.errors import ArgumentError
from hybridkv.handles import Uncopied
from hybridkv.holders import seconds
from hybridkv.keys import BlockKeys
from hybridkv.kinds import Check, StateKind
from hybridkv.restore_choice import choose_restore
from hybridkv.running import Running
from hybridkv.ticket import Ticket
from hybridkv.tiers import Damage, TierStatus
from hybridkv.verdict import Plan, Why

TIMEOUT_S = 10.0
"""Of each record of a transfer unless something else is said, from when it is sent."""

_LOOK_AGAIN_S = 0.05  # another thread may have taken the report that a wait was for


@dataclass(frozen=True)
class TransferResult:
    """What became of a transfer.

    Attributes
    ----------
    status : TierStatus
        OK, or that of the first record that failed; CANCELLED.
    tokens : int
        Length that a restore made usable, where ``status`` is OK; the longest boundary that an offload stored.
    records, stored : int
        Records that were to move, and that did.
    bytes : int
        Bytes of those that did.
    why : Why or None
        Of a restore that failed: INTEGRITY where the record was damaged, torn, gone or could not be read, and so says
        the next match until the block is computed again; also where the tier was out of reach or too slow: then the
        next match names the restore again. ABI where it is of another format. Kind DISK.
    left_out : tuple of int
        Of an offload: boundaries that have no complete state in memory, and so no record. Their history may be stored:
        it can be read and not resumed.
    elsewhere : int
        Of a restore: pages that another request was already loading or computing.
    """

    status: TierStatus
    tokens: int
    records: int
    stored: int
    bytes: int
    why: Why | None
    left_out: tuple[int, ...]
    elsewhere: int

    @property
    def ok(self) -> bool:
        """Whether everything that was to move did."""
        return self.status is TierStatus.OK


class Transfer(Uncopied):
    """Records on their way. Made by :meth:`HybridCache.offload` and :meth:`HybridCache.restore`.

    Nothing moves on by itself: :meth:`done`, :meth:`result` and ``cache.poll()`` take what the tier reports, publish or
    give back pages, and send what waits. A transfer that is dropped goes on all the same, moved by ``cache.poll()``.
    """

    def __init__(self, cache: Tiered, core: _core.Transfer, kind: str) -> None:
        self._cache = cache
        self._core = core
        self.kind = kind

    def done(self) -> bool:
        """Whether every record is settled, and every page with it.

        Returns
        -------
        bool
        """
        _core.poll_transfers(self._cache._core)
        return bool(self._core.state()[0])

    @property
    def progress(self) -> float:
        """Bytes that have moved, of all that were to move; 1.0 where there were none."""
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
        """
        until = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        while not self.done():
            left = _LOOK_AGAIN_S if until is None else min(until - time.monotonic(), _LOOK_AGAIN_S)
            if left <= 0:
                raise TimeoutError(f"{self!r} is not done after {timeout} s")
            _core.wait_transfers(self._cache._core, left)
        return self._result()

    def cancel(self) -> None:
        """Send nothing more, and take back what the tier has not begun; the rest is still moved. Idempotent."""
        self._core.cancel()

    def _result(self) -> TransferResult:
        _, _, tokens, records, _, ok, _, moved, elsewhere, status, damage, group, block, left_out = self._core.state()
        found = TierStatus(status)
        why = None
        if self.kind == "restore" and group >= 0 and found is not TierStatus.CANCELLED:
            why = self._why(found, Damage(damage), group, block)
        return TransferResult(found, tokens, records, ok, moved, why, tuple(left_out), elsewhere)

    def _why(self, status: TierStatus, damage: Damage, group: int, block: int) -> Why:
        name = self._cache.spec.groups[group].name
        foreign = damage is Damage.FORMAT
        said = status.name.lower() if damage is Damage.NONE else f"{status.name.lower()} ({damage.name.lower()})"
        detail = f"the record of block {block} of {name!r} could not be loaded: {said}"
        check, code = (Check.ABI, "format") if foreign else (Check.INTEGRITY, "load")
        return Why(check, StateKind.DISK, name, block, code, detail)

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
    ) -> Transfer:
        """Store a prefix in the tier: its history, and the states at boundaries.

        Whole units from the start, up to the first that is neither here nor in the tier; what is in the tier is not
        written again. Pages stay pinned until their record is stored, and usable all the while.

        Parameters
        ----------
        keys : BlockKeys
            Keys of the sequence from its start. A partial last unit is not stored: the boundary below it is.
        boundaries : sequence of int, optional
            Lengths in tokens whose windows and states are stored with it. Default: of all lengths that are usable now,
            those that the tier's policy of windows keeps (:class:`~hybridkv.KeepWindows`).
        timeout_s : float
            Of each record, from when it is sent, in seconds.
        durable : bool
            Done only once all of it survives a power cut.
        pinned : bool
            The tier keeps it as long as it can.

        Returns
        -------
        Transfer

        Raises
        ------
        ArgumentError
            No tier, keys of another unit or a slice, a boundary that is no multiple of ``spec.boundary_tokens`` inside
            the keys, a group whose pool is not bound to host memory, a time that is none.
        Closed
            The cache was closed.
        """
        core_keys = self._tier_keys(keys)
        if boundaries is None:
            chosen = self._kept_boundaries(core_keys, keys.tokens)
        else:
            chosen = sorted({length("boundaries", t) for t in boundaries})
        options = (duration(timeout_s), flag("durable", durable), flag("pinned", pinned))
        return Transfer(self, _core.offload(self._core, core_keys, chosen, *options), "offload")

    def _offload(self, keys: _core.KeyChain, tokens: int) -> _core.Transfer:
        """Store a prefix as :meth:`offload` would by default."""
        return _core.offload(self._core, keys, self._kept_boundaries(keys, tokens), TIMEOUT_S, False, False)

    def _written(self, keys: _core.KeyChain) -> None:
        """A prefix was published: store it where the cache does so by itself."""
        if self.tier is not None:
            self._tier_writes.note(self, keys)

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
            A plan that loads nothing or is of another cache, a ticket of another cache, a pool not bound to host
            memory.
        OutOfPages
            No room; everything is as it was.
        Closed
            The cache was closed, or the ticket was.
        """
        self._check_usable()
        if not isinstance(plan, Plan) or plan._keys is None or not plan.restore_tokens:
            raise ArgumentError("plan", "the plan of a verdict whose remedy is RESTORE", plan)
        if plan._cache is not self:
            raise ArgumentError("plan", "a plan of this cache", plan)
        if ticket is not None and (not isinstance(ticket, Ticket) or ticket._cache is not self):
            raise ArgumentError("ticket", "a Ticket of this cache", ticket)
        core_keys = self._tier_keys(plan._keys)
        right = None if ticket is None else ticket._core
        rest = (duration(timeout_s), flag("prefetch", prefetch))
        core = self._with_room(lambda: _core.restore(self._core, core_keys, plan.restore_tokens, right, *rest))
        return Transfer(self, core, "restore")

    def prefetch(self, keys: BlockKeys, *, timeout_s: float = TIMEOUT_S) -> Transfer | None:
        """Begin to load what a queued request will need, behind all loads that somebody waits for.

        Counts no look-up. A tier that has no index in memory (a :class:`~hybridkv.TierAdapter`) knows of what was
        stored, read or asked for since it was opened; the first call asks it for the rest, and a later one finds.

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
            For :meth:`restore`; None where the tier is not known to have anything that would help, or the cache's cost
            model says that computing is quicker.

        Raises
        ------
        ArgumentError
            No tier, keys of another unit or a slice.
        Closed
            The cache was closed.
        """
        core_keys = self._tier_keys(keys)
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
        usable = [int(t) for t in self._core.boundaries(keys, tokens + 1, None) if t % step == 0]
        return list(self.tier.windows.kept(self.spec, [(t, t == usable[-1]) for t in usable]))

    def _tier_keys(self, keys: BlockKeys) -> _core.KeyChain:
        if self.tier is None:
            self._check_usable()
            raise ArgumentError("tier", "a cache made with a tier", None)
        return self._whole_keys(keys)


def duration(timeout_s: float) -> float:
    """Return a time-out in seconds, or refuse what is none."""
    value = seconds("timeout_s", timeout_s)
    if not 0 < value < 1e9:
        raise ArgumentError("timeout_s", "seconds, above 0", timeout_s)
    return value
