# SPDX-License-Identifier: Apache-2.0
"""What is served: lengths, how much at a time, how much of it was seen before. Declared, or counted in a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridkv.arguments import count, finite_number, integer, length, positive_number
from hybridkv.errors import ArgumentError

if TYPE_CHECKING:
    from hybridkv.replay.trace import Trace


@dataclass(frozen=True)
class Load:
    """What one host serves.

    Parameters
    ----------
    context_tokens : int
        Longest request, prompt and answer together.
    concurrency : int, optional
        Requests that run at a time, each taken to be that long.
    step_tokens : int, optional
        Most tokens of a request in flight, as :class:`~hybridkv.Admission` takes them. More than the context counts
        as the context.
    prefix_tokens : int, optional
        Length of a prefix that is kept for later requests. Default: the context.
    ends : int, optional
        Boundaries of a kept prefix that keep their states: prompt end and answer end are two.
    reused_share : float, optional
        Part of a request's tokens that an unbounded cache would know, 0 to 1.
    elsewhere_share : float, optional
        Part of the hits that end where no prompt and no answer ended, 0 to 1.
    requests_per_second : float, optional
        Arrivals at one host. Default: not known, and bandwidths are told for each request.
    prefixes : int, optional
        Prefixes that are kept for later requests, of one host. Default: not known, and as many as fit.

    Raises
    ------
    ArgumentError
        Naming the field.

    Examples
    --------
    >>> Load(131_072, 8).step_tokens
    8192
    """

    context_tokens: int
    concurrency: int = 1
    step_tokens: int = 8192
    prefix_tokens: int | None = None
    ends: int = 2
    reused_share: float = 0.5
    elsewhere_share: float = 0.1
    requests_per_second: float | None = None
    prefixes: int | None = None

    def __post_init__(self) -> None:
        for field in ("context_tokens", "concurrency", "step_tokens"):
            object.__setattr__(self, field, count(field, getattr(self, field)))
        object.__setattr__(self, "step_tokens", min(self.step_tokens, self.context_tokens))
        if self.prefix_tokens is None:
            object.__setattr__(self, "prefix_tokens", self.context_tokens)
        tokens = count("prefix_tokens", self.prefix_tokens)
        if tokens > self.context_tokens:
            raise ArgumentError("prefix_tokens", f"at most the context, {self.context_tokens}", tokens)
        object.__setattr__(self, "prefix_tokens", tokens)
        object.__setattr__(self, "ends", length("ends", self.ends))
        for field in ("reused_share", "elsewhere_share"):
            object.__setattr__(self, field, share(field, getattr(self, field)))
        if self.requests_per_second is not None:
            rate = positive_number("requests_per_second", self.requests_per_second)
            object.__setattr__(self, "requests_per_second", rate)
        if self.prefixes is not None:
            object.__setattr__(self, "prefixes", count("prefixes", self.prefixes))

    @property
    def kept_tokens(self) -> int:
        """``prefix_tokens``, as a number always."""
        assert self.prefix_tokens is not None
        return self.prefix_tokens


@dataclass(frozen=True)
class TraceFacts:
    """What was counted in a trace.

    Attributes
    ----------
    name : str
    requests : int
    longest_tokens, mean_tokens : int
        Of a request, prompt and answer together; the mean is rounded up.
    seconds : float
        From the first arrival to the last.
    in_flight : int
        Requests that ran at the same time, at most; see :func:`load_of_trace`.
    chains : int
        Requests that continue no other: conversations, or single requests.
    distinct_tokens : int
        What a cache that never forgets would hold of them.
    ends : int
        Prompt ends, and answer ends that a next turn names, of all requests.
    reused_tokens, prompt_tokens : int
        Of all prompts: what an earlier one named already, and all of it.
    hits, hits_elsewhere : int
        Requests of which something was named already; those whose reuse ends at no end of an earlier request.
    """

    name: str
    requests: int
    longest_tokens: int
    mean_tokens: int
    seconds: float
    in_flight: int
    chains: int
    distinct_tokens: int
    ends: int
    reused_tokens: int
    prompt_tokens: int
    hits: int
    hits_elsewhere: int


def load_of_trace(
    trace: Trace,
    *,
    tick_s: float = 0.001,
    tokens_per_second: float = 20_000.0,
    answer_tokens_per_second: float = 50.0,
    step_tokens: int = 8192,
    concurrency: int | None = None,
) -> tuple[Load, TraceFacts]:
    """Count what a trace would ask of one host.

    A request is taken to run for its prompt at ``tokens_per_second`` and its answer at ``answer_tokens_per_second``,
    whoever else runs: so many are in flight at a time.

    Parameters
    ----------
    trace : Trace
        As :func:`hybridkv.replay.trace.load_trace` reads it.
    tick_s : float, optional
        Seconds of the trace's unit of time. Default: milliseconds, as in Mooncake's.
    tokens_per_second : float, optional
        Prompt tokens that one request computes in a second.
    answer_tokens_per_second : float, optional
        Answer tokens of one request in a second.
    step_tokens : int, optional
        As :class:`Load` takes it.
    concurrency : int, optional
        Requests at a time. Default: those in flight.

    Returns
    -------
    (Load, TraceFacts)
        What a cache that never forgets would hold, as so many prefixes of the mean length of a request, with their
        share of the ends: the sums are those of the trace, however its prefixes share their beginnings.

    Raises
    ------
    ArgumentError
        Naming the field; a trace without a token.
    """
    tick = positive_number("tick_s", tick_s)
    rates = tuple(
        positive_number(field, rate)
        for field, rate in (
            ("tokens_per_second", tokens_per_second),
            ("answer_tokens_per_second", answer_tokens_per_second),
        )
    )
    facts = _count(trace, tick, rates)
    if not facts.longest_tokens:
        raise ArgumentError("trace", "a request with at least one token", trace.name)
    prefixes = max(1, -(-facts.distinct_tokens // facts.mean_tokens))
    load = Load(
        facts.longest_tokens,
        facts.in_flight if concurrency is None else concurrency,
        step_tokens=step_tokens,
        prefix_tokens=facts.mean_tokens,
        ends=-(-facts.ends // prefixes),
        reused_share=facts.reused_tokens / facts.prompt_tokens if facts.prompt_tokens else 0.0,
        elsewhere_share=facts.hits_elsewhere / facts.hits if facts.hits else 0.0,
        requests_per_second=facts.requests / facts.seconds if facts.seconds > 0 else None,
        prefixes=prefixes,
    )
    return load, facts


def _count(trace: Trace, tick: float, rates: tuple[float, ...]) -> TraceFacts:
    from hybridkv.replay.answers import next_turns

    totals = [request.input_tokens + request.output_tokens for request in trace.requests]
    turns = next_turns(trace)
    named = [turn for turn in turns if turn is not None]
    times = [request.timestamp * tick for request in trace.requests]
    reused, hits, elsewhere = _reuse(trace, turns)
    return TraceFacts(
        trace.name,
        len(totals),
        max(totals),
        -(-sum(totals) // len(totals)),
        max(times) - min(times),
        _in_flight(trace, times, rates),
        len(totals) - len(set(named)),
        trace.distinct_tokens,
        len(totals) + len(named),
        reused,
        trace.prompt_tokens,
        hits,
        elsewhere,
    )


def _in_flight(trace: Trace, times: list[float], rates: tuple[float, ...]) -> int:
    """Most requests at a time; one that ends when another comes does not run beside it."""
    changes = []
    for request, begins in zip(trace.requests, times, strict=True):
        ends = begins + request.input_tokens / rates[0] + request.output_tokens / rates[1]
        changes += [(begins, 1), (ends, -1)]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return max(1, most)


def _reuse(trace: Trace, turns: list[int | None]) -> tuple[int, int, int]:
    """Return tokens that an earlier prompt named, requests that have such, and those that reuse up to no end."""
    seen: set[int] = set()
    ends: set[int] = set()
    continued = {turn for turn in turns if turn is not None}
    tokens = hits = elsewhere = 0
    for request in trace.requests:
        ids = request.block_ids.tolist()
        known = next((place for place, block in enumerate(ids) if block not in seen), len(ids))
        if known:
            hits += 1
            tokens += min(known * trace.block_tokens, request.input_tokens)
            elsewhere += ids[known - 1] not in ends and request.index not in continued
        seen.update(ids)
        whole = request.input_tokens // trace.block_tokens
        if whole:
            ends.add(ids[whole - 1])
    return tokens, hits, elsewhere


def share(field: str, value: object) -> float:
    """Return a part of a whole. Raises ArgumentError where it is not 0 to 1."""
    expected = "a share, 0 to 1"
    number = finite_number(field, value, expected)
    if not 0 <= number <= 1:
        raise ArgumentError(field, expected, value)
    return number


@dataclass(frozen=True)
class Fleet:
    """Hosts that share a load.

    Parameters
    ----------
    hosts : int, optional
    prefixes : int, optional
        Prefixes of the whole fleet. Default: those of one host, times the hosts.
    routed : bool, optional
        Whether requests of one prefix go to one host, which alone keeps it. False: every host comes to keep all.

    Raises
    ------
    ArgumentError
        Naming the field.
    """

    hosts: int = 1
    prefixes: int | None = None
    routed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", count("hosts", self.hosts))
        if self.prefixes is not None:
            number = integer("prefixes", self.prefixes, "None, or an integer in [1, 2**62)")
            if not 1 <= number < 2**62:
                raise ArgumentError("prefixes", "None, or an integer in [1, 2**62)", number)
            object.__setattr__(self, "prefixes", number)
        if not isinstance(self.routed, bool):
            raise ArgumentError("routed", "True or False", self.routed)

    def prefixes_of_a_host(self, load: Load) -> int | None:
        """Return how many prefixes one host keeps, or None where nobody said how many there are."""
        if self.prefixes is None:
            return load.prefixes
        return -(-self.prefixes // self.hosts) if self.routed else self.prefixes
