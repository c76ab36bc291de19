# SPDX-License-Identifier: Apache-2.0
"""Looking into the cache: states of blocks, forms of spans, counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hybridkv import _core
from hybridkv.arguments import flag
from hybridkv.cache_base import CacheBase
from hybridkv.coverage import Prefix
from hybridkv.errors import ArgumentError
from hybridkv.events import Event, made
from hybridkv.formats import KvFormat, Manifest
from hybridkv.holders import Holder, Leak
from hybridkv.inspection import PHASES, BlockInfo, form_spans, own_block_count
from hybridkv.keys import BlockKeys
from hybridkv.metrics.counts import Metrics, StrandedPages, read_metrics

if TYPE_CHECKING:
    from hybridkv.explain import Explanation


class CacheView(CacheBase):
    """The part of :class:`~hybridkv.HybridCache` that looks and changes nothing."""

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

    def events(self, *, anew: bool = False) -> list[Event]:
        """Return what became findable and what went since the last call, for an index kept elsewhere.

        An index that applies all events in their order (:class:`~hybridkv.events.EventIndex`) has what can be found in
        the cache: exactly where nothing is under way, and what was true a moment ago else. What came and went between
        two calls makes no event, and a look-up never does.

        Parameters
        ----------
        anew : bool, optional
            Begin anew: CLEARED, and all that is there now; for an index that was lost.

        Returns
        -------
        list of Event
            Removals before stores; of stores parents before what continues them.

        Raises
        ------
        ArgumentError
            No flag.
        Closed
            The cache was closed.

        Notes
        -----
        There is one "last call" a cache. A call costs as much as there are changes; the first one takes 24 bytes a
        descriptor and an entry of a hash table for each key. Any thread may call, one after another.
        """
        flag("anew", anew)
        self._check_usable()
        names = [group.name for group in self.spec.groups]
        return [made(raw, names) for raw in _core.events(self._core, anew)]

    def explain(self, keys: BlockKeys, *, formats: Mapping[str, KvFormat] | None = None) -> Explanation:
        """Tell why a prompt can be reused as far as it can and no further.

        Parameters
        ----------
        keys : BlockKeys
            Keys of the sequence from its start.
        formats : mapping of str to KvFormat, optional
            The reader's format of each group. Default: the spec's.

        Returns
        -------
        Explanation
            Group by group what is there and what went, when and why; which lengths that refuses; what would have kept
            it. ``str()`` of it is a text, ``to_json()`` an object of JSON. Why a page went is remembered of about
            as many keys as there are descriptors, 1024 at least and 65536 at most, the latest ones.

        Raises
        ------
        ArgumentError
            Keys of another unit, a slice, unknown group.
        Closed
            The cache was closed.

        Notes
        -----
        Counts nothing and pins nothing. It looks at every block of the prompt: it is for people, not for every request.
        """
        from hybridkv.explain import explanation

        return explanation(self, keys, formats)

    @property
    def manifest(self) -> Manifest:
        """What this cache declares, for :func:`hybridkv.formats.negotiate`, a handshake, or :meth:`Tier.know`."""
        return Manifest.of(self.spec)

    def metrics(self) -> Metrics:
        """Return the counters.

        Returns
        -------
        Metrics
        """
        return read_metrics(self._core, self._index, self._eager_counts.read(), self._skew.counts())

    def stranded(self) -> dict[str, StrandedPages]:
        """Count the cached pages of each group that no usable length needs.

        History whose windows or checkpoints are gone everywhere behind it, states whose history is gone, a window of
        which a block is missing: memory that holds what nobody can use until something else comes back. Pinned pages
        are not counted.

        Returns
        -------
        dict of str to StrandedPages
            By group.

        Raises
        ------
        ArgumentError
            ``eviction="none"``, or a spec without history (:class:`~hybridkv.Prefix`): such a cache keeps no note of
            what continues what.
        Closed
            The cache was closed.

        Notes
        -----
        Looked for when asked, in a few passes over all descriptors: about half a microsecond for each unit that is
        known. Other threads run meanwhile. Memory alone counts: where a tier has what is missing, a restore makes such
        pages useful again. Blocks of states that end between two blocks of history count for every branch that goes on
        there: where a spec has such, some pages may not be told.
        """
        self._check_deciding()
        if not self._notes_order:
            expected = "an order, and a spec with history: else nothing notes what continues what"
            raise ArgumentError("eviction", expected, self.eviction)
        pages = zip(self.spec.groups, self._core.stranded().tolist(), strict=True)
        return {group.name: StrandedPages(count, count * group.total_page_bytes) for group, count in pages}

    @property
    def _notes_order(self) -> bool:
        """Whether each block is noted with what it continues."""
        return self.eviction != "none" and any(isinstance(group.coverage, Prefix) for group in self.spec.groups)

    def verify(self) -> bool:
        """Compare the five derived state bitmaps with the words they are derived from.

        Returns
        -------
        bool
            Whether they agree; exact when the cache is idle.
        """
        return self._core.verify() < 0

    def live(self) -> list[Holder]:
        """Tell who holds pages now: what :meth:`close` and :meth:`reset` would be refused for.

        Returns
        -------
        list of Holder
            One for each lease, fill and ticket with an owner, those among them that have ended and only wait for
            events, and one for all others of a kind.
        """
        return self._holders.live(self._core.live())

    def leaks(self) -> list[Leak]:
        """Tell which handles were garbage collected while they were open.

        Returns
        -------
        list of Leak
            The youngest 256, oldest first; ``leaks`` in the metrics counts them all.
        """
        return self._holders.leaks()
