# SPDX-License-Identifier: Apache-2.0
"""What fits into memory: pools, how many requests are admitted, how many prefixes stay beside them.

Nothing is estimated. Pools are cut by :func:`~hybridkv.size_pages`; what a request may hold is
:func:`~hybridkv.worst_pages`, by which the cache itself admits. So n requests are admitted exactly where every
pool has n times the worst case::

    cap = least over groups of pages(group) // worst(group)

and so many prefixes stay while the requests that were asked for run::

    kept = least over groups of (pages(group) - concurrency * worst(group)) // pages of one prefix(group)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridkv.coverage import Prefix
from hybridkv.inspection import own_block_tokens
from hybridkv.page_budget import PagePlan, page_bytes_of, size_pages, worst_pages
from hybridkv.planner.load import Load
from hybridkv.spec import CacheSpec


@dataclass(frozen=True)
class Capacity:
    """What one host's memory takes in one design.

    Attributes
    ----------
    fits : bool
        Whether the requests that were asked for are admitted together.
    cap : int
        Requests of the context's length that the pools admit; one more is refused.
    kept_prefixes : int
        Prefixes that stay whole in the pools while the requests that were asked for run.
    pages : dict of str to int
        Pages of each pool, as :class:`~hybridkv.HybridCache` takes them; empty where not one request fits.
    descriptors : int
        As ``blocks=`` of the cache.
    pool_bytes : int
        Of all pools; at most the memory.
    request_bytes : int
        Most that one request holds.
    request_pages : dict of str to int
    prefix_bytes : int
        Of one kept prefix with the states at its ends.
    prefix_pages : dict of str to int
    least_bytes : int
        Memory that the requests which were asked for need at least.
    longest_tokens : int
        Longest context at which so many requests fit; 0: none does.
    """

    fits: bool
    cap: int
    kept_prefixes: int
    pages: Mapping[str, int]
    descriptors: int
    pool_bytes: int
    request_bytes: int
    request_pages: Mapping[str, int]
    prefix_bytes: int
    prefix_pages: Mapping[str, int]
    least_bytes: int
    longest_tokens: int


def capacity_of(spec: CacheSpec, memory_bytes: int, load: Load, *, prefixes: int | None = None) -> Capacity:
    """Divide memory among running requests and kept prefixes.

    Parameters
    ----------
    spec : CacheSpec
    memory_bytes : int
        For pages of all groups.
    load : Load
    prefixes : int, optional
        Prefixes that there are to be kept. Default: as many as fit.

    Returns
    -------
    Capacity

    Raises
    ------
    ArgumentError
        No such number of bytes.
    """
    worst = worst_pages(spec, load.context_tokens, step_tokens=load.step_tokens)
    prefix = prefix_pages(spec, load.kept_tokens, load.ends)
    request_bytes, prefix_bytes = bytes_of(spec, worst), bytes_of(spec, prefix)
    running = min(load.concurrency, memory_bytes // request_bytes)
    plan = None
    if running:
        plan = _pools(spec, memory_bytes, load, running, prefixes, worst, prefix)
    pages = {} if plan is None else plan.pages
    return Capacity(
        fits=running == load.concurrency,
        cap=least_fit(pages, worst) if pages else 0,
        kept_prefixes=_kept(pages, worst, prefix, running, prefixes),
        pages=pages,
        descriptors=0 if plan is None else plan.blocks,
        pool_bytes=0 if plan is None else plan.bytes,
        request_bytes=request_bytes,
        request_pages=worst,
        prefix_bytes=prefix_bytes,
        prefix_pages=prefix,
        least_bytes=load.concurrency * request_bytes,
        longest_tokens=_longest(spec, memory_bytes, load),
    )


def prefix_pages(spec: CacheSpec, tokens: int, ends: int) -> dict[str, int]:
    """Return the pages that a kept prefix takes: its history, and the states at so many of its boundaries.

    Boundaries that lie close together share window pages, and then it is less.
    """
    pages = {}
    for group in spec.groups:
        if isinstance(group.coverage, Prefix):
            pages[group.name] = -(-tokens // own_block_tokens(group))
        else:
            each = spec.boundary_bytes[group.name] // group.total_page_bytes
            pages[group.name] = min(ends * each, -(-tokens // own_block_tokens(group)))
    return pages


def bytes_of(spec: CacheSpec, pages: Mapping[str, int]) -> int:
    """Return the bytes of pages, with the strides that kernels want."""
    return sum(number * page_bytes_of(spec[name]) for name, number in pages.items())


def least_fit(pages: Mapping[str, int], each: Mapping[str, int]) -> int:
    """Return how often `each` fits into `pages`, group by group."""
    return min((pages[name] // number for name, number in each.items() if number), default=0)


def _pools(
    spec: CacheSpec,
    memory_bytes: int,
    load: Load,
    running: int,
    prefixes: int | None,
    worst: Mapping[str, int],
    prefix: Mapping[str, int],
) -> PagePlan:
    """Cut the pools so that most prefixes stay: states at rest for as many as the history has room for."""

    def cut(kept: int) -> PagePlan:
        return size_pages(
            spec,
            memory_bytes,
            max_tokens=load.context_tokens,
            requests=running,
            step_tokens=load.step_tokens,
            kept_boundaries=min(kept * load.ends, most),
        )

    rest = memory_bytes - running * bytes_of(spec, worst)
    record = {name: size // spec[name].total_page_bytes for name, size in spec.boundary_bytes.items()}
    most = min(2**32 - 1, rest // max(1, bytes_of(spec, record)))
    wanted = rest // max(1, bytes_of(spec, prefix))
    wanted = wanted if prefixes is None else min(wanted, prefixes)
    plan = cut(wanted)
    for _ in range(2):  # live states of further requests serve as well: fewer at rest leave more history
        fewer = _kept(plan.pages, worst, prefix, running, prefixes)
        other = cut(fewer)
        if _kept(other.pages, worst, prefix, running, prefixes) < fewer:
            break
        plan = other
    return plan


def _kept(
    pages: Mapping[str, int],
    worst: Mapping[str, int],
    prefix: Mapping[str, int],
    running: int,
    prefixes: int | None,
) -> int:
    if not pages:
        return 0
    left = {name: number - running * worst[name] for name, number in pages.items()}
    fit = least_fit(left, prefix)
    return fit if prefixes is None else min(fit, prefixes)


def _longest(spec: CacheSpec, memory_bytes: int, load: Load) -> int:
    """Longest context, at most the one that was asked for, at which so many requests fit."""
    low, high = 0, load.context_tokens
    while low < high:
        middle = (low + high + 1) // 2
        need = worst_pages(spec, middle, step_tokens=min(load.step_tokens, middle))
        if load.concurrency * bytes_of(spec, need) <= memory_bytes:
            low = middle
        else:
            high = middle - 1
    return low
