# SPDX-License-Identifier: Apache-2.0
"""Tiers and what is around them: an event loop, threads, garbage collection, forks, and the end of the interpreter."""

from __future__ import annotations

import asyncio
import copy
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import hybridkv as hk
from hybridkv.tiers import GetItem, Report
from tier_support import Asker, DictTier, key, parts, record, room


def test_a_loop_waits_for_the_event_fd_beside_other_things() -> None:
    async def one_get(tier: hk.Tier, timeout: float | None) -> list[Report]:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[list[Report]] = loop.create_future()
        loop.add_reader(tier.event_fd, lambda: arrived.done() or arrived.set_result(tier.poll()))
        tier.get([GetItem(key(1), parts(room()))], timeout=timeout)
        try:
            return await asyncio.wait_for(arrived, 60)
        finally:
            loop.remove_reader(tier.event_fd)

    with DictTier() as tier:
        Asker(tier).put(record(1))
        assert [report.status.name for report in asyncio.run(one_get(tier, None))] == ["OK"]
        tier.gate.clear()  # nothing moves but the deadline
        assert [report.status.name for report in asyncio.run(one_get(tier, 0.02))] == ["TIMEOUT"]
        tier.gate.set()


@pytest.mark.parametrize("threaded", [False, True])
def test_threads_that_ask_and_threads_that_poll(threaded: bool) -> None:
    names = range(1, 9)
    taken: set[tuple[int, int]] = set()
    released: list[tuple[int, int]] = []
    wrong: list[Report] = []
    lock = threading.Lock()
    with hk.MemoryTier(1 << 22, threaded=threaded, most_items=64, breaker_after=0) as tier:
        for name in names:
            Asker(tier).put(record(name))

        def ask(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(100):
                name = int(random.integers(1, 9))
                wanted = [GetItem(key(name), parts(room())), GetItem(key(99), ())]
                try:
                    batch = tier.get(wanted, timeout=None if random.integers(2) else 1e-5)
                except hk.Busy:
                    continue
                with lock:
                    taken.update({(batch, 0), (batch, 1)})

        def poll() -> None:
            while True:
                reports = tier.poll(3)
                with lock:
                    released.extend((r.batch, r.item) for r in reports if r.released)
                    wrong.extend(r for r in reports if r.status.name not in (("OK", "MISS")[r.item], "TIMEOUT"))
                if not reports and not tier.wait(0.01) and done.is_set():
                    return

        done = threading.Event()
        pollers = [threading.Thread(target=poll) for _ in range(2)]
        askers = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
        for thread in (*pollers, *askers):
            thread.start()
        for thread in askers:
            thread.join()
        assert tier.drain(60)
        done.set()
        for thread in pollers:
            thread.join()
        assert not wrong
        assert sorted(released) == sorted(taken)
        assert not tier._held


def test_arrays_of_an_ask_live_until_their_release() -> None:
    with DictTier(breaker_after=0) as tier:
        ask = Asker(tier)
        ask.put(record(1))
        tier.gate.clear()
        arrays = room()
        alive = [weakref.ref(array) for array in arrays]
        batch = tier.get([GetItem(key(1), parts(arrays))], timeout=0.005)
        del arrays
        assert not ask.first(batch).released
        gc.collect()
        assert all(ref() is not None for ref in alive)
        tier.gate.set()
        assert ask.last(batch).late
        gc.collect()
        assert all(ref() is None for ref in alive)


def test_a_memory_tier_that_is_collected_with_work_under_way_is_closed() -> None:
    for _ in range(20):
        tier = hk.MemoryTier(1 << 22, threaded=True)
        tier.put([record(name) for name in range(1, 9)])
        tier.get([GetItem(key(name), parts(room())) for name in range(1, 9)])
        gone = weakref.ref(tier)
        del tier
        assert gone() is None


def test_an_adapter_is_collected_once_it_is_closed() -> None:
    tier = DictTier()
    Asker(tier).put(record(1))
    gone = weakref.ref(tier)
    tier.close()
    del tier
    gc.collect()
    assert gone() is None


def test_a_tier_is_an_owner() -> None:
    with hk.MemoryTier(1 << 20) as tier, pytest.raises(TypeError, match="copied"):
        copy.copy(tier)
    with pytest.raises(TypeError):
        hk.TierAdapter()  # type: ignore[abstract]


def _run(code: str, seconds: float = 60) -> str:
    start = f"import sys; sys.path[:0] = {[*sys.path, str(Path(__file__).parent)]!r}\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", start + code], capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


SETUP = """
import os, time, threading
import hybridkv as hk
from hybridkv.tiers import GetItem
from tier_support import Asker, DictTier, key, parts, record, room
"""


@pytest.mark.parametrize("open_tier", ["hk.MemoryTier(1 << 22)", "hk.MemoryTier(1 << 22, threaded=True)", "DictTier()"])
def test_the_interpreter_ends_with_a_tier_at_work(open_tier: str) -> None:
    code = f"""{SETUP}
tier = {open_tier}
tier.put([record(name) for name in range(1, 50)])
tier.get([GetItem(key(name), parts(room())) for name in range(1, 50)])
print("end")
"""
    assert _run(code) == "end\n"


@pytest.mark.parametrize("how", ["self.gate.wait()", "time.sleep(1000)", "while True: pass"])
def test_the_interpreter_ends_although_a_call_of_an_adapter_does_not(how: str) -> None:
    code = f"""{SETUP}
import hybridkv.tiers.tier as module
module._GRACE_SECONDS = 0.05
class Stuck(DictTier):
    def load(self, key, parts):
        os.write(1, b"inside\\n")
        {how}
tier = Stuck(threads=2)
tier.gate.clear()
arrays = [room(), room(), room()]
tier.get([GetItem(key(1), parts(each)) for each in arrays], timeout=0.01)
while len(tier.poll()) == 0:
    tier.wait()
time.sleep(0.05)
"""
    assert set(_run(code).split()) == {"inside"}


def test_a_call_that_returns_while_the_interpreter_ends_does_no_harm() -> None:
    code = f"""{SETUP}
import atexit
import hybridkv.tiers.tier as module
module._GRACE_SECONDS = 0.0
class Slow(DictTier):
    def contains(self, key):
        time.sleep(0.001)
        return True
tier = Slow(threads=4)
tier.probe([key(1 + i) for i in range(2000)])
time.sleep(0.01)
"""
    for _ in range(2):
        _run(code)


@pytest.mark.parametrize("open_tier", ["hk.MemoryTier(1 << 22, threaded=True)", "DictTier(threads=2)"])
def test_a_fork_leaves_the_tier_to_the_parent(open_tier: str) -> None:
    code = f"""{SETUP}
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which is what this is about
tier = {open_tier}
ask = Asker(tier)
assert ask.put(record(1)) == "OK"
tier._lock.acquire()  # as a thread might have it that the child does not
child = os.fork()
if child == 0:
    for use in (lambda: tier.get([GetItem(key(1), ())]), lambda: tier.put([record(2)]), tier.flush, tier.poll,
                tier.usage, tier.close, tier.drain, lambda: tier.event_fd, lambda: tier.look(key(1)), tier.wait):
        try:
            use()
        except hk.Closed:
            continue
        os._exit(1)
    del ask, tier
    other = hk.MemoryTier(1 << 20)  # the child may have its own
    assert Asker(other).put(record(1)) == "OK"
    raise SystemExit(0)  # an end like any other, with what it inherited
tier._lock.release()
assert os.waitpid(child, 0)[1] == 0
assert ask.has(1)
tier.close()
print("parent")
"""
    assert _run(code).endswith("parent\n")
