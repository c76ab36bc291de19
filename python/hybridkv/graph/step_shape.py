# SPDX-License-Identifier: Apache-2.0
"""The numbers that a captured step is made for: tables and their widths, sentinels, batches, tokens of a step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from hybridkv.arguments import count, members
from hybridkv.coverage import Checkpoint, Chunk, Window
from hybridkv.errors import ArgumentError
from hybridkv.graph.padding import Padding, padding_of
from hybridkv.group import CacheGroup
from hybridkv.inspection import own_block_tokens
from hybridkv.spec import CacheSpec
from hybridkv.texts import name_of

_WIDEST = 2**31 - 1


@dataclass(frozen=True)
class TableShape:
    """One block table of a captured step.

    Attributes
    ----------
    name : str
        Of the group, and of the kernel where a group has several.
    group : CacheGroup
    width : int
        Entries of a row.
    padding : Padding
    compact : bool
        A row begins at the first block that the step reads, not at block 0.
    live : bool
        The group has one live page, which is the row's only entry.
    """

    name: str
    group: CacheGroup
    width: int
    padding: Padding
    compact: bool
    live: bool

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of the group."""
        return own_block_tokens(self.group)

    def span(self, tokens: int, grown_tokens: int) -> tuple[int, int]:
        """Return the first own block of a row and how many there are, for a step over [tokens, grown_tokens)."""
        if self.live:
            return 0, 1
        block, first = self.block_tokens, 0
        if self.compact:
            first = _first_read(self.group, tokens) // block
        return first, -(-grown_tokens // block) - first


@dataclass(frozen=True)
class StepShape:
    """What :class:`~hybridkv.graph.Staging` and :class:`~hybridkv.graph.Topology` share.

    Attributes
    ----------
    spec : CacheSpec
    groups : tuple of str
        The groups that the graph reads, in the order of the spec.
    tables : tuple of TableShape
    buckets : tuple of int
        Batches that graphs were captured for, ascending.
    step_tokens : int
        Most new tokens of a request in a step.
    """

    spec: CacheSpec
    groups: tuple[str, ...]
    tables: tuple[TableShape, ...]
    buckets: tuple[int, ...]
    step_tokens: int

    def bucket_for(self, requests: int) -> int | None:
        """Return the smallest bucket that holds so many requests; None where none does."""
        return next((bucket for bucket in self.buckets if bucket >= requests), None)

    @property
    def widths(self) -> dict[str, int]:
        """The narrowest width of each group whose tables begin at block 0, as ``cache.set_graph_widths`` takes it."""
        found: dict[str, int] = {}
        for table in self.tables:
            if not table.live and not table.compact:
                found[table.group.name] = min(table.width, found.get(table.group.name, table.width))
        return found


def step_shape(
    spec: CacheSpec,
    max_blocks: int | Mapping[str, int],
    padding: object,
    buckets: Iterable[int],
    step_tokens: int,
    compact: Collection[str],
    groups: Collection[str] | None,
) -> StepShape:
    """Take the arguments of a capture.

    Raises
    ------
    ArgumentError
        Naming the field.
    """
    if not isinstance(spec, CacheSpec):
        raise ArgumentError("spec", "a CacheSpec", type(spec).__name__)
    by_name = {group.name: group for group in spec.groups}
    used = tuple(by_name) if groups is None else _named("groups", groups, by_name)
    narrow = _named("compact", compact, by_name)
    if not used:
        raise ArgumentError("groups", f"one or more of {list(by_name)}", groups)
    tables: list[TableShape] = []
    for name in used:
        group = by_name[name]
        live = is_live(group)
        if name in narrow and (live or not isinstance(group.coverage, (Window, Chunk))):
            raise ArgumentError("compact", "groups of windows or chunks with a page for each block", name)
        width = 1 if live else _width(max_blocks, name)
        tables.extend(
            TableShape(name + kernel, group, width, own, name in narrow, live)
            for kernel, own in _paddings(padding, name).items()
        )
    if isinstance(max_blocks, Mapping):
        _named("max_blocks", max_blocks, {n: g for n, g in by_name.items() if not is_live(g)})
    if isinstance(padding, Mapping):
        _named("padding", padding, by_name)
    sizes = sorted({count("buckets", size) for size in members("buckets", buckets, "batch sizes")})
    if not sizes:
        raise ArgumentError("buckets", "at least one batch size", "none")
    return StepShape(spec, used, tuple(tables), tuple(sizes), count("step_tokens", step_tokens))


def is_live(group: CacheGroup) -> bool:
    """Say whether a running request has one live page of the group, as ``csrc/layout/residency.h`` decides it."""
    if isinstance(group.coverage, Checkpoint):
        return True
    if not isinstance(group.coverage, (Window, Chunk)):
        return False
    rows = group.rows_per_page or 0
    return 0 < rows < own_block_tokens(group) // group.tokens_per_row


def window_width(spec: CacheSpec, group: str, *, step_tokens: int = 1) -> int:
    """Return how wide a compact table must be so that no offset of a window within its blocks is too wide for it.

    Parameters
    ----------
    spec : CacheSpec
    group : str
        Name of a group of windows or chunks with a page for each block.
    step_tokens : int
        Most new tokens of a request in a step.

    Returns
    -------
    int
        Own blocks.

    Raises
    ------
    ArgumentError
        Unknown group, one of another coverage or with a live page, no number of tokens.

    Examples
    --------
    >>> import hybridkv as hk
    >>> window = hk.CacheGroup("window", hk.StateKind.WINDOW, hk.Window(128), page_bytes=64)
    >>> hk.graph.window_width(hk.CacheSpec(64, [window]), "window")
    3
    """
    (name,) = _named("group", (group,), {found.name: found for found in spec.groups})
    found = next(each for each in spec.groups if each.name == name)
    if is_live(found) or not isinstance(found.coverage, (Window, Chunk)):
        raise ArgumentError("group", "a group of windows or chunks with a page for each block", group)
    span = found.coverage.parameter - 1 + count("step_tokens", step_tokens)
    return 1 if span == 1 else (span - 2) // own_block_tokens(found) + 2


def _first_read(group: CacheGroup, tokens: int) -> int:
    """Return the first token whose row a step that goes on from a length reads."""
    size = group.coverage.parameter
    return tokens // size * size if isinstance(group.coverage, Chunk) else max(0, tokens - (size - 1))


def _named(field: str, names: Iterable[str], known: Mapping[str, object]) -> tuple[str, ...]:
    """Return names in the order of what is known; refuses those that are not."""
    expected = f"names of {list(known)}"
    if isinstance(names, (str, bytes)):
        raise ArgumentError(field, expected, names)
    listed = members(field, names, expected)
    for name in listed:
        if not isinstance(name, str) or name not in known:
            raise ArgumentError(field, expected, name)
    return tuple(name for name in known if name in listed)


def _width(max_blocks: int | Mapping[str, int], name: str) -> int:
    if not isinstance(max_blocks, Mapping):
        width, field = max_blocks, "max_blocks"
    elif name in max_blocks:
        width, field = max_blocks[name], f"max_blocks[{name}]"
    else:
        raise ArgumentError("max_blocks", f"a width of the tables of {name!r}", list(max_blocks))
    number = count(field, width)
    if number > _WIDEST:
        raise ArgumentError(field, f"at most {_WIDEST}", number)
    return number


def _paddings(padding: object, name: str) -> dict[str, Padding]:
    """Return the sentinels of a group's tables, by what their names end with."""
    if not isinstance(padding, Mapping):
        return {"": padding_of("padding", padding)}
    if name not in padding:
        raise ArgumentError("padding", f"the sentinel of {name!r}", list(padding))
    own = padding[name]
    if not isinstance(own, Mapping):
        return {"": padding_of(f"padding[{name}]", own)}
    if not own:
        raise ArgumentError(f"padding[{name}]", "a sentinel, or one for each kernel by name", own)
    for kernel in own:
        name_of(f"padding[{name}]", kernel)
    return {f".{kernel}": padding_of(f"padding[{name}][{kernel}]", value) for kernel, value in own.items()}
