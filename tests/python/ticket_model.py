# SPDX-License-Identifier: Apache-2.0
"""A cache with running requests as the contract reads: one thread, dictionaries, nothing clever.

A page is known by the number the cache gave it; the model says where every page must be, never which one is
handed out. A prefix is a tuple of tokens, a key is (group, prefix): the page that the group records at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import oracle

Prefix = tuple[int, ...]
Key = tuple[str, Prefix]
Place = tuple[str, int]  # group and own block


@dataclass(eq=False)
class Holder:
    """What pins pages: a lease, or a request."""

    tokens: int
    held: dict[Place, Prefix] = field(default_factory=dict)


@dataclass(eq=False)
class Fill:
    pages: dict[Key, int]  # not yet published
    claimed: set[Key]
    offered: set[Key] = field(default_factory=set)
    done: bool = False


@dataclass(eq=False)
class Request(Holder):
    """One running request. `tokens` are advanced, `drafts` are grown beyond them."""

    sequence: Prefix = ()
    drafts: Prefix = ()
    start: int = 0
    max_tokens: int = 0
    settled: bool = True
    leased: dict[Place, Prefix] = field(default_factory=dict)  # as in `held`: what its lease pinned
    own: dict[Place, int] = field(default_factory=dict)  # private pages of paged groups
    late: set[Place] = field(default_factory=set)  # of them: another was first
    live: dict[str, int] = field(default_factory=dict)
    asked: dict[tuple[str, int], int] = field(default_factory=dict)  # (group, length) -> page, from grow
    copied: dict[tuple[str, int], int] = field(default_factory=dict)  # from the live page, not yet visible
    leaving: list[tuple[str, int]] = field(default_factory=list)
    rewound: bool = False
    live_at: int = 0
    failed: bool = False
    waiting: list[tuple[Any, Callable[[], None]]] = field(default_factory=list)

    @property
    def grown(self) -> int:
        return len(self.sequence) + len(self.drafts)


class Model:
    """What must be true after each call, given that it was accepted."""

    def __init__(self, unit: int, groups: Iterable[oracle.Group], live: Iterable[str]) -> None:
        self.unit = unit
        self.groups = {g.name: g for g in groups}
        self.live = set(live)
        self.ready: dict[Key, int] = {}
        self.claims: set[Key] = set()
        self.holders: list[Holder] = []
        self.fills: list[Fill] = []
        self.stays_private: Callable[[Key, int], bool] = lambda key, page: False  # asked of the cache
        self.filed: set[Prefix] = set()  # tips that match can find
        self.duplicates = self.published = self.retired = self.unplaced = 0
        self.counts = dict.fromkeys(("lookups", "misses", "false", "effective", "withdrawn", "pending"), 0)

    def word(self, key: Key) -> tuple[Prefix, bool]:
        """Groups of one class that record at one prefix share a word, and every pin."""
        return key[1], self.groups[key[0]].rule == "prefix"

    def pinned(self) -> set[tuple[Prefix, bool]]:
        held = [item for h in self.holders for item in {**h.held, **getattr(h, "leased", {})}.items()]
        return {self.word((place[0], prefix)) for place, prefix in held}

    def needs_state(self, name: str, length: int) -> bool:
        g = self.groups[name]
        return bool(oracle.needed(g, length)) if g.rule == "checkpoint" else True

    def begins(self, name: str, length: int) -> int:
        """First token that the next query at `length` still reads."""
        g = self.groups[name]
        if g.rule == "prefix":
            return 0
        return length - min(length, g.parameter - 1) if g.rule == "window" else length // g.parameter * g.parameter

    def keys(self, sequence: Prefix) -> list[Key]:
        """Keys that a prefix records, a tip's included."""
        found = []
        for g in self.groups.values():
            ends = list(range(g.block, len(sequence) + 1, g.block))
            ends += [len(sequence)] if len(sequence) % self.unit else []
            found += [(g.name, sequence[:end]) for end in ends]
        return found

    def leased(self, sequence: Prefix, usable: int) -> Holder:
        """What a lease of that length pins."""
        lease = Holder(usable)
        for name, g in self.groups.items():
            for block in oracle.needed(g, usable):
                lease.held[name, block] = sequence[: min((block + 1) * g.block, usable)]
        self.holders.append(lease)
        return lease

    def settle(self, how: str, r: Request | None = None) -> None:
        if r is not None and r.settled:
            return
        self.counts["pending"] -= 1
        self.counts[how] += 1
        if r is not None:
            r.settled = True

    def wanted(self, sequence: Prefix) -> list[Key]:
        """Keys that a fill of the whole prefix takes pages for."""
        return [k for k in self.keys(sequence) if k not in self.ready and self.needs_state(k[0], len(k[1]))]

    def reserve(self, pages: dict[Key, int]) -> Fill:
        fill = Fill(pages, {key for key in pages if key not in self.claims})
        self.claims |= fill.claimed
        self.fills.append(fill)
        return fill

    def publish(self, fill: Fill) -> None:
        fill.done = True
        for key in sorted(fill.pages):
            if key in fill.claimed:
                self.claims.discard(key)
                fill.claimed.discard(key)
            if self._offer(key, fill.pages[key], again=key in fill.offered):
                del fill.pages[key]
                self._file(key[1])
            fill.offered.add(key)

    def _offer(self, key: Key, page: int, again: bool = False) -> bool:
        if key in self.ready or key in self.claims:
            self.duplicates += not again
            return False
        self.ready[key] = page
        self.published += 1
        return True

    def _file(self, tip: Prefix) -> None:
        """A tip gets one of its parent's four places: an unpinned one goes where none is free, or seems to be."""
        if len(tip) % self.unit == 0:
            return
        whole, pinned = len(tip) // self.unit * self.unit, {prefix for prefix, _ in self.pinned()}
        alive = {key[1] for key in [*self.ready, *self.claims]} & self.filed - {tip}
        others = [t for t in alive if len(t) // self.unit * self.unit == whole and t[:whole] == tip[:whole]]
        for other in others[:]:
            keys = [key for key in self.ready if key[1] == other]
            if other not in pinned and any(self.stays_private(key, self.ready[key]) for key in keys):
                others.remove(other)
                for key in keys:
                    del self.ready[key]
        if len(others) == 4:
            self.unplaced += 1
        else:
            self.filed.add(tip)

    def admit(self, sequence: Prefix, max_tokens: int, lease: Holder | None) -> Request:
        start = 0 if lease is None else lease.tokens
        request = Request(start, sequence=sequence[:start], start=start, max_tokens=max_tokens)
        request.live_at = start
        if lease is not None:
            request.leased, request.settled = lease.held, False
            self.holders.remove(lease)
        self.holders.append(request)
        return request

    def grow(self, r: Request, drafts: Prefix, pages: dict[Place, int], asked: dict[tuple[str, int], int]) -> None:
        r.drafts += drafts
        r.own.update(pages)
        r.asked.update(asked)
        if drafts:  # the step to come moves the live state on, from a right one
            r.live_at, r.rewound = -1, False

    def advance(self, r: Request, count: int, states: Iterable[int], event: Any) -> None:
        r.sequence, r.drafts = r.sequence + r.drafts[:count], r.drafts[count:]
        computed, states = len(r.sequence), list(states)
        shown = computed if event is not None else computed - count  # the event comes after this advance's copies
        if count or r.rewound:
            r.live_at = computed if not r.drafts and not r.rewound else -1
        if computed > r.start:
            self.settle("effective", r)
        self.later(r, event, lambda: self._advanced(r, computed, states, shown))

    def may_copy(self, r: Request, name: str) -> bool:
        """Whether an advance that just ended here may keep a checkpoint of the live page."""
        length = len(r.sequence)
        return r.live_at == length and length % self.groups[name].block == 0 and self.needs_state(name, length)

    def _show_copied(self, r: Request, upto: int) -> None:
        for key in [k for k in r.copied if k[1] <= upto]:
            page = r.copied.pop(key)
            if not r.failed:
                self._offer((key[0], r.sequence[: key[1]]), page)

    def _advanced(self, r: Request, computed: int, states: list[int], shown: int) -> None:
        self._show_copied(r, shown)
        words: dict[Any, dict[Key, Place]] = {}
        for place in sorted(r.own):
            end = (place[1] + 1) * self.groups[place[0]].block
            if end <= computed and place not in r.late and not r.failed:
                key = (place[0], r.sequence[:end])
                words.setdefault(self.word(key), {})[key] = place
        for keys in words.values():
            mine = [key for key in keys if key not in self.ready and key not in self.claims]
            if len(mine) < len(keys) and any(self.stays_private(key, r.own[keys[key]]) for key in mine):
                r.late |= set(keys.values())  # a pin of this word would hold another's page, which is promised
                continue
            for key, place in keys.items():
                if self._offer(key, r.own[place]):
                    r.held[place] = key[1]
                    del r.own[place]
                else:
                    r.late.add(place)
        for key in [k for k in r.asked if k[1] <= computed]:  # those not named are passed and go back
            page = r.asked.pop(key)
            if key[1] in states and not r.failed:
                self._offer((key[0], r.sequence[: key[1]]), page)
        if computed > r.start:
            self._slide_lease(r, computed)
        for place in [p for p in {**r.held, **r.own} if self._slid_out(p, computed)]:
            r.held.pop(place, None)
            r.own.pop(place, None)

    def _slide_lease(self, r: Request, computed: int) -> None:
        """A lease lets go of a word once it needs no page of it: states and partial pages were copied by now."""

        def over(place: Place, prefix: Prefix) -> bool:
            partial = len(prefix) < (place[1] + 1) * self.groups[place[0]].block
            return place[0] in self.live or partial or self._slid_out(place, computed)

        needed = {self.word((p[0], prefix)) for p, prefix in r.leased.items() if not over(p, prefix)}
        r.leased = {p: prefix for p, prefix in r.leased.items() if self.word((p[0], prefix)) in needed}

    def _slid_out(self, place: Place, computed: int) -> bool:
        return (place[1] + 1) * self.groups[place[0]].block <= self.begins(place[0], computed)

    def rewind(self, r: Request, count: int, event: Any) -> None:
        r.drafts = r.drafts[: len(r.drafts) - count]
        r.rewound, r.live_at = (True, -1) if count else (r.rewound, r.live_at)
        gone = [("own", p) for p in r.own if p[1] * self.groups[p[0]].block >= r.grown]
        gone += [("asked", k) for k in r.asked if k[1] > r.grown]
        pages = [(key[0], getattr(r, where).pop(key)) for where, key in gone]
        r.leaving += pages
        if pages:
            self.later(r, event, lambda: [r.leaving.remove(page) for page in pages])

    def fail(self, r: Request) -> None:
        r.failed = True
        self.settle("false", r)

    def close(self, r: Request, keep_tip: bool, event: Any) -> None:
        self.settle("withdrawn", r)
        self.later(r, event, lambda: self._closed(r, keep_tip))

    def tip(self, r: Request, keep: bool) -> dict[Key, int]:
        """What close publishes of the end of the sequence, where all of it was in memory."""
        length, found = len(r.sequence), {}
        if length % self.unit and not keep:
            return {}
        for g in self.groups.values():
            key, block = (g.name, r.sequence), length // g.block
            if g.name in self.live:
                if (length % self.unit or length % g.block == 0) and self.needs_state(g.name, length):
                    found[key] = r.live[g.name] if r.live_at == length else -1
            elif length % self.unit and (g.name, block) in r.own:
                found[key] = r.own[g.name, block]
        whole = length > r.start and not r.failed and -1 not in found.values()
        return found if whole else {}

    def _closed(self, r: Request, keep_tip: bool) -> None:
        self._show_copied(r, len(r.sequence))
        found = self.tip(r, keep_tip)
        if sum(self._offer(key, found[key]) for key in sorted(found)):
            self._file(r.sequence)
        self.holders.remove(r)

    def later(self, r: Request, event: Any, effect: Callable[[], Any]) -> None:
        r.waiting.append((event, effect))
        self.apply(r)

    def apply(self, r: Request) -> None:
        while r.waiting and (r.waiting[0][0] is None or r.waiting[0][0].passed):
            r.waiting.pop(0)[1]()
