# SPDX-License-Identifier: Apache-2.0
"""Pages of every group from one budget of bytes.

Each group has pages of its own exact size; there is no common page, neither the largest nor a least common
multiple. What one request can hold at most is counted by the same function as at admission, so that a pool sized
here admits what it was sized for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridkv import _core
from hybridkv.arguments import byte_count, integer
from hybridkv.errors import ArgumentError, SpecError
from hybridkv.group import TOKENS_LIMIT, CacheGroup
from hybridkv.inspection import own_block_tokens
from hybridkv.spec import CacheSpec


@dataclass(frozen=True)
class PagePlan:
    """Sizes of pools within a budget.

    Attributes
    ----------
    pages : dict of str to int
        Pages of each group's pool, as :class:`~hybridkv.HybridCache` takes them.
    blocks : int
        Descriptors that suffice for them: one for each page, and as many tip directories as the largest pool has
        pages.
    budget_bytes : int
        What was given.
    page_bytes : dict of str to int
        Bytes of one page of each group over all layers, with the stride that its kernel wants.
    mix : tuple of (int, int)
        (tokens, number) of requests that are admitted at a time and may then hold every page, but for those of
        ``kept_boundaries``; longest first.
    """

    pages: dict[str, int]
    blocks: int
    budget_bytes: int
    page_bytes: dict[str, int]
    mix: tuple[tuple[int, int], ...]

    @property
    def bytes(self) -> int:
        """Bytes of all pages together; at most the budget."""
        return sum(number * self.page_bytes[name] for name, number in self.pages.items())

    @property
    def group_bytes(self) -> dict[str, int]:
        """Bytes of each group's pool."""
        return {name: number * self.page_bytes[name] for name, number in self.pages.items()}

    @property
    def waste(self) -> float:
        """Share of the budget that no page occupies. Every page there is can be held: see ``mix``."""
        return 1 - self.bytes / self.budget_bytes


def worst_pages(
    spec: CacheSpec,
    max_tokens: int,
    *,
    start_tokens: int = 0,
    step_tokens: int | None = None,
    states: int = 0,
) -> dict[str, int]:
    """Return the most pages that one request holds of each group at a time: what admission promises it.

    Parameters
    ----------
    spec : CacheSpec
    max_tokens : int
        Tokens that the request may grow to, 1 or more.
    start_tokens : int, optional
        Tokens of the lease that it starts at; its whole history blocks are not counted.
    step_tokens : int, optional
        Most tokens in flight; see :class:`~hybridkv.Admission`. Default: ``max_tokens``.
    states : int, optional
        Most lengths whose states are asked for at a time.

    Returns
    -------
    dict of str to int

    Raises
    ------
    ArgumentError
        Not a spec, or a number out of range.

    Examples
    --------
    >>> from hybridkv import CacheGroup, Prefix, StateKind, Window
    >>> full = CacheGroup("full", StateKind.COMPRESSED, Prefix(), page_bytes=64)
    >>> spec = CacheSpec(16, [full, CacheGroup("swa", StateKind.WINDOW, Window(64), page_bytes=64)])
    >>> worst_pages(spec, 512, step_tokens=128)
    {'full': 32, 'swa': 13}
    """
    if not isinstance(spec, CacheSpec):
        raise ArgumentError("spec", "a CacheSpec", type(spec).__name__)
    longest = _tokens("max_tokens", max_tokens, 1)
    start = _tokens("start_tokens", start_tokens, 0)
    if start >= longest:
        raise ArgumentError("start_tokens", f"fewer than max_tokens, {longest}", start)
    step = 0 if step_tokens is None else _tokens("step_tokens", step_tokens, 1)
    listed = _core.worst_pages(
        spec.unit_tokens, _described(spec), longest, start, step, _tokens("states", states, 0, 2**32)
    )
    return dict(zip((g.name for g in spec.groups), listed, strict=True))


def size_pages(
    spec: CacheSpec,
    budget_bytes: int,
    *,
    max_tokens: int,
    requests: int = 1,
    step_tokens: int | None = None,
    states: int = 0,
    kept_boundaries: int = 0,
) -> PagePlan:
    """Divide a budget of bytes among the pools of all groups.

    First come ``requests`` requests of ``max_tokens`` each; then as many more of that length as fit; then
    shorter ones, so that no pool has pages which another pool's end keeps from being used. Where most requests are
    shorter than ``max_tokens``, live states end first and what is left of the history is cache.

    Parameters
    ----------
    spec : CacheSpec
    budget_bytes : int
        Bytes for pages of all groups, layers included.
    max_tokens : int
        Length of the longest request to be admitted, in tokens.
    requests : int, optional
        How many of that length must be admitted at a time, 1 or more.
    step_tokens : int, optional
        As of the cache's :class:`~hybridkv.Admission`; must be the same there. Default: ``max_tokens``.
    states : int, optional
        As ``states=`` of :meth:`~hybridkv.HybridCache.admit`, for each request.
    kept_boundaries : int, optional
        Boundaries whose windows and states are kept for later requests while these run; what one costs is
        :attr:`CacheSpec.boundary_bytes`. Groups that need nothing at a boundary get no page for it. With 0 a state
        is kept only until a running request needs its page.

    Returns
    -------
    PagePlan

    Raises
    ------
    SpecError
        The budget is too small for ``requests`` and ``kept_boundaries``; ``expected`` tells the least that is
        enough.
    ArgumentError
        Not a spec, or a number out of range.

    Examples
    --------
    >>> from hybridkv import CacheGroup, Prefix, StateKind, Window
    >>> full = CacheGroup("full", StateKind.COMPRESSED, Prefix(), page_bytes=64)
    >>> spec = CacheSpec(16, [full, CacheGroup("swa", StateKind.WINDOW, Window(64), page_bytes=48)])
    >>> plan = size_pages(spec, 10_000, max_tokens=512, step_tokens=128)
    >>> plan.pages, plan.mix
    ({'full': 117, 'swa': 52}, ((512, 3), (336, 1)))
    """
    budget = byte_count("budget_bytes", budget_bytes)
    worst_pages(spec, max_tokens, step_tokens=step_tokens, states=states)  # refuses bad arguments
    wanted, kept = _count("requests", requests, 1), _count("kept_boundaries", kept_boundaries, 0)
    page_bytes = {g.name: page_bytes_of(g) for g in spec.groups}

    def pages_of(tokens: int) -> dict[str, int]:
        return worst_pages(spec, tokens, step_tokens=step_tokens, states=states)

    def cost(tokens: int) -> int:
        return sum(number * page_bytes[name] for name, number in pages_of(tokens).items())

    at_rest = {name: kept * -(-size // spec[name].total_page_bytes) for name, size in spec.boundary_bytes.items()}
    rest = budget - sum(number * page_bytes[name] for name, number in at_rest.items())
    if rest < wanted * cost(max_tokens):
        least = budget - rest + wanted * cost(max_tokens)
        what = f"at least {least} bytes for {wanted} of {max_tokens} tokens and {kept} kept boundaries"
        raise SpecError("budget_bytes", what, budget)
    mix = _mix(cost, rest, int(max_tokens), wanted)
    pages = {g.name: at_rest.get(g.name, 0) for g in spec.groups}
    for tokens, number in mix:
        for name, each in pages_of(tokens).items():
            pages[name] += number * each
    return PagePlan(pages, sum(pages.values()) + max(pages.values()), budget, page_bytes, tuple(mix))


def _mix(cost: Callable[[int], int], rest: int, longest: int, wanted: int) -> list[tuple[int, int]]:
    """Return (tokens, number) of requests that fill ``rest`` bytes, at least ``wanted`` of the longest."""
    full, rest = divmod(rest, cost(longest))
    least = cost(1)
    shorter: list[int] = []
    if rest >= least:
        shorter = [_longest(cost, rest, longest)]
    elif full > wanted and 2 * least <= cost(longest) + rest:
        # What is left is not enough to start a request: one of the longest makes room for two shorter ones.
        full, rest = full - 1, rest + cost(longest)
        longer = _longest(cost, rest - least, longest)
        shorter = [longer, _longest(cost, rest - cost(longer), longest)]
    numbers = {longest: full}
    for length in sorted(shorter, reverse=True):
        numbers[length] = numbers.get(length, 0) + 1
    return [(length, number) for length, number in numbers.items() if number]


def _longest(cost: Callable[[int], int], rest: int, limit: int) -> int:
    """Return the longest request, at most ``limit`` tokens, that ``rest`` bytes are enough for; 0 for none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle) <= rest:
            low = middle
        else:
            high = middle - 1
    return low


def _described(spec: CacheSpec) -> list[tuple[int, int, int, int, int]]:
    return [
        (
            g.coverage.rule,
            g.coverage.parameter,
            own_block_tokens(g) // spec.unit_tokens,
            g.rows_per_page or 0,
            g.tokens_per_row,
        )
        for g in spec.groups
    ]


def page_bytes_of(group: CacheGroup) -> int:
    """Return the bytes from page to page over all layers; a stride below the whole page is that of one layer."""
    total, stride = group.total_page_bytes, group.page_stride or 0
    return stride if stride >= total else max(total, stride * group.layer_count)


def _tokens(field: str, value: object, least: int, limit: int = TOKENS_LIMIT) -> int:
    expected = f"an integer in [{least}, 2**{limit.bit_length() - 1})"
    number = integer(field, value, expected)
    if not least <= number < limit:
        raise ArgumentError(field, expected, value)
    return number


def _count(field: str, value: object, least: int) -> int:
    return _tokens(field, value, least, 2**32)
