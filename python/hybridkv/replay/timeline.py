# SPDX-License-Identifier: Apache-2.0
"""What a lane looked like in the course of a trace: samples at equal steps of the trace's own time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybridkv.replay.replay import Lane
from hybridkv.replay.trace import Trace

MOST_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of a lane after some requests, all since the start.

    Attributes
    ----------
    seconds : float
        Since the first request of the trace.
    requests : int
        Requests served.
    tokens, usable, new : int
        See :class:`hybridkv.replay.losses.Losses`.
    causes : dict of str to int
        The same; tokens lost.
    cached : dict of str to int
        Pages of each group that hold something, pinned or not.
    states : dict of str to int
        Units that have a state, by kind.
    """

    seconds: float
    requests: int
    tokens: int
    usable: int
    new: int
    causes: dict[str, int]
    cached: dict[str, int]
    states: dict[str, int]


def take(lane: Lane, seconds: float) -> Sample:
    """Read the figures of a lane.

    Parameters
    ----------
    lane : Lane
        One whose losses are told by cause.
    seconds : float
        The time of the trace.

    Returns
    -------
    Sample
    """
    losses, metrics = lane.losses, lane.cache.metrics()
    assert losses is not None
    return Sample(
        seconds=seconds,
        requests=lane.tally.requests,
        tokens=losses.tokens,
        usable=losses.usable,
        new=losses.new,
        causes=dict(losses.causes),
        cached={name: pages.cached + pages.held for name, pages in metrics.pages.items()},
        states={kind.name.lower(): count for kind, count in metrics.states.items()},
    )


def sample_after(trace: Trace) -> npt.NDArray[np.float64]:
    """Say after which requests to take a sample.

    Parameters
    ----------
    trace : Trace
        The requests.

    Returns
    -------
    numpy.ndarray
        float64 [[requests]]: the end of a step of time, in seconds since the first request, where this request is the
        last one in it; else NaN. Where time goes back, it stands.
    """
    times = np.asarray([request.timestamp for request in trace.requests], dtype=np.float64) * trace.tick_s
    times = np.maximum.accumulate(times) - times[0]
    span = times[-1]
    if span > 0:
        step = np.minimum((times / span * MOST_SAMPLES).astype(np.int64), MOST_SAMPLES - 1)
    else:  # no time is told: equal numbers of requests
        step = np.arange(times.size) * MOST_SAMPLES // times.size
    due = np.full(times.size, np.nan)
    ends = np.append(np.flatnonzero(np.diff(step)), times.size - 1)
    due[ends] = (step[ends] + 1) * (span / MOST_SAMPLES)
    return due
