# SPDX-License-Identifier: Apache-2.0
"""Small traces and a small model for the tests of replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hybridkv as hk
from hybridkv.replay.pools import Pools, Windows
from hybridkv.replay.replay import Lane
from hybridkv.replay.trace import load_trace
from hybridkv.replay.units import Units, prepare_units

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "tests" / "data" / "traces"

Row = tuple[int, int, list[int]]

ROWS: list[Row] = [
    (8, 4, [1, 2]),  # 0: new. Its answer is named by request 1: the unit of id 3
    (14, 0, [1, 2, 3, 4]),  # 1: finds 12 tokens, and the window at the end of that answer
    (6, 0, [1, 9]),  # 2: finds 4 tokens of history, and no window at 4: a false hit
    (6, 0, [1, 10]),  # 3: finds the window that request 2 left at 4
    (3, 0, [11]),  # 4: a prompt below one unit
]


def tiny_spec(unit_tokens: int = 4) -> hk.CacheSpec:
    """History of 64 bytes a unit, and windows of 5 tokens: the unit before the boundary."""
    return hk.CacheSpec(
        unit_tokens,
        [
            hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64),
            hk.CacheGroup("swa", hk.StateKind.WINDOW, hk.Window(5), page_bytes=128),
        ],
    )


def line(at: float, row: Row, **more: Any) -> str:
    tokens, out, ids = row
    return json.dumps({"timestamp": at, "input_length": tokens, "output_length": out, "hash_ids": ids, **more})


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(line(at, row) + "\n" for at, row in enumerate(rows)))
    return path


def serve(tmp_path: Path, rows: list[Row], kv: int, swa: int, **options: Any) -> Lane:
    """Serve prompts in pools of so many pages, keeping states at the ends of prompts."""
    trace = load_trace(write(tmp_path / "served.jsonl", rows), block_tokens=4)
    units = Units.of(trace, [None] * len(rows), 4)
    spec = options.pop("spec", tiny_spec())
    pages = {group.name: kv if group.coverage == hk.Prefix() else swa for group in spec.groups}
    lane = Lane(spec, Pools(kv, pages, 1, 1.0), Windows("ends"), units=len(units.names), **options)
    for work in prepare_units(trace, units):
        lane.serve(work)
    return lane
