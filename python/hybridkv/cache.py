# SPDX-License-Identifier: Apache-2.0
"""The cache: decides, proves and counts the reuse of prefixes of a model with any mix of attention."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from hybridkv import _core
from hybridkv.arguments import count, length, verify_mode
from hybridkv.declared import GroupSelection, described, format_list, group_index, page_counts, selection
from hybridkv.deferred import Deferred
from hybridkv.errors import ArgumentError, Busy, Closed
from hybridkv.fill import Fill, reserved
from hybridkv.formats import KvFormat
from hybridkv.handles import Uncopied
from hybridkv.inspection import PHASES, BlockInfo, form_spans, own_block_count
from hybridkv.keys import BlockKeys
from hybridkv.lease import Lease
from hybridkv.metrics import Metrics, read_metrics
from hybridkv.pools import pool_arrays
from hybridkv.spec import CacheSpec
from hybridkv.verdict import Verdict

_NO_DROP = 0  # the default itself: no other zero skips the check of its type


class HybridCache(Uncopied):
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

    Raises
    ------
    ArgumentError
        Naming the field.

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

    def __init__(
        self,
        spec: CacheSpec,
        *,
        blocks: int,
        pages: Mapping[str, int] | None = None,
        verify: str = "sampled",
    ) -> None:
        if not isinstance(spec, CacheSpec):
            raise ArgumentError("spec", "a CacheSpec", type(spec).__name__)
        blocks = count("blocks", blocks)
        self.spec = spec
        self.blocks = blocks
        self._verify = verify_mode(verify)
        self._index = {group.name: number for number, group in enumerate(spec.groups)}
        self.pages = page_counts(spec, blocks, pages)
        self._core = _core.Cache(spec.unit_tokens, described(spec, self.pages), blocks)
        self._known_formats = {g.fingerprint: g.format for g in spec.groups if g.format is not None}
        self._bound: dict[str, list[object]] = {}
        self._deferred = Deferred()
        self._closed = False

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
        if self._closed or not isinstance(keys, BlockKeys):
            self._any_keys(keys)  # raises
        listed = None if formats is None else self._format_list(formats)
        mode = self._verify if verify is None else verify_mode(verify)
        verdict: Verdict = _core.match(
            Verdict,
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
            verdict.lease = Lease(verdict._held, self, listed, mode)
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
        core_keys = self._whole_keys(keys)
        tokens = length("tokens", tokens)
        if tokens >= max(keys.tokens, 1):
            raise ArgumentError("tokens", f"a length below {keys.tokens}", tokens)
        if of is not None and (not isinstance(of, Verdict) or of._cache is not self):
            raise ArgumentError("of", "a Verdict of this cache", of)
        mode = self._verify if verify is None else verify_mode(verify)
        listed = self._format_list(formats)
        if of is not None and of.lease is not None and of.lease.valid:
            of.lease.cancel()
        verdict: Verdict = _core.match(
            Verdict, self, self._core, keys, core_keys, tokens + 1, formats, listed, 0, tokens, mode
        )
        if verdict._held is not None:
            verdict.lease = Lease(verdict._held, self, listed, mode)
        return verdict

    # -- whole prefixes ----------------------------------------------------------------------------

    def reserve(
        self,
        keys: BlockKeys,
        *,
        lease: Lease | None = None,
        groups: GroupSelection | None = None,
        formats: Mapping[str, KvFormat] | None = None,
    ) -> Fill:
        """Take pages for a prefix, all or none, invisible to match until published.

        Where a block is ready no page is taken; where another fill has claimed it, a private one. Keys with a
        partial rest reserve a tip. A group ``Checkpoint(every=n)`` takes no page where no state is ever needed,
        unless its block is named.

        Parameters
        ----------
        keys : BlockKeys
            The prefix, or a slice of it.
        lease : Lease, optional
            Taken over: the request starts at ``lease.tokens``, inside a shared page perhaps (:meth:`Fill.copies`).
            It writes nothing before that: blocks that end there or before are reserved only where named by index.
        groups : mapping, optional
            {name: True or indices of the group's own blocks}. Default: every group, every block.
        formats : mapping of str to KvFormat, optional
            The writer's format of each group. Default: the spec's.

        Returns
        -------
        Fill

        Raises
        ------
        OutOfPages
            A pool or the table has not enough room; everything is as it was.
        ArgumentError
            Keys of another unit, unknown group, block index out of range, a lease of another sequence.
        LeaseExpired
            The lease is not valid.
        Closed
            The cache was closed.
        """
        core_keys = self._any_keys(keys)
        chosen = self._selection(groups)
        listed = self._format_list(formats)
        if lease is not None:
            if not isinstance(lease, Lease) or lease._cache is not self:
                raise ArgumentError("lease", "a Lease of this cache", lease)
            if not lease._core.continues(core_keys):
                raise ArgumentError("lease", "a lease of the same sequence as the keys", lease)
        core = reserved(self, core_keys, chosen, listed, lease)
        return Fill(core, self, lease)

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
        return self._core.evict(self._any_keys(keys), self._selection(groups))

    # -- pools -------------------------------------------------------------------------------------

    def bind(self, group: str, arrays: object) -> None:
        """Tell where a group's pool lies.

        Parameters
        ----------
        group : str
            Name of a group of the spec.
        arrays : array or sequence of arrays
            [[pages, page_bytes]] in any dtype, one for all layers (a page is then the layers one after another)
            or one for each layer; page i is row i of each. numpy, DLPack or an array interface, host or device.

        Raises
        ------
        ArgumentError
            Unknown group, an array that cannot hold the pages, or bytes of a page that are not in one piece.
        Busy
            The group has pages handed out.
        Closed
            The cache was closed.

        Notes
        -----
        A pool whose alignment the kernel cannot take is accepted; match reports it as ALIGNED.
        """
        self._check_usable()
        index = self._group_index(group)
        described = self.spec.groups[index]
        made = pool_arrays(described, described.total_page_bytes, arrays, self.pages[group])
        if self._core.census(index)["free"] != self.pages[group]:
            raise Busy("group", "a pool without pages handed out", group)
        host = made[0].host
        self._core.bind(index, [(a.base, a.stride, a.page_bytes, a.row_stride) for a in made], host)
        self._bound[group] = [a.keepalive for a in made]

    # -- looking -----------------------------------------------------------------------------------

    def inspect(self, keys: BlockKeys) -> dict[str, list[BlockInfo]]:
        """Return phase, pins, page and hand-out count for each group's own blocks below ``keys.tokens``.

        Parameters
        ----------
        keys : BlockKeys

        Returns
        -------
        dict of str to list of BlockInfo
            From the start of the prefix; the partial block of a tip last.

        Raises
        ------
        ArgumentError
            Keys of another unit.
        Closed
            The cache was closed.
        """
        core_keys = self._any_keys(keys)
        result = {}
        for index, group in enumerate(self.spec.groups):
            seen = (self._core.inspect(core_keys, index, block) for block in range(own_block_count(group, core_keys)))
            result[group.name] = [BlockInfo(PHASES[phase], *rest) for phase, *rest in seen]
        return result

    def spans(self, keys: BlockKeys) -> dict[str, list[tuple[int, int, str]]]:
        """Return the form of every token in every group.

        Parameters
        ----------
        keys : BlockKeys

        Returns
        -------
        dict of str to list of (int, int, str)
            (from, to, form) covering [0, keys.tokens) without gap or overlap; form is uncompressed, compressed,
            window, indexer, disk or absent.

        Raises
        ------
        ArgumentError
            Keys of another unit.
        Closed
            The cache was closed.
        """
        seen = self.inspect(keys)
        return {g.name: form_spans(g, seen[g.name], keys.tokens) for g in self.spec.groups}

    def metrics(self) -> Metrics:
        """Return the counters.

        Returns
        -------
        Metrics
        """
        return read_metrics(self._core, self._index)

    def verify(self) -> bool:
        """Compare the five derived state bitmaps with the words they are derived from.

        Returns
        -------
        bool
            Whether they agree; exact when the cache is idle.
        """
        return self._core.verify() < 0

    # -- life --------------------------------------------------------------------------------------

    def poll(self) -> int:
        """Apply what is due after events.

        Returns
        -------
        int
            Effects applied.
        """
        self._check_usable()
        return self._deferred.apply_due()

    def reset(self) -> None:
        """Forget every prefix; counters stay.

        Raises
        ------
        Busy
            Leases or fills live, or effects wait for events.
        Closed
            The cache was closed.
        """
        self._check_usable()
        self._check_idle()
        self._core.reset()

    def close(self) -> None:
        """Forget every prefix and refuse every later call. Closing twice is a no-op.

        Raises
        ------
        Busy
            Leases or fills live, or effects wait for events.
        """
        if self._closed:
            return
        self._check_idle()
        self._core.reset()
        self._bound.clear()
        self._closed = True

    # -- arguments ---------------------------------------------------------------------------------

    def _check_idle(self) -> None:
        with suppress(Exception):
            self._deferred.apply_due()
        self._deferred.drop_broken()
        leases, fills = self._core.live()
        if leases or fills or self._deferred:
            got = f"{leases} leases, {fills} fills, {len(self._deferred)} effects that wait"
            raise Busy("cache", "no live lease or fill", got)

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed("cache", "an open cache", "a closed one")

    def _any_keys(self, keys: BlockKeys) -> _core.KeyChain:
        self._check_usable()
        if not isinstance(keys, BlockKeys):
            raise ArgumentError("keys", "BlockKeys", type(keys).__name__)
        core = keys._core
        if core.unit_tokens != self.spec.unit_tokens:
            raise ArgumentError("keys", f"keys of unit {self.spec.unit_tokens}", f"unit {core.unit_tokens}")
        return core

    def _whole_keys(self, keys: BlockKeys) -> _core.KeyChain:
        core = self._any_keys(keys)
        if core.begin_unit:
            raise ArgumentError("keys", "keys from the start of the sequence", f"a slice from unit {core.begin_unit}")
        return core

    def _group_index(self, name: str) -> int:
        return group_index(self._index, name)

    def _selection(self, groups: GroupSelection | None) -> list[bool | npt.NDArray[np.int64]]:
        return selection(self._index, groups)

    def _format_list(self, formats: Mapping[str, KvFormat] | None) -> list[bytes] | None:
        return None if formats is None else format_list(self.spec, self._index, formats, self._known_formats)

    def __repr__(self) -> str:
        names = ", ".join(self._index)
        return f"HybridCache(unit_tokens={self.spec.unit_tokens}, blocks={self.blocks}, groups=[{names}])"
