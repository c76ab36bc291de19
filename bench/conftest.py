# SPDX-License-Identifier: Apache-2.0
"""What the benches share: smoke mode, quiet timing, and the table of figures printed at the end."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import pytest

import hybridkv as hk

SMOKE = os.environ.get("HYBRIDKV_BENCH_SMOKE") == "1"


@dataclass
class Figure:
    """One row of the table: what was measured, and what the issue asks."""

    operation: str
    unit: str
    least: float
    median: float
    must: float | None = None
    aim: float | None = None
    at_least: bool = False  # a ratio that shall be large

    def row(self) -> str:
        def shown(value: float | None) -> str:
            return "-" if value is None else f"{value:g}"

        met = self.must is not None and (self.median >= self.must if self.at_least else self.median <= self.must)
        verdict = "" if self.must is None else ("met" if met else "MISSED")
        return (
            f"{self.operation:<62} {shown(self.must):>8} {shown(self.aim):>8} "
            f"{self.least:>10.3f} {self.median:>10.3f} {self.unit:<6} {verdict}"
        )


@dataclass
class Figures:
    """Figures of this run."""

    rows: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


_FIGURES = Figures()


@contextmanager
def quiet() -> Iterator[None]:
    """Pin to one CPU and, where allowed, keep everything else off it for a few milliseconds."""
    before = os.sched_getaffinity(0)
    collecting = gc.isenabled()
    gc.disable()
    os.sched_setaffinity(0, {max(before)})
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, before)
        if collecting:
            gc.enable()


class Timer:
    """Times callables in rounds; a round is a short quiet trial of each, one after the other."""

    def __init__(self, benchmark: object) -> None:
        self.benchmark = benchmark

    def rounds(self, *calls: Callable[[], object], trial_ms: float = 5.0, rounds: int = 25) -> list[list[float]]:
        """Return, for each callable, its microseconds per call in every round."""
        if SMOKE:
            for call in calls:
                call()
            return [[0.0] for _ in calls]
        times: list[int] = []
        for call in calls:
            start = time.perf_counter_ns()
            call()
            times.append(max(1, int(trial_ms * 1e6 / max(1, time.perf_counter_ns() - start))))
        series: list[list[float]] = [[] for _ in calls]
        for _ in range(rounds):
            for number, (call, count) in enumerate(zip(calls, times, strict=True)):
                with quiet():
                    start = time.perf_counter_ns()
                    for _ in range(count):
                        call()
                    took = time.perf_counter_ns() - start
                series[number].append(took / count / 1e3)
                time.sleep(took / 1e9)
        return series

    def record(
        self, operation: str, call: Callable[[], object], *, must: float | None = None, aim: float | None = None,
        unit: str = "us", trial_ms: float = 5.0,
    ) -> None:  # fmt: skip
        """Measure one callable: into pytest-benchmark's table and into ours. Times decide no test."""
        self.benchmark.pedantic(call, rounds=1 if SMOKE else 20, warmup_rounds=1)  # type: ignore[attr-defined]
        series = self.rounds(call, trial_ms=trial_ms)[0]
        self.figure(operation, series, must=must, aim=aim, unit=unit)

    def figure(
        self, operation: str, series: list[float], *, must: float | None = None, aim: float | None = None,
        unit: str = "us", at_least: bool = False,
    ) -> None:  # fmt: skip
        """Put a series into the table."""
        if not SMOKE:
            row = Figure(operation, unit, min(series), statistics.median(series), must, aim, at_least)
            _FIGURES.rows.append(row)

    def note(self, text: str) -> None:
        """Print a line below the table."""
        _FIGURES.notes.append(text)


@pytest.fixture
def timer(benchmark: object) -> Timer:
    return Timer(benchmark)


@pytest.fixture(scope="session")
def smoke() -> bool:
    return SMOKE


@pytest.fixture(scope="session")
def prompt() -> Callable[..., hk.BlockKeys]:
    """Keys of a prompt of that many tokens and one more, which is what is left to compute."""

    def make(tokens: int, unit: int, identity: hk.Identity, seed: int = 0) -> hk.BlockKeys:
        ids = np.random.default_rng(seed).integers(0, 129280, tokens + 1, dtype=np.uint32)
        return hk.block_keys(ids, unit, identity=identity)

    return make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    if _FIGURES.rows:
        terminalreporter.section("hybridkv benches")
        head = f"{'operation':<62} {'must':>8} {'aim':>8} {'min':>10} {'median':>10} unit"
        for line in [head, *(figure.row() for figure in _FIGURES.rows), *_FIGURES.notes]:
            terminalreporter.write_line(line)
