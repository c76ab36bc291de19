# SPDX-License-Identifier: Apache-2.0
"""The cache agrees with the naive definition of oracle.py on random specs, presence and questions.

10,000 cases from seeds (``HYBRIDKV_SOAK=1`` multiplies them), and a hypothesis strategy over the same
generator, which shrinks what it finds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hybridkv as hk
import oracle
from contract_support import other_format

SOAK = 10 if os.environ.get("HYBRIDKV_SOAK") == "1" else 1
CHUNKS = 20 * SOAK
PER_CHUNK = 500
UNITS = (1, 2, 4, 8, 16)
MULTIPLES = (1, 1, 1, 2, 2, 3, 4, 8)

_RAW = np.zeros(64 * 64 + 128, np.uint8)
MISALIGNED = _RAW[-_RAW.ctypes.data % 64 + 8 :][: 64 * 64].reshape(64, 64)  # 64 pages whose base is 8 bytes off

Draw = Callable[[int, int], int]  # an integer between both ends, both included


@dataclass
class Scene:
    """A random spec with random presence and one question."""

    unit: int
    groups: list[oracle.Group]
    token_count: int
    limit: int | None
    drop: int
    pages: dict[str, dict[int, str]] = field(default_factory=dict)
    tips: dict[int, dict[str, str]] = field(default_factory=dict)
    misaligned: list[str] = field(default_factory=list)
    at: int = 1  # a length to resume at exactly


def pick(draw: Draw, values: Sequence[Any]) -> Any:
    return values[draw(0, len(values) - 1)]


def draw_group(draw: Draw, index: int, unit: int, leader: str | None) -> oracle.Group:
    block = unit * pick(draw, MULTIPLES)
    rule = pick(draw, ("prefix", "window", "window", "chunk", "checkpoint"))
    parameter = 0
    if rule == "window":
        parameter = draw(1, 4 * block + 2)
    elif rule == "chunk":
        parameter = draw(1, 4 * block)
    elif rule == "checkpoint":
        parameter = pick(draw, (0, unit, 2 * block, 3 * unit + 1))
    indexer = rule == "prefix" and leader is not None and draw(0, 1) == 1
    return oracle.Group(f"g{index}", rule, parameter, block, indexer)


def draw_row(draw: Draw, blocks: int, style: int) -> dict[int, str]:
    """States of one group's whole blocks: mostly there with few holes, or thin, or a run."""
    if style == 0:
        row = dict.fromkeys(range(blocks), oracle.READY)
        for _ in range(draw(0, 3)):
            if blocks:
                row.pop(draw(0, blocks - 1), None)
    elif style == 1:
        row = {b: oracle.READY for b in range(blocks) if draw(0, 1)}
    else:
        row = dict.fromkeys(range(draw(0, blocks)), oracle.READY)
    for _ in range(draw(0, 2)):
        if blocks and draw(0, 2) == 0:
            row[draw(0, blocks - 1)] = pick(draw, (oracle.FILLING, oracle.FOREIGN, oracle.GONE, oracle.READY))
    return row


def draw_scene(draw: Draw) -> Scene:
    unit = pick(draw, UNITS)
    groups: list[oracle.Group] = []
    leader = None
    for i in range(draw(1, 8)):
        group = draw_group(draw, i, unit, leader)
        groups.append(group)
        if leader is None and group.rule == "prefix":
            leader = group.name
    units = draw(1, 40)
    count = units * unit + (draw(0, unit - 1) if unit > 1 else 0)
    limit = None if draw(0, 2) else draw(1, count + 1)
    drop = pick(draw, (0, 0, 0, unit, 2 * unit, draw(1, 3 * unit)))
    scene = Scene(unit, groups, count, limit, drop)
    for g in groups:
        scene.pages[g.name] = draw_row(draw, count // g.block, draw(0, 2))
    if unit > 1 and draw(0, 1):
        parents: dict[int, int] = {}
        for _ in range(draw(1, 4)):
            t = draw(0, units - 1) * unit + draw(1, unit - 1)
            if t <= count and t not in scene.tips and parents.get(t // unit, 0) < 4:
                scene.tips[t] = draw_tip(draw, groups, t)
                parents[t // unit] = parents.get(t // unit, 0) + 1
    if draw(0, 7) == 0:
        scene.misaligned = [g.name for g in groups if draw(0, 2) == 0]
    scene.at = draw(1, count)
    return scene


def draw_tip(draw: Draw, groups: list[oracle.Group], t: int) -> dict[str, str]:
    full = draw(0, 2)
    states = {}
    for g in groups:
        if full or draw(0, 2):
            states[g.name] = oracle.READY if draw(0, 9) else pick(draw, (oracle.FILLING, oracle.FOREIGN))
    return states


def declare(scene: Scene) -> Any:
    """The scene's spec, through the public constructors."""
    rules = {
        "prefix": lambda g: hk.Prefix(),
        "window": lambda g: hk.Window(g.parameter),
        "chunk": lambda g: hk.Chunk(g.parameter),
        "checkpoint": lambda g: hk.Checkpoint(g.parameter or None),
    }
    kinds = {"prefix": hk.StateKind.COMPRESSED, "checkpoint": hk.StateKind.TAIL}
    leader = next((g.name for g in scene.groups if g.rule == "prefix"), None)
    groups = [
        hk.CacheGroup(
            g.name,
            hk.StateKind.INDEXER if g.indexer else kinds.get(g.rule, hk.StateKind.WINDOW),
            rules[g.rule](g),
            page_bytes=64,
            alignment=64,
            block_tokens=g.block,
            in_step_with=leader if g.indexer else None,
        )
        for g in scene.groups
    ]
    return hk.CacheSpec(scene.unit, groups)


def populate(cache: Any, scene: Scene) -> list[Any]:
    """Bring the cache into the scene's state; the fills returned must be kept."""
    everything = np.arange(scene.token_count, dtype=np.int32)
    fills = []
    places = [(scene.token_count, scene.pages)]
    places += [(t, {n: {t // block_of(scene, n): s} for n, s in tip.items()}) for t, tip in scene.tips.items()]
    for length, pages in places:
        keys = hk.block_keys(everything[:length], scene.unit)
        wanted = {state: select(pages, state) for state in (oracle.READY, oracle.FOREIGN, oracle.GONE)}
        if wanted[oracle.READY]:
            cache.insert(keys, groups=wanted[oracle.READY])
        if foreign := wanted[oracle.FOREIGN]:
            cache.insert(keys, groups=foreign, formats=dict.fromkeys(foreign, other_format()))
        if gone := wanted[oracle.GONE]:
            cache.insert(keys, groups=gone)
            assert cache.evict(keys, groups=gone) == sum(map(len, gone.values()))
        if filling := select(pages, oracle.FILLING):
            fills.append(cache.reserve(keys, groups=filling))
    return fills


def block_of(scene: Scene, name: str) -> int:
    return next(g.block for g in scene.groups if g.name == name)


def select(pages: dict[str, dict[int, str]], state: str) -> dict[str, list[int]]:
    chosen = {name: [b for b, s in row.items() if s == state] for name, row in pages.items()}
    return {name: blocks for name, blocks in chosen.items() if blocks}


def differences(scene: Scene) -> list[str]:
    """Where the cache's answer and the oracle's differ."""
    spec = declare(scene)
    cache = hk.HybridCache(spec, blocks=128, pages={g.name: 64 for g in scene.groups}, verify="off")
    for name in scene.misaligned:
        cache.bind(name, MISALIGNED)
    fills = populate(cache, scene)
    keys = hk.block_keys(np.arange(scene.token_count, dtype=np.int32), scene.unit)
    limit = scene.token_count if scene.limit is None else scene.limit
    case = oracle.Case(scene.groups, scene.pages, scene.tips, limit, scene.misaligned)
    want = case.answer(scene.drop)
    v = cache.match(keys, limit=scene.limit, drop_tokens=scene.drop)
    outcome = hk.Outcome.MISS if not want.matched else hk.Outcome.REUSABLE
    if want.matched and not want.usable:
        outcome = hk.Outcome.FALSE_HIT
    found = [
        f"{name}: cache {got!r}, oracle {expected!r}"
        for name, got, expected in (
            ("outcome", hk.Outcome(v.outcome), outcome),
            ("matched", v.matched_tokens, want.matched),
            ("usable", v.usable_tokens, want.usable),
            ("boundaries", np.asarray(v.boundaries).tolist(), want.boundaries),
            ("lost", {int(c): n for c, n in dict(v.lost).items() if n}, want.lost),
        )
        if got != expected
    ]
    found += why_differences(scene, v, want)
    found += wait_differences(scene, case, v, want)
    found += lease_differences(scene, v, want)
    found += exact_differences(scene, cache, keys)
    for fill in fills:
        fill.abort()
    return found


def why_differences(scene: Scene, v: Any, want: oracle.Answer) -> list[str]:
    if want.why is None:
        return []
    if v.why is None:
        return [f"why: cache None, oracle {want.why}"]
    code = "missing" if v.why.code in ("stale", "expired") else v.why.code
    if want.why.code == "lagging" and v.why.code == "stale":
        gone = scene.pages[want.why.group or ""].get(want.why.block or 0) == oracle.GONE
        code = "lagging" if gone else code  # an index page that was there and is gone is stale
    if want.why.code == "aligned" and v.why.code == "base":
        code = "aligned"
    if want.why.group is None:
        got: tuple[Any, ...] = (int(v.why.check), code)
        expected: tuple[Any, ...] = (want.why.check, want.why.code)
    else:
        kind = next(g.kind for g in declare(scene).groups if g.name == want.why.group)
        got = (int(v.why.check), v.why.group, v.why.block, code, v.why.kind)
        expected = (want.why.check, want.why.group, want.why.block, want.why.code, kind)
    return [] if got == expected else [f"why: cache {got}, oracle {expected}"]


def wait_differences(scene: Scene, case: oracle.Case, v: Any, want: oracle.Answer) -> list[str]:
    """WAIT where the block that stops the history, or the one to blame, is filling; never without a fill."""
    waits = v.remedy == hk.Remedy.WAIT
    if waits and (v.why is None or v.why.code != "filling"):
        return [f"remedy WAIT with why {v.why}"]
    states = {s for row in (*scene.pages.values(), *scene.tips.values()) for s in row.values()}
    if waits and oracle.FILLING not in states:
        return ["remedy WAIT though nothing is filling"]
    if want.why is not None and want.why.code == "filling" and not waits:
        return [f"remedy {v.remedy!r} where the block to blame is filling"]
    nothing_lost = not want.lost and bool(case.prefix)
    ends = [(g, want.matched // g.block) for g in case.prefix if want.matched % g.block == 0]
    stopped = [g for g, b in ends if scene.pages[g.name].get(b) == oracle.FILLING and (b + 1) * g.block < case.limit]
    if nothing_lost and len(stopped) == len(case.prefix) and not waits:
        return [f"remedy {v.remedy!r} where the next block of every Prefix group is filling"]
    return []


def lease_differences(scene: Scene, v: Any, want: oracle.Answer) -> list[str]:
    if v.lease is None:
        return [] if not want.usable else ["no lease"]
    found = []
    for g in scene.groups:
        page_ids = np.asarray(v.lease.page_ids(g.name))
        held = np.flatnonzero(page_ids >= 0).tolist()
        size = -(-v.lease.tokens // g.block)
        if page_ids.shape != (size,) or held != want.held[g.name]:
            found.append(f"lease {g.name}: cache {page_ids.tolist()}, oracle holds {want.held[g.name]} of {size}")
    v.lease.cancel()
    return found


def exact_differences(scene: Scene, cache: Any, keys: Any) -> list[str]:
    """Resuming at one length: there or not at all."""
    at = min(scene.at, scene.token_count - 1)
    if at < 1:
        return []
    case = oracle.Case(scene.groups, scene.pages, scene.tips, scene.token_count, scene.misaligned)
    want = at if at in case.answer().boundaries else 0
    v = cache.match_at(keys, at)
    found = []
    if (v.usable_tokens, v.matched_tokens <= at, sum(dict(v.lost).values())) != (want, True, v.matched_tokens - want):
        found.append(f"match_at {at}: cache {v}, lost {v.lost}, oracle {want}")
    if v.lease is not None:
        for g in scene.groups:
            held = np.flatnonzero(np.asarray(v.lease.page_ids(g.name)) >= 0).tolist()
            if held != oracle.needed(g, at):
                found.append(f"match_at {at}, lease {g.name}: holds {held}, oracle {oracle.needed(g, at)}")
        v.lease.cancel()
    return found


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_cases_agree_with_the_naive_definition(chunk: int) -> None:
    for number in range(PER_CHUNK):
        seed = chunk * PER_CHUNK + number
        scene = draw_scene(random.Random(seed).randint)
        found = differences(scene)
        assert not found, f"seed {seed}: {found}\n{scene}"


@settings(
    max_examples=300 * SOAK,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_cases_that_shrink_agree_with_the_naive_definition(data: st.DataObject) -> None:
    scene = draw_scene(lambda low, high: data.draw(st.integers(low, high)))
    found = differences(scene)
    assert not found, f"{found}\n{scene}"


def test_the_random_scenes_reach_what_they_are_for() -> None:
    """The generator makes every outcome, check and code often enough for agreement to mean something."""
    seen: dict[str, int] = {}
    for seed in range(2000):
        scene = draw_scene(random.Random(seed).randint)
        limit = scene.token_count if scene.limit is None else scene.limit
        want = oracle.Case(scene.groups, scene.pages, scene.tips, limit, scene.misaligned).answer(scene.drop)
        marks = ["miss" if not want.matched else "reusable" if want.usable else "false hit"]
        marks += [f"check {c}" for c in want.lost]
        marks += [want.why.code] if want.why else []
        marks += ["at a tip"] if want.usable % scene.unit else []
        marks += ["not contiguous"] if len(want.boundaries) > 1 and len(set(np.diff(want.boundaries))) > 1 else []
        marks += [g.rule for g in scene.groups]
        for mark in set(marks):
            seen[mark] = seen.get(mark, 0) + 1
    wanted = [
        "miss",
        "reusable",
        "false hit",
        "check 0",
        "check 1",
        "check 2",
        "missing",
        "partial",
        "lagging",
    ]
    wanted += [
        "filling",
        "format",
        "drop",
        "at a tip",
        "not contiguous",
        "prefix",
        "window",
        "chunk",
        "checkpoint",
    ]
    assert {mark: seen.get(mark, 0) for mark in wanted if seen.get(mark, 0) < 15} == {}


def test_an_oracle_gone_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is able to fail: a window one token too wide is seen within few cases."""
    right = oracle.needed

    def too_wide(group: oracle.Group, t: int) -> list[int]:
        if group.rule != "window":
            return right(group, t)
        return right(oracle.Group(group.name, "window", group.parameter + group.block, group.block), t)

    monkeypatch.setattr(oracle, "needed", too_wide)
    scenes = (draw_scene(random.Random(seed).randint) for seed in range(200))
    assert any(differences(scene) for scene in scenes)
