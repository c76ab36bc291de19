# SPDX-License-Identifier: Apache-2.0
"""The cache: decides, proves and counts the reuse of prefixes of a model with any mix of attention."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from hybridkv import _core
from hybridkv.arguments import length, verify_mode
from hybridkv.cache_view import CacheView
from hybridkv.declared import GroupSelection
from hybridkv.errors import ArgumentError, LeaseExpired
from hybridkv.fill import Fill, reserved
from hybridkv.formats import KvFormat
from hybridkv.holders import Holder, label, seconds
from hybridkv.identity import Identity
from hybridkv.identity_change import IdentityChange, changed_identity
from hybridkv.keys import BlockKeys
from hybridkv.lease import Lease
from hybridkv.stream_capture import is_capturing
from hybridkv.ticket import Ticket, request_label
from hybridkv.transfers import Tiered
from hybridkv.verdict import Verdict

_NO_DROP = 0  # the default itself: no other zero skips the check of its type


class HybridCache(CacheView, Tiered):
    """Block table, state of every block, and leases over the pools of an engine.

    Parameters
    ----------
    spec : CacheSpec
        The groups of the model.
    blocks : int
        Descriptors: keyed units that can be known at a time, tips and their directories included.
    pages : mapping of str to int, optional
        Pages of each group's pool. Default: ``blocks * unit_tokens // block_tokens``, at least 1.
    verify : {"off", "sampled", "all"}, optional
        Content verification of each match unless it says otherwise; see :meth:`match`.
    clock : callable, optional
        Returns seconds that never go back, for deadlines of leases alone. Default: ``time.monotonic``.
    admission : Admission, optional
        Limits on who :meth:`admit` lets in. Default: that the worst case of every running request fits.
    checkpoints : CheckpointPolicy, optional
        Which boundaries of running requests keep their states. Default: every one that a step ends at.
    eviction : {"usability", "lru", "none"}, optional
        What makes room where pages are short: what makes nothing usable first, the least recently released first, or
        nothing (``OutOfPages``; its user evicts). By usability, of what was used about as long ago (within a factor of
        two) pages that the tier has too go before those that are only here.
    tier : Tier, optional
        Where prefixes are stored and looked for: :meth:`offload`, :meth:`restore`. The cache has it for itself until
        it is closed, and polls it.
    tier_writes : {"none", "through", "back"}, optional
        Store prefixes in the tier without being asked: never; when a fill is published whole or a ticket is closed; or,
        in :meth:`poll`, once pages are short, those first that were written longest ago.
    tier_skew : {"apart", "refuse"}, optional
        What to do where the tier knows a manifest of another writer whose records this spec cannot read as they are:
        keep apart, and count what was lost by it (``metrics().tier_skew``), or refuse to be made with it.
    staging_bytes : int, optional
        Page-locked host memory in which pages of pools on a CUDA device stop over on their way to the tier and back;
        more only for a record that is larger. Taken when such a pool is bound, given back with the cache. Default:
        128 MiB.
    cost : CostModel, optional
        Chooses among the lengths that a restore would make usable, and computing what is missing, by time: bandwidth of
        the tier by its ``name``, and rate of computing. One that knows bandwidths must know that of this tier.
        ``verdict.plan.choice`` says what it chose and why. Default: the longest is restored. It can be set anew:
        ``cache.cost = CostModel.measured(observations)``.

    Raises
    ------
    ArgumentError
        Naming the field.
    TierError
        ``tier_skew="refuse"`` and such a writer: ``differences`` has all of them.

    Notes
    -----
    Any thread may call; a lease and a fill have one owner at a time. ``match`` is lock-free in the core: a
    thread stopped anywhere delays no other.

    Examples
    --------
    >>> import hybridkv as hk
    >>> spec = hk.CacheSpec.homogeneous(layers=2, page_bytes=64)
    >>> cache = hk.HybridCache(spec, blocks=128)
    >>> keys = hk.block_keys(range(100), spec.unit_tokens, identity=spec.identity)
    >>> cache.insert(keys[:4])
    >>> verdict = cache.match(keys)
    >>> verdict.outcome.name, verdict.usable_tokens
    ('REUSABLE', 64)
    >>> with verdict.lease as lease:
    ...     lease.page_ids("kv").tolist()
    [0, 1, 2, 3]
    """

    # -- asking ------------------------------------------------------------------------------------

    def match(
        self,
        keys: BlockKeys,
        *,
        limit: int | None = None,
        formats: Mapping[str, KvFormat] | None = None,
        drop_tokens: int = 0,
        verify: str | None = None,
    ) -> Verdict:
        """Decide how much of a prefix can be reused, and pin it.

        Parameters
        ----------
        keys : BlockKeys
            Keys of the sequence from its start.
        limit : int, optional
            Lengths are below it, in tokens. Default: ``keys.tokens``, since one token must be computed.
        formats : mapping of str to KvFormat, optional
            The reader's format of each group. Default: the spec's.
        drop_tokens : int, optional
            Draft head: the answer is the largest usable length at or below (largest usable) - drop_tokens.
        verify : {"off", "sampled", "all"}, optional
            Compare content fingerprints under the pin. "sampled" looks at one page and 64 KiB at most, host pools
            only; "all" at every page of the lease. A page that differs is quarantined. Default: the cache's.

        Returns
        -------
        Verdict
            MISS, FALSE_HIT (never an exception; ``why`` says why) or REUSABLE (``lease`` is pinned).

        Raises
        ------
        ArgumentError
            Keys of another unit, a slice, unknown group, limit or drop that is no length.
        Closed
            The cache was closed.

        Notes
        -----
        Progress: lock-free; looks again at most 8 times where something changed before the pin.
        """
        if self._closed or not isinstance(keys, BlockKeys) or is_capturing():
            self._any_keys(keys)
            self._check_deciding()  # the one or the other raises
        listed = None if formats is None else self._format_list(formats)
        mode = self._verify if verify is None else verify_mode(verify)
        era = self._era
        if era.refused:
            era.check(keys.identity)
        verdict: Verdict = _core.match(
            self._verdict_type,
            self,
            self._core,
            keys,
            keys._core,
            -1 if limit is None else length("limit", limit),
            formats,
            listed,
            0 if drop_tokens is _NO_DROP else length("drop_tokens", drop_tokens),
            -1,
            mode,
        )
        if verdict._held is not None:
            verdict.lease = Lease(verdict._held, self, listed, mode, era)
            if self._steering is not None:
                verdict._settle(self._steering)
        elif self.tier is not None:
            self._skew.note(verdict)
        return verdict

    def match_at(
        self,
        keys: BlockKeys,
        tokens: int,
        *,
        of: Verdict | None = None,
        formats: Mapping[str, KvFormat] | None = None,
        verify: str | None = None,
    ) -> Verdict:
        """Resume at a boundary agreed among ranks, or not at all. Counts as a look-up.

        Parameters
        ----------
        keys : BlockKeys
            Keys of the sequence from its start.
        tokens : int
            The length; 0 where nothing was agreed, which is a MISS or FALSE_HIT.
        of : Verdict, optional
            The verdict the length comes from; its lease is withdrawn.
        formats, verify
            As in :meth:`match`.

        Returns
        -------
        Verdict
            REUSABLE at exactly ``tokens``, or not; ``matched_tokens`` is at most ``tokens``.

        Raises
        ------
        ArgumentError
            As :meth:`match`; a length not below ``keys.tokens``.
        Closed
            The cache was closed.
        """
        era = self._era
        core_keys = self._whole_keys(keys)
        self._check_deciding()
        tokens = length("tokens", tokens)
        if tokens >= max(keys.tokens, 1):
            raise ArgumentError("tokens", f"a length below {keys.tokens}", tokens)
        if of is not None and (not isinstance(of, Verdict) or of._cache is not self):
            raise ArgumentError("of", "a Verdict of this cache", of)
        mode = self._verify if verify is None else verify_mode(verify)
        listed = self._format_list(formats)
        if of is not None and of.lease is not None and of.lease.valid:
            _withdraw(of.lease)
        verdict: Verdict = _core.match(
            self._verdict_type, self, self._core, keys, core_keys, tokens + 1, formats, listed, 0, tokens, mode
        )
        if verdict._held is not None:
            verdict.lease = Lease(verdict._held, self, listed, mode, era)
            if self._steering is not None:
                verdict._settle(self._steering)
        elif self.tier is not None:
            self._skew.note(verdict)
        return verdict

    # -- whole prefixes ----------------------------------------------------------------------------

    def reserve(
        self,
        keys: BlockKeys,
        *,
        ticket: Ticket | None = None,
        lease: Lease | None = None,
        groups: GroupSelection | None = None,
        formats: Mapping[str, KvFormat] | None = None,
        owner: str | None = None,
    ) -> Fill:
        """Take pages for a prefix, all or none, invisible to match until published.

        Where a block is ready no page is taken; where another fill has claimed it, a private one. Keys with a
        partial rest reserve a tip. A group ``Checkpoint(every=n)`` takes no page where no state is ever needed,
        unless its block is named.

        Parameters
        ----------
        keys : BlockKeys
            The prefix, or a slice of it.
        ticket : Ticket, optional
            Take the pages under this request's right to memory: it may then grow by so many fewer until they are
            published or given back, or it ends. Default: only pages that no request was promised.
        lease : Lease, optional
            Taken over: the request starts at ``lease.tokens``, inside a shared page perhaps (:meth:`Fill.copies`).
            It writes nothing before that: blocks that end there or before are reserved only where named by index.
        groups : mapping, optional
            {name: True or indices of the group's own blocks}. Default: every group, every block.
        formats : mapping of str to KvFormat, optional
            The writer's format of each group. Default: the spec's.
        owner : str, optional
            Name for :meth:`live` and the reports of leaks. Default: the ticket's request, or the lease's owner.

        Returns
        -------
        Fill

        Raises
        ------
        OutOfPages
            A pool or the table has not enough room, or the ticket's share of a group; everything is as it was.
        ArgumentError
            Keys of another unit, unknown group, block index out of range, a lease of another sequence, a ticket of
            another cache.
        LeaseExpired
            The lease is not valid.
        Closed
            The cache was closed, or the ticket was closed or failed.

        Notes
        -----
        Where somebody pins the word that is to name a ticket's page, it would be theirs as well: it is published only
        if that takes nothing that is promised, and else stays private like that of a later writer.
        """
        era = self._era
        core_keys = self._any_keys(keys)
        era.check(keys.identity)
        self._check_deciding()
        chosen = self._selection(groups)
        listed = self._format_list(formats)
        if ticket is not None and (not isinstance(ticket, Ticket) or ticket._cache is not self):
            raise ArgumentError("ticket", "a Ticket of this cache", ticket)
        if lease is not None:
            if not isinstance(lease, Lease) or lease._cache is not self:
                raise ArgumentError("lease", "a Lease of this cache", lease)
            lease._check_loan()
            if not lease._core.continues(core_keys):
                raise ArgumentError("lease", "a lease of the same sequence as the keys", lease)
        if owner is not None:
            owner = label(owner)
        elif ticket is not None:
            owner = request_label(ticket.request)
        elif lease is not None:
            owner = lease.owner
        core = reserved(self, core_keys, chosen, listed, lease, ticket)
        return Fill(core, self, lease, keys.tokens, owner, era)

    def insert(
        self,
        keys: BlockKeys,
        groups: GroupSelection | None = None,
        *,
        formats: Mapping[str, KvFormat] | None = None,
    ) -> None:
        """Reserve and publish at once: the bytes are already where the pages are, or do not matter.

        Parameters
        ----------
        keys, groups, formats
            As in :meth:`reserve`.

        Raises
        ------
        OutOfPages, ArgumentError, Closed
            As :meth:`reserve`.
        """
        self.reserve(keys, groups=groups, formats=formats).publish()

    def evict(self, keys: BlockKeys, groups: GroupSelection | None = None) -> int:
        """Take pages away; pinned ones are skipped.

        Parameters
        ----------
        keys, groups
            As in :meth:`reserve`.

        Returns
        -------
        int
            Pages retired.

        Raises
        ------
        ArgumentError
            As :meth:`reserve`.
        Closed
            The cache was closed.
        """
        self._check_deciding()
        return self._core.evict(self._any_keys(keys), self._selection(groups))

    # -- other weights -----------------------------------------------------------------------------

    def update_identity(self, identity: Identity, *, on_change: str) -> IdentityChange:
        """Say that the model is another one from now on: other weights, another adapter, other settings.

        Keys are made by the caller, of :attr:`spec.identity <CacheSpec.identity>` as it is after this call, or of that
        with a tenant's salt or an adapter in it. What is done about the bytes of before is said here, never guessed:

        "refuse"
            Busy where anything is published, held or on its way; else as "flush".
        "flush"
            For weights that are replaced in place. Keys that have a replaced value in a field that changed are refused
            (StaleIdentity). Leases of before end: their readers raise LeaseExpired, and the hit is withdrawn. Fills of
            before publish nothing any more, behind an event neither: abort them. Running requests fail: close them.
            Pages of before are given back, pinned ones once they are released, and nobody finds them until then.
            Prefixes that ``tier_writes="back"`` holds back are dropped; transfers under way end under the old keys.
            Records in a tier stay under the old keys, which nobody can ask for unless the old value returns.
        "version"
            For two versions side by side, as in a rolling upgrade: everything of before goes on under its own keys, new
            requests have the new identity, and neither is ever found under the other's.

        Parameters
        ----------
        identity : Identity
            The new one. Values that come back after they were replaced are no longer refused.
        on_change : {"flush", "refuse", "version"}

        Returns
        -------
        IdentityChange

        Raises
        ------
        Busy
            "refuse", and the cache is not empty; nothing has changed.
        TierError
            The file of :meth:`Tier.keep_manifests` cannot be written; nothing has changed.
        ArgumentError
            No Identity, the same one, another word.
        Closed
            The cache was closed.

        Notes
        -----
        Any thread may match, read, reserve, publish and abort meanwhile. No other thread may be in a call on a ticket,
        in ``admit`` or ``step``, nor in another update: weights are not replaced under a step that runs.
        An engine's own hashes carry their own identity: the cache cannot tell old ones. Records in a tier have the
        fingerprint of their keys' identity, which is for people, and of an engine's own hashes that of the cache when
        their transfer began. The tier is told the new manifest, so that look-ups which miss beside records of before
        say so (``metrics().tier_skew``).

        Examples
        --------
        >>> import hybridkv as hk
        >>> spec = hk.CacheSpec.homogeneous(layers=2, page_bytes=64, identity=hk.Identity("m", weights="r1"))
        >>> cache = hk.HybridCache(spec, blocks=128)
        >>> old = hk.block_keys(range(100), spec.unit_tokens, identity=spec.identity)
        >>> cache.insert(old[:4])
        >>> cache.update_identity(hk.Identity("m", weights="r2"), on_change="flush")
        IdentityChange(on_change='flush', fields=('weights',), evicted=4, kept=0, tickets=0)
        >>> cache.match(hk.block_keys(range(100), spec.unit_tokens, identity=cache.spec.identity)).outcome.name
        'MISS'
        >>> cache.match(old)
        Traceback (most recent call last):
        ...
        hybridkv.errors.StaleIdentity: keys: expected keys of the identity in use, got keys of one that was replaced...
        """
        self._check_deciding()
        return changed_identity(self, identity, on_change)

    # -- leases ------------------------------------------------------------------------------------

    def revoke(self, *, owner: str | None = None, now: float | None = None) -> list[Holder]:
        """Take the right to read from lent leases: of an owner, or whose deadline has passed.

        Each is no longer valid at once: the hit is withdrawn, and every call of its reader raises LeaseExpired, its
        release too. Its pages stay pinned until every event given for work that reads them has passed
        (:meth:`Lease.launched`). A lease that a fill or a ticket has taken over is theirs to settle and is left.

        Parameters
        ----------
        owner : str, optional
            Only leases lent to this owner; all of them, whatever their deadline, where `now` is not given.
        now : float, optional
            Only leases whose deadline is not after it. Default without an owner: the time on the cache's clock.

        Returns
        -------
        list of Holder
            What was revoked.

        Raises
        ------
        ArgumentError
            No name, no number.
        Closed
            The cache was closed.
        """
        self._check_deciding()
        owner = None if owner is None else label(owner)
        if now is not None:
            now = seconds("now", now)
        elif owner is None:
            now = self._holders.now()
        with suppress(Exception):  # of an event: poll tells of it
            self._deferred.apply_due()
        return self._holders.revoke(owner, now)


def _withdraw(lease: Lease) -> None:
    """Cancel a valid lease; that its deadline passes meanwhile comes to the same."""
    try:
        lease.cancel()
    except LeaseExpired:
        if lease.valid:  # a fill's
            raise
