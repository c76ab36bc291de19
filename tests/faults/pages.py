# SPDX-License-Identifier: Apache-2.0
"""Faults in stored pages: a prefix published into a cache of its own, and bytes changed behind the cache's back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import hybridkv as hk
from hybridkv.adapters.transformers import PrefixReuse
from hybridkv.adapters.transformers.measure import Measured
from hybridkv.adapters.transformers.pages import Pages

from .changes import fitted
from .fault import State, same

_BLOCKS = 64  # descriptors of a cache that holds one prefix


@dataclass
class Opened:
    """A cache that holds one prefix, and its pools.

    Attributes
    ----------
    cache : HybridCache
    pages : Pages
    keys : BlockKeys
        Of the prefix and one token more.
    tokens : int
        Length of the prefix.
    """

    cache: hk.HybridCache
    pages: Pages
    keys: hk.BlockKeys
    tokens: int

    def match(self, verify: str = "all", **question: Any) -> hk.Verdict:
        """Ask for the prefix."""
        return self.cache.match(self.keys, verify=verify, **question)

    def match_at(self, tokens: int, **question: Any) -> hk.Verdict:
        """Ask for one length of it or none, without verification."""
        return self.cache.match_at(self.keys, tokens, verify="off", **question)

    def state(self) -> State | None:
        """Return the state that a reader without verification resumes from; None where it would not resume there."""
        verdict = self.match("off")
        if verdict.lease is None or verdict.usable_tokens != self.tokens:
            if verdict.lease is not None:
                verdict.lease.cancel()
            return None
        with verdict.lease as lease:
            return self.pages.read(lease, self.tokens)

    def overwrite(self, right: State, broken: State) -> bool:
        """Write a broken state where the right one lies, in the pages that a match would lease.

        Parameters
        ----------
        right : State
            What is stored.
        broken : State
            Rows too many are cut, rows too few are followed by zeros: a page has room for what belongs there.

        Returns
        -------
        bool
            Whether that changed a byte of any page.
        """
        conformed = {place: fitted(broken.get(place), rows) for place, rows in right.items()}
        if same(right, conformed):
            return False
        verdict = self.match("off")
        assert verdict.lease is not None and verdict.usable_tokens == self.tokens
        for name, group in self.pages.groups.items():
            ids = verdict.lease.page_ids(name)
            for span in self.pages.read_spans(group, self.tokens):
                page = self.pages.pools[name][int(ids[span.block])]
                for region in self.pages.regions[name]:
                    rows = region.of(page)[span.page_row : span.page_row + span.rows]
                    for column in region.columns:
                        wrong = conformed[column.place][span.first : span.first + span.rows]
                        flat = wrong.contiguous().reshape(span.rows, -1).view(torch.uint8)
                        rows[:, column.start : column.start + column.width] = flat
        verdict.lease.cancel()
        return True


def missing_blocks(right: State, broken: State, stored: StoredPrefix) -> dict[str, set[int]]:
    """Return the own blocks of each group that a broken state has no rows for, of those that are stored.

    Of a state that lacks rows in one place the whole page is missing: a page is published whole or not at all.
    """
    found: dict[str, set[int]] = {}
    for place, rows in right.items():
        held = broken[place].shape[0] if place in broken else 0
        if held >= rows.shape[0]:
            continue
        group = stored.measured.layout.groups[place.group]
        blocks = set(stored.bytes[place.group])
        if place in broken and isinstance(group.coverage, hk.Prefix):
            whole = held * group.tokens_per_row // (group.block_tokens or 1)
            blocks = {block for block in blocks if block >= whole}
        found.setdefault(place.group, set()).update(blocks)
    return found


@dataclass
class StoredPrefix:
    """The pages that the adapter stores of a prompt, to be published any number of times.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    prompt : torch.Tensor
        [[tokens]] int64, longer than the prefix.
    tokens : int
        Length of the prefix: aligned, or a tip.

    Attributes
    ----------
    past : transformers.Cache
        The live cache at the end of the prefix.
    state : State
        What the pages hold.
    boundaries : list of int
        Lengths that were stored on the way, the prefix's own last.
    bytes : dict of str to dict of int to torch.Tensor
        Pages [[page_bytes]] uint8 by group and own block.
    """

    model: Any
    prompt: torch.Tensor
    tokens: int
    past: Any = field(init=False)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        reuse = PrefixReuse(self.model, replay=False, memory_bytes=1 << 23)
        self.past = reuse.forward(self.prompt[None, : self.tokens]).past
        self.measured: Measured = reuse.measured
        self.prefix = reuse.keys(self.prompt[: self.tokens].numpy())
        self.keys = reuse.keys(self.prompt[: self.tokens + 1].numpy())
        self.bytes: dict[str, dict[int, torch.Tensor]] = {name: {} for name in reuse.pages.groups}
        verdict = reuse.cache.match(self.keys, verify="all")
        self.boundaries = [int(boundary) for boundary in verdict.boundaries]
        assert self.boundaries[-1] == self.tokens
        for boundary in self.boundaries:
            verdict = reuse.cache.match_at(self.keys, boundary, of=verdict)
            assert verdict.lease is not None
            for name, held in self.bytes.items():
                pool, ids = reuse.pages.pools[name], verdict.lease.page_ids(name).tolist()
                held.update({block: pool[page].clone() for block, page in enumerate(ids) if page >= 0})
            self.state = reuse.pages.read(verdict.lease, boundary)
        if verdict.lease is not None:
            verdict.lease.release()

    def opened(
        self,
        *,
        without: Mapping[str, Collection[int]] | None = None,
        formats: Mapping[str, hk.KvFormat] | None = None,
        tier: hk.Tier | None = None,
    ) -> Opened:
        """Publish the prefix into a cache of its own.

        Parameters
        ----------
        without : mapping of str to collection of int, optional
            Own blocks of groups that are not published.
        formats : mapping of str to KvFormat, optional
            What the writer says that it writes. Default: the model's own formats.
        tier : Tier, optional
            Below the cache.
        """
        left_out = without or {}
        cache = hk.HybridCache(self.measured.spec, blocks=_BLOCKS, tier=tier)
        groups = {group.name: group for group in cache.spec.groups}
        pages = Pages(self.measured.layout, groups, self.measured.shapes, cache.pages)
        for name in groups:
            cache.bind(name, pages.arrays(name))
        chosen = {
            name: {block: page for block, page in blocks.items() if block not in left_out.get(name, ())}
            for name, blocks in self.bytes.items()
        }
        taken = {name: list(blocks) for name, blocks in chosen.items() if blocks}
        fill = cache.reserve(self.prefix, groups=taken, formats=formats)
        for name, blocks in chosen.items():
            ids = fill.page_ids(name)
            for block, page in blocks.items():
                pages.pools[name][int(ids[block])] = page
        fill.publish()
        return Opened(cache, pages, self.keys, self.tokens)
