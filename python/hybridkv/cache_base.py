# SPDX-License-Identifier: Apache-2.0
"""What every part of the cache stands on: its core, its pools, its life and the checks of arguments."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import numpy.typing as npt

from hybridkv import _core
from hybridkv.admission import Admission
from hybridkv.alignment.checks import Violation, bound_violations
from hybridkv.alignment.needs import KernelNeeds, kernel_needs
from hybridkv.arguments import count, eviction_order, verify_mode
from hybridkv.checkpoints import CheckpointPolicy
from hybridkv.cost import CostModel
from hybridkv.declared import GroupSelection, described, format_list, group_index, page_counts, selection
from hybridkv.deferred import Deferred
from hybridkv.errors import ArgumentError, Busy, Closed
from hybridkv.formats import KvFormat, Manifest
from hybridkv.formats.negotiation import check_pool
from hybridkv.graph.eager import EagerCounts
from hybridkv.handles import Uncopied
from hybridkv.holders import Holders
from hybridkv.identity_change import Era
from hybridkv.keys import BlockKeys
from hybridkv.pool_arenas import PoolArenas
from hybridkv.pools import PoolArray, pool_arrays
from hybridkv.spec import CacheSpec
from hybridkv.stream_capture import refuse_capture
from hybridkv.tier_skew import TierSkew
from hybridkv.tier_writes import TierWrites
from hybridkv.tiers import Tier
from hybridkv.verdict import Verdict

if TYPE_CHECKING:
    from hybridkv.graph import Topology
    from hybridkv.steering import Steering
    from hybridkv.ticket import Ticket


class CacheBase(Uncopied):
    """The part of :class:`~hybridkv.HybridCache` that its other parts stand on; see there for the parameters."""

    def __init__(
        self,
        spec: CacheSpec,
        *,
        blocks: int,
        pages: Mapping[str, int] | None = None,
        admission: Admission | None = None,
        checkpoints: CheckpointPolicy | None = None,
        verify: str = "sampled",
        eviction: str = "usability",
        tier: Tier | None = None,
        tier_writes: str = "none",
        tier_skew: str = "apart",
        staging_bytes: int = 128 << 20,
        cost: CostModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(spec, CacheSpec):
            raise ArgumentError("spec", "a CacheSpec", type(spec).__name__)
        blocks = count("blocks", blocks)
        self.spec = spec
        self.blocks = blocks
        self._verify = verify_mode(verify)
        self._index = {group.name: number for number, group in enumerate(spec.groups)}
        self.pages = page_counts(spec, blocks, pages)
        if admission is not None and not isinstance(admission, Admission):
            raise ArgumentError("admission", "an Admission", admission)
        if checkpoints is not None and not isinstance(checkpoints, CheckpointPolicy):
            raise ArgumentError("checkpoints", "a CheckpointPolicy", checkpoints)
        self.admission = admission
        self.checkpoints = checkpoints
        self.eviction = eviction
        order = eviction_order(eviction)
        limits = (admission or Admission())._numbers()
        self._core = _core.Cache(spec.unit_tokens, described(spec, self.pages), blocks, order, limits)
        self._tickets: WeakValueDictionary[int, Ticket] = WeakValueDictionary()
        self._root: _core.KeyChain | None = None  # of requests that begin without tokens
        self._known_formats = {g.fingerprint: g.format for g in spec.groups if g.format is not None}
        self._graph_widths: dict[str, int] = {}
        self._topologies: WeakSet[Topology] = WeakSet()  # that watch this cache, for who asks how graphs are guarded
        self._bound: dict[str, list[object]] = {}
        self._pool_arrays: dict[str, list[PoolArray]] = {}  # where they lie: what graphs are held against
        self._violations: dict[str, tuple[Violation, ...]] = {}
        self._bound_kernels: dict[str, tuple[str, ...]] = {}
        self._bindings: dict[str, int] = {}  # how often each group was bound: what captured graphs compare
        self._resets = 0
        self._eager_counts = EagerCounts()
        self._deferred = Deferred()
        self._holders = Holders(clock, self._deferred)
        self._era = Era({})
        self._steering: Steering | None = None  # who watches: nothing is asked where nobody does
        self._verdict_type: type[Verdict] = Verdict
        self._closed = False
        self.tier = tier
        self._tier_writes = TierWrites(tier_writes)
        if tier is None and self._tier_writes.mode != "none":
            raise ArgumentError("tier_writes", "a tier to write to, or 'none'", f"{tier_writes!r} without a tier")
        staging = count("staging_bytes", staging_bytes)
        self._arenas: PoolArenas | None = None
        if tier is not None and not isinstance(tier, Tier):
            raise ArgumentError("tier", "a Tier", type(tier).__name__)
        self.cost = cost
        self._skew = TierSkew(tier_skew)
        if tier is not None:
            self._attach(tier, staging)

    def _attach(self, tier: Tier, staging_bytes: int) -> None:
        own = Manifest.of(self.spec)
        self._skew.meet(own, tier)
        tier._lend(self)
        try:
            tier.know(own)
        except BaseException:  # its file of manifests cannot be written
            tier._take_back(self)
            raise
        _core.attach_tier(self._core, tier._core, *own.records, own.identity, staging_bytes)
        self._arenas = PoolArenas(tier)
        weakref.finalize(self, self._arenas.unbound).atexit = False

    def _tell_tier(self, spec: CacheSpec) -> None:
        """Let the tier know whose records will come from now on; raises TierError, and nothing has changed, as `know`.

        Records on their way keep the identity that they were begun under.
        """
        if self.tier is None:
            return
        own = Manifest.of(spec)
        self.tier.know(own)
        self._skew.change(own)
        _core.change_identity(self._core, own.identity)

    # -- pools -------------------------------------------------------------------------------------

    def bind(
        self,
        group: str,
        arrays: object,
        *,
        kernel: str | KernelNeeds | Iterable[str | KernelNeeds] | None = None,
        format: KvFormat | None = None,
    ) -> None:
        """Tell where a group's pool lies.

        Parameters
        ----------
        group : str
            Name of a group of the spec.
        arrays : array or sequence of arrays
            [[pages, page_bytes]] in any dtype, one for all layers (a page is then the layers one after another)
            or one for each layer; page i is row i of each. numpy, DLPack or an array interface, host or device.
        kernel : str, KernelNeeds, or a sequence of these, optional
            What will read this pool beside the kernels that the group names: names in ``hk.alignment.KERNELS``, or
            needs of one's own.
        format : KvFormat, optional
            What the kernels that use this memory read and write. It must be the format of the group; where pages lie
            (``page_stride``, ``alignment``) is read off the arrays instead. Default: not declared, and not compared.

        Raises
        ------
        SpecError
            ``format`` is not the group's: ``differences`` has every field, ``plan`` the conversion through another
            pool (:func:`hybridkv.ops.convert`), where there is one.
        ArgumentError
            Unknown group or kernel, a kernel that cannot read what the group declares, an array that cannot hold the
            pages, or bytes of a page that are not in one piece.
        Busy
            The group has pages handed out.
        Closed
            The cache was closed.

        Notes
        -----
        A pool whose alignment a kernel cannot take is accepted; match reports it as ALIGNED, :meth:`alignment` says
        all that is wrong with it, and what to do. So is one that is read-only, as far as its array tells: it is matched
        and read like any other, and nothing is ever loaded into it.

        A host array whose pages lie behind each other becomes an arena of the cache's tier (:meth:`Tier.add_arena`),
        until the group is bound anew or the cache is closed; so its memory must stay what it is meanwhile.
        """
        self._check_deciding()
        index = self._group_index(group)
        described = self.spec.groups[index]
        if format is not None:
            check_pool(described, format)
        made = pool_arrays(described, described.total_page_bytes, arrays, self.pages[group])
        if self._core.census(index)["free"] != self.pages[group]:
            raise Busy("group", "a pool without pages handed out", group)
        violations, of_kernels = bound_violations(described, kernel, made)
        host = made[0].host
        rows = [(a.base, a.stride, a.page_bytes, a.row_stride) for a in made]
        self._bindings[group] = self._bindings.get(group, 0) + 1
        self._bound[group] = [a.keepalive for a in made]
        self._pool_arrays[group] = made
        writable = all(a.writable for a in made)
        self._core.bind(index, rows, host, self._bound[group], of_kernels, writable)
        self._violations[group] = tuple(violations)
        self._bound_kernels[group] = tuple(needs.name for needs in kernel_needs("kernel", kernel or ()))
        if self._arenas is not None:
            self._arenas.bound(group, made)

    def alignment(self, group: str) -> tuple[Violation, ...]:
        """Tell what of the bound pool of a group does not fit its declaration or its kernels.

        Parameters
        ----------
        group : str
            Name of a group of the spec.

        Returns
        -------
        tuple of Violation
            Each with its remedy; empty where all fits, or where no pool is bound. Those whose effect is "refused" make
            a match of that group's pages ALIGNED; of one that is "not loaded into" no restore is offered.

        Raises
        ------
        ArgumentError
            Unknown group.
        """
        self._group_index(group)
        return self._violations.get(group, ())

    @property
    def cost(self) -> CostModel | None:
        """What says which restore is worth its time; None: the longest is. May be set anew, as measurements come in.

        Raises
        ------
        ArgumentError
            Set to something else than a CostModel or None; to one that knows bandwidths of tiers, and none of the
            cache's tier by its ``name``: no restore could ever win.
        """
        return self._cost

    @cost.setter
    def cost(self, model: CostModel | None) -> None:
        if model is not None and not isinstance(model, CostModel):
            raise ArgumentError("cost", "a CostModel or None", type(model).__name__)
        if model is not None and model.tiers and self.tier is not None and self.tier.name not in model.tiers:
            expected = f"the bandwidth of the cache's tier, {self.tier.name!r} by its name"
            raise ArgumentError("cost.tiers", expected, f"that of {', '.join(map(repr, model.tiers))} alone")
        self._cost = model

    # -- life --------------------------------------------------------------------------------------

    def poll(self) -> int:
        """Apply what is due after events, and what a tier reports of transfers.

        Returns
        -------
        int
            Effects applied, and records settled. While a stream captures effects wait, and transfers alone go on.
        """
        self._check_usable()
        return self._deferred.apply_due() + self._poll_transfers()

    def reset(self) -> None:
        """Forget every prefix; counters stay.

        Raises
        ------
        Busy
            Leases or fills live, or effects wait for events; ``owners`` names who holds them. Or transfers are on their
            way, those that ``tier_writes=`` began among them: call :meth:`HybridCache.flush` first.
        Closed
            The cache was closed.
        """
        self._check_deciding()
        self._check_idle()
        self._resets += 1
        self._core.reset()

    def close(self) -> None:
        """Forget every prefix and refuse every later call. Closing twice is a no-op.

        Raises
        ------
        Busy
            Leases or fills live, or effects wait for events; ``owners`` names who holds them. Or transfers are on their
            way, those that ``tier_writes=`` began among them: call :meth:`HybridCache.flush` first.
        """
        if self._closed:
            return
        refuse_capture("cache", "its end")
        self._check_idle()
        self._core.reset()
        self._core.unbind()
        self._bound.clear()
        self._pool_arrays.clear()
        self._violations.clear()
        self._bound_kernels.clear()
        if self._arenas is not None:
            self._arenas.unbound()
        if self.tier is not None:
            self.tier._take_back(self)
        self._closed = True

    # -- arguments ---------------------------------------------------------------------------------

    def _check_idle(self) -> None:
        with suppress(Exception):
            self._deferred.apply_due()
        if not self._holds_open() and self._deferred.is_broken():  # nothing is dropped where it would be refused
            self._deferred.drop_broken()
            with suppress(Exception):  # what stood behind a broken event
                self._deferred.apply_due()
        self._poll_transfers()
        if self.tier is not None and (moving := _core.live_transfers(self._core)):
            raise Busy("cache", "no transfer on its way", f"{moving} transfers")
        leases, fills, tickets = counts = self._core.live()
        if any(counts) or self._deferred:
            waiting = len(self._deferred)
            got = f"{leases} leases, {fills} fills, {tickets} tickets, {waiting} effects that wait"
            raise Busy("cache", "no live lease, fill or ticket", got, owners=self._holders.owners(counts))

    def _holds_open(self) -> bool:
        """Whether a handle lives that has not ended: one that has may wait for events alone."""
        _, fills, tickets = self._core.live()
        ended = sum(isinstance(core, _core.Fill) and core.closed and not core.done for core in self._deferred.owners())
        return bool(tickets or fills > ended or self._core.counters()["pending"])

    def _written(self, keys: _core.KeyChain, since: int, resumed: int) -> None:
        """A prefix was published, new from `since` tokens on; what moves prefixes to a tier takes note.

        Whoever wrote it went on from `resumed` tokens.
        """

    def _poll_transfers(self) -> int:
        return 0 if self.tier is None else _core.poll_transfers(self._core)

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed("cache", "an open cache", "a closed one")

    def _check_deciding(self) -> None:
        """Refuse what takes pages, gives them back or decides while a stream captures: it is no part of the graph.

        Transfers to tiers go on meanwhile, but for restores, which take pages.
        """
        self._check_usable()
        refuse_capture("cache", "a call that takes pages or decides")

    def _check_waiting(self) -> None:
        """Refuse a wait that could have no end: events are not asked while a stream captures."""
        if self._deferred:
            refuse_capture("transfer", "a wait behind an event")

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
        self._era.check(keys.identity)
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
