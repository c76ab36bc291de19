# SPDX-License-Identifier: Apache-2.0
"""Captured graphs of torch over our tables: replay equals eager, changes are eager, events inside, and the guard.

`device` "cpu" tries the same checks on the stand-in, which records calls as a device does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import hybridkv as hk
from hybridkv.adapters import torch_ops
from hybridkv.graph import CaptureError, Eager, Padding, Replay, Staging, Topology, TopologyChanged, standin

PAGES, BLOCK, WIDTH, BUCKETS = 48, 16, 6, (1, 4)


def decode(pool: Any, tables: dict[str, Any], values: Any, out: Any) -> None:
    """Write a row for each request where its slot says, and sum its rows by position."""
    pool.view(-1)[tables["slots.kv"].view(-1)] = values
    table, lengths = tables["table.kv"], tables["lengths"]
    read = torch.ops.hybridkv.gather([pool], table.reshape(-1))[0].view(table.shape[0], -1)
    at = torch.arange(1, read.shape[1] + 1, device=pool.device, dtype=pool.dtype)
    out.copy_((read * at * (at <= lengths[:, None])).sum(1))


class Captured:
    """One graph: of CUDA, or of the stand-in."""

    def __init__(self, device: str, body: Callable[..., None], arguments: tuple[Any, ...], share: Any) -> None:
        self.share = share
        if device == "cpu":
            with standin.capture() as graph:
                graph.call(body, *arguments)
            self.replay = graph.replay
            return
        body(*arguments)  # loads the code
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, pool=share):
            body(*arguments)
        self.replay, self.share = captured.replay, captured.pool()  # graphs share memory, as a tree's do


class Requests:
    """A pool on the device, requests that decode beside each other, and what their steps must give."""

    def __init__(self, device: str) -> None:
        assert "gather" in torch_ops.NAMES
        self.device = device
        group = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=BLOCK * 8)
        self.cache = hk.HybridCache(hk.CacheSpec(BLOCK, [group]), blocks=256, pages={"kv": PAGES})
        self.pool = torch.zeros((PAGES + 1, BLOCK), dtype=torch.float64, device=device)
        self.cache.bind("kv", self.pool[:PAGES])
        padding = {"kv": Padding.null(PAGES)}
        self.staging = Staging(
            self.cache.spec, max_blocks=WIDTH, padding=padding, buckets=BUCKETS, cache=self.cache, device=device
        )
        self.values = torch.zeros(BUCKETS[-1], dtype=torch.float64, device=device)
        self.out = torch.zeros(BUCKETS[-1], dtype=torch.float64, device=device)
        self.topology = Topology.capture(self.buffers(), self.cache.spec, staging=self.staging, cache=self.cache)
        self.tickets = [self.cache.admit(name, BLOCK * (WIDTH + 1)) for name in "abcd"]
        self.sums = dict.fromkeys(self.tickets, 0.0)

    def buffers(self) -> dict[str, Any]:
        return {"kv": self.pool, "values": self.values, "out": self.out}

    def arguments(self, bucket: int) -> tuple[Any, ...]:
        return self.pool, self.staging.buffers(bucket), self.values[:bucket], self.out[:bucket]

    def steps(self, count: int) -> Iterator[tuple[list[Any], Any]]:
        """Yield batches that have grown, and what comes out of them; then say that they ran."""
        for number in range(count):
            batch = self.tickets[: 1 + number % BUCKETS[-1]]
            news = []
            for row, ticket in enumerate(batch):
                ticket.grow(1)
                news.append(float(1 + (7 * number + row) % 90))
                self.sums[ticket] += news[-1] * ticket.grown_tokens
            self.values.copy_(torch.tensor([*news, *[77.0] * (len(self.values) - len(news))], dtype=torch.float64))
            yield batch, torch.tensor([self.sums[ticket] for ticket in batch], dtype=torch.float64)
            for ticket in batch:
                ticket.advance(ticket.grown_tokens, [hash((id(ticket), number)) % 2**31])

    def close(self) -> None:
        for ticket in self.tickets:
            ticket.close(keep_tip=False)
        self.cache.close()


@contextmanager
def _requests(device: str) -> Iterator[Requests]:
    made = Requests(device)
    try:
        yield made
    finally:
        made.close()


def replayed(device: str = "cuda") -> str:
    """Graphs of two buckets that share memory, replayed step by step; past their width they are eager."""
    with _requests(device) as world:
        share, graphs = None, {}
        for bucket in BUCKETS:
            world.staging.blank(bucket)
            graphs[bucket] = Captured(device, decode, world.arguments(bucket), share)
            share = graphs[bucket].share
        places = {name: tensor.data_ptr() for name, tensor in world.staging.buffers().items()}
        replays = eager = 0
        for batch, wanted in world.steps(BLOCK * WIDTH + 8):
            route = world.topology.route(batch)
            if isinstance(route, Replay):
                assert world.staging.update(batch) == route.bucket
                world.topology.check(world.buffers())
                graphs[route.bucket].replay()
                replays += 1
            else:
                assert route.reason == "width", route
                _wide(world, batch)
                eager += 1
            assert torch.equal(world.out[: len(batch)].cpu(), wanted), (route, wanted)
            world.staging.blank()  # what is not in the step must not be needed by the next
        assert replays > BLOCK and eager > 0
        assert world.topology.inspect_null_pages() == []
        assert places == {name: tensor.data_ptr() for name, tensor in world.staging.buffers().items()}
        _changed(world)
    return f"{replays} replays and {eager} eager steps, equal"


def _wide(world: Requests, batch: list[Any]) -> None:
    """The eager step, in tables as wide as it needs."""
    wide = Staging(world.cache.spec, max_blocks=WIDTH + 1, padding=PAGES, buckets=BUCKETS, device=world.device)
    rows = wide.update(batch)
    decode(world.pool, wide.buffers(rows), world.values[:rows], world.out[:rows])


def _changed(world: Requests) -> None:
    """What a graph must not be replayed on."""
    batch = [ticket for ticket in world.tickets if ticket.grown_tokens < BLOCK * WIDTH]
    other = {
        "moved": {**world.buffers(), "kv": world.pool.clone()},
        "stride": {**world.buffers(), "kv": world.pool.T.contiguous().T},
        "dtype": {**world.buffers(), "kv": world.pool.view(torch.int64)},
        "grown": {**world.buffers(), "kv": torch.cat([world.pool, world.pool])},
        "shape": {**world.buffers(), "kv": world.pool[:-1]},
    }
    if world.device != "cpu":
        other["device"] = {**world.buffers(), "kv": world.pool.cpu()}
    for reason, buffers in other.items():
        eager = world.topology.route(batch, buffers=buffers)
        assert isinstance(eager, Eager) and eager.reason == reason, (reason, eager)
    world.values.untyped_storage().resize_(0)
    try:
        world.topology.check()
    except TopologyChanged as error:
        assert error.eager.reason == "freed", error
    else:
        raise AssertionError("freed memory was not noticed")


def compiled(device: str = "cuda", **how: Any) -> str:
    """The same step through ``torch.compile``; its graph trees read our tables where they are."""
    made = torch.compile(decode, **(how or {"mode": "reduce-overhead"}))
    with _requests(device) as world, torch.no_grad():
        world.staging.mark_static()
        arguments = {bucket: world.arguments(bucket) for bucket in BUCKETS}
        for pool, _, values, out in arguments.values():
            for tensor in (pool, values, out):
                torch._dynamo.mark_static_address(tensor)
        steps = 0
        for batch, wanted in world.steps(12):
            route = world.topology.route(batch)
            assert isinstance(route, Replay), route
            world.staging.update(batch)
            world.topology.check()
            made(*arguments[route.bucket])
            assert torch.equal(world.out[: len(batch)].cpu(), wanted), (route, wanted)
            steps += 1
    return f"{steps} steps of two buckets equal"


def events() -> str:
    """A lease is given back after an event that the graph itself records; and the guard sees a capture of torch."""
    with _requests("cuda") as world:
        keys = hk.block_keys(range(3 * BLOCK), BLOCK, identity=world.cache.spec.identity)
        world.cache.insert(keys[:2])
        lease = world.cache.match(keys).lease
        out, page = torch.zeros(BLOCK, dtype=torch.float64, device="cuda"), world.pool[int(lease.page_ids("kv")[0])]
        read = torch.cuda.Event(external=True)
        graph, refused = torch.cuda.CUDAGraph(), 0
        with torch.cuda.graph(graph):
            out.copy_(page)
            for late in (lambda: lease.release(after=read), lambda: world.cache.match(keys), world.staging.blank):
                try:
                    late()
                except CaptureError:
                    refused += 1
            read.record()
        assert refused == 3 and lease.valid
        graph.replay()
        lease.release(after=read)
        torch.cuda.synchronize()
        world.cache.poll()
        assert world.cache.evict(keys[:2]) == 2
    return "3 calls refused in the capture, pages free after the event"
