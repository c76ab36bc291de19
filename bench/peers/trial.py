# SPDX-License-Identifier: Apache-2.0
"""Clean trials of one call, and the small protocol by which compare.py asks a program for them.

A trial is short, pinned to one core and in real time where that is permitted; it says itself whether it was
preempted, so that it can be dropped. Standard library only: it runs under the interpreter of each peer.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Call = Callable[[], object]
Build = Callable[[int, str], Call]

CASES = ("hit", "hit_pinned", "hit_ids", "hit_forked", "from_tokens", "false_hit", "miss", "decode")
UNIT_TOKENS = 16
WINDOW_TOKENS = 128
FORK_TOKENS = 1024  # hit_forked: another prompt leaves the cached one every so many tokens
DECODING = 256  # decode: so many requests go on by one token each
DECODE_TOKENS = 1024  # until they have so many
NEW_TOKENS = UNIT_TOKENS + 1  # the asked prompt goes on so far beyond what is cached

_WARM_CALLS = 2
_CPU_SHARE = 0.97


def prompt(tokens: int) -> list[int]:
    """The asked prompt: `tokens` that are cached and `NEW_TOKENS` that are not."""
    return list(range(1000, 1000 + tokens + NEW_TOKENS))


def unknown(tokens: int) -> list[int]:
    """A prompt of the same length that differs from its first token on."""
    return [7, *prompt(tokens)[1:]]


def forks(tokens: int) -> list[list[int]]:
    """Prompts that leave the cached one after each `FORK_TOKENS`."""
    return [prompt(tokens)[:at] + [5] * UNIT_TOKENS for at in range(FORK_TOKENS, tokens, FORK_TOKENS)]


def expect(what: str, got: object, expected: object) -> None:
    """Stop where a program does not give the answer that its case is about."""
    if got != expected:
        raise SystemExit(f"{what}: expected {expected}, got {got}")


def trial(call: Call, *, budget_ms: float, core: int) -> dict[str, float | int | bool]:
    """Run `call` for about `budget_ms`, at least three times; times in microseconds."""
    clock = time.perf_counter_ns
    samples: list[int] = []
    with _alone(core):
        for _ in range(_WARM_CALLS):
            call()
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        cpu_ns = time.thread_time_ns()
        start = clock()
        end = start + int(budget_ms * 1e6)
        while True:
            before = clock()
            call()
            after = clock()
            samples.append(after - before)
            if after >= end and len(samples) >= 3:
                break
        cpu_ns = time.thread_time_ns() - cpu_ns
        preempted = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw != switches
    return {
        "min_us": min(samples) / 1e3,
        "median_us": statistics.median(samples) / 1e3,
        "calls": len(samples),
        "clean": not preempted and cpu_ns >= _CPU_SHARE * (after - start),
    }


@contextmanager
def _alone(core: int) -> Iterator[None]:
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    collects = gc.isenabled()
    gc.disable()
    with suppress(PermissionError):  # the trial then is only more often preempted, and says so
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    try:
        yield
    finally:
        if os.sched_getscheduler(0) == os.SCHED_FIFO:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        if collects:
            gc.enable()
        os.sched_setaffinity(0, affinity)


def main(subject: str, version: str, build: Build) -> None:
    """Command line of one program: measure all cases and print one JSON object, or serve compare.py."""
    parser = argparse.ArgumentParser(description=f"Look-ups of a hybrid prefix (full + window) in {subject}.")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 65536], help="cached tokens")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=10, help="clean trials of each case")
    parser.add_argument("--budget-ms", type=float, default=30.0, help="length of a trial")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="core to run on")
    parser.add_argument("--serve", action="store_true", help="one trial for each line '<tokens> <case>' of stdin")
    args = parser.parse_args()
    calls: dict[tuple[int, str], Call] = {}

    def measure(tokens: int, case: str) -> dict[str, float | int | bool]:
        if (tokens, case) not in calls:
            calls[tokens, case] = build(tokens, case)
        return trial(calls[tokens, case], budget_ms=args.budget_ms, core=args.core)

    answers = os.fdopen(os.dup(1), "w", buffering=1)  # what a peer prints goes to stderr, answers stay apart
    os.dup2(2, 1)
    if args.serve:
        print(json.dumps({"subject": subject, "version": version}), file=answers)
        for line in sys.stdin:
            tokens, case = line.split()
            print(json.dumps(measure(int(tokens), case)), file=answers)
        return
    report: dict[str, object] = {"subject": subject, "version": version, "unit_tokens": UNIT_TOKENS}
    for tokens in args.tokens:
        for case in args.cases:
            trials = [clean_trial(lambda t=tokens, c=case: measure(t, c)) for _ in range(args.rounds)]
            report[f"{tokens} {case}"] = summary(trials)
    print(json.dumps(report, indent=2), file=answers)


def clean_trial(once: Callable[[], dict[str, float | int | bool]]) -> dict[str, float | int | bool]:
    """Repeat `once` until it was not preempted, at most 20 times; rest as long as it took after each."""
    for _ in range(20):
        start = time.monotonic()
        result = once()
        time.sleep(time.monotonic() - start)
        if result["clean"]:
            return result
    return result


def summary(trials: list[dict[str, float | int | bool]]) -> dict[str, float | int]:
    """Minimum over all calls, median of the trials' medians, and how many trials were clean."""
    return {
        "min_us": round(min(t["min_us"] for t in trials), 3),
        "median_us": round(statistics.median(t["median_us"] for t in trials), 3),
        "calls": sum(int(t["calls"]) for t in trials),
        "clean_trials": sum(bool(t["clean"]) for t in trials),
        "trials": len(trials),
    }
