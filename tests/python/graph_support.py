# SPDX-License-Identifier: Apache-2.0
"""A small engine with captured graphs on the stand-in: three groups, a decode step, and what it must give.

A step's output is exact in float64, so that any wrong row shows. What it must be follows from the values alone
(`must_be`), without pages. The kernels are like those of devices: they touch every row of a bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import hybridkv as hk
from hybridkv.graph import Padding, Staging, Topology, standin

BLOCK, WINDOW = 4, 6
WIDTHS = {"full": 6, "window": 3}
PAGES = {"full": 40, "window": 40, "state": 64}
FORMAT = hk.KvFormat("rows", "float64", producer="ours")
# The null page of "full" is page 0 of its array, that of the others the last one.
PADDING = {"full": Padding.null(0, first=1), "window": Padding.null(40), "state": Padding.null(64)}
BUCKETS = (2, 4)


def spec_of() -> Any:
    """History, a window and a state, in blocks of 4 tokens."""
    row, kinds = 8, hk.StateKind
    return hk.CacheSpec(
        BLOCK,
        [
            hk.CacheGroup("full", kinds.COMPRESSED, hk.Prefix(), page_bytes=BLOCK * row, format=FORMAT),
            hk.CacheGroup("window", kinds.WINDOW, hk.Window(WINDOW), page_bytes=BLOCK * row),
            hk.CacheGroup("state", kinds.TAIL, hk.Checkpoint(), page_bytes=row),
        ],
    )


# -- kernels ----------------------------------------------------------------------------------------


def decode(pools: Mapping[str, Any], tables: Mapping[str, Any], values: Any, out: Any) -> None:
    """Write a value a row, and read what the row has: history, window and state."""
    for name in ("full", "window"):
        slots, block = tables[f"slots.{name}"][:, 0], pools[name].shape[1]
        pools[name][slots // block, slots % block] = values
    live = tables["table.state"][:, 0]
    pools["state"][live, 0] = (3 * pools["state"][live, 0] + values) % 1009
    lengths = tables["lengths"]
    full = attend(pools["full"], tables["table.full"], np.zeros_like(lengths), lengths, None)
    window = attend(pools["window"], tables["table.window"], tables["first.window"], lengths, WINDOW)
    out[...] = full + 1e5 * window + 1e10 * pools["state"][live, 0]


def attend(pool: Any, table: Any, first: Any, lengths: Any, window: int | None) -> Any:
    """Sum the rows of each table, by position; masked ones times 0, so that what is not finite there is seen."""
    rows, width = table.shape
    block = pool.shape[1]
    at = first[:, None] * block + np.arange(width * block)
    mask = at < lengths[:, None]
    if window is not None:
        mask = mask & (at >= lengths[:, None] - window)
    read = pool[np.clip(table, -pool.shape[0], pool.shape[0] - 1)].reshape(rows, width * block)
    return ((at + 1) * mask * read).sum(1)


def must_be(history: Sequence[float]) -> float:
    """The output of a request's last step, from the values of all its tokens."""
    state = 0.0
    for value in history:
        state = (3 * state + value) % 1009
    weighted = [(i + 1) * value for i, value in enumerate(history)]
    return sum(weighted) + 1e5 * sum(weighted[-WINDOW:]) + 1e10 * state


# -- the engine -------------------------------------------------------------------------------------


_OPEN: list[Engine] = []


def close_all() -> None:
    """End the requests of every engine that a test made."""
    while _OPEN:
        _OPEN.pop().close()


class Engine:
    """Requests that decode side by side. Public by name: what an engine has of its own."""

    def __init__(self, *, pages: Iterable[Any] = (), cache: Any = None) -> None:
        self.memory = standin.Memory(1 << 17)
        self.cache = hk.HybridCache(spec_of(), blocks=256, pages=PAGES) if cache is None else cache
        self.spec = self.cache.spec
        self.pools = {
            "full": self.memory.take((41, BLOCK), np.float64),
            "window": self.memory.take((41, BLOCK), np.float64),
            "state": self.memory.take((65, 1), np.float64),
        }
        for name, pool in self.pools.items():
            self.cache.bind(name, pool[1:] if name == "full" else pool[:-1])
        self.values = self.memory.take(BUCKETS[-1], np.float64)
        self.out = self.memory.take(BUCKETS[-1], np.float64)
        self.staging = self.new_staging()
        self.graphs = {bucket: self.captured(bucket) for bucket in BUCKETS}
        self.topology = Topology.capture(self.buffers(), self.spec, staging=self.staging, cache=self.cache, pages=pages)
        self.histories: dict[Any, list[float]] = {}
        _OPEN.append(self)

    def new_staging(self) -> Any:
        return Staging(
            self.spec, max_blocks=WIDTHS, padding=PADDING, buckets=BUCKETS, compact=["window"], cache=self.cache
        )

    def captured(self, bucket: int) -> Any:
        with standin.capture() as graph:
            graph.call(decode, self.pools, self.staging.buffers(bucket), self.values[:bucket], self.out[:bucket])
        return graph

    def buffers(self, **other: Any) -> dict[str, Any]:
        """What the graphs read and write, apart from the tables; some of it replaced."""
        return {**self.pools, "values": self.values, "out": self.out, **other}

    # -- requests ----------------------------------------------------------------------------------

    def admit(self, name: str, values: Sequence[float] = (), *, groups: Any = None, most: int = 32) -> Any:
        """Admit a request and run its prompt, token by token, eager."""
        ticket = self.cache.admit(name, most, groups=groups)
        self.histories[ticket] = []
        for value in values:
            self.grow([ticket], [value])
            self.eager([ticket])
            self.advance([ticket])
        return ticket

    def grow(self, tickets: Sequence[Any], values: Sequence[float]) -> None:
        """A token more for each request."""
        for ticket, value in zip(tickets, values, strict=True):
            ticket.grow(1)
            if not self.histories[ticket]:  # a state begins at 0, whoever had the page
                self.pools["state"][ticket.live_page("state")] = 0.0
            self.histories[ticket].append(float(value))

    def replay(self, tickets: Sequence[Any], bucket: int | None = None) -> Any:
        """Run the step in a captured graph; rows without a request have a value too, as they have on devices."""
        size = self.staging.update(tickets, bucket=bucket)
        return self.run(tickets, size)

    def run(self, tickets: Sequence[Any], bucket: int) -> Any:
        """Replay on whatever the tables say."""
        news = [self.histories[ticket][-1] for ticket in tickets]
        self.values[...] = [*news, *(77.0 for _ in range(BUCKETS[-1] - len(news)))]
        self.graphs[bucket].replay()
        return self.out[: len(tickets)].copy()

    def eager(self, tickets: Sequence[Any], pools: Mapping[str, Any] | None = None) -> Any:
        """Run the step without a graph: page by page, from the requests themselves."""
        pools = self.pools if pools is None else pools
        got = []
        for ticket in tickets:
            value, last = self.histories[ticket][-1], ticket.grown_tokens - 1
            got.append(0.0)
            for name, first, scale in (("full", 1, 1.0), ("window", 0, 1e5)):
                if name in ticket.groups:
                    ids, pool = ticket.page_ids(name) + first, pools[name]
                    pool[ids[last // BLOCK], last % BLOCK] = value
                    begin = 0 if name == "full" else max(0, last + 1 - WINDOW)
                    read = [(i + 1) * pool[ids[i // BLOCK], i % BLOCK] for i in range(begin, last + 1)]
                    got[-1] += scale * sum(read)
            live = ticket.live_page("state")
            pools["state"][live, 0] = (3 * pools["state"][live, 0] + value) % 1009
            got[-1] += 1e10 * pools["state"][live, 0]
        return np.array(got)

    def advance(self, tickets: Sequence[Any]) -> None:
        """Say that the step was run, and make the copies that it asks for."""
        for ticket in tickets:
            total = ticket.grown_tokens
            ids = [hash((id(ticket), at)) % 2**31 for at in range(ticket.tokens, total)]
            for name, rows in ticket.advance(total, ids).items():
                first = PADDING[name].first
                for source, target, _ in rows.tolist():
                    self.pools[name][target + first] = self.pools[name][source + first]

    def right(self, tickets: Sequence[Any]) -> Any:
        """What the step must give."""
        return np.array([must_be(self.histories[ticket]) for ticket in tickets])

    def null_pages(self) -> list[Any]:
        """The pages that padding points to."""
        return [pool[PADDING[name].page] for name, pool in self.pools.items()]

    def held(self) -> dict[str, Any]:
        """Copies of all pages but the null pages: what no step of others may change."""
        return {name: np.delete(pool, PADDING[name].page, axis=0) for name, pool in self.pools.items()}

    def close(self) -> None:
        for ticket in self.histories:
            if not ticket.closed:
                ticket.close(keep_tip=False)


def routed(engine: Any, batch: Any, reason: str, **more: Any) -> Any:
    """Route a step that must be eager for this reason, and see it counted."""
    before = engine.cache.metrics().eager[reason], engine.topology.counts[reason]
    eager = engine.topology.route(batch, **more)
    assert isinstance(eager, hk.graph.Eager), eager
    assert eager.reason == reason, eager
    assert eager.field or eager.needed > eager.width, eager
    after = engine.cache.metrics().eager[reason], engine.topology.counts[reason]
    assert after == (before[0] + 1, before[1] + 1)
    return eager


def refused(engine: Any, reason: str, buffers: Any = None) -> None:
    """Assert that a check right before the replay refuses it for this reason."""
    try:
        engine.topology.check(buffers)
    except hk.graph.TopologyChanged as error:
        assert error.eager.reason == reason, error
        return
    raise AssertionError(f"{reason} was not noticed")
