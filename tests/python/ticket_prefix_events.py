# SPDX-License-Identifier: Apache-2.0
"""What may happen to whole prefixes beside running requests: matches, leases, evictions and fills."""

from __future__ import annotations

from typing import Any

import numpy as np

import hybridkv as hk
import oracle
from ticket_model import Fill, Prefix
from ticket_world import LONGEST, World


class PrefixEvents(World):
    """One method an event; none of them does anything where nothing fits."""

    def sequence(self) -> tuple[int, ...]:
        """A sequence that shares a prefix with what runs or lies in the cache, or none."""
        known = [r.sequence + r.drafts for r in self.requests()]
        known += [prefix for _, prefix in list(self.model.ready)[-40:]]
        base = self.pick(known) if known and self.draw(0, 3) else ()
        base = base[: self.draw(0, len(base))] if self.draw(0, 2) == 0 else base
        return self.tokens(self.draw(1, max(1, LONGEST - 8 - len(base))), base)[: LONGEST - 8]

    # -- asking ------------------------------------------------------------------------------------

    def match(self) -> None:
        sequence = self.sequence()
        found = self.ask(sequence, self.draw(0, 4) == 0)
        if found is not None:
            self.leases.append((*found, sequence))

    def case(self, sequence: Prefix, limit: int) -> oracle.Case:
        pages: dict[str, dict[int, str]] = {name: {} for name in self.model.groups}
        tips: dict[int, dict[str, str]] = {}
        for length in range(1, len(sequence) + 1):
            for name, g in self.model.groups.items():
                key = (name, sequence[:length])
                state = (
                    oracle.READY if key in self.model.ready else oracle.FILLING if key in self.model.claims else None
                )
                if state and length % self.model.unit and sequence[:length] in self.model.filed:
                    tips.setdefault(length, {})[name] = state
                elif state and length % self.model.unit == 0 and length % g.block == 0:
                    pages[name][length // g.block - 1] = state
        return oracle.Case(self.model.groups.values(), pages, tips, limit)

    def ask(self, sequence: tuple[int, ...], exactly: bool = False) -> Any:
        """Match, compare, read what was leased. Returns the lease with its model, or None."""
        keys, limit = self.keys_of(sequence), len(sequence)
        if exactly and limit > 1:
            at = self.draw(1, limit - 1)
            answer = self.case(sequence, limit).answer()
            usable = at if at in answer.boundaries else 0
            v = self.cache.match_at(keys, at)
            assert v.usable_tokens == usable
        else:
            limit = self.draw(1, limit) if self.draw(0, 3) == 0 else limit
            answer = self.case(sequence, limit).answer()
            usable = answer.usable
            v = self.cache.match(keys, limit=limit)
            assert (v.usable_tokens, v.matched_tokens) == (usable, answer.matched), (v, answer)
        counts = self.model.counts
        counts["lookups"] += 1
        if not usable:
            counts["misses" if v.outcome == hk.Outcome.MISS else "false"] += 1
            assert v.lease is None
            return None
        counts["pending"] += 1
        holder = self.model.leased(sequence, usable)
        self.read_lease(v.lease, holder, sequence)
        return v.lease, holder

    def settle(self) -> None:
        chosen = self.pick(self.leases)
        if chosen is None:
            return
        lease, holder, sequence = chosen
        self.read_lease(lease, holder, sequence)
        how = self.pick(["effective", "false", "withdrawn"])
        {"effective": lease.release, "false": lease.fail, "withdrawn": lease.cancel}[how](
            *(("test",) if how == "false" else ())
        )
        self.leases.remove(chosen)
        self.model.settle(how)
        self.model.holders.remove(holder)

    def evict(self) -> None:
        sequence = self.sequence()
        pinned, ready = self.model.pinned(), self.model.ready
        gone = [key for key in self.model.keys(sequence) if key in ready and self.model.word(key) not in pinned]
        assert self.cache.evict(self.keys_of(sequence)) == len(gone)
        for key in gone:
            del ready[key]
        self.model.retired += len(gone)

    # -- fills -------------------------------------------------------------------------------------

    def reserve(self) -> None:
        sequence = self.sequence()
        wanted = self.model.wanted(sequence)
        need = {name: sum(key[0] == name for key in wanted) for name in self.capacity}
        possible = self.room(need, self.model.keys(sequence))[1]
        try:
            fill = self.cache.reserve(self.keys_of(sequence))
        except hk.OutOfPages:
            assert not possible or self.requests(), need
            return
        assert possible, need
        self.reconcile(need)
        pages = {}
        for name, g in self.model.groups.items():
            ids = np.asarray(fill.page_ids(name)).tolist()
            for block in np.flatnonzero(np.array(ids, int) >= 0).tolist():
                pages[name, sequence[: min((block + 1) * g.block, len(sequence))]] = ids[block]
            self.handed_out(name, [page for page in ids if page >= 0])
        assert set(pages) == set(wanted)
        for (name, prefix), page in pages.items():
            if name in self.model.live:
                self.set_state(name, page, prefix)
            else:
                block = (len(prefix) - 1) // self.model.groups[name].block
                self.write(name, page, block, prefix, 0, len(prefix))
        self.fills.append((fill, self.model.reserve(pages)))

    def publish(self) -> None:
        chosen = self.pick(self.fills)
        if chosen is None:
            return
        fill, known = chosen
        fill.publish()
        self.model.publish(known)
        if self.draw(0, 2):
            self.abort(chosen)

    def abort(self, chosen: tuple[Any, Fill] | None = None) -> None:
        chosen = chosen or self.pick(self.fills)
        if chosen is None:
            return
        chosen[0].abort()
        self.model.claims -= chosen[1].claimed
        self.model.fills.remove(chosen[1])
        self.fills.remove(chosen)
