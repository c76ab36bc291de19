# SPDX-License-Identifier: Apache-2.0
"""Looking into the cache: states of blocks, forms of spans, counters."""

from __future__ import annotations

from hybridkv.cache_base import CacheBase
from hybridkv.coverage import Prefix
from hybridkv.errors import ArgumentError
from hybridkv.formats import Manifest
from hybridkv.holders import Holder, Leak
from hybridkv.inspection import PHASES, BlockInfo, form_spans, own_block_count
from hybridkv.keys import BlockKeys
from hybridkv.metrics.counts import Metrics, StrandedPages, read_metrics


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
