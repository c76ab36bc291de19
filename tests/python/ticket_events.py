# SPDX-License-Identifier: Apache-2.0
"""What may happen to a cache with running requests: each event draws its arguments and is done to both sides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from contract_support import Event
from ticket_model import Request
from ticket_prefix_events import PrefixEvents
from ticket_world import LONGEST, Running

REASONS = {"requests", "combinations", "watermark", "pages", "never", "lease"}


class Events(PrefixEvents):
    """One method an event; none of them does anything where nothing fits."""

    # -- requests ----------------------------------------------------------------------------------

    def admit(self, sequence: tuple[int, ...] | None = None) -> None:
        if len(self.running) >= 4:
            return
        sequence = sequence or self.sequence()
        lease = holder = None
        if self.draw(0, 4):
            lease, holder = self.ask(sequence) or (None, None)
        start = holder.tokens if holder else 0
        most = max(start + 1, self.draw(start + 1, LONGEST))
        states = self.draw(0, 2) if self.draw(0, 2) == 0 else 0
        worst = {name: self.worst(name, start, most, states) for name in self.capacity}
        idle = len(self.model.holders) == (holder is not None) and not self.fills
        try:
            ticket = self.cache.admit("request", most, lease=lease, states=states)
        except hk.NotAdmitted as refused:
            assert refused.reason in REASONS
            assert refused.retry == (refused.reason != "never")
            never = any(n > self.capacity[name] for name, n in worst.items())
            assert never or refused.reason == "lease" or not idle, (refused, worst)
            assert refused.reason != "never" or never, (refused, worst)
            self.reconcile(dict.fromkeys(self.model.live, 2))
            self.seen["not admitted"] += 1
            if holder is not None:
                assert not lease.valid
                self.model.settle("withdrawn")
                self.model.holders.remove(holder)
            return
        request = self.model.admit(sequence, most, holder)
        self.reconcile(dict.fromkeys(self.model.live, 2))
        for name in self.model.live:
            (request.live[name],) = self.handed_out(name, [ticket.live_page(name)])
        if lease is not None:
            with pytest.raises(hk.LeaseExpired):
                lease.cancel()
            self.read_lease(lease, holder, sequence)
        self.running.append(Running(ticket, request, states))
        self.seen["admitted at a tip" if start % self.kind.unit else "admitted"] += 1

    def worst(self, name: str, start: int, most: int, states: int) -> int:
        """Pages that a request may need at a time beside what its lease pins of Prefix groups."""
        g = self.model.groups[name]
        if name in self.model.live:
            return 2 + states
        if g.rule == "prefix":
            return -(-most // g.block) - start // g.block
        return -(-most // g.block) + 1  # a step may be as long as the request

    def grow(self) -> None:
        run = self.pick(self.running)
        if run is None or run.model.failed:
            return
        r = run.model
        count = self.draw(0, 12) if self.draw(0, 2) else self.draw(1, 2)
        lengths = [n for n in range(len(r.sequence) + 1, r.grown + count + 1) if n % self.kind.unit == 0]
        open_states = len({length for _, length in r.asked})
        lengths = [n for n in lengths if all((name, n) not in r.asked for name in self.model.live)]
        states = lengths[-max(0, run.states - open_states) :] if run.states > open_states and self.draw(0, 1) else []
        self.grow_by(run, count or (0 if states else 1), states)

    def new_blocks(self, r: Request, tokens: int) -> dict[str, list[int]]:
        """Own blocks of each paged group whose first page a growth to `grown + tokens` takes."""
        found = {}
        for g in self.model.groups.values():
            if g.name not in self.model.live:
                first = r.start // g.block if r.grown == r.start else -(-r.grown // g.block)
                blocks = range(first, -(-(r.grown + tokens) // g.block)) if tokens else ()
                found[g.name] = [b for b in blocks if (g.name, b) not in r.own]
        return found

    def state_lengths(self, r: Request, name: str, lengths: Iterable[int]) -> list[int]:
        block = self.model.groups[name].block
        return [n for n in lengths if n % block == 0 and self.model.needs_state(name, n) and (name, n) not in r.asked]

    def needs(self, r: Request, count: int, states: list[int]) -> tuple[Any, Any, dict[str, int]]:
        blocks = self.new_blocks(r, count)
        asked = {name: self.state_lengths(r, name, states) for name in self.model.live}
        return blocks, asked, {name: len(found) for name, found in {**blocks, **asked}.items()}

    def grow_by(self, run: Running, count: int, states: list[int]) -> None:
        r = run.model
        drafts = self.tokens(count, r.sequence + r.drafts)[r.grown :]
        blocks, asked, need = self.needs(r, count, states)
        possible = self.room(need)[1]
        surely = self.room({name: n + (name in self.model.live) for name, n in need.items()})[1]
        promised = not self.leases and not self.fills and not any(q.waiting for q in self.requests())
        try:
            slots = run.ticket.grow(count, states=states)
        except hk.OutOfPages as error:
            if r.grown + count > r.max_tokens:
                assert error.pool == "max_tokens"
                return
            # Pages that wait for an event are still the request's, and in its share.
            assert not surely or r.waiting, (need, error)
            assert not promised, f"an admitted request cannot go on: {need}, {error}"
            self.reconcile({})
            return
        assert possible, need
        assert r.grown + count <= r.max_tokens
        self.reconcile({name: n + (name in self.model.live) for name, n in need.items()})
        pages, kept = {}, {}
        assert (slots.start, slots.end) == (r.grown, r.grown + count)
        for name in self.capacity:
            ids = np.asarray(slots.page_ids(name)).tolist()
            self.handed_out(name, [page for page in ids if page >= 0])
            if name in self.model.live:
                assert [n for n, page in zip(states, ids, strict=True) if page >= 0] == asked[name]
                kept |= {(name, n): page for n, page in zip(states, ids, strict=True) if page >= 0}
                assert slots.live_page(name) == r.live[name]
            else:
                pages |= {(name, block): page for block, page in zip(blocks[name], ids, strict=True)}
                assert slots.live_page(name) == -1
            self.check_copies(run, name, pages)
        assert -1 not in pages.values()
        self.model.grow(r, drafts, pages, kept)
        run.computed = ()
        self.seen["states asked"] += len(kept)

    def check_copies(self, run: Running, name: str, pages: dict[tuple[str, int], int]) -> None:
        """A request that starts inside a shared page copies what that attests into its own page."""
        r = run.model
        expected = []
        for (group, block), prefix in r.leased.items():
            target = r.live.get(name, {**r.own, **pages}.get((group, block), -1))
            partial = len(prefix) < (block + 1) * self.model.groups[name].block
            if group == name and target >= 0 and (partial or name in self.model.live) and r.start:
                expected.append([self.model.ready[name, prefix], target])
        got = np.asarray(run.ticket.copies(name)).tolist()
        assert [row[:2] for row in got] == (expected if len(r.sequence) == r.start else []), (name, got, expected)

    def advance(self) -> None:
        run = self.pick(self.running)
        if run is None or run.model.failed:
            return
        r = run.model
        count = len(r.drafts) if self.draw(0, 2) else self.draw(0, len(r.drafts))
        if count == 0 and len(r.sequence) == r.start:
            return
        event = self.event()
        if event is None:
            self.sync(run)
        self.compute(run, event)
        new, computed = r.drafts[:count], len(r.sequence) + count
        states = sorted({n for _, n in r.asked if len(r.sequence) < n <= computed and self.draw(0, 3)})
        with_keys = self.draw(0, 3) == 0
        named = {"keys": self.keys_of(r.sequence + new)} if with_keys else {"tokens": np.array(new, np.uint32)}
        if not count and self.draw(0, 1):
            named = {}
        asked = {name for name, n in r.asked if n == computed}
        crowded = bool(r.waiting or r.asked or r.copied)
        got = run.ticket.advance(computed, states=states, after=event, **named)
        self.model.advance(r, count, states, event)
        made = {name: np.asarray(rows).tolist() for name, rows in got.items() if len(rows)}
        self.reconcile(dict.fromkeys(self.model.live, 2))
        self.copy_states(run, made, event, count, asked, crowded)

    def compute(self, run: Running, event: Any) -> None:
        """Launch a step, unless one was launched over all that is grown now: a live page may be ahead of it then."""
        everything = run.model.sequence + run.model.drafts
        if run.computed[: len(everything)] != everything or len(everything) == run.model.start:
            self.launch_step(run, event)

    def copy_states(
        self, run: Running, made: dict[str, Any], event: Any, count: int, asked: set[str], crowded: bool
    ) -> None:
        """The cache wants the live pages copied: only where they are at the computed length, and then surely."""
        r, length, kept = run.model, len(run.model.sequence), {}
        for name in self.model.live:
            rows = made.pop(name, [])
            may = count > 0 and name not in asked and self.model.may_copy(r, name)
            assert len(rows) <= may, f"a checkpoint of {name} at {length}, where the live page is at {r.live_at}"
            # Its share may be used up by states that are not visible yet.
            assert rows or not may or crowded or not self.free[name], f"no checkpoint of {name} at {length}"
            for source, target, copied in rows:
                assert (source, copied) == (r.live[name], 0)
                kept[name] = target
        assert not made, made
        self.seen["checkpoints copied"] += len(kept)
        for name, page in kept.items():
            self.handed_out(name, [page])
            self.launch(run, event, lambda n=name, s=r.live[name], t=page: self.copy(n, s, t, 0))
            r.copied[name, length] = page

    def rewind(self) -> None:
        run = self.pick(self.running)
        if run is None or run.model.failed:
            return
        r = run.model
        count = self.draw(0, len(r.drafts))
        event = self.event() if count else None
        if event is not None or (count and self.draw(0, 1)):
            self.launch_step(run, event)  # what was launched may still write what is given back
        run.ticket.rewind(count, after=event)
        self.seen["drafts rejected"] += count
        self.model.rewind(r, count, event)

    def fail(self) -> None:
        run = self.pick(self.running)
        if run is None or self.draw(0, 3):
            return
        if run.model.failed:
            return
        run.ticket.fail("test")
        self.model.fail(run.model)
        with pytest.raises(hk.Closed):
            run.ticket.grow(1)
        with pytest.raises(hk.Closed):
            run.ticket.rewind(0)

    def close(self, run: Running | None = None) -> None:
        run = run or self.pick(self.running)
        if run is None:
            return
        event, keep_tip = self.event(), self.draw(0, 3) > 0
        if event is not None:
            self.launch_step(run, event)
        run.ticket.close(keep_tip=keep_tip, after=event)
        self.model.close(run.model, keep_tip, event)
        self.running.remove(run)
        assert run.ticket.closed
        self.seen["closed late" if event is not None else "closed"] += 1
        for call in (run.ticket.close, lambda: run.ticket.grow(1), lambda: run.ticket.rewind(0)):
            with pytest.raises(hk.Closed):
                call()
        if run.flight or run.model.waiting:
            self.closing.append(run)

    def preempt(self) -> None:
        """Close, and come back by the front door."""
        run = self.pick(self.running)
        if run is None:
            return
        sequence = run.model.sequence + run.model.drafts
        self.close(run)
        self.check()
        if sequence:
            self.admit(self.tokens(1, sequence)[: LONGEST - 1])

    def refused(self) -> None:
        """Calls that are refused and change nothing."""
        run = self.pick(self.running)
        if run is None or run.model.failed:
            return
        r, ticket = run.model, run.ticket
        computed, more = len(r.sequence), len(r.drafts)
        ids = np.array(r.drafts, np.uint32)
        with pytest.raises(hk.ArgumentError):
            ticket.advance(r.grown + 1, np.append(ids, 1).astype(np.uint32))
        with pytest.raises(hk.Busy):
            ticket.rewind(more + 1)
        with pytest.raises(hk.OutOfPages) as short:
            ticket.grow(r.max_tokens - r.grown + 1)
        assert short.value.pool == "max_tokens"
        if more:
            with pytest.raises(hk.ArgumentError):
                ticket.advance(computed + more, ids[:-1])
            with pytest.raises(hk.ArgumentError):
                ticket.advance(computed + more)

    # -- batches and events ------------------------------------------------------------------------

    def step(self) -> None:
        runs = [run for run in self.running if not run.model.failed]
        if not runs:
            return
        for run in runs:
            self.sync(run)
            self.model.apply(run.model)
        if not self.roomy(runs):
            runs = [self.pick(runs)]  # what one evicts another may publish again: one after another then
        names = list(self.capacity)
        growths, totals, ids = [], [], [np.array([], np.uint32)]
        for run in runs:
            r = run.model
            count = len(r.drafts) if self.draw(0, 2) else self.draw(0, len(r.drafts))
            moves = count > 0
            if moves:
                self.compute(run, None)
            totals.append(len(r.sequence) + count if moves else -1)
            growths.append(min(self.draw(0, 6), r.max_tokens - r.grown))
            ids.append(np.array(r.drafts[:count], np.uint32))
        handles = np.array([run.ticket.handle for run in runs], np.int64)
        starts = np.cumsum([0] + [len(part) for part in ids[1:]]).astype(np.int64)
        out = np.full((len(runs), len(names), 16), 7, np.int32)
        copies = np.full((64, 4), 7, np.int32)
        status = self.cache.step(
            handles,
            np.array(growths, np.int32),
            np.array(totals, np.int64),
            out,
            tokens=np.concatenate(ids),
            starts=starts,
            copies=copies,
        )
        made = [row for row in copies.tolist() if row[0] >= 0]
        for i, run in enumerate(runs):
            self.stepped(run, totals[i], growths[i], int(status[i]), dict(zip(names, out[i], strict=True)), made)
        assert not made, made

    def roomy(self, runs: list[Running]) -> bool:
        """Whether no request of a batch can be short of a page."""
        need = dict.fromkeys(self.capacity, 0)
        for run in runs:
            for name, n in self.needs(run.model, 6, [])[2].items():
                need[name] += n + 2
        return self.room(need)[0]

    def stepped(self, run: Running, total: int, count: int, status: int, out: Any, made: list[Any]) -> None:
        """The same for one request of a batch: advanced, then grown."""
        r, names = run.model, list(self.capacity)
        if total >= 0:
            new, asked = total - len(r.sequence), {name for name, n in r.asked if n == total}
            crowded = bool(r.waiting or r.asked or r.copied or any(q.waiting for q in self.requests()))
            self.model.advance(r, new, [], None)
            mine: dict[str, Any] = {}
            for row in list(made):
                if r.live.get(names[row[0]]) == row[1]:
                    mine.setdefault(names[row[0]], []).append(row[1:])
                    made.remove(row)
            self.copy_states(run, mine, None, new, asked, crowded)
        blocks, _, need = self.needs(r, count, [])
        assert status in (0, 1)
        self.seen["stepped"] += 1
        if status == 0:
            self.reconcile({name: n + 2 for name, n in need.items()})
            pages = {}
            for name in names:
                ids = [page for page in out[name].tolist() if page >= 0]
                assert out[name].tolist() == ids + [-1] * (len(out[name]) - len(ids))
                assert len(ids) == len(blocks.get(name, [])), (name, ids, blocks)
                self.handed_out(name, ids)
                pages |= {(name, block): page for block, page in zip(blocks.get(name, []), ids, strict=True)}
            drafts = self.tokens(count, r.sequence + r.drafts)[r.grown :]
            self.model.grow(r, drafts, pages, {})
            run.computed = run.computed if not count else ()
        else:
            assert all((out[name] < 0).all() for name in names)

    def sync(self, run: Running) -> None:
        """The engine waits for all that it launched for a request."""
        for event in self.due(run):
            self.land(run, event)
            event.passed = True

    def pass_event(self) -> None:
        """The oldest event of a request passes; the cache is told by poll."""
        runs = [run for run in [*self.running, *self.closing] if run.flight or run.model.waiting]
        run = self.pick(runs)
        if run is not None and (events := self.due(run)):
            self.land(run, events[0])
            events[0].passed = True
            self.seen["events passed"] += 1
        self.poll()

    def poll(self) -> None:
        self.cache.poll()
        for r in self.requests():
            self.model.apply(r)
        self.closing = [run for run in self.closing if run.flight or run.model.waiting]

    def reset(self) -> None:
        if self.model.holders or any(not fill.done for _, fill in self.fills):
            with pytest.raises(hk.Busy):
                self.cache.reset()
            return
        self.cache.reset()
        self.model.ready.clear()
        self.model.fills.clear()
        self.fills.clear()

    def end(self) -> None:
        """Everything is given back: nothing is held, nothing pending."""
        while self.closing or any(run.model.waiting for run in self.running):
            self.pass_event()
        for run in list(self.running):
            run.ticket.close()
            self.model.close(run.model, True, None)
        self.running.clear()
        while self.fills:
            self.abort()
        for lease, holder, sequence in self.leases:
            self.read_lease(lease, holder, sequence)
            lease.cancel()
            self.model.settle("withdrawn")
            self.model.holders.remove(holder)
        self.leases.clear()
        assert not self.model.holders
        self.check()
        metrics = self.cache.metrics()
        assert metrics.pending == 0
        assert all(p.filling == p.held == 0 for p in metrics.pages.values()), metrics.pages
        for prefix in {prefix for _, prefix in self.model.ready}:
            self.check_present(prefix)


WEIGHTS = {
    "match": 3,
    "settle": 3,
    "evict": 1,
    "reserve": 2,
    "publish": 2,
    "abort": 1,
    "admit": 5,
    "grow": 12,
    "advance": 12,
    "rewind": 4,
    "fail": 1,
    "close": 3,
    "preempt": 1,
    "refused": 1,
    "step": 4,
    "pass_event": 5,
    "reset": 1,
}
__all__ = ["WEIGHTS", "Event", "Events"]
