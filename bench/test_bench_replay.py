# SPDX-License-Identifier: Apache-2.0
"""Question: how many requests a minute does ``hybridkv replay`` take through the real manager, on one core?

Metadata only: units are numbered, matched, leased, reserved, evicted and published; no page has bytes. One run (one
policy, one memory size, eviction by usability), the trace read and numbered and all samples taken: what a user waits
for. Memory is a quarter of what the trace would fill, so that pages run out and go. Time of the process, not of the
clock: other jobs share the machine, and it stands still while they run. What they do to caches and clock rate stays in
the figure: the least of three rounds is told beside the median.

It is to be 100,000 or more. ``HYBRIDKV_TRACES`` names the folder of the whole traces (tests/data/traces/README.md);
without it their first lines are replayed, where reading and start weigh more.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hybridkv.replay.grid import Grid, replay_grid
from hybridkv.replay.pools import demand_bytes
from hybridkv.replay.runs import ENDS
from hybridkv.replay.shapes import BUILT_IN
from hybridkv.replay.trace import load_trace
from hybridkv.replay.units import Units

_DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "traces"
_TRACES = Path(os.environ.get("HYBRIDKV_TRACES", _DATA))
_LEAST = 100  # thousand requests a minute
_SHARE = 1 / 4


@pytest.mark.parametrize(
    ("name", "model", "unit"),
    [
        ("mooncake_conversation", "deepseek-v4-flash", 512),
        ("mooncake_conversation", "deepseek-v4-flash", 256),
        ("agent_magagent_blk16", "deepseek-v4-flash", 256),
        ("agent_miniswe_blk16", "deepseek-v4-flash", 256),
        ("agent_miniswe_blk16", "gemma-3-4b", 16),
    ],
)
def test_requests_a_minute(timer, smoke, name, model, unit):
    path = _TRACES / f"{name}.jsonl"
    shape, most = BUILT_IN[model], 60 if smoke else None
    trace = load_trace(path, requests=most)
    spec = shape.make(unit)
    demand = Units.of(trace, [None] * len(trace.requests), unit).demand(ENDS, spec.boundary_tokens)
    grid = Grid((shape,), memory=(int(demand_bytes(spec, demand) * _SHARE),), unit_tokens=unit, requests=most)
    rates = []

    def replay() -> None:
        began = time.process_time()
        (found,) = replay_grid([path], grid)
        assert found.served == len(trace.requests)
        rates.append(60e-3 * found.served / (time.process_time() - began))

    timer.benchmark.pedantic(replay, rounds=1 if smoke else 3)
    units = trace.prompt_tokens / unit / len(trace.requests)
    what = f"replay {name[:14]}, {model[:11]}, {units:.0f} units of {unit} each"
    timer.figure(what, rates, must=_LEAST, unit="k/min", at_least=True)
