# SPDX-License-Identifier: Apache-2.0
"""The guard: what is no part of a graph is refused while a stream captures, and nothing public is forgotten."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hybridkv as hk
from compress_support import a_call
from contract_support import Event, observe, tokens
from graph_support import BLOCK, PAGES, Engine, close_all, spec_of
from hybridkv.fill import Fill
from hybridkv.graph import CaptureError, Staging, Topology, capturing, standin
from hybridkv.lease import Lease
from hybridkv.reference import PUBLISHED
from hybridkv.stream_capture import is_capturing
from hybridkv.ticket import Ticket
from hybridkv.tiers import GetItem
from hybridkv.transfers import Transfer
from tier_support import key, parts, record, room


class World:
    """One of everything that has calls."""

    def __init__(self) -> None:
        self.below = hk.MemoryTier(1 << 20)
        self.engine = Engine(cache=hk.HybridCache(spec_of(), blocks=256, pages=PAGES, tier=self.below))
        self.cache = self.engine.cache
        self.keys = hk.block_keys(range(12), BLOCK, identity=self.engine.spec.identity)
        self.cache.insert(self.keys[:2])
        self.transfer = self.cache.offload(self.keys[:2])
        self.transfer.result(10)
        self.lease = self.cache.match(self.keys).lease
        self.ticket = self.engine.admit("a", [1, 2, 3])
        self.fill = self.cache.reserve(hk.block_keys(range(50, 58), BLOCK, identity=self.engine.spec.identity))
        self.ids = np.zeros(1, np.int32)
        self.page = np.zeros((1, BLOCK), np.float64)
        self.bytes = np.zeros((40, BLOCK * 8), np.uint8)
        self.manifest = hk.formats.Manifest.of(self.engine.spec)
        self.ticket.grow(1)
        self.topology = Topology.capture(self.engine.buffers(), self.engine.spec, staging=self.engine.staging)
        self.tier = hk.MemoryTier(1 << 20)  # nobody's
        self.stack = hk.tiers.TierStack([hk.MemoryTier(1 << 16), hk.MemoryTier(1 << 16)])

    def close(self) -> None:
        self.lease.cancel()
        self.fill.abort()
        self.ticket.close()
        close_all()
        self.cache.close()
        for tier in (self.below, self.tier, self.stack):
            tier.close()


def _step(w: World) -> Any:
    one = np.array([w.ticket.handle]), np.array([1], np.int32), np.array([-1], np.int64)
    return w.cache.step(*one, np.empty((1, 3, 1), np.int32))


def _convert(w: World) -> Any:
    rows = hk.reference.published.plain("float64", 1, page_rows=BLOCK)
    pool, ids = w.engine.pools["full"], w.ids
    return hk.ops.convert(pool[1:3], ids, pool[5:7].copy(), ids, source=rows, target=rows)


REFUSED: dict[str, Callable[[World], Any]] = {
    "HybridCache.match": lambda w: w.cache.match(w.keys),
    "HybridCache.match_at": lambda w: w.cache.match_at(w.keys, 8),
    "HybridCache.reserve": lambda w: w.cache.reserve(w.keys),
    "HybridCache.insert": lambda w: w.cache.insert(w.keys[:2]),
    "HybridCache.evict": lambda w: w.cache.evict(w.keys[:2]),
    "HybridCache.admit": lambda w: w.cache.admit("b", 8),
    "HybridCache.step": _step,
    "HybridCache.bind": lambda w: w.cache.bind("full", w.engine.pools["full"][1:]),
    "HybridCache.set_graph_widths": lambda w: w.cache.set_graph_widths({"full": 2}),
    "HybridCache.reset": lambda w: w.cache.reset(),
    "HybridCache.close": lambda w: w.cache.close(),
    "HybridCache.revoke": lambda w: w.cache.revoke(),
    "HybridCache.update_identity": lambda w: w.cache.update_identity(hk.Identity("z"), on_change="flush"),
    "HybridCache.restore": lambda w: w.cache.restore(w.cache.restorable(w.keys)),
    "HybridCache.prefetch": lambda w: w.cache.prefetch(w.keys),
    "Lease.extend": lambda w: w.lease.extend(w.keys),
    "Lease.lend": lambda w: w.lease.lend("decode-1"),
    "Lease.launched": lambda w: w.lease.launched(Event()),
    "Lease.release": lambda w: w.lease.release(),
    "Lease.fail": lambda w: w.lease.fail("wrong"),
    "Lease.cancel": lambda w: w.lease.cancel(),
    "Fill.publish": lambda w: w.fill.publish(),
    "Fill.abort": lambda w: w.fill.abort(),
    "Ticket.grow": lambda w: w.ticket.grow(1),
    "Ticket.rewind": lambda w: w.ticket.rewind(1),
    "Ticket.advance": lambda w: w.ticket.advance(4, tokens(1)),
    "Ticket.fail": lambda w: w.ticket.fail(),
    "Ticket.close": lambda w: w.ticket.close(),
    "Tier.get": lambda w: w.tier.get([GetItem(key(1), parts(room()))]),
    "Tier.put": lambda w: w.tier.put([record(1)]),
    "Staging": lambda w: w.engine.new_staging(),
    "Staging.update": lambda w: w.engine.staging.update([w.ticket]),
    "Staging.blank": lambda w: w.engine.staging.blank(),
    "Topology.capture": lambda w: Topology.capture({}, w.engine.spec, staging=w.engine.staging),
    "Topology.route": lambda w: w.engine.topology.route([w.ticket]),
    "Topology.inspect_null_pages": lambda w: w.engine.topology.inspect_null_pages(),
    "CapturedCalls.replay": lambda w: w.engine.graphs[2].replay(),
    "ops.gather": lambda w: hk.ops.gather(w.engine.pools["full"], w.ids, w.page),
    "ops.scatter": lambda w: hk.ops.scatter(w.page, w.engine.pools["full"], w.ids),
    "ops.fingerprint": lambda w: hk.ops.fingerprint(w.engine.pools["full"], w.ids, np.zeros(1, np.int64)),
    "ops.convert": _convert,
    "ops.compress_tail": lambda w: a_call(5, 4, True, PUBLISHED["bfloat16"], most_rows=8).run(),
    "HybridCache.stranded": lambda w: w.cache.stranded(),
}
"""Whose pages or bytes are another's afterwards, or that decide, once, what a replay would have to decide each time."""

HARMLESS: dict[str, Callable[[World], Any]] = {
    # They look, and change nothing.
    "HybridCache.alignment": lambda w: w.cache.alignment("full"),
    "HybridCache.inspect": lambda w: w.cache.inspect(w.keys),
    "HybridCache.spans": lambda w: w.cache.spans(w.keys),
    "HybridCache.leaks": lambda w: w.cache.leaks(),
    "HybridCache.live": lambda w: w.cache.live(),
    "HybridCache.metrics": lambda w: w.cache.metrics(),
    "HybridCache.events": lambda w: w.cache.events(),
    "HybridCache.explain": lambda w: w.cache.explain(w.keys),
    "HybridCache.preemption_order": lambda w: w.cache.preemption_order(),
    "HybridCache.restorable": lambda w: w.cache.restorable(w.keys),
    "HybridCache.verify": lambda w: w.cache.verify(),
    "Lease.page_ids": lambda w: w.lease.page_ids("full"),
    "Lease.addresses": lambda w: w.lease.addresses("full"),
    "Lease.handouts": lambda w: w.lease.handouts("full"),
    "Fill.page_ids": lambda w: w.fill.page_ids("full"),
    "Fill.copies": lambda w: w.fill.copies("full"),
    "Ticket.page_ids": lambda w: w.ticket.page_ids("full"),
    "Ticket.addresses": lambda w: w.ticket.addresses("full"),
    "Ticket.handouts": lambda w: w.ticket.handouts("full"),
    "Ticket.copies": lambda w: w.ticket.copies("full"),
    "Ticket.live_page": lambda w: w.ticket.live_page("state"),
    "Staging.buffers": lambda w: w.engine.staging.buffers(2),
    "Topology.check": lambda w: w.topology.check(),
    "Tier.look": lambda w: w.tier.look(key(1)),
    "Tier.usage": lambda w: w.tier.usage(),
    "Tier.poll": lambda w: w.tier.poll(),
    "Tier.wait": lambda w: w.tier.wait(0.0),
    "Tier.drain": lambda w: w.tier.drain(0.0),
    "TierStack.counts": lambda w: w.stack.counts(),
    # Transfers to tiers go on: on a device they are made in a mode that leaves the capture whole.
    "HybridCache.poll": lambda w: w.cache.poll(),
    "HybridCache.offload": lambda w: w.cache.offload(w.keys[:2]).result(10.0),
    "HybridCache.flush": lambda w: w.cache.flush(10.0),
    "Transfer.done": lambda w: w.transfer.done(),
    "Transfer.result": lambda w: w.transfer.result(10.0),
    # They say something about memory or records, and touch no byte of either that anybody has.
    "Staging.mark_static": lambda w: _wrong(w.engine.staging.mark_static),
    "Topology.release": lambda w: w.topology.release(),
    "Transfer.cancel": lambda w: w.transfer.cancel(),
    "Tier.add_arena": lambda w: w.tier.add_arena(w.bytes),
    "Tier.drop_arena": lambda w: w.tier.drop_arena(w.bytes),
    "Tier.probe": lambda w: w.tier.probe([key(1)]),
    "Tier.remove": lambda w: w.tier.remove([key(1)]),
    "Tier.flush": lambda w: w.tier.flush(),
    "Tier.touch": lambda w: w.tier.touch(key(1)),
    "Tier.cancel": lambda w: w.tier.cancel(1),
    **{f"{kind}.know": lambda w: w.tier.know(w.manifest) for kind in ("Tier", "DiskTier", "TierStack")},
    "Tier.keep_manifests": lambda w: _wrong(lambda: w.tier.keep_manifests("")),
    "Tier.close": lambda w: w.tier.close(),
    "TierStack.close": lambda w: w.stack.close(),
    # They make things of their own, or record what is to be replayed.
    "CapturedCalls.call": lambda w: _recorded(lambda graph: graph.call(print, "replayed")),
    "CapturedCalls.record": lambda w: _recorded(lambda graph: graph.record(standin.Event())),
    "Memory.take": lambda w: w.engine.memory.take(1, np.uint8),
    "Memory.free": lambda w: w.engine.memory.free(w.engine.memory.take(1, np.uint8)),
    "ops.plan_conversion": lambda w: hk.ops.plan_conversion(*(hk.reference.published.plain("float64", 1),) * 2),
    "ops.Pools": lambda w: hk.ops.Pools(w.bytes),
    "ops.PageRows": lambda w: hk.ops.PageRows(1, BLOCK * 8),
    "ops.ConversionPlan": lambda w: hk.ops.plan_conversion(*(hk.reference.published.plain("float64", 1),) * 2),
    "ops.CopyStatus": lambda w: hk.ops.CopyStatus(0),
}
"""What may run while a stream captures: nothing of it is missing from a replay."""


def _recorded(record_it: Callable[[Any], None]) -> None:
    with standin.capture() as graph:
        record_it(graph)


def _wrong(call: Callable[[], None]) -> None:
    """Make a call that is refused for its arguments, which tensors or a file would not be: the guard comes before."""
    with pytest.raises((hk.ArgumentError, hk.TierError)):
        call()


CLASSES = (
    hk.HybridCache, Lease, Fill, Ticket, Transfer, hk.Tier, hk.MemoryTier, hk.DiskTier, hk.tiers.TierStack, Staging,
    Topology, standin.Memory, standin.CapturedCalls,
)  # fmt: skip


def public_calls() -> Iterator[str]:
    """Name every public method under the class that defines it, and every name of `hk.ops`."""
    for kind in CLASSES:
        for name in dir(kind):
            static = inspect.getattr_static(kind, name)
            if name.startswith("_") or isinstance(static, property) or not callable(getattr(kind, name)):
                continue
            alike = (c for c in CLASSES if issubclass(kind, c) and inspect.getattr_static(c, name, None) is static)
            known = next(alike)
            yield f"{known.__name__}.{name}"
    yield "Staging"
    yield from (f"ops.{name}" for name in hk.ops.__all__)


@pytest.fixture
def world() -> Any:
    made = World()
    yield made
    made.close()


def seen(world: World) -> str:
    tables = {name: array.tolist() for name, array in world.engine.staging.buffers().items()}
    pools = {name: pool.tolist() for name, pool in world.engine.pools.items()}
    held = world.cache.metrics().pages, world.cache.live(), world.cache.spec.identity, world.lease.owner
    return f"{observe(world.cache, world.keys)} {world.ticket!r} {world.fill!r} {held} {tables} {pools}"


def test_each_public_call_is_refused_or_declared_harmless() -> None:
    assert set(REFUSED) | set(HARMLESS) == set(public_calls())
    assert not set(REFUSED) & set(HARMLESS)


def test_calls_that_are_no_part_of_a_graph_are_refused_and_do_nothing(world: World) -> None:
    before = seen(world)
    for name, call in REFUSED.items():
        with capturing(), pytest.raises(CaptureError) as caught:
            call(world)
        assert caught.value.field, name
        assert "captures" in str(caught.value), name
        assert seen(world) == before, name
        assert world.lease.valid, name


def test_what_is_harmless_is_not_refused_and_changes_nothing(world: World) -> None:
    before = seen(world)
    for name, call in HARMLESS.items():
        with capturing():
            call(world)
        assert seen(world) == before, name


def test_an_event_is_refused_wherever_it_is_given(world: World) -> None:
    before = seen(world)
    for call in (
        lambda: world.lease.release(after=Event()),
        lambda: world.fill.abort(after=Event()),
        lambda: world.ticket.close(after=Event()),
    ):
        with capturing(), pytest.raises(CaptureError):
            call()
        assert seen(world) == before


class AskedOutside(Event):
    """An event that must not be asked while a stream captures: on a device that would end the capture."""

    def query(self) -> bool:
        assert not is_capturing()
        return super().query()


def test_no_effect_is_applied_and_no_event_asked_in_a_capture(world: World) -> None:
    event = AskedOutside()
    fill = world.cache.reserve(world.keys)
    fill.publish(after=event)
    event.passed = True
    before = seen(world)
    with capturing():
        assert fill.page_ids("full").size == 3  # outside, any call on it would apply what is due
        assert world.cache.poll() == 0
        assert world.cache.inspect(world.keys)["full"][2].phase == "filling"
        assert world.cache.metrics().pending
        assert world.transfer.done()
        for wait in (world.transfer.result, world.cache.flush):  # events are not asked: it might never end
            with pytest.raises(CaptureError):
                wait()
    assert seen(world) == before
    world.cache.poll()
    assert world.cache.inspect(world.keys)["full"][2].phase != "filling"


def test_a_lease_that_a_capture_encloses_stays_open(world: World) -> None:
    for inside in (None, KeyError):
        lease = world.cache.match(world.keys).lease
        with pytest.raises(inside or CaptureError), capturing(), lease:
            if inside is not None:
                raise inside
        assert lease.valid is (inside is None)  # with the block's own error the capture is over too
        if inside is None:
            lease.cancel()


def test_a_capture_ends_with_its_block_and_concerns_its_thread_alone(world: World) -> None:
    found: list[Any] = []
    with capturing(), capturing():
        in_thread(lambda: found.append(world.cache.match(world.keys)))
    found[0].lease.release()
    with pytest.raises(KeyError), capturing():
        raise KeyError
    world.cache.match(world.keys).lease.release()


def in_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_capture_is_over_for_who_entered_it_whoever_leaves_it() -> None:
    def held() -> Iterator[None]:
        with capturing():
            yield

    first, second = held(), held()
    next(first)
    next(second)
    states: list[bool] = []

    def close_the_first() -> None:
        first.close()
        states.append(is_capturing())
        with capturing():
            states.append(is_capturing())

    in_thread(close_the_first)
    assert states == [False, True]
    assert is_capturing()  # the second is open
    in_thread(second.close)
    assert not is_capturing()


def torch_that(captures: bool, initialized: bool = True) -> Any:
    def asked() -> bool:
        assert initialized, "asked before CUDA was initialised"
        return captures

    return SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: initialized, is_current_stream_capturing=asked))


def test_a_stream_of_torch_that_captures_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_that(True))
    with pytest.raises(CaptureError):
        world.cache.match(world.keys)
    with pytest.raises(CaptureError):
        world.ticket.grow(1)
    for idle in (torch_that(False), torch_that(True, initialized=False), SimpleNamespace(), None):
        monkeypatch.setitem(sys.modules, "torch", idle)
        world.cache.match(world.keys).lease.release()


def test_a_wait_in_the_graph_is_an_event_that_the_graph_records() -> None:
    engine = Engine()
    keys = hk.block_keys(range(12), BLOCK, identity=engine.spec.identity)
    engine.cache.insert(keys[:2])
    lease = engine.cache.match(keys).lease
    read, out = standin.Event(), engine.memory.take(BLOCK, np.float64)
    engine.pools["full"][1] = 2.0
    with standin.capture() as graph:
        graph.call(np.copyto, out, engine.pools["full"][1])
        with pytest.raises(CaptureError):
            lease.release(after=read)  # a wait of the host would vanish
        graph.record(read)
    graph.replay()
    assert read.query()
    graph.replay()  # open again where it begins, passed where it comes by
    lease.release(after=read)
    assert engine.cache.evict(keys[:2]) > 0
    lease = engine.cache.match(hk.block_keys(range(3), BLOCK, identity=engine.spec.identity)).lease
    assert lease is None
    pending = standin.Event()
    engine.cache.insert(keys[:2])
    lease = engine.cache.match(keys).lease
    lease.release(after=pending)
    assert engine.cache.evict(keys[:2]) == 0  # a replay that reads them is to come
    with standin.capture() as later:
        later.record(pending)
    later.replay()
    engine.cache.poll()
    assert engine.cache.evict(keys[:2]) > 0


def test_nothing_of_ours_is_made_in_a_capture_of_the_stand_in() -> None:
    spec = Engine().spec
    with standin.capture(), pytest.raises(CaptureError):
        Staging(spec, max_blocks=4, padding=-1)
    close_all()
