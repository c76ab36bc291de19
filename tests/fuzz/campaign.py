# SPDX-License-Identifier: Apache-2.0
"""Runs a parser over inputs, each made of a seed and a number, and tells what came of it."""

from __future__ import annotations

import random
import resource
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .kept import Try
from .parsers import Parser, Typed

SLOWEST = 2.0  # seconds of CPU time that one input may take, of all threads
HANGS = 60.0  # seconds after which one is taken to wait for what never comes
GROWTH = 256 << 20  # bytes that the process may grow by meanwhile
_FAILURES_KEPT = 5
_TICKS = 10


class Hung(BaseException):
    """An input was given up; no parser takes it for an error of its own."""


@contextmanager
def _watched() -> Iterator[Callable[[], None]]:
    """Give a function that begins an input: who waits for ever, in Python or the system, is interrupted there.

    Ticks are counted, not time: a process that was stopped meanwhile gets one for all of it.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are that one's
        yield lambda: None
        return

    ticks = 0

    def give_up(number: int, frame: object) -> None:
        nonlocal ticks
        ticks += 1
        if ticks == _TICKS:
            raise Hung(f"no end within {HANGS} s")

    def begins() -> None:
        nonlocal ticks
        ticks = 0

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, HANGS / _TICKS, HANGS / _TICKS)
    try:
        yield begins
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Told:
    """What came of a parser.

    Attributes
    ----------
    inputs, refused : int
        Inputs that it read, and those of them that it refused with a typed error.
    slowest, seconds : float
        CPU time of one input, and of all.
    grown : int
        Bytes that the process grew by at its largest.
    failures : list of str
        Other errors, and limits that were passed, with what repeats them.
    """

    parser: str
    inputs: int
    refused: int
    slowest: float
    seconds: float
    grown: int
    failures: list[str] = field(default_factory=list)

    def line(self) -> str:
        rate = self.inputs / max(self.seconds, 1e-9)
        return (
            f"{self.parser:16} {self.inputs:9} inputs, {self.refused:9} refused, {len(self.failures)} failures; "
            f"{self.seconds:6.1f} s ({rate:7.0f}/s), slowest {self.slowest * 1e3:6.1f} ms, grown {self.grown >> 20} MiB"
        )


def run(parser: Parser, inputs: int, seconds: float, seed: int, *, only: int | None = None) -> Told:
    """Let a parser read that many inputs, or as many as it can in that processor time; ends after a few failures."""
    told = Told(parser.name, 0, 0, 0.0, 0.0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with parser.prepare() as one, _watched() as begins:
            begun, held = time.process_time(), _peak()
            for number in range(inputs) if only is None else (only,):
                dice = random.Random(f"{parser.name} {seed} {number}")
                begins()
                _read(told, one, dice, f"--seed {seed} --at {number}", parser.allowed)
                if len(told.failures) >= _FAILURES_KEPT or time.process_time() - begun > seconds:
                    break
            told.seconds = time.process_time() - begun
            told.grown = _peak() - held
    if told.grown > GROWTH:
        told.failures.append(f"{parser.name}: the process grew by {told.grown} bytes; --seed {seed}")
    return told


def _read(told: Told, one: Try, dice: random.Random, again: str, allowed: tuple[type[BaseException], ...]) -> None:
    begun = time.process_time()
    try:
        told.refused += one(dice) is False
    except (*Typed, *allowed):
        told.refused += 1
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        told.failures.append(f"{told.parser} {again}\n{traceback.format_exc()}")
    told.inputs += 1
    took = time.process_time() - begun
    told.slowest = max(told.slowest, took)
    if took > SLOWEST:
        told.failures.append(f"{told.parser} {again}: {took:.1f} s")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
