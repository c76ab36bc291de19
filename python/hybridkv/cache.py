# SPDX-License-Identifier: Apache-2.0
"""The cache: decides, proves and counts the reuse of prefixes of a model with any mix of attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hybridkv import _core
from hybridkv.deferred import Deferred
from hybridkv.errors import ArgumentError, Busy, Closed, OutOfPages
from hybridkv.fill import Fill, GroupSelection
from hybridkv.formats import KvFormat
from hybridkv.group import CacheGroup
from hybridkv.keys import BlockKeys
from hybridkv.kinds import StateKind
from hybridkv.lease import Lease
from hybridkv.metrics import Metrics, PageCounts, by_check_and_kind
from hybridkv.pools import pool_arrays
from hybridkv.spec import CacheSpec
from hybridkv.verdict import Verdict

_VERIFY = {"off": 0, "sampled": 1, "all": 2}
_MAX_IDS = 2**32 - 2
PHASES = ("absent", "tier-only", "filling", "restoring", "ready", "ready with copy", "offloading", "retiring")
"""Phases of a (block, group), in the order of their numbers."""

_FORMS = {
    StateKind.COMPRESSED: "compressed",
    StateKind.TAIL: "uncompressed",
    StateKind.WINDOW: "window",
    StateKind.INDEXER: "indexer",
}


class BlockInfo(NamedTuple):
    """State of one own block of one group.

    Attributes
    ----------
    phase : str
        One of :data:`PHASES`.
    pins : int
        Pins of the word the group lives in; groups of one class share it.
    page : int
        Page it owns, -1 if none. For looking only: pages to read come from a lease.
    handouts : int
        How often that page was handed out.
    """

    phase: str
    pins: int
    page: int
    handouts: int


class HybridCache:
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
        blocks = _count("blocks", blocks)
        self.spec = spec
        self.blocks = blocks
        self._verify = _verify_mode(verify)
        self._index = {group.name: number for number, group in enumerate(spec.groups)}
        self.pages = self._page_counts(pages)
        self._core = _core.Cache(spec.unit_tokens, [self._described(group) for group in spec.groups], blocks)
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
        Progress: lock-free; looks again at most 8 times where something changed between check and pin.
        """
        core_keys = self._whole_keys(keys)
        core = self._core.match(
            core_keys,
            -1 if limit is None else _length("limit", limit),
            None if formats is None else self._format_list(formats),
            0 if drop_tokens == 0 else _length("drop_tokens", drop_tokens),
            -1,
            self._verify if verify is None else _verify_mode(verify),
        )
        held = core.lease
        return Verdict(core, self, keys, formats, None if held is None else Lease(held, self))

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
        tokens = _length("tokens", tokens)
        if tokens >= max(keys.tokens, 1):
            raise ArgumentError("tokens", f"a length below {keys.tokens}", tokens)
        if of is not None and not isinstance(of, Verdict):
            raise ArgumentError("of", "a Verdict", of)
        mode = self._verify if verify is None else _verify_mode(verify)
        listed = None if formats is None else self._format_list(formats)
        if of is not None and of.lease is not None and of.lease.valid:
            of.lease.cancel()
        core = self._core.match(core_keys, tokens + 1, listed, 0, tokens, mode)
        held = core.lease
        return Verdict(core, self, keys, formats, None if held is None else Lease(held, self))

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
            Taken over: the request starts at ``lease.tokens``, inside a shared page perhaps; see
            :meth:`Fill.copies`.
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
        chosen = self._selection(groups, keys)
        listed = None if formats is None else self._format_list(formats)
        if lease is not None:
            if not isinstance(lease, Lease) or lease._cache is not self:
                raise ArgumentError("lease", "a Lease of this cache", lease)
            if not lease._core.continues(core_keys):
                raise ArgumentError("lease", "a lease of the same sequence as the keys", lease)
        held = None if lease is None else lease._core
        try:
            core = _core.reserve(self._core, core_keys, chosen, listed, held)
        except OutOfPages:
            if not self._deferred.apply_due():
                raise
            core = _core.reserve(self._core, core_keys, chosen, listed, held)
        return Fill(core, self, keys, lease)

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
        return self._core.evict(self._any_keys(keys), self._selection(groups, keys))

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
            seen = (self._core.inspect(core_keys, index, block) for block in range(self._own_blocks(keys, group)))
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
        result: dict[str, list[tuple[int, int, str]]] = {}
        for group in self.spec.groups:
            spans: list[tuple[int, int, str]] = []
            result[group.name] = spans
        for name, blocks in self.inspect(keys).items():
            group = self.spec.groups[self._index[name]]
            block_tokens = _block_tokens(group)
            _append(result[name], 0, 0, "absent")
            for number, info in enumerate(blocks):
                _append(result[name], number * block_tokens, min((number + 1) * block_tokens, keys.tokens), _form(group, info))
            _append(result[name], min(len(blocks) * block_tokens, keys.tokens), keys.tokens, "absent")
        return result

    def metrics(self) -> Metrics:
        """Return the counters.

        Returns
        -------
        Metrics
        """
        raw = self._core.counters()
        raw["false_hits"] = by_check_and_kind(raw["false_hits"])
        raw["lost_tokens"] = by_check_and_kind(raw["lost_tokens"])
        pages = {name: PageCounts(**self._core.census(index)) for name, index in self._index.items()}
        states = {StateKind(kind): count for kind, count in enumerate(self._core.states())}
        return Metrics(pages=pages, states=states, **raw)

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
        self._deferred.apply_due()
        leases, fills = self._core.live()
        if leases or fills or self._deferred:
            got = f"{leases} leases, {fills} fills, {len(self._deferred)} effects that wait"
            raise Busy("cache", "no live lease or fill", got)

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed("cache", "an open cache", "a closed one")

    def _apply_due(self) -> None:
        if self._deferred:
            self._deferred.apply_due()

    def _any_keys(self, keys: BlockKeys) -> _core.KeyChain:
        if self._closed:
            raise Closed("cache", "an open cache", "a closed one")
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
        try:
            return self._index[name]
        except (KeyError, TypeError):
            raise ArgumentError("group", f"one of {list(self._index)}", name) from None

    def _selection(self, groups: GroupSelection | None, keys: BlockKeys) -> list[bool | npt.NDArray[np.int64]]:
        if groups is None:
            return [True] * len(self._index)
        if not isinstance(groups, Mapping):
            raise ArgumentError("groups", "a mapping of group names to True or block indices", groups)
        chosen: list[bool | npt.NDArray[np.int64]] = [False] * len(self._index)
        for name, blocks in groups.items():
            chosen[self._group_index(name)] = blocks if isinstance(blocks, bool) else _indices(name, blocks)
        return chosen

    def _format_list(self, formats: Mapping[str, KvFormat] | None) -> list[bytes] | None:
        if formats is None:
            return None
        if not isinstance(formats, Mapping):
            raise ArgumentError("formats", "a mapping of group names to KvFormat", formats)
        listed = [group.fingerprint for group in self.spec.groups]
        for name, fmt in formats.items():
            index = self._group_index(name)
            if not isinstance(fmt, KvFormat):
                raise ArgumentError(f"formats[{name}]", "a KvFormat", fmt)
            listed[index] = fmt.fingerprint
            self._known_formats[fmt.fingerprint] = fmt
        return listed

    def _page_counts(self, pages: Mapping[str, int] | None) -> dict[str, int]:
        if pages is not None and not isinstance(pages, Mapping):
            raise ArgumentError("pages", "a mapping of group names to numbers", pages)
        counts = {g.name: max(1, self.blocks * self.spec.unit_tokens // _block_tokens(g)) for g in self.spec.groups}
        for name, number in (pages or {}).items():
            self._group_index(name)
            counts[name] = _count(f"pages[{name}]", number)
        return counts

    def _described(self, group: CacheGroup) -> tuple[object, ...]:
        step_with = -1 if group.in_step_with is None else self._index[group.in_step_with]
        footer = group.format.footer_offset if group.format is not None else None
        return (
            group.name,
            int(group.kind),
            group.coverage.rule,
            group.coverage.parameter,
            _block_tokens(group) // self.spec.unit_tokens,
            self.pages[group.name],
            group.total_page_bytes,
            group.layer_count,
            group.tokens_per_row,
            group.row_bytes or 0,
            group.rows_per_page or 0,
            group.alignment,
            group.page_stride or 0,
            step_with,
            group.rebuildable,
            group.fingerprint,
            -1 if footer is None else footer,
        )

    def _own_blocks(self, keys: BlockKeys, group: CacheGroup) -> int:
        block_tokens = _block_tokens(group)
        whole = keys._core.end_unit * self.spec.unit_tokens // block_tokens
        tip = keys.tokens % self.spec.unit_tokens != 0 and keys._core.has_tokens
        return whole + tip

    def __repr__(self) -> str:
        names = ", ".join(self._index)
        return f"HybridCache(unit_tokens={self.spec.unit_tokens}, blocks={self.blocks}, groups=[{names}])"


def _block_tokens(group: CacheGroup) -> int:
    assert group.block_tokens is not None  # the spec fills it in
    return group.block_tokens


def _form(group: CacheGroup, info: BlockInfo) -> str:
    if info.phase in {"tier-only", "restoring"}:
        return "disk"
    if info.phase in {"ready", "ready with copy", "offloading"}:
        return _FORMS[group.kind]
    return "absent"


def _append(spans: list[tuple[int, int, str]], start: int, end: int, form: str) -> None:
    if start >= end:
        return
    if spans and spans[-1][2] == form:
        start = spans.pop()[0]
    spans.append((start, end, form))


def _integer(field: str, value: object, expected: str) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ArgumentError(field, expected, value)
    return int(value)


def _count(field: str, value: object) -> int:
    expected = f"an integer in [1, {_MAX_IDS}]"
    number = _integer(field, value, expected)
    if not 1 <= number <= _MAX_IDS:
        raise ArgumentError(field, expected, value)
    return number


def _length(field: str, value: object) -> int:
    expected = "a number of tokens, 0 or more"
    number = _integer(field, value, expected)
    if not 0 <= number < 2**62:
        raise ArgumentError(field, expected, value)
    return number


def _verify_mode(verify: str) -> int:
    try:
        return _VERIFY[verify]
    except (KeyError, TypeError):
        raise ArgumentError("verify", f"one of {list(_VERIFY)}", verify) from None


def _indices(name: str, blocks: npt.ArrayLike) -> npt.NDArray[np.int64]:
    field = f"groups[{name}]"
    try:
        array = np.asarray(list(blocks) if isinstance(blocks, (range, set, frozenset)) else blocks)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise ArgumentError(field, "True or indices of own blocks", blocks) from None
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ArgumentError(field, "True or indices [[n]] of own blocks, integers", blocks)
    if array.min() < 0:
        raise ArgumentError(field, "own blocks, 0 or more", int(array.min()))
    return np.unique(array.astype(np.int64))
