# SPDX-License-Identifier: Apache-2.0
"""A cache and its model side by side: every event is done to both, and everything visible compared after it.

Pages have contents: what each row or state was computed from, written when a step runs (or, with an event given,
when it passes), and checked wherever a request or a lease reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import hybridkv as hk
import oracle
from contract_support import Event
from ticket_model import Fill, Holder, Key, Model, Prefix, Request

Draw = Callable[[int, int], int]  # an integer between both ends, both included
LONGEST = 44  # tokens of a sequence


@dataclass(frozen=True)
class Kind:
    """A model: unit, groups (name, rule, parameter, block, rows a page) and pages of each pool."""

    unit: int
    groups: tuple[tuple[str, str, int, int, int], ...]
    pages: int = 40


KINDS = {
    "homogeneous": Kind(4, (("kv", "prefix", 0, 4, 0),)),
    "window": Kind(4, (("full", "prefix", 0, 4, 0), ("swa", "window", 7, 4, 0))),
    "blocks": Kind(4, (("full", "prefix", 0, 8, 0), ("swa", "window", 6, 4, 0), ("wide", "window", 12, 8, 0))),
    "deepseek": Kind(
        8,
        (
            ("csa", "prefix", 0, 8, 0),
            ("hca", "prefix", 0, 8, 0),
            ("indexer", "prefix", 0, 8, 0),
            ("swa", "window", 5, 8, 4),
            ("overlap", "checkpoint", 0, 8, 0),
            ("pending", "checkpoint", 4, 8, 0),
            ("tail", "checkpoint", 16, 8, 0),
        ),
        30,
    ),
    "chunk": Kind(4, (("full", "prefix", 0, 4, 0), ("local", "chunk", 12, 4, 0))),
    "recurrent": Kind(4, (("state", "checkpoint", 0, 4, 0),)),
    "mixed": Kind(4, (("full", "prefix", 0, 4, 0), ("swa", "window", 9, 8, 0), ("state", "checkpoint", 0, 8, 0))),
}


def declare(kind: Kind) -> Any:
    """The spec, through the public constructors."""
    rules = {
        "prefix": lambda n: hk.Prefix(),
        "window": hk.Window,
        "chunk": hk.Chunk,
        "checkpoint": lambda n: hk.Checkpoint(n or None),
    }
    kinds = {"prefix": hk.StateKind.COMPRESSED, "checkpoint": hk.StateKind.TAIL}
    groups = []
    for name, rule, parameter, block, rows in kind.groups:
        state = hk.StateKind.INDEXER if name == "indexer" else kinds.get(rule, hk.StateKind.WINDOW)
        more: dict[str, Any] = {"row_bytes": 8, "rows_per_page": rows} if rows else {}
        more |= {"in_step_with": "csa"} if name == "indexer" else {}
        groups.append(hk.CacheGroup(name, state, rules[rule](parameter), page_bytes=64, block_tokens=block, **more))
    return hk.CacheSpec(kind.unit, groups)


@dataclass(eq=False)
class Running:
    """A request: the ticket, its model, and what its launched steps will still do to memory."""

    ticket: Any
    model: Request
    states: int
    flight: list[tuple[Any, Callable[[], None]]] = field(default_factory=list)
    computed: Prefix = ()  # what the last step was launched over


class World:
    """The cache beside the model, with the contents of every page."""

    def __init__(self, kind: Kind, draw: Draw, pages: int | None = None) -> None:
        self.kind, self.draw = kind, draw
        self.capacity = {g[0]: pages or kind.pages for g in kind.groups}
        self.cache = hk.HybridCache(declare(kind), blocks=2048, pages=self.capacity, verify="off")
        groups = [oracle.Group(name, rule, n, block, name == "indexer") for name, rule, n, block, _ in kind.groups]
        self.rings = {g[0]: g[4] for g in kind.groups if g[4]}  # windows whose page keeps the trailing rows alone
        live = [g[0] for g in kind.groups if g[1] == "checkpoint" or g[0] in self.rings]
        self.model = Model(kind.unit, groups, live)
        self.model.stays_private = lambda key, page: self.page_at(key) != page
        self.running: list[Running] = []
        self.leases: list[tuple[Any, Holder, Prefix]] = []
        self.fills: list[tuple[Any, Fill]] = []
        self.memory: dict[tuple[str, int], dict[Any, Prefix]] = {}
        self.log: list[str] = []
        self.seen: Counter[str] = Counter()  # what the events reached
        self.closing: list[Running] = []
        self.free = dict(self.capacity)

    # -- drawing -----------------------------------------------------------------------------------

    def tokens(self, count: int, base: Prefix = ()) -> Prefix:
        """A sequence that goes on from `base`; few choices, so that prefixes are shared."""
        more = [2 * n + (1 if n % 5 == 3 and self.draw(0, 2) == 0 else 0) for n in range(len(base), len(base) + count)]
        return base + tuple(more)

    def pick(self, things: list[Any]) -> Any:
        return things[self.draw(0, len(things) - 1)] if things else None

    def keys_of(self, sequence: Prefix) -> Any:
        return hk.block_keys(np.array(sequence, np.int32), self.kind.unit)

    def event(self) -> Any:
        return Event() if self.draw(0, 3) == 0 else None

    def handed_out(self, name: str, pages: Iterable[int]) -> list[int]:
        """Pages that the cache just handed out: nobody may have them, and their contents are lost."""
        pages = [int(page) for page in pages]
        taken = self.pages_of(name)
        for page in pages:
            assert 0 <= page < self.capacity[name], (name, page)
            assert page not in taken, f"page {page} of {name} is handed out while somebody has it"
            self.memory[name, page] = {}
        assert len(set(pages)) == len(pages), (name, pages)
        return pages

    def requests(self) -> list[Request]:
        """Requests that hold something, closed ones whose event has not passed too."""
        return [h for h in self.model.holders if isinstance(h, Request)]

    # -- contents ----------------------------------------------------------------------------------

    def write(self, name: str, page: int, block: int, sequence: Prefix, start: int, end: int) -> None:
        begin = block * self.model.groups[name].block
        for position in range(max(start, begin), min(end, begin + self.model.groups[name].block)):
            self.memory[name, page][position - begin] = sequence[: position + 1]

    def read(self, name: str, page: int, block: int, sequence: Prefix, length: int) -> None:
        """Every row of the block below `length`, or the state at `length`, was computed from `sequence`."""
        contents, begin = self.memory[name, page], block * self.model.groups[name].block
        if name in self.model.live and name not in self.rings:
            assert contents.get("state") == sequence[:length], f"state of {name} at {length}: {contents}"
            return
        first = max(begin, self.model.begins(name, length)) if name in self.rings else begin
        for position in range(first, min(length, begin + self.model.groups[name].block)):
            row = contents.get(position % self.rings[name] if name in self.rings else position - begin)
            assert row == sequence[: position + 1], f"row {position} of {name}, page {page}: {row}"

    def read_lease(self, lease: Any, holder: Holder, sequence: Prefix) -> None:
        for name, g in self.model.groups.items():
            page_ids = np.asarray(lease.page_ids(name))
            held = [block for group, block in holder.held if group == name]
            assert np.flatnonzero(page_ids >= 0).tolist() == sorted(held), (name, page_ids, held)
            assert len(page_ids) == -(-holder.tokens // g.block)
            for block in held:
                assert page_ids[block] == self.model.ready[name, holder.held[name, block]]
                self.read(name, int(page_ids[block]), block, sequence, holder.tokens)

    def land(self, run: Running, event: Any) -> None:
        """What was launched up to the event is done to memory; None: all of it."""
        last = [n for n, (other, _) in enumerate(run.flight) if other is event or event is None]
        for _ in range(last[-1] + 1 if last else 0):
            run.flight.pop(0)[1]()

    def due(self, run: Running) -> list[Any]:
        """Events of a request that have not passed, oldest first."""
        events = [event for event, _ in [*run.flight, *run.model.waiting] if event is not None and not event.passed]
        return list(dict.fromkeys(events))

    def launch(self, run: Running, event: Any, action: Callable[[], None]) -> None:
        run.flight.append((event, action))
        if event is None:
            self.land(run, None)

    def launch_step(self, run: Running, event: Any) -> None:
        """Compute all that was grown: read what each group needs, write rows, states and live pages."""
        r, ticket, model = run.model, run.ticket, self.model
        computed, everything = len(r.sequence), r.sequence + r.drafts
        actions: list[Callable[[], None]] = []
        for name, g in model.groups.items():
            for source, target, rows in np.asarray(ticket.copies(name)).tolist():
                actions.append(lambda n=name, s=source, t=target, k=rows: self.copy(n, s, t, k))
            if name in model.live:
                page = r.live[name]
                for (group, length), kept in r.asked.items():
                    if group == name and length > computed:
                        actions.append(lambda p=kept, n=name, e=everything[:length]: self.set_state(n, p, e))
                if r.drafts:
                    actions.append(lambda p=page, n=name: self.step_state(n, p, everything, computed, r.start))
                continue
            page_ids = np.asarray(ticket.page_ids(name)).tolist()
            for block in range(model.begins(name, computed) // g.block, len(page_ids)):
                where = (name, page_ids[block], block)
                if block * g.block < computed:
                    actions.append(lambda w=where: self.read(*w, everything, computed))
                if (block + 1) * g.block > computed and r.drafts:
                    actions.append(lambda w=where: self.write(*w, everything, computed, len(everything)))
        for action in actions:
            self.launch(run, event, action)
        run.computed = everything

    def copy(self, name: str, source: int, target: int, rows: int) -> None:
        contents = self.memory[name, source]
        if not rows:
            self.memory[name, target] = dict(contents)
        else:
            self.memory[name, target] |= {row: contents[row] for row in range(rows)}

    def set_state(self, name: str, page: int, sequence: Prefix) -> None:
        """A page keeps the state at the end of a sequence; a ring keeps row `position % rows` of the last ones."""
        self.memory[name, page] = {"state": sequence}
        if name in self.rings:
            last = range(max(0, len(sequence) - self.rings[name]), len(sequence))
            self.memory[name, page] = {n % self.rings[name]: sequence[: n + 1] for n in last}

    def step_state(self, name: str, page: int, everything: Prefix, computed: int, start: int) -> None:
        """A step moves the live state on; the first one starts from the leased one where that is needed."""
        if computed == start and start and self.model.needs_state(name, start):
            self.read_live(name, page, everything, start)
        self.set_state(name, page, everything)

    def read_live(self, name: str, page: int, sequence: Prefix, length: int) -> None:
        for block in oracle.needed(self.model.groups[name], length):
            self.read(name, page, block, sequence, length)

    # -- comparing ---------------------------------------------------------------------------------

    def private(self, name: str) -> list[int]:
        """Pages of a group that nobody but their owner may see."""
        pages = [page for f in self.model.fills for key, page in f.pages.items() if key[0] == name]
        for r in self.requests():
            for part in (r.own, r.asked, r.copied):
                pages += [page for key, page in part.items() if key[0] == name]
            pages += [page for group, page in r.leaving if group == name]
            pages += [r.live[name]] if name in r.live else []
        return pages

    def pages_of(self, name: str) -> set[int]:
        """Every page of a group that somebody has."""
        return {*self.private(name), *(page for key, page in self.model.ready.items() if key[0] == name)}

    def census(self, name: str) -> tuple[int, int, int]:
        """Pages filling, held and cached."""
        pinned = self.model.pinned()
        ready = [key for key in self.model.ready if key[0] == name]
        held = sum(self.model.word(key) in pinned for key in ready)
        return len(self.private(name)), held, len(ready) - held

    def room(self, need: dict[str, int], kept: Iterable[Key] = ()) -> tuple[bool, bool]:
        """Whether pages for `need` are free, and whether they could be had without evicting what is in `kept`."""
        pages, model = self.cache.metrics().pages, self.model
        stay = model.pinned() | {model.word(key) for key in kept if key in model.ready}
        cached = dict.fromkeys(need, 0)
        for key in model.ready:
            cached[key[0]] += model.word(key) not in stay
        free = all(n <= pages[name].free for name, n in need.items())
        return free, all(n <= pages[name].free + cached[name] for name, n in need.items())

    def reconcile(self, need: dict[str, int]) -> None:
        """Forget what the cache evicted to make room: only where that was short, and never what is pinned."""
        before, pinned = self.free, self.model.pinned()
        metrics = self.cache.metrics()
        self.free = {name: p.free for name, p in metrics.pages.items()}
        if metrics.retired == self.model.retired:
            return
        for key in list(self.model.ready):
            if self.page_at(key) >= 0:
                continue
            assert self.model.word(key) not in pinned, f"{key} was evicted though it is pinned"
            assert need.get(key[0], 0) > before[key[0]], f"{key} was evicted though {before[key[0]]} pages were free"
            del self.model.ready[key]
            self.model.retired += 1
        assert self.model.retired == metrics.retired

    def check(self) -> None:
        """Counters, conservation, where every page is, and what every request shows."""
        metrics, model = self.cache.metrics(), self.model
        counts = {
            "lookups": metrics.lookups,
            "misses": metrics.misses,
            "false": metrics.false_hits_total,
            "effective": metrics.effective_hits,
            "withdrawn": metrics.withdrawn,
            "pending": metrics.pending,
        }
        assert counts == model.counts, (counts, model.counts)
        published = (metrics.published, metrics.duplicates)
        assert published == (model.published, model.duplicates), (published, model.published, model.duplicates)
        assert (metrics.retired, metrics.unplaced) == (model.retired, model.unplaced)
        for name, pages in metrics.pages.items():
            filling, held, cached = self.census(name)
            spares = pages.filling - filling  # live groups: the page of the next checkpoint, not yet named
            assert 0 <= spares <= sum(name in r.live for r in self.requests()), (name, pages, filling)
            assert (pages.held, pages.cached) == (held, cached), (name, pages, held, cached)
            assert sum((pages.free, pages.filling, pages.held, pages.cached)) == self.capacity[name]
            places = self.private(name) + [page for key, page in model.ready.items() if key[0] == name]
            assert len(set(places)) == len(places), f"a page of {name} is in two places: {sorted(places)}"
        assert self.cache.verify()
        for run in self.running:
            self.check_request(run)
        self.free = {name: p.free for name, p in metrics.pages.items()}

    def check_request(self, run: Running) -> None:
        r, ticket = run.model, run.ticket
        assert (ticket.tokens, ticket.grown_tokens) == (len(r.sequence), r.grown)
        assert (ticket.max_tokens, ticket.closed) == (r.max_tokens, False)
        for name, g in self.model.groups.items():
            expected = [-1] * -(-r.grown // g.block)
            for place, prefix in {**r.leased, **r.held}.items():
                if place[0] == name and name not in self.model.live:
                    expected[place[1]] = self.model.ready[name, prefix]
            for place, page in r.own.items():
                if place[0] == name:
                    expected[place[1]] = page
            for (group, length), page in r.asked.items():
                if group == name:
                    expected[length // g.block - 1] = page
            got = np.asarray(ticket.page_ids(name)).tolist()
            if name in self.model.live:  # pages of other lengths may be shown too
                own = {page for key, page in r.copied.items() if key[0] == name}
                own |= {self.model.ready[name, prefix] for place, prefix in r.leased.items() if place[0] == name}
                got = [-1 if page in own else page for page in got]
            assert got == expected, f"pages of {name}: {got}, expected {expected} of {r}"
            assert ticket.live_page(name) == r.live.get(name, -1), (name, r)

    def page_at(self, key: Key) -> int:
        """The page that is ready there, or -1."""
        info = self.cache.inspect(self.keys_of(key[1]))[key[0]][-1]
        return info.page if info.phase == "ready" else -1

    def check_present(self, sequence: Prefix) -> None:
        """Phase and page of every block of a sequence."""
        seen = self.cache.inspect(self.keys_of(sequence))
        for name, g in self.model.groups.items():
            ends = [min((b + 1) * g.block, len(sequence)) for b in range(len(seen[name]))]
            for end, info in zip(ends, seen[name], strict=True):
                key = (name, sequence[:end])
                expected = "ready" if key in self.model.ready else "filling" if key in self.model.claims else "absent"
                assert (info.phase, key) == (expected, key)
                assert expected != "ready" or info.page == self.model.ready[key]
